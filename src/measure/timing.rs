//! How often a kernel is run, and which of its times are kept.
//!
//! Machines are noisy, always towards slower: candidates are compared by their fastest run, which is trusted
//! once several runs came close to it. The speed of a machine drifts: a candidate runs in turn with a
//! [`Reference`], a program whose time is known, and its times are normalized to the speed at which that one
//! was timed (see [`super::rounds`]).

use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::rounds::{Rounds, nanoseconds};

/// Runs of a finalist before each that is timed: fewer of long ones.
const FEWEST_BEFORE: u32 = 2;
const MOST_BEFORE: u32 = 4;
/// A kernel that follows another one runs this long before it is timed. The pool's threads fall asleep while
/// a kernel of a single thread runs, and a short kernel of several threads would be over before they are
/// awake.
const WAKING: Duration = Duration::from_micros(100);

/// Maximum number of runs of one sample.
const MOST_REPEATS: u32 = 1 << 16;

/// When to stop running a candidate.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Timing {
    /// Maximum time of all timed runs of one candidate, and of the reference in between, unless the fewest
    /// samples take longer.
    pub budget: Duration,
    /// After this long there are no further samples, even if they are fewer than the fewest.
    pub patience: Duration,
    /// Minimum number of samples.
    pub fewest: usize,
    /// Maximum number of samples.
    pub most: usize,
    /// Sampling stops once a third of the samples, and no fewer than `fewest`, are within this factor of the
    /// fastest.
    pub agreement: f64,
    /// With a reference, sampling stops once the quartiles of the ratios lie so close together that their
    /// median errs by less than this factor.
    pub certainty: f64,
    /// While the median may err by more than this factor, sampling goes on, whatever the budget.
    pub doubt: f64,
    /// Largest believable drift of the machine since the reference was timed. Beyond it, times stay as
    /// measured.
    pub most_drift: f64,
    /// The same where one of the two runs on a single core and the other one on several. Cores of a virtual
    /// machine are far apart at times, or parts of one. Then programs of several threads are slower, at most
    /// by the number of threads, and the others are not.
    pub most_drift_between_kinds: f64,
    /// A candidate slower than the incumbent by this factor is given up after `fewest` samples.
    pub hopeless: f64,
    /// Before this long nothing is certain or hopeless: another user of a core takes it away for some
    /// milliseconds.
    pub settling: Duration,
    /// The first program of a task, if it is short, runs this long before it is timed.
    pub warming: Duration,
    /// One slower by this factor is given up after a single sample, if that took `long_run` at least.
    pub lost: f64,
    /// One whose first run, the one that was checked, was slower by this factor and took `long_run` at least
    /// is not run again.
    pub abandoned: f64,
    /// A run of this length needs no other before it to be believed, and no disturbance is likely to multiply
    /// it.
    pub long_run: Duration,
    /// Shorter kernels run several times for a sample, so that reading the clock (about 50 ns) stays below 1
    /// %.
    pub shortest_sample: Duration,
    /// Maximum time of one finalist over all rounds.
    pub final_budget: Duration,
    /// Maximum number of rounds of finalists.
    pub final_rounds: usize,
    /// Finalists that were never as fast as the leader is in half of its runs leave after so many rounds.
    pub knockout: usize,
    /// Bytes of constants that a network reads from one run of a task to the next: finalists find their own
    /// as far away. With 0, where they left them.
    pub read_between: u64,
}

impl Timing {
    /// For comparisons, whose finalists differ by little and whose losers count: each may take several times
    /// as long.
    #[must_use]
    pub fn with_long_finals(self) -> Timing {
        Timing {
            final_budget: self.final_budget * 3,
            final_rounds: self.final_rounds * 3,
            knockout: usize::MAX,
            ..self
        }
    }

    /// For tasks of a network that reads so many bytes of constants from one run of a task to the next.
    #[must_use]
    pub fn of_network(self, read_between: u64) -> Timing {
        Timing { read_between, ..self }
    }

    /// For a candidate and a reference of which only one runs on several cores.
    #[must_use]
    pub(super) fn between_kinds(self) -> Timing {
        Timing { most_drift: self.most_drift_between_kinds, ..self }
    }
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            budget: Duration::from_millis(30),
            patience: Duration::from_secs(1),
            fewest: 3,
            most: 50,
            agreement: 1.02,
            certainty: 1.02,
            doubt: 1.2,
            most_drift: 2.0,
            most_drift_between_kinds: 1.25,
            hopeless: 2.0,
            settling: Duration::from_millis(4),
            warming: Duration::from_millis(20),
            lost: 4.0,
            abandoned: 8.0,
            long_run: Duration::from_millis(10),
            shortest_sample: Duration::from_micros(20),
            final_budget: Duration::from_millis(100),
            final_rounds: 30,
            knockout: 7,
            read_between: 0,
        }
    }
}

/// A program of the same task that runs in turn with a candidate.
pub(super) struct Reference<'a> {
    /// Its known time, which others are normalized by.
    pub known_ns: u64,
    /// Runs it that many times and returns how long that took.
    pub run: &'a mut dyn FnMut(u32) -> Duration,
}

impl Timing {
    /// Nanoseconds of single runs, normalized: the fastest of them is the known time of the reference, times
    /// the median ratio of neighbouring runs. A candidate given up before the reference ran keeps its time as
    /// measured. `run(n)` runs the kernel n times and returns how long that took. `warm_up`, the time of the
    /// run before, is counted only where there is no other: cold caches make a long run slower by half, not
    /// eight times.
    pub(super) fn sample(
        &self,
        incumbent_ns: Option<u64>,
        warm_up: Duration,
        run: &mut dyn FnMut(u32) -> Duration,
        mut reference: Option<Reference<'_>>,
    ) -> Vec<u64> {
        let beyond = |best: u64| warm_up.as_nanos() as f64 > best as f64 * self.abandoned;
        if warm_up >= self.long_run && incumbent_ns.is_some_and(beyond) {
            return vec![nanoseconds(warm_up, 1)];
        }
        if warm_up < self.long_run {
            run(1);
            if reference.is_none() && incumbent_ns.is_none() {
                self.warm(run);
            }
        }
        let (repeats, mut elapsed) = self.repeats(run);
        let (reference_repeats, mut reference_elapsed) =
            reference.as_mut().map_or((0, Duration::ZERO), |reference| self.repeats(reference.run));
        let known_ns = reference.as_ref().map_or(0, |reference| reference.known_ns);
        let mut rounds = Rounds::with_reference(known_ns, self.most_drift);
        let slower = |rounds: &Rounds, factor: f64| {
            incumbent_ns.is_some_and(|incumbent| rounds.best_ns() > incumbent as f64 * factor)
        };
        loop {
            rounds.push(elapsed, repeats);
            if elapsed >= self.long_run && slower(&rounds, self.lost) {
                break;
            }
            let certain = match &mut reference {
                None => rounds.agree(self.fewest, self.agreement),
                Some(Reference { run, .. }) => {
                    reference_elapsed = self.after_another(run, reference_repeats, reference_elapsed, &mut rounds);
                    rounds.push_reference(reference_elapsed, reference_repeats);
                    rounds.is_settled(self.fewest, self.certainty)
                }
            };
            let doubtful = rounds.count() < self.most && rounds.is_doubtful(self.doubt);
            let too_few = (rounds.count() < self.fewest || doubtful) && rounds.spent() < self.patience;
            let settled = rounds.spent() >= self.settling && (certain || slower(&rounds, self.hopeless));
            if !too_few && (settled || rounds.count() >= self.most || rounds.spent() >= self.budget) {
                break;
            }
            elapsed = match &reference {
                None => run(repeats),
                Some(_) => self.after_another(run, repeats, elapsed, &mut rounds),
            };
        }
        rounds.normalized_times()
    }

    /// Brings the machine to its full speed. Later times are normalized to the first program of a task, and a
    /// short one would be over before the system has given each thread a core of its own.
    fn warm(&self, run: &mut dyn FnMut(u32) -> Duration) {
        let mut spent = Duration::ZERO;
        for _ in 0..MOST_REPEATS {
            if spent >= self.warming {
                break;
            }
            spent += run(1);
        }
    }

    /// A sample of a kernel that follows another one, which evicted its data: it runs before, unless one run
    /// of it is long. `last` is the time that the same number of runs took before.
    fn after_another(
        &self,
        run: &mut dyn FnMut(u32) -> Duration,
        repeats: u32,
        last: Duration,
        rounds: &mut Rounds,
    ) -> Duration {
        let single_ns = nanoseconds(last, repeats);
        if u128::from(single_ns) < self.settling.as_nanos() {
            rounds.spend(run(runs_to_wake(single_ns)));
        }
        run(repeats)
    }

    /// Runs kernels in turn, so that what disturbs the machine disturbs all alike. A kernel's own data is
    /// evicted by the others, so each runs a few times before it is timed: after a single run some are slower
    /// by half still. The order is another one in each round, since what ran before matters all the same, and
    /// must be the same thing neither for all runs of a kernel nor for every other one.
    pub(super) fn sample_in_turn(&self, kernels: &mut [&mut dyn FnMut(u32) -> Duration]) -> Vec<Vec<u64>> {
        let counts: Vec<(u32, u32)> = kernels
            .iter_mut()
            .map(|run| {
                run(1);
                let (repeats, elapsed) = self.repeats(*run);
                (repeats, self.runs_before(nanoseconds(elapsed, repeats)))
            })
            .collect();
        // those that may still be the fastest
        let mut order: Vec<usize> = (0..kernels.len()).collect();
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let mut times = vec![Vec::new(); kernels.len()];
        let mut spent = Duration::ZERO;
        let budget = self.final_budget * u32::try_from(kernels.len()).unwrap_or(u32::MAX);
        for round in 0..self.final_rounds {
            if round >= self.fewest && spent >= budget {
                break;
            }
            if round >= self.knockout {
                keep_contenders(&mut order, &times);
                if order.len() == 1 {
                    break;
                }
            }
            order.shuffle(&mut random);
            for at in order.iter().copied() {
                let (repeats, before) = counts[at];
                spent += kernels[at](before);
                let elapsed = kernels[at](repeats);
                spent += elapsed;
                times[at].push(nanoseconds(elapsed, repeats));
            }
        }
        times
    }

    /// How often a kernel of this time runs before it is timed, where another one ran.
    fn runs_before(&self, single_ns: u64) -> u32 {
        let few =
            (self.settling.as_nanos() / u128::from(single_ns.max(1))).clamp(FEWEST_BEFORE.into(), MOST_BEFORE.into());
        u32::try_from(few).unwrap_or(MOST_BEFORE).max(runs_to_wake(single_ns))
    }

    /// How many runs make a sample long enough, and how long they took.
    fn repeats(&self, run: &mut dyn FnMut(u32) -> Duration) -> (u32, Duration) {
        let mut repeats = 1;
        loop {
            let elapsed = run(repeats);
            if elapsed >= self.shortest_sample || repeats >= MOST_REPEATS {
                return (repeats, elapsed);
            }
            let single = (elapsed.as_nanos() as u64 / u64::from(repeats)).max(1);
            let wanted = (self.shortest_sample.as_nanos() as u64).div_ceil(single);
            // at least doubled: a sample that falls short by little would be tried again and again
            repeats = u32::try_from(wanted).unwrap_or(u32::MAX).clamp(repeats * 2, MOST_REPEATS);
        }
    }
}

/// Of kernels, those whose fastest run is no slower than half of the runs of the one that is fastest by
/// these.
fn keep_contenders(kernels: &mut Vec<usize>, times: &[Vec<u64>]) {
    let median = |kernel: &usize| {
        let mut sorted = times[*kernel].clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    };
    let Some(leader) = kernels.iter().filter_map(median).min() else { return };
    kernels.retain(|kernel| times[*kernel].iter().any(|ns| *ns <= leader));
}

/// How often a kernel of this time is run to wake the threads of the pool: once at least.
fn runs_to_wake(single_ns: u64) -> u32 {
    u32::try_from(WAKING.as_nanos().div_ceil(u128::from(single_ns.max(1)))).unwrap_or(u32::MAX)
}

/// Runs `once` n times by the clock.
pub(super) fn by_the_clock(once: &mut dyn FnMut(), count: u32) -> Duration {
    let start = Instant::now();
    for _ in 0..count {
        once();
    }
    start.elapsed()
}

#[cfg(test)]
mod tests;
