//! Running a whole network with the naive evaluator: slow, and the oracle of everything that is compiled from
//! it.

use std::collections::HashMap;

use thiserror::Error;

use super::{Program, TensorData};
use crate::workload::{self, Array, ArrayError, DType, Expr, Role, Stage, TensorId, Workload};

/// Why a network, or a stage of it, has no result.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum EvaluateError {
    #[error("{expected} inputs are needed, {found} were given")]
    InputCount { expected: usize, found: usize },
    #[error("input {name} has to be {} of shape {shape:?}, not {} of shape {found:?}", dtype.name(), found_dtype.name())]
    Input { name: String, shape: Vec<i64>, dtype: DType, found: Vec<i64>, found_dtype: DType },
    #[error("{node}: a stage reads t{}, which nothing has written", tensor.0)]
    NotWritten { node: String, tensor: TensorId },
    #[error("{node}: {source}")]
    Stage { node: String, source: workload::EvaluateError },
    #[error("{node}: {source}")]
    Array { node: String, source: ArrayError },
}

impl Program {
    /// Computes all outputs, in the order of `outputs`, from inputs in the order of `inputs`.
    ///
    /// # Errors
    /// [`EvaluateError`] where the inputs do not fit, or the program is invalid.
    pub fn evaluate(&self, inputs: &[TensorData]) -> Result<Vec<TensorData>, EvaluateError> {
        if inputs.len() != self.inputs.len() {
            return Err(EvaluateError::InputCount { expected: self.inputs.len(), found: inputs.len() });
        }
        let mut values: Vec<Option<TensorData>> = vec![None; self.tensors.len()];
        for ((name, tensor), data) in self.inputs.iter().zip(inputs) {
            let expected = self.tensor(*tensor);
            if data.shape != expected.shape || data.dtype != expected.dtype {
                return Err(EvaluateError::Input {
                    name: name.clone(),
                    shape: expected.shape.clone(),
                    dtype: expected.dtype,
                    found: data.shape.clone(),
                    found_dtype: data.dtype,
                });
            }
            values[tensor.0 as usize] = Some(data.clone());
        }
        let mut last_use: HashMap<TensorId, usize> = HashMap::new();
        for (position, stage) in self.stages.iter().enumerate() {
            stage.stage.value.for_each_load(&mut |tensor, _| {
                last_use.insert(tensor, position);
            });
        }
        for (position, stage) in self.stages.iter().enumerate() {
            let output = stage.stage.output;
            let dtype = self.tensor(output).dtype;
            let find = |tensor: TensorId| {
                let index = tensor.0 as usize;
                values.get(index).and_then(Option::as_ref).or(self.data.get(index).and_then(Option::as_ref))
            };
            let result = evaluate_stage(&find, &stage.stage, dtype, &stage.node)?;
            values[output.0 as usize] = Some(result);
            for (tensor, value) in values.iter_mut().enumerate() {
                let tensor = TensorId(tensor as u32);
                let is_output = self.outputs.iter().any(|(_, output)| *output == tensor);
                if last_use.get(&tensor) == Some(&position) && !is_output {
                    *value = None;
                }
            }
        }
        let output = |(name, tensor): &(String, TensorId)| {
            let value = values.get(tensor.0 as usize).cloned().flatten();
            value.ok_or_else(|| EvaluateError::NotWritten { node: format!("output {name}"), tensor: *tensor })
        };
        self.outputs.iter().map(output).collect()
    }
}

/// Computes one stage, given what it reads.
pub fn evaluate_stage<'a>(
    find: &dyn Fn(TensorId) -> Option<&'a TensorData>,
    stage: &Stage,
    dtype: DType,
    node: &str,
) -> Result<TensorData, EvaluateError> {
    let (workload, read) = stage_workload(stage, dtype, &|tensor| {
        let data = find(tensor)?;
        Some((data.shape.clone(), data.dtype))
    })
    .map_err(|tensor| EvaluateError::NotWritten { node: node.to_string(), tensor })?;
    let mut arguments: Vec<(TensorId, Array)> = Vec::new();
    for (argument, tensor) in read.iter().enumerate() {
        let data = find(*tensor).ok_or(EvaluateError::NotWritten { node: node.to_string(), tensor: *tensor })?;
        let array = Array::from_bytes(data.shape.clone(), data.dtype, &data.bytes)
            .map_err(|source| EvaluateError::Array { node: node.to_string(), source })?;
        arguments.push((TensorId(argument as u32), array));
    }
    let output = TensorId(arguments.len() as u32);
    let arguments: Vec<(TensorId, &Array)> = arguments.iter().map(|(tensor, array)| (*tensor, array)).collect();
    let results = workload::evaluate(&workload, &arguments)
        .map_err(|source| EvaluateError::Stage { node: node.to_string(), source })?;
    let result = results.into_iter().find(|(tensor, _)| *tensor == output);
    let (_, array) = result.ok_or_else(|| EvaluateError::NotWritten { node: node.to_string(), tensor: output })?;
    Ok(TensorData { shape: stage.spatial.clone(), dtype, bytes: array.to_bytes().into() })
}

/// A stage as a workload of its own: what it reads are the first tensors, in the order of the given list, its
/// output the last.
///
/// # Errors
/// A tensor that `describe` does not know.
pub fn stage_workload(
    stage: &Stage,
    dtype: DType,
    describe: &dyn Fn(TensorId) -> Option<(Vec<i64>, DType)>,
) -> Result<(Workload, Vec<TensorId>), TensorId> {
    let mut read: Vec<TensorId> = Vec::new();
    stage.value.for_each_load(&mut |tensor, _| {
        if !read.contains(&tensor) {
            read.push(tensor);
        }
    });
    let mut workload = Workload::default();
    for tensor in &read {
        let (shape, dtype) = describe(*tensor).ok_or(*tensor)?;
        workload.add_tensor(shape, dtype, Role::Input);
    }
    let output = workload.add_tensor(stage.spatial.clone(), dtype, Role::Output);
    let value = stage.value.map_loads(&mut |tensor, indices| {
        let argument = read.iter().position(|other| *other == tensor)?;
        Some(Expr::load(TensorId(argument as u32), indices.to_vec()))
    });
    workload.stages.push(Stage { output, value, ..stage.clone() });
    Ok((workload, read))
}
