//! What can go wrong, and whose fault it is.

use thiserror::Error;

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
