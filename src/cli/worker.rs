//! `tilescribe worker`

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;
use tilescribe::fleet::{self, DeviceLock, Event, FleetError, Machine, Settings, WorkerReport, WorkerSettings};
use tilescribe::measure::{Measurer, worker_main};
use tilescribe::outcome::Outcome;
use tilescribe::record;
use tilescribe::space::Space;
use tilescribe::target::{Kind, Target};

use super::arguments::{MeasuringArguments, TargetArguments, seconds};
use super::exit::{CommandError, stop_on_interrupt};
use super::lab::{host_name, measuring};
use super::words::counted;

/// Measure programs for a fleet: lease plans for this machine, compile, check and time them, send back times
///
/// Runs until Ctrl-C or SIGTERM, after which the program that is being measured is finished and what was
/// measured is sent; a server that is lost is waited for. Everything measured is kept in a store of its own
/// until the server has it: killed, the same command goes on from there. `tilescribe fleet init` makes a
/// fleet; docs/fleet.md tells how.
#[derive(Args)]
pub struct Worker {
    /// postgres://USER@HOST/DATABASE, or a file of settings
    // without it, this is the process that a `Measurer` starts for itself
    #[arg(long, value_name = "URL|FILE")]
    fleet: Option<String>,
    /// By which the fleet's keeper knows this worker [default: the machine's]
    #[arg(long, value_name = "NAME", requires = "fleet")]
    name: Option<String>,
    #[command(flatten)]
    target: TargetArguments,
    /// File for what the server does not have yet [default: one in the user's cache folder]
    #[arg(long, value_name = "FILE", requires = "fleet")]
    store: Option<PathBuf>,
    /// End once there was nothing to do for so many seconds [default: wait for ever]
    #[arg(long, value_name = "S", value_parser = seconds, requires = "fleet")]
    patience: Option<f64>,
    #[command(flatten)]
    measuring: MeasuringArguments,
    /// End with a line of JSON
    #[arg(long, requires = "fleet")]
    json: bool,
}

/// Workers of one machine and target that may run at a time.
const MOST_STORES: usize = 64;

impl Worker {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        let Some(fleet) = &self.fleet else {
            if io::stdin().is_terminal() {
                return Err(CommandError::Usage("name the fleet to work for with --fleet URL".into()).into());
            }
            let code = worker_main();
            return if code == ExitCode::SUCCESS { Ok(()) } else { anyhow::bail!("the worker cannot go on") };
        };
        let settings = Settings::read(fleet)?.called("tilescribe worker");
        let (space, target) = (Space::standard(), self.target.resolve()?);
        let device = self.target.device()?;
        let mut options = measuring(&space, std::slice::from_ref(&target), device, self.measuring)?;
        // finals may decide a comparison
        options.timing = options.timing.with_long_finals();
        let mut machine = Machine::new(target.clone(), Measurer::new(options));
        let report = self.work(&settings, &space, &target, &mut machine, out)?;
        let WorkerReport { plans, programs, busy, idle } = report;
        let (busy, idle) = (busy.as_secs_f64(), idle.as_secs_f64());
        let of = counted(plans, "plan");
        writeln!(out, "{} of {of}; {busy:.0} s busy, {idle:.0} s idle", counted(programs, "program"))?;
        if self.json {
            writeln!(out, "{}", json!({"plans": plans, "programs": programs, "busy_s": busy, "idle_s": idle}))?;
        }
        Ok(())
    }

    /// Works with the first store that no other worker holds.
    fn work(
        &self,
        fleet: &Settings,
        space: &Space,
        target: &Target,
        machine: &mut Machine,
        out: &mut dyn Write,
    ) -> Result<WorkerReport> {
        let gpu = (target.kind() == Kind::Gpu).then(|| self.target.device()).transpose()?;
        let stop = stop_on_interrupt()?;
        let mut log = Log { out, since: Instant::now(), programs: 0, plan: 0 };
        for number in 1..=MOST_STORES {
            let settings = WorkerSettings {
                name: self.name.clone().unwrap_or_else(host_name),
                store: self.store_path(target, number)?,
                lock: DeviceLock::of(gpu),
                patience: self.patience.map(Duration::from_secs_f64),
            };
            match fleet::work(fleet, &settings, space, machine, stop, &mut |event| log.tell(event)) {
                Err(FleetError::InUse { .. }) if self.store.is_none() => {}
                worked => return Ok(worked?),
            }
        }
        Err(CommandError::Environment(format!("{MOST_STORES} workers for this target run on this machine")).into())
    }

    fn store_path(&self, target: &Target, number: usize) -> Result<PathBuf> {
        if let Some(path) = &self.store {
            return Ok(path.clone());
        }
        let missing = || CommandError::Environment("no cache folder: set HOME, or name a file with --store".into());
        let folder = record::cache_folder().ok_or_else(missing).context("the worker's store")?;
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        Ok(folder.join(format!("worker-{:.8}{suffix}.db", target.fingerprint())))
    }
}

/// What a worker prints: a line for each plan, so that a service's log tells what it does.
struct Log<'a> {
    out: &'a mut dyn Write,
    since: Instant,
    programs: u64,
    plan: u64,
}

impl Log<'_> {
    fn tell(&mut self, event: &Event<'_>) {
        let line = match event {
            Event::Joined { number } => format!("joined as worker {number}"),
            Event::Leased { plan, programs, task } => {
                (self.since, self.programs) = (Instant::now(), 0);
                self.plan += 1;
                format!("plan {plan}: {} of task {task:.12}", counted(*programs, "program"))
            }
            Event::Measured { outcome } => {
                self.programs += 1;
                if let Outcome::Failed { cause, detail } = outcome {
                    tracing::info!("{cause}: {detail}");
                }
                return;
            }
            Event::Ended { plan, cause } => {
                let seconds = self.since.elapsed().as_secs_f64();
                let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
                format!("plan {plan}: {} measured in {seconds:.1} s{cause}", self.programs)
            }
            Event::Draining => "the fleet is told to take nothing more; waiting".to_string(),
            Event::Idle => return,
        };
        // a log that nobody reads any more is no reason to stop measuring
        let _ = writeln!(self.out, "{line}").and_then(|()| self.out.flush());
    }
}
