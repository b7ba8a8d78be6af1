//! The search space: which decisions lead from a task to a nest.
//!
//! [`Space::next`] is the heart of Tilescribe: a pure function from a task and a prefix of decisions to what
//! may follow. Everything else is built around it. Nothing in here does IO, reads a clock, draws a random
//! number or depends on hash order.
//!
//! A space is a list of [`Rule`]s for each kind of machine. Each decides one aspect of a program, for any
//! workload: it looks at the [`View`] of the program so far, asks the [`Tape`], and returns [`Step`]s of a
//! [`Schedule`], which later rules see in the view. When all rules have decided, the
//! steps are applied to the plain reading of the workload, one after the other; closing passes bring what
//! every program of a kind of machine needs at last.
//!
//! # Adding a rule
//!
//! A rule that decides whether the innermost loops of element-wise stages are unrolled, on any machine:
//!
//! ```
//! use tilescribe::space::{Rule, Space, Step, Stop, Tape, View, Words};
//! use tilescribe::nest::LoopKind;
//! use tilescribe::target::Kind;
//!
//! struct UnrollMaps;
//!
//! impl<M> Rule<M> for UnrollMaps {
//!     fn name(&self) -> &'static str { "unroll-maps" }
//!     fn version(&self) -> u32 { 1 }
//!     // "no" gives the program of before, so that records and checkpoints of before stay readable
//!     fn absent_is_default(&self) -> bool { true }
//!     fn decide(&self, view: &View<'_, M>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
//!         let mut steps = Vec::new();
//!         for group in view.groups.iter().filter(|group| group.at.is_none()) {
//!             let answer = tape.choose(Words::from("unroll"), vec!["no".into(), "yes".into()], 0)?;
//!             let innermost = group.innermost.and_then(|at| group.loops(at)).filter(|_| group.vector.is_none());
//!             if let Some(loops) = innermost.filter(|_| answer.is("yes")) {
//!                 steps.extend(Step::mark(LoopKind::Unroll, vec![loops.tile.clone()]));
//!             }
//!         }
//!         Ok(steps)
//!     }
//! }
//!
//! let space = Space::standard().with(Box::new(UnrollMaps));
//! assert_ne!(space.version(Kind::Cpu), Space::standard().version(Kind::Cpu));
//! assert!(space.reader(Kind::Cpu, &Space::standard().version(Kind::Cpu)).is_ok());
//! assert_eq!(space.version(Kind::Gpu), Space::standard().version(Kind::Gpu));
//! ```

mod access;
mod cpu;
mod epilogue;
mod fuse;
mod gpu;
mod group;
mod operands;
mod restriction;
mod rows;
pub mod schedule;
mod seen;
mod version;
mod view;
mod walk;

#[cfg(test)]
mod tests;

pub use crate::trace::{Choice, Decision, ParseError, Policy, Reason, Stale, Stop, Tape, Trace, Word, Words};
pub use access::{Access, accesses};
pub use group::{Axis, AxisLoops, DotSteps, Fetch, Group, MmaTile, Row};
pub use restriction::Restriction;
pub use schedule::{Defect, LoopName, Schedule, Step};
pub use seen::Seen;
pub use version::{Decided, InvalidVersion, Reader, SpaceVersion, Unreadable};
pub use view::View;
pub use walk::Walk;

use std::borrow::Cow;

use thiserror::Error;

use crate::nest::Nest;
use crate::target::{Cpu, Gpu, Kind, Target, Task};
use crate::workload::Workload;

/// Decides one aspect of a program for machines of one kind.
pub trait Rule<M>: Send + Sync {
    fn name(&self) -> &'static str;

    /// Raised whenever the rule's decisions, or what follows from them, change.
    fn version(&self) -> u32;

    /// Whether the rule is additive: with the default of each of its decisions (or the answer that
    /// [`Tape::choose_since`] names), programs are what they are without the rule, and all other rules ask
    /// and offer the same. What was written before there was the rule stays readable then; see [`Reader`].
    fn absent_is_default(&self) -> bool {
        false
    }

    /// Asks the tape, and says in steps what follows from the answers.
    ///
    /// # Errors
    /// [`Stop`], mostly passed on from [`Tape::choose`].
    fn decide(&self, view: &View<'_, M>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop>;
}

/// Steps that every program for a kind of machine needs, whatever was decided.
type Closing<M> = fn(&View<'_, M>) -> Vec<Step>;

/// How programs for one kind of machine are made.
struct Machine<M> {
    /// In the order in which they decide.
    rules: Vec<Box<dyn Rule<M>>>,
    closing: Vec<Closing<M>>,
    /// Whether a machine has room for a nest.
    fits: fn(&Nest, &M) -> Result<(), Reason>,
}

/// Lists of rules: ours by default, a user's own added to them.
pub struct Space {
    cpu: Machine<Cpu>,
    gpu: Machine<Gpu>,
    exact: bool,
    restriction: Option<Restriction>,
}

/// What follows a prefix.
#[derive(Clone, Debug)]
pub enum Next {
    Choose(Decision),
    Done(Nest),
    /// No program follows; data, not an error.
    DeadEnd(Reason),
    /// A rule returned a step that does not fit: a fault of the rule.
    Defect(Defect),
}

/// Why decisions that are complete give no program.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NoProgram {
    /// Data, not an error.
    #[error(transparent)]
    DeadEnd(#[from] Reason),
    /// A fault of a rule.
    #[error("a rule is at fault: {0}")]
    Defect(#[from] Defect),
}

/// What a rule has decided, and what follows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explained {
    pub rule: &'static str,
    /// Its questions, each with the answer.
    pub decisions: Vec<(Decision, Words)>,
    pub steps: Vec<Step>,
}

impl Space {
    /// The rules that Tilescribe ships.
    pub fn standard() -> Space {
        Space { cpu: cpu::machine(), gpu: gpu::machine(), exact: false, restriction: None }
    }

    /// Leaves out algorithms with larger rounding errors than the plain one's. What is left has the same
    /// names, so records and checkpoints serve both.
    #[must_use]
    pub fn exact(self, exact: bool) -> Space {
        Space { exact, ..self }
    }

    /// Leaves out candidates that another system's space does not have. Names stay, as with
    /// [`Space::exact`].
    #[must_use]
    pub fn restricted(self, restriction: Option<Restriction>) -> Space {
        Space { restriction, ..self }
    }

    /// Adds a rule for CPUs behind the others.
    #[must_use]
    pub fn with(mut self, rule: Box<dyn Rule<Cpu>>) -> Space {
        self.cpu.rules.push(rule);
        self
    }

    /// Adds a rule for GPUs behind the others.
    #[must_use]
    pub fn with_gpu(mut self, rule: Box<dyn Rule<Gpu>>) -> Space {
        self.gpu.rules.push(rule);
        self
    }

    /// What follows `prefix`? Pure: equal inputs give an equal answer, on every machine.
    ///
    /// # Errors
    /// [`Stale`] where the prefix holds a decision that this space does not offer for this task.
    pub fn next(&self, task: &Task, prefix: &Trace) -> Result<Next, Stale> {
        let mut tape = Tape::replay(prefix);
        match self.schedule(task, &mut tape) {
            Ok(schedule) => {
                tape.finish()?;
                Ok(match self.build(task, &schedule) {
                    Ok(nest) => Next::Done(nest),
                    Err(NoProgram::DeadEnd(reason)) => Next::DeadEnd(reason),
                    Err(NoProgram::Defect(defect)) => Next::Defect(defect),
                })
            }
            Err(Stop::Choose(decision)) => Ok(Next::Choose(decision)),
            Err(Stop::DeadEnd(reason)) => Ok(Next::DeadEnd(reason)),
            Err(Stop::Stale(stale)) => Err(stale),
        }
    }

    /// What is asked after `prefix`, without building the nest that may be there: `None` where the prefix is
    /// complete.
    ///
    /// # Errors
    /// As [`Space::next`]; a dead end is the inner error.
    pub fn question(&self, task: &Task, prefix: &Trace) -> Result<Result<Option<Decision>, Reason>, Stale> {
        let mut walk = Walk::new(self, task);
        prefix.0.iter().cloned().for_each(|choice| walk.take(choice));
        walk.question()
    }

    /// Whether algorithms are left out.
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// Whether something is left out that others of the same version offer.
    pub fn leaves_out(&self) -> bool {
        self.exact || self.restriction.is_some()
    }

    /// What is left out, in words; empty where nothing is.
    pub fn restrictions(&self) -> String {
        let exact = self.exact.then_some("exact");
        exact.into_iter().chain(self.restriction.map(Restriction::name)).collect::<Vec<_>>().join(" ")
    }

    /// Whether a trace leads to a program of this space.
    pub fn offers(&self, task: &Task, trace: &Trace) -> bool {
        matches!(self.question(task, trace), Ok(Ok(None)))
    }

    /// A workload as those of the steps leave it that rewrite workloads.
    pub fn rewritten<'a>(&self, workload: &'a Workload, steps: &[Step]) -> Seen<'a> {
        let mut view = View::new(workload, &(), self.exact);
        let rewrites = |step: &&Step| {
            matches!(
                step,
                Step::Winograd { .. }
                    | Step::Strassen { .. }
                    | Step::MergeGroups { .. }
                    | Step::FlattenRows
                    | Step::SplitReduction { .. }
            )
        };
        steps.iter().filter(rewrites).for_each(|step| view.push(step.clone()));
        view.workload
    }

    /// What a finished trace decides: its questions, with all candidates. `None` where it leads to no program
    /// of this space.
    pub fn decisions(&self, task: &Task, trace: &Trace) -> Option<Vec<Decision>> {
        if !self.offers(task, trace) {
            return None;
        }
        let mut recalled = Recalled { trace, decisions: Vec::with_capacity(trace.0.len()) };
        self.schedule(task, &mut Tape::drive(&mut recalled)).ok()?;
        Some(recalled.decisions)
    }

    /// Takes all decisions by `policy`, in one pass. The trace is what was decided, up to the dead end if
    /// there is one.
    pub fn drive(&self, task: &Task, policy: &mut dyn Policy) -> (Trace, Result<Nest, NoProgram>) {
        let mut tape = Tape::drive(policy);
        let decided = self.schedule(task, &mut tape);
        let trace = Trace(tape.taken().to_vec());
        let result = match decided {
            Ok(schedule) => self.build(task, &schedule),
            Err(Stop::DeadEnd(reason)) => Err(reason.into()),
            Err(stop @ (Stop::Choose(_) | Stop::Stale(_))) => {
                Err(Reason(format!("a driven tape stopped: {stop:?}")).into())
            }
        };
        (trace, result)
    }

    /// What a finished trace stands for: rule by rule, its decisions and the steps that follow, closing
    /// passes last. `None` where it leads to no program of this space.
    pub fn explain(&self, task: &Task, trace: &Trace) -> Option<Vec<Explained>> {
        let decisions = self.decisions(task, trace)?;
        let mut asked = decisions.into_iter().zip(trace.0.iter().map(|choice| choice.value.clone()));
        let mut tape = Tape::replay(trace);
        self.restrict(task, &mut tape);
        let mut explained = Vec::new();
        let mut note = |rule, taken: usize, steps: &[Step]| {
            let decisions = asked.by_ref().take(taken).collect();
            explained.push(Explained { rule, decisions, steps: steps.to_vec() });
        };
        let workload = &task.workload;
        match &task.target {
            Target::Cpu(machine) => self.cpu.decide(View::new(workload, machine, self.exact), &mut tape, &mut note),
            Target::Gpu(machine) => self.gpu.decide(View::new(workload, machine, self.exact), &mut tape, &mut note),
        }
        .ok()?;
        Some(explained)
    }

    /// The text of [`Space::rule_versions`], which records and checkpoints keep: [`Space::reader`] tells
    /// whether they can be read.
    pub fn version(&self, kind: Kind) -> String {
        self.rule_versions(kind).to_string()
    }

    /// The versions for all kinds of machines.
    pub fn versions(&self) -> String {
        [Kind::Cpu, Kind::Gpu].map(|kind| self.version(kind)).join(" ")
    }

    /// All steps of a program, in the order in which they are applied.
    ///
    /// # Errors
    /// [`Stop`] where the tape does not answer all questions.
    pub fn schedule(&self, task: &Task, tape: &mut Tape<'_>) -> Result<Schedule, Stop> {
        let workload = &task.workload;
        self.restrict(task, tape);
        let ignore = &mut |_: &'static str, _: usize, _: &[Step]| {};
        match &task.target {
            Target::Cpu(machine) => self.cpu.decide(View::new(workload, machine, self.exact), tape, ignore),
            Target::Gpu(_) if !workload.is_fixed() => Err(Stop::DeadEnd(no_open_extents())),
            Target::Gpu(machine) => self.gpu.decide(View::new(workload, machine, self.exact), tape, ignore),
        }
    }

    fn restrict(&self, task: &Task, tape: &mut Tape<'_>) {
        if let Some(restriction) = self.restriction {
            tape.keep_only(restriction.filter(task));
        }
    }

    fn build(&self, task: &Task, schedule: &Schedule) -> Result<Nest, NoProgram> {
        let nest = schedule.build(&task.workload)?;
        match &task.target {
            Target::Cpu(machine) => (self.cpu.fits)(&nest, machine)?,
            Target::Gpu(machine) => (self.gpu.fits)(&nest, machine)?,
        }
        Ok(nest)
    }
}

/// Why there are no programs of run-time extents for GPUs.
fn no_open_extents() -> Reason {
    Reason("run-time extents, which are for CPUs only".into())
}

impl<M> Machine<M> {
    /// Lets all rules decide. `note` gets each rule's name, the number of its decisions, and its steps.
    fn decide(
        &self,
        mut view: View<'_, M>,
        tape: &mut Tape<'_>,
        note: &mut dyn FnMut(&'static str, usize, &[Step]),
    ) -> Result<Schedule, Stop> {
        for number in 0..self.rules.len() {
            self.decide_one(number, &mut view, tape, note)?;
        }
        let closing: Vec<Step> = self.closing.iter().flat_map(|pass| pass(&view)).collect();
        note("closing", 0, &closing);
        let mut schedule = Schedule(view.into_steps());
        schedule.0.extend(closing);
        Ok(schedule.in_phases())
    }

    /// The same for one rule, behind those before it.
    fn decide_one(
        &self,
        number: usize,
        view: &mut View<'_, M>,
        tape: &mut Tape<'_>,
        note: &mut dyn FnMut(&'static str, usize, &[Step]),
    ) -> Result<(), Stop> {
        let Some(rule) = self.rules.get(number) else { return Ok(()) };
        tape.enter(number);
        let before = tape.taken().len();
        let steps = rule.decide(view, tape)?;
        note(rule.name(), tape.taken().len() - before, &steps);
        steps.into_iter().for_each(|step| view.push(step));
        Ok(())
    }
}

/// Answers as a trace that the space offers, and notes the questions.
struct Recalled<'a> {
    trace: &'a Trace,
    decisions: Vec<Decision>,
}

impl Policy for Recalled<'_> {
    fn pick(&mut self, decision: &Decision) -> usize {
        let value = self.trace.0.get(self.decisions.len()).map(|choice| &choice.value);
        self.decisions.push(decision.clone());
        decision.candidates.iter().position(|candidate| Some(candidate) == value).unwrap_or(decision.default)
    }
}

/// Answers every decision as the rules themselves would without any measurement: the untuned program.
pub struct Untuned;

impl Policy for Untuned {
    fn pick(&mut self, decision: &Decision) -> usize {
        decision.default
    }
}

/// `verb group axis`, as in `tile s0 b`.
fn site<const N: usize>(verb: &'static str, of: [Cow<'static, str>; N]) -> Words {
    Words(std::iter::once(Word::from(verb)).chain(of.into_iter().map(Word::Name)).collect())
}

/// A value of one name.
fn name(name: impl Into<Cow<'static, str>>) -> Words {
    Words(vec![Word::Name(name.into())])
}
