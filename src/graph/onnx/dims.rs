//! Dimensions of inputs that a file leaves open: their names, and the extents that they may have.
//!
//! What is not given has a default range. Where the network does not work with it, because dimensions have to
//! be equal, windows are larger, or tensors get too large, the range is changed and the network read again;
//! what is given is never touched.

mod adjust;

use std::collections::BTreeMap;

use super::ImportOptions;
use super::axes::{batch_axis, is_axis_of_samples, is_only_joined, names_a_dimension};
use super::error::ImportError;
use super::proto::{DimensionValue, GraphProto, ValueInfoProto};
use super::spelled::formula;
use crate::graph::lower::Builder;
use crate::graph::symbol::{Origin, Symbol};
use crate::workload::{DType, Index, Parameter};

/// How far the axis of a batch extends by default, at most: its images or sequences.
const MOST_OF_BATCH: i64 = 64;
/// How far other axes extend by default, at most: time, height, width.
const MOST_OF_OTHERS: i64 = 2048;
/// How far the samples of a signal extend by default, at most: half a minute of speech.
const MOST_OF_SAMPLES: i64 = 1 << 19;
/// Exclusive bound of extents.
const MAX_EXTENT: i64 = 1 << 31;

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
    /// It is a multiple of this.
    multiple: i64,
    /// A formula that it has to equal; the variables are the numbers of other open dimensions.
    instead: Option<Index>,
}

impl Open {
    fn is_fixed(&self) -> bool {
        self.range.low == self.range.high
    }

    /// The range of what formulas have of it.
    fn part(&self) -> Parameter {
        Parameter { low: self.range.low / self.multiple, high: self.range.high / self.multiple }
    }

    /// Takes those of its values alone that are so many times as large as any.
    fn take_multiples_of(&mut self, factor: i64) {
        self.multiple *= factor;
        let Parameter { low, high } = self.range;
        let high = (high / self.multiple).max(1) * self.multiple;
        self.range = Parameter { low: ((low + self.multiple - 1) / self.multiple).max(1) * self.multiple, high };
    }

    /// Makes it a symbol, and gives its formula. Of what is a multiple, the formula is that multiple of a
    /// second symbol: quotients come out without a remainder.
    fn declare(&self, builder: &mut Builder) -> Index {
        let Open { name, range, multiple, .. } = self;
        let origin = Origin::Axis { input: self.input, axis: self.axis };
        let own = Symbol { multiple: *multiple, ..Symbol::new(name, *range, origin) };
        let own = Index::var(builder.add_symbol(own));
        if *multiple == 1 {
            return own;
        }
        let origin = Origin::Quotient(own, Index::constant(*multiple));
        let part = builder.add_symbol(Symbol::new(format!("{name} / {multiple}"), self.part(), origin));
        Index::var(part).times(*multiple)
    }
}

/// All dimensions that the file leaves open.
#[derive(Debug, Default)]
pub struct OpenDims {
    list: Vec<Open>,
    /// By symbol that formulas have, the number of the dimension whose extent it is, or is a part of.
    symbols: Vec<Option<usize>>,
    /// Formulas, of the numbers of dimensions, that are at least 0 in every run that is not refused.
    assumed: Vec<Index>,
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
                    open.list.push(Open {
                        name: symbol,
                        range,
                        is_given,
                        input: position,
                        axis,
                        multiple: 1,
                        instead: None,
                    });
                    joined.push(true);
                    open.list.len() - 1
                });
                let own = &mut open.list[number];
                if !own.is_given && batch_axis(&shape.dim) != Some(axis) {
                    let is_sampled = dtype.is_float() && is_axis_of_samples(&shape.dim, axis);
                    own.range.high = if is_sampled { MOST_OF_SAMPLES } else { MOST_OF_OTHERS };
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
        open.take_at_their_word(&numbers);
        let unknown: Vec<String> = options.dims.keys().filter(|name| !numbers.contains_key(*name)).cloned().collect();
        if !unknown.is_empty() {
            return Err(ImportError::UnknownDims { unknown, open: numbers.into_keys().collect() });
        }
        Ok((open, read))
    }

    /// Dimensions whose names are sums of others are these sums, unless they are given.
    fn take_at_their_word(&mut self, numbers: &BTreeMap<String, usize>) {
        let is_plain = |number: &usize| formula(&self.list[*number].name, &|name| numbers.get(name).copied()).is_none();
        let plain = |name: &str| numbers.get(name).copied().filter(is_plain);
        let sums: Vec<Option<Index>> = self.list.iter().map(|open| formula(&open.name, &plain)).collect();
        for (open, sum) in self.list.iter_mut().zip(sums).filter(|(open, _)| !open.is_given) {
            open.instead = sum;
        }
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
                    // what is a multiple is in formulas by its part alone
                    self.symbols.extend((open.multiple > 1).then_some(None));
                    self.symbols.push(Some(number));
                    Some(open.declare(builder))
                }
            });
        }
        let formulas: Vec<Index> = (0..self.list.len()).map(|number| self.formula(number, &formulas)).collect();
        for assumed in &self.assumed {
            let own = assumed.substitute(&|var| formulas.get(var.0 as usize).cloned());
            if own.as_constant().is_none() {
                builder.assume(&own);
            }
        }
        formulas
    }

    fn formula(&self, number: usize, known: &[Option<Index>]) -> Index {
        match (&known[number], &self.list[number].instead) {
            (Some(known), _) => known.clone(),
            (None, Some(instead)) => instead.substitute(&|var| Some(self.formula(var.0 as usize, known))),
            (None, None) => Index::constant(0),
        }
    }
}

fn range_of(given: Option<&Dim>) -> (bool, Parameter) {
    match given {
        Some(dim) => (true, Parameter { low: dim.low, high: dim.high }),
        None => (false, Parameter { low: 1, high: MOST_OF_BATCH }),
    }
}
