//! Cutting vector loops into registers.

use super::replace_vars;
use crate::nest::{Buffer, Loop, LoopKind, Nest, Scope, Stmt};
use crate::workload::{Combiner, Expr, Index, TensorId};

impl Nest {
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
        let fold = self.add_buffer(Buffer::new(
            format!("{}_fold{}", self.buffer(buffer).name, self.buffers.len()),
            vec![lanes],
            self.buffer(buffer).dtype,
            Scope::Register,
        ));
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
