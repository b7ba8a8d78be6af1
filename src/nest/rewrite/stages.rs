//! Software pipelining: what a step computes with is copied several steps ahead.

use super::{Refusal, change_accesses, find_loop, find_loop_mut, find_place, for_each_stmt, replace_vars};
use crate::nest::{Loop, LoopKind, Nest, Scope, Stmt};
use crate::workload::{Condition, Expr, Index, TensorId, Var};

impl Nest {
    /// Lets the copies at the start of a serial loop's body run ahead of what computes with them. The copies'
    /// buffers get a first dimension of `stages` slots, of which one is read while the others are filled.
    ///
    /// ```text
    /// for k in 0..8 { thread at { s[at] = t[16·k + at] }  thread x { r[x] += s[x] } }              in 3 stages
    /// =>
    /// thread at { s[0, at] = t[at] }  thread at { s[1, at] = t[16 + at] }
    /// for k in 0..8 {
    ///     if k + 2 < 8 { thread at { s[(k + 2) % 3, at] = t[16·(k + 2) + at] } }
    ///     thread x { r[x] += s[k % 3, x] }
    /// }
    /// ```
    ///
    /// Where the loop is ragged, nothing is copied for steps that do not come. A single stage is what there
    /// was before.
    ///
    /// # Errors
    /// [`Refusal::NoLoop`], [`Refusal::NotSerial`], [`Refusal::NoStages`], [`Refusal::NotBlockShared`]. The
    /// loop's body must be copies into these buffers ([`Refusal::NoCopiesAtStart`]), of what nothing in the
    /// loop writes ([`Refusal::CopyOfResults`]), followed by phases that do not write to them
    /// ([`Refusal::CopyOverwritten`]), and nothing else may use them ([`Refusal::CopyUsedElsewhere`]).
    pub fn pipeline(mut self, steps: Var, buffers: &[TensorId], stages: i64) -> Result<Nest, Refusal> {
        let l = find_loop(&self.body, steps).ok_or(Refusal::NoLoop(steps))?;
        if l.kind != LoopKind::Serial {
            return Err(Refusal::NotSerial(steps));
        }
        if stages < 1 {
            return Err(Refusal::NoStages(steps));
        }
        let (rounds, count) = (l.extent(), self.leading_copies(l, buffers)?);
        let ragged = l.bounds[1..].to_vec();
        let comes = |step: &Index| -> Vec<Condition> {
            let left = ragged.iter().map(|bound| bound.clone().minus(step));
            left.map(|index| Condition { index, low: 1, high: i64::MAX }).collect()
        };
        let l = find_loop_mut(&mut self.body, steps).ok_or(Refusal::NoLoop(steps))?;
        let mut compute = l.body.split_off(count);
        let mut copies = std::mem::take(&mut l.body);
        if uses(&self.body, buffers) {
            return Err(Refusal::CopyUsedElsewhere(steps));
        }
        if stages == 1 {
            copies.append(&mut compute);
            find_loop_mut(&mut self.body, steps).ok_or(Refusal::NoLoop(steps))?.body = copies;
            return Ok(self);
        }
        for buffer in buffers {
            let known = &mut self.buffers[buffer.0 as usize];
            known.shape.insert(0, stages);
            known.extents = known.extents.moved(|at| Some(at + 1));
        }
        let in_slot = |statements: &mut [Stmt], slot: &Index| {
            change_accesses(statements, &mut |buffer, indices| {
                if buffers.contains(&buffer) {
                    indices.insert(0, slot.clone());
                }
            });
        };
        let (step, ahead) = (Index::var(steps), stages - 1);
        in_slot(&mut compute, &step.clone().modulo(stages));
        let mut before = Vec::new();
        for first in 0..rounds.min(ahead) {
            let mut own = self.copies_of_step(&copies, steps, first);
            in_slot(&mut own, &Index::constant(first));
            match comes(&Index::constant(first)) {
                conditions if conditions.is_empty() => before.extend(own),
                conditions => before.push(Stmt::If { conditions, body: own }),
            }
        }
        let mut body = Vec::new();
        if rounds > ahead {
            let later = step.plus_constant(ahead);
            replace_vars(&mut copies, &|var| (var == steps).then_some(&later));
            in_slot(&mut copies, &later.clone().modulo(stages));
            let mut conditions = comes(&later);
            conditions.insert(0, Condition { index: later, low: 0, high: rounds });
            body.push(Stmt::If { conditions, body: copies });
        }
        body.append(&mut compute);
        let (statements, at) = find_place(&mut self.body, steps).ok_or(Refusal::NoLoop(steps))?;
        if let Stmt::Loop(l) = &mut statements[at] {
            l.body = body;
        }
        statements.splice(at..at, before);
        Ok(self)
    }

    /// The copies of one step, with loops of their own.
    fn copies_of_step(&mut self, copies: &[Stmt], steps: Var, step: i64) -> Vec<Stmt> {
        let mut copies = self.again(copies);
        let step = Index::constant(step);
        replace_vars(&mut copies, &|var| (var == steps).then_some(&step));
        copies
    }

    /// Statements once more, with loops of their own.
    pub(super) fn again(&mut self, statements: &[Stmt]) -> Vec<Stmt> {
        let mut own = Vec::new();
        for_each_stmt(statements, &mut |statement| {
            if let Stmt::Loop(l) = statement {
                own.push(l.var);
            }
        });
        let new: Vec<(Var, Index)> =
            own.iter().map(|var| (*var, Index::var(self.new_var(self.vars[var.0 as usize].clone())))).collect();
        let of = |var: Var| new.iter().find(|(old, _)| *old == var).map(|(_, new)| new);
        let mut statements = statements.to_vec();
        replace_vars(&mut statements, &of);
        rename_loops(&mut statements, &|var| of(var).and_then(Index::as_var));
        statements
    }

    /// How many of the statements that a loop's body begins with are copies into `buffers`.
    fn leading_copies(&self, l: &Loop, buffers: &[TensorId]) -> Result<usize, Refusal> {
        if let Some(buffer) = buffers.iter().find(|buffer| self.buffer(**buffer).scope != Scope::BlockShared) {
            return Err(Refusal::NotBlockShared(*buffer));
        }
        let stored = |statement: &Stmt| written(std::slice::from_ref(statement));
        let is_copy = |statement: &&Stmt| {
            let threads = matches!(statement, Stmt::Loop(l) if l.kind == LoopKind::Thread);
            threads && stored(statement).iter().all(|buffer| buffers.contains(buffer))
        };
        let count = l.body.iter().take_while(is_copy).count();
        let (copies, compute) = l.body.split_at(count);
        let copied = written(copies);
        if buffers.is_empty() || buffers.iter().any(|buffer| !copied.contains(buffer)) {
            return Err(Refusal::NoCopiesAtStart(l.var));
        }
        if written(compute).iter().any(|buffer| buffers.contains(buffer)) {
            return Err(Refusal::CopyOverwritten(l.var));
        }
        if uses_otherwise(copies, &written(&l.body)) {
            return Err(Refusal::CopyOfResults(l.var));
        }
        Ok(count)
    }
}

/// The buffers that statements store to or accumulate in.
fn written(statements: &[Stmt]) -> Vec<TensorId> {
    let mut found = Vec::new();
    for_each_stmt(statements, &mut |statement| {
        if let Stmt::Store { buffer, .. } | Stmt::Accumulate { buffer, .. } = statement {
            found.push(*buffer);
        }
    });
    found
}

/// Whether statements touch one of the buffers.
fn uses(statements: &[Stmt], buffers: &[TensorId]) -> bool {
    written(statements).iter().any(|buffer| buffers.contains(buffer)) || uses_otherwise(statements, buffers)
}

/// Whether statements read one of the buffers.
fn uses_otherwise(statements: &[Stmt], buffers: &[TensorId]) -> bool {
    let mut found = false;
    let mut note = |buffer: TensorId, _: &[Index]| found |= buffers.contains(&buffer);
    for_each_stmt(statements, &mut |statement| match statement {
        Stmt::Loop(_) => {}
        Stmt::If { conditions, .. } => {
            conditions.iter().for_each(|c| Expr::Index(c.index.clone()).for_each_load(&mut note));
        }
        Stmt::Store { buffer, indices, value } | Stmt::Accumulate { buffer, indices, value, .. } => {
            indices.iter().for_each(|index| Expr::Index(index.clone()).for_each_load(&mut note));
            value.for_each_load(&mut note);
            if matches!(statement, Stmt::Accumulate { .. }) {
                note(*buffer, indices);
            }
        }
    });
    found
}

/// Gives loops new variables; what mentions them was changed before.
fn rename_loops(statements: &mut [Stmt], new: &dyn Fn(Var) -> Option<Var>) {
    for statement in statements {
        match statement {
            Stmt::Loop(l) => {
                l.var = new(l.var).unwrap_or(l.var);
                rename_loops(&mut l.body, new);
            }
            Stmt::If { body, .. } => rename_loops(body, new),
            Stmt::Store { .. } | Stmt::Accumulate { .. } => {}
        }
    }
}
