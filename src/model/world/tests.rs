//! A small grammar whose words move a level up and down: where it ends depends on their order.

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::graph::{Batch, Graph};
use super::train::evaluate;
use super::{World, WorldConfig, WorldGroup, WorldOptions, WorldProgram, WorldSpaces, WorldTrainer, Worlds};
use super::{decode_worlds, encode_worlds};
use crate::model::{ModelError, Position};

fn config(dynamics: bool) -> WorldConfig {
    WorldConfig { vocabulary: 12, slots: 2, width: 24, hidden: 32, features: 2, dynamics }
}

fn world(dynamics: bool, seed: u64) -> World {
    World::random(config(dynamics), WorldSpaces::default(), seed).unwrap()
}

/// Tasks where a high level is fast, or a low one, which the second word of the prompt tells. An action goes
/// up, goes down, or back to nothing; the question is told with it, and means nothing.
fn groups(count: u64, seed: u64) -> Vec<WorldGroup> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let actions: Vec<Position> =
        (0..6).map(|at| Position { question: vec![5 + at % 2], answer: vec![8, 9 + at / 2] }).collect();
    let group = |number: u64| {
        let is_high = number.is_multiple_of(2);
        let program = |_| {
            let decisions: Vec<u32> = (0..random.random_range(5..9)).map(|_| random.random_range(0..6)).collect();
            let step = |level: i32, action: &u32| [level + 1, level - 1, 0][*action as usize / 2];
            let level = decisions.iter().fold(0, step) as f32;
            let ups = decisions.iter().filter(|action| **action < 2).count() as f32;
            let speed = if is_high { level - 9.0 } else { -level - 9.0 };
            WorldProgram { decisions, features: vec![level, ups], speed: speed / 3.0 }
        };
        WorldGroup {
            place: number as f32 / count as f32,
            prompt: [1, if is_high { 2 } else { 3 }].map(|word| Position::word(vec![word])).to_vec(),
            actions: actions.clone(),
            programs: (0..24).map(program).collect(),
        }
    };
    (0..count).map(group).collect()
}

fn options() -> WorldOptions {
    WorldOptions { epochs: 40.0, learning_rate: 1e-2, groups: 4, evaluations: 4, ..WorldOptions::default() }
}

fn trained(dynamics: bool) -> World {
    let groups = groups(60, 1);
    let mut trainer = WorldTrainer::new(&world(dynamics, 1), &groups, options()).unwrap();
    let mut evaluated = 0;
    while let Some(progress) = trainer.step().unwrap() {
        assert!(progress.step <= progress.steps && progress.seconds_left >= 0.0);
        evaluated += usize::from(progress.evaluation.is_some());
    }
    assert_eq!((evaluated, trainer.counts()), (4, (54, 54 * 24, 6)));
    trainer.world().unwrap()
}

#[test]
fn dynamics_learn_a_grammar_that_sets_of_words_do_not_tell() {
    let (unseen, dynamic, end) = (groups(20, 2), trained(true), trained(false));
    assert_eq!(dynamic, trained(true), "equal seeds train equal weights");
    let unseen: Vec<&WorldGroup> = unseen.iter().collect();
    let [untrained, dynamic, end] =
        [&world(true, 1), &dynamic, &end].map(|world| evaluate(world, &unseen).unwrap().unwrap());
    assert!(dynamic.pairs > 0.9 && dynamic.pairs > end.pairs + 0.1, "{dynamic:?} {end:?}");
    assert!(end.pairs > untrained.pairs, "{end:?} {untrained:?}");
    assert!(dynamic.features > 0.8, "{dynamic:?}");
    assert!((0.52..dynamic.pairs).contains(&dynamic.pairs_at_half), "{dynamic:?}");
}

#[test]
fn fast_judgement_is_that_of_the_graph() {
    let groups = groups(3, 5);
    for dynamics in [true, false] {
        let world = world(dynamics, 4);
        let graph = Graph::new(&world).unwrap();
        let chosen: Vec<usize> = (0..24).collect();
        let members: Vec<(&WorldGroup, &[usize])> = groups.iter().map(|group| (group, chosen.as_slice())).collect();
        let batch = Batch::new(&graph, &members, &mut ChaCha8Rng::seed_from_u64(3));
        let (ranks, features, values) = graph.told_of(&batch).unwrap();
        let host = |tensor: &candle_core::Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let mut fast = [Vec::new(), Vec::new(), Vec::new()];
        for (number, group) in groups.iter().enumerate() {
            let begun = world.begin(&group.prompt, &group.actions);
            let programs: Vec<&[u32]> = group.programs.iter().map(|program| program.decisions.as_slice()).collect();
            fast[0].extend(begun.ranks(&programs).unwrap());
            fast[1].extend(begun.features(&programs).unwrap().concat());
            let early = batch.early_steps().skip(24 * number);
            let begins: Vec<&[u32]> = programs.iter().zip(early).map(|(program, steps)| &program[..steps]).collect();
            fast[2].extend(begun.values(&begins).unwrap());
        }
        let twins = [Some(ranks), Some(features), values];
        assert_eq!(twins[2].is_some(), dynamics);
        for (fast, slow) in fast.iter().zip(twins).filter_map(|(fast, slow)| Some((fast, host(&slow?)))) {
            assert_eq!(fast.len(), slow.len());
            assert!(fast.iter().zip(&slow).all(|(a, b)| (a - b).abs() < 1e-4), "{fast:?} {slow:?}");
            assert!(slow.iter().any(|x| (x - slow[0]).abs() > 1e-3));
        }
    }
}

#[test]
fn programs_are_judged_one_by_one_whatever_stands_beside_them() {
    let (world, groups) = (world(true, 6), groups(1, 7));
    let begun = world.begin(&groups[0].prompt, &groups[0].actions);
    let mut programs: Vec<Vec<u32>> = groups[0].programs.iter().map(|program| program.decisions.clone()).collect();
    // one that another begins with, one that is there twice, and one without decisions
    programs.push(programs[0][..3].to_vec());
    programs.push(programs[1].clone());
    programs.push(Vec::new());
    let all: Vec<&[u32]> = programs.iter().map(Vec::as_slice).collect();
    let together = begun.ranks(&all).unwrap();
    for (program, rank) in all.iter().zip(&together) {
        assert!((begun.ranks(&[program]).unwrap()[0] - rank).abs() < 1e-5);
    }
    assert!(begun.ranks(&[]).unwrap().is_empty());
    assert!(matches!(begun.ranks(&[&[0, 6]]), Err(ModelError::Answer { answer: 6, answers: 6 })));
    // words that it does not know tell nothing
    let strange = world.begin(&groups[0].prompt, &[Position { question: vec![99, 5], answer: vec![8] }]);
    let known = world.begin(&groups[0].prompt, &[Position { question: vec![], answer: vec![8] }]);
    assert!(strange.ranks(&[&[0]]).unwrap()[0].is_finite() && known.ranks(&[&[0]]).unwrap()[0].is_finite());
}

#[test]
fn a_run_goes_on_where_it_was() {
    let (groups, folder) = (groups(20, 8), tempfile::tempdir().unwrap());
    let path = folder.path().join("world.state");
    let mut options = options();
    options.epochs = 4.0;
    let run = |trainer: &mut WorldTrainer<'_>, most: usize| {
        (0..most).map_while(|_| trainer.step().unwrap()).last().map(|progress| progress.step)
    };
    let mut whole = WorldTrainer::new(&world(true, 1), &groups, options.clone()).unwrap();
    let steps = run(&mut whole, usize::MAX).unwrap();
    let mut half = WorldTrainer::new(&world(true, 1), &groups, options.clone()).unwrap();
    assert_eq!(run(&mut half, steps / 2), Some(steps / 2));
    half.save(&path).unwrap();
    let mut rest = WorldTrainer::resume(&path, &groups).unwrap();
    assert_eq!(run(&mut rest, usize::MAX), Some(steps));
    assert_eq!(rest.world().unwrap(), whole.world().unwrap());
    assert!(matches!(WorldTrainer::resume(&path, &groups[1..]), Err(ModelError::State(_))));
    std::fs::write(&path, "nothing").unwrap();
    assert!(matches!(WorldTrainer::resume(&path, &groups), Err(ModelError::State(_))));
}

#[test]
fn what_cannot_be_learned_from_is_refused() {
    let refused = |change: &dyn Fn(&mut WorldGroup)| {
        let mut groups = groups(4, 9);
        change(&mut groups[2]);
        WorldTrainer::new(&world(true, 1), &groups, options()).err()
    };
    let changes: [&dyn Fn(&mut WorldGroup); 5] = [
        &|group| group.prompt.clear(),
        &|group| group.programs[1].decisions.clear(),
        &|group| group.programs[1].decisions.push(6),
        &|group| group.programs[1].features.push(0.0),
        &|group| group.programs[1].speed = f32::NAN,
    ];
    for change in changes {
        assert!(matches!(refused(change), Some(ModelError::Example { index: 2, .. })));
    }
    let options = |change: &dyn Fn(&mut WorldOptions)| {
        let mut options = options();
        change(&mut options);
        WorldTrainer::new(&world(true, 1), &groups(4, 9), options).err()
    };
    assert!(matches!(options(&|o| o.members = 1), Some(ModelError::Options(_))));
    assert!(matches!(options(&|o| o.held_out = 1.0), Some(ModelError::Options(_))));
    assert!(WorldTrainer::new(&world(true, 1), &[], WorldOptions::default()).is_err());
}

#[test]
fn files_are_read_as_they_were_written_and_hostile_ones_refused() {
    let both = Worlds { dynamic: Some(world(true, 1)), end: Some(world(false, 2)) };
    for worlds in [both.clone(), Worlds { end: None, ..both.clone() }, Worlds { dynamic: None, ..both.clone() }] {
        let bytes = encode_worlds(&worlds).unwrap();
        assert_eq!(decode_worlds(&bytes).unwrap(), worlds);
        assert!(decode_worlds(&bytes[..bytes.len() - 4]).is_err());
        assert!(decode_worlds(&bytes[..40]).is_err());
    }
    assert!(decode_worlds(&encode_worlds(&Worlds::default()).unwrap()).unwrap_err().contains("no world model"));
    let text = |from: &str, to: &str| {
        let bytes = encode_worlds(&Worlds { end: None, ..both.clone() }).unwrap();
        let (from, to) = (from.as_bytes(), to.as_bytes());
        assert_eq!(from.len(), to.len());
        let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
        decode_worlds(&[&bytes[..at], to, &bytes[at + from.len()..]].concat()).unwrap_err()
    };
    assert!(text("\\\"width\\\":24", "\\\"width\\\":25").contains("shape"));
    assert!(text("\\\"hidden\\\":32", "\\\"hidden\\\": 0").contains("hidden"));
    assert!(text("\\\"dynamics\\\":true", "\\\"dynamics\\\":null").contains("invalid"));
    assert!(text("dynamic.rank.bias", "unknown.rank.bias").contains("belongs to no"));
    let changed = |name: &str, value: f32| {
        let mut tensors: BTreeMap<String, Vec<f32>> = both.dynamic.as_ref().unwrap().tensors().clone();
        tensors.get_mut(name).unwrap()[0] = value;
        World::from_tensors(config(true), WorldSpaces::default(), tensors).unwrap_err()
    };
    assert!(changed("action.input.weight", f32::NAN).contains("not finite"));
    assert!(changed("feature.deviation", 0.0).contains("above zero"));
    for sizes in [
        WorldConfig { width: usize::MAX, ..config(true) },
        WorldConfig { vocabulary: 1 << 20, ..config(true) },
        WorldConfig { features: 0, ..config(true) },
        WorldConfig { slots: 65, ..config(true) },
    ] {
        assert!(World::random(sizes, WorldSpaces::default(), 0).is_err());
    }
    let shuffled = both.shuffled(0);
    assert!(shuffled != both && shuffled == both.shuffled(0));
    let standard = WorldConfig::standard(702, 137, true);
    assert!((200_000..300_000).contains(&standard.parameters()), "{}", standard.parameters());
}
