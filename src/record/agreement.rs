//! How far two measurements of the same programs agree: what a ranking that learns from one of them can hope
//! for.

use std::collections::HashMap;

use serde::Serialize;

use super::Entry;
use crate::space::Trace;

/// From which difference on pairs are told apart, as a part of the faster program's time.
const BANDS: [f64; 4] = [0.05, 0.1, 0.2, 0.5];
/// Which parts of all times deviate by less.
const SHARES: [f64; 4] = [0.5, 0.8, 0.95, 0.99];
/// Pairs of a task count where both programs take less than this many times its fastest one's time: nobody
/// wonders about the others.
const NEAR: f64 = 2.0;

/// Of programs that were timed both times.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Agreement {
    pub tasks: usize,
    pub programs: usize,
    /// Pairs of programs of a task, by how much they differ in the second measurement.
    pub pairs: Vec<Pairs>,
    /// How far single times are apart, when both measurements of a task are brought to the same pace.
    pub deviations: Vec<Deviation>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Pairs {
    /// The slower one takes more than this part longer than the faster one, ...
    pub from: f64,
    /// ... and not more than this part; none for the last.
    pub to: Option<f64>,
    pub pairs: u64,
    /// Those whose order is the same in the first measurement.
    pub in_order: u64,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Deviation {
    /// This part of all times ...
    pub share: f64,
    /// ... is off by no more than this factor.
    pub factor: f64,
}

/// Nanoseconds of each program of a task, in both measurements.
type Times = HashMap<Trace, [Option<u64>; 2]>;

/// Collects both measurements. Where a trace comes twice in one, the later one counts.
#[derive(Default)]
pub struct Agreements {
    /// By task and target.
    tasks: HashMap<(String, String), Times>,
}

impl Agreements {
    /// Takes what the first or the second measurement says of a program. Failures are passed over.
    pub fn add(&mut self, entry: Entry, second: bool) {
        let record = entry.record;
        let Some(time) = record.outcome.best_ns() else { return };
        let task = self.tasks.entry((record.task_hash, record.target)).or_default();
        task.entry(record.trace).or_default()[usize::from(second)] = Some(time.max(1));
    }

    /// What both know. `None` where they have no program in common.
    pub fn finish(self) -> Option<Agreement> {
        let (mut tasks, mut programs) = (0, 0);
        let mut pairs: Vec<Pairs> = (0..BANDS.len())
            .map(|band| Pairs { from: BANDS[band], to: BANDS.get(band + 1).copied(), pairs: 0, in_order: 0 })
            .collect();
        let mut deviations = Vec::new();
        for task in self.tasks.into_values() {
            let both = |times: [Option<u64>; 2]| Some((times[0]? as f64, times[1]? as f64));
            let times: Vec<(f64, f64)> = task.into_values().filter_map(both).collect();
            if times.is_empty() {
                continue;
            }
            tasks += 1;
            programs += times.len();
            count_pairs(&times, &mut pairs);
            // the two may have been told at another pace
            let ratios: Vec<f64> = times.iter().map(|(first, second)| (first / second).ln()).collect();
            let pace = at_share(ratios.clone(), 0.5);
            deviations.extend(ratios.into_iter().map(|ratio| (ratio - pace).abs()));
        }
        let factor = |share| Deviation { share, factor: at_share(deviations.clone(), share).exp() };
        (tasks > 0).then(|| Agreement { tasks, programs, pairs, deviations: SHARES.map(factor).to_vec() })
    }
}

/// Counts the pairs of a task's programs: their first and second times.
fn count_pairs(times: &[(f64, f64)], pairs: &mut [Pairs]) {
    let fastest = times.iter().map(|(_, second)| *second).fold(f64::INFINITY, f64::min);
    let mut near: Vec<(f64, f64)> = times.iter().copied().filter(|(_, second)| *second < NEAR * fastest).collect();
    near.sort_by(|a, b| a.1.total_cmp(&b.1));
    for (at, faster) in near.iter().enumerate() {
        for slower in &near[at + 1..] {
            let difference = slower.1 / faster.1 - 1.0;
            if let Some(band) = pairs.iter_mut().rev().find(|band| difference > band.from) {
                band.pairs += 1;
                band.in_order += u64::from(slower.0 > faster.0);
            }
        }
    }
}

/// The value that such a share of them does not exceed. `values` are not empty.
fn at_share(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * share) as usize;
    values[at.min(values.len() - 1)]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Agreement, Agreements};
    use crate::outcome::{Failure, Outcome};
    use crate::propose::example::product;
    use crate::record::{Entry, Record};

    fn add(agreements: &mut Agreements, program: usize, outcome: Outcome, second: bool) {
        let task = Arc::new(product());
        let trace = format!("tile a 0 = {program}\n").parse().unwrap();
        let record = Record::new(&task, "cpu 1", trace, outcome, "random", 0);
        agreements.add(Entry { task, record }, second);
    }

    fn of(first: &[u64], second: &[u64]) -> Option<Agreement> {
        let mut agreements = Agreements::default();
        for (times, is_second) in [(first, false), (second, true)] {
            for (program, time) in times.iter().enumerate() {
                let outcome = match time {
                    0 => Outcome::failed(Failure::Timeout, ""),
                    _ => Outcome::Timed { times_ns: vec![time + 1, *time], compile_us: 1 },
                };
                add(&mut agreements, program, outcome, is_second);
            }
        }
        agreements.finish()
    }

    #[test]
    fn pairs_are_counted_by_how_much_they_differ() {
        // by 0.08, 0.3 and 0.2; the second pair is in another order, and the last program is too slow to
        // count
        let found = of(&[100, 110, 90, 500, 0, 7], &[100, 108, 130, 260, 9, 0]).unwrap();
        assert_eq!((found.tasks, found.programs), (1, 4));
        let counts: Vec<_> = found.pairs.iter().map(|band| (band.from, band.to, band.pairs, band.in_order)).collect();
        let wanted = [(0.05, Some(0.1), 1, 1), (0.1, Some(0.2), 0, 0), (0.2, Some(0.5), 2, 0), (0.5, None, 0, 0)];
        assert_eq!(counts, wanted);
    }

    #[test]
    fn deviations_are_told_apart_from_another_pace() {
        let second: Vec<u64> = (0..100).map(|program| 1000 + 10 * program).collect();
        let mut first: Vec<u64> = second.iter().map(|time| 3 * time).collect();
        let factors = |first: &[u64]| {
            let found = of(first, &second).unwrap().deviations;
            found.iter().map(|deviation| (deviation.factor * 100.0).round() / 100.0).collect::<Vec<_>>()
        };
        assert_eq!(factors(&first), [1.0, 1.0, 1.0, 1.0]);
        first.iter_mut().take(10).for_each(|time| *time *= 2);
        first[99] /= 4;
        assert_eq!(factors(&first), [1.0, 1.0, 2.0, 4.0]);
    }

    #[test]
    fn nothing_in_common_is_no_agreement() {
        assert_eq!(of(&[5, 0], &[0, 5]), None);
        assert_eq!(of(&[], &[]), None);
    }
}
