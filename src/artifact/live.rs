//! Whether the plan of the arena keeps every intermediate until its last reader. Goes through the calls once
//! more, without the live ranges that the plan was made of.

use std::collections::BTreeMap;
use std::ops::Range;

use super::error::ArtifactError;
use crate::graph::{Binding, Fork, Network, Reach, Region, RegionKind, Source};

/// Checks that every call reads what was written for it, and that nothing it writes lies over anything that
/// it reads. `arena` holds the offset of each intermediate, in bytes.
///
/// # Errors
/// [`ArtifactError::Internal`]: the plan is wrong.
pub fn check(network: &Network, arena: &[u64], arena_bytes: u64) -> Result<(), ArtifactError> {
    let mut check = Check { network, arena, arena_bytes, owners: Owners::default() };
    check.calls(0..network.calls.len(), &network.regions, 0, 1)?;
    network.forks.iter().try_for_each(|fork| check.fork(fork))
}

/// Iterations of a repetition that are gone through: the halves of states change their parts, and what is
/// left over from one meets the next.
const ITERATIONS: i64 = 3;

struct Check<'a> {
    network: &'a Network,
    arena: &'a [u64],
    arena_bytes: u64,
    owners: Owners,
}

/// An argument in the arena.
struct Part {
    is_written: bool,
    buffer: usize,
    /// That hold it.
    bytes: Range<u64>,
    /// Whether it is a part of each row.
    is_part: bool,
}

impl Part {
    fn meets(&self, other: &Part) -> bool {
        self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end
    }
}

impl Check<'_> {
    /// Goes through calls in order, through both branches where there are two. `regions` are those that start
    /// among the calls; they are in an iteration of so many.
    fn calls(
        &mut self,
        calls: Range<usize>,
        regions: &[Region],
        iteration: i64,
        iterations: i64,
    ) -> Result<(), ArtifactError> {
        let (mut at, mut regions) = (calls.start, regions);
        while at < calls.end {
            let Some((region, rest)) = regions.split_first().filter(|(region, _)| region.calls.start == at) else {
                self.call(at, iteration, iterations)?;
                at += 1;
                continue;
            };
            let inner = rest.iter().take_while(|inner| inner.calls.start < region.calls.end).count();
            match &region.kind {
                RegionKind::If { condition, .. } => {
                    self.condition(at, condition, iteration, iterations)?;
                    self.calls(region.calls.clone(), &rest[..inner], iteration, iterations)?;
                }
                RegionKind::Nearest { .. } => self.calls(region.calls.clone(), &[], iteration, iterations)?,
                RegionKind::Repeat { count, going, .. } => {
                    for iteration in 0..(*count).min(ITERATIONS) {
                        going.iter().try_for_each(|going| self.condition(at, going, iteration, *count))?;
                        self.calls(region.calls.clone(), &rest[..inner], iteration, *count)?;
                    }
                }
            }
            (at, regions) = (region.calls.end, &rest[inner..]);
        }
        Ok(())
    }

    /// Whether the condition before a call is still there.
    fn condition(&self, at: usize, condition: &Binding, iteration: i64, iterations: i64) -> Result<(), ArtifactError> {
        match self.bytes(condition, 1, 1, iteration, iterations) {
            Some(bytes) if !self.owners.holds(condition.buffer, &bytes) => {
                wrong(at, condition.buffer, "has given away what is still to be read of")
            }
            _ => Ok(()),
        }
    }

    /// Where an argument lies in the arena, if it does. What does not come back where it was counts as a
    /// whole.
    fn bytes(&self, at: &Binding, elements: i64, size: u64, iteration: i64, iterations: i64) -> Option<Range<u64>> {
        let buffer = self.network.buffers.get(at.buffer)?;
        let moved =
            |iteration: i64| self.arena.get(at.buffer)?.checked_add_signed(at.offset_at(iteration) * size as i64);
        let (first, last) = match at.motion.period {
            0 => (moved(0)?.min(moved(iterations - 1)?), moved(0)?.max(moved(iterations - 1)?)),
            _ => (moved(iteration)?, moved(iteration)?),
        };
        matches!(buffer.source, Source::Intermediate).then(|| first..last + elements as u64 * size)
    }

    /// Whether what a strand writes lies apart from everything that the others have in the arena.
    fn fork(&self, fork: &Fork) -> Result<(), ArtifactError> {
        let mut before: Vec<Part> = Vec::new();
        for strand in &fork.strands {
            let mut own: Vec<Part> = Vec::new();
            for call in strand.clone() {
                let iterations = self.network.iterations_of(call);
                let parts = (0..iterations.min(ITERATIONS)).flat_map(|at| self.parts(call, at, iterations));
                let parts: Vec<Part> = parts.collect();
                let shares = |part: &Part, other: &Part| {
                    (part.is_written || other.is_written) && part.buffer != other.buffer && part.meets(other)
                };
                if let Some(part) = parts.iter().find(|part| before.iter().any(|other| shares(part, other))) {
                    return wrong(call, part.buffer, "lets strands share the bytes of");
                }
                own.extend(parts);
            }
            before.extend(own);
        }
        Ok(())
    }

    /// What a call has in the arena.
    fn parts(&self, number: usize, iteration: i64, iterations: i64) -> Vec<Part> {
        let call = &self.network.calls[number];
        let part = |(reach, binding): (Reach, &Binding)| {
            let Reach { is_written, elements, dtype, is_part } = reach;
            let bytes = self.bytes(binding, elements, dtype.bytes() as u64, iteration, iterations)?;
            Some(Part { is_written, buffer: binding.buffer, bytes, is_part })
        };
        self.network.reaches(call).into_iter().zip(&call.arguments).filter_map(part).collect()
    }

    fn call(&mut self, number: usize, iteration: i64, iterations: i64) -> Result<(), ArtifactError> {
        let parts = self.parts(number, iteration, iterations);
        let (written, read): (Vec<Part>, Vec<Part>) = parts.into_iter().partition(|part| part.is_written);
        for part in &read {
            if !self.owners.holds(part.buffer, &part.bytes) {
                return wrong(number, part.buffer, "has given away what is still to be read of");
            }
        }
        for (at, part) in written.iter().enumerate() {
            // parts of rows of one buffer lie between one another; that they do not meet was validated
            let beside = |other: &Part| part.buffer == other.buffer && (part.is_part || other.is_part);
            if part.bytes.end > self.arena_bytes {
                return wrong(number, part.buffer, "has no room for");
            }
            if read.iter().chain(&written[..at]).any(|other| part.meets(other) && !beside(other)) {
                return wrong(number, part.buffer, "puts two arguments into the bytes of");
            }
        }
        written.into_iter().for_each(|part| self.owners.write(part.buffer, part.bytes));
        Ok(())
    }
}

fn wrong(call: usize, buffer: usize, what: &str) -> Result<(), ArtifactError> {
    Err(ArtifactError::Internal(format!("call {call}: the memory plan {what} buffer {buffer}")))
}

/// Which buffer wrote the bytes of the arena last: disjoint ranges by their start, with end and buffer.
#[derive(Default)]
struct Owners(BTreeMap<u64, (u64, usize)>);

impl Owners {
    fn write(&mut self, buffer: usize, bytes: Range<u64>) {
        let met: Vec<(u64, u64, usize)> = self
            .0
            .range(..bytes.end)
            .rev()
            .map(|(s, (e, b))| (*s, *e, *b))
            .take_while(|(_, e, _)| *e > bytes.start)
            .collect();
        for (start, end, other) in met {
            self.0.remove(&start);
            if start < bytes.start {
                self.0.insert(start, (bytes.start, other));
            }
            if end > bytes.end {
                self.0.insert(bytes.end, (end, other));
            }
        }
        if bytes.start < bytes.end {
            self.0.insert(bytes.start, (bytes.end, buffer));
        }
    }

    fn holds(&self, buffer: usize, bytes: &Range<u64>) -> bool {
        let mut at = bytes.end;
        for (start, (end, owner)) in self.0.range(..bytes.end).rev() {
            if at <= bytes.start {
                break;
            }
            if *owner != buffer || *end < at {
                return false;
            }
            at = *start;
        }
        at <= bytes.start
    }
}

#[cfg(test)]
mod tests {
    use super::super::bind;
    use super::*;
    use crate::graph::samples::sums;

    #[test]
    fn owners_split_and_join() {
        let mut owners = Owners::default();
        owners.write(0, 0..64);
        owners.write(1, 16..32);
        assert!(owners.holds(1, &(16..32)) && owners.holds(0, &(0..16)) && owners.holds(0, &(32..64)));
        assert!(!owners.holds(0, &(0..64)) && !owners.holds(1, &(15..32)) && !owners.holds(0, &(60..65)));
        owners.write(0, 16..32);
        assert!(owners.holds(0, &(0..64)) && owners.holds(0, &(5..5)));
    }

    #[test]
    fn a_buffer_is_kept_for_its_last_reader() {
        // the first result is the shortcut of all that follow; the last is the output
        let network = sums(&[[0, 0], [1, 1], [2, 1], [3, 1], [4, 1]]);
        // the shortcut lies alone, the others take turns
        assert!(check(&network, &[0, 0, 64, 128, 64, 128], 192).is_ok());
        let (memory, arena) = bind::plan_memory(&network, &bind::living(&network));
        assert!(check(&network, &arena, memory.arena_bytes).is_ok() && memory.arena_bytes == 192);
        // its third and fourth reader find something else there
        assert!(check(&network, &[0, 0, 64, 128, 0, 64], 192).is_err());
        // a result over an operand, and behind the end
        assert!(check(&network, &[0, 0, 32, 128, 64, 128], 192).is_err());
        assert!(check(&network, &[0, 0, 64, 160, 64, 128], 192).is_err());
    }
}
