//! Branches, repetitions and calls of the run-time library.
//!
//! An operation that holds steps is opened, then its steps are made as any others, then it is closed.

use super::builder::{Builder, Outer};
use super::math::{add, literal, load, vars};
use super::operator::Problem;
use super::reshape::reshape_to;
use crate::graph::{
    Branch, Collected, Conditional, LibraryCall, Origin, ProgramStage, Repeat, Routine, Scanned, State, Step, Symbol,
    TensorData,
};
use crate::workload::{DType, Expr, Extents, Index, Parameter, Stage, Tensor, TensorId, Var};

/// A repetition may run so often.
pub const MAX_ITERATIONS: i64 = 1 << 24;

/// A repetition that a computed condition alone ends has so many iterations at most: more than any run has
/// time for. Even, as an end by the condition may be.
pub const UNBOUNDED_ITERATIONS: i64 = 1 << 40;

/// Maximum number of branches and repetitions in a program.
const MAX_OPERATIONS: usize = 1 << 9;

/// Maximum number of results whose extents depend on data: each waits for those that it depends on.
const MAX_COUNTS: usize = 1 << 8;

/// A repetition whose body is being made.
#[derive(Debug)]
pub struct OpenRepeat {
    count: Index,
    /// At most.
    most: i64,
    /// `next` and `last` are not there yet.
    states: Vec<(TensorId, TensorId)>,
    scanned: Vec<Scanned>,
    /// The number of the state that says whether it goes on.
    going: Option<usize>,
    /// The first tensor of its body.
    first: usize,
}

impl OpenRepeat {
    /// The states that an iteration reads.
    pub fn currents(&self) -> Vec<TensorId> {
        self.states.iter().map(|(_, current)| *current).collect()
    }

    /// The elements that an iteration reads.
    pub fn parts(&self) -> Vec<TensorId> {
        self.scanned.iter().map(|scanned| scanned.part).collect()
    }
}

impl Builder {
    /// A tensor that some step writes, of the extents and the type of another.
    fn add_alike(&mut self, about: &Tensor) -> TensorId {
        self.add_intermediate(about.shape.clone(), about.dtype, about.extents.clone())
    }

    /// What follows belongs to a block, up to [`Builder::close_block`].
    fn open_block(&mut self, repeats: bool) {
        let (steps, affine) = (std::mem::take(self.steps()), std::mem::take(&mut self.affine));
        self.outer.push(Outer { steps, affine, repeats });
    }

    /// Whether what is made next is inside of a branch or a repetition.
    pub fn is_in_block(&self) -> bool {
        !self.outer.is_empty()
    }

    /// Whether what is made next is inside of a repetition.
    pub fn is_repeated(&self) -> bool {
        self.outer.iter().any(|outer| outer.repeats)
    }

    fn close_block(&mut self) -> Vec<Step> {
        let Outer { steps, affine, .. } = self.outer.pop().unwrap_or_default();
        self.affine = affine;
        std::mem::replace(self.steps(), steps)
    }

    /// Starts a branch of a conditional.
    pub fn open_branch(&mut self) {
        self.open_block(false);
    }

    /// One more operation that holds blocks.
    fn count_operation(&mut self) -> Result<(), Problem> {
        self.operations += 1;
        match self.operations > MAX_OPERATIONS {
            true => Err(Problem::Unsupported(format!("more than {MAX_OPERATIONS} loops and branches"))),
            false => Ok(()),
        }
    }

    /// Puts the steps of a branch where it was opened: it needs no condition after all.
    pub fn dissolve_branch(&mut self) {
        let steps = self.close_block();
        self.steps().extend(steps);
    }

    /// Ends a branch with its results.
    ///
    /// # Errors
    /// [`Problem::Unsupported`] for a result without elements.
    pub fn close_branch(&mut self, results: &[TensorId]) -> Result<Branch, Problem> {
        let results = results.iter().map(|tensor| self.copied(*tensor)).collect::<Result<_, _>>()?;
        Ok(Branch { steps: self.close_block(), results })
    }

    /// The results of one of two branches: of the first where the condition, a Boolean of one element, is
    /// true.
    ///
    /// # Errors
    /// [`Problem`] where the condition is something else, or the results differ in shape or type.
    pub fn conditional(&mut self, condition: TensorId, mut branches: [Branch; 2]) -> Result<Vec<TensorId>, Problem> {
        self.count_operation()?;
        let about = self.tensor(condition);
        if about.dtype != DType::Bool {
            return Err(Problem::Type { input: 0, dtype: about.dtype });
        }
        if about.elements() != 1 {
            return Err(Problem::Shape(format!("a condition of shape {:?} is no single value", about.shape)));
        }
        self.give_same_rank(&mut branches);
        let mut outputs = Vec::new();
        for (yes, no) in branches[0].results.iter().zip(&branches[1].results) {
            let (yes, no) = (self.tensor(*yes).clone(), self.tensor(*no).clone());
            let has_same_extents = yes.shape == no.shape && yes.extents == no.extents;
            if !has_same_extents || yes.dtype != no.dtype {
                let (a, b) = (yes.dtype.name(), no.dtype.name());
                let what = format!("a branch with {a} {:?} beside one with {b} {:?}", yes.shape, no.shape);
                return Err(Problem::Unsupported(what));
            }
            outputs.push(self.add_alike(&yes));
        }
        let node = self.node();
        self.steps().push(Step::If(Conditional { condition, branches, outputs: outputs.clone(), node }));
        Ok(outputs)
    }

    /// Where branches give one element in shapes of different ranks, the one of fewer axes takes those of the
    /// other: exporters write flags as scalars here and as rows of one there.
    fn give_same_rank(&mut self, branches: &mut [Branch; 2]) {
        for at in 0..branches[0].results.len().min(branches[1].results.len()) {
            let results = [0, 1].map(|branch| branches[branch].results[at]);
            let ranks = results.map(|tensor| self.rank(tensor));
            if ranks[0] == ranks[1] || !results.iter().all(|tensor| self.is_single(*tensor)) {
                continue;
            }
            let (low, high) = if ranks[0] < ranks[1] { (0, 1) } else { (1, 0) };
            let about = Tensor { dtype: self.dtype(results[low]), ..self.tensor(results[high]).clone() };
            let own = self.add_alike(&about);
            let value = load(results[low], vec![Index::constant(0); ranks[low]]);
            let stage = ProgramStage { stage: Stage::map(own, about.shape, value), node: self.node() };
            branches[low].steps.push(Step::Stage(stage));
            branches[low].results[at] = own;
        }
    }

    fn is_single(&self, tensor: TensorId) -> bool {
        let about = self.tensor(tensor);
        about.extents.is_fixed() && about.elements() == 1
    }

    /// Starts a repetition with states, and with tensors whose leading axis it goes through, backwards where
    /// it says so. `count` may be a formula that is at least 1.
    ///
    /// # Errors
    /// [`Problem`] for a count out of range, a tensor without elements, or one whose leading axis is another.
    pub fn open_repeat(
        &mut self,
        count: &Index,
        states: &[TensorId],
        scanned: &[(TensorId, bool)],
    ) -> Result<OpenRepeat, Problem> {
        let most = self.most_iterations(count)?;
        self.count_operation()?;
        if self.is_repeated() {
            return Err(Problem::Unsupported("a long loop inside of another one".to_string()));
        }
        let initial = states.iter().map(|state| self.copied(*state)).collect::<Result<Vec<_>, _>>()?;
        let (count, first) = (count.clone(), self.tensors());
        let mut open = OpenRepeat { count, most, states: Vec::new(), scanned: Vec::new(), going: None, first };
        for initial in initial {
            let about = self.tensor(initial).clone();
            open.states.push((initial, self.add_alike(&about)));
        }
        for (whole, reversed) in scanned {
            let whole = self.along(*whole, &open.count)?;
            let about = self.tensor(whole).clone();
            let extents = about.extents.moved(|axis| axis.checked_sub(1));
            let part = self.add_alike(&Tensor { shape: about.shape[1..].to_vec(), extents, ..about });
            open.scanned.push(Scanned { whole, part, reversed: *reversed });
        }
        self.open_block(true);
        Ok(open)
    }

    /// How often a repetition runs at most, which is at least once.
    fn most_iterations(&mut self, count: &Index) -> Result<i64, Problem> {
        let most = match count.as_constant() {
            Some(count) => count,
            None => {
                self.formulas.require(&count.clone().plus_constant(-1), "the number of iterations after the first")?;
                self.formulas.most(count)?
            }
        };
        match most {
            1..=MAX_ITERATIONS | UNBOUNDED_ITERATIONS => Ok(most),
            // smaller extents may do
            most if count.as_constant().is_none() => Err(Problem::TooLarge(vec![most])),
            most => Err(Problem::Unsupported(format!("a loop of {most} iterations"))),
        }
    }

    /// A tensor whose leading axis is gone through in so many iterations.
    fn along(&mut self, whole: TensorId, count: &Index) -> Result<TensorId, Problem> {
        let about = self.tensor(whole).clone();
        if about.shape.is_empty() || about.elements() == 0 {
            return Err(Problem::Shape(format!("{:?} cannot be gone through", about.shape)));
        }
        let mut extents = self.extents(whole);
        match (extents[0].as_constant(), count.as_constant()) {
            _ if extents[0] == *count => return Ok(whole),
            (Some(length), Some(count)) => {
                return Err(Problem::Shape(format!("{:?} has {length} elements for {count} iterations", about.shape)));
            }
            _ => self.formulas.unify(&extents[0], count)?,
        }
        // another formula of the same number: the repetition's own is written down
        extents[0] = count.clone();
        let indices = vars(0, extents.len());
        let guards = self.unproven(whole, &extents, &indices)?;
        let value = Expr::guard(guards, load(whole, indices), literal(about.dtype, 0.0));
        self.map_over(&extents, about.dtype, value)
    }

    /// Adds a state to a repetition whose body is being made, and gives what an iteration reads.
    ///
    /// # Errors
    /// [`Problem`] where it has no elements.
    pub fn add_state(&mut self, open: &mut OpenRepeat, state: TensorId) -> Result<TensorId, Problem> {
        let body = self.close_block();
        let initial = self.copied(state)?;
        self.open_block(true);
        *self.steps() = body;
        let about = self.tensor(initial).clone();
        let current = self.add_alike(&about);
        open.states.push((initial, current));
        Ok(current)
    }

    /// Adds a state that no iteration reads: what each leaves, of the extents and the type of a tensor, to a
    /// repetition that runs at least once.
    ///
    /// # Errors
    /// As [`Builder::add_state`].
    pub fn add_result(&mut self, open: &mut OpenRepeat, like: TensorId) -> Result<TensorId, Problem> {
        let body = self.close_block();
        let before = self.zeros_like(like);
        self.open_block(true);
        *self.steps() = body;
        self.add_state(open, before?)
    }

    /// The same for the Boolean, of one element, that ends the repetition: once it is false, iterations hand
    /// on what they find.
    ///
    /// # Errors
    /// [`Problem`] where it is something else.
    pub fn add_condition(&mut self, open: &mut OpenRepeat, state: TensorId) -> Result<TensorId, Problem> {
        let about = self.tensor(state);
        if about.dtype != DType::Bool || about.elements() != 1 {
            return Err(Problem::Shape(format!("a condition of {} {:?}", about.dtype.name(), about.shape)));
        }
        open.going = Some(open.states.len());
        self.add_state(open, state)
    }

    /// A single integer, and one more.
    ///
    /// # Errors
    /// [`Problem`] where there are too many tensors.
    pub fn next_integer(&mut self, number: TensorId) -> Result<TensorId, Problem> {
        self.map_over(&[], DType::I64, add(load(number, vec![]), Expr::integer(1)))
    }

    /// Zeros of the extents and the type of a tensor.
    ///
    /// # Errors
    /// [`Problem`] where there are too many tensors.
    pub fn zeros_like(&mut self, tensor: TensorId) -> Result<TensorId, Problem> {
        let (extents, dtype) = (self.extents(tensor), self.dtype(tensor));
        self.map_over(&extents, dtype, literal(dtype, 0.0))
    }

    /// Ends a repetition: with the states after an iteration, and with what is to be collected along a new
    /// leading axis, backwards where it says so. Gives the last states, and the collections.
    ///
    /// # Errors
    /// [`Problem`] where a state changes its shape or type, or where something has no elements.
    pub fn close_repeat(
        &mut self,
        open: OpenRepeat,
        next: &[TensorId],
        collected: &[(TensorId, bool)],
    ) -> Result<(Vec<TensorId>, Vec<TensorId>), Problem> {
        let OpenRepeat { count, most, states, scanned, going, first } = open;
        let mut closed = Vec::new();
        for ((initial, current), next) in states.into_iter().zip(next) {
            let mut next = *next;
            if self.rank(current) != self.rank(next) && self.is_single(current) && self.is_single(next) {
                next = reshape_to(self, next, self.shape(current))?;
            }
            let (before, after) = (self.tensor(current).clone(), self.tensor(next).clone());
            let keeps_extents = before.shape == after.shape && before.extents == after.extents;
            if !keeps_extents || before.dtype != after.dtype {
                let what = format!("a loop whose state of shape {:?} becomes {:?}", before.shape, after.shape);
                return Err(Problem::Unsupported(what));
            }
            let (next, last) = (self.copied(next)?, self.add_alike(&before));
            closed.push(State { initial, current, next, last });
        }
        let mut wholes = Vec::new();
        for (part, reversed) in collected {
            let part = self.copied(*part)?;
            let about = self.tensor(part).clone();
            let shape = [&[most], about.shape.as_slice()].concat();
            Builder::check_shape(&shape)?;
            let extents = Extents::new([(0, count.clone())]).followed_by(1, &about.extents);
            let whole = self.add_alike(&Tensor { shape, extents, ..about });
            wholes.push(Collected { part, whole, reversed: *reversed });
        }
        let last = closed.iter().map(|state| state.last).collect();
        let results = wholes.iter().map(|collected| collected.whole).collect();
        let (body, node) = (self.close_block(), self.node());
        self.check_extents_of_iterations(&body, first)?;
        self.steps().push(Step::Repeat(Repeat {
            count: most,
            formula: Some(count).filter(|count| count.as_constant().is_none()),
            going,
            states: closed,
            scanned,
            collected: wholes,
            body,
            node,
        }));
        Ok((last, results))
    }

    /// Calls a routine; at once, where all that it takes is known. Its sizes are these formulas, whatever
    /// `routine` holds; `shapes` are those of the results.
    ///
    /// # Errors
    /// [`Problem`] where a shape is too large.
    pub fn library(
        &mut self,
        routine: &Routine,
        sizes: &[Index],
        inputs: &[TensorId],
        shapes: &[Vec<Index>],
    ) -> Result<Vec<TensorId>, Problem> {
        let routine = self.sized(routine, sizes)?;
        if let Some(known) = self.known_results(&routine, sizes, inputs)? {
            let data = known.into_iter().zip(shapes).map(|(data, shape)| data.leading(constants(shape)));
            return Ok(data.collect::<Vec<_>>().into_iter().map(|data| self.constant(data)).collect());
        }
        self.call(routine, sizes, inputs, shapes, None)
    }

    /// Calls a routine that counts its results: `shapes` are those of all but the number, which it is given;
    /// that is at most `most`.
    ///
    /// # Errors
    /// As [`Builder::library`]; and inside of branches and repetitions, where a number would be another one
    /// each time.
    pub fn counting(
        &mut self,
        routine: &Routine,
        sizes: &[Index],
        inputs: &[TensorId],
        most: &Index,
        shapes: impl Fn(&Index) -> Vec<Vec<Index>>,
    ) -> Result<Vec<TensorId>, Problem> {
        // it is not known whether there is anything to find
        self.counting_from(0, routine, sizes, inputs, most, shapes).map(|(results, _)| results)
    }

    /// The results but for the number, and that.
    pub(super) fn counting_from(
        &mut self,
        least: i64,
        routine: &Routine,
        sizes: &[Index],
        inputs: &[TensorId],
        most: &Index,
        shapes: impl Fn(&Index) -> Vec<Vec<Index>>,
    ) -> Result<(Vec<TensorId>, Index), Problem> {
        let routine = self.sized(routine, sizes)?;
        if let Some(mut known) = self.known_results(&routine, sizes, inputs)? {
            let number = known.pop().and_then(|data| data.integers()).and_then(|found| found.first().copied());
            let number = Index::constant(number.unwrap_or(0));
            let data = known.into_iter().zip(shapes(&number)).map(|(data, shape)| data.leading(constants(&shape)));
            let data: Vec<TensorData> = data.collect();
            return Ok((data.into_iter().map(|data| self.constant(data)).collect(), number));
        }
        if self.is_in_block() {
            let what = "results inside of a branch or a loop whose extents depend on data";
            return Err(Problem::Unsupported(what.to_string()));
        }
        // two counts of the same would be two extents, of which nothing tells that they are equal
        if let Some(found) = self.found_before(&routine, inputs) {
            return Ok(found);
        }
        let is_count = |symbol: &&Symbol| matches!(symbol.origin, Origin::Count { .. });
        if self.formulas.symbols.list.iter().filter(is_count).count() >= MAX_COUNTS {
            let what = format!("more than {MAX_COUNTS} results whose extents depend on data");
            return Err(Problem::Unsupported(what));
        }
        let high = self.formulas.most(most)?;
        let name = format!("what {} finds", self.node());
        let symbol = Symbol::new(name, Parameter { low: least.min(high), high }, Origin::Count { most: most.clone() });
        let count = self.add_symbol(symbol);
        let mut shapes = shapes(&Index::var(count));
        shapes.push(vec![Index::constant(1)]);
        let mut results = self.call(routine, sizes, inputs, &shapes, count.as_parameter())?;
        results.pop();
        Ok((results, Index::var(count)))
    }

    /// What a routine found in these very tensors before: the results but for the number, and that.
    fn found_before(&self, routine: &Routine, inputs: &[TensorId]) -> Option<(Vec<TensorId>, Index)> {
        self.written_steps().iter().find_map(|step| {
            let Step::Library(call) = step else { return None };
            let count = call.count.filter(|_| call.routine == *routine && call.inputs == inputs)?;
            let results = call.outputs.split_last()?.1.to_vec();
            Some((results, Index::var(Var::parameter(count))))
        })
    }

    /// The routine with these sizes, at most.
    fn sized(&mut self, routine: &Routine, sizes: &[Index]) -> Result<Routine, Problem> {
        let most = sizes.iter().map(|size| self.formulas.most(size)).collect::<Result<Vec<_>, _>>()?;
        let routine = routine.with_sizes(&most);
        for (elements, _) in routine.inputs().into_iter().chain(routine.outputs()) {
            Builder::check_shape(&[elements])?;
        }
        Ok(routine)
    }

    /// What a routine gives that is known by now.
    fn known_results(
        &mut self,
        routine: &Routine,
        sizes: &[Index],
        inputs: &[TensorId],
    ) -> Result<Option<Vec<TensorData>>, Problem> {
        let is_fixed = sizes.iter().all(|size| size.as_constant().is_some());
        let known: Option<Vec<TensorData>> = inputs.iter().map(|tensor| self.data(*tensor).cloned()).collect();
        let Some(known) = known.filter(|_| is_fixed) else { return Ok(None) };
        for (elements, dtype) in routine.outputs() {
            self.reserve(&[elements], dtype)?;
        }
        let shapes: Vec<Vec<i64>> = routine.outputs().into_iter().map(|(elements, _)| vec![elements]).collect();
        Ok(Some(routine.evaluate(&known.iter().collect::<Vec<_>>(), &shapes)))
    }

    fn call(
        &mut self,
        routine: Routine,
        sizes: &[Index],
        inputs: &[TensorId],
        shapes: &[Vec<Index>],
        count: Option<usize>,
    ) -> Result<Vec<TensorId>, Problem> {
        inputs.iter().try_for_each(|input| self.check_written(*input))?;
        let mut outputs = Vec::new();
        for (shape, (_, dtype)) in shapes.iter().zip(routine.outputs()) {
            let most = shape.iter().map(|extent| self.formulas.most(extent)).collect::<Result<Vec<_>, _>>()?;
            let extents = Extents::new(shape.iter().cloned().enumerate());
            outputs.push(self.add_intermediate(most, dtype, extents));
        }
        let is_open = sizes.iter().chain(shapes.iter().flatten()).any(|formula| formula.as_constant().is_none())
            || inputs.iter().any(|input| self.is_run_time(*input));
        let sizes = if is_open { sizes.to_vec() } else { Vec::new() };
        let (inputs, node) = (inputs.to_vec(), self.node());
        let call = LibraryCall { routine, sizes, inputs, outputs: outputs.clone(), count, node };
        self.steps().push(Step::Library(call));
        Ok(outputs)
    }
}

/// A shape that is known.
fn constants(shape: &[Index]) -> Vec<i64> {
    shape.iter().map(|extent| extent.as_constant().unwrap_or(0)).collect()
}
