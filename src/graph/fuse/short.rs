//! Short floats that their readers want to find in memory, rather than to compute them from what is longer:
//! operands of products by weights, and what windows slide over.

use std::collections::HashSet;

use super::cost::Reader;
use super::prepare::Prepared;
use crate::workload::{Binary, Combiner, DType, Expr, Role, TensorId};

/// The tensors whose elements, widened, are multiplied by those of constants and added up, or are taken the
/// greatest of in windows.
pub fn found_in_memory(prepared: &Prepared) -> HashSet<TensorId> {
    let mut found = HashSet::new();
    for stage in prepared.steps.iter().filter_map(|step| step.stage()).map(|held| &held.stage) {
        let operand = match (stage.combiner, &stage.value) {
            (Some(Combiner::Sum), Expr::Binary(Binary::Multiply, x, y)) => {
                match [is_weight(prepared, x), is_weight(prepared, y)] {
                    [true, false] => &**y,
                    [false, true] => &**x,
                    _ => continue,
                }
            }
            (Some(Combiner::Maximum), value) if Reader::of(stage, 1).window => value,
            _ => continue,
        };
        let inside = if let Expr::Guard { inside, .. } = operand { inside } else { operand };
        if let Expr::Cast(DType::F32, read) = inside {
            read.for_each_load(&mut |tensor, _| {
                found.insert(tensor);
            });
        }
    }
    found
}

fn is_weight(prepared: &Prepared, operand: &Expr) -> bool {
    let (mut reads, mut all) = (false, true);
    operand.for_each_load(&mut |tensor, _| {
        reads = true;
        all &= prepared.tensor(tensor).role == Role::Constant;
    });
    reads && all
}
