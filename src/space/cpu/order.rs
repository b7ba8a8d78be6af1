//! The order of loops, and the move of accumulators into registers.

use crate::nest::LoopKind;
use crate::nest::rewrite::Refusal;
use crate::nest::rewrite::accumulate::{Blocks, Reduction};
use crate::space::{Built, Group, Plan, Rule, Stop, Tape, name, site};
use crate::target::{Cpu, TaskOn};
use crate::workload::{Var, Workload};

pub(super) struct Order;

impl Rule<Cpu> for Order {
    fn name(&self) -> &'static str {
        "order"
    }

    fn version(&self) -> u32 {
        3
    }

    fn decide(&self, _: &TaskOn<'_, Cpu>, plan: &mut Plan, tape: &mut Tape<'_>) -> Result<(), Stop> {
        for group in &mut plan.groups {
            tape.settle(group.settled);
            let spatial = group.positions(false);
            let outer: Vec<usize> = spatial.iter().copied().filter(|a| group.axes[*a].blocks() > 1).collect();
            let inner: Vec<usize> = spatial.into_iter().filter(|a| group.axes[*a].block > 1).collect();
            let steps: Vec<usize> = group.positions(true).into_iter().filter(|a| group.axes[*a].block > 1).collect();
            group.outer_order = permutation("outer", group, outer, tape)?;
            group.inner_order = permutation("inner", group, inner, tape)?;
            group.reduction_order = permutation("steps", group, steps, tape)?;
        }
        Ok(())
    }

    fn realise(&self, _: &TaskOn<'_, Cpu>, plan: &Plan, built: &mut Built) -> Result<(), Refusal> {
        for (at, group) in plan.groups.iter().enumerate() {
            realise_group(&plan.workload, group, at, built)?;
        }
        Ok(())
    }
}

/// Asks for the loops one after the other, from the outermost.
fn permutation(
    verb: &'static str,
    group: &Group,
    mut left: Vec<usize>,
    tape: &mut Tape<'_>,
) -> Result<Vec<usize>, Stop> {
    let mut order = Vec::new();
    while left.len() > 1 {
        let names: Vec<_> = left.iter().map(|a| name(group.axes[*a].letter())).collect();
        let answer = tape.choose(site(verb, [group.name()]), names.clone(), 0)?;
        order.push(left.remove(names.iter().position(|n| *n == answer).unwrap_or(0)));
    }
    order.extend(left);
    Ok(order)
}

/// From outside to inside: blocks, reduction blocks, tiles of a block, reduction steps, the register tile.
fn realise_group(workload: &Workload, group: &Group, at: usize, built: &mut Built) -> Result<(), Refusal> {
    let loops = built.loops[at].clone();
    if loops.is_empty() {
        return Ok(());
    }
    // loops of a single iteration go first, where they are in nobody's way
    let ordered = |order: &[usize], reduction: bool| {
        let mut all: Vec<usize> = group.positions(reduction).into_iter().filter(|a| !order.contains(a)).collect();
        all.extend(order);
        all
    };
    let outer: Vec<Var> = ordered(&group.outer_order, false).into_iter().map(|a| loops[a].outer).collect();
    let blocks: Vec<Var> = ordered(&[], true).into_iter().map(|a| loops[a].outer).collect();
    let inner: Vec<Var> = ordered(&group.inner_order, false).into_iter().map(|a| loops[a].inner).collect();
    let steps: Vec<Var> = ordered(&group.reduction_order, true).into_iter().map(|a| loops[a].inner).collect();
    let is_vector = |a: &usize| group.vector == Some(*a);
    let mut tile: Vec<Var> = Vec::new();
    for reduction in [true, false] {
        tile.extend(group.positions(reduction).into_iter().filter(|a| !is_vector(a)).map(|a| loops[a].tile));
    }
    tile.extend(group.vector.map(|a| loops[a].tile));

    let order = [outer, blocks, inner.clone(), steps.clone(), tile.clone()].concat();
    let mut nest = std::mem::take(&mut built.nest).reorder(&order)?;
    for (position, axis) in loops.iter().enumerate() {
        let kind = if is_vector(&position) { LoopKind::Vector } else { LoopKind::Unroll };
        nest = nest.set_kind(axis.tile, kind)?;
    }
    let stage = &workload.stages[group.stage];
    if stage.is_reduction() {
        let place = match inner.last() {
            Some(var) => *var,
            None => {
                // no spatial axis is left inside of the rows
                let unit;
                (nest, unit) = nest.enclose(order[0])?;
                unit
            }
        };
        let reduction = Reduction {
            blocks: group.depth.map(|a| Blocks { var: loops[a].outer, inside: inner.clone() }),
            lanes: group.vector.filter(|a| group.axes[*a].reduction).map(|a| loops[a].tile).into_iter().collect(),
        };
        let epilogue = group.epilogue.map(|e| &workload.stages[e]);
        nest = nest.accumulate(stage.output, place, &reduction, epilogue)?;
        built.at[at] = Some(place);
    }
    built.nest = nest;
    Ok(())
}
