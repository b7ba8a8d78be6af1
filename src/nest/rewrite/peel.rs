//! Making ragged vector and unrolled loops constant.

use super::{find_loop, replace_vars};
use crate::nest::{Buffer, Loop, LoopKind, Nest, Scope, Stmt};
use crate::workload::{Combiner, Condition, Expr, Index, Interval, TensorId, Var};
use std::collections::BTreeMap;

impl Nest {
    /// Splits the work at ragged edges so that every vector and unrolled loop runs a constant number of
    /// times.
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
    /// The condition is tested as far out as its variables allow. Where it hangs on a serial loop, that loop
    /// stops before the ragged tile, which follows it.
    #[must_use]
    pub fn peel_tails(mut self) -> Nest {
        let mut ranges = BTreeMap::new();
        for stmts in [&mut self.setup, &mut self.body] {
            *stmts = peel(std::mem::take(stmts), &mut ranges);
        }
        self
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
    pub fn strip_mine(mut self, lanes: i64) -> Nest {
        let (setup, body) = (std::mem::take(&mut self.setup), std::mem::take(&mut self.body));
        self.setup = self.strips(setup, lanes);
        self.body = self.strips(body, lanes);
        self
    }

    fn strips(&mut self, stmts: Vec<Stmt>, lanes: i64) -> Vec<Stmt> {
        let mut result = Vec::with_capacity(stmts.len());
        for stmt in stmts {
            match stmt {
                Stmt::Loop(l) if l.kind == LoopKind::Vector && l.extent() > lanes => {
                    result.extend(self.strips_of(&l, lanes));
                }
                Stmt::Loop(l) => {
                    let body = self.strips(l.body, lanes);
                    result.push(Stmt::Loop(Loop { body, ..l }));
                }
                Stmt::If { conditions, body } => {
                    let body = self.strips(body, lanes);
                    result.push(Stmt::If { conditions, body });
                }
                Stmt::Store { .. } | Stmt::Accumulate { .. } => result.push(stmt),
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
        self.strips_from(l, lanes, 0, &|_, point| {
            let mut body = l.body.clone();
            replace_vars(&mut body, &|v| (v == l.var).then_some(point));
            body
        })
    }

    /// The strips from number `first` on, each with the body that `body` gives for its lane and its point of
    /// the loop.
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
        let value_at = |point: &Index| {
            let mut value = value.clone();
            value.replace_vars(&|v| (v == l.var).then_some(point));
            value
        };
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
        std::iter::once(first).chain(others).chain([across]).collect()
    }
}

/// The body of a strip, for the index of its lane and the point of the loop that is cut.
type Strip<'a> = &'a dyn Fn(&Index, &Index) -> Vec<Stmt>;

/// The ranges of the variables of enclosing loops.
type Ranges = BTreeMap<Var, Interval>;

fn peel(stmts: Vec<Stmt>, ranges: &mut Ranges) -> Vec<Stmt> {
    let mut result = Vec::with_capacity(stmts.len());
    for stmt in stmts {
        match stmt {
            Stmt::Store { .. } | Stmt::Accumulate { .. } => result.push(stmt),
            Stmt::If { conditions, body } => result.push(Stmt::If { conditions, body: peel(body, ranges) }),
            Stmt::Loop(l) => result.extend(peel_loop(l, ranges)),
        }
    }
    result
}

fn peel_loop(l: Loop, ranges: &mut Ranges) -> Vec<Stmt> {
    let var = l.var;
    ranges.insert(var, Interval::below(l.extent()));
    let result = match ragged_bound(&l.body, var) {
        None => peel_inside(l, ranges),
        Some((bound, tile)) => peel_at(l, &bound, tile, ranges),
    };
    ranges.remove(&var);
    result
}

/// Leaves a loop as it is, but for those inside of it.
fn peel_inside(l: Loop, ranges: &mut Ranges) -> Vec<Stmt> {
    let body = peel(l.body, ranges);
    vec![Stmt::Loop(Loop { body, ..l })]
}

/// Separates the full tiles from the ragged one, below the loop that decides which it is.
fn peel_at(mut l: Loop, bound: &Index, tile: i64, ranges: &mut Ranges) -> Vec<Stmt> {
    let range = bound.range(&|v| ranges.get(&v).copied().unwrap_or(Interval::point(0)));
    // what is left in the last tile is known when the bound moves in steps of whole tiles, as loops made by
    // one split do; otherwise the loop stays ragged, and the verifier refuses it
    if bound.terms().iter().any(|(_, step)| step % tile != 0) {
        return peel_inside(l, ranges);
    }
    let rest = bound.offset().rem_euclid(tile);
    if range.is_some_and(|r| r.low >= tile) || rest == 0 {
        // what is left is always a multiple of the tile
        settle(&mut l.body, bound, tile, tile);
        return peel_loop(l, ranges);
    }
    let mut tail = l.body.clone();
    settle(&mut tail, bound, tile, rest);
    settle(&mut l.body, bound, tile, tile);
    let tiles = bound.clone().plus(&Index::var(l.var).times(tile)).floor_div(tile);
    let in_step = bound.coefficient(l.var) == -tile && !tiles.mentions(l.var);
    let splittable = match l.kind {
        LoopKind::Serial => in_step,
        LoopKind::Unroll => in_step && tiles.as_constant().is_some(),
        LoopKind::Parallel
        | LoopKind::Vector
        | LoopKind::Block
        | LoopKind::Thread
        | LoopKind::Warp
        | LoopKind::Matrix => false,
    };
    if !splittable {
        let when = |low, high, body| Stmt::If { conditions: vec![Condition { index: bound.clone(), low, high }], body };
        l.body = vec![when(tile, i64::MAX, l.body), when(1, tile, tail)];
        return peel_loop(l, ranges);
    }
    // the tile after the full ones is the ragged one, if it belongs to this loop
    replace_vars(&mut tail, &|v| (v == l.var).then_some(&tiles));
    let head = l.head();
    let mut stmts = Vec::new();
    match tiles.as_constant() {
        Some(count) => {
            if count > 0 {
                l.bounds[0] = Index::constant(count.min(l.extent()));
                stmts.extend(peel_loop(l, ranges));
            }
            if count < head.extent() {
                stmts.extend(where_iterated(&head, &tiles, peel(tail, ranges)));
            }
        }
        None => {
            l.bounds.push(tiles.clone());
            stmts.extend(peel_loop(l, ranges));
            let here = Condition { index: tiles.clone(), low: 0, high: head.extent() };
            let body = where_iterated(&head, &tiles, peel(tail, ranges));
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

/// A bound that makes a vector or unrolled loop below ragged and whose innermost variable is `var`, with the
/// tile that it cuts.
fn ragged_bound(body: &[Stmt], var: Var) -> Option<(Index, i64)> {
    first_ragged(body, &|bound| bound.mentions(var) && !bound.any_var(&|v| find_loop(body, v).is_some()))
}

fn first_ragged(stmts: &[Stmt], wanted: &dyn Fn(&Index) -> bool) -> Option<(Index, i64)> {
    stmts.iter().find_map(|stmt| match stmt {
        Stmt::Loop(l) => {
            let is_written_out = matches!(l.kind, LoopKind::Vector | LoopKind::Unroll);
            let own = l.bounds.iter().skip(1).find(|bound| is_written_out && wanted(bound));
            own.map(|bound| (bound.clone(), l.extent())).or_else(|| first_ragged(&l.body, wanted))
        }
        Stmt::If { body, .. } => first_ragged(body, wanted),
        Stmt::Store { .. } | Stmt::Accumulate { .. } => None,
    })
}

/// Gives the loops that a bound cuts a constant number of iterations.
fn settle(stmts: &mut [Stmt], bound: &Index, tile: i64, iterations: i64) {
    for stmt in stmts {
        match stmt {
            Stmt::Loop(l) => {
                settle(&mut l.body, bound, tile, iterations);
                if l.extent() == tile && l.bounds[1..].contains(bound) {
                    l.bounds.retain(|b| b != bound);
                    l.bounds[0] = Index::constant(iterations);
                }
            }
            Stmt::If { body, .. } => settle(body, bound, tile, iterations),
            Stmt::Store { .. } | Stmt::Accumulate { .. } => {}
        }
    }
}
