//! Which plan a network is compiled by.
//!
//! Plans are searched by the times of their tasks ([`tilescribe::planning`]). The best one is likely to be
//! the fastest; where the default comes near, or plans that decide all alike, their networks are compiled and
//! run in turn, and the whole decides. What was learned of plans is kept in the store.

use std::fmt;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use tilescribe::artifact::Schedule;
use tilescribe::graph::{Network, NetworkTask, Plan};
use tilescribe::planning::{self, Ask, Bounds, Effort, Found, Means, Measure, Origin, Tried};
use tilescribe::record::{PlanRecord, PlanRun, Store, TasksTiming};
use tilescribe::space::Policy;
use tilescribe::target::Target;

use super::in_network::Settled;
use super::layouts::PlannedProgram;
use super::tuned::{Draft, Tuned};
use super::words::{counted, duration};

/// A plan whose tasks take so many times as long as those of another one is not run.
const HOPELESS: f64 = 1.1;
/// What another plan than the default has to be faster by: less is noise.
const MARGIN: f64 = 0.98;
/// Networks that are run in turn, at most.
const MOST_RUN: usize = 4;
/// Plans that earlier searches found, and that are tried.
const GIVEN: usize = 3;

/// What was compared to choose a plan.
pub struct Contest {
    found: Found,
    /// Of the plans whose networks were run in turn, positions and nanoseconds of a run.
    runs: Vec<(usize, f64)>,
    /// The position of the plan that was taken.
    taken: usize,
    /// What became of runners-up of the tasks of that plan, where networks were run.
    settled: Option<Settled>,
}

/// Searches the plans of a program within bounds, and gives the network of the one that is taken. `memory`
/// are the output folder, beside which networks are compiled to be run, and the bytes that all may need.
///
/// # Errors
/// Where a network cannot be cut, measured, compiled or run.
pub fn search(
    program: &PlannedProgram,
    bounds: &Bounds,
    tuned: &mut Tuned<'_>,
    given: &[Plan],
    target: &Target,
    memory: (&Path, u64),
) -> Result<(Draft, Contest)> {
    let can_measure = tuned.measures();
    let mut cut = |policy: &mut dyn Policy| program.driven(policy);
    let mut times = |tasks: &[&_], ask| {
        if let Ask::Measured { share, effort } = ask {
            tuned.measure(tasks, share, effort)?;
        }
        tuned.times(tasks)
    };
    let found = planning::search(Means { cut: &mut cut, times: &mut times, can_measure }, bounds, given)?;
    let by_tasks = match (found.best, found.tasks_ns) {
        (Some(best), [Some(default), Some(other)]) if other < MARGIN * default => best,
        _ => 0,
    };
    let mut contest = Contest { found, runs: Vec::new(), taken: by_tasks, settled: None };
    let draft = |at: usize| -> Result<Draft> { tuned.draft(program.cut(&contest.found.tried[at].plan)?) };
    let contenders = contenders(&contest.found);
    if contenders.len() < 2 || !tuned.measures() || !matches!(target, Target::Cpu(_)) {
        return Ok((draft(by_tasks)?, contest));
    }
    // plans run as they would be deployed; without memory or time for it, the tasks decide
    let mut drafts: Vec<Draft> = contenders.iter().map(|at| draft(*at)).collect::<Result<_>>()?;
    let mut networks: Vec<(&Network, &mut [Schedule])> =
        drafts.iter_mut().map(|draft| (&draft.network, draft.chosen[0].as_mut_slice())).collect();
    let settled = tuned.settle(&mut networks, memory)?;
    if let Some(runs) = settled.iter().map(|(_, ns)| *ns).collect::<Option<Vec<f64>>>() {
        contest.runs = contenders.iter().copied().zip(runs).collect();
        contest.taken = fastest(&contest.runs);
    }
    let all = contenders.into_iter().zip(drafts).zip(settled);
    match all.into_iter().find(|((at, _), _)| *at == contest.taken) {
        Some(((_, draft), (settled, _))) => Ok((draft, Contest { settled: Some(settled), ..contest })),
        None => Ok((draft(contest.taken)?, contest)),
    }
}

/// The plans whose networks are run: those whose tasks take nearly as long as those of the best. That is the
/// default, the best other plan, and those of which all decisions of a kind are alike: between their tasks,
/// nothing is laid out in another way than the one before left it, which tasks alone do not show.
fn contenders(found: &Found) -> Vec<usize> {
    let (Some(best), [Some(default_ns), Some(best_ns)]) = (found.best, found.tasks_ns) else { return Vec::new() };
    let least = default_ns.min(best_ns);
    let is_near = |ns: f64| ns <= HOPELESS * least;
    let mut near: Vec<usize> =
        [(0, default_ns), (best, best_ns)].into_iter().filter(|(_, ns)| is_near(*ns)).map(|(at, _)| at).collect();
    // what was measured briefly has too few programs to be deployed
    let finals = |at: usize| found.tried[at].tasks_ns.filter(|(_, measure)| *measure == Measure::Finals);
    let is_uniform = |at: &usize| matches!(found.tried[*at].origin, Origin::All(..)) && *at != best;
    let of_uniform = |at: usize| Some((at, finals(at)?.0)).filter(|(_, ns)| is_near(*ns));
    let mut uniform: Vec<(usize, f64)> = (0..found.tried.len()).filter(is_uniform).filter_map(of_uniform).collect();
    uniform.sort_by(|a, b| a.1.total_cmp(&b.1));
    near.extend(uniform.into_iter().map(|(at, _)| at));
    near.truncate(MOST_RUN);
    near
}

/// The plan whose run was the fastest; the default, where others are hardly faster.
fn fastest(runs: &[(usize, f64)]) -> usize {
    let weighed = |(at, ns): &(usize, f64)| if *at == 0 { MARGIN * ns } else { *ns };
    runs.iter().min_by(|a, b| weighed(a).total_cmp(&weighed(b))).map_or(0, |(at, _)| *at)
}

/// A network that was cut as somebody wants it, with schedules for its tasks.
///
/// # Errors
/// Where it cannot be measured.
pub fn single(network: Network, tuned: &mut Tuned<'_>) -> Result<(Draft, Contest)> {
    let tasks: Vec<&NetworkTask> = network.tasks.iter().collect();
    tuned.measure(&tasks, 1.0, Effort::Full)?;
    let tried = Tried::alone(&network, &tuned.times(&tasks)?);
    let tasks_ns = [tried.tasks_ns.map(|(ns, _)| ns), None];
    let found = Found { tried: vec![tried], best: None, tasks_ns, cuts: 1, measured: 0 };
    Ok((tuned.draft(network)?, Contest { found, runs: Vec::new(), taken: 0, settled: None }))
}

/// The plans of a program on a target that the store knows and that were fastest, those before others whose
/// networks were run and found faster.
///
/// # Errors
/// Where the store cannot be read.
pub fn known(store: &Store, program: &str, target: &Target) -> Result<Vec<Plan>> {
    let mut plans = store.plans(Some(program))?;
    let target = target.fingerprint();
    plans.retain(|plan| plan.target == target && !plan.plan.is_empty());
    let ratio = |plan: &PlanRecord| plan.run_ratio().unwrap_or(1.0);
    // of those that are alike in this, the store gives the fastest first
    plans.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    // what does not parse is of another version
    Ok(plans.iter().filter_map(|plan| plan.plan.parse().ok()).take(GIVEN).collect())
}

impl Contest {
    /// What became of runners-up, where it was found out already.
    pub fn take_settled(&mut self) -> Option<Settled> {
        self.settled.take()
    }

    /// Whether there was another plan than the default to compare it with.
    pub fn has_rivals(&self) -> bool {
        self.found.tried.len() > 1
    }

    /// What is worth to be kept: of each plan whose tasks all have times.
    pub fn records(&self, program: &str, name: &str, target: &Target) -> Vec<PlanRecord> {
        let (created_unix_s, tilescribe) = PlanRecord::stamp();
        let record = |(at, tried): (usize, &Tried)| {
            let (tasks_ns, measure) = tried.tasks_ns?;
            Some(PlanRecord {
                program: program.to_string(),
                name: name.to_string(),
                target: target.fingerprint(),
                plan: tried.plan.to_string(),
                tasks: tried.tasks as u64,
                calls: tried.calls as u64,
                tasks_ns,
                timing: timing(measure),
                run: self.run_of(at).zip(self.run_of(0)).map(|(ns, default_ns)| PlanRun { ns, default_ns }),
                created_unix_s,
                tilescribe: tilescribe.clone(),
            })
        };
        self.found.tried.iter().enumerate().filter_map(record).collect()
    }

    /// What a run took by the plan at this position, if it was run.
    fn run_of(&self, at: usize) -> Option<f64> {
        self.runs.iter().find(|(run, _)| *run == at).map(|(_, ns)| *ns)
    }

    pub fn json(&self) -> Value {
        let Contest { found, taken, .. } = self;
        let plan = |(at, tried): (usize, &Tried)| {
            let mut line = json!({
                "plan": tried.plan.to_string(), "from": origin(&tried.origin), "tasks": tried.tasks,
                "calls": tried.calls, "tasks_ns": tried.tasks_ns.map(|(ns, _)| ns),
            });
            if let Some((_, measure)) = tried.tasks_ns {
                line["timing"] = json!(timing(measure).name());
            }
            if let Some(ns) = self.run_of(at) {
                line["run_ns"] = json!(ns);
            }
            line
        };
        let tried: Vec<Value> = found.tried.iter().enumerate().map(plan).collect();
        json!({
            "tried": tried, "tasks_ns": found.tasks_ns, "taken": taken, "other_taken": *taken != 0,
            "cuts": found.cuts, "measured_for_moves": found.measured,
        })
    }
}

impl fmt::Display for Contest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Contest { found, taken, .. } = self;
        let measured = match found.measured {
            0 => String::new(),
            count => format!(", {} measured for some", counted(count as u64, "task")),
        };
        writeln!(f, "plans: {} timed by their tasks{measured}", counted(found.tried.len() as u64, "plan"))?;
        for (at, tried) in found.tried.iter().enumerate() {
            let is_best = found.best == Some(at);
            if !is_best && !matches!(tried.origin, Origin::Default | Origin::All(..)) {
                continue;
            }
            let ns = tried.tasks_ns.map_or_else(|| "untimed".into(), |(ns, _)| duration(ns as u64));
            let few = match &tried.origin {
                Origin::Given | Origin::Search => format!(": {}", shortened(&tried.plan)),
                Origin::Default | Origin::All(..) => String::new(),
            };
            // fastest runs are less than what finals say, and do not compare with it
            let timed = tried.tasks_ns.map(|(_, measure)| timing(measure));
            let brief = if timed == Some(TasksTiming::Records) { ", fastest runs alone" } else { "" };
            let run = self.run_of(at).map_or_else(String::new, |ns| format!(", {} a run", duration(ns as u64)));
            writeln!(f, "{ns:>10}  {}{few}{brief}{run}", origin(&tried.origin))?;
        }
        let from = found.tried.get(*taken).map_or_else(String::new, |tried| origin(&tried.origin));
        write!(f, "plan taken: {from}")
    }
}

/// How the tasks of a plan were timed.
fn timing(measure: Measure) -> TasksTiming {
    match measure {
        Measure::Finals => TasksTiming::Finals,
        Measure::Least => TasksTiming::Records,
    }
}

fn origin(origin: &Origin) -> String {
    match origin {
        Origin::Default => "default".into(),
        Origin::All(kind, value) => format!("every {} {value}", kind.name()),
        Origin::Given => "of an earlier compilation".into(),
        Origin::Search => "search".into(),
    }
}

/// The first decisions of a plan, and how many there are.
fn shortened(plan: &Plan) -> String {
    const SHOWN: usize = 6;
    let choices = &plan.0.0;
    let shown: Vec<String> = choices.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = choices.len().saturating_sub(SHOWN);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", shown.join(", "))
}
