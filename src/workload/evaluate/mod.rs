//! The naive evaluator: what a workload computes, stage by stage and element by element. It is the oracle
//! that interpreted nests and compiled kernels answer to.
//!
//! Semantics: floating-point expressions are computed in f64, from the loads to the end of the reduction, and
//! rounded once, when the stage's element is stored; so it is more exact than any kernel in f32. A cast
//! between types rounds where it stands, and what becomes an integer is rounded to its own type before.
//! Integers are computed in 64 bits, wrapping, and truncated when stored. Reductions run in the row-major
//! order of their axes. Maximum and minimum propagate NaN and order zeros by sign.
//!
//! An expression is compiled once into a program over registers that hold a block of points each
//! (`compile.rs`), which then runs over all blocks, spread over threads (`run.rs`).

mod compile;
mod lanes;
mod product;
mod program;
mod run;

use std::borrow::Cow;

use thiserror::Error;

use super::array::Array;
use super::part::put_part;
use super::validate::WorkloadError;
use super::{Binary, DType, Expr, Role, Stage, TensorId, Workload, scalar, typed_identity};

/// Why there is no result. All but `OutOfMemory` are faults of the workload or its arguments.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum EvaluateError {
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    #[error("argument t{} is missing", tensor.0)]
    Missing { tensor: TensorId },
    #[error("t{} is no input or constant of the workload, or is given twice", tensor.0)]
    NotAnArgument { tensor: TensorId },
    #[error("argument t{} is {found} {found_shape:?}, not {expected} {expected_shape:?}", tensor.0, found = found.name(), expected = expected.name())]
    Argument { tensor: TensorId, expected: DType, expected_shape: Vec<i64>, found: DType, found_shape: Vec<i64> },
    #[error("stage {stage} reads t{} at {index} in dimension {dimension}, which has the extent {extent}", tensor.0)]
    OutOfRange { stage: usize, tensor: TensorId, dimension: usize, index: i64, extent: i64 },
    #[error("stage {stage} divides an integer by zero")]
    DivisionByZero { stage: usize },
    #[error("no memory for the {bytes} bytes of t{}", tensor.0)]
    OutOfMemory { tensor: TensorId, bytes: usize },
}

/// Computes the outputs, in the order of the workload's tensors. What a workload does not write of an output
/// is 0.
///
/// # Errors
/// [`EvaluateError`] for an invalid workload, arguments that do not fit it, a gather out of range,
/// an integer division by zero, or a lack of memory.
pub fn evaluate(
    workload: &Workload,
    arguments: &[(TensorId, &Array)],
) -> Result<Vec<(TensorId, Array)>, EvaluateError> {
    let results = evaluate_all(workload, arguments)?;
    Ok(results.into_iter().filter(|(id, _)| workload.tensor(*id).role == Role::Output).collect())
}

/// Computes every tensor that a stage writes, intermediates too, in the order of the workload's tensors.
///
/// # Errors
/// As for [`evaluate`].
pub fn evaluate_all(
    workload: &Workload,
    arguments: &[(TensorId, &Array)],
) -> Result<Vec<(TensorId, Array)>, EvaluateError> {
    workload.validate_for(0)?;
    let workload = &*without_empty_reductions(workload);
    let mut arrays = bind(workload, arguments)?;
    for (number, stage) in workload.stages.iter().enumerate() {
        let program = compile::compile(workload, number);
        let tensor = workload.tensor(stage.output);
        let mut result = zeros(stage.output, stage.spatial.clone(), tensor.dtype)?;
        if !result.elements().is_empty() {
            run::run(&program, number, &arrays, result.elements_mut())?;
        }
        if stage.spatial != tensor.shape {
            result = within(&result, &tensor.shape, stage.output)?;
        }
        arrays[stage.output.0 as usize] = Some(Cow::Owned(result));
    }
    let owned = |(id, array): (usize, Option<Cow<'_, Array>>)| match array {
        Some(Cow::Owned(array)) => Some((TensorId(id as u32), array)),
        Some(Cow::Borrowed(_)) | None => None,
    };
    Ok(arrays.into_iter().enumerate().filter_map(owned).collect())
}

/// Stages that combine nothing, because an extent is 0 in this run, store what that gives.
fn without_empty_reductions(workload: &Workload) -> Cow<'_, Workload> {
    let is_empty = |stage: &Stage| stage.reduction.contains(&0);
    if !workload.stages.iter().any(is_empty) {
        return Cow::Borrowed(workload);
    }
    let mut changed = workload.clone();
    for stage in changed.stages.iter_mut().filter(|stage| is_empty(stage)) {
        let dtype = workload.tensor(stage.output).dtype;
        let value = stage.combiner.map_or(Expr::float(0.0), |combiner| typed_identity(combiner, dtype));
        *stage = Stage::map(stage.output, stage.spatial.clone(), value);
    }
    Cow::Owned(changed)
}

/// The value of an operator on two literals, if a literal can hold it exactly: `None` for comparisons, NaN
/// and what f32 rounds.
pub(super) fn fold(op: Binary, x: f64, y: f64) -> Option<f64> {
    if op.is_comparison() {
        return None;
    }
    let value = scalar::binary(op, x, y);
    (f64::from(value as f32) == value).then_some(value)
}

fn bind<'a>(
    workload: &Workload,
    arguments: &[(TensorId, &'a Array)],
) -> Result<Vec<Option<Cow<'a, Array>>>, EvaluateError> {
    let mut arrays: Vec<Option<Cow<'a, Array>>> = vec![None; workload.tensors.len()];
    for (id, array) in arguments {
        let tensor = workload.tensors.get(id.0 as usize).filter(|t| matches!(t.role, Role::Input | Role::Constant));
        let Some(tensor) = tensor.filter(|_| arrays[id.0 as usize].is_none()) else {
            return Err(EvaluateError::NotAnArgument { tensor: *id });
        };
        if array.dtype() != tensor.dtype || array.shape() != tensor.shape {
            return Err(EvaluateError::Argument {
                tensor: *id,
                expected: tensor.dtype,
                expected_shape: tensor.shape.clone(),
                found: array.dtype(),
                found_shape: array.shape().to_vec(),
            });
        }
        arrays[id.0 as usize] = Some(Cow::Borrowed(*array));
    }
    let missing = |(id, t): &(TensorId, &super::Tensor)| {
        matches!(t.role, Role::Input | Role::Constant) && arrays[id.0 as usize].is_none()
    };
    match workload.ids().find(missing) {
        Some((tensor, _)) => Err(EvaluateError::Missing { tensor }),
        None => Ok(arrays),
    }
}

/// An array of this shape, 0 but for the elements of a part that begins at the first one.
fn within(part: &Array, shape: &[i64], tensor: TensorId) -> Result<Array, EvaluateError> {
    let mut bytes = zeros(tensor, shape.to_vec(), part.dtype())?.to_bytes();
    put_part(&mut bytes, &part.to_bytes(), part.shape(), shape, part.dtype().bytes());
    let size = bytes.len();
    Array::from_bytes(shape.to_vec(), part.dtype(), &bytes)
        .map_err(|_| EvaluateError::OutOfMemory { tensor, bytes: size })
}

/// Refuses what the allocator would abort on.
fn zeros(tensor: TensorId, shape: Vec<i64>, dtype: DType) -> Result<Array, EvaluateError> {
    let count = shape.iter().product::<i64>() as usize;
    let bytes = count * dtype.bytes();
    Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| EvaluateError::OutOfMemory { tensor, bytes })?;
    Array::zeros(shape, dtype).map_err(|_| EvaluateError::OutOfMemory { tensor, bytes })
}
