//! The language model as a proposer: what it writes, in which order, and what it is sure of.

use super::{
    History, Ingredients, LanguageModel, Proposer, SINGLE_SAMPLES, Written, pretrained, untuned_programs, versions,
};
use crate::language::{Language, Want};
use crate::model::{Config, Estimator, Model, Position, Versions};
use crate::outcome::Outcome;
use crate::propose::example::product;
use crate::propose::sequence::{prompt_positions, trace_positions};
use crate::propose::shipped_checkpoint;
use crate::propose::train::examples;
use crate::rank::FEATURES;
use crate::record::{Entry, Record};
use crate::space::{Next, Space, Trace};
use crate::target::{Kind, Task, avx512};

fn model(language: &Language) -> Model {
    let config = Config::standard(language.vocabulary().len());
    Model::random(Config { layers: 1, width: 32, feed_forward: 32, ..config }, 1).unwrap()
}

#[test]
fn candidates_are_legal_new_and_decided_by_the_seed() {
    let (space, language, task) = (Space::standard(), Language::standard(), product());
    let model = model(&language);
    let lm = || LanguageModel::new(&space, language.clone(), &model, 3);
    let first = lm().propose(&task, &History::default(), 12).unwrap();
    assert_eq!(first.candidates.len(), 12);
    assert_eq!(first, lm().propose(&task, &History::default(), 12).unwrap());
    let mut history = History::default();
    for candidate in &first.candidates {
        assert!(matches!(space.next(&task, &candidate.trace), Ok(Next::Done(_))));
        history.insert(candidate.trace.clone(), Some(1));
    }
    let second = lm().propose(&task, &history, 12).unwrap();
    assert_eq!(second.candidates.len(), 12);
    assert!(second.candidates.iter().all(|candidate| !history.contains(&candidate.trace)));
    // half go on from what was measured: from its first decision on, or from a later one
    let shared = |trace: &Trace| {
        let with = |other: &Trace| trace.0.iter().zip(&other.0).take_while(|(a, b)| a == b).count();
        history.fastest(12).iter().map(with).max().unwrap_or(0)
    };
    let second: Vec<usize> = second.candidates.iter().map(|candidate| shared(&candidate.trace)).collect();
    let fresh = lm().propose(&task, &History::default(), 24).unwrap();
    let fresh: Vec<usize> = fresh.candidates[12..].iter().map(|candidate| shared(&candidate.trace)).collect();
    assert!(second.iter().sum::<usize>() > fresh.iter().sum::<usize>(), "{second:?} {fresh:?}");
}

#[test]
fn an_estimator_ranks_what_was_written_and_children_join() {
    let (space, language, task) = (Space::standard(), Language::standard(), product());
    let model = model(&language);
    let lm = |seed| {
        LanguageModel::new(&space, language.clone(), &model, seed)
            .ranked_by(Some(Estimator::random(FEATURES, 9).into()))
    };
    let few = lm(3).propose(&task, &History::default(), 5).unwrap();
    assert_eq!(few, lm(3).propose(&task, &History::default(), 5).unwrap());
    let mut values: Vec<f32> = few.candidates.iter().map(|candidate| candidate.value.unwrap()).collect();
    // the untuned program is among the first two, whatever its value
    if few.candidates[1].trace == untuned_programs(&space, &task)[0] {
        values.remove(1);
    }
    assert!(values.is_sorted_by(|a, b| a >= b), "{values:?}");
    // where programs are changed blindly, children of the fastest are in the pool, though nobody wrote them
    let mut history = History::default();
    for (number, candidate) in few.candidates.iter().enumerate() {
        history.insert(candidate.trace.clone(), Some(1000 + number as u64));
    }
    let blindly = Ingredients { mutation: true, ..Ingredients::ALL };
    let next = lm(4).with_ingredients(blindly).propose(&task, &history, 400).unwrap();
    assert!(next.candidates.iter().filter(|candidate| candidate.log_likelihood.is_none()).count() > 20);
    assert!(next.candidates.iter().all(|candidate| !history.contains(&candidate.trace)));
}

#[test]
fn what_was_written_is_as_likely_as_it_was_when_it_was_written() {
    let (space, language, task) = (Space::standard(), Language::standard(), product());
    let model = model(&language);
    let mut lm = LanguageModel::new(&space, language, &model, 3).with_sampling(1.0, 0.9);
    let written: Vec<Written> = lm.sample(&task, 40).unwrap();
    let legal = |written: &Written| written.complete && space.offers(&task, &written.trace);
    let (traces, likelihoods): (Vec<Trace>, Vec<f64>) =
        written.into_iter().filter(legal).map(|written| (written.trace, written.log_likelihood)).unzip();
    assert!(traces.len() > 20, "{}", traces.len());
    let told = lm.log_likelihoods(&task, &traces).unwrap();
    for (told, written) in told.iter().zip(&likelihoods) {
        assert!(*told < 0.0 && (told - written).abs() < 1e-3, "{told} {written}");
    }
    let cut = Trace(traces[0].0[..2].to_vec());
    assert!(lm.log_likelihoods(&task, &[cut]).is_err(), "no program");
}

#[test]
fn the_untuned_program_is_among_the_first_two() {
    let (space, language, task) = (Space::standard(), Language::standard(), product());
    let model = model(&language);
    let untuned = untuned_programs(&space, &task).remove(0);
    for seed in 0..3 {
        let mut lm = LanguageModel::new(&space, language.clone(), &model, seed)
            .ranked_by(Some(Estimator::random(FEATURES, seed).into()));
        let first = lm.propose(&task, &History::default(), 1).unwrap().candidates.remove(0).trace;
        let three = lm.propose(&task, &History::default(), 3).unwrap().candidates;
        assert!(three[..2].iter().any(|candidate| candidate.trace == untuned));
        let mut history = History::default();
        history.insert(first.clone(), Some(1000));
        let next = lm.propose(&task, &history, 1).unwrap().candidates;
        assert!(first == untuned || next[0].trace == untuned);
        history.insert(untuned.clone(), Some(1000));
        let later = lm.propose(&task, &history, 5).unwrap().candidates;
        assert!(later.len() == 5 && later.iter().all(|candidate| candidate.trace != untuned));
    }
}

#[test]
fn records_become_the_sequences_that_are_sampled() {
    let (space, language, task) = (Space::standard(), Language::standard(), product());
    let mut lm = LanguageModel::new(&space, language.clone(), &model(&language), 3);
    let proposal = lm.propose(&task, &History::default(), 4).unwrap();
    let task = std::sync::Arc::new(task);
    let entries: Vec<Entry> = proposal
        .candidates
        .iter()
        .zip([100, 200, 1000, 400])
        .map(|(candidate, ns)| {
            let outcome = Outcome::Timed { times_ns: vec![ns], compile_us: 1 };
            let record = Record::new(&task, &space.version(Kind::Cpu), candidate.trace.clone(), outcome, "lm", 0);
            Entry { task: std::sync::Arc::clone(&task), record }
        })
        .collect();
    let all = versions(&language, &space);
    let made = examples(&entries, &language, &space, &all, 1024);
    assert_eq!((made.tasks, made.too_long, made.skipped, made.examples.len()), (1, 0, 0, 4));
    for ((example, entry), (want, speed)) in
        made.examples.iter().zip(&entries).zip([(9, 1.0f32), (4, 0.5), (0, 0.1), (2, 0.25)])
    {
        assert_eq!(*example.prompt, prompt_positions(&language, &task, Want::Decile(want)));
        assert_eq!(example.blind.as_deref(), Some(prompt_positions(&language, &task, Want::Any).as_slice()));
        assert!((example.score - speed.ln()).abs() < 1e-6);
        let positions: Vec<Position> = example.steps.iter().map(|step| step.position.as_ref().clone()).collect();
        assert_eq!(positions, trace_positions(&language, &entry.record.trace));
        // what was chosen is what is read next, and among what was possible
        for (step, next) in example.steps.iter().zip(&positions[1..]) {
            assert_eq!(step.answers[step.chosen], next.answer);
        }
        assert!(example.steps.iter().any(|step| step.answers.len() > 1));
    }
    assert_eq!(examples(&entries, &language, &space, &all, 20).too_long, 4);
    // traces that are not of this space teach nothing
    let mut stale = entries.clone();
    stale[1].record.trace.0[0].site = "no such site".into();
    stale[2].record.trace.0.pop();
    assert_eq!(examples(&stale, &language, &space, &all, 1024).skipped, 2);
}

/// A product of a matrix and a vector, for which the rules have no good program, and a sum of two matrices,
/// for which they have one.
const VECTOR: &str = "const t0 10 448\ninput t1 448\nout t2 10 sum 448 mul t0 a b t1 b\n";
const ADDITION: &str = "input t0 64 96\ninput t1 64 96\nout t2 64 96 add t0 a b t1 a b\n";

#[test]
fn a_single_program_is_the_models_where_it_is_sure() {
    let (space, language) = (Space::standard(), Language::standard());
    let checkpoint = shipped_checkpoint(&language, &space).unwrap().checkpoint;
    let lm = || pretrained(&space, &checkpoint, 0);
    let task = |text: &str| Task { workload: text.parse().unwrap(), target: avx512() };
    let greedy = |task: &Task| {
        let mut lm = lm().with_samples(SINGLE_SAMPLES);
        lm.propose(task, &History::default(), 1).unwrap().candidates.remove(0)
    };
    let (vector, addition) = (task(VECTOR), task(ADDITION));
    let choice = lm().sure(&vector).unwrap().expect("the estimator is sure");
    assert_eq!(choice, greedy(&vector));
    assert_ne!(choice.trace, untuned_programs(&space, &vector)[0]);
    assert_eq!(lm().sure(&addition).unwrap(), None, "it prefers {}", greedy(&addition).trace);
    // who has no estimator cannot tell
    let blind = LanguageModel::new(&space, language, &checkpoint.model, 0).sure(&vector).unwrap();
    assert_eq!(blind, None);
}

#[test]
fn what_was_measured_is_read() {
    let (space, language, task) = (Space::standard(), Language::standard(), product());
    let model = model(&language);
    let lm = |ingredients| LanguageModel::new(&space, language.clone(), &model, 3).with_ingredients(ingredients);
    let first = lm(Ingredients::ALL).propose(&task, &History::default(), 4).unwrap();
    let history = |times: [u64; 4]| {
        let mut history = History::default();
        for (candidate, ns) in first.candidates.iter().zip(times) {
            history.insert(candidate.trace.clone(), Some(ns));
        }
        history
    };
    // no program of the one changes its rank in the other: what sequences begin like stays
    let (near, far) = (history([100, 101, 102, 103]), history([100, 300, 500, 900]));
    let ingredients = Ingredients { ranking: false, ..Ingredients::ALL };
    let next = |ingredients, history| lm(ingredients).propose(&task, history, 12).unwrap();
    assert_eq!(next(ingredients, &near), next(ingredients, &near));
    assert_ne!(next(ingredients, &near), next(ingredients, &far));
    let blind = Ingredients { shown: false, ..ingredients };
    assert_eq!(next(blind, &near), next(blind, &far));
    // a model that has not learned to read it is not shown it
    let versions = versions(&language, &space);
    let older = |measured| {
        let versions = Versions { measured, ..versions.clone() };
        lm(ingredients).trained_on(&versions).propose(&task, &near, 12).unwrap()
    };
    assert_eq!(older(false), next(blind, &near));
    assert_eq!(older(true), next(ingredients, &near));
}

/// With the estimator of the checkpoint, what joins the pool last is written by the model or changed blindly.
#[test]
fn a_generation_is_written_or_else_changed_blindly() {
    let (space, language, task) = (Space::standard(), Language::standard(), product());
    let checkpoint = shipped_checkpoint(&language, &space).unwrap().checkpoint;
    let written = |ingredients| {
        let mut lm = pretrained(&space, &checkpoint, 5).with_samples(32).with_ingredients(ingredients);
        let proposal = lm.propose(&task, &History::default(), 64).unwrap();
        proposal.candidates.iter().filter(|candidate| candidate.log_likelihood.is_some()).count()
    };
    let drafts = Ingredients { drafted: false, ..Ingredients::ALL };
    let (own, changed) = (written(drafts), written(Ingredients { mutation: true, ..drafts }));
    assert!(own > changed, "{own} of 64 written, {changed} where others are changed");
    // who is shown nothing cannot write behind it
    assert_eq!(
        written(Ingredients { shown: false, ..drafts }),
        written(Ingredients { shown: false, mutation: true, ..drafts })
    );
}

#[test]
fn a_task_that_is_too_long_to_be_read_has_programs_all_the_same() {
    let (space, language, task) = (Space::standard(), Language::standard(), product());
    let config = Config { layers: 1, width: 32, feed_forward: 32, ..Config::standard(language.vocabulary().len()) };
    // it can be read, but there is no room for a program
    let positions = prompt_positions(&language, &task, Want::Any).len() + 3;
    let model = Model::random(Config { max_sequence: positions, ..config }, 1).unwrap();
    let mut ranked =
        LanguageModel::new(&space, language.clone(), &model, 3).ranked_by(Some(Estimator::random(FEATURES, 9).into()));
    let mut history = History::default();
    for _ in 0..2 {
        let found = ranked.propose(&task, &history, 6).unwrap();
        assert_eq!((found.candidates.len(), found.drawn), (6, 0));
        for candidate in found.candidates {
            assert!(candidate.log_likelihood.is_none() && space.offers(&task, &candidate.trace));
            assert!(!history.contains(&candidate.trace));
            history.insert(candidate.trace, Some(1000));
        }
    }
}

#[test]
fn a_model_reads_programs_only_where_it_knows_the_rules_that_make_them() {
    let (space, language) = (Space::standard(), Language::standard());
    let model = model(&language);
    let of_tokens = |tokens: i64| -> Task {
        let text = format!(
            "input t0 {tokens} 6 64\ninput t1 6 64 {tokens}\ninput t2 6 {tokens} 64\n\
             let t3 {tokens} 6 {tokens} sum 64 mul t0 a b d t1 b d c\n\
             out t4 {tokens} 6 64 sum {tokens} mul t2 b d c t3 a b d\n"
        );
        Task { workload: text.parse().unwrap(), target: avx512() }
    };
    let older = Versions {
        space: space.version(Kind::Cpu).replace("+row-order-1", ""),
        measured: true,
        ..versions(&language, &space)
    };
    let reads = |tokens: i64, known: &Versions| {
        let task = of_tokens(tokens);
        let mut lm = LanguageModel::new(&space, language.clone(), &model, 3)
            .ranked_by(Some(Estimator::random(FEATURES, 9).into()))
            .trained_on(known);
        lm.asked(&task, &History::default()).unwrap().reads
    };
    // only with many keys is another order than the one of before the rules' choice
    assert!(reads(64, &older) && !reads(1500, &older) && reads(1500, &versions(&language, &space)));
}
