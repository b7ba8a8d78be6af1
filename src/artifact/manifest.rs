//! `manifest.json`: what an artifact is, and the hashes of its files.
//!
//! A manifest comes from outside: sizes and hashes are checked before any other file is used, and no name in
//! it can lead out of the folder, because only three file names are allowed, which follow from the network's.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::ArtifactError;
use super::weights::hex;
use crate::codegen;
use crate::target::{Kind, Target, TargetError};
use crate::workload::DType;

/// Changes whenever older manifests cannot be read as they are.
pub const FORMAT: u32 = 3;
pub const MANIFEST_FILE: &str = "manifest.json";
pub const WEIGHTS_FILE: &str = "weights.safetensors";
/// A manifest beyond this many bytes is refused.
const MANIFEST_LIMIT: u64 = 64 << 20;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub format: u32,
    /// Version of the Tilescribe that wrote it.
    pub tilescribe: String,
    /// The prefix of the C functions.
    pub name: String,
    /// One for a CPU; for GPUs one for each generation, newest first, of which the first is taken that a GPU
    /// understands.
    pub versions: Vec<CompiledVersion>,
    /// In the order in which the C function takes them.
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    pub memory: Memory,
    pub tasks: Vec<CompiledTask>,
    /// By call, in execution order: the task that it runs.
    pub calls: Vec<usize>,
    /// By file name.
    pub files: BTreeMap<String, FileDigest>,
}

/// An input or output of the network.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    pub name: String,
    /// As [`DType::name`] spells it.
    pub dtype: String,
    pub shape: Vec<i64>,
}

impl Port {
    pub fn dtype(&self) -> Option<DType> {
        DType::from_name(&self.dtype)
    }

    /// Size in bytes; `None` where the shape or the type makes no sense.
    pub fn bytes(&self) -> Option<usize> {
        let elements = self.shape.iter().try_fold(1usize, |product, extent| {
            usize::try_from(*extent).ok().and_then(|extent| product.checked_mul(extent))
        })?;
        elements.checked_mul(self.dtype()?.bytes()).filter(|bytes| *bytes <= isize::MAX as usize)
    }
}

/// What the network needs while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// All intermediates, sharing bytes where they can.
    pub arena_bytes: u64,
    /// All intermediates, without sharing.
    pub intermediate_bytes: u64,
    /// The most that is alive during one call: no plan goes below.
    pub lower_bound_bytes: u64,
    /// Scratch memory inside of kernels.
    pub workspace_bytes: u64,
    pub weights_bytes: u64,
}

/// The kernels for one machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompiledVersion {
    pub target: Target,
    /// LLVM's names, without `+`; the shared object refuses to run where one is missing.
    pub required_features: Vec<String>,
    /// By task.
    pub schedules: Vec<CompiledSchedule>,
}

/// What was decided about a task.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompiledSchedule {
    /// The decisions, as text; empty for a schedule without choices.
    pub trace: String,
    /// The best time that was measured for this trace; `None`: never measured.
    pub best_ns: Option<u64>,
}

/// A task of the network.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompiledTask {
    pub name: String,
    /// Number of calls.
    pub weight: usize,
    /// ONNX nodes of the first call.
    pub nodes: Vec<String>,
    /// The computation, as text.
    pub workload: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileDigest {
    pub bytes: u64,
    /// Lower-case hexadecimal.
    pub sha256: String,
}

/// The fields that manifests of every format have.
#[derive(Deserialize)]
struct Versioned {
    format: u32,
    #[serde(rename = "tilescribe")]
    _tilescribe: String,
}

impl Manifest {
    pub fn library_file(&self) -> String {
        library_file(&self.name)
    }

    /// What it runs on; `None` where there is no version, which no manifest that was read lacks.
    pub fn kind(&self) -> Option<Kind> {
        self.versions.first().map(|version| version.target.kind())
    }

    /// Reads the manifest of a folder and checks that it makes sense; the other files are not touched.
    ///
    /// # Errors
    /// [`ArtifactError::Invalid`] where it is none of ours, or of another format.
    pub fn read(folder: &Path) -> Result<Manifest, ArtifactError> {
        let (path, text, about) = Manifest::text(folder)?;
        if about.format != FORMAT {
            let reason = format!("format {}, this version of Tilescribe reads {FORMAT}", about.format);
            return Err(ArtifactError::invalid(&path, reason));
        }
        let invalid = |error: serde_json::Error| ArtifactError::invalid(&path, error.to_string());
        let manifest: Manifest = serde_json::from_str(&text).map_err(invalid)?;
        manifest.check().map_err(|reason| ArtifactError::invalid(&path, reason))?;
        Ok(manifest)
    }

    /// Whether the folder holds an artifact of this or any other version of Tilescribe.
    pub fn is_there(folder: &Path) -> bool {
        Manifest::text(folder).is_ok()
    }

    /// The manifest's path and text, and what is the same in all formats.
    fn text(folder: &Path) -> Result<(PathBuf, String, Versioned), ArtifactError> {
        let path = folder.join(MANIFEST_FILE);
        if !is_plain_file(&path) {
            return Err(ArtifactError::invalid(folder, "no artifact: it holds no manifest.json"));
        }
        let mut text = String::new();
        let file = File::open(&path).map_err(|source| ArtifactError::read(&path, source))?;
        let read = file.take(MANIFEST_LIMIT + 1).read_to_string(&mut text);
        read.map_err(|source| ArtifactError::invalid(&path, source.to_string()))?;
        if text.len() as u64 > MANIFEST_LIMIT {
            return Err(ArtifactError::invalid(&path, format!("larger than {MANIFEST_LIMIT} bytes")));
        }
        let about = serde_json::from_str(&text).map_err(|error| ArtifactError::invalid(&path, error.to_string()))?;
        Ok((path, text, about))
    }

    /// Compares every file with its size and hash.
    ///
    /// # Errors
    /// [`ArtifactError::Invalid`] for the first that differs.
    pub fn verify(&self, folder: &Path) -> Result<(), ArtifactError> {
        for (name, expected) in &self.files {
            let path = folder.join(name);
            if !is_plain_file(&path) {
                return Err(ArtifactError::invalid(&path, "missing, or not a plain file"));
            }
            let bytes = std::fs::metadata(&path).map_err(|source| ArtifactError::read(&path, source))?.len();
            if bytes != expected.bytes {
                let reason = format!("{bytes} bytes where the manifest says {}", expected.bytes);
                return Err(ArtifactError::invalid(&path, reason));
            }
            if digest(&path)? != *expected {
                return Err(ArtifactError::invalid(
                    &path,
                    "its SHA-256 differs from the manifest's: damaged or changed",
                ));
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if !is_identifier(&self.name) {
            return Err(format!("`{}` is not a name", self.name.escape_debug()));
        }
        let expected = [header_file(&self.name), self.library_file(), WEIGHTS_FILE.to_string()];
        let same = self.files.len() == expected.len() && expected.iter().all(|name| self.files.contains_key(name));
        if !same {
            return Err(format!("`files` has to list {} and nothing else", expected.join(", ")));
        }
        if let Some(port) = self.inputs.iter().chain(&self.outputs).find(|port| port.bytes().is_none()) {
            return Err(format!("`{}` has an impossible type or shape", port.name.escape_debug()));
        }
        let Some(kind) = self.kind() else { return Err("it is for no machine".into()) };
        let is_mixed = self.versions.iter().any(|version| version.target.kind() != kind);
        if is_mixed || (kind == Kind::Cpu && self.versions.len() > 1) {
            return Err("`versions` has to hold one CPU, or GPUs".into());
        }
        if self.versions.iter().any(|version| version.schedules.len() != self.tasks.len()) {
            return Err("a version lacks schedules of tasks, or has more".into());
        }
        self.versions
            .iter()
            .try_for_each(|version| check_target(&version.target))
            .map_err(|error| error.to_string())?;
        if self.calls.iter().any(|task| *task >= self.tasks.len()) {
            return Err("a call names a task that does not exist".into());
        }
        Ok(())
    }
}

/// Whether there is such a machine: `show` generates code for it.
fn check_target(target: &Target) -> Result<(), TargetError> {
    match Target::from_toml(&target.to_toml())? {
        Target::Cpu(cpu) => codegen::check(&cpu),
        Target::Gpu(_) => Ok(()),
    }
}

pub fn library_file(name: &str) -> String {
    format!("lib{name}.so")
}

pub fn header_file(name: &str) -> String {
    format!("{name}.h")
}

/// Whether a name can start the names of C functions.
pub fn is_identifier(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Size and hash of a file.
///
/// # Errors
/// [`ArtifactError::Read`] where it cannot be read.
pub fn digest(path: &Path) -> Result<FileDigest, ArtifactError> {
    let hash = || -> std::io::Result<FileDigest> {
        let mut file = File::open(path)?;
        let (mut hash, mut bytes, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 20]);
        loop {
            let read = file.read(&mut buffer)?;
            if read == 0 {
                return Ok(FileDigest { bytes, sha256: hex(&hash.finalize()) });
            }
            bytes += read as u64;
            hash.update(&buffer[..read]);
        }
    };
    hash().map_err(|source| ArtifactError::read(path, source))
}

/// Whether it is a file and no link to elsewhere.
fn is_plain_file(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_file())
}
