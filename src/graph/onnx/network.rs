//! The nodes of a model, one after the other: values by their names, and functions put in place.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use prost::bytes::Bytes;

use super::body::{Body, Functions};
use super::constant::{ConstantInput, constant_inputs};
use super::dims::{Extent, Input, OpenDims};
use super::error::ImportError;
use super::proto::attribute_kind;
use super::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto, ValueInfoProto};
use super::tensor::{ExternalFiles, four_bit_data, tensor_data};
use super::value::Value;
use super::{ImportOptions, is_control, is_own_domain, node_name, opset, unsupported};
use crate::graph::Program;
use crate::graph::lower::{self, Attribute, Builder, Operand, Operator, Problem};
use crate::workload::{Index, TensorId};

/// Graphs and functions inside of one another.
const MAX_DEPTH: usize = 24;
/// Maximum number of nodes that branches, iterations and functions may come to, all together.
const MAX_INNER_NODES: usize = 1 << 17;

/// The network while it is read.
pub struct Import<'a> {
    functions: Functions<'a>,
    opset: i64,
    files: ExternalFiles,
    pub(super) builder: Builder,
    /// The innermost last.
    scopes: Vec<Scope<'a>>,
    /// Initialisers that are there already: those of a loop's body are the same in all iterations.
    initialized: HashMap<*const TensorProto, TensorId>,
    /// Constants of four bits, which are held in eight: only what does not depend on their type may read
    /// them.
    four_bits: BTreeSet<TensorId>,
    pub(super) inner_nodes: usize,
    /// Nodes that were computed to count iterations.
    pub(super) counted_nodes: usize,
    /// Elements of all sequences that were listed.
    pub(super) listed: usize,
    /// Tensors that sequences were made of, by taking others apart.
    pub(super) taken_apart: usize,
    /// Outputs that never have elements.
    left_out: Vec<String>,
}

/// The values of a graph or of a function's body.
struct Scope<'a> {
    values: HashMap<&'a str, Named>,
    readers: Rc<HashMap<&'a str, usize>>,
    /// A function's body sees nothing outside of it.
    call: Option<FunctionCall<'a>>,
}

#[derive(Clone)]
struct Named {
    value: Value,
    /// A result of an operator of the scope itself, which no other name stands for.
    is_own: bool,
}

struct FunctionCall<'a> {
    function: &'a FunctionProto,
    opset: i64,
    attributes: HashMap<&'a str, &'a AttributeProto>,
}

impl<'a> Import<'a> {
    pub fn new(functions: Functions<'a>, opset: i64, files: ExternalFiles, options: &ImportOptions) -> Import<'a> {
        Import {
            functions,
            opset,
            files,
            builder: Builder::new(options.constant_bytes),
            scopes: Vec::new(),
            initialized: HashMap::new(),
            four_bits: BTreeSet::new(),
            inner_nodes: 0,
            counted_nodes: 0,
            listed: 0,
            taken_apart: 0,
            left_out: Vec::new(),
        }
    }

    pub fn run(mut self, graph: &'a GraphProto, options: &ImportOptions) -> Result<Program, ImportError> {
        let (inputs, constants) = constant_inputs(inputs_of(graph), &options.constants)?;
        let names = inputs.iter().map(|input| input.name.as_str());
        let names = names.chain(constants.iter().map(|constant| constant.name)).collect();
        // one that is listed again, as cells of recurrences do that are also their own state, is the same
        let mut listed = BTreeSet::new();
        let outputs = graph.output.iter().map(|output| output.name.as_str());
        let outputs: Vec<&str> = outputs.filter(|name| listed.insert(*name)).collect();
        let body = Body::new(&graph.node, &graph.initializer, names, outputs, &|_| false)?;
        let (mut dims, inputs) = OpenDims::of(&inputs, graph, options)?;
        loop {
            match self.read(&body, &inputs, &constants, &mut dims) {
                Ok(()) => {
                    for name in &self.left_out {
                        tracing::warn!("output {name} has no elements in any run, and is left out");
                    }
                    return Ok(self.builder.finish());
                }
                Err(error) if !dims.adjust(&self.builder, &error) => return Err(error),
                Err(_) => {}
            }
            self.builder = Builder::new(options.constant_bytes);
            self.scopes.clear();
            self.initialized.clear();
            (self.inner_nodes, self.counted_nodes) = (0, 0);
            (self.listed, self.taken_apart) = (0, 0);
            self.left_out.clear();
        }
    }

    /// Reads everything, with the ranges that open dimensions have.
    fn read(
        &mut self,
        body: &Body<'a>,
        inputs: &[Input<'a>],
        constants: &[ConstantInput<'a>],
        dims: &mut OpenDims,
    ) -> Result<(), ImportError> {
        let formulas = dims.declare(&mut self.builder);
        let mut tensors = Vec::new();
        for Input { name, dtype, extents } in inputs {
            let formula = |extent: &Extent| match extent {
                Extent::Fixed(extent) => Index::constant(*extent),
                Extent::Open(number) => formulas[*number].clone(),
            };
            let extents: Vec<Index> = extents.iter().map(formula).collect();
            let problem = |problem| ImportError::Input { input: name.to_string(), problem };
            let tensor = self.builder.input(name.to_string(), &extents, *dtype).map_err(problem)?;
            tensors.push(Some(Value::Tensor(tensor)));
        }
        for constant in constants {
            let tensor = self.builder.constant(constant.data.clone());
            tensors.push(Some(Value::Tensor(tensor)));
        }
        let results = self.run_body(body, &tensors, None)?;
        for (name, value) in body.outputs.iter().zip(results) {
            let value = value.ok_or_else(|| ImportError::NoOutput { name: name.to_string() })?;
            // a branch that is taken has nothing of what another one would give; where all is nothing, it is
            // refused
            let is_last = self.left_out.len() + 1 == body.outputs.len();
            if let Ok(tensor) = value.tensor()
                && self.builder.shape(tensor).contains(&0)
                && !is_last
            {
                self.left_out.push(name.to_string());
                continue;
            }
            let given = value.tensor().and_then(|tensor| self.builder.output(name.to_string(), tensor));
            given.map_err(|problem| ImportError::Output { output: name.to_string(), problem })?;
        }
        Ok(())
    }

    /// The value of this name, if it is there for what is read next.
    pub(super) fn visible(&self, name: &str) -> Option<&Value> {
        Some(&self.find(name)?.0.value)
    }

    pub(super) fn is_visible(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Whether anything in the innermost scope reads the value of this name.
    pub(super) fn is_read(&self, name: &str) -> bool {
        self.scopes.last().is_some_and(|scope| scope.readers.contains_key(name))
    }

    /// The value of this name, and whether it is one of the innermost scope.
    fn find(&self, name: &str) -> Option<(&Named, bool)> {
        for (depth, scope) in self.scopes.iter().rev().enumerate() {
            if let Some(named) = scope.values.get(name) {
                return Some((named, depth == 0));
            }
            if scope.call.is_some() {
                return None;
            }
        }
        None
    }

    /// Runs nodes in a scope of their own. `None` stands for an input that a function was not given, and for
    /// an output that nothing provides.
    fn run_body(
        &mut self,
        body: &Body<'a>,
        arguments: &[Option<Value>],
        call: Option<FunctionCall<'a>>,
    ) -> Result<Vec<Option<Value>>, ImportError> {
        let is_inner = !self.scopes.is_empty();
        if is_inner {
            self.inner_nodes = self.inner_nodes.saturating_add(body.order.len().max(1));
        }
        if self.scopes.len() >= MAX_DEPTH || self.inner_nodes > MAX_INNER_NODES {
            return Err(ImportError::TooMuch { depth: MAX_DEPTH, nodes: MAX_INNER_NODES });
        }
        let given = body.inputs.iter().zip(arguments);
        let named = |value: &Value| Named { value: value.clone(), is_own: !is_inner };
        let values = given.filter_map(|(name, value)| Some((*name, named(value.as_ref()?)))).collect();
        self.scopes.push(Scope { values, readers: body.readers.clone(), call });
        for tensor in body.initializers {
            // what nobody reads may hold what it wants
            if body.readers.contains_key(tensor.name.as_str()) {
                let constant = self.initializer(tensor)?;
                self.bind(&tensor.name, Value::Tensor(constant), true);
            }
        }
        for position in body.order.iter() {
            self.add_node(&body.nodes[*position])?;
        }
        let results = body.outputs.iter().map(|name| Some(self.find(name)?.0.value.clone())).collect();
        self.scopes.pop();
        Ok(results)
    }

    fn initializer(&mut self, tensor: &'a TensorProto) -> Result<TensorId, ImportError> {
        if let Some(known) = self.initialized.get(&std::ptr::from_ref(tensor)) {
            return Ok(*known);
        }
        let short = four_bit_data(tensor, &mut self.files)?;
        let is_short = short.is_some();
        let data = short.map_or_else(|| tensor_data(tensor, &mut self.files, "tensor"), Ok)?;
        self.builder.grant(&data);
        let constant = self.builder.constant(data);
        if is_short {
            self.four_bits.insert(constant);
        }
        self.initialized.insert(tensor, constant);
        Ok(constant)
    }

    fn check_four_bits(&self, node: &NodeProto, operator: &Operator) -> Result<(), ImportError> {
        let is_short = |operand: &Operand| self.four_bits.contains(&operand.tensor);
        if operator.kind == "DequantizeLinear" || !operator.inputs.iter().flatten().any(is_short) {
            return Ok(());
        }
        let what = "a constant of four bits that is not an input of DequantizeLinear";
        Err(problem_of(node, Problem::Unsupported(what.to_string())))
    }

    fn bind(&mut self, name: &'a str, value: Value, is_own: bool) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.values.insert(name, Named { value, is_own });
        }
    }

    /// Runs a graph of a node, all of whose outputs must be there.
    pub(super) fn run_graph(
        &mut self,
        node: &NodeProto,
        body: &Body<'a>,
        arguments: &[Value],
    ) -> Result<Vec<Value>, ImportError> {
        if body.inputs.len() != arguments.len() {
            let counts = format!("its graph takes {} inputs, not {}", body.inputs.len(), arguments.len());
            return Err(problem_of(node, Problem::Shape(counts)));
        }
        let arguments: Vec<Option<Value>> = arguments.iter().cloned().map(Some).collect();
        let results = self.run_body(body, &arguments, None)?;
        let missing = |name: &str| ImportError::Dangling { node: node_name(node), value: name.to_string() };
        results.into_iter().zip(&body.outputs).map(|(value, name)| value.ok_or_else(|| missing(name))).collect()
    }

    /// The same where everything is a tensor.
    pub(super) fn run_on_tensors(
        &mut self,
        node: &NodeProto,
        body: &Body<'a>,
        arguments: &[TensorId],
    ) -> Result<Vec<TensorId>, ImportError> {
        let arguments: Vec<Value> = arguments.iter().copied().map(Value::Tensor).collect();
        let results = self.run_graph(node, body, &arguments)?;
        results.iter().map(|value| value.tensor().map_err(|problem| problem_of(node, problem))).collect()
    }

    fn add_node(&mut self, node: &'a NodeProto) -> Result<(), ImportError> {
        let results = if let Some(function) = self.functions.of_node(node) {
            self.call_function(node, function)?
        } else if is_own_domain(&node.domain) && is_control(&node.op_type) {
            let results = self.add_control(node)?;
            results.into_iter().map(Some).collect()
        } else if is_own_domain(&node.domain) && self.is_about_sequences(node)? {
            vec![Some(self.add_sequence(node)?)]
        } else {
            let results = self.lowered(node)?;
            for (output, tensor) in node.output.iter().zip(results) {
                self.bind(output, Value::Tensor(tensor), true);
            }
            return Ok(());
        };
        for (output, value) in node.output.iter().zip(results) {
            if let Some(value) = value {
                self.bind(output, value, false);
            }
        }
        Ok(())
    }

    /// The results of an operator that holds no graphs, as far as anybody can use them.
    pub(super) fn lowered(&mut self, node: &'a NodeProto) -> Result<Vec<TensorId>, ImportError> {
        let operator = self.operator(node)?;
        self.check_four_bits(node, &operator)?;
        self.builder.enter(format!("{} {}", node.op_type, node_name(node)));
        lower::lower(&mut self.builder, &operator).map_err(|problem| problem_of(node, problem))
    }

    /// The inputs of a node, `None` where one is left out.
    pub(super) fn values(&self, node: &'a NodeProto) -> Result<Vec<Option<Value>>, ImportError> {
        let value = |input: &'a String| Ok(self.input(node, input)?.map(|(named, _)| named.value.clone()));
        node.input.iter().map(value).collect()
    }

    /// The same where all of them are tensors.
    pub(super) fn operands(&self, node: &'a NodeProto) -> Result<Vec<Option<Operand>>, ImportError> {
        let operand = |input: &'a String| -> Result<Option<Operand>, ImportError> {
            let Some((named, is_inner)) = self.input(node, input)? else { return Ok(None) };
            let tensor = named.value.tensor().map_err(|problem| problem_of(node, problem))?;
            let readers = self.scopes.last().and_then(|scope| scope.readers.get(input.as_str()));
            let only_reader = is_inner && named.is_own && readers == Some(&1);
            Ok(Some(Operand { tensor, only_reader }))
        };
        node.input.iter().map(operand).collect()
    }

    /// What a node reads by a name, and whether it is of the innermost scope; `None` where it is left out.
    fn input(&self, node: &'a NodeProto, name: &'a str) -> Result<Option<(&Named, bool)>, ImportError> {
        let found = self.find(name).filter(|_| !name.is_empty());
        // an input of a function that its caller leaves out
        let optional = self.scopes.iter().rev().find_map(|scope| scope.call.as_ref());
        let left_out = || optional.is_some_and(|call| call.function.input.iter().any(|input| input == name));
        if found.is_none() && !name.is_empty() && !left_out() {
            return Err(ImportError::Dangling { node: node_name(node), value: name.to_string() });
        }
        Ok(found)
    }

    fn operator(&mut self, node: &'a NodeProto) -> Result<Operator, ImportError> {
        let mut attributes = BTreeMap::new();
        for proto in &node.attribute {
            let Some(value) = self.attribute(proto) else { continue };
            if value.kind == attribute_kind::GRAPH {
                // what the subgraph computes must not be left out in silence
                return Err(problem_of(node, Problem::Unsupported(format!("attribute {}, a subgraph,", proto.name))));
            }
            if let Some(attribute) = attribute(value, &mut self.files)? {
                attributes.insert(proto.name.clone(), attribute);
            }
        }
        let readers = self.scopes.last().map(|scope| scope.readers.clone()).unwrap_or_default();
        Ok(Operator {
            kind: super::kind(node),
            opset: self.opset(),
            attributes,
            inputs: self.operands(node)?,
            outputs: node.output.iter().map(|output| readers.contains_key(output.as_str())).collect(),
        })
    }

    /// The version of ONNX's operators where the import is.
    pub(super) fn opset(&self) -> i64 {
        let call = self.scopes.iter().rev().find_map(|scope| scope.call.as_ref());
        call.map_or(self.opset, |call| call.opset)
    }

    /// The attribute itself, or the one of the function around it that it stands for, where that is given.
    pub(super) fn attribute(&self, proto: &'a AttributeProto) -> Option<&'a AttributeProto> {
        if proto.ref_attr_name.is_empty() {
            return Some(proto);
        }
        let call = self.scopes.iter().rev().find_map(|scope| scope.call.as_ref())?;
        call.attributes.get(proto.ref_attr_name.as_str()).copied()
    }

    /// Puts the body of a function where a node calls it.
    fn call_function(
        &mut self,
        node: &'a NodeProto,
        function: &'a FunctionProto,
    ) -> Result<Vec<Option<Value>>, ImportError> {
        let calls = self.scopes.iter().filter_map(|scope| scope.call.as_ref());
        if calls.into_iter().any(|call| std::ptr::eq(call.function, function)) {
            return Err(ImportError::Cycle(vec![function.name.clone(), function.name.clone()]));
        }
        let (given, taken) = (node.input.len(), function.input.len());
        if given > taken || node.output.len() > function.output.len() {
            let counts = format!("{given} inputs for the function {}, which takes {taken}", function.name);
            return Err(problem_of(node, Problem::Shape(counts)));
        }
        let arguments = self.values(node)?;
        let mut attributes: HashMap<&str, &AttributeProto> =
            function.attribute_proto.iter().map(|attribute| (attribute.name.as_str(), attribute)).collect();
        for attribute in &node.attribute {
            attributes.extend(self.attribute(attribute).map(|value| (attribute.name.as_str(), value)));
        }
        let opset = opset(&function.opset_import)?.unwrap_or(self.opset);
        let body = Body::of_function(function)?;
        self.run_body(&body, &arguments, Some(FunctionCall { function, opset, attributes }))
    }

    /// The graph in an attribute of a node, ready to run.
    pub(super) fn graph_of(&self, node: &'a NodeProto, name: &'static str) -> Result<Body<'a>, ImportError> {
        let proto = node.attribute.iter().find(|attribute| attribute.name == name);
        let proto = proto.and_then(|proto| self.attribute(proto)).filter(|proto| proto.kind == attribute_kind::GRAPH);
        let graph = proto.and_then(|proto| proto.g.as_deref());
        let graph = graph.ok_or_else(|| problem_of(node, Problem::MissingAttribute(name)))?;
        let missing = unsupported(&graph.node, &self.functions);
        if !missing.is_empty() {
            return Err(ImportError::Unsupported(missing));
        }
        Body::of_graph(graph, &|name| self.is_visible(name))
    }

    /// A list of integers in an attribute of a node.
    pub(super) fn ints_of(&self, node: &'a NodeProto, name: &'static str) -> Result<Option<Vec<i64>>, ImportError> {
        let proto = node.attribute.iter().find(|attribute| attribute.name == name);
        match proto.and_then(|proto| self.attribute(proto)) {
            None => Ok(None),
            Some(proto) if proto.kind == attribute_kind::INTS => Ok(Some(proto.ints.clone())),
            Some(proto) if proto.kind == attribute_kind::INT => Ok(Some(vec![proto.i])),
            Some(_) => Err(problem_of(node, Problem::AttributeType(name))),
        }
    }
}

/// The inputs that are given with every run: files of version 3 list initialisers among them.
pub(super) fn inputs_of(graph: &GraphProto) -> Vec<&ValueInfoProto> {
    let initialized: BTreeSet<&str> = graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    graph.input.iter().filter(|input| !initialized.contains(input.name.as_str())).collect()
}

pub(super) fn problem_of(node: &NodeProto, problem: Problem) -> ImportError {
    ImportError::Node { node: format!("{} ({})", node_name(node), node.op_type), problem }
}

/// `None` for what no operator reads that becomes stages: graphs, and what is not declared in
/// [`super::proto`].
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
