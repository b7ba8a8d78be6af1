//! `tilescribe pretrain`

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use tilescribe::language::Language;
use tilescribe::model::{Config, Evaluation, Model, Source, TrainingOptions};
use tilescribe::propose::{Loaded, learned, load_checkpoint};
use tilescribe::space::Space;

use super::output::check_checkpoint_folder;
use super::search::CheckpointArguments;
use super::training::{
    Compared, PreferencesRun, Run, TrainingArguments, WorldRun, called, estimators, positive, read_corpus,
    tell_machines,
};

/// Train a model from nothing on a corpus of measured programs
///
/// Writes a checkpoint folder with a model card. Stopped with Ctrl-C or killed, the same command goes on
/// where it was.
#[derive(Args)]
pub struct Pretrain {
    /// Corpus files, or folders of them
    #[arg(long, required = true, num_args = 1.., value_name = "PATH")]
    corpus: Vec<PathBuf>,
    /// Folder of the checkpoint
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Corpus files, or folders of them, that the estimator learns from [default: those of --corpus]
    #[arg(long, num_args = 1.., value_name = "PATH", conflicts_with = "estimator_only")]
    estimator_corpus: Vec<PathBuf>,
    /// Folder of a checkpoint, hf:OWNER/NAME@REVISION, or built-in: tell how the new one compares with it on
    /// held-out tasks
    #[arg(long, value_name = "C")]
    beside: Option<String>,
    /// Train the estimator only, and put it into the checkpoint that the folder holds
    #[arg(long)]
    estimator_only: bool,
    /// Train the world model only, and put it into the checkpoint that the folder holds
    #[arg(long, conflicts_with_all = ["estimator_only", "estimator_corpus", "beside", "fastest"])]
    world_only: bool,
    /// With --world-only: a model that sees the set of decisions, and has no dynamics, to tell what these are
    /// worth
    #[arg(long, requires = "world_only")]
    world_end: bool,
    /// With --world-only: learn from so many programs of each task at most, drawn
    #[arg(long, value_name = "N", requires = "world_only", value_parser = clap::value_parser!(u32).range(2..))]
    programs: Option<u32>,
    /// Train the transformer of the checkpoint that the folder holds further: to prefer the faster ones of
    /// the programs of each task
    #[arg(long, conflicts_with_all = ["estimator_only", "world_only", "estimator_corpus", "beside", "fastest"])]
    preferences: bool,
    /// With --preferences: the lower, the farther the policy goes from where it started [default: 0.1]
    #[arg(long, value_name = "B", requires = "preferences", value_parser = positive)]
    sharpness: Option<f32>,
    #[command(flatten)]
    training: TrainingArguments,
}

impl Pretrain {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        let (space, language) = (Space::standard(), Language::standard());
        check_checkpoint_folder(&self.output)?;
        let entries = read_corpus(&self.corpus)?;
        if self.world_only {
            let run = WorldRun {
                training: &self.training,
                entries: &entries,
                programs: self.programs.map(|most| most as usize),
                dynamics: !self.world_end,
                output: &self.output,
            };
            return run.execute(&space, &language, out);
        }
        if self.preferences {
            let (training, sharpness) = (&self.training, self.sharpness);
            let run = PreferencesRun { training, entries: &entries, sharpness, output: &self.output };
            return run.execute(&space, &language, out);
        }
        let beside = self.beside.map(|name| CheckpointArguments { checkpoint: Some(name) }.load(&space, &language));
        let beside = beside.transpose()?;
        if self.estimator_only {
            let Loaded { mut checkpoint, notices } =
                load_checkpoint(&Source::Folder(self.output.clone()), &language, &space)?;
            notices.iter().for_each(|notice| tracing::warn!("{notice}"));
            let others = beside.as_ref().map(|beside| &beside.estimators);
            let trained = estimators(None, others, &entries, &space, &self.training)?;
            let (summaries, compared) = (trained.summaries(), trained.compared());
            trained.replace(&mut checkpoint, false);
            // the transformer has learned nothing of a machine that only the estimator knows
            tell_machines(&mut checkpoint, learned(&language, &space, &[], None));
            checkpoint.save(&self.output)?;
            for summary in summaries {
                writeln!(out, "{}: {summary}", self.output.display())?;
            }
            return tell(None, &compared, out);
        }
        let others = match self.estimator_corpus.as_slice() {
            [] => None,
            paths => Some(read_corpus(paths)?),
        };
        let start = Model::random(Config::standard(language.vocabulary().len()), self.training.seed)?;
        let run = Run {
            start: &start,
            estimators: None,
            training: &self.training,
            entries: &entries,
            learned: learned(&language, &space, &entries, None),
            estimator_entries: others.as_ref().unwrap_or(&entries),
            beside: beside.as_ref(),
            options: self.training.options(TrainingOptions::default()),
            output: &self.output,
            title: "# Tilescribe, pretrained",
        };
        let trained = run.execute(&space, &language)?;
        writeln!(out, "{}: {} steps on {} records", self.output.display(), trained.steps, entries.len())?;
        tell(trained.models, &trained.estimators, out)
    }
}

/// How the checkpoint beside and the new one do on held-out tasks.
fn tell(models: Option<(Evaluation, Evaluation)>, estimators: &[Compared], out: &mut dyn Write) -> Result<()> {
    if let Some((beside, own)) = models {
        let (beside, own) = (beside.policy_loss, own.policy_loss);
        writeln!(out, "transformer, policy loss on held-out tasks: {own:.3}; of the one beside: {beside:.3}")?;
    }
    for Compared { kind, beside, own } in estimators {
        let called = called(*kind);
        writeln!(out, "{called}, pairs ordered on held-out tasks: {own:.3}; of the one beside: {beside:.3}")?;
    }
    Ok(())
}
