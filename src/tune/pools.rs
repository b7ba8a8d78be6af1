//! Making pools: samplers draw programs of a task, each distinct one is measured in a first pass, and later,
//! in another order, in a second one. Each pass has a store of its own, from which a run that was stopped
//! goes on.

use std::collections::HashMap;
use std::sync::Arc;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::runner::Runner;
use super::{Batches, Budget, Control, Event, First, Job, Report, Settings, TuneError, tune};
use crate::outcome::Outcome;
use crate::propose::{Candidate, History, Proposal, ProposeError, Proposer, Sampler};
use crate::record::{Draw, Pool, PoolProgram, Record, Store, StoreError, TILESCRIBE_VERSION};
use crate::space::{Space, Trace, Untuned};
use crate::target::Task;

/// How much is drawn of each task.
#[derive(Clone, Copy, Debug)]
pub struct PoolSize {
    /// Of each sampler, from 0 on.
    pub seeds: u32,
    /// With each seed.
    pub samples: u32,
}

/// What was drawn of a task: distinct programs in the order in which they came up, the untuned one first.
#[derive(Clone, PartialEq, Debug)]
pub struct Drawn {
    programs: Vec<(Trace, Vec<Draw>)>,
    untuned: Option<Trace>,
}

/// Which of the two measurements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    First,
    Second,
}

/// Programs are compiled ahead so many at a time.
const BATCHES: Batches = Batches { least: 64, most: 64 };

/// Draws what the samplers like, the same for the same seeds.
///
/// # Errors
/// [`ProposeError`] where a model cannot write programs of this task.
pub fn draw(space: &Space, task: &Task, samplers: &[Sampler<'_>], size: PoolSize) -> Result<Drawn, ProposeError> {
    let (untuned, nest) = space.drive(task, &mut Untuned);
    let untuned = nest.is_ok().then_some(untuned);
    let mut programs: Vec<(Trace, Vec<Draw>)> = untuned.iter().map(|trace| (trace.clone(), Vec::new())).collect();
    let mut places: HashMap<Trace, usize> = untuned.iter().map(|trace| (trace.clone(), 0)).collect();
    for (number, sampler) in samplers.iter().enumerate() {
        for seed in 0..size.seeds {
            let drawn = sampler.draw(task, u64::from(seed), size.samples as usize)?;
            for (at, trace) in (0..).zip(drawn) {
                let Some(trace) = trace else { continue };
                let place = *places.entry(trace.clone()).or_insert(programs.len());
                if place == programs.len() {
                    programs.push((trace, Vec::new()));
                }
                programs[place].1.push(Draw { sampler: number, seed, at });
            }
        }
    }
    Ok(Drawn { programs, untuned })
}

impl Drawn {
    /// Distinct programs.
    pub fn count(&self) -> usize {
        self.programs.len()
    }

    /// Measures what the pass's store does not hold of it yet.
    ///
    /// # Errors
    /// As [`tune`].
    pub fn measure(
        &self,
        space: &Space,
        job: &Job,
        pass: Pass,
        runner: &mut dyn Runner,
        store: &mut Store,
        watch: &mut dyn FnMut(&Event<'_>) -> Control,
    ) -> Result<Report, TuneError> {
        let mut traces: Vec<&Trace> = self.programs.iter().map(|(trace, _)| trace).collect();
        if pass == Pass::Second {
            // what disturbed neighbours of the first pass does not disturb them both again
            traces.shuffle(&mut ChaCha8Rng::seed_from_u64(0));
        }
        let (budget, first) = (Budget::default(), First::Untuned);
        let settings = Settings {
            budget,
            batches: BATCHES,
            first,
            finalists: 0,
            lighter: 0,
            hands_on: false,
            method: PROPOSER.into(),
            seed: 0,
        };
        let jobs = std::slice::from_ref(job);
        tune(space, jobs, &mut Listed(traces), runner, Some(store), &settings, watch)
    }

    /// The pool, if both passes are done with all of it.
    ///
    /// # Errors
    /// Where a store cannot be read.
    pub fn pool(
        self,
        space: &Space,
        job: &Job,
        (samplers, size, checkpoint): (&[Sampler<'_>], PoolSize, &str),
        passes: [&Store; 2],
    ) -> Result<Option<Pool>, StoreError> {
        let records = |store: &Store| -> Result<HashMap<Trace, Record>, StoreError> {
            let records = store.readable(&job.task, space)?.records;
            Ok(records.into_iter().map(|record| (record.trace.clone(), record)).collect())
        };
        let [first, second] = [records(passes[0])?, records(passes[1])?];
        let (mut programs, mut created_unix_s) = (Vec::new(), u64::MAX);
        for (trace, draws) in self.programs {
            let (Some(one), Some(other)) = (first.get(&trace), second.get(&trace)) else { return Ok(None) };
            created_unix_s = created_unix_s.min(one.created_unix_s);
            let times = match (settled(&one.outcome), settled(&other.outcome)) {
                (Ok(one), Ok(other)) => Ok([one, other]),
                (Err(failure), _) | (_, Err(failure)) => Err(failure),
            };
            programs.push(PoolProgram { untuned: self.untuned.as_ref() == Some(&trace), trace, draws, times });
        }
        Ok((!programs.is_empty()).then(|| Pool {
            name: job.name.clone(),
            task: Arc::new(job.task.clone()),
            space: space.version(job.task.target.kind()),
            samplers: samplers.iter().map(|sampler| sampler.name.to_string()).collect(),
            seeds: size.seeds,
            samples: size.samples,
            programs,
            checkpoint: checkpoint.to_string(),
            created_unix_s,
            tilescribe: TILESCRIBE_VERSION.to_string(),
        }))
    }
}

/// Who the stores say has written the programs.
const PROPOSER: &str = "pools";

/// The time of a program, or why it has none.
fn settled(outcome: &Outcome) -> Result<u64, (crate::outcome::Failure, String)> {
    match outcome {
        Outcome::Failed { cause, detail } => Err((*cause, detail.clone())),
        Outcome::Timed { .. } => Ok(outcome.settled_ns().unwrap_or(0).max(1)),
    }
}

/// Proposes what it holds, in its order.
struct Listed<'a>(Vec<&'a Trace>);

impl Proposer for Listed<'_> {
    fn propose(&mut self, _: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        let left = self.0.iter().filter(|trace| !history.contains(trace)).take(count);
        let candidates = left.map(|trace| Candidate::new((*trace).clone())).collect();
        Ok(Proposal { candidates, ..Proposal::default() })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{PoolSize, draw};
    use crate::language::{Language, tokenizer_json};
    use crate::model::{Checkpoint, Config, Estimator, Model, Worlds};
    use crate::propose::example::product;
    use crate::propose::{SAMPLERS, Sampler, versions};
    use crate::rank::FEATURES;
    use crate::space::{Space, Untuned};

    #[test]
    fn all_that_samplers_draw_is_there_once_with_all_its_places() {
        let (space, task, language) = (Space::standard(), product(), Language::standard());
        let config = Config::standard(language.vocabulary().len());
        let checkpoint = std::sync::Arc::new(Checkpoint {
            model: Model::random(Config { layers: 1, width: 32, feed_forward: 32, ..config }, 1).unwrap(),
            estimators: Estimator::random(FEATURES, 9).into(),
            worlds: Worlds::default(),
            versions: versions(&language, &space),
            tokenizer: tokenizer_json(&language),
            card: String::new(),
        });
        let samplers: Vec<Sampler<'_>> = SAMPLERS.iter().map(|kind| Sampler::new(*kind, &space, &checkpoint)).collect();
        let size = PoolSize { seeds: 2, samples: 20 };
        let drawn = draw(&space, &task, &samplers, size).unwrap();
        assert_eq!(drawn, draw(&space, &task, &samplers, size).unwrap());
        let (untuned, _) = space.drive(&task, &mut Untuned);
        assert_eq!(drawn.programs[0].0, untuned);
        let distinct: BTreeSet<_> = drawn.programs.iter().map(|(trace, _)| trace).collect();
        assert_eq!(distinct.len(), drawn.count());
        assert!(drawn.programs.iter().all(|(trace, _)| space.offers(&task, trace)));
        let draws: Vec<_> = drawn.programs.iter().flat_map(|(_, draws)| draws.iter().copied()).collect();
        let places: BTreeSet<_> = draws.iter().copied().collect();
        assert_eq!(places.len(), draws.len(), "a draw is one program");
        for (number, sampler) in samplers.iter().enumerate() {
            let found = |seed| draws.iter().filter(|draw| draw.sampler == number && draw.seed == seed).count();
            let direct = sampler.draw(&task, 1, 20).unwrap();
            assert_eq!(found(1), direct.iter().flatten().count(), "{}", sampler.name);
            assert!(found(0) >= 10 && found(0) <= 20, "{}: {}", sampler.name, found(0));
            assert_ne!(direct, sampler.draw(&task, 0, 20).unwrap(), "{}", sampler.name);
            // draws of a seed are the first of more with it
            assert_eq!(direct[..5], sampler.draw(&task, 1, 5).unwrap()[..], "{}", sampler.name);
        }
    }
}
