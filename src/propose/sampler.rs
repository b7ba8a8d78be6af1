//! Programs of a task as they are drawn, without a ranking or any other filter: what a search chooses from,
//! one by one. Pools of them, all measured, tell what a search would find that knew them best.

use std::sync::Arc;

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::iter::{IntoParallelIterator, ParallelIterator};

use super::ProposeError;
use super::lm::{Written, unranked};
use super::method::own_seed;
use super::mutation::children;
use crate::model::{Checkpoint, ModelControl};
use crate::space::{Space, Trace, Untuned};
use crate::target::Task;

/// Someone who draws programs of tasks.
pub struct Sampler<'a> {
    pub name: &'static str,
    space: &'a Space,
    source: Source,
}

enum Source {
    /// What the model writes behind a prompt that asks for the best.
    Model(Arc<Checkpoint>),
    /// Children of the untuned program.
    Mutation,
}

/// A sampler that can be asked for by its name.
#[derive(Clone, Copy, Debug)]
pub struct SamplerKind {
    pub name: &'static str,
    /// One line for people, without a full stop.
    pub about: &'static str,
    who: Who,
}

#[derive(Clone, Copy, Debug)]
enum Who {
    Model(Option<ModelControl>),
    Mutation,
}

/// All samplers, in the order in which help lists them.
pub static SAMPLERS: &[SamplerKind] = &[
    SamplerKind { name: "trained", about: "What the model writes", who: Who::Model(None) },
    SamplerKind {
        name: "shuffled",
        about: "What it writes with its weights shuffled",
        who: Who::Model(Some(ModelControl::Shuffled)),
    },
    SamplerKind {
        name: "uniform",
        about: "The same questions, answered uniformly",
        who: Who::Model(Some(ModelControl::Uniform)),
    },
    SamplerKind {
        name: "mutation",
        about: "Mutations of the program that the rules write without a search",
        who: Who::Mutation,
    },
];

impl SamplerKind {
    pub fn named(name: &str) -> Option<SamplerKind> {
        SAMPLERS.iter().find(|sampler| sampler.name == name).copied()
    }
}

impl<'a> Sampler<'a> {
    /// `checkpoint` was checked to be of this space's [`super::versions`].
    pub fn new(kind: SamplerKind, space: &'a Space, checkpoint: &Arc<Checkpoint>) -> Sampler<'a> {
        let source = match kind.who {
            Who::Model(None) => Source::Model(Arc::clone(checkpoint)),
            Who::Model(Some(control)) => Source::Model(Arc::new(checkpoint.controlled(control))),
            Who::Mutation => Source::Mutation,
        };
        Sampler { name: kind.name, space, source }
    }

    /// Draws so many, the same ones for the same seed and task; dead ends are `None`, and what is drawn twice
    /// comes twice.
    ///
    /// # Errors
    /// [`ProposeError`] where the model cannot write programs of this task.
    pub fn draw(&self, task: &Task, seed: u64, count: usize) -> Result<Vec<Option<Trace>>, ProposeError> {
        let seed = seed ^ own_seed(task);
        match &self.source {
            Source::Mutation => {
                let (untuned, _) = self.space.drive(task, &mut Untuned);
                let mut random = ChaCha8Rng::seed_from_u64(seed);
                let seeds = (0..count).map(|_| random.next_u64()).collect();
                let children = children(self.space, task, &[untuned], seeds);
                Ok(children.into_iter().map(|child| Some(child?.trace)).collect())
            }
            Source::Model(checkpoint) => {
                let written = unranked(self.space, checkpoint, seed).sample(task, count)?;
                let legal = |Written { trace, complete, .. }: Written| {
                    (complete && self.space.offers(task, &trace)).then_some(trace)
                };
                Ok(written.into_par_iter().map(legal).collect())
            }
        }
    }
}
