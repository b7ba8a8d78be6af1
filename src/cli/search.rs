//! Searching for schedules: what `compile` and `tune` share.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use tilescribe::graph::Network;
use tilescribe::language::Language;
use tilescribe::model::{Checkpoint, CheckpointError, Source, SourceError};
use tilescribe::propose::{
    EVOLUTION, LM, Loaded, METHODS, Method, Proposer, Purpose, SAMPLERS, SamplerKind, Searcher, load_checkpoint,
    shipped_checkpoint,
};
use tilescribe::rank::estimator_of;
use tilescribe::record::{self, Store};
use tilescribe::space::Space;
use tilescribe::target::{Target, Task};
use tilescribe::tune::{self, Batches, Budget, Control, Event, First, Job, Report, Settings};

use super::arguments::{MeasuringArguments, SpaceArguments, seconds};
use super::exit::CommandError;
pub use super::exit::stop_on_interrupt;
use super::lab::Lab;
use super::progress;
use super::words::duration;

/// The most candidates that are proposed at once: the more, the less of them know how the others came out.
pub const BATCH: usize = 16;
/// The most of the fastest that are measured once more before the winner is named.
pub(super) const FINALISTS: usize = 5;
/// The most beside these that read fewer constants, where constants are found cold.
const LIGHTER: usize = 2;

/// Reads the name of a method that serves one of these purposes.
pub fn method_parser(purposes: &'static [Purpose]) -> impl TypedValueParser<Value = &'static Method> {
    let offered = METHODS.iter().filter(|method| purposes.contains(&method.purpose));
    let values = offered.map(|method| PossibleValue::new(method.name).help(method.about));
    PossibleValuesParser::new(values).try_map(|name| Method::named(&name).ok_or("no such method"))
}

/// Reads the name of a sampler.
pub fn sampler_parser() -> impl TypedValueParser<Value = SamplerKind> {
    let values = SAMPLERS.iter().map(|sampler| PossibleValue::new(sampler.name).help(sampler.about));
    PossibleValuesParser::new(values).try_map(|name| SamplerKind::named(&name).ok_or("no such sampler"))
}

/// What `--method` offers.
pub const FOR_SEARCH: &[Purpose] = &[Purpose::Search];

/// How to search.
#[derive(Args, Clone, Debug)]
pub struct SearchArguments {
    /// Who writes the candidates [default: lm; evolution on a GPU, if the model has learned from CPUs only]
    #[arg(long, value_name = "METHOD", value_parser = method_parser(FOR_SEARCH))]
    pub method: Option<&'static Method>,
    /// Candidates measured of each task, those in the store included
    #[arg(long, value_name = "N")]
    pub trials_per_task: Option<u64>,
    /// Wall clock of the search; each task has a first program measured all the same
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub time_budget: Option<f64>,
    /// See [`Budget::of_all_tasks`].
    #[arg(skip)]
    pub of_all_tasks: Option<u64>,
    /// See [`Budget::least_gain`].
    #[arg(skip)]
    pub least_gain: Option<f64>,
    /// No finals, where winners are not named yet.
    #[arg(skip)]
    pub without_finals: bool,
    /// Seed of everything that is drawn
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    #[command(flatten)]
    pub space: SpaceArguments,
    #[command(flatten)]
    pub checkpoint: CheckpointArguments,
    #[command(flatten)]
    pub measuring: MeasuringArguments,
}

/// The model.
#[derive(Args, Clone, Debug, Default)]
pub struct CheckpointArguments {
    /// Folder of a checkpoint, hf:OWNER/NAME@REVISION, or built-in [default: the one that `finetune` made, or
    /// else the one that is built in]
    #[arg(long, value_name = "C")]
    pub checkpoint: Option<String>,
}

impl CheckpointArguments {
    /// Reads and checks the checkpoint.
    ///
    /// # Errors
    /// Where it cannot be had, is damaged, or belongs to another version.
    pub fn load(&self, space: &Space, language: &Language) -> Result<Checkpoint> {
        let Loaded { checkpoint, notices } = self.loaded(space, language)?;
        notices.iter().for_each(|notice| tracing::warn!("{notice}"));
        Ok(checkpoint)
    }

    fn loaded(&self, space: &Space, language: &Language) -> Result<Loaded> {
        let built_in = || {
            let loaded = shipped_checkpoint(language, space)
                .context("the built-in checkpoint (retrain it with `make checkpoint`, or use --method random)")?;
            // who uses it has no other one: what it has not learned is nothing to be warned of
            loaded.notices.iter().for_each(|notice| tracing::info!("the built-in checkpoint: {notice}"));
            Ok(Loaded { notices: Vec::new(), ..loaded })
        };
        match self.checkpoint.as_deref() {
            Some(BUILT_IN) => built_in(),
            Some(text) => Ok(load_checkpoint(&text.parse::<Source>()?, language, space)?),
            None => match own_checkpoint().filter(|folder| folder.join("config.json").exists()) {
                None => built_in(),
                Some(folder) => match load_checkpoint(&Source::Folder(folder.clone()), language, space) {
                    Err(SourceError::Checkpoint(
                        CheckpointError::Version { .. } | CheckpointError::Vocabulary { .. },
                    )) => {
                        let folder = folder.display();
                        tracing::warn!(
                            "the checkpoint in {folder} is of another version: the built-in one is used; `tilescribe finetune` makes it anew"
                        );
                        built_in()
                    }
                    loaded => loaded.with_context(|| format!("the fine-tuned checkpoint in {}", folder.display())),
                },
            },
        }
    }
}

/// What `--checkpoint` calls the one that is built in.
const BUILT_IN: &str = "built-in";

/// Where `finetune` puts a checkpoint that nobody gave another place.
pub fn own_checkpoint() -> Option<PathBuf> {
    record::cache_folder().map(|folder| folder.join("checkpoint"))
}

/// The method that was chosen, ready to search for programs of these tasks; where none was, the language
/// model if it has learned from such machines, and evolution otherwise.
///
/// # Errors
/// As [`CheckpointArguments::load`] and [`check_model`].
pub fn searcher<'a>(
    method: Option<&Method>,
    space: &'a Space,
    checkpoint: &CheckpointArguments,
    jobs: &[Job],
) -> Result<Searcher<'a>> {
    let load = || -> Result<_> { Ok(Arc::new(checkpoint.load(space, &Language::standard())?)) };
    let searcher = Searcher::new(method.unwrap_or(LM), space, load)?;
    match check_model(jobs, &searcher) {
        Err(_) if method.is_none() => Searcher::new(EVOLUTION, space, load),
        checked => checked.map(|()| searcher),
    }
}

/// The tasks of a network, each as important as the number of its calls.
pub fn jobs(network: &Network, target: &Target) -> Vec<Job> {
    let job = |task: &tilescribe::graph::NetworkTask| Job {
        name: task.name.clone(),
        task: Task { workload: task.workload.clone(), target: target.clone() },
        weight: task.weight as f64,
    };
    network.tasks.iter().map(job).collect()
}

/// Refuses to ask a model about machines that it knows nothing of.
///
/// # Errors
/// Where a task is for a GPU and the checkpoint that the method asks has learned from CPUs only.
pub fn check_model(jobs: &[Job], searcher: &Searcher<'_>) -> Result<()> {
    let Some(checkpoint) = searcher.checkpoint() else { return Ok(()) };
    let knows = |job: &Job| estimator_of(&checkpoint.estimators, job.task.target.kind()).is_some();
    if jobs.iter().all(knows) {
        return Ok(());
    }
    let reason = format!(
        "{}: the model has learned from CPUs only; choose evolution or random, or train it on what they measured (`finetune`)",
        searcher.name
    );
    Err(CommandError::Usage(reason).into())
}

/// Searches within the budget, with progress for people. Ctrl-C stops it; everything measured is in the
/// store.
///
/// # Errors
/// [`CommandError::Interrupted`] after Ctrl-C, [`CommandError::NothingFound`] where a task has no correct
/// program.
pub fn search(
    jobs: &[Job],
    space: &Space,
    lab: &mut Lab,
    arguments: &SearchArguments,
    trials: Option<u64>,
    store: &mut Store,
) -> Result<Report> {
    let searcher = searcher(arguments.method, space, &arguments.checkpoint, jobs)?;
    let mut proposer = searcher.proposer(arguments.seed)?;
    search_by(proposer.as_mut(), &searcher.name, jobs, lab, Search { space, arguments, trials, store })
}

/// What a search goes by.
pub struct Search<'a> {
    pub space: &'a Space,
    pub arguments: &'a SearchArguments,
    /// Candidates of all tasks, at most.
    pub trials: Option<u64>,
    pub store: &'a mut Store,
}

/// The same by a proposer of a method of this name, which may have been asked before.
///
/// # Errors
/// As [`search`].
pub fn search_by(
    proposer: &mut dyn Proposer,
    method: &str,
    jobs: &[Job],
    lab: &mut Lab,
    Search { space, arguments, trials, store }: Search<'_>,
) -> Result<Report> {
    let time = arguments.time_budget.map(Duration::from_secs_f64);
    let SearchArguments { trials_per_task, of_all_tasks, least_gain, .. } = *arguments;
    let budget = Budget { trials_per_task, of_all_tasks, trials, time, least_gain, first_of_each: true };
    let settings = Settings {
        budget,
        batches: Batches::growing(BATCH),
        first: First::Sure,
        finalists: if arguments.without_finals { 0 } else { FINALISTS },
        lighter: if lab.finds_constants_cold && !arguments.without_finals { LIGHTER } else { 0 },
        hands_on: true,
        method: method.to_string(),
        seed: arguments.seed,
    };
    let stopped = stop_on_interrupt()?;
    let (bar, whereabouts) = (progress::bar(0, "measuring"), lab.whereabouts());
    let mut runner = lab.runner(space)?;
    let mut watch = |event: &Event<'_>| {
        match event {
            Event::Measured { job, history, progress, .. } => {
                if let Some(total) = progress.of_trials {
                    bar.set_length(total);
                }
                bar.set_position(progress.trials);
                let best = history.best().map_or_else(|| "nothing yet".into(), |(_, ns)| duration(ns));
                bar.set_message(format!("{}: {best}{}", jobs[*job].name, whereabouts()));
            }
            Event::Finals { job } => bar.set_message(format!("finals of {}", jobs[*job].name)),
            Event::Exhausted { .. } | Event::Waiting => {}
            Event::Unmeasurable { job, detail } => {
                let name = &jobs[*job].name;
                bar.suspend(|| tracing::warn!("{name} cannot be measured, and stays untuned: {detail}"));
            }
        }
        if stopped.load(Ordering::Relaxed) { Control::Stop } else { Control::Continue }
    };
    let report = tune::tune(space, jobs, proposer, runner.as_mut(), Some(store), &settings, &mut watch);
    bar.finish_and_clear();
    Ok(report?)
}

/// What a report means for the exit code. Tasks that cannot be measured have been told of; they stay untuned.
///
/// # Errors
/// As [`search`].
pub fn judge(jobs: &[Job], report: &Report) -> Result<()> {
    if report.interrupted {
        return Err(CommandError::Interrupted.into());
    }
    let without: Vec<&str> = jobs
        .iter()
        .zip(&report.jobs)
        .filter(|(_, found)| found.best.is_none() && found.unmeasurable.is_none())
        .map(|(job, _)| job.name.as_str())
        .collect();
    if without.is_empty() { Ok(()) } else { Err(CommandError::NothingFound(without.join(", ")).into()) }
}
