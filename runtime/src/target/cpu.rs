//! A CPU as plain data.

use serde::{Deserialize, Serialize};

use crate::dtype::DType;

use super::{Architecture, TargetError, detect, fingerprint, shortened, syntax};

/// Where data comes from, nearest to the processor first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    L1,
    L2,
    L3,
    Memory,
}

impl Level {
    /// As it is spelled in tables.
    pub fn name(self) -> &'static str {
        match self {
            Level::L1 => "L1",
            Level::L2 => "L2",
            Level::L3 => "L3",
            Level::Memory => "memory",
        }
    }

    /// Whether every core has one of its own.
    pub fn is_private(self) -> bool {
        matches!(self, Level::L1 | Level::L2)
    }
}

/// A CPU.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    pub architecture: Architecture,
    /// LLVM's name of the processor.
    pub cpu: String,
    /// LLVM's names of the features that kernels may use, each with `+`, sorted.
    pub features: Vec<String>,
    /// Width of a vector register in bits. With SVE it is exactly the vector length that the machine is set
    /// to: code for another one is wrong.
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

impl Cpu {
    /// This machine, with the names of the processor and of its features (separated by commas) as LLVM gives
    /// them; Tilescribe's code generator asks for both. Caches and cores come from the operating system; what
    /// it does not tell is taken from a typical machine (32 KiB, 1 MiB, no third level).
    ///
    /// # Errors
    /// [`TargetError::Architecture`] where we generate no code for this processor.
    pub fn host(cpu: &str, features: &str) -> Result<Cpu, TargetError> {
        detect::host(cpu, features)
    }

    /// Reads a description in TOML: the fields of [`Cpu`].
    ///
    /// # Errors
    /// [`TargetError::Syntax`] for unknown, missing or mistyped fields, [`TargetError::Range`] for values
    /// that no machine has.
    pub fn from_toml(text: &str) -> Result<Cpu, TargetError> {
        let cpu: Cpu = toml::from_str(text).map_err(|e| syntax(&e))?;
        cpu.validated()
    }

    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    /// A hash of all fields, in hexadecimal: equal for equal machines, a key for records.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.to_toml())
    }

    /// Checks everything that later stages rely on, and sorts the features.
    pub(super) fn validated(mut self) -> Result<Cpu, TargetError> {
        let name = |text: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !text.is_empty() && text.len() <= 64 && text.chars().all(allowed)
        };
        let outside =
            |field, value: String, allowed| Err(TargetError::Range { field, value: shortened(&value), allowed });
        if !name(&self.cpu) {
            return outside("cpu", self.cpu, "names of letters, digits, `-`, `_` and `.`");
        }
        if self.features.len() > 512 {
            return outside("features", self.features.len().to_string(), "at most 512 names");
        }
        if let Some(bad) = self.features.iter().find(|f| !f.strip_prefix('+').is_some_and(name)) {
            return outside("features", bad.clone(), "`+` and a name");
        }
        if !matches!(self.vector_bits, 128 | 256 | 512) {
            return outside("vector_bits", self.vector_bits.to_string(), "128, 256 and 512");
        }
        if let Some((feature, allowed)) = self.architecture.longer_vectors()
            && self.vector_bits > 128
            && !self.has_feature(feature)
        {
            return outside("vector_bits", self.vector_bits.to_string(), allowed);
        }
        if !(8..=64).contains(&self.vector_registers) {
            return outside("vector_registers", self.vector_registers.to_string(), "8 to 64");
        }
        if !(1..=256).contains(&self.cores) {
            return outside("cores", self.cores.to_string(), "1 to 256");
        }
        let caches =
            [("l1_bytes", self.l1_bytes, 1024), ("l2_bytes", self.l2_bytes, 1024), ("l3_bytes", self.l3_bytes, 0)];
        for (field, value, least) in caches {
            if value < least || value > 1 << 40 {
                return outside(field, value.to_string(), "1024 (l3_bytes: 0) to 2^40");
            }
        }
        self.features.sort();
        self.features.dedup();
        Ok(self)
    }

    /// Bits of its longest vector registers, if the features tell.
    pub fn register_bits(&self) -> Option<u32> {
        self.architecture.vectors(&|name| self.has_feature(name))?.bits
    }

    /// Whether kernels may use a feature, by its name without `+`.
    pub fn has_feature(&self, name: &str) -> bool {
        self.features.iter().any(|feature| feature.strip_prefix('+') == Some(name))
    }

    /// Whether it has an instruction that adds up products of such numbers in whole vectors.
    pub fn has_dot(&self, operands: [DType; 2]) -> bool {
        let lanes = u32::try_from(self.lanes()).unwrap_or(0);
        self.architecture.dot(operands, lanes, &|feature| self.has_feature(feature)).is_some()
    }

    /// Whether it has an instruction that adds up products of tiles of such numbers.
    pub fn has_tiles(&self, operands: [DType; 2]) -> bool {
        self.architecture.tile_product(operands, &|feature| self.has_feature(feature)).is_some()
    }

    /// The levels that this machine has, each with its bytes (of one core's where it is private, none for
    /// memory), nearest first.
    pub fn levels(&self) -> Vec<(Level, Option<u64>)> {
        let mut levels = vec![(Level::L1, Some(self.l1_bytes)), (Level::L2, Some(self.l2_bytes))];
        levels.extend((self.l3_bytes > 0).then_some((Level::L3, Some(self.l3_bytes))));
        levels.push((Level::Memory, None));
        levels
    }

    /// How many f32 fit into a vector register.
    pub fn lanes(&self) -> i64 {
        i64::from(self.vector_bits / 32)
    }
}
