//! `tilescribe bench`

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tilescribe::artifact::{Bound, Manifest, Model, Options, Profile, Resources, Schedule, Version, trace_events};
use tilescribe::graph::{Network, Source, TensorData};
use tilescribe::record;
use tilescribe::target::Target;

use super::arguments::{NetworkArguments, SpaceArguments, StoreArguments, TargetArguments, check_cores, seconds};
use super::exit::CommandError;
use super::extents::{self, Point};
use super::output::{Kind, Output};
use super::packing::write_artifact;
use super::profile::Report;
use super::search::stop_on_interrupt;
use super::words::counted;
use super::{figures, inputs, tuned};

/// Runs before the clock starts: they fault in pages and wake up threads.
const WARM_UP_RUNS: usize = 2;

/// Time a network
///
/// The last line of the output is {"min_ms":..,"median_ms":..,"runs":..}: inference only, with random inputs,
/// which on a GPU are there already. Of a network that takes several extents there is a line for each --at,
/// which ends with "at":{NAME:N,..}. An ONNX file is compiled from the best schedules in the store, without
/// tuning, and kept in the user's cache folder.
#[derive(Args)]
pub struct Bench {
    /// Folder that `tilescribe compile` wrote, or an ONNX file
    network: PathBuf,
    #[command(flatten)]
    dimensions: NetworkArguments,
    #[command(flatten)]
    space: SpaceArguments,
    #[command(flatten)]
    store: StoreArguments,
    /// Threads to use [default: the cores that this process may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Option<u32>,
    /// GPU to use, by its number in the driver's order [default: 0]
    #[arg(long, value_name = "N")]
    device: Option<u32>,
    /// Extents of the inputs, where the network takes several; may be given several times [default: a middle
    /// value of each]
    #[arg(long, value_name = "NAME=N,...")]
    at: Vec<Point>,
    /// How long to repeat
    #[arg(long, default_value_t = 1.0, value_name = "S", value_parser = seconds)]
    seconds: f64,
    /// Print where the time goes: each task's time in the network, alone (when it was tuned) and cold (alone,
    /// now, its constants in memory), the share of it for which threads are idle, and how near it comes to
    /// the machine's limits; as `"profile"` in the last line, too
    #[arg(long)]
    profile: bool,
    /// With --profile: what every thread did in one run, as a file that browsers draw (chrome://tracing,
    /// ui.perfetto.dev)
    #[arg(long, value_name = "FILE.json", requires = "profile")]
    trace: Option<PathBuf>,
}

impl Bench {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        if let Some(threads) = self.threads {
            check_cores(threads)?;
        }
        let folder = if self.network.is_dir() {
            self.dimensions.check([])?;
            self.network.clone()
        } else {
            self.compiled(out)?
        };
        if let Some(path) = &self.trace {
            Output::new(path, Kind::Trace, &[])?;
        }
        let model =
            Model::load(&folder, Resources { threads: self.threads, device: self.device, ..Resources::default() })?;
        let none = vec![None; model.manifest().inputs.len()];
        // all of them are looked at before the first is timed
        let points: Vec<Option<&Point>> =
            if self.at.is_empty() { vec![None] } else { self.at.iter().map(Some).collect() };
        let values = points.into_iter().map(|point| extents::values(model.manifest(), point, &none, None));
        for values in values.collect::<Result<Vec<_>>>()? {
            self.time(&model, &values, out)?;
        }
        Ok(())
    }

    /// Times the network where its symbols have these values.
    fn time(&self, model: &Model, symbols: &[i64], out: &mut dyn Write) -> Result<()> {
        let none = model.manifest().inputs.iter().map(|_| None);
        let before = Before::of(model, symbols)?;
        before.restore()?;
        let mut bound = model.bind(&inputs::complete(model.manifest(), none, symbols, 0)?)?;
        for _ in 0..WARM_UP_RUNS {
            bound.run()?;
            before.restore()?;
        }
        let (start, limit) = (Instant::now(), Duration::from_secs_f64(self.seconds));
        let mut times_ms = Vec::new();
        let stopped = stop_on_interrupt()?;
        while times_ms.is_empty() || start.elapsed() < limit {
            if stopped.load(Ordering::Relaxed) {
                return Err(CommandError::Interrupted.into());
            }
            let run = Instant::now();
            bound.repeat()?;
            times_ms.push(run.elapsed().as_secs_f64() * 1e3);
            before.restore()?;
        }
        times_ms.sort_by(f64::total_cmp);
        let (minimum, median) = (times_ms[0], times_ms[times_ms.len() / 2]);
        let mut line = json!({ "min_ms": minimum, "median_ms": median, "runs": times_ms.len() });
        if self.profile {
            line["profile"] = self.profile(model, &mut bound, &before, out)?;
        }
        if model.manifest().has_symbols() {
            line["at"] = extents::named(model.manifest(), symbols).into();
        }
        Ok(writeln!(out, "{line}")?)
    }
}

/// Runs that are traced, and events of one of them for which there is room: of each call, and of each of its
/// threads, many times over where calls are repeated.
const TRACED_RUNS: usize = 21;
const MAXIMAL_EVENTS: usize = 1 << 20;
const REPETITIONS: usize = 64;

impl Bench {
    /// Says where the time goes, after the network was timed.
    fn profile(&self, model: &Model, bound: &mut Bound<'_>, before: &Before<'_>, out: &mut dyn Write) -> Result<Value> {
        let manifest = model.manifest();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.threads.map_or(cores, |threads| threads as usize);
        let room = room_for(manifest, threads);
        // in turn, so that a machine that slows down does so for both
        let (mut runs, mut cold_runs) = (Vec::new(), Vec::new());
        for _ in 0..TRACED_RUNS {
            // behind a cold one, a run would find its constants farther away than runs in a row do
            bound.repeat()?;
            before.restore()?;
            runs.push(bound.traced_in_turn(room)?.ok_or_else(untold)?);
            before.restore()?;
            cold_runs.extend(bound.traced_cold(room)?);
            before.restore()?;
        }
        let lost = runs.iter().map(|run| run.lost).max().unwrap_or(0);
        if lost > 0 {
            writeln!(out, "the profile lacks the last {} of each run", counted(lost, "event"))?;
        }
        if let Some(path) = &self.trace {
            let run = bound.traced(room)?.ok_or_else(untold)?;
            before.restore()?;
            let events = trace_events(manifest, &run);
            Output::new(path, Kind::Trace, &[])?.write(|file| Ok(serde_json::to_writer(file, &events)?))?;
        }
        let threads = u16::try_from(threads).unwrap_or(u16::MAX);
        let Some(profile) = Profile::of(manifest, &runs, threads) else { return Ok(Value::Null) };
        let limits = match manifest.versions.first().map(|version| &version.target) {
            Some(Target::Cpu(cpu)) => figures::limits(cpu),
            _ => Err("no CPU".into()),
        };
        let cold = Profile::of(manifest, &cold_runs, threads);
        let report = Report::new(&profile, cold.as_ref(), manifest, &limits);
        write!(out, "{}", report.text())?;
        if !manifest.forks.is_empty() {
            let rows = counted(manifest.forks.len(), "row");
            writeln!(out, "{rows} of calls run at the same time where nobody profiles: here all are in turn")?;
        }
        Ok(report.json())
    }
}

/// Events of a run for which there shall be room.
pub fn room_for(manifest: &Manifest, threads: usize) -> usize {
    (manifest.calls.len() * (threads + 2)).saturating_mul(REPETITIONS).clamp(1, MAXIMAL_EVENTS)
}

fn untold() -> CommandError {
    let reason = "--profile: this network does not tell where its time goes: it was compiled for GPUs, or by an older \
                  version of Tilescribe";
    CommandError::Usage(reason.into())
}

/// What a model's states are before every run that is timed, so that all runs do the same.
pub struct Before<'m> {
    model: &'m Model,
    states: Vec<TensorData>,
}

impl Before<'_> {
    pub fn of<'m>(model: &'m Model, symbols: &[i64]) -> Result<Before<'m>> {
        Ok(Before { model, states: inputs::states(model.manifest(), symbols, 0)? })
    }

    pub fn restore(&self) -> Result<()> {
        for (number, state) in self.states.iter().enumerate() {
            self.model.set_state(number, state)?;
        }
        Ok(())
    }
}

/// Artifacts of ONNX files that are kept.
const CACHED_ARTIFACTS: usize = 32;

impl Bench {
    /// The network as an artifact, in the cache; compiled where it is not there yet.
    fn compiled(&self, out: &mut dyn Write) -> Result<PathBuf> {
        let cpu = TargetArguments { target: "host".into(), threads: self.threads }.resolve_cpu()?;
        let target = Target::Cpu(cpu.clone());
        let network = self.dimensions.load(&self.network, std::slice::from_ref(&target))?;
        extents::print_assumed(&network, &self.dimensions.dimensions, out)?;
        let schedules = tuned::schedules(&network, &target, &self.space.space(), self.store.open_existing()?.as_ref())?;
        let untuned = schedules.iter().filter(|schedule| schedule.best_ns.is_none()).count();
        let tasks = counted(schedules.len(), "task");
        writeln!(out, "of {tasks} {untuned} without a record, which run untuned")?;
        let missing = || CommandError::Environment("no cache folder: set HOME, or compile into a folder first".into());
        let cache = record::cache_folder().ok_or_else(missing)?.join("artifacts");
        let folder = cache.join(key(&network, &schedules, &target)?);
        if Manifest::read(&folder).is_err() {
            make_room(&cache);
            let version = Version { target: &target, schedules: &schedules };
            write_artifact(&network, &[version], &Options { name: "network", folder: &folder })?;
        }
        Ok(folder)
    }
}

/// A hash of everything that the artifact depends on: the network with its constants, the schedules, the
/// target, and this program.
fn key(network: &Network, schedules: &[Schedule], target: &Target) -> Result<String> {
    let mut hash = Sha256::new();
    let program = std::env::current_exe().and_then(std::fs::metadata)?;
    hash.update(format!("{:?} {} {}", program.modified()?, program.len(), target.to_toml()));
    // of a network without any products by weights, nothing else differs
    hash.update(network.precision.name());
    for buffer in &network.buffers {
        hash.update(format!("{:?} {:?} ", buffer.shape, buffer.dtype));
        match &buffer.source {
            Source::Constant(data) => hash.update(&data.bytes),
            Source::Input(name) => hash.update(format!("input {name:?}")),
            Source::Output(name) => hash.update(format!("output {name:?}")),
            Source::Intermediate => hash.update("intermediate"),
        }
    }
    hash.update(format!("{:?} {:?}", network.calls, network.regions));
    if !network.symbols.is_empty() {
        let extents: Vec<_> = network.buffers.iter().map(|buffer| &buffer.extents).collect();
        hash.update(format!("{:?} {extents:?}", network.symbols));
    }
    if !network.carried.is_empty() {
        hash.update(format!("{:?}", network.carried));
    }
    for (task, schedule) in network.tasks.iter().zip(schedules) {
        hash.update(format!("{} {} {}", task.workload, schedule.trace, schedule.nest));
    }
    Ok(hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect())
}

/// Throws the oldest artifacts away. A cache that cannot be read or cleaned is no reason to stop.
fn make_room(cache: &Path) {
    let Ok(entries) = std::fs::read_dir(cache) else { return };
    let mut folders: Vec<(SystemTime, PathBuf)> =
        entries.flatten().filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()))).collect();
    folders.sort();
    let surplus = (folders.len() + 1).saturating_sub(CACHED_ARTIFACTS);
    for (_, folder) in folders.into_iter().take(surplus) {
        if let Err(error) = std::fs::remove_dir_all(&folder) {
            tracing::info!("cannot remove {}: {error}", folder.display());
        }
    }
}
