//! What becomes of a sum before it is stored: corrections by zero points, scales, bias, residuals,
//! activations, and the type in memory.

use rand::Rng;

use super::super::{Builder, axes, axis};
use super::{Product, add, cast, integer, literal, multiply, subtract};
use crate::workload::{Binary, DType, Expr, Role, TensorId, Unary};

/// Root mean square of what checks fill a tensor with.
fn size(dtype: DType) -> f64 {
    match dtype {
        DType::U8 => 147.0,
        DType::I8 => 74.0,
        DType::I32 => 577.0,
        _ => 0.66,
    }
}

/// About how large a sum is. Checks make small floats of constants, so that sums stay as large as one
/// product.
fn spread_of(product: &Product) -> f64 {
    let of_one = product.read.map(size).iter().product::<f64>();
    let is_small = product.by_constants && product.types.is_float();
    if is_small { of_one } else { of_one * (product.depth as f64).sqrt() }
}

/// Stores a sum, or what follows from it.
pub(super) fn store(b: &mut Builder, product: &Product) {
    let shape = b.shape(product.sum);
    let sum = Expr::load(product.sum, axes(shape.len()));
    if product.types.is_float() {
        return activate(b, product, sum, spread_of(product));
    }
    let corrected = corrected(b, product, sum);
    if b.chance(0.15) {
        b.map_to(DType::I32, &shape, corrected);
        return;
    }
    let spread = b.pick(&[0.3, 1.0, 5.0]);
    let scale = literal(spread / spread_of(product));
    let scaled = multiply(scale, cast(DType::F32, corrected));
    let scaled = if b.chance(0.3) {
        // a scale for each channel
        let scales = b.tensor(&[shape[product.channel]], DType::F32, Role::Constant);
        multiply(Expr::load(scales, vec![axis(product.channel)]), scaled)
    } else {
        scaled
    };
    activate(b, product, scaled, spread);
}

/// What zero points leave behind is taken off an integer sum: of columns, which are constants, and of rows.
fn corrected(b: &mut Builder, product: &Product, sum: Expr) -> Expr {
    let shape = b.shape(product.sum);
    let mut value = sum;
    // what bytes without a sign add up to
    let mean: i64 = product.read.iter().map(|dtype| if *dtype == DType::U8 { 127 } else { 0 }).product();
    if mean > 0 {
        value = subtract(value, integer(mean * product.depth));
    }
    if b.chance(0.6) {
        let columns = b.tensor(&[shape[product.channel]], DType::I32, Role::Constant);
        value = subtract(value, Expr::load(columns, vec![axis(product.channel)]));
    }
    if b.chance(0.35) {
        let kept: Vec<usize> = (0..shape.len()).filter(|d| *d != product.channel).collect();
        let extents: Vec<i64> = kept.iter().map(|d| shape[*d]).collect();
        let rows = b.tensor(&extents, DType::I32, Role::Input);
        let load = Expr::load(rows, kept.into_iter().map(axis).collect());
        let (zero, other) = (b.random.random_range(-40..40), b.random.random_range(0..256));
        let rows = subtract(load, multiply(integer(product.depth), integer(other)));
        value = subtract(value, multiply(integer(zero), rows));
    }
    value
}

/// So few values have no activation with tails.
const FEW_VALUES: i64 = 32;

/// Bias, residual, activation, and the store. Values are about as large as `spread`.
fn activate(b: &mut Builder, product: &Product, value: Expr, spread: f64) {
    let shape = b.shape(product.sum);
    let mut value = value;
    if b.chance(0.6) {
        let bias = b.tensor(&[shape[product.channel]], DType::F32, Role::Constant);
        value = add(Expr::load(bias, vec![axis(product.channel)]), value);
    }
    if b.chance(0.3) {
        let residual = residual(b, &shape);
        value = add(value, residual);
    }
    // where all of few values lie in a tail, nothing is left of them but what cancellation leaves
    let has_tails = shape.iter().product::<i64>() < FEW_VALUES;
    value = match b.random.random_range(0..8) {
        3 | 4 if has_tails => value,
        0 | 1 => Expr::binary(Binary::Maximum, literal(0.0), value),
        2 => between(value, 0.0, 6.0),
        // what is read several times is stored first
        3 => apply(b, &shape, value, gelu),
        4 => apply(b, &shape, value, |x| multiply(x(), Expr::unary(Unary::Sigmoid, x()))),
        _ => value,
    };
    match b.random.random_range(0..20) {
        0..8 => drop(b.map_to(DType::BF16, &shape, cast(DType::BF16, value))),
        8..12 => drop(b.map_to(DType::F32, &shape, value)),
        _ => requantise(b, &shape, value, spread),
    }
}

fn gelu(x: &dyn Fn() -> Expr) -> Expr {
    let erf = Expr::unary(Unary::Erf, Expr::binary(Binary::Divide, x(), literal(std::f64::consts::SQRT_2)));
    multiply(x(), multiply(literal(0.5), add(literal(1.0), erf)))
}

/// A function of a value that it reads more than once.
fn apply(b: &mut Builder, shape: &[i64], value: Expr, function: impl Fn(&dyn Fn() -> Expr) -> Expr) -> Expr {
    let stored = b.map_to(DType::F32, shape, value);
    function(&|| Expr::load(stored, axes(shape.len())))
}

/// Another tensor of the output's shape: bf16, f32, or bytes with a scale and a zero point.
fn residual(b: &mut Builder, shape: &[i64]) -> Expr {
    let dtype = b.pick(&[DType::BF16, DType::F32, DType::U8, DType::I8]);
    let tensor = b.tensor(shape, dtype, Role::Input);
    let load = Expr::load(tensor, axes(shape.len()));
    match dtype {
        DType::F32 => load,
        DType::BF16 => cast(DType::F32, load),
        _ => {
            let zero = b.random.random_range(dtype.least()..=dtype.greatest());
            let scale = literal(b.random.random_range(0.001..0.02));
            let difference = subtract(cast(DType::I32, load), integer(zero));
            multiply(scale, cast(DType::F32, difference))
        }
    }
}

fn between(value: Expr, low: f64, high: f64) -> Expr {
    Expr::binary(Binary::Minimum, literal(high), Expr::binary(Binary::Maximum, literal(low), value))
}

/// ```text
/// cast u8 min 255.0 max 0.0 add zero round div value scale
/// ```
fn requantise(b: &mut Builder, shape: &[i64], value: Expr, spread: f64) {
    let dtype = b.pick(&[DType::U8, DType::U8, DType::I8]);
    // the zero point lies in the middle, or where a ReLU ends
    let middle = (dtype.least() + dtype.greatest()) / 2;
    let zero = if b.chance(0.7) { middle + b.random.random_range(-20..20) } else { dtype.least() };
    let scale = literal((spread + 0.5) / b.random.random_range(20.0..90.0));
    let steps = Expr::unary(Unary::Round, Expr::binary(Binary::Divide, value, scale));
    let moved = if zero == 0 { steps } else { add(literal(zero as f64), steps) };
    let clamped = between(moved, dtype.least() as f64, dtype.greatest() as f64);
    if b.chance(0.2) {
        // attention multiplies such numbers as bf16, which holds them
        b.map_to(DType::BF16, shape, cast(DType::BF16, subtract(clamped, literal(zero as f64))));
        return;
    }
    b.map_to(dtype, shape, cast(dtype, clamped));
}

/// What a sum of floats is stored as where no channel is meant.
pub(super) fn store_plain(b: &mut Builder, sum: TensorId) {
    let shape = b.shape(sum);
    let load = Expr::load(sum, axes(shape.len()));
    match b.chance(0.4) {
        true => b.map_to(DType::BF16, &shape, cast(DType::BF16, load)),
        false => b.map_to(DType::F32, &shape, load),
    };
}
