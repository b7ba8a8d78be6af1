//! Inputs of a network: from files, and random ones where none are given.

use anyhow::Result;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilescribe::artifact::{Manifest, Port, StatePort};
use tilescribe::graph::TensorData;
use tilescribe::workload::{put_integer, put_real};

use super::exit::CommandError;
use super::extents;

/// All inputs of a network where its symbols have these values: those that are given, and random ones of
/// these shapes in place of the rest, whose seeds count from `seed`.
///
/// # Errors
/// [`CommandError::Usage`] where an input cannot have such a shape.
pub fn complete(
    manifest: &Manifest,
    given: impl IntoIterator<Item = Option<TensorData>>,
    values: &[i64],
    seed: u64,
) -> Result<Vec<TensorData>> {
    let ports = manifest.inputs.iter().enumerate().zip(given);
    let input = |((number, port), given): ((usize, &Port), Option<TensorData>)| match given {
        Some(given) => Ok(given),
        None => random(port, extents::shape_of(port, values)?, seed.wrapping_add(number as u64)),
    };
    ports.map(input).collect()
}

/// States with as many rows as the values say, and random elements.
///
/// # Errors
/// As [`complete`].
pub fn states(manifest: &Manifest, values: &[i64], seed: u64) -> Result<Vec<TensorData>> {
    let state = |(number, state): (usize, &StatePort)| {
        random(&state.input, extents::shape_of(&state.input, values)?, seed.wrapping_sub(1 + number as u64))
    };
    manifest.states.iter().enumerate().map(state).collect()
}

/// Reproducible values: floats between -1 and 1; integers 0 or 1, which are indices into any table of two
/// rows.
fn random(port: &Port, shape: Vec<i64>, seed: u64) -> Result<TensorData> {
    let unknown = || CommandError::Usage(format!("`{}` has an unknown type or shape", port.name));
    let dtype = port.dtype().ok_or_else(unknown)?;
    let elements = port.bytes_at(&shape).ok_or_else(unknown)? / dtype.bytes();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut bytes = Vec::with_capacity(elements * dtype.bytes());
    for _ in 0..elements {
        let value = rng.random_range(-1.0f32..1.0);
        if dtype.is_float() {
            put_real(dtype, f64::from(value), &mut bytes);
        } else {
            put_integer(dtype, i64::from(value > 0.0), &mut bytes);
        }
    }
    Ok(TensorData { shape, dtype, bytes: bytes.into() })
}
