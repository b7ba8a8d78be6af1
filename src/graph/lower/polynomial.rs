//! Products and quotients of formulas, as polynomials over what formulas are made of.
//!
//! An [`Index`] says sums only; a product of two symbols is a symbol of its own, about which an `Index` knows
//! nothing. Multiplied out, `batch · sequence · 384 / (batch · 384)` is `sequence` again.

use std::collections::BTreeMap;

use crate::workload::{Atom, Index};

/// Larger polynomials are given up.
const MAX_TERMS: usize = 256;
/// Factors of a product.
const MAX_DEGREE: usize = 16;

/// Factors, sorted: symbols, and floor divisions of formulas.
pub type Monomial = Vec<Atom>;

/// `Σ coefficient · Π atoms`; coefficients are other than 0.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Polynomial(BTreeMap<Monomial, i64>);

impl Polynomial {
    pub fn constant(value: i64) -> Polynomial {
        let mut polynomial = Polynomial::default();
        polynomial.0.extend((value != 0).then(|| (Vec::new(), value)));
        polynomial
    }

    /// A formula, where `factors` gives what an atom is the product of, if it is one.
    pub fn of(formula: &Index, factors: &dyn Fn(&Atom) -> Option<(Index, Index)>) -> Option<Polynomial> {
        let mut sum = Polynomial::constant(formula.offset());
        for (atom, coefficient) in formula.terms() {
            let own = match factors(atom) {
                Some((x, y)) => Polynomial::of(&x, factors)?.times(&Polynomial::of(&y, factors)?)?,
                None => Polynomial(BTreeMap::from([(vec![atom.clone()], 1)])),
            };
            sum = sum.plus_multiple(&own, &[], *coefficient)?;
        }
        Some(sum)
    }

    /// Its terms: factors and coefficient.
    pub fn terms(&self) -> impl Iterator<Item = (&[Atom], i64)> {
        self.0.iter().map(|(monomial, coefficient)| (monomial.as_slice(), *coefficient))
    }

    /// `self + coefficient · Π factors · other`.
    fn plus_multiple(mut self, other: &Polynomial, factors: &[Atom], coefficient: i64) -> Option<Polynomial> {
        for (monomial, own) in &other.0 {
            let mut product = [monomial.as_slice(), factors].concat();
            product.sort();
            let term = self.0.entry(product).or_insert(0);
            *term = term.checked_add(own.checked_mul(coefficient)?)?;
        }
        self.0.retain(|_, coefficient| *coefficient != 0);
        let is_small = self.0.len() <= MAX_TERMS && self.0.keys().all(|monomial| monomial.len() <= MAX_DEGREE);
        is_small.then_some(self)
    }

    pub fn minus(&self, other: &Polynomial) -> Option<Polynomial> {
        self.clone().plus_multiple(other, &[], -1)
    }

    pub fn times(&self, other: &Polynomial) -> Option<Polynomial> {
        self.0.iter().try_fold(Polynomial::default(), |sum, (monomial, coefficient)| {
            sum.plus_multiple(other, monomial, *coefficient)
        })
    }

    /// The factors that all terms have, and what is left without them.
    pub fn factored(&self) -> (Monomial, Polynomial) {
        let mut monomials = self.0.keys();
        let mut common = monomials.next().cloned().unwrap_or_default();
        for monomial in monomials {
            let mut others = monomial.clone();
            common.retain(|atom| match others.iter().position(|other| other == atom) {
                Some(at) => {
                    others.swap_remove(at);
                    true
                }
                None => false,
            });
        }
        let left = |(monomial, coefficient): (&Monomial, &i64)| Some((without(monomial, &common)?, *coefficient));
        let rest = Polynomial(self.0.iter().filter_map(left).collect());
        (common, rest)
    }

    /// The quotient, if it divides without a remainder.
    pub fn divided_by(&self, divisor: &Polynomial) -> Option<Polynomial> {
        let (leading, factor) = divisor.leading()?;
        let (mut rest, mut quotient) = (self.clone(), Polynomial::default());
        // each step takes the leading term away, so that the terms to come are smaller
        for _ in 0..MAX_TERMS {
            let Some((monomial, coefficient)) = rest.leading() else { return Some(quotient) };
            let monomial = without(monomial, leading)?;
            if coefficient % factor != 0 {
                return None;
            }
            let coefficient = coefficient / factor;
            rest = rest.plus_multiple(divisor, &monomial, coefficient.checked_neg()?)?;
            quotient = quotient.plus_multiple(&Polynomial::constant(1), &monomial, coefficient)?;
        }
        None
    }

    /// The term of the highest degree, of those the greatest.
    fn leading(&self) -> Option<(&Monomial, i64)> {
        let greatest = self.0.iter().max_by_key(|(monomial, _)| (monomial.len(), *monomial));
        greatest.map(|(monomial, coefficient)| (monomial, *coefficient))
    }
}

/// A product without some of its factors; `None` where it lacks one of them.
fn without(monomial: &[Atom], factors: &[Atom]) -> Option<Monomial> {
    let mut rest = monomial.to_vec();
    for factor in factors {
        let at = rest.iter().position(|atom| atom == factor)?;
        rest.remove(at);
    }
    Some(rest)
}

/// Larger divisors are not made.
const MAX_DIVISOR: i64 = 1 << 31;

/// A formula whose quotients are written in one way only, to be compared: `x - floor(127 x / 128)` and
/// `floor((x + 127) / 128)` are the same, the number of blocks of 128; and `floor((floor(x / 5) + 1) / 2)` is
/// `floor((x + 5) / 10)`.
pub fn canonical(formula: &Index) -> Index {
    formula.terms().iter().fold(Index::constant(formula.offset()), |sum, (atom, coefficient)| {
        let own = match atom {
            Atom::FloorDiv(inner, divisor) => canonical_quotient(&canonical(inner), *divisor),
            other => Index::atom(other.clone()),
        };
        sum.plus(&own.times(*coefficient))
    })
}

/// A quotient of a quotient becomes one. Multiples of the divisor are taken out, so that each coefficient is
/// half of it at most; the first of those that are left is positive: `floor(-x / d)` is `-floor((x + d - 1) /
/// d)`.
fn canonical_quotient(inner: &Index, divisor: i64) -> Index {
    if let [(Atom::FloorDiv(dividend, own), 1)] = inner.terms() {
        let offset = inner.offset().checked_mul(*own);
        if let (Some(offset), Some(joint @ ..MAX_DIVISOR)) = (offset, own.checked_mul(divisor)) {
            return canonical_quotient(&dividend.as_ref().clone().plus_constant(offset), joint);
        }
    }
    let (mut whole, mut rest) = (Index::constant(0), Index::constant(inner.offset()));
    for (atom, coefficient) in inner.terms() {
        let multiple = coefficient.saturating_mul(2).saturating_add(divisor - 1).div_euclid(divisor.saturating_mul(2));
        whole = whole.plus(&Index::atom(atom.clone()).times(multiple));
        rest = rest.plus(&Index::atom(atom.clone()).times(coefficient - multiple * divisor));
    }
    match rest.terms().first() {
        Some((_, ..0)) => whole.minus(&rest.times(-1).plus_constant(divisor - 1).floor_div(divisor)),
        _ => whole.plus(&rest.floor_div(divisor)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Polynomial, canonical};
    use crate::workload::{Index, Var};

    fn x() -> Index {
        Index::var(Var(0))
    }

    #[test]
    fn what_is_canonical_has_the_same_value() {
        let y = || Index::var(Var(1));
        let formulas = [
            x().times(127).floor_div(128),
            x().minus(&x().times(511).floor_div(512)).times(3),
            x().floor_div(5).plus_constant(1).floor_div(2).plus_constant(-7).floor_div(3),
            x().times(-3).plus(&y().times(5)).plus_constant(2).floor_div(4),
            y().times(9).minus(&x()).floor_div(7).times(-2).plus(&x().modulo(6)),
        ];
        for formula in formulas {
            let other = canonical(&formula);
            for (x, y) in (-40..300).flat_map(|x| [(x, 3 * x - 50), (x, 17)]) {
                let value = |var: Var| if var == Var(0) { x } else { y };
                assert_eq!(other.at(&value), formula.at(&value), "{formula:?} and {other:?} at {x}, {y}");
            }
        }
    }

    #[test]
    fn numbers_of_blocks_are_the_same_however_they_are_written() {
        let blocks = x().plus_constant(127).floor_div(128);
        assert_eq!(canonical(&x().minus(&x().times(127).floor_div(128))), canonical(&blocks));
        let by_steps = x().floor_div(5).floor_div(2).plus_constant(1).floor_div(2);
        assert_eq!(canonical(&by_steps), canonical(&x().floor_div(10).plus_constant(1).floor_div(2)));
        assert_ne!(canonical(&x().plus_constant(126).floor_div(128)), canonical(&blocks));
    }

    #[test]
    fn factors_of_all_terms_are_taken_out() {
        let y = Index::var(Var(1));
        let of = |index: &Index| Polynomial::of(index, &|_| None).unwrap();
        let product = of(&x()).times(&of(&y.clone().plus_constant(-1))).unwrap();
        let (common, rest) = product.factored();
        assert_eq!(common.into_iter().map(Index::atom).collect::<Vec<_>>(), [x()]);
        assert_eq!(rest, of(&y.plus_constant(-1)));
        assert!(of(&x().plus_constant(2)).factored().0.is_empty());
    }
}
