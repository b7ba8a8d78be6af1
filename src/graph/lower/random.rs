//! Random tensors.
//!
//! A generator by counting: an element is a function of the operator's seed and of its own place in the
//! tensor, so that it is computed where it is needed, in any order. ONNX leaves open what a random number is;
//! here every run of a compiled network draws the same ones. An operator without a seed has its number among
//! the random operators of the network for one, and so draws other numbers than the others.
//!
//! ```text
//! x = (place + key(seed)) · A     x = x ^ (x >> 32)     x = x · B     x = x ^ (x >> 29)     (x · C) >> 32
//! ```
//!
//! in 64 bits without a sign: two rounds of multiplication and shift, as finalisers of hash functions have
//! them. A change of one bit of the place changes every bit of the result with a probability of ½ (within
//! 0.003), and neighbours are not correlated. A float takes the upper 24 of its 32 bits.

use super::builder::{Builder, flat_index};
use super::math::{add, cast, float, less, load, log, multiply, sqrt, var, vars};
use super::operator::{Operator, Problem};
use crate::workload::{Binary, DType, Expr, Index, TensorId, Unary};

/// Odd, below 2^40, as literals have to be.
const MULTIPLIERS: [i64; 3] = [0x9e_3779_b97f, 0xd6_e8fe_b867, 0xbf_5847_6d1d];
const SHIFTS: [i64; 2] = [32, 29];

/// `RandomUniform`, `RandomNormal`, and their likes that take shape and type from an input.
pub fn random(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let like = op.kind.ends_with("Like").then(|| op.input(0)).transpose()?;
    let extents = match like {
        Some(tensor) => builder.extents(tensor),
        None => {
            let shape = op.ints("shape")?.ok_or(Problem::MissingAttribute("shape"))?;
            Builder::check_shape(shape)?;
            shape.iter().copied().map(Index::constant).collect()
        }
    };
    let default = like.map_or(DType::F32, |tensor| builder.dtype(tensor));
    let dtype = type_of_result(op, default)?;
    if !dtype.is_float() {
        return Err(Problem::AttributeValue { name: "dtype", value: dtype.name().to_string() });
    }
    let (seed, place) = (seed(builder, op)?, place(&extents));
    let value = match op.kind.as_str() {
        "RandomUniform" | "RandomUniformLike" => {
            let (low, high) = (op.float("low", 0.0)?, op.float("high", 1.0)?);
            add(multiply(uniform(&place, seed, 0), float(high - low)), float(low))
        }
        _ => {
            let (mean, scale) = (op.float("mean", 0.0)?, op.float("scale", 1.0)?);
            add(multiply(normal(&place, seed), float(scale)), float(mean))
        }
    };
    Ok(vec![builder.map_over(&extents, dtype, cast(DType::F32, dtype, value))?])
}

/// `Bernoulli`: 1 with the probability that the input says, else 0.
pub fn bernoulli(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let (extents, from) = (builder.extents(input), builder.dtype(input));
    if !from.is_float() {
        return Err(Problem::Type { input: 0, dtype: from });
    }
    let dtype = type_of_result(op, from)?;
    let seed = seed(builder, op)?;
    let wide = if from == DType::F64 { DType::F64 } else { DType::F32 };
    let probability = cast(from, wide, load(input, vars(0, extents.len())));
    let happens = less(cast(DType::F32, wide, uniform(&place(&extents), seed, 0)), probability);
    let value = cast(DType::Bool, dtype, happens);
    Ok(vec![builder.map_over(&extents, dtype, value)?])
}

fn type_of_result(op: &Operator, default: DType) -> Result<DType, Problem> {
    match op.optional_int("dtype")? {
        None => Ok(default),
        Some(code) => {
            DType::from_onnx(code).ok_or_else(|| Problem::AttributeValue { name: "dtype", value: code.to_string() })
        }
    }
}

/// The attribute's bits, or the operator's number behind all of those.
fn seed(builder: &mut Builder, op: &Operator) -> Result<u64, Problem> {
    let number = builder.next_random();
    Ok(match op.has("seed") {
        true => u64::from((op.float("seed", 0.0)? as f32).to_bits()),
        false => (1 << 32) + number,
    })
}

/// 39 bits of a seed and of the number of a stream. (Steele, Lea and Flood, "Fast splittable pseudorandom
/// number generators", 2014)
fn key(seed: u64, stream: u64) -> i64 {
    let mut x = seed.wrapping_add((stream + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 25).cast_signed()
}

/// The place of an element in the tensor, in the order of memory. Where extents are known only when the
/// network runs, it is computed then: the numbers are those of a network whose extents are fixed.
fn place(extents: &[Index]) -> Expr {
    let shape: Option<Vec<i64>> = extents.iter().map(Index::as_constant).collect();
    match shape {
        Some(shape) => Expr::Index(flat_index(&shape, &vars(0, shape.len()))),
        None => extents.iter().enumerate().fold(Expr::integer(0), |rows, (axis, extent)| {
            add(multiply(rows, Expr::Index(extent.clone())), Expr::Index(var(axis)))
        }),
    }
}

/// 32 random bits for a place.
fn bits(place: &Expr, seed: u64, stream: u64) -> Expr {
    let constant = |value: i64| cast(DType::I64, DType::U64, Expr::integer(value));
    let mut x = add(cast(DType::I64, DType::U64, place.clone()), constant(key(seed, stream)));
    for (multiplier, shift) in MULTIPLIERS.into_iter().zip(SHIFTS) {
        x = multiply(x, constant(multiplier));
        let shifted = Expr::binary(Binary::ShiftRight, x.clone(), constant(shift));
        x = Expr::binary(Binary::BitXor, x, shifted);
    }
    Expr::binary(Binary::ShiftRight, multiply(x, constant(MULTIPLIERS[2])), constant(32))
}

/// The upper 24 of the bits as f32, which holds them all.
fn whole(place: &Expr, seed: u64, stream: u64) -> Expr {
    let shift = cast(DType::I64, DType::U64, Expr::integer(8));
    cast(DType::U64, DType::F32, Expr::binary(Binary::ShiftRight, bits(place, seed, stream), shift))
}

/// f32 in `0..1`.
fn uniform(place: &Expr, seed: u64, stream: u64) -> Expr {
    multiply(whole(place, seed, stream), float(2f64.powi(-24)))
}

/// `√(-2 ln u) · sin 2πv` of two uniform numbers, the first of which is never 0. (Box and Muller, "A note on
/// the generation of random normal deviates", 1958)
fn normal(place: &Expr, seed: u64) -> Expr {
    let positive = multiply(add(whole(place, seed, 0), float(1.0)), float(2f64.powi(-24)));
    let radius = sqrt(multiply(float(-2.0), log(positive)));
    let angle = multiply(uniform(place, seed, 1), float(std::f64::consts::TAU));
    multiply(radius, Expr::unary(Unary::Sin, angle))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{bernoulli, random};
    use crate::graph::TensorData;
    use crate::graph::lower::{Attribute, Builder, Operand, Operator};

    fn operator(kind: &str, attributes: &[(&str, Attribute)]) -> Operator {
        let attributes = attributes.iter().map(|(name, value)| (name.to_string(), value.clone()));
        let attributes: BTreeMap<String, Attribute> = attributes.collect();
        Operator { kind: kind.to_string(), opset: 22, attributes, inputs: vec![], outputs: vec![true] }
    }

    fn draw(builder: &mut Builder, kind: &str, attributes: &[(&str, Attribute)]) -> Vec<f64> {
        let shape = ("shape", Attribute::Ints(vec![64, 1000]));
        let op = operator(kind, &[attributes, &[shape]].concat());
        let tensor = random(builder, &op).unwrap()[0];
        // so few elements are computed at once
        builder.data(tensor).unwrap().to_f64()
    }

    fn moments(values: &[f64]) -> (f64, f64) {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        (mean, values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64)
    }

    #[test]
    fn numbers_are_distributed_as_they_should_be() {
        let mut builder = Builder::new(u64::MAX);
        let bounds = [("low", Attribute::Float(-2.0)), ("high", Attribute::Float(4.0))];
        let uniform = draw(&mut builder, "RandomUniform", &bounds);
        assert!(uniform.iter().all(|x| (-2.0..=4.0).contains(x)));
        let (mean, variance) = moments(&uniform);
        assert!((mean - 1.0).abs() < 0.03 && (variance - 3.0).abs() < 0.05, "{mean} {variance}");
        let shape = [("mean", Attribute::Float(5.0)), ("scale", Attribute::Float(2.0))];
        let (mean, variance) = moments(&draw(&mut builder, "RandomNormal", &shape));
        assert!((mean - 5.0).abs() < 0.04 && (variance - 4.0).abs() < 0.1, "{mean} {variance}");
    }

    #[test]
    fn a_seed_decides_and_operators_without_one_differ() {
        let mut builder = Builder::new(u64::MAX);
        let mut of = |seed: Option<f32>| {
            let seed: Vec<_> = seed.map(|seed| ("seed", Attribute::Float(seed))).into_iter().collect();
            draw(&mut builder, "RandomNormal", &seed)
        };
        assert_eq!(of(Some(3.0)), of(Some(3.0)));
        let others = [of(Some(3.0)), of(Some(4.0)), of(None), of(None)];
        for (at, numbers) in others.iter().enumerate() {
            assert!(others[..at].iter().all(|other| other != numbers), "{at}");
        }
    }

    #[test]
    fn probabilities_are_kept() {
        let mut builder = Builder::new(u64::MAX);
        let probabilities: Vec<f32> = (0..40_000).map(|at| [0.0, 0.3, 1.0, 0.3][at % 4]).collect();
        let tensor = builder.constant(TensorData::from_f32(vec![40_000], &probabilities));
        let mut op = operator("Bernoulli", &[("dtype", Attribute::Int(9))]);
        op.inputs = vec![Some(Operand { tensor, only_reader: true })];
        let drawn = bernoulli(&mut builder, &op).unwrap()[0];
        let drawn = builder.data(drawn).unwrap().to_f64();
        let share = |first: usize| drawn.iter().skip(first).step_by(4).sum::<f64>() / 10_000.0;
        assert_eq!((share(0), share(2)), (0.0, 1.0));
        assert!((share(1) - 0.3).abs() < 0.02 && (share(3) - 0.3).abs() < 0.02, "{}", share(1));
    }
}
