//! What is run inside of a network: graphs in attributes, and functions.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use super::error::ImportError;
use super::order::{self, for_each_graph, for_each_node};
use super::proto::{FunctionProto, GraphProto, NodeProto, TensorProto};

/// The functions of a model, by domain, name and overload.
#[derive(Debug, Default)]
pub struct Functions<'a>(HashMap<(&'a str, &'a str, &'a str), &'a FunctionProto>);

impl<'a> Functions<'a> {
    /// # Errors
    /// [`ImportError::Duplicate`] for two of one name.
    pub fn of(functions: &'a [FunctionProto]) -> Result<Functions<'a>, ImportError> {
        let mut known = HashMap::new();
        for function in functions {
            let key = (plain(&function.domain), function.name.as_str(), function.overload.as_str());
            if known.insert(key, function).is_some() {
                return Err(ImportError::Duplicate { name: function.name.clone() });
            }
        }
        Ok(Functions(known))
    }

    /// The function that a node calls, if it is no operator.
    pub fn of_node(&self, node: &NodeProto) -> Option<&'a FunctionProto> {
        self.0.get(&(plain(&node.domain), node.op_type.as_str(), node.overload.as_str())).copied()
    }
}

/// ONNX's own domain has two names.
fn plain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// Nodes in an order in which they can run, and what goes in and out.
#[derive(Clone, Debug)]
pub struct Body<'a> {
    pub nodes: &'a [NodeProto],
    /// Positions of nodes.
    pub order: Rc<[usize]>,
    pub initializers: &'a [TensorProto],
    pub inputs: Vec<&'a str>,
    pub outputs: Vec<&'a str>,
    /// How often each value is read, inside of nested graphs, too; outputs count.
    pub readers: Rc<HashMap<&'a str, usize>>,
    /// Nodes, with those of nested graphs.
    pub size: usize,
}

impl<'a> Body<'a> {
    /// A graph; `inputs` are those that it is given when it runs.
    ///
    /// # Errors
    /// [`ImportError`] for a name that is given twice, a value that nothing provides, or a cycle. `outer`
    /// says whether a value is there outside of the graph.
    pub fn new(
        nodes: &'a [NodeProto],
        initializers: &'a [TensorProto],
        inputs: Vec<&'a str>,
        outputs: Vec<&'a str>,
        outer: &dyn Fn(&str) -> bool,
    ) -> Result<Body<'a>, ImportError> {
        let mut given = BTreeSet::new();
        for name in inputs.iter().copied().chain(initializers.iter().map(|tensor| tensor.name.as_str())) {
            if !given.insert(name) {
                return Err(ImportError::Duplicate { name: name.to_string() });
            }
        }
        let order = order::topological(nodes, &given, outer)?;
        let mut readers: HashMap<&str, usize> = HashMap::new();
        outputs.iter().for_each(|name| *readers.entry(name).or_default() += 1);
        let mut size = 0;
        for_each_node(nodes, &mut |node| {
            size += 1;
            node.input.iter().for_each(|name| *readers.entry(name).or_default() += 1);
        });
        for_each_graph(nodes, &mut |graph| {
            graph.output.iter().for_each(|output| *readers.entry(&output.name).or_default() += 1);
        });
        Ok(Body { nodes, order: order.into(), initializers, inputs, outputs, readers: Rc::new(readers), size })
    }

    /// What gives some of the outputs alone, and the inputs that it reads.
    pub fn part(&self, outputs: Vec<&'a str>) -> (Body<'a>, BTreeSet<&'a str>) {
        let (order, read) = order::needed(self.nodes, &self.order, &outputs);
        (Body { order: order.into(), outputs, ..self.clone() }, read)
    }

    /// The value that a name stands for in the end: what is handed on by nodes that change no element of a
    /// single number.
    pub fn resolved(&self, name: &'a str) -> &'a str {
        let mut found = name;
        for position in self.order.iter().rev() {
            let node = &self.nodes[*position];
            let hands_on = matches!(node.op_type.as_str(), "Identity" | "Squeeze" | "Unsqueeze");
            if hands_on && node.output.first().is_some_and(|output| output == found) {
                found = node.input.first().map_or(found, String::as_str);
            }
        }
        found
    }

    /// Whether an output is an input.
    pub fn hands_on(&self, input: usize, output: usize) -> bool {
        let is_plain = |node: &&NodeProto| node.op_type == "Identity";
        let mut found = self.outputs[output];
        for node in self.order.iter().rev().map(|position| &self.nodes[*position]).filter(is_plain) {
            if node.output.first().is_some_and(|output| output == found) {
                found = node.input.first().map_or(found, String::as_str);
            }
        }
        found == self.inputs[input]
    }

    /// The node that gives a value.
    pub fn producer(&self, name: &str) -> Option<&'a NodeProto> {
        self.nodes.iter().find(|node| node.output.iter().any(|output| output == name))
    }

    /// A graph in an attribute, all of whose inputs are given.
    ///
    /// # Errors
    /// As [`Body::new`].
    pub fn of_graph(graph: &'a GraphProto, outer: &dyn Fn(&str) -> bool) -> Result<Body<'a>, ImportError> {
        let inputs = graph.input.iter().map(|input| input.name.as_str()).collect();
        let outputs = graph.output.iter().map(|output| output.name.as_str()).collect();
        Body::new(&graph.node, &graph.initializer, inputs, outputs, outer)
    }

    /// A function, which sees nothing but its inputs.
    ///
    /// # Errors
    /// As [`Body::new`].
    pub fn of_function(function: &'a FunctionProto) -> Result<Body<'a>, ImportError> {
        let names = |names: &'a [String]| names.iter().map(String::as_str).collect();
        Body::new(&function.node, &[], names(&function.input), names(&function.output), &|_| false)
    }
}
