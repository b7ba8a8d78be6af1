//! The invariants of a [`Program`], checked.

use std::collections::BTreeSet;

use thiserror::Error;

use super::evaluate::stage_workload;
use super::symbol;
use super::{Branch, Conditional, LibraryCall, Origin, Program, Repeat, Step, TensorData};
use crate::workload::{DType, Index, Role, TensorId, WorkloadError};

/// What is wrong with a program: the fault of whoever built it.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum ProgramError {
    #[error("there are {tensors} tensors, but a list of {data} for their data")]
    DataCount { tensors: usize, data: usize },
    #[error("t{} does not exist", .0.0)]
    UnknownTensor(TensorId),
    #[error("t{} has the role {role:?}, but data: {has_data}, or other data than its shape says", tensor.0)]
    Data { tensor: TensorId, role: Role, has_data: bool },
    #[error("{name} is t{}, whose role is {role:?}", tensor.0)]
    Role { name: String, tensor: TensorId, role: Role },
    #[error("{node} reads t{} before it is written", tensor.0)]
    ReadTooEarly { node: String, tensor: TensorId },
    #[error("{node} writes t{} for the second time, or over an argument", tensor.0)]
    WrittenTwice { node: String, tensor: TensorId },
    #[error("t{} is written by no stage", .0.0)]
    NotWritten(TensorId),
    #[error("{node}: the tensors of an operation do not fit one another")]
    Operation { node: String },
    #[error("{node}: {source}")]
    Stage { node: String, source: WorkloadError },
}

/// By tensor: whether it was written, and whether what comes next sees it.
struct Written {
    visible: Vec<bool>,
    ever: Vec<bool>,
}

impl Written {
    /// What a block writes is not seen outside of it.
    fn hide(&mut self, tensors: impl Iterator<Item = TensorId>) {
        tensors.for_each(|tensor| self.visible[tensor.0 as usize] = false);
    }
}

impl Program {
    /// Checks that constants and nothing else have data, that each other tensor is an input or written once
    /// and before it is read, that inputs and outputs are what they say, and each stage as a workload of its
    /// own.
    ///
    /// # Errors
    /// The first violation found.
    pub fn validate(&self) -> Result<(), ProgramError> {
        if self.tensors.len() != self.data.len() {
            return Err(ProgramError::DataCount { tensors: self.tensors.len(), data: self.data.len() });
        }
        for (tensor, (described, data)) in self.tensors.iter().zip(&self.data).enumerate() {
            let fits = |data: &TensorData| {
                data.shape == described.shape && data.dtype == described.dtype && data.bytes.len() == described.bytes()
            };
            if (described.role == Role::Constant) != data.is_some() || !data.as_ref().is_none_or(fits) {
                let (tensor, role) = (TensorId(tensor as u32), described.role);
                return Err(ProgramError::Data { tensor, role, has_data: data.is_some() });
            }
        }
        let named = self.inputs.iter().map(|n| (n, Role::Input)).chain(self.outputs.iter().map(|n| (n, Role::Output)));
        for ((name, tensor), expected) in named {
            let role = self.tensors.get(tensor.0 as usize).ok_or(ProgramError::UnknownTensor(*tensor))?.role;
            if role != expected {
                return Err(ProgramError::Role { name: name.clone(), tensor: *tensor, role });
            }
        }
        let is_argument = |role: Role| matches!(role, Role::Input | Role::Constant);
        let given: Vec<bool> = self.tensors.iter().map(|tensor| is_argument(tensor.role)).collect();
        let mut written = Written { visible: given.clone(), ever: given };
        self.validate_steps(&self.steps, &mut written, false)?;
        match written.ever.iter().position(|written| !written) {
            Some(tensor) => Err(ProgramError::NotWritten(TensorId(tensor as u32))),
            None => Ok(()),
        }
    }

    fn validate_steps(&self, steps: &[Step], written: &mut Written, is_repeated: bool) -> Result<(), ProgramError> {
        for step in steps {
            match step {
                Step::Stage(stage) => self.validate_stage(stage, written)?,
                Step::Library(call) => self.validate_call(call, written)?,
                Step::If(conditional) => {
                    let Conditional { condition, branches, outputs, node } = conditional;
                    self.validate_read(*condition, written, node)?;
                    let condition = self.tensor(*condition);
                    let fits = condition.dtype == DType::Bool && condition.elements() == 1;
                    let same = |branch: &Branch| self.are_alike(&branch.results, outputs);
                    if !fits || !branches.iter().all(same) {
                        return Err(ProgramError::Operation { node: node.clone() });
                    }
                    for branch in branches {
                        self.validate_steps(&branch.steps, written, is_repeated)?;
                        self.validate_results(branch.results.iter().copied(), &branch.steps, node)?;
                        written.hide(branch.steps.iter().flat_map(Step::outputs));
                    }
                    outputs.iter().try_for_each(|output| self.validate_write(*output, written, node))?;
                }
                Step::Repeat(repeat) if !is_repeated => self.validate_repeat(repeat, written)?,
                Step::Repeat(repeat) => return Err(ProgramError::Operation { node: repeat.node.clone() }),
            }
        }
        Ok(())
    }

    fn validate_repeat(&self, repeat: &Repeat, written: &mut Written) -> Result<(), ProgramError> {
        let Repeat { count, formula, going, states, scanned, collected, body, node } = repeat;
        let is_element = |part: TensorId, whole: TensorId| {
            let (Some(part), Some(whole)) = (self.tensors.get(part.0 as usize), self.tensors.get(whole.0 as usize))
            else {
                return false;
            };
            let inner = || whole.extents.moved(|axis| axis.checked_sub(1));
            let same_extents = || whole.extents.get(0) == formula.as_ref() && inner() == part.extents;
            whole.dtype == part.dtype
                && whole.shape.split_first() == Some((count, part.shape.as_slice()))
                && same_extents()
        };
        let symbols = self.symbols.ranges();
        let runs = |formula: &Index| {
            symbol::range(formula, &symbols).is_some_and(|range| range.low >= 1 && range.high <= *count)
        };
        // what is collected would lack elements where iterations are left out
        let is_condition = |state: &usize| {
            let current = states.get(*state).and_then(|state| self.tensors.get(state.current.0 as usize));
            current.is_some_and(|held| held.dtype == DType::Bool && held.elements() == 1) && collected.is_empty()
        };
        let fits = *count >= 1
            && formula.as_ref().is_none_or(runs)
            && going.as_ref().is_none_or(is_condition)
            && states.iter().all(|s| self.are_alike(&[s.initial, s.current, s.next], &[s.last, s.last, s.last]))
            && scanned.iter().all(|s| is_element(s.part, s.whole))
            && collected.iter().all(|c| is_element(c.part, c.whole));
        if !fits {
            return Err(ProgramError::Operation { node: node.clone() });
        }
        for read in states.iter().map(|s| s.initial).chain(scanned.iter().map(|s| s.whole)) {
            self.validate_read(read, written, node)?;
        }
        for given in states.iter().map(|s| s.current).chain(scanned.iter().map(|s| s.part)) {
            self.validate_write(given, written, node)?;
        }
        self.validate_steps(body, written, true)?;
        let results = states.iter().map(|s| s.next).chain(collected.iter().map(|c| c.part));
        self.validate_results(results, body, node)?;
        written.hide(body.iter().flat_map(Step::outputs));
        written.hide(states.iter().map(|s| s.current).chain(scanned.iter().map(|s| s.part)));
        let outputs = states.iter().map(|s| s.last).chain(collected.iter().map(|c| c.whole));
        outputs.into_iter().try_for_each(|output| self.validate_write(output, written, node))
    }

    /// Each is written by a stage of the block, once, and no step of the block reads it.
    fn validate_results(
        &self,
        results: impl Iterator<Item = TensorId>,
        block: &[Step],
        node: &str,
    ) -> Result<(), ProgramError> {
        let written: BTreeSet<TensorId> =
            block.iter().filter_map(Step::stage).map(|stage| stage.stage.output).collect();
        let read: BTreeSet<TensorId> = block.iter().flat_map(Step::reads).collect();
        let mut seen = BTreeSet::new();
        for result in results {
            if !written.contains(&result) || read.contains(&result) || !seen.insert(result) {
                return Err(ProgramError::Operation { node: node.to_string() });
            }
        }
        Ok(())
    }

    fn validate_call(&self, call: &LibraryCall, written: &mut Written) -> Result<(), ProgramError> {
        let LibraryCall { routine, sizes, inputs, outputs, count, node } = call;
        inputs.iter().try_for_each(|input| self.validate_read(*input, written, node))?;
        outputs.iter().try_for_each(|output| self.validate_write(*output, written, node))?;
        let described = |tensors: &[TensorId]| -> Vec<(i64, DType)> {
            tensors.iter().map(|t| (self.tensor(*t).elements(), self.tensor(*t).dtype)).collect()
        };
        let symbols = self.symbols.ranges();
        let is_less = |(size, most): (&Index, &i64)| {
            symbol::range(size, &symbols).is_some_and(|range| 0 <= range.low && range.high <= *most)
        };
        let sizes_fit = || match sizes.is_empty() {
            true => inputs.iter().chain(outputs).all(|tensor| self.tensor(*tensor).extents.is_fixed()),
            false => sizes.len() == routine.sizes().len() && sizes.iter().zip(&routine.sizes()).all(is_less),
        };
        let is_counted = |number: usize| {
            let symbol = self.symbols.list.get(number);
            symbol.is_some_and(|symbol| matches!(symbol.origin, Origin::Count { .. }))
        };
        // where all values are given, results are as many as there may be
        let counts_fit = count.is_none_or(|symbol| routine.counts() && is_counted(symbol));
        let tensors_fit = described(inputs) == routine.inputs() && described(outputs) == routine.outputs();
        match tensors_fit && sizes_fit() && counts_fit {
            true => Ok(()),
            false => Err(ProgramError::Operation { node: node.clone() }),
        }
    }

    fn are_alike(&self, some: &[TensorId], others: &[TensorId]) -> bool {
        let about = |tensor: &TensorId| self.tensors.get(tensor.0 as usize).map(|t| (&t.shape, &t.extents, t.dtype));
        some.len() == others.len() && some.iter().zip(others).all(|(a, b)| about(a).is_some() && about(a) == about(b))
    }

    fn validate_read(&self, tensor: TensorId, written: &Written, node: &str) -> Result<(), ProgramError> {
        match written.visible.get(tensor.0 as usize) {
            Some(true) => Ok(()),
            _ => Err(ProgramError::ReadTooEarly { node: node.to_string(), tensor }),
        }
    }

    fn validate_write(&self, tensor: TensorId, written: &mut Written, node: &str) -> Result<(), ProgramError> {
        let index = tensor.0 as usize;
        let ever = written.ever.get_mut(index).ok_or(ProgramError::UnknownTensor(tensor))?;
        written.visible[index] = true;
        match std::mem::replace(ever, true) {
            true => Err(ProgramError::WrittenTwice { node: node.to_string(), tensor }),
            false => Ok(()),
        }
    }

    fn validate_stage(&self, stage: &super::ProgramStage, written: &mut Written) -> Result<(), ProgramError> {
        let node = || stage.node.clone();
        let output = stage.stage.output;
        let described = self.tensors.get(output.0 as usize).ok_or(ProgramError::UnknownTensor(output))?;
        let describe = |tensor: TensorId| {
            let known = written.visible.get(tensor.0 as usize).copied().unwrap_or(false);
            known.then(|| self.tensor(tensor).clone())
        };
        let (mut workload, _) = stage_workload(&stage.stage, described.dtype, &describe)
            .map_err(|tensor| ProgramError::ReadTooEarly { node: node(), tensor })?;
        if let Some(last) = workload.tensors.last_mut() {
            last.shape.clone_from(&described.shape);
            last.extents.clone_from(&described.extents);
        }
        self.symbols.become_parameters(&mut workload);
        workload.validate().map_err(|source| ProgramError::Stage { node: node(), source })?;
        self.validate_write(output, written, &stage.node)
    }
}
