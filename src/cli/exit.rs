//! From errors to exit codes: the one place that says which error is whose fault.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use anyhow::{Error, Result};
use thiserror::Error;
use tilescribe::artifact::ArtifactError;
use tilescribe::codegen::CodegenError;
use tilescribe::graph::ImportError;
use tilescribe::record::{CorpusError, StoreError};
use tilescribe::target::TargetError;

pub const SUCCESS: u8 = 0;
pub const BUG: u8 = 1;
pub const USAGE: u8 = 2;
pub const ENVIRONMENT: u8 = 3;

/// What goes wrong in the command line itself.
#[derive(Debug, Error)]
pub enum CommandError {
    /// Arguments or files that make no sense.
    #[error("{0}")]
    Usage(String),
    /// Something that the machine should have.
    #[error("{0}")]
    Environment(String),
}

/// Runs a command and turns what it returns into an exit code; a panic is a bug of ours.
pub fn guard(command: impl FnOnce() -> Result<()>) -> ExitCode {
    match catch_unwind(AssertUnwindSafe(command)) {
        Ok(Ok(())) => ExitCode::from(SUCCESS),
        Ok(Err(error)) => {
            eprintln!("error: {}", render(&error));
            ExitCode::from(code(&error))
        }
        // the panic's message has been printed
        Err(_) => {
            eprintln!("error: this is a bug of Tilescribe; please report it with the command and the lines above");
            ExitCode::from(BUG)
        }
    }
}

/// A reader that goes away (`tilescribe tasks net.onnx | head`) ends the program silently, as it does for other tools.
pub fn default_broken_pipes() {
    // SAFETY: no other thread runs yet, and the default action needs no handler.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

/// Context and causes in one line, without saying anything twice.
fn render(error: &Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// The exit code of an error: that of the outermost cause that is known.
fn code(error: &Error) -> u8 {
    error.chain().find_map(known).unwrap_or(BUG)
}

fn known(cause: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(error) = cause.downcast_ref::<CommandError>() {
        return Some(match error {
            CommandError::Usage(_) => USAGE,
            CommandError::Environment(_) => ENVIRONMENT,
        });
    }
    if let Some(error) = cause.downcast_ref::<ArtifactError>() {
        return Some(artifact(error));
    }
    if let Some(error) = cause.downcast_ref::<CodegenError>() {
        return Some(codegen(error));
    }
    if let Some(error) = cause.downcast_ref::<ImportError>() {
        return Some(import(error));
    }
    if let Some(error) = cause.downcast_ref::<StoreError>() {
        return Some(store(error));
    }
    if cause.is::<CorpusError>() || cause.is::<TargetError>() {
        return Some(USAGE);
    }
    cause.downcast_ref::<io::Error>().map(file)
}

fn import(error: &ImportError) -> u8 {
    match error {
        ImportError::Read { source, .. } => file(source),
        _ => USAGE,
    }
}

fn store(error: &StoreError) -> u8 {
    match error {
        StoreError::Foreign { .. } | StoreError::Version { .. } | StoreError::Corrupt { .. } | StoreError::Corpus(_) => USAGE,
        StoreError::DiskFull { .. } | StoreError::Locked { .. } => ENVIRONMENT,
        StoreError::Access { source, .. } => file(source),
        StoreError::Database { .. } => BUG,
    }
}

fn codegen(error: &CodegenError) -> u8 {
    match error {
        CodegenError::Malformed(_) | CodegenError::Internal(_) => BUG,
        CodegenError::Unsupported(_) | CodegenError::Limit(_) | CodegenError::Target(_) => USAGE,
        CodegenError::Environment(_) => ENVIRONMENT,
    }
}

fn artifact(error: &ArtifactError) -> u8 {
    match error {
        ArtifactError::Name(_)
        | ArtifactError::Occupied(_)
        | ArtifactError::Invalid { .. }
        | ArtifactError::Input(_)
        | ArtifactError::OtherArchitecture { .. } => USAGE,
        ArtifactError::Linker(_) | ArtifactError::Machine(_) => ENVIRONMENT,
        ArtifactError::Write { source, .. } | ArtifactError::Read { source, .. } => file(source),
        ArtifactError::Codegen(error) => codegen(error),
        ArtifactError::Internal(_) => BUG,
    }
}

/// A file that is not there is the user's mistake; a disk that is full is the environment's.
fn file(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => USAGE,
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput => USAGE,
        _ => ENVIRONMENT,
    }
}
