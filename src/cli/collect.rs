//! `tilescribe collect`

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use tilescribe::tune::{Batches, Budget, First, Settings};

use super::arguments::TargetArguments;
use super::collecting::{Collection, CorpusArguments, jobs_for};
use super::lab::FleetArguments;
use super::search::{BATCH, SearchArguments, searcher};

/// Measure programs of many tasks, as a corpus to train on
///
/// Everything measured is kept in a store beside the corpus file as it comes. Stopped with Ctrl-C or killed,
/// the same command goes on where it was.
#[derive(Args)]
pub struct Collect {
    /// Files or folders of workloads, as `tilescribe tasks` prints them
    #[arg(long, required = true, num_args = 1.., value_name = "PATH")]
    workloads: Vec<PathBuf>,
    #[command(flatten)]
    corpus: CorpusArguments,
    #[command(flatten)]
    target: TargetArguments,
    #[command(flatten)]
    fleet: FleetArguments,
    #[command(flatten)]
    search: SearchArguments,
}

/// Trials for each task where no number is given.
const DEFAULT_TRIALS: u64 = 128;
/// How many programs are proposed at once: a collection wants many different ones rather than the fastest
/// soon.
const COLLECTED: Batches = Batches { least: 12, most: BATCH };
const FAR: Batches = Batches { least: 32, most: 64 };

impl Collect {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        let SearchArguments { method, trials_per_task, time_budget, seed, space, checkpoint, .. } = &self.search;
        let space = space.space();
        let run = ("collect", &*self.corpus.store_path());
        let mut lab = self.fleet.lab(&self.target, &space, self.search.measuring, run)?;
        let jobs = jobs_for(&self.workloads, &lab)?;
        // the checkpoint is read, and the worker started, once for all tasks
        let searcher = searcher(*method, &space, checkpoint, &jobs)?;
        let trials = trials_per_task.unwrap_or(DEFAULT_TRIALS);
        let budget = Budget { trials_per_task: Some(trials), ..Budget::default() };
        let (first, method) = (First::Untuned, searcher.name.clone());
        // a plan for a far machine is to be worth its way
        let batches = if self.fleet.fleet.is_some() { FAR } else { COLLECTED };
        let settings =
            Settings { budget, batches, first, finalists: 0, lighter: 0, hands_on: false, method, seed: *seed };
        let programs = trials * jobs.len() as u64;
        let time = time_budget.map(Duration::from_secs_f64);
        let collection = Collection { space: &space, jobs: &jobs, settings, programs, time };
        self.corpus.collect(&collection, &mut lab, &|job| Ok(searcher.proposer_of(&job.task, *seed)?), out)
    }
}
