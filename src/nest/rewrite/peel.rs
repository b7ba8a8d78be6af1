//! Making ragged vector and unrolled loops constant.

use super::{for_each_stmt, substitute};
use crate::nest::{Loop, LoopKind, Nest, Stmt};
use crate::workload::{Condition, Index, Interval, Var};
use std::collections::BTreeMap;

impl Nest {
    /// Splits the work at ragged edges so that every vector and unrolled loop runs a constant number of times.
    ///
    /// ```text
    /// for o in 0..33 { unroll for r in 0..min(6, 197 - 6*o) { S } }
    /// =>
    /// for o in 0..33 {
    ///     if 197 - 6*o >= 6 { unroll for r in 0..6 { S } }
    ///     if 1 <= 197 - 6*o < 6 { unroll for r in 0..5 { S } }
    /// }
    /// ```
    ///
    /// The condition is tested as far out as its variables allow. Where it hangs on a serial loop, that loop stops before
    /// the ragged tile, which follows it.
    #[must_use]
    pub fn peel_tails(&self) -> Nest {
        let mut nest = self.clone();
        let mut ranges = BTreeMap::new();
        nest.setup = peel(&self.setup, &mut ranges);
        nest.body = peel(&self.body, &mut ranges);
        nest
    }

    /// Cuts vector loops into registers of `lanes` elements, the last one narrower if need be.
    ///
    /// ```text
    /// vector for j in 0..37 { S(j) }
    /// =>
    /// unroll for u in 0..2 { vector for v in 0..16 { S(16*u + v) } }
    /// vector for v in 0..5 { S(32 + v) }
    /// ```
    #[must_use]
    pub fn strip_mine(&self, lanes: i64) -> Nest {
        let mut nest = self.clone();
        let (setup, body) = (nest.setup.clone(), nest.body.clone());
        nest.setup = nest.strips(&setup, lanes);
        nest.body = nest.strips(&body, lanes);
        nest
    }

    fn strips(&mut self, stmts: &[Stmt], lanes: i64) -> Vec<Stmt> {
        let mut result = Vec::new();
        for stmt in stmts {
            match stmt {
                Stmt::Loop(l) if l.kind == LoopKind::Vector && l.extent() > lanes => {
                    result.extend(self.strips_of(l, lanes));
                }
                Stmt::Loop(l) => {
                    let body = self.strips(&l.body, lanes);
                    result.push(Stmt::Loop(Loop { body, ..l.clone() }));
                }
                Stmt::If { conditions, body } => {
                    let body = self.strips(body, lanes);
                    result.push(Stmt::If { conditions: conditions.clone(), body });
                }
                Stmt::Store { .. } | Stmt::Accumulate { .. } => result.push(stmt.clone()),
            }
        }
        result
    }

    fn strips_of(&mut self, l: &Loop, lanes: i64) -> Vec<Stmt> {
        let name = self.vars[l.var.0 as usize].clone();
        let (whole, rest) = (l.extent() / lanes, l.extent() % lanes);
        let strip = |nest: &mut Nest, base: Index, width: i64| {
            let lane = nest.new_var(format!("{name}v"));
            let point = base.plus(&Index::var(lane));
            let body = substitute(&l.body, &|v| (v == l.var).then(|| point.clone()));
            Stmt::Loop(Loop { var: lane, bounds: vec![Index::constant(width)], kind: LoopKind::Vector, body })
        };
        let unrolled = self.new_var(format!("{name}u"));
        let body = vec![strip(self, Index::var(unrolled).times(lanes), lanes)];
        let bounds = vec![Index::constant(whole)];
        let mut result = vec![Stmt::Loop(Loop { var: unrolled, bounds, kind: LoopKind::Unroll, body })];
        if rest > 0 {
            result.push(strip(self, Index::constant(whole * lanes), rest));
        }
        result
    }
}

/// The ranges of the variables of enclosing loops.
type Ranges = BTreeMap<Var, Interval>;

fn peel(stmts: &[Stmt], ranges: &mut Ranges) -> Vec<Stmt> {
    let mut result = Vec::new();
    for stmt in stmts {
        match stmt {
            Stmt::Store { .. } | Stmt::Accumulate { .. } => result.push(stmt.clone()),
            Stmt::If { conditions, body } => {
                result.push(Stmt::If { conditions: conditions.clone(), body: peel(body, ranges) });
            }
            Stmt::Loop(l) => result.extend(peel_loop(l, ranges)),
        }
    }
    result
}

fn peel_loop(l: &Loop, ranges: &mut Ranges) -> Vec<Stmt> {
    ranges.insert(l.var, Interval::below(l.extent()));
    let result = match ragged_bound(&l.body, l.var) {
        None => vec![Stmt::Loop(Loop { body: peel(&l.body, ranges), ..l.clone() })],
        Some((bound, tile)) => peel_at(l, &bound, tile, ranges),
    };
    ranges.remove(&l.var);
    result
}

/// Separates the full tiles from the ragged one, below the loop that decides which it is.
fn peel_at(l: &Loop, bound: &Index, tile: i64, ranges: &mut Ranges) -> Vec<Stmt> {
    let full = settle(&l.body, bound, tile, tile);
    let range = bound.range(&|v| ranges.get(&v).copied().unwrap_or(Interval::point(0)));
    // what is left in the last tile is known when the bound moves in steps of whole tiles, as loops made by one split do; otherwise the
    // loop stays ragged, and the verifier refuses it
    if bound.terms().iter().any(|(_, step)| step % tile != 0) {
        return vec![Stmt::Loop(Loop { body: peel(&l.body, ranges), ..l.clone() })];
    }
    let rest = bound.offset().rem_euclid(tile);
    if range.is_some_and(|r| r.low >= tile) || rest == 0 {
        // what is left is always a multiple of the tile
        return peel_loop(&Loop { body: full, ..l.clone() }, ranges);
    }
    let tail = settle(&l.body, bound, tile, rest);
    let tiles = bound.clone().plus(&Index::var(l.var).times(tile)).floor_div(tile);
    let in_step = bound.coefficient(l.var) == -tile && !tiles.mentions(l.var);
    let splittable = match l.kind {
        LoopKind::Serial => in_step,
        LoopKind::Unroll => in_step && tiles.as_constant().is_some(),
        LoopKind::Parallel | LoopKind::Vector => false,
    };
    if !splittable {
        let when = |low, high, body| Stmt::If { conditions: vec![Condition { index: bound.clone(), low, high }], body };
        let body = vec![when(tile, i64::MAX, full), when(1, tile, tail)];
        return peel_loop(&Loop { body, ..l.clone() }, ranges);
    }
    // the tile after the full ones is the ragged one, if it belongs to this loop
    let last = substitute(&tail, &|v| (v == l.var).then(|| tiles.clone()));
    let mut stmts = Vec::new();
    match tiles.as_constant() {
        Some(count) => {
            if count > 0 {
                let mut bounds = l.bounds.clone();
                bounds[0] = Index::constant(count.min(l.extent()));
                stmts.extend(peel_loop(&Loop { bounds, body: full, ..l.clone() }, ranges));
            }
            if count < l.extent() {
                stmts.extend(peel(&last, ranges));
            }
        }
        None => {
            let mut bounds = l.bounds.clone();
            bounds.push(tiles.clone());
            stmts.extend(peel_loop(&Loop { bounds, body: full, ..l.clone() }, ranges));
            let here = Condition { index: tiles, low: 0, high: l.extent() };
            stmts.push(Stmt::If { conditions: vec![here], body: peel(&last, ranges) });
        }
    }
    stmts
}

/// A bound that makes a vector or unrolled loop below ragged and whose innermost variable is `var`, with the tile that it cuts.
fn ragged_bound(body: &[Stmt], var: Var) -> Option<(Index, i64)> {
    let mut inner = Vec::new();
    for_each_stmt(body, &mut |stmt| {
        if let Stmt::Loop(l) = stmt {
            inner.push(l.var);
        }
    });
    let mut found = None;
    for_each_stmt(body, &mut |stmt| {
        if let Stmt::Loop(l) = stmt
            && matches!(l.kind, LoopKind::Vector | LoopKind::Unroll)
            && found.is_none()
        {
            found = l.bounds[1..]
                .iter()
                .find(|b| b.mentions(var) && !inner.iter().any(|v| b.mentions(*v)))
                .map(|b| (b.clone(), l.extent()));
        }
    });
    found
}

/// Gives the loops that a bound cuts a constant number of iterations.
fn settle(stmts: &[Stmt], bound: &Index, tile: i64, iterations: i64) -> Vec<Stmt> {
    stmts
        .iter()
        .map(|stmt| match stmt {
            Stmt::Loop(l) => {
                let body = settle(&l.body, bound, tile, iterations);
                let mut bounds = l.bounds.clone();
                if l.extent() == tile && l.bounds[1..].contains(bound) {
                    bounds.retain(|b| b != bound);
                    bounds[0] = Index::constant(iterations);
                }
                Stmt::Loop(Loop { bounds, body, ..l.clone() })
            }
            Stmt::If { conditions, body } => {
                Stmt::If { conditions: conditions.clone(), body: settle(body, bound, tile, iterations) }
            }
            Stmt::Store { .. } | Stmt::Accumulate { .. } => stmt.clone(),
        })
        .collect()
}
