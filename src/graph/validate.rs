//! The invariants of a [`Program`], checked.

use thiserror::Error;

use super::evaluate::stage_workload;
use super::{Program, TensorData};
use crate::workload::{Role, TensorId, WorkloadError};

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
    #[error("{node}: {source}")]
    Stage { node: String, source: WorkloadError },
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
        let mut written: Vec<bool> = self.tensors.iter().map(|tensor| is_argument(tensor.role)).collect();
        for stage in &self.stages {
            self.validate_stage(stage, &mut written)?;
        }
        match written.iter().position(|written| !written) {
            Some(tensor) => Err(ProgramError::NotWritten(TensorId(tensor as u32))),
            None => Ok(()),
        }
    }

    fn validate_stage(&self, stage: &super::ProgramStage, written: &mut [bool]) -> Result<(), ProgramError> {
        let node = || stage.node.clone();
        let output = stage.stage.output;
        let described = self.tensors.get(output.0 as usize).ok_or(ProgramError::UnknownTensor(output))?;
        let describe = |tensor: TensorId| {
            let known = written.get(tensor.0 as usize).copied().unwrap_or(false);
            known.then(|| (self.tensor(tensor).shape.clone(), self.tensor(tensor).dtype))
        };
        let (mut workload, _) = stage_workload(&stage.stage, described.dtype, &describe)
            .map_err(|tensor| ProgramError::ReadTooEarly { node: node(), tensor })?;
        if let Some(last) = workload.tensors.last_mut() {
            last.shape.clone_from(&described.shape);
        }
        workload.validate().map_err(|source| ProgramError::Stage { node: node(), source })?;
        match std::mem::replace(&mut written[output.0 as usize], true) {
            true => Err(ProgramError::WrittenTwice { node: node(), tensor: output }),
            false => Ok(()),
        }
    }
}
