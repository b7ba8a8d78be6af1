//! ONNX files in, [`Program`]s out.
//!
//! Nothing in a file is trusted. Its messages are decoded from a mapping of the file, so that weights are
//! held once; every name, shape and offset is checked before it is used; each error names the node or tensor.

mod error;
mod order;
mod proto;
mod tensor;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use prost::Message;
use prost::bytes::Bytes;

pub use error::{ImportError, TensorProblem, UnsupportedNode};

use self::proto::{
    AttributeProto, DimensionValue, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, attribute_kind,
};
use self::tensor::{ExternalFiles, map_file, tensor_data};
use super::lower::{self, Attribute, Builder, Operand, Operator};
use super::{Program, TensorData};
use crate::workload::{DType, TensorId};

/// Operator sets between these, both included, are understood.
pub const OLDEST_OPSET: i64 = 7;
pub const NEWEST_OPSET: i64 = 27;

/// Protobuf's own limit.
const MAX_FILE_BYTES: u64 = 1 << 31;

/// What a file leaves open, and how much it may take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportOptions {
    /// Extents of symbolic dimensions, by name. One that has no name of its own (`?`, `-1`, or nothing) is
    /// called `input[axis]`, as in `x[0]`.
    pub dims: BTreeMap<String, i64>,
    /// Maximum number of bytes of all constants that import computes out of nothing. Those of the file do not
    /// count, nor do two other forms of each (transposed, scaled).
    pub constant_bytes: u64,
}

/// [`ImportOptions::constant_bytes`] by default: 2 GiB.
pub const DEFAULT_CONSTANT_BYTES: u64 = 1 << 31;

impl Default for ImportOptions {
    fn default() -> ImportOptions {
        ImportOptions { dims: BTreeMap::new(), constant_bytes: DEFAULT_CONSTANT_BYTES }
    }
}

/// Reads a model; external data has to lie in its folder.
///
/// # Errors
/// [`ImportError`]; unsupported operators come first, all at once, then symbolic dimensions without a value.
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

fn import_model(bytes: Bytes, files: ExternalFiles, options: &ImportOptions) -> Result<Program, ImportError> {
    let model = ModelProto::decode(bytes)?;
    let graph = model.graph.as_ref().ok_or(ImportError::NoGraph)?;
    let unsupported: Vec<UnsupportedNode> = graph.node.iter().filter_map(unsupported).collect();
    if !unsupported.is_empty() {
        return Err(ImportError::Unsupported(unsupported));
    }
    let opset = opset(&model)?;
    if graph.output.is_empty() {
        return Err(ImportError::NoOutputs);
    }
    let builder = Builder::new(options.constant_bytes);
    Import { graph, opset, files, builder, values: HashMap::new(), readers: readers(graph) }.run(options)
}

/// Whether a symbol tells dimensions apart: exporters write `?`, numbers and nothing for those that are just
/// unknown.
fn names_a_dimension(param: &str) -> bool {
    !param.trim().is_empty() && param != "?" && param.parse::<i64>().is_err()
}

fn is_own_domain(domain: &str) -> bool {
    matches!(domain, "" | "ai.onnx")
}

fn unsupported(node: &NodeProto) -> Option<UnsupportedNode> {
    (!is_own_domain(&node.domain) || !lower::is_supported(&node.op_type)).then(|| UnsupportedNode {
        domain: node.domain.clone(),
        operator: node.op_type.clone(),
        node: node_name(node),
    })
}

fn opset(model: &ModelProto) -> Result<i64, ImportError> {
    let own = model.opset_import.iter().find(|set| is_own_domain(&set.domain)).ok_or(ImportError::NoOpset)?;
    match own.version {
        version @ OLDEST_OPSET..=NEWEST_OPSET => Ok(version),
        found => Err(ImportError::Opset { found }),
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

/// How often each value is read; outputs of the network count.
fn readers(graph: &GraphProto) -> HashMap<&str, usize> {
    let mut readers: HashMap<&str, usize> = HashMap::new();
    let names = graph.node.iter().flat_map(|node| &node.input).chain(graph.output.iter().map(|output| &output.name));
    names.for_each(|name| *readers.entry(name).or_default() += 1);
    readers
}

struct Import<'a> {
    graph: &'a GraphProto,
    opset: i64,
    files: ExternalFiles,
    builder: Builder,
    /// Tensors by the names of values.
    values: HashMap<&'a str, TensorId>,
    readers: HashMap<&'a str, usize>,
}

impl<'a> Import<'a> {
    fn run(mut self, options: &ImportOptions) -> Result<Program, ImportError> {
        let graph = self.graph;
        let initialized: BTreeSet<&str> = graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
        // files of version 3 list initialisers among the inputs
        let inputs: Vec<&ValueInfoProto> =
            graph.input.iter().filter(|input| !initialized.contains(input.name.as_str())).collect();
        let mut given = BTreeSet::new();
        for name in inputs.iter().map(|input| &input.name).chain(graph.initializer.iter().map(|tensor| &tensor.name)) {
            if !given.insert(name.as_str()) {
                return Err(ImportError::Duplicate { name: name.clone() });
            }
        }
        let order = order::topological(graph, &given)?;
        self.add_inputs(&inputs, options)?;
        for tensor in &graph.initializer {
            // what nobody reads may hold what it wants
            if self.readers.contains_key(tensor.name.as_str()) {
                let data = tensor_data(tensor, &mut self.files, "tensor")?;
                self.builder.grant(&data);
                let constant = self.builder.constant(data);
                self.values.insert(&tensor.name, constant);
            }
        }
        for position in order {
            self.add_node(&graph.node[position])?;
        }
        let mut listed = BTreeSet::new();
        for output in &graph.output {
            let name = &output.name;
            if !listed.insert(name.as_str()) {
                return Err(ImportError::Duplicate { name: name.clone() });
            }
            let tensor = self.values.get(name.as_str());
            let tensor = *tensor.ok_or_else(|| ImportError::NoOutput { name: name.clone() })?;
            self.builder
                .output(name.clone(), tensor)
                .map_err(|problem| ImportError::Output { output: name.clone(), problem })?;
        }
        Ok(self.builder.finish())
    }

    fn add_inputs(&mut self, inputs: &[&'a ValueInfoProto], options: &ImportOptions) -> Result<(), ImportError> {
        if let Some((name, value)) = options.dims.iter().find(|(_, value)| **value < 1) {
            return Err(ImportError::BadDim { name: name.clone(), value: *value });
        }
        let mut open: BTreeSet<String> = BTreeSet::new();
        for input in inputs {
            let name = input.name.clone();
            let tensor = input.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
            let shape = tensor.and_then(|t| t.shape.as_ref());
            let (Some(tensor), Some(shape)) = (tensor, shape) else {
                return Err(ImportError::InputType { input: name });
            };
            let dtype = DType::from_onnx(i64::from(tensor.elem_type)).ok_or_else(|| ImportError::ElementType {
                what: "input",
                name: name.clone(),
                code: tensor.elem_type,
            })?;
            let mut extents = Vec::new();
            for (axis, dim) in shape.dim.iter().enumerate() {
                let symbol = match &dim.value {
                    Some(DimensionValue::Value(extent)) if *extent != -1 => {
                        extents.push(*extent);
                        continue;
                    }
                    Some(DimensionValue::Param(param)) if names_a_dimension(param) => param.clone(),
                    _ => format!("{name}[{axis}]"),
                };
                // 1 stands in until all that is missing is known
                extents.push(options.dims.get(&symbol).copied().unwrap_or(1));
                open.insert(symbol);
            }
            let problem = |problem| ImportError::Input { input: name.clone(), problem };
            let tensor = self.builder.input(name.clone(), extents, dtype).map_err(problem)?;
            self.values.insert(&input.name, tensor);
        }
        let unknown: Vec<String> = options.dims.keys().filter(|name| !open.contains(*name)).cloned().collect();
        if !unknown.is_empty() {
            return Err(ImportError::UnknownDims { unknown, open: open.into_iter().collect() });
        }
        open.retain(|name| !options.dims.contains_key(name));
        if open.is_empty() { Ok(()) } else { Err(ImportError::SymbolicDims(open.into_iter().collect())) }
    }

    fn add_node(&mut self, node: &'a NodeProto) -> Result<(), ImportError> {
        let name = node_name(node);
        let mut attributes = BTreeMap::new();
        for proto in &node.attribute {
            if let Some(attribute) = attribute(proto, &mut self.files)? {
                attributes.insert(proto.name.clone(), attribute);
            }
        }
        let operand = |input: &'a String| -> Result<Option<Operand>, ImportError> {
            if input.is_empty() {
                return Ok(None);
            }
            let dangling = || ImportError::Dangling { node: name.clone(), value: input.clone() };
            let tensor = *self.values.get(input.as_str()).ok_or_else(dangling)?;
            let only_reader = self.readers.get(input.as_str()) == Some(&1);
            Ok(Some(Operand { tensor, only_reader }))
        };
        let operator = Operator {
            kind: node.op_type.clone(),
            opset: self.opset,
            attributes,
            inputs: node.input.iter().map(operand).collect::<Result<_, _>>()?,
            outputs: node.output.iter().map(|output| self.readers.contains_key(output.as_str())).collect(),
        };
        self.builder.enter(format!("{} {name}", node.op_type));
        let results = lower::lower(&mut self.builder, &operator)
            .map_err(|problem| ImportError::Node { node: format!("{name} ({})", node.op_type), problem })?;
        for (output, tensor) in node.output.iter().zip(results) {
            self.values.insert(output, tensor);
        }
        Ok(())
    }
}

/// `None` for what is not declared in [`proto`]: subgraphs and the like, which no supported operator reads.
fn attribute(proto: &AttributeProto, files: &mut ExternalFiles) -> Result<Option<Attribute>, ImportError> {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    Ok(Some(match proto.kind {
        attribute_kind::FLOAT => Attribute::Float(proto.f),
        attribute_kind::INT => Attribute::Int(proto.i),
        attribute_kind::STRING => Attribute::Text(text(&proto.s)),
        attribute_kind::FLOATS => Attribute::Floats(proto.floats.clone()),
        attribute_kind::INTS => Attribute::Ints(proto.ints.clone()),
        attribute_kind::STRINGS => Attribute::Texts(proto.strings.iter().map(text).collect()),
        attribute_kind::TENSOR => match &proto.t {
            Some(tensor) => Attribute::Tensor(tensor_data(tensor, files, "attribute")?),
            None => return Ok(None),
        },
        _ => return Ok(None),
    }))
}
