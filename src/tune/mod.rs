//! The loop: propose, measure, record, and spend the next trials where they promise most.
//!
//! [`tune`] works on a list of [`Job`]s until a [`Budget`] is used up or it is told to stop. Every outcome is
//! in the store before the next candidate is measured, so a run may be killed and taken up again at any
//! moment. [`compare`] runs several methods on the same tasks side by side, [`report`] draws what came out,
//! and a [`plan`] holds programs that were written elsewhere.

pub mod compare;
pub mod plan;
pub mod report;
mod scheduler;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use thiserror::Error;

use crate::measure::{MeasureError, Measurer};
use crate::outcome::{Failure, Outcome};
use crate::propose::{History, ProposeError, Proposer};
use crate::record::{Filter, Record, Store, StoreError, fingerprint};
use crate::space::{Space, Trace, Untuned};
use crate::target::Task;

use scheduler::Scheduler;

/// A task to be tuned.
#[derive(Clone, Debug)]
pub struct Job {
    /// For people.
    pub name: String,
    pub task: Task,
    /// How often the network runs it.
    pub weight: f64,
}

/// When to stop. What is `None` does not limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    /// Measured candidates of each task, those found in the store included.
    pub trials_per_task: Option<u64>,
    /// Candidates measured in this run.
    pub trials: Option<u64>,
    /// Wall clock of this run.
    pub time: Option<Duration>,
}

/// How the loop works.
#[derive(Clone, Debug)]
pub struct Settings {
    pub budget: Budget,
    pub batches: Batches,
    /// The fastest of a task, at most so many, are measured once more in turn, with the untuned program,
    /// before the winner is named.
    pub finalists: usize,
    /// Kept in the records.
    pub seed: u64,
}

/// What the loop tells while it runs.
#[derive(Debug)]
pub enum Event<'a> {
    Measured {
        job: usize,
        trace: &'a Trace,
        outcome: &'a Outcome,
        /// Nanoseconds, of this job.
        best_ns: Option<u64>,
        progress: Progress,
    },
    /// The space of a task holds no further candidate, or none is found.
    Exhausted { job: usize },
    /// The winners are measured once more.
    Finals { job: usize },
}

/// How far the run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Candidates measured in this run.
    pub trials: u64,
    /// Candidates that the budget allows, where it counts them.
    pub of_trials: Option<u64>,
    pub elapsed: Duration,
    /// Until the budget is used up, at the present rate.
    pub left: Option<Duration>,
}

/// Whether to go on. What was measured is kept in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    Continue,
    Stop,
}

/// What a run did. Serialises to the summary line of `tune --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub tasks: usize,
    /// Candidates measured.
    pub trials: u64,
    /// Of these: compiled, correct and timed.
    pub valid: u64,
    /// Of these: not timed, by cause.
    pub failed: BTreeMap<Failure, u64>,
    pub seconds: f64,
    pub trials_per_s: f64,
    pub interrupted: bool,
    #[serde(skip)]
    pub jobs: Vec<JobReport>,
}

/// What became of one job.
#[derive(Clone, Debug)]
pub struct JobReport {
    /// The best program and its nanoseconds; `None` where nothing correct was found.
    pub best: Option<(Trace, u64)>,
    /// Nanoseconds of the program that the rules write without measurement.
    pub untuned_ns: Option<u64>,
    /// Candidates measured in this run.
    pub trials: u64,
}

/// Why a run ended early. What was measured is in the store.
#[derive(Debug, Error)]
pub enum TuneError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("task {job}: {source}")]
    Measure { job: String, source: MeasureError },
    #[error("task {job}: {source}")]
    Propose { job: String, source: ProposeError },
}

/// Tunes jobs until the budget is used up or `watch` says stop.
///
/// # Errors
/// [`TuneError`]; failures of candidates are outcomes.
pub fn tune(
    space: &Space,
    jobs: &[Job],
    proposer: &mut dyn Proposer,
    measurer: &mut Measurer,
    store: &mut Store,
    settings: &Settings,
    watch: &mut dyn FnMut(&Event<'_>) -> Control,
) -> Result<Report, TuneError> {
    let mut run =
        Run { space, jobs, measurer, store, settings, watch, started: Instant::now(), counts: Counts::default() };
    let mut histories = jobs.iter().map(|job| run.known(job)).collect::<Result<Vec<_>, _>>()?;
    let mut scheduler = Scheduler::new(jobs, &histories, settings.budget.trials_per_task);
    let mut interrupted = false;
    while !interrupted && !run.is_spent() {
        let Some(job) = scheduler.next() else { break };
        let wanted = run.batch(&scheduler, job, histories[job].len());
        let candidates = propose(&run, proposer, &jobs[job], &histories[job], wanted)?;
        if candidates.is_empty() {
            scheduler.exhaust(job);
            interrupted |= (run.watch)(&Event::Exhausted { job }) == Control::Stop;
            continue;
        }
        run.compile_ahead(job, &candidates)?;
        for trace in candidates {
            let control = run.measure(job, &trace, proposer.name(), &mut histories[job])?;
            scheduler.observe(job, histories[job].best().map(|(_, ns)| ns));
            interrupted |= control == Control::Stop;
            if interrupted || run.is_spent() {
                break;
            }
        }
    }
    let mut reports = Vec::with_capacity(jobs.len());
    for (job, history) in histories.iter().enumerate() {
        // an interrupted run names the winner by what it has
        interrupted |= !interrupted && (run.watch)(&Event::Finals { job }) == Control::Stop;
        reports.push(run.finish(job, history, interrupted)?);
    }
    Ok(run.report(reports, interrupted))
}

/// How many candidates of a task are proposed at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batches {
    pub least: usize,
    pub most: usize,
}

impl Batches {
    /// For a search: what the first few tell is made use of soon.
    pub fn growing(most: usize) -> Batches {
        Batches { least: 3, most }
    }

    /// Candidates to propose at once where so many were measured: half as many more, within the bounds. So
    /// proposing takes a small share of a long search, and a search with a large budget starts as one with a
    /// small budget does.
    pub fn after(self, measured: usize) -> usize {
        (measured / 2).max(self.least).min(self.most.max(1))
    }
}

/// The first batch of a task starts with the program that needs no model: the result is never slower than it.
fn propose(
    run: &Run<'_>,
    proposer: &mut dyn Proposer,
    job: &Job,
    history: &History,
    wanted: usize,
) -> Result<Vec<Trace>, TuneError> {
    if history.is_empty()
        && let (trace, Ok(_)) = run.space.drive(&job.task, &mut Untuned)
    {
        return Ok(vec![trace]);
    }
    let proposal = proposer
        .propose(&job.task, history, wanted)
        .map_err(|source| TuneError::Propose { job: job.name.clone(), source })?;
    Ok(proposal.candidates.into_iter().map(|c| c.trace).collect())
}

#[derive(Default)]
struct Counts {
    trials: u64,
    valid: u64,
    failed: BTreeMap<Failure, u64>,
    by_job: BTreeMap<usize, u64>,
}

/// What the parts of the loop share.
struct Run<'a> {
    space: &'a Space,
    jobs: &'a [Job],
    measurer: &'a mut Measurer,
    store: &'a mut Store,
    settings: &'a Settings,
    watch: &'a mut dyn FnMut(&Event<'_>) -> Control,
    started: Instant,
    counts: Counts,
}

impl Run<'_> {
    /// What the store holds of a task.
    fn known(&self, job: &Job) -> Result<History, StoreError> {
        let filter = Filter {
            task_hash: Some(job.task.workload.hash().to_string()),
            target: Some(fingerprint(&job.task.target)),
            space: Some(self.space.version(job.task.target.kind())),
        };
        let mut history = History::default();
        for record in self.store.records(&filter)? {
            // the store may hold programs by algorithms that are left out here
            if !self.space.is_exact() || self.space.offers(&job.task, &record.trace) {
                history.insert(record.trace, record.outcome.best_ns());
            }
        }
        Ok(history)
    }

    fn compile_ahead(&mut self, number: usize, traces: &[Trace]) -> Result<(), TuneError> {
        let job = &self.jobs[number];
        let failed = |source| TuneError::Measure { job: job.name.clone(), source };
        self.measurer.compile_ahead(&job.task, traces).map_err(failed)
    }

    fn is_spent(&self) -> bool {
        let Budget { trials, time, .. } = self.settings.budget;
        trials.is_some_and(|most| self.counts.trials >= most) || time.is_some_and(|most| self.started.elapsed() >= most)
    }

    fn batch(&self, scheduler: &Scheduler, job: usize, measured: usize) -> usize {
        let left = scheduler.left(job).unwrap_or(u64::MAX);
        let total = self.settings.budget.trials.map_or(u64::MAX, |most| most.saturating_sub(self.counts.trials));
        (self.settings.batches.after(measured) as u64).min(left).min(total) as usize
    }

    fn measure(
        &mut self,
        number: usize,
        trace: &Trace,
        proposer: &str,
        history: &mut History,
    ) -> Result<Control, TuneError> {
        let job = &self.jobs[number];
        let incumbent = history.best();
        let failed = |source| TuneError::Measure { job: job.name.clone(), source };
        let outcome = self.measurer.measure(&job.task, trace, incumbent).map_err(failed)?;
        let space = self.space.version(job.task.target.kind());
        let record = Record::new(&job.task, &space, trace.clone(), outcome.clone(), proposer, self.settings.seed);
        self.store.insert(&job.task, &record)?;
        history.insert(trace.clone(), outcome.best_ns());
        self.counts.trials += 1;
        *self.counts.by_job.entry(number).or_default() += 1;
        match &outcome {
            Outcome::Timed { .. } => self.counts.valid += 1,
            Outcome::Failed { cause, .. } => *self.counts.failed.entry(*cause).or_default() += 1,
        }
        let best_ns = history.best().map(|(_, ns)| ns);
        let progress = self.progress();
        Ok((self.watch)(&Event::Measured { job: number, trace, outcome: &outcome, best_ns, progress }))
    }

    fn progress(&self) -> Progress {
        let Budget { trials_per_task, trials, time } = self.settings.budget;
        let per_task = trials_per_task.map(|most| most * self.jobs.len() as u64);
        let of_trials = [per_task, trials].into_iter().flatten().min();
        let elapsed = self.started.elapsed();
        let by_trials = of_trials.map(|most| {
            let rate = elapsed.as_secs_f64() / self.counts.trials.max(1) as f64;
            Duration::from_secs_f64(rate * most.saturating_sub(self.counts.trials) as f64)
        });
        let by_time = time.map(|most| most.saturating_sub(elapsed));
        let left = [by_trials, by_time].into_iter().flatten().min();
        Progress { trials: self.counts.trials, of_trials, elapsed, left }
    }

    /// Measures the fastest programs and the untuned one in turn, and names the winner.
    fn finish(&mut self, number: usize, history: &History, interrupted: bool) -> Result<JobReport, TuneError> {
        let job = &self.jobs[number];
        let trials = self.counts.by_job.get(&number).copied().unwrap_or(0);
        let (untuned, untuned_nest) = self.space.drive(&job.task, &mut Untuned);
        let best = history.best().map(|(trace, ns)| (trace.clone(), ns));
        let mut finalists = history.finalists(self.settings.finalists);
        if untuned_nest.is_ok() && !finalists.contains(&untuned) {
            finalists.push(untuned.clone());
        }
        if interrupted || self.settings.finalists == 0 || finalists.len() < 2 || trials == 0 {
            return Ok(JobReport { best, untuned_ns: history.best_ns(&untuned), trials });
        }
        let failed = |source| TuneError::Measure { job: job.name.clone(), source };
        let outcomes = self.measurer.finals(&job.task, &finalists).map_err(failed)?;
        let timed = || finalists.iter().zip(&outcomes).filter_map(|(trace, o)| o.settled_ns().map(|ns| (trace, ns)));
        let best = timed().min_by_key(|(_, ns)| *ns).map(|(trace, ns)| (trace.clone(), ns)).or(best);
        let untuned_ns = timed().find(|(trace, _)| **trace == untuned).map(|(_, ns)| ns);
        Ok(JobReport { best, untuned_ns: untuned_ns.or(history.best_ns(&untuned)), trials })
    }

    fn report(self, jobs: Vec<JobReport>, interrupted: bool) -> Report {
        let seconds = self.started.elapsed().as_secs_f64();
        Report {
            tasks: jobs.len(),
            trials: self.counts.trials,
            valid: self.counts.valid,
            failed: self.counts.failed,
            seconds,
            trials_per_s: self.counts.trials as f64 / seconds.max(1e-9),
            interrupted,
            jobs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Batches;

    #[test]
    fn batches_grow_with_what_is_known() {
        let sizes: Vec<usize> =
            [0, 3, 6, 9, 13, 19, 28, 42, 1000].map(|measured| Batches::growing(16).after(measured)).to_vec();
        assert_eq!(sizes, [3, 3, 3, 4, 6, 9, 14, 16, 16]);
        assert_eq!([(0, 1), (0, 0), (50, 2)].map(|(measured, most)| Batches::growing(most).after(measured)), [1, 1, 2]);
        assert_eq!([0, 20, 30, 50].map(|measured| Batches { least: 12, most: 16 }.after(measured)), [12, 12, 15, 16]);
    }
}
