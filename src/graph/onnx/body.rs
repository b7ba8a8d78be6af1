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

    /// What values stand for in the end, of those that nodes give which only hand on the input of this
    /// position.
    pub fn sources(&self, handed_on: &dyn Fn(&NodeProto) -> Option<usize>) -> HashMap<&'a str, &'a str> {
        let mut sources: HashMap<&str, &str> = HashMap::new();
        for node in self.order.iter().map(|position| &self.nodes[*position]) {
            let input = handed_on(node).and_then(|position| node.input.get(position));
            if let (Some(input), Some(output)) = (input, node.output.first()) {
                let source = sources.get(input.as_str()).copied().unwrap_or(input);
                sources.insert(output, source);
            }
        }
        sources
    }

    /// What values stand for in the end, of those that are handed on unchanged.
    pub fn copied(&self) -> HashMap<&'a str, &'a str> {
        self.sources(&|node| (node.op_type == "Identity").then_some(0))
    }

    /// The node that gives each value.
    pub fn producers(&self) -> HashMap<&'a str, &'a NodeProto> {
        let outputs = |node: &'a NodeProto| node.output.iter().map(move |output| (output.as_str(), node));
        self.nodes.iter().flat_map(outputs).collect()
    }

    /// Of a loop's body, the states that it changes: it hands on the others.
    pub fn changed_states(&self, states: usize) -> Vec<usize> {
        let sources = self.copied();
        let is_changed = |state: &usize| {
            let (input, output) = (self.inputs[2 + state], self.outputs[1 + state]);
            sources.get(output).copied().unwrap_or(output) != input
        };
        (0..states).filter(is_changed).collect()
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
