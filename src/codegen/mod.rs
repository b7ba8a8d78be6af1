//! Nest to machine code: LLVM IR by our rules, a short pass pipeline, an object, and its code in this
//! process.
//!
//! What is measured is what is deployed: [`Kernel::load`] and [`object()`] write the same object; the former
//! places it into executable memory of this process, the latter hands it out. LLVM may abort on a bug of ours
//! or of its own: callers that compile untested nests do it in child processes.
//!
//! Only this module knows LLVM.

mod abi;
mod emit;
mod error;
mod gpu;
mod layout;
mod legalize;
mod loader;
mod machine;
mod names;
mod pool;
mod ptx;
mod registers;
mod timings;

use std::ops::Range;
use std::time::Instant;

use inkwell::context::Context;
use inkwell::module::Module;

pub use abi::{DEVICE_ALIGNMENT, MAXIMAL_STRIDE, WORKSPACE_ALIGNMENT};
pub use emit::Launch;
pub use error::CodegenError;
pub use layout::Scratch;
pub use machine::{check_runs_here, host};
pub use pool::{MAXIMAL_THREADS, RUNTIME_OBJECT, parallel_for, set_threads, shutdown_threads, side_by_side, threads};
pub use ptx::{Ptx, ptx, ptx_of};
pub use timings::Timings;

pub(crate) use abi::SYMBOL;

use crate::codegen::layout::Layout;
use crate::codegen::loader::Image;
use crate::codegen::machine::LlvmMachine;
use crate::codegen::timings::elapsed_us;
use crate::nest::Nest;
use crate::target::{Cpu, TargetError};

/// A nest's machine code, in this process.
pub struct Kernel {
    image: Image,
    run: Entry,
    setup: Entry,
    workspace_bytes: usize,
    timings: Timings,
}

/// `void kernel(void *const *arguments, void *workspace)`
type Entry = unsafe extern "C" fn(*const *mut u8, *mut u8);

impl Kernel {
    /// Compiles a nest and places its code into this process.
    ///
    /// # Errors
    /// [`CodegenError`]; in particular [`CodegenError::Environment`] for a target of another architecture
    /// than this process'.
    pub fn load(nest: &Nest, target: &Cpu) -> Result<Kernel, CodegenError> {
        let mut timings = Timings::default();
        let object = compile(&[(SYMBOL, nest)], target, &mut timings)?;
        let clock = Instant::now();
        if target.features.iter().any(|feature| feature.starts_with("+amx-")) && !pool::use_tiles() {
            return Err(CodegenError::Environment("the system keeps tile registers from this process".into()));
        }
        let image = Image::load(&object, target)?;
        let entry = |symbol: &str| {
            let address = image.address(symbol).ok_or_else(|| CodegenError::Internal(format!("no symbol {symbol}")))?;
            // SAFETY: the emitter gives these symbols this signature, and the image keeps its code mapped as
            // long as the kernel lives
            Ok::<Entry, CodegenError>(unsafe { std::mem::transmute::<*const u8, Entry>(address) })
        };
        let (run, setup) = (entry(SYMBOL)?, entry(&abi::setup_symbol(SYMBOL))?);
        timings.load_us = elapsed_us(clock);
        let workspace_bytes = Layout::new(nest)?.workspace_bytes(target.cores.max(1))?;
        Ok(Kernel { image, run, setup, workspace_bytes, timings })
    }

    /// Bytes that [`Kernel::setup`] and [`Kernel::run`] need as workspace, aligned to
    /// [`WORKSPACE_ALIGNMENT`].
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// The parts of the workspace that a run of `nest`, which the kernel was made of, can reach with these
    /// values of its parameters, on a machine of so many cores: bytes from its start.
    ///
    /// # Errors
    /// As [`Kernel::load`].
    pub fn reached(nest: &Nest, values: &[i64], cores: u32) -> Result<Vec<Range<usize>>, CodegenError> {
        Ok(Layout::new(nest)?.reached(nest, values, cores.max(1) as usize))
    }

    /// Fills the packed arguments from the constant ones. A nest's parameters do not matter to it.
    ///
    /// # Safety
    /// `arguments` point to the buffers that [`Nest::arguments`] lists, each as large as its shape says and
    /// aligned to its elements, none overlapping another that is written; `workspace` to
    /// [`Kernel::workspace_bytes`], aligned. No other run uses the same workspace, packed buffers or outputs
    /// meanwhile.
    pub unsafe fn setup(&self, arguments: &[*mut u8], workspace: *mut u8) {
        // SAFETY: the caller's
        unsafe { (self.setup)(arguments.as_ptr(), workspace) }
    }

    /// Runs the kernel once, with the process' threads. Where the nest has parameters, one more argument
    /// stands behind the others: the address of their values, i64 each, which are in their ranges.
    ///
    /// # Safety
    /// As for [`Kernel::setup`], which has filled the packed arguments.
    pub unsafe fn run(&self, arguments: &[*mut u8], workspace: *mut u8) {
        // SAFETY: the caller's
        unsafe { (self.run)(arguments.as_ptr(), workspace) }
    }

    pub fn timings(&self) -> Timings {
        self.timings
    }

    /// Bytes of code and constants.
    pub fn code_bytes(&self) -> usize {
        self.image.bytes()
    }
}

/// Relocatable machine code.
pub struct Object {
    /// An ELF object: position independent, without writable data. Its only undefined symbol, if any, is the
    /// runtime's `tilescribe_parallel_for` (in [`RUNTIME_OBJECT`]). Kernels are `NAME` and `NAME_setup`, of
    /// external linkage.
    pub bytes: Vec<u8>,
    /// Of each kernel, in the order in which they were given.
    pub workspace_bytes: Vec<usize>,
    /// The same for any number of threads up to the cores of the target.
    pub scratch: Vec<Scratch>,
    pub timings: Timings,
}

/// Compiles kernels into one object.
///
/// # Errors
/// [`CodegenError`]; [`CodegenError::Malformed`] where a symbol is not a C identifier or given twice.
pub fn object(kernels: &[(&str, &Nest)], target: &Cpu) -> Result<Object, CodegenError> {
    let mut timings = Timings::default();
    let bytes = compile(kernels, target, &mut timings)?;
    let layouts = kernels.iter().map(|(_, nest)| Layout::new(nest)).collect::<Result<Vec<_>, _>>()?;
    let sizes = layouts.iter().map(|layout| layout.workspace_bytes(target.cores.max(1)));
    let scratch = |layout: &Layout| Scratch { shared_bytes: layout.shared_bytes, thread_bytes: layout.private_bytes };
    let (workspace_bytes, scratch) = (sizes.collect::<Result<_, _>>()?, layouts.iter().map(scratch).collect());
    Ok(Object { bytes, workspace_bytes, scratch, timings })
}

/// Whether code can be generated for a target. It need not be this machine's.
///
/// # Errors
/// [`TargetError::Unknown`] for a processor or a feature that LLVM does not know.
pub fn check(target: &Cpu) -> Result<(), TargetError> {
    names::check(target)
}

/// LLVM IR of a nest, after our passes.
///
/// # Errors
/// [`CodegenError`], as for [`Kernel::load`].
pub fn ir(nest: &Nest, target: &Cpu) -> Result<String, CodegenError> {
    let machine = LlvmMachine::of(target)?;
    let context = Context::create();
    let module = cpu_module(&machine, &context, &[(SYMBOL, nest)], target, &mut Timings::default())?;
    Ok(module.print_to_string().to_string())
}

/// Assembly of a nest, with LLVM's comments: which loop a block belongs to, and what is spilled and reloaded.
/// The functions of [`Nest::body`] begin with `kernel`, those of [`Nest::setup`] with `kernel_setup`.
///
/// # Errors
/// [`CodegenError`], as for [`Kernel::load`].
pub fn assembly(nest: &Nest, target: &Cpu) -> Result<String, CodegenError> {
    let machine = LlvmMachine::of(target)?;
    let context = Context::create();
    let module = cpu_module(&machine, &context, &[(SYMBOL, nest)], target, &mut Timings::default())?;
    let text = machine.write(&module, machine::Output::Assembly)?;
    // LLVM's buffers end with a zero byte
    Ok(String::from_utf8_lossy(text.as_slice()).trim_end_matches('\0').to_string())
}

fn compile(kernels: &[(&str, &Nest)], target: &Cpu, timings: &mut Timings) -> Result<Vec<u8>, CodegenError> {
    let machine = LlvmMachine::of(target)?;
    let context = Context::create();
    let module = cpu_module(&machine, &context, kernels, target, timings)?;
    let clock = Instant::now();
    let object = machine.write(&module, machine::Output::Object)?;
    timings.machine_code_us = elapsed_us(clock);
    Ok(object.as_slice().to_vec())
}

fn cpu_module<'c>(
    machine: &LlvmMachine,
    context: &'c Context,
    kernels: &[(&str, &Nest)],
    target: &Cpu,
    timings: &mut Timings,
) -> Result<Module<'c>, CodegenError> {
    machine.optimized_module(context, timings, &mut |module| {
        kernels.iter().try_for_each(|(symbol, nest)| {
            machine::check_symbol(module, symbol)?;
            emit::kernel(context, module, symbol, nest, target).map_err(|error| error.of_kernel(symbol))
        })
    })
}
