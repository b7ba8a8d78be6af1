//! A connection that comes back, and never waits for ever.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::Rng;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};

use super::error::FleetError;
use super::schema;
use super::settings::Settings;

/// The first and the longest pause before another try.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(20)];
/// How often someone who waits looks whether to stop.
const GLANCE: Duration = Duration::from_millis(50);

/// A connection to the server, made when it is first needed and made again when it was lost. One for each
/// process that works for a fleet.
pub(super) struct Link {
    settings: Settings,
    client: Option<Client>,
    stop: Arc<AtomicBool>,
}

/// A connection whose questions have a deadline: a server that is stopped, or that nothing leads to any more,
/// is as lost as one that has ended.
pub(super) struct Client {
    runtime: Runtime,
    client: tokio_postgres::Client,
    /// By their text: the server plans each once.
    statements: HashMap<&'static str, Statement>,
    deadline: Duration,
}

impl Client {
    /// # Errors
    /// [`FleetError::Lost`] or [`FleetError::Refused`].
    pub fn connect(settings: &Settings) -> Result<Client, FleetError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| FleetError::Refused { detail: format!("no event loop: {error}") })?;
        let deadline = settings.deadline();
        let connected = runtime.block_on(async { timeout(deadline, settings.connect()).await });
        let client = connected.map_err(|_| late(deadline))??;
        Ok(Client { runtime, client, statements: HashMap::new(), deadline })
    }

    fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// The rows of a query.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn query(&mut self, sql: &'static str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, FleetError> {
        let statement = match self.statements.get(sql) {
            Some(known) => known.clone(),
            None => {
                let made = self.runtime.block_on(async { timeout(self.deadline, self.client.prepare(sql)).await });
                let made = made.map_err(|_| late(self.deadline))??;
                self.statements.insert(sql, made.clone());
                made
            }
        };
        let asked = async { timeout(self.deadline, self.client.query(&statement, values)).await };
        Ok(self.runtime.block_on(asked).map_err(|_| late(self.deadline))??)
    }

    /// The one row of a query.
    ///
    /// # Errors
    /// [`FleetError::Nonsense`] where there is none, or several.
    pub fn query_one(&mut self, sql: &'static str, values: &[&(dyn ToSql + Sync)]) -> Result<Row, FleetError> {
        let mut rows = self.query(sql, values)?;
        match (rows.pop(), rows.is_empty()) {
            (Some(row), true) => Ok(row),
            _ => Err(FleetError::Nonsense("another number of rows than one".into())),
        }
    }

    /// Runs statements of our own, one after the other.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn run(&mut self, sql: &str) -> Result<(), FleetError> {
        let asked = async { timeout(self.deadline, self.client.batch_execute(sql)).await };
        Ok(self.runtime.block_on(asked).map_err(|_| late(self.deadline))??)
    }
}

fn late(deadline: Duration) -> FleetError {
    FleetError::Lost { detail: format!("no answer within {} s", deadline.as_secs()) }
}

impl Link {
    /// Connects, and makes sure that there is a fleet of this version.
    ///
    /// # Errors
    /// [`FleetError`], be it one that may pass.
    pub fn open(settings: Settings, stop: Arc<AtomicBool>) -> Result<Link, FleetError> {
        let mut link = Link::unopened(settings, stop);
        link.once(|_| Ok(()))?;
        Ok(link)
    }

    /// Connects when it is needed.
    pub fn unopened(settings: Settings, stop: Arc<AtomicBool>) -> Link {
        Link { settings, client: None, stop }
    }

    /// Asks once.
    ///
    /// # Errors
    /// What `ask` returns, and where there is no connection.
    pub fn once<T>(&mut self, ask: impl FnOnce(&mut Client) -> Result<T, FleetError>) -> Result<T, FleetError> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            let mut client = Client::connect(&self.settings)?;
            schema::check(&mut client)?;
            self.client = Some(client);
        }
        let Some(client) = &mut self.client else { return Err(FleetError::Lost { detail: "not connected".into() }) };
        let answer = ask(client);
        if answer.as_ref().is_err_and(FleetError::may_pass) {
            // whatever state it is in
            self.client = None;
        }
        answer
    }

    /// Asks until there is an answer, however long the server is lost: with pauses that grow, and differ from
    /// one asker to the next. `ask` has to be something that may be asked twice.
    ///
    /// # Errors
    /// [`FleetError::Stopped`], and what will not pass.
    pub fn patiently<T>(&mut self, mut ask: impl FnMut(&mut Client) -> Result<T, FleetError>) -> Result<T, FleetError> {
        let mut length = PAUSES[0];
        let mut was_told = false;
        loop {
            match self.once(&mut ask) {
                Err(error) if error.may_pass() => {
                    if !was_told {
                        tracing::warn!("{error}; trying again until it comes back");
                        was_told = true;
                    }
                }
                answer => {
                    if was_told {
                        tracing::warn!("the fleet's server is back");
                    }
                    return answer;
                }
            }
            pause(length.mul_f64(rand::rng().random_range(0.5..1.0)), &self.stop)?;
            length = (length * 2).min(PAUSES[1]);
        }
    }
}

/// Waits, unless someone asks to stop.
///
/// # Errors
/// [`FleetError::Stopped`].
pub(super) fn pause(time: Duration, stop: &AtomicBool) -> Result<(), FleetError> {
    let until = Instant::now() + time;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(FleetError::Stopped);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(GLANCE));
    }
}
