//! The language model as a proposer: it writes traces decision by decision, and only legal ones.
//!
//! They are written behind a prompt that asks for the best. Once programs were measured, half of the
//! sequences begin as the fastest of them do, and part from them at a random decision. The untuned programs
//! are in the pool, too, and the first of them is among the first two that are measured. An estimator ranks
//! the pool by what the programs look like, and the most promising, with the fastest that were measured, have
//! children that join it, for a few generations: the neighbourhood of what is likely to be good is searched.
//! Programs that look alike are not both measured. What is not chosen stays for the next time, when only half
//! as many sequences are written. Without an estimator, the value head judges the programs, behind a prompt
//! that asks for nothing, since it learned where the prompt does not tell what came out.

use std::collections::BTreeSet;

use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::mutation::{children, untuned_programs};
use super::pool::{Rest, Valued, bring_forward, by_value, distinct_looking, promising_first};
use super::sequence::{prompt_positions, trace_positions};
use super::writing::{Ending, Writing};
use super::{Candidate, History, Proposal, ProposeError, Proposer};
use crate::language::Language;
use crate::model::{
    Adapted, Decoder, Estimators, GpuVersions, Model, ModelError, Position, Prompt, SamplingOptions, Versions,
};
use crate::rank::{Described, FEATURES_VERSION, GPU_FEATURES_VERSION, Ranking};
use crate::space::{Choice, Space, Trace};
use crate::target::{Kind, Task};
use crate::workload::Workload;

/// The quality that is asked for: the best decile.
const WANT: u8 = 9;
/// Traces sampled at once, at least, and for each one asked for: what the ranking chooses from.
const SAMPLES: usize = 128;
const SAMPLES_PER_CANDIDATE: usize = 8;
/// Where programs are left from the time before, this part of the samples is enough.
const LATER: usize = 2;
/// Rounds of sampling before a small space, or a very certain model, is taken to be exhausted.
const ROUNDS: u64 = 8;

/// The fastest programs, whose beginnings are gone on from, and which have children; and so many of the most
/// promising.
const PARENTS: usize = 4;
/// Generations of children, and how many each has, relative to the samples.
const GENERATIONS: usize = 2;
const CHILDREN: f64 = 0.5;

/// What the search makes use of: all of it, unless an ablation takes something away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ingredients {
    /// The prompt asks for the best quality; otherwise for nothing in particular.
    pub want: bool,
    /// The prompt spells the workload out; otherwise it names the machine only.
    pub workload: bool,
    /// Programs are ranked; otherwise they come in the order in which they were written.
    pub ranking: bool,
    /// Sequences begin as the fastest measured ones do, and the untuned programs and children of good ones
    /// join the pool.
    pub neighbours: bool,
    /// The program of the rules is among the first two that are measured, whatever the ranking says;
    /// otherwise where it says.
    pub untuned: bool,
}

impl Ingredients {
    pub const ALL: Ingredients =
        Ingredients { want: true, workload: true, ranking: true, neighbours: true, untuned: true };
}

/// The versions that a checkpoint must have to write for this language and space; those of GPUs, if it names
/// any.
pub fn versions(language: &Language, space: &Space) -> Versions {
    Versions {
        tilescribe: env!("CARGO_PKG_VERSION").into(),
        language: language.version(),
        space: space.version(Kind::Cpu),
        features: FEATURES_VERSION.into(),
        gpu: Some(GpuVersions { space: space.version(Kind::Gpu), features: GPU_FEATURES_VERSION.into() }),
    }
}

/// Samples traces from a model, and ranks them by its value head.
pub struct LanguageModel<'a> {
    space: &'a Space,
    language: Language,
    decoder: Decoder,
    /// Ranks by an estimator; without one, the value head ranks.
    ranking: Option<Ranking<'a>>,
    ingredients: Ingredients,
    samples: usize,
    temperature: f64,
    top_p: f64,
    seed: u64,
    /// Batches sampled so far: each has its own random numbers.
    rounds: u64,
    /// What was not chosen so far.
    rest: Rest,
}

impl<'a> LanguageModel<'a> {
    /// `model` was checked to be of this space's and language's [`versions`].
    pub fn new(space: &'a Space, language: Language, model: &Model, seed: u64) -> LanguageModel<'a> {
        let decoder = Decoder::new(model);
        let ingredients = Ingredients::ALL;
        LanguageModel {
            space,
            language,
            decoder,
            ranking: None,
            ingredients,
            samples: SAMPLES,
            temperature: 1.0,
            top_p: 0.98,
            seed,
            rounds: 0,
            rest: Rest::default(),
        }
    }

    /// Ranked by estimators of this program's features, or by one that learns from nothing but what is
    /// measured.
    #[must_use]
    pub fn ranked_by(mut self, prior: Option<Estimators>) -> LanguageModel<'a> {
        self.ranking = Some(Ranking::new(self.space, prior, self.seed));
        self
    }

    /// The ranking chooses from so many samples, at least.
    #[must_use]
    pub fn with_samples(mut self, samples: usize) -> LanguageModel<'a> {
        self.samples = samples.max(1);
        self
    }

    /// With only some of what it makes use of.
    #[must_use]
    pub fn with_ingredients(mut self, ingredients: Ingredients) -> LanguageModel<'a> {
        self.ingredients = ingredients;
        self
    }

    /// Another model from now on, fine-tuned meanwhile.
    pub fn replace_model(&mut self, model: &Model) {
        self.decoder = Decoder::new(model);
    }

    /// How freely to sample; see [`SamplingOptions`].
    #[must_use]
    pub fn with_sampling(mut self, temperature: f64, top_p: f64) -> LanguageModel<'a> {
        (self.temperature, self.top_p) = (temperature, top_p);
        self
    }

    /// Writes `count` traces as the model likes them: neither ranked nor realised, and the same one more than
    /// once if the model likes it so much.
    ///
    /// # Errors
    /// As [`Proposer::propose`].
    pub fn sample(&mut self, task: &Task, count: usize) -> Result<Vec<Written>, ProposeError> {
        let prompt = self.prompt(task, Some(WANT))?;
        self.write(&prompt, task, &[], count)
    }

    fn prompt(&self, task: &Task, want: Option<u8>) -> Result<Prompt, ProposeError> {
        let want = want.filter(|_| self.ingredients.want);
        let positions = match self.ingredients.workload {
            true => prompt_positions(&self.language, task, want),
            false => {
                let nothing = Task { workload: Workload::default(), target: task.target.clone() };
                prompt_positions(&self.language, &nothing, want)
            }
        };
        self.decoder.prompt(&positions).map_err(refused)
    }

    /// Writes traces; where there are parents, every other one begins like one of them.
    fn write(
        &mut self,
        prompt: &Prompt,
        task: &Task,
        parents: &[Trace],
        count: usize,
    ) -> Result<Vec<Written>, ProposeError> {
        let seed = self.seed ^ self.rounds.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut writing = |number: usize| {
            let start = if number % 2 == 1 { start_of_one(parents, &mut random) } else { Vec::new() };
            Writing::new(self.space, &self.language, task, start)
        };
        let mut guides: Vec<Writing<'_>> = (0..count).map(&mut writing).collect();
        let options = SamplingOptions { temperature: self.temperature, top_p: self.top_p, seed };
        self.rounds += 1;
        let sampled = self.decoder.sample(prompt, &mut guides, &options).map_err(refused)?;
        let written = guides.into_iter().zip(sampled).map(|(guide, sampled)| {
            let complete = match guide.end {
                Some(Ending::Complete) => true,
                Some(Ending::Stale(stale)) => return Err(stale.into()),
                // nothing follows, or it is longer than the model's sequences
                Some(Ending::Nowhere) | None => false,
            };
            Ok(Written { trace: guide.trace, complete, log_likelihood: sampled.log_likelihood })
        });
        written.collect()
    }

    /// Values of traces, by the value head.
    fn judge(&self, task: &Task, traces: &[Trace]) -> Result<Vec<f32>, ProposeError> {
        let blind = self.prompt(task, None)?;
        let sequences: Vec<Vec<Position>> = traces.iter().map(|trace| trace_positions(&self.language, trace)).collect();
        self.decoder.values(&blind, &sequences).map_err(refused)
    }

    /// Looks at programs; dead ends are left out.
    fn valued(
        &self,
        task: &Task,
        estimator: Option<&Adapted>,
        pool: Vec<Candidate>,
    ) -> Result<Vec<Valued>, ProposeError> {
        let traces: Vec<Trace> = pool.iter().map(|candidate| candidate.trace.clone()).collect();
        let Some(ranking) = &self.ranking else {
            let values = self.judge(task, &traces)?;
            let mut legal = Vec::new();
            for (candidate, value) in pool.into_iter().zip(values) {
                if matches!(self.space.next(task, &candidate.trace)?, crate::space::Next::Done(_)) {
                    let candidate = Candidate { value: Some(value), ..candidate };
                    legal.push(Valued { candidate, features: Vec::new(), expected: None });
                }
            }
            return Ok(legal);
        };
        let described = ranking.describe(task, traces)?;
        let looked_at = pool
            .into_iter()
            .zip(described)
            .filter_map(|(candidate, described)| Some(Valued::new(candidate, described?.features, estimator)));
        Ok(looked_at.collect())
    }

    /// What the model writes, beside the untuned programs, as far as it is new.
    fn drawn(
        &mut self,
        task: &Task,
        prompt: &Prompt,
        (untuned, parents): (&[Trace], &[Trace]),
        count: usize,
        proposal: &mut Proposal,
        is_new: &mut dyn FnMut(&Trace) -> bool,
    ) -> Result<Vec<Candidate>, ProposeError> {
        let mut pool = Vec::new();
        let mut join = |trace: Trace, log_likelihood| {
            if is_new(&trace) {
                pool.push(Candidate { trace, log_likelihood, value: None });
            }
        };
        untuned.iter().for_each(|trace| join(trace.clone(), None));
        for written in self.write(prompt, task, parents, count)? {
            proposal.drawn += 1;
            match written.complete {
                true => join(written.trace, Some(written.log_likelihood as f32)),
                false => proposal.dead_ends += 1,
            }
        }
        Ok(pool)
    }

    /// Children of the most promising of a sorted pool, and of the fastest that were measured.
    fn bred(
        &self,
        task: &Task,
        estimator: Option<&Adapted>,
        (pool, fastest): (&[Valued], &[Trace]),
        random: &mut ChaCha8Rng,
        is_new: &mut dyn FnMut(&Trace) -> bool,
    ) -> Result<Vec<Valued>, ProposeError> {
        let promising = pool.iter().filter(|valued| valued.candidate.value.is_some()).take(PARENTS);
        let parents: Vec<Trace> = promising.map(|valued| &valued.candidate.trace).chain(fastest).cloned().collect();
        if parents.is_empty() {
            return Ok(Vec::new());
        }
        let count = (CHILDREN * self.samples as f64) as usize;
        let seeds = (0..count).map(|_| random.next_u64()).collect();
        let new = children(self.space, task, &parents, seeds).into_iter().flatten();
        let new = new.filter(|described| is_new(&described.trace));
        let candidate = |trace| Candidate { trace, log_likelihood: None, value: None };
        if self.ranking.is_none() {
            return self.valued(task, None, new.map(|described| candidate(described.trace)).collect());
        }
        Ok(new.map(|Described { trace, features }| Valued::new(candidate(trace), features, estimator)).collect())
    }

    /// A pool in the order in which it is worth to be measured, when so many are wanted.
    fn ordered(&self, task: &Task, estimator: Option<&Adapted>, mut pool: Vec<Valued>, wanted: usize) -> Vec<Valued> {
        if self.ingredients.ranking {
            pool.sort_by(by_value);
        }
        let measured = self.ranking.iter().flat_map(|ranking| ranking.proposed(task));
        let (mut ordered, alike) = distinct_looking(pool, measured.map(|described| described.features.as_slice()));
        if let Some(estimator) = estimator.filter(|_| self.ingredients.ranking) {
            ordered = promising_first(ordered, estimator, wanted);
        }
        ordered.extend(alike);
        ordered
    }
}

/// A trace that the model wrote.
#[derive(Clone, PartialEq, Debug)]
pub struct Written {
    pub trace: Trace,
    /// Whether all is decided; else the space offered nothing further, or the model's longest sequence was
    /// reached.
    pub complete: bool,
    /// Natural logarithm of the probability that the model gave to what it chose, among the legal ones.
    pub log_likelihood: f64,
}

fn refused(error: ModelError) -> ProposeError {
    ProposeError::Model(error.to_string())
}

impl Proposer for LanguageModel<'_> {
    fn name(&self) -> &str {
        "lm"
    }

    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        let prompt = self.prompt(task, Some(WANT))?;
        let estimator = match &mut self.ranking {
            Some(ranking) => ranking.estimator(task, history)?,
            None => None,
        };
        let mut proposal = Proposal::default();
        let mut seen = BTreeSet::new();
        let mut is_new = |trace: &Trace| !history.contains(trace) && seen.insert(trace.clone());
        let (untuned, fastest) = match self.ingredients.neighbours {
            true => (untuned_programs(self.space, task), history.fastest(PARENTS)),
            false => (Vec::new(), Vec::new()),
        };
        // a run that is taken up again would draw what it has drawn before, and take the space to be
        // exhausted
        self.rounds = self.rounds.max(history.len() as u64);
        let mut rest = self.rest.take(&task.workload.hash().to_string(), estimator.as_ref());
        rest.retain(|valued| is_new(&valued.candidate.trace));
        let fresh = if rest.is_empty() { self.samples } else { self.samples / LATER };
        for _ in 0..ROUNDS {
            let wanted = count - proposal.candidates.len();
            if wanted == 0 {
                break;
            }
            let mut random = ChaCha8Rng::seed_from_u64(self.seed ^ self.rounds.wrapping_mul(0xd1b5_4a32_d192_ed03));
            let samples = fresh.max(SAMPLES_PER_CANDIDATE * wanted);
            let pool = self.drawn(task, &prompt, (&untuned, &fastest), samples, &mut proposal, &mut is_new)?;
            let drawn = pool.len();
            let mut pool = self.valued(task, estimator.as_ref(), pool)?;
            proposal.dead_ends += (drawn - pool.len()) as u64;
            pool.append(&mut rest);
            let generations = if self.ingredients.neighbours && self.ingredients.ranking { GENERATIONS } else { 0 };
            for _ in 0..generations {
                pool.sort_by(by_value);
                let children = self.bred(task, estimator.as_ref(), (&pool, &fastest), &mut random, &mut is_new)?;
                pool.extend(children);
            }
            let mut chosen = self.ordered(task, estimator.as_ref(), pool, wanted);
            // estimates err: the program of the rules is among the first two that are measured, whatever they
            // say of it
            if let Some(known) = untuned.first().filter(|_| self.ingredients.untuned) {
                bring_forward(&mut chosen, known, usize::from(history.is_empty()));
            }
            rest = chosen.split_off(wanted.min(chosen.len()));
            if let Some(ranking) = &mut self.ranking {
                let described = chosen.iter().map(|Valued { candidate, features, .. }| Described {
                    trace: candidate.trace.clone(),
                    features: features.clone(),
                });
                ranking.remember(task, described);
            }
            proposal.candidates.extend(chosen.into_iter().map(|valued| valued.candidate));
        }
        if self.ranking.is_some() && self.ingredients.ranking {
            self.rest.keep(task.workload.hash().to_string(), rest);
        }
        Ok(proposal)
    }
}

/// The first decisions of one of the parents: at least one decision is left open.
fn start_of_one(parents: &[Trace], random: &mut ChaCha8Rng) -> Vec<Choice> {
    let Some(parent) = parents.choose(random).filter(|parent| !parent.0.is_empty()) else { return Vec::new() };
    parent.0[..random.random_range(0..parent.0.len())].to_vec()
}

#[cfg(test)]
mod tests {
    use super::{History, LanguageModel, Proposer, untuned_programs};
    use crate::language::Language;
    use crate::model::{Config, Estimator, Model, Position};
    use crate::outcome::Outcome;
    use crate::propose::example::product;
    use crate::propose::sequence::{prompt_positions, trace_positions};
    use crate::propose::train::examples;
    use crate::rank::FEATURES;
    use crate::record::{Entry, Record};
    use crate::space::{Next, Space, Trace};
    use crate::target::Kind;

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
        // children of the fastest are in the pool, though nobody wrote them
        let mut history = History::default();
        for (number, candidate) in few.candidates.iter().enumerate() {
            history.insert(candidate.trace.clone(), Some(1000 + number as u64));
        }
        let next = lm(4).propose(&task, &history, 400).unwrap();
        assert!(next.candidates.iter().filter(|candidate| candidate.log_likelihood.is_none()).count() > 20);
        assert!(next.candidates.iter().all(|candidate| !history.contains(&candidate.trace)));
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
        let made = examples(&entries, &language, &space, 1024);
        assert_eq!((made.tasks, made.too_long, made.skipped, made.examples.len()), (1, 0, 0, 4));
        for ((example, entry), (want, speed)) in
            made.examples.iter().zip(&entries).zip([(9, 1.0f32), (4, 0.5), (0, 0.1), (2, 0.25)])
        {
            assert_eq!(*example.prompt, prompt_positions(&language, &task, Some(want)));
            assert_eq!(example.blind.as_deref(), Some(prompt_positions(&language, &task, None).as_slice()));
            assert!((example.score - speed.ln()).abs() < 1e-6);
            let positions: Vec<Position> = example.steps.iter().map(|step| step.position.as_ref().clone()).collect();
            assert_eq!(positions, trace_positions(&language, &entry.record.trace));
            // what was chosen is what is read next, and among what was possible
            for (step, next) in example.steps.iter().zip(&positions[1..]) {
                assert_eq!(step.answers[step.chosen], next.answer);
            }
            assert!(example.steps.iter().any(|step| step.answers.len() > 1));
        }
        assert_eq!(examples(&entries, &language, &space, 20).too_long, 4);
        // traces that are not of this space teach nothing
        let mut stale = entries.clone();
        stale[1].record.trace.0[0].site = "no such site".into();
        stale[2].record.trace.0.pop();
        assert_eq!(examples(&stale, &language, &space, 1024).skipped, 2);
    }
}
