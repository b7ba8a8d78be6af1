//! What kind of work a stage is, as far as the untuned program goes by it.

use super::limits::THREAD;
use crate::space::Group;
use crate::space::access::{Access, accesses};
use crate::space::fuse::touches;
use crate::target::Gpu;
use crate::target::gpu::WARP;
use crate::workload::{Var, Workload};

/// What the rule goes by, beside what the machine says.
struct Heuristics {
    /// Threads of a block in the untuned program.
    default_threads: i64,
    /// Threads along each side of a square of them.
    square: i64,
    /// Reductions of so many steps are worth threads of their own where there is little else to do.
    deep: i64,
}

const HEURISTICS: Heuristics = Heuristics { default_threads: 256, square: 16, deep: 64 };
/// Sides of the tile that a block computes of a contraction.
const SIDES: [i64; 3] = [128, 64, LEAST_SIDE];
/// The least of them.
const LEAST_SIDE: i64 = 32;
/// Results of the smallest of them.
pub(super) const LEAST_TILE: i64 = LEAST_SIDE * LEAST_SIDE;

/// What kind of work a stage is, as far as the untuned program goes by it.
pub(super) struct DefaultMapping {
    /// Threads that the untuned program gives each axis.
    pub threads: Vec<i64>,
    /// Tiles and rounds that it gives each spatial axis.
    pub tiles: Vec<(i64, i64)>,
    /// Whether operands are read again by several threads of a block.
    pub contracts: bool,
}

impl DefaultMapping {
    /// `in_grid`: the stage's own axes make the grid; otherwise a block holds all of it.
    pub(super) fn of(workload: &Workload, gpu: &Gpu, group: &Group, in_grid: bool) -> DefaultMapping {
        let stage = &workload.stages[group.stage];
        let reads = accesses(stage);
        let extent = |positions: &[usize]| -> i64 { positions.iter().map(|at| group.axes[*at].extent).product() };
        let (spatial, reduced) = (group.positions(false), group.positions(true));
        let (outputs, steps) = (extent(&spatial), extent(&reduced));
        let shared = shared(workload, group);
        let wanted_outputs = if in_grid { i64::from(gpu.multiprocessors) * 4 * WARP } else { 4 * WARP };
        if stage.is_reduction() && shared.len() >= 2 && outputs >= wanted_outputs && steps >= 8 {
            return DefaultMapping::of_contraction(gpu, group, shared);
        }
        // the threads go along the reduction where there is little else to do
        let lanes = (stage.is_reduction() && steps >= HEURISTICS.deep && outputs < wanted_outputs)
            .then(|| lanes(workload, group, &reads, outputs))
            .flatten();
        DefaultMapping::of_many(group, lanes)
    }

    /// Square tiles over two axes, as large as leaves every multiprocessor a block; `shared` are those along
    /// which some operand is read again.
    fn of_contraction(gpu: &Gpu, group: &Group, mut shared: Vec<usize>) -> DefaultMapping {
        shared.sort_by_key(|at| group.axes[*at].extent);
        let inner = shared.iter().copied().max().unwrap_or(0);
        let outer = shared.iter().rev().copied().find(|at| *at != inner).unwrap_or(inner);
        let blocks = |side: i64| -> i64 {
            let of = |at: usize| {
                let extent = group.axes[at].extent;
                if at == inner || at == outer { (extent + side - 1) / side } else { extent }
            };
            group.positions(false).into_iter().map(of).product()
        };
        let enough = |side: &i64| blocks(*side) >= i64::from(gpu.multiprocessors);
        let side = SIDES.into_iter().find(enough).unwrap_or(LEAST_SIDE);
        let (mut threads, mut tiles) = (vec![1; group.axes.len()], vec![(1, 1); group.axes.len()]);
        for at in [inner, outer] {
            let extent = group.axes[at].extent;
            let per_thread =
                (side / HEURISTICS.square).min((extent + HEURISTICS.square - 1) / HEURISTICS.square).max(1);
            let tile = power_up_to(per_thread, THREAD.maximal_vector);
            tiles[at] = (tile, (per_thread / tile).max(1));
            threads[at] = power_up_to((extent + tile - 1) / tile, HEURISTICS.square);
        }
        DefaultMapping { threads, tiles, contracts: true }
    }

    /// A thread for each result, or for each part of one: `lanes` are a reduction axis and its threads.
    fn of_many(group: &Group, lanes: Option<(usize, i64)>) -> DefaultMapping {
        let mut threads = vec![1; group.axes.len()];
        let mut left = HEURISTICS.default_threads;
        if let Some((at, count)) = lanes {
            threads[at] = count;
            left /= count;
        }
        for at in group.positions(false).into_iter().rev() {
            threads[at] = power_up_to(group.axes[at].extent, left);
            left = (left / threads[at]).max(1);
        }
        DefaultMapping { threads, tiles: vec![(1, 1); group.axes.len()], contracts: false }
    }
}

/// The spatial axes along which some operand is read again.
pub(super) fn shared(workload: &Workload, group: &Group) -> Vec<usize> {
    let reads = accesses(&workload.stages[group.stage]);
    let lacks = |at: &usize| group.axes[*at].extent > 1 && reads.iter().any(|a| !touches(a, group, *at));
    group.positions(false).into_iter().filter(lacks).collect()
}

/// The reduction axis that memory is read along, and how many threads share it: a warp, or all of a block
/// where there are few results.
fn lanes(workload: &Workload, group: &Group, reads: &[Access], outputs: i64) -> Option<(usize, i64)> {
    let near = |at: &usize| {
        let var = Var((group.axes[*at].position + usize::from(group.fused == Some(*at))) as u32);
        reads.iter().filter(|a| a.stride(workload, var) == Some(1)).count()
    };
    let axis = group.positions(true).into_iter().max_by_key(|at| (near(at), group.axes[*at].extent))?;
    let most = if outputs * WARP >= HEURISTICS.default_threads { WARP } else { HEURISTICS.default_threads };
    Some((axis, power_up_to(group.axes[axis].extent, most)))
}

/// The least power of two that covers `extent`, up to `most`, a power of two.
fn power_up_to(extent: i64, most: i64) -> i64 {
    extent.max(1).unsigned_abs().next_power_of_two().min(most.unsigned_abs()) as i64
}
