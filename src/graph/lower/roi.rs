//! `RoiAlign`: regions of an image, each sampled on a grid of its own and pooled.

use super::builder::Builder;
use super::math::{
    absolute, add, and, cast, clamped_within, divide, float, less, less_equal, load, maximum, minimum, multiply, real,
    subtract, var, vars,
};
use super::operator::{Operator, Problem};
use super::sampling::{Taps, weighted};
use crate::workload::{Combiner, DType, Expr, Index, TensorId, Unary};

/// Bound of bins and of samples in a bin, along a side.
const MAX_SIDE: i64 = 1 << 16;
/// With as many samples as a region needs, they lie more than half an element apart wherever there are
/// several, so that at most four lie within one element of another; one more is for rounding.
const NEAR_SAMPLES: i64 = 5;

/// Input `[n, c, h, w]`, regions `[r, 4]` as left, top, right and bottom, and the image of each. Result
/// `[r, c, bins, bins]`.
pub fn align(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let [x, regions, images] = checked_inputs(builder, op)?;
    let (own, count) = (builder.extents(x), builder.extents(images).remove(0));
    for extent in &own {
        builder.formulas.require(&extent.clone().plus_constant(-1), "the image but for one element")?;
    }
    let pooling = Pooling::new(op)?;
    let (bins, samples) = (pooling.bins, pooling.samples);
    let side = |d: usize, first: i64| {
        let (count, extent) = (count.clone(), own[2 + d].clone());
        Side { regions, count, extent, bins: bins[d], first, pooling }
    };
    let (rows, columns) = (side(0, 1), side(1, 0));
    let image = cast(builder.dtype(images), DType::I64, load(images, vec![var(0)]));
    let image = clamped_within(image, &own[0]);
    match (samples, pooling.mode) {
        (0, Combiner::Sum) => return Ok(vec![adaptive_average(builder, x, image, &rows, &columns)?]),
        (0, _) => return Err(Problem::Unsupported("mode max with sampling_ratio 0".to_string())),
        _ => {}
    }
    let taps = [rows.taps(builder, samples)?, columns.taps(builder, samples)?];
    // axes: r, c, the bins; then the samples of each side, and the taps of each
    let at = [0, 1].map(|d| vec![var(0), var(2 + d), var(4 + d), var(6 + d)]);
    let read = |places: Vec<Index>| load(x, [vec![image.clone(), var(1)], places].concat());
    let value = weighted(&taps, &at, DType::F32, &read);
    let result = [count.clone(), own[1].clone(), Index::constant(bins[0]), Index::constant(bins[1])];
    let combined = [samples, samples, 2, 2].map(Index::constant);
    let pooled = builder.reduce_over(&result, &combined, pooling.mode, DType::F32, value)?;
    if pooling.mode != Combiner::Sum || samples == 1 {
        return Ok(vec![pooled]);
    }
    let share = float(1.0 / (samples * samples) as f64);
    Ok(vec![builder.map_over(&result, DType::F32, multiply(load(pooled, vars(0, 4)), share))?])
}

fn checked_inputs(builder: &mut Builder, op: &Operator) -> Result<[TensorId; 3], Problem> {
    let inputs = [op.input(0)?, op.input(1)?, op.input(2)?];
    let [shape, regions, images] = inputs.map(|tensor| builder.shape(tensor));
    let misfit = || Problem::Shape(format!("regions {regions:?} of images {images:?} do not fit {shape:?}"));
    if shape.len() != 4 || images.len() != 1 || regions.len() != 2 || regions[1] != 4 || shape.contains(&0) {
        return Err(misfit());
    }
    builder.unify_dimensions((inputs[1], 0), (inputs[2], 0), misfit)?;
    for (input, tensor) in inputs.into_iter().enumerate() {
        let dtype = builder.dtype(tensor);
        let fits = if input == 2 { matches!(dtype, DType::I32 | DType::I64) } else { dtype == DType::F32 };
        if !fits {
            return Err(Problem::Type { input, dtype });
        }
    }
    Ok(inputs)
}

/// How regions are pooled: the attributes.
#[derive(Clone, Copy)]
struct Pooling {
    /// Rows and columns of the result.
    bins: [i64; 2],
    /// Along each side of a bin; 0: as many as are no more than one element apart.
    samples: i64,
    mode: Combiner,
    /// From the regions' coordinates to elements.
    scale: f64,
    /// Whether 0 is the outer edge of the first element, and not its centre.
    half_pixel: bool,
}

impl Pooling {
    fn new(op: &Operator) -> Result<Pooling, Problem> {
        let side = |name: &'static str, default: i64, least: i64| -> Result<i64, Problem> {
            let value = op.int(name, default)?;
            let fits = (least..MAX_SIDE).contains(&value);
            if fits { Ok(value) } else { Err(Problem::AttributeValue { name, value: value.to_string() }) }
        };
        let default = if op.opset < 16 { "output_half_pixel" } else { "half_pixel" };
        let half_pixel = match op.text("coordinate_transformation_mode", default)? {
            "half_pixel" => true,
            "output_half_pixel" => false,
            other => {
                let value = other.to_string();
                return Err(Problem::AttributeValue { name: "coordinate_transformation_mode", value });
            }
        };
        let mode = match op.text("mode", "avg")? {
            "avg" => Combiner::Sum,
            "max" => Combiner::Maximum,
            other => return Err(Problem::AttributeValue { name: "mode", value: other.to_string() }),
        };
        let bins = [side("output_height", 1, 1)?, side("output_width", 1, 1)?];
        let samples = side("sampling_ratio", 0, 0)?;
        Ok(Pooling { bins, samples, mode, scale: op.float("spatial_scale", 1.0)?, half_pixel })
    }
}

/// One side of the regions.
struct Side {
    regions: TensorId,
    count: Index,
    /// Of the image.
    extent: Index,
    bins: i64,
    /// The column of the regions where it begins; it ends two columns behind.
    first: i64,
    pooling: Pooling,
}

impl Side {
    /// Where each region begins, and how long its bins are: `[r]`, in elements.
    fn bins(&self, builder: &mut Builder) -> Result<(TensorId, TensorId), Problem> {
        let end = |column: i64| {
            let scaled = multiply(load(self.regions, vec![var(0), Index::constant(column)]), float(self.pooling.scale));
            if self.pooling.half_pixel { subtract(scaled, float(0.5)) } else { scaled }
        };
        let length = subtract(end(self.first + 2), end(self.first));
        // what is malformed becomes a region of one element
        let length = if self.pooling.half_pixel { length } else { maximum(length, float(1.0)) };
        let start = self.of_region(builder, end(self.first))?;
        let bin = self.of_region(builder, divide(length, float(self.bins as f64)))?;
        Ok((start, bin))
    }

    /// A value for each region.
    fn of_region(&self, builder: &mut Builder, value: Expr) -> Result<TensorId, Problem> {
        builder.map_over(std::slice::from_ref(&self.count), DType::F32, value)
    }

    /// A place of the image for a sample, and whether it counts: up to one element outside, it takes the
    /// outermost.
    fn place(&self, sample: Expr) -> (Expr, Expr) {
        let last = real(&self.extent, -1.0);
        let counts = and(less_equal(float(-1.0), sample.clone()), less_equal(sample.clone(), real(&self.extent, 0.0)));
        (minimum(maximum(sample, float(0.0)), last), counts)
    }

    /// The elements of which the samples of each bin are made: tables `[r, bins, samples, 2]`.
    fn taps(&self, builder: &mut Builder, samples: i64) -> Result<Taps, Problem> {
        let (start, bin) = self.bins(builder)?;
        let places = [self.count.clone(), Index::constant(self.bins), Index::constant(samples)];
        let of_region = |tensor: TensorId| load(tensor, vec![var(0)]);
        let step = |axis: usize| cast(DType::I64, DType::F32, Expr::Index(var(axis)));
        let part = divide(add(step(2), float(0.5)), float(samples as f64));
        let sample = add(of_region(start), multiply(of_region(bin), add(step(1), part)));
        let sample = builder.map_over(&places, DType::F32, sample)?;
        let (place, counts) = self.place(load(sample, vars(0, 3)));
        let first = builder.map_over(&places, DType::F32, Expr::unary(Unary::Floor, place.clone()))?;
        let first = load(first, vars(0, 3));
        let table = [&places[..], &[Index::constant(2)]].concat();
        let position = Expr::Cast(DType::I64, Box::new(add(first.clone(), step(3))));
        let positions = builder.map_over(&table, DType::I64, position)?;
        let weight = subtract(float(1.0), absolute(subtract(subtract(place, first), step(3))));
        let weight = Expr::select(counts, weight, float(0.0));
        let weights = Some(builder.map_over(&table, DType::F32, weight)?);
        Ok(Taps { positions, weights, count: 2, extent: self.extent.clone(), reads_zeros: false })
    }

    /// How much each element of the side counts in each bin, `[r, bins, extent]`, where every bin has the
    /// least number of samples that are no more than one element apart.
    fn shares(&self, builder: &mut Builder) -> Result<TensorId, Problem> {
        let (start, bin) = self.bins(builder)?;
        let of_region = |tensor: TensorId| load(tensor, vec![var(0)]);
        let samples = Expr::unary(Unary::Ceil, of_region(bin));
        let samples = self.of_region(builder, samples)?;
        // a region of no length has no samples, and divides by nothing
        let divisor = maximum(of_region(samples), float(1.0));
        let step = self.of_region(builder, divide(of_region(bin), divisor.clone()))?;
        // the first sample of each bin
        let ordinal = cast(DType::I64, DType::F32, Expr::Index(var(1)));
        let middle = multiply(float(0.5), of_region(step));
        let first = add(add(of_region(start), multiply(of_region(bin), ordinal)), middle);
        let bins = Index::constant(self.bins);
        let first = builder.map_over(&[self.count.clone(), bins.clone()], DType::F32, first)?;
        let first = || load(first, vars(0, 2));
        // samples that may lie within one element of this one, from the first of them on
        let here = || cast(DType::I64, DType::F32, Expr::Index(var(2)));
        let near = divide(subtract(subtract(here(), float(1.0)), first()), of_region(step));
        let near = maximum(Expr::unary(Unary::Ceil, near), float(0.0));
        let candidate = add(near, cast(DType::I64, DType::F32, Expr::Index(var(3))));
        let (place, counts) = self.place(add(first(), multiply(of_region(step), candidate.clone())));
        let weight = maximum(subtract(float(1.0), absolute(subtract(place, here()))), float(0.0));
        let counts = and(counts, less(candidate, of_region(samples)));
        let value = Expr::select(counts, divide(weight, divisor), float(0.0));
        let extents = [self.count.clone(), bins, self.extent.clone()];
        builder.reduce_over(&extents, &[Index::constant(NEAR_SAMPLES)], Combiner::Sum, DType::F32, value)
    }
}

/// The number of samples depends on the regions, so it is no extent. But an average is linear: the samples of
/// a bin weigh the image's rows and columns, whatever their number, and two products with those weights
/// remain.
fn adaptive_average(
    builder: &mut Builder,
    x: TensorId,
    image: Index,
    rows: &Side,
    columns: &Side,
) -> Result<TensorId, Problem> {
    let channels = builder.extents(x).swap_remove(1);
    let (down, across) = (rows.shares(builder)?, columns.shares(builder)?);
    let read = load(x, vec![image, var(1), var(2), var(4)]);
    let value = multiply(read, load(across, vec![var(0), var(3), var(4)]));
    let (down_to, across_to) = (Index::constant(rows.bins), Index::constant(columns.bins));
    let extents = [rows.count.clone(), channels.clone(), rows.extent.clone(), across_to.clone()];
    let summed = std::slice::from_ref(&columns.extent);
    let narrowed = builder.reduce_over(&extents, summed, Combiner::Sum, DType::F32, value)?;
    let read = load(narrowed, vec![var(0), var(1), var(4), var(3)]);
    let value = multiply(read, load(down, vec![var(0), var(2), var(4)]));
    let extents = [rows.count.clone(), channels, down_to, across_to];
    let summed = std::slice::from_ref(&rows.extent);
    builder.reduce_over(&extents, summed, Combiner::Sum, DType::F32, value)
}
