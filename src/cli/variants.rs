//! Networks that compute the same, run in turn: several plans of one program, and several schedules of each.
//!
//! They are appended to one another wherever they can be, so that constants that they have in common are
//! packed, written and loaded once, and kernels that they have in common compiled once.

use std::collections::HashMap;
use std::ops::Range;

use tilescribe::artifact::{CompiledCall, Profile, Schedule, Trace as Events, called};
use tilescribe::graph::{Network, NetworkBuffer};
use tilescribe::space::Trace;
use tilescribe::workload::Workload;

/// A network and how its tasks are computed.
#[derive(Clone, Copy)]
pub struct Variant<'a> {
    pub network: &'a Network,
    pub schedules: &'a [Schedule],
}

/// Variants one behind the other, as one network.
pub struct Row<'a> {
    pub network: Network,
    /// By task.
    pub schedules: Vec<Schedule>,
    number_of: HashMap<(Workload, Trace), usize>,
    /// With the calls of each.
    parts: Vec<(Variant<'a>, Range<usize>)>,
}

/// All variants, in their order, in as few rows as there can be.
pub fn rows<'a>(variants: &[Variant<'a>]) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    for variant in variants {
        if !rows.last_mut().is_some_and(|row| row.take(*variant)) {
            rows.push(Row::of(*variant));
        }
    }
    rows
}

impl<'a> Row<'a> {
    fn of(variant: Variant<'a>) -> Row<'a> {
        let Variant { network, schedules } = variant;
        match network.emptied() {
            Some(network) => {
                let mut row = Row { network, schedules: vec![], number_of: HashMap::new(), parts: vec![] };
                row.take(variant);
                row
            }
            None => {
                let parts = vec![(variant, 0..network.calls.len())];
                Row { network: network.clone(), schedules: schedules.to_vec(), number_of: HashMap::new(), parts }
            }
        }
    }

    /// Appends a variant; `false` where it cannot be appended.
    fn take(&mut self, variant: Variant<'a>) -> bool {
        let Variant { network, schedules } = variant;
        if !self.network.can_append(network) {
            return false;
        }
        let mut task_of = Vec::with_capacity(schedules.len());
        for (task, schedule) in network.tasks.iter().zip(schedules) {
            let key = (task.workload.clone(), schedule.trace.clone());
            let number = *self.number_of.entry(key).or_insert_with(|| {
                let mut task = task.clone();
                task.weight = 0;
                self.network.tasks.push(task);
                self.schedules.push(schedule.clone());
                self.schedules.len() - 1
            });
            task_of.push(number);
        }
        let calls = self.network.append(network, &task_of);
        self.parts.push((variant, calls));
        true
    }

    /// A profile of each variant, from what all of them did in some runs; none where one did nothing.
    pub fn profiles(&self, runs: &[Events], threads: u16) -> Option<Vec<Profile>> {
        let of = |(variant, calls): &(Variant<'_>, Range<usize>)| {
            let callees: Vec<CompiledCall> = variant.network.calls.iter().map(|call| called(&call.callee)).collect();
            Profile::of_calls(&callees, calls.start, runs, threads)
        };
        self.parts.iter().map(of).collect()
    }

    /// Bytes of all variants: weights, inputs, outputs and intermediates, at the greatest extents, none of
    /// which share memory. Variants may pack the same constants in different ways.
    pub fn bytes_at_most(&self) -> u64 {
        let of = |buffer: &NetworkBuffer| {
            let elements = buffer.shape.iter().fold(1, |all: u64, extent| all.saturating_mul(extent.unsigned_abs()));
            elements.saturating_mul(buffer.dtype.bytes() as u64)
        };
        let networks = self.parts.iter().map(|(variant, _)| variant.network);
        networks.flat_map(|network| &network.buffers).map(of).fold(0, u64::saturating_add)
    }
}
