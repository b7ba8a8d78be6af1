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

use super::inputs::{GENERATOR, InputsError, generate_inputs};
use super::memory::readable;
use super::options::Limits;
use super::roundings::check_sums;
use crate::files::{self, DraftFile};
use crate::workload::{Array, DType, EvaluateError, Role, Tensor, TensorId, Workload, evaluate};

/// Results that take less time to compute are not kept.
const WORTH_KEEPING: Duration = Duration::from_millis(20);

/// Maximum size of all files together, in bytes; the oldest go first.
const FOLDER_BYTES: u64 = 2 << 30;

/// Size of a SHA-256 in bytes.
const CHECKSUM_BYTES: usize = 32;

/// Why there are no expected outputs.
#[derive(Debug, Error)]
pub enum OracleError {
    #[error("no inputs for this workload: {0}")]
    Inputs(#[from] InputsError),
    #[error("the reference result cannot be computed: {0}")]
    Evaluate(#[from] EvaluateError),
    #[error("it needs {} of memory for its tensors; {} are allowed: --measuring-memory raises that", readable(*.needed), readable(*.allowed))]
    TooLarge { needed: u64, allowed: u64 },
    #[error(
        "t{} accumulates {steps} values in {}, and rounds at each step, by more than a wrong result may differ; \
         accumulate in f32 and convert the result", tensor.0, dtype.name()
    )]
    Rounded { tensor: TensorId, dtype: DType, steps: u64 },
}

/// Expected outputs on disk, or nothing.
#[derive(Clone, Debug)]
pub struct OracleCache {
    folder: Option<PathBuf>,
    /// Maximum size of what a task is checked with.
    memory_bytes: u64,
}

impl Default for OracleCache {
    /// Keeps nothing, within the memory that a worker has by default.
    fn default() -> OracleCache {
        OracleCache::new(None)
    }
}

/// Inputs and constants, and the outputs that they lead to, each in the order of the workload's tensors.
pub struct Expected {
    pub inputs: Vec<(TensorId, Array)>,
    pub outputs: Vec<(TensorId, Array)>,
}

/// What a task is checked and timed with: one choice of its parameters.
pub struct Example {
    /// One for each parameter.
    pub values: Vec<i64>,
    /// How often it runs in what is timed as one; 0 if it is only checked.
    pub times: u32,
    pub expected: Expected,
}

/// Of a workload without parameters.
impl From<Expected> for Vec<Example> {
    fn from(expected: Expected) -> Vec<Example> {
        vec![Example { values: Vec::new(), times: 1, expected }]
    }
}

impl OracleCache {
    /// Keeps files in a folder, which is made when it is needed; `None` keeps nothing.
    pub fn new(folder: Option<PathBuf>) -> OracleCache {
        OracleCache { folder, memory_bytes: Limits::default().memory_bytes }
    }

    /// Refuses workloads whose check takes more memory.
    #[must_use]
    pub fn within(self, memory_bytes: u64) -> OracleCache {
        OracleCache { memory_bytes, ..self }
    }

    /// Inputs from a seed, and the outputs for them, for the points that a workload is timed at and for the
    /// least that its parameters can be.
    ///
    /// # Errors
    /// As for [`OracleCache::expected`].
    pub fn examples(&self, workload: &Workload, seed: u64) -> Result<Vec<Example>, OracleError> {
        let mut points = workload.examples();
        let least: Vec<i64> = workload.parameters.iter().map(|parameter| parameter.low).collect();
        if points.iter().all(|(values, _)| *values != least) {
            points.push((least, 0));
        }
        let example = |(values, times): (Vec<i64>, u32)| {
            let expected = self.expected_at(workload, &values, seed)?;
            Ok(Example { values, times, expected })
        };
        points.into_iter().map(example).collect()
    }

    /// Inputs from a seed, and the outputs for them, of a workload of fixed extents.
    ///
    /// # Errors
    /// [`OracleError`] for workloads that cannot be evaluated, or not in this memory, and for those that no
    /// check can judge.
    pub fn expected(&self, workload: &Workload, seed: u64) -> Result<Expected, OracleError> {
        self.expected_at(workload, &[], seed)
    }

    /// The same where parameters have these values.
    fn expected_at(&self, whole: &Workload, values: &[i64], seed: u64) -> Result<Expected, OracleError> {
        whole.validate().map_err(EvaluateError::from)?;
        let workload = &whole.at(values);
        check_sums(workload).map_err(|(tensor, dtype, steps)| OracleError::Rounded { tensor, dtype, steps })?;
        let (needed, allowed) = (bytes_to_check(workload), self.memory_bytes);
        if needed > allowed {
            return Err(OracleError::TooLarge { needed, allowed });
        }
        let inputs = generate_inputs(whole, values, seed)?;
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

/// Memory that a task is checked with: all tensors for the evaluator, and arguments once more for kernels.
fn bytes_to_check(workload: &Workload) -> u64 {
    let bytes = |tensor: &Tensor| match tensor.role {
        Role::Intermediate => tensor.bytes() as u64,
        Role::Input | Role::Constant | Role::Output => 2 * tensor.bytes() as u64,
    };
    workload.tensors.iter().map(bytes).sum()
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

/// The outputs that a file holds; `None` where it is missing, damaged, or of other outputs.
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
    let mut take = |(id, tensor): (TensorId, &Tensor)| {
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
