//! A worker of a fleet whose device is simulated: a program takes a known time, which follows from its
//! decisions, and measuring it takes a set one. For tests of fleets, and to find out how many workers a
//! server carries: everything but the measuring is that of `tilescribe worker`.
//!
//! cargo run --release --example simulated_worker -- --fleet URL --store FILE --program-ms 10

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Parser;
use sha2::{Digest, Sha256};
use tilescribe::fleet::{Device, DeviceLock, Settings, Stopped, Watch, WorkerSettings, work};
use tilescribe::measure::Batch;
use tilescribe::outcome::Outcome;
use tilescribe::space::{Space, Trace};
use tilescribe::target::Target;

/// A worker of a fleet whose device is simulated.
#[derive(Parser)]
#[command(args_override_self = true)]
struct Arguments {
    /// postgres://USER@HOST/DATABASE, or a file of settings
    #[arg(long)]
    fleet: String,
    /// Its own store
    #[arg(long)]
    store: PathBuf,
    /// By which people know it
    #[arg(long, default_value = "simulated")]
    name: String,
    /// TOML file of the target that it stands for
    #[arg(long)]
    target: PathBuf,
    /// Milliseconds that measuring a program takes
    #[arg(long, default_value_t = 10.0)]
    program_ms: f64,
    /// File of the lock that simulated workers of one device share [default: a device of its own]
    #[arg(long)]
    lock: Option<PathBuf>,
    /// Dies of programs whose decisions have this line
    #[arg(long)]
    dies_of: Option<String>,
    /// File to append a line to before and after each program
    #[arg(long)]
    log: Option<PathBuf>,
    /// Ends once there was nothing to do for so many seconds
    #[arg(long)]
    patience: Option<f64>,
    /// Seconds after which a server that does not answer is lost
    #[arg(long)]
    deadline: Option<f64>,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let mut fleet = Settings::read(&arguments.fleet)?;
    if let Some(seconds) = arguments.deadline {
        fleet = fleet.within(Duration::from_secs_f64(seconds));
    }
    let own = arguments.store.with_extension("lock");
    let settings = WorkerSettings {
        name: arguments.name,
        store: arguments.store,
        lock: DeviceLock::at(arguments.lock.as_deref().unwrap_or(&own)),
        patience: arguments.patience.map(Duration::from_secs_f64),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))?;
    let target = Target::from_toml(&std::fs::read_to_string(&arguments.target)?)?;
    let log = arguments.log.map(|path| File::options().create(true).append(true).open(path)).transpose()?;
    let time = Duration::from_secs_f64(arguments.program_ms / 1e3);
    let mut device = Simulated { target, time, dies_of: arguments.dies_of, log };
    let report = work(&fleet, &settings, &Space::standard(), &mut device, &stop, &mut |_| {})?;
    println!("{report:?}");
    Ok(())
}

/// A device on which a program takes the time that [`known_ns`] tells.
struct Simulated {
    target: Target,
    /// That measuring a program takes.
    time: Duration,
    dies_of: Option<String>,
    log: Option<File>,
}

/// Nanoseconds of a program: a number that only its decisions decide.
fn known_ns(trace: &Trace) -> u64 {
    let digest = Sha256::digest(trace.to_string());
    1000 + u64::from(u16::from_le_bytes([digest[0], digest[1]]))
}

impl Simulated {
    /// Appended in one piece, so that it is there whatever happens next.
    fn note(&mut self, what: &str, trace: &Trace) {
        if let Some(log) = &mut self.log {
            let line = format!("{what} {}\n", trace.to_string().trim().replace('\n', ";"));
            log.write_all(line.as_bytes()).expect("the log can be written");
        }
    }
}

impl Device for Simulated {
    fn target(&self) -> &Target {
        &self.target
    }

    fn measure(&mut self, batch: Batch, watch: &mut dyn Watch) -> Result<(), Stopped> {
        for (number, trace) in batch.traces.iter().enumerate() {
            watch.before(number)?;
            self.note("begun", trace);
            if self.dies_of.as_ref().is_some_and(|line| trace.to_string().lines().any(|own| own == line)) {
                std::process::abort();
            }
            std::thread::sleep(self.time);
            watch.after(number, Outcome::Timed { times_ns: vec![known_ns(trace)], compile_us: 1 })?;
            self.note("kept", trace);
        }
        Ok(())
    }
}
