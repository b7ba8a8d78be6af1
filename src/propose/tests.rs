//! What holds for every method of the registry: whoever adds one has it tested.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::example::{ROUGH_CYCLES, fall, product, rough};
use super::{
    History, METHODS, Make, Method, Proposal, Proposer, Purpose, Random, Searcher, shipped_checkpoint, versions,
};
use crate::language::{Language, tokenizer_json};
use crate::model::{
    Checkpoint, Config, EstimatorOptions, Group, Model, ModelControl, World, WorldConfig, WorldSpaces, Worlds,
    train_estimator,
};
use crate::rank::{FEATURES, features};
use crate::space::{Next, Restriction, Space, Trace};
use crate::target::{Kind, Task, avx512};

/// Small models of random weights, and an estimator that knows a few programs, whose times are made up: a
/// method must keep its promises whatever they say.
pub fn checkpoint(space: &Space) -> Arc<Checkpoint> {
    let language = Language::standard();
    let config = Config::standard(language.vocabulary().len());
    let drawn = Random::new(space, 1).propose(&product(), &History::default(), 60).unwrap();
    let look = |trace: &Trace| match space.next(&product(), trace) {
        Ok(Next::Done(nest)) => features(&product(), &nest),
        _ => panic!("{trace} is no program"),
    };
    let features: Vec<Vec<f32>> = traces(&drawn).iter().map(look).collect();
    let speeds = features.iter().map(|features| -features[ROUGH_CYCLES]).collect();
    let options = EstimatorOptions { epochs: 1, trees: 20, ..EstimatorOptions::default() };
    let world = |dynamics| {
        let config = WorldConfig::standard(language.vocabulary().len(), FEATURES, dynamics);
        let spaces = WorldSpaces { cpu: space.version(Kind::Cpu), gpu: space.version(Kind::Gpu) };
        World::random(WorldConfig { width: 16, hidden: 16, ..config }, spaces, 1).ok()
    };
    Arc::new(Checkpoint {
        model: Model::random(Config { layers: 1, width: 32, feed_forward: 32, ..config }, 1).unwrap(),
        estimators: train_estimator(None, &[Group { features, speeds }], &options).unwrap().into(),
        worlds: Worlds { dynamic: world(true), end: world(false) },
        versions: versions(&language, space),
        tokenizer: tokenizer_json(&language),
        card: String::new(),
    })
}

/// The first candidates of a fresh proposer.
fn proposed(searcher: &Searcher<'_>, history: &History, count: usize) -> Proposal {
    searcher.proposer(7).unwrap().propose(&product(), history, count).unwrap()
}

fn traces(proposal: &Proposal) -> Vec<Trace> {
    proposal.candidates.iter().map(|candidate| candidate.trace.clone()).collect()
}

#[test]
fn names_are_unique_and_every_method_says_what_it_is() {
    let names: BTreeSet<&str> = METHODS.iter().map(|method| method.name).collect();
    assert_eq!(names.len(), METHODS.len());
    for method in METHODS {
        assert!(method.name.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{method:?}");
        assert!(method.name != "plan", "records of `tilescribe measure` name their proposer so");
        assert!((10..100).contains(&method.about.len()) && !method.about.ends_with('.'), "{method:?}");
        assert_eq!(Method::named(method.name).unwrap().about, method.about);
    }
    assert!(Method::named("no-such-method").is_none());
    let searching = |needs: bool| {
        METHODS.iter().any(|m| m.purpose == Purpose::Search && matches!(m.make, Make::Pretrained(_)) == needs)
    };
    assert!(searching(true) && searching(false), "without a checkpoint, too, there is a way to search");
}

#[test]
fn every_method_proposes_new_legal_programs_that_its_seed_decides() {
    let (space, task) = (Space::standard(), product());
    let (checkpoint, nothing) = (checkpoint(&space), History::default());
    let known = traces(&Random::new(&space, 3).propose(&task, &nothing, 8).unwrap());
    for method in METHODS {
        let searcher = Searcher::new(method, &space, || Ok::<_, ()>(Arc::clone(&checkpoint))).unwrap();
        assert_eq!(searcher.checkpoint().is_some(), method.needs_checkpoint());
        let first = proposed(&searcher, &nothing, 4);
        assert_eq!(first, proposed(&searcher, &nothing, 4), "{method:?}");
        let distinct: BTreeSet<Trace> = traces(&first).into_iter().collect();
        assert!(!distinct.is_empty() && distinct.len() == first.candidates.len(), "{method:?}");
        assert!(distinct.iter().all(|trace| space.offers(&task, trace)), "{method:?}");
        assert!(first.drawn >= first.dead_ends, "{method:?}");
        let history = |times: [u64; 12]| {
            let mut history = History::default();
            for (trace, ns) in distinct.iter().chain(&known).zip(times) {
                history.insert(trace.clone(), Some(ns));
            }
            history
        };
        let rising: [u64; 12] = std::array::from_fn(|at| 1000 << at);
        let falling: [u64; 12] = std::array::from_fn(|at| 1000 << (11 - at));
        let (one, other) = (history(rising), history(falling));
        let (after_one, after_other) = (proposed(&searcher, &one, 6), proposed(&searcher, &other, 6));
        assert!(traces(&after_one).iter().all(|trace| !one.contains(trace)), "{method:?}");
        assert_eq!(traces(&after_one) != traces(&after_other), method.learns, "{method:?}: what was measured counts");
    }
}

#[test]
fn every_method_that_asks_a_checkpoint_has_controls_that_search_as_it_does() {
    let (space, task) = (Space::standard(), product());
    let (checkpoint, nothing) = (checkpoint(&space), History::default());
    for method in METHODS {
        let searcher = Searcher::new(method, &space, || Ok::<_, ()>(Arc::clone(&checkpoint))).unwrap();
        let mut fingerprints = BTreeSet::new();
        for control in ModelControl::ALL {
            let Some(controlled) = searcher.controlled(control) else {
                assert!(!method.needs_checkpoint(), "{method:?}");
                continue;
            };
            assert_eq!(controlled.name, format!("{}+{}", method.name, control.name()));
            fingerprints.insert(controlled.checkpoint().unwrap().fingerprint().unwrap());
            let found = proposed(&controlled, &nothing, 4);
            assert_eq!(found, proposed(&controlled, &nothing, 4), "{method:?} {control:?}");
            assert!(!found.candidates.is_empty(), "{method:?} {control:?}");
            assert!(traces(&found).iter().all(|trace| space.offers(&task, trace)), "{method:?} {control:?}");
        }
        let own = searcher.checkpoint().map(|checkpoint| checkpoint.fingerprint().unwrap());
        assert!(
            own.is_none_or(|own| fingerprints.insert(own) && fingerprints.len() == 1 + ModelControl::ALL.len()),
            "{method:?}"
        );
    }
}

#[test]
fn controls_change_what_they_say_they_change() {
    let space = Space::standard();
    let checkpoint = checkpoint(&space);
    let all = ModelControl::ALL.map(|control| checkpoint.controlled(control));
    // transformer, world models, estimators: what is as it was
    let kept = all.each_ref().map(|changed| {
        [
            changed.model == checkpoint.model,
            changed.worlds == checkpoint.worlds,
            changed.estimators == checkpoint.estimators,
        ]
    });
    let [shuffled, uniform, world, networks, everything] = kept;
    assert_eq!([shuffled, uniform], [[false, true, true]; 2]);
    assert_eq!([world, networks, everything], [[true, false, true], [false, false, true], [false; 3]]);
    assert!(all[0].model != all[1].model && all[0].model == all[3].model);
    for changed in all {
        assert_eq!((&changed.versions, &changed.tokenizer), (&checkpoint.versions, &checkpoint.tokenizer));
        // what a checkpoint's file may hold
        let tensors = changed.estimators.cpu.tensors().map(|(name, _, values)| (name, values)).collect();
        crate::model::Estimator::from_tensors(tensors).unwrap();
    }
}

#[test]
fn methods_that_learn_find_faster_programs() {
    let space = Space::standard();
    // what a world model drafts is what it likes, and this checkpoint's has learned nothing
    let untrained = Arc::new(Checkpoint { worlds: Worlds::default(), ..(*checkpoint(&space)).clone() });
    // what a language model writes is what it likes, too, so that it needs one that has
    let shipped = Arc::new(shipped_checkpoint(&Language::standard(), &space).unwrap().checkpoint);
    let learns = |method: &&&Method| {
        let searches = method.learns && method.purpose == Purpose::Search && method.name != "world";
        searches || method.name == "lm-mutation"
    };
    for method in METHODS.iter().filter(learns) {
        let checkpoint = if method.name == "lm" { &shipped } else { &untrained };
        let searcher = Searcher::new(method, &space, || Ok::<_, ()>(Arc::clone(checkpoint))).unwrap();
        let (history, bests) = fall(searcher.proposer(3).unwrap().as_mut(), rough, 6, 8);
        assert!((32..=48).contains(&history.len()), "{method:?}: {}", history.len());
        assert!(bests[5] < bests[0], "{method:?}: {bests:?}");
    }
}

#[test]
fn methods_give_up_where_there_is_nothing_more() {
    let task = Task { workload: "input t0 4\nout t1 4 neg t0 a\n".parse().unwrap(), target: avx512() };
    let space = Space::standard();
    let checkpoint = checkpoint(&space);
    for method in METHODS {
        let searcher = Searcher::new(method, &space, || Ok::<_, ()>(Arc::clone(&checkpoint))).unwrap();
        let (mut proposer, mut history) = (searcher.proposer(3).unwrap(), History::default());
        let mut sizes = Vec::new();
        while sizes.last() != Some(&0) {
            let proposal = proposer.propose(&task, &history, 8).unwrap();
            sizes.push(proposal.candidates.len());
            for trace in traces(&proposal) {
                assert!(!history.contains(&trace) && space.offers(&task, &trace), "{method:?}: {trace}");
                history.insert(trace, Some(1000));
            }
            assert!(sizes.len() < 40, "{method:?}: {sizes:?}");
        }
        assert!(!history.is_empty(), "{method:?}");
    }
}

#[test]
fn methods_search_restricted_spaces() {
    for restriction in Restriction::ALL {
        let space = Space::standard().restricted(Some(restriction));
        let checkpoint = checkpoint(&space);
        for method in METHODS.iter().filter(|method| method.purpose == Purpose::Search) {
            let searcher = Searcher::new(method, &space, || Ok::<_, ()>(Arc::clone(&checkpoint))).unwrap();
            let proposal = proposed(&searcher, &History::default(), 3);
            assert!(!proposal.candidates.is_empty(), "{method:?}");
            assert!(traces(&proposal).iter().all(|trace| space.offers(&product(), trace)), "{method:?}");
        }
    }
}
