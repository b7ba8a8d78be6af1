//! Loops that stay loops: as often as is said, or until a computed condition ends them.

use super::body::Body;
use super::error::ImportError;
use super::network::{Import, problem_of};
use super::proto::NodeProto;
use crate::graph::TensorData;
use crate::graph::lower::{OpenRepeat, Problem, UNBOUNDED_ITERATIONS, compressed};
use crate::workload::{Index, TensorId};

/// What a loop leaves: its last states, and what it collected.
pub(super) type Results = (Vec<TensorId>, Vec<TensorId>);

/// What ends a repetition.
#[derive(Clone, Copy)]
pub(super) enum End {
    /// Its number of iterations alone.
    Count,
    /// The body's condition, too; whether it begins at all may be computed.
    Condition { begins: Option<TensorId> },
}

/// A repetition whose body has been made.
struct Repetition {
    open: OpenRepeat,
    /// The states that iterations change.
    moving: Vec<usize>,
    /// The number of the iteration, where it is a state of its own.
    counter: Option<TensorId>,
    /// Whether it goes on, what becomes of the moving states, and what is collected.
    goes_on: TensorId,
    next: Vec<TensorId>,
    parts: Vec<TensorId>,
}

impl<'a> Import<'a> {
    /// Without `trips`, a computed condition alone ends it.
    pub(super) fn repeat_loop(
        &mut self,
        node: &'a NodeProto,
        body: &Body<'a>,
        trips: Option<&Index>,
        end: End,
        states: &[TensorId],
    ) -> Result<Results, ImportError> {
        let made = self.repetition(node, body, trips, states)?;
        let moving = made.moving.clone();
        let wrong = |problem| problem_of(node, problem);
        let always = self.builder.integers(made.goes_on).as_deref() == Some(&[1]);
        let (last, collected) = match end {
            End::Condition { begins } if !always || begins.is_some() => {
                self.until_condition(node, made, begins, trips.is_some())?
            }
            _ if trips.is_none() => return Err(wrong(Problem::Unsupported("a loop without an end".to_string()))),
            _ => {
                self.builder.dissolve_branch();
                let parts: Vec<(TensorId, bool)> = made.parts.iter().map(|part| (*part, false)).collect();
                self.builder.close_repeat(made.open, &made.next, &parts).map_err(wrong)?
            }
        };
        let mut all = states.to_vec();
        moving.iter().zip(last).for_each(|(state, last)| all[*state] = last);
        Ok((all, collected))
    }

    /// The repetition of a body, which is left open as a branch inside of it.
    fn repetition(
        &mut self,
        node: &'a NodeProto,
        body: &Body<'a>,
        trips: Option<&Index>,
        states: &[TensorId],
    ) -> Result<Repetition, ImportError> {
        let wrong = |problem| problem_of(node, problem);
        self.enter(node);
        let zero = self.builder.constant(TensorData::from_i64(vec![], &[0]));
        let yes = self.builder.constant(TensorData::from_bool(vec![], &[true]));
        let reads_number = body.readers.contains_key(body.inputs[0]);
        let numbers = match trips.filter(|_| reads_number) {
            Some(trips) => vec![(self.builder.numbers(trips).map_err(wrong)?, false)],
            None => vec![],
        };
        let count = trips.cloned().unwrap_or(Index::constant(UNBOUNDED_ITERATIONS));
        // what every iteration hands on is what it was, and constants stay constants
        let moving = body.changed_states(states.len());
        let initial: Vec<TensorId> = moving.iter().map(|state| states[*state]).collect();
        let mut open = self.builder.open_repeat(&count, &initial, &numbers).map_err(wrong)?;
        let mut given = states.to_vec();
        moving.iter().zip(open.currents()).for_each(|(state, current)| given[*state] = current);
        // numbers without an end cannot be written down
        let counter = match trips.is_none() && reads_number {
            true => Some(self.builder.add_state(&mut open, zero).map_err(wrong)?),
            false => None,
        };
        let number = open.parts().first().copied().or(counter).unwrap_or(zero);
        self.builder.open_branch();
        let arguments: Vec<TensorId> = [number, yes].into_iter().chain(given).collect();
        let results = self.run_graph(node, body, &arguments)?;
        let goes_on = self.as_scalar(node, results[0])?;
        let next = moving.iter().map(|state| results[1 + state]).collect();
        let wanted = node.output.len().saturating_sub(states.len());
        let parts = results[1 + states.len()..].iter().take(wanted).copied().collect();
        Ok(Repetition { open, moving, counter, goes_on, next, parts })
    }

    /// Once the condition is false, iterations hand on what they find.
    fn until_condition(
        &mut self,
        node: &'a NodeProto,
        made: Repetition,
        begins: Option<TensorId>,
        has_bound: bool,
    ) -> Result<Results, ImportError> {
        let wrong = |problem| problem_of(node, problem);
        let Repetition { mut open, counter, goes_on, next, parts, .. } = made;
        if !parts.is_empty() && !has_bound {
            let what = "a loop that collects values until a computed condition ends it, without a bound";
            return Err(wrong(Problem::Unsupported(what.to_string())));
        }
        let [yes, no] = [true, false].map(|value| self.builder.constant(TensorData::from_bool(vec![], &[value])));
        let kept = open.currents();
        let number = counter.map(|number| self.builder.next_integer(number)).transpose().map_err(wrong)?;
        // beside what is collected stands whether it was
        let ran = if parts.is_empty() { None } else { Some(yes) };
        let runs: Vec<TensorId> = [&[goes_on], &next[..], number.as_slice(), &parts, ran.as_slice()].concat();
        let runs = self.builder.close_branch(&runs).map_err(wrong)?;
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
