//! `tilescribe collect`

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;
use tilescribe::record::{CorpusWriter, Filter, Store, read_workloads};
use tilescribe::space::Space;
use tilescribe::target::Task;
use tilescribe::tune::{Control, Event, Job};

use super::arguments::TargetArguments;
use super::exit::CommandError;
use super::progress;
use super::search::{Collector, SearchArguments, stop_on_interrupt};

/// Measure programs of many tasks, as a corpus to train on
///
/// Everything measured is kept in a store beside the corpus file as it comes. Stopped with Ctrl-C or killed, the same command goes on
/// where it was.
#[derive(Args)]
pub struct Collect {
    /// Files or folders of workloads, as `tilescribe tasks` prints them
    #[arg(long, required = true, num_args = 1.., value_name = "PATH")]
    workloads: Vec<PathBuf>,
    /// Corpus file to write: JSON lines, compressed with zstd
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    target: TargetArguments,
    #[command(flatten)]
    search: SearchArguments,
    /// File of records to go on from [default: the output's name with `.db`]
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// End with a line of JSON
    #[arg(long)]
    json: bool,
}

/// Trials for each task where no number is given.
const DEFAULT_TRIALS: u64 = 128;

impl Collect {
    pub fn execute(mut self, out: &mut dyn Write) -> Result<()> {
        let target = self.target.resolve()?;
        let mut jobs: BTreeMap<String, Job> = BTreeMap::new();
        for path in &self.workloads {
            for named in read_workloads(path)? {
                let hash = named.workload.hash().to_string();
                let task = Task { workload: named.workload, target: target.clone() };
                jobs.entry(hash).or_insert(Job { name: named.name, task, weight: 1.0 });
            }
        }
        // in the order of hashes, which mixes kinds: a collection that is cut short still holds some of each
        let jobs: Vec<Job> = jobs.into_values().collect();
        self.search.trials_per_task.get_or_insert(DEFAULT_TRIALS);
        let path = self.store.clone().unwrap_or_else(|| self.output.with_extension("db"));
        let mut store = Store::open(&path)?;
        let summary = self.measure(&jobs, &mut store)?;
        let file = File::create(&self.output).with_context(|| format!("cannot write {}", self.output.display()))?;
        let mut writer = CorpusWriter::new(BufWriter::new(file))?;
        let filter = Filter { space: Some(Space::standard().version(target.kind())), ..Filter::default() };
        let records = store.export(&filter, &mut writer)?;
        writer.finish()?.flush().context("cannot write the corpus")?;
        writeln!(out, "{}: {records} records of {} tasks", self.output.display(), jobs.len())?;
        if self.json {
            writeln!(
                out,
                "{}",
                json!({"tasks": jobs.len(), "records": records, "trials": summary.trials, "valid": summary.valid, "failed": summary.failed})
            )?;
        }
        if summary.interrupted { Err(CommandError::Interrupted.into()) } else { Ok(()) }
    }

    /// One task after the other, since preparing a task costs more than a batch of candidates.
    fn measure(&self, jobs: &[Job], store: &mut Store) -> Result<Summary> {
        let mut summary = Summary::default();
        let stopped = stop_on_interrupt()?;
        let space = self.search.space.space();
        let mut collector = Collector::new(jobs, self.target.device()?, &self.search, &space)?;
        let per_task = self.search.trials_per_task.unwrap_or(DEFAULT_TRIALS);
        let bar = progress::bar(per_task * jobs.len() as u64, "collecting");
        for (number, job) in jobs.iter().enumerate() {
            bar.set_position(per_task * number as u64);
            bar.set_message(job.name.clone());
            let mut watch = |event: &Event<'_>| {
                if let Event::Measured { progress, .. } = event {
                    bar.set_position(per_task * number as u64 + progress.trials);
                }
                if stopped.load(std::sync::atomic::Ordering::Relaxed) { Control::Stop } else { Control::Continue }
            };
            match collector.collect(job, store, &mut watch) {
                Ok(report) => {
                    summary.trials += report.trials;
                    summary.valid += report.valid;
                    for (cause, count) in report.failed {
                        *summary.failed.entry(format!("{cause:?}")).or_default() += count;
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
}

/// What was measured.
#[derive(Default)]
struct Summary {
    trials: u64,
    valid: u64,
    failed: BTreeMap<String, u64>,
    interrupted: bool,
}
