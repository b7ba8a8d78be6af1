//! `DeformConv`: a convolution whose taps are displaced by data.

use super::builder::Builder;
use super::convolution::{biased, check_floats};
use super::math::{add, cast, load, multiply, var, vars};
use super::operator::{Operator, Problem};
use super::reshape::reshape_to;
use super::sampling::{Interpolation, Line, Outside, Taps, interpolated};
use super::window::{Window, windows};
use crate::workload::{Combiner, DType, Expr, Index, TensorId};

/// Input `[n, c, ..]`, weight `[m, c / groups, ..]`, offsets `[n, offset groups · taps · dimensions, ..]`,
/// bias, and a mask `[n, offset groups · taps, ..]`. The input is sampled once for each tap and output
/// position; what remains is a product.
pub fn deformable(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let Operands { x, w, offsets, mask, groups, offset_groups } = Operands::new(builder, op)?;
    builder.materialize(w)?;
    let (input, weight) = (builder.shape(x), builder.shape(w));
    let (batch, channels, filters, kernel) = (input[0], input[1], weight[0], &weight[2..]);
    let windows = windows(builder, op, &builder.extents(x)[2..], kernel)?;
    let output: Vec<i64> = windows.iter().map(|window| window.output).collect();
    let (rank, tap_count) = (windows.len(), Builder::check_shape(kernel)?);
    let displacements = offset_groups.checked_mul(tap_count);
    let expected = |count: Option<i64>| count.map(|count| [vec![batch, count], output.clone()].concat());
    if Some(builder.shape(offsets)) != expected(displacements.and_then(|count| count.checked_mul(rank as i64))) {
        return Err(Problem::Shape(format!("offsets of shape {:?} do not fit the windows", builder.shape(offsets))));
    }
    if let Some(mask) = mask.filter(|mask| Some(builder.shape(*mask)) != expected(displacements)) {
        return Err(Problem::Shape(format!("a mask of shape {:?} does not fit the windows", builder.shape(mask))));
    }
    let places = [vec![batch, offset_groups, tap_count], output.clone()].concat();
    let taps = displaced(builder, offsets, &windows, &places)?;
    // axes: n, c, the tap, then the output's
    let group = var(1).floor_div(channels / offset_groups);
    let at = [vec![var(0), group.clone()], vars(2, 1 + rank)].concat();
    let columns = [vec![batch, channels, tap_count], output.clone()].concat();
    let read = |places: Vec<Index>| load(x, [vars(0, 2), places].concat());
    let extents: Vec<Index> = columns.iter().copied().map(Index::constant).collect();
    let mut sampled = interpolated(builder, &extents, DType::F32, &taps, &at, &read)?;
    if let Some(mask) = mask {
        let at = [vec![var(0), group.times(tap_count).plus(&var(2))], vars(3, rank)].concat();
        let value = multiply(load(sampled, vars(0, columns.len())), load(mask, at));
        sampled = builder.map(columns, DType::F32, value)?;
    }
    // axes: n, the group, its filter, the output's; reduced: the channel, and the tap
    let per_group = filters / groups;
    let flat_weight = reshape_to(builder, w, vec![filters, weight[1], tap_count])?;
    let c = 3 + rank;
    let channel = var(1).times(weight[1]).plus(&var(c));
    let read = load(sampled, [vec![var(0), channel, var(c + 1)], vars(3, rank)].concat());
    let tap = load(flat_weight, vec![var(1).times(per_group).plus(&var(2)), var(c), var(c + 1)]);
    let spatial = [vec![batch, groups, per_group], output.clone()].concat();
    let product =
        builder.reduce(spatial, vec![weight[1], tap_count], Combiner::Sum, DType::F32, multiply(read, tap))?;
    let product = reshape_to(builder, product, [vec![batch, filters], output].concat())?;
    Ok(vec![biased(builder, op.optional(3), product)?])
}

/// The inputs but the bias, and how channels are grouped.
struct Operands {
    x: TensorId,
    w: TensorId,
    offsets: TensorId,
    mask: Option<TensorId>,
    groups: i64,
    offset_groups: i64,
}

impl Operands {
    fn new(builder: &Builder, op: &Operator) -> Result<Operands, Problem> {
        let (x, w, offsets, mask) = (op.input(0)?, op.input(1)?, op.input(2)?, op.optional(4));
        check_floats(builder, &[x, w, offsets])?;
        if let Some(dtype) = mask.map(|mask| builder.dtype(mask)).filter(|dtype| *dtype != DType::F32) {
            return Err(Problem::Type { input: 4, dtype });
        }
        let (input, weight) = (builder.shape(x), builder.shape(w));
        let (groups, offset_groups) = (op.int("group", 1)?, op.int("offset_group", 1)?);
        let has_dimensions = input.len() >= 3 && weight.len() == input.len() && !input.contains(&0);
        let divide = |groups: i64, channels: i64| groups >= 1 && channels % groups == 0;
        let fits = has_dimensions
            && divide(groups, input[1])
            && divide(groups, weight[0])
            && divide(offset_groups, input[1])
            && input[1] / groups == weight[1];
        if !fits {
            let counts = format!("{groups} groups and {offset_groups} of offsets");
            return Err(Problem::Shape(format!("input {input:?} does not fit weight {weight:?} with {counts}")));
        }
        if op.ints("kernel_shape")?.is_some_and(|kernel| kernel != &weight[2..]) {
            let value = "different from the weight's".to_string();
            return Err(Problem::AttributeValue { name: "kernel_shape", value });
        }
        Ok(Operands { x, w, offsets, mask, groups, offset_groups })
    }
}

/// The elements that each tap reads, by dimension: tables `[n, offset groups, taps, output .., 2]`.
fn displaced(
    builder: &mut Builder,
    offsets: TensorId,
    windows: &[Window],
    places: &[i64],
) -> Result<Vec<Taps>, Problem> {
    let rank = windows.len();
    let kernel: Vec<i64> = windows.iter().map(|window| window.kernel).collect();
    let mut taps = Vec::new();
    for (d, window) in windows.iter().enumerate() {
        let tap = &super::builder::unflatten(&kernel, &var(2))[d];
        let regular = cast(DType::I64, DType::F32, Expr::Index(window.position(&var(3 + d), tap)));
        let displacement = var(1).times(places[2]).plus(&var(2)).times(rank as i64).plus_constant(d as i64);
        let offset = load(offsets, [vec![var(0), displacement], vars(3, rank)].concat());
        let place = builder.map(places.to_vec(), DType::F32, add(regular, offset))?;
        let extent = Index::constant(window.input);
        let (interpolation, outside) = (Interpolation::Linear, Outside::Zeros);
        taps.push(Line { extent, margin: 0.0, interpolation, outside }.taps(builder, place)?);
    }
    Ok(taps)
}
