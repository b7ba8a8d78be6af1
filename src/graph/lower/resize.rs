//! `Resize` and its predecessor `Upsample`: one stage for each axis that changes, by tables computed here.

use super::builder::Builder;
use super::interpolate;
use super::operator::{Attribute, Operand, Operator, Problem};
use super::resampling::{Line, Plan, turns};
use crate::workload::{DType, TensorId};

pub fn resize(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let mut x = op.input(0)?;
    let is_known = |operand: &Option<Operand>| operand.is_none_or(|operand| builder.data(operand.tensor).is_some());
    if builder.is_run_time(x) || !op.inputs.iter().skip(1).all(is_known) {
        return interpolate::resize(builder, op);
    }
    let shape = builder.shape(x);
    let plan = Plan::of(op)?;
    let lines = lines(builder, op, &shape, plan.outside.is_some())?;
    if builder.dtype(x) != DType::F32 && plan.mode != "nearest" {
        return Err(Problem::Type { input: 0, dtype: builder.dtype(x) });
    }
    let scales: Vec<Option<f64>> = lines.iter().map(|line| Some(line.scale)).collect();
    for axis in turns(&scales) {
        let line = &lines[axis];
        if line.output != line.input || (line.scale - 1.0).abs() > 1e-12 || line.part != (0.0, 1.0) {
            x = plan.resized(builder, x, axis, line)?;
        }
    }
    Ok(vec![x])
}

/// From scales or sizes, and parts of the input, which may be given for some axes only.
fn lines(builder: &Builder, op: &Operator, shape: &[i64], crops: bool) -> Result<Vec<Line>, Problem> {
    let (scales, sizes) = if op.kind == "Upsample" || op.opset < 11 { (1, usize::MAX) } else { (2, 3) };
    let given = |position: usize| -> Result<Option<Vec<f64>>, Problem> {
        let Some(tensor) = op.optional(position) else { return Ok(None) };
        let values = builder.data(tensor).ok_or(Problem::NotConstant(position))?.to_f64();
        Ok((!values.is_empty()).then_some(values))
    };
    let axes = op.axes_or_all(shape.len())?;
    let scales = match (op.attributes.get("scales"), given(scales)?) {
        (Some(Attribute::Floats(values)), None) => Some(values.iter().map(|v| f64::from(*v)).collect()),
        (_, values) => values,
    };
    let whole = |extent: &i64| Line { input: *extent, output: *extent, scale: 1.0, part: (0.0, 1.0) };
    let mut lines: Vec<Line> = shape.iter().map(whole).collect();
    if shape.contains(&0) {
        return Err(Problem::Shape(format!("{shape:?} has no elements")));
    }
    let wrong = |values: &[f64]| Problem::Shape(format!("{values:?} cannot resize {shape:?}"));
    if crops {
        let parts = given(1)?.ok_or(Problem::MissingInput(1))?;
        if parts.len() != 2 * axes.len() || !parts.iter().all(|end| end.is_finite()) {
            return Err(wrong(&parts));
        }
        let (starts, ends) = parts.split_at(axes.len());
        axes.iter().zip(starts.iter().zip(ends)).for_each(|(axis, ends)| lines[*axis].part = (*ends.0, *ends.1));
    }
    if let Some(sizes) = given(sizes)? {
        let in_range = |size: &f64| (1.0..2147483648.0).contains(size);
        if sizes.len() != axes.len() || !sizes.iter().all(in_range) {
            return Err(wrong(&sizes));
        }
        let ratios = axes.iter().zip(&sizes).map(|(axis, size)| size / shape[*axis] as f64);
        let common = match op.text("keep_aspect_ratio_policy", "stretch")? {
            "stretch" => None,
            "not_larger" => ratios.reduce(f64::min),
            "not_smaller" => ratios.reduce(f64::max),
            other => {
                return Err(Problem::AttributeValue { name: "keep_aspect_ratio_policy", value: other.to_string() });
            }
        };
        for (axis, size) in axes.iter().zip(&sizes) {
            let own = shape[*axis] as f64;
            let (output, scale) = match common {
                Some(scale) => ((scale * own + 0.5).floor().max(1.0) as i64, scale),
                None => (*size as i64, size / own),
            };
            lines[*axis] = Line { output, scale, ..lines[*axis] };
        }
        return Ok(lines);
    }
    let scales = scales.ok_or(Problem::MissingInput(2))?;
    if scales.len() != axes.len() || !scales.iter().all(|scale| *scale > 0.0 && *scale < 2147483648.0) {
        return Err(wrong(&scales));
    }
    for (axis, scale) in axes.iter().zip(&scales) {
        let extent = (shape[*axis] as f64 * scale).floor();
        if !(1.0..2147483648.0).contains(&extent) {
            return Err(wrong(&scales));
        }
        lines[*axis] = Line { output: extent as i64, scale: *scale, ..lines[*axis] };
    }
    Ok(lines)
}
