//! Training a model: what `pretrain` and `finetune` share.

mod estimator;
mod preferences;
mod world;

use std::collections::BTreeMap;
use std::io::BufReader;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use tilescribe::files;
use tilescribe::language::{Language, tokenizer_json};
use tilescribe::model::{Checkpoint, Compute, Estimators, Evaluation, Model, TrainingOptions, Versions};
use tilescribe::propose::train::{Examples, Trained, evaluate, examples, train};
use tilescribe::record::{CorpusReader, Entry, Limits, readable};
use tilescribe::space::Space;
use tilescribe::target::Kind;

pub use estimator::{Compared, called, estimators};
pub use preferences::PreferencesRun;
pub use world::WorldRun;

use super::exit::CommandError;
use super::progress;
use super::search::stop_on_interrupt;

/// How to train.
#[derive(Args, Clone, Debug)]
pub struct TrainingArguments {
    /// Passes over the examples
    #[arg(long, value_name = "N", value_parser = positive)]
    pub epochs: Option<f32>,
    /// Learning rate after warm-up
    #[arg(long, value_name = "R", value_parser = positive)]
    pub learning_rate: Option<f32>,
    /// Share of the tasks that is held out to stop by
    #[arg(long, value_name = "P", value_parser = share, default_value_t = 0.1)]
    pub held_out: f32,
    /// Learn from so many of the fastest programs of each task only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub fastest: Option<u32>,
    /// Seed of everything that is drawn
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// `cpu`, or `cuda:0` in a build with the feature `cuda`
    #[arg(long, value_parser = compute, default_value = "cpu")]
    pub device: Compute,
}

/// Reads a number above 0.
pub fn positive(text: &str) -> Result<f32, String> {
    text.parse().ok().filter(|v: &f32| v.is_finite() && *v > 0.0).ok_or_else(|| "expected a number above 0".into())
}

fn share(text: &str) -> Result<f32, String> {
    text.parse().ok().filter(|v| (0.0..=0.5).contains(v)).ok_or_else(|| "expected a number from 0 to 0.5".into())
}

fn compute(text: &str) -> Result<Compute, String> {
    match (text, text.strip_prefix("cuda:").map(str::parse)) {
        ("cpu", _) => Ok(Compute::Cpu),
        ("cuda", _) => Ok(Compute::Cuda(0)),
        (_, Some(Ok(number))) => Ok(Compute::Cuda(number)),
        _ => Err("expected cpu, cuda or cuda:N".into()),
    }
}

impl TrainingArguments {
    /// The options that are meant, over those of the command.
    pub fn options(&self, usual: TrainingOptions) -> TrainingOptions {
        TrainingOptions {
            epochs: self.epochs.unwrap_or(usual.epochs),
            learning_rate: self.learning_rate.map_or(usual.learning_rate, f64::from),
            held_out: self.held_out,
            seed: self.seed,
            ..usual
        }
    }
}

/// Reads corpus files; of folders, all that end in `.zst`.
///
/// # Errors
/// Where a file cannot be read or is no corpus of this version.
pub fn read_corpus(paths: &[PathBuf]) -> Result<Vec<Entry>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let entries = std::fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
            let mut inside = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
            inside.retain(|path| path.extension().is_some_and(|e| e == "zst"));
            inside.sort();
            files.extend(inside);
        } else {
            files.push(path.clone());
        }
    }
    let mut entries = Vec::new();
    for path in files {
        let file = files::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
        for entry in CorpusReader::new(BufReader::new(file), Limits::default())? {
            entries.push(entry.with_context(|| path.display().to_string())?);
        }
    }
    Ok(entries)
}

/// The fastest entries of each task and target that the same version of this program measured, failures last.
fn fastest(entries: &[Entry], most: usize) -> Vec<Entry> {
    let mut groups: BTreeMap<(&str, &str, &str), Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        let record = &entry.record;
        groups.entry((&record.task_hash, &record.target, &record.tilescribe)).or_default().push(entry);
    }
    let mut kept = Vec::new();
    for mut members in groups.into_values() {
        members.sort_by_key(|entry| entry.record.outcome.best_ns().unwrap_or(u64::MAX));
        kept.extend(members.into_iter().take(most).cloned());
    }
    kept
}

/// Names the versions of GPUs where a checkpoint has learned from such machines, and only there: those that
/// it names already, or else these.
pub fn tell_machines(checkpoint: &mut Checkpoint, of_all: Versions) {
    let known = checkpoint.versions.gpu.take();
    checkpoint.versions.gpu = known.or(of_all.gpu).filter(|_| checkpoint.estimators.gpu.is_some());
}

/// What training came to.
pub struct Outcome {
    pub steps: usize,
    /// Of the transformer of the checkpoint beside, and of the trained one, on held-out tasks.
    pub models: Option<(Evaluation, Evaluation)>,
    /// The same of the estimators.
    pub estimators: Vec<Compared>,
    /// Whether held-out tasks tell about every part that was trained.
    pub is_judged: bool,
}

/// A training run and where it leads.
pub struct Run<'a> {
    pub start: &'a Model,
    /// To go on from; new ones learn from nothing.
    pub estimators: Option<&'a Estimators>,
    pub training: &'a TrainingArguments,
    pub entries: &'a [Entry],
    /// What a model has learned of then; see [`learned`](tilescribe::propose::learned).
    pub learned: Versions,
    /// What the estimators learn from.
    pub estimator_entries: &'a [Entry],
    /// A checkpoint that the trained one is held against, on held-out tasks.
    pub beside: Option<&'a Checkpoint>,
    pub options: TrainingOptions,
    /// The folder of the checkpoint.
    pub output: &'a Path,
    /// The first lines of the model card.
    pub title: &'a str,
}

impl Run<'_> {
    /// Trains on the records of this space, with progress for people, and writes the checkpoint and its model
    /// card. Interrupted, it goes on where it was when it is started again. Where it goes on from a
    /// checkpoint, a part that is no better than the one beside stays as it was.
    ///
    /// # Errors
    /// Where there is nothing to learn from, or training fails; [`CommandError::Interrupted`] after Ctrl-C.
    pub fn execute(&self, space: &Space, language: &Language) -> Result<Outcome> {
        let own = readable(self.entries, space);
        if let Some(warning) = own.warning() {
            tracing::warn!("{warning}");
        }
        let own = own.records;
        let own = match self.training.fastest {
            Some(most) => fastest(&own, most as usize),
            None => own,
        };
        let goes_on = self.estimators.is_some();
        let made = examples(&own, language, space, &self.learned, self.start.config().max_sequence);
        // a checkpoint cannot be without what it knows of CPUs
        let begins = goes_on || own.iter().any(|entry| entry.task.target.kind() == Kind::Cpu);
        if made.examples.is_empty() || !begins {
            let version = space.version(Kind::Cpu);
            let reason = format!("none of the {} records is of this search space ({version})", self.entries.len());
            return Err(CommandError::Usage(reason).into());
        }
        std::fs::create_dir_all(self.output).with_context(|| format!("cannot create {}", self.output.display()))?;
        let state = self.output.join("training.state");
        let started = Instant::now();
        let trained = train_with_progress(self.start, &made, (&self.options, self.training.device), &state)?;
        let card = self.card(&made, own.len(), &trained, started.elapsed().as_secs_f64());
        let beside = self.beside.map(|beside| &beside.estimators);
        let estimators = estimators(self.estimators, beside, self.estimator_entries, space, self.training)?;
        let (compared, are_compared) = (estimators.compared(), estimators.are_compared());
        let mut checkpoint = Checkpoint {
            model: trained.model,
            estimators: estimators.start(),
            worlds: self.beside.filter(|_| goes_on).map(|beside| beside.worlds.clone()).unwrap_or_default(),
            versions: self.learned.clone(),
            tokenizer: tokenizer_json(language),
            card,
        };
        estimators.replace(&mut checkpoint, goes_on);
        tell_machines(&mut checkpoint, self.learned.clone());
        let quality = |model: &Model| evaluate(model, &made.examples, self.options.clone(), self.training.device);
        let models = match self.beside {
            Some(beside) => quality(&beside.model)?.zip(quality(&checkpoint.model)?),
            None => None,
        };
        if goes_on && models.is_some_and(|(before, after)| !after.is_better_than(&before)) {
            checkpoint.model = self.start.clone();
            if let Some(beside) = self.beside {
                let tilescribe = checkpoint.versions.tilescribe;
                checkpoint.versions = Versions { tilescribe, ..beside.versions.clone() };
                tell_machines(&mut checkpoint, self.learned.clone());
            }
        }
        checkpoint.save(self.output)?;
        if state.exists() {
            std::fs::remove_file(&state).with_context(|| format!("cannot remove {}", state.display()))?;
        }
        let is_judged = models.is_some() && are_compared;
        Ok(Outcome { steps: trained.steps, models, estimators: compared, is_judged })
    }

    /// The model card: what was run, for how long, and what came out.
    fn card(&self, made: &Examples, records: usize, trained: &Trained, seconds: f64) -> String {
        let config = self.start.config();
        let timed = self.entries.iter().filter(|e| e.record.outcome.best_ns().is_some()).count();
        let rows: String = trained
            .evaluations
            .iter()
            .map(|(step, e)| {
                format!(
                    "| {step} | {:.4} | {:.4} | {:.3} | {:.4} | {:.3} |\n",
                    e.policy_loss, e.value_loss, e.ranking_accuracy, e.shown_policy_loss, e.shown_ranking_accuracy
                )
            })
            .collect();
        format!(
            "---\nlicense: apache-2.0\nlibrary_name: tilescribe\n---\n\n{}\n\n\
             Writes scheduling decisions for tensor programs, in Tilescribe's tensor language. It works with the version of the language and the \
             search space that config.json names, and with no other.\n\n\
             ## Architecture\n\n{} parameters: {} layers of width {}, {} query heads with one shared key and value head, squared-ReLU gated feed-forward of {}, \
             rotary positions, tied embeddings over {} tokens, sequences of up to {} positions of {} tokens each; a policy head and a value head.\n\n\
             ## Training\n\n{records} records of {} tasks ({timed} timed and correct); {} examples, {} too long, {} that teach nothing. {} steps in {seconds:.0} s; options: `{:?}`.\n\n\
             Quality on tasks held out of training (policy loss in nats for each decision, among what was possible; share of pairs of \
             programs of a task that the value head orders rightly; both again where the prompt shows other programs of the task with their speeds):\n\n\
             | step | policy loss | value loss | pairs ordered | policy loss, others shown | pairs ordered, others shown |\n\
             | ---: | ---: | ---: | ---: | ---: | ---: |\n{rows}",
            self.title,
            config.parameters(),
            config.layers,
            config.width,
            config.heads,
            config.feed_forward,
            config.vocabulary,
            config.max_sequence,
            2 * config.slots,
            made.tasks,
            made.examples.len(),
            made.too_long,
            made.skipped,
            trained.steps,
            self.options,
        )
    }
}

/// Trains, with progress for people. The state of the run is kept at a path, from which it goes on.
///
/// # Errors
/// As [`train`]; [`CommandError::Interrupted`] after Ctrl-C.
fn train_with_progress(
    start: &Model,
    made: &Examples,
    (options, device): (&TrainingOptions, Compute),
    state: &Path,
) -> Result<Trained> {
    let (bar, stopped) = (progress::bar(0, "training"), stop_on_interrupt()?);
    let mut last = None;
    let trained = train(start, &made.examples, options.clone(), device, Some(state), &mut |p| {
        bar.set_length(p.steps as u64);
        bar.set_position(p.step as u64);
        last = p.evaluation.or(last);
        let held = last.map_or(String::new(), |e: Evaluation| {
            let preferred = e.preferences.map_or(String::new(), |(loss, accuracy)| {
                format!(", preferences {loss:.3}, by the policy {accuracy:.3}")
            });
            format!(", held out {:.3}, pairs ordered {:.3}{preferred}", e.policy_loss, e.ranking_accuracy)
        });
        bar.set_message(format!("loss {:.3}{held}, {:.0} positions/s", p.policy_loss, p.positions_per_second));
        if stopped.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    bar.finish_and_clear();
    if trained.interrupted { Err(CommandError::Interrupted.into()) } else { Ok(trained) }
}
