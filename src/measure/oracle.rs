//! What a task's outputs should be: computed once by the naive evaluator, and kept on disk.
//!
//! A large convolution takes the evaluator seconds, so what took long is kept under the workload's hash, and
//! the next process finds it. A file that is damaged in whatever way is computed anew; none is ever believed
//! without its checksum.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use sha2::{Digest, Sha256};
use thiserror::Error;

use super::inputs::{GENERATOR, generate_inputs};
use crate::files::{self, DraftFile};
use crate::workload::{Array, EvaluateError, Role, TensorId, Workload, evaluate};

/// What is faster to compute is not kept.
const WORTH_KEEPING: Duration = Duration::from_millis(20);

/// The oldest files go when all together are larger, in bytes.
const FOLDER_BYTES: u64 = 2 << 30;

/// Bytes of a SHA-256.
const CHECKSUM_BYTES: usize = 32;

/// Why there are no expected outputs.
#[derive(Debug, Error)]
pub enum OracleError {
    #[error("no inputs for this workload: {0}")]
    Inputs(#[from] crate::workload::ArrayError),
    #[error("the reference result cannot be computed: {0}")]
    Evaluate(#[from] EvaluateError),
}

/// Expected outputs on disk, or nothing.
#[derive(Clone, Default, Debug)]
pub struct OracleCache {
    folder: Option<PathBuf>,
}

/// Inputs and constants, and the outputs that they lead to, each in the order of the workload's tensors.
pub struct Expected {
    pub inputs: Vec<(TensorId, Array)>,
    pub outputs: Vec<(TensorId, Array)>,
}

impl OracleCache {
    /// Keeps files in a folder, which is made when it is needed; `None` keeps nothing.
    pub fn new(folder: Option<PathBuf>) -> OracleCache {
        OracleCache { folder }
    }

    /// Inputs from a seed, and the outputs for them.
    ///
    /// # Errors
    /// [`OracleError`] for workloads that cannot be evaluated, or not in this memory.
    pub fn expected(&self, workload: &Workload, seed: u64) -> Result<Expected, OracleError> {
        let inputs = generate_inputs(workload, seed)?;
        let file = self.folder.as_ref().map(|folder| folder.join(file_name(workload, seed, &inputs)));
        if let Some(outputs) = file.as_deref().and_then(|file| read(file, workload)) {
            return Ok(Expected { inputs, outputs });
        }
        let start = Instant::now();
        let arguments: Vec<(TensorId, &Array)> = inputs.iter().map(|(id, array)| (*id, array)).collect();
        let outputs = evaluate(workload, &arguments)?;
        if let (Some(file), true) = (file, start.elapsed() >= WORTH_KEEPING)
            && let Err(e) = write(&file, &outputs)
        {
            // only costs time: the next process computes it again
            tracing::warn!("{}: {e}", file.display());
        }
        Ok(Expected { inputs, outputs })
    }
}

/// Names everything that the outputs depend on: workloads of one hash may list their tensors in different
/// orders, and then get different inputs from the same seed.
fn file_name(workload: &Workload, seed: u64, inputs: &[(TensorId, Array)]) -> String {
    let mut digest = Sha256::new();
    digest.update(workload.to_string());
    for (_, array) in inputs {
        digest.update(array.to_bytes());
    }
    let digest: String = digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{seed:x}-{GENERATOR}-{digest}", workload.hash())
}

/// `None` unless the file holds exactly these outputs, unharmed.
fn read(file: &Path, workload: &Workload) -> Option<Vec<(TensorId, Array)>> {
    let outputs = || workload.ids().filter(|(_, tensor)| tensor.role == Role::Output);
    let total: usize = outputs().map(|(_, tensor)| tensor.bytes()).sum();
    if std::fs::metadata(file).ok()?.len() != (total + CHECKSUM_BYTES) as u64 {
        return None;
    }
    let bytes = files::read(file, (total + CHECKSUM_BYTES) as u64).ok()?;
    let (data, checksum) = bytes.split_at_checked(total)?;
    if Sha256::digest(data).as_slice() != checksum {
        return None;
    }
    let mut at = 0;
    let mut take = |(id, tensor): (TensorId, &crate::workload::Tensor)| {
        let part = data.get(at..at + tensor.bytes())?;
        at += tensor.bytes();
        Some((id, Array::from_bytes(tensor.shape.clone(), tensor.dtype, part).ok()?))
    };
    outputs().map(&mut take).collect()
}

fn write(file: &Path, outputs: &[(TensorId, Array)]) -> std::io::Result<()> {
    let Some(folder) = file.parent() else { return Ok(()) };
    std::fs::create_dir_all(folder)?;
    // complete or not there: others may read at any moment
    let mut draft = DraftFile::create_in(folder)?;
    let mut checksum = Sha256::new();
    for (_, array) in outputs {
        let bytes = array.to_bytes();
        checksum.update(&bytes);
        draft.write_all(&bytes)?;
    }
    draft.write_all(&checksum.finalize())?;
    draft.replace(file)?;
    make_room(folder)
}

/// Removes the oldest files until the rest is small enough.
fn make_room(folder: &Path) -> std::io::Result<()> {
    let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_file() {
            files.push((metadata.modified()?, metadata.len(), entry.path()));
        }
    }
    files.sort();
    let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, path) in files {
        if total <= FOLDER_BYTES {
            break;
        }
        // another process may have been faster
        let _ = std::fs::remove_file(path);
        total -= bytes;
    }
    Ok(())
}
