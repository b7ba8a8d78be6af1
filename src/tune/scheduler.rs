//! Which task gets the next trials: the one where weight × time × expected improvement is largest, or that
//! for each second where time is what there is too little of.

use super::Job;
use super::improvement::Improvement;
use crate::propose::History;

/// Shares trials between tasks, in the manner of Ansor's task scheduler (Zheng et al., OSDI 2020, section 6):
/// by what another trial is expected to save of the network's time. What it saves is estimated from what the
/// last ones did and from what searches gain after as many trials ([`Improvement`]), and divided by what it
/// costs in seconds (as expected improvement per second: Snoek et al., NeurIPS 2012, section 3.2).
pub(super) struct Scheduler {
    states: Vec<State>,
    trials_per_task: Option<u64>,
    /// Whether a trial that takes longer has to gain more.
    by_second: bool,
}

struct State {
    weight: f64,
    /// Tasks that it is searched for; 0 where another one is in its place.
    stands_for: u64,
    trials: u64,
    /// Trials that have been given out.
    in_flight: u64,
    best_ns: Option<u64>,
    improvement: Improvement,
    /// Trials of this run, and what they took together, proposing included.
    timed: u64,
    seconds: f64,
    exhausted: bool,
}

/// A task is left for last once this many of its candidates failed without a single success.
const HOPELESS_TRIALS: u64 = 64;
/// What a trial is taken to take before one was made, and at least.
const UNKNOWN_SECONDS: f64 = 0.1;
const LEAST_SECONDS: f64 = 1e-6;

/// A task that stands for others may have as many times as many trials as there are of them, at most.
const MOST_TIMES: u64 = 3;

/// Trials of a task that stands for so many, where each may have `per_task`.
fn most_of(per_task: u64, stands_for: u64) -> u64 {
    // a single program is a choice, and not a search
    if per_task <= 1 { per_task.min(stands_for) } else { per_task * stands_for.min(MOST_TIMES) }
}

impl Scheduler {
    /// `by_second` where the budget is a time.
    pub fn new(jobs: &[Job], histories: &[History], trials_per_task: Option<u64>, by_second: bool) -> Scheduler {
        let state = |(job, history): (&Job, &History)| State {
            weight: job.weight,
            stands_for: 1,
            trials: history.len() as u64,
            in_flight: 0,
            best_ns: history.best().map(|(_, ns)| ns),
            improvement: Improvement::default(),
            timed: 0,
            seconds: 0.0,
            exhausted: false,
        };
        Scheduler { states: jobs.iter().zip(histories).map(state).collect(), trials_per_task, by_second }
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
        let State { trials, in_flight, stands_for, .. } = self.states[job];
        self.trials_per_task.map(|most| most_of(most, stands_for).saturating_sub(trials + in_flight))
    }

    /// Trials of all tasks, where each may have so many.
    pub fn most_trials(&self, per_task: u64) -> u64 {
        // a task for which another one is searched takes one program over
        self.states.iter().map(|state| most_of(per_task, state.stands_for).max(1)).sum()
    }

    /// A task is searched in the place of another one: its trials are worth more, and there may be more of
    /// them.
    pub fn follow(&mut self, job: usize, leader: usize) {
        let weight = std::mem::take(&mut self.states[job].weight);
        self.states[leader].weight += weight;
        self.states[leader].stands_for += 1;
        (self.states[job].stands_for, self.states[job].exhausted) = (0, true);
    }

    /// Whether nothing is known of a task that may have a trial.
    pub fn has_untried(&self) -> bool {
        let untried = |state: &State| state.trials == 0 && !state.exhausted;
        self.trials_per_task != Some(0) && self.states.iter().any(untried)
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

    /// Takes note of a trial that took so long, after which the task's best is `best_ns`.
    pub fn observe(&mut self, job: usize, best_ns: Option<u64>, seconds: f64) {
        let state = &mut self.states[job];
        if let (Some(before), Some(now)) = (state.best_ns, best_ns) {
            state.improvement.observe(state.trials, before, now);
        }
        state.trials += 1;
        state.best_ns = best_ns;
        state.timed += 1;
        state.seconds += seconds;
    }

    /// The part of the network's time that a second of the next trials of a task is expected to save: what
    /// one more is worth. Infinite as long as a task has no correct program that may have one.
    pub fn gain_per_second(&self, job: usize) -> f64 {
        let whole: f64 = self.states.iter().map(|state| state.weight * state.best_ns.unwrap_or(0) as f64).sum();
        self.saved_ns(job) / self.seconds_of(job) / whole.max(f64::MIN_POSITIVE)
    }

    fn expected_gain(&self, job: usize) -> f64 {
        let cost = if self.by_second { self.seconds_of(job) } else { 1.0 };
        self.saved_ns(job) / cost
    }

    /// Nanoseconds of a network run that the next trial may save. A task without a correct program comes
    /// first.
    fn saved_ns(&self, job: usize) -> f64 {
        let state = &self.states[job];
        let Some(best) = state.best_ns else {
            return if state.trials < HOPELESS_TRIALS { f64::INFINITY } else { 0.0 };
        };
        state.weight * best as f64 * state.improvement.next(state.trials + state.in_flight)
    }

    /// What a trial takes, of all tasks.
    pub fn mean_seconds(&self) -> f64 {
        let sum = |of: &dyn Fn(&State) -> f64| self.states.iter().map(of).sum::<f64>();
        let timed = sum(&|state| state.timed as f64);
        if timed > 0.0 { sum(&|state| state.seconds) / timed } else { UNKNOWN_SECONDS }
    }

    /// What a trial of a task takes: the mean of its own, and of one as all tasks' are.
    fn seconds_of(&self, job: usize) -> f64 {
        let common = self.mean_seconds();
        let State { timed, seconds, .. } = self.states[job];
        ((seconds + common) / (timed + 1) as f64).max(LEAST_SECONDS)
    }
}

#[cfg(test)]
mod tests {
    use super::{Improvement, Scheduler, State};

    fn scheduler(states: &[(f64, u64, Option<u64>)], trials_per_task: Option<u64>) -> Scheduler {
        let state = |(weight, trials, best_ns): &(f64, u64, Option<u64>)| State {
            weight: *weight,
            stands_for: 1,
            trials: *trials,
            in_flight: 0,
            best_ns: *best_ns,
            improvement: Improvement::default(),
            timed: 0,
            seconds: 0.0,
            exhausted: false,
        };
        Scheduler { states: states.iter().map(state).collect(), trials_per_task, by_second: false }
    }

    #[test]
    fn tasks_without_a_program_come_first_then_heavy_ones() {
        let mut s = scheduler(&[(1.0, 4, Some(100)), (1.0, 0, None), (9.0, 4, Some(100))], None);
        assert_eq!(s.next(|_| false), Some(1));
        s.observe(1, Some(10), 0.1);
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
        s.observe(1, Some(500), 0.1);
        assert_eq!(s.next(|_| false), Some(1), "half of the time was saved, so more may be saved again");
        s.observe(1, Some(500), 0.1);
        assert_eq!((s.left(1), s.next(|_| false)), (Some(0), Some(0)));
        s.observe(0, Some(1000), 0.1);
        s.observe(0, Some(1000), 0.1);
        assert_eq!(s.next(|_| false), None);
    }

    #[test]
    fn where_time_is_short_a_trial_that_takes_longer_has_to_gain_more() {
        let observed = |by_second| {
            let mut s = scheduler(&[(3.0, 4, Some(100)), (1.0, 4, Some(100))], None);
            s.by_second = by_second;
            for _ in 0..9 {
                s.observe(0, Some(100), 1.0);
                s.observe(1, Some(100), 0.1);
            }
            s.next(|_| false)
        };
        assert_eq!((observed(false), observed(true)), (Some(0), Some(1)));
    }

    #[test]
    fn a_second_is_worth_less_and_less() {
        let mut s = scheduler(&[(1.0, 0, None), (3.0, 1, Some(100))], None);
        assert_eq!(s.gain_per_second(0), f64::INFINITY, "a task without a program is worth any time");
        s.observe(0, Some(100), 0.5);
        // a quarter of the network's time, of which the next program of half a second is expected to save
        // 1 - exp(-0.104)
        let worth = s.gain_per_second(0);
        assert!((worth - 0.25 * (1.0 - (-0.104f64).exp()) / 0.5).abs() < 1e-6, "{worth}");
        for _ in 0..50 {
            let before = s.gain_per_second(0);
            s.observe(0, Some(100), 0.5);
            assert!(s.gain_per_second(0) < before);
        }
        // of 51 programs: 0.104 / 51^1.16
        assert!((0.0003..0.0006).contains(&s.gain_per_second(0)), "{}", s.gain_per_second(0));
    }
}
