//! How an estimator's network learns to order the programs of a task: a logistic loss on pairs (RankNet,
//! Burges et al. 2005), weighted by how far their speeds are apart and, since the best must be told from the
//! good, by how fast the faster one is; and the cross entropy of the whole list (ListNet, Cao et al. 2007),
//! whose target all but leaves out what is slow.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor, Var};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::boost::{SAME, boost};
use super::{Estimator, HIDDEN};
use crate::model::ModelError;
use crate::model::optimizer::AdamW;

/// Programs of one task on one target.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Group {
    /// Features of each program.
    pub features: Vec<Vec<f32>>,
    /// Of each: log₂ of the speed relative to the best of the group, 0 or below.
    pub speeds: Vec<f32>,
}

/// How to train an estimator. Equal options and groups train equal weights.
#[derive(Clone, PartialEq, Debug)]
pub struct EstimatorOptions {
    /// Passes over the groups.
    pub epochs: usize,
    /// Programs of a group that are compared in one update.
    pub members: usize,
    /// Groups of one update.
    pub groups: usize,
    /// The highest learning rate; it rises to it, and falls along a cosine.
    pub learning_rate: f64,
    pub weight_decay: f64,
    /// Trees that the forest gets to those that it has.
    pub trees: usize,
    pub seed: u64,
}

impl Default for EstimatorOptions {
    fn default() -> EstimatorOptions {
        EstimatorOptions {
            epochs: 30,
            members: 48,
            groups: 4,
            learning_rate: 3e-3,
            weight_decay: 0.01,
            trees: 500,
            seed: 0,
        }
    }
}

/// How well an estimator orders groups.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Ordered {
    /// Share of the pairs that it orders rightly; 0.5 is chance.
    pub pairs: f64,
    /// Speed of the program that it likes best relative to the group's best, geometric mean.
    pub first: f64,
    /// The same of the best of its first three.
    pub first_three: f64,
}

/// Differences beyond this many factors of two weigh no more.
const FAR: f32 = 2.0;
/// Programs slower than this many factors of two are all the same.
const SLOWEST: f32 = -6.0;
/// Share of the list's loss.
const LIST: f64 = 0.3;
/// In the list's target, a program half as fast weighs 2 to the power of this less.
const SHARPNESS: f32 = 4.0;
/// Differences of scores are cut off here, far beyond what they grow to.
const WIDEST: f64 = 60.0;
/// Share of the updates in which the learning rate rises.
const WARM_UP: f64 = 0.3;

impl Estimator {
    /// How well it orders groups; those of one program say nothing.
    pub fn evaluate(&self, groups: &[Group]) -> Ordered {
        let (mut right, mut pairs) = (0.0, 0.0);
        let (mut first, mut first_three, mut count) = (0.0, 0.0, 0.0);
        for group in groups.iter().filter(|group| group.speeds.len() > 1) {
            let scores: Vec<f32> = group.features.iter().map(|f| self.score(f).unwrap_or(f32::NEG_INFINITY)).collect();
            let members: Vec<(f32, f32)> = scores.into_iter().zip(group.speeds.iter().copied()).collect();
            for (score, speed) in &members {
                for (other, slower) in members.iter().filter(|(_, slower)| speed > slower) {
                    debug_assert!(speed > slower);
                    pairs += 1.0;
                    right += f64::from(u8::from(score > other));
                }
            }
            let mut order: Vec<usize> = (0..members.len()).collect();
            order.sort_by(|a, b| members[*b].0.total_cmp(&members[*a].0));
            first += f64::from(members[order[0]].1);
            let three = order.iter().take(3).map(|at| members[*at].1);
            first_three += f64::from(three.fold(f32::NEG_INFINITY, f32::max));
            count += 1.0;
        }
        if pairs == 0.0 {
            return Ordered::default();
        }
        let mean = |sum: f64| (sum / count).exp2();
        Ordered { pairs: right / pairs, first: mean(first), first_three: mean(first_three) }
    }
}

/// Trains an estimator: a new one, or, from the weights of `start`, one that knows these groups, too.
///
/// # Errors
/// [`ModelError::Example`] for a group of other features than the first, [`ModelError::Diverged`].
pub fn train_estimator(
    start: Option<&Estimator>,
    groups: &[Group],
    options: &EstimatorOptions,
) -> Result<Estimator, ModelError> {
    let inputs = check(start, groups)?;
    let estimator = match start {
        Some(start) => start.clone(),
        None => normalising(inputs, groups, options.seed),
    };
    let device = Device::Cpu;
    let mut variables = BTreeMap::new();
    for (name, shape, values) in estimator.tensors().filter(|(name, ..)| name.starts_with("layers.")) {
        variables.insert(name, Var::from_tensor(&Tensor::from_vec(values, shape, &device)?)?);
    }
    let mut optimizer = AdamW::new(&variables, options.weight_decay)?;
    let mut random = ChaCha8Rng::seed_from_u64(options.seed);
    let usable: Vec<&Group> = groups.iter().filter(|group| group.speeds.len() > 1).collect();
    let steps = options.epochs * usable.len().div_ceil(options.groups.max(1));
    let mut order: Vec<usize> = (0..usable.len()).collect();
    for _ in 0..options.epochs {
        order.shuffle(&mut random);
        for members in order.chunks(options.groups.max(1)) {
            let batch = Batch::draw(&estimator, members.iter().map(|at| usable[*at]), options.members, &mut random);
            let loss = batch.loss(&variables, &device)?;
            let value = loss.to_scalar::<f32>()?;
            if !value.is_finite() {
                return Err(ModelError::Diverged { step: optimizer.step, loss: value });
            }
            let store = loss.backward()?;
            let gradients = variables.iter().filter_map(|(name, var)| Some((name.clone(), store.get(var)?.clone())));
            let gradients = gradients.collect();
            let rate = learning_rate(options.learning_rate, optimizer.step, steps);
            optimizer.update(&variables, &gradients, rate)?;
        }
    }
    let mut tensors: BTreeMap<String, Vec<f32>> = estimator.tensors().map(|(name, _, values)| (name, values)).collect();
    for (name, variable) in &variables {
        tensors.insert(name.clone(), variable.flatten_all()?.to_vec1()?);
    }
    let mut trained =
        Estimator::from_tensors(tensors).map_err(|_| ModelError::Diverged { step: steps, loss: f32::NAN })?;
    trained.forest = boost(trained.forest, &usable, options.trees, options.seed);
    Ok(trained)
}

fn check(start: Option<&Estimator>, groups: &[Group]) -> Result<usize, ModelError> {
    let first = groups.iter().find_map(|group| group.features.first()).map(Vec::len);
    let inputs = start.map(Estimator::inputs).or(first).unwrap_or(0);
    for (index, group) in groups.iter().enumerate() {
        let wrong = |problem: &str| Err(ModelError::Example { index, problem: problem.into() });
        if group.features.len() != group.speeds.len() {
            return wrong("not as many speeds as programs");
        }
        let finite = group.features.iter().flatten().chain(&group.speeds).all(|value| value.is_finite());
        if inputs == 0 || !finite || group.features.iter().any(|features| features.len() != inputs) {
            return wrong("its features are not those of the others, or not finite");
        }
    }
    Ok(inputs)
}

/// An untrained estimator that brings the features of these groups to mean 0 and deviation 1.
fn normalising(inputs: usize, groups: &[Group], seed: u64) -> Estimator {
    let mut estimator = Estimator::random(inputs.max(1), seed);
    let rows: Vec<&Vec<f32>> = groups.iter().flat_map(|group| &group.features).collect();
    let count = rows.len().max(1) as f64;
    for feature in 0..inputs {
        let values = || rows.iter().map(|row| f64::from(row[feature]));
        let mean = values().sum::<f64>() / count;
        let variance = values().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        // a feature that hardly moves must not be blown up
        let deviation = variance.sqrt() + 1e-3;
        for (name, value) in [("mean", mean), ("deviation", deviation)] {
            if let Some(values) = estimator.tensors.get_mut(name) {
                values[feature] = value as f32;
            }
        }
    }
    estimator
}

fn learning_rate(highest: f64, step: usize, steps: usize) -> f64 {
    let done = step as f64 / steps.max(1) as f64;
    if done < WARM_UP {
        return highest * (0.04 + 0.96 * done / WARM_UP);
    }
    let falling = (done - WARM_UP) / (1.0 - WARM_UP);
    highest * (0.5 + 0.5 * (std::f64::consts::PI * falling).cos()).max(1e-3)
}

/// Programs of a few groups.
struct Batch {
    rows: usize,
    features: Vec<f32>,
    /// By pair: how much it counts that the first is scored above the second.
    weights: Vec<f32>,
    /// By pair: 1 where both are of one group.
    same_group: Vec<f32>,
    /// The list's target: of each program, the probability that it should have in its group; together 1.
    target: Vec<f32>,
}

impl Batch {
    fn draw<'a>(
        estimator: &Estimator,
        groups: impl Iterator<Item = &'a Group>,
        most: usize,
        random: &mut ChaCha8Rng,
    ) -> Batch {
        let mut drawn: Vec<(usize, f32)> = Vec::new();
        let mut features = Vec::new();
        for (number, group) in groups.enumerate() {
            let mut members: Vec<usize> = (0..group.speeds.len()).collect();
            members.shuffle(random);
            for at in members.into_iter().take(most) {
                features.extend(estimator.normalised(&group.features[at]));
                drawn.push((number, group.speeds[at].max(SLOWEST)));
            }
        }
        let mut weights = Vec::with_capacity(drawn.len() * drawn.len());
        for (group, speed) in &drawn {
            let of = |(other, slower): &(usize, f32)| match speed - slower {
                apart if other == group && apart > SAME => apart.min(FAR) * (0.5 * speed.max(-4.0)).exp2(),
                _ => 0.0,
            };
            weights.extend(drawn.iter().map(of));
        }
        normalise(&mut weights);
        let same_group: Vec<f32> = drawn
            .iter()
            .flat_map(|(group, _)| drawn.iter().map(move |(other, _)| f32::from(u8::from(group == other))))
            .collect();
        let mut target: Vec<f32> = drawn.iter().map(|(_, speed)| (SHARPNESS * speed).exp2()).collect();
        let of_group = |row: &[f32]| row.iter().zip(&target).map(|(same, weight)| same * weight).sum::<f32>();
        let sums: Vec<f32> = same_group.chunks_exact(drawn.len().max(1)).map(of_group).collect();
        target.iter_mut().zip(sums).for_each(|(weight, sum)| *weight /= sum);
        normalise(&mut target);
        Batch { rows: drawn.len(), features, weights, same_group, target }
    }

    fn loss(&self, variables: &BTreeMap<String, Var>, device: &Device) -> Result<Tensor, ModelError> {
        let width = self.features.len() / self.rows.max(1);
        let mut values = Tensor::from_slice(&self.features, (self.rows, width), device)?;
        for layer in 0..=HIDDEN.len() {
            let of = |part: &str| {
                let name = format!("layers.{layer}.{part}");
                variables.get(&name).ok_or_else(|| ModelError::State(format!("tensor `{name}` is missing")))
            };
            values = values.matmul(&of("weight")?.t()?)?.broadcast_add(of("bias")?)?;
            if layer < HIDDEN.len() {
                values = values.silu()?;
            }
        }
        let scores = values.reshape((self.rows, 1))?;
        let margin = scores.broadcast_sub(&scores.t()?)?;
        // ln(1 + exp(-margin)) without overflow
        let softplus = (margin.neg()?.relu()? + (margin.abs()?.neg()?.exp()? + 1.0)?.log()?)?;
        let by_pair = |values: &[f32]| Tensor::from_slice(values, (self.rows, self.rows), device);
        let pairs = (softplus * by_pair(&self.weights)?)?.sum_all()?;
        // -ln of a program's share of its group's exponentials
        let others = (margin.clamp(-WIDEST, WIDEST)?.neg()?.exp()? * by_pair(&self.same_group)?)?;
        let target = Tensor::from_slice(&self.target, self.rows, device)?;
        let list = (others.sum(1)?.log()? * target)?.sum_all()?;
        Ok((pairs + (list * LIST)?)?)
    }
}

fn normalise(weights: &mut [f32]) {
    let sum: f32 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= sum.max(f32::MIN_POSITIVE));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{EstimatorOptions, Group, train_estimator};
    use crate::model::estimator::{GOOD, SCORE_RANGE};
    use crate::model::{Estimator, ModelError};
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// Speeds that depend on features as times of programs do: the larger of two counts decides.
    fn groups(count: usize, seed: u64) -> Vec<Group> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let group = |_| {
            let task = random.random_range(0.0..20.0f32);
            let features: Vec<Vec<f32>> = (0..24)
                .map(|_| vec![task, task + random.random_range(0.0..6.0), task + random.random_range(0.0..6.0), 7.0])
                .collect();
            let times: Vec<f32> = features.iter().map(|f| f[1].max(f[2])).collect();
            let best = times.iter().copied().fold(f32::INFINITY, f32::min);
            Group { features, speeds: times.iter().map(|time| best - time).collect() }
        };
        (0..count).map(group).collect()
    }

    #[test]
    fn it_learns_to_order_groups_that_it_has_not_seen() {
        let (seen, unseen) = (groups(60, 1), groups(20, 2));
        let options = EstimatorOptions { epochs: 20, trees: 0, ..EstimatorOptions::default() };
        let untrained = Estimator::random(4, 0).evaluate(&unseen);
        let trained = train_estimator(None, &seen, &options).unwrap();
        assert_eq!(trained, train_estimator(None, &seen, &options).unwrap());
        let ordered = trained.evaluate(&unseen);
        assert!(ordered.pairs > 0.9 && ordered.pairs > untrained.pairs, "{ordered:?} {untrained:?}");
        assert!(ordered.first > 0.85 && ordered.first_three >= ordered.first, "{ordered:?}");
        // further training on a group orders it better
        let odd = Group { speeds: unseen[0].speeds.iter().map(|s| -s - 3.0).collect(), ..unseen[0].clone() };
        let before = trained.evaluate(std::slice::from_ref(&odd)).pairs;
        let adapted = train_estimator(Some(&trained), std::slice::from_ref(&odd), &options).unwrap();
        assert!(adapted.evaluate(&[odd]).pairs > before + 0.2);
    }

    #[test]
    fn what_is_beyond_all_that_was_said_of_good_programs_counts_less() {
        let free = Estimator::random(4, 0);
        let score_of = |estimator: &Estimator, features: &Vec<f32>| estimator.score(features).unwrap();
        let known = groups(3, 1);
        let good: Vec<f32> = known
            .iter()
            .flat_map(|group| group.features.iter().zip(&group.speeds))
            .filter(|(_, speed)| **speed >= GOOD)
            .map(|(features, _)| score_of(&free, features))
            .collect();
        let lowest = good.iter().copied().fold(f32::INFINITY, f32::min);
        let highest = good.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut bounded = free.clone();
        bounded.bound(&known);
        let (mut within, mut beyond) = (0, 0);
        for features in groups(40, 2).iter().flat_map(|group| &group.features) {
            match (score_of(&free, features), score_of(&bounded, features)) {
                (said, counts) if said <= highest => {
                    within += 1;
                    assert_eq!(said, counts);
                }
                (said, counts) => {
                    beyond += 1;
                    assert!(counts < highest && counts >= lowest, "{said} counts as {counts}");
                    assert!(counts == lowest || (highest - counts - (said - highest)).abs() < 1e-5);
                }
            }
        }
        assert!(within > 0 && beyond > 0, "{within} {beyond}");
        // it is kept with the weights, and never gets narrower
        let mut tensors: BTreeMap<_, _> = bounded.tensors().map(|(name, _, values)| (name, values)).collect();
        assert_eq!(tensors[SCORE_RANGE], [lowest, highest]);
        assert_eq!(Estimator::from_tensors(tensors.clone()).unwrap(), bounded);
        let before = bounded.clone();
        bounded.bound(&known[..1]);
        assert_eq!(bounded, before);
        tensors.insert(SCORE_RANGE.into(), vec![highest, lowest]);
        assert!(Estimator::from_tensors(tensors).unwrap_err().contains(SCORE_RANGE));
    }

    #[test]
    fn groups_that_do_not_fit_are_refused() {
        let options = EstimatorOptions::default();
        let mut wrong = groups(2, 3);
        wrong[1].features[0].pop();
        assert!(matches!(train_estimator(None, &wrong, &options), Err(ModelError::Example { index: 1, .. })));
        let mut wrong = groups(2, 3);
        wrong[0].speeds[3] = f32::NAN;
        assert!(matches!(train_estimator(None, &wrong, &options), Err(ModelError::Example { index: 0, .. })));
        let trained = Estimator::random(4, 0);
        assert_eq!(trained.score(&[1.0; 3]), None);
        let parts: std::collections::BTreeMap<_, _> =
            trained.tensors().map(|(name, _, values)| (name, values)).collect();
        assert_eq!(Estimator::from_tensors(parts.clone()), Ok(trained));
        for (name, value) in [("mean", f32::INFINITY), ("deviation", 0.0), ("layers.2.bias", f32::NAN)] {
            let mut broken = parts.clone();
            broken.get_mut(name).unwrap()[0] = value;
            assert!(Estimator::from_tensors(broken).unwrap_err().contains(name));
        }
        let mut broken = parts;
        broken.remove("layers.0.weight");
        assert!(Estimator::from_tensors(broken).unwrap_err().contains("layers.0.weight"));
    }
}
