//! `tilescribe tune`

use std::io::Write;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};
use tilescribe::tune::{Job, JobReport, Report};

use super::arguments::{NetworkArguments, StoreArguments, TargetArguments, read_task};
use super::exit::CommandError;
use super::lab::{FleetArguments, Lab};
use super::search::{SearchArguments, jobs, judge, search};
use super::words::{counted, duration};

/// Search for faster schedules and keep everything that is measured
///
/// Stops when a budget is used up or on Ctrl-C, and goes on from the store when it is started again.
#[derive(Args)]
pub struct Tune {
    /// ONNX file; or one task: a file with its text, or MODEL.onnx#TASK as `tilescribe tasks` numbers and
    /// names them
    what: String,
    #[command(flatten)]
    network: NetworkArguments,
    #[command(flatten)]
    target: TargetArguments,
    #[command(flatten)]
    fleet: FleetArguments,
    #[command(flatten)]
    search: SearchArguments,
    /// Candidates measured in this run, over all tasks [default: 64 for each task, unless another budget is
    /// given]
    #[arg(long, value_name = "N")]
    trials: Option<u64>,
    #[command(flatten)]
    store: StoreArguments,
    /// End with a line of JSON
    #[arg(long)]
    json: bool,
}

/// Trials for each task where no budget is given.
const DEFAULT_TRIALS: u64 = 64;

impl Tune {
    pub fn execute(mut self, out: &mut dyn Write) -> Result<()> {
        let space = self.search.space.space();
        let mut store = self.store.open()?;
        let run = ("tune", store.path());
        let mut lab = self.fleet.lab(&self.target, &space, self.search.measuring, run)?;
        let jobs = self.jobs(&lab)?;
        let unlimited = self.trials.is_none() && self.search.time_budget.is_none();
        if unlimited && self.search.trials_per_task.is_none() {
            self.search.trials_per_task = Some(DEFAULT_TRIALS);
        }
        let report = search(&jobs, &space, &mut lab, &self.search, self.trials, &mut store)?;
        print(&jobs, &report, out)?;
        if self.json {
            let mut line = json!(report);
            line["jobs"] = jobs.iter().zip(&report.jobs).map(job_line).collect();
            writeln!(out, "{line}")?;
        }
        judge(&jobs, &report)?;
        match report.jobs.iter().map(|job| job.unmeasurable.as_deref()).collect::<Option<Vec<_>>>() {
            Some(reasons) if !reasons.is_empty() => {
                Err(CommandError::Usage(format!("nothing can be measured: {}", reasons.join("; "))).into())
            }
            _ => Ok(()),
        }
    }
}

impl Tune {
    /// The tasks, for every target.
    fn jobs(&self, lab: &Lab) -> Result<Vec<Job>> {
        let network = match self.what.ends_with(".onnx") {
            true => Some(self.network.load(self.what.as_ref(), &lab.targets)?),
            false => None,
        };
        let mut all = Vec::new();
        for target in &lab.targets {
            let mut own = match &network {
                Some(network) => jobs(network, target),
                None => {
                    self.network.check([self.what.as_str()])?;
                    let (name, task) = read_task(&self.what, target.clone(), &self.network)?;
                    vec![Job { name, task, weight: 1.0 }]
                }
            };
            own.iter_mut().for_each(|job| job.name.push_str(&lab.suffix(target)));
            all.extend(own);
        }
        Ok(all)
    }
}

/// What became of a task, as JSON.
fn job_line((job, found): (&Job, &JobReport)) -> Value {
    json!({
        "name": job.name, "target": job.task.target.fingerprint(), "trials": found.trials, "untuned_ns": found.untuned_ns,
        "best_ns": found.best.as_ref().map(|(_, ns)| ns),
        "trace": found.best.as_ref().map(|(trace, _)| trace.to_string()),
    })
}

fn print(jobs: &[Job], report: &Report, out: &mut dyn Write) -> Result<()> {
    let time = |ns: Option<u64>| ns.map_or_else(|| "-".into(), duration);
    for (job, found) in jobs.iter().zip(&report.jobs) {
        let (best, untuned) = (time(found.best.as_ref().map(|(_, ns)| *ns)), time(found.untuned_ns));
        let trials = counted(found.trials, "trial");
        let told =
            found.unmeasurable.as_ref().map_or_else(String::new, |detail| format!(", cannot be measured: {detail}"));
        writeln!(out, "{} x{}: {best}, untuned {untuned}, {trials}{told}", job.name, job.weight)?;
    }
    let failed: Vec<String> = report.failed.iter().map(|(cause, count)| format!("{count} {cause}")).collect();
    let failed = if failed.is_empty() { "none failed".to_string() } else { format!("failed: {}", failed.join(", ")) };
    let (trials, rate) = (counted(report.trials, "trial"), report.trials_per_s);
    Ok(writeln!(out, "{trials} in {:.1} s, {rate:.1} a second; {failed}", report.seconds)?)
}
