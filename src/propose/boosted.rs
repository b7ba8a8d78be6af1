//! What searches share that learn from a task's own measurements alone, by boosted trees that are trained
//! anew with every batch; and how they choose from the programs that they looked at.

use std::collections::{BTreeMap, BTreeSet};

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::pool::told_apart;
use super::replay::{Answers, described};
use super::{Candidate, History, Proposal, ProposeError};
use crate::model::{Regression, RegressionOptions};
use crate::rank::{Described, Ranking};
use crate::space::{Space, Trace, Word};
use crate::target::Task;

/// Programs that a search looks at for each one that is measured.
pub(super) const LOOKS: usize = 128;
/// Programs measured before trees are trained.
const ENOUGH: usize = 4;
/// The least that a program weighs in training: slow ones tell little of what is fast.
const LEAST_WEIGHT: f32 = 0.05;

/// A program that was looked at.
#[derive(Clone, Debug)]
pub(super) struct Scored {
    pub described: Described,
    /// Expected speed relative to the best known program; 0 where nothing is known.
    pub score: f32,
}

/// Trees of a task, and the programs that they are trained on.
pub(super) struct Boosted<'a> {
    pub space: &'a Space,
    ranking: Ranking<'a>,
}

/// The programs of one proposal.
pub(super) struct Pool<'a> {
    space: &'a Space,
    task: &'a Task,
    history: &'a History,
    learned: Option<Regression>,
    /// Features of what was measured.
    known: Vec<Vec<f32>>,
    seen: BTreeSet<Trace>,
    /// New ones, in the order in which they were looked at.
    pub programs: Vec<Scored>,
    pub proposal: Proposal,
}

impl<'a> Boosted<'a> {
    pub fn new(space: &'a Space, seed: u64) -> Boosted<'a> {
        Boosted { space, ranking: Ranking::new(space, None, seed) }
    }

    /// An empty pool, with trees that know what was measured.
    pub fn pool<'p>(&mut self, task: &'p Task, history: &'p History) -> Result<Pool<'p>, ProposeError>
    where
        'a: 'p,
    {
        let measured = self.ranking.measured(task, history)?;
        let speeds: Vec<f32> = measured.speeds.iter().map(|log| log.exp2()).collect();
        let weights: Vec<f32> = speeds.iter().map(|speed| speed.max(LEAST_WEIGHT)).collect();
        let fit = || Regression::fit(&measured.features, &speeds, &weights, &RegressionOptions::default());
        let learned = (speeds.len() >= ENOUGH).then(fit);
        let (seen, programs, proposal) = (BTreeSet::new(), Vec::new(), Proposal::default());
        let known = measured.features;
        Ok(Pool { space: self.space, task, history, learned, known, seen, programs, proposal })
    }

    /// Keeps the looks of what is going to be measured, and names it.
    pub fn propose(&mut self, task: &Task, pool: Pool<'_>, chosen: Vec<Scored>) -> Proposal {
        self.ranking.remember(task, chosen.iter().map(|scored| scored.described.clone()));
        let value = |score: f32| pool.learned.is_some().then_some(score);
        let candidate =
            |Scored { described, score }| Candidate { value: value(score), ..Candidate::new(described.trace) };
        Proposal { candidates: chosen.into_iter().map(candidate).collect(), ..pool.proposal }
    }
}

impl Pool<'_> {
    /// Whether anything is known.
    pub fn is_taught(&self) -> bool {
        self.learned.is_some()
    }

    /// Looks at the programs that answer so, each in its place; dead ends are `None`. New ones join.
    pub fn look(&mut self, answers: Vec<Answers>) -> Vec<Option<Scored>> {
        let drawn = described(self.space, self.task, answers);
        self.join(drawn)
    }

    /// The same for programs that were looked at elsewhere.
    pub fn join(&mut self, drawn: Vec<Option<Described>>) -> Vec<Option<Scored>> {
        self.proposal.drawn += drawn.len() as u64;
        self.proposal.dead_ends += drawn.iter().filter(|drawn| drawn.is_none()).count() as u64;
        let score = |described: Described| {
            let score = self.learned.as_ref().map_or(0.0, |learned| learned.score(&described.features));
            Scored { described, score }
        };
        let scored: Vec<Option<Scored>> = drawn.into_iter().map(|drawn| drawn.map(score)).collect();
        for scored in scored.iter().flatten() {
            let trace = &scored.described.trace;
            if !self.history.contains(trace) && self.seen.insert(trace.clone()) {
                self.programs.push(scored.clone());
            }
        }
        scored
    }

    /// The best first, but for a share that is drawn whatever the trees say of it: they must learn what they
    /// do not know. Without trees, all in the order in which they were looked at. What looks like a program
    /// before it comes last: it would tell nothing.
    pub fn choose(&mut self, count: usize, explored: f64, rng: &mut ChaCha8Rng) -> Vec<Scored> {
        let mut left = std::mem::take(&mut self.programs);
        left.sort_by(|a, b| b.score.total_cmp(&a.score));
        let known = self.known.iter().map(Vec::as_slice);
        let (mut left, mut alike) = told_apart(left, |scored| &scored.described.features, known);
        let mut chosen = Vec::new();
        while chosen.len() < count {
            if left.is_empty() {
                left = std::mem::take(&mut alike);
            }
            if left.is_empty() {
                break;
            }
            let explores = self.is_taught() && rng.random_bool(explored);
            let at = if explores { rng.random_range(0..left.len()) } else { 0 };
            chosen.push(left.remove(at));
        }
        chosen
    }
}

/// A parent by its score, better ones more often.
pub(super) fn roulette<'p>(parents: &'p [Scored], rng: &mut ChaCha8Rng) -> Option<&'p Trace> {
    let weight = |scored: &Scored| f64::from(scored.score.max(1e-3));
    let mut at = rng.random_range(0.0..1.0) * parents.iter().map(weight).sum::<f64>();
    let hit = parents.iter().find(|scored| {
        at -= weight(scored);
        at <= 0.0
    });
    hit.or(parents.last()).map(|scored| &scored.described.trace)
}

/// Of two parents, the answers about each group of stages from one of them: what a site is about is its
/// second word.
pub(super) fn crossed(one: &Trace, other: &Trace, rng: &mut ChaCha8Rng) -> Answers {
    let mut from_other: BTreeMap<Option<&Word>, bool> = BTreeMap::new();
    let mut answers = Answers::of(one);
    for choice in one.0.iter().chain(&other.0) {
        from_other.entry(choice.site.0.get(1)).or_insert_with(|| rng.random_bool(0.5));
    }
    for choice in other.0.iter().filter(|choice| from_other.get(&choice.site.0.get(1)) == Some(&true)) {
        answers = answers.with(&choice.site, &choice.value);
    }
    answers
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::{Boosted, ChaCha8Rng, Scored, crossed, roulette};
    use crate::propose::example::{product, rough};
    use crate::propose::{History, Proposer, Random};
    use crate::space::{Space, Trace};

    fn programs(space: &Space, count: usize) -> Vec<Trace> {
        let drawn = Random::new(space, 1).propose(&product(), &History::default(), count).unwrap();
        drawn.candidates.into_iter().map(|candidate| candidate.trace).collect()
    }

    #[test]
    fn trees_prefer_what_is_like_the_fast() {
        let (space, task, mut history) = (Space::standard(), product(), History::default());
        let (known, new) = (programs(&space, 60), programs(&space, 120).split_off(60));
        let mut boosted = Boosted::new(&space, 1);
        known.iter().for_each(|trace| history.insert(trace.clone(), Some(rough(trace))));
        let mut pool = boosted.pool(&task, &history).unwrap();
        let answers = |traces: &[Trace]| traces.iter().map(super::Answers::of).collect();
        pool.look(answers(&new));
        assert_eq!(pool.look(answers(&known)).len(), 60);
        assert_eq!(pool.programs.len(), 60, "those that are known do not join");
        let ns = |chosen: &[Scored]| chosen.iter().map(|scored| rough(&scored.described.trace)).sum::<u64>();
        let chosen = pool.choose(60, 0.0, &mut ChaCha8Rng::seed_from_u64(1));
        assert!(ns(&chosen[..20]) < ns(&chosen[40..]), "{} {}", ns(&chosen[..20]), ns(&chosen[40..]));
        // the better, the more often a parent
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let parents = [Scored { score: 0.9, ..chosen[0].clone() }, Scored { score: 0.1, ..chosen[1].clone() }];
        let of_first = (0..100).filter(|_| roulette(&parents, &mut rng) == Some(&parents[0].described.trace)).count();
        assert!((80..100).contains(&of_first), "{of_first}");
    }

    #[test]
    fn a_cross_has_the_answers_of_both() {
        let space = Space::standard();
        let parents = programs(&space, 2);
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        for _ in 0..10 {
            let answers = crossed(&parents[0], &parents[1], &mut rng);
            for choice in &parents[0].0 {
                let theirs = parents[1].0.iter().find(|other| other.site == choice.site);
                let answer = answers.get(&choice.site).unwrap();
                assert!(*answer == choice.value || theirs.is_some_and(|theirs| theirs.value == *answer));
            }
        }
    }
}
