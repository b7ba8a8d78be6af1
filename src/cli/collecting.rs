//! What the commands have in common that measure programs of many tasks, and write a corpus file of them.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use tilescribe::outcome::Failure;
use tilescribe::propose::Proposer;
use tilescribe::record::{CorpusWriter, Filter, Store, read_workloads};
use tilescribe::space::Space;
use tilescribe::target::{Kind, Target, Task};
use tilescribe::tune::{self, Budget, Control, Event, Job, Report, Runner, Settings, TuneError};

use super::exit::CommandError;
use super::lab::Lab;
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
pub type MakeProposer<'a, 'p> = dyn Fn(&Job) -> Result<Box<dyn Proposer + 'p>> + Sync + 'a;

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

/// The same for every target of a lab, task by task.
///
/// # Errors
/// As [`jobs_of`].
pub fn jobs_for(paths: &[PathBuf], lab: &Lab) -> Result<Vec<Job>> {
    let mut all: Vec<Vec<Job>> = Vec::new();
    for target in &lab.targets {
        let mut jobs = jobs_of(paths, target)?;
        jobs.iter_mut().for_each(|job| job.name.push_str(&lab.suffix(target)));
        all.push(jobs);
    }
    let tasks = all.first().map_or(0, Vec::len);
    Ok((0..tasks).flat_map(|task| all.iter().map(move |jobs| jobs[task].clone())).collect())
}

impl CorpusArguments {
    /// The file of records.
    pub fn store_path(&self) -> PathBuf {
        self.store.clone().unwrap_or_else(|| self.output.with_extension("db"))
    }

    /// Measures, and writes all that the store holds then. `proposer` is asked for one for each task.
    ///
    /// # Errors
    /// [`CommandError::Interrupted`] after Ctrl-C; where the store or the output cannot be written.
    pub fn collect<'p>(
        &self,
        collection: &Collection<'_>,
        lab: &mut Lab,
        proposer: &MakeProposer<'_, 'p>,
        out: &mut dyn Write,
    ) -> Result<()> {
        lab.prepare(collection.space)?;
        let path = self.store_path();
        let output = Output::new(&self.output, output::Kind::Corpus, &[&path])?;
        let store = Store::open(&path)?;
        let summary = measure(collection, lab, proposer, &path)?;
        let mut kinds: Vec<Kind> = collection.jobs.iter().map(|job| job.task.target.kind()).collect();
        kinds.dedup();
        let versions = store.readable_spaces(collection.space, &kinds)?;
        // a file is not replaced by an empty one
        let (records, tasks) = match versions.is_empty() {
            true => (0, 0),
            false => {
                let bar = progress::bar(0, "writing");
                let written = output.write(|file| export(&store, &versions, file));
                bar.finish_and_clear();
                written?
            }
        };
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

/// Writes the records of these versions of the space, as they are: how many, and of how many tasks.
fn export(store: &Store, versions: &[String], file: &mut dyn Write) -> Result<(u64, usize)> {
    let mut writer = CorpusWriter::new(file)?;
    let mut records = 0;
    for version in versions {
        let filter = Filter { space: Some(version.clone()), ..Filter::default() };
        records += store.export(&filter, &mut writer)?;
    }
    let tasks = writer.tasks();
    writer.finish()?;
    Ok((records, tasks))
}

/// What was measured.
#[derive(Default)]
struct Summary {
    trials: u64,
    valid: u64,
    failed: BTreeMap<Failure, u64>,
    interrupted: bool,
}

/// Works on the jobs one after the other, on as many at a time as the lab has runners.
fn measure<'p>(
    collection: &Collection<'_>,
    lab: &mut Lab,
    proposer: &MakeProposer<'_, 'p>,
    store: &Path,
) -> Result<Summary> {
    let bar = progress::bar(collection.programs, "measuring");
    let site = Site {
        collection,
        proposer,
        store,
        stopped: stop_on_interrupt()?,
        has_failed: AtomicBool::new(false),
        started: Instant::now(),
        whereabouts: Box::new(lab.whereabouts()),
        bar: &bar,
        next: AtomicUsize::new(0),
        state: Mutex::default(),
    };
    let mut runners = lab.runners(collection.space)?;
    let ended = std::thread::scope(|scope| {
        let site = &site;
        // this thread takes part: where there is one runner, no other thread is needed
        let own = runners.pop();
        let others: Vec<_> =
            runners.into_iter().map(|mut runner| scope.spawn(move || site.work(runner.as_mut()))).collect();
        let mut ended: Vec<Result<()>> = own.into_iter().map(|mut runner| site.work(runner.as_mut())).collect();
        ended.extend(others.into_iter().map(|thread| match thread.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        }));
        ended.into_iter().collect::<Result<Vec<()>>>()
    });
    bar.finish_and_clear();
    ended?;
    Ok(site.state.into_inner().unwrap_or_else(PoisonError::into_inner).summary)
}

/// What those who collect side by side share.
struct Site<'a, 'p> {
    collection: &'a Collection<'a>,
    proposer: &'a MakeProposer<'a, 'p>,
    store: &'a Path,
    stopped: &'a AtomicBool,
    /// Someone cannot go on, so that the others need not.
    has_failed: AtomicBool,
    started: Instant,
    whereabouts: Box<dyn Fn() -> String + Send + Sync>,
    bar: &'a ProgressBar,
    /// The next job.
    next: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    summary: Summary,
    /// Jobs that are done.
    done: u64,
    /// Programs measured of the others.
    measured: BTreeMap<usize, u64>,
}

impl<'p> Site<'_, 'p> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One job after the other, until there is a reason to stop, which holds for all.
    fn work(&self, runner: &mut dyn Runner) -> Result<()> {
        let worked = self.collect_all(runner);
        if worked.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        worked
    }

    fn must_stop(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) || self.has_failed.load(Ordering::Relaxed)
    }

    fn collect_all(&self, runner: &mut dyn Runner) -> Result<()> {
        // a connection of its own to the one file
        let mut store = Store::open(self.store)?;
        while !self.state().summary.interrupted && !self.has_failed.load(Ordering::Relaxed) {
            let left = self.collection.time.map(|whole| whole.saturating_sub(self.started.elapsed()));
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = self.collection.jobs.get(number) else { break };
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            self.collect(number, job, left, runner, &mut store)?;
        }
        Ok(())
    }

    fn collect(
        &self,
        number: usize,
        job: &Job,
        left: Option<Duration>,
        runner: &mut dyn Runner,
        store: &mut Store,
    ) -> Result<()> {
        let Collection { space, settings, .. } = self.collection;
        let settings = Settings { budget: Budget { time: left, ..settings.budget }, ..settings.clone() };
        self.show(job, |state| *state.measured.entry(number).or_default() = 0);
        let mut watch = |event: &Event<'_>| {
            if let Event::Measured { progress, .. } = event {
                self.show(job, |state| *state.measured.entry(number).or_default() = progress.trials);
            }
            if self.must_stop() { Control::Stop } else { Control::Continue }
        };
        let mut own = (self.proposer)(job)?;
        let jobs = std::slice::from_ref(job);
        let found = tune::tune(space, jobs, own.as_mut(), runner, Some(store), &settings, &mut watch);
        self.show(job, |state| {
            state.measured.remove(&number);
            state.done += 1;
        });
        match found {
            Ok(report) => self.state().summary.add(report),
            // nothing can be measured any more
            Err(error @ TuneError::Fleet(_)) => return Err(error.into()),
            Err(error) => self.bar.suspend(|| tracing::warn!("{}: {error}", job.name)),
        }
        Ok(())
    }

    fn show(&self, job: &Job, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        let jobs = self.collection.jobs.len().max(1) as u64;
        let before = self.collection.programs * state.done / jobs;
        self.bar.set_position(before + state.measured.values().sum::<u64>());
        self.bar.set_message(format!("{}{}", job.name, (self.whereabouts)()));
    }
}

impl Summary {
    fn add(&mut self, report: Report) {
        self.trials += report.trials;
        self.valid += report.valid;
        for (cause, count) in report.failed {
            *self.failed.entry(cause).or_default() += count;
        }
        self.interrupted |= report.interrupted;
    }
}
