//! The store: records in SQLite, committed one by one.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params, params_from_iter};
use sha2::{Digest, Sha256};

use super::corpus::{CorpusReader, CorpusWriter, Entry};
use super::error::StoreError;
use super::{Record, schema};
use crate::outcome::{Failure, Outcome};
use crate::space::Trace;
use crate::target::{Target, Task};
use crate::workload::Workload;

/// What [`Store::insert`] did.
///
/// There is one record for a trace of a task, target and space. When it is measured again, the more telling
/// outcome stays: a wrong result or a crash outweighs every time, since such a program must not be used; a
/// time outweighs the failures that may pass (time or memory ran out, ...); of two times the one with the
/// faster best run stays, and of equals the older.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inserted {
    New,
    Replaced,
    /// What was there outweighs it.
    Kept,
}

/// Which records; `None` means all.
#[derive(Clone, Default, Debug)]
pub struct Filter {
    pub task_hash: Option<String>,
    /// Fingerprint.
    pub target: Option<String>,
    pub space: Option<String>,
}

/// What [`Store::import`] did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Imported {
    pub new: u64,
    pub replaced: u64,
    pub kept: u64,
}

/// The records of one task, target and space in figures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    pub task_hash: String,
    /// Fingerprint.
    pub target: String,
    pub space: String,
    pub records: u64,
    pub timed: u64,
    pub best_ns: Option<u64>,
    /// Of the youngest record.
    pub created_unix_s: u64,
}

/// What to throw away.
#[derive(Clone, Debug)]
pub enum Prune {
    /// Records of all spaces but this one.
    OtherSpaces(Vec<String>),
    /// All but the fastest so many of each task, target and space; failures first.
    AllBut(u64),
    /// All records that the filter names.
    Matching(Filter),
}

/// Records on disk. Several processes may hold the same store; each insertion is a transaction.
pub struct Store {
    pub(super) path: PathBuf,
    pub(super) connection: Connection,
}

impl Store {
    /// Opens a store; makes one, and the folders above it, where there is none.
    ///
    /// # Errors
    /// [`StoreError::Foreign`] and [`StoreError::Version`] for a file that is not ours or of another version,
    /// which stays as it is; [`StoreError::Corrupt`], [`StoreError::DiskFull`] and [`StoreError::Access`] as
    /// they say.
    pub fn open(path: &Path) -> Result<Store, StoreError> {
        Ok(Store { path: path.to_path_buf(), connection: schema::open(path)? })
    }

    /// Opens a store that exists, to read from it; it may lie on a disk that cannot be written to.
    ///
    /// # Errors
    /// As [`Store::open`]; [`StoreError::Access`] where there is none.
    pub fn open_to_read(path: &Path) -> Result<Store, StoreError> {
        Ok(Store { path: path.to_path_buf(), connection: schema::open_to_read(path)? })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Commits a record, and the text of its task where that is new. When this returns, the record survives
    /// the death of the process. Which of two records of one trace stays is told at [`Inserted`].
    ///
    /// # Errors
    /// [`StoreError::DiskFull`], [`StoreError::Locked`] or another; then the store is as it was before.
    pub fn insert(&mut self, task: &Task, record: &Record) -> Result<Inserted, StoreError> {
        self.insert_many([(task, record)]).map(|imported| match imported {
            Imported { new: 1, .. } => Inserted::New,
            Imported { replaced: 1, .. } => Inserted::Replaced,
            _ => Inserted::Kept,
        })
    }

    /// The record with the fastest run of a task on a target in a space.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] or another where the store cannot be read.
    pub fn best(&self, task_hash: &str, target: &str, space: &str) -> Result<Option<Record>, StoreError> {
        let sql = format!(
            "{SELECT} WHERE tasks.hash = ?1 AND targets.fingerprint = ?2 AND space = ?3 AND best_ns IS NOT NULL
             ORDER BY best_ns, records.id LIMIT 1"
        );
        let read = || -> rusqlite::Result<Option<Record>> {
            let mut statement = self.connection.prepare_cached(&sql)?;
            statement.query_row(params![task_hash, target, space], record_of).optional()
        };
        read().map_err(|e| self.error(e))
    }

    /// All records that the filter names, in the order in which they were first inserted.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] or another where the store cannot be read.
    pub fn records(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        let mut records = Vec::new();
        self.for_each(filter, "records.id", |record| {
            records.push(record);
            Ok(())
        })?;
        Ok(records)
    }

    /// The hash and workload of every task, by hash.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] where a text does not parse.
    pub fn tasks(&self) -> Result<Vec<(String, Workload)>, StoreError> {
        let rows = self.pairs("SELECT hash, workload FROM tasks ORDER BY hash")?;
        rows.into_iter().map(|(hash, text)| Ok((hash, self.parse_workload(&text)?))).collect()
    }

    /// The fingerprint and data of every target, by fingerprint.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] where one cannot be read.
    pub fn targets(&self) -> Result<Vec<(String, Target)>, StoreError> {
        let rows = self.pairs("SELECT fingerprint, target FROM targets ORDER BY fingerprint")?;
        let parse = |text: &str| Target::from_toml(text).map_err(|e| self.corrupt(format!("target: {e}")));
        rows.into_iter().map(|(fingerprint, text)| Ok((fingerprint, parse(&text)?))).collect()
    }

    /// The store in figures: a row for each task, target and space.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] or another where the store cannot be read.
    pub fn list(&self) -> Result<Vec<Summary>, StoreError> {
        let read = || -> rusqlite::Result<Vec<Summary>> {
            let mut statement = self.connection.prepare(
                "SELECT tasks.hash, targets.fingerprint, space, count(*), count(best_ns), min(best_ns), max(created_unix_s)
                 FROM records JOIN tasks ON tasks.id = task JOIN targets ON targets.id = records.target
                 GROUP BY task, records.target, space ORDER BY tasks.hash, targets.fingerprint, space",
            )?;
            let rows = statement.query_map([], |row| {
                Ok(Summary {
                    task_hash: row.get(0)?,
                    target: row.get(1)?,
                    space: row.get(2)?,
                    records: row.get::<_, i64>(3)?.cast_unsigned(),
                    timed: row.get::<_, i64>(4)?.cast_unsigned(),
                    best_ns: row.get::<_, Option<i64>>(5)?.map(i64::cast_unsigned),
                    created_unix_s: row.get::<_, i64>(6)?.cast_unsigned(),
                })
            })?;
            rows.collect()
        };
        read().map_err(|e| self.error(e))
    }

    /// Writes what the filter names as corpus lines, sorted by task, target, space and trace: equal records
    /// give equal files. Returns how many.
    ///
    /// # Errors
    /// [`StoreError::Corpus`] where the file cannot be written.
    pub fn export<W: io::Write>(&self, filter: &Filter, writer: &mut CorpusWriter<W>) -> Result<u64, StoreError> {
        let targets: HashMap<String, Target> = self.targets()?.into_iter().collect();
        let mut current: Option<(String, String, Arc<Task>)> = None;
        let mut written = 0;
        self.for_each(filter, "tasks.hash, targets.fingerprint, space, trace", |record| {
            let known =
                current.as_ref().filter(|(hash, target, _)| *hash == record.task_hash && *target == record.target);
            let task = match known {
                Some((_, _, task)) => Arc::clone(task),
                None => {
                    let missing = || self.corrupt(format!("target {} is missing", record.target));
                    let target = targets.get(&record.target).cloned().ok_or_else(missing)?;
                    let task = Arc::new(Task { workload: self.workload(&record.task_hash)?, target });
                    current = Some((record.task_hash.clone(), record.target.clone(), Arc::clone(&task)));
                    task
                }
            };
            writer.write(&Entry { task, record })?;
            written += 1;
            Ok(())
        })?;
        Ok(written)
    }

    /// Takes in all records of a corpus file, a thousand in a transaction. What was taken in before an error
    /// stays.
    ///
    /// # Errors
    /// [`StoreError::Corpus`] where the file is not to be read.
    pub fn import<R: io::BufRead>(&mut self, reader: CorpusReader<R>) -> Result<Imported, StoreError> {
        let mut total = Imported::default();
        let mut batch: Vec<Entry> = Vec::new();
        let mut entries = reader.fuse();
        loop {
            let next = entries.next().transpose();
            let full = batch.len() == 1000 || !matches!(next, Ok(Some(_)));
            if full && !batch.is_empty() {
                let part = self.insert_many(batch.iter().map(|entry| (&*entry.task, &entry.record)))?;
                total.new += part.new;
                total.replaced += part.replaced;
                total.kept += part.kept;
                batch.clear();
            }
            match next? {
                Some(entry) => batch.push(entry),
                None => return Ok(total),
            }
        }
    }

    /// Deletes records and gives their space back to the disk. Returns how many.
    ///
    /// # Errors
    /// [`StoreError::Locked`] or another; then nothing was deleted.
    pub fn prune(&mut self, what: &Prune) -> Result<u64, StoreError> {
        let delete = |connection: &Connection| -> rusqlite::Result<usize> {
            match what {
                Prune::OtherSpaces(spaces) => {
                    let kept = vec!["?"; spaces.len()].join(", ");
                    let command = format!("DELETE FROM records WHERE space NOT IN ({kept})");
                    connection.execute(&command, rusqlite::params_from_iter(spaces))
                }
                Prune::AllBut(count) => connection.execute(
                    "DELETE FROM records WHERE id IN (
                         SELECT id FROM (
                             SELECT id, row_number() OVER (
                                 PARTITION BY task, target, space ORDER BY best_ns IS NULL, best_ns, id
                             ) AS place FROM records
                         ) WHERE place > ?1)",
                    [i64::try_from(*count).unwrap_or(i64::MAX)],
                ),
                Prune::Matching(filter) => connection.execute(
                    "DELETE FROM records WHERE
                         (?1 IS NULL OR task IN (SELECT id FROM tasks WHERE hash = ?1))
                         AND (?2 IS NULL OR target IN (SELECT id FROM targets WHERE fingerprint = ?2))
                         AND (?3 IS NULL OR space = ?3)",
                    params![filter.task_hash, filter.target, filter.space],
                ),
            }
        };
        let deleted = delete(&self.connection).map_err(|e| self.error(e))?;
        self.connection.execute_batch("VACUUM").map_err(|e| self.error(e))?;
        Ok(deleted as u64)
    }

    /// Commits many records in one transaction.
    ///
    /// # Errors
    /// As [`Store::insert`]; then none is committed.
    pub fn insert_many<'a>(
        &mut self,
        records: impl IntoIterator<Item = (&'a Task, &'a Record)>,
    ) -> Result<Imported, StoreError> {
        let write = || -> rusqlite::Result<Imported> {
            let mut total = Imported::default();
            // taking the write lock at once: a reader that turns writer could find itself refused
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for (task, record) in records {
                match insert_one(&transaction, task, record)? {
                    Inserted::New => total.new += 1,
                    Inserted::Replaced => total.replaced += 1,
                    Inserted::Kept => total.kept += 1,
                }
            }
            transaction.commit()?;
            Ok(total)
        };
        write().map_err(|e| StoreError::from_sqlite(&self.path, e))
    }

    fn for_each(
        &self,
        filter: &Filter,
        order: &str,
        mut visit: impl FnMut(Record) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let columns =
            [("tasks.hash", &filter.task_hash), ("targets.fingerprint", &filter.target), ("space", &filter.space)];
        // only what is asked for: a condition that holds for nothing asked keeps SQLite from its indices
        let (conditions, values): (Vec<String>, Vec<&String>) =
            columns.into_iter().filter_map(|(column, value)| Some((format!("{column} = ?"), value.as_ref()?))).unzip();
        let condition = if conditions.is_empty() { "true".into() } else { conditions.join(" AND ") };
        let sql = format!("{SELECT} WHERE {condition} ORDER BY {order}");
        let mut statement = self.connection.prepare_cached(&sql).map_err(|e| self.error(e))?;
        let rows = statement.query_map(params_from_iter(values), record_of).map_err(|e| self.error(e))?;
        for record in rows {
            visit(record.map_err(|e| self.error(e))?)?;
        }
        Ok(())
    }

    fn workload(&self, hash: &str) -> Result<Workload, StoreError> {
        let sql = "SELECT workload FROM tasks WHERE hash = ?1";
        let text: String = self.connection.query_row(sql, [hash], |row| row.get(0)).map_err(|e| self.error(e))?;
        self.parse_workload(&text)
    }

    fn parse_workload(&self, text: &str) -> Result<Workload, StoreError> {
        text.parse().map_err(|e| self.corrupt(format!("workload: {e}")))
    }

    fn pairs(&self, sql: &str) -> Result<Vec<(String, String)>, StoreError> {
        let read = || -> rusqlite::Result<Vec<(String, String)>> {
            self.connection.prepare(sql)?.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        };
        read().map_err(|e| self.error(e))
    }

    fn error(&self, source: rusqlite::Error) -> StoreError {
        StoreError::from_sqlite(&self.path, source)
    }

    fn corrupt(&self, detail: String) -> StoreError {
        StoreError::Corrupt { path: self.path.clone(), detail }
    }
}

/// The columns that [`record_of`] reads.
const SELECT: &str = "SELECT tasks.hash, targets.fingerprint, space, trace, failure, detail, times_ns, compile_us,
    proposer, seed, created_unix_s, tilescribe
    FROM records JOIN tasks ON tasks.id = records.task JOIN targets ON targets.id = records.target";

fn record_of(row: &Row<'_>) -> rusqlite::Result<Record> {
    let bad = |column: usize, error: Box<dyn std::error::Error + Send + Sync>| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, error)
    };
    let trace: Trace = row.get_ref(3)?.as_str()?.parse().map_err(|e| bad(3, Box::new(e)))?;
    let outcome = match row.get_ref(4)?.as_str_or_null()? {
        Some(cause) => {
            let cause = Failure::from_name(cause).ok_or_else(|| bad(4, format!("unknown failure `{cause}`").into()))?;
            Outcome::Failed { cause, detail: row.get(5)? }
        }
        None => Outcome::Timed {
            times_ns: serde_json::from_str(row.get_ref(6)?.as_str()?).map_err(|e| bad(6, Box::new(e)))?,
            compile_us: row.get::<_, i64>(7)?.cast_unsigned(),
        },
    };
    Ok(Record {
        task_hash: row.get(0)?,
        target: row.get(1)?,
        space: row.get(2)?,
        trace,
        outcome,
        proposer: row.get(8)?,
        seed: row.get::<_, i64>(9)?.cast_unsigned(),
        created_unix_s: row.get::<_, i64>(10)?.cast_unsigned(),
        tilescribe: row.get(11)?,
    })
}

fn insert_one(connection: &Connection, task: &Task, record: &Record) -> rusqlite::Result<Inserted> {
    let task_row = row_id(
        connection,
        ["SELECT id FROM tasks WHERE hash = ?1", "INSERT INTO tasks (hash, workload) VALUES (?1, ?2)"],
        &record.task_hash,
        || task.workload.to_string(),
    )?;
    debug_assert_eq!(task.target.fingerprint(), record.target);
    let target_row = target_row(connection, &record.target, &task.target)?;
    let trace = record.trace.to_string();
    let key = &Sha256::digest(&trace)[..16];
    let there = connection
        .prepare_cached(
            "SELECT id, failure, best_ns FROM records WHERE task = ?1 AND target = ?2 AND space = ?3 AND trace_key = ?4",
        )?
        .query_row(params![task_row, target_row, record.space, key], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, Option<String>>(1)?, row.get::<_, Option<i64>>(2)?))
        })
        .optional()?;
    let (failure, detail, times_ns, compile_us) = match &record.outcome {
        Outcome::Timed { times_ns, compile_us } => (None, "", times_ns.as_slice(), *compile_us),
        Outcome::Failed { cause, detail } => (Some(*cause), detail.as_str(), [].as_slice(), 0),
    };
    let best_ns = record.outcome.best_ns();
    let inserted = match &there {
        None => Inserted::New,
        Some((id, old_failure, old_best)) => {
            let old = precedence(old_failure.as_deref().and_then(Failure::from_name), old_best.map(i64::cast_unsigned));
            if precedence(failure, best_ns) <= old {
                return Ok(Inserted::Kept);
            }
            connection.prepare_cached("DELETE FROM records WHERE id = ?1")?.execute([id])?;
            Inserted::Replaced
        }
    };
    let times = serde_json::to_string(times_ns).unwrap_or_default();
    connection
        .prepare_cached(
            "INSERT INTO records (id, task, target, space, trace, trace_key, failure, detail, times_ns, best_ns, compile_us,
                 proposer, seed, created_unix_s, tilescribe)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
        )?
        .execute(params![
            there.map(|(id, ..)| id),
            task_row,
            target_row,
            record.space,
            trace,
            key,
            failure.map(Failure::name),
            detail,
            times,
            best_ns.map(u64::cast_signed),
            compile_us.cast_signed(),
            record.proposer,
            record.seed.cast_signed(),
            record.created_unix_s.cast_signed(),
            record.tilescribe,
        ])?;
    Ok(inserted)
}

/// The id of a target of this fingerprint, which is inserted where it is new.
pub(super) fn target_row(connection: &Connection, fingerprint: &str, target: &Target) -> rusqlite::Result<i64> {
    row_id(
        connection,
        ["SELECT id FROM targets WHERE fingerprint = ?1", "INSERT INTO targets (fingerprint, target) VALUES (?1, ?2)"],
        fingerprint,
        || target.to_toml(),
    )
}

/// Which of two outcomes of one trace stays: the one of higher precedence. See [`Inserted`].
pub(super) fn precedence(failure: Option<Failure>, best_ns: Option<u64>) -> (u8, u64) {
    match failure {
        Some(Failure::WrongResult) => (4, 0),
        Some(Failure::Crash) => (3, 0),
        None => (2, u64::MAX - best_ns.unwrap_or(u64::MAX)),
        Some(Failure::DeadEnd | Failure::Compile) => (1, 0),
        Some(Failure::Timeout | Failure::Memory) => (0, 0),
    }
}

/// The id of a text by its key; the text is made and inserted where the key is new.
fn row_id(
    connection: &Connection,
    [find, insert]: [&str; 2],
    key: &str,
    text: impl Fn() -> String,
) -> rusqlite::Result<i64> {
    let found = connection.prepare_cached(find)?.query_row([key], |row| row.get(0)).optional()?;
    if let Some(id) = found {
        return Ok(id);
    }
    connection.prepare_cached(insert)?.execute(params![key, text()])?;
    Ok(connection.last_insert_rowid())
}

#[cfg(test)]
mod tests {
    use super::{Filter, Store, StoreError};
    use crate::outcome::Outcome;
    use crate::record::Record;
    use crate::space::Trace;
    use crate::target::{Architecture, Cpu, Task};

    #[test]
    fn a_full_disk_is_named_and_loses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(&folder.path().join("s.db")).unwrap();
        // SQLite reports a database at its limit exactly as it reports a full disk
        store.connection.pragma_update_and_check(None, "max_page_count", 20, |_| Ok(())).unwrap();
        let target = Cpu {
            architecture: Architecture::Aarch64,
            cpu: "generic".into(),
            features: Vec::new(),
            vector_bits: 128,
            vector_registers: 32,
            cores: 1,
            l1_bytes: 32 << 10,
            l2_bytes: 0,
            l3_bytes: 0,
        };
        let workload = "input t0 4\nout t1 4 exp t0 a\n".parse().unwrap();
        let task = Task { workload, target: target.into() };
        let mut kept = 0;
        let error = loop {
            let trace: Trace = format!("tile a = {kept}\n").parse().unwrap();
            let outcome = Outcome::Timed { times_ns: vec![kept; 100], compile_us: 1 };
            match store.insert(&task, &Record::new(&task, "1", trace, outcome, "random", 0)) {
                Ok(_) => kept += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, StoreError::DiskFull { .. }), "{error:?}");
        assert!(kept > 0);
        assert_eq!(store.records(&Filter::default()).unwrap().len() as u64, kept);
    }
}
