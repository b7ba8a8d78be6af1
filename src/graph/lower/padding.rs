//! `Pad`.

use super::builder::Builder;
use super::layout::{Strided, strided};
use super::math::{absolute, literal, load, maximum, minimum, subtract, var, vars, within};
use super::operator::{Attribute, Operator, Problem, normal_axis};
use crate::workload::{Binary, Condition, DType, Expr, Index, TensorId};

/// Bound of paddings, so that no position can overflow.
const MAX_PAD: i64 = 1 << 30;

/// What comes before and behind an axis: formulas.
type Amounts = (Index, Index);

/// Paddings are attributes before opset 11, inputs since. Negative ones crop.
pub fn pad(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let mut input = op.input(0)?;
    let dtype = builder.dtype(input);
    let amounts = amounts(builder, op, builder.rank(input))?;
    let known = |(before, after): &Amounts| Some((before.as_constant()?, after.as_constant()?));
    let known: Option<Vec<(i64, i64)>> = amounts.iter().map(known).collect();
    let Some(mut amounts) = known.filter(|_| !builder.is_run_time(input)) else {
        return Ok(vec![pad_in_run(builder, op, input, &amounts)?]);
    };
    for (axis, (before, after)) in amounts.iter_mut().enumerate() {
        let extent = builder.shape(input)[axis];
        let (cut, cut_end) = ((-*before).max(0), (-*after).max(0));
        if cut + cut_end > extent {
            return Err(Problem::Shape(format!("{extent} elements cannot be cropped by {cut} and {cut_end}")));
        }
        input = strided(builder, input, &[(axis, Strided { start: cut, step: 1, extent: extent - cut - cut_end })])?;
        (*before, *after) = ((*before).max(0), (*after).max(0));
    }
    let mode = op.text("mode", "constant")?.to_string();
    if mode == "constant" {
        let filling = filling(builder, op, dtype)?;
        return Ok(vec![constant(builder, input, &amounts, filling)?]);
    }
    for (axis, (before, after)) in amounts.into_iter().enumerate() {
        if before > 0 || after > 0 {
            input = continued(builder, input, axis, (before, after), &mode)?;
        }
    }
    Ok(vec![input])
}

/// What is put before and behind each axis.
fn amounts(builder: &Builder, op: &Operator, rank: usize) -> Result<Vec<Amounts>, Problem> {
    let pads: Vec<Index> = match op.opset < 11 {
        true => {
            op.ints("pads")?.ok_or(Problem::MissingAttribute("pads"))?.iter().copied().map(Index::constant).collect()
        }
        false => builder.formulas_input(op, 1)?,
    };
    let axes: Vec<usize> = match op.optional(3) {
        Some(axes) => {
            let axes = builder.integers(axes).ok_or(Problem::NotConstant(3))?;
            axes.iter().map(|axis| normal_axis(*axis, rank)).collect::<Result<_, _>>()?
        }
        None => (0..rank).collect(),
    };
    let is_in_range =
        |pad: &Index| builder.formulas.range_of(pad).is_some_and(|range| -MAX_PAD < range.low && range.high < MAX_PAD);
    if pads.len() != 2 * axes.len() || !pads.iter().all(is_in_range) {
        let pads: Vec<String> = pads.iter().map(|pad| builder.formulas.spelled(pad)).collect();
        return Err(Problem::AttributeValue { name: "pads", value: format!("[{}]", pads.join(", ")) });
    }
    let mut amounts = vec![Amounts::default(); rank];
    for (position, axis) in axes.iter().enumerate() {
        amounts[*axis] = (pads[position].clone(), pads[axes.len() + position].clone());
    }
    Ok(amounts)
}

/// The same where extents are known only when the network runs: those of the input, or of what is put around
/// it.
fn pad_in_run(builder: &mut Builder, op: &Operator, input: TensorId, amounts: &[Amounts]) -> Result<TensorId, Problem> {
    let (own, dtype) = (builder.extents(input), builder.dtype(input));
    let padded_by = |(extent, (before, after)): (&Index, &Amounts)| {
        let padded = extent.clone().plus(before).plus(after);
        match builder.formulas.range_of(&padded) {
            Some(range) if range.low >= 0 => padded,
            // another form may show that it is never negative
            _ => builder.formulas.simple(&padded),
        }
    };
    let extents: Vec<Index> = own.iter().zip(amounts).map(padded_by).collect();
    let zero = Index::constant(0);
    for (extent, (before, after)) in own.iter().zip(amounts) {
        let cut: i64 = [before, after].into_iter().filter_map(Index::as_constant).map(|amount| amount.min(0)).sum();
        builder.formulas.require(&extent.clone().plus_constant(cut), "what is left of an extent")?;
    }
    let mode = op.text("mode", "constant")?.to_string();
    let most = builder.shape(input);
    let at: Vec<Index> = amounts.iter().enumerate().map(|(d, (before, _))| var(d).minus(before)).collect();
    let adds = |amount: &Index| !builder.formulas.is_at_most(amount, &zero);
    let padded: Vec<usize> = (0..own.len()).filter(|d| adds(&amounts[*d].0) || adds(&amounts[*d].1)).collect();
    let inside = |d: usize| {
        let open = Some(&own[d]).filter(|extent| extent.as_constant().is_none());
        Condition::within(&at[d], open, most[d])
    };
    if mode == "constant" {
        let filling = filling(builder, op, dtype)?;
        if most.contains(&0) {
            return builder.map_over(&extents, dtype, filling);
        }
        let guards = padded.iter().flat_map(|d| inside(*d)).collect();
        return builder.map_over(&extents, dtype, Expr::guard(guards, load(input, at.clone()), filling));
    }
    let crops = |amount: &Index| amount.as_constant().is_some_and(|amount| amount < 0);
    let may_crop = |amount: &Index| amount.as_constant().is_none() && !builder.formulas.is_at_most(&zero, amount);
    if amounts.iter().any(|(before, after)| may_crop(before) || may_crop(after)) {
        return Err(Problem::Unsupported(format!("mode {mode} with pads that may be negative")));
    }
    // each place outside of the input is one inside of it
    let mut read = at.clone();
    for d in padded {
        let last = own[d].clone().plus_constant(-1);
        let mut longest = zero.clone();
        if mode == "reflect" {
            for amount in [&amounts[d].0, &amounts[d].1] {
                longest = builder.formulas.greater(&longest, amount)?;
            }
        }
        builder.formulas.require(&last.clone().minus(&longest), "what padding reads of an extent")?;
        let (place, end) = (|| Expr::Index(at[d].clone()), || Expr::Index(last.clone()));
        let first = || Expr::integer(0);
        read[d] = Index::value(match mode.as_str() {
            "edge" => minimum(maximum(place(), first()), end()),
            "reflect" => {
                let front = absolute(place());
                let behind = absolute(subtract(front, end()));
                minimum(maximum(subtract(end(), behind), first()), end())
            }
            "wrap" if crops(&amounts[d].0) || crops(&amounts[d].1) => {
                return Err(Problem::Unsupported("cropping and wrapping with run-time extents".to_string()));
            }
            "wrap" => {
                let extent = || Expr::Index(own[d].clone());
                let rest = Expr::binary(Binary::Remainder, place(), extent());
                minimum(maximum(rest, first()), end())
            }
            other => return Err(Problem::AttributeValue { name: "mode", value: other.to_string() }),
        });
    }
    builder.map_over(&extents, dtype, load(input, read))
}

/// `CenterCropPad`: the middle of the input, or the input in the middle of zeros, axis by axis.
pub fn centre(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let mut input = op.input(0)?;
    let own = builder.shape(input);
    let wanted = builder.integers_input(op, 1)?;
    let axes = op.axes_or_all(own.len())?;
    if wanted.len() != axes.len() {
        return Err(Problem::Shape(format!("{wanted:?} does not give an extent for each of the axes {axes:?}")));
    }
    Builder::check_shape(&wanted)?;
    let mut pads = vec![(0, 0); own.len()];
    for (axis, extent) in axes.into_iter().zip(wanted) {
        let (cut, missing) = (own[axis] - extent, extent - own[axis]);
        if cut > 0 {
            input = strided(builder, input, &[(axis, Strided { start: cut / 2, step: 1, extent })])?;
        } else {
            pads[axis] = (missing / 2, missing - missing / 2);
        }
    }
    let zero = literal(builder.dtype(input), 0.0);
    Ok(vec![constant(builder, input, &pads, zero)?])
}

/// Cut off at the end of one axis, or continued by zeros.
pub fn with_extent(builder: &mut Builder, input: TensorId, axis: usize, extent: i64) -> Result<TensorId, Problem> {
    let shape = builder.shape(input);
    if extent <= shape[axis] {
        return strided(builder, input, &[(axis, Strided { start: 0, step: 1, extent })]);
    }
    let mut pads = vec![(0, 0); shape.len()];
    pads[axis].1 = extent - shape[axis];
    let zero = literal(builder.dtype(input), 0.0);
    constant(builder, input, &pads, zero)
}

fn filling(builder: &Builder, op: &Operator, dtype: DType) -> Result<Expr, Problem> {
    if op.opset < 11 {
        return Ok(match op.attributes.get("value") {
            None => literal(dtype, 0.0),
            Some(Attribute::Float(value)) => literal(dtype, f64::from(*value)),
            Some(_) => return Err(Problem::AttributeType("value")),
        });
    }
    let Some(tensor) = op.optional(2) else { return Ok(literal(dtype, 0.0)) };
    if builder.dtype(tensor) != dtype {
        return Err(Problem::Type { input: 2, dtype: builder.dtype(tensor) });
    }
    match builder.rank(tensor) {
        0 => Ok(builder.broadcast(tensor, &[])),
        1 if builder.shape(tensor) == [1] => Ok(builder.broadcast(tensor, &[1])),
        _ => Err(Problem::Shape("the constant value has to be a scalar".to_string())),
    }
}

/// Continued by one value.
pub fn constant(
    builder: &mut Builder,
    input: TensorId,
    pads: &[(i64, i64)],
    filling: Expr,
) -> Result<TensorId, Problem> {
    if pads.iter().all(|amounts| *amounts == (0, 0)) {
        return Ok(input);
    }
    let (own, dtype) = (builder.shape(input), builder.dtype(input));
    let shape = own.iter().zip(pads).map(|(extent, (before, after))| extent + before + after).collect();
    if own.contains(&0) {
        return builder.map(shape, dtype, filling);
    }
    let at: Vec<Index> = pads.iter().enumerate().map(|(d, (before, _))| var(d).plus_constant(-before)).collect();
    let padded = |d: &usize| pads[*d] != (0, 0);
    let guards = (0..own.len()).filter(padded).map(|d| within(at[d].clone(), 0, own[d])).collect();
    builder.map(shape, dtype, Expr::guard(guards, load(input, at), filling))
}

/// Continues one axis beyond its ends by elements of its own.
fn continued(
    builder: &mut Builder,
    input: TensorId,
    axis: usize,
    (before, after): (i64, i64),
    mode: &str,
) -> Result<TensorId, Problem> {
    let (own, dtype) = (builder.shape(input), builder.dtype(input));
    let extent = own[axis];
    let longest = if mode == "reflect" { extent - 1 } else { i64::MAX };
    if extent == 0 || before > longest || after > longest {
        return Err(Problem::Unsupported(format!("padding {extent} elements by {before} and {after} in mode {mode}")));
    }
    let mut shape = own.clone();
    shape[axis] = extent + before + after;
    let place = var(axis).plus_constant(-before);
    let read = |index: Index| {
        let mut at = vars(0, own.len());
        at[axis] = index;
        load(input, at)
    };
    let (front, behind) = match mode {
        "wrap" => return builder.map(shape, dtype, read(place.modulo(extent))),
        "edge" => (read(Index::constant(0)), read(Index::constant(extent - 1))),
        "reflect" => (read(place.clone().times(-1)), read(place.clone().times(-1).plus_constant(2 * (extent - 1)))),
        other => return Err(Problem::AttributeValue { name: "mode", value: other.to_string() }),
    };
    // every part under a guard of its own, so that each access is seen to stay inside
    let mut value = literal(dtype, 0.0);
    if after > 0 {
        value = Expr::guard(vec![within(place.clone(), extent, extent + after)], behind, value);
    }
    if before > 0 {
        value = Expr::guard(vec![within(place.clone(), -before, 0)], front, value);
    }
    let value = Expr::guard(vec![within(place.clone(), 0, extent)], read(place), value);
    builder.map(shape, dtype, value)
}
