//! Walking and rebuilding statement trees.

use crate::nest::{Loop, Stmt};
use crate::workload::{Condition, Expr, Index, Var};

/// The loop over a variable, wherever it stands.
pub(crate) fn find_loop(stmts: &[Stmt], var: Var) -> Option<&Loop> {
    stmts.iter().find_map(|stmt| match stmt {
        Stmt::Loop(l) if l.var == var => Some(l),
        Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => find_loop(body, var),
        Stmt::Store { .. } | Stmt::Accumulate { .. } => None,
    })
}

/// Puts statements where the loop over a variable stood. The first such loop counts; `false` where there is none.
pub(crate) fn replace_loop(stmts: &mut Vec<Stmt>, var: Var, change: &mut dyn FnMut(Loop) -> Vec<Stmt>) -> bool {
    for at in 0..stmts.len() {
        match &mut stmts[at] {
            Stmt::Loop(l) if l.var == var => {
                if let Stmt::Loop(found) = stmts.remove(at) {
                    let replacement = change(found);
                    stmts.splice(at..at, replacement);
                }
                return true;
            }
            Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => {
                if replace_loop(body, var, change) {
                    return true;
                }
            }
            Stmt::Store { .. } | Stmt::Accumulate { .. } => {}
        }
    }
    false
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

/// Visits the value of every store and accumulation.
pub(crate) fn for_each_expr<'a>(stmts: &'a [Stmt], visit: &mut dyn FnMut(&'a Expr)) {
    for_each_stmt(stmts, &mut |stmt| {
        if let Stmt::Store { value, .. } | Stmt::Accumulate { value, .. } = stmt {
            visit(value);
        }
    });
}

/// Replaces the value of every store and accumulation.
pub(crate) fn map_exprs(stmts: &mut [Stmt], change: &mut dyn FnMut(&Expr) -> Expr) {
    for stmt in stmts {
        match stmt {
            Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => map_exprs(body, change),
            Stmt::Store { value, .. } | Stmt::Accumulate { value, .. } => *value = change(value),
        }
    }
}

/// Replaces variables in bounds, conditions, indices and values; `None` keeps one as it is.
pub(crate) fn substitute(stmts: &[Stmt], replace: &dyn Fn(Var) -> Option<Index>) -> Vec<Stmt> {
    let index = |i: &Index| i.substitute(replace);
    stmts
        .iter()
        .map(|stmt| match stmt {
            Stmt::Loop(l) => Stmt::Loop(Loop {
                var: l.var,
                bounds: l.bounds.iter().map(index).collect(),
                kind: l.kind,
                body: substitute(&l.body, replace),
            }),
            Stmt::If { conditions, body } => {
                let condition = |c: &Condition| Condition { index: index(&c.index), low: c.low, high: c.high };
                Stmt::If { conditions: conditions.iter().map(condition).collect(), body: substitute(body, replace) }
            }
            Stmt::Store { buffer, indices, value } => Stmt::Store {
                buffer: *buffer,
                indices: indices.iter().map(index).collect(),
                value: value.substitute(replace),
            },
            Stmt::Accumulate { buffer, indices, combiner, value } => Stmt::Accumulate {
                buffer: *buffer,
                indices: indices.iter().map(index).collect(),
                combiner: *combiner,
                value: value.substitute(replace),
            },
        })
        .collect()
}
