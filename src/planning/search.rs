//! The search: extremes, then moves.

use std::collections::BTreeSet;

use super::cuts::{Bounds, Cut, Cuts, Cutter, Origin, Wish};
use super::moves::{Move, moves};
use super::times::{Measure, Time, Times};
use crate::graph::{Network, NetworkTask, Plan, PlanKind};
use crate::trace::{Decision, Words};

/// What a move changes has to become faster by: less is noise.
const MARGIN: f64 = 0.97;
/// Of so many tasks of the default plan, one more may be measured for moves.
const TASKS_FOR_ONE: usize = 4;
/// A program is cut at most so often, where tasks can be measured: that takes far longer.
const MOST_CUTS: usize = 600;
/// The same where nothing is measured.
const MOST_CUTS_ALONE: usize = 200;

/// Rounds of moves, at most: hardly ever are there more than three.
const MOST_ROUNDS: usize = 20;
/// What the tasks that moves bring along may take of the time for measuring, where that is limited; and what
/// may take those of the plan that is found, as far as they were measured briefly.
const SHARE_OF_MOVES: f64 = 0.15;
const SHARE_OF_REST: f64 = 0.05;

/// Plans that take up to so many times as long as the fastest, by what was measured briefly, are measured in
/// full. Of seven networks and all their layouts, this ratio moved by up to six hundredths from there.
const NEAR: f64 = 1.1;
/// What measuring briefly may take of the time for the extremes of a kind, where that is limited.
const SHARE_OF_HEATS: f64 = 0.4;

/// What is wanted to be known of tasks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Ask {
    /// Times that are known.
    Known,
    /// Times that are measured now, in this share of the time that there is.
    Measured { share: f64, effort: Effort },
}

/// How much is measured of tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    /// As much as tells plans apart.
    Brief,
    /// As much as is measured of tasks that are deployed.
    Full,
}

/// By what the search sees and acts.
pub struct Means<'a, 'c, E> {
    pub cut: &'a mut Cutter<'c, E>,
    /// Times of tasks, in their order.
    pub times: &'a mut TaskTimes<'c, E>,
    /// Whether tasks can be measured: otherwise what is known decides.
    pub can_measure: bool,
}

/// Times of tasks, in their order.
pub type TaskTimes<'c, E> = dyn FnMut(&[&NetworkTask], Ask) -> Result<Vec<Time>, E> + 'c;

/// What a search found.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// Plans of which all tasks have times, and the default: that first, and then in the order in which they
    /// were found.
    pub tried: Vec<Tried>,
    /// The position of the fastest other plan than the default, if there is one.
    pub best: Option<usize>,
    /// Nanoseconds of all tasks of the default and of the best, by one measure.
    pub tasks_ns: [Option<f64>; 2],
    /// How often the program was cut.
    pub cuts: usize,
    /// Tasks that were measured for moves.
    pub measured: usize,
}

/// A plan that was judged.
#[derive(Clone, PartialEq, Debug)]
pub struct Tried {
    pub plan: Plan,
    pub origin: Origin,
    /// Distinct tasks, and calls of them in a run.
    pub tasks: usize,
    pub calls: f64,
    /// What its tasks take together, and by which measure.
    pub tasks_ns: Option<(f64, Measure)>,
}

impl Tried {
    /// A network alone that was cut by a plan that somebody gave; and the times of its tasks, in their order.
    pub fn alone(network: &Network, times: &[Time]) -> Tried {
        let mut of_tasks = Times::default();
        for (number, (task, time)) in network.tasks.iter().zip(times).enumerate() {
            of_tasks.add(task);
            of_tasks.set(number, *time);
        }
        let tasks = network.tasks.iter().enumerate().map(|(number, task)| (number, task.weight as f64)).collect();
        let cut = Cut { plan: network.plan(), tasks, decisions: Vec::new(), origin: Origin::Given };
        Tried::of(&cut, &of_tasks)
    }

    fn of(cut: &Cut, times: &Times) -> Tried {
        Tried {
            plan: cut.plan.clone(),
            origin: cut.origin.clone(),
            tasks: cut.tasks.len(),
            calls: cut.calls(),
            tasks_ns: times.sum(cut),
        }
    }
}

/// Searches the plans of a program, within bounds. Those that are `given` are tried where all their tasks are
/// known.
///
/// # Errors
/// Those of `means`.
pub fn search<E>(means: Means<'_, '_, E>, bounds: &Bounds, given: &[Plan]) -> Result<Found, E> {
    let Means { cut, times: ask, can_measure } = means;
    let (cuts, times) = (Cuts::new(cut, bounds), Times::default());
    let most_cuts = if can_measure { MOST_CUTS } else { MOST_CUTS_ALONE };
    let mut search = Search { cuts, ask, times, can_measure, most_cuts, measured: 0 };
    let mut best = search.extremes()?;
    for plan in given {
        let at = search.cut(&Wish::of(plan), Origin::Given)?;
        search.look(&[at])?;
        best = search.fastest(&[best, at]);
    }
    for _ in 0..MOST_ROUNDS {
        match search.improve(best)? {
            Some(better) => best = better,
            None => break,
        }
    }
    // moves may have led to tasks of plans that were measured briefly
    let rest = search.tasks_of(&[best], Times::is_brief);
    search.ask(&rest, Ask::Measured { share: SHARE_OF_REST, effort: Effort::Full })?;
    Ok(search.found(best))
}

struct Search<'a, 'c, E> {
    cuts: Cuts<'a, 'c, E>,
    ask: &'a mut TaskTimes<'c, E>,
    times: Times,
    can_measure: bool,
    most_cuts: usize,
    /// Tasks, for moves.
    measured: usize,
}

/// A move from the plan that is the best so far.
struct Step {
    change: Move,
    to: usize,
    /// What it changes takes before and afterwards.
    ns: [f64; 2],
    /// Tasks of the plan that it leads to without a time.
    unknown: Vec<usize>,
}

impl Step {
    fn gain(&self) -> f64 {
        self.ns[0] - self.ns[1]
    }
}

impl<E> Search<'_, '_, E> {
    fn cut(&mut self, wish: &Wish, origin: Origin) -> Result<usize, E> {
        let at = self.cuts.of(wish, origin)?;
        for task in &self.cuts.tasks[self.times.len()..] {
            self.times.add(task);
        }
        Ok(at)
    }

    fn plan(&self, at: usize) -> &Cut {
        &self.cuts.found[at]
    }

    fn all(&self) -> Vec<usize> {
        (0..self.cuts.found.len()).collect()
    }

    /// The default, and kind by kind all decisions with one candidate, the kinds before as they were fastest:
    /// cut, and their tasks measured. Of kinds that do not pay together, moves are all that is tried.
    fn extremes(&mut self) -> Result<usize, E> {
        let default = self.cut(&Wish::default(), Origin::Default)?;
        let kinds: Vec<(PlanKind, Vec<Words>)> = PlanKind::ALL
            .into_iter()
            .filter(|kind| kind.is_of_neighbours())
            .map(|kind| (kind, self.alternatives(default, kind)))
            .filter(|(_, values)| !values.is_empty())
            .collect();
        let mut best = default;
        // the default is measured with the first of them
        let shares = kinds.len() as f64 + 1.0;
        for (number, (kind, values)) in kinds.iter().enumerate() {
            let mut plans = vec![best];
            for value in values {
                let all = Some((*kind, value.clone()));
                let wish = Wish { all, ..Wish::of(&self.plan(best).plan) };
                plans.push(self.cut(&wish, Origin::All(*kind, value.clone()))?);
            }
            let share = (1.0 - SHARE_OF_MOVES - SHARE_OF_REST) * if number == 0 { 2.0 } else { 1.0 } / shares;
            best = self.race(&plans, share)?;
        }
        if kinds.is_empty() {
            self.measure_in_full(&[default], 1.0)?;
        }
        Ok(best)
    }

    /// The fastest of several plans: what was measured briefly of all says which of them are measured in
    /// full.
    fn race(&mut self, plans: &[usize], share: f64) -> Result<usize, E> {
        let tasks = self.tasks_of(plans, |times, task| !times.was_asked(task));
        self.ask(&tasks, Ask::Measured { share: share * SHARE_OF_HEATS, effort: Effort::Brief })?;
        let leader = self.plan(self.fastest(plans));
        // what cannot be compared is not left out
        let is_near = |at: &usize| {
            let sums = self.times.sums(leader, self.plan(*at));
            sums.is_none_or(|[least, other]| other <= NEAR * least)
        };
        let near: Vec<usize> = plans.iter().copied().filter(is_near).collect();
        self.measure_in_full(&near, share * (1.0 - SHARE_OF_HEATS))?;
        Ok(self.fastest(&near))
    }

    /// Candidates for all decisions of a kind at once, other than their defaults, as a plan asks for them.
    fn alternatives(&self, of: usize, kind: PlanKind) -> Vec<Words> {
        let mut found: Vec<Words> = Vec::new();
        let is_free = |decision: &Decision| PlanKind::of(decision) == Some(kind) && self.cuts.is_free(decision);
        for (decision, _) in self.plan(of).decisions.iter().filter(|(decision, _)| is_free(decision)) {
            let others = decision.candidates.iter().enumerate().filter(|(at, _)| *at != decision.default);
            for (_, value) in others {
                if !found.contains(value) {
                    found.push(value.clone());
                }
            }
        }
        found
    }

    /// Measures the tasks of plans that were not measured in full before.
    fn measure_in_full(&mut self, plans: &[usize], share: f64) -> Result<(), E> {
        let tasks = self.tasks_of(plans, |times, task| !times.was_measured(task));
        self.ask(&tasks, Ask::Measured { share, effort: Effort::Full })
    }

    /// The tasks of plans for which something holds, ascending.
    fn tasks_of(&self, plans: &[usize], holds: impl Fn(&Times, usize) -> bool) -> Vec<usize> {
        let tasks = plans.iter().flat_map(|at| &self.plan(*at).tasks).map(|(task, _)| *task);
        let tasks: BTreeSet<usize> = tasks.filter(|task| holds(&self.times, *task)).collect();
        tasks.into_iter().collect()
    }

    fn ask(&mut self, tasks: &[usize], ask: Ask) -> Result<(), E> {
        if tasks.is_empty() {
            return Ok(());
        }
        let asked: Vec<&NetworkTask> = tasks.iter().map(|task| &self.cuts.tasks[*task]).collect();
        let found = (self.ask)(&asked, ask)?;
        for (task, time) in tasks.iter().zip(found) {
            self.times.set(*task, time);
            match ask {
                Ask::Known => {}
                Ask::Measured { effort: Effort::Brief, .. } => self.times.note_brief(*task),
                Ask::Measured { effort: Effort::Full, .. } => self.times.give_up(*task),
            }
        }
        Ok(())
    }

    /// Finds out what is known of the tasks of plans.
    fn look(&mut self, plans: &[usize]) -> Result<(), E> {
        let tasks = self.tasks_of(plans, |times, task| !times.was_asked(task));
        self.ask(&tasks, Ask::Known)
    }

    /// The fastest of plans whose tasks have times; the first where none is faster for sure.
    fn fastest(&self, plans: &[usize]) -> usize {
        let mut best = plans.first().copied().unwrap_or(0);
        for at in plans {
            let difference = self.times.difference(self.plan(best), self.plan(*at));
            if difference.unknown.is_empty() && difference.ns.is_some_and(|[before, now]| now < before) {
                best = *at;
            }
        }
        best
    }

    /// A better plan by moves from this one. Where the times that are known show none, tasks are measured,
    /// and the plan comes back to be tried once more.
    fn improve(&mut self, from: usize) -> Result<Option<usize>, E> {
        let mut steps = self.steps(from)?;
        steps.sort_by(|a, b| b.gain().total_cmp(&a.gain()));
        let mut best = from;
        for step in steps.iter().filter(|step| step.unknown.is_empty()) {
            let at = match best == from {
                true => step.to,
                false if self.cuts.made >= self.most_cuts => break,
                false => self.cut(&step.change.from(self.plan(best)), Origin::Search)?,
            };
            self.look(&[at])?;
            if self.is_better(best, at) {
                best = at;
            }
        }
        if best != from {
            return Ok(Some(best));
        }
        Ok(self.measure(&steps)?.then_some(from))
    }

    /// Moves that are expected to gain.
    fn steps(&mut self, from: usize) -> Result<Vec<Step>, E> {
        let mut reached = Vec::new();
        for change in moves(self.plan(from), |decision| self.cuts.is_free(decision)) {
            let wish = change.from(self.plan(from));
            if self.cuts.made >= self.most_cuts && !self.cuts.is_known(&wish) {
                continue;
            }
            reached.push((self.cut(&wish, Origin::Search)?, change));
        }
        self.look(&reached.iter().map(|(to, _)| *to).collect::<Vec<_>>())?;
        let step = |(to, change)| {
            let difference = self.times.difference(self.plan(from), self.plan(to));
            let ns = difference.ns.filter(|ns| is_faster(*ns))?;
            Some(Step { change, to, ns, unknown: difference.unknown })
        };
        Ok(reached.into_iter().filter_map(step).collect())
    }

    fn is_better(&self, than: usize, at: usize) -> bool {
        let difference = self.times.difference(self.plan(than), self.plan(at));
        difference.unknown.is_empty() && difference.ns.is_some_and(is_faster)
    }

    /// Measures tasks of those moves that promise most for each task, as far as the allowance goes; tells
    /// whether there were any.
    fn measure(&mut self, steps: &[Step]) -> Result<bool, E> {
        if !self.can_measure {
            return Ok(false);
        }
        let allowed = (self.plan(0).tasks.len() / TASKS_FOR_ONE).max(1);
        let mut left = allowed.saturating_sub(self.measured);
        // what was measured and has no time gets none
        let is_open =
            |step: &&Step| !step.unknown.is_empty() && step.unknown.iter().all(|t| !self.times.is_hopeless(*t));
        let mut open: Vec<&Step> = steps.iter().filter(is_open).collect();
        let promise = |step: &Step| step.gain() / step.unknown.len() as f64;
        open.sort_by(|a, b| promise(b).total_cmp(&promise(a)));
        let mut wanted: Vec<usize> = Vec::new();
        for step in open {
            let more: Vec<usize> = step.unknown.iter().copied().filter(|task| !wanted.contains(task)).collect();
            if more.len() <= left {
                left -= more.len();
                wanted.extend(more);
            }
        }
        if wanted.is_empty() {
            return Ok(false);
        }
        self.measured += wanted.len();
        let share = SHARE_OF_MOVES * wanted.len() as f64 / allowed as f64;
        self.ask(&wanted, Ask::Measured { share, effort: Effort::Full })?;
        Ok(true)
    }

    fn found(self, best: usize) -> Found {
        let default = 0;
        let others: Vec<usize> = self.all().into_iter().filter(|at| *at != default && self.is_timed(*at)).collect();
        // tasks that were measured briefly have no finals, but their fastest runs, which are less: a plan of
        // such tasks is given the benefit, and run beside the default
        let sum = |at: &usize| self.times.sum(self.plan(*at)).map_or(f64::INFINITY, |(ns, _)| ns);
        let may_be_fastest = || others.iter().copied().min_by(|a, b| sum(a).total_cmp(&sum(b)));
        let best = if best == default { may_be_fastest() } else { Some(best) };
        let alone = || [self.times.sum(self.plan(default)).map(|(ns, _)| ns), None];
        let both = best.and_then(|best| self.times.sums(self.plan(default), self.plan(best)));
        let tasks_ns = both.map_or_else(alone, |both| both.map(Some));
        let kept: Vec<usize> = self.all().into_iter().filter(|at| *at == default || self.is_timed(*at)).collect();
        let tried = |at: &usize| Tried::of(self.plan(*at), &self.times);
        Found {
            tried: kept.iter().map(tried).collect(),
            best: best.and_then(|best| kept.iter().position(|at| *at == best)),
            tasks_ns,
            cuts: self.cuts.made,
            measured: self.measured,
        }
    }

    fn is_timed(&self, at: usize) -> bool {
        self.times.sum(self.plan(at)).is_some()
    }
}

fn is_faster([before, now]: [f64; 2]) -> bool {
    now < MARGIN * before
}
