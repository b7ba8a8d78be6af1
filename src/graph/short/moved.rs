//! What is moved, concatenated or split: where it is rounded behind, it may as well be rounded before, and is
//! then moved in half of the bytes, or written in place by whoever computes it.

use std::collections::{BTreeMap, BTreeSet};

use super::free_tensors;
use crate::graph::Program;
use crate::workload::{DType, Expr, Stage, TensorId};

/// By what a stage that moves f32 writes: what it reads.
pub type Moved = BTreeMap<TensorId, BTreeSet<TensorId>>;

/// The stages that move elements which are rounded behind for all of their readers, and that can take rounded
/// ones instead: nobody reads what they read but they, and those of whom `reads_rounded` says, by the
/// position of their step, that they round it anyway. `alone` are the tensors that everyone reads rounded.
pub fn moved_rounded(
    program: &Program,
    alone: &BTreeSet<TensorId>,
    reads_rounded: &dyn Fn(usize, TensorId) -> bool,
) -> Moved {
    let free = free_tensors(program);
    let mut readers: BTreeMap<TensorId, Vec<(usize, TensorId)>> = BTreeMap::new();
    let mut moved = Moved::new();
    for (at, step) in program.steps.iter().enumerate() {
        let Some(stage) = step.stage().map(|held| &held.stage) else { continue };
        let mut read = BTreeSet::new();
        stage.value.for_each_load(&mut |tensor, _| {
            read.insert(tensor);
        });
        read.iter().for_each(|tensor| readers.entry(*tensor).or_default().push((at, stage.output)));
        let is_f32 = |tensor: &TensorId| program.tensor(*tensor).dtype == DType::F32;
        if only_moves(stage) && is_f32(&stage.output) && read.iter().all(|t| free.contains(t) && is_f32(t)) {
            moved.insert(stage.output, read);
        }
    }
    // those remain that nothing speaks against
    loop {
        let sources: BTreeSet<TensorId> = moved.values().flatten().copied().collect();
        let round =
            |at: usize, reader: &TensorId, tensor: TensorId| moved.contains_key(reader) || reads_rounded(at, tensor);
        let is_rounded_everywhere =
            |tensor: &TensorId| readers[tensor].iter().all(|(at, reader)| round(*at, reader, *tensor));
        let refused: Vec<TensorId> = moved
            .iter()
            .filter(|(output, read)| {
                !(alone.contains(output) || sources.contains(output)) || !read.iter().all(is_rounded_everywhere)
            })
            .map(|(output, _)| *output)
            .collect();
        if refused.is_empty() {
            return moved;
        }
        refused.iter().for_each(|output| drop(moved.remove(output)));
    }
}

/// Whether a stage writes nothing but elements of several tensors, and literals.
fn only_moves(stage: &Stage) -> bool {
    fn moves(value: &Expr) -> bool {
        match value {
            Expr::Load { .. } | Expr::Float(_) => true,
            Expr::Guard { inside, outside, .. } => moves(inside) && moves(outside),
            _ => false,
        }
    }
    !stage.is_reduction() && moves(&stage.value)
}

/// The value of such a stage, of elements in bf16.
pub fn in_bf16(value: &Expr, short: &dyn Fn(TensorId) -> TensorId) -> Expr {
    match value {
        Expr::Load { tensor, indices } => Expr::load(short(*tensor), indices.clone()),
        Expr::Guard { conditions, inside, outside } => {
            Expr::guard(conditions.clone(), in_bf16(inside, short), in_bf16(outside, short))
        }
        other => Expr::Cast(DType::BF16, Box::new(other.clone())),
    }
}
