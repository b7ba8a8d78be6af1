//! Schedules for the tasks of several plans of one network: what plans share is searched for once.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::Result;
use tilescribe::artifact::Schedule;
use tilescribe::graph::{Network, NetworkBuffer, NetworkTask, Source};
use tilescribe::planning::{Effort, Time};
use tilescribe::propose::{Proposer, Searcher};
use tilescribe::record::Store;
use tilescribe::space::{Space, Untuned};
use tilescribe::target::{Target, Task};
use tilescribe::tune::{Job, JobReport, Report};
use tilescribe::workload::Workload;

use super::arguments::{StoreArguments, TargetArguments};
use super::exit::CommandError;
use super::in_network::{self, Settled};
use super::lab::Lab;
use super::search::{Search, SearchArguments, jobs, search_by, searcher};

/// Candidates for each task where no budget is given, in the mean: a task that is called once takes fewer
/// than one that decides.
const DEFAULT_TRIALS: u64 = 6;
/// Candidates of each task where plans are only told apart: the untuned program and the first batch, since
/// proposing one costs nearly as much as proposing all of it.
const BRIEF_TRIALS: u64 = 4;
/// What a further second has to be expected to save of the network's time, where nobody says how many
/// programs are measured.
pub const LEAST_GAIN: f64 = 0.0035;

/// How and where to search.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    pub search: &'a SearchArguments,
    pub target: &'a TargetArguments,
    pub store: &'a StoreArguments,
    pub space: &'a Space,
    /// Who proposes, once that is asked for.
    pub searcher: &'a OnceCell<Searcher<'a>>,
    /// Schedules are searched for on the first.
    pub targets: &'a [Target],
}

/// What was searched for so far.
pub struct Tuned<'a> {
    setting: Setting<'a>,
    /// Bytes of constants that the network reads from one run of a task to the next; 0 where they stay in the
    /// cores' own caches.
    read_between: u64,
    /// Who proposes and where it is measured, from the first search on: both keep what they have learned.
    proposer: Option<Box<dyn Proposer + 'a>>,
    lab: Option<Lab>,
    /// Seconds of the budget that the search before has left.
    saved_s: f64,
    found: HashMap<Workload, JobReport>,
    /// Of all searches together.
    total: Report,
}

/// A network as one plan cuts it, with schedules for its tasks.
pub struct Draft {
    pub network: Network,
    /// Its tasks, of which there are none where nothing was searched for; and all that was done, for other
    /// plans too.
    pub found: Report,
    /// By target, then by task.
    pub chosen: Vec<Vec<Schedule>>,
}

impl<'a> Tuned<'a> {
    /// Nothing yet, of plans of a program that this network is a plan of, too.
    pub fn new(setting: Setting<'a>, network: &Network) -> Tuned<'a> {
        let read_between = setting.targets.first().map_or(0, |target| read_between(network, target));
        let (failed, jobs) = (BTreeMap::new(), Vec::new());
        let (tasks, trials, valid, seconds, trials_per_s) = (0, 0, 0, 0.0, 0.0);
        let (interrupted, enough) = (false, false);
        let total = Report { tasks, trials, valid, failed, seconds, trials_per_s, interrupted, enough, jobs };
        Tuned { setting, read_between, proposer: None, lab: None, saved_s: 0.0, found: HashMap::new(), total }
    }

    fn target(&self) -> Result<&'a Target> {
        let none = || CommandError::Usage("there is no target".into());
        Ok(self.setting.targets.first().ok_or_else(none)?)
    }

    /// Runs networks in turn, as [`in_network::settle`] does.
    pub fn settle(
        &self,
        networks: &mut [(&Network, &mut [Schedule])],
        memory: (&Path, u64),
    ) -> Result<Vec<(Settled, Option<f64>)>> {
        let store = self.setting.store.open_if_there()?;
        in_network::settle(networks, self.target()?, self.setting.space, store.as_ref(), memory)
    }

    /// Whether anything is measured.
    pub fn measures(&self) -> bool {
        self.setting.search.trials_per_task != Some(0)
    }

    /// Searches for schedules of tasks within a share of the budget of time; candidates of each are what they
    /// are.
    pub fn measure(&mut self, tasks: &[&NetworkTask], share: f64, effort: Effort) -> Result<()> {
        if !self.measures() || tasks.is_empty() {
            return Ok(());
        }
        let target = self.target()?;
        let job = |task: &&NetworkTask| Job {
            name: task.name.clone(),
            task: Task { workload: task.workload.clone(), target: target.clone() },
            weight: task.weight as f64,
        };
        let jobs: Vec<Job> = tasks.iter().map(job).collect();
        let arguments = self.arguments(jobs.len(), share, effort);
        let (searcher, made) = (self.searcher(&jobs)?, self.laboratory()?);
        let mut store = self.setting.store.open()?;
        let lab = self.lab.get_or_insert(made);
        let proposer = match &mut self.proposer {
            Some(proposer) => proposer,
            none => {
                let proposer = none.insert(searcher.proposer(arguments.seed)?);
                proposer.economize();
                proposer
            }
        };
        let by = Search { space: self.setting.space, arguments: &arguments, trials: None, store: &mut store };
        let report = search_by(proposer.as_mut(), &searcher.name, &jobs, lab, by)?;
        if report.interrupted {
            return Err(CommandError::SearchInterrupted.into());
        }
        self.saved_s = arguments.time_budget.map_or(0.0, |allotted| (allotted - report.seconds).max(0.0));
        let total = &mut self.total;
        total.trials += report.trials;
        total.valid += report.valid;
        total.enough |= report.enough;
        total.seconds += report.seconds;
        total.trials_per_s = total.trials as f64 / total.seconds.max(1e-9);
        for (cause, count) in report.failed {
            *total.failed.entry(cause).or_default() += count;
        }
        self.found.extend(jobs.into_iter().map(|job| job.task.workload).zip(report.jobs));
        Ok(())
    }

    /// How so many tasks are searched.
    fn arguments(&self, tasks: usize, share: f64, effort: Effort) -> SearchArguments {
        let mut arguments = self.setting.search.clone();
        arguments.time_budget = arguments.time_budget.map(|seconds| seconds * share + self.saved_s);
        if arguments.time_budget.is_none() && arguments.trials_per_task.is_none() {
            let all = DEFAULT_TRIALS * tasks as u64;
            (arguments.of_all_tasks, arguments.least_gain) = (Some(all), Some(LEAST_GAIN));
        }
        if effort == Effort::Brief {
            let most = arguments.trials_per_task.unwrap_or(BRIEF_TRIALS).min(BRIEF_TRIALS);
            (arguments.trials_per_task, arguments.without_finals) = (Some(most), true);
        }
        arguments
    }

    fn searcher(&self, jobs: &[Job]) -> Result<&'a Searcher<'a>> {
        let Setting { search, space, searcher: cell, .. } = self.setting;
        Ok(match cell.get() {
            Some(known) => known,
            None => {
                let made = searcher(search.method, space, &search.checkpoint, jobs)?;
                cell.get_or_init(|| made)
            }
        })
    }

    fn laboratory(&self) -> Result<Lab> {
        let (device, measuring) = (self.setting.target.device()?, self.setting.search.measuring);
        let targets = vec![self.target()?.clone()];
        Ok(Lab::here_for_network(targets, device, measuring, self.read_between))
    }

    /// What is known of the times of tasks: by searches, and by the store.
    pub fn times(&self, tasks: &[&NetworkTask]) -> Result<Vec<Time>> {
        let (target, store) = (self.target()?, self.setting.store.open_if_there()?);
        let time = |task: &&NetworkTask| -> Result<Time> {
            let found = self.found.get(&task.workload);
            let best = |found: &JobReport| found.best.as_ref().map(|(_, ns)| *ns as f64);
            let final_ns = found.filter(|found| found.is_final).and_then(best);
            let task = Task { workload: task.workload.clone(), target: target.clone() };
            let fastest = store.as_ref().map(|store| store.fastest(&task, self.setting.space)).transpose()?.flatten();
            let recorded = fastest.and_then(|record| record.outcome.best_ns()).map(|ns| ns as f64);
            Ok(Time { final_ns, least_ns: recorded.or_else(|| found.filter(|found| !found.is_final).and_then(best)) })
        };
        tasks.iter().map(time).collect()
    }

    /// A network with the best schedules of its tasks.
    pub fn draft(&self, network: Network) -> Result<Draft> {
        let (target, store) = (self.target()?, self.setting.store.open_if_there()?);
        let of_target = |target| schedules(&network, target, self.setting.space, store.as_ref());
        let mut chosen = self.setting.targets.iter().map(of_target).collect::<Result<Vec<_>>>()?;
        let mut found = Report { tasks: network.tasks.len(), jobs: Vec::new(), ..self.total.clone() };
        if self.measures() {
            for job in jobs(&network, target) {
                found.jobs.push(match self.found.get(&job.task.workload) {
                    Some(found) => found.clone(),
                    None => recorded(&job.task, self.setting.space, store.as_ref())?,
                });
            }
        }
        take_winners(&mut chosen[0], self.setting.space, &network, target, &found)?;
        Ok(Draft { network, found, chosen })
    }
}

/// What the store knows of a task that was not searched for.
fn recorded(task: &Task, space: &Space, store: Option<&Store>) -> Result<JobReport> {
    let records = store.map(|store| store.readable(task, space)).transpose()?.map_or(Vec::new(), |read| read.records);
    let (untuned, _) = space.drive(task, &mut Untuned);
    let untuned_ns = records.iter().find(|record| record.trace == untuned).and_then(|record| record.outcome.best_ns());
    let best = store.map(|store| store.fastest(task, space)).transpose()?.flatten();
    let best = best.and_then(|record| Some((record.outcome.best_ns()?, record.trace)));
    let best = best.map(|(ns, trace)| (trace, ns));
    Ok(JobReport { best, is_final: false, untuned_ns, trials: 0, unmeasurable: None })
}

/// Bytes of a network's constants, where they do not stay in the cores' own caches from one run to the next.
fn read_between(network: &Network, target: &Target) -> u64 {
    let bytes = |buffer: &NetworkBuffer| match &buffer.source {
        Source::Constant(data) => data.bytes.len() as u64,
        Source::Input(_) | Source::Output(_) | Source::Intermediate => 0,
    };
    let constants: u64 = network.buffers.iter().map(bytes).sum();
    match target {
        Target::Cpu(cpu) if constants > cpu.l2_bytes.saturating_mul(cpu.cores.into()) => constants,
        Target::Cpu(_) | Target::Gpu(_) => 0,
    }
}

/// The finals' winners take their tasks. They were measured beside the untuned program, so nothing gets
/// slower by tuning; where the budget was a single program, it is the winner.
fn take_winners(
    chosen: &mut [Schedule],
    space: &Space,
    network: &Network,
    target: &Target,
    found: &Report,
) -> Result<()> {
    for ((schedule, task), job) in chosen.iter_mut().zip(&network.tasks).zip(&found.jobs) {
        if let Some((trace, ns)) = &job.best {
            let task = Task { workload: task.workload.clone(), target: target.clone() };
            *schedule = Schedule::recorded(space, &task, trace, Some(*ns))?;
        }
    }
    Ok(())
}

/// The best schedule that the store holds for each task, or else the untuned one.
pub fn schedules(network: &Network, target: &Target, space: &Space, store: Option<&Store>) -> Result<Vec<Schedule>> {
    let mut schedules = Vec::with_capacity(network.tasks.len());
    for task in &network.tasks {
        let task = Task { workload: task.workload.clone(), target: target.clone() };
        let best = store.map(|store| store.fastest(&task, space)).transpose()?.flatten();
        schedules.push(match best {
            Some(record) => {
                let recorded = Schedule::recorded(space, &task, &record.trace, record.outcome.best_ns());
                // the record came with the store: it is no bug of ours that it does not fit
                recorded.map_err(|error| {
                    let hash = task.workload.hash().to_string();
                    CommandError::Usage(format!("the record of task {hash} in the store does not fit it: {error}"))
                })?
            }
            None => Schedule::untuned(space, &task)?,
        });
    }
    Ok(schedules)
}
