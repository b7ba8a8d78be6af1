//! Pure rewrites: each takes a nest and returns one that computes the same.
//!
//! They take it by value, so that what stays as it is moves over and nothing is copied: a search builds
//! hundreds of programs for each that it measures. Who still needs the nest as it was clones it.
//!
//! Loops are named by their variable. A rewrite that does not fit is refused with a reason. [`loops`] shapes
//! loops, [`accumulate`] moves reductions into registers and fuses what follows them, [`pack`] copies
//! operands into the order in which they are read, [`rows`] joins the loops of several stages, [`place`]
//! moves results, [`stages`] copies ahead, [`persistent`] deals the steps of all results out evenly, and
//! [`peel`] makes ragged inner loops constant.

pub mod accumulate;
pub mod buffers;
pub mod loops;
pub mod pack;
pub mod peel;
pub mod persistent;
pub mod place;
pub mod rows;
pub mod stages;
pub mod threads;
mod tree;

pub(crate) use tree::{
    change_accesses, change_exprs, find_loop, find_loop_mut, find_place, for_each_expr, for_each_stmt, replace_vars,
};

use thiserror::Error;

use crate::workload::Var;

/// Why a rewrite does not fit. The space offers only rewrites that fit, so one of these behind a finished
/// trace is our bug.
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
    #[error("{0}")]
    Other(&'static str),
}
