//! Dimensions of inputs that a file leaves open: their names, and the extents that they may have.
//!
//! What is not given has a default range. Where the network does not work with it, because dimensions have to
//! be equal, windows are larger, or tensors get too large, the range is changed and the network read again;
//! what is given is never touched.

use std::collections::{BTreeMap, BTreeSet};

use super::error::ImportError;
use super::proto::{DimensionProto, DimensionValue, GraphProto, NodeProto, ValueInfoProto, attribute_kind};
use super::{ImportOptions, is_own_domain};
use crate::graph::lower::{Builder, Conflict, Problem};
use crate::graph::symbol::{Origin, Symbol, names_batch, names_time};
use crate::workload::{Atom, DType, Index, Interval, Parameter, Var};

/// How far the axis of a batch extends by default, at most: its images or sequences.
const MOST_OF_BATCH: i64 = 64;
/// How far other axes extend by default, at most: time, height, width.
const MOST_OF_OTHERS: i64 = 2048;
/// Exclusive bound of extents.
const MAX_EXTENT: i64 = 1 << 31;
/// How often ranges are changed.
const MAX_ADJUSTMENTS: usize = 64;

/// The extents that a dimension may have; both ends belong to them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dim {
    /// At least 0.
    pub low: i64,
    pub high: i64,
    /// Where programs are to be fast; may be empty.
    pub points: Vec<i64>,
}

impl Dim {
    /// An extent that is known.
    pub fn fixed(extent: i64) -> Dim {
        Dim { low: extent, high: extent, points: Vec::new() }
    }

    pub fn range(low: i64, high: i64) -> Dim {
        Dim { low, high, points: Vec::new() }
    }

    fn is_valid(&self) -> bool {
        let least = i64::from(self.low == self.high);
        let is_inside = |point: &i64| (self.low..=self.high).contains(point);
        (least..=self.high).contains(&self.low) && self.high < MAX_EXTENT && self.points.iter().all(is_inside)
    }
}

/// An extent of an input.
#[derive(Clone, Copy, Debug)]
pub enum Extent {
    Fixed(i64),
    /// An open dimension, by number.
    Open(usize),
}

/// An input as the file describes it.
#[derive(Debug)]
pub struct Input<'a> {
    pub name: &'a str,
    pub dtype: DType,
    pub extents: Vec<Extent>,
}

/// A dimension that the file leaves open.
#[derive(Debug)]
struct Open {
    name: String,
    range: Parameter,
    is_given: bool,
    /// The first input and axis that has it.
    input: usize,
    axis: usize,
    /// A formula that it has to equal; the variables are the numbers of other open dimensions.
    instead: Option<Index>,
}

impl Open {
    fn is_fixed(&self) -> bool {
        self.range.low == self.range.high
    }
}

/// All dimensions that the file leaves open.
#[derive(Debug, Default)]
pub struct OpenDims {
    list: Vec<Open>,
    /// The numbers of those that are symbols, in the symbols' order.
    symbols: Vec<usize>,
    adjustments: usize,
}

impl OpenDims {
    /// The inputs of a graph, and their open dimensions.
    ///
    /// # Errors
    /// [`ImportError`] for an input that is no tensor, and for a given dimension that is out of range or not
    /// open.
    pub fn of<'a>(
        inputs: &[&'a ValueInfoProto],
        graph: &GraphProto,
        options: &ImportOptions,
    ) -> Result<(OpenDims, Vec<Input<'a>>), ImportError> {
        if let Some((name, dim)) = options.dims.iter().find(|(_, dim)| !dim.is_valid()) {
            return Err(ImportError::BadDim { name: name.clone(), low: dim.low, high: dim.high });
        }
        let (mut open, mut read) = (OpenDims::default(), Vec::new());
        let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
        let mut joined: Vec<bool> = Vec::new();
        for (position, input) in inputs.iter().enumerate() {
            let name = input.name.clone();
            let tensor = input.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
            let shape = tensor.and_then(|t| t.shape.as_ref());
            let (Some(tensor), Some(shape)) = (tensor, shape) else {
                return Err(ImportError::InputType { input: name });
            };
            let dtype = DType::from_onnx(i64::from(tensor.elem_type)).ok_or_else(|| ImportError::ElementType {
                what: "input",
                name: name.clone(),
                code: tensor.elem_type,
            })?;
            let mut extents = Vec::new();
            for (axis, dim) in shape.dim.iter().enumerate() {
                let own_name = format!("{name}[{axis}]");
                let symbol = match &dim.value {
                    // what the file fixes may be given all the same
                    Some(DimensionValue::Value(extent)) if *extent != -1 && !options.dims.contains_key(&own_name) => {
                        extents.push(Extent::Fixed(*extent));
                        continue;
                    }
                    Some(DimensionValue::Param(param)) if names_a_dimension(param) => param.clone(),
                    _ => own_name,
                };
                let number = *numbers.entry(symbol.clone()).or_insert_with(|| {
                    let (is_given, range) = range_of(options.dims.get(&symbol));
                    open.list.push(Open { name: symbol, range, is_given, input: position, axis, instead: None });
                    joined.push(true);
                    open.list.len() - 1
                });
                let own = &mut open.list[number];
                if !own.is_given && batch_axis(&shape.dim) != Some(axis) {
                    own.range.high = MOST_OF_OTHERS;
                }
                joined[number] &= is_only_joined(&graph.node, &name, axis, shape.dim.len());
                extents.push(Extent::Open(number));
            }
            read.push(Input { name: &input.name, dtype, extents });
        }
        for (own, is_joined) in open.list.iter_mut().zip(joined) {
            if is_joined && !own.is_given {
                own.range.low = 0;
            }
        }
        let unknown: Vec<String> = options.dims.keys().filter(|name| !numbers.contains_key(*name)).cloned().collect();
        if !unknown.is_empty() {
            return Err(ImportError::UnknownDims { unknown, open: numbers.into_keys().collect() });
        }
        Ok((open, read))
    }

    /// The names of all, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.list.iter().map(|open| open.name.clone()).collect();
        names.sort();
        names
    }

    /// Makes symbols of those that are not fixed, and gives the formulas of all, by number.
    pub fn declare(&mut self, builder: &mut Builder) -> Vec<Index> {
        self.symbols.clear();
        let mut formulas: Vec<Option<Index>> = Vec::new();
        for (number, open) in self.list.iter().enumerate() {
            formulas.push(match (&open.instead, open.is_fixed()) {
                (Some(_), _) => None,
                (None, true) => Some(Index::constant(open.range.low)),
                (None, false) => {
                    self.symbols.push(number);
                    let origin = Origin::Axis { input: open.input, axis: open.axis };
                    Some(Index::var(builder.add_symbol(Symbol { name: open.name.clone(), range: open.range, origin })))
                }
            });
        }
        (0..self.list.len()).map(|number| self.formula(number, &formulas)).collect()
    }

    fn formula(&self, number: usize, known: &[Option<Index>]) -> Index {
        match (&known[number], &self.list[number].instead) {
            (Some(known), _) => known.clone(),
            (None, Some(instead)) => instead.substitute(&|var| Some(self.formula(var.0 as usize, known))),
            (None, None) => Index::constant(0),
        }
    }

    /// Changes ranges so that what stood against reading the network may not stand against it again; `false`
    /// where there is nothing to change.
    pub fn adjust(&mut self, builder: &Builder, error: &ImportError) -> bool {
        let (ImportError::Node { problem, .. }
        | ImportError::Input { problem, .. }
        | ImportError::Output { problem, .. }) = error
        else {
            return false;
        };
        self.adjustments += 1;
        if self.adjustments > MAX_ADJUSTMENTS {
            return false;
        }
        match (problem, builder.conflict()) {
            (Problem::TooLarge(_) | Problem::Memory { .. }, _) => self.halve(),
            (Problem::Shape(_), Some(Conflict::Unequal(a, b))) => {
                let difference = a.clone().minus(b);
                self.equate(&difference) || self.confine(&difference)
            }
            (Problem::Shape(_), Some(Conflict::Negative(formula))) => self.raise(formula),
            _ => false,
        }
    }

    /// Halves what default ranges extend to.
    fn halve(&mut self) -> bool {
        let mut changes = false;
        for open in self.list.iter_mut().filter(|open| !open.is_given && open.instead.is_none()) {
            let high = (open.range.high / 2).max(open.range.low + 1);
            changes |= high < open.range.high;
            open.range.high = high.min(open.range.high);
        }
        changes
    }

    /// Lets a difference of formulas be 0, by giving a symbol up that occurs once in it.
    fn equate(&mut self, difference: &Index) -> bool {
        let number = |var: Var| var.as_parameter().and_then(|number| self.symbols.get(number)).copied();
        // symbols that are computed are not to be chosen
        if difference.any_var(&|var| number(var).is_none()) {
            return false;
        }
        let mut candidates: Vec<(bool, usize, Index)> = Vec::new();
        for (atom, coefficient) in difference.terms() {
            let Atom::Var(var) = atom else { continue };
            let Some(number) = number(*var) else { continue };
            let rest = difference.clone().minus(&Index::var(*var).times(*coefficient));
            if coefficient.unsigned_abs() != 1 || rest.mentions(*var) {
                continue;
            }
            candidates.push((self.list[number].is_given, number, rest.times(-*coefficient)));
        }
        // rather a default range than a given one, rather a later input than an earlier
        candidates.sort_by_key(|(is_given, number, _)| (*is_given, usize::MAX - number));
        for (is_given, chosen, value) in candidates {
            let range = self.list[chosen].range;
            if let Some(constant) = value.as_constant() {
                let fits = if is_given { range.contains(constant) } else { (1..MAX_EXTENT).contains(&constant) };
                if fits {
                    self.list[chosen].range = Parameter { low: constant, high: constant };
                    return true;
                }
                continue;
            }
            let of_list = value.substitute(&|var| Some(Index::var(Var(number(var)? as u32))));
            if let Some(Var(other)) = of_list.as_var() {
                let other = &mut self.list[other as usize];
                let (low, high) = match (is_given, other.is_given) {
                    (true, false) => (range.low, range.high),
                    (false, true) => (other.range.low, other.range.high),
                    _ => (range.low.max(other.range.low), range.high.min(other.range.high)),
                };
                if low > high {
                    continue;
                }
                other.range = Parameter { low, high };
                other.is_given |= is_given;
            }
            self.list[chosen].instead = Some(of_list);
            return true;
        }
        false
    }

    /// Narrows a default range to where a difference is 0 that grows or falls with its only symbol: a network
    /// that squeezes what is left of a sequence takes those of which one element is left.
    fn confine(&mut self, difference: &Index) -> bool {
        let mut symbols = BTreeSet::new();
        difference.for_each_var(&mut |var| {
            symbols.insert(var);
        });
        let [Some(number)] = symbols.iter().map(|var| var.as_parameter()).collect::<Vec<_>>()[..] else {
            return false;
        };
        let fallen = difference.clone().times(-1);
        let Some(grown) = [difference, &fallen].into_iter().find(|index| grows(index)) else { return false };
        let Some(own) = self.symbols.get(number).map(|at| &mut self.list[*at]).filter(|own| !own.is_given) else {
            return false;
        };
        // the first number in the range at which it is at least this
        let first = |least: i64| {
            let (mut low, mut end) = (own.range.low, own.range.high + 1);
            while low < end {
                let middle = low + (end - low) / 2;
                let reaches = grown.at(&|_| middle).is_none_or(|value| value >= least);
                if reaches { end = middle } else { low = middle + 1 }
            }
            low
        };
        let confined = Parameter { low: first(0), high: first(1) - 1 };
        if confined.low > confined.high || confined == own.range {
            return false;
        }
        own.range = confined;
        true
    }

    /// Raises the low end of a default range so far that a formula, which grows with it, is never negative.
    fn raise(&mut self, formula: &Index) -> bool {
        let with = |symbol: usize, low: i64| {
            let range = |var: Var| {
                let number = var.as_parameter().unwrap_or(usize::MAX);
                let own = self.symbols.get(number).map(|at| self.list[*at].range);
                match own {
                    Some(own) if number == symbol => Interval { low, high: own.high },
                    Some(own) => own.interval(),
                    None => Interval { low: i64::MIN, high: i64::MAX },
                }
            };
            formula.range(&range).map(|range| range.low)
        };
        for symbol in 0..self.symbols.len() {
            let Open { range, is_given, .. } = self.list[self.symbols[symbol]];
            let suffices = |low: i64| with(symbol, low).is_some_and(|least| least >= 0);
            if is_given || !formula.mentions(Var::parameter(symbol)) || !suffices(range.high) {
                continue;
            }
            let (mut low, mut enough) = (range.low, range.high);
            while low < enough {
                let middle = low + (enough - low) / 2;
                if suffices(middle) { enough = middle } else { low = middle + 1 }
            }
            if enough > range.low {
                self.list[self.symbols[symbol]].range.low = enough;
                return true;
            }
        }
        false
    }
}

/// Whether a formula never falls where its symbols grow.
fn grows(formula: &Index) -> bool {
    formula.terms().iter().all(|(atom, coefficient)| match atom {
        Atom::Var(_) => *coefficient > 0,
        Atom::FloorDiv(inner, _) => *coefficient > 0 && grows(inner),
        Atom::Modulo(..) | Atom::Value(_) => false,
    })
}

fn range_of(given: Option<&Dim>) -> (bool, Parameter) {
    match given {
        Some(dim) => (true, Parameter { low: dim.low, high: dim.high }),
        None => (false, Parameter { low: 1, high: MOST_OF_BATCH }),
    }
}

/// The axis of an input that most likely counts the images or sequences of a batch: the one that says so, or
/// else the leading one, unless its name is one of time. Recurrent networks have time or layers in front.
fn batch_axis(dims: &[DimensionProto]) -> Option<usize> {
    let is_named = |dim: &DimensionProto, as_wanted: fn(&str) -> bool| match &dim.value {
        Some(DimensionValue::Param(name)) => as_wanted(name),
        _ => false,
    };
    let named = dims.iter().position(|dim| is_named(dim, names_batch));
    named.or_else(|| dims.first().filter(|dim| !is_named(dim, names_time)).map(|_| 0))
}

/// Whether an input is only joined to something along an axis, as what was computed before is to what is new:
/// then there may be nothing of it.
fn is_only_joined(nodes: &[NodeProto], input: &str, axis: usize, rank: usize) -> bool {
    let mut is_joined = false;
    for node in nodes {
        if node.attribute.iter().any(|attribute| attribute.kind == attribute_kind::GRAPH) {
            return false;
        }
        if !node.input.iter().any(|name| name == input) {
            continue;
        }
        let own = node.attribute.iter().find(|attribute| attribute.name == "axis").map(|attribute| attribute.i);
        let along = own.map(|own| if own < 0 { own.saturating_add(rank as i64) } else { own });
        match node.op_type.as_str() {
            "Shape" if is_own_domain(&node.domain) => {}
            "Concat" if is_own_domain(&node.domain) && along == Some(axis as i64) => is_joined = true,
            _ => return false,
        }
    }
    is_joined
}

/// Whether a symbol tells dimensions apart: exporters write `?`, numbers and nothing for those that are just
/// unknown.
fn names_a_dimension(param: &str) -> bool {
    !param.trim().is_empty() && param != "?" && param.parse::<i64>().is_err()
}
