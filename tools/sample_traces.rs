//! Samples traces with the language model, and checks every one of them.
//!
//! usage: sample_traces [--count N] [--seed S] [--checkpoint C] [--dim NAME=N] PATH...
//!
//! Each PATH is an ONNX file, or a file with the text of a task (lines that start with `#` are comments). The
//! N traces, 10,000 if nothing else is said, are spread evenly over the distinct tasks of all of them, for
//! this machine. Without C, a folder or hf:OWNER/NAME@REVISION, the shipped model writes. A trace is legal if
//!
//! - the space replays it to a finished nest, and the verifier accepts that;
//! - driving the space by its decisions gives the same trace and the same nest;
//! - so does replaying it after its way through text and back, and through the language's tokens and back.
//!
//! Prints one line of JSON:
//! {"tasks":..,"traces":..,"distinct":..,"illegal":..,"dead_ends":..,"sampling_s":..,"checking_s":..}. Exits
//! with 1 if a trace is illegal or 1 % of them or more are dead ends, with 2 where an argument makes no
//! sense.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use serde_json::json;
use tilescribe::codegen;
use tilescribe::graph::{self, Dim, ImportOptions, Precision, Products};
use tilescribe::language::Language;
use tilescribe::model::{Model, Source};
use tilescribe::nest::{Nest, verify};
use tilescribe::propose::{LanguageModel, Written, load_checkpoint, shipped_checkpoint};
use tilescribe::space::{Decision, Next, Policy, Space, Trace};
use tilescribe::target::Task;
use tilescribe::workload::Workload;

/// What the command uses, so that the rate is the command's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Arguments {
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[arg(long)]
    checkpoint: Option<String>,
    #[arg(long = "dim", value_name = "NAME=N", value_parser = dimension)]
    dimensions: Vec<(String, i64)>,
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

fn dimension(text: &str) -> Result<(String, i64), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=N")?;
    Ok((name.into(), value.parse().map_err(|_| "expected a number".to_string())?))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let prepared = tasks(&arguments).and_then(|tasks| Ok((tasks, model(&arguments)?)));
    let (tasks, model) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::from(2);
        }
    };
    match sample(&tasks, &model, &arguments) {
        Ok(counts) if counts.illegal == 0 && counts.dead_ends * 100 < counts.traces => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The distinct tasks of all paths, by their texts, so that the order of the paths does not matter.
fn tasks(arguments: &Arguments) -> Result<Vec<Task>> {
    let target = codegen::host()?;
    let mut workloads: BTreeMap<String, Workload> = BTreeMap::new();
    for path in &arguments.paths {
        let found = workloads_of(path, &arguments.dimensions).with_context(|| path.display().to_string())?;
        workloads.extend(found.into_iter().map(|workload| (workload.to_string(), workload)));
    }
    ensure!(!workloads.is_empty(), "there is no task in any of the files");
    Ok(workloads.into_values().map(|workload| Task { workload, target: target.clone().into() }).collect())
}

fn workloads_of(path: &Path, dimensions: &[(String, i64)]) -> Result<Vec<Workload>> {
    if path.extension().is_some_and(|extension| extension == "onnx") {
        let mut program = graph::import(
            path,
            &ImportOptions {
                dims: dimensions.iter().map(|(name, extent)| (name.clone(), Dim::fixed(*extent))).collect(),
                ..ImportOptions::default()
            },
        )?;
        program.shorten(Precision::F32, Products::ByWeights);
        let network = graph::partition(&program)?;
        return Ok(network.tasks.into_iter().map(|task| task.workload).collect());
    }
    let text = std::fs::read_to_string(path)?;
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    Ok(vec![lines.join("\n").parse()?])
}

fn model(arguments: &Arguments) -> Result<Model> {
    let (language, space) = (Language::standard(), Space::standard());
    Ok(match &arguments.checkpoint {
        Some(text) => load_checkpoint(&text.parse::<Source>()?, &language, &space)?.checkpoint.model,
        None => shipped_checkpoint(&language, &space)?.checkpoint.model,
    })
}

#[derive(Default)]
struct Counts {
    traces: u64,
    illegal: u64,
    dead_ends: u64,
}

/// What a trace turned out to be.
enum Verdict {
    Legal,
    /// No program follows; or the model's longest sequence was reached.
    DeadEnd(String),
    Illegal(String),
}

/// Samples, checks, and prints the line.
fn sample(tasks: &[Task], model: &Model, arguments: &Arguments) -> Result<Counts> {
    let (space, language) = (Space::standard(), Language::standard());
    let (mut sampling, mut checking) = (Duration::ZERO, Duration::ZERO);
    let mut lm = LanguageModel::new(&space, language.clone(), model, arguments.seed);
    let (mut counts, mut distinct) = (Counts::default(), 0);
    let (each, left) = (arguments.count / tasks.len() as u64, arguments.count % tasks.len() as u64);
    for (number, task) in tasks.iter().enumerate() {
        let share = each + u64::from((number as u64) < left);
        let started = Instant::now();
        let written = lm.sample(task, usize::try_from(share)?).with_context(|| task.workload.to_string())?;
        sampling += started.elapsed();
        let started = Instant::now();
        let verdicts: Vec<Verdict> =
            written.par_iter().map(|written| examine(&space, &language, task, written)).collect();
        checking += started.elapsed();
        for (written, verdict) in written.iter().zip(verdicts) {
            counts.traces += 1;
            let (what, why) = match verdict {
                Verdict::Legal => continue,
                Verdict::DeadEnd(why) => {
                    counts.dead_ends += 1;
                    ("dead end", why)
                }
                Verdict::Illegal(why) => {
                    counts.illegal += 1;
                    ("illegal", why)
                }
            };
            eprintln!("{what}: {why}\n{}{}", task.workload, written.trace);
        }
        distinct += written.iter().map(|written| &written.trace).collect::<BTreeSet<_>>().len();
    }
    let Counts { traces, illegal, dead_ends } = counts;
    let line = json!({
        "tasks": tasks.len(), "traces": traces, "distinct": distinct, "illegal": illegal, "dead_ends": dead_ends,
        "sampling_s": sampling.as_secs_f64(), "checking_s": checking.as_secs_f64(),
    });
    println!("{line}");
    Ok(counts)
}

fn examine(space: &Space, language: &Language, task: &Task, written: &Written) -> Verdict {
    if !written.complete {
        return Verdict::DeadEnd("not all is decided".into());
    }
    let nest = match space.next(task, &written.trace) {
        Ok(Next::Done(nest)) => nest,
        Ok(Next::DeadEnd(reason)) => return Verdict::DeadEnd(reason.0),
        Ok(Next::Defect(defect)) => return Verdict::Illegal(defect.to_string()),
        Ok(Next::Choose(decision)) => return Verdict::Illegal(format!("`{}` is still to be decided", decision.site)),
        Err(stale) => return Verdict::Illegal(stale.to_string()),
    };
    if let Err(error) = verify(&nest, task.target.lanes()) {
        return Verdict::Illegal(error.to_string());
    }
    match differing(space, language, task, written, &nest) {
        None => Verdict::Legal,
        Some(way) => Verdict::Illegal(format!("another trace or nest {way}")),
    }
}

/// The way on which another trace or nest comes out, if there is one.
fn differing(space: &Space, language: &Language, task: &Task, written: &Written, nest: &Nest) -> Option<&'static str> {
    let trace = &written.trace;
    let (driven, built) = space.drive(task, &mut Recorded { trace, at: 0 });
    if driven != *trace || built.as_ref() != Ok(nest) {
        return Some("when the space is driven by its decisions");
    }
    let replays = |other: &Trace| {
        other == trace && matches!(space.next(task, other), Ok(Next::Done(replayed)) if replayed == *nest)
    };
    if !trace.to_string().parse().is_ok_and(|parsed| replays(&parsed)) {
        return Some("by way of text");
    }
    if !language.decode_trace(&language.encode_trace(trace)).is_ok_and(|decoded| replays(&decoded)) {
        return Some("by way of tokens");
    }
    None
}

/// Takes the decisions of a trace, one after the other. Where the trace does not fit, another one comes out.
struct Recorded<'a> {
    trace: &'a Trace,
    at: usize,
}

impl Policy for Recorded<'_> {
    fn pick(&mut self, decision: &Decision) -> usize {
        let choice = self.trace.0.get(self.at).filter(|choice| choice.site == decision.site);
        self.at += 1;
        choice.and_then(|choice| decision.candidates.iter().position(|c| *c == choice.value)).unwrap_or(0)
    }
}
