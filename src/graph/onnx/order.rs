//! The shape of a graph: unique names, nothing dangling, no cycle.

use std::collections::{BTreeSet, HashMap};

use super::error::ImportError;
use super::node_name;
use super::proto::{GraphProto, NodeProto};

/// Positions of nodes, each after all that it reads from, otherwise as in the file. What a node's graphs read
/// counts as read by the node; `outer` says whether a value is there outside of all these.
///
/// # Errors
/// [`ImportError`] for a name that is given twice, a value that nothing provides, or a cycle.
pub fn topological(
    nodes: &[NodeProto],
    given: &BTreeSet<&str>,
    outer: &dyn Fn(&str) -> bool,
) -> Result<Vec<usize>, ImportError> {
    let mut producer: HashMap<&str, usize> = HashMap::new();
    for (position, node) in nodes.iter().enumerate() {
        for output in node.output.iter().filter(|name| !name.is_empty()) {
            if given.contains(output.as_str()) || producer.insert(output, position).is_some() {
                return Err(ImportError::Duplicate { name: output.clone() });
            }
        }
    }
    let mut before: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); nodes.len()];
    for (position, node) in nodes.iter().enumerate() {
        for input in node.input.iter().filter(|name| !name.is_empty() && !given.contains(name.as_str())) {
            match producer.get(input.as_str()) {
                Some(from) => {
                    before[position].insert(*from);
                }
                None if outer(input) => {}
                None => return Err(ImportError::Dangling { node: node_name(node), value: input.clone() }),
            }
        }
        for name in read_inside(node) {
            before[position].extend(producer.get(name).filter(|from| **from != position));
        }
    }
    sorted(nodes, &before)
}

/// Of an order of nodes, those that some values need, and the given values that these need.
pub fn needed<'a>(nodes: &'a [NodeProto], order: &[usize], values: &[&'a str]) -> (Vec<usize>, BTreeSet<&'a str>) {
    let mut wanted: BTreeSet<&str> = values.iter().copied().collect();
    let mut kept = Vec::new();
    for position in order.iter().rev() {
        let node = &nodes[*position];
        let given: Vec<&str> = node.output.iter().filter_map(|output| wanted.take(output.as_str())).collect();
        if !given.is_empty() {
            wanted.extend(node.input.iter().map(String::as_str).chain(read_inside(node)));
            kept.push(*position);
        }
    }
    kept.reverse();
    (kept, wanted)
}

/// All values that the graphs of a node read, their own among them.
fn read_inside(node: &NodeProto) -> BTreeSet<&str> {
    let mut read = BTreeSet::new();
    for_each_graph(std::slice::from_ref(node), &mut |graph| {
        read.extend(graph.output.iter().map(|output| output.name.as_str()));
        graph.node.iter().for_each(|node| read.extend(node.input.iter().map(String::as_str)));
    });
    read
}

/// Positions, each after those that are before it.
fn sorted(nodes: &[NodeProto], before: &[BTreeSet<usize>]) -> Result<Vec<usize>, ImportError> {
    let mut missing: Vec<usize> = before.iter().map(BTreeSet::len).collect();
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (position, before) in before.iter().enumerate() {
        before.iter().for_each(|from| readers[*from].push(position));
    }
    let mut ready: BTreeSet<usize> = (0..nodes.len()).filter(|position| missing[*position] == 0).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(position) = ready.pop_first() {
        order.push(position);
        for reader in &readers[position] {
            missing[*reader] -= 1;
            if missing[*reader] == 0 {
                ready.insert(*reader);
            }
        }
    }
    if order.len() < nodes.len() {
        return Err(ImportError::Cycle(cycle(nodes, before, &missing)));
    }
    Ok(order)
}

/// The nodes of one cycle, the first one again at the end; `missing` is above 0 for nodes on a cycle or
/// behind one.
fn cycle(nodes: &[NodeProto], before: &[BTreeSet<usize>], missing: &[usize]) -> Vec<String> {
    let source = |position: usize| before[position].iter().copied().find(|source| missing[*source] > 0);
    let mut path: Vec<usize> = Vec::new();
    let mut seen = vec![false; nodes.len()];
    let mut at = missing.iter().position(|count| *count > 0);
    while let Some(position) = at {
        path.push(position);
        if seen[position] {
            break;
        }
        seen[position] = true;
        at = source(position);
    }
    let start = path.iter().position(|position| Some(position) == path.last()).unwrap_or(0);
    path[start..].iter().rev().map(|position| node_name(&nodes[*position])).collect()
}

/// All nodes, those of nested graphs among them; graphs nest no deeper than the decoder lets them.
pub fn for_each_node<'a>(nodes: &'a [NodeProto], visit: &mut dyn FnMut(&'a NodeProto)) {
    nodes.iter().for_each(&mut *visit);
    for_each_graph(nodes, &mut |graph| graph.node.iter().for_each(&mut *visit));
}

/// All graphs in attributes of nodes, and in those of their nodes.
pub fn for_each_graph<'a>(nodes: &'a [NodeProto], visit: &mut dyn FnMut(&'a GraphProto)) {
    let mut pending: Vec<&'a NodeProto> = nodes.iter().collect();
    while let Some(node) = pending.pop() {
        for graph in node.attribute.iter().filter_map(|attribute| attribute.g.as_deref()) {
            visit(graph);
            pending.extend(&graph.node);
        }
    }
}
