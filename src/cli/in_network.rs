//! The last finals: the best programs of each task, where they are to run.
//!
//! A task that is measured alone finds its operands in the caches; in the network it finds weights in
//! memory, and what other tasks have left where these have left it. So the runners-up of all tasks are
//! compiled into further artifacts, all run in turn, and a task takes a runner-up where it was faster there.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use tilescribe::artifact::{
    Bound, CompiledCall, Manifest, Model, Options, Profile, Resources, Schedule, Trace, Version,
};
use tilescribe::files::{DraftFolder, folder_of};
use tilescribe::graph::{Network, NetworkBuffer, TensorData};
use tilescribe::record::{Record, Store};
use tilescribe::space::Space;
use tilescribe::target::{Target, Task};

use super::bench::{Before, room_for};
use super::exit::CommandError;
use super::packing::write_artifact;
use super::progress;
use super::search::stop_on_interrupt;
use super::words::bytes;
use super::{extents, inputs};

/// Runners-up of each task.
const RIVALS: usize = 2;
/// A runner-up that was slower alone than this many times the winner loses in the network, too.
const MOST: f64 = 1.25;
/// What it has to be faster by, in the network, to take the winner's place: less is noise.
const MARGIN: f64 = 0.97;
/// Runs of each artifact, at least and at most, and how long they may take together.
const RUNS: std::ops::RangeInclusive<usize> = 5..=400;
const LONGEST: Duration = Duration::from_secs(2);
/// So many runs are enough, once they have taken so long together: those of a short network are told apart
/// from noise by their number.
const ENOUGH: (usize, Duration) = (40, Duration::from_millis(800));

/// What the comparison came to.
pub enum Settled {
    /// No task has a runner-up.
    Nothing,
    /// Why there was none, for people.
    Skipped(String),
    /// Tasks that had a runner-up, and those of them that took it.
    Compared { compared: usize, taken: usize },
}

/// Puts runners-up in the place of those winners that are slower in the network, unless all networks
/// together may need more than `allowed_bytes` of memory, or a run takes long.
pub fn settle(
    network: &Network,
    target: &Target,
    space: &Space,
    store: &Store,
    chosen: &mut [Schedule],
    memory: (&Path, u64),
) -> Result<Settled> {
    let rivals = rivals(network, target, space, store, chosen)?;
    let compared = rivals.iter().filter(|rivals| !rivals.is_empty()).count();
    if compared == 0 {
        return Ok(Settled::Nothing);
    }
    let most = rivals.iter().map(Vec::len).max().unwrap_or(0);
    let others: Vec<Vec<Schedule>> = (0..most)
        .map(|rank| {
            let each = chosen.iter().zip(&rivals);
            each.map(|(own, rivals)| rivals.get(rank).unwrap_or(own).clone()).collect()
        })
        .collect();
    let variants: Vec<Variant<'_>> = std::iter::once(&*chosen)
        .chain(others.iter().map(Vec::as_slice))
        .map(|schedules| Variant { network, schedules })
        .collect();
    let profiles = match timed(&variants, target, memory)? {
        Ok(profiles) => profiles,
        Err(reason) => return Ok(Settled::Skipped(reason)),
    };
    let Some((own, others)) = profiles.split_first() else { return Ok(Settled::Nothing) };
    let mut taken = 0;
    for (number, (schedule, rivals)) in chosen.iter_mut().zip(rivals).enumerate() {
        let timed = rivals.into_iter().zip(others);
        let timed = timed.filter_map(|(rival, profile)| Some((rival, time_of(profile, number)?)));
        let Some((rival, other)) = timed.min_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
        if time_of(own, number).is_some_and(|own| other < MARGIN * own) {
            *schedule = rival;
            taken += 1;
        }
    }
    Ok(Settled::Compared { compared, taken })
}

/// A network and how its tasks are computed.
#[derive(Clone, Copy)]
pub struct Variant<'a> {
    pub network: &'a Network,
    pub schedules: &'a [Schedule],
}

/// Compiles variants of one network beside `output`, and runs them in turn: a profile of each, in their
/// order. The inner error says why not, for people: they may need more than `allowed_bytes` of memory
/// together, or take long.
pub fn timed(
    variants: &[Variant<'_>],
    target: &Target,
    (output, allowed_bytes): (&Path, u64),
) -> Result<Result<Vec<Profile>, String>> {
    // all artifacts lie in memory at once
    let needed = variants.iter().map(|variant| bytes_at_most(variant.network)).fold(0, u64::saturating_add);
    if needed > allowed_bytes {
        let (needed, allowed) = (bytes(needed), bytes(allowed_bytes));
        return Ok(Err(format!(
            "that may take {needed} of memory; {allowed} are allowed: --measuring-memory raises that"
        )));
    }
    let parent = std::path::absolute(output)?;
    let scratch = DraftFolder::create_in(folder_of(&parent))?;
    let mut models = Vec::with_capacity(variants.len());
    for (number, Variant { network, schedules }) in variants.iter().enumerate() {
        let name = format!("variant{number}");
        let folder = scratch.path().join(&name);
        write_artifact(network, &[Version { target, schedules }], &Options { name: &name, folder: &folder })?;
        let threads = Some(target.processors());
        models.push(Model::load(&folder, Resources { threads, ..Resources::default() })?);
    }
    let profiles: Option<Vec<Profile>> = in_turn(&models, target.processors())?.into_iter().collect();
    Ok(profiles.ok_or_else(|| format!("a run takes more than {} s", LONGEST.as_secs())))
}

/// Of weights, inputs, outputs and intermediates, at the greatest extents, none of which share memory.
fn bytes_at_most(network: &Network) -> u64 {
    let of = |buffer: &NetworkBuffer| {
        let elements = buffer.shape.iter().fold(1, |all: u64, extent| all.saturating_mul(extent.unsigned_abs()));
        elements.saturating_mul(buffer.dtype.bytes() as u64)
    };
    network.buffers.iter().map(of).fold(0, u64::saturating_add)
}

/// By task: the fastest other programs of it, as far as they are nearly as fast as the chosen one.
fn rivals(
    network: &Network,
    target: &Target,
    space: &Space,
    store: &Store,
    chosen: &[Schedule],
) -> Result<Vec<Vec<Schedule>>> {
    let mut all = Vec::with_capacity(chosen.len());
    for (task, own) in network.tasks.iter().zip(chosen) {
        let task = Task { workload: task.workload.clone(), target: target.clone() };
        let fastest = store.fastest_few(&task, space, 1 + RIVALS)?;
        let is_near = |ns: u64| own.best_ns.is_some_and(|own| ns as f64 <= MOST * own as f64);
        let others = fastest.iter().filter(|record| record.trace != own.trace);
        let others = others.filter(|record| record.outcome.best_ns().is_some_and(is_near)).take(RIVALS);
        let schedule = |record: &Record| Schedule::recorded(space, &task, &record.trace, record.outcome.best_ns());
        all.push(others.map(schedule).collect::<Result<_, _>>()?);
    }
    Ok(all)
}

/// What models take, run by run in turn; nothing of any where that would take long.
fn in_turn(models: &[Model], threads: u32) -> Result<Vec<Option<Profile>>> {
    let stopped = stop_on_interrupt()?;
    let Some(first) = models.first() else { return Ok(Vec::new()) };
    let symbols = extents::values(first.manifest(), None, &vec![None; first.manifest().inputs.len()], None)?;
    let given = inputs::complete(first.manifest(), first.manifest().inputs.iter().map(|_| None), &symbols, 0)?;
    let runners = models.iter().map(|model| Runner::new(model, &given, &symbols));
    let mut runners: Vec<Runner<'_>> = runners.collect::<Result<_>>()?;
    let (start, mut traces) = (Instant::now(), vec![Vec::new(); models.len()]);
    runners.iter_mut().try_for_each(|runner| runner.run(threads).map(drop))?;
    if start.elapsed() > LONGEST {
        return Ok(vec![None; models.len()]);
    }
    let bar = progress::bar(*RUNS.end() as u64, "comparing in the network");
    for run in 0..*RUNS.end() {
        bar.set_position(run as u64);
        let elapsed = start.elapsed();
        if run >= *RUNS.start() && elapsed > LONGEST || run >= ENOUGH.0 && elapsed > ENOUGH.1 {
            break;
        }
        if stopped.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(CommandError::Interrupted.into());
        }
        for (runner, traces) in runners.iter_mut().zip(&mut traces) {
            traces.extend(runner.run(threads)?);
        }
    }
    bar.finish_and_clear();
    let threads = u16::try_from(threads).unwrap_or(u16::MAX);
    let profile = |(model, traces): (&Model, Vec<Trace>)| Profile::of(model.manifest(), &traces, threads);
    Ok(models.iter().zip(traces).map(profile).collect())
}

struct Runner<'m> {
    bound: Bound<'m>,
    before: Before<'m>,
    manifest: &'m Manifest,
}

impl<'m> Runner<'m> {
    fn new(model: &'m Model, given: &[TensorData], symbols: &[i64]) -> Result<Runner<'m>> {
        let before = Before::of(model, symbols)?;
        before.restore()?;
        Ok(Runner { bound: model.bind(given)?, before, manifest: model.manifest() })
    }

    fn run(&mut self, threads: u32) -> Result<Option<Trace>> {
        let trace = self.bound.traced(room_for(self.manifest, threads as usize))?;
        self.before.restore()?;
        Ok(trace)
    }
}

/// Nanoseconds of all calls of a task in a run.
fn time_of(profile: &Profile, task: usize) -> Option<f64> {
    profile.tasks.iter().find(|time| time.callee == CompiledCall::Task(task)).map(|time| time.ns)
}
