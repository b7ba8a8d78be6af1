//! Training a model: what `pretrain` and `finetune` share.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use tilescribe::language::{Language, tokenizer_json};
use tilescribe::model::{
    Checkpoint, Compute, Estimator, EstimatorOptions, Evaluation, Group, Model, Ordered, TrainingOptions,
    train_estimator,
};
use tilescribe::propose::train::{Examples, Trained, examples, train};
use tilescribe::propose::{estimator_groups, versions};
use tilescribe::record::{CorpusReader, Entry, Limits};
use tilescribe::space::Space;

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

fn positive(text: &str) -> Result<f32, String> {
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
        let file = File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
        for entry in CorpusReader::new(BufReader::new(file), Limits::default())? {
            entries.push(entry.with_context(|| path.display().to_string())?);
        }
    }
    Ok(entries)
}

/// The fastest entries of each task and target, failures last.
fn fastest(entries: &[Entry], most: usize) -> Vec<Entry> {
    let mut groups: BTreeMap<(&str, &str), Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        groups.entry((&entry.record.task_hash, &entry.record.target)).or_default().push(entry);
    }
    let mut kept = Vec::new();
    for mut members in groups.into_values() {
        members.sort_by_key(|entry| entry.record.outcome.best_ns().unwrap_or(u64::MAX));
        kept.extend(members.into_iter().take(most).cloned());
    }
    kept
}

/// An estimator, and how well it orders the tasks that it was not shown.
pub struct TrainedEstimator {
    pub estimator: Estimator,
    /// Tasks and programs that it learned from.
    tasks: usize,
    programs: usize,
    held_out: usize,
    ordered: Ordered,
}

/// Trains an estimator on the records of a space; `start` moves a little, a new one learns from nothing.
///
/// # Errors
/// Where there is nothing to learn from, or training fails.
pub fn estimator(
    start: Option<&Estimator>,
    entries: &[Entry],
    space: &Space,
    training: &TrainingArguments,
) -> Result<TrainedEstimator> {
    let groups = estimator_groups(entries, space);
    // by the task's hash, so that a larger corpus holds the same ones out
    let share = |hash: &str| {
        let number = hash.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        number.unwrap_or(0) as f32 / u32::MAX as f32
    };
    let (held, shown): (Vec<_>, Vec<_>) = groups.into_iter().partition(|(hash, _)| share(hash) < training.held_out);
    let groups_of = |named: Vec<(String, Group)>| named.into_iter().map(|(_, group)| group).collect::<Vec<Group>>();
    let (held, shown) = (groups_of(held), groups_of(shown));
    if shown.iter().all(|group| group.speeds.len() < 2) {
        let reason = format!("no task has two programs of this search space ({}) to compare", space.version());
        return Err(CommandError::Usage(reason).into());
    }
    let usual = EstimatorOptions { seed: training.seed, ..EstimatorOptions::default() };
    let options = match start {
        Some(_) => EstimatorOptions { epochs: usual.epochs / 3, learning_rate: usual.learning_rate / 3.0, ..usual },
        None => usual,
    };
    let estimator = train_estimator(start, &shown, &options)?;
    let (programs, ordered) = (shown.iter().map(|group| group.speeds.len()).sum(), estimator.evaluate(&held));
    Ok(TrainedEstimator { estimator, tasks: shown.len(), programs, held_out: held.len(), ordered })
}

/// The heading of its part of a model card.
const ESTIMATOR_HEADING: &str = "## Estimator\n";

impl TrainedEstimator {
    /// Its part of a model card.
    fn card(&self) -> String {
        let Ordered { pairs, first, first_three } = self.ordered;
        format!(
            "{ESTIMATOR_HEADING}\nOrders finished programs by {} features; trained on {} programs of {} tasks. Of {} tasks that it was not shown it orders {:.1} % of the pairs \
             rightly; the program of a task that it likes best reaches {first:.3} of the best one's speed, the best of its first three {first_three:.3} (geometric means).\n",
            self.estimator.inputs(),
            self.programs,
            self.tasks,
            self.held_out,
            100.0 * pairs,
        )
    }

    /// Puts it in the place of a checkpoint's estimator, and of what the card says of that.
    pub fn replace(self, checkpoint: &mut Checkpoint) {
        let card = &checkpoint.card;
        let start = card.find(ESTIMATOR_HEADING).unwrap_or(card.len());
        let rest = &card[start..].get(1..).unwrap_or("");
        let end = rest.find("\n## ").map_or(card.len(), |at| start + 1 + at);
        checkpoint.card = format!("{}{}{}", &card[..start], self.card(), &card[end..]);
        checkpoint.estimator = self.estimator;
    }
}

/// A training run and where it leads.
pub struct Run<'a> {
    pub start: &'a Model,
    /// To go on from; a new one learns from nothing.
    pub estimator: Option<&'a Estimator>,
    pub training: &'a TrainingArguments,
    pub entries: &'a [Entry],
    pub options: TrainingOptions,
    /// The folder of the checkpoint.
    pub output: &'a Path,
    /// The first lines of the model card.
    pub title: &'a str,
}

impl Run<'_> {
    /// Trains on the records of this space, with progress for people, and writes the checkpoint and its model card. Interrupted, it goes on
    /// where it was when it is started again.
    ///
    /// # Errors
    /// Where there is nothing to learn from, or training fails; [`CommandError::Interrupted`] after Ctrl-C.
    pub fn execute(&self, space: &Space, language: &Language) -> Result<Trained> {
        let version = space.version();
        let own: Vec<Entry> = self.entries.iter().filter(|e| e.record.space == version).cloned().collect();
        let own = self.training.fastest.map_or_else(|| own.clone(), |most| fastest(&own, most as usize));
        let made = examples(&own, language, self.start.config().max_sequence);
        if made.examples.is_empty() {
            let reason = format!("none of the {} records is of this search space ({version})", self.entries.len());
            return Err(CommandError::Usage(reason).into());
        }
        std::fs::create_dir_all(self.output).with_context(|| format!("cannot create {}", self.output.display()))?;
        let state = self.output.join("training.state");
        let (bar, stopped, started) = (progress::bar(0, "training"), stop_on_interrupt()?, Instant::now());
        let mut last = None;
        let trained =
            train(self.start, &made.examples, self.options.clone(), self.training.device, Some(&state), &mut |p| {
                bar.set_length(p.steps as u64);
                bar.set_position(p.step as u64);
                last = p.evaluation.or(last);
                let held = last.map_or(String::new(), |e: Evaluation| {
                    format!(", held out {:.3}, pairs ordered {:.3}", e.policy_loss, e.ranking_accuracy)
                });
                bar.set_message(format!("loss {:.3}{held}, {:.0} tokens/s", p.policy_loss, p.tokens_per_second));
                if stopped.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
        bar.finish_and_clear();
        if trained.interrupted {
            return Err(CommandError::Interrupted.into());
        }
        let card = self.card(&made, own.len(), &trained, started.elapsed().as_secs_f64());
        let estimator = estimator(self.estimator, self.entries, space, self.training)?;
        let card = format!("{card}\n{}", estimator.card());
        let checkpoint = Checkpoint {
            model: trained.model.clone(),
            estimator: estimator.estimator,
            versions: versions(language, space),
            tokenizer: tokenizer_json(language),
            card,
        };
        checkpoint.save(self.output)?;
        if state.exists() {
            std::fs::remove_file(&state).with_context(|| format!("cannot remove {}", state.display()))?;
        }
        Ok(trained)
    }

    /// The model card: what was run, for how long, and what came out.
    fn card(&self, made: &Examples, records: usize, trained: &Trained, seconds: f64) -> String {
        let config = self.start.config();
        let timed = self.entries.iter().filter(|e| e.record.outcome.best_ns().is_some()).count();
        let rows: String = trained
            .evaluations
            .iter()
            .map(|(step, e)| {
                format!("| {step} | {:.4} | {:.4} | {:.3} |\n", e.policy_loss, e.value_loss, e.ranking_accuracy)
            })
            .collect();
        format!(
            "---\nlicense: apache-2.0\nlibrary_name: tilescribe\n---\n\n{}\n\n\
             Writes scheduling decisions for tensor programs, in Tilescribe's tensor language. It works with the version of the language and the \
             search space that config.json names, and with no other.\n\n\
             ## Architecture\n\n{} parameters: {} layers of width {}, {} query heads with one shared key and value head, squared-ReLU gated feed-forward of {}, \
             rotary positions, tied embeddings over {} tokens, sequences of up to {} tokens; a policy head and a value head.\n\n\
             ## Training\n\n{records} records of {} tasks ({timed} timed and correct); {} examples, {} too long, {} that teach nothing. {} steps in {seconds:.0} s; options: `{:?}`.\n\n\
             Quality on tasks held out of training (policy loss in nats for each decision token over the whole vocabulary; share of pairs of \
             programs of a task that the value head orders rightly):\n\n\
             | step | policy loss | value loss | pairs ordered |\n| ---: | ---: | ---: | ---: |\n{rows}",
            self.title,
            config.parameters(),
            config.layers,
            config.width,
            config.heads,
            config.feed_forward,
            config.vocabulary,
            config.max_sequence,
            made.tasks,
            made.examples.len(),
            made.too_long,
            made.skipped,
            trained.steps,
            self.options,
        )
    }
}
