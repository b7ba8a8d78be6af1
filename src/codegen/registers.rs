//! Which `Register` buffers really can live in registers, and how they are cut into slots.
//!
//! A slot is a variable of one vector (or scalar) type, named by constants; LLVM's `sroa` turns it into SSA
//! values. A buffer qualifies when, after unrolling, all its indices are constants, but for at most one
//! dimension that moves with the vector loop's variable, one element a lane. That dimension is cut into
//! chunks as wide as the widest vector loop that accesses it.
//!
//! ```text
//! register r[6, 64], accessed as r[i, 16·j + lane] with i, j unrolled  ->  24 slots of <16 x float>
//! ```

use std::collections::HashMap;

use crate::nest::{Loop, LoopKind, Nest, Scope, Stmt};
use crate::workload::{Expr, Index, TensorId, Var};

/// More slots than this cannot be registers; stack and workspace are the same then.
const MAX_SLOTS: i64 = 1024;

/// How a register buffer is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slots {
    /// The dimension that is cut into chunks; `None` where all accesses are scalar.
    pub dimension: Option<usize>,
    /// Elements in a chunk: at least 2 with a dimension, else 1.
    pub chunk: i64,
}

/// The buffers of scope `Register` that can be cut into slots; the others live in memory.
pub fn plan(nest: &Nest, statements: &[&[Stmt]]) -> HashMap<TensorId, Slots> {
    let mut plan = Plan { nest, kinds: vec![Binding::Dynamic; nest.vars.len()], found: HashMap::new() };
    // two passes: the chunk is known only when all vector accesses were seen
    for pass in [Pass::Widths, Pass::Check] {
        for body in statements {
            plan.statements(body, pass);
        }
    }
    plan.found
        .into_iter()
        .filter_map(|(id, state)| {
            let State::Slots(slots) = state else { return None };
            let shape = &nest.buffer(id).shape;
            let count = shape.iter().enumerate().fold(1i64, |count, (dimension, extent)| {
                let chunk = if slots.dimension == Some(dimension) { slots.chunk } else { 1 };
                count.saturating_mul((extent + chunk - 1) / chunk)
            });
            (count <= MAX_SLOTS).then_some((id, slots))
        })
        .collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Widths,
    Check,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Binding {
    /// Unrolled, or with a single iteration.
    Constant,
    /// The variable of a vector loop with this extent.
    Lane(i64),
    Dynamic,
}

enum State {
    Slots(Slots),
    Memory,
}

struct Plan<'a> {
    nest: &'a Nest,
    kinds: Vec<Binding>,
    found: HashMap<TensorId, State>,
}

impl Plan<'_> {
    fn statements(&mut self, statements: &[Stmt], pass: Pass) {
        for statement in statements {
            match statement {
                Stmt::Loop(l) => {
                    if let Some(kind) = self.kinds.get_mut(l.var.0 as usize) {
                        *kind = binding(l);
                    }
                    l.bounds.iter().for_each(|bound| self.index(bound, pass));
                    self.statements(&l.body, pass);
                }
                Stmt::If { conditions, body } => {
                    conditions.iter().for_each(|c| self.index(&c.index, pass));
                    self.statements(body, pass);
                }
                Stmt::Store { buffer, indices, value } | Stmt::Accumulate { buffer, indices, value, .. } => {
                    self.access(*buffer, indices, pass);
                    indices.iter().for_each(|index| self.index(index, pass));
                    self.expr(value, pass);
                }
            }
        }
    }

    fn expr(&mut self, expr: &Expr, pass: Pass) {
        expr.for_each_load(&mut |buffer, indices| self.access(buffer, indices, pass));
    }

    fn index(&mut self, index: &Index, pass: Pass) {
        if !index.is_affine() {
            Expr::Index(index.clone()).for_each_load(&mut |buffer, indices| self.access(buffer, indices, pass));
        }
    }

    fn access(&mut self, buffer: TensorId, indices: &[Index], pass: Pass) {
        if self.nest.buffers.get(buffer.0 as usize).is_none_or(|b| b.scope != Scope::Register) {
            return;
        }
        let kinds = &self.kinds;
        let state = self.found.entry(buffer).or_insert(State::Slots(Slots { dimension: None, chunk: 1 }));
        if let State::Slots(slots) = state {
            let fits = match pass {
                Pass::Widths => widen(slots, indices, kinds),
                Pass::Check => fits(*slots, indices, kinds),
            };
            if !fits {
                *state = State::Memory;
            }
        }
    }
}

fn binding(l: &Loop) -> Binding {
    match l.kind {
        _ if l.extent() == 1 && l.is_constant() => Binding::Constant,
        // of matrices: the elements that a thread holds, written out
        LoopKind::Unroll | LoopKind::Matrix | LoopKind::Dot => Binding::Constant,
        LoopKind::Vector => Binding::Lane(l.extent()),
        LoopKind::Serial | LoopKind::Parallel | LoopKind::Block | LoopKind::Thread | LoopKind::Warp => Binding::Dynamic,
    }
}

/// Takes note of a vector access; false where the access is not a register's.
fn widen(slots: &mut Slots, indices: &[Index], kinds: &[Binding]) -> bool {
    for (dimension, index) in indices.iter().enumerate() {
        let mut lane = None;
        let mut dynamic = false;
        index.for_each_var(&mut |var| match kind_of(var, kinds) {
            Binding::Constant => {}
            Binding::Lane(extent) => lane = Some((var, extent)),
            Binding::Dynamic => dynamic = true,
        });
        let mut gathered = false;
        Expr::Index(index.clone()).for_each_load(&mut |_, _| gathered = true);
        if dynamic || gathered {
            return false;
        }
        if let Some((var, extent)) = lane {
            let elsewhere = slots.dimension.is_some_and(|d| d != dimension);
            if elsewhere || !index.is_affine() || index.coefficient(var) != 1 {
                return false;
            }
            slots.dimension = Some(dimension);
            slots.chunk = slots.chunk.max(extent);
        }
    }
    true
}

/// Whether a vector access starts where a chunk does.
fn fits(slots: Slots, indices: &[Index], kinds: &[Binding]) -> bool {
    indices.iter().all(|index| {
        let mut vector = false;
        index.for_each_var(&mut |var| vector |= matches!(kind_of(var, kinds), Binding::Lane(_)));
        let aligned = |value: i64| value % slots.chunk == 0;
        !vector
            || (aligned(index.offset())
                && index.terms().iter().all(|(atom, coefficient)| match atom {
                    crate::workload::Atom::Var(var) => {
                        matches!(kind_of(*var, kinds), Binding::Lane(_)) || aligned(*coefficient)
                    }
                    _ => false,
                }))
    })
}

fn kind_of(var: Var, kinds: &[Binding]) -> Binding {
    kinds.get(var.0 as usize).copied().unwrap_or(Binding::Dynamic)
}
