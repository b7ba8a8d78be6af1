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
mod character;
mod fetch;
mod limits;
mod matrix;
mod persistent;
mod split;
mod stages;
mod tile;

use super::{Built, Dealt, Pipeline, Reason, Rules, epilogue, rows};
use crate::nest::{Nest, Scope};
use crate::target::Gpu;

pub(super) fn rules() -> Rules<Gpu> {
    vec![
        Box::new(split::Split),
        Box::new(epilogue::Epilogue),
        Box::new(rows::Rows),
        Box::new(tile::Tile),
        Box::new(fetch::Fetches),
        Box::new(stages::Stages),
        Box::new(persistent::Persistent),
        Box::new(rows::Privatise),
    ]
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

/// What is left to do when all rules have rewritten the nest of a workload with so many tensors.
pub(super) fn finish(built: Built, tensors: usize, gpu: &Gpu) -> Result<Nest, Reason> {
    let Built { mut nest, dealt, mut pipelines, .. } = built;
    // what a block keeps of an intermediate is for all its threads, a single number too
    let own = nest.buffers[..tensors].iter_mut().filter(|buffer| buffer.scope == Scope::Register);
    own.for_each(|buffer| buffer.scope = Scope::BlockShared);
    let mut nest = nest.drop_unit_loops().in_threads().fill_tails();
    for Dealt { steps, workers, combiner } in dealt {
        let refused = |refusal| Reason(format!("persistent: {refusal}"));
        let share;
        (nest, share) = nest.persistent(steps, workers, combiner).map_err(refused)?;
        pipelines.iter_mut().filter(|pipeline| pipeline.steps == steps).for_each(|pipeline| pipeline.steps = share);
    }
    for Pipeline { steps, buffers, stages } in pipelines {
        let refused = |refusal| Reason(format!("stages: {refusal}"));
        nest = nest.pipeline(steps, &buffers, stages).map_err(refused)?;
    }
    let nest = nest.drop_unused();
    limits::check(&nest, gpu)?;
    Ok(nest)
}
