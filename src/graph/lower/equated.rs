//! Products of extents that have to be equal: which of the extents then are.

use super::formulas::{Conflict, Formulas, without_common_factor};
use super::operator::Problem;
use super::polynomial::Polynomial;
use crate::graph::symbol::Origin;
use crate::workload::{Atom, Index};

/// Sides of windows that a constant factor is looked through for.
const MOST_SHARED: i64 = 64;

impl Formulas {
    /// Two products of extents have to be equal, and are not: what the one is more than the other by, where
    /// that is a formula, has to be 1; else the first extents of inputs that only the one and only the other
    /// has are the same. Exporters name the axes of each input by themselves. Else extents are looked for at
    /// which they do not differ.
    pub(super) fn equate_products(&mut self, ours: &[Index], theirs: &[Index]) {
        let (ours_alone, mut theirs_alone) = (self.factors_of(ours), self.factors_of(theirs));
        // an extent that is what the others leave is a constant, once they leave no remainder
        let known = theirs_alone.1.len();
        theirs_alone.1.retain(|factor| !self.is_left_over(factor));
        if theirs_alone.1.len() < known {
            theirs_alone.0 = ours_alone.0;
        }
        let (ours, theirs) = (self.polynomial_product(ours), self.polynomial_product(theirs));
        let Some((ours, theirs)) = ours.zip(theirs) else { return };
        let more = ours.divided_by(&theirs).or_else(|| theirs.divided_by(&ours));
        if let Some(Ok(more)) = more.map(|more| self.formula_of(&more)) {
            self.conflict = Some(Conflict::Unequal(more, Index::constant(1)));
            return;
        }
        let is_of_an_input = |atom: &&Atom| {
            let Atom::Var(var) = atom else { return false };
            let symbol = var.as_parameter().and_then(|number| self.symbols.list.get(number));
            symbol.is_some_and(|symbol| matches!(symbol.origin, Origin::Axis { .. }))
        };
        let first = |of: &Polynomial, others: &Polynomial| {
            let is_its_own = |atom: &&Atom| !others.terms().any(|(atoms, _)| atoms.contains(atom));
            let mut atoms = of.terms().flat_map(|(atoms, _)| atoms);
            atoms.find(|atom| is_of_an_input(atom) && is_its_own(atom)).cloned().map(Index::atom)
        };
        if let Some((ours, theirs)) = first(&ours, &theirs).zip(first(&theirs, &ours)) {
            self.conflict = Some(Conflict::Unequal(ours, theirs));
            return;
        }
        if let Some((ours, theirs)) = self.first_unpaired(ours_alone, theirs_alone) {
            self.conflict = Some(Conflict::Unequal(ours, theirs));
            return;
        }
        // what is left without common factors may be 0 for some extents
        let rest = ours.minus(&theirs).map(|difference| difference.factored().1);
        if let Some(Ok(rest)) = rest.map(|rest| self.sum_of(&rest)) {
            self.conflict = Some(Conflict::Unequal(rest, Index::constant(0)));
        }
    }

    /// The square root of a whole number that is a product of two extents, which then have to be the same:
    /// the side of an image, from the number of its parts. `None` for what is no such product.
    ///
    /// # Errors
    /// [`Problem::Shape`] for extents that may differ.
    pub(super) fn square_root(&mut self, formula: &Index) -> Result<Option<Index>, Problem> {
        let Some(product) = self.polynomial(formula) else { return Ok(None) };
        let mut terms = product.terms();
        let (Some(([a, b], factor)), None) = (terms.next(), terms.next()) else { return Ok(None) };
        let root = factor.max(0).isqrt();
        if root * root != factor || factor == 0 {
            return Ok(None);
        }
        let (side, [mut one, mut other]) = (a.clone(), [a, b].map(|atom| Index::atom(atom.clone())));
        // quotients are the same where what is divided is
        while let Some((inner, of_other)) = quotients_by_the_same(&one, &other) {
            (one, other) = (inner, of_other);
        }
        self.unify(&one, &other)?;
        Ok(Some(Index::atom(side).times(root)))
    }

    /// The constant factor of a product, and those that are formulas; those of what is a product itself among
    /// them.
    fn factors_of(&self, formulas: &[Index]) -> (i64, Vec<Index>) {
        let (mut constant, mut factors) = (1_i64, Vec::new());
        let mut pending: Vec<Index> = formulas.iter().rev().cloned().collect();
        while let Some(formula) = pending.pop() {
            let symbol = formula.as_var().and_then(|var| self.symbols.list.get(var.as_parameter()?));
            match symbol.map(|symbol| &symbol.origin) {
                Some(Origin::Product(x, y)) => pending.extend([y.clone(), x.clone()]),
                _ => match formula.as_constant() {
                    Some(own) => constant = constant.saturating_mul(own),
                    None => {
                        let (common, rest) = without_common_factor(&formula);
                        constant = constant.saturating_mul(common);
                        // what is left may be a product
                        if common > 1 { pending.push(rest) } else { factors.push(rest) }
                    }
                },
            }
        }
        (constant, factors)
    }

    /// Whether it is a quotient of two formulas.
    fn is_left_over(&self, formula: &Index) -> bool {
        let symbol = formula.as_var().and_then(|var| self.symbols.list.get(var.as_parameter()?));
        let Some(Origin::Quotient(_, divisor)) = symbol.map(|symbol| &symbol.origin) else { return false };
        divisor.as_constant().is_none()
    }

    /// Of as many factors on both sides, the first two that differ once equal ones are left out: rows and
    /// columns that were rounded up to whole windows, beside those of the image, or beside the number of
    /// windows, whose sides are a constant factor then.
    fn first_unpaired(&self, ours: (i64, Vec<Index>), theirs: (i64, Vec<Index>)) -> Option<(Index, Index)> {
        let ((our_constant, mut ours), (their_constant, mut theirs)) = (ours, theirs);
        ours.retain(|factor| {
            let same = theirs.iter().position(|other| other == factor);
            same.map(|same| theirs.remove(same)).is_none()
        });
        let count = u32::try_from(ours.len()).ok().filter(|count| *count > 0 && ours.len() == theirs.len())?;
        // each of the pairs has as much of the constants
        let share = |more: i64, less: i64| {
            let is_whole = more > 0 && less > 0 && more % less == 0;
            is_whole.then(|| (1..=MOST_SHARED).find(|side: &i64| side.checked_pow(count) == Some(more / less)))?
        };
        let (our, their) = (ours.swap_remove(0), theirs.swap_remove(0));
        match (share(our_constant, their_constant), share(their_constant, our_constant)) {
            (Some(side), _) => Some((our.times(side), their)),
            (_, Some(side)) => Some((our, their.times(side))),
            _ => None,
        }
    }
}

/// What two quotients are of, if their divisors are the same.
fn quotients_by_the_same(one: &Index, other: &Index) -> Option<(Index, Index)> {
    let only = |index: &Index| match index.terms() {
        [(Atom::FloorDiv(inner, divisor), 1)] if index.offset() == 0 => Some(((**inner).clone(), *divisor)),
        _ => None,
    };
    let ((one, by), (other, of_other)) = only(one).zip(only(other))?;
    (by == of_other && one != other).then_some((one, other))
}
