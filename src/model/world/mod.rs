//! The world model: what decisions do to a program, learned, so that a program is judged without its nest.
//!
//! A state is read from the prompt, word by word; each decision, its question and its answer together, is an
//! *action* that moves the state on. Two gated recurrent units (Cho et al. 2014) do that, one for the prompt
//! and one for decisions, which hears the state behind the prompt at every step, too. From a state, three
//! heads on one hidden layer tell: the *rank* of a finished program (log₂ of its speed relative to the best
//! of its task), the features that an estimator reads of its nest, and the *value* of what is decided so far.
//! This is action-conditioned latent dynamics, as of recurrent world models (Ha and Schmidhuber 2018), where
//! a schedule is the path and the program is where it ends.
//!
//! - [`World`]: the weights. [`World::begin`] reads a prompt and the actions of a task; [`Begun`] judges
//!   thousands of programs together, fast, on the CPU, and without candle.
//! - [`WorldTrainer`]: learns from [`WorldGroup`]s, reproducible from its seed, resumable.
//! - [`Worlds`]: those of a checkpoint, and how a file holds them. One of them has no dynamics: it sees the
//!   set of decisions at the end, and says what the path is worth.

mod cell;
mod graph;
mod read;
mod saved;
mod stored;
mod train;

use std::collections::BTreeMap;

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::config::{InvalidConfig, within};
use super::{Config, check_tensors};

pub use graph::{WorldGroup, WorldProgram};
pub use read::Begun;
pub use stored::Worlds;
pub(super) use stored::{decode_worlds, encode_worlds};
pub use train::{WorldEvaluation, WorldOptions, WorldProgress, WorldTrainer};

/// Sizes of a world model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorldConfig {
    /// Number of token ids; others tell it nothing.
    pub vocabulary: usize,
    /// As of [`Config`].
    pub slots: usize,
    /// Length of a state, and of an embedding.
    pub width: usize,
    /// Width of the layer that the heads stand on.
    pub hidden: usize,
    /// Features that it tells.
    pub features: usize,
    /// Whether actions move a state, one after the other; else it sees their set at the end.
    pub dynamics: bool,
}

impl WorldConfig {
    /// The usual one: about 250,000 weights.
    pub fn standard(vocabulary: usize, features: usize, dynamics: bool) -> WorldConfig {
        WorldConfig {
            vocabulary,
            slots: Config::standard(vocabulary).slots,
            width: 96,
            hidden: 128,
            features,
            dynamics,
        }
    }

    /// # Errors
    /// The first field outside of its limits.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        within("vocabulary", self.vocabulary, 2, 65_536)?;
        within("slots", self.slots, 1, 64)?;
        within("width", self.width, 2, 512)?;
        within("hidden", self.hidden, 1, 2048)?;
        within("features", self.features, 1, 4096)
    }

    /// Number of weights.
    pub fn parameters(&self) -> usize {
        self.shapes().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }

    /// Every tensor's name and shape, row-major; projections as `[out, in]`, gates one below the other: what
    /// keeps, what resets, and what is new.
    pub fn shapes(&self) -> Vec<(String, Vec<usize>)> {
        let WorldConfig { vocabulary, slots, width, hidden, features, dynamics } = *self;
        let wide = 3 * width;
        let mut shapes = vec![
            (EMBEDDING, vec![vocabulary, width]),
            // of questions, then of answers
            (SLOTS, vec![2 * slots, width]),
            ("prompt.input.weight", vec![wide, width]),
            ("prompt.input.bias", vec![wide]),
            ("prompt.recurrent.weight", vec![wide, width]),
            ("action.input.weight", vec![wide, width]),
            ("action.input.bias", vec![wide]),
            ("action.context.weight", vec![wide, width]),
            ("hidden.weight", vec![hidden, width]),
            ("hidden.bias", vec![hidden]),
            ("rank.weight", vec![1, hidden]),
            ("rank.bias", vec![1]),
            ("features.weight", vec![features, hidden]),
            ("features.bias", vec![features]),
            (MEAN, vec![features]),
            (DEVIATION, vec![features]),
        ];
        if dynamics {
            shapes.push(("action.recurrent.weight", vec![wide, width]));
            shapes.push(("value.weight", vec![1, hidden]));
            shapes.push(("value.bias", vec![1]));
        }
        shapes.into_iter().map(|(name, shape)| (name.to_string(), shape)).collect()
    }
}

const EMBEDDING: &str = "embedding.weight";
const SLOTS: &str = "slots.weight";
/// What features are brought to mean 0 and deviation 1 by; not learned.
const MEAN: &str = "feature.mean";
const DEVIATION: &str = "feature.deviation";
/// Normalised features are cut off here.
const FARTHEST: f32 = 6.0;
/// Steps over which the prompt's and the actions' units remember at first: as many as there usually are.
const MEMORIES: [(&str, f32); 2] = [("prompt.input.bias", 200.0), ("action.input.bias", 30.0)];

/// The versions of the space, by kind of machine, that a world model has learned the decisions of.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorldSpaces {
    pub cpu: String,
    pub gpu: String,
}

/// The weights, by name, shapes as in [`WorldConfig::shapes`]; all finite.
#[derive(Clone, PartialEq, Debug)]
pub struct World {
    config: WorldConfig,
    spaces: WorldSpaces,
    tensors: BTreeMap<String, Vec<f32>>,
}

impl World {
    /// An untrained one, which takes features as they are.
    ///
    /// # Errors
    /// [`InvalidConfig`] where a size is out of its limits.
    pub fn random(config: WorldConfig, spaces: WorldSpaces, seed: u64) -> Result<World, InvalidConfig> {
        config.validate()?;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let width = config.width;
        let values = |(name, shape): (String, Vec<usize>)| {
            let size = shape.iter().product();
            let memory = MEMORIES.iter().find(|(bias, _)| *bias == name).map(|(_, steps)| *steps);
            let values = match (name.as_str(), shape.as_slice()) {
                (EMBEDDING, _) => (0..size).map(|_| random.random_range(-1.0..1.0)).collect(),
                (SLOTS, _) => (0..size).map(|_| random.random_range(0.5..1.5)).collect(),
                (DEVIATION, _) => vec![1.0; size],
                (_, [_, inputs]) => {
                    let bound = 1.0 / (*inputs as f32).sqrt();
                    (0..size).map(|_| random.random_range(-bound..bound)).collect()
                }
                // gates that keep for up to so many steps (Tallec and Ollivier 2018)
                _ => match memory {
                    Some(steps) => {
                        let keeps = (0..width).map(|_| random.random_range(1.0..steps).ln());
                        keeps.chain(std::iter::repeat_n(0.0, size - width)).collect()
                    }
                    None => vec![0.0; size],
                },
            };
            (name, values)
        };
        let tensors = config.shapes().into_iter().map(values).collect();
        Ok(World { config, spaces, tensors })
    }

    /// One of given weights, checked: exactly its tensors, of their sizes, all values finite, deviations
    /// above zero.
    ///
    /// # Errors
    /// What is missing, superfluous, of another size or not finite, in words.
    pub fn from_tensors(
        config: WorldConfig,
        spaces: WorldSpaces,
        tensors: BTreeMap<String, Vec<f32>>,
    ) -> Result<World, String> {
        config.validate().map_err(|error| error.to_string())?;
        check_tensors(&config.shapes(), &tensors)?;
        if let Some(at) = tensors.get(DEVIATION).and_then(|all| all.iter().position(|value| *value <= 0.0)) {
            return Err(format!("tensor `{DEVIATION}` is not above zero at {at}"));
        }
        Ok(World { config, spaces, tensors })
    }

    /// With the same weights in another order: each tensor within itself. How features are normalised stays.
    #[must_use]
    pub fn shuffled(&self, seed: u64) -> World {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut shuffled = self.clone();
        let learned = shuffled.tensors.iter_mut().filter(|(name, _)| ![MEAN, DEVIATION].contains(&name.as_str()));
        learned.for_each(|(_, values)| values.shuffle(&mut random));
        shuffled
    }

    pub fn config(&self) -> &WorldConfig {
        &self.config
    }

    /// Of what it has learned.
    pub fn spaces(&self) -> &WorldSpaces {
        &self.spaces
    }

    /// All weights by name.
    pub fn tensors(&self) -> &BTreeMap<String, Vec<f32>> {
        &self.tensors
    }

    /// A tensor of [`WorldConfig::shapes`]; constructors made sure that each is there.
    fn tensor(&self, name: &str) -> &[f32] {
        self.tensors.get(name).map_or(&[], Vec::as_slice)
    }

    /// Features with mean 0 and deviation 1.
    fn normalised<'a>(&'a self, features: &'a [f32]) -> impl Iterator<Item = f32> + 'a {
        normalised(features, self.tensor(MEAN), self.tensor(DEVIATION))
    }
}

/// Features with mean 0 and deviation 1, what is far out cut off.
fn normalised<'a>(features: &'a [f32], mean: &'a [f32], deviation: &'a [f32]) -> impl Iterator<Item = f32> + 'a {
    let scales = mean.iter().zip(deviation);
    features.iter().zip(scales).map(|(x, (mean, deviation))| ((x - mean) / deviation).clamp(-FARTHEST, FARTHEST))
}

#[cfg(test)]
mod tests;
