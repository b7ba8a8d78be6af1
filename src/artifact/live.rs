//! Whether the plan of the arena keeps every intermediate until its last reader. Goes through the calls once
//! more, without the live ranges that the plan was made of.

use std::collections::BTreeMap;
use std::ops::Range;

use super::error::ArtifactError;
use crate::graph::{Network, Source};
use crate::workload::{Role, Tensor};

/// Checks that every call reads what was written for it, and that nothing it writes lies over anything that
/// it reads. `arena` holds the offset of each intermediate, in bytes.
///
/// # Errors
/// [`ArtifactError::Internal`]: the plan is wrong.
pub fn check(network: &Network, arena: &[u64], arena_bytes: u64) -> Result<(), ArtifactError> {
    let mut owners = Owners::default();
    for (number, call) in network.calls.iter().enumerate() {
        let workload = &network.tasks[call.task].workload;
        let tensors = workload.tensors.iter().filter(|tensor| tensor.role != Role::Intermediate);
        let part = |(tensor, binding): (&Tensor, &crate::graph::Binding)| {
            let buffer = network.buffers.get(binding.buffer)?;
            let size = tensor.dtype.bytes() as u64;
            let first = arena.get(binding.buffer)? + binding.offset as u64 * size;
            let bytes = first..first + tensor.elements() as u64 * size;
            matches!(buffer.source, Source::Intermediate).then_some((tensor.role, binding.buffer, bytes))
        };
        let parts: Vec<(Role, usize, Range<u64>)> = tensors.zip(&call.arguments).filter_map(part).collect();
        let (written, read): (Vec<_>, Vec<_>) = parts.into_iter().partition(|(role, ..)| *role == Role::Output);
        let wrong = |buffer: usize, what: &str| {
            Err(ArtifactError::Internal(format!("call {number}: the memory plan {what} buffer {buffer}")))
        };
        for (_, buffer, bytes) in &read {
            if !owners.holds(*buffer, bytes) {
                return wrong(*buffer, "has given away what is still to be read of");
            }
        }
        for (at, (_, buffer, bytes)) in written.iter().enumerate() {
            let meets = |(_, _, other): &&(Role, usize, Range<u64>)| bytes.start < other.end && other.start < bytes.end;
            if bytes.end > arena_bytes {
                return wrong(*buffer, "has no room for");
            }
            if read.iter().chain(&written[..at]).any(|part| meets(&part)) {
                return wrong(*buffer, "puts two arguments into the bytes of");
            }
        }
        written.into_iter().for_each(|(_, buffer, bytes)| owners.write(buffer, bytes));
    }
    Ok(())
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
    use super::*;
    use crate::graph::{Binding, Call, NetworkBuffer, NetworkTask};
    use crate::workload::{Binary, DType, Expr, Index, Stage, TensorId, Var, Workload};

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

    /// A chain of `t = x + shortcut` whose shortcut is read four times.
    fn residual() -> Network {
        let mut workload = Workload::default();
        let load = |tensor| Expr::load(TensorId(tensor), vec![Index::var(Var(0))]);
        for role in [Role::Input, Role::Input, Role::Output] {
            workload.add_tensor(vec![16], DType::F32, role);
        }
        let sum = Expr::binary(Binary::Add, load(0), load(1));
        workload.stages.push(Stage::map(TensorId(2), vec![16], sum));
        let buffer = |source| NetworkBuffer { shape: vec![16], dtype: DType::F32, source };
        let mut buffers = vec![buffer(Source::Input("x".into()))];
        buffers.extend((0..5).map(|_| buffer(Source::Intermediate)));
        // the first result is the shortcut of all that follow
        let at = |buffer| Binding { buffer, offset: 0 };
        let call = |x, shortcut, y| Call { task: 0, arguments: vec![at(x), at(shortcut), at(y)] };
        let calls = vec![call(0, 0, 1), call(1, 1, 2), call(2, 1, 3), call(3, 1, 4), call(4, 1, 5)];
        let task = NetworkTask { name: "add".into(), workload, weight: calls.len(), nodes: Vec::new() };
        Network { tasks: vec![task], calls, buffers }
    }

    #[test]
    fn a_buffer_is_kept_for_its_last_reader() {
        let network = residual();
        // the shortcut lies alone, the others take turns
        assert!(check(&network, &[0, 0, 64, 128, 64, 128], 192).is_ok());
        let (memory, arena) = super::super::bind::plan_memory(&network);
        assert!(check(&network, &arena, memory.arena_bytes).is_ok() && memory.arena_bytes == 192);
        // its third and fourth reader find something else there
        assert!(check(&network, &[0, 0, 64, 128, 0, 64], 192).is_err());
        // a result over an operand, and behind the end
        assert!(check(&network, &[0, 0, 32, 128, 64, 128], 192).is_err());
        assert!(check(&network, &[0, 0, 64, 160, 64, 128], 192).is_err());
    }
}
