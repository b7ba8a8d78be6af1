//! What to compute: a task's computation as tensor expressions over named axes.
//!
//! A [`Workload`] is a list of tensors and of [`Stage`]s in topological order. Each stage writes one tensor,
//! every element once, at the point of its spatial axes; a reduction combines its value over the reduction
//! axes. Of an output, it may write a part: the first elements along some dimensions ([`Workload::part_of`]).
//! The others belong to somebody else and stay as they are.
//!
//! Invariants (checked by [`Workload::validate`]): stages read only arguments and tensors written before;
//! every tensor but inputs and constants is written by exactly one stage; accesses stay inside the tensor
//! wherever their guards hold. Nothing in here knows how the computation is scheduled.

mod array;
mod bounds;
mod canonical;
pub mod evaluate;
mod expr;
pub mod form;
pub mod generate;
mod index;
mod parameter;
mod part;
mod primitive;
mod product;
mod clamp;
pub mod prove;
pub mod quotient;
pub mod scalar;
mod split;
pub mod flat;
pub mod merged;
mod numbers;
mod remembered;
mod rewritten;
pub mod strassen;
pub mod text;
pub mod validate;
pub mod winograd;

pub use array::{Array, ArrayError, Elements, integer_from_bytes, put_integer, put_real, real_from_bytes};
pub use bounds::StageFacts;
pub use canonical::{Canonical, canonical};
pub use evaluate::{EvaluateError, evaluate, evaluate_all};
pub use expr::{Condition, Expr, Float, identity, typed_identity};
pub use index::{Atom, Index, Interval, Var, flatten, gcd, stride_along};
pub use parameter::{Extents, Parameter};
pub use part::{RowsOfPart, part_of_bytes, put_part, reach_of_part, rows_of_part, strides_of_part};
pub use primitive::{Binary, Notation, Operands, Precedence, Sign, Unary};
pub use product::{Element, dot_steps};
pub use remembered::Algorithm;
pub use rewritten::{Rewritten, Tiled};
pub use text::TextError;
pub use tilescribe_runtime::dtype::{Class, DType};
pub use validate::{MAX_POINTS_TIMED, WorkloadError};

/// A tensor of a [`Workload`], by position. In a nest, the same number names its buffer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TensorId(pub u32);

/// Where a tensor comes from and goes to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// Given anew with every run.
    Input,
    /// Known when the network is compiled: may be packed offline.
    Constant,
    /// Lives between two stages; need not exist in memory.
    Intermediate,
    Output,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tensor {
    /// Row-major; a scalar has no extents.
    pub shape: Vec<i64>,
    pub dtype: DType,
    pub role: Role,
    /// By dimension: extents that may be less than those of the shape.
    pub extents: Extents,
}

impl Tensor {
    /// A tensor of fixed extents.
    pub fn new(shape: Vec<i64>, dtype: DType, role: Role) -> Tensor {
        Tensor { shape, dtype, role, extents: Extents::fixed() }
    }

    /// At most, where extents are known only when it runs.
    pub fn elements(&self) -> i64 {
        self.shape.iter().product()
    }

    pub fn bytes(&self) -> usize {
        self.elements() as usize * self.dtype.bytes()
    }

    /// Whether a dimension has one element in every run.
    pub fn is_unit(&self, dimension: usize) -> bool {
        self.shape[dimension] == 1 && self.extents.get(dimension).is_none()
    }

    /// Elements between neighbours along each dimension, where extents are what they are at most.
    pub fn strides(&self) -> Vec<i64> {
        row_major_strides(&self.shape)
    }
}

/// Elements between neighbours along each dimension of a dense row-major array.
pub fn row_major_strides(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for d in (0..shape.len().saturating_sub(1)).rev() {
        strides[d] = strides[d + 1] * shape[d + 1];
    }
    strides
}

/// An associative and commutative way to combine values.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Combiner {
    Sum,
    Product,
    Maximum,
    Minimum,
}

impl Combiner {
    /// What combining nothing gives.
    pub fn identity(self) -> f64 {
        match self {
            Combiner::Sum => 0.0,
            Combiner::Product => 1.0,
            Combiner::Maximum => f64::NEG_INFINITY,
            Combiner::Minimum => f64::INFINITY,
        }
    }

    pub fn binary(self) -> Binary {
        match self {
            Combiner::Sum => Binary::Add,
            Combiner::Product => Binary::Multiply,
            Combiner::Maximum => Binary::Maximum,
            Combiner::Minimum => Binary::Minimum,
        }
    }
}

/// Computes one tensor. `Var(i)` in its expression is the axis at position `i`: first the spatial axes, one
/// for each dimension of the output, then the reduction axes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stage {
    pub output: TensorId,
    /// Extents of the spatial axes: the output's shape, or that of the part of it that is written.
    pub spatial: Vec<i64>,
    /// Extents of the reduction axes.
    pub reduction: Vec<i64>,
    /// `None`: no reduction axes, the value is stored as it is.
    pub combiner: Option<Combiner>,
    pub value: Expr,
    /// By axis: extents that may be less than those above.
    pub extents: Extents,
}

impl Stage {
    /// An element-wise stage.
    pub fn map(output: TensorId, spatial: Vec<i64>, value: Expr) -> Stage {
        Stage { output, spatial, reduction: Vec::new(), combiner: None, value, extents: Extents::fixed() }
    }

    pub fn reduce(output: TensorId, spatial: Vec<i64>, reduction: Vec<i64>, combiner: Combiner, value: Expr) -> Stage {
        Stage { output, spatial, reduction, combiner: Some(combiner), value, extents: Extents::fixed() }
    }

    pub fn is_reduction(&self) -> bool {
        self.combiner.is_some()
    }

    /// The formulas of its extents, and all indices of its value.
    pub fn for_each_formula(&self, visit: &mut dyn FnMut(&Index)) {
        self.extents.iter().for_each(|(_, formula)| visit(formula));
        self.value.for_each_index(visit);
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.spatial.len() + self.reduction.len()
    }

    /// The extent of the axis at a position, at most.
    pub fn extent(&self, axis: usize) -> i64 {
        self.spatial.iter().chain(&self.reduction).copied().nth(axis).unwrap_or(1)
    }

    /// Whether an axis has one point in every run.
    pub fn is_unit(&self, axis: usize) -> bool {
        self.extent(axis) == 1 && self.extents.get(axis).is_none()
    }

    pub fn axis_range(&self, var: Var) -> Interval {
        Interval::below(self.extent(var.0 as usize))
    }

    /// Whether its axes are the spatial ones of another stage.
    pub fn is_over_results_of(&self, other: &Stage) -> bool {
        self.spatial == other.spatial
            && (0..self.spatial.len()).all(|axis| self.extents.get(axis) == other.extents.get(axis))
    }

    /// How often the value is computed, at most.
    pub fn points(&self) -> i64 {
        self.spatial.iter().chain(&self.reduction).product()
    }
}

/// How many leading spatial axes stages share: equal extents, and what one of them writes is only read at the
/// same row.
pub fn shared_axes(stages: &[&Stage]) -> usize {
    let Some(first) = stages.first() else { return 0 };
    let mut shared = first.spatial.len();
    for stage in stages {
        let ranks = stage.spatial.len().min(first.spatial.len());
        let equal = (0..ranks).take_while(|axis| stage.formula(*axis) == first.formula(*axis));
        shared = shared.min(equal.count());
        stage.value.for_each_load(&mut |tensor, indices| {
            if stages.iter().any(|other| other.output == tensor) {
                let own = indices.iter().enumerate().take_while(|(at, index)| index.as_var() == Some(Var(*at as u32)));
                shared = shared.min(own.count());
            }
        });
    }
    shared
}

/// A task's computation. Tensors are listed with inputs and constants anywhere, in a fixed order that kernels
/// take as their arguments.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Workload {
    /// Numbers that it is given with every run.
    pub parameters: Vec<Parameter>,
    /// Numbers for all parameters that programs are timed with; none where [`Workload::examples`] shall
    /// choose.
    pub points: Vec<Vec<i64>>,
    pub tensors: Vec<Tensor>,
    pub stages: Vec<Stage>,
}

impl Workload {
    /// The stages that run, with their numbers: all but those that make constants of constants.
    pub fn computed_stages(&self) -> impl Iterator<Item = (usize, &Stage)> {
        let runs = |stage: &Stage| self.tensor(stage.output).role != Role::Constant;
        self.stages.iter().enumerate().filter(move |(_, stage)| runs(stage))
    }

    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0 as usize]
    }

    /// Appends a tensor.
    pub fn add_tensor(&mut self, shape: Vec<i64>, dtype: DType, role: Role) -> TensorId {
        self.tensors.push(Tensor::new(shape, dtype, role));
        TensorId(self.tensors.len() as u32 - 1)
    }

    /// All tensors with their ids.
    pub fn ids(&self) -> impl Iterator<Item = (TensorId, &Tensor)> {
        self.tensors.iter().enumerate().map(|(i, t)| (TensorId(i as u32), t))
    }

    /// The stage that writes a tensor.
    pub fn producer(&self, tensor: TensorId) -> Option<usize> {
        self.stages.iter().position(|stage| stage.output == tensor)
    }

    /// The stage that only applies an element-wise function to what `stage` computed, if it is the next one.
    pub fn epilogue_of(&self, stage: usize) -> Option<usize> {
        let (reduction, next) = (&self.stages[stage], self.stages.get(stage + 1)?);
        if !reduction.is_reduction() || next.is_reduction() || !next.is_over_results_of(reduction) {
            return None;
        }
        let is_own = |(axis, index): (usize, &Index)| index.as_var() == Some(Var(axis as u32));
        let (mut reads, mut aligned) = (false, true);
        next.value.for_each_load(&mut |tensor, indices| {
            if tensor == reduction.output {
                reads = true;
                aligned &= indices.iter().enumerate().all(is_own);
            }
        });
        (reads && aligned).then_some(stage + 1)
    }

    /// Floating-point operations of one run: one for each operator of an expression, two for a multiply-add.
    pub fn flops(&self) -> i64 {
        self.stages.iter().map(|s| s.points() * (operators(&s.value) + i64::from(s.is_reduction()))).sum()
    }
}

fn operators(expr: &Expr) -> i64 {
    let own = match expr {
        Expr::Unary(..) | Expr::Binary(..) | Expr::Select { .. } => 1,
        Expr::Float(_) | Expr::Index(_) | Expr::Load { .. } | Expr::Guard { .. } | Expr::Cast(..) | Expr::Bits(..) => 0,
    };
    own + expr.children().map(operators).sum::<i64>()
}
