//! Whether a sum of products of short numbers is computed by the instruction that the machine has for it.

use crate::nest::dot;
use crate::space::access::{Access, accesses};
use crate::space::fuse::touches;
use crate::space::operands::packable;
use crate::space::{Group, Rule, Step, Stop, Tape, View, name, site};
use crate::target::Cpu;
use crate::workload::{Binary, Combiner, DType, Expr, Role, Var, Workload};

pub(super) struct Dot;

/// Elements of a copy of an operand with its border, at most: so few can always be copied as a whole.
const MAXIMAL_COPY: i64 = 1 << 24;

impl Rule<Cpu> for Dot {
    fn name(&self) -> &'static str {
        "dot"
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
            let offered = match view.rows.is_empty() || !is_guarded(&view.workload, group) {
                true => axes(&view.workload, view.machine, group),
                false => Vec::new(),
            };
            let mut candidates = vec![name("none")];
            candidates.extend(offered.iter().map(|(at, _)| name(group.axes[*at].letter())));
            // the longest, and of equals the innermost, of those whose steps lie side by side already
            let near = (0..offered.len()).filter(|at| is_near(&view.workload, group, offered[*at].0));
            let longest = near.max_by_key(|at| (group.axes[offered[*at].0].extent, *at));
            let default = longest.map_or(0, |at| at + 1);
            // before there was the rule, there was no such instruction
            let answer = tape.choose_since(site("dot", [group.name()]), candidates.clone(), default, 0)?;
            let chosen = candidates.iter().position(|c| *c == answer).and_then(|c| c.checked_sub(1));
            if let Some((at, by)) = chosen.map(|at| offered[at]) {
                steps.push(Step::group(&group.axes[at].whole, by));
            }
        }
        Ok(steps)
    }
}

/// The reduction axes whose steps an instruction takes several of, and how many: all that is read are two
/// short operands, and another axis can run in vectors.
fn axes(workload: &Workload, target: &Cpu, group: &Group) -> Vec<(usize, i64)> {
    let none = Vec::new();
    let stage = &workload.stages[group.stage];
    let Some(operands) = operands(workload, group) else { return none };
    let Some((by, sum)) = dot::steps(operands[0], operands[1]) else { return none };
    let lanes = u32::try_from(target.lanes()).unwrap_or(0);
    let has = |feature: &str| target.has_feature(feature);
    let has_instruction = target.architecture.dot(operands, lanes, &has).is_some();
    let has_lanes = group.positions(false).into_iter().any(|at| group.axes[at].extent > 1);
    if !has_instruction
        || !has_lanes
        || !borders_are_copied(workload, group)
        || workload.tensor(stage.output).dtype != sum
    {
        return none;
    }
    let reads = accesses(stage);
    let fits = |at: &usize| {
        let axis = &group.axes[*at];
        let is_whole = !axis.varies && !axis.ragged && axis.extent % by == 0;
        is_whole && reads.iter().all(|read| touches(read, group, *at))
    };
    group.positions(true).into_iter().filter(fits).map(|at| (at, by)).collect()
}

fn is_guarded(workload: &Workload, group: &Group) -> bool {
    accesses(&workload.stages[group.stage]).iter().any(|access| access.guarded)
}

/// Whether every operand behind a guard can be copied, border and all: the instruction takes no guards.
fn borders_are_copied(workload: &Workload, group: &Group) -> bool {
    let copied = packable(workload, group);
    let elements = |access: &Access| -> i64 {
        let touched = (0..group.axes.len()).filter(|at| touches(access, group, *at));
        touched.map(|at| group.axes[at].extent).fold(1, i64::saturating_mul)
    };
    let reads = accesses(&workload.stages[group.stage]);
    reads.iter().filter(|access| access.guarded).all(|access| {
        elements(access) <= MAXIMAL_COPY && copied.iter().any(|(other, which)| other == access && which.is_none())
    })
}

/// Whether the steps along an axis lie side by side in all operands but those that are packed when the
/// network is compiled: copies of the others cost more than the instruction gains.
fn is_near(workload: &Workload, group: &Group, at: usize) -> bool {
    let var = Var(group.axes[at].position as u32);
    accesses(&workload.stages[group.stage])
        .iter()
        .all(|read| workload.tensor(read.tensor).role == Role::Constant || read.stride(workload, var) == Some(1))
}

/// The types of both operands of a sum of products that are read as they are, perhaps behind a guard, and
/// widened.
fn operands(workload: &Workload, group: &Group) -> Option<[DType; 2]> {
    let stage = &workload.stages[group.stage];
    let Expr::Binary(Binary::Multiply, x, y) = &stage.value else { return None };
    let sum = workload.tensor(stage.output).dtype;
    let short = |operand: &Expr| match operand {
        Expr::Cast(to, inner) if *to == sum => match &**inner {
            Expr::Load { tensor, .. } => Some(workload.tensor(*tensor).dtype),
            Expr::Guard { inside, outside, .. } if outside.is_plain() => match &**inside {
                Expr::Load { tensor, .. } => Some(workload.tensor(*tensor).dtype),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    };
    (stage.combiner == Some(Combiner::Sum)).then_some([short(x)?, short(y)?])
}
