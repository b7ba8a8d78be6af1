//! Samplers and rankers held against pools of measured programs, without measuring anything.
//!
//! A [`Pool`] holds what samplers drew of a task, every program measured twice. The second pass says how
//! good a program is: its *quality* is the time of the fastest program of the whole pool divided by its own,
//! both as of the second pass. Nobody is shown that pass.
//!
//! - *Best of N of a sampler*: the quality of the best of N programs that it drew, for a search that knew
//!   them all; what is expected over all choices of N of its draws (dead ends and failures count as
//!   [`NOTHING_FOUND`]).
//! - *First k of a ranker*: of the distinct programs that a sampler drew with one seed, the best of the first
//!   k by the ranker, relative to the best of them all (the top-k score of TenSet, Zheng et al., NeurIPS
//!   2021). What is missing to 1 is the regret.
//! - *Noise ceiling*: the same of the ranking by the first pass. Two measurements do not agree on more.
//!
//! Figures are geometric means over tasks and seeds, with intervals over resampled ones.
//!
//! [`NOTHING_FOUND`]: super::compare::NOTHING_FOUND

mod rankers;
mod scores;

use std::collections::{BTreeMap, BTreeSet};

use rayon::iter::{IntoParallelIterator, IntoParallelRefIterator, ParallelIterator};
use serde::Serialize;
use thiserror::Error;

use super::bootstrap::{Difference, Score};
use crate::record::{Draw, Pool};
use crate::space::Space;

pub use rankers::{RANKERS, Ranker, RankerKind};
pub use scores::points;

use rankers::{Order, Seen};
use scores::{expected_best, log_quality};

/// Why pools cannot be scored.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// Bad input: of another space, or a model that does not know such machines.
    #[error("the pool of {name}: {problem}")]
    Pool { name: String, problem: String },
}

/// What pools say of samplers and rankers.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Replay {
    /// Tasks with a program that was timed.
    pub tasks: usize,
    /// Distinct programs of all tasks.
    pub programs: usize,
    /// Those without a time.
    pub failed: usize,
    /// Quality of the programs that the rules write without any search.
    pub untuned: Score,
    /// By name.
    pub samplers: BTreeMap<String, SamplerScores>,
    /// The first sampler of the pools beside each of the others.
    pub differences: Vec<SamplerDifference>,
    /// By sampler (or [`ALL`]), ranker and number of programs.
    pub rankers: BTreeMap<String, BTreeMap<String, BTreeMap<usize, Score>>>,
}

/// What a sampler drew.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SamplerScores {
    pub draws: usize,
    pub dead_ends: usize,
    /// Distinct programs of a task, summed over tasks.
    pub distinct: usize,
    /// By number of draws.
    pub best_of: BTreeMap<usize, Score>,
}

/// Two samplers, seed by seed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SamplerDifference {
    pub sampler: String,
    pub other: String,
    /// By number of draws.
    pub best_of: BTreeMap<usize, Difference>,
}

/// Stands for what all samplers drew together.
pub const ALL: &str = "all";

/// Scores pools. `watch` is told that another pool was done; pools are worked on side by side.
///
/// # Errors
/// [`ReplayError`].
pub fn replay(
    space: &Space,
    pools: &[Pool],
    rankers: &[Ranker],
    watch: &(dyn Fn() + Sync),
) -> Result<Replay, ReplayError> {
    let scored = pools.par_iter().map(|pool| {
        let scored = score(space, pool, rankers);
        watch();
        scored
    });
    let scored: Vec<Option<PoolScores>> = scored.collect::<Result<_, ReplayError>>()?;
    let scored: Vec<PoolScores> = scored.into_iter().flatten().collect();
    Ok(joined(pools, &scored))
}

/// Logarithms of qualities of one pool, by seed.
#[derive(Default)]
struct PoolScores {
    untuned: Option<f64>,
    best_of: BTreeMap<(String, usize), BTreeMap<u32, f64>>,
    /// By sampler, ranker and number.
    first_of: BTreeMap<(String, String, usize), BTreeMap<u32, f64>>,
}

/// `None` where nothing was timed.
fn score(space: &Space, pool: &Pool, rankers: &[Ranker]) -> Result<Option<PoolScores>, ReplayError> {
    let second_ns = |at: usize| Some(pool.programs[at].times.as_ref().ok()?[1]);
    let Some(best_ns) = (0..pool.programs.len()).filter_map(second_ns).min() else { return Ok(None) };
    let seen = Seen::new(space, pool, rankers)?;
    let mut scores = PoolScores::default();
    let untuned = pool.programs.iter().position(|program| program.untuned);
    scores.untuned = untuned.map(|at| log_quality(best_ns, second_ns(at)));
    let points = points(pool.samples as usize);
    let drawn = Drawn::of(pool);
    for seed in 0..pool.seeds {
        let mut together = BTreeSet::new();
        for (number, name) in pool.samplers.iter().enumerate() {
            let draws = drawn.by(number, seed);
            let qualities =
                || draws.iter().map(|at| log_quality(best_ns, at.and_then(second_ns))).collect::<Vec<f64>>();
            for count in &points {
                let expected = expected_best(qualities(), *count);
                scores.best_of.entry((name.clone(), *count)).or_default().insert(seed, expected);
            }
            let distinct: BTreeSet<usize> = draws.iter().flatten().copied().collect();
            together.extend(distinct.iter().copied());
            rank(pool, &seen, rankers, (name, seed), distinct, &points, &mut scores)?;
        }
        rank(pool, &seen, rankers, (ALL, seed), together, &points, &mut scores)?;
    }
    Ok(Some(scores))
}

/// Scores rankers on programs that were drawn with one seed.
fn rank(
    pool: &Pool,
    seen: &Seen<'_>,
    rankers: &[Ranker],
    (sampler, seed): (&str, u32),
    members: BTreeSet<usize>,
    points: &[usize],
    scores: &mut PoolScores,
) -> Result<(), ReplayError> {
    let second_ns = |at: usize| Some(pool.programs[at].times.as_ref().ok()?[1]);
    let members: Vec<usize> = members.into_iter().collect();
    let Some(best_ns) = members.iter().filter_map(|at| second_ns(*at)).min() else { return Ok(()) };
    let quality = |at: &usize| log_quality(best_ns, second_ns(*at));
    let most = points.last().copied().unwrap_or(0);
    for (number, ranker) in rankers.iter().enumerate() {
        let order = seen.order(number, &members, most)?;
        for count in points {
            let found = match &order {
                Order::Any => expected_best(members.iter().map(quality).collect(), *count),
                Order::First(order) => order.iter().take(*count).map(quality).fold(f64::NEG_INFINITY, f64::max),
            };
            let key = (sampler.to_string(), ranker.name.clone(), *count);
            scores.first_of.entry(key).or_default().insert(seed, found);
        }
    }
    Ok(())
}

/// What was drawn, dead ends among it.
struct Drawn<'a> {
    pool: &'a Pool,
    programs: BTreeMap<Draw, usize>,
}

impl Drawn<'_> {
    fn of(pool: &Pool) -> Drawn<'_> {
        let numbered = pool.programs.iter().enumerate();
        let programs = numbered.flat_map(|(number, program)| program.draws.iter().map(move |draw| (*draw, number)));
        Drawn { pool, programs: programs.collect() }
    }

    /// The programs that a sampler drew with a seed, in that order.
    fn by(&self, sampler: usize, seed: u32) -> Vec<Option<usize>> {
        (0..self.pool.samples).map(|at| self.programs.get(&Draw { sampler, seed, at }).copied()).collect()
    }
}

/// All pools together.
fn joined(pools: &[Pool], scored: &[PoolScores]) -> Replay {
    let programs = || pools.iter().flat_map(|pool| &pool.programs);
    let untuned: Vec<Vec<[f64; 1]>> = scored.iter().filter_map(|pool| Some(vec![[pool.untuned?]])).collect();
    let mut names: Vec<&String> = Vec::new();
    for name in pools.iter().flat_map(|pool| &pool.samplers) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let scores_of = |name: &String| {
        let with = |pool: &&Pool| pool.samplers.contains(name);
        let draws: usize = pools.iter().filter(with).map(|pool| pool.seeds as usize * pool.samples as usize).sum();
        let (mut found, mut distinct) = (0, 0);
        for pool in pools {
            let Some(number) = pool.samplers.iter().position(|sampler| sampler == name) else { continue };
            for program in &pool.programs {
                let count = program.draws.iter().filter(|draw| draw.sampler == number).count();
                found += count;
                distinct += usize::from(count > 0);
            }
        }
        let by_count = collected(scored, |pool| {
            let own = pool.best_of.iter().filter(|((sampler, _), _)| sampler == name);
            own.map(|((_, count), seeds)| (*count, seeds.values().map(|value| [*value]).collect())).collect()
        });
        let best_of = by_count.into_par_iter().map(|(count, tasks)| (count, Score::of(&tasks))).collect();
        (name.clone(), SamplerScores { draws, dead_ends: draws.saturating_sub(found), distinct, best_of })
    };
    let rankings = collected(scored, |pool| {
        pool.first_of.iter().map(|(key, seeds)| (key.clone(), seeds.values().map(|value| [*value]).collect())).collect()
    });
    let rankings: Vec<_> = rankings.into_par_iter().map(|(key, tasks)| (key, Score::of(&tasks))).collect();
    let mut rankers: BTreeMap<String, BTreeMap<String, BTreeMap<usize, Score>>> = BTreeMap::new();
    for ((sampler, ranker, count), score) in rankings {
        rankers.entry(sampler).or_default().entry(ranker).or_default().insert(count, score);
    }
    let others = names.first().map(|first| (*first, &names[1..]));
    let differences = others.into_iter().flat_map(|(first, others)| others.iter().map(move |other| (first, *other)));
    Replay {
        tasks: scored.len(),
        programs: programs().count(),
        failed: programs().filter(|program| program.times.is_err()).count(),
        untuned: Score::of(&untuned),
        samplers: names.iter().map(|name| scores_of(name)).collect(),
        differences: differences.map(|(first, other)| difference(scored, first, other)).collect(),
        rankers,
    }
}

/// By what it is asked for: of each pool that has it, values by seed.
fn collected<K: Ord, const N: usize>(
    scored: &[PoolScores],
    of: impl Fn(&PoolScores) -> Vec<(K, Vec<[f64; N]>)>,
) -> BTreeMap<K, Vec<Vec<[f64; N]>>> {
    let mut all: BTreeMap<K, Vec<Vec<[f64; N]>>> = BTreeMap::new();
    for (key, seeds) in scored.iter().flat_map(of) {
        all.entry(key).or_default().push(seeds);
    }
    all
}

/// A sampler beside another one: both drew with the same seeds.
fn difference(scored: &[PoolScores], first: &str, other: &str) -> SamplerDifference {
    let by_count = collected(scored, |pool| {
        let own = pool.best_of.iter().filter(|((sampler, _), _)| sampler == first);
        let pairs = own.filter_map(|((_, count), seeds)| {
            let others = pool.best_of.get(&(other.to_string(), *count))?;
            let pairs = seeds.iter().filter_map(|(seed, value)| Some([*value, *others.get(seed)?]));
            Some((*count, pairs.collect()))
        });
        pairs.collect()
    });
    let best_of = by_count.into_par_iter().map(|(count, tasks)| (count, Difference::of(&tasks))).collect();
    SamplerDifference { sampler: first.to_string(), other: other.to_string(), best_of }
}

#[cfg(test)]
mod tests;
