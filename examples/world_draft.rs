//! How many of the fastest of many programs of a task the world model finds, which sees no nest, beside the
//! estimator, which sees all of them, and what either costs.
//!
//! usage: cargo run --release --example world_draft -- TASK N [--checkpoint C] [--store FILE] [--seed S]
//!
//! TASK is a file with the text of a workload (lines that start with `#` are comments), N a number of
//! programs: half of them are drawn from the whole space, half are mutations of the untuned ones. With a
//! store, all of them are measured on this machine, and what they were measured at is kept there: stopped,
//! the same command goes on where it was. Without one, only the seconds of drafting are told.
//!
//! Prints a line of JSON.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::json;
use tilescribe::codegen;
use tilescribe::language::Language;
use tilescribe::measure::{Measurer, Options, worker_main};
use tilescribe::model::{Adapted, Checkpoint, Source};
use tilescribe::propose::{
    Candidate, History, Proposal, ProposeError, Proposer, drafted, imagined, load_checkpoint, shipped_checkpoint,
    world_of,
};
use tilescribe::rank::{Described, Ranking, estimator_of};
use tilescribe::record::Store;
use tilescribe::space::{Space, Trace};
use tilescribe::target::{Target, Task};
use tilescribe::tune::{Batches, Budget, Control, Event, First, Job, Local, Settings, tune};
use tilescribe::workload::Workload;

/// What the command uses, so that the seconds are the command's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Arguments {
    task: PathBuf,
    count: usize,
    #[arg(long)]
    checkpoint: Option<String>,
    #[arg(long)]
    store: Option<PathBuf>,
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Programs of a draft that are looked at, and the share of all that are called the best.
const CHOSEN: usize = 256;
const BEST: f64 = 0.01;

fn main() -> ExitCode {
    // candidates are compiled and run in a child process, which is this program, too
    if std::env::args().nth(1).as_deref() == Some("worker") {
        return worker_main();
    }
    match draft(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn draft(arguments: &Arguments) -> Result<()> {
    let (space, language) = (Space::standard(), Language::standard());
    let task = Task { workload: workload(arguments)?, target: Target::from(codegen::host()?) };
    let checkpoint = checkpoint(arguments, &space, &language)?;

    let started = Instant::now();
    let traces = drafted(&space, &task, arguments.count, arguments.seed);
    let drawing_s = started.elapsed().as_secs_f64();

    let started = Instant::now();
    let world = world_of(&checkpoint.worlds, true)?;
    let ranks = imagined(world, (&space, &language), &task, &traces)?;
    let world_s = started.elapsed().as_secs_f64();

    let started = Instant::now();
    let estimator =
        estimator_of(&checkpoint.estimators, task.target.kind()).context("no estimator for this machine")?;
    let estimator = Adapted::from(estimator.clone());
    let described = Ranking::new(&space, None, 0).describe(&task, traces.clone())?;
    let score = |described: &Option<Described>| estimator.score(&described.as_ref()?.features);
    let scores: Vec<f32> = described.iter().map(|one| score(one).unwrap_or(f32::NEG_INFINITY)).collect();
    let estimator_s = started.elapsed().as_secs_f64();

    let dead_ends = described.iter().filter(|described| described.is_none()).count();
    let mut line = json!({
        "programs": traces.len(), "dead_ends": dead_ends,
        "drawing_s": drawing_s, "world_s": world_s, "estimator_s": estimator_s,
    });
    if let Some(path) = &arguments.store {
        let legal: Vec<usize> = (0..traces.len()).filter(|at| described[*at].is_some()).collect();
        let legal_traces: Vec<&Trace> = legal.iter().map(|at| &traces[*at]).collect();
        let times = measured(&space, &task, path, &legal_traces)?;
        let mut timed: Vec<(u64, usize)> = legal.iter().zip(times).filter_map(|(at, ns)| Some((ns?, *at))).collect();
        timed.sort_unstable();
        let best: HashSet<usize> =
            timed.iter().take((timed.len() as f64 * BEST).ceil() as usize).map(|(_, at)| *at).collect();
        ensure!(!best.is_empty(), "no program was timed");
        let found = |scores: &[f32]| {
            let mut order: Vec<usize> = (0..traces.len()).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            let found = order.iter().take(CHOSEN).filter(|at| best.contains(at)).count();
            found as f64 / best.len() as f64
        };
        line["timed"] = json!(timed.len());
        line["best"] = json!(best.len());
        line["found"] = json!({
            "world": found(&ranks), "estimator": found(&scores),
            "chance": CHOSEN.min(traces.len()) as f64 / traces.len() as f64,
        });
    }
    println!("{line}");
    Ok(())
}

fn workload(arguments: &Arguments) -> Result<Workload> {
    let text = std::fs::read_to_string(&arguments.task).with_context(|| arguments.task.display().to_string())?;
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    Ok(lines.join("\n").parse()?)
}

fn checkpoint(arguments: &Arguments, space: &Space, language: &Language) -> Result<Arc<Checkpoint>> {
    let loaded = match &arguments.checkpoint {
        Some(name) => load_checkpoint(&name.parse::<Source>()?, language, space)?,
        None => shipped_checkpoint(language, space)?,
    };
    Ok(Arc::new(loaded.checkpoint))
}

/// Proposes what it holds, in its order.
struct Listed<'a>(&'a [&'a Trace]);

impl Proposer for Listed<'_> {
    fn propose(&mut self, _: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        let left = self.0.iter().filter(|trace| !history.contains(trace)).take(count);
        let candidates = left.map(|trace| Candidate::new((*trace).clone())).collect();
        Ok(Proposal { candidates, ..Proposal::default() })
    }
}

/// Nanoseconds of programs, where they were timed; those that the store knows are not measured again.
fn measured(space: &Space, task: &Task, path: &Path, traces: &[&Trace]) -> Result<Vec<Option<u64>>> {
    let mut store = Store::open(path)?;
    let mut options = Options::for_this_executable(space)?;
    options.arguments = vec!["worker".into()];
    let mut measurer = Measurer::new(options);
    let (budget, first, batches) = (Budget::default(), First::Proposed, Batches { least: 64, most: 64 });
    let settings = Settings {
        budget,
        batches,
        first,
        finalists: 0,
        lighter: 0,
        hands_on: false,
        method: "world-draft".into(),
        seed: 0,
    };
    let jobs = [Job { name: "the task".into(), task: task.clone(), weight: 1.0 }];
    let mut watch = |event: &Event<'_>| {
        if let Event::Measured { history, .. } = event
            && history.len().is_multiple_of(100)
        {
            eprintln!("{} of {} measured", history.len(), traces.len());
        }
        Control::Continue
    };
    let mut runner = Local::new(&mut measurer);
    tune(space, &jobs, &mut Listed(traces), &mut runner, Some(&mut store), &settings, &mut watch)?;
    let records = store.readable(task, space)?.records;
    let times: HashMap<&Trace, Option<u64>> =
        records.iter().map(|record| (&record.trace, record.outcome.settled_ns())).collect();
    Ok(traces.iter().map(|trace| times.get(*trace).copied().flatten()).collect())
}
