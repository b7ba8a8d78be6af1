//! Networks one behind the other, as one: what compares several that compute the same runs them in one run,
//! with the constants that they have in common in memory once.

use std::collections::HashMap;
use std::ops::Range;

use super::{Binding, Call, Callee, Network, NetworkBuffer, Region, RegionKind, Source};
use crate::workload::DType;

/// What constants are known by: where their bytes are, how many there are, and what they stand for.
type ConstantKey<'n> = (*const u8, usize, DType, &'n [i64]);

/// What is found in a network by its name, or by where its bytes lie.
#[derive(PartialEq, Eq, Hash)]
enum Known<'n> {
    Input(&'n str),
    Constant(ConstantKey<'n>),
}

fn known(buffer: &NetworkBuffer) -> Option<Known<'_>> {
    match &buffer.source {
        Source::Input(name) => Some(Known::Input(name)),
        Source::Constant(data) => {
            let bytes = &data.bytes;
            Some(Known::Constant((bytes.as_ptr(), bytes.len(), buffer.dtype, &buffer.shape)))
        }
        Source::Output(_) | Source::Intermediate => None,
    }
}

impl Network {
    /// A network without calls, which networks of the same program as this one can be appended to; `None`
    /// where a run leaves something to the next, or counts what those behind it are given: that happens once
    /// in a run.
    pub fn emptied(&self) -> Option<Network> {
        let counts = self.calls.iter().any(|call| call.count.is_some());
        (self.carried.is_empty() && !counts).then(|| Network {
            symbols: self.symbols.clone(),
            precision: self.precision,
            ..Network::default()
        })
    }

    /// Whether another network can be appended: it depends on the same symbols, and may run several times in
    /// a run.
    pub fn can_append(&self, other: &Network) -> bool {
        self.symbols == other.symbols && other.emptied().is_some()
    }

    /// Appends the calls of another network that can be appended: they read the same inputs, and the same
    /// constants where these have the same bytes; what they write is theirs. `task_of` says for each of its
    /// tasks, by number, which one of this network they call. The calls that were added.
    pub fn append(&mut self, other: &Network, task_of: &[usize]) -> Range<usize> {
        let buffer_of = self.adopt(other);
        let first = self.calls.len();
        let moved = |binding: &Binding| Binding { buffer: buffer_of[binding.buffer], ..binding.clone() };
        let call = |call: &Call| Call {
            callee: match &call.callee {
                Callee::Task(task) => Callee::Task(task_of[*task]),
                Callee::Library(routine) => Callee::Library(routine.clone()),
            },
            arguments: call.arguments.iter().map(moved).collect(),
            ..call.clone()
        };
        self.calls.extend(other.calls.iter().map(call));
        let region = |region: &Region| Region {
            calls: first + region.calls.start..first + region.calls.end,
            kind: match &region.kind {
                RegionKind::If { condition, wanted } => RegionKind::If { condition: moved(condition), wanted: *wanted },
                kind => kind.clone(),
            },
        };
        self.regions.extend(other.regions.iter().map(region));
        for (task, number) in other.tasks.iter().zip(task_of) {
            self.tasks[*number].weight += task.weight;
        }
        first..self.calls.len()
    }

    /// Takes in the buffers of another network: where each of them is. Only the first network's outputs are
    /// outputs.
    fn adopt(&mut self, other: &Network) -> Vec<usize> {
        let is_first = self.calls.is_empty();
        let mut buffers = std::mem::take(&mut self.buffers);
        let there: HashMap<Known<'_>, usize> =
            buffers.iter().enumerate().filter_map(|(at, buffer)| Some((known(buffer)?, at))).collect();
        let found: Vec<Option<usize>> =
            other.buffers.iter().map(|buffer| there.get(&known(buffer)?).copied()).collect();
        drop(there);
        let of = |(buffer, found): (&NetworkBuffer, Option<usize>)| {
            found.unwrap_or_else(|| {
                let source = match &buffer.source {
                    Source::Output(_) if !is_first => Source::Intermediate,
                    source => source.clone(),
                };
                buffers.push(NetworkBuffer { source, ..buffer.clone() });
                buffers.len() - 1
            })
        };
        let buffer_of = other.buffers.iter().zip(found).map(of).collect();
        self.buffers = buffers;
        buffer_of
    }
}
