//! A machine as plain data, and a [`Task`]: what to compute, and where.
//!
//! A target is detected from the host or read from a TOML file; nothing else in Tilescribe asks the host what it can do.

use serde::{Deserialize, Serialize};

use crate::workload::Workload;

/// The instruction set that kernels are written for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    X86_64,
    Aarch64,
}

/// A CPU.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    pub architecture: Architecture,
    /// LLVM's name of the processor.
    pub cpu: String,
    /// LLVM's names of the features that kernels may use, each with `+`, sorted.
    pub features: Vec<String>,
    /// Width of a vector register in bits.
    pub vector_bits: u32,
    /// Number of vector registers.
    pub vector_registers: u32,
    /// Cores that a kernel may use.
    pub cores: u32,
    /// Data cache of one core, level 1, in bytes.
    pub l1_bytes: u64,
    /// Cache of one core, level 2, in bytes.
    pub l2_bytes: u64,
    /// Cache of all cores, level 3, in bytes; 0 where there is none.
    pub l3_bytes: u64,
}

impl Target {
    /// How many f32 fit into a vector register.
    pub fn lanes(&self) -> i64 {
        i64::from(self.vector_bits / 32)
    }
}

/// What to compute, and where.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Task {
    pub workload: Workload,
    pub target: Target,
}
