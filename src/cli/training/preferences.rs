//! Training the transformer of a checkpoint further, by preferences.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use tilescribe::language::Language;
use tilescribe::model::{Evaluation, Model, Source, TrainingOptions};
use tilescribe::propose::train::{Trained, evaluate, examples};
use tilescribe::propose::{Loaded, learned, load_checkpoint};
use tilescribe::record::{Entry, readable};
use tilescribe::space::Space;

use super::{TrainingArguments, tell_machines, train_with_progress};
use crate::cli::exit::CommandError;

/// What to learn preferences from.
pub struct PreferencesRun<'a> {
    pub training: &'a TrainingArguments,
    pub entries: &'a [Entry],
    /// See [`TrainingOptions::preference_sharpness`].
    pub sharpness: Option<f32>,
    /// The folder of a checkpoint.
    pub output: &'a Path,
}

/// Its part of a model card.
const HEADING: &str = "## Preferences\n";

/// A tenth of pretraining's learning rate, and few passes, of which each shows slow programs, too: they are
/// what the fast ones are preferred to.
fn usual() -> TrainingOptions {
    let pretraining = TrainingOptions::default();
    TrainingOptions {
        epochs: 2.0,
        learning_rate: pretraining.learning_rate / 10.0,
        least_share: 0.6,
        preference_weight: 1.0,
        ..pretraining
    }
}

impl PreferencesRun<'_> {
    /// Trains it, with progress for people, and puts it and its part of the card into the checkpoint.
    /// Interrupted, it goes on where it was when it is started again.
    ///
    /// # Errors
    /// Where there is nothing to learn from, or training fails; [`CommandError::Interrupted`] after Ctrl-C.
    pub fn execute(&self, space: &Space, language: &Language, out: &mut dyn Write) -> Result<()> {
        let source = Source::Folder(self.output.to_path_buf());
        let Loaded { mut checkpoint, notices } = load_checkpoint(&source, language, space)?;
        notices.iter().for_each(|notice| tracing::warn!("{notice}"));
        let own = readable(self.entries, space);
        if let Some(warning) = own.warning() {
            tracing::warn!("{warning}");
        }
        let learned = learned(language, space, self.entries, Some(&checkpoint.versions));
        let made = examples(&own.records, language, space, &learned, checkpoint.model.config().max_sequence);
        if made.examples.is_empty() {
            let reason = format!("none of the {} records is of this search space", self.entries.len());
            return Err(CommandError::Usage(reason).into());
        }
        let usual = usual();
        let sharpness = self.sharpness.map_or(usual.preference_sharpness, f64::from);
        let options = TrainingOptions { preference_sharpness: sharpness, ..self.training.options(usual) };
        let state = self.output.join("preferences.state");
        let started = Instant::now();
        let quality = |model: &Model| evaluate(model, &made.examples, options.clone(), self.training.device);
        let trained = train_with_progress(&checkpoint.model, &made, (&options, self.training.device), &state)?;
        let told = told(quality(&checkpoint.model)?, quality(&trained.model)?);
        let card = format!(
            "{HEADING}\nTrained further to prefer the faster of two programs of a task (direct preference optimisation, beside the likelihood of the best \
             decile): {} programs of {} tasks, {} steps in {:.0} s; options: `{options:?}`.{told}\n",
            made.examples.len(),
            made.tasks,
            trained.steps,
            started.elapsed().as_secs_f64(),
        );
        checkpoint.replace_part(HEADING, &card);
        checkpoint.versions = learned.clone();
        tell_machines(&mut checkpoint, learned);
        let Trained { model, steps, .. } = trained;
        checkpoint.model = model;
        checkpoint.save(self.output)?;
        if state.exists() {
            std::fs::remove_file(&state).with_context(|| format!("cannot remove {}", state.display()))?;
        }
        Ok(writeln!(out, "{}: {steps} steps on {} programs.{told}", self.output.display(), made.examples.len())?)
    }
}

/// What became of the order in which the policy likes programs that it was not shown.
fn told(before: Option<Evaluation>, after: Option<Evaluation>) -> String {
    let accuracy = |evaluation: Option<Evaluation>| Some(100.0 * evaluation?.preferred()?);
    match (accuracy(before), accuracy(after)) {
        (Some(before), Some(after)) => format!(
            " Of two programs of a task that it was not shown it gave the faster one the higher probability in {before:.1} % before, and does in {after:.1} % since."
        ),
        _ => String::new(),
    }
}
