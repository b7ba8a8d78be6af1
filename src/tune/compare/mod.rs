//! Methods side by side: the same tasks, the same machine, counted by trials.
//!
//! Every method starts each task from nothing, once for every seed, and sees only what it measured itself: a
//! run is the loop of [`tune`] on one task, without a store.
//! What a method took for the fastest after 1, 2, 3, 5, 10, ... trials, the handful that
//! `tune` would measure again before it names a winner, is measured once more at the end, all
//! methods' programs in turn, so that figures of one task can be compared. Finished runs are kept in a
//! [`Log`]: a comparison can be taken up again, and other methods, seeds and longer runs can join it.

mod log;
mod paired;
mod summary;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Serialize;
use thiserror::Error;

pub use log::{Log, LogError};
pub use paired::Paired;

use super::run::finals_of;
use super::runner::Runner;
use super::{Batches, Budget, Control, Event, First, Job, TuneError, tune};
use crate::measure::MeasureError;
use crate::model::CheckpointError;
use crate::outcome::{Failure, Outcome};
use crate::propose::Searcher;
use crate::space::{Space, Trace, Untuned};

/// The size of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct ComparisonSettings {
    /// Measured candidates of each task, method and seed.
    pub trials: usize,
    pub seeds: u64,
    pub batches: Batches,
    /// As [`super::Settings::finalists`].
    pub finalists: usize,
}

/// Serialises to `results.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The machine, as records name it, and in words.
    pub target: String,
    /// Of the longest run.
    pub trials: usize,
    pub tasks: Vec<TaskComparison>,
    /// By method and number of trials: the geometric mean over tasks and seeds of reference / best.
    pub summary: ByTrials<f64>,
    /// By method and number of trials: the 95 % confidence interval of the mean over seeds, from Student's
    /// distribution; none for a single seed.
    pub intervals: ByTrials<(f64, f64)>,
    /// By method and number of trials: mean wall clock of a task until then, in seconds, proposing and
    /// measuring.
    pub seconds: ByTrials<f64>,
    /// Methods beside their controls, where there are any.
    pub controls: Vec<Paired>,
    /// The same of the program that the space's rules write without any search: what every method starts
    /// level with, if it is asked to.
    pub untuned: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct TaskComparison {
    /// The workload's canonical hash.
    pub hash: String,
    pub name: String,
    /// The best known program of any method, in milliseconds, as measured at the end.
    pub reference_ms: Option<f64>,
    /// The program that the space's rules write without any search, as measured at the end.
    pub untuned_ms: Option<f64>,
    pub runs: Vec<MethodRun>,
}

/// One method on one task with one seed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct MethodRun {
    pub method: String,
    pub seed: u64,
    /// That it was allowed.
    pub trials: usize,
    /// Best so far after trial 1, 2, ..., in milliseconds, as measured then; `null` before the first correct
    /// program.
    pub best_ms: Vec<Option<f64>>,
    /// Wall clock at the end of trial 1, 2, ..., proposing included.
    pub seconds: Vec<f64>,
    /// Candidates without a time, by cause.
    pub failed: BTreeMap<Failure, usize>,
    /// By number of trials: the winner if the search had ended then, measured at the end beside all others.
    pub checked_ms: BTreeMap<usize, f64>,
}

/// What is going on.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// So many trials of a run are done.
    Run { job: usize, method: &'a str, seed: u64, trial: usize },
    /// What the runs on a task came to is measured once more.
    Finals { job: usize },
}

/// A run that has nothing correct yet counts as this part of the reference.
pub const NOTHING_FOUND: f64 = 0.01;

/// After how many trials the best program is measured once more: 1, 2, 3, 5, 10, ... and the last.
pub fn checkpoints(trials: usize) -> Vec<usize> {
    let mut points: Vec<usize> =
        [1, 2, 3, 5, 10, 20, 32, 64, 100, 200, 320, 500, 1000].into_iter().filter(|p| *p < trials).collect();
    points.push(trials);
    points
}

/// Why a comparison ended early. Finished runs are in the log.
#[derive(Debug, Error)]
pub enum CompareError {
    #[error(transparent)]
    Tune(#[from] TuneError),
    #[error(transparent)]
    Log(#[from] LogError),
    /// A checkpoint that cannot be written has no fingerprint either.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// A method, as the log knows it.
struct Contestant<'a> {
    searcher: &'a Searcher<'a>,
    /// The fingerprint of its checkpoint, where there is one: with the name, what its runs depend on beside
    /// this program.
    checkpoint: Option<String>,
}

/// Runs every method on every task, but for the runs that the log holds already, and compares all that it
/// holds of these tasks. Each runner works on a run of its own, so that several go on at a time. Where
/// `watch` says stop, the comparison is of the tasks that were done before.
///
/// # Errors
/// [`CompareError`] where a task cannot be measured, a method cannot propose, or a run cannot be kept.
pub fn compare(
    space: &Space,
    jobs: &[Job],
    searchers: &[Searcher<'_>],
    runners: Vec<Box<dyn Runner + Send + '_>>,
    settings: &ComparisonSettings,
    log: &mut Log,
    watch: &mut (dyn FnMut(&Progress<'_>) -> Control + Send),
) -> Result<Comparison, CompareError> {
    let mut contestants = Vec::new();
    for searcher in searchers {
        let checkpoint = searcher.checkpoint().map(|checkpoint| checkpoint.fingerprint()).transpose()?;
        log.admit(&searcher.name, checkpoint.as_deref())?;
        contestants.push(Contestant { searcher, checkpoint });
    }
    let board = Board {
        space,
        jobs,
        contestants: &contestants,
        settings,
        log: Mutex::new(log),
        watch: Mutex::new(watch),
        has_failed: AtomicBool::new(false),
    };
    let runs = board.runs();
    let queue = Queue {
        runs: Mutex::new(runs.iter()),
        left: Mutex::new(vec![settings.seeds as usize * contestants.len(); jobs.len()]),
        results: Mutex::default(),
    };
    std::thread::scope(|scope| {
        let (board, queue) = (&board, &queue);
        let threads: Vec<_> =
            runners.into_iter().map(|mut runner| scope.spawn(move || board.work(queue, runner.as_mut()))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<(), CompareError>>| match thread.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect::<Result<Vec<()>, CompareError>>()
    })?;
    let results = queue.results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let tasks: Vec<TaskComparison> = results.into_values().collect();
    let target = jobs.first().map_or(String::new(), |job| crate::record::fingerprint(&job.task.target));
    let trials = tasks.iter().flat_map(|task| &task.runs).map(|run| run.trials).max().unwrap_or(settings.trials);
    let untuned = summary::geometric_mean(tasks.iter().filter_map(|task| {
        task.reference_ms.map(|reference| task.untuned_ms.map_or(NOTHING_FOUND, |ms| reference / ms).ln())
    }));
    let (summary, intervals) = (summary::qualities(&tasks), summary::intervals(&tasks));
    let (seconds, controls) = (summary::seconds(&tasks), paired::paired(&tasks));
    Ok(Comparison { target, trials, summary, intervals, seconds, controls, untuned, tasks })
}

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a contestant does to a task with a seed.
#[derive(Clone, Copy)]
struct RunId {
    job: usize,
    seed: u64,
    contestant: usize,
}

/// What those who play the runs share.
struct Board<'a> {
    space: &'a Space,
    jobs: &'a [Job],
    contestants: &'a [Contestant<'a>],
    settings: &'a ComparisonSettings,
    log: Mutex<&'a mut Log>,
    watch: Mutex<&'a mut (dyn FnMut(&Progress<'_>) -> Control + Send)>,
    /// Someone cannot go on, so that the others need not.
    has_failed: AtomicBool,
}

/// What is to be played, and what has come of it.
struct Queue<'a> {
    runs: Mutex<std::slice::Iter<'a, RunId>>,
    /// Runs of each job that are not done.
    left: Mutex<Vec<usize>>,
    /// By job.
    results: Mutex<BTreeMap<usize, TaskComparison>>,
}

impl Board<'_> {
    /// All runs, one task after the other.
    fn runs(&self) -> Vec<RunId> {
        let mut runs = Vec::new();
        for job in 0..self.jobs.len() {
            for seed in 0..self.settings.seeds {
                runs.extend((0..self.contestants.len()).map(|contestant| RunId { job, seed, contestant }));
            }
        }
        runs
    }

    /// Plays one run after the other, until there is a reason to stop, which holds for all.
    fn work(&self, queue: &Queue<'_>, runner: &mut dyn Runner) -> Result<(), CompareError> {
        loop {
            let run = locked(&queue.runs).next().copied();
            let Some(run) = run else { return Ok(()) };
            let done = self.play(run, runner).and_then(|control| match control {
                Control::Stop => Ok(Control::Stop),
                Control::Continue => self.finish(run.job, queue, runner).map(|()| Control::Continue),
            });
            if !matches!(done, Ok(Control::Continue)) {
                self.has_failed.fetch_or(done.is_err(), Ordering::Relaxed);
                // nobody begins another run
                locked(&queue.runs).by_ref().for_each(drop);
                return done.map(|_| ());
            }
        }
    }

    /// A run on a task is done: where it was the last, the task is judged.
    fn finish(&self, job: usize, queue: &Queue<'_>, runner: &mut dyn Runner) -> Result<(), CompareError> {
        let left = {
            let mut left = locked(&queue.left);
            left[job] -= 1;
            left[job]
        };
        if left == 0
            && let Some(task) = self.judge(job, runner)?
        {
            locked(&queue.results).insert(job, task);
        }
        Ok(())
    }

    fn tell(&self, progress: &Progress<'_>) -> Control {
        match self.has_failed.load(Ordering::Relaxed) {
            true => Control::Stop,
            false => locked(&self.watch)(progress),
        }
    }

    /// Plays a run and keeps it, unless it is known.
    fn play(
        &self,
        RunId { job: number, seed, contestant }: RunId,
        runner: &mut dyn Runner,
    ) -> Result<Control, CompareError> {
        let (job, Contestant { searcher, checkpoint }) = (&self.jobs[number], &self.contestants[contestant]);
        let hash = job.task.workload.hash().to_string();
        let mut tell = |trial| self.tell(&Progress::Run { job: number, method: &searcher.name, seed, trial });
        if locked(&self.log).contains(&hash, &searcher.name, seed, self.settings.trials) {
            return Ok(tell(self.settings.trials));
        }
        match run_method(self.space, job, searcher, seed, runner, self.settings, &mut tell)? {
            None => Ok(Control::Stop),
            Some((run, finalists)) => {
                locked(&self.log).append(&hash, checkpoint.as_deref(), run, finalists)?;
                Ok(Control::Continue)
            }
        }
    }

    /// Measures once more what the runs on a task came to. `None` where someone says stop meanwhile.
    fn judge(&self, number: usize, runner: &mut dyn Runner) -> Result<Option<TaskComparison>, CompareError> {
        let job = &self.jobs[number];
        let hash = job.task.workload.hash().to_string();
        let known = locked(&self.log).of(&hash);
        let (mut runs, finalists): (Vec<MethodRun>, Vec<Finalists>) = known.into_iter().unzip();
        let mut tell = || self.tell(&Progress::Finals { job: number });
        let Some((reference_ms, untuned_ms)) = recheck(self.space, job, runner, &mut runs, &finalists, &mut tell)?
        else {
            return Ok(None);
        };
        Ok(Some(TaskComparison { hash, name: job.name.clone(), reference_ms, untuned_ms, runs }))
    }
}

/// A program as measured at the end.
#[derive(Clone, Copy)]
struct Checked {
    /// By which it is chosen.
    judged_ns: u64,
    /// What it took in the other repetitions.
    other_ms: f64,
}

impl Checked {
    fn of(outcome: &Outcome) -> Option<Checked> {
        let judged_ns = outcome.settled_ns_of_half(false)?;
        let other_ns = outcome.settled_ns_of_half(true).unwrap_or(judged_ns);
        Some(Checked { judged_ns, other_ms: other_ns as f64 / 1e6 })
    }
}

/// By method and number of trials.
pub type ByTrials<T> = BTreeMap<String, BTreeMap<usize, T>>;

/// At every checkpoint the traces among which the winner would be if the search ended there.
type Finalists = BTreeMap<usize, Vec<Trace>>;

/// A search of one task by one method: what it found after each trial, and what it would have taken for the
/// winner. `None` where `tell` says stop.
fn run_method(
    space: &Space,
    job: &Job,
    searcher: &Searcher<'_>,
    seed: u64,
    runner: &mut dyn Runner,
    settings: &ComparisonSettings,
    tell: &mut dyn FnMut(usize) -> Control,
) -> Result<Option<(MethodRun, Finalists)>, TuneError> {
    let started = Instant::now();
    let mut proposer =
        searcher.proposer(seed).map_err(|source| TuneError::Propose { job: job.name.clone(), source })?;
    let mut run = MethodRun {
        method: searcher.name.clone(),
        seed,
        trials: settings.trials,
        best_ms: Vec::new(),
        seconds: Vec::new(),
        failed: BTreeMap::new(),
        checked_ms: BTreeMap::new(),
    };
    let points = checkpoints(settings.trials);
    let (mut finalists, mut last) = (Finalists::new(), Vec::new());
    let mut watch = |event: &Event<'_>| {
        let (outcome, history) = match event {
            Event::Measured { outcome, history, .. } => (outcome, history),
            Event::Waiting => return tell(run.best_ms.len()),
            _ => return Control::Continue,
        };
        if let Outcome::Failed { cause, .. } = outcome {
            *run.failed.entry(*cause).or_default() += 1;
        }
        run.best_ms.push(history.best().map(|(_, ns)| ns as f64 / 1e6));
        run.seconds.push(started.elapsed().as_secs_f64());
        last = history.finalists(settings.finalists);
        if points.contains(&history.len()) {
            finalists.insert(history.len(), last.clone());
        }
        tell(history.len())
    };
    let search = super::Settings {
        budget: Budget { trials_per_task: Some(settings.trials as u64), ..Budget::default() },
        batches: settings.batches,
        first: First::Proposed,
        finalists: 0,
        lighter: 0,
        hands_on: false,
        method: searcher.name.clone(),
        seed,
    };
    let report = tune(space, std::slice::from_ref(job), proposer.as_mut(), runner, None, &search, &mut watch)?;
    if report.interrupted {
        return Ok(None);
    }
    if let Some(detail) = report.jobs.into_iter().find_map(|job| job.unmeasurable) {
        return Err(TuneError::Measure { job: job.name.clone(), source: MeasureError::Task { detail } });
    }
    // a space smaller than the budget has nothing more to find
    for point in points.into_iter().filter(|point| *point > run.best_ms.len()) {
        finalists.insert(point, last.clone());
    }
    Ok(Some((run, finalists)))
}

/// Milliseconds of the fastest program and of the untuned one, where they have any.
type Checks = (Option<f64>, Option<f64>);

/// Measures the finalists of all runs in turn, and the untuned program; gives the time of the fastest, and
/// the untuned one's.
///
/// Every other repetition decides which program is taken for the winner, of all or of a run's finalists; its
/// time is that of the other repetitions. Otherwise the luckiest of dozens of programs that are about as fast
/// would be the reference, which nothing could reach again, itself included.
fn recheck(
    space: &Space,
    job: &Job,
    runner: &mut dyn Runner,
    runs: &mut [MethodRun],
    finalists: &[Finalists],
    tell: &mut dyn FnMut() -> Control,
) -> Result<Option<Checks>, TuneError> {
    let (untuned, _) = space.drive(&job.task, &mut Untuned);
    let mut traces: Vec<Trace> = finalists.iter().flat_map(|of| of.values().flatten().cloned()).collect();
    traces.push(untuned.clone());
    traces.sort();
    traces.dedup();
    let Some(outcomes) = finals_of(job, &traces, runner, tell)? else { return Ok(None) };
    let times: BTreeMap<&Trace, Checked> =
        traces.iter().zip(&outcomes).filter_map(|(trace, outcome)| Some((trace, Checked::of(outcome)?))).collect();
    for (run, finalists) in runs.iter_mut().zip(finalists) {
        let winner = |traces: &Vec<Trace>| {
            traces.iter().filter_map(|trace| times.get(trace)).min_by_key(|checked| checked.judged_ns)
        };
        run.checked_ms = finalists.iter().filter_map(|(point, of)| Some((*point, winner(of)?.other_ms))).collect();
    }
    let fastest = times.values().min_by_key(|checked| checked.judged_ns);
    Ok(Some((fastest.map(|checked| checked.other_ms), times.get(&untuned).map(|checked| checked.other_ms))))
}
