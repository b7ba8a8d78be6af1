//! What is rounded on the longest way from an argument to a tensor: what [`super::Tolerance`] is made of.

use super::jump::jump;
use crate::workload::{Combiner, DType, Expr, Stage, TensorId, Workload};

/// The longest way from an argument to a tensor.
#[derive(Clone, Copy, Default)]
pub(super) struct Way {
    /// Number of roundings to f32.
    pub depth: f64,
    /// Relative error of roundings to 16 bits, with the tensor's own.
    pub stored: f64,
    /// Number of roundings of floats to integers.
    pub roundings: f64,
    /// By how much it changes where one float on the way is rounded to another whole number.
    pub jump: f64,
    /// The share of elements that are halfway between whole numbers, if they are means of integers.
    pub halfway: f64,
}

impl Way {
    /// How far an element may be from the oracle's where floats before it were rounded to neighbours.
    fn moved(self) -> f64 {
        self.jump.max(self.roundings)
    }

    /// By tensor.
    pub fn to_each(workload: &Workload) -> Vec<Way> {
        let mut ways = vec![Way::default(); workload.tensors.len()];
        for stage in &workload.stages {
            let mut way = Way::default();
            stage.value.for_each_load(&mut |tensor, _| {
                let Way { depth, stored, roundings, halfway, .. } = ways[tensor.0 as usize];
                way.depth = way.depth.max(depth);
                way.stored = way.stored.max(stored);
                way.roundings = way.roundings.max(roundings);
                way.halfway = way.halfway.max(halfway);
            });
            // what is summed up later is beyond this analysis: there, integers must be equal
            way.roundings = if stage.combiner == Some(Combiner::Sum) { 0.0 } else { way.roundings };
            way.roundings += roundings(&stage.value, &|tensor| workload.tensor(tensor).dtype);
            if stage.combiner.is_none() {
                way.jump = jump(&stage.value, &|tensor| ways[tensor.0 as usize].moved(), &|tensor| {
                    workload.tensor(tensor).dtype
                });
                // an integer that another was rounded to on the way may be farther off than by one for each
                way.roundings = if way.roundings > 0.0 { way.roundings.max(way.jump) } else { 0.0 };
            }
            let points = points_reduced(stage);
            if stage.combiner == Some(Combiner::Sum) && points > 1.0 && adds_integers(stage, workload) {
                way.halfway = way.halfway.max(1.0 / points);
            }
            way.depth += points.max(1.0) + operators(&stage.value);
            let dtype = workload.tensor(stage.output).dtype;
            let steps = steps_rounded(stage);
            // a conversion to the type of the output, right before it is stored, is the same rounding
            let value = match &stage.value {
                Expr::Cast(to, value) if *to == dtype && steps <= 1.0 => value,
                value => value,
            };
            way.stored += conversions(value) + places(dtype).0 * steps.max(1.0).sqrt();
            ways[stage.output.0 as usize] = way;
        }
        ways
    }
}

/// Whether a stage adds up elements of one integer tensor, with no other factors than literals.
fn adds_integers(stage: &Stage, workload: &Workload) -> bool {
    let mut loaded = Vec::new();
    stage.value.for_each_load(&mut |tensor, _| loaded.push(tensor));
    matches!(loaded[..], [tensor] if !workload.tensor(tensor).dtype.is_float())
}

fn points_reduced(stage: &Stage) -> f64 {
    stage.reduction.iter().map(|extent| *extent as f64).product()
}

/// Number of times that an element is stored before it is complete: sums and products are, in the output's
/// type.
fn steps_rounded(stage: &Stage) -> f64 {
    match stage.combiner {
        Some(Combiner::Sum | Combiner::Product) => points_reduced(stage),
        Some(Combiner::Maximum | Combiner::Minimum) | None => 1.0,
    }
}

/// Refuses sums and products that are accumulated in 16 bits over so many steps that their rounding hides a
/// lost step: of n values of alike size, √n·2u against 1/√n.
///
/// # Errors
/// The output of such a stage, its type and number of steps.
pub(super) fn check_sums(workload: &Workload) -> Result<(), (TensorId, DType, u64)> {
    for stage in &workload.stages {
        let dtype = workload.tensor(stage.output).dtype;
        let steps = steps_rounded(stage);
        if places(dtype).0 * steps > 0.5 {
            return Err((stage.output, dtype, steps as u64));
        }
    }
    Ok(())
}

/// Relative error of conversions to 16-bit types, on the way with the most of them.
fn conversions(expr: &Expr) -> f64 {
    let own = match expr {
        // padding and the like: the literals are converted exactly, or to the same
        Expr::Cast(_, value) if matches!(**value, Expr::Float(_) | Expr::Index(_)) => 0.0,
        Expr::Cast(dtype, _) => places(*dtype).0,
        _ => 0.0,
    };
    own + expr.children().map(conversions).fold(0.0, f64::max)
}

/// Roundings of floats to integers, on the way with the most of them.
fn roundings(expr: &Expr, of: &dyn Fn(TensorId) -> DType) -> f64 {
    let own = match expr {
        Expr::Cast(dtype, value) if !dtype.is_float() && *dtype != DType::Bool && value.dtype(of).is_float() => 1.0,
        _ => 0.0,
    };
    own + expr.children().map(|child| roundings(child, of)).fold(0.0, f64::max)
}

fn operators(expr: &Expr) -> f64 {
    let own = if matches!(expr, Expr::Unary(..) | Expr::Binary(..)) { 1.0 } else { 0.0 };
    own + expr.children().map(operators).sum::<f64>()
}

/// Distance of neighbours in a 16-bit type, relative to their size at most; and between its smallest numbers.
pub(super) fn places(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F32 | DType::F64 => (0.0, 0.0),
        DType::F16 => (2.0 * dtype.unit_roundoff(), 2.0_f64.powi(-24)),
        // the smallest numbers of bf16 are no larger than those of f32; integers have no places
        _ => (2.0 * dtype.unit_roundoff(), 0.0),
    }
}
