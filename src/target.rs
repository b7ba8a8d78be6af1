//! A [`Task`]: what to compute, and where. Machines as plain data are those of
//! [`tilescribe_runtime::target`], since an artifact says which it was compiled for.

pub use tilescribe_runtime::target::{
    Architecture, Cpu, Dot, Gpu, Kind, Level, TILE_LANES, TILE_REGISTERS, TILE_ROWS, Target, TargetError, TileProduct,
    cpu, gpu,
};

use crate::workload::Workload;

/// What to compute, and where.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Task {
    pub workload: Workload,
    pub target: Target,
}

/// The same for one kind of machine.
#[derive(Clone, Copy, Debug)]
pub struct TaskOn<'a, M> {
    pub workload: &'a Workload,
    pub machine: &'a M,
}

/// A machine that tests plan for: two cores with AVX-512.
#[cfg(test)]
pub(crate) fn avx512() -> Target {
    Target::Cpu(Cpu {
        architecture: Architecture::X86_64,
        cpu: "cascadelake".into(),
        features: vec!["+avx512f".into()],
        vector_bits: 512,
        vector_registers: 32,
        cores: 2,
        l1_bytes: 32 << 10,
        l2_bytes: 1 << 20,
        l3_bytes: 32 << 20,
    })
}
