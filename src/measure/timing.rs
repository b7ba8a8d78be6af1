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
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::{FEWEST_BEFORE, MOST_BEFORE, Reference, Timing};

    /// A kernel that takes these times, one after the other, the last one for ever.
    fn script(times_ns: &'static [u64]) -> impl FnMut(u32) -> Duration {
        let mut at = 0;
        move |count| {
            let mut total = 0;
            for _ in 0..count {
                total += times_ns[at.min(times_ns.len() - 1)];
                at += 1;
            }
            Duration::from_nanos(total)
        }
    }

    const COLD: Duration = Duration::ZERO;

    /// Believes what it sees at once.
    fn hasty() -> Timing {
        Timing { settling: Duration::ZERO, warming: Duration::ZERO, ..Timing::default() }
    }

    #[test]
    fn long_runs_that_are_lost_are_not_repeated() {
        let long = &[19_000_000];
        let timing = hasty();
        let warm = Duration::from_millis(19);
        assert_eq!(timing.sample(Some(4_000_000), warm, &mut script(long), None), [19_000_000]);
        assert_eq!(timing.sample(Some(6_000_000), warm, &mut script(long), None).len(), timing.fewest);
        let short = &[90_000];
        assert_eq!(timing.sample(Some(20_000), COLD, &mut script(short), None).len(), timing.fewest);
    }

    #[test]
    fn far_too_slow_candidates_run_once() {
        let timing = hasty();
        let mut never = |_| panic!("there is nothing left to learn");
        assert_eq!(timing.sample(Some(1_000_000), Duration::from_millis(19), &mut never, None), [19_000_000]);
        let short = Duration::from_micros(900);
        assert_eq!(timing.sample(Some(10_000), short, &mut script(&[90_000]), None).len(), timing.fewest);
    }

    #[test]
    fn the_first_run_is_discarded_and_agreement_ends_it() {
        let times = hasty().sample(None, COLD, &mut script(&[9_000_000, 100_000]), None);
        assert_eq!(times, vec![100_000; 6]);
    }

    #[test]
    fn hopeless_candidates_stop_early() {
        let timing = Timing { budget: Duration::from_secs(1), agreement: 1.0, ..hasty() };
        let slow = &[1, 400_000, 400_001, 400_002, 400_003, 400_004, 400_005, 400_006];
        assert_eq!(timing.sample(Some(100_000), COLD, &mut script(slow), None).len(), timing.fewest);
        assert!(timing.sample(Some(300_000), COLD, &mut script(slow), None).len() > timing.fewest);
    }

    #[test]
    fn a_disturbance_makes_nothing_hopeless() {
        // for 3 ms a core is missing
        let mut disturbed = vec![1_000_000; 4];
        disturbed.push(100_000);
        let times = Timing::default().sample(Some(100_000), COLD, &mut script(disturbed.leak()), None);
        assert_eq!(times.iter().min(), Some(&100_000), "{times:?}");
    }

    #[test]
    fn short_kernels_are_timed_in_batches() {
        let mut longest = 0;
        let mut run = script(&[200]);
        let times = Timing::default().sample(
            None,
            COLD,
            &mut |count| {
                longest = longest.max(count);
                run(count)
            },
            None,
        );
        assert!(times.iter().all(|t| *t == 200));
        assert!(longest >= 100, "20 us are 100 runs, not {longest}");
    }

    #[test]
    fn noise_is_bounded_by_budget_and_count() {
        let timing = Timing { budget: Duration::from_millis(1), warming: Duration::ZERO, ..Timing::default() };
        let falling = &[1, 300_000, 290_000, 280_000, 270_000, 260_000, 250_000];
        assert_eq!(timing.sample(None, COLD, &mut script(falling), None).len(), 4);
    }

    #[test]
    fn patience_ends() {
        let slow = &[1, 3_000_000_000];
        assert_eq!(Timing::default().sample(None, COLD, &mut script(slow), None).len(), 1);
    }

    #[test]
    fn finalists_run_in_turn_each_after_others_now_and_then() {
        let log = std::cell::RefCell::new(Vec::new());
        let timing = Timing { final_rounds: 20, knockout: usize::MAX, ..Timing::default() };
        let run = |name: char, micros: u64| {
            let log = &log;
            move |count: u32| {
                log.borrow_mut().push((name, count));
                Duration::from_micros(micros * u64::from(count))
            }
        };
        let (mut short, mut middle, mut long) = (run('a', 22), run('b', 60), run('c', 3000));
        let times = timing.sample_in_turn(&mut [&mut short, &mut middle, &mut long]);
        assert_eq!(times, vec![vec![22_000; 20], vec![60_000; 20], vec![3_000_000; 20]]);
        let log = log.borrow();
        let turns: Vec<&[(char, u32)]> = log[6..].chunks(2).collect();
        assert_eq!(turns.len(), 60);
        for (number, turn) in turns.iter().enumerate() {
            // so that sleeping threads are awake
            let before = match turn[0].0 {
                'a' => 5,
                'b' => MOST_BEFORE,
                _ => FEWEST_BEFORE,
            };
            assert_eq!((turn[0].1, turn[1]), (before, (turn[0].0, 1)), "turn {number}");
        }
        for round in turns.chunks(3) {
            let names: BTreeSet<char> = round.iter().map(|turn| turn[0].0).collect();
            assert_eq!(names.len(), 3);
        }
        // each one comes first, in even and in odd rounds
        for (name, odd) in ['a', 'b', 'c'].into_iter().flat_map(|name| [(name, 0), (name, 1)]) {
            assert!(turns.chunks(3).skip(odd).step_by(2).any(|round| round[0][0].0 == name), "{name} {odd}");
        }
    }

    #[test]
    fn times_are_normalized_to_the_reference() {
        // the machine falls to half its speed after some time: what was 100 us takes 200, the reference 300
        // instead of 150
        let clock = std::cell::Cell::new(0);
        let kernel = |fast_ns: u64| {
            let clock = &clock;
            move |count: u32| {
                let single = if clock.get() < 1_000_000 { fast_ns } else { 2 * fast_ns };
                let taken = single * u64::from(count);
                clock.set(clock.get() + taken);
                Duration::from_nanos(taken)
            }
        };
        for start in [0, 900_000, 5_000_000] {
            clock.set(start);
            let (mut run, mut beside) = (kernel(100_000), kernel(150_000));
            let reference = Reference { known_ns: 150_000, run: &mut beside };
            let times = Timing::default().sample(Some(120_000), COLD, &mut run, Some(reference));
            assert_eq!(times.iter().min(), Some(&100_000), "from {start}: {times:?}");
            assert!(times.len() >= Timing::default().fewest);
        }
        // at half speed, nobody takes it for hopeless
        clock.set(5_000_000);
        let timing = Timing { agreement: 1.0, ..Timing::default() };
        let (mut run, mut beside) = (kernel(140_000), kernel(150_000));
        let reference = Reference { known_ns: 150_000, run: &mut beside };
        assert!(timing.sample(Some(100_000), COLD, &mut run, Some(reference)).len() > timing.fewest);
    }

    /// A kernel of two threads, 4 us, and one of a single thread, 7 us, while which the second thread falls
    /// asleep. It takes 60 us to wake up.
    #[test]
    fn a_sleeping_thread_makes_nothing_fast() {
        let awake_for = std::cell::Cell::new(0);
        let of_two_threads = || {
            |count: u32| {
                let before = awake_for.get();
                for _ in 0..count {
                    awake_for.set(awake_for.get() + if awake_for.get() < 60_000 { 7_000 } else { 4_000 });
                }
                Duration::from_nanos(awake_for.get() - before)
            }
        };
        let of_one_thread = || {
            |count: u32| {
                awake_for.set(0);
                Duration::from_nanos(7_000 * u64::from(count))
            }
        };
        let fastest = |times: Vec<u64>| times.into_iter().min();
        let timing = Timing::default();
        let (mut one, mut two) = (of_one_thread(), of_two_threads());
        let beside = Reference { known_ns: 4_000, run: &mut two };
        assert_eq!(fastest(timing.sample(Some(4_000), COLD, &mut one, Some(beside))), Some(7_000));
        let (mut one, mut two) = (of_one_thread(), of_two_threads());
        let beside = Reference { known_ns: 7_000, run: &mut one };
        assert_eq!(fastest(timing.sample(Some(7_000), COLD, &mut two, Some(beside))), Some(4_000));
        let (mut one, mut two) = (of_one_thread(), of_two_threads());
        let timing = Timing { knockout: usize::MAX, ..timing };
        let times = timing.sample_in_turn(&mut [&mut one, &mut two]);
        assert!(times[0].iter().all(|ns| *ns == 7_000) && times[1].iter().all(|ns| *ns == 4_000), "{times:?}");
        // nor is the first program recorded as slow, before the threads have found cores
        awake_for.set(0);
        let times = timing.sample(None, COLD, &mut of_two_threads(), None);
        assert!(times.iter().all(|ns| *ns == 4_000), "{times:?}");
    }

    #[test]
    fn finalists_that_cannot_win_leave() {
        let timing = Timing::default();
        let in_turn = |timing: &Timing| {
            let [mut slow, mut best, mut equal] = [&[30_000], &[20_000], &[20_000]].map(|ns| script(ns));
            let times = timing.sample_in_turn(&mut [&mut slow, &mut best, &mut equal]);
            [0, 1, 2].map(|at: usize| times[at].len())
        };
        assert_eq!(in_turn(&timing), [timing.knockout, timing.final_rounds, timing.final_rounds]);
        let all = timing.with_long_finals();
        assert_eq!(in_turn(&all), [all.final_rounds; 3], "where losers count they stay");
    }

    #[test]
    fn what_slows_down_threads_alone_is_no_drift_of_a_program_without() {
        // the second core is away all the time, so that the reference takes 1.8 times as long
        let (mut run, mut beside) = (script(&[13_000]), script(&[13_000]));
        let known_ns = 7_200;
        let reference = Reference { known_ns, run: &mut beside };
        let times = Timing::default().between_kinds().sample(Some(known_ns), COLD, &mut run, Some(reference));
        assert_eq!(times.iter().min(), Some(&13_000), "{times:?}");
        // a drift that both may have met is one
        let (mut run, mut beside) = (script(&[6_000]), script(&[8_000]));
        let reference = Reference { known_ns, run: &mut beside };
        let times = Timing::default().between_kinds().sample(Some(known_ns), COLD, &mut run, Some(reference));
        assert_eq!(times.iter().min(), Some(&5_400), "{times:?}");
    }

    #[test]
    fn a_disturbed_reference_makes_nothing_fast() {
        // for its first runs the reference waits for a core, the candidate never does
        let mut beside = vec![20_000_000; 7];
        beside.push(150_000);
        let (mut run, mut beside) = (script(&[100_000]), script(beside.leak()));
        let reference = Reference { known_ns: 150_000, run: &mut beside };
        let times = Timing::default().sample(Some(120_000), COLD, &mut run, Some(reference));
        assert_eq!(times.iter().min(), Some(&100_000), "{times:?}");
        // if that never ends, times are as measured
        let (mut run, mut beside) = (script(&[100_000]), script(&[20_000_000]));
        let reference = Reference { known_ns: 150_000, run: &mut beside };
        let times = Timing::default().sample(Some(120_000), COLD, &mut run, Some(reference));
        assert_eq!(times.iter().min(), Some(&100_000), "{times:?}");
        assert!(times.len() > Timing::default().fewest && times.len() <= Timing::default().most);
    }
}
