//! Making ragged vector and unrolled loops constant.

use super::threads::{Combined, combined, fill};
use super::tree::replace_vars_of_head;
use super::{find_loop, for_each_loop_mut, for_each_stmt, replace_vars};
use crate::nest::{Buffer, Loop, LoopKind, Nest, Scope, Stmt};
use crate::workload::{Condition, Index, Interval, TensorId, Var};
use std::collections::{BTreeMap, HashSet};

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
    /// Where a parameter says how long the last tile is, its written-out rows are computed in pieces of 2ⁿ of
    /// them, each if there are so many:
    ///
    /// ```text
    /// for o in 0..min(33, (n + 5) / 6) { unroll for r in 0..min(6, n - 6*o) { t[6*o + r] = S } }
    /// =>
    /// for o in 0..min(33, n / 6) { unroll for r in 0..6 { t[6*o + r] = S } }
    /// let left = n - 6*(n / 6)
    /// if 4 <= left < 8 { unroll for r in 0..4 { t[6*(n / 6) + r] = S } }
    /// if 2 <= left < 4 { unroll for r in 0..2 { t[6*(n / 6) + r] = S } }
    /// if 1 <= left < 2 { ... }    if 3 <= left < 4 { ... }    if 5 <= left < 6 { unroll for r in 0..1 { t[6*(n / 6) + r + 4] = S } }
    /// ```
    ///
    /// Of its vectors all is computed, and what is beyond the end goes nowhere.
    ///
    /// The condition is tested as far out as its variables allow. Where it hangs on a serial loop, that loop
    /// stops before the ragged tile, which follows it.
    #[must_use]
    pub fn peel_tails(mut self) -> Nest {
        let (setup, body) = (std::mem::take(&mut self.setup), std::mem::take(&mut self.body));
        let ranges = self.parameter_ranges().collect();
        let mut peeling = Peeling {
            ranges,
            parameters: self.parameters.len(),
            buffers: &self.buffers,
            partly_written: HashSet::new(),
            combined: combined(&body),
        };
        peeling.note_partly_written(&body, false);
        let (setup, body) = (peeling.everywhere(setup), peeling.everywhere(body));
        Nest { setup, body, ..self }
    }
}

/// The way of [`Nest::peel_tails`] through a nest.
struct Peeling<'a> {
    /// Of the parameters and of the variables of enclosing loops.
    ranges: BTreeMap<Var, Interval>,
    parameters: usize,
    buffers: &'a [Buffer],
    /// Copies of as much as there is in a run.
    partly_written: HashSet<TensorId>,
    combined: Combined,
}

impl Peeling<'_> {
    /// The statements of a phase. A tile whose bound is a parameter's is the only one: it is rarely full.
    fn everywhere(&mut self, mut stmts: Vec<Stmt>) -> Vec<Stmt> {
        for_each_loop_mut(&mut stmts, &mut |l| self.drop_implied(l));
        while let Some((bound, tile)) = first_ragged(&stmts, &|bound| self.is_formula(bound)) {
            self.fill(&mut stmts, &bound, tile);
        }
        self.peel(stmts)
    }

    /// Where an axis ends is at most where it ends at most: the end that a parameter says is enough.
    fn drop_implied(&self, l: &mut Loop) {
        let all = l.bounds.clone();
        let is_implied = |bound: &Index| {
            all[1..].iter().filter(|other| other.any_var(&|var| self.is_parameter(var))).any(|other| {
                let difference = bound.clone().minus(other);
                *other != *bound && !difference.terms().is_empty() && self.is_never_negative(&difference)
            })
        };
        let mut at = 0;
        l.bounds.retain(|bound| {
            at += 1;
            at == 1 || !is_implied(bound)
        });
    }

    /// Of formulas of parameters.
    fn is_never_negative(&self, index: &Index) -> bool {
        self.is_formula(index) && self.range(index).is_some_and(|range| range.low >= 0)
    }

    fn peel(&mut self, stmts: Vec<Stmt>) -> Vec<Stmt> {
        let mut result = Vec::with_capacity(stmts.len());
        for stmt in stmts {
            match stmt {
                Stmt::Store { .. } | Stmt::Accumulate { .. } => result.push(stmt),
                Stmt::If { conditions, body } => result.push(Stmt::If { conditions, body: self.peel(body) }),
                Stmt::Loop(l) => result.extend(self.peel_loop(l)),
            }
        }
        result
    }

    fn peel_loop(&mut self, l: Loop) -> Vec<Stmt> {
        let var = l.var;
        self.ranges.insert(var, Interval::below(l.extent()));
        let result = match ragged_bound(&l.body, var) {
            None => self.peel_inside(l),
            Some((bound, tile)) => self.peel_at(l, &bound, tile),
        };
        self.ranges.remove(&var);
        result
    }

    /// Leaves a loop as it is, but for those inside of it.
    fn peel_inside(&mut self, l: Loop) -> Vec<Stmt> {
        let body = self.peel(l.body);
        vec![Stmt::Loop(Loop { body, ..l })]
    }

    /// Separates the full tiles from the ragged one, below the loop that decides which it is.
    fn peel_at(&mut self, mut l: Loop, bound: &Index, tile: i64) -> Vec<Stmt> {
        let range = self.range(bound);
        let in_tiles = bound.terms().iter().all(|(_, step)| step % tile == 0);
        // what is left in the last tile is known when the bound moves in steps of whole tiles, as loops made
        // by one split do; or only when it runs, where it hangs on a parameter; otherwise the loop stays
        // ragged, and the verifier refuses it
        if !in_tiles && !bound.any_var(&|var| self.is_parameter(var)) {
            return self.peel_inside(l);
        }
        if range.is_some_and(|r| r.low >= tile) || (in_tiles && bound.offset().rem_euclid(tile) == 0) {
            // what is left is always a multiple of the tile
            settle(&mut l.body, bound, tile, tile);
            return self.peel_loop(l);
        }
        let when = |low, high, body| Stmt::If { conditions: vec![Condition { index: bound.clone(), low, high }], body };
        if l.kind == LoopKind::Parallel {
            l.body = inside_of_parallel(std::mem::take(&mut l.body), &|body| {
                let (full, tail) = self.both(body, bound, tile);
                vec![when(tile, i64::MAX, full), when(1, tile, tail)]
            });
            return self.peel_loop(l);
        }
        let (full, mut tail) = self.both(std::mem::take(&mut l.body), bound, tile);
        l.body = full;
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
            | LoopKind::Matrix
            | LoopKind::Dot => false,
        };
        if !splittable {
            l.body = vec![when(tile, i64::MAX, l.body), when(1, tile, tail)];
            return self.peel_loop(l);
        }
        // the tile after the full ones is the ragged one, if it belongs to this loop
        replace_vars(&mut tail, &|v| (v == l.var).then_some(&tiles));
        let head = l.head();
        let mut stmts = Vec::new();
        match tiles.as_constant() {
            Some(count) => {
                if count > 0 {
                    l.bounds[0] = Index::constant(count.min(l.extent()));
                    stmts.extend(self.peel_loop(l));
                }
                if count < head.extent() {
                    stmts.extend(where_iterated(&head, &tiles, self.peel(tail)));
                }
            }
            None => {
                l.bounds.push(tiles.clone());
                stmts.extend(self.peel_loop(l));
                let here = Condition { index: tiles.clone(), low: 0, high: head.extent() };
                let body = where_iterated(&head, &tiles, self.peel(tail));
                stmts.push(Stmt::If { conditions: vec![here], body });
            }
        }
        stmts
    }

    /// What full tiles compute, and what the ragged one does: a part of it that is known, or, where that is
    /// only known when it runs, all of it, under conditions.
    fn both(&self, body: Vec<Stmt>, bound: &Index, tile: i64) -> (Vec<Stmt>, Vec<Stmt>) {
        let (mut full, mut tail) = (body.clone(), body);
        settle(&mut full, bound, tile, tile);
        if bound.any_var(&|var| self.is_parameter(var)) {
            tail = self.in_pieces(tail, bound, tile, tile - 1);
        } else {
            settle(&mut tail, bound, tile, bound.offset().rem_euclid(tile));
        }
        (full, tail)
    }

    /// What a tile of which at most so many rows are left computes: pieces of 2ⁿ rows where they are written
    /// out, and all of its vectors.
    fn in_pieces(&self, mut tail: Vec<Stmt>, bound: &Index, tile: i64, most: i64) -> Vec<Stmt> {
        let is_cut = |l: &Loop| {
            matches!(l.kind, LoopKind::Unroll | LoopKind::Matrix) && l.extent() == tile && l.bounds[1..].contains(bound)
        };
        if !self.are_own_rows(&tail, &is_cut) {
            self.fill(&mut tail, bound, tile);
            return tail;
        }
        let mut pieces = Vec::new();
        for rows in (0..=most.ilog2()).rev().map(|exponent| 1 << exponent) {
            // a digit of the number of rows in base 2
            for start in (0..=most - rows).step_by(2 * rows as usize) {
                let mut body = tail.clone();
                self.take_rows(&mut body, &is_cut, bound, (start, rows));
                self.fill(&mut body, bound, tile);
                let here = Condition { index: bound.clone(), low: start + rows, high: start + 2 * rows };
                pieces.push(Stmt::If { conditions: vec![here], body });
            }
        }
        pieces
    }

    /// Lets the loops that are cut run over so many rows from `start` on. Registers are the piece's own.
    fn take_rows(&self, stmts: &mut [Stmt], is_cut: &dyn Fn(&Loop) -> bool, bound: &Index, (start, rows): (i64, i64)) {
        for stmt in stmts {
            match stmt {
                Stmt::Loop(l) => {
                    if is_cut(l) {
                        l.bounds.retain(|other| other != bound);
                        l.bounds[0] = Index::constant(rows);
                        self.move_rows(&mut l.body, l.var, start);
                    }
                    self.take_rows(&mut l.body, is_cut, bound, (start, rows));
                }
                Stmt::If { body, .. } => self.take_rows(body, is_cut, bound, (start, rows)),
                Stmt::Store { .. } | Stmt::Accumulate { .. } => {}
            }
        }
    }

    /// Moves what a variable stands for by `start`, except where it says which register is meant.
    fn move_rows(&self, stmts: &mut [Stmt], var: Var, start: i64) {
        let row = Index::var(var).plus_constant(start);
        let by = |v: Var| (v == var).then_some(&row);
        let stay = |index: &mut Index| {
            *index = index.clone().plus_constant(-start * index.coefficient(var));
        };
        for stmt in stmts {
            replace_vars_of_head(stmt, &by);
            match stmt {
                Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => self.move_rows(body, var, start),
                Stmt::Store { buffer, indices, value } | Stmt::Accumulate { buffer, indices, value, .. } => {
                    value.for_each_load_mut(&mut |loaded, indices| {
                        indices.iter_mut().filter(|_| self.is_register(loaded)).for_each(stay);
                    });
                    indices.iter_mut().filter(|_| self.is_register(*buffer)).for_each(stay);
                }
            }
        }
    }

    fn is_register(&self, buffer: TensorId) -> bool {
        self.buffers[buffer.0 as usize].scope == Scope::Register
    }

    /// Whether loops are cut, registers that hold their rows come from nowhere else, and no memory that
    /// others read as a whole tile holds them.
    fn are_own_rows(&self, tail: &[Stmt], is_cut: &dyn Fn(&Loop) -> bool) -> bool {
        let (mut rows, mut stored, mut used, mut is_plain) = (Vec::new(), HashSet::new(), HashSet::new(), true);
        for_each_stmt(tail, &mut |stmt| {
            if let Stmt::Loop(l) = stmt {
                rows.extend(is_cut(l).then_some(l.var));
            }
        });
        let (of_rows, mut shares_rows) = (|index: &Index| rows.iter().any(|row| index.mentions(*row)), false);
        let mut note = |buffer: TensorId, indices: &[Index]| {
            for index in indices.iter().filter(|index| of_rows(index)).filter(|_| self.is_register(buffer)) {
                used.insert(buffer);
                is_plain &= rows.iter().all(|row| index.step(*row).is_some());
            }
        };
        for_each_stmt(tail, &mut |stmt| match stmt {
            Stmt::Store { buffer, indices, value } | Stmt::Accumulate { buffer, indices, value, .. } => {
                stored.extend(matches!(stmt, Stmt::Store { .. }).then_some(*buffer));
                let is_shared = self.buffers[buffer.0 as usize].scope == Scope::BlockShared;
                shares_rows |= is_shared && indices.iter().any(of_rows);
                note(*buffer, indices);
                value.for_each_load(&mut |loaded, indices| note(loaded, indices));
            }
            Stmt::Loop(_) | Stmt::If { .. } => {}
        });
        !rows.is_empty() && is_plain && !shares_rows && used.is_subset(&stored)
    }

    /// Lets the loops that a bound cuts run in full.
    fn fill(&self, body: &mut [Stmt], bound: &Index, tile: i64) {
        let is_ragged = |l: &Loop| is_written_out(l.kind) && l.extent() == tile && l.bounds[1..].contains(bound);
        fill((self.buffers, &self.partly_written, &self.combined), body, &is_ragged, bound);
    }

    fn note_partly_written(&mut self, stmts: &[Stmt], is_cut: bool) {
        for stmt in stmts {
            match stmt {
                Stmt::Loop(l) => {
                    // tiles are filled
                    let is_tile = is_written_out(l.kind);
                    let hangs = |bound: &Index| bound.any_var(&|var| self.is_parameter(var));
                    let is_cut = is_cut || (!is_tile && l.bounds.iter().any(hangs));
                    self.note_partly_written(&l.body, is_cut);
                }
                Stmt::If { body, .. } => self.note_partly_written(body, is_cut),
                Stmt::Store { buffer, .. } => self.partly_written.extend(is_cut.then_some(*buffer)),
                Stmt::Accumulate { .. } => {}
            }
        }
    }

    fn is_parameter(&self, var: Var) -> bool {
        (var.0 as usize) < self.parameters
    }

    /// Whether it hangs on parameters only.
    fn is_formula(&self, bound: &Index) -> bool {
        !bound.has_value() && bound.as_constant().is_none() && !bound.any_var(&|var| !self.is_parameter(var))
    }

    fn range(&self, index: &Index) -> Option<Interval> {
        index.range(&|v| self.ranges.get(&v).copied().unwrap_or(Interval::point(0)))
    }
}

/// Changes what is inside of all parallel loops that are shared out together.
fn inside_of_parallel(body: Vec<Stmt>, change: &dyn Fn(Vec<Stmt>) -> Vec<Stmt>) -> Vec<Stmt> {
    if !matches!(body.as_slice(), [Stmt::Loop(Loop { kind: LoopKind::Parallel, .. })]) {
        return change(body);
    }
    let inside = |stmt| match stmt {
        Stmt::Loop(l) => Stmt::Loop(Loop { body: inside_of_parallel(l.body, change), ..l }),
        other => other,
    };
    body.into_iter().map(inside).collect()
}

/// Whether iterations are all written out, so that their number has to be constant.
fn is_written_out(kind: LoopKind) -> bool {
    matches!(kind, LoopKind::Vector | LoopKind::Unroll | LoopKind::Matrix)
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
            let own = l.bounds.iter().skip(1).find(|bound| is_written_out(l.kind) && wanted(bound));
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
