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
use super::contrib::call;
use super::math::{
    add, and, cast, divide, float, less, literal, load, log, maximum, multiply, not, sqrt, subtract, var, vars,
};
use super::operator::{Attribute, Operator, Problem};
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

/// `Multinomial`: classes by logarithms of their probabilities, but for a common factor. The class is the one
/// with the greatest `x - ln e`, where `e` is a number of the exponential distribution for each of them
/// (Gumbel, 1954).
pub fn multinomial(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let (extents, from) = (builder.extents(input), builder.dtype(input));
    let [batch, classes] = &extents[..] else {
        return Err(Problem::Shape(format!("{:?} has not two dimensions", builder.shape(input))));
    };
    let samples = op.int("sample_size", 1)?;
    if !from.is_float() || samples < 1 {
        return Err(match samples {
            1.. => Problem::Type { input: 0, dtype: from },
            _ => Problem::AttributeValue { name: "sample_size", value: samples.to_string() },
        });
    }
    let dtype = type_of_result(op, DType::I32)?;
    let extents = [batch.clone(), Index::constant(samples), classes.clone()];
    let seed = seed(builder, op)?;
    let exponential = multiply(float(-1.0), log(positive(&place(&extents), seed)));
    let exponential = maximum(exponential, float(2f64.powi(-25)));
    let logarithm = cast(from, DType::F32, load(input, vec![var(0), var(2)]));
    let noisy = builder.map_over(&extents, DType::F32, subtract(logarithm, log(exponential)))?;
    let attributes = [("axis", Attribute::Int(2)), ("keepdims", Attribute::Int(0))];
    let class = call(builder, op, "ArgMax", &[Some(noisy)], &attributes)?;
    let value = cast(DType::I64, dtype, load(class, vars(0, 2)));
    Ok(vec![builder.map_over(&extents[..2], dtype, value)?])
}

/// `Dropout`: in training, elements are 0 with a probability, and the others are greater by as much as keeps
/// the mean. Whether it is training may be computed.
pub fn dropout(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let (extents, dtype) = (builder.extents(input), builder.dtype(input));
    // before opset 10 the mask had the type of the data
    let of_mask = if op.opset < 10 { dtype } else { DType::Bool };
    let ratio = op.optional(1);
    let training = op.optional(2);
    let is_off = |training: TensorId| builder.integers(training).as_deref() == Some(&[0]);
    if training.is_none_or(is_off) || ratio.is_some_and(|ratio| builder.scalar(ratio) == Some(0.0)) {
        let mask = op.wants_output(1).then(|| builder.map_over(&extents, of_mask, literal(of_mask, 1.0)));
        return Ok([Some(input), mask.transpose()?].into_iter().flatten().collect());
    }
    if !dtype.is_float() {
        return Err(Problem::Type { input: 0, dtype });
    }
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let single = |operand: Option<TensorId>, to: DType, default: Expr| match operand {
        Some(tensor) if builder.shape(tensor).iter().product::<i64>() == 1 => {
            let zeros = vec![Index::constant(0); builder.rank(tensor)];
            Ok(cast(builder.dtype(tensor), to, load(tensor, zeros)))
        }
        Some(tensor) => Err(Problem::Shape(format!("{:?} is no single value", builder.shape(tensor)))),
        None => Ok(default),
    };
    let ratio = single(ratio, wide, literal(wide, 0.5))?;
    let trains = single(training, DType::Bool, literal(DType::Bool, 0.0))?;
    let seed = seed(builder, op)?;
    let is_dropped = less(cast(DType::F32, wide, uniform(&place(&extents), seed, 0)), ratio.clone());
    let keeps = not(and(trains.clone(), is_dropped));
    let mask = builder.map_over(&extents, of_mask, cast(DType::Bool, of_mask, keeps.clone()))?;
    let x = cast(dtype, wide, load(input, vars(0, extents.len())));
    let one = || literal(wide, 1.0);
    let larger = divide(x.clone(), subtract(one(), ratio));
    let kept = Expr::select(trains, larger, x);
    let value = cast(wide, dtype, Expr::select(keeps, kept, literal(wide, 0.0)));
    Ok(vec![builder.map_over(&extents, dtype, value)?, mask])
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
    // those that only draw have a float for a seed, `Dropout` has an integer
    Ok(match op.attributes.get("seed") {
        Some(Attribute::Int(seed)) => seed.cast_unsigned(),
        Some(_) => u64::from((op.float("seed", 0.0)? as f32).to_bits()),
        None => (1 << 32) + number,
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

/// f32 in `0..=1`, but never 0.
fn positive(place: &Expr, seed: u64) -> Expr {
    multiply(add(whole(place, seed, 0), float(1.0)), float(2f64.powi(-24)))
}

/// `√(-2 ln u) · sin 2πv` of two uniform numbers, the first of which is never 0. (Box and Muller, "A note on
/// the generation of random normal deviates", 1958)
fn normal(place: &Expr, seed: u64) -> Expr {
    let radius = sqrt(multiply(float(-2.0), log(positive(place, seed))));
    let angle = multiply(uniform(place, seed, 1), float(std::f64::consts::TAU));
    multiply(radius, Expr::unary(Unary::Sin, angle))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{bernoulli, dropout, multinomial, random};
    use crate::graph::TensorData;
    use crate::graph::lower::{Attribute, Builder, Operand, Operator, Problem};
    use crate::workload::TensorId;

    type Lowered = Result<Vec<TensorId>, Problem>;

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

    /// What an operator gives for inputs that are known.
    fn results(rule: fn(&mut Builder, &Operator) -> Lowered, op: Operator, inputs: &[TensorData]) -> Vec<Vec<f64>> {
        let mut builder = Builder::new(u64::MAX);
        let inputs = inputs.iter().map(|data| builder.constant(data.clone()));
        let inputs = inputs.map(|tensor| Some(Operand { tensor, only_reader: true })).collect();
        let outputs = rule(&mut builder, &Operator { inputs, ..op }).unwrap();
        outputs.into_iter().map(|tensor| builder.data(tensor).unwrap().to_f64()).collect()
    }

    #[test]
    fn what_is_not_dropped_makes_up_for_what_is() {
        let x = TensorData::from_f32(vec![40_000], &vec![3.0; 40_000]);
        let ratio = TensorData::from_f32(vec![], &[0.25]);
        let given = |training: bool| [x.clone(), ratio.clone(), TensorData::from_bool(vec![], &[training])];
        let op = || Operator { outputs: vec![true, true], ..operator("Dropout", &[("seed", Attribute::Int(7))]) };
        let trained = results(dropout, op(), &given(true));
        let dropped = trained[0].iter().filter(|value| **value == 0.0).count() as f64 / 40_000.0;
        assert!((dropped - 0.25).abs() < 0.01, "{dropped}");
        let fits = |(value, kept): (&f64, &f64)| *value == if *kept == 1.0 { 4.0 } else { 0.0 };
        assert!(trained[0].iter().zip(&trained[1]).all(fits));
        let used = results(dropout, op(), &given(false));
        assert!(used[0].iter().all(|value| *value == 3.0) && used[1].iter().all(|kept| *kept == 1.0));
    }

    #[test]
    fn classes_are_drawn_by_their_probabilities() {
        let logarithms: Vec<f32> = [0.5f32, 0.0, 1.5, 2.0].iter().map(|share| share.ln()).collect();
        let x = TensorData::from_f32(vec![1, 4], &logarithms);
        let op = operator("Multinomial", &[("sample_size", Attribute::Int(40_000))]);
        let drawn = &results(multinomial, op, &[x])[0];
        let share = |class: f64| drawn.iter().filter(|value| **value == class).count() as f64 / 40_000.0;
        let shares = [0.0, 1.0, 2.0, 3.0].map(share);
        for (found, wanted) in shares.iter().zip([0.125, 0.0, 0.375, 0.5]) {
            assert!((found - wanted).abs() < 0.01, "{shares:?}");
        }
    }
}
