//! `GridSample`, and the affine grids that it takes.

use super::builder::Builder;
use super::math::{add, divide, float, less, load, maximum, multiply, real, subtract, var, vars};
use super::operator::{Operator, Problem};
use super::sampling::{Interpolation, Line, Outside, interpolated};
use crate::graph::TensorData;
use crate::workload::{DType, Expr, Index, TensorId};

/// Input `[n, c, ..]`, grid `[n, .. places, dimensions]`: where each place lies between -1 and 1, the last
/// dimension first.
pub fn grid_sample(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (x, grid) = (op.input(0)?, op.input(1)?);
    let (dtype, shape, places) = (builder.dtype(x), builder.shape(x), builder.shape(grid));
    let rank = shape.len().saturating_sub(2);
    let misfit = || Problem::Shape(format!("a grid of shape {places:?} does not fit {shape:?}"));
    if rank < 1 || places.len() != shape.len() {
        return Err(misfit());
    }
    builder.unify_dimensions((x, 0), (grid, 0), misfit)?;
    builder.fix_dimension((grid, rank + 1), rank as i64, misfit)?;
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
    let (own, of_places) = (builder.extents(x), builder.extents(grid));
    let mut taps = Vec::new();
    for (d, extent) in own[2..].iter().enumerate() {
        if extent.as_constant().is_none() {
            builder.formulas.require(&extent.clone().plus_constant(-1), "what is sampled but for one element")?;
        }
        let mut at = vars(0, rank + 1);
        at.push(Index::constant((rank - 1 - d) as i64));
        // from -1..1 to the centres of the outermost elements, or to half an element beyond
        let margin = if aligned { 0.0 } else { 0.5 };
        let half = match extent.as_constant() {
            Some(extent) => float((extent as f64 - 1.0 + 2.0 * margin) / 2.0),
            None => multiply(real(extent, 2.0 * margin - 1.0), float(0.5)),
        };
        let place = subtract(multiply(add(load(grid, at), float(1.0)), half), float(margin));
        let place = builder.map_over(&of_places[..=rank], DType::F32, place)?;
        taps.push(Line { extent: extent.clone(), margin, interpolation, outside }.taps(builder, place)?);
    }
    let at = [vec![var(0)], vars(2, rank)].concat();
    let output = [&own[..2], &of_places[1..=rank]].concat();
    let read = |places: Vec<Index>| load(x, [vars(0, 2), places].concat());
    Ok(vec![interpolated(builder, &output, dtype, &taps, &at, &read)?])
}

/// Theta `[n, dimensions, dimensions + 1]`, size `[n, c, ..]`: theta times `(.. y, x, 1)` for each place.
pub fn affine_grid(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let theta = op.input(0)?;
    let (own, size) = (builder.shape(theta), builder.formulas_input(op, 1)?);
    let rank = size.len().saturating_sub(2);
    let misfit = || Problem::Shape(format!("theta of shape {own:?} does not make a grid of {rank} dimensions"));
    if !matches!(rank, 2 | 3) || own.len() != 3 {
        return Err(misfit());
    }
    builder.fix_dimension((theta, 1), rank as i64, misfit)?;
    builder.fix_dimension((theta, 2), rank as i64 + 1, misfit)?;
    let count = builder.extents(theta).swap_remove(0);
    builder.formulas.unify(&count, &size[0])?;
    if builder.dtype(theta) != DType::F32 {
        return Err(Problem::Type { input: 0, dtype: builder.dtype(theta) });
    }
    let aligned = op.flag("align_corners", false)?;
    // axes: n, the places, and the coordinate, the last dimension's first
    let row = |column: usize| load(theta, vec![var(0), var(rank + 1), Index::constant(column as i64)]);
    let mut value = row(rank);
    for (d, extent) in size[2..].iter().enumerate() {
        let place = match extent.as_constant() {
            Some(extent) => {
                let table = regular(builder, extent, aligned)?;
                load(table, vec![var(1 + d)])
            }
            None => regular_in_run(extent, aligned, &var(1 + d)),
        };
        value = add(value, multiply(row(rank - 1 - d), place));
    }
    let extents = [&size[..1], &size[2..], &[Index::constant(rank as i64)]].concat();
    Ok(vec![builder.map_over(&extents, DType::F32, value)?])
}

/// The places of elements at equal distances between -1 and 1.
fn regular(builder: &mut Builder, extent: i64, aligned: bool) -> Result<TensorId, Problem> {
    Builder::check_shape(&[extent])?;
    builder.reserve(&[extent], DType::F32)?;
    let place = |at: i64| match aligned {
        true if extent == 1 => 0.0,
        true => 2.0 * at as f64 / (extent - 1) as f64 - 1.0,
        false => (2 * at + 1) as f64 / extent as f64 - 1.0,
    };
    Ok(builder.constant(TensorData::from_f64(vec![extent], DType::F32, (0..extent).map(place))))
}

/// The same for one element, where the extent is known only when the network runs.
fn regular_in_run(extent: &Index, aligned: bool, at: &Index) -> Expr {
    let twice = real(&at.clone().times(2), 0.0);
    if !aligned {
        return subtract(divide(real(&at.clone().times(2).plus_constant(1), 0.0), real(extent, 0.0)), float(1.0));
    }
    let place = subtract(divide(twice, maximum(real(extent, -1.0), float(1.0))), float(1.0));
    let is_single = less(Expr::Index(extent.clone()), Expr::integer(2));
    Expr::select(is_single, float(0.0), place)
}
