//! Matrix products.

use super::builder::{Affine, Builder, broadcast_shape};
use super::math::{add, float, load, multiply, var, vars};
use super::operator::{Operator, Problem};
use crate::workload::{Combiner, DType, Expr, Index, TensorId};

fn check_numbers(builder: &Builder, tensors: &[TensorId]) -> Result<(), Problem> {
    for (input, tensor) in tensors.iter().enumerate() {
        let dtype = builder.dtype(*tensor);
        if !matches!(dtype, DType::F32 | DType::I32 | DType::I64 | DType::U32 | DType::U64)
            || dtype != builder.dtype(tensors[0])
        {
            return Err(Problem::Type { input, dtype });
        }
    }
    Ok(())
}

/// `[.. batch, rows, depth] · [.. batch, depth, columns]`; operands of one dimension are a row and a column
/// that vanish.
pub fn matmul(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (a, b) = (op.input(0)?, op.input(1)?);
    check_numbers(builder, &[a, b])?;
    let dtype = builder.dtype(a);
    let product = product(builder, [a, b], dtype, &|operand, at| load([a, b][operand], at))?;
    Ok(vec![product])
}

/// The product of two tensors. `read` makes each element of an operand a number of the type: by whether it is
/// of the first (0) or of the second (1), and its indices.
pub fn product(
    builder: &mut Builder,
    [a, b]: [TensorId; 2],
    dtype: DType,
    read: &dyn Fn(usize, Vec<Index>) -> Expr,
) -> Result<TensorId, Problem> {
    builder.materialize(a)?;
    builder.materialize(b)?;
    let (left, right) = (builder.shape(a), builder.shape(b));
    let misfit = || Problem::Shape(format!("{left:?} and {right:?} cannot be multiplied"));
    let (Some((depth, left_outer)), Some(_)) = (left.split_last(), right.first()) else { return Err(misfit()) };
    let (rows, left_batch) = match left_outer.split_last() {
        Some((rows, batch)) => (Some(*rows), batch),
        None => (None, left_outer),
    };
    let (columns, right_depth, right_batch) = match right.as_slice() {
        [depth] => (None, *depth, &right[..0]),
        [batch @ .., depth, columns] => (Some(*columns), *depth, batch),
        [] => return Err(misfit()),
    };
    if [a, b].iter().any(|tensor| builder.is_run_time(*tensor)) {
        builder.fit_product(a, b, &misfit)?;
    } else if *depth != right_depth {
        return Err(misfit());
    }
    let batch = broadcast_shape(&[left_batch.to_vec(), right_batch.to_vec()]).map_err(|_| misfit())?;
    let mut shape = batch.clone();
    shape.extend(rows);
    shape.extend(columns);
    let k = var(shape.len());
    let batch_indices = |own: &[i64]| -> Vec<Index> {
        let skipped = batch.len() - own.len();
        own.iter().enumerate().map(|(d, e)| if *e == 1 { Index::constant(0) } else { var(skipped + d) }).collect()
    };
    let mut at_left = batch_indices(left_batch);
    at_left.extend(rows.map(|_| var(batch.len())));
    at_left.push(k.clone());
    let mut at_right = batch_indices(right_batch);
    at_right.push(k);
    at_right.extend(columns.map(|_| var(shape.len() - 1)));
    let value = multiply(read(0, at_left), read(1, at_right));
    builder.reduce(shape, vec![*depth], Combiner::Sum, dtype, value)
}

/// `alpha · A · B + beta · C`, with A and B transposed on demand.
pub fn gemm(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (a, b) = (op.input(0)?, op.input(1)?);
    check_numbers(builder, &[a, b])?;
    builder.materialize(a)?;
    builder.materialize(b)?;
    let dtype = builder.dtype(a);
    let (left, right) = (builder.shape(a), builder.shape(b));
    let misfit = || Problem::Shape(format!("{left:?} and {right:?} cannot be multiplied"));
    if left.len() != 2 || right.len() != 2 {
        return Err(misfit());
    }
    let (flip_a, flip_b) = (op.flag("transA", false)?, op.flag("transB", false)?);
    let oriented = |shape: &[i64], flip: bool| if flip { (shape[1], shape[0]) } else { (shape[0], shape[1]) };
    let ((rows, depth), (_, columns)) = (oriented(&left, flip_a), oriented(&right, flip_b));
    builder.unify_dimensions((a, usize::from(!flip_a)), (b, usize::from(flip_b)), misfit)?;
    let at = |flip: bool, row: usize, column: usize| {
        if flip { vec![var(column), var(row)] } else { vec![var(row), var(column)] }
    };
    let (alpha, beta) = (op.float("alpha", 1.0)?, op.float("beta", 1.0)?);
    if dtype != DType::F32 && (alpha != 1.0 || beta != 1.0) {
        return Err(Problem::Type { input: 0, dtype });
    }
    // a factor on a constant operand costs nothing
    let b = if alpha != 1.0 && builder.data(b).is_some() { scaled(builder, b, alpha)? } else { b };
    let late_alpha = if builder.data(b).is_some() { 1.0 } else { alpha };
    let shape = vec![rows, columns];
    let stage = builder.next_stage();
    let value = multiply(load(a, at(flip_a, 0, 2)), load(b, at(flip_b, 2, 1)));
    let product = builder.reduce(shape.clone(), vec![depth], Combiner::Sum, dtype, value)?;
    let addend = op.optional(2).filter(|_| beta != 0.0);
    let addend = match addend {
        Some(c) if beta != 1.0 && builder.data(c).is_some() => Some((scaled(builder, c, beta)?, 1.0)),
        other => other.map(|c| (c, beta)),
    };
    let scale = |x: Expr, factor: f64| if factor == 1.0 { x } else { multiply(float(factor), x) };
    let mut result = product;
    if addend.is_some() || late_alpha != 1.0 {
        let mut value = scale(load(product, vars(0, 2)), late_alpha);
        if let Some((c, factor)) = addend {
            let fits = builder.broadcast_shape_of(&[product, c])? == shape;
            if !fits || builder.dtype(c) != dtype {
                return Err(Problem::Shape(format!("{:?} cannot be added to {shape:?}", builder.shape(c))));
            }
            value = add(value, scale(builder.broadcast(c, &shape), factor));
        }
        result = builder.map(shape.clone(), dtype, value)?;
    }
    let bias = match addend {
        None => Some(None),
        Some((c, 1.0)) if builder.shape(c) == [columns] && builder.data(c).is_some() => Some(Some(c)),
        Some(_) => None,
    };
    if let (Some(bias), true, true) = (bias, builder.data(b).is_some(), late_alpha == 1.0)
        && builder.data(product).is_none()
    {
        let weight_axis = usize::from(!flip_b);
        builder.affine.insert(result, Affine { stage, product, weight: b, weight_axis, channel_axis: 1, bias });
    }
    Ok(vec![result])
}

fn scaled(builder: &mut Builder, tensor: TensorId, factor: f64) -> Result<TensorId, Problem> {
    let (shape, dtype) = (builder.shape(tensor), builder.dtype(tensor));
    let value = multiply(float(factor), load(tensor, vars(0, shape.len())));
    builder.map(shape, dtype, value)
}
