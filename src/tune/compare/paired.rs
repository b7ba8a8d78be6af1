//! What a method does better than its controls (see [`ModelControl`]).

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::summary::quality;
use super::{MethodRun, TaskComparison, checkpoints};
use crate::model::ModelControl;
use crate::tune::bootstrap::Difference;

/// A method beside one of its controls.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Paired {
    pub method: String,
    /// As it is called: `lm+shuffled`.
    pub control: String,
    /// By number of trials.
    pub by_trials: BTreeMap<usize, Difference>,
}

/// All methods whose controls ran on the same tasks with the same seeds.
pub(super) fn paired(tasks: &[TaskComparison]) -> Vec<Paired> {
    let names: BTreeSet<&str> = tasks.iter().flat_map(|task| &task.runs).map(|run| run.method.as_str()).collect();
    let pairs = names.iter().filter_map(|control| Some((ModelControl::split(control)?.0, *control)));
    let of = |(method, control): (&str, &str)| Paired {
        method: method.to_string(),
        control: control.to_string(),
        by_trials: differences(tasks, method, control),
    };
    pairs.map(of).filter(|paired| !paired.by_trials.is_empty()).collect()
}

fn differences(tasks: &[TaskComparison], method: &str, control: &str) -> BTreeMap<usize, Difference> {
    // logarithms of both qualities of each task and seed
    let mut logs: BTreeMap<usize, Vec<Vec<[f64; 2]>>> = BTreeMap::new();
    for task in tasks {
        let Some(reference) = task.reference_ms else { continue };
        let of = |name: &str| -> BTreeMap<u64, &MethodRun> {
            task.runs.iter().filter(|run| run.method == name).map(|run| (run.seed, run)).collect()
        };
        let mut of_task: BTreeMap<usize, Vec<[f64; 2]>> = BTreeMap::new();
        let controls = of(control);
        for (seed, run) in of(method) {
            let Some(other) = controls.get(&seed) else { continue };
            let common = checkpoints(other.trials);
            for point in checkpoints(run.trials).into_iter().filter(|point| common.contains(point)) {
                let pair = [run, other].map(|run| quality(run, reference, point).ln());
                of_task.entry(point).or_default().push(pair);
            }
        }
        of_task.into_iter().for_each(|(point, seeds)| logs.entry(point).or_default().push(seeds));
    }
    logs.into_iter().map(|(point, tasks)| (point, Difference::of(&tasks))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::paired;
    use crate::tune::compare::{MethodRun, TaskComparison};

    fn run(method: &str, seed: u64, ms: Option<f64>) -> MethodRun {
        MethodRun {
            method: method.into(),
            seed,
            trials: 1,
            best_ms: vec![ms],
            seconds: vec![0.1],
            failed: BTreeMap::new(),
            checked_ms: ms.into_iter().map(|ms| (1, ms)).collect(),
        }
    }

    fn task(runs: Vec<MethodRun>) -> TaskComparison {
        TaskComparison { hash: String::new(), name: String::new(), reference_ms: Some(1.0), untuned_ms: None, runs }
    }

    #[test]
    fn runs_of_one_task_and_seed_are_held_against_each_other() {
        let tasks = [
            task(vec![
                run("lm", 0, Some(1.0)),
                run("lm+shuffled", 0, Some(2.0)),
                run("random", 0, Some(9.0)),
                // without its counterpart
                run("lm", 1, Some(100.0)),
            ]),
            task(vec![run("lm", 0, Some(4.0)), run("lm+shuffled", 0, Some(8.0)), run("evolution+other", 0, None)]),
        ];
        let found = paired(&tasks);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].method.as_str(), found[0].control.as_str()), ("lm", "lm+shuffled"));
        let at = &found[0].by_trials[&1];
        assert_eq!((at.tasks, at.pairs), (2, 2));
        // 0.5 and 0.25 are the geometric means
        assert!((at.difference - 0.25).abs() < 1e-9 && (at.ratio - 2.0).abs() < 1e-9);
        // twice as fast on either task, whichever is drawn
        let (low, high) = at.ratio_interval.unwrap();
        assert!((low - 2.0).abs() < 1e-9 && (high - 2.0).abs() < 1e-9);
        // the first task twice is 1 against 0.5, the second twice 0.25 against 0.125
        let (low, high) = at.interval.unwrap();
        assert!((low - 0.125).abs() < 1e-9 && (high - 0.5).abs() < 1e-9);
    }

    #[test]
    fn what_found_nothing_counts_and_a_single_task_has_no_interval() {
        let tasks = [task(vec![run("a", 0, Some(1.0)), run("a+uniform", 0, None)])];
        let found = paired(&tasks);
        let at = &found[0].by_trials[&1];
        assert!((at.difference - 0.99).abs() < 1e-9 && at.interval.is_none() && at.ratio_interval.is_none());
        assert!(paired(&[task(vec![run("a+uniform", 0, Some(1.0))])]).is_empty());
    }
}
