//! The lesser and the greater of formulas, and whether one never exceeds another.

use super::formulas::Formulas;
use super::operator::Problem;
use crate::graph::symbol::Origin;
use crate::workload::prove::Facts;
use crate::workload::quotient::canonical;
use crate::workload::{Atom, Condition, Index, Var};

/// Greater and lesser ones inside of one another that are looked into.
const MAX_NESTED: usize = 2;
/// The same of bounds that formulas are freed of.
const MAX_BOUNDS: usize = 6;

impl Formulas {
    /// The greater of 0 and a difference as the greater of what is added and what is taken away, less the
    /// latter, where there is a symbol for that: `x + max(0, 256 - x)` is `max(256, x)`.
    pub(super) fn with_known_maxima(&self, formula: &Index) -> Index {
        let known = |atom: &Atom| {
            let Atom::Var(var) = atom else { return None };
            let origin = &self.symbols.list.get(var.as_parameter()?)?.origin;
            let difference = match origin {
                Origin::Maximum(x, y) if x.as_constant() == Some(0) => y,
                Origin::Maximum(x, y) if y.as_constant() == Some(0) => x,
                _ => return None,
            };
            let offset = difference.offset();
            let (mut added, mut taken) =
                (Index::constant(offset.max(0)), Index::constant(offset.saturating_neg().max(0)));
            for (atom, coefficient) in difference.terms() {
                let side = if *coefficient > 0 { &mut added } else { &mut taken };
                *side = side.clone().plus(&Index::atom(atom.clone()).times(coefficient.saturating_abs()));
            }
            let greater = Origin::Maximum(added.clone().min(taken.clone()), added.max(taken.clone()));
            let symbol = self.symbols.list.iter().position(|symbol| symbol.origin == greater)?;
            Some(Index::var(Var::parameter(symbol)).minus(&taken))
        };
        formula.terms().iter().fold(Index::constant(formula.offset()), |sum, (atom, coefficient)| {
            let own = known(atom).unwrap_or_else(|| Index::atom(atom.clone()));
            sum.plus(&own.times(*coefficient))
        })
    }

    /// Whether a formula never exceeds another.
    pub(super) fn is_at_most(&self, x: &Index, y: &Index) -> bool {
        self.is_at_most_by_parts(x, y, MAX_NESTED)
    }

    /// A greater one is at most what both of its parts are, and a lesser one at least.
    fn is_at_most_by_parts(&self, x: &Index, y: &Index, nested: usize) -> bool {
        if self.is_never_above(x, y) {
            return true;
        }
        let Some(nested) = nested.checked_sub(1) else { return false };
        let parts = |formula: &Index| -> Option<(bool, [Index; 2])> {
            let [(Atom::Var(var), 1)] = formula.terms() else { return None };
            let part = |part: &Index| part.clone().plus_constant(formula.offset());
            match &self.symbols.list.get(var.as_parameter()?)?.origin {
                Origin::Maximum(x, y) => Some((true, [x, y].map(part))),
                Origin::Minimum(x, y) => Some((false, [x, y].map(part))),
                _ => None,
            }
        };
        match (parts(x), parts(y)) {
            (Some((true, parts)), _) => parts.iter().all(|part| self.is_at_most_by_parts(part, y, nested)),
            (_, Some((false, parts))) => parts.iter().all(|part| self.is_at_most_by_parts(x, part, nested)),
            _ => false,
        }
    }

    /// Whether the difference of two formulas shows it.
    fn is_never_above(&self, x: &Index, y: &Index) -> bool {
        let difference = y.clone().minus(x);
        if self.range_of(&difference).is_some_and(|range| range.low >= 0) {
            return true;
        }
        if difference.as_constant().is_some() {
            return false;
        }
        // symbols as the variables of a proof
        let numbered = |index: &Index| index.substitute(&|var| Some(Index::var(Var(var.as_parameter()? as u32))));
        let list = &self.symbols.list;
        let mut facts = Facts::new(list.len());
        for (number, symbol) in list.iter().enumerate() {
            facts.assume_range(Var(number as u32), symbol.range.interval());
        }
        let known: Vec<Condition> = list
            .iter()
            .enumerate()
            .flat_map(|(number, symbol)| {
                let own = Index::var(Var(number as u32));
                let apart: Vec<Index> = match &symbol.origin {
                    Origin::Minimum(x, y) => [x, y].into_iter().map(|x| numbered(x).minus(&own)).collect(),
                    Origin::Maximum(x, y) => [x, y].into_iter().map(|x| own.clone().minus(&numbered(x))).collect(),
                    Origin::Count { most } => vec![numbered(most).minus(&own)],
                    _ => Vec::new(),
                };
                apart.into_iter().map(|index| Condition { index, low: 0, high: i64::MAX })
            })
            .collect();
        let assumed = self.assumed.iter().map(|left| Condition { index: numbered(left), low: 0, high: i64::MAX });
        let known: Vec<Condition> = known.into_iter().chain(assumed).collect();
        facts.assume_all(&known);
        let difference = numbered(&difference);
        facts.is_within(&difference, &difference.clone().plus_constant(1))
    }

    /// What has to be at least 0 for two formulas to be the same, where they are then: neither exceeds the
    /// constant that a least one of it and of something else is of, or falls below 0. `None` where they
    /// differ all the same, or where it is not about extents of inputs.
    pub(super) fn equal_within(&self, a: &Index, b: &Index) -> Option<Index> {
        let mut left = Vec::new();
        let (a, b) = (self.unbounded(a, &mut left, MAX_BOUNDS)?, self.unbounded(b, &mut left, MAX_BOUNDS)?);
        if canonical(&a.minus(&b)).as_constant() != Some(0) {
            return None;
        }
        left.retain(|left| self.range_of(left).is_none_or(|range| range.low < 0));
        let is_input = |var: Var| {
            let symbol = var.as_parameter().and_then(|number| self.symbols.list.get(number));
            symbol.is_some_and(|symbol| matches!(symbol.origin, Origin::Axis { .. }))
        };
        // rather one that all others follow from
        let implied = |one: &Index| left.iter().all(|other| self.is_at_most(one, other));
        let chosen = left.iter().find(|one| implied(one)).or(left.first())?;
        (!chosen.any_var(&|var| !is_input(var))).then(|| chosen.clone())
    }

    /// A formula without the constants that it is bounded by; what then has to be at least 0 is noted.
    fn unbounded(&self, formula: &Index, left: &mut Vec<Index>, nested: usize) -> Option<Index> {
        let nested = nested.checked_sub(1)?;
        let mut sum = Index::constant(formula.offset());
        for (atom, coefficient) in formula.terms() {
            let of_var = match atom {
                Atom::Var(var) => var.as_parameter().and_then(|number| self.symbols.list.get(number)),
                _ => None,
            };
            let bounded = match of_var.map(|symbol| &symbol.origin) {
                Some(Origin::Minimum(x, y)) => Some((x, y, true)),
                Some(Origin::Maximum(x, y)) => Some((x, y, false)),
                _ => None,
            };
            let own = match bounded {
                Some((bound, other, is_least)) | Some((other, bound, is_least)) if bound.as_constant().is_some() => {
                    let other = self.unbounded(other, left, nested)?;
                    let (low, high) = if is_least { (&other, bound) } else { (bound, &other) };
                    left.push(high.clone().minus(low));
                    other
                }
                _ => Index::atom(atom.clone()),
            };
            sum = sum.plus(&own.times(*coefficient));
        }
        Some(sum)
    }

    /// The lesser of two formulas.
    ///
    /// # Errors
    /// [`Problem::TooLarge`].
    pub(super) fn lesser(&mut self, x: &Index, y: &Index) -> Result<Index, Problem> {
        match (self.is_at_most(x, y), self.is_at_most(y, x)) {
            (true, _) => Ok(x.clone()),
            (_, true) => Ok(y.clone()),
            _ => self.derived(Origin::Minimum(x.clone().min(y.clone()), x.clone().max(y.clone()))),
        }
    }

    /// The greater of two formulas.
    ///
    /// # Errors
    /// [`Problem::TooLarge`].
    pub(super) fn greater(&mut self, x: &Index, y: &Index) -> Result<Index, Problem> {
        match (self.is_at_most(y, x), self.is_at_most(x, y)) {
            (true, _) => Ok(x.clone()),
            (_, true) => Ok(y.clone()),
            _ => self.derived(Origin::Maximum(x.clone().min(y.clone()), x.clone().max(y.clone()))),
        }
    }

    /// The greater of a formula and 0, as one whose parts say that it is not negative: else a symbol of its
    /// own.
    ///
    /// # Errors
    /// [`Problem::TooLarge`].
    pub(super) fn natural(&mut self, formula: &Index) -> Result<Index, Problem> {
        let zero = Index::constant(0);
        let greater = self.greater(formula, &zero)?;
        let greater = self.simple(&greater);
        match self.range_of(&greater) {
            Some(range) if range.low < 0 => self.derived(Origin::Maximum(zero, greater)),
            _ => Ok(greater),
        }
    }
}
