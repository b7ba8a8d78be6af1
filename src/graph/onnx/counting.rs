//! Loops whose condition only counts: `while i < 1000`, as frameworks write them that have no other loops.
//!
//! Such a loop has a number of iterations, and so may collect values. Where it follows from constants, what
//! the condition needs is computed for one iteration after the other, without the rest of the body. Where the
//! bound is a formula of open extents, the condition has to be a comparison of a counter with it, or several
//! of them.

use std::collections::{BTreeSet, HashMap};

use super::body::Body;
use super::error::ImportError;
use super::network::Import;
use super::proto::{GraphProto, NodeProto};
use super::value::Value;
use crate::graph::TensorData;
use crate::graph::lower::MAX_ITERATIONS;
use crate::workload::Index;

/// Maximum number of nodes that are computed to count iterations, those of all loops together.
const MAX_COUNTED_NODES: usize = 1 << 18;
/// Maximum number of states, and of comparisons, that a condition which counts depends on: exporters write
/// one or two.
const MAX_COMPARED: usize = 16;
/// Exporters add in f32, which counts no further.
const MAX_COUNTED: i64 = (1 << 24) + 1;
/// ONNX's numbers for types that hold the number of an iteration: f32, i32, i64 and f64.
const WIDE_TYPES: [i64; 4] = [1, 6, 7, 11];
/// That for Booleans.
const BOOL: i64 = 9;

/// How often a loop runs.
pub(super) enum Count {
    Exactly(Index),
    /// Something else may end it before.
    AtMost(Index),
}

impl Count {
    pub fn into_formula(self) -> Index {
        match self {
            Count::Exactly(count) | Count::AtMost(count) => count,
        }
    }
}

/// A loop that begins.
struct Counted<'a, 'b> {
    node: &'a NodeProto,
    body: &'b Body<'a>,
    states: &'b [Value],
    /// What values stand for, of whatever wide type, and which node gives each; those of branches that have
    /// to be taken are among them.
    sources: HashMap<&'a str, &'a str>,
    producers: HashMap<&'a str, &'a NodeProto>,
    /// The inputs that are others in each iteration.
    changed: BTreeSet<&'a str>,
}

impl<'a> Counted<'a, '_> {
    fn source(&self, name: &'a str) -> &'a str {
        self.sources.get(name).copied().unwrap_or(name)
    }

    /// Takes the nodes of a graph of the body for nodes of the body; not where a name stands for another
    /// value already, as it may in graphs beside one another.
    fn add(&mut self, graph: &'a GraphProto) -> bool {
        let outputs =
            || graph.node.iter().flat_map(|node| node.output.iter().map(move |output| (output.as_str(), node)));
        let is_other = |(name, node): (&str, &NodeProto)| {
            self.producers.get(name).is_some_and(|known| !std::ptr::eq(*known, node))
        };
        if outputs().any(is_other) {
            return false;
        }
        for node in &graph.node {
            let input = handed_on(node, &BTreeSet::new()).and_then(|position| node.input.get(position));
            if let (Some(input), Some(output)) = (input, node.output.first()) {
                let source = self.source(input);
                self.sources.insert(output, source);
            }
        }
        self.producers.extend(outputs());
        true
    }
}

/// The graph in an attribute that gives one value, and the name of that.
fn single_result<'a>(node: &'a NodeProto, name: &str) -> Option<(&'a GraphProto, &'a str)> {
    let graph = node.attribute.iter().find(|given| given.name == name)?.g.as_deref()?;
    match &graph.output[..] {
        [output] => Some((graph, &output.name)),
        _ => None,
    }
}

/// The position of the input of a node that it gives in another shape or wide type, or with 0 added to it.
fn handed_on(node: &NodeProto, zeros: &BTreeSet<&str>) -> Option<usize> {
    match node.op_type.as_str() {
        "Identity" | "Squeeze" | "Unsqueeze" => Some(0),
        "Cast" => is_cast_to(node, &WIDE_TYPES).then_some(0),
        "Add" => [1, 0].into_iter().find(|other| zeros.contains(node.input.get(1 - other).map_or("", String::as_str))),
        _ => None,
    }
}

fn is_cast_to(node: &NodeProto, types: &[i64]) -> bool {
    node.op_type == "Cast" && node.attribute.iter().any(|given| given.name == "to" && types.contains(&given.i))
}

impl<'a> Import<'a> {
    /// The number of iterations of a loop that begins, if that is known without its data; `None` also where
    /// nothing in the loop has a say in it. `trips` are the most, no more than any loop may have.
    pub(super) fn counted_iterations(
        &mut self,
        node: &'a NodeProto,
        body: &Body<'a>,
        trips: Option<&Index>,
        states: &[Value],
    ) -> Result<Option<Count>, ImportError> {
        let most = trips.map_or(Some(i64::MAX), Index::as_constant);
        if let (Some(most), Some((part, needed))) = (most, self.part_that_counts(body, states))
            && let Some(found) = self.counted_one_by_one(node, (&part, &needed), states, most)?
        {
            return Ok(Some(Count::Exactly(Index::constant(found))));
        }
        let mut counted = self.counted(node, body, states)?;
        self.compared(&mut counted, trips)
    }

    /// The states of a loop that are one more after each of so many iterations, and what they are in the
    /// first one.
    pub(super) fn counters(
        &mut self,
        node: &'a NodeProto,
        body: &Body<'a>,
        states: &[Value],
        trips: &Index,
    ) -> Result<Vec<(usize, Index)>, ImportError> {
        let counted = self.counted(node, body, states)?;
        let mut found = Vec::new();
        for (state, value) in states.iter().enumerate() {
            let is_counter = value.tensor().is_ok_and(|tensor| self.builder.is_counter(tensor));
            let counts = |first: &Index| self.builder.is_below(&first.clone().plus(trips), MAX_COUNTED);
            let Some(first) = self.number(value).filter(|first| is_counter && counts(first)) else { continue };
            if self.counting_state(&counted, body.inputs[2 + state])? == Some(state) {
                found.push((state, first));
            }
        }
        Ok(found)
    }

    fn counted<'b>(
        &mut self,
        node: &'a NodeProto,
        body: &'b Body<'a>,
        states: &'b [Value],
    ) -> Result<Counted<'a, 'b>, ImportError> {
        let added = body.nodes.iter().filter(|node| node.op_type == "Add").flat_map(|node| &node.input);
        let added: BTreeSet<&str> = added.map(String::as_str).collect();
        let producers = body.producers();
        let mut zeros = BTreeSet::new();
        for name in added {
            let number = match producers.get(name) {
                Some(node) if node.op_type == "Constant" => self.constant_number(node)?,
                Some(_) => None,
                None => self.visible(name).and_then(|value| self.number(value)),
            };
            if number.is_some_and(|number| number.as_constant() == Some(0)) {
                zeros.insert(name);
            }
        }
        let changed = body.changed_states(states.len()).into_iter().map(|state| body.inputs[2 + state]);
        Ok(Counted {
            node,
            body,
            states,
            sources: body.sources(&|node| handed_on(node, &zeros)),
            producers,
            changed: [body.inputs[0]].into_iter().chain(changed).collect(),
        })
    }

    /// Computes the part of a body that counts, and the states that it depends on, until it says no.
    fn counted_one_by_one(
        &mut self,
        node: &'a NodeProto,
        (part, needed): (&Body<'a>, &[usize]),
        states: &[Value],
        most: i64,
    ) -> Result<Option<i64>, ImportError> {
        let inner_nodes = self.inner_nodes;
        let mut current = states.to_vec();
        let mut found = None;
        for iteration in 0..most {
            self.counted_nodes = self.counted_nodes.saturating_add(part.order.len().max(1));
            if self.counted_nodes > MAX_COUNTED_NODES {
                break;
            }
            let results = self.iteration(node, part, iteration, &current)?;
            let going = results[0].tensor().ok().and_then(|going| self.builder.integers(going));
            match going.as_deref() {
                Some([0]) => found = Some(iteration + 1),
                Some([_]) if iteration + 1 == most => found = Some(most),
                Some([_]) if results.iter().all(|result| self.is_known(result)) => {}
                _ => break,
            }
            if found.is_some() {
                break;
            }
            needed.iter().zip(&results[1..]).for_each(|(state, next)| current[*state].clone_from(next));
        }
        // nothing of it stays
        self.inner_nodes = inner_nodes;
        Ok(found)
    }

    /// What an iteration of a part of a body gives.
    fn iteration(
        &mut self,
        node: &'a NodeProto,
        part: &Body<'a>,
        number: i64,
        states: &[Value],
    ) -> Result<Vec<Value>, ImportError> {
        let number = self.builder.constant(TensorData::from_i64(vec![], &[number]));
        let going = self.builder.constant(TensorData::from_bool(vec![], &[true]));
        let fixed = [number, going].map(Value::Tensor);
        let arguments: Vec<Value> = fixed.into_iter().chain(states.iter().cloned()).collect();
        self.run_graph(node, part, &arguments)
    }

    /// The part of a body that gives its condition, and the states that this depends on, all of which begin
    /// as constants; the part gives them, too.
    fn part_that_counts(&self, body: &Body<'a>, states: &[Value]) -> Option<(Body<'a>, Vec<usize>)> {
        let mut needed: BTreeSet<usize> = BTreeSet::new();
        loop {
            let of_states = needed.iter().map(|state| body.outputs[1 + state]);
            let (part, read) = body.part([body.outputs[0]].into_iter().chain(of_states).collect());
            let reads: BTreeSet<usize> =
                (0..states.len()).filter(|state| read.contains(body.inputs[2 + state])).collect();
            if !reads.iter().all(|state| self.is_known(&states[*state])) {
                return None;
            }
            if reads.is_subset(&needed) {
                let counts = !needed.is_empty() || read.contains(body.inputs[0]);
                return counts.then(|| (part, needed.into_iter().collect()));
            }
            needed.extend(reads);
            if needed.len() > MAX_COMPARED {
                return None;
            }
        }
    }

    /// The nodes whose results have to hold together for a value to do; one that is anything else stands for
    /// itself. `None` for more than anybody writes.
    fn conjuncts(
        &mut self,
        counted: &mut Counted<'a, '_>,
        name: &'a str,
    ) -> Result<Option<Vec<&'a NodeProto>>, ImportError> {
        let (mut found, mut pending) = (Vec::new(), vec![name]);
        while let Some(name) = pending.pop() {
            let node = counted.producers.get(counted.source(name)).copied();
            let branch = match node.filter(|node| node.op_type == "If") {
                Some(node) => self.only_true_branch(counted, node)?,
                None => None,
            };
            match (node, branch) {
                (Some(node), Some(result)) => pending.extend(node.input.iter().map(String::as_str).chain([result])),
                (Some(node), None) if node.op_type == "And" || is_cast_to(node, &[BOOL]) => {
                    pending.extend(node.input.iter().map(String::as_str));
                }
                (node, _) => found.extend(node),
            }
            if pending.len() + found.len() > MAX_COMPARED {
                return Ok(None);
            }
        }
        Ok(Some(found))
    }

    /// What a branch gives that is taken where a condition holds, if the other one says no: `a and b`, as
    /// scripts write it that do not compute `b` then.
    fn only_true_branch(
        &mut self,
        counted: &mut Counted<'a, '_>,
        node: &'a NodeProto,
    ) -> Result<Option<&'a str>, ImportError> {
        let branches = single_result(node, "then_branch").zip(single_result(node, "else_branch"));
        let Some(((graph, result), (other, no))) = branches else { return Ok(None) };
        if !counted.add(other) || self.single(counted, no)?.and_then(|no| no.as_constant()) != Some(0) {
            return Ok(None);
        }
        Ok(counted.add(graph).then_some(result))
    }

    /// The iterations after which the first of some comparisons with bounds no longer holds.
    fn compared(&mut self, counted: &mut Counted<'a, '_>, trips: Option<&Index>) -> Result<Option<Count>, ImportError> {
        let Some(comparisons) = self.conjuncts(counted, counted.body.outputs[0])? else { return Ok(None) };
        let (mut found, mut is_exact, mut has_say) = (trips.cloned(), true, false);
        for comparison in comparisons {
            let holds = self.holds_for(counted, comparison)?;
            has_say |= holds.is_some();
            is_exact &= holds.is_some();
            found = match (holds, found) {
                (Some(holds), Some(least)) => {
                    let lesser = self.builder.lesser(&holds, &least).ok();
                    is_exact &= lesser.is_some();
                    lesser.or(Some(least))
                }
                (holds, found) => holds.or(found),
            };
        }
        // a loop that begins runs once, and one that is longer than any may be has its condition alone
        let within = |count: Index| match count.as_constant() {
            Some(count) => (count <= MAX_ITERATIONS).then(|| Index::constant(count.max(1))),
            None => Some(count),
        };
        let found = found.filter(|_| has_say).and_then(within);
        Ok(found.map(if is_exact { Count::Exactly } else { Count::AtMost }))
    }

    /// After how many iterations a comparison no longer holds: `counter < bound`, or `counter <= bound`.
    fn holds_for(&mut self, counted: &Counted<'a, '_>, node: &'a NodeProto) -> Result<Option<Index>, ImportError> {
        let [x, y] = &node.input[..] else { return Ok(None) };
        let (counter, bound, more) = match node.op_type.as_str() {
            "Less" => (x, y, 0),
            "LessOrEqual" => (x, y, 1),
            "Greater" => (y, x, 0),
            "GreaterOrEqual" => (y, x, 1),
            _ => return Ok(None),
        };
        let Some(first) = self.counter(counted, counter)? else { return Ok(None) };
        let Some(bound) = self.single(counted, bound)? else { return Ok(None) };
        // in the iteration i, from 0, the counter is first + i
        Ok(Some(bound.minus(&first).plus_constant(1 + more)))
    }

    /// What a value is in the first iteration, if it is one more in every other.
    fn counter(&mut self, counted: &Counted<'a, '_>, name: &'a str) -> Result<Option<Index>, ImportError> {
        let name = counted.source(name);
        if name == counted.body.inputs[0] {
            return Ok(Some(Index::constant(0)));
        }
        if let Some(state) = self.counting_state(counted, name)? {
            return Ok(self.number(&counted.states[state]));
        }
        let Some(before) = self.predecessor(counted, name)? else { return Ok(None) };
        if before == counted.body.inputs[0] {
            return Ok(Some(Index::constant(1)));
        }
        let state = self.counting_state(counted, before)?;
        let first = state.and_then(|state| self.number(&counted.states[state]));
        Ok(first.map(|first| first.plus_constant(1)))
    }

    /// The state of this name, if it is one more after each iteration.
    fn counting_state(&mut self, counted: &Counted<'a, '_>, name: &'a str) -> Result<Option<usize>, ImportError> {
        let Counted { body, states, .. } = counted;
        let Some(state) = (0..states.len()).find(|state| body.inputs[2 + state] == name) else { return Ok(None) };
        let next = counted.source(body.outputs[1 + state]);
        Ok((self.predecessor(counted, next)? == Some(name)).then_some(state))
    }

    /// The value that another one is one more than.
    fn predecessor(&mut self, counted: &Counted<'a, '_>, name: &'a str) -> Result<Option<&'a str>, ImportError> {
        let Some(sum) = counted.producers.get(name).filter(|node| node.op_type == "Add") else { return Ok(None) };
        let [x, y] = &sum.input[..] else { return Ok(None) };
        for (value, step) in [(x, y), (y, x)] {
            if self.single(counted, step)?.and_then(|step| step.as_constant()) == Some(1) {
                return Ok(Some(counted.source(value)));
            }
        }
        Ok(None)
    }

    /// A single number that is the same in all iterations.
    fn single(&mut self, counted: &Counted<'a, '_>, name: &'a str) -> Result<Option<Index>, ImportError> {
        let name = counted.source(name);
        if let Some(node) = counted.producers.get(name).filter(|node| node.op_type == "Constant") {
            return self.constant_number(node);
        }
        let (part, read) = counted.body.part(vec![name]);
        if part.order.is_empty() && !self.is_visible(name) && !part.inputs.contains(&name) {
            return Ok(None);
        }
        if !read.is_disjoint(&counted.changed) {
            return Ok(None);
        }
        let results = self.iteration(counted.node, &part, 0, counted.states)?;
        Ok(self.number(&results[0]))
    }

    fn is_known(&self, value: &Value) -> bool {
        value.parts().iter().all(|tensor| self.builder.data(*tensor).is_some())
    }

    fn constant_number(&mut self, node: &'a NodeProto) -> Result<Option<Index>, ImportError> {
        let results = self.lowered(node)?;
        Ok(results.first().and_then(|tensor| self.number(&Value::Tensor(*tensor))))
    }

    /// The element of a tensor of one, if it is known as a formula.
    fn number(&self, value: &Value) -> Option<Index> {
        match self.builder.whole_numbers(value.tensor().ok()?).as_deref() {
            Some([number]) => Some(number.clone()),
            _ => None,
        }
    }
}
