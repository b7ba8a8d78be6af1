//! How a stage reads its operands.

use crate::workload::{Atom, Condition, Expr, Index, Stage, TensorId, Var, Workload, stride_along};

/// An access to a tensor in a stage, with the guard around it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    pub tensor: TensorId,
    pub indices: Vec<Index>,
    pub guarded: bool,
    /// Where it reads, or what the guard right around it asks, depends on numbers that only a run knows.
    pub is_of_run: bool,
}

/// The distinct accesses of a stage's value.
pub fn accesses(stage: &Stage) -> Vec<Access> {
    let mut found = Vec::new();
    collect(&stage.value, false, &[], &mut found);
    found
}

/// `around`: what the guard asks that is right around the expression, if any.
fn collect(expr: &Expr, guarded: bool, around: &[Condition], found: &mut Vec<Access>) {
    match expr {
        Expr::Load { tensor, indices } => {
            let of_run = |index: &Index| index.any_var(&|var| var.as_parameter().is_some());
            let is_of_run = indices.iter().chain(around.iter().map(|condition| &condition.index)).any(of_run);
            let access = Access { tensor: *tensor, indices: indices.clone(), guarded, is_of_run };
            if !found.contains(&access) {
                found.push(access);
            }
        }
        Expr::Guard { conditions, inside, outside } => {
            collect(inside, true, conditions, found);
            collect(outside, guarded, &[], found);
        }
        _ => expr.children().for_each(|child| collect(child, guarded, &[], found)),
    }
}

impl Access {
    /// Elements that memory moves by when an axis moves by one; `None` where that is not constant.
    pub fn stride(&self, workload: &Workload, axis: Var) -> Option<i64> {
        stride_along(&self.indices, &workload.tensor(self.tensor).strides(), axis)
    }

    /// Whether several axes move the access along one dimension, as in a convolution.
    pub fn has_window(&self) -> bool {
        self.indices.iter().any(|index| index.terms().len() > 1)
    }

    /// Whether several axes of the stage that it is in move the access over the same elements of a dimension.
    /// The parts and the steps of an axis that was cut, or patches side by side, do not, though they are [a
    /// window](Self::has_window), too.
    pub fn slides(&self, stage: &Stage) -> bool {
        self.indices.iter().any(|index| {
            let mut terms: Vec<(i64, Option<i64>)> = Vec::with_capacity(index.terms().len());
            terms.extend(index.terms().iter().map(|(atom, coefficient)| {
                let extent = if let Atom::Var(var) = atom { Some(stage.extent(var.0 as usize)) } else { None };
                (coefficient.abs(), extent)
            }));
            terms.sort_unstable();
            let mut reach = 0i64;
            terms.len() > 1
                && terms.into_iter().any(|(coefficient, extent)| {
                    let overlaps = extent.is_none() || coefficient <= reach;
                    reach = reach.saturating_add(coefficient.saturating_mul(extent.unwrap_or(1) - 1));
                    overlaps
                })
        })
    }

    /// Whether an axis moves the access in steps of several elements of a dimension, as in a strided
    /// convolution.
    pub fn has_scaled_axis(&self) -> bool {
        self.indices.iter().any(|index| index.terms().iter().any(|(_, coefficient)| coefficient.abs() > 1))
    }

    pub fn mentions(&self, axis: Var) -> bool {
        self.indices.iter().any(|index| index.mentions(axis))
    }
}
