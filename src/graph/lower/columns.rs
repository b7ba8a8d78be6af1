//! `Col2Im`: blocks are summed where they overlap in an image.

use super::builder::{Builder, flat_index};
use super::convolution::{Transposed, whole_positions};
use super::math::{literal, load, var, within};
use super::operator::{Operator, Problem};
use super::window::{explicit_pads, steps};
use crate::workload::{Combiner, DType, Expr, Index, TensorId};

/// Input `[n, c · taps, blocks]`, result `[n, c, image ..]`: every pixel gathers the taps that touch it, as a
/// transposed convolution does, but that nothing is multiplied.
pub fn col2im(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let x = op.input(0)?;
    let (dtype, shape, extents) = (builder.dtype(x), builder.shape(x), builder.extents(x));
    if extents.iter().skip(1).any(|extent| extent.as_constant().is_none()) {
        return Err(builder.unsupported_extents());
    }
    if dtype == DType::Bool {
        return Err(Problem::Type { input: 0, dtype });
    }
    let (image, kernel) = (builder.integers_input(op, 1)?, builder.integers_input(op, 2)?);
    let rank = image.len();
    let in_range = |extents: &[i64]| extents.iter().all(|extent| (1..1 << 30).contains(extent));
    if kernel.len() != rank || rank < 1 || !in_range(&image) || !in_range(&kernel) {
        return Err(Problem::Shape(format!("blocks of shape {kernel:?} do not make an image of shape {image:?}")));
    }
    let (strides, dilations) = (steps(op, "strides", rank)?, steps(op, "dilations", rank)?);
    let pads = explicit_pads(op, rank)?.unwrap_or_else(|| vec![(0, 0); rank]);
    let mut dimensions = Vec::new();
    for d in 0..rank {
        let (stride, dilation, (pad, pad_after)) = (strides[d], dilations[d], pads[d]);
        let span = dilation.saturating_mul(kernel[d] - 1).saturating_add(1);
        let blocks = (image[d] + pad + pad_after).saturating_sub(span).div_euclid(stride) + 1;
        let (input, output, kernel) = (Index::constant(blocks), Index::constant(image[d]), kernel[d]);
        dimensions.push(Transposed { input, most: blocks, output, kernel, stride, dilation, pad });
    }
    let blocks: Vec<i64> = dimensions.iter().map(|dimension| dimension.most).collect();
    let misfit = || Problem::Shape(format!("{shape:?} does not hold {blocks:?} blocks of shape {kernel:?}"));
    if blocks.iter().any(|blocks| *blocks < 1) {
        return Err(misfit());
    }
    let (count, taps) = (Builder::check_shape(&blocks)?, Builder::check_shape(&kernel)?);
    let [batch, planes, _] = <[i64; 3]>::try_from(shape.clone()).ok().filter(|s| s[2] == count).ok_or_else(misfit)?;
    if planes % taps != 0 {
        return Err(misfit());
    }
    // axes: n, c, the phases of each dimension; reduced: the taps of a phase
    let phases = super::convolution::phases(&dimensions, 2, 2 + 2 * rank);
    let plane = var(1).times(taps).plus(&flat_index(&kernel, &phases.taps));
    let block = flat_index(&blocks, &phases.positions);
    let mut guards = [phases.inside, phases.existing].concat();
    // follows from the others, but not within the reach of intervals
    guards.extend([within(plane.clone(), 0, planes), within(block.clone(), 0, count)]);
    let value = Expr::guard(guards, load(x, vec![var(0), plane, block]), literal(dtype, 0.0));
    let spatial = [vec![extents[0].clone(), Index::constant(planes / taps)], phases.spatial].concat();
    let summed = builder.reduce_over(&spatial, &phases.reduction, Combiner::Sum, dtype, value)?;
    let indices = [vec![var(0), var(1)], whole_positions(&dimensions, 2)].concat();
    let shape = [vec![batch, planes / taps], image].concat();
    Ok(vec![builder.map(shape, dtype, load(summed, indices))?])
}
