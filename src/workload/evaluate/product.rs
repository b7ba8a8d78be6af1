//! Sums of products of two operands, the innermost loop of matrix products and convolutions.

use super::lanes::{Offsets, Pattern};
use super::program::Factor;
use crate::workload::array::Elements;

/// `sums += x · y` in f64, the innermost loop of matrix products and convolutions.
pub(super) fn add_products(
    factors: &[Factor; 2],
    data: &[Option<&Elements>],
    offsets: &[Offsets],
    scratch: &mut [Vec<f64>; 2],
    sums: &mut [f64],
) {
    let n = sums.len();
    let [first, second] = scratch;
    let x = operand(&factors[0], data, offsets, &mut first[..n]);
    let y = operand(&factors[1], data, offsets, &mut second[..n]);
    match (x, y) {
        (Operand::Uniform(x), Operand::Uniform(y)) => sums.iter_mut().for_each(|sum| *sum += x * y),
        (Operand::Uniform(x), Operand::Slice(y)) | (Operand::Slice(y), Operand::Uniform(x)) => {
            for (sum, y) in sums.iter_mut().zip(y) {
                *sum += x * f64::from(*y);
            }
        }
        (Operand::Slice(x), Operand::Slice(y)) => {
            for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
                *sum += f64::from(*x) * f64::from(*y);
            }
        }
        (Operand::Uniform(x), Operand::Copied(y)) | (Operand::Copied(y), Operand::Uniform(x)) => {
            for (sum, y) in sums.iter_mut().zip(y) {
                *sum += x * y;
            }
        }
        (Operand::Slice(x), Operand::Copied(y)) | (Operand::Copied(y), Operand::Slice(x)) => {
            for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
                *sum += f64::from(*x) * y;
            }
        }
        (Operand::Copied(x), Operand::Copied(y)) => {
            for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
                *sum += *x * *y;
            }
        }
    }
}

/// One side of a product, for the lanes at hand.
enum Operand<'a> {
    Uniform(f64),
    Slice(&'a [f32]),
    Copied(&'a [f64]),
}

/// `scratch` holds the values where they lie neither side by side nor in one place.
fn operand<'a>(
    factor: &Factor,
    data: &[Option<&'a Elements>],
    offsets: &[Offsets],
    scratch: &'a mut [f64],
) -> Operand<'a> {
    let data: &[f32] = match data[factor.load.tensor.0 as usize] {
        Some(Elements::F32(data)) => data,
        // compiled for f32 only
        _ => &[],
    };
    let Offsets { lanes, pattern, shift, .. } = &offsets[factor.load.affine];
    let mut partial = Vec::new();
    for test in &factor.tests {
        match offsets[test.affine].test(test.low, test.high) {
            Some(true) => {}
            Some(false) => return Operand::Uniform(factor.outside),
            None => partial.push(test),
        }
    }
    let count = scratch.len();
    let first = lanes[0].wrapping_add(*shift) as usize;
    match (partial.split_first(), pattern) {
        (None, Pattern::Uniform) => return Operand::Uniform(f64::from(data[first])),
        (None, Pattern::Contiguous) => return Operand::Slice(&data[first..first + count]),
        (None, Pattern::General) => {
            for (out, lane) in scratch.iter_mut().zip(lanes) {
                *out = f64::from(data[(lane + shift) as usize]);
            }
        }
        (Some((test, rest)), _) => {
            let (low, width) = window(test.low, test.high, &offsets[test.affine]);
            let tested = &offsets[test.affine].lanes;
            for (lane, out) in scratch.iter_mut().enumerate() {
                let holds = (tested[lane].wrapping_sub(low) as u64) < width
                    && rest.iter().all(|test| {
                        let (low, width) = window(test.low, test.high, &offsets[test.affine]);
                        (offsets[test.affine].lanes[lane].wrapping_sub(low) as u64) < width
                    });
                *out = if holds { f64::from(data[(lanes[lane] + shift) as usize]) } else { factor.outside };
            }
        }
    }
    Operand::Copied(scratch)
}

/// `low <= lane + shift < high` as `lane - first < width` of unsigned numbers.
fn window(low: i64, high: i64, offsets: &Offsets) -> (i64, u64) {
    (low.wrapping_sub(offsets.shift), high.wrapping_sub(low) as u64)
}
