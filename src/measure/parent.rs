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
    /// What candidates of the task last measured run in turn with.
    reference: Option<Reference>,
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
        Measurer { options, worker: None, task: None, reference: None }
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
        self.prepare(task)?;
        let limit = self.options.limits.candidate * u32::try_from(traces.len()).unwrap_or(u32::MAX);
        let request = Request::CompileAhead { traces: traces.iter().map(Trace::to_string).collect() };
        if !matches!(self.ask(&request, limit, &mut None), Ok(Reply::CompiledAhead)) {
            self.worker = None;
        }
        Ok(())
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
        if self.worker.as_mut().is_some_and(Worker::has_ended) {
            self.worker = None;
        }
        if self.worker.is_none() {
            self.task = None;
            self.start()?;
        }
        if self.task.as_ref() == Some(task) {
            return Ok(());
        }
        self.task = None;
        let limit = self.options.limits.prepare;
        let request = Request::Prepare {
            workload: task.workload.to_string(),
            target: task.target.clone(),
            seed: self.options.seed,
        };
        let stop = self.options.stop.clone();
        let detail = match self.ask_unless(&request, limit, &mut None, stop.as_deref()) {
            Ok(Reply::Prepared) => {
                self.task = Some(task.clone());
                return Ok(());
            }
            Ok(Reply::Unprepared { detail }) => return Err(MeasureError::Task { detail }),
            Ok(_) => "the worker answered another question".into(),
            Err(Lost::Stopped) => {
                self.worker = None;
                return Err(MeasureError::Stopped);
            }
            Err(Lost::Unsendable(e)) => e.to_string(),
            Err(Lost::Deadline) => format!("its reference result takes longer than {} s", limit.as_secs()),
            Err(Lost::Garbage(what)) => format!("the worker answered nonsense: {what}"),
            Err(Lost::Died { status, last_words }) if ran_out_of_memory(status, &last_words) => {
                let allowed = readable(self.options.limits.memory_bytes);
                format!("its reference result needs more memory than there is, or than the {allowed} allowed")
            }
            Err(Lost::Died { status, last_words }) => format!("the worker died: {}", obituary(status, &last_words)),
        };
        self.worker = None;
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
        self.ask_unless(request, limit, phase, None)
    }

    /// The same, unless `stop` is set meanwhile.
    fn ask_unless(
        &mut self,
        request: &Request,
        limit: Duration,
        phase: &mut Option<Phase>,
        stop: Option<&AtomicBool>,
    ) -> Result<Reply, Lost> {
        let Some(worker) = &mut self.worker else { return Err(Lost::Garbage("no worker".into())) };
        let deadline = Instant::now() + limit;
        worker.clear_last_words();
        worker.send(request, limit)?;
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
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::time::Duration;

    use super::{MeasureError, Measurer, Options};
    use crate::measure::protocol::{PROTOCOL, Phase, Reply, frame};
    use crate::outcome::{Failure, Outcome};
    use crate::space::{Space, Trace};
    use crate::target::{Architecture, Cpu, Task};

    fn task() -> Task {
        let target = Cpu {
            architecture: Architecture::X86_64,
            cpu: "x86-64".into(),
            features: Vec::new(),
            vector_bits: 128,
            vector_registers: 16,
            cores: 1,
            l1_bytes: 32 << 10,
            l2_bytes: 1 << 20,
            l3_bytes: 0,
        };
        Task { workload: "input t0 4\nout t1 4 exp t0 a\n".parse().unwrap(), target: target.into() }
    }

    fn started() -> Reply {
        Reply::Started { protocol: PROTOCOL, space: Space::standard().versions() }
    }

    /// A measurer whose worker is a shell script: it sends these messages, unasked, and a moment later, when
    /// it has been asked, runs `after`. Each start leaves a line with the process' id in `starts`.
    fn scripted(folder: &Path, messages: &[Reply], after: &str) -> Measurer {
        let bytes: Vec<u8> = messages.iter().flat_map(|message| frame(message).unwrap()).collect();
        std::fs::write(folder.join("messages"), bytes).unwrap();
        let script = folder.join("worker");
        let text =
            format!("#!/bin/sh\ncd '{}'\necho $$ >> starts\ncat messages\nsleep 0.1\n{after}\n", folder.display());
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut options = Options::new(script, &Space::standard());
        options.limits.start = Duration::from_secs(5);
        options.limits.prepare = Duration::from_secs(5);
        options.limits.candidate = Duration::from_secs(1);
        Measurer::new(options)
    }

    fn starts(folder: &Path) -> Vec<i32> {
        let text = std::fs::read_to_string(folder.join("starts")).unwrap();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    #[test]
    fn what_is_no_worker_is_an_error() {
        let start_error = |messages: &[Reply], after: &str| {
            let folder = tempfile::tempdir().unwrap();
            let mut measurer = scripted(folder.path(), messages, after);
            measurer.options.limits.start = Duration::from_millis(500);
            measurer.measure(&task(), &Trace::default(), None).unwrap_err()
        };
        let check = |error: MeasureError, words: &str| {
            assert!(matches!(error, MeasureError::Worker { .. }), "{error:?}");
            assert!(error.to_string().contains(words), "{error}");
        };
        check(start_error(&[], "echo no such thing >&2; exit 3"), "exit code 3: no such thing");
        check(start_error(&[], "echo hello, I am no worker at all; sleep 9"), "nonsense");
        check(start_error(&[], "sleep 9"), "silent");
        check(start_error(&[Reply::Prepared], "sleep 9"), "another message");
        let other = Reply::Started { protocol: PROTOCOL + 1, space: String::new() };
        assert!(matches!(start_error(&[other], "sleep 9"), MeasureError::OtherBuild { .. }));
        let other = Reply::Started { protocol: PROTOCOL, space: "another".into() };
        assert!(matches!(start_error(&[other], "sleep 9"), MeasureError::OtherBuild { .. }));
        let mut missing = Measurer::new(Options::new("/nonexistent/worker".into(), &Space::standard()));
        check(missing.measure(&task(), &Trace::default(), None).unwrap_err(), "No such file");
    }

    #[test]
    fn a_lost_worker_is_the_candidates_outcome() {
        let ready = || vec![started(), Reply::Prepared];
        let checking = || vec![started(), Reply::Prepared, Reply::Entered(Phase::Check)];
        let cases = [
            (ready(), "exec sleep 99", Failure::Timeout, "longer than 1"),
            (checking(), "exec sleep 99", Failure::Timeout, "checking"),
            (checking(), "kill -SEGV $$", Failure::Crash, "checking: signal 11 (segmentation fault)"),
            (ready(), "echo the reason >&2; exit 1", Failure::Crash, "exit code 1: the reason"),
            (ready(), "printf 'why\\nstack backtrace:\\n 0: f' >&2; exit 1", Failure::Crash, "exit code 1: why"),
            (ready(), "exec >&-; sleep 99", Failure::Timeout, "working"),
            (ready(), "kill -KILL $$", Failure::Memory, "signal 9"),
            (ready(), "echo LLVM ERROR: out of memory >&2; kill -ABRT $$", Failure::Memory, "signal 6"),
            (ready(), "echo memory allocation of 5 bytes failed >&2; kill -ABRT $$", Failure::Memory, "5 bytes"),
            (ready(), "echo some text that is no message; sleep 99", Failure::Crash, "nonsense"),
            (ready(), "printf '\\377\\377\\377\\377'; sleep 99", Failure::Crash, "4294967295 bytes"),
            (vec![started(), Reply::Prepared, Reply::Prepared], "sleep 99", Failure::Crash, "another question"),
        ];
        for (messages, after, cause, words) in cases {
            let folder = tempfile::tempdir().unwrap();
            let mut measurer = scripted(folder.path(), &messages, after);
            for round in 1..=2 {
                let outcome = measurer.measure(&task(), &Trace::default(), None).unwrap();
                let Outcome::Failed { cause: found, detail } = outcome else { panic!("{after}: {outcome:?}") };
                assert_eq!(found, cause, "{after}: {detail}");
                assert!(detail.contains(words) && !detail.contains("backtrace"), "{after}: {detail}");
                assert_eq!(starts(folder.path()).len(), round, "{after}: each round needs a worker of its own");
            }
            for process in starts(folder.path()) {
                // SAFETY: signal 0 only asks.
                assert_eq!(unsafe { libc::kill(process, 0) }, -1, "{after}: process {process} is still there");
            }
        }
    }

    #[test]
    fn a_warm_worker_serves_again() {
        let folder = tempfile::tempdir().unwrap();
        let timed = Outcome::Timed { times_ns: vec![5, 4], compile_us: 3 };
        let messages = [
            started(),
            Reply::Prepared,
            Reply::Entered(Phase::Time),
            Reply::Measured(timed.clone()),
            Reply::Measured(Outcome::failed(Failure::DeadEnd, "no")),
            Reply::Refused { detail: "stale".into() },
            Reply::Compared(vec![timed.clone()]),
        ];
        let mut measurer = scripted(folder.path(), &messages, "exec sleep 99");
        let outcomes = measurer.measure_all(&task(), &[Trace::default(), Trace::default()]).unwrap();
        assert_eq!(outcomes, [timed.clone(), Outcome::failed(Failure::DeadEnd, "no")]);
        let error = measurer.measure(&task(), &Trace::default(), None).unwrap_err();
        assert!(matches!(error, MeasureError::Trace { .. }), "{error:?}");
        assert_eq!(measurer.finals(&task(), &[Trace::default()]).unwrap(), [timed]);
        assert_eq!(starts(folder.path()).len(), 1);
    }

    #[test]
    fn an_unmeasurable_task_is_an_error() {
        let unprepared = Reply::Unprepared { detail: "too large".into() };
        let died = "echo memory allocation of 9 bytes failed >&2; echo stack backtrace: >&2; kill -ABRT $$";
        for (messages, after, words) in [
            (vec![started(), unprepared], "exec sleep 99", "too large"),
            (vec![started()], "echo too large >&2", "too large"),
            (vec![started()], died, "needs more memory than there is, or than the 16.0 GiB allowed"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let error =
                scripted(folder.path(), &messages, after).measure(&task(), &Trace::default(), None).unwrap_err();
            assert!(matches!(&error, MeasureError::Task { detail } if detail.ends_with(words)), "{error:?}");
        }
    }

    #[test]
    fn a_fatal_finalist_fails_alone() {
        let folder = tempfile::tempdir().unwrap();
        let timed = |time| Outcome::Timed { times_ns: vec![time], compile_us: 3 };
        // all together kill it; then one alone; the others survive, alone and in the second final
        let rounds = [
            vec![started(), Reply::Prepared],
            vec![started(), Reply::Prepared, Reply::Measured(timed(1))],
            vec![started(), Reply::Prepared, Reply::Measured(timed(2)), Reply::Compared(vec![timed(3), timed(4)])],
        ];
        for (number, messages) in rounds.iter().enumerate() {
            let bytes: Vec<u8> = messages.iter().flat_map(|message| frame(message).unwrap()).collect();
            std::fs::write(folder.path().join(format!("round{}", number + 1)), bytes).unwrap();
        }
        let after = "n=$(wc -l < starts)\ncat round$n\n[ $n = 3 ] && exec sleep 99\nsleep 0.1\nkill -SEGV $$";
        let mut measurer = scripted(folder.path(), &[], after);
        let traces = vec![Trace::default(); 3];
        let outcomes = measurer.finals(&task(), &traces).unwrap();
        assert_eq!((&outcomes[0], &outcomes[2]), (&timed(3), &timed(4)));
        assert_eq!(outcomes[1].failure(), Some(Failure::Crash));
    }
}
