//! Numbers that are known when a network runs: extents of its inputs, and what follows from them.
//!
//! The extents of a program's tensors and the indices of its stages are formulas of its *symbols*, which
//! stand in them as the parameters of their numbers ([`Var::parameter`]). Most symbols are extents of inputs;
//! what no formula says (formulas are sums, with floor divisions by constants) is a symbol of its own.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::workload::{Atom, Index, Interval, Parameter, Tensor, TensorId, Var, Workload};

use super::{Program, Step};

/// A number that is known when the network runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symbol {
    /// As in the ONNX file, or what it is computed from.
    pub name: String,
    pub range: Parameter,
    /// It is a multiple of this, and so are the ends of its range: what is halved again and again and has to
    /// fit what was doubled.
    pub multiple: i64,
    pub origin: Origin,
}

impl Symbol {
    /// A number that may be any of its range.
    pub fn new(name: impl Into<String>, range: Parameter, origin: Origin) -> Symbol {
        Symbol { name: name.into(), range, multiple: 1, origin }
    }

    pub fn admits(&self, value: i64) -> bool {
        self.range.contains(value) && value % self.multiple == 0
    }

    /// Its values in words: `32 to 2048 in steps of 32`.
    pub fn values(&self) -> String {
        let Parameter { low, high } = self.range;
        match self.multiple {
            1 => format!("{low} to {high}"),
            multiple => format!("{low} to {high} in steps of {multiple}"),
        }
    }
}

/// Where a symbol's value comes from. Formulas are of symbols of smaller numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The extent of an axis of an input, both by position. Other inputs may have it, too.
    Axis {
        input: usize,
        axis: usize,
    },
    /// How many rows a state has, by its position in `carried`: what earlier runs have left.
    Rows {
        state: usize,
    },
    /// How many elements of its results a library call has found; `most` before it has run, which no count
    /// exceeds. The call names the symbol.
    Count {
        most: Index,
    },
    Product(Index, Index),
    /// The first, divided by the second, rounded down; the second is at least 1.
    Quotient(Index, Index),
    Minimum(Index, Index),
    Maximum(Index, Index),
}

impl Origin {
    /// Whether a run says what it is; else it is computed.
    pub fn is_given(&self) -> bool {
        matches!(self, Origin::Axis { .. } | Origin::Rows { .. })
    }

    /// The formulas that it is computed from.
    pub fn formulas(&self) -> Vec<&Index> {
        match self {
            Origin::Axis { .. } | Origin::Rows { .. } => Vec::new(),
            Origin::Count { most } => vec![most],
            Origin::Product(x, y) | Origin::Quotient(x, y) | Origin::Minimum(x, y) | Origin::Maximum(x, y) => {
                vec![x, y]
            }
        }
    }

    /// The same, to be changed.
    pub fn formulas_mut(&mut self) -> Vec<&mut Index> {
        match self {
            Origin::Axis { .. } | Origin::Rows { .. } => Vec::new(),
            Origin::Count { most } => vec![most],
            Origin::Product(x, y) | Origin::Quotient(x, y) | Origin::Minimum(x, y) | Origin::Maximum(x, y) => {
                vec![x, y]
            }
        }
    }
}

/// What has to hold before a network runs: that a formula is at least 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Requirement {
    pub formula: Index,
    /// For people: `sequence of ids is at least 3, for MaxPool pool1`.
    pub what: String,
}

/// Extents that a network does not take: the fault of whoever gave them.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ExtentError {
    #[error("{inputs} inputs are given; the network takes {expected}")]
    Inputs { inputs: usize, expected: usize },
    #[error("input {input} has {found} axes; the network takes {expected}")]
    Rank { input: String, found: usize, expected: usize },
    #[error("axis {axis} of input {input}, {name}, is {found}; the network takes {values}")]
    Range { input: String, axis: usize, name: String, found: i64, values: String },
    #[error("axis {axis} of input {input} is {found}; it has to be {expected}")]
    Extent { input: String, axis: usize, found: i64, expected: i64 },
    #[error("{name} is {found}; the network takes {values}")]
    Derived { name: String, found: i64, values: String },
    #[error("the extents do not fit together: {0}")]
    Requirement(String),
}

/// The symbols of a network, with all that has to hold for them.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Symbols {
    /// Each after those that it is computed from.
    pub list: Vec<Symbol>,
    pub requirements: Vec<Requirement>,
}

impl Symbols {
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn add(&mut self, symbol: Symbol) -> Var {
        self.list.push(symbol);
        Var::parameter(self.list.len() - 1)
    }

    /// The product of formulas, of which one is a constant, or which becomes a symbol of its own.
    pub fn product(&mut self, x: &Index, y: &Index) -> Index {
        match (x.as_constant(), y.as_constant()) {
            (Some(factor), _) => return y.clone().times(factor),
            (_, Some(factor)) => return x.clone().times(factor),
            (None, None) => {}
        }
        let origin = Origin::Product(x.clone(), y.clone());
        if let Some(known) = self.list.iter().position(|symbol| symbol.origin == origin) {
            return Index::var(Var::parameter(known));
        }
        let ranges = self.ranges();
        let ends = |formula: &Index| range(formula, &ranges).unwrap_or(Interval { low: 0, high: i64::MAX });
        let (x, y) = (ends(x), ends(y));
        let low = x.low.max(0).saturating_mul(y.low.max(0));
        let range = Parameter { low, high: x.high.max(0).saturating_mul(y.high.max(0)) };
        Index::var(self.add(Symbol::new(format!("product {}", self.list.len()), range, origin)))
    }

    /// How many elements a tensor has: a formula of the symbols, to which products are added.
    pub fn elements(&mut self, tensor: &Tensor) -> Index {
        tensor.formulas().iter().fold(Index::constant(1), |product, extent| self.product(&product, extent))
    }

    /// Their ranges, as those of a workload's parameters.
    pub fn ranges(&self) -> Vec<Parameter> {
        self.list.iter().map(|symbol| symbol.range).collect()
    }

    /// Makes the symbols that a workload mentions its parameters, in the order in which it does; gives the
    /// symbol of each.
    pub fn become_parameters(&self, workload: &mut Workload) -> Vec<Var> {
        let mut taken: Vec<Var> = Vec::new();
        let mut note = |index: &Index| {
            index.for_each_var(&mut |var| {
                if var.as_parameter().is_some() && !taken.contains(&var) {
                    taken.push(var);
                }
            });
        };
        workload.tensors.iter().flat_map(|tensor| tensor.extents.iter()).for_each(|(_, formula)| note(formula));
        workload.stages.iter().for_each(|stage| stage.for_each_formula(&mut note));
        let number = |var: Var| {
            let number = taken.iter().position(|symbol| *symbol == var)?;
            Some(Index::var(Var::parameter(number)))
        };
        for tensor in &mut workload.tensors {
            tensor.extents = tensor.extents.map(|_, formula| formula.substitute(&number));
        }
        for stage in workload.stages.iter_mut().filter(|_| !taken.is_empty()) {
            stage.extents = stage.extents.map(|_, formula| formula.substitute(&number));
            stage.value = stage.value.substitute(&number);
        }
        let range = |var: &Var| Some(self.list.get(var.as_parameter()?)?.range);
        workload.parameters = taken.iter().filter_map(range).collect();
        taken
    }

    /// The values of all symbols, from those of a run before some results were counted: `counts` are what is
    /// known of them by now, by symbol. `None` where any is out of its range, or what is required of them
    /// does not hold.
    pub fn recounted(&self, values: &[i64], counts: &BTreeMap<usize, i64>) -> Option<Vec<i64>> {
        let mut found = Vec::with_capacity(self.list.len());
        for (number, symbol) in self.list.iter().enumerate() {
            let value = match (counts.get(&number), symbol.origin.is_given()) {
                (Some(count), _) => *count,
                (None, true) => *values.get(number)?,
                (None, false) => derived(&symbol.origin, &found)?,
            };
            if !symbol.admits(value) {
                return None;
            }
            found.push(value);
        }
        let is_counted = |symbol: &usize| counts.contains_key(symbol);
        let is_known = |requirement: &&Requirement| self.counts_in(&requirement.formula).iter().all(is_counted);
        let mut required = self.requirements.iter().filter(is_known);
        required.all(|needed| at(&needed.formula, &found).is_some_and(|value| value >= 0)).then_some(found)
    }

    /// The counted symbols that a formula depends on, directly or through others.
    pub fn counts_in(&self, formula: &Index) -> BTreeSet<usize> {
        let is_count = |number: &usize| matches!(self.list[*number].origin, Origin::Count { .. });
        self.sources_of(formula).into_iter().filter(is_count).collect()
    }

    /// The symbols that a formula depends on, directly or through others, and that are not computed.
    pub fn sources_of(&self, formula: &Index) -> BTreeSet<usize> {
        let (mut found, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut pending = Vec::new();
        formula.for_each_var(&mut |var| pending.extend(var.as_parameter()));
        while let Some(number) = pending.pop() {
            let Some(symbol) = self.list.get(number).filter(|_| seen.insert(number)) else { continue };
            match &symbol.origin {
                Origin::Axis { .. } | Origin::Rows { .. } | Origin::Count { .. } => {
                    found.insert(number);
                }
                origin => origin.formulas().into_iter().for_each(|part| {
                    part.for_each_var(&mut |var| pending.extend(var.as_parameter()));
                }),
            }
        }
        found
    }

    /// What a formula is where some of the symbols that are not computed have this value, and the others are
    /// what they are at least; `None` where that leaves 64 bits.
    pub fn value_where(&self, formula: &Index, sources: &BTreeSet<usize>, value: i64) -> Option<i64> {
        let mut values = Vec::with_capacity(self.list.len());
        for (number, symbol) in self.list.iter().enumerate() {
            values.push(match &symbol.origin {
                _ if sources.contains(&number) => value,
                Origin::Axis { .. } | Origin::Rows { .. } | Origin::Count { .. } => symbol.range.low,
                origin => derived(origin, &values).unwrap_or(-1),
            });
        }
        at(formula, &values)
    }

    /// Whether a formula is never less where more is counted: sums, with positive factors, of what grows
    /// itself. So what it is for the most that can be counted is the most that it is.
    pub fn grows_with_counts(&self, formula: &Index) -> bool {
        let depends = |part: &Index| !self.counts_in(part).is_empty();
        formula.terms().iter().all(|(atom, factor)| match atom {
            Atom::Var(var) => match var.as_parameter().and_then(|number| self.list.get(number)) {
                Some(Symbol { origin: Origin::Quotient(x, y), .. }) => {
                    *factor > 0 && self.grows_with_counts(x) && !depends(y) || !depends(x) && !depends(y)
                }
                Some(Symbol { origin, .. }) => {
                    let parts = origin.formulas();
                    let is_count = matches!(origin, Origin::Count { .. });
                    let is_free = !is_count && !parts.iter().any(|part| depends(part));
                    is_free || *factor > 0 && parts.iter().all(|part| self.grows_with_counts(part))
                }
                None => true,
            },
            Atom::FloorDiv(inner, _) => !depends(inner) || *factor > 0 && self.grows_with_counts(inner),
            Atom::Modulo(inner, _) => !depends(inner),
            Atom::Value(_) => false,
        })
    }

    /// The values of all symbols for inputs of these shapes; what results are counted for is what it is at
    /// most. `inputs` are the names and the tensors of the network's inputs.
    ///
    /// # Errors
    /// [`ExtentError`] names the first input and axis that does not fit.
    pub fn values(&self, inputs: &[(&str, &Tensor)], shapes: &[&[i64]]) -> Result<Vec<i64>, ExtentError> {
        if inputs.len() != shapes.len() {
            return Err(ExtentError::Inputs { inputs: shapes.len(), expected: inputs.len() });
        }
        for ((name, tensor), shape) in inputs.iter().zip(shapes) {
            let (found, expected) = (shape.len(), tensor.shape.len());
            if found != expected {
                return Err(ExtentError::Rank { input: name.to_string(), found, expected });
            }
        }
        let mut values = Vec::with_capacity(self.list.len());
        for symbol in &self.list {
            let value = match &symbol.origin {
                Origin::Axis { input, axis } => {
                    shapes.get(*input).and_then(|shape| shape.get(*axis)).copied().unwrap_or(-1)
                }
                origin => derived(origin, &values).unwrap_or(-1),
            };
            if !symbol.admits(value) {
                return Err(self.out_of_range(symbol, value, inputs));
            }
            values.push(value);
        }
        self.check(inputs, shapes, &values)?;
        Ok(values)
    }

    /// A requirement that these values do not meet, of those that nothing has to be counted for.
    pub(super) fn broken_requirement(&self, values: &[i64]) -> Option<&Requirement> {
        let is_broken = |requirement: &&Requirement| {
            let formula = &requirement.formula;
            at(formula, values).is_none_or(|value| value < 0) && self.counts_in(formula).is_empty()
        };
        self.requirements.iter().find(is_broken)
    }

    fn out_of_range(&self, symbol: &Symbol, found: i64, inputs: &[(&str, &Tensor)]) -> ExtentError {
        let (values, name) = (symbol.values(), symbol.name.clone());
        match symbol.origin {
            Origin::Axis { input, axis } => {
                let input = inputs.get(input).map_or(String::new(), |(name, _)| name.to_string());
                ExtentError::Range { input, axis, name, found, values }
            }
            _ => ExtentError::Derived { name, found, values },
        }
    }

    /// Whether all extents are what the formulas say, and all requirements hold.
    fn check(&self, inputs: &[(&str, &Tensor)], shapes: &[&[i64]], values: &[i64]) -> Result<(), ExtentError> {
        for ((name, tensor), shape) in inputs.iter().zip(shapes) {
            let wanted = tensor.at(values).shape;
            for (axis, (found, expected)) in shape.iter().zip(&wanted).enumerate() {
                if found != expected {
                    let (input, found, expected) = (name.to_string(), *found, *expected);
                    return Err(ExtentError::Extent { input, axis, found, expected });
                }
            }
        }
        match self.broken_requirement(values) {
            Some(broken) => Err(ExtentError::Requirement(broken.what.clone())),
            None => Ok(()),
        }
    }
}

/// Whether a name is one that people give to an axis of a batch.
pub fn names_batch(name: &str) -> bool {
    name.to_ascii_lowercase().contains("batch")
}

/// Whether a name is one that people give to an axis of time.
pub fn names_time(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["seq", "time", "step", "length", "frame", "token"].iter().any(|word| name.contains(word))
}

/// The value of a formula; `None` where it names what has no value, or leaves 64 bits.
pub fn at(formula: &Index, values: &[i64]) -> Option<i64> {
    let unknown = formula.any_var(&|var| var.as_parameter().is_none_or(|number| number >= values.len()));
    if unknown {
        return None;
    }
    formula.at(&|var| var.as_parameter().and_then(|number| values.get(number)).copied().unwrap_or(0))
}

/// The values that a formula of symbols of these ranges can take; `None` where it names something else, or
/// they leave 64 bits.
pub fn range(formula: &Index, symbols: &[Parameter]) -> Option<Interval> {
    let of = |var: Var| Some(symbols.get(var.as_parameter()?)?.interval());
    let foreign = formula.any_var(&|var| of(var).is_none());
    (!foreign).then(|| formula.range(&|var| of(var).unwrap_or(Interval::point(0))))?
}

/// What a symbol that is no extent of an input comes to.
pub fn derived(origin: &Origin, values: &[i64]) -> Option<i64> {
    let pair = |x: &Index, y: &Index| Some((at(x, values)?, at(y, values)?));
    match origin {
        Origin::Axis { .. } | Origin::Rows { .. } => None,
        Origin::Count { most } => at(most, values),
        Origin::Product(x, y) => pair(x, y).and_then(|(x, y)| x.checked_mul(y)),
        Origin::Quotient(x, y) => pair(x, y).and_then(|(x, y)| (y > 0).then(|| x.div_euclid(y))),
        Origin::Minimum(x, y) => pair(x, y).map(|(x, y)| x.min(y)),
        Origin::Maximum(x, y) => pair(x, y).map(|(x, y)| x.max(y)),
    }
}

impl Program {
    /// Whether all extents are fixed.
    pub fn is_fixed(&self) -> bool {
        self.symbols.is_empty()
    }

    /// The program where its symbols have these values: one of fixed extents. Results that are counted are as
    /// many as the values say, whatever is found: [`Program::evaluate`] takes what is.
    #[must_use]
    pub fn at(&self, values: &[i64]) -> Program {
        let mut fixed = self.clone();
        fixed.symbols = Symbols::default();
        fixed.tensors.iter_mut().for_each(|tensor| *tensor = tensor.at(values));
        fixed.steps.iter_mut().for_each(|step| set(step, values));
        fixed
    }

    /// The values of its symbols for inputs of these shapes.
    ///
    /// # Errors
    /// As [`Symbols::values`].
    pub fn symbol_values(&self, shapes: &[&[i64]]) -> Result<Vec<i64>, ExtentError> {
        let inputs: Vec<(&str, &Tensor)> = self
            .inputs
            .iter()
            .map(|(name, tensor): &(String, TensorId)| (name.as_str(), self.tensor(*tensor)))
            .collect();
        self.symbols.values(&inputs, shapes)
    }
}

fn set(step: &mut Step, values: &[i64]) {
    match step {
        Step::Stage(held) => held.stage = held.stage.at(values),
        Step::Repeat(repeat) => {
            let count = repeat.formula.take().and_then(|formula| at(&formula, values));
            repeat.count = count.unwrap_or(repeat.count);
        }
        Step::Library(call) => {
            let sizes: Option<Vec<i64>> = call.sizes.drain(..).map(|size| at(&size, values)).collect();
            call.routine = call.routine.with_sizes(&sizes.unwrap_or_default());
            call.count = None;
        }
        Step::If(_) => {}
    }
    step.blocks_mut().into_iter().flatten().for_each(|inner| set(inner, values));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory is laid out for the most that a count can be: only what grows with it may follow it.
    #[test]
    fn what_does_not_grow_with_counts_is_told_apart() {
        let mut symbols = Symbols::default();
        let range = Parameter { low: 0, high: 9 };
        let n = Index::var(symbols.add(Symbol::new("n", range, Origin::Axis { input: 0, axis: 0 })));
        let count = Index::var(symbols.add(Symbol::new("c", range, Origin::Count { most: n.clone() })));
        let left = n.clone().minus(&count);
        let natural = Origin::Maximum(Index::constant(0), left.clone());
        let natural = Index::var(symbols.add(Symbol::new("left", range, natural)));
        let least = Origin::Minimum(count.clone(), Index::constant(3));
        let least = Index::var(symbols.add(Symbol::new("few", range, least)));
        let quotient = Origin::Quotient(n.clone(), count.clone());
        let quotient = Index::var(symbols.add(Symbol::new("each", range, quotient)));
        for grows in [n.clone(), n.clone().times(-1), count.clone().plus(&n), count.clone().floor_div(2), least] {
            assert!(symbols.grows_with_counts(&grows), "{grows:?}");
        }
        for other in [left, natural, quotient, count.clone().modulo(4), count.clone().times(-1)] {
            assert!(!symbols.grows_with_counts(&other), "{other:?}");
            assert_eq!(symbols.counts_in(&other), BTreeSet::from([1]));
        }
        assert_eq!(symbols.recounted(&[9, 9, 0, 3, 1], &BTreeMap::from([(1, 4)])), Some(vec![9, 4, 5, 3, 2]));
        assert_eq!(symbols.recounted(&[9, 9, 0, 3, 1], &BTreeMap::from([(1, 10)])), None);
    }
}
