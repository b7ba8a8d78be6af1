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
use super::proto::NodeProto;
use crate::graph::TensorData;
use crate::graph::lower::MAX_ITERATIONS;
use crate::workload::{Index, TensorId};

/// Maximum number of nodes that are computed to count iterations, those of all loops together.
const MAX_COUNTED_NODES: usize = 1 << 18;
/// Maximum number of states, and of comparisons, that a condition which counts depends on: exporters write
/// one or two.
const MAX_COMPARED: usize = 16;
/// ONNX's numbers for types that hold the number of an iteration: f32, i32, i64 and f64.
const WIDE_TYPES: [i64; 4] = [1, 6, 7, 11];

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
    states: &'b [TensorId],
    /// What values stand for, of whatever wide type, and which node gives each.
    sources: HashMap<&'a str, &'a str>,
    producers: HashMap<&'a str, &'a NodeProto>,
    /// The inputs that are others in each iteration.
    changed: BTreeSet<&'a str>,
}

impl<'a> Counted<'a, '_> {
    fn new<'b>(node: &'a NodeProto, body: &'b Body<'a>, states: &'b [TensorId]) -> Counted<'a, 'b> {
        let outputs = |node: &'a NodeProto| node.output.iter().map(move |output| (output.as_str(), node));
        let changed = body.changed_states(states.len()).into_iter().map(|state| body.inputs[2 + state]);
        Counted {
            node,
            body,
            states,
            sources: body.sources(&hands_on),
            producers: body.nodes.iter().flat_map(outputs).collect(),
            changed: [body.inputs[0]].into_iter().chain(changed).collect(),
        }
    }

    fn source(&self, name: &'a str) -> &'a str {
        self.sources.get(name).copied().unwrap_or(name)
    }

    /// The nodes whose results have to hold together for a value to do; one that is anything else stands for
    /// itself. `None` for more than anybody writes.
    fn conjuncts(&self, name: &'a str) -> Option<Vec<&'a NodeProto>> {
        let (mut found, mut pending) = (Vec::new(), vec![name]);
        while let Some(name) = pending.pop() {
            match self.producers.get(self.source(name)) {
                Some(node) if node.op_type == "And" => pending.extend(node.input.iter().map(String::as_str)),
                node => found.extend(node),
            }
            if pending.len() + found.len() > MAX_COMPARED {
                return None;
            }
        }
        Some(found)
    }
}

/// Whether a node gives the number that it is given, in another shape or wide type.
fn hands_on(node: &NodeProto) -> bool {
    let is_wide = || node.attribute.iter().any(|given| given.name == "to" && WIDE_TYPES.contains(&given.i));
    match node.op_type.as_str() {
        "Identity" | "Squeeze" | "Unsqueeze" => true,
        "Cast" => is_wide(),
        _ => false,
    }
}

impl<'a> Import<'a> {
    /// The number of iterations of a loop that begins, if that is known without its data; `None` also where
    /// nothing in the loop has a say in it. `trips` are the most, no more than any loop may have.
    pub(super) fn counted_iterations(
        &mut self,
        node: &'a NodeProto,
        body: &Body<'a>,
        trips: Option<&Index>,
        states: &[TensorId],
    ) -> Result<Option<Count>, ImportError> {
        let most = trips.map_or(Some(i64::MAX), Index::as_constant);
        if let (Some(most), Some((part, needed))) = (most, self.part_that_counts(body, states))
            && let Some(found) = self.counted_one_by_one(node, (&part, &needed), states, most)?
        {
            return Ok(Some(Count::Exactly(Index::constant(found))));
        }
        self.compared(&Counted::new(node, body, states), trips)
    }

    /// Computes the part of a body that counts, and the states that it depends on, until it says no.
    fn counted_one_by_one(
        &mut self,
        node: &'a NodeProto,
        (part, needed): (&Body<'a>, &[usize]),
        states: &[TensorId],
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
            match self.builder.integers(results[0]).as_deref() {
                Some([0]) => found = Some(iteration + 1),
                Some([_]) if iteration + 1 == most => found = Some(most),
                Some([_]) if results.iter().all(|result| self.builder.data(*result).is_some()) => {}
                _ => break,
            }
            if found.is_some() {
                break;
            }
            needed.iter().zip(&results[1..]).for_each(|(state, next)| current[*state] = *next);
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
        states: &[TensorId],
    ) -> Result<Vec<TensorId>, ImportError> {
        let number = self.builder.constant(TensorData::from_i64(vec![], &[number]));
        let going = self.builder.constant(TensorData::from_bool(vec![], &[true]));
        let arguments: Vec<TensorId> = [number, going].into_iter().chain(states.iter().copied()).collect();
        self.run_graph(node, part, &arguments)
    }

    /// The part of a body that gives its condition, and the states that this depends on, all of which begin
    /// as constants; the part gives them, too.
    fn part_that_counts(&self, body: &Body<'a>, states: &[TensorId]) -> Option<(Body<'a>, Vec<usize>)> {
        let mut needed: BTreeSet<usize> = BTreeSet::new();
        loop {
            let of_states = needed.iter().map(|state| body.outputs[1 + state]);
            let (part, read) = body.part([body.outputs[0]].into_iter().chain(of_states).collect());
            let reads: BTreeSet<usize> =
                (0..states.len()).filter(|state| read.contains(body.inputs[2 + state])).collect();
            if reads.iter().any(|state| self.builder.data(states[*state]).is_none()) {
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

    /// The iterations after which the first of some comparisons with bounds no longer holds.
    fn compared(&mut self, counted: &Counted<'a, '_>, trips: Option<&Index>) -> Result<Option<Count>, ImportError> {
        let Some(comparisons) = counted.conjuncts(counted.body.outputs[0]) else { return Ok(None) };
        let (mut found, mut is_exact, mut has_say) = (trips.cloned(), true, false);
        for comparison in comparisons {
            let holds = self.holds_for(counted, comparison)?;
            has_say |= holds.is_some();
            let more = found.clone().zip(holds.clone()).map(|(least, holds)| holds.minus(&least).as_constant());
            match (holds, more) {
                (Some(holds), None | Some(Some(i64::MIN..0))) => found = Some(holds),
                (Some(_), Some(Some(_))) => {}
                (None, _) | (Some(_), Some(None)) => is_exact = false,
            }
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
            return Ok(self.number(counted.states[state]));
        }
        let Some(before) = self.predecessor(counted, name)? else { return Ok(None) };
        let state = self.counting_state(counted, before)?;
        let first = state.and_then(|state| self.number(counted.states[state]));
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
        let (part, read) = counted.body.part(vec![name]);
        if !read.is_disjoint(&counted.changed) {
            return Ok(None);
        }
        let results = self.iteration(counted.node, &part, 0, counted.states)?;
        Ok(self.number(results[0]))
    }

    /// The element of a tensor of one, if it is known as a formula.
    fn number(&self, tensor: TensorId) -> Option<Index> {
        match self.builder.whole_numbers(tensor).as_deref() {
            Some([number]) => Some(number.clone()),
            _ => None,
        }
    }
}
