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

#[cfg(test)]
mod tests {
    use super::Polynomial;
    use crate::workload::{Index, Var};

    fn x() -> Index {
        Index::var(Var(0))
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
