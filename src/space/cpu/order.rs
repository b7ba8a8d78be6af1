//! The order of loops, and the move of accumulators into registers.

use crate::space::{AxisLoops, Group, LoopName, Rule, Step, Stop, Tape, View, name, site};
use crate::target::Cpu;
use crate::workload::Workload;

pub(super) struct Order;

/// Of loops of several iterations, positions in [`Group::axes`], outermost first.
struct Orders {
    outer: Vec<usize>,
    inner: Vec<usize>,
    reduction: Vec<usize>,
}

impl Rule<Cpu> for Order {
    fn name(&self) -> &'static str {
        "order"
    }

    fn version(&self) -> u32 {
        3
    }

    fn decide(&self, view: &View<'_, Cpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let mut orders = Vec::with_capacity(view.groups.len());
        for group in &view.groups {
            tape.defaults_only(group.defaults_only);
            let spatial = group.positions(false);
            let outer: Vec<usize> = spatial.iter().copied().filter(|a| group.axes[*a].blocks() > 1).collect();
            let inner: Vec<usize> = spatial.into_iter().filter(|a| group.axes[*a].block > 1).collect();
            let steps: Vec<usize> = group.positions(true).into_iter().filter(|a| group.axes[*a].block > 1).collect();
            orders.push(Orders {
                outer: permutation("outer", group, outer, None, tape)?,
                inner: permutation("inner", group, inner, None, tape)?,
                reduction: permutation("steps", group, steps, group.dot.map(|dot| dot.axis), tape)?,
            });
        }
        let mut steps = Vec::new();
        view.groups.iter().zip(orders).for_each(|(group, orders)| arrange(&view.workload, group, &orders, &mut steps));
        Ok(steps)
    }
}

/// Asks for the loops one after the other, from the outermost. By default they stay in their order, but for
/// one that goes inside of the others: groups of steps that an instruction takes follow one another in
/// memory.
fn permutation(
    verb: &'static str,
    group: &Group,
    mut left: Vec<usize>,
    innermost: Option<usize>,
    tape: &mut Tape<'_>,
) -> Result<Vec<usize>, Stop> {
    let mut order = Vec::new();
    while left.len() > 1 {
        let names: Vec<_> = left.iter().map(|a| name(group.axes[*a].letter())).collect();
        let default = left.iter().position(|at| Some(*at) != innermost).unwrap_or(0);
        let answer = tape.choose(site(verb, [group.name()]), names.clone(), default)?;
        order.push(left.remove(names.iter().position(|n| *n == answer).unwrap_or(0)));
    }
    order.extend(left);
    Ok(order)
}

/// From outside to inside: blocks, reduction blocks, tiles of a block, reduction steps, the register tile.
fn arrange(workload: &Workload, group: &Group, orders: &Orders, steps: &mut Vec<Step>) {
    if group.axes.is_empty() {
        return;
    }
    // loops of a single iteration go first, where they are in nobody's way
    let ordered = |order: &[usize], reduction: bool| {
        let mut all: Vec<usize> = group.positions(reduction).into_iter().filter(|a| !order.contains(a)).collect();
        all.extend(order);
        all
    };
    let of = |positions: &[usize], level: fn(&AxisLoops) -> &LoopName| -> Vec<LoopName> {
        positions.iter().filter_map(|at| group.loops(*at)).map(|loops| level(loops).clone()).collect()
    };
    let outer = of(&ordered(&orders.outer, false), |l| &l.outer);
    let blocks = of(&ordered(&[], true), |l| &l.outer);
    let inner = of(&ordered(&orders.inner, false), |l| &l.inner);
    let reduction = of(&ordered(&orders.reduction, true), |l| &l.inner);
    let mut tile: Vec<usize> = [group.positions(true), group.positions(false)].concat();
    // rows of tiles come before their depth, so that what is copied of a row lies side by side
    tile.sort_by_key(|at| match group.matrix {
        Some(matrix) => {
            [matrix.rows, matrix.depth, matrix.columns].iter().position(|side| side == at).map_or(0, |n| n + 1)
        }
        None => usize::from(group.vector == Some(*at)),
    });
    let order = [outer, blocks, inner.clone(), reduction, of(&tile, |l| &l.tile)].concat();
    let first = order[0].clone();
    steps.push(Step::Reorder { order });
    if !workload.stages[group.stage].is_reduction() {
        return;
    }
    let at = inner.last().cloned().unwrap_or_else(|| {
        // no spatial axis is left inside of the rows
        let unit = first.unit();
        steps.push(Step::Enclose { over: first, by: unit.clone() });
        unit
    });
    let over = group.depth().and_then(|at| group.loops(at)).map(|loops| loops.outer.clone());
    let lanes: Vec<usize> = group.vector.into_iter().filter(|at| group.axes[*at].reduction).collect();
    steps.push(Step::Accumulate {
        stage: group.stage,
        at,
        blocks: over.map(|over| (over, inner)),
        lanes: of(&lanes, |l| &l.tile),
    });
}
