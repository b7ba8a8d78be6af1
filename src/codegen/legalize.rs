//! Turns loops that the emitter cannot write as asked into serial ones.
//!
//! Every kind of loop means what a serial loop means, so that this is always correct, only slower:
//!
//! - `Parallel` inside of a vector loop, or of a parallel one unless it is all that that one holds,
//! - `Vector` that holds another vector loop, is too wide, or whose iterations are not independent lane by
//!   lane,
//! - `Unroll` that would write out too much.
//!
//! ```text
//! before: unroll i in 0..100000 { t1[i] = t0[i] }
//! after:  for i in 0..100000 { t1[i] = t0[i] }
//! ```

use crate::codegen::abi::MAX_VECTOR_LANES;
use crate::nest::{Loop, LoopKind, Stmt};
use crate::workload::{Condition, Expr, Index, TensorId, Var, flatten};

/// Expression nodes that unrolling may write out. Beyond, code leaves the instruction cache and compiling
/// takes seconds.
const UNROLLED_NODES: u64 = 24_000;

/// The statements with only loops that the emitter can write.
pub fn legalize(statements: &[Stmt], shape: &dyn Fn(TensorId) -> Vec<i64>) -> Vec<Stmt> {
    Legalizer { shape, parallel: false, shared: false, vector: false }.statements(statements)
}

struct Legalizer<'a> {
    shape: &'a dyn Fn(TensorId) -> Vec<i64>,
    parallel: bool,
    /// Whether the statements are all that a parallel loop holds, and no bound depends on it.
    shared: bool,
    vector: bool,
}

impl Legalizer<'_> {
    fn statements(&mut self, statements: &[Stmt]) -> Vec<Stmt> {
        statements.iter().map(|s| self.statement(s)).collect()
    }

    fn statement(&mut self, statement: &Stmt) -> Stmt {
        match statement {
            Stmt::Loop(l) => Stmt::Loop(self.loop_(l)),
            Stmt::If { conditions, body } => Stmt::If { conditions: conditions.clone(), body: self.statements(body) },
            other => other.clone(),
        }
    }

    fn loop_(&mut self, l: &Loop) -> Loop {
        let kind = match l.kind {
            LoopKind::Parallel if (self.parallel && !self.shared) || self.vector => LoopKind::Serial,
            LoopKind::Vector if self.vector || !self.fits_vector(l) => LoopKind::Serial,
            kind => kind,
        };
        let outside = (self.parallel, self.shared, self.vector);
        self.parallel |= kind == LoopKind::Parallel;
        self.shared = kind == LoopKind::Parallel
            && matches!(l.body.as_slice(), [Stmt::Loop(inner)] if !inner.bounds.iter().any(|b| b.mentions(l.var)));
        self.vector |= kind == LoopKind::Vector;
        let body = self.statements(&l.body);
        (self.parallel, self.shared, self.vector) = outside;
        let too_long = || {
            u64::try_from(l.extent()).unwrap_or(0).saturating_mul(nodes_of(&body, &mut vec![l.var])) > UNROLLED_NODES
        };
        let kind = if kind == LoopKind::Unroll && too_long() { LoopKind::Serial } else { kind };
        Loop { var: l.var, bounds: l.bounds.clone(), kind, body }
    }

    fn fits_vector(&self, l: &Loop) -> bool {
        (2..=MAX_VECTOR_LANES).contains(&l.extent())
            && self.lanes_are_independent(&l.body, l.var, l.is_constant())
            && !reads_what_it_reduces(&l.body, l.var)
    }

    /// Whether the statements mean the same when each is executed for all lanes at once. `uniform`: all lanes
    /// are active.
    fn lanes_are_independent(&self, body: &[Stmt], var: Var, uniform: bool) -> bool {
        body.iter().all(|statement| match statement {
            Stmt::Loop(l) => {
                !matches!(l.kind, LoopKind::Vector | LoopKind::Parallel)
                    && l.bounds.iter().all(|bound| !bound.mentions(var))
                    && self.lanes_are_independent(&l.body, var, uniform)
            }
            Stmt::If { conditions, body } => {
                let same = !conditions.iter().any(|c| c.index.mentions(var));
                self.lanes_are_independent(body, var, uniform && same)
            }
            Stmt::Store { buffer, indices, value } => {
                indices.iter().any(|i| i.mentions(var)) || (uniform && !value.mentions(var) && !loads(value, *buffer))
            }
            Stmt::Accumulate { buffer, indices, .. } => {
                let shape = (self.shape)(*buffer);
                let flat = flatten(indices, &shape);
                !flat.mentions(var) || flat.step(var).is_some_and(|step| step != 0)
            }
        })
    }
}

pub fn any_mentions(conditions: &[Condition], var: Var) -> bool {
    conditions.iter().any(|c| c.index.mentions(var))
}

fn loads(expr: &Expr, buffer: TensorId) -> bool {
    let mut found = false;
    expr.for_each_load(&mut |tensor, _| found |= tensor == buffer);
    found
}

/// Whether the body reads a buffer into which it accumulates across lanes: the value in between would differ.
fn reads_what_it_reduces(body: &[Stmt], var: Var) -> bool {
    let mut reduced = Vec::new();
    for_each_leaf(body, &mut |statement| {
        if let Stmt::Accumulate { buffer, indices, .. } = statement
            && !indices.iter().any(|i| i.mentions(var))
        {
            reduced.push(*buffer);
        }
    });
    let mut found = false;
    for_each_leaf(body, &mut |statement| match statement {
        Stmt::Store { value, .. } | Stmt::Accumulate { value, .. } => found |= reduced.iter().any(|b| loads(value, *b)),
        _ => {}
    });
    found
}

/// Visits stores and accumulations.
pub fn for_each_leaf<'a>(body: &'a [Stmt], visit: &mut dyn FnMut(&'a Stmt)) {
    for statement in body {
        match statement {
            Stmt::Loop(l) => for_each_leaf(&l.body, visit),
            Stmt::If { body, .. } => for_each_leaf(body, visit),
            leaf => visit(leaf),
        }
    }
}

/// Expression nodes that the statements write out, where the loops over `unrolled` are.
fn nodes_of(statements: &[Stmt], unrolled: &mut Vec<Var>) -> u64 {
    statements.iter().map(|s| nodes(s, unrolled)).fold(0, u64::saturating_add)
}

fn nodes(statement: &Stmt, unrolled: &mut Vec<Var>) -> u64 {
    match statement {
        Stmt::Loop(l) if l.kind == LoopKind::Unroll => {
            unrolled.push(l.var);
            let body = nodes_of(&l.body, unrolled);
            unrolled.pop();
            u64::try_from(l.extent()).unwrap_or(0).saturating_mul(body)
        }
        Stmt::Loop(l) => nodes_of(&l.body, unrolled).saturating_add(2),
        Stmt::If { body, .. } => nodes_of(body, unrolled).saturating_add(2),
        Stmt::Store { value, .. } | Stmt::Accumulate { value, .. } => 1 + expression_nodes(value, unrolled),
    }
}

fn expression_nodes(expr: &Expr, unrolled: &[Var]) -> u64 {
    match expr {
        // one side is written where it is known which
        Expr::Guard { conditions, inside, outside }
            if conditions.iter().all(|c| depends_only_on(&c.index, unrolled)) =>
        {
            expression_nodes(inside, unrolled).max(expression_nodes(outside, unrolled))
        }
        _ => {
            let own = match expr {
                // written out as polynomials
                Expr::Unary(..) => 8,
                _ => 1,
            };
            own + expr.children().map(|child| expression_nodes(child, unrolled)).sum::<u64>()
        }
    }
}

fn depends_only_on(index: &Index, vars: &[Var]) -> bool {
    let mut all = true;
    index.for_each_var(&mut |var| all &= vars.contains(&var));
    all
}
