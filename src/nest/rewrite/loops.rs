//! Shaping loops: split, fuse, reorder, and how iterations are executed.

use super::tree::replace_vars_of_head;
use super::{Refusal, find_loop, find_loop_mut, find_place, replace_vars};
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
    /// Where the loop is ragged itself, which must leave it one iteration at least, there are as many tiles
    /// as it fills.
    ///
    /// Returns the outer and the inner variable.
    ///
    /// # Errors
    /// [`Refusal::NoLoop`].
    pub fn split(mut self, var: Var, factor: i64) -> Result<(Nest, Var, Var), Refusal> {
        let name = self.var_name(var);
        let (outer, inner) = (self.new_var(format!("{name}o")), self.new_var(format!("{name}i")));
        let l = find_loop_mut(&mut self.body, var).ok_or(Refusal::NoLoop(var))?;
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
        let mut body = std::mem::take(&mut l.body);
        replace_vars(&mut body, &|v| (v == var).then_some(&point));
        let body = vec![Stmt::Loop(Loop { var: inner, bounds, kind: l.kind, body })];
        *l = Loop { var: outer, bounds: counts, kind: l.kind, body };
        Ok((self, outer, inner))
    }

    /// Cuts a loop into several levels: `factors` are the iterations of the inner loops, outermost first. A
    /// bound of the innermost one leaves out what is too much, so that the levels may be put into any order
    /// that keeps it innermost.
    ///
    /// ```text
    /// for i in 0..200 { S(i) }                                                  in tiles of 4 by 8
    /// =>
    /// for o in 0..7 { for x in 0..4 { for y in 0..min(8, 200 - 32*o - 8*x) { S(32*o + 8*x + y) } } }
    /// ```
    ///
    /// Returns the variables, outermost first.
    ///
    /// # Errors
    /// [`Refusal::NoLoop`].
    pub fn tile(mut self, var: Var, factors: &[i64]) -> Result<(Nest, Vec<Var>), Refusal> {
        let name = self.var_name(var);
        let vars: Vec<Var> = (0..=factors.len())
            .map(|level| self.new_var(if level == 0 { format!("{name}o") } else { format!("{name}{level}") }))
            .collect();
        let l = find_loop_mut(&mut self.body, var).ok_or(Refusal::NoLoop(var))?;
        let together: i64 = factors.iter().product();
        let extents: Vec<i64> = [(l.extent() + together - 1) / together].iter().chain(factors).copied().collect();
        let mut point = Index::constant(0);
        let mut before = point.clone();
        for (var, extent) in vars.iter().zip(&extents) {
            before = point.times(*extent);
            point = before.clone().plus(&Index::var(*var));
        }
        let ragged = l.extent() % together != 0;
        let over = l
            .bounds
            .iter()
            .enumerate()
            .filter(|(at, _)| *at > 0 || ragged)
            .map(|(_, bound)| bound.clone().minus(&before));
        let over: Vec<Index> = over.collect();
        let kind = l.kind;
        let mut body = std::mem::take(&mut l.body);
        replace_vars(&mut body, &|v| (v == var).then_some(&point));
        for (level, (var, extent)) in vars.iter().zip(&extents).enumerate().rev() {
            let mut bounds = vec![Index::constant(*extent)];
            if level == factors.len() {
                bounds.extend(over.iter().cloned());
            }
            body = vec![Stmt::Loop(Loop { var: *var, bounds, kind, body })];
        }
        if let Some(Stmt::Loop(outer)) = body.pop() {
            *l = outer;
        }
        Ok((self, vars))
    }

    /// Makes one loop of two that are perfectly nested. Bounds of the inner loop beyond its constant one
    /// become conditions.
    ///
    /// ```text
    /// for i in 0..7 { for j in 0..5 { S(i, j) } }
    /// =>
    /// for f in 0..35 { S(f / 5, f % 5) }
    /// ```
    ///
    /// # Errors
    /// [`Refusal::NoLoop`], [`Refusal::NotPerfect`], or [`Refusal::NotConstant`] for a ragged outer loop.
    pub fn fuse(mut self, outer: Var, inner: Var) -> Result<(Nest, Var), Refusal> {
        let fused = self.new_var(format!("{}{}", self.var_name(outer), self.var_name(inner)));
        let first = find_loop_mut(&mut self.body, outer).ok_or(Refusal::NoLoop(outer))?;
        if only_loop(&first.body).is_none_or(|l| l.var != inner) {
            return Err(Refusal::NotPerfect(outer));
        }
        if !first.is_constant() {
            return Err(Refusal::NotConstant(outer));
        }
        let second = take_only_loop(&mut first.body).ok_or(Refusal::NotPerfect(outer))?;
        let width = second.extent();
        let quotient = Index::var(fused).floor_div(width);
        let remainder = Index::var(fused).modulo(width);
        let by = |v: Var| match v {
            v if v == outer => Some(&quotient),
            v if v == inner => Some(&remainder),
            _ => None,
        };
        let ragged: Vec<Condition> = second.bounds[1..]
            .iter()
            .map(|bound| {
                let mut index = bound.clone().minus(&Index::var(inner));
                index.replace_vars(&by);
                Condition { index, low: 1, high: i64::MAX }
            })
            .collect();
        let mut body = second.body;
        replace_vars(&mut body, &by);
        if !ragged.is_empty() {
            body = vec![Stmt::If { conditions: ragged, body }];
        }
        let bounds = vec![Index::constant(first.extent() * width)];
        *first = Loop { var: fused, bounds, kind: first.kind, body };
        Ok((self, fused))
    }

    /// Puts perfectly nested loops into a new order. `order` names all loops of the chain that starts at its
    /// outermost member and ends at its innermost.
    ///
    /// ```text
    /// for i { for j { for k { S } } }   reorder [k, i, j]   =>   for k { for i { for j { S } } }
    /// ```
    ///
    /// # Errors
    /// [`Refusal::NothingToReorder`], [`Refusal::NotPerfect`] where they are not one chain,
    /// [`Refusal::BoundsDepend`] where a bound would leave the scope of its variable.
    pub fn reorder(mut self, order: &[Var]) -> Result<Nest, Refusal> {
        let missing = || order.first().map_or(Refusal::NothingToReorder, |v| Refusal::NoLoop(*v));
        let head = outermost(&self.body, order).ok_or_else(missing)?.var;
        let (stmts, at) = find_place(&mut self.body, head).ok_or(Refusal::NoLoop(head))?;
        let mut chain = Vec::new();
        let mut body = vec![stmts.remove(at)];
        while chain.len() < order.len() {
            let next = take_only_loop(&mut body).ok_or(Refusal::NotPerfect(head))?;
            if !order.contains(&next.var) {
                return Err(Refusal::NotPerfect(head));
            }
            chain.push(next);
            body = chain.last_mut().map(|l: &mut Loop| std::mem::take(&mut l.body)).unwrap_or_default();
        }
        for (at, var) in order.iter().enumerate() {
            let l = chain.iter().find(|l| l.var == *var).ok_or(Refusal::NoLoop(*var))?;
            for later in &order[at..] {
                if l.bounds.iter().any(|b| b.mentions(*later)) {
                    return Err(Refusal::BoundsDepend { inner: *var, outer: *later });
                }
            }
        }
        for var in order.iter().rev() {
            if let Some(from) = chain.iter().position(|l| l.var == *var) {
                body = vec![Stmt::Loop(Loop { body, ..chain.swap_remove(from) })];
            }
        }
        stmts.splice(at..at, body);
        Ok(self)
    }

    /// Makes groups of steps out of a loop, which one instruction takes, inside of all other loops: a
    /// [`LoopKind::Dot`] loop.
    ///
    /// ```text
    /// for k in 0..64 { for l { S } }   =>   for ko in 0..32 { for l { dot for ki in 0..2 { S } } }
    /// ```
    ///
    /// # Errors
    /// [`Refusal::NoLoop`], and what [`Nest::split`] and [`Nest::reorder`] refuse.
    pub fn group(self, var: Var, by: i64) -> Result<(Nest, Var, Var), Refusal> {
        let (mut nest, outer, inner) = self.split(var, by)?;
        let mut l = find_loop(&nest.body, inner).ok_or(Refusal::NoLoop(inner))?;
        let mut order = Vec::new();
        while let [Stmt::Loop(next)] = l.body.as_slice() {
            order.push(next.var);
            l = next;
        }
        if !order.is_empty() {
            order.push(inner);
            nest = nest.reorder(&order)?;
        }
        Ok((nest.set_kind(inner, LoopKind::Dot)?, outer, inner))
    }

    /// Whether a loop runs equally often in all iterations of the loops around it.
    pub(super) fn is_independent(&self, l: &Loop) -> bool {
        l.bounds.iter().all(|bound| !bound.has_value() && !bound.any_var(&|var| !self.is_parameter(var)))
    }

    /// Says how the iterations of a loop are executed.
    ///
    /// # Errors
    /// [`Refusal::NoLoop`], or [`Refusal::NotConstant`] for a parallel loop of varying extent. Ragged vector
    /// and unrolled loops are allowed here: [`Nest::peel_tails`] makes them constant.
    pub fn set_kind(mut self, var: Var, kind: LoopKind) -> Result<Nest, Refusal> {
        let l = find_loop(&self.body, var).ok_or(Refusal::NoLoop(var))?;
        let is_independent = self.is_independent(l);
        let l = find_loop_mut(&mut self.body, var).ok_or(Refusal::NoLoop(var))?;
        if kind == LoopKind::Parallel && !is_independent {
            return Err(Refusal::NotConstant(var));
        }
        l.kind = kind;
        Ok(self)
    }

    /// Puts a loop of one iteration around a loop, as a place to compute at.
    ///
    /// ```text
    /// for k { S }   =>   for u in 0..1 { for k { S } }
    /// ```
    ///
    /// # Errors
    /// [`Refusal::NoLoop`].
    pub fn enclose(mut self, var: Var) -> Result<(Nest, Var), Refusal> {
        let unit = self.new_var(format!("{}u", self.var_name(var)));
        let (stmts, at) = find_place(&mut self.body, var).ok_or(Refusal::NoLoop(var))?;
        let body = vec![stmts.remove(at)];
        let bounds = vec![Index::constant(1)];
        stmts.insert(at, Stmt::Loop(Loop { var: unit, bounds, kind: LoopKind::Serial, body }));
        Ok((self, unit))
    }

    /// Removes loops of one iteration, but for those over blocks and threads, which say where their bodies
    /// are executed, and the sides of matrices.
    ///
    /// ```text
    /// for u in 0..1 { S(u) }   =>   S(0)
    /// ```
    #[must_use]
    pub fn drop_unit_loops(mut self) -> Nest {
        for stmts in [&mut self.setup, &mut self.body] {
            *stmts = without_unit_loops(std::mem::take(stmts), &mut Vec::new());
        }
        self
    }
}

/// `dropped` are the variables of the dropped loops around: all of them are replaced on one way through.
fn without_unit_loops(stmts: Vec<Stmt>, dropped: &mut Vec<Var>) -> Vec<Stmt> {
    let zero = Index::constant(0);
    let mut result = Vec::with_capacity(stmts.len());
    for mut stmt in stmts {
        if !dropped.is_empty() {
            replace_vars_of_head(&mut stmt, &|v| dropped.contains(&v).then_some(&zero));
        }
        match stmt {
            Stmt::Loop(l) if l.is_constant() && l.extent() == 1 && is_dropped(l.kind) => {
                dropped.push(l.var);
                let body = without_unit_loops(l.body, dropped);
                dropped.pop();
                match l.kind {
                    LoopKind::Block => result.push(Stmt::Loop(Loop { body, ..l })),
                    _ => result.extend(body),
                }
            }
            Stmt::Loop(l) => {
                let body = without_unit_loops(l.body, dropped);
                result.push(Stmt::Loop(Loop { body, ..l }));
            }
            Stmt::If { conditions, body } => {
                let body = without_unit_loops(body, dropped);
                result.push(Stmt::If { conditions, body });
            }
            Stmt::Store { .. } | Stmt::Accumulate { .. } => result.push(stmt),
        }
    }
    result
}

fn is_dropped(kind: LoopKind) -> bool {
    !kind.is_in_block() && kind != LoopKind::Matrix
}

/// The loop that is all there is.
fn only_loop(body: &[Stmt]) -> Option<&Loop> {
    match body {
        [Stmt::Loop(l)] => Some(l),
        _ => None,
    }
}

/// The same, taken out; where there is more, nothing is.
fn take_only_loop(body: &mut Vec<Stmt>) -> Option<Loop> {
    only_loop(body)?;
    match body.pop() {
        Some(Stmt::Loop(l)) => Some(l),
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
