//! What can be wrong with a model: all of it the file's fault, or the environment's where it cannot be read.

use std::path::PathBuf;

use thiserror::Error;

use crate::graph::lower::Problem;

/// A node with an operator that we do not know.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct UnsupportedNode {
    /// Empty for ONNX's own domain.
    pub domain: String,
    pub operator: String,
    /// The node's name, or its first output's where it has none.
    pub node: String,
}

/// Why a model cannot be imported.
#[derive(Debug, Error)]
pub enum ImportError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the model has {bytes} bytes; at most 2 GiB are supported (larger weights belong into external data)")]
    FileTooLarge { bytes: u64 },
    #[error("this is no ONNX model, or it is cut off: {0}")]
    Malformed(#[from] prost::DecodeError),
    #[error("this is no ONNX model: it holds no graph")]
    NoGraph,
    #[error("the model imports no ONNX operator set")]
    NoOpset,
    #[error("operator set {found} is not supported; {oldest} to {newest} are", oldest = super::OLDEST_OPSET, newest = super::NEWEST_OPSET)]
    Opset { found: i64 },
    #[error("{}", list_unsupported(.0))]
    Unsupported(Vec<UnsupportedNode>),
    #[error("the network has no open dimension {}; {}", .unknown.join(", "), list_open(.open))]
    UnknownDims { unknown: Vec<String>, open: Vec<String> },
    #[error(
        "dimension {name} was given as {low} to {high}; a single extent is at least 1, and ends are in order, from 0 to 2^31 - 1, with points between them"
    )]
    BadDim { name: String, low: i64, high: i64 },
    #[error("the network has no input {unknown}; it has {}", .known.join(", "))]
    UnknownInput { unknown: String, known: Vec<String> },
    #[error("input {input} cannot be a constant: {reason}")]
    BadConstant { input: String, reason: String },
    #[error("input {input} is not a tensor with a known number of dimensions")]
    InputType { input: String },
    #[error(
        "{what} {name} has element type {code}, which is not supported (float, float16, bfloat16, double, int8, uint8, int16, uint16, int32, uint32, int64, uint64 and bool are)"
    )]
    ElementType { what: &'static str, name: String, code: i32 },
    #[error("two values are called {name}")]
    Duplicate { name: String },
    #[error("node {node} reads {value}, which nothing provides")]
    Dangling { node: String, value: String },
    #[error("the graph is cyclic: {}", .0.join(" -> "))]
    Cycle(Vec<String>),
    #[error(
        "graphs and functions inside of one another come to more than {nodes} nodes, or are deeper than {depth}; that is too much"
    )]
    TooMuch { depth: usize, nodes: usize },
    #[error("output {name} is provided by nothing")]
    NoOutput { name: String },
    #[error("the network has no output")]
    NoOutputs,
    #[error("tensor {tensor}: {problem}")]
    Tensor { tensor: String, problem: TensorProblem },
    #[error("node {node}: {problem}")]
    Node { node: String, problem: Problem },
    #[error("input {input}: {problem}")]
    Input { input: String, problem: Problem },
    #[error("output {output}: {problem}")]
    Output { output: String, problem: Problem },
}

/// Why the elements of a tensor cannot be had.
#[derive(Debug, Error)]
pub enum TensorProblem {
    #[error("{0}")]
    Shape(Problem),
    #[error("shape {shape:?} needs {expected} bytes, there are {found}")]
    Size { shape: Vec<i64>, expected: u64, found: u64 },
    #[error("external data is not allowed here: the model was not read from a file")]
    NoFolder,
    #[error("external data has no location")]
    NoLocation,
    #[error("the location {0:?} of external data leaves the model's folder")]
    Location(String),
    #[error("{key} = {value:?} of external data is not a number of bytes")]
    Number { key: &'static str, value: String },
    #[error("external data at {offset} with {length} bytes is beyond the end of {}, which has {file}", path.display())]
    Range { path: PathBuf, offset: u64, length: u64, file: u64 },
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
}

fn list_unsupported(nodes: &[UnsupportedNode]) -> String {
    let mut text = format!("unsupported operators in {} of the nodes:", nodes.len());
    for UnsupportedNode { domain, operator, node } in nodes {
        let domain = if domain.is_empty() { "ai.onnx" } else { domain };
        text.push_str(&format!("\n  {domain}.{operator} in node {node}"));
    }
    text
}

fn list_open(names: &[String]) -> String {
    if names.is_empty() { "all its extents are fixed".to_string() } else { format!("it has {}", names.join(", ")) }
}
