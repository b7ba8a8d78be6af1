//! What became of a candidate: plain data, kept for every one, failures too.

use serde::{Deserialize, Serialize};

/// Why a candidate has no time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// The space found no program behind these decisions.
    DeadEnd,
    /// The verifier refused the nest, or code generation failed: our bug.
    Compile,
    /// Compiling or running took longer than its limit.
    Timeout,
    /// The child process died.
    Crash,
    /// More memory than allowed.
    Memory,
    /// The output differs from the oracle's, or bytes outside of it were written.
    WrongResult,
}

/// What became of a candidate.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// Compiled, correct, and timed.
    Timed {
        /// Nanoseconds of single runs, in the order in which they were measured.
        times_ns: Vec<u64>,
        /// Microseconds from the nest to loaded machine code.
        compile_us: u64,
    },
    Failed {
        cause: Failure,
        detail: String,
    },
}

impl Outcome {
    /// The fastest run in nanoseconds, which is what candidates are compared by.
    pub fn best_ns(&self) -> Option<u64> {
        match self {
            Outcome::Timed { times_ns, .. } => times_ns.iter().copied().min(),
            Outcome::Failed { .. } => None,
        }
    }

    pub fn median_ns(&self) -> Option<u64> {
        match self {
            Outcome::Timed { times_ns, .. } if !times_ns.is_empty() => {
                let mut sorted = times_ns.clone();
                sorted.sort_unstable();
                Some(sorted[sorted.len() / 2])
            }
            _ => None,
        }
    }
}
