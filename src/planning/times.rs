//! What tasks take, as far as it is known, and what is guessed of the others.

use std::collections::{BTreeMap, BTreeSet};

use super::cuts::Cut;
use crate::graph::{NetworkTask, bound_tensors};
use crate::workload::{DType, Role};

/// Nanoseconds of the fastest program of a task.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Time {
    /// In finals, where tasks are measured in turn with their untuned programs, as a network finds them.
    pub final_ns: Option<f64>,
    /// The fastest run of any.
    pub least_ns: Option<f64>,
}

/// Which of the two times. Sums are compared where all their tasks have the same: a fastest run is less than
/// what finals say of the same program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    Finals,
    Least,
}

impl Time {
    fn by(self, measure: Measure) -> Option<f64> {
        match measure {
            Measure::Finals => self.final_ns,
            Measure::Least => self.least_ns,
        }
    }

    fn any(self) -> Option<f64> {
        self.final_ns.or(self.least_ns)
    }
}

/// What tasks have in common that do the same work, in whatever layout their tensors are: operations, and
/// the sizes of what they read and write.
type Work = (i64, Vec<(bool, DType, i64)>);

fn work(task: &NetworkTask) -> Work {
    let tensors = bound_tensors(&task.workload);
    let mut tensors: Vec<_> =
        tensors.map(|(_, tensor)| (tensor.role == Role::Output, tensor.dtype, tensor.elements())).collect();
    tensors.sort_unstable();
    (task.flops(), tensors)
}

/// Times of tasks by number.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// `None` of tasks that nobody was asked about.
    times: Vec<Option<Time>>,
    works: Vec<Work>,
    bytes: Vec<f64>,
    alike: BTreeMap<Work, Vec<usize>>,
    /// Were measured in full, or briefly.
    measured: BTreeSet<usize>,
    brief: BTreeSet<usize>,
}

impl Times {
    /// Takes note of tasks, in the order of their numbers.
    pub fn add(&mut self, task: &NetworkTask) {
        let work = work(task);
        self.alike.entry(work.clone()).or_default().push(self.times.len());
        self.works.push(work);
        self.bytes.push(task.bytes() as f64);
        self.times.push(None);
    }

    pub fn set(&mut self, task: usize, time: Time) {
        self.times[task] = Some(time);
    }

    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// Takes note that a task was measured in full: where it has no time, it gets none.
    pub fn give_up(&mut self, task: usize) {
        self.measured.insert(task);
    }

    /// Takes note that a task was measured briefly.
    pub fn note_brief(&mut self, task: usize) {
        self.brief.insert(task);
    }

    pub fn was_measured(&self, task: usize) -> bool {
        self.measured.contains(&task)
    }

    /// Whether a task was measured briefly, and not in full.
    pub fn is_brief(&self, task: usize) -> bool {
        self.brief.contains(&task) && !self.was_measured(task)
    }

    /// Whether a task was measured and has no time.
    pub fn is_hopeless(&self, task: usize) -> bool {
        self.measured.contains(&task) && !self.is_known(task)
    }

    pub fn was_asked(&self, task: usize) -> bool {
        self.times[task].is_some()
    }

    pub fn is_known(&self, task: usize) -> bool {
        self.of(task).any().is_some()
    }

    fn of(&self, task: usize) -> Time {
        self.times.get(task).copied().flatten().unwrap_or_default()
    }

    /// What all tasks of a plan take: in finals where there were any, or else by their fastest runs; and
    /// whether all of them were in finals. `None` where a task has no time.
    pub fn sum(&self, cut: &Cut) -> Option<(f64, Measure)> {
        let is_final = cut.tasks.iter().all(|(task, _)| self.of(*task).final_ns.is_some());
        let measure = if is_final { Measure::Finals } else { Measure::Least };
        Some((total(&cut.tasks, |task| self.of(task).any())?, measure))
    }

    /// The same of two plans, where tasks that only one of them has are timed by one measure.
    pub fn sums(&self, first: &Cut, second: &Cut) -> Option<[f64; 2]> {
        let Difference { ns, unknown } = self.difference(first, second);
        let [ours, theirs] = ns.filter(|_| unknown.is_empty())?;
        let calls: BTreeMap<usize, f64> = second.tasks.iter().copied().collect();
        let both = first.tasks.iter().filter_map(|(task, n)| Some((*task, n.min(*calls.get(task)?))));
        let both = total(&both.collect::<Vec<_>>(), |task| self.of(task).any())?;
        Some([both + ours, both + theirs])
    }

    /// What the tasks take that only the first or only the second of two plans has, or more often.
    pub fn difference(&self, first: &Cut, second: &Cut) -> Difference {
        let mut calls: BTreeMap<usize, f64> = first.tasks.iter().copied().collect();
        for (task, more) in &second.tasks {
            *calls.entry(*task).or_default() -= more;
        }
        let ours: Vec<(usize, f64)> = calls.iter().filter(|(_, n)| **n > 0.0).map(|(task, n)| (*task, *n)).collect();
        let theirs: Vec<(usize, f64)> = calls.iter().filter(|(_, n)| **n < 0.0).map(|(task, n)| (*task, -n)).collect();
        let changed = || ours.iter().chain(&theirs).map(|(task, _)| *task);
        let unknown: Vec<usize> = changed().filter(|task| !self.is_known(*task)).collect();
        let has = |measure| changed().all(|task| !self.is_known(task) || self.of(task).by(measure).is_some());
        let ns = |measure: Measure| {
            let of = |tasks: &[(usize, f64)]| {
                total(tasks, |task| self.of(task).by(measure).or_else(|| self.guess(task, measure)))
            };
            has(measure).then(|| of(&ours).zip(of(&theirs))).flatten()
        };
        let ns = [Measure::Finals, Measure::Least].into_iter().find_map(ns);
        Difference { ns: ns.map(|(ours, theirs)| [ours, theirs]), unknown }
    }

    /// What a task may take whose time is not known. Tasks that do the same work in another layout take as
    /// long as those on average (geometric mean); others as long as that whose work is nearest, for each
    /// operation or byte. `None` where nothing is known of any task.
    fn guess(&self, task: usize, measure: Measure) -> Option<f64> {
        let known = |task: &usize| Some((*task, self.of(*task).by(measure).filter(|ns| *ns > 0.0)?));
        let alike: Vec<f64> =
            self.alike.get(&self.works[task])?.iter().filter_map(known).map(|(_, ns)| ns.ln()).collect();
        if !alike.is_empty() {
            return Some((alike.iter().sum::<f64>() / alike.len() as f64).exp());
        }
        let ratios = |other: usize| {
            let flops = |at: usize| self.works[at].0.max(1) as f64;
            [flops(task) / flops(other), self.bytes[task].max(1.0) / self.bytes[other].max(1.0)]
        };
        let distance = |other: usize| ratios(other).iter().map(|ratio| ratio.ln().abs()).sum::<f64>();
        let all = (0..self.times.len()).filter_map(|other| known(&other));
        let (nearest, ns) = all.min_by(|(a, _), (b, _)| distance(*a).total_cmp(&distance(*b)))?;
        Some(ns * ratios(nearest).into_iter().fold(0.0, f64::max))
    }
}

/// How two plans differ.
#[derive(Clone, PartialEq, Debug)]
pub struct Difference {
    /// What the tasks take that only the first has, and those that only the second has; guessed where times
    /// are unknown, and `None` where nothing can be guessed.
    pub ns: Option<[f64; 2]>,
    /// Those of these tasks whose time is not known.
    pub unknown: Vec<usize>,
}

fn total(tasks: &[(usize, f64)], ns: impl Fn(usize) -> Option<f64>) -> Option<f64> {
    tasks.iter().map(|(task, calls)| Some(ns(*task)? * calls)).sum()
}
