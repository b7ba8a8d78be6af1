//! What the commands have in common that measure programs of many tasks, and write a corpus file of them.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde_json::json;
use tilescribe::measure::Measurer;
use tilescribe::outcome::Failure;
use tilescribe::propose::Proposer;
use tilescribe::record::{CorpusWriter, Filter, Store, read_workloads};
use tilescribe::space::Space;
use tilescribe::target::{Kind, Target, Task};
use tilescribe::tune::{self, Budget, Control, Event, Job, Settings};

use super::exit::CommandError;
use super::output::{self, Output};
use super::progress;
use super::search::stop_on_interrupt;
use super::words::counted;

/// Where what was measured goes.
#[derive(Args)]
pub struct CorpusArguments {
    /// Corpus file to write: JSON lines, compressed with zstd
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// File of records to go on from [default: the output's name with `.db`]
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// End with a line of JSON
    #[arg(long)]
    json: bool,
}

/// What is measured: nobody needs winners, so there are no finals.
pub struct Collection<'a> {
    pub space: &'a Space,
    /// One after the other, since preparing a task costs more than a batch of candidates.
    pub jobs: &'a [Job],
    /// Of each task.
    pub settings: Settings,
    /// The most programs of all tasks: for the progress.
    pub programs: u64,
    /// Wall clock of them all.
    pub time: Option<Duration>,
}

/// Makes the proposer of a task.
pub type MakeProposer<'a, 'p> = dyn FnMut(&Job) -> Result<Box<dyn Proposer + 'p>> + 'a;

/// The tasks of files of workloads, each once, in the order of their hashes, which mixes kinds: a collection
/// that is cut short still holds some of each.
///
/// # Errors
/// Where a file is not right.
pub fn jobs_of(paths: &[PathBuf], target: &Target) -> Result<Vec<Job>> {
    let mut jobs: BTreeMap<String, Job> = BTreeMap::new();
    for path in paths {
        for named in read_workloads(path)? {
            let hash = named.workload.hash().to_string();
            let task = Task { workload: named.workload, target: target.clone() };
            jobs.entry(hash).or_insert(Job { name: named.name, task, weight: 1.0 });
        }
    }
    Ok(jobs.into_values().collect())
}

impl CorpusArguments {
    /// Measures, and writes all that the store holds then. `proposer` is asked for one for each task.
    ///
    /// # Errors
    /// [`CommandError::Interrupted`] after Ctrl-C; where the store or the output cannot be written.
    pub fn collect<'p>(
        &self,
        collection: &Collection<'_>,
        measurer: &mut Measurer,
        proposer: &mut MakeProposer<'_, 'p>,
        out: &mut dyn Write,
    ) -> Result<()> {
        let path = self.store.clone().unwrap_or_else(|| self.output.with_extension("db"));
        let output = Output::new(&self.output, output::Kind::Corpus, &[&path])?;
        let mut store = Store::open(&path)?;
        let summary = measure(collection, measurer, proposer, &mut store)?;
        let kind = collection.jobs.first().map_or(Kind::Cpu, |job| job.task.target.kind());
        let versions = store.readable_spaces(collection.space, &[kind])?;
        // a file is not replaced by an empty one
        let records = if versions.is_empty() { 0 } else { output.write(|file| export(&store, &versions, file))? };
        let tasks = collection.jobs.len();
        let (of, count) = (counted(records, "record"), counted(tasks, "task"));
        writeln!(out, "{}: {of} of {count}", self.output.display())?;
        if self.json {
            let Summary { trials, valid, failed, .. } = &summary;
            writeln!(
                out,
                "{}",
                json!({"tasks": tasks, "records": records, "trials": trials, "valid": valid, "failed": failed})
            )?;
        }
        if summary.interrupted { Err(CommandError::Interrupted.into()) } else { Ok(()) }
    }
}

/// Writes the records of these versions of the space, as they are.
fn export(store: &Store, versions: &[String], file: &mut dyn Write) -> Result<u64> {
    let mut writer = CorpusWriter::new(file)?;
    let mut records = 0;
    for version in versions {
        let filter = Filter { space: Some(version.clone()), ..Filter::default() };
        records += store.export(&filter, &mut writer)?;
    }
    writer.finish()?;
    Ok(records)
}

/// What was measured.
#[derive(Default)]
struct Summary {
    trials: u64,
    valid: u64,
    failed: BTreeMap<Failure, u64>,
    interrupted: bool,
}

fn measure<'p>(
    collection: &Collection<'_>,
    measurer: &mut Measurer,
    proposer: &mut MakeProposer<'_, 'p>,
    store: &mut Store,
) -> Result<Summary> {
    let mut summary = Summary::default();
    let stopped = stop_on_interrupt()?;
    let started = Instant::now();
    let bar = progress::bar(collection.programs, "measuring");
    for (number, job) in collection.jobs.iter().enumerate() {
        let left = collection.time.map(|whole| whole.saturating_sub(started.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            break;
        }
        let budget = Budget { time: left, ..collection.settings.budget };
        let settings = Settings { budget, ..collection.settings.clone() };
        let before = collection.programs * number as u64 / collection.jobs.len() as u64;
        bar.set_position(before);
        bar.set_message(job.name.clone());
        let mut watch = |event: &Event<'_>| {
            if let Event::Measured { progress, .. } = event {
                bar.set_position(before + progress.trials);
            }
            if stopped.load(Ordering::Relaxed) { Control::Stop } else { Control::Continue }
        };
        let mut own = proposer(job)?;
        let jobs = std::slice::from_ref(job);
        match tune::tune(collection.space, jobs, own.as_mut(), measurer, Some(&mut *store), &settings, &mut watch) {
            Ok(report) => {
                summary.trials += report.trials;
                summary.valid += report.valid;
                for (cause, count) in report.failed {
                    *summary.failed.entry(cause).or_default() += count;
                }
                summary.interrupted |= report.interrupted;
            }
            Err(error) => tracing::warn!("{}: {error}", job.name),
        }
        if summary.interrupted {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(summary)
}
