//! `tilescribe show`

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use serde_json::{Value, json};
use tilescribe::analysis;
use tilescribe::artifact::{CompiledSchedule, CompiledSymbol, CompiledTask, Growth, Manifest, StatePort};
use tilescribe::codegen;
use tilescribe::measure::roofline::Arithmetic;
use tilescribe::nest::Nest;
use tilescribe::record::fingerprint;
use tilescribe::space::{Explained, Next, Schedule, Space, Tape, Trace, Untuned};
use tilescribe::target::{Target, Task};

use super::arguments::{NetworkArguments, StoreArguments, TargetArguments, read_task, read_trace};
use super::exit::CommandError;
use super::figures::{Comparison, limits, of, percent};
use super::layouts::plan;
use super::words::{counted, duration, operations};

/// Look inside a compiled network or a single program
///
/// Of a compiled network: its inputs and outputs, what it needs of a machine, and each task's time and
/// decisions. Of a program: its time and decisions, or its loop nest, LLVM IR or assembly, or how each
/// decision came to be open and what the untuned program takes; or figures: what it computes and must move,
/// the traffic of each cache, its innermost loop in machine code, how near it comes to the machine's limits.
#[derive(Args)]
pub struct Show {
    /// Folder that `tilescribe compile` wrote; or a task (a file, or MODEL.onnx#TASK), for its best program
    /// in the store; TASK@N for the N-th best; or the hash of a task in the store, or its first digits
    what: String,
    /// Of a compiled network, only this task, by number or name
    #[arg(long)]
    task: Option<String>,
    /// Of a task, the program that is not tuned
    #[arg(long, conflicts_with = "trace")]
    untuned: bool,
    /// Of a task, the program with the decisions in this file
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    view: View,
    /// Print the figures as JSON, a line for each program
    #[arg(long, conflicts_with_all = ["nest", "schedule", "ir", "asm", "why", "plan"])]
    json: bool,
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    network: NetworkArguments,
    #[command(flatten)]
    target: TargetArguments,
}

#[derive(Args, Clone, Copy)]
#[group(multiple = false)]
struct View {
    /// Print the loop nest
    #[arg(long)]
    nest: bool,
    /// Print the LLVM IR, after our passes
    #[arg(long)]
    ir: bool,
    /// Print the assembly
    #[arg(long)]
    asm: bool,
    /// Print the schedule: the steps that make the loop nest of the plain one
    #[arg(long)]
    schedule: bool,
    /// Print each decision with its alternatives, and the steps that follow
    #[arg(long)]
    why: bool,
    /// Print arithmetic, traffic of the caches, the innermost loop's instructions, and the share of the
    /// machine's peak
    #[arg(long)]
    figures: bool,
    /// Print what was decided about a network as a whole, and the alternatives: how tensors lie between its
    /// tasks. Of a folder that `compile` wrote, or of an ONNX file as it is cut without a plan
    #[arg(long)]
    plan: bool,
}

impl View {
    fn is_default(self) -> bool {
        !(self.nest || self.schedule || self.ir || self.asm || self.why || self.figures || self.plan)
    }
}

/// What can be looked at.
struct Program {
    name: String,
    task: Task,
    trace: Trace,
    /// The best of its times.
    best_ns: Option<u64>,
}

impl Show {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        if self.view.plan {
            return plan(&self.what, &self.network, &[self.target.resolve()?], out);
        }
        if Path::new(&self.what).is_dir() {
            self.network.check([])?;
            return self.artifact(out);
        }
        self.print(&self.program()?, out)
    }

    fn print(&self, program: &Program, out: &mut dyn Write) -> Result<()> {
        match self.json {
            true => Ok(writeln!(out, "{}", program.json()?)?),
            false => program.show(self.view, out),
        }
    }

    fn artifact(&self, out: &mut dyn Write) -> Result<()> {
        let manifest = Manifest::read(self.what.as_ref())?;
        // programs are written again for these machines
        for cpu in manifest.versions.iter().filter_map(|version| version.target.cpu().ok()) {
            codegen::check(cpu).with_context(|| self.what.clone())?;
        }
        let mut chosen: Vec<usize> = (0..manifest.tasks.len()).collect();
        if let Some(wanted) = &self.task {
            let number = wanted.parse::<usize>().ok();
            chosen.retain(|at| Some(*at) == number || manifest.tasks[*at].name == *wanted);
            if chosen.is_empty() {
                return Err(usage(format!("the network has no task `{wanted}`")));
            }
        } else if self.view.is_default() && !self.json {
            let Manifest { name, tilescribe, versions, precision, .. } = &manifest;
            let machines: Vec<String> = versions.iter().map(|version| version.target.to_string()).collect();
            writeln!(out, "{name}, compiled by tilescribe {tilescribe} for {}", machines.join(", "))?;
            for version in versions.iter().filter(|version| !version.required_features.is_empty()) {
                writeln!(out, "needs {}", version.required_features.join(" "))?;
            }
            writeln!(out, "precision {}", precision.name())?;
            for (what, ports) in [("input", &manifest.inputs), ("output", &manifest.outputs)] {
                for port in ports {
                    let file = manifest.output_files.get(&port.name).filter(|_| what == "output");
                    let file = file.filter(|file| **file != format!("{}.npy", port.name));
                    let file = file.map_or_else(String::new, |file| format!(", in files {file}"));
                    writeln!(out, "{what} {} {}[{}]{file}", port.name, port.dtype, port.shape_text())?;
                }
            }
            for StatePort { input, output, grows } in &manifest.states {
                let (name, dtype, shape) = (&input.name, &input.dtype, input.shape_text());
                let how = match grows {
                    Some(Growth { axis, capacity }) => format!("grows to {output} along axis {axis}, up to {capacity}"),
                    None => format!("replaced by {output}"),
                };
                writeln!(out, "state {name} {dtype}[{shape}], {how}")?;
            }
            for CompiledSymbol { name, low, high, multiple, .. } in &manifest.symbols {
                let steps = if *multiple == 1 { String::new() } else { format!(" in steps of {multiple}") };
                writeln!(out, "extent {name} {low}..{high}{steps}")?;
            }
        }
        for at in chosen {
            let task = &manifest.tasks[at];
            if !self.json {
                writeln!(out, "\n# task {at} {} x{}: {}", task.name, task.weight, task.nodes.join(" "))?;
            }
            for version in &manifest.versions {
                if manifest.versions.len() > 1 && !self.json {
                    writeln!(out, "# for {}", version.target)?;
                }
                self.print(&compiled(task, &version.schedules[at], &version.target)?, out)?;
            }
        }
        Ok(())
    }

    fn program(&self) -> Result<Program> {
        let (what, rank) = match self.what.rsplit_once('@').and_then(|(what, n)| Some((what, n.parse::<usize>().ok()?)))
        {
            Some((what, rank)) => (what, rank.max(1)),
            None => (self.what.as_str(), 1),
        };
        let target = self.target.resolve()?;
        let (name, task) = self.task_of(what, target)?;
        let space = Space::standard();
        if self.untuned {
            let (trace, _) = space.drive(&task, &mut Untuned);
            return Ok(Program { name, task, trace, best_ns: None });
        }
        if let Some(path) = &self.trace {
            let trace = read_trace(path)?.parse().map_err(|error| usage(format!("{}: {error}", path.display())))?;
            return Ok(Program { name, task, trace, best_ns: None });
        }
        let records = match self.store.open_existing()? {
            Some(store) => {
                let found = store.readable(&task, &space)?;
                if let Some(warning) = found.warning() {
                    tracing::warn!("{warning}");
                }
                found.records
            }
            None => Vec::new(),
        };
        let mut timed: Vec<_> =
            records.into_iter().filter_map(|r| r.outcome.best_ns().map(|ns| (ns, r.trace))).collect();
        timed.sort();
        let programs = counted(timed.len(), "program");
        let missing = || usage(format!("the store holds {programs} of {name}; --untuned shows the one without tuning"));
        let (best_ns, trace) = timed.into_iter().nth(rank - 1).ok_or_else(missing)?;
        Ok(Program { name, task, trace, best_ns: Some(best_ns) })
    }

    /// A task by file, by network and name, or by the first digits of its hash.
    fn task_of(&self, what: &str, target: Target) -> Result<(String, Task)> {
        let is_hash = (6..=32).contains(&what.len()) && what.chars().all(|c| c.is_ascii_hexdigit());
        if !is_hash || Path::new(what).exists() {
            self.network.check([what])?;
            return read_task(what, target, &self.network);
        }
        self.network.check([])?;
        let Some(store) = self.store.open_existing()? else {
            return Err(usage("there is no store yet: `tilescribe tune` makes one".into()));
        };
        let mut found: Vec<_> = store.tasks()?.into_iter().filter(|(hash, _)| hash.starts_with(what)).collect();
        match (found.pop(), found.len()) {
            (Some((hash, workload)), 0) => Ok((hash, Task { workload, target })),
            (None, _) => Err(usage(format!("the store holds no task {what}; `tilescribe records list` lists them"))),
            (Some(_), others) => Err(usage(format!("{} tasks of the store begin with {what}", others + 1))),
        }
    }
}

fn usage(reason: String) -> anyhow::Error {
    anyhow!(CommandError::Usage(reason))
}

fn compiled(task: &CompiledTask, schedule: &CompiledSchedule, target: &Target) -> Result<Program> {
    let damaged = |what: &str, error: &dyn std::fmt::Display| usage(format!("the {what} of {}: {error}", task.name));
    let workload = task.workload.parse().map_err(|error| damaged("workload", &error))?;
    let trace = schedule.trace.parse().map_err(|error| damaged("decisions", &error))?;
    let task_of = Task { workload, target: target.clone() };
    Ok(Program { name: task.name.clone(), task: task_of, trace, best_ns: schedule.best_ns })
}

impl Program {
    fn show(&self, view: View, out: &mut dyn Write) -> Result<()> {
        let text = if view.nest {
            self.nest()?.to_string()
        } else if view.ir {
            codegen::ir(&self.nest()?, self.task.target.cpu()?)?
        } else if view.asm {
            match &self.task.target {
                Target::Cpu(cpu) => codegen::assembly(&self.nest()?, cpu)?,
                Target::Gpu(gpu) => codegen::ptx(&self.nest()?, gpu)?.text,
            }
        } else if view.schedule {
            self.schedule()?.to_string()
        } else if view.why {
            self.why()?
        } else if view.figures {
            format!("{}\n{}", self.summary(), self.compare(&|comparison| comparison.text())?)
        } else {
            return Ok(write!(out, "{}\n{}", self.summary(), self.trace)?);
        };
        Ok(writeln!(out, "{}", text.trim_end())?)
    }

    fn summary(&self) -> String {
        let flops = self.task.workload.flops();
        let name = format!("{}, {}", self.name, operations(flops));
        let Some(ns) = self.best_ns else { return format!("{name}, not timed") };
        let rate = self.task.workload.timed_flops() / ns.max(1) as f64;
        let share = self.peak().map_or(String::new(), |(peak, arithmetic)| {
            format!(", {} of peak{}", percent(rate / peak), of(arithmetic))
        });
        format!("{name}: {}, {rate:.1} GFLOP/s{share}", duration(ns))
    }

    /// What the machine does at most of that which the task multiplies, in GFLOP/s, where it is known.
    fn peak(&self) -> Option<(f64, Arithmetic)> {
        let cpu = self.task.target.cpu().ok()?;
        let arithmetic = Arithmetic::of(&self.task.workload, cpu);
        Some((limits(cpu).ok()?.peak_gflops(arithmetic, cpu.cores)?, arithmetic))
    }

    /// Figures next to the machine's limits, as `print` wants them.
    fn compare<T>(&self, print: &dyn Fn(&Comparison) -> T) -> Result<T> {
        let figures = analysis::figures(&self.task, &self.nest()?)?;
        let target = self.task.target.cpu()?;
        let limits = &limits(target);
        let timed_flops = self.task.workload.timed_flops();
        let (arithmetic, best_ns) = (Arithmetic::of(&self.task.workload, target), self.best_ns);
        Ok(print(&Comparison { figures: &figures, target, arithmetic, limits, timed_flops, best_ns }))
    }

    fn json(&self) -> Result<Value> {
        let mut object = self.compare(&|comparison| comparison.json())?;
        object["name"] = json!(self.name);
        object["hash"] = json!(self.task.workload.hash().to_string());
        object["target"] = json!(fingerprint(&self.task.target));
        object["decisions"] = json!(self.trace.to_string());
        Ok(object)
    }

    fn nest(&self) -> Result<Nest> {
        match Space::standard().next(&self.task, &self.trace) {
            Ok(Next::Done(nest)) => Ok(nest),
            Ok(Next::DeadEnd(reason)) => Err(usage(format!("{reason}"))),
            Ok(Next::Defect(defect)) => Err(anyhow::anyhow!("a rule is at fault: {defect}")),
            Ok(Next::Choose(decision)) => Err(usage(format!("the decisions end where `{}` is asked", decision.site))),
            Err(stale) => Err(usage(format!("the decisions do not fit: {stale}"))),
        }
    }

    /// Rule by rule, a line for each decision (what was taken, from how many, and what the rules take without
    /// any measurement), and the steps of the schedule that follow from them.
    fn why(&self) -> Result<String> {
        self.nest()?;
        let explained = Space::standard().explain(&self.task, &self.trace);
        let explained = explained.ok_or_else(|| usage("the decisions do not fit".to_string()))?;
        let mut text = format!("{:<24} {:<16} {:>10}  untuned\n", "decision", "taken", "candidates");
        for Explained { rule, decisions, steps } in explained {
            if decisions.is_empty() && steps.is_empty() {
                continue;
            }
            let _ = writeln!(text, "{rule}:");
            for (decision, taken) in decisions {
                let untuned = decision.candidates.get(decision.default).filter(|untuned| **untuned != taken);
                let untuned = untuned.map_or("the same".to_string(), ToString::to_string);
                let (site, taken, count) = (decision.site.to_string(), taken.to_string(), decision.candidates.len());
                let _ = writeln!(text, "{site:<24} {taken:<16} {count:>10}  {untuned}");
            }
            for step in steps {
                let _ = writeln!(text, "    {step}");
            }
        }
        Ok(text)
    }

    /// The steps that turn the plain nest into this one.
    fn schedule(&self) -> Result<Schedule> {
        self.nest()?;
        let schedule = Space::standard().schedule(&self.task, &mut Tape::replay(&self.trace));
        schedule.map_err(|stop| anyhow::anyhow!("{stop:?}"))
    }
}
