//! Plans are held against what a block does, step by step.

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{BarrierPlan, for_each_access, plan, stmt_id};
use crate::codegen::gpu::matrices::deal_out;
use crate::codegen::gpu::phases::own_registers;
use crate::nest::{Buffer, Loop, LoopKind, Nest, Scope, Stmt, verify};
use crate::space::{Decision, Policy, Space};
use crate::target::{Gpu, Task};
use crate::workload::generate::{Limits, generate};
use crate::workload::{Binary, Combiner, DType, Expr, Index, Role, TensorId, Var};

/// A buffer, and the value of its first index: where that is a thread's own or loaded, -1 stands for all of
/// them.
type Place = (TensorId, i64);

/// Something that was done to a place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Done {
    place: Place,
    writes: bool,
    /// Of an asynchronous copy: the number of its group.
    group: Option<usize>,
}

/// A block that executes statements and finds out whether it may.
struct Block<'a> {
    nest: &'a Nest,
    plan: &'a BarrierPlan,
    values: BTreeMap<Var, i64>,
    /// Barriers passed.
    barriers: u64,
    /// Everything done so far, with the number of barriers before it was done last.
    done: BTreeMap<Done, u64>,
    /// Of each committed group: the barriers before a wait made it arrive.
    groups: Vec<Option<u64>>,
    /// Steps, so that no test is about nothing.
    phases: usize,
}

impl<'a> Block<'a> {
    fn run(
        nest: &'a Nest,
        plan: &'a BarrierPlan,
        statements: &[Stmt],
        values: BTreeMap<Var, i64>,
    ) -> Result<usize, String> {
        let mut block = Block { nest, plan, values, barriers: 0, done: BTreeMap::new(), groups: Vec::new(), phases: 0 };
        block.statements(statements)?;
        if block.plan.drains {
            block.wait(0);
        }
        match block.done.keys().any(|done| done.group.is_some_and(|group| !block.has_arrived(group, u64::MAX))) {
            true => Err("the block ends with copies under way".into()),
            false => Ok(block.phases),
        }
    }

    fn value(&self, index: &Index) -> i64 {
        index.at(&|var| self.values[&var]).unwrap()
    }

    fn statements(&mut self, statements: &[Stmt]) -> Result<(), String> {
        for statement in statements {
            let id = stmt_id(statement);
            if let Some(wait) = self.plan.barriers.get(&id) {
                wait.iter().for_each(|wait| self.wait(*wait as usize));
                self.barriers += 1;
            }
            match statement {
                Stmt::Loop(l) if l.kind == LoopKind::Thread => {
                    self.phase(l, self.plan.copies.contains(&id)).map_err(|what| {
                        format!("{what} in\n{}with {:?}", self.nest.show_statement(statement), self.values)
                    })?;
                }
                Stmt::Loop(l) => {
                    let count = l.bounds.iter().map(|bound| self.value(bound)).min().unwrap();
                    for i in 0..count {
                        self.values.insert(l.var, i);
                        self.statements(&l.body)?;
                    }
                }
                Stmt::If { conditions, body } => {
                    if conditions.iter().all(|c| (c.low..c.high).contains(&self.value(&c.index))) {
                        self.statements(body)?;
                    }
                }
                Stmt::Store { .. } | Stmt::Accumulate { .. } => {}
            }
            if self.plan.commits.contains(&id) {
                self.groups.push(None);
            }
        }
        Ok(())
    }

    fn wait(&mut self, left: usize) {
        let arrived = self.groups.len().saturating_sub(left);
        let now = self.barriers;
        self.groups[..arrived].iter_mut().for_each(|group| *group = group.or(Some(now)));
    }

    /// Whether a wait made a group arrive before one of the barriers that came before.
    fn has_arrived(&self, group: usize, barriers: u64) -> bool {
        self.groups.get(group).is_some_and(|at| at.is_some_and(|at| at < barriers))
    }

    fn phase(&mut self, l: &Loop, copies: bool) -> Result<(), String> {
        self.phases += 1;
        let mut own = Vec::new();
        for_each_access(&l.body, &mut |buffer, indices, writes| {
            if self.nest.buffer(buffer).scope == Scope::Register {
                return;
            }
            let known = |index: &&Index| !index.any_var(&|var| !self.values.contains_key(&var));
            let first = indices.first().filter(known).and_then(|index| index.at(&|var| self.values[&var]));
            let first = first.unwrap_or(-1);
            let group = (copies && writes).then_some(self.groups.len());
            own.push(Done { place: (buffer, first), writes, group });
        });
        for next in &own {
            for (before, at) in &self.done {
                let meet = before.place.0 == next.place.0
                    && (before.place.1 == next.place.1 || before.place.1 == -1 || next.place.1 == -1);
                if !meet || !(before.writes || next.writes) {
                    continue;
                }
                let ordered = match before.group {
                    None => *at < self.barriers,
                    Some(group) => self.has_arrived(group, self.barriers),
                };
                if !ordered {
                    let name = &self.nest.buffer(next.place.0).name;
                    let what = if before.group.is_some() { "a copy under way" } else { "another phase" };
                    return Err(format!("{name} {} meets {what}", next.place.1));
                }
            }
        }
        own.into_iter().for_each(|done| {
            self.done.insert(done, self.barriers);
        });
        Ok(())
    }
}

/// What stands in the innermost block loop, and values for the blocks' variables.
fn inside(statement: &Stmt, last: bool) -> (&[Stmt], BTreeMap<Var, i64>) {
    let mut values = BTreeMap::new();
    let mut statements = std::slice::from_ref(statement);
    while let [Stmt::Loop(l)] = statements
        && l.kind == LoopKind::Block
    {
        values.insert(l.var, if last { l.extent() - 1 } else { 0 });
        statements = &l.body;
    }
    (statements, values)
}

/// Four threads that sum products of elements that others have copied.
struct Pipe {
    stages: i64,
    rounds: i64,
    operands: usize,
    /// Iterations of a loop around the steps.
    outer: i64,
}

const THREADS: i64 = 4;

impl Pipe {
    fn nest(&self) -> Nest {
        let mut nest = Nest::default();
        let mut add = |name: String, shape: Vec<i64>, scope: Scope| {
            nest.buffers.push(Buffer::new(name, shape, DType::F32, scope));
            TensorId(nest.buffers.len() as u32 - 1)
        };
        let length = self.outer * self.rounds * THREADS;
        let out = add("out".into(), vec![THREADS], Scope::Argument(Role::Output));
        let sum = add("sum".into(), vec![THREADS], Scope::Register);
        let operands: Vec<(TensorId, TensorId)> = (0..self.operands)
            .map(|n| {
                let given = add(format!("x{n}"), vec![length], Scope::Argument(Role::Input));
                (given, add(format!("s{n}"), vec![THREADS], Scope::BlockShared))
            })
            .collect();
        let [block, outer, step] = ["block", "outer", "step"].map(|name| nest.new_var(name));
        let mut phase = |body: &dyn Fn(Index) -> Stmt| {
            let thread = nest.new_var("thread");
            looped(LoopKind::Thread, thread, THREADS, vec![body(Index::var(thread))])
        };
        let store =
            |buffer: TensorId, at: &Index, value: Expr| Stmt::Store { buffer, indices: vec![at.clone()], value };
        let begin = phase(&|at| store(sum, &at, Expr::float(0.0)));
        let first = Index::var(outer).times(self.rounds).plus(&Index::var(step)).times(THREADS);
        let mut body: Vec<Stmt> = operands
            .iter()
            .map(|(given, copy)| phase(&|at| store(*copy, &at, Expr::load(*given, vec![first.clone().plus(&at)]))))
            .collect();
        body.push(phase(&|at| {
            // of another thread
            let other = Index::constant(THREADS - 1).minus(&at);
            let read = operands.iter().map(|(_, copy)| Expr::load(*copy, vec![other.clone()]));
            let value = read.reduce(|x, y| Expr::binary(Binary::Multiply, x, y)).unwrap();
            Stmt::Accumulate { buffer: sum, indices: vec![at], combiner: Combiner::Sum, value }
        }));
        let end = phase(&|at| store(out, &at, Expr::load(sum, vec![at.clone()])));
        let steps = looped(LoopKind::Serial, step, self.rounds, body);
        let steps = looped(LoopKind::Serial, outer, self.outer, vec![steps]);
        nest.body = vec![looped(LoopKind::Block, block, 1, vec![begin, steps, end])];
        let copies: Vec<TensorId> = operands.into_iter().map(|(_, copy)| copy).collect();
        let nest = nest.pipeline(step, &copies, self.stages).unwrap();
        assert_eq!(verify(&nest, 4), Ok(()), "{nest}");
        own_registers(nest).unwrap()
    }

    fn is_steady(&self) -> bool {
        self.stages > 1 && self.rounds > self.stages + 1
    }
}

fn looped(kind: LoopKind, var: Var, extent: i64, body: Vec<Stmt>) -> Stmt {
    Stmt::Loop(Loop { var, bounds: vec![Index::constant(extent)], kind, body })
}

/// The barriers in a loop over more than one iteration that holds a condition, as the steps of a pipeline do.
fn of_steps(statements: &[Stmt], plan: &BarrierPlan) -> Vec<Option<u32>> {
    let mut found = Vec::new();
    for statement in statements {
        if let Stmt::Loop(l) = statement
            && l.kind == LoopKind::Serial
        {
            let is_steps = l.body.iter().any(|inner| matches!(inner, Stmt::If { .. }));
            let barriers = l.body.iter().filter_map(|inner| plan.barriers.get(&stmt_id(inner)).copied());
            found.extend(barriers.filter(|_| is_steps));
            found.extend(of_steps(&l.body, plan));
        }
    }
    found
}

#[test]
fn nothing_is_touched_before_it_arrived_and_a_step_has_one_barrier() {
    let (mut steady, mut phases) = (0, 0);
    for stages in 1..=5 {
        for rounds in [1, 2, 3, 4, 5, 6, 7, 9, 11, 16] {
            for (operands, outer) in [(1, 1), (2, 1), (1, 3), (2, 4)] {
                let pipe = Pipe { stages, rounds, operands, outer };
                let nest = pipe.nest();
                let (statements, values) = inside(&nest.body[0], false);
                let found = plan(&nest, statements).unwrap();
                let told = |what: String| format!("{stages} stages, {rounds} rounds: {what}\n{nest}\n{found:?}");
                let run = |plan: &BarrierPlan| Block::run(&nest, plan, statements, values.clone());
                phases += run(&found).unwrap_or_else(|what| panic!("{}", told(what)));
                assert_eq!(found.copies.is_empty(), stages == 1, "{}", told(String::new()));
                if !pipe.is_steady() {
                    continue;
                }
                steady += 1;
                let barriers = of_steps(statements, &found);
                assert_eq!(barriers, [Some(stages as u32 - 2)], "{}", told(String::new()));
                // less than this is too little; that no step ran over its loop's end, the planner does not
                // know
                for (place, wait) in found.barriers.iter().filter(|_| outer == 1) {
                    let mut weaker = found.clone();
                    weaker.barriers.remove(place);
                    assert!(run(&weaker).is_err(), "{}", told("a barrier too many".into()));
                    if let Some(wait) = wait {
                        weaker.barriers.insert(*place, Some(wait + 1));
                        assert!(run(&weaker).is_err(), "{}", told("a wait too long".into()));
                    }
                }
                for place in &found.commits {
                    let mut weaker = found.clone();
                    weaker.commits.remove(place);
                    assert!(run(&weaker).is_err(), "{}", told("a group too many".into()));
                }
            }
        }
    }
    assert!(steady >= 60 && phases > 5000, "{steady} {phases}");
}

struct Uniform(ChaCha8Rng);

impl Policy for Uniform {
    fn pick(&mut self, decision: &Decision) -> usize {
        self.0.random_range(0..decision.candidates.len())
    }
}

#[test]
fn plans_of_random_programs_hold() {
    let gpu = Gpu::from_toml(include_str!("../../../../targets/gpus/sm_80.toml")).unwrap();
    let (mut programs, mut phases, mut copies) = (0, 0, 0);
    for seed in 0..1500 {
        let task = Task { workload: generate(seed, Limits::SMALL), target: gpu.clone().into() };
        let (trace, nest) = Space::standard().drive(&task, &mut Uniform(ChaCha8Rng::seed_from_u64(seed)));
        let Ok(nest) = nest else { continue };
        let nest = own_registers(deal_out(nest).unwrap()).unwrap();
        programs += 1;
        for statement in &nest.body {
            for last in [false, true] {
                let (statements, values) = inside(statement, last);
                let found = plan(&nest, statements).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{nest}"));
                copies += found.copies.len();
                phases += Block::run(&nest, &found, statements, values)
                    .unwrap_or_else(|what| panic!("seed {seed}: {what}\n{trace}\n{nest}\n{found:?}"));
            }
        }
    }
    assert!(programs > 1000 && phases > 10_000 && copies > 200, "{programs} {phases} {copies}");
}
