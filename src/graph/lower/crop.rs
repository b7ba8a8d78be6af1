//! `Resize` of a part of a tensor that only a run tells (`tf_crop_and_resize`): between which elements an
//! output position lies is computed when the network runs.

use super::builder::Builder;
use super::math::{
    add, and, cast, divide, float, less, less_equal, literal, load, maximum, minimum, multiply, subtract, var, vars,
};
use super::operator::{Operator, Problem};
use super::resampling::Plan;
use crate::workload::{DType, Expr, Index, TensorId, Unary};

/// An axis, its extent, and that of the result.
pub struct Cropped {
    pub axis: usize,
    pub input: Index,
    pub output: Index,
}

/// Resizes the part between the starts and ends that the second input holds, which come one after the other
/// for all of these axes: shares of the way from the first element to the last.
pub fn resize(builder: &mut Builder, op: &Operator, plan: &Plan, axes: &[Cropped]) -> Result<TensorId, Problem> {
    let (mut x, parts) = (op.input(0)?, op.input(1)?);
    if plan.excludes_outside || plan.antialias || plan.mode == "cubic" {
        return Err(Problem::Unsupported("resizing a computed part by anything but neighbours".to_string()));
    }
    if builder.dtype(parts) != DType::F32 {
        return Err(Problem::Type { input: 1, dtype: builder.dtype(parts) });
    }
    if builder.is_run_time(parts) || builder.shape(parts) != [2 * axes.len() as i64] {
        let found = builder.shape(parts);
        return Err(Problem::Shape(format!("parts of shape {found:?} for {} axes", axes.len())));
    }
    for (number, line) in axes.iter().enumerate() {
        let ends = [number, axes.len() + number].map(|place| place as i64);
        let known = ends.map(|place| builder.known_float(parts, place));
        let is_whole = line.input == line.output && known == [Some(0.0), Some(1.0)];
        if !is_whole {
            let part = ends.map(|place| load(parts, vec![Index::constant(place)]));
            x = along(builder, plan, x, line, part)?;
        }
    }
    Ok(x)
}

fn along(
    builder: &mut Builder,
    plan: &Plan,
    x: TensorId,
    line: &Cropped,
    [start, end]: [Expr; 2],
) -> Result<TensorId, Problem> {
    let Cropped { axis, input, output } = line;
    let dtype = builder.dtype(x);
    let whole = |index: &Index| Expr::Index(index.clone());
    let in_f32 = |index: Index| cast(DType::I64, DType::F32, Expr::Index(index));
    let last = || in_f32(input.clone().plus_constant(-1));
    let output_range = std::slice::from_ref(output);
    // of a single element, the middle
    let steps = maximum(in_f32(output.clone().plus_constant(-1)), float(1.0));
    let read = multiply(multiply(in_f32(var(0)), subtract(end.clone(), start.clone())), last());
    let spread = add(multiply(start.clone(), last()), divide(read, steps));
    let middle = multiply(multiply(float(0.5), add(start, end)), last());
    let place = Expr::select(less(whole(output), Expr::integer(2)), middle, spread);
    let places = builder.map_over(output_range, DType::F32, place)?;
    let mut extents = builder.extents(x);
    extents[*axis] = output.clone();
    let here = |tensor: TensorId| load(tensor, vec![var(*axis)]);
    let element = |at: Expr| {
        let mut indices = vars(0, extents.len());
        let bounded = minimum(maximum(at, Expr::integer(0)), whole(&input.clone().plus_constant(-1)));
        indices[*axis] = Index::value(bounded);
        load(x, indices)
    };
    let at = load(places, vec![var(0)]);
    let rounded = match plan.mode.as_str() {
        "nearest" => rounded(&plan.nearest, at)?,
        _ => Expr::unary(Unary::Floor, at),
    };
    // what is no number, or far away, is outside, wherever it is rounded to
    let near = maximum(minimum(rounded, float(f64::from(1 << 24))), float(-1.0));
    let rounded = builder.map_over(output_range, DType::I64, cast(DType::F32, DType::I64, near))?;
    let inside = match plan.mode.as_str() {
        "nearest" => element(here(rounded)),
        _ => {
            let fraction = || subtract(here(places), cast(DType::I64, DType::F32, here(rounded)));
            let next = element(add(here(rounded), Expr::integer(1)));
            add(multiply(element(here(rounded)), subtract(float(1.0), fraction())), multiply(next, fraction()))
        }
    };
    let is_inside = and(less_equal(float(0.0), here(places)), less_equal(here(places), last()));
    let outside = literal(dtype, plan.outside.unwrap_or(0.0));
    builder.map_over(&extents, dtype, Expr::select(is_inside, inside, outside))
}

fn rounded(mode: &str, at: Expr) -> Result<Expr, Problem> {
    let half = || float(0.5);
    Ok(match mode {
        "floor" => Expr::unary(Unary::Floor, at),
        "ceil" => Expr::unary(Unary::Ceil, at),
        "round_prefer_floor" => Expr::unary(Unary::Ceil, subtract(at, half())),
        "round_prefer_ceil" => Expr::unary(Unary::Floor, add(at, half())),
        other => return Err(Problem::AttributeValue { name: "nearest_mode", value: other.to_string() }),
    })
}
