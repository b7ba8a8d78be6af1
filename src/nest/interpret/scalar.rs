//! What operators do to single values.

use half::{bf16, f16};

use crate::workload::{Binary, DType, Unary};

pub(super) fn real_unary(op: Unary, x: f32) -> f32 {
    match op {
        Unary::Negate => -x,
        Unary::Absolute => x.abs(),
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Sqrt => x.sqrt(),
        Unary::ReciprocalSqrt => 1.0 / x.sqrt(),
        Unary::Reciprocal => 1.0 / x,
        Unary::Erf => erf(f64::from(x)) as f32,
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Sign if x > 0.0 => 1.0,
        Unary::Sign if x < 0.0 => -1.0,
        // zeros and NaN stay
        Unary::Sign => x,
        Unary::Not => f32::from(x == 0.0),
    }
}

pub(super) fn real_binary(op: Binary, x: f32, y: f32) -> f32 {
    match op {
        Binary::Add => x + y,
        Binary::Subtract => x - y,
        Binary::Multiply => x * y,
        Binary::Divide => x / y,
        Binary::Remainder => x % y,
        Binary::Maximum => {
            if x > y || x.is_nan() {
                x
            } else {
                y
            }
        }
        Binary::Minimum => {
            if x < y || x.is_nan() {
                x
            } else {
                y
            }
        }
        Binary::Power => x.powf(y),
        Binary::Less | Binary::LessEqual | Binary::Equal => f32::from(real_compare(op, x, y)),
        Binary::And => f32::from(x != 0.0 && y != 0.0),
        Binary::Or => f32::from(x != 0.0 || y != 0.0),
    }
}

pub(super) fn real_compare(op: Binary, x: f32, y: f32) -> bool {
    match op {
        Binary::Less => x < y,
        Binary::LessEqual => x <= y,
        _ => x == y,
    }
}

pub(super) fn whole_unary(op: Unary, x: i64) -> i64 {
    match op {
        Unary::Negate => x.wrapping_neg(),
        Unary::Absolute => x.wrapping_abs(),
        Unary::Sign => x.signum(),
        Unary::Not => i64::from(x == 0),
        // functions of floats; the structure check lets none through
        _ => x,
    }
}

/// `None`: a division by zero.
pub(super) fn whole_binary(op: Binary, x: i64, y: i64) -> Option<i64> {
    Some(match op {
        Binary::Add => x.wrapping_add(y),
        Binary::Subtract => x.wrapping_sub(y),
        Binary::Multiply => x.wrapping_mul(y),
        Binary::Divide | Binary::Remainder if y == 0 => return None,
        Binary::Divide => {
            let quotient = x.wrapping_div(y);
            let inexact = x.wrapping_rem(y) != 0;
            if inexact && (x < 0) != (y < 0) { quotient - 1 } else { quotient }
        }
        Binary::Remainder => {
            let rest = x.wrapping_rem(y);
            if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest }
        }
        Binary::Maximum => x.max(y),
        Binary::Minimum => x.min(y),
        Binary::Power => power(x, y),
        Binary::Less => i64::from(x < y),
        Binary::LessEqual => i64::from(x <= y),
        Binary::Equal => i64::from(x == y),
        Binary::And => i64::from(x != 0 && y != 0),
        Binary::Or => i64::from(x != 0 || y != 0),
    })
}

/// Of a negative exponent: what is left of the fraction when it is truncated.
fn power(base: i64, exponent: i64) -> i64 {
    match (base, exponent) {
        (1, _) => 1,
        (-1, e) => {
            if e % 2 == 0 {
                1
            } else {
                -1
            }
        }
        (_, e) if e < 0 => 0,
        (b, e) => b.wrapping_pow(u32::try_from(e).unwrap_or(u32::MAX)),
    }
}

/// Rounds to what the type can hold.
pub(super) fn round_real(dtype: DType, x: f32) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(x).to_f32(),
        DType::BF16 => bf16::from_f32(x).to_f32(),
        _ => x,
    }
}

/// Keeps the bits that the type has.
pub(super) fn wrap_whole(dtype: DType, x: i64) -> i64 {
    match dtype {
        DType::I8 => i64::from(x as i8),
        DType::U8 => i64::from(x as u8),
        DType::I32 => i64::from(x as i32),
        DType::Bool => i64::from(x != 0),
        _ => x,
    }
}

/// Truncates, and saturates at the ends of the type.
pub(super) fn whole_from_real(dtype: DType, x: f32) -> i64 {
    match dtype {
        DType::I8 => i64::from(x as i8),
        DType::U8 => i64::from(x as u8),
        DType::I32 => i64::from(x as i32),
        DType::Bool => i64::from(x != 0.0),
        _ => x as i64,
    }
}

/// A literal takes the nearest value that its destination can hold.
pub(super) fn saturate(dtype: DType, x: i64) -> i64 {
    match dtype {
        DType::I8 => x.clamp(i64::from(i8::MIN), i64::from(i8::MAX)),
        DType::U8 => x.clamp(0, i64::from(u8::MAX)),
        DType::I32 => x.clamp(i64::from(i32::MIN), i64::from(i32::MAX)),
        DType::Bool => x.clamp(0, 1),
        _ => x,
    }
}

/// The error function by the series `2/√π · exp(-x²) · Σ 2ⁿ x²ⁿ⁺¹ / (2n+1)!!` (Abramowitz and Stegun, 7.1.6):
/// all terms have one sign, so nothing cancels.
fn erf(x: f64) -> f64 {
    if x.is_nan() || x.abs() > 6.0 {
        return if x.is_nan() { x } else { x.signum() };
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
        if term.abs() <= 1e-17 * sum.abs() {
            break;
        }
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_meets_known_values() {
        for (x, expected) in [(0.0, 0.0), (0.5, 0.520_499_877_8), (-1.0, -0.842_700_792_9), (3.0, 0.999_977_909_5)] {
            assert!((erf(x) - expected).abs() < 1e-10, "erf({x}) = {}", erf(x));
        }
    }

    #[test]
    fn integers_divide_towards_minus_infinity() {
        for (x, y, quotient, rest) in [(7, 2, 3, 1), (-7, 2, -4, 1), (7, -2, -4, -1), (-7, -2, 3, -1), (6, -2, -3, 0)] {
            assert_eq!(whole_binary(Binary::Divide, x, y), Some(quotient));
            assert_eq!(whole_binary(Binary::Remainder, x, y), Some(rest));
        }
        assert_eq!(whole_binary(Binary::Divide, 1, 0), None);
    }
}
