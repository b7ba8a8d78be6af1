//! Loops whose condition only counts: `while i < 1000`, as frameworks write them that have no other loops.
//!
//! Such a loop has a number of iterations, and so may collect values. Where it follows from constants, what
//! the condition needs is computed for one iteration after the other, without the rest of the body. Where the
//! bound is a formula of open extents, the condition has to be a comparison of a counter with it, or several
//! of them.

use std::collections::BTreeSet;

use super::body::Body;
use super::error::ImportError;
use super::network::Import;
use super::proto::NodeProto;
use crate::graph::TensorData;
use crate::graph::lower::MAX_ITERATIONS;
use crate::workload::{Index, TensorId};

/// Maximum number of nodes that are computed to count iterations, those of all loops together.
const MAX_COUNTED_NODES: usize = 1 << 18;
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
#[derive(Clone, Copy)]
struct Counted<'a, 'b> {
    node: &'a NodeProto,
    body: &'b Body<'a>,
    states: &'b [TensorId],
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
        let counted = Counted { node, body, states };
        let most = trips.map_or(Some(i64::MAX), Index::as_constant);
        if let (Some(most), Some((part, needed))) = (most, self.part_that_counts(body, states))
            && let Some(found) = self.counted_one_by_one(counted, &part, &needed, most)?
        {
            return Ok(Some(Count::Exactly(Index::constant(found))));
        }
        self.compared(counted, trips)
    }

    fn counted_one_by_one(
        &mut self,
        Counted { node, states, .. }: Counted<'a, '_>,
        part: &Body<'a>,
        needed: &[usize],
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
        }
    }

    /// The iterations after which the first of some comparisons with bounds no longer holds.
    fn compared(&mut self, counted: Counted<'a, '_>, trips: Option<&Index>) -> Result<Option<Count>, ImportError> {
        let (mut found, mut is_exact, mut has_say) = (trips.cloned(), true, false);
        for comparison in conjuncts(counted.body, counted.body.outputs[0]) {
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
    fn holds_for(&mut self, counted: Counted<'a, '_>, node: &'a NodeProto) -> Result<Option<Index>, ImportError> {
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
    fn counter(&mut self, counted: Counted<'a, '_>, name: &'a str) -> Result<Option<Index>, ImportError> {
        let Counted { body, .. } = counted;
        let name = widened(body, name);
        if name == body.inputs[0] {
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
    fn counting_state(&mut self, counted: Counted<'a, '_>, name: &'a str) -> Result<Option<usize>, ImportError> {
        let Counted { body, states, .. } = counted;
        let Some(state) = (0..states.len()).find(|state| body.inputs[2 + state] == name) else { return Ok(None) };
        let next = widened(body, body.outputs[1 + state]);
        Ok((self.predecessor(counted, next)? == Some(name)).then_some(state))
    }

    /// The value that another one is one more than.
    fn predecessor(&mut self, counted: Counted<'a, '_>, name: &'a str) -> Result<Option<&'a str>, ImportError> {
        let Some(sum) = counted.body.producer(name).filter(|node| node.op_type == "Add") else { return Ok(None) };
        let [x, y] = &sum.input[..] else { return Ok(None) };
        for (value, step) in [(x, y), (y, x)] {
            if self.single(counted, step)?.and_then(|step| step.as_constant()) == Some(1) {
                return Ok(Some(widened(counted.body, value)));
            }
        }
        Ok(None)
    }

    /// A single number that is the same in all iterations.
    fn single(&mut self, counted: Counted<'a, '_>, name: &'a str) -> Result<Option<Index>, ImportError> {
        if !counted.is_invariant(name) {
            return Ok(None);
        }
        let (part, _) = counted.body.part(vec![name]);
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

impl Counted<'_, '_> {
    /// Whether a value is the same in all iterations.
    fn is_invariant(&self, name: &str) -> bool {
        let Counted { body, states, .. } = self;
        let (_, read) = body.part(vec![name]);
        let moves = |state: &usize| !body.hands_on(2 + state, 1 + state);
        let moving = (0..states.len()).filter(moves).map(|state| body.inputs[2 + state]);
        body.inputs[..1].iter().copied().chain(moving).all(|name| !read.contains(name))
    }
}

/// The nodes whose results have to hold together for a value to do; one that is anything else stands for
/// itself.
fn conjuncts<'a>(body: &Body<'a>, name: &'a str) -> Vec<&'a NodeProto> {
    let (mut found, mut pending) = (Vec::new(), vec![name]);
    while let Some(name) = pending.pop() {
        match body.producer(body.resolved(name)) {
            Some(node) if node.op_type == "And" => pending.extend(node.input.iter().map(String::as_str)),
            found_node => found.extend(found_node),
        }
    }
    found
}

/// The value that a name stands for, of whatever wide type.
fn widened<'a>(body: &Body<'a>, name: &'a str) -> &'a str {
    let mut found = body.resolved(name);
    while let Some(node) = body.producer(found).filter(|node| node.op_type == "Cast") {
        let is_wide = node.attribute.iter().any(|given| given.name == "to" && WIDE_TYPES.contains(&given.i));
        let Some(input) = node.input.first().filter(|_| is_wide) else { break };
        found = body.resolved(input);
    }
    found
}
