//! `tilescribe pretrain`

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use tilescribe::language::Language;
use tilescribe::model::{Checkpoint, Config, Model, TrainingOptions};
use tilescribe::propose::versions;
use tilescribe::space::Space;

use super::training::{Run, TrainingArguments, estimator, read_corpus};

/// Train a model from nothing on a corpus of measured programs
///
/// Writes a checkpoint folder with a model card. Stopped with Ctrl-C or killed, the same command goes on where it was.
#[derive(Args)]
pub struct Pretrain {
    /// Corpus files, or folders of them
    #[arg(long, required = true, num_args = 1.., value_name = "PATH")]
    corpus: Vec<PathBuf>,
    /// Folder of the checkpoint
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Train the estimator only, and put it into the checkpoint that the folder holds
    #[arg(long)]
    estimator_only: bool,
    #[command(flatten)]
    training: TrainingArguments,
}

impl Pretrain {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        let (space, language) = (Space::standard(), Language::standard());
        let entries = read_corpus(&self.corpus)?;
        if self.estimator_only {
            let mut checkpoint = Checkpoint::load(&self.output, &versions(&language, &space))?;
            let trained = estimator(None, &entries, &space, &self.training)?;
            let summary = trained.summary();
            trained.replace(&mut checkpoint);
            checkpoint.save(&self.output)?;
            writeln!(out, "{}: a new estimator, {summary}", self.output.display())?;
            return Ok(());
        }
        let start = Model::random(Config::standard(language.vocabulary().len()), self.training.seed)?;
        let run = Run {
            start: &start,
            estimator: None,
            training: &self.training,
            entries: &entries,
            options: self.training.options(TrainingOptions::default()),
            output: &self.output,
            title: "# Tilescribe, pretrained",
        };
        let trained = run.execute(&space, &language)?;
        writeln!(out, "{}: {} steps on {} records", self.output.display(), trained.steps, entries.len())?;
        Ok(())
    }
}
