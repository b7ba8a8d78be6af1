//! Operators that only move elements: each is one map stage that reads through an index map.

use super::builder::{Builder, broadcast_shape};
use super::math::{literal, load, var, vars, within};
use super::operator::{Operator, Problem, normal_axes, normal_axis};
use super::reshape::{self, reshape_to};
use super::slice;
use crate::workload::{Expr, Index, TensorId};

pub fn identity(_: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    Ok(vec![op.input(0)?])
}

pub fn reshape(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let own = builder.shape(input);
    if builder.is_run_time(input) || builder.integers(op.input(1)?).is_none() {
        return Ok(vec![reshape::reshape(builder, op)?]);
    }
    let wanted = builder.integers(op.input(1)?).ok_or(Problem::NotConstant(1))?;
    let keeps_zero = op.flag("allowzero", false)?;
    let mut shape = Vec::with_capacity(wanted.len());
    for (d, extent) in wanted.iter().enumerate() {
        shape.push(match extent {
            0 if !keeps_zero => *own.get(d).ok_or_else(|| Problem::Shape(format!("{own:?} has no dimension {d}")))?,
            -1 => 1,
            other => *other,
        });
    }
    if let Some(free) = wanted.iter().position(|extent| *extent == -1) {
        let (all, others) = (own.iter().product::<i64>(), Builder::check_shape(&shape)?);
        if others == 0 || all % others != 0 || wanted.iter().filter(|extent| **extent == -1).count() > 1 {
            return Err(Problem::Shape(format!("shape {own:?} cannot become {wanted:?}")));
        }
        shape[free] = all / others;
    }
    Ok(vec![reshape_to(builder, input, shape)?])
}

pub fn flatten(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let shape = builder.shape(input);
    let axis = op.int("axis", 1)?;
    let at = if axis == shape.len() as i64 { shape.len() } else { normal_axis(axis, shape.len())? };
    if builder.is_run_time(input) {
        let extents = builder.extents(input);
        let flat = [builder.formulas.product(&extents[..at])?, builder.formulas.product(&extents[at..])?];
        return Ok(vec![reshape::reshape_to_extents(builder, input, &flat)?]);
    }
    let flat = vec![shape[..at].iter().product(), shape[at..].iter().product()];
    Ok(vec![reshape_to(builder, input, flat)?])
}

/// Axes are an attribute before opset 13, an input since.
fn axes(builder: &Builder, op: &Operator) -> Result<Option<Vec<i64>>, Problem> {
    if op.opset < 13 {
        return Ok(op.ints("axes")?.map(<[i64]>::to_vec));
    }
    op.optional(1).map(|tensor| builder.integers(tensor).ok_or(Problem::NotConstant(1))).transpose()
}

pub fn squeeze(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let shape = builder.shape(input);
    let dropped = match axes(builder, op)? {
        Some(axes) => normal_axes(&axes, shape.len())?,
        None => (0..shape.len()).filter(|d| builder.tensor(input).is_unit(*d)).collect(),
    };
    if builder.is_run_time(input) {
        let extents = builder.extents(input);
        dropped.iter().try_for_each(|d| builder.formulas.unify(&extents[*d], &Index::constant(1)))?;
        let kept: Vec<Index> =
            (0..extents.len()).filter(|d| !dropped.contains(d)).map(|d| extents[d].clone()).collect();
        return Ok(vec![reshape::reshape_to_extents(builder, input, &kept)?]);
    }
    if let Some(d) = dropped.iter().find(|d| shape[**d] != 1) {
        return Err(Problem::Shape(format!("dimension {d} of {shape:?} cannot be squeezed")));
    }
    let kept = (0..shape.len()).filter(|d| !dropped.contains(d)).map(|d| shape[d]).collect();
    Ok(vec![reshape_to(builder, input, kept)?])
}

pub fn unsqueeze(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let axes = axes(builder, op)?.ok_or(Problem::MissingAttribute("axes"))?;
    let own = builder.shape(input);
    let new = normal_axes(&axes, own.len() + axes.len())?;
    if builder.is_run_time(input) {
        let mut extents = builder.extents(input).into_iter();
        let one = || Index::constant(1);
        let shape: Vec<Index> = (0..own.len() + axes.len())
            .map(|d| if new.contains(&d) { one() } else { extents.next().unwrap_or_else(one) })
            .collect();
        return Ok(vec![reshape::reshape_to_extents(builder, input, &shape)?]);
    }
    let mut extents = own.iter();
    let shape = (0..own.len() + axes.len())
        .map(|d| if new.contains(&d) { 1 } else { extents.next().copied().unwrap_or(1) })
        .collect();
    Ok(vec![reshape_to(builder, input, shape)?])
}

pub fn transpose(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let own = builder.shape(input);
    let order = match op.ints("perm")? {
        Some(perm) => {
            if perm.len() != own.len() {
                return Err(Problem::AttributeValue { name: "perm", value: format!("{perm:?}") });
            }
            normal_axes(perm, own.len())?;
            perm.iter().map(|axis| normal_axis(*axis, own.len())).collect::<Result<Vec<_>, _>>()?
        }
        None => (0..own.len()).rev().collect(),
    };
    Ok(vec![permute(builder, input, &order)?])
}

/// Dimension `d` of the result is dimension `order[d]` of the input.
pub fn permute(builder: &mut Builder, input: TensorId, order: &[usize]) -> Result<TensorId, Problem> {
    if order.iter().enumerate().all(|(d, from)| d == *from) {
        return Ok(input);
    }
    let own = builder.shape(input);
    let mut indices = vec![Index::constant(0); own.len()];
    for (d, from) in order.iter().enumerate() {
        indices[*from] = var(d);
    }
    let dtype = builder.dtype(input);
    builder.map(order.iter().map(|from| own[*from]).collect(), dtype, load(input, indices))
}

pub fn expand(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    if builder.is_run_time(input) || builder.integers(op.input(1)?).is_none() {
        let wanted = builder.numbers_input(op, 1, 0)?;
        let own = builder.extents(input);
        let extents = builder.broadcast_extents(&[own.clone(), wanted])?;
        if extents == own {
            return Ok(vec![input]);
        }
        let shape = extents.iter().map(|extent| builder.formulas.most(extent)).collect::<Result<Vec<_>, _>>()?;
        let (dtype, value) = (builder.dtype(input), builder.broadcast(input, &shape));
        return Ok(vec![builder.map_over(&extents, dtype, value)?]);
    }
    let wanted = builder.integers(op.input(1)?).ok_or(Problem::NotConstant(1))?;
    Builder::check_shape(&wanted)?;
    let own = builder.shape(input);
    let shape = broadcast_shape(&[own.clone(), wanted])?;
    if shape == own {
        return Ok(vec![input]);
    }
    let (dtype, value) = (builder.dtype(input), builder.broadcast(input, &shape));
    Ok(vec![builder.map(shape, dtype, value)?])
}

/// `Tile` where extents, or how often they are repeated, are known only when the network runs.
fn tile_in_run(builder: &mut Builder, op: &Operator) -> Result<TensorId, Problem> {
    let input = op.input(0)?;
    let (own, repeats) = (builder.extents(input), builder.numbers_input(op, 1, 0)?);
    if repeats.len() != own.len() {
        return Err(Problem::Shape(format!("{} repeats cannot tile {} dimensions", repeats.len(), own.len())));
    }
    let one = Index::constant(1);
    let (mut extents, mut indices) = (own.clone(), vars(0, own.len()));
    for (d, repeat) in repeats.iter().enumerate().filter(|(_, repeat)| **repeat != one) {
        let Some(extent) = own[d].as_constant() else { return Err(builder.unsupported_extents()) };
        builder.formulas.require(repeat, "a number of repeats")?;
        extents[d] = builder.formulas.product(&[own[d].clone(), repeat.clone()])?;
        indices[d] = var(d).modulo(extent.max(1));
    }
    let dtype = builder.dtype(input);
    builder.map_over(&extents, dtype, load(input, indices))
}

pub fn tile(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    if builder.is_run_time(input) || builder.integers(op.input(1)?).is_none() {
        return Ok(vec![tile_in_run(builder, op)?]);
    }
    let repeats = builder.integers(op.input(1)?).ok_or(Problem::NotConstant(1))?;
    let own = builder.shape(input);
    if repeats.len() != own.len() || repeats.iter().any(|r| *r < 0) {
        return Err(Problem::Shape(format!("{repeats:?} cannot tile {own:?}")));
    }
    let shape: Option<Vec<i64>> = own.iter().zip(&repeats).map(|(extent, r)| extent.checked_mul(*r)).collect();
    let shape = shape.ok_or_else(|| Problem::TooLarge(repeats.clone()))?;
    let indices = own.iter().enumerate().map(|(d, extent)| var(d).modulo((*extent).max(1))).collect();
    let dtype = builder.dtype(input);
    Ok(vec![builder.map(shape, dtype, load(input, indices))?])
}

/// The tensor with one of its axes in another place.
pub fn move_axis(builder: &mut Builder, tensor: TensorId, from: usize, to: usize) -> Result<TensorId, Problem> {
    let mut order: Vec<usize> = (0..builder.rank(tensor)).collect();
    let moved = order.remove(from);
    order.insert(to, moved);
    permute(builder, tensor, &order)
}

/// Which elements of a dimension to take.
#[derive(Clone, Copy, Debug)]
pub struct Strided {
    pub start: i64,
    pub step: i64,
    pub extent: i64,
}

/// A part of a tensor, by axis.
pub fn strided(builder: &mut Builder, input: TensorId, parts: &[(usize, Strided)]) -> Result<TensorId, Problem> {
    let own = builder.shape(input);
    let mut shape = own.clone();
    let mut indices = vars(0, own.len());
    for (axis, part) in parts {
        shape[*axis] = part.extent;
        indices[*axis] = var(*axis).times(part.step).plus_constant(part.start);
    }
    if shape == own && parts.iter().all(|(_, part)| part.step == 1) {
        return Ok(input);
    }
    let dtype = builder.dtype(input);
    builder.map(shape, dtype, load(input, indices))
}

/// Bounds are attributes before opset 10, inputs since.
pub fn slice(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let own = builder.shape(input);
    let mut bounds = op.inputs.iter().skip(1).flatten();
    if builder.is_run_time(input) || op.opset >= 10 && bounds.any(|b| builder.integers(b.tensor).is_none()) {
        return Ok(vec![slice::slice(builder, op)?]);
    }
    let (starts, ends, axes, steps) = if op.opset < 10 {
        let attribute = |name| op.ints(name).map(|values| values.map(<[i64]>::to_vec));
        let starts = attribute("starts")?.ok_or(Problem::MissingAttribute("starts"))?;
        (starts, attribute("ends")?.ok_or(Problem::MissingAttribute("ends"))?, attribute("axes")?, None)
    } else {
        let given = |position| -> Result<Option<Vec<i64>>, Problem> {
            let read = |tensor| builder.integers(tensor).ok_or(Problem::NotConstant(position));
            op.optional(position).map(read).transpose()
        };
        let starts = given(1)?.ok_or(Problem::MissingInput(1))?;
        (starts, given(2)?.ok_or(Problem::MissingInput(2))?, given(3)?, given(4)?)
    };
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return Err(Problem::Shape("starts, ends, axes and steps differ in length".to_string()));
    }
    normal_axes(&axes, own.len())?;
    let mut parts = Vec::new();
    for (((start, end), axis), step) in starts.iter().zip(&ends).zip(&axes).zip(&steps) {
        let axis = normal_axis(*axis, own.len())?;
        parts.push((axis, range_of_slice(own[axis], *start, *end, *step)?));
    }
    Ok(vec![strided(builder, input, &parts)?])
}

/// Negative bounds count from the end; all are clamped to the dimension, as in Python.
fn range_of_slice(extent: i64, start: i64, end: i64, step: i64) -> Result<Strided, Problem> {
    let from_front = |bound: i64| if bound < 0 { bound.saturating_add(extent) } else { bound };
    let (start, end) = (from_front(start), from_front(end));
    // a step beyond the dimension takes one element, whatever it is
    let step = step.clamp(-extent - 1, extent + 1);
    let (start, length) = match step {
        0 => return Err(Problem::AttributeValue { name: "steps", value: "0".to_string() }),
        1.. => {
            let (start, end) = (start.clamp(0, extent), end.clamp(0, extent));
            (start, end - start)
        }
        _ => {
            let (start, end) = (start.clamp(-1, extent - 1), end.clamp(-1, extent - 1));
            (start, start - end)
        }
    };
    let size = step.abs();
    Ok(Strided { start, step, extent: if length <= 0 { 0 } else { (length + size - 1) / size } })
}

/// `DepthToSpace` and `SpaceToDepth`, for `[batch, channels, height, width]`.
pub fn depth_and_space(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let shape = builder.shape(input);
    let block = op.optional_int("blocksize")?.ok_or(Problem::MissingAttribute("blocksize"))?;
    let [n, c, h, w] =
        <[i64; 4]>::try_from(shape).map_err(|s| Problem::Shape(format!("{s:?} is not 4-dimensional")))?;
    let bad_block = || Problem::AttributeValue { name: "blocksize", value: block.to_string() };
    if !(1..1 << 15).contains(&block) {
        return Err(bad_block());
    }
    let (split, order, merged): ([i64; 6], [usize; 6], [i64; 4]) = if op.kind == "SpaceToDepth" {
        if h % block != 0 || w % block != 0 {
            return Err(bad_block());
        }
        let split = [n, c, h / block, block, w / block, block];
        (split, [0, 3, 5, 1, 2, 4], [n, c * block * block, h / block, w / block])
    } else {
        if c % (block * block) != 0 {
            return Err(bad_block());
        }
        let depth = c / (block * block);
        let merged = [n, depth, h * block, w * block];
        match op.text("mode", "DCR")? {
            "DCR" => ([n, block, block, depth, h, w], [0, 3, 4, 1, 5, 2], merged),
            "CRD" => ([n, depth, block, block, h, w], [0, 1, 4, 2, 5, 3], merged),
            other => return Err(Problem::AttributeValue { name: "mode", value: other.to_string() }),
        }
    };
    let split = reshape_to(builder, input, split.to_vec())?;
    let moved = permute(builder, split, &order)?;
    Ok(vec![reshape_to(builder, moved, merged.to_vec())?])
}

/// Keeps the elements on one side of a diagonal.
pub fn trilu(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let shape = builder.shape(input);
    let rank = shape.len();
    if rank < 2 {
        return Err(Problem::Shape(format!("{shape:?} is no matrix")));
    }
    let diagonal = match op.optional(1) {
        None => 0,
        Some(tensor) => match builder.integers(tensor).as_deref() {
            Some([k]) => (*k).clamp(-(1 << 31), 1 << 31),
            _ => return Err(Problem::NotConstant(1)),
        },
    };
    let distance = var(rank - 1).minus(&var(rank - 2));
    let extents = builder.extents(input);
    let (rows, columns) = (shape[rank - 2], shape[rank - 1]);
    let kept = match op.flag("upper", true)? {
        true => within(distance, diagonal, columns.max(diagonal)),
        false => within(distance, (-rows).min(diagonal), diagonal + 1),
    };
    let dtype = builder.dtype(input);
    let value = Expr::guard(vec![kept], load(input, vars(0, rank)), literal(dtype, 0.0));
    Ok(vec![builder.map_over(&extents, dtype, value)?])
}
