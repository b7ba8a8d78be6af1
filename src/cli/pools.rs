//! `tilescribe pools`

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use tilescribe::language::Language;
use tilescribe::propose::{SAMPLERS, Sampler, SamplerKind};
use tilescribe::record::{Pool, Store, write_pools};
use tilescribe::space::Space;
use tilescribe::tune::pools::{Drawn, Pass, PoolSize, draw};
use tilescribe::tune::{Control, Event, Job, Runner, TuneError};

use super::arguments::{MeasuringArguments, TargetArguments};
use super::collecting::jobs_of;
use super::exit::CommandError;
use super::lab::Lab;
use super::output::{Kind, Output};
use super::progress;
use super::search::{CheckpointArguments, sampler_parser, stop_on_interrupt};
use super::words::counted;

/// Measure all that samplers draw, twice, as pools to score samplers and rankers on
///
/// Nothing is filtered or ranked: of each task, every program that is drawn is measured in two passes, some
/// minutes apart where there are several tasks. `tilescribe compare --replay` scores the file. Everything
/// measured is kept in two stores beside it as it comes: stopped with Ctrl-C or killed, the same command goes
/// on where it was; the file holds the tasks that are done.
#[derive(Args)]
pub struct Pools {
    /// Files or folders of workloads, as `tilescribe tasks` prints them
    #[arg(long, required = true, num_args = 1.., value_name = "PATH")]
    workloads: Vec<PathBuf>,
    /// File to write: JSON lines, compressed with zstd
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Who draws, separated by commas [default: all]
    #[arg(long, value_name = "SAMPLER", value_delimiter = ',', value_parser = sampler_parser())]
    samplers: Vec<SamplerKind>,
    /// Programs that each sampler draws with each seed
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    samples: u32,
    /// Seeds of each sampler
    #[arg(long, default_value_t = 4, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=100))]
    seeds: u32,
    #[command(flatten)]
    checkpoint: CheckpointArguments,
    #[command(flatten)]
    target: TargetArguments,
    #[command(flatten)]
    measuring: MeasuringArguments,
    /// End with a line of JSON
    #[arg(long)]
    json: bool,
}

/// Tasks of which the first pass is done before the second begins: minutes lie between the two measurements
/// of a program, and a run that is stopped has lost little.
const TOGETHER: usize = 16;

impl Pools {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        let (space, target) = (Space::standard(), self.target.resolve()?);
        let jobs = jobs_of(&self.workloads, &target)?;
        let checkpoint = Arc::new(self.checkpoint.load(&space, &Language::standard())?);
        let fingerprint = checkpoint.fingerprint()?;
        let mut kinds: Vec<SamplerKind> = Vec::new();
        for kind in if self.samplers.is_empty() { SAMPLERS } else { &self.samplers } {
            if kinds.iter().all(|known| known.name != kind.name) {
                kinds.push(*kind);
            }
        }
        let samplers: Vec<Sampler<'_>> =
            kinds.into_iter().map(|kind| Sampler::new(kind, &space, &checkpoint)).collect();
        let size = PoolSize { seeds: self.seeds, samples: self.samples };
        let mut lab = Lab::here(vec![target], self.target.device()?, self.measuring);
        lab.prepare(&space)?;
        let places = [Pass::First, Pass::Second].map(|pass| self.store_path(pass));
        let mut sources: Vec<&Path> = places.iter().map(PathBuf::as_path).collect();
        sources.extend(self.workloads.iter().map(PathBuf::as_path));
        let output = Output::new(&self.output, Kind::Pools, &sources)?;
        let [first, second] = &places;
        let stores = [Store::open(first)?, Store::open(second)?];
        let most = jobs.len() as u64 * samplers.len() as u64 * u64::from(self.seeds) * u64::from(self.samples) * 2;
        let bar = progress::bar(most, "measuring");
        let runner = lab.runner(&space)?;
        let mut site = Site { space: &space, runner, stores, bar: &bar, trials: 0, is_stopped: false };
        let mut pools: Vec<Pool> = Vec::new();
        for group in jobs.chunks(TOGETHER) {
            let mut drawn: Vec<(&Job, Drawn)> = Vec::new();
            for job in group {
                bar.set_message(format!("drawing {}", job.name));
                let own = draw(&space, &job.task, &samplers, size).with_context(|| format!("task {}", job.name))?;
                // the same program drawn twice is measured once
                drawn.push((job, own));
            }
            for pass in [Pass::First, Pass::Second] {
                for (job, drawn) in &drawn {
                    site.measure(job, drawn, pass)?;
                }
            }
            for (job, drawn) in drawn {
                let [first, second] = &site.stores;
                pools.extend(drawn.pool(&space, job, (&samplers, size, &fingerprint), [first, second])?);
            }
            if site.is_stopped {
                break;
            }
        }
        bar.finish_and_clear();
        let (trials, is_stopped) = (site.trials, site.is_stopped);
        let programs: usize = pools.iter().map(|pool| pool.programs.len()).sum();
        // a file is not replaced by an empty one
        if programs > 0 {
            output.write(|file| Ok(write_pools(pools.iter(), file)?))?;
        }
        let (of, tasks) = (counted(programs, "program"), counted(pools.len(), "task"));
        writeln!(out, "{}: {of} of {tasks}", self.output.display())?;
        if self.json {
            writeln!(out, "{}", json!({"tasks": pools.len(), "programs": programs, "trials": trials}))?;
        }
        if is_stopped { Err(CommandError::Interrupted.into()) } else { Ok(()) }
    }

    /// Where a pass keeps what it measures.
    fn store_path(&self, pass: Pass) -> PathBuf {
        self.output.with_extension(match pass {
            Pass::First => "first.db",
            Pass::Second => "second.db",
        })
    }
}

/// Who measures, and where it is kept.
struct Site<'a, 'r> {
    space: &'a Space,
    runner: Box<dyn Runner + Send + 'r>,
    /// Of either pass.
    stores: [Store; 2],
    bar: &'a ProgressBar,
    /// Measured in this run.
    trials: u64,
    is_stopped: bool,
}

impl Site<'_, '_> {
    /// One pass over a task, unless someone has said stop.
    fn measure(&mut self, job: &Job, drawn: &Drawn, pass: Pass) -> Result<()> {
        let stopped = stop_on_interrupt()?;
        if self.is_stopped || stopped.load(Ordering::Relaxed) {
            self.is_stopped = true;
            return Ok(());
        }
        let (which, store) = match pass {
            Pass::First => ("first", &mut self.stores[0]),
            Pass::Second => ("second", &mut self.stores[1]),
        };
        self.bar.set_message(format!("{}, {which} pass", job.name));
        let mut watch = |event: &Event<'_>| {
            if let Event::Measured { .. } = event {
                self.bar.inc(1);
            }
            if stopped.load(Ordering::Relaxed) { Control::Stop } else { Control::Continue }
        };
        match drawn.measure(self.space, job, pass, self.runner.as_mut(), store, &mut watch) {
            Ok(report) => {
                self.trials += report.trials;
                self.is_stopped |= report.interrupted;
            }
            Err(error @ TuneError::Store(_)) => return Err(error.into()),
            Err(error) => self.bar.suspend(|| tracing::warn!("{}: {error}", job.name)),
        }
        Ok(())
    }
}
