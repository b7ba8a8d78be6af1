//! Small tensors of integers that follow from extents: known as formulas while the network is read.
//!
//! Exporters compute shapes with the operators that compute everything else. What those do to numbers that
//! are formulas is done here; operators that only move elements run on the places of elements instead of on
//! the elements themselves.

use super::builder::Builder;
use super::formulas::Formulas;
use super::fraction::MAX_WHOLE;
use super::math::{load, var, within};
use super::operator::{Operand, Operator, Problem};
use crate::graph::TensorData;
use crate::workload::{DType, Expr, Index, Interval, TensorId};

/// Most elements of a tensor whose elements are formulas.
const MAX_ELEMENTS: usize = 64;
/// Numbers below this are not made positive to be divided.
const LEAST_MODULO: i64 = -(1 << 31);
/// Exclusive bound of constants that formulas are made with.
const MAX_CONSTANT: u64 = 1 << 40;

impl Builder {
    /// The elements of a small tensor of integers or Booleans, as formulas.
    pub fn integer_formulas(&self, tensor: TensorId) -> Option<Vec<Index>> {
        if let Some(known) = self.known.get(&tensor) {
            return Some(known.clone());
        }
        if self.tensor(tensor).elements() > 1 << 16 {
            return None;
        }
        Some(self.integers(tensor)?.into_iter().map(Index::constant).collect())
    }

    /// The elements of a small tensor as formulas, if it is sure that they are whole numbers.
    pub fn whole_numbers(&self, tensor: TensorId) -> Option<Vec<Index>> {
        if let Some(known) = self.integer_formulas(tensor) {
            return Some(known);
        }
        let data = self.data(tensor).filter(|data| data.elements() <= MAX_ELEMENTS as i64)?;
        let whole = |value: f64| (value.fract() == 0.0 && value.abs() < MAX_CONSTANT as f64).then_some(value as i64);
        data.to_f64().into_iter().map(|value| Some(Index::constant(whole(value)?))).collect()
    }

    /// The formulas that an operator wants to know while it is lowered.
    ///
    /// # Errors
    /// [`Problem::NotConstant`] where they are not known.
    pub fn formulas_input(&self, op: &Operator, position: usize) -> Result<Vec<Index>, Problem> {
        self.integer_formulas(op.input(position)?).ok_or(Problem::NotConstant(position))
    }

    /// Whether some elements of a tensor are formulas.
    fn is_formulaic(&self, tensor: TensorId) -> bool {
        self.known.contains_key(&tensor)
    }

    /// A tensor whose elements are formulas: a constant where they are constants.
    ///
    /// # Errors
    /// Never for what is as small as [`MAX_ELEMENTS`].
    pub(super) fn known_tensor(
        &mut self,
        shape: Vec<i64>,
        dtype: DType,
        elements: Vec<Index>,
    ) -> Result<TensorId, Problem> {
        let elements: Vec<Index> = elements.iter().map(|formula| self.formulas.simple(formula)).collect();
        let constants: Option<Vec<i64>> = elements.iter().map(Index::as_constant).collect();
        if let Some(constants) = constants {
            let data = constant_of(shape, dtype, &constants);
            return Ok(self.constant(data));
        }
        let flat = super::builder::flat_index(&shape, &super::math::vars(0, shape.len()));
        let typed = |formula: &Index| {
            let value = Expr::Index(formula.clone());
            if dtype == DType::I64 { value } else { Expr::Cast(dtype, Box::new(value)) }
        };
        let mut places = elements.iter().enumerate().rev();
        let last = places.next().map_or(Expr::integer(0), |(_, formula)| typed(formula));
        let value = places.fold(last, |others, (place, formula)| {
            let here = within(flat.clone(), place as i64, place as i64 + 1);
            Expr::guard(vec![here], typed(formula), others)
        });
        let tensor = self.map(shape, dtype, value)?;
        self.known.insert(tensor, elements);
        Ok(tensor)
    }
}

fn constant_of(shape: Vec<i64>, dtype: DType, values: &[i64]) -> TensorData {
    let mut bytes = Vec::new();
    values.iter().for_each(|value| match dtype.is_float() {
        true => crate::workload::put_real(dtype, *value as f64, &mut bytes),
        false => crate::workload::put_integer(dtype, *value, &mut bytes),
    });
    TensorData { shape, dtype, bytes: bytes.into() }
}

/// The result of an operator on numbers that are formulas; `None` where that is nothing that formulas say.
///
/// # Errors
/// What stands against the operator's inputs or attributes.
pub fn lower(builder: &mut Builder, op: &Operator) -> Result<Option<Vec<TensorId>>, Problem> {
    let inputs: Vec<TensorId> = op.inputs.iter().flatten().map(|operand| operand.tensor).collect();
    if matches!(op.kind.as_str(), "Shape" | "Size") {
        return if builder.is_run_time(op.input(0)?) { shape(builder, op).map(Some) } else { Ok(None) };
    }
    if !inputs.iter().any(|tensor| builder.is_formulaic(*tensor)) {
        return Ok(None);
    }
    let data: Vec<usize> = match op.kind.as_str() {
        "Concat" => (0..op.inputs.len()).collect(),
        "Identity" | "Gather" | "Slice" | "Unsqueeze" | "Squeeze" | "Reshape" | "Flatten" | "Transpose" | "Expand"
        | "Tile" | "Split" => vec![0],
        "Where" => vec![1, 2],
        _ => {
            let of_iteration = |tensor: &TensorId| {
                builder.known.get(tensor).is_some_and(|own| own.iter().any(|formula| builder.is_of_iteration(formula)))
            };
            let is_data = inputs.iter().any(of_iteration);
            return match computed(builder, op, &inputs) {
                // what no formula says of the number of an iteration is computed from it
                Err(Problem::Unsupported(_) | Problem::TooLarge(_)) if is_data => Ok(None),
                found => found,
            };
        }
    };
    moved(builder, op, &data)
}

/// The extents of a tensor, or their product.
fn shape(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let extents = builder.extents(op.input(0)?);
    if op.kind == "Size" {
        let size = builder.formulas.product(&extents)?;
        return Ok(vec![builder.known_tensor(vec![], DType::I64, vec![size])?]);
    }
    let rank = extents.len() as i64;
    let bound = |name, default| -> Result<usize, Problem> {
        let at = op.int(name, default)?;
        Ok((if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize)
    };
    let (start, end) = (bound("start", 0)?, bound("end", rank)?);
    let part = extents.get(start..end.max(start)).unwrap_or_default().to_vec();
    Ok(vec![builder.known_tensor(vec![part.len() as i64], DType::I64, part)?])
}

/// Operators that only move the elements of some of their inputs.
fn moved(builder: &mut Builder, op: &Operator, data: &[usize]) -> Result<Option<Vec<TensorId>>, Problem> {
    let (mut places, mut elements) = (op.clone(), Vec::new());
    let mut dtype = None;
    for (position, operand) in op.inputs.iter().enumerate() {
        let Some(Operand { tensor, .. }) = operand else { continue };
        if !data.contains(&position) {
            // where the elements go must not depend on the run
            if builder.data(*tensor).is_none() {
                return Ok(None);
            }
            continue;
        }
        let Some(own) = builder.integer_formulas(*tensor).filter(|own| own.len() <= MAX_ELEMENTS) else {
            return Ok(None);
        };
        dtype = Some(builder.dtype(*tensor));
        let numbers: Vec<i64> = (elements.len() as i64..).take(own.len()).collect();
        let shape = builder.shape(*tensor);
        let tensor = builder.constant(TensorData::from_i64(shape, &numbers));
        places.inputs[position] = Some(Operand { tensor, only_reader: false });
        elements.extend(own);
    }
    let Some(dtype) = dtype else { return Ok(None) };
    let mut results = Vec::new();
    for result in super::lower(builder, &places)? {
        let shape = builder.shape(result);
        let Some(places) = builder.integers(result).filter(|places| places.len() <= MAX_ELEMENTS) else {
            return Ok(None);
        };
        let own = places.iter().filter_map(|place| elements.get(usize::try_from(*place).ok()?).cloned()).collect();
        results.push(builder.known_tensor(shape, dtype, own)?);
    }
    Ok(Some(results))
}

/// Operators that compute with their elements.
fn computed(builder: &mut Builder, op: &Operator, inputs: &[TensorId]) -> Result<Option<Vec<TensorId>>, Problem> {
    let mut elements = Vec::new();
    for tensor in inputs {
        let is_small = |own: &Vec<Index>| {
            let fits = |formula: &Index| formula.offset().unsigned_abs() < MAX_CONSTANT;
            own.len() <= MAX_ELEMENTS && own.iter().all(fits)
        };
        match builder.whole_numbers(*tensor).filter(is_small) {
            Some(own) => elements.push(own),
            None => return Ok(None),
        }
    }
    let dtype = builder.dtype(inputs[0]);
    if op.kind == "Cast" {
        let to = op.optional_int("to")?.and_then(DType::from_onnx);
        let is_exact = |formula: &Index| {
            let range = builder.formulas.range_of(formula);
            range.is_some_and(|range| -MAX_WHOLE < range.low && range.high < MAX_WHOLE)
        };
        let is_flag = |formula: &Index| {
            let range = builder.formulas.range_of(formula);
            range.is_some_and(|range| 0 <= range.low && range.high <= 1)
        };
        let to = to.filter(|to| match to {
            DType::I64 | DType::I32 => true,
            DType::Bool => elements[0].iter().all(is_flag),
            DType::F32 | DType::F64 => elements[0].iter().all(is_exact),
            _ => false,
        });
        let Some(to) = to else { return Ok(None) };
        let shape = builder.shape(inputs[0]);
        return Ok(Some(vec![builder.known_tensor(shape, to, elements.remove(0))?]));
    }
    if op.kind.starts_with("Reduce") {
        return reduced(builder, op, elements.remove(0));
    }
    let result = if is_comparison(&op.kind) { DType::Bool } else { dtype };
    // where each element of the result finds its operands
    let shapes: Vec<Vec<i64>> = inputs.iter().map(|tensor| builder.shape(*tensor)).collect();
    let shape = super::builder::broadcast_shape(&shapes)?;
    if shape.iter().product::<i64>() > MAX_ELEMENTS as i64 {
        return Ok(None);
    }
    let mut operands = Vec::new();
    for (own, elements) in shapes.iter().zip(&elements) {
        let numbers: Vec<i64> = (0..elements.len() as i64).collect();
        let numbers = builder.constant(TensorData::from_i64(own.clone(), &numbers));
        let skipped = shape.len() - own.len();
        let at = own.iter().enumerate().map(|(d, e)| if *e == 1 { Index::constant(0) } else { var(skipped + d) });
        let places = builder.map(shape.clone(), DType::I64, load(numbers, at.collect()))?;
        let Some(places) = builder.integers(places) else { return Ok(None) };
        let found = places.iter().filter_map(|place| elements.get(usize::try_from(*place).ok()?).cloned());
        operands.push(found.collect::<Vec<Index>>());
    }
    let mut values = Vec::new();
    for place in 0..operands.first().map_or(0, Vec::len) {
        let own: Vec<Index> = operands.iter().filter_map(|elements| elements.get(place).cloned()).collect();
        // floats that large are integers, but their sums are rounded
        let is_large = |formula: &Index| formula.as_constant().is_some_and(|value| value.abs() >= MAX_WHOLE);
        let chooses = matches!(op.kind.as_str(), "Max" | "Min") || is_comparison(&op.kind);
        if dtype.is_float() && !chooses && own.iter().any(is_large) {
            return Ok(None);
        }
        let value = match (dtype.is_float(), op.kind.as_str()) {
            // of whole numbers
            (true, "Floor" | "Ceil" | "Round") => own.first().cloned(),
            // quotients of floats are none
            (true, "Div" | "Mod") => None,
            (_, "Mod") if !op.flag("fmod", false)? => floored_modulo(builder, &own)?,
            (_, kind) => combined(builder, kind, &own)?,
        };
        match value {
            Some(value) => values.push(value),
            None => return Ok(None),
        }
    }
    Ok(Some(vec![builder.known_tensor(shape, result, values)?]))
}

fn is_comparison(kind: &str) -> bool {
    matches!(kind, "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual")
}

/// One element of the result of an element-wise operator.
fn combined(builder: &mut Builder, kind: &str, operands: &[Index]) -> Result<Option<Index>, Problem> {
    let fold = |builder: &mut Builder, one: fn(&mut Formulas, &Index, &Index) -> Result<Index, Problem>| {
        let mut rest = operands.iter();
        let Some(first) = rest.next() else { return Ok(None) };
        rest.try_fold(first.clone(), |known, next| one(&mut builder.formulas, &known, next)).map(Some)
    };
    let [x, rest @ ..] = operands else { return Ok(None) };
    let y = rest.first().cloned().unwrap_or_default();
    let apart = builder.formulas.range_of(&x.clone().minus(&y));
    Ok(match kind {
        "Add" | "Sum" => Some(operands[1..].iter().fold(x.clone(), |sum, next| sum.plus(next))),
        "Sub" => Some(x.clone().minus(&y)),
        "Neg" => Some(x.clone().times(-1)),
        "Mul" => fold(builder, |formulas, x, y| formulas.product(&[x.clone(), y.clone()]))?,
        "Min" => fold(builder, Formulas::lesser)?,
        "Max" => fold(builder, Formulas::greater)?,
        // ONNX rounds towards zero, which is down for what is not negative
        "Div" if are_natural(builder, x, &y) => Some(builder.formulas.quotient(x, &y)?),
        "Mod" if are_natural(builder, x, &y) => {
            let quotient = builder.formulas.quotient(x, &y)?;
            let whole = builder.formulas.product(&[quotient, y])?;
            Some(x.clone().minus(&whole))
        }
        "Abs" if builder.formulas.range_of(x).is_some_and(|range| range.low >= 0) => Some(x.clone()),
        "Not" => Some(Index::constant(1).minus(x)),
        kind if is_comparison(kind) => match decided(kind, apart) {
            Some(holds) => Some(Index::constant(i64::from(holds))),
            None => is_nothing(builder, kind, x, &y)?,
        },
        _ => None,
    })
}

/// The remainder of a quotient that is rounded down, where the divisor is positive.
fn floored_modulo(builder: &mut Builder, operands: &[Index]) -> Result<Option<Index>, Problem> {
    let [x, y] = operands else { return Ok(None) };
    let least = builder.formulas.range_of(x).map_or(i64::MIN, |range| range.low);
    let Some(divisor) = y.as_constant().filter(|divisor| *divisor > 0 && (LEAST_MODULO..0).contains(&least)) else {
        return combined(builder, "Mod", operands);
    };
    // as many divisors more as make a number of it that is not negative
    let x = x.clone().plus_constant((-least + divisor - 1) / divisor * divisor);
    combined(builder, "Mod", &[x, y.clone()])
}

fn are_natural(builder: &Builder, x: &Index, y: &Index) -> bool {
    let least = |formula: &Index| builder.formulas.range_of(formula).map_or(i64::MIN, |range| range.low);
    least(x) >= 0 && least(y) >= 1
}

/// Whether a comparison holds for all, or for no, values of the difference of its operands.
fn decided(kind: &str, apart: Option<Interval>) -> Option<bool> {
    let Interval { low, high } = apart?;
    let known = |always: bool, never: bool| if always { Some(true) } else { never.then_some(false) };
    match kind {
        "Equal" => known(low == 0 && high == 0, high < 0 || low > 0),
        "Less" => known(high < 0, low >= 0),
        "LessOrEqual" => known(high <= 0, low > 0),
        "Greater" => known(low > 0, high <= 0),
        "GreaterOrEqual" => known(low >= 0, high < 0),
        _ => None,
    }
}

/// Whether a number of things is 0, or is not: the comparisons that exporters write to take another way where
/// nothing was found. 1 where it holds, else 0.
fn is_nothing(builder: &mut Builder, kind: &str, x: &Index, y: &Index) -> Result<Option<Index>, Problem> {
    let is_number = builder.formulas.range_of(x).is_some_and(|range| range.low >= 0);
    if !is_number || y.as_constant() != Some(0) {
        return Ok(None);
    }
    let some = builder.formulas.lesser(x, &Index::constant(1))?;
    Ok(match kind {
        "Equal" | "LessOrEqual" => Some(Index::constant(1).minus(&some)),
        "Greater" => Some(some),
        _ => None,
    })
}

/// A reduction of all elements of a vector to one.
fn reduced(builder: &mut Builder, op: &Operator, elements: Vec<Index>) -> Result<Option<Vec<TensorId>>, Problem> {
    let input = op.input(0)?;
    let axes = match op.optional(1) {
        Some(axes) => builder.integers(axes),
        None => op.ints("axes")?.map(<[i64]>::to_vec),
    };
    let covers_all = axes.is_none_or(|axes| axes.is_empty() || axes == [0] || axes == [-1]);
    let is_noop = op.flag("noop_with_empty_axes", false)?;
    if builder.rank(input) != 1 || !covers_all || is_noop || elements.is_empty() {
        return Ok(None);
    }
    let kind = match op.kind.as_str() {
        "ReduceProd" => "Mul",
        "ReduceSum" => "Add",
        "ReduceMax" => "Max",
        "ReduceMin" => "Min",
        _ => return Ok(None),
    };
    let Some(value) = combined(builder, kind, &elements)? else { return Ok(None) };
    let shape = if op.flag("keepdims", true)? { vec![1] } else { vec![] };
    let dtype = builder.dtype(input);
    Ok(Some(vec![builder.known_tensor(shape, dtype, vec![value])?]))
}
