//! Static figures of a nest: for people, and for predictions before anything is measured.
//!
//! Loops count with their planned extent ([`Loop::extent`]), so shortened tails and conditions count as if
//! they ran in full.

use std::collections::BTreeSet;

use super::rewrite::for_each_expr;
use super::{Buffer, Loop, LoopKind, Nest, Scope, Stmt};
use crate::workload::{Atom, Condition, Expr, Index, Role, TensorId};

/// Elements moved, by where they live.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Traffic {
    pub argument: i64,
    pub packed: i64,
    pub shared: i64,
    pub private: i64,
    pub register: i64,
}

/// What one run of a nest's body costs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Statistics {
    /// Operators on elements, counted like [`crate::workload::Workload::flops`].
    pub flops: i64,
    /// Elements loaded.
    pub loads: Traffic,
    /// Elements stored; an accumulation loads and stores.
    pub stores: Traffic,
    /// Code size: operators, loads, stores and loop heads that are written out once loops are unrolled. A
    /// vector loop's body counts once.
    pub operations: i64,
    /// Bytes of the packed arguments.
    pub packed_bytes: i64,
    /// Bytes of the workspace that all threads share.
    pub shared_bytes: i64,
    /// Bytes of the workspace that each thread needs for itself.
    pub private_bytes: i64,
    /// The largest number of bytes of register buffers that live at the same time.
    pub register_bytes: i64,
}

impl Nest {
    /// Bytes of the constants that the body reads, as they were packed or as they are given.
    pub fn constant_bytes(&self) -> usize {
        let mut read: BTreeSet<TensorId> = BTreeSet::new();
        for_each_expr(&self.body, &mut |expr| {
            expr.for_each_load(&mut |buffer, _| {
                read.insert(buffer);
            });
        });
        let is_constant = |buffer: &Buffer| matches!(buffer.scope, Scope::Packed | Scope::Argument(Role::Constant));
        read.into_iter().map(|id| self.buffer(id)).filter(|buffer| is_constant(buffer)).map(Buffer::bytes).sum()
    }
}

/// Counts what the body of a nest does in one run, and what it needs.
pub fn statistics(nest: &Nest) -> Statistics {
    let bytes = |scope: Scope| {
        nest.buffers.iter().filter(|b| b.scope == scope).fold(0i64, |sum, b| sum.saturating_add(b.bytes() as i64))
    };
    let mut counter =
        Counter { nest, total: Statistics::default(), statements: 0, lives: vec![None; nest.buffers.len()] };
    counter.total.packed_bytes = bytes(Scope::Packed);
    counter.total.shared_bytes = bytes(Scope::Workspace);
    counter.total.private_bytes = bytes(Scope::BlockShared);
    counter.total.operations = counter.block(&nest.body, 1);
    counter.total.register_bytes = counter.live_register_bytes();
    counter.total
}

struct Counter<'a> {
    nest: &'a Nest,
    total: Statistics,
    /// Seen so far; numbers them in the order of the program.
    statements: usize,
    /// By buffer: the first and the last statement that uses it.
    lives: Vec<Option<(usize, usize)>>,
}

impl Counter<'_> {
    /// Counts statements that run so many times; returns their code size.
    fn block(&mut self, statements: &[Stmt], runs: i64) -> i64 {
        statements.iter().fold(0, |size, statement| size.saturating_add(self.statement(statement, runs)))
    }

    fn statement(&mut self, statement: &Stmt, runs: i64) -> i64 {
        self.statements += 1;
        match statement {
            Stmt::Loop(l @ Loop { kind, body, .. }) => {
                let extent = l.extent().max(0);
                let size = self.block(body, runs.saturating_mul(extent));
                match kind {
                    LoopKind::Unroll => size.saturating_mul(extent),
                    // one instruction, where there is one
                    LoopKind::Vector | LoopKind::Dot => size,
                    LoopKind::Serial
                    | LoopKind::Parallel
                    | LoopKind::Block
                    | LoopKind::Thread
                    | LoopKind::Warp
                    | LoopKind::Matrix => size.saturating_add(1),
                }
            }
            Stmt::If { conditions, body } => self.conditions(conditions, runs) + self.block(body, runs),
            Stmt::Store { buffer, indices, value } => {
                let size = self.expr(value, runs) + self.indices(indices, runs);
                self.note(*buffer, runs, false);
                size + 1
            }
            Stmt::Accumulate { buffer, indices, value, .. } => {
                let size = self.expr(value, runs) + self.indices(indices, runs);
                self.note(*buffer, runs, true);
                self.note(*buffer, runs, false);
                self.add_flops(runs);
                size + 3
            }
        }
    }

    fn expr(&mut self, expr: &Expr, runs: i64) -> i64 {
        let own = match expr {
            Expr::Float(_) => 0,
            Expr::Index(index) => self.indices(std::slice::from_ref(index), runs),
            Expr::Cast(..) | Expr::Bits(..) => 1,
            Expr::Guard { conditions, .. } => self.conditions(conditions, runs),
            Expr::Load { tensor, indices } => {
                self.note(*tensor, runs, true);
                1 + self.indices(indices, runs)
            }
            Expr::Unary(..) | Expr::Binary(..) | Expr::Select { .. } => {
                self.add_flops(runs);
                1
            }
        };
        own + expr.children().map(|child| self.expr(child, runs)).sum::<i64>()
    }

    fn conditions(&mut self, conditions: &[Condition], runs: i64) -> i64 {
        conditions.iter().map(|c| 1 + self.indices(std::slice::from_ref(&c.index), runs)).sum()
    }

    /// Of indices, only what is gathered counts: affine ones become addressing modes and loop counters.
    fn indices(&mut self, indices: &[Index], runs: i64) -> i64 {
        let mut size = 0;
        for (atom, _) in indices.iter().flat_map(Index::terms) {
            size += match atom {
                Atom::Var(_) => 0,
                Atom::FloorDiv(inner, _) | Atom::Modulo(inner, _) => {
                    1 + self.indices(std::slice::from_ref(inner), runs)
                }
                Atom::Value(value) => self.expr(value, runs),
            };
        }
        size
    }

    fn add_flops(&mut self, runs: i64) {
        self.total.flops = self.total.flops.saturating_add(runs);
    }

    fn note(&mut self, buffer: TensorId, runs: i64, loads: bool) {
        let Some(known) = self.nest.buffers.get(buffer.0 as usize) else { return };
        let traffic = if loads { &mut self.total.loads } else { &mut self.total.stores };
        let count = match known.scope {
            Scope::Argument(_) => &mut traffic.argument,
            Scope::Packed => &mut traffic.packed,
            Scope::Workspace => &mut traffic.shared,
            Scope::BlockShared => &mut traffic.private,
            Scope::Register => &mut traffic.register,
        };
        *count = count.saturating_add(runs);
        let now = self.statements;
        let life = self.lives[buffer.0 as usize].get_or_insert((now, now));
        life.1 = now;
    }

    fn live_register_bytes(&self) -> i64 {
        let registers = self.nest.buffers.iter().zip(&self.lives).filter(|(b, _)| b.scope == Scope::Register);
        let lives: Vec<(i64, usize, usize)> =
            registers.filter_map(|(b, life)| life.map(|(first, last)| (b.bytes() as i64, first, last))).collect();
        let live_at = |now: usize| lives.iter().filter(move |(_, first, last)| (*first..=*last).contains(&now));
        // the most live where one of them begins
        lives.iter().map(|(_, first, _)| live_at(*first).map(|(bytes, ..)| bytes).sum()).max().unwrap_or(0)
    }
}
