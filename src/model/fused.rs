//! The transformer's element-wise and attention steps as single candle operations with gradients of their
//! own, for the CPU.
//!
//! Written with candle's own operations, each is a dozen passes over memory forward and twice as many
//! backward, on one core; they are where most of a training step went. On other devices [`super::network`]
//! composes them from candle's.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Device, Layout, Result, Shape, Tensor, bail};

use super::kernels::{self, Matrix, NORM_EPSILON, multiply};

/// A contiguous argument's elements.
fn slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((begin, end)) => Ok(&storage.as_slice::<f32>()?[begin..end]),
        None => bail!("a fused operation of a tensor that is not contiguous"),
    }
}

fn values(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.flatten_all()?.to_vec1()
}

/// Root-mean-square norm of rows `[rows, width]` with a scale `[width]`.
pub(super) struct RmsNorm;

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(&self, x: &CpuStorage, of_x: &Layout, s: &CpuStorage, of_s: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, scale) = (slice(x, of_x)?, slice(s, of_s)?);
        let mut output = vec![0.0; x.len()];
        kernels::rms_norm(&mut output, x, scale);
        Ok((CpuStorage::F32(output), of_x.shape().clone()))
    }

    /// With `f = 1 / rms(x)` and `h = g · s`: `dx = f · h - x · f³ · mean(h · x)`, `ds = Σ g · x · f`.
    fn bwd(&self, x: &Tensor, scale: &Tensor, _: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (shape, width) = (x.shape(), scale.dim(0)?);
        let (x, s, mut g) = (values(x)?, values(scale)?, values(g)?);
        let mut of_scale = vec![0.0f32; width];
        for (x, g) in x.chunks_exact(width).zip(g.chunks_exact_mut(width)) {
            let mean = x.iter().map(|x| x * x).sum::<f32>() / width as f32;
            let factor = 1.0 / (mean + NORM_EPSILON).sqrt();
            let dot: f32 = x.iter().zip(&*g).zip(&s).map(|((x, g), s)| x * g * s).sum();
            let shared = dot * factor * factor * factor / width as f32;
            for (((x, g), s), of_scale) in x.iter().zip(g).zip(&s).zip(&mut of_scale) {
                *of_scale += *g * x * factor;
                *g = *g * s * factor - x * shared;
            }
        }
        let of_scale = Tensor::from_vec(of_scale, width, &Device::Cpu)?;
        Ok((Some(Tensor::from_vec(g, shape, &Device::Cpu)?), Some(of_scale)))
    }
}

/// `relu(gate)² · up` of `[rows, 2 · hidden]`, gates first.
pub(super) struct SquaredReluGate;

impl CustomOp1 for SquaredReluGate {
    fn name(&self) -> &'static str {
        "squared-relu-gate"
    }

    fn cpu_fwd(&self, gate_up: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, twice) = layout.shape().dims2()?;
        let mut output = vec![0.0; rows * twice / 2];
        kernels::squared_relu_gate(&mut output, slice(gate_up, layout)?, twice / 2);
        Ok((CpuStorage::F32(output), (rows, twice / 2).into()))
    }

    fn bwd(&self, gate_up: &Tensor, _: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        let (shape, hidden) = (gate_up.shape(), g.dim(1)?);
        let (mut gate_up, g) = (values(gate_up)?, values(g)?);
        for (row, g) in gate_up.chunks_exact_mut(2 * hidden).zip(g.chunks_exact(hidden)) {
            let (gate, up) = row.split_at_mut(hidden);
            for ((gate, up), g) in gate.iter_mut().zip(up).zip(g) {
                let positive = gate.max(0.0);
                *gate = g * *up * 2.0 * positive;
                *up = g * positive * positive;
            }
        }
        Ok(Some(Tensor::from_vec(gate_up, shape, &Device::Cpu)?))
    }
}

/// Causal multi-query attention with rotary positions, of projections `[rows, (heads + 2) · head]` to `[rows,
/// heads · head]`: rows are first those of a prefix, then those of each member, which sees the prefix and
/// itself.
pub(super) struct Attention {
    pub heads: usize,
    pub head: usize,
    pub prefix: usize,
    pub members: usize,
    /// Rows of each member.
    pub length: usize,
    /// `[max_sequence, head / 2]`
    pub cosines: Arc<Vec<f32>>,
    pub sines: Arc<Vec<f32>>,
}

/// Rows that see each other, behind `past` rows of the prefix that they see too.
#[derive(Clone, Copy)]
struct Segment {
    begin: usize,
    rows: usize,
    past: usize,
}

/// Rotated, scaled queries `[rows, heads · head]`, rotated keys and values `[rows, head]`.
struct Parts {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Attention {
    fn width(&self) -> usize {
        self.heads * self.head
    }

    fn segments(&self) -> impl Iterator<Item = Segment> {
        let (prefix, length) = (self.prefix, self.length);
        let first = (prefix > 0).then_some(Segment { begin: 0, rows: prefix, past: 0 });
        let members =
            (0..self.members).map(move |m| Segment { begin: prefix + m * length, rows: length, past: prefix });
        first.into_iter().chain(members)
    }

    /// Rotates one head's vector at a row; backwards for gradients.
    fn rotate(&self, vector: &mut [f32], row: usize, backwards: bool) {
        let position = if row < self.prefix { row } else { self.prefix + (row - self.prefix) % self.length };
        let half = self.head / 2;
        let angles = position * half..(position + 1) * half;
        let (low, high) = vector.split_at_mut(half);
        for (((low, high), cosine), sine) in
            low.iter_mut().zip(high).zip(&self.cosines[angles.clone()]).zip(&self.sines[angles])
        {
            let sine = if backwards { -sine } else { *sine };
            (*low, *high) = (*low * cosine - *high * sine, *low * sine + *high * cosine);
        }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head as f32).sqrt()
    }

    fn split(&self, projected: &[f32]) -> Parts {
        let (width, head, scale) = (self.width(), self.head, self.scale());
        let mut parts = Parts { queries: Vec::new(), keys: Vec::new(), values: Vec::new() };
        for (row, projected) in projected.chunks_exact(width + 2 * head).enumerate() {
            let begin = parts.queries.len();
            parts.queries.extend(projected[..width].iter().map(|q| q * scale));
            parts.queries[begin..].chunks_exact_mut(head).for_each(|query| self.rotate(query, row, false));
            let begin = parts.keys.len();
            parts.keys.extend(&projected[width..width + head]);
            self.rotate(&mut parts.keys[begin..], row, false);
            parts.values.extend(&projected[width + head..]);
        }
        parts
    }

    /// What a segment's rows see, of keys or values: the prefix' rows, then its own.
    fn seen(&self, of: &[f32], segment: Segment) -> Vec<f32> {
        let own = segment.begin * self.head..(segment.begin + segment.rows) * self.head;
        [&of[..segment.past * self.head], &of[own]].concat()
    }

    /// Probabilities `[rows · heads, past + rows]` of what each row and head looks at.
    fn probabilities(&self, queries: &[f32], keys: &[f32], segment: Segment) -> Vec<f32> {
        let (rows, columns) = (segment.rows * self.heads, segment.past + segment.rows);
        let mut scores = vec![0.0; rows * columns];
        multiply(&mut scores, Matrix::row_major(queries, rows, self.head), transposed(keys, columns, self.head), false);
        for (row, scores) in scores.chunks_exact_mut(columns).enumerate() {
            let (visible, later) = scores.split_at_mut(segment.past + row / self.heads + 1);
            kernels::softmax(visible, &mut []);
            later.fill(0.0);
        }
        scores
    }

    /// The part of a row-major matrix of `width` columns that belongs to a segment.
    fn rows_of(&self, segment: Segment) -> std::ops::Range<usize> {
        segment.begin * self.width()..(segment.begin + segment.rows) * self.width()
    }
}

/// The transpose of row-major `[rows, columns]`, in place.
fn transposed(data: &[f32], rows: usize, columns: usize) -> Matrix<'_> {
    Matrix { data, rows: columns, columns: rows, row_stride: 1, column_stride: columns }
}

impl CustomOp1 for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(&self, projected: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, _) = layout.shape().dims2()?;
        let parts = self.split(slice(projected, layout)?);
        let mut output = vec![0.0; rows * self.width()];
        for segment in self.segments() {
            let (keys, values) = (self.seen(&parts.keys, segment), self.seen(&parts.values, segment));
            let range = self.rows_of(segment);
            let probabilities = self.probabilities(&parts.queries[range.clone()], &keys, segment);
            let (rows, columns) = (segment.rows * self.heads, segment.past + segment.rows);
            let probabilities = Matrix::row_major(&probabilities, rows, columns);
            multiply(&mut output[range], probabilities, Matrix::row_major(&values, columns, self.head), false);
        }
        Ok((CpuStorage::F32(output), (rows, self.width()).into()))
    }

    /// With probabilities `P` and the gradient `G`: `dV = Pᵀ·G`, `dP = G·Vᵀ`, `dS = P ∘ (dP - rowsum(P ∘
    /// dP))`, `dQ = dS·K`, `dK = dSᵀ·Q`; `P` is computed once more rather than kept.
    fn bwd(&self, projected: &Tensor, _: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        let (shape, head, width) = (projected.shape(), self.head, self.width());
        let (parts, g) = (self.split(&values(projected)?), values(g)?);
        let mut of_queries = vec![0.0; parts.queries.len()];
        let (mut of_keys, mut of_values) = (vec![0.0; parts.keys.len()], vec![0.0; parts.values.len()]);
        for segment in self.segments() {
            let (keys, values) = (self.seen(&parts.keys, segment), self.seen(&parts.values, segment));
            let range = self.rows_of(segment);
            let (queries, g) = (&parts.queries[range.clone()], &g[range.clone()]);
            let probabilities = self.probabilities(queries, &keys, segment);
            let (rows, columns) = (segment.rows * self.heads, segment.past + segment.rows);
            let mut seen = vec![0.0; columns * head];
            multiply(&mut seen, transposed(&probabilities, rows, columns), Matrix::row_major(g, rows, head), false);
            self.scatter(&mut of_values, &seen, segment);
            let mut scores = vec![0.0; rows * columns];
            multiply(&mut scores, Matrix::row_major(g, rows, head), transposed(&values, columns, head), false);
            for (scores, probabilities) in scores.chunks_exact_mut(columns).zip(probabilities.chunks_exact(columns)) {
                let dot: f32 = scores.iter().zip(probabilities).map(|(s, p)| s * p).sum();
                scores.iter_mut().zip(probabilities).for_each(|(s, p)| *s = p * (*s - dot));
            }
            let of_scores = Matrix::row_major(&scores, rows, columns);
            multiply(&mut of_queries[range], of_scores, Matrix::row_major(&keys, columns, head), false);
            multiply(&mut seen, transposed(&scores, rows, columns), Matrix::row_major(queries, rows, head), false);
            self.scatter(&mut of_keys, &seen, segment);
        }
        let mut gradient = Vec::with_capacity(shape.elem_count());
        for row in 0..of_keys.len() / head {
            let begin = gradient.len();
            gradient.extend(of_queries[row * width..(row + 1) * width].iter().map(|q| q * self.scale()));
            gradient.extend(&of_keys[row * head..(row + 1) * head]);
            gradient[begin..].chunks_exact_mut(head).for_each(|vector| self.rotate(vector, row, true));
            gradient.extend(&of_values[row * head..(row + 1) * head]);
        }
        Ok(Some(Tensor::from_vec(gradient, shape, &Device::Cpu)?))
    }
}

impl Attention {
    /// Adds gradients of what a segment saw to the rows that they belong to.
    fn scatter(&self, into: &mut [f32], seen: &[f32], segment: Segment) {
        let (past, own) = seen.split_at(segment.past * self.head);
        let add = |into: &mut [f32], from: &[f32]| into.iter_mut().zip(from).for_each(|(a, b)| *a += b);
        add(&mut into[..past.len()], past);
        add(&mut into[segment.begin * self.head..], own);
    }
}
