//! Networks: ONNX in, a list of tasks and calls out.
//!
//! [`Program`] is a whole network as tensor expressions, one stage after the other; constant folding,
//! dead-code removal and fusion work on it. [`Network`] is what remains: distinct tasks, and calls that bind
//! their arguments to buffers.

mod data;
mod onnx;
mod lower;
mod fold;
mod evaluate;
mod validate;
mod fuse;

pub use data::{Bytes, TensorData};
pub use evaluate::EvaluateError;
pub use fuse::{NetworkError, NetworkEvaluateError, PartitionError, partition};
pub use lower::Problem;
pub use onnx::{
    DEFAULT_CONSTANT_BYTES, ImportError, ImportOptions, TensorProblem, UnsupportedNode, import, import_bytes,
    import_tensor,
};
pub use validate::ProgramError;

use crate::workload::{DType, Role, Stage, Tensor, TensorId, Workload};

/// A whole network as tensor expressions. Tensors of role `Input` and `Output` have names in `inputs` and
/// `outputs`, those of role `Constant` have data.
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub tensors: Vec<Tensor>,
    /// By tensor; `Some` for constants.
    pub data: Vec<Option<TensorData>>,
    pub stages: Vec<ProgramStage>,
    /// Names as in the ONNX file.
    pub inputs: Vec<(String, TensorId)>,
    /// Names as in the ONNX file. One tensor may have several.
    pub outputs: Vec<(String, TensorId)>,
}

impl Program {
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0 as usize]
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
}

#[derive(Clone, Debug)]
pub struct NetworkTask {
    /// For people: the ONNX operators and sizes, as in `conv_3x3_64x56x56_64`.
    pub name: String,
    pub workload: Workload,
    /// Number of calls.
    pub weight: usize,
    /// ONNX nodes of its first call.
    pub nodes: Vec<String>,
}

/// One run of a task's kernel. `arguments` bind the workload's inputs, constants and outputs, in the order of
/// its tensors.
#[derive(Clone, Debug)]
pub struct Call {
    pub task: usize,
    pub arguments: Vec<Binding>,
}

/// A dense part of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Binding {
    pub buffer: usize,
    /// In elements.
    pub offset: i64,
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
