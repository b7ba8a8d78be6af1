//! Nest to PTX: the program of a GPU, for its driver to assemble.

use inkwell::context::Context;

use super::abi::{DEVICE_ALIGNMENT, MAX_VECTOR_LANES, SYMBOL};
use super::emit::{Launch, launches};
use super::error::CodegenError;
use super::layout::Layout;
use super::machine::{LlvmMachine, Output};
use super::timings::{Timings, elapsed_us};
use crate::nest::{Nest, verify};
use crate::target::gpu::Gpu;

/// A nest for a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ptx {
    pub text: String,
    /// To start one after the other. Each takes the addresses of [`Nest::arguments`], and of the workspace.
    pub launches: Vec<Launch>,
    /// Of the workspace, in the device's memory.
    pub workspace_bytes: usize,
    pub timings: Timings,
}

/// Compiles the body of a nest, for arguments that start at multiples of [`DEVICE_ALIGNMENT`].
///
/// LLVM ends the process on constructs that a GPU lacks: callers that compile untested nests do it in child
/// processes.
///
/// # Errors
/// [`CodegenError`].
pub fn ptx(nest: &Nest, gpu: &Gpu) -> Result<Ptx, CodegenError> {
    ptx_of(SYMBOL, nest, gpu, DEVICE_ALIGNMENT)
}

/// As [`ptx`], for arguments that start at multiples of so many bytes only. What is to be started is called
/// `symbol`, and a number.
///
/// # Errors
/// As [`ptx`].
pub fn ptx_of(symbol: &str, nest: &Nest, gpu: &Gpu, argument_alignment: u64) -> Result<Ptx, CodegenError> {
    // what the emitter takes for granted of blocks, threads and registers
    verify(nest, MAX_VECTOR_LANES).map_err(|error| CodegenError::Malformed(error.to_string()))?;
    let mut timings = Timings::default();
    let machine = LlvmMachine::of_gpu(gpu)?;
    let context = Context::create();
    let mut started = Vec::new();
    let module = machine.optimized_module(&context, &mut timings, &mut |module| {
        started = launches(&context, module, symbol, nest, gpu, argument_alignment)?;
        Ok(())
    })?;
    let clock = std::time::Instant::now();
    let text = machine.write(&module, Output::Assembly)?;
    timings.machine_code_us = elapsed_us(clock);
    let text = String::from_utf8_lossy(text.as_slice()).trim_end_matches('\0').to_string();
    let workspace_bytes = Layout::new(nest)?.shared_bytes;
    Ok(Ptx { text, launches: started, workspace_bytes, timings })
}
