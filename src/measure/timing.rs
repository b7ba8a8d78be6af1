//! How often a kernel is run, and what of it is kept.
//!
//! Machines are noisy, always towards slower: the fastest run is the figure that candidates are compared by, and it is trusted
//! once several runs came close to it. And their pace drifts: so a candidate runs in turn with a [`Reference`], a program whose time is known, and what it
//! took is told at the pace at which that one was timed (see [`super::rounds`]).

use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::rounds::{Rounds, nanoseconds};

/// Runs of a finalist before each that is timed: fewer of long ones.
const FEWEST_BEFORE: u32 = 2;
const MOST_BEFORE: u32 = 4;

/// When to stop running a candidate.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Timing {
    /// What all timed runs of one candidate, and of the reference in between, may take together, unless the fewest samples take longer.
    pub budget: Duration,
    /// After this long there are no further samples, even if they are fewer than the fewest.
    pub patience: Duration,
    /// At least so many samples.
    pub fewest: usize,
    /// At most so many.
    pub most: usize,
    /// Enough is enough when a third of the samples, and no fewer than `fewest`, are within this factor of the fastest.
    pub agreement: f64,
    /// Beside a reference, enough is enough if the quartiles of the ratios lie so close together that their median errs by less than this
    /// factor.
    pub certainty: f64,
    /// While it may err by more than this factor, there are further samples, whatever the budget.
    pub doubt: f64,
    /// The most that the pace of the machine is believed to have changed since the reference was timed: beyond it, times are told as measured.
    pub most_drift: f64,
    /// A candidate slower than the incumbent by this factor is given up after `fewest` samples.
    pub hopeless: f64,
    /// Before this long nothing is certain or hopeless: another user of a core takes it away for some milliseconds.
    pub settling: Duration,
    /// One slower by this factor is given up after a single sample, if that took `long_run` at least.
    pub lost: f64,
    /// One whose first run, the one that was checked, was slower by this factor and took `long_run` at least is not run again.
    pub abandoned: f64,
    /// A run of this length needs no other before it to be believed, and no disturbance is likely to multiply it.
    pub long_run: Duration,
    /// Shorter kernels run several times for a sample, so that reading the clock (about 50 ns) stays below 1 %.
    pub shortest_sample: Duration,
    /// What one finalist may take, over all rounds.
    pub final_budget: Duration,
    /// At most so many rounds of finalists.
    pub final_rounds: usize,
}

impl Timing {
    /// For comparisons, whose finalists differ by little: each may take several times as long.
    #[must_use]
    pub fn with_long_finals(self) -> Timing {
        Timing { final_budget: self.final_budget * 3, final_rounds: self.final_rounds * 3, ..self }
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
            hopeless: 2.0,
            settling: Duration::from_millis(4),
            lost: 4.0,
            abandoned: 8.0,
            long_run: Duration::from_millis(10),
            shortest_sample: Duration::from_micros(20),
            final_budget: Duration::from_millis(100),
            final_rounds: 30,
        }
    }
}

/// A program of the same task that runs in turn with a candidate.
pub(super) struct Reference<'a> {
    /// What it is known to take, at the pace at which times are told.
    pub known_ns: u64,
    /// As a candidate's.
    pub run: &'a mut dyn FnMut(u32) -> Duration,
}

impl Timing {
    /// Nanoseconds of single runs, at the reference's pace: the fastest of them is what the reference is known to take, times the median ratio
    /// of neighbouring runs. What is given up before the reference ran is told as measured. `run(n)` runs the kernel n times and says how long
    /// that took. `warm_up`, how long the run before took, is counted only where it is all that there is: cold caches make a long run slower by
    /// half, not eight times.
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
        }
        let (repeats, mut elapsed) = self.repeats(run);
        let reference_repeats = reference.as_mut().map_or(0, |reference| self.repeats(reference.run).0);
        let known_ns = reference.as_ref().map_or(0, |reference| reference.known_ns);
        let mut rounds = Rounds::beside(known_ns, self.most_drift);
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
                    let elapsed = self.after_another(run, reference_repeats, known_ns, &mut rounds);
                    rounds.push_beside(elapsed, reference_repeats);
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
                Some(_) => self.after_another(run, repeats, nanoseconds(elapsed, repeats), &mut rounds),
            };
        }
        rounds.told()
    }

    /// A sample of a kernel whose data another one has evicted: it runs once before, unless one run of it is long.
    fn after_another(
        &self,
        run: &mut dyn FnMut(u32) -> Duration,
        repeats: u32,
        about_ns: u64,
        rounds: &mut Rounds,
    ) -> Duration {
        if u128::from(about_ns) < self.settling.as_nanos() {
            rounds.spend(run(1));
        }
        run(repeats)
    }

    /// Runs kernels in turn, so that what disturbs the machine disturbs all alike. A kernel's own data is evicted by the others, so each runs a few
    /// times before it is timed: after a single run some are slower by half still. The order is another one in each round, since what ran before
    /// matters all the same, and must be the same thing neither for all runs of a kernel nor for every other one.
    pub(super) fn sample_in_turn(&self, kernels: &mut [&mut dyn FnMut(u32) -> Duration]) -> Vec<Vec<u64>> {
        let counts: Vec<(u32, u32)> = kernels
            .iter_mut()
            .map(|run| {
                run(1);
                let (repeats, elapsed) = self.repeats(*run);
                let before = self.settling.as_nanos() * u128::from(repeats) / elapsed.as_nanos().max(1);
                (repeats, u32::try_from(before).unwrap_or(u32::MAX).clamp(FEWEST_BEFORE, MOST_BEFORE))
            })
            .collect();
        let mut order: Vec<usize> = (0..kernels.len()).collect();
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let mut times = vec![Vec::new(); kernels.len()];
        let mut spent = Duration::ZERO;
        let budget = self.final_budget * u32::try_from(kernels.len()).unwrap_or(u32::MAX);
        for round in 0..self.final_rounds {
            if round >= self.fewest && spent >= budget {
                break;
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

    /// How many runs make a sample long enough, and how long so many took.
    fn repeats(&self, run: &mut dyn FnMut(u32) -> Duration) -> (u32, Duration) {
        let mut repeats = 1;
        loop {
            let elapsed = run(repeats);
            if elapsed >= self.shortest_sample || repeats >= 1 << 16 {
                return (repeats, elapsed);
            }
            let single = (elapsed.as_nanos() as u64 / u64::from(repeats)).max(1);
            let wanted = (self.shortest_sample.as_nanos() as u64).div_ceil(single);
            // at least doubled: a sample that falls short by little would be tried again and again
            repeats = u32::try_from(wanted).unwrap_or(u32::MAX).clamp(repeats * 2, 1 << 16);
        }
    }
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
        Timing { settling: Duration::ZERO, ..Timing::default() }
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
        let timing = Timing { budget: Duration::from_millis(1), ..Timing::default() };
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
        let timing = Timing { final_rounds: 20, ..Timing::default() };
        let run = |name: char, micros: u64| {
            let log = &log;
            move |count: u32| {
                log.borrow_mut().push((name, count));
                Duration::from_micros(micros * u64::from(count))
            }
        };
        let (mut short, mut middle, mut long) = (run('a', 30), run('b', 60), run('c', 3000));
        let times = timing.sample_in_turn(&mut [&mut short, &mut middle, &mut long]);
        assert_eq!(times, vec![vec![30_000; 20], vec![60_000; 20], vec![3_000_000; 20]]);
        let log = log.borrow();
        let turns: Vec<&[(char, u32)]> = log[6..].chunks(2).collect();
        assert_eq!(turns.len(), 60);
        for (number, turn) in turns.iter().enumerate() {
            let before = if turn[0].0 == 'c' { FEWEST_BEFORE } else { MOST_BEFORE };
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
    fn times_are_told_at_the_pace_of_the_reference() {
        // the machine falls to half its speed after some time: what was 100 us takes 200, the reference 300 instead of 150
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
