//! What can go wrong, and whose fault it is.

use thiserror::Error;

use super::abi::SYMBOL;
use crate::target::TargetError;

/// Why no machine code came out.
#[derive(Debug, Error)]
pub enum CodegenError {
    /// The nest breaks one of its invariants: whoever built it is wrong.
    #[error("malformed nest: {0}")]
    Malformed(String),
    /// Legal, but this back end has no rule for it.
    #[error("not supported by this back end: {0}")]
    Unsupported(String),
    /// Too large to compile.
    #[error("limit exceeded: {0}")]
    Limit(String),
    /// This build of LLVM, this operating system or this machine lacks something.
    #[error("{0}")]
    Environment(String),
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A bug of this back end.
    #[error("internal error of code generation: {0}")]
    Internal(String),
}

impl CodegenError {
    /// Says which kernel a fault is in, where several are compiled at once.
    pub(super) fn of_kernel(self, symbol: &str) -> CodegenError {
        let named = |text: String| if symbol == SYMBOL { text } else { format!("{text} ({symbol})") };
        match self {
            CodegenError::Malformed(text) => CodegenError::Malformed(named(text)),
            CodegenError::Unsupported(text) => CodegenError::Unsupported(named(text)),
            CodegenError::Limit(text) => CodegenError::Limit(named(text)),
            CodegenError::Internal(text) => CodegenError::Internal(named(text)),
            other => other,
        }
    }
}
