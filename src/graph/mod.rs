//! Networks: ONNX in, a list of tasks and calls out.
//!
//! [`Program`] is a whole network as tensor expressions, one stage after the other, some of them repeated or
//! under a condition; constant folding, dead-code removal and fusion work on it. [`Network`] is what remains:
//! distinct tasks, and calls that bind their arguments to buffers.

mod append;
mod bulky;
mod data;
mod carry;
mod hash;
mod points;
mod symbol;
mod variants;
mod step;
mod library;
mod onnx;
mod lower;
mod fold;
mod evaluate;
mod fork;
mod validate;
mod fuse;
mod short;
#[cfg(test)]
pub(crate) mod samples;

pub use carry::{Appended, Carried, CarryError};
pub use data::{Bytes, TensorData};
pub use evaluate::EvaluateError;
pub use fork::{Fork, MOST_STRANDS};
pub use fuse::{
    Concern, Kind as PlanKind, NetworkError, NetworkEvaluateError, PartitionError, Plan, Planned, Prefer,
    bound_tensors, partition, partition_as, partition_with,
};
pub use library::{Reduction, Routine};
pub use lower::Problem;
pub use onnx::{
    DEFAULT_CONSTANT_BYTES, Dim, ImportError, ImportOptions, TensorProblem, UnsupportedNode, import, import_bytes,
    import_tensor, open_dims,
};
pub use points::PointError;
pub use short::Products;
pub use step::{Branch, Collected, Conditional, LibraryCall, Repeat, Scanned, State, Step};
pub use symbol::{ExtentError, Origin, Requirement, Symbol, Symbols, at as value_at};
pub use tilescribe_runtime::Precision;
pub use validate::ProgramError;

use std::ops::Range;

use crate::workload::{DType, Extents, Index, Parameter, Role, Stage, Tensor, TensorId, Workload, reach_of_part};

/// A whole network as tensor expressions. Tensors of role `Input` and `Output` have names in `inputs` and
/// `outputs`, those of role `Constant` have data.
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub tensors: Vec<Tensor>,
    /// By tensor; `Some` for constants.
    pub data: Vec<Option<TensorData>>,
    /// In execution order.
    pub steps: Vec<Step>,
    /// Names as in the ONNX file.
    pub inputs: Vec<(String, TensorId)>,
    /// Names as in the ONNX file. One tensor may have several.
    pub outputs: Vec<(String, TensorId)>,
    /// Numbers that extents and indices are formulas of.
    pub symbols: Symbols,
    /// Outputs that the next run has as inputs.
    pub carried: Vec<Carried>,
    /// What [`Program::shorten`] was asked for.
    pub precision: Precision,
}

impl Program {
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0 as usize]
    }

    /// The stages that run once, unconditionally.
    pub fn stages(&self) -> impl Iterator<Item = &ProgramStage> {
        self.steps.iter().filter_map(Step::stage)
    }

    /// Appends a stage.
    pub fn add_stage(&mut self, stage: Stage, node: impl Into<String>) {
        self.steps.push(Step::Stage(ProgramStage { stage, node: node.into() }));
    }

    /// Appends a tensor; constants get their data from whoever adds them.
    pub fn add_tensor(&mut self, shape: Vec<i64>, dtype: DType, role: Role) -> TensorId {
        self.tensors.push(Tensor::new(shape, dtype, role));
        self.data.push(None);
        TensorId(self.tensors.len() as u32 - 1)
    }

    /// Appends a constant.
    pub fn add_constant(&mut self, data: TensorData) -> TensorId {
        let tensor = self.add_tensor(data.shape.clone(), data.dtype, Role::Constant);
        self.data[tensor.0 as usize] = Some(data);
        tensor
    }
}

/// A stage, and the ONNX node that it came from.
#[derive(Clone, Debug)]
pub struct ProgramStage {
    pub stage: Stage,
    /// Operator and name, as in `Conv layer1.conv2`.
    pub node: String,
}

/// A network, cut into tasks.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// Distinct by canonical hash.
    pub tasks: Vec<NetworkTask>,
    /// In execution order.
    pub calls: Vec<Call>,
    pub buffers: Vec<NetworkBuffer>,
    /// Calls that run again and again, or under a condition. Ranges lie apart or inside of one another; they
    /// are sorted by where they start, outer ones first.
    pub regions: Vec<Region>,
    /// Calls that may run at the same time, in the order of calls.
    pub forks: Vec<Fork>,
    /// Numbers that are known when it runs, which extents of buffers are formulas of.
    pub symbols: Symbols,
    /// Outputs that the next run has as inputs: by position among the buffers of either kind.
    pub carried: Vec<Carried>,
    /// What products by weights, and those of attention, are computed in, where the network does not say so.
    pub precision: Precision,
    /// What was decided when it was cut, in the order in which it was.
    pub planned: Vec<Planned>,
}

#[derive(Clone, Debug)]
pub struct NetworkTask {
    /// For people: the ONNX operators and sizes, as in `conv_3x3_64x56x56_64`.
    pub name: String,
    pub workload: Workload,
    /// How often it is called in a run, iterations counted; of those whose number is known only then, what is
    /// usual, or the most.
    pub weight: usize,
    /// ONNX nodes of its first call.
    pub nodes: Vec<String>,
}

/// What a call runs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Callee {
    /// The kernel of a task, by its number.
    Task(usize),
    Library(Routine),
}

/// One run of a kernel or of a routine. `arguments` bind a workload's inputs, constants and outputs, in the
/// order of its tensors; or a routine's inputs, then its outputs.
#[derive(Clone, Debug)]
pub struct Call {
    pub callee: Callee,
    pub arguments: Vec<Binding>,
    /// What the parameters of the task's workload are, or the routine's sizes where these are not fixed:
    /// formulas of the network's symbols.
    pub parameters: Vec<Index>,
    /// The symbol that is counted by the routine: it is the element of its last argument.
    pub count: Option<usize>,
}

impl Call {
    /// The number of the task that it runs, if it runs one.
    pub fn task(&self) -> Option<usize> {
        if let Callee::Task(task) = self.callee { Some(task) } else { None }
    }

    /// The ranges of the numbers that it gives: parameters of its task, or sizes of its routine, which are
    /// given where any of them is known only when it runs.
    pub fn numbers(&self, tasks: &[NetworkTask]) -> Vec<Parameter> {
        match &self.callee {
            Callee::Task(task) => tasks.get(*task).map_or(Vec::new(), |task| task.workload.parameters.clone()),
            Callee::Library(_) if self.parameters.is_empty() => Vec::new(),
            Callee::Library(routine) => routine.sizes().into_iter().map(|high| Parameter { low: 0, high }).collect(),
        }
    }
}

/// How far an argument of a call reaches, from where it is bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reach {
    pub is_written: bool,
    /// In elements; at most.
    pub elements: i64,
    pub dtype: DType,
    /// Whether it is a part of each row, between those of others.
    pub is_part: bool,
}

impl Network {
    /// Whether computed conditions alone end some of its repetitions: of inputs that mean nothing, a run may
    /// never end.
    pub fn may_run_forever(&self) -> bool {
        let is_unbounded =
            |region: &Region| matches!(region.kind, RegionKind::Repeat { count, .. } if count > lower::MAX_ITERATIONS);
        self.regions.iter().any(is_unbounded)
    }

    /// The reaches of a call's arguments, in their order.
    pub fn reaches(&self, call: &Call) -> Vec<Reach> {
        match &call.callee {
            Callee::Task(task) => {
                let workload = &self.tasks[*task].workload;
                let of = |(id, tensor): (TensorId, &Tensor)| Reach {
                    is_written: tensor.role == Role::Output,
                    elements: reach_of_part(&workload.touched(id), &tensor.shape),
                    dtype: tensor.dtype,
                    is_part: workload.part_of(id).is_some(),
                };
                bound_tensors(workload).map(of).collect()
            }
            Callee::Library(routine) => {
                let of = |is_written| move |(elements, dtype)| Reach { is_written, elements, dtype, is_part: false };
                let inputs = routine.inputs().into_iter().map(of(false));
                inputs.chain(routine.outputs().into_iter().map(of(true))).collect()
            }
        }
    }
}

/// A dense part of a buffer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Binding {
    pub buffer: usize,
    /// In elements; where extents are what they are at most.
    pub offset: i64,
    /// Where extents are what they are at most.
    pub motion: Motion,
    pub run_time: RunTime,
}

/// What the numbers of a binding are in a run, where they are less than at most: formulas of the network's
/// symbols.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct RunTime {
    pub offset: Option<Index>,
    /// Negative where the binding moves backwards.
    pub step: Option<Index>,
}

impl Binding {
    /// A part that stays where it is.
    pub fn fixed(buffer: usize, offset: i64) -> Binding {
        Binding { buffer, offset, motion: Motion::default(), run_time: RunTime::default() }
    }

    /// The binding where symbols have these values.
    #[must_use]
    pub fn at(&self, values: &[i64]) -> Binding {
        let set = |number: i64, formula: &Option<Index>| {
            formula.as_ref().and_then(|formula| value_at(formula, values)).unwrap_or(number)
        };
        let motion = Motion { step: set(self.motion.step, &self.run_time.step), ..self.motion };
        Binding { offset: set(self.offset, &self.run_time.offset), motion, ..Binding::fixed(self.buffer, 0) }
    }

    /// Its offset as a formula.
    pub fn offset_formula(&self) -> Index {
        self.run_time.offset.clone().unwrap_or(Index::constant(self.offset))
    }

    /// The part that begins so many elements later, by a formula and at most.
    #[must_use]
    pub fn later(&self, formula: &Index, most: i64) -> Binding {
        let offset = Some(self.offset_formula().plus(formula)).filter(|offset| offset.as_constant().is_none());
        let run_time = RunTime { offset, ..self.run_time.clone() };
        Binding { offset: self.offset + most, run_time, ..self.clone() }
    }

    /// Its offset in an iteration of the repetition around the call, in elements.
    pub fn offset_at(&self, iteration: i64) -> i64 {
        self.offset + self.motion.elements(iteration)
    }
}

/// How a binding moves with the iterations of the repetition around it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Motion {
    /// In elements; 0 where it does not move.
    pub step: i64,
    /// After so many iterations it is where it was; 0: it never comes back.
    pub period: i64,
    /// The iteration at whose place it starts.
    pub phase: i64,
}

impl Motion {
    /// How far it has come, in elements.
    pub fn elements(&self, iteration: i64) -> i64 {
        let place = iteration + self.phase;
        self.step * if self.period > 0 { place % self.period } else { place }
    }
}

/// Iterations that a repetition is taken to have which a computed condition ends: nothing tells before it
/// runs.
const UNTIL_CONDITION_ENDS: i64 = 64;

/// Calls that belong together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// Never empty.
    pub calls: Range<usize>,
    pub kind: RegionKind,
}

impl Region {
    /// Whether only a run says how often its calls run.
    pub fn is_open(&self) -> bool {
        match &self.kind {
            RegionKind::Repeat { formula, going, .. } => formula.is_some() || going.is_some(),
            RegionKind::If { .. } | RegionKind::Nearest { .. } => false,
        }
    }

    /// The Boolean that decides whether its calls run.
    pub fn condition(&self) -> Option<&Binding> {
        match &self.kind {
            RegionKind::Repeat { going, .. } => going.as_ref(),
            RegionKind::If { condition, .. } => Some(condition),
            RegionKind::Nearest { .. } => None,
        }
    }

    /// How often its calls are taken to run where the extents are the greatest.
    pub fn expected_iterations(&self) -> i64 {
        match &self.kind {
            RegionKind::Repeat { count, going: Some(_), .. } => (*count).min(UNTIL_CONDITION_ENDS),
            RegionKind::Repeat { count, .. } => *count,
            RegionKind::If { .. } | RegionKind::Nearest { .. } => 1,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RegionKind {
    /// They run so often, at least once; `count` is what it is at most where `formula` says how often they do
    /// when the network runs. Once the Boolean `going` is false before an iteration, the others change
    /// nothing, but for the half of their memory that states are in: two at a time are left out. No
    /// repetition is inside of another one.
    Repeat { count: i64, formula: Option<Index>, going: Option<Binding> },
    /// They run if the Boolean is what is wanted. The other branch, if there is one, follows at once.
    If { condition: Binding, wanted: bool },
    /// One of the calls runs, all of which compute the same: that whose point their parameters are nearest
    /// to. How far they are from a point is the product of the ratios, whichever way they are greater than 1;
    /// of two that are as far, the first. Points are given with the position of their call.
    Nearest { points: Vec<(usize, Vec<i64>)> },
}

#[derive(Clone, Debug)]
pub struct NetworkBuffer {
    /// At most.
    pub shape: Vec<i64>,
    /// By dimension: extents that may be less than those of the shape.
    pub extents: Extents,
    pub dtype: DType,
    pub source: Source,
}

#[derive(Clone, Debug)]
pub enum Source {
    Input(String),
    Output(String),
    Constant(TensorData),
    Intermediate,
}
