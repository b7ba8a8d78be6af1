//! The language model as a proposer: it writes traces decision by decision, and only legal ones.
//!
//! Half of them are written behind a prompt that asks for the best, the others behind one that shows what was
//! measured so far and asks for something better; at first it shows the untuned programs, as fast as they are
//! expected to be. Once programs were measured, half of both begin as the fastest of them do, and part from
//! them at a random decision. The untuned programs are in the pool, too, and the first of them is among
//! the first two that are measured. An estimator ranks the pool by what the programs look like, and the most
//! promising, with the fastest that were measured, have children that join it, for a few generations: the
//! neighbourhood of what is likely to be good is searched.
//! Where the checkpoint has a world model, it drafts: of thousands of mutations of what is known and of what
//! was written, without nests, those that it likes best join the pool; and the first program is the one that
//! it and the estimator like best together.
//! Programs that look alike are not both measured. What is not chosen stays for the next time, when only half
//! as many sequences are written. Without an estimator, the value head judges the programs, behind a prompt
//! that asks for nothing, since it learned where the prompt does not tell what came out.

mod imagining;
mod judging;
mod options;
mod shown;

use std::collections::BTreeSet;

use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::iter::{IntoParallelIterator, ParallelIterator};

use super::mutation::{children, untuned_programs};
use super::pool::{Rest, Valued, bring_forward, by_value, interleaved};
use super::sequence::prompt_positions;
use super::typical::Typical;
use super::writing::{Ending, Writing};
use super::{Candidate, History, Make, Method, Proposal, ProposeError, Proposer, Purpose};
use crate::language::{Language, Want};
use crate::model::{
    Adapted, Checkpoint, Decoder, Estimators, GpuVersions, Model, ModelError, Prompt, SamplingOptions, Versions, World,
};
use crate::rank::{Described, FEATURES_VERSION, GPU_FEATURES_VERSION, Ranking};
use crate::space::{Choice, Reader, Space, Trace, Untuned};
use crate::target::{Kind, Task};
use crate::workload::Workload;

pub use options::Ingredients;
pub(super) use options::SINGLE_SAMPLES;
use options::{HEURISTICS, Heuristics};
use shown::Known;

/// The language model's entry in the registry.
pub(super) const METHOD: Method = Method {
    name: "lm",
    about: "The language model writes programs, and the estimator of its checkpoint ranks them",
    learns: true,
    purpose: Purpose::Search,
    make: Make::Pretrained(|space, checkpoint, seed| Ok(Box::new(pretrained(space, checkpoint, seed)))),
};

/// With the weights of a checkpoint, ranked by its estimators.
pub(super) fn pretrained<'a>(space: &'a Space, checkpoint: &'a Checkpoint, seed: u64) -> LanguageModel<'a> {
    let lm = unranked(space, checkpoint, seed).ranked_by(Some(checkpoint.estimators.clone()));
    LanguageModel { world: checkpoint.worlds.dynamic.as_ref(), ..lm }
}

/// With the weights of a checkpoint, ranked by its value head.
pub(super) fn unranked<'a>(space: &'a Space, checkpoint: &Checkpoint, seed: u64) -> LanguageModel<'a> {
    LanguageModel::new(space, Language::standard(), &checkpoint.model, seed).trained_on(&checkpoint.versions)
}

/// The versions of a checkpoint that is trained by this program, for this language and space.
pub fn versions(language: &Language, space: &Space) -> Versions {
    Versions {
        tilescribe: env!("CARGO_PKG_VERSION").into(),
        language: language.version(),
        space: space.version(Kind::Cpu),
        features: FEATURES_VERSION.into(),
        measured: true,
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
    /// Drafts, and has a say on the first program, where there is one.
    world: Option<&'a World>,
    ingredients: Ingredients,
    heuristics: Heuristics,
    seed: u64,
    /// Batches sampled so far: each has its own random numbers.
    rounds: u64,
    /// What was not chosen so far.
    rest: Rest,
    /// What the model was trained on; `None` where that is this space.
    trained_on: Option<Versions>,
}

impl<'a> LanguageModel<'a> {
    /// `model` has an embedding for each token of the language, and was trained on this space; see
    /// [`LanguageModel::trained_on`].
    pub fn new(space: &'a Space, language: Language, model: &Model, seed: u64) -> LanguageModel<'a> {
        let decoder = Decoder::new(model);
        LanguageModel {
            space,
            language,
            decoder,
            ranking: None,
            world: None,
            ingredients: Ingredients::ALL,
            heuristics: HEURISTICS,
            seed,
            rounds: 0,
            rest: Rest::default(),
            trained_on: None,
        }
    }

    /// With a model of a checkpoint of these versions, which may be older than the space: it is not asked for
    /// decisions of rules that it does not know, and does not read them. They take their defaults in what it
    /// writes.
    #[must_use]
    pub fn trained_on(mut self, versions: &Versions) -> LanguageModel<'a> {
        self.trained_on = Some(versions.clone());
        self
    }

    /// Ranked by estimators of this program's features, or by one that learns from nothing but what is
    /// measured.
    #[must_use]
    pub fn ranked_by(mut self, prior: Option<Estimators>) -> LanguageModel<'a> {
        self.ranking = Some(Ranking::new(self.space, prior, self.seed));
        self
    }

    /// The minimum number of samples that the ranking chooses from.
    #[must_use]
    pub fn with_samples(mut self, samples: usize) -> LanguageModel<'a> {
        self.heuristics.samples = samples.max(1);
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
        (self.heuristics.temperature, self.heuristics.top_p) = (temperature, top_p);
        self
    }

    /// Writes `count` traces as the model likes them: neither ranked nor realised, and the same one more than
    /// once if the model likes it so much. For run-time extents, what it writes for the typical ones is
    /// carried over.
    ///
    /// # Errors
    /// As [`Proposer::propose`].
    pub fn sample(&mut self, task: &Task, count: usize) -> Result<Vec<Written>, ProposeError> {
        if let Some(typical) = Typical::of(task) {
            return self.carried(task, &typical, count);
        }
        let prompt = self.prompt(task, self.heuristics.want)?;
        self.write(&prompt, task, &[], count)
    }

    /// Tells which rules the model knows.
    fn reader(&self, task: &Task) -> Result<Reader<'a>, ProposeError> {
        let kind = task.target.kind();
        let of_gpus = |versions: &Versions| versions.gpu.as_ref().map(|gpu| gpu.space.clone());
        let version = self.trained_on.as_ref().and_then(|versions| match kind {
            Kind::Cpu => Some(versions.space.clone()),
            Kind::Gpu => of_gpus(versions),
        });
        let version = version.unwrap_or_else(|| self.space.version(kind));
        self.space.reader(kind, &version).map_err(|error| ProposeError::Model(error.to_string()))
    }

    /// Whether the model is shown programs of a task.
    fn shows(&self, task: &Task) -> bool {
        // those of run-time extents are not written by the model, but carried over
        let reads = self.trained_on.as_ref().is_none_or(|versions| versions.measured);
        self.ingredients.shown
            && self.ingredients.want
            && self.ingredients.workload
            && reads
            && task.workload.is_fixed()
    }

    /// A prompt that shows programs and asks for a faster one.
    fn showing(&self, task: &Task, known: Vec<Known>) -> Result<Prompt, ProposeError> {
        let reader = self.reader(task)?;
        let positions = shown::positions(&self.language, &reader, task, known, self.decoder.config().max_sequence)?;
        self.decoder.prompt(&positions).map_err(refused)
    }

    fn prompt(&self, task: &Task, want: Want) -> Result<Prompt, ProposeError> {
        let want = if self.ingredients.want { want } else { Want::Any };
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
        let reader = self.reader(task)?;
        let mut writing = |number: usize| {
            let start = if number % 2 == 1 { start_of_one(parents, &mut random) } else { Vec::new() };
            Writing::new(&reader, self.space, &self.language, task, start)
        };
        let mut guides: Vec<Writing<'_>> = (0..count).map(&mut writing).collect();
        let Heuristics { temperature, top_p, .. } = self.heuristics;
        let options = SamplingOptions { temperature, top_p, seed };
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

    /// What the model writes, beside the untuned programs, as far as it is new: behind the first prompt, and
    /// as much behind the second, if there is one.
    fn drawn(
        &mut self,
        task: &Task,
        (prompt, showing): (&Prompt, Option<&Prompt>),
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
        let mut written = Vec::new();
        if let Some(typical) = Typical::of(task) {
            written = self.carried(task, &typical, count)?;
        }
        // where programs are carried over, those that are written here begin like parents
        if written.is_empty() || !parents.is_empty() {
            let behind = if showing.is_some() { count.div_ceil(2) } else { count };
            let shown = match showing {
                Some(showing) => self.write(showing, task, parents, count - behind)?,
                None => Vec::new(),
            };
            // in turn: without a ranking, programs are measured in this order
            written.extend(interleaved(self.write(prompt, task, parents, behind)?, shown));
        }
        for written in written {
            proposal.drawn += 1;
            match written.complete {
                true => join(written.trace, Some(written.log_likelihood as f32)),
                false => proposal.dead_ends += 1,
            }
        }
        Ok(pool)
    }

    /// What the model writes for the typical extents of a task, carried over to it.
    fn carried(&mut self, task: &Task, typical: &Typical, count: usize) -> Result<Vec<Written>, ProposeError> {
        let prompt = self.prompt(&typical.task, self.heuristics.want)?;
        let written = self.write(&prompt, &typical.task, &[], count)?;
        let space = self.space;
        let carry = |written: Written| match written.complete.then(|| typical.carry(space, task, &written.trace)) {
            Some(Some(trace)) => Written { trace, ..written },
            _ => Written { complete: false, ..written },
        };
        Ok(written.into_par_iter().map(carry).collect())
    }

    /// A generation of the most promising of a sorted pool, and of the fastest that were measured: children,
    /// or, without blind mutation, what the model writes once it has read the most promising.
    fn bred(
        &mut self,
        task: &Task,
        estimator: Option<&Adapted>,
        (pool, fastest): (&[Valued], &[Trace]),
        random: &mut ChaCha8Rng,
        is_new: &mut dyn FnMut(&Trace) -> bool,
    ) -> Result<Vec<Valued>, ProposeError> {
        let count = (self.heuristics.children * self.heuristics.samples as f64) as usize;
        if !self.ingredients.mutation {
            let known: Vec<Known> = pool.iter().filter_map(Known::expected).collect();
            if known.is_empty() || !self.shows(task) {
                return Ok(Vec::new());
            }
            let prompt = self.showing(task, known)?;
            let written = self.write(&prompt, task, &[], count)?.into_iter().filter(|written| written.complete);
            let new = written.filter(|written| is_new(&written.trace)).map(|written| Candidate {
                log_likelihood: Some(written.log_likelihood as f32),
                ..Candidate::new(written.trace)
            });
            return self.valued(task, estimator, new.collect());
        }
        let promising = pool.iter().filter(|valued| valued.candidate.value.is_some()).take(self.heuristics.parents);
        let parents: Vec<Trace> = promising.map(|valued| &valued.candidate.trace).chain(fastest).cloned().collect();
        if parents.is_empty() {
            return Ok(Vec::new());
        }
        let seeds = (0..count).map(|_| random.next_u64()).collect();
        let new = children(self.space, task, &parents, seeds).into_iter().flatten();
        let new = new.filter(|described| is_new(&described.trace));
        if self.ranking.is_none() {
            let children = new.map(|described| Candidate::new(described.trace)).collect();
            return self.valued(task, None, children);
        }
        Ok(new.map(|Described { trace, features }| Valued::new(Candidate::new(trace), features, estimator)).collect())
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
    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        let prompt = self.prompt(task, self.heuristics.want)?;
        let estimator = match &mut self.ranking {
            Some(ranking) => ranking.estimator(task, history)?,
            None => None,
        };
        let mut proposal = Proposal::default();
        let mut seen = BTreeSet::new();
        let mut is_new = |trace: &Trace| !history.contains(trace) && seen.insert(trace.clone());
        let (untuned, fastest) = match self.ingredients.neighbours {
            true => (untuned_programs(self.space, task), history.fastest(self.heuristics.parents)),
            false => (Vec::new(), Vec::new()),
        };
        // a run that is taken up again would draw what it has drawn before, and take the space to be
        // exhausted
        self.rounds = self.rounds.max(history.len() as u64);
        let known = match self.shows(task) {
            true if !history.is_empty() => shown::measured(history),
            true => {
                let untuned = untuned.iter().cloned().map(Candidate::new).collect();
                self.valued(task, estimator.as_ref(), untuned)?.iter().filter_map(Known::expected).collect()
            }
            false => Vec::new(),
        };
        let showing = if known.is_empty() { None } else { Some(self.showing(task, known)?) };
        let mut rest = self.rest.take(&task.workload.hash().to_string(), estimator.as_ref());
        rest.retain(|valued| is_new(&valued.candidate.trace));
        let Heuristics { samples, later, rounds, .. } = self.heuristics;
        let fresh = if rest.is_empty() { samples } else { samples / later };
        for _ in 0..rounds {
            let wanted = count - proposal.candidates.len();
            if wanted == 0 {
                break;
            }
            let mut random = ChaCha8Rng::seed_from_u64(self.seed ^ self.rounds.wrapping_mul(0xd1b5_4a32_d192_ed03));
            let samples = fresh.max(self.heuristics.samples_per_candidate * wanted);
            let prompts = (&prompt, showing.as_ref());
            let mut pool = self.drawn(task, prompts, (&untuned, &fastest), samples, &mut proposal, &mut is_new)?;
            let parents = [untuned.as_slice(), &fastest].concat();
            let written = pool.iter().filter(|candidate| candidate.log_likelihood.is_some());
            let written: Vec<&Trace> = written.map(|candidate| &candidate.trace).collect();
            let drafted = self.drafted(task, parents, &written, &mut random)?.into_iter().filter(|trace| is_new(trace));
            pool.extend(drafted.map(Candidate::new));
            let drawn = pool.len();
            let mut pool = self.valued(task, estimator.as_ref(), pool)?;
            proposal.dead_ends += (drawn - pool.len()) as u64;
            pool.append(&mut rest);
            let breeds = self.ingredients.neighbours && self.ingredients.ranking;
            let generations = if breeds { self.heuristics.generations } else { 0 };
            for _ in 0..generations {
                pool.sort_by(by_value);
                let children = self.bred(task, estimator.as_ref(), (&pool, &fastest), &mut random, &mut is_new)?;
                pool.extend(children);
            }
            let mut chosen = self.ordered(task, estimator.as_ref(), pool, wanted);
            if history.is_empty() && self.ingredients.ranking {
                self.liked_by_both_first(task, &mut chosen)?;
            }
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

    /// The first of 256 samples by the estimator, if it beats the program of the rules by more than the
    /// estimator may err about the two. How far it errs about a program is known from tasks that it has not
    /// learned from; about two programs it errs in the same way, the more they are alike.
    fn sure(&mut self, task: &Task) -> Result<Option<Candidate>, ProposeError> {
        let nothing = History::default();
        let estimator = match &mut self.ranking {
            Some(ranking) => ranking.estimator(task, &nothing)?,
            None => None,
        };
        let Some(estimator) = estimator else { return Ok(None) };
        let samples = std::mem::replace(&mut self.heuristics.samples, SINGLE_SAMPLES);
        let proposal = self.propose(task, &nothing, 1);
        self.heuristics.samples = samples;
        let Some(choice) = proposal?.candidates.pop() else { return Ok(None) };
        let (rules, _) = self.space.drive(task, &mut Untuned);
        let pair = self.valued(task, Some(&estimator), [choice.trace.clone(), rules].map(Candidate::new).to_vec())?;
        let [Some(choice_is), Some(rules_are)] = [pair.first(), pair.get(1)].map(|valued| valued?.expected.as_ref())
        else {
            return Ok(None);
        };
        let gain = estimator.gain(choice_is, rules_are);
        Ok((gain.log2 > self.heuristics.doubt * gain.deviation).then_some(choice))
    }
}

/// The first decisions of one of the parents: at least one decision is left open.
fn start_of_one(parents: &[Trace], random: &mut ChaCha8Rng) -> Vec<Choice> {
    let Some(parent) = parents.choose(random).filter(|parent| !parent.0.is_empty()) else { return Vec::new() };
    parent.0[..random.random_range(0..parent.0.len())].to_vec()
}

#[cfg(test)]
mod tests;
