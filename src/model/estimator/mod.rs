//! A small network that orders the programs of a task by vectors of features.
//!
//! It learns what the transformer's value head learns, from what a finished program looks like instead of the decisions that led to it; and it
//! learns it in a minute. Ansor (OSDI 2020) and TenSet (NeurIPS 2021) rank by such models. Scores compare programs of one task: log₂ of the speed, but for a
//! constant of the task.

mod train;

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::check_tensors;

pub use train::{EstimatorOptions, Group, Ordered, train_estimator};

/// Layers of the network: features, three hidden layers, a score.
const HIDDEN: [usize; 3] = [128, 128, 128];
/// The most features that a file may name.
const MAX_FEATURES: usize = 4096;
/// Normalised features are cut off here: what is farther out was never seen in training.
const FARTHEST: f32 = 6.0;

/// The weights, by name; all finite.
#[derive(Clone, PartialEq, Debug)]
pub struct Estimator {
    inputs: usize,
    tensors: BTreeMap<String, Vec<f32>>,
}

impl Estimator {
    /// Names and shapes of an estimator's tensors.
    pub(super) fn shapes(inputs: usize) -> Vec<(String, Vec<usize>)> {
        let mut shapes = vec![("mean".to_string(), vec![inputs]), ("deviation".to_string(), vec![inputs])];
        let mut width = inputs;
        for (layer, outputs) in HIDDEN.into_iter().chain([1]).enumerate() {
            shapes.push((format!("layers.{layer}.weight"), vec![outputs, width]));
            shapes.push((format!("layers.{layer}.bias"), vec![outputs]));
            width = outputs;
        }
        shapes
    }

    /// An untrained estimator of so many features, which are taken as they are.
    pub fn random(inputs: usize, seed: u64) -> Estimator {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let values = |(name, shape): (String, Vec<usize>)| {
            let size = shape.iter().product();
            let values = match (name.as_str(), shape.as_slice()) {
                ("deviation", _) => vec![1.0; size],
                (_, [_, width]) => {
                    let bound = 1.0 / (*width as f32).sqrt();
                    (0..size).map(|_| random.random_range(-bound..bound)).collect()
                }
                _ => vec![0.0; size],
            };
            (name, values)
        };
        Estimator { inputs, tensors: Self::shapes(inputs).into_iter().map(values).collect() }
    }

    /// An estimator of given weights, checked: exactly its tensors, of their sizes, all values finite, deviations above zero.
    ///
    /// # Errors
    /// What is missing, superfluous, of another size or not finite, in words.
    pub fn from_tensors(tensors: BTreeMap<String, Vec<f32>>) -> Result<Estimator, String> {
        let inputs = tensors.get("mean").map_or(0, Vec::len);
        if !(1..=MAX_FEATURES).contains(&inputs) {
            return Err(format!("{inputs} features where 1 to {MAX_FEATURES} are possible"));
        }
        check_tensors(&Self::shapes(inputs), &tensors)?;
        if let Some(at) = tensors["deviation"].iter().position(|value| *value <= 0.0) {
            return Err(format!("tensor `deviation` is not above zero at {at}"));
        }
        Ok(Estimator { inputs, tensors })
    }

    /// Features that a program is described by.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// All weights by name, with their shapes.
    pub fn tensors(&self) -> impl Iterator<Item = (String, Vec<usize>, &[f32])> {
        Self::shapes(self.inputs).into_iter().map(|(name, shape)| {
            let values = self.tensor(&name);
            (name, shape, values)
        })
    }

    /// A tensor of [`Estimator::shapes`]; constructors made sure that each is there.
    fn tensor(&self, name: &str) -> &[f32] {
        self.tensors.get(name).map_or(&[], Vec::as_slice)
    }

    /// The higher, the faster; `None` for another number of features than the estimator's.
    pub fn score(&self, features: &[f32]) -> Option<f32> {
        if features.len() != self.inputs {
            return None;
        }
        let mut values = self.normalised(features);
        for layer in 0..=HIDDEN.len() {
            let (weight, bias) =
                (self.tensor(&format!("layers.{layer}.weight")), self.tensor(&format!("layers.{layer}.bias")));
            let rows = weight.chunks_exact(values.len()).zip(bias);
            values = rows.map(|(row, bias)| bias + row.iter().zip(&values).map(|(w, x)| w * x).sum::<f32>()).collect();
            if layer < HIDDEN.len() {
                values.iter_mut().for_each(|value| *value /= 1.0 + (-*value).exp());
            }
        }
        values.first().copied()
    }

    fn normalised(&self, features: &[f32]) -> Vec<f32> {
        let (mean, deviation) = (self.tensor("mean"), self.tensor("deviation"));
        let each = features.iter().zip(mean).zip(deviation);
        each.map(|((x, mean), deviation)| ((x - mean) / deviation).clamp(-FARTHEST, FARTHEST)).collect()
    }
}
