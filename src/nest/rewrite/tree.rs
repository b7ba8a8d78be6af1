//! Walking and changing statement trees.

use crate::nest::{Loop, Stmt};
use crate::workload::{Expr, Index, TensorId, Var};

/// The loop over a variable, wherever it stands.
pub(crate) fn find_loop(stmts: &[Stmt], var: Var) -> Option<&Loop> {
    stmts.iter().find_map(|stmt| match stmt {
        Stmt::Loop(l) if l.var == var => Some(l),
        Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => find_loop(body, var),
        Stmt::Store { .. } | Stmt::Accumulate { .. } => None,
    })
}

/// The same loop, to be changed.
pub(crate) fn find_loop_mut(stmts: &mut [Stmt], var: Var) -> Option<&mut Loop> {
    stmts.iter_mut().find_map(|stmt| match stmt {
        Stmt::Loop(l) => {
            if l.var == var {
                Some(l)
            } else {
                find_loop_mut(&mut l.body, var)
            }
        }
        Stmt::If { body, .. } => find_loop_mut(body, var),
        Stmt::Store { .. } | Stmt::Accumulate { .. } => None,
    })
}

/// The statements among which the same loop stands, and its position.
pub(crate) fn find_place(stmts: &mut Vec<Stmt>, var: Var) -> Option<(&mut Vec<Stmt>, usize)> {
    let at = stmts.iter().position(|stmt| find_loop(std::slice::from_ref(stmt), var).is_some())?;
    if matches!(&stmts[at], Stmt::Loop(l) if l.var == var) {
        return Some((stmts, at));
    }
    match &mut stmts[at] {
        Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => find_place(body, var),
        Stmt::Store { .. } | Stmt::Accumulate { .. } => None,
    }
}

/// Visits every statement, outer ones first.
pub(crate) fn for_each_stmt<'a>(stmts: &'a [Stmt], visit: &mut dyn FnMut(&'a Stmt)) {
    for stmt in stmts {
        visit(stmt);
        if let Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } = stmt {
            for_each_stmt(body, visit);
        }
    }
}

/// Changes every loop, inner ones first.
pub(crate) fn for_each_loop_mut(stmts: &mut [Stmt], change: &mut dyn FnMut(&mut Loop)) {
    for stmt in stmts {
        match stmt {
            Stmt::Loop(l) => {
                for_each_loop_mut(&mut l.body, change);
                change(l);
            }
            Stmt::If { body, .. } => for_each_loop_mut(body, change),
            Stmt::Store { .. } | Stmt::Accumulate { .. } => {}
        }
    }
}

/// Visits the value of every store and accumulation.
pub(crate) fn for_each_expr<'a>(stmts: &'a [Stmt], visit: &mut dyn FnMut(&'a Expr)) {
    for_each_stmt(stmts, &mut |stmt| {
        if let Stmt::Store { value, .. } | Stmt::Accumulate { value, .. } = stmt {
            visit(value);
        }
    });
}

/// Changes the value of every store and accumulation.
pub(crate) fn change_exprs(stmts: &mut [Stmt], change: &mut dyn FnMut(&mut Expr)) {
    for stmt in stmts {
        match stmt {
            Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => change_exprs(body, change),
            Stmt::Store { value, .. } | Stmt::Accumulate { value, .. } => change(value),
        }
    }
}

/// Changes the indices of every load, store and accumulation, but for loads inside of conditions.
pub(crate) fn change_accesses(stmts: &mut [Stmt], change: &mut dyn FnMut(TensorId, &mut Vec<Index>)) {
    for stmt in stmts {
        match stmt {
            Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => change_accesses(body, change),
            Stmt::Store { buffer, indices, value } | Stmt::Accumulate { buffer, indices, value, .. } => {
                change(*buffer, indices);
                value.for_each_load_mut(change);
            }
        }
    }
}

/// Replaces variables in bounds, conditions, indices and values; `None` keeps one as it is.
pub(crate) fn replace_vars<'a>(stmts: &mut [Stmt], by: &dyn Fn(Var) -> Option<&'a Index>) {
    for stmt in stmts {
        replace_vars_of_head(stmt, by);
        if let Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } = stmt {
            replace_vars(body, by);
        }
    }
}

/// The same in one statement, without those inside of it.
pub(crate) fn replace_vars_of_head<'a>(stmt: &mut Stmt, by: &dyn Fn(Var) -> Option<&'a Index>) {
    match stmt {
        Stmt::Loop(l) => l.bounds.iter_mut().for_each(|bound| bound.replace_vars(by)),
        Stmt::If { conditions, .. } => conditions.iter_mut().for_each(|c| c.index.replace_vars(by)),
        Stmt::Store { indices, value, .. } | Stmt::Accumulate { indices, value, .. } => {
            indices.iter_mut().for_each(|index| index.replace_vars(by));
            value.replace_vars(by);
        }
    }
}
