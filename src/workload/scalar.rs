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
        Unary::Tan => x.tan(),
        Unary::Asin => x.asin(),
        Unary::Acos => x.acos(),
        Unary::Atan => x.atan(),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Asinh => x.asinh(),
        // by |x|: near -1, the logarithm of a number near 0 would lose what tells it from -1
        Unary::Atanh => (0.5 * (2.0 * x.abs() / (1.0 - x.abs())).ln_1p()).copysign(x),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Sign if x > 0.0 => 1.0,
        Unary::Sign if x < 0.0 => -1.0,
        Unary::Sign | Unary::Not => x,
    }
}

/// A u64 comes and goes as its bits, here and in all that follows.
pub fn unary_integer(op: Unary, dtype: DType, x: i64) -> i64 {
    match op {
        Unary::Absolute if dtype == DType::U64 => x,
        Unary::Sign if dtype == DType::U64 => i64::from(x != 0),
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
        // of integers only, by validation
        Binary::BitAnd | Binary::BitOr | Binary::BitXor | Binary::ShiftLeft | Binary::ShiftRight => x,
    }
}

/// `None` for a division by zero.
pub fn binary_integer(op: Binary, dtype: DType, x: i64, y: i64) -> Option<i64> {
    if dtype == DType::U64 {
        return binary_unsigned(op, x.cast_unsigned(), y.cast_unsigned()).map(u64::cast_signed);
    }
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
        Binary::And | Binary::BitAnd => x & y,
        Binary::Or | Binary::BitOr => x | y,
        Binary::BitXor => x ^ y,
        Binary::ShiftLeft => shifted(y).map_or(0, |by| x << by),
        Binary::ShiftRight => x >> shifted(y).unwrap_or(63),
        Binary::Power => power(x, y),
        Binary::Less | Binary::LessEqual | Binary::Equal => i64::from(compare(op, x, y)),
    })
}

/// [`binary_integer`] of u64.
fn binary_unsigned(op: Binary, x: u64, y: u64) -> Option<u64> {
    Some(match op {
        Binary::Divide => x.checked_div(y)?,
        Binary::Remainder => x.checked_rem(y)?,
        Binary::Maximum => x.max(y),
        Binary::Minimum => x.min(y),
        Binary::Less | Binary::LessEqual => u64::from(compare(op, x, y)),
        Binary::ShiftRight => shifted(y.cast_signed()).map_or(0, |by| x >> by),
        // the same bits as with a sign
        _ => binary_integer(op, DType::I64, x.cast_signed(), y.cast_signed())?.cast_unsigned(),
    })
}

/// By how many bits is shifted, if any of 64 are left; a negative number is a large one.
fn shifted(by: i64) -> Option<u32> {
    u32::try_from(by).ok().filter(|by| *by < 64)
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

pub fn combine_integer(combiner: Combiner, dtype: DType, x: i64, y: i64) -> i64 {
    match combiner {
        Combiner::Sum => x.wrapping_add(y),
        Combiner::Product => x.wrapping_mul(y),
        // never a division, so there is a result
        Combiner::Maximum | Combiner::Minimum => binary_integer(combiner.binary(), dtype, x, y).unwrap_or(x),
    }
}

/// What leaves every value as it is, to the bit: `-0` for sums.
pub fn identity(combiner: Combiner) -> f64 {
    match combiner {
        Combiner::Sum => -0.0,
        other => other.identity(),
    }
}

/// What combining no integers gives; a u64 as its bits.
pub fn identity_integer(combiner: Combiner, dtype: DType) -> i64 {
    match combiner {
        Combiner::Sum => 0,
        Combiner::Product => 1,
        Combiner::Minimum if dtype == DType::U64 => -1,
        // of the type itself: the low bits of another number would be anything
        Combiner::Maximum => dtype.least(),
        Combiner::Minimum => dtype.greatest(),
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

/// Truncated to 64 bits, where it saturates; then the low bits. Of Booleans: whether it is not 0. Of u64, a
/// number below 0 takes the bits of the i64.
pub fn to_integer(dtype: DType, x: f64) -> i64 {
    match dtype {
        DType::Bool => i64::from(x != 0.0),
        DType::U64 if x > 0.0 => (x as u64).cast_signed(),
        _ => wrap_to(dtype, x as i64),
    }
}

/// The bits of the nearest value of a floating-point type.
pub fn bits_of_real(dtype: DType, x: f64) -> i64 {
    match dtype {
        DType::F16 => i64::from(to_f16(x).to_bits()),
        DType::BF16 => i64::from(to_bf16(x).to_bits()),
        DType::F64 => x.to_bits().cast_signed(),
        _ => i64::from((x as f32).to_bits()),
    }
}

/// The value of a floating-point type that low bits are.
pub fn real_of_bits(dtype: DType, bits: i64) -> f64 {
    match dtype {
        DType::F16 => f16::from_bits(bits as u16).to_f64(),
        DType::BF16 => bf16::from_bits(bits as u16).to_f64(),
        DType::F64 => f64::from_bits(bits.cast_unsigned()),
        _ => f64::from(f32::from_bits(bits as u32)),
    }
}

/// The number that an integer of a type stands for, rounded to f64.
pub fn to_real(dtype: DType, x: i64) -> f64 {
    if dtype == DType::U64 { x.cast_unsigned() as f64 } else { x as f64 }
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

    use super::{binary_integer, erf, identity_integer, maximum, to_bf16, to_f16, to_integer, to_real};
    use crate::workload::{Binary, Combiner, DType};

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
        let divide = |x, y| {
            let apply = |op| binary_integer(op, DType::I64, x, y);
            (apply(Binary::Divide), apply(Binary::Remainder))
        };
        assert_eq!(divide(7, 2), (Some(3), Some(1)));
        assert_eq!(divide(-7, 2), (Some(-4), Some(1)));
        assert_eq!(divide(7, -2), (Some(-4), Some(-1)));
        assert_eq!(divide(i64::MIN, -1), (Some(i64::MIN), Some(0)));
        assert_eq!(divide(1, 0), (None, None));
    }

    #[test]
    fn u64_has_no_sign() {
        let of = |op, x: u64, y: u64| binary_integer(op, DType::U64, x.cast_signed(), y.cast_signed());
        let large = 1_u64 << 63 | 5;
        assert_eq!(of(Binary::Less, large, 1), Some(0));
        assert_eq!(of(Binary::Maximum, large, 1), Some(large.cast_signed()));
        assert_eq!(of(Binary::Divide, large, 2), Some((1 << 62) + 2));
        assert_eq!(of(Binary::Remainder, large, 10), Some(3));
        assert_eq!((of(Binary::Divide, large, 0), of(Binary::ShiftRight, large, 63)), (None, Some(1)));
        assert_eq!(to_real(DType::U64, -1), u64::MAX as f64);
        for (x, bits) in [(1e19, 10_000_000_000_000_000_000_u64), (1e30, u64::MAX), (-1.5, u64::MAX), (f64::NAN, 0)] {
            assert_eq!(to_integer(DType::U64, x), bits.cast_signed(), "{x}");
        }
        for combiner in [Combiner::Maximum, Combiner::Minimum] {
            let none = identity_integer(combiner, DType::U64).cast_unsigned();
            assert_eq!(of(combiner.binary(), none, large), Some(large.cast_signed()));
        }
    }

    #[test]
    fn shifts_beyond_the_width_leave_nothing() {
        let shift = |op, dtype, x, y| binary_integer(op, dtype, x, y).unwrap();
        assert_eq!(shift(Binary::ShiftLeft, DType::U8, 3, 2), 12);
        assert_eq!(shift(Binary::ShiftLeft, DType::I64, 3, 64), 0);
        assert_eq!(shift(Binary::ShiftLeft, DType::I64, 3, -1), 0);
        assert_eq!(shift(Binary::ShiftRight, DType::I64, -8, 1), -4);
        assert_eq!(shift(Binary::ShiftRight, DType::I64, -8, 99), -1);
        assert_eq!(shift(Binary::ShiftRight, DType::U64, -8, 64), 0);
    }

    #[test]
    fn maximum_does_not_depend_on_the_order() {
        for (x, y) in [(0.0, -0.0), (-0.0, 0.0), (1.0, f64::NAN), (f64::NAN, 1.0), (2.0, 3.0)] {
            let (a, b) = (maximum(x, y), maximum(y, x));
            assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "{x} {y}");
        }
    }
}
