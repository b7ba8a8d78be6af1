use std::collections::BTreeMap;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{Agent, Arms, Bandits, Harl, Taken, structural_sites};
use crate::propose::example::{beats_chance, product};
use crate::propose::replay::steps;
use crate::space::{Decision, Space, Untuned, Words};

#[test]
fn the_structure_is_what_changes_the_questions() {
    let (space, task) = (Space::standard(), product());
    let (untuned, _) = space.drive(&task, &mut Untuned);
    let mut sites = BTreeMap::new();
    structural_sites(&space, &task, &untuned, &mut sites);
    assert!(sites.keys().all(|site| untuned.0.iter().any(|choice| choice.site == *site)));
    let is_structural = |text: &str| sites.get(&text.parse::<Words>().unwrap()).copied();
    assert_eq!((is_structural("vector s0"), is_structural("tile s0 a")), (Some(true), None), "{sites:?}");
    assert!(sites.values().any(|structural| !structural), "some names only say how: {sites:?}");
}

#[test]
fn bandits_try_what_is_new_then_what_is_good() {
    let structural = BTreeMap::new();
    let (site, values): (Words, [Words; 3]) = ("order s0".into(), ["a".into(), "b".into(), "c".into()]);
    let decision = Decision { site: site.clone(), candidates: values.to_vec(), default: 0, before: 0, rule: 0 };
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let arm = |at: usize, count: f64, mean: f64| ((site.clone(), values[at].clone()), (count, count * mean));
    let bandits = Bandits { structural: &structural, arms: Arms::from([arm(0, 9.0, 0.9), arm(2, 9.0, 0.5)]) };
    assert_eq!(bandits.pick(&decision, &mut rng), 1, "what was never tried");
    let arms = Arms::from([arm(0, 9.0, 0.9), arm(1, 9.0, 0.4), arm(2, 9.0, 0.5)]);
    assert_eq!(Bandits { structural: &structural, arms }.pick(&decision, &mut rng), 0);
    let arms = Arms::from([arm(0, 500.0, 0.5), arm(1, 1.0, 0.4), arm(2, 500.0, 0.5)]);
    assert_eq!(Bandits { structural: &structural, arms }.pick(&decision, &mut rng), 1, "what is hardly known");
}

#[test]
fn the_actor_prefers_steps_that_paid() {
    let (space, task) = (Space::standard(), product());
    let (untuned, _) = space.drive(&task, &mut Untuned);
    let mut all = steps(&space, &task, &untuned, 1);
    all.retain(|step| step.value.as_number().is_some());
    let mut agent = Agent::new();
    let even = agent.policy(&all);
    assert!(even.iter().all(|chance| (chance - 1.0 / all.len() as f32).abs() < 1e-6));
    let mut advantages = Vec::new();
    for _ in 0..60 {
        let chances = agent.policy(&all);
        let taken = Taken { before: vec![8.0, 16.0], steps: all.clone(), chances, choice: 0 };
        advantages.push(agent.learn(&taken, 0.3, None));
    }
    assert!(agent.policy(&all)[0] > 3.0 * even[0]);
    assert!(advantages[59] < advantages[0], "the critic comes to expect it: {advantages:?}");
}

#[test]
fn it_is_better_than_chance() {
    let space = Space::standard();
    beats_chance(&mut Harl::new(&space, 1));
}
