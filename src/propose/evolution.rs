//! Evolution: mutations of the fastest programs measured so far, among uniformly drawn ones, ranked by a
//! learned estimate.
//!
//! What Ansor and MetaSchedule do. Their estimate begins from nothing with every task; with a `prior` it
//! begins with one that was pretrained. Before much is measured, the untuned programs are parents, too: one
//! for each answer to the first decision, after which little of another parent could be kept.

use std::collections::BTreeSet;

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::mutation::{children, untuned_programs};
use super::{Candidate, History, Make, Method, Proposal, ProposeError, Proposer, Purpose};
use crate::model::Estimators;
use crate::rank::{Described, Ranking};
use crate::space::{Space, Trace};
use crate::target::Task;

/// Learns its estimate from what it measures.
pub(super) const METHOD: Method = Method {
    name: "evolution",
    about: "Mutations of the fastest programs measured so far, ranked by an estimate that is learned from them",
    learns: true,
    purpose: Purpose::Search,
    make: Make::Plain(|space, seed| Ok(Box::new(Evolution::new(space, None, seed)))),
};

/// Begins with what a checkpoint knows.
pub(super) const GUIDED: Method = Method {
    name: "guided",
    about: "Evolution that starts from the checkpoint's estimator",
    learns: true,
    purpose: Purpose::Search,
    make: Make::Pretrained(|space, checkpoint, seed| {
        Ok(Box::new(Evolution::new(space, Some(checkpoint.estimators.clone()), seed)))
    }),
};

/// The numbers of the search.
struct Heuristics {
    /// The fastest programs, which become parents.
    parents: usize,
    /// The part of candidates that are drawn from the whole space, so that the search does not end in the
    /// first valley.
    fresh: f64,
    /// Traces drawn for each one asked for, before a small space is taken to be exhausted.
    draws_per_candidate: usize,
    /// Generations, where there is an estimate.
    generations: usize,
    /// Children of a generation for each program asked for, where there is an estimate.
    children: usize,
    /// The part of candidates that are taken as they come, whatever their estimate: it must learn what it
    /// does not know.
    explored: f64,
}

const HEURISTICS: Heuristics =
    Heuristics { parents: 8, fresh: 0.25, draws_per_candidate: 30, generations: 3, children: 3, explored: 0.15 };

/// Mutates what was fast, the same way for the same seed and history.
pub struct Evolution<'a> {
    space: &'a Space,
    ranking: Ranking<'a>,
    rng: ChaCha8Rng,
}

/// A program and its estimate.
struct Ranked {
    described: Described,
    score: Option<f32>,
}

impl<'a> Evolution<'a> {
    /// Starts from an estimate that was learned from other tasks, if there is one; learns it from what it
    /// measures otherwise.
    pub fn new(space: &'a Space, prior: Option<Estimators>, seed: u64) -> Evolution<'a> {
        Evolution { space, ranking: Ranking::new(space, prior, seed), rng: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// Draws `count` programs, and describes those that are not in `seen`.
    fn children(
        &mut self,
        task: &Task,
        parents: &[Trace],
        count: usize,
        seen: &mut BTreeSet<Trace>,
        proposal: &mut Proposal,
    ) -> Vec<Described> {
        let (mut fresh, mut bred) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let seeds = if self.rng.random_bool(HEURISTICS.fresh) { &mut fresh } else { &mut bred };
            seeds.push(self.rng.next_u64());
        }
        let of = |parents: &[Trace], seeds| children(self.space, task, parents, seeds);
        let drawn = [of(&[], fresh), of(parents, bred)].concat();
        proposal.drawn += drawn.len() as u64;
        proposal.dead_ends += drawn.iter().filter(|drawn| drawn.is_none()).count() as u64;
        drawn.into_iter().flatten().filter(|described| seen.insert(described.trace.clone())).collect()
    }

    /// The untuned programs that were not measured yet, as far as they are wanted.
    fn starts(
        &self,
        task: &Task,
        history: &History,
        count: usize,
    ) -> Result<(Vec<Trace>, Vec<Described>), ProposeError> {
        let untuned = untuned_programs(self.space, task);
        let new = untuned.iter().filter(|trace| !history.contains(trace)).take(count).cloned().collect();
        let new = self.ranking.describe(task, new)?.into_iter().flatten().collect();
        Ok((untuned, new))
    }
}

/// Best first; without an estimate, in the order in which they were drawn.
fn rank(pool: &mut [Ranked]) {
    pool.sort_by(|a, b| {
        let score = |ranked: &Ranked| ranked.score.unwrap_or(0.0);
        score(b).total_cmp(&score(a))
    });
}

impl Proposer for Evolution<'_> {
    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        let mut proposal = Proposal::default();
        // a run that is taken up again would draw what it has drawn before, and take the space to be
        // exhausted
        self.rng.set_stream(history.len() as u64);
        let estimator = self.ranking.estimator(task, history)?;
        let score = |described: Described| {
            let score = estimator.as_ref().and_then(|estimator| estimator.score(&described.features));
            Ranked { described, score }
        };
        let (mut parents, mut chosen) = (history.fastest(HEURISTICS.parents), Vec::new());
        if parents.len() < HEURISTICS.parents {
            let (untuned, new) = self.starts(task, history, count)?;
            proposal.drawn += new.len() as u64;
            chosen.extend(new.into_iter().map(score));
            parents.extend(untuned);
        }
        let mut seen: BTreeSet<Trace> = chosen.iter().map(|ranked: &Ranked| ranked.described.trace.clone()).collect();
        let mut pool: Vec<Ranked> = Vec::new();
        let (generations, children) =
            if estimator.is_some() { (HEURISTICS.generations, HEURISTICS.children * count) } else { (1, count) };
        let children = children.max(1);
        for generation in 0..count * HEURISTICS.draws_per_candidate / children {
            if generation >= generations && chosen.len() + pool.len() >= count {
                break;
            }
            // programs that are thought to be fast have children like those that are known to be
            let promising = pool.iter().filter(|ranked| ranked.score.is_some()).take(HEURISTICS.parents);
            let promising = promising.map(|ranked| ranked.described.trace.clone());
            let parents: Vec<Trace> = promising.chain(parents.iter().cloned()).collect();
            let new = self.children(task, &parents, children, &mut seen, &mut proposal);
            pool.extend(new.into_iter().filter(|new| !history.contains(&new.trace)).map(score));
            rank(&mut pool);
        }
        while chosen.len() < count && !pool.is_empty() {
            let explores = estimator.is_some() && self.rng.random_bool(HEURISTICS.explored);
            let at = if explores { self.rng.random_range(0..pool.len()) } else { 0 };
            chosen.push(pool.remove(at));
        }
        self.ranking.remember(task, chosen.iter().map(|ranked| ranked.described.clone()));
        let candidate =
            |ranked: Ranked| Candidate { trace: ranked.described.trace, log_likelihood: None, value: ranked.score };
        proposal.candidates = chosen.into_iter().map(candidate).collect();
        Ok(proposal)
    }
}

#[cfg(test)]
mod tests {
    use super::{Evolution, History, Proposer, untuned_programs};
    use crate::propose::example::product;
    use crate::space::{Next, Space, Untuned};

    #[test]
    fn children_are_legal_new_and_mostly_like_their_parents() {
        let (space, task) = (Space::standard(), product());
        let (parent, _) = space.drive(&task, &mut Untuned);
        let mut history = History::default();
        history.insert(parent.clone(), Some(5));
        let proposal = Evolution::new(&space, None, 1).propose(&task, &history, 40).unwrap();
        let parents = untuned_programs(&space, &task);
        assert_eq!(parents[0], parent);
        assert!(parents[1..].iter().all(|other| proposal.candidates.iter().any(|c| c.trace == *other)));
        assert_eq!(proposal, Evolution::new(&space, None, 1).propose(&task, &history, 40).unwrap());
        assert_eq!(proposal.candidates.len(), 40);
        let mut alike = 0;
        for candidate in &proposal.candidates {
            assert!(matches!(space.next(&task, &candidate.trace), Ok(Next::Done(_))));
            assert!(!history.contains(&candidate.trace));
            let kept = |parent: &crate::space::Trace| {
                candidate.trace.0.iter().filter(|choice| parent.0.contains(choice)).count()
            };
            alike += usize::from(parents.iter().any(|parent| 2 * kept(parent) > parent.0.len()));
        }
        assert!((20..40).contains(&alike), "{alike}");
    }
}
