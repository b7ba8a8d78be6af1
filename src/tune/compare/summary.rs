//! What all tasks and seeds of a comparison say together.

use std::collections::BTreeMap;

use super::{ByTrials, MethodRun, NOTHING_FOUND, TaskComparison, checkpoints};

/// Student's t for a 95 % interval, by degrees of freedom from 1 on; beyond, the normal distribution's.
const STUDENT: [f64; 9] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262];
const NORMAL: f64 = 1.96;

/// Geometric means over tasks and seeds of reference / best.
pub(super) fn qualities(tasks: &[TaskComparison]) -> ByTrials<f64> {
    each(tasks, &|logs_of_seeds| geometric_mean(logs_of_seeds.values().flatten().copied()))
}

/// 95 % confidence intervals of the same, taking seeds for independent; empty where there is one seed only.
pub(super) fn intervals(tasks: &[TaskComparison]) -> ByTrials<(f64, f64)> {
    let mut intervals = each(tasks, &|logs_of_seeds| {
        let means: Vec<f64> =
            logs_of_seeds.values().map(|logs| logs.iter().sum::<f64>() / logs.len().max(1) as f64).collect();
        interval(&means)
    });
    let known = |points: BTreeMap<usize, Option<(f64, f64)>>| {
        points.into_iter().filter_map(|(point, interval)| Some((point, interval?))).collect()
    };
    std::mem::take(&mut intervals).into_iter().map(|(method, points)| (method, known(points))).collect()
}

/// Around the mean of logarithms, as factors.
fn interval(means: &[f64]) -> Option<(f64, f64)> {
    let freedom = means.len().checked_sub(1).filter(|freedom| *freedom > 0)?;
    let count = means.len() as f64;
    let mean = means.iter().sum::<f64>() / count;
    let variance = means.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / freedom as f64;
    let half = STUDENT.get(freedom - 1).copied().unwrap_or(NORMAL) * (variance / count).sqrt();
    Some(((mean - half).exp(), (mean + half).exp()))
}

/// Mean seconds of a task at each number of trials. A run that ended before had ended.
pub(super) fn seconds(tasks: &[TaskComparison]) -> ByTrials<f64> {
    let mut sums: ByTrials<(f64, f64)> = BTreeMap::new();
    for run in tasks.iter().flat_map(|task| &task.runs) {
        for point in checkpoints(run.trials) {
            let Some(at) = run.seconds.get(point - 1).or(run.seconds.last()) else { continue };
            let sum = sums.entry(run.method.clone()).or_default().entry(point).or_default();
            *sum = (sum.0 + at, sum.1 + 1.0);
        }
    }
    let means = |points: BTreeMap<usize, (f64, f64)>| points.into_iter().map(|(p, (sum, count))| (p, sum / count));
    sums.into_iter().map(|(method, points)| (method, means(points).collect())).collect()
}

/// Logarithms of quality of all tasks, by seed.
type LogsOfSeeds = BTreeMap<u64, Vec<f64>>;

/// By method and number of trials, something of the logarithms of quality of each seed.
fn each<T>(tasks: &[TaskComparison], of: &dyn Fn(&LogsOfSeeds) -> T) -> ByTrials<T> {
    let mut logs: ByTrials<LogsOfSeeds> = BTreeMap::new();
    for task in tasks {
        let Some(reference) = task.reference_ms else { continue };
        for run in &task.runs {
            for point in checkpoints(run.trials) {
                let seeds = logs.entry(run.method.clone()).or_default().entry(point).or_default();
                seeds.entry(run.seed).or_default().push(quality(run, reference, point).ln());
            }
        }
    }
    let summed = |points: BTreeMap<usize, LogsOfSeeds>| points.into_iter().map(|(p, seeds)| (p, of(&seeds)));
    logs.into_iter().map(|(method, points)| (method, summed(points).collect())).collect()
}

/// Reference / best after a number of trials.
pub(super) fn quality(run: &MethodRun, reference_ms: f64, trials: usize) -> f64 {
    run.checked_ms.get(&trials).map_or(NOTHING_FOUND, |ms| reference_ms / ms)
}

/// From logarithms; 0 of none.
pub(super) fn geometric_mean(logs: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = logs.fold((0, 0.0), |(count, sum), log| (count + 1, sum + log));
    if count == 0 { 0.0 } else { (sum / f64::from(count)).exp() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{NOTHING_FOUND, checkpoints, interval, intervals, qualities, seconds};
    use crate::tune::compare::{MethodRun, TaskComparison};

    #[test]
    fn the_summary_is_a_geometric_mean_and_counts_what_found_nothing() {
        let run = |method: &str, ms: Option<f64>| MethodRun {
            method: method.into(),
            seed: 0,
            trials: 1,
            best_ms: vec![ms],
            seconds: vec![0.1],
            failed: BTreeMap::new(),
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
        let summary = qualities(&tasks);
        assert!((summary["lm"][&1] - 0.5).abs() < 1e-9);
        assert!((summary["random"][&1] - (0.25 * NOTHING_FOUND).sqrt()).abs() < 1e-9);
        assert_eq!(checkpoints(32), [1, 2, 3, 5, 10, 20, 32]);
    }

    #[test]
    fn intervals_are_students() {
        assert_eq!(interval(&[0.5]), None);
        let (low, high) = interval(&[0.0, 0.2]).unwrap();
        // a deviation of 0.1414, of the mean 0.1, times 12.706
        assert!((low.ln() - (0.1 - 1.2706)).abs() < 1e-6 && (high.ln() - (0.1 + 1.2706)).abs() < 1e-6);
        let run = |seed, ms: f64| MethodRun {
            method: "lm".into(),
            seed,
            trials: 1,
            best_ms: vec![Some(ms)],
            seconds: vec![ms],
            failed: BTreeMap::new(),
            checked_ms: BTreeMap::from([(1, ms)]),
        };
        let task = |runs| TaskComparison {
            hash: String::new(),
            name: String::new(),
            reference_ms: Some(1.0),
            untuned_ms: None,
            runs,
        };
        // seeds whose means over the tasks agree have no spread, however much tasks differ
        let tasks = [task(vec![run(0, 1.0), run(1, 1.0)]), task(vec![run(0, 4.0), run(1, 4.0)])];
        let (low, high) = intervals(&tasks)["lm"][&1];
        assert!((low - 0.5).abs() < 1e-9 && (high - 0.5).abs() < 1e-9);
        assert!((seconds(&tasks)["lm"][&1] - 2.5).abs() < 1e-9);
        assert!(intervals(&[task(vec![run(0, 2.0)])])["lm"].is_empty());
    }
}
