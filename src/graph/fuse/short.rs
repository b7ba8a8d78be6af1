//! Short numbers that their readers want to find in memory, rather than to compute them from what is longer:
//! operands of products by weights, and what windows slide over.

use std::collections::HashSet;

use super::cost::{self, Reader};
use super::group::Group;
use super::{Fusion, loads};
use crate::workload::{Binary, Combiner, DType, Expr, Stage, TensorId};

/// The tensors whose elements, widened, are multiplied by those of constants and added up, or are taken the
/// greatest of in windows.
pub fn found_in_memory<'a>(
    stages: impl Iterator<Item = &'a Stage>,
    is_constant: &dyn Fn(TensorId) -> bool,
) -> HashSet<TensorId> {
    let mut found = HashSet::new();
    for stage in stages {
        let operand = match (stage.combiner, &stage.value) {
            (Some(Combiner::Sum), Expr::Binary(Binary::Multiply, x, y)) => {
                match [is_weight(x, is_constant), is_weight(y, is_constant)] {
                    [true, false] => &**y,
                    [false, true] => &**x,
                    _ => continue,
                }
            }
            (Some(Combiner::Maximum), value) if Reader::of(stage, 1).window => value,
            _ => continue,
        };
        let inside = if let Expr::Guard { inside, .. } = operand { inside } else { operand };
        if let Expr::Cast(DType::F32 | DType::I32, read) = inside {
            read.for_each_load(&mut |tensor, _| {
                found.insert(tensor);
            });
        }
    }
    found
}

fn is_weight(operand: &Expr, is_constant: &dyn Fn(TensorId) -> bool) -> bool {
    let (mut reads, mut all) = (false, true);
    operand.for_each_load(&mut |tensor, _| {
        reads = true;
        all &= is_constant(tensor);
    });
    reads && all
}

impl Fusion<'_> {
    /// Whether only element-wise stages take what a tensor of integers holds, dequantised or as it is.
    pub(super) fn flows_on(&self, tensor: TensorId) -> bool {
        let of = |tensor: TensorId| self.prepared.tensor(tensor).dtype;
        let readers =
            |tensor: TensorId| self.readers[tensor.0 as usize].iter().map(|at| self.prepared.steps[*at].stage());
        let is_map = |stage: &Stage| !stage.is_reduction();
        let ends_in_maps = |stage: &Stage| {
            !cost::dequantizes(&stage.value, &of)
                || readers(stage.output).all(|held| held.is_some_and(|held| is_map(&held.stage)))
        };
        let takes = |stage: &Stage| is_map(stage) && ends_in_maps(stage);
        !of(tensor).is_float() && readers(tensor).all(|held| held.is_some_and(|held| takes(&held.stage)))
    }

    /// Whether a group reads what another quantises.
    pub(super) fn reads_quantized(&self, group: &Group, of: &Group) -> bool {
        let read = group.members.iter().flat_map(|member| loads(&member.stage));
        read.into_iter().any(|tensor| of.writes(tensor) && self.prepared.is_quantized(tensor))
    }
}
