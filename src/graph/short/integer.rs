//! Sums of products of dequantised numbers, as sums of products of integers:
//!
//! ```text
//! y[n] = Σ_k (s · (x[k] - z)) · (r[n] · w[n, k])
//!
//! i[n] = Σ_k i32(x[k]) · i32(w[n, k])                 the zero point is no part of the sum
//! y[n] = f32(i[n] - z · Σ_k w[n, k]) · (s · r[n])     which sums, products: constants
//! ```
//!
//! (Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
//! Inference", 2018, section 2.3.) A border of zeros becomes one of zero points, so that it belongs to the
//! sums over weights. Weights become i8 wherever they fit once their zero points are subtracted; where they
//! do not, these are multiplied by sums of activations behind, too.

use super::Maps;
use super::integer_constants::{Known, Over};
use super::integer_factor::{Factor, Reader, wide};
use super::integer_products;
use crate::graph::Program;
use crate::graph::lower::math::{cast, literal, load, multiply, subtract, var, vars};
use crate::workload::{Binary, Combiner, DType, Expr, Extents, Role, Stage, TensorId, Var};

/// The greatest difference of a byte and its zero point.
const GREATEST_BYTE: i64 = 255;
/// Integers up to this are exact in f32.
const EXACT_IN_F32: i64 = 1 << 24;

/// Replaces sums of products of quantised activations and weights; whether there were any.
pub fn sums(program: &mut Program) -> bool {
    program.replace_stages(&mut |program, maps, stage| {
        let [first, second] = factors(program, maps, stage)?;
        let is_constant = |factor: &Factor| program.data[factor.tensor.0 as usize].is_some();
        match [is_constant(&first), is_constant(&second)] {
            [true, false] => integer_sum(program, stage, &second, &first, true),
            [false, true] => integer_sum(program, stage, &first, &second, false),
            [false, false] => integer_products::of_activations(program, stage, [&first, &second]),
            [true, true] => None,
        }
    })
}

/// The operands of a sum of products.
fn factors(program: &Program, maps: &Maps, stage: &Stage) -> Option<[Factor; 2]> {
    let Expr::Binary(Binary::Multiply, x, y) = &stage.value else { return None };
    let is_number = matches!(program.tensor(stage.output).dtype, DType::F32 | DType::I32);
    let is_fixed = (stage.spatial.len()..stage.rank()).all(|axis| stage.extents.get(axis).is_none());
    if stage.combiner != Some(Combiner::Sum) || !is_number || !is_fixed {
        return None;
    }
    let reader = Reader { program, maps, stage };
    Some([reader.factor(x)?, reader.factor(y)?])
}

fn integer_sum(
    program: &mut Program,
    stage: &Stage,
    activation: &Factor,
    weight: &Factor,
    weight_is_first: bool,
) -> Option<Vec<Stage>> {
    let weight = Weight::new(program, stage, weight, activation)?;
    let scale = scale_of(program, stage, [activation.scale.as_ref(), weight.scale.as_ref()]);
    let dtype = program.tensor(stage.output).dtype;
    if dtype == DType::F32 && !weight.sums_fit(stage) {
        return None;
    }
    let zero = ZeroPoint::new(program, stage, activation);
    let x = activation.element(zero.outside(activation.dtype));
    let product = |x: Expr, w: Expr| if weight_is_first { multiply(w, x) } else { multiply(x, w) };
    // no instruction for short numbers sums over each channel alone, and f32 are multiplied and added at once
    let floats =
        (dtype == DType::F32 && is_read_everywhere(stage, activation)).then(|| weight.as_floats(program, stage, &zero));
    if let Some((w, shift)) = floats.flatten() {
        let value = product(Expr::Cast(DType::F32, Box::new(x)), w);
        let behind = |sum| scaled(if let Some(shift) = shift { subtract(sum, shift) } else { sum }, scale);
        return Some(with_sum(program, stage, DType::F32, value, behind));
    }
    let (x, w) = (wide(&x), weight.wide(program));
    let value = product(x.clone(), w.clone());
    let shift = zero.times_sum(program, stage, &w)?;
    if dtype == DType::I32 && shift.is_none() && weight.zero.is_none() {
        return (value != stage.value).then(|| vec![Stage { value, ..stage.clone() }]);
    }
    let rows = weight.zero.as_ref().map(|of_weight| {
        let (rows, total) = sum_of(program, stage, &x);
        (rows, multiply(of_weight.clone(), zero.taken_from(total, stage)))
    });
    let (rows, of_rows) = rows.unzip();
    let taken: Vec<Expr> = shift.into_iter().chain(of_rows).collect();
    let behind = |sum| {
        // differences of i32 are longer, and these are not
        let sum = if taken.is_empty() { sum } else { wide(&taken.into_iter().fold(sum, subtract)) };
        if dtype == DType::I32 { sum } else { scaled(Expr::Cast(DType::F32, Box::new(sum)), scale) }
    };
    let stages = with_sum(program, stage, DType::I32, value, behind);
    Some(rows.into_iter().chain(stages).collect())
}

fn scaled(sum: Expr, scale: Option<Expr>) -> Expr {
    if let Some(scale) = scale { multiply(sum, scale) } else { sum }
}

/// A stage that sums up `value` in a type, and one that computes the stage's result from each sum.
pub fn with_sum(
    program: &mut Program,
    stage: &Stage,
    dtype: DType,
    value: Expr,
    behind: impl FnOnce(Expr) -> Expr,
) -> Vec<Stage> {
    let rank = stage.spatial.len();
    let extents = stage.extents.moved(|axis| (axis < rank).then_some(axis));
    let sum = intermediate(program, dtype, stage.spatial.clone(), extents.clone());
    let result = behind(load(sum, vars(0, rank)));
    let result = Stage { extents, ..Stage::map(stage.output, stage.spatial.clone(), result) };
    vec![Stage { output: sum, value, ..stage.clone() }, result]
}

fn intermediate(program: &mut Program, dtype: DType, shape: Vec<i64>, extents: Extents) -> TensorId {
    let tensor = program.add_tensor(shape, dtype, Role::Intermediate);
    program.tensors[tensor.0 as usize].extents = extents;
    tensor
}

/// The product of both scales, rounded to f32 once for each channel.
pub fn scale_of(program: &mut Program, stage: &Stage, scales: [Option<&Expr>; 2]) -> Option<Expr> {
    let product = match scales {
        [Some(x), Some(y)] => multiply(x.clone(), y.clone()),
        [one, other] => one.or(other)?.clone(),
    };
    match Known::new(program, stage, &product, DType::F32, Over::Nothing) {
        Some(known) => Some(known.read(program)),
        None => Some(product),
    }
}

/// A stage that sums a value over the reduction axes, and its result at the point of the spatial ones.
fn sum_of(program: &mut Program, stage: &Stage, value: &Expr) -> (Stage, Expr) {
    let first = stage.spatial.len();
    let axes: Vec<usize> = (0..first).filter(|axis| value.mentions(Var(*axis as u32))).collect();
    let place = |axis: usize| {
        let own = axes.iter().position(|own| *own == axis);
        if axis < first { own } else { Some(axes.len() + axis - first) }
    };
    let spatial: Vec<i64> = axes.iter().map(|axis| stage.spatial[*axis]).collect();
    let extents = stage.extents.moved(place);
    let sum = intermediate(program, DType::I32, spatial.clone(), extents.clone());
    let value =
        value.substitute(&|v: Var| if v.as_parameter().is_some() { None } else { place(v.0 as usize).map(var) });
    let reduced = Stage { extents, ..Stage::reduce(sum, spatial, stage.reduction.clone(), Combiner::Sum, value) };
    (reduced, load(sum, axes.iter().map(|axis| var(*axis)).collect()))
}

/// What stands for 0 among activations, as a number of i32.
pub enum ZeroPoint {
    None,
    Literal(i64),
    RunTime(Expr),
}

impl ZeroPoint {
    pub fn new(program: &Program, stage: &Stage, factor: &Factor) -> ZeroPoint {
        let Some(zero) = &factor.zero else { return ZeroPoint::None };
        let known = Known::new(program, stage, zero, DType::I32, Over::Nothing);
        match known.and_then(|known| known.uniform()) {
            Some(0.0) => ZeroPoint::None,
            Some(value) => ZeroPoint::Literal(value as i64),
            None => ZeroPoint::RunTime(zero.clone()),
        }
    }

    fn value(&self) -> Expr {
        match self {
            ZeroPoint::None => literal(DType::I32, 0.0),
            ZeroPoint::Literal(value) => literal(DType::I32, *value as f64),
            ZeroPoint::RunTime(value) => value.clone(),
        }
    }

    /// What a border holds.
    fn outside(&self, dtype: DType) -> Expr {
        match self {
            ZeroPoint::None => literal(dtype, 0.0),
            ZeroPoint::Literal(value) => literal(dtype, *value as f64),
            ZeroPoint::RunTime(value) => Expr::Cast(dtype, Box::new(value.clone())),
        }
    }

    /// A sum of activations over the reduction axes, less the zero points in it.
    fn taken_from(&self, total: Expr, stage: &Stage) -> Expr {
        if matches!(self, ZeroPoint::None) {
            return total;
        }
        let depth = literal(DType::I32, stage.reduction.iter().product::<i64>() as f64);
        subtract(total, multiply(depth, self.value()))
    }

    /// Its product with the sum of what it is multiplied by; the outer `None` where that is not known.
    #[expect(clippy::option_option, reason = "nothing to subtract is not the same as something unknown")]
    fn times_sum(&self, program: &mut Program, stage: &Stage, weight: &Expr) -> Option<Option<Expr>> {
        let known = |program: &Program, value: &Expr| Known::new(program, stage, value, DType::I32, Over::Reduction);
        let product = match self {
            ZeroPoint::None => return Some(None),
            ZeroPoint::Literal(_) => known(program, &multiply(self.value(), weight.clone()))?.read(program),
            ZeroPoint::RunTime(zero) => multiply(zero.clone(), known(program, weight)?.read(program)),
        };
        Some(Some(product))
    }
}

/// The constant factor, as i8, or as i32 where that costs less.
struct Weight {
    element: Expr,
    /// What is to be subtracted from each element still, of i32; `None`: nothing.
    zero: Option<Expr>,
    scale: Option<Expr>,
    /// Of an element and of its zero point.
    greatest: i64,
}

impl Weight {
    fn new(program: &mut Program, stage: &Stage, factor: &Factor, activation: &Factor) -> Option<Weight> {
        let border = literal(factor.dtype, 0.0);
        let element = factor.element(border);
        let scale = factor.scale.clone();
        let zero = factor.zero.clone().unwrap_or(literal(DType::I32, 0.0));
        let own_zero = Known::new(program, stage, &zero, DType::I32, Over::Nothing)?;
        let inside = subtract(wide(&factor.element_inside()), zero.clone());
        let shifted = Expr::guard(factor.guards.clone(), inside, literal(DType::I32, 0.0));
        let shifted = Known::new(program, stage, &shifted, DType::I32, Over::Nothing)?;
        let (low, high) = shifted.range()?;
        let most = 2 * program.tensor(factor.tensor).elements();
        if own_zero.uniform() == Some(0.0) && factor.dtype == DType::I8 {
            return Some(Weight { element, zero: None, scale, greatest: low.abs().max(high.abs()) });
        }
        if shifted.data.elements() > most {
            return None;
        }
        let fits_byte = low >= DType::I8.least() && high <= DType::I8.greatest();
        if fits_byte || is_read_everywhere(stage, activation) {
            let element = stored(program, &shifted, if fits_byte { DType::I8 } else { DType::I32 }, 0)?;
            return Some(Weight { element, zero: None, scale, greatest: low.abs().max(high.abs()) });
        }
        if !factor.guards.is_empty() {
            return None;
        }
        let by = if factor.dtype == DType::U8 { 1 << 7 } else { 0 };
        let own = Known::new(program, stage, &wide(&element), DType::I32, Over::Nothing)?;
        let element = if by == 0 { element } else { stored(program, &own, DType::I8, by)? };
        let zero = subtract(zero, literal(DType::I32, by as f64));
        let zero = Known::new(program, stage, &zero, DType::I32, Over::Nothing)?.read(program);
        Some(Weight { element, zero: Some(zero), scale, greatest: 2 * GREATEST_BYTE })
    }

    /// Its element as one of i32.
    fn wide(&self, program: &Program) -> Expr {
        let dtype = self.element.dtype(&|tensor| program.tensor(tensor).dtype);
        cast(dtype, DType::I32, self.element.clone())
    }

    /// Its element in f32, and what is to be subtracted from sums of products with it, where f32 holds all of
    /// them exactly.
    fn as_floats(&self, program: &mut Program, stage: &Stage, zero: &ZeroPoint) -> Option<(Expr, Option<Expr>)> {
        let is_known = !matches!(zero, ZeroPoint::RunTime(_)) && self.zero.is_none();
        if !is_known || self.greatest_sum(stage).is_none_or(|most| most > EXACT_IN_F32) {
            return None;
        }
        let wide = Expr::Cast(DType::F32, Box::new(self.element.clone()));
        let element = Known::new(program, stage, &wide, DType::F32, Over::Nothing)?;
        let shift = match zero {
            ZeroPoint::Literal(value) => {
                let product = multiply(Expr::float(*value as f64), wide);
                Some(Known::new(program, stage, &product, DType::F32, Over::Reduction)?.read(program))
            }
            _ => None,
        };
        Some((element.read(program), shift))
    }

    /// Whether no sum leaves 32 bits, nor any part of it.
    fn sums_fit(&self, stage: &Stage) -> bool {
        self.greatest_sum(stage).is_some_and(|most| most <= DType::I32.greatest())
    }

    /// How large a sum can be; `None` where that is beyond all integers.
    fn greatest_sum(&self, stage: &Stage) -> Option<i64> {
        let depth = stage.reduction.iter().try_fold(1i64, |depth, extent| depth.checked_mul(*extent));
        depth.and_then(|depth| depth.checked_mul(GREATEST_BYTE * self.greatest))
    }
}

/// Whether a sum of activations for each point of the output would be as much work as the sum of products, as
/// in depthwise convolutions.
fn is_read_everywhere(stage: &Stage, activation: &Factor) -> bool {
    let element = activation.element_inside();
    (0..stage.spatial.len()).all(|axis| stage.is_unit(axis) || element.mentions(Var(axis as u32)))
}

/// Integers, less a number, in a constant.
fn stored(program: &mut Program, known: &Known, dtype: DType, less: i64) -> Option<Expr> {
    let elements = known.data.integers()?;
    let shorter = known.of_type(dtype, elements.into_iter().map(|element| element - less));
    let (tensor, indices) = shorter.stored(program);
    Some(load(tensor, indices))
}
