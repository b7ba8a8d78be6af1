//! The language model as a proposer: it writes traces decision by decision, and only legal ones.
//!
//! Half of them are written behind a prompt that asks for the best, the others behind one that shows what was
//! measured so far and asks for something better; at first it shows the untuned programs, as fast as they are
//! expected to be. Once programs were measured, half of both begin as the fastest of them do, and part from
//! them at a random decision. The untuned programs are in the pool, too, and the first of them is among
//! the first two that are measured. An estimator ranks the pool by what the programs look like. Then the
//! model reads the most promising, as fast as they are expected to be, and writes further ones, which join
//! the pool. Where it does not read programs, or does not know the rules that make those of a task what they
//! are, the most promising and the fastest that were measured have children that are changed blindly instead,
//! for a few generations.
//! Where the checkpoint has a world model, it drafts: of thousands of mutations of what is known and of what
//! was written, without nests, those that it likes best join the pool; and the first program is the one that
//! it and the estimator like best together.
//! Programs that look alike are not both measured. What is not chosen stays for the next time, when only half
//! as many sequences are written. Without an estimator, the value head judges the programs, behind a prompt
//! that asks for nothing, since it learned where the prompt does not tell what came out.

mod drawing;
mod imagining;
mod judging;
mod options;
mod shown;

use std::collections::BTreeSet;

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::learned::reader_of;
use super::mutation::{children, untuned_programs};
use super::pool::{Rest, Valued, bring_forward, by_value};
use super::sequence::{prompt_positions, trace_positions};
use super::{Candidate, History, Make, Method, Proposal, ProposeError, Proposer, Purpose};
use crate::language::{Language, Want};
use crate::model::{
    Adapted, Checkpoint, Decoder, Estimators, GpuVersions, Model, ModelError, Position, Prompt, Versions, World,
};
use crate::rank::{Described, FEATURES_VERSION, GPU_FEATURES_VERSION, Ranking};
use crate::space::{Reader, Space, Trace, Untuned};
use crate::target::{Kind, Task};
use crate::workload::Workload;

pub use drawing::Written;
pub use imagining::liked_together;
pub use options::Ingredients;
pub(super) use options::SINGLE_SAMPLES;
use options::{HEURISTICS, Heuristics};
use shown::Known;

/// What a program takes behind a prompt, at least; a prompt that shows programs is longer by less.
const LEAST_WRITTEN: usize = 8;

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

    /// How freely to sample; see [`SamplingOptions`](crate::model::SamplingOptions).
    #[must_use]
    pub fn with_sampling(mut self, temperature: f64, top_p: f64) -> LanguageModel<'a> {
        (self.heuristics.temperature, self.heuristics.top_p) = (temperature, top_p);
        self
    }

    /// Tells which rules the model knows.
    fn reader(&self, task: &Task) -> Result<Reader<'a>, ProposeError> {
        let reader = reader_of(self.space, self.trained_on.as_ref(), task.target.kind());
        reader.map_err(|error| ProposeError::Model(error.to_string()))
    }

    /// Whether the model is shown programs of a task.
    fn shows(&self, task: &Task) -> bool {
        // those of run-time extents are not written by the model, but carried over
        let is_of_a_cpu = task.target.kind() == Kind::Cpu;
        let has_learned = |versions: &Versions| versions.measured && (is_of_a_cpu || versions.gpu.is_some());
        let reads = self.trained_on.as_ref().is_none_or(has_learned);
        self.ingredients.shown
            && self.ingredients.want
            && self.ingredients.workload
            && reads
            && task.workload.is_fixed()
    }

    /// Whether the model knows the rules that make the rules' own program of a task what it is. Those of
    /// machines that came later may be strange to it, and it has no idea of what is good there.
    fn writes_rules(&self, task: &Task, untuned: &[Trace]) -> Result<bool, ProposeError> {
        let reader = self.reader(task)?;
        Ok(untuned.first().map_or(Ok(true), |rules| reader.writes(task, rules))?)
    }

    /// A prompt that shows programs and asks for a faster one.
    fn showing(&self, task: &Task, known: Vec<Known>) -> Result<Prompt, ProposeError> {
        let reader = self.reader(task)?;
        let positions = shown::positions(&self.language, &reader, task, known, self.decoder.config().max_sequence)?;
        self.decoder.prompt(&positions).map_err(refused)
    }

    /// A prompt that shows no programs.
    fn prompt(&self, task: &Task, want: Want) -> Result<Prompt, ProposeError> {
        self.decoder.prompt(&self.asking(task, want)).map_err(refused)
    }

    /// The same where programs are ranked by an estimator: then there are programs even of a task that is too
    /// long for the model to read and to write one of so many positions behind it, a recurrence that was
    /// unrolled for instance.
    fn prompt_if_it_fits(&self, task: &Task, want: Want, written: usize) -> Result<Option<Prompt>, ProposeError> {
        let asking = self.asking_if_it_fits(task, want, written);
        asking.map(|positions| self.decoder.prompt(&positions).map_err(refused)).transpose()
    }

    /// The positions of such a prompt.
    fn asking_if_it_fits(&self, task: &Task, want: Want, written: usize) -> Option<Vec<Position>> {
        let positions = self.asking(task, want);
        let fits = positions.len() + written <= self.decoder.config().max_sequence || self.ranking.is_none();
        fits.then_some(positions)
    }

    /// Positions that the first of some programs takes behind a prompt.
    fn length(&self, task: &Task, programs: &[Trace]) -> Result<usize, ProposeError> {
        let Some(first) = programs.first() else { return Ok(LEAST_WRITTEN) };
        let known = self.reader(task)?.known_part(task, first)?;
        Ok(trace_positions(&self.language, &known).len().max(LEAST_WRITTEN))
    }

    /// The positions of a prompt that shows no programs.
    fn asking(&self, task: &Task, want: Want) -> Vec<Position> {
        let want = if self.ingredients.want { want } else { Want::Any };
        match self.ingredients.workload {
            true => prompt_positions(&self.language, task, want),
            false => {
                let nothing = Task { workload: Workload::default(), target: task.target.clone() };
                prompt_positions(&self.language, &nothing, want)
            }
        }
    }

    /// What programs are proposed from.
    fn asked<'t>(&mut self, task: &'t Task, history: &History) -> Result<Asked<'t>, ProposeError> {
        let estimator = match &mut self.ranking {
            Some(ranking) => ranking.estimator(task, history)?,
            None => None,
        };
        let (untuned, fastest) = match self.ingredients.neighbours {
            true => (untuned_programs(self.space, task), history.fastest(self.heuristics.parents)),
            false => (Vec::new(), Vec::new()),
        };
        let asking = self.asking_if_it_fits(task, self.heuristics.want, self.length(task, &untuned)?);
        let reads = asking.is_some() && self.shows(task) && self.writes_rules(task, &untuned)?;
        let known = match reads {
            true if !history.is_empty() => shown::measured(history),
            true => {
                let untuned = untuned.iter().cloned().map(Candidate::new).collect();
                self.valued(task, estimator.as_ref(), untuned)?.iter().filter_map(Known::expected).collect()
            }
            false => Vec::new(),
        };
        let this = &*self;
        let (prompt, showing) = rayon::join(
            || asking.map(|positions| this.decoder.prompt(&positions).map_err(refused)).transpose(),
            || (!known.is_empty()).then(|| this.showing(task, known)).transpose(),
        );
        Ok(Asked { task, estimator, prompt: prompt?, showing: showing?, untuned, fastest, reads })
    }

    /// New programs to choose from, with what was left before, valued: what is written and drafted, and what
    /// is made of the most promising of these.
    fn pool(
        &mut self,
        asked: &Asked<'_>,
        samples: usize,
        mut rest: Vec<Valued>,
        proposal: &mut Proposal,
        is_new: &mut dyn FnMut(&Trace) -> bool,
    ) -> Result<Vec<Valued>, ProposeError> {
        let Asked { task, estimator, prompt, showing, untuned, fastest, reads } = asked;
        let estimator = estimator.as_ref();
        let mut random = ChaCha8Rng::seed_from_u64(self.seed ^ self.rounds.wrapping_mul(0xd1b5_4a32_d192_ed03));
        let prompts = (prompt.as_ref(), showing.as_ref());
        let mut drawn = self.drawn(task, prompts, (untuned, fastest), samples, proposal, is_new)?;
        let written = drawn.iter().filter(|candidate| candidate.log_likelihood.is_some());
        let written: Vec<&Trace> = written.map(|candidate| &candidate.trace).collect();
        let drafted = self.drafted(asked, &written, samples, &mut random)?.into_iter().filter(|trace| is_new(trace));
        drawn.extend(drafted.map(Candidate::new));
        let count = drawn.len();
        let mut pool = self.valued(task, estimator, drawn)?;
        proposal.dead_ends += (count - pool.len()) as u64;
        pool.append(&mut rest);
        if self.ingredients.neighbours && self.ingredients.ranking {
            let reads = *reads && !self.ingredients.mutation;
            let known: Vec<Known> = pool.iter().filter(|_| reads).filter_map(Known::expected).collect();
            let further = match known.is_empty() {
                true => self.bred(task, estimator, (&pool, fastest), samples, &mut random, is_new)?,
                false => self.written_behind(task, estimator, known, samples, is_new)?,
            };
            pool.extend(further);
        }
        Ok(pool)
    }

    /// What the model writes once it has read the most promising of what is known.
    fn written_behind(
        &mut self,
        task: &Task,
        estimator: Option<&Adapted>,
        known: Vec<Known>,
        samples: usize,
        is_new: &mut dyn FnMut(&Trace) -> bool,
    ) -> Result<Vec<Valued>, ProposeError> {
        let prompt = self.showing(task, known)?;
        let written = self.write(&prompt, task, &[], self.heuristics.generation(samples))?;
        let new = written.into_iter().filter(|written| written.complete && is_new(&written.trace));
        let new = new.map(|Written { trace, log_likelihood, .. }| Candidate {
            log_likelihood: Some(log_likelihood as f32),
            ..Candidate::new(trace)
        });
        self.valued(task, estimator, new.collect())
    }

    /// Generations of children of the most promising of a pool, and of the fastest that were measured.
    fn bred(
        &self,
        task: &Task,
        estimator: Option<&Adapted>,
        (pool, fastest): (&[Valued], &[Trace]),
        samples: usize,
        random: &mut ChaCha8Rng,
        is_new: &mut dyn FnMut(&Trace) -> bool,
    ) -> Result<Vec<Valued>, ProposeError> {
        let mut born: Vec<Valued> = Vec::new();
        for _ in 0..self.heuristics.generations {
            let known = pool.iter().chain(&born).filter(|valued| valued.candidate.value.is_some());
            let mut promising: Vec<&Valued> = known.collect();
            promising.sort_by(|a, b| by_value(a, b));
            let promising = promising.into_iter().take(self.heuristics.parents);
            let parents: Vec<Trace> = promising.map(|valued| &valued.candidate.trace).chain(fastest).cloned().collect();
            if parents.is_empty() {
                break;
            }
            let seeds = (0..self.heuristics.generation(samples)).map(|_| random.next_u64()).collect();
            let new = children(self.space, task, &parents, seeds).into_iter().flatten();
            let new: Vec<Described> = new.filter(|described| is_new(&described.trace)).collect();
            born.extend(match self.ranking.is_some() {
                true => {
                    new.into_iter().map(|new| Valued::new(Candidate::new(new.trace), new.features, estimator)).collect()
                }
                false => self.valued(task, None, new.into_iter().map(|new| Candidate::new(new.trace)).collect())?,
            });
        }
        Ok(born)
    }
}

/// What programs of a task are proposed from.
struct Asked<'t> {
    task: &'t Task,
    estimator: Option<Adapted>,
    /// What the model writes behind, if it can read the task; the second shows programs.
    prompt: Option<Prompt>,
    showing: Option<Prompt>,
    /// The programs of the rules, and the fastest that were measured.
    untuned: Vec<Trace>,
    fastest: Vec<Trace>,
    /// Whether the model is shown programs.
    reads: bool,
}

fn refused(error: ModelError) -> ProposeError {
    ProposeError::Model(error.to_string())
}

impl Proposer for LanguageModel<'_> {
    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        let asked = self.asked(task, history)?;
        let mut proposal = Proposal::default();
        let mut seen = BTreeSet::new();
        let mut is_new = |trace: &Trace| !history.contains(trace) && seen.insert(trace.clone());
        // a run that is taken up again would draw what it has drawn before, and take the space to be
        // exhausted
        self.rounds = self.rounds.max(history.len() as u64);
        let estimator = asked.estimator.as_ref();
        let mut rest = self.rest.take(&task.workload.hash().to_string(), estimator);
        rest.retain(|valued| is_new(&valued.candidate.trace));
        let Heuristics { samples, later, rounds, .. } = self.heuristics;
        let fresh = if rest.is_empty() { samples } else { samples / later };
        for _ in 0..rounds {
            let wanted = count - proposal.candidates.len();
            if wanted == 0 {
                break;
            }
            let samples = fresh.max(self.heuristics.samples_per_candidate * wanted);
            let pool = self.pool(&asked, samples, rest, &mut proposal, &mut is_new)?;
            let mut chosen = self.ordered(task, estimator, pool, wanted);
            if history.is_empty() && self.ingredients.ranking {
                self.liked_by_both_first(&asked, &mut chosen)?;
            }
            // estimates err: the program of the rules is among the first two that are measured, whatever they
            // say of it
            if let Some(known) = asked.untuned.first().filter(|_| self.ingredients.untuned) {
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

    /// The first of many samples by the estimator, if it beats the program of the rules by more than the
    /// estimator may err about the two. How far it errs about a program is known from tasks that it has not
    /// learned from; about two programs it errs in the same way, the more they are alike.
    fn sure(&mut self, task: &Task) -> Result<Option<Candidate>, ProposeError> {
        let nothing = History::default();
        let estimator = match &mut self.ranking {
            Some(ranking) => ranking.estimator(task, &nothing)?,
            None => None,
        };
        let Some(estimator) = estimator else { return Ok(None) };
        let samples = std::mem::replace(&mut self.heuristics.samples, self.heuristics.single);
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

    fn economize(&mut self) {
        let few = self.heuristics.few_samples;
        self.heuristics.samples = self.heuristics.samples.min(few);
        self.heuristics.single = self.heuristics.single.min(few);
    }
}

#[cfg(test)]
mod tests;
