//! The recurrence of the world model: a gated recurrent unit (Cho et al. 2014), in the form where the state
//! is reset behind its product, so that a step is a single one. Over a whole sequence it is one candle
//! operation with a gradient of its own: composed of candle's operations, a step is two dozen passes over
//! memory.

use candle_core::{CpuStorage, CustomOp3, Device, Layout, Result, Shape, Tensor, bail};

use crate::model::kernels::{Matrix, gated_step, gated_step_back, multiply};

/// Lets rows of states `[rows, width]` take a step. `inputs` is `[rows, 3 · width]`, `weight` `[3 · width,
/// width]`; `scratch` holds at least as much as `inputs`.
pub(super) fn step(states: &mut [f32], inputs: &[f32], weight: &[f32], width: usize, scratch: &mut [f32]) {
    let rows = states.len() / width;
    let recurrent = &mut scratch[..rows * 3 * width];
    multiply(recurrent, Matrix::row_major(states, rows, width), turned(weight, width), false);
    gated_step(states, inputs, recurrent, width);
}

/// The transpose of `[rows, width]`.
pub(super) fn turned(weight: &[f32], width: usize) -> Matrix<'_> {
    let rows = weight.len() / width;
    Matrix { data: weight, rows: width, columns: rows, row_stride: 1, column_stride: width }
}

/// States `[steps, rows, width]` after each step, of inputs `[steps, rows, 3 · width]`, the states before the
/// first one `[rows, width]`, and the recurrent weight `[3 · width, width]`.
pub(super) struct Recurrence;

/// A contiguous argument's elements.
fn slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((begin, end)) => Ok(&storage.as_slice::<f32>()?[begin..end]),
        None => bail!("a recurrence over a tensor that is not contiguous"),
    }
}

fn values(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.flatten_all()?.to_vec1()
}

impl CustomOp3 for Recurrence {
    fn name(&self) -> &'static str {
        "recurrence"
    }

    fn cpu_fwd(
        &self,
        inputs: &CpuStorage,
        of_inputs: &Layout,
        start: &CpuStorage,
        of_start: &Layout,
        weight: &CpuStorage,
        of_weight: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (steps, rows, _) = of_inputs.shape().dims3()?;
        let width = of_weight.shape().dims2()?.1;
        let (inputs, start, weight) = (slice(inputs, of_inputs)?, slice(start, of_start)?, slice(weight, of_weight)?);
        let mut states = Vec::with_capacity(steps * rows * width);
        let mut scratch = vec![0.0; rows * 3 * width];
        let mut now = start.to_vec();
        for inputs in inputs.chunks_exact((rows * 3 * width).max(1)) {
            step(&mut now, inputs, weight, width, &mut scratch);
            states.extend_from_slice(&now);
        }
        Ok((CpuStorage::F32(states), (steps, rows, width).into()))
    }

    /// With `h' = n + z · (h - n)`, `n = tanh(a + r · b)`, where `b` and what the gates `z` and `r` hear of
    /// the state are one product with the weight: from the last step to the first.
    fn bwd(
        &self,
        inputs: &Tensor,
        start: &Tensor,
        weight: &Tensor,
        states: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (shape, (steps, rows, _)) = (inputs.shape(), inputs.dims3()?);
        let (wide, width) = weight.dims2()?;
        let (inputs, start, weight) = (values(inputs)?, values(start)?, values(weight)?);
        let (states, gradient) = (values(states)?, values(gradient)?);
        // the state before each step
        let mut before = start;
        before.extend_from_slice(&states[..(steps.max(1) - 1) * rows * width]);
        let all = steps * rows;
        let mut recurrent = vec![0.0; all * wide];
        multiply(&mut recurrent, Matrix::row_major(&before, all, width), turned(&weight, width), false);
        let mut of_inputs = vec![0.0; all * wide];
        // in the place of what the state told, its gradient
        let mut of_states = vec![0.0; rows * width];
        for at in (0..steps).rev() {
            let (narrow, broad) =
                (at * rows * width..(at + 1) * rows * width, at * rows * wide..(at + 1) * rows * wide);
            of_states.iter_mut().zip(&gradient[narrow.clone()]).for_each(|(sum, gradient)| *sum += gradient);
            let told = &mut recurrent[broad.clone()];
            gated_step_back(
                &mut of_states,
                &mut of_inputs[broad.clone()],
                told,
                &inputs[broad],
                &before[narrow],
                width,
            );
            let of_recurrent = Matrix::row_major(told, rows, wide);
            multiply(&mut of_states, of_recurrent, Matrix::row_major(&weight, wide, width), true);
        }
        let mut of_weight = vec![0.0; wide * width];
        let of_recurrent = Matrix { data: &recurrent, rows: wide, columns: all, row_stride: 1, column_stride: wide };
        multiply(&mut of_weight, of_recurrent, Matrix::row_major(&before, all, width), false);
        Ok((
            Some(Tensor::from_vec(of_inputs, shape, &Device::Cpu)?),
            Some(Tensor::from_vec(of_states, (rows, width), &Device::Cpu)?),
            Some(Tensor::from_vec(of_weight, (wide, width), &Device::Cpu)?),
        ))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor, Var};
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::Recurrence;

    /// The same of candle's own operations.
    fn composed(inputs: &Tensor, start: &Tensor, weight: &Tensor) -> candle_core::Result<Tensor> {
        let width = start.dim(1)?;
        let (mut state, mut states) = (start.clone(), Vec::new());
        for at in 0..inputs.dim(0)? {
            let (input, heard) = (inputs.get(at)?, state.matmul(&weight.t()?)?);
            let part = |of: &Tensor, at: usize| of.narrow(1, at * width, width);
            let gate = |at: usize| candle_nn::ops::sigmoid(&(part(&input, at)? + part(&heard, at)?)?);
            let new = (part(&input, 2)? + (gate(1)? * part(&heard, 2)?)?)?.tanh()?;
            state = (&new + (gate(0)? * (&state - &new)?)?)?;
            states.push(state.clone());
        }
        Tensor::stack(&states, 0)
    }

    #[test]
    fn it_is_what_candle_makes_of_its_parts() {
        let (steps, rows, width) = (5, 3, 4);
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut drawn = |shape: &[usize]| {
            let values: Vec<f32> = (0..shape.iter().product()).map(|_| random.random_range(-1.5..1.5)).collect();
            Var::from_tensor(&Tensor::from_vec(values, shape, &Device::Cpu).unwrap()).unwrap()
        };
        let [inputs, start, weight] =
            [&[steps, rows, 3 * width][..], &[rows, width], &[3 * width, width]].map(&mut drawn);
        let weights = drawn(&[steps, rows, width]);
        let both =
            [inputs.apply_op3(&start, &weight, Recurrence).unwrap(), composed(&inputs, &start, &weight).unwrap()];
        let gradients = both.each_ref().map(|states| (states * weights.as_tensor()).unwrap().backward().unwrap());
        let apart = |a: &Tensor, b: &Tensor| {
            (a - b).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap()
        };
        assert!(apart(&both[0], &both[1]) < 1e-5);
        for variable in [&inputs, &start, &weight] {
            let [own, other] = gradients.each_ref().map(|store| store.get(variable.as_tensor()).unwrap());
            assert!(apart(own, other) < 1e-4, "{own} {other}");
        }
    }
}
