//! Pure rewrites: each takes a nest and returns one that computes the same.
//!
//! They take it by value, so that what stays as it is moves over and nothing is copied: a search builds
//! hundreds of programs for each that it measures. Who still needs the nest as it was clones it.
//!
//! Loops are named by their variable. A rewrite that does not fit is refused with a reason. [`loops`] shapes
//! loops, [`accumulate`] moves reductions into registers and fuses what follows them, [`factor`] multiplies
//! once by what the steps of a sum share, [`pack`] copies operands into the order in which they are read,
//! [`rows`] joins the loops of several stages, [`place`] moves results, [`stages`] copies ahead,
//! [`persistent`] deals the steps of all results out evenly, [`peel`] makes ragged inner loops constant, and
//! [`strip`] and [`tiles`] cut them into registers.

pub mod accumulate;
pub mod buffers;
pub mod factor;
pub mod loops;
pub mod pack;
pub mod peel;
pub mod persistent;
pub mod place;
pub mod rows;
pub mod stages;
pub mod strip;
pub mod threads;
pub mod tiles;
mod tree;

pub(crate) use tree::{
    change_accesses, change_exprs, find_loop, find_loop_mut, find_place, for_each_expr, for_each_loop_mut,
    for_each_stmt, replace_vars,
};

use thiserror::Error;

use crate::workload::{TensorId, Var};

/// Why a rewrite does not fit a nest, which is then lost. It is the fault of whoever asked for it: behind the
/// trace of a rule it is our bug, since rules offer what fits; in a schedule that a person wrote, it is
/// theirs.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Refusal {
    #[error("no loop over v{}", .0.0)]
    NoLoop(Var),
    #[error("the loops from v{} on are not perfectly nested", .0.0)]
    NotPerfect(Var),
    #[error("the bounds of v{} depend on v{}", .inner.0, .outer.0)]
    BoundsDepend { inner: Var, outer: Var },
    #[error("the loop over v{} has no constant number of iterations", .0.0)]
    NotConstant(Var),
    #[error("the loop over v{} is not serial", .0.0)]
    NotSerial(Var),

    /// Of [`Nest::reorder`](super::Nest::reorder).
    #[error("no loops to reorder")]
    NothingToReorder,

    /// Of [`Nest::join`](super::Nest::join).
    #[error("the loops over v{} and v{} have other bounds", .first.0, .other.0)]
    BoundsDiffer { first: Var, other: Var },
    /// Of [`Nest::join`](super::Nest::join).
    #[error("the loops do not follow that over v{} one after the other", .0.0)]
    NotInARow(Var),

    /// Of [`Nest::privatise`](super::Nest::privatise).
    #[error("buffer b{} is not in the workspace", .0.0)]
    NotWorkspace(TensorId),
    /// Of [`Nest::privatise`](super::Nest::privatise).
    #[error("buffer b{} is accessed outside of its row", .0.0)]
    OutsideOfRow(TensorId),

    /// Of [`Nest::accumulate`](super::Nest::accumulate).
    #[error("the reduction into b{} has both lanes and blocks", .0.0)]
    LanesOfBlocks(TensorId),

    /// Of [`Nest::factor`](super::Nest::factor).
    #[error("what is added up over v{} is no product with a factor that stays the same", .0.0)]
    NoFactor(Var),

    /// Of [`Nest::pack`](super::Nest::pack). Reads are counted from 0.
    #[error("buffer b{} has no read number {which}", .buffer.0)]
    NotRead { buffer: TensorId, which: usize },
    /// Of [`Nest::pack`](super::Nest::pack) and [`Nest::into_setup`](super::Nest::into_setup).
    #[error("what is read of b{} depends on numbers that only a run knows", .0.0)]
    OfRun(TensorId),
    /// Of [`Nest::pack`](super::Nest::pack), as are the next two.
    #[error("an index of b{} is divided: what is read is no box", .0.0)]
    BoxOfDivision(TensorId),
    #[error("the box of b{} leaves 64 bits", .0.0)]
    BoxTooLarge(TensorId),
    #[error("the guard of b{} is not its own border: what is read is no box", .0.0)]
    BoxOfGuard(TensorId),

    /// Of [`Nest::into_setup`](super::Nest::into_setup).
    #[error("the loop over v{} reads b{}, which is unknown when the network is compiled", .stage.0, .buffer.0)]
    UnknownInSetup { stage: Var, buffer: TensorId },

    /// Of [`Nest::relayout`](super::Nest::relayout) and
    /// [`Nest::in_core_matrices`](super::Nest::in_core_matrices).
    #[error("buffer b{} is no scratch memory", .0.0)]
    NotScratch(TensorId),
    /// Of [`Nest::relayout`](super::Nest::relayout).
    #[error("the groups do not name each dimension of b{} once", .0.0)]
    DimensionGroups(TensorId),
    /// Of [`Nest::in_core_matrices`](super::Nest::in_core_matrices).
    #[error("the last two dimensions of b{} are not whole core matrices", .0.0)]
    PartOfCoreMatrix(TensorId),

    /// Of [`Nest::pipeline`](super::Nest::pipeline), as are the next five.
    #[error("the loop over v{} needs one stage at least", .0.0)]
    NoStages(Var),
    #[error("buffer b{} is not shared by the threads of a block", .0.0)]
    NotBlockShared(TensorId),
    #[error("the loop over v{} does not begin with copies into the buffers", .0.0)]
    NoCopiesAtStart(Var),
    #[error("the loop over v{} writes to a copy that it computes with", .0.0)]
    CopyOverwritten(Var),
    #[error("the loop over v{} copies what it writes", .0.0)]
    CopyOfResults(Var),
    #[error("a copy of the loop over v{} is used outside of it", .0.0)]
    CopyUsedElsewhere(Var),

    /// Of [`Nest::persistent`](super::Nest::persistent), as are the next two.
    #[error("the steps of v{} cannot be dealt out to {workers} workers", .steps.0)]
    NothingToDealOut { steps: Var, workers: i64 },
    #[error("the loop over v{} does not stand in blocks", .0.0)]
    StepsOutsideBlocks(Var),
    #[error("the blocks around v{} do more than to start one accumulator, and to take its values at last", .0.0)]
    NotOneAccumulator(Var),
}
