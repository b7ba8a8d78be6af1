//! How a measurer works.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::timing::Timing;
use crate::space::Space;

/// How a [`Measurer`](super::Measurer) works.
#[derive(Clone, Debug)]
pub struct Options {
    /// The executable that becomes a worker when it is given `arguments`: Tilescribe itself.
    pub worker: PathBuf,
    pub arguments: Vec<OsString>,
    /// Version of the space that the worker must replay traces in.
    pub space: String,
    /// Whether that space leaves out algorithms with larger rounding errors: see [`Space::exact`].
    pub exact: bool,
    /// Folder for the oracle's outputs; `None` computes them anew for each worker.
    pub cache: Option<PathBuf>,
    /// Seed of the inputs that kernels are checked and timed on.
    pub seed: u64,
    pub limits: Limits,
    pub timing: Timing,
    /// Number of the NVIDIA GPU to measure on; `None` where nothing is measured on one.
    pub device: Option<usize>,
    /// Set where nobody waits for a task's reference result any more, which may take minutes.
    pub stop: Option<Arc<AtomicBool>>,
}

/// Maximum time and memory of a worker.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Time to start.
    pub start: Duration,
    /// Time for a task's inputs and the oracle's outputs.
    pub prepare: Duration,
    /// Time for one candidate: compiled, checked and timed.
    pub candidate: Duration,
    /// Private memory of the worker in bytes. Tasks whose tensors take more are refused.
    pub memory_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            start: Duration::from_secs(20),
            prepare: Duration::from_secs(900),
            candidate: Duration::from_secs(10),
            memory_bytes: 16 << 30,
        }
    }
}

impl Options {
    /// Defaults for programs of `space`, with this executable as the worker.
    ///
    /// # Errors
    /// Where the system does not tell which executable this is.
    pub fn for_this_executable(space: &Space) -> io::Result<Options> {
        Ok(Options::new(std::env::current_exe()?, space))
    }

    /// Defaults for programs of `space`, with another executable as the worker. It must have the rules of
    /// `space`: see [`super::worker_main_with`].
    pub fn new(worker: PathBuf, space: &Space) -> Options {
        Options {
            worker,
            arguments: vec!["worker".into()],
            space: space.versions(),
            exact: space.is_exact(),
            cache: crate::folders::cache_folder().map(|folder| folder.join("oracle")),
            seed: 0,
            limits: Limits::default(),
            timing: Timing::default(),
            device: None,
            stop: None,
        }
    }
}
