//! What a fast algorithm makes of a workload: other stages, by which fewer multiplications give the same.

use std::collections::BTreeMap;

use super::expr::Condition;
use super::{Combiner, DType, Expr, Extents, Index, Role, Stage, Tensor, TensorId, Var, Workload, typed_identity};

/// A workload in the form of a bilinear algorithm: constants and data are transformed, multiplied point by
/// point, and the products transformed back.
#[derive(Clone, PartialEq, Debug)]
pub struct Rewritten {
    /// Its tensors start with those of the original workload; what the original's stages wrote is not
    /// written, [`Rewritten::outputs`] instead.
    pub workload: Workload,
    /// The stages that transform the constants, in order, each with the number of its leading axes that are
    /// of the transform: computed when the network is compiled.
    pub constants: Vec<(usize, usize)>,
    /// The stage that multiplies; those around it only move and add.
    pub product: usize,
    /// What the last stages write, an output of the original each, in tiles. They may read the outputs
    /// before them.
    pub outputs: Vec<Tiled>,
    /// How many times larger its rounding errors may be.
    pub error_growth: u32,
    /// Where an element of such a tensor is in its output; the axes are those of the last stages.
    pub indices: Vec<Index>,
    /// Elements for which these do not hold lie outside of it.
    pub conditions: Vec<Condition>,
}

/// An output of the original, in tiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tiled {
    pub tiled: TensorId,
    pub output: TensorId,
}

/// The stages of a rewritten workload, as they are made.
pub(super) struct Stages {
    pub workload: Workload,
}

impl Stages {
    /// None yet; the tensors of what is rewritten.
    pub fn new(given: &Workload) -> Stages {
        Stages { workload: Workload { stages: Vec::new(), ..given.clone() } }
    }

    /// An element-wise stage of a new tensor, whose axes have these extents in a run.
    pub fn map(&mut self, (role, dtype): (Role, DType), spatial: &[Index], value: Expr) -> TensorId {
        let most = self.most(spatial);
        self.append((role, dtype), spatial, |output| Stage::map(output, most, value))
    }

    /// A stage of a new tensor, whose axes have these extents in a run, those of a reduction behind.
    pub fn append(
        &mut self,
        (role, dtype): (Role, DType),
        extents: &[Index],
        stage: impl FnOnce(TensorId) -> Stage,
    ) -> TensorId {
        let output = TensorId(self.workload.tensors.len() as u32);
        let mut stage = stage(output);
        stage.extents = Extents::new(extents.iter().cloned().enumerate());
        let written = Extents::new(extents[..stage.spatial.len()].iter().cloned().enumerate());
        self.workload.add_tensor(stage.spatial.clone(), dtype, role);
        self.workload.tensors[output.0 as usize].extents = written;
        self.workload.stages.push(stage);
        output
    }

    /// What extents are at most.
    pub fn most(&self, extents: &[Index]) -> Vec<i64> {
        extents.iter().map(|extent| self.workload.formula_range(extent).map_or(0, |range| range.high)).collect()
    }

    /// The last stages, which write the outputs of `given` in tiles: the sums at these places of them, and
    /// what element-wise stages make of these. What only these leave to one another is not written; outputs
    /// are read where they are.
    pub fn outputs(
        &mut self,
        given: &Workload,
        spatial: &[Index],
        sum: Expr,
        (indices, conditions): (&[Index], &[Condition]),
    ) -> Vec<Tiled> {
        let mut inner: BTreeMap<TensorId, Expr> = BTreeMap::new();
        let mut outputs = Vec::new();
        for (number, written) in given.stages.iter().enumerate() {
            let Tensor { role, dtype, .. } = *given.tensor(written.output);
            let value = match number {
                0 => sum.clone(),
                _ => {
                    let moved = written.value.substitute(&|axis| indices.get(axis.0 as usize).cloned());
                    moved.map_loads(&mut |tensor, _| inner.get(&tensor).cloned())
                }
            };
            if role == Role::Intermediate {
                inner.insert(written.output, value);
                continue;
            }
            // sums are there beyond the borders, too; what else is read may not be
            let value = match number {
                0 => value,
                _ => Expr::guard(conditions.to_vec(), value, typed_identity(Combiner::Sum, dtype)),
            };
            let tiled = self.map((Role::Intermediate, dtype), spatial, value);
            outputs.push(Tiled { tiled, output: written.output });
        }
        outputs
    }

    /// The workload, and the number of its stage that multiplies.
    pub fn finish(self) -> (Workload, usize) {
        let product = self.workload.stages.iter().position(Stage::is_reduction).unwrap_or(0);
        (self.workload, product)
    }
}

/// The sum that a workload begins with, if all that follows is element-wise: what algorithms compute
/// otherwise.
pub(super) fn leading_sum(workload: &Workload) -> Option<&Stage> {
    let (stage, behind) = workload.stages.split_first()?;
    let is_such =
        stage.combiner == Some(Combiner::Sum) && behind.iter().all(|next| is_element_wise(workload, stage, next));
    is_such.then_some(stage)
}

/// Whether a stage behind the first one computes an element from those at the same place of what the stages
/// before it wrote, and from what was given.
fn is_element_wise(workload: &Workload, first: &Stage, stage: &Stage) -> bool {
    let is_own = |(position, index): (usize, &Index)| index.as_var() == Some(Var(position as u32));
    let is_given = |tensor: TensorId| matches!(workload.tensor(tensor).role, Role::Input | Role::Constant);
    let mut aligned = !stage.is_reduction() && stage.is_over_results_of(first);
    stage.value.for_each_load(&mut |tensor, indices| {
        aligned &= is_given(tensor) || indices.iter().enumerate().all(is_own);
    });
    aligned
}
