//! Finished runs of a comparison as lines of JSON, so that it can be stopped, taken up again, and joined by
//! further methods.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Finalists, MethodRun};
use crate::files;
use crate::outcome::Failure;
use crate::record::fingerprint;
use crate::space::{Space, Trace};
use crate::target::Target;

/// The longest line that is read.
const MAX_LINE_BYTES: u64 = 16 << 20;
/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// Why runs cannot be kept, or those that were kept not be used.
#[derive(Debug, Error)]
pub enum LogError {
    /// Environment.
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// Bad input.
    #[error("{path}, line {line}: {problem}")]
    Line { path: PathBuf, line: usize, problem: String },
    /// Bad input.
    #[error("{path} holds runs of {found}, this comparison is of {expected}; choose another folder")]
    Other { path: PathBuf, found: String, expected: String },
}

/// What all runs of a file have in common: other versions search and measure in other ways.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    tilescribe: String,
    target: String,
    space: String,
}

/// A finished run as it is kept.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    task: String,
    method: String,
    checkpoint: Option<String>,
    seed: u64,
    trials: usize,
    best_ms: Vec<Option<f64>>,
    seconds: Vec<f64>,
    failed: BTreeMap<Failure, usize>,
    /// By number of trials.
    finalists: BTreeMap<usize, Vec<String>>,
}

/// The file, open for more runs, and what it held.
pub struct Log {
    path: PathBuf,
    file: File,
    /// By the task's hash.
    runs: BTreeMap<String, Vec<(MethodRun, Finalists)>>,
    /// By method.
    checkpoints: BTreeMap<String, Option<String>>,
}

impl Log {
    /// Opens a file of runs on a target, or starts one. A last line that a killed program left unfinished is
    /// cut off.
    ///
    /// # Errors
    /// [`LogError`].
    pub fn open(path: &Path, target: &Target, space: &Space) -> Result<Log, LogError> {
        let io = |source| LogError::Io { path: path.to_path_buf(), source };
        if path.exists() {
            // refuses what would never end
            files::open(path).map_err(io)?;
        }
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(io)?;
        let tilescribe = env!("CARGO_PKG_VERSION").to_string();
        let restrictions = space.restrictions();
        let version = space.version(target.kind());
        let version = if restrictions.is_empty() { version } else { format!("{version} ({restrictions})") };
        let header = Header { tilescribe, target: fingerprint(target), space: version };
        let mut reader = BufReader::new(file.try_clone().map_err(io)?);
        let (mut runs, mut checkpoints) = (BTreeMap::<String, Vec<_>>::new(), BTreeMap::new());
        let (mut whole, mut number) = (0u64, 0);
        loop {
            let mut text = String::new();
            let length = io::Read::take(&mut reader, MAX_LINE_BYTES).read_line(&mut text).map_err(io)? as u64;
            let is_long = length >= MAX_LINE_BYTES || whole + length > MAX_FILE_BYTES;
            number += 1;
            let wrong = |problem: String| LogError::Line { path: path.to_path_buf(), line: number, problem };
            if is_long {
                return Err(wrong("more bytes than any comparison writes".into()));
            }
            if !text.ends_with('\n') {
                break;
            }
            whole += length;
            if number == 1 {
                let found: Header = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
                if found != header {
                    let words = |header: &Header| {
                        let Header { tilescribe, target, space } = header;
                        format!("version {tilescribe}, target {target} and space {space}")
                    };
                    let (found, expected) = (words(&found), words(&header));
                    return Err(LogError::Other { path: path.to_path_buf(), found, expected });
                }
                continue;
            }
            let line: Line = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
            checkpoints.insert(line.method.clone(), line.checkpoint.clone());
            let (task, run) = line.read().map_err(wrong)?;
            runs.entry(task).or_default().push(run);
        }
        file.set_len(whole).map_err(io)?;
        if whole == 0 {
            write_line(&mut file, &header).map_err(io)?;
        }
        Ok(Log { path: path.to_path_buf(), file, runs, checkpoints })
    }

    /// Makes sure that all runs of a method are of one checkpoint, named by its fingerprint.
    ///
    /// # Errors
    /// [`LogError::Other`] where there are runs of another one.
    pub(super) fn admit(&self, method: &str, checkpoint: Option<&str>) -> Result<(), LogError> {
        match self.checkpoints.get(method).filter(|known| known.as_deref() != checkpoint) {
            None => Ok(()),
            Some(known) => {
                let words =
                    |checkpoint: Option<&str>| format!("{method} with checkpoint {}", checkpoint.unwrap_or("none"));
                let (found, expected) = (words(known.as_deref()), words(checkpoint));
                Err(LogError::Other { path: self.path.clone(), found, expected })
            }
        }
    }

    /// Whether a run of at least `trials` trials is known.
    pub(super) fn contains(&self, task: &str, method: &str, seed: u64, trials: usize) -> bool {
        let same = |run: &MethodRun| run.method == method && run.seed == seed && run.trials >= trials;
        self.runs.get(task).is_some_and(|runs| runs.iter().any(|(run, _)| same(run)))
    }

    /// Keeps a run.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub(super) fn append(
        &mut self,
        task: &str,
        checkpoint: Option<&str>,
        run: MethodRun,
        finalists: Finalists,
    ) -> Result<(), LogError> {
        let line = Line {
            task: task.to_string(),
            method: run.method.clone(),
            checkpoint: checkpoint.map(String::from),
            seed: run.seed,
            trials: run.trials,
            best_ms: run.best_ms.clone(),
            seconds: run.seconds.clone(),
            failed: run.failed.clone(),
            finalists: finalists
                .iter()
                .map(|(trials, traces)| (*trials, traces.iter().map(Trace::to_string).collect()))
                .collect(),
        };
        write_line(&mut self.file, &line).map_err(|source| LogError::Io { path: self.path.clone(), source })?;
        self.checkpoints.insert(run.method.clone(), checkpoint.map(String::from));
        self.runs.entry(task.to_string()).or_default().push((run, finalists));
        Ok(())
    }

    /// All runs on a task, by whatever method; of one method and seed the longest.
    pub(super) fn of(&self, task: &str) -> Vec<(MethodRun, Finalists)> {
        let mut runs = self.runs.get(task).cloned().unwrap_or_default();
        runs.sort_by_key(|(run, _)| Reverse(run.trials));
        let mut seen = HashSet::new();
        runs.retain(|(run, _)| seen.insert((run.method.clone(), run.seed)));
        runs.sort_by(|(a, _), (b, _)| (a.seed, &a.method).cmp(&(b.seed, &b.method)));
        runs
    }
}

fn write_line(file: &mut File, value: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_string(value)?;
    text.push('\n');
    file.write_all(text.as_bytes())
}

impl Line {
    fn read(self) -> Result<(String, (MethodRun, Finalists)), String> {
        let traces = |(trials, texts): (usize, Vec<String>)| -> Result<(usize, Vec<Trace>), String> {
            let trace = |text: String| text.parse().map_err(|error| format!("trace after {trials} trials: {error}"));
            Ok((trials, texts.into_iter().map(trace).collect::<Result<_, _>>()?))
        };
        let finalists = self.finalists.into_iter().map(traces).collect::<Result<Finalists, String>>()?;
        if self.seconds.len() != self.best_ms.len() {
            return Err("not as many seconds as trials".into());
        }
        let run = MethodRun {
            method: self.method,
            seed: self.seed,
            trials: self.trials,
            best_ms: self.best_ms,
            seconds: self.seconds,
            failed: self.failed,
            checked_ms: BTreeMap::new(),
        };
        Ok((self.task, (run, finalists)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Write;

    use super::{Log, LogError};
    use crate::outcome::Failure;
    use crate::propose::example::product;
    use crate::space::Space;
    use crate::tune::compare::{Finalists, MethodRun};

    fn run(method: &str, trials: usize) -> (MethodRun, Finalists) {
        let traces = ["tile s0 a = 4\nparallel s0 = 1\n", "tile s0 a = 2\n"].map(|text| text.parse().unwrap());
        let finalists = Finalists::from([(1, traces.to_vec()), (2, Vec::new())]);
        let run = MethodRun {
            method: method.into(),
            seed: 3,
            trials,
            best_ms: vec![None, Some(0.25)],
            seconds: vec![0.1, 0.3],
            failed: BTreeMap::from([(Failure::Timeout, 1)]),
            checked_ms: BTreeMap::new(),
        };
        (run, finalists)
    }

    #[test]
    fn runs_are_there_when_a_comparison_is_taken_up_again() {
        let folder = tempfile::tempdir().unwrap();
        let (path, space, target) = (folder.path().join("runs.jsonl"), Space::standard(), product().target);
        let mut log = Log::open(&path, &target, &space).unwrap();
        for (name, trials) in [("lm", 2), ("random", 2), ("random", 10)] {
            let (run, finalists) = run(name, trials);
            log.append("task", (name == "lm").then_some("0123"), run, finalists).unwrap();
        }
        // a line that was being written when the program was killed
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"task\": \"ta").unwrap();
        for _ in 0..2 {
            let log = Log::open(&path, &target, &space).unwrap();
            assert_eq!(log.of("task"), [run("lm", 2), run("random", 10)]);
            assert!(log.contains("task", "random", 3, 10) && log.contains("task", "lm", 3, 1));
            assert!(!log.contains("task", "lm", 3, 3) && !log.contains("task", "lm", 4, 2));
            assert!(!log.contains("another", "lm", 3, 2) && log.of("another").is_empty());
            for (admitted, name, checkpoint) in [
                (true, "lm", Some("0123")),
                (false, "lm", Some("4567")),
                (false, "lm", None),
                (true, "random", None),
                (true, "another", Some("4567")),
            ] {
                assert_eq!(log.admit(name, checkpoint).is_ok(), admitted, "{name} {checkpoint:?}");
            }
        }
        let mut other = target.cpu().unwrap().clone();
        other.cores += 1;
        assert!(matches!(Log::open(&path, &other.into(), &space), Err(LogError::Other { .. })));
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{}\n").unwrap();
        assert!(matches!(Log::open(&path, &target, &space), Err(LogError::Line { line: 5, .. })));
    }
}
