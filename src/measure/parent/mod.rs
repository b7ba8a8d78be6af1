//! The parent's side: keeps one warm worker, and turns whatever happens to it into outcomes.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::child::{Lost, Worker, describe, was_killed};
use super::memory::readable;
use super::options::Options;
use super::protocol::{PROTOCOL, Phase, Reply, Request};
use crate::outcome::{Failure, Outcome};
use crate::space::Trace;
use crate::target::Task;

/// Why nothing was measured. A candidate's own failure is an [`Outcome`] instead.
#[derive(Debug, Error)]
pub enum MeasureError {
    /// Environment: the worker cannot be started, or does not behave like one.
    #[error("the worker {worker} does not work: {detail}")]
    Worker { worker: PathBuf, detail: String },
    /// Environment, or our bug: the worker is of another build.
    #[error("the worker {worker} is of another build: {detail}")]
    OtherBuild { worker: PathBuf, detail: String },
    /// Bad input or limit: the task has no reference result, or it takes too long or too much memory.
    #[error("the task cannot be measured: {detail}")]
    Task { detail: String },
    /// Bad input: the trace does not belong to this task and space, or is not finished.
    #[error("the trace cannot be measured: {detail}")]
    Trace { detail: String },
    /// [`Options::stop`] was set before the task was ready.
    #[error("stopped before the task was ready to be measured")]
    Stopped,
}

/// Measures candidates, one at a time, in a worker process that it starts again whenever one is lost.
pub struct Measurer {
    options: Options,
    worker: Option<Worker>,
    /// The task that the worker is ready for.
    task: Option<Task>,
    /// What the worker has been asked for and has not answered yet.
    ahead: Option<Ahead>,
    /// What candidates of the task last measured run in turn with.
    reference: Option<Reference>,
}

/// Candidates that the worker compiles while nobody waits for it.
struct Ahead {
    task: Task,
    traces: Vec<Trace>,
    /// Whether it makes itself ready for the task first.
    prepares: bool,
}

/// A program whose time is known, in nanoseconds.
struct Reference {
    task: Task,
    trace: Trace,
    known_ns: u64,
}

/// Candidates run in turn with the same reference until one is faster by this factor. Times compare better
/// the less often it changes; a slow one leaves less time for the candidates.
const OUTRUN: u64 = 2;

impl Measurer {
    /// Starts nothing yet.
    pub fn new(options: Options) -> Measurer {
        Measurer { options, worker: None, task: None, ahead: None, reference: None }
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Compiles, checks and times a finished trace. The incumbent is the fastest program of the task so far,
    /// with its nanoseconds. A candidate that is much slower is timed only shortly. Candidates run in turn
    /// with an incumbent, and their times are normalized to the speed of the machine when that one was timed.
    ///
    /// # Errors
    /// [`MeasureError`] where the candidate is not to blame; nothing should be recorded then.
    pub fn measure(
        &mut self,
        task: &Task,
        trace: &Trace,
        incumbent: Option<(&Trace, u64)>,
    ) -> Result<Outcome, MeasureError> {
        self.prepare(task)?;
        let limit = self.options.limits.candidate;
        let reference = self.reference(task, incumbent).filter(|(reference, _)| *reference != trace);
        let request = Request::Measure {
            trace: trace.to_string(),
            incumbent_ns: incumbent.map(|(_, ns)| ns),
            reference: reference.map(|(reference, ns)| (reference.to_string(), ns)),
        };
        let mut phase = None;
        match self.ask(&request, limit, &mut phase) {
            Ok(Reply::Measured(outcome)) => Ok(outcome),
            Ok(Reply::Refused { detail }) => Err(MeasureError::Trace { detail }),
            Ok(_) => Ok(self.lose(Lost::Garbage("an answer to another question".into()), phase, limit)),
            Err(Lost::Unsendable(e)) => Err(MeasureError::Trace { detail: e.to_string() }),
            Err(lost) => Ok(self.lose(lost, phase, limit)),
        }
    }

    /// Compiles candidates on all cores before they are measured. It only saves time: where a candidate takes
    /// the worker down, each is compiled when it is measured, and fails alone.
    ///
    /// # Errors
    /// As for [`Measurer::measure`].
    pub fn compile_ahead(&mut self, task: &Task, traces: &[Trace]) -> Result<(), MeasureError> {
        let has_begun = self.ahead.as_ref().is_some_and(|ahead| ahead.task == *task && ahead.traces == traces);
        self.prepare(task)?;
        if !has_begun {
            self.begin(task, traces);
            // the task is ready, so nothing is left that would be an error
            self.take_answers();
        }
        Ok(())
    }

    /// Has the worker make itself ready for a task and compile candidates, and returns meanwhile: what is
    /// asked next waits for that, and says what went wrong.
    pub fn begin(&mut self, task: &Task, traces: &[Trace]) {
        // who waits for a task hears of its failure: nobody did for the one before
        self.take_answers();
        if self.keep_worker().is_err() {
            return;
        }
        let prepares = self.task.as_ref() != Some(task);
        let compile = Request::CompileAhead { traces: traces.iter().map(Trace::to_string).collect() };
        let mut sent = Ok(());
        if prepares {
            self.task = None;
            sent = self.send(&self.preparation(task), self.options.limits.prepare);
        }
        match sent.and_then(|()| self.send(&compile, self.options.limits.candidate)) {
            Ok(()) => self.ahead = Some(Ahead { task: task.clone(), traces: traces.to_vec(), prepares }),
            Err(_) => self.worker = None,
        }
    }

    /// Waits for what the worker was asked to do ahead: the task that it was for, and whether it is ready.
    fn take_answers(&mut self) -> Option<(Task, Result<(), MeasureError>)> {
        let Ahead { task, traces, prepares } = self.ahead.take()?;
        let ready = if prepares { self.prepared(&task) } else { Ok(()) };
        let limit = self.options.limits.candidate * u32::try_from(traces.len().max(1)).unwrap_or(u32::MAX);
        if !matches!(self.answer(limit, &mut None, None), Ok(Reply::CompiledAhead)) {
            self.worker = None;
        }
        Some((task, ready))
    }

    /// The next candidates run in turn with the incumbent that they come with, whatever the last ones ran in
    /// turn with.
    pub fn forget_reference(&mut self) {
        self.reference = None;
    }

    /// What candidates run in turn with.
    fn reference(&mut self, task: &Task, incumbent: Option<(&Trace, u64)>) -> Option<(&Trace, u64)> {
        let Some((trace, known_ns)) = incumbent else {
            // another search begins: its first program sets the speed that times are normalized to
            self.reference = None;
            return None;
        };
        let outrun = |reference: &Reference| reference.task != *task || known_ns < reference.known_ns / OUTRUN;
        if self.reference.as_ref().is_none_or(outrun) {
            self.reference = Some(Reference { task: task.clone(), trace: trace.clone(), known_ns });
        }
        self.reference.as_ref().map(|reference| (&reference.trace, reference.known_ns))
    }

    /// Measures candidates one after the other; the best so far is the incumbent of the next.
    ///
    /// # Errors
    /// As for [`Measurer::measure`].
    pub fn measure_all(&mut self, task: &Task, traces: &[Trace]) -> Result<Vec<Outcome>, MeasureError> {
        let mut best: Option<(&Trace, u64)> = None;
        let mut outcomes = Vec::with_capacity(traces.len());
        for trace in traces {
            let outcome = self.measure(task, trace, best)?;
            let timed = outcome.best_ns().map(|ns| (trace, ns));
            best = best.into_iter().chain(timed).min_by_key(|(_, ns)| *ns);
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    /// Measures finalists in turn, round by round, so that their times may be compared: what disturbs the
    /// machine disturbs all. The i-th times of two outcomes are of the same round. A finalist that does not
    /// survive alone fails alone.
    ///
    /// # Errors
    /// As for [`Measurer::measure`].
    pub fn finals(&mut self, task: &Task, traces: &[Trace]) -> Result<Vec<Outcome>, MeasureError> {
        match self.compare(task, traces)? {
            Ok(outcomes) => Ok(outcomes),
            Err(_) => {
                // someone took the worker down: find out who, and let the others try again
                let alone = self.measure_all(task, traces)?;
                let alive = |outcome: &&Outcome| outcome.failure().is_none();
                let survivors: Vec<Trace> =
                    traces.iter().zip(&alone).filter(|(_, o)| alive(o)).map(|(trace, _)| trace.clone()).collect();
                let Ok(together) = self.compare(task, &survivors)? else { return Ok(alone) };
                let mut together = together.into_iter();
                let merged = alone.into_iter().map(|outcome| match alive(&&outcome) {
                    true => together.next().unwrap_or(outcome),
                    false => outcome,
                });
                Ok(merged.collect())
            }
        }
    }

    /// The worker's process, if there is one.
    pub fn worker_id(&self) -> Option<u32> {
        self.worker.as_ref().map(Worker::id)
    }

    /// Resident memory of the worker in bytes, if there is one and the system tells.
    pub fn worker_resident_bytes(&self) -> Option<u64> {
        self.worker.as_ref().and_then(Worker::resident_bytes)
    }

    /// The inner error is the failure of all together.
    fn compare(&mut self, task: &Task, traces: &[Trace]) -> Result<Result<Vec<Outcome>, Outcome>, MeasureError> {
        if traces.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        self.prepare(task)?;
        let limit = self.options.limits.candidate * u32::try_from(traces.len()).unwrap_or(u32::MAX);
        let request = Request::Finals { traces: traces.iter().map(Trace::to_string).collect() };
        match self.ask(&request, limit, &mut None) {
            Ok(Reply::Compared(outcomes)) if outcomes.len() == traces.len() => Ok(Ok(outcomes)),
            Ok(Reply::Refused { detail }) => Err(MeasureError::Trace { detail }),
            Ok(_) => Ok(Err(self.lose(Lost::Garbage("an answer to another question".into()), None, limit))),
            Err(Lost::Unsendable(e)) => Err(MeasureError::Trace { detail: e.to_string() }),
            Err(lost) => Ok(Err(self.lose(lost, None, limit))),
        }
    }

    /// Makes sure that there is a worker, and that it is ready for the task.
    fn prepare(&mut self, task: &Task) -> Result<(), MeasureError> {
        if let Some((of, Err(error))) = self.take_answers()
            && of == *task
        {
            return Err(error);
        }
        self.keep_worker()?;
        if self.task.as_ref() == Some(task) {
            return Ok(());
        }
        self.task = None;
        match self.send(&self.preparation(task), self.options.limits.prepare) {
            Ok(()) => self.prepared(task),
            Err(lost) => self.unprepared(lost),
        }
    }

    /// Makes sure that there is a worker.
    fn keep_worker(&mut self) -> Result<(), MeasureError> {
        if self.worker.as_mut().is_some_and(Worker::has_ended) {
            self.worker = None;
        }
        if self.worker.is_none() {
            self.task = None;
            self.start()?;
        }
        Ok(())
    }

    fn preparation(&self, task: &Task) -> Request {
        let (workload, target) = (task.workload.to_string(), task.target.clone());
        Request::Prepare { workload, target, seed: self.options.seed }
    }

    /// Waits for the worker to be ready for the task that it was told of.
    fn prepared(&mut self, task: &Task) -> Result<(), MeasureError> {
        let (limit, stop) = (self.options.limits.prepare, self.options.stop.clone());
        match self.answer(limit, &mut None, stop.as_deref()) {
            Ok(Reply::Prepared) => {
                self.task = Some(task.clone());
                Ok(())
            }
            Ok(Reply::Unprepared { detail }) => Err(MeasureError::Task { detail }),
            Ok(_) => self.unprepared(Lost::Garbage("an answer to another question".into())),
            Err(lost) => self.unprepared(lost),
        }
    }

    /// Gives the worker up, which was to make itself ready for a task.
    fn unprepared(&mut self, lost: Lost) -> Result<(), MeasureError> {
        self.worker = None;
        let detail = match lost {
            Lost::Stopped => return Err(MeasureError::Stopped),
            Lost::Unsendable(e) => e.to_string(),
            Lost::Deadline => {
                format!("its reference result takes longer than {} s", self.options.limits.prepare.as_secs())
            }
            Lost::Garbage(what) => format!("the worker answered nonsense: {what}"),
            Lost::Died { status, last_words } if ran_out_of_memory(status, &last_words) => {
                let allowed = readable(self.options.limits.memory_bytes);
                format!("its reference result needs more memory than there is, or than the {allowed} allowed")
            }
            Lost::Died { status, last_words } => format!("the worker died: {}", obituary(status, &last_words)),
        };
        Err(MeasureError::Task { detail })
    }

    fn start(&mut self) -> Result<(), MeasureError> {
        let Options { worker: program, arguments, space, exact, limits, timing, cache, device, .. } = &self.options;
        let failed = |detail: String| MeasureError::Worker { worker: program.clone(), detail };
        let mut worker = Worker::spawn(program, arguments).map_err(|e| failed(e.to_string()))?;
        let request = Request::Start {
            protocol: PROTOCOL,
            exact: *exact,
            timing: timing.clone(),
            memory_bytes: limits.memory_bytes,
            cache: cache.clone(),
            device: *device,
        };
        let answer = worker.send(&request, limits.start).and_then(|()| worker.receive(limits.start, None));
        match answer {
            Ok(Reply::Started { protocol: PROTOCOL, space: theirs }) if theirs == *space => {
                self.worker = Some(worker);
                Ok(())
            }
            Ok(Reply::Started { protocol, space: theirs }) => {
                let detail = format!("protocol {protocol}, space {theirs}; here protocol {PROTOCOL}, space {space}");
                Err(MeasureError::OtherBuild { worker: program.clone(), detail })
            }
            Ok(_) => Err(failed("it began with another message".into())),
            Err(Lost::Unsendable(e)) => Err(failed(e.to_string())),
            Err(Lost::Stopped) => Err(MeasureError::Stopped),
            Err(Lost::Deadline) => Err(failed(format!("it was silent for {} s", limits.start.as_secs()))),
            Err(Lost::Garbage(what)) => Err(failed(format!("it spoke nonsense: {what}"))),
            Err(Lost::Died { status, last_words }) => Err(failed(obituary(status, &last_words))),
        }
    }

    /// Sends a request and waits for the answer, noting on the way how far the worker has come.
    fn ask(&mut self, request: &Request, limit: Duration, phase: &mut Option<Phase>) -> Result<Reply, Lost> {
        let since = Instant::now();
        self.send(request, limit)?;
        self.answer(limit.saturating_sub(since.elapsed()), phase, None)
    }

    fn send(&mut self, request: &Request, limit: Duration) -> Result<(), Lost> {
        let Some(worker) = &mut self.worker else { return Err(Lost::Garbage("no worker".into())) };
        worker.clear_last_words();
        worker.send(request, limit)
    }

    /// Waits for an answer, unless `stop` is set meanwhile.
    fn answer(&mut self, limit: Duration, phase: &mut Option<Phase>, stop: Option<&AtomicBool>) -> Result<Reply, Lost> {
        let Some(worker) = &mut self.worker else { return Err(Lost::Garbage("no worker".into())) };
        let deadline = Instant::now() + limit;
        loop {
            match worker.receive(deadline.saturating_duration_since(Instant::now()), stop)? {
                Reply::Entered(entered) => *phase = Some(entered),
                reply => return Ok(reply),
            }
        }
    }

    /// Gives the worker up; what happened to it is the candidate's outcome.
    fn lose(&mut self, lost: Lost, phase: Option<Phase>, limit: Duration) -> Outcome {
        self.worker = None;
        let doing = phase.map_or("working", Phase::name);
        match lost {
            Lost::Deadline => {
                let detail = format!("longer than {} s, while {doing}", limit.as_secs_f64());
                Outcome::failed(Failure::Timeout, detail)
            }
            Lost::Died { status, last_words } => {
                let detail = format!("while {doing}: {}", obituary(status, &last_words));
                let cause = if ran_out_of_memory(status, &last_words) { Failure::Memory } else { Failure::Crash };
                Outcome::failed(cause, detail)
            }
            Lost::Garbage(what) => {
                Outcome::failed(Failure::Crash, format!("while {doing}: the worker spoke nonsense: {what}"))
            }
            Lost::Unsendable(e) => Outcome::failed(Failure::Crash, format!("while {doing}: {e}")),
            // nobody stops a candidate
            Lost::Stopped => Outcome::failed(Failure::Timeout, format!("stopped while {doing}")),
        }
    }
}

/// How a worker ended, with what it said, but for a stack trace.
fn obituary(status: ExitStatus, last_words: &str) -> String {
    let ends = STACK_TRACES.iter().filter_map(|words| last_words.find(words)).min().unwrap_or(last_words.len());
    match last_words[..ends].trim_end() {
        "" => describe(status),
        words => format!("{}: {words}", describe(status)),
    }
}

/// How stack traces begin: Rust's, LLVM's, and a hint that there is one.
const STACK_TRACES: [&str; 4] = ["stack backtrace:", "Stack dump:", "PLEASE submit a bug report", "note: run with"];

/// The system kills processes when memory runs out; below our own limit, Rust and LLVM abort and say so.
fn ran_out_of_memory(status: ExitStatus, last_words: &str) -> bool {
    let said = ["memory allocation of", "out of memory", "bad_alloc", "Cannot allocate memory"];
    was_killed(status) || said.iter().any(|words| last_words.contains(words))
}

#[cfg(test)]
mod tests;
