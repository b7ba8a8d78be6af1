//! What is known about the values of indices at a point of an expression.

use super::parameter::parameter_range;
use super::prove::Facts;
use super::quotient::canonical;
use super::{Atom, Binary, Condition, DType, Expr, Index, Interval, Parameter, Stage, Unary, Var};

/// Axis ranges, and the conditions of the guards around an expression.
#[derive(Clone, Debug)]
pub struct StageFacts {
    ranges: Vec<Interval>,
    parameters: Vec<Parameter>,
    /// The first ones say that axes end where their extents do when it runs.
    conditions: Vec<Condition>,
    /// How many of the conditions these are.
    ends: usize,
}

impl StageFacts {
    /// At the root of a stage's value, in a workload of these parameters.
    pub fn of_stage(stage: &Stage, parameters: &[Parameter]) -> StageFacts {
        let ranges = (0..stage.rank()).map(|axis| stage.axis_range(Var(axis as u32))).collect();
        let ends = stage.extents.iter().map(|(axis, formula)| Condition::below(&Index::var(Var(axis as u32)), formula));
        let conditions: Vec<Condition> = ends.collect();
        StageFacts { ranges, parameters: parameters.to_vec(), ends: conditions.len(), conditions }
    }

    /// Inside of a guard.
    #[must_use]
    pub fn and(&self, conditions: &[Condition]) -> StageFacts {
        let mut facts = self.clone();
        facts.conditions.extend_from_slice(conditions);
        for condition in conditions {
            let bounds = Interval { low: condition.low, high: condition.high.saturating_sub(1) };
            for (atom, coefficient) in condition.index.terms() {
                if let Atom::Var(var) = atom {
                    facts.narrow(*var, *coefficient, &condition.index, bounds);
                }
            }
        }
        facts
    }

    /// The conditions of the guards around.
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// The ranges of axes and parameters where the conditions hold.
    pub fn var_range(&self, var: Var) -> Interval {
        if var.as_parameter().is_some() {
            return parameter_range(&self.parameters, var);
        }
        self.ranges.get(var.0 as usize).copied().unwrap_or(Interval::point(0))
    }

    /// Solves `bounds.low <= index <= bounds.high` for one variable of `index`, given the ranges of the
    /// others.
    fn narrow(&mut self, var: Var, coefficient: i64, index: &Index, bounds: Interval) {
        let Some(position) = self.ranges.get(var.0 as usize).copied() else { return };
        let others = index.clone().minus(&Index::var(var).times(coefficient));
        let Some(rest) = self.range(&others) else { return };
        let (Some(low), Some(high)) = (bounds.low.checked_sub(rest.high), bounds.high.checked_sub(rest.low)) else {
            return;
        };
        // low <= coefficient * var <= high
        let (low, high) = if coefficient > 0 {
            (ceil_div(low, coefficient), high.div_euclid(coefficient))
        } else {
            (ceil_div(high.saturating_neg(), -coefficient), low.saturating_neg().div_euclid(-coefficient))
        };
        let narrowed = Interval { low: position.low.max(low), high: position.high.min(high) };
        if narrowed.low <= narrowed.high {
            self.ranges[var.0 as usize] = narrowed;
        }
    }

    /// The values that an index can take here; `None` where nothing is known.
    pub fn range(&self, index: &Index) -> Option<Interval> {
        let mut best = self.structural_range(index);
        let implied = self.conditions.iter().filter_map(|condition| condition.implied_range(index));
        for Interval { low, high } in implied.chain(self.range_of_parts(index)) {
            let narrowed = match best {
                Some(known) => Interval { low: known.low.max(low), high: known.high.min(high) },
                None => Interval { low, high },
            };
            if narrowed.low <= narrowed.high {
                best = Some(narrowed);
            }
        }
        best
    }

    /// The values of an index that holds what conditions bound, as often as may be: where rows `b + d - 3`
    /// and columns `c + e - 3` are within an image, an address `56·(b + d - 3) + (c + e - 3)` is.
    fn range_of_parts(&self, index: &Index) -> Option<Interval> {
        let (mut rest, mut parts) = (index.clone(), Interval::point(0));
        // what bounds a single axis has narrowed its range already
        for condition in self.conditions.iter().filter(|condition| condition.index.terms().len() > 1) {
            // offsets come from outside: a multiple of one may leave 64 bits
            let offset = condition.index.offset();
            let terms = condition.index.clone().plus_constant(-offset);
            let bounds = condition.low.checked_sub(offset).zip(condition.high.saturating_sub(1).checked_sub(offset));
            let Some((times, (low, high))) = times_within(&rest, &terms).zip(bounds) else { continue };
            let part = Interval { low, high }.times(times);
            let Some(sum) = part.and_then(|part| part.plus(parts)) else { continue };
            rest = rest.minus(&terms.times(times));
            parts = sum;
        }
        if rest == *index { None } else { self.structural_range(&rest)?.plus(parts) }
    }

    /// Whether `0 <= index < extent` is certain for an extent that is a formula of parameters.
    pub fn is_within(&self, index: &Index, extent: &Index) -> bool {
        // parameters are numbered behind the axes
        let rank = self.ranges.len();
        // one number of blocks may be written in two ways
        let renumbered = |index: &Index| {
            canonical(
                &index.substitute(&|var| var.as_parameter().map(|number| Index::var(Var((rank + number) as u32)))),
            )
        };
        let mut facts = Facts::new(rank + self.parameters.len());
        for (axis, range) in self.ranges.iter().enumerate() {
            facts.assume_range(Var(axis as u32), *range);
        }
        for (number, parameter) in self.parameters.iter().enumerate() {
            facts.assume_range(Var((rank + number) as u32), parameter.interval());
        }
        // that an axis runs at all is no reason for what does not move with it, which may be copied outside
        let is_axis_of_index = |var: Var| var.as_parameter().is_none() && index.mentions(var);
        let concerns = |(at, c): &(usize, &Condition)| *at >= self.ends || c.index.any_var(&is_axis_of_index);
        let known = self.conditions.iter().enumerate().filter(concerns).map(|(_, condition)| condition);
        let known = known.filter(|condition| !condition.index.has_value());
        let known: Vec<Condition> =
            known.map(|c| Condition { index: renumbered(&c.index), low: c.low, high: c.high }).collect();
        facts.assume_all(&known);
        facts.is_within(&renumbered(index), &renumbered(extent))
    }

    /// Whether a condition holds at every point.
    pub fn always(&self, condition: &Condition) -> bool {
        self.range(&condition.index).is_some_and(|r| r.low >= condition.low && r.high < condition.high)
    }

    /// Whether a condition holds at no point.
    pub fn never(&self, condition: &Condition) -> bool {
        condition.low >= condition.high
            || self.range(&condition.index).is_some_and(|r| r.high < condition.low || r.low >= condition.high)
    }

    fn structural_range(&self, index: &Index) -> Option<Interval> {
        index.range_by(&|var| self.var_range(var), &|inner| self.range(inner), &|value| self.value_range(value))
    }

    /// The range of an integer expression: clamped gathers have one.
    fn value_range(&self, expr: &Expr) -> Option<Interval> {
        match expr {
            Expr::Index(index) => self.range(index),
            Expr::Cast(DType::I64, inner) => self.value_range(inner),
            Expr::Unary(Unary::Absolute, inner) => {
                let inner = self.value_range(inner)?;
                let (a, b) = (inner.low.checked_abs()?, inner.high.checked_abs()?);
                let low = if inner.low <= 0 && inner.high >= 0 { 0 } else { a.min(b) };
                Some(Interval { low, high: a.max(b) })
            }
            Expr::Binary(Binary::Maximum, x, y) => match (self.value_range(x), self.value_range(y)) {
                (Some(x), Some(y)) => Some(Interval { low: x.low.max(y.low), high: x.high.max(y.high) }),
                (Some(known), None) | (None, Some(known)) => Some(Interval { low: known.low, high: i64::MAX }),
                (None, None) => None,
            },
            Expr::Binary(Binary::Minimum, x, y) => match (self.value_range(x), self.value_range(y)) {
                (Some(x), Some(y)) => Some(Interval { low: x.low.min(y.low), high: x.high.min(y.high) }),
                (Some(known), None) | (None, Some(known)) => Some(Interval { low: i64::MIN, high: known.high }),
                (None, None) => None,
            },
            _ => None,
        }
    }
}

/// How many times the terms of a part are among those of an index; `None` where they are not, or not all of
/// them as often.
fn times_within(index: &Index, part: &Index) -> Option<i64> {
    let coefficient = |atom: &Atom| index.terms().iter().find(|(own, _)| own == atom).map(|(_, c)| *c);
    let (first, rest) = part.terms().split_first()?;
    let of_first = coefficient(&first.0)?;
    let times = of_first.checked_div(first.1).filter(|times| times.checked_mul(first.1) == Some(of_first))?;
    let is_as_often = |(atom, own): &(Atom, i64)| coefficient(atom).is_some_and(|c| own.checked_mul(times) == Some(c));
    rest.iter().all(is_as_often).then_some(times)
}

/// `ceil(a / b)` for a positive `b`.
fn ceil_div(a: i64, b: i64) -> i64 {
    a.div_euclid(b) + i64::from(a.rem_euclid(b) != 0)
}

#[cfg(test)]
mod tests {
    use super::StageFacts;
    use crate::workload::{Condition, Expr, Index, Interval, Stage, TensorId, Var};

    fn facts() -> StageFacts {
        StageFacts::of_stage(&Stage::map(TensorId(0), vec![10, 4], Expr::float(0.0)), &[])
    }

    #[test]
    fn conditions_narrow_axes_and_equal_indices() {
        let (a, b) = (Index::var(Var(0)), Index::var(Var(1)));
        let sum = a.clone().plus(&b).plus_constant(-2);
        assert_eq!(facts().range(&sum), Some(Interval { low: -2, high: 10 }));
        let inside = facts().and(&[Condition { index: sum.clone(), low: 0, high: 9 }]);
        assert_eq!(inside.range(&sum), Some(Interval { low: 0, high: 8 }));
        assert_eq!(inside.range(&sum.clone().floor_div(2)), Some(Interval { low: 0, high: 4 }));
        let inside = facts().and(&[Condition { index: a.clone(), low: 3, high: 7 }]);
        assert_eq!(inside.range(&a.clone().times(2).plus(&b)), Some(Interval { low: 6, high: 15 }));
        let inside = facts().and(&[Condition { index: a.clone().times(-2), low: -9, high: -2 }]);
        assert_eq!(inside.var_range(Var(0)), Interval { low: 2, high: 4 });
    }

    #[test]
    fn conditions_on_parts_bound_the_whole() {
        let var = |number| Index::var(Var(number));
        let value = Expr::float(0.0);
        let facts = StageFacts::of_stage(&Stage::map(TensorId(0), vec![56, 7, 56, 7, 4], value), &[]);
        let sum = |a, b| var(a).plus(&var(b)).plus_constant(-3);
        let within = |index: &Index| Condition { index: index.clone(), low: 0, high: 56 };
        let (row, column) = (sum(0, 1), sum(2, 3));
        let inside = facts.and(&[within(&row), within(&column)]);
        let address = row.clone().times(56).plus(&column);
        assert_eq!(facts.range(&address), Some(Interval { low: -171, high: 3306 }));
        assert_eq!(inside.range(&address), Some(Interval { low: 0, high: 3135 }));
        let of_block = var(4).times(3136).plus(&address);
        assert_eq!(inside.range(&of_block.floor_div(3136)), Some(Interval { low: 0, high: 3 }));
        // conditions whose offsets or coefficients leave 64 bits when multiplied say nothing, and neither
        // does a part that is not there as a whole
        let far = Condition { index: row.clone().plus_constant(1 << 39), low: 0, high: 1 << 41 };
        let often = row.clone().times(1 << 39).plus_constant(-1);
        assert_eq!(facts.and(&[far]).range(&often), facts.range(&often));
        let unheard_of = Condition { index: var(0).plus(&var(1).times(1 << 39)), low: 0, high: 1 };
        let often = var(0).times(1 << 39);
        assert_eq!(facts.and(&[unheard_of]).range_of_parts(&often), None);
        let apart = var(0).times(56).plus(&var(1).times(55)).plus(&column);
        assert_eq!(inside.range(&apart), Some(Interval { low: 0, high: 3080 + 330 + 55 }));
    }

    #[test]
    fn a_condition_on_what_is_left_bounds_what_is_reached() {
        let sum = Index::var(Var(0)).plus(&Index::var(Var(1))).plus_constant(-1);
        let left = Condition { index: Index::constant(5).minus(&sum), low: 1, high: i64::MAX };
        let at_most = Condition { index: sum.clone(), low: 0, high: 512 };
        assert_eq!(facts().and(&[at_most, left]).range(&sum), Some(Interval { low: 0, high: 4 }));
    }

    #[test]
    fn what_always_or_never_holds() {
        let a = Index::var(Var(0));
        assert!(facts().always(&Condition { index: a.clone(), low: 0, high: 10 }));
        assert!(!facts().always(&Condition { index: a.clone(), low: 0, high: 9 }));
        assert!(facts().never(&Condition { index: a, low: 10, high: 20 }));
    }
}
