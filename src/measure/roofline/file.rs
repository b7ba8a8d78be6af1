//! The file that keeps a machine's figures. What is in it is not trusted: it is of limited size, and every
//! number is checked.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::{Bandwidth, Rate, Roofline, key};
use crate::codegen::CodegenError;
use crate::files::{self, DraftFile};
use crate::target::{Cpu, Level};

/// The version of [`Roofline`] in files.
pub const FORMAT: u32 = 1;
/// No file of ours is larger.
pub const MAX_FILE_BYTES: u64 = 16 << 10;
/// No machine does more, in GFLOP/s or GB/s.
const LARGEST_RATE: f64 = 1e9;

/// Why there are no figures.
#[derive(Debug, Error)]
pub enum RooflineError {
    /// The environment's fault.
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    /// Whoever wrote the file is to blame.
    #[error("{path} holds no figures of this machine: {reason}")]
    Damaged { path: PathBuf, reason: String },
    #[error("{bytes} bytes of memory: {source}")]
    Memory { bytes: usize, source: std::io::Error },
    #[error(transparent)]
    Codegen(#[from] CodegenError),
}

/// Where the figures of a target are kept in a folder.
pub fn path(folder: &Path, target: &Cpu) -> PathBuf {
    folder.join(format!("roofline-{}.json", key(target)))
}

/// Reads what [`save`] wrote for this machine, with any number of cores; `None` where nothing was.
///
/// # Errors
/// [`RooflineError::Io`], or [`RooflineError::Damaged`] where the file is not what we write.
pub fn load(folder: &Path, target: &Cpu) -> Result<Option<Roofline>, RooflineError> {
    let path = path(folder, target);
    let failed = |source| RooflineError::Io { path: path.clone(), source };
    let file = match files::open(&path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), std::io::ErrorKind::InvalidInput | std::io::ErrorKind::IsADirectory) => {
            return Err(RooflineError::Damaged { path: path.clone(), reason: error.to_string() });
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    parse(&bytes, target).map(Some).map_err(|reason| RooflineError::Damaged { path: path.clone(), reason })
}

/// Keeps figures in a folder, in place of older ones; makes the folder where it is missing.
///
/// # Errors
/// [`RooflineError::Io`].
pub fn save(folder: &Path, target: &Cpu, roofline: &Roofline) -> Result<(), RooflineError> {
    let path = path(folder, target);
    let write = || {
        std::fs::create_dir_all(folder)?;
        let mut draft = DraftFile::create_in(folder)?;
        serde_json::to_writer_pretty(&mut draft, roofline)?;
        draft.write_all(b"\n")?;
        draft.replace(&path)
    };
    write().map_err(|source| RooflineError::Io { path: path.clone(), source })
}

fn parse(bytes: &[u8], target: &Cpu) -> Result<Roofline, String> {
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("more than {MAX_FILE_BYTES} bytes"));
    }
    let roofline: Roofline = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if roofline.format != FORMAT {
        return Err(format!("format {}, not {FORMAT}", roofline.format));
    }
    if roofline.machine != key(target) {
        return Err("it is of another machine".into());
    }
    if !(1..=256).contains(&roofline.cores) {
        return Err(format!("{} cores", roofline.cores));
    }
    let found: Vec<Level> = roofline.bandwidths.iter().map(|bandwidth| bandwidth.level).collect();
    let expected: Vec<Level> = target.levels().into_iter().map(|(level, _)| level).collect();
    if found != expected {
        return Err(format!("bandwidths of {found:?}, not of {expected:?}"));
    }
    let rates = roofline.bandwidths.iter().map(|Bandwidth { gb_per_s, .. }| *gb_per_s);
    let short = roofline.short_peaks.iter().map(|peak| peak.gflops);
    for Rate { one_core, all_cores } in rates.chain(short).chain([roofline.peak_gflops]) {
        for rate in [one_core, all_cores] {
            if !(rate > 0.0 && rate <= LARGEST_RATE) {
                return Err(format!("{rate} is no rate of a machine"));
            }
        }
    }
    Ok(roofline)
}
