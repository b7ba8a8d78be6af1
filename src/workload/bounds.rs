//! What is known about the values of indices at a point of an expression.

use super::parameter::parameter_range;
use super::prove::Facts;
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
        let structural = self.structural_range(index);
        let mut best = structural;
        for condition in &self.conditions {
            let Some(Interval { low, high }) = condition.implied_range(index) else { continue };
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

    /// Whether `0 <= index < extent` is certain for an extent that is a formula of parameters.
    pub fn is_within(&self, index: &Index, extent: &Index) -> bool {
        // parameters are numbered behind the axes
        let rank = self.ranges.len();
        let renumbered = |index: &Index| {
            index.substitute(&|var| var.as_parameter().map(|number| Index::var(Var((rank + number) as u32))))
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
