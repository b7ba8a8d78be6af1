//! The one loop that proposes and measures.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::scheduler::Scheduler;
use super::{Budget, Control, Event, First, Job, JobReport, Report, RunProgress, Settings, TuneError};
use crate::measure::{MeasureError, Measurer};
use crate::outcome::{Failure, Outcome};
use crate::propose::{History, Proposer};
use crate::record::{Record, Store, StoreError};
use crate::space::{Space, Trace, Untuned};

/// Tunes jobs until the budget is used up or `watch` says stop. Without a store, every job starts from
/// nothing, and nothing is kept.
///
/// # Errors
/// [`TuneError`]; failures of candidates are outcomes.
pub fn tune(
    space: &Space,
    jobs: &[Job],
    proposer: &mut dyn Proposer,
    measurer: &mut Measurer,
    store: Option<&mut Store>,
    settings: &Settings,
    watch: &mut dyn FnMut(&Event<'_>) -> Control,
) -> Result<Report, TuneError> {
    let (started, counts, unmeasurable) = (Instant::now(), Counts::default(), BTreeMap::new());
    let mut run = Run { space, jobs, measurer, store, settings, watch, started, counts, unmeasurable };
    let mut histories = jobs.iter().map(|job| run.known(job)).collect::<Result<Vec<_>, _>>()?;
    let mut scheduler = Scheduler::new(jobs, &histories, settings.budget.trials_per_task);
    let mut interrupted = false;
    while !interrupted && !run.is_spent() {
        let Some(job) = scheduler.next() else { break };
        let wanted = run.wanted(&scheduler, job, histories[job].len());
        let batch = propose(&run, proposer, &jobs[job], &histories[job], wanted)?;
        if batch.traces().is_empty() {
            scheduler.exhaust(job);
            interrupted |= (run.watch)(&Event::Exhausted { job }) == Control::Stop;
            continue;
        }
        let control = match run.measure_batch(job, &batch, &mut histories[job], &mut scheduler) {
            // the others can be measured all the same
            Err(TuneError::Measure { source: MeasureError::Task { detail }, .. }) => {
                scheduler.exhaust(job);
                run.give_up(job, detail)
            }
            measured => measured?,
        };
        interrupted |= control == Control::Stop;
    }
    let mut reports = Vec::with_capacity(jobs.len());
    for (job, history) in histories.iter().enumerate() {
        // an interrupted run names the winner by what it has
        interrupted |= !interrupted && (run.watch)(&Event::Finals { job }) == Control::Stop;
        reports.push(run.finish(job, history, interrupted)?);
    }
    Ok(run.report(reports, interrupted))
}

/// What is measured next of a task.
enum Batch {
    /// All of these.
    Each(Vec<Trace>),
    /// The first of these that is correct.
    FirstCorrect(Vec<Trace>),
}

impl Batch {
    fn traces(&self) -> &[Trace] {
        match self {
            Batch::Each(traces) | Batch::FirstCorrect(traces) => traces,
        }
    }
}

/// What a task begins with is said by [`First`]; the method proposes the rest.
fn propose(
    run: &Run<'_>,
    proposer: &mut dyn Proposer,
    job: &Job,
    history: &History,
    wanted: usize,
) -> Result<Batch, TuneError> {
    let cannot = |source| TuneError::Propose { job: job.name.clone(), source };
    if history.is_empty()
        && run.settings.first != First::Proposed
        && let (untuned, Ok(_)) = run.space.drive(&job.task, &mut Untuned)
    {
        let is_only = run.settings.first == First::Sure && run.settings.budget.trials_per_task == Some(1);
        let sure = if is_only { proposer.sure(&job.task).map_err(cannot)? } else { None };
        return Ok(match sure {
            Some(candidate) => Batch::FirstCorrect(vec![candidate.trace, untuned]),
            None => Batch::Each(vec![untuned]),
        });
    }
    let proposal = proposer.propose(&job.task, history, wanted).map_err(cannot)?;
    Ok(Batch::Each(proposal.candidates.into_iter().map(|candidate| candidate.trace).collect()))
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
    store: Option<&'a mut Store>,
    settings: &'a Settings,
    watch: &'a mut dyn FnMut(&Event<'_>) -> Control,
    started: Instant,
    counts: Counts,
    /// Jobs whose tasks cannot be measured, and why.
    unmeasurable: BTreeMap<usize, String>,
}

impl Run<'_> {
    /// What the store holds of a task.
    fn known(&self, job: &Job) -> Result<History, StoreError> {
        let mut history = History::default();
        let Some(store) = &self.store else { return Ok(history) };
        let known = store.readable(&job.task, self.space)?;
        if let Some(warning) = known.warning() {
            tracing::info!("{}: {warning}", job.name);
        }
        let mut records = known.records;
        records.sort_by_key(|record| record.outcome.best_ns().unwrap_or(u64::MAX));
        for record in records {
            let best_ns = record.outcome.best_ns();
            // the store may hold programs by algorithms that are left out here; and it comes from outside:
            // what may win has to be a program of the task
            let may_win = best_ns.is_some() && history.best().is_none_or(|_| history.len() < self.settings.finalists);
            if (may_win || self.space.is_exact()) && !self.space.offers(&job.task, &record.trace) {
                tracing::warn!("{}: a record in the store is no program of this task: it is left out", job.name);
                continue;
            }
            history.insert(record.trace, best_ns);
        }
        Ok(history)
    }

    /// Measures as many of a batch as the budget allows; of one that needs a single correct program, up to
    /// that.
    fn measure_batch(
        &mut self,
        job: usize,
        batch: &Batch,
        history: &mut History,
        scheduler: &mut Scheduler,
    ) -> Result<Control, TuneError> {
        self.compile_ahead(job, batch)?;
        let suffices = matches!(batch, Batch::FirstCorrect(_));
        for trace in batch.traces() {
            let control = self.measure(job, trace, history)?;
            let best = history.best().map(|(_, ns)| ns);
            scheduler.observe(job, best);
            if control == Control::Stop {
                return Ok(Control::Stop);
            }
            if self.is_spent() || (suffices && best.is_some()) {
                break;
            }
        }
        Ok(Control::Continue)
    }

    /// Nothing more is tried of a task that cannot be measured.
    fn give_up(&mut self, job: usize, detail: String) -> Control {
        let control = (self.watch)(&Event::Unmeasurable { job, detail: &detail });
        self.unmeasurable.insert(job, detail);
        control
    }

    /// What is not measured unless something fails is not compiled ahead.
    fn compile_ahead(&mut self, number: usize, batch: &Batch) -> Result<(), TuneError> {
        let Batch::Each(traces) = batch else { return Ok(()) };
        let job = &self.jobs[number];
        let failed = |source| TuneError::Measure { job: job.name.clone(), source };
        self.measurer.compile_ahead(&job.task, traces).map_err(failed)
    }

    fn is_spent(&self) -> bool {
        let Budget { trials, time, .. } = self.settings.budget;
        trials.is_some_and(|most| self.counts.trials >= most) || time.is_some_and(|most| self.started.elapsed() >= most)
    }

    fn wanted(&self, scheduler: &Scheduler, job: usize, measured: usize) -> usize {
        let left = scheduler.left(job).unwrap_or(u64::MAX);
        let total = self.settings.budget.trials.map_or(u64::MAX, |most| most.saturating_sub(self.counts.trials));
        (self.settings.batches.after(measured) as u64).min(left).min(total) as usize
    }

    fn measure(&mut self, number: usize, trace: &Trace, history: &mut History) -> Result<Control, TuneError> {
        let job = &self.jobs[number];
        let incumbent = history.best();
        let failed = |source| TuneError::Measure { job: job.name.clone(), source };
        let outcome = self.measurer.measure(&job.task, trace, incumbent).map_err(failed)?;
        if let Some(store) = &mut self.store {
            let Settings { method, seed, .. } = self.settings;
            let space = self.space.version(job.task.target.kind());
            let record = Record::new(&job.task, &space, trace.clone(), outcome.clone(), method, *seed);
            store.insert(&job.task, &record)?;
        }
        history.insert(trace.clone(), outcome.best_ns());
        self.counts.trials += 1;
        *self.counts.by_job.entry(number).or_default() += 1;
        match &outcome {
            Outcome::Timed { .. } => self.counts.valid += 1,
            Outcome::Failed { cause, .. } => *self.counts.failed.entry(*cause).or_default() += 1,
        }
        let progress = self.progress();
        Ok((self.watch)(&Event::Measured { job: number, trace, outcome: &outcome, history, progress }))
    }

    fn progress(&self) -> RunProgress {
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
        RunProgress { trials: self.counts.trials, of_trials, elapsed, left }
    }

    /// Measures the fastest programs and the untuned one in turn, and names the winner. Where a single
    /// program was measured, there is none to compare it with: it is what the budget allowed.
    fn finish(&mut self, number: usize, history: &History, interrupted: bool) -> Result<JobReport, TuneError> {
        let job = &self.jobs[number];
        let trials = self.counts.by_job.get(&number).copied().unwrap_or(0);
        let (untuned, untuned_nest) = self.space.drive(&job.task, &mut Untuned);
        let best = history.best().map(|(trace, ns)| (trace.clone(), ns));
        let mut finalists = history.finalists(self.settings.finalists);
        if untuned_nest.is_ok() && !finalists.contains(&untuned) {
            finalists.push(untuned.clone());
        }
        let is_single = self.settings.first == First::Sure && history.len() == 1;
        let unmeasurable = self.unmeasurable.remove(&number);
        let is_decided = is_single || unmeasurable.is_some() || finalists.len() < 2;
        if interrupted || self.settings.finalists == 0 || trials == 0 || is_decided {
            return Ok(JobReport { best, untuned_ns: history.best_ns(&untuned), trials, unmeasurable });
        }
        let failed = |source| TuneError::Measure { job: job.name.clone(), source };
        let outcomes = self.measurer.finals(&job.task, &finalists).map_err(failed)?;
        let timed = || finalists.iter().zip(&outcomes).filter_map(|(trace, o)| o.settled_ns().map(|ns| (trace, ns)));
        let best = timed().min_by_key(|(_, ns)| *ns).map(|(trace, ns)| (trace.clone(), ns)).or(best);
        let untuned_ns = timed().find(|(trace, _)| **trace == untuned).map(|(_, ns)| ns);
        let untuned_ns = untuned_ns.or(history.best_ns(&untuned));
        Ok(JobReport { best, untuned_ns, trials, unmeasurable: None })
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
