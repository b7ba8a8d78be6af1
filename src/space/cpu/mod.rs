//! The rules for CPUs, in the order in which they decide and rewrite.
//!
//! First of all the algorithm: the task as it is written, or another workload that gives the same output, whose stages are then scheduled
//! like any others.
//!
//! The shape of every program, from outside to inside: rows that several stages share, one by one or in blocks; blocks of each
//! spatial axis, spread over the threads where there are no rows; blocks of the deepest reduction axis; register tiles inside of a block;
//! reduction loops; and innermost the register tile itself, written out, one of its axes in vectors. Accumulators live in registers
//! from the first reduction step to the last.

mod algorithm;
mod epilogue;
mod order;
mod packing;
mod parallel;
mod rows;
mod tile;

use std::borrow::Cow;

use super::{Rule, Word, Words};

pub(super) fn rules() -> Vec<Box<dyn Rule>> {
    vec![
        Box::new(algorithm::Algorithm),
        Box::new(epilogue::Epilogue),
        Box::new(rows::Rows),
        Box::new(tile::Tile),
        Box::new(order::Order),
        Box::new(packing::Pack),
        Box::new(rows::Privatise),
        Box::new(parallel::Parallel),
    ]
}

/// `verb group axis`, as in `tile s0 b`.
fn site<const N: usize>(verb: &'static str, of: [Cow<'static, str>; N]) -> Words {
    Words(std::iter::once(Word::from(verb)).chain(of.into_iter().map(Word::Name)).collect())
}

/// A value of one name.
fn name(name: impl Into<Cow<'static, str>>) -> Words {
    Words(vec![Word::Name(name.into())])
}
