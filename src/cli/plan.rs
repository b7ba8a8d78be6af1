//! `tilescribe plan`

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;
use tilescribe::propose::History;
use tilescribe::tune::plan::write_planned;

use super::arguments::{SpaceArguments, TargetArguments};
use super::collecting::jobs_of;
use super::exit::CommandError;
use super::progress;
use super::search::{CheckpointArguments, Method, Proposers, stop_on_interrupt};

/// Write programs to be measured elsewhere, by `tilescribe measure`
///
/// For a machine that is far away, or lent for a short time: the target is a file that describes it, and nothing is measured here.
#[derive(Args)]
pub struct Plan {
    /// Files or folders of workloads, as `tilescribe tasks` prints them
    #[arg(long, required = true, num_args = 1.., value_name = "PATH")]
    workloads: Vec<PathBuf>,
    /// File to write: a line of JSON for each program
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Programs of each task, at most
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    programs: u32,
    /// Who writes them
    #[arg(long, value_enum, default_value_t = Method::Random)]
    method: Method,
    /// Seed of everything that is drawn
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    space: SpaceArguments,
    #[command(flatten)]
    checkpoint: CheckpointArguments,
    #[command(flatten)]
    target: TargetArguments,
    /// End with a line of JSON
    #[arg(long)]
    json: bool,
}

impl Plan {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        let jobs = jobs_of(&self.workloads, &self.target.resolve()?)?;
        self.method.check(&jobs)?;
        let space = self.space.space();
        let proposers = Proposers::new(self.method, &space, &self.checkpoint)?;
        let cannot_write = || format!("cannot write {}", self.output.display());
        let mut file = BufWriter::new(File::create(&self.output).with_context(cannot_write)?);
        let (bar, stopped) = (progress::bar(jobs.len() as u64, "writing"), stop_on_interrupt()?);
        let mut programs = 0;
        for (number, job) in jobs.iter().enumerate() {
            if stopped.load(Ordering::Relaxed) {
                return Err(CommandError::Interrupted.into());
            }
            bar.set_position(number as u64);
            bar.set_message(job.name.clone());
            let mut proposer = proposers.of_task(&job.task, self.seed);
            let proposal = proposer.propose(&job.task, &History::default(), self.programs as usize)?;
            for candidate in &proposal.candidates {
                write_planned(&mut file, job, &candidate.trace).with_context(cannot_write)?;
            }
            programs += proposal.candidates.len();
        }
        bar.finish_and_clear();
        file.flush().with_context(cannot_write)?;
        writeln!(out, "{}: {programs} programs of {} tasks", self.output.display(), jobs.len())?;
        if self.json {
            writeln!(out, "{}", json!({"tasks": jobs.len(), "programs": programs}))?;
        }
        Ok(())
    }
}
