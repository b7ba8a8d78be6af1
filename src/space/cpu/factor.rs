//! Whether what the steps of a sum share, the scale of a block of weights, is multiplied once for all of
//! them.

use crate::nest::rewrite::factor::factors;
use crate::space::operands::reads_short_constants;
use crate::space::{Group, Rule, Step, Stop, Tape, View, name, site};
use crate::target::Cpu;
use crate::workload::{Combiner, Expr, Var, Workload};

/// A sum in registers of its own for each block saves a multiplication at every step, and asks for as many
/// registers again. It is asked where constants of a byte or less are widened.
pub(super) struct Factor;

/// Steps that share a factor by default, at least.
const LEAST_STEPS: i64 = 8;

impl Rule<Cpu> for Factor {
    fn name(&self) -> &'static str {
        "factor"
    }

    fn version(&self) -> u32 {
        1
    }

    fn absent_is_default(&self) -> bool {
        true
    }

    fn decide(&self, view: &View<'_, Cpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let mut steps = Vec::new();
        for group in &view.groups {
            tape.defaults_only(group.defaults_only);
            let offered = places(&view.workload, group);
            let mut candidates = vec![name("none")];
            candidates.extend(offered.iter().map(|at| name(group.axes[*at].letter())));
            let registers =
                2 * group.register_tile(view.machine.lanes()) + view.machine.architecture.operand_registers();
            let is_better = registers <= i64::from(view.machine.vector_registers)
                && offered.first().is_some_and(|at| steps_inside(group, *at) >= LEAST_STEPS);
            // before there was the rule, every step multiplied
            let answer = tape.choose_since(site("late", [group.name()]), candidates.clone(), is_better.into(), 0)?;
            let chosen = candidates.iter().position(|c| *c == answer).and_then(|c| c.checked_sub(1));
            let over = chosen.and_then(|at| group.loops(offered[at])).map(|loops| loops.inner.clone());
            steps.extend(over.map(|steps| Step::Factor { steps }));
        }
        Ok(steps)
    }
}

/// The reduction axes whose loops over the steps of a block a factor does not change in, nor in any loop
/// inside of them, from the outermost.
fn places(workload: &Workload, group: &Group) -> Vec<usize> {
    let stage = &workload.stages[group.stage];
    let in_lanes = group.vector.is_some_and(|at| group.axes[at].reduction);
    let is_sum = stage.combiner == Some(Combiner::Sum) && group.dot.is_none() && !in_lanes;
    if !is_sum || !reads_short_constants(workload, group) {
        return Vec::new();
    }
    let all = factors(&stage.value);
    let stays = |factor: &Expr, inside: &[usize]| {
        !inside.iter().any(|at| factor.mentions(Var(group.axes[*at].position as u32)))
    };
    let is_kept = |inside: &[usize]| all.iter().any(|factor| stays(factor, inside));
    let tiles: Vec<usize> = group.positions(true).into_iter().filter(|at| group.axes[*at].tile > 1).collect();
    let order = &group.reduction_order;
    (0..order.len()).filter(|first| is_kept(&[&order[*first..], &tiles].concat())).map(|first| order[first]).collect()
}

/// Steps of the sum from the loop over an axis' tiles on.
fn steps_inside(group: &Group, at: usize) -> i64 {
    let from = group.reduction_order.iter().position(|other| *other == at).unwrap_or(0);
    let tiles: i64 = group.positions(true).into_iter().map(|at| group.axes[at].tile).product();
    group.reduction_order[from..].iter().map(|at| group.axes[*at].block).product::<i64>().saturating_mul(tiles)
}
