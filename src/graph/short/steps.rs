//! Products by short weights whose steps come in groups, as instructions take them: twos of bf16, fours of 8
//! bits. Where no axis of the sum is a multiple of that (the three channels of an image, a kernel of seven),
//! the one whose steps are neighbours in memory gets further steps, of weight 0.

use super::product::by_weight;
use crate::graph::{Program, TensorData};
use crate::workload::{Combiner, Condition, Element, Expr, Stage, TensorId, Var, dot_steps, typed_identity};

/// Whether an instruction can add up several steps of a product by a weight, which comes first, and several
/// results share what is no weight.
pub fn is_grouped(program: &Program, stage: &Stage, operands: &[Element<'_>; 2], steps: i64) -> bool {
    is_shared(stage, operands)
        && reduced(stage, operands)
            .any(|axis| stage.extent(axis) % steps == 0 || longer(program, stage, axis, operands).is_some())
}

/// The same of two activations, which do not get further steps.
pub fn are_grouped(stage: &Stage, operands: &[Element<'_>; 2], steps: i64) -> bool {
    are_shared(stage, operands) && reduced(stage, operands).any(|axis| stage.extent(axis) % steps == 0)
}

/// Whether several results share each of two operands.
pub fn are_shared(stage: &Stage, [x, y]: &[Element<'_>; 2]) -> bool {
    is_shared(stage, &[*x, *y]) && is_shared(stage, &[*y, *x])
}

/// Whether several results along some axis share the second operand.
fn is_shared(stage: &Stage, [weight, other]: &[Element<'_>; 2]) -> bool {
    (0..stage.spatial.len()).any(|axis| stage.extent(axis) > 1 && weight.mentions(axis) && !other.mentions(axis))
}

/// The axes of fixed extent that are summed over.
fn reduced<'a>(stage: &'a Stage, [weight, other]: &'a [Element<'_>; 2]) -> impl Iterator<Item = usize> + 'a {
    let fixed = (stage.spatial.len()..stage.rank()).filter(|axis| stage.extents.get(*axis).is_none());
    fixed.filter(|axis| weight.mentions(*axis) && other.mentions(*axis))
}

/// The dimension of the weight that further steps along an axis make longer, where the other operand's steps
/// are neighbours in rows of fixed length.
fn longer(program: &Program, stage: &Stage, axis: usize, [weight, other]: &[Element<'_>; 2]) -> Option<usize> {
    let var = Var(axis as u32);
    let (last, before) = other.indices.split_last()?;
    let is_fixed = program.tensor(other.tensor).extents.get(before.len()).is_none();
    let is_near = last.is_affine() && last.coefficient(var) == 1 && !before.iter().any(|index| index.mentions(var));
    let mut moved = (0..weight.indices.len()).filter(|dimension| weight.indices[*dimension].mentions(var));
    let (dimension, next) = (moved.next()?, moved.next());
    let is_whole = next.is_none() && weight.indices[dimension].as_var() == Some(var);
    (is_fixed && is_near && is_whole && stage.extent(axis) > 2).then_some(dimension)
}

/// A sum that gets further steps.
struct Longer {
    weight: TensorId,
    other: TensorId,
    axis: usize,
    dimension: usize,
    by: i64,
    /// Of the other operand's type.
    zero: Expr,
}

/// Gives sums of products the steps that they lack.
pub fn complete(program: &mut Program) {
    for at in 0..program.steps.len() {
        let found = program.steps[at].stage().and_then(|held| lacking(program, &held.stage));
        let Some(found) = found else { continue };
        let Some(data) = program.data[found.weight.0 as usize].as_ref() else { continue };
        let weight = program.add_constant(lengthened(data, found.dimension, found.by));
        let extent = program.tensor(found.other).shape.last().copied().unwrap_or(0);
        if let Some(held) = program.steps[at].stage_mut() {
            found.complete(&mut held.stage, weight, extent);
        }
    }
}

fn lacking(program: &Program, stage: &Stage) -> Option<Longer> {
    let operands = by_weight(program, stage)?;
    let types = operands.map(|operand| program.tensor(operand.tensor).dtype);
    let (steps, _) = dot_steps(types)?;
    let is_complete = reduced(stage, &operands).any(|axis| stage.extent(axis) % steps == 0);
    if is_complete || !is_shared(stage, &operands) {
        return None;
    }
    let (axis, dimension) =
        reduced(stage, &operands).find_map(|axis| Some((axis, longer(program, stage, axis, &operands)?)))?;
    let [weight, other] = operands.map(|operand| operand.tensor);
    let by = steps - stage.extent(axis) % steps;
    Some(Longer { weight, other, axis, dimension, by, zero: typed_identity(Combiner::Sum, types[1]) })
}

/// A constant with zeros behind its elements along a dimension.
fn lengthened(data: &TensorData, dimension: usize, by: i64) -> TensorData {
    let bytes = |elements: &[i64]| elements.iter().product::<i64>() as usize * data.dtype.bytes();
    let (row, added) = (bytes(&data.shape[dimension..]), by as usize * bytes(&data.shape[dimension + 1..]));
    let mut longer = Vec::with_capacity(data.bytes.len() + data.bytes.len() / row.max(1) * added);
    for row in data.bytes.chunks(row.max(1)) {
        longer.extend_from_slice(row);
        longer.resize(longer.len() + added, 0);
    }
    let mut shape = data.shape.clone();
    shape[dimension] += by;
    TensorData { shape, dtype: data.dtype, bytes: longer.into() }
}

impl Longer {
    /// The stage with the longer weight. What it reads of the other operand, whose last dimension is of this
    /// extent, may be outside of it.
    fn complete(&self, stage: &mut Stage, weight: TensorId, extent: i64) {
        stage.reduction[self.axis - stage.spatial.len()] += self.by;
        let value = stage
            .value
            .map_loads(&mut |tensor, indices| (tensor == self.weight).then(|| Expr::load(weight, indices.to_vec())));
        let Expr::Binary(op, x, y) = value else { return };
        stage.value = Expr::binary(op, self.bordered(*x, extent), self.bordered(*y, extent));
    }

    fn bordered(&self, operand: Expr, extent: i64) -> Expr {
        let Expr::Cast(to, inner) = operand else { return operand };
        let (mut conditions, read, outside) = match *inner {
            Expr::Guard { conditions, inside, outside } => (conditions, *inside, Some(*outside)),
            other => (Vec::new(), other, None),
        };
        let mut own = None;
        read.for_each_load(&mut |tensor, indices| own = indices.last().filter(|_| tensor == self.other).cloned());
        if let Some(index) = own {
            let inside = Condition { index, low: 0, high: extent };
            conditions.extend((!conditions.contains(&inside)).then_some(inside));
        }
        let outside = outside.unwrap_or_else(|| self.zero.clone());
        Expr::Cast(to, Box::new(Expr::guard(conditions, read, outside)))
    }
}
