//! From errors to exit codes: the one place that says which error is whose fault.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use anyhow::{Context, Error, Result};
use serde_json::{Map, Value, json};
use thiserror::Error;
use tilescribe::artifact::{ArtifactError, RuntimeError};
use tilescribe::codegen::CodegenError;
use tilescribe::fleet::FleetError;
use tilescribe::graph::{ImportError, UnsupportedNode};
use tilescribe::measure::MeasureError;
use tilescribe::measure::cuda::NoCuda;
use tilescribe::model::{CheckpointError, ModelError, SourceError};
use tilescribe::propose::ProposeError;
use tilescribe::record::{CorpusError, PoolsError, StoreError, WorkloadsError};
use tilescribe::target::TargetError;
use tilescribe::tune::TuneError;
use tilescribe::tune::compare::{CompareError, LogError};
use tilescribe::tune::plan::PlanError;
use tilescribe::tune::replay::ReplayError;

use super::messages;

pub const SUCCESS: u8 = 0;
pub const BUG: u8 = 1;
pub const USAGE: u8 = 2;
pub const ENVIRONMENT: u8 = 3;
pub const NOTHING_FOUND: u8 = 4;
pub const INTERRUPTED: u8 = 130;

/// What goes wrong in the command line itself.
#[derive(Debug, Error)]
pub enum CommandError {
    /// Arguments or files that make no sense.
    #[error("{0}")]
    Usage(String),
    /// Something that the machine should have.
    #[error("{0}")]
    Environment(String),
    #[error("no correct program was found in the budget for {0}")]
    NothingFound(String),
    #[error("interrupted; everything that was measured is kept")]
    Interrupted,
    #[error(
        "interrupted; everything that was measured is kept: the same command goes on from there, and with \
         --trials-per-task 0 it makes an artifact of what was found"
    )]
    SearchInterrupted,
}

/// Runs a command and turns what it returns into an exit code; a panic is a bug of ours.
pub fn guard(command: impl FnOnce() -> Result<()>) -> ExitCode {
    match catch_unwind(AssertUnwindSafe(command)) {
        Ok(Ok(())) => ExitCode::from(SUCCESS),
        Ok(Err(error)) => {
            let code = code(&error);
            messages::error(&render(&error), &about(&error, code));
            ExitCode::from(code)
        }
        // the panic's message has been printed
        Err(_) => {
            eprintln!("error: this is a bug of Tilescribe; please report it with the command and the lines above");
            ExitCode::from(BUG)
        }
    }
}

/// Arguments that make no sense, for a program that drives this one.
pub fn refuse(text: &str) -> ExitCode {
    let about = [("blame", "input"), ("cause", "arguments")].map(|(field, value)| (field.to_string(), json!(value)));
    let text = text.trim().trim_start_matches("error: ");
    messages::error(text, &Map::from_iter(about));
    ExitCode::from(USAGE)
}

/// A reader that goes away (`tilescribe tasks net.onnx | head`) ends the program silently, as it does for
/// other tools; a file that grows beyond the user's limit is an error that names the file, and no silent end.
pub fn prepare_signals() {
    // SAFETY: no other thread runs yet, and neither action needs a handler.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Ctrl-C sets the flag, as SIGTERM does, which schedulers send, and SIGHUP of a terminal that goes away; the
/// second one ends the program at once.
///
/// # Errors
/// Where the system lets nobody listen.
pub fn stop_on_interrupt() -> Result<&'static Arc<AtomicBool>> {
    static STOPPED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
    static LISTENING: AtomicBool = AtomicBool::new(false);
    if LISTENING.swap(true, Ordering::Relaxed) {
        return Ok(&STOPPED);
    }
    let handler = || {
        if STOPPED.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(INTERRUPTED));
        }
    };
    // SAFETY: asks for the action and changes it back to what it was, before another thread could need it.
    let hang_up = unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
    ctrlc::set_handler(handler).context("cannot listen to Ctrl-C")?;
    if hang_up == libc::SIG_IGN {
        // `nohup` wants the run to outlive its terminal
        // SAFETY: ignoring needs no handler.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    }
    Ok(&STOPPED)
}

/// Context and causes in one line, without saying anything twice.
fn render(error: &Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if cause.contains(&text) {
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
            CommandError::NothingFound(_) => NOTHING_FOUND,
            CommandError::Interrupted | CommandError::SearchInterrupted => INTERRUPTED,
        });
    }
    if let Some(error) = cause.downcast_ref::<FleetError>() {
        return Some(fleet(error));
    }
    if let Some(error) = cause.downcast_ref::<ArtifactError>() {
        return Some(artifact(error));
    }
    if let Some(error) = cause.downcast_ref::<RuntimeError>() {
        return Some(runtime(error));
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
    if let Some(error) = cause.downcast_ref::<TuneError>() {
        return Some(tune(error));
    }
    if let Some(error) = cause.downcast_ref::<CompareError>() {
        return Some(match error {
            CompareError::Tune(error) => tune(error),
            CompareError::Log(error) => log(error),
            CompareError::Checkpoint(error) => checkpoint(error),
        });
    }
    if let Some(error) = cause.downcast_ref::<LogError>() {
        return Some(log(error));
    }
    if let Some(error) = cause.downcast_ref::<PlanError>() {
        return Some(match error {
            PlanError::Io { source, .. } => file(source),
            PlanError::Line { .. } => USAGE,
        });
    }
    if let Some(ProposeError::Model(_)) = cause.downcast_ref::<ProposeError>() {
        return Some(USAGE);
    }
    if let Some(error) = cause.downcast_ref::<SourceError>() {
        return Some(match error {
            SourceError::Syntax(_) => USAGE,
            SourceError::Download { .. } => ENVIRONMENT,
            SourceError::Checkpoint(error) => checkpoint(error),
        });
    }
    if let Some(error) = cause.downcast_ref::<CheckpointError>() {
        return Some(checkpoint(error));
    }
    if let Some(error) = cause.downcast_ref::<ModelError>() {
        return Some(match error {
            ModelError::Device(_) => ENVIRONMENT,
            ModelError::Io { source, .. } => file(source),
            ModelError::Tensor(_) => BUG,
            _ => USAGE,
        });
    }
    if let Some(error) = cause.downcast_ref::<CorpusError>() {
        return Some(corpus(error));
    }
    if let Some(error) = cause.downcast_ref::<PoolsError>() {
        return Some(match error {
            PoolsError::File(error) => corpus(error),
            PoolsError::Version { .. } => USAGE,
        });
    }
    if cause.is::<NoCuda>() {
        return Some(ENVIRONMENT);
    }
    if cause.is::<TargetError>() || cause.is::<WorkloadsError>() || cause.is::<ReplayError>() {
        return Some(USAGE);
    }
    cause.downcast_ref::<io::Error>().map(file)
}

/// What a program that drives this one tells apart: whose fault it was, about what, and all nodes with
/// unknown operators.
fn about(error: &Error, code: u8) -> Map<String, Value> {
    let blame = match code {
        USAGE => "input",
        ENVIRONMENT => "environment",
        NOTHING_FOUND => "search",
        INTERRUPTED => "interrupt",
        _ => "bug",
    };
    let import = error.chain().find_map(|cause| cause.downcast_ref::<ImportError>());
    let cause = match import {
        _ if error.chain().any(is_about_target) => "target",
        None => "other",
        Some(
            ImportError::Unsupported(_)
            | ImportError::Opset { .. }
            | ImportError::ElementType { .. }
            | ImportError::InputType { .. }
            | ImportError::Node { .. },
        ) => "unsupported",
        Some(
            ImportError::UnknownDims { .. }
            | ImportError::BadDim { .. }
            | ImportError::UnknownInput { .. }
            | ImportError::BadConstant { .. }
            | ImportError::Input { .. }
            | ImportError::Output { .. },
        ) => "shape",
        Some(_) => "network",
    };
    let mut about = Map::from_iter([("blame".to_string(), json!(blame)), ("cause".to_string(), json!(cause))]);
    if let Some(ImportError::Unsupported(nodes)) = import {
        let node = |node: &UnsupportedNode| {
            let UnsupportedNode { domain, operator, node } = node;
            json!({"domain": domain, "operator": operator, "node": node})
        };
        about.insert("nodes".to_string(), nodes.iter().map(node).collect());
    }
    about
}

/// Whether an error is about the machine that is compiled for.
fn is_about_target(cause: &(dyn std::error::Error + 'static)) -> bool {
    let of_artifact = |error: &ArtifactError| {
        matches!(error, ArtifactError::Versions | ArtifactError::OnGpu(_) | ArtifactError::OtherArchitecture { .. })
    };
    cause.is::<TargetError>()
        || cause.is::<NoCuda>()
        || cause.downcast_ref::<ArtifactError>().is_some_and(of_artifact)
        || matches!(cause.downcast_ref::<RuntimeError>(), Some(RuntimeError::Target(_)))
        || matches!(cause.downcast_ref::<CodegenError>(), Some(CodegenError::Target(_)))
}

fn import(error: &ImportError) -> u8 {
    match error {
        ImportError::Read { source, .. } => file(source),
        _ => USAGE,
    }
}

fn checkpoint(error: &CheckpointError) -> u8 {
    match error {
        CheckpointError::Io { source, .. } => file(source),
        _ => USAGE,
    }
}

fn measure(error: &MeasureError) -> u8 {
    match error {
        MeasureError::Worker { .. } | MeasureError::OtherBuild { .. } => ENVIRONMENT,
        MeasureError::Task { .. } => USAGE,
        MeasureError::Trace { .. } => BUG,
        MeasureError::Stopped => INTERRUPTED,
    }
}

fn log(error: &LogError) -> u8 {
    match error {
        LogError::Io { source, .. } => file(source),
        LogError::Line { .. } | LogError::Other { .. } => USAGE,
    }
}

fn tune(error: &TuneError) -> u8 {
    match error {
        TuneError::Store(error) => store(error),
        TuneError::Fleet(error) => fleet(error),
        TuneError::Measure { source, .. } => measure(source),
        TuneError::Propose { source: ProposeError::Model(_), .. } => USAGE,
        TuneError::Propose {
            source: ProposeError::Space(_) | ProposeError::Rank(_) | ProposeError::Table(_), ..
        } => BUG,
    }
}

fn fleet(error: &FleetError) -> u8 {
    match error {
        FleetError::Settings(_) | FleetError::Foreign { .. } => USAGE,
        FleetError::Lost { .. }
        | FleetError::Refused { .. }
        | FleetError::NoFleet
        | FleetError::Version { .. }
        | FleetError::Unknown { .. }
        | FleetError::Nonsense(_)
        | FleetError::Outbox { .. }
        | FleetError::DiskFull { .. }
        | FleetError::InUse { .. } => ENVIRONMENT,
        FleetError::Measure(error) => measure(error),
        FleetError::Store(error) => store(error),
        FleetError::Stopped => INTERRUPTED,
    }
}

fn store(error: &StoreError) -> u8 {
    match error {
        StoreError::Foreign { .. } | StoreError::Version { .. } | StoreError::Corrupt { .. } => USAGE,
        StoreError::Corpus(error) => corpus(error),
        StoreError::DiskFull { .. } | StoreError::Locked { .. } => ENVIRONMENT,
        StoreError::Access { source, .. } => file(source),
        StoreError::Database { .. } => BUG,
    }
}

fn corpus(error: &CorpusError) -> u8 {
    match error {
        // what the system says is about the disk, what the decompressor says is about the file
        CorpusError::Io { source, .. } if source.raw_os_error().is_some() => file(source),
        _ => USAGE,
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
        | ArtifactError::Versions
        | ArtifactError::OnGpu(_)
        | ArtifactError::OtherArchitecture { .. } => USAGE,
        ArtifactError::Interrupted => INTERRUPTED,
        ArtifactError::Linker(_) | ArtifactError::Memory(_) => ENVIRONMENT,
        ArtifactError::Write { source, .. } | ArtifactError::Read { source, .. } => file(source),
        ArtifactError::Codegen(error) => codegen(error),
        ArtifactError::Runtime(error) => runtime(error),
        ArtifactError::Internal(_) => BUG,
    }
}

fn runtime(error: &RuntimeError) -> u8 {
    match error {
        RuntimeError::Invalid { .. } | RuntimeError::Input(_) => USAGE,
        RuntimeError::Target(_) | RuntimeError::Machine(_) => ENVIRONMENT,
        RuntimeError::Read { source, .. } => file(source),
        RuntimeError::Internal(_) => BUG,
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
