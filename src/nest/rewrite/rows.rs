//! Joining stages row by row.

use super::tree::{find_loop, substitute};
use super::{Refusal, map_exprs};
use crate::nest::{Loop, Nest, Scope, Stmt};
use crate::workload::{Expr, Index, TensorId, Var};

impl Nest {
    /// Joins loops of equal extent that follow one another in the same body; what the first ones write, the later
    /// ones may read at the same iteration only.
    ///
    /// ```text
    /// for i { A(i) }  for j { B(j) }   =>   for i { A(i)  B(i) }
    /// ```
    ///
    /// # Errors
    /// [`Refusal::NoLoop`], [`Refusal::NotConstant`]; [`Refusal::Other`] where they do not follow one another or differ in extent.
    pub fn join(&self, vars: &[Var]) -> Result<Nest, Refusal> {
        let [first, rest @ ..] = vars else { return Ok(self.clone()) };
        let head = find_loop(&self.body, *first).ok_or(Refusal::NoLoop(*first))?;
        if !head.is_constant() {
            return Err(Refusal::NotConstant(*first));
        }
        let mut body = head.body.clone();
        for var in rest {
            let l = find_loop(&self.body, *var).ok_or(Refusal::NoLoop(*var))?;
            if l.bounds != head.bounds {
                return Err(Refusal::Other("joined loops differ in extent"));
            }
            body.extend(substitute(&l.body, &|v| (v == *var).then(|| Index::var(*first))));
        }
        let joined = Stmt::Loop(Loop { body, ..head.clone() });
        let mut nest = self.clone();
        if !splice(&mut nest.body, vars, &joined) {
            return Err(Refusal::Other("joined loops do not follow one another"));
        }
        Ok(nest)
    }

    /// Gives every iteration of the loops over `rows` its own instance of an intermediate. Each row comes with the number of
    /// iterations that stay together: a dimension that a single one indexes is dropped, of others a block is left.
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
    /// [`Refusal::Other`] where the tensor is an argument or accessed at another row.
    pub fn privatise(&self, tensor: TensorId, rows: &[(Var, i64)]) -> Result<Nest, Refusal> {
        if self.buffer(tensor).scope != Scope::Shared {
            return Err(Refusal::Other("only shared buffers become private"));
        }
        let mut nest = self.clone();
        let mut outside = false;
        let mut narrow = |indices: &[Index]| {
            outside |= indices.len() < rows.len();
            let mut own = Vec::new();
            for ((row, block), index) in rows.iter().zip(indices) {
                let within = index.clone().minus(&Index::var(*row).times(*block));
                outside |= rows.iter().any(|(row, _)| within.mentions(*row));
                match block {
                    1 => outside |= within.as_constant() != Some(0),
                    _ => own.push(within),
                }
            }
            own.extend_from_slice(indices.get(rows.len()..).unwrap_or_default());
            own
        };
        map_exprs(&mut nest.body, &mut |value| {
            value.map_loads(&mut |loaded, indices| (loaded == tensor).then(|| Expr::load(tensor, narrow(indices))))
        });
        narrow_stores(&mut nest.body, tensor, &mut narrow);
        if outside {
            return Err(Refusal::Other("an intermediate is accessed outside of its row"));
        }
        let buffer = &mut nest.buffers[tensor.0 as usize];
        let blocks = rows.iter().zip(&buffer.shape).map(|((_, block), extent)| *block.min(extent)).filter(|b| *b > 1);
        let blocks: Vec<i64> = blocks.collect();
        buffer.shape.splice(..rows.len(), blocks);
        buffer.scope = if buffer.elements() == 1 { Scope::Register } else { Scope::Private };
        Ok(nest)
    }

    /// Removes scratch buffers that nothing uses from the workspace, by making them scalars in registers.
    #[must_use]
    pub fn drop_unused(&self) -> Nest {
        let mut nest = self.clone();
        for at in 0..nest.buffers.len() {
            let scratch = matches!(nest.buffers[at].scope, Scope::Shared | Scope::Private | Scope::Register);
            if scratch && !self.uses(TensorId(at as u32)) {
                nest.buffers[at].shape = Vec::new();
                nest.buffers[at].scope = Scope::Register;
            }
        }
        nest
    }
}

fn narrow_stores(stmts: &mut [Stmt], tensor: TensorId, narrow: &mut dyn FnMut(&[Index]) -> Vec<Index>) {
    for stmt in stmts {
        match stmt {
            Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => narrow_stores(body, tensor, narrow),
            Stmt::Store { buffer, indices, .. } | Stmt::Accumulate { buffer, indices, .. } => {
                if *buffer == tensor {
                    *indices = narrow(indices);
                }
            }
        }
    }
}

/// Replaces the run of loops over `vars` by one statement.
fn splice(stmts: &mut Vec<Stmt>, vars: &[Var], joined: &Stmt) -> bool {
    let is = |stmt: &Stmt, var: Var| matches!(stmt, Stmt::Loop(l) if l.var == var);
    if let Some(at) = stmts.iter().position(|s| is(s, vars[0])) {
        let run = stmts.get(at..at + vars.len());
        if !run.is_some_and(|run| run.iter().zip(vars).all(|(s, v)| is(s, *v))) {
            return false;
        }
        stmts.splice(at..at + vars.len(), [joined.clone()]);
        return true;
    }
    stmts.iter_mut().any(|stmt| match stmt {
        Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => splice(body, vars, joined),
        Stmt::Store { .. } | Stmt::Accumulate { .. } => false,
    })
}
