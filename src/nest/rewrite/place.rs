//! Where results go: into the setup, or to another place in memory.

use super::{Refusal, find_loop, find_place, for_each_expr, for_each_stmt};
use crate::nest::{Loop, Nest, Scope, Stmt, own_parameter};
use crate::workload::{Condition, Expr, Index, Role, TensorId, Var};

impl Nest {
    /// Moves a loop that computes `tensor` from constants into the setup.
    ///
    /// ```text
    /// body: for i { u[i] = f(w[i]) }  for j { t[j] += u[j] * a[j] }
    /// =>
    /// setup: for i { u[i] = f(w[i]) }   body: for j { t[j] += u[j] * a[j] }
    /// ```
    ///
    /// # Errors
    /// [`Refusal::NoLoop`]; [`Refusal::UnknownInSetup`] and [`Refusal::OfRun`] where it reads what is not
    /// known when the network is compiled.
    pub fn into_setup(mut self, var: Var, tensor: TensorId) -> Result<Nest, Refusal> {
        let found = find_loop(&self.body, var).ok_or(Refusal::NoLoop(var))?;
        let mut unknown = None;
        for_each_expr(&found.body, &mut |value| {
            value.for_each_load(&mut |read, _| {
                if !matches!(self.buffer(read).scope, Scope::Argument(Role::Constant) | Scope::Packed) {
                    unknown = unknown.or(Some(read));
                }
            });
        });
        if let Some(buffer) = unknown {
            return Err(Refusal::UnknownInSetup { stage: var, buffer });
        }
        let of_run = |bound: &Index| bound.any_var(&|var| self.is_parameter(var));
        let mut is_of_run = found.bounds.iter().any(of_run);
        for_each_expr(&found.body, &mut |value| is_of_run |= value.any_var(&|var| self.is_parameter(var)));
        for_each_stmt(&found.body, &mut |stmt| match stmt {
            Stmt::Loop(l) => is_of_run |= l.bounds.iter().any(of_run),
            Stmt::If { conditions, .. } => is_of_run |= conditions.iter().any(|condition| of_run(&condition.index)),
            _ => {}
        });
        if is_of_run {
            return Err(Refusal::OfRun(tensor));
        }
        let (stmts, at) = find_place(&mut self.body, var).ok_or(Refusal::NoLoop(var))?;
        self.setup.push(stmts.remove(at));
        self.buffers[tensor.0 as usize].scope = Scope::Packed;
        Ok(self)
    }

    /// Writes what goes to `from` to `to` instead, at `indices` of the former place (`Var(d)` is dimension d
    /// of it), where `conditions` hold.
    ///
    /// ```text
    /// for v { for p { z[v, p] = S } }   =>   for v { for p { if 4*v + p < 7 { y[4*v + p] = S } } }
    /// ```
    #[must_use]
    pub fn redirect(mut self, from: TensorId, to: TensorId, indices: &[Index], conditions: &[Condition]) -> Nest {
        redirect(&mut self.body, from, &mut |at: &[Index], value: Expr| {
            let place = |var: Var| own_parameter(var).or_else(|| at.get(var.0 as usize).cloned());
            let moved = |index: &Index| index.substitute(&place);
            let store = Stmt::Store { buffer: to, indices: indices.iter().map(moved).collect(), value };
            if conditions.is_empty() {
                return store;
            }
            let conditions = conditions.iter().map(|c| Condition { index: moved(&c.index), ..c.clone() }).collect();
            Stmt::If { conditions, body: vec![store] }
        });
        self
    }

    /// Packed buffers that only the setup uses become its scratch memory.
    #[must_use]
    pub fn drop_setup_results(mut self) -> Nest {
        let mut used = vec![false; self.buffers.len()];
        for_each_expr(&self.body, &mut |value| value.for_each_load(&mut |read, _| used[read.0 as usize] = true));
        for (buffer, used) in self.buffers.iter_mut().zip(used) {
            if buffer.scope == Scope::Packed && !used {
                buffer.scope = Scope::Workspace;
            }
        }
        self
    }
}

fn redirect(stmts: &mut [Stmt], from: TensorId, change: &mut dyn FnMut(&[Index], Expr) -> Stmt) {
    for stmt in stmts {
        match stmt {
            Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => redirect(body, from, change),
            Stmt::Store { buffer, indices, value } if *buffer == from => {
                let value = std::mem::replace(value, Expr::integer(0));
                *stmt = change(indices, value);
            }
            Stmt::Store { .. } | Stmt::Accumulate { .. } => {}
        }
    }
}
