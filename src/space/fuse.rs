//! Whether two axes are run through as one.

use super::access::Access;
use super::{Axis, Group, Step, Stop, Tape, name, site};
use crate::workload::{Var, Workload};

/// Whether two neighbouring axes are run through as one: those that every operand has, or lacks, together.
pub(super) fn fuse(
    workload: &Workload,
    group: &mut Group,
    reads: &[Access],
    tape: &mut Tape<'_>,
) -> Result<Option<Step>, Stop> {
    let stage = &workload.stages[group.stage];
    if !stage.is_reduction() {
        return Ok(None);
    }
    let spatial = group.positions(false);
    let together = |pair: &[usize]| {
        let var = |at: usize| Var(group.axes[at].position as u32);
        reads.iter().all(|a| a.mentions(var(pair[0])) == a.mentions(var(pair[1])))
            && reads.iter().any(|a| !a.mentions(var(pair[0])))
    };
    let neighbours = |pair: &[usize]| {
        let (first, second) = (&group.axes[pair[0]], &group.axes[pair[1]]);
        let whole = |axis: &Axis| !axis.ragged && !axis.varies;
        first.position + 1 == second.position && whole(first) && whole(second)
    };
    let fit = |pair: &&[usize]| neighbours(pair) && together(pair);
    let pairs: Vec<usize> = spatial.windows(2).filter(fit).map(|pair| pair[0]).collect();
    let mut candidates = vec![name("none")];
    candidates.extend(pairs.iter().map(|at| name(group.axes[*at].letter())));
    // what is one axis in memory for every operand is run through as one
    let in_order = |at: &usize| {
        let (outer, inner) = (group.axes[*at].position as u32, group.axes[*at + 1].position as u32);
        let width = stage.extent(inner as usize);
        reads.iter().filter(|a| a.mentions(Var(outer))).all(|a| {
            let step = a.stride(workload, Var(inner));
            !a.guarded
                && step.is_some()
                && group.axes[*at + 1].extent == width
                && a.stride(workload, Var(outer)) == step.map(|step| step * width)
        })
    };
    let default = pairs.iter().position(in_order).map_or(0, |pair| pair + 1);
    let answer = tape.choose(site("fuse", [group.name()]), candidates.clone(), default)?;
    if let Some(chosen) = candidates.iter().position(|c| *c == answer).filter(|c| *c > 0) {
        return Ok(Some(group.fuse(pairs[chosen - 1])));
    }
    Ok(None)
}

/// Whether an access moves with an axis, or with either part of a fused one.
pub(super) fn touches(access: &Access, group: &Group, at: usize) -> bool {
    let position = group.axes[at].position as u32;
    access.mentions(Var(position)) || (group.fused == Some(at) && access.mentions(Var(position + 1)))
}
