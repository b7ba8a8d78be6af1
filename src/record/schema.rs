//! The store's file: who it belongs to, its tables, and how it comes into being.
//!
//! A new store is made beside its place and then linked into it, so that under its own name a store is always complete,
//! whatever dies while it is made, and whoever else makes one at the same time.

use std::io;
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
        -- JSON
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
        // With a write-ahead log, NORMAL keeps every committed record when the process dies. When the machine loses power, the
        // last few commits may be gone, but never the file's consistency; FULL would cost a disk flush for each candidate.
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        // fails now, rather than at the first insertion, where tables are missing or unreadable
        connection.prepare("SELECT hash, fingerprint, times_ns FROM tasks, targets, records")?;
        Ok(())
    };
    set_up().map_err(|e| StoreError::from_sqlite(path, e))?;
    Ok(connection)
}

/// Refuses what is not ours. Reads the header only, through a connection that neither locks nor writes.
fn check_owner(path: &Path) -> Result<(), StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let foreign = |found: &str| StoreError::Foreign { path: path.into(), found: found.to_string() };
    if path.is_dir() {
        return Err(foreign("a folder"));
    }
    std::fs::File::open(path).map_err(|source| StoreError::Access { path: path.into(), source })?;
    let header = || -> rusqlite::Result<(i32, i32)> {
        let connection = Connection::open_with_flags(immutable_uri(path), flags)?;
        let application = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
        let version = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        Ok((application, version))
    };
    match header() {
        Ok((APPLICATION_ID, SCHEMA_VERSION)) => Ok(()),
        Ok((APPLICATION_ID, found)) => Err(StoreError::Version { path: path.into(), found, expected: SCHEMA_VERSION }),
        Ok(_) if std::fs::metadata(path).is_ok_and(|m| m.len() == 0) => Err(foreign("an empty file")),
        Ok(_) => Err(foreign("another program's SQLite database")),
        Err(e) if e.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) => {
            Err(foreign("no SQLite database"))
        }
        Err(e) => Err(StoreError::from_sqlite(path, e)),
    }
}

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

/// SQLite's name for a file that is to be read as it is.
fn immutable_uri(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => uri.push(char::from(*byte)),
            other => uri.push_str(&format!("%{other:02x}")),
        }
    }
    uri + "?immutable=1"
}
