//! Why a fleet cannot be worked with, and whose fault it is.

use std::path::PathBuf;

use thiserror::Error;
use tokio_postgres::error::SqlState;

use crate::measure::MeasureError;
use crate::record::StoreError;

/// Why a fleet cannot be worked with.
#[derive(Debug, Error)]
pub enum FleetError {
    /// Bad input: where the server is cannot be read from what was given.
    #[error("the fleet's address: {0}")]
    Settings(String),
    /// Environment, and it may pass: no server answers, it restarts, its disk is full, ...
    #[error("the fleet's server cannot be reached: {detail}")]
    Lost { detail: String },
    /// Environment: the server answers, and refuses: a password, a right, a certificate.
    #[error("the fleet's server refuses: {detail}")]
    Refused { detail: String },
    /// Environment: the database holds no fleet.
    #[error("the database holds no fleet; `tilescribe fleet init` makes one")]
    NoFleet,
    /// Environment: the fleet is of another version.
    #[error(
        "the fleet's tables are of version {found}, this Tilescribe works with version {expected}: {}",
        match found < expected { true => "`tilescribe fleet init` brings them up to date", false => "use a newer one" }
    )]
    Version { found: i32, expected: i32 },
    /// The server does not know this worker, or says that a lease was never its own.
    #[error("the fleet's server does not know what it is told: {detail}")]
    Unknown { detail: String },
    /// What the server sent makes no sense.
    #[error("the fleet's server sent {0}")]
    Nonsense(String),
    /// Environment: the worker's own store.
    #[error("{path}: {detail}")]
    Outbox { path: PathBuf, detail: String },
    /// Environment, and it may pass: everything committed before is kept.
    #[error("{path}: the disk is full; every record committed before is safe")]
    DiskFull { path: PathBuf },
    /// Bad input: the worker's store holds what belongs to another fleet, or is no worker's store.
    #[error("{path}: {detail}; it was left as it is. Name another file with --store")]
    Foreign { path: PathBuf, detail: String },
    /// Environment: another worker has it open.
    #[error("{path}: another worker uses this store; name another file with --store")]
    InUse { path: PathBuf },
    /// Environment: nothing at all can be measured on this machine.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// The coordinator's own store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Someone asked to stop.
    #[error("interrupted")]
    Stopped,
}

impl FleetError {
    /// Whether the same may succeed later.
    pub fn may_pass(&self) -> bool {
        matches!(self, FleetError::Lost { .. } | FleetError::DiskFull { .. })
    }
}

/// What our functions raise: see `schema/2_workers.sql`.
const UNKNOWN_WORKER: &str = "TS001";
const UNKNOWN_LEASE: &str = "TS002";
const INVALID: &str = "TS003";

impl From<tokio_postgres::Error> for FleetError {
    fn from(error: tokio_postgres::Error) -> FleetError {
        let Some(answer) = error.as_db_error() else {
            // no answer at all, or one that a certificate or a password stood in the way of
            let detail = causes(&error);
            let is_refusal = ["certificate", "password missing", "TLS", "invalid configuration"]
                .iter()
                .any(|word| detail.contains(word));
            return match is_refusal {
                true => FleetError::Refused { detail },
                false => FleetError::Lost { detail },
            };
        };
        let detail = answer.message().to_string();
        let code = answer.code();
        match code.code() {
            UNKNOWN_WORKER | UNKNOWN_LEASE => return FleetError::Unknown { detail },
            INVALID => return FleetError::Refused { detail },
            _ => {}
        }
        if [&SqlState::INVALID_SCHEMA_NAME, &SqlState::UNDEFINED_FUNCTION, &SqlState::UNDEFINED_TABLE].contains(&code) {
            return FleetError::NoFleet;
        }
        // connection lost; resources used up, a full disk among them; stopped or starting; deadlock and
        // serialisation; a lock or statement that took too long; input and output
        let passes = ["08", "53", "57", "40", "55", "58"];
        match passes.contains(&&code.code()[..2]) {
            true => FleetError::Lost { detail },
            false => FleetError::Refused { detail },
        }
    }
}

/// What went wrong and why, in one line.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
