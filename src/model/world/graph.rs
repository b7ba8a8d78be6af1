//! The world model as a differentiable candle graph, and what it learns from: batches of programs of a few
//! tasks.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor, Var};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::cell::Recurrence;
use super::{DEVIATION, EMBEDDING, MEAN, SLOTS, World, WorldConfig, WorldSpaces, normalised};
use crate::model::{ModelError, Position};

/// Programs of one task on one machine, all measured by one version of this program.
#[derive(Clone, PartialEq, Debug)]
pub struct WorldGroup {
    /// Where the task stands among all, from 0 to 1: the lowest are held out of training.
    pub place: f32,
    /// Read once, at least one position.
    pub prompt: Vec<Position>,
    /// All decisions of its programs, each with its answer.
    pub actions: Vec<Position>,
    pub programs: Vec<WorldProgram>,
}

/// A program that was measured.
#[derive(Clone, PartialEq, Debug)]
pub struct WorldProgram {
    /// Its actions by their numbers, at least one.
    pub decisions: Vec<u32>,
    pub features: Vec<f32>,
    /// Log₂ of the speed relative to the best of the group, 0 or below.
    pub speed: f32,
}

/// Shares of the losses beside that of the ranking.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    pub value: f64,
    pub features: f64,
    /// Of the squared error, which keeps the scale of ranks and values.
    pub anchor: f64,
}

/// Programs of a few tasks, as the graph reads them.
pub(super) struct Batch<'a> {
    /// Words of all prompts, one after the other, and which of them each prompt reads at each step, `[steps,
    /// tasks]`; the row of each prompt's last word.
    words: Vec<&'a Position>,
    word_rows: Vec<u32>,
    last_words: Vec<u32>,
    /// Actions of all tasks, and which of them each program takes at each step, `[steps, programs]`.
    actions: Vec<&'a Position>,
    action_tasks: Vec<u32>,
    action_rows: Vec<u32>,
    /// Of each program: its task, the row of the last step, and that of a step that is drawn.
    tasks: Vec<u32>,
    last_rows: Vec<u32>,
    early_rows: Vec<u32>,
    /// Whether a row is a step of its program, `[steps, programs]`.
    is_step: Vec<f32>,
    features: Vec<f32>,
    speeds: Vec<f32>,
    /// How much it counts that a program is ranked above another, `[programs, programs]`.
    weights: Vec<f32>,
}

/// Programs slower than this many factors of two are all the same.
const SLOWEST: f32 = -6.0;
/// Differences of speeds below this many factors of two are noise, and those beyond the other weigh no more.
const SAME: f32 = 0.03;
const FAR: f32 = 2.0;

impl<'a> Batch<'a> {
    /// Some programs of groups, by their numbers.
    pub fn new(graph: &Graph, members: &[(&'a WorldGroup, &[usize])], random: &mut ChaCha8Rng) -> Batch<'a> {
        let programs: Vec<(usize, &WorldProgram)> = members
            .iter()
            .enumerate()
            .flat_map(|(task, (group, chosen))| chosen.iter().map(move |at| (task, &group.programs[*at])))
            .collect();
        let (tasks, count) = (members.len(), programs.len());
        // where the words and the actions of each task begin
        let begins = |of: &dyn Fn(&WorldGroup) -> usize| {
            members.iter().scan(0, |sum, (group, _)| Some(std::mem::replace(sum, *sum + of(group)))).collect::<Vec<_>>()
        };
        let (first_words, first_actions) = (begins(&|g| g.prompt.len()), begins(&|g| g.actions.len()));
        let longest = members.iter().map(|(group, _)| group.prompt.len()).max().unwrap_or(0);
        let mut word_rows = Vec::with_capacity(longest * tasks);
        for at in 0..longest {
            // behind its end a prompt is read on, and that is not looked at
            let row =
                |(task, (group, _)): (usize, &(&WorldGroup, _))| first_words[task] + at.min(group.prompt.len() - 1);
            word_rows.extend(members.iter().enumerate().map(|member| row(member) as u32));
        }
        let longest = programs.iter().map(|(_, program)| program.decisions.len()).max().unwrap_or(0);
        let (mut action_rows, mut is_step) = (Vec::with_capacity(longest * count), Vec::new());
        for at in 0..longest {
            for (task, program) in &programs {
                let action = program.decisions.get(at).copied().unwrap_or(0) as usize;
                action_rows.push((first_actions[*task] + action) as u32);
                is_step.push(f32::from(u8::from(at < program.decisions.len())));
            }
        }
        let row = |step: usize, program: usize| (step * count + program) as u32;
        let lengths = || programs.iter().map(|(_, program)| program.decisions.len()).enumerate();
        let speeds: Vec<f32> = programs.iter().map(|(_, program)| program.speed.max(SLOWEST)).collect();
        let features = programs.iter().flat_map(|(_, program)| graph.normalised(&program.features)).collect();
        Batch {
            words: members.iter().flat_map(|(group, _)| &group.prompt).collect(),
            word_rows,
            last_words: members
                .iter()
                .enumerate()
                .map(|(t, (g, _))| ((g.prompt.len() - 1) * tasks + t) as u32)
                .collect(),
            actions: members.iter().flat_map(|(group, _)| &group.actions).collect(),
            action_tasks: (0..)
                .zip(members)
                .flat_map(|(task, (group, _))| std::iter::repeat_n(task, group.actions.len()))
                .collect(),
            action_rows,
            tasks: programs.iter().map(|(task, _)| *task as u32).collect(),
            last_rows: lengths().map(|(at, length)| row(length - 1, at)).collect(),
            early_rows: lengths().map(|(at, length)| row(random.random_range(0..length), at)).collect(),
            is_step,
            features,
            weights: weights(&programs.iter().map(|(task, _)| *task).collect::<Vec<_>>(), &speeds),
            speeds,
        }
    }
}

#[cfg(test)]
impl Batch<'_> {
    /// The number of steps of each program that the value is learned behind.
    pub fn early_steps(&self) -> impl Iterator<Item = usize> {
        self.early_rows.iter().map(|row| *row as usize / self.tasks.len() + 1)
    }
}

/// Weights of pairs, together 1: the farther apart, and the faster the faster one is, the more.
fn weights(tasks: &[usize], speeds: &[f32]) -> Vec<f32> {
    let mut weights = Vec::with_capacity(speeds.len() * speeds.len());
    for (task, speed) in tasks.iter().zip(speeds) {
        let of = |(other, slower): (&usize, &f32)| match speed - slower {
            apart if other == task && apart > SAME => apart.min(FAR) * (0.5 * speed.max(-4.0)).exp2(),
            _ => 0.0,
        };
        weights.extend(tasks.iter().zip(speeds).map(of));
    }
    let sum: f32 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= sum.max(f32::MIN_POSITIVE));
    weights
}

/// Weights on the CPU, as variables.
pub(super) struct Graph {
    config: WorldConfig,
    spaces: WorldSpaces,
    variables: BTreeMap<String, Var>,
    /// What is not learned.
    fixed: BTreeMap<String, Vec<f32>>,
}

impl Graph {
    pub fn new(world: &World) -> Result<Graph, ModelError> {
        let (mut variables, mut fixed) = (BTreeMap::new(), BTreeMap::new());
        for (name, shape) in world.config.shapes() {
            let values = world.tensor(&name);
            if [MEAN, DEVIATION].contains(&name.as_str()) {
                fixed.insert(name, values.to_vec());
            } else {
                variables.insert(name, Var::from_tensor(&Tensor::from_slice(values, shape, &Device::Cpu)?)?);
            }
        }
        Ok(Graph { config: world.config.clone(), spaces: world.spaces.clone(), variables, fixed })
    }

    pub fn variables(&self) -> &BTreeMap<String, Var> {
        &self.variables
    }

    /// The weights as they are now.
    ///
    /// # Errors
    /// Weights that are no longer finite.
    pub fn world(&self) -> Result<World, ModelError> {
        let mut tensors = self.fixed.clone();
        for (name, variable) in &self.variables {
            tensors.insert(name.clone(), variable.as_tensor().flatten_all()?.to_vec1()?);
        }
        World::from_tensors(self.config.clone(), self.spaces.clone(), tensors).map_err(ModelError::State)
    }

    fn normalised<'f>(&'f self, features: &'f [f32]) -> impl Iterator<Item = f32> + 'f {
        let scale = |name| self.fixed.get(name).map_or(&[][..], Vec::as_slice);
        normalised(features, scale(MEAN), scale(DEVIATION))
    }

    fn weight(&self, name: &str) -> Result<&Tensor, ModelError> {
        let missing = || ModelError::State(format!("tensor `{name}` is missing"));
        self.variables.get(name).map(Var::as_tensor).ok_or_else(missing)
    }

    /// `rows · weightᵀ + bias`.
    fn layer(&self, name: &str, rows: &Tensor) -> Result<Tensor, ModelError> {
        let product = rows.matmul(&self.weight(&format!("{name}.weight"))?.t()?)?;
        Ok(product.broadcast_add(self.weight(&format!("{name}.bias"))?)?)
    }

    /// What positions tell the gates of a unit, `[positions, 3 · width]`.
    fn told(&self, unit: &str, positions: &[&Position]) -> Result<Tensor, ModelError> {
        let (mut tokens, mut slots, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        for (row, position) in positions.iter().enumerate() {
            let known =
                position.slotted(self.config.slots).filter(|(token, _)| (*token as usize) < self.config.vocabulary);
            for (token, slot) in known {
                tokens.push(token);
                slots.push(slot as u32);
                rows.push(row as u32);
            }
        }
        let ids = |ids: Vec<u32>| Tensor::new(ids, &Device::Cpu);
        let embedded = self.weight(EMBEDDING)?.index_select(&ids(tokens)?, 0)?;
        let weighed = (embedded * self.weight(SLOTS)?.index_select(&ids(slots)?, 0)?)?;
        let zeros = Tensor::zeros((positions.len(), self.config.width), DType::F32, &Device::Cpu)?;
        self.layer(&format!("{unit}.input"), &zeros.index_add(&ids(rows)?, &weighed, 0)?)
    }

    /// The states of programs `[programs, width]` at their ends, and at a step that was drawn; without
    /// dynamics, at their ends alone.
    fn states(&self, batch: &Batch<'_>) -> Result<(Tensor, Option<Tensor>), ModelError> {
        let (width, tasks, programs) = (self.config.width, batch.last_words.len(), batch.tasks.len());
        let ids = |ids: &[u32]| Tensor::new(ids, &Device::Cpu);
        let rows = |table: &Tensor, rows: &[u32], count: usize| -> Result<Tensor, ModelError> {
            Ok(table.index_select(&ids(rows)?, 0)?.reshape((rows.len() / count, count, 3 * width))?)
        };
        let words = rows(&self.told("prompt", &batch.words)?, &batch.word_rows, tasks)?;
        let nothing = Tensor::zeros((tasks, width), DType::F32, &Device::Cpu)?;
        let read = words.apply_op3(&nothing, self.weight("prompt.recurrent.weight")?, Recurrence)?;
        let begun = read.reshape(((), width))?.index_select(&ids(&batch.last_words)?, 0)?;
        let context = begun.matmul(&self.weight("action.context.weight")?.t()?)?;
        let start = begun.index_select(&ids(&batch.tasks)?, 0)?;
        let context = context.index_select(&ids(&batch.action_tasks)?, 0)?;
        let inputs = rows(&(self.told("action", &batch.actions)? + context)?, &batch.action_rows, programs)?;
        if !self.config.dynamics {
            let part = |at: usize| inputs.narrow(2, at * width, width);
            let counted = (candle_nn::ops::sigmoid(&part(0)?)? * part(2)?.tanh()?)?;
            let steps = batch.is_step.len() / programs;
            let is_step = Tensor::from_slice(&batch.is_step, (steps, programs, 1), &Device::Cpu)?;
            return Ok(((start + counted.broadcast_mul(&is_step)?.sum(0)?)?, None));
        }
        let states = inputs.apply_op3(&start, self.weight("action.recurrent.weight")?, Recurrence)?;
        let states = states.reshape(((), width))?;
        let of = |rows: &[u32]| -> Result<Tensor, ModelError> { Ok(states.index_select(&ids(rows)?, 0)?) };
        Ok((of(&batch.last_rows)?, Some(of(&batch.early_rows)?)))
    }

    /// What heads say, `[programs, 1]` and `[programs, features]`: the rank and the features at the end, and
    /// the value at a step that was drawn.
    pub fn told_of(&self, batch: &Batch<'_>) -> Result<(Tensor, Tensor, Option<Tensor>), ModelError> {
        let (ends, early) = self.states(batch)?;
        let hidden = self.layer("hidden", &ends)?.silu()?;
        let value = match early {
            Some(early) => Some(self.layer("value", &self.layer("hidden", &early)?.silu()?)?),
            None => None,
        };
        Ok((self.layer("rank", &hidden)?, self.layer("features", &hidden)?, value))
    }

    /// The loss of a batch; a scalar.
    pub fn loss(&self, batch: &Batch<'_>, shares: Shares) -> Result<Tensor, ModelError> {
        let (rank, features, value) = self.told_of(batch)?;
        let target = Tensor::from_slice(&batch.features, features.shape(), &Device::Cpu)?;
        let error = (features - target)?.sqr()?.mean_all()?;
        let mut loss = (ranking(&rank, batch, shares.anchor)? + (error * shares.features)?)?;
        if let Some(value) = value {
            loss = (loss + (ranking(&value, batch, shares.anchor)? * shares.value)?)?;
        }
        Ok(loss)
    }
}

/// A logistic loss of all pairs of programs of a task (RankNet, Burges et al. 2005), and the squared error; a
/// scalar.
fn ranking(scores: &Tensor, batch: &Batch<'_>, anchor: f64) -> Result<Tensor, ModelError> {
    let count = batch.speeds.len();
    let margin = scores.broadcast_sub(&scores.t()?)?;
    // ln(1 + exp(-margin)) without overflow
    let softplus = (margin.neg()?.relu()? + (margin.abs()?.neg()?.exp()? + 1.0)?.log()?)?;
    let pairs = (softplus * Tensor::from_slice(&batch.weights, (count, count), &Device::Cpu)?)?.sum_all()?;
    let error = (scores.squeeze(1)? - Tensor::from_slice(&batch.speeds, count, &Device::Cpu)?)?.sqr()?.mean_all()?;
    Ok((pairs + (error * anchor)?)?)
}
