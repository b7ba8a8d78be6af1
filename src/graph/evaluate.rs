//! Running a whole network with the naive evaluator: slow, and the oracle of everything that is compiled from
//! it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use thiserror::Error;

use super::{
    Bytes, Collected, Conditional, ExtentError, LibraryCall, Program, ProgramStage, Repeat, Scanned, Step, TensorData,
};
use crate::workload::{self, Array, ArrayError, DType, Expr, Role, Stage, Tensor, TensorId, Workload};

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
    #[error("{0}: what it counts is out of its range")]
    Count(String),
    #[error(transparent)]
    Extents(#[from] ExtentError),
}

impl Program {
    /// Computes all outputs, in the order of `outputs`, from inputs in the order of `inputs`, whose shapes
    /// say what its symbols are.
    ///
    /// # Errors
    /// [`EvaluateError`] where the inputs do not fit, or the program is invalid.
    pub fn evaluate(&self, inputs: &[TensorData]) -> Result<Vec<TensorData>, EvaluateError> {
        if inputs.len() != self.inputs.len() {
            return Err(EvaluateError::InputCount { expected: self.inputs.len(), found: inputs.len() });
        }
        let shapes: Vec<&[i64]> = inputs.iter().map(|data| data.shape.as_slice()).collect();
        let mut extents = self.symbol_values(&shapes)?;
        let mut fixed = self.at(&extents);
        let mut values = vec![None; self.tensors.len()];
        for ((name, tensor), data) in self.inputs.iter().zip(inputs) {
            let expected = fixed.tensor(*tensor);
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
        let outputs: BTreeSet<TensorId> = self.outputs.iter().map(|(_, tensor)| *tensor).collect();
        // what is counted changes the extents of everything behind it
        let mut counts = BTreeMap::new();
        let mut first = 0;
        for (at, counting) in self.counting_calls() {
            let later = fixed.steps[at + 1..].iter().flat_map(Step::reads);
            let kept = outputs.iter().copied().chain(later).chain(counting.outputs.iter().copied()).collect();
            let mut run = Run { program: &fixed, values };
            run.steps(&fixed.steps[first..=at], &kept)?;
            values = run.values;
            let number = counting.outputs.last().and_then(|tensor| values[tensor.0 as usize].as_ref());
            let number = number.and_then(TensorData::integers).and_then(|found| found.first().copied());
            counts.extend(counting.count.zip(number));
            extents =
                self.symbols.recounted(&extents, &counts).ok_or_else(|| EvaluateError::Count(counting.node.clone()))?;
            fixed = self.at(&extents);
            for output in &counting.outputs {
                let shape = fixed.tensor(*output).shape.clone();
                values[output.0 as usize] = values[output.0 as usize].take().map(|data| data.leading(shape));
            }
            first = at + 1;
        }
        let mut run = Run { program: &fixed, values };
        run.steps(&fixed.steps[first..], &outputs)?;
        self.outputs.iter().map(|(name, tensor)| run.find(*tensor, &format!("output {name}")).cloned()).collect()
    }

    /// The calls that count, with their positions.
    fn counting_calls(&self) -> impl Iterator<Item = (usize, &LibraryCall)> {
        self.steps.iter().enumerate().filter_map(|(at, step)| match step {
            Step::Library(call) if call.count.is_some() => Some((at, call)),
            _ => None,
        })
    }
}

/// A program while it runs.
struct Run<'a> {
    program: &'a Program,
    /// By tensor; constants lie in the program.
    values: Vec<Option<TensorData>>,
}

impl Run<'_> {
    fn find(&self, tensor: TensorId, node: &str) -> Result<&TensorData, EvaluateError> {
        let index = tensor.0 as usize;
        let computed = self.values.get(index).and_then(Option::as_ref);
        computed
            .or(self.program.data.get(index).and_then(Option::as_ref))
            .ok_or_else(|| EvaluateError::NotWritten { node: node.to_string(), tensor })
    }

    fn hand_on(&mut self, from: TensorId, to: TensorId, node: &str) -> Result<(), EvaluateError> {
        self.values[to.0 as usize] = Some(self.find(from, node)?.clone());
        Ok(())
    }

    /// Runs steps, and drops what they write after its last use, unless it is `kept`.
    fn steps(&mut self, steps: &[Step], kept: &BTreeSet<TensorId>) -> Result<(), EvaluateError> {
        let reads: Vec<BTreeSet<TensorId>> = steps.iter().map(Step::reads).collect();
        let own: BTreeSet<TensorId> = steps.iter().flat_map(Step::outputs).collect();
        let mut last_use: HashMap<TensorId, usize> = HashMap::new();
        for (position, read) in reads.iter().enumerate() {
            last_use.extend(read.iter().map(|tensor| (*tensor, position)));
        }
        for (position, step) in steps.iter().enumerate() {
            self.step(step)?;
            for tensor in &reads[position] {
                if last_use.get(tensor) == Some(&position) && own.contains(tensor) && !kept.contains(tensor) {
                    self.values[tensor.0 as usize] = None;
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), EvaluateError> {
        match step {
            Step::Stage(ProgramStage { stage, node }) => {
                let dtype = self.program.tensor(stage.output).dtype;
                let find = |tensor: TensorId| self.find(tensor, node).ok();
                let result = evaluate_stage(&find, stage, dtype, node)?;
                self.values[stage.output.0 as usize] = Some(result);
            }
            Step::Library(LibraryCall { routine, inputs, outputs, node, .. }) => {
                let given = inputs.iter().map(|tensor| self.find(*tensor, node)).collect::<Result<Vec<_>, _>>()?;
                let shapes: Vec<Vec<i64>> =
                    outputs.iter().map(|tensor| self.program.tensor(*tensor).shape.clone()).collect();
                let results = routine.evaluate(&given, &shapes);
                for (output, result) in outputs.iter().zip(results) {
                    self.values[output.0 as usize] = Some(result);
                }
            }
            Step::If(Conditional { condition, branches, outputs, node }) => {
                let is_true = self.find(*condition, node)?.bytes.first().is_some_and(|byte| *byte != 0);
                let branch = &branches[usize::from(!is_true)];
                self.steps(&branch.steps, &branch.results.iter().copied().collect())?;
                for (result, output) in branch.results.iter().zip(outputs) {
                    self.hand_on(*result, *output, node)?;
                }
            }
            Step::Repeat(repeat) => self.repeat(repeat)?,
        }
        Ok(())
    }

    fn repeat(&mut self, repeat: &Repeat) -> Result<(), EvaluateError> {
        let Repeat { count, going, states, scanned, collected, body, node, .. } = repeat;
        let mut kept: BTreeSet<TensorId> = states.iter().map(|state| state.next).collect();
        kept.extend(collected.iter().map(|collected| collected.part));
        let mut wholes: Vec<Vec<Bytes>> = vec![Vec::new(); collected.len()];
        for state in states {
            self.hand_on(state.initial, state.current, node)?;
        }
        for iteration in 0..*count {
            if let Some(state) = going
                && self.find(states[*state].current, node)?.bytes.first() == Some(&0)
            {
                break;
            }
            for Scanned { whole, part, reversed } in scanned {
                let place = if *reversed { count - 1 - iteration } else { iteration };
                let shape = self.program.tensor(*part).shape.clone();
                let whole = self.find(*whole, node)?;
                let size = self.program.tensor(*part).bytes();
                let bytes = whole.bytes.slice(place as usize * size..(place as usize + 1) * size);
                self.values[part.0 as usize] = Some(TensorData { shape, dtype: whole.dtype, bytes });
            }
            self.steps(body, &kept)?;
            for (collected, parts) in collected.iter().zip(&mut wholes) {
                parts.push(self.find(collected.part, node)?.bytes.clone());
            }
            for state in states {
                self.hand_on(state.next, state.current, node)?;
            }
        }
        for state in states {
            self.hand_on(state.current, state.last, node)?;
        }
        for (Collected { whole, reversed, .. }, mut parts) in collected.iter().zip(wholes) {
            if *reversed {
                parts.reverse();
            }
            let about = self.program.tensor(*whole);
            let bytes = parts.concat().into();
            self.values[whole.0 as usize] = Some(TensorData { shape: about.shape.clone(), dtype: about.dtype, bytes });
        }
        Ok(())
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
        Some(Tensor::new(data.shape.clone(), data.dtype, Role::Input))
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
    describe: &dyn Fn(TensorId) -> Option<Tensor>,
) -> Result<(Workload, Vec<TensorId>), TensorId> {
    let mut read: Vec<TensorId> = Vec::new();
    stage.value.for_each_load(&mut |tensor, _| {
        if !read.contains(&tensor) {
            read.push(tensor);
        }
    });
    let mut workload = Workload::default();
    for tensor in &read {
        let described = describe(*tensor).ok_or(*tensor)?;
        workload.tensors.push(Tensor { role: Role::Input, ..described });
    }
    let output = workload.add_tensor(stage.spatial.clone(), dtype, Role::Output);
    let value = stage.value.map_loads(&mut |tensor, indices| {
        let argument = read.iter().position(|other| *other == tensor)?;
        Some(Expr::load(TensorId(argument as u32), indices.to_vec()))
    });
    workload.stages.push(Stage { output, value, ..stage.clone() });
    Ok((workload, read))
}
