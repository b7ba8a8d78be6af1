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
use crate::workload::{Binary, Combiner, DType, Element, Expr, Index, TensorId, dot_steps};

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
    let is_shaped = dot_steps(operands.map(|operand| operand.dtype)) == Some((l.extent(), sum)) && l.is_constant();
    let moves = indices.iter().any(|index| index.mentions(l.var));
    (is_shaped && !moves).then_some(Product { buffer: *buffer, indices, operands })
}

/// Whether a loop is a dot product.
pub fn is_product(nest: &Nest, l: &Loop) -> bool {
    product(nest, l).is_some()
}

fn operand<'a>(nest: &Nest, expr: &'a Expr, sum: DType) -> Option<Operand<'a>> {
    let Element { tensor, indices, is_guarded, .. } = expr.as_element().filter(|e| e.widened_to == Some(sum))?;
    Some(Operand { buffer: tensor, dtype: nest.buffer(tensor).dtype, indices, is_guarded })
}
