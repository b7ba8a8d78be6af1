//! Ranking finished programs by an estimate of their speed, which learns from what was measured.

use std::collections::{BTreeMap, HashMap};

use rayon::iter::{IntoParallelIterator, IntoParallelRefIterator, ParallelIterator};

use super::{History, ProposeError};
use crate::analysis::features;
use crate::model::{Estimator, EstimatorOptions, Group, ModelError, train_estimator};
use crate::record::Entry;
use crate::space::{Next, Space, Stale, Trace};
use crate::target::Task;

/// Programs measured of a task before the estimate learns from them.
const ENOUGH: usize = 4;
/// The programs measured last that it learns from, beside the fastest.
const REMEMBERED: usize = 256;

/// A program that a proposer thinks of, and what it looks like.
#[derive(Clone, Debug)]
pub struct Described {
    pub trace: Trace,
    pub features: Vec<f32>,
}

/// Scores programs of a task, the higher the faster, by an estimator that is adapted to what was measured of the task.
pub struct Ranking<'a> {
    space: &'a Space,
    /// What was learned from other tasks.
    prior: Option<Estimator>,
    options: EstimatorOptions,
    /// By the task's hash: features of the programs that were proposed.
    proposed: HashMap<String, Vec<Described>>,
}

impl<'a> Ranking<'a> {
    /// With a `prior` the estimate begins with what it knows, and moves a little; without, it begins anew with every batch of measurements.
    pub fn new(space: &'a Space, prior: Option<Estimator>, seed: u64) -> Ranking<'a> {
        let usual = EstimatorOptions { groups: 1, members: 96, seed, ..EstimatorOptions::default() };
        let options = match prior {
            Some(_) => EstimatorOptions { epochs: 15, learning_rate: 5e-4, ..usual },
            None => EstimatorOptions { epochs: 60, ..usual },
        };
        Ranking { space, prior, options, proposed: HashMap::new() }
    }

    /// Realises programs and looks at them; dead ends are `None`.
    ///
    /// # Errors
    /// [`ProposeError::Space`] for a trace that is not of this space.
    pub fn describe(&self, task: &Task, traces: Vec<Trace>) -> Result<Vec<Option<Described>>, ProposeError> {
        let look = |trace: Trace| -> Result<Option<Described>, Stale> {
            Ok(match self.space.next(task, &trace)? {
                Next::Done(nest) => Some(Described { features: features(task, &nest), trace }),
                Next::DeadEnd(_) | Next::Choose(_) => None,
            })
        };
        Ok(traces.into_par_iter().map(look).collect::<Result<_, Stale>>()?)
    }

    /// What is known now, for this task; `None` where nothing is.
    ///
    /// # Errors
    /// As [`Ranking::describe`], and where the estimate cannot be learned.
    pub fn estimator(&mut self, task: &Task, history: &History) -> Result<Option<Estimator>, ProposeError> {
        let hash = task.workload.hash().to_string();
        if !self.proposed.contains_key(&hash) {
            // a run that is taken up again: the fastest are there still
            let fastest = self.describe(task, history.fastest(History::KEPT))?;
            self.proposed.insert(hash.clone(), fastest.into_iter().flatten().collect());
        }
        let known = self.proposed.get(&hash).map_or(&[][..], Vec::as_slice);
        let measured = known.iter().filter_map(|d| Some((d.features.clone(), history.best_ns(&d.trace)?)));
        let group = group(measured.collect());
        if group.speeds.len() < ENOUGH {
            return Ok(self.prior.clone());
        }
        let learned = train_estimator(self.prior.as_ref(), &[group], &self.options).map_err(unusable)?;
        Ok(Some(learned))
    }

    /// Keeps the features of what is going to be measured.
    pub fn remember(&mut self, task: &Task, chosen: impl Iterator<Item = Described>) {
        let known = self.proposed.entry(task.workload.hash().to_string()).or_default();
        known.extend(chosen);
        let surplus = known.len().saturating_sub(REMEMBERED);
        known.drain(..surplus);
    }
}

fn unusable(error: ModelError) -> ProposeError {
    ProposeError::Model(error.to_string())
}

/// Speeds relative to the fastest, from nanoseconds.
fn group(measured: Vec<(Vec<f32>, u64)>) -> Group {
    let best = measured.iter().map(|(_, ns)| *ns).min().unwrap_or(1).max(1);
    let speed = |ns: u64| (best as f32 / ns.max(1) as f32).log2();
    let (features, speeds) = measured.into_iter().map(|(features, ns)| (features, speed(ns))).unzip();
    Group { features, speeds }
}

/// Records as groups to learn an estimate from, by task and target: what was timed, and is a program of this space still.
pub fn estimator_groups(entries: &[Entry], space: &Space) -> Vec<(String, Group)> {
    let version = space.version();
    let timed: Vec<(&Entry, u64)> = entries
        .iter()
        .filter(|entry| entry.record.space == version)
        .filter_map(|entry| Some((entry, entry.record.outcome.best_ns()?)))
        .collect();
    let look = |(entry, ns): &(&Entry, u64)| {
        let Ok(Next::Done(nest)) = space.next(&entry.task, &entry.record.trace) else { return None };
        let key = (entry.record.task_hash.clone(), entry.record.target.clone());
        Some((key, features(&entry.task, &nest), *ns))
    };
    let described: Vec<_> = timed.par_iter().filter_map(look).collect();
    let mut groups: BTreeMap<(String, String), Vec<(Vec<f32>, u64)>> = BTreeMap::new();
    for (key, features, ns) in described {
        groups.entry(key).or_default().push((features, ns));
    }
    groups.into_iter().map(|((task, _), measured)| (task, group(measured))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::{Described, Ranking, estimator_groups, group};
    use crate::analysis::FEATURES;
    use crate::model::Estimator;
    use crate::outcome::{Failure, Outcome};
    use crate::propose::History;
    use crate::propose::example::product;
    use crate::propose::mutation::child;
    use crate::record::{Entry, Record};
    use crate::space::{Space, Trace};

    /// Distinct programs of the product.
    fn programs(space: &Space, count: u64) -> Vec<Trace> {
        let draw = |seed| child(space, &product(), &[], &mut ChaCha8Rng::seed_from_u64(seed)).0;
        let mut traces: Vec<Trace> = (0..2 * count).map(draw).collect();
        traces.sort();
        traces.dedup();
        traces.truncate(count as usize);
        traces
    }

    /// A time that the features tell: what the rough estimate of cycles says, cubed, so that no two are alike.
    fn pretended_ns(described: &Described) -> u64 {
        described.features[FEATURES - 2].powi(3) as u64 + 1
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
        let ordered = learned.evaluate(std::slice::from_ref(&measured));
        assert!(ordered.pairs > 0.9, "{ordered:?}");
        // taken up again, with nothing but the history
        let again = Ranking::new(&space, None, 1).estimator(&task, &history).unwrap().unwrap();
        assert!(again.evaluate(std::slice::from_ref(&measured)).pairs > 0.9);
        // what was known before moves towards what was measured, and stays where nothing was
        let prior = Estimator::random(FEATURES, 2);
        let mut ranking = Ranking::new(&space, Some(prior.clone()), 1);
        assert_eq!(ranking.estimator(&task, &History::default()).unwrap(), Some(prior.clone()));
        ranking.remember(&task, described.iter().cloned());
        let adapted = ranking.estimator(&task, &history).unwrap().unwrap();
        let pairs = |estimator: &Estimator| estimator.evaluate(std::slice::from_ref(&measured)).pairs;
        assert!(pairs(&adapted) > pairs(&prior), "{} {}", pairs(&adapted), pairs(&prior));
    }

    #[test]
    fn records_become_groups() {
        let (space, task) = (Space::standard(), Arc::new(product()));
        let described = Ranking::new(&space, None, 1).describe(&task, programs(&space, 12)).unwrap();
        let legal: Vec<Trace> = described.into_iter().flatten().map(|d| d.trace).take(4).collect();
        let timed = |ns| Outcome::Timed { times_ns: vec![2 * ns, ns], compile_us: 1 };
        let failed = Outcome::Failed { cause: Failure::Timeout, detail: String::new() };
        let outcomes = [timed(100), timed(400), failed, timed(800)];
        let mut entries: Vec<Entry> = legal
            .into_iter()
            .zip(outcomes)
            .map(|(trace, outcome)| {
                let record = Record::new(&task, &space.version(), trace, outcome, "random", 0);
                Entry { task: Arc::clone(&task), record }
            })
            .collect();
        entries[3].record.space = "another".into();
        let groups = estimator_groups(&entries, &space);
        let [(hash, group)] = groups.as_slice() else { panic!("one task: {groups:?}") };
        assert_eq!(*hash, task.workload.hash().to_string());
        assert_eq!((group.speeds.as_slice(), group.features.len()), ([0.0, -2.0].as_slice(), 2));
    }
}
