//! Discrete Fourier transforms: products with constant matrices of roots of unity.
//!
//! A transform of up to [`DIRECT_LENGTH`] samples is a single product. A longer one is split by a factor of
//! its length (J. W. Cooley and J. W. Tukey, "An algorithm for the machine calculation of complex Fourier
//! series", 1965): products with two smaller matrices, and a rotation of each element between them; the
//! second is split again as long as it is long. That takes about `n · sqrt(n)` operations, all of them in
//! products. A length that has no factor to be split by is one product up to [`LONGEST_PRODUCT`], and refused
//! above.

use std::f64::consts::TAU;

use super::builder::Builder;
use super::layout::{Strided, permute, strided};
use super::math::{add, cast, divide, float, load, multiply, var, vars, within};
use super::operator::{Operator, Problem, normal_axis};
use super::padding;
use super::reshape::{reshape_to, reshape_to_extents};
use crate::graph::TensorData;
use crate::workload::{Binary, Combiner, DType, Expr, Index, TensorId, Unary};

/// Up to so many samples are never split: the product's operand stays small.
const DIRECT_LENGTH: i64 = 512;
/// The longest part that is split off.
const LONGEST_FACTOR: i64 = 64;
/// A shorter part is split off only where it has to be.
const SHORTEST_FACTOR: i64 = 8;
/// Samples of the longest product: its matrix has 64 MiB.
const LONGEST_PRODUCT: i64 = 2048;

/// `DFT`: the axis is an attribute before opset 20, an input since.
pub fn dft(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let x = op.input(0)?;
    let shape = builder.shape(x);
    let parts = complex_parts(builder, x)?;
    let axis = match op.optional(2) {
        _ if op.opset < 20 => op.int("axis", 1)?,
        Some(_) => builder.integer_input(op, 2)?,
        None => -2,
    };
    let axis = normal_axis(axis, shape.len())?;
    if axis + 1 == shape.len() {
        return Err(Problem::AttributeValue { name: "axis", value: "that of real and imaginary parts".to_string() });
    }
    let (inverse, onesided) = (op.flag("inverse", false)?, op.flag("onesided", false)?);
    if onesided && (parts == 2) != inverse {
        let kind = if inverse { "inverse transform of real" } else { "transform of complex" };
        return Err(Problem::Shape(format!("a one-sided {kind} numbers does not exist")));
    }
    let extents = builder.extents(x);
    let samples = extents[axis].clone();
    // the signals as rows, [rows, samples, parts]
    let mut order: Vec<usize> = (0..shape.len() - 1).filter(|d| *d != axis).collect();
    let outer: Vec<Index> = order.iter().map(|d| extents[*d].clone()).collect();
    order.extend([axis, shape.len() - 1]);
    let moved = permute(builder, x, &order)?;
    let rows = builder.formulas.product(&outer)?;
    let rows = reshape_to_extents(builder, moved, &[rows, samples.clone(), Index::constant(parts)])?;
    let result = match samples.as_constant() {
        None if onesided || op.optional(1).is_some() => return Err(builder.unsupported_extents()),
        None => of_any_length(builder, rows, inverse)?,
        Some(samples) => {
            let length = match op.optional(1) {
                Some(_) => builder.integer_input(op, 1)?,
                None if inverse && onesided => 2 * (samples - 1),
                None => samples,
            };
            check_length(length)?;
            match (inverse, onesided) {
                (true, true) => real_inverse(builder, rows, length)?,
                (true, false) => {
                    let whole = Transform { length, sign: 1.0, scale: 1.0 / length as f64, outputs: length, parts: 2 };
                    whole.of(builder, rows)?
                }
                (false, _) => Transform::forward(length, onesided).of(builder, rows)?,
            }
        }
    };
    let of_result = builder.extents(result);
    let result = reshape_to_extents(builder, result, &[&outer[..], &of_result[1..]].concat())?;
    let mut back = vec![0; order.len()];
    order.iter().enumerate().for_each(|(position, d)| back[*d] = position);
    Ok(vec![permute(builder, result, &back)?])
}

/// `STFT`: transforms of frames, each multiplied by a window.
pub fn stft(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let mut signal = op.input(0)?;
    if builder.rank(signal) == 2 {
        // of real numbers, as ONNX Runtime takes it, too
        let extents = [&builder.extents(signal)[..], &[Index::constant(1)]].concat();
        signal = reshape_to_extents(builder, signal, &extents)?;
    }
    let parts = complex_parts(builder, signal)?;
    let extents = builder.extents(signal);
    let [batch, samples, _] = &extents[..] else {
        return Err(Problem::Shape(format!("{:?} is not 3-dimensional", builder.shape(signal))));
    };
    let step = builder.integer_input(op, 1)?;
    let window = op.optional(2);
    let window_shape = window.map(|window| builder.shape(window));
    let length = match (op.optional(3), window_shape.as_deref()) {
        (Some(_), _) => builder.integer_input(op, 3)?,
        (None, Some([size])) => *size,
        (None, _) => samples.as_constant().ok_or_else(|| builder.unsupported_extents())?,
    };
    check_length(length)?;
    if step < 1 || samples.as_constant().is_some_and(|samples| samples < length) {
        let samples = builder.formulas.spelled(samples);
        return Err(Problem::Shape(format!("frames of {length} samples, {step} apart, do not fit into {samples}")));
    }
    // a window that is shorter than the frame leaves zeros behind it
    let taken = match window_shape.as_deref() {
        None => length,
        Some([size]) => length.min(*size),
        Some(shape) => return Err(Problem::Shape(format!("a window of shape {shape:?}"))),
    };
    if let Some(dtype) = window.map(|window| builder.dtype(window)).filter(|dtype| *dtype != DType::F32) {
        return Err(Problem::Type { input: 2, dtype });
    }
    let onesided = op.flag("onesided", true)?;
    if onesided && parts == 2 {
        return Err(Problem::Shape("a one-sided transform of complex numbers does not exist".to_string()));
    }
    let transform = Transform::forward(length, onesided);
    let behind = samples.clone().plus_constant(-length);
    builder.formulas.require(&behind, "what is left of the samples behind a frame")?;
    let frames = builder.formulas.quotient(&behind, &Index::constant(step))?.plus_constant(1);
    // axes b, f, then the sample and its part from `first` on
    let frame = |builder: &mut Builder, first: usize, over: &[Index]| -> Result<_, Problem> {
        let place = vec![var(0), var(1).times(step).plus(&var(first)), var(first + 1)];
        let guards = builder.unproven(signal, over, &place)?;
        let sample = Expr::guard(guards, load(signal, place), float(0.0));
        Ok((sample, window.map(|window| load(window, vec![var(first)]))))
    };
    let number = Index::constant;
    let of_frames = [batch.clone(), frames.clone()];
    if transform.factor().is_some() {
        let over = [&of_frames[..], &[number(taken), number(parts)]].concat();
        let (sample, weight) = frame(builder, 2, &over)?;
        let value = weight.into_iter().fold(sample, multiply);
        let cut = builder.map_over(&over, DType::F32, value)?;
        let rows = builder.formulas.product(&of_frames)?;
        let rows = reshaped(builder, cut, &[rows], &[taken, parts])?;
        let result = transform.of(builder, rows)?;
        return Ok(vec![reshaped(builder, result, &of_frames, &[transform.outputs, 2])?]);
    }
    let known = window.and_then(|window| builder.data(window)).map(TensorData::to_f64);
    let weights = known.clone().unwrap_or_else(|| vec![1.0; taken as usize]);
    let columns = transform.outputs * 2;
    let matrix = transform.matrix(builder, &weights[..taken as usize], parts)?;
    let matrix = reshape_to(builder, matrix, vec![taken, parts, columns])?;
    let (spatial, reduced) = ([&of_frames[..], &[number(columns)]].concat(), [number(taken), number(parts)]);
    let (sample, weight) = frame(builder, 3, &[&spatial[..], &reduced].concat())?;
    let sample = weight.filter(|_| known.is_none()).into_iter().fold(sample, multiply);
    let value = multiply(sample, load(matrix, vec![var(3), var(4), var(2)]));
    let result = builder.reduce_over(&spatial, &reduced, Combiner::Sum, DType::F32, value)?;
    Ok(vec![reshaped(builder, result, &of_frames, &[transform.outputs, 2])?])
}

/// How many numbers make a sample: the last dimension.
fn complex_parts(builder: &Builder, x: TensorId) -> Result<i64, Problem> {
    if builder.dtype(x) != DType::F32 {
        return Err(Problem::Type { input: 0, dtype: builder.dtype(x) });
    }
    match builder.shape(x).as_slice() {
        [_, .., parts @ (1 | 2)] => Ok(*parts),
        shape => Err(Problem::Shape(format!("{shape:?} does not end in one or two parts of a number"))),
    }
}

/// The rows of `[rows, samples, parts]`, which may be known only when the network runs, and the others.
fn rows_of(builder: &Builder, x: TensorId) -> Result<(Index, [i64; 2]), Problem> {
    let misfit = || Problem::Shape(format!("{:?} is not 3-dimensional", builder.shape(x)));
    let [rows, samples, parts] = <[Index; 3]>::try_from(builder.extents(x)).map_err(|_| misfit())?;
    let others = samples.as_constant().zip(parts.as_constant());
    let (samples, parts) = others.ok_or_else(|| builder.unsupported_extents())?;
    Ok((rows, [samples, parts]))
}

/// The same elements under a shape of formulas and numbers.
fn reshaped(builder: &mut Builder, x: TensorId, outer: &[Index], inner: &[i64]) -> Result<TensorId, Problem> {
    let shape: Vec<Index> = outer.iter().cloned().chain(inner.iter().copied().map(Index::constant)).collect();
    reshape_to_extents(builder, x, &shape)
}

fn check_length(length: i64) -> Result<(), Problem> {
    match length {
        1.. => Builder::check_shape(&[length]).map(drop),
        _ => Err(Problem::Shape(format!("a transform of {length} samples"))),
    }
}

/// `y[k] = scale · Σ x[n] · exp(sign · 2πi · k n / length)` of complex or real numbers.
#[derive(Clone, Copy, Debug)]
struct Transform {
    length: i64,
    sign: f64,
    scale: f64,
    /// How many `k`, from 0 on.
    outputs: i64,
    /// 2: complex results; 1: only their real parts.
    parts: i64,
}

impl Transform {
    fn forward(length: i64, onesided: bool) -> Transform {
        let outputs = if onesided { length / 2 + 1 } else { length };
        Transform { length, sign: -1.0, scale: 1.0, outputs, parts: 2 }
    }

    /// The factor by which it is split: the longest that is no longer than what is left. `None`: a product.
    fn factor(&self) -> Option<i64> {
        if self.length <= DIRECT_LENGTH {
            return None;
        }
        let fits = |factor: &i64| self.length % factor == 0 && factor * factor <= self.length;
        let longest = (2..=LONGEST_FACTOR).rev().find(fits)?;
        (longest >= SHORTEST_FACTOR || self.length > LONGEST_PRODUCT).then_some(longest)
    }

    /// From `[rows, samples, parts]` to `[rows, outputs, parts]`. Samples are cut off behind the length, or
    /// zeros take their place.
    fn of(&self, builder: &mut Builder, x: TensorId) -> Result<TensorId, Problem> {
        let (rows, [samples, parts]) = rows_of(builder, x)?;
        let Some(factor) = self.factor() else {
            let taken = samples.min(self.length);
            let x = strided(builder, x, &[(1, Strided { start: 0, step: 1, extent: taken })])?;
            return self.product(builder, x, &vec![self.scale; taken as usize]);
        };
        let x = padding::with_extent(builder, x, 1, self.length)?;
        let rest = self.length / factor;
        // samples n = rest · n1 + n2, results k = k1 + factor · k2; first over n1
        let split = reshaped(builder, x, std::slice::from_ref(&rows), &[factor, rest, parts])?;
        let split = permute(builder, split, &[0, 2, 1, 3])?;
        let split = reshaped(builder, split, &[rows.clone().times(rest)], &[factor, parts])?;
        let first = Transform { length: factor, outputs: factor, parts: 2, ..*self };
        let first = first.of(builder, split)?;
        let turned = self.turned(builder, first, &rows, [factor, rest])?;
        // then over n2
        let outputs = (self.outputs + factor - 1) / factor;
        let second = Transform { length: rest, scale: 1.0, outputs, ..*self }.of(builder, turned)?;
        let second = reshaped(builder, second, std::slice::from_ref(&rows), &[factor, outputs, self.parts])?;
        let second = permute(builder, second, &[0, 2, 1, 3])?;
        let second = reshaped(builder, second, &[rows], &[outputs * factor, self.parts])?;
        strided(builder, second, &[(1, Strided { start: 0, step: 1, extent: self.outputs })])
    }

    /// `z[k1, n2] = y[n2, k1] · exp(sign · 2πi · k1 n2 / length)`, from `[rows · n2, k1, 2]` to `[rows · k1,
    /// n2, 2]`.
    fn turned(
        &self,
        builder: &mut Builder,
        y: TensorId,
        rows: &Index,
        [factor, rest]: [i64; 2],
    ) -> Result<TensorId, Problem> {
        let y = reshaped(builder, y, std::slice::from_ref(rows), &[rest, factor, 2])?;
        builder.reserve(&[factor, rest, 2, 2], DType::F32)?;
        let roots = self.roots();
        let angles = (0..factor).flat_map(|k| (0..rest).map(move |n| k * n));
        let table: Vec<f32> = angles.flat_map(|at| roots.block(at)).collect();
        let table = builder.constant(TensorData::from_f32(vec![factor, rest, 2, 2], &table));
        let term = |part: i64| {
            let part = Index::constant(part);
            let sample = load(y, vec![var(0), var(2), var(1), part.clone()]);
            multiply(sample, load(table, vec![var(1), var(2), part, var(3)]))
        };
        let most = builder.shape(y)[0];
        let turned = builder.map(vec![most, factor, rest, 2], DType::F32, add(term(0), term(1)))?;
        reshaped(builder, turned, &[rows.clone().times(factor)], &[rest, 2])
    }

    /// One product, where sample `n` counts `weights[n]` times.
    fn product(&self, builder: &mut Builder, x: TensorId, weights: &[f64]) -> Result<TensorId, Problem> {
        let (rows, [samples, parts]) = rows_of(builder, x)?;
        let matrix = self.matrix(builder, weights, parts)?;
        let x = reshaped(builder, x, std::slice::from_ref(&rows), &[samples * parts])?;
        let (columns, depth) = (self.outputs * self.parts, samples * parts);
        let value = multiply(load(x, vec![var(0), var(2)]), load(matrix, vec![var(2), var(1)]));
        let most = builder.shape(x)[0];
        let result = builder.reduce(vec![most, columns], vec![depth], Combiner::Sum, DType::F32, value)?;
        reshaped(builder, result, &[rows], &[self.outputs, self.parts])
    }

    /// The roots of unity by which samples are multiplied: `[samples · parts, outputs · parts]`.
    fn matrix(&self, builder: &mut Builder, weights: &[f64], parts: i64) -> Result<TensorId, Problem> {
        if self.length > LONGEST_PRODUCT {
            let text = format!("a Fourier transform of {} samples, which cannot be split evenly,", self.length);
            return Err(Problem::Unsupported(text));
        }
        let shape = vec![weights.len() as i64 * parts, self.outputs * self.parts];
        builder.reserve(&shape, DType::F32)?;
        let roots = self.roots();
        let mut values: Vec<f32> = Vec::new();
        for (n, weight) in weights.iter().enumerate() {
            for part in 0..parts as usize {
                for k in 0..self.outputs {
                    let row = &roots.exact(n as i64 * k)[part];
                    values.extend(row[..self.parts as usize].iter().map(|root| (root * weight) as f32));
                }
            }
        }
        Ok(builder.constant(TensorData::from_f32(shape, &values)))
    }

    fn roots(&self) -> Roots {
        let angle = |at: i64| TAU * at as f64 / self.length as f64;
        Roots((0..self.length).map(|at| (angle(at).cos(), self.sign * angle(at).sin())).collect())
    }
}

/// Powers of a root of unity.
struct Roots(Vec<(f64, f64)>);

impl Roots {
    /// What a power makes of a number: rows for its real and imaginary part, columns for the result's.
    fn exact(&self, power: i64) -> [[f64; 2]; 2] {
        let (cosine, sine) = self.0[(power % self.0.len() as i64) as usize];
        [[cosine, sine], [-sine, cosine]]
    }

    fn block(&self, power: i64) -> [f32; 4] {
        let [[a, b], [c, d]] = self.exact(power);
        [a as f32, b as f32, c as f32, d as f32]
    }
}

/// A whole transform whose length is known only when the network runs: a product with roots of unity that
/// are computed then.
fn of_any_length(builder: &mut Builder, x: TensorId, inverse: bool) -> Result<TensorId, Problem> {
    let extents = builder.extents(x);
    let [rows, samples, parts] = [0, 1, 2].map(|d| extents[d].clone());
    let two = Index::constant(2);
    let wide = |value: Expr| cast(DType::I64, DType::F32, value);
    // axes: the sample, the result, and 0 for the cosine or 1 for the sine of the angle between them
    let turns = Expr::binary(
        Binary::Remainder,
        multiply(Expr::Index(var(0)), Expr::Index(var(1))),
        Expr::Index(samples.clone()),
    );
    let angle = multiply(divide(wide(turns), wide(Expr::Index(samples.clone()))), float(TAU));
    let sine = |angle: Expr| Expr::unary(Unary::Sin, angle);
    let cosine = sine(add(angle.clone(), float(TAU / 4.0)));
    let signed = multiply(sine(angle), float(if inverse { 1.0 } else { -1.0 }));
    let value = Expr::guard(vec![within(var(2), 0, 1)], cosine, signed);
    let roots = builder.map_over(&[samples.clone(), samples.clone(), two.clone()], DType::F32, value)?;
    // axes: rows, results, their parts; then samples and their parts: i · i = -1
    let part = var(2).plus(&var(4).times(-1));
    let root = |part: Index| load(roots, vec![var(3), var(1), part]);
    let negative = multiply(root(Index::constant(1)), float(-1.0));
    let is_imaginary_alone = within(part.clone(), -1, 0);
    let same = Expr::guard(vec![within(part, 0, 1)], root(Index::constant(0)), root(Index::constant(1)));
    let factor = Expr::guard(vec![is_imaginary_alone], negative, same);
    let value = multiply(load(x, vec![var(0), var(3), var(4)]), factor);
    let spatial = [rows, samples.clone(), two];
    let result = builder.reduce_over(&spatial, &[samples.clone(), parts], Combiner::Sum, DType::F32, value)?;
    if !inverse {
        return Ok(result);
    }
    let share = divide(load(result, vars(0, 3)), wide(Expr::Index(samples)));
    builder.map_over(&spatial, DType::F32, share)
}

/// The real signal of a spectrum that is conjugate symmetric, of which one half is given: `[rows, samples,
/// 2]` to `[rows, length, 1]`. Imaginary parts that would have to be 0 do not count.
fn real_inverse(builder: &mut Builder, x: TensorId, length: i64) -> Result<TensorId, Problem> {
    let half = length / 2 + 1;
    let x = padding::with_extent(builder, x, 1, half)?;
    let transform = Transform { length, sign: 1.0, scale: 1.0 / length as f64, outputs: length, parts: 1 };
    // only the first, and of an even length the last, stands for itself alone
    let is_single = |k: i64| k == 0 || 2 * k == length;
    if transform.factor().is_none() {
        let weight = |k: i64| if is_single(k) { transform.scale } else { 2.0 * transform.scale };
        return transform.product(builder, x, &(0..half).map(weight).collect::<Vec<_>>());
    }
    builder.reserve(&[length, 2], DType::F32)?;
    let sign = |k: i64| match is_single(k) {
        true => 0.0,
        false if k < half => 1.0,
        false => -1.0,
    };
    let signs: Vec<f32> = (0..length).flat_map(|k| [1.0, sign(k)]).collect();
    let signs = builder.constant(TensorData::from_f32(vec![length, 2], &signs));
    let rows = builder.shape(x)[0];
    let mirrored = load(x, vec![var(0), var(1).times(-1).plus_constant(length), var(2)]);
    let mirrored = Expr::guard(vec![within(var(1), half, length)], mirrored, float(0.0));
    let whole = Expr::guard(vec![within(var(1), 0, half)], load(x, vars(0, 3)), mirrored);
    let value = multiply(whole, load(signs, vars(1, 2)));
    let whole = builder.map(vec![rows, length, 2], DType::F32, value)?;
    transform.of(builder, whole)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::f64::consts::TAU;

    use super::dft;
    use crate::graph::TensorData;
    use crate::graph::lower::{Attribute, Builder, Operand, Operator, Problem};
    use crate::workload::{DType, Index};

    /// What becomes of one signal of complex or real numbers.
    fn lowered(signal: &[f32], parts: i64, length: i64, flags: [bool; 2]) -> Result<Vec<f64>, Problem> {
        let mut builder = Builder::new(1 << 30);
        let shape = vec![1, signal.len() as i64 / parts, parts];
        let extents: Vec<Index> = shape.iter().map(|extent| Index::constant(*extent)).collect();
        let x = builder.input("x".to_string(), &extents, DType::F32)?;
        let length = builder.constant(TensorData::from_i64(vec![], &[length]));
        let operand = |tensor| Some(Operand { tensor, only_reader: true });
        let names = ["inverse", "onesided"].map(str::to_string);
        let attributes: BTreeMap<String, Attribute> =
            names.into_iter().zip(flags).map(|(name, flag)| (name, Attribute::Int(i64::from(flag)))).collect();
        let inputs = vec![operand(x), operand(length)];
        let op = Operator { kind: "DFT".to_string(), opset: 20, attributes, inputs, outputs: vec![true] };
        let results = dft(&mut builder, &op)?;
        builder.output("y".to_string(), results[0])?;
        let outputs = builder.finish().evaluate(&[TensorData::from_f32(shape, signal)]).unwrap();
        Ok(outputs[0].to_f64())
    }

    /// Real and imaginary parts, one after the other, by the definition.
    fn defined(signal: &[(f64, f64)], length: usize, sign: f64) -> Vec<f64> {
        let root = |at: usize| (sign * TAU * at as f64 / length as f64).sin_cos();
        let roots: Vec<(f64, f64)> = (0..length).map(root).collect();
        let value = |k: usize| {
            let terms = signal.iter().take(length).enumerate().map(|(n, (re, im))| {
                let (sine, cosine) = roots[n * k % length];
                (re * cosine - im * sine, re * sine + im * cosine)
            });
            terms.fold((0.0, 0.0), |sum, term| (sum.0 + term.0, sum.1 + term.1))
        };
        (0..length).map(value).flat_map(|(re, im)| [re, im]).collect()
    }

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|at| ((at * at * 7 + at * 3) % 101) as f32 / 50.0 - 1.0).collect()
    }

    fn close(found: &[f64], expected: &[f64], what: &str) {
        assert_eq!(found.len(), expected.len(), "{what}");
        let largest = expected.iter().fold(1e-3f64, |most, x| most.max(x.abs()));
        let error = found.iter().zip(expected).fold(0.0f64, |most, (a, b)| most.max((a - b).abs()));
        assert!(error <= 1e-5 * largest, "{what}: off by {error} of {largest}");
    }

    #[test]
    fn transforms_of_any_length_follow_the_definition() {
        // products; split evenly, unevenly, twice, and because nothing else is left; cut, and with zeros
        // behind
        let lengths = [1, 2, 7, 512, 1009, 520, 1080, 1536, 2062, 8192];
        for (length, given) in lengths.map(|length| (length, length)).into_iter().chain([(12, 9), (9, 12), (1000, 700)])
        {
            let signal = numbers(2 * given);
            let complex: Vec<(f64, f64)> =
                signal.chunks(2).map(|pair| (f64::from(pair[0]), f64::from(pair[1]))).collect();
            let real: Vec<(f64, f64)> = signal[..given].iter().map(|x| (f64::from(*x), 0.0)).collect();
            let what = format!("{length} of {given}");
            let forward = defined(&complex, length, -1.0);
            close(&lowered(&signal, 2, length as i64, [false, false]).unwrap(), &forward, &what);
            let spectrum = defined(&real, length, -1.0);
            let half = length / 2 + 1;
            let found = lowered(&signal[..given], 1, length as i64, [false, true]).unwrap();
            close(&found, &spectrum[..2 * half], &what);
            let back: Vec<f64> = defined(&complex, length, 1.0).iter().map(|x| x / length as f64).collect();
            close(&lowered(&signal, 2, length as i64, [true, false]).unwrap(), &back, &what);
            let half: Vec<f32> = spectrum[..2 * half].iter().map(|x| *x as f32).collect();
            let mut expected: Vec<f64> = real.iter().map(|(re, _)| *re).take(length).collect();
            expected.resize(length, 0.0);
            close(&lowered(&half, 2, length as i64, [true, true]).unwrap(), &expected, &what);
        }
    }

    #[test]
    fn a_length_without_factors_is_refused() {
        let refusal = lowered(&numbers(8), 1, 2 * 2053, [false, false]).unwrap_err();
        assert!(matches!(refusal, Problem::Unsupported(_)), "{refusal}");
    }
}
