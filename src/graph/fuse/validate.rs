//! What must hold of a network, whoever made it.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::graph::{Binding, Call, Network, Source};
use crate::workload::{Role, Tensor, TensorId, Workload};

/// A network that breaks its invariants: a bug of whoever made it, or a damaged file.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NetworkError {
    #[error("call {call}: there is no task {task}")]
    UnknownTask { call: usize, task: usize },
    #[error("call {call}: {found} arguments for the {expected} of its task")]
    Arguments { call: usize, expected: usize, found: usize },
    #[error("call {call}, argument {argument}: there is no buffer {buffer}")]
    UnknownBuffer { call: usize, argument: usize, buffer: usize },
    #[error("call {call}, argument {argument}: elements {first}..{end} of a buffer of {elements}")]
    OutOfRange { call: usize, argument: usize, first: i64, end: i64, elements: i64 },
    #[error("call {call}, argument {argument}: the element type differs from the buffer's")]
    Type { call: usize, argument: usize },
    #[error("call {call}, argument {argument}: reads elements that no call wrote before")]
    ReadBeforeWrite { call: usize, argument: usize },
    #[error("call {call}, argument {argument}: writes elements that were written before, or are given")]
    WrittenTwice { call: usize, argument: usize },
    #[error("call {call}, argument {argument}: a constant of its task that is none of the network")]
    NotConstant { call: usize, argument: usize },
    #[error("output `{name}` is not written completely")]
    Incomplete { name: String },
    #[error("task `{name}` has the weight {weight}, but {calls} calls")]
    Weight { name: String, weight: usize, calls: usize },
}

/// The tensors that a task's kernel takes, in the order in which it does: all but intermediates.
pub fn bound_tensors(workload: &Workload) -> impl Iterator<Item = (TensorId, &Tensor)> {
    workload.ids().filter(|(_, tensor)| tensor.role != Role::Intermediate)
}

impl Network {
    /// Checks that every binding lies in its buffer, that elements are written before they are read, and only
    /// once, and that all outputs are written.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn validate(&self) -> Result<(), NetworkError> {
        let mut written: Vec<Ranges> = self.buffers.iter().map(|_| Ranges::default()).collect();
        for (call, Call { task, arguments }) in self.calls.iter().enumerate() {
            let workload = &self.tasks.get(*task).ok_or(NetworkError::UnknownTask { call, task: *task })?.workload;
            let expected = bound_tensors(workload).count();
            if expected != arguments.len() {
                return Err(NetworkError::Arguments { call, expected, found: arguments.len() });
            }
            let bound = || bound_tensors(workload).zip(arguments).enumerate();
            for (argument, ((_, tensor), binding)) in bound() {
                self.check_binding(call, argument, tensor, binding)?;
                let given = !matches!(self.buffers[binding.buffer].source, Source::Output(_) | Source::Intermediate);
                let end = binding.offset + tensor.elements();
                if tensor.role != Role::Output && !given && !written[binding.buffer].covers(binding.offset, end) {
                    return Err(NetworkError::ReadBeforeWrite { call, argument });
                }
            }
            for (argument, ((_, tensor), binding)) in bound() {
                let given = !matches!(self.buffers[binding.buffer].source, Source::Output(_) | Source::Intermediate);
                let end = binding.offset + tensor.elements();
                if tensor.role == Role::Output && (given || !written[binding.buffer].insert(binding.offset, end)) {
                    return Err(NetworkError::WrittenTwice { call, argument });
                }
            }
        }
        for (buffer, ranges) in self.buffers.iter().zip(&written) {
            if let Source::Output(name) = &buffer.source
                && !ranges.covers(0, buffer.shape.iter().product())
            {
                return Err(NetworkError::Incomplete { name: name.clone() });
            }
        }
        for (number, task) in self.tasks.iter().enumerate() {
            let calls = self.calls.iter().filter(|c| c.task == number).count();
            if calls != task.weight {
                return Err(NetworkError::Weight { name: task.name.clone(), weight: task.weight, calls });
            }
        }
        Ok(())
    }

    fn check_binding(&self, call: usize, argument: usize, tensor: &Tensor, at: &Binding) -> Result<(), NetworkError> {
        let Some(buffer) = self.buffers.get(at.buffer) else {
            return Err(NetworkError::UnknownBuffer { call, argument, buffer: at.buffer });
        };
        let (first, end) = (at.offset, at.offset.saturating_add(tensor.elements()));
        let elements = buffer.shape.iter().product();
        if first < 0 || end > elements {
            return Err(NetworkError::OutOfRange { call, argument, first, end, elements });
        }
        if buffer.dtype != tensor.dtype {
            return Err(NetworkError::Type { call, argument });
        }
        if tensor.role == Role::Constant && !matches!(buffer.source, Source::Constant(_)) {
            return Err(NetworkError::NotConstant { call, argument });
        }
        Ok(())
    }
}

/// Disjoint half-open ranges, joined where they touch.
#[derive(Clone, Debug, Default)]
struct Ranges(BTreeMap<i64, i64>);

impl Ranges {
    fn covers(&self, first: i64, end: i64) -> bool {
        self.0.range(..=first).next_back().is_some_and(|(_, known)| *known >= end)
    }

    /// False where a part is in already.
    fn insert(&mut self, mut first: i64, mut end: i64) -> bool {
        let before = self.0.range(..end).next_back().map(|(a, b)| (*a, *b));
        match before {
            Some((_, known)) if known > first => return false,
            Some((start, known)) if known == first => first = start,
            _ => {}
        }
        if let Some(after) = self.0.remove(&end) {
            end = after;
        }
        self.0.insert(first, end);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    #[test]
    fn ranges_join_and_refuse_overlap() {
        let mut ranges = Ranges::default();
        assert!(ranges.insert(0, 4) && ranges.insert(8, 12));
        assert!(!ranges.covers(0, 12));
        assert!(ranges.insert(4, 8));
        assert!(ranges.covers(0, 12) && ranges.covers(3, 9) && !ranges.covers(3, 13));
        assert!(!ranges.insert(11, 20) && !ranges.insert(5, 6));
    }
}
