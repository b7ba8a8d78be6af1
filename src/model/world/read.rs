//! Fast judgement of many programs, on plain slices: by step, in batches, and what several begin with once.

use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
use rayon::slice::ParallelSlice;

use super::cell::{step, turned};
use super::{DEVIATION, EMBEDDING, MEAN, SLOTS, World};
use crate::model::kernels::{Matrix, multiply, sigmoid, tanh};
use crate::model::{ModelError, Position};

/// Programs that go through the steps together.
const TOGETHER: usize = 512;

/// A task that was begun: its prompt was read, and so were the actions that its programs consist of.
pub struct Begun<'w> {
    world: &'w World,
    /// The state behind the prompt.
    start: Vec<f32>,
    /// What each action tells the gates, `[actions, 3 · width]`.
    inputs: Vec<f32>,
}

impl World {
    /// Reads a prompt, and the actions that programs will name by their numbers.
    pub fn begin(&self, prompt: &[Position], actions: &[Position]) -> Begun<'_> {
        let width = self.config.width;
        let words = self.told("prompt", prompt);
        let (mut start, mut scratch) = (vec![0.0; width], vec![0.0; 3 * width]);
        let weight = self.tensor("prompt.recurrent.weight");
        for word in words.chunks_exact(3 * width) {
            step(&mut start, word, weight, width, &mut scratch);
        }
        let mut context = vec![0.0; 3 * width];
        let of_start = Matrix::row_major(&start, 1, width);
        multiply(&mut context, of_start, turned(self.tensor("action.context.weight"), width), false);
        let mut inputs = self.told("action", actions);
        for row in inputs.chunks_exact_mut(3 * width) {
            row.iter_mut().zip(&context).for_each(|(input, context)| *input += context);
        }
        Begun { world: self, start, inputs }
    }

    /// What positions tell the gates of a unit, `[positions, 3 · width]`.
    fn told(&self, unit: &str, positions: &[Position]) -> Vec<f32> {
        let width = self.config.width;
        let (embedding, slots) = (self.tensor(EMBEDDING), self.tensor(SLOTS));
        let mut read = vec![0.0; positions.len() * width];
        for (row, position) in read.chunks_exact_mut(width).zip(positions) {
            for (token, slot) in position.slotted(self.config.slots) {
                let at = token as usize * width;
                // a word that is newer than the model tells nothing
                let Some(word) = embedding.get(at..at + width) else { continue };
                let weights = &slots[slot * width..(slot + 1) * width];
                row.iter_mut().zip(word).zip(weights).for_each(|((sum, x), weight)| *sum += x * weight);
            }
        }
        self.layer(&format!("{unit}.input"), &read, width)
    }

    /// A layer of rows of `inputs` values each.
    fn layer(&self, name: &str, rows: &[f32], inputs: usize) -> Vec<f32> {
        let (weight, bias) = (self.tensor(&format!("{name}.weight")), self.tensor(&format!("{name}.bias")));
        let count = rows.len() / inputs;
        let mut output: Vec<f32> = bias.repeat(count);
        multiply(&mut output, Matrix::row_major(rows, count, inputs), turned(weight, inputs), true);
        output
    }
}

impl Begun<'_> {
    /// Log₂ of the speeds of finished programs relative to the best of the task, as far as it can tell; each
    /// is a list of actions, by their numbers.
    ///
    /// # Errors
    /// [`ModelError::Answer`] for an action that was not begun with.
    pub fn ranks(&self, programs: &[&[u32]]) -> Result<Vec<f32>, ModelError> {
        self.told_by("rank", programs)
    }

    /// The same of what begins so, and may be finished in any way. A model without dynamics says the same of
    /// it as if it were finished.
    ///
    /// # Errors
    /// As [`Begun::ranks`].
    pub fn values(&self, programs: &[&[u32]]) -> Result<Vec<f32>, ModelError> {
        self.told_by(if self.world.config.dynamics { "value" } else { "rank" }, programs)
    }

    /// Features of finished programs, as far as they can be told without the nests.
    ///
    /// # Errors
    /// As [`Begun::ranks`].
    pub fn features(&self, programs: &[&[u32]]) -> Result<Vec<Vec<f32>>, ModelError> {
        let (count, world) = (self.world.config.features, self.world);
        let told = self.told_by("features", programs)?;
        let scales = || world.tensor(MEAN).iter().zip(world.tensor(DEVIATION));
        let scaled =
            |row: &[f32]| row.iter().zip(scales()).map(|(x, (mean, deviation))| mean + x * deviation).collect();
        Ok(told.chunks_exact(count).map(scaled).collect())
    }

    /// What a head says of programs, one row after the other.
    pub(super) fn told_by(&self, head: &str, programs: &[&[u32]]) -> Result<Vec<f32>, ModelError> {
        let answers = self.inputs.len() / (3 * self.world.config.width);
        if let Some(answer) = programs.iter().copied().flatten().find(|action| **action as usize >= answers) {
            return Err(ModelError::Answer { answer: *answer as usize, answers });
        }
        // neighbours begin alike
        let mut order: Vec<usize> = (0..programs.len()).collect();
        order.sort_by_key(|at| programs[*at]);
        let of_chunk = |chunk: &[usize]| -> Vec<f32> {
            let chunk: Vec<&[u32]> = chunk.iter().map(|at| programs[*at]).collect();
            let states = match self.world.config.dynamics {
                true => self.walked(&chunk),
                false => self.summed(&chunk),
            };
            let mut hidden = self.world.layer("hidden", &states, self.world.config.width);
            hidden.iter_mut().for_each(|x| *x *= sigmoid(*x));
            self.world.layer(head, &hidden, self.world.config.hidden)
        };
        let told: Vec<f32> = order.par_chunks(TOGETHER).map(of_chunk).collect::<Vec<_>>().concat();
        let width = told.len() / programs.len().max(1);
        let mut sorted = vec![0.0; told.len()];
        for (place, row) in order.into_iter().zip(told.chunks_exact(width.max(1))) {
            sorted[place * width..(place + 1) * width].copy_from_slice(row);
        }
        Ok(sorted)
    }

    /// States `[programs, width]` after all actions of sorted programs: every distinct beginning takes its
    /// step once.
    fn walked(&self, programs: &[&[u32]]) -> Vec<f32> {
        let width = self.world.config.width;
        let weight = self.world.tensor("action.recurrent.weight");
        let mut ends = self.start.repeat(programs.len());
        // of each program, its beginning among the distinct ones of this length
        let mut nodes = vec![0; programs.len()];
        let (mut states, mut next) = (self.start.clone(), Vec::new());
        let (mut inputs, mut scratch) = (Vec::new(), Vec::new());
        let longest = programs.iter().map(|program| program.len()).max().unwrap_or(0);
        for at in 0..longest {
            next.clear();
            inputs.clear();
            let mut count = 0;
            let mut last = None;
            for (node, program) in nodes.iter_mut().zip(programs) {
                let Some(action) = program.get(at).map(|action| *action as usize) else { continue };
                let own = Some((*node, action));
                if last != own {
                    next.extend_from_slice(&states[*node * width..(*node + 1) * width]);
                    inputs.extend_from_slice(&self.inputs[action * 3 * width..(action + 1) * 3 * width]);
                    (last, count) = (own, count + 1);
                }
                *node = count - 1;
            }
            scratch.resize(scratch.len().max(inputs.len()), 0.0);
            step(&mut next, &inputs, weight, width, &mut scratch);
            std::mem::swap(&mut states, &mut next);
            let ended = ends.chunks_exact_mut(width).zip(&nodes).zip(programs);
            for ((end, node), _) in ended.filter(|(_, program)| program.len() == at + 1) {
                end.copy_from_slice(&states[node * width..(node + 1) * width]);
            }
        }
        ends
    }

    /// The same without dynamics: actions are counted, each as far as its gate lets it through.
    fn summed(&self, programs: &[&[u32]]) -> Vec<f32> {
        let width = self.world.config.width;
        let counted: Vec<f32> = self
            .inputs
            .chunks_exact(3 * width)
            .flat_map(|row| (0..width).map(move |i| sigmoid(row[i]) * tanh(row[2 * width + i])))
            .collect();
        let mut ends = self.start.repeat(programs.len());
        for (state, program) in ends.chunks_exact_mut(width).zip(programs) {
            for action in *program {
                let row = &counted[*action as usize * width..(*action as usize + 1) * width];
                state.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
            }
        }
        ends
    }
}

/// Judges several tasks side by side.
pub(super) fn each<T: Sync, R: Send>(all: &[T], judge: impl Fn(&T) -> R + Sync + Send) -> Vec<R> {
    all.into_par_iter().with_max_len(1).map(judge).collect()
}
