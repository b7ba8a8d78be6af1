//! What can go wrong when an artifact is loaded or run, and whose fault it is.

use std::path::{Path, PathBuf};

use thiserror::Error;

#[derive(Debug, Error)]
pub enum RuntimeError {
    /// The user's: the folder is no artifact, or was damaged or changed.
    #[error("{path}: {reason}", path = path.display())]
    Invalid { path: PathBuf, reason: String },
    /// The user's: inputs that do not fit the network.
    #[error("{0}")]
    Input(String),
    #[error("cannot read {path}: {source}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The environment's: the artifact was compiled for another machine.
    #[error("{0}")]
    Target(String),
    /// The environment's: memory or threads ran out, or a driver failed.
    #[error("{0}")]
    Machine(String),
    /// Ours: the library says what its manifest excludes.
    #[error("internal error: {0}")]
    Internal(String),
}

impl RuntimeError {
    pub(crate) fn read(path: &Path, source: std::io::Error) -> RuntimeError {
        RuntimeError::Read { path: path.to_path_buf(), source }
    }

    pub(crate) fn invalid(path: &Path, reason: impl Into<String>) -> RuntimeError {
        RuntimeError::Invalid { path: path.to_path_buf(), reason: reason.into() }
    }
}
