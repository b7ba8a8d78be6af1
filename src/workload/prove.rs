//! Proofs that an index is never negative, from what the loops and conditions around it say.
//!
//! Known are the range of each variable and *facts*: indices that are at least 0 where control is. The least
//! value of an index `e` is found by interval arithmetic. Where that is not enough, a term that `e` shares
//! with a fact `f` is eliminated, as in Fourier–Motzkin elimination: for positive `m` and `k`, `e ≥
//! ⌈least(m·e - k·f) / m⌉`, rounded up to what `e` can be, whose values all leave the same remainder by the
//! greatest common divisor of its coefficients. A quotient `q = ⌊x / d⌋` brings the facts `0 ≤ x - d·q ≤ d -
//! 1`. Sound, and incomplete: what is not proven may still be true.

use std::cell::Cell;

use super::{Atom, Condition, Index, Interval, Var, gcd};

/// How many terms are eliminated one after the other.
const DEPTH: usize = 4;
/// So many sums are looked at, at each depth, before a proof is given up: with many facts, most are looked at
/// for nothing.
const MAX_STEPS: usize = 1 << 12;
/// Proofs with greater numbers are given up, so that nothing overflows.
const LARGEST: i64 = 1 << 40;

/// What is known at a point of a program.
#[derive(Clone, Debug)]
pub struct Facts {
    /// By `Var`.
    ranges: Vec<Interval>,
    /// Each is at least 0.
    nonnegative: Vec<Index>,
    /// Variables that are the same wherever control is.
    unvaried: Vec<Var>,
}

impl Facts {
    pub fn new(vars: usize) -> Facts {
        Facts { ranges: vec![Interval::point(0); vars], nonnegative: Vec::new(), unvaried: Vec::new() }
    }

    /// A variable that no loop binds: a number that is known when it runs.
    pub fn assume_range(&mut self, var: Var, range: Interval) {
        self.ranges[var.0 as usize] = range;
        self.unvaried.push(var);
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
            fact.terms().iter().for_each(|(atom, _)| self.note_quotient(atom));
            self.nonnegative.push(fact);
        }
    }

    /// What a quotient of numbers of the run says about them: other quotients of theirs hang on it.
    fn note_quotient(&mut self, atom: &Atom) {
        let Atom::FloorDiv(inner, _) = atom else { return };
        if inner.has_value() || inner.any_var(&|var| !self.unvaried.contains(&var)) {
            return;
        }
        inner.terms().iter().for_each(|(inner, _)| self.note_quotient(inner));
        for sign in [-1, 1] {
            let known = about_division(atom, sign).filter(|fact| !self.nonnegative.contains(fact));
            self.nonnegative.extend(known);
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
        self.is_within(index, &Index::constant(extent))
    }

    /// The same for an extent that is known only when it runs.
    pub fn is_within(&self, index: &Index, extent: &Index) -> bool {
        if self.is_unreachable() {
            return true;
        }
        let proven = |index: &Index| {
            let distance = extent.clone().plus_constant(-1).minus(index);
            [index, &distance].into_iter().all(|goal| self.is_natural(goal))
        };
        let parts = self.simplify(index);
        // facts may speak of the parts of a fused axis, or of the whole
        proven(&parts) || Some(parts.join_divisions()).is_some_and(|whole| whole != parts && proven(&whole))
    }

    /// Whether an index is certainly never negative: by few eliminations, if they suffice, or by more. Most
    /// proofs are short, and of many facts the first ones would be followed to the end for nothing.
    fn is_natural(&self, index: &Index) -> bool {
        (1..=DEPTH).any(|depth| {
            let steps = Cell::new(MAX_STEPS);
            self.least(index, depth, 0, &steps).is_some_and(|least| least >= 0)
        })
    }

    /// Whether a variable can only have one value here.
    pub fn is_pinned(&self, var: Var) -> bool {
        self.is_pinned_atom(&Atom::Var(var))
    }

    /// Facts bound it from both sides, whatever else varies; or its quotient and its remainder by something.
    fn is_pinned_atom(&self, atom: &Atom) -> bool {
        let itself = Index::atom(atom.clone());
        let Some(Interval { mut low, mut high }) = self.interval(&itself) else { return false };
        for fact in &self.nonnegative {
            let Some((_, factor)) = fact.terms().iter().find(|(a, _)| a == atom) else { continue };
            // factor · atom ≥ -rest, where rest is as large as it can be
            let rest = fact.clone().minus(&itself.clone().times(*factor));
            let Some(Interval { high: most, .. }) = self.interval(&rest) else { continue };
            match *factor > 0 {
                true => low = low.max(ceiling(-most, *factor)),
                false => high = high.min(most.div_euclid(-factor)),
            }
        }
        if self.is_between_neighbours(atom) {
            return true;
        }
        let mut atoms = self.nonnegative.iter().flat_map(Index::terms).map(|(atom, _)| atom);
        low >= high
            || atoms.any(|remainder| match remainder {
                Atom::Modulo(inner, divisor) if **inner == itself => {
                    self.is_pinned_atom(remainder) && self.is_pinned_atom(&Atom::FloorDiv(inner.clone(), *divisor))
                }
                _ => false,
            })
    }

    /// An index that is never less, of nothing that varies; `None` where divisions are of what does.
    fn most_of_varying(&self, index: &Index) -> Option<Index> {
        let varies = |var: Var| !self.unvaried.contains(&var);
        let most = index.substitute(&|var| {
            let Interval { low, high } = self.range(var);
            varies(var).then(|| Index::constant(if index.coefficient(var) > 0 { high } else { low }))
        });
        let is_divided = |(atom, _): &(Atom, i64)| match atom {
            Atom::Var(_) => false,
            other => Index::atom(other.clone()).has_value() || Index::atom(other.clone()).any_var(&varies),
        };
        (!index.terms().iter().any(is_divided)).then_some(most)
    }

    /// Facts bound it from both sides by formulas of what does not vary, between which there is one number at
    /// most.
    fn is_between_neighbours(&self, atom: &Atom) -> bool {
        let itself = Index::atom(atom.clone());
        let ends: Vec<(i64, Index)> = self
            .nonnegative
            .iter()
            .filter_map(|fact| {
                let (_, factor) = fact.terms().iter().find(|(a, _)| a == atom)?;
                let rest = fact.clone().minus(&itself.clone().times(*factor));
                Some((*factor, self.most_of_varying(&rest)?))
            })
            .collect();
        let lower = ends.iter().filter(|(factor, _)| *factor > 0);
        lower.into_iter().any(|(factor, low)| {
            let fits = |(other, high): &(i64, Index)| {
                *other == -factor && low.clone().plus(high).as_constant().is_some_and(|between| between < *factor)
            };
            ends.iter().any(fits)
        })
    }

    /// Whether the facts contradict the ranges: then control never comes here, and anything holds.
    fn is_unreachable(&self) -> bool {
        self.nonnegative.iter().any(|fact| self.interval(fact).is_some_and(|range| range.high < 0))
    }

    fn interval(&self, index: &Index) -> Option<Interval> {
        index.range(&|var| self.range(var))
    }

    /// A lower bound of an index: the first one found that is `enough`, or else the best found in so many
    /// steps.
    fn least(&self, goal: &Index, depth: usize, enough: i64, steps: &Cell<usize>) -> Option<i64> {
        let mut best = self.interval(goal).map(|range| range.low);
        let is_enough = |best: Option<i64>| best.is_some_and(|least| least >= enough);
        if depth == 0 || is_enough(best) || steps.get() == 0 {
            return best;
        }
        steps.set(steps.get() - 1);
        let goal = &self.without_free_vars(goal);
        best = best.max(self.least_by_quotients(goal, depth, steps));
        // all values of the goal leave the same remainder
        let step = goal.terms().iter().fold(0, |step, (_, coefficient)| gcd(step, coefficient.unsigned_abs())) as i64;
        let divisions: Vec<Index> =
            goal.terms().iter().filter_map(|(atom, coefficient)| about_division(atom, *coefficient)).collect();
        for fact in self.nonnegative.iter().chain(&divisions) {
            for (atom, coefficient) in goal.terms() {
                if is_enough(best) {
                    return best;
                }
                let Some((rest, m)) = eliminated(goal, atom, *coefficient, fact) else { continue };
                let Some(least) = self.least(&rest, depth - 1, enough.saturating_mul(m) - (m - 1), steps) else {
                    continue;
                };
                let least = ceiling(least, m);
                best = best.max(Some(least + (goal.offset() - least).rem_euclid(step.max(1))));
            }
        }
        best
    }

    /// The index where every variable that nothing else depends on has the value that makes it least.
    fn without_free_vars(&self, goal: &Index) -> Index {
        let is_divided = |var: Var| {
            goal.terms()
                .iter()
                .any(|(atom, _)| !matches!(atom, Atom::Var(_)) && Index::atom(atom.clone()).mentions(var))
        };
        let is_free = |var: Var| !is_divided(var) && !self.nonnegative.iter().any(|fact| fact.mentions(var));
        goal.substitute(&|var| {
            let Interval { low, high } = self.range(var);
            is_free(var).then(|| Index::constant(if goal.coefficient(var) > 0 { low } else { high }))
        })
    }

    /// Like interval arithmetic, but facts bound what is divided.
    fn least_by_quotients(&self, goal: &Index, depth: usize, steps: &Cell<usize>) -> Option<i64> {
        goal.terms().iter().try_fold(goal.offset(), |total, (atom, coefficient)| {
            let mut range = self.interval(&Index::atom(atom.clone()))?;
            if let Atom::FloorDiv(inner, divisor) = atom {
                let negated = Index::constant(0).minus(inner);
                let low = self.least(inner, depth - 1, i64::MAX, steps)?.div_euclid(*divisor);
                let high = (-self.least(&negated, depth - 1, i64::MAX, steps)?).div_euclid(*divisor);
                range = Interval { low: range.low.max(low), high: range.high.min(high) };
            }
            let end = if *coefficient > 0 { range.low } else { range.high };
            total.checked_add(end.checked_mul(*coefficient)?)
        })
    }
}

/// `⌈a / b⌉` for a positive `b`.
fn ceiling(a: i64, b: i64) -> i64 {
    -(-a).div_euclid(b)
}

/// `(m · goal - k · fact, m)` without the term `coefficient · atom`, by the help of a fact that has the term
/// with the same sign.
fn eliminated(goal: &Index, atom: &Atom, coefficient: i64, fact: &Index) -> Option<(Index, i64)> {
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
    Some((goal.clone().times(m).minus(&fact.clone().times(k)), m))
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
    fn the_parts_of_a_fused_axis_are_bounded_together() {
        // full tiles of 12 of 196, three to a block: 14 rows of 14 pixels
        let (w, mut facts) = (Var(2), Facts::new(3));
        let left = |tiles: i64| Index::constant(tiles).minus(&Index::var(U).times(3));
        facts.assume_below(U, &[Index::constant(6)]);
        facts.assume_below(V, &[Index::constant(3), left(17), left(16)]);
        facts.assume_below(w, &[Index::constant(12)]);
        let flat = Index::var(U).times(36).plus(&Index::var(V).times(12)).plus(&Index::var(w));
        let parts = flat.clone().floor_div(14).times(14).plus(&flat.modulo(14));
        assert!(facts.within(&parts, 196) && facts.within(&parts, 192));
        assert!(!facts.within(&parts, 191));
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
