//! Tasks that differ in numbers alone, as the layers of a quantised network do by their scales. What runs
//! fast for one does for all: one of them is searched for, and the others take its winner over, which is
//! checked and timed for each.

use std::collections::{HashMap, VecDeque};

use super::super::{Control, First, Job, JobReport, TuneError};
use super::{Run, origin, wrong};
use crate::measure::{Batch, Mode};
use crate::space::{Space, Trace, Untuned};
use crate::workload::Workload;

/// By job, who is searched in its place: the first job that is like it but for numbers, and whose programs it
/// takes; for all others, and for that one, itself.
pub(super) fn leaders(space: &Space, jobs: &[Job]) -> Vec<usize> {
    let mut first: HashMap<(Workload, String), (usize, Trace)> = HashMap::new();
    let mut leaders = Vec::with_capacity(jobs.len());
    for (number, job) in jobs.iter().enumerate() {
        let key = (job.task.workload.without_numbers(), job.task.target.fingerprint());
        let untuned = || space.drive(&job.task, &mut Untuned).0;
        let (leader, of_leader) = first.entry(key).or_insert_with(|| (number, untuned()));
        let takes = *leader == number || space.offers(&job.task, of_leader);
        leaders.push(if takes { *leader } else { number });
    }
    leaders
}

impl Run<'_> {
    /// Jobs for which another one is searched.
    fn followers(&self) -> impl Iterator<Item = (usize, usize)> {
        self.leaders.iter().copied().enumerate().filter(|(job, leader)| job != leader)
    }

    /// Programs that are still to be measured of those, one of each.
    pub(super) fn reserved(&self) -> u64 {
        self.followers().count() as u64
    }

    /// Programs that others may have of a budget: all that is not reserved, and half of it at least.
    pub(super) fn shared(&self, budget: u64) -> u64 {
        budget - self.reserved().min(budget / 2)
    }

    /// Has the winners of those that were searched for measured for all that follow them; where that one does
    /// not do, the untuned program.
    pub(super) fn hand_on(&mut self, reports: &mut [JobReport], interrupted: &mut bool) -> Result<(), TuneError> {
        let followers: Vec<(usize, usize)> = self.followers().collect();
        let winner = |leader: usize| reports[leader].best.as_ref().map(|(trace, _)| trace.clone());
        let won = followers.iter().filter_map(|(job, leader)| Some((*job, winner(*leader)?))).collect();
        self.measure_each(won, interrupted)?;
        let is_left = |job: &usize| self.histories[*job].best().is_none() && self.settings.first != First::Proposed;
        let left = followers.iter().map(|(job, _)| *job).filter(is_left);
        let untuned = left.map(|job| (job, self.space.drive(&self.jobs[job].task, &mut Untuned).0)).collect();
        self.measure_each(untuned, interrupted)?;
        for (job, _) in followers {
            let history = &self.histories[job];
            let (untuned, _) = self.space.drive(&self.jobs[job].task, &mut Untuned);
            reports[job] = JobReport {
                best: history.best().map(|(trace, ns)| (trace.clone(), ns)),
                is_final: false,
                untuned_ns: history.best_ns(&untuned),
                trials: self.counts.by_job.get(&job).copied().unwrap_or(0),
                unmeasurable: self.unmeasurable.remove(&job),
            };
        }
        Ok(())
    }

    /// Measures a program of each of these jobs, unless it is known, or the budget is used up.
    fn measure_each(&mut self, mut queue: VecDeque<(usize, Trace)>, interrupted: &mut bool) -> Result<(), TuneError> {
        while !*interrupted && (!queue.is_empty() || !self.flight.is_empty()) {
            if self.flight.len() < self.runner.width()
                && let Some((number, trace)) = queue.pop_front()
            {
                let (job, history) = (&self.jobs[number], &self.histories[number]);
                let is_new = !history.is_measured(&trace) && self.space.offers(&job.task, &trace);
                let given_out = self.counts.trials + self.scheduler.in_flight();
                let is_left = self.settings.budget.trials.is_none_or(|most| given_out < most);
                if is_new && is_left && !self.unmeasurable.contains_key(&number) {
                    let best = history.best().map(|(trace, ns)| (trace.clone(), ns));
                    let batch = Batch { task: job.task.clone(), traces: vec![trace.clone()], mode: Mode::Each, best };
                    let taken = self.runner.submit(batch, origin(self.settings));
                    let id = taken.map_err(|error| wrong(&self.jobs[number], error))?;
                    self.give_out(id, number, vec![trace], 1);
                }
                continue;
            }
            *interrupted |= self.take_answer(true)? == Control::Stop;
        }
        self.withdraw();
        Ok(())
    }
}
