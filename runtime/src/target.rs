//! A machine as plain data.
//!
//! A target is detected from the host or read from a TOML file; nothing else in Tilescribe asks the host what
//! it can do.

mod architecture;
pub mod cpu;
mod detect;
pub mod gpu;

pub use architecture::{Architecture, Dot, TILE_LANES, TILE_REGISTERS, TILE_ROWS, TileProduct};
pub use cpu::{Cpu, Level};
pub use gpu::Gpu;

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// Why a description of a machine cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TargetError {
    #[error("not a target description: {0}")]
    Syntax(String),
    #[error("target: {field} = {value} is outside of {allowed}")]
    Range { field: &'static str, value: String, allowed: &'static str },
    #[error("no code is generated for processors of the architecture {0}")]
    Architecture(String),
    #[error("LLVM knows no {what} `{name}` of {architecture}")]
    Unknown { what: &'static str, name: String, architecture: &'static str },
    #[error("the target is {found}, and this works for {wanted} only")]
    Kind { found: String, wanted: &'static str },
}

/// A machine.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Target {
    Cpu(Cpu),
    Gpu(Gpu),
}

/// The kinds of machines: a search space, a store's records and a model belong to one of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    Cpu,
    Gpu,
}

impl Target {
    /// Reads a description in TOML: the fields of [`Cpu`] or of [`Gpu`], which alone has a `capability`.
    ///
    /// # Errors
    /// [`TargetError::Syntax`] for unknown, missing or mistyped fields, [`TargetError::Range`] for values
    /// that no machine has.
    pub fn from_toml(text: &str) -> Result<Target, TargetError> {
        let table: toml::Table = toml::from_str(text).map_err(|e| syntax(&e))?;
        match table.contains_key("capability") {
            true => Gpu::from_toml(text).map(Target::Gpu),
            false => Cpu::from_toml(text).map(Target::Cpu),
        }
    }

    pub fn to_toml(&self) -> String {
        match self {
            Target::Cpu(cpu) => cpu.to_toml(),
            Target::Gpu(gpu) => gpu.to_toml(),
        }
    }

    /// A hash of all fields, in hexadecimal: equal for equal machines, a key for records.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.to_toml())
    }

    pub fn kind(&self) -> Kind {
        match self {
            Target::Cpu(_) => Kind::Cpu,
            Target::Gpu(_) => Kind::Gpu,
        }
    }

    /// How many f32 one operation of a processor takes: those of a vector register, or one for each thread of
    /// a warp.
    pub fn lanes(&self) -> i64 {
        match self {
            Target::Cpu(cpu) => cpu.lanes(),
            Target::Gpu(_) => gpu::WARP,
        }
    }

    /// How many processors work side by side: cores that a kernel may use, or multiprocessors.
    pub fn processors(&self) -> u32 {
        match self {
            Target::Cpu(cpu) => cpu.cores,
            Target::Gpu(gpu) => gpu.multiprocessors,
        }
    }

    /// The levels of memory that this machine has, each with its bytes (of one processor's where it is
    /// private, none for memory), nearest first.
    pub fn levels(&self) -> Vec<(Level, Option<u64>)> {
        match self {
            Target::Cpu(cpu) => cpu.levels(),
            Target::Gpu(gpu) => {
                let near = u64::from(gpu.shared_bytes_per_multiprocessor);
                vec![(Level::L1, Some(near)), (Level::L3, Some(gpu.l2_bytes)), (Level::Memory, None)]
            }
        }
    }

    /// The CPU that it is.
    ///
    /// # Errors
    /// [`TargetError::Kind`] where it is none.
    pub fn cpu(&self) -> Result<&Cpu, TargetError> {
        match self {
            Target::Cpu(cpu) => Ok(cpu),
            Target::Gpu(_) => Err(TargetError::Kind { found: self.to_string(), wanted: "CPUs" }),
        }
    }

    /// The GPU that it is.
    ///
    /// # Errors
    /// [`TargetError::Kind`] where it is none.
    pub fn gpu(&self) -> Result<&Gpu, TargetError> {
        match self {
            Target::Gpu(gpu) => Ok(gpu),
            Target::Cpu(_) => Err(TargetError::Kind { found: self.to_string(), wanted: "GPUs" }),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Cpu(cpu) => write!(f, "the CPU {}", cpu.cpu),
            Target::Gpu(gpu) => write!(f, "a GPU of compute capability {}", String::from(gpu.capability)),
        }
    }
}

impl From<Cpu> for Target {
    fn from(cpu: Cpu) -> Target {
        Target::Cpu(cpu)
    }
}

impl From<Gpu> for Target {
    fn from(gpu: Gpu) -> Target {
        Target::Gpu(gpu)
    }
}

fn syntax(error: &toml::de::Error) -> TargetError {
    TargetError::Syntax(error.to_string().trim_end().to_string())
}

fn fingerprint(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}
