//! Operators become stages.
//!
//! One function for each family of operators; what it returns are the tensors of the operator's outputs.
//! Shapes are static, so inferring them is part of the lowering, and so is computing what depends on
//! constants only (see [`Builder`]).
//!
//! Invariant: nothing here trusts an attribute or a shape. Extents, ranks and sizes go through
//! [`Builder::check_shape`] before anything is computed or allocated with them.

mod activation;
mod attention;
mod bits;
mod blocks;
mod builder;
mod columns;
mod constants;
mod contraction;
mod contrib;
mod convolution;
mod crop;
mod deform;
mod determinant;
mod einsum;
mod elementwise;
mod equated;
mod extent;
mod extremes;
mod few_bits;
mod formulas;
mod found;
mod fraction;
mod fourier;
mod fused;
mod gather;
mod grid;
mod grouped;
mod interpolate;
mod iteration;
mod known;
mod layout;
mod losses;
pub mod math;
mod normalization;
mod operator;
mod operators;
mod padding;
mod parts;
mod polynomial;
mod pooling;
mod qlinear;
mod quantization;
mod random;
mod read;
mod recurrence;
mod recurrent;
mod reduction;
mod reshape;
mod resampling;
mod resize;
mod roi;
mod rotary;
mod sampling;
mod scatter;
mod slice;
mod signal;
mod sizes;
mod sort;
mod vanish;
mod window;

pub use blocks::{MAX_ITERATIONS, OpenRepeat, UNBOUNDED_ITERATIONS};
pub use builder::Builder;
pub use formulas::Conflict;
pub use found::compressed;
pub use layout::move_axis;
pub use operator::{Attribute, Operand, Operator, Problem, normal_axis};
pub use parts::{chained, element, stack};
pub use reshape::reshape_to;

use crate::workload::{DType, TensorId};

use operators::{Lower, Lowering, Types};

/// Whether an operator of ONNX's own domain can be lowered at all.
pub fn is_supported(kind: &str) -> bool {
    operators::lowering(kind).is_some()
}

/// Appends the stages of an operator, and gives the tensors of its outputs, trailing ones left out where
/// nobody can use them.
///
/// # Errors
/// What about the operator's inputs or attributes stands against it.
pub fn lower(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let unknown = || Problem::Unsupported(op.kind.clone());
    let Lowering { rule, takes_run_time_extents, types } = operators::lowering(&op.kind).ok_or_else(unknown)?;
    if let Some(known) = known::lower(builder, op)? {
        return Ok(known);
    }
    if let Some(whole) = sizes::lower(builder, op)? {
        return Ok(whole);
    }
    let mut inputs = op.inputs.iter().flatten();
    if inputs.any(|operand| builder.is_run_time(operand.tensor)) && !takes_run_time_extents {
        return Err(Problem::Unsupported(format!("{} with run-time extents", op.kind)));
    }
    let halves = op.inputs.iter().flatten().map(|operand| builder.dtype(operand.tensor));
    let half = halves.into_iter().find(|dtype| matches!(dtype, DType::F16 | DType::BF16));
    let results = match (types, half) {
        (Types::Usual | Types::Library, Some(half)) => lower_in_f32(builder, op, rule, half),
        (Types::Usual, None) if has_double(builder, op) => lower_in_f64(builder, op, rule),
        _ => rule(builder, op),
    }?;
    sizes::follow(builder, op, &results);
    Ok(results)
}

fn has_double(builder: &Builder, op: &Operator) -> bool {
    op.inputs.iter().flatten().any(|operand| builder.dtype(operand.tensor) == DType::F64)
}

/// Operators on f64 compute in f64.
fn lower_in_f64(builder: &mut Builder, op: &Operator, rule: Lower) -> Result<Vec<TensorId>, Problem> {
    let first = builder.dtype(op.input(0)?);
    let mut results = builder.in_double(|builder| rule(builder, op))?;
    // what has another type by definition: a power that of its base, mean and deviation f32
    let single = match op.kind.as_str() {
        "Pow" if first == DType::F32 => 0..results.len(),
        "LayerNormalization" => 1.min(results.len())..results.len(),
        _ => 0..0,
    };
    for result in &mut results[single] {
        *result = builder.converted(*result, DType::F32)?;
    }
    Ok(results)
}

/// Operators on 16-bit floats compute in f32, sums among them, and round their results.
fn lower_in_f32(builder: &mut Builder, op: &Operator, rule: Lower, half: DType) -> Result<Vec<TensorId>, Problem> {
    let mut wide = op.clone();
    for operand in wide.inputs.iter_mut().flatten() {
        if matches!(builder.dtype(operand.tensor), DType::F16 | DType::BF16) {
            operand.tensor = builder.converted(operand.tensor, DType::F32)?;
        }
    }
    let mut results = rule(builder, &wide)?;
    // mean and deviation, which follow the normalised values, are of f32 by definition
    let rounded = if op.kind == "LayerNormalization" { 1 } else { results.len() };
    for result in results.iter_mut().take(rounded) {
        if builder.dtype(*result) == DType::F32 {
            *result = builder.converted(*result, half)?;
        }
    }
    Ok(results)
}
