//! Inference on the CPU: many sequences of different lengths behind one shared prompt, each with its cache of
//! keys and values.
//!
//! A step feeds every sequence a chunk of one or more positions. The chunks stand one after the other in one
//! `[rows, width]` matrix: projections are one matrix product for the whole batch, nothing is padded.
//! Attention to the shared prompt is one product for all heads of all sequences too (the prompt's keys are
//! read once, as in Hydragen, 2024); only attention to a sequence's own positions works sequence by sequence.

use rayon::iter::ParallelIterator;
use rayon::slice::ParallelSlice;

use super::kernels::{Matrix, dot, multiply, multiply_few, rms_norm, rotate, softmax, squared_relu_gate, transpose};
use super::panels::Panels;
use super::position::{check_answers, check_positions, slotted};
use super::{Config, Model, ModelError, Position, Step};

/// Sequences that are decoded together, on one thread, at most; and at least, where there are as many.
/// Constants: results do not depend on the number of cores.
pub(super) const SEQUENCES_PER_BATCH: usize = 32;
pub(super) const FEWEST_PER_BATCH: usize = 16;

/// A model made ready for inference: weights laid out for products by few rows, rotations tabled.
pub struct Decoder {
    config: Config,
    /// `[vocabulary, width]`
    embedding: Vec<f32>,
    /// `[2 · slots, width]`: of questions, then of answers
    read_slots: Vec<f32>,
    /// `[slots, width]`
    choice_slots: Vec<f32>,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    /// `[width]`
    value_weight: Vec<f32>,
    value_bias: f32,
    /// `[max_sequence, head_width / 2]`
    cosines: Vec<f32>,
    sines: Vec<f32>,
}

struct Layer {
    attention_norm: Vec<f32>,
    /// `[width, projection]`
    query_key_value: Panels,
    /// `[width, width]`
    attention_output: Panels,
    feed_forward_norm: Vec<f32>,
    /// `[width, 2 · feed_forward]`
    gate_up: Panels,
    /// `[feed_forward, width]`
    down: Panels,
}

/// Keys and values of one sequence, for all layers.
#[derive(Clone, Default)]
pub(super) struct Cache {
    layers: Vec<LayerCache>,
    /// Positions held.
    pub length: usize,
    capacity: usize,
}

#[derive(Clone, Default)]
struct LayerCache {
    /// `[head_width, capacity]`: so that scores are a product without transposition
    keys: Vec<f32>,
    /// `[capacity, head_width]`
    values: Vec<f32>,
}

impl Cache {
    pub fn new(config: &Config) -> Cache {
        Cache { layers: vec![LayerCache::default(); config.layers], length: 0, capacity: 0 }
    }

    /// Makes room for `more` positions.
    fn reserve(&mut self, more: usize, head: usize) {
        let needed = self.length + more;
        if needed <= self.capacity {
            return;
        }
        let capacity = needed.next_power_of_two().max(64);
        for layer in &mut self.layers {
            let mut keys = vec![0.0; head * capacity];
            for (new, old) in keys.chunks_exact_mut(capacity).zip(layer.keys.chunks_exact(self.capacity.max(1))) {
                new[..self.length].copy_from_slice(&old[..self.length]);
            }
            layer.keys = keys;
            layer.values.resize(capacity * head, 0.0);
        }
        self.capacity = capacity;
    }
}

/// A prompt that was read: shared by all sequences that continue it.
pub struct Prompt {
    pub(super) cache: Cache,
}

impl Prompt {
    /// Positions in the prompt.
    pub fn length(&self) -> usize {
        self.cache.length
    }
}

/// What one sequence is fed in a step.
pub(super) struct Chunk<'a> {
    pub cache: &'a mut Cache,
    /// At least one.
    pub positions: &'a [Position],
}

/// Buffers that live as long as a batch, so that steps do not allocate. `hidden` holds a step's result.
#[derive(Default)]
pub(super) struct Scratch {
    /// Hidden states, a row for each position of the step: `[rows, width]`.
    pub hidden: Vec<f32>,
    normed: Vec<f32>,
    projected: Vec<f32>,
    queries: Vec<f32>,
    attended: Vec<f32>,
    prompt_scores: Vec<f32>,
    own_scores: Vec<f32>,
    gate_up: Vec<f32>,
    gated: Vec<f32>,
}

impl Decoder {
    pub fn new(model: &Model) -> Decoder {
        let config = model.config().clone();
        let (width, hidden) = (config.width, config.feed_forward);
        let layers = (0..config.layers).map(|layer| {
            let tensor = |name: &str| model.tensor(&format!("layers.{layer}.{name}.weight"));
            let panels = |name: &str, outputs: usize, inputs: usize| {
                Panels::new(transpose(tensor(name), outputs, inputs), inputs, outputs)
            };
            Layer {
                attention_norm: tensor("attention_norm").to_vec(),
                query_key_value: panels("query_key_value", config.projection(), width),
                attention_output: panels("attention_output", width, width),
                feed_forward_norm: tensor("feed_forward_norm").to_vec(),
                gate_up: panels("gate_up", 2 * hidden, width),
                down: panels("down", width, hidden),
            }
        });
        let (cosines, sines) = config.rotation();
        Decoder {
            embedding: model.tensor("embedding.weight").to_vec(),
            read_slots: model.tensor("read_slots.weight").to_vec(),
            choice_slots: model.tensor(super::CHOICE).to_vec(),
            layers: layers.collect(),
            norm: model.tensor("norm.weight").to_vec(),
            value_weight: model.tensor("value.weight").to_vec(),
            value_bias: model.tensor("value.bias").iter().sum(),
            cosines,
            sines,
            config,
        }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether all answers have the same score, whatever was read.
    pub(super) fn is_indifferent(&self) -> bool {
        self.choice_slots.iter().all(|weight| *weight == 0.0)
    }

    /// Reads a prompt, once for all sequences that continue it.
    ///
    /// # Errors
    /// An empty prompt, one longer than the model's sequences, positions without tokens, a token outside of
    /// the vocabulary.
    pub fn prompt(&self, positions: &[Position]) -> Result<Prompt, ModelError> {
        self.check(positions, 0)?;
        let (mut cache, mut scratch) = (Cache::new(&self.config), Scratch::default());
        self.step(None, &mut [Chunk { cache: &mut cache, positions }], &mut scratch);
        Ok(Prompt { cache })
    }

    /// The value head's prediction at the end of each sequence that continues `prompt`: log speed relative to
    /// the best known.
    ///
    /// # Errors
    /// As [`Decoder::prompt`], of each sequence.
    pub fn values(&self, prompt: &Prompt, sequences: &[Vec<Position>]) -> Result<Vec<f32>, ModelError> {
        in_batches(sequences, |batch| self.values_of_batch(prompt, batch))
    }

    fn values_of_batch(&self, prompt: &Prompt, batch: &[Vec<Position>]) -> Result<Vec<f32>, ModelError> {
        let mut scratch = Scratch::default();
        self.read(prompt, batch, &mut scratch)?;
        let ends = batch.iter().scan(0, |rows, positions| {
            *rows += positions.len();
            Some(*rows - 1)
        });
        Ok(ends.map(|row| self.value(&scratch.hidden[row * self.config.width..])).collect())
    }

    /// Leaves the hidden states of all positions of sequences in `scratch.hidden`.
    fn read(&self, prompt: &Prompt, batch: &[Vec<Position>], scratch: &mut Scratch) -> Result<(), ModelError> {
        let mut caches: Vec<Cache> = batch.iter().map(|_| Cache::new(&self.config)).collect();
        let mut chunks = Vec::with_capacity(batch.len());
        for (cache, positions) in caches.iter_mut().zip(batch) {
            self.check(positions, prompt.length())?;
            chunks.push(Chunk { cache, positions });
        }
        self.step(Some(&prompt.cache), &mut chunks, scratch);
        Ok(())
    }

    /// Natural logarithms of the probabilities that the policy gives to what was decided in each sequence
    /// that continues `prompt`.
    ///
    /// # Errors
    /// As [`Decoder::prompt`], of each sequence; an answer without tokens, a decision outside of its answers.
    pub fn log_likelihoods(&self, prompt: &Prompt, sequences: &[Vec<Step>]) -> Result<Vec<f64>, ModelError> {
        in_batches(sequences, |batch| self.log_likelihoods_of_batch(prompt, batch))
    }

    fn log_likelihoods_of_batch(&self, prompt: &Prompt, batch: &[Vec<Step>]) -> Result<Vec<f64>, ModelError> {
        let read = |steps: &Vec<Step>| steps.iter().map(|step| step.position.as_ref().clone()).collect();
        let positions: Vec<Vec<Position>> = batch.iter().map(read).collect();
        let mut scratch = Scratch::default();
        self.read(prompt, &positions, &mut scratch)?;
        let mut hidden = scratch.hidden.chunks_exact(self.config.width);
        let mut likelihoods = Vec::with_capacity(batch.len());
        for steps in batch {
            let mut sum = 0.0;
            for (step, hidden) in steps.iter().zip(hidden.by_ref()) {
                if step.answers.len() > 1 {
                    check_answers(&step.answers, self.config.vocabulary)?;
                    sum += log_probability(&self.policy(hidden, &step.answers), step.chosen)?;
                }
            }
            likelihoods.push(sum);
        }
        Ok(likelihoods)
    }

    /// The policy's scores of `answers` after each position of one sequence: `[positions, answers]`.
    ///
    /// # Errors
    /// As [`Decoder::prompt`]; no answers, or some without tokens.
    pub fn scores(
        &self,
        prompt: &Prompt,
        positions: &[Position],
        answers: &[Vec<u32>],
    ) -> Result<Vec<f32>, ModelError> {
        self.check(positions, prompt.length())?;
        check_answers(answers, self.config.vocabulary)?;
        let (mut cache, mut scratch) = (Cache::new(&self.config), Scratch::default());
        self.step(Some(&prompt.cache), &mut [Chunk { cache: &mut cache, positions }], &mut scratch);
        Ok(scratch.hidden.chunks_exact(self.config.width).flat_map(|hidden| self.policy(hidden, answers)).collect())
    }

    /// Whether `positions` may be fed after `before` others.
    pub(super) fn check(&self, positions: &[Position], before: usize) -> Result<(), ModelError> {
        let (length, limit) = (positions.len() + before, self.config.max_sequence);
        if positions.is_empty() || length > limit {
            return Err(ModelError::Length { length: positions.len(), limit: limit.saturating_sub(before) });
        }
        check_positions(positions, self.config.vocabulary)
    }

    /// The policy head: a score for each answer, at one hidden state. Answers were checked.
    pub(super) fn policy(&self, hidden: &[f32], answers: &[Vec<u32>]) -> Vec<f32> {
        let (width, slots) = (self.config.width, self.config.slots);
        let mut normed = vec![0.0; width];
        rms_norm(&mut normed, hidden, &self.norm);
        // by slot, since many answers have the same few
        let weigh = |slot: &[f32]| normed.iter().zip(slot).map(|(x, w)| x * w).collect::<Vec<f32>>();
        let by_slot: Vec<Vec<f32>> = self.choice_slots.chunks_exact(width).map(weigh).collect();
        let embedding = |token: u32| &self.embedding[token as usize * width..][..width];
        let score = |answer: &Vec<u32>| {
            slotted(answer, slots).map(|(token, slot)| dot(&by_slot[slot], embedding(token))).sum::<f32>()
        };
        answers.iter().map(score).collect()
    }

    /// The value head at one hidden state, the first `width` numbers of `hidden`.
    pub(super) fn value(&self, hidden: &[f32]) -> f32 {
        let mut normed = vec![0.0; self.config.width];
        rms_norm(&mut normed, &hidden[..self.config.width], &self.norm);
        dot(&normed, &self.value_weight) + self.value_bias
    }

    /// Feeds each sequence its chunk; leaves the hidden states of all positions in `scratch.hidden`, chunk
    /// after chunk. Positions and lengths were checked.
    pub(super) fn step(&self, prompt: Option<&Cache>, chunks: &mut [Chunk<'_>], scratch: &mut Scratch) {
        let (width, hidden) = (self.config.width, self.config.feed_forward);
        let rows: usize = chunks.iter().map(|chunk| chunk.positions.len()).sum();
        scratch.hidden.clear();
        for chunk in chunks.iter_mut() {
            chunk.cache.reserve(chunk.positions.len(), self.config.head_width());
            for position in chunk.positions {
                let begin = scratch.hidden.len();
                scratch.hidden.resize(begin + width, 0.0);
                for (token, slot) in position.slotted(self.config.slots) {
                    let embedded = &self.embedding[token as usize * width..][..width];
                    let weighed = embedded.iter().zip(&self.read_slots[slot * width..][..width]).map(|(x, w)| x * w);
                    scratch.hidden[begin..].iter_mut().zip(weighed).for_each(|(sum, x)| *sum += x);
                }
            }
        }
        scratch.normed.resize(rows * width, 0.0);
        scratch.projected.resize(rows * self.config.projection(), 0.0);
        scratch.queries.resize(rows * width, 0.0);
        scratch.attended.resize(rows * width, 0.0);
        scratch.gate_up.resize(rows * 2 * hidden, 0.0);
        scratch.gated.resize(rows * hidden, 0.0);
        for (index, layer) in self.layers.iter().enumerate() {
            rms_norm(&mut scratch.normed, &scratch.hidden, &layer.attention_norm);
            layer.query_key_value.multiply(&mut scratch.projected, &scratch.normed, false);
            self.project(index, prompt.map_or(0, |prompt| prompt.length), chunks, scratch);
            self.attend(index, prompt, chunks, scratch);
            layer.attention_output.multiply(&mut scratch.hidden, &scratch.attended, true);

            rms_norm(&mut scratch.normed, &scratch.hidden, &layer.feed_forward_norm);
            layer.gate_up.multiply(&mut scratch.gate_up, &scratch.normed, false);
            squared_relu_gate(&mut scratch.gated, &scratch.gate_up, hidden);
            layer.down.multiply(&mut scratch.hidden, &scratch.gated, true);
        }
        for chunk in chunks {
            chunk.cache.length += chunk.positions.len();
        }
    }

    /// Rotates queries into `scratch.queries`, `[rows · heads, head_width]`, and new keys and values into the
    /// caches.
    fn project(&self, layer: usize, before: usize, chunks: &mut [Chunk<'_>], scratch: &mut Scratch) {
        let (heads, head) = (self.config.heads, self.config.head_width());
        let half = head / 2;
        let scale = 1.0 / (head as f32).sqrt();
        let mut rotated = vec![0.0; head];
        let mut rows = scratch
            .projected
            .chunks_exact(self.config.projection())
            .zip(scratch.queries.chunks_exact_mut(self.config.width));
        for chunk in chunks {
            let (capacity, start) = (chunk.cache.capacity, chunk.cache.length);
            let cache = &mut chunk.cache.layers[layer];
            for at in start..start + chunk.positions.len() {
                let Some((projected, queries)) = rows.next() else { return };
                let cosine = &self.cosines[(before + at) * half..][..half];
                let sine = &self.sines[(before + at) * half..][..half];
                for (output, query) in queries.chunks_exact_mut(head).zip(projected.chunks_exact(head)) {
                    rotate(output, query, cosine, sine, scale);
                }
                rotate(&mut rotated, &projected[heads * head..][..head], cosine, sine, 1.0);
                for (i, key) in rotated.iter().enumerate() {
                    cache.keys[i * capacity + at] = *key;
                }
                cache.values[at * head..][..head].copy_from_slice(&projected[(heads + 1) * head..][..head]);
            }
        }
    }

    /// Causal attention of `scratch.queries` to the prompt and to the own positions; result in
    /// `scratch.attended`.
    fn attend(&self, layer: usize, prompt: Option<&Cache>, chunks: &[Chunk<'_>], scratch: &mut Scratch) {
        let (heads, head) = (self.config.heads, self.config.head_width());
        let rows = scratch.queries.len() / head;
        let shared = prompt.map_or(0, |prompt| prompt.length);
        if let Some(prompt) = prompt {
            scratch.prompt_scores.resize(rows * shared, 0.0);
            let queries = Matrix::row_major(&scratch.queries, rows, head);
            multiply(&mut scratch.prompt_scores, queries, prompt.keys(layer, shared, head), false);
        }
        let mut first_row = 0;
        for chunk in chunks {
            let (start, new) = (chunk.cache.length, chunk.positions.len());
            let (length, own_rows) = (start + new, new * heads);
            scratch.own_scores.resize(own_rows * length, 0.0);
            let queries = &scratch.queries[first_row * head..][..own_rows * head];
            let (keys, values) = (chunk.cache.keys(layer, length, head), &chunk.cache.layers[layer].values);
            match new {
                1 => multiply_few(&mut scratch.own_scores, length, queries, head, keys.data, keys.row_stride),
                _ => multiply(&mut scratch.own_scores, Matrix::row_major(queries, own_rows, head), keys, false),
            }
            for (row, own) in scratch.own_scores.chunks_exact_mut(length).enumerate() {
                let (visible, later) = own.split_at_mut(start + row / heads + 1);
                softmax(&mut scratch.prompt_scores[(first_row + row) * shared..][..shared], visible);
                later.fill(0.0);
            }
            let (scores, attended) = (&scratch.own_scores, &mut scratch.attended[first_row * head..]);
            match new {
                1 => multiply_few(&mut attended[..own_rows * head], head, scores, length, values, head),
                _ => {
                    let scores = Matrix::row_major(scores, own_rows, length);
                    multiply(attended, scores, Matrix::row_major(values, length, head), false);
                }
            }
            first_row += own_rows;
        }
        if let Some(prompt) = prompt {
            let scores = Matrix::row_major(&scratch.prompt_scores, rows, shared);
            let values = Matrix::row_major(&prompt.layers[layer].values, shared, head);
            multiply(&mut scratch.attended, scores, values, true);
        }
    }
}

/// What is found out of sequences, batch by batch, side by side.
fn in_batches<S: Sync, T: Send>(
    sequences: &[S],
    of_batch: impl Fn(&[S]) -> Result<Vec<T>, ModelError> + Sync + Send,
) -> Result<Vec<T>, ModelError> {
    let batches: Vec<Result<Vec<T>, ModelError>> = sequences.par_chunks(SEQUENCES_PER_BATCH).map(of_batch).collect();
    let batches: Vec<Vec<T>> = batches.into_iter().collect::<Result<_, _>>()?;
    Ok(batches.into_iter().flatten().collect())
}

/// Of the answer at `chosen`, among all, from their scores.
pub(super) fn log_probability(scores: &[f32], chosen: usize) -> Result<f64, ModelError> {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = scores.iter().map(|score| f64::from(score - largest).exp()).sum();
    let score = scores.get(chosen).ok_or(ModelError::Answer { answer: chosen, answers: scores.len() })?;
    Ok(f64::from(score - largest) - sum.ln())
}

impl Cache {
    /// The first `length` keys of a layer, transposed: `[head_width, length]`.
    fn keys(&self, layer: usize, length: usize, head: usize) -> Matrix<'_> {
        let data = &self.layers[layer].keys;
        Matrix { data, rows: head, columns: length, row_stride: self.capacity, column_stride: 1 }
    }
}
