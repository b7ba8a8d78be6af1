//! Joining stages row by row.

use super::{Refusal, change_exprs, find_loop, find_place, replace_vars};
use crate::nest::{Loop, Nest, Scope, Stmt};
use crate::workload::{Extents, Index, TensorId, Var};

impl Nest {
    /// Joins loops of equal extent that follow one another in the same body; what the first ones write, the
    /// later ones may read at the same iteration only.
    ///
    /// ```text
    /// for i { A(i) }  for j { B(j) }   =>   for i { A(i)  B(i) }
    /// ```
    ///
    /// # Errors
    /// [`Refusal::NoLoop`], [`Refusal::NotConstant`], [`Refusal::BoundsDiffer`]; [`Refusal::NotInARow`] where
    /// they do not follow one another.
    pub fn join(mut self, vars: &[Var]) -> Result<Nest, Refusal> {
        let [first, rest @ ..] = vars else { return Ok(self) };
        let head = find_loop(&self.body, *first).ok_or(Refusal::NoLoop(*first))?;
        if !self.is_independent(head) {
            return Err(Refusal::NotConstant(*first));
        }
        for var in rest {
            let l = find_loop(&self.body, *var).ok_or(Refusal::NoLoop(*var))?;
            if l.bounds != head.bounds {
                return Err(Refusal::BoundsDiffer { first: *first, other: *var });
            }
        }
        let (stmts, at) = find_place(&mut self.body, *first).ok_or(Refusal::NoLoop(*first))?;
        let is = |(stmt, var): (&Stmt, &Var)| matches!(stmt, Stmt::Loop(l) if l.var == *var);
        if !stmts.get(at..at + vars.len()).is_some_and(|run| run.iter().zip(vars).all(is)) {
            return Err(Refusal::NotInARow(*first));
        }
        let later: Vec<Stmt> = stmts.drain(at + 1..at + vars.len()).collect();
        if let Stmt::Loop(head) = &mut stmts[at] {
            head.body.extend(later.into_iter().flat_map(|stmt| body_over(stmt, &Index::var(*first))));
        }
        Ok(self)
    }

    /// Gives every iteration of the loops over `rows` its own instance of an intermediate. Each row comes
    /// with the number of iterations that stay together: a dimension that a single one indexes is dropped, of
    /// others a block is left.
    ///
    /// ```text
    /// for i { t[i, ..] = S  U(t[i, ..]) }   =>   for i { t[..] = S  U(t[..]) }
    ///
    /// for o { for i in 0..8 { t[8*o + i, ..] = S }  for i in 0..8 { U(t[8*o + i, ..]) } }
    /// =>
    /// for o { for i in 0..8 { t[i, ..] = S }  for i in 0..8 { U(t[i, ..]) } }
    /// ```
    ///
    /// # Errors
    /// [`Refusal::NotWorkspace`]; [`Refusal::OutsideOfRow`] where the tensor is accessed at another row.
    pub fn privatise(mut self, tensor: TensorId, rows: &[(Var, i64)]) -> Result<Nest, Refusal> {
        if self.buffer(tensor).scope != Scope::Workspace {
            return Err(Refusal::NotWorkspace(tensor));
        }
        let mut outside = false;
        let mut narrow = |indices: &mut Vec<Index>| {
            outside |= indices.len() < rows.len();
            let mut own = Vec::new();
            for ((row, block), index) in rows.iter().zip(&mut *indices) {
                let within = std::mem::take(index).minus(&Index::var(*row).times(*block));
                outside |= rows.iter().any(|(row, _)| within.mentions(*row));
                match block {
                    1 => outside |= within.as_constant() != Some(0),
                    _ => own.push(within),
                }
            }
            indices.splice(..rows.len().min(indices.len()), own);
        };
        change_exprs(&mut self.body, &mut |value| {
            value.for_each_load_mut(&mut |loaded, indices| {
                if loaded == tensor {
                    narrow(indices);
                }
            });
        });
        narrow_stores(&mut self.body, tensor, &mut narrow);
        if outside {
            return Err(Refusal::OutsideOfRow(tensor));
        }
        let buffer = &mut self.buffers[tensor.0 as usize];
        let blocks = rows.iter().zip(&buffer.shape).map(|((_, block), extent)| *block.min(extent)).filter(|b| *b > 1);
        let blocks: Vec<i64> = blocks.collect();
        let (dropped, kept) = (rows.len(), blocks.len());
        buffer.extents = buffer.extents.moved(|at| (at >= dropped).then(|| at - dropped + kept));
        buffer.shape.splice(..rows.len(), blocks);
        buffer.scope = if buffer.elements() == 1 { Scope::Register } else { Scope::BlockShared };
        Ok(self)
    }

    /// Removes scratch buffers that nothing uses from the workspace, by making them scalars in registers.
    #[must_use]
    pub fn drop_unused(mut self) -> Nest {
        let used = self.used();
        for (buffer, used) in self.buffers.iter_mut().zip(used) {
            if !used && matches!(buffer.scope, Scope::Workspace | Scope::BlockShared | Scope::Register) {
                buffer.shape = Vec::new();
                buffer.extents = Extents::fixed();
                buffer.scope = Scope::Register;
            }
        }
        self
    }
}

fn narrow_stores(stmts: &mut [Stmt], tensor: TensorId, narrow: &mut dyn FnMut(&mut Vec<Index>)) {
    for stmt in stmts {
        match stmt {
            Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => narrow_stores(body, tensor, narrow),
            Stmt::Store { buffer, indices, .. } | Stmt::Accumulate { buffer, indices, .. } => {
                if *buffer == tensor {
                    narrow(indices);
                }
            }
        }
    }
}

/// What a loop does, over another variable.
fn body_over(stmt: Stmt, var: &Index) -> Vec<Stmt> {
    let Stmt::Loop(Loop { var: own, mut body, .. }) = stmt else { return vec![stmt] };
    replace_vars(&mut body, &|v| (v == own).then_some(var));
    body
}
