//! The search space: which decisions lead from a task to a nest.
//!
//! [`Space::next`] is the heart of Tilescribe: a pure function from a task and a prefix of decisions to what
//! may follow. Everything else is built around it. Nothing in here does IO, reads a clock, draws a random
//! number or depends on hash order.
//!
//! A space is a list of [`Rule`]s for each kind of machine. Each decides one aspect of a program, for any
//! workload: it asks the [`Tape`] and notes the answers in the [`Plan`]; when all rules have decided, each
//! rewrites the nest as noted, in the same order.
//!
//! # Adding a rule
//!
//! A rule that unrolls nothing but asks whether to prefetch, on any machine, would look like this:
//!
//! ```
//! use tilescribe::space::{Built, Plan, Rule, Space, Stop, Tape, Words};
//! use tilescribe::nest::rewrite::Refusal;
//! use tilescribe::target::{Kind, TaskOn};
//!
//! struct Prefetch;
//!
//! impl<M> Rule<M> for Prefetch {
//!     fn name(&self) -> &'static str { "prefetch" }
//!     fn version(&self) -> u32 { 1 }
//!     fn decide(&self, _: &TaskOn<'_, M>, plan: &mut Plan, tape: &mut Tape<'_>) -> Result<(), Stop> {
//!         let answer = tape.choose("prefetch".into(), vec!["no".into(), "yes".into()], 0)?;
//!         plan.notes.insert("prefetch".into(), answer);
//!         Ok(())
//!     }
//!     fn realise(&self, _: &TaskOn<'_, M>, plan: &Plan, _: &mut Built) -> Result<(), Refusal> {
//!         if plan.notes[&Words::from("prefetch")].is("yes") { /* rewrite the nest */ }
//!         Ok(())
//!     }
//! }
//!
//! let space = Space::standard().with(Box::new(Prefetch));
//! assert_ne!(space.version(Kind::Cpu), Space::standard().version(Kind::Cpu));
//! assert_eq!(space.version(Kind::Gpu), Space::standard().version(Kind::Gpu));
//! ```

mod cpu;
mod epilogue;
mod fuse;
mod gpu;
mod operands;
mod plan;
mod rows;
mod trace;

#[cfg(test)]
mod tests;

pub use plan::{
    Access, Axis, AxisLoops, Built, Dealt, Fetch, Group, Level, Packing, Pipeline, Plan, Row, Sides, ThreadLoops,
    accesses,
};
pub use trace::{Choice, Decision, ParseError, Policy, Reason, Stale, Stop, Tape, Trace, Word, Words};

use std::borrow::Cow;

use crate::nest::Nest;
use crate::nest::rewrite::Refusal;
use crate::target::{Cpu, Gpu, Kind, Target, Task, TaskOn};

/// Decides one aspect of a program for machines of one kind.
pub trait Rule<M>: Send + Sync {
    fn name(&self) -> &'static str;

    /// Raised whenever the rule's decisions, or what follows from them, change.
    fn version(&self) -> u32;

    /// Asks the tape, and notes the answers in the plan.
    ///
    /// # Errors
    /// [`Stop`], mostly passed on from [`Tape::choose`].
    fn decide(&self, task: &TaskOn<'_, M>, plan: &mut Plan, tape: &mut Tape<'_>) -> Result<(), Stop>;

    /// Rewrites the nest as the plan says.
    ///
    /// # Errors
    /// [`Refusal`] where a rewrite does not fit, which is a defect of the rule.
    fn realise(&self, task: &TaskOn<'_, M>, plan: &Plan, built: &mut Built) -> Result<(), Refusal>;
}

/// The rules for machines of one kind, in the order in which they decide and rewrite.
pub type Rules<M> = Vec<Box<dyn Rule<M>>>;

/// Lists of rules: ours by default, a user's own added to them.
pub struct Space {
    cpu: Rules<Cpu>,
    gpu: Rules<Gpu>,
    exact: bool,
}

/// What follows a prefix.
#[derive(Clone, Debug)]
pub enum Next {
    Choose(Decision),
    Done(Nest),
    /// No program follows; data, not an error.
    DeadEnd(Reason),
}

impl Space {
    /// The rules that Tilescribe ships.
    pub fn standard() -> Space {
        Space { cpu: cpu::rules(), gpu: gpu::rules(), exact: false }
    }

    /// Leaves out algorithms with larger rounding errors than the plain one's. What is left has the same
    /// names, so records and checkpoints serve both.
    #[must_use]
    pub fn exact(self, exact: bool) -> Space {
        Space { exact, ..self }
    }

    /// Adds a rule for CPUs behind the others.
    #[must_use]
    pub fn with(mut self, rule: Box<dyn Rule<Cpu>>) -> Space {
        self.cpu.push(rule);
        self
    }

    /// Adds a rule for GPUs behind the others.
    #[must_use]
    pub fn with_gpu(mut self, rule: Box<dyn Rule<Gpu>>) -> Space {
        self.gpu.push(rule);
        self
    }

    /// What follows `prefix`? Pure: equal inputs give an equal answer, on every machine.
    ///
    /// # Errors
    /// [`Stale`] where the prefix holds a decision that this space does not offer for this task.
    pub fn next(&self, task: &Task, prefix: &Trace) -> Result<Next, Stale> {
        let mut tape = Tape::replay(prefix);
        match self.decide(task, &mut tape) {
            Ok(plan) => {
                tape.finish()?;
                Ok(match self.realise(task, &plan) {
                    Ok(nest) => Next::Done(nest),
                    Err(reason) => Next::DeadEnd(reason),
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
        let mut tape = Tape::replay(prefix);
        match self.decide(task, &mut tape) {
            Ok(_) => tape.finish().map(|()| Ok(None)),
            Err(Stop::Choose(decision)) => Ok(Ok(Some(decision))),
            Err(Stop::DeadEnd(reason)) => Ok(Err(reason)),
            Err(Stop::Stale(stale)) => Err(stale),
        }
    }

    /// Whether algorithms are left out.
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// Whether a trace leads to a program of this space.
    pub fn offers(&self, task: &Task, trace: &Trace) -> bool {
        matches!(self.question(task, trace), Ok(Ok(None)))
    }

    /// What a finished trace decides: its questions, with all candidates. `None` where it leads to no program
    /// of this space.
    pub fn decisions(&self, task: &Task, trace: &Trace) -> Option<Vec<Decision>> {
        if !self.offers(task, trace) {
            return None;
        }
        let mut recalled = Recalled { trace, decisions: Vec::with_capacity(trace.0.len()) };
        self.decide(task, &mut Tape::drive(&mut recalled)).ok()?;
        Some(recalled.decisions)
    }

    /// Takes all decisions by `policy`, in one pass. The trace is what was decided, up to the dead end if
    /// there is one.
    pub fn drive(&self, task: &Task, policy: &mut dyn Policy) -> (Trace, Result<Nest, Reason>) {
        let mut tape = Tape::drive(policy);
        let decided = self.decide(task, &mut tape);
        let trace = Trace(tape.taken().to_vec());
        let result = match decided {
            Ok(plan) => self.realise(task, &plan),
            Err(Stop::DeadEnd(reason)) => Err(reason),
            Err(stop @ (Stop::Choose(_) | Stop::Stale(_))) => Err(Reason(format!("a driven tape stopped: {stop:?}"))),
        };
        (trace, result)
    }

    /// Names the rules for one kind of machine and their versions; records and checkpoints of another version
    /// are refused.
    pub fn version(&self, kind: Kind) -> String {
        match kind {
            Kind::Cpu => format!("cpu:{}", versions(&self.cpu)),
            Kind::Gpu => format!("gpu:{}", versions(&self.gpu)),
        }
    }

    /// The versions for all kinds of machines.
    pub fn versions(&self) -> String {
        [Kind::Cpu, Kind::Gpu].map(|kind| self.version(kind)).join(" ")
    }

    fn decide(&self, task: &Task, tape: &mut Tape<'_>) -> Result<Plan, Stop> {
        let mut plan = Plan { exact: self.exact, ..Plan::new(task) };
        let workload = &task.workload;
        match &task.target {
            Target::Cpu(machine) => decide(&self.cpu, &TaskOn { workload, machine }, &mut plan, tape)?,
            Target::Gpu(machine) => decide(&self.gpu, &TaskOn { workload, machine }, &mut plan, tape)?,
        }
        Ok(plan)
    }

    fn realise(&self, task: &Task, plan: &Plan) -> Result<Nest, Reason> {
        let (nest, stages) = Nest::naive_with_vars(&plan.workload);
        let mut built = Built {
            nest,
            stages,
            rows: Vec::new(),
            loops: vec![Vec::new(); plan.groups.len()],
            at: vec![None; plan.groups.len()],
            thread_loops: vec![Vec::new(); plan.groups.len()],
            copies: vec![Vec::new(); plan.groups.len()],
            dealt: Vec::new(),
            pipelines: Vec::new(),
        };
        let workload = &task.workload;
        match &task.target {
            Target::Cpu(machine) => {
                realise(&self.cpu, &TaskOn { workload, machine }, plan, &mut built)?;
                let nest = built.nest.drop_unit_loops().peel_tails().strip_mine(machine.lanes());
                Ok(nest.drop_unit_loops().drop_setup_results().drop_unused())
            }
            Target::Gpu(machine) => {
                realise(&self.gpu, &TaskOn { workload, machine }, plan, &mut built)?;
                gpu::finish(built, plan.workload.tensors.len(), machine)
            }
        }
    }
}

fn versions<M>(rules: &Rules<M>) -> String {
    rules.iter().map(|rule| format!("{}-{}", rule.name(), rule.version())).collect::<Vec<_>>().join("+")
}

fn decide<M>(rules: &Rules<M>, task: &TaskOn<'_, M>, plan: &mut Plan, tape: &mut Tape<'_>) -> Result<(), Stop> {
    rules.iter().try_for_each(|rule| {
        tape.settle(false);
        rule.decide(task, plan, tape)
    })
}

fn realise<M>(rules: &Rules<M>, task: &TaskOn<'_, M>, plan: &Plan, built: &mut Built) -> Result<(), Reason> {
    rules.iter().try_for_each(|rule| {
        let refused = |refusal| Reason(format!("rule {}: {refusal}", rule.name()));
        rule.realise(task, plan, built).map_err(refused)
    })
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
