//! Operators of `com.microsoft` on quantised tensors: ONNX's own operators between numbers that are
//! dequantised before and quantised behind, and products of integers that are scaled.

use super::builder::Builder;
use super::contrib::{call, handed, self_attention};
use super::operator::{Attribute, Operator, Problem};
use crate::workload::{DType, TensorId};

/// A quantised input as numbers, by its position and those of its scale and zero point behind it.
fn dequantized(builder: &mut Builder, op: &Operator, first: usize) -> Result<TensorId, Problem> {
    let inputs = [Some(op.input(first)?), Some(op.input(first + 1)?), op.optional(first + 2)];
    call(builder, op, "DequantizeLinear", &inputs, &[])
}

/// Numbers quantised by the scale and zero point at a position, to a type where there is no zero point.
fn quantized(
    builder: &mut Builder,
    op: &Operator,
    x: TensorId,
    scale: usize,
    dtype: DType,
) -> Result<TensorId, Problem> {
    let inputs = [Some(x), Some(op.input(scale)?), op.optional(scale + 1)];
    let named = [("output_dtype", Attribute::Int(dtype.onnx()))];
    call(builder, op, "QuantizeLinear", &inputs, if inputs[2].is_none() { &named } else { &[] })
}

/// `QuantizeLinear` and `DequantizeLinear`, which are in ONNX's own domain, too.
pub fn plain(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let kind = op.kind.rsplit('.').next().unwrap_or_default().to_string();
    let inputs = [op.optional(0), op.optional(1), op.optional(2)];
    Ok(vec![call(builder, op, &kind, &inputs, &handed(op, &["axis", "block_size"]))?])
}

/// `QLinearAdd` and `QLinearMul`.
pub fn binary(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let kind = if op.kind.ends_with("QLinearAdd") { "Add" } else { "Mul" };
    let dtype = builder.dtype(op.input(0)?);
    let (a, b) = (dequantized(builder, op, 0)?, dequantized(builder, op, 3)?);
    let result = call(builder, op, kind, &[Some(a), Some(b)], &[])?;
    Ok(vec![quantized(builder, op, result, 6, dtype)?])
}

/// `QLinearSigmoid`, `QLinearLeakyRelu`, `QLinearAveragePool`, `QLinearGlobalAveragePool` and
/// `QLinearSoftmax`.
pub fn unary(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let kind = op.kind.rsplit("QLinear").next().unwrap_or_default().to_string();
    if op.flag("channels_last", false)? {
        return Err(Problem::Unsupported("channels_last".to_string()));
    }
    let mut own = op.clone();
    // the softmax over all axes behind one is that of before
    if kind == "Softmax" {
        own.opset = op.int("opset", op.opset)?;
    }
    let names = ["alpha", "axis", "auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"];
    let dtype = builder.dtype(op.input(0)?);
    let x = dequantized(builder, op, 0)?;
    let result = call(builder, &own, &kind, &[Some(x)], &handed(op, &names))?;
    Ok(vec![quantized(builder, op, result, 3, dtype)?])
}

/// `QLinearConcat`, whose result's scale and zero point come first.
pub fn concat(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let given = op.inputs.len().saturating_sub(2);
    if given == 0 || !given.is_multiple_of(3) {
        return Err(Problem::Shape(format!("{given} inputs are no triples of tensor, scale and zero point")));
    }
    let dtype = builder.dtype(op.input(2)?);
    let parts = (0..given / 3).map(|part| Ok(Some(dequantized(builder, op, 2 + 3 * part)?)));
    let parts = parts.collect::<Result<Vec<_>, Problem>>()?;
    let result = call(builder, op, "Concat", &parts, &handed(op, &["axis"]))?;
    Ok(vec![quantized(builder, op, result, 0, dtype)?])
}

/// `QLinearWhere`.
pub fn select(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let dtype = builder.dtype(op.input(1)?);
    let (yes, no) = (dequantized(builder, op, 1)?, dequantized(builder, op, 4)?);
    let result = call(builder, op, "Where", &[Some(op.input(0)?), Some(yes), Some(no)], &[])?;
    Ok(vec![quantized(builder, op, result, 7, dtype)?])
}

/// The product of integers, by tensors and zero points, and what is added to it, as numbers of the scales.
fn scaled_product(
    builder: &mut Builder,
    op: &Operator,
    [a, b, a_zero, b_zero]: [Option<TensorId>; 4],
    added: Option<TensorId>,
    scales: [TensorId; 2],
) -> Result<TensorId, Problem> {
    let mut sums = call(builder, op, "MatMulInteger", &[a, b, a_zero, b_zero], &[])?;
    if let Some(added) = added {
        sums = call(builder, op, "Add", &[Some(sums), Some(added)], &[])?;
    }
    let numbers = call(builder, op, "Cast", &[Some(sums)], &[("to", Attribute::Int(DType::F32.onnx()))])?;
    let scale = call(builder, op, "Mul", &scales.map(Some), &[])?;
    call(builder, op, "Mul", &[Some(numbers), Some(scale)], &[])
}

/// `MatMulIntegerToFloat`.
pub fn product_to_float(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let factors = [op.optional(0), op.optional(1), op.optional(4), op.optional(5)];
    let scales = [op.input(2)?, op.input(3)?];
    let product = scaled_product(builder, op, factors, None, scales)?;
    Ok(vec![with_bias(builder, op, product, 6)?])
}

/// `QAttention`: `Attention` whose query, key and value are one product of integers.
pub fn attention(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let factors = [op.optional(0), op.optional(1), op.optional(6), op.optional(7)];
    let scales = [op.input(3)?, op.input(4)?];
    let product = scaled_product(builder, op, factors, None, scales)?;
    let product = with_bias(builder, op, product, 2)?;
    self_attention(builder, op, product, [Some(5), None, Some(8)])
}

/// `DynamicQuantizeMatMul`: of numbers that are quantised where they are multiplied.
pub fn dynamic_product(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let x = op.input(0)?;
    let quantised = super::quantization::dynamic_of(builder, x)?;
    let factors = [Some(quantised[0]), op.optional(1), Some(quantised[2]), op.optional(3)];
    let product = scaled_product(builder, op, factors, None, [quantised[1], op.input(2)?])?;
    Ok(vec![with_bias(builder, op, product, 4)?])
}

fn with_bias(builder: &mut Builder, op: &Operator, x: TensorId, bias: usize) -> Result<TensorId, Problem> {
    match op.optional(bias) {
        Some(bias) => call(builder, op, "Add", &[Some(x), Some(bias)], &[]),
        None => Ok(x),
    }
}

/// `QGemm`: quantised, or as numbers where the result has no scale.
pub fn gemm(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let mut factors = [op.input(0)?, op.input(3)?];
    let dtype = builder.dtype(factors[0]);
    for (factor, name) in factors.iter_mut().zip(["transA", "transB"]) {
        if builder.rank(*factor) != 2 {
            return Err(Problem::Shape(format!("{:?} is no matrix", builder.shape(*factor))));
        }
        if op.flag(name, false)? {
            *factor = call(builder, op, "Transpose", &[Some(*factor)], &[("perm", Attribute::Ints(vec![1, 0]))])?;
        }
    }
    let [a, b] = factors.map(Some);
    let scales = [op.input(1)?, op.input(4)?];
    let factors = [a, b, op.optional(2), op.optional(5)];
    let mut product = scaled_product(builder, op, factors, op.optional(6), scales)?;
    let alpha = op.float("alpha", 1.0)?;
    if alpha != 1.0 {
        let factor = builder.constant(crate::graph::TensorData::from_f32(vec![], &[alpha as f32]));
        product = call(builder, op, "Mul", &[Some(product), Some(factor)], &[])?;
    }
    Ok(vec![match op.optional(7) {
        Some(_) => quantized(builder, op, product, 7, dtype)?,
        None => product,
    }])
}
