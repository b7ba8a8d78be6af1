//! A search method: what the command line, help and logs need to know of it, and how its proposers are made.

use std::fmt;
use std::sync::Arc;

use super::{METHODS, ProposeError, Proposer};
use crate::model::{Checkpoint, ModelControl};
use crate::space::Space;
use crate::target::Task;

/// An entry of the registry, [`METHODS`]. All that depends on which methods there are follows from the
/// entries: the values of `--method` and `--methods`, their help, what needs a checkpoint.
pub struct Method {
    /// As the command line spells it, and as records and logs name it.
    pub name: &'static str,
    /// One line for people, without a full stop.
    pub about: &'static str,
    /// Whether what was measured changes what it proposes.
    pub learns: bool,
    pub purpose: Purpose,
    pub make: Make,
}

/// Who chooses a method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Everybody who searches.
    Search,
    /// `compare` alone: a method with something taken away, or a single program.
    Comparison,
}

/// Makes a proposer for a seed, which decides everything that the proposer draws. The variant says what the
/// method needs.
#[derive(Clone, Copy)]
pub enum Make {
    /// The space.
    Plain(MakePlain),
    /// The space, and the weights of a checkpoint.
    Pretrained(MakePretrained),
}

pub type MakePlain = for<'a> fn(&'a Space, u64) -> Made<'a>;
pub type MakePretrained = for<'a> fn(&'a Space, &'a Checkpoint, u64) -> Made<'a>;
pub type Made<'a> = Result<Box<dyn Proposer + 'a>, ProposeError>;

impl Method {
    /// The method of a name.
    pub fn named(name: &str) -> Option<&'static Method> {
        METHODS.iter().find(|method| method.name == name).copied()
    }

    /// Whether it asks a checkpoint.
    pub fn needs_checkpoint(&self) -> bool {
        matches!(self.make, Make::Pretrained(_))
    }
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A method with its space and, if it asks one, its checkpoint. Makes a proposer for each seed.
pub struct Searcher<'a> {
    /// The method's, unless it was given another.
    pub name: String,
    space: &'a Space,
    make: Supplied,
}

/// A [`Make`] with what it needs beside the space.
enum Supplied {
    Plain(MakePlain),
    Pretrained(MakePretrained, Arc<Checkpoint>),
}

impl<'a> Searcher<'a> {
    /// Asks for the checkpoint only where the method does. It was checked to be of this space's
    /// [`super::versions`].
    ///
    /// # Errors
    /// As `checkpoint`.
    pub fn new<E>(
        method: &Method,
        space: &'a Space,
        checkpoint: impl FnOnce() -> Result<Arc<Checkpoint>, E>,
    ) -> Result<Searcher<'a>, E> {
        let make = match method.make {
            Make::Plain(make) => Supplied::Plain(make),
            Make::Pretrained(make) => Supplied::Pretrained(make, checkpoint()?),
        };
        Ok(Searcher { name: method.name.to_string(), space, make })
    }

    /// Under another name: the same method with another checkpoint.
    #[must_use]
    pub fn called(self, name: &str) -> Searcher<'a> {
        Searcher { name: name.to_string(), ..self }
    }

    /// The same method, asked with a control of its checkpoint; `None` where it asks none.
    pub fn controlled(&self, control: ModelControl) -> Option<Searcher<'a>> {
        let Supplied::Pretrained(make, checkpoint) = &self.make else { return None };
        let make = Supplied::Pretrained(*make, Arc::new(checkpoint.controlled(control)));
        Some(Searcher { name: control.of(&self.name), space: self.space, make })
    }

    /// `None` where the method asks none.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        match &self.make {
            Supplied::Plain(_) => None,
            Supplied::Pretrained(_, checkpoint) => Some(checkpoint),
        }
    }

    /// The proposer of a seed.
    ///
    /// # Errors
    /// [`ProposeError`] where the method cannot be made ready.
    pub fn proposer(&self, seed: u64) -> Made<'_> {
        match &self.make {
            Supplied::Plain(make) => make(self.space, seed),
            Supplied::Pretrained(make, checkpoint) => make(self.space, checkpoint, seed),
        }
    }

    /// The proposer of a task among many: each draws programs of its own.
    ///
    /// # Errors
    /// As [`Searcher::proposer`].
    pub fn proposer_of(&self, task: &Task, seed: u64) -> Made<'_> {
        self.proposer(seed ^ own_seed(task))
    }
}

/// What a task adds to a seed.
pub(super) fn own_seed(task: &Task) -> u64 {
    u64::from_str_radix(&task.workload.hash()[..12], 16).unwrap_or(0)
}
