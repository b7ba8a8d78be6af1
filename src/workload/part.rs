//! Parts of tensors: what a workload reads and writes of memory that others use, too.
//!
//! ```text
//! input t0 196 64
//! const t1 64 32
//! out t2 196 32 like 196 96 sum 64 mul t0 a c t1 c b      32 of the 96 columns that each row has
//! ```
//!
//! A part begins at the first element. Where it lies in the memory of others is not the workload's business:
//! what computes equal parts of equal rows is one task, wherever it puts them.

use super::{Array, ArrayError, Role, Stage, StageFacts, Tensor, TensorId, Workload, row_major_strides};
use super::{Expr, Index};

impl Stage {
    /// Whether it writes every element of its output.
    pub fn writes_all_of(&self, output: &Tensor) -> bool {
        let rank = self.spatial.len();
        let of_axes = |(axis, _): &(usize, &Index)| *axis < rank;
        output.shape == self.spatial && output.extents.iter().eq(self.extents.iter().filter(of_axes))
    }

    /// Whether it writes the first elements of its output along some dimensions of fixed extents, and all
    /// along the others.
    pub fn writes_part_of(&self, output: &Tensor) -> bool {
        output.shape.len() == self.spatial.len()
            && output.shape.iter().zip(&self.spatial).enumerate().all(|(axis, (whole, own))| {
                let formulas = (output.extents.get(axis), self.extents.get(axis));
                own == whole && formulas.0 == formulas.1 || own < whole && formulas == (None, None)
            })
    }
}

impl Workload {
    /// The shape of what is written of an output, where that is not all of it.
    pub fn part_of(&self, tensor: TensorId) -> Option<&Vec<i64>> {
        let about = self.tensors.get(tensor.0 as usize).filter(|about| about.role == Role::Output)?;
        let stage = self.stages.iter().find(|stage| stage.output == tensor)?;
        (stage.spatial != about.shape).then_some(&stage.spatial)
    }

    /// By dimension, how many elements of a tensor are read or written at most, counted from the first.
    pub fn touched(&self, tensor: TensorId) -> Vec<i64> {
        let about = self.tensor(tensor);
        match about.role {
            Role::Input | Role::Constant => self.read_of(tensor, about),
            Role::Intermediate | Role::Output => self.part_of(tensor).unwrap_or(&about.shape).clone(),
        }
    }

    /// Bytes of a tensor that are read or written at most.
    pub fn touched_bytes(&self, tensor: TensorId) -> usize {
        self.touched(tensor).iter().product::<i64>() as usize * self.tensor(tensor).dtype.bytes()
    }

    fn read_of(&self, tensor: TensorId, about: &Tensor) -> Vec<i64> {
        let mut read = vec![0; about.shape.len()];
        for stage in &self.stages {
            let facts = StageFacts::of_stage(stage, &self.parameters);
            note_reads(&stage.value, tensor, about, &facts, &mut read);
        }
        read
    }
}

/// Raises what is known to be read by what an expression reads; guards tell how far an index goes.
fn note_reads(expr: &Expr, tensor: TensorId, about: &Tensor, facts: &StageFacts, read: &mut [i64]) {
    let in_index = |index: &Index, read: &mut [i64]| {
        // what is gathered by is no more than a load
        let gathered = Expr::Index(index.clone());
        gathered.for_each_load(&mut |found, indices| {
            if found == tensor {
                note_access(indices, about, facts, read);
            }
        });
    };
    match expr {
        Expr::Load { tensor: found, indices } => {
            if *found == tensor {
                note_access(indices, about, facts, read);
            }
            indices.iter().for_each(|index| in_index(index, read));
        }
        Expr::Index(index) => in_index(index, read),
        Expr::Guard { conditions, inside, outside } => {
            conditions.iter().for_each(|condition| in_index(&condition.index, read));
            if !conditions.iter().any(|condition| facts.never(condition)) {
                note_reads(inside, tensor, about, &facts.and(conditions), read);
            }
            note_reads(outside, tensor, about, facts, read);
        }
        other => other.children().for_each(|child| note_reads(child, tensor, about, facts, read)),
    }
}

fn note_access(indices: &[Index], about: &Tensor, facts: &StageFacts, read: &mut [i64]) {
    for ((read, index), whole) in read.iter_mut().zip(indices).zip(&about.shape) {
        let high = facts.range(index).map_or(i64::MAX, |range| range.high.saturating_add(1));
        *read = (*read).max(high.clamp(0, *whole));
    }
}

/// Rows of a box in an array that are equally far apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowsOfPart {
    /// Where the first one starts.
    pub first: i64,
    /// From the start of one to that of the next.
    pub step: i64,
    pub count: i64,
}

/// The rows of a box that begins at the first element of an array, in order, and how long each is. What is
/// together in the array is one row.
pub fn strides_of_part(part: &[i64], whole: &[i64]) -> (Vec<RowsOfPart>, i64) {
    if part.contains(&0) {
        return (Vec::new(), 0);
    }
    // dimensions behind the last one that is not whole are one piece
    let inner = (0..part.len()).rev().find(|d| part[*d] != whole[*d]).unwrap_or(0);
    let length: i64 = part[inner..].iter().product();
    let strides = row_major_strides(whole);
    if inner == 0 {
        return (vec![RowsOfPart { first: 0, step: 0, count: 1 }], length);
    }
    let (mut at, step) = (inner - 1, strides[inner - 1]);
    let mut count = part[at];
    while at > 0 && part[at] == whole[at] {
        at -= 1;
        count *= part[at];
    }
    let mut starts = vec![0];
    for (extent, stride) in part[..at].iter().zip(&strides) {
        starts = starts.into_iter().flat_map(|start| (0..*extent).map(move |own| start + own * stride)).collect();
    }
    (starts.into_iter().map(|first| RowsOfPart { first, step, count }).collect(), length)
}

/// How many elements of an array there are up to the last one of a box.
pub fn reach_of_part(part: &[i64], whole: &[i64]) -> i64 {
    let (rows, length) = strides_of_part(part, whole);
    rows.last().map_or(0, |rows| rows.first + rows.step * (rows.count - 1) + length)
}

/// The numbers of the elements at which the rows of a box start, in order, and how long each is.
pub fn rows_of_part(part: &[i64], whole: &[i64]) -> (Vec<usize>, usize) {
    let (rows, length) = strides_of_part(part, whole);
    let starts = rows.into_iter().flat_map(|rows| (0..rows.count).map(move |row| rows.first + row * rows.step));
    (starts.map(|start| start as usize).collect(), length as usize)
}

/// The elements of a box in an array, as bytes.
pub fn part_of_bytes(bytes: &[u8], part: &[i64], whole: &[i64], size: usize) -> Vec<u8> {
    let (starts, length) = rows_of_part(part, whole);
    starts.into_iter().flat_map(|start| &bytes[start * size..(start + length) * size]).copied().collect()
}

/// Puts elements, as bytes, into the box of an array that begins at its first element.
pub fn put_part(bytes: &mut [u8], values: &[u8], part: &[i64], whole: &[i64], size: usize) {
    let (starts, length) = rows_of_part(part, whole);
    for (start, row) in starts.into_iter().zip(values.chunks_exact((length * size).max(1))) {
        bytes[start * size..(start + length) * size].copy_from_slice(row);
    }
}

impl Array {
    /// The elements of a box that begins at the first one.
    ///
    /// # Errors
    /// Where the box has another number of dimensions, or is larger.
    pub fn part(&self, part: &[i64]) -> Result<Array, ArrayError> {
        let bytes = match part.len() == self.shape().len() && part.iter().zip(self.shape()).all(|(p, w)| p <= w) {
            true => part_of_bytes(&self.to_bytes(), part, self.shape(), self.dtype().bytes()),
            false => Vec::new(),
        };
        Array::from_bytes(part.to_vec(), self.dtype(), &bytes)
    }
}
