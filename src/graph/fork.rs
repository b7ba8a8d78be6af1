//! Calls that may run at the same time.
//!
//! ```text
//! q, k, v, attention, ...      q | k | v, attention, ...
//! ```
//!
//! A *fork* is a row of calls that fall apart into *strands*, none of which needs anything of another. Which
//! rows become forks is the best choice of intervals in the order of calls: what runs beside the longest
//! strand counts for it, and the whole a little against it, so that a long row beside a single call is none.
//!
//! A call scales badly to many threads where it is short: they wait for one another at its end, and share
//! little work among them. In strands, calls are as long as they are, and threads that are done help
//! elsewhere.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use super::{Binding, Call, Carried, Network, Reach, RegionKind, RunTime, Source};

/// Strands of a fork, at most: the run-time library runs no more at the same time.
pub const MOST_STRANDS: usize = 8;
/// Units of calls in a fork, at most: how far apart those are that are looked at together.
const WINDOW: usize = 48;
/// What runs beside the longest strand has to be more than this share of all.
const LEAST_SHARE: f64 = 0.05;
/// Gains that differ by less of themselves are the same, but for rounding.
const NEARLY_EQUAL: f64 = 1e-9;

/// Strands of calls: neighbouring ranges, at least two, outside of all regions or with whole regions in them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fork {
    pub strands: Vec<Range<usize>>,
}

impl Fork {
    /// The calls of all strands.
    pub fn calls(&self) -> Range<usize> {
        let end = self.strands.last().map_or(0, |strand| strand.end);
        self.strands.first().map_or(0, |strand| strand.start)..end
    }

    /// The strand of a call, if it is in one.
    pub fn strand_of(&self, call: usize) -> Option<usize> {
        self.strands.iter().position(|strand| strand.contains(&call))
    }
}

impl Network {
    /// Makes forks wherever calls need nothing of one another: calls move, so that those of a strand are
    /// neighbours. `cost` is what a call of a task takes, in any unit.
    pub fn fork(&mut self, cost: &dyn Fn(usize) -> f64) {
        let units = Units::of(self, cost);
        let mut order: Vec<usize> = Vec::with_capacity(units.all.len());
        let mut found: Vec<Vec<Range<usize>>> = Vec::new();
        for interval in units.intervals() {
            let strands = units.strands(interval);
            if strands.len() > 1 {
                let ranges = strands.iter().scan(order.len(), |at, strand| {
                    *at += strand.len();
                    Some(*at - strand.len()..*at)
                });
                found.push(ranges.collect());
            }
            order.extend(strands.into_iter().flatten());
        }
        let starts = self.reorder(&units, &order);
        let fork = |strands: Vec<Range<usize>>| Fork {
            strands: strands.into_iter().map(|strand| starts[strand.start]..starts[strand.end]).collect(),
        };
        self.forks = found.into_iter().map(fork).collect();
    }

    /// Brings units into another order: where each of them starts since, and the end.
    fn reorder(&mut self, units: &Units, order: &[usize]) -> Vec<usize> {
        let mut calls: Vec<Option<Call>> = std::mem::take(&mut self.calls).into_iter().map(Some).collect();
        let (mut starts, mut new_of) = (Vec::with_capacity(order.len() + 1), vec![0; calls.len()]);
        for unit in order {
            starts.push(self.calls.len());
            for call in units.all[*unit].calls.clone() {
                new_of[call] = self.calls.len();
                self.calls.extend(calls[call].take());
            }
        }
        starts.push(self.calls.len());
        for region in &mut self.regions {
            let first = new_of[region.calls.start];
            region.calls = first..first + region.calls.len();
        }
        // those that started together keep their order
        self.regions.sort_by_key(|region| (region.calls.start, Reverse(region.calls.end)));
        starts
    }
}

impl Network {
    /// A call of a fork that cuts what runs as a whole, or whose strands need one another.
    pub(super) fn wrong_fork(&self) -> Option<usize> {
        let units = if self.forks.is_empty() { return None } else { Units::of(self, &|_| 0.0).all };
        let mut behind = 0;
        self.forks.iter().find_map(|fork| {
            let (calls, mut at) = (fork.calls(), fork.calls().start);
            let are_neighbours = fork.strands.iter().all(|strand| {
                let fits = strand.start == at && strand.start < strand.end;
                at = strand.end;
                fits
            });
            let is_one = (2..=MOST_STRANDS).contains(&fork.strands.len())
                && are_neighbours
                && calls.start >= behind
                && calls.end <= self.calls.len();
            behind = calls.end;
            let inside: Vec<&Unit> = units.iter().filter(|unit| unit.meets(&calls)).collect();
            let strand_of = |unit: &Unit| fork.strands.iter().position(|strand| unit.is_in(strand));
            let is_wrong = |(at, unit): (usize, &&Unit)| {
                let strand = strand_of(unit);
                let others = inside[..at].iter().filter(|other| strand_of(other) != strand);
                strand.is_none() || unit.is_alone || others.into_iter().any(|other| unit.conflicts(other))
            };
            let wrong =
                inside.iter().enumerate().find(|(at, unit)| is_wrong((*at, unit))).map(|(_, unit)| unit.calls.start);
            if is_one { wrong } else { Some(calls.start) }
        })
    }
}

/// What runs as a whole: a call, or a region with all that is inside of it, or both branches of a condition.
struct Unit {
    calls: Range<usize>,
    touches: Vec<Touch>,
    cost: f64,
    /// Whether nothing runs beside it: what it finds says what the others are given.
    is_alone: bool,
}

/// Elements of a buffer that a unit reads or writes.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Touch {
    buffer: usize,
    /// From the first to the last.
    elements: Range<i64>,
    is_written: bool,
    /// Whether it is a part of each row, beside those of others.
    is_part: bool,
}

impl Touch {
    /// Whether one of two has to come before the other.
    fn conflicts(&self, other: &Touch) -> bool {
        let (a, b) = (&self.elements, &other.elements);
        self.buffer == other.buffer
            && (self.is_written || other.is_written)
            && a.start < b.end
            && b.start < a.end
            // parts of rows of one buffer never meet: that was validated
            && !(self.is_written && other.is_written && self.is_part && other.is_part)
    }
}

impl Unit {
    fn meets(&self, calls: &Range<usize>) -> bool {
        self.calls.start < calls.end && calls.start < self.calls.end
    }

    fn is_in(&self, calls: &Range<usize>) -> bool {
        calls.start <= self.calls.start && self.calls.end <= calls.end
    }

    fn conflicts(&self, other: &Unit) -> bool {
        self.touches.iter().any(|own| other.touches.iter().any(|touch| own.conflicts(touch)))
    }
}

/// In execution order.
struct Units {
    all: Vec<Unit>,
    /// By unit: of those up to [`WINDOW`] before it, the nearest in the lowest bit, which it conflicts with.
    conflicts: Vec<u64>,
}

impl Units {
    fn of(network: &Network, cost: &dyn Fn(usize) -> f64) -> Units {
        let same_memory = carried_memory(network);
        let mut all: Vec<Unit> = Vec::new();
        let mut at = 0;
        while at < network.calls.len() {
            let calls = at..end_of_unit(network, at);
            at = calls.end;
            all.push(unit(network, calls, &same_memory, cost));
        }
        let conflicts_of = |at: usize| {
            let before = (1..=WINDOW.min(at)).filter(|back| all[at].conflicts(&all[at - back]));
            before.fold(0, |bits, back| bits | 1 << (back - 1))
        };
        let conflicts = (0..all.len()).map(conflicts_of).collect();
        Units { all, conflicts }
    }

    /// Whether the second of two units that are near enough has to come after the first.
    fn conflict(&self, first: usize, second: usize) -> bool {
        self.conflicts[second] >> (second - first - 1) & 1 == 1
    }

    /// The intervals that become forks, and what is between them, in order: the best sum of gains, by dynamic
    /// programming.
    fn intervals(&self) -> Vec<Range<usize>> {
        // by end: the best sum, and where the last interval starts
        let mut best: Vec<(f64, usize)> = vec![(0.0, 0)];
        for end in 1..=self.all.len() {
            let mut own = (best[end - 1].0, end - 1);
            let mut strands = Strands::default();
            for start in (end.saturating_sub(WINDOW)..end).rev().take_while(|start| !self.all[*start].is_alone) {
                strands.add(start, self);
                let (before, gain) = (best[start].0, strands.gain());
                // of two ways that gain as much, that with fewer forks
                let sum = before + gain * (1.0 + NEARLY_EQUAL);
                if gain > 0.0 && sum > own.0 {
                    own = (before + gain, start);
                }
            }
            best.push(own);
        }
        let (mut found, mut end) = (Vec::new(), self.all.len());
        while end > 0 {
            found.push(best[end].1..end);
            end = best[end].1;
        }
        found.reverse();
        found
    }

    /// The strands of an interval, each in the order of its units.
    fn strands(&self, interval: Range<usize>) -> Vec<Vec<usize>> {
        let mut strands = Strands::default();
        interval.rev().for_each(|unit| strands.add(unit, self));
        strands.fewer()
    }
}

/// Units that conflict, directly or through others, are in one strand.
#[derive(Default)]
struct Strands(Vec<Strand>);

#[derive(Default)]
struct Strand {
    units: Vec<usize>,
    cost: f64,
}

impl Strand {
    fn take(&mut self, other: Strand) {
        self.units.extend(other.units);
        self.cost += other.cost;
    }
}

impl Strands {
    /// Takes in the unit before those that are there.
    fn add(&mut self, unit: usize, units: &Units) {
        let mut own = Strand { units: vec![unit], cost: units.all[unit].cost };
        let meets = |strand: &Strand| strand.units.iter().any(|other| units.conflict(unit, *other));
        let (joined, apart): (Vec<Strand>, Vec<Strand>) = std::mem::take(&mut self.0).into_iter().partition(meets);
        joined.into_iter().for_each(|strand| own.take(strand));
        self.0 = apart;
        self.0.push(own);
    }

    /// What runs beside the longest strand, less a share of all.
    fn gain(&self) -> f64 {
        let all: f64 = self.0.iter().map(|strand| strand.cost).sum();
        let longest = self.0.iter().map(|strand| strand.cost).fold(0.0, f64::max);
        all - longest - LEAST_SHARE * all
    }

    /// Not more than may run at the same time: short ones share a strand. Units are in their order, and
    /// strands in that of their first ones.
    fn fewer(mut self) -> Vec<Vec<usize>> {
        self.0.sort_by(|a, b| b.cost.total_cmp(&a.cost).then_with(|| a.units.last().cmp(&b.units.last())));
        let mut strands: Vec<Strand> = Vec::new();
        for strand in self.0 {
            let is_full = strands.len() == MOST_STRANDS;
            let shortest = strands.iter_mut().filter(|_| is_full).min_by(|a, b| a.cost.total_cmp(&b.cost));
            match shortest {
                Some(shortest) => shortest.take(strand),
                None => strands.push(strand),
            }
        }
        let mut strands: Vec<Vec<usize>> = strands.into_iter().map(|strand| strand.units).collect();
        strands.iter_mut().for_each(|strand| strand.sort_unstable());
        strands.sort();
        strands
    }
}

/// Where the unit ends that begins with a call.
fn end_of_unit(network: &Network, at: usize) -> usize {
    let outermost = |start: usize| network.regions.iter().find(|region| region.calls.start == start);
    let Some(region) = outermost(at) else { return at + 1 };
    let other = outermost(region.calls.end).filter(|other| match (&region.kind, &other.kind) {
        (RegionKind::If { condition, .. }, RegionKind::If { condition: same, wanted: false }) => condition == same,
        _ => false,
    });
    other.map_or(region.calls.end, |other| other.calls.end)
}

fn unit(network: &Network, calls: Range<usize>, same: &HashMap<usize, usize>, cost: &dyn Fn(usize) -> f64) -> Unit {
    let regions = || network.regions.iter().filter(|region| calls.contains(&region.calls.start));
    let moves = regions().any(|region| matches!(region.kind, RegionKind::Repeat { .. }));
    let mut touches: Vec<Touch> =
        network.calls[calls.clone()].iter().flat_map(|call| touches(network, call, moves)).collect();
    for region in regions() {
        if let Some(condition) = region.condition() {
            touches.push(Touch { is_written: false, is_part: false, ..whole(network, condition.buffer) });
        }
    }
    for touch in &mut touches {
        if let Some(buffer) = same.get(&touch.buffer) {
            *touch = Touch { is_written: touch.is_written, ..whole(network, *buffer) };
        }
    }
    let of_call =
        |call: usize| network.calls[call].task().map_or(0.0, cost) * network.expected_iterations_of(call) as f64;
    let is_alone = network.calls[calls.clone()].iter().any(|call| call.count.is_some());
    Unit { cost: calls.clone().map(of_call).sum(), calls, touches, is_alone }
}

fn whole(network: &Network, buffer: usize) -> Touch {
    let elements = network.buffers.get(buffer).map_or(0, |about| about.shape.iter().product());
    Touch { buffer, elements: 0..elements, is_written: false, is_part: false }
}

/// What a call reads and writes of buffers that are no constants; all of each where that moves.
fn touches(network: &Network, call: &Call, moves: bool) -> Vec<Touch> {
    let touch = |(reach, binding): (Reach, &Binding)| {
        let about = network.buffers.get(binding.buffer)?;
        let all = whole(network, binding.buffer);
        let touch = match !moves && binding.run_time == RunTime::default() {
            true => {
                let elements = binding.offset..binding.offset + reach.elements;
                Touch { elements, is_written: reach.is_written, is_part: reach.is_part, ..all }
            }
            false => Touch { is_written: reach.is_written, ..all },
        };
        (!matches!(about.source, Source::Constant(_))).then_some(touch)
    };
    network.reaches(call).into_iter().zip(&call.arguments).filter_map(touch).collect()
}

/// Outputs that may lie in the memory of inputs, as the buffers of these.
fn carried_memory(network: &Network) -> HashMap<usize, usize> {
    let of = |is_kind: fn(&Source) -> bool| -> Vec<usize> {
        (0..network.buffers.len()).filter(|buffer| is_kind(&network.buffers[*buffer].source)).collect()
    };
    let inputs = of(|source| matches!(source, Source::Input(_)));
    let outputs = of(|source| matches!(source, Source::Output(_)));
    let pair = |carried: &Carried| Some((*outputs.get(carried.output)?, *inputs.get(carried.input)?));
    let pairs = network.carried.iter().filter_map(pair);
    pairs.flat_map(|(output, input)| [(output, input), (input, input)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::NetworkError;
    use crate::graph::samples::sums;

    /// The results of the calls in each strand of all forks.
    fn strands(operands: &[[usize; 2]]) -> Vec<Vec<Vec<usize>>> {
        let mut network = sums(operands);
        network.fork(&|_| 1.0);
        network.validate().unwrap();
        let results =
            |strand: &Range<usize>| network.calls[strand.clone()].iter().map(|call| call.arguments[2].buffer).collect();
        network.forks.iter().map(|fork| fork.strands.iter().map(results).collect()).collect()
    }

    #[test]
    fn what_needs_nothing_of_one_another_falls_apart() {
        assert!(strands(&[[0, 0], [1, 0], [2, 1], [3, 3]]).is_empty(), "a chain");
        // both branches take turns in the order of calls
        let branches = [[0, 0], [1, 1], [1, 0], [2, 2], [3, 0], [4, 5]];
        assert_eq!(strands(&branches), [[[2, 4], [3, 5]]]);
        let twice = [[0, 0], [1, 1], [1, 0], [2, 3], [4, 4], [4, 0], [5, 6]];
        assert_eq!(strands(&twice), [[[2], [3]], [[5], [6]]]);
        // nearly all of a long chain is left alone
        let beside: Vec<[usize; 2]> =
            (0..40).map(|at| if at == 20 { [0, 0] } else { [at - usize::from(at == 21), 0] }).collect();
        assert_eq!(strands(&[&beside[..], &[[40, 21]]].concat()), [[[21], [22]]]);
    }

    #[test]
    fn what_is_more_than_can_run_at_once_shares_strands() {
        let many: Vec<[usize; 2]> = (0..12).map(|_| [0, 0]).collect();
        let joined: Vec<[usize; 2]> = (0..12).map(|at| [at + 1, if at == 0 { 2 } else { at + 12 }]).collect();
        let found = strands(&[many, joined].concat());
        assert_eq!((found.len(), found[0].len()), (1, MOST_STRANDS));
        assert_eq!(found[0].iter().map(Vec::len).sum::<usize>(), 12);
    }

    #[test]
    fn forks_that_are_none_are_refused() {
        let network = sums(&[[0, 0], [1, 1], [1, 0], [2, 3]]);
        let with = |strands: &[Range<usize>]| {
            let forks = vec![Fork { strands: strands.to_vec() }];
            Network { forks, ..network.clone() }.validate()
        };
        assert_eq!(with(&[1..2, 2..3]), Ok(()));
        let wrong = |call| Err(NetworkError::Fork { call });
        assert_eq!(with(&[0..1, 1..3]), wrong(1), "the second needs the first");
        assert_eq!(with(&[1..2, 3..4]), wrong(1), "they are no neighbours");
        assert_eq!((with(&[]), with(&[1..1, 1..2]), with(&[2..3, 3..9])), (wrong(0), wrong(1), wrong(2)));
    }
}
