//! What the emitter asks of the processor.

use crate::target::Cpu;
use crate::target::gpu::{Gpu, REGISTERS_PER_THREAD};

/// Whom the code is for.
#[derive(Clone, Copy)]
pub enum Processor<'a> {
    Cpu(&'a Cpu),
    Gpu(&'a Gpu),
}

impl Processor<'_> {
    pub fn vector_registers(self) -> i64 {
        match self {
            Processor::Cpu(target) => i64::from(target.vector_registers),
            Processor::Gpu(_) => i64::from(REGISTERS_PER_THREAD),
        }
    }

    /// f32 of the widest vector that is loaded at once.
    pub fn lanes(self) -> i64 {
        match self {
            Processor::Cpu(target) => target.lanes(),
            Processor::Gpu(_) => 4,
        }
    }

    pub fn has_feature(self, name: &str) -> bool {
        matches!(self, Processor::Cpu(target) if target.has_feature(name))
    }

    /// Whether there are instructions that round to whole numbers.
    pub fn rounds(self) -> bool {
        match self {
            Processor::Cpu(target) => target.architecture.rounds(&|name| target.has_feature(name)),
            Processor::Gpu(_) => true,
        }
    }

    /// Whether there are instructions to and from f16.
    pub fn converts_halves(self) -> bool {
        match self {
            Processor::Cpu(target) => target.architecture.converts_halves(&|name| target.has_feature(name)),
            Processor::Gpu(_) => true,
        }
    }

    /// Whether there are instructions that round f32 to bf16.
    pub fn rounds_to_bf16(self) -> bool {
        match self {
            Processor::Cpu(target) => target.architecture.rounds_to_bf16(&|name| target.has_feature(name)),
            Processor::Gpu(_) => true,
        }
    }

    /// Whether vectors of 512 bits are divided more slowly than an estimate is refined: Intel's processors
    /// take 16 cycles for one division, while others hide it behind what is computed beside (uops.info).
    pub fn divides_slowly(self) -> bool {
        matches!(self, Processor::Cpu(target) if target.has_feature("avx512f") && !target.cpu.starts_with("znver"))
    }

    /// LLVM's name of the processor, and its features, separated by commas.
    pub fn llvm_names(self) -> (String, String) {
        match self {
            Processor::Cpu(target) => (target.cpu.clone(), target.features.join(",")),
            Processor::Gpu(gpu) => {
                let ptx = gpu.capability.ptx().unwrap_or_default();
                (gpu.capability.architecture(), format!("+ptx{ptx}"))
            }
        }
    }
}
