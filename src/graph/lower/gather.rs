//! Operators that read at computed places.

use super::builder::Builder;
use super::layout::{Strided, strided};
use super::math::{add, cast, clamped, equal, gathered, less, literal, load, maximum, minimum, subtract, var, vars};
use super::operator::{Operator, Problem, normal_axis};
use super::reshape::reshape_to;
use crate::workload::{DType, Expr, Index, Interval, TensorId};

pub(super) fn check_index_type(builder: &Builder, position: usize, tensor: TensorId) -> Result<(), Problem> {
    match builder.dtype(tensor) {
        DType::I32 | DType::I64 => Ok(()),
        dtype => Err(Problem::Type { input: position, dtype }),
    }
}

fn check_not_empty(builder: &Builder, tensor: TensorId) -> Result<(), Problem> {
    match builder.shape(tensor) {
        shape if shape.contains(&0) => Err(Problem::Shape(format!("nothing can be gathered from {shape:?}"))),
        _ => Ok(()),
    }
}

/// Result `[.. before axis, .. shape of indices, .. after axis]`.
pub fn gather(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (input, places) = (op.input(0)?, op.input(1)?);
    check_index_type(builder, 1, places)?;
    let own = builder.shape(input);
    let axis = normal_axis(op.int("axis", 0)?, own.len())?;
    let place_shape = builder.shape(places);
    let shape: Vec<i64> = [&own[..axis], &place_shape, &own[axis + 1..]].concat();
    if builder.is_run_time(input) || builder.is_run_time(places) {
        return Ok(vec![gather_in_run(builder, input, places, axis)?]);
    }
    if let Some(part) = arithmetic_progression(builder, places, own[axis])? {
        // known places at equal distances: a slice
        let taken = strided(builder, input, &[(axis, part)])?;
        return Ok(vec![reshape_to(builder, taken, shape)?]);
    }
    if !place_shape.contains(&0) {
        check_not_empty(builder, input)?;
    }
    let place = place_in(builder, places, vars(axis, place_shape.len()), &Index::constant(own[axis]));
    let mut indices = vars(0, axis);
    indices.push(place);
    indices.extend(vars(axis + place_shape.len(), own.len() - axis - 1));
    let dtype = builder.dtype(input);
    Ok(vec![builder.map(shape, dtype, load(input, indices))?])
}

/// The same where extents are known only when the network runs.
fn gather_in_run(builder: &mut Builder, input: TensorId, places: TensorId, axis: usize) -> Result<TensorId, Problem> {
    let (own, of_places) = (builder.extents(input), builder.extents(places));
    let extents = [&own[..axis], &of_places, &own[axis + 1..]].concat();
    let at = vars(axis, of_places.len());
    let place = match builder.integer_formulas(places).as_deref() {
        // one place, counted from either end
        Some([place]) if !builder.is_of_iteration(place) => {
            let range = builder.formulas.range_of(place).unwrap_or(Interval { low: -1, high: 0 });
            let place = match (range.low >= 0, range.high < 0) {
                (true, _) => place.clone(),
                (_, true) => own[axis].clone().plus(place),
                _ => return Err(Problem::Unsupported("a place that counts from either end".to_string())),
            };
            builder.formulas.require(&place, "a place")?;
            builder.formulas.require(&own[axis].clone().minus(&place).plus_constant(-1), "what lies behind a place")?;
            place
        }
        _ => place_in(builder, places, at, &own[axis]),
    };
    let mut indices = vars(0, axis);
    indices.push(place);
    indices.extend(vars(axis + of_places.len(), own.len() - axis - 1));
    taken(builder, input, &extents, indices)
}

/// Where the element of `places` at a point is in a dimension: negative ones count from its end. Others are
/// not allowed, and one in the dimension stands for them.
pub(super) fn place_in(builder: &Builder, places: TensorId, at: Vec<Index>, extent: &Index) -> Index {
    if let Some(extent) = extent.as_constant() {
        let is_place = |place: &i64| (0..extent).contains(place);
        return match builder.integers(places).is_some_and(|places| places.iter().all(is_place)) {
            true => Index::value(load(places, at)),
            false => gathered(load(places, at), extent.max(1)),
        };
    }
    let place = cast(builder.dtype(places), DType::I64, load(places, at));
    let counted = add(place.clone(), Expr::Index(extent.clone()));
    let place = Expr::select(less(place.clone(), Expr::integer(0)), counted, place);
    let bounded = minimum(place, Expr::Index(extent.clone().plus_constant(-1)));
    Index::value(maximum(bounded, Expr::integer(0)))
}

/// What is at gathered places of a tensor. Of a dimension that may have no elements, guards say that there
/// are some where any is read.
pub(super) fn taken(
    builder: &mut Builder,
    input: TensorId,
    extents: &[Index],
    indices: Vec<Index>,
) -> Result<TensorId, Problem> {
    let dtype = builder.dtype(input);
    let may_be_empty =
        |own: &Index| own.as_constant().is_none() && builder.formulas.range_of(own).is_none_or(|range| range.low <= 0);
    let is_doubtful = indices.iter().zip(builder.extents(input)).any(|(at, own)| at.has_value() && may_be_empty(&own));
    if !is_doubtful {
        return builder.map_over(extents, dtype, load(input, indices));
    }
    let guards = builder.unproven(input, extents, &indices)?;
    builder.map_over(extents, dtype, Expr::guard(guards, load(input, indices), literal(dtype, 0.0)))
}

/// Constant places that a strided part covers. Those that are constant are checked, too.
fn arithmetic_progression(builder: &Builder, places: TensorId, extent: i64) -> Result<Option<Strided>, Problem> {
    let Some(values) = builder.integers(places) else { return Ok(None) };
    if let Some(wrong) = values.iter().find(|v| !(-extent..extent).contains(*v)) {
        return Err(Problem::Shape(format!("index {wrong} is out of range for extent {extent}")));
    }
    let values: Vec<i64> = values.into_iter().map(|v| if v < 0 { v + extent } else { v }).collect();
    let Some(start) = values.first().copied() else { return Ok(None) };
    let step = values.get(1).map_or(1, |second| second - start);
    let is_even = values.windows(2).all(|pair| pair[1] - pair[0] == step);
    Ok(is_even.then_some(Strided { start, step, extent: values.len() as i64 }))
}

/// `result[i][j][k] = input[i][places[i][j][k]][k]`, along axis 1 for example.
pub fn gather_elements(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (input, places) = (op.input(0)?, op.input(1)?);
    check_index_type(builder, 1, places)?;
    let (own, extents) = (builder.extents(input), builder.extents(places));
    let axis = normal_axis(op.int("axis", 0)?, own.len())?;
    let shapes = (builder.shape(places), builder.shape(input));
    let misfit = || Problem::Shape(format!("indices of shape {:?} do not fit {:?}", shapes.0, shapes.1));
    if extents.len() != own.len() {
        return Err(misfit());
    }
    for d in (0..own.len()).filter(|d| *d != axis) {
        builder.fit_into(&extents[d], &own[d], misfit)?;
    }
    if !builder.shape(places).contains(&0) {
        check_not_empty(builder, input)?;
    }
    let mut indices = vars(0, own.len());
    indices[axis] = place_in(builder, places, vars(0, own.len()), &own[axis]);
    Ok(vec![taken(builder, input, &extents, indices)?])
}

/// The last dimension of the places counts the input's dimensions that they index, after the batch
/// dimensions.
pub fn gather_nd(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (input, places) = (op.input(0)?, op.input(1)?);
    check_index_type(builder, 1, places)?;
    let (own, of_places) = (builder.extents(input), builder.extents(places));
    let batch = op.int("batch_dims", 0)?;
    let shapes = (builder.shape(places), builder.shape(input));
    let misfit = || Problem::Shape(format!("indices of shape {:?} do not fit {:?}", shapes.0, shapes.1));
    let (depth, outer) = of_places.split_last().ok_or_else(misfit)?;
    let batch = usize::try_from(batch).ok().filter(|b| *b <= outer.len() && *b <= own.len()).ok_or_else(misfit)?;
    let depth = depth.as_constant().and_then(|depth| usize::try_from(depth).ok());
    let depth = depth.filter(|d| batch + d <= own.len()).ok_or_else(misfit)?;
    for d in 0..batch {
        builder.unify_dimensions((places, d), (input, d), misfit)?;
    }
    let extents = [outer, &own[batch + depth..]].concat();
    if !extents.iter().any(|extent| extent.as_constant() == Some(0)) {
        check_not_empty(builder, input)?;
    }
    let mut indices = vars(0, batch);
    for d in 0..depth {
        let mut at = vars(0, outer.len());
        at.push(Index::constant(d as i64));
        indices.push(place_in(builder, places, at, &own[batch + d]));
    }
    indices.extend(vars(outer.len(), own.len() - batch - depth));
    Ok(vec![taken(builder, input, &extents, indices)?])
}

/// `ReverseSequence`: the first elements of each sequence of a batch, as many as its length says, in reverse.
pub fn reverse_sequence(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (input, lengths) = (op.input(0)?, op.input(1)?);
    check_index_type(builder, 1, lengths)?;
    let own = builder.shape(input);
    let (batch, time) =
        (normal_axis(op.int("batch_axis", 1)?, own.len())?, normal_axis(op.int("time_axis", 0)?, own.len())?);
    if batch == time || builder.shape(lengths) != own[batch..=batch] {
        let given = builder.shape(lengths);
        return Err(Problem::Shape(format!("lengths of shape {given:?} do not fit axis {batch} of {own:?}")));
    }
    let length = || cast(builder.dtype(lengths), DType::I64, load(lengths, vec![var(batch)]));
    let here = || Expr::Index(var(time));
    let opposite = subtract(subtract(length(), Expr::integer(1)), here());
    let mut at = vars(0, own.len());
    at[time] = clamped(Expr::select(less(here(), length()), opposite, here()), own[time]);
    let dtype = builder.dtype(input);
    Ok(vec![builder.map(own, dtype, load(input, at))?])
}

/// A new axis that is `on` at the place and `off` elsewhere.
pub fn one_hot(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (places, depth, values) = (op.input(0)?, op.input(1)?, op.input(2)?);
    let depth = builder.scalar(depth).ok_or(Problem::NotConstant(1))? as i64;
    let outer = builder.shape(places);
    let axis = normal_axis(op.int("axis", -1)?, outer.len() + 1)?;
    let place_type = builder.dtype(places);
    if place_type == DType::Bool {
        return Err(Problem::Type { input: 0, dtype: place_type });
    }
    if builder.shape(values) != [2] {
        return Err(Problem::Shape("values has to hold two elements".to_string()));
    }
    let mut shape = outer.clone();
    shape.insert(axis, depth);
    Builder::check_shape(&shape)?;
    let mut at = vars(0, shape.len());
    at.remove(axis);
    // places outside of the range are off everywhere, so nothing may wrap but negative ones within it
    let place = cast(place_type, DType::I64, load(places, at));
    let wrapped = super::math::add(place.clone(), Expr::integer(depth));
    let is_here = |place: Expr| equal(place, Expr::Index(var(axis)));
    let condition = super::math::or(is_here(place), is_here(wrapped));
    let element = |at: i64| load(values, vec![Index::constant(at)]);
    let value = Expr::select(condition, element(1), element(0));
    let dtype = builder.dtype(values);
    Ok(vec![builder.map(shape, dtype, value)?])
}

/// Ones on a diagonal.
pub fn eye_like(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let shape = builder.shape(input);
    let dtype = match op.optional_int("dtype")? {
        None => builder.dtype(input),
        Some(code) => {
            DType::from_onnx(code).ok_or_else(|| Problem::AttributeValue { name: "dtype", value: code.to_string() })?
        }
    };
    if shape.len() != 2 {
        return Err(Problem::Shape(format!("{shape:?} is no matrix")));
    }
    let diagonal = op.int("k", 0)?.clamp(-(1 << 31), 1 << 31);
    let here = super::math::within(var(1).minus(&var(0)), diagonal, diagonal + 1);
    let value = Expr::guard(vec![here], literal(dtype, 1.0), literal(dtype, 0.0));
    let extents = builder.extents(input);
    Ok(vec![builder.map_over(&extents, dtype, value)?])
}
