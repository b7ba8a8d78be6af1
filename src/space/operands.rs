//! Which operands are worth a copy.

use super::access::{Access, accesses};
use super::fuse::touches;
use super::{Group, View};
use crate::nest::rewrite::factor::factors;
use crate::workload::{Atom, Condition, Expr, Index, Role, TensorId, Var, Workload};

/// The operands of a reduction that are read more than once or behind a guard. A tensor may be several
/// operands (queries and keys out of one product), which are numbered then, unless guards make it hard to
/// tell them apart.
pub(super) fn packable(workload: &Workload, group: &Group) -> Vec<(Access, Option<usize>)> {
    let stage = &workload.stages[group.stage];
    if !stage.is_reduction() {
        return Vec::new();
    }
    let all = accesses(stage);
    let behind = group.epilogue.map(|e| accesses(&workload.stages[e])).unwrap_or_default();
    let reused = |a: &Access| {
        let every_axis = (0..group.axes.len()).all(|at| touches(a, group, at));
        !every_axis || a.guarded || a.has_window()
    };
    // an instruction takes the steps of a lane side by side, and those of all lanes one after the other
    let is_laid_out = |a: &Access| group.dot.is_some() && workload.tensor(a.tensor).role == Role::Constant;
    // tiles came with this: before, a guard made operands of one tensor hard to tell apart
    let can_be_told = |a: &Access| !a.guarded || group.matrix.is_some() && is_plain_guard(&stage.value, a);
    let ways = |tensor| all.iter().filter(move |a: &&Access| a.tensor == tensor);
    all.iter()
        .filter(|a| is_operand(&stage.value, a))
        .filter(|a| ways(a.tensor).count() == 1 || ways(a.tensor).all(can_be_told))
        .filter(|a| behind.iter().all(|b| b.tensor != a.tensor))
        .filter(|a| a.indices.iter().all(|i| i.terms().iter().all(|(atom, _)| !matches!(atom, Atom::Value(_)))))
        .filter(|a| (reused(a) || is_laid_out(a)) && (!a.guarded || is_plain_guard(&stage.value, a)))
        .map(|a| {
            let several = ways(a.tensor).count() > 1;
            (a.clone(), ways(a.tensor).position(|b| b == a).filter(|_| several))
        })
        .collect()
}

/// Whether an access is more than what a guard gives in place of another, as a zero point is at borders: that
/// goes into the other's copy.
fn is_operand(expr: &Expr, access: &Access) -> bool {
    match expr {
        Expr::Load { tensor, indices } => *tensor == access.tensor && *indices == access.indices,
        Expr::Guard { inside, .. } => is_operand(inside, access),
        _ => expr.children().any(|child| is_operand(child, access)),
    }
}

/// Elements of a packed constant of a byte each, at most.
pub(super) const MAXIMAL_SHORT: i64 = 1 << 28;

/// Whether a constant is of a byte an element.
pub(super) fn is_short_constant(workload: &Workload, tensor: TensorId) -> bool {
    let tensor = workload.tensor(tensor);
    tensor.role == Role::Constant && tensor.dtype.bytes() == 1
}

/// Whether a reduction reads constants of a byte an element, weights of 4 or 8 bits.
pub(super) fn reads_short_constants(workload: &Workload, group: &Group) -> bool {
    let stage = &workload.stages[group.stage];
    stage.is_reduction() && accesses(stage).iter().any(|access| is_short_constant(workload, access.tensor))
}

/// Whether a reduction axis counts blocks of weights: some factor of what is added up changes along it, and
/// does not along another.
pub(super) fn counts_blocks(workload: &Workload, group: &Group, at: usize) -> bool {
    let along = |factor: &Expr, at: usize| factor.mentions(Var(group.axes[at].position as u32));
    let is_of_block =
        |factor: &Expr| along(factor, at) && group.positions(true).into_iter().any(|other| !along(factor, other));
    reads_short_constants(workload, group) && factors(&workload.stages[group.stage].value).iter().any(is_of_block)
}

/// Constants of a byte an element that a reduction reads once each, in one way, and that are not
/// [`packable`].
pub(super) fn streamed(workload: &Workload, group: &Group) -> Vec<Access> {
    let stage = &workload.stages[group.stage];
    if !stage.is_reduction() {
        return Vec::new();
    }
    let packable = packable(workload, group);
    let mut all = accesses(stage);
    all.extend(group.epilogue.map(|e| accesses(&workload.stages[e])).unwrap_or_default());
    let is_single = |a: &&Access| all.iter().filter(|b| a.tensor == b.tensor).count() == 1;
    let is_short = |a: &&Access| is_short_constant(workload, a.tensor);
    let reads_once = |a: &&Access| {
        let in_order = a.indices.iter().all(Index::is_affine) && !a.guarded && !a.is_of_run && !a.slides(stage);
        in_order && (0..group.axes.len()).all(|at| touches(a, group, at))
    };
    let is_left = |a: &&Access| packable.iter().all(|(other, _)| other.tensor != a.tensor);
    all.iter().filter(is_single).filter(is_short).filter(reads_once).filter(is_left).cloned().collect()
}

/// Whether the guard is right around the access.
fn is_plain_guard(value: &Expr, access: &Access) -> bool {
    match value {
        Expr::Guard { inside, outside, .. } => match &**inside {
            Expr::Load { tensor, .. } if *tensor == access.tensor => outside.is_plain(),
            _ => is_plain_guard(inside, access),
        },
        _ => value.children().any(|child| is_plain_guard(child, access)),
    }
}

/// The guard right around an access is the tensor's own border.
fn guards_border(workload: &Workload, value: &Expr, access: &Access) -> bool {
    match value {
        Expr::Guard { conditions, inside, .. } if matches!(&**inside, Expr::Load { tensor, .. } if *tensor == access.tensor) =>
        {
            let tensor = workload.tensor(access.tensor);
            conditions.iter().all(|c| {
                let is_border = |(d, index): (usize, &Index)| {
                    Condition::within(index, tensor.extents.get(d), tensor.shape[d]).contains(c)
                };
                access.indices.iter().enumerate().any(is_border)
            })
        }
        Expr::Load { tensor, .. } => *tensor == access.tensor,
        _ => value.children().any(|child| guards_border(workload, child, access)),
    }
}

/// Whether an operand that is read through a window can be copied as the box that the window touches.
pub(super) fn fits_box<M>(view: &View<'_, M>, group: &Group, access: &Access) -> bool {
    let workload = &*view.workload;
    // the last box of a block of rows would reach beyond those that the block has
    let beyond_rows = workload.tensor(access.tensor).role == Role::Intermediate && view.is_of_rows(access);
    let fused = group.fused.is_some_and(|at| touches(access, group, at));
    let affine = access.indices.iter().all(Index::is_affine);
    let value = &workload.stages[group.stage].value;
    access.has_window() && affine && !fused && !beyond_rows && guards_border(workload, value, access)
}
