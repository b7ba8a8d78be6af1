//! A coordinator: sends plans to the fleet, and is told what came out as it comes.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio_postgres::Row;

use super::error::FleetError;
use super::link::{self, Client, Link};
use super::settings::Settings;
use super::wire::{self, MAX_PROGRAMS};
use crate::measure::{Batch, Mode};
use crate::outcome::Outcome;
use crate::record::Record;
use crate::space::{Space, Trace};
use crate::target::{Kind, Target, Task};

/// How often the server is asked for news: while there are some, and when there were none for a while.
const POLLS: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(500)];
/// How often workers are counted, and what silent ones held is taken back.
const COUNTS: Duration = Duration::from_secs(2);

/// A connection to a fleet for one command. Its sessions may be used from several threads.
pub struct Coordinator {
    link: Mutex<Link>,
    /// Names the command, so that it finds its plans again when it is started anew.
    run: String,
    /// Versions of the search space, by kind of machine.
    spaces: [(Kind, String); 2],
    shared: Arc<Shared>,
    poller: Option<JoinHandle<()>>,
}

/// What sessions and the thread that polls share.
#[derive(Default)]
struct Shared {
    open: Mutex<HashMap<i64, Open>>,
    /// Workers that are there and read this space, by target.
    workers: Mutex<HashMap<String, usize>>,
    has_ended: AtomicBool,
    /// Why the thread that polls gave up: every session is told.
    failed: OnceLock<String>,
}

/// A plan that somebody waits for.
struct Open {
    /// As of the last poll.
    news: i64,
    seen: BTreeSet<i32>,
    session: mpsc::Sender<News>,
}

/// What a session hears.
#[derive(Debug)]
pub enum News {
    /// What became of a program of a plan, numbered from 0.
    Measured { plan: i64, number: usize, outcome: Outcome },
    /// All of it is measured, or as much as was wanted.
    Done { plan: i64 },
    /// Nobody measures it: why.
    Parked { plan: i64, cause: String },
}

/// Who wrote the programs of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin<'a> {
    pub proposer: &'a str,
    pub seed: u64,
}

impl Coordinator {
    /// Connects. `run` names the command: one that is started again under the same name finds what it had
    /// sent.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn connect(
        settings: &Settings,
        run: &str,
        space: &Space,
        stop: &Arc<AtomicBool>,
    ) -> Result<Coordinator, FleetError> {
        let link = Link::open(settings.clone(), Arc::clone(stop))?;
        let mut polling = Link::open(settings.clone(), Arc::new(AtomicBool::new(false)))?;
        let spaces = [Kind::Cpu, Kind::Gpu].map(|kind| (kind, space.version(kind)));
        let shared = Arc::new(Shared::default());
        let versions = spaces.iter().map(|(_, version)| version.clone()).collect();
        shared.count_workers(&mut polling, &versions)?;
        let poller = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.poll(&mut polling, &versions))
        };
        let run = run.chars().take(1000).collect();
        Ok(Coordinator { link: Mutex::new(link), run, spaces, shared, poller: Some(poller) })
    }

    /// The targets that workers have registered, forged and unreadable ones left out.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn targets(&self) -> Result<Vec<Target>, FleetError> {
        let rows = self.ask(|client| client.query("SELECT fingerprint, target FROM fleet.targets ORDER BY 1", &[]))?;
        let mut targets = Vec::new();
        for row in rows {
            let (fingerprint, text): (String, String) = (row.get(0), row.get(1));
            match Target::from_toml(&text) {
                Ok(target) if target.fingerprint() == fingerprint => targets.push(target),
                _ => tracing::warn!("the target {fingerprint} is none: it is left out"),
            }
        }
        Ok(targets)
    }

    /// Makes a target known, so that plans for it may wait for its first worker.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn know(&self, target: &Target) -> Result<(), FleetError> {
        let (fingerprint, text) = (target.fingerprint(), target.to_toml());
        self.ask(|client| client.query("SELECT fleet.know_target($1, $2)", &[&fingerprint, &text])).map(|_| ())
    }

    /// Workers of these targets, by their fingerprints, that were heard of within the last lease's time and
    /// read this space.
    pub fn workers(&self, targets: &[String]) -> usize {
        let workers = self.shared.workers();
        targets.iter().filter_map(|fingerprint| workers.get(fingerprint)).sum()
    }

    fn space_of(&self, task: &Task) -> String {
        let mut own = self.spaces.iter().filter(|(kind, _)| *kind == task.target.kind());
        own.next().map_or_else(String::new, |(_, version)| version.clone())
    }

    /// What the fleet has measured of a task, whoever asked for it.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn known(&self, task: &Task) -> Result<Vec<Record>, FleetError> {
        let (hash, target) = (task.workload.hash().to_string(), task.target.fingerprint());
        let space = self.space_of(task);
        let sql = "
            SELECT p.traces[r.number] AS trace, p.proposer, p.seed, r.failure, r.detail, r.times_ns, r.compile_us,
                r.tilescribe, extract(epoch FROM r.received)::bigint AS received
            FROM fleet.plans p JOIN fleet.tasks t ON t.id = p.task JOIN fleet.records r ON r.plan = p.id
            WHERE t.hash = $1 AND p.target = $2 AND p.space = $3 AND p.kind <> 'finals' ORDER BY p.id, r.number, r.fence";
        let rows = self.ask(|client| client.query(sql, &[&hash, &target, &space]))?;
        rows.iter().map(|row| record(row, &hash, &target, &space)).collect()
    }

    /// A session of its own for a search.
    pub fn session(self: &Arc<Self>) -> Session {
        let (sender, receiver) = mpsc::channel();
        Session { coordinator: Arc::clone(self), sender, receiver, open: BTreeSet::new() }
    }

    fn ask<T>(&self, ask: impl FnMut(&mut Client) -> Result<T, FleetError>) -> Result<T, FleetError> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner).patiently(ask)
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Relaxed);
        if let Some(poller) = self.poller.take() {
            // a panic in there has been printed
            let _ = poller.join();
        }
    }
}

/// A record as the fleet keeps it: when it was received, by the server's clock.
///
/// # Errors
/// [`FleetError::Nonsense`].
pub(super) fn record(row: &Row, hash: &str, target: &str, space: &str) -> Result<Record, FleetError> {
    let nonsense = |error: tokio_postgres::Error| FleetError::Nonsense(error.to_string());
    let trace: String = row.try_get("trace").map_err(nonsense)?;
    let trace = trace.parse().map_err(|error| FleetError::Nonsense(format!("a trace that is none: {error}")))?;
    Ok(Record {
        task_hash: hash.to_string(),
        target: target.to_string(),
        space: space.to_string(),
        trace,
        outcome: wire::outcome(row)?,
        proposer: row.try_get("proposer").map_err(nonsense)?,
        seed: row.try_get::<_, i64>("seed").map_err(nonsense)?.cast_unsigned(),
        created_unix_s: u64::try_from(row.try_get::<_, i64>("received").map_err(nonsense)?).unwrap_or(0),
        tilescribe: row.try_get("tilescribe").map_err(nonsense)?,
    })
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, HashMap<i64, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn workers(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until the coordinator ends. A server that is lost is waited for.
    fn poll(&self, link: &mut Link, spaces: &Vec<String>) {
        let (mut between, mut counted) = (POLLS[0], Instant::now());
        let mut was_lost = false;
        while !self.has_ended.load(Ordering::Relaxed) {
            let mut turn = || -> Result<bool, FleetError> {
                if counted.elapsed() >= COUNTS {
                    self.count_workers(link, spaces)?;
                    counted = Instant::now();
                }
                self.read_news(link)
            };
            between = match turn() {
                Ok(true) => POLLS[0],
                Ok(false) => (between * 2).min(POLLS[1]),
                Err(error) if error.may_pass() => {
                    if !was_lost {
                        tracing::warn!("{error}; trying again until it comes back");
                    }
                    was_lost = true;
                    link::pause(POLLS[1], &self.has_ended).unwrap_or_default();
                    continue;
                }
                Err(error) => {
                    self.failed.get_or_init(|| error.to_string());
                    return;
                }
            };
            was_lost = false;
            link::pause(between, &self.has_ended).unwrap_or_default();
        }
    }

    fn count_workers(&self, link: &mut Link, spaces: &Vec<String>) -> Result<(), FleetError> {
        let sql = "
            SELECT target, count(*) FROM fleet.workers, fleet.about
            WHERE gone IS NULL AND seen > clock_timestamp() - make_interval(secs => lease_seconds)
                AND space = ANY ($1) GROUP BY target";
        let rows = link.once(|client| {
            client.query("SELECT fleet.take_back_expired()", &[])?;
            client.query(sql, &[spaces])
        })?;
        let count = |row: &Row| usize::try_from(row.get::<_, i64>(1)).unwrap_or(0);
        *self.workers() = rows.iter().map(|row| (row.get(0), count(row))).collect();
        Ok(())
    }

    /// Passes on what is new; says whether anything was.
    fn read_news(&self, link: &mut Link) -> Result<bool, FleetError> {
        let ids: Vec<i64> = self.open().keys().copied().collect();
        if ids.is_empty() {
            return Ok(false);
        }
        let sql = "SELECT id, news, state, coalesce(cause, '') FROM fleet.plans WHERE id = ANY ($1)";
        let plans = link.once(|client| client.query(sql, &[&ids]))?;
        let mut is_news = false;
        for row in &plans {
            let (plan, news, state, cause): (i64, i64, &str, String) = (row.get(0), row.get(1), row.get(2), row.get(3));
            if self.open().get(&plan).is_none_or(|open| open.news == news) {
                continue;
            }
            is_news = true;
            // read after `news`: what arrives meanwhile is read once more. Times of finals are held against
            // each other: all are of one lease
            let sql = "
                SELECT r.number, r.failure, r.detail, r.times_ns, r.compile_us
                FROM fleet.records r JOIN fleet.plans p ON p.id = r.plan
                WHERE r.plan = $1 AND (p.kind <> 'finals' OR r.fence = fleet.whole_lease(p))
                ORDER BY r.fence, r.number";
            let records = link.once(|client| client.query(sql, &[&plan]))?;
            let mut open = self.open();
            let Some(waiting) = open.get_mut(&plan) else { continue };
            waiting.news = news;
            for row in &records {
                let number: i32 = row.get(0);
                if waiting.seen.insert(number) {
                    let outcome = wire::outcome(row)?;
                    let number = usize::try_from(number - 1).unwrap_or(0);
                    // a session that is gone wants no news
                    let _ = waiting.session.send(News::Measured { plan, number, outcome });
                }
            }
            let last = match state {
                "done" => Some(News::Done { plan }),
                "parked" => Some(News::Parked { plan, cause }),
                "cancelled" => Some(News::Parked { plan, cause: "it was cancelled".into() }),
                _ => None,
            };
            if let Some(last) = last {
                let _ = waiting.session.send(last);
                open.remove(&plan);
            }
        }
        Ok(is_news)
    }
}

/// The plans of one search. Dropped, it withdraws what nobody has begun to measure.
pub struct Session {
    coordinator: Arc<Coordinator>,
    sender: mpsc::Sender<News>,
    receiver: mpsc::Receiver<News>,
    open: BTreeSet<i64>,
}

/// A plan of an earlier run of the same command that is not done yet.
#[derive(Clone, Debug)]
pub struct Adopted {
    pub plan: i64,
    pub traces: Vec<Trace>,
}

impl Session {
    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// Sends a batch; returns the plan's number. Waits for a server that is lost.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn submit(&mut self, batch: &Batch, origin: Origin<'_>) -> Result<i64, FleetError> {
        if batch.traces.is_empty() || batch.traces.len() > MAX_PROGRAMS {
            let detail = format!("a plan has 1 to {MAX_PROGRAMS} programs, and not {}", batch.traces.len());
            return Err(FleetError::Refused { detail });
        }
        let Batch { task, traces, mode, best } = batch;
        let (hash, workload) = (task.workload.hash().to_string(), task.workload.to_string());
        let (target, space) = (task.target.fingerprint(), self.coordinator.space_of(task));
        let traces: Vec<String> = traces.iter().map(Trace::to_string).collect();
        let best_trace = best.as_ref().map(|(trace, _)| trace.to_string());
        let best_ns = best.as_ref().map(|(_, ns)| i64::try_from((*ns).max(1)).unwrap_or(i64::MAX));
        let (run, key, mode, seed) = (&self.coordinator.run, key()?, mode.name(), origin.seed.cast_signed());
        let sql = "SELECT fleet.submit($1::text::uuid, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
        let plan = self.coordinator.ask(|client| {
            let row = client.query_one(
                sql,
                &[
                    &key,
                    run,
                    &origin.proposer,
                    &seed,
                    &mode,
                    &hash,
                    &workload,
                    &target,
                    &space,
                    &traces,
                    &best_trace,
                    &best_ns,
                ],
            )?;
            Ok(row.get(0))
        })?;
        self.await_news(plan);
        Ok(plan)
    }

    fn await_news(&mut self, plan: i64) {
        self.open.insert(plan);
        let open = Open { news: -1, seen: BTreeSet::new(), session: self.sender.clone() };
        self.coordinator.shared.open().insert(plan, open);
    }

    /// Waits for news of this session's plans.
    ///
    /// # Errors
    /// [`FleetError`] where the server will say nothing any more.
    pub fn wait(&mut self, time: Duration) -> Result<Option<News>, FleetError> {
        match self.receiver.recv_timeout(time) {
            Ok(news) => {
                if let News::Done { plan } | News::Parked { plan, .. } = &news {
                    self.open.remove(plan);
                }
                Ok(Some(news))
            }
            Err(_) => match self.coordinator.shared.failed.get() {
                Some(detail) => Err(FleetError::Refused { detail: detail.clone() }),
                None => Ok(None),
            },
        }
    }

    /// Takes over what an earlier run of the same command sent of a task, in its name, and was not told of.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn adopt(&mut self, task: &Task, origin: Origin<'_>) -> Result<Vec<Adopted>, FleetError> {
        let (hash, target) = (task.workload.hash().to_string(), task.target.fingerprint());
        let space = self.coordinator.space_of(task);
        let (run, seed, each) = (&self.coordinator.run, origin.seed.cast_signed(), Mode::Each.name());
        let sql = "
            SELECT p.id, p.traces FROM fleet.plans p JOIN fleet.tasks t ON t.id = p.task
            WHERE p.run = $1 AND p.proposer = $2 AND p.seed = $3 AND p.kind = $4 AND t.hash = $5 AND p.target = $6
                AND p.space = $7 AND p.state IN ('waiting', 'leased') ORDER BY p.id";
        let rows = self
            .coordinator
            .ask(|client| client.query(sql, &[run, &origin.proposer, &seed, &each, &hash, &target, &space]))?;
        let mut adopted = Vec::new();
        for row in rows {
            let (plan, texts): (i64, Vec<String>) = (row.get(0), row.get(1));
            let parsed: Result<Vec<Trace>, _> = texts.iter().map(|text| text.parse()).collect();
            let traces = parsed.map_err(|error| FleetError::Nonsense(format!("a trace that is none: {error}")))?;
            self.await_news(plan);
            adopted.push(Adopted { plan, traces });
        }
        Ok(adopted)
    }

    /// Leaves this session's plans to the fleet: they are measured, though nobody here waits for them.
    pub fn let_go(&mut self) {
        let plans = std::mem::take(&mut self.open);
        let mut open = self.coordinator.shared.open();
        plans.iter().for_each(|plan| drop(open.remove(plan)));
    }

    /// Nobody waits for this session's plans any more. What is being measured still arrives at the server.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn withdraw(&mut self) -> Result<(), FleetError> {
        let plans: Vec<i64> = std::mem::take(&mut self.open).into_iter().collect();
        if plans.is_empty() {
            return Ok(());
        }
        {
            let mut open = self.coordinator.shared.open();
            plans.iter().for_each(|plan| drop(open.remove(plan)));
        }
        let mut link = self.coordinator.link.lock().unwrap_or_else(PoisonError::into_inner);
        link.once(|client| client.query("SELECT fleet.cancel($1)", &[&plans])).map(|_| ())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Err(error) = self.withdraw() {
            tracing::warn!("plans that nobody waits for stay in the fleet: {error}");
        }
    }
}

/// A random version 4 UUID.
fn key() -> Result<String, FleetError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| FleetError::Refused { detail: format!("no random numbers: {error}") })?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
