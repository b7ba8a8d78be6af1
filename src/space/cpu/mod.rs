//! The rules for CPUs, in the order in which they decide and rewrite.
//!
//! First of all the algorithm: the task as it is written, or another workload that gives the same output,
//! whose stages are then scheduled like any others.
//!
//! The shape of every program, from outside to inside: rows that several stages share, one by one or in
//! blocks; blocks of each spatial axis, spread over the threads where there are no rows; blocks of the
//! deepest reduction axis; register tiles inside of a block; reduction loops; and innermost the register tile
//! itself, written out, one of its axes in vectors. Accumulators live in registers from the first reduction
//! step to the last. Where the machine has tile registers, sums of products of short numbers may take a block
//! of these for their register tile.

mod algorithm;
mod convolution;
mod dot;
mod factor;
mod matrix;
mod order;
mod packing;
mod parallel;
mod row_order;
mod sizes;
mod stream;
mod tile;

use super::{Machine, Step, View, epilogue, rows};
use crate::target::Cpu;
use crate::workload::Workload;
use crate::workload::winograd::{Order, figures};

/// Rules and closing passes for CPUs.
pub(super) fn machine() -> Machine<Cpu> {
    Machine {
        rules: vec![
            Box::new(algorithm::Algorithm::Plain),
            Box::new(algorithm::Algorithm::Further),
            Box::new(algorithm::Algorithm::Strided),
            Box::new(algorithm::ProductPanels),
            Box::new(algorithm::TileRows),
            Box::new(algorithm::Groups),
            Box::new(algorithm::FlatRows),
            Box::new(epilogue::Epilogue),
            Box::new(rows::Rows),
            Box::new(dot::Dot),
            Box::new(tile::Tile),
            Box::new(order::Order),
            Box::new(packing::Pack),
            Box::new(stream::Stream),
            Box::new(factor::Factor),
            Box::new(rows::Privatise),
            Box::new(row_order::RowOrder),
            Box::new(parallel::Parallel),
        ],
        closing: vec![tails_and_vectors, clean_up],
        fits: |_, _| Ok(()),
    }
}

fn tails_and_vectors(view: &View<'_, Cpu>) -> Vec<Step> {
    let lanes = view.machine.lanes();
    let in_tiles = view.groups.iter().any(|group| group.matrix.is_some()).then_some(Step::InTiles);
    let first = [Step::DropUnitLoops, Step::PeelTails].into_iter();
    first.chain(in_tiles).chain([Step::StripMine { lanes }, Step::DropUnitLoops]).collect()
}

fn clean_up(_: &View<'_, Cpu>) -> Vec<Step> {
    vec![Step::DropSetupResults, Step::DropUnused]
}

/// Blocks for each core that the untuned program has at least, where there are enough tiles.
const BLOCKS_PER_CORE: i64 = 4;
/// Bytes of intermediates that a block of several rows leaves, at most.
const MAXIMAL_ROWS_BYTES: i64 = 1 << 22;

impl rows::RowLimits for Cpu {
    fn enough_blocks(&self) -> i64 {
        i64::from(self.cores) * BLOCKS_PER_CORE
    }

    fn near_bytes(&self) -> i64 {
        (self.l2_bytes / 2) as i64
    }

    fn maximal_bytes(&self) -> i64 {
        MAXIMAL_ROWS_BYTES
    }

    fn maximal_row_bytes(&self) -> i64 {
        i64::MAX
    }

    fn joins(&self, given: &Workload, winograd: Option<(i64, Order)>) -> bool {
        let figures = winograd.and_then(|(outputs, _)| figures(given, outputs));
        figures.is_none_or(|of| convolution::rows_join(&of, self))
    }
}
