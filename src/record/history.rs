//! What was measured of a task, in little memory: a run of many thousand trials must not grow by their
//! traces.

use std::collections::{BTreeMap, HashMap, HashSet};

use sha2::{Digest, Sha256};

use crate::outcome::Outcome;
use crate::space::Trace;

/// What was measured of a task: nanoseconds of the best run, `None` for failures. The fastest traces are
/// there to go on from, at most [`History::KEPT`] of them; the others can only be asked for.
#[derive(Clone, Debug, Default)]
pub struct History {
    measured: HashMap<Fingerprint, Option<u64>>,
    /// Of those whose single runs are known.
    spreads: HashMap<Fingerprint, Spread>,
    fastest: BTreeMap<(u64, Trace), Fingerprint>,
    /// Being measured.
    expected: HashSet<Fingerprint>,
}

/// The first half of the SHA-256 of a trace's text.
type Fingerprint = [u8; 16];

fn fingerprint(trace: &Trace) -> Fingerprint {
    let digest = Sha256::digest(trace.to_string());
    std::array::from_fn(|at| digest[at])
}

/// How the single runs of a program are spread.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    pub runs: u32,
    /// Of the natural logarithms of nanoseconds.
    pub mean: f64,
    /// The variance of the same, of a sample.
    pub variance: f64,
}

impl Spread {
    /// `None` of fewer than two runs.
    pub fn of(times_ns: &[u64]) -> Option<Spread> {
        if times_ns.len() < 2 {
            return None;
        }
        let count = times_ns.len() as f64;
        let logs = || times_ns.iter().map(|ns| (*ns.max(&1) as f64).ln());
        let mean = logs().sum::<f64>() / count;
        let variance = logs().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
        Some(Spread { runs: times_ns.len() as u32, mean, variance })
    }

    /// Whether runs are faster than another program's by more than chance makes them one time in twenty:
    /// Welch's test of the means (Biometrika 1947), from one side.
    pub fn is_faster_than(&self, other: &Spread) -> bool {
        let parts = [self, other].map(|spread| spread.variance / f64::from(spread.runs.max(1)));
        let variance = parts[0] + parts[1];
        if variance <= 0.0 {
            return self.mean < other.mean;
        }
        let by_freedom = |part: f64, runs: u32| part * part / f64::from(runs.max(2) - 1);
        let freedom = variance * variance / (by_freedom(parts[0], self.runs) + by_freedom(parts[1], other.runs));
        // Student's quantile from the normal one, by the first terms of Cornish and Fisher's series
        let z: f64 = 1.644_85;
        let quantile = z
            + (z.powi(3) + z) / (4.0 * freedom)
            + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * freedom * freedom);
        (other.mean - self.mean) / variance.sqrt() > quantile
    }
}

impl History {
    /// How many of the fastest traces are kept whole.
    pub const KEPT: usize = 64;
    /// Measured again, a program hardly ever comes out faster by more than this factor. Most come out the
    /// same to a few percent, but on a virtual machine, whose share of the last-level cache changes, programs
    /// that stream their weights and programs that do not have changed places by 1.5 and more.
    pub const DOUBT: f64 = 1.5;
    /// Best runs that differ by less than this factor tell no difference.
    pub const NOISE: f64 = 1.05;

    /// Adds a trace, or replaces its time.
    pub fn insert(&mut self, trace: Trace, best_ns: Option<u64>) {
        let key = fingerprint(&trace);
        self.expected.remove(&key);
        self.spreads.remove(&key);
        if let Some(Some(_)) = self.measured.insert(key, best_ns) {
            self.fastest.retain(|_, other| *other != key);
        }
        if let Some(ns) = best_ns {
            self.fastest.insert((ns, trace), key);
            if self.fastest.len() > Self::KEPT {
                self.fastest.pop_last();
            }
        }
    }

    /// The same with what is told by the single runs.
    pub fn insert_outcome(&mut self, trace: Trace, outcome: &Outcome) {
        let (key, best_ns) = (fingerprint(&trace), outcome.best_ns());
        self.insert(trace, best_ns);
        if let Outcome::Timed { times_ns, .. } = outcome {
            self.spreads.extend(Spread::of(times_ns).map(|spread| (key, spread)));
        }
    }

    /// Whether a program is faster than another, as far as its runs tell; where single runs are not known, by
    /// [`History::NOISE`]. A program without a time is slower than any with one.
    pub fn is_faster(&self, trace: &Trace, other: &Trace) -> bool {
        let keys = [trace, other].map(fingerprint);
        let Some(own) = self.measured.get(&keys[0]).copied().flatten() else { return false };
        let Some(others) = self.measured.get(&keys[1]).copied().flatten() else { return true };
        match (self.spreads.get(&keys[0]), self.spreads.get(&keys[1])) {
            (Some(own), Some(other)) => own.is_faster_than(other),
            _ => own as f64 * Self::NOISE < others as f64,
        }
    }

    /// Takes note that a trace is being measured: it need not be proposed again.
    pub fn expect(&mut self, trace: &Trace) {
        self.expected.insert(fingerprint(trace));
    }

    /// A trace that was being measured is not measured after all.
    pub fn expect_no_more(&mut self, trace: &Trace) {
        self.expected.remove(&fingerprint(trace));
    }

    /// Whether a trace was measured.
    pub fn is_measured(&self, trace: &Trace) -> bool {
        self.measured.contains_key(&fingerprint(trace))
    }

    /// Whether a trace was measured, or is being measured.
    pub fn contains(&self, trace: &Trace) -> bool {
        let key = fingerprint(trace);
        self.measured.contains_key(&key) || self.expected.contains(&key)
    }

    /// Nanoseconds of the best run of a trace; `None` where it failed or was not measured.
    pub fn best_ns(&self, trace: &Trace) -> Option<u64> {
        self.measured.get(&fingerprint(trace)).copied().flatten()
    }

    /// How many traces were measured, failures among them.
    pub fn len(&self) -> usize {
        self.measured.len()
    }

    pub fn is_empty(&self) -> bool {
        self.measured.is_empty()
    }

    /// The fastest trace and its nanoseconds.
    pub fn best(&self) -> Option<(&Trace, u64)> {
        self.fastest.keys().next().map(|(ns, trace)| (trace, *ns))
    }

    /// The `count` fastest traces, fastest first; at most [`History::KEPT`].
    pub fn fastest(&self, count: usize) -> Vec<Trace> {
        self.fastest.keys().take(count).map(|(_, trace)| trace.clone()).collect()
    }

    /// Those of the `count` fastest traces that may turn out to be the fastest when they are measured again,
    /// by [`History::DOUBT`].
    pub fn finalists(&self, count: usize) -> Vec<Trace> {
        let most = self.best().map_or(0.0, |(_, ns)| ns as f64 * Self::DOUBT);
        let is_close = |(ns, _): &&(u64, Trace)| *ns as f64 <= most;
        self.fastest.keys().take(count).take_while(is_close).map(|(_, trace)| trace.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{History, Spread};
    use crate::outcome::Outcome;
    use crate::space::Trace;

    fn trace(number: u64) -> Trace {
        format!("tile s0 a = {number}\n").parse().unwrap()
    }

    #[test]
    fn all_are_known_and_the_fastest_are_kept() {
        let mut history = History::default();
        let count = 3 * History::KEPT as u64;
        for number in 1..=count {
            // the later, the faster; every third fails
            history.insert(trace(number), (number % 3 != 0).then_some(1000 - number));
        }
        assert_eq!(history.len() as u64, count);
        assert!((1..=count).all(|number| history.contains(&trace(number))));
        assert!(!history.contains(&trace(count + 1)));
        assert_eq!(history.best_ns(&trace(1)), Some(999));
        assert_eq!(history.best_ns(&trace(3)), None);
        assert_eq!(history.best(), Some((&trace(count - 1), 1001 - count)));
        assert_eq!(history.fastest(2), [trace(count - 1), trace(count - 2)]);
        assert_eq!(history.fastest(usize::MAX).len(), History::KEPT);
    }

    #[test]
    fn what_is_being_measured_is_known_and_counts_for_nothing() {
        let mut history = History::default();
        history.expect(&trace(1));
        history.expect(&trace(2));
        assert!(history.contains(&trace(1)) && history.is_empty() && history.best().is_none());
        history.insert(trace(1), Some(5));
        history.expect_no_more(&trace(2));
        assert!(history.contains(&trace(1)) && !history.contains(&trace(2)));
        assert_eq!(history.len(), 1);
    }

    #[test]
    fn a_second_time_replaces_the_first() {
        let mut history = History::default();
        history.insert(trace(1), Some(10));
        history.insert(trace(2), Some(20));
        history.insert(trace(1), Some(30));
        assert_eq!((history.len(), history.fastest(9)), (2, vec![trace(2), trace(1)]));
        history.insert(trace(2), None);
        assert_eq!((history.len(), history.fastest(9)), (2, vec![trace(1)]));
    }

    #[test]
    fn what_is_faster_is_told_by_the_runs() {
        let timed = |times_ns: &[u64]| Outcome::Timed { times_ns: times_ns.to_vec(), compile_us: 1 };
        let mut history = History::default();
        // the second is luckier once, the third is faster as a rule
        history.insert_outcome(trace(1), &timed(&[1000, 1010, 990, 1005, 995]));
        history.insert_outcome(trace(2), &timed(&[900, 1100, 1050, 1010, 960]));
        history.insert_outcome(trace(3), &timed(&[980, 970, 975, 985, 965]));
        history.insert(trace(4), Some(940));
        history.insert(trace(5), None);
        let faster = |a, b| history.is_faster(&trace(a), &trace(b));
        assert!(!faster(2, 1) && !faster(1, 2) && faster(3, 1) && !faster(1, 3));
        assert!(faster(4, 1) && !faster(4, 3), "the best runs, and five percent");
        assert!(faster(1, 5) && !faster(5, 1) && !faster(6, 1) && faster(1, 6));
        assert_eq!(Spread::of(&[7]), None);
        let equal = Spread::of(&[7, 7]).unwrap();
        assert!(!equal.is_faster_than(&equal));
    }

    #[test]
    fn finalists_are_close() {
        let mut history = History::default();
        assert!(history.finalists(3).is_empty());
        for (number, ns) in [(1, 1501), (2, 1000), (3, 1499), (4, 1050)] {
            history.insert(trace(number), Some(ns));
        }
        assert_eq!(history.finalists(9), [2, 4, 3].map(trace));
        assert_eq!(history.finalists(2), [2, 4].map(trace));
    }
}
