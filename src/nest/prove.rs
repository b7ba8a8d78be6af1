//! Proofs that an index is never negative, from what the loops and conditions around it say.
//!
//! Known are the range of each variable and *facts*: indices that are at least 0 where control is. To show that `e ≥ 0`, interval
//! arithmetic is tried first. Where it fails, a term that `e` shares with a fact `f` is eliminated, as in Fourier–Motzkin
//! elimination over the integers: `m·e + m - 1 - k·f ≥ 0` implies `e ≥ 0`, for positive `m` and `k`. A quotient `q = ⌊x / d⌋` brings
//! the facts `0 ≤ x - d·q ≤ d - 1`. Sound, and incomplete: what is not proven may still be true.

use crate::workload::{Atom, Condition, Index, Interval, Var};

/// How many terms are eliminated one after the other.
const DEPTH: usize = 4;
/// Proofs with greater numbers are given up, so that nothing overflows.
const LARGEST: i64 = 1 << 40;

/// What is known at a point of a nest.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// By `Var`.
    ranges: Vec<Interval>,
    /// Each is at least 0.
    nonnegative: Vec<Index>,
}

impl Facts {
    pub fn new(vars: usize) -> Facts {
        Facts { ranges: vec![Interval::point(0); vars], nonnegative: Vec::new() }
    }

    /// Notes how many facts there are; [`Facts::leave`] forgets what came after.
    pub fn enter(&self) -> usize {
        self.nonnegative.len()
    }

    pub fn leave(&mut self, mark: usize) {
        self.nonnegative.truncate(mark);
    }

    /// `0 ≤ var < bound` for each bound.
    pub fn assume_below(&mut self, var: Var, bounds: &[Index]) {
        let constant = bounds.iter().filter_map(Index::as_constant).min().unwrap_or(i64::MAX);
        self.ranges[var.0 as usize] = Interval::below(constant);
        for bound in bounds.iter().filter(|bound| bound.as_constant().is_none()) {
            self.assume(bound.clone().plus_constant(-1).minus(&Index::var(var)));
        }
    }

    /// The conditions hold.
    pub fn assume_all(&mut self, conditions: &[Condition]) {
        for Condition { index, low, high } in conditions {
            // ends beyond the limit are no bounds at all
            if *low > -LARGEST && *low < LARGEST {
                self.assume(index.clone().plus_constant(-low));
            }
            if *high > -LARGEST && *high < LARGEST {
                self.assume(Index::constant(high - 1).minus(index));
            }
        }
    }

    fn assume(&mut self, index: Index) {
        let fact = self.simplify(&index);
        if magnitude(&fact) < LARGEST {
            self.nonnegative.push(fact);
        }
    }

    pub fn simplify(&self, index: &Index) -> Index {
        index.simplify(&|var| self.range(var))
    }

    fn range(&self, var: Var) -> Interval {
        self.ranges[var.0 as usize]
    }

    /// Whether `0 ≤ index < extent` is certain.
    pub fn within(&self, index: &Index, extent: i64) -> bool {
        let index = self.simplify(index);
        self.is_nonnegative(&index) && self.is_nonnegative(&Index::constant(extent - 1).minus(&index))
    }

    /// Whether `index ≥ 0` is certain.
    pub fn is_nonnegative(&self, index: &Index) -> bool {
        self.is_unreachable() || self.prove(&self.simplify(index), DEPTH)
    }

    /// Whether a variable can only have one value here: facts bound it from both sides, whatever the other variables are.
    pub fn is_pinned(&self, var: Var) -> bool {
        let Interval { mut low, mut high } = self.range(var);
        for fact in &self.nonnegative {
            let factor = fact.coefficient(var);
            let rest = fact.clone().minus(&Index::var(var).times(factor));
            if factor == 0 || rest.mentions(var) {
                continue;
            }
            // factor · var ≥ -rest, where rest is as large as it can be
            let Some(Interval { high: most, .. }) = rest.range(&|v| self.range(v)) else { continue };
            match factor > 0 {
                true => low = low.max((-most + factor - 1).div_euclid(factor)),
                false => high = high.min(most.div_euclid(-factor)),
            }
        }
        low >= high
    }

    /// Whether the facts contradict the ranges: then control never comes here, and anything holds.
    fn is_unreachable(&self) -> bool {
        self.nonnegative.iter().any(|fact| fact.range(&|var| self.range(var)).is_some_and(|range| range.high < 0))
    }

    fn prove(&self, goal: &Index, depth: usize) -> bool {
        if goal.range(&|var| self.range(var)).is_some_and(|range| range.low >= 0) {
            return true;
        }
        if depth == 0 {
            return false;
        }
        let divisions = goal.terms().iter().filter_map(|(atom, coefficient)| about_division(atom, *coefficient));
        let divisions: Vec<Index> = divisions.collect();
        self.nonnegative.iter().chain(&divisions).any(|fact| {
            goal.terms().iter().any(|(atom, coefficient)| {
                eliminated(goal, atom, *coefficient, fact).is_some_and(|rest| self.prove(&rest, depth - 1))
            })
        })
    }
}

/// A goal without the term `coefficient · atom`, by the help of a fact that has the term with the same sign.
fn eliminated(goal: &Index, atom: &Atom, coefficient: i64, fact: &Index) -> Option<Index> {
    let (_, other) = fact.terms().iter().find(|(a, _)| a == atom)?;
    if (*other > 0) != (coefficient > 0) {
        return None;
    }
    let divisor = gcd(other.unsigned_abs(), coefficient.unsigned_abs());
    let (m, k) = ((other.unsigned_abs() / divisor) as i64, (coefficient.unsigned_abs() / divisor) as i64);
    let largest = magnitude(goal).checked_mul(m)?.max(magnitude(fact).checked_mul(k)?);
    if largest >= LARGEST {
        return None;
    }
    Some(goal.clone().times(m).plus_constant(m - 1).minus(&fact.clone().times(k)))
}

/// What a division says about itself, in the direction that helps against a coefficient of this sign.
fn about_division(atom: &Atom, coefficient: i64) -> Option<Index> {
    let Atom::FloorDiv(inner, divisor) = atom else { return None };
    if magnitude(inner) >= LARGEST || *divisor >= LARGEST {
        return None;
    }
    let rest = (**inner).clone().minus(&Index::atom(atom.clone()).times(*divisor));
    Some(if coefficient < 0 { rest } else { Index::constant(divisor - 1).minus(&rest) })
}

/// The greatest number in an index.
fn magnitude(index: &Index) -> i64 {
    let numbers = index.terms().iter().map(|(_, coefficient)| *coefficient).chain([index.offset()]);
    numbers.map(i64::saturating_abs).max().unwrap_or(0)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const U: Var = Var(0);
    const V: Var = Var(1);

    /// `u` in 0..25, `v` in 0..min(8, 197 - 8 u)
    fn tail() -> (Facts, Index) {
        let flat = Index::var(U).times(8).plus(&Index::var(V));
        let mut facts = Facts::new(2);
        facts.assume_below(U, &[Index::constant(25)]);
        facts.assume_below(V, &[Index::constant(8), Index::constant(197).minus(&Index::var(U).times(8))]);
        (facts, flat)
    }

    #[test]
    fn a_shortened_loop_bounds_its_tile() {
        let (facts, flat) = tail();
        assert!(facts.within(&flat, 197));
        assert!(!facts.within(&flat, 196));
        assert!(facts.within(&flat.clone().plus_constant(3), 200));
        assert!(!facts.within(&flat.plus_constant(-1), 197));
    }

    #[test]
    fn quotients_are_bounded_by_what_they_divide() {
        let (facts, flat) = tail();
        // ⌊196 / 14⌋ = 14
        assert!(facts.within(&flat.clone().floor_div(14), 15));
        assert!(!facts.within(&flat.clone().floor_div(14), 14));
        assert!(facts.within(&flat.clone().modulo(14), 14));
        assert!(!facts.within(&flat.modulo(14), 13));
    }

    #[test]
    fn conditions_pin_a_variable() {
        let (mut facts, _) = tail();
        // 1 ≤ 197 - 8 u < 8 holds for u = 24 only
        let left = |high| Condition { index: Index::constant(197).minus(&Index::var(U).times(8)), low: 1, high };
        assert!(!facts.is_pinned(U));
        facts.assume_all(&[left(16)]);
        assert!(!facts.is_pinned(U));
        facts.assume_all(&[left(8)]);
        assert!(facts.is_pinned(U) && !facts.is_pinned(V));
    }

    #[test]
    fn anything_holds_where_control_never_comes() {
        let (mut facts, flat) = tail();
        let mark = facts.enter();
        facts.assume_all(&[Condition { index: Index::constant(16), low: 0, high: 16 }]);
        assert!(facts.within(&flat, 1));
        facts.leave(mark);
        assert!(!facts.within(&flat, 1));
    }

    #[test]
    fn conditions_hold_until_they_are_left() {
        let mut facts = Facts::new(2);
        facts.assume_below(U, &[Index::constant(10)]);
        facts.assume_below(V, &[Index::constant(3)]);
        let read = Index::var(U).plus(&Index::var(V)).plus_constant(-1);
        assert!(!facts.within(&read, 10));
        let mark = facts.enter();
        facts.assume_all(&[Condition { index: read.clone(), low: 0, high: 10 }]);
        assert!(facts.within(&read, 10));
        assert!(facts.within(&read.clone().times(2).plus_constant(1), 20));
        facts.leave(mark);
        assert!(!facts.within(&read, 10));
    }
}
