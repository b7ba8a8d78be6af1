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
