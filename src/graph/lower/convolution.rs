//! Convolutions, and transposed convolutions by phases.

use super::builder::{Affine, Builder};
use super::math::{add, literal, load, multiply, var, vars, within};
use super::operator::{Operator, Problem};
use super::reshape::reshape_to_extents;
use super::window::{explicit_pads, positions, steps, windows};
use crate::workload::{Combiner, Condition, DType, Expr, Index, TensorId};

/// Strides from here on are not looked at closely.
const LONGEST_TRIED: i64 = 1 << 12;

/// Refuses inputs that are not f32, which `tensors` lists in order.
pub fn check_floats(builder: &Builder, tensors: &[TensorId]) -> Result<(), Problem> {
    match tensors.iter().position(|tensor| builder.dtype(*tensor) != DType::F32) {
        Some(input) => Err(Problem::Type { input, dtype: builder.dtype(tensors[input]) }),
        None => Ok(()),
    }
}

/// Input `[n, c, ..]`, weight `[m, c / groups, ..]`.
///
/// Groups are an axis of their own, so that every access is affine: `[n, groups, m / groups, ..]`, seen as
/// `[n, m, ..]` afterwards. With one output channel and one input channel for each group, that axis is the
/// channels' (depthwise).
pub fn convolution(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (x, w) = (op.input(0)?, op.input(1)?);
    check_floats(builder, &[x, w])?;
    let (stage, product) = sums(builder, op, [x, w], DType::F32, &|operand, at| load([x, w][operand], at))?;
    let bias = op.optional(2);
    let result = biased(builder, bias, product)?;
    let is_constant = |tensor: TensorId| builder.data(tensor).is_some();
    if is_constant(w) && bias.is_none_or(is_constant) && !is_constant(product) {
        builder.affine.insert(result, Affine { stage, product, weight: w, weight_axis: 0, channel_axis: 1, bias });
    }
    Ok(vec![result])
}

/// The sums of products of a convolution, and the position of their stage. `read` makes each element of an
/// operand a number of the type: by whether it is of the input (0) or of the weight (1), and its indices.
/// What pads the input is 0 in that type.
pub fn sums(
    builder: &mut Builder,
    op: &Operator,
    [x, w]: [TensorId; 2],
    dtype: DType,
    read: &dyn Fn(usize, Vec<Index>) -> Expr,
) -> Result<(usize, TensorId), Problem> {
    builder.materialize(w)?;
    let (input, weight) = (builder.shape(x), builder.shape(w));
    let groups = op.int("group", 1)?;
    let misfit = || Problem::Shape(format!("input {input:?} does not fit weight {weight:?} with {groups} groups"));
    if input.len() < 3 || weight.len() != input.len() || groups < 1 || weight[0] % groups != 0 {
        return Err(misfit());
    }
    let (filters, depth) = (weight[0], weight[1]);
    builder.fix_dimension((x, 1), depth.checked_mul(groups).ok_or_else(misfit)?, misfit)?;
    if op.ints("kernel_shape")?.is_some_and(|kernel| kernel != &weight[2..]) {
        return Err(Problem::AttributeValue { name: "kernel_shape", value: "different from the weight's".to_string() });
    }
    let (of_input, of_weight) = (builder.extents(x), builder.extents(w));
    if of_weight.iter().chain(&of_input[1..2]).any(|extent| extent.as_constant().is_none()) {
        return Err(Problem::Unsupported("a convolution with run-time channels, or a run-time kernel,".to_string()));
    }
    let windows = windows(builder, op, &of_input[2..], &weight[2..])?;
    let output: Vec<Index> = windows.iter().map(|window| window.output_extent()).collect();
    let per_group = filters / groups;
    // axes: n, then the channel axes, then the output's; reduced: c, then the kernel's
    let is_depthwise = depth == 1 && per_group == 1;
    let channel_axes = if groups == 1 || is_depthwise { vec![filters] } else { vec![groups, per_group] };
    let first_output = 1 + channel_axes.len();
    let c = first_output + output.len();
    let (at, guards) = positions(&windows, first_output, c + 1);
    let (input_channel, filter) = match channel_axes.len() {
        1 if groups == 1 => (var(c), var(1)),
        1 => (var(1), var(1)),
        _ => (var(1).times(depth).plus(&var(c)), var(1).times(per_group).plus(&var(2))),
    };
    let element = read(0, [vec![var(0), input_channel], at].concat());
    let element = Expr::guard(guards, element, literal(dtype, 0.0));
    let tap = read(1, [vec![filter, var(c)], vars(c + 1, output.len())].concat());
    let channel_axes: Vec<Index> = channel_axes.into_iter().map(Index::constant).collect();
    let batch = of_input[..1].to_vec();
    let spatial = [batch.clone(), channel_axes, output.clone()].concat();
    let stage = builder.next_stage();
    let value = multiply(element, tap);
    let product = builder.reduce_over(&spatial, &of_weight[1..], Combiner::Sum, dtype, value)?;
    let shape = [batch, vec![Index::constant(filters)], output].concat();
    Ok((stage, reshape_to_extents(builder, product, &shape)?))
}

/// Adds one number for each channel.
pub fn biased(builder: &mut Builder, bias: Option<TensorId>, product: TensorId) -> Result<TensorId, Problem> {
    let Some(bias) = bias else { return Ok(product) };
    let shape = builder.shape(product);
    if builder.shape(bias) != shape[1..2] || builder.dtype(bias) != DType::F32 {
        return Err(Problem::Shape(format!("a bias of {:?} does not fit {shape:?}", builder.shape(bias))));
    }
    let value = add(load(product, vars(0, shape.len())), load(bias, vec![var(1)]));
    builder.map(shape, DType::F32, value)
}

/// One dimension of a transposed convolution.
pub struct Transposed {
    pub input: Index,
    /// The input's extent at most.
    pub most: i64,
    pub output: Index,
    pub kernel: i64,
    pub stride: i64,
    pub dilation: i64,
    pub pad: i64,
}

/// The axes of a transposed convolution, and where it reads.
pub struct Phases {
    /// Extents of the axes `q` and `r` of each dimension.
    pub spatial: Vec<Index>,
    /// Extents of the axes `t`.
    pub reduction: Vec<Index>,
    /// Of the input and of the kernel, by dimension.
    pub positions: Vec<Index>,
    pub taps: Vec<Index>,
    /// Where positions, and where taps exist.
    pub inside: Vec<Condition>,
    pub existing: Vec<Condition>,
}

/// Input `[n, c, ..]`, weight `[c, m / groups, ..]`.
///
/// Output position `o = stride · q + r` is touched by the taps `k` with `r + pad - k ≡ 0 (mod stride)`. With
/// axes for `q` and `r` that is `k = (r + pad) mod stride + stride · t`, and the input position
/// `q + floor((r + pad) / stride) - t`: every phase `r` is a convolution by the taps `t`, and no
/// multiplication is in vain. With dilation, stride 1 is of the same form, and others test divisibility.
pub fn transposed(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (x, w) = (op.input(0)?, op.input(1)?);
    check_floats(builder, &[x, w])?;
    builder.materialize(w)?;
    let (input, weight) = (builder.shape(x), builder.shape(w));
    let groups = op.int("group", 1)?;
    if builder.is_run_time(w) {
        return Err(builder.unsupported_extents());
    }
    let misfit = || Problem::Shape(format!("input {input:?} does not fit weight {weight:?} with {groups} groups"));
    if input.len() < 3 || weight.len() != input.len() || groups < 1 || weight[0] % groups != 0 {
        return Err(misfit());
    }
    builder.fix_dimension((x, 1), weight[0], misfit)?;
    let extents = builder.extents(x);
    if extents[1].as_constant().is_none() {
        return Err(builder.unsupported_extents());
    }
    let rank = input.len() - 2;
    let dimensions = transposed_dimensions(builder, op, &extents[2..], &weight[2..])?;
    let (batch, depth, per_group) = (extents[0].clone(), input[1] / groups, weight[1]);
    // axes: n, group, m, then q and r of each dimension; reduced: c, then t of each dimension
    let first_output = 3;
    let c = first_output + 2 * rank;
    let channel = var(1).times(depth).plus(&var(c));
    let phases = phases(&dimensions, first_output, c + 1);
    let at = [vec![var(0), channel.clone()], phases.positions].concat();
    let taps = [vec![channel, var(2)], phases.taps].concat();
    // each operand has its own border, so that each can be packed
    let bordered = |guards, value| Expr::guard(guards, value, literal(DType::F32, 0.0));
    let value = multiply(bordered(phases.inside, load(x, at)), bordered(phases.existing, load(w, taps)));
    let number = Index::constant;
    let spatial = [vec![batch.clone(), number(groups), number(per_group)], phases.spatial].concat();
    let reduction = [vec![number(depth)], phases.reduction].concat();
    let product = builder.reduce_over(&spatial, &reduction, Combiner::Sum, DType::F32, value)?;
    // [n, m, q · stride + r, ..], cut to the output
    let output: Vec<Index> = dimensions.iter().map(|d| d.output.clone()).collect();
    let shape = [vec![batch, number(groups * per_group)], output].concat();
    let channel = vec![var(0), var(1).floor_div(per_group.max(1)), var(1).modulo(per_group.max(1))];
    let indices = [channel, whole_positions(&dimensions, 2)].concat();
    let product = builder.map_over(&shape, DType::F32, load(product, indices))?;
    Ok(vec![biased(builder, op.optional(2), product)?])
}

/// The phases of each dimension, whose axes `q` and `r` start at `first_output`, and its taps, whose axes
/// start at `first_tap`: see [`transposed`].
pub fn phases(dimensions: &[Transposed], first_output: usize, first_tap: usize) -> Phases {
    let mut phases = Phases {
        spatial: vec![],
        reduction: vec![],
        positions: vec![],
        taps: vec![],
        inside: vec![],
        existing: vec![],
    };
    for (d, dimension) in dimensions.iter().enumerate() {
        let (q, r, t) = (var(first_output + 2 * d), var(first_output + 2 * d + 1), var(first_tap + d));
        let Transposed { most, kernel, stride, dilation, pad, .. } = *dimension;
        let (position, tap) = if dilation == 1 {
            let quotient = stepwise(stride, &r, |r| (r + pad).div_euclid(stride));
            let rest = stepwise(stride, &r, |r| (r + pad).rem_euclid(stride));
            (
                q.plus(&quotient.unwrap_or_else(|| r.clone().plus_constant(pad).floor_div(stride))).minus(&t),
                rest.unwrap_or_else(|| r.plus_constant(pad).modulo(stride)).plus(&t.times(stride)),
            )
        } else {
            let scaled = q.times(stride).plus(&r).plus_constant(pad).minus(&t.clone().times(dilation));
            if stride > 1 {
                phases.inside.push(within(scaled.clone().modulo(stride), 0, 1));
            }
            (scaled.floor_div(stride), t)
        };
        let taps_per_phase = if dilation == 1 { (kernel + stride - 1) / stride } else { kernel };
        if dilation == 1 && kernel % stride != 0 {
            phases.existing.push(within(tap.clone(), 0, kernel));
        }
        let open = Some(&dimension.input).filter(|input| input.as_constant().is_none());
        phases.inside.extend(Condition::within(&position, open, most));
        let quotients = dimension.output.clone().plus_constant(stride - 1).floor_div(stride);
        phases.spatial.extend([quotients, Index::constant(stride)]);
        phases.reduction.push(Index::constant(taps_per_phase));
        phases.positions.push(position);
        phases.taps.push(tap);
    }
    phases
}

/// Where the axes from `first` on, one for each dimension, are in those of the phases: `q` and `r`.
pub fn whole_positions(dimensions: &[Transposed], first: usize) -> Vec<Index> {
    let of_axis = |(d, dimension): (usize, &Transposed)| {
        let axis = var(first + d);
        [axis.clone().floor_div(dimension.stride), axis.modulo(dimension.stride)]
    };
    dimensions.iter().enumerate().flat_map(of_axis).collect()
}

/// `a + b · r`, if that is what `function` is for `r` in `0..extent`.
fn stepwise(extent: i64, r: &Index, function: impl Fn(i64) -> i64) -> Option<Index> {
    if extent > LONGEST_TRIED {
        return None;
    }
    let first = function(0);
    let step = if extent > 1 { function(1) - first } else { 0 };
    let is_affine = (0..extent).all(|at| function(at) == first + step * at);
    is_affine.then(|| r.clone().times(step).plus_constant(first))
}

fn transposed_dimensions(
    builder: &mut Builder,
    op: &Operator,
    input: &[Index],
    kernel: &[i64],
) -> Result<Vec<Transposed>, Problem> {
    let rank = input.len();
    let (strides, dilations) = (steps(op, "strides", rank)?, steps(op, "dilations", rank)?);
    // validates kernel extents, too; the windows themselves are those of another operator
    if op.ints("kernel_shape")?.is_some_and(|given| given != kernel) {
        return Err(Problem::AttributeValue { name: "kernel_shape", value: "different from the weight's".to_string() });
    }
    let extra = op.ints("output_padding")?.map_or_else(|| vec![0; rank], <[i64]>::to_vec);
    if extra.len() != rank || extra.iter().any(|e| !(0..1 << 30).contains(e)) {
        return Err(Problem::AttributeValue { name: "output_padding", value: format!("{extra:?}") });
    }
    let wanted = op.ints("output_shape")?;
    let wanted = wanted.map(|shape| shape.get(shape.len().saturating_sub(rank)..).unwrap_or_default());
    if wanted.is_some_and(|shape| shape.len() != rank || shape.iter().any(|e| !(1..1 << 31).contains(e))) {
        return Err(Problem::AttributeValue { name: "output_shape", value: format!("{wanted:?}") });
    }
    let pads = explicit_pads(op, rank)?;
    let mut dimensions = Vec::new();
    for d in 0..rank {
        let (stride, dilation) = (strides[d], dilations[d]);
        let span = dilation.saturating_mul(kernel[d] - 1) + 1;
        let most = builder.formulas.most(&input[d])?;
        let greatest = (most - 1).saturating_mul(stride).saturating_add(span + extra[d]);
        if kernel[d] < 1 || most < 1 || greatest >= 1 << 31 {
            return Err(Problem::TooLarge(vec![greatest]));
        }
        let full = input[d].clone().plus_constant(-1).times(stride).plus_constant(span + extra[d]);
        let mode = op.text("auto_pad", "NOTSET")?;
        let (output, before) = match (wanted, &pads) {
            (Some(shape), _) => {
                let Some(full) = full.as_constant() else { return Err(builder.unsupported_extents()) };
                let total = (full - shape[d]).max(0);
                let before = if mode == "SAME_UPPER" { total / 2 } else { total - total / 2 };
                (Index::constant(shape[d]), before)
            }
            (None, Some(pads)) => (full.plus_constant(-pads[d].0 - pads[d].1), pads[d].0),
            (None, None) => match mode {
                "VALID" => (full, 0),
                "SAME_UPPER" | "SAME_LOWER" => {
                    let total = (span + extra[d] - stride).max(0);
                    (input[d].clone().times(stride), if mode == "SAME_UPPER" { total / 2 } else { total - total / 2 })
                }
                other => return Err(Problem::AttributeValue { name: "auto_pad", value: other.to_string() }),
            },
        };
        if output.as_constant().is_some_and(|output| output < 1) {
            return Err(Problem::Shape(format!("the padding leaves nothing of dimension {d}")));
        }
        let output = builder.formulas.left_of(&output, 1, "what the padding leaves of an extent")?;
        let (input, kernel, pad) = (input[d].clone(), kernel[d], before);
        dimensions.push(Transposed { input, most, output, kernel, stride, dilation, pad });
    }
    Ok(dimensions)
}
