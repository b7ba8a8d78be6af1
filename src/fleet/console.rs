//! A fleet as its keeper sees it: figures, and the few things to be done by hand.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;
use tokio_postgres::Row;

use super::coordinator::record;
use super::error::FleetError;
use super::link::Link;
use super::settings::Settings;
use crate::record::{CorpusWriter, Filter, Record, Store};
use crate::target::{Target, Task};

/// A connection for looking and for keeping order.
pub struct Console {
    link: Link,
}

/// A fleet in figures. Serialises to what `fleet status --json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Overview {
    pub fleet: String,
    /// Seconds after which a silent worker has lost its lease.
    pub lease_seconds: i32,
    pub draining: bool,
    /// By the server's clock, as ISO 8601.
    pub now: String,
    /// Programs measured in all, and within the last minute.
    pub programs: i64,
    pub last_minute: i64,
    /// For each of the last sixty minutes, the oldest first.
    pub by_minute: Vec<i64>,
    /// Of these: not timed, by cause.
    pub failed: BTreeMap<String, i64>,
    /// Plans by state, over all targets.
    pub plans: BTreeMap<String, i64>,
    pub targets: Vec<TargetRow>,
    pub workers: Vec<WorkerRow>,
}

/// The plans of a target in a version of the search space.
#[derive(Clone, Debug, Serialize)]
pub struct TargetRow {
    pub fingerprint: String,
    pub space: String,
    pub waiting: i64,
    pub leased: i64,
    pub parked: i64,
    pub done: i64,
    pub cancelled: i64,
    /// Programs of those that wait.
    pub programs_waiting: i64,
    /// Workers that are there and may take them.
    pub workers: i64,
}

/// A worker.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerRow {
    pub id: i64,
    pub name: String,
    pub target: String,
    pub space: String,
    pub tilescribe: String,
    pub state: WorkerState,
    /// Seconds since it was heard of.
    pub silent_s: f64,
    /// Programs that it measured in all, and within the last minute.
    pub programs: i64,
    pub last_minute: i64,
    /// Seconds that it measured, and that it waited for something to measure.
    pub busy_s: f64,
    pub idle_s: f64,
    /// The plan that it has leased.
    pub plan: Option<i64>,
}

/// What a worker is up to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkerState {
    Measuring,
    Idle,
    /// It takes nothing more.
    Draining,
    /// Not heard of for longer than a lease lasts.
    Silent,
    /// It said goodbye.
    Gone,
}

impl WorkerState {
    pub fn name(self) -> &'static str {
        match self {
            WorkerState::Measuring => "measuring",
            WorkerState::Idle => "idle",
            WorkerState::Draining => "draining",
            WorkerState::Silent => "silent",
            WorkerState::Gone => "gone",
        }
    }

    fn from_name(name: &str) -> WorkerState {
        let all = [WorkerState::Measuring, WorkerState::Idle, WorkerState::Draining, WorkerState::Silent];
        all.into_iter().find(|state| state.name() == name).unwrap_or(WorkerState::Gone)
    }
}

/// A plan.
#[derive(Clone, Debug, Serialize)]
pub struct PlanRow {
    pub id: i64,
    pub run: String,
    pub task: String,
    pub target: String,
    pub kind: String,
    pub state: String,
    pub programs: i32,
    pub measured: i64,
    /// Times that it was leased.
    pub leases: i64,
    /// Seconds since it was sent.
    pub age_s: f64,
    pub cause: Option<String>,
}

/// Which records to export; `None` means all.
#[derive(Clone, Default, Debug)]
pub struct ExportFilter {
    /// Fingerprint.
    pub target: Option<String>,
    /// The worker's number.
    pub worker: Option<i64>,
    /// The command that asked for them.
    pub run: Option<String>,
}

impl Console {
    /// # Errors
    /// [`FleetError`].
    pub fn connect(settings: &Settings) -> Result<Console, FleetError> {
        let link = Link::open(settings.clone(), Arc::new(AtomicBool::new(false)))?;
        Ok(Console { link })
    }

    /// # Errors
    /// [`FleetError`].
    pub fn overview(&mut self) -> Result<Overview, FleetError> {
        let workers = self.workers()?;
        let targets = self.targets()?;
        let (about, by_minute, failed) = self.link.once(|client| {
            let about = client.query_one(
                "SELECT id::text, lease_seconds, draining, to_char(clock_timestamp() AT TIME ZONE 'UTC',
                    'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') FROM fleet.about",
                &[],
            )?;
            let minutes = "
                SELECT (extract(epoch FROM clock_timestamp() - received) / 60)::int AS ago, count(*)
                FROM fleet.records WHERE received > clock_timestamp() - interval '1 hour' GROUP BY ago";
            let failed = "SELECT failure, count(*) FROM fleet.records WHERE failure IS NOT NULL GROUP BY failure";
            Ok((about, client.query(minutes, &[])?, client.query(failed, &[])?))
        })?;
        let mut minutes = vec![0; 60];
        for row in &by_minute {
            let ago = usize::try_from(row.get::<_, i32>(0)).unwrap_or(0).min(59);
            minutes[59 - ago] += row.get::<_, i64>(1);
        }
        let mut plans = BTreeMap::new();
        for target in &targets {
            let TargetRow { waiting, leased, parked, done, cancelled, .. } = target;
            let counts = [
                ("waiting", waiting),
                ("leased", leased),
                ("parked", parked),
                ("done", done),
                ("cancelled", cancelled),
            ];
            for (state, count) in counts {
                *plans.entry(state.to_string()).or_default() += count;
            }
        }
        Ok(Overview {
            fleet: about.get(0),
            lease_seconds: about.get(1),
            draining: about.get(2),
            now: about.get(3),
            programs: workers.iter().map(|worker| worker.programs).sum(),
            last_minute: workers.iter().map(|worker| worker.last_minute).sum(),
            by_minute: minutes,
            failed: failed.iter().map(|row| (row.get(0), row.get(1))).collect(),
            plans,
            targets,
            workers,
        })
    }

    fn targets(&mut self) -> Result<Vec<TargetRow>, FleetError> {
        let sql = "
            SELECT p.target, p.space, count(*) FILTER (WHERE state = 'waiting'), count(*) FILTER (WHERE state = 'leased'),
                count(*) FILTER (WHERE state = 'parked'), count(*) FILTER (WHERE state = 'done'),
                count(*) FILTER (WHERE state = 'cancelled'),
                coalesce(sum(cardinality(traces)) FILTER (WHERE state = 'waiting'), 0)::bigint,
                (SELECT count(*) FROM fleet.workers w, fleet.about WHERE w.target = p.target AND w.space = p.space
                    AND w.gone IS NULL AND w.seen > clock_timestamp() - make_interval(secs => lease_seconds))
            FROM fleet.plans p GROUP BY p.target, p.space ORDER BY p.target, p.space";
        let rows = self.link.once(|client| client.query(sql, &[]))?;
        let read = |row: &Row| TargetRow {
            fingerprint: row.get(0),
            space: row.get(1),
            waiting: row.get(2),
            leased: row.get(3),
            parked: row.get(4),
            done: row.get(5),
            cancelled: row.get(6),
            programs_waiting: row.get(7),
            workers: row.get(8),
        };
        Ok(rows.iter().map(read).collect())
    }

    /// All workers, in the order in which they joined.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn workers(&mut self) -> Result<Vec<WorkerRow>, FleetError> {
        let sql = "
            WITH recent AS (
                SELECT l.worker, count(*) AS programs FROM fleet.records r JOIN fleet.leases l USING (plan, fence)
                WHERE r.received > clock_timestamp() - interval '1 minute' GROUP BY l.worker
            ), held AS (SELECT worker, min(plan) AS plan FROM fleet.leases WHERE ended IS NULL GROUP BY worker)
            SELECT w.id, w.name, w.target, w.space, w.tilescribe,
                CASE WHEN w.gone IS NOT NULL THEN 'gone'
                    WHEN w.seen < clock_timestamp() - make_interval(secs => lease_seconds) THEN 'silent'
                    WHEN held.plan IS NOT NULL THEN 'measuring'
                    WHEN w.draining OR about.draining THEN 'draining' ELSE 'idle' END,
                extract(epoch FROM clock_timestamp() - w.seen)::float8, w.programs, coalesce(recent.programs, 0),
                w.busy_s, w.idle_s, held.plan
            FROM fleet.about, fleet.workers w LEFT JOIN recent ON recent.worker = w.id LEFT JOIN held ON held.worker = w.id
            ORDER BY w.id";
        let rows = self.link.once(|client| client.query(sql, &[]))?;
        let read = |row: &Row| WorkerRow {
            id: row.get(0),
            name: row.get(1),
            target: row.get(2),
            space: row.get(3),
            tilescribe: row.get(4),
            state: WorkerState::from_name(row.get(5)),
            silent_s: row.get(6),
            programs: row.get(7),
            last_minute: row.get(8),
            busy_s: row.get(9),
            idle_s: row.get(10),
            plan: row.get(11),
        };
        Ok(rows.iter().map(read).collect())
    }

    /// The newest plans, at most so many; of one state only, where it is named.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn plans(&mut self, state: Option<&str>, most: u32) -> Result<Vec<PlanRow>, FleetError> {
        let sql = "
            SELECT p.id, p.run, t.hash, p.target, p.kind, p.state, cardinality(p.traces),
                (SELECT count(DISTINCT number) FROM fleet.records r WHERE r.plan = p.id),
                (SELECT count(*) FROM fleet.leases l WHERE l.plan = p.id),
                extract(epoch FROM clock_timestamp() - p.created)::float8, p.cause
            FROM fleet.plans p JOIN fleet.tasks t ON t.id = p.task
            WHERE $1::text IS NULL OR p.state = $1 ORDER BY p.id DESC LIMIT $2";
        let rows = self.link.once(|client| client.query(sql, &[&state, &i64::from(most)]))?;
        let read = |row: &Row| PlanRow {
            id: row.get(0),
            run: row.get(1),
            task: row.get(2),
            target: row.get(3),
            kind: row.get(4),
            state: row.get(5),
            programs: row.get(6),
            measured: row.get(7),
            leases: row.get(8),
            age_s: row.get(9),
            cause: row.get(10),
        };
        Ok(rows.iter().map(read).collect())
    }

    /// Gives parked plans another chance: those named, or all. Returns how many.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn retry(&mut self, plans: Option<&[i64]>) -> Result<u64, FleetError> {
        let count: i32 = self.link.once(|client| Ok(client.query_one("SELECT fleet.retry($1)", &[&plans])?.get(0)))?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Lets workers, those named or all, take nothing more once they have finished what they have; or lets
    /// them again.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn drain(&mut self, workers: Option<&[i64]>, is_on: bool) -> Result<(), FleetError> {
        self.link.once(|client| client.query("SELECT fleet.drain($1, $2)", &[&workers, &is_on])).map(|_| ())
    }

    /// Writes what was measured as a corpus file, each program of a task on a target once, sorted as
    /// [`Store::export`] sorts. `store` gathers it, and is empty before. Returns how many records.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn export<W: Write>(
        &mut self,
        filter: &ExportFilter,
        store: &mut Store,
        writer: &mut CorpusWriter<W>,
    ) -> Result<u64, FleetError> {
        let sql = "
            SELECT r.plan, r.number, r.fence, t.hash, t.workload, p.target, g.target AS target_text, p.space, p.traces[r.number] AS trace,
                p.proposer, p.seed, r.failure, r.detail, r.times_ns, r.compile_us, r.tilescribe,
                extract(epoch FROM r.received)::bigint AS received
            FROM fleet.records r JOIN fleet.leases l USING (plan, fence) JOIN fleet.plans p ON p.id = r.plan
                JOIN fleet.tasks t ON t.id = p.task JOIN fleet.targets g ON g.fingerprint = p.target
            WHERE p.kind <> 'finals' AND ($1::text IS NULL OR p.target = $1) AND ($2::bigint IS NULL OR l.worker = $2)
                AND ($3::text IS NULL OR p.run = $3)
                AND (r.plan, r.number, r.fence) > ($4, $5, $6)
            ORDER BY r.plan, r.number, r.fence LIMIT 1000";
        let ExportFilter { target, worker, run } = filter;
        let mut task: Option<(String, String, Arc<Task>)> = None;
        // records are never changed or removed: going on behind the last one misses none
        let (mut plan, mut number, mut fence) = (0i64, 0i32, 0i64);
        loop {
            let rows = self.link.once(|client| client.query(sql, &[target, worker, run, &plan, &number, &fence]))?;
            let Some(last) = rows.last() else { break };
            (plan, number, fence) = (last.get("plan"), last.get("number"), last.get("fence"));
            let mut entries: Vec<(Arc<Task>, Record)> = Vec::with_capacity(rows.len());
            for row in &rows {
                let (hash, fingerprint, space): (String, String, String) =
                    (row.get("hash"), row.get("target"), row.get("space"));
                let own = match task.take() {
                    Some((last, target, own)) if last == hash && target == fingerprint => own,
                    _ => Arc::new(read_task(row, &hash, &fingerprint)?),
                };
                entries.push((Arc::clone(&own), record(row, &hash, &fingerprint, &space)?));
                task = Some((hash, fingerprint, own));
            }
            store.insert_many(entries.iter().map(|(task, record)| (&**task, record)))?;
        }
        Ok(store.export(&Filter::default(), writer)?)
    }
}

/// # Errors
/// [`FleetError::Nonsense`].
fn read_task(row: &Row, hash: &str, fingerprint: &str) -> Result<Task, FleetError> {
    let (workload, target): (String, String) = (row.get("workload"), row.get("target_text"));
    let workload: crate::workload::Workload =
        workload.parse().map_err(|error| FleetError::Nonsense(format!("a workload that is none: {error}")))?;
    let target =
        Target::from_toml(&target).map_err(|error| FleetError::Nonsense(format!("a target that is none: {error}")))?;
    match *workload.hash() == *hash && target.fingerprint() == fingerprint {
        true => Ok(Task { workload, target }),
        false => Err(FleetError::Nonsense(format!("task {hash} on {fingerprint} under a wrong name"))),
    }
}
