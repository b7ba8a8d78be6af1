//! The operations of a machine that the worker uses: compile a nest of a task, give it buffers, check it,
//! time it.

use std::fmt;

use super::memory::Region;
use super::timing::Timing;
use crate::nest::Nest;
use crate::outcome::{Failure, Outcome};

/// Why a nest is not timed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub cause: Failure,
    pub detail: String,
}

impl Refusal {
    pub(super) fn new(cause: Failure, detail: impl fmt::Display) -> Refusal {
        Refusal { cause, detail: detail.to_string() }
    }

    pub(super) fn memory(bytes: usize, error: &std::io::Error) -> Refusal {
        Refusal::new(Failure::Memory, format!("{bytes} bytes: {error}"))
    }
}

impl From<Refusal> for Outcome {
    fn from(refusal: Refusal) -> Outcome {
        Outcome::failed(refusal.cause, refusal.detail)
    }
}

/// The buffers of a task on one machine, filled, with what must come out of them.
pub trait Bench {
    /// Description of the machine for the compiler; several threads compile at once.
    type Machine: Sync;
    /// A nest and its machine code, without buffers.
    type Compiled: Send + Sync;
    /// A kernel with everything it needs.
    type Loaded;

    fn machine(&self) -> &Self::Machine;

    /// How many nests may be compiled at once.
    fn compilers(&self) -> usize;

    /// Verifies and compiles a nest.
    ///
    /// # Errors
    /// [`Failure::Compile`] where the verifier or code generation refuses it.
    fn compile(machine: &Self::Machine, nest: Nest) -> Result<Self::Compiled, Refusal>;

    /// Gives a compiled nest of this task its buffers and packs its constants.
    ///
    /// # Errors
    /// [`Failure::Compile`] where the nest is not of this task,
    /// [`Failure::Memory`] where its buffers do not fit.
    fn place(&mut self, compiled: &Self::Compiled) -> Result<Self::Loaded, Refusal>;

    /// Runs a kernel once and compares its outputs.
    ///
    /// # Errors
    /// [`Failure::WrongResult`] for an output that differs, and for guard bytes that
    /// were written.
    fn check(&mut self, loaded: &mut Self::Loaded) -> Result<(), Refusal>;

    /// Times a kernel that was checked, in turn with a reference that was checked, too, where there is one
    /// with its known nanoseconds. Checks the outputs once more afterwards: a race may spoil any run.
    ///
    /// # Errors
    /// As for [`Bench::check`].
    fn time(
        &mut self,
        loaded: &mut Self::Loaded,
        timing: &Timing,
        incumbent_ns: Option<u64>,
        reference: Option<(&mut Self::Loaded, u64)>,
    ) -> Result<Outcome, Refusal>;

    /// Times kernels that were checked in turn. They share inputs and outputs.
    fn time_in_turn(&mut self, kernels: &mut [Self::Loaded], timing: &Timing) -> Vec<Outcome>;

    /// Takes a kernel's memory for those to come.
    fn unload(&mut self, loaded: Self::Loaded);

    /// Memory that the next task may have.
    fn into_spare(self) -> Vec<Region>
    where
        Self: Sized,
    {
        Vec::new()
    }

    /// Why nothing can be measured any more in this process, if so.
    fn is_broken(&self) -> Option<&str> {
        None
    }
}
