//! Training the world model of a checkpoint.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, Result};
use tilescribe::language::Language;
use tilescribe::model::{Compute, Source, World, WorldConfig, WorldEvaluation, WorldGroup, WorldOptions};
use tilescribe::propose::{Loaded, TrainedWorld, load_checkpoint, train_world, world_groups, world_spaces};
use tilescribe::rank::FEATURES;
use tilescribe::record::Entry;
use tilescribe::space::Space;

use super::{TrainingArguments, stop_on_interrupt};
use crate::cli::exit::CommandError;
use crate::cli::progress;
use crate::cli::words::counted;

/// What to train a world model from.
pub struct WorldRun<'a> {
    pub training: &'a TrainingArguments,
    pub entries: &'a [Entry],
    /// Programs of each task at most.
    pub programs: Option<usize>,
    /// Or else it sees the set of decisions at the end.
    pub dynamics: bool,
    /// The folder of a checkpoint.
    pub output: &'a Path,
}

impl WorldRun<'_> {
    /// Trains it, with progress for people, and puts it and its part of the card into the checkpoint.
    /// Interrupted, it goes on where it was when it is started again.
    ///
    /// # Errors
    /// Where there is nothing to learn from, or training fails; [`CommandError::Interrupted`] after Ctrl-C.
    pub fn execute(&self, space: &Space, language: &Language, out: &mut dyn Write) -> Result<()> {
        if self.training.device != Compute::Cpu {
            return Err(CommandError::Usage("a world model is trained on the CPU: leave --device out".into()).into());
        }
        let source = Source::Folder(self.output.to_path_buf());
        let Loaded { mut checkpoint, notices } = load_checkpoint(&source, language, space)?;
        notices.iter().for_each(|notice| tracing::warn!("{notice}"));
        let seed = self.training.seed;
        let spaces = world_spaces(language, space, self.entries);
        let groups = world_groups(self.entries, space, &spaces, language, self.programs, seed);
        let (groups, alone): (Vec<WorldGroup>, Vec<WorldGroup>) =
            groups.into_iter().partition(|group| group.programs.len() > 1);
        if !alone.is_empty() {
            tracing::info!("{} have a single program, which compares with nothing", counted(alone.len(), "task"));
        }
        let config = WorldConfig::standard(language.vocabulary().len(), FEATURES, self.dynamics);
        let start = World::random(config, spaces, seed)?;
        let usual = WorldOptions::default();
        let options = WorldOptions {
            epochs: self.training.epochs.unwrap_or(usual.epochs),
            learning_rate: self.training.learning_rate.map_or(usual.learning_rate, f64::from),
            held_out: self.training.held_out,
            seed,
            ..usual
        };
        let state = self.output.join(if self.dynamics { "world.state" } else { "world-end.state" });
        let started = Instant::now();
        let trained = self.train(&start, &groups, &options, &state)?;
        let card = self.card(&trained, &options, started.elapsed().as_secs_f64());
        checkpoint.replace_part(self.heading(), &card);
        let summary = summary(&trained);
        checkpoint.worlds.put(trained.world);
        checkpoint.save(self.output)?;
        if state.exists() {
            std::fs::remove_file(&state).with_context(|| format!("cannot remove {}", state.display()))?;
        }
        Ok(writeln!(out, "{}: a new {}, {summary}", self.output.display(), self.called())?)
    }

    fn train(
        &self,
        start: &World,
        groups: &[WorldGroup],
        options: &WorldOptions,
        state: &Path,
    ) -> Result<TrainedWorld> {
        let (bar, stopped) = (progress::bar(0, "training"), stop_on_interrupt()?);
        let mut last = None;
        let trained = train_world(start, groups, options.clone(), Some(state), &mut |p| {
            bar.set_length(p.steps as u64);
            bar.set_position(p.step as u64);
            last = p.evaluation.or(last);
            let held = last.map_or(String::new(), |e: WorldEvaluation| {
                format!(", held out: pairs {:.3}, at half {:.3}, features {:.3}", e.pairs, e.pairs_at_half, e.features)
            });
            bar.set_message(format!("loss {:.3}{held}", p.loss));
            if stopped.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        bar.finish_and_clear();
        if trained.interrupted { Err(CommandError::Interrupted.into()) } else { Ok(trained) }
    }

    fn called(&self) -> &'static str {
        if self.dynamics { "world model" } else { "world model of the end" }
    }

    /// The heading of its part of a model card.
    fn heading(&self) -> &'static str {
        if self.dynamics { "## World model\n" } else { "## World model without dynamics\n" }
    }

    /// Its part of a model card.
    fn card(&self, trained: &TrainedWorld, options: &WorldOptions, seconds: f64) -> String {
        let config = trained.world.config();
        let (groups, programs, held) = trained.counts;
        let how = match self.dynamics {
            true => {
                "Reads a task, then decisions as actions that move its state, and judges programs without their nests"
            }
            false => "Reads a task and the set of decisions of a program, and judges it without its nest",
        };
        let quality = trained.evaluation.map_or(String::new(), |WorldEvaluation { pairs, pairs_at_half, features }| {
            let half = match self.dynamics {
                true => format!(", {:.1} % when half of the decisions are taken", 100.0 * pairs_at_half),
                false => String::new(),
            };
            format!(
                " Of {held} groups of tasks that it was not shown it orders {:.1} % of the pairs rightly{half}; of what the estimator's features vary among \
                 the programs of a task, it tells {:.1} %.",
                100.0 * pairs,
                100.0 * features
            )
        });
        format!(
            "{}\n{how}: {} weights, states of {}. Trained on {programs} programs of {groups} groups (a task on one machine) in {} steps, {seconds:.0} s; \
             options: `{options:?}`.{quality}\n",
            self.heading(),
            config.parameters(),
            config.width,
            trained.steps,
        )
    }
}

/// How well it orders what it was not shown, in a line.
fn summary(trained: &TrainedWorld) -> String {
    match trained.evaluation {
        None => "of which no task was held out".into(),
        Some(WorldEvaluation { pairs, pairs_at_half, features }) => {
            let half = match trained.world.config().dynamics {
                true => format!(", {:.1} % at half of the decisions", 100.0 * pairs_at_half),
                false => String::new(),
            };
            let (pairs, features) = (100.0 * pairs, 100.0 * features);
            format!("{pairs:.1} % of held-out pairs in order{half}, {features:.1} % of the variance of features")
        }
    }
}
