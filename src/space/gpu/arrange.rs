//! From decisions to loops: axes cut, loops in order and dealt out to blocks, threads and warps, accumulators
//! in registers.

use std::mem::take;

use super::matrix::ERROR_GROWTH;
use crate::nest::LoopKind;
use crate::nest::rewrite::Refusal;
use crate::nest::rewrite::accumulate::Reduction;
use crate::space::{Built, Group, ThreadLoops};
use crate::target::gpu::WARP;
use crate::workload::{DType, Var, Workload};

/// Steps of a reduction times accumulators that are written out, at most.
const MAXIMAL_BODY: i64 = 512;

/// Cuts every axis of a group.
pub(super) fn cut(group: &Group, at: usize, built: &mut Built) -> Result<(), Refusal> {
    for (position, axis) in group.axes.iter().enumerate() {
        let mut var = built.stages[group.stage].axes[axis.position];
        if group.fused == Some(position) {
            let next = built.stages[group.stage].axes[axis.position + 1];
            (built.nest, var) = take(&mut built.nest).fuse(var, next)?;
        }
        // threads of a reduction meet within warps first
        let warps: Vec<i64> = match axis.reduction && axis.threads > WARP {
            true => vec![axis.threads / WARP, WARP],
            false => vec![axis.threads],
        };
        let mut factors = vec![axis.rounds()];
        factors.extend(
            warps.iter().copied().filter(|threads| *threads > 1 || group.matrix.is_some_and(|m| m.rows == position)),
        );
        factors.push(axis.tile);
        let (nest, vars) = take(&mut built.nest).tile(var, &factors)?;
        built.nest = nest;
        let [outer, round, threads @ .., tile] = vars.as_slice() else {
            return Err(Refusal::Other("an axis without its loops"));
        };
        let loops = ThreadLoops { outer: *outer, round: *round, threads: threads.to_vec(), tile: *tile };
        built.thread_loops[at].push(loops);
    }
    Ok(())
}

/// Puts the loops of a group in order, says what executes them, and moves accumulators into registers.
pub(super) fn arrange(
    workload: &Workload,
    group: &Group,
    at: usize,
    in_grid: bool,
    built: &mut Built,
) -> Result<(), Refusal> {
    let loops = built.thread_loops[at].clone();
    let (spatial, reduced) = (group.positions(false), group.positions(true));
    let of = |positions: &[usize], level: &dyn Fn(&ThreadLoops) -> Vec<Var>| -> Vec<Var> {
        positions.iter().flat_map(|position| level(&loops[*position])).collect()
    };
    let outer = of(&spatial, &|l| vec![l.outer]);
    let steps = of(&reduced, &|l| vec![l.outer]);
    // groups of warps are of neighbours along the rows
    let mut by_threads = spatial.clone();
    by_threads.sort_by_key(|at| group.matrix.is_some_and(|sides| sides.is_wide() && sides.rows == *at));
    let (threads, lanes) = (of(&by_threads, &|l| l.threads.clone()), of(&reduced, &|l| l.threads.clone()));
    let (inner_steps, ends) = (of(&reduced, &|l| vec![l.round]), of(&reduced, &|l| vec![l.tile]));
    let rounds = of(&spatial, &|l| vec![l.round]);
    let others: Vec<usize> = spatial.iter().copied().filter(|position| group.vector != Some(*position)).collect();
    let mut tile = of(&others, &|l| vec![l.tile]);
    tile.extend(group.vector.map(|position| loops[position].tile));

    let mut all = [&outer[..], &steps, &threads, &lanes, &inner_steps, &ends, &rounds, &tile].concat();
    let sides: Vec<Var> =
        group.matrix.iter().flat_map(|m| [m.rows, m.columns, m.depth].map(|at| loops[at].tile)).collect();
    all.retain(|var| !sides.contains(var));
    all.extend(&sides);
    let mut nest = take(&mut built.nest);
    if !all.is_empty() {
        nest = nest.reorder(&all)?;
    }
    let written_out =
        accumulators(group) * group.axes.iter().filter(|a| a.reduction).map(|a| a.rounds()).product::<i64>();
    let steps_kind = if written_out <= MAXIMAL_BODY { LoopKind::Unroll } else { LoopKind::Serial };
    let outer_kind = if in_grid { LoopKind::Block } else { LoopKind::Serial };
    let kinds = [
        (&outer, outer_kind),
        (&threads, if group.matrix.is_some() { LoopKind::Warp } else { LoopKind::Thread }),
        (&lanes, LoopKind::Thread),
        (&inner_steps, steps_kind),
        (&ends, LoopKind::Unroll),
        (&rounds, LoopKind::Unroll),
        (&tile, LoopKind::Unroll),
        (&sides, LoopKind::Matrix),
    ];
    for (vars, kind) in kinds {
        nest = vars.iter().try_fold(nest, |nest, var| nest.set_kind(*var, kind))?;
    }
    if let Some(position) = group.vector.filter(|position| group.axes[*position].tile > 1) {
        nest = nest.set_kind(loops[position].tile, LoopKind::Vector)?;
    }
    // the loop inside of which the phases stand
    let place = match (outer.last(), all.first()) {
        (Some(innermost), _) => Some(*innermost),
        (None, Some(first)) => {
            let unit;
            (nest, unit) = nest.enclose(*first)?;
            nest = nest.set_kind(unit, outer_kind)?;
            Some(unit)
        }
        (None, None) => None,
    };
    let stage = &workload.stages[group.stage];
    if group.matrix.is_some_and(|sides| sides.operands == DType::F32) {
        nest.error_growth = nest.error_growth.saturating_mul(ERROR_GROWTH);
    }
    if stage.is_reduction() {
        let place = place.ok_or(Refusal::Other("a reduction without loops"))?;
        let epilogue = group.epilogue.map(|e| &workload.stages[e]);
        nest = nest.accumulate(stage.output, place, &Reduction { blocks: None, lanes }, epilogue)?;
    }
    built.at[at] = place;
    built.nest = nest;
    Ok(())
}

/// Results that a thread keeps at once, those of a matrix counted as one.
fn accumulators(group: &Group) -> i64 {
    let is_side = |at: usize| group.matrix.is_some_and(|m| [m.rows, m.columns].contains(&at));
    let own = |at: usize| group.axes[at].rounds() * if is_side(at) { 1 } else { group.axes[at].tile };
    group.positions(false).into_iter().map(own).product()
}
