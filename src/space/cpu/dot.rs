//! Whether a sum of products of short numbers is computed by the instruction that the machine has for it.

use crate::space::access::{Access, accesses};
use crate::space::fuse::touches;
use crate::space::{Group, Rule, Step, Stop, Tape, View, name, site};
use crate::target::Cpu;
use crate::workload::{Role, Var, Workload, dot_steps};

pub(super) struct Dot;

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
            let offered = axes(&view.workload, view.machine, group);
            let mut candidates = vec![name("none")];
            candidates.extend(offered.iter().map(|(at, _)| name(group.axes[*at].letter())));
            // the longest, and of equals the innermost, of those that need no copy or are worth it
            let pays = |at: &usize| pays(&view.workload, view.machine, group, offered[*at].0);
            let longest = (0..offered.len()).filter(pays).max_by_key(|at| (group.axes[offered[*at].0].extent, *at));
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
    let Some(operands) = workload.widened_operands(stage) else { return none };
    let Some((by, sum)) = dot_steps(operands) else { return none };
    let has_lanes = group.positions(false).into_iter().any(|at| group.axes[at].extent > 1);
    if !target.has_dot(operands) || !has_lanes || workload.tensor(stage.output).dtype != sum {
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

/// Results of an element from which on a copy is worth it where the machine has tile registers.
const USES_IN_TILES: i64 = 16;

/// Whether the steps along an axis lie side by side in all operands but those that are packed when the
/// network is compiled: copies of the others cost more than an instruction for vectors gains, but not more
/// than one for tiles, if what is copied is used for many results.
fn pays(workload: &Workload, target: &Cpu, group: &Group, at: usize) -> bool {
    let var = Var(group.axes[at].position as u32);
    let stage = &workload.stages[group.stage];
    let has_tiles = workload.widened_operands(stage).is_some_and(|operands| target.has_tiles(operands));
    let uses = |read: &Access| -> i64 {
        let others = group.positions(false).into_iter().filter(|at| !touches(read, group, *at));
        others.map(|at| group.axes[at].usual.typical).product()
    };
    accesses(stage).iter().all(|read| {
        workload.tensor(read.tensor).role == Role::Constant
            || read.stride(workload, var) == Some(1)
            || has_tiles && uses(read) >= USES_IN_TILES
    })
}
