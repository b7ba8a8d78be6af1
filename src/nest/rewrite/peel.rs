//! Making ragged vector and unrolled loops constant.

use super::{for_each_stmt, substitute};
use crate::nest::{Buffer, Loop, LoopKind, Nest, Scope, Stmt};
use crate::workload::{Combiner, Condition, Expr, Index, Interval, TensorId, Var};
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
    ///
    /// What is reduced across the lanes is first reduced register by register, so that lanes meet once:
    ///
    /// ```text
    /// vector for j in 0..37 { x += f(j) }
    /// =>
    /// vector for v in 0..16 { fold[v] = f(v) }
    /// unroll for u in 0..1 { vector for v in 0..16 { fold[v] += f(16*u + v + 16) } }
    /// vector for v in 0..5 { fold[v] += f(32 + v) }
    /// vector for v in 0..16 { x += fold[v] }
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
        if let [Stmt::Accumulate { buffer, indices, combiner, value }] = l.body.as_slice()
            && !indices.iter().any(|index| index.mentions(l.var))
        {
            return self.folded_strips(l, lanes, *buffer, (indices, *combiner, value));
        }
        self.strips_from(l, lanes, 0, &|_, point| substitute(&l.body, &|v| (v == l.var).then(|| point.clone())))
    }

    /// The strips from number `first` on, each with the body that `body` gives for its lane and its point of the loop.
    fn strips_from(&mut self, l: &Loop, lanes: i64, first: i64, body: Strip<'_>) -> Vec<Stmt> {
        let (whole, rest) = (l.extent() / lanes, l.extent() % lanes);
        let mut result = Vec::new();
        if whole > first {
            let unrolled = self.new_var(format!("{}u", self.vars[l.var.0 as usize]));
            let base = Index::var(unrolled).times(lanes).plus_constant(first * lanes);
            let body = vec![self.strip(l, &base, lanes, body)];
            let bounds = vec![Index::constant(whole - first)];
            result.push(Stmt::Loop(Loop { var: unrolled, bounds, kind: LoopKind::Unroll, body }));
        }
        if rest > 0 {
            result.push(self.strip(l, &Index::constant(whole * lanes), rest, body));
        }
        result
    }

    /// `width` iterations of a loop from `base` on, as a vector loop.
    fn strip(&mut self, l: &Loop, base: &Index, width: i64, body: Strip<'_>) -> Stmt {
        let lane = self.new_var(format!("{}v", self.vars[l.var.0 as usize]));
        let body = body(&Index::var(lane), &base.clone().plus(&Index::var(lane)));
        Stmt::Loop(Loop { var: lane, bounds: vec![Index::constant(width)], kind: LoopKind::Vector, body })
    }

    /// The strips of a loop of more than `lanes` iterations that reduces into one element of `buffer`.
    fn folded_strips(
        &mut self,
        l: &Loop,
        lanes: i64,
        buffer: TensorId,
        (indices, combiner, value): (&[Index], Combiner, &Expr),
    ) -> Vec<Stmt> {
        let fold = self.add_buffer(Buffer {
            name: format!("{}_fold{}", self.buffer(buffer).name, self.buffers.len()),
            shape: vec![lanes],
            dtype: self.buffer(buffer).dtype,
            scope: Scope::Register,
        });
        let value_at = |point: &Index| value.substitute(&|v| (v == l.var).then(|| point.clone()));
        let first = self.strip(l, &Index::constant(0), lanes, &|lane, point| {
            vec![Stmt::Store { buffer: fold, indices: vec![lane.clone()], value: value_at(point) }]
        });
        let others = self.strips_from(l, lanes, 1, &|lane, point| {
            vec![Stmt::Accumulate { buffer: fold, indices: vec![lane.clone()], combiner, value: value_at(point) }]
        });
        let across = self.strip(l, &Index::constant(0), lanes, &|lane, _| {
            let value = Expr::load(fold, vec![lane.clone()]);
            vec![Stmt::Accumulate { buffer, indices: indices.to_vec(), combiner, value }]
        });
        [vec![first], others, vec![across]].concat()
    }
}

/// The body of a strip, for the index of its lane and the point of the loop that is cut.
type Strip<'a> = &'a dyn Fn(&Index, &Index) -> Vec<Stmt>;

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
                stmts.extend(where_iterated(l, &tiles, peel(&last, ranges)));
            }
        }
        None => {
            let mut bounds = l.bounds.clone();
            bounds.push(tiles.clone());
            stmts.extend(peel_loop(&Loop { bounds, body: full, ..l.clone() }, ranges));
            let here = Condition { index: tiles.clone(), low: 0, high: l.extent() };
            let body = where_iterated(l, &tiles, peel(&last, ranges));
            stmts.push(Stmt::If { conditions: vec![here], body });
        }
    }
    stmts
}

/// Statements that stand for an iteration of a loop, under the bounds that may end the loop before it.
fn where_iterated(l: &Loop, iteration: &Index, body: Vec<Stmt>) -> Vec<Stmt> {
    let left = l.bounds[1..].iter().map(|bound| bound.clone().minus(iteration));
    let open = left.filter(|left| left.as_constant().is_none_or(|left| left < 1));
    let conditions: Vec<Condition> = open.map(|index| Condition { index, low: 1, high: i64::MAX }).collect();
    if conditions.is_empty() { body } else { vec![Stmt::If { conditions, body }] }
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
