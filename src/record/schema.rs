//! The store's file: who it belongs to, its tables, and how it comes into being.
//!
//! A new store is made beside its place and then linked into it, so that under its own name a store is always
//! complete, whatever dies while it is made, and whoever else makes one at the same time.

use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::store::StoreError;

/// "Tile" in ASCII; SQLite keeps it in the file's header, where `file` shows it.
pub(super) const APPLICATION_ID: i32 = 0x5469_6c65;

/// Of the tables. A file of another version is refused.
pub(super) const SCHEMA_VERSION: i32 = 1;

/// How long one process waits for another's transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(20);

const TABLES: &str = "
    CREATE TABLE tasks (
        id INTEGER PRIMARY KEY,
        hash TEXT NOT NULL UNIQUE,
        -- the canonical text of the workload
        workload TEXT NOT NULL
    ) STRICT;
    CREATE TABLE targets (
        id INTEGER PRIMARY KEY,
        fingerprint TEXT NOT NULL UNIQUE,
        -- TOML
        target TEXT NOT NULL
    ) STRICT;
    CREATE TABLE records (
        id INTEGER PRIMARY KEY,
        task INTEGER NOT NULL REFERENCES tasks(id),
        target INTEGER NOT NULL REFERENCES targets(id),
        space TEXT NOT NULL,
        trace TEXT NOT NULL,
        -- the first 16 bytes of the trace's SHA-256, so that the index stays small
        trace_key BLOB NOT NULL,
        -- why it failed; NULL where it was timed
        failure TEXT,
        detail TEXT NOT NULL,
        -- JSON array of nanoseconds
        times_ns TEXT NOT NULL,
        best_ns INTEGER,
        compile_us INTEGER NOT NULL,
        proposer TEXT NOT NULL,
        -- the 64 bits of an unsigned number
        seed INTEGER NOT NULL,
        created_unix_s INTEGER NOT NULL,
        tilescribe TEXT NOT NULL,
        UNIQUE (task, target, space, trace_key)
    ) STRICT;
    CREATE INDEX records_by_speed ON records (task, target, space, best_ns);
";

/// Opens the store at `path`, which is made if nothing is there.
pub(super) fn open(path: &Path) -> Result<Connection, StoreError> {
    if !path.try_exists().map_err(|source| StoreError::Access { path: path.into(), source })? {
        create(path)?;
    }
    check_owner(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|e| StoreError::from_sqlite(path, e))?;
    let set_up = || -> rusqlite::Result<()> {
        connection.busy_timeout(BUSY_TIMEOUT)?;
        // With a write-ahead log, NORMAL keeps every committed record when the process dies. When the machine
        // loses power, the last few commits may be gone, but never the file's consistency; FULL would cost a
        // disk flush for each candidate.
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        // fails now, rather than at the first insertion, where tables are missing or unreadable
        connection.prepare("SELECT hash, fingerprint, times_ns FROM tasks, targets, records")?;
        Ok(())
    };
    set_up().map_err(|e| StoreError::from_sqlite(path, e))?;
    Ok(connection)
}

/// Refuses what is not ours. Reads the file's header only, past SQLite: whatever opens a database may write
/// to it or lock it, and what reads one without locks may meet another process' checkpoint half done.
fn check_owner(path: &Path) -> Result<(), StoreError> {
    let foreign = |found: &str| StoreError::Foreign { path: path.into(), found: found.to_string() };
    if path.is_dir() {
        return Err(foreign("a folder"));
    }
    let access = |source| StoreError::Access { path: path.into(), source };
    let mut header = Vec::new();
    std::fs::File::open(path).map_err(access)?.take(HEADER_BYTES).read_to_end(&mut header).map_err(access)?;
    if header.is_empty() {
        return Err(foreign("an empty file"));
    }
    if header.len() as u64 != HEADER_BYTES || !header.starts_with(b"SQLite format 3\0") {
        return Err(foreign("no SQLite database"));
    }
    // big-endian, see "The Database Header" of SQLite's file format
    let number = |at: usize| i32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    match (number(68), number(60)) {
        (APPLICATION_ID, SCHEMA_VERSION) => Ok(()),
        (APPLICATION_ID, found) => Err(StoreError::Version { path: path.into(), found, expected: SCHEMA_VERSION }),
        _ => Err(foreign("another program's SQLite database")),
    }
}

/// Bytes of an SQLite file's header.
const HEADER_BYTES: u64 = 100;

/// Makes an empty store and puts it into its place, unless another process was faster.
fn create(path: &Path) -> Result<(), StoreError> {
    let access = |source: io::Error| StoreError::from_io(path, source);
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(folder).map_err(access)?;
    let draft = tempfile::Builder::new().prefix(".records-").tempfile_in(folder).map_err(access)?;
    let build = || -> rusqlite::Result<()> {
        let connection = Connection::open(draft.path())?;
        connection.execute_batch(TABLES)?;
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
        connection.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        // kept in the file; closing the connection leaves no log behind
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        connection.close().map_err(|(_, e)| e)
    };
    build().map_err(|e| StoreError::from_sqlite(path, e))?;
    match draft.persist_noclobber(path) {
        Ok(_) => Ok(()),
        Err(failed) if failed.error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(failed) => Err(access(failed.error)),
    }
}
