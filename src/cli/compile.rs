//! `tilescribe compile`

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde_json::json;
use tilescribe::artifact::{self, Manifest, Options, Schedule, Version};
use tilescribe::graph::{Network, NetworkBuffer, Source};
use tilescribe::record::Store;
use tilescribe::space::Space;
use tilescribe::target::{Target, Task};
use tilescribe::tune::Report;

use super::arguments::{NetworkArguments, StoreArguments, TargetArguments, read_target, seconds};
use super::exit::CommandError;
use super::extents;
use super::in_network::{self, Settled};
use super::lab::Lab;
use super::layouts::PlanArguments;
use super::packing::write_artifact;
use super::planning;
use super::search::{SearchArguments, jobs, judge, search};
use super::words::{bytes, counted, duration};

/// Compile a network into a folder that any C program can use
///
/// Schedules are searched for first: 10 programs of each task are measured, those in the store counted,
/// unless another budget is given. What is measured goes into the store. With `--trials-per-task 1` a task
/// takes the model's first choice where the model is sure, before anything is measured, that it is faster
/// than the untuned program, and the untuned program otherwise. With `--trials-per-task 0` every task takes
/// the best schedule that the store holds for this target, or else the untuned one.
///
/// Where images may lie with their channels last between tasks, schedules are searched for both ways, and the
/// faster network is taken; `--layouts` decides that beforehand, in half the time.
#[derive(Args)]
pub struct Compile {
    /// ONNX file
    model: PathBuf,
    /// Folder to write; an artifact that stands there is replaced
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    network: NetworkArguments,
    #[command(flatten)]
    plan: PlanArguments,
    #[command(flatten)]
    target: TargetArguments,
    /// Another GPU that the artifact shall run on, beside that of --target; its tasks take the best schedules
    /// in the store, or the untuned ones
    #[arg(long = "also", value_name = "FILE.toml")]
    others: Vec<PathBuf>,
    #[command(flatten)]
    search: SearchArguments,
    /// Search as long as it pays, and so long at most: each program is one of the task where a second is
    /// expected to save most of the network's time, until a further second is expected to save less than
    /// 0.05 % of it
    #[arg(long, value_name = "S", value_parser = seconds, conflicts_with_all = ["time_budget", "trials_per_task"])]
    seconds: Option<f64>,
    #[command(flatten)]
    store: StoreArguments,
    /// Prefix of the C functions [default: the folder's name]
    #[arg(long)]
    name: Option<String>,
    /// End with a line of JSON
    #[arg(long)]
    json: bool,
}

impl Compile {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        let mut targets = vec![self.target.resolve()?];
        for path in &self.others {
            targets.push(read_target(path)?);
        }
        artifact::check_targets(&targets)?;
        // said now, rather than after the search
        artifact::check_output(&self.output)?;
        let networks = self.plan.alternatives(&self.model, &self.network)?;
        for network in &networks {
            artifact::check_network(network, &targets)?;
        }
        if let Some(network) = networks.first() {
            extents::print_assumed(network, &self.network.dimensions, out)?;
        }
        let shares = networks.len() as f64;
        let drafts = networks.into_iter().map(|network| self.draft(network, &targets, shares));
        let memory = (self.output.as_path(), self.search.measuring.measuring_memory);
        let (draft, contest) = planning::choose(drafts.collect::<Result<Vec<_>>>()?, &targets[0], memory)?;
        let planning::Draft { network, found, mut chosen } = draft;
        let settled = match (self.store.open_if_there()?, &targets[0], found.jobs.is_empty()) {
            (Some(store), target @ Target::Cpu(_), false) => {
                in_network::settle(&network, target, &self.search.space.space(), &store, &mut chosen[0], memory)?
            }
            _ => Settled::Nothing,
        };
        let untuned = chosen.iter().flatten().filter(|schedule| schedule.best_ns.is_none()).count();
        let name = self.name.clone().unwrap_or_else(|| identifier(&self.output));
        let options = Options { name: &name, folder: &self.output };
        let versions: Vec<Version<'_>> =
            targets.iter().zip(&chosen).map(|(target, schedules)| Version { target, schedules }).collect();
        let manifest = write_artifact(&network, &versions, &options)?;
        times(&network, &found, out)?;
        if found.enough {
            let (trials, after) = (counted(found.trials, "program"), found.seconds);
            writeln!(out, "the search ended after {trials} and {after:.1} s: a further second promises little")?;
        }
        if let Some(contest) = &contest {
            writeln!(out, "{contest}")?;
        }
        match &settled {
            Settled::Nothing => {}
            Settled::Skipped(reason) => writeln!(out, "runners-up were not compared in the network: {reason}")?,
            Settled::Compared { compared, taken } => {
                let compared = counted(*compared, "task");
                writeln!(out, "of {compared} with a runner-up, {taken} take it: it is faster in the network")?;
            }
        }
        report(&manifest, &self.output, untuned, out)?;
        if self.json {
            let mut line = json!(found);
            line["untuned"] = json!(untuned);
            if let Settled::Compared { compared, taken } = settled {
                line["runners_up"] = json!({ "compared": compared, "taken": taken });
            }
            line["calls"] = json!(manifest.calls.len());
            line["precision"] = json!(manifest.precision);
            line["memory"] = json!(manifest.memory);
            if let Some(contest) = &contest {
                line["plans"] = contest.json();
            }
            if let Some(plan) = &manifest.plan {
                line["plan"] = json!(plan.text);
            }
            if manifest.has_symbols() {
                line["symbols"] = json!(manifest.symbols);
            }
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    /// Schedules for the tasks of a network, searched for on the first target, on one of so many shares of
    /// the budget.
    fn draft(&self, network: Network, targets: &[Target], shares: f64) -> Result<planning::Draft> {
        let space = self.search.space.space();
        let found = self.search(&network, &targets[0], shares)?;
        let store = self.store.open_if_there()?;
        let of_target = |target| schedules(&network, target, &space, store.as_ref());
        let mut chosen = targets.iter().map(of_target).collect::<Result<Vec<_>>>()?;
        take_winners(&mut chosen[0], &space, &network, &targets[0], &found)?;
        Ok(planning::Draft { network, found, chosen })
    }

    /// Searches within the budget; without one for no trials at all, reports none.
    fn search(&self, network: &Network, target: &Target, shares: f64) -> Result<Report> {
        let jobs = jobs(network, target);
        let mut arguments = self.search.clone();
        if let Some(seconds) = self.seconds {
            (arguments.time_budget, arguments.least_gain) = (Some(seconds), Some(LEAST_GAIN));
        }
        arguments.time_budget = arguments.time_budget.map(|seconds| seconds / shares);
        if arguments.time_budget.is_none() {
            arguments.trials_per_task.get_or_insert(DEFAULT_TRIALS);
        }
        if arguments.trials_per_task == Some(0) {
            let (failed, jobs_report) = (BTreeMap::new(), Vec::new());
            let (tasks, interrupted, enough) = (jobs.len(), false, false);
            let (trials, valid, seconds, trials_per_s) = (0, 0, 0.0, 0.0);
            let jobs = jobs_report;
            return Ok(Report { tasks, trials, valid, failed, seconds, trials_per_s, interrupted, enough, jobs });
        }
        let (space, targets) = (arguments.space.space(), vec![target.clone()]);
        let (device, measuring) = (self.target.device()?, arguments.measuring);
        let mut lab = match finds_constants_cold(network, target) {
            true => Lab::here_with_cold_finals(targets, device, measuring),
            false => Lab::here(targets, device, measuring),
        };
        let report = search(&jobs, &space, &mut lab, &arguments, None, &mut self.store.open()?)?;
        if report.interrupted {
            return Err(CommandError::SearchInterrupted.into());
        }
        judge(&jobs, &report)?;
        Ok(report)
    }
}

/// Whether the constants of a network do not stay in the last cache from one run to the next.
fn finds_constants_cold(network: &Network, target: &Target) -> bool {
    let bytes = |buffer: &NetworkBuffer| match &buffer.source {
        Source::Constant(data) => data.bytes.len() as u64,
        Source::Input(_) | Source::Output(_) | Source::Intermediate => 0,
    };
    let constants: u64 = network.buffers.iter().map(bytes).sum();
    matches!(target, Target::Cpu(cpu) if constants > cpu.l3_bytes.max(cpu.l2_bytes))
}

/// What a further second has to be expected to save of the network's time where `--seconds` is given: with
/// less, a minute of search saves 3 %.
const LEAST_GAIN: f64 = 0.0005;

/// Candidates of each task where no budget is given.
const DEFAULT_TRIALS: u64 = 10;

/// The finals' winners take their tasks. They were measured beside the untuned program, so nothing gets
/// slower by tuning; where the budget was a single program, it is the winner.
fn take_winners(
    chosen: &mut [Schedule],
    space: &Space,
    network: &Network,
    target: &Target,
    found: &Report,
) -> Result<()> {
    for ((schedule, task), job) in chosen.iter_mut().zip(&network.tasks).zip(&found.jobs) {
        if let Some((trace, ns)) = &job.best {
            let task = Task { workload: task.workload.clone(), target: target.clone() };
            *schedule = Schedule::recorded(space, &task, trace, Some(*ns))?;
        }
    }
    Ok(())
}

/// The best schedule that the store holds for each task, or else the untuned one.
pub fn schedules(network: &Network, target: &Target, space: &Space, store: Option<&Store>) -> Result<Vec<Schedule>> {
    let mut schedules = Vec::with_capacity(network.tasks.len());
    for task in &network.tasks {
        let task = Task { workload: task.workload.clone(), target: target.clone() };
        let best = store.map(|store| store.fastest(&task, space)).transpose()?.flatten();
        schedules.push(match best {
            Some(record) => {
                let recorded = Schedule::recorded(space, &task, &record.trace, record.outcome.best_ns());
                // the record came with the store: it is no bug of ours that it does not fit
                recorded.map_err(|error| {
                    let hash = task.workload.hash().to_string();
                    CommandError::Usage(format!("the record of task {hash} in the store does not fit it: {error}"))
                })?
            }
            None => Schedule::untuned(space, &task)?,
        });
    }
    Ok(schedules)
}

/// What tuning gained: a line for each task that was searched, and one for all calls together.
fn times(network: &Network, found: &Report, out: &mut dyn Write) -> Result<()> {
    let row = |cells: [&str; 4], name: &str| {
        format!("{:>10} {:>10} {:>8} {:>6}  {name}", cells[0], cells[1], cells[2], cells[3])
    };
    let (mut tuned_ns, mut untuned_ns) = (0, 0);
    for (number, (task, job)) in network.tasks.iter().zip(&found.jobs).enumerate() {
        if number == 0 {
            writeln!(out, "{}", row(["tuned", "untuned", "faster", "calls"], "task"))?;
        }
        let tuned = job.best.as_ref().map(|(_, ns)| *ns);
        let time = |ns: Option<u64>| ns.map_or_else(|| "-".into(), duration);
        let factor = |tuned: u64, untuned: u64| format!("{:.2} x", untuned as f64 / tuned.max(1) as f64);
        let gain = tuned.zip(job.untuned_ns).map_or_else(|| "-".into(), |(tuned, untuned)| factor(tuned, untuned));
        let calls = task.weight.to_string();
        writeln!(out, "{}", row([&time(tuned), &time(job.untuned_ns), &gain, &calls], &task.name))?;
        tuned_ns += tuned.unwrap_or(0) * task.weight as u64;
        untuned_ns += job.untuned_ns.or(tuned).unwrap_or(0) * task.weight as u64;
        if number + 1 == found.jobs.len() {
            let cells = [duration(tuned_ns), duration(untuned_ns), factor(tuned_ns, untuned_ns)];
            let calls: usize = network.tasks.iter().map(|task| task.weight).sum();
            writeln!(out, "{}", row([&cells[0], &cells[1], &cells[2], &calls.to_string()], "all"))?;
        }
    }
    Ok(())
}

fn report(manifest: &Manifest, folder: &Path, untuned: usize, out: &mut dyn Write) -> Result<()> {
    let memory = &manifest.memory;
    let (tasks, calls) = (counted(manifest.tasks.len(), "task"), counted(manifest.calls.len(), "call"));
    let untuned = counted(untuned, "task");
    let machines = match manifest.versions.len() {
        1 => String::new(),
        count => format!(" on {count} machines"),
    };
    writeln!(out, "{}: {tasks}, {calls}, {untuned} untuned{machines}", folder.display())?;
    writeln!(
        out,
        "memory: weights {}, arena {} (lower bound {}, without sharing {}), workspace {}",
        bytes(memory.weights_bytes),
        bytes(memory.arena_bytes),
        bytes(memory.lower_bound_bytes),
        bytes(memory.intermediate_bytes),
        bytes(memory.workspace_bytes)
    )?;
    Ok(())
}

/// The name of a folder, as a C identifier.
pub fn identifier(folder: &Path) -> String {
    let stem = folder.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let plain: String = stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(50).collect();
    let prefix = if plain.starts_with(|c: char| c.is_ascii_alphabetic()) && !plain.starts_with("tilescribe") {
        ""
    } else {
        "net_"
    };
    format!("{prefix}{plain}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_folder_gives_an_identifier() {
        for (folder, name) in [
            ("out/bert-base/", "bert_base"),
            ("3x3", "net_3x3"),
            ("tilescribe", "net_tilescribe"),
            ("..", "net_"),
            ("é.v2", "net__"),
        ] {
            assert_eq!(identifier(Path::new(folder)), name);
        }
    }
}
