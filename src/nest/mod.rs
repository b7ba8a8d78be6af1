//! How to compute it: the scheduled loop nest.
//!
//! A [`Nest`] is a small imperative program: loops, guards, stores and accumulations over buffers. It prints
//! and parses. It starts as the plain reading of a workload and is changed by pure rewrites, each of which
//! takes a nest and returns one. Every kind of loop means what a serial loop means; the others only promise
//! that the iterations may be executed so, and the verifier and the interpreter hold a nest to the promise.
//!
//! # GPUs
//!
//! The body of a nest for a GPU is a list of `Block` loops, a launch each; what stands in the innermost of
//! them are *phases*: nests of `Thread` loops, and serial loops and conditions around them that are the same
//! for all threads. The threads of a block meet at the end of a phase, as the iterations of any loop do, so
//! what one phase writes the next may read; where that takes a barrier, and where not, is found out when code
//! is generated. `BlockShared` buffers are the block's shared memory. A `Register` buffer begins with the
//! dimensions of the `Thread` loops that use it, and each thread touches its own part: so accumulators
//! outlive a phase.
//!
//! ```text
//! block for i in 0..8 {
//!   thread for y in 0..16 { thread for x in 0..16 { r[y, x] = 0 } }
//!   for k in 0..32 {
//!     thread for y in 0..16 { thread for x in 0..16 { s[y, x] = t0[16·i + y, 16·k + x] } }
//!     thread for y in 0..16 { thread for x in 0..16 { unroll for c in 0..16 { r[y, x] += s[y, c] } } }
//!   }
//!   thread for y in 0..16 { thread for x in 0..16 { t1[16·i + y, x] = r[y, x] } }
//! }
//! ```
//!
//! Tensor cores: where the loops of a phase are over warps instead of threads, `Matrix` loops inside of them
//! stand for matrices that the threads of a warp hold together: registers whose last two dimensions are a
//! matrix's sides are started, accumulated by products of operands, and stored. How their elements are dealt
//! out to the threads is the code generator's business. Products round their operands first (see [`matrix`]).
//!
//! ```text
//! warp for w in 0..4 { matrix for i in 0..16 { matrix for j in 0..8 { matrix for k in 0..8 { r[w, i, j] += s[16·w + i, k] * u[k, j] } } } }
//! ```
//!
//! Dot products: CPUs multiply short numbers in twos (bf16) or fours (8 bits) and add the products to a wider
//! sum, in every lane of a vector. A `Dot` loop is such a group of steps (see [`dot`]); what a vector takes
//! lies side by side where the operands are packed in the order of the loops.
//!
//! ```text
//! for k in 0..32 { vector for j in 0..16 { dot for q in 0..2 { r[j] += f32 a[i, 2·k + q] * f32 b[k, j, q] } } }
//! ```
//!
//! Tile registers: outside of warps, `Matrix` loops around a dot product stand for matrices that one
//! instruction multiplies (see [`tiles`]).
//!
//! Invariants (checked by the verifier): variables are bound where they are used; accesses stay inside their
//! buffers; private buffers are written before they are read; iterations of a parallel loop write disjoint
//! elements.

pub mod dot;
mod interpret;
pub mod matrix;
mod parse;
mod print;
mod statistics;
mod structure;
pub mod tiles;
mod verify;

pub use interpret::{Fault, FaultKind, FaultPlace, interpret};
pub use parse::{NestTextError, NestTextProblem};
pub use statistics::{Statistics, Traffic, statistics};
pub use structure::Flaw;
pub use verify::{MAX_THREADS, VerifyError, VerifyRule, verify};

pub use crate::workload::text::{axis_name, parameter_name};
use crate::workload::{
    Combiner, Condition, DType, Expr, Extents, Index, Interval, Parameter, Role, TensorId, Var, Workload, identity,
};

pub mod rewrite;

/// Where a buffer lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scope {
    /// An argument of the kernel: a tensor of the workload that is no intermediate.
    Argument(Role),
    /// An argument of the kernel that `setup` fills from constants, once, when the network is compiled.
    Packed,
    /// One instance for a run of the kernel, in the workspace, visible to all threads.
    Workspace,
    /// One instance for each iteration of a parallel loop (for each run, outside of one), in the workspace;
    /// for each block of a GPU, in its shared memory. Undefined at the start of an iteration.
    BlockShared,
    /// Like `BlockShared`, but meant for registers: after unrolling, its indices are constants and at most
    /// one vector loop's variable. On a GPU the variables of the thread loops come before them.
    Register,
}

/// A dense row-major array of elements.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Buffer {
    pub name: String,
    /// At most.
    pub shape: Vec<i64>,
    pub dtype: DType,
    pub scope: Scope,
    /// By dimension: extents that may be less than those of the shape, in the nest's parameters. Elements lie
    /// as these say.
    pub extents: Extents,
    /// Of an output of which the nest writes a part: how far that goes along each dimension. What lies behind
    /// is somebody else's.
    pub part: Option<Vec<i64>>,
}

impl Buffer {
    /// A buffer of fixed extents.
    pub fn new(name: impl Into<String>, shape: Vec<i64>, dtype: DType, scope: Scope) -> Buffer {
        Buffer { name: name.into(), shape, dtype, scope, extents: Extents::fixed(), part: None }
    }

    /// How far accesses may go along each dimension, at most.
    pub fn reach(&self) -> &[i64] {
        self.part.as_ref().unwrap_or(&self.shape)
    }

    /// The extent of a dimension as a formula of parameters.
    pub fn extent(&self, dimension: usize) -> Index {
        self.extents.formula(dimension, self.shape[dimension])
    }

    /// Elements between neighbours along a dimension; `None` where that is known only when it runs.
    pub fn stride(&self, dimension: usize) -> Option<i64> {
        let varies = self.extents.iter().any(|(at, _)| at > dimension);
        (!varies).then(|| self.shape[dimension + 1..].iter().product())
    }

    /// Elements that an access moves by when a variable grows by one; `None` where that is not constant.
    pub fn step(&self, indices: &[Index], var: Var) -> Option<i64> {
        let part = |(dimension, index): (usize, &Index)| match index.step(var)? {
            0 => Some(0),
            step => Some(step * self.stride(dimension)?),
        };
        indices.iter().enumerate().map(part).sum()
    }

    /// At most, where extents are known only when it runs.
    pub fn elements(&self) -> i64 {
        self.shape.iter().product()
    }

    pub fn bytes(&self) -> usize {
        self.elements() as usize * self.dtype.bytes()
    }
}

/// How the iterations of a loop are executed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LoopKind {
    Serial,
    /// Spread over the threads; no iteration depends on another.
    Parallel,
    /// One vector operation; constant extent, at most the lanes of a register.
    /// An accumulation whose destination does not move with the variable is reduced across the lanes.
    Vector,
    /// Written out; constant extent.
    Unroll,
    /// Spread over the blocks of a GPU; constant extent, directly inside of nothing but other such loops.
    Block,
    /// Spread over the threads of a block; constant extent, and the only statement of a thread loop around
    /// it.
    Thread,
    /// Spread over the warps of a block, in place of thread loops: the threads of a warp execute an iteration
    /// together.
    Warp,
    /// A side of a matrix that the threads of a warp hold and compute together, in [`matrix`]'s shapes; on a
    /// CPU of one that is in a register, in those of [`tiles`].
    Matrix,
    /// A few steps of a sum of products of short numbers, which one instruction takes: in [`dot`]'s shapes,
    /// and the only loop that may stand inside of a vector loop.
    Dot,
}

impl LoopKind {
    pub const ALL: [LoopKind; 9] = {
        use LoopKind::{Block, Dot, Matrix, Parallel, Serial, Thread, Unroll, Vector, Warp};
        [Serial, Parallel, Vector, Unroll, Block, Thread, Warp, Matrix, Dot]
    };

    /// The word in front of `for`; of a serial loop, there is none but `for`.
    pub fn name(self) -> &'static str {
        match self {
            LoopKind::Serial => "for",
            LoopKind::Parallel => "parallel",
            LoopKind::Vector => "vector",
            LoopKind::Unroll => "unroll",
            LoopKind::Block => "block",
            LoopKind::Thread => "thread",
            LoopKind::Warp => "warp",
            LoopKind::Matrix => "matrix",
            LoopKind::Dot => "dot",
        }
    }

    /// Whether iterations are executed side by side in a block, by threads or by warps.
    pub fn is_in_block(self) -> bool {
        matches!(self, LoopKind::Thread | LoopKind::Warp)
    }
}

/// `for var in 0..min(bounds)`; a bound of 0 or less gives no iteration.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Loop {
    pub var: Var,
    /// At least one; affine in the parameters and the variables of enclosing loops, and quotients of such.
    /// The first is a constant that is never exceeded.
    pub bounds: Vec<Index>,
    pub kind: LoopKind,
    pub body: Vec<Stmt>,
}

impl Loop {
    /// The largest number of iterations, which sizes are planned for.
    pub fn extent(&self) -> i64 {
        self.bounds.iter().find_map(Index::as_constant).unwrap_or(i64::MAX)
    }

    /// Whether it always runs [`Loop::extent`] times.
    pub fn is_constant(&self) -> bool {
        self.bounds.len() == 1
    }

    /// The loop with nothing in it.
    #[must_use]
    pub fn head(&self) -> Loop {
        Loop { var: self.var, bounds: self.bounds.clone(), kind: self.kind, body: Vec::new() }
    }

    /// The loop with something else in it.
    #[must_use]
    pub fn around(&self, body: Vec<Stmt>) -> Loop {
        Loop { body, ..self.head() }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Stmt {
    Loop(Loop),
    /// Runs the body where all conditions hold.
    If {
        conditions: Vec<Condition>,
        body: Vec<Stmt>,
    },
    /// `buffer[indices] = value`
    Store {
        buffer: TensorId,
        indices: Vec<Index>,
        value: Expr,
    },
    /// `buffer[indices] = combine(buffer[indices], value)`
    Accumulate {
        buffer: TensorId,
        indices: Vec<Index>,
        combiner: Combiner,
        value: Expr,
    },
}

/// A scheduled program. `buffers` starts with the tensors of the workload, under the same ids; scratch
/// buffers follow.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Nest {
    /// Numbers that the kernel is given with every run: what the first variables stand for, in order.
    pub parameters: Vec<Parameter>,
    pub buffers: Vec<Buffer>,
    /// Names of the variables, by `Var`: of the parameters, then of the loops.
    pub vars: Vec<String>,
    /// Fills the `Packed` buffers from constants; runs once.
    pub setup: Vec<Stmt>,
    pub body: Vec<Stmt>,
    /// How many times larger than the plain nest's the rounding errors of its results may be: 1 unless it is
    /// of another algorithm.
    pub error_growth: u32,
}

/// The loops of a stage in [`Nest::naive_with_vars`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StageVars {
    /// Over the spatial axes, where the output is started; empty for element-wise stages.
    pub init: Vec<Var>,
    /// Over all axes: spatial, then reduction.
    pub axes: Vec<Var>,
}

impl Default for Nest {
    /// Does nothing.
    fn default() -> Nest {
        Nest {
            parameters: Vec::new(),
            buffers: Vec::new(),
            vars: Vec::new(),
            setup: Vec::new(),
            body: Vec::new(),
            error_growth: 1,
        }
    }
}

impl Nest {
    pub fn buffer(&self, id: TensorId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }

    /// The kernel's arguments, in the order in which it takes their addresses: tensors that are
    /// inputs, constants or outputs, then packed buffers.
    pub fn arguments(&self) -> Vec<TensorId> {
        let ids = || (0..self.buffers.len() as u32).map(TensorId);
        let tensors = ids().filter(|id| matches!(self.buffer(*id).scope, Scope::Argument(_)));
        tensors.chain(ids().filter(|id| self.buffer(*id).scope == Scope::Packed)).collect()
    }

    /// Whether threads of a CPU share the work of a loop.
    pub fn is_parallel(&self) -> bool {
        fn any(statements: &[Stmt]) -> bool {
            statements.iter().any(|statement| match statement {
                Stmt::Loop(l) => (l.kind == LoopKind::Parallel && l.extent() > 1) || any(&l.body),
                Stmt::If { body, .. } => any(body),
                Stmt::Store { .. } | Stmt::Accumulate { .. } => false,
            })
        }
        any(&self.body)
    }

    /// The plain reading of a workload: a loop for each axis, one stage after the other, intermediates in
    /// shared memory.
    ///
    /// ```text
    /// for a in 0..128 { for b in 0..64 { t2[a, b] = 0 } }
    /// for a in 0..128 { for b in 0..64 { for c in 0..32 { t2[a, b] += t0[a, c] * t1[c, b] } } }
    /// ```
    pub fn naive(workload: &Workload) -> Nest {
        Nest::naive_with_vars(workload).0
    }

    /// The plain reading of a workload, and the variables of each stage's loops.
    pub fn naive_with_vars(workload: &Workload) -> (Nest, Vec<StageVars>) {
        let mut stages = Vec::new();
        let mut nest = Nest { parameters: workload.parameters.clone(), ..Nest::default() };
        let names = (0..nest.parameters.len()).map(parameter_name);
        nest.vars.extend(names);
        let own = |index: &Index| index.substitute(&own_parameter);
        for (id, tensor) in workload.ids() {
            nest.buffers.push(Buffer {
                name: format!("t{}", id.0),
                shape: tensor.shape.clone(),
                dtype: tensor.dtype,
                scope: match tensor.role {
                    Role::Intermediate => Scope::Workspace,
                    role => Scope::Argument(role),
                },
                extents: tensor.extents.map(|_, formula| own(formula)),
                part: workload.part_of(id).cloned(),
            });
        }
        for (number, stage) in workload.stages.iter().enumerate() {
            let spatial = stage.spatial.len();
            let extents = stage.extents.map(|_, formula| own(formula));
            let bounds: Vec<Vec<Index>> = (0..stage.rank())
                .map(|axis| {
                    [Index::constant(stage.extent(axis))].into_iter().chain(extents.get(axis).cloned()).collect()
                })
                .collect();
            let mut init = Vec::new();
            if let Some(combiner) = stage.combiner {
                let vars = nest.stage_vars(number, "init", spatial);
                let indices = vars.iter().map(|v| Index::var(*v)).collect();
                let value = identity(combiner, workload.tensor(stage.output).dtype);
                let store = Stmt::Store { buffer: stage.output, indices, value };
                nest.body.extend(wrap(&vars, &bounds, store));
                init = vars;
            }
            let vars = nest.stage_vars(number, "", stage.rank());
            let own = |var: Var| own_parameter(var).or_else(|| vars.get(var.0 as usize).map(|v| Index::var(*v)));
            let value = stage.value.substitute(&own);
            let indices = vars[..spatial].iter().map(|v| Index::var(*v)).collect();
            let point = match stage.combiner {
                None => Stmt::Store { buffer: stage.output, indices, value },
                Some(combiner) => Stmt::Accumulate { buffer: stage.output, indices, combiner, value },
            };
            nest.body.extend(wrap(&vars, &bounds, point));
            stages.push(StageVars { init, axes: vars });
        }
        (nest, stages)
    }

    /// The nest where its parameters have these values: one of fixed extents.
    #[must_use]
    pub fn at(&self, values: &[i64]) -> Nest {
        let value = |var: Var| values.get(var.0 as usize).filter(|_| self.is_parameter(var));
        let mut fixed = self.clone();
        for buffer in &mut fixed.buffers {
            let known = |at: usize, most: i64| {
                let formula =
                    buffer.extents.get(at)?.substitute(&|var| value(var).map(|value| Index::constant(*value)));
                formula.as_constant().map(|extent| extent.min(most))
            };
            buffer.shape =
                buffer.shape.iter().enumerate().map(|(at, most)| known(at, *most).unwrap_or(*most)).collect();
            if let Some(part) = &mut buffer.part {
                part.iter_mut().zip(&buffer.shape).for_each(|(part, whole)| *part = (*part).min(*whole));
            }
            buffer.extents = Extents::fixed();
        }
        fixed.parameters.clear();
        let constants: Vec<Index> = values.iter().map(|value| Index::constant(*value)).collect();
        let by = |var: Var| if self.is_parameter(var) { constants.get(var.0 as usize) } else { None };
        for statements in [&mut fixed.setup, &mut fixed.body] {
            rewrite::replace_vars(statements, &by);
            rewrite::for_each_loop_mut(statements, &mut |l| {
                let (constant, others): (Vec<Index>, Vec<Index>) =
                    std::mem::take(&mut l.bounds).into_iter().partition(|bound| bound.as_constant().is_some());
                let least = constant.iter().filter_map(Index::as_constant).min().unwrap_or(0);
                l.bounds = std::iter::once(Index::constant(least.max(0))).chain(others).collect();
            });
        }
        fixed
    }

    /// Whether a variable is one of the parameters.
    pub fn is_parameter(&self, var: Var) -> bool {
        (var.0 as usize) < self.parameters.len()
    }

    /// The parameters with the values that they can take.
    pub fn parameter_ranges(&self) -> impl Iterator<Item = (Var, Interval)> {
        self.parameters.iter().enumerate().map(|(number, parameter)| (Var(number as u32), parameter.interval()))
    }

    /// A new loop variable.
    pub fn new_var(&mut self, name: impl Into<String>) -> Var {
        self.vars.push(name.into());
        Var(self.vars.len() as u32 - 1)
    }

    fn stage_vars(&mut self, stage: usize, suffix: &str, count: usize) -> Vec<Var> {
        (0..count).map(|axis| self.new_var(format!("s{stage}{}{suffix}", axis_name(axis)))).collect()
    }
}

/// Serial loops around a statement, outermost first.
fn wrap(vars: &[Var], bounds: &[Vec<Index>], inner: Stmt) -> Vec<Stmt> {
    vars.iter().zip(bounds).rev().fold(vec![inner], |body, (var, bounds)| {
        vec![Stmt::Loop(Loop { var: *var, bounds: bounds.clone(), kind: LoopKind::Serial, body })]
    })
}

/// The nest's variable for a parameter of its workload.
pub(crate) fn own_parameter(var: Var) -> Option<Index> {
    var.as_parameter().map(|number| Index::var(Var(number as u32)))
}
