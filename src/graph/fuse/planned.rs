//! Programs become networks: as they are cut by default, as a plan says, or as somebody decides on the way.

use super::plan::{Follow, Plan, Planner};
use super::{PartitionError, network, prepare};
use crate::graph::{Network, Program};
use crate::trace::Tape;

/// Cuts a program into distinct tasks, and calls of them that bind buffers. All decisions have their
/// defaults.
///
/// # Errors
/// [`PartitionError`] where the program is not well formed; every well-formed program can be cut.
pub fn partition(program: &Program) -> Result<Network, PartitionError> {
    partition_as(program, &Plan::default())
}

/// The same as a plan says. What was decided, with all alternatives, is [`Network::planned`].
///
/// # Errors
/// [`PartitionError::Stale`] where the plan decides what this program does not ask, or as it does not offer.
pub fn partition_as(program: &Program, plan: &Plan) -> Result<Network, PartitionError> {
    let mut follow = Follow::new(plan);
    let network = partition_with(program, Tape::drive(&mut follow))?;
    follow.finish()?;
    Ok(network)
}

/// The same as a tape decides: one that a policy drives, or one that replays all decisions.
///
/// # Errors
/// [`PartitionError::Open`] where a replayed tape ends before all is decided, [`PartitionError::Stale`] where
/// it decides something else.
pub fn partition_with(program: &Program, mut tape: Tape<'_>) -> Result<Network, PartitionError> {
    prepare::check(program)?;
    let mut planner = Planner::new(&mut tape);
    let mut network = network::assemble(program, &mut planner)?;
    network.planned = planner.planned;
    tape.finish()?;
    Ok(network)
}
