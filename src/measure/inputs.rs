//! What kernels are checked and timed on.
//!
//! Floats are ±[0.25, 1]: far from zero, so that leaving out one product of a long sum shows, and of both
//! signs, so that long sums stay small and functions such as tanh do not saturate. Where a logarithm, a root,
//! a power or a divisor might see a value that is not positive, as far as the signs of what goes in can tell,
//! all floats are positive. Constants that enter a sum of n products are scaled by 1/√n, as weights of
//! networks are. Around products over an axis, floats are [0.95, 1.05], so that they neither vanish nor
//! overflow. Integers are of either sign and large, where the workload allows it: see [`super::integers`].
//! Booleans are even.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use thiserror::Error;

use super::integers::values_of_integers;
use super::memory::readable;
use crate::workload::{Array, ArrayError, Binary, Combiner, Elements, Expr, Role, Sign, TensorId, Workload};

/// Raised with every change of what is generated: the oracle's cached outputs belong to a version.
pub(super) const GENERATOR: u32 = 4;

/// Why there are no inputs.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum InputsError {
    #[error(transparent)]
    Array(#[from] ArrayError),
    #[error("no memory for the {} of t{}", readable(*.bytes as u64), tensor.0)]
    OutOfMemory { tensor: TensorId, bytes: usize },
}

/// Inputs and constants of a workload whose parameters have these values, in the order of its tensors. Equal
/// workload, values and seed give equal arrays; constants are the same for all values.
///
/// # Errors
/// [`InputsError::OutOfMemory`], and [`InputsError::Array`] for shapes that no array has, which only an
/// invalid workload holds.
pub fn generate_inputs(workload: &Workload, values: &[i64], seed: u64) -> Result<Vec<(TensorId, Array)>, InputsError> {
    let fixed = workload.at(values);
    let mixed = every_domain_is_safe(workload);
    let near_one = workload.stages.iter().any(|stage| stage.combiner == Some(Combiner::Product));
    let [of_inputs, of_constants] = [&fixed, workload].map(|workload| values_of_integers(workload, mixed));
    let mut arrays = Vec::new();
    for (id, tensor) in fixed.ids().filter(|(_, t)| matches!(t.role, Role::Input | Role::Constant)) {
        // a stream of its own for each tensor
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(u64::from(id.0));
        let bytes = tensor.bytes();
        // the allocator would abort
        Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| InputsError::OutOfMemory { tensor: id, bytes })?;
        let mut array = Array::zeros(tensor.shape.clone(), tensor.dtype)?;
        let scale = match tensor.role {
            Role::Constant => 1.0 / (products_summed(workload, id) as f32).sqrt(),
            _ => 1.0,
        };
        let mut float = || {
            if near_one {
                return random.random_range(0.95..=1.05);
            }
            let magnitude: f32 = random.random_range(0.25..=1.0);
            scale * if mixed && random.random() { -magnitude } else { magnitude }
        };
        match array.elements_mut() {
            Elements::F32(values) => values.fill_with(float),
            Elements::F16(values) => values.fill_with(|| half::f16::from_f32(float())),
            Elements::BF16(values) => values.fill_with(|| half::bf16::from_f32(float())),
            // beyond what f32 holds, too
            Elements::F64(values) => values.fill_with(|| f64::from(float()) * (1.0 + f64::from(float()) * 1e-9)),
            Elements::Bool(values) => values.fill_with(|| random.random()),
            elements => {
                let integers = if tensor.role == Role::Constant { &of_constants } else { &of_inputs };
                integers[id.0 as usize].fill(elements, &mut random);
            }
        }
        arrays.push((id, array));
    }
    Ok(arrays)
}

/// The longest sum of products that a tensor is read in; 1 where it is in none.
fn products_summed(workload: &Workload, tensor: TensorId) -> i64 {
    let mut longest = 1;
    for stage in workload.stages.iter().filter(|s| s.combiner == Some(Combiner::Sum)) {
        let mut reads = 0;
        let mut read_here = false;
        stage.value.for_each_load(&mut |loaded, _| {
            reads += 1;
            read_here |= loaded == tensor;
        });
        // a lone operand is averaged or counted, not weighed
        if read_here && reads > 1 {
            longest = longest.max(stage.reduction.iter().product());
        }
    }
    longest
}

/// Whether no logarithm, root, power or divisor can meet a value that is not positive, with inputs of both
/// signs.
fn every_domain_is_safe(workload: &Workload) -> bool {
    let mut signs = vec![Sign::Any; workload.tensors.len()];
    let mut safe = true;
    for stage in &workload.stages {
        let sign = sign_of(&stage.value, &signs, &mut safe);
        signs[stage.output.0 as usize] = match stage.combiner {
            // the maximum of nothing would be minus infinity, but no axis is empty
            None | Some(Combiner::Sum | Combiner::Product | Combiner::Maximum | Combiner::Minimum) => sign,
        };
    }
    safe
}

/// What is known of a value when all inputs may have either sign.
fn sign_of(expr: &Expr, signs: &[Sign], safe: &mut bool) -> Sign {
    match expr {
        Expr::Float(value) if value.0 > 0.0 => Sign::Positive,
        Expr::Float(value) if value.0 == 0.0 => Sign::NonNegative,
        Expr::Float(_) | Expr::Index(_) => Sign::Any,
        Expr::Load { tensor, .. } => signs[tensor.0 as usize],
        Expr::Cast(_, x) => sign_of(x, signs, safe),
        Expr::Bits(_, x) => {
            sign_of(x, signs, safe);
            Sign::Any
        }
        Expr::Unary(op, x) => {
            let sign = sign_of(x, signs, safe);
            *safe &= op.is_defined_for(sign);
            op.sign(sign)
        }
        Expr::Binary(op, x, y) => {
            let (left, right) = (sign_of(x, signs, safe), sign_of(y, signs, safe));
            match op {
                Binary::Add | Binary::Maximum if left.min(right) >= Sign::NonNegative => left.max(right),
                Binary::Maximum => left.max(right),
                Binary::Multiply if x == y => left.max(Sign::NonNegative),
                Binary::Multiply | Binary::Minimum => left.min(right),
                Binary::Divide | Binary::Remainder => {
                    *safe &= right == Sign::Positive;
                    left.min(right)
                }
                Binary::Power => {
                    let even = matches!(&**y, Expr::Float(power) if power.0 % 2.0 == 0.0 && power.0 > 0.0);
                    let whole = matches!(&**y, Expr::Float(power) if power.0 % 1.0 == 0.0 && power.0 > 0.0);
                    *safe &= whole || left == Sign::Positive;
                    if even { left.max(Sign::NonNegative) } else { left }
                }
                _ => Sign::Any,
            }
        }
        Expr::Select { condition, yes, no } => {
            sign_of(condition, signs, safe);
            let yes = sign_of(yes, signs, safe);
            yes.min(sign_of(no, signs, safe))
        }
        Expr::Guard { inside, outside, .. } => {
            let inside = sign_of(inside, signs, safe);
            inside.min(sign_of(outside, signs, safe))
        }
    }
}
