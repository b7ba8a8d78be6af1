//! Operators whose results are as many as they find: what is not zero, what a condition takes, kinds of
//! elements, boxes. The run-time library finds and counts; extents are formulas of the count.

use super::builder::Builder;
use super::gather::{place_in, taken};
use super::math::{load, multiply, subtract, var, vars};
use super::operator::{Operator, Problem, normal_axis};
use super::reshape::reshape_to_extents;
use crate::graph::{Routine, TensorData};
use crate::workload::{Binary, DType, Expr, Index, TensorId};

/// The places of all elements that are not zero, `[rank, count]`, in the order of the elements.
pub fn non_zero(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let own = builder.extents(input);
    let places = places_of_non_zero(builder, input)?;
    let count = builder.extents(places)[0].clone();
    // ONNX has a scalar as a tensor of one element
    let extents = if own.is_empty() { vec![Index::constant(1)] } else { own };
    let mut coordinates = Vec::new();
    for axis in 0..extents.len() {
        let behind = builder.formulas.product(&extents[axis + 1..])?;
        let mut place = load(places, vars(0, 1));
        if behind.as_constant() != Some(1) {
            place = Expr::binary(Binary::Divide, place, Expr::Index(behind));
        }
        if axis > 0 {
            let rows = Expr::binary(Binary::Divide, place.clone(), Expr::Index(extents[axis].clone()));
            place = subtract(place, multiply(rows, Expr::Index(extents[axis].clone())));
        }
        coordinates.push(builder.map_over(std::slice::from_ref(&count), DType::I64, place)?);
    }
    Ok(vec![super::parts::stack(builder, &coordinates, 0)?])
}

/// The places of elements that are not zero in the order of memory, `[count]`.
fn places_of_non_zero(builder: &mut Builder, input: TensorId) -> Result<TensorId, Problem> {
    let own = builder.extents(input);
    let elements = builder.formulas.product(&own)?;
    if builder.shape(input).contains(&0) {
        return Ok(builder.constant(TensorData::from_i64(vec![0], &[])));
    }
    let routine = Routine::NonZero { elements: 0, dtype: builder.dtype(input) };
    let sizes = [elements.clone()];
    let found = builder.counting(&routine, &sizes, &[input], &elements, |count| vec![vec![count.clone()]])?;
    found.first().copied().ok_or(Problem::MissingInput(0))
}

/// The slices along an axis for which a condition holds; without an axis, the elements.
pub fn compress(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (mut input, condition) = (op.input(0)?, op.input(1)?);
    if builder.dtype(condition) != DType::Bool || builder.rank(condition) != 1 {
        return Err(Problem::Shape("the condition has to be a row of Booleans".to_string()));
    }
    let axis = match op.optional_int("axis")? {
        Some(axis) => normal_axis(axis, builder.rank(input))?,
        None => {
            let elements = builder.formulas.product(&builder.extents(input))?;
            input = reshape_to_extents(builder, input, &[elements])?;
            0
        }
    };
    // it may be shorter than the axis; what it says of elements that are not there counts for nothing
    let (own, given) = (builder.extents(input), builder.extents(condition)[0].clone());
    let condition = match builder.formulas.is_at_most(&given, &own[axis]) {
        true => condition,
        false => {
            let length = builder.formulas.lesser(&given, &own[axis])?;
            super::parts::part_of(builder, condition, 0, &Index::constant(0), &length)?
        }
    };
    Ok(vec![compressed(builder, input, axis, condition)?])
}

/// The elements of an axis for which a row of Booleans, no longer than that, is true.
pub fn compressed(
    builder: &mut Builder,
    input: TensorId,
    axis: usize,
    condition: TensorId,
) -> Result<TensorId, Problem> {
    let own = builder.extents(input);
    let places = places_of_non_zero(builder, condition)?;
    let mut extents = own.clone();
    extents[axis] = builder.extents(places)[0].clone();
    let mut indices = vars(0, own.len());
    indices[axis] = place_in(builder, places, vec![var(axis)], &own[axis]);
    taken(builder, input, &extents, indices)
}

/// One of each kind of elements, or of slices along an axis; where the first of it is; of what kind each one
/// is; and how many there are of each.
pub fn unique(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let mut input = op.input(0)?;
    let axis = op.optional_int("axis")?.map(|axis| normal_axis(axis, builder.rank(input))).transpose()?;
    let axis = match axis {
        Some(axis) => axis,
        None => {
            let elements = builder.formulas.product(&builder.extents(input))?;
            input = reshape_to_extents(builder, input, &[elements])?;
            0
        }
    };
    let (own, dtype) = (builder.extents(input), builder.dtype(input));
    if builder.shape(input).contains(&0) {
        return Err(Problem::Unsupported("Unique of no elements".to_string()));
    }
    let rows = if axis == 0 { input } else { super::layout::move_axis(builder, input, axis, 0)? };
    let others: Vec<Index> = own.iter().enumerate().filter(|(d, _)| *d != axis).map(|(_, own)| own.clone()).collect();
    let sizes = [own[axis].clone(), builder.formulas.product(&others)?];
    let sorted = op.flag("sorted", true)?;
    let routine = Routine::Unique { rows: 0, length: 0, sorted, dtype };
    let of_kinds = |count: &Index| vec![vec![count.clone()], vec![own[axis].clone()], vec![count.clone()]];
    let found = builder.counting(&routine, &sizes, &[rows], &own[axis], of_kinds)?;
    let [first, kind, counts] = found[..] else { return Err(Problem::MissingInput(0)) };
    let mut extents = own.clone();
    extents[axis] = builder.extents(first)[0].clone();
    let mut indices = vars(0, own.len());
    indices[axis] = place_in(builder, first, vec![var(axis)], &own[axis]);
    let values = taken(builder, input, &extents, indices)?;
    Ok(vec![values, first, kind, counts])
}

/// The boxes that do not overlap better ones of their class, `[count, 3]`.
pub fn non_max_suppression(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (boxes, scores) = (op.input(0)?, op.input(1)?);
    let shapes = (builder.shape(boxes), builder.shape(scores));
    let misfit = || Problem::Shape(format!("boxes of shape {:?} and scores of {:?} do not fit", shapes.0, shapes.1));
    if builder.rank(boxes) != 3 || builder.rank(scores) != 3 || shapes.0[2] != 4 {
        return Err(misfit());
    }
    builder.unify_dimensions((boxes, 0), (scores, 0), misfit)?;
    builder.unify_dimensions((boxes, 1), (scores, 2), misfit)?;
    for (position, tensor) in [boxes, scores].into_iter().enumerate() {
        if builder.dtype(tensor) != DType::F32 {
            return Err(Problem::Type { input: position, dtype: builder.dtype(tensor) });
        }
    }
    let limit = option(builder, op, 2, TensorData::from_i64(vec![1], &[0]))?;
    let overlap = option(builder, op, 3, TensorData::from_f32(vec![1], &[0.0]))?;
    let least = option(builder, op, 4, TensorData::from_f32(vec![1], &[f32::NEG_INFINITY]))?;
    let extents = builder.extents(scores);
    let most = match builder.integers(limit).as_deref() {
        Some([limit]) => builder.formulas.lesser(&Index::constant((*limit).max(0)), &extents[2])?,
        _ => extents[2].clone(),
    };
    let selected = builder.formulas.product(&[extents[0].clone(), extents[1].clone(), most.clone()])?;
    if builder.formulas.most(&selected)? == 0 {
        return Ok(vec![builder.constant(TensorData::from_i64(vec![0, 3], &[]))]);
    }
    let centred = match op.int("center_point_box", 0)? {
        0 => false,
        1 => true,
        other => {
            return Err(Problem::AttributeValue { name: "center_point_box", value: other.to_string() });
        }
    };
    let routine = Routine::NonMaxSuppression { batch: 0, classes: 0, boxes: 0, most: 0, centred };
    let sizes = [extents[0].clone(), extents[1].clone(), extents[2].clone(), most];
    let inputs = [boxes, scores, limit, overlap, least];
    let shapes = |count: &Index| vec![vec![count.clone(), Index::constant(3)], vec![extents[2].clone()]];
    let found = builder.counting(&routine, &sizes, &inputs, &selected, shapes)?;
    Ok(found.into_iter().take(1).collect())
}

/// An input of one element, or what stands for it.
fn option(builder: &mut Builder, op: &Operator, position: usize, default: TensorData) -> Result<TensorId, Problem> {
    let Some(given) = op.optional(position) else { return Ok(builder.constant(default)) };
    if builder.dtype(given) != default.dtype {
        return Err(Problem::Type { input: position, dtype: builder.dtype(given) });
    }
    if builder.shape(given).iter().product::<i64>() != 1 {
        return Err(Problem::Shape(format!("input {position} has to hold one element")));
    }
    reshape_to_extents(builder, given, &[Index::constant(1)])
}
