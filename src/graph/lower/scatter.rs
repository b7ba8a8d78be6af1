//! Operators that write at computed places.
//!
//! Where an update goes is computed by a stage; the run-time library then puts one after the other into a
//! copy of the data, since several may meet at one place.

use super::builder::Builder;
use super::gather::{check_index_type, place_in};
use super::math::{add, and, cast, gathered, less, less_equal, literal, load, multiply, subtract, var, vars, within};
use super::operator::{Operator, Problem, normal_axis};
use super::reshape::reshape_to;
use crate::graph::{Reduction, Routine};
use crate::workload::{DType, Expr, Index, TensorId};

/// How updates and data become one, if the type allows it.
fn reduction(op: &Operator, dtype: DType) -> Result<Reduction, Problem> {
    let reduction = match op.text("reduction", "none")? {
        "none" => return Ok(Reduction::Replace),
        "add" => Reduction::Add,
        "mul" => Reduction::Multiply,
        "max" => Reduction::Maximum,
        "min" => Reduction::Minimum,
        other => return Err(Problem::AttributeValue { name: "reduction", value: other.to_string() }),
    };
    if dtype == DType::Bool { Err(Problem::Type { input: 0, dtype }) } else { Ok(reduction) }
}

/// Data, places and updates, of which the last have the type of the first.
fn operands(builder: &Builder, op: &Operator) -> Result<[TensorId; 3], Problem> {
    let [data, places, updates] = [op.input(0)?, op.input(1)?, op.input(2)?];
    check_index_type(builder, 1, places)?;
    match builder.dtype(updates) {
        dtype if dtype == builder.dtype(data) => Ok([data, places, updates]),
        dtype => Err(Problem::Type { input: 2, dtype }),
    }
}

/// `result[i][places[i][j]] = updates[i][j]`, along axis 1 for example.
pub fn scatter_elements(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let [data, places, updates] = operands(builder, op)?;
    let (own, over) = (builder.extents(data), builder.extents(places));
    let axis = normal_axis(op.int("axis", 0)?, own.len())?;
    let shapes = [data, places, updates].map(|tensor| builder.shape(tensor));
    let misfit = || {
        let [data, places, updates] = &shapes;
        Problem::Shape(format!("indices of {places:?} and updates of {updates:?} do not fit {data:?}"))
    };
    if over.len() != own.len() || builder.rank(updates) != own.len() {
        return Err(misfit());
    }
    for d in 0..own.len() {
        builder.unify_dimensions((updates, d), (places, d), misfit)?;
        if d != axis {
            builder.fit_into(&over[d], &own[d], misfit)?;
        }
    }
    let mut indices: Vec<Expr> = vars(0, own.len()).into_iter().map(Expr::Index).collect();
    indices[axis] = Expr::Index(place_in(builder, places, vars(0, own.len()), &own[axis]));
    scatter(builder, op, [data, updates], &over, indices)
}

/// The last dimension of the places counts the leading dimensions of the data that they index.
pub fn scatter_nd(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let [data, places, updates] = operands(builder, op)?;
    let (own, shape) = (builder.extents(data), builder.extents(places));
    let misfit = |builder: &Builder| {
        let [data, places, updates] = [data, places, updates].map(|tensor| builder.shape(tensor));
        Problem::Shape(format!("indices of {places:?} and updates of {updates:?} do not fit {data:?}"))
    };
    let (depth, outer) = shape.split_last().ok_or_else(|| misfit(builder))?;
    let depth = depth.as_constant().and_then(|depth| usize::try_from(depth).ok());
    let depth = depth.filter(|depth| *depth <= own.len()).ok_or_else(|| misfit(builder))?;
    let wanted = [outer, &own[depth..]].concat();
    if builder.rank(updates) != wanted.len() {
        return Err(misfit(builder));
    }
    for (given, wanted) in builder.extents(updates).iter().zip(&wanted) {
        match (given.as_constant(), wanted.as_constant()) {
            (Some(given), Some(wanted)) if given != wanted => return Err(misfit(builder)),
            _ => builder.formulas.unify(given, wanted)?,
        }
    }
    let at = |d: usize| [vars(0, outer.len()), vec![Index::constant(d as i64)]].concat();
    let indices = (0..depth).map(|d| Expr::Index(place_in(builder, places, at(d), &own[d]))).collect();
    scatter(builder, op, [data, updates], outer, indices)
}

/// Puts updates into data, `[data, updates]`: over axes of extents `over`, `indices` say where along the
/// leading dimensions of the data.
fn scatter(
    builder: &mut Builder,
    op: &Operator,
    [data, updates]: [TensorId; 2],
    over: &[Index],
    indices: Vec<Expr>,
) -> Result<Vec<TensorId>, Problem> {
    let (own, dtype, depth) = (builder.extents(data), builder.dtype(data), indices.len());
    let reduction = reduction(op, dtype)?;
    if builder.shape(updates).contains(&0) {
        return Ok(vec![data]);
    }
    if builder.shape(data).contains(&0) {
        return Err(Problem::Shape(format!("nothing can be put into {:?}", builder.shape(data))));
    }
    let (blocks, block) = (builder.formulas.product(&own[..depth])?, builder.formulas.product(&own[depth..])?);
    let mut flat = Expr::integer(0);
    for (d, index) in indices.into_iter().enumerate() {
        flat = match d {
            0 => index,
            _ => add(multiply(flat, Expr::Index(own[d].clone())), index),
        };
    }
    let places = builder.map_over(over, DType::I64, flat)?;
    let count = builder.formulas.product(over)?;
    let routine = Routine::Scatter { blocks: 0, block: 0, updates: 0, reduction, dtype };
    builder.library(&routine, &[blocks, block, count], &[data, places, updates], &[own])
}

/// A cache with an update in a range of one axis, which starts elsewhere in each row of the batch. Each
/// element is written once, so it is read from where it comes from.
pub fn tensor_scatter(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (past, update) = (op.input(0)?, op.input(1)?);
    let (own, shape, dtype) = (builder.shape(past), builder.shape(update), builder.dtype(past));
    let axis = normal_axis(op.int("axis", -2)?, own.len())?;
    let fits = shape.len() == own.len() && (0..own.len()).all(|d| shape[d] == own[d] || d == axis && shape[d] < own[d]);
    if axis == 0 || !fits {
        return Err(Problem::Shape(format!("an update of shape {shape:?} does not fit {own:?} along axis {axis}")));
    }
    if builder.dtype(update) != dtype {
        return Err(Problem::Type { input: 1, dtype: builder.dtype(update) });
    }
    if shape.contains(&0) {
        return Ok(vec![past]);
    }
    let first = match op.optional(2) {
        None => Expr::integer(0),
        Some(first) => {
            check_index_type(builder, 2, first)?;
            if builder.shape(first) != [own[0]] {
                return Err(Problem::Shape(format!("write_indices has shape {:?}", builder.shape(first))));
            }
            cast(builder.dtype(first), DType::I64, load(first, vec![var(0)]))
        }
    };
    let mut place = Index::value(subtract(Expr::Index(var(axis)), first));
    match op.text("mode", "linear")? {
        "linear" => {}
        "circular" => place = place.modulo(own[axis]),
        other => return Err(Problem::AttributeValue { name: "mode", value: other.to_string() }),
    }
    let number = || Expr::Index(place.clone());
    let inside = and(less_equal(Expr::integer(0), number()), less(number(), Expr::integer(shape[axis])));
    let mut indices = vars(0, own.len());
    indices[axis] = place.clone().modulo(shape[axis]);
    let value = Expr::select(inside, load(update, indices), load(past, vars(0, own.len())));
    Ok(vec![builder.map(own, dtype, value)?])
}

/// Undoes a pooling: each element goes to where its flat index says, among zeros.
pub fn max_unpool(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (input, places) = (op.input(0)?, op.input(1)?);
    check_index_type(builder, 1, places)?;
    let (own, dtype) = (builder.shape(input), builder.dtype(input));
    let kernel = op.ints("kernel_shape")?.ok_or(Problem::MissingAttribute("kernel_shape"))?.to_vec();
    let strides = op.ints("strides")?.map_or_else(|| vec![1; kernel.len()], <[i64]>::to_vec);
    let pads = op.ints("pads")?.map_or_else(|| vec![0; 2 * kernel.len()], <[i64]>::to_vec);
    if own.len() != kernel.len() + 2 || strides.len() != kernel.len() || pads.len() != 2 * kernel.len() {
        return Err(Problem::Shape(format!("kernel {kernel:?} does not fit {own:?}")));
    }
    if builder.shape(places) != own {
        return Err(Problem::Shape(format!("indices of shape {:?} for {own:?}", builder.shape(places))));
    }
    let mut inferred = own[..2].to_vec();
    for (d, size) in kernel.iter().enumerate() {
        let padding = pads[d].checked_add(pads[kernel.len() + d]);
        let end = (own[d + 2] - 1).checked_mul(strides[d]).and_then(|last| last.checked_sub(padding?));
        let extent = end.and_then(|end| end.checked_add(*size));
        inferred.push(extent.ok_or_else(|| Problem::TooLarge(own.clone()))?);
    }
    let elements = Builder::check_shape(&inferred)?;
    if elements == 0 || own.contains(&0) {
        return Err(Problem::Shape(format!("{own:?} cannot become {inferred:?}")));
    }
    let zeros = builder.map(vec![elements], dtype, literal(dtype, 0.0))?;
    let place = Expr::Index(gathered(load(places, vars(0, own.len())), elements));
    let count = Builder::check_shape(&own)?;
    let places = builder.map(own, DType::I64, place)?;
    let routine = Routine::Scatter { blocks: 0, block: 0, updates: 0, reduction: Reduction::Replace, dtype };
    let sizes = [elements, 1, count].map(Index::constant);
    let flat = builder.library(&routine, &sizes, &[zeros, places, input], &[vec![Index::constant(elements)]])?[0];
    let result = reshape_to(builder, flat, inferred.clone())?;
    let Some(wanted) = op.optional(2) else { return Ok(vec![result]) };
    let wanted = builder.integers(wanted).ok_or(Problem::NotConstant(2))?;
    Builder::check_shape(&wanted)?;
    if wanted.len() != inferred.len() || wanted.iter().zip(&inferred).any(|(wanted, own)| wanted < own) {
        return Err(Problem::Shape(format!("{inferred:?} does not fit into {wanted:?}")));
    }
    let inside = (0..wanted.len()).filter(|d| wanted[*d] > inferred[*d]).map(|d| within(var(d), 0, inferred[d]));
    let inside: Vec<_> = inside.collect();
    if inside.is_empty() {
        return Ok(vec![result]);
    }
    let value = Expr::guard(inside, load(result, vars(0, wanted.len())), literal(dtype, 0.0));
    Ok(vec![builder.map(wanted, dtype, value)?])
}
