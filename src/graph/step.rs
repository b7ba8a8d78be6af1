//! What a program is made of beside stages: calls of the run-time library, branches and repetitions.
//!
//! ```text
//! t4 = sum 512 mul t2 ...                     stage
//! t5, t6 = top k 8 of 64 (t4)                 library call
//! if t7 { .. t10 } else { .. t13 } -> t14     branches: one of them runs
//! repeat 128 with t20 -> t21 = t24 -> t25 {   states: before, during, after an iteration, at last
//!     scan t15 as t22                         an element of the leading axis in each iteration
//!     ..
//!     collect t23 as t26
//! }
//! ```
//!
//! Steps inside of others see all tensors from outside. Every tensor is written at one place of the program.

use std::collections::{BTreeMap, BTreeSet};

use super::library::Routine;
use super::{ProgramStage, Symbols};
use crate::workload::{Expr, Index, TensorId};

/// One step of a program.
#[derive(Clone, Debug)]
pub enum Step {
    Stage(ProgramStage),
    Library(LibraryCall),
    If(Conditional),
    Repeat(Repeat),
}

/// What no loop nest computes.
#[derive(Clone, Debug)]
pub struct LibraryCall {
    /// With its sizes at most.
    pub routine: Routine,
    /// What they are in a run, in the order of [`Routine::sizes`]: formulas of the program's symbols; empty
    /// where they are fixed.
    pub sizes: Vec<Index>,
    pub inputs: Vec<TensorId>,
    pub outputs: Vec<TensorId>,
    /// The symbol whose value is the element of the last output, where the routine counts; calls inside of
    /// branches and repetitions do not.
    pub count: Option<usize>,
    pub node: String,
}

/// Two lists of steps, one of which runs.
#[derive(Clone, Debug)]
pub struct Conditional {
    /// A Boolean of one element.
    pub condition: TensorId,
    /// Where it is true, and where it is false.
    pub branches: [Branch; 2],
    /// In the order of the branches' results, with their shapes.
    pub outputs: Vec<TensorId>,
    pub node: String,
}

#[derive(Clone, Debug, Default)]
pub struct Branch {
    pub steps: Vec<Step>,
    /// Written by stages of the branch, each once, and not read by them.
    pub results: Vec<TensorId>,
}

/// Steps that run again and again.
#[derive(Clone, Debug)]
pub struct Repeat {
    /// At least 1; at most, where it is known only when the network runs.
    pub count: i64,
    /// What it is when the network runs, where that may be less: a formula of the program's symbols.
    pub formula: Option<Index>,
    /// The number of a state, a Boolean of one element: once it is false before an iteration, iterations hand
    /// on what they find, and need not run.
    pub going: Option<usize>,
    pub states: Vec<State>,
    pub scanned: Vec<Scanned>,
    pub collected: Vec<Collected>,
    pub body: Vec<Step>,
    pub node: String,
}

/// What one iteration leaves to the next; four tensors of one shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    /// Before the first iteration: written by a stage, read by nothing else.
    pub initial: TensorId,
    /// What an iteration reads.
    pub current: TensorId,
    /// Written by a stage of the body, not read there.
    pub next: TensorId,
    /// After the last iteration.
    pub last: TensorId,
}

/// A tensor of which each iteration reads one element of the leading axis, the last one first where
/// `reversed`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scanned {
    /// `[count, ..]`
    pub whole: TensorId,
    /// `[..]`
    pub part: TensorId,
    pub reversed: bool,
}

/// A tensor of which each iteration writes one element of the leading axis, the last one first where
/// `reversed`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Collected {
    /// `[..]`; written by a stage of the body, not read there.
    pub part: TensorId,
    /// `[count, ..]`
    pub whole: TensorId,
    pub reversed: bool,
}

/// What calls count.
#[derive(Debug)]
pub struct Counting<'s> {
    symbols: &'s Symbols,
    /// By symbol, what holds the count.
    tensors: BTreeMap<usize, TensorId>,
}

impl Counting<'_> {
    pub fn of<'s>(symbols: &'s Symbols, steps: &[Step]) -> Counting<'s> {
        let counted = steps.iter().filter_map(|step| match step {
            Step::Library(call) => call.count.zip(call.outputs.last().copied()),
            _ => None,
        });
        Counting { symbols, tensors: counted.collect() }
    }

    /// What holds the counts that a formula depends on.
    pub fn tensors_of(&self, formula: &Index) -> Vec<TensorId> {
        if self.tensors.is_empty() {
            return Vec::new();
        }
        let counts = self.symbols.counts_in(formula).into_iter();
        counts.filter_map(|symbol| self.tensors.get(&symbol).copied()).collect()
    }
}

/// Tensors that a value reads.
pub fn loaded(value: &Expr) -> BTreeSet<TensorId> {
    let mut loads = BTreeSet::new();
    value.for_each_load(&mut |tensor, _| {
        loads.insert(tensor);
    });
    loads
}

impl Step {
    pub fn stage(&self) -> Option<&ProgramStage> {
        if let Step::Stage(stage) = self { Some(stage) } else { None }
    }

    pub fn stage_mut(&mut self) -> Option<&mut ProgramStage> {
        if let Step::Stage(stage) = self { Some(stage) } else { None }
    }

    /// Operator and name of the ONNX node that it came from.
    pub fn node(&self) -> &str {
        match self {
            Step::Stage(ProgramStage { node, .. })
            | Step::Library(LibraryCall { node, .. })
            | Step::If(Conditional { node, .. })
            | Step::Repeat(Repeat { node, .. }) => node,
        }
    }

    /// The formulas of symbols that it depends on, those of the steps inside of it among them.
    pub fn for_each_formula(&self, visit: &mut dyn FnMut(&Index)) {
        match self {
            Step::Stage(held) => held.stage.for_each_formula(visit),
            Step::Library(call) => call.sizes.iter().for_each(&mut *visit),
            Step::If(_) => {}
            Step::Repeat(repeat) => repeat.formula.iter().for_each(&mut *visit),
        }
        self.blocks().into_iter().flatten().for_each(|inner| inner.for_each_formula(visit));
    }

    /// Tensors that are there when it is done, for what follows.
    pub fn outputs(&self) -> Vec<TensorId> {
        match self {
            Step::Stage(stage) => vec![stage.stage.output],
            Step::Library(call) => call.outputs.clone(),
            Step::If(branches) => branches.outputs.clone(),
            Step::Repeat(repeat) => {
                let last = repeat.states.iter().map(|state| state.last);
                last.chain(repeat.collected.iter().map(|collected| collected.whole)).collect()
            }
        }
    }

    /// Tensors from outside that it reads, each once.
    pub fn reads(&self) -> BTreeSet<TensorId> {
        let mut read = BTreeSet::new();
        match self {
            Step::Stage(stage) => read = loaded(&stage.stage.value),
            Step::Library(call) => read.extend(&call.inputs),
            Step::If(Conditional { condition, branches, .. }) => {
                read.insert(*condition);
                branches.iter().for_each(|branch| read.append(&mut read_from_outside(&branch.steps, &branch.results)));
            }
            Step::Repeat(repeat) => {
                read.append(&mut read_from_outside(&repeat.body, &[]));
                for state in &repeat.states {
                    read.remove(&state.current);
                    read.insert(state.initial);
                }
                for scanned in &repeat.scanned {
                    read.remove(&scanned.part);
                    read.insert(scanned.whole);
                }
            }
        }
        read
    }

    /// The lists of steps inside of it.
    pub fn blocks(&self) -> Vec<&Vec<Step>> {
        match self {
            Step::Stage(_) | Step::Library(_) => vec![],
            Step::If(branches) => branches.branches.iter().map(|branch| &branch.steps).collect(),
            Step::Repeat(repeat) => vec![&repeat.body],
        }
    }

    /// The same, to be changed.
    pub fn blocks_mut(&mut self) -> Vec<&mut Vec<Step>> {
        match self {
            Step::Stage(_) | Step::Library(_) => vec![],
            Step::If(branches) => branches.branches.iter_mut().map(|branch| &mut branch.steps).collect(),
            Step::Repeat(repeat) => vec![&mut repeat.body],
        }
    }

    /// Puts other names for all tensors that it names, inside of it, too.
    pub fn rename(&mut self, rename: &dyn Fn(TensorId) -> TensorId) {
        let all = |tensors: &mut Vec<TensorId>| tensors.iter_mut().for_each(|tensor| *tensor = rename(*tensor));
        match self {
            Step::Stage(ProgramStage { stage, .. }) => {
                stage.output = rename(stage.output);
                stage.value = stage.value.map_loads(&mut |tensor, indices| {
                    Some(crate::workload::Expr::load(rename(tensor), indices.to_vec()))
                });
            }
            Step::Library(call) => {
                all(&mut call.inputs);
                all(&mut call.outputs);
            }
            Step::If(branches) => {
                branches.condition = rename(branches.condition);
                all(&mut branches.outputs);
                branches.branches.iter_mut().for_each(|branch| all(&mut branch.results));
            }
            Step::Repeat(repeat) => {
                for State { initial, current, next, last } in &mut repeat.states {
                    [initial, current, next, last].into_iter().for_each(|tensor| *tensor = rename(*tensor));
                }
                for Scanned { whole, part, .. } in &mut repeat.scanned {
                    [whole, part].into_iter().for_each(|tensor| *tensor = rename(*tensor));
                }
                for Collected { whole, part, .. } in &mut repeat.collected {
                    [whole, part].into_iter().for_each(|tensor| *tensor = rename(*tensor));
                }
            }
        }
        self.blocks_mut().into_iter().flatten().for_each(|step| step.rename(rename));
    }
}

/// What steps read, and what else is wanted, that none of them writes.
fn read_from_outside(steps: &[Step], wanted: &[TensorId]) -> BTreeSet<TensorId> {
    let mut read: BTreeSet<TensorId> = wanted.iter().copied().collect();
    steps.iter().for_each(|step| read.append(&mut step.reads()));
    for written in steps.iter().flat_map(Step::outputs) {
        read.remove(&written);
    }
    read
}
