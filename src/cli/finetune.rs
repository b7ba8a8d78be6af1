//! `tilescribe finetune`

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use tilescribe::files;
use tilescribe::language::Language;
use tilescribe::model::{TrainingOptions, Versions};
use tilescribe::propose::learned;
use tilescribe::record::{Entry, Filter, Readable, Store};
use tilescribe::space::Space;
use tilescribe::target::Task;

use super::arguments::StoreArguments;
use super::exit::CommandError;
use super::output::check_checkpoint_folder;
use super::search::{CheckpointArguments, own_checkpoint};
use super::training::{Compared, Run, TrainingArguments, called, read_corpus};
use super::words::counted;

/// Train a checkpoint further on what was measured on this machine, or on corpus files
///
/// The result lies beside the store, and is used from then on wherever no checkpoint is named (`--checkpoint
/// built-in` takes the one that was built in). What it gained is told for tasks that it was not trained on; a
/// part that gained nothing stays as it was. Where no task tells, the result is kept, but not used unless it
/// is named.
#[derive(Args)]
pub struct Finetune {
    #[command(flatten)]
    checkpoint: CheckpointArguments,
    #[command(flatten)]
    store: StoreArguments,
    /// Corpus files, or folders of them, to learn from in the place of what was measured here
    #[arg(long, num_args = 1.., value_name = "PATH", conflicts_with = "store")]
    corpus: Vec<PathBuf>,
    /// Folder of the new checkpoint [default: tilescribe/checkpoint in the user's cache folder]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    training: TrainingArguments,
}

/// A tenth of pretraining's learning rate, and fewer passes: enough to learn a machine, too little to forget
/// the others. The transformer learns preferences, as it did last before.
fn usual() -> TrainingOptions {
    let pretraining = TrainingOptions::default();
    TrainingOptions {
        epochs: 3.0,
        learning_rate: pretraining.learning_rate / 10.0,
        warmup_steps: 20,
        least_share: 0.6,
        preference_weight: 1.0,
        ..pretraining
    }
}

impl Finetune {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        let (space, language) = (Space::standard(), Language::standard());
        let checkpoint = self.checkpoint.load(&space, &language)?;
        let (learned, entries) = self.known(&language, &space, &checkpoint.versions)?;
        let missing = || CommandError::Usage("there is no cache folder; name one with --output".into());
        let own = own_checkpoint();
        // not the one that is used until something tells that it is better
        let draft = own.as_ref().map(|folder| folder.with_file_name(DRAFT));
        let output = self.output.clone().or(draft).ok_or_else(missing)?;
        check_checkpoint_folder(&output)?;
        let run = Run {
            start: &checkpoint.model,
            estimators: Some(&checkpoint.estimators),
            training: &self.training,
            entries: &entries,
            learned,
            estimator_entries: &entries,
            beside: Some(&checkpoint),
            options: self.training.options(usual()),
            output: &output,
            title: "# Tilescribe, fine-tuned",
        };
        let trained = run.execute(&space, &language)?;
        let becomes_own = own.filter(|_| self.output.is_none() && trained.is_judged);
        let place = becomes_own.as_ref().unwrap_or(&output);
        if let Some(own) = &becomes_own {
            replace(&output, own)?;
        }
        let (steps, records) = (counted(trained.steps, "step"), counted(entries.len(), "record"));
        writeln!(out, "{}: {steps} on {records}", place.display())?;
        let verdict = |gained: bool| if gained { "" } else { "; no gain: it stays as it was" };
        if let Some((before, after)) = trained.models {
            let kept = verdict(after.is_better_than(&before));
            if let Some((before, after)) = before.preferred().zip(after.preferred()) {
                let what = "transformer, pairs ordered on held-out tasks";
                writeln!(out, "{what}: {before:.3} before, {after:.3} after{kept}")?;
            }
        }
        for Compared { kind, beside, own } in &trained.estimators {
            let (called, kept) = (called(*kind), verdict(own > beside));
            writeln!(out, "{called}, pairs ordered on held-out tasks: {beside:.3} before, {own:.3} after{kept}")?;
        }
        if !trained.is_judged {
            writeln!(
                out,
                "too few tasks were held out to tell whether all of it gained: measure more, or raise --held-out"
            )?;
            if self.output.is_none() {
                let folder = output.display();
                writeln!(out, "it is not used unless it is named: --checkpoint {folder}")?;
            }
        }
        Ok(())
    }

    /// What there is to learn from, and what a model of those versions has learned of then.
    fn known(&self, language: &Language, space: &Space, before: &Versions) -> Result<(Versions, Vec<Entry>)> {
        if !self.corpus.is_empty() {
            let entries = read_corpus(&self.corpus)?;
            return Ok((learned(language, space, &entries, Some(before)), entries));
        }
        let Some(store) = self.store.open_existing()? else {
            let path = self.store.path()?;
            return Err(CommandError::Usage(format!("nothing was measured yet: there is no {}", path.display())).into());
        };
        let Known { written, read } = Known::of(&store, space)?;
        Ok((learned(language, space, &written, Some(before)), read))
    }
}

/// The folder beside the checkpoint that is used, where one lies that was not judged yet.
const DRAFT: &str = "checkpoint-unjudged";

/// Puts a checkpoint into the place of the one that is used.
fn replace(new: &Path, own: &Path) -> Result<()> {
    check_checkpoint_folder(own)?;
    files::replace_folder(new, own).with_context(|| format!("cannot replace {}", own.display()))
}

/// What a store holds.
struct Known {
    /// As it was written.
    written: Vec<Entry>,
    /// As this space would have written it.
    read: Vec<Entry>,
}

impl Known {
    /// Says how much of it the space does not read.
    fn of(store: &Store, space: &Space) -> Result<Known> {
        let targets = store.targets()?;
        let mut written = Vec::new();
        let mut read = Readable { records: Vec::new(), unread: BTreeMap::new() };
        for (hash, workload) in store.tasks()? {
            for (fingerprint, target) in &targets {
                let task = Arc::new(Task { workload: workload.clone(), target: target.clone() });
                let entry = |record| Entry { task: Arc::clone(&task), record };
                let filter = Filter { task_hash: Some(hash.clone()), target: Some(fingerprint.clone()), space: None };
                let records = store.records(&filter)?;
                let found = Readable::of_task(&records, &task, space);
                read.records.extend(found.records.into_iter().map(entry));
                written.extend(records.into_iter().map(entry));
                for (reason, count) in found.unread {
                    *read.unread.entry(reason).or_default() += count;
                }
            }
        }
        if let Some(warning) = read.warning() {
            tracing::warn!("{warning}");
        }
        Ok(Known { written, read: read.records })
    }
}
