//! The shape of the graph: unique names, nothing dangling, no cycle.

use std::collections::{BTreeSet, HashMap};

use super::error::ImportError;
use super::node_name;
use super::proto::{GraphProto, NodeProto};

/// Positions of nodes, each after all that it reads from, otherwise as in the file.
///
/// # Errors
/// [`ImportError`] for a name that is given twice, a value that nothing provides, or a cycle.
pub fn topological(graph: &GraphProto, given: &BTreeSet<&str>) -> Result<Vec<usize>, ImportError> {
    let nodes = &graph.node;
    let mut producer: HashMap<&str, usize> = HashMap::new();
    for (position, node) in nodes.iter().enumerate() {
        for output in node.output.iter().filter(|name| !name.is_empty()) {
            if given.contains(output.as_str()) || producer.insert(output, position).is_some() {
                return Err(ImportError::Duplicate { name: output.clone() });
            }
        }
    }
    let mut missing = vec![0usize; nodes.len()];
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (position, node) in nodes.iter().enumerate() {
        for input in node.input.iter().filter(|name| !name.is_empty() && !given.contains(name.as_str())) {
            let Some(from) = producer.get(input.as_str()) else {
                return Err(ImportError::Dangling { node: node_name(node), value: input.clone() });
            };
            missing[position] += 1;
            readers[*from].push(position);
        }
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
        return Err(ImportError::Cycle(cycle(nodes, &producer, &missing)));
    }
    Ok(order)
}

/// The nodes of one cycle, the first one again at the end; `missing` is above 0 for nodes on a cycle or
/// behind one.
fn cycle(nodes: &[NodeProto], producer: &HashMap<&str, usize>, missing: &[usize]) -> Vec<String> {
    let before = |position: usize| {
        let sources = nodes[position].input.iter().filter_map(|input| producer.get(input.as_str()).copied());
        sources.into_iter().find(|source| missing[*source] > 0)
    };
    let mut path: Vec<usize> = Vec::new();
    let mut seen = vec![false; nodes.len()];
    let mut at = missing.iter().position(|count| *count > 0);
    while let Some(position) = at {
        path.push(position);
        if seen[position] {
            break;
        }
        seen[position] = true;
        at = before(position);
    }
    let start = path.iter().position(|position| Some(position) == path.last()).unwrap_or(0);
    path[start..].iter().rev().map(|position| node_name(&nodes[*position])).collect()
}
