//! A small network and a forest that order the programs of a task by vectors of features.
//!
//! They learn what the transformer's value head learns, from what a finished program looks like instead of
//! the decisions that led to it; and they learn it in minutes. Ansor (OSDI 2020) and TenSet (NeurIPS 2021)
//! rank by such models. Trees are the better judges, both together the best: they err in different ways.
//! Scores compare programs of one task: log₂ of the speed, but for a constant of the task. What was measured
//! of the task itself corrects them ([`Adapted`]).

mod boost;
mod forest;
mod residual;
mod train;

use std::collections::BTreeMap;

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::check_tensors;

pub use residual::{Adapted, Expected, Gain};
pub use train::{EstimatorOptions, Group, Ordered, train_estimator};

use forest::{Forest, LEAVES, LEAVES_NAME, SPLITS_NAME};

/// Layers of the network: features, three hidden layers, a score.
const HIDDEN: [usize; 3] = [128, 128, 128];
/// The most features that a file may name.
const MAX_FEATURES: usize = 4096;
/// Calibration takes all programs that are slower than this many factors of two to be equally slow.
pub(super) const SLOWEST_CALIBRATED: f32 = -3.0;
/// Normalised features are cut off here: what is farther out was never seen in training.
const FARTHEST: f32 = 6.0;

/// The estimators of a checkpoint, one for each kind of machine that was learned of: programs for them are
/// described by different features.
#[derive(Clone, PartialEq, Debug)]
pub struct Estimators {
    pub cpu: Estimator,
    pub gpu: Option<Estimator>,
}

impl From<Estimator> for Estimators {
    /// Of CPUs alone.
    fn from(cpu: Estimator) -> Estimators {
        Estimators { cpu, gpu: None }
    }
}

/// The weights of the network's score and of the forest's in their sum.
const ENSEMBLE_WEIGHTS: &str = "votes";
/// The lowest and the highest score that the network gives to good programs; absent where they are unknown.
pub(super) const SCORE_RANGE: &str = "believed";
/// Programs at least this fast, in factors of two of the best of their task, are good ones.
const GOOD: f32 = -0.5;

/// The weights; all finite.
#[derive(Clone, PartialEq, Debug)]
pub struct Estimator {
    inputs: usize,
    /// The network's tensors by name, the weights of the ensemble, and the range of scores.
    tensors: BTreeMap<String, Vec<f32>>,
    forest: Forest,
}

impl Estimator {
    /// Names and shapes of an estimator's tensors.
    pub(super) fn shapes(inputs: usize, trees: usize, bounded: bool) -> Vec<(String, Vec<usize>)> {
        let mut shapes = Self::network_shapes(inputs);
        shapes.extend(Forest::shapes(trees));
        shapes.extend(bounded.then(|| (SCORE_RANGE.to_string(), vec![2])));
        shapes
    }

    fn network_shapes(inputs: usize) -> Vec<(String, Vec<usize>)> {
        let mut shapes = vec![("mean".to_string(), vec![inputs]), ("deviation".to_string(), vec![inputs])];
        shapes.push((ENSEMBLE_WEIGHTS.to_string(), vec![2]));
        let mut width = inputs;
        for (layer, outputs) in HIDDEN.into_iter().chain([1]).enumerate() {
            shapes.push((format!("layers.{layer}.weight"), vec![outputs, width]));
            shapes.push((format!("layers.{layer}.bias"), vec![outputs]));
            width = outputs;
        }
        shapes
    }

    /// Trees of which a file holds so many leaves.
    pub(super) fn trees(leaves: Option<usize>) -> usize {
        leaves.unwrap_or(0) / LEAVES
    }

    /// An untrained network of so many features, which are taken as they are; without a forest.
    pub fn random(inputs: usize, seed: u64) -> Estimator {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let values = |(name, shape): (String, Vec<usize>)| {
            let size = shape.iter().product();
            let values = match (name.as_str(), shape.as_slice()) {
                ("deviation", _) => vec![1.0; size],
                (ENSEMBLE_WEIGHTS, _) => vec![1.0; size],
                (_, [_, width]) => {
                    let bound = 1.0 / (*width as f32).sqrt();
                    (0..size).map(|_| random.random_range(-bound..bound)).collect()
                }
                _ => vec![0.0; size],
            };
            (name, values)
        };
        let tensors = Self::network_shapes(inputs).into_iter().map(values).collect();
        Estimator { inputs, tensors, forest: Forest::default() }
    }

    /// An estimator of given weights, checked: exactly its tensors, of their sizes, all values finite,
    /// deviations above zero, trees that end, and a range of scores that does not end before it begins.
    ///
    /// # Errors
    /// What is missing, superfluous, of another size or not finite, in words.
    pub fn from_tensors(mut tensors: BTreeMap<String, Vec<f32>>) -> Result<Estimator, String> {
        let inputs = tensors.get("mean").map_or(0, Vec::len);
        if !(1..=MAX_FEATURES).contains(&inputs) {
            return Err(format!("{inputs} features where 1 to {MAX_FEATURES} are possible"));
        }
        let trees = Self::trees(tensors.get(LEAVES_NAME).map(Vec::len));
        check_tensors(&Self::shapes(inputs, trees, tensors.contains_key(SCORE_RANGE)), &tensors)?;
        if let Some([lowest, highest]) = tensors.get(SCORE_RANGE).map(Vec::as_slice)
            && lowest > highest
        {
            return Err(format!("tensor `{SCORE_RANGE}` begins at {lowest} and ends at {highest}"));
        }
        if let Some(at) = tensors["deviation"].iter().position(|value| *value <= 0.0) {
            return Err(format!("tensor `deviation` is not above zero at {at}"));
        }
        let forest = match (tensors.remove(SPLITS_NAME), tensors.remove(LEAVES_NAME)) {
            (Some(splits), Some(leaves)) => Forest::from_tensors(&splits, &leaves, inputs)?,
            _ => Forest::default(),
        };
        Ok(Estimator { inputs, tensors, forest })
    }

    /// With the same weights in another order: each tensor of the network within itself, and the leaves of
    /// each tree among themselves. How features are normalised and how the two are weighed stays.
    #[must_use]
    pub fn shuffled(&self, seed: u64) -> Estimator {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut shuffled = self.clone();
        let of_layers = shuffled.tensors.iter_mut().filter(|(name, _)| name.starts_with("layers."));
        of_layers.for_each(|(_, values)| values.shuffle(&mut random));
        shuffled.forest.trees.iter_mut().for_each(|tree| tree.shuffle(&mut random));
        shuffled
    }

    /// Features that a program is described by.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// All weights by name, with their shapes.
    pub fn tensors(&self) -> impl Iterator<Item = (String, Vec<usize>, Vec<f32>)> {
        let mut forest = self.forest.tensors();
        Self::shapes(self.inputs, self.forest.trees.len(), self.is_bounded()).into_iter().map(move |(name, shape)| {
            let values = forest.remove(&name).unwrap_or_else(|| self.tensor(&name).to_vec());
            (name, shape, values)
        })
    }

    /// A tensor of [`Estimator::network_shapes`], all of which constructors have checked; or the range of
    /// scores, which may be absent.
    fn tensor(&self, name: &str) -> &[f32] {
        self.tensors.get(name).map_or(&[], Vec::as_slice)
    }

    /// The higher, the faster: log₂ of the speed, but for a constant of the task. `None` for another number
    /// of features than the estimator's.
    pub fn score(&self, features: &[f32]) -> Option<f32> {
        Some(self.score_and_leaves(features)?.0)
    }

    /// The same, and the leaves of its forest that the program falls into.
    fn score_and_leaves(&self, features: &[f32]) -> Option<(f32, Vec<u8>)> {
        if features.len() != self.inputs {
            return None;
        }
        let leaves = self.forest.leaves(features);
        let scores = [self.network_score(features), self.forest.score_of(&leaves)];
        let weights = self.tensor(ENSEMBLE_WEIGHTS);
        Some((scores.iter().zip(weights).map(|(score, weight)| score * weight).sum(), leaves))
    }

    /// The network's score, reflected at the upper end of the range. For programs unlike those that it was
    /// trained on its output is arbitrary, and a search finds those whose score is too high: the farther a
    /// score is above those of good programs, the less it counts.
    fn network_score(&self, features: &[f32]) -> f32 {
        let score = self.network_output(features);
        match self.tensor(SCORE_RANGE) {
            [lowest, highest] if score > *highest => (2.0 * highest - score).max(*lowest),
            _ => score,
        }
    }

    fn network_output(&self, features: &[f32]) -> f32 {
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
        values.first().copied().unwrap_or(0.0)
    }

    /// Whether the range of the network's scores is known.
    pub fn is_bounded(&self) -> bool {
        self.tensors.contains_key(SCORE_RANGE)
    }

    /// Learns the range of the network's scores of good programs, from these groups, those that it was
    /// trained on among them, and from the range of before.
    pub fn bound(&mut self, groups: &[Group]) {
        let members = groups.iter().flat_map(|group| group.features.iter().zip(&group.speeds));
        let good = members.filter(|(_, speed)| **speed >= GOOD).map(|(features, _)| self.network_output(features));
        let range = match self.tensor(SCORE_RANGE) {
            [lowest, highest] => (*lowest, *highest),
            _ => (f32::INFINITY, f32::NEG_INFINITY),
        };
        let (lowest, highest) = good.fold(range, |(low, high), score| (low.min(score), high.max(score)));
        if lowest <= highest {
            self.tensors.insert(SCORE_RANGE.into(), vec![lowest, highest]);
        }
    }

    /// Makes its scores logarithms of speeds: the weights of the ensemble are those that fit these groups
    /// best (least squares, within each group). Groups that it was not trained on are better: the forest fits
    /// its training data closely.
    pub fn calibrate(&mut self, groups: &[Group]) {
        let parts = groups.iter().filter(|group| group.speeds.len() > 1).map(|group| {
            let network = group.features.iter().map(|features| self.network_score(features)).collect();
            let forest = group.features.iter().map(|features| self.forest.score(features)).collect();
            let speeds = group.speeds.iter().map(|speed| speed.max(SLOWEST_CALIBRATED)).collect();
            ([network, forest], speeds)
        });
        let Some(weights) = weights_of_two(parts) else { return };
        self.tensors.insert(ENSEMBLE_WEIGHTS.into(), weights.map(|weight| weight as f32).to_vec());
    }

    fn normalised(&self, features: &[f32]) -> Vec<f32> {
        let (mean, deviation) = (self.tensor("mean"), self.tensor("deviation"));
        let each = features.iter().zip(mean).zip(deviation);
        each.map(|((x, mean), deviation)| ((x - mean) / deviation).clamp(-FARTHEST, FARTHEST)).collect()
    }
}

/// The weights of two scores whose sum is nearest to the truth: least squares, within each group, in which
/// both and the truth are differences from their means. A negative weight would reverse the order that a part
/// sees, so such a part gets none; `None` where neither part sees any.
pub(super) fn weights_of_two(groups: impl Iterator<Item = ([Vec<f32>; 2], Vec<f32>)>) -> Option<[f64; 2]> {
    // normal equations of two unknowns
    let (mut squares, mut right) = ([[1e-6f64, 0.0], [0.0, 1e-6]], [0.0; 2]);
    for (scores, truth) in groups {
        let (scores, truth) = (scores.map(centred), centred(truth));
        let product = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
        for (row, x) in scores.iter().enumerate() {
            right[row] += product(x, &truth);
            scores.iter().enumerate().for_each(|(column, y)| squares[row][column] += product(x, y));
        }
    }
    let [[a, b], [_, d]] = squares;
    let both = [(d * right[0] - b * right[1]) / (a * d - b * b), (a * right[1] - b * right[0]) / (a * d - b * b)];
    match both {
        [first, second] if first > 0.0 && second > 0.0 => Some(both),
        [first, _] if first > 0.0 => Some([right[0] / a, 0.0]),
        [_, second] if second > 0.0 => Some([0.0, right[1] / d]),
        _ => None,
    }
}

/// Differences from the mean.
fn centred(values: Vec<f32>) -> Vec<f64> {
    let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / values.len().max(1) as f64;
    values.into_iter().map(|value| f64::from(value) - mean).collect()
}
