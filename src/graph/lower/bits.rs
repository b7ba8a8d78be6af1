//! Operators on the bits of integers, and the bits of one type as another.

use super::builder::Builder;
use super::math::{load, vars};
use super::operator::{Operator, Problem};
use crate::graph::TensorData;
use crate::workload::{Binary, Class, DType, Expr, TensorId};

/// `BitwiseAnd` and its like, and `BitShift`, which is of unsigned integers.
pub fn bitwise(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (x, y) = (op.input(0)?, op.input(1)?);
    let dtype = integer(builder, 0, x)?;
    if builder.dtype(y) != dtype {
        return Err(Problem::Type { input: 1, dtype: builder.dtype(y) });
    }
    let shape = builder.broadcast_shape_of(&[x, y])?;
    let (x, y) = (builder.broadcast(x, &shape), builder.broadcast(y, &shape));
    let value = match op.kind.as_str() {
        "BitwiseAnd" => Expr::binary(Binary::BitAnd, x, y),
        "BitwiseOr" => Expr::binary(Binary::BitOr, x, y),
        "BitwiseXor" => Expr::binary(Binary::BitXor, x, y),
        _ if dtype.is_signed() => return Err(Problem::Type { input: 0, dtype }),
        _ => match op.optional_text("direction")?.ok_or(Problem::MissingAttribute("direction"))? {
            // computed in 64 bits: what leaves a shorter type is cut off
            "LEFT" => Expr::Cast(dtype, Box::new(Expr::binary(Binary::ShiftLeft, x, y))),
            "RIGHT" => Expr::binary(Binary::ShiftRight, x, y),
            other => return Err(Problem::AttributeValue { name: "direction", value: other.to_string() }),
        },
    };
    Ok(vec![builder.map(shape, dtype, value)?])
}

/// `BitwiseNot`
pub fn complement(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let x = op.input(0)?;
    let (shape, dtype) = (builder.shape(x), integer(builder, 0, x)?);
    let ones = Expr::Cast(dtype, Box::new(Expr::integer(-1)));
    let value = Expr::binary(Binary::BitXor, load(x, vars(0, shape.len())), ones);
    Ok(vec![builder.map(shape, dtype, value)?])
}

fn integer(builder: &Builder, input: usize, tensor: TensorId) -> Result<DType, Problem> {
    let dtype = builder.dtype(tensor);
    match dtype.class() {
        Class::Signed | Class::Unsigned => Ok(dtype),
        _ => Err(Problem::Type { input, dtype }),
    }
}

/// `BitCast`
pub fn reinterpret(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let code = op.optional_int("to")?.ok_or(Problem::MissingAttribute("to"))?;
    let to = DType::from_onnx(code).ok_or_else(|| Problem::AttributeValue { name: "to", value: code.to_string() })?;
    let (shape, from) = (builder.shape(input), builder.dtype(input));
    if from.bytes() != to.bytes() {
        return Err(Problem::Shape(format!("{} has not as many bits as {}", to.name(), from.name())));
    }
    if from == to {
        return Ok(vec![input]);
    }
    // bytes of a Boolean are 0 or 1
    if let Some(data) = builder.data(input).filter(|_| to != DType::Bool) {
        let data = TensorData { dtype: to, ..data.clone() };
        return Ok(vec![builder.constant(data)]);
    }
    let value = Expr::Bits(to, Box::new(load(input, vars(0, shape.len()))));
    Ok(vec![builder.map(shape, to, value)?])
}
