//! Which task gets the next trials: the one where weight × expected gain is largest.

use super::Job;
use crate::propose::History;

/// Shares trials between tasks, in the manner of Ansor's task scheduler (Zheng et al., OSDI 2020, section 6):
/// the gain of another trial is estimated from what the last ones gained, and from what a task that was
/// hardly tried may still gain.
pub(super) struct Scheduler {
    states: Vec<State>,
    trials_per_task: Option<u64>,
}

struct State {
    weight: f64,
    trials: u64,
    /// Trials that have been given out.
    in_flight: u64,
    best_ns: Option<u64>,
    /// Relative gain of a trial, averaged over the last ones.
    gain: f64,
    exhausted: bool,
}

/// A task is left for last once this many of its candidates failed without a single success.
const HOPELESS_TRIALS: u64 = 64;

/// How fast the memory of gains fades, per trial.
const FADE: f64 = 0.9;

impl Scheduler {
    pub fn new(jobs: &[Job], histories: &[History], trials_per_task: Option<u64>) -> Scheduler {
        let state = |(job, history): (&Job, &History)| State {
            weight: job.weight,
            trials: history.len() as u64,
            in_flight: 0,
            best_ns: history.best().map(|(_, ns)| ns),
            gain: 0.0,
            exhausted: false,
        };
        Scheduler { states: jobs.iter().zip(histories).map(state).collect(), trials_per_task }
    }

    /// The task that the next trials go to, of those that are not held up; `None` when all are done, or wait.
    /// Of a task that has no time yet, one batch says how fast the others are: it comes first, and alone.
    pub fn next(&self, is_held_up: impl Fn(usize) -> bool) -> Option<usize> {
        let is_open = |job: &usize| {
            let State { exhausted, best_ns, in_flight, .. } = self.states[*job];
            let waits = is_held_up(*job) || (best_ns.is_none() && in_flight > 0);
            !exhausted && !waits && self.left(*job) != Some(0)
        };
        let open = (0..self.states.len()).filter(is_open);
        open.max_by(|a, b| self.expected_gain(*a).total_cmp(&self.expected_gain(*b)).then(b.cmp(a)))
    }

    /// Trials that the task may still have, where they are limited.
    pub fn left(&self, job: usize) -> Option<u64> {
        let State { trials, in_flight, .. } = self.states[job];
        self.trials_per_task.map(|most| most.saturating_sub(trials + in_flight))
    }

    /// Takes note of trials that are given out.
    pub fn give_out(&mut self, job: usize, trials: u64) {
        self.states[job].in_flight += trials;
    }

    /// Takes note of trials that come to nothing.
    pub fn take_back(&mut self, job: usize, trials: u64) {
        let in_flight = &mut self.states[job].in_flight;
        *in_flight = in_flight.saturating_sub(trials);
    }

    /// Trials of all tasks that are given out.
    pub fn in_flight(&self) -> u64 {
        self.states.iter().map(|state| state.in_flight).sum()
    }

    pub fn exhaust(&mut self, job: usize) {
        self.states[job].exhausted = true;
    }

    /// Takes note of a trial, after which the task's best is `best_ns`.
    pub fn observe(&mut self, job: usize, best_ns: Option<u64>) {
        let state = &mut self.states[job];
        state.trials += 1;
        let gained = match (state.best_ns, best_ns) {
            (Some(before), Some(now)) if before > 0 => before.saturating_sub(now) as f64 / before as f64,
            _ => 0.0,
        };
        state.gain = FADE * state.gain + (1.0 - FADE) * gained;
        state.best_ns = best_ns;
    }

    /// Nanoseconds of a network run that the next trial may save. A task without a correct program comes
    /// first.
    fn expected_gain(&self, job: usize) -> f64 {
        let state = &self.states[job];
        let Some(best) = state.best_ns else {
            return if state.trials < HOPELESS_TRIALS { f64::INFINITY } else { 0.0 };
        };
        let optimism = 1.0 / (1.0 + (state.trials + state.in_flight) as f64);
        state.weight * best as f64 * state.gain.max(optimism)
    }
}

#[cfg(test)]
mod tests {
    use super::{Scheduler, State};

    fn scheduler(states: &[(f64, u64, Option<u64>)], trials_per_task: Option<u64>) -> Scheduler {
        let state = |(weight, trials, best_ns): &(f64, u64, Option<u64>)| State {
            weight: *weight,
            trials: *trials,
            in_flight: 0,
            best_ns: *best_ns,
            gain: 0.0,
            exhausted: false,
        };
        Scheduler { states: states.iter().map(state).collect(), trials_per_task }
    }

    #[test]
    fn tasks_without_a_program_come_first_then_heavy_ones() {
        let mut s = scheduler(&[(1.0, 4, Some(100)), (1.0, 0, None), (9.0, 4, Some(100))], None);
        assert_eq!(s.next(|_| false), Some(1));
        s.observe(1, Some(10));
        assert_eq!(s.next(|_| false), Some(2));
        s.exhaust(2);
        assert_eq!(s.next(|_| false), Some(0));
    }

    #[test]
    fn what_is_given_out_counts_until_it_comes_to_nothing() {
        let mut s = scheduler(&[(1.0, 0, None), (1.0, 4, Some(100))], Some(8));
        s.give_out(0, 3);
        assert_eq!(s.next(|_| false), Some(1), "the first batch of a task goes alone");
        s.give_out(1, 4);
        assert_eq!((s.next(|_| false), s.left(1), s.in_flight()), (None, Some(0), 7));
        s.take_back(1, 3);
        assert_eq!((s.next(|_| false), s.left(1)), (Some(1), Some(3)));
        assert_eq!(s.next(|job| job == 1), None);
    }

    #[test]
    fn trials_go_where_they_still_gain_and_end_with_the_budget() {
        let mut s = scheduler(&[(1.0, 50, Some(1000)), (1.0, 50, Some(1000))], Some(52));
        s.observe(1, Some(500));
        assert_eq!(s.next(|_| false), Some(1), "half of the time was saved, so 500 may be saved again");
        s.observe(1, Some(500));
        assert_eq!((s.left(1), s.next(|_| false)), (Some(0), Some(0)));
        s.observe(0, Some(1000));
        s.observe(0, Some(1000));
        assert_eq!(s.next(|_| false), None);
    }
}
