//! Dot products of short numbers: which sums of products one instruction takes.
//!
//! | operands | sum | steps | x86 | AArch64 |
//! | --- | --- | ---: | --- | --- |
//! | bf16, bf16 | f32 | 2 | `vdpbf16ps` | `bfdot` |
//! | u8 or i8, u8 or i8 | i32 | 4 | `vpdpbusd`, `vpdpbssd`, ... | `udot`, `sdot`, `usdot` |
//!
//! What a loop of such a shape means is what it says, step by step; where a machine has no instruction for
//! it, it is written out.

use super::{Loop, Nest, Stmt};
use crate::workload::{Binary, Combiner, DType, Expr, Index, Stage, TensorId, Workload};

/// A dot product: what is added to what.
pub struct Product<'a> {
    pub buffer: TensorId,
    /// Of the sum; the loop's variable is not among them.
    pub indices: &'a [Index],
    pub operands: [Operand<'a>; 2],
}

/// What is multiplied: an element of a buffer of short numbers, in the type of the sum.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    pub buffer: TensorId,
    pub dtype: DType,
    pub indices: &'a [Index],
    /// Whether it is read only inside of a border. Then the steps are written out.
    pub is_guarded: bool,
}

/// Steps of a dot product of operands of such types, and the type of its sum; `None` where there is none.
pub fn steps(first: DType, second: DType) -> Option<(i64, DType)> {
    let is_byte = |dtype| matches!(dtype, DType::U8 | DType::I8);
    match (first, second) {
        (DType::BF16, DType::BF16) => Some((2, DType::F32)),
        (x, y) if is_byte(x) && is_byte(y) => Some((4, DType::I32)),
        _ => None,
    }
}

/// The types of both operands of a stage that sums products of what is read as it is, perhaps behind a border
/// of literals, and widened; `None` where it does something else.
pub fn operands(workload: &Workload, stage: &Stage) -> Option<[DType; 2]> {
    let Expr::Binary(Binary::Multiply, x, y) = &stage.value else { return None };
    let sum = workload.tensor(stage.output).dtype;
    let short = |operand: &Expr| match operand {
        Expr::Cast(to, inner) if *to == sum => match bordered(inner) {
            Expr::Load { tensor, .. } => Some(workload.tensor(*tensor).dtype),
            _ => None,
        },
        _ => None,
    };
    (stage.combiner == Some(Combiner::Sum)).then_some([short(x)?, short(y)?])
}

/// What is read inside of a border of literals, which a copy writes out.
fn bordered(operand: &Expr) -> &Expr {
    match operand {
        Expr::Guard { inside, outside, .. } if outside.is_plain() => inside,
        other => other,
    }
}

/// What a loop adds up, if it is a dot product:
///
/// ```text
/// dot for q in 0..2 { r[j] += f32 x[i, 2·k + q] * f32 y[k, j, q] }
/// ```
pub fn product<'a>(nest: &Nest, l: &'a Loop) -> Option<Product<'a>> {
    let [Stmt::Accumulate { buffer, indices, combiner: Combiner::Sum, value }] = l.body.as_slice() else { return None };
    let Expr::Binary(Binary::Multiply, x, y) = value else { return None };
    let sum = nest.buffer(*buffer).dtype;
    let operands = [operand(nest, x, sum)?, operand(nest, y, sum)?];
    let is_shaped = steps(operands[0].dtype, operands[1].dtype) == Some((l.extent(), sum)) && l.is_constant();
    let moves = indices.iter().any(|index| index.mentions(l.var));
    (is_shaped && !moves).then_some(Product { buffer: *buffer, indices, operands })
}

/// Whether a loop is a dot product.
pub fn is_product(nest: &Nest, l: &Loop) -> bool {
    product(nest, l).is_some()
}

fn operand<'a>(nest: &Nest, expr: &'a Expr, sum: DType) -> Option<Operand<'a>> {
    let Expr::Cast(to, inner) = expr else { return None };
    let (read, is_guarded) = match &**inner {
        Expr::Guard { inside, outside, .. } if outside.is_plain() => (&**inside, true),
        other => (other, false),
    };
    match read {
        Expr::Load { tensor, indices } if *to == sum => {
            Some(Operand { buffer: *tensor, dtype: nest.buffer(*tensor).dtype, indices, is_guarded })
        }
        _ => None,
    }
}
