//! Ranking finished programs by an estimate of their speed, which learns from what was measured.

use std::collections::HashMap;

use rayon::iter::{IntoParallelIterator, ParallelIterator};

use super::{RankError, features, group};
use crate::model::{Adapted, Estimator, EstimatorOptions, Estimators, Group, train_estimator};
use crate::record::History;
use crate::space::{Next, Space, Trace};
use crate::target::{Kind, Task};

/// Programs measured of a task before an estimate that knows no other tasks learns from them.
const ENOUGH: usize = 4;
/// Programs of a task that it learns from: those proposed last.
const REMEMBERED: usize = 256;

/// The one for such machines; `None` where nothing was learned of them.
pub fn estimator_of(estimators: &Estimators, kind: Kind) -> Option<&Estimator> {
    match kind {
        Kind::Cpu => Some(&estimators.cpu),
        Kind::Gpu => estimators.gpu.as_ref(),
    }
}

/// A program that a proposer thinks of, and what it looks like.
#[derive(Clone, Debug)]
pub struct Described {
    pub trace: Trace,
    pub features: Vec<f32>,
}

/// Scores programs of a task, the higher the faster, by an estimator that is adapted to what was measured of
/// the task.
pub struct Ranking<'a> {
    space: &'a Space,
    /// What was learned from other tasks.
    prior: Option<Estimators>,
    /// How to learn without it.
    options: EstimatorOptions,
    /// By the task's hash: features of the programs that were proposed.
    proposed: HashMap<String, Vec<Described>>,
}

impl<'a> Ranking<'a> {
    /// With a `prior` that knows such machines, the estimate begins with what it knows; without, it begins
    /// anew with every batch of measurements.
    pub fn new(space: &'a Space, prior: Option<Estimators>, seed: u64) -> Ranking<'a> {
        let options =
            EstimatorOptions { epochs: 60, groups: 1, members: 96, trees: 0, seed, ..EstimatorOptions::default() };
        Ranking { space, prior, options, proposed: HashMap::new() }
    }

    /// Realises programs and looks at them; dead ends are `None`.
    ///
    /// # Errors
    /// [`RankError::Space`] for a trace that is not of this space.
    pub fn describe(&self, task: &Task, traces: Vec<Trace>) -> Result<Vec<Option<Described>>, RankError> {
        let look = |trace: Trace| match self.space.next(task, &trace)? {
            Next::Done(nest) => Ok(Some(Described { features: features(task, &nest), trace })),
            Next::DeadEnd(_) | Next::Choose(_) => Ok(None),
            Next::Defect(defect) => Err(defect.into()),
        };
        traces.into_par_iter().map(look).collect()
    }

    /// What is known now, for this task; `None` where nothing is.
    ///
    /// # Errors
    /// As [`Ranking::describe`], and where the estimate cannot be learned.
    pub fn estimator(&mut self, task: &Task, history: &History) -> Result<Option<Adapted>, RankError> {
        let group = self.measured(task, history)?;
        match self.prior.as_ref().and_then(|prior| estimator_of(prior, task.target.kind())) {
            Some(prior) => Ok(Some(Adapted::new(prior.clone(), &group))),
            None if group.speeds.len() < ENOUGH => Ok(None),
            None => Ok(Some(train_estimator(None, &[group], &self.options)?.into())),
        }
    }

    /// What was measured of a task, as far as it is remembered: the programs proposed last, or the fastest
    /// where a run is taken up again.
    ///
    /// # Errors
    /// As [`Ranking::describe`].
    pub fn measured(&mut self, task: &Task, history: &History) -> Result<Group, RankError> {
        let hash = task.workload.hash().to_string();
        if !self.proposed.contains_key(&hash) {
            // a run that is taken up again: the fastest are there still
            let fastest = self.describe(task, history.fastest(History::KEPT))?;
            self.proposed.insert(hash.clone(), fastest.into_iter().flatten().collect());
        }
        let known = self.proposed.get(&hash).map_or(&[][..], Vec::as_slice);
        let measured = known.iter().filter_map(|d| Some((d.features.clone(), history.best_ns(&d.trace)?)));
        Ok(group(measured.collect()))
    }

    /// What was going to be measured of a task, the last of it.
    pub fn proposed(&self, task: &Task) -> &[Described] {
        self.proposed.get(&task.workload.hash().to_string()).map_or(&[], Vec::as_slice)
    }

    /// Keeps the features of what is going to be measured.
    pub fn remember(&mut self, task: &Task, chosen: impl Iterator<Item = Described>) {
        let known = self.proposed.entry(task.workload.hash().to_string()).or_default();
        known.extend(chosen);
        let surplus = known.len().saturating_sub(REMEMBERED);
        known.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::{Described, Ranking};
    use crate::model::{Adapted, EstimatorOptions, Group, train_estimator};
    use crate::propose::example::product;
    use crate::propose::{Proposer, Random};
    use crate::rank::{FEATURES, group};
    use crate::record::History;
    use crate::space::{Space, Trace};

    /// Distinct programs of the product.
    fn programs(space: &Space, count: usize) -> Vec<Trace> {
        let drawn = Random::new(space, 1).propose(&product(), &History::default(), count).unwrap();
        drawn.candidates.into_iter().map(|candidate| candidate.trace).collect()
    }

    /// The feature that tells the cycles if nothing overlaps.
    const ROUGH_CYCLES: usize = 65;

    /// A time that the features tell: what the rough estimate of cycles says, cubed, so that no two are
    /// alike.
    fn pretended_ns(described: &Described) -> u64 {
        described.features[ROUGH_CYCLES].powi(3) as u64 + 1
    }

    /// The share of pairs in order.
    fn pairs(estimate: &Adapted, group: &Group) -> f64 {
        let scored: Vec<(f32, f32)> =
            group.features.iter().map(|f| estimate.score(f).unwrap()).zip(group.speeds.iter().copied()).collect();
        let apart = scored.iter().flat_map(|a| scored.iter().map(move |b| (a, b))).filter(|(a, b)| a.1 > b.1);
        let right = apart.clone().filter(|(a, b)| a.0 > b.0).count();
        right as f64 / apart.count() as f64
    }

    #[test]
    fn the_estimate_learns_from_what_was_measured() {
        let (space, task) = (Space::standard(), product());
        let mut ranking = Ranking::new(&space, None, 1);
        let described: Vec<Described> =
            ranking.describe(&task, programs(&space, 40)).unwrap().into_iter().flatten().collect();
        assert!(described.len() >= 30 && described.iter().all(|d| d.features.len() == FEATURES));
        assert_eq!(ranking.estimator(&task, &History::default()).unwrap(), None);
        let mut history = History::default();
        for described in &described {
            history.insert(described.trace.clone(), Some(pretended_ns(described)));
        }
        ranking.remember(&task, described.iter().cloned());
        let measured = group(described.iter().map(|d| (d.features.clone(), pretended_ns(d))).collect());
        let learned = ranking.estimator(&task, &history).unwrap().unwrap();
        assert!(pairs(&learned, &measured) > 0.9);
        // taken up again, with nothing but the history
        let again = Ranking::new(&space, None, 1).estimator(&task, &history).unwrap().unwrap();
        assert!(pairs(&again, &measured) > 0.9);
        // what was known before moves towards what was measured, and stays where nothing was
        let options = EstimatorOptions { epochs: 1, trees: 20, ..EstimatorOptions::default() };
        let backwards = Group { speeds: measured.speeds.iter().map(|speed| -speed).collect(), ..measured.clone() };
        let prior = train_estimator(None, &[backwards], &options).unwrap();
        let mut ranking = Ranking::new(&space, Some(prior.clone().into()), 1);
        assert_eq!(ranking.estimator(&task, &History::default()).unwrap(), Some(prior.clone().into()));
        ranking.remember(&task, described.iter().cloned());
        let adapted = ranking.estimator(&task, &history).unwrap().unwrap();
        let (before, after) = (pairs(&prior.into(), &measured), pairs(&adapted, &measured));
        assert!(after > before + 0.2, "{before} {after}");
    }
}
