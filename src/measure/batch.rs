//! Programs that are measured together, and their way through a [`Measurer`].

use super::parent::{MeasureError, Measurer};
use crate::outcome::Outcome;
use crate::space::Trace;
use crate::target::Task;

/// Programs of a task that are measured together, one after the other.
#[derive(Clone, PartialEq, Debug)]
pub struct Batch {
    pub task: Task,
    pub traces: Vec<Trace>,
    pub mode: Mode,
    /// The fastest program known, and its nanoseconds: the others are timed beside it.
    pub best: Option<(Trace, u64)>,
}

/// How the programs of a batch are measured.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// All of them.
    Each,
    /// One after the other up to the first that is correct.
    FirstCorrect,
    /// In turn, round by round, so that their times may be compared.
    Finals,
}

impl Mode {
    pub const ALL: [Mode; 3] = [Mode::Each, Mode::FirstCorrect, Mode::Finals];

    /// As it is spelled in texts and tables.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Each => "each",
            Mode::FirstCorrect => "first-correct",
            Mode::Finals => "finals",
        }
    }

    pub fn from_name(name: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// Programs are compiled ahead so many at a time: their code waits in memory.
const AHEAD: usize = 64;

/// A batch that is being measured.
#[derive(Debug)]
pub struct Running {
    batch: Batch,
    /// Of the next program.
    next: usize,
    best: Option<(Trace, u64)>,
    /// Outcomes that are there already.
    ready: Option<std::vec::IntoIter<Outcome>>,
}

impl Running {
    pub fn new(batch: Batch) -> Running {
        Running { next: 0, best: batch.best.clone(), ready: None, batch }
    }

    pub fn task(&self) -> &Task {
        &self.batch.task
    }

    /// The number of the program that is measured next, from 0; `None` where the batch is done.
    pub fn upcoming(&self) -> Option<usize> {
        let suffices = self.batch.mode == Mode::FirstCorrect && self.best.is_some();
        (self.next < self.batch.traces.len() && !suffices).then_some(self.next)
    }

    /// Has the worker begin with what comes before the first program is measured, and returns meanwhile.
    pub fn begin(&self, measurer: &mut Measurer) {
        let Batch { task, traces, mode, .. } = &self.batch;
        let compiled = match mode {
            Mode::Each => AHEAD,
            Mode::FirstCorrect => 1,
            // these are compiled when their turn comes
            Mode::Finals => 0,
        };
        measurer.begin(task, &traces[..traces.len().min(compiled)]);
    }

    /// Measures the next program: its number and outcome, `None` where the batch is done.
    ///
    /// # Errors
    /// As [`Measurer::measure`].
    pub fn step(&mut self, measurer: &mut Measurer) -> Result<Option<(usize, Outcome)>, MeasureError> {
        let Some(number) = self.upcoming() else { return Ok(None) };
        let Batch { task, traces, mode, .. } = &self.batch;
        let outcome = match mode {
            Mode::Finals => {
                if self.ready.is_none() {
                    self.ready = Some(measurer.finals(task, traces)?.into_iter());
                }
                let missing = || MeasureError::Task { detail: "not as many outcomes as programs".into() };
                self.ready.as_mut().and_then(Iterator::next).ok_or_else(missing)?
            }
            Mode::Each | Mode::FirstCorrect => {
                // what is not measured unless something fails is not compiled ahead
                if *mode == Mode::Each && number % AHEAD == 0 {
                    measurer.compile_ahead(task, &traces[number..traces.len().min(number + AHEAD)])?;
                }
                let best = self.best.as_ref().map(|(trace, ns)| (trace, *ns));
                measurer.measure(task, &traces[number], best)?
            }
        };
        self.next += 1;
        if let Some(ns) = outcome.best_ns()
            && self.best.as_ref().is_none_or(|(_, best)| ns < *best)
        {
            self.best = Some((traces[number].clone(), ns));
        }
        Ok(Some((number, outcome)))
    }
}
