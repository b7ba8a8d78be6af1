//! AdamW (Loshchilov and Hutter, 2019) whose state can be saved: candle's own keeps its moments to itself.

use std::collections::BTreeMap;

use candle_core::{Tensor, Var};

use super::ModelError;

/// Decay of the mean of gradients, and of the mean of their squares.
const BETAS: (f64, f64) = (0.9, 0.98);
const EPSILON: f64 = 1e-8;

/// First and second moments of every variable.
pub(super) struct AdamW {
    pub first: BTreeMap<String, Tensor>,
    pub second: BTreeMap<String, Tensor>,
    /// Updates done.
    pub step: usize,
    weight_decay: f64,
}

impl AdamW {
    pub fn new(variables: &BTreeMap<String, Var>, weight_decay: f64) -> Result<AdamW, ModelError> {
        let mut zeros = BTreeMap::new();
        for (name, variable) in variables {
            zeros.insert(name.clone(), variable.as_tensor().zeros_like()?.detach());
        }
        Ok(AdamW { first: zeros.clone(), second: zeros, step: 0, weight_decay })
    }

    /// One update of all variables that have a gradient. Matrices decay, vectors (norms, biases) do not.
    pub fn update(
        &mut self,
        variables: &BTreeMap<String, Var>,
        gradients: &BTreeMap<String, Tensor>,
        learning_rate: f64,
    ) -> Result<(), ModelError> {
        self.step += 1;
        let correction = |beta: f64| 1.0 - beta.powi(i32::try_from(self.step).unwrap_or(i32::MAX));
        let (first_correction, second_correction) = (correction(BETAS.0), correction(BETAS.1));
        for (name, variable) in variables {
            let (Some(gradient), Some(first), Some(second)) =
                (gradients.get(name), self.first.get_mut(name), self.second.get_mut(name))
            else {
                continue;
            };
            *first = ((&*first * BETAS.0)? + (gradient * (1.0 - BETAS.0))?)?;
            *second = ((&*second * BETAS.1)? + (gradient.sqr()? * (1.0 - BETAS.1))?)?;
            let deviation = ((&*second / second_correction)?.sqrt()? + EPSILON)?;
            let direction = ((&*first / first_correction)? / deviation)?;
            let decay = if variable.rank() > 1 && variable.dim(0)? > 1 { self.weight_decay } else { 0.0 };
            let kept = (variable.as_tensor() * (1.0 - learning_rate * decay))?;
            variable.set(&(kept - (direction * learning_rate)?)?)?;
        }
        Ok(())
    }
}

/// Scales gradients down so that their common Euclidean norm is at most `limit`; returns the norm before.
pub(super) fn clip(gradients: &mut BTreeMap<String, Tensor>, limit: f64) -> Result<f64, ModelError> {
    let mut sum = 0.0;
    for gradient in gradients.values() {
        sum += f64::from(gradient.sqr()?.sum_all()?.to_scalar::<f32>()?);
    }
    let norm = sum.sqrt();
    if norm > limit {
        for gradient in gradients.values_mut() {
            *gradient = (&*gradient * (limit / norm))?;
        }
    }
    Ok(norm)
}
