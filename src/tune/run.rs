//! The one loop that proposes and measures.

mod finals;
mod followers;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

pub(super) use self::finals::finals_of;
use super::runner::{Answer, BatchId, Runner, RunnerError};
use super::scheduler::Scheduler;
use super::{Budget, Control, Event, First, Job, JobReport, Report, RunProgress, Settings, TuneError};
use crate::fleet::Origin;
use crate::measure::{Batch, MeasureError, Mode};
use crate::outcome::{Failure, Outcome};
use crate::propose::{History, Proposer};
use crate::record::{Record, Store};
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
    runner: &mut dyn Runner,
    store: Option<&mut Store>,
    settings: &Settings,
    watch: &mut dyn FnMut(&Event<'_>) -> Control,
) -> Result<Report, TuneError> {
    let (started, counts, unmeasurable) = (Instant::now(), Counts::default(), BTreeMap::new());
    let scheduler = Scheduler::new(&[], &[], settings.budget.trials_per_task, false);
    let (histories, leaders, flight, held_up) = (Vec::new(), Vec::new(), BTreeMap::new(), BTreeSet::new());
    let mut run = Run {
        space,
        jobs,
        runner,
        store,
        settings,
        watch,
        started,
        counts,
        unmeasurable,
        histories,
        leaders,
        scheduler,
        flight,
        held_up,
        last: started,
        enough: false,
    };
    run.prepare()?;
    let mut interrupted = false;
    while !interrupted && !run.is_spent() {
        let filled = run.fill(proposer)?;
        interrupted = match filled {
            Filled::Stopped => true,
            // what has come back meanwhile is made use of before more is proposed
            Filled::Some => run.take_answers()? == Control::Stop,
            Filled::Nothing if run.flight.is_empty() => break,
            Filled::Nothing => run.take_answer(true)? == Control::Stop,
        };
    }
    run.withdraw();
    let mut reports = run.finish(&mut interrupted)?;
    run.hand_on(&mut reports, &mut interrupted)?;
    Ok(run.report(reports, interrupted))
}

/// What became of the wish for another batch.
enum Filled {
    Some,
    /// None is wanted, or none is to be had before more is known.
    Nothing,
    /// Someone says stop.
    Stopped,
}

/// Programs of a job that are being measured.
struct InFlight {
    job: usize,
    traces: Vec<Trace>,
    /// How many of them count as trials, of those that have not come back.
    trials: u64,
}

/// Who wrote what is sent.
fn origin(settings: &Settings) -> Origin<'_> {
    Origin { proposer: &settings.method, seed: settings.seed }
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
    runner: &'a mut dyn Runner,
    store: Option<&'a mut Store>,
    settings: &'a Settings,
    watch: &'a mut dyn FnMut(&Event<'_>) -> Control,
    started: Instant,
    counts: Counts,
    /// Jobs whose tasks cannot be measured, and why.
    unmeasurable: BTreeMap<usize, String>,
    /// By job.
    histories: Vec<History>,
    /// By job: the one that is searched in its place, or itself.
    leaders: Vec<usize>,
    scheduler: Scheduler,
    flight: BTreeMap<BatchId, InFlight>,
    /// Jobs of which nothing is proposed before more is known.
    held_up: BTreeSet<usize>,
    /// When the last program came back.
    last: Instant,
    /// Nothing that is left is worth its time.
    enough: bool,
}

impl Run<'_> {
    /// What is known of the jobs, and what an earlier run of the same command still has out.
    fn prepare(&mut self) -> Result<(), TuneError> {
        let mut resumed = Vec::new();
        for (number, job) in self.jobs.iter().enumerate() {
            // first what is out, then what is known: nothing that comes back meanwhile is missed. Without a
            // store, a run starts from nothing
            if self.store.is_some() {
                let out = self.runner.resume(&job.task, origin(self.settings)).map_err(|error| wrong(job, error))?;
                resumed.extend(out.into_iter().map(|(batch, traces)| (number, batch, traces)));
            }
            let history = self.known(job)?;
            self.histories.push(history);
        }
        let Budget { trials_per_task, time, least_gain, .. } = self.settings.budget;
        let by_second = time.is_some() || least_gain.is_some();
        self.scheduler = Scheduler::new(self.jobs, &self.histories, trials_per_task, by_second);
        self.leaders = match self.settings.hands_on {
            true => followers::leaders(self.space, self.jobs),
            false => (0..self.jobs.len()).collect(),
        };
        for (job, leader) in self.leaders.iter().enumerate().filter(|(job, leader)| job != *leader) {
            self.scheduler.follow(job, *leader);
        }
        for (number, batch, traces) in resumed {
            let trials = traces.iter().filter(|trace| !self.histories[number].contains(trace)).count();
            self.give_out(batch, number, traces, trials as u64);
        }
        Ok(())
    }

    /// Takes note of what a runner has taken.
    fn give_out(&mut self, batch: BatchId, job: usize, traces: Vec<Trace>, trials: u64) {
        traces.iter().for_each(|trace| self.histories[job].expect(trace));
        self.scheduler.give_out(job, trials);
        self.flight.insert(batch, InFlight { job, traces, trials });
    }

    /// Proposes a batch, where the runner wants one.
    fn fill(&mut self, proposer: &mut dyn Proposer) -> Result<Filled, TuneError> {
        while self.flight.len() < self.runner.width() {
            // where programs need not travel, what is known of a task counts for more than a busy machine
            let waits = |job| !self.runner.is_far() && self.flight.values().any(|flight| flight.job == job);
            let next = self.scheduler.next(|job| self.held_up.contains(&job) || waits(job));
            let Some(job) = next else { break };
            // it is worth more than any other
            let least_gain = self.settings.budget.least_gain;
            self.enough = least_gain.is_some_and(|least| self.scheduler.gain_per_second(job) < least);
            if self.enough {
                break;
            }
            let wanted = self.wanted(job);
            if wanted == 0 {
                break;
            }
            let batch = self.propose(proposer, job, wanted)?;
            if batch.traces.is_empty() {
                if self.flight.values().any(|flight| flight.job == job) {
                    self.held_up.insert(job);
                    continue;
                }
                self.scheduler.exhaust(job);
                if (self.watch)(&Event::Exhausted { job }) == Control::Stop {
                    return Ok(Filled::Stopped);
                }
                continue;
            }
            let traces = batch.traces.clone();
            let trials = if batch.mode == Mode::Each { traces.len() as u64 } else { 1 };
            let taken = self.runner.submit(batch, origin(self.settings));
            let id = taken.map_err(|error| wrong(&self.jobs[job], error))?;
            self.give_out(id, job, traces, trials);
            return Ok(Filled::Some);
        }
        Ok(Filled::Nothing)
    }

    /// Takes all that the runner has to say at once.
    fn take_answers(&mut self) -> Result<Control, TuneError> {
        loop {
            let (before, flying) = (self.counts.trials, self.flight.len());
            let control = self.take_answer(false)?;
            if control == Control::Stop || (before, flying) == (self.counts.trials, self.flight.len()) {
                return Ok(control);
            }
        }
    }

    /// What a task begins with is said by [`First`]; the method proposes the rest.
    fn propose(&mut self, proposer: &mut dyn Proposer, number: usize, wanted: usize) -> Result<Batch, TuneError> {
        let (job, history) = (&self.jobs[number], &self.histories[number]);
        let cannot = |source| TuneError::Propose { job: job.name.clone(), source };
        let best = history.best().map(|(trace, ns)| (trace.clone(), ns));
        let batch = |mode, traces| Batch { task: job.task.clone(), traces, mode, best };
        let mut first = Vec::new();
        if history.is_empty()
            && self.settings.first != First::Proposed
            && let (untuned, Ok(_)) = self.space.drive(&job.task, &mut Untuned)
        {
            let is_only = self.settings.first == First::Sure && self.settings.budget.trials_per_task == Some(1);
            let sure = if is_only { proposer.sure(&job.task).map_err(cannot)? } else { None };
            if let Some(candidate) = sure {
                return Ok(batch(Mode::FirstCorrect, vec![candidate.trace, untuned]));
            }
            first.push(untuned);
            if !self.runner.is_far() || wanted == 1 {
                return Ok(batch(Mode::Each, first));
            }
        }
        let proposal = proposer.propose(&job.task, history, wanted - first.len()).map_err(cannot)?;
        let traces = proposal.candidates.into_iter().map(|candidate| candidate.trace);
        let mut all = first;
        for trace in traces {
            if !all.contains(&trace) {
                all.push(trace);
            }
        }
        Ok(batch(Mode::Each, all))
    }

    /// Takes what the runner says next, if it says something.
    fn take_answer(&mut self, may_wait: bool) -> Result<Control, TuneError> {
        match self.runner.wait(may_wait).map_err(|error| wrong(&self.jobs[0], error))? {
            Answer::Waiting => Ok((self.watch)(&Event::Waiting)),
            Answer::Measured { batch, number, outcome } => self.take_outcome(batch, number, outcome),
            Answer::Done { batch } => {
                self.settle(batch);
                Ok(Control::Continue)
            }
            Answer::Failed { batch, error } => {
                let Some(job) = self.settle(batch) else { return Ok(Control::Continue) };
                match error {
                    // the others can be measured all the same
                    RunnerError::Measure(MeasureError::Task { detail }) => Ok(self.give_up(job, detail)),
                    RunnerError::Parked { .. } => Ok(self.give_up(job, error.to_string())),
                    RunnerError::Measure(MeasureError::Stopped) => Ok(Control::Stop),
                    error => Err(wrong(&self.jobs[job], error)),
                }
            }
        }
    }

    /// A batch has ended: what has not come back of it does not come any more.
    fn settle(&mut self, batch: BatchId) -> Option<usize> {
        let flight = self.flight.remove(&batch)?;
        self.scheduler.take_back(flight.job, flight.trials);
        flight.traces.iter().for_each(|trace| self.histories[flight.job].expect_no_more(trace));
        self.held_up.remove(&flight.job);
        Some(flight.job)
    }

    /// Nobody waits for what is in flight.
    fn withdraw(&mut self) {
        self.runner.withdraw();
        let batches: Vec<BatchId> = self.flight.keys().copied().collect();
        for batch in batches {
            self.settle(batch);
        }
    }

    /// Nothing more is tried of a task that cannot be measured.
    fn give_up(&mut self, job: usize, detail: String) -> Control {
        self.scheduler.exhaust(job);
        let control = (self.watch)(&Event::Unmeasurable { job, detail: &detail });
        self.unmeasurable.insert(job, detail);
        control
    }

    /// What the store holds of a task, and what the runner knows of it, which goes into the store.
    fn known(&mut self, job: &Job) -> Result<History, TuneError> {
        let mut history = History::default();
        let Some(store) = &mut self.store else { return Ok(history) };
        let (theirs, others): (Vec<Record>, Vec<Record>) = self
            .runner
            .known(&job.task)
            .map_err(|error| wrong(job, error))?
            .into_iter()
            .partition(|record| self.space.offers(&job.task, &record.trace));
        if !others.is_empty() {
            tracing::warn!("{}: {} records of the fleet are of no program of this task", job.name, others.len());
        }
        store.insert_many(theirs.iter().map(|record| (&job.task, record)))?;
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
            if (may_win || self.space.leaves_out()) && !self.space.offers(&job.task, &record.trace) {
                tracing::warn!("{}: a record in the store is no program of this task: it is left out", job.name);
                continue;
            }
            history.insert_outcome(record.trace, &record.outcome);
        }
        Ok(history)
    }

    fn is_spent(&self) -> bool {
        let Budget { trials, time, first_of_each, .. } = self.settings.budget;
        let reserved = self.scheduler.mean_seconds() * self.reserved() as f64;
        let late = time.is_some_and(|most| self.started.elapsed().as_secs_f64() + reserved >= most.as_secs_f64());
        trials.is_some_and(|most| self.counts.trials >= most)
            || late && !(first_of_each && self.scheduler.has_untried())
    }

    fn wanted(&self, job: usize) -> usize {
        let left = self.scheduler.left(job).unwrap_or(u64::MAX);
        let in_flight = self.scheduler.in_flight();
        let left_of = |budget: Option<u64>, used: u64| {
            budget.map_or(u64::MAX, |most| self.shared(most).saturating_sub(used + in_flight))
        };
        let total = left_of(self.settings.budget.trials, self.counts.trials);
        let known: u64 = self.histories.iter().map(|history| history.len() as u64).sum();
        let of_all = left_of(self.settings.budget.of_all_tasks, known);
        // a task of which nothing is known has its first program all the same
        let of_all = of_all.max(u64::from(self.histories[job].is_empty()));
        (self.settings.batches.after(self.histories[job].len()) as u64).min(left).min(total).min(of_all) as usize
    }

    /// Keeps what became of a program.
    fn take_outcome(&mut self, batch: BatchId, number: usize, outcome: Outcome) -> Result<Control, TuneError> {
        let Some(flight) = self.flight.get_mut(&batch) else { return Ok(Control::Continue) };
        let Some(trace) = flight.traces.get(number).cloned() else { return Ok(Control::Continue) };
        let job = flight.job;
        let trial = u64::from(flight.trials > 0);
        flight.trials -= trial;
        self.scheduler.take_back(job, trial);
        if self.histories[job].is_measured(&trace) {
            // known before this run took the batch over
            return Ok(Control::Continue);
        }
        let task = &self.jobs[job].task;
        if let Some(store) = &mut self.store {
            let Settings { method, seed, .. } = self.settings;
            let space = self.space.version(task.target.kind());
            let record = Record::new(task, &space, trace.clone(), outcome.clone(), method, *seed);
            store.insert(task, &record)?;
        }
        let history = &mut self.histories[job];
        history.insert_outcome(trace.clone(), &outcome);
        let now = Instant::now();
        let seconds = now.duration_since(std::mem::replace(&mut self.last, now)).as_secs_f64();
        self.scheduler.observe(job, history.best().map(|(_, ns)| ns), seconds);
        self.held_up.remove(&job);
        self.counts.trials += 1;
        *self.counts.by_job.entry(job).or_default() += 1;
        match &outcome {
            Outcome::Timed { .. } => self.counts.valid += 1,
            Outcome::Failed { cause, .. } => *self.counts.failed.entry(*cause).or_default() += 1,
        }
        let progress = self.progress();
        let history = &self.histories[job];
        Ok((self.watch)(&Event::Measured { job, trace: &trace, outcome: &outcome, history, progress }))
    }

    fn progress(&self) -> RunProgress {
        let Budget { trials_per_task, of_all_tasks, trials, time, .. } = self.settings.budget;
        let per_task = trials_per_task.map(|most| self.scheduler.most_trials(most));
        let of_trials = [per_task, of_all_tasks, trials].into_iter().flatten().min();
        let elapsed = self.started.elapsed();
        let by_trials = of_trials.map(|most| {
            let rate = elapsed.as_secs_f64() / self.counts.trials.max(1) as f64;
            Duration::from_secs_f64(rate * most.saturating_sub(self.counts.trials) as f64)
        });
        let by_time = time.map(|most| most.saturating_sub(elapsed));
        let left = [by_trials, by_time].into_iter().flatten().min();
        RunProgress { trials: self.counts.trials, of_trials, elapsed, left }
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
            enough: self.enough,
            jobs,
        }
    }
}

/// What a runner's error means for the run.
fn wrong(job: &Job, error: RunnerError) -> TuneError {
    match error {
        RunnerError::Measure(source) => TuneError::Measure { job: job.name.clone(), source },
        RunnerError::Fleet(error) => error.into(),
        RunnerError::Parked { .. } => {
            TuneError::Measure { job: job.name.clone(), source: MeasureError::Task { detail: error.to_string() } }
        }
    }
}
