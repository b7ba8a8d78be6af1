//! Which plan a network is compiled by.
//!
//! Plans are searched by the times of their tasks ([`tilescribe::planning`]). The best one is likely to be
//! the fastest; where the default comes near, both networks are compiled and run in turn, and the whole
//! decides. What was learned of plans is kept in the store.

use std::fmt;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
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
/// Plans that earlier searches found, and that are tried.
const GIVEN: usize = 3;

/// What was compared to choose a plan.
pub struct Contest {
    found: Found,
    /// Nanoseconds of a run of the whole network by the default and by the best other plan, where both were
    /// run.
    run_ns: Option<[f64; 2]>,
    other_taken: bool,
    /// What became of runners-up of the tasks of the plan that was taken, where both plans were run.
    settled: Option<Settled>,
}

/// Searches the plans of a program within bounds, and gives the network of the one that is taken. `memory`
/// are the output folder, beside which networks are compiled to be run, and the bytes that both may need.
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
    let draft = |at: usize| -> Result<Draft> { tuned.draft(program.cut(&found.tried[at].plan)?) };
    let Some(best) = found.best else {
        return Ok((draft(0)?, Contest { found, run_ns: None, other_taken: false, settled: None }));
    };
    let mut drafts = [draft(0)?, draft(best)?];
    let near = match found.tasks_ns {
        [Some(first), Some(second)] => first.max(second) <= HOPELESS * first.min(second),
        _ => false,
    };
    // plans run as they would be deployed; without memory or time for it, the tasks decide
    let (mut run_ns, mut settled): (Option<[f64; 2]>, _) = (None, [None, None]);
    if near && tuned.measures() && matches!(target, Target::Cpu(_)) {
        let [first, second] = drafts.each_mut().map(|draft| (&draft.network, draft.chosen[0].as_mut_slice()));
        let both = tuned.settle(&mut [first, second], memory)?;
        run_ns = both.iter().map(|(_, ns)| *ns).collect::<Option<Vec<f64>>>().and_then(|both| both.try_into().ok());
        settled = <[_; 2]>::try_from(both).map_or([None, None], |both| both.map(|(settled, _)| Some(settled)));
    }
    let other_taken = match (run_ns, found.tasks_ns) {
        (Some([first, second]), _) | (None, [Some(first), Some(second)]) => second < MARGIN * first,
        _ => false,
    };
    let [first, second] = drafts;
    let [of_first, of_second] = settled;
    let (draft, settled) = if other_taken { (second, of_second) } else { (first, of_first) };
    Ok((draft, Contest { found, run_ns, other_taken, settled }))
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
    Ok((tuned.draft(network)?, Contest { found, run_ns: None, other_taken: false, settled: None }))
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
                timing: match measure {
                    Measure::Finals => TasksTiming::Finals,
                    Measure::Least => TasksTiming::Records,
                },
                run: self.run_of(at).zip(self.run_ns).map(|(ns, [default_ns, _])| PlanRun { ns, default_ns }),
                created_unix_s,
                tilescribe: tilescribe.clone(),
            })
        };
        self.found.tried.iter().enumerate().filter_map(record).collect()
    }

    /// What a run took by the plan at this position, if it was run.
    fn run_of(&self, at: usize) -> Option<f64> {
        let [default, best] = self.run_ns?;
        if at == 0 { Some(default) } else { (self.found.best == Some(at)).then_some(best) }
    }

    pub fn json(&self) -> Value {
        let Contest { found, run_ns, other_taken, .. } = self;
        let plan = |(at, tried): (usize, &Tried)| {
            let mut line = json!({
                "plan": tried.plan.to_string(), "from": origin(&tried.origin), "tasks": tried.tasks,
                "calls": tried.calls, "tasks_ns": tried.tasks_ns.map(|(ns, _)| ns),
            });
            if let Some(ns) = self.run_of(at) {
                line["run_ns"] = json!(ns);
            }
            line
        };
        let tried: Vec<Value> = found.tried.iter().enumerate().map(plan).collect();
        json!({
            "tried": tried, "tasks_ns": found.tasks_ns, "run_ns": run_ns, "other_taken": other_taken,
            "cuts": found.cuts, "measured_for_moves": found.measured,
        })
    }
}

impl fmt::Display for Contest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Contest { found, run_ns, other_taken, .. } = self;
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
            writeln!(f, "{ns:>10}  {}{few}", origin(&tried.origin))?;
        }
        let taken = if *other_taken { "the best other plan" } else { "the default" };
        let times = run_ns.map(|both| both.map(Some)).unwrap_or(found.tasks_ns);
        let [default, best] = times.map(|ns| ns.map_or_else(|| "untimed".into(), |ns| duration(ns as u64)));
        let what = if run_ns.is_some() { "a run takes" } else { "tasks take" };
        write!(f, "plan taken: {taken}; {what} {default} by default, {best} by the best other plan")
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
