//! Methods side by side: the same tasks, the same machine, the same number of trials.
//!
//! Every method starts each task from nothing, once for every seed, and sees only what it measured itself. What a method had found after
//! 1, 2, 5, 10, ... trials is measured once more at the end, all methods' programs in turn, so that figures of one task can be compared.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;

use super::{Control, Job, TuneError};
use crate::measure::Measurer;
use crate::propose::{History, ProposeError, Proposer};
use crate::space::{Space, Trace, Untuned};

/// A search method.
pub struct Method<'a> {
    pub name: String,
    /// Makes the proposer of a seed.
    pub make: MakeProposer<'a>,
}

/// Makes the proposer of a seed.
pub type MakeProposer<'a> = Box<dyn Fn(u64) -> Result<Box<dyn Proposer + 'a>, ProposeError> + 'a>;

/// How much is compared.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Measured candidates of each task, method and seed.
    pub trials: usize,
    pub seeds: u64,
    /// Candidates proposed at once; no more are seen by a proposer before it gets their outcomes.
    pub batch: usize,
}

/// Serialises to `results.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The machine, as records name it, and in words.
    pub target: String,
    pub trials: usize,
    pub tasks: Vec<TaskComparison>,
    /// By method and number of trials: the geometric mean over tasks and seeds of reference / best.
    pub summary: BTreeMap<String, BTreeMap<usize, f64>>,
    /// The same of the program that the space's rules write without any search: what every method starts level with, if it is asked to.
    pub untuned: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct TaskComparison {
    /// The workload's canonical hash.
    pub hash: String,
    pub name: String,
    /// The fastest program of any method, in milliseconds, as measured at the end.
    pub reference_ms: Option<f64>,
    /// The program that the space's rules write without any search, as measured at the end.
    pub untuned_ms: Option<f64>,
    pub runs: Vec<MethodRun>,
}

/// One method on one task with one seed.
#[derive(Clone, Debug, Serialize)]
pub struct MethodRun {
    pub method: String,
    pub seed: u64,
    /// Best so far after trial 1, 2, ..., in milliseconds, as measured then; `null` before the first correct program.
    pub best_ms: Vec<Option<f64>>,
    /// Wall clock at the end of trial 1, 2, ..., proposing included.
    pub seconds: Vec<f64>,
    /// Candidates without a time.
    pub failed: usize,
    /// By number of trials: the best program by then, measured at the end beside all others.
    pub checked_ms: BTreeMap<usize, f64>,
}

/// A run that has nothing correct yet counts as this part of the reference.
pub const NOTHING_FOUND: f64 = 0.01;

/// After how many trials the best program is measured once more: 1, 2, 3, 5, 10, ... and the last.
pub fn checkpoints(trials: usize) -> Vec<usize> {
    let mut points: Vec<usize> =
        [1, 2, 3, 5, 10, 20, 32, 64, 100, 200, 320, 500, 1000].into_iter().filter(|p| *p < trials).collect();
    points.push(trials);
    points
}

/// Runs every method on every task. `watch` is told the task's number, method, seed and trial.
///
/// # Errors
/// [`TuneError`] where a task cannot be measured or a method cannot propose.
pub fn compare(
    jobs: &[Job],
    methods: &[Method<'_>],
    measurer: &mut Measurer,
    settings: &Settings,
    watch: &mut dyn FnMut(usize, &str, u64, usize) -> Control,
) -> Result<Comparison, TuneError> {
    let mut tasks = Vec::new();
    'tasks: for (number, job) in jobs.iter().enumerate() {
        let mut runs = Vec::new();
        let mut best_traces = Vec::new();
        for seed in 0..settings.seeds {
            for method in methods {
                let mut told = |trial| watch(number, &method.name, seed, trial);
                let Some((run, bests)) = run_method(job, method, seed, measurer, settings, &mut told)? else {
                    break 'tasks;
                };
                runs.push(run);
                best_traces.push(bests);
            }
        }
        let (reference_ms, untuned_ms) = recheck(job, measurer, &mut runs, &best_traces)?;
        tasks.push(TaskComparison {
            hash: job.task.workload.hash().to_string(),
            name: job.name.clone(),
            reference_ms,
            untuned_ms,
            runs,
        });
    }
    let target = jobs.first().map_or(String::new(), |job| crate::record::fingerprint(&job.task.target));
    let summary = summarise(&tasks, settings.trials);
    let untuned = geometric_mean(tasks.iter().filter_map(|task| {
        task.reference_ms.map(|reference| task.untuned_ms.map_or(NOTHING_FOUND, |ms| reference / ms).ln())
    }));
    Ok(Comparison { target, trials: settings.trials, tasks, summary, untuned })
}

/// The best trace at every checkpoint.
type Bests = BTreeMap<usize, Trace>;

fn run_method(
    job: &Job,
    method: &Method<'_>,
    seed: u64,
    measurer: &mut Measurer,
    settings: &Settings,
    told: &mut dyn FnMut(usize) -> Control,
) -> Result<Option<(MethodRun, Bests)>, TuneError> {
    let started = Instant::now();
    let cannot_propose = |source| TuneError::Propose { job: job.name.clone(), source };
    let cannot_measure = |source| TuneError::Measure { job: job.name.clone(), source };
    let mut proposer = (method.make)(seed).map_err(cannot_propose)?;
    let mut history = History::default();
    let (mut best_ms, mut seconds, mut failed, mut bests) = (Vec::new(), Vec::new(), 0, Bests::new());
    let points = checkpoints(settings.trials);
    while history.len() < settings.trials {
        let wanted = settings.batch.clamp(1, settings.trials - history.len());
        let proposal = proposer.propose(&job.task, &history, wanted).map_err(cannot_propose)?;
        if proposal.candidates.is_empty() {
            break;
        }
        let traces: Vec<Trace> = proposal.candidates.iter().map(|c| c.trace.clone()).collect();
        measurer.compile_ahead(&job.task, &traces).map_err(cannot_measure)?;
        for candidate in proposal.candidates {
            let incumbent = history.best().map(|(_, ns)| ns);
            let outcome = measurer.measure(&job.task, &candidate.trace, incumbent).map_err(cannot_measure)?;
            failed += usize::from(outcome.best_ns().is_none());
            history.insert(candidate.trace, outcome.best_ns());
            best_ms.push(history.best().map(|(_, ns)| ns as f64 / 1e6));
            seconds.push(started.elapsed().as_secs_f64());
            if points.contains(&history.len())
                && let Some((trace, _)) = history.best()
            {
                bests.insert(history.len(), trace.clone());
            }
            if told(history.len()) == Control::Stop {
                return Ok(None);
            }
        }
    }
    // a space smaller than the budget has nothing more to find
    if let Some((trace, _)) = history.best() {
        for point in points.into_iter().filter(|p| *p > history.len()) {
            bests.insert(point, trace.clone());
        }
    }
    let run = MethodRun { method: method.name.clone(), seed, best_ms, seconds, failed, checked_ms: BTreeMap::new() };
    Ok(Some((run, bests)))
}

/// Measures the best programs of all runs in turn, and the untuned one; gives the fastest time, and the untuned one's.
fn recheck(
    job: &Job,
    measurer: &mut Measurer,
    runs: &mut [MethodRun],
    bests: &[Bests],
) -> Result<(Option<f64>, Option<f64>), TuneError> {
    let (untuned, _) = Space::standard().drive(&job.task, &mut Untuned);
    let mut traces: Vec<Trace> = bests.iter().flat_map(|b| b.values().cloned()).collect();
    traces.push(untuned.clone());
    traces.sort();
    traces.dedup();
    let cannot_measure = |source| TuneError::Measure { job: job.name.clone(), source };
    let outcomes = measurer.finals(&job.task, &traces).map_err(cannot_measure)?;
    let times: BTreeMap<&Trace, f64> = traces
        .iter()
        .zip(&outcomes)
        .filter_map(|(trace, outcome)| outcome.best_ns().map(|ns| (trace, ns as f64 / 1e6)))
        .collect();
    for (run, bests) in runs.iter_mut().zip(bests) {
        // what was measured once more may come out in another order: the best of what was known by then counts
        let mut best = f64::INFINITY;
        for (point, trace) in bests {
            best = times.get(trace).copied().unwrap_or(f64::INFINITY).min(best);
            if best.is_finite() {
                run.checked_ms.insert(*point, best);
            }
        }
    }
    Ok((times.values().copied().reduce(f64::min), times.get(&untuned).copied()))
}

fn summarise(tasks: &[TaskComparison], trials: usize) -> BTreeMap<String, BTreeMap<usize, f64>> {
    let mut logs: BTreeMap<String, BTreeMap<usize, Vec<f64>>> = BTreeMap::new();
    for task in tasks {
        let Some(reference) = task.reference_ms else { continue };
        for run in &task.runs {
            for point in checkpoints(trials) {
                let quality = run.checked_ms.get(&point).map_or(NOTHING_FOUND, |ms| reference / ms);
                logs.entry(run.method.clone()).or_default().entry(point).or_default().push(quality.ln());
            }
        }
    }
    let means = |points: BTreeMap<usize, Vec<f64>>| points.into_iter().map(|(p, l)| (p, geometric_mean(l.into_iter())));
    logs.into_iter().map(|(method, points)| (method, means(points).collect())).collect()
}

/// From logarithms; 0 of none.
fn geometric_mean(logs: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = logs.fold((0, 0.0), |(count, sum), log| (count + 1, sum + log));
    if count == 0 { 0.0 } else { (sum / f64::from(count)).exp() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_a_geometric_mean_and_counts_what_found_nothing() {
        let run = |method: &str, ms: Option<f64>| MethodRun {
            method: method.into(),
            seed: 0,
            best_ms: vec![ms],
            seconds: vec![0.1],
            failed: usize::from(ms.is_none()),
            checked_ms: ms.into_iter().map(|ms| (1, ms)).collect(),
        };
        let task = |reference, runs| TaskComparison {
            hash: String::new(),
            name: String::new(),
            reference_ms: Some(reference),
            untuned_ms: None,
            runs,
        };
        let tasks = [
            task(1.0, vec![run("lm", Some(1.0)), run("random", Some(4.0))]),
            task(1.0, vec![run("lm", Some(4.0)), run("random", None)]),
        ];
        let summary = summarise(&tasks, 1);
        assert!((summary["lm"][&1] - 0.5).abs() < 1e-9);
        assert!((summary["random"][&1] - (0.25 * NOTHING_FOUND).sqrt()).abs() < 1e-9);
        assert_eq!(checkpoints(32), [1, 2, 3, 5, 10, 20, 32]);
    }
}
