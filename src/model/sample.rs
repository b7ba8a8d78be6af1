//! Sampling many sequences in lockstep, where only what a [`Guide`] allows has probability.

use candle_core::{Device, Tensor};
use candle_transformers::generation::LogitsProcessor;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

use super::decode::{Cache, Chunk, Decoder, Prompt, SEQUENCES_PER_BATCH, Scratch, log_probability};
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

impl Decoder {
    /// Samples a sequence for each guide, in the order of the guides.
    ///
    /// # Errors
    /// Options out of their range; questions or answers without tokens, a token outside of the vocabulary.
    pub fn sample<G: Guide>(
        &self,
        prompt: &Prompt,
        guides: &mut [G],
        options: &SamplingOptions,
    ) -> Result<Vec<Sampled>, ModelError> {
        if !(options.temperature.is_finite() && options.temperature >= 0.0) {
            return Err(ModelError::Options(format!("temperature {} is not 0 or more", options.temperature)));
        }
        if !(options.top_p > 0.0 && options.top_p <= 1.0) {
            return Err(ModelError::Options(format!("top-p {} is not above 0 and up to 1", options.top_p)));
        }
        let batches: Vec<Result<Vec<Sampled>, ModelError>> = guides
            .par_chunks_mut(SEQUENCES_PER_BATCH)
            .enumerate()
            .map(|(batch, guides)| self.sample_batch(prompt, guides, batch * SEQUENCES_PER_BATCH, options))
            .collect();
        let mut sampled = Vec::with_capacity(guides.len());
        for batch in batches {
            sampled.extend(batch?);
        }
        Ok(sampled)
    }

    fn sample_batch<G: Guide>(
        &self,
        prompt: &Prompt,
        guides: &mut [G],
        first: usize,
        options: &SamplingOptions,
    ) -> Result<Vec<Sampled>, ModelError> {
        let width = self.config().width;
        let limit = self.config().max_sequence - prompt.length();
        let mut writers: Vec<Writer> = Vec::with_capacity(guides.len());
        for (i, guide) in guides.iter_mut().enumerate() {
            let mut writer = Writer::new(self, seed_of(options.seed, first + i), options);
            writer.advance(guide, limit)?;
            writers.push(writer);
        }
        let mut scratch = Scratch::default();
        loop {
            let (mut chunks, mut lasts, mut rows) = (Vec::new(), Vec::new(), 0);
            for writer in writers.iter_mut().filter(|writer| !writer.answers.is_empty()) {
                self.check(&writer.pending, prompt.length() + writer.cache.length)?;
                rows += writer.pending.len();
                lasts.push(rows - 1);
                chunks.push(Chunk { cache: &mut writer.cache, positions: &writer.pending });
            }
            if chunks.is_empty() {
                break;
            }
            self.step(Some(&prompt.cache), &mut chunks, &mut scratch);
            let waiting = writers.iter_mut().zip(&mut *guides).filter(|(writer, _)| !writer.answers.is_empty());
            for ((writer, guide), row) in waiting.zip(lasts) {
                let scores = self.policy(&scratch.hidden[row * width..][..width], &writer.answers);
                writer.choose(&scores)?;
                writer.advance(guide, limit)?;
            }
        }
        let finish = |writer: Writer| {
            let Writer { choices, log_likelihood, complete, .. } = writer;
            Sampled { choices, log_likelihood, complete }
        };
        Ok(writers.into_iter().map(finish).collect())
    }
}

/// One sequence being written.
struct Writer {
    cache: Cache,
    processor: LogitsProcessor,
    vocabulary: usize,
    /// What the model has not read yet. The last position asks for one of `answers`.
    pending: Vec<Position>,
    /// The answers to choose from; none when the sequence has ended.
    answers: Vec<Vec<u32>>,
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
            cache: Cache::new(decoder.config()),
            processor: LogitsProcessor::new(seed, Some(options.temperature), top_p),
            vocabulary: decoder.config().vocabulary,
            pending: Vec::new(),
            answers: Vec::new(),
            answer: Vec::new(),
            choices: Vec::new(),
            log_likelihood: 0.0,
            complete: false,
        }
    }

    /// Asks the guide until an answer needs the model, or the sequence ends. It has at most `limit`
    /// positions.
    fn advance(&mut self, guide: &mut impl Guide, limit: usize) -> Result<(), ModelError> {
        let mut chosen = self.choices.last().copied().filter(|_| !self.answers.is_empty());
        self.answers.clear();
        loop {
            let (question, answers, known) = match guide.next(chosen.take()) {
                Next::Finished => {
                    self.complete = true;
                    return Ok(());
                }
                Next::Told { question, answer } => (question, vec![answer], true),
                Next::Ask { question, answers } => (question, answers, false),
            };
            check_answers(&answers, self.vocabulary)?;
            if self.cache.length + self.pending.len() >= limit {
                return Ok(());
            }
            self.pending.push(Position { answer: std::mem::take(&mut self.answer), question });
            if let [only] = answers.as_slice() {
                self.answer.clone_from(only);
                if !known {
                    self.choices.push(0);
                    chosen = Some(0);
                }
                continue;
            }
            self.answers = answers;
            return Ok(());
        }
    }

    /// Samples one of the answers, after the model has read what was pending.
    fn choose(&mut self, scores: &[f32]) -> Result<(), ModelError> {
        let picked = self.processor.sample(&Tensor::new(scores, &Device::Cpu)?)? as usize;
        self.log_likelihood += log_probability(scores, picked)?;
        self.pending.clear();
        self.answer.clone_from(&self.answers[picked]);
        self.choices.push(picked);
        Ok(())
    }
}

/// A stream of random numbers for each sequence (the finaliser of SplitMix64, Steele et al. 2014).
fn seed_of(seed: u64, sequence: usize) -> u64 {
    let mut z = seed.wrapping_add((sequence as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
