//! A network, run by the naive evaluator: the oracle for whole networks.

use std::ops::Range;

use thiserror::Error;

use super::validate::{NetworkError, bound_tensors};
use crate::graph::{Binding, Call, Callee, Network, NetworkBuffer, Region, RegionKind, Source};
use crate::workload::{Array, ArrayError, DType, EvaluateError, Role, Tensor, TensorId, evaluate};

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
        self.run_calls(0..self.calls.len(), &self.regions, 0, &mut memory)?;
        let mut outputs = Vec::new();
        for (buffer, bytes) in self.buffers.iter().zip(&memory) {
            if let Source::Output(name) = &buffer.source {
                outputs.push((name.clone(), Array::from_bytes(buffer.shape.clone(), buffer.dtype, bytes)?));
            }
        }
        Ok(outputs)
    }

    /// Runs calls in order; `regions` are those that start among them.
    fn run_calls(
        &self,
        calls: Range<usize>,
        regions: &[Region],
        iteration: i64,
        memory: &mut [Vec<u8>],
    ) -> Result<(), NetworkEvaluateError> {
        let (mut at, mut regions) = (calls.start, regions);
        while at < calls.end {
            let Some((region, rest)) = regions.split_first().filter(|(region, _)| region.calls.start == at) else {
                self.run_call(&self.calls[at], iteration, memory)?;
                at += 1;
                continue;
            };
            let inner = rest.iter().take_while(|inner| inner.calls.start < region.calls.end).count();
            match &region.kind {
                RegionKind::Repeat { count } => {
                    for iteration in 0..*count {
                        self.run_calls(region.calls.clone(), &rest[..inner], iteration, memory)?;
                    }
                }
                RegionKind::If { condition, wanted } => {
                    let is_true = memory[condition.buffer][condition.offset_at(iteration) as usize] != 0;
                    if is_true == *wanted {
                        self.run_calls(region.calls.clone(), &rest[..inner], iteration, memory)?;
                    }
                }
            }
            (at, regions) = (region.calls.end, &rest[inner..]);
        }
        Ok(())
    }

    fn run_call(&self, call: &Call, iteration: i64, memory: &mut [Vec<u8>]) -> Result<(), NetworkEvaluateError> {
        let task = match &call.callee {
            Callee::Task(task) => &self.tasks[*task],
            Callee::Library(routine) => {
                let arguments = routine.inputs().into_iter().chain(routine.outputs()).zip(&call.arguments);
                let parts: Vec<(usize, Range<usize>)> = arguments
                    .map(|((elements, dtype), at)| (at.buffer, bytes_at(at, iteration, elements, dtype)))
                    .collect();
                let (given, written) = parts.split_at(routine.inputs().len());
                let given: Vec<&[u8]> = given.iter().map(|(buffer, bytes)| &memory[*buffer][bytes.clone()]).collect();
                for ((buffer, bytes), result) in written.iter().zip(routine.run(&given)) {
                    memory[*buffer][bytes.clone()].copy_from_slice(&result);
                }
                return Ok(());
            }
        };
        let bytes_of = |tensor: &Tensor, at: &Binding| bytes_at(at, iteration, tensor.elements(), tensor.dtype);
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
        Ok(())
    }
}

fn bytes_at(at: &Binding, iteration: i64, elements: i64, dtype: DType) -> Range<usize> {
    let first = at.offset_at(iteration) as usize * dtype.bytes();
    first..first + elements as usize * dtype.bytes()
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
