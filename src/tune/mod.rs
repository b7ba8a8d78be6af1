//! The loop: propose, measure, record, and spend the next trials where they promise most.
//!
//! [`tune`] works on a list of [`Job`]s until a [`Budget`] is used up or it is told to stop. Every outcome is
//! in the store before the next candidate is measured, so a run may be killed and taken up again at any
//! moment. A [`Runner`] measures: this machine ([`Local`]), or many ([`Fleet`]), for which several batches
//! are in flight at a time. All commands that search go through it: [`compare`] runs it for several methods
//! and seeds on the same tasks, [`report`] draws what came out, and a [`plan`] holds programs that were
//! written elsewhere.

pub mod bootstrap;
pub mod compare;
pub mod plan;
pub mod pools;
pub mod replay;
pub mod report;
mod improvement;
mod lighter;
mod run;
mod runner;
mod scheduler;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use thiserror::Error;

use crate::fleet::FleetError;
use crate::measure::MeasureError;
use crate::outcome::{Failure, Outcome};
use crate::propose::{History, ProposeError};
use crate::record::StoreError;
use crate::space::Trace;
use crate::target::Task;

pub use run::tune;
pub use runner::{Answer, BatchId, Fleet, Local, Runner, RunnerError};

/// A task to be tuned.
#[derive(Clone, Debug)]
pub struct Job {
    /// A name for people; the task's hash is its identity.
    pub name: String,
    pub task: Task,
    /// How often the network runs it.
    pub weight: f64,
}

/// When to stop. What is `None` does not limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    /// Measured candidates of each task, those found in the store included.
    pub trials_per_task: Option<u64>,
    /// Measured candidates of all tasks together, those found in the store included; which tasks they are of
    /// is decided on the way, by what each promises.
    pub of_all_tasks: Option<u64>,
    /// Candidates measured in this run.
    pub trials: Option<u64>,
    /// Wall clock of this run.
    pub time: Option<Duration>,
    /// Every task has a first program measured, however long that takes: without one, a network cannot be
    /// compiled.
    pub first_of_each: bool,
    /// The part of the network's time that a further second has to be expected to save.
    pub least_gain: Option<f64>,
}

/// How the loop works.
#[derive(Clone, Debug)]
pub struct Settings {
    pub budget: Budget,
    pub batches: Batches,
    pub first: First,
    /// The most of the fastest programs of a task that are measured once more in turn, with the untuned one,
    /// before the winner is named; 0: the fastest is the winner.
    pub finalists: usize,
    /// The most finalists beside these: programs that read fewer bytes of constants than all that are faster,
    /// which may win where constants are far away.
    pub lighter: usize,
    /// Whether tasks that differ in numbers alone, such as scales, take over what is found for the first of
    /// them.
    pub hands_on: bool,
    /// Who proposes. Kept in the records.
    pub method: String,
    /// Kept in the records.
    pub seed: u64,
}

/// What is measured of a task of which nothing is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum First {
    /// The untuned program, which the rules write: the result is never slower than it.
    Untuned,
    /// The same; but where the budget is a single program of each task, the one that the method is sure is
    /// faster ([`Proposer::sure`](crate::propose::Proposer::sure)), if there is one. Which of the two is
    /// decided before anything is measured. The gate checks the one program; where it refuses the method's,
    /// the untuned program is measured in its place.
    Sure,
    /// What the method proposes.
    Proposed,
}

/// What the loop reports while it runs.
#[derive(Debug)]
pub enum Event<'a> {
    Measured {
        job: usize,
        trace: &'a Trace,
        outcome: &'a Outcome,
        /// All that was measured of this job.
        history: &'a History,
        progress: RunProgress,
    },
    /// The space of a task holds no further candidate, or none is found.
    Exhausted { job: usize },
    /// Nothing of a task can be measured: it has no reference result, or that takes too long or too much
    /// memory.
    Unmeasurable { job: usize, detail: &'a str },
    /// The winners are measured once more.
    Finals { job: usize },
    /// Nothing has come lately, where programs are measured elsewhere.
    Waiting,
}

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunProgress {
    /// Candidates measured in this run.
    pub trials: u64,
    /// Candidates that the budget allows, where it counts them.
    pub of_trials: Option<u64>,
    pub elapsed: Duration,
    /// Until the budget is used up, at the present rate.
    pub left: Option<Duration>,
}

/// Whether to go on. What was measured is kept in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    Continue,
    Stop,
}

/// What a run did. Serialises to the summary line of `tune --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub tasks: usize,
    /// Candidates measured.
    pub trials: u64,
    /// Of these: compiled, correct and timed.
    pub valid: u64,
    /// Of these: not timed, by cause.
    pub failed: BTreeMap<Failure, u64>,
    pub seconds: f64,
    pub trials_per_s: f64,
    pub interrupted: bool,
    /// Whether it ended since a further second was expected to save less than the budget asks for.
    pub enough: bool,
    #[serde(skip)]
    pub jobs: Vec<JobReport>,
}

/// What became of one job.
#[derive(Clone, Debug)]
pub struct JobReport {
    /// The best program and its nanoseconds; `None` where nothing correct was found.
    pub best: Option<(Trace, u64)>,
    /// Whether that is the time in finals, and not that of its fastest run.
    pub is_final: bool,
    /// Nanoseconds of the program that the rules write without measurement.
    pub untuned_ns: Option<u64>,
    /// Candidates measured in this run.
    pub trials: u64,
    /// Why nothing of the task can be measured, where that is so.
    pub unmeasurable: Option<String>,
}

/// Why a run ended early. What was measured is in the store.
#[derive(Debug, Error)]
pub enum TuneError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("task {job}: {source}")]
    Measure { job: String, source: MeasureError },
    /// The fleet cannot be worked with.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    #[error("task {job}: {source}")]
    Propose { job: String, source: ProposeError },
}

/// The number of candidates of a task that are proposed at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batches {
    pub least: usize,
    pub most: usize,
}

impl Batches {
    /// For a search: what the first few tell is made use of soon.
    pub fn growing(most: usize) -> Batches {
        Batches { least: 3, most }
    }

    /// Candidates to propose at once after `measured` ones: half as many, within the bounds. So
    /// proposing takes a small share of a long search, and a search with a large budget starts as one with a
    /// small budget does.
    pub fn after(self, measured: usize) -> usize {
        (measured / 2).max(self.least).min(self.most.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::Batches;

    #[test]
    fn batches_grow_with_what_is_known() {
        let sizes: Vec<usize> =
            [0, 3, 6, 9, 13, 19, 28, 42, 1000].map(|measured| Batches::growing(16).after(measured)).to_vec();
        assert_eq!(sizes, [3, 3, 3, 4, 6, 9, 14, 16, 16]);
        assert_eq!([(0, 1), (0, 0), (50, 2)].map(|(measured, most)| Batches::growing(most).after(measured)), [1, 1, 2]);
        assert_eq!([0, 20, 30, 50].map(|measured| Batches { least: 12, most: 16 }.after(measured)), [12, 12, 15, 16]);
    }
}
