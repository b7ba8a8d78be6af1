//! `Resize` along axes whose extents are known only when the network runs.
//!
//! An output position lies at `N / D` among the input's, both integers, so that its whole part is exact; what
//! tables hold where extents are fixed is computed for each position of the output when the network runs.

use super::builder::Builder;
use super::crop::{self, Cropped};
use super::fraction::over_power_of_two;
use super::math::{add, cast, divide, float, less, load, maximum, minimum, multiply, subtract, var, vars};
use super::operator::{Attribute, Operator, Problem};
use super::resampling::{Line, Plan, turns};
use crate::workload::{DType, Expr, Index, TensorId};

/// The extents of an axis, and the ratio of the output's to the input's: of these extents, or what it is
/// given as.
struct OpenLine {
    input: Index,
    output: Index,
    ratio: Option<(i64, i64)>,
}

impl OpenLine {
    /// Of the output's extent to the input's; `None` where only a run tells.
    fn scale(&self) -> Option<f64> {
        let of_extents = || Some(self.output.as_constant()? as f64 / self.input.as_constant()? as f64);
        let is_whole = self.input == self.output;
        self.ratio.map(|(p, q)| p as f64 / q as f64).or_else(of_extents).or(is_whole.then_some(1.0))
    }
}

/// `Resize` of a tensor, or to a size, with extents that are formulas.
pub fn resize(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let mut x = op.input(0)?;
    let plan = Plan::of(op)?;
    if builder.dtype(x) != DType::F32 && plan.mode != "nearest" {
        return Err(Problem::Type { input: 0, dtype: builder.dtype(x) });
    }
    let lines = lines(builder, op, x)?;
    if plan.outside.is_some() {
        return Ok(vec![cropped(builder, op, &plan, &lines)?]);
    }
    let scales: Vec<Option<f64>> = lines.iter().map(OpenLine::scale).collect();
    for axis in turns(&scales) {
        let line = &lines[axis];
        let OpenLine { input, output, ratio } = line;
        if input == output && ratio.is_none_or(|(p, q)| p == q) {
            continue;
        }
        x = match (input.as_constant(), output.as_constant()) {
            (Some(input), Some(output)) => {
                let scale = line.scale().unwrap_or(1.0);
                plan.resized(builder, x, axis, &Line { input, output, scale, part: (0.0, 1.0) })?
            }
            _ => resized(builder, &plan, x, axis, line)?,
        };
    }
    Ok(vec![x])
}

/// A part of a tensor, to a size.
fn cropped(builder: &mut Builder, op: &Operator, plan: &Plan, lines: &[OpenLine]) -> Result<TensorId, Problem> {
    if lines.iter().any(|line| line.ratio.is_some()) {
        return Err(Problem::Unsupported("resizing a part by scales with run-time extents".to_string()));
    }
    let axes = op.axes_or_all(lines.len())?;
    let of_axis = |axis: usize| Cropped { axis, input: lines[axis].input.clone(), output: lines[axis].output.clone() };
    let axes: Vec<Cropped> = axes.into_iter().map(of_axis).collect();
    crop::resize(builder, op, plan, &axes)
}

/// All axes, from scales or sizes, which may be given for some axes only.
fn lines(builder: &mut Builder, op: &Operator, x: TensorId) -> Result<Vec<OpenLine>, Problem> {
    let own = builder.extents(x);
    let (scales, sizes) = if op.kind == "Upsample" || op.opset < 11 { (1, usize::MAX) } else { (2, 3) };
    let axes = op.axes_or_all(own.len())?;
    let whole = |extent: &Index| OpenLine { input: extent.clone(), output: extent.clone(), ratio: None };
    let mut lines: Vec<OpenLine> = own.iter().map(whole).collect();
    let count = |found: usize| match found == axes.len() {
        true => Ok(()),
        false => Err(Problem::Shape(format!("{found} scales or sizes cannot resize {} axes", axes.len()))),
    };
    if op.optional(sizes).is_some_and(|tensor| builder.tensor(tensor).elements() > 0) {
        let sizes = builder.numbers_input(op, sizes, 1)?;
        count(sizes.len())?;
        if op.text("keep_aspect_ratio_policy", "stretch")? != "stretch" {
            return Err(Problem::Unsupported("resizing to a run-time size that keeps the aspect ratio".to_string()));
        }
        for (axis, size) in axes.iter().zip(sizes) {
            if size != own[*axis] {
                builder.formulas.require(&size.clone().plus_constant(-1), "a size, less 1")?;
                builder.formulas.require(&own[*axis].clone().plus_constant(-1), "an extent to resize, less 1")?;
                lines[*axis].output = size;
            }
        }
        return Ok(lines);
    }
    let scales: Vec<f64> = match (op.attributes.get("scales"), op.optional(scales)) {
        (Some(Attribute::Floats(values)), _) => values.iter().map(|value| f64::from(*value)).collect(),
        (_, Some(tensor)) => builder.data(tensor).ok_or(Problem::NotConstant(scales))?.to_f64(),
        _ => return Err(Problem::MissingInput(scales)),
    };
    count(scales.len())?;
    for (axis, scale) in axes.iter().zip(scales) {
        let (p, q) = ratio(scale).ok_or_else(|| Problem::Shape(format!("{scale} is no scale")))?;
        let output = builder.formulas.simple(&own[*axis].clone().times(p).floor_div(q));
        let output = builder.formulas.left_of(&output, 1, "a size")?;
        lines[*axis] = OpenLine { input: own[*axis].clone(), output, ratio: Some((p, q)) };
    }
    Ok(lines)
}

/// A scale as a fraction in lowest terms.
fn ratio(scale: f64) -> Option<(i64, i64)> {
    let is_scale = scale > 0.0 && scale < f64::from(1 << 16);
    if is_scale { over_power_of_two(scale) } else { None }
}

fn whole(index: &Index) -> Expr {
    Expr::Index(index.clone())
}

fn resized(builder: &mut Builder, plan: &Plan, x: TensorId, axis: usize, line: &OpenLine) -> Result<TensorId, Problem> {
    if plan.excludes_outside || plan.antialias {
        return Err(Problem::Unsupported("antialiasing or excluding with run-time extents".to_string()));
    }
    let (dtype, mut extents) = (builder.dtype(x), builder.extents(x));
    extents[axis] = line.output.clone();
    let (numerator, denominator) = position(plan, line)?;
    let output = std::slice::from_ref(&line.output);
    let last = || whole(&line.input.clone().plus_constant(-1));
    let bounded = |place: Expr| minimum(maximum(place, Expr::integer(0)), last());
    let read = |place: Expr| {
        let mut at = vars(0, extents.len());
        at[axis] = Index::value(bounded(place));
        load(x, at)
    };
    let here = || vec![var(axis)];
    if plan.mode == "nearest" {
        if let Some(factor) = repeated(plan, line) {
            let mut at = vars(0, extents.len());
            at[axis] = var(axis).floor_div(factor);
            return builder.map_over(&extents, dtype, load(x, at));
        }
        let places = builder.map_over(output, DType::I64, nearest(plan, numerator, denominator)?)?;
        return builder.map_over(&extents, dtype, read(load(places, here())));
    }
    let floor = divide(numerator.clone(), denominator.clone());
    let floors = builder.map_over(output, DType::I64, floor)?;
    let rest = subtract(numerator, multiply(load(floors, vec![var(0)]), denominator.clone()));
    let in_f32 = |x: Expr| cast(DType::I64, DType::F32, x);
    let fractions = builder.map_over(output, DType::F32, divide(in_f32(rest), in_f32(denominator)))?;
    let fraction = || load(fractions, here());
    let weights: Vec<(i64, Expr)> = match plan.mode.as_str() {
        "linear" => vec![(0, subtract(float(1.0), fraction())), (1, fraction())],
        _ => [-1, 0, 1, 2].into_iter().map(|tap| (tap, cubic(plan.cubic, tap, fraction()))).collect(),
    };
    let terms = weights.into_iter().map(|(tap, weight)| {
        let place = add(load(floors, here()), Expr::integer(tap));
        multiply(read(place), weight)
    });
    let value = terms.reduce(add).unwrap_or_else(|| float(0.0));
    builder.map_over(&extents, DType::F32, value)
}

/// Where the output position of axis 0 lies among the input's, as a numerator and a denominator of at least
/// 1.
fn position(plan: &Plan, line: &OpenLine) -> Result<(Expr, Expr), Problem> {
    let OpenLine { input, output, ratio } = line;
    // the input's extent to the output's
    let (less_dense, denser) = match ratio {
        Some((p, q)) => (Expr::integer(*q), Expr::integer(*p)),
        None => (whole(input), whole(output)),
    };
    let at = || Expr::Index(var(0));
    let odd = || Expr::Index(var(0).times(2).plus_constant(1));
    let twice = |x: Expr| multiply(Expr::integer(2), x);
    let half_pixel = || subtract(multiply(odd(), less_dense.clone()), denser.clone());
    let is_single = || less(whole(output), Expr::integer(2));
    Ok(match plan.coordinates.as_str() {
        "half_pixel" => (half_pixel(), twice(denser)),
        // the same, unless the output's extent was rounded
        "half_pixel_symmetric" if ratio.is_none() => (half_pixel(), twice(denser)),
        "pytorch_half_pixel" => {
            let position = Expr::select(is_single(), Expr::integer(0), half_pixel());
            (position, twice(denser))
        }
        "align_corners" => {
            let (steps, length) = match ratio {
                Some((p, q)) => {
                    let steps = whole(&input.clone().plus_constant(-1).times(*q));
                    (steps, whole(&input.clone().times(*p).plus_constant(-*q)))
                }
                None => (whole(&input.clone().plus_constant(-1)), whole(&output.clone().plus_constant(-1))),
            };
            let position = Expr::select(is_single(), Expr::integer(0), multiply(at(), steps));
            (position, maximum(length, Expr::integer(1)))
        }
        "asymmetric" => (multiply(at(), less_dense), denser),
        "tf_half_pixel_for_nn" => (multiply(odd(), less_dense), twice(denser)),
        other => return Err(Problem::Unsupported(format!("resizing by {other} with run-time extents"))),
    })
}

fn nearest(plan: &Plan, numerator: Expr, denominator: Expr) -> Result<Expr, Problem> {
    let twice = |x: Expr| multiply(Expr::integer(2), x);
    // what is rounded up is what is rounded down, with another sign
    let up = |n: Expr, d: Expr| subtract(Expr::integer(0), divide(subtract(Expr::integer(0), n), d));
    Ok(match plan.nearest.as_str() {
        "floor" => divide(numerator, denominator),
        "ceil" => up(numerator, denominator),
        "round_prefer_floor" => up(subtract(twice(numerator), denominator.clone()), twice(denominator)),
        "round_prefer_ceil" => divide(add(twice(numerator), denominator.clone()), twice(denominator)),
        other => return Err(Problem::AttributeValue { name: "nearest_mode", value: other.to_string() }),
    })
}

/// How often each element of the input is repeated, where that is what the nearest ones are.
fn repeated(plan: &Plan, line: &OpenLine) -> Option<i64> {
    let (factor, 1) = line.ratio? else { return None };
    let holds = match plan.coordinates.as_str() {
        "asymmetric" | "tf_half_pixel_for_nn" => plan.nearest == "floor",
        // at most half an element from the middle of one
        "half_pixel" => plan.nearest.starts_with("round_prefer"),
        _ => false,
    };
    (holds && factor > 1).then_some(factor)
}

/// R. Keys' cubic convolution: the weight of the tap `tap`, for a position `fraction` behind tap 0.
fn cubic(a: f64, tap: i64, fraction: Expr) -> Expr {
    let scaled = |factor: f64, x: Expr| multiply(float(factor), x);
    let distance = match tap {
        0 => fraction,
        1 => subtract(float(1.0), fraction),
        -1 => add(float(1.0), fraction),
        _ => subtract(float(2.0), fraction),
    };
    let x = || distance.clone();
    match tap {
        0 | 1 => add(multiply(multiply(subtract(scaled(a + 2.0, x()), float(a + 3.0)), x()), x()), float(1.0)),
        _ => {
            let inner = add(multiply(subtract(x(), float(5.0)), x()), float(8.0));
            scaled(a, subtract(multiply(inner, x()), float(4.0)))
        }
    }
}
