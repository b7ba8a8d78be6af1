//! The child: takes requests from its standard input, answers on its standard output.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};

use super::faults;
use super::gate::{Compiled, Loaded, Refusal, Workbench};
use super::oracle::OracleCache;
use super::protocol::{self, PROTOCOL, Phase, Reply, Request};
use super::timing::Timing;
use crate::codegen;
use crate::nest::Nest;
use crate::outcome::{Failure, Outcome};
use crate::space::{Next, Space, Trace};
use crate::target::{Target, Task};

/// The program behind `tilescribe worker`, which only [`super::Measurer`] starts: serves the standard space until its standard input ends.
pub fn worker_main() -> ExitCode {
    worker_main_with(Space::standard())
}

/// The same for a space of one's own: a program that adds rules is its own worker, and says so in [`super::Options`].
pub fn worker_main_with(space: Space) -> ExitCode {
    let serve = move || -> io::Result<()> {
        // kernels and libraries may print what they like: it goes to the standard error
        let (input, output) = take_over_standard_streams()?;
        faults::report_faults();
        limit(libc::RLIMIT_CORE, 0)?;
        let requests = read_in_background(input);
        Session::start(output, requests, space)?.serve()
    };
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // to the parent, which reads it as our last words
            tracing::error!("{e}");
            ExitCode::FAILURE
        }
    }
}

struct Session {
    output: File,
    requests: mpsc::Receiver<Request>,
    space: Space,
    timing: Timing,
    oracle: OracleCache,
    bench: Option<(Task, Workbench)>,
    /// What candidates run in turn with, and its trace.
    reference: Option<(String, Loaded)>,
    /// By trace: what was compiled ahead.
    ahead: HashMap<String, Result<Compiled, Refusal>>,
}

/// Why a trace leads to no nest.
enum NoNest {
    Refused(String),
    DeadEnd(String),
}

impl Session {
    fn start(mut output: File, requests: mpsc::Receiver<Request>, space: Space) -> io::Result<Session> {
        let Ok(Request::Start { protocol, timing, memory_bytes, cache }) = requests.recv() else {
            return Err(io::Error::other("the first request must be `Start`"));
        };
        limit(libc::RLIMIT_DATA, memory_bytes)?;
        protocol::send(&mut output, &Reply::Started { protocol: PROTOCOL, space: space.version() })?;
        if protocol != PROTOCOL {
            return Err(io::Error::other(format!("the parent speaks protocol {protocol}, we speak {PROTOCOL}")));
        }
        Ok(Session {
            output,
            requests,
            space,
            timing,
            oracle: OracleCache::new(cache),
            bench: None,
            reference: None,
            ahead: HashMap::new(),
        })
    }

    fn serve(mut self) -> io::Result<()> {
        while let Ok(request) = self.requests.recv() {
            let reply = match request {
                Request::Start { .. } => return Err(io::Error::other("a second `Start`")),
                Request::Prepare { workload, target, seed } => match self.prepare(&workload, target, seed) {
                    Ok(()) => Reply::Prepared,
                    Err(detail) => Reply::Unprepared { detail },
                },
                Request::CompileAhead { traces } => {
                    self.compile_ahead(traces);
                    Reply::CompiledAhead
                }
                Request::Measure { trace, incumbent_ns, reference } => self.measure(&trace, incumbent_ns, reference)?,
                Request::Finals { traces } => self.finals(&traces)?,
            };
            protocol::send(&mut self.output, &reply)?;
        }
        Ok(())
    }

    fn prepare(&mut self, workload: &str, target: Target, seed: u64) -> Result<(), String> {
        // gives the memory of the task before back first
        (self.bench, self.reference) = (None, None);
        self.ahead.clear();
        let workload = workload.parse().map_err(|e| format!("the workload does not parse: {e}"))?;
        codegen::set_threads(target.cores.max(1) as usize);
        let task = Task { workload, target };
        let expected = self.oracle.expected(&task.workload, seed).map_err(|e| e.to_string())?;
        let bench = Workbench::new(task.clone(), expected).map_err(|refusal| refusal.detail)?;
        self.bench = Some((task, bench));
        Ok(())
    }

    /// Compiles on all cores what will be measured next: measuring wants the whole machine, compiling one candidate does not.
    /// What does not fit the space is left for [`Session::measure`] to refuse.
    fn compile_ahead(&mut self, traces: Vec<String>) {
        self.ahead.clear();
        let Some((task, _)) = &self.bench else { return };
        let (space, next) = (&self.space, AtomicUsize::new(0));
        let compiled = Mutex::new(HashMap::new());
        std::thread::scope(|scope| {
            for _ in 0..task.target.cores.max(1) {
                scope.spawn(|| {
                    while let Some(trace) = traces.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Ok(nest) = nest_of(space, task, trace) {
                            let result = Compiled::new(nest, &task.target);
                            compiled.lock().unwrap_or_else(PoisonError::into_inner).insert(trace.clone(), result);
                        }
                    }
                });
            }
        });
        self.ahead = compiled.into_inner().unwrap_or_else(PoisonError::into_inner);
    }

    /// Makes `trace` the reference, if it is not; one that does not pass the gate, for lack of memory, is done without.
    fn refer_to(&mut self, trace: &str) {
        let Some((task, bench)) = &mut self.bench else { return };
        if self.reference.as_ref().is_some_and(|(current, _)| current == trace) {
            return;
        }
        if let Some((_, loaded)) = self.reference.take() {
            bench.unload(loaded);
        }
        let Ok(nest) = nest_of(&self.space, task, trace) else { return };
        let Ok(mut loaded) = bench.load(&nest) else { return };
        match bench.check(&mut loaded) {
            Ok(()) => self.reference = Some((trace.to_string(), loaded)),
            Err(_) => bench.unload(loaded),
        }
    }

    fn measure(
        &mut self,
        trace: &str,
        incumbent_ns: Option<u64>,
        reference: Option<(String, u64)>,
    ) -> io::Result<Reply> {
        if let Some((reference, _)) = &reference {
            self.refer_to(reference);
        }
        let Some((task, bench)) = &mut self.bench else {
            return Ok(Reply::Refused { detail: "no task is prepared".into() });
        };
        protocol::send(&mut self.output, &Reply::Entered(Phase::Compile))?;
        let compiled = match self.ahead.remove(trace) {
            Some(compiled) => compiled,
            None => match nest_of(&self.space, task, trace) {
                Ok(nest) => Compiled::new(nest, &task.target),
                Err(NoNest::Refused(detail)) => return Ok(Reply::Refused { detail }),
                Err(NoNest::DeadEnd(reason)) => {
                    return Ok(Reply::Measured(Outcome::failed(Failure::DeadEnd, reason)));
                }
            },
        };
        let mut loaded = match compiled.and_then(|compiled| bench.place(compiled)) {
            Ok(loaded) => loaded,
            Err(refusal) => return Ok(Reply::Measured(refusal.into())),
        };
        protocol::send(&mut self.output, &Reply::Entered(Phase::Check))?;
        let mut result = bench.check(&mut loaded).map(|()| None);
        if result.is_ok() {
            protocol::send(&mut self.output, &Reply::Entered(Phase::Time))?;
            result = {
                let in_turn = self.reference.as_mut().map(|(_, loaded)| loaded).zip(reference.map(|(_, ns)| ns));
                bench.time(&mut loaded, &self.timing, incumbent_ns, in_turn).map(Some)
            };
        }
        bench.unload(loaded);
        Ok(Reply::Measured(match result {
            Ok(Some(outcome)) => outcome,
            Ok(None) => Outcome::failed(Failure::Compile, "checked, but not timed"),
            Err(refusal) => refusal.into(),
        }))
    }

    fn finals(&mut self, traces: &[String]) -> io::Result<Reply> {
        let Some((task, bench)) = &mut self.bench else {
            return Ok(Reply::Refused { detail: "no task is prepared".into() });
        };
        let mut outcomes: Vec<Option<Outcome>> = vec![None; traces.len()];
        let mut finalists: Vec<(usize, Loaded)> = Vec::new();
        for (at, trace) in traces.iter().enumerate() {
            let checked = match nest_of(&self.space, task, trace) {
                Err(NoNest::Refused(detail)) => return Ok(Reply::Refused { detail }),
                Err(NoNest::DeadEnd(detail)) => Err(Refusal { cause: Failure::DeadEnd, detail }),
                Ok(nest) => bench.load(&nest).and_then(|mut loaded| bench.check(&mut loaded).map(|()| loaded)),
            };
            match checked {
                Ok(loaded) => finalists.push((at, loaded)),
                Err(refusal) => outcomes[at] = Some(refusal.into()),
            }
        }
        let (places, mut kernels): (Vec<usize>, Vec<Loaded>) = finalists.into_iter().unzip();
        for (at, outcome) in places.into_iter().zip(bench.time_in_turn(&mut kernels, &self.timing)) {
            outcomes[at] = Some(outcome);
        }
        kernels.into_iter().for_each(|loaded| bench.unload(loaded));
        Ok(Reply::Compared(outcomes.into_iter().flatten().collect()))
    }
}

fn nest_of(space: &Space, task: &Task, trace: &str) -> Result<Nest, NoNest> {
    let trace: Trace = trace.parse().map_err(|e| NoNest::Refused(format!("{e}")))?;
    match space.next(task, &trace) {
        Ok(Next::Done(nest)) => Ok(nest),
        Ok(Next::DeadEnd(reason)) => Err(NoNest::DeadEnd(reason.0)),
        Ok(Next::Choose(decision)) => {
            Err(NoNest::Refused(format!("the trace ends where `{}` is asked", decision.site)))
        }
        Err(stale) => Err(NoNest::Refused(stale.to_string())),
    }
}

/// Requests as they come. When the parent is gone, so is the whole process, whatever a kernel is busy with.
///
/// A death signal of the parent would not do: it is sent when the parent's *thread* ends that started the child, and a measurer may
/// move from thread to thread.
fn read_in_background(mut input: File) -> mpsc::Receiver<Request> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let code = loop {
            match protocol::receive(&mut input) {
                Ok(Some(request)) => {
                    if sender.send(request).is_err() {
                        break 0;
                    }
                }
                Ok(None) => break 0,
                Err(_) => break 1,
            }
        };
        // SAFETY: ends the process without running anything else: a kernel may hold any lock.
        unsafe { libc::_exit(code) }
    });
    receiver
}

/// Keeps the pipes to the parent for ourselves: afterwards 0 reads nothing, and 1 is the standard error.
fn take_over_standard_streams() -> io::Result<(File, File)> {
    let duplicate = |fd: libc::c_int| -> io::Result<File> {
        // SAFETY: a fresh descriptor, owned by the file.
        match unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) } {
            copy if copy >= 0 => Ok(unsafe { File::from_raw_fd(copy) }),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let (input, output) = (duplicate(libc::STDIN_FILENO)?, duplicate(libc::STDOUT_FILENO)?);
    let nothing = File::open("/dev/null")?;
    // SAFETY: all descriptors are open.
    let done = unsafe {
        libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&nothing), libc::STDIN_FILENO) >= 0
            && libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) >= 0
    };
    if done { Ok((input, output)) } else { Err(io::Error::last_os_error()) }
}

/// Lowers a limit of this process.
fn limit(resource: libc::__rlimit_resource_t, value: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: a valid structure.
    match unsafe { libc::setrlimit(resource, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
