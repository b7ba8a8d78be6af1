//! ONNX files in, [`Program`]s out.
//!
//! Nothing in a file is trusted. Its messages are decoded from a mapping of the file, so that weights are
//! held once; every name, shape and offset is checked before it is used; each error names the node or tensor.

mod axes;
mod body;
mod constant;
mod control;
mod counting;
mod dims;
mod error;
mod network;
mod order;
mod proto;
mod repetition;
mod runs;
mod scan;
mod sequence;
mod spelled;
mod tensor;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use prost::Message;
use prost::bytes::Bytes;

pub use dims::Dim;
pub use error::{ImportError, TensorProblem, UnsupportedNode};

use self::body::Functions;
use self::dims::OpenDims;
use self::network::{Import, inputs_of};
use self::proto::{FunctionProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto};
use self::sequence::is_sequence;
use self::tensor::{ExternalFiles, map_file, tensor_data};
use super::lower;
use super::{Program, TensorData};

/// Operator sets between these, both included, are understood.
pub const OLDEST_OPSET: i64 = 7;
pub const NEWEST_OPSET: i64 = 27;

/// Protobuf's own limit.
const MAX_FILE_BYTES: u64 = 1 << 31;

/// What a file leaves open, and how much it may take.
#[derive(Clone, PartialEq, Debug)]
pub struct ImportOptions {
    /// What extents symbolic dimensions have, by name. One that has no name of its own (`?`, `-1`, or
    /// nothing) is called `input[axis]`, as in `x[0]`; so is one that the file fixes, which may be given,
    /// too. Those that are not given are known when the network runs: from 1 to 64 for a leading axis, to
    /// 2048 for others, to 524,288 for the samples of a signal, or what of that the network can do with.
    pub dims: BTreeMap<String, Dim>,
    /// Inputs that are this number in every run, in all of their elements: they become constants. Booleans
    /// are 0 or 1.
    pub constants: BTreeMap<String, f64>,
    /// Maximum number of bytes of all constants that import computes out of nothing. Those of the file do not
    /// count, nor do two other forms of each (transposed, scaled).
    pub constant_bytes: u64,
}

/// [`ImportOptions::constant_bytes`] by default: 2 GiB.
pub const DEFAULT_CONSTANT_BYTES: u64 = 1 << 31;

impl Default for ImportOptions {
    fn default() -> ImportOptions {
        ImportOptions { dims: BTreeMap::new(), constants: BTreeMap::new(), constant_bytes: DEFAULT_CONSTANT_BYTES }
    }
}

/// Reads a model; external data has to lie in its folder.
///
/// # Errors
/// [`ImportError`]; unsupported operators come first, all at once, then dimensions that are given and not
/// there.
pub fn import(path: &Path, options: &ImportOptions) -> Result<Program, ImportError> {
    let read = |source| ImportError::Read { path: path.to_path_buf(), source };
    let bytes = std::fs::metadata(path).map_err(read)?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(ImportError::FileTooLarge { bytes });
    }
    import_model(map_file(path).map_err(read)?, ExternalFiles::beside(Some(path)), options)
}

/// Reads a model that is already in memory, without external data.
///
/// # Errors
/// As for [`import`].
pub fn import_bytes(bytes: Bytes, options: &ImportOptions) -> Result<Program, ImportError> {
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(ImportError::FileTooLarge { bytes: bytes.len() as u64 });
    }
    import_model(bytes, ExternalFiles::beside(None), options)
}

/// Reads a single tensor (a `TensorProto`), the form in which ONNX's own tests keep inputs and expected
/// outputs.
///
/// # Errors
/// [`ImportError`] where the file cannot be read, or holds no tensor of a supported type.
pub fn import_tensor(path: &Path) -> Result<TensorData, ImportError> {
    let read = |source| ImportError::Read { path: path.to_path_buf(), source };
    let proto = TensorProto::decode(map_file(path).map_err(read)?)?;
    tensor_data(&proto, &mut ExternalFiles::beside(Some(path)), "tensor")
}

/// The names of the dimensions that a model leaves open, sorted.
///
/// # Errors
/// [`ImportError`] where the file cannot be read, or is no model.
pub fn open_dims(path: &Path) -> Result<Vec<String>, ImportError> {
    let model =
        ModelProto::decode(map_file(path).map_err(|source| ImportError::Read { path: path.to_path_buf(), source })?)?;
    let graph = model.graph.as_ref().ok_or(ImportError::NoGraph)?;
    let (dims, _) = OpenDims::of(&inputs_of(graph), graph, &ImportOptions::default())?;
    Ok(dims.names())
}

fn import_model(bytes: Bytes, files: ExternalFiles, options: &ImportOptions) -> Result<Program, ImportError> {
    let model = ModelProto::decode(bytes)?;
    let graph = model.graph.as_ref().ok_or(ImportError::NoGraph)?;
    let functions = Functions::of(&model.functions)?;
    let unsupported = unsupported(&graph.node, &functions);
    if !unsupported.is_empty() {
        return Err(ImportError::Unsupported(unsupported));
    }
    let uses_own = || graph.node.iter().any(|node| is_own_domain(&node.domain));
    let opset = match opset(&model.opset_import)? {
        Some(opset) => opset,
        // a network of other domains' operators alone need not import ONNX's own
        None if !model.opset_import.is_empty() && !uses_own() => NEWEST_OPSET,
        None => return Err(ImportError::NoOpset),
    };
    if graph.output.is_empty() {
        return Err(ImportError::NoOutputs);
    }
    Import::new(functions, opset, files, options).run(graph, options)
}

fn is_own_domain(domain: &str) -> bool {
    matches!(domain, "" | "ai.onnx")
}

/// What the lowering calls an operator: by its name, with the domain before it where that is not ONNX's own.
fn kind(node: &NodeProto) -> String {
    match is_own_domain(&node.domain) {
        true => node.op_type.clone(),
        false => format!("{}.{}", node.domain, node.op_type),
    }
}

/// Whether there is an operator of this name that holds no graphs.
fn is_understood(node: &NodeProto) -> bool {
    // a name of ONNX's own domain that holds a dot would be one of another domain
    let is_lowered = !node.op_type.contains('.') && lower::is_supported(&kind(node));
    is_lowered || is_own_domain(&node.domain) && is_sequence(&node.op_type)
}

/// Operators that hold graphs; the import itself knows what they mean.
fn is_control(kind: &str) -> bool {
    matches!(kind, "If" | "Loop" | "Scan")
}

/// All nodes that cannot be lowered, those in the bodies of loops and functions among them. The branches of
/// an `If` are left out: which of them is needed turns out later.
fn unsupported(nodes: &[NodeProto], functions: &Functions<'_>) -> Vec<UnsupportedNode> {
    let (mut found, mut seen): (Vec<UnsupportedNode>, BTreeSet<*const FunctionProto>) = Default::default();
    let mut pending: Vec<&[NodeProto]> = vec![nodes];
    while let Some(nodes) = pending.pop() {
        for node in nodes {
            if let Some(function) = functions.of_node(node) {
                pending.extend(seen.insert(function).then_some(function.node.as_slice()));
            } else if is_own_domain(&node.domain) && is_control(&node.op_type) {
                let graphs = node.attribute.iter().filter_map(|attribute| attribute.g.as_deref());
                pending.extend(graphs.filter(|_| node.op_type != "If").map(|graph| graph.node.as_slice()));
            } else if !is_understood(node) {
                let (domain, operator) = (node.domain.clone(), node.op_type.clone());
                found.push(UnsupportedNode { domain, operator, node: node_name(node) });
            }
        }
    }
    found
}

/// The version of ONNX's own operators; `None` where the list lacks them.
fn opset(imported: &[OperatorSetIdProto]) -> Result<Option<i64>, ImportError> {
    match imported.iter().find(|set| is_own_domain(&set.domain)).map(|set| set.version) {
        None => Ok(None),
        Some(version @ OLDEST_OPSET..=NEWEST_OPSET) => Ok(Some(version)),
        Some(found) => Err(ImportError::Opset { found }),
    }
}

/// The node's name, or its first output's where it has none.
fn node_name(node: &NodeProto) -> String {
    let output = || node.output.iter().find(|name| !name.is_empty());
    match (node.name.as_str(), output()) {
        ("", Some(output)) => output.clone(),
        ("", None) => format!("(unnamed {})", node.op_type),
        (name, _) => name.to_string(),
    }
}
