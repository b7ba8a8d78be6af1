//! Plans: programs that were written on one machine and are to be measured on another, whose time may be
//! short.
//!
//! A plan is a text file with a line of JSON for each program: `{"name": "...", "workload": "...", "space":
//! "...", "trace": "..."}`. The space is the version that the trace was written in; a line without one is of
//! the version that reads it. [`Planned`] proposes what it holds, so that [`tune`](super::tune) measures it
//! as it measures everything.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, BufRead, Read, Write};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Job;
use crate::propose::{Candidate, History, Proposal, ProposeError, Proposer};
use crate::space::{Space, Trace};
use crate::target::{Target, Task};

/// The longest line that is read.
const MAX_LINE_BYTES: u64 = 4 << 20;
/// The most programs of a plan.
const MAX_PROGRAMS: usize = 10_000_000;

/// Why a plan cannot be read.
#[derive(Debug, Error)]
pub enum PlanError {
    /// Environment, or bad input where the file is no text.
    #[error("line {line}: {source}")]
    Io { line: usize, source: io::Error },
    /// Bad input.
    #[error("line {line}: {detail}")]
    Line { line: usize, detail: String },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    name: String,
    workload: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    space: Option<String>,
    trace: String,
}

/// Writes a program of a task, which is of this space.
///
/// # Errors
/// Where the file cannot be written.
pub fn write_planned(out: &mut dyn Write, job: &Job, space: &Space, trace: &Trace) -> io::Result<()> {
    let line = Line {
        name: job.name.clone(),
        workload: job.task.workload.to_string(),
        space: Some(space.version(job.task.target.kind())),
        trace: trace.to_string(),
    };
    serde_json::to_writer(&mut *out, &line)?;
    out.write_all(b"\n")
}

/// The programs of a plan, and a proposer of nothing else.
pub struct Planned {
    /// In the order in which the plan names them first.
    pub jobs: Vec<Job>,
    /// By the hash of the workload, in the order of the plan.
    traces: BTreeMap<String, Vec<Trace>>,
}

/// What was read, so that no program comes twice.
type Known = HashSet<(String, Trace)>;

impl Planned {
    /// Reads a plan for a machine.
    ///
    /// # Errors
    /// [`PlanError`] for the first line that is not right, be it that its trace is no program of the space.
    pub fn read(input: &mut dyn BufRead, space: &Space, target: &Target) -> Result<Planned, PlanError> {
        let mut planned = Planned { jobs: Vec::new(), traces: BTreeMap::new() };
        let mut known = Known::new();
        for line in 1.. {
            let mut text = String::new();
            let length =
                input.take(MAX_LINE_BYTES).read_line(&mut text).map_err(|source| PlanError::Io { line, source })?;
            let bad = |detail: String| PlanError::Line { line, detail };
            match length as u64 {
                0 => break,
                MAX_LINE_BYTES => return Err(bad(format!("more than {MAX_LINE_BYTES} bytes"))),
                _ if line > MAX_PROGRAMS => return Err(bad(format!("more than {MAX_PROGRAMS} programs"))),
                _ => planned.add(&text, &mut known, space, target).map_err(bad)?,
            }
        }
        Ok(planned)
    }

    fn add(&mut self, text: &str, known: &mut Known, space: &Space, target: &Target) -> Result<(), String> {
        let Line { name, workload, space: version, trace } =
            serde_json::from_str(text).map_err(|error| error.to_string())?;
        let workload = workload.parse().map_err(|error| format!("workload: {error}"))?;
        let trace: Trace = trace.parse().map_err(|error| format!("trace: {error}"))?;
        let task = Task { workload, target: target.clone() };
        let trace = match version {
            Some(version) => {
                let reader = space.reader(target.kind(), &version).map_err(|error| format!("space: {error}"))?;
                reader.upgrade(&task, &trace).map_err(|error| format!("the trace of {name}: {error}"))?
            }
            None => trace,
        };
        if !space.offers(&task, &trace) {
            return Err(format!("the trace is no program for {name} on this target"));
        }
        let hash = task.workload.hash().to_string();
        if known.insert((hash.clone(), trace.clone())) {
            let traces = self.traces.entry(hash).or_default();
            if traces.is_empty() {
                self.jobs.push(Job { name, task, weight: 1.0 });
            }
            traces.push(trace);
        }
        Ok(())
    }

    /// Programs in all.
    pub fn programs(&self) -> usize {
        self.traces.values().map(Vec::len).sum()
    }
}

impl Proposer for &Planned {
    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        let traces = self.traces.get(&task.workload.hash().to_string()).into_iter().flatten();
        let left = traces.filter(|trace| !history.contains(trace)).take(count);
        Ok(Proposal { candidates: left.cloned().map(Candidate::new).collect(), ..Proposal::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::{Planned, write_planned};
    use crate::propose::example::product;
    use crate::propose::{History, Proposer, Random};
    use crate::space::Space;
    use crate::tune::Job;

    #[test]
    fn what_was_written_is_proposed_once() {
        let (space, task) = (Space::standard(), product());
        let drawn = Random::new(&space, 1).propose(&task, &History::default(), 5).unwrap().candidates;
        let job = Job { name: "product".into(), task: task.clone(), weight: 1.0 };
        let mut text = Vec::new();
        for candidate in drawn.iter().chain(&drawn[..2]) {
            write_planned(&mut text, &job, &space, &candidate.trace).unwrap();
        }
        let planned = Planned::read(&mut text.as_slice(), &space, &task.target).unwrap();
        assert_eq!((planned.jobs.len(), planned.programs(), planned.jobs[0].name.as_str()), (1, 5, "product"));
        let mut history = History::default();
        history.insert(drawn[1].trace.clone(), Some(1));
        let traces = |count| {
            let proposal = (&planned).propose(&task, &history, count).unwrap();
            proposal.candidates.into_iter().map(|candidate| candidate.trace).collect::<Vec<_>>()
        };
        let wanted: Vec<_> = [0, 2, 3, 4].map(|at| drawn[at].trace.clone()).to_vec();
        assert_eq!((traces(2), traces(9)), (wanted[..2].to_vec(), wanted));
    }

    #[test]
    fn what_is_no_program_is_refused_with_its_line() {
        let (space, task) = (Space::standard(), product());
        let job = Job { name: "product".into(), task: task.clone(), weight: 1.0 };
        let good = Random::new(&space, 1).propose(&task, &History::default(), 1).unwrap().candidates.remove(0).trace;
        let mut text = Vec::new();
        write_planned(&mut text, &job, &space, &good).unwrap();
        let mut cut = good.clone();
        cut.0.pop();
        write_planned(&mut text, &job, &space, &cut).unwrap();
        let read = |text: &[u8]| Planned::read(&mut &*text, &space, &task.target).map(|_| ()).unwrap_err().to_string();
        assert!(read(&text).starts_with("line 2: the trace is no program for product"), "{}", read(&text));
        for bad in [&b"{}\n"[..], b"\xff\n", b"{\"name\": \"a\", \"workload\": \"out\", \"trace\": \"\"}\n"] {
            assert!(read(bad).starts_with("line 1: "), "{}", read(bad));
        }
        // of a rule that has changed since
        let older = String::from_utf8(text).unwrap().replace("order-3", "order-2");
        let expected = "line 1: space: it is of version 2 of the rule `order`";
        assert!(read(older.as_bytes()).starts_with(expected), "{}", read(older.as_bytes()));
    }
}
