//! Where the time of compiling goes.

use std::time::Instant;

/// How long the stages took, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timings {
    /// Nest to LLVM IR.
    pub emit_us: u64,
    /// LLVM's verifier, and our pass pipeline.
    pub passes_us: u64,
    /// IR to an object: instruction selection, register allocation, encoding.
    pub machine_code_us: u64,
    /// Placing the object into memory.
    pub load_us: u64,
}

impl Timings {
    pub fn total_us(&self) -> u64 {
        self.emit_us + self.passes_us + self.machine_code_us + self.load_us
    }
}

pub(super) fn elapsed_us(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}
