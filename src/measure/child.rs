//! The parent's end of a worker process: talks to it within deadlines, ends it, and tells how it died.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::protocol::{self, Reply, Request};

/// How much of the child's last words is kept, in bytes: of their beginning, and of their end.
const LAST_WORDS_BYTES: [u64; 2] = [700, 1300];

/// A running worker.
pub(super) struct Worker {
    process: Child,
    input: ChildStdin,
    output: ChildStdout,
    /// Its standard error: a file without a name, so that nobody has to drain it.
    errors: File,
}

/// Why a worker is no longer of use. It must be dropped.
#[derive(Debug)]
pub(super) enum Lost {
    Deadline,
    /// It ended by itself, or was killed by someone else.
    Died {
        status: ExitStatus,
        last_words: String,
    },
    /// It sent what is no message.
    Garbage(String),
    /// Our own message cannot be sent.
    Unsendable(io::Error),
    /// Nobody wants the answer any more.
    Stopped,
}

/// How often it is looked whether an answer is still wanted.
const GLANCE: Duration = Duration::from_millis(100);

impl Worker {
    pub(super) fn spawn(program: &Path, arguments: &[OsString]) -> io::Result<Worker> {
        // appended to, so that cutting off what is old does not leave a hole
        let errors = tempfile::Builder::new().append(true).tempfile()?.into_file();
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors.try_clone()?)
            // Ctrl-C is for the parent, which decides what becomes of the child
            .process_group(0)
            .spawn()?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::Error::other("no pipes to the worker"));
        };
        set_nonblocking(input.as_raw_fd())?;
        set_nonblocking(output.as_raw_fd())?;
        Ok(Worker { process, input, output, errors })
    }

    pub(super) fn send(&mut self, request: &Request, limit: Duration) -> Result<(), Lost> {
        let deadline = Instant::now() + limit;
        let bytes = protocol::frame(request).map_err(Lost::Unsendable)?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match self.input.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(e) => self.wait_unless_lost(&e, self.input.as_raw_fd(), libc::POLLOUT, deadline)?,
            }
        }
        Ok(())
    }

    /// The next message, unless `stop` is set meanwhile.
    pub(super) fn receive(&mut self, limit: Duration, stop: Option<&AtomicBool>) -> Result<Reply, Lost> {
        let deadline = Instant::now() + limit;
        while let Some(stop) = stop {
            if stop.load(Ordering::Relaxed) {
                return Err(Lost::Stopped);
            }
            let glance = deadline.min(Instant::now() + GLANCE);
            if wait_for(self.output.as_raw_fd(), libc::POLLIN, glance) || glance == deadline {
                break;
            }
        }
        let mut length = [0; 4];
        self.fill(&mut length, deadline)?;
        let garbage = |e: &dyn std::fmt::Display| Lost::Garbage(e.to_string());
        let length = protocol::checked_length(length).map_err(|e| garbage(&e))?;
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes, deadline)?;
        serde_json::from_slice(&bytes).map_err(|e| garbage(&e))
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Whether it died without being asked anything.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }

    /// Forgets what the child wrote to its standard error, so that last words are of the last candidate.
    pub(super) fn clear_last_words(&mut self) {
        // a worker whose old words cannot be cut off still works
        let _ = self.errors.set_len(0);
    }

    /// Resident memory of the worker in bytes; `None` where the system does not tell.
    pub(super) fn resident_bytes(&self) -> Option<u64> {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.process.id())).ok()?;
        let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
        Some(pages * super::memory::page_bytes() as u64)
    }

    fn fill(&mut self, mut buffer: &mut [u8], deadline: Instant) -> Result<(), Lost> {
        while !buffer.is_empty() {
            match self.output.read(buffer) {
                Ok(0) => return Err(self.death(deadline)),
                Ok(count) => buffer = &mut buffer[count..],
                Err(e) => self.wait_unless_lost(&e, self.output.as_raw_fd(), libc::POLLIN, deadline)?,
            }
        }
        Ok(())
    }

    fn wait_unless_lost(&mut self, error: &io::Error, fd: RawFd, events: i16, deadline: Instant) -> Result<(), Lost> {
        match error.kind() {
            io::ErrorKind::WouldBlock => match wait_for(fd, events, deadline) {
                true => Ok(()),
                false => Err(Lost::Deadline),
            },
            io::ErrorKind::Interrupted => Ok(()),
            _ => Err(self.death(deadline)),
        }
    }

    /// The pipe is closed: the child has died or is about to. One that closes its pipes and lives on is
    /// killed.
    fn death(&mut self, deadline: Instant) -> Lost {
        loop {
            match self.process.try_wait() {
                Ok(Some(status)) => return Lost::Died { status, last_words: self.last_words() },
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                Ok(None) => return Lost::Deadline,
                Err(e) => return Lost::Garbage(format!("waiting for the worker: {e}")),
            }
        }
    }

    fn last_words(&self) -> String {
        let length = self.errors.metadata().map_or(0, |m| m.len());
        let [head, tail] = LAST_WORDS_BYTES;
        let read = |start: u64, count: u64| {
            let mut bytes = vec![0; count as usize];
            match self.errors.read_exact_at(&mut bytes, start) {
                Ok(()) => String::from_utf8_lossy(&bytes).trim().to_string(),
                Err(_) => String::new(),
            }
        };
        if length <= head + tail {
            return read(0, length);
        }
        // a message, a long stack trace, and perhaps a line after it
        format!("{} ... {}", read(0, head), read(length - tail, tail))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // both fail only for a child that is gone already
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// For people: "signal 11 (segmentation fault)", "exit code 3".
pub(super) fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => match signal_name(signal) {
            Some(name) => format!("signal {signal} ({name})"),
            None => format!("signal {signal}"),
        },
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => "an unknown end".into(),
    }
}

/// Whether the kernel killed it, which it does to processes when memory runs out.
pub(super) fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGKILL)
}

fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        libc::SIGSEGV => "segmentation fault",
        libc::SIGBUS => "bus error",
        libc::SIGILL => "illegal instruction",
        libc::SIGFPE => "arithmetic fault",
        libc::SIGABRT => "abort",
        libc::SIGKILL => "killed",
        libc::SIGTERM => "terminated",
        _ => return None,
    })
}

fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: the descriptor is open, and its flags are plain integers.
    let done = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) >= 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits until reading or writing is possible or has failed; `false` where the deadline comes first.
fn wait_for(fd: RawFd, events: i16, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let mut poll = libc::pollfd { fd, events, revents: 0 };
        // rounded up: a timeout of 0 would spin
        let milliseconds = i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX);
        // SAFETY: one valid entry.
        let ready = unsafe { libc::poll(&raw mut poll, 1, milliseconds) };
        if ready > 0 {
            return true;
        }
    }
}
