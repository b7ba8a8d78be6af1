//! Normalisations: by running statistics, and by those of the tensor itself.

use super::builder::{Affine, Builder};
use super::math::{add, float, load, multiply, reciprocal_sqrt, square, subtract, var, vars};
use super::operator::{Operator, Problem, normal_axes, normal_axis};
use super::reduction::Axes;
use super::reshape::reshape_to;
use crate::workload::{Combiner, DType, Expr, Index, TensorId};

fn float_input(builder: &Builder, op: &Operator) -> Result<(TensorId, Vec<i64>), Problem> {
    let x = op.input(0)?;
    match builder.dtype(x) {
        DType::F32 => Ok((x, builder.shape(x))),
        dtype => Err(Problem::Type { input: 0, dtype }),
    }
}

/// There is one float for each of so many channels.
fn check_channels(builder: &Builder, tensors: &[TensorId], channels: i64) -> Result<(), Problem> {
    match tensors.iter().find(|t| builder.shape(**t) != [channels] || builder.dtype(**t) != DType::F32) {
        Some(tensor) => Err(Problem::Shape(format!("{:?} is not {channels} floats", builder.shape(*tensor)))),
        None => Ok(()),
    }
}

/// With running statistics, `x · scale + shift` for each channel, both computed here; folded into a preceding
/// convolution or matrix product where nothing else reads that one's result.
pub fn batch(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (x, shape) = float_input(builder, op)?;
    let trains = op.flag("training_mode", false)?;
    if !trains && (1..op.outputs.len()).any(|output| op.wants_output(output)) {
        return Err(Problem::Unsupported("training before operator set 14".to_string()));
    }
    if shape.len() < 2 || !op.flag("spatial", true)? {
        return Err(Problem::Unsupported(format!("statistics for each element of {shape:?}")));
    }
    let [scale, bias, mean, variance] = [op.input(1)?, op.input(2)?, op.input(3)?, op.input(4)?];
    check_channels(builder, &[scale, bias, mean, variance], shape[1])?;
    let epsilon = op.float("epsilon", 1e-5)?;
    if trains {
        return batch_in_training(builder, op, x, epsilon);
    }
    let at = |tensor: TensorId| load(tensor, vec![var(0)]);
    let factor = multiply(at(scale), reciprocal_sqrt(add(at(variance), float(epsilon))));
    let factor = builder.map(vec![shape[1]], DType::F32, factor)?;
    let shift = subtract(at(bias), multiply(at(mean), at(factor)));
    let shift = builder.map(vec![shape[1]], DType::F32, shift)?;
    if let Some(result) = fold_affine(builder, op.is_only_reader(0), x, Some(factor), Some(shift))? {
        return Ok(vec![result]);
    }
    let by_channel = |tensor: TensorId| load(tensor, vec![var(1)]);
    let value = add(multiply(load(x, vars(0, shape.len())), by_channel(factor)), by_channel(shift));
    Ok(vec![builder.map(shape, DType::F32, value)?])
}

/// With the statistics of the batch itself, by channel; they move the running ones, which are the further
/// results.
fn batch_in_training(
    builder: &mut Builder,
    op: &Operator,
    x: TensorId,
    epsilon: f64,
) -> Result<Vec<TensorId>, Problem> {
    let shape = builder.shape(x);
    let over = Axes::new(&shape, (0..shape.len()).filter(|d| *d != 1).collect());
    let mean_of = over.mean(builder, x)?;
    let total = over.reduce(builder, Combiner::Sum, DType::F32, load(x, over.indices.clone()))?;
    let mean = over.finish(builder, total, &mean_of)?;
    let own = || vars(0, shape.len());
    let by_channel = |tensor: TensorId| load(tensor, vec![var(1)]);
    let centred = builder.map(shape.clone(), DType::F32, subtract(load(x, own()), by_channel(mean)))?;
    let squares = over.reduce(builder, Combiner::Sum, DType::F32, square(load(centred, over.indices.clone())))?;
    let variance = over.finish(builder, squares, &mean_of)?;
    let factor = multiply(by_channel(op.input(1)?), reciprocal_sqrt(add(by_channel(variance), float(epsilon))));
    let value = add(multiply(load(centred, own()), factor), by_channel(op.input(2)?));
    let mut results = vec![builder.map(shape.clone(), DType::F32, value)?];
    let momentum = op.float("momentum", 0.9)?;
    for (running, current) in [(op.input(3)?, mean), (op.input(4)?, variance)] {
        let at = |tensor: TensorId| load(tensor, vec![var(0)]);
        let value = add(multiply(at(running), float(momentum)), multiply(at(current), float(1.0 - momentum)));
        results.push(builder.map(vec![shape[1]], DType::F32, value)?);
    }
    Ok(results)
}

/// Lets a convolution or matrix product absorb `y · factor + shift`, both `[channels]`; `None` where `y` is
/// none whose result is read here only, or something is not constant.
pub fn fold_affine(
    builder: &mut Builder,
    only_reader: bool,
    y: TensorId,
    factor: Option<TensorId>,
    shift: Option<TensorId>,
) -> Result<Option<TensorId>, Problem> {
    let Some(affine) = builder.affine.get(&y).filter(|_| only_reader).cloned() else { return Ok(None) };
    let Affine { stage, product, weight, weight_axis, channel_axis, bias } = affine;
    if factor.into_iter().chain(shift).any(|tensor| builder.data(tensor).is_none()) {
        return Ok(None);
    }
    let at = |tensor: TensorId| load(tensor, vec![var(0)]);
    let scaled = |x: Expr| factor.map_or(x.clone(), |factor| multiply(x, at(factor)));
    let terms: Vec<Expr> = bias.map(|bias| scaled(at(bias))).into_iter().chain(shift.map(at)).collect();
    let shape = builder.shape(y);
    let channels = shape[channel_axis];
    let new_bias = match terms.into_iter().reduce(add) {
        Some(sum) => Some(builder.map(vec![channels], DType::F32, sum)?),
        None => None,
    };
    let mut new_weight = weight;
    if let Some(factor) = factor {
        let weight_shape = builder.shape(weight);
        let own = load(weight, vars(0, weight_shape.len()));
        new_weight = builder.map(weight_shape, DType::F32, multiply(own, load(factor, vec![var(weight_axis)])))?;
    }
    // constants that are too large to fold stay as they are
    if builder.data(new_weight).is_none() || new_bias.is_some_and(|bias| builder.data(bias).is_none()) {
        return Ok(None);
    }
    builder.replace_load(stage, weight, new_weight);
    let result = match new_bias {
        Some(bias) => {
            let value = add(load(product, vars(0, shape.len())), load(bias, vec![var(channel_axis)]));
            builder.map(shape, DType::F32, value)?
        }
        None => product,
    };
    builder.affine.remove(&y);
    builder
        .affine
        .insert(result, Affine { stage, product, weight: new_weight, weight_axis, channel_axis, bias: new_bias });
    Ok(Some(result))
}

/// `Mul` and `Add` by a constant for each channel, where they can be folded into what computes `y`.
pub fn fold_channel_constant(builder: &mut Builder, op: &Operator) -> Result<Option<TensorId>, Problem> {
    for (position, other) in [(0, 1), (1, 0)] {
        let (y, constant) = (op.input(position)?, op.input(other)?);
        let Some(channel_axis) = builder.affine.get(&y).map(|affine| affine.channel_axis) else { continue };
        let (shape, own) = (builder.shape(y), builder.shape(constant));
        let channels = shape[channel_axis];
        // dimensions that the constant's extent of the channels, counted from the end, and 1 elsewhere
        let from_end = shape.len() - channel_axis;
        let is_per_channel = own.len() >= from_end
            && own.len() <= shape.len()
            && own.iter().enumerate().all(|(d, e)| *e == if d == own.len() - from_end { channels } else { 1 });
        if !is_per_channel || builder.dtype(constant) != DType::F32 || builder.data(constant).is_none() {
            continue;
        }
        let constant = reshape_to(builder, constant, vec![channels])?;
        let (factor, shift) = if op.kind == "Mul" { (Some(constant), None) } else { (None, Some(constant)) };
        return fold_affine(builder, op.is_only_reader(position), y, factor, shift);
    }
    Ok(None)
}

/// The mean over some axes, and the factor that gives unit variance.
struct Moments {
    /// At the point of the tensor's axes.
    mean: Expr,
    /// `x - mean`, of the tensor's shape.
    centred: TensorId,
    /// `1 / sqrt(variance + epsilon)`, at the point of the tensor's axes.
    factor: Expr,
}

fn moments(builder: &mut Builder, x: TensorId, over: &Axes, epsilon: f64) -> Result<Moments, Problem> {
    let shape = builder.shape(x);
    let mean_of = over.mean(builder, x)?;
    let total = over.reduce(builder, Combiner::Sum, DType::F32, load(x, over.indices.clone()))?;
    let mean = mean_of(load(total, over.outer_of_own()));
    let centred = builder.map(shape.clone(), DType::F32, subtract(load(x, vars(0, shape.len())), mean.clone()))?;
    let squares = over.reduce(builder, Combiner::Sum, DType::F32, square(load(centred, over.indices.clone())))?;
    let variance = mean_of(load(squares, over.outer_of_own()));
    Ok(Moments { mean, centred, factor: reciprocal_sqrt(add(variance, float(epsilon))) })
}

/// `LayerNormalization` and `RMSNormalization` over the axes from `axis` on.
pub fn layer(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (x, shape) = float_input(builder, op)?;
    let first = normal_axis(op.int("axis", -1)?, shape.len())?;
    let epsilon = op.float("epsilon", 1e-5)?;
    let over = Axes::new(&shape, (first..shape.len()).collect());
    let own = vars(0, shape.len());
    let mut statistics = Vec::new();
    let mut value = if op.kind == "RMSNormalization" {
        let squares = over.reduce(builder, Combiner::Sum, DType::F32, square(load(x, over.indices.clone())))?;
        let mean = over.mean(builder, x)?(load(squares, over.outer_of_own()));
        multiply(load(x, own), reciprocal_sqrt(add(mean, float(epsilon))))
    } else {
        let Moments { mean, centred, factor } = moments(builder, x, &over, epsilon)?;
        // the statistics are read at the first element of what they cover
        if op.wants_output(1) || op.wants_output(2) {
            for statistic in [mean, factor.clone()] {
                let of_input = builder.extents(x);
                let extent = |d: usize| if d < first { of_input[d].clone() } else { Index::constant(1) };
                let extents: Vec<Index> = (0..shape.len()).map(extent).collect();
                statistics.push(builder.map_over(&extents, DType::F32, statistic)?);
            }
        }
        multiply(load(centred, own), factor)
    };
    value = multiply(value, parameter(builder, op.input(1)?, &shape)?);
    if let Some(bias) = op.optional(2) {
        value = add(value, parameter(builder, bias, &shape)?);
    }
    let result = builder.map(shape, DType::F32, value)?;
    statistics.insert(0, result);
    Ok(statistics)
}

/// A scale or bias that broadcasts to the tensor.
fn parameter(builder: &Builder, tensor: TensorId, shape: &[i64]) -> Result<Expr, Problem> {
    let own = builder.shape(tensor);
    if builder.is_run_time(tensor) {
        return Err(Problem::Unsupported("a scale or bias with run-time extents".to_string()));
    }
    let fits = super::builder::broadcast_shape(&[shape.to_vec(), own.clone()])? == shape;
    if !fits || builder.dtype(tensor) != DType::F32 {
        return Err(Problem::Shape(format!("{own:?} does not broadcast to {shape:?}")));
    }
    Ok(builder.broadcast(tensor, shape))
}

/// `InstanceNormalization` of `[n, c, ..]`: over everything but batch and channel.
pub fn instance(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (x, shape) = float_input(builder, op)?;
    if shape.len() < 3 {
        return Err(Problem::Shape(format!("{shape:?} has no dimensions to normalise over")));
    }
    let (scale, bias) = (op.input(1)?, op.input(2)?);
    check_channels(builder, &[scale, bias], shape[1])?;
    let over = Axes::new(&shape, (2..shape.len()).collect());
    let Moments { centred, factor, .. } = moments(builder, x, &over, op.float("epsilon", 1e-5)?)?;
    let by_channel = |tensor: TensorId| load(tensor, vec![var(1)]);
    let value = multiply(multiply(load(centred, vars(0, shape.len())), factor), by_channel(scale));
    Ok(vec![builder.map(shape, DType::F32, add(value, by_channel(bias)))?])
}

/// `GroupNormalization` of `[n, c, ..]`: over the channels of a group and everything behind. Scale and bias
/// are for each group before opset 21, for each channel since.
pub fn group(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (x, shape) = float_input(builder, op)?;
    let groups = op.optional_int("num_groups")?.ok_or(Problem::MissingAttribute("num_groups"))?;
    if shape.len() < 2 || groups < 1 || shape[1] % groups != 0 {
        return Err(Problem::AttributeValue { name: "num_groups", value: groups.to_string() });
    }
    let (scale, bias) = (op.input(1)?, op.input(2)?);
    let per_group = shape[1] / groups;
    check_channels(builder, &[scale, bias], if op.opset < 21 { groups } else { shape[1] })?;
    let grouped = [&[shape[0], groups, per_group], &shape[2..]].concat();
    let x = reshape_to(builder, x, grouped.clone())?;
    let over = Axes::new(&grouped, (2..grouped.len()).collect());
    let Moments { centred, factor, .. } = moments(builder, x, &over, op.float("epsilon", 1e-5)?)?;
    let place: Index = if op.opset < 21 { var(1) } else { var(1).times(per_group).plus(&var(2)) };
    let at = |tensor: TensorId| load(tensor, vec![place.clone()]);
    let value = multiply(multiply(load(centred, vars(0, grouped.len())), factor), at(scale));
    let result = builder.map(grouped, DType::F32, add(value, at(bias)))?;
    Ok(vec![reshape_to(builder, result, shape)?])
}

/// `MeanVarianceNormalization`, and `LpNormalization` along one axis.
pub fn plain(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (x, shape) = float_input(builder, op)?;
    let own = vars(0, shape.len());
    if op.kind == "MeanVarianceNormalization" {
        let axes = op.ints("axes")?.unwrap_or(&[0, 2, 3]);
        let over = Axes::new(&shape, normal_axes(axes, shape.len())?);
        let Moments { centred, factor, .. } = moments(builder, x, &over, 1e-9)?;
        return Ok(vec![builder.map(shape, DType::F32, multiply(load(centred, own), factor))?]);
    }
    let over = Axes::new(&shape, vec![normal_axis(op.int("axis", -1)?, shape.len())?]);
    let read = load(x, over.indices.clone());
    let (value, is_square) = match op.int("p", 2)? {
        1 => (super::math::absolute(read), false),
        2 => (square(read), true),
        p => return Err(Problem::AttributeValue { name: "p", value: p.to_string() }),
    };
    let total = over.reduce(builder, Combiner::Sum, DType::F32, value)?;
    let norm = load(total, over.outer_of_own());
    let norm = if is_square { super::math::sqrt(norm) } else { norm };
    // a vector of zeros stays one
    let is_zero = super::math::equal(norm.clone(), float(0.0));
    let safe = Expr::select(is_zero, float(1.0), norm);
    Ok(vec![builder.map(shape, DType::F32, super::math::divide(load(x, own), safe))?])
}
