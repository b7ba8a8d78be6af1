//! Schedules: what a trace says, as a program that turns the plain reading of a workload into a nest.
//!
//! A [`Schedule`] is a list of [`Step`]s, each a named operation with named arguments. It prints, a line for
//! a step, and parses. Loops are named as they are in the nest that is being made, so that a schedule and the
//! nest at any point of its making can be read side by side:
//!
//! ```text
//! split s0b by 16 into s0bo s0bi
//! split s0bo by 4 into s0boo s0boi
//! vectorize s0bi
//! reorder s0boo s0boi s0bi
//! parallel s0boo
//! ```
//!
//! [`Program::apply`] executes one step. Rules return only steps that fit; one that does not is a [`Defect`]
//! of the rule, or the mistake of whoever wrote the schedule, and never a dead end of the search.

mod apply;
mod fetch;
mod parse;
mod print;
mod step;

pub use apply::{Defect, Problem, Program};
pub use parse::{ScheduleError, VERBS};
pub use step::{Copy, Level, LoopName, Phase, Reads, Step};

/// Steps, in the order in which they are applied.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Schedule(pub Vec<Step>);

impl Schedule {
    /// Puts steps of a later phase behind those of an earlier one; within a phase they stay in order.
    #[must_use]
    pub fn in_phases(mut self) -> Schedule {
        self.0.sort_by_key(Step::phase);
        self
    }
}
