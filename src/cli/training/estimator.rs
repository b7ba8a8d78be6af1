//! Training the estimator of a checkpoint.

use anyhow::Result;
use tilescribe::model::{Checkpoint, Estimator, EstimatorOptions, Group, Ordered, train_estimator};
use tilescribe::rank::estimator_groups;
use tilescribe::record::{Entry, place};
use tilescribe::space::Space;
use tilescribe::target::Kind;

use super::TrainingArguments;
use crate::cli::exit::CommandError;

/// An estimator, and how well it orders the tasks that it was not shown.
pub struct TrainedEstimator {
    pub estimator: Estimator,
    /// Tasks and programs that it learned from.
    tasks: usize,
    programs: usize,
    held_out: usize,
    ordered: Ordered,
    /// Of the one that it is held against, on the same tasks.
    beside: Option<Ordered>,
}

/// Trains an estimator on the records of a space; `start` moves a little, a new one learns from nothing. It is held against the one `beside` it.
///
/// # Errors
/// Where there is nothing to learn from, or training fails.
pub fn estimator(
    start: Option<&Estimator>,
    beside: Option<&Estimator>,
    entries: &[Entry],
    space: &Space,
    training: &TrainingArguments,
) -> Result<TrainedEstimator> {
    let groups = estimator_groups(entries, space);
    let (held, shown): (Vec<_>, Vec<_>) = groups.into_iter().partition(|(hash, _)| place(hash) < training.held_out);
    let groups_of = |named: Vec<(String, Group)>| named.into_iter().map(|(_, group)| group).collect::<Vec<Group>>();
    let (held, shown) = (groups_of(held), groups_of(shown));
    if shown.iter().all(|group| group.speeds.len() < 2) {
        let reason = format!(
            "no task that is not held out has two programs of this search space ({}) to compare",
            space.version(Kind::Cpu)
        );
        return Err(CommandError::Usage(reason).into());
    }
    let usual = EstimatorOptions { seed: training.seed, ..EstimatorOptions::default() };
    let options = match start {
        Some(_) => EstimatorOptions {
            epochs: usual.epochs / 3,
            learning_rate: usual.learning_rate / 3.0,
            trees: usual.trees / 10,
            ..usual
        },
        None => usual,
    };
    let mut estimator = train_estimator(start, &shown, &options)?;
    estimator.calibrate(if held.is_empty() { &shown } else { &held });
    Ok(TrainedEstimator {
        tasks: shown.len(),
        programs: shown.iter().map(|group| group.speeds.len()).sum(),
        held_out: held.len(),
        ordered: estimator.evaluate(&held),
        beside: beside.map(|beside| beside.evaluate(&held)),
        estimator,
    })
}

/// The heading of its part of a model card.
const ESTIMATOR_HEADING: &str = "## Estimator\n";

impl TrainedEstimator {
    /// Its part of a model card.
    pub(super) fn card(&self) -> String {
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

    /// How well it orders what it was not shown, in a line.
    pub fn summary(&self) -> String {
        let Ordered { pairs, first, first_three } = self.ordered;
        let right = 100.0 * pairs;
        format!(
            "{right:.1} % of held-out pairs in order, first {first:.3} and best of three {first_three:.3} of the best"
        )
    }

    /// The shares of pairs that the one beside it, and it, order rightly on held-out tasks, if there are any.
    pub fn beside(&self) -> Option<(f64, f64)> {
        let beside = self.beside.filter(|_| self.held_out > 0)?;
        Some((beside.pairs, self.ordered.pairs))
    }

    /// Puts it in the place of a checkpoint's estimator, and of what the card says of that.
    pub fn replace(self, checkpoint: &mut Checkpoint) {
        let card = &checkpoint.card;
        let start = card.find(ESTIMATOR_HEADING).unwrap_or(card.len());
        let rest = &card[start..].get(1..).unwrap_or("");
        let end = rest.find("\n## ").map_or(card.len(), |at| start + 1 + at);
        let before = card[..start].trim_end();
        checkpoint.card = format!("{before}\n\n{}{}", self.card(), &card[end..]);
        checkpoint.estimator = self.estimator;
    }
}
