//! `manifest.json`: what an artifact is, and the hashes of its files.
//!
//! A manifest comes from outside: sizes and hashes are checked before any other file is used, and no name in
//! it can lead out of the folder, because only three file names are allowed, which follow from the network's.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::RuntimeError;
use crate::files;
use crate::formula::{CompiledSymbol, Computed};
use crate::port::{Port, RunTimeExtent, StatePort};
use crate::precision::Precision;
use crate::target::{Kind, Target};

/// Changes whenever older manifests cannot be read as they are.
pub const FORMAT: u32 = 9;
/// The format of networks whose calls all run one after the other: it has not changed since.
const TURNS_FORMAT: u32 = 8;
/// The format of those that are cut without a plan, too.
const PLANLESS_FORMAT: u32 = 7;
/// The format of those in f32.
const F32_FORMAT: u32 = 6;
/// The format of those that count nothing while they run, too.
const UNCOUNTED_FORMAT: u32 = 5;
/// The format of those that keep no states, either.
const STATELESS_FORMAT: u32 = 4;
/// The format of those whose extents are all fixed, too.
const FIXED_FORMAT: u32 = 3;
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
    /// Numbers that are known only when it runs; none where all extents are fixed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub symbols: Vec<CompiledSymbol>,
    /// In the order in which the C function takes them.
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    /// What products by weights are computed in, where the network did not say so itself.
    #[serde(default, skip_serializing_if = "Precision::is_f32")]
    pub precision: Precision,
    /// What is kept from one run to the next.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<StatePort>,
    /// By output, the file that it is written to where outputs are kept in a folder: see [`output_file`].
    /// Manifests of before 0.3.0 lack it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub output_files: BTreeMap<String, String>,
    pub memory: Memory,
    /// What was decided about the network as a whole, where it is not as by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<CompiledPlan>,
    pub tasks: Vec<CompiledTask>,
    /// In execution order: what each call runs.
    pub calls: Vec<CompiledCall>,
    /// Calls that run again and again, or under a condition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<CompiledRegion>,
    /// Calls that run at the same time: by fork, first and end of the calls in each strand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forks: Vec<Vec<[usize; 2]>>,
    /// By file name.
    pub files: BTreeMap<String, FileDigest>,
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

/// The number of a task, or what a routine of the run-time library does.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CompiledCall {
    Task(usize),
    Library(String),
}

/// The calls `first..end`, and how they run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompiledRegion {
    pub first: usize,
    pub end: usize,
    /// How often; `None`: under a condition, or one of them.
    pub count: Option<i64>,
    /// Whether one of them runs, the one that was made for the extents that are nearest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_choice: bool,
}

/// What was decided about the network as a whole.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompiledPlan {
    /// The decisions that are not the defaults, as text; never empty.
    pub text: String,
    /// All of them, in the order in which they were taken.
    pub decisions: Vec<CompiledDecision>,
}

/// A decision, as people read it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompiledDecision {
    pub site: String,
    /// The default comes first.
    pub candidates: Vec<String>,
    pub taken: String,
    /// The ONNX nodes that write the tensors it concerns, with their shapes at most.
    pub concerns: Vec<String>,
}

/// A task of the network.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompiledTask {
    pub name: String,
    /// How often it is called in a run.
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

    /// The format that holds it: older versions of Tilescribe read whatever they can.
    pub fn least_format(&self) -> u32 {
        match (self.counts_results(), self.states.is_empty(), self.symbols.is_empty()) {
            _ if !self.forks.is_empty() => FORMAT,
            _ if self.plan.is_some() => TURNS_FORMAT,
            _ if !self.precision.is_f32() => PLANLESS_FORMAT,
            (true, ..) => F32_FORMAT,
            (false, true, true) => FIXED_FORMAT,
            (false, true, false) => STATELESS_FORMAT,
            (false, false, _) => UNCOUNTED_FORMAT,
        }
    }

    /// Whether extents of its outputs may be known only after a run.
    pub fn counts_results(&self) -> bool {
        self.symbols.iter().any(|symbol| matches!(symbol.computed, Some(Computed::Count(_))))
    }

    /// What it runs on; `None` where there is no version, which no manifest that was read lacks.
    pub fn kind(&self) -> Option<Kind> {
        self.versions.first().map(|version| version.target.kind())
    }

    /// Reads the manifest of a folder and checks that it makes sense; the other files are not touched.
    ///
    /// # Errors
    /// [`RuntimeError::Invalid`] where it is none of ours, or of another format.
    pub fn read(folder: &Path) -> Result<Manifest, RuntimeError> {
        let (path, text, about) = Manifest::text(folder)?;
        if !(FIXED_FORMAT..=FORMAT).contains(&about.format) {
            let reason =
                format!("format {}, this version of Tilescribe reads {FIXED_FORMAT} to {FORMAT}", about.format);
            return Err(RuntimeError::invalid(&path, reason));
        }
        let invalid = |error: serde_json::Error| RuntimeError::invalid(&path, error.to_string());
        let manifest: Manifest = serde_json::from_str(&text).map_err(invalid)?;
        manifest.check().map_err(|reason| RuntimeError::invalid(&path, reason))?;
        Ok(Manifest { output_files: output_files(&manifest.outputs), ..manifest })
    }

    /// Whether the folder holds an artifact of this or any other version of Tilescribe.
    pub fn is_there(folder: &Path) -> bool {
        Manifest::text(folder).is_ok()
    }

    /// The names of an artifact's files, of whatever format.
    ///
    /// # Errors
    /// [`RuntimeError::Invalid`] where the folder holds none.
    pub fn files_of(folder: &Path) -> Result<BTreeSet<String>, RuntimeError> {
        #[derive(Deserialize)]
        struct Files {
            files: BTreeMap<String, serde::de::IgnoredAny>,
        }
        let (path, text, _) = Manifest::text(folder)?;
        let listed: Files =
            serde_json::from_str(&text).map_err(|error| RuntimeError::invalid(&path, error.to_string()))?;
        Ok(listed.files.into_keys().chain([MANIFEST_FILE.to_string()]).collect())
    }

    /// The manifest's path and text, and what is the same in all formats.
    fn text(folder: &Path) -> Result<(PathBuf, String, Versioned), RuntimeError> {
        let path = folder.join(MANIFEST_FILE);
        if !is_plain_file(&path) {
            return Err(RuntimeError::invalid(folder, "no artifact: it holds no manifest.json"));
        }
        let mut text = String::new();
        let file = files::open(&path).map_err(|source| RuntimeError::read(&path, source))?;
        let read = file.take(MANIFEST_LIMIT + 1).read_to_string(&mut text);
        read.map_err(|source| RuntimeError::invalid(&path, source.to_string()))?;
        if text.len() as u64 > MANIFEST_LIMIT {
            return Err(RuntimeError::invalid(&path, format!("larger than {MANIFEST_LIMIT} bytes")));
        }
        let about = serde_json::from_str(&text).map_err(|error| RuntimeError::invalid(&path, error.to_string()))?;
        Ok((path, text, about))
    }

    /// Compares every file with its size and hash.
    ///
    /// # Errors
    /// [`RuntimeError::Invalid`] for the first that differs.
    pub fn verify(&self, folder: &Path) -> Result<(), RuntimeError> {
        for (name, expected) in &self.files {
            let path = folder.join(name);
            if !is_plain_file(&path) {
                return Err(RuntimeError::invalid(&path, "missing, or not a plain file"));
            }
            let bytes = std::fs::metadata(&path).map_err(|source| RuntimeError::read(&path, source))?.len();
            if bytes != expected.bytes {
                let reason = format!("{bytes} bytes where the manifest says {}", expected.bytes);
                return Err(RuntimeError::invalid(&path, reason));
            }
            if digest(&path)? != *expected {
                return Err(RuntimeError::invalid(
                    &path,
                    "its SHA-256 differs from the manifest's: damaged or changed",
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if !is_identifier(&self.name) {
            return Err(format!("`{}` is not a name", self.name.escape_debug()));
        }
        let expected = [header_file(&self.name), self.library_file(), WEIGHTS_FILE.to_string()];
        let same = self.files.len() == expected.len() && expected.iter().all(|name| self.files.contains_key(name));
        if !same {
            return Err(format!("`files` has to list {} and nothing else", expected.join(", ")));
        }
        if let Some(port) = self.ports().find(|port| port.bytes().is_none()) {
            return Err(format!("`{}` has an impossible type or shape", port.name.escape_debug()));
        }
        if let Some(state) = self.states.iter().find(|state| !state.is_possible()) {
            return Err(format!("the state `{}` grows in an impossible way", state.input.name.escape_debug()));
        }
        self.check_extents()?;
        let names: BTreeSet<&str> = self.outputs.iter().map(|port| port.name.as_str()).collect();
        if names.len() != self.outputs.len() {
            return Err("two outputs have one name".into());
        }
        let table = output_files(&self.outputs);
        if !self.output_files.is_empty() && self.output_files != table {
            return Err("`output_files` does not name the files that follow from the outputs' names".into());
        }
        let Some(kind) = self.kind() else { return Err("it is for no machine".into()) };
        let is_mixed = self.versions.iter().any(|version| version.target.kind() != kind);
        if is_mixed || (kind == Kind::Cpu && self.versions.len() > 1) {
            return Err("`versions` has to hold one CPU, or GPUs".into());
        }
        if self.versions.iter().any(|version| version.schedules.len() != self.tasks.len()) {
            return Err("a version lacks schedules of tasks, or has more".into());
        }
        if !self.forks.iter().all(|strands| self.is_fork(strands)) {
            return Err("`forks` has to list neighbouring ranges of calls".into());
        }
        // as strict as a target file
        let is_possible = |version: &CompiledVersion| Target::from_toml(&version.target.to_toml()).map(drop);
        self.versions.iter().try_for_each(is_possible).map_err(|error| error.to_string())?;
        let is_task = |call: &CompiledCall| matches!(call, CompiledCall::Task(task) if *task >= self.tasks.len());
        if self.calls.iter().any(is_task) {
            return Err("a call names a task that does not exist".into());
        }
        Ok(())
    }
}

impl Manifest {
    /// Whether some extents are known only when it runs.
    pub fn has_symbols(&self) -> bool {
        !self.symbols.is_empty()
    }

    /// Inputs, outputs, and what states are as inputs.
    fn ports(&self) -> impl Iterator<Item = &Port> {
        self.inputs.iter().chain(&self.outputs).chain(self.states.iter().map(|state| &state.input))
    }

    /// Whether strands are ranges of calls, one behind the other.
    fn is_fork(&self, strands: &[[usize; 2]]) -> bool {
        let are_neighbours = strands.windows(2).all(|pair| pair[0][1] == pair[1][0]);
        strands.len() > 1
            && are_neighbours
            && strands.iter().all(|[first, end]| first < end && *end <= self.calls.len())
    }

    fn check_extents(&self) -> Result<(), String> {
        if self.format != self.least_format() {
            let (symbols, states) = (self.symbols.len(), self.states.len());
            return Err(format!("format {}, {symbols} symbols and {states} states", self.format));
        }
        let mut numbered = self.symbols.iter().enumerate();
        if let Some((_, symbol)) = numbered.find(|(before, symbol)| !symbol.is_valid(*before)) {
            return Err(format!("the symbol `{}` has an impossible range or origin", symbol.name.escape_debug()));
        }
        let fits = |port: &Port| {
            let is_axis = |(axis, extent): (&usize, &RunTimeExtent)| {
                let is_possible = port.shape.get(*axis).is_some_and(|most| (0..=*most).contains(&extent.least));
                is_possible && extent.formula.is_valid(self.symbols.len())
            };
            (port.extents.is_empty() || self.has_symbols()) && port.extents.iter().all(is_axis)
        };
        match self.ports().find(|port| !fits(port)) {
            Some(port) => Err(format!("`{}` has impossible run-time extents", port.name.escape_debug())),
            None => Ok(()),
        }
    }
}

/// The file that an output is written to, which follows from its name alone: letters, digits, `_`, `-` and
/// points, but none that leads, stay as they are; every other byte becomes `%` and two hexadecimal digits, as
/// in web addresses; `.npy` follows. A name that would get longer than `LONGEST_STEM` bytes is cut off
/// there, and `%-` and its SHA-256 follow; an empty one is `%`.
///
/// No two outputs share a file, no file is hidden, and none lies in another folder.
pub fn output_file(output: &str) -> String {
    let mut stem = String::new();
    for (at, byte) in output.bytes().enumerate() {
        let is_plain = byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') || (byte == b'.' && at > 0);
        match is_plain {
            true => stem.push(char::from(byte)),
            false => stem.push_str(&format!("%{byte:02X}")),
        }
    }
    if stem.is_empty() {
        stem.push('%');
    }
    if stem.len() > LONGEST_STEM {
        stem.truncate(LONGEST_STEM);
        stem.push_str("%-");
        stem.push_str(&hex(&Sha256::digest(output)));
    }
    stem + ".npy"
}

/// File systems take names of 255 bytes.
const LONGEST_STEM: usize = 160;

/// The files of all outputs.
pub fn output_files(outputs: &[Port]) -> BTreeMap<String, String> {
    outputs.iter().map(|port| (port.name.clone(), output_file(&port.name))).collect()
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
/// [`RuntimeError::Read`] where it cannot be read.
pub fn digest(path: &Path) -> Result<FileDigest, RuntimeError> {
    let hash = || -> std::io::Result<FileDigest> {
        let mut file = files::open(path)?;
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
    hash().map_err(|source| RuntimeError::read(path, source))
}

/// Whether it is a file and no link to elsewhere.
fn is_plain_file(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_file())
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::output_file;

    #[test]
    fn every_output_has_a_file_of_its_own() {
        for (output, file) in [
            ("y", "y.npy"),
            ("StatefulPartitionedCall:2", "StatefulPartitionedCall%3A2.npy"),
            ("save_infer_model/scale_0.tmp_1", "save_infer_model%2Fscale_0.tmp_1.npy"),
            ("a_b.2", "a_b.2.npy"),
            (".", "%2E.npy"),
            ("..", "%2E..npy"),
            ("", "%.npy"),
            ("é", "%C3%A9.npy"),
            ("100%", "100%25.npy"),
        ] {
            assert_eq!(output_file(output), file);
        }
        let (long, longer) = ("x/".repeat(200), "x/".repeat(201));
        let awkward =
            ["a/b", "a:b", "a_b", "a%2Fb", "a_b.2", "../a", "%", "", ".", "..", "a\0b", "/", long.as_str(), &longer];
        let files: BTreeSet<String> = awkward.iter().map(|output| output_file(output)).collect();
        assert_eq!(files.len(), awkward.len());
        for file in files {
            assert!(file.len() <= 255 && !file.starts_with('.') && !file.contains(['/', '\0']), "{file}");
        }
    }
}
