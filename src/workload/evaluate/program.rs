//! A stage as a flat program over registers. A register holds the values of a block of points, its *lanes*.

use crate::workload::{Binary, Combiner, DType, TensorId, Unary};

/// A stage, compiled.
pub(super) struct Program {
    /// Extents of the axes that lanes run over, flattened in row-major order; and of those that are one
    /// number for a block.
    pub lane_extents: Vec<usize>,
    pub scalar_extents: Vec<usize>,
    /// Whether the lanes are outputs (otherwise they are points of the reduction).
    pub lanes_are_outputs: bool,
    pub combiner: Option<Combiner>,
    /// Of the result.
    pub dtype: DType,
    pub affines: Vec<Affine>,
    pub code: Vec<Instruction>,
    pub result: Root,
    pub floats: usize,
    pub integers: usize,
}

/// `constant + Σ coefficient · axis`, split by the two kinds of axes.
#[derive(Clone, PartialEq)]
pub(super) struct Affine {
    pub constant: i64,
    pub lane: Vec<i64>,
    pub scalar: Vec<i64>,
}

/// What a stage's value is.
pub(super) enum Root {
    Register(Register),
    /// A sum of products of elements of two tensors of floats, as f32.
    Product([Factor; 2]),
}

/// An element, or `outside` where a test fails: a padded operand.
pub(super) struct Factor {
    pub load: AffineLoad,
    pub tests: Vec<AffineTest>,
    pub outside: f64,
}

/// `low <= affine < high`
pub(super) struct AffineTest {
    pub affine: usize,
    pub low: i64,
    pub high: i64,
}

#[derive(Clone, Copy)]
pub(super) enum Register {
    Float(usize),
    /// Booleans are 0 and 1.
    Integer(usize),
}

#[derive(Clone, Copy)]
pub(super) struct AffineLoad {
    pub tensor: TensorId,
    /// Of the element's position in the tensor.
    pub affine: usize,
}

/// The destination is never among the operands.
pub(super) enum Instruction {
    Literal {
        out: usize,
        value: f64,
    },
    /// Integers: the value of an affine index.
    Affine {
        out: usize,
        affine: usize,
    },
    FloorDiv {
        out: usize,
        x: usize,
        divisor: i64,
    },
    Modulo {
        out: usize,
        x: usize,
        divisor: i64,
    },
    /// `out = x + y · coefficient`
    AddScaled {
        out: usize,
        x: usize,
        y: usize,
        coefficient: i64,
    },
    /// Fails where `x` is not in `0..extent`.
    Check {
        x: usize,
        extent: i64,
        tensor: TensorId,
        dimension: usize,
    },
    Load {
        out: Register,
        load: AffineLoad,
    },
    /// Loads at the positions in an integer register.
    Gather {
        out: Register,
        tensor: TensorId,
        positions: usize,
    },
    Unary {
        op: Unary,
        out: usize,
        x: usize,
    },
    UnaryInteger {
        op: Unary,
        dtype: DType,
        out: usize,
        x: usize,
    },
    Binary {
        op: Binary,
        out: usize,
        x: usize,
        y: usize,
    },
    /// The type is that of the operands.
    BinaryInteger {
        op: Binary,
        dtype: DType,
        out: usize,
        x: usize,
        y: usize,
    },
    /// Floats to a Boolean.
    Compare {
        op: Binary,
        out: usize,
        x: usize,
        y: usize,
    },
    Select {
        condition: usize,
        out: Register,
        yes: Register,
        no: Register,
    },
    Guard {
        conditions: Vec<Test>,
        inside: Vec<Instruction>,
        yes: Register,
        outside: Vec<Instruction>,
        no: Register,
        out: Register,
    },
    Round {
        out: usize,
        x: usize,
        dtype: DType,
    },
    Wrap {
        out: usize,
        x: usize,
        dtype: DType,
    },
    ToInteger {
        out: usize,
        x: usize,
        dtype: DType,
    },
    /// The same bits in another type.
    Bits {
        out: Register,
        x: Register,
        from: DType,
        dtype: DType,
    },
    ToFloat {
        out: usize,
        x: usize,
        from: DType,
        dtype: DType,
    },
}

/// `low <= value < high`
pub(super) struct Test {
    pub value: Value,
    pub low: i64,
    pub high: i64,
}

/// An integer for each lane.
pub(super) enum Value {
    Affine(usize),
    Register(usize),
}
