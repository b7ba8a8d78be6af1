//! Sums of products, as import writes them.

use crate::graph::Program;
use crate::workload::{Binary, Combiner, DType, Expr, Index, Stage, TensorId, Var};

/// A sum of products of two tensors.
pub struct Product<'a> {
    pub operands: [Operand<'a>; 2],
}

/// What is multiplied: an element of a tensor, or 0 where a condition does not hold.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    pub tensor: TensorId,
    pub indices: &'a [Index],
    /// The tensor's.
    pub dtype: DType,
}

/// What a stage adds up, if that is products of elements that are read as they are, or widened.
pub fn product<'a>(program: &Program, stage: &'a Stage) -> Option<Product<'a>> {
    let Expr::Binary(Binary::Multiply, x, y) = &stage.value else { return None };
    (stage.combiner == Some(Combiner::Sum)).then_some(())?;
    Some(Product { operands: [operand(program, x)?, operand(program, y)?] })
}

fn operand<'a>(program: &Program, expr: &'a Expr) -> Option<Operand<'a>> {
    let own = if let Expr::Cast(_, inner) = expr { &**inner } else { expr };
    let read = match own {
        Expr::Guard { inside, outside, .. } if outside.is_plain() => inside,
        other => other,
    };
    let Expr::Load { tensor, indices } = read else { return None };
    let dtype = program.tensor(*tensor).dtype;
    let is_direct = !indices.iter().any(Index::has_value);
    is_direct.then_some(Operand { tensor: *tensor, indices, dtype })
}

impl Operand<'_> {
    /// Whether it moves with an axis of the stage.
    pub fn mentions(&self, axis: usize) -> bool {
        self.indices.iter().any(|index| index.mentions(Var(axis as u32)))
    }
}

impl<'a> Product<'a> {
    /// The operand that is known when the network is compiled, and the other one.
    pub fn weight_first(&self, program: &Program) -> Option<[Operand<'a>; 2]> {
        let is_constant = |operand: &Operand| program.data[operand.tensor.0 as usize].is_some();
        match self.operands {
            [x, w] if is_constant(&w) && !is_constant(&x) => Some([w, x]),
            [w, x] if is_constant(&w) && !is_constant(&x) => Some([w, x]),
            _ => None,
        }
    }
}
