//! Short names for building expressions.

use crate::workload::{Binary, Condition, DType, Expr, Index, TensorId, Unary, Var};

pub fn var(axis: usize) -> Index {
    Index::var(Var(axis as u32))
}

/// The axes `from..from + count`.
pub fn vars(from: usize, count: usize) -> Vec<Index> {
    (from..from + count).map(var).collect()
}

pub fn load(tensor: TensorId, indices: Vec<Index>) -> Expr {
    Expr::load(tensor, indices)
}

pub fn float(value: f64) -> Expr {
    Expr::float(value)
}

/// A literal of any type. What an integer type cannot hold is cut off; Booleans are 0 and 1.
pub fn literal(dtype: DType, value: f64) -> Expr {
    let literal = if dtype.is_float() { float(value) } else { Expr::integer(value as i64) };
    if dtype.is_literal() { literal } else { Expr::Cast(dtype, Box::new(literal)) }
}

/// The value of a loaded integer as an index, wrapped into `0..extent`. ONNX counts negative ones from the
/// end, which is what wrapping does; others are not allowed, and reading a wrong element in bounds is the
/// mildest that can become of them.
pub fn gathered(value: Expr, extent: i64) -> Index {
    Index::value(value).modulo(extent)
}

/// The value of an integer as an index, the nearest in `0..extent`.
pub fn clamped(value: Expr, extent: i64) -> Index {
    let bounded = minimum(maximum(value, Expr::integer(0)), Expr::integer(extent.max(1) - 1));
    Index::value(bounded)
}

/// The same for an extent that may be known only when the network runs, where it is at least 1.
pub fn clamped_within(value: Expr, extent: &Index) -> Index {
    match extent.as_constant() {
        Some(extent) => clamped(value, extent),
        None => {
            let last = Expr::Index(extent.clone().plus_constant(-1));
            Index::value(maximum(minimum(value, last), Expr::integer(0)))
        }
    }
}

/// An integer and a constant more, in f32.
pub fn real(index: &Index, more: f64) -> Expr {
    match index.as_constant() {
        Some(constant) => float(constant as f64 + more),
        None => {
            let index = Expr::Cast(DType::F32, Box::new(Expr::Index(index.clone())));
            if more == 0.0 { index } else { add(index, float(more)) }
        }
    }
}

pub fn within(index: Index, low: i64, high: i64) -> Condition {
    Condition { index, low, high }
}

pub fn add(x: Expr, y: Expr) -> Expr {
    Expr::binary(Binary::Add, x, y)
}

pub fn subtract(x: Expr, y: Expr) -> Expr {
    Expr::binary(Binary::Subtract, x, y)
}

pub fn multiply(x: Expr, y: Expr) -> Expr {
    Expr::binary(Binary::Multiply, x, y)
}

pub fn divide(x: Expr, y: Expr) -> Expr {
    Expr::binary(Binary::Divide, x, y)
}

pub fn maximum(x: Expr, y: Expr) -> Expr {
    Expr::binary(Binary::Maximum, x, y)
}

pub fn minimum(x: Expr, y: Expr) -> Expr {
    Expr::binary(Binary::Minimum, x, y)
}

pub fn power(x: Expr, y: Expr) -> Expr {
    Expr::binary(Binary::Power, x, y)
}

pub fn less(x: Expr, y: Expr) -> Expr {
    Expr::binary(Binary::Less, x, y)
}

pub fn less_equal(x: Expr, y: Expr) -> Expr {
    Expr::binary(Binary::LessEqual, x, y)
}

pub fn equal(x: Expr, y: Expr) -> Expr {
    Expr::binary(Binary::Equal, x, y)
}

pub fn and(x: Expr, y: Expr) -> Expr {
    Expr::binary(Binary::And, x, y)
}

pub fn or(x: Expr, y: Expr) -> Expr {
    Expr::binary(Binary::Or, x, y)
}

pub fn not(x: Expr) -> Expr {
    Expr::unary(Unary::Not, x)
}

pub fn exp(x: Expr) -> Expr {
    Expr::unary(Unary::Exp, x)
}

pub fn log(x: Expr) -> Expr {
    Expr::unary(Unary::Log, x)
}

pub fn sqrt(x: Expr) -> Expr {
    Expr::unary(Unary::Sqrt, x)
}

pub fn reciprocal_sqrt(x: Expr) -> Expr {
    Expr::unary(Unary::ReciprocalSqrt, x)
}

pub fn absolute(x: Expr) -> Expr {
    Expr::unary(Unary::Absolute, x)
}

pub fn tanh(x: Expr) -> Expr {
    Expr::unary(Unary::Tanh, x)
}

pub fn sigmoid(x: Expr) -> Expr {
    Expr::unary(Unary::Sigmoid, x)
}

pub fn square(x: Expr) -> Expr {
    multiply(x.clone(), x)
}

/// A conversion; to Boolean, everything but 0 is true.
pub fn cast(from: DType, to: DType, x: Expr) -> Expr {
    match to {
        _ if from == to => x,
        DType::Bool => not(equal(x, literal(from, 0.0))),
        _ => Expr::Cast(to, Box::new(x)),
    }
}
