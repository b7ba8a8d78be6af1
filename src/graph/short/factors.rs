//! Literal factors of what sums of products multiply, as attention has them, are multiplied behind the sums:
//! once for each result, not for each step.
//!
//! ```text
//! y[m, n] = Σ_k (a · q[m, k]) · (b · k[n, k])     =>     y[m, n] = (a · b) · Σ_k q[m, k] · k[n, k]
//! ```

use super::Maps;
use super::integer::with_sum;
use super::product::of_activations;
use crate::graph::Program;
use crate::graph::lower::math::{float, multiply};
use crate::workload::{Binary, DType, Expr, Index, Stage, TensorId};

/// Factors between the reciprocal of this and this: others may be what keeps the sums finite.
const GREATEST: f64 = 1024.0;
/// Stages that are looked through, one behind the other.
const MAX_DEPTH: usize = 8;

/// Moves the factors of all sums of products of two activations.
pub fn move_behind(program: &mut Program) {
    program.replace_stages(&mut |program, maps, stage| {
        let operands = of_activations(program, stage)?;
        let is_f32 = |tensor: TensorId| program.tensor(tensor).dtype == DType::F32;
        let fits = is_f32(stage.output) && operands.iter().all(|x| x.widened_to.is_none() && is_f32(x.tensor));
        let Expr::Binary(op, x, y) = &stage.value else { return None };
        let [(a, x), (b, y)] = [x, y].map(|operand| factored(maps, operand));
        let factor = a * b;
        let is_moved = fits && factor != 1.0 && is_moderate(factor);
        is_moved.then(|| {
            let value = Expr::binary(*op, x, y);
            with_sum(program, stage, DType::F32, value, |sum| multiply(float(factor), sum))
        })
    });
}

/// The literals that an operand is multiplied by in the stages that make it, and what is left of it.
fn factored(maps: &Maps, operand: &Expr) -> (f64, Expr) {
    let (mut factor, mut found) = (1.0, operand.clone());
    let mut read = operand.clone();
    for _ in 0..MAX_DEPTH {
        let Expr::Load { tensor, indices } = &read else { break };
        let Some((by, inner)) = maps.get(tensor).and_then(|made| scaled(made, indices)) else { break };
        read = inner;
        if by != 1.0 {
            (factor, found) = (factor * by, read.clone());
        }
    }
    (factor, found)
}

/// The literal by which a stage multiplies an element, and that element, of the result at these indices.
fn scaled(made: &Stage, at: &[Index]) -> Option<(f64, Expr)> {
    let (by, inner) = match &made.value {
        load @ Expr::Load { .. } => (1.0, load),
        Expr::Binary(Binary::Multiply, x, y) => match (&**x, &**y) {
            (Expr::Float(by), inner) | (inner, Expr::Float(by)) => (by.0, inner),
            _ => return None,
        },
        _ => return None,
    };
    let Expr::Load { indices, .. } = inner else { return None };
    let is_known = !indices.iter().chain(at).any(Index::has_value);
    let read =
        || inner.substitute(&|var| if var.as_parameter().is_some() { None } else { at.get(var.0 as usize).cloned() });
    (is_moderate(by) && is_known).then(|| (by, read()))
}

fn is_moderate(factor: f64) -> bool {
    (GREATEST.recip()..=GREATEST).contains(&factor.abs())
}
