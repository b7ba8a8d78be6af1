//! Operators on quantised tensors: integers that stand for `scale · (q - zero point)`.
//!
//! Exact: products are summed in 32-bit integers, and a result is scaled in f32, rounded half to even, and
//! only then shifted by its zero point and cut to the range of its type.

use super::builder::Builder;
use super::contraction;
use super::convolution as conv;
use super::few_bits;
use super::math::{add, cast, divide, equal, float, load, maximum, minimum, multiply, subtract, var, vars};
use super::operator::{Operator, Problem, normal_axis};
use crate::workload::{Class, Combiner, DType, Expr, Index, TensorId, Unary};

/// Where scales and zero points are read: for a whole tensor, for each place of an axis, or for each block of
/// such places.
struct Grain {
    axis: usize,
    /// Places of the axis that share a scale, where the scales have as many dimensions as the tensor.
    block: Option<i64>,
    /// Of the tensor.
    shape: Vec<i64>,
}

impl Grain {
    /// By the attributes of `QuantizeLinear` and `DequantizeLinear`; the scales are their second input.
    fn new(builder: &Builder, op: &Operator, shape: &[i64]) -> Result<Grain, Problem> {
        let scale = op.input(1)?;
        let block = match op.int("block_size", 0)? {
            0 => None,
            block if block > 0 => Some(block),
            block => return Err(Problem::AttributeValue { name: "block_size", value: block.to_string() }),
        };
        let is_single = builder.shape(scale).iter().product::<i64>() == 1;
        let axis = match is_single && block.is_none() {
            // the axis means nothing, and may be none of a scalar's
            true => 0,
            false => normal_axis(op.int("axis", 1)?, shape.len())?,
        };
        Ok(Grain { axis, block, shape: shape.to_vec() })
    }

    /// The scale or zero point of the element at the point of the tensor's axes.
    fn read(&self, builder: &Builder, tensor: TensorId) -> Result<Expr, Problem> {
        let own = builder.shape(tensor);
        let Grain { axis, block, shape } = self;
        let at = match block {
            None if own.iter().product::<i64>() == 1 => vec![Index::constant(0); own.len()],
            None if own.len() == 1 && shape.get(*axis) == own.first() => vec![var(*axis)],
            Some(block) if own == self.blocks(*block) => {
                let mut at = vars(0, shape.len());
                at[*axis] = var(*axis).floor_div(*block);
                at
            }
            _ => {
                return Err(Problem::Shape(format!(
                    "{own:?} scales or zero points do not fit {shape:?} at axis {axis}"
                )));
            }
        };
        Ok(load(tensor, at))
    }

    fn blocks(&self, block: i64) -> Vec<i64> {
        let mut blocks = self.shape.clone();
        blocks[self.axis] = (blocks[self.axis] + block - 1).div_euclid(block);
        blocks
    }
}

/// A value of f32, rounded half to even, shifted by the zero point and cut to the range of the type.
fn quantized(value: Expr, zero_point: Option<Expr>, dtype: DType) -> Expr {
    let rounded = Expr::unary(Unary::Round, value);
    let shifted = match zero_point {
        Some(zero_point) => add(rounded, cast(dtype, DType::F32, zero_point)),
        None => rounded,
    };
    let (least, greatest) = (float(dtype.least() as f64), float(dtype.greatest() as f64));
    Expr::Cast(dtype, Box::new(minimum(maximum(shifted, least), greatest)))
}

/// The type of an input that must be one of short integers.
fn short_integer(builder: &Builder, input: usize, tensor: TensorId) -> Result<DType, Problem> {
    let dtype = builder.dtype(tensor);
    match dtype.class() {
        Class::Signed | Class::Unsigned if dtype.bytes() <= 2 => Ok(dtype),
        _ => Err(Problem::Type { input, dtype }),
    }
}

/// A floating-point input, as f32.
fn as_f32(builder: &Builder, input: usize, tensor: TensorId, element: Expr) -> Result<Expr, Problem> {
    match builder.dtype(tensor) {
        dtype if dtype.is_float() && dtype != DType::F64 => Ok(cast(dtype, DType::F32, element)),
        dtype => Err(Problem::Type { input, dtype }),
    }
}

/// The type of an attribute, unless it is left out or 0.
fn type_attribute(op: &Operator, name: &'static str) -> Result<Option<DType>, Problem> {
    match op.int(name, 0)? {
        0 => Ok(None),
        code => match DType::from_onnx(code) {
            Some(dtype) => Ok(Some(dtype)),
            None => Err(Problem::Unsupported(format!("the type {} as {name}", name_of_type(code)))),
        },
    }
}

/// What ONNX calls the types that are none here.
fn name_of_type(code: i64) -> String {
    let name = match code {
        17 => "float8e4m3fn",
        18 => "float8e4m3fnuz",
        19 => "float8e5m2",
        20 => "float8e5m2fnuz",
        21 => "uint4",
        22 => "int4",
        23 => "float4e2m1",
        24 => "float8e8m0",
        25 => "uint2",
        26 => "int2",
        other => return other.to_string(),
    };
    name.to_string()
}

/// `QuantizeLinear`: by a zero point's type, or `output_dtype`, or to u8.
pub fn quantize(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (x, scale, zero_point) = (op.input(0)?, op.input(1)?, op.optional(2));
    let shape = builder.shape(x);
    let named = type_attribute(op, "output_dtype")?;
    let dtype = match zero_point {
        Some(tensor) => short_integer(builder, 2, tensor)?,
        None => named.unwrap_or(DType::U8),
    };
    let is_short_integer = matches!(dtype.class(), Class::Signed | Class::Unsigned) && dtype.bytes() <= 2;
    if !is_short_integer || named.is_some_and(|named| named != dtype) {
        return Err(Problem::AttributeValue { name: "output_dtype", value: dtype.name().to_string() });
    }
    let grain = Grain::new(builder, op, &shape)?;
    let element = load(x, vars(0, shape.len()));
    let element = match builder.dtype(x) {
        DType::I32 => cast(DType::I32, DType::F32, element),
        _ => as_f32(builder, 0, x, element)?,
    };
    let scale = as_f32(builder, 1, scale, grain.read(builder, scale)?)?;
    let mut quotient = divide(element, scale);
    if let Some(precision) = type_attribute(op, "precision")?.filter(|precision| *precision != DType::F32) {
        if !precision.is_float() {
            return Err(Problem::AttributeValue { name: "precision", value: precision.name().to_string() });
        }
        quotient = cast(precision, DType::F32, cast(DType::F32, precision, quotient));
    }
    let zero_point = zero_point.map(|tensor| grain.read(builder, tensor)).transpose()?;
    Ok(vec![builder.map(shape, dtype, quantized(quotient, zero_point, dtype))?])
}

/// `DequantizeLinear`: in the type of the scales, or in `output_dtype`.
pub fn dequantize(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (x, scale, zero_point) = (op.input(0)?, op.input(1)?, op.optional(2));
    let (shape, dtype) = (builder.shape(x), builder.dtype(x));
    if dtype != DType::I32 {
        short_integer(builder, 0, x)?;
    }
    let to = type_attribute(op, "output_dtype")?.unwrap_or(builder.dtype(scale));
    if !to.is_float() {
        return Err(Problem::AttributeValue { name: "output_dtype", value: to.name().to_string() });
    }
    let grain = Grain::new(builder, op, &shape)?;
    let zero_point = match zero_point {
        Some(tensor) if builder.dtype(tensor) != dtype => {
            return Err(Problem::Type { input: 2, dtype: builder.dtype(tensor) });
        }
        Some(tensor) => Some(grain.read(builder, tensor)?),
        None => None,
    };
    let scale = as_f32(builder, 1, scale, grain.read(builder, scale)?)?;
    let at = vars(0, shape.len());
    let packed = grain.block.and_then(|block| few_bits::nibbles(builder, x, (grain.axis, block)));
    let number = match (packed, zero_point) {
        (Some(packed), None) => packed.read(at),
        (Some(packed), Some(zero_point)) => subtract(packed.read(at), cast(dtype, DType::F32, zero_point)),
        (None, None) => cast(dtype, DType::F32, load(x, at)),
        (None, Some(zero_point)) => {
            let wide = if dtype == DType::I32 { DType::I64 } else { DType::I32 };
            let widened = |integer: Expr| cast(dtype, wide, integer);
            cast(wide, DType::F32, subtract(widened(load(x, at)), widened(zero_point)))
        }
    };
    let value = multiply(number, scale);
    Ok(vec![builder.map(shape, to, cast(DType::F32, to, value))?])
}

/// `DynamicQuantizeLinear`: to u8, by the least and greatest element, so that 0 is exact.
pub fn dynamic(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    dynamic_of(builder, op.input(0)?)
}

/// A tensor of f32 quantised to u8, the scale, and the zero point.
pub(super) fn dynamic_of(builder: &mut Builder, x: TensorId) -> Result<Vec<TensorId>, Problem> {
    let (shape, dtype) = (builder.shape(x), builder.dtype(x));
    if dtype != DType::F32 {
        return Err(Problem::Type { input: 0, dtype });
    }
    let own = || vars(0, shape.len());
    let mut extreme = |combiner| builder.reduce(vec![], shape.clone(), combiner, dtype, load(x, own()));
    let (greatest, least) = (extreme(Combiner::Maximum)?, extreme(Combiner::Minimum)?);
    let high = || maximum(load(greatest, vec![]), float(0.0));
    let low = || minimum(load(least, vec![]), float(0.0));
    let span = Expr::select(equal(high(), low()), float(1.0), subtract(high(), low()));
    let scale = builder.map(vec![], dtype, divide(span, float(255.0)))?;
    let zero_point = divide(subtract(float(0.0), low()), load(scale, vec![]));
    let zero_point = builder.map(vec![], DType::U8, quantized(zero_point, None, DType::U8))?;
    let quotient = divide(load(x, own()), load(scale, vec![]));
    let value = quantized(quotient, Some(load(zero_point, vec![])), DType::U8);
    Ok(vec![builder.map(shape.clone(), DType::U8, value)?, scale, zero_point])
}

/// An operand of a product: a tensor, and its zero points.
struct Factor {
    tensor: TensorId,
    dtype: DType,
    zero_points: Option<Parameters>,
}

/// Scales or zero points of an operand: a single one, or one for each place of an axis, in one dimension or
/// beside others of 1.
struct Parameters {
    tensor: TensorId,
    shape: Vec<i64>,
    axis: Option<usize>,
}

impl Parameters {
    fn new(builder: &Builder, tensor: TensorId, of: TensorId, axis: Option<usize>) -> Result<Parameters, Problem> {
        let (shape, whole) = (builder.shape(tensor), builder.shape(of));
        let several: Vec<i64> = shape.iter().copied().filter(|extent| *extent != 1).collect();
        let axis = match (several.as_slice(), axis) {
            ([], _) => None,
            ([extent], Some(axis)) if *extent == whole[axis] => Some(axis),
            _ => return Err(Problem::Shape(format!("{shape:?} scales or zero points do not fit {whole:?}"))),
        };
        Ok(Parameters { tensor, shape, axis })
    }

    /// For the element at these indices.
    fn read(&self, at: &[Index]) -> Expr {
        self.read_at(self.axis.map(|axis| at[axis].clone()))
    }

    /// For a place of the axis, if there is one.
    fn read_at(&self, place: Option<Index>) -> Expr {
        let place = place.unwrap_or(Index::constant(0));
        let at = |extent: &i64| if *extent == 1 { Index::constant(0) } else { place.clone() };
        load(self.tensor, self.shape.iter().map(at).collect())
    }
}

impl Factor {
    /// By the positions of the operand and of its zero points; several of those are along `axis`.
    fn new(
        builder: &Builder,
        op: &Operator,
        [input, zero_points]: [usize; 2],
        axis: Option<usize>,
    ) -> Result<Factor, Problem> {
        let tensor = op.input(input)?;
        let dtype = short_integer(builder, input, tensor)?;
        let points = op.optional(zero_points);
        if let Some(other) = points.map(|points| builder.dtype(points)).filter(|other| *other != dtype) {
            return Err(Problem::Type { input: zero_points, dtype: other });
        }
        // symmetric quantisation: nothing to subtract
        let are_zero = |points: &TensorId| builder.data(*points).is_some_and(|d| d.bytes.iter().all(|b| *b == 0));
        let points = points.map(|points| Parameters::new(builder, points, tensor, axis)).transpose()?;
        let points = points.filter(|points| !are_zero(&points.tensor));
        Ok(Factor { tensor, dtype, zero_points: points })
    }

    fn read(&self, at: Vec<Index>) -> Expr {
        let point = self.zero_points.as_ref().map(|points| points.read(&at));
        let element = cast(self.dtype, DType::I32, load(self.tensor, at));
        match point {
            Some(point) => subtract(element, cast(self.dtype, DType::I32, point)),
            None => element,
        }
    }
}

/// `MatMulInteger`, and `QLinearMatMul`, which scales and quantises the sums. Rows of the first operand and
/// columns of the second may have parameters of their own.
pub fn matmul(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let is_scaled = op.kind == "QLinearMatMul";
    let (of_left, of_right) = if is_scaled { ([0, 2], [3, 5]) } else { ([0, 2], [1, 3]) };
    // of operands of one dimension neither exists
    let rows = builder.rank(op.input(of_left[0])?).checked_sub(2);
    let columns = builder.rank(op.input(of_right[0])?).checked_sub(1).filter(|axis| *axis > 0);
    let left = Factor::new(builder, op, of_left, rows)?;
    let right = Factor::new(builder, op, of_right, columns)?;
    let factors = [&left, &right];
    let read = |operand: usize, at| factors[operand].read(at);
    let sums = contraction::product(builder, [left.tensor, right.tensor], DType::I32, &read)?;
    if !is_scaled {
        return Ok(vec![sums]);
    }
    let rank = builder.rank(sums);
    let of_row = Parameters::new(builder, op.input(1)?, left.tensor, rows)?;
    let of_column = Parameters::new(builder, op.input(4)?, right.tensor, columns)?;
    // the last axes of the result
    let row = of_row.axis.map(|_| var(rank - 1 - usize::from(columns.is_some())));
    let column = of_column.axis.map(|_| var(rank - 1));
    let scales = [(1, of_row.tensor, of_row.read_at(row)), (4, of_column.tensor, of_column.read_at(column))];
    Ok(vec![requantized(builder, op, sums, scales, [6, 7])?])
}

/// `ConvInteger`, and `QLinearConv`, which adds a bias of i32, scales and quantises the sums. Filters may
/// have parameters of their own.
pub fn convolution(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let is_scaled = op.kind == "QLinearConv";
    let (of_input, of_weight) = if is_scaled { ([0, 2], [3, 5]) } else { ([0, 2], [1, 3]) };
    let input = Factor::new(builder, op, of_input, None)?;
    let filters = (builder.rank(op.input(of_weight[0])?) > 0).then_some(0);
    let weight = Factor::new(builder, op, of_weight, filters)?;
    let factors = [&input, &weight];
    let read = |operand: usize, at| factors[operand].read(at);
    let (_, mut sums) = conv::sums(builder, op, [input.tensor, weight.tensor], DType::I32, &read)?;
    if !is_scaled {
        return Ok(vec![sums]);
    }
    let shape = builder.shape(sums);
    if let Some(bias) = op.optional(8) {
        if builder.shape(bias) != shape[1..2] || builder.dtype(bias) != DType::I32 {
            return Err(Problem::Shape(format!("a bias of {:?} does not fit {shape:?}", builder.shape(bias))));
        }
        let value = add(load(sums, vars(0, shape.len())), load(bias, vec![var(1)]));
        sums = builder.map(shape, DType::I32, value)?;
    }
    let of_input = Parameters::new(builder, op.input(1)?, input.tensor, None)?;
    let of_filter = Parameters::new(builder, op.input(4)?, weight.tensor, filters)?;
    let filter = of_filter.axis.map(|_| var(1));
    let scales = [(1, of_input.tensor, of_input.read_at(None)), (4, of_filter.tensor, of_filter.read_at(filter))];
    Ok(vec![requantized(builder, op, sums, scales, [6, 7])?])
}

/// Sums of products of quantised numbers, quantised: `sum · (scale · scale / scale of the result)`. The
/// scales of the operands come with the positions of their inputs; `result` are those of the result's scale
/// and zero point.
fn requantized(
    builder: &mut Builder,
    op: &Operator,
    sums: TensorId,
    scales: [(usize, TensorId, Expr); 2],
    result: [usize; 2],
) -> Result<TensorId, Problem> {
    let shape = builder.shape(sums);
    let [scale, zero_point] = result.map(|input| op.input(input));
    let (scale, zero_point) = (scale?, zero_point?);
    let dtype = short_integer(builder, result[1], zero_point)?;
    if let Some(tensor) = [scale, zero_point].into_iter().find(|t| builder.tensor(*t).elements() != 1) {
        return Err(Problem::Shape(format!("the result has {:?} scales or zero points", builder.shape(tensor))));
    }
    let single = |tensor: TensorId| load(tensor, vec![Index::constant(0); builder.rank(tensor)]);
    let [left, right] = scales.map(|(input, tensor, read)| as_f32(builder, input, tensor, read));
    let factor = divide(multiply(left?, right?), as_f32(builder, result[0], scale, single(scale))?);
    let sum = cast(DType::I32, DType::F32, load(sums, vars(0, shape.len())));
    let value = quantized(multiply(sum, factor), Some(single(zero_point)), dtype);
    builder.map(shape, dtype, value)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::graph::lower::{Builder, Operand, Operator, lower};
    use crate::graph::{TensorData, partition};
    use crate::workload::{Array, DType, Elements, Index, TensorId};

    fn apply(builder: &mut Builder, kind: &str, inputs: &[TensorId]) -> TensorId {
        let operand = |tensor: &TensorId| Some(Operand { tensor: *tensor, only_reader: true });
        let inputs = inputs.iter().map(operand).collect();
        let attributes = BTreeMap::new();
        let op = Operator { kind: kind.to_string(), opset: 21, attributes, inputs, outputs: vec![true] };
        lower(builder, &op).unwrap()[0]
    }

    /// The elements of the only output, as the tasks compute them, and how many tasks there are.
    fn computed(mut builder: Builder, output: TensorId, x: Elements) -> (Vec<f64>, usize) {
        builder.output("y".into(), output).unwrap();
        let network = partition(&builder.finish()).unwrap();
        let x = Array::new(vec![x.len() as i64], x).unwrap();
        let (_, y) = network.evaluate(&[("x", &x)]).unwrap().remove(0);
        ((0..x.elements().len()).map(|at| y.number(at).unwrap()).collect(), network.tasks.len())
    }

    #[test]
    fn what_is_quantised_and_dequantised_is_rounded() {
        let mut builder = Builder::new(1 << 20);
        let x = builder.input("x".into(), &[Index::constant(5)], DType::F32).unwrap();
        let scale = builder.constant(TensorData::from_f32(vec![], &[5.0 / 255.0]));
        let zero = builder.constant(TensorData { shape: vec![], dtype: DType::U8, bytes: vec![153].into() });
        let q = apply(&mut builder, "QuantizeLinear", &[x, scale, zero]);
        let back = apply(&mut builder, "DequantizeLinear", &[q, scale, zero]);
        let x = Elements::F32(vec![0.5, -3.0, 99.0, 0.0, -99.0]);
        let (y, tasks) = computed(builder, back, x);
        let step = 5.0 / 255.0;
        // 0.5 is 25.5 steps, which is even rounded up; the ends saturate
        for (found, expected) in y.iter().zip([26.0 * step, -153.0 * step, 102.0 * step, 0.0, -153.0 * step]) {
            assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
        }
        assert_eq!(tasks, 1, "nobody else wants the bytes");
    }

    #[test]
    fn short_integers_wrap_before_they_are_read_in_the_same_task() {
        let mut builder = Builder::new(1 << 20);
        let x = builder.input("x".into(), &[Index::constant(4)], DType::U8).unwrap();
        let three = builder.constant(TensorData { shape: vec![], dtype: DType::U8, bytes: vec![3].into() });
        let sum = apply(&mut builder, "Add", &[x, x]);
        let third = apply(&mut builder, "Div", &[sum, three]);
        let (y, tasks) = computed(builder, third, Elements::U8(vec![200, 100, 3, 255]));
        assert_eq!((y, tasks), (vec![48.0, 66.0, 2.0, 84.0], 1));
    }
}
