//! Which phases copy asynchronously, into which buffers, and in which groups.

use std::collections::{BTreeMap, BTreeSet};

use super::{Plan, StmtId, for_each_access, stmt_id};
use crate::nest::rewrite::for_each_stmt;
use crate::nest::{Loop, LoopKind, Nest, Scope, Stmt};
use crate::workload::{Atom, Condition, Expr, Index, Role, TensorId};

/// The buffers of a block with slots, and how many.
pub(super) fn slots(nest: &Nest, statements: &[Stmt]) -> BTreeMap<TensorId, i64> {
    let mut found = BTreeMap::new();
    for_each_access(statements, &mut |buffer, indices, _| {
        let (Some(first), Some(extent)) = (indices.first(), nest.buffer(buffer).shape.first()) else { return };
        let is_remainder = matches!(first.terms(), [(Atom::Modulo(..), 1)]) && is_slot(first, *extent);
        if is_remainder && nest.buffer(buffer).scope == Scope::Private {
            found.insert(buffer, *extent);
        }
    });
    found
}

/// Whether an index names a slot that is the same whenever the variables are, but for multiples of the number of slots.
pub(super) fn is_slot(index: &Index, slots: i64) -> bool {
    match index.terms() {
        [] | [(Atom::Var(_), 1)] => true,
        [(Atom::Modulo(inner, divisor), 1)] => *divisor == slots && inner.is_affine() && index.offset() == 0,
        _ => false,
    }
}

/// Finds the phases that copy asynchronously.
pub(super) fn note_copies(
    nest: &Nest,
    slots: &BTreeMap<TensorId, i64>,
    statements: &[Stmt],
    copies: &mut BTreeSet<StmtId>,
) {
    for statement in statements {
        match statement {
            Stmt::Loop(l) if l.kind == LoopKind::Thread => {
                let mut fits = true;
                for_each_stmt(&l.body, &mut |inner| fits &= is_part_of_copy(nest, slots, inner));
                copies.extend(fits.then(|| stmt_id(statement)));
            }
            Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => note_copies(nest, slots, body, copies),
            Stmt::Store { .. } | Stmt::Accumulate { .. } => {}
        }
    }
}

/// Whether a statement stores an unchanged element of an input or a constant into a slot, or zero where its guard does not hold, or is a loop or a condition.
fn is_part_of_copy(nest: &Nest, slots: &BTreeMap<TensorId, i64>, statement: &Stmt) -> bool {
    match statement {
        Stmt::Loop(_) => true,
        Stmt::If { conditions, .. } => !conditions.iter().any(|c| c.index.has_value()),
        Stmt::Accumulate { .. } => false,
        Stmt::Store { buffer, indices, value } => {
            let Some((tensor, from, guard)) = copied(value) else { return false };
            let (to, given) = (nest.buffer(*buffer), nest.buffer(tensor));
            let never_written = matches!(given.scope, Scope::Argument(Role::Input | Role::Constant) | Scope::Packed);
            let conditions = guard.iter().flat_map(|(conditions, _)| conditions.iter()).map(|c| &c.index);
            let zero = guard.is_none_or(|(_, outside)| is_zero(outside));
            slots.contains_key(buffer)
                && never_written
                && to.dtype == given.dtype
                && matches!(to.dtype.bytes(), 4 | 8)
                && zero
                && !indices.iter().chain(from).chain(conditions).any(Index::has_value)
        }
    }
}

/// A tensor's element, and where it is guarded the conditions and what is there instead.
type Copied<'a> = (TensorId, &'a [Index], Option<(&'a [Condition], &'a Expr)>);

/// What a value copies, if that is all it does.
pub fn copied(value: &Expr) -> Option<Copied<'_>> {
    match value {
        Expr::Load { tensor, indices } => Some((*tensor, indices, None)),
        Expr::Guard { conditions, inside, outside } => match &**inside {
            Expr::Load { tensor, indices } => Some((*tensor, indices, Some((conditions, outside)))),
            _ => None,
        },
        _ => None,
    }
}

/// Whether a value is all zero bits.
fn is_zero(value: &Expr) -> bool {
    match value {
        Expr::Float(float) => float.0.to_bits() == 0,
        Expr::Index(index) => index.as_constant() == Some(0),
        _ => false,
    }
}

/// Whether a statement copies asynchronously, under whatever conditions, but in no loop that commits for itself.
fn issues(statement: &Stmt, plan: &Plan) -> bool {
    match statement {
        Stmt::Loop(_) => plan.copies.contains(&stmt_id(statement)),
        Stmt::If { body, .. } => body.iter().any(|inner| issues(inner, plan)),
        Stmt::Store { .. } | Stmt::Accumulate { .. } => false,
    }
}

/// Commits groups behind neighbouring copies into different buffers. `inside`: of a condition that is committed behind as a whole.
pub(super) fn note_commits(statements: &[Stmt], inside: bool, plan: &mut Plan) {
    let mut filled = BTreeSet::new();
    for (at, statement) in statements.iter().enumerate() {
        let own = issues(statement, plan);
        if own {
            filled.extend(stored(statement));
        }
        let goes_on = |next: &Stmt| issues(next, plan) && stored(next).is_disjoint(&filled);
        if own && !inside && !statements.get(at + 1).is_some_and(goes_on) {
            plan.commits.insert(stmt_id(statement));
            filled.clear();
        }
        match statement {
            Stmt::Loop(l) if !l.kind.is_in_block() => note_commits(&l.body, false, plan),
            Stmt::If { body, .. } => note_commits(body, inside || own, plan),
            _ => {}
        }
    }
}

/// The buffers that a statement stores to.
fn stored(statement: &Stmt) -> BTreeSet<TensorId> {
    let mut found = BTreeSet::new();
    for_each_access(std::slice::from_ref(statement), &mut |buffer, _, writes| found.extend(writes.then_some(buffer)));
    found
}
