//! A worker's own store: what it measured and the server has not confirmed yet.
//!
//! Invariants: what [`Outbox::keep`] has returned from survives the death of the process; it is forgotten
//! only after the server has committed it. One process holds it at a time.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode, params};

use super::error::FleetError;
use super::wire::{LeaseId, Measured};
use crate::files;

/// "Tilw" in ASCII.
const APPLICATION_ID: i32 = 0x5469_6c77;
/// Of the tables.
const VERSION: i32 = 1;

const TABLES: &str = "
    CREATE TABLE about (
        is_only INTEGER PRIMARY KEY CHECK (is_only = 1),
        -- by which the server knows this worker
        secret BLOB NOT NULL,
        -- the fleet that all of this is for; NULL until the first contact
        fleet TEXT
    ) STRICT;
    CREATE TABLE leases (
        plan INTEGER NOT NULL,
        fence INTEGER NOT NULL,
        -- the program being measured: what is to blame where this process dies
        doing INTEGER,
        PRIMARY KEY (plan, fence)
    ) STRICT;
    CREATE TABLE records (
        plan INTEGER NOT NULL,
        fence INTEGER NOT NULL,
        number INTEGER NOT NULL,
        -- JSON
        measured TEXT NOT NULL,
        PRIMARY KEY (plan, fence, number)
    ) STRICT;
";

/// The store.
pub(super) struct Outbox {
    path: PathBuf,
    connection: Connection,
}

/// A lease that ended with the process before, and what was measured under it.
pub(super) struct Leftover {
    pub id: LeaseId,
    /// The program that was being measured when that process died.
    pub doing: Option<i32>,
}

impl Outbox {
    /// Opens the store, or makes it.
    ///
    /// # Errors
    /// [`FleetError::InUse`] where another worker holds it, [`FleetError::Foreign`] where it is no such
    /// store.
    pub fn open(path: &Path) -> Result<Outbox, FleetError> {
        let sql = |error: rusqlite::Error| match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => FleetError::InUse { path: path.to_path_buf() },
            _ => from_sqlite(path, &error),
        };
        std::fs::create_dir_all(files::folder_of(path)).map_err(|error| from_io(path, &error))?;
        let connection = Connection::open(path).map_err(sql)?;
        // the lock is held as long as this process lives
        connection.pragma_update_and_check(None, "locking_mode", "EXCLUSIVE", |_| Ok(())).map_err(sql)?;
        connection.execute_batch("BEGIN IMMEDIATE").map_err(sql)?;
        let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0)).map_err(sql);
        let tables: i64 =
            connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(sql)?;
        match (number("application_id")?, number("user_version")?, tables) {
            (APPLICATION_ID, VERSION, _) => {}
            (0, 0, 0) => {
                connection.execute_batch(TABLES).map_err(sql)?;
                let mut secret = [0; 32];
                getrandom::fill(&mut secret)
                    .map_err(|error| FleetError::Outbox { path: path.to_path_buf(), detail: error.to_string() })?;
                connection
                    .execute("INSERT INTO about (is_only, secret) VALUES (1, ?1)", [secret.as_slice()])
                    .map_err(sql)?;
                connection.pragma_update(None, "application_id", APPLICATION_ID).map_err(sql)?;
                connection.pragma_update(None, "user_version", VERSION).map_err(sql)?;
            }
            _ => {
                let detail = "it is no store of a worker of this version".to_string();
                return Err(FleetError::Foreign { path: path.to_path_buf(), detail });
            }
        }
        connection.execute_batch("COMMIT").map_err(sql)?;
        // what is another's was left as it is
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())).map_err(sql)?;
        connection.pragma_update(None, "synchronous", "NORMAL").map_err(sql)?;
        Ok(Outbox { path: path.to_path_buf(), connection })
    }

    pub fn secret(&self) -> Result<Vec<u8>, FleetError> {
        self.run(|connection| connection.query_row("SELECT secret FROM about", [], |row| row.get(0)))
    }

    /// Remembers the fleet that this is for.
    ///
    /// # Errors
    /// [`FleetError::Foreign`] where it was another one.
    pub fn bind(&self, fleet: &str) -> Result<(), FleetError> {
        let known: Option<String> =
            self.run(|connection| connection.query_row("SELECT fleet FROM about", [], |row| row.get(0)))?;
        match known {
            Some(known) if known != fleet => {
                let detail = format!("it is for another fleet, {known}");
                Err(FleetError::Foreign { path: self.path.clone(), detail })
            }
            Some(_) => Ok(()),
            None => self.run(|connection| connection.execute("UPDATE about SET fleet = ?1", [fleet])).map(|_| ()),
        }
    }

    /// Remembers a lease.
    pub fn begin(&self, id: LeaseId) -> Result<(), FleetError> {
        let sql = "INSERT OR IGNORE INTO leases (plan, fence) VALUES (?1, ?2)";
        self.run(|connection| connection.prepare_cached(sql)?.execute([id.plan, id.fence])).map(|_| ())
    }

    /// Remembers which program is measured next.
    pub fn begin_program(&self, id: LeaseId, number: i32) -> Result<(), FleetError> {
        let sql = "UPDATE leases SET doing = ?3 WHERE plan = ?1 AND fence = ?2";
        self.run(|connection| connection.prepare_cached(sql)?.execute(params![id.plan, id.fence, number])).map(|_| ())
    }

    /// Commits what became of a program.
    pub fn keep(&mut self, id: LeaseId, measured: &Measured) -> Result<(), FleetError> {
        let text = serde_json::to_string(measured)
            .map_err(|error| FleetError::Outbox { path: self.path.clone(), detail: error.to_string() })?;
        let mut write =
            || -> rusqlite::Result<()> {
                let transaction = self.connection.transaction()?;
                transaction
                    .prepare_cached("INSERT OR IGNORE INTO records VALUES (?1, ?2, ?3, ?4)")?
                    .execute(params![id.plan, id.fence, measured.number, text])?;
                transaction
                    .prepare_cached("UPDATE leases SET doing = NULL WHERE plan = ?1 AND fence = ?2")?
                    .execute([id.plan, id.fence])?;
                transaction.commit()
            };
        write().map_err(|error| from_sqlite(&self.path, &error))
    }

    /// What the server has not confirmed of a lease, as a JSON array, and the numbers of the programs.
    pub fn unconfirmed(&self, id: LeaseId) -> Result<(String, Vec<i32>), FleetError> {
        let rows: Vec<(i32, String)> = self.run(|connection| {
            let sql = "SELECT number, measured FROM records WHERE plan = ?1 AND fence = ?2 ORDER BY number";
            connection
                .prepare_cached(sql)?
                .query_map([id.plan, id.fence], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect()
        })?;
        let (numbers, texts): (Vec<i32>, Vec<String>) = rows.into_iter().unzip();
        Ok((format!("[{}]", texts.join(",")), numbers))
    }

    /// Forgets what the server has confirmed, and the lease with it where that has ended.
    pub fn forget(&mut self, id: LeaseId, numbers: &[i32], has_ended: bool) -> Result<(), FleetError> {
        let mut write = || -> rusqlite::Result<()> {
            let transaction = self.connection.transaction()?;
            for number in numbers {
                transaction
                    .prepare_cached("DELETE FROM records WHERE plan = ?1 AND fence = ?2 AND number = ?3")?
                    .execute(params![id.plan, id.fence, number])?;
            }
            if has_ended {
                transaction
                    .prepare_cached("DELETE FROM leases WHERE plan = ?1 AND fence = ?2")?
                    .execute([id.plan, id.fence])?;
            }
            transaction.commit()
        };
        write().map_err(|error| from_sqlite(&self.path, &error))
    }

    /// Leases that an earlier process left behind.
    pub fn leftovers(&self) -> Result<Vec<Leftover>, FleetError> {
        self.run(|connection| {
            connection
                .prepare_cached("SELECT plan, fence, doing FROM leases ORDER BY plan, fence")?
                .query_map([], |row| {
                    Ok(Leftover { id: LeaseId { plan: row.get(0)?, fence: row.get(1)? }, doing: row.get(2)? })
                })?
                .collect()
        })
    }

    fn run<T>(&self, ask: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, FleetError> {
        ask(&self.connection).map_err(|error| from_sqlite(&self.path, &error))
    }
}

fn from_sqlite(path: &Path, source: &rusqlite::Error) -> FleetError {
    let path = path.to_path_buf();
    match source.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => FleetError::DiskFull { path },
        Some(ErrorCode::NotADatabase) => FleetError::Foreign { path, detail: "no SQLite database".into() },
        _ => FleetError::Outbox { path, detail: source.to_string() },
    }
}

fn from_io(path: &Path, source: &io::Error) -> FleetError {
    let path = path.to_path_buf();
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FleetError::DiskFull { path },
        _ => FleetError::Outbox { path, detail: source.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::{FleetError, LeaseId, Measured, Outbox};
    use crate::outcome::{Failure, Outcome};

    const LEASE: LeaseId = LeaseId { plan: 7, fence: 2 };

    fn measured(number: i32) -> Measured {
        Measured::new(number, Outcome::Timed { times_ns: vec![3, 5], compile_us: 1 })
    }

    #[test]
    fn what_is_kept_is_there_until_it_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker.db");
        let mut outbox = Outbox::open(&path).unwrap();
        let secret = outbox.secret().unwrap();
        outbox.begin(LEASE).unwrap();
        for number in [1, 2, 2] {
            outbox.begin_program(LEASE, number).unwrap();
            outbox.keep(LEASE, &measured(number)).unwrap();
        }
        outbox.begin_program(LEASE, 3).unwrap();
        drop(outbox);
        // another process, after this one has died of the third
        let mut outbox = Outbox::open(&path).unwrap();
        assert_eq!(outbox.secret().unwrap(), secret);
        let left = outbox.leftovers().unwrap();
        assert_eq!((left.len(), left[0].id, left[0].doing), (1, LEASE, Some(3)));
        let (text, numbers) = outbox.unconfirmed(LEASE).unwrap();
        assert_eq!(
            (serde_json::from_str::<Vec<Measured>>(&text).unwrap(), numbers),
            ([1, 2].map(measured).to_vec(), vec![1, 2])
        );
        outbox.forget(LEASE, &[1], false).unwrap();
        assert_eq!(outbox.unconfirmed(LEASE).unwrap().1, [2]);
        outbox.forget(LEASE, &[2], true).unwrap();
        assert_eq!(outbox.unconfirmed(LEASE).unwrap(), ("[]".to_string(), vec![]));
        assert!(outbox.leftovers().unwrap().is_empty());
    }

    #[test]
    fn a_store_has_one_worker_and_one_fleet() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker.db");
        let outbox = Outbox::open(&path).unwrap();
        assert!(matches!(Outbox::open(&path), Err(FleetError::InUse { .. })));
        outbox.bind("one").unwrap();
        outbox.bind("one").unwrap();
        assert!(matches!(outbox.bind("other"), Err(FleetError::Foreign { .. })));
        drop(outbox);
        assert!(Outbox::open(&path).is_ok());
        let other = folder.path().join("other.db");
        std::fs::write(&other, "no database, though long enough to be taken for one".repeat(99)).unwrap();
        assert!(matches!(Outbox::open(&other), Err(FleetError::Foreign { .. })));
        let records = folder.path().join("records.db");
        drop(crate::record::Store::open(&records).unwrap());
        let before = std::fs::read(&records).unwrap();
        assert!(matches!(Outbox::open(&records), Err(FleetError::Foreign { .. })));
        assert_eq!(std::fs::read(&records).unwrap(), before, "it was left as it is");
    }

    #[test]
    fn what_is_sent_is_what_a_server_takes() {
        let failed = Outcome::failed(Failure::Crash, format!("\0{}", "é".repeat(5000)));
        let Measured { detail, .. } = Measured::new(1, failed);
        assert!(detail.len() <= 4096 && detail.starts_with('é') && !detail.contains('\0'));
        let many = Outcome::Timed { times_ns: vec![0; 100_000], compile_us: 1 };
        let Measured { times_ns, .. } = Measured::new(1, many);
        assert!(times_ns.len() <= 65_536 && times_ns.iter().all(|ns| *ns == 1));
    }
}
