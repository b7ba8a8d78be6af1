//! Whether calls that may run at the same time do so.
//!
//! The artifact is run both ways in turn, once it can, and each fork does what was faster there.

use std::fmt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use tilescribe::artifact::{Activity, Manifest, Model, Resources, Schedule, Trace};
use tilescribe::graph::{Network, NetworkTask};
use tilescribe::target::Target;

use super::exit::CommandError;
use super::progress;
use super::runner::Runner;
use super::search::stop_on_interrupt;
use super::words::{counted, duration};

/// Runs each way, at most, and how long all of them may take together.
const RUNS: usize = 200;
const LONGEST: Duration = Duration::from_millis(1500);
/// Fewer tell nothing.
const LEAST_RUNS: usize = 3;
/// What strands at the same time have to be faster by: less is noise, and calls behind them find what was
/// written on the same core in its caches.
const MARGIN: f64 = 0.98;
/// Operations of a task in a nanosecond, and bytes, where it was never measured.
const GUESSED_PER_NS: (f64, f64) = (50.0, 10.0);

/// What became of the forks of a network.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Judged {
    pub forks: usize,
    /// Those whose strands run at the same time.
    pub taken: usize,
    /// Nanoseconds of a run that these take one after the other, and at the same time.
    pub ns: [f64; 2],
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Judged { forks, taken, ns: [turns, beside] } = self;
        write!(
            f,
            "of {} of calls that need nothing of one another, {taken} run at the same time",
            counted(*forks, "row")
        )?;
        if *taken == 0 {
            return Ok(());
        }
        write!(f, ": {} of a run instead of {}", duration(*beside as u64), duration(*turns as u64))
    }
}

impl Judged {
    pub fn json(&self) -> Value {
        json!({ "found": self.forks, "taken": self.taken, "in_turn_ns": self.ns[0], "together_ns": self.ns[1] })
    }
}

/// Finds the calls of a network that may run at the same time on a target, by what its tasks take.
pub fn fork(network: &mut Network, target: &Target, schedules: &[Schedule]) {
    if target.processors() < 2 || matches!(target, Target::Gpu(_)) {
        return;
    }
    let cost = |(task, schedule): (&NetworkTask, &Schedule)| {
        let (operations, bytes) = (task.flops() as f64 / GUESSED_PER_NS.0, task.bytes() as f64 / GUESSED_PER_NS.1);
        schedule.best_ns.map_or(operations.max(bytes), |ns| ns as f64)
    };
    let costs: Vec<f64> = network.tasks.iter().zip(schedules).map(cost).collect();
    network.fork(&|task| costs[task]);
}

/// Says of each fork of an artifact whether its strands are faster at the same time, on as many threads as
/// the target has.
///
/// # Errors
/// Where it cannot be run, or somebody interrupts.
pub fn judge(folder: &Path, manifest: &Manifest, target: &Target) -> Result<(Vec<bool>, Judged)> {
    let stopped = stop_on_interrupt()?;
    let threads = target.processors();
    let resources = Resources { threads: Some(threads), ..Resources::default() };
    let model = Model::load_written(folder, manifest.clone(), resources)?;
    let mut runner = Runner::new(&model)?;
    let mut times: Vec<[Vec<u64>; 2]> = vec![Default::default(); manifest.forks.len()];
    let (start, bar) = (Instant::now(), progress::bar(RUNS as u64, "comparing calls at the same time"));
    for run in 0..RUNS {
        let elapsed = start.elapsed();
        // where each takes as long as all of them may, one that counts has to do
        let least = if elapsed > LONGEST * run as u32 { 1 } else { LEAST_RUNS };
        if run > least && elapsed > LONGEST {
            break;
        }
        if stopped.load(Ordering::Relaxed) {
            return Err(CommandError::Interrupted.into());
        }
        bar.set_position(run as u64);
        for at_once in [false, true] {
            let trace = if at_once { runner.at_once(threads)? } else { runner.in_turn(threads)? };
            // the first runs find nothing where later ones do
            if let Some(trace) = trace.filter(|_| run > 0) {
                note(&trace, manifest, &mut times, usize::from(at_once));
            }
        }
    }
    bar.finish_and_clear();
    let mut judged = Judged { forks: manifest.forks.len(), ..Judged::default() };
    let stays = times.into_iter().map(|both| {
        let [Some(turns), Some(beside)] = both.map(median) else { return false };
        let stays = beside < MARGIN * turns;
        if stays {
            judged.taken += 1;
            judged.ns = [judged.ns[0] + turns, judged.ns[1] + beside];
        }
        stays
    });
    Ok((stays.collect(), judged))
}

/// Takes the times of all forks in a run.
fn note(trace: &Trace, manifest: &Manifest, times: &mut [[Vec<u64>; 2]], way: usize) {
    for event in trace.events.iter().filter(|event| event.activity() == Activity::Fork) {
        let first = |strands: &Vec<[usize; 2]>| strands.first().map(|strand| strand[0]) == Some(event.call as usize);
        if let Some(fork) = manifest.forks.iter().position(first) {
            times[fork][way].push(event.duration());
        }
    }
}

fn median(mut times: Vec<u64>) -> Option<f64> {
    times.sort_unstable();
    times.get(times.len() / 2).map(|ns| *ns as f64)
}
