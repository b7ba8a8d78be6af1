//! Quasi-affine integer expressions: how an access names an element.
//!
//! An [`Index`] is `constant + Σ coefficient · atom`, where an atom is a loop variable, a floor division or
//! remainder of another index by a positive constant, or a value loaded at run time (gather). The form is
//! kept sorted and merged, so equal sums compare equal.

use super::expr::Expr;
use super::row_major_strides;

/// A loop variable. In a [`super::Stage`] it is the axis' position, in a nest the loop's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Var(pub u32);

/// The values that an index can take: both ends belong to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval {
    pub low: i64,
    pub high: i64,
}

impl Interval {
    /// The values of a loop variable that runs from 0 to `extent`, exclusive.
    pub fn below(extent: i64) -> Interval {
        Interval { low: 0, high: (extent - 1).max(0) }
    }

    pub fn point(value: i64) -> Interval {
        Interval { low: value, high: value }
    }

    /// The sums of a value of each; `None` where they leave 64 bits.
    #[must_use]
    pub fn plus(self, other: Interval) -> Option<Interval> {
        Some(Interval { low: self.low.checked_add(other.low)?, high: self.high.checked_add(other.high)? })
    }

    /// The values times a factor; `None` where they leave 64 bits.
    #[must_use]
    pub fn times(self, factor: i64) -> Option<Interval> {
        let (a, b) = (self.low.checked_mul(factor)?, self.high.checked_mul(factor)?);
        Some(Interval { low: a.min(b), high: a.max(b) })
    }

    /// What all values have as their quotient by a positive divisor, where that is one.
    #[must_use]
    pub fn quotient(self, divisor: i64) -> Option<i64> {
        let low = self.low.div_euclid(divisor);
        (low == self.high.div_euclid(divisor)).then_some(low)
    }
}

/// What a sum is made of.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Atom {
    Var(Var),
    /// Rounds towards minus infinity; the divisor is at least 2.
    FloorDiv(Box<Index>, i64),
    /// In `0..divisor`; the divisor is at least 2.
    Modulo(Box<Index>, i64),
    /// An integer that is computed at run time, for gathers.
    Value(Box<Expr>),
}

/// `constant + Σ coefficient · atom`; terms are sorted by atom, with coefficients other than 0.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Index {
    terms: Vec<(Atom, i64)>,
    constant: i64,
}

impl Index {
    pub fn constant(value: i64) -> Index {
        Index { terms: Vec::new(), constant: value }
    }

    pub fn var(var: Var) -> Index {
        Index::atom(Atom::Var(var))
    }

    pub fn atom(atom: Atom) -> Index {
        Index { terms: vec![(atom, 1)], constant: 0 }
    }

    /// An index whose value `expr` computes at run time.
    pub fn value(expr: Expr) -> Index {
        match expr {
            Expr::Index(index) => index,
            other => Index::atom(Atom::Value(Box::new(other))),
        }
    }

    /// The terms, sorted by atom.
    pub fn terms(&self) -> &[(Atom, i64)] {
        &self.terms
    }

    /// The constant part.
    pub fn offset(&self) -> i64 {
        self.constant
    }

    pub fn as_constant(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// The variable, if the index is exactly one variable.
    pub fn as_var(&self) -> Option<Var> {
        match self.terms.as_slice() {
            [(Atom::Var(var), 1)] if self.constant == 0 => Some(*var),
            _ => None,
        }
    }

    /// The coefficient of a variable outside of divisions; 0 where it does not occur so.
    pub fn coefficient(&self, var: Var) -> i64 {
        self.terms.iter().find(|(atom, _)| *atom == Atom::Var(var)).map_or(0, |(_, c)| *c)
    }

    /// By how much it grows with a variable; `None` where the variable takes part in a division or a gathered
    /// value.
    pub fn step(&self, var: Var) -> Option<i64> {
        let is_divided = self.terms.iter().any(|(atom, _)| match atom {
            Atom::Var(_) => false,
            Atom::FloorDiv(inner, _) | Atom::Modulo(inner, _) => inner.mentions(var),
            Atom::Value(expr) => expr.mentions(var),
        });
        (!is_divided).then(|| self.coefficient(var))
    }

    /// Whether the index is a plain affine sum of variables.
    pub fn is_affine(&self) -> bool {
        self.terms.iter().all(|(atom, _)| matches!(atom, Atom::Var(_)))
    }

    /// Whether a gathered value takes part.
    pub fn has_value(&self) -> bool {
        self.terms.iter().any(|(atom, _)| match atom {
            Atom::Var(_) => false,
            Atom::FloorDiv(inner, _) | Atom::Modulo(inner, _) => inner.has_value(),
            Atom::Value(_) => true,
        })
    }

    /// Its value at a point; `None` where a gathered value takes part or the value leaves 64 bits.
    pub fn at(&self, point: &dyn Fn(Var) -> i64) -> Option<i64> {
        self.terms.iter().try_fold(self.constant, |total, (atom, coefficient)| {
            let value = match atom {
                Atom::Var(var) => point(*var),
                Atom::FloorDiv(inner, divisor) => inner.at(point)?.div_euclid(*divisor),
                Atom::Modulo(inner, divisor) => inner.at(point)?.rem_euclid(*divisor),
                Atom::Value(_) => return None,
            };
            total.checked_add(value.checked_mul(*coefficient)?)
        })
    }

    /// Whether a variable occurs anywhere, inside divisions and gathered values too.
    pub fn mentions(&self, var: Var) -> bool {
        self.any_var(&|v| v == var)
    }

    /// Whether `wanted` holds for a variable that occurs anywhere.
    pub fn any_var(&self, wanted: &dyn Fn(Var) -> bool) -> bool {
        self.terms.iter().any(|(atom, _)| match atom {
            Atom::Var(var) => wanted(*var),
            Atom::FloorDiv(inner, _) | Atom::Modulo(inner, _) => inner.any_var(wanted),
            Atom::Value(expr) => expr.any_var(wanted),
        })
    }

    /// Calls `visit` for every occurrence of a variable.
    pub fn for_each_var(&self, visit: &mut dyn FnMut(Var)) {
        for (atom, _) in &self.terms {
            match atom {
                Atom::Var(var) => visit(*var),
                Atom::FloorDiv(inner, _) | Atom::Modulo(inner, _) => inner.for_each_var(visit),
                Atom::Value(expr) => expr.for_each_index(&mut |index| index.for_each_var(visit)),
            }
        }
    }

    #[must_use]
    pub fn plus(mut self, other: &Index) -> Index {
        self.add_multiple(other, 1);
        self
    }

    #[must_use]
    pub fn plus_constant(mut self, value: i64) -> Index {
        self.constant += value;
        self
    }

    #[must_use]
    pub fn minus(mut self, other: &Index) -> Index {
        self.add_multiple(other, -1);
        self
    }

    #[must_use]
    pub fn times(mut self, factor: i64) -> Index {
        if factor == 0 {
            return Index::constant(0);
        }
        self.constant *= factor;
        for (_, coefficient) in &mut self.terms {
            *coefficient *= factor;
        }
        self
    }

    /// `floor(self / divisor)` where all coefficients are multiples of a positive divisor.
    #[must_use]
    pub fn divided(mut self, divisor: i64) -> Index {
        self.constant = self.constant.div_euclid(divisor);
        for (_, coefficient) in &mut self.terms {
            *coefficient /= divisor;
        }
        self
    }

    /// `floor(self / divisor)`, with the part that divides evenly taken out.
    /// Panics unless the divisor is positive: divisors are written by our code, never read from outside.
    #[must_use]
    pub fn floor_div(self, divisor: i64) -> Index {
        assert!(divisor > 0, "division by {divisor}");
        if divisor == 1 {
            return self;
        }
        let (even, rest) = self.split_by(divisor);
        match rest.as_constant() {
            Some(_) => even,
            None => {
                let mut result = even;
                result.add_term(Atom::FloorDiv(Box::new(rest), divisor), 1);
                result
            }
        }
    }

    /// `self mod divisor`, in `0..divisor`. Panics unless the divisor is positive.
    #[must_use]
    pub fn modulo(self, divisor: i64) -> Index {
        assert!(divisor > 0, "remainder by {divisor}");
        if divisor == 1 {
            return Index::constant(0);
        }
        let (_, rest) = self.split_by(divisor);
        match rest.as_constant() {
            Some(value) => Index::constant(value),
            None => Index::atom(Atom::Modulo(Box::new(rest), divisor)),
        }
    }

    /// `(q, r)` with `self = divisor · q + r`, and `r`'s coefficients and constant in `0..divisor`.
    pub(super) fn split_by(self, divisor: i64) -> (Index, Index) {
        let mut even = Index::constant(self.constant.div_euclid(divisor));
        let mut rest = Index::constant(self.constant.rem_euclid(divisor));
        for (atom, coefficient) in self.terms {
            let (quotient, remainder) = (coefficient.div_euclid(divisor), coefficient.rem_euclid(divisor));
            // the terms come sorted, so they stay sorted
            if quotient != 0 && remainder != 0 {
                even.terms.push((atom.clone(), quotient));
            } else if quotient != 0 {
                even.terms.push((atom, quotient));
                continue;
            }
            rest.terms.push((atom, remainder));
        }
        (even, rest)
    }

    fn add_multiple(&mut self, other: &Index, factor: i64) {
        self.constant += other.constant * factor;
        for (atom, coefficient) in &other.terms {
            self.add_term(atom.clone(), coefficient * factor);
        }
    }

    /// [`Index::add_multiple`] of something that nobody else needs.
    fn absorb(&mut self, other: Index, factor: i64) {
        self.constant += other.constant * factor;
        for (atom, coefficient) in other.terms {
            self.add_term(atom, coefficient * factor);
        }
    }

    fn add_term(&mut self, atom: Atom, coefficient: i64) {
        match self.terms.binary_search_by(|(a, _)| a.cmp(&atom)) {
            Ok(at) => {
                self.terms[at].1 += coefficient;
                if self.terms[at].1 == 0 {
                    self.terms.remove(at);
                }
            }
            Err(at) if coefficient != 0 => self.terms.insert(at, (atom, coefficient)),
            Err(_) => {}
        }
    }

    /// Replaces variables; `None` keeps one as it is.
    #[must_use]
    pub fn substitute(&self, replace: &dyn Fn(Var) -> Option<Index>) -> Index {
        let mut result = Index::constant(self.constant);
        for (atom, coefficient) in &self.terms {
            let value = match atom {
                Atom::Var(var) => replace(*var).unwrap_or_else(|| Index::var(*var)),
                Atom::FloorDiv(inner, divisor) => inner.substitute(replace).floor_div(*divisor),
                Atom::Modulo(inner, divisor) => inner.substitute(replace).modulo(*divisor),
                Atom::Value(expr) => Index::value(expr.substitute(replace)),
            };
            result.absorb(value, *coefficient);
        }
        result
    }

    /// [`Index::substitute`] in place: nothing is rebuilt where no variable is replaced.
    pub fn replace_vars<'a>(&mut self, by: &dyn Fn(Var) -> Option<&'a Index>) {
        if !self.any_var(&|var| by(var).is_some()) {
            return;
        }
        let terms = std::mem::take(&mut self.terms);
        for (atom, coefficient) in terms {
            match atom {
                Atom::Var(var) => match by(var) {
                    Some(index) => self.add_multiple(index, coefficient),
                    None => self.add_term(atom, coefficient),
                },
                Atom::FloorDiv(mut inner, divisor) => {
                    inner.replace_vars(by);
                    self.absorb(inner.floor_div(divisor), coefficient);
                }
                Atom::Modulo(mut inner, divisor) => {
                    inner.replace_vars(by);
                    self.absorb(inner.modulo(divisor), coefficient);
                }
                Atom::Value(mut expr) => {
                    expr.replace_vars(by);
                    self.absorb(Index::value(*expr), coefficient);
                }
            }
        }
    }

    /// The values it can take, given those of its variables; `None` where a gathered value takes part
    /// or the bounds leave 64 bits.
    pub fn range(&self, of: &dyn Fn(Var) -> Interval) -> Option<Interval> {
        self.range_by(of, &|inner| inner.range(of), &|_| None)
    }

    /// The same, given the values of variables, of the dividends of its divisions, and of what is gathered.
    pub(super) fn range_by(
        &self,
        of: &dyn Fn(Var) -> Interval,
        of_dividend: &dyn Fn(&Index) -> Option<Interval>,
        of_value: &dyn Fn(&Expr) -> Option<Interval>,
    ) -> Option<Interval> {
        let mut total = Interval::point(self.constant);
        for (atom, coefficient) in &self.terms {
            let part = match atom {
                Atom::Var(var) => of(*var),
                Atom::FloorDiv(inner, divisor) => {
                    let inner = of_dividend(inner)?;
                    Interval { low: inner.low.div_euclid(*divisor), high: inner.high.div_euclid(*divisor) }
                }
                Atom::Modulo(inner, divisor) => match of_dividend(inner) {
                    Some(r) if r.quotient(*divisor).is_some() => {
                        Interval { low: r.low.rem_euclid(*divisor), high: r.high.rem_euclid(*divisor) }
                    }
                    _ => Interval::below(*divisor),
                },
                Atom::Value(expr) => of_value(expr)?,
            };
            total = total.plus(part.times(*coefficient)?)?;
        }
        Some(total)
    }

    /// Puts quotients and remainders of the same number together again: `8·(i / 8) + i % 8 = i`.
    #[must_use]
    pub fn join_divisions(&self) -> Index {
        let mut result = self.clone();
        for (atom, coefficient) in &self.terms {
            let Atom::Modulo(inner, divisor) = atom else { continue };
            let quotient = Atom::FloorDiv(inner.clone(), *divisor);
            if self.terms.contains(&(quotient.clone(), coefficient * divisor)) {
                result.add_term(quotient, -coefficient * divisor);
                result.add_term(atom.clone(), -coefficient);
                result = result.plus(&inner.clone().times(*coefficient));
            }
        }
        result
    }

    /// Drops divisions that the variables' ranges decide: `(8·i + j) / 8 = i` where `0 ≤ j < 8`.
    #[must_use]
    pub fn simplify(&self, of: &dyn Fn(Var) -> Interval) -> Index {
        let mut result = Index::constant(self.constant);
        for (atom, coefficient) in &self.terms {
            let value = match atom {
                Atom::Var(var) => match of(*var) {
                    Interval { low, high } if low == high => Index::constant(low),
                    _ => Index::var(*var),
                },
                Atom::FloorDiv(inner, divisor) => {
                    let (even, rest) = inner.simplify(of).split_by(*divisor);
                    match rest.range(of) {
                        Some(r) if r.low >= 0 && r.high < *divisor => even,
                        _ => even.plus(&rest.floor_div(*divisor)),
                    }
                }
                Atom::Modulo(inner, divisor) => {
                    let (_, rest) = inner.simplify(of).split_by(*divisor);
                    match rest.range(of) {
                        Some(r) if r.low >= 0 && r.high < *divisor => rest,
                        _ => rest.modulo(*divisor),
                    }
                }
                Atom::Value(expr) => Index::value(expr.map_indices(&mut |index| index.simplify(of))),
            };
            result.absorb(value, *coefficient);
        }
        result
    }
}

/// The greatest common divisor; of 0 and a number, that number.
pub fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The row-major offset of an element, in elements; parts of one fused axis become one term again.
pub fn flatten(indices: &[Index], shape: &[i64]) -> Index {
    let mut sum = Index::constant(0);
    indices.iter().zip(row_major_strides(shape)).for_each(|(index, stride)| sum.add_multiple(index, stride));
    if sum.is_affine() { sum } else { sum.join_divisions() }
}

/// Elements that memory moves by when a variable of an access grows by one; `None` where that is not
/// constant.
pub fn stride_along(indices: &[Index], strides: &[i64], var: Var) -> Option<i64> {
    indices.iter().zip(strides).map(|(index, stride)| Some(index.step(var)? * stride)).sum()
}

impl From<Var> for Index {
    fn from(var: Var) -> Index {
        Index::var(var)
    }
}

impl From<i64> for Index {
    fn from(value: i64) -> Index {
        Index::constant(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range_of(extents: &'static [i64]) -> impl Fn(Var) -> Interval {
        move |var| Interval::below(extents[var.0 as usize])
    }

    #[test]
    fn equal_sums_compare_equal() {
        let (i, j) = (Index::var(Var(0)), Index::var(Var(1)));
        assert_eq!(i.clone().times(3).plus(&j), j.clone().plus(&i.clone().times(2)).plus(&i));
        assert_eq!(i.clone().minus(&i), Index::constant(0));
    }

    #[test]
    fn division_takes_out_what_divides() {
        let (i, j) = (Index::var(Var(0)), Index::var(Var(1)));
        let flat = i.clone().times(8).plus(&j);
        assert_eq!(flat.clone().floor_div(8).simplify(&range_of(&[5, 8])), i);
        assert_eq!(flat.clone().modulo(8).simplify(&range_of(&[5, 8])), j);
        let wider = flat.floor_div(8).simplify(&range_of(&[5, 9]));
        assert!(!wider.is_affine());
        assert_eq!(wider.range(&range_of(&[5, 9])), Some(Interval { low: 0, high: 5 }));
    }

    #[test]
    fn steps_are_known_outside_of_divisions() {
        let (i, j) = (Index::var(Var(0)), Index::var(Var(1)));
        let index = i.clone().times(3).plus(&j.clone().floor_div(4));
        assert_eq!((index.step(Var(0)), index.step(Var(1)), index.step(Var(2))), (Some(3), None, Some(0)));
        assert_eq!(stride_along(&[index.clone(), i], &[10, 1], Var(0)), Some(31));
        assert_eq!(stride_along(&[index, j], &[10, 1], Var(1)), None);
    }

    #[test]
    fn quotient_and_remainder_make_the_whole() {
        let (i, j) = (Index::var(Var(0)), Index::var(Var(1)));
        let flat = i.clone().times(64).plus(&j);
        let parts = flat.clone().floor_div(14).times(28).plus(&flat.clone().modulo(14).times(2)).plus(&j);
        assert_eq!(parts.join_divisions(), flat.clone().times(2).plus(&j));
        let apart = flat.clone().floor_div(14).times(15).plus(&flat.modulo(14));
        assert_eq!(apart.join_divisions(), apart);
    }

    #[test]
    fn ranges_of_negative_coefficients() {
        let index = Index::var(Var(0)).times(-2).plus_constant(3);
        assert_eq!(index.range(&range_of(&[4])), Some(Interval { low: -3, high: 3 }));
        assert_eq!(index.floor_div(2).range(&range_of(&[4])), Some(Interval { low: -2, high: 1 }));
    }
}
