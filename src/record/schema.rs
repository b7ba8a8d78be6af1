//! The store's file: who it belongs to, its tables, and how it comes into being.
//!
//! A new store is made beside its place and then linked into it, so that under its own name a store is always
//! complete, whatever dies while it is made, and whoever else makes one at the same time.

use std::ffi::{CString, OsStr};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::error::StoreError;
use crate::files::{self, DraftFolder};

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

/// Plans came later: a store gets the table when the first of them is kept.
pub(super) const PLANS_TABLE: &str = "
    CREATE TABLE IF NOT EXISTS plans (
        id INTEGER PRIMARY KEY,
        -- the hash of the network that is cut by default
        program TEXT NOT NULL,
        name TEXT NOT NULL,
        target INTEGER NOT NULL REFERENCES targets(id),
        plan TEXT NOT NULL,
        -- the first 16 bytes of the plan's SHA-256
        plan_key BLOB NOT NULL,
        tasks INTEGER NOT NULL,
        calls INTEGER NOT NULL,
        tasks_ns REAL NOT NULL,
        -- finals or records
        timing TEXT NOT NULL,
        -- a run of the whole network, and one of the default plan's in turn with it
        run_ns REAL,
        default_run_ns REAL,
        created_unix_s INTEGER NOT NULL,
        tilescribe TEXT NOT NULL,
        UNIQUE (program, target, plan_key)
    ) STRICT;
";

/// Opens the store at `path` to write to it; makes one if nothing is there.
pub(super) fn open(path: &Path) -> Result<Connection, StoreError> {
    if !path.try_exists().map_err(|source| StoreError::Access { path: path.into(), source })? {
        create(path)?;
    }
    check_owner(path)?;
    // said now, rather than after the first candidate was measured
    if !is_writable(path) {
        let source = io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the record store cannot be written to");
        return Err(StoreError::Access { path: path.into(), source });
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    connect(path, path.as_os_str(), flags)
}

/// Opens the store at `path` to read from it: also where neither the file nor its folder can be written to,
/// or the disk is full.
pub(super) fn open_to_read(path: &Path) -> Result<Connection, StoreError> {
    check_owner(path)?;
    if is_writable(path) {
        match open(path) {
            Err(StoreError::Access { .. } | StoreError::DiskFull { .. }) => {}
            opened => return opened,
        }
    }
    // SQLite wants to write the log's index beside the file, unless it is told that the file cannot change.
    // That is so where no log lies beside it: whoever writes makes one first.
    let mut log = path.as_os_str().to_os_string();
    log.push("-wal");
    let has_log = std::fs::metadata(&log).is_ok_and(|about| about.len() > 0);
    let address = format!("file:{}?mode=ro{}", escaped(path), if has_log { "" } else { "&immutable=1" });
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    connect(path, address.as_ref(), flags)
}

fn connect(path: &Path, address: &OsStr, flags: OpenFlags) -> Result<Connection, StoreError> {
    let connection = Connection::open_with_flags(address, flags).map_err(|e| StoreError::from_sqlite(path, e))?;
    set_up(&connection).map_err(|e| StoreError::from_sqlite(path, e))?;
    check_layout(&connection, path)?;
    Ok(connection)
}

fn set_up(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // With a write-ahead log, NORMAL keeps every committed record when the process dies. When the machine
    // loses power, the last few commits may be gone, but never the file's consistency; FULL would cost a disk
    // flush for each candidate.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // the file may come from anybody
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    // fails now, rather than at the first insertion, where tables are missing or unreadable
    connection.prepare("SELECT hash, fingerprint, times_ns FROM tasks, targets, records")?;
    Ok(())
}

/// Refuses what runs by itself (triggers), and tables that are none (views): we write neither.
fn check_layout(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let sql = "SELECT count(*) FROM sqlite_schema WHERE type NOT IN ('table', 'index') OR sql LIKE '%VIRTUAL%'";
    let count = connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    match count.map_err(|e| StoreError::from_sqlite(path, e))? {
        0 => Ok(()),
        count => {
            let detail = format!("it holds {count} triggers, views or virtual tables");
            Err(StoreError::Corrupt { path: path.into(), detail })
        }
    }
}

/// Whether this process may write to a store: to the file, and to its folder, where the log lies.
fn is_writable(path: &Path) -> bool {
    [path, files::folder_of(path)].into_iter().all(|path| {
        let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
        // SAFETY: a string that ends in zero.
        unsafe { libc::access(path.as_ptr(), libc::W_OK) == 0 }
    })
}

/// A path as SQLite takes it in an address.
fn escaped(path: &Path) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'_' | b'-');
    let escape = |byte: &u8| if plain(byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") };
    path.as_os_str().as_bytes().iter().map(escape).collect()
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
    files::open(path).map_err(access)?.take(HEADER_BYTES).read_to_end(&mut header).map_err(access)?;
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
    let folder = files::folder_of(path);
    std::fs::create_dir_all(folder).map_err(access)?;
    // a folder of its own: SQLite makes files beside the one that it writes
    let draft = DraftFolder::create_in(folder).map_err(access)?;
    let file = draft.path().join("records.db");
    let build = || -> rusqlite::Result<()> {
        let connection = Connection::open(&file)?;
        connection.execute_batch(TABLES)?;
        connection.execute_batch(PLANS_TABLE)?;
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
        connection.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        // kept in the file; closing the connection leaves no log behind
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        connection.close().map_err(|(_, e)| e)
    };
    build().map_err(|e| StoreError::from_sqlite(path, e))?;
    match files::place(&file, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        placed => placed.map_err(access),
    }
}
