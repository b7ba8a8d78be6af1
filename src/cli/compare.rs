//! `tilescribe compare`

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use tilescribe::language::Language;
use tilescribe::model::{Checkpoint, ModelControl};
use tilescribe::propose::{LM, METHODS, Method, Purpose, Searcher};
use tilescribe::record::{NamedWorkload, read_workloads};
use tilescribe::space::Space;
use tilescribe::target::{Target, Task};
use tilescribe::tune::Control;
use tilescribe::tune::bootstrap::Difference;
use tilescribe::tune::compare::{ComparisonSettings, Log, Paired, Progress, compare};
use tilescribe::tune::{Batches, Job, report};

use super::arguments::{Assignment, MeasuringArguments, NetworkArguments, SpaceArguments, TargetArguments, read_task};
use super::exit::CommandError;
use super::lab::{FleetArguments, Lab};
use super::output::{self, Output};
use super::progress;
use super::replay::ReplayArguments;
use super::search::{BATCH, CheckpointArguments, FINALISTS, check_model, jobs, method_parser, stop_on_interrupt};

/// Compare search methods on the same tasks, with the same number of trials
///
/// Writes results.json and report.html, a page with the curves that needs nothing else. Finished runs are
/// kept in runs.jsonl: stopped with Ctrl-C or killed, the same command goes on where it was, and a command
/// with other methods, seeds or more trials joins the comparison.
#[derive(Args)]
pub struct Compare {
    /// Methods to compare, separated by commas
    #[arg(long, value_name = "METHOD", value_delimiter = ',', required_unless_present_any = ["rivals", "replay"])]
    #[arg(value_parser = method_parser(FOR_COMPARISON))]
    methods: Vec<&'static Method>,
    /// ONNX files, MODEL.onnx#TASK, files of workloads as `tilescribe tasks` prints them, or folders of such
    #[arg(long, num_args = 1.., required_unless_present = "replay", value_name = "PATH")]
    workloads: Vec<String>,
    /// Measured candidates of each task, method and seed
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    trials: u32,
    /// Repetitions with different seeds
    #[arg(long, default_value_t = 3, value_name = "K", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Most candidates proposed at once; the first batches are smaller
    #[arg(long, default_value_t = BATCH as u32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: u32,
    /// Folder for the results
    #[arg(short, long, value_name = "DIR", required_unless_present = "replay")]
    output: Option<PathBuf>,
    #[command(flatten)]
    space: SpaceArguments,
    #[command(flatten)]
    checkpoint: CheckpointArguments,
    /// Run each method that asks a model beside these controls, which have learned nothing, under the same
    /// search: lm+shuffled, ...
    #[arg(long = "control", value_name = "CONTROL", value_delimiter = ',', value_parser = control_parser())]
    controls: Vec<ModelControl>,
    /// Another contestant: lm with a checkpoint of its own
    #[arg(long = "rival", value_name = "NAME=C")]
    rivals: Vec<Assignment<String>>,
    #[command(flatten)]
    replay: ReplayArguments,
    #[command(flatten)]
    network: NetworkArguments,
    #[command(flatten)]
    target: TargetArguments,
    #[command(flatten)]
    fleet: FleetArguments,
    #[command(flatten)]
    measuring: MeasuringArguments,
}

/// What `--methods` offers.
const FOR_COMPARISON: &[Purpose] = &[Purpose::Search, Purpose::Comparison];

impl Compare {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        if !self.replay.replay.is_empty() {
            return self.replay.execute(&self.checkpoint, &self.rivals, &self.controls, out);
        }
        let (space, folder) = (self.space.space(), self.output.clone().unwrap_or_default());
        let mut lab = self.lab(&space, &folder)?;
        let target = lab.targets[0].clone();
        let jobs = self.jobs(&target)?;
        let searchers = self.searchers(&space, &jobs)?;
        let settings = ComparisonSettings {
            trials: self.trials as usize,
            seeds: self.seeds,
            batches: Batches::growing(self.batch as usize),
            finalists: FINALISTS,
        };
        let total = jobs.len() as u64 * searchers.len() as u64 * self.seeds * u64::from(self.trials);
        let (bar, stopped) = (progress::bar(total, "comparing"), stop_on_interrupt()?);
        // trials of each run; one that is known already is reported once, at its end
        let (mut trials, whereabouts) = (HashMap::new(), lab.whereabouts());
        let mut watch = |progress: &Progress<'_>| {
            let (job, what) = match progress {
                Progress::Run { job, method, seed, trial } => {
                    let done = trials.insert((*job, method.to_string(), *seed), *trial).unwrap_or(0);
                    bar.inc(trial.saturating_sub(done) as u64);
                    (job, format!("by {method}, seed {seed}"))
                }
                Progress::Finals { job } => (job, "finals".to_string()),
            };
            bar.set_message(format!("{} {what}{}", jobs[*job].name, whereabouts()));
            if stopped.load(Ordering::Relaxed) { Control::Stop } else { Control::Continue }
        };
        lab.prepare(&space)?;
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let results = Output::new(&folder.join("results.json"), output::Kind::Comparison, &[])?;
        let page = Output::new(&folder.join("report.html"), output::Kind::Report, &[])?;
        let mut log = Log::open(&folder.join("runs.jsonl"), &target, &space)?;
        let comparison = compare(&space, &jobs, &searchers, lab.runners(&space)?, &settings, &mut log, &mut watch)?;
        bar.finish_and_clear();
        results.write(|file| Ok(file.write_all(serde_json::to_string_pretty(&comparison)?.as_bytes())?))?;
        page.write(|file| Ok(file.write_all(report::html(&comparison).as_bytes())?))?;
        for (method, quality) in &comparison.summary {
            let figures: Vec<String> = quality.iter().map(|(trials, value)| format!("{trials}: {value:.3}")).collect();
            writeln!(out, "{method}: reference / best by number of trials {}", figures.join(", "))?;
        }
        for paired in &comparison.controls {
            writeln!(out, "{}", in_words(paired))?;
        }
        writeln!(out, "untuned: reference / time {:.3}", comparison.untuned)?;
        writeln!(out, "{}", folder.join("report.html").display())?;
        if stopped.load(Ordering::Relaxed) { Err(CommandError::Interrupted.into()) } else { Ok(()) }
    }

    /// Where programs are measured, for one target: times on several do not compare.
    fn lab(&self, space: &Space, folder: &Path) -> Result<Lab> {
        let (targets, coordinator) = self.fleet.targets(&self.target, space, ("compare", folder))?;
        if targets.len() > 1 {
            let names: Vec<String> = targets.iter().map(Target::fingerprint).collect();
            let reason = format!("methods are compared on one target: choose with --on one of {}", names.join(", "));
            return Err(CommandError::Usage(reason).into());
        }
        if let Some(coordinator) = coordinator {
            return Ok(Lab::far(targets, coordinator));
        }
        Ok(Lab::here_with_long_finals(targets, self.target.device()?, self.measuring))
    }

    /// The methods and then the rivals, which are `lm` under other names. Each checkpoint is read once.
    fn searchers<'a>(&self, space: &'a Space, jobs: &[Job]) -> Result<Vec<Searcher<'a>>> {
        let mut names: HashSet<&str> = METHODS.iter().map(|method| method.name).collect();
        if let Some(rival) = self.rivals.iter().find(|rival| rival.name.is_empty() || !names.insert(&rival.name)) {
            let reason = format!("`--rival {}=...`: another contestant is called so", rival.name);
            return Err(CommandError::Usage(reason).into());
        }
        if let Some(rival) = self.rivals.iter().find(|rival| ModelControl::split(&rival.name).is_some()) {
            let reason = format!("`--rival {}=...`: controls are called so", rival.name);
            return Err(CommandError::Usage(reason).into());
        }
        let language = Language::standard();
        let read = |arguments: &CheckpointArguments| -> Result<Arc<Checkpoint>> {
            Ok(Arc::new(arguments.load(space, &language)?))
        };
        let mut shared: Option<Arc<Checkpoint>> = None;
        let mut searchers = Vec::new();
        for method in &self.methods {
            let once = || -> Result<Arc<Checkpoint>> {
                let known = shared.take().map_or_else(|| read(&self.checkpoint), Ok)?;
                Ok(Arc::clone(shared.insert(known)))
            };
            searchers.push(Searcher::new(method, space, once)?);
        }
        for rival in &self.rivals {
            let own = CheckpointArguments { checkpoint: Some(rival.value.clone()) };
            searchers.push(Searcher::new(LM, space, || read(&own))?.called(&rival.name));
        }
        searchers.iter().try_for_each(|searcher| check_model(jobs, searcher))?;
        Ok(self.with_controls(searchers))
    }

    /// Each followed by its controls.
    fn with_controls<'a>(&self, searchers: Vec<Searcher<'a>>) -> Vec<Searcher<'a>> {
        let mut all = Vec::new();
        for searcher in searchers {
            let controls: Vec<Searcher<'a>> =
                self.controls.iter().filter_map(|control| searcher.controlled(*control)).collect();
            all.push(searcher);
            all.extend(controls);
        }
        all
    }

    fn jobs(&self, target: &Target) -> Result<Vec<Job>> {
        self.network.check(self.workloads.iter().map(String::as_str))?;
        let mut all = Vec::new();
        for what in &self.workloads {
            if what.ends_with(".onnx") {
                all.extend(jobs(&self.network.load_among(what.as_ref(), std::slice::from_ref(target))?, target));
                continue;
            }
            if what.contains(".onnx#") {
                let (name, task) = read_task(what, target.clone(), &self.network)?;
                all.push(Job { name, task, weight: 1.0 });
                continue;
            }
            for NamedWorkload { name, workload } in read_workloads(what.as_ref())? {
                all.push(Job { name, task: Task { workload, target: target.clone() }, weight: 1.0 });
            }
        }
        Ok(all)
    }
}

/// Reads the name of a control.
pub fn control_parser() -> impl TypedValueParser<Value = ModelControl> {
    let values = ModelControl::ALL.map(|control| PossibleValue::new(control.name()).help(control.about()));
    PossibleValuesParser::new(values).try_map(|name| ModelControl::from_name(&name).ok_or("no such control"))
}

/// A method beside a control, by number of trials.
fn in_words(paired: &Paired) -> String {
    let figure = |(trials, found): (&usize, &Difference)| {
        let interval = found.interval.map_or(String::new(), |(low, high)| format!(" ({low:+.3} to {high:+.3})"));
        format!("{trials}: {:+.3}{interval}", found.difference)
    };
    let figures: Vec<String> = paired.by_trials.iter().map(figure).collect();
    format!("{} - {}: difference by number of trials {}", paired.method, paired.control, figures.join(", "))
}
