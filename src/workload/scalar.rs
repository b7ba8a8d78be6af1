//! The reference of scalar functions and conversions, in f64 and i64, with every corner defined: what the
//! evaluator and the interpreter of nests compute.

use half::{bf16, f16};

use super::{Binary, Class, Combiner, DType, Unary};

pub fn unary(op: Unary, x: f64) -> f64 {
    match op {
        Unary::Negate => -x,
        Unary::Absolute => x.abs(),
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Sqrt => x.sqrt(),
        Unary::ReciprocalSqrt => 1.0 / x.sqrt(),
        Unary::Reciprocal => 1.0 / x,
        Unary::Erf => erf(x),
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Sign if x > 0.0 => 1.0,
        Unary::Sign if x < 0.0 => -1.0,
        Unary::Sign | Unary::Not => x,
    }
}

pub fn unary_integer(op: Unary, x: i64) -> i64 {
    match op {
        Unary::Negate => x.wrapping_neg(),
        Unary::Absolute => x.wrapping_abs(),
        Unary::Sign => x.signum(),
        Unary::Not => i64::from(x == 0),
        // of floats only, by validation
        _ => x,
    }
}

/// Comparisons give 0 or 1.
pub fn binary(op: Binary, x: f64, y: f64) -> f64 {
    match op {
        Binary::Add => x + y,
        Binary::Subtract => x - y,
        Binary::Multiply => x * y,
        Binary::Divide => x / y,
        Binary::Remainder => x % y,
        Binary::Maximum => maximum(x, y),
        Binary::Minimum => -maximum(-x, -y),
        Binary::Power => x.powf(y),
        Binary::Less | Binary::LessEqual | Binary::Equal | Binary::And | Binary::Or => {
            f64::from(u8::from(compare(op, x, y)))
        }
    }
}

/// `None` for a division by zero.
pub fn binary_integer(op: Binary, x: i64, y: i64) -> Option<i64> {
    Some(match op {
        Binary::Add => x.wrapping_add(y),
        Binary::Subtract => x.wrapping_sub(y),
        Binary::Multiply => x.wrapping_mul(y),
        Binary::Divide | Binary::Remainder if y == 0 => return None,
        Binary::Divide => {
            let towards_zero = x.wrapping_div(y);
            towards_zero - i64::from(x.wrapping_rem(y) != 0 && (x < 0) != (y < 0))
        }
        Binary::Remainder => {
            let rest = x.wrapping_rem(y);
            if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest }
        }
        Binary::Maximum => x.max(y),
        Binary::Minimum => x.min(y),
        Binary::And => x & y,
        Binary::Or => x | y,
        Binary::Power => power(x, y),
        Binary::Less | Binary::LessEqual | Binary::Equal => i64::from(compare(op, x, y)),
    })
}

/// Of a negative exponent: what is left of the fraction when it is truncated.
fn power(base: i64, exponent: i64) -> i64 {
    match (base, exponent) {
        (1, _) => 1,
        (-1, e) if e % 2 == 0 => 1,
        (-1, _) => -1,
        (_, e) if e < 0 => 0,
        (b, e) => b.wrapping_pow(u32::try_from(e).unwrap_or(u32::MAX)),
    }
}

/// Of comparisons only.
pub fn compare<T: PartialOrd>(op: Binary, x: T, y: T) -> bool {
    match op {
        Binary::Less => x < y,
        Binary::LessEqual => x <= y,
        _ => x == y,
    }
}

/// The larger; NaN if one is NaN, `+0` of two zeros of different sign.
pub fn maximum(x: f64, y: f64) -> f64 {
    if x > y || x.is_nan() || (x == y && y.is_sign_negative()) { x } else { y }
}

pub fn combine(combiner: Combiner, x: f64, y: f64) -> f64 {
    binary(combiner.binary(), x, y)
}

pub fn combine_integer(combiner: Combiner, x: i64, y: i64) -> i64 {
    match combiner {
        Combiner::Sum => x.wrapping_add(y),
        Combiner::Product => x.wrapping_mul(y),
        Combiner::Maximum => x.max(y),
        Combiner::Minimum => x.min(y),
    }
}

/// What leaves every value as it is, to the bit: `-0` for sums.
pub fn identity(combiner: Combiner) -> f64 {
    match combiner {
        Combiner::Sum => -0.0,
        other => other.identity(),
    }
}

pub fn identity_integer(combiner: Combiner) -> i64 {
    match combiner {
        Combiner::Sum => 0,
        Combiner::Product => 1,
        Combiner::Maximum => i64::MIN,
        Combiner::Minimum => i64::MAX,
    }
}

/// To the nearest value of a floating-point type.
pub fn round_to(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from(x as f32),
        DType::F16 => to_f16(x).to_f64(),
        DType::BF16 => to_bf16(x).to_f64(),
        _ => x,
    }
}

/// The nearest f16, even between two.
pub fn to_f16(x: f64) -> f16 {
    f16::from_f32(rounded_to_odd(x))
}

/// The nearest bf16, even between two.
pub fn to_bf16(x: f64) -> bf16 {
    bf16::from_f32(rounded_to_odd(x))
}

/// An f32 that a shorter type rounds as it would round `x` itself: what is no f32 becomes the odd one of its
/// two neighbours, which is never half way between two numbers of the shorter type. (Boldo and Melquiond,
/// "When double rounding is odd", 2005)
fn rounded_to_odd(x: f64) -> f32 {
    let nearest = x as f32;
    let back = f64::from(nearest);
    if back == x || x.is_nan() || nearest.is_infinite() {
        return nearest;
    }
    let towards_zero = if back.abs() > x.abs() { nearest.to_bits() - 1 } else { nearest.to_bits() };
    f32::from_bits(towards_zero | 1)
}

/// The low bits of an integer, read as `dtype`.
pub fn wrap_to(dtype: DType, x: i64) -> i64 {
    match dtype.class() {
        Class::Boolean => i64::from(x != 0),
        Class::Signed => x << (64 - dtype.bits()) >> (64 - dtype.bits()),
        Class::Unsigned if dtype.bits() < 64 => x & dtype.greatest(),
        Class::Unsigned | Class::Float { .. } => x,
    }
}

/// Truncated to 64 bits, where it saturates; then the low bits. Of Booleans: whether it is not 0.
pub fn to_integer(dtype: DType, x: f64) -> i64 {
    if dtype == DType::Bool { i64::from(x != 0.0) } else { wrap_to(dtype, x as i64) }
}

/// The error function: its Maclaurin series times `exp(-x²)`, whose terms are all positive, for small
/// arguments, and the continued fraction of the complement for large ones (Abramowitz and Stegun, 7.1.6 and
/// 7.1.14). Good to 1e-14.
fn erf(x: f64) -> f64 {
    let magnitude = x.abs();
    if x.is_nan() {
        return x;
    }
    let value = if magnitude < 2.5 {
        let square = x * x;
        let mut term = magnitude;
        let mut sum = magnitude;
        for n in 1..80 {
            term *= 2.0 * square / f64::from(2 * n + 1);
            sum += term;
            if term < sum * 1e-17 {
                break;
            }
        }
        std::f64::consts::FRAC_2_SQRT_PI * (-square).exp() * sum
    } else if magnitude < 6.5 {
        let mut fraction = magnitude;
        for n in (1..60).rev() {
            fraction = magnitude + 0.5 * f64::from(n) / fraction;
        }
        1.0 - 0.5 * std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() / fraction
    } else {
        1.0
    };
    value.copysign(x)
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::{binary_integer, erf, maximum, to_bf16, to_f16};
    use crate::workload::Binary;

    #[test]
    fn short_floats_are_rounded_once() {
        // half way between two numbers, and a little beside, by less than f32 can tell
        for (tie, even, odd) in
            [(1.0 + 2f64.powi(-11), 1.0, 1.0 + 2f64.powi(-10)), (2f64.powi(-25), 0.0, 2f64.powi(-24))]
        {
            assert_eq!(to_f16(tie), f16::from_f64(even));
            assert_eq!(
                (to_f16(tie * (1.0 + 1e-12)), to_f16(tie * (1.0 - 1e-12))),
                (f16::from_f64(odd), f16::from_f64(even))
            );
        }
        let tie = -1.0 - 3.0 * 2f64.powi(-8);
        assert_eq!(to_bf16(tie).to_f64(), -1.0 - 2f64.powi(-6));
        assert_eq!(to_bf16(tie * (1.0 - 1e-12)).to_f64(), -1.0 - 2f64.powi(-7));
        assert!(
            to_bf16(f64::NAN).is_nan() && to_bf16(f64::INFINITY) == bf16::INFINITY && to_f16(70_000.0) == f16::INFINITY
        );
    }

    #[test]
    fn error_function() {
        // from a table of 20 digits
        let known = [
            (0.1, 0.112_462_916_018_284_9),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (3.0, 0.999_977_909_503_001_4),
        ];
        for (x, value) in known {
            assert!((erf(x) - value).abs() < 1e-14, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        assert_eq!(erf(f64::INFINITY), 1.0);
        assert!((erf(2.5 - 1e-12) - erf(2.5)).abs() < 1e-13);
    }

    #[test]
    fn integers_divide_towards_minus_infinity() {
        let divide = |x, y| (binary_integer(Binary::Divide, x, y), binary_integer(Binary::Remainder, x, y));
        assert_eq!(divide(7, 2), (Some(3), Some(1)));
        assert_eq!(divide(-7, 2), (Some(-4), Some(1)));
        assert_eq!(divide(7, -2), (Some(-4), Some(-1)));
        assert_eq!(divide(i64::MIN, -1), (Some(i64::MIN), Some(0)));
        assert_eq!(divide(1, 0), (None, None));
    }

    #[test]
    fn maximum_does_not_depend_on_the_order() {
        for (x, y) in [(0.0, -0.0), (-0.0, 0.0), (1.0, f64::NAN), (f64::NAN, 1.0), (2.0, 3.0)] {
            let (a, b) = (maximum(x, y), maximum(y, x));
            assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "{x} {y}");
        }
    }
}
