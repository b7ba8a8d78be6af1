//! Plans of networks, and what they took: a corpus beside that of programs.
//!
//! The table came after the first stores. A store without one has no plans; it gets the table with the first
//! plan that is kept, and the Tilescribe that made it still reads all else.

use rusqlite::{Connection, Row, TransactionBehavior, params};
use sha2::{Digest, Sha256};

use super::TILESCRIBE_VERSION;
use super::error::StoreError;
use super::schema::PLANS_TABLE;
use super::store::{Store, target_row};
use crate::target::Target;

/// A plan of a program on a target, and what is known of its time.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanRecord {
    /// [`crate::graph::Network::hash`] of the network that is cut by default.
    pub program: String,
    /// What people call the network: of the last compilation that kept the plan.
    pub name: String,
    /// [`Target::fingerprint`].
    pub target: String,
    /// As text: the decisions that are not the defaults.
    pub plan: String,
    /// Distinct tasks.
    pub tasks: u64,
    /// Calls of tasks in a run.
    pub calls: u64,
    /// Nanoseconds of the fastest programs known of all tasks, times their calls.
    pub tasks_ns: f64,
    /// How its tasks were timed.
    pub timing: TasksTiming,
    /// Where the whole network was run.
    pub run: Option<PlanRun>,
    /// Seconds since 1970, UTC.
    pub created_unix_s: u64,
    /// The Tilescribe that kept it.
    pub tilescribe: String,
}

/// Times of a network that was run in turn with that of the default plan.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PlanRun {
    /// Nanoseconds of a run.
    pub ns: f64,
    /// The same of the default plan's network.
    pub default_ns: f64,
}

/// How the tasks of a plan were timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TasksTiming {
    /// All of them in the finals of one search.
    Finals,
    /// By the fastest run of each that the store holds.
    Records,
}

impl TasksTiming {
    pub const ALL: [TasksTiming; 2] = [TasksTiming::Finals, TasksTiming::Records];

    pub const fn name(self) -> &'static str {
        match self {
            TasksTiming::Finals => "finals",
            TasksTiming::Records => "records",
        }
    }
}

impl PlanRecord {
    /// What the whole took where it was run, as a share of what the default plan's network did.
    pub fn run_ratio(&self) -> Option<f64> {
        self.run.map(|run| run.ns / run.default_ns)
    }

    /// The seconds of now, which are the same for all plans that a compilation keeps; and this version.
    pub fn stamp() -> (u64, String) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        (now.map_or(0, |since| since.as_secs()), TILESCRIBE_VERSION.to_string())
    }
}

impl Store {
    /// Commits plans of one target in one transaction. Of a plan that is there the new times replace the old
    /// ones, but a run is kept where the new record has none.
    ///
    /// # Errors
    /// As [`Store::insert`]; then none is committed.
    pub fn insert_plans(&mut self, target: &Target, plans: &[PlanRecord]) -> Result<(), StoreError> {
        if plans.is_empty() {
            return Ok(());
        }
        let write = |connection: &mut Connection| -> rusqlite::Result<()> {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction.execute_batch(PLANS_TABLE)?;
            let target = target_row(&transaction, &target.fingerprint(), target)?;
            plans.iter().try_for_each(|plan| insert_one(&transaction, target, plan))?;
            transaction.commit()
        };
        write(&mut self.connection).map_err(|e| StoreError::from_sqlite(&self.path, e))
    }

    /// The plans of a program, or of all: by program, target and time, the fastest first.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] or another where the store cannot be read.
    pub fn plans(&self, program: Option<&str>) -> Result<Vec<PlanRecord>, StoreError> {
        let read = || -> rusqlite::Result<Vec<PlanRecord>> {
            let table = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'plans'";
            if self.connection.query_row(table, [], |row| row.get::<_, i64>(0))? == 0 {
                return Ok(Vec::new());
            }
            let mut statement = self.connection.prepare(
                "SELECT program, name, targets.fingerprint, plan, tasks, calls, tasks_ns, timing, run_ns,
                     default_run_ns, created_unix_s, tilescribe
                 FROM plans JOIN targets ON targets.id = plans.target WHERE ?1 IS NULL OR program = ?1
                 ORDER BY program, targets.fingerprint, tasks_ns, plans.id",
            )?;
            statement.query_map([program], record_of)?.collect()
        };
        read().map_err(|e| StoreError::from_sqlite(&self.path, e))
    }
}

fn insert_one(connection: &Connection, target: i64, plan: &PlanRecord) -> rusqlite::Result<()> {
    let key = &Sha256::digest(&plan.plan)[..16];
    let (run_ns, default_run_ns) = plan.run.map(|run| (run.ns, run.default_ns)).unzip();
    let mut statement = connection.prepare_cached(
        "INSERT INTO plans (program, name, target, plan, plan_key, tasks, calls, tasks_ns, timing, run_ns,
             default_run_ns, created_unix_s, tilescribe)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
         ON CONFLICT (program, target, plan_key) DO UPDATE SET
             name = excluded.name, tasks = excluded.tasks, calls = excluded.calls, tasks_ns = excluded.tasks_ns,
             timing = excluded.timing, run_ns = coalesce(excluded.run_ns, run_ns),
             default_run_ns = coalesce(excluded.default_run_ns, default_run_ns),
             created_unix_s = excluded.created_unix_s, tilescribe = excluded.tilescribe",
    )?;
    statement.execute(params![
        plan.program,
        plan.name,
        target,
        plan.plan,
        key,
        plan.tasks.cast_signed(),
        plan.calls.cast_signed(),
        plan.tasks_ns,
        plan.timing.name(),
        run_ns,
        default_run_ns,
        plan.created_unix_s.cast_signed(),
        plan.tilescribe,
    ])?;
    Ok(())
}

fn record_of(row: &Row<'_>) -> rusqlite::Result<PlanRecord> {
    let timing = row.get_ref(7)?.as_str()?;
    let timing = TasksTiming::ALL.into_iter().find(|known| known.name() == timing).ok_or_else(|| {
        let error = format!("unknown timing `{timing}`").into();
        rusqlite::Error::FromSqlConversionFailure(7, rusqlite::types::Type::Text, error)
    })?;
    let run = row.get::<_, Option<f64>>(8)?.zip(row.get::<_, Option<f64>>(9)?);
    Ok(PlanRecord {
        program: row.get(0)?,
        name: row.get(1)?,
        target: row.get(2)?,
        plan: row.get(3)?,
        tasks: row.get::<_, i64>(4)?.cast_unsigned(),
        calls: row.get::<_, i64>(5)?.cast_unsigned(),
        tasks_ns: row.get(6)?,
        timing,
        run: run.map(|(ns, default_ns)| PlanRun { ns, default_ns }),
        created_unix_s: row.get::<_, i64>(10)?.cast_unsigned(),
        tilescribe: row.get(11)?,
    })
}
