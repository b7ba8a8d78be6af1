//! Who writes candidates: search methods behind one interface.
//!
//! A [`Proposer`] is given a task and what was measured of it so far, and names finished traces that are
//! worth measuring. It measures nothing itself. The seed that it was made with decides everything it draws.
//! A [`Method`] is an entry of the registry, [`METHODS`], which says how its proposers are made. A new method
//! is a file of this folder, and its line in the registry.

mod ablations;
mod ansor;
mod boosted;
mod checkpoint;
mod costs;
mod droplet;
mod dynamics;
mod evolution;
#[cfg(test)]
pub(crate) mod example;
mod harl;
mod learned;
mod learning;
mod lm;
mod metaschedule;
mod method;
mod mutation;
mod pool;
mod pruner;
mod random;
mod replay;
mod roller;
mod sampler;
mod sequence;
#[cfg(test)]
pub(crate) mod tests;
mod tlp;
pub mod train;
mod transfer;
mod typical;
mod world;
mod writing;

pub use checkpoint::{Loaded, Notice, load_checkpoint, shipped_checkpoint};
pub use droplet::Droplet;
pub use dynamics::{TrainedWorld, imagined, train_world, world_groups, world_of, world_spaces};
pub use evolution::Evolution;
pub use learned::learned;
pub use learning::learned_order;
pub use lm::{Ingredients, LanguageModel, Written, liked_together, versions};
pub use method::{Made, Make, MakePlain, MakePretrained, Method, Purpose, Searcher};
pub use mutation::drafted;
pub use random::Random;
pub use sampler::{SAMPLERS, Sampler, SamplerKind};
pub use transfer::class_of;

use thiserror::Error;

use crate::nest::Nest;
use crate::rank::RankError;
pub use crate::record::History;
use crate::space::{NoProgram, Trace};
use crate::target::Task;

/// All search methods, in the order in which help lists them.
pub static METHODS: &[&Method] = &[
    &lm::METHOD,
    &ablations::GREEDY,
    &random::METHOD,
    &evolution::METHOD,
    &evolution::GUIDED,
    &droplet::METHOD,
    &droplet::STORM,
    &transfer::METHOD,
    &ansor::METHOD,
    &metaschedule::METHOD,
    &roller::METHOD,
    &pruner::METHOD,
    &harl::METHOD,
    &tlp::METHOD,
    &world::METHOD,
    &ablations::UNTRAINED,
    &ablations::NO_WANT,
    &ablations::NO_WORKLOAD,
    &ablations::VALUE_HEAD,
    &ablations::NO_RANKING,
    &ablations::NO_NEIGHBOURS,
    &ablations::NO_UNTUNED,
    &ablations::MUTATION,
    &ablations::NOTHING_SHOWN,
    &ablations::NO_WORLD,
    &ablations::NOT_CONTINUED,
    &ablations::WORLD_END,
];

/// What searches where nobody chose a method.
pub static LM: &Method = &lm::METHOD;
/// The same where the model has not learned from such machines.
pub static EVOLUTION: &Method = &evolution::METHOD;

/// The nest of a candidate. A dead end has none; nor has a program that a rule is at fault for, which is
/// told.
fn usable(trace: &Trace, nest: Result<Nest, NoProgram>) -> Option<Nest> {
    if let Err(NoProgram::Defect(defect)) = &nest {
        tracing::error!("a rule is at fault: {defect}; the decisions are {trace}");
    }
    nest.ok()
}

/// A finished trace that is worth measuring.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    pub trace: Trace,
    /// Natural logarithm of the probability that the proposer gave it, where it has one.
    pub log_likelihood: Option<f32>,
    /// The predicted quality, higher is better, where there is a prediction; comparable within a task only.
    pub value: Option<f32>,
}

impl Candidate {
    /// Of which nothing is predicted.
    pub fn new(trace: Trace) -> Candidate {
        Candidate { trace, log_likelihood: None, value: None }
    }
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
    /// Our bug: a table that is built in cannot be read.
    #[error("the table of good programs cannot be read: {0}")]
    Table(String),
}

/// Names candidates for a task.
pub trait Proposer {
    /// Up to `count` candidates that `history` does not hold.
    ///
    /// # Errors
    /// [`ProposeError`] where no candidate can be written at all.
    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError>;

    /// A program that is faster than the one of the rules ([`Untuned`](crate::space::Untuned)), as far as can
    /// be told before anything is measured: what is shipped where a single program is measured. `None` where
    /// the method cannot tell, or is not sure.
    ///
    /// # Errors
    /// As [`Proposer::propose`].
    fn sure(&mut self, _task: &Task) -> Result<Option<Candidate>, ProposeError> {
        Ok(None)
    }

    /// Spends less on each batch from now on, where that gains more than it loses: for many tasks, each of
    /// which has its share of the time.
    fn economize(&mut self) {}
}
