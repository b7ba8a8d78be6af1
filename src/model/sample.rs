//! Sampling many sequences in lockstep, where only what a [`Guide`] allows has probability.

use candle_core::{Device, Tensor};
use candle_transformers::generation::LogitsProcessor;
use rayon::iter::{IntoParallelIterator, ParallelIterator};

use super::decode::{Cache, Chunk, Decoder, FEWEST_PER_BATCH, Prompt, SEQUENCES_PER_BATCH, Scratch, log_probability};
use super::position::check_answers;
use super::{ModelError, Position};

/// What follows in a sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// A question, and the answers that are possible: at least one.
    Ask { question: Vec<u32>, answers: Vec<Vec<u32>> },
    /// A question whose answer is known already.
    Told { question: Vec<u32>, answer: Vec<u32> },
    /// Nothing follows.
    Finished,
}

/// Says what follows in one sequence.
pub trait Guide: Send {
    /// What follows. `chosen` is the position of the answer that was sampled, if the last call gave
    /// [`Next::Ask`].
    fn next(&mut self, chosen: Option<usize>) -> Next;
}

/// How to sample.
#[derive(Clone, PartialEq, Debug)]
pub struct SamplingOptions {
    /// Divides the logits; 0 takes the likeliest.
    pub temperature: f64,
    /// Only the likeliest answers whose probabilities add up to this are sampled; 1 for all.
    pub top_p: f64,
    /// Decides everything: equal seeds sample equal sequences.
    pub seed: u64,
}

impl Default for SamplingOptions {
    fn default() -> SamplingOptions {
        SamplingOptions { temperature: 1.0, top_p: 1.0, seed: 0 }
    }
}

impl SamplingOptions {
    fn check(&self) -> Result<(), ModelError> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(ModelError::Options(format!("temperature {} is not 0 or more", self.temperature)));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(ModelError::Options(format!("top-p {} is not above 0 and up to 1", self.top_p)));
        }
        Ok(())
    }
}

/// One sampled sequence.
#[derive(Clone, PartialEq, Debug)]
pub struct Sampled {
    /// The answer chosen at each [`Next::Ask`].
    pub choices: Vec<usize>,
    /// Natural logarithm of the probability of all choices, at temperature 1.
    pub log_likelihood: f64,
    /// Whether the guide said [`Next::Finished`]; else the model's longest sequence was reached.
    pub complete: bool,
}

/// Sequences that continue a prompt, one for each guide.
pub struct Continuing<'a, G> {
    pub prompt: &'a Prompt,
    pub guides: &'a mut [G],
    pub options: SamplingOptions,
}

impl Decoder {
    /// Samples a sequence for each guide, in the order of the guides.
    ///
    /// # Errors
    /// As [`Decoder::sample_all`].
    pub fn sample<G: Guide>(
        &self,
        prompt: &Prompt,
        guides: &mut [G],
        options: &SamplingOptions,
    ) -> Result<Vec<Sampled>, ModelError> {
        let sampled = self.sample_all(vec![Continuing { prompt, guides, options: options.clone() }])?;
        Ok(sampled.into_iter().flatten().collect())
    }

    /// Samples behind several prompts at once, which keeps more threads busy than one after the other: for
    /// each of them, a sequence for each guide.
    ///
    /// # Errors
    /// Options out of their range; questions or answers without tokens, a token outside of the vocabulary.
    pub fn sample_all<G: Guide>(&self, all: Vec<Continuing<'_, G>>) -> Result<Vec<Vec<Sampled>>, ModelError> {
        all.iter().try_for_each(|continuing| continuing.options.check())?;
        let counts: Vec<usize> = all.iter().map(|continuing| continuing.guides.len()).collect();
        let size = counts.iter().sum::<usize>().div_ceil(2).clamp(FEWEST_PER_BATCH, SEQUENCES_PER_BATCH);
        let mut batches = Vec::new();
        for Continuing { prompt, guides, options } in all {
            let parts = guides.chunks_mut(size).enumerate();
            batches.extend(parts.map(|(number, guides)| (prompt, guides, number * size, options.clone())));
        }
        let sampled: Vec<Result<Vec<Sampled>, ModelError>> = batches
            .into_par_iter()
            .map(|(prompt, guides, first, options)| self.sample_batch(prompt, guides, first, &options))
            .collect();
        let mut sampled = sampled.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten();
        Ok(counts.into_iter().map(|count| sampled.by_ref().take(count).collect()).collect())
    }

    fn sample_batch<G: Guide>(
        &self,
        prompt: &Prompt,
        guides: &mut [G],
        first: usize,
        options: &SamplingOptions,
    ) -> Result<Vec<Sampled>, ModelError> {
        let width = self.config().width;
        let room = self.config().max_sequence - prompt.length();
        let mut writers: Vec<Writer> = Vec::with_capacity(guides.len());
        let mut members = Vec::with_capacity(guides.len());
        for (i, guide) in guides.iter_mut().enumerate() {
            let mut writer = Writer::new(self, seed_of(options.seed, first + i), options);
            members.extend(writer.advance(guide, None, room)?.map(|asked| (i, asked)));
            writers.push(writer);
        }
        let mut branches = Branch::split(Cache::new(self.config()), members);
        let mut scratch = Scratch::default();
        while !branches.is_empty() {
            let (mut chunks, mut lasts, mut rows) = (Vec::new(), Vec::new(), 0);
            for Branch { cache, asked, .. } in &mut branches {
                self.check(&asked.positions, prompt.length() + cache.length)?;
                rows += asked.positions.len();
                lasts.push(rows - 1);
                chunks.push(Chunk { cache, positions: &asked.positions });
            }
            self.step(Some(&prompt.cache), &mut chunks, &mut scratch);
            let mut further = Vec::with_capacity(branches.len());
            for (Branch { cache, asked, sequences }, row) in branches.into_iter().zip(lasts) {
                let scores = self.policy(&scratch.hidden[row * width..][..width], &asked.answers);
                let mut members = Vec::with_capacity(sequences.len());
                for i in sequences {
                    let picked = writers[i].choose(&scores, &asked.answers)?;
                    let next = writers[i].advance(&mut guides[i], Some(picked), room - cache.length)?;
                    members.extend(next.map(|asked| (i, asked)));
                }
                further.extend(Branch::split(cache, members));
            }
            branches = further;
        }
        let finish = |writer: Writer| {
            let Writer { choices, log_likelihood, complete, .. } = writer;
            Sampled { choices, log_likelihood, complete }
        };
        Ok(writers.into_iter().map(finish).collect())
    }
}

/// Sequences that are alike so far: the model reads them once. Where it is sure of itself, many are.
struct Branch {
    cache: Cache,
    /// What follows in all of them.
    asked: Asked,
    /// By number.
    sequences: Vec<usize>,
}

impl Branch {
    /// Parts sequences that were alike, by what follows in each of them.
    fn split(cache: Cache, members: Vec<(usize, Asked)>) -> Vec<Branch> {
        let mut groups: Vec<(Asked, Vec<usize>)> = Vec::new();
        for (sequence, asked) in members {
            match groups.iter_mut().find(|(other, _)| *other == asked) {
                Some((_, sequences)) => sequences.push(sequence),
                None => groups.push((asked, vec![sequence])),
            }
        }
        // the last of them has no need of a copy
        let caches = std::iter::repeat_n(cache, groups.len());
        let branch = |((asked, sequences), cache)| Branch { cache, asked, sequences };
        groups.into_iter().zip(caches).map(branch).collect()
    }
}

/// What the model reads next, and what it is asked for behind that.
#[derive(PartialEq)]
struct Asked {
    positions: Vec<Position>,
    /// At least two.
    answers: Vec<Vec<u32>>,
}

/// One sequence being written.
struct Writer {
    processor: LogitsProcessor,
    vocabulary: usize,
    /// The last answer, which is read with the next question.
    answer: Vec<u32>,
    choices: Vec<usize>,
    log_likelihood: f64,
    complete: bool,
}

impl Writer {
    fn new(decoder: &Decoder, seed: u64, options: &SamplingOptions) -> Writer {
        // of answers that are all equally likely, none is the tail
        let top_p = (!decoder.is_indifferent()).then_some(options.top_p);
        Writer {
            processor: LogitsProcessor::new(seed, Some(options.temperature), top_p),
            vocabulary: decoder.config().vocabulary,
            answer: Vec::new(),
            choices: Vec::new(),
            log_likelihood: 0.0,
            complete: false,
        }
    }

    /// Asks the guide until an answer needs the model, or the sequence ends, which has at most `room` further
    /// positions; `chosen` was sampled since it was asked last.
    fn advance(
        &mut self,
        guide: &mut impl Guide,
        mut chosen: Option<usize>,
        room: usize,
    ) -> Result<Option<Asked>, ModelError> {
        let mut positions = Vec::new();
        loop {
            let (question, answers, known) = match guide.next(chosen.take()) {
                Next::Finished => {
                    self.complete = true;
                    return Ok(None);
                }
                Next::Told { question, answer } => (question, vec![answer], true),
                Next::Ask { question, answers } => (question, answers, false),
            };
            check_answers(&answers, self.vocabulary)?;
            if positions.len() >= room {
                return Ok(None);
            }
            positions.push(Position { answer: std::mem::take(&mut self.answer), question });
            let [only] = answers.as_slice() else { return Ok(Some(Asked { positions, answers })) };
            self.answer.clone_from(only);
            if !known {
                self.choices.push(0);
                chosen = Some(0);
            }
        }
    }

    /// Samples one of the answers by their scores: its position.
    fn choose(&mut self, scores: &[f32], answers: &[Vec<u32>]) -> Result<usize, ModelError> {
        let picked = self.processor.sample(&Tensor::new(scores, &Device::Cpu)?)? as usize;
        self.log_likelihood += log_probability(scores, picked)?;
        self.answer.clone_from(&answers[picked]);
        self.choices.push(picked);
        Ok(picked)
    }
}

/// A stream of random numbers for each sequence (the finaliser of SplitMix64, Steele et al. 2014).
fn seed_of(seed: u64, sequence: usize) -> u64 {
    let mut z = seed.wrapping_add((sequence as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
