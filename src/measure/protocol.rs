//! What parent and child say to each other: JSON in frames, each after its length in four bytes,
//! little-endian.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::timing::Timing;
use crate::outcome::Outcome;
use crate::target::Target;

/// Raised with every change of a message, so that a worker of another build is told apart.
pub(super) const PROTOCOL: u32 = 7;

/// The longest message. Texts of tasks and traces stay far below.
pub(super) const MAX_FRAME_BYTES: u32 = 16 << 20;

/// From the parent.
#[derive(Serialize, Deserialize)]
pub(super) enum Request {
    /// First, and once.
    Start {
        protocol: u32,
        /// Whether the space leaves out algorithms with larger rounding errors.
        exact: bool,
        timing: Timing,
        /// Maximum memory of the child, in bytes.
        memory_bytes: u64,
        /// Folder for the oracle's outputs.
        cache: Option<PathBuf>,
        /// Number of the NVIDIA GPU to measure on; `None` where nothing is measured on one.
        device: Option<usize>,
    },
    /// The task of the candidates that follow.
    Prepare { workload: String, target: Target, seed: u64 },
    /// Compile candidates on all cores, before they are measured one by one.
    CompileAhead { traces: Vec<String> },
    Measure {
        trace: String,
        incumbent_ns: Option<u64>,
        /// A correct program to run in turn with it, and its known time in nanoseconds.
        reference: Option<(String, u64)>,
    },
    /// Compare: all in turn, again and again.
    Finals { traces: Vec<String> },
}

/// From the child.
#[derive(Serialize, Deserialize)]
pub(super) enum Reply {
    /// To `Start`.
    Started { protocol: u32, space: String },
    /// To `Prepare`.
    Prepared,
    /// To `Prepare`, where inputs or the oracle's outputs cannot be had.
    Unprepared { detail: String },
    /// To `CompileAhead`, whatever became of the candidates.
    CompiledAhead,
    /// On the way to `Measured`: says what was going on when the child dies.
    Entered(Phase),
    /// To `Measure`.
    Measured(Outcome),
    /// To `Finals`: an outcome for each trace.
    Compared(Vec<Outcome>),
    /// To `Measure` and `Finals`: a trace does not fit the space, or ends too early.
    Refused { detail: String },
}

/// What the child does to a candidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Phase {
    Compile,
    Check,
    Time,
}

impl Phase {
    pub(super) fn name(self) -> &'static str {
        match self {
            Phase::Compile => "compiling",
            Phase::Check => "checking",
            Phase::Time => "timing",
        }
    }
}

/// A message as it is sent.
///
/// # Errors
/// `InvalidInput` where it is longer than [`MAX_FRAME_BYTES`].
pub(super) fn frame<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = u32::try_from(bytes.len() - 4).ok().filter(|length| *length <= MAX_FRAME_BYTES);
    let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"))?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

/// # Errors
/// As [`frame`], and what the writer says.
pub(super) fn send<T: Serialize>(writer: &mut impl Write, message: &T) -> io::Result<()> {
    writer.write_all(&frame(message)?)?;
    writer.flush()
}

/// Waits for a message; `None` where the stream ends between two.
///
/// # Errors
/// `InvalidData` for what is no message of ours, and what the reader says.
pub(super) fn receive<T: DeserializeOwned>(reader: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match reader.read_exact(&mut length[..1]) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    reader.read_exact(&mut length[1..])?;
    let length = checked_length(length)?;
    let mut bytes = Vec::new();
    reader.take(u64::from(length)).read_to_end(&mut bytes)?;
    if bytes.len() < length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// # Errors
/// `InvalidData` where no message is that long.
pub(super) fn checked_length(bytes: [u8; 4]) -> io::Result<u32> {
    let length = u32::from_le_bytes(bytes);
    if length > MAX_FRAME_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes")));
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::{Phase, Reply, frame, receive};

    #[test]
    fn messages_survive_and_damage_is_refused() {
        let bytes = frame(&Reply::Entered(Phase::Check)).unwrap();
        assert!(matches!(receive(&mut bytes.as_slice()).unwrap(), Some(Reply::Entered(Phase::Check))));
        assert!(receive::<Reply>(&mut [].as_slice()).unwrap().is_none());
        for cut in 1..bytes.len() {
            assert!(receive::<Reply>(&mut &bytes[..cut]).is_err(), "cut at {cut}");
        }
        assert!(receive::<Reply>(&mut b"\xff\xff\xff\xff{}".as_slice()).is_err());
        assert!(receive::<Reply>(&mut b"\x02\0\0\0{}".as_slice()).is_err());
    }
}
