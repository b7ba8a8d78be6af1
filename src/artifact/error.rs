//! What can go wrong with an artifact, and whose fault it is.

use std::path::{Path, PathBuf};

use thiserror::Error;
use tilescribe_runtime::RuntimeError;

use crate::codegen::CodegenError;

/// What can go wrong when an artifact is written; what can when one is loaded says [`RuntimeError`].
#[derive(Debug, Error)]
pub enum ArtifactError {
    /// By whoever watched the progress; nothing was written.
    #[error("interrupted: no artifact was written")]
    Interrupted,
    /// The user's: a name that cannot be a C identifier.
    #[error("`{0}` cannot name an artifact: a letter, then at most 63 letters, digits or `_`")]
    Name(String),
    /// The user's: something that is no artifact stands where one should be written.
    #[error("{} exists and is not an artifact of Tilescribe: choose another folder, or remove it", .0.display())]
    Occupied(PathBuf),
    /// The user's: artifacts are linked on the architecture that they run on.
    #[error("the target is {target} and this machine is {host}: compile on a machine of the target's architecture")]
    OtherArchitecture { target: String, host: String },
    /// The user's: machines that no single artifact is for.
    #[error("an artifact is for one CPU, or for GPUs of different generations")]
    Versions,
    /// The user's: a network that only CPUs run.
    #[error("the network needs {0}, which artifacts for NVIDIA GPUs do not have: compile it for a CPU")]
    OnGpu(String),
    /// The environment's: no linker.
    #[error(
        "cannot link the shared object: {0}\nTilescribe needs a C compiler driver: install gcc (Debian: apt-get install gcc libc6-dev), or zig (pip install ziglang)"
    )]
    Linker(String),
    /// The environment's: disk full, no permission, ...
    #[error("cannot write {path}: {source}", path = path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("cannot read {path}: {source}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The environment's: no memory.
    #[error("out of memory: {0}")]
    Memory(std::io::Error),
    /// See its variants.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// See its variants.
    #[error(transparent)]
    Codegen(#[from] CodegenError),
    /// Ours: schedules that do not fit the network.
    #[error("internal error: {0}")]
    Internal(String),
}

impl ArtifactError {
    pub(super) fn write(path: &Path, source: std::io::Error) -> ArtifactError {
        ArtifactError::Write { path: path.to_path_buf(), source }
    }

    pub(super) fn read(path: &Path, source: std::io::Error) -> ArtifactError {
        ArtifactError::Read { path: path.to_path_buf(), source }
    }
}
