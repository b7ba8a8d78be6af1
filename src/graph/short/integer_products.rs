//! Sums of products of two quantised activations, as in attention. Differences of bytes are whole numbers of
//! at most 255, which bf16 holds:
//!
//! ```text
//! y[m, n] = Σ_k (s · (a[m, k] - z)) · (r · (b[k, n] - v))
//!
//! i[m, n] = Σ_k f32(bf16 (a - z)[m, k]) · f32(bf16 (b - v)[k, n])
//! y[m, n] = i[m, n] · (s · r)
//! ```
//!
//! The stage that quantises stores the differences, if all that reads it are such sums. Up to 258 products of
//! 255 · 255, f32 holds every sum.

use std::collections::{HashMap, HashSet};

use super::integer::{ZeroPoint, scale_of, with_sum};
use super::integer_factor::Factor;
use super::integer_store::Copies;
use crate::graph::Program;
use crate::graph::lower::math::{cast, float, multiply, subtract};
use crate::workload::{Binary, Combiner, DType, Expr, Stage, TensorId};

/// The sum with its scales behind it; `None` where there are none, or zero points are known only when the
/// network runs.
pub fn of_activations(program: &mut Program, stage: &Stage, factors: [&Factor; 2]) -> Option<Vec<Stage>> {
    if program.tensor(stage.output).dtype != DType::F32 {
        return None;
    }
    let [x, y] = factors.map(|factor| difference(program, stage, factor));
    let value = multiply(x?, y?);
    let scale = scale_of(program, stage, factors.map(|factor| factor.scale.as_ref()))?;
    Some(with_sum(program, stage, DType::F32, value, |sum| multiply(sum, scale)))
}

/// `f32(q) - z`
fn difference(program: &Program, stage: &Stage, factor: &Factor) -> Option<Expr> {
    let number = cast(factor.dtype, DType::F32, factor.element_inside());
    match ZeroPoint::new(program, stage, factor) {
        _ if !factor.guards.is_empty() => None,
        ZeroPoint::None => Some(number),
        ZeroPoint::Literal(zero) => Some(subtract(number, float(zero as f64))),
        ZeroPoint::RunTime(_) => None,
    }
}

/// What a sum of products multiplies, and the zero point that it subtracts: see [`difference`].
fn operand(value: &Expr) -> Option<(TensorId, f64)> {
    let (number, zero) = match value {
        Expr::Binary(Binary::Subtract, x, zero) => match &**zero {
            Expr::Float(zero) => (&**x, zero.0),
            _ => return None,
        },
        number => (number, 0.0),
    };
    match number {
        Expr::Cast(DType::F32, inner) => match &**inner {
            Expr::Load { tensor, .. } => Some((*tensor, zero)),
            _ => None,
        },
        _ => None,
    }
}

fn operands(stage: &Stage) -> Option<[(TensorId, f64); 2]> {
    match &stage.value {
        Expr::Binary(Binary::Multiply, x, y) if stage.combiner == Some(Combiner::Sum) => {
            Some([operand(x)?, operand(y)?])
        }
        _ => None,
    }
}

/// Stores bytes that are only multiplied by one another as bf16, less their zero points.
pub fn in_sixteen_bits(program: &mut Program) {
    let starts = |stage: &Stage| is_byte(program, stage.output) && bounded(&stage.value).is_some();
    let copies = Copies::of(program, &starts);
    let mut zeros: HashMap<TensorId, Option<f64>> = HashMap::new();
    super::for_each_stage(&program.steps, &mut |stage| {
        for (tensor, zero) in operands(stage).into_iter().flatten() {
            let own = zeros.entry(copies.root(tensor)).or_insert(Some(zero));
            *own = own.filter(|before| *before == zero);
        }
    });
    let zero_of = |tensor: TensorId| zeros.get(&copies.root(tensor)).copied().flatten();
    // both operands have to be short, or none
    let keep = |stage: &Stage, found: &mut HashSet<TensorId>| {
        let operands = operands(stage)
            .filter(|operands| operands.iter().all(|(tensor, _)| found.contains(tensor) && zero_of(*tensor).is_some()));
        if operands.is_none() {
            stage.value.for_each_load(&mut |tensor, _| {
                found.remove(&tensor);
            });
        }
    };
    let mut found = copies.read_only(program, &keep);
    found.retain(|tensor| zero_of(*tensor).is_some());
    for tensor in &found {
        program.tensors[tensor.0 as usize].dtype = DType::BF16;
    }
    super::for_each_stage_mut(&mut program.steps, &mut |stage| {
        stage.value = stage.value.rewrite(&mut |expr| match operand(&expr) {
            Some((tensor, zero)) if found.contains(&tensor) && zero != 0.0 => match expr {
                Expr::Binary(_, number, _) => *number,
                other => other,
            },
            _ => expr,
        });
        if let (true, Some(value), Some(zero)) =
            (found.contains(&stage.output), bounded(&stage.value), zero_of(stage.output))
        {
            let whole = if zero == 0.0 { value.clone() } else { subtract(value.clone(), float(zero)) };
            stage.value = cast(DType::F32, DType::BF16, whole);
        }
    });
}

fn is_byte(program: &Program, tensor: TensorId) -> bool {
    matches!(program.tensor(tensor).dtype, DType::U8 | DType::I8)
}

/// The whole number of a stage that quantises, within the bounds of its type.
fn bounded(value: &Expr) -> Option<&Expr> {
    match value {
        Expr::Cast(DType::U8 | DType::I8, bounded) => match &**bounded {
            Expr::Binary(Binary::Minimum, ..) => Some(bounded),
            _ => None,
        },
        _ => None,
    }
}
