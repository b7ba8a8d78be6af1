//! Extents that are known when a workload runs.
//!
//! A *parameter* is a number that a workload is given with every run: the length of a sequence, the images of
//! a batch. Extents may be formulas of parameters, and expressions may use them like axes, as the variables
//! [`Var::parameter`]. The shape of a tensor and the axes of a stage say what their extents are *at most*,
//! which is what sizes are planned for; [`Extents`] says which of them are less when it runs. Tensors are
//! dense and row-major in the extents of the run.

use super::{Condition, Expr, Index, Interval, Stage, Tensor, Var, Workload};

/// The values that a parameter can take; both ends belong to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Parameter {
    /// At least 0.
    pub low: i64,
    pub high: i64,
}

impl Parameter {
    pub fn contains(self, value: i64) -> bool {
        self.low <= value && value <= self.high
    }

    pub fn interval(self) -> Interval {
        Interval { low: self.low, high: self.high }
    }
}

/// A point of little work runs so often beside one of much, at most.
const MOST_TIMES: i64 = 16;
/// What a core computes while it waits for one byte of memory, in round numbers.
const OPERATIONS_PER_BYTE: i64 = 8;

/// Variables from this number on are parameters.
const FIRST_PARAMETER: u32 = 1 << 31;

impl Var {
    /// The variable that stands for a parameter of a workload.
    pub fn parameter(number: usize) -> Var {
        Var(FIRST_PARAMETER + number as u32)
    }

    /// The number of the parameter that it stands for; `None` for an axis.
    pub fn as_parameter(self) -> Option<usize> {
        self.0.checked_sub(FIRST_PARAMETER).map(|number| number as usize)
    }
}

/// The extents among several that are known when it runs: formulas of parameters, by position.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Extents(Vec<(usize, Index)>);

impl Extents {
    /// All extents are what they are at most.
    pub fn fixed() -> Extents {
        Extents::default()
    }

    /// Formulas by position; constants among them are no run-time extents.
    pub fn new(formulas: impl IntoIterator<Item = (usize, Index)>) -> Extents {
        let mut known: Vec<_> = formulas.into_iter().filter(|(_, formula)| formula.as_constant().is_none()).collect();
        known.sort_by_key(|(position, _)| *position);
        Extents(known)
    }

    pub fn is_fixed(&self) -> bool {
        self.0.is_empty()
    }

    /// The formula of an extent; `None` where it is fixed.
    pub fn get(&self, position: usize) -> Option<&Index> {
        self.0.iter().find(|(at, _)| *at == position).map(|(_, formula)| formula)
    }

    /// The formula of an extent that is `most` at most.
    pub fn formula(&self, position: usize, most: i64) -> Index {
        self.get(position).cloned().unwrap_or(Index::constant(most))
    }

    /// Positions and formulas, in the order of the positions.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Index)> {
        self.0.iter().map(|(position, formula)| (*position, formula))
    }

    /// The same formulas at other positions; those that get none are left out.
    #[must_use]
    pub fn moved(&self, position: impl Fn(usize) -> Option<usize>) -> Extents {
        Extents::new(self.iter().filter_map(|(at, formula)| Some((position(at)?, formula.clone()))))
    }

    /// Other formulas at the same positions.
    #[must_use]
    pub fn map(&self, change: impl Fn(usize, &Index) -> Index) -> Extents {
        Extents::new(self.iter().map(|(at, formula)| (at, change(at, formula))))
    }

    /// These, and those of another list behind `count` positions.
    #[must_use]
    pub fn followed_by(&self, count: usize, others: &Extents) -> Extents {
        let own = self.iter().filter(|(at, _)| *at < count).map(|(at, formula)| (at, formula.clone()));
        Extents::new(own.chain(others.iter().map(|(at, formula)| (at + count, formula.clone()))))
    }

    /// What the extents are where parameters have these values, of those that are `most` at most.
    pub fn at(&self, most: &[i64], values: &[i64]) -> Vec<i64> {
        let replace = values_of(values);
        let extent = |(at, most): (usize, &i64)| {
            self.get(at).and_then(|formula| formula.substitute(&replace).as_constant()).unwrap_or(*most)
        };
        most.iter().enumerate().map(extent).collect()
    }
}

/// Replaces parameters by their values; those that have none stay.
pub(super) fn values_of(values: &[i64]) -> impl Fn(Var) -> Option<Index> + '_ {
    |var| var.as_parameter().and_then(|number| values.get(number)).map(|value| Index::constant(*value))
}

impl Tensor {
    /// The tensor where parameters have these values.
    #[must_use]
    pub fn at(&self, values: &[i64]) -> Tensor {
        let shape = self.extents.at(&self.shape, values);
        Tensor { shape, extents: Extents::fixed(), ..self.clone() }
    }

    /// Its extents as formulas: constants where they are fixed.
    pub fn formulas(&self) -> Vec<Index> {
        self.shape.iter().enumerate().map(|(axis, most)| self.extents.formula(axis, *most)).collect()
    }
}

impl Stage {
    /// The stage where parameters have these values.
    #[must_use]
    pub fn at(&self, values: &[i64]) -> Stage {
        let most: Vec<i64> = self.spatial.iter().chain(&self.reduction).copied().collect();
        let mut spatial = self.extents.at(&most, values);
        let reduction = spatial.split_off(self.spatial.len());
        let value = self.value.substitute(&values_of(values)).rewrite(&mut |expr| match expr {
            Expr::Guard { conditions, inside, outside } => {
                Expr::Guard { conditions: Condition::joined(&conditions), inside, outside }
            }
            other => other,
        });
        Stage { spatial, reduction, value, extents: Extents::fixed(), ..self.clone() }
    }

    /// The extent of an axis as a formula of parameters.
    pub fn formula(&self, axis: usize) -> Index {
        self.extents.formula(axis, self.extent(axis))
    }
}

impl Workload {
    /// The workload where its parameters have these values: one of fixed extents.
    #[must_use]
    pub fn at(&self, values: &[i64]) -> Workload {
        Workload {
            parameters: Vec::new(),
            points: Vec::new(),
            tensors: self.tensors.iter().map(|tensor| tensor.at(values)).collect(),
            stages: self.stages.iter().map(|stage| stage.at(values)).collect(),
        }
    }

    /// Whether all extents are fixed.
    pub fn is_fixed(&self) -> bool {
        self.parameters.is_empty()
    }

    /// The values that a formula of parameters can take.
    pub fn formula_range(&self, formula: &Index) -> Option<Interval> {
        formula.range(&|var| parameter_range(&self.parameters, var))
    }

    /// Whether every number is one that its parameter can take.
    pub fn accepts(&self, values: &[i64]) -> bool {
        values.len() == self.parameters.len()
            && self.parameters.iter().zip(values).all(|(parameter, value)| parameter.contains(*value))
    }

    /// Numbers for the parameters that programs are timed with, and how often each of them runs in what is
    /// timed as one: points of little work run more often, so that no point's time is lost in another's.
    /// Without parameters there is one, of no numbers.
    pub fn examples(&self) -> Vec<(Vec<i64>, u32)> {
        let middle = |parameter: &Parameter| {
            let least = parameter.low.max(1).min(parameter.high);
            ((least as f64 * parameter.high as f64).sqrt().round() as i64).clamp(least, parameter.high)
        };
        let points = match self.points.as_slice() {
            [] => vec![self.parameters.iter().map(middle).collect()],
            points => points.to_vec(),
        };
        let work: Vec<i64> = points.iter().map(|values| self.at(values).work().max(1)).collect();
        let most = work.iter().copied().max().unwrap_or(1);
        let times = work.into_iter().map(|work| (most / work).clamp(1, MOST_TIMES) as u32);
        points.into_iter().zip(times).collect()
    }

    /// The point among those that programs are timed with that has the most work: what has learned from fixed
    /// workloads is asked about this one.
    pub fn typical_point(&self) -> Vec<i64> {
        self.points_by_work().into_iter().next().unwrap_or_default()
    }

    /// The points that programs are timed with, that with the most work first.
    pub fn points_by_work(&self) -> Vec<Vec<i64>> {
        if self.is_fixed() {
            return vec![Vec::new()];
        }
        let mut points: Vec<Vec<i64>> = self.examples().into_iter().map(|(values, _)| values).collect();
        points.sort_by_cached_key(|values| std::cmp::Reverse(self.at(values).work()));
        points
    }

    /// Floating-point operations where programs are timed: the geometric mean over the points, as their times
    /// are.
    pub fn timed_flops(&self) -> f64 {
        let points = self.examples();
        let logarithms = points.iter().map(|(values, _)| (self.at(values).flops().max(1) as f64).ln());
        (logarithms.sum::<f64>() / points.len() as f64).exp()
    }

    /// About how long it takes, in operations: moving a byte takes as long as some of them.
    pub(crate) fn work(&self) -> i64 {
        let bytes: usize = self.tensors.iter().map(Tensor::bytes).sum();
        self.flops().max((bytes as i64).saturating_mul(OPERATIONS_PER_BYTE))
    }

    /// Whether it has an extent of 0 for some values of its parameters.
    pub fn may_be_empty(&self) -> bool {
        let formulas = self.tensors.iter().flat_map(|tensor| tensor.extents.iter().map(|(_, formula)| formula));
        formulas.into_iter().any(|formula| self.formula_range(formula).is_none_or(|range| range.low < 1))
    }

    /// Appends a parameter, and returns its variable.
    pub fn add_parameter(&mut self, parameter: Parameter) -> Var {
        self.parameters.push(parameter);
        Var::parameter(self.parameters.len() - 1)
    }
}

/// What a variable can be, if it is a parameter; nothing is known of others.
pub(super) fn parameter_range(parameters: &[Parameter], var: Var) -> Interval {
    let known = var.as_parameter().and_then(|number| parameters.get(number));
    known.map_or(Interval { low: i64::MIN, high: i64::MAX }, |parameter| parameter.interval())
}

/// Whether an index depends on nothing but parameters, of which there are so many.
pub(super) fn is_formula(index: &Index, parameters: usize) -> bool {
    let is_foreign = |var: Var| var.as_parameter().is_none_or(|number| number >= parameters);
    !index.has_value() && !index.any_var(&is_foreign)
}
