//! `tilescribe pretrain`

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use tilescribe::language::Language;
use tilescribe::model::{Config, Model, TrainingOptions};
use tilescribe::space::Space;

use super::training::{Run, TrainingArguments, read_corpus};

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
    #[command(flatten)]
    training: TrainingArguments,
}

impl Pretrain {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        let (space, language) = (Space::standard(), Language::standard());
        let entries = read_corpus(&self.corpus)?;
        let start = Model::random(Config::standard(language.vocabulary().len()), self.training.seed)?;
        let run = Run {
            start: &start,
            entries: &entries,
            options: self.training.options(TrainingOptions::default()),
            compute: self.training.device,
            output: &self.output,
            fastest: self.training.fastest,
            title: "# Tilescribe, pretrained",
        };
        let trained = run.execute(&space, &language)?;
        writeln!(out, "{}: {} steps on {} records", self.output.display(), trained.steps, entries.len())?;
        Ok(())
    }
}
