//! A draft by a formula, verified by an estimator.
//!
//! L. Qiao et al., *Pruner: A Draft-then-Verify Exploration Mechanism to Accelerate Tensor Program Tuning*,
//! ASPLOS 2025. A static analyser costs next to nothing, so it judges hundreds of mutations; what it likes is
//! verified by a learned model. That one was pretrained on other tasks and is adapted to this one: a twin
//! takes part of what each fine-tuning brings, with momentum, and the next fine-tuning begins from the twin.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::costs::{Costs, Positions};
use super::mutation::{children, untuned_programs};
use super::pool::{interleaved, told_apart};
use super::{Candidate, History, Make, Method, Proposal, ProposeError, Proposer, Purpose};
use crate::model::{Estimator, EstimatorOptions, Estimators, Group, train_estimator};
use crate::rank::{Described, Ranking, estimator_of};
use crate::space::{Space, Trace, Untuned};
use crate::target::Task;

pub(super) const METHOD: Method = Method {
    name: "pruner",
    about: "A formula drafts among hundreds of mutations, the checkpoint's estimator verifies the draft",
    learns: true,
    purpose: Purpose::Search,
    make: Make::Pretrained(|space, checkpoint, seed| {
        Ok(Box::new(Pruner::new(space, checkpoint.estimators.clone(), seed)))
    }),
};

/// Mutations that are judged by the formula, at least, and for each program asked for; in generations.
const DRAFTED: usize = 512;
const DRAFTED_FOR_EACH: usize = 32;
const GENERATIONS: usize = 4;
/// Programs that have children, and the share of programs drawn from the whole space.
const PARENTS: usize = 32;
const FRESH: f64 = 0.15;
/// Programs of the draft that are verified, for each one asked for.
const VERIFIED: usize = 8;
/// The share of what is measured that comes from the draft whatever the estimator says.
const EXPLORED: f64 = 0.05;
/// What the twin keeps of itself.
const MOMENTUM: f32 = 0.9;
/// Programs measured before the estimator is adapted.
const ENOUGH: usize = 4;
/// Penalties of the formula: for each value without a register, of a cache line in two, and for each factor
/// of two in operators that are missing to a load.
const SPILL: f64 = 0.05;
const SPLIT: f64 = 0.5;
const STARVING: f64 = 0.05;
const FED: f64 = 3.0;

/// Drafts and verifies, the same way for the same seed and history.
struct Pruner<'a> {
    space: &'a Space,
    prior: Estimators,
    /// Keeps the looks of what was proposed.
    ranking: Ranking<'a>,
    /// By the task's hash.
    twins: HashMap<String, Estimator>,
    seed: u64,
    rng: ChaCha8Rng,
}

impl<'a> Pruner<'a> {
    fn new(space: &'a Space, prior: Estimators, seed: u64) -> Pruner<'a> {
        let (ranking, rng) = (Ranking::new(space, None, seed), ChaCha8Rng::seed_from_u64(seed));
        Pruner { space, prior, ranking, twins: HashMap::new(), seed, rng }
    }

    /// The estimator for this task, after what was measured; `None` where nothing was learned of such
    /// machines. The twin follows.
    fn adapted(&mut self, task: &Task, measured: &Group) -> Result<Option<Estimator>, ProposeError> {
        let hash = task.workload.hash().to_string();
        let prior = estimator_of(&self.prior, task.target.kind());
        let Some(twin) = self.twins.get(&hash).or(prior) else { return Ok(None) };
        if measured.speeds.len() < ENOUGH {
            return Ok(Some(twin.clone()));
        }
        let options = EstimatorOptions {
            epochs: 24,
            members: 96,
            groups: 1,
            learning_rate: 1e-3,
            trees: 0,
            seed: self.seed,
            ..EstimatorOptions::default()
        };
        let tuned = train_estimator(Some(twin), std::slice::from_ref(measured), &options)
            .map_err(crate::rank::RankError::Estimator)?;
        let followed = between(twin, &tuned).map_err(ProposeError::Model)?;
        self.twins.insert(hash, followed);
        Ok(Some(tuned))
    }

    /// Generations of mutations, the formula's favourites their parents: the best first.
    fn draft(
        &mut self,
        task: &Task,
        history: &History,
        positions: &Positions,
        count: usize,
        proposal: &mut Proposal,
    ) -> Vec<Described> {
        let known = [history.fastest(PARENTS), untuned_programs(self.space, task)].concat();
        let mut seen: BTreeSet<Trace> = BTreeSet::new();
        let mut pool: Vec<(f64, Described)> = Vec::new();
        let each = DRAFTED.max(DRAFTED_FOR_EACH * count).div_ceil(GENERATIONS);
        for _ in 0..GENERATIONS {
            let favourites = pool.iter().take(PARENTS).map(|(_, described)| described.trace.clone());
            // what was measured to be fast and what the formula likes, in turn
            let parents: Vec<Trace> = interleaved(known.clone(), favourites.collect());
            let seeds = (0..each).map(|_| (self.rng.random_bool(FRESH), self.rng.next_u64()));
            let (fresh, bred): (Vec<_>, Vec<_>) = seeds.partition(|(is_fresh, _)| *is_fresh);
            let [fresh, bred] = [fresh, bred].map(|seeds| seeds.into_iter().map(|(_, seed)| seed).collect());
            let drawn = [children(self.space, task, &[], fresh), children(self.space, task, &parents, bred)].concat();
            proposal.drawn += drawn.len() as u64;
            proposal.dead_ends += drawn.iter().filter(|drawn| drawn.is_none()).count() as u64;
            for described in drawn.into_iter().flatten() {
                if !history.contains(&described.trace) && seen.insert(described.trace.clone()) {
                    pool.push((latency(&Costs::of(task, positions, &described.features)), described));
                }
            }
            pool.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        pool.into_iter().map(|(_, described)| described).collect()
    }
}

/// Cycles that a program takes by the formula: arithmetic and each level of memory, one after the other, each
/// with its penalties.
fn latency(costs: &Costs) -> f64 {
    let starving = STARVING * (FED - costs.intensity).max(0.0);
    let core = (1.0 + SPILL * costs.spilled) * (1.0 + starving) / costs.lane_use.sqrt();
    let memory: f64 = costs.levels.iter().sum();
    (costs.executing() * core + memory * (1.0 + SPLIT * costs.split)) * costs.imbalance + costs.control
}

/// The twin a step nearer to what was tuned. What is not learned by fine-tuning is the same in both.
fn between(twin: &Estimator, tuned: &Estimator) -> Result<Estimator, String> {
    let mixed = twin.tensors().zip(tuned.tensors()).map(|((name, _, own), (_, _, other))| {
        let learned = name.starts_with("layers.");
        let mix = |(own, other): (f32, f32)| if learned { MOMENTUM * own + (1.0 - MOMENTUM) * other } else { own };
        (name, own.into_iter().zip(other).map(mix).collect())
    });
    Estimator::from_tensors(mixed.collect::<BTreeMap<String, Vec<f32>>>())
}

impl Proposer for Pruner<'_> {
    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        self.rng.set_stream(history.len() as u64);
        let mut proposal = Proposal::default();
        let (untuned, nest) = self.space.drive(task, &mut Untuned);
        let Some(nest) = super::usable(&untuned, nest) else {
            return Ok(Proposal { dead_ends: 1, drawn: 1, ..proposal });
        };
        let positions = Positions::of(task, &nest);
        let measured = self.ranking.measured(task, history)?;
        let estimator = self.adapted(task, &measured)?;
        let draft = self.draft(task, history, &positions, count, &mut proposal);
        // what looks like a program before it would tell nothing
        let known = measured.features.iter().map(Vec::as_slice);
        let (mut draft, alike) = told_apart(draft, |described| &described.features, known);
        let rest = draft.split_off((VERIFIED * count).min(draft.len()));
        let score =
            |described: &Described| estimator.as_ref().and_then(|estimator| estimator.score(&described.features));
        let mut verified: Vec<(Option<f32>, Described)> =
            draft.into_iter().map(|described| (score(&described), described)).collect();
        let order = |score: &Option<f32>| score.unwrap_or(f32::NEG_INFINITY);
        verified.sort_by(|(a, _), (b, _)| order(b).total_cmp(&order(a)));
        let mut rest = rest.into_iter().chain(alike).map(|described| (None, described));
        let mut chosen = Vec::new();
        while chosen.len() < count {
            let explored = self.rng.random_bool(EXPLORED);
            let next = if explored { rest.next() } else { None };
            let next = next.or_else(|| (!verified.is_empty()).then(|| verified.remove(0))).or_else(|| rest.next());
            let Some(next) = next else { break };
            chosen.push(next);
        }
        self.ranking.remember(task, chosen.iter().map(|(_, described)| described.clone()));
        let candidate =
            |(value, described): (Option<f32>, Described)| Candidate { value, ..Candidate::new(described.trace) };
        proposal.candidates = chosen.into_iter().map(candidate).collect();
        Ok(proposal)
    }
}

#[cfg(test)]
mod tests {
    use super::{Costs, MOMENTUM, Pruner, between, latency};
    use crate::model::Estimator;
    use crate::propose::example::beats_chance;
    use crate::rank::FEATURES;
    use crate::space::Space;

    #[test]
    fn penalties_make_programs_slower() {
        let good = Costs {
            operators: 1000.0,
            levels: [100.0; 3],
            imbalance: 1.0,
            lane_use: 1.0,
            intensity: 4.0,
            ..Costs::default()
        };
        assert!((latency(&good) - 1300.0).abs() < 1e-9);
        for worse in [
            Costs { imbalance: 1.5, ..good },
            Costs { lane_use: 0.5, ..good },
            Costs { spilled: 4.0, ..good },
            Costs { split: 0.5, ..good },
            Costs { intensity: 0.0, ..good },
            Costs { chained: 4000.0, ..good },
            Costs { control: 1.0, ..good },
        ] {
            assert!(latency(&worse) > latency(&good), "{worse:?}");
        }
    }

    #[test]
    fn the_twin_follows_slowly() {
        let [own, other] = [1, 2].map(|seed| Estimator::random(3, seed));
        let first = |estimator: &Estimator| {
            estimator.tensors().find(|(name, ..)| name == "layers.0.weight").map(|(_, _, values)| values[0]).unwrap()
        };
        let mixed = between(&own, &other).unwrap();
        let expected = MOMENTUM * first(&own) + (1.0 - MOMENTUM) * first(&other);
        assert!((first(&mixed) - expected).abs() < 1e-6);
    }

    #[test]
    fn it_is_better_than_chance() {
        let space = Space::standard();
        beats_chance(&mut Pruner::new(&space, Estimator::random(FEATURES, 1).into(), 1));
    }
}
