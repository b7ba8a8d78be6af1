//! Loops that stay loops: as often as is said, or until a computed condition ends them.

use std::collections::{BTreeMap, BTreeSet};

use super::body::Body;
use super::error::ImportError;
use super::network::{Import, problem_of};
use super::proto::NodeProto;
use super::value::{Form, Value, formed, forms_of, parts_of};
use crate::graph::TensorData;
use crate::graph::lower::{OpenRepeat, Problem, UNBOUNDED_ITERATIONS, compressed};
use crate::workload::{Index, TensorId};

/// What a loop leaves: its last states, and what it collected.
pub(super) struct Results {
    pub last: Vec<Value>,
    pub collected: Vec<TensorId>,
}

/// What ends a repetition.
#[derive(Clone, Copy)]
pub(super) enum End {
    /// Its number of iterations alone.
    Count,
    /// The body's condition, too; whether it begins at all may be computed.
    Condition { begins: Option<TensorId> },
}

/// How a body is run again and again.
struct Run<'t> {
    trips: Option<&'t Index>,
    end: End,
    /// The states that no iteration reads: they begin as anything.
    unread: Vec<usize>,
    /// Of what the body collects, so many at the front are.
    wanted: usize,
}

/// A repetition whose body has been made.
struct Repetition {
    open: OpenRepeat,
    /// The states that iterations change, and how each of them comes apart.
    moving: Vec<usize>,
    forms: Vec<Form>,
    /// The states that no iteration reads, and what each leaves of them.
    left: Vec<(usize, TensorId)>,
    /// The number of the iteration, where it is a state of its own.
    counter: Option<TensorId>,
    /// Whether it goes on, what becomes of the moving states, and what is collected.
    goes_on: TensorId,
    next: Vec<TensorId>,
    parts: Vec<TensorId>,
}

/// A body with those states alone that anything needs, which are tensors, or lists of as many in each
/// iteration: what it appends to sequences, it collects.
struct Collecting<'a> {
    body: Body<'a>,
    /// The states that are left, and those that are collected.
    kept: Vec<usize>,
    grown: Vec<usize>,
    /// Of the states that are left, by their positions among these: those that no iteration reads.
    unread: Vec<usize>,
}

impl<'a> Collecting<'a> {
    /// `used` are the states that are read once the loop has ended.
    fn of(body: &Body<'a>, states: &[Value], used: BTreeSet<usize>) -> Collecting<'a> {
        let mut grown = appended(body, states);
        let mut live = used;
        loop {
            grown.retain(|state, _| live.contains(state));
            let kept: Vec<usize> = live.iter().copied().filter(|state| !grown.contains_key(state)).collect();
            let next = kept.iter().map(|state| body.outputs[1 + state]);
            let collected = grown.values().chain(&body.outputs[1 + states.len()..]).copied();
            let outputs = [body.outputs[0]].into_iter().chain(next).chain(collected);
            let (mut own, read) = body.part(outputs.collect());
            let reads: Vec<usize> = (0..states.len()).filter(|state| read.contains(body.inputs[2 + state])).collect();
            if reads.iter().all(|state| live.contains(state) && !grown.contains_key(state)) {
                let inputs = kept.iter().map(|state| body.inputs[2 + state]);
                own.inputs = body.inputs[..2].iter().copied().chain(inputs).collect();
                let unread = (0..kept.len()).filter(|at| !reads.contains(&kept[*at])).collect();
                return Collecting { body: own, kept, grown: grown.into_keys().collect(), unread };
            }
            grown.retain(|state, _| !reads.contains(state));
            live.extend(reads);
        }
    }
}

/// By the states that are sequences to which each iteration appends a tensor: the name of that.
fn appended<'a>(body: &Body<'a>, states: &[Value]) -> BTreeMap<usize, &'a str> {
    let (sources, producers) = (body.copied(), body.producers());
    let source = |name: &'a str| sources.get(name).copied().unwrap_or(name);
    let appended = |state: usize| {
        let node = producers.get(source(body.outputs[1 + state]))?;
        let [sequence, part, place @ ..] = &node.input[..] else { return None };
        let is_end = place.iter().all(String::is_empty);
        let appends = node.op_type == "SequenceInsert" && source(sequence) == body.inputs[2 + state];
        (appends && is_end).then_some((state, part.as_str()))
    };
    let sequences = (0..states.len()).filter(|state| matches!(states[*state], Value::Sequence(_)));
    sequences.filter_map(appended).collect()
}

impl<'a> Import<'a> {
    /// Without `trips`, a computed condition alone ends it.
    pub(super) fn repeat_loop(
        &mut self,
        node: &'a NodeProto,
        body: &Body<'a>,
        trips: Option<&Index>,
        end: End,
        states: &[Value],
    ) -> Result<Results, ImportError> {
        let wrong = |problem| problem_of(node, problem);
        let is_used = |state: &usize| node.output.get(*state).is_some_and(|output| self.is_read(output));
        let used = (0..states.len()).filter(is_used).collect();
        let Collecting { body, kept, grown, mut unread } = Collecting::of(body, states, used);
        if !matches!(end, End::Count | End::Condition { begins: None }) {
            // what there was before stays where there is no iteration
            unread.clear();
        }
        let given: Vec<Value> = kept.iter().map(|state| states[*state].clone()).collect();
        let wanted = grown.len() + node.output.len().saturating_sub(states.len());
        let run = Run { trips, end, unread, wanted };
        let Results { last, mut collected } = self.repeat_body(node, &body, &run, &given)?;
        let scanned = collected.split_off(grown.len());
        let mut all = states.to_vec();
        kept.iter().zip(last).for_each(|(state, last)| all[*state] = last);
        for (state, parts) in grown.into_iter().zip(collected) {
            if let Value::Sequence(before) = &states[state] {
                all[state] = self.lengthened(before, parts).map_err(wrong)?;
            }
        }
        Ok(Results { last: all, collected: scanned })
    }

    fn repeat_body(
        &mut self,
        node: &'a NodeProto,
        body: &Body<'a>,
        run: &Run<'_>,
        states: &[Value],
    ) -> Result<Results, ImportError> {
        let made = self.repetition(node, body, run, states)?;
        let (moving, forms, left) = (made.moving.clone(), made.forms.clone(), made.left.clone());
        let counters = usize::from(made.counter.is_some());
        let wrong = |problem| problem_of(node, problem);
        let always = self.builder.integers(made.goes_on).as_deref() == Some(&[1]);
        let (last, collected) = match run.end {
            End::Condition { begins } if !always || begins.is_some() => {
                self.until_condition(node, made, begins, run.trips.is_some())?
            }
            _ if run.trips.is_none() => return Err(wrong(Problem::Unsupported("a loop without an end".to_string()))),
            _ => {
                self.builder.dissolve_branch();
                let Repetition { mut open, next, left, parts, .. } = made;
                let left: Vec<TensorId> = left.into_iter().map(|(_, tensor)| tensor).collect();
                for tensor in &left {
                    self.builder.add_result(&mut open, *tensor).map_err(wrong)?;
                }
                let parts: Vec<(TensorId, bool)> = parts.into_iter().map(|part| (part, false)).collect();
                self.builder.close_repeat(open, &[next, left].concat(), &parts).map_err(wrong)?
            }
        };
        let mut all = states.to_vec();
        let mut last = last.into_iter();
        for (state, form) in moving.iter().zip(forms) {
            all[*state] = form.of(&mut last).ok_or_else(|| wrong(changes_form()))?;
        }
        left.into_iter().zip(last.skip(counters)).for_each(|((state, _), last)| all[state] = Value::Tensor(last));
        Ok(Results { last: all, collected })
    }

    /// The repetition of a body, which is left open as a branch inside of it.
    fn repetition(
        &mut self,
        node: &'a NodeProto,
        body: &Body<'a>,
        run: &Run<'_>,
        states: &[Value],
    ) -> Result<Repetition, ImportError> {
        let (trips, wrong) = (run.trips, |problem| problem_of(node, problem));
        self.enter(node);
        let zero = self.builder.constant(TensorData::from_i64(vec![], &[0]));
        let yes = self.builder.constant(TensorData::from_bool(vec![], &[true]));
        let counters = trips.map(|trips| self.counters(node, body, states, trips)).transpose()?.unwrap_or_default();
        self.enter(node);
        let reads_number = body.readers.contains_key(body.inputs[0]) || !counters.is_empty();
        let numbers = match trips.filter(|_| reads_number) {
            Some(trips) => vec![(self.builder.numbers(trips).map_err(wrong)?, false)],
            None => vec![],
        };
        let count = trips.cloned().unwrap_or(Index::constant(UNBOUNDED_ITERATIONS));
        // what every iteration hands on is what it was, and constants stay constants
        let (unread, moving): (Vec<usize>, Vec<usize>) =
            body.changed_states(states.len()).into_iter().partition(|state| run.unread.contains(state));
        let initial: Vec<Value> = moving.iter().map(|state| states[*state].clone()).collect();
        let forms = forms_of(&initial);
        let mut open = self.builder.open_repeat(&count, &parts_of(&initial), &numbers).map_err(wrong)?;
        let mut given = states.to_vec();
        let current = formed(&forms, open.currents()).ok_or_else(|| wrong(changes_form()))?;
        moving.iter().zip(current).for_each(|(state, current)| given[*state] = current);
        // numbers without an end cannot be written down
        let counter = match trips.is_none() && reads_number {
            true => Some(self.builder.add_state(&mut open, zero).map_err(wrong)?),
            false => None,
        };
        let number = open.parts().first().copied().or(counter).unwrap_or(zero);
        self.builder.open_branch();
        if let Some((part, trips)) = open.parts().first().copied().zip(trips) {
            let number = self.builder.count_iterations(part, trips).map_err(wrong)?;
            for (state, first) in counters {
                let Ok(own) = given[state].tensor() else { continue };
                let known = self.builder.number_like(own, &number.clone().plus(&first)).map_err(wrong)?;
                given[state] = Value::Tensor(known);
            }
        }
        let arguments: Vec<Value> = [number, yes].map(Value::Tensor).into_iter().chain(given).collect();
        let results = self.run_graph(node, body, &arguments)?;
        let goes_on = results[0].tensor().map_err(wrong)?;
        let goes_on = self.as_scalar(node, goes_on)?;
        let next: Vec<Value> = moving.iter().map(|state| results[1 + state].clone()).collect();
        if forms_of(&next) != forms {
            return Err(wrong(changes_form()));
        }
        let parts = results[1 + states.len()..].iter().take(run.wanted).map(Value::tensor);
        let parts = parts.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
        let left = unread.into_iter().map(|state| Ok((state, results[1 + state].tensor()?)));
        let left = left.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
        Ok(Repetition { open, moving, forms, left, counter, goes_on, next: parts_of(&next), parts })
    }

    /// Once the condition is false, iterations hand on what they find.
    fn until_condition(
        &mut self,
        node: &'a NodeProto,
        made: Repetition,
        begins: Option<TensorId>,
        has_bound: bool,
    ) -> Result<(Vec<TensorId>, Vec<TensorId>), ImportError> {
        let wrong = |problem| problem_of(node, problem);
        let Repetition { mut open, left, counter, goes_on, next, parts, .. } = made;
        if !parts.is_empty() && !has_bound {
            let what = "a loop that collects values until a computed condition ends it, without a bound";
            return Err(wrong(Problem::Unsupported(what.to_string())));
        }
        let [yes, no] = [true, false].map(|value| self.builder.constant(TensorData::from_bool(vec![], &[value])));
        let mut kept = open.currents();
        let number = counter.map(|number| self.builder.next_integer(number)).transpose().map_err(wrong)?;
        // beside what is collected stands whether it was
        let ran = if parts.is_empty() { None } else { Some(yes) };
        let left: Vec<TensorId> = left.into_iter().map(|(_, tensor)| tensor).collect();
        let runs: Vec<TensorId> = [&[goes_on], &next[..], number.as_slice(), &left, &parts, ran.as_slice()].concat();
        let runs = self.builder.close_branch(&runs).map_err(wrong)?;
        for tensor in left {
            kept.push(self.builder.add_result(&mut open, tensor).map_err(wrong)?);
        }
        let going = match parts.is_empty() {
            true => self.builder.add_condition(&mut open, begins.unwrap_or(yes)),
            false => self.builder.add_state(&mut open, begins.unwrap_or(yes)),
        };
        let going = going.map_err(wrong)?;
        self.builder.open_branch();
        let nothing = parts.iter().map(|part| self.builder.zeros_like(*part)).collect::<Result<Vec<_>, _>>();
        let nothing = nothing.map_err(wrong)?;
        let ran = ran.map(|_| no);
        let rests = self.builder.close_branch(&[&[no], &kept[..], &nothing, ran.as_slice()].concat()).map_err(wrong)?;
        let mut next = self.builder.conditional(going, [runs, rests]).map_err(wrong)?;
        let collected: Vec<(TensorId, bool)> =
            next.split_off(1 + kept.len()).into_iter().map(|part| (part, false)).collect();
        next.rotate_left(1);
        let (last, mut collected) = self.builder.close_repeat(open, &next, &collected).map_err(wrong)?;
        let Some(ran) = collected.pop() else { return Ok((last, collected)) };
        let found = collected.into_iter().map(|whole| compressed(&mut self.builder, whole, 0, ran));
        Ok((last, found.collect::<Result<Vec<_>, _>>().map_err(wrong)?))
    }
}

fn changes_form() -> Problem {
    Problem::Unsupported(
        "a loop with a sequence that it does more to than append a tensor in each iteration".to_string(),
    )
}
