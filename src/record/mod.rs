//! What happened: a [`Record`] is a task, a trace and its outcome, with where they come from.
//!
//! [`Store`] keeps records in an SQLite file that several processes may share; a corpus file
//! ([`CorpusWriter`], [`CorpusReader`]) is the same as compressed JSON lines, to be handed on. Both name
//! tasks by the workload's canonical hash and targets by [`Target::fingerprint`], and both hold their full
//! text, so that a record can be read without the program that wrote it. A store keeps plans of networks, too
//! ([`PlanRecord`]).
//!
//! Invariants: a record that [`Store::insert`] has returned from survives the death of the process; a file
//! that is not ours, or of another version, is refused and never modified. Nothing in here measures or
//! judges.

mod agreement;
mod corpus;
mod error;
mod history;
mod plans;
mod pools;
mod reading;
mod schema;
mod store;
mod workloads;

use std::path::PathBuf;

pub use crate::folders::cache_folder;
use crate::outcome::Outcome;
use crate::space::Trace;
use crate::target::{Target, Task};

pub use agreement::{Agreement, Agreements, Deviation, Pairs};
pub use corpus::{CorpusError, CorpusReader, CorpusWriter, Entry, Limits};
pub use error::StoreError;
pub use history::{History, Spread};
pub use plans::{PlanRecord, PlanRun, TasksTiming};
pub use pools::{Draw, POOLS_FORMAT, Pool, PoolProgram, PoolsError, is_of_pools, read_pools, write_pools};
pub use reading::{NotRead, Readable, readable};
pub use store::{Filter, Imported, Inserted, Prune, Store, Summary};
pub use workloads::{NamedWorkload, WorkloadsError, read_workloads};

/// The version of this package, kept in every record.
pub const TILESCRIBE_VERSION: &str = env!("CARGO_PKG_VERSION");

/// A measured candidate.
#[derive(Clone, PartialEq, Debug)]
pub struct Record {
    /// The workload's canonical hash.
    pub task_hash: String,
    /// [`Target::fingerprint`].
    pub target: String,
    /// [`crate::space::Space::version`] of the space that the trace belongs to.
    pub space: String,
    pub trace: Trace,
    pub outcome: Outcome,
    /// Who wrote the candidate: `lm`, `random`, ...
    pub proposer: String,
    /// Of the run that it was part of.
    pub seed: u64,
    /// Seconds since 1970, UTC.
    pub created_unix_s: u64,
    /// The Tilescribe that measured it.
    pub tilescribe: String,
}

impl Record {
    /// A record of now, by this version of Tilescribe.
    pub fn new(task: &Task, space: &str, trace: Trace, outcome: Outcome, proposer: &str, seed: u64) -> Record {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Record {
            task_hash: task.workload.hash().to_string(),
            target: task.target.fingerprint(),
            space: space.to_string(),
            trace,
            outcome,
            proposer: proposer.to_string(),
            seed,
            created_unix_s: now.map_or(0, |since| since.as_secs()),
            tilescribe: TILESCRIBE_VERSION.to_string(),
        }
    }
}

/// What records call a target: [`Target::fingerprint`].
pub fn fingerprint(target: &Target) -> String {
    target.fingerprint()
}

/// A number from 0 to 1 that follows from a task's hash alone. Training holds out the tasks below its share,
/// so that a task is held out of every corpus and on every machine, or of none.
pub fn hold_out_key(task_hash: &str) -> f32 {
    let number = task_hash.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    number.unwrap_or(0) as f32 / u32::MAX as f32
}

/// Where records go unless a command says otherwise: `tilescribe/records.db` in the user's cache folder.
/// `None` where neither `XDG_CACHE_HOME` nor `HOME` names one.
pub fn default_path() -> Option<PathBuf> {
    cache_folder().map(|folder| folder.join("records.db"))
}
