//! The rules for GPUs, in the order in which they decide and rewrite.
//!
//! The shape of every program, from outside to inside: a grid of blocks over the rows that several stages
//! share, or over the blocks of each spatial axis; in a block, for each stage, blocks of the reduction axes,
//! before which the operands that are worth it are copied into shared memory, several blocks ahead where that
//! is worth it; threads along any axis, the reduction's too, whose results are combined then; and innermost
//! what a thread computes in registers: rounds of tiles, a block's threads apart, so that neighbours access
//! neighbours. A deep reduction may be cut into parts before all of that, which blocks compute side by side
//! and a grid of its own combines; or the blocks of a reduction and their steps are dealt out to as many
//! blocks as the machine holds at once, when all else is done.

mod arrange;
mod fetch;
mod limits;
mod mapping;
mod matrix;
mod persistent;
mod split;
mod stages;
mod tile;

use super::{Machine, Step, View, epilogue, rows};
use crate::target::Gpu;

/// Rules and closing passes for GPUs.
pub(super) fn machine() -> Machine<Gpu> {
    Machine {
        rules: vec![
            Box::new(split::Split),
            Box::new(epilogue::Epilogue),
            Box::new(rows::Rows),
            Box::new(tile::Tile),
            Box::new(fetch::Fetches),
            Box::new(stages::Stages),
            Box::new(persistent::Persistent),
            Box::new(rows::Privatise),
        ],
        closing: vec![threads_and_tails, clean_up],
        fits: limits::check,
    }
}

fn threads_and_tails(_: &View<'_, Gpu>) -> Vec<Step> {
    vec![Step::ShareInBlocks, Step::DropUnitLoops, Step::InThreads, Step::FillTails]
}

fn clean_up(_: &View<'_, Gpu>) -> Vec<Step> {
    vec![Step::DropUnused]
}

impl rows::RowLimits for Gpu {
    fn enough_blocks(&self) -> i64 {
        i64::from(self.multiprocessors)
    }

    fn near_bytes(&self) -> i64 {
        i64::from(self.shared_bytes_per_block / 4)
    }

    /// The rest is for operands, and for what threads combine.
    fn maximal_bytes(&self) -> i64 {
        i64::from(self.shared_bytes_per_block / 4 * 3)
    }

    fn maximal_row_bytes(&self) -> i64 {
        self.maximal_bytes()
    }
}
