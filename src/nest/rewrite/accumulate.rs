//! Reductions in registers, and the element-wise work that follows them.

use super::{Refusal, find_loop, find_loop_mut, for_each_stmt, replace_vars};
use crate::nest::{Buffer, Loop, LoopKind, Nest, Scope, Stmt, own_parameter};
use crate::target::gpu::WARP;
use crate::workload::{Combiner, Condition, DType, Expr, Index, Stage, TensorId, Var, identity};

/// How [`Nest::accumulate`] treats the reduction loops.
#[derive(Clone, Debug, Default)]
pub struct Reduction {
    /// The loop over reduction blocks around the place of accumulation, if the reduction is blocked, and the
    /// spatial loops between them.
    pub blocks: Option<Blocks>,
    /// Reduction loops whose iterations get accumulators of their own, combined at the end: vector lanes,
    /// independent chains, and threads of a block, which combine theirs in phases of their own.
    pub lanes: Vec<Var>,
}

/// A reduction that is cut into blocks.
#[derive(Clone, Debug)]
pub struct Blocks {
    pub var: Var,
    /// The loops inside of it, down to the place of accumulation itself.
    pub inside: Vec<Var>,
}

/// The chain of loops from the place of accumulation down to the statement.
pub(super) struct Chain {
    pub(super) loops: Vec<Loop>,
    pub(super) buffer: TensorId,
    pub(super) indices: Vec<Index>,
    pub(super) combiner: Combiner,
    pub(super) value: Expr,
}

/// The registers of an accumulation.
struct Registers {
    /// Of the tensor that is accumulated into.
    name: String,
    dtype: DType,
    combiner: Combiner,
    buffer: TensorId,
    /// The loops over all of them; and the same, but that every lane starts defined, also those that a ragged
    /// last step does not reach.
    all: Vec<Loop>,
    around: Vec<Loop>,
    /// Those of `around` whose iterations are combined at the end.
    lanes: Vec<Loop>,
    /// Those over places of the output.
    own: Vec<Loop>,
}

impl Registers {
    /// What accumulation starts from.
    fn zero(&self) -> Expr {
        identity(self.combiner, self.dtype)
    }
}

/// Where the registers are kept from one block of the reduction to the next.
struct Partial {
    /// The loop over blocks, and how many there are.
    blocks: Var,
    extent: i64,
    buffer: TensorId,
    indices: Vec<Index>,
}

impl Nest {
    /// Keeps the part of a reduction's output that one iteration of the loop `at` computes in registers, over
    /// all reduction loops inside of it; a following element-wise stage is computed as the registers are
    /// written back.
    ///
    /// ```text
    /// for i { for j { t[i, j] = 0 } }
    /// for io { for k { for ii { t[4*io + ii] += S } } }
    /// for i { y[i] = f(t[i]) }
    /// =>
    /// for io {
    ///     for ii { acc[ii] = 0 }
    ///     for k { for ii { acc[ii] += S } }
    ///     for ii { y[4*io + ii] = f(acc[ii]) }
    /// }
    /// ```
    ///
    /// Where the reduction is blocked around `at`, each thread keeps partial results from block to block, in
    /// the order in which registers are loaded, and the output is written after the last:
    ///
    /// ```text
    /// for io { for ko { for ki { for ii { t[4*io + ii] += S } } } }
    /// =>
    /// for io {
    ///     for ko {
    ///         if ko == 0 { for ii { acc[ii] = 0 } } else { for ii { acc[ii] = part[ii] } }
    ///         for ki { for ii { acc[ii] += S } }
    ///         if ko == last { for ii { y[4*io + ii] = f(acc[ii]) } } else { for ii { part[ii] = acc[ii] } }
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Refusal::NoLoop`]; [`Refusal::NotPerfect`] where the loops inside of `at` are not one chain that
    /// ends in an accumulation into `tensor`; [`Refusal::LanesOfBlocks`].
    pub fn accumulate(
        mut self,
        tensor: TensorId,
        at: Var,
        reduction: &Reduction,
        epilogue: Option<&Stage>,
    ) -> Result<Nest, Refusal> {
        let is_needed = epilogue.is_none_or(|stage| self.needed_elsewhere(tensor, stage.output));
        let place = find_loop_mut(&mut self.body, at).ok_or(Refusal::NoLoop(at))?;
        let chain = take_chain(&mut place.body, Some(tensor)).ok_or(Refusal::NotPerfect(at))?;
        let registers = self.registers(&chain, reduction);
        let partial = match &reduction.blocks {
            Some(blocks) => Some(self.partial_results(tensor, blocks, &registers)?),
            None => None,
        };
        let start = self.start(&registers, partial.as_ref());
        let step = Stmt::Accumulate {
            buffer: registers.buffer,
            indices: variables(&registers.all),
            combiner: chain.combiner,
            value: chain.value,
        };
        let steps = chain.loops.into_iter().rev().fold(vec![step], |body, l| vec![Stmt::Loop(Loop { body, ..l })]);

        let (mut phases, mut finish, result) = self.combined(&registers);
        finish.extend(epilogue.map(|stage| epilogue_store(stage, tensor, &chain.indices, &result)));
        if is_needed {
            finish.push(Stmt::Store { buffer: tensor, indices: chain.indices, value: result.clone() });
        }
        // of matrices, one statement at a time
        let single = registers.own.iter().any(|l| l.kind == LoopKind::Matrix);
        let parts = if single { finish.into_iter().map(|statement| vec![statement]).collect() } else { vec![finish] };
        for part in parts {
            phases.extend(self.copy_of_loops(&borrowed(&registers.own), part));
        }
        let finish = match partial {
            Some(partial) => self.unless_last(partial, &registers, phases, result),
            None => phases,
        };

        let place = find_loop_mut(&mut self.body, at).ok_or(Refusal::NoLoop(at))?;
        place.body = join([start, steps, finish]);
        drop_start(&mut self.body, tensor, &registers.zero(), at);
        if let Some(stage) = epilogue {
            drop_stage(&mut self.body, stage.output, at);
        }
        Ok(self)
    }

    /// Registers for what one iteration of the place of accumulation computes.
    fn registers(&mut self, chain: &Chain, reduction: &Reduction) -> Registers {
        let is_lane = |l: &Loop| reduction.lanes.contains(&l.var);
        let is_of_output = |l: &Loop| chain.indices.iter().any(|i| i.mentions(l.var));
        let of = |is_one: &dyn Fn(&Loop) -> bool| chain.loops.iter().filter(|l| is_one(l)).cloned().collect::<Vec<_>>();
        // in the order of the loops: those over threads come first
        let all = of(&|l| is_lane(l) || is_of_output(l));
        let whole =
            |l: &Loop| Loop { bounds: l.bounds[..if is_lane(l) { 1 } else { l.bounds.len() }].to_vec(), ..l.head() };
        let around: Vec<Loop> = all.iter().map(whole).collect();
        let lanes = around.iter().filter(|l| is_lane(l)).cloned().collect();
        let (name, dtype) = (self.buffer(chain.buffer).name.clone(), self.buffer(chain.buffer).dtype);
        let shape = all.iter().map(Loop::extent).collect();
        let buffer = self.add_buffer(Buffer::new(format!("{name}_acc"), shape, dtype, Scope::Register));
        Registers { name, dtype, combiner: chain.combiner, buffer, all, around, lanes, own: of(&is_of_output) }
    }

    /// The registers before the first step: nothing, or what is left of the block before.
    fn start(&mut self, registers: &Registers, partial: Option<&Partial>) -> Vec<Stmt> {
        let mut from = |value: Expr| {
            let store = Stmt::Store { buffer: registers.buffer, indices: variables(&registers.all), value };
            self.copy_of_loops(&borrowed(&registers.around), vec![store])
        };
        let Some(Partial { blocks, extent, buffer, indices }) = partial else { return from(registers.zero()) };
        let first = from(registers.zero());
        let further = from(Expr::load(*buffer, indices.clone()));
        vec![when(*blocks, 0, 1, first), when(*blocks, 1, *extent, further)]
    }

    /// The result of each place of the output: phases of threads that come before, statements inside of the
    /// loops over places, and where the result is then.
    fn combined(&mut self, registers: &Registers) -> (Vec<Stmt>, Vec<Stmt>, Expr) {
        let Registers { name, dtype, combiner, buffer, all, around, lanes, own } = registers;
        if lanes.is_empty() {
            return (Vec::new(), Vec::new(), Expr::load(*buffer, variables(own)));
        }
        if lanes.iter().any(|l| l.kind == LoopKind::Thread) {
            let of_all = (*buffer, *combiner);
            let (phases, result) = self.combine_threads(name, of_all, &borrowed(around), &borrowed(lanes));
            return (phases, Vec::new(), result);
        }
        let shape = own.iter().map(Loop::extent).collect();
        let sum = self.add_buffer(Buffer::new(format!("{name}_sum"), shape, *dtype, Scope::Register));
        let indices = variables(own);
        let first = Stmt::Store { buffer: sum, indices: indices.clone(), value: registers.zero() };
        let value = Expr::load(*buffer, variables(all));
        let add = Stmt::Accumulate { buffer: sum, indices: indices.clone(), combiner: *combiner, value };
        let combine = lanes.iter().rev().fold(vec![add], |body, l| vec![Stmt::Loop(l.around(body))]);
        (Vec::new(), join([vec![first], combine]), Expr::load(sum, indices))
    }

    /// `finish` after the last block; after the others, the result so far is kept.
    fn unless_last(
        &mut self,
        Partial { blocks, extent, buffer, indices }: Partial,
        registers: &Registers,
        finish: Vec<Stmt>,
        result: Expr,
    ) -> Vec<Stmt> {
        let keep = vec![Stmt::Store { buffer, indices, value: result }];
        let keep = self.copy_of_loops(&borrowed(&registers.own), keep);
        let left = find_loop(&self.body, blocks).and_then(|l| blocks_left(l, self.parameters.len()));
        match left {
            // the last of as many blocks as there are in this run
            Some(left) => [(1, 2, finish), (2, i64::MAX, keep)]
                .map(|(low, high, body)| {
                    let conditions = vec![Condition { index: left.clone(), low, high }];
                    Stmt::If { conditions, body }
                })
                .into(),
            None => vec![when(blocks, extent - 1, extent, finish), when(blocks, 0, extent - 1, keep)],
        }
    }

    /// Combines the registers of threads, those of a warp at a time, through shared memory: the phases, and
    /// where the result is then.
    ///
    /// ```text
    /// for r in 0..8 { thread for q in 0..32 { acc[y, r, q] } }                  threads r and q are lanes
    /// =>
    /// thread y { thread r { p[y, r] = 0 } }   thread y { thread r { thread q { p[y, r] += acc[y, r, q] } } }
    /// thread y { s[y] = 0 }                   thread y { thread r { s[y] += p[y, r] } }
    /// ```
    ///
    /// `loops` are all loops over the registers, `lanes` those among them whose iterations are combined.
    fn combine_threads(
        &mut self,
        name: &str,
        (acc, combiner): (TensorId, Combiner),
        loops: &[&Loop],
        lanes: &[&Loop],
    ) -> (Vec<Stmt>, Expr) {
        let dtype = self.buffer(acc).dtype;
        let indices = |loops: &[&Loop]| loops.iter().map(|l| Index::var(l.var)).collect::<Vec<_>>();
        let (mut phases, mut left, mut loops) = (Vec::new(), lanes, loops.to_vec());
        let mut result = Expr::load(acc, indices(&loops));
        while let [.., last] = left {
            let mut together = last.extent();
            let mut first = left.len() - 1;
            while first > 0 && together * left[first - 1].extent() <= WARP {
                first -= 1;
                together *= left[first].extent();
            }
            let combined = &left[first..];
            left = &left[..first];
            let inside = loops.clone();
            loops.retain(|l| !combined.iter().any(|lane| lane.var == l.var));
            let shape = loops.iter().map(|l| l.extent()).collect();
            let part = self.add_buffer(Buffer::new(format!("{name}_sum"), shape, dtype, Scope::BlockShared));
            let own = indices(&loops);
            let start = Stmt::Store { buffer: part, indices: own.clone(), value: identity(combiner, dtype) };
            phases.extend(self.copy_of_loops(&loops, vec![start]));
            let add = Stmt::Accumulate { buffer: part, indices: own.clone(), combiner, value: result };
            phases.extend(self.copy_of_loops(&inside, vec![add]));
            result = Expr::load(part, own);
        }
        (phases, result)
    }

    /// A thread's own buffer for what is in the registers at the end of a reduction block, and where in it
    /// they go: the loops inside of the blocks, then those over the registers.
    fn partial_results(
        &mut self,
        tensor: TensorId,
        Blocks { var, inside }: &Blocks,
        registers: &Registers,
    ) -> Result<Partial, Refusal> {
        let extent = extent_of(&self.body, *var)?;
        if !registers.lanes.is_empty() {
            return Err(Refusal::LanesOfBlocks(tensor));
        }
        let mut shape = inside.iter().map(|var| extent_of(&self.body, *var)).collect::<Result<Vec<i64>, _>>()?;
        shape.extend(registers.own.iter().map(Loop::extent));
        let indices = inside.iter().copied().chain(registers.own.iter().map(|l| l.var)).map(Index::var).collect();
        let name = format!("{}_part", registers.name);
        let buffer = self.add_buffer(Buffer::new(name, shape, registers.dtype, Scope::BlockShared));
        Ok(Partial { blocks: *var, extent, buffer, indices })
    }

    /// Appends a buffer.
    pub fn add_buffer(&mut self, buffer: Buffer) -> TensorId {
        self.buffers.push(buffer);
        TensorId(self.buffers.len() as u32 - 1)
    }

    /// The loops again, under new variables, around `body`.
    pub(crate) fn copy_of_loops(&mut self, loops: &[&Loop], body: Vec<Stmt>) -> Vec<Stmt> {
        let fresh: Vec<(Var, Index)> = loops
            .iter()
            .map(|l| {
                let name = format!("{}'", self.vars[l.var.0 as usize].trim_end_matches('\''));
                (l.var, Index::var(self.new_var(name)))
            })
            .collect();
        let by = |v: Var| fresh.iter().find(|(old, _)| *old == v).map(|(_, new)| new);
        let mut body = body;
        replace_vars(&mut body, &by);
        loops.iter().zip(&fresh).rev().fold(body, |body, (l, (_, new))| {
            let mut l = l.around(body);
            l.bounds.iter_mut().for_each(|bound| bound.replace_vars(&by));
            l.var = new.as_var().unwrap_or(l.var);
            vec![Stmt::Loop(l)]
        })
    }

    /// Whether a tensor is an output, or read by more than the stage that writes `reader`.
    fn needed_elsewhere(&self, tensor: TensorId, reader: TensorId) -> bool {
        if matches!(self.buffer(tensor).scope, Scope::Argument(_)) {
            return true;
        }
        let mut others = false;
        for_each_stmt(&self.body, &mut |stmt| {
            if let Stmt::Store { buffer, value, .. } | Stmt::Accumulate { buffer, value, .. } = stmt
                && *buffer != reader
            {
                value.for_each_load(&mut |loaded, _| others |= loaded == tensor);
            }
        });
        others
    }

    /// Whether a buffer is still read or written anywhere.
    pub fn uses(&self, buffer: TensorId) -> bool {
        self.used()[buffer.0 as usize]
    }

    /// The same of all buffers.
    pub(crate) fn used(&self) -> Vec<bool> {
        self.used_in(&[&self.setup, &self.body])
    }

    /// The same of the body alone.
    pub(crate) fn used_when_it_runs(&self) -> Vec<bool> {
        self.used_in(&[&self.body])
    }

    fn used_in(&self, parts: &[&[Stmt]]) -> Vec<bool> {
        let mut used = vec![false; self.buffers.len()];
        for stmts in parts.iter().copied() {
            for_each_stmt(stmts, &mut |stmt| {
                if let Stmt::Store { buffer, value, .. } | Stmt::Accumulate { buffer, value, .. } = stmt {
                    used[buffer.0 as usize] = true;
                    value.for_each_load(&mut |loaded, _| used[loaded.0 as usize] = true);
                }
            });
        }
        used
    }
}

fn variables(loops: &[Loop]) -> Vec<Index> {
    loops.iter().map(|l| Index::var(l.var)).collect()
}

fn borrowed(loops: &[Loop]) -> Vec<&Loop> {
    loops.iter().collect()
}

/// One list of statements out of several.
fn join<const N: usize>(parts: [Vec<Stmt>; N]) -> Vec<Stmt> {
    parts.into_iter().flatten().collect()
}

/// The statements where `low <= var < high`.
fn when(var: Var, low: i64, high: i64, body: Vec<Stmt>) -> Stmt {
    Stmt::If { conditions: vec![Condition { index: Index::var(var), low, high }], body }
}

/// How many iterations of a loop are left, itself included, where parameters say how many there are.
fn blocks_left(l: &Loop, parameters: usize) -> Option<Index> {
    let counts = l.bounds.iter().find(|bound| bound.any_var(&|var| (var.0 as usize) < parameters));
    counts.map(|count| count.clone().minus(&Index::var(l.var)))
}

fn extent_of(body: &[Stmt], var: Var) -> Result<i64, Refusal> {
    find_loop(body, var).map(Loop::extent).ok_or(Refusal::NoLoop(var))
}

/// Takes out the loops that lead to the accumulation into `tensor`, or into any, if there is nothing else.
pub(super) fn take_chain(body: &mut Vec<Stmt>, tensor: Option<TensorId>) -> Option<Chain> {
    let mut loops = Vec::new();
    let mut body = std::mem::take(body);
    loop {
        let only = body.pop().filter(|_| body.is_empty())?;
        match only {
            Stmt::Loop(mut l) => {
                body = std::mem::take(&mut l.body);
                loops.push(l);
            }
            Stmt::Accumulate { buffer, indices, combiner, value } if tensor.is_none_or(|tensor| buffer == tensor) => {
                return Some(Chain { loops, buffer, indices, combiner, value });
            }
            Stmt::If { .. } | Stmt::Store { .. } | Stmt::Accumulate { .. } => return None,
        }
    }
}

/// The store of an element-wise stage at the point where the element of `tensor` that it reads is `result`.
fn epilogue_store(stage: &Stage, tensor: TensorId, indices: &[Index], result: &Expr) -> Stmt {
    let at = |var: Var| own_parameter(var).or_else(|| indices.get(var.0 as usize).cloned());
    // axes first, since the registers' indices must not be renamed as if they were axes
    let value = stage.value.substitute(&at);
    let value = value.map_loads(&mut |loaded, _| (loaded == tensor).then(|| result.clone()));
    Stmt::Store { buffer: stage.output, indices: indices.to_vec(), value }
}

/// Drops the statements that start an accumulation, outside of the loop `at`.
fn drop_start(stmts: &mut Vec<Stmt>, tensor: TensorId, start: &Expr, at: Var) {
    prune(stmts, at, &|stmt| matches!(stmt, Stmt::Store { buffer, value, .. } if *buffer == tensor && value == start));
}

/// Drops the statements that write a tensor, outside of the loop `at`.
fn drop_stage(stmts: &mut Vec<Stmt>, output: TensorId, at: Var) {
    prune(stmts, at, &|stmt| matches!(stmt, Stmt::Store { buffer, .. } if *buffer == output));
}

/// Drops statements, and loops that are empty then; the loop `keep` is left alone.
fn prune(stmts: &mut Vec<Stmt>, keep: Var, drop: &dyn Fn(&Stmt) -> bool) {
    stmts.retain_mut(|stmt| match stmt {
        _ if drop(stmt) => false,
        Stmt::Loop(l) if l.var == keep => true,
        Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => {
            prune(body, keep, drop);
            !body.is_empty()
        }
        Stmt::Store { .. } | Stmt::Accumulate { .. } => true,
    });
}
