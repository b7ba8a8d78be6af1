//! `tilescribe fleet`

mod page;
mod table;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;
use tilescribe::fleet::{Console, ExportFilter, Initialised, Overview, Settings, init};
use tilescribe::record::{CorpusWriter, Store};

use super::arguments::seconds;
use super::exit::{CommandError, stop_on_interrupt};
use super::output::{Kind, Output};
use super::words::counted;

/// Make, watch and keep a fleet: machines that measure for others, with a PostgreSQL server between them
#[derive(Args)]
pub struct Fleet {
    #[command(subcommand)]
    action: Action,
}

/// Where the server is.
#[derive(Args)]
struct Place {
    /// postgres://USER@HOST/DATABASE, or a file of settings
    #[arg(long, value_name = "URL|FILE")]
    fleet: String,
}

impl Place {
    fn console(&self) -> Result<Console> {
        Ok(Console::connect(&Settings::read(&self.fleet)?.called("tilescribe fleet"))?)
    }
}

#[derive(Subcommand)]
enum Action {
    /// Make a fleet in a database, or bring it up to date
    ///
    /// Needs a user who may create roles. Makes two, DATABASE_coordinator and DATABASE_worker, and prints
    /// their addresses with new passwords, once: a worker's may do nothing but lease plans and report on
    /// them.
    Init {
        #[command(flatten)]
        place: Place,
        /// A worker that is silent for so many seconds has lost its lease [default: 120]
        #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=86_400))]
        lease: Option<u32>,
        /// Give both roles new passwords
        #[arg(long)]
        new_passwords: bool,
        /// Print a line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Tell how the fleet is doing
    Status {
        #[command(flatten)]
        place: Place,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
        /// Write a page for the browser instead
        #[arg(long, value_name = "FILE", conflicts_with = "json")]
        page: Option<PathBuf>,
        /// Again every so many seconds, until Ctrl-C
        #[arg(long, value_name = "S", value_parser = seconds)]
        watch: Option<f64>,
    },
    /// List the workers
    Workers {
        #[command(flatten)]
        place: Place,
        /// Those that left or fell silent, too
        #[arg(long)]
        all: bool,
        /// Print JSON objects, one a line
        #[arg(long)]
        json: bool,
    },
    /// List plans, the newest first
    Plans {
        #[command(flatten)]
        place: Place,
        /// Those of one state
        #[arg(long, value_name = "STATE", value_parser = PossibleValuesParser::new(STATES))]
        state: Option<String>,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 50)]
        most: u32,
        /// Print JSON objects, one a line
        #[arg(long)]
        json: bool,
    },
    /// Give parked plans another chance: those named, or all
    Retry {
        #[command(flatten)]
        place: Place,
        /// Numbers of plans
        plans: Vec<i64>,
    },
    /// Let workers take nothing more once they have finished what they have: those named, or all
    Drain {
        #[command(flatten)]
        place: Place,
        /// Numbers of workers
        workers: Vec<i64>,
        /// Let them work again
        #[arg(long)]
        undo: bool,
    },
    /// Write what was measured as a corpus file: JSON lines, compressed with zstd
    ///
    /// Of a program that was measured several times, the more telling outcome counts. With --worker, files of
    /// two workers can be held against each other by `tilescribe records agreement`.
    Export {
        #[command(flatten)]
        place: Place,
        /// File to write
        file: PathBuf,
        /// Only those of the target with this fingerprint
        #[arg(long, value_name = "FINGERPRINT")]
        target: Option<String>,
        /// Only those of the worker with this number
        #[arg(long, value_name = "N")]
        worker: Option<i64>,
        /// Only those that this command asked for, as `tilescribe fleet plans` names it
        #[arg(long, value_name = "RUN")]
        run: Option<String>,
    },
}

/// Of plans.
const STATES: [&str; 5] = ["waiting", "leased", "done", "parked", "cancelled"];

impl Fleet {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        match self.action {
            Action::Init { place, lease, new_passwords, json } => {
                let made = init(&Settings::read(&place.fleet)?, lease, new_passwords)?;
                print_initialised(&made, json, out)
            }
            Action::Status { place, json, page, watch } => status(&place, json, page.as_ref(), watch, out),
            Action::Workers { place, all, json } => {
                let workers = place.console()?.workers()?;
                let shown: Vec<_> = workers.into_iter().filter(|worker| all || table::is_there(worker)).collect();
                print_rows(&shown, json, table::workers, out)
            }
            Action::Plans { place, state, most, json } => {
                let plans = place.console()?.plans(state.as_deref(), most)?;
                print_rows(&plans, json, table::plans, out)
            }
            Action::Retry { place, plans } => {
                let named = (!plans.is_empty()).then_some(plans.as_slice());
                let count = place.console()?.retry(named)?;
                Ok(writeln!(out, "{} get another chance", counted(count, "plan"))?)
            }
            Action::Drain { place, workers, undo } => {
                let named = (!workers.is_empty()).then_some(workers.as_slice());
                Ok(place.console()?.drain(named, !undo)?)
            }
            Action::Export { place, file, target, worker, run } => {
                export(&place, &file, &ExportFilter { target, worker, run }, out)
            }
        }
    }
}

fn print_rows<T: Serialize>(rows: &[T], as_json: bool, table: fn(&[T]) -> String, out: &mut dyn Write) -> Result<()> {
    if !as_json {
        return Ok(write!(out, "{}", table(rows))?);
    }
    for row in rows {
        writeln!(out, "{}", json!(row))?;
    }
    Ok(())
}

fn print_initialised(made: &Initialised, as_json: bool, out: &mut dyn Write) -> Result<()> {
    for setting in &made.unsafe_settings {
        tracing::warn!("the server may lose what it has confirmed: {setting}");
    }
    if as_json {
        let [coordinator, worker] = made.addresses.clone().map(|pair| pair.map(Some)).unwrap_or_default();
        let line = json!({
            "from": made.from, "to": made.to, "coordinator": coordinator, "worker": worker,
            "unsafe_settings": made.unsafe_settings,
        });
        return Ok(writeln!(out, "{line}")?);
    }
    match made.from == made.to {
        true => writeln!(out, "the fleet is of version {}, as it was", made.to)?,
        false => writeln!(out, "the fleet is of version {}, and was of version {}", made.to, made.from)?,
    }
    if let Some([coordinator, worker]) = &made.addresses {
        writeln!(out, "for coordinators: {coordinator}")?;
        writeln!(out, "for workers:      {worker}")?;
        writeln!(out, "keep them: they are shown once, and `tilescribe fleet init --new-passwords` makes new ones")?;
    }
    Ok(())
}

fn status(place: &Place, as_json: bool, page: Option<&PathBuf>, watch: Option<f64>, out: &mut dyn Write) -> Result<()> {
    let mut console = place.console()?;
    let page = page.map(|path| Output::new(path, Kind::FleetPage, &[]).map(|output| (path, output))).transpose()?;
    let mut show = |overview: &Overview| -> Result<()> {
        match &page {
            Some((path, output)) => {
                output.write(|file| Ok(file.write_all(page::html(overview, watch).as_bytes())?))?;
                if watch.is_none() {
                    writeln!(out, "{}", path.display())?;
                }
            }
            None if as_json => writeln!(out, "{}", json!(overview))?,
            None => write!(out, "{}", table::overview(overview))?,
        }
        Ok(out.flush()?)
    };
    let Some(seconds) = watch else { return show(&console.overview()?) };
    let stopped = stop_on_interrupt()?;
    let mut was_lost = false;
    loop {
        match console.overview() {
            Ok(overview) => {
                was_lost = false;
                show(&overview)?;
            }
            // who watches wants to see it come back
            Err(error) if error.may_pass() => {
                if !was_lost {
                    tracing::warn!("{error}; trying again until it comes back");
                }
                was_lost = true;
            }
            Err(error) => return Err(error.into()),
        }
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        while Instant::now() < until {
            if stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn export(place: &Place, file: &Path, filter: &ExportFilter, out: &mut dyn Write) -> Result<()> {
    let mut console = place.console()?;
    let output = Output::new(file, Kind::Corpus, &[])?;
    // gathered on the disk, so that a corpus of any size fits
    let folder = tempfile::tempdir().context("no folder for temporary files")?;
    let mut store = Store::open(&folder.path().join("records.db"))?;
    let count = output.write(|file| {
        let mut writer = CorpusWriter::new(file)?;
        let count = console.export(filter, &mut store, &mut writer)?;
        if count == 0 {
            let reason = "the fleet holds no such record; `tilescribe fleet status` tells what there is";
            return Err(CommandError::Usage(reason.into()).into());
        }
        writer.finish()?;
        Ok(count)
    })?;
    Ok(writeln!(out, "{}: {}", file.display(), counted(count, "record"))?)
}
