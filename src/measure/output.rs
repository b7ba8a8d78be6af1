//! What must come out of a kernel, and what must not change.

use super::memory::POISON;
use super::tolerance::Tolerance;
use crate::workload::{Array, TensorId, Workload, part_of_bytes, rows_of_part};

/// An output of a task.
pub(super) struct Output {
    /// Of an output of which the task writes a part: its extents, and those of the whole.
    part: Option<[Vec<i64>; 2]>,
    /// What the task writes.
    expected: Array,
    /// How far from it a kernel may be.
    tolerance: Tolerance,
}

impl Output {
    /// Of the array that the evaluator left for an output of a workload of fixed extents.
    pub fn new(workload: &Workload, tensor: TensorId, whole: Array) -> Output {
        let part = workload.part_of(tensor).and_then(|part| Some((part, whole.part(part).ok()?)));
        let (part, expected) = match part {
            Some((part, expected)) => (Some([part.clone(), whole.shape().to_vec()]), expected),
            None => (None, whole),
        };
        let tolerance = Tolerance::new(workload, tensor, &expected);
        Output { part, expected, tolerance }
    }

    /// Compares the bytes of the whole output, which were poisoned before, with what should be there.
    ///
    /// # Errors
    /// What is wrong.
    pub fn compare(&self, tensor: TensorId, error_growth: u32, found: &[u8]) -> Result<(), String> {
        let tolerance = self.tolerance.grown(error_growth);
        let Some([part, whole]) = &self.part else {
            return tolerance.compare(tensor, &self.expected, found).map_err(|mismatch| mismatch.to_string());
        };
        let size = self.expected.dtype().bytes();
        let written = part_of_bytes(found, part, whole, size);
        tolerance.compare(tensor, &self.expected, &written).map_err(|mismatch| mismatch.to_string())?;
        let (starts, length) = rows_of_part(part, whole);
        let ends = starts.iter().map(|start| (start + length) * size);
        let begins = starts.iter().skip(1).map(|start| start * size).chain([found.len()]);
        let mut between = ends.zip(begins).flat_map(|(end, begin)| &found[end..begin]);
        match between.any(|byte| *byte != POISON) {
            true => Err(format!("t{}: elements were written that belong to somebody else", tensor.0)),
            false => Ok(()),
        }
    }
}
