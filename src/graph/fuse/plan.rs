//! Plans: what is decided while a program is cut into tasks.
//!
//! Decisions are as those of tasks' schedules ([`crate::trace`]): sites, named candidates, a default. The
//! defaults give the network that is cut without a plan. A kind of decisions is a member of [`Kind`], and a
//! function that asks the [`Planner`]; kinds ask one after the other.
//!
//! A plan lists only what is decided otherwise than by default, so that it stays what it is when further
//! kinds are added.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::PartitionError;
use crate::graph::Network;
use crate::trace::{Choice, Decision, ParseError, Policy, Stale, Stop, Tape, Trace, Word, Words};

/// The decisions that are not the defaults, one a line: `layout 3 = last`. Prints and parses.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Plan(pub Trace);

impl Plan {
    /// Whether everything is as by default.
    pub fn is_default(&self) -> bool {
        self.0.0.is_empty()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Plan {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Plan, ParseError> {
        text.parse().map(Plan)
    }
}

/// A decision that was taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Planned {
    pub decision: Decision,
    /// The position of what was taken among the candidates.
    pub taken: usize,
    /// In the order of the program.
    pub concerns: Vec<Concern>,
}

/// A tensor that a decision concerns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Concern {
    /// Operator and name of the ONNX node that writes it.
    pub node: String,
    /// Without the decision, without extents of 1, and at most where it is known only when it runs.
    pub shape: Vec<i64>,
}

impl Planned {
    /// What was taken.
    pub fn choice(&self) -> Choice {
        let value = self.decision.candidates.get(self.taken).cloned().unwrap_or_default();
        Choice { site: self.decision.site.clone(), value }
    }

    pub fn is_default(&self) -> bool {
        self.taken == self.decision.default
    }
}

impl Network {
    /// The plan that it was cut by.
    pub fn plan(&self) -> Plan {
        Plan(Trace(self.planned.iter().filter(|planned| !planned.is_default()).map(Planned::choice).collect()))
    }
}

/// Takes the candidate of this name wherever there is one, and the default elsewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prefer(pub Words);

impl Policy for Prefer {
    fn pick(&mut self, decision: &Decision) -> usize {
        decision.candidates.iter().position(|candidate| *candidate == self.0).unwrap_or(decision.default)
    }
}

/// Takes what a plan says, and the default where it says nothing.
pub struct Follow<'p> {
    plan: &'p Plan,
    /// Positions of the decisions that were asked for.
    asked: BTreeSet<usize>,
    stale: Option<Stale>,
}

impl Follow<'_> {
    pub fn new(plan: &Plan) -> Follow<'_> {
        Follow { plan, asked: BTreeSet::new(), stale: None }
    }

    /// Whether the plan said nothing but what was asked and offered.
    pub fn finish(self) -> Result<(), Stale> {
        let choices = &self.plan.0.0;
        let left = choices.len() - self.asked.len();
        let first = choices.iter().enumerate().find(|(at, _)| !self.asked.contains(at));
        let left = first.map(|(_, choice)| Stale::LeftOver { left, site: choice.site.clone() });
        self.stale.or(left).map_or(Ok(()), Err)
    }
}

impl Policy for Follow<'_> {
    fn pick(&mut self, decision: &Decision) -> usize {
        let of_site = |(_, choice): &(usize, &Choice)| choice.site == decision.site;
        let Some((at, choice)) = self.plan.0.0.iter().enumerate().find(of_site) else { return decision.default };
        self.asked.insert(at);
        let Choice { site, value } = choice.clone();
        decision.candidates.iter().position(|candidate| *candidate == value).unwrap_or_else(|| {
            self.stale.get_or_insert(Stale::Value { at, site, value, candidates: decision.candidates.len() });
            decision.default
        })
    }
}

/// Kinds of decisions, in the order in which they are taken. The name of a kind is the first word of its
/// sites, and its position the number of the rule that asks ([`Decision::rule`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// How tensors between tasks lie in memory.
    Layout,
    /// The same of those that are concatenated, with all of their parts.
    Concatenation,
    /// Whether parts of rows are written in place.
    Parts,
    /// Whether a reduction is a task with that whose results it takes.
    Join,
}

impl Kind {
    /// All of them, in their order.
    pub const ALL: [Kind; 4] = [Kind::Layout, Kind::Concatenation, Kind::Parts, Kind::Join];

    /// What sites of the kind begin with.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Layout => "layout",
            Kind::Concatenation => "concatenation",
            Kind::Parts => "parts",
            Kind::Join => "join",
        }
    }

    /// Whether decisions of the kind pay where their neighbours are taken alike, as layouts do. Others
    /// concern nobody but the tasks that they are about.
    pub const fn is_of_neighbours(self) -> bool {
        !matches!(self, Kind::Join)
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The kind of a decision that was asked while a program was cut.
    pub fn of(decision: &Decision) -> Option<Kind> {
        Kind::ALL.get(decision.rule).copied()
    }
}

/// Asks for decisions, and keeps them.
pub struct Planner<'t, 'p> {
    tape: &'t mut Tape<'p>,
    pub planned: Vec<Planned>,
}

impl<'t, 'p> Planner<'t, 'p> {
    pub fn new(tape: &'t mut Tape<'p>) -> Planner<'t, 'p> {
        Planner { tape, planned: Vec::new() }
    }

    /// Decides between candidates of these names, the first of which is the default; gives what was taken.
    pub fn choose(
        &mut self,
        kind: Kind,
        site: Words,
        candidates: &[&'static str],
        concerns: Vec<Concern>,
    ) -> Result<Words, PartitionError> {
        debug_assert!(site.0.first() == Some(&Word::from(kind.name())) && Kind::ALL[kind as usize] == kind);
        let candidates: Vec<Words> = candidates.iter().map(|name| Words::from(*name)).collect();
        self.tape.enter(kind as usize);
        let value = self.tape.choose(site.clone(), candidates.clone(), 0).map_err(|stop| match stop {
            Stop::Choose(decision) => PartitionError::Open { site: decision.site },
            Stop::DeadEnd(reason) => PartitionError::DeadEnd(reason),
            Stop::Stale(stale) => PartitionError::Stale(stale),
        })?;
        let taken = candidates.iter().position(|candidate| *candidate == value).unwrap_or(0);
        let decision = Decision { site, candidates, default: 0, before: 0, rule: kind as usize };
        self.planned.push(Planned { decision, taken, concerns });
        Ok(value)
    }
}
