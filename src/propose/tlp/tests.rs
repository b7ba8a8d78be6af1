use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{Model, Tlp, tokens};
use crate::propose::example::{fall, product, slope};
use crate::propose::{History, Proposer, Random};
use crate::space::{Space, Trace};

#[test]
fn decisions_tell_what_is_fast_and_a_new_machine_begins_with_what_others_know() {
    let (space, task) = (Space::standard(), product());
    let drawn = Random::new(&space, 1).propose(&task, &History::default(), 120).unwrap();
    let programs: Vec<Trace> = drawn.candidates.into_iter().map(|candidate| candidate.trace).collect();
    let (seen, unseen) = programs.split_at(80);
    let mut model = Model::random(&mut ChaCha8Rng::seed_from_u64(1));
    let pairs = |model: &Model, machine: &str, of: &[Trace]| {
        let each = of.iter().flat_map(|a| of.iter().map(move |b| (a, b))).filter(|(a, b)| slope(a) < slope(b));
        let right = |(a, b): &(&Trace, &Trace)| model.score(machine, &tokens(a)) > model.score(machine, &tokens(b));
        each.clone().filter(right).count() as f64 / each.count() as f64
    };
    let before = pairs(&model, "one", unseen);
    for _ in 0..10 {
        for (a, b) in seen.iter().flat_map(|a| seen.iter().map(move |b| (a, b))) {
            if slope(a) < slope(b) {
                model.prefer("one", &tokens(a), &tokens(b), 1.0);
            }
        }
    }
    let after = pairs(&model, "one", unseen);
    assert!(after > 0.8 && after > before, "{before} {after}");
    assert!((pairs(&model, "another", unseen) - after).abs() < 1e-9);
}

#[test]
fn it_gets_faster_on_a_slope() {
    let space = Space::standard();
    let (history, bests) = fall(&mut Tlp::new(&space, 1), slope, 8, 8);
    assert_eq!(history.len(), 64);
    assert!(bests[7] * 4 < bests[0] * 3, "{bests:?}");
}
