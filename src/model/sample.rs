//! Sampling many sequences in lockstep, where only what a [`Guide`] allows has probability.

use std::cmp::Ordering;

use candle_core::{Device, Tensor};
use candle_transformers::generation::LogitsProcessor;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

use super::ModelError;
use super::decode::{Cache, Chunk, Decoder, Prompt, Scratch};

/// Sequences that are decoded together, on one thread. A constant: results do not depend on the number of cores.
pub(super) const SEQUENCES_PER_BATCH: usize = 32;

/// What may follow in a sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// These tokens follow for certain; they are fed, not sampled.
    Forced(Vec<u32>),
    /// One of these token strings follows. At least one; none a prefix of another.
    Among(Vec<Vec<u32>>),
    /// Nothing follows.
    Finished,
}

/// Says what may follow in one sequence.
pub trait Guide: Send {
    /// What follows. `chosen` is the position of the candidate that was sampled, if the last answer was [`Next::Among`].
    fn next(&mut self, chosen: Option<usize>) -> Next;
}

/// How to sample.
#[derive(Clone, PartialEq, Debug)]
pub struct SamplingOptions {
    /// Divides the logits; 0 takes the likeliest.
    pub temperature: f64,
    /// Only the likeliest tokens whose probabilities add up to this are sampled; 1 for all.
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
    /// What follows the prompt: forced and sampled tokens.
    pub tokens: Vec<u32>,
    /// The candidate chosen at each [`Next::Among`].
    pub choices: Vec<usize>,
    /// Natural logarithm of the probability of all choices, among the legal ones, at temperature 1.
    pub log_likelihood: f64,
    /// The value head's prediction at the end: log speed relative to the best known.
    pub value: f32,
    /// Whether the guide said [`Next::Finished`]; else the model's longest sequence was reached.
    pub complete: bool,
}

impl Decoder {
    /// Samples a sequence for each guide, in the order of the guides.
    ///
    /// The candidates of a decision form a trie, which sampling walks from its root: at each branch only the tokens that
    /// continue a candidate have probability, and where there is one, it is fed without being sampled.
    ///
    /// # Errors
    /// Options out of their range; candidates that are none, or of which one is a prefix of another; a token outside of the vocabulary.
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
        let mut writers: Vec<Writer> = Vec::with_capacity(guides.len());
        for (i, guide) in guides.iter_mut().enumerate() {
            let mut writer = Writer::new(self, prompt, seed_of(options.seed, first + i), options);
            writer.advance(guide, None)?;
            writers.push(writer);
        }
        let (mut scratch, mut hidden, mut logits) = (Scratch::default(), Vec::new(), Vec::new());
        loop {
            // feed what is pending; hidden states of the last tokens decide
            let mut lasts = Vec::with_capacity(writers.len());
            let mut chunks = Vec::with_capacity(writers.len());
            let mut rows = 0;
            for (i, writer) in writers.iter_mut().enumerate().filter(|(_, writer)| writer.fed < writer.tokens.len()) {
                let tokens = &writer.tokens[writer.fed..];
                self.check(tokens, prompt.length() + writer.fed)?;
                rows += tokens.len();
                lasts.push((i, rows - 1));
                chunks.push(Chunk { cache: &mut writer.cache, tokens });
            }
            if !chunks.is_empty() {
                self.step(Some(&prompt.cache), &mut chunks, &mut scratch);
            }
            for (i, row) in lasts {
                writers[i].fed = writers[i].tokens.len();
                writers[i].hidden.copy_from_slice(&scratch.hidden[row * width..][..width]);
            }
            let waiting: Vec<usize> = (0..writers.len()).filter(|i| writers[*i].decision.is_some()).collect();
            if waiting.is_empty() {
                break;
            }
            hidden.clear();
            waiting.iter().for_each(|i| hidden.extend_from_slice(&writers[*i].hidden));
            self.policy(&hidden, &mut logits);
            for (i, logits) in waiting.into_iter().zip(logits.chunks_exact(self.config().vocabulary)) {
                writers[i].branch(&mut guides[i], logits)?;
            }
        }
        Ok(writers.into_iter().map(|writer| writer.finish(self)).collect())
    }
}

/// One sequence being written.
struct Writer {
    cache: Cache,
    processor: LogitsProcessor,
    tokens: Vec<u32>,
    /// How many of `tokens` the model has read.
    fed: usize,
    /// Most tokens that fit behind the prompt.
    limit: usize,
    vocabulary: usize,
    /// Hidden state of the last token read.
    hidden: Vec<f32>,
    /// The decision that is waiting for the model; none when the sequence ended.
    decision: Option<Decision>,
    choices: Vec<usize>,
    log_likelihood: f64,
    complete: bool,
}

/// A walk down the trie of a decision's candidates.
struct Decision {
    candidates: Vec<Vec<u32>>,
    /// Positions of the candidates that start with what was written since the decision began, sorted by their tokens.
    alive: Vec<usize>,
    /// Tokens of the candidates that were written.
    depth: usize,
}

impl Writer {
    fn new(decoder: &Decoder, prompt: &Prompt, seed: u64, options: &SamplingOptions) -> Writer {
        Writer {
            cache: Cache::new(decoder.config()),
            processor: LogitsProcessor::new(seed, Some(options.temperature), Some(options.top_p)),
            tokens: Vec::new(),
            fed: 0,
            limit: decoder.config().max_sequence - prompt.length(),
            vocabulary: decoder.config().vocabulary,
            hidden: prompt.hidden.clone(),
            decision: None,
            choices: Vec::new(),
            log_likelihood: 0.0,
            complete: false,
        }
    }

    /// Asks the guide until a decision needs the model, or the sequence ends.
    fn advance(&mut self, guide: &mut impl Guide, mut chosen: Option<usize>) -> Result<(), ModelError> {
        loop {
            match guide.next(chosen.take()) {
                Next::Finished => {
                    self.complete = true;
                    return Ok(());
                }
                Next::Forced(tokens) => {
                    if !self.write(&tokens)? {
                        return Ok(());
                    }
                }
                Next::Among(candidates) => {
                    let mut decision = Decision::new(candidates, self.vocabulary)?;
                    let done = decision.descend();
                    if !self.write(decision.written_since(0))? {
                        return Ok(());
                    }
                    match done {
                        Some(choice) => {
                            self.choices.push(choice);
                            chosen = Some(choice);
                        }
                        None => {
                            self.decision = Some(decision);
                            return Ok(());
                        }
                    }
                }
            }
        }
    }

    /// Samples the next token at a branch of the trie; goes on to the next branch or decision.
    fn branch(&mut self, guide: &mut impl Guide, logits: &[f32]) -> Result<(), ModelError> {
        let Some(mut decision) = self.decision.take() else { return Ok(()) };
        let branches = decision.branches();
        let legal: Vec<f32> = branches.iter().map(|token| logits[*token as usize]).collect();
        let largest = legal.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = legal.iter().map(|logit| f64::from(logit - largest).exp()).sum();
        let picked = self.processor.sample(&Tensor::new(legal.as_slice(), &Device::Cpu)?)? as usize;
        self.log_likelihood += f64::from(legal[picked] - largest) - sum.ln();

        let depth = decision.depth;
        decision.take(branches[picked]);
        let done = decision.descend();
        if !self.write(decision.written_since(depth))? {
            return Ok(());
        }
        match done {
            Some(choice) => {
                self.choices.push(choice);
                self.advance(guide, Some(choice))
            }
            None => {
                self.decision = Some(decision);
                Ok(())
            }
        }
    }

    /// Appends tokens; `false` where they do not fit any more, which ends the sequence incomplete.
    fn write(&mut self, tokens: &[u32]) -> Result<bool, ModelError> {
        if let Some(&token) = tokens.iter().find(|token| **token as usize >= self.vocabulary) {
            return Err(ModelError::Token { token, vocabulary: self.vocabulary });
        }
        if self.tokens.len() + tokens.len() > self.limit {
            return Ok(false);
        }
        self.tokens.extend_from_slice(tokens);
        Ok(true)
    }

    fn finish(self, decoder: &Decoder) -> Sampled {
        Sampled {
            value: decoder.value(&self.hidden),
            tokens: self.tokens,
            choices: self.choices,
            log_likelihood: self.log_likelihood,
            complete: self.complete,
        }
    }
}

impl Decision {
    fn new(candidates: Vec<Vec<u32>>, vocabulary: usize) -> Result<Decision, ModelError> {
        if let Some(&token) = candidates.iter().flatten().find(|token| **token as usize >= vocabulary) {
            return Err(ModelError::Token { token, vocabulary });
        }
        let mut alive: Vec<usize> = (0..candidates.len()).collect();
        alive.sort_by(|a, b| candidates[*a].cmp(&candidates[*b]));
        if alive.is_empty() {
            return Err(ModelError::Candidates("a decision without candidates".into()));
        }
        // in sorted order, a prefix of any later string is a prefix of the very next one
        for pair in alive.windows(2) {
            if candidates[pair[1]].starts_with(&candidates[pair[0]]) {
                let (prefix, whole) = (&candidates[pair[0]], &candidates[pair[1]]);
                return Err(ModelError::Candidates(format!("candidate {prefix:?} is a prefix of candidate {whole:?}")));
            }
        }
        Ok(Decision { candidates, alive, depth: 0 })
    }

    /// Goes down while there is one way; the choice, once only one candidate is left.
    fn descend(&mut self) -> Option<usize> {
        if let [only] = self.alive[..] {
            self.depth = self.candidates[only].len();
            return Some(only);
        }
        // sorted: what the first and the last share, all share
        let first = &self.candidates[self.alive[0]];
        let last = &self.candidates[self.alive[self.alive.len() - 1]];
        while first[self.depth].cmp(&last[self.depth]) == Ordering::Equal {
            self.depth += 1;
        }
        None
    }

    /// The tokens that may follow, distinct, ascending; at least two after [`Decision::descend`].
    fn branches(&self) -> Vec<u32> {
        let mut tokens: Vec<u32> = self.alive.iter().map(|i| self.candidates[*i][self.depth]).collect();
        tokens.dedup();
        tokens
    }

    /// Keeps the candidates that continue with `token`.
    fn take(&mut self, token: u32) {
        let Decision { candidates, alive, depth } = self;
        alive.retain(|i| candidates[*i][*depth] == token);
        *depth += 1;
    }

    /// Tokens written from `depth` on.
    fn written_since(&self, depth: usize) -> &[u32] {
        &self.candidates[self.alive[0]][depth..self.depth]
    }
}

/// A stream of random numbers for each sequence (the finaliser of SplitMix64, Steele et al. 2014).
fn seed_of(seed: u64, sequence: usize) -> u64 {
    let mut z = seed.wrapping_add((sequence as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
