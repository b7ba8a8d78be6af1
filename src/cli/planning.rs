//! Which plan a network is compiled by.
//!
//! Schedules are searched for the tasks of every plan that is offered. The plan whose tasks take least time
//! together is likely to be the fastest; where another comes near, both networks are compiled and run in
//! turn, and the whole decides.

use std::fmt;
use std::path::Path;

use anyhow::{Result, anyhow};
use serde_json::{Value, json};
use tilescribe::artifact::Schedule;
use tilescribe::graph::Network;
use tilescribe::target::Target;
use tilescribe::tune::Report;

use super::in_network::{Variant, timed};
use super::words::duration;

/// A network as one plan cuts it, with schedules for its tasks.
pub struct Draft {
    pub network: Network,
    pub found: Report,
    /// By target, then by task.
    pub chosen: Vec<Vec<Schedule>>,
}

/// What was compared to choose a plan.
#[derive(Clone, PartialEq, Debug)]
pub struct Contest {
    /// Nanoseconds of all tasks together, for the plan that is the default and for the other one; `None`
    /// where a task was not timed.
    pub tasks_ns: [Option<f64>; 2],
    /// Nanoseconds of a run of the whole network, where both were run.
    pub run_ns: Option<[f64; 2]>,
    /// Whether the other plan is taken.
    pub other_taken: bool,
}

impl fmt::Display for Contest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taken = if self.other_taken { "last" } else { "kept" };
        let times = self.run_ns.map(|both| both.map(Some)).unwrap_or(self.tasks_ns);
        let [kept, last] = times.map(|ns| ns.map_or_else(|| "untimed".into(), |ns| duration(ns as u64)));
        let what = if self.run_ns.is_some() { "a run takes" } else { "its tasks take" };
        write!(f, "layouts {taken}: {what} {kept} with layouts kept, {last} with channels last")
    }
}

impl Contest {
    pub fn json(&self) -> Value {
        let Contest { tasks_ns, run_ns, other_taken } = self;
        json!({ "tasks_ns": tasks_ns, "run_ns": run_ns, "last_taken": other_taken })
    }
}

/// A plan whose tasks take so many times as long as those of another one is not run.
const HOPELESS: f64 = 1.1;
/// What another plan than the default has to be faster by: less is noise.
const MARGIN: f64 = 0.98;

impl Draft {
    /// What its tasks take in a run, if each of them was timed.
    fn tasks_ns(&self) -> Option<f64> {
        let schedules = self.chosen.first()?;
        let times = self.network.tasks.iter().zip(schedules);
        times.map(|(task, schedule)| Some(schedule.best_ns? as f64 * task.weight as f64)).sum()
    }
}

/// The fastest draft on the first target, and how it was found where there are several.
///
/// # Errors
/// Where a network cannot be compiled or run, or there is none.
pub fn choose(drafts: Vec<Draft>, target: &Target, memory: (&Path, u64)) -> Result<(Draft, Option<Contest>)> {
    let mut drafts = drafts.into_iter();
    match (drafts.next(), drafts.next()) {
        (Some(first), Some(second)) => {
            faster([first, second], target, memory).map(|(draft, contest)| (draft, Some(contest)))
        }
        (Some(only), None) => Ok((only, None)),
        (None, _) => Err(anyhow!("there is no plan of the network")),
    }
}

/// The faster of two drafts on their first target, the second only where it is faster for sure. Networks run
/// where their tasks were measured in this search; `memory` are the output folder, beside which they are
/// compiled, and the bytes that both may need together.
fn faster(drafts: [Draft; 2], target: &Target, memory: (&Path, u64)) -> Result<(Draft, Contest)> {
    let [first, second] = &drafts;
    let tasks_ns = [first.tasks_ns(), second.tasks_ns()];
    let near = match tasks_ns {
        [Some(first), Some(second)] => first.max(second) <= HOPELESS * first.min(second),
        _ => false,
    };
    let is_measured = |draft: &Draft| !draft.found.jobs.is_empty();
    let mut run_ns = None;
    if near && is_measured(first) && is_measured(second) && matches!(target, Target::Cpu(_)) {
        let variants = [first, second].map(|d| Variant { network: &d.network, schedules: &d.chosen[0] });
        // without memory or time for it, the tasks decide
        run_ns = timed(variants, target, memory)?.ok().map(|both| both.map(|p| p.run_ns));
    }
    let other_taken = match (run_ns, tasks_ns) {
        (Some([first, second]), _) | (None, [Some(first), Some(second)]) => second < MARGIN * first,
        _ => false,
    };
    let [first, second] = drafts;
    Ok((if other_taken { second } else { first }, Contest { tasks_ns, run_ns, other_taken }))
}
