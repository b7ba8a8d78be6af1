//! Programs drafted by the ten thousand in a world model's imagination, verified by an estimator.
//!
//! The draft is a mixture: mutations of the untuned programs and of the fastest that were measured, programs
//! drawn from the whole space, and what the transformer writes. None of them has a nest: decisions alone say
//! whether a program follows, and the world model says how fast it is. Half of the draft are children of what
//! the model likes of the other half. The nests of the best few are built, and the estimator says which of
//! them are measured, as it does for `lm`.

use std::collections::{HashMap, HashSet};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::dynamics::{imagined, world_of};
use super::lm::{LanguageModel, unranked};
use super::mutation::{self, untuned_programs};
use super::pool::{Valued, bring_forward, by_value, in_order, interleaved};
use super::{Candidate, History, Make, Method, Proposal, ProposeError, Proposer, Purpose};
use crate::language::Language;
use crate::model::{Checkpoint, World};
use crate::rank::{Described, Ranking};
use crate::space::{Space, Trace};
use crate::target::Task;

pub(super) const METHOD: Method = Method {
    name: "world",
    about: "A world model drafts among ten thousand programs without nests, the estimator verifies 256",
    learns: true,
    purpose: Purpose::Search,
    make: Make::Pretrained(|space, checkpoint, seed| Ok(Box::new(Drafting::new(space, checkpoint, seed, true)?))),
};

/// How much is drafted and verified.
#[derive(Clone, Copy)]
struct Amounts {
    /// Programs whose nests are not built.
    drafted: usize,
    /// Those of them that the transformer writes.
    written: usize,
    /// The share of the others that are drawn from the whole space.
    fresh: f64,
    /// Programs that have children.
    parents: usize,
    /// Programs whose nests are built, and at least so many for each that is measured.
    verified: usize,
    verified_for_each: usize,
}

const AMOUNTS: Amounts =
    Amounts { drafted: 10_000, written: 256, fresh: 0.25, parents: 32, verified: 256, verified_for_each: 4 };

/// Half of the draft, and children of what is liked of it.
const GENERATIONS: usize = 2;

/// Drafts and verifies, the same way for the same seed and history.
pub(super) struct Drafting<'a> {
    space: &'a Space,
    language: Language,
    world: &'a World,
    writer: LanguageModel<'a>,
    ranking: Ranking<'a>,
    amounts: Amounts,
    random: ChaCha8Rng,
}

/// What was drafted: distinct and new, the most promising first.
struct Draft {
    programs: Vec<(f32, Trace)>,
    drawn: u64,
    dead_ends: u64,
}

impl<'a> Drafting<'a> {
    /// With the world model of a checkpoint that has dynamics, or with the one that has none.
    ///
    /// # Errors
    /// [`ProposeError::Model`] where the checkpoint has none.
    pub fn new(
        space: &'a Space,
        checkpoint: &'a Checkpoint,
        seed: u64,
        dynamics: bool,
    ) -> Result<Drafting<'a>, ProposeError> {
        Ok(Drafting {
            space,
            language: Language::standard(),
            world: world_of(&checkpoint.worlds, dynamics)?,
            writer: unranked(space, checkpoint, seed),
            ranking: Ranking::new(space, Some(checkpoint.estimators.clone()), seed),
            amounts: AMOUNTS,
            random: ChaCha8Rng::seed_from_u64(seed),
        })
    }

    /// Drafts without building a nest.
    fn draft(&mut self, task: &Task, known: &[Trace], is_new: &dyn Fn(&Trace) -> bool) -> Result<Draft, ProposeError> {
        let Amounts { drafted, written, fresh, parents, .. } = self.amounts;
        let mut draft = Draft { programs: Vec::new(), drawn: 0, dead_ends: 0 };
        let mut seen: HashSet<Trace> = HashSet::new();
        for generation in 0..GENERATIONS {
            let mut drawn: Vec<Option<Trace>> = Vec::new();
            if generation == 0 {
                drawn.extend(known.iter().cloned().map(Some));
                let written = self.writer.sample(task, written)?;
                drawn.extend(written.into_iter().map(|written| written.complete.then_some(written.trace)));
            }
            let liked = draft.programs.iter().take(parents).map(|(_, trace)| trace.clone());
            // what was measured or needs no search, and what is liked, in turn
            let parents = interleaved(known.to_vec(), liked.collect());
            let left = (drafted / GENERATIONS).saturating_sub(drawn.len());
            let bred = mutation::draft(self.space, task, &parents, (left, fresh), &mut self.random);
            drawn.extend(bred.into_iter().map(|decided| decided.map(|decided| decided.trace)));
            draft.drawn += drawn.len() as u64;
            draft.dead_ends += drawn.iter().filter(|drawn| drawn.is_none()).count() as u64;
            let new = drawn.into_iter().flatten().filter(|trace| is_new(trace) && seen.insert(trace.clone()));
            let new: Vec<Trace> = new.collect();
            let ranks = imagined(self.world, (self.space, &self.language), task, &new)?;
            draft.programs.extend(ranks.into_iter().zip(new));
            // equal ones stay in the order in which they were drawn
            draft.programs.sort_by(|a, b| b.0.total_cmp(&a.0));
        }
        Ok(draft)
    }
}

impl Proposer for Drafting<'_> {
    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        // a run that is taken up again would draw what it has drawn before
        self.random.set_stream(history.len() as u64);
        let estimator = self.ranking.estimator(task, history)?;
        let untuned = untuned_programs(self.space, task);
        let known = [history.fastest(self.amounts.parents), untuned.clone()].concat();
        let Draft { programs, drawn, mut dead_ends } =
            self.draft(task, &known, &|trace: &Trace| !history.contains(trace))?;
        let ranks: HashMap<&Trace, f32> = programs.iter().map(|(rank, trace)| (trace, *rank)).collect();
        // what needs no search is looked at whatever the model says of it
        let mut chosen: Vec<&Trace> = untuned.iter().filter(|trace| ranks.contains_key(trace)).collect();
        let others = programs.iter().map(|(_, trace)| trace).filter(|trace| !untuned.contains(trace));
        let (wanted, mut others) = (self.amounts.verified.max(self.amounts.verified_for_each * count), others);
        let mut pool: Vec<Valued> = Vec::new();
        loop {
            let missing = wanted.saturating_sub(chosen.len());
            chosen.extend(others.by_ref().take(missing));
            if chosen.is_empty() {
                break;
            }
            let described = self.ranking.describe(task, chosen.drain(..).cloned().collect())?;
            dead_ends += described.iter().filter(|described| described.is_none()).count() as u64;
            pool.extend(described.into_iter().flatten().map(|Described { trace, features }| {
                let value = ranks.get(&trace).copied();
                let valued = Valued::new(Candidate::new(trace), features, estimator.as_ref());
                let value = valued.candidate.value.or(value);
                Valued { candidate: Candidate { value, ..valued.candidate }, ..valued }
            }));
            // where too few of them are programs, the next best are looked at
            if pool.len() >= count {
                break;
            }
        }
        pool.sort_by(by_value);
        let mut pool = in_order(pool, self.ranking.proposed(task).iter(), estimator.as_ref(), count);
        if let Some(known) = untuned.first() {
            bring_forward(&mut pool, known, usize::from(history.is_empty()));
        }
        pool.truncate(count);
        let described = pool.iter().map(|Valued { candidate, features, .. }| Described {
            trace: candidate.trace.clone(),
            features: features.clone(),
        });
        self.ranking.remember(task, described);
        let candidates = pool.into_iter().map(|valued| valued.candidate).collect();
        Ok(Proposal { candidates, dead_ends, drawn })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Drafting;
    use crate::model::Worlds;
    use crate::nest::LoopKind;
    use crate::propose::example::product;
    use crate::propose::tests::checkpoint;
    use crate::propose::{History, Proposer};
    use crate::space::{Next, Rule, Space, Step, Stop, Tape, View, Words};

    /// Asks whether the schedule shall have a step that fits no program.
    struct Broken;

    impl<M> Rule<M> for Broken {
        fn name(&self) -> &'static str {
            "broken"
        }

        fn version(&self) -> u32 {
            1
        }

        fn absent_is_default(&self) -> bool {
            true
        }

        fn decide(&self, _: &View<'_, M>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
            let is_broken = tape.choose("broken".into(), ["no", "yes"].map(Words::from).to_vec(), 0)?.is("yes");
            Ok(if is_broken {
                vec![Step::Mark { kind: LoopKind::Unroll, loops: vec!["nowhere".into()] }]
            } else {
                vec![]
            })
        }
    }

    #[test]
    fn a_draft_builds_no_nest() {
        let (space, task) = (Space::standard().with(Box::new(Broken)), product());
        let checkpoint = checkpoint(&space);
        let mut drafting = Drafting::new(&space, &checkpoint, 1, true).unwrap();
        let draft = drafting.draft(&task, &[], &|_| true).unwrap();
        let broken: Vec<_> =
            draft.programs.iter().filter(|(_, trace)| trace.to_string().contains("broken = yes")).collect();
        // whoever builds one of them is told of a fault
        assert!(matches!(space.next(&task, &broken[0].1), Ok(Next::Defect(_))));
        assert!(broken.len() > 1000 && draft.programs.len() > 4000, "{} of {}", broken.len(), draft.programs.len());
        assert!(draft.programs.is_sorted_by(|a, b| a.0 >= b.0));
        let distinct: BTreeSet<_> = draft.programs.iter().map(|(_, trace)| trace).collect();
        assert_eq!(distinct.len(), draft.programs.len());
        assert!(draft.programs.len() as u64 <= draft.drawn - draft.dead_ends);
        assert!(draft.programs.iter().step_by(97).all(|(_, trace)| space.offers(&task, trace)));
    }

    #[test]
    fn without_a_world_model_it_says_what_to_do() {
        let space = Space::standard();
        let mut checkpoint = (*checkpoint(&space)).clone();
        checkpoint.worlds.end = None;
        let refused = |dynamics| Drafting::new(&space, &checkpoint, 1, dynamics).err().map(|error| error.to_string());
        assert_eq!(refused(true), None);
        assert!(refused(false).is_some_and(|error| error.contains("pretrain --world-only --world-end")));
        // a model of another space is not asked
        let mut world = checkpoint.worlds.dynamic.take().unwrap();
        assert!(checkpoint.worlds == Worlds::default());
        let mut spaces = world.spaces().clone();
        spaces.cpu = "cpu:strange-1".into();
        world = crate::model::World::from_tensors(world.config().clone(), spaces, world.tensors().clone()).unwrap();
        checkpoint.worlds.put(world);
        let mut drafting = Drafting::new(&space, &checkpoint, 1, true).unwrap();
        let error = drafting.propose(&product(), &History::default(), 1).unwrap_err().to_string();
        assert!(error.contains("another space"), "{error}");
    }
}
