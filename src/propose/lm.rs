//! The language model as a proposer: it writes traces decision by decision, and only legal ones.
//!
//! They are written behind a prompt that asks for the best. Once programs were measured, half of the sequences begin as the fastest of them do,
//! and part from them at a random decision, and children of the fastest join the pool: the neighbourhood of what is known to be good is searched. The
//! untuned programs are in the pool, too. An estimator ranks the pool by what the programs look like; without one, the value
//! head judges them, behind a prompt that asks for nothing, since it learned where the prompt does not tell what came out.

use std::collections::BTreeSet;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::mutation::{child, untuned_programs};
use super::{Candidate, History, Proposal, ProposeError, Proposer};
use crate::language::Language;
use crate::model::{Decoder, Estimator, Guide, Model, ModelError, Next, Prompt, SamplingOptions, Versions};
use crate::rank::{Described, FEATURES_VERSION, Ranking};
use crate::space::{Choice, Decision, Space, Stale, Trace};
use crate::target::Task;
use crate::workload::Workload;

/// The quality that is asked for: the best decile.
const WANT: u8 = 9;
/// Traces sampled at once, at least, and for each one asked for: what the ranking chooses from.
const SAMPLES: usize = 64;
const SAMPLES_PER_CANDIDATE: usize = 4;
/// Rounds of sampling before a small space, or a very certain model, is taken to be exhausted.
const ROUNDS: u64 = 8;

/// The fastest programs, whose beginnings are gone on from, and which have children.
const PARENTS: usize = 4;
/// Children in the pool for each candidate asked for.
const CHILDREN: usize = 2;

/// What the search makes use of: all of it, unless an ablation takes something away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ingredients {
    /// The prompt asks for the best quality; otherwise for nothing in particular.
    pub want: bool,
    /// The prompt spells the workload out; otherwise it names the machine only.
    pub workload: bool,
    /// Programs are ranked; otherwise they come in the order in which they were written.
    pub ranking: bool,
    /// Sequences begin as the fastest measured ones do, and children of those and the untuned programs join the pool.
    pub neighbours: bool,
}

impl Ingredients {
    pub const ALL: Ingredients = Ingredients { want: true, workload: true, ranking: true, neighbours: true };
}

/// The versions that a checkpoint must have to write for this language and space.
pub fn versions(language: &Language, space: &Space) -> Versions {
    Versions {
        tilescribe: env!("CARGO_PKG_VERSION").into(),
        language: language.version(),
        space: space.version(),
        features: FEATURES_VERSION.into(),
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
        }
    }

    /// Ranked by an estimator of this program's features, or by one that learns from nothing but what is measured.
    #[must_use]
    pub fn ranked_by(mut self, prior: Option<Estimator>) -> LanguageModel<'a> {
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

    /// Writes `count` traces as the model likes them: neither ranked nor realised, and the same one more than once if the model likes it so much.
    ///
    /// # Errors
    /// As [`Proposer::propose`].
    pub fn sample(&mut self, task: &Task, count: usize) -> Result<Vec<Written>, ProposeError> {
        let prompt = self.prompt(task, Some(WANT))?;
        self.write(&prompt, task, &[], count)
    }

    fn prompt(&self, task: &Task, want: Option<u8>) -> Result<Prompt, ProposeError> {
        let want = want.filter(|_| self.ingredients.want);
        let tokens = match self.ingredients.workload {
            true => self.language.encode_prompt(task, want),
            false => {
                let nothing = Task { workload: Workload::default(), target: task.target.clone() };
                self.language.encode_prompt(&nothing, want)
            }
        };
        self.decoder.prompt(&tokens).map_err(refused)
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
        let mut guides: Vec<Writing<'_>> = (0..count)
            .map(|number| Writing {
                space: self.space,
                language: &self.language,
                task,
                start: if number % 2 == 1 { start_of_one(parents, &mut random) } else { Vec::new() },
                trace: Trace::default(),
                decision: None,
                end: None,
            })
            .collect();
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
            let (tokens, log_likelihood) = (sampled.tokens, sampled.log_likelihood);
            Ok(Written { trace: guide.trace, tokens, complete, log_likelihood })
        });
        written.collect()
    }

    /// Values of traces, by the value head.
    fn judge(&self, task: &Task, traces: &[&Trace]) -> Result<Vec<f32>, ProposeError> {
        let blind = self.prompt(task, None)?;
        let mut readings: Vec<Reading> =
            traces.iter().map(|trace| Reading(Some(self.language.encode_trace(trace)))).collect();
        let read = self.decoder.sample(&blind, &mut readings, &SamplingOptions::default()).map_err(refused)?;
        Ok(read.into_iter().map(|read| read.value).collect())
    }

    /// Programs of the rules, and children of the fastest, that nobody wrote: they need not be likely to be good.
    fn known_to_be_good(&mut self, task: &Task, parents: &[Trace], count: usize) -> Vec<Trace> {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed ^ self.rounds.wrapping_mul(0xd1b5_4a32_d192_ed03));
        let mut traces = untuned_programs(self.space, task);
        if !parents.is_empty() {
            traces.extend((0..CHILDREN * count).map(|_| child(self.space, task, parents, &mut random).0));
        }
        traces
    }

    /// Looks at programs, and fills in their values; dead ends are left out.
    fn valued(
        &mut self,
        task: &Task,
        history: &History,
        pool: Vec<Candidate>,
    ) -> Result<Vec<(Candidate, Option<Described>)>, ProposeError> {
        let Some(ranking) = &mut self.ranking else {
            let values = self.judge(task, &pool.iter().map(|candidate| &candidate.trace).collect::<Vec<_>>())?;
            let valued =
                pool.into_iter().zip(values).map(|(candidate, value)| Candidate { value: Some(value), ..candidate });
            let mut legal = Vec::new();
            for candidate in valued {
                if matches!(self.space.next(task, &candidate.trace)?, crate::space::Next::Done(_)) {
                    legal.push((candidate, None));
                }
            }
            return Ok(legal);
        };
        let estimator = ranking.estimator(task, history)?;
        let described = ranking.describe(task, pool.iter().map(|candidate| candidate.trace.clone()).collect())?;
        let valued = pool.into_iter().zip(described).filter_map(|(candidate, described)| {
            let described = described?;
            let value = estimator.as_ref().and_then(|estimator| estimator.score(&described.features));
            Some((Candidate { value, ..candidate }, Some(described)))
        });
        Ok(valued.collect())
    }
}

/// A trace that the model wrote.
#[derive(Clone, PartialEq, Debug)]
pub struct Written {
    pub trace: Trace,
    /// The tokens behind the prompt, as they were sampled.
    pub tokens: Vec<u32>,
    /// Whether all is decided; else the space offered nothing further, or the model's longest sequence was reached.
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
        let mut proposal = Proposal::default();
        let mut seen = BTreeSet::new();
        let parents = if self.ingredients.neighbours { history.fastest(PARENTS) } else { Vec::new() };
        // a run that is taken up again would draw what it has drawn before, and take the space to be exhausted
        self.rounds = self.rounds.max(history.len() as u64);
        for _ in 0..ROUNDS {
            if proposal.candidates.len() == count {
                break;
            }
            let mut pool = Vec::new();
            let mut join = |trace: Trace, log_likelihood| {
                if !history.contains(&trace) && seen.insert(trace.clone()) {
                    pool.push(Candidate { trace, log_likelihood, value: None });
                }
            };
            let neighbours = self.ingredients.neighbours.then(|| self.known_to_be_good(task, &parents, count));
            for trace in neighbours.into_iter().flatten() {
                join(trace, None);
            }
            for written in self.write(&prompt, task, &parents, self.samples.max(SAMPLES_PER_CANDIDATE * count))? {
                proposal.drawn += 1;
                match written.complete {
                    true => join(written.trace, Some(written.log_likelihood as f32)),
                    false => proposal.dead_ends += 1,
                }
            }
            let drawn = pool.len();
            let mut valued = self.valued(task, history, pool)?;
            proposal.dead_ends += (drawn - valued.len()) as u64;
            if self.ingredients.ranking {
                valued.sort_by(|(a, _), (b, _)| by_value(a, b));
            }
            valued.truncate(count - proposal.candidates.len());
            if let Some(ranking) = &mut self.ranking {
                ranking.remember(task, valued.iter().filter_map(|(_, described)| described.clone()));
            }
            proposal.candidates.extend(valued.into_iter().map(|(candidate, _)| candidate));
        }
        Ok(proposal)
    }
}

/// By value, best first; equal ones stay in the order in which they were drawn. Likelihood has no say: it prefers short traces, which are not the fast ones.
fn by_value(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    let value = |candidate: &Candidate| candidate.value.unwrap_or(f32::NEG_INFINITY);
    value(b).total_cmp(&value(a))
}

/// The first decisions of one of the parents: at least one decision is left open.
fn start_of_one(parents: &[Trace], random: &mut ChaCha8Rng) -> Vec<Choice> {
    let Some(parent) = parents.choose(random).filter(|parent| !parent.0.is_empty()) else { return Vec::new() };
    parent.0[..random.random_range(0..parent.0.len())].to_vec()
}

/// Guides the model along a finished sequence.
struct Reading(Option<Vec<u32>>);

impl Guide for Reading {
    fn next(&mut self, _: Option<usize>) -> Next {
        self.0.take().map_or(Next::Finished, Next::Forced)
    }
}

/// Guides the model along the space: sites are forced, values are chosen.
struct Writing<'a> {
    space: &'a Space,
    language: &'a Language,
    task: &'a Task,
    /// Decisions to take over, from the first on.
    start: Vec<Choice>,
    trace: Trace,
    /// Whose site was told, and whose value comes next.
    decision: Option<Decision>,
    end: Option<Ending>,
}

/// How a sequence ended.
enum Ending {
    Complete,
    /// A dead end of the space.
    Nowhere,
    Stale(Stale),
}

impl Guide for Writing<'_> {
    fn next(&mut self, chosen: Option<usize>) -> Next {
        if self.end.is_some() {
            return Next::Finished;
        }
        match (self.decision.take(), chosen) {
            (Some(Decision { site, mut candidates, .. }), Some(chosen)) => {
                self.trace.0.push(Choice { site, value: candidates.swap_remove(chosen) });
            }
            (Some(decision), None) => {
                let values = decision.candidates.iter().map(|value| self.language.encode_value(value)).collect();
                self.decision = Some(decision);
                return Next::Among(values);
            }
            (None, _) => {}
        }
        match self.space.question(self.task, &self.trace) {
            Ok(Ok(Some(decision))) => {
                let mut tokens = self.language.encode_site(&decision.site);
                match self.start.get(self.trace.0.len()).filter(|choice| choice.site == decision.site) {
                    Some(choice) => {
                        tokens.extend(self.language.encode_value(&choice.value));
                        self.trace.0.push(choice.clone());
                    }
                    None => self.decision = Some(decision),
                }
                Next::Forced(tokens)
            }
            Ok(Ok(None)) => {
                self.end = Some(Ending::Complete);
                Next::Forced(vec![self.language.end()])
            }
            Ok(Err(_)) => {
                self.end = Some(Ending::Nowhere);
                Next::Finished
            }
            Err(stale) => {
                self.end = Some(Ending::Stale(stale));
                Next::Finished
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{History, LanguageModel, Proposer, Ranking, untuned_programs};
    use crate::language::Language;
    use crate::model::{Config, Estimator, EstimatorOptions, Group, Model, train_estimator};
    use crate::outcome::Outcome;
    use crate::propose::example::product;
    use crate::propose::train::examples;
    use crate::rank::FEATURES;
    use crate::record::{Entry, Record};
    use crate::space::{Next, Space, Trace};

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
    fn an_estimator_ranks_what_was_written_and_what_the_rules_write() {
        let (space, language, task) = (Space::standard(), Language::standard(), product());
        let model = model(&language);
        let lm = |seed| {
            LanguageModel::new(&space, language.clone(), &model, seed).ranked_by(Some(Estimator::random(FEATURES, 9)))
        };
        let few = lm(3).propose(&task, &History::default(), 5).unwrap();
        assert_eq!(few, lm(3).propose(&task, &History::default(), 5).unwrap());
        let values: Vec<f32> = few.candidates.iter().map(|candidate| candidate.value.unwrap()).collect();
        assert!(values.is_sorted_by(|a, b| a >= b), "{values:?}");
        // the untuned program is in the pool, and comes first where the estimator has learned to like it
        let untuned = untuned_programs(&space, &task).remove(0);
        let traces = [vec![untuned.clone()], few.candidates.iter().map(|candidate| candidate.trace.clone()).collect()];
        let described = Ranking::new(&space, None, 1).describe(&task, traces.concat()).unwrap();
        let features = described.into_iter().flatten().map(|described| described.features).collect();
        let group = Group { features, speeds: vec![0.0, -2.0, -2.0, -2.0, -2.0, -2.0] };
        let likes_it = train_estimator(None, &[group], &EstimatorOptions::default()).unwrap();
        let mut lm_that_likes_it = LanguageModel::new(&space, language.clone(), &model, 3).ranked_by(Some(likes_it));
        let candidates = lm_that_likes_it.propose(&task, &History::default(), 20).unwrap().candidates;
        assert!(candidates.iter().any(|candidate| candidate.trace == untuned));
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
                let record = Record::new(&task, &space.version(), candidate.trace.clone(), outcome, "lm", 0);
                Entry { task: std::sync::Arc::clone(&task), record }
            })
            .collect();
        let made = examples(&entries, &language, 1024);
        assert_eq!((made.tasks, made.too_long, made.skipped, made.examples.len()), (1, 0, 0, 4));
        for ((example, entry), (want, speed)) in
            made.examples.iter().zip(&entries).zip([(9, 1.0f32), (4, 0.5), (0, 0.1), (2, 0.25)])
        {
            let prompt = language.encode_prompt(&task, Some(want));
            assert_eq!(example.tokens, [prompt.clone(), language.encode_trace(&entry.record.trace)].concat());
            assert!((example.score - speed.ln()).abs() < 1e-6);
            let values = entry.record.trace.0.iter().map(|choice| language.encode_value(&choice.value).len());
            assert_eq!(example.decisions.iter().filter(|d| **d).count(), values.sum::<usize>());
        }
        assert_eq!(examples(&entries, &language, 20).too_long, 4);
    }
}
