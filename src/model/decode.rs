//! Inference on the CPU: many sequences of different lengths behind one shared prompt, each with its cache of keys and values.
//!
//! A step feeds every sequence a chunk of one or more tokens. The chunks stand one after the other in one `[rows, width]`
//! matrix: projections are one matrix product for the whole batch, nothing is padded. Attention to the shared prompt is one
//! product for all heads of all sequences too (the prompt's keys are read once, as in Hydragen, 2024); only attention to a
//! sequence's own tokens works sequence by sequence.

use super::kernels::{Matrix, multiply, rms_norm, rotate, softmax, squared_relu_gate, transpose};
use super::{Config, Model, ModelError};

/// A model made ready for inference: weights transposed to `[in, out]`, rotations tabled.
pub struct Decoder {
    config: Config,
    /// `[vocabulary, width]`
    embedding: Vec<f32>,
    /// `[width, vocabulary]`
    unembedding: Vec<f32>,
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
    query_key_value: Vec<f32>,
    /// `[width, width]`
    attention_output: Vec<f32>,
    feed_forward_norm: Vec<f32>,
    /// `[width, 2 · feed_forward]`
    gate_up: Vec<f32>,
    /// `[feed_forward, width]`
    down: Vec<f32>,
}

/// Keys and values of one sequence, for all layers.
#[derive(Clone, Default)]
pub(super) struct Cache {
    layers: Vec<LayerCache>,
    /// Tokens held.
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

    /// Makes room for `more` tokens.
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
    /// Hidden state of the last token, `[width]`.
    pub(super) hidden: Vec<f32>,
}

impl Prompt {
    /// Tokens in the prompt.
    pub fn length(&self) -> usize {
        self.cache.length
    }
}

/// What one sequence is fed in a step.
pub(super) struct Chunk<'a> {
    pub cache: &'a mut Cache,
    /// At least one.
    pub tokens: &'a [u32],
}

/// Buffers that live as long as a batch, so that steps do not allocate. `hidden` holds a step's result.
#[derive(Default)]
pub(super) struct Scratch {
    /// Hidden states, a row for each token of the step: `[rows, width]`.
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
            Layer {
                attention_norm: tensor("attention_norm").to_vec(),
                query_key_value: transpose(tensor("query_key_value"), config.projection(), width),
                attention_output: transpose(tensor("attention_output"), width, width),
                feed_forward_norm: tensor("feed_forward_norm").to_vec(),
                gate_up: transpose(tensor("gate_up"), 2 * hidden, width),
                down: transpose(tensor("down"), width, hidden),
            }
        });
        let (cosines, sines) = config.rotation();
        Decoder {
            embedding: model.tensor("embedding.weight").to_vec(),
            unembedding: transpose(model.tensor("embedding.weight"), config.vocabulary, width),
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

    /// Reads a prompt, once for all sequences that continue it.
    ///
    /// # Errors
    /// An empty prompt, one longer than the model's sequences, a token outside of the vocabulary.
    pub fn prompt(&self, tokens: &[u32]) -> Result<Prompt, ModelError> {
        self.check(tokens, 0)?;
        if tokens.is_empty() {
            return Err(ModelError::Length { length: 0, limit: self.config.max_sequence });
        }
        let (mut cache, mut scratch) = (Cache::new(&self.config), Scratch::default());
        self.step(None, &mut [Chunk { cache: &mut cache, tokens }], &mut scratch);
        let hidden = scratch.hidden[(tokens.len() - 1) * self.config.width..].to_vec();
        Ok(Prompt { cache, hidden })
    }

    /// The value head's prediction at the end of each sequence that continues `prompt`: log speed relative to the best known.
    ///
    /// # Errors
    /// A sequence that is empty or too long, a token outside of the vocabulary.
    pub fn values(&self, prompt: &Prompt, sequences: &[Vec<u32>]) -> Result<Vec<f32>, ModelError> {
        let mut values = Vec::with_capacity(sequences.len());
        let mut scratch = Scratch::default();
        for batch in sequences.chunks(super::sample::SEQUENCES_PER_BATCH) {
            let mut caches: Vec<Cache> = batch.iter().map(|_| Cache::new(&self.config)).collect();
            let mut chunks = Vec::with_capacity(batch.len());
            let (mut lasts, mut rows) = (Vec::with_capacity(batch.len()), 0);
            for (cache, tokens) in caches.iter_mut().zip(batch) {
                self.check(tokens, prompt.length())?;
                rows += tokens.len();
                lasts.push(
                    rows.checked_sub(1)
                        .filter(|_| !tokens.is_empty())
                        .ok_or(ModelError::Length { length: 0, limit: self.config.max_sequence - prompt.length() })?,
                );
                chunks.push(Chunk { cache, tokens });
            }
            self.step(Some(&prompt.cache), &mut chunks, &mut scratch);
            values.extend(lasts.iter().map(|row| self.value(&scratch.hidden[row * self.config.width..])));
        }
        Ok(values)
    }

    /// The policy's logits after each token of one sequence: `[tokens, vocabulary]`.
    ///
    /// # Errors
    /// A sequence that is too long, a token outside of the vocabulary.
    pub fn logits(&self, prompt: &Prompt, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
        self.check(tokens, prompt.length())?;
        let (mut cache, mut scratch) = (Cache::new(&self.config), Scratch::default());
        self.step(Some(&prompt.cache), &mut [Chunk { cache: &mut cache, tokens }], &mut scratch);
        let mut logits = Vec::new();
        self.policy(&scratch.hidden, &mut logits);
        Ok(logits)
    }

    /// Whether `tokens` may be fed after `before` others.
    pub(super) fn check(&self, tokens: &[u32], before: usize) -> Result<(), ModelError> {
        let (length, limit) = (tokens.len() + before, self.config.max_sequence);
        if length > limit {
            return Err(ModelError::Length { length, limit });
        }
        let vocabulary = self.config.vocabulary;
        match tokens.iter().find(|token| **token as usize >= vocabulary) {
            Some(&token) => Err(ModelError::Token { token, vocabulary }),
            None => Ok(()),
        }
    }

    /// The policy head: logits `[rows, vocabulary]` of hidden states `[rows, width]`.
    pub(super) fn policy(&self, hidden: &[f32], logits: &mut Vec<f32>) {
        let (width, vocabulary) = (self.config.width, self.config.vocabulary);
        let rows = hidden.len() / width;
        let mut normed = vec![0.0; hidden.len()];
        rms_norm(&mut normed, hidden, &self.norm);
        logits.resize(rows * vocabulary, 0.0);
        let unembedding = Matrix::row_major(&self.unembedding, width, vocabulary);
        multiply(logits, Matrix::row_major(&normed, rows, width), unembedding, false);
    }

    /// The value head at one hidden state, the first `width` numbers of `hidden`.
    pub(super) fn value(&self, hidden: &[f32]) -> f32 {
        let mut normed = vec![0.0; self.config.width];
        rms_norm(&mut normed, &hidden[..self.config.width], &self.norm);
        normed.iter().zip(&self.value_weight).map(|(x, w)| x * w).sum::<f32>() + self.value_bias
    }

    /// Feeds each sequence its chunk; leaves the hidden states of all tokens in `scratch.hidden`, chunk after chunk.
    /// Tokens and lengths were checked.
    pub(super) fn step(&self, prompt: Option<&Cache>, chunks: &mut [Chunk<'_>], scratch: &mut Scratch) {
        let (width, hidden) = (self.config.width, self.config.feed_forward);
        let rows: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        scratch.hidden.clear();
        for chunk in chunks.iter_mut() {
            chunk.cache.reserve(chunk.tokens.len(), self.config.head_width());
            for &token in chunk.tokens {
                scratch.hidden.extend_from_slice(&self.embedding[token as usize * width..][..width]);
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
            let normed = Matrix::row_major(&scratch.normed, rows, width);
            let weight = Matrix::row_major(&layer.query_key_value, width, self.config.projection());
            multiply(&mut scratch.projected, normed, weight, false);
            self.project(index, prompt.map_or(0, |prompt| prompt.length), chunks, scratch);
            self.attend(index, prompt, chunks, scratch);
            let attended = Matrix::row_major(&scratch.attended, rows, width);
            multiply(&mut scratch.hidden, attended, Matrix::row_major(&layer.attention_output, width, width), true);

            rms_norm(&mut scratch.normed, &scratch.hidden, &layer.feed_forward_norm);
            let normed = Matrix::row_major(&scratch.normed, rows, width);
            let weight = Matrix::row_major(&layer.gate_up, width, 2 * hidden);
            multiply(&mut scratch.gate_up, normed, weight, false);
            squared_relu_gate(&mut scratch.gated, &scratch.gate_up, hidden);
            let gated = Matrix::row_major(&scratch.gated, rows, hidden);
            multiply(&mut scratch.hidden, gated, Matrix::row_major(&layer.down, hidden, width), true);
        }
        for chunk in chunks {
            chunk.cache.length += chunk.tokens.len();
        }
    }

    /// Rotates queries into `scratch.queries`, `[rows · heads, head_width]`, and new keys and values into the caches.
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
            for at in start..start + chunk.tokens.len() {
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

    /// Causal attention of `scratch.queries` to the prompt and to the own tokens; result in `scratch.attended`.
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
            let (start, new) = (chunk.cache.length, chunk.tokens.len());
            let (length, own_rows) = (start + new, new * heads);
            scratch.own_scores.resize(own_rows * length, 0.0);
            let queries = Matrix::row_major(&scratch.queries[first_row * head..], own_rows, head);
            multiply(&mut scratch.own_scores, queries, chunk.cache.keys(layer, length, head), false);
            for (row, own) in scratch.own_scores.chunks_exact_mut(length).enumerate() {
                let (visible, later) = own.split_at_mut(start + row / heads + 1);
                softmax(&mut scratch.prompt_scores[(first_row + row) * shared..][..shared], visible);
                later.fill(0.0);
            }
            let scores = Matrix::row_major(&scratch.own_scores, own_rows, length);
            let values = Matrix::row_major(&chunk.cache.layers[layer].values, length, head);
            multiply(&mut scratch.attended[first_row * head..], scores, values, false);
            first_row += own_rows;
        }
        if let Some(prompt) = prompt {
            let scores = Matrix::row_major(&scratch.prompt_scores, rows, shared);
            let values = Matrix::row_major(&prompt.layers[layer].values, shared, head);
            multiply(&mut scratch.attended, scores, values, true);
        }
    }
}

impl Cache {
    /// The first `length` keys of a layer, transposed: `[head_width, length]`.
    fn keys(&self, layer: usize, length: usize, head: usize) -> Matrix<'_> {
        let data = &self.layers[layer].keys;
        Matrix { data, rows: head, columns: length, row_stride: self.capacity, column_stride: 1 }
    }
}
