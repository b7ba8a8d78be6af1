//! The one way in which commands write files.
//!
//! A file is written beside its place and renamed into it, so that it is the old one or the new one,
//! complete, whatever happens. What stands there is replaced only where it is of the kind that the command
//! writes: no other file, and none that the command reads from, is ever lost to a mistyped name. Devices and
//! pipes are written to as they are.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;
use tilescribe::files::{self, DraftFile};
use tilescribe::model::Checkpoint;
use tilescribe::record::{CorpusError, CorpusReader, Limits, is_of_pools};

use super::exit::CommandError;

/// What a command writes, and how a file of that kind is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Corpus,
    Pools,
    Plan,
    Comparison,
    Report,
    FleetPage,
    Array,
    Trace,
}

/// What tells a file's kind lies within so many bytes: plans have one line for each program.
const HEAD_BYTES: u64 = 4 << 20;

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Corpus => "corpus file",
            Kind::Pools => "file of pools",
            Kind::Plan => "plan",
            Kind::Comparison => "comparison's result",
            Kind::Report => "comparison's report",
            Kind::FleetPage => "page of a fleet",
            Kind::Array => "NumPy file",
            Kind::Trace => "trace of threads",
        }
    }

    /// Whether a file is of this kind, of whatever version.
    fn is_of(self, path: &Path) -> io::Result<bool> {
        let file = files::open(path)?;
        if self == Kind::Corpus {
            let first = CorpusReader::new(BufReader::new(file), Limits::default()).map(|mut entries| entries.next());
            return Ok(matches!(first, Ok(None | Some(Ok(_) | Err(CorpusError::Version { .. })))));
        }
        if self == Kind::Pools {
            return Ok(is_of_pools(BufReader::new(file)));
        }
        let mut head = Vec::new();
        file.take(HEAD_BYTES).read_to_end(&mut head)?;
        let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
        Ok(match self {
            Kind::Corpus | Kind::Pools => false,
            Kind::Plan => serde_json::from_slice::<Value>(line)
                .is_ok_and(|line| ["name", "workload", "trace"].iter().all(|field| line.get(field).is_some())),
            // the fields that `serde_json` writes first
            Kind::Comparison => {
                let text: Vec<u8> = head.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
                text.starts_with(b"{\"target\":\"") && contains(&text, b"\"trials\":")
            }
            Kind::Report => head.starts_with(b"<!doctype html>") && contains(&head, b"<title>Tilescribe: "),
            Kind::FleetPage => head.starts_with(b"<!doctype html>") && contains(&head, b"<title>Tilescribe fleet "),
            Kind::Array => head.starts_with(b"\x93NUMPY"),
            Kind::Trace => head.starts_with(b"{\"traceEvents\":"),
        })
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// A file that a command will write.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    kind: Kind,
}

impl Output {
    /// Makes sure, before anything is computed, that the file may be written. `sources` are the files that
    /// the command reads from.
    ///
    /// # Errors
    /// [`CommandError::Usage`] where something else stands there, or it is one of the sources.
    pub fn new(path: &Path, kind: Kind, sources: &[&Path]) -> Result<Output> {
        let shown = path.display();
        if let Some(source) = sources.iter().find(|source| files::are_same(path, source)) {
            let reason = format!("{} is read from, and cannot be the output {shown}: name another", source.display());
            return Err(CommandError::Usage(reason).into());
        }
        let output = Output { path: path.to_path_buf(), kind };
        output.check()?;
        Ok(output)
    }

    fn check(&self) -> Result<()> {
        let shown = self.path.display();
        let about = match fs::metadata(&self.path) {
            Ok(about) => about,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = files::folder_of(&self.path);
                let reason = || format!("cannot write {shown}: there is no folder {}", folder.display());
                return if folder.is_dir() { Ok(()) } else { Err(CommandError::Usage(reason()).into()) };
            }
            Err(error) => return Err(error).with_context(|| format!("cannot write {shown}")),
        };
        if about.is_dir() {
            return Err(CommandError::Usage(format!("{shown} is a folder: name a file")).into());
        }
        if !about.is_file() || about.len() == 0 {
            return Ok(());
        }
        if self.kind.is_of(&self.path).with_context(|| format!("cannot tell what {shown} is"))? {
            return Ok(());
        }
        let name = self.kind.name();
        let reason = format!("{shown} exists and is not a {name}: it was left as it is. Name another file");
        Err(CommandError::Usage(reason).into())
    }

    /// Writes the file. Where `write` fails, what stood there stays.
    ///
    /// # Errors
    /// What `write` returns, and where the file cannot be written.
    pub fn write<T>(&self, write: impl FnOnce(&mut dyn Write) -> Result<T>) -> Result<T> {
        let cannot_write = || format!("cannot write {}", self.path.display());
        // it may have come into being meanwhile
        self.check()?;
        if fs::metadata(&self.path).is_ok_and(|about| is_stream(&about.file_type())) {
            let mut stream = BufWriter::new(File::options().write(true).open(&self.path).with_context(cannot_write)?);
            let written = write(&mut stream)?;
            stream.flush().with_context(cannot_write)?;
            return Ok(written);
        }
        // a link stays one: the file that it leads to is replaced
        let place = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        let mut draft = BufWriter::new(DraftFile::create_in(files::folder_of(&place)).with_context(cannot_write)?);
        let written = write(&mut draft)?;
        let draft = draft.into_inner().map_err(io::IntoInnerError::into_error).with_context(cannot_write)?;
        draft.replace(&place).with_context(cannot_write)?;
        Ok(written)
    }
}

fn is_stream(kind: &fs::FileType) -> bool {
    kind.is_char_device() || kind.is_block_device() || kind.is_fifo() || kind.is_socket()
}

/// Makes sure, before anything is computed, that a folder may become a checkpoint, or another one: what it
/// holds under the names of a checkpoint's files is only replaced where it is one.
///
/// # Errors
/// [`CommandError::Usage`] where those files are something else's.
pub fn check_checkpoint_folder(folder: &Path) -> Result<()> {
    let shown = folder.display();
    match fs::metadata(folder) {
        Ok(about) if about.is_dir() => {}
        Ok(_) => return Err(CommandError::Usage(format!("{shown} is not a folder: name another")).into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot write {shown}")),
    }
    let there = Checkpoint::file_names().find(|file| fs::symlink_metadata(folder.join(file)).is_ok());
    match there {
        Some(file) if !Checkpoint::is_there(folder) => {
            let reason =
                format!("{shown} holds a {file} and is no checkpoint: it was left as it is. Name another folder");
            Err(CommandError::Usage(reason).into())
        }
        _ => Ok(()),
    }
}
