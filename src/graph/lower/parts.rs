//! Tensors that lie one after the other along an axis: put together, and taken apart.

use super::builder::Builder;
use super::layout::{Strided, move_axis, strided};
use super::math::{literal, load, var, vars, within};
use super::operator::{Operator, Problem, normal_axis};
use super::reshape;
use crate::workload::{Condition, Expr, Index, TensorId};

/// One stage reads at most this many parts.
const MOST_PARTS: usize = 64;

pub fn concat(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let inputs = op.all_inputs()?;
    let rank = builder.rank(inputs[0]);
    let axis = op.optional_int("axis")?.ok_or(Problem::MissingAttribute("axis"))?;
    let axis = normal_axis(axis, rank)?;
    let (first, dtype) = (builder.shape(inputs[0]), builder.dtype(inputs[0]));
    for (position, input) in inputs.iter().enumerate() {
        let shape = builder.shape(*input);
        if builder.dtype(*input) != dtype {
            return Err(Problem::Type { input: position, dtype: builder.dtype(*input) });
        }
        let misfit = || Problem::Shape(format!("{first:?} and {shape:?} differ beside axis {axis}"));
        if shape.len() != rank {
            return Err(misfit());
        }
        for d in (0..rank).filter(|d| *d != axis) {
            builder.unify_dimensions((inputs[0], d), (*input, d), misfit)?;
        }
    }
    let nothing = inputs[0];
    let parts: Vec<TensorId> = inputs.into_iter().filter(|input| builder.shape(*input)[axis] > 0).collect();
    if parts.is_empty() {
        let extents = builder.extents(nothing);
        return Ok(vec![builder.map_over(&extents, dtype, literal(dtype, 0.0))?]);
    }
    Ok(vec![concatenated(builder, parts, axis)?])
}

/// Tensors that fit one another, one after the other along an axis.
fn concatenated(builder: &mut Builder, mut parts: Vec<TensorId>, axis: usize) -> Result<TensorId, Problem> {
    while parts.len() > MOST_PARTS {
        let mut joined = Vec::new();
        for some in parts.chunks(MOST_PARTS) {
            joined.push(join(builder, some, axis)?);
        }
        parts = joined;
    }
    join(builder, &parts, axis)
}

/// Each part guarded by its range of the axis, the later ones inside of the alternative of the earlier.
pub fn join(builder: &mut Builder, parts: &[TensorId], axis: usize) -> Result<TensorId, Problem> {
    if let [only] = parts {
        return Ok(*only);
    }
    if parts.iter().any(|part| builder.is_run_time(*part)) {
        return join_in_run(builder, parts, axis);
    }
    let (mut shape, dtype) = (builder.shape(parts[0]), builder.dtype(parts[0]));
    let extents: Vec<i64> = parts.iter().map(|part| builder.shape(*part)[axis]).collect();
    shape[axis] = extents.iter().sum();
    let mut end = shape[axis];
    let mut value = literal(dtype, 0.0);
    for (part, extent) in parts.iter().zip(&extents).rev() {
        let start = end - extent;
        let mut indices = vars(0, shape.len());
        indices[axis] = var(axis).plus_constant(-start);
        value = Expr::guard(vec![within(var(axis), start, end)], load(*part, indices), value);
        end = start;
    }
    builder.map(shape, dtype, value)
}

/// The same of parts whose extents are known only when the network runs.
fn join_in_run(builder: &mut Builder, parts: &[TensorId], axis: usize) -> Result<TensorId, Problem> {
    let (mut extents, dtype) = (builder.extents(parts[0]), builder.dtype(parts[0]));
    let mut end = Index::constant(0);
    let mut places = Vec::new();
    for part in parts {
        let extent = builder.extents(*part)[axis].clone();
        places.push((*part, end.clone(), extent.clone()));
        end = end.plus(&extent);
    }
    extents[axis] = end;
    let mut value = literal(dtype, 0.0);
    for (part, start, extent) in places.into_iter().rev() {
        let mut indices = vars(0, extents.len());
        indices[axis] = var(axis).minus(&start);
        let most = builder.shape(part)[axis];
        let open = Some(&extent).filter(|extent| extent.as_constant().is_none());
        let inside = Condition::within(&indices[axis], open, most);
        value = Expr::guard(inside, load(part, indices), value);
    }
    builder.map_over(&extents, dtype, value)
}

pub fn split(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let own = builder.extents(input);
    let axis = normal_axis(op.int("axis", 0)?, own.len())?;
    let given = match (op.opset < 13, op.optional(1)) {
        (true, _) => op.ints("split")?.map(|sizes| sizes.iter().map(|size| Index::constant(*size)).collect()),
        (false, None) => None,
        (false, Some(_)) => Some(builder.numbers_input(op, 1, 0)?),
    };
    let count = op.outputs.len();
    let sizes: Vec<Index> = match given {
        Some(sizes) => sizes,
        None => {
            let parts = op.int("num_outputs", count as i64)?;
            if parts < 1 || parts != count as i64 {
                return Err(Problem::AttributeValue { name: "num_outputs", value: parts.to_string() });
            }
            equal_parts(builder, &own[axis], parts)?
        }
    };
    let total = sizes.iter().fold(Index::constant(0), |sum, size| sum.plus(size));
    let is_misfit = total.as_constant().zip(own[axis].as_constant()).is_some_and(|(total, own)| total != own);
    if is_misfit || sizes.len() != count || sizes.iter().any(|size| size.as_constant().is_some_and(|size| size < 0)) {
        let (shape, sizes) = (builder.shape(input), sizes.iter().map(|size| builder.formulas.spelled(size)));
        let sizes = sizes.collect::<Vec<_>>().join(", ");
        return Err(Problem::Shape(format!("{shape:?} cannot be split into [{sizes}] along axis {axis}")));
    }
    builder.formulas.unify(&total, &own[axis])?;
    let mut start = Index::constant(0);
    let mut parts = Vec::new();
    for size in sizes {
        parts.push(part_of(builder, input, axis, &start, &size)?);
        start = start.plus(&size);
    }
    Ok(parts)
}

/// As many parts of one size as there are; the last one is smaller where they do not come out even.
fn equal_parts(builder: &mut Builder, extent: &Index, parts: i64) -> Result<Vec<Index>, Problem> {
    let size = builder.formulas.simple(&extent.clone().plus_constant(parts - 1).floor_div(parts));
    let (mut sizes, mut left) = (Vec::new(), extent.clone());
    for _ in 0..parts {
        let part = builder.formulas.lesser(&size, &left)?;
        left = left.minus(&part);
        sizes.push(part);
    }
    Ok(sizes)
}

/// The elements along an axis from a place on.
pub(super) fn part_of(
    builder: &mut Builder,
    input: TensorId,
    axis: usize,
    start: &Index,
    size: &Index,
) -> Result<TensorId, Problem> {
    if let (Some(start), Some(extent), false) = (start.as_constant(), size.as_constant(), builder.is_run_time(input)) {
        return strided(builder, input, &[(axis, Strided { start, step: 1, extent })]);
    }
    let (mut extents, dtype) = (builder.extents(input), builder.dtype(input));
    extents[axis].clone_from(size);
    let mut indices = vars(0, extents.len());
    indices[axis] = var(axis).plus(start);
    let guards = builder.unproven(input, &extents, &indices)?;
    builder.map_over(&extents, dtype, Expr::guard(guards, load(input, indices), literal(dtype, 0.0)))
}

/// One element along an axis, which vanishes.
pub fn element(builder: &mut Builder, tensor: TensorId, axis: usize, place: i64) -> Result<TensorId, Problem> {
    let part = strided(builder, tensor, &[(axis, Strided { start: place, step: 1, extent: 1 })])?;
    let mut extents = builder.extents(part);
    extents.remove(axis);
    reshape::reshape_to_extents(builder, part, &extents)
}

/// Tensors of one shape, one after the other along a new axis; there is at least one.
pub fn stack(builder: &mut Builder, parts: &[TensorId], axis: usize) -> Result<TensorId, Problem> {
    let first = *parts.first().ok_or(Problem::MissingInput(0))?;
    let (shape, dtype) = (builder.shape(first), builder.dtype(first));
    if let Some(other) = parts.iter().find(|part| builder.shape(**part) != shape || builder.dtype(**part) != dtype) {
        return Err(Problem::Shape(format!("{shape:?} and {:?} cannot be stacked", builder.shape(*other))));
    }
    for part in &parts[1..] {
        let (a, b) = (builder.extents(first), builder.extents(*part));
        a.iter().zip(&b).try_for_each(|(a, b)| builder.formulas.unify(a, b))?;
    }
    let mut extents = builder.extents(first);
    extents.insert(axis, Index::constant(1));
    let parts = parts.iter().map(|part| reshape::reshape_to_extents(builder, *part, &extents));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    concatenated(builder, parts, axis)
}

/// The parts of a tensor along its leading axis, one after the other along one of theirs.
pub fn chained(builder: &mut Builder, stacked: TensorId, axis: usize) -> Result<TensorId, Problem> {
    let moved = move_axis(builder, stacked, 0, axis)?;
    let mut extents = builder.extents(moved);
    let own = extents.remove(axis + 1);
    extents[axis] = builder.formulas.product(&[extents[axis].clone(), own])?;
    reshape::reshape_to_extents(builder, moved, &extents)
}
