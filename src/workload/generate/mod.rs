//! Random plausible workloads, for property tests and for training corpora: what networks compute, with sizes
//! that range from the usual to the odd and prime.

mod kinds;
mod loosen;
mod short;

pub use loosen::with_run_time_extents;
pub use short::{ShortKind, generate_short, short_workloads};

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{DType, Expr, Index, Role, Stage, TensorId, Var, Workload};

/// What a generated workload computes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// A matrix product with bias and activation.
    Dense,
    /// A product of two batches of matrices.
    BatchedProduct,
    /// In one to three dimensions: strided, dilated, padded, grouped.
    Convolution,
    /// Padded with zeros or wrapped.
    DepthwiseConvolution,
    /// A transposed convolution; guards pick the rows that have a source.
    TransposedConvolution,
    /// Maximum or average over windows, padded or wrapped.
    Pooling,
    Softmax,
    LayerNorm,
    /// `softmax(scale · q · kᵀ + mask) · v`, with or without scale and mask.
    Attention,
    Reduction,
    /// A chain of element-wise operators with broadcast operands.
    ElementWise,
    Transpose,
    /// One shape read as another, through divisions.
    Reshape,
    /// Rows of a table by loaded positions, wrapped or clamped.
    Gather,
    Concatenation,
}

impl Kind {
    pub const ALL: [Kind; 15] = {
        use Kind::*;
        [
            Dense,
            BatchedProduct,
            Convolution,
            DepthwiseConvolution,
            TransposedConvolution,
            Pooling,
            Softmax,
            LayerNorm,
            Attention,
            Reduction,
            ElementWise,
            Transpose,
            Reshape,
            Gather,
            Concatenation,
        ]
    };
}

/// How large a generated workload may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Elements of its largest tensor.
    pub elements: i64,
    /// Points of its largest stage.
    pub points: i64,
}

impl Limits {
    /// Evaluated and interpreted in milliseconds.
    pub const SMALL: Limits = Limits { elements: 4_000, points: 40_000 };
    /// The sizes of networks.
    pub const LARGE: Limits = Limits { elements: 4_000_000, points: 400_000_000 };
}

/// A workload of any kind. The same seed and limits give the same workload.
pub fn generate(seed: u64, limits: Limits) -> Workload {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let kind = *Kind::ALL.choose(&mut random).unwrap_or(&Kind::Dense);
    generate_kind(kind, random.random(), limits)
}

/// A workload of one kind. The same seed and limits give the same workload.
pub fn generate_kind(kind: Kind, seed: u64, limits: Limits) -> Workload {
    within(seed, limits, &|builder| kinds::build(kind, builder))
}

/// What `build` makes, from extents so small that it is within the limits.
fn within(seed: u64, limits: Limits, build: &dyn Fn(&mut Builder)) -> Workload {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut cap = 4096;
    loop {
        let mut builder =
            Builder { workload: Workload::default(), random: ChaCha8Rng::seed_from_u64(random.random()), cap };
        build(&mut builder);
        let workload = builder.finish();
        let small = workload.tensors.iter().all(|t| t.elements() <= limits.elements)
            && workload.stages.iter().all(|s| s.points() <= limits.points);
        // at the smallest extents nothing gets smaller any more
        if (small && workload.validate().is_ok()) || cap == 1 {
            return workload;
        }
        cap = (cap * 3 / 4).max(1);
    }
}

/// A workload in the making.
struct Builder {
    workload: Workload,
    random: ChaCha8Rng,
    /// The largest extent that is drawn.
    cap: i64,
}

impl Builder {
    /// The last tensor written becomes the output.
    fn finish(mut self) -> Workload {
        if let Some(last) = self.workload.stages.last() {
            self.workload.tensors[last.output.0 as usize].role = Role::Output;
        }
        self.workload
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.random.random_bool(probability)
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.random.random_range(0..choices.len())]
    }

    /// An extent up to `most`: usual, prime and odd ones.
    fn extent(&mut self, most: i64) -> i64 {
        const USUAL: [i64; 26] =
            [1, 2, 3, 4, 6, 7, 8, 12, 14, 16, 24, 28, 32, 48, 49, 56, 64, 96, 112, 128, 196, 256, 384, 512, 768, 1024];
        const PRIME: [i64; 16] = [2, 3, 5, 7, 11, 13, 17, 23, 31, 61, 101, 127, 197, 251, 509, 1021];
        let most = most.min(self.cap).max(1);
        let below = |list: &[i64]| list.iter().copied().filter(|e| *e <= most).collect::<Vec<_>>();
        match self.random.random_range(0..10) {
            0..6 => self.pick(&below(&USUAL)),
            6..8 if most > 1 => self.pick(&below(&PRIME)),
            _ => {
                // every order of magnitude alike
                let exponent = self.random.random_range(0.0..=(most as f64).ln());
                (exponent.exp().round() as i64).clamp(1, most)
            }
        }
    }

    fn input(&mut self, shape: &[i64]) -> TensorId {
        self.workload.add_tensor(shape.to_vec(), DType::F32, Role::Input)
    }

    fn constant(&mut self, shape: &[i64]) -> TensorId {
        self.workload.add_tensor(shape.to_vec(), DType::F32, Role::Constant)
    }

    fn map(&mut self, shape: &[i64], value: Expr) -> TensorId {
        let output = self.workload.add_tensor(shape.to_vec(), DType::F32, Role::Intermediate);
        self.workload.stages.push(Stage::map(output, shape.to_vec(), value));
        output
    }

    fn reduce(&mut self, shape: &[i64], over: &[i64], combiner: super::Combiner, value: Expr) -> TensorId {
        let output = self.workload.add_tensor(shape.to_vec(), DType::F32, Role::Intermediate);
        self.workload.stages.push(Stage::reduce(output, shape.to_vec(), over.to_vec(), combiner, value));
        output
    }

    fn shape(&self, id: TensorId) -> Vec<i64> {
        self.workload.tensor(id).shape.clone()
    }
}

/// The axis at a position.
fn axis(position: usize) -> Index {
    Index::var(Var(position as u32))
}

/// The first axes.
fn axes(count: usize) -> Vec<Index> {
    (0..count).map(axis).collect()
}
