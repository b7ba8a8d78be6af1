//! What became of a candidate: plain data, kept for every one, failures too.

use std::fmt;

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
    /// The output differs from the oracle's, or guard bytes were written.
    WrongResult,
}

impl Failure {
    /// All causes, in the order in which a candidate meets them.
    pub const ALL: [Failure; 6] =
        [Failure::DeadEnd, Failure::Compile, Failure::Timeout, Failure::Crash, Failure::Memory, Failure::WrongResult];

    /// As it is spelled in texts and files.
    pub fn name(self) -> &'static str {
        match self {
            Failure::DeadEnd => "dead-end",
            Failure::Compile => "compile",
            Failure::Timeout => "timeout",
            Failure::Crash => "crash",
            Failure::Memory => "memory",
            Failure::WrongResult => "wrong-result",
        }
    }

    pub fn from_name(name: &str) -> Option<Failure> {
        Failure::ALL.into_iter().find(|failure| failure.name() == name)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What became of a candidate.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// It is compiled, correct, and timed.
    Timed {
        /// Nanoseconds of single runs, in the order in which they were measured. Where a reference ran in
        /// turn with the program, they are normalized to the machine's speed when the reference was timed.
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
    pub fn failed(cause: Failure, detail: impl Into<String>) -> Outcome {
        Outcome::Failed { cause, detail: detail.into() }
    }

    /// Why there is no time; `None` where there is one.
    pub fn failure(&self) -> Option<Failure> {
        match self {
            Outcome::Timed { .. } => None,
            Outcome::Failed { cause, .. } => Some(*cause),
        }
    }

    /// The fastest run in nanoseconds, by which candidates are compared.
    pub fn best_ns(&self) -> Option<u64> {
        match self {
            Outcome::Timed { times_ns, .. } => times_ns.iter().copied().min(),
            Outcome::Failed { .. } => None,
        }
    }

    /// The lower quartile of the runs in nanoseconds: neither lucky nor disturbed. Of programs that ran in
    /// turn often enough, it varies less from one measurement to the next than the fastest run does, or the
    /// median.
    pub fn settled_ns(&self) -> Option<u64> {
        self.settled_ns_of(|_| true)
    }

    /// The same of every other run, from the first or the second on. Where programs are chosen by one half,
    /// the other half is an unbiased estimate of the chosen one's time.
    pub fn settled_ns_of_half(&self, second: bool) -> Option<u64> {
        self.settled_ns_of(|at| (at % 2 == 1) == second)
    }

    fn settled_ns_of(&self, counts: impl Fn(usize) -> bool) -> Option<u64> {
        let Outcome::Timed { times_ns, .. } = self else { return None };
        let mut sorted: Vec<u64> =
            times_ns.iter().enumerate().filter(|(at, _)| counts(*at)).map(|(_, ns)| *ns).collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 4).copied()
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

#[cfg(test)]
mod tests {
    use super::{Failure, Outcome};

    #[test]
    fn a_settled_time_is_neither_lucky_nor_disturbed() {
        let timed = |times_ns: &[u64]| Outcome::Timed { times_ns: times_ns.to_vec(), compile_us: 1 };
        let outcome = timed(&[90, 20, 10, 21, 11, 22, 12, 23]);
        assert_eq!(outcome.settled_ns(), Some(12));
        assert_eq!((outcome.settled_ns_of_half(false), outcome.settled_ns_of_half(true)), (Some(11), Some(21)));
        assert_eq!((timed(&[7]).settled_ns(), timed(&[7]).settled_ns_of_half(true)), (Some(7), None));
        assert_eq!(Outcome::failed(Failure::Timeout, "").settled_ns(), None);
    }

    #[test]
    fn names_are_those_of_json_and_parse_back() {
        for failure in Failure::ALL {
            assert_eq!(serde_json::to_string(&failure).unwrap(), format!("\"{failure}\""));
            assert_eq!(Failure::from_name(failure.name()), Some(failure));
        }
        assert_eq!(Failure::from_name("Crash"), None);
    }
}
