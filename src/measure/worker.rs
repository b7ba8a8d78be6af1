//! The child: takes requests from its standard input, answers on its standard output.

use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};

use super::codes::Codes;
use super::cuda::{CudaBench, CudaCompiled};
use super::faults;
use super::gate::{Compiled, Workbench};
use super::memory::Region;
use super::oracle::OracleCache;
use super::prepared::{Prepared, Ready};
use super::protocol::{self, PROTOCOL, Reply, Request};
use super::timing::Timing;
use crate::codegen;
use crate::space::Space;
use crate::target::{Target, Task};

/// The part of a worker's memory that one task may leave to the next: the reference result needs the rest.
const SPARE_SHARE: u64 = 8;

/// The program behind `tilescribe worker`, which only [`super::Measurer`] starts: serves the rules of the
/// standard space until its standard input ends. The parent says whether the space is exact.
pub fn worker_main() -> ExitCode {
    worker_main_with(Space::standard())
}

/// The same for a space of one's own: a program that adds rules is its own worker, and says so in
/// [`super::Options`].
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
            // the parent reads it as our last words
            tracing::error!("{e}");
            ExitCode::FAILURE
        }
    }
}

struct Session {
    output: File,
    requests: mpsc::Receiver<Request>,
    space: Arc<Space>,
    timing: Timing,
    oracle: OracleCache,
    /// Bytes that one task may leave to the next.
    spare_bytes: usize,
    /// Number of the NVIDIA GPU to measure on.
    device: usize,
    ready: Option<Box<dyn Prepared>>,
    /// What was compiled of any task.
    codes: Codes<Compiled>,
    gpu_codes: Codes<CudaCompiled>,
}

impl Session {
    fn start(mut output: File, requests: mpsc::Receiver<Request>, space: Space) -> io::Result<Session> {
        let Ok(Request::Start { protocol, exact, timing, memory_bytes, cache, device }) = requests.recv() else {
            return Err(io::Error::other("the first request must be `Start`"));
        };
        // the driver of a GPU maps as it likes
        if device.is_none() {
            limit(libc::RLIMIT_DATA, memory_bytes)?;
        }
        protocol::send(&mut output, &Reply::Started { protocol: PROTOCOL, space: space.versions() })?;
        if protocol != PROTOCOL {
            return Err(io::Error::other(format!("the parent speaks protocol {protocol}, we speak {PROTOCOL}")));
        }
        Ok(Session {
            output,
            requests,
            space: Arc::new(space.exact(exact)),
            timing,
            oracle: OracleCache::new(cache).within(memory_bytes),
            spare_bytes: usize::try_from(memory_bytes / SPARE_SHARE).unwrap_or(usize::MAX),
            device: device.unwrap_or(0),
            ready: None,
            codes: Codes::default(),
            gpu_codes: Codes::default(),
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
                    self.ready.iter_mut().for_each(|ready| ready.compile_ahead(&traces));
                    Reply::CompiledAhead
                }
                Request::Measure { trace, incumbent_ns, reference } => {
                    let output = &mut self.output;
                    let mut enter = |phase| protocol::send(output, &Reply::Entered(phase));
                    match &mut self.ready {
                        Some(ready) => ready.measure(&trace, incumbent_ns, reference, &mut enter)?,
                        None => unprepared(),
                    }
                }
                Request::Finals { traces } => {
                    self.ready.as_mut().map_or_else(unprepared, |ready| ready.finals(&traces))
                }
            };
            // what is measured after this would fail, too: our end is the candidate's outcome
            if let Some(reason) = self.ready.as_ref().and_then(|ready| ready.is_broken()) {
                return Err(io::Error::other(reason.to_string()));
            }
            protocol::send(&mut self.output, &reply)?;
        }
        Ok(())
    }

    fn prepare(&mut self, workload: &str, target: Target, seed: u64) -> Result<(), String> {
        // gives the memory of the task before back first, but for some that is used again
        let mut spare = self.ready.take().map_or_else(Vec::new, |ready| ready.into_spare());
        keep_within(&mut spare, self.spare_bytes);
        let workload = workload.parse().map_err(|e| format!("the workload does not parse: {e}"))?;
        let task = Task { workload, target };
        let (space, timing) = (Arc::clone(&self.space), self.timing.clone());
        self.ready = Some(match &task.target {
            Target::Cpu(cpu) => {
                codegen::set_threads(cpu.cores.max(1) as usize);
                let examples = self.oracle.examples(&task.workload, seed).map_err(|e| e.to_string())?;
                let bench = Workbench::new(task.clone(), examples).map_err(|refusal| refusal.detail)?;
                Box::new(Ready::new(space, self.codes.clone(), timing, task, bench.with_spare(spare)))
            }
            Target::Gpu(_) => {
                let expected = self.oracle.expected(&task.workload, seed).map_err(|e| e.to_string())?;
                let bench = CudaBench::new(task.clone(), self.device, expected).map_err(|refusal| refusal.detail)?;
                Box::new(Ready::new(space, self.gpu_codes.clone(), timing, task, bench))
            }
        });
        Ok(())
    }
}

/// As many regions as fit, the largest first: those take longest to be cleared.
fn keep_within(spare: &mut Vec<Region>, mut bytes: usize) {
    spare.sort_by_key(|region| std::cmp::Reverse(region.capacity()));
    spare.retain(|region| {
        let left = bytes.checked_sub(region.capacity());
        bytes = left.unwrap_or(bytes);
        left.is_some()
    });
}

fn unprepared() -> Reply {
    Reply::Refused { detail: "no task is prepared".into() }
}

/// Requests as they come. When the parent is gone, so is the whole process, whatever a kernel is busy with.
///
/// A death signal of the parent would not do: it is sent when the parent's *thread* ends that started the
/// child, and a measurer may move from thread to thread.
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
