//! Training the estimators of a checkpoint.

use anyhow::Result;
use tilescribe::model::{Checkpoint, Estimator, EstimatorOptions, Estimators, Group, Ordered, train_estimator};
use tilescribe::rank::{estimator_groups, estimator_of};
use tilescribe::record::{Entry, hold_out_key};
use tilescribe::space::Space;
use tilescribe::target::Kind;

use super::TrainingArguments;
use crate::cli::exit::CommandError;

/// Estimators of the kinds of machines that there are records of, CPUs first.
pub struct TrainedEstimators {
    trained: Vec<TrainedEstimator>,
    /// What they went on from, or else those of them that every checkpoint has.
    start: Estimators,
}

/// An estimator, and how well it orders the tasks that it was not shown.
struct TrainedEstimator {
    kind: Kind,
    estimator: Estimator,
    /// Tasks and programs that it learned from.
    tasks: usize,
    programs: usize,
    held_out: usize,
    ordered: Ordered,
    /// Of the one that it is held against, on the same tasks.
    beside: Option<Ordered>,
}

/// The shares of pairs that an estimator and the one beside it order rightly on held-out tasks.
#[derive(Clone, Copy, Debug)]
pub struct Compared {
    pub kind: Kind,
    pub beside: f64,
    pub own: f64,
}

/// Trains estimators on the records of a space; those of `start` move a little, new ones learn from nothing.
/// They are held against those `beside` them.
///
/// # Errors
/// Where there is nothing to learn from, of CPUs if they start from nothing, or training fails.
pub fn estimators(
    start: Option<&Estimators>,
    beside: Option<&Estimators>,
    entries: &[Entry],
    space: &Space,
    training: &TrainingArguments,
) -> Result<TrainedEstimators> {
    let mut trained = Vec::new();
    for kind in [Kind::Cpu, Kind::Gpu] {
        let of = |all: Option<&Estimators>| all.and_then(|all| estimator_of(all, kind)).cloned();
        trained.extend(estimator(kind, of(start).as_ref(), of(beside).as_ref(), entries, space, training)?);
    }
    let first = trained.first().filter(|first: &&TrainedEstimator| start.is_some() || first.kind == Kind::Cpu);
    let Some(first) = first else {
        let reason = format!(
            "no task that is not held out has two programs of this search space ({}) to compare",
            space.version(Kind::Cpu)
        );
        return Err(CommandError::Usage(reason).into());
    };
    let start = start.cloned().unwrap_or_else(|| first.estimator.clone().into());
    Ok(TrainedEstimators { trained, start })
}

/// That of one kind of machine; `None` where no task has two programs to compare.
fn estimator(
    kind: Kind,
    start: Option<&Estimator>,
    beside: Option<&Estimator>,
    entries: &[Entry],
    space: &Space,
    training: &TrainingArguments,
) -> Result<Option<TrainedEstimator>> {
    let groups = estimator_groups(entries, space, kind);
    let (held, shown): (Vec<_>, Vec<_>) =
        groups.into_iter().partition(|(hash, _)| hold_out_key(hash) < training.held_out);
    let groups_of = |named: Vec<(String, Group)>| named.into_iter().map(|(_, group)| group).collect::<Vec<Group>>();
    let (held, shown) = (groups_of(held), groups_of(shown));
    if shown.iter().all(|group| group.speeds.len() < 2) {
        return Ok(None);
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
    // those who fine-tune have few tasks: a range from them alone would leave good programs of others
    // unbelieved
    if start.is_none_or(Estimator::is_bounded) {
        estimator.bound(&shown);
    }
    estimator.calibrate(if held.is_empty() { &shown } else { &held });
    Ok(Some(TrainedEstimator {
        kind,
        tasks: shown.len(),
        programs: shown.iter().map(|group| group.speeds.len()).sum(),
        held_out: held.len(),
        ordered: estimator.evaluate(&held),
        beside: beside.map(|beside| beside.evaluate(&held)),
        estimator,
    }))
}

/// What people call the estimator of a kind of machine.
pub fn called(kind: Kind) -> &'static str {
    match kind {
        Kind::Cpu => "estimator",
        Kind::Gpu => "estimator for GPUs",
    }
}

/// The heading of its part of a model card.
fn heading(kind: Kind) -> &'static str {
    match kind {
        Kind::Cpu => "## Estimator\n",
        Kind::Gpu => "## Estimator for GPUs\n",
    }
}

impl TrainedEstimator {
    /// Its part of a model card.
    fn card(&self) -> String {
        let Ordered { pairs, first, first_three } = self.ordered;
        format!(
            "{}\nOrders finished programs by {} features; trained on {} programs of {} tasks. Of {} tasks that it was not shown it orders {:.1} % of the pairs \
             rightly; the program of a task that it likes best reaches {first:.3} of the best one's speed, the best of its first three {first_three:.3} (geometric means).\n",
            heading(self.kind),
            self.estimator.inputs(),
            self.programs,
            self.tasks,
            self.held_out,
            100.0 * pairs,
        )
    }

    /// How well it orders what it was not shown, in a line.
    fn summary(&self) -> String {
        let Ordered { pairs, first, first_three } = self.ordered;
        let right = 100.0 * pairs;
        format!(
            "{right:.1} % of held-out pairs in order, first {first:.3} and best of three {first_three:.3} of the best"
        )
    }

    /// How it does beside the other one, if there are tasks that tell.
    fn compared(&self) -> Option<Compared> {
        let beside = self.beside.filter(|_| self.held_out > 0)?;
        Some(Compared { kind: self.kind, beside: beside.pairs, own: self.ordered.pairs })
    }

    /// Puts it in the place of a checkpoint's estimator, and of what the card says of that.
    fn replace(self, checkpoint: &mut Checkpoint) {
        checkpoint.replace_part(heading(self.kind), &self.card());
        match self.kind {
            Kind::Cpu => checkpoint.estimators.cpu = self.estimator,
            Kind::Gpu => checkpoint.estimators.gpu = Some(self.estimator),
        }
    }
}

impl TrainedEstimators {
    /// How well they order what they were not shown, a line each.
    pub fn summaries(&self) -> Vec<String> {
        self.trained.iter().map(|trained| format!("a new {}, {}", called(trained.kind), trained.summary())).collect()
    }

    /// Whether there are tasks that tell about each.
    pub fn are_compared(&self) -> bool {
        self.trained.iter().all(|trained| trained.compared().is_some())
    }

    /// How each does beside the other one, where there are tasks that tell.
    pub fn compared(&self) -> Vec<Compared> {
        self.trained.iter().filter_map(TrainedEstimator::compared).collect()
    }

    /// What they went on from, or else those of them that every checkpoint has: those of a checkpoint before
    /// [`TrainedEstimators::replace`].
    pub fn start(&self) -> Estimators {
        self.start.clone()
    }

    /// Puts them in the places of a checkpoint's, `only_better` ones and those of which nothing tells, if
    /// that is wanted.
    pub fn replace(self, checkpoint: &mut Checkpoint, only_better: bool) {
        for trained in self.trained {
            if !only_better || trained.compared().is_none_or(|Compared { beside, own, .. }| own > beside) {
                trained.replace(checkpoint);
            }
        }
    }
}
