//! Programs cut as plans wish, each of them once.

use std::collections::{BTreeMap, HashMap};

use crate::graph::{Network, NetworkTask, Plan, PlanKind};
use crate::trace::{Choice, Decision, Policy, Words};
use crate::workload::Workload;

/// Cuts a program as a policy decides.
pub type Cutter<'a, E> = dyn FnMut(&mut dyn Policy) -> Result<Network, E> + 'a;

/// What is not searched: kinds of decisions all of which take one answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bounds(BTreeMap<PlanKind, Option<Words>>);

impl Bounds {
    /// All decisions of a kind take a candidate where it is offered; or their defaults, with `None`.
    pub fn fix(&mut self, kind: PlanKind, value: Option<Words>) {
        self.0.insert(kind, value);
    }

    /// Whether decisions of a kind are searched.
    pub fn is_free(&self, kind: PlanKind) -> bool {
        !self.0.contains_key(&kind)
    }
}

/// How a plan was come by first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    Default,
    /// All decisions of a kind take a candidate.
    All(PlanKind, Words),
    /// It was given: an earlier search found it.
    Given,
    Search,
}

/// What plans are asked for by. Decisions that are not mentioned have their defaults, and so have those that
/// do not offer what is wished: what one decision takes may change what others offer.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Wish {
    /// By site.
    pub sites: BTreeMap<Words, Words>,
    /// One candidate for all decisions of a kind.
    pub all: Option<(PlanKind, Words)>,
}

impl Wish {
    pub fn of(plan: &Plan) -> Wish {
        let sites = plan.0.0.iter().map(|Choice { site, value }| (site.clone(), value.clone()));
        Wish { sites: sites.collect(), all: None }
    }
}

/// Takes what is wished, within bounds.
struct Follow<'w> {
    wish: &'w Wish,
    bounds: &'w Bounds,
}

impl Policy for Follow<'_> {
    fn pick(&mut self, decision: &Decision) -> usize {
        let kind = PlanKind::of(decision);
        let fixed = kind.and_then(|kind| self.bounds.0.get(&kind));
        let of_kind = self.wish.all.as_ref().filter(|(wished, _)| Some(*wished) == kind).map(|(_, value)| value);
        let wanted = match fixed {
            Some(fixed) => fixed.as_ref(),
            None => of_kind.or_else(|| self.wish.sites.get(&decision.site)),
        };
        let position = |value| decision.candidates.iter().position(|candidate| candidate == value);
        wanted.and_then(position).unwrap_or(decision.default)
    }
}

/// A program as a plan cuts it.
#[derive(Clone, Debug)]
pub struct Cut {
    pub plan: Plan,
    /// Numbers of tasks, ascending, and how often each is called in a run.
    pub tasks: Vec<(usize, f64)>,
    /// All decisions, and the position of what was taken.
    pub decisions: Vec<(Decision, usize)>,
    pub origin: Origin,
}

impl Cut {
    /// Calls of tasks in a run.
    pub fn calls(&self) -> f64 {
        self.tasks.iter().map(|(_, calls)| calls).sum()
    }
}

/// All that was cut, and the tasks of it.
pub(super) struct Cuts<'a, 'c, E> {
    cut: &'a mut Cutter<'c, E>,
    bounds: &'a Bounds,
    number_of: HashMap<Workload, usize>,
    /// By number.
    pub tasks: Vec<NetworkTask>,
    /// Distinct plans, in the order in which they were found.
    pub found: Vec<Cut>,
    by_wish: HashMap<Wish, usize>,
    by_plan: HashMap<Plan, usize>,
    /// How often the program was cut.
    pub made: usize,
}

impl<'a, 'c, E> Cuts<'a, 'c, E> {
    pub fn new(cut: &'a mut Cutter<'c, E>, bounds: &'a Bounds) -> Cuts<'a, 'c, E> {
        Cuts {
            cut,
            bounds,
            number_of: HashMap::new(),
            tasks: Vec::new(),
            found: Vec::new(),
            by_wish: HashMap::new(),
            by_plan: HashMap::new(),
            made: 0,
        }
    }

    /// The position of the plan that a wish comes to.
    pub fn of(&mut self, wish: &Wish, origin: Origin) -> Result<usize, E> {
        if let Some(at) = self.by_wish.get(wish) {
            return Ok(*at);
        }
        let network = (self.cut)(&mut Follow { wish, bounds: self.bounds })?;
        self.made += 1;
        let plan = network.plan();
        let at = match self.by_plan.get(&plan) {
            Some(at) => *at,
            None => {
                let cut = self.add(network, origin);
                self.found.push(cut);
                self.by_plan.insert(plan.clone(), self.found.len() - 1);
                self.by_wish.insert(Wish::of(&plan), self.found.len() - 1);
                self.found.len() - 1
            }
        };
        self.by_wish.insert(wish.clone(), at);
        Ok(at)
    }

    /// Whether it is known what a wish comes to.
    pub fn is_known(&self, wish: &Wish) -> bool {
        self.by_wish.contains_key(wish)
    }

    fn add(&mut self, network: Network, origin: Origin) -> Cut {
        let plan = network.plan();
        let mut tasks: BTreeMap<usize, f64> = BTreeMap::new();
        for task in network.tasks {
            let calls = task.weight as f64;
            let number = *self.number_of.entry(task.workload.clone()).or_insert_with(|| {
                self.tasks.push(task);
                self.tasks.len() - 1
            });
            *tasks.entry(number).or_default() += calls;
        }
        let decisions = network.planned.into_iter().map(|planned| (planned.decision, planned.taken)).collect();
        Cut { plan, tasks: tasks.into_iter().collect(), decisions, origin }
    }

    /// Whether decisions of the kind of this one are searched.
    pub fn is_free(&self, decision: &Decision) -> bool {
        PlanKind::of(decision).is_some_and(|kind| self.bounds.is_free(kind))
    }
}
