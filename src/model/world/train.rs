//! Training a world model, step by step.

use std::collections::BTreeMap;
use std::time::Instant;

use candle_core::Tensor;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use serde::{Deserialize, Serialize};

use super::graph::{Batch, Graph, Shares, WorldGroup};
use super::read::each;
use super::{DEVIATION, MEAN, World};
use crate::model::ModelError;
use crate::model::optimizer::{AdamW, clip};

/// How to train. Equal options, groups and models train equal weights.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorldOptions {
    /// Passes over the programs.
    pub epochs: f32,
    /// Programs of a group that are compared.
    pub members: usize,
    /// Groups of a batch.
    pub groups: usize,
    /// Batches of one update, which are worked on side by side.
    pub batches: usize,
    /// The highest learning rate; it rises to it, and falls along a cosine.
    pub learning_rate: f64,
    pub weight_decay: f64,
    /// Largest Euclidean norm of an update's gradients.
    pub gradient_clip: f64,
    /// Shares of the losses of the value, of features, and of the squared error of ranks and values.
    pub value_share: f64,
    pub features_share: f64,
    pub anchor_share: f64,
    /// Share of the tasks that is held out to choose the best weights by; 0 for none.
    pub held_out: f32,
    /// Looks at the tasks held out.
    pub evaluations: usize,
    pub seed: u64,
}

impl Default for WorldOptions {
    fn default() -> WorldOptions {
        WorldOptions {
            epochs: 6.0,
            members: 48,
            groups: 6,
            batches: 2,
            learning_rate: 3e-3,
            weight_decay: 0.01,
            gradient_clip: 1.0,
            value_share: 0.5,
            features_share: 0.5,
            anchor_share: 0.05,
            held_out: 0.1,
            evaluations: 8,
            seed: 0,
        }
    }
}

/// Quality on tasks held out.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct WorldEvaluation {
    /// Share of pairs of a group that are ordered rightly when all is decided; 0.5 is chance.
    pub pairs: f64,
    /// The same when half is decided.
    pub pairs_at_half: f64,
    /// Share of the variance of features among the programs of a group that is told rightly.
    pub features: f64,
}

/// After a step.
#[derive(Clone, Debug)]
pub struct WorldProgress {
    /// Steps done, of `steps`.
    pub step: usize,
    pub steps: usize,
    pub loss: f32,
    /// Seconds to the last step at the pace so far.
    pub seconds_left: f64,
    /// If this step was evaluated.
    pub evaluation: Option<WorldEvaluation>,
}

/// A training run. [`WorldTrainer::step`] until it returns `None`; [`WorldTrainer::save`] whenever the run
/// should be resumable.
pub struct WorldTrainer<'a> {
    pub(super) graph: Graph,
    pub(super) optimizer: AdamW,
    pub(super) options: WorldOptions,
    pub(super) groups: &'a [WorldGroup],
    /// Groups to train with, and those held out.
    shown: Vec<usize>,
    held: Vec<usize>,
    steps_per_epoch: usize,
    /// Chunks of groups of the epoch of this number.
    schedule: (u64, Vec<Chunk>),
    /// How good the weights are that did best on the tasks held out, and these.
    pub(super) best: Option<(f64, World)>,
    started: Instant,
    done_before: usize,
}

/// A group, and some of its programs.
type Chunk = (usize, Vec<usize>);

/// Share of the updates in which the learning rate rises.
const WARM_UP: f64 = 0.1;
/// What the learning rate falls to, of the highest.
const LOWEST_RATE: f64 = 0.02;
/// Programs of a group that an evaluation looks at.
const JUDGED: usize = 96;

impl<'a> WorldTrainer<'a> {
    /// From nothing: features are brought to mean 0 and deviation 1 as those of the groups to train with are.
    ///
    /// # Errors
    /// Groups that do not fit the model, options out of range, and where there is nothing to learn from.
    pub fn new(world: &World, groups: &'a [WorldGroup], options: WorldOptions) -> Result<WorldTrainer<'a>, ModelError> {
        validate(&options)?;
        check(world, groups)?;
        let (held, shown): (Vec<usize>, Vec<usize>) =
            (0..groups.len()).partition(|at| groups[*at].place < options.held_out);
        let world = normalising(world.clone(), shown.iter().map(|at| &groups[*at]));
        let schedule = epoch(groups, &shown, &options, 0);
        if schedule.is_empty() {
            return Err(ModelError::Options("no task that is not held out has two programs to compare".into()));
        }
        let graph = Graph::new(&world)?;
        Ok(WorldTrainer {
            optimizer: AdamW::new(graph.variables(), options.weight_decay)?,
            graph,
            steps_per_epoch: schedule.len().div_ceil(options.groups * options.batches),
            schedule: (0, schedule),
            options,
            groups,
            shown,
            held,
            best: None,
            started: Instant::now(),
            done_before: 0,
        })
    }

    /// Number of steps.
    pub fn steps(&self) -> usize {
        (self.steps_per_epoch as f64 * f64::from(self.options.epochs)).ceil() as usize
    }

    /// One update; `None` once all steps are done.
    ///
    /// # Errors
    /// [`ModelError::Diverged`].
    pub fn step(&mut self) -> Result<Option<WorldProgress>, ModelError> {
        let (step, steps) = (self.optimizer.step, self.steps());
        if step >= steps {
            return Ok(None);
        }
        let (loss, mut gradients) = self.gradients(step)?;
        let norm = clip(&mut gradients, self.options.gradient_clip)?;
        if !(loss.is_finite() && norm.is_finite()) {
            return Err(ModelError::Diverged { step, loss });
        }
        let rate = learning_rate(self.options.learning_rate, step, steps);
        self.optimizer.update(self.graph.variables(), &gradients, rate)?;
        let step = step + 1;
        let every = steps.div_ceil(self.options.evaluations.max(1)).max(1);
        let due = step.is_multiple_of(every) || step == steps;
        let evaluation = if due { self.evaluate_and_keep_best()? } else { None };
        let done = (step - self.done_before).max(1);
        let seconds_left = self.started.elapsed().as_secs_f64() / done as f64 * (steps - step) as f64;
        Ok(Some(WorldProgress { step, steps, loss, seconds_left, evaluation }))
    }

    /// The best weights by the tasks held out, or the latest where none are.
    ///
    /// # Errors
    /// Weights that are no longer finite.
    pub fn world(&self) -> Result<World, ModelError> {
        match &self.best {
            Some((_, world)) => Ok(world.clone()),
            None => self.graph.world(),
        }
    }

    /// How many groups and programs are learned from, and how many groups are held out.
    pub fn counts(&self) -> (usize, usize, usize) {
        let programs = self.shown.iter().map(|at| self.groups[*at].programs.len()).sum();
        (self.shown.len(), programs, self.held.len())
    }

    /// Quality on the tasks held out; `None` where no two programs of one can be compared.
    ///
    /// # Errors
    /// [`ModelError`] where the groups do not fit the model.
    pub fn evaluate(&self, world: &World) -> Result<Option<WorldEvaluation>, ModelError> {
        let groups: Vec<&WorldGroup> = self.held.iter().map(|at| &self.groups[*at]).collect();
        evaluate(world, &groups)
    }

    /// Continues behind `steps` updates that another trainer did.
    pub(super) fn continue_from(&mut self, steps: usize) {
        self.optimizer.step = steps;
        self.done_before = steps;
    }

    fn evaluate_and_keep_best(&mut self) -> Result<Option<WorldEvaluation>, ModelError> {
        let world = self.graph.world()?;
        let Some(evaluation) = self.evaluate(&world)? else { return Ok(None) };
        if self.best.as_ref().is_none_or(|(best, _)| evaluation.pairs > *best) {
            self.best = Some((evaluation.pairs, world));
        }
        Ok(Some(evaluation))
    }

    /// The mean loss of a step's batches, and the sum of their gradients: a function of the seed and the
    /// step, so that a resumed run sees what an unbroken one would.
    fn gradients(&mut self, step: usize) -> Result<(f32, BTreeMap<String, Tensor>), ModelError> {
        let WorldOptions { groups, batches, .. } = self.options;
        let number = (step / self.steps_per_epoch) as u64;
        if self.schedule.0 != number {
            self.schedule = (number, epoch(self.groups, &self.shown, &self.options, number));
        }
        let mut random = ChaCha8Rng::seed_from_u64(self.options.seed);
        random.set_stream(2 * step as u64 + 1);
        let first = (step % self.steps_per_epoch) * groups * batches;
        let last = (first + groups * batches).min(self.schedule.1.len());
        let chunks: Vec<(&WorldGroup, &[usize])> = self.schedule.1[first..last]
            .iter()
            .map(|(group, chosen)| (&self.groups[*group], chosen.as_slice()))
            .collect();
        let batches: Vec<Batch<'_>> =
            chunks.chunks(groups).map(|members| Batch::new(&self.graph, members, &mut random)).collect();
        let shares = Shares {
            value: self.options.value_share,
            features: self.options.features_share,
            anchor: self.options.anchor_share,
        };
        let graph = &self.graph;
        let one = |batch: &Batch<'_>| -> Result<(f32, BTreeMap<String, Tensor>), ModelError> {
            let loss = (graph.loss(batch, shares)? / batches.len() as f64)?;
            let store = loss.backward()?;
            let of =
                |(name, variable): (&String, &candle_core::Var)| Some((name.clone(), store.get(variable)?.clone()));
            Ok((loss.to_scalar()?, graph.variables().iter().filter_map(of).collect()))
        };
        let all: Vec<_> = batches.par_iter().map(one).collect::<Result<_, ModelError>>()?;
        let (mut loss, mut sum) = (0.0, BTreeMap::new());
        for (own, gradients) in all {
            loss += own;
            for (name, gradient) in gradients {
                let added = match sum.get(&name) {
                    Some(before) => (before + gradient)?,
                    None => gradient,
                };
                sum.insert(name, added);
            }
        }
        Ok((loss, sum))
    }
}

fn validate(options: &WorldOptions) -> Result<(), ModelError> {
    let positive = [
        ("epochs", f64::from(options.epochs)),
        ("groups", options.groups as f64),
        ("batches", options.batches as f64),
        ("members", options.members as f64 - 1.0),
        ("learning_rate", options.learning_rate),
        ("gradient_clip", options.gradient_clip),
    ];
    let not_negative = [
        ("weight_decay", options.weight_decay),
        ("value_share", options.value_share),
        ("features_share", options.features_share),
        ("anchor_share", options.anchor_share),
    ];
    if let Some((name, _)) = positive.iter().find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
        return Err(ModelError::Options(format!("{name} is too small")));
    }
    if let Some((name, value)) = not_negative.iter().find(|(_, value)| !(value.is_finite() && *value >= 0.0)) {
        return Err(ModelError::Options(format!("{name} is {value}, it must be 0 or more")));
    }
    match options.held_out {
        share if (0.0..1.0).contains(&share) => Ok(()),
        share => Err(ModelError::Options(format!("held_out is {share}, it must be 0 or more and below 1"))),
    }
}

/// Refuses groups that cannot be learned from.
fn check(world: &World, groups: &[WorldGroup]) -> Result<(), ModelError> {
    let features = world.config().features;
    for (index, group) in groups.iter().enumerate() {
        let wrong = |problem: &str| Err(ModelError::Example { index, problem: problem.into() });
        let actions = group.actions.len();
        if group.prompt.is_empty() || !(0.0..=1.0).contains(&group.place) {
            return wrong("it has no prompt, or its place is out of range");
        }
        for program in &group.programs {
            let decisions = &program.decisions;
            if decisions.is_empty() || decisions.iter().any(|action| *action as usize >= actions) {
                return wrong("a program without decisions, or with one that is not among the actions");
            }
            let finite = program.features.iter().all(|value| value.is_finite()) && program.speed.is_finite();
            if program.features.len() != features || !finite {
                return wrong("its features are not as many as the model tells, or not finite");
            }
        }
    }
    Ok(())
}

/// A model that takes the features of these groups to mean 0 and deviation 1.
fn normalising<'g>(mut world: World, groups: impl Iterator<Item = &'g WorldGroup>) -> World {
    let rows: Vec<&[f32]> = groups.flat_map(|group| &group.programs).map(|p| p.features.as_slice()).collect();
    let count = rows.len().max(1) as f64;
    for feature in 0..world.config.features {
        let values = || rows.iter().map(|row| f64::from(row[feature]));
        let mean = values().sum::<f64>() / count;
        let variance = values().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        // a feature that hardly moves must not be blown up
        for (name, value) in [(MEAN, mean), (DEVIATION, variance.sqrt() + 1e-3)] {
            if let Some(values) = world.tensors.get_mut(name) {
                values[feature] = value as f32;
            }
        }
    }
    world
}

/// Programs of groups in random chunks of up to `members`, two at least, in random order.
fn epoch(groups: &[WorldGroup], shown: &[usize], options: &WorldOptions, number: u64) -> Vec<Chunk> {
    let mut random = ChaCha8Rng::seed_from_u64(options.seed);
    random.set_stream(2 * number);
    let mut chunks = Vec::new();
    for at in shown {
        let mut members: Vec<usize> = (0..groups[*at].programs.len()).collect();
        members.shuffle(&mut random);
        // of about one size
        let count = members.len().div_ceil(options.members).max(1);
        let size = members.len().div_ceil(count).max(1);
        chunks.extend(members.chunks(size).filter(|chunk| chunk.len() > 1).map(|chunk| (*at, chunk.to_vec())));
    }
    chunks.shuffle(&mut random);
    chunks
}

fn learning_rate(highest: f64, step: usize, steps: usize) -> f64 {
    let done = step as f64 / steps.max(1) as f64;
    if done < WARM_UP {
        return highest * (0.05 + 0.95 * done / WARM_UP);
    }
    let falling = (done - WARM_UP) / (1.0 - WARM_UP);
    highest * (LOWEST_RATE + (1.0 - LOWEST_RATE) * (0.5 + 0.5 * (std::f64::consts::PI * falling).cos()))
}

/// Pairs that can be told apart, and those in order; at the end and at half of the decisions. Squares of
/// features among the programs of a group, and of what is told wrongly of them.
#[derive(Clone, Copy, Default)]
struct Counted {
    pairs: usize,
    ordered: usize,
    ordered_at_half: usize,
    squares: f64,
    wrong: f64,
}

/// Quality of a model on groups.
pub(super) fn evaluate(world: &World, groups: &[&WorldGroup]) -> Result<Option<WorldEvaluation>, ModelError> {
    let counted: Vec<Counted> = each(groups, |group| count(world, group)).into_iter().collect::<Result<_, _>>()?;
    let mut all = Counted::default();
    for own in counted {
        all.pairs += own.pairs;
        all.ordered += own.ordered;
        all.ordered_at_half += own.ordered_at_half;
        all.squares += own.squares;
        all.wrong += own.wrong;
    }
    let of_pairs = |ordered: usize| ordered as f64 / all.pairs as f64;
    Ok((all.pairs > 0).then(|| WorldEvaluation {
        pairs: of_pairs(all.ordered),
        pairs_at_half: of_pairs(all.ordered_at_half),
        features: 1.0 - all.wrong / all.squares.max(f64::MIN_POSITIVE),
    }))
}

fn count(world: &World, group: &WorldGroup) -> Result<Counted, ModelError> {
    let programs = &group.programs[..group.programs.len().min(JUDGED)];
    let begun = world.begin(&group.prompt, &group.actions);
    let ends: Vec<&[u32]> = programs.iter().map(|program| program.decisions.as_slice()).collect();
    let halves: Vec<&[u32]> = ends.iter().map(|decisions| &decisions[..decisions.len().div_ceil(2)]).collect();
    let (ranks, values, told) = (begun.ranks(&ends)?, begun.values(&halves)?, begun.features(&ends)?);
    let mut counted = Counted::default();
    for (i, program) in programs.iter().enumerate() {
        for j in (0..programs.len()).filter(|j| program.speed > programs[*j].speed) {
            counted.pairs += 1;
            counted.ordered += usize::from(ranks[i] > ranks[j]);
            counted.ordered_at_half += usize::from(values[i] > values[j]);
        }
    }
    let normal = |features: &[f32]| world.normalised(features).map(f64::from).collect::<Vec<f64>>();
    let known: Vec<Vec<f64>> = programs.iter().map(|program| normal(&program.features)).collect();
    let told: Vec<Vec<f64>> = told.iter().map(|features| normal(features)).collect();
    for feature in 0..world.config.features {
        let spread = |of: &dyn Fn(usize) -> f64| {
            let mean = (0..known.len()).map(of).sum::<f64>() / known.len().max(1) as f64;
            (0..known.len()).map(|at| (of(at) - mean).powi(2)).sum::<f64>()
        };
        counted.squares += spread(&|at| known[at][feature]);
        counted.wrong += spread(&|at| known[at][feature] - told[at][feature]);
    }
    Ok(counted)
}
