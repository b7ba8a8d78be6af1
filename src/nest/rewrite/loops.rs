//! Shaping loops: split, fuse, reorder, and how iterations are executed.

use super::{Refusal, find_loop, replace_loop, substitute};
use crate::nest::{Loop, LoopKind, Nest, Stmt};
use crate::workload::{Condition, Index, Var};

impl Nest {
    /// Splits a loop into tiles of `factor` iterations; the last tile may be shorter.
    ///
    /// ```text
    /// for i in 0..197 { S(i) }
    /// =>
    /// for o in 0..33 { for r in 0..min(6, 197 - 6*o) { S(6*o + r) } }
    /// ```
    ///
    /// Where the loop is ragged itself, which must leave it one iteration at least, there are as many tiles as it fills.
    ///
    /// Returns the outer and the inner variable.
    ///
    /// # Errors
    /// [`Refusal::NoLoop`].
    pub fn split(&self, var: Var, factor: i64) -> Result<(Nest, Var, Var), Refusal> {
        let mut nest = self.clone();
        let name = nest.vars[var.0 as usize].clone();
        let outer = nest.new_var(format!("{name}o"));
        let inner = nest.new_var(format!("{name}i"));
        let mut split = |l: Loop| {
            let extent = l.extent();
            let tiles = (extent + factor - 1) / factor;
            let base = Index::var(outer).times(factor);
            let mut bounds = vec![Index::constant(factor.min(extent))];
            let mut counts = vec![Index::constant(tiles)];
            for bound in &l.bounds {
                // a tile count that divides evenly, or a single tile, needs no second bound
                let exact = bound.as_constant().is_some_and(|e| e % factor == 0 || e <= factor);
                if !exact {
                    bounds.push(bound.clone().minus(&base));
                }
                if bound.as_constant().is_none() && tiles > 1 {
                    counts.push(bound.clone().plus_constant(factor - 1).floor_div(factor));
                }
            }
            let point = base.plus(&Index::var(inner));
            let body = substitute(&l.body, &|v| (v == var).then(|| point.clone()));
            let body = vec![Stmt::Loop(Loop { var: inner, bounds, kind: l.kind, body })];
            vec![Stmt::Loop(Loop { var: outer, bounds: counts, kind: l.kind, body })]
        };
        if !replace_loop(&mut nest.body, var, &mut split) {
            return Err(Refusal::NoLoop(var));
        }
        Ok((nest, outer, inner))
    }

    /// Makes one loop of two that are perfectly nested. Bounds of the inner loop beyond its constant one become conditions.
    ///
    /// ```text
    /// for i in 0..7 { for j in 0..5 { S(i, j) } }
    /// =>
    /// for f in 0..35 { S(f / 5, f % 5) }
    /// ```
    ///
    /// # Errors
    /// [`Refusal::NoLoop`], [`Refusal::NotPerfect`], or [`Refusal::NotConstant`] for a ragged outer loop.
    pub fn fuse(&self, outer: Var, inner: Var) -> Result<(Nest, Var), Refusal> {
        let first = find_loop(&self.body, outer).ok_or(Refusal::NoLoop(outer))?;
        let second = only_loop(&first.body).filter(|l| l.var == inner).ok_or(Refusal::NotPerfect(outer))?;
        if !first.is_constant() {
            return Err(Refusal::NotConstant(outer));
        }
        let width = second.extent();
        let mut nest = self.clone();
        let fused = nest.new_var(format!("{}{}", self.vars[outer.0 as usize], self.vars[inner.0 as usize]));
        let point = Index::var(fused);
        let replace = |v: Var| match v {
            v if v == outer => Some(point.clone().floor_div(width)),
            v if v == inner => Some(point.clone().modulo(width)),
            _ => None,
        };
        let mut body = substitute(&second.body, &replace);
        let ragged: Vec<Condition> = second.bounds[1..]
            .iter()
            .map(|bound| Condition {
                index: bound.clone().minus(&Index::var(inner)).substitute(&replace),
                low: 1,
                high: i64::MAX,
            })
            .collect();
        if !ragged.is_empty() {
            body = vec![Stmt::If { conditions: ragged, body }];
        }
        let bounds = vec![Index::constant(first.extent() * width)];
        let l = Loop { var: fused, bounds, kind: first.kind, body };
        replace_loop(&mut nest.body, outer, &mut |_| vec![Stmt::Loop(l.clone())]);
        Ok((nest, fused))
    }

    /// Puts perfectly nested loops into a new order. `order` names all loops of the chain that starts at its outermost member
    /// and ends at its innermost.
    ///
    /// ```text
    /// for i { for j { for k { S } } }   reorder [k, i, j]   =>   for k { for i { for j { S } } }
    /// ```
    ///
    /// # Errors
    /// [`Refusal::NotPerfect`] where they are not one chain, [`Refusal::BoundsDepend`] where a bound would leave the scope of its variable.
    pub fn reorder(&self, order: &[Var]) -> Result<Nest, Refusal> {
        let Some(first) = outermost(&self.body, order) else {
            return Err(order.first().map_or(Refusal::Other("nothing to reorder"), |v| Refusal::NoLoop(*v)));
        };
        let mut chain = vec![first];
        while chain.len() < order.len() {
            let next = only_loop(&chain[chain.len() - 1].body).ok_or(Refusal::NotPerfect(first.var))?;
            if !order.contains(&next.var) {
                return Err(Refusal::NotPerfect(first.var));
            }
            chain.push(next);
        }
        for (at, var) in order.iter().enumerate() {
            let l = chain.iter().find(|l| l.var == *var).ok_or(Refusal::NoLoop(*var))?;
            for later in &order[at..] {
                if l.bounds.iter().any(|b| b.mentions(*later)) {
                    return Err(Refusal::BoundsDepend { inner: *var, outer: *later });
                }
            }
        }
        let mut body = chain[chain.len() - 1].body.clone();
        for var in order.iter().rev() {
            if let Some(l) = chain.iter().find(|l| l.var == *var) {
                body = vec![Stmt::Loop(Loop { var: l.var, bounds: l.bounds.clone(), kind: l.kind, body })];
            }
        }
        let head = first.var;
        let mut nest = self.clone();
        replace_loop(&mut nest.body, head, &mut |_| body.clone());
        Ok(nest)
    }

    /// Says how the iterations of a loop are executed.
    ///
    /// # Errors
    /// [`Refusal::NoLoop`], or [`Refusal::NotConstant`] for a parallel loop of varying extent. Ragged vector and unrolled loops are
    /// allowed here: [`Nest::peel_tails`] makes them constant.
    pub fn set_kind(&self, var: Var, kind: LoopKind) -> Result<Nest, Refusal> {
        let l = find_loop(&self.body, var).ok_or(Refusal::NoLoop(var))?;
        if kind == LoopKind::Parallel && !l.is_constant() {
            return Err(Refusal::NotConstant(var));
        }
        let mut nest = self.clone();
        replace_loop(&mut nest.body, var, &mut |l| vec![Stmt::Loop(Loop { kind, ..l })]);
        Ok(nest)
    }

    /// Puts a loop of one iteration around a loop, as a place to compute at.
    ///
    /// ```text
    /// for k { S }   =>   for u in 0..1 { for k { S } }
    /// ```
    ///
    /// # Errors
    /// [`Refusal::NoLoop`].
    pub fn enclose(&self, var: Var) -> Result<(Nest, Var), Refusal> {
        let mut nest = self.clone();
        let unit = nest.new_var(format!("{}u", self.vars[var.0 as usize]));
        let found = replace_loop(&mut nest.body, var, &mut |l| {
            let bounds = vec![Index::constant(1)];
            vec![Stmt::Loop(Loop { var: unit, bounds, kind: LoopKind::Serial, body: vec![Stmt::Loop(l)] })]
        });
        if found { Ok((nest, unit)) } else { Err(Refusal::NoLoop(var)) }
    }

    /// Removes loops of one iteration.
    ///
    /// ```text
    /// for u in 0..1 { S(u) }   =>   S(0)
    /// ```
    #[must_use]
    pub fn drop_unit_loops(&self) -> Nest {
        let mut nest = self.clone();
        nest.setup = without_unit_loops(&self.setup);
        nest.body = without_unit_loops(&self.body);
        nest
    }
}

fn without_unit_loops(stmts: &[Stmt]) -> Vec<Stmt> {
    let mut result = Vec::new();
    for stmt in stmts {
        match stmt {
            Stmt::Loop(l) if l.is_constant() && l.extent() == 1 => {
                let body = substitute(&l.body, &|v| (v == l.var).then(|| Index::constant(0)));
                result.extend(without_unit_loops(&body));
            }
            Stmt::Loop(l) => result.push(Stmt::Loop(Loop { body: without_unit_loops(&l.body), ..l.clone() })),
            Stmt::If { conditions, body } => {
                result.push(Stmt::If { conditions: conditions.clone(), body: without_unit_loops(body) });
            }
            Stmt::Store { .. } | Stmt::Accumulate { .. } => result.push(stmt.clone()),
        }
    }
    result
}

/// The loop that is all there is.
fn only_loop(body: &[Stmt]) -> Option<&Loop> {
    match body {
        [Stmt::Loop(l)] => Some(l),
        _ => None,
    }
}

/// The first loop on the way down that is over one of these variables.
fn outermost<'a>(stmts: &'a [Stmt], vars: &[Var]) -> Option<&'a Loop> {
    stmts.iter().find_map(|stmt| match stmt {
        Stmt::Loop(l) if vars.contains(&l.var) => Some(l),
        Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => outermost(body, vars),
        Stmt::Store { .. } | Stmt::Accumulate { .. } => None,
    })
}
