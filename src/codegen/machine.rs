//! LLVM's side: initialisation, target machines, the pass pipeline.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Once;
use std::time::Instant;

use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::llvm_sys::support::LLVMParseCommandLineOptions;
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::module::Module;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{
    CodeModel, FileType, InitializationConfig, RelocMode, Target as LlvmTarget, TargetMachine, TargetTriple,
};

use crate::codegen::abi::setup_symbol;
use crate::codegen::error::CodegenError;
use crate::codegen::timings::{Timings, elapsed_us};
use crate::codegen::{emit, names, pool};
use crate::target::gpu::Gpu;
use crate::target::{Architecture, Cpu};

/// The nest has decided vectors, unrolling and the order of loops already; what is left is to turn slots into
/// values, to share equal addresses and loads, and to clean up. `sroa` comes first: without the stores to
/// slots, equal loads are next to each other.
const PASSES: &str = "function(sroa,early-cse,instcombine<no-verify-fixpoint>,early-cse)";

static INITIALIZE: Once = Once::new();

/// Loop strength reduction is ours: `emit::hoist` steps pointers already.
fn initialize() {
    INITIALIZE.call_once(|| {
        LlvmTarget::initialize_x86(&InitializationConfig::default());
        LlvmTarget::initialize_aarch64(&InitializationConfig::default());
        LlvmTarget::initialize_nvptx(&InitializationConfig::default());
        let options = [c"tilescribe".as_ptr(), c"-disable-lsr".as_ptr()];
        // SAFETY: two strings that live for ever, before any code is generated. The option is one of the LLVM
        // that we are built with.
        unsafe { LLVMParseCommandLineOptions(options.len() as i32, options.as_ptr(), std::ptr::null()) };
    });
}

/// This machine, as LLVM and the operating system describe it.
///
/// # Errors
/// [`CodegenError::Target`] where the processor is of an architecture that we do not generate code for.
pub fn host() -> Result<Cpu, CodegenError> {
    let features = host_features();
    let cpu = TargetMachine::get_host_cpu_name().to_string();
    Ok(Cpu::host(&cpu, &features)?)
}

/// What this machine has and the system lets this process use, separated by commas.
fn host_features() -> String {
    initialize();
    let features = TargetMachine::get_host_cpu_features().to_string();
    let of_tiles = |feature: &&str| feature.starts_with("+amx-");
    if features.split(',').any(|feature| of_tiles(&feature)) && !pool::use_tiles() {
        return features.split(',').filter(|feature| !of_tiles(feature)).collect::<Vec<_>>().join(",");
    }
    features
}

/// Whether this process can run kernels for a target, as measuring does: those of its own architecture whose
/// features this machine has. What LLVM takes from the processor's name alone is not looked at.
///
/// # Errors
/// [`CodegenError::Target`] as for [`super::check`], [`CodegenError::Environment`] with what is missing.
pub fn check_runs_here(target: &Cpu) -> Result<(), CodegenError> {
    names::check(target)?;
    let lacks =
        |what: String| Err(CodegenError::Environment(format!("kernels for {} cannot run here: {what}", target.cpu)));
    if target.architecture != Architecture::X86_64 || std::env::consts::ARCH != target.architecture.name() {
        let (wanted, here) = (target.architecture.name(), std::env::consts::ARCH);
        return lacks(format!("they are {wanted} code, this is {here}, and kernels are measured on x86_64 only"));
    }
    let features = host_features();
    let has: HashSet<&str> = features.split(',').collect();
    let missing: Vec<&str> = target.features.iter().map(String::as_str).filter(|f| !has.contains(f)).collect();
    if missing.is_empty() { Ok(()) } else { lacks(format!("this processor lacks {}", missing.join(", "))) }
}

pub enum Output {
    Object,
    Assembly,
}

/// An LLVM target machine for a [`Cpu`].
pub struct LlvmMachine {
    machine: TargetMachine,
    triple: TargetTriple,
}

thread_local! {
    /// The one that this thread used last: making one takes LLVM a millisecond, about a tenth of what a small
    /// kernel takes.
    static LAST: RefCell<Option<(Cpu, Rc<LlvmMachine>)>> = const { RefCell::new(None) };
}

impl LlvmMachine {
    /// # Errors
    /// [`CodegenError::Target`] where LLVM does not know the processor or a feature,
    /// [`CodegenError::Environment`] where it was built without the architecture.
    pub fn of(target: &Cpu) -> Result<Rc<LlvmMachine>, CodegenError> {
        LAST.with_borrow_mut(|last| match last {
            Some((known, machine)) if known == target => Ok(machine.clone()),
            _ => {
                let machine = Rc::new(LlvmMachine::new(target)?);
                *last = Some((target.clone(), machine.clone()));
                Ok(machine)
            }
        })
    }

    fn new(target: &Cpu) -> Result<LlvmMachine, CodegenError> {
        names::check(target)?;
        LlvmMachine::create(target.architecture.triple(), emit::Processor::Cpu(target))
    }

    /// The one that writes PTX for a GPU.
    ///
    /// # Errors
    /// [`CodegenError::Environment`] where LLVM was built without NVPTX.
    pub fn of_gpu(gpu: &Gpu) -> Result<LlvmMachine, CodegenError> {
        LlvmMachine::create("nvptx64-nvidia-cuda", emit::Processor::Gpu(gpu))
    }

    fn create(triple: &str, processor: emit::Processor<'_>) -> Result<LlvmMachine, CodegenError> {
        initialize();
        let triple = TargetTriple::create(triple);
        let (cpu, features) = processor.llvm_names();
        let unknown =
            |reason: String| CodegenError::Environment(format!("LLVM cannot compile for this target: {reason}"));
        let llvm = LlvmTarget::from_triple(&triple).map_err(|e| unknown(e.to_string()))?;
        let machine = llvm
            .create_target_machine(
                &triple,
                &cpu,
                &features,
                OptimizationLevel::Default,
                RelocMode::PIC,
                CodeModel::Small,
            )
            .ok_or_else(|| unknown(format!("processor {cpu}")))?;
        // only a comment tells a spill from other uses of the stack
        machine.set_asm_verbosity(true);
        Ok(LlvmMachine { machine, triple })
    }

    /// Emits into a module, verifies it, and runs our passes.
    pub fn optimized_module<'c>(
        &self,
        context: &'c Context,
        timings: &mut Timings,
        emit: &mut dyn FnMut(&Module<'c>) -> Result<(), CodegenError>,
    ) -> Result<Module<'c>, CodegenError> {
        let clock = Instant::now();
        let module = context.create_module("tilescribe");
        module.set_triple(&self.triple);
        module.set_data_layout(&self.machine.get_target_data().get_data_layout());
        emit(&module)?;
        timings.emit_us = elapsed_us(clock);
        let clock = Instant::now();
        module.verify().map_err(|e| CodegenError::Internal(format!("LLVM's verifier: {e}")))?;
        module
            .run_passes(PASSES, &self.machine, PassBuilderOptions::create())
            .map_err(|e| CodegenError::Internal(format!("LLVM's passes: {e}")))?;
        timings.passes_us = elapsed_us(clock);
        Ok(module)
    }

    pub fn write(&self, module: &Module<'_>, output: Output) -> Result<MemoryBuffer<'static>, CodegenError> {
        let file_type = match output {
            Output::Object => FileType::Object,
            Output::Assembly => FileType::Assembly,
        };
        self.machine
            .write_to_memory_buffer(module, file_type)
            .map_err(|e| CodegenError::Internal(format!("LLVM's code generation: {e}")))
    }
}

pub fn check_symbol(module: &Module<'_>, symbol: &str) -> Result<(), CodegenError> {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    let identifier = symbol.starts_with(letter) && symbol.chars().all(|c| letter(c) || c.is_ascii_digit());
    if !identifier {
        return Err(CodegenError::Malformed(format!("`{symbol}` is no name for a kernel")));
    }
    if module.get_function(symbol).is_some() || module.get_function(&setup_symbol(symbol)).is_some() {
        return Err(CodegenError::Malformed(format!("two kernels want the name `{symbol}`")));
    }
    Ok(())
}
