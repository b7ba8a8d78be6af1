//! How large a task may grow. The text of a task allows more ([`MAX_DEPTH`], [`MAX_NODES`], [`MAX_TENSORS`]),
//! and tasks of ordinary networks stay far below: the largest stage of the corpus has 82 words.
//!
//! [`MAX_DEPTH`]: crate::workload::form::MAX_DEPTH
//! [`MAX_NODES`]: crate::workload::form::MAX_NODES
//! [`MAX_TENSORS`]: crate::workload::validate::MAX_TENSORS

use std::collections::HashSet;

use crate::workload::{Atom, Expr, Index, Stage, TensorId, Var};

/// Maximum depth of a fused expression.
const EXPRESSION_DEPTH: usize = 96;
/// Maximum number of parts of a fused expression.
const EXPRESSION_PARTS: usize = 512;
/// Maximum number of tensors that a fused expression reads.
const EXPRESSION_TENSORS: usize = 96;
/// A value that is read more than once is computed again only while the copies have at most so many parts in
/// all: every reader that is inlined into the next one would double it.
const COPIED_PARTS: usize = 96;
/// Maximum number of parts of a task.
const TASK_PARTS: usize = 1024;
/// Maximum number of tensors of a task.
const TASK_TENSORS: usize = 192;
/// Maximum number of symbols that the axes and indices of a task depend on.
const TASK_SYMBOLS: usize = 32;

/// The size of an expression.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Size {
    /// Operators, literals, loads, and the atoms of indices.
    pub parts: usize,
    /// Levels of operators and of indices inside one another.
    pub depth: usize,
}

impl Size {
    pub fn of(expr: &Expr) -> Size {
        let indices = match expr {
            Expr::Index(index) => of_indices([index]),
            Expr::Load { indices, .. } => of_indices(indices),
            Expr::Guard { conditions, .. } => of_indices(conditions.iter().map(|condition| &condition.index)),
            Expr::Float(_)
            | Expr::Unary(..)
            | Expr::Binary(..)
            | Expr::Select { .. }
            | Expr::Cast(..)
            | Expr::Bits(..) => Size::default(),
        };
        expr.children().map(Size::of).fold(indices, Size::beside).below_one()
    }

    /// Whether fusion may make an expression of this size.
    pub fn fits(self) -> bool {
        self.parts <= EXPRESSION_PARTS && self.depth <= EXPRESSION_DEPTH
    }

    /// The size after `copies` loads became expressions of size `inner`, at most.
    pub fn with_inlined(self, copies: usize, inner: Size) -> Size {
        Size { parts: self.parts + copies * inner.parts, depth: self.depth + inner.depth }
    }

    fn beside(self, other: Size) -> Size {
        Size { parts: self.parts + other.parts, depth: self.depth.max(other.depth) }
    }

    fn below_one(self) -> Size {
        Size { parts: self.parts + 1, depth: self.depth + 1 }
    }
}

fn of_indices<'a>(indices: impl IntoIterator<Item = &'a Index>) -> Size {
    indices.into_iter().map(of_index).fold(Size::default(), Size::beside)
}

fn of_index(index: &Index) -> Size {
    let of_atom = |(atom, _): &(Atom, i64)| match atom {
        Atom::Var(_) => Size { parts: 1, depth: 1 },
        Atom::FloorDiv(inner, _) | Atom::Modulo(inner, _) => of_index(inner).below_one(),
        Atom::Value(expr) => Size::of(expr).below_one(),
    };
    index.terms().iter().map(of_atom).fold(Size::default(), Size::beside)
}

/// How many loads of a tensor an expression has.
pub fn count_loads(value: &Expr, of: TensorId) -> usize {
    let mut count = 0;
    value.for_each_load(&mut |tensor, _| count += usize::from(tensor == of));
    count
}

/// Whether a value of this size may be computed at so many places instead of one.
pub fn may_be_copied(size: Size, places: usize) -> bool {
    places.saturating_sub(1).saturating_mul(size.parts) <= COPIED_PARTS
}

/// Whether an expression may grow no further, whatever it is made of.
pub fn is_full(value: &Expr) -> bool {
    !Size::of(value).fits() || distinct_loads([value]).len() > EXPRESSION_TENSORS
}

/// Whether stages together are small enough for a task.
pub fn fits_task<'a>(stages: impl IntoIterator<Item = &'a Stage> + Clone) -> bool {
    let parts: usize = stages.clone().into_iter().map(|stage| Size::of(&stage.value).parts).sum();
    let mut tensors = distinct_loads(stages.clone().into_iter().map(|stage| &stage.value));
    tensors.extend(stages.clone().into_iter().map(|stage| stage.output));
    parts <= TASK_PARTS && tensors.len() <= TASK_TENSORS && distinct_symbols(stages).len() <= TASK_SYMBOLS
}

fn distinct_symbols<'a>(stages: impl IntoIterator<Item = &'a Stage>) -> HashSet<Var> {
    let mut found = HashSet::new();
    let mut note = |index: &Index| {
        index.for_each_var(&mut |var| {
            if var.as_parameter().is_some() {
                found.insert(var);
            }
        });
    };
    for stage in stages {
        stage.extents.iter().for_each(|(_, formula)| note(formula));
        stage.value.for_each_index(&mut note);
    }
    found
}

fn distinct_loads<'a>(values: impl IntoIterator<Item = &'a Expr>) -> HashSet<TensorId> {
    let mut found = HashSet::new();
    for value in values {
        value.for_each_load(&mut |tensor, _| {
            found.insert(tensor);
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Binary, Unary};

    #[test]
    fn sizes_count_operators_and_indices() {
        let load = Expr::load(TensorId(0), vec![Index::var(Var(0)), Index::var(Var(1)).floor_div(4)]);
        // the load, its first index, the quotient and what it divides
        assert_eq!(Size::of(&load), Size { parts: 4, depth: 3 });
        let twice = Expr::unary(Unary::Exp, Expr::binary(Binary::Add, load.clone(), load.clone()));
        assert_eq!(Size::of(&twice), Size { parts: 10, depth: 5 });
        assert_eq!(count_loads(&twice, TensorId(0)), 2);
    }

    #[test]
    fn a_large_value_is_not_copied() {
        let size = Size { parts: 40, depth: 20 };
        assert!(may_be_copied(size, 1) && may_be_copied(size, 3) && !may_be_copied(size, 4));
    }
}
