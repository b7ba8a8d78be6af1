//! Slices whose bounds, or what they are taken from, are known only when the network runs.

use super::builder::Builder;
use super::math::{literal, load, var, vars};
use super::operator::{Operator, Problem, normal_axes, normal_axis};
use crate::workload::{Expr, Index, TensorId};

/// Beyond every extent.
const FAR: i64 = 1 << 31;

/// `Slice` with bounds that are formulas; axes and steps are constants.
pub fn slice(builder: &mut Builder, op: &Operator) -> Result<TensorId, Problem> {
    let input = op.input(0)?;
    let own = builder.extents(input);
    let (starts, ends, axes, steps) = bounds(builder, op)?;
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return Err(Problem::Shape("starts, ends, axes and steps differ in length".to_string()));
    }
    normal_axes(&axes, own.len())?;
    let (mut extents, mut indices) = (own.clone(), vars(0, own.len()));
    for (((start, end), axis), step) in starts.iter().zip(&ends).zip(&axes).zip(&steps) {
        let axis = normal_axis(*axis, own.len())?;
        let part = part(builder, &own[axis], start, end, *step)?;
        extents[axis] = part.extent;
        indices[axis] = var(axis).times(part.step).plus(&part.start);
    }
    if extents == own && indices == vars(0, own.len()) {
        return Ok(input);
    }
    let dtype = builder.dtype(input);
    let guards = builder.unproven(input, &extents, &indices)?;
    let value = Expr::guard(guards, load(input, indices), literal(dtype, 0.0));
    builder.map_over(&extents, dtype, value)
}

type Bounds = (Vec<Index>, Vec<Index>, Option<Vec<i64>>, Option<Vec<i64>>);

/// Starts, ends, axes and steps: attributes before opset 10, inputs since.
fn bounds(builder: &mut Builder, op: &Operator) -> Result<Bounds, Problem> {
    if op.opset < 10 {
        let attribute = |name| op.ints(name).map(|values| values.map(<[i64]>::to_vec));
        let formulas = |name| -> Result<Vec<Index>, Problem> {
            let values = attribute(name)?.ok_or(Problem::MissingAttribute(name))?;
            Ok(values.into_iter().map(Index::constant).collect())
        };
        return Ok((formulas("starts")?, formulas("ends")?, attribute("axes")?, None));
    }
    let constants = |position| {
        let read = |tensor| builder.integers(tensor).ok_or(Problem::NotConstant(position));
        op.optional(position).map(read).transpose()
    };
    let (axes, steps) = (constants(3)?, constants(4)?);
    Ok((builder.numbers_input(op, 1, 0)?, builder.numbers_input(op, 2, 0)?, axes, steps))
}

/// Which elements of a dimension to take.
struct Part {
    start: Index,
    step: i64,
    extent: Index,
}

/// Negative bounds count from the end; all are clamped to the dimension, as in Python.
fn part(builder: &mut Builder, own: &Index, start: &Index, end: &Index, step: i64) -> Result<Part, Problem> {
    if step == 0 {
        return Err(Problem::AttributeValue { name: "steps", value: "0".to_string() });
    }
    let size = step.saturating_abs().min(FAR);
    let step = size * step.signum();
    // the range of a bound: positions for steps forwards, for others -1 stands before the first
    let least = if step > 0 { 0 } else { -1 };
    let start = clamped(builder, own, start, least)?;
    let end = clamped(builder, own, end, least)?;
    let length = if step > 0 { end.minus(&start) } else { start.clone().minus(&end) };
    let length = builder.formulas.natural(&length)?;
    let extent = builder.formulas.simple(&length.plus_constant(size - 1).floor_div(size));
    Ok(Part { start, step, extent })
}

/// A bound as a position between `least` and the extent (for `least` of -1, the extent less 1).
fn clamped(builder: &mut Builder, own: &Index, bound: &Index, least: i64) -> Result<Index, Problem> {
    let most = own.clone().plus_constant(least);
    let low = Index::constant(least);
    if let Some(constant) = bound.as_constant() {
        return match constant {
            FAR.. => Ok(most),
            0.. => builder.formulas.lesser(&Index::constant(constant), &most),
            _ if constant <= -FAR => Ok(low),
            _ => {
                let counted = own.clone().plus_constant(constant);
                shifted_greater(builder, &counted, least)
            }
        };
    }
    match builder.formulas.range_of(bound) {
        Some(range) if range.low >= 0 => builder.formulas.lesser(bound, &most),
        Some(range) if range.high < 0 => shifted_greater(builder, &own.clone().plus(bound), least),
        // the extent more where it counts from the end
        _ => {
            let below = builder.formulas.natural(&bound.clone().times(-1))?;
            let counts_back = builder.formulas.lesser(&below, &Index::constant(1))?;
            let whole = builder.formulas.product(&[own.clone(), counts_back])?;
            let place = shifted_greater(builder, &bound.clone().plus(&whole), least)?;
            builder.formulas.lesser(&place, &most)
        }
    }
}

/// The greater of a formula and `least`, which may be -1: symbols are not negative.
fn shifted_greater(builder: &mut Builder, formula: &Index, least: i64) -> Result<Index, Problem> {
    let shifted = formula.clone().plus_constant(-least);
    Ok(builder.formulas.greater(&shifted, &Index::constant(0))?.plus_constant(least))
}
