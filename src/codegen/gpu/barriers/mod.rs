//! Where the threads of a block wait for one another, and for what they copy.
//!
//! A *barrier* in front of a statement lets all threads of a block meet. It is needed between two phases of
//! which one writes what the other touches. Buffers with *slots*, whose first index is a remainder of loops'
//! variables somewhere, are touched slot by slot, all others as wholes.
//!
//! Phases that only copy elements of inputs and constants into slots are *asynchronous*: what they write is
//! there at some later time. Neighbours among them that fill different buffers make a *group*, committed
//! behind the last of them. Every thread counts its own groups: a wait that leaves the `n` youngest under way
//! ends when all older ones have arrived. What a group writes may therefore be touched behind a barrier in
//! front of which each thread waited so that it is not among the youngest: the wait makes a thread's own
//! copies arrive, the barrier tells the others.
//!
//! # How they are found
//!
//! The planner goes through the statements as a block does, loops and all, and keeps note of what was touched
//! since the last barrier, and of what is under way: for each slot its *age*, the number of groups committed
//! behind its own. Slots are numbers, since the variables of the loops around phases have values on the way.
//! A loop is left early when its state was there before, that many iterations ago that all slots are the same
//! again, and is continued with the iterations that are left when whole rounds of that are taken out. Where
//! ways meet, behind conditions and loops that do not always run in full, what either has noted counts, with
//! the lesser age: a wait that leaves fewer groups under way than necessary does no harm.
//!
//! When a phase touches what it must not yet, a barrier is added, or a wait is made longer, and everything
//! starts anew, until nothing is found: so the last time through is the proof. First come barriers between
//! phases that are not asynchronous, and before copies overwrite what was read. Then come waits: a group that
//! was committed before the last barrier on the way is waited for there, and only for others there is one
//! more. In a pipeline of `s` stages the barrier that protects the slot to be filled so becomes the only one
//! of a step, and leaves `s - 2` groups under way.
//!
//! A barrier that protects from something before a condition stands in front of the condition, since what is
//! behind it may need the barrier as well. Groups are committed behind conditions, too, empty ones where
//! nothing was copied, so that there are equally many on all ways.

mod copies;
#[cfg(test)]
mod tests;

pub use copies::copied;
use copies::{is_slot, note_commits, note_copies, slots};

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use crate::codegen::error::CodegenError;
use crate::nest::rewrite::for_each_stmt;
use crate::nest::{Loop, LoopKind, Nest, Scope, Stmt};
use crate::workload::{Expr, Index, TensorId, Var, gcd};

/// Ages are not told apart from here on.
const OLDEST: i32 = 16;
/// Of what is not in a group yet.
const NOT_COMMITTED: i32 = -1;

/// A statement, by its address, which stays what it is while the statements are borrowed.
pub type StmtId = usize;

pub fn stmt_id(statement: &Stmt) -> StmtId {
    std::ptr::from_ref(statement).addr()
}

/// What threads do between the phases of a block.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct BarrierPlan {
    /// In front of these statements all threads meet. Before that, each waits until at most so many of its
    /// groups are under way.
    pub barriers: BTreeMap<StmtId, Option<u32>>,
    /// Phases that copy asynchronously.
    pub copies: BTreeSet<StmtId>,
    /// Statements behind which a group is committed.
    pub commits: BTreeSet<StmtId>,
    /// Whether something may be under way at the end.
    pub drains: bool,
}

impl BarrierPlan {
    /// Whether there is something to do at a statement itself.
    pub fn concerns(&self, statement: &Stmt) -> bool {
        let id = stmt_id(statement);
        self.barriers.contains_key(&id) || self.commits.contains(&id)
    }
}

/// What the threads of a block do between the phases among `statements`.
///
/// # Errors
/// [`CodegenError::Unsupported`] where a condition between phases depends on data, which would have to be
/// waited for, too.
pub fn plan(nest: &Nest, statements: &[Stmt]) -> Result<BarrierPlan, CodegenError> {
    let slots = slots(nest, statements);
    let period = slots.values().fold(1, |all, count| all / gcd(all as u64, *count as u64) as i64 * count);
    let mut plan = BarrierPlan::default();
    note_copies(nest, &slots, statements, &mut plan.copies);
    note_commits(statements, false, &mut plan);
    let mut planner = Planner {
        nest,
        slots,
        period,
        plan,
        values: HashMap::new(),
        conditions: Vec::new(),
        touches: HashMap::new(),
        waits: false,
        changed: false,
    };
    for waits in [false, true] {
        planner.waits = waits;
        loop {
            planner.changed = false;
            let end = planner.block(statements, State::default())?;
            planner.plan.drains = !end.under_way.is_empty();
            if !planner.changed {
                break;
            }
        }
    }
    Ok(planner.plan)
}

/// Visits loads, stores and accumulations, with whether it is a write; an accumulation is a read and a write.
fn for_each_access(statements: &[Stmt], visit: &mut dyn FnMut(TensorId, &[Index], bool)) {
    for_each_stmt(statements, &mut |statement| match statement {
        Stmt::Loop(_) => {}
        Stmt::If { conditions, .. } => {
            let gathered = conditions.iter().filter(|c| c.index.has_value());
            gathered.for_each(|c| {
                Expr::Index(c.index.clone()).for_each_load(&mut |buffer, at| visit(buffer, at, false));
            });
        }
        Stmt::Store { buffer, indices, value } | Stmt::Accumulate { buffer, indices, value, .. } => {
            value.for_each_load(&mut |buffer, at| visit(buffer, at, false));
            for index in indices.iter().filter(|index| index.has_value()) {
                Expr::Index(index.clone()).for_each_load(&mut |buffer, at| visit(buffer, at, false));
            }
            if matches!(statement, Stmt::Accumulate { .. }) {
                visit(*buffer, indices, false);
            }
            visit(*buffer, indices, true);
        }
    });
}

/// A buffer, or one of its slots.
type Part = (TensorId, Option<i64>);

/// Whether two parts have elements in common.
fn meet(a: &Part, b: &Part) -> bool {
    a.0 == b.0 && (a.1.is_none() || b.1.is_none() || a.1 == b.1)
}

/// What may have happened on the way to a place of the program.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct State {
    /// Touched since the last barrier, each with how many conditions stood around it.
    read: BTreeMap<Part, usize>,
    written: BTreeMap<Part, usize>,
    /// Written by copies that are not known to have arrived.
    under_way: BTreeMap<Part, UnderWay>,
    /// The last barrier, if it is the same on all ways, and in no loop that was left since.
    last: Option<StmtId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct UnderWay {
    /// Groups committed behind its own, at least.
    age: i32,
    /// The same at the last barrier, if it was committed before that.
    age_at_last: Option<i32>,
    /// Conditions around it.
    depth: usize,
}

impl State {
    /// All threads meet, after each has left `wait` groups under way at most.
    fn pass(&mut self, barrier: StmtId, wait: Option<u32>) {
        self.read.clear();
        self.written.clear();
        self.last = Some(barrier);
        let left = wait.map_or(i32::MAX, |wait| i32::try_from(wait).unwrap_or(i32::MAX));
        self.under_way.retain(|_, copy| copy.age < left);
        for copy in self.under_way.values_mut() {
            copy.age_at_last = (copy.age != NOT_COMMITTED).then_some(copy.age);
        }
    }

    fn commit(&mut self) {
        self.under_way.values_mut().for_each(|copy| copy.age = (copy.age + 1).min(OLDEST));
    }

    /// What may have happened on either of two ways.
    fn join(mut self, other: State) -> State {
        if self.last != other.last {
            self.last = None;
        }
        for (own, others) in [(&mut self.read, other.read), (&mut self.written, other.written)] {
            for (part, depth) in others {
                let known = own.entry(part).or_default();
                *known = depth.max(*known);
            }
        }
        for (part, copy) in other.under_way {
            let known = self.under_way.entry(part).or_insert(copy);
            known.age = known.age.min(copy.age);
            known.age_at_last = known.age_at_last.zip(copy.age_at_last).map(|(a, b)| a.min(b));
            known.depth = known.depth.max(copy.depth);
        }
        if self.last.is_none() {
            self.forget_last();
        }
        self
    }

    fn forget_last(&mut self) {
        self.last = None;
        self.under_way.values_mut().for_each(|copy| copy.age_at_last = None);
    }

    /// Forgets conditions deeper than those around the place.
    fn leave_condition(&mut self, depth: usize) {
        self.read.values_mut().chain(self.written.values_mut()).for_each(|known| *known = depth.min(*known));
        self.under_way.values_mut().for_each(|copy| copy.depth = depth.min(copy.depth));
    }
}

/// What a phase touches of the memory that threads share: buffers with their first index, and whether it
/// writes.
type Touches = Vec<(TensorId, Option<Index>, bool)>;

struct Planner<'a> {
    nest: &'a Nest,
    slots: BTreeMap<TensorId, i64>,
    /// After so many iterations of any loop, all slots are the same again.
    period: i64,
    plan: BarrierPlan,
    /// Of the variables of the loops around.
    values: HashMap<Var, i64>,
    /// The conditions around, outermost first.
    conditions: Vec<StmtId>,
    /// By phase.
    touches: HashMap<StmtId, Rc<Touches>>,
    /// Whether copies are waited for; otherwise they arrive at once.
    waits: bool,
    /// Whether the plan is another one than when this way through it began.
    changed: bool,
}

impl Planner<'_> {
    fn block(&mut self, statements: &[Stmt], before: State) -> Result<State, CodegenError> {
        statements.iter().try_fold(before, |state, statement| self.statement(statement, state))
    }

    fn statement(&mut self, statement: &Stmt, mut state: State) -> Result<State, CodegenError> {
        let id = stmt_id(statement);
        if let Some(wait) = self.plan.barriers.get(&id) {
            state.pass(id, *wait);
        }
        let mut state = match statement {
            Stmt::Loop(l) if l.kind == LoopKind::Thread => self.phase(statement, l, state)?,
            Stmt::Loop(l) => self.repeated(l, state)?,
            Stmt::If { conditions, .. } if conditions.iter().any(|c| c.index.has_value()) => {
                return Err(CodegenError::Unsupported("a condition on data between the phases of a block".into()));
            }
            Stmt::If { body, .. } => {
                self.conditions.push(id);
                let inside = self.block(body, state.clone());
                self.conditions.pop();
                let mut joined = state.join(inside?);
                joined.leave_condition(self.conditions.len());
                joined
            }
            Stmt::Store { .. } | Stmt::Accumulate { .. } => state,
        };
        if self.plan.commits.contains(&id) {
            state.commit();
        }
        Ok(state)
    }

    fn repeated(&mut self, l: &Loop, mut state: State) -> Result<State, CodegenError> {
        let extent = l.extent();
        let mut seen: Vec<State> = Vec::new();
        let (mut iteration, mut around) = (0, false);
        while iteration < extent {
            let now = seen.len() as i64;
            let same = |(then, known): (usize, &State)| {
                let apart = now - then as i64;
                (apart % self.period == 0 && *known == state).then_some(apart)
            };
            // `seen` has a state for each iteration so far, unless rounds were taken out already
            if let Some(round) = seen.iter().enumerate().find_map(same).filter(|_| !around) {
                around = true;
                iteration += (extent - iteration) / round * round;
                continue;
            }
            seen.push(state.clone());
            self.values.insert(l.var, iteration);
            state = self.block(&l.body, state)?;
            iteration += 1;
        }
        self.values.remove(&l.var);
        let mut state = if l.is_constant() { state } else { seen.into_iter().fold(state, State::join) };
        // a barrier that is passed in every iteration does not wait for what only follows the last
        state.forget_last();
        Ok(state)
    }

    fn phase(&mut self, statement: &Stmt, l: &Loop, mut state: State) -> Result<State, CodegenError> {
        let id = stmt_id(statement);
        let touches = match self.touches.get(&id) {
            Some(known) => known.clone(),
            None => {
                let found = Rc::new(self.touches_of(l));
                self.touches.insert(id, found.clone());
                found
            }
        };
        let parts: Vec<(Part, bool)> =
            touches.iter().map(|(buffer, first, writes)| (self.part(*buffer, first.as_ref()), *writes)).collect();
        let deepest = |known: &BTreeMap<Part, usize>, part: &Part| {
            known.iter().filter(|(other, _)| meet(other, part)).map(|(_, depth)| *depth).max()
        };
        let clash = |(part, writes): &(Part, bool)| {
            let read = if *writes { deepest(&state.read, part) } else { None };
            deepest(&state.written, part).max(read)
        };
        if let Some(depth) = parts.iter().filter_map(clash).max() {
            self.add_barrier(id, depth, None)?;
            state.pass(id, None);
        }
        if self.waits {
            self.wait_for(id, &parts, &mut state)?;
        }
        let depth = self.conditions.len();
        let asynchronous = self.plan.copies.contains(&id);
        for (part, writes) in parts {
            if asynchronous && writes {
                state.under_way.insert(part, UnderWay { age: NOT_COMMITTED, age_at_last: None, depth });
            } else {
                (if writes { &mut state.written } else { &mut state.read }).insert(part, depth);
            }
        }
        Ok(state)
    }

    /// Makes copies arrive that a phase touches the slots of.
    fn wait_for(&mut self, id: StmtId, parts: &[(Part, bool)], state: &mut State) -> Result<(), CodegenError> {
        let is_wanted = |part: &Part| parts.iter().any(|(own, _)| meet(part, own));
        let wanted: Vec<UnderWay> =
            state.under_way.iter().filter(|(part, _)| is_wanted(part)).map(|(_, copy)| *copy).collect();
        let Some(youngest) = wanted.iter().map(|copy| copy.age).min() else { return Ok(()) };
        let at_last: Option<Vec<i32>> = wanted.iter().map(|copy| copy.age_at_last).collect();
        if let (Some(last), Some(age)) = (state.last, at_last.and_then(|ages| ages.into_iter().min())) {
            let wait = self.plan.barriers.entry(last).or_default();
            *wait = Some(wait.map_or(age.unsigned_abs(), |known| known.min(age.unsigned_abs())));
            self.changed = true;
            state.under_way.retain(|part, _| !is_wanted(part));
            return Ok(());
        }
        if youngest == NOT_COMMITTED {
            return Err(CodegenError::Unsupported("a copy that is used before it is committed".into()));
        }
        let depth = wanted.iter().map(|copy| copy.depth).max().unwrap_or_default();
        self.add_barrier(id, depth, Some(youngest.unsigned_abs()))?;
        state.pass(id, Some(youngest.unsigned_abs()));
        Ok(())
    }

    /// In front of the phase, or of the outermost condition around it that what it waits for is not inside
    /// of.
    fn add_barrier(&mut self, phase: StmtId, depth: usize, wait: Option<u32>) -> Result<(), CodegenError> {
        let place = self.conditions.get(depth).copied().unwrap_or(phase);
        let is_new = self.plan.barriers.insert(place, wait).is_none();
        self.changed = true;
        if is_new { Ok(()) } else { Err(CodegenError::Internal("a barrier that does not help".into())) }
    }

    fn touches_of(&self, phase: &Loop) -> Touches {
        let mut found = Touches::new();
        for_each_access(&phase.body, &mut |buffer, indices, writes| {
            if self.nest.buffer(buffer).scope == Scope::Register {
                return;
            }
            let slots = self.slots.get(&buffer).copied();
            let first = indices.first().filter(|index| slots.is_some_and(|slots| is_slot(index, slots))).cloned();
            let touch = (buffer, first, writes);
            if !found.contains(&touch) {
                found.push(touch);
            }
        });
        found
    }

    fn part(&self, buffer: TensorId, first: Option<&Index>) -> Part {
        let known = first.filter(|index| !index.any_var(&|var| !self.values.contains_key(&var)));
        (buffer, known.and_then(|index| index.at(&|var| self.values.get(&var).copied().unwrap_or_default())))
    }
}
