//! Files of others, opened with care: nothing here waits for a pipe, reads a device, or takes more bytes than
//! such a file can have.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file to read it.
///
/// # Errors
/// The system's, and [`io::ErrorKind::InvalidInput`] for a pipe, a device or a socket, which might never end.
pub fn open(path: &Path) -> io::Result<File> {
    refuse_irregular(&fs::metadata(path)?)?;
    // what was a file a moment ago may be a pipe now: opening one without a writer must not wait either
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    refuse_irregular(&file.metadata()?)?;
    Ok(file)
}

fn refuse_irregular(about: &fs::Metadata) -> io::Result<()> {
    let kind = about.file_type();
    let what = match kind {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_dir() => return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder")),
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}, not a regular file")))
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// As [`open`], and [`io::ErrorKind::InvalidData`] for a file that is larger.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let reason = format!("it is larger than {limit} bytes, which no such file is");
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    Ok(bytes)
}

/// Reads a text of at most `limit` bytes.
///
/// # Errors
/// As [`read`], and [`io::ErrorKind::InvalidData`] for bytes that are no UTF-8.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    let bytes = read(path, limit)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no text (UTF-8)"))
}
