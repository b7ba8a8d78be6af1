//! What operators do to single values: the workload's reference, with floats rounded to their type.

use crate::workload::{DType, scalar};

pub(super) use crate::workload::scalar::{
    binary_integer as whole_binary, combine_integer as whole_combined, unary_integer as whole_unary,
    wrap_to as wrap_whole,
};

pub(super) use crate::workload::scalar::{
    binary as real_binary, bits_of_real, compare as real_compare, real_of_bits, to_integer as whole_from_real,
    unary as real_unary,
};

/// Rounds to what the type can hold: short floats by way of f32, in which they are computed. Sums, products
/// and quotients of f32 are the same whether or not they are rounded to f64 first.
pub(super) fn round_real(dtype: DType, x: f64) -> f64 {
    if dtype == DType::F64 { x } else { scalar::round_to(dtype, f64::from(x as f32)) }
}

/// Rounded once.
pub(super) fn real_from_whole(from: DType, to: DType, x: i64) -> f64 {
    match (from, to) {
        (_, DType::F64) => scalar::to_real(from, x),
        (DType::U64, _) => f64::from(x.cast_unsigned() as f32),
        _ => f64::from(x as f32),
    }
}
