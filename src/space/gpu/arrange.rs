//! From decisions to loops: axes cut, loops in order and dealt out to blocks, threads and warps, accumulators
//! in registers.

use crate::nest::LoopKind;
use crate::space::{AxisLoops, Group, LoopName, Step};
use crate::target::gpu::WARP;
use crate::workload::Workload;

/// Steps of a reduction times accumulators that are written out, at most.
const MAXIMAL_BODY: i64 = 512;

/// Cuts every axis of a group. Returns the loops of each.
pub(super) fn cut(group: &mut Group, steps: &mut Vec<Step>) {
    for (position, axis) in group.axes.iter_mut().enumerate() {
        // threads of a reduction meet within warps first
        let warps: Vec<i64> = match axis.reduction && axis.threads > WARP {
            true => vec![axis.threads / WARP, WARP],
            false => vec![axis.threads],
        };
        let is_matrix = group.matrix.is_some_and(|m| m.rows == position);
        let mut by = vec![axis.rounds()];
        by.extend(warps.into_iter().filter(|threads| *threads > 1 || is_matrix));
        by.push(axis.tile);
        let into: Vec<LoopName> = (0..=by.len()).map(|level| axis.whole.level(level)).collect();
        if let [outer, inner, threads @ .., tile] = into.as_slice() {
            let (outer, inner, tile) = (outer.clone(), inner.clone(), tile.clone());
            axis.loops = Some(AxisLoops { outer, inner, threads: threads.to_vec(), tile });
        }
        steps.push(Step::Tile { over: axis.whole.clone(), by, into });
    }
}

/// Puts the loops of a group in order, says what executes them, and moves accumulators into registers.
pub(super) fn arrange(workload: &Workload, group: &Group, in_grid: bool, steps: &mut Vec<Step>) {
    let (spatial, reduced) = (group.positions(false), group.positions(true));
    let of = |positions: &[usize], level: &dyn Fn(&AxisLoops) -> Vec<LoopName>| -> Vec<LoopName> {
        positions.iter().filter_map(|at| group.loops(*at)).flat_map(level).collect()
    };
    let outer = of(&spatial, &|l| vec![l.outer.clone()]);
    let reduction = of(&reduced, &|l| vec![l.outer.clone()]);
    // groups of warps are of neighbours along the rows
    let mut by_threads = spatial.clone();
    by_threads.sort_by_key(|at| group.matrix.is_some_and(|tile| tile.is_wide() && tile.rows == *at));
    let (threads, lanes) = (of(&by_threads, &|l| l.threads.clone()), of(&reduced, &|l| l.threads.clone()));
    let (inner_steps, ends) = (of(&reduced, &|l| vec![l.inner.clone()]), of(&reduced, &|l| vec![l.tile.clone()]));
    let rounds = of(&spatial, &|l| vec![l.inner.clone()]);
    let mut by_vector = spatial;
    by_vector.sort_by_key(|at| group.vector == Some(*at));
    let tile = of(&by_vector, &|l| vec![l.tile.clone()]);

    let mut order = [&outer[..], &reduction, &threads, &lanes, &inner_steps, &ends, &rounds, &tile].concat();
    let matrix = group.matrix.map(|m| [m.rows, m.columns, m.depth].map(|at| of(&[at], &|l| vec![l.tile.clone()])));
    let sides = matrix.map(|sides| sides.concat()).unwrap_or_default();
    order.retain(|name| !sides.contains(name));
    order.extend(sides.iter().cloned());
    let first = order.first().cloned();
    if !order.is_empty() {
        steps.push(Step::Reorder { order });
    }
    let is_side = |name: &LoopName| sides.contains(name);
    let own = |names: &[LoopName]| -> Vec<LoopName> { names.iter().filter(|name| !is_side(name)).cloned().collect() };
    let reduced_rounds: i64 = group.axes.iter().filter(|a| a.reduction).map(|a| a.rounds()).product();
    let is_short = accumulators(group) * reduced_rounds <= MAXIMAL_BODY;
    let outer_kind = if in_grid { LoopKind::Block } else { LoopKind::Serial };
    let marks = [
        (outer.clone(), outer_kind),
        (threads, if group.matrix.is_some() { LoopKind::Warp } else { LoopKind::Thread }),
        (lanes.clone(), LoopKind::Thread),
        (inner_steps, if is_short { LoopKind::Unroll } else { LoopKind::Serial }),
        ([own(&ends), rounds, own(&tile)].concat(), LoopKind::Unroll),
    ];
    steps.extend(marks.into_iter().filter_map(|(loops, kind)| Step::mark(kind, loops)));
    if let (Some(tile), [rows, columns, depth]) = (group.matrix, sides.as_slice()) {
        let (rows, columns, depth) = (rows.clone(), columns.clone(), depth.clone());
        steps.push(Step::Multiply { rows, columns, depth, operands: tile.operands });
    }
    let vector: Vec<usize> = group.vector.into_iter().filter(|at| group.axes[*at].tile > 1).collect();
    steps.extend(Step::mark(LoopKind::Vector, of(&vector, &|l| vec![l.tile.clone()])));
    // the loop inside of which the phases stand
    let at = outer.last().cloned().or_else(|| {
        let over = first?;
        let unit = over.unit();
        steps.push(Step::Enclose { over, by: unit.clone() });
        steps.extend(Step::mark(outer_kind, vec![unit.clone()]));
        Some(unit)
    });
    if let Some(at) = at.filter(|_| workload.stages[group.stage].is_reduction()) {
        steps.push(Step::Accumulate { stage: group.stage, at, blocks: None, lanes });
    }
}

/// Results that a thread keeps at once, those of a matrix counted as one.
fn accumulators(group: &Group) -> i64 {
    let is_side = |at: usize| group.matrix.is_some_and(|m| [m.rows, m.columns].contains(&at));
    let own = |at: usize| group.axes[at].rounds() * if is_side(at) { 1 } else { group.axes[at].tile };
    group.positions(false).into_iter().map(own).product()
}
