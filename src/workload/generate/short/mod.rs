//! Workloads of short numbers, as networks have them after `Program::shorten`: sums of products of bf16 in
//! f32, of bytes in i32, and weights of 4 and 8 bits in blocks.

mod products;
mod store;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Builder, Limits, within};
use crate::workload::{Binary, Combiner, DType, Expr, Index, Role, Stage, TensorId, Workload};

/// What a workload of short numbers computes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ShortKind {
    /// A product by constant weights, whose rows are of the result's columns or of the depth.
    Dense,
    /// A product of two activations, whose heads may lie beside one another.
    BatchedProduct,
    /// Channels come last: strided, padded by zeros or zero points, in groups.
    Convolution,
    /// Channels come first, and the steps of the kernel are padded to whole dot products.
    ChannelsFirst,
    /// Weights are of the sum's type, or short.
    Depthwise,
    /// Weights of 4 or 8 bits with scales for blocks.
    Blocks,
}

impl ShortKind {
    pub const ALL: [ShortKind; 6] = {
        use ShortKind::*;
        [Dense, BatchedProduct, Convolution, ChannelsFirst, Depthwise, Blocks]
    };
}

/// A workload of one kind of short numbers. The same seed and limits give the same workload.
///
/// ```text
/// const t0 i8 20 12
/// input t1 u8 3 12
/// const t2 i32 20
/// let t3 i32 3 20 sum 12 mul cast i32 t1 a c cast i32 t0 b c
/// out t4 u8 3 20 cast u8 min 255.0 max 0.0 add 114.0 round div mul 0.002 cast f32 sub t3 a b t2 b 0.5
/// ```
pub fn generate_short(kind: ShortKind, seed: u64, limits: Limits) -> Workload {
    within(seed, limits, &|b| match kind {
        ShortKind::Dense => products::dense(b),
        ShortKind::BatchedProduct => products::batched(b),
        ShortKind::Convolution => products::convolution(b),
        ShortKind::ChannelsFirst => products::channels_first(b),
        ShortKind::Depthwise => products::depthwise(b),
        ShortKind::Blocks => products::blocks(b),
    })
}

/// Workloads of all kinds in turn, as many as wanted, each with its kind. The same seed and limits give the
/// same workloads.
pub fn short_workloads(seed: u64, limits: Limits) -> impl Iterator<Item = (ShortKind, Workload)> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    ShortKind::ALL.into_iter().cycle().map(move |kind| (kind, generate_short(kind, random.random(), limits)))
}

/// What is multiplied, and what it is added up in.
#[derive(Clone, Copy)]
struct Types {
    /// Of the activation and of what it is multiplied by.
    operands: [DType; 2],
    sum: DType,
    /// How many steps the instructions for dot products take.
    steps: i64,
}

impl Types {
    fn draw(b: &mut Builder, choices: &[[DType; 2]]) -> Types {
        let operands = b.pick(choices);
        let (steps, sum) = if operands[0] == DType::BF16 { (2, DType::F32) } else { (4, DType::I32) };
        Types { operands, sum, steps }
    }

    fn is_float(&self) -> bool {
        self.sum.is_float()
    }
}

/// A sum of products that is to be stored.
struct Product {
    sum: TensorId,
    types: Types,
    /// Which dimension of the sum is that of bias and correction.
    channel: usize,
    /// Number of products in a sum.
    depth: i64,
    /// Types of both operands in memory.
    read: [DType; 2],
    /// Whether the second operand is constant.
    by_constants: bool,
}

impl Builder {
    fn tensor(&mut self, shape: &[i64], dtype: DType, role: Role) -> TensorId {
        self.workload.add_tensor(shape.to_vec(), dtype, role)
    }

    fn sum_of(&mut self, dtype: DType, shape: &[i64], over: &[i64], value: Expr) -> TensorId {
        let output = self.tensor(shape, dtype, Role::Intermediate);
        self.workload.stages.push(Stage::reduce(output, shape.to_vec(), over.to_vec(), Combiner::Sum, value));
        output
    }

    fn map_to(&mut self, dtype: DType, shape: &[i64], value: Expr) -> TensorId {
        let output = self.tensor(shape, dtype, Role::Intermediate);
        self.workload.stages.push(Stage::map(output, shape.to_vec(), value));
        output
    }

    /// An extent that is more often than not a multiple of so many.
    fn multiple(&mut self, of: i64, most: i64) -> i64 {
        let extent = self.extent(most);
        if self.chance(0.7) { (extent + of - 1) / of * of } else { extent }
    }
}

fn multiply(x: Expr, y: Expr) -> Expr {
    Expr::binary(Binary::Multiply, x, y)
}

fn add(x: Expr, y: Expr) -> Expr {
    Expr::binary(Binary::Add, x, y)
}

fn subtract(x: Expr, y: Expr) -> Expr {
    Expr::binary(Binary::Subtract, x, y)
}

fn cast(to: DType, x: Expr) -> Expr {
    Expr::Cast(to, Box::new(x))
}

/// A literal as f32 holds it.
fn literal(value: f64) -> Expr {
    Expr::float(f64::from(value as f32))
}

/// An integer that is computed with in i32.
fn integer(value: i64) -> Expr {
    cast(DType::I32, Expr::integer(value))
}

/// An element in the type of the sum.
fn widened(types: &Types, tensor: TensorId, indices: Vec<Index>) -> Expr {
    cast(types.sum, Expr::load(tensor, indices))
}
