//! Persistent blocks: the steps of all results in one row, dealt out evenly (Stream-K: Osama et al., PPoPP
//! 2023).

use std::mem::take;

use super::{Refusal, change_exprs, find_loop, for_each_stmt, replace_vars};
use crate::nest::structure::literal;
use crate::nest::{Buffer, Loop, LoopKind, Nest, Scope, Stmt};
use crate::workload::{Combiner, Condition, Expr, Index, TensorId, Var, typed_identity};

/// A grid of blocks, each of which goes through the same steps for a result of its own.
struct Grid {
    /// The loops over blocks, outermost first, with nothing in them.
    blocks: Vec<Loop>,
    /// What a block begins with: its accumulators' first values.
    start: Vec<Stmt>,
    steps: Loop,
    /// What it does with the accumulators at last.
    finish: Vec<Stmt>,
}

/// The registers that a block adds up in.
struct Accumulators {
    buffer: TensorId,
    /// Where the parts are kept of results that a block did not get to the end of, and of those that it did
    /// not begin. First dimension: the block.
    unfinished: TensorId,
    finished: TensorId,
}

/// How the steps of all results are dealt out, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shares {
    /// Of all results together.
    all: i64,
    /// Of a result.
    steps: i64,
    /// Of a worker; the last one may have fewer.
    pub each: i64,
}

impl Shares {
    /// Of so many results of so many steps, for `workers` at most; `None` where there is nothing to deal out,
    /// or nobody to deal it out to.
    pub fn new(results: i64, steps: i64, workers: i64) -> Option<Shares> {
        if results < 1 || steps < 1 || workers < 1 {
            return None;
        }
        let all = results.checked_mul(steps)?;
        Some(Shares { all, steps, each: all.checked_add(workers - 1)? / workers })
    }

    fn workers(self) -> i64 {
        (self.all + self.each - 1) / self.each
    }

    /// Whether every worker has whole results only.
    fn are_whole(self) -> bool {
        self.each % self.steps == 0
    }

    /// In how many parts a result may be computed: all but the last are of workers that get no further than
    /// into its middle.
    pub fn most_parts(self) -> i64 {
        if self.are_whole() { 1 } else { 1 + (self.steps + self.each - 2) / self.each }
    }
}

impl Nest {
    /// Lets as many blocks as there are `workers` go through the steps of all results, an equal share in a
    /// row each, whatever the number of results. What blocks computed of a result that several had a share
    /// of, is kept in parts, which a grid of its own combines.
    ///
    /// ```text
    /// block for i in 0..6 { r = 0  for k in 0..8 { r += f(i, k) }  t[i] = g(r) }                                   with 4 workers
    /// =>
    /// block for w in 0..4 {
    ///     r = 0
    ///     for x in 0..12 {                                             i: (12·w + x) / 8, k: (12·w + x) % 8
    ///         r += f(i, k)
    ///         if k = 7 and x ≥ 7 { t[i] = g(r) }                       all steps were this block's
    ///         if k = 7 and x < 7 { finished[w] = r }
    ///         if k < 7 and x = 11 { unfinished[w] = r }
    ///         if k = 7 { r = 0 }
    ///     }
    /// }
    /// block for i in 0..6 { if 8·i / 12 < (8·i + 7) / 12 { t[i] = g(unfinished[8·i / 12] + finished[(8·i + 7) / 12]) } }
    /// ```
    ///
    /// `steps` is the loop that stands in the blocks, between what starts accumulators and what takes their
    /// values. Returns the variable of the loop over a block's share, too.
    ///
    /// # Errors
    /// [`Refusal::NoLoop`], [`Refusal::NotConstant`] for a ragged loop, [`Refusal::NotSerial`],
    /// [`Refusal::StepsOutsideBlocks`], [`Refusal::NothingToDealOut`], and [`Refusal::NotOneAccumulator`]
    /// where blocks do anything else.
    pub fn persistent(mut self, steps: Var, workers: i64, combiner: Combiner) -> Result<(Nest, Var), Refusal> {
        let holds = |statement: &Stmt| find_loop(std::slice::from_ref(statement), steps).is_some();
        let at = self.body.iter().position(holds).ok_or(Refusal::NoLoop(steps))?;
        let grid = Grid::of(self.body.remove(at), steps)?;
        let buffer = grid.accumulators(&self)?;
        let results: i64 = grid.blocks.iter().map(Loop::extent).product();
        let nothing = Refusal::NothingToDealOut { steps: grid.steps.var, workers };
        let shares = Shares::new(results, grid.steps.extent(), workers).ok_or(nothing)?;
        let accumulators = (!shares.are_whole()).then(|| self.with_parts(buffer, shares.workers()));
        let (of_workers, step) = self.of_workers(&grid, shares, accumulators.as_ref());
        let mut grids = vec![of_workers];
        if let Some(accumulators) = accumulators {
            grids.push(self.of_parts(grid, shares, &accumulators, combiner));
        }
        self.body.splice(at..at, grids);
        Ok((self, step))
    }

    /// Accumulators, and where each worker keeps parts.
    fn with_parts(&mut self, buffer: TensorId, workers: i64) -> Accumulators {
        let Buffer { name, shape, dtype, .. } = self.buffer(buffer).clone();
        let mut parts = |which| {
            let shape = [&[workers], &shape[..]].concat();
            self.add_buffer(Buffer::new(format!("{name}_{which}"), shape, dtype, Scope::Workspace))
        };
        Accumulators { buffer, unfinished: parts("unfinished"), finished: parts("finished") }
    }

    /// The grid that goes through all steps, and the variable of its loop over a share.
    fn of_workers(&mut self, grid: &Grid, shares: Shares, accumulators: Option<&Accumulators>) -> (Stmt, Var) {
        let (worker, step) = (self.new_var("worker"), self.new_var("step"));
        let Shares { all, steps, each } = shares;
        let (own, first) = (Index::var(step), Index::var(worker).times(each));
        let flat = first.clone().plus(&own);
        let within = flat.clone().modulo(steps);
        let mut points = grid.points(&flat, steps);
        points.push((grid.steps.var, within.clone()));
        let at = |statements: &[Stmt]| {
            let mut statements = statements.to_vec();
            replace_vars(&mut statements, &|var| points.iter().find(|(old, _)| *old == var).map(|(_, new)| new));
            statements
        };
        let condition = |index: &Index, low: i64, high: i64| Condition { index: index.clone(), low, high };
        let is_last = condition(&within, steps - 1, steps);
        let when = |conditions: Vec<Condition>, body: Vec<Stmt>| Stmt::If { conditions, body };
        let mut body = at(&grid.steps.body);
        if each >= steps {
            // whole results: their first step was of this share, too
            let mut conditions = vec![is_last.clone()];
            conditions.extend((accumulators.is_some()).then(|| condition(&own, steps - 1, each)));
            body.push(when(conditions, at(&grid.finish)));
        }
        if let Some(Accumulators { unfinished, finished, .. }) = accumulators {
            let keep = self.kept(&grid.start, *finished, worker);
            body.push(when(vec![is_last.clone(), condition(&own, 0, steps - 1)], keep));
            let keep = self.kept(&grid.start, *unfinished, worker);
            body.push(when(vec![condition(&within, 0, steps - 1), condition(&own, each - 1, each)], keep));
        }
        body.push(when(vec![is_last], self.again(&grid.start)));
        let mut bounds = vec![Index::constant(each)];
        bounds.extend((all % each != 0).then(|| Index::constant(all).minus(&first)));
        let share = Loop { var: step, bounds, kind: LoopKind::Serial, body };
        let body = [&grid.start[..], &[Stmt::Loop(share)]].concat();
        let bounds = vec![Index::constant(shares.workers())];
        (Stmt::Loop(Loop { var: worker, bounds, kind: LoopKind::Block, body }), step)
    }

    /// What stores the accumulators as a part, in loops as those that start them.
    fn kept(&mut self, start: &[Stmt], part: TensorId, worker: Var) -> Vec<Stmt> {
        let mut statements = self.again(start);
        for_each_store(&mut statements, &mut |buffer, indices, value| {
            *value = Expr::load(*buffer, indices.clone());
            *buffer = part;
            indices.insert(0, Index::var(worker));
        });
        statements
    }

    /// The grid that combines the parts of results, and finishes them.
    fn of_parts(&mut self, grid: Grid, shares: Shares, accumulators: &Accumulators, combiner: Combiner) -> Stmt {
        let Shares { steps, each, .. } = shares;
        let blocks: Vec<Loop> =
            grid.blocks.iter().map(|l| Loop { var: self.new_var(self.var_name(l.var)), ..l.head() }).collect();
        let result = blocks.iter().fold(Index::constant(0), |at, l| at.times(l.extent()).plus(&Index::var(l.var)));
        let first_step = result.times(steps);
        let first = first_step.clone().floor_div(each);
        let last = first_step.plus_constant(steps - 1).floor_div(each);
        let dtype = self.buffer(accumulators.buffer).dtype;
        let sum = |indices: &[Index]| {
            let part = |of: TensorId, worker: Index| Expr::load(of, [&[worker], indices].concat());
            let begun = part(accumulators.unfinished, first.clone());
            let sum = (1..shares.most_parts() - 1).fold(begun, |sum, further| {
                let worker = first.clone().plus_constant(further);
                let is_between = Condition { index: last.clone().minus(&worker), low: 1, high: i64::MAX };
                // follows from the condition above, which the verifier's intervals do not show
                let exists = Condition { index: worker.clone(), low: 0, high: shares.workers() };
                let more = part(accumulators.unfinished, worker);
                let more = Expr::guard(vec![is_between, exists], more, typed_identity(combiner, dtype));
                Expr::binary(combiner.binary(), sum, more)
            });
            Expr::binary(combiner.binary(), sum, part(accumulators.finished, last.clone()))
        };
        let mut finish = self.again(&grid.finish);
        let renamed: Vec<(Var, Index)> =
            grid.blocks.iter().zip(&blocks).map(|(old, new)| (old.var, Index::var(new.var))).collect();
        replace_vars(&mut finish, &|var| renamed.iter().find(|(old, _)| *old == var).map(|(_, new)| new));
        change_exprs(&mut finish, &mut |value| {
            *value = value.map_loads(&mut |loaded, indices| (loaded == accumulators.buffer).then(|| sum(indices)));
        });
        let several = Condition { index: last.clone().minus(&first), low: 1, high: i64::MAX };
        let inside = vec![Stmt::If { conditions: vec![several], body: finish }];
        let mut nested = blocks.iter().rev().fold(inside, |body, l| vec![Stmt::Loop(l.around(body))]);
        nested.swap_remove(0)
    }
}

impl Grid {
    /// Takes a statement apart that is a grid, with the steps right in its blocks.
    fn of(statement: Stmt, steps: Var) -> Result<Grid, Refusal> {
        let mut blocks = Vec::new();
        let mut phases = vec![statement];
        while let [Stmt::Loop(l)] = phases.as_mut_slice()
            && l.kind == LoopKind::Block
        {
            blocks.push(l.head());
            phases = take(&mut l.body);
        }
        let is_steps = |statement: &Stmt| matches!(statement, Stmt::Loop(l) if l.var == steps);
        let at = phases.iter().position(is_steps).ok_or(Refusal::StepsOutsideBlocks(steps))?;
        let finish = phases.split_off(at + 1);
        let Some(Stmt::Loop(steps)) = phases.pop() else { return Err(Refusal::NoLoop(steps)) };
        if blocks.is_empty() {
            return Err(Refusal::StepsOutsideBlocks(steps.var));
        }
        if steps.kind != LoopKind::Serial {
            return Err(Refusal::NotSerial(steps.var));
        }
        let ragged = blocks.iter().chain([&steps]).find(|l| !l.is_constant()).map(|l| l.var);
        match ragged {
            Some(var) => Err(Refusal::NotConstant(var)),
            None => Ok(Grid { blocks, start: phases, steps, finish }),
        }
    }

    /// The registers that a block starts with literals and finishes with nothing but their values.
    fn accumulators(&self, nest: &Nest) -> Result<TensorId, Refusal> {
        let mut started = Vec::new();
        let mut otherwise = false;
        for_each_stmt(&self.start, &mut |statement| match statement {
            Stmt::Loop(l) => otherwise |= !l.is_constant(),
            Stmt::Store { buffer, value, .. } if literal(value) => started.push(*buffer),
            Stmt::If { .. } | Stmt::Store { .. } | Stmt::Accumulate { .. } => otherwise = true,
        });
        for_each_stmt(&self.finish, &mut |statement| {
            if let Stmt::Store { buffer, .. } | Stmt::Accumulate { buffer, .. } = statement {
                otherwise |= started.contains(buffer);
            }
        });
        match started[..] {
            [buffer] if !otherwise && nest.buffer(buffer).scope == Scope::Register => Ok(buffer),
            _ => Err(Refusal::NotOneAccumulator(self.steps.var)),
        }
    }

    /// The blocks' variables at a step, counted through all results of so many steps.
    fn points(&self, flat: &Index, steps: i64) -> Vec<(Var, Index)> {
        let mut below = steps;
        let mut points = Vec::new();
        for (number, l) in self.blocks.iter().enumerate().rev() {
            let digit = flat.clone().floor_div(below);
            points.push((l.var, if number > 0 { digit.modulo(l.extent()) } else { digit }));
            below *= l.extent();
        }
        points
    }
}

fn for_each_store(statements: &mut [Stmt], change: &mut dyn FnMut(&mut TensorId, &mut Vec<Index>, &mut Expr)) {
    for statement in statements {
        match statement {
            Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => for_each_store(body, change),
            Stmt::Store { buffer, indices, value } => change(buffer, indices, value),
            Stmt::Accumulate { .. } => {}
        }
    }
}
