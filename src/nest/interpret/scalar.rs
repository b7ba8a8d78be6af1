//! What operators do to single values: the workload's reference, with floats kept in f32.

use crate::workload::{Binary, DType, Unary, scalar};

pub(super) use crate::workload::scalar::{
    binary_integer as whole_binary, combine_integer as whole_combined, unary_integer as whole_unary, wrap_to as wrap_whole,
};

pub(super) fn real_unary(op: Unary, x: f32) -> f32 {
    scalar::unary(op, f64::from(x)) as f32
}

/// Sums, products and quotients of f32 are the same whether or not they are rounded to f64 first.
pub(super) fn real_binary(op: Binary, x: f32, y: f32) -> f32 {
    scalar::binary(op, f64::from(x), f64::from(y)) as f32
}

pub(super) fn real_compare(op: Binary, x: f32, y: f32) -> bool {
    scalar::compare(op, x, y)
}

/// Rounds to what the type can hold.
pub(super) fn round_real(dtype: DType, x: f32) -> f32 {
    scalar::round_to(dtype, f64::from(x)) as f32
}

/// Rounded once.
pub(super) fn real_from_whole(dtype: DType, x: i64) -> f32 {
    if dtype == DType::U64 { x.cast_unsigned() as f32 } else { x as f32 }
}

pub(super) fn real_of_bits(dtype: DType, bits: i64) -> f32 {
    scalar::real_of_bits(dtype, bits) as f32
}

pub(super) fn bits_of_real(dtype: DType, x: f32) -> i64 {
    scalar::bits_of_real(dtype, f64::from(x))
}

pub(super) fn whole_from_real(dtype: DType, x: f32) -> i64 {
    scalar::to_integer(dtype, f64::from(x))
}
