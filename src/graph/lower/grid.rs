//! `GridSample`, and the affine grids that it takes.

use super::builder::Builder;
use super::math::{add, float, load, multiply, subtract, var, vars};
use super::operator::{Operator, Problem};
use super::sampling::{Interpolation, Line, Outside, interpolated};
use crate::graph::TensorData;
use crate::workload::{DType, Index, TensorId};

/// Input `[n, c, ..]`, grid `[n, .. places, dimensions]`: where each place lies between -1 and 1, the last
/// dimension first.
pub fn grid_sample(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (x, grid) = (op.input(0)?, op.input(1)?);
    let (dtype, shape, places) = (builder.dtype(x), builder.shape(x), builder.shape(grid));
    let rank = shape.len().saturating_sub(2);
    if rank < 1 || places.len() != shape.len() || places[0] != shape[0] || places[rank + 1] != rank as i64 {
        return Err(Problem::Shape(format!("a grid of shape {places:?} does not fit {shape:?}")));
    }
    if shape.contains(&0) && !places.contains(&0) {
        return Err(Problem::Shape(format!("nothing can be sampled from {shape:?}")));
    }
    let interpolation = match op.text("mode", "linear")? {
        "linear" | "bilinear" => Interpolation::Linear,
        "nearest" => Interpolation::Nearest,
        "cubic" | "bicubic" => Interpolation::Cubic,
        other => return Err(Problem::AttributeValue { name: "mode", value: other.to_string() }),
    };
    let outside = match op.text("padding_mode", "zeros")? {
        "zeros" => Outside::Zeros,
        "border" => Outside::Border,
        "reflection" => Outside::Reflection,
        other => return Err(Problem::AttributeValue { name: "padding_mode", value: other.to_string() }),
    };
    if dtype != DType::F32 && interpolation != Interpolation::Nearest {
        return Err(Problem::Type { input: 0, dtype });
    }
    if builder.dtype(grid) != DType::F32 {
        return Err(Problem::Type { input: 1, dtype: builder.dtype(grid) });
    }
    let aligned = op.flag("align_corners", false)?;
    let place_shape = places[..=rank].to_vec();
    let mut taps = Vec::new();
    for d in 0..rank {
        let extent = shape[2 + d];
        let mut at = vars(0, rank + 1);
        at.push(Index::constant((rank - 1 - d) as i64));
        // from -1..1 to the centres of the outermost elements, or to half an element beyond
        let (half, shift) = if aligned { ((extent - 1) as f64 / 2.0, 0.0) } else { (extent as f64 / 2.0, 0.5) };
        let place = subtract(multiply(add(load(grid, at), float(1.0)), float(half)), float(shift));
        let place = builder.map(place_shape.clone(), DType::F32, place)?;
        let ends = (-shift, (extent - 1) as f64 + shift);
        taps.push(Line { extent, ends, interpolation, outside }.taps(builder, place)?);
    }
    let at = [vec![var(0)], vars(2, rank)].concat();
    let output = [&shape[..2], &places[1..=rank]].concat();
    let read = |places: Vec<Index>| load(x, [vars(0, 2), places].concat());
    Ok(vec![interpolated(builder, output, dtype, &taps, &at, &read)?])
}

/// Theta `[n, dimensions, dimensions + 1]`, size `[n, c, ..]`: theta times `(.. y, x, 1)` for each place.
pub fn affine_grid(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let theta = op.input(0)?;
    let (own, size) = (builder.shape(theta), builder.integers_input(op, 1)?);
    Builder::check_shape(&size)?;
    let rank = size.len().saturating_sub(2);
    if !matches!(rank, 2 | 3) || own != [size[0], rank as i64, rank as i64 + 1] {
        return Err(Problem::Shape(format!("theta of shape {own:?} does not make a grid for {size:?}")));
    }
    if builder.dtype(theta) != DType::F32 {
        return Err(Problem::Type { input: 0, dtype: builder.dtype(theta) });
    }
    let aligned = op.flag("align_corners", false)?;
    // axes: n, the places, and the coordinate, the last dimension's first
    let row = |column: usize| load(theta, vec![var(0), var(rank + 1), Index::constant(column as i64)]);
    let mut value = row(rank);
    for (d, extent) in size[2..].iter().enumerate() {
        builder.reserve(&[*extent], DType::F32)?;
        let place = |at: i64| match aligned {
            true if *extent == 1 => 0.0,
            true => 2.0 * at as f64 / (extent - 1) as f64 - 1.0,
            false => (2 * at + 1) as f64 / *extent as f64 - 1.0,
        };
        let table = TensorData::from_f64(vec![*extent], DType::F32, (0..*extent).map(place));
        let table = builder.constant(table);
        value = add(value, multiply(row(rank - 1 - d), load(table, vec![var(1 + d)])));
    }
    let shape = [&size[..1], &size[2..], &[rank as i64]].concat();
    Ok(vec![builder.map(shape, DType::F32, value)?])
}
