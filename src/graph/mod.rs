//! Networks: ONNX in, a list of tasks and calls out.
//!
//! [`Program`] is a whole network as tensor expressions, one stage after the other, some of them repeated or
//! under a condition; constant folding, dead-code removal and fusion work on it. [`Network`] is what remains:
//! distinct tasks, and calls that bind their arguments to buffers.

mod data;
mod step;
mod library;
mod onnx;
mod lower;
mod fold;
mod evaluate;
mod validate;
mod fuse;

pub use data::{Bytes, TensorData};
pub use evaluate::EvaluateError;
pub use fuse::{NetworkError, NetworkEvaluateError, PartitionError, bound_tensors, partition};
pub use library::{Reduction, Routine};
pub use lower::Problem;
pub use onnx::{
    DEFAULT_CONSTANT_BYTES, ImportError, ImportOptions, TensorProblem, UnsupportedNode, import, import_bytes,
    import_tensor,
};
pub use step::{Branch, Collected, Conditional, LibraryCall, Repeat, Scanned, State, Step};
pub use validate::ProgramError;

use std::ops::Range;

use crate::workload::{DType, Role, Stage, Tensor, TensorId, Workload};

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
        self.tensors.push(Tensor { shape, dtype, role });
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
}

#[derive(Clone, Debug)]
pub struct NetworkTask {
    /// For people: the ONNX operators and sizes, as in `conv_3x3_64x56x56_64`.
    pub name: String,
    pub workload: Workload,
    /// How often it is called in a run, iterations counted.
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
}

impl Call {
    /// The number of the task that it runs, if it runs one.
    pub fn task(&self) -> Option<usize> {
        if let Callee::Task(task) = self.callee { Some(task) } else { None }
    }
}

/// A dense part of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Binding {
    pub buffer: usize,
    /// In elements.
    pub offset: i64,
    pub motion: Motion,
}

impl Binding {
    /// A part that stays where it is.
    pub fn fixed(buffer: usize, offset: i64) -> Binding {
        Binding { buffer, offset, motion: Motion::default() }
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

/// Calls that belong together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// Never empty.
    pub calls: Range<usize>,
    pub kind: RegionKind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RegionKind {
    /// They run so often, at least once. No repetition is inside of another one.
    Repeat { count: i64 },
    /// They run if the Boolean is what is wanted. The other branch, if there is one, follows at once.
    If { condition: Binding, wanted: bool },
}

#[derive(Clone, Debug)]
pub struct NetworkBuffer {
    pub shape: Vec<i64>,
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
