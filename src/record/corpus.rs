//! Corpus files: records as JSON lines, compressed with zstd.
//!
//! Every line is complete in itself and has the same fields, so that any tool that reads JSON lines (the
//! `datasets` library among them) loads a file as it is. The workload's text and the target stand in every
//! line; compression makes them nearly free, since lines of one task stand together.
//!
//! | field | |
//! | --- | --- |
//! | `format` | [`FORMAT`]; a file of another one is refused |
//! | `task` | canonical hash of the workload |
//! | `workload` | its canonical text |
//! | `target`, `target_data` | fingerprint of the target, and the target |
//! | `space` | version of the space |
//! | `trace` | the decisions, a line each |
//! | `outcome` | `timed`, or why it failed |
//! | `detail` | of a failure; empty where timed |
//! | `times_ns` | nanoseconds of single runs in the order measured, at the pace of the task's reference (see [`crate::measure`]); empty where failed |
//! | `compile_us` | microseconds from nest to machine code; 0 where failed |
//! | `proposer`, `seed`, `created_unix_s`, `tilescribe` | where it comes from |

use std::collections::{BTreeSet, HashMap};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Record;
use crate::outcome::{Failure, Outcome};
use crate::target::{Target, Task};

/// Of the lines. Raised whenever a field changes.
pub const FORMAT: u32 = 1;

/// The compression level of corpus files: slow to write, small, as fast to read as any.
const COMPRESSION_LEVEL: i32 = 19;

/// A record and its task.
#[derive(Clone, Debug)]
pub struct Entry {
    pub task: Arc<Task>,
    pub record: Record,
}

/// Why a corpus file cannot be read or written.
#[derive(Debug, Error)]
pub enum CorpusError {
    /// Environment, or bad input where the compressed data is damaged.
    #[error("line {line}: {source}")]
    Io { line: u64, source: io::Error },
    /// Bad input.
    #[error("line {line}: {detail}")]
    Line { line: u64, detail: String },
    /// Bad input: of another Tilescribe.
    #[error("line {line}: corpus format {found}, this Tilescribe reads format {FORMAT}")]
    Version { line: u64, found: u64 },
    /// Limit.
    #[error("line {line} is longer than {limit} bytes")]
    LineTooLong { line: u64, limit: u64 },
    /// Limit.
    #[error("the file holds more than {limit} bytes when decompressed")]
    FileTooLong { limit: u64 },
}

/// How much a reader swallows.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one decompressed line.
    pub line_bytes: u64,
    /// Bytes of the whole decompressed file.
    pub file_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { line_bytes: 4 << 20, file_bytes: 64 << 30 }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    format: u32,
    task: String,
    workload: String,
    target: String,
    target_data: Target,
    space: String,
    trace: String,
    outcome: String,
    detail: String,
    times_ns: Vec<u64>,
    compile_us: u64,
    proposer: String,
    seed: u64,
    created_unix_s: u64,
    tilescribe: String,
}

/// Only what tells whether the rest can be read.
#[derive(Deserialize)]
struct Version {
    format: u64,
}

/// Writes a corpus file. Equal entries in equal order give equal bytes.
pub struct CorpusWriter<W: Write> {
    encoder: zstd::Encoder<'static, W>,
    lines: u64,
    /// Hashes of tasks and targets.
    tasks: BTreeSet<(String, String)>,
}

impl<W: Write> CorpusWriter<W> {
    /// # Errors
    /// [`CorpusError::Io`] where the compressor cannot be set up.
    pub fn new(inner: W) -> Result<CorpusWriter<W>, CorpusError> {
        let encoder = encoder(inner).map_err(|source| CorpusError::Io { line: 0, source })?;
        Ok(CorpusWriter { encoder, lines: 0, tasks: BTreeSet::new() })
    }

    /// Tasks of the lines so far, each once for a target.
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Appends a line.
    ///
    /// # Errors
    /// [`CorpusError::Io`] where the file cannot be written.
    pub fn write(&mut self, entry: &Entry) -> Result<(), CorpusError> {
        let Entry { task, record } = entry;
        self.lines += 1;
        self.tasks.insert((record.task_hash.clone(), record.target.clone()));
        let (outcome, detail, times_ns, compile_us) = match &record.outcome {
            Outcome::Timed { times_ns, compile_us } => ("timed", "", times_ns.clone(), *compile_us),
            Outcome::Failed { cause, detail } => (cause.name(), detail.as_str(), Vec::new(), 0),
        };
        let line = Line {
            format: FORMAT,
            task: record.task_hash.clone(),
            workload: task.workload.to_string(),
            target: record.target.clone(),
            target_data: task.target.clone(),
            space: record.space.clone(),
            trace: record.trace.to_string(),
            outcome: outcome.to_string(),
            detail: detail.to_string(),
            times_ns,
            compile_us,
            proposer: record.proposer.clone(),
            seed: record.seed,
            created_unix_s: record.created_unix_s,
            tilescribe: record.tilescribe.clone(),
        };
        let mut write = || -> io::Result<()> {
            serde_json::to_writer(&mut self.encoder, &line)?;
            self.encoder.write_all(b"\n")
        };
        write().map_err(|source| CorpusError::Io { line: self.lines, source })
    }

    /// Completes the file; without it, it cannot be read.
    ///
    /// # Errors
    /// [`CorpusError::Io`] where the file cannot be written.
    pub fn finish(self) -> Result<W, CorpusError> {
        let lines = self.lines;
        self.encoder.finish().map_err(|source| CorpusError::Io { line: lines, source })
    }
}

/// Streams the entries of a corpus file. Ends after the first error.
pub struct CorpusReader<R: BufRead> {
    lines: Lines<R>,
    tasks: Tasks,
    ended: bool,
}

impl<R: BufRead> CorpusReader<R> {
    /// # Errors
    /// [`CorpusError::Io`] where the decompressor cannot be set up.
    pub fn new(inner: R, limits: Limits) -> Result<CorpusReader<R>, CorpusError> {
        Ok(CorpusReader { lines: Lines::new(inner, limits)?, tasks: Tasks::default(), ended: false })
    }

    fn read(&mut self) -> Result<Option<Entry>, CorpusError> {
        let Some(bytes) = self.lines.read_line()? else { return Ok(None) };
        let line = self.lines.number;
        let bad = |detail: String| CorpusError::Line { line, detail };
        let version: Version = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
        if version.format != u64::from(FORMAT) {
            return Err(CorpusError::Version { line, found: version.format });
        }
        let parsed: Line = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
        self.entry(parsed).map(Some).map_err(bad)
    }

    fn entry(&mut self, line: Line) -> Result<Entry, String> {
        let task = self.tasks.of(&line.task, &line.workload, &line.target, &line.target_data)?;
        let outcome = match line.outcome.as_str() {
            "timed" if line.times_ns.is_empty() => return Err("timed, but without times".into()),
            "timed" => Outcome::Timed { times_ns: line.times_ns, compile_us: line.compile_us },
            other => match Failure::from_name(other) {
                Some(cause) => Outcome::Failed { cause, detail: line.detail },
                None => return Err(format!("unknown outcome `{other}`")),
            },
        };
        let record = Record {
            task_hash: line.task,
            target: line.target,
            space: line.space,
            trace: line.trace.parse().map_err(|e| format!("trace: {e}"))?,
            outcome,
            proposer: line.proposer,
            seed: line.seed,
            created_unix_s: line.created_unix_s,
            tilescribe: line.tilescribe,
        };
        Ok(Entry { task, record })
    }
}

/// The lines of a compressed file, within limits.
pub(super) struct Lines<R: BufRead> {
    input: io::Take<BufReader<zstd::Decoder<'static, R>>>,
    limits: Limits,
    /// Of the last line that was read, from 1.
    pub number: u64,
}

impl<R: BufRead> Lines<R> {
    pub fn new(inner: R, limits: Limits) -> Result<Lines<R>, CorpusError> {
        let decoder = zstd::Decoder::with_buffer(inner).map_err(|source| CorpusError::Io { line: 0, source })?;
        // one byte more than allowed, to tell a file that ends there from one that goes on
        let input = BufReader::new(decoder).take(limits.file_bytes.saturating_add(1));
        Ok(Lines { input, limits, number: 0 })
    }

    /// The next line with its end; `None` behind the last.
    pub fn read_line(&mut self) -> Result<Option<Vec<u8>>, CorpusError> {
        self.number += 1;
        let line = self.number;
        let mut bytes = Vec::new();
        let limit = self.limits.line_bytes;
        let mut input = (&mut self.input).take(limit.saturating_add(1));
        input.read_until(b'\n', &mut bytes).map_err(|source| CorpusError::Io { line, source })?;
        if self.input.limit() == 0 {
            return Err(CorpusError::FileTooLong { limit: self.limits.file_bytes });
        }
        if bytes.len() as u64 > limit {
            return Err(CorpusError::LineTooLong { line, limit });
        }
        Ok((!bytes.is_empty()).then_some(bytes))
    }
}

/// The tasks of a file by hash and fingerprint, parsed and checked once.
#[derive(Default)]
pub(super) struct Tasks(HashMap<(String, String), Arc<Task>>);

impl Tasks {
    /// The task of a line that names its workload and target, and spells them out.
    pub fn of(&mut self, hash: &str, workload: &str, fingerprint: &str, target: &Target) -> Result<Arc<Task>, String> {
        let key = (hash.to_string(), fingerprint.to_string());
        if let Some(task) = self.0.get(&key) {
            return Ok(Arc::clone(task));
        }
        let workload: crate::workload::Workload = workload.parse().map_err(|e| format!("workload: {e}"))?;
        if !workload.is_named(hash) {
            return Err(format!("the workload's hash is {}, the line says {hash}", workload.hash()));
        }
        // by way of its text, which checks the ranges of its fields
        let target = Target::from_toml(&target.to_toml()).map_err(|e| format!("target: {e}"))?;
        let found = target.fingerprint();
        if found != fingerprint {
            return Err(format!("the target's fingerprint is {found}, the line says {fingerprint}"));
        }
        let task = Arc::new(Task { workload, target });
        self.0.insert(key, Arc::clone(&task));
        Ok(task)
    }
}

/// A compressor of lines.
pub(super) fn encoder<W: Write>(inner: W) -> io::Result<zstd::Encoder<'static, W>> {
    let mut encoder = zstd::Encoder::new(inner, COMPRESSION_LEVEL)?;
    encoder.include_checksum(true)?;
    Ok(encoder)
}

impl<R: BufRead> Iterator for CorpusReader<R> {
    type Item = Result<Entry, CorpusError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.read().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}
