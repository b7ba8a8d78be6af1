//! A nest with everything looked up: what the machine runs.
//!
//! The nest has passed the structure check, so variables, buffers, ranks and types fit.

use super::scalar;
use crate::nest::structure::literal;
use crate::nest::{Loop, LoopKind, Nest, Scope, Stmt};
use crate::workload::{Atom, Binary, Combiner, Condition, DType, Expr, Index, TensorId, Unary, Var, row_major_strides};

pub(super) enum Code<'a> {
    Loop { var: Var, bounds: Vec<Sum>, kind: LoopKind, body: Vec<Code<'a>>, source: &'a Stmt },
    If { conditions: Vec<Test>, body: Vec<Code<'a>>, source: &'a Stmt },
    Store { to: Access, value: Value, source: &'a Stmt },
    Accumulate { to: Access, combiner: Combiner, value: Value, reduces: Reduces, source: &'a Stmt },
}

/// Whether the destination of an accumulation stays where it is while a loop moves, so that its iterations
/// meet in one element.
#[derive(Clone, Copy)]
pub(super) struct Reduces {
    /// The vector loop.
    pub lanes: bool,
    /// A thread loop, in memory that threads share.
    pub threads: bool,
}

/// The loops around a statement whose iterations are executed together.
#[derive(Clone, Default)]
pub(super) struct Together {
    lane: Option<Var>,
    /// Of more than one iteration.
    threads: Vec<Var>,
    /// Whether a warp computes with matrices.
    matrix: bool,
}

/// `constant + Σ coefficient · variable + Σ coefficient · other`
pub(super) struct Sum {
    pub constant: i64,
    pub vars: Vec<(usize, i64)>,
    pub others: Vec<(Other, i64)>,
}

pub(super) enum Other {
    FloorDiv(Sum, i64),
    Modulo(Sum, i64),
    Value(Box<Whole>),
}

pub(super) struct Test {
    pub index: Sum,
    pub low: i64,
    pub high: i64,
}

pub(super) struct Access {
    pub buffer: usize,
    pub dimensions: Vec<Dimension>,
}

pub(super) struct Dimension {
    pub index: Sum,
    pub extent: i64,
    pub stride: i64,
    /// Whether the index depends on data.
    pub gathered: bool,
}

/// An expression and the type that it is computed in.
pub(super) enum Value {
    Real(Real, DType),
    Whole(Whole, DType),
}

pub(super) enum Real {
    Literal(f64),
    Load(Access),
    Unary(Unary, Box<Real>),
    Binary(Binary, Box<(Real, Real)>),
    Select(Box<(Whole, Real, Real)>),
    Guard(Vec<Test>, Box<(Real, Real)>),
    /// From a type, to another one.
    FromWhole(DType, DType, Box<Whole>),
    OfBits(DType, Box<Whole>),
    /// To a type.
    Round(DType, Box<Real>),
    /// As products of matrices take it.
    Operand(Box<Real>),
}

pub(super) enum Whole {
    Index(Sum),
    Load(Access),
    Unary(Unary, DType, Box<Whole>),
    /// The type is that of the operands.
    Binary(Binary, DType, Box<(Whole, Whole)>),
    Compare(Binary, Box<(Real, Real)>),
    Select(Box<(Whole, Whole, Whole)>),
    Guard(Vec<Test>, Box<(Whole, Whole)>),
    FromReal(DType, Box<Real>),
    BitsOf(DType, Box<Real>),
    /// To a narrower type.
    Wrap(DType, Box<Whole>),
}

pub(super) fn block<'a>(nest: &Nest, statements: &'a [Stmt], around: &Together) -> Vec<Code<'a>> {
    let compile = |source: &'a Stmt| match source {
        Stmt::Loop(Loop { var, bounds, kind, body }) => {
            let mut inside = around.clone();
            match kind {
                LoopKind::Vector => inside.lane = Some(*var),
                LoopKind::Matrix => inside.matrix = true,
                LoopKind::Thread | LoopKind::Warp if bounds.iter().all(|bound| bound.as_constant() != Some(1)) => {
                    inside.threads.push(*var)
                }
                _ => {}
            }
            let bounds = bounds.iter().map(|bound| sum(nest, bound)).collect();
            Code::Loop { var: *var, bounds, kind: *kind, body: block(nest, body, &inside), source }
        }
        Stmt::If { conditions, body } => {
            Code::If { conditions: tests(nest, conditions), body: block(nest, body, around), source }
        }
        Stmt::Store { buffer, indices, value } => {
            Code::Store { to: access(nest, *buffer, indices), value: stored(nest, *buffer, value), source }
        }
        Stmt::Accumulate { buffer, indices, combiner, value } => Code::Accumulate {
            to: access(nest, *buffer, indices),
            combiner: *combiner,
            value: match stored(nest, *buffer, value) {
                Value::Real(Real::Binary(Binary::Multiply, operands), dtype) if around.matrix => {
                    let (x, y) = *operands;
                    let operands = (Real::Operand(Box::new(x)), Real::Operand(Box::new(y)));
                    Value::Real(Real::Binary(Binary::Multiply, Box::new(operands)), dtype)
                }
                value => value,
            },
            reduces: {
                let stays = |var: &Var| !indices.iter().any(|index| index.mentions(*var));
                let is_shared = nest.buffer(*buffer).scope != Scope::Register;
                Reduces { lanes: around.lane.iter().any(stays), threads: is_shared && around.threads.iter().any(stays) }
            },
            source,
        },
    };
    statements.iter().map(compile).collect()
}

/// A value that goes to a buffer. Literals take the buffer's type.
fn stored(nest: &Nest, buffer: TensorId, value: &Expr) -> Value {
    let dtype = nest.buffer(buffer).dtype;
    match value {
        Expr::Float(x) if dtype.is_float() => Value::Real(Real::Literal(scalar::round_real(dtype, x.0)), dtype),
        Expr::Index(index) if literal(value) => Value::Whole(constant(dtype.clamp_literal(index.offset())), dtype),
        other => expr(nest, other),
    }
}

fn constant(value: i64) -> Whole {
    Whole::Index(Sum { constant: value, vars: Vec::new(), others: Vec::new() })
}

fn expr(nest: &Nest, value: &Expr) -> Value {
    match value {
        Expr::Float(x) => Value::Real(Real::Literal(scalar::round_real(DType::F32, x.0)), DType::F32),
        Expr::Index(index) => Value::Whole(Whole::Index(sum(nest, index)), DType::I64),
        Expr::Load { tensor, indices } => {
            let (access, dtype) = (access(nest, *tensor, indices), nest.buffer(*tensor).dtype);
            match dtype.is_float() {
                true => Value::Real(Real::Load(access), dtype),
                false => Value::Whole(Whole::Load(access), dtype),
            }
        }
        Expr::Unary(op, x) => match expr(nest, x) {
            Value::Real(x, dtype) => rounded(Real::Unary(*op, Box::new(x)), dtype),
            Value::Whole(x, dtype) => wrapped(Whole::Unary(*op, dtype, Box::new(x)), dtype),
        },
        Expr::Binary(op, x, y) => {
            let compares = op.is_comparison();
            match expr(nest, x) {
                Value::Real(x, dtype) => {
                    let operands = Box::new((x, expr(nest, y).into_real()));
                    match compares {
                        true => Value::Whole(Whole::Compare(*op, operands), DType::Bool),
                        false => rounded(Real::Binary(*op, operands), dtype),
                    }
                }
                Value::Whole(x, dtype) => {
                    let result = Whole::Binary(*op, dtype, Box::new((x, expr(nest, y).into_whole())));
                    if compares { Value::Whole(result, DType::Bool) } else { wrapped(result, dtype) }
                }
            }
        }
        Expr::Select { condition, yes, no } => {
            let condition = expr(nest, condition).into_whole();
            match expr(nest, yes) {
                Value::Real(yes, dtype) => {
                    Value::Real(Real::Select(Box::new((condition, yes, expr(nest, no).into_real()))), dtype)
                }
                Value::Whole(yes, dtype) => {
                    Value::Whole(Whole::Select(Box::new((condition, yes, expr(nest, no).into_whole()))), dtype)
                }
            }
        }
        Expr::Guard { conditions, inside, outside } => {
            let conditions = tests(nest, conditions);
            match expr(nest, inside) {
                Value::Real(inside, dtype) => {
                    Value::Real(Real::Guard(conditions, Box::new((inside, expr(nest, outside).into_real()))), dtype)
                }
                Value::Whole(inside, dtype) => {
                    Value::Whole(Whole::Guard(conditions, Box::new((inside, expr(nest, outside).into_whole()))), dtype)
                }
            }
        }
        Expr::Bits(to, x) => match (expr(nest, x), to.is_float()) {
            (Value::Real(x, from), true) => {
                Value::Real(Real::OfBits(*to, Box::new(Whole::BitsOf(from, Box::new(x)))), *to)
            }
            (Value::Real(x, from), false) => wrapped(Whole::BitsOf(from, Box::new(x)), *to),
            (Value::Whole(x, _), true) => Value::Real(Real::OfBits(*to, Box::new(x)), *to),
            (Value::Whole(x, _), false) => wrapped(x, *to),
        },
        Expr::Cast(to, x) => match (expr(nest, x), to.is_float()) {
            (Value::Real(x, from), true) if *to == from => Value::Real(x, *to),
            (Value::Real(x, _), true) => rounded(x, *to),
            (Value::Real(x, _), false) => Value::Whole(Whole::FromReal(*to, Box::new(x)), *to),
            (Value::Whole(x, from), true) => rounded(Real::FromWhole(from, *to, Box::new(x)), *to),
            (Value::Whole(x, _), false) => wrapped(x, *to),
        },
    }
}

impl Value {
    fn into_real(self) -> Real {
        match self {
            Value::Real(x, _) => x,
            Value::Whole(x, from) => Real::FromWhole(from, DType::F32, Box::new(x)),
        }
    }

    fn into_whole(self) -> Whole {
        match self {
            Value::Whole(x, _) => x,
            Value::Real(x, _) => Whole::FromReal(DType::I64, Box::new(x)),
        }
    }
}

fn rounded(x: Real, dtype: DType) -> Value {
    Value::Real(if dtype == DType::F64 { x } else { Real::Round(dtype, Box::new(x)) }, dtype)
}

fn wrapped(x: Whole, dtype: DType) -> Value {
    Value::Whole(if dtype == DType::I64 { x } else { Whole::Wrap(dtype, Box::new(x)) }, dtype)
}

fn access(nest: &Nest, buffer: TensorId, indices: &[Index]) -> Access {
    let known = nest.buffer(buffer);
    let dimensions =
        indices.iter().zip(known.reach()).zip(row_major_strides(&known.shape)).map(|((index, extent), stride)| {
            Dimension { index: sum(nest, index), extent: *extent, stride, gathered: index.has_value() }
        });
    Access { buffer: buffer.0 as usize, dimensions: dimensions.collect() }
}

fn tests(nest: &Nest, conditions: &[Condition]) -> Vec<Test> {
    conditions.iter().map(|c| Test { index: sum(nest, &c.index), low: c.low, high: c.high }).collect()
}

fn sum(nest: &Nest, index: &Index) -> Sum {
    let mut result = Sum { constant: index.offset(), vars: Vec::new(), others: Vec::new() };
    for (atom, coefficient) in index.terms() {
        let other = match atom {
            Atom::Var(var) => {
                result.vars.push((var.0 as usize, *coefficient));
                continue;
            }
            Atom::FloorDiv(inner, divisor) => Other::FloorDiv(sum(nest, inner), *divisor),
            Atom::Modulo(inner, divisor) => Other::Modulo(sum(nest, inner), *divisor),
            Atom::Value(value) => Other::Value(Box::new(expr(nest, value).into_whole())),
        };
        result.others.push((other, *coefficient));
    }
    result
}
