//! Files of workloads: what `tilescribe tasks` prints, to be collected for and reviewed.
//!
//! A file holds workloads in text form with empty lines between them. Lines that start with `#` are comments;
//! in the one before a workload, the second word is its name.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::files;
use crate::workload::Workload;

/// A workload and what people call it.
#[derive(Clone, Debug)]
pub struct NamedWorkload {
    pub name: String,
    pub workload: Workload,
}

/// Why workloads cannot be read.
#[derive(Debug, Error)]
pub enum WorkloadsError {
    /// Environment, or bad input: the path names nothing that can be read.
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    /// Limit.
    #[error("{path} is larger than {MAX_FILE_BYTES} bytes")]
    TooLarge { path: PathBuf },
    /// Bad input.
    #[error("{path}, workload {number} ({name}): {detail}")]
    Workload { path: PathBuf, number: usize, name: String, detail: String },
}

/// The largest file of workloads that is read.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// Reads a file, or all `.txt` files of a folder in the order of their names. Each computation comes once,
/// under its first name.
///
/// # Errors
/// [`WorkloadsError`] for the first that is not right.
pub fn read_workloads(path: &Path) -> Result<Vec<NamedWorkload>, WorkloadsError> {
    let unreadable = |source| WorkloadsError::Read { path: path.to_path_buf(), source };
    let mut files = vec![path.to_path_buf()];
    if path.is_dir() {
        let entries = std::fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>).map_err(unreadable)?;
        files = entries.into_iter().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "txt")).collect();
        files.sort();
    }
    let mut seen = BTreeSet::new();
    let mut workloads = Vec::new();
    for file in files {
        for named in read_file(&file)? {
            if seen.insert(named.workload.hash().to_string()) {
                workloads.push(named);
            }
        }
    }
    Ok(workloads)
}

fn read_file(path: &Path) -> Result<Vec<NamedWorkload>, WorkloadsError> {
    let unreadable = |source| WorkloadsError::Read { path: path.to_path_buf(), source };
    if std::fs::metadata(path).map_err(unreadable)?.len() > MAX_FILE_BYTES {
        return Err(WorkloadsError::TooLarge { path: path.to_path_buf() });
    }
    let text = files::read_text(path, MAX_FILE_BYTES).map_err(unreadable)?;
    let mut workloads = Vec::new();
    let stem = path.file_stem().map_or_else(|| "workload".into(), |stem| stem.to_string_lossy().into_owned());
    for block in text.split("\n\n") {
        // of those that no comment names
        let mut name = if workloads.is_empty() { stem.clone() } else { format!("{stem}.{}", workloads.len()) };
        let mut lines = Vec::new();
        for line in block.lines() {
            match line.strip_prefix('#') {
                Some(comment) => name = comment.split_whitespace().nth(1).map_or(name, str::to_string),
                None => lines.push(line),
            }
        }
        if lines.iter().all(|line| line.trim().is_empty()) {
            continue;
        }
        let workload = (lines.join("\n") + "\n").parse().map_err(|error| WorkloadsError::Workload {
            path: path.to_path_buf(),
            number: workloads.len(),
            name: name.clone(),
            detail: format!("{error}"),
        })?;
        workloads.push(NamedWorkload { name, workload });
    }
    Ok(workloads)
}
