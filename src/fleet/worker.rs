//! A worker: takes plans from the server, measures them here, and sends back what came out.
//!
//! ```text
//! lease --> measure a program --> commit to the outbox --> (next program)
//!              beside it, every few seconds: report what is unconfirmed, renew the lease
//!       --> report the rest, end the lease --> (next lease)
//! ```
//!
//! Whatever dies, what was committed to the [`Outbox`] is sent again until the server confirms it, and there
//! a record has a key of its own: it arrives exactly once.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::device::{Device, DeviceLock, Held, Stopped, Watch};
use super::error::FleetError;
use super::link::{self, Client, Link};
use super::outbox::Outbox;
use super::settings::Settings;
use super::wire::{Lease, LeaseId, Measured, Offer};
use crate::measure::MeasureError;
use crate::outcome::Outcome;
use crate::record::TILESCRIBE_VERSION;
use crate::space::Space;

/// The shortest and the longest pause of a worker that finds nothing to do.
const IDLE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];
/// How often a worker looks whether the device is free.
const TURN: Duration = Duration::from_millis(20);
/// What was measured is reported this often while a plan is worked on.
const REPORTS: Duration = Duration::from_secs(2);
/// A lease is renewed so many times before it would be lost.
const RENEWALS: u32 = 4;

/// How a worker works.
pub struct WorkerSettings {
    /// By which people know it.
    pub name: String,
    /// Its own store.
    pub store: PathBuf,
    /// So that it has the device to itself.
    pub lock: DeviceLock,
    /// Ends it once nothing was to be done for so long; `None`: it waits for ever.
    pub patience: Option<Duration>,
}

/// What a worker is doing, for whoever shows it.
#[derive(Debug)]
pub enum Event<'a> {
    /// It is known to the server under this number.
    Joined {
        number: i64,
    },
    /// A plan with so many programs left.
    Leased {
        plan: i64,
        programs: usize,
        task: &'a str,
    },
    Measured {
        outcome: &'a Outcome,
    },
    /// The plan has ended, and why if that was not because it is done.
    Ended {
        plan: i64,
        cause: Option<&'a str>,
    },
    Idle,
    /// The fleet is told to take nothing more.
    Draining,
}

/// What a worker did.
#[derive(Clone, Copy, Default, Debug)]
pub struct WorkerReport {
    pub plans: u64,
    pub programs: u64,
    /// Time spent on plans.
    pub busy: Duration,
    /// All other time.
    pub idle: Duration,
}

/// Works for a fleet until `stop` is set. What was measured until then is reported, and what is left of the
/// plan given back.
///
/// # Errors
/// [`FleetError`] where going on makes no sense; a server that is lost is waited for.
pub fn work(
    fleet: &Settings,
    settings: &WorkerSettings,
    space: &Space,
    device: &mut dyn Device,
    stop: &Arc<AtomicBool>,
    watch: &mut dyn FnMut(&Event<'_>),
) -> Result<WorkerReport, FleetError> {
    let outbox = Outbox::open(&settings.store)?;
    let secret = outbox.secret()?;
    // the first contact tells what is wrong at once, unless that passes
    let link = match Link::open(fleet.clone(), Arc::clone(stop)) {
        Err(error) if error.may_pass() => {
            tracing::warn!("{error}; trying again until it comes back");
            Link::unopened(fleet.clone(), Arc::clone(stop))
        }
        opened => opened?,
    };
    let mut worker = Worker {
        post: Post {
            link: Mutex::new(link),
            outbox: Mutex::new(outbox),
            secret,
            times: Mutex::default(),
            stop: Arc::clone(stop),
        },
        settings,
        space,
        report: WorkerReport::default(),
    };
    match worker.run(device, watch) {
        Err(FleetError::Stopped) | Ok(()) => Ok(worker.report),
        Err(error) => Err(error),
    }
}

/// The way to the server, and what has not arrived there. The two are locked apart: who measures never waits
/// for the network.
struct Post {
    link: Mutex<Link>,
    outbox: Mutex<Outbox>,
    secret: Vec<u8>,
    /// Busy and idle since the last report.
    times: Mutex<(Duration, Duration)>,
    stop: Arc<AtomicBool>,
}

/// How a lease stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    Held,
    /// Another has the plan, or nobody waits for the rest.
    Gone,
}

/// How a lease ends: a word of `fleet.report`, and why.
#[derive(Clone, Debug)]
struct Ending {
    how: &'static str,
    cause: Option<String>,
}

impl Post {
    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spend(&self, busy: Duration, idle: Duration) {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        (times.0, times.1) = (times.0 + busy, times.1 + idle);
    }

    /// The server knows of this much.
    fn told(&self, (busy, idle): (Duration, Duration)) {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        (times.0, times.1) = (times.0.saturating_sub(busy), times.1.saturating_sub(idle));
    }

    fn has_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn join(&self, name: &str, space: &Space, device: &dyn Device) -> Result<i64, FleetError> {
        let target = device.target();
        let (text, fingerprint, version) = (target.to_toml(), target.fingerprint(), space.version(target.kind()));
        let secret = &self.secret;
        let (number, fleet): (i64, String) = self.link().patiently(|client| {
            let sql = "SELECT fleet.join_fleet($1, $2, $3, $4, $5, $6), fleet.identity()::text";
            let row = client.query_one(sql, &[secret, &name, &fingerprint, &text, &version, &TILESCRIBE_VERSION])?;
            Ok((row.get(0), row.get(1)))
        })?;
        self.write(|outbox| outbox.bind(&fleet))?;
        Ok(number)
    }

    /// Sends what is unconfirmed of a lease, and forgets it when the server has it. Who is not patient tries
    /// once.
    fn deliver(&self, id: LeaseId, ending: Option<&Ending>, is_patient: bool) -> Result<Standing, FleetError> {
        let mut link = self.link();
        let (records, numbers) = self.outbox().unconfirmed(id)?;
        let (how, cause) = (ending.map(|ending| ending.how), ending.and_then(|ending| ending.cause.as_deref()));
        let times = *self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let (busy, idle) = (times.0.as_secs_f64(), times.1.as_secs_f64());
        let secret = &self.secret;
        let ask = |client: &mut Client| -> Result<String, FleetError> {
            let sql = "SELECT fleet.report($1, $2, $3, $4, $5::text::jsonb, $6, $7, $8, $9)";
            let row = client.query_one(
                sql,
                &[secret, &id.plan, &id.fence, &TILESCRIBE_VERSION, &records, &how, &cause, &busy, &idle],
            )?;
            Ok(row.get(0))
        };
        let answer = match is_patient {
            true => link.patiently(ask),
            false => link.once(ask),
        };
        let standing = match answer? == "held" {
            true => Standing::Held,
            false => Standing::Gone,
        };
        self.told(times);
        // where it is not forgotten, it is sent once more, and known there
        match is_patient {
            true => self.write(|outbox| outbox.forget(id, &numbers, ending.is_some()))?,
            false => self.outbox().forget(id, &numbers, ending.is_some())?,
        }
        Ok(standing)
    }

    /// Writes to the outbox, however long its disk is full.
    fn write(&self, write: impl Fn(&mut Outbox) -> Result<(), FleetError>) -> Result<(), FleetError> {
        let mut was_told = false;
        loop {
            let written = write(&mut self.outbox());
            match written {
                // someone makes room for it
                Err(error @ FleetError::DiskFull { .. }) => {
                    if !was_told {
                        tracing::warn!("{error}; waiting for room");
                        was_told = true;
                    }
                    link::pause(IDLE[1], &self.stop)?;
                }
                written => return written,
            }
        }
    }
}

struct Worker<'a> {
    post: Post,
    settings: &'a WorkerSettings,
    space: &'a Space,
    report: WorkerReport,
}

impl Worker<'_> {
    fn run(&mut self, device: &mut dyn Device, watch: &mut dyn FnMut(&Event<'_>)) -> Result<(), FleetError> {
        let number = self.post.join(&self.settings.name, self.space, device)?;
        watch(&Event::Joined { number });
        let served = self.deliver_leftovers().and_then(|()| self.serve(device, watch));
        if matches!(served, Ok(()) | Err(FleetError::Stopped)) {
            let secret = &self.post.secret;
            let leave = self.post.link().once(|client| client.query("SELECT fleet.leave($1)", &[secret]));
            if let Err(error) = leave {
                // a server that is lost learns it from silence
                tracing::warn!("leaving without a word: {error}");
            }
        }
        served
    }

    /// One plan after the other, until there is a reason to stop.
    fn serve(&mut self, device: &mut dyn Device, watch: &mut dyn FnMut(&Event<'_>)) -> Result<(), FleetError> {
        let mut ready_for: Option<String> = None;
        let mut since = Instant::now();
        let mut pause = IDLE[0];
        let mut was_draining = false;
        while !self.post.has_stopped() {
            let held = self.lock()?;
            let Some(offer) = self.ask(ready_for.as_deref(), device)? else {
                // others may have the device meanwhile: their server may be another
                drop(held);
                self.post.link().patiently(|_| Ok(()))?;
                link::pause(pause, &self.post.stop)?;
                pause = (pause * 2).min(IDLE[1]);
                continue;
            };
            match offer {
                Offer::Lease(lease) => {
                    let idle = since.elapsed();
                    let started = Instant::now();
                    ready_for = Some(lease.batch.task.workload.hash().to_string());
                    self.report.idle += idle;
                    self.post.spend(Duration::ZERO, idle);
                    let ending = self.measure(*lease, device, watch);
                    self.report.busy += started.elapsed();
                    ending?;
                    (since, pause) = (Instant::now(), IDLE[0]);
                    continue;
                }
                Offer::Senseless(id, reason) => {
                    watch(&Event::Ended { plan: id.plan, cause: Some(&reason) });
                    self.post.write(|outbox| outbox.begin(id))?;
                    self.post.deliver(id, Some(&Ending { how: "refused", cause: Some(reason) }), true)?;
                    continue;
                }
                Offer::Nothing => {}
                Offer::Draining => {
                    if !was_draining {
                        watch(&Event::Draining);
                    }
                }
            }
            was_draining = matches!(offer, Offer::Draining);
            drop(held);
            if self.settings.patience.is_some_and(|patience| since.elapsed() >= patience) {
                break;
            }
            if !was_draining {
                watch(&Event::Idle);
            }
            link::pause(pause, &self.post.stop)?;
            pause = (pause * 2).min(IDLE[1]);
        }
        Ok(())
    }

    /// Waits for the device.
    fn lock(&self) -> Result<Held, FleetError> {
        let mut was_told = false;
        self.settings.lock.lock(&mut || {
            if !was_told {
                tracing::info!("another worker uses the device; waiting for it");
                was_told = true;
            }
            link::pause(TURN, &self.post.stop)
        })
    }

    /// Asks for a plan. `None` where the server was lost meanwhile, and is back.
    fn ask(&self, ready_for: Option<&str>, device: &dyn Device) -> Result<Option<Offer>, FleetError> {
        let secret = &self.post.secret;
        let offer = self.post.link().once(|client| {
            let rows = client.query("SELECT * FROM fleet.lease($1, $2)", &[secret, &ready_for])?;
            Offer::read(rows.first(), device.target(), self.space)
        });
        match offer {
            Err(error) if error.may_pass() => Ok(None),
            offer => offer.map(Some),
        }
    }

    /// Reports what a process before this one measured, and that it died of the last one.
    fn deliver_leftovers(&self) -> Result<(), FleetError> {
        let leftovers = self.post.outbox().leftovers()?;
        for leftover in leftovers {
            let at = leftover.doing.map_or_else(String::new, |number| format!(" while it measured program {number}"));
            let cause = format!("worker {} died{at}", self.settings.name);
            let ending = Ending { how: "died", cause: Some(cause) };
            match self.post.deliver(leftover.id, Some(&ending), true) {
                Ok(_) => {}
                // a server that was set up anew knows nothing of it
                Err(error @ FleetError::Unknown { .. }) => {
                    tracing::warn!("plan {}: {error}; what was measured of it is kept", leftover.id.plan);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Measures what is left of a plan, and reports it.
    fn measure(
        &mut self,
        lease: Lease,
        device: &mut dyn Device,
        watch: &mut dyn FnMut(&Event<'_>),
    ) -> Result<(), FleetError> {
        let Lease { id, seconds, batch, numbers } = lease;
        let name = batch.task.workload.hash().to_string();
        watch(&Event::Leased { plan: id.plan, programs: numbers.len(), task: &name });
        self.post.write(|outbox| outbox.begin(id))?;
        let is_gone = AtomicBool::new(false);
        let beat = Beat::default();
        let mut programs = 0;
        let measured = std::thread::scope(|scope| {
            scope.spawn(|| self.beat(id, Duration::from_secs(seconds), &beat, &is_gone));
            let mut log = Log {
                worker: self,
                id,
                numbers: &numbers,
                is_gone: &is_gone,
                programs: &mut programs,
                watch,
                since: Instant::now(),
            };
            let measured = device.measure(batch, &mut log);
            beat.end();
            measured
        });
        self.report.programs += programs;
        let ending = match measured {
            Ok(()) => Ending { how: "finished", cause: None },
            Err(Stopped::Asked) => Ending { how: "returned", cause: None },
            Err(Stopped::Measure(MeasureError::Task { detail })) => {
                Ending { how: "unmeasurable", cause: Some(shortened(detail)) }
            }
            Err(Stopped::Measure(MeasureError::Trace { detail })) => {
                Ending { how: "refused", cause: Some(shortened(detail)) }
            }
            // this machine is at fault, or this build: nothing can be measured on it
            Err(Stopped::Measure(error)) => {
                let ending = Ending { how: "returned", cause: Some(shortened(error.to_string())) };
                self.post.deliver(id, Some(&ending), true)?;
                return Err(error.into());
            }
            Err(Stopped::Kept(error)) if matches!(*error, FleetError::Stopped) => {
                Ending { how: "returned", cause: Some("there was no room to keep more".into()) }
            }
            Err(Stopped::Kept(error)) => return Err(*error),
        };
        self.report.plans += 1;
        watch(&Event::Ended { plan: id.plan, cause: ending.cause.as_deref() });
        match self.post.deliver(id, Some(&ending), true) {
            // asked to stop while the server was lost: it may be back
            Err(FleetError::Stopped) => match self.post.deliver(id, Some(&ending), false) {
                Err(error) if error.may_pass() => {
                    tracing::warn!("{error}; what was measured is sent when this worker starts again");
                    Err(FleetError::Stopped)
                }
                delivered => delivered.map(|_| ()),
            },
            delivered => delivered.map(|_| ()),
        }
    }

    /// Beside the measuring: reports, and keeps the lease.
    fn beat(&self, id: LeaseId, lease: Duration, beat: &Beat, is_gone: &AtomicBool) {
        let between = REPORTS.min(lease / RENEWALS);
        while !beat.wait(between) {
            match self.post.deliver(id, None, false) {
                Ok(Standing::Held) => {}
                // what is being measured is finished; the rest is another's
                Ok(Standing::Gone) => is_gone.store(true, Ordering::Relaxed),
                Err(error) if error.may_pass() => tracing::debug!("{error}"),
                Err(error) => {
                    tracing::warn!("plan {}: {error}", id.plan);
                    is_gone.store(true, Ordering::Relaxed);
                }
            }
        }
    }
}

/// So much of a message is sent.
fn shortened(mut text: String) -> String {
    text = text.replace('\0', "");
    text.truncate(text.floor_char_boundary(4096));
    text
}

/// Ends the thread that reports beside the measuring.
#[derive(Default)]
struct Beat {
    has_ended: Mutex<bool>,
    told: Condvar,
}

impl Beat {
    fn end(&self) {
        *self.has_ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.told.notify_all();
    }

    /// Waits for so long, or for the end; says whether it came.
    fn wait(&self, time: Duration) -> bool {
        let ended = self.has_ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.told.wait_timeout_while(ended, time, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Commits what is measured.
struct Log<'a, 'w> {
    worker: &'a Worker<'w>,
    id: LeaseId,
    /// In the plan, of the programs of the batch.
    numbers: &'a [i32],
    is_gone: &'a AtomicBool,
    programs: &'a mut u64,
    watch: &'a mut dyn FnMut(&Event<'_>),
    since: Instant,
}

impl Log<'_, '_> {
    fn keep(&self, write: impl Fn(&mut Outbox) -> Result<(), FleetError>) -> Result<(), Stopped> {
        self.worker.post.write(write).map_err(|error| Stopped::Kept(Box::new(error)))
    }
}

impl Watch for Log<'_, '_> {
    fn before(&mut self, number: usize) -> Result<(), Stopped> {
        if self.is_gone.load(Ordering::Relaxed) || self.worker.post.has_stopped() {
            return Err(Stopped::Asked);
        }
        let number = self.numbers[number];
        self.keep(|outbox| outbox.begin_program(self.id, number))
    }

    fn after(&mut self, number: usize, outcome: Outcome) -> Result<(), Stopped> {
        (self.watch)(&Event::Measured { outcome: &outcome });
        let measured = Measured::new(self.numbers[number], outcome);
        self.keep(|outbox| outbox.keep(self.id, &measured))?;
        *self.programs += 1;
        self.worker.post.spend(self.since.elapsed(), Duration::ZERO);
        self.since = Instant::now();
        Ok(())
    }
}
