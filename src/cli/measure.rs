//! `tilescribe measure`

use std::io::{BufReader, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use tilescribe::files;
use tilescribe::space::Space;
use tilescribe::tune::plan::Planned;
use tilescribe::tune::{Batches, Budget, First, Settings};

use super::arguments::{MeasuringArguments, TargetArguments};
use super::collecting::{Collection, CorpusArguments};
use super::lab::Lab;

/// Measure the programs of a plan, as `tilescribe plan` writes them
///
/// Each is checked, and timed beside the one that the rules write without a search, as `collect` does it.
/// Everything measured is kept in a store beside the output as it comes: stopped with Ctrl-C or killed, the
/// same command goes on where it was.
#[derive(Args)]
pub struct Measure {
    /// File that `tilescribe plan` wrote, for this machine or one like it
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
    #[command(flatten)]
    corpus: CorpusArguments,
    #[command(flatten)]
    target: TargetArguments,
    #[command(flatten)]
    measuring: MeasuringArguments,
}

impl Measure {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        let (space, target) = (Space::standard(), self.target.resolve()?);
        let file = files::open(&self.plan).with_context(|| format!("cannot read {}", self.plan.display()))?;
        let planned = Planned::read(&mut BufReader::new(file), &space, &target)
            .with_context(|| format!("the plan {}", self.plan.display()))?;
        let targets = vec![target];
        let mut lab = Lab::here(targets, self.target.device()?, self.measuring);
        // the untuned programs are measured, too
        let total = planned.programs() + planned.jobs.len();
        let (budget, first, method) = (Budget::default(), First::Untuned, "plan".to_string());
        let settings =
            Settings { budget, batches: BATCHES, first, finalists: 0, lighter: 0, hands_on: false, method, seed: 0 };
        let collection =
            Collection { space: &space, jobs: &planned.jobs, settings, programs: total as u64, time: None };
        self.corpus.collect(&collection, &mut lab, &|_| Ok(Box::new(&planned)), out)
    }
}

/// Programs are compiled ahead so many at a time.
const BATCHES: Batches = Batches { least: 64, most: 64 };
