//! Attention over a number of keys that makes no whole tiles, as the 197 tokens of a vision transformer:
//! scores of further keys are computed, which count for nothing.
//!
//! ```text
//! s[m, k < 197] = Σ_d q[m, d] · x[k, d]      g[m] = max_k s[m, k]     h[m] = Σ_k exp(s[m, k] - g[m])
//! p[m, k < 197] = exp(s[m, k] - g[m]) / h[m]                          y[m, n] = Σ_k p[m, k] · v[k, n]
//! =>
//! s[m, k < 224] = Σ_d q[m, d] · (if k < 197 then x[k, d] else 0)
//! g[m] = max_(k < 224) (if k < 197 then s[m, k] else -∞)              likewise h
//! p[m, k < 224] = if k < 197 then exp(s[m, k] - g[m]) / h[m] else 0
//! y[m, n] = Σ_(k < 224) p[m, k] · (if k < 197 then v[k, n] else 0)
//! ```

use std::collections::BTreeMap;

use super::free_tensors;
use super::product::{PAIR, STEPS_OF_TILE, of_activations};
use super::steps::are_shared;
use crate::graph::Program;
use crate::workload::{Combiner, Condition, DType, Element, Expr, Index, Stage, TensorId, Var, typed_identity};

/// For each further step there are so many, at least, where the last tile is filled.
const STEPS_FOR_ONE: i64 = 6;
/// Stages of a chain from scores to what they weigh.
const MAXIMAL_CHAIN: usize = 16;

/// Lengthens the scores of all products of activations that have none for whole tiles.
pub fn complete(program: &mut Program) {
    for at in 0..program.steps.len() {
        let chain = program.steps[at].stage().and_then(|held| Chain::ending_in(program, &held.stage));
        let Some(chain) = chain else { continue };
        chain.lengthen(program);
    }
}

/// What has an axis of keys, from the scores to the product that sums over it.
struct Chain {
    /// The tensors whose last dimension it is, what is multiplied first.
    tensors: Vec<TensorId>,
    product: TensorId,
    keys: i64,
    longer: i64,
}

impl Chain {
    fn ending_in(program: &Program, product: &Stage) -> Option<Chain> {
        let [keys] = product.reduction[..] else { return None };
        let axis = product.spatial.len();
        let operands = of_activations(program, product)?;
        let is_plain = |operand: &Element| operand.widened_to.is_none() && !operand.is_guarded;
        let fits = product.extents.get(axis).is_none()
            && keys >= STEPS_OF_TILE
            && !fills_tiles(keys)
            && operands.iter().all(is_plain)
            && are_shared(product, &operands);
        let in_tiles = (keys + STEPS_OF_TILE - 1) / STEPS_OF_TILE * STEPS_OF_TILE;
        let in_pairs = keys + keys % PAIR;
        let longer = if (in_tiles - keys) * STEPS_FOR_ONE <= keys { in_tiles } else { in_pairs };
        if !fits || longer == keys {
            return None;
        }
        let weighs = |operand: &&Element| ends_in(operand.indices, Var(axis as u32));
        let shares = operands.iter().find(weighs)?.tensor;
        let mut chain = Chain { tensors: vec![shares], product: product.output, keys, longer };
        chain.follow(program).then_some(chain)
    }

    /// Finds all that has the axis; whether nothing else is done with it.
    fn follow(&mut self, program: &Program) -> bool {
        let free = free_tensors(program);
        let makers: BTreeMap<TensorId, &Stage> =
            program.stages().map(|held| (held.stage.output, &held.stage)).collect();
        let mut has_scores = false;
        let mut next = 0;
        while let Some(tensor) = self.tensors.get(next).copied() {
            next += 1;
            let about = program.tensor(tensor);
            let has_axis = about.shape.last() == Some(&self.keys) && about.extents.is_fixed();
            let maker = makers.get(&tensor).filter(|_| free.contains(&tensor) && about.dtype == DType::F32);
            let Some(maker) = maker.filter(|_| has_axis && next <= MAXIMAL_CHAIN) else { return false };
            let own = Var(maker.spatial.len() as u32 - 1);
            if maker.is_reduction() {
                // products by weights would read these behind conditions
                if of_activations(program, maker).is_none() {
                    return false;
                }
                has_scores = true;
                continue;
            }
            maker.value.for_each_load(&mut |read, indices| {
                let goes_on = ends_in(indices, own) && makers.contains_key(&read) && !self.tensors.contains(&read);
                self.tensors.extend(goes_on.then_some(read));
            });
        }
        let readers = program.stages().map(|held| &held.stage);
        has_scores && readers.filter(|stage| self.reads(stage)).all(|stage| self.allows(stage))
    }

    fn reads(&self, stage: &Stage) -> bool {
        let mut found = false;
        stage.value.for_each_load(&mut |tensor, _| found |= self.tensors.contains(&tensor));
        found
    }

    /// Whether a stage that reads the chain belongs to it, reduces its rows, or is the product.
    fn allows(&self, stage: &Stage) -> bool {
        let axis = match (stage.is_reduction(), self.tensors.contains(&stage.output)) {
            (false, true) => stage.spatial.len() - 1,
            (true, false) if stage.reduction == [self.keys] => stage.spatial.len(),
            _ => return false,
        };
        let mut fits = true;
        stage.value.for_each_load(&mut |tensor, indices| {
            fits &= !self.tensors.contains(&tensor) || ends_in(indices, Var(axis as u32));
        });
        fits
    }

    fn lengthen(&self, program: &mut Program) {
        for tensor in &self.tensors {
            if let Some(last) = program.tensors[tensor.0 as usize].shape.last_mut() {
                *last = self.longer;
            }
        }
        let types: Vec<DType> = program.tensors.iter().map(|tensor| tensor.dtype).collect();
        for step in &mut program.steps {
            let Some(stage) = step.stage_mut().map(|held| &mut held.stage) else { continue };
            let (is_own, is_product) = (self.tensors.contains(&stage.output), stage.output == self.product);
            if !is_own && !self.reads(stage) {
                continue;
            }
            let spatial = stage.spatial.len();
            let axis = if is_own { spatial - 1 } else { spatial };
            let inside = Condition { index: Index::var(Var(axis as u32)), low: 0, high: self.keys };
            let within = |value: Expr, outside: Expr| Expr::guard(vec![inside.clone()], value, outside);
            // what is no part of the chain has no further keys
            let value = stage.value.map_loads(&mut |tensor, indices| {
                let moves = indices.iter().any(|index| index.mentions(Var(axis as u32)));
                let read = || Expr::load(tensor, indices.to_vec());
                let zero = typed_identity(Combiner::Sum, types[tensor.0 as usize]);
                (moves && !self.tensors.contains(&tensor)).then(|| within(read(), zero))
            });
            stage.value = match stage.combiner {
                Some(combiner) if !is_own && !is_product => {
                    within(value, typed_identity(combiner, types[stage.output.0 as usize]))
                }
                None if stage.output == self.tensors[0] => within(value, Expr::float(0.0)),
                _ => value,
            };
            match is_own {
                true => stage.spatial[axis] = self.longer,
                false => stage.reduction[0] = self.longer,
            }
        }
    }
}

/// Whether the last index is a variable, and no other moves with it.
fn ends_in(indices: &[Index], var: Var) -> bool {
    let ends = |(last, before): (&Index, &[Index])| {
        last.as_var() == Some(var) && !before.iter().any(|index| index.mentions(var))
    };
    indices.split_last().is_some_and(ends)
}

/// Whether tiles of pairs can be at least half as deep as there are steps for.
fn fills_tiles(extent: i64) -> bool {
    let most = STEPS_OF_TILE / PAIR;
    extent % PAIR == 0 && (most / 2..=most).any(|depth| extent / PAIR % depth == 0)
}
