//! What the threads of a block have to agree on: which registers are whose, and where they must wait for one another.

use std::collections::{BTreeMap, BTreeSet};

use crate::codegen::CodegenError;
use crate::nest::rewrite::for_each_stmt;
use crate::nest::{Loop, LoopKind, Nest, Scope, Stmt};
use crate::workload::{Expr, Index, TensorId, Var};

/// Each thread's own part of the register buffers: the dimensions of the thread loops go.
///
/// ```text
/// before: thread for x in 0..32 { unroll for i in 0..4 { r[x, i] = 0 } }
/// after:  thread for x in 0..32 { unroll for i in 0..4 { r[i] = 0 } }
/// ```
///
/// # Errors
/// [`CodegenError::Malformed`] where a register buffer begins with different numbers of thread loops' variables.
pub fn own_registers(mut nest: Nest) -> Result<Nest, CodegenError> {
    let mut dimensions: BTreeMap<TensorId, usize> = BTreeMap::new();
    let mut body = std::mem::take(&mut nest.body);
    let mut mixed = None;
    let buffers = &nest.buffers;
    for_each_access(&mut body, &mut Vec::new(), &mut |buffer, indices, threads| {
        if buffers.get(buffer.0 as usize).is_none_or(|known| known.scope != Scope::Register) {
            return;
        }
        let own = |index: &&Index| index.as_var().is_some_and(|var| threads.contains(&var));
        let own = indices.iter().take_while(own).count();
        if *dimensions.entry(buffer).or_insert(own) != own {
            mixed = Some(buffer);
        }
        indices.drain(..own);
    });
    if let Some(buffer) = mixed {
        let name = &nest.buffer(buffer).name;
        return Err(CodegenError::Malformed(format!("the register {name} has not the same thread loops everywhere")));
    }
    for (buffer, threads) in dimensions {
        nest.buffers[buffer.0 as usize].shape.drain(..threads);
    }
    nest.body = body;
    Ok(nest)
}

/// Takes a buffer, the indices of an access to it, and the variables of the thread loops around it.
type Visit<'a> = dyn FnMut(TensorId, &mut Vec<Index>, &[Var]) + 'a;

/// Visits every access to a buffer, with the variables of the thread loops around it.
fn for_each_access(statements: &mut [Stmt], threads: &mut Vec<Var>, visit: &mut Visit<'_>) {
    for statement in statements {
        match statement {
            Stmt::Loop(l) => {
                let around = threads.len();
                threads.extend((l.kind == LoopKind::Thread).then_some(l.var));
                for_each_access(&mut l.body, threads, visit);
                threads.truncate(around);
            }
            Stmt::If { body, .. } => for_each_access(body, threads, visit),
            Stmt::Store { buffer, indices, value } | Stmt::Accumulate { buffer, indices, value, .. } => {
                visit(*buffer, indices, threads);
                value.for_each_load_mut(&mut |buffer, indices| visit(buffer, indices, threads));
            }
        }
    }
}

/// A phase, by the address of its outermost thread loop, which stays what it is while the statements are borrowed.
pub type PhaseId = usize;

pub fn phase_id(l: &Loop) -> PhaseId {
    std::ptr::from_ref(l).addr()
}

/// The phases of a block before which its threads must wait for one another: those that touch what another one has touched since they last
/// waited, unless both only read. A loop that is entered again continues where its end left off.
///
/// # Errors
/// [`CodegenError::Unsupported`] where a condition between phases depends on data, which would have to be waited for, too.
pub fn barriers(nest: &Nest, statements: &[Stmt]) -> Result<BTreeSet<PhaseId>, CodegenError> {
    let mut planner = Planner { nest, barriers: BTreeSet::new() };
    planner.block(statements, Touched::default())?;
    Ok(planner.barriers)
}

/// What has been touched since the last barrier, on some way to the place.
#[derive(Clone, Default)]
struct Touched {
    read: BTreeSet<TensorId>,
    written: BTreeSet<TensorId>,
}

impl Touched {
    /// What a phase touches of the memory that threads share.
    fn by(nest: &Nest, phase: &Loop) -> Touched {
        let mut touched = Touched::default();
        let is_shared = |buffer: TensorId| nest.buffer(buffer).scope != Scope::Register;
        for_each_stmt(&phase.body, &mut |statement| {
            let mut note = |buffer: TensorId, _: &[Index]| touched.read.extend(Some(buffer).filter(|b| is_shared(*b)));
            match statement {
                Stmt::Loop(_) => {}
                Stmt::If { conditions, .. } => {
                    conditions.iter().for_each(|c| Expr::Index(c.index.clone()).for_each_load(&mut note));
                }
                Stmt::Store { buffer, indices, value } | Stmt::Accumulate { buffer, indices, value, .. } => {
                    value.for_each_load(&mut note);
                    indices.iter().for_each(|index| Expr::Index(index.clone()).for_each_load(&mut note));
                    if matches!(statement, Stmt::Accumulate { .. }) {
                        note(*buffer, indices);
                    }
                    touched.written.extend(Some(*buffer).filter(|buffer| is_shared(*buffer)));
                }
            }
        });
        touched
    }

    fn conflicts(&self, next: &Touched) -> bool {
        let meet = |a: &BTreeSet<TensorId>, b: &BTreeSet<TensorId>| !a.is_disjoint(b);
        meet(&self.written, &next.written) || meet(&self.written, &next.read) || meet(&self.read, &next.written)
    }

    fn join(mut self, other: Touched) -> Touched {
        self.read.extend(other.read);
        self.written.extend(other.written);
        self
    }
}

struct Planner<'a> {
    nest: &'a Nest,
    barriers: BTreeSet<PhaseId>,
}

impl Planner<'_> {
    fn block(&mut self, statements: &[Stmt], before: Touched) -> Result<Touched, CodegenError> {
        statements.iter().try_fold(before, |touched, statement| self.statement(statement, touched))
    }

    fn statement(&mut self, statement: &Stmt, before: Touched) -> Result<Touched, CodegenError> {
        Ok(match statement {
            Stmt::Loop(l) if l.kind == LoopKind::Thread => {
                let own = Touched::by(self.nest, l);
                if self.barriers.contains(&phase_id(l)) || before.conflicts(&own) {
                    self.barriers.insert(phase_id(l));
                    own
                } else {
                    before.join(own)
                }
            }
            Stmt::Loop(l) => {
                let once = self.block(&l.body, before.clone())?;
                // with what the first round left; what a second round would add, a third would not
                let twice = self.block(&l.body, once.clone())?;
                if l.is_constant() && l.extent() > 0 { once.join(twice) } else { before.join(once).join(twice) }
            }
            Stmt::If { conditions, .. } if conditions.iter().any(|c| c.index.has_value()) => {
                return Err(CodegenError::Unsupported("a condition on data between the phases of a block".into()));
            }
            Stmt::If { body, .. } => {
                let inside = self.block(body, before.clone())?;
                before.join(inside)
            }
            Stmt::Store { .. } | Stmt::Accumulate { .. } => before,
        })
    }
}
