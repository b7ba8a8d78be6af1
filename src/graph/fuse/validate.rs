//! What must hold of a network, whoever made it.

use std::ops::Range;

use thiserror::Error;

use super::written::{Parts, Written};
use crate::graph::symbol::range as formula_range;
use crate::graph::{Binding, Call, Callee, Motion, Network, Region, RegionKind, RunTime, Source};
use crate::workload::{
    DType, Index, Parameter, Role, RowsOfPart, Tensor, TensorId, Workload, reach_of_part, strides_of_part,
};

/// A network that breaks its invariants: a bug of whoever made it, or a damaged file.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NetworkError {
    #[error("call {call}: there is no task {task}")]
    UnknownTask { call: usize, task: usize },
    #[error("call {call}: {found} arguments for the {expected} of its task")]
    Arguments { call: usize, expected: usize, found: usize },
    #[error("call {call}, argument {argument}: there is no buffer {buffer}")]
    UnknownBuffer { call: usize, argument: usize, buffer: usize },
    #[error("call {call}, argument {argument}: elements {first}..{end} of a buffer of {elements}")]
    OutOfRange { call: usize, argument: usize, first: i64, end: i64, elements: i64 },
    #[error("call {call}, argument {argument}: it may be further in its buffer than it is at most")]
    RunTime { call: usize, argument: usize },
    #[error("call {call}, argument {argument}: the element type differs from the buffer's")]
    Type { call: usize, argument: usize },
    #[error("call {call}, argument {argument}: reads elements that no call wrote before")]
    ReadBeforeWrite { call: usize, argument: usize },
    #[error("call {call}, argument {argument}: writes elements that were written before, or are given")]
    WrittenTwice { call: usize, argument: usize },
    #[error("call {call}, argument {argument}: a constant of its task that is none of the network")]
    NotConstant { call: usize, argument: usize },
    #[error("call {call}, argument {argument}: a part of a tensor, in a repetition or where all of it is needed")]
    Part { call: usize, argument: usize },
    #[error("output `{name}` is not written completely")]
    Incomplete { name: String },
    #[error("call {call}: a region that is empty, cuts another one, or is a repetition inside of one")]
    Region { call: usize },
    #[error("call {call}: strands of a fork that need one another, or cut what runs as a whole")]
    Fork { call: usize },
    #[error("call {call}: parameters that are no formulas of the network's symbols, or that its task does not take")]
    Parameters { call: usize },
    #[error("task `{name}` has the weight {weight}, but {calls} calls")]
    Weight { name: String, weight: usize, calls: usize },
}

/// The tensors that a task's kernel takes, in the order in which it does: all but intermediates.
pub fn bound_tensors(workload: &Workload) -> impl Iterator<Item = (TensorId, &Tensor)> {
    workload.ids().filter(|(_, tensor)| tensor.role != Role::Intermediate)
}

impl Network {
    /// Checks that every binding lies in its buffer, that elements are written before they are read, and only
    /// once (those of states in turn), that regions are nested, that strands of forks need nothing of
    /// one another, and that all outputs are written.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn validate(&self) -> Result<(), NetworkError> {
        let mut written: Vec<Written> = self.buffers.iter().map(|_| Written::default()).collect();
        self.validate_calls(0..self.calls.len(), &self.regions, 1, &mut written)?;
        for (buffer, ranges) in self.buffers.iter().zip(&written) {
            if let Source::Output(name) = &buffer.source
                && !ranges.covers(0, buffer.shape.iter().product())
            {
                return Err(NetworkError::Incomplete { name: name.clone() });
            }
        }
        if let Some(call) = self.wrong_fork() {
            return Err(NetworkError::Fork { call });
        }
        let mut calls = vec![0usize; self.tasks.len()];
        let mut is_open = vec![false; self.tasks.len()];
        for (number, call) in self.calls.iter().enumerate() {
            if let Some(task) = call.task() {
                calls[task] = calls[task].saturating_add(self.expected_iterations_of(number) as usize);
                is_open[task] |= self.regions.iter().any(|region| region.is_open() && region.calls.contains(&number));
            }
        }
        for ((task, calls), is_open) in self.tasks.iter().zip(calls).zip(is_open) {
            let fits = if is_open { (1..=calls).contains(&task.weight) } else { calls == task.weight };
            if !fits {
                return Err(NetworkError::Weight { name: task.name.clone(), weight: task.weight, calls });
            }
        }
        Ok(())
    }

    /// How often a call is taken to run.
    pub fn expected_iterations_of(&self, call: usize) -> i64 {
        let around = self.regions.iter().filter(|region| region.calls.contains(&call));
        around.fold(1, |count, region| count.saturating_mul(region.expected_iterations()))
    }

    /// How often a call runs at most.
    pub fn iterations_of(&self, call: usize) -> i64 {
        let around = self.regions.iter().filter(|region| region.calls.contains(&call));
        around.fold(1, |count, region| match region.kind {
            RegionKind::Repeat { count: own, .. } => count.saturating_mul(own),
            RegionKind::If { .. } | RegionKind::Nearest { .. } => count,
        })
    }

    /// `regions` are those that start among the calls, `iterations` how often they run in a repetition.
    fn validate_calls(
        &self,
        calls: Range<usize>,
        regions: &[Region],
        iterations: i64,
        written: &mut Vec<Written>,
    ) -> Result<(), NetworkError> {
        let (mut at, mut regions) = (calls.start, regions);
        // what the branch before left, and what it found
        let mut branch: Option<(Binding, usize, Vec<Written>, Vec<Written>)> = None;
        while at < calls.end {
            let Some((region, rest)) = regions.split_first().filter(|(region, _)| region.calls.start == at) else {
                self.validate_call(at, iterations, written)?;
                at += 1;
                continue;
            };
            let inner = rest.iter().take_while(|inner| inner.calls.start < region.calls.end).count();
            let is_nested = region.calls.end <= calls.end && region.calls.start < region.calls.end;
            match &region.kind {
                _ if !is_nested => return Err(NetworkError::Region { call: at }),
                RegionKind::Repeat { count, .. } if *count < 1 || iterations > 1 => {
                    return Err(NetworkError::Region { call: at });
                }
                RegionKind::Repeat { count, going, .. } => {
                    if let Some(going) = going {
                        self.check_condition(at, going, *count, written)?;
                    }
                    self.validate_calls(region.calls.clone(), &rest[..inner], *count, written)?;
                }
                RegionKind::Nearest { points } => {
                    self.validate_call(at, iterations, written)?;
                    if inner > 0 || !self.is_choice(region.calls.clone(), points) {
                        return Err(NetworkError::Region { call: at });
                    }
                }
                RegionKind::If { condition, wanted } => {
                    self.check_condition(at, condition, iterations, written)?;
                    let same = |(other, end, ..): &(Binding, usize, _, _)| other == condition && *end == at && !wanted;
                    let other = branch.take().filter(same);
                    let found = other.as_ref().map_or_else(|| written.clone(), |(.., found)| found.clone());
                    written.clone_from(&found);
                    self.validate_calls(region.calls.clone(), &rest[..inner], iterations, written)?;
                    match other {
                        Some((_, _, left, _)) => {
                            written.iter_mut().zip(&left).for_each(|(own, other)| *own = own.common(other));
                        }
                        None => {
                            let left = std::mem::replace(written, found.clone());
                            branch = Some((condition.clone(), region.calls.end, left, found));
                        }
                    }
                }
            }
            (at, regions) = (region.calls.end, &rest[inner..]);
        }
        match regions.is_empty() {
            true => Ok(()),
            false => Err(NetworkError::Region { call: at }),
        }
    }

    /// Whether all of some calls compute the same as the first, and points are given for each.
    fn is_choice(&self, calls: Range<usize>, points: &[(usize, Vec<i64>)]) -> bool {
        let first = &self.calls[calls.start];
        let computes_the_same = |(own, first): (&Workload, &Workload)| {
            Workload { points: Vec::new(), ..own.clone() } == Workload { points: Vec::new(), ..first.clone() }
        };
        let is_alike = |number: usize| {
            let call = &self.calls[number];
            call.arguments == first.arguments
                && call.parameters == first.parameters
                && self.workload_of(number).zip(self.workload_of(calls.start)).is_some_and(computes_the_same)
        };
        let fits = |(call, point): &(usize, Vec<i64>)| *call < calls.len() && point.len() == first.parameters.len();
        let has_points = |call: usize| points.iter().any(|(own, _)| *own == call);
        calls.clone().all(is_alike) && points.iter().all(fits) && (0..calls.len()).all(has_points)
    }

    fn workload_of(&self, call: usize) -> Option<&Workload> {
        Some(&self.tasks.get(self.calls[call].task()?)?.workload)
    }

    fn check_condition(
        &self,
        call: usize,
        at: &Binding,
        iterations: i64,
        written: &[Written],
    ) -> Result<(), NetworkError> {
        let condition = Bound::whole(Tensor::new(vec![], DType::Bool, Role::Input));
        self.check_binding(call, 0, &condition, at, iterations)?;
        match self.is_given(at.buffer) || written[at.buffer].covers(at.offset, at.offset + 1) {
            true => Ok(()),
            false => Err(NetworkError::ReadBeforeWrite { call, argument: 0 }),
        }
    }

    /// The arguments that a call takes, in order.
    fn tensors_of(&self, call: usize) -> Result<Vec<Bound>, NetworkError> {
        match &self.calls[call].callee {
            Callee::Task(task) => {
                let known = self.tasks.get(*task).ok_or(NetworkError::UnknownTask { call, task: *task })?;
                Ok(bound_tensors(&known.workload).map(|(id, _)| Bound::of(&known.workload, id)).collect())
            }
            Callee::Library(routine) => {
                let flat = |role: Role| move |(elements, dtype)| Bound::whole(Tensor::new(vec![elements], dtype, role));
                let inputs = routine.inputs().into_iter().map(flat(Role::Input));
                Ok(inputs.chain(routine.outputs().into_iter().map(flat(Role::Output))).collect())
            }
        }
    }

    /// Whether the parameters that a call gives are some that its task takes, whatever the symbols are.
    fn fits_parameters(&self, call: usize) -> bool {
        let (Call { parameters, .. }, symbols) = (&self.calls[call], self.symbols.ranges());
        let wanted = self.calls[call].numbers(&self.tasks);
        let fits = |(formula, wanted): (&Index, &Parameter)| {
            formula_range(formula, &symbols).is_some_and(|range| wanted.low <= range.low && range.high <= wanted.high)
        };
        parameters.len() == wanted.len() && parameters.iter().zip(&wanted).all(fits)
    }

    fn is_given(&self, buffer: usize) -> bool {
        !matches!(self.buffers[buffer].source, Source::Output(_) | Source::Intermediate)
    }

    fn validate_call(&self, call: usize, iterations: i64, written: &mut [Written]) -> Result<(), NetworkError> {
        let (tensors, arguments) = (self.tensors_of(call)?, &self.calls[call].arguments);
        if tensors.len() != arguments.len() {
            return Err(NetworkError::Arguments { call, expected: tensors.len(), found: arguments.len() });
        }
        if !self.fits_parameters(call) {
            return Err(NetworkError::Parameters { call });
        }
        let bound = || tensors.iter().zip(arguments).enumerate();
        for (argument, (bound, binding)) in bound() {
            self.check_binding(call, argument, bound, binding, iterations)?;
            let elements = bound.tensor.elements();
            // of a state the first half is there before the first iteration
            let is_written = || match binding.motion.period {
                0 if bound.is_whole() || iterations > 1 => {
                    written[binding.buffer].holds(parts(binding, elements, iterations))
                }
                0 => bound.pieces(binding).into_iter().all(|piece| written[binding.buffer].holds(piece)),
                _ => written[binding.buffer].covers(binding.offset, binding.offset + elements),
            };
            let is_there = self.is_given(binding.buffer) || is_written();
            if bound.tensor.role != Role::Output && !is_there {
                return Err(NetworkError::ReadBeforeWrite { call, argument });
            }
        }
        for (argument, (bound, binding)) in bound().filter(|(_, (bound, _))| bound.tensor.role == Role::Output) {
            let (buffer, elements) = (&mut written[binding.buffer], bound.tensor.elements());
            let is_new = match binding.motion.period {
                0 if bound.is_whole() => buffer.insert(parts(binding, elements, iterations)),
                0 => bound.pieces(binding).into_iter().all(|piece| buffer.insert(piece)),
                _ => {
                    let (first, end) = span(binding, elements, iterations);
                    buffer.put(first, end);
                    true
                }
            };
            if self.is_given(binding.buffer) || !is_new {
                return Err(NetworkError::WrittenTwice { call, argument });
            }
        }
        Ok(())
    }

    /// Whether what a binding says of runs is never more than its numbers.
    fn is_less_in_runs(&self, at: &Binding) -> bool {
        let symbols = self.symbols.ranges();
        let is_less = |formula: &Option<Index>, most: i64| {
            let range = |formula| formula_range(formula, &symbols);
            formula.as_ref().is_none_or(|formula| {
                range(formula).is_some_and(|range| most.min(0) <= range.low && range.high <= most.max(0))
            })
        };
        is_less(&at.run_time.offset, at.offset) && is_less(&at.run_time.step, at.motion.step)
    }

    fn check_binding(
        &self,
        call: usize,
        argument: usize,
        bound: &Bound,
        at: &Binding,
        iterations: i64,
    ) -> Result<(), NetworkError> {
        let tensor = &bound.tensor;
        let Some(buffer) = self.buffers.get(at.buffer) else {
            return Err(NetworkError::UnknownBuffer { call, argument, buffer: at.buffer });
        };
        let is_intermediate = matches!(buffer.source, Source::Intermediate);
        let moves = iterations > 1 || at.motion != Motion::default() || at.run_time != RunTime::default();
        if !bound.is_whole() && tensor.role == Role::Output && (moves || !is_intermediate) {
            return Err(NetworkError::Part { call, argument });
        }
        // behind intermediates there is room for what is not touched
        let reach = if is_intermediate && !moves { bound.reach() } else { tensor.elements() };
        let (first, end) = span(at, reach, iterations);
        let elements = buffer.shape.iter().product();
        if first < 0 || end > elements {
            return Err(NetworkError::OutOfRange { call, argument, first, end, elements });
        }
        if !self.is_less_in_runs(at) {
            return Err(NetworkError::RunTime { call, argument });
        }
        if buffer.dtype != tensor.dtype {
            return Err(NetworkError::Type { call, argument });
        }
        if tensor.role == Role::Constant && !matches!(buffer.source, Source::Constant(_)) {
            return Err(NetworkError::NotConstant { call, argument });
        }
        Ok(())
    }
}

/// A tensor that a call takes, and how many elements of it are touched along each dimension.
struct Bound {
    tensor: Tensor,
    touched: Vec<i64>,
}

impl Bound {
    /// All of it.
    fn whole(tensor: Tensor) -> Bound {
        Bound { touched: tensor.shape.clone(), tensor }
    }

    fn of(workload: &Workload, id: TensorId) -> Bound {
        Bound { touched: workload.touched(id), tensor: workload.tensor(id).clone() }
    }

    fn is_whole(&self) -> bool {
        self.touched == self.tensor.shape
    }

    /// How many elements there are up to the last that is touched.
    fn reach(&self) -> i64 {
        reach_of_part(&self.touched, &self.tensor.shape)
    }

    /// What is touched of a buffer.
    fn pieces(&self, at: &Binding) -> Vec<Parts> {
        let (rows, elements) = strides_of_part(&self.touched, &self.tensor.shape);
        let piece = |rows: RowsOfPart| {
            let (step, count) = (rows.step, rows.count);
            Parts { first: at.offset.saturating_add(rows.first), elements, step, count }
        };
        rows.into_iter().map(piece).collect()
    }
}

/// What a tensor of so many elements is in all iterations, the lowest part first.
fn parts(at: &Binding, elements: i64, iterations: i64) -> Parts {
    let last = at.offset.saturating_add(at.motion.step.saturating_mul(iterations - 1));
    Parts { first: at.offset.min(last), elements, step: at.motion.step.saturating_abs(), count: iterations }
}

/// The elements that a part of so many elements comes to in all iterations.
fn span(at: &Binding, elements: i64, iterations: i64) -> (i64, i64) {
    let places = if at.motion.period > 0 { at.motion.period } else { iterations };
    let moved = at.motion.step.saturating_mul(places - 1);
    let (low, high) = (at.offset.saturating_add(moved.min(0)), at.offset.saturating_add(moved.max(0)));
    (low, high.saturating_add(elements))
}
