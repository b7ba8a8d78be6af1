//! New programs from known ones: a few decisions of a parent taken anew.

use std::collections::{BTreeMap, HashSet};

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::iter::{IntoParallelIterator, ParallelIterator};

use super::replay::decided;
use crate::nest::Nest;
use crate::rank::{Described, features};
use crate::space::{Decided, Decision, NoProgram, Policy, Space, Trace, Untuned, Words};
use crate::target::Task;

/// Decisions of a parent that are taken anew, on average.
const MUTATIONS: f64 = 2.0;
/// The part of mutations that go to a neighbour in the list of candidates, which for sizes is one of similar
/// size.
const STEPS: f64 = 0.5;
/// Programs drawn for each that is wanted, before a small space is taken to be exhausted.
const DRAWS_PER_PROGRAM: usize = 30;

/// The untuned program, then those with other first decisions (the algorithm where there are several); dead
/// ends are left out.
pub(super) fn untuned_programs(space: &Space, task: &Task) -> Vec<Trace> {
    let mut programs = Vec::new();
    let mut add = |(trace, result): (Trace, Result<Nest, NoProgram>)| {
        if super::usable(&trace, result).is_some() && !programs.contains(&trace) {
            programs.push(trace);
        }
    };
    add(space.drive(task, &mut Untuned));
    for answer in 0.. {
        let mut first = First { answer, candidates: None };
        add(space.drive(task, &mut first));
        if first.candidates.is_none_or(|count| answer + 1 >= count) {
            break;
        }
    }
    programs
}

/// Children of the parents, one for each seed, and what they look like; dead ends are `None`.
pub(super) fn children(space: &Space, task: &Task, parents: &[Trace], seeds: Vec<u64>) -> Vec<Option<Described>> {
    let breed = |seed| {
        let (trace, nest) = child(space, task, parents, &mut ChaCha8Rng::seed_from_u64(seed));
        super::usable(&trace, nest).map(|nest| Described { features: features(task, &nest), trace })
    };
    seeds.into_par_iter().map(breed).collect()
}

/// A draft: so many programs without their nests, this share of them drawn from the whole space, the others
/// children of the parents. `None` where no decisions lead to one. Some of the others may turn out to be dead
/// ends once their nests are built.
pub(super) fn draft(
    space: &Space,
    task: &Task,
    parents: &[Trace],
    (count, fresh): (usize, f64),
    random: &mut dyn RngCore,
) -> Vec<Option<Decided>> {
    let mut seeds: Vec<u64> = (0..count).map(|_| random.next_u64()).collect();
    let bred = seeds.split_off((count as f64 * fresh) as usize);
    let one = |parents, seed| {
        with_mutation(parents, &mut ChaCha8Rng::seed_from_u64(seed), |policy| decided(space, task, policy))
    };
    let fresh = seeds.into_par_iter().map(|seed| one(&[], seed));
    fresh.chain(bred.into_par_iter().map(|seed| one(parents, seed))).collect()
}

/// Up to `count` distinct programs of a task, without their nests: half of them drawn from the whole space,
/// half mutations of the untuned ones. Some may turn out to be dead ends.
pub fn drafted(space: &Space, task: &Task, count: usize, seed: u64) -> Vec<Trace> {
    let (untuned, mut random) = (untuned_programs(space, task), ChaCha8Rng::seed_from_u64(seed));
    let (mut programs, mut seen) = (Vec::with_capacity(count), HashSet::new());
    for _ in 0..DRAWS_PER_PROGRAM {
        let missing = count - programs.len();
        if missing == 0 {
            break;
        }
        for Decided { trace, .. } in draft(space, task, &untuned, (missing, 0.5), &mut random).into_iter().flatten() {
            if seen.insert(trace.clone()) {
                programs.push(trace);
            }
        }
    }
    programs
}

/// A child of one of the parents, the first of them most often; without parents, a program drawn from the
/// whole space.
fn child(space: &Space, task: &Task, parents: &[Trace], rng: &mut ChaCha8Rng) -> (Trace, Result<Nest, NoProgram>) {
    with_mutation(parents, rng, |policy| space.drive(task, policy))
}

/// Lets the policy decide that makes such a child.
fn with_mutation<T>(parents: &[Trace], rng: &mut ChaCha8Rng, decide: impl FnOnce(&mut dyn Policy) -> T) -> T {
    // the smaller of two draws
    let parent = (!parents.is_empty())
        .then(|| rng.random_range(0..parents.len()).min(rng.random_range(0..parents.len())))
        .map(|at| &parents[at]);
    let rate = match parent {
        None => 1.0,
        Some(parent) => (MUTATIONS / parent.0.len().max(1) as f64).min(0.5),
    };
    let inherited: BTreeMap<&Words, &Words> =
        parent.iter().flat_map(|parent| &parent.0).map(|choice| (&choice.site, &choice.value)).collect();
    decide(&mut Mutation { inherited, rate, rng })
}

/// Takes a parent's decisions, but for a few. Where a mutation has made one of them illegal or raised a new
/// question, the untuned answer stands in.
struct Mutation<'a> {
    inherited: BTreeMap<&'a Words, &'a Words>,
    rate: f64,
    rng: &'a mut ChaCha8Rng,
}

impl Policy for Mutation<'_> {
    fn pick(&mut self, decision: &Decision) -> usize {
        let inherited = self.inherited.get(&decision.site);
        let kept = inherited.and_then(|value| decision.candidates.iter().position(|candidate| candidate == *value));
        let count = decision.candidates.len();
        let Some(kept) = kept else {
            return if self.inherited.is_empty() { self.rng.random_range(0..count) } else { decision.default };
        };
        if !self.rng.random_bool(self.rate) {
            return kept;
        }
        if !self.rng.random_bool(STEPS) {
            return self.rng.random_range(0..count);
        }
        if self.rng.random_bool(0.5) { (kept + 1).min(count - 1) } else { kept.saturating_sub(1) }
    }
}

/// Gives one answer to the first decision, the untuned one to all others.
struct First {
    answer: usize,
    /// How many there were, once it was asked.
    candidates: Option<usize>,
}

impl Policy for First {
    fn pick(&mut self, decision: &Decision) -> usize {
        match self.candidates {
            Some(_) => decision.default,
            None => {
                self.candidates = Some(decision.candidates.len());
                self.answer.min(decision.candidates.len() - 1)
            }
        }
    }
}
