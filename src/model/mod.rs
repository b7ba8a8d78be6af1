//! The transformer that writes decisions. It knows token ids and tensors only, nothing of tasks or traces.
//!
//! A small decoder-only network: RMSNorm, rotary positions, multi-query attention (one key and value head, so
//! that the caches of hundreds of sequences stay small), gated feed-forward with a squared ReLU, tied
//! embeddings. It reads several tokens at a [`Position`]. Two heads stand on one trunk: the *policy* (which
//! of the possible answers) and the *value* (log speed relative to the best known program of the task).
//!
//! - [`Config`]: the architecture, and its limits. [`Model`]: the weights, plain `f32` on the host.
//! - [`Decoder`]: fast, ragged, allocation-free inference on the CPU; [`Decoder::sample`] writes sequences
//!   under a [`Guide`].
//! - [`Network`]: the same function as a differentiable candle graph, on the CPU or on CUDA; the slow twin in
//!   tests.
//! - [`Trainer`]: AdamW over groups of [`Example`]s that share a prompt. Reproducible from its seed,
//!   resumable.
//! - [`Estimator`]: beside the transformer, a small network and a forest that order finished programs by
//!   their features; [`Adapted`] to a task, and one for each kind of machine ([`Estimators`]).
//! - [`World`]: decisions as actions that move a state: judges programs without their nests ([`Worlds`], of a
//!   checkpoint).
//! - [`Regression`]: trees that learn from the programs of one task alone.
//! - [`Checkpoint`]: the folder on disk; [`Source`]: where `--checkpoint` points, a folder or a repository of
//!   the hub. [`ModelControl`]: the same checkpoint without what it has learned.
//!
//! Invariants: only this module uses candle; nothing here reads a clock but the training progress; every file
//! is hostile until checked.

mod batch;
mod checkpoint;
mod config;
mod control;
mod decode;
mod estimator;
mod example;
mod fused;
mod hub;
mod kernels;
mod losses;
mod network;
mod optimizer;
mod panels;
mod position;
mod regression;
mod sample;
mod shown;
mod tensors;
mod train;
mod training_state;
mod world;

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use thiserror::Error;

pub use checkpoint::{Accepts, Checkpoint, CheckpointError, GpuVersions, Versions};
pub use config::{Config, InvalidConfig};
pub use control::ModelControl;
pub use decode::{Decoder, Prompt};
pub use estimator::{
    Adapted, Estimator, EstimatorOptions, Estimators, Expected, Gain, Group, Ordered, train_estimator,
};
pub use example::{Example, Shown, Step, decile};
pub use hub::{HubOptions, Source, SourceError};
pub use network::{Compute, Network};
pub use position::Position;
pub use regression::{Regression, RegressionOptions};
pub use sample::{Continuing, Guide, Next, Sampled, SamplingOptions};
pub use shown::MOST_SHOWN;
pub use train::{Evaluation, Progress, Trainer, TrainingOptions};
pub use world::{
    Begun, World, WorldConfig, WorldEvaluation, WorldGroup, WorldOptions, WorldProgram, WorldProgress, WorldSpaces,
    WorldTrainer, Worlds,
};

/// What can go wrong while a model runs or learns.
#[derive(Debug, Error)]
pub enum ModelError {
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// The caller's tokens do not fit the model.
    #[error("token {token} is outside of the vocabulary of {vocabulary}")]
    Token { token: u32, vocabulary: usize },
    #[error("a sequence of {length} positions where 1 to {limit} are possible")]
    Length { length: usize, limit: usize },
    #[error("a question without answers, or something to read or choose that has no tokens")]
    Empty,
    /// The guide's fault.
    #[error("answer {answer} of {answers}")]
    Answer { answer: usize, answers: usize },
    #[error("{0}")]
    Options(String),
    /// The examples cannot train this model.
    #[error("example {index}: {problem}")]
    Example { index: usize, problem: String },
    #[error("the training state cannot be used: {0}")]
    State(String),
    #[error("{path}: {source}")]
    Io { path: std::path::PathBuf, source: std::io::Error },
    /// The weights have become useless, usually by a learning rate that is too high.
    #[error("training diverged at step {step}: the loss is {loss}")]
    Diverged { step: usize, loss: f32 },
    #[error("no such compute device: {0}")]
    Device(String),
    /// Our bug, or the device's failure.
    #[error("tensor computation failed: {0}")]
    Tensor(#[from] candle_core::Error),
}

/// The standard deviation of untrained weights.
const DEVIATION: f32 = 0.02;
/// The tensor with a row for each token.
const EMBEDDING: &str = "embedding.weight";
/// The tensor that answers are scored by.
const CHOICE: &str = "choice_slots.weight";
/// What the names of the value head's tensors begin with.
const VALUE: &str = "value.";

/// The bound of a uniform distribution around 0 of that standard deviation.
fn uniform_bound(deviation: f32) -> f32 {
    3f32.sqrt() * deviation
}

/// The weights of one model, by name, row-major, shapes as in [`Config::shapes`]; all finite.
#[derive(Clone, PartialEq, Debug)]
pub struct Model {
    config: Config,
    tensors: BTreeMap<String, Vec<f32>>,
}

impl Model {
    /// An untrained model: uniform weights with a deviation of 0.02, branches into the residual stream scaled
    /// down by the depth (as in GPT-2), norms at one, slots around one, the value head at zero.
    ///
    /// # Errors
    /// [`InvalidConfig`] where the architecture is out of its limits.
    pub fn random(config: Config, seed: u64) -> Result<Model, InvalidConfig> {
        config.validate()?;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let into_residual = DEVIATION / (2.0 * config.layers as f32).sqrt();
        let tensors = config
            .shapes()
            .into_iter()
            .map(|(name, shape)| {
                let size = shape.iter().product();
                let values = if name.ends_with("norm.weight") {
                    vec![1.0; size]
                } else if name.ends_with("slots.weight") {
                    (0..size).map(|_| random.random_range(0.5..1.5)).collect()
                } else if name.starts_with(VALUE) {
                    vec![0.0; size]
                } else {
                    let residual = name.ends_with("attention_output.weight") || name.ends_with("down.weight");
                    let bound = uniform_bound(if residual { into_residual } else { DEVIATION });
                    (0..size).map(|_| random.random_range(-bound..bound)).collect()
                };
                (name, values)
            })
            .collect();
        Ok(Model { config, tensors })
    }

    /// A model of given weights, checked: exactly the tensors of `config`, of their sizes, all values finite.
    ///
    /// # Errors
    /// What is missing, superfluous, of another size or not finite, in words.
    pub fn from_tensors(config: Config, tensors: BTreeMap<String, Vec<f32>>) -> Result<Model, String> {
        config.validate().map_err(|e| e.to_string())?;
        check_tensors(&config.shapes(), &tensors)?;
        Ok(Model { config, tensors })
    }

    /// The same model for a vocabulary that has grown to so many tokens. The embeddings of `new` tokens,
    /// which all tokens behind the old vocabulary must be among, become the mean of those of `learned`
    /// tokens, so that they score as an average word does until something is learned of them; and noise with
    /// a deviation of 0.02 that depends on the token alone, so that they can be told apart.
    ///
    /// # Errors
    /// [`InvalidConfig`] where the vocabulary shrinks or is out of its limits.
    pub fn with_vocabulary(mut self, vocabulary: usize, new: &[u32], learned: &[u32]) -> Result<Model, InvalidConfig> {
        let (width, before) = (self.config.width, self.config.vocabulary);
        let config = Config { vocabulary, ..self.config.clone() };
        config.validate()?;
        if vocabulary < before {
            let expected = format!("expected at least {before}, as many as the model has");
            return Err(InvalidConfig { field: "vocabulary", value: vocabulary.to_string(), expected });
        }
        let embedding = self.tensors.entry(EMBEDDING.to_string()).or_default();
        let mut mean = vec![0.0; width];
        for token in learned {
            let row = embedding.chunks(width).nth(*token as usize).unwrap_or_default();
            mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += value / learned.len() as f32);
        }
        embedding.resize(vocabulary * width, 0.0);
        for token in new {
            let mut random = ChaCha8Rng::seed_from_u64(u64::from(*token));
            let row = embedding.chunks_mut(width).nth(*token as usize).unwrap_or_default();
            let bound = uniform_bound(DEVIATION);
            row.iter_mut().zip(&mean).for_each(|(value, mean)| *value = mean + random.random_range(-bound..bound));
        }
        Ok(Model { config, tensors: self.tensors })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// All weights by name.
    pub fn tensors(&self) -> &BTreeMap<String, Vec<f32>> {
        &self.tensors
    }

    /// A tensor of [`Config::shapes`]; constructors made sure that each is there.
    fn tensor(&self, name: &str) -> &[f32] {
        self.tensors.get(name).map_or(&[], Vec::as_slice)
    }
}

/// Refuses any tensors but those of `shapes`, and values that are not finite.
fn check_tensors(shapes: &[(String, Vec<usize>)], tensors: &BTreeMap<String, Vec<f32>>) -> Result<(), String> {
    for (name, shape) in shapes {
        let values = tensors.get(name).ok_or_else(|| format!("tensor `{name}` is missing"))?;
        let size: usize = shape.iter().product();
        if values.len() != size {
            return Err(format!("tensor `{name}` holds {} values where {size} belong", values.len()));
        }
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(format!("tensor `{name}` is not finite at {at}"));
        }
    }
    match tensors.keys().find(|name| !shapes.iter().any(|(known, _)| known == *name)) {
        Some(name) => Err(format!("tensor `{name}` does not belong to this architecture")),
        None => Ok(()),
    }
}
