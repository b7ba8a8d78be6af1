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

use super::{Rule, Words};

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
fn site(words: &[&str]) -> Words {
    Words(words.iter().map(|w| super::Word::Name(w.to_string().into())).collect())
}

/// A value of one or more names.
fn name(words: &str) -> Words {
    Words(words.split(' ').map(|w| super::Word::Name(w.to_string().into())).collect())
}

/// Numbers as candidates.
fn numbers(values: &[i64]) -> Vec<Words> {
    values.iter().map(|v| Words::from(v.unsigned_abs())).collect()
}

/// The chosen number.
fn number(value: &Words) -> i64 {
    value.as_number().and_then(|n| i64::try_from(n).ok()).unwrap_or(0)
}
