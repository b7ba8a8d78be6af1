//! A small pool whose figures are worked out by hand.

use std::sync::Arc;

use super::{ALL, Order, Ranker, RankerKind, Replay, Seen, replay};
use crate::model::{Checkpoint, ModelControl, Worlds};
use crate::outcome::Failure;
use crate::propose::example::product;
use crate::propose::tests::checkpoint;
use crate::propose::{History, Proposer, Random};
use crate::record::{Draw, Pool, PoolProgram};
use crate::space::Space;
use crate::target::Kind;

/// Programs of times in both passes, which two samplers drew: each four, dead ends among them.
fn pool(times: &[Result<[u64; 2], ()>], draws: [[Option<usize>; 4]; 2]) -> Pool {
    let program = |number: usize, times: &Result<[u64; 2], ()>| PoolProgram {
        trace: format!("tile s0 a = {number}\n").parse().unwrap(),
        untuned: number == 0,
        draws: (0..2)
            .flat_map(|sampler| (0..4).map(move |at| (sampler, at)))
            .filter(|(sampler, at)| draws[*sampler][*at] == Some(number))
            .map(|(sampler, at)| Draw { sampler, seed: 0, at: at as u32 })
            .collect(),
        times: times.map_err(|()| (Failure::Crash, String::new())),
    };
    Pool {
        name: "product".into(),
        task: Arc::new(product()),
        space: String::new(),
        samplers: vec!["one".into(), "other".into()],
        seeds: 1,
        samples: 4,
        programs: times.iter().enumerate().map(|(number, times)| program(number, times)).collect(),
        checkpoint: String::new(),
        created_unix_s: 0,
        tilescribe: String::new(),
    }
}

fn found(pools: &[Pool]) -> Replay {
    let rankers = ["chance", "first-pass"]
        .map(|name| Ranker::new(RankerKind::named(name).unwrap(), || Err::<_, ()>(())).unwrap());
    replay(&Space::standard(), pools, &rankers, &|| {}).unwrap()
}

#[track_caller]
fn close(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-9, "{found} where {expected} was worked out");
}

/// By the second pass: 800, 400, 200, 100, and one that crashes. The first pass takes 400 for the fastest.
fn example() -> Pool {
    let times = [Ok([810, 800]), Ok([90, 400]), Ok([210, 200]), Ok([100, 100]), Err(())];
    // 100, 400 twice, a dead end; 800, 200, the crash, 200
    pool(&times, [[Some(3), Some(1), Some(1), None], [Some(0), Some(2), Some(4), Some(2)]])
}

#[test]
fn figures_are_those_that_are_worked_out_by_hand() {
    let found = found(&[example()]);
    assert_eq!((found.tasks, found.programs, found.failed), (1, 5, 1));
    close(found.untuned.quality, 100.0 / 800.0);
    let one = &found.samplers["one"];
    assert_eq!((one.draws, one.dead_ends, one.distinct), (4, 1, 2));
    assert_eq!(one.best_of.keys().copied().collect::<Vec<usize>>(), [1, 3, 4]);
    // qualities 1, 1/4, 1/4 and a hundredth
    close(one.best_of[&1].quality, (1.0f64 * 0.25 * 0.25 * 0.01).powf(0.25));
    // of four triples, three hold the 1; the best of the other is a quarter
    close(one.best_of[&3].quality, 0.25f64.powf(0.25));
    close(one.best_of[&4].quality, 1.0);
    assert_eq!(one.best_of[&4].interval, None, "a single task");
    let other = &found.samplers["other"];
    assert_eq!((other.draws, other.dead_ends, other.distinct), (4, 0, 3));
    // 1/8, 1/2, the crash, 1/2
    close(other.best_of[&1].quality, (0.125f64 * 0.5 * 0.01 * 0.5).powf(0.25));
    close(other.best_of[&3].quality, 0.5);
    let [difference] = &found.differences[..] else { panic!("one of two samplers beside the other") };
    assert_eq!((difference.sampler.as_str(), difference.other.as_str()), ("one", "other"));
    close(difference.best_of[&4].difference, 0.5);
    close(difference.best_of[&4].ratio, 2.0);
}

#[test]
fn rankers_are_held_against_the_best_that_they_could_have_chosen() {
    let found = found(&[example()]);
    let of = |sampler: &str, ranker: &str, count: usize| found.rankers[sampler][ranker][&count].quality;
    // the distinct programs of `one` are 400 and 100; by the first pass, 400 comes first
    close(of("one", "first-pass", 1), 0.25);
    close(of("one", "first-pass", 3), 1.0);
    close(of("one", "chance", 1), 0.5);
    // those of `other` are 800, 200 and the crash; 200 is the best of them
    close(of("other", "first-pass", 1), 1.0);
    close(of("other", "chance", 1), (0.25f64 * 0.01).powf(1.0 / 3.0));
    // 400, 100, 200, 800, crash by the first pass
    close(of(ALL, "first-pass", 1), 0.25);
    close(of(ALL, "first-pass", 3), 1.0);
    // of ten triples of five, six hold the best, three more the second, one the third
    close(of(ALL, "chance", 3), (0.5f64.powi(3) * 0.25).powf(0.1));
}

#[test]
fn tasks_are_averaged_and_drawn_anew_for_intervals() {
    // half as good in the other task: the pool's best is drawn by nobody but the rules
    let mut second = example();
    second.programs[0].times = Ok([50, 50]);
    let pools = [example(), second];
    let found = found(&pools);
    assert_eq!(found.tasks, 2);
    let best = &found.samplers["one"].best_of[&4];
    close(best.quality, 0.5f64.sqrt());
    let (low, high) = best.interval.unwrap();
    close(low, 0.5);
    close(high, 1.0);
    // the untuned program, 800 and 50
    close(found.untuned.quality, (0.125f64).sqrt());
    // a pool in which nothing was timed says nothing
    let nothing = pool(&[Err(()), Err(())], [[Some(0), Some(1), None, None]; 2]);
    let with_nothing = super::tests::found(&[example(), nothing]);
    assert_eq!((with_nothing.tasks, with_nothing.failed), (1, 3));
}

#[test]
fn world_models_rank_by_decisions_alone() {
    let (space, mut pool) = (Space::standard(), example());
    let drawn = Random::new(&space, 1).propose(&product(), &History::default(), 5).unwrap().candidates;
    pool.space = space.version(Kind::Cpu);
    pool.programs.iter_mut().zip(drawn).for_each(|(program, drawn)| program.trace = drawn.trace);
    let known = checkpoint(&space);
    let without = Arc::new(Checkpoint { worlds: Worlds::default(), ..(*known).clone() });
    for name in ["world", "world-end"] {
        let ranker = |checkpoint: &Arc<Checkpoint>| {
            Ranker::new(RankerKind::named(name).unwrap(), || Ok::<_, ()>(Arc::clone(checkpoint))).unwrap()
        };
        let scored = replay(&space, std::slice::from_ref(&pool), &[ranker(&known)], &|| {}).unwrap();
        // of four that are timed and one that crashes, the first four hold the second best at least
        assert!(scored.rankers[ALL][name][&4].quality > 0.49);
        let refused = replay(&space, std::slice::from_ref(&pool), &[ranker(&without)], &|| {}).unwrap_err().to_string();
        assert!(refused.contains("pretrain --world-only"), "{refused}");
        let shuffled = ranker(&known).controlled(ModelControl::ShuffledAll);
        assert!(shuffled.is_some() && ranker(&known).controlled(ModelControl::Uniform).is_none());
    }
}

#[test]
fn a_policy_with_shuffled_weights_ranks_otherwise() {
    let space = Space::standard();
    let drawn = Random::new(&space, 1).propose(&product(), &History::default(), 24).unwrap().candidates;
    let mut pool = pool(&vec![Ok([100, 100]); drawn.len()], [[Some(0), Some(1), Some(2), Some(3)]; 2]);
    pool.space = space.version(Kind::Cpu);
    pool.programs.iter_mut().zip(drawn).for_each(|(program, drawn)| program.trace = drawn.trace);
    let known = checkpoint(&space);
    let policy = Ranker::new(RankerKind::named("policy").unwrap(), || Ok::<_, ()>(known)).unwrap();
    let rankers = [policy.controlled(ModelControl::ShuffledAll).unwrap(), policy];
    let seen = Seen::new(&space, &pool, &rankers).unwrap();
    let members: Vec<usize> = (0..pool.programs.len()).collect();
    let [shuffled, trained] = [0, 1].map(|ranker| match seen.order(ranker, &members, members.len()).unwrap() {
        Order::First(order) => order,
        Order::Any => panic!("a policy prefers some to others"),
    });
    assert_ne!(shuffled, trained);
}
