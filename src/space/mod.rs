//! The search space: which decisions lead from a task to a nest.
//!
//! [`Space::next`] is the heart of Tilescribe: a pure function from a task and a prefix of decisions to what may follow.
//! Everything else is built around it. Nothing in here does IO, reads a clock, draws a random number or depends on hash order.

mod trace;

pub use trace::{Choice, Decision, ParseError, Policy, Reason, Stale, Stop, Tape, Trace, Word, Words};

use crate::nest::Nest;
use crate::target::Task;

/// A rule decides one aspect of a program: it asks the tape, and rewrites the nest accordingly.
pub struct Space {}

/// What follows a prefix.
#[derive(Clone, Debug)]
pub enum Next {
    Choose(Decision),
    Done(Nest),
    /// No program follows; data, not an error.
    DeadEnd(Reason),
}

impl Space {
    /// The rules that Tilescribe ships.
    pub fn standard() -> Space {
        Space {}
    }

    /// What follows `prefix`? Pure: equal inputs give an equal answer, on every machine.
    ///
    /// # Errors
    /// [`Stale`] where the prefix holds a decision that this space does not offer for this task.
    pub fn next(&self, task: &Task, prefix: &Trace) -> Result<Next, Stale> {
        let mut tape = Tape::replay(prefix);
        match self.apply(task, &mut tape) {
            Ok(nest) => tape.finish().map(|_| Next::Done(nest)),
            Err(Stop::Choose(decision)) => Ok(Next::Choose(decision)),
            Err(Stop::DeadEnd(reason)) => Ok(Next::DeadEnd(reason)),
            Err(Stop::Stale(stale)) => Err(stale),
        }
    }

    /// Takes all decisions by `policy`, in one pass. The trace is what was decided, up to the dead end if there is one.
    pub fn drive(&self, task: &Task, policy: &mut dyn Policy) -> (Trace, Result<Nest, Reason>) {
        let mut tape = Tape::drive(policy);
        let result = self.apply(task, &mut tape);
        let trace = tape.taken().clone();
        match result {
            Ok(nest) => (trace, Ok(nest)),
            Err(Stop::DeadEnd(reason)) => (trace, Err(reason)),
            Err(Stop::Choose(_) | Stop::Stale(_)) => unreachable!("a driven tape answers every decision"),
        }
    }

    /// Names the rules and their versions; records and checkpoints of another version are refused.
    pub fn version(&self) -> String {
        "0".into()
    }

    fn apply(&self, task: &Task, _tape: &mut Tape<'_>) -> Result<Nest, Stop> {
        Ok(Nest::naive(&task.workload))
    }
}
