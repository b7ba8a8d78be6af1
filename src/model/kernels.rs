//! The few dense kernels of CPU inference, on plain slices: matrix products by the `gemm` crate, and what
//! stands between them.

use gemm::Parallelism;

/// A matrix in a slice: element `(row, column)` is at `row · row_stride + column · column_stride`.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub data: &'a [f32],
    pub rows: usize,
    pub columns: usize,
    pub row_stride: usize,
    pub column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Rows one after the other.
    pub fn row_major(data: &'a [f32], rows: usize, columns: usize) -> Matrix<'a> {
        Matrix { data, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// The highest index that is touched, plus one.
    fn extent(&self) -> usize {
        if self.rows == 0 || self.columns == 0 {
            return 0;
        }
        (self.rows - 1) * self.row_stride + (self.columns - 1) * self.column_stride + 1
    }
}

/// `output = left · right`, or `output += left · right`; `output` is row-major `[left.rows, right.columns]`.
/// On one thread: callers work on several batches at once.
pub(super) fn multiply(output: &mut [f32], left: Matrix<'_>, right: Matrix<'_>, accumulate: bool) {
    let (rows, columns, depth) = (left.rows, right.columns, left.columns);
    assert!(right.rows == depth && left.extent() <= left.data.len() && right.extent() <= right.data.len());
    assert!(rows * columns <= output.len());
    if rows == 0 || columns == 0 {
        return;
    }
    // SAFETY: the assertions above keep every access of the three matrices inside its slice, and `output` is
    // borrowed exclusively, so that it overlaps with neither operand.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            depth,
            output.as_mut_ptr(),
            1,
            columns as isize,
            accumulate,
            left.data.as_ptr(),
            left.column_stride as isize,
            left.row_stride as isize,
            right.data.as_ptr(),
            right.column_stride as isize,
            right.row_stride as isize,
            1.0f32,
            1.0f32,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// The transpose of row-major `[rows, columns]`.
pub(super) fn transpose(data: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| data[row * columns + column])).collect()
}

/// Added to the mean square before its root is taken; the same in training.
pub(super) const NORM_EPSILON: f32 = 1e-6;

/// Defines a function twice, for any machine and for AVX-512, and picks one when it is called. Both compute
/// the same, to the last bit: sums run over [`LANES`] partial sums either way.
macro_rules! for_each_width {
    ($(#[$doc:meta])* fn $name:ident / $wide:ident / $body:ident ($($argument:ident: $type:ty),*)) => {
        $(#[$doc])*
        pub(super) fn $name($($argument: $type),*) {
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx512f") {
                // SAFETY: the processor has the one feature that the function is compiled for
                return unsafe { $wide($($argument),*) };
            }
            $body($($argument),*)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f")]
        fn $wide($($argument: $type),*) {
            $body($($argument),*)
        }
    };
}

for_each_width! {
    /// `output = left · right`, where `left` is row-major and of a few rows, and the rows of `right` begin
    /// `stride` elements apart: without copies of either, which take longer than so small a product. `output`
    /// is `[rows, columns]`.
    fn multiply_few / multiply_few_wide / multiply_few_body(
        output: &mut [f32], columns: usize, left: &[f32], depth: usize, right: &[f32], stride: usize
    )
}

for_each_width! {
    /// `output[row] = input[row] / rms(input[row]) · scale` (RMSNorm, Zhang and Sennrich 2019); both `[rows,
    /// scale.len()]`.
    fn rms_norm / rms_norm_wide / rms_norm_body(output: &mut [f32], input: &[f32], scale: &[f32])
}

for_each_width! {
    /// `output[row] = relu(gate[row])² · up[row]`; `gate_up` is `[rows, 2 · hidden]`, gates first; output
    /// `[rows, hidden]`.
    fn squared_relu_gate / squared_relu_gate_wide / squared_relu_gate_body(output: &mut [f32], gate_up: &[f32], hidden: usize)
}

for_each_width! {
    /// Softmax, in place, over the two parts of a row together.
    fn softmax / softmax_wide / softmax_body(first: &mut [f32], second: &mut [f32])
}

for_each_width! {
    /// One step of a gated recurrent unit: of rows of `state [rows, width]`, what they become. `input` and
    /// `recurrent` are `[rows, 3 · width]`: what keeps, what resets, and what is new, as the input and as the
    /// state tells it.
    fn gated_step / gated_step_wide / gated_step_body(state: &mut [f32], input: &[f32], recurrent: &[f32], width: usize)
}

for_each_width! {
    /// Turns the gradient of states after such a step into that of the states before it, but for what goes
    /// through the product; writes that of the input, and replaces what the states told by its gradient.
    fn gated_step_back / gated_step_back_wide / gated_step_back_body(
        of_states: &mut [f32], of_inputs: &mut [f32], recurrent: &mut [f32], inputs: &[f32], before: &[f32], width: usize
    )
}

/// The three gates of one element: how much is kept, how much of the state enters what is new, what is new.
#[inline(always)]
fn gates(input: [f32; 3], recurrent: [f32; 3]) -> [f32; 3] {
    let keeps = sigmoid(input[0] + recurrent[0]);
    let enters = sigmoid(input[1] + recurrent[1]);
    [keeps, enters, tanh(input[2] + enters * recurrent[2])]
}

#[inline(always)]
fn gated_step_body(state: &mut [f32], input: &[f32], recurrent: &[f32], width: usize) {
    let rows = input.chunks_exact(3 * width).zip(recurrent.chunks_exact(3 * width));
    for (state, (input, recurrent)) in state.chunks_exact_mut(width).zip(rows) {
        let [a, b, c] = thirds(input, width);
        let [d, e, f] = thirds(recurrent, width);
        for i in 0..width {
            let [keeps, _, new] = gates([a[i], b[i], c[i]], [d[i], e[i], f[i]]);
            state[i] = new + keeps * (state[i] - new);
        }
    }
}

#[inline(always)]
fn gated_step_back_body(
    of_states: &mut [f32],
    of_inputs: &mut [f32],
    recurrent: &mut [f32],
    inputs: &[f32],
    before: &[f32],
    width: usize,
) {
    let wide = 3 * width;
    let rows = of_states.chunks_exact_mut(width).zip(before.chunks_exact(width));
    let told = of_inputs.chunks_exact_mut(wide).zip(recurrent.chunks_exact_mut(wide)).zip(inputs.chunks_exact(wide));
    for ((of_state, before), ((of_input, recurrent), input)) in rows.zip(told) {
        let [a, b, c] = thirds(input, width);
        let [of_a, of_b, of_c] = thirds_mut(of_input, width);
        let [d, e, f] = thirds_mut(recurrent, width);
        for i in 0..width {
            let [keeps, enters, new] = gates([a[i], b[i], c[i]], [d[i], e[i], f[i]]);
            let gradient = of_state[i];
            let of_new = gradient * (1.0 - keeps) * (1.0 - new * new);
            of_state[i] = gradient * keeps;
            of_a[i] = gradient * (before[i] - new) * keeps * (1.0 - keeps);
            of_b[i] = of_new * f[i] * enters * (1.0 - enters);
            of_c[i] = of_new;
            (d[i], e[i], f[i]) = (of_a[i], of_b[i], of_new * enters);
        }
    }
}

#[inline(always)]
fn thirds_mut(row: &mut [f32], width: usize) -> [&mut [f32]; 3] {
    let (first, others) = row.split_at_mut(width);
    let (second, third) = others.split_at_mut(width);
    [first, second, &mut third[..width]]
}

/// The three parts of a row of `3 · width`.
#[inline(always)]
fn thirds(row: &[f32], width: usize) -> [&[f32]; 3] {
    [&row[..width], &row[width..2 * width], &row[2 * width..3 * width]]
}

/// `1 / (1 + exp(-x))`, free of branches.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    let small = exponential(-x.abs());
    let high = 1.0 / (1.0 + small);
    if x > 0.0 { high } else { small * high }
}

/// The hyperbolic tangent, to an absolute error below 1e-6, free of branches.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let small = exponential(-2.0 * x.abs());
    ((1.0 - small) / (1.0 + small)).copysign(x)
}

#[inline(always)]
fn multiply_few_body(output: &mut [f32], columns: usize, left: &[f32], depth: usize, right: &[f32], stride: usize) {
    const ROWS: usize = 4;
    for (output, left) in output.chunks_mut(ROWS * columns).zip(left.chunks(ROWS * depth)) {
        if left.len() == ROWS * depth {
            multiply_rows::<ROWS>(output, columns, left, depth, right, stride);
            continue;
        }
        for (output, left) in output.chunks_exact_mut(columns).zip(left.chunks_exact(depth)) {
            multiply_rows::<1>(output, columns, left, depth, right, stride);
        }
    }
}

/// A product of so many rows, whose sums stay in registers, some columns after the others.
#[inline(always)]
fn multiply_rows<const ROWS: usize>(
    output: &mut [f32],
    columns: usize,
    left: &[f32],
    depth: usize,
    right: &[f32],
    stride: usize,
) {
    let left: [&[f32]; ROWS] = std::array::from_fn(|row| &left[row * depth..][..depth]);
    for begin in (0..columns).step_by(LANES) {
        let width = LANES.min(columns - begin);
        let mut sums = [[0.0; LANES]; ROWS];
        for (at, others) in right.chunks(stride).take(depth).enumerate() {
            let lanes = match others[begin..].first_chunk::<LANES>() {
                Some(lanes) => *lanes,
                None => std::array::from_fn(|lane| if lane < width { others[begin + lane] } else { 0.0 }),
            };
            for (sums, row) in sums.iter_mut().zip(left) {
                sums.iter_mut().zip(lanes).for_each(|(sum, other)| *sum += row[at] * other);
            }
        }
        for (sums, output) in sums.iter().zip(output.chunks_exact_mut(columns)) {
            output[begin..][..width].copy_from_slice(&sums[..width]);
        }
    }
}

#[inline(always)]
fn rms_norm_body(output: &mut [f32], input: &[f32], scale: &[f32]) {
    for (output, input) in output.chunks_exact_mut(scale.len()).zip(input.chunks_exact(scale.len())) {
        let mean = reduce(input, 0.0, |sum, x| sum + x * x, |a, b| a + b) / scale.len() as f32;
        let factor = 1.0 / (mean + NORM_EPSILON).sqrt();
        for ((output, input), scale) in output.iter_mut().zip(input).zip(scale) {
            *output = input * factor * scale;
        }
    }
}

#[inline(always)]
fn squared_relu_gate_body(output: &mut [f32], gate_up: &[f32], hidden: usize) {
    for (output, row) in output.chunks_exact_mut(hidden).zip(gate_up.chunks_exact(2 * hidden)) {
        let (gates, ups) = row.split_at(hidden);
        for ((output, gate), up) in output.iter_mut().zip(gates).zip(ups) {
            let gate = if *gate > 0.0 { *gate } else { 0.0 };
            *output = gate * gate * up;
        }
    }
}

#[inline(always)]
fn softmax_body(first: &mut [f32], second: &mut [f32]) {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let of_first = reduce(first, f32::NEG_INFINITY, larger, larger);
    let largest = reduce(second, of_first, larger, larger);
    let mut sum = 0.0;
    for row in [&mut *first, &mut *second] {
        row.iter_mut().for_each(|x| *x = exponential(*x - largest));
        sum += reduce(row, 0.0, |a, b| a + b, |a, b| a + b);
    }
    let factor = 1.0 / sum;
    first.iter_mut().for_each(|x| *x *= factor);
    second.iter_mut().for_each(|x| *x *= factor);
}

/// Partial results that are kept while a row is reduced: one vector register of AVX-512.
const LANES: usize = 16;

/// Reduces a row by `step` in [`LANES`] interleaved parts, and those by `combine`: an order that vectorises.
#[inline(always)]
fn reduce(row: &[f32], start: f32, step: impl Fn(f32, f32) -> f32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    let (chunks, rest) = row.as_chunks::<LANES>();
    let mut lanes = [start; LANES];
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = step(*lane, *x);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = step(*lane, *x);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = combine(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// `exp(x)` for `x ≤ 0`, to a relative error below 1e-6: `2^n · p(r)` with `n = round(x / ln 2)`; free of
/// branches, so that the compiler vectorises loops over it.
#[inline(always)]
fn exponential(x: f32) -> f32 {
    // adding 1.5 · 2^23 rounds to an integer, which then stands in the lowest bits
    const ROUND: f32 = 12_582_912.0;
    let x = if x > -87.0 { x } else { -87.0 };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // ln 2 in two parts: the first has few bits, so that n times it is exact
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let p =
        1.0 + r * (1.0 + r * (0.5 + r * (1.666_666_6e-1 + r * (4.166_789e-2 + r * (8.333_68e-3 + r * 1.390_7e-3)))));
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    p * f32::from_bits(exponent)
}

/// The scalar product of two vectors of one length.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Rotates the pairs `(vector[i], vector[half + i])` by the angles whose cosines and sines are given.
pub(super) fn rotate(output: &mut [f32], vector: &[f32], cosine: &[f32], sine: &[f32], factor: f32) {
    let (low, high) = vector.split_at(cosine.len());
    let (output_low, output_high) = output.split_at_mut(cosine.len());
    for i in 0..cosine.len() {
        output_low[i] = (low[i] * cosine[i] - high[i] * sine[i]) * factor;
        output_high[i] = (low[i] * sine[i] + high[i] * cosine[i]) * factor;
    }
}

#[cfg(test)]
mod tests {
    use super::{Matrix, exponential, multiply, multiply_few, sigmoid, softmax, tanh, transpose};

    #[test]
    fn exponential_is_exact_to_a_millionth() {
        for i in 0..=87_000 {
            let x = -(i as f32) / 1000.0;
            let exact = f64::from(x).exp();
            assert!((f64::from(exponential(x)) / exact - 1.0).abs() < 1e-6, "{x}");
        }
    }

    #[test]
    fn gates_are_exact_to_a_millionth() {
        for i in -3000..=3000 {
            let x = i as f32 / 100.0;
            let exact = f64::from(x);
            assert!((f64::from(tanh(x)) - exact.tanh()).abs() < 1e-6, "{x}");
            assert!((f64::from(sigmoid(x)) - 1.0 / (1.0 + (-exact).exp())).abs() < 1e-6, "{x}");
        }
    }

    #[test]
    fn products_respect_strides_and_accumulate() {
        // left [2, 3] row-major; right [3, 2] stored transposed
        let (left, right) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 0.0, 2.0, 0.5, 1.0, 0.0]);
        let right = Matrix { data: &right, rows: 3, columns: 2, row_stride: 1, column_stride: 3 };
        let mut output = [10.0, 0.0, 0.0, 0.0];
        multiply(&mut output, Matrix::row_major(&left, 2, 3), right, true);
        assert_eq!(output, [17.0, 2.5, 16.0, 7.0]);
        assert_eq!(transpose(&left, 2, 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }

    #[test]
    fn products_of_few_rows_are_products() {
        // right [3, 2], its rows four elements apart
        let (left, right) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 0.5, 9.0, 9.0, 0.0, 1.0, 9.0, 9.0, 2.0, 0.0]);
        let mut output = [7.0; 4];
        multiply_few(&mut output, 2, &left, 3, &right, 4);
        assert_eq!(output, [7.0, 2.5, 16.0, 7.0]);
        // more rows than registers hold sums of, and more columns than a vector has lanes
        let (rows, columns, depth, stride) = (6, 21, 5, 24);
        let left: Vec<f32> = (0..rows * depth).map(|i| (i * 5 % 11) as f32 - 5.0).collect();
        let right: Vec<f32> = (0..depth * stride).map(|i| (i * 7 % 13) as f32 - 6.0).collect();
        let of_right = Matrix { data: &right, rows: depth, columns, row_stride: stride, column_stride: 1 };
        let (mut expected, mut output) = (vec![1.0; rows * columns], vec![1.0; rows * columns]);
        multiply(&mut expected, Matrix::row_major(&left, rows, depth), of_right, false);
        multiply_few(&mut output, columns, &left, depth, &right, stride);
        // all sums are whole numbers
        assert_eq!(output, expected);
    }

    #[test]
    fn softmax_spans_both_parts() {
        let (mut first, mut second) = ([0.0, 100.0], [100.0]);
        softmax(&mut first, &mut second);
        assert!(first[0] < 1e-30 && (first[1] - 0.5).abs() < 1e-6 && (second[0] - 0.5).abs() < 1e-6);
    }
}
