//! The finals: the fastest programs of a task and the untuned one, measured in turn.

use std::collections::BTreeMap;

use super::super::lighter::lighter;
use super::super::runner::{Answer, Runner, RunnerError};
use super::super::{Control, Event, First, Job, JobReport, TuneError};
use super::{Run, origin, wrong};
use crate::fleet::Origin;
use crate::measure::{Batch, MeasureError, Mode};
use crate::outcome::Outcome;
use crate::space::{Trace, Untuned};

/// The finals of a job.
struct Finals {
    untuned: Trace,
    finalists: Vec<Trace>,
    /// Without being measured.
    is_decided: bool,
    /// By the number of the finalist.
    outcomes: BTreeMap<usize, Outcome>,
}

impl Run<'_> {
    /// Measures the fastest programs of each job and the untuned one in turn, and names the winners. Where a
    /// single program was measured, there is none to compare it with: it is what the budget allowed.
    pub(super) fn finish(&mut self, interrupted: &mut bool) -> Result<Vec<JobReport>, TuneError> {
        let mut finals: Vec<Finals> = (0..self.jobs.len()).map(|job| self.finals(job)).collect();
        let (mut next, mut flight) = (0, BTreeMap::new());
        while !*interrupted && (next < finals.len() || !flight.is_empty()) {
            if next < finals.len() && flight.len() < self.runner.width() {
                let job = next;
                next += 1;
                // an interrupted run names the winner by what it has
                *interrupted |= (self.watch)(&Event::Finals { job }) == Control::Stop;
                if *interrupted || finals[job].is_decided {
                    continue;
                }
                let (task, traces) = (self.jobs[job].task.clone(), finals[job].finalists.clone());
                let batch = Batch { task, traces, mode: Mode::Finals, best: None };
                let taken = self.runner.submit(batch, origin(self.settings));
                flight.insert(taken.map_err(|error| wrong(&self.jobs[job], error))?, job);
                continue;
            }
            match self.runner.wait(true).map_err(|error| wrong(&self.jobs[0], error))? {
                Answer::Waiting => *interrupted |= (self.watch)(&Event::Waiting) == Control::Stop,
                Answer::Measured { batch, number, outcome } => {
                    if let Some(job) = flight.get(&batch) {
                        finals[*job].outcomes.insert(number, outcome);
                    }
                }
                Answer::Done { batch } => drop(flight.remove(&batch)),
                Answer::Failed { batch, error } => {
                    let Some(job) = flight.remove(&batch) else { continue };
                    let job = &self.jobs[job];
                    match error {
                        RunnerError::Parked { .. } => tracing::warn!("{}: no finals: {error}", job.name),
                        RunnerError::Measure(MeasureError::Stopped) => *interrupted = true,
                        error => return Err(wrong(job, error)),
                    }
                }
            }
        }
        self.runner.withdraw();
        Ok(finals.into_iter().enumerate().map(|(job, finals)| self.judge(job, finals)).collect())
    }

    /// Who is in the finals of a job.
    fn finals(&self, number: usize) -> Finals {
        let (job, history) = (&self.jobs[number], &self.histories[number]);
        let trials = self.counts.by_job.get(&number).copied().unwrap_or(0);
        let (untuned, untuned_nest) = self.space.drive(&job.task, &mut Untuned);
        let mut finalists = history.finalists(self.settings.finalists);
        finalists.extend(lighter(self.space, &job.task, history, &finalists, self.settings.lighter));
        if untuned_nest.is_ok() && !finalists.contains(&untuned) {
            finalists.push(untuned.clone());
        }
        let is_single = self.settings.first == First::Sure && history.len() == 1;
        let is_decided = is_single || self.unmeasurable.contains_key(&number) || finalists.len() < 2;
        let is_decided = is_decided || self.settings.finalists == 0 || trials == 0;
        Finals { untuned, finalists, is_decided, outcomes: BTreeMap::new() }
    }

    fn judge(&mut self, number: usize, finals: Finals) -> JobReport {
        let history = &self.histories[number];
        let Finals { untuned, finalists, outcomes, .. } = finals;
        let trials = self.counts.by_job.get(&number).copied().unwrap_or(0);
        let unmeasurable = self.unmeasurable.remove(&number);
        let best = history.best().map(|(trace, ns)| (trace.clone(), ns));
        let timed = || outcomes.iter().filter_map(|(at, outcome)| Some((finalists.get(*at)?, outcome.settled_ns()?)));
        // those of a part say nothing about the others
        let is_whole = outcomes.len() == finalists.len();
        let winner = timed().filter(|_| is_whole).min_by_key(|(_, ns)| *ns);
        let untuned_ns = timed().filter(|_| is_whole).find(|(trace, _)| **trace == untuned).map(|(_, ns)| ns);
        JobReport {
            is_final: winner.is_some(),
            best: winner.map(|(trace, ns)| (trace.clone(), ns)).or(best),
            untuned_ns: untuned_ns.or(history.best_ns(&untuned)),
            trials,
            unmeasurable,
        }
    }
}

/// Measures programs of a task in turn. `None` where `tell`, which is asked while nothing comes, says stop.
///
/// # Errors
/// [`TuneError`].
pub(in crate::tune) fn finals_of(
    job: &Job,
    traces: &[Trace],
    runner: &mut dyn Runner,
    tell: &mut dyn FnMut() -> Control,
) -> Result<Option<Vec<Outcome>>, TuneError> {
    let batch = Batch { task: job.task.clone(), traces: traces.to_vec(), mode: Mode::Finals, best: None };
    let of_all = Origin { proposer: "finals", seed: 0 };
    let id = runner.submit(batch, of_all).map_err(|error| wrong(job, error))?;
    let mut outcomes = BTreeMap::new();
    loop {
        match runner.wait(true).map_err(|error| wrong(job, error))? {
            Answer::Waiting if tell() == Control::Stop => {
                runner.withdraw();
                return Ok(None);
            }
            Answer::Measured { batch, number, outcome } if batch == id => drop(outcomes.insert(number, outcome)),
            Answer::Done { batch } if batch == id => return Ok(Some(outcomes.into_values().collect())),
            Answer::Failed { error, .. } => return Err(wrong(job, error)),
            _ => {}
        }
    }
}
