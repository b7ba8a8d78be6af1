//! Records as a space of today reads them: those of older versions of the space are upgraded, those that it
//! cannot read are counted, by reason.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use thiserror::Error;

use super::store::precedence;
use super::{Entry, Filter, Record, Store, StoreError};
use crate::outcome::Outcome;
use crate::space::{Space, Stale, Trace, Unreadable};
use crate::target::{Kind, Task};

/// Why a space does not read a record.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NotRead {
    #[error(transparent)]
    Version(#[from] Unreadable),
    #[error("its trace does not fit its own rules")]
    Trace(#[from] Stale),
}

impl Record {
    /// The record as `space` would have written it; see [`crate::space::Reader`]. Traces of the space's own
    /// version are taken as they are.
    ///
    /// # Errors
    /// [`NotRead`], which names the rule or the decision.
    pub fn read_by(&self, task: &Task, space: &Space) -> Result<Record, NotRead> {
        let kind = task.target.kind();
        let reader = space.reader(kind, &self.space)?;
        if reader.is_current() {
            return Ok(self.clone());
        }
        Ok(Record { trace: reader.upgrade(task, &self.trace)?, space: space.version(kind), ..self.clone() })
    }
}

/// What a space reads of some records.
#[derive(Clone, Debug)]
pub struct Readable<T> {
    pub records: Vec<T>,
    /// How many are not read, by reason.
    pub unread: BTreeMap<String, u64>,
}

impl<T> Readable<T> {
    fn of(read: impl IntoIterator<Item = Result<T, NotRead>>) -> Readable<T> {
        let mut readable = Readable { records: Vec::new(), unread: BTreeMap::new() };
        for result in read {
            match result {
                Ok(record) => readable.records.push(record),
                Err(reason) => *readable.unread.entry(reason.to_string()).or_default() += 1,
            }
        }
        readable
    }

    /// A warning for people; `None` where everything is read.
    pub fn warning(&self) -> Option<impl fmt::Display> {
        let count: u64 = self.unread.values().sum();
        let (reason, of_reason) = self.unread.iter().max_by_key(|(_, count)| **count)?;
        let more = if *of_reason < count { " (most of them)" } else { "" };
        Some(format!("{count} records are left out{more}: {reason}"))
    }
}

/// Entries as `space` would have written them.
pub fn readable(entries: &[Entry], space: &Space) -> Readable<Entry> {
    let read = |entry: &Entry| -> Result<Entry, NotRead> {
        Ok(Entry { record: entry.record.read_by(&entry.task, space)?, task: entry.task.clone() })
    };
    Readable::of(entries.par_iter().map(read).collect::<Vec<_>>())
}

impl Readable<Record> {
    /// The records of a task as `space` would have written them. Where two of them become the same trace, the
    /// outcome stays that would stay in a store; see [`super::Inserted`].
    pub fn of_task(records: &[Record], task: &Task, space: &Space) -> Readable<Record> {
        let mut readable = Readable::of(records.iter().map(|record| record.read_by(task, space)));
        let mut places: HashMap<Trace, usize> = HashMap::new();
        let mut distinct: Vec<Record> = Vec::with_capacity(readable.records.len());
        for record in readable.records {
            match places.get(&record.trace) {
                Some(place) if of(&record.outcome) > of(&distinct[*place].outcome) => distinct[*place] = record,
                Some(_) => {}
                None => {
                    places.insert(record.trace.clone(), distinct.len());
                    distinct.push(record);
                }
            }
        }
        readable.records = distinct;
        readable
    }
}

impl Store {
    /// What is known of a task, by [`Readable::of_task`].
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] or another where the store cannot be read.
    pub fn readable(&self, task: &Task, space: &Space) -> Result<Readable<Record>, StoreError> {
        let (task_hash, target) = (Some(task.workload.hash()), Some(task.target.fingerprint()));
        let records = self.records(&Filter { task_hash, target, space: None })?;
        Ok(Readable::of_task(&records, task, space))
    }

    /// The fastest program of a task in a space.
    ///
    /// # Errors
    /// As [`Store::readable`].
    pub fn fastest(&self, task: &Task, space: &Space) -> Result<Option<Record>, StoreError> {
        Ok(self.fastest_few(task, space, 1)?.pop())
    }

    /// The `count` fastest programs of a task in a space, fastest first.
    ///
    /// # Errors
    /// As [`Store::readable`].
    pub fn fastest_few(&self, task: &Task, space: &Space, count: usize) -> Result<Vec<Record>, StoreError> {
        let mut records = self.readable(task, space)?.records;
        records.retain(|record| record.outcome.best_ns().is_some());
        records.sort_by_key(|record| record.outcome.best_ns());
        // the store may hold programs by algorithms that the space leaves out
        let offered = records.into_iter().filter(|record| !space.leaves_out() || space.offers(task, &record.trace));
        Ok(offered.take(count).collect())
    }

    /// The versions of spaces that the store has records of, and that `space` reads for machines of such
    /// kinds.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] or another where the store cannot be read.
    pub fn readable_spaces(&self, space: &Space, kinds: &[Kind]) -> Result<Vec<String>, StoreError> {
        let mut versions: Vec<String> = self.list()?.into_iter().map(|row| row.space).collect();
        versions.sort();
        versions.dedup();
        versions.retain(|version| kinds.iter().any(|kind| space.reader(*kind, version).is_ok()));
        Ok(versions)
    }
}

/// Orders outcomes of one trace; the larger one stays.
fn of(outcome: &Outcome) -> (u8, u64) {
    match outcome {
        Outcome::Timed { .. } => precedence(None, outcome.best_ns()),
        Outcome::Failed { cause, .. } => precedence(Some(*cause), None),
    }
}
