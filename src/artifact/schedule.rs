//! How a task is computed: a nest, and the decisions that it comes from.

use super::error::ArtifactError;
use crate::nest::Nest;
use crate::space::{Next, Space, Trace, Untuned};
use crate::target::{Target, Task};

/// How a task is computed.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub nest: Nest,
    pub trace: Trace,
    /// The best time that was measured for this trace, in nanoseconds; `None`: never measured.
    pub best_ns: Option<u64>,
}

/// The kernels that a network shall have on one machine.
#[derive(Clone, Debug)]
pub struct Version<'a> {
    pub target: &'a Target,
    /// By task.
    pub schedules: &'a [Schedule],
}

impl Schedule {
    /// What the space's rules themselves decide, without any measurement.
    ///
    /// # Errors
    /// [`ArtifactError::Internal`]: the rules' own decisions always lead to a program.
    pub fn untuned(space: &Space, task: &Task) -> Result<Schedule, ArtifactError> {
        let (trace, nest) = space.drive(task, &mut Untuned);
        match nest {
            Ok(nest) => Ok(Schedule { nest, trace, best_ns: None }),
            Err(reason) => Err(ArtifactError::Internal(format!("the untuned schedule of a task: {reason}"))),
        }
    }

    /// What a recorded trace stands for.
    ///
    /// # Errors
    /// [`ArtifactError::Internal`] where it does not belong to this task and space.
    pub fn recorded(
        space: &Space,
        task: &Task,
        trace: &Trace,
        best_ns: Option<u64>,
    ) -> Result<Schedule, ArtifactError> {
        let broken = |reason: String| ArtifactError::Internal(format!("a recorded schedule: {reason}"));
        match space.next(task, trace) {
            Ok(Next::Done(nest)) => Ok(Schedule { nest, trace: trace.clone(), best_ns }),
            Ok(Next::Choose(decision)) => Err(broken(format!("it lacks `{}`", decision.site))),
            Ok(Next::DeadEnd(reason)) => Err(broken(reason.to_string())),
            Ok(Next::Defect(defect)) => Err(broken(defect.to_string())),
            Err(stale) => Err(broken(stale.to_string())),
        }
    }
}
