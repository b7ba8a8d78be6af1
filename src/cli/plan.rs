//! `tilescribe plan`

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use clap::Args;
use rand::SeedableRng;
use rand::seq::index;
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tilescribe::fleet::{Origin, Session};
use tilescribe::language::Language;
use tilescribe::measure::{Batch, Mode};
use tilescribe::propose::{History, Method, Sampler, SamplerKind, Searcher};
use tilescribe::record::Entry;
use tilescribe::space::{Space, Trace};
use tilescribe::target::{Target, Task};
use tilescribe::tune::Job;
use tilescribe::tune::plan::write_planned;
use tilescribe::workload::Workload;

use super::arguments::{SpaceArguments, TargetArguments};
use super::collecting::jobs_of;
use super::exit::CommandError;
use super::lab::FleetArguments;
use super::output::{Kind, Output};
use super::progress;
use super::records::corpus;
use super::search::{CheckpointArguments, FOR_SEARCH, method_parser, sampler_parser, searcher, stop_on_interrupt};
use super::words::counted;

/// Write programs to be measured elsewhere, by `tilescribe measure`
///
/// For a machine that is far away, or lent for a short time: the target is a file that describes it, and
/// nothing is measured here. With --fleet, they are sent to its workers: nobody waits for them here, and
/// `tilescribe fleet export` gives what came out.
#[derive(Args)]
pub struct Plan {
    /// Files or folders of workloads, as `tilescribe tasks` prints them
    #[arg(long, required_unless_present = "records", num_args = 1.., value_name = "PATH")]
    workloads: Vec<PathBuf>,
    /// Instead: the programs of corpus files, wherever they were measured, that are programs for the target
    #[arg(long, conflicts_with_all = ["workloads", "programs", "method", "sampler"], num_args = 1.., value_name = "FILE")]
    records: Vec<PathBuf>,
    /// So many of the tasks, drawn at random [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tasks: Option<u32>,
    /// File to write: a line of JSON for each program
    #[arg(short, long, value_name = "FILE", required_unless_present = "fleet")]
    output: Option<PathBuf>,
    /// Programs of each task, at most
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    programs: u32,
    /// Who writes them
    #[arg(long, value_name = "METHOD", value_parser = method_parser(FOR_SEARCH), default_value = "random")]
    method: &'static Method,
    /// Instead: who draws them, without a ranking or any other filter
    #[arg(long, value_name = "SAMPLER", conflicts_with = "method", value_parser = sampler_parser())]
    sampler: Option<SamplerKind>,
    /// Seed of everything that is drawn
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    space: SpaceArguments,
    #[command(flatten)]
    checkpoint: CheckpointArguments,
    #[command(flatten)]
    target: TargetArguments,
    #[command(flatten)]
    fleet: FleetArguments,
    /// End with a line of JSON
    #[arg(long)]
    json: bool,
}

impl Plan {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        let space = self.space.space();
        let place = self.output.clone().unwrap_or_default();
        let (targets, coordinator) = self.fleet.targets(&self.target, &space, ("plan", &place))?;
        let known = if self.records.is_empty() { None } else { Some(Known::read(&self.records)?) };
        let (mut programs, mut tasks) = (0, 0);
        for target in &targets {
            let jobs = match &known {
                Some(known) => known.jobs(target),
                None => jobs_of(&self.workloads, target)?,
            };
            let jobs = self.drawn(jobs);
            tasks += jobs.len();
            programs += match &coordinator {
                Some(coordinator) => self.send(&jobs, &space, known.as_ref(), &mut coordinator.session())?,
                None => self.write(&jobs, &space, known.as_ref(), &place)?,
            };
        }
        let (of, tasks_of) = (counted(programs, "program"), counted(tasks, "task"));
        match &self.output {
            Some(path) if coordinator.is_none() => writeln!(out, "{}: {of} of {tasks_of}", path.display())?,
            _ => writeln!(out, "{of} of {tasks_of} sent")?,
        }
        if self.json {
            writeln!(out, "{}", json!({"tasks": tasks, "programs": programs}))?;
        }
        Ok(())
    }

    /// Writes the programs to the file; says how many there are.
    fn write(&self, jobs: &[Job], space: &Space, known: Option<&Known>, path: &Path) -> Result<usize> {
        let sources: Vec<&Path> = self.records.iter().chain(&self.workloads).map(PathBuf::as_path).collect();
        let output = Output::new(path, Kind::Plan, &sources)?;
        output.write(|mut file| {
            self.each(jobs, space, known, &mut |job, traces| {
                traces.iter().try_for_each(|trace| Ok(write_planned(&mut file, job, space, trace)?))
            })
        })
    }

    /// Sends the programs to a fleet, where they stay when this command has ended.
    fn send(&self, jobs: &[Job], space: &Space, known: Option<&Known>, session: &mut Session) -> Result<usize> {
        let proposer = match (known, self.sampler) {
            (Some(_), _) => "plan",
            (None, Some(sampler)) => sampler.name,
            (None, None) => self.method.name,
        };
        let origin = Origin { proposer, seed: self.seed };
        let programs = self.each(jobs, space, known, &mut |job, traces| {
            for traces in traces.chunks(PLANNED) {
                let traces = traces.to_vec();
                session.submit(&Batch { task: job.task.clone(), traces, mode: Mode::Each, best: None }, origin)?;
            }
            Ok(())
        });
        session.let_go();
        programs
    }

    /// Passes on the programs of each task.
    fn each(
        &self,
        jobs: &[Job],
        space: &Space,
        known: Option<&Known>,
        pass_on: &mut dyn FnMut(&Job, &[Trace]) -> Result<()>,
    ) -> Result<usize> {
        let writer = match (known, self.sampler) {
            (Some(known), _) => Writer::Known(known),
            (None, Some(kind)) => {
                let checkpoint = self.checkpoint.load(space, &Language::standard())?;
                Writer::Sampler(Sampler::new(kind, space, &Arc::new(checkpoint)))
            }
            (None, None) => Writer::Searcher(searcher(Some(self.method), space, &self.checkpoint, jobs)?),
        };
        let (bar, stopped) = (progress::bar(jobs.len() as u64, "writing"), stop_on_interrupt()?);
        let mut programs = 0;
        for (number, job) in jobs.iter().enumerate() {
            if stopped.load(Ordering::Relaxed) {
                return Err(CommandError::Interrupted.into());
            }
            bar.set_position(number as u64);
            bar.set_message(job.name.clone());
            let traces = writer.traces(job, space, self.programs as usize, self.seed)?;
            pass_on(job, &traces)?;
            programs += traces.len();
        }
        bar.finish_and_clear();
        Ok(programs)
    }

    /// As many of them as are wanted, in the order in which they come.
    fn drawn(&self, jobs: Vec<Job>) -> Vec<Job> {
        let wanted = self.tasks.map_or(jobs.len(), |tasks| jobs.len().min(tasks as usize));
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let chosen: HashSet<usize> = index::sample(&mut random, jobs.len(), wanted).into_iter().collect();
        jobs.into_iter().enumerate().filter(|(at, _)| chosen.contains(at)).map(|(_, job)| job).collect()
    }
}

/// The most programs of a plan that is sent: so much is lost, at most, when it has to be begun again.
const PLANNED: usize = 64;

/// Where the programs of a plan come from.
enum Writer<'a> {
    Known(&'a Known),
    Sampler(Sampler<'a>),
    Searcher(Searcher<'a>),
}

impl Writer<'_> {
    /// Programs of a task, each once: `count` at most, but for those of corpus files.
    fn traces(&self, job: &Job, space: &Space, count: usize, seed: u64) -> Result<Vec<Trace>> {
        match self {
            Writer::Known(known) => Ok(known.offered(job, space).into_iter().collect()),
            Writer::Sampler(sampler) => {
                let drawn: BTreeSet<Trace> = sampler.draw(&job.task, seed, count)?.into_iter().flatten().collect();
                Ok(drawn.into_iter().collect())
            }
            Writer::Searcher(searcher) => {
                let mut proposer = searcher.proposer_of(&job.task, seed)?;
                let proposal = proposer.propose(&job.task, &History::default(), count)?;
                Ok(proposal.candidates.into_iter().map(|candidate| candidate.trace).collect())
            }
        }
    }
}

/// The programs of corpus files, by the task's hash: of whatever target, each with the version of its space.
struct Known(BTreeMap<String, (Workload, BTreeSet<(String, Trace)>)>);

impl Known {
    fn read(files: &[PathBuf]) -> Result<Known> {
        let mut known = BTreeMap::new();
        for file in files {
            for entry in corpus(file)? {
                let Entry { task, record } = entry.with_context(|| file.display().to_string())?;
                let (_, traces) =
                    known.entry(record.task_hash).or_insert_with(|| (task.workload.clone(), BTreeSet::new()));
                traces.insert((record.space, record.trace));
            }
        }
        Ok(Known(known))
    }

    /// The tasks. Corpus files have no names for them but their hashes.
    fn jobs(&self, target: &Target) -> Vec<Job> {
        let job = |hash: &String, workload: &Workload| Job {
            name: hash.clone(),
            task: Task { workload: workload.clone(), target: target.clone() },
            weight: 1.0,
        };
        self.0.iter().map(|(hash, (workload, _))| job(hash, workload)).collect()
    }

    /// Those that are programs for the target.
    fn offered(&self, job: &Job, space: &Space) -> BTreeSet<Trace> {
        let known = self.0.get(&job.name).into_iter().flat_map(|(_, traces)| traces);
        let upgraded = known.filter_map(|(version, trace)| match space.reader(job.task.target.kind(), version) {
            Ok(reader) => reader.upgrade(&job.task, trace).ok(),
            // it says nothing of this space's programs, but may name one that is worth measuring
            Err(_) => Some(trace.clone()),
        });
        upgraded.filter(|trace| space.offers(&job.task, trace)).collect()
    }
}
