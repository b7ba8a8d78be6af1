//! A network, run by the naive evaluator: the oracle for whole networks.

use thiserror::Error;

use super::validate::{NetworkError, bound_tensors};
use crate::graph::{Binding, Network, NetworkBuffer, Source};
use crate::workload::{Array, ArrayError, EvaluateError, Role, Tensor, TensorId, evaluate};

/// Why a network has no result.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum NetworkEvaluateError {
    #[error("the network is faulty: {0}")]
    Network(#[from] NetworkError),
    #[error("input `{name}` is missing")]
    Missing { name: String },
    #[error("input `{name}` does not have {bytes} bytes: {shape:?} of {dtype}")]
    Input { name: String, bytes: usize, shape: Vec<i64>, dtype: &'static str },
    #[error("task `{task}`: {error}")]
    Task { task: String, error: EvaluateError },
    #[error(transparent)]
    Array(#[from] ArrayError),
}

impl Network {
    /// Runs all calls by the naive evaluator. Inputs are named; the outputs come in the order of the buffers.
    ///
    /// # Errors
    /// [`NetworkEvaluateError`] where inputs are missing or of another type or shape, where the network
    /// breaks its invariants, or where a gather leaves its table.
    pub fn evaluate(&self, inputs: &[(&str, &Array)]) -> Result<Vec<(String, Array)>, NetworkEvaluateError> {
        self.validate()?;
        let mut memory = Vec::with_capacity(self.buffers.len());
        for buffer in &self.buffers {
            memory.push(initial_bytes(buffer, inputs)?);
        }
        for call in &self.calls {
            let task = &self.tasks[call.task];
            let bound: Vec<(TensorId, &Tensor, &Binding)> =
                bound_tensors(&task.workload).zip(&call.arguments).map(|((id, tensor), at)| (id, tensor, at)).collect();
            let mut given = Vec::new();
            for (id, tensor, at) in bound.iter().filter(|(_, tensor, _)| tensor.role != Role::Output) {
                let bytes = &memory[at.buffer][bytes_of(tensor, at)];
                given.push((*id, Array::from_bytes(tensor.shape.clone(), tensor.dtype, bytes)?));
            }
            let given: Vec<(TensorId, &Array)> = given.iter().map(|(id, array)| (*id, array)).collect();
            let results = evaluate(&task.workload, &given)
                .map_err(|error| NetworkEvaluateError::Task { task: task.name.clone(), error })?;
            let outputs = bound.iter().filter(|(_, tensor, _)| tensor.role == Role::Output);
            for ((_, tensor, at), (_, array)) in outputs.zip(&results) {
                memory[at.buffer][bytes_of(tensor, at)].copy_from_slice(&array.to_bytes());
            }
        }
        let mut outputs = Vec::new();
        for (buffer, bytes) in self.buffers.iter().zip(&memory) {
            if let Source::Output(name) = &buffer.source {
                outputs.push((name.clone(), Array::from_bytes(buffer.shape.clone(), buffer.dtype, bytes)?));
            }
        }
        Ok(outputs)
    }
}

fn bytes_of(tensor: &Tensor, at: &Binding) -> std::ops::Range<usize> {
    let first = at.offset as usize * tensor.dtype.bytes();
    first..first + tensor.bytes()
}

fn initial_bytes(buffer: &NetworkBuffer, inputs: &[(&str, &Array)]) -> Result<Vec<u8>, NetworkEvaluateError> {
    let bytes = buffer.shape.iter().product::<i64>() as usize * buffer.dtype.bytes();
    match &buffer.source {
        Source::Constant(data) => Ok(data.bytes.to_vec()),
        Source::Output(_) | Source::Intermediate => Ok(vec![0; bytes]),
        Source::Input(name) => {
            let (_, array) = inputs
                .iter()
                .find(|(given, _)| given == name)
                .ok_or_else(|| NetworkEvaluateError::Missing { name: name.clone() })?;
            let (shape, dtype) = (buffer.shape.clone(), buffer.dtype);
            if array.shape() != shape || array.dtype() != dtype {
                return Err(NetworkEvaluateError::Input { name: name.clone(), bytes, shape, dtype: dtype.name() });
            }
            Ok(array.to_bytes())
        }
    }
}
