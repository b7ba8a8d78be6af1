//! Who writes candidates: proposers behind one interface.
//!
//! A [`Proposer`] is given a task and what was measured of it so far, and names finished traces that are
//! worth measuring. It measures nothing itself. The seed that it was made with decides everything it draws.

mod checkpoint;
mod evolution;
#[cfg(test)]
pub(crate) mod example;
mod lm;
mod mutation;
mod pool;
mod random;
mod sequence;
pub mod train;
mod writing;

pub use checkpoint::{load_checkpoint, shipped_checkpoint};
pub use evolution::Evolution;
pub use lm::{Ingredients, LanguageModel, Written, versions};
pub use random::Random;

use thiserror::Error;

use crate::rank::RankError;
pub use crate::record::History;
use crate::space::Trace;
use crate::target::Task;

/// A finished trace that is worth measuring.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    pub trace: Trace,
    /// Natural logarithm of the probability that the proposer gave it, where it has one.
    pub log_likelihood: Option<f32>,
    /// The predicted quality, higher is better, where there is a prediction; comparable within a task only.
    pub value: Option<f32>,
}

/// What a proposer came up with.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Proposal {
    /// Distinct, not measured before, best first; fewer than asked where the space holds no more or they are
    /// not found.
    pub candidates: Vec<Candidate>,
    /// Traces drawn that no program stands behind.
    pub dead_ends: u64,
    /// All traces drawn.
    pub drawn: u64,
}

/// Why nothing can be proposed.
#[derive(Debug, Error)]
pub enum ProposeError {
    /// Bad input or limit: the model cannot be used for this task.
    #[error("the model cannot write programs for this task: {0}")]
    Model(String),
    /// Our bug: the space and its own decisions do not fit together.
    #[error("the space contradicts itself: {0}")]
    Space(#[from] crate::space::Stale),
    #[error(transparent)]
    Rank(#[from] RankError),
}

/// Names candidates for a task.
pub trait Proposer {
    /// As records name it: `lm`, `random`, ...
    fn name(&self) -> &str;

    /// Up to `count` candidates that `history` does not hold.
    ///
    /// # Errors
    /// [`ProposeError`] where no candidate can be written at all.
    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError>;
}

/// Names a single program, before anything was measured: what a user gets who cannot wait for measurements.
pub struct Greedy<P>(pub P);

impl<P: Proposer> Proposer for Greedy<P> {
    fn name(&self) -> &str {
        "greedy"
    }

    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        if history.is_empty() { self.0.propose(task, history, count.min(1)) } else { Ok(Proposal::default()) }
    }
}
