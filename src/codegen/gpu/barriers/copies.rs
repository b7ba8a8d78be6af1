//! Which phases copy asynchronously, into which buffers, and in which groups.

use std::collections::{BTreeMap, BTreeSet};

use super::{BarrierPlan, StmtId, for_each_access, stmt_id};
use crate::nest::{Loop, LoopKind, Nest, Scope, Stmt};
use crate::workload::{Atom, Condition, Expr, Index, Interval, Role, TensorId, flatten};

/// The buffers of a block with slots, and how many.
pub(super) fn slots(nest: &Nest, statements: &[Stmt]) -> BTreeMap<TensorId, i64> {
    let mut found = BTreeMap::new();
    for_each_access(statements, &mut |buffer, indices, _| {
        let (Some(first), Some(extent)) = (indices.first(), nest.buffer(buffer).shape.first()) else { return };
        let is_remainder = matches!(first.terms(), [(Atom::Modulo(..), 1)]) && is_slot(first, *extent);
        if is_remainder && nest.buffer(buffer).scope == Scope::BlockShared {
            found.insert(buffer, *extent);
        }
    });
    found
}

/// Whether an index names a slot that is the same whenever the variables are, but for multiples of the number
/// of slots.
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
                let fits = l.body.iter().all(|inner| is_part_of_copy(nest, slots, inner, None));
                copies.extend(fits.then(|| stmt_id(statement)));
            }
            Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => note_copies(nest, slots, body, copies),
            Stmt::Store { .. } | Stmt::Accumulate { .. } => {}
        }
    }
}

/// Whether a statement stores unchanged elements of an input or a constant into a slot, or zeros where its
/// guard does not hold. `row`: the vector loop right around it.
fn is_part_of_copy(nest: &Nest, slots: &BTreeMap<TensorId, i64>, statement: &Stmt, row: Option<&Loop>) -> bool {
    match statement {
        Stmt::Loop(l) => {
            let row = (l.kind == LoopKind::Vector).then_some(l);
            l.body.iter().all(|inner| is_part_of_copy(nest, slots, inner, row))
        }
        Stmt::If { conditions, body } => {
            let row = row.filter(|row| !conditions.iter().any(|c| c.index.mentions(row.var)));
            !conditions.iter().any(|c| c.index.has_value())
                && body.iter().all(|inner| is_part_of_copy(nest, slots, inner, row))
        }
        Stmt::Accumulate { .. } => false,
        Stmt::Store { buffer, indices, value } => {
            let Some((tensor, from, guard)) = copied(value) else { return false };
            let (to, given) = (nest.buffer(*buffer), nest.buffer(tensor));
            let never_written = matches!(given.scope, Scope::Argument(Role::Input | Role::Constant) | Scope::Packed);
            let conditions: Vec<&Index> =
                guard.iter().flat_map(|(conditions, _)| conditions.iter()).map(|c| &c.index).collect();
            let zero = guard.is_none_or(|(_, outside)| is_zero(outside));
            let in_words = |row: &Loop| {
                !conditions.iter().any(|index| index.mentions(row.var))
                    && is_row_of_words(row, &flatten(indices, &to.shape))
                    && is_row_of_words(row, &flatten(from, &given.shape))
            };
            let has_instruction = match to.dtype.bytes() {
                4 | 8 => true,
                2 => row.is_some_and(in_words),
                _ => false,
            };
            slots.contains_key(buffer)
                && never_written
                && to.dtype == given.dtype
                && has_instruction
                && zero
                && !indices.iter().chain(from).chain(conditions).any(Index::has_value)
        }
    }
}

/// Whether a vector loop moves over neighbours of 16 bits, from an even one on, a power of two of them: there
/// are copies of 4, 8 and 16 bytes.
fn is_row_of_words(row: &Loop, flat: &Index) -> bool {
    let unknown = Interval { low: i64::MIN, high: i64::MAX };
    let flat = flat.simplify(&|var| if var == row.var { Interval::below(row.extent()) } else { unknown });
    let is_even = |(atom, by): &(Atom, i64)| *atom == Atom::Var(row.var) || by % 2 == 0;
    row.is_constant()
        && row.extent() > 1
        && row.extent().count_ones() == 1
        && flat.step(row.var) == Some(1)
        && flat.offset() % 2 == 0
        && flat.terms().iter().all(is_even)
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
        Expr::Cast(_, value) => is_zero(value),
        _ => false,
    }
}

/// Whether a statement copies asynchronously, under whatever conditions, but in no loop that commits for
/// itself.
fn issues(statement: &Stmt, plan: &BarrierPlan) -> bool {
    match statement {
        Stmt::Loop(_) => plan.copies.contains(&stmt_id(statement)),
        Stmt::If { body, .. } => body.iter().any(|inner| issues(inner, plan)),
        Stmt::Store { .. } | Stmt::Accumulate { .. } => false,
    }
}

/// Commits groups behind neighbouring copies into different buffers. `inside`: of a condition that is
/// committed behind as a whole.
pub(super) fn note_commits(statements: &[Stmt], inside: bool, plan: &mut BarrierPlan) {
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
