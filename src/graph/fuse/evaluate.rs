//! A network, run by the naive evaluator: the oracle for whole networks.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use thiserror::Error;

use super::validate::{NetworkError, bound_tensors};
use crate::graph::{
    Binding, Call, Callee, ExtentError, Network, NetworkBuffer, NetworkTask, Region, RegionKind, Source, Symbols,
    value_at,
};
use crate::workload::{Array, ArrayError, DType, EvaluateError, Role, Tensor, TensorId, evaluate, put_part};

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
    #[error("call {call}: what it counts is out of its range")]
    Count { call: usize },
    #[error(transparent)]
    Array(#[from] ArrayError),
    #[error(transparent)]
    Extents(#[from] ExtentError),
}

impl Network {
    /// The network where its symbols have these values: one of fixed extents, in which a task that is called
    /// with different parameters is several.
    #[must_use]
    pub fn at(&self, values: &[i64]) -> Network {
        let mut fixed = Network { tasks: Vec::new(), symbols: Symbols::default(), ..self.clone() };
        let mut known: HashMap<(usize, Vec<i64>), usize> = HashMap::new();
        for region in &mut fixed.regions {
            match &mut region.kind {
                RegionKind::If { condition, .. } => *condition = condition.at(values),
                RegionKind::Nearest { .. } => {}
                RegionKind::Repeat { count, formula, going } => {
                    *going = going.as_ref().map(|going| going.at(values));
                    *count = formula.take().and_then(|formula| value_at(&formula, values)).unwrap_or(*count);
                }
            }
        }
        for number in 0..fixed.calls.len() {
            fixed.calls[number].arguments.iter_mut().for_each(|argument| *argument = argument.at(values));
            let formulas = std::mem::take(&mut fixed.calls[number].parameters);
            let parameters: Vec<i64> = formulas.iter().map(|formula| value_at(formula, values).unwrap_or(0)).collect();
            let task = match &mut fixed.calls[number].callee {
                Callee::Task(task) if *task < self.tasks.len() => *task,
                Callee::Task(_) => continue,
                Callee::Library(routine) => {
                    *routine = routine.with_sizes(&parameters);
                    fixed.calls[number].count = None;
                    continue;
                }
            };
            let iterations = fixed.expected_iterations_of(number) as usize;
            let own = *known.entry((task, parameters)).or_insert_with_key(|(_, parameters)| {
                let whole = &self.tasks[task];
                fixed.tasks.push(NetworkTask { workload: whole.workload.at(parameters), weight: 0, ..whole.clone() });
                fixed.tasks.len() - 1
            });
            fixed.tasks[own].weight = fixed.tasks[own].weight.saturating_add(iterations);
            fixed.calls[number].callee = Callee::Task(own);
        }
        for buffer in &mut fixed.buffers {
            buffer.shape = std::mem::take(&mut buffer.extents).at(&buffer.shape, values);
        }
        fixed
    }

    /// Names and tensors of the inputs, in the order of the buffers, which is that of the program.
    pub fn inputs(&self) -> Vec<(&str, Tensor)> {
        let tensor = |buffer: &NetworkBuffer| Tensor {
            extents: buffer.extents.clone(),
            ..Tensor::new(buffer.shape.clone(), buffer.dtype, Role::Input)
        };
        let mut named = Vec::new();
        for buffer in &self.buffers {
            if let Source::Input(name) = &buffer.source {
                named.push((name.as_str(), tensor(buffer)));
            }
        }
        named
    }

    /// The values of its symbols for inputs of these shapes.
    ///
    /// # Errors
    /// As [`Symbols::values`].
    pub fn symbol_values(&self, shapes: &[&[i64]]) -> Result<Vec<i64>, ExtentError> {
        let inputs = self.inputs();
        let named: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
        self.symbols.values(&named, shapes)
    }

    /// Runs all calls by the naive evaluator, with extents as the inputs have them. Inputs are named; the
    /// outputs come in the order of the buffers.
    ///
    /// # Errors
    /// [`NetworkEvaluateError`] where inputs are missing or of another type or shape, where the network
    /// breaks its invariants, or where a gather leaves its table.
    pub fn evaluate(&self, inputs: &[(&str, &Array)]) -> Result<Vec<(String, Array)>, NetworkEvaluateError> {
        self.validate()?;
        if self.symbols.is_empty() {
            return self.run(inputs);
        }
        let mut shapes = Vec::new();
        for (name, _) in self.inputs() {
            let given = inputs.iter().find(|(given, _)| *given == name);
            let (_, array) = given.ok_or_else(|| NetworkEvaluateError::Missing { name: name.to_string() })?;
            shapes.push(array.shape());
        }
        let mut values = self.symbol_values(&shapes)?;
        let mut fixed = self.at(&values);
        fixed.validate()?;
        let mut memory = fixed.initial_memory(inputs)?;
        // what is counted changes the extents of everything behind it
        let mut counts = BTreeMap::new();
        let mut first = 0;
        for (at, call) in self.calls.iter().enumerate() {
            let (Some(symbol), Some(place)) = (call.count, call.arguments.last()) else { continue };
            fixed.run_part(first..at + 1, &mut memory)?;
            let bytes = memory[place.buffer][place.offset as usize * 8..].first_chunk().copied();
            counts.insert(symbol, bytes.map_or(-1, i64::from_le_bytes));
            values = self.symbols.recounted(&values, &counts).ok_or(NetworkEvaluateError::Count { call: at })?;
            fixed = self.at(&values);
            for (buffer, bytes) in fixed.buffers.iter().zip(&mut memory) {
                bytes.resize(bytes.len().max(buffer_bytes(buffer)), 0);
            }
            first = at + 1;
        }
        fixed.run_part(first..fixed.calls.len(), &mut memory)?;
        fixed.results(&memory)
    }

    /// Runs all calls of a network of fixed extents.
    fn run(&self, inputs: &[(&str, &Array)]) -> Result<Vec<(String, Array)>, NetworkEvaluateError> {
        let mut memory = self.initial_memory(inputs)?;
        self.run_part(0..self.calls.len(), &mut memory)?;
        self.results(&memory)
    }

    fn initial_memory(&self, inputs: &[(&str, &Array)]) -> Result<Vec<Vec<u8>>, NetworkEvaluateError> {
        self.buffers.iter().map(|buffer| initial_bytes(buffer, inputs)).collect()
    }

    /// Runs calls that no region has a part of alone.
    fn run_part(&self, calls: Range<usize>, memory: &mut [Vec<u8>]) -> Result<(), NetworkEvaluateError> {
        let regions: Vec<Region> =
            self.regions.iter().filter(|region| calls.contains(&region.calls.start)).cloned().collect();
        self.run_calls(calls, &regions, 0, memory)
    }

    fn results(&self, memory: &[Vec<u8>]) -> Result<Vec<(String, Array)>, NetworkEvaluateError> {
        let mut outputs = Vec::new();
        for (buffer, bytes) in self.buffers.iter().zip(memory) {
            if let Source::Output(name) = &buffer.source {
                let bytes = &bytes[..buffer_bytes(buffer)];
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
                RegionKind::Repeat { count, going, .. } => {
                    for iteration in 0..*count {
                        let rests = going.as_ref().is_some_and(|going| !is_true(going, iteration, memory));
                        if rests && (count - iteration) % 2 == 0 {
                            break;
                        }
                        self.run_calls(region.calls.clone(), &rest[..inner], iteration, memory)?;
                    }
                }
                // all of them compute the same
                RegionKind::Nearest { .. } => self.run_call(&self.calls[at], iteration, memory)?,
                RegionKind::If { condition, wanted } => {
                    if is_true(condition, iteration, memory) == *wanted {
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
            let bytes = readable(&memory[at.buffer], bytes_of(tensor, at));
            given.push((*id, Array::from_bytes(tensor.shape.clone(), tensor.dtype, &bytes)?));
        }
        let given: Vec<(TensorId, &Array)> = given.iter().map(|(id, array)| (*id, array)).collect();
        let results = evaluate(&task.workload, &given)
            .map_err(|error| NetworkEvaluateError::Task { task: task.name.clone(), error })?;
        let outputs = bound.iter().filter(|(_, tensor, _)| tensor.role == Role::Output);
        for ((id, tensor, at), (_, array)) in outputs.zip(&results) {
            let (held, bytes) = (&mut memory[at.buffer], bytes_of(tensor, at));
            match task.workload.part_of(*id) {
                None => held[bytes].copy_from_slice(&array.to_bytes()),
                Some(part) => {
                    let values = array.part(part)?.to_bytes();
                    put_part(&mut held[bytes.start..], &values, part, &tensor.shape, tensor.dtype.bytes());
                }
            }
        }
        Ok(())
    }
}

/// Whether a condition holds in an iteration.
fn is_true(condition: &Binding, iteration: i64, memory: &[Vec<u8>]) -> bool {
    memory[condition.buffer][condition.offset_at(iteration) as usize] != 0
}

fn bytes_at(at: &Binding, iteration: i64, elements: i64, dtype: DType) -> Range<usize> {
    let first = at.offset_at(iteration) as usize * dtype.bytes();
    first..first + elements as usize * dtype.bytes()
}

/// What a call is given of a buffer. What lies behind the buffer's end is never read.
fn readable(held: &[u8], bytes: Range<usize>) -> Cow<'_, [u8]> {
    match held.get(bytes.clone()) {
        Some(inside) => Cow::Borrowed(inside),
        None => {
            let mut padded = held.get(bytes.start..).unwrap_or_default().to_vec();
            padded.resize(bytes.len(), 0);
            Cow::Owned(padded)
        }
    }
}

fn buffer_bytes(buffer: &NetworkBuffer) -> usize {
    buffer.shape.iter().product::<i64>() as usize * buffer.dtype.bytes()
}

fn initial_bytes(buffer: &NetworkBuffer, inputs: &[(&str, &Array)]) -> Result<Vec<u8>, NetworkEvaluateError> {
    let bytes = buffer_bytes(buffer);
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
