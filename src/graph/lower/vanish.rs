//! Numbers that are 0 wherever others are: where nothing is found, there is nothing of what is made of it.

use super::formulas::Formulas;
use super::polynomial::Polynomial;
use crate::graph::symbol::Origin;
use crate::workload::{Atom, Index};

/// How far a number is followed to what it is computed from.
const MAX_DEPTH: usize = 8;

impl Formulas {
    /// Whether a number, which is never negative, is 0 in every run in which another number is: it has the
    /// other's factors, or is at most such a number, or the sum of such numbers.
    pub(super) fn vanishes_with(&self, number: &Index, other: &Index) -> bool {
        self.vanishes(number, other, MAX_DEPTH)
    }

    fn vanishes(&self, number: &Index, other: &Index, depth: usize) -> bool {
        if self.has_factors(number, other) {
            return true;
        }
        let Some(depth) = depth.checked_sub(1) else { return false };
        let vanishes = |number: &Index| self.vanishes(number, other, depth);
        let each = |atom: &Atom| {
            let Atom::Var(var) = atom else { return false };
            let symbol = var.as_parameter().and_then(|number| self.symbols.list.get(number));
            match symbol.map(|symbol| &symbol.origin) {
                Some(Origin::Count { most }) => vanishes(most),
                Some(Origin::Minimum(x, y) | Origin::Product(x, y)) => vanishes(x) || vanishes(y),
                Some(Origin::Maximum(x, y)) => vanishes(x) && vanishes(y),
                Some(Origin::Quotient(x, _)) => vanishes(x),
                Some(Origin::Axis { .. } | Origin::Rows { .. }) | None => false,
            }
        };
        number.offset() == 0 && number.terms().iter().all(|(atom, _)| each(atom))
    }

    /// Whether a number is a multiple of another, which may be the lesser of that and 1.
    fn has_factors(&self, number: &Index, other: &Index) -> bool {
        // the lesser of a number and 1 is 0 where the number is
        let origin = |formula: &Index| Some(&self.symbols.list.get(formula.as_var()?.as_parameter()?)?.origin);
        let other = match origin(other) {
            Some(Origin::Minimum(x, y)) if y.as_constant().is_some_and(|least| least > 0) => x,
            Some(Origin::Minimum(x, y)) if x.as_constant().is_some_and(|least| least > 0) => y,
            _ => other,
        };
        let Some((number, other)) = self.polynomial(number).zip(self.polynomial(other)) else { return false };
        let Some(factor) = other.terms().map(|(_, coefficient)| coefficient).next() else { return false };
        number.times(&Polynomial::constant(factor)).is_some_and(|number| number.divided_by(&other).is_some())
    }
}
