//! Who says which programs of a pool are measured first.

use std::sync::Arc;

use super::ReplayError;
use crate::language::Language;
use crate::model::{Adapted, Checkpoint, ModelControl};
use crate::propose::{LanguageModel, imagined, learned_order, liked_together, world_of};
use crate::rank::{Described, Ranking, estimator_of};
use crate::record::Pool;
use crate::space::{Space, Trace};
use crate::target::Task;
use crate::tune::Batches;

/// A ranker that can be asked for by its name.
#[derive(Clone, Copy, Debug)]
pub struct RankerKind {
    pub name: &'static str,
    /// One line for people, without a full stop.
    pub about: &'static str,
    how: How,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Chance,
    FirstPass,
    Estimator,
    Learning,
    ValueHead,
    Policy,
    /// With dynamics, or without.
    World(bool),
    Together,
}

/// All rankers, in the order in which help lists them.
pub static RANKERS: &[RankerKind] = &[
    RankerKind { name: "chance", about: "The programs in any order: what is to be expected", how: How::Chance },
    RankerKind {
        name: "first-pass",
        about: "By the first measurement: the noise ceiling, no ranking can be known to be better",
        how: How::FirstPass,
    },
    RankerKind { name: "estimator", about: "By the checkpoint's estimator", how: How::Estimator },
    RankerKind {
        name: "learning",
        about: "By the estimator as lm asks it, which is shown what was measured, batch by batch (slow)",
        how: How::Learning,
    },
    RankerKind {
        name: "world",
        about: "By the checkpoint's world model, which sees decisions and no nests",
        how: How::World(true),
    },
    RankerKind {
        name: "world-end",
        about: "By the world model without dynamics, which sees the set of decisions",
        how: How::World(false),
    },
    RankerKind {
        name: "together",
        about: "By the estimator and the world model, added as lm adds them for the first program",
        how: How::Together,
    },
    RankerKind { name: "value-head", about: "By the transformer's value head (slow)", how: How::ValueHead },
    RankerKind {
        name: "policy",
        about: "By the probability that the transformer gives to a program where it is asked for the best",
        how: How::Policy,
    },
];

impl RankerKind {
    pub fn named(name: &str) -> Option<RankerKind> {
        RANKERS.iter().find(|ranker| ranker.name == name).copied()
    }

    /// Whether it asks a checkpoint.
    pub fn needs_checkpoint(&self) -> bool {
        !matches!(self.how, How::Chance | How::FirstPass)
    }
}

/// A ranker with what it asks.
#[derive(Clone)]
pub struct Ranker {
    /// The kind's, unless it was given another.
    pub name: String,
    how: How,
    checkpoint: Option<Arc<Checkpoint>>,
}

/// As `lm` searches.
const BATCHES: Batches = Batches { least: 3, most: 16 };

impl Ranker {
    /// The checkpoint is asked for only where the kind needs one.
    ///
    /// # Errors
    /// As `checkpoint`.
    pub fn new<E>(kind: RankerKind, checkpoint: impl FnOnce() -> Result<Arc<Checkpoint>, E>) -> Result<Ranker, E> {
        let checkpoint = if kind.needs_checkpoint() { Some(checkpoint()?) } else { None };
        Ok(Ranker { name: kind.name.to_string(), how: kind.how, checkpoint })
    }

    /// The same with a control of its checkpoint; `None` where it asks none, or nothing that the control
    /// changes.
    pub fn controlled(&self, control: ModelControl) -> Option<Ranker> {
        let own = self.checkpoint.as_ref()?;
        let checkpoint = Arc::new(own.controlled(control));
        let is_same = match self.how {
            How::ValueHead | How::Policy => checkpoint.model == own.model,
            How::World(_) => checkpoint.worlds == own.worlds,
            How::Together => checkpoint.worlds == own.worlds && checkpoint.estimators == own.estimators,
            _ => checkpoint.estimators == own.estimators,
        };
        (!is_same).then(|| Ranker { name: control.of(&self.name), how: self.how, checkpoint: Some(checkpoint) })
    }

    /// Under another name: the same with another checkpoint.
    #[must_use]
    pub fn called(self, name: String) -> Ranker {
        Ranker { name, ..self }
    }

    /// Whether it looks at programs' features.
    fn looks(&self) -> bool {
        matches!(self.how, How::Estimator | How::Learning | How::Together)
    }
}

/// A pool as rankers see it: all that they want to know of its programs is found out once.
pub struct Seen<'a> {
    space: &'a Space,
    pool: &'a Pool,
    rankers: &'a [Ranker],
    /// Of each program, where a ranker looks at them.
    described: Vec<Option<Described>>,
    /// By ranker: scores of all programs, the higher, the sooner; none of those that have no score for all.
    scores: Vec<Option<Vec<f32>>>,
}

/// How programs are told to be measured.
pub enum Order {
    /// One as well as another.
    Any,
    /// The first of them.
    First(Vec<usize>),
}

impl<'a> Seen<'a> {
    /// # Errors
    /// [`ReplayError`] where a trace is no program of this space, or the model cannot read it.
    pub fn new(space: &'a Space, pool: &'a Pool, rankers: &'a [Ranker]) -> Result<Seen<'a>, ReplayError> {
        let wrong = |problem: String| ReplayError::Pool { name: pool.name.clone(), problem };
        let mut seen = Seen { space, pool, rankers, described: Vec::new(), scores: Vec::new() };
        let task: &Task = &pool.task;
        let traces = if rankers.iter().any(|ranker| ranker.checkpoint.is_some()) { seen.traces()? } else { Vec::new() };
        if rankers.iter().any(Ranker::looks) {
            let ranking = Ranking::new(space, None, 0);
            seen.described = ranking.describe(task, traces.clone()).map_err(|error| wrong(error.to_string()))?;
            if seen.described.iter().any(Option::is_none) {
                return Err(wrong("a trace is no program of it".into()));
            }
        }
        for ranker in rankers {
            let scores = match (ranker.how, &ranker.checkpoint) {
                (How::Estimator, Some(checkpoint)) => Some(seen.estimates(checkpoint)?),
                (How::World(dynamics), Some(checkpoint)) => Some(seen.imagined(checkpoint, dynamics, &traces)?),
                (How::Together, Some(checkpoint)) => {
                    let opinions = seen.imagined(checkpoint, true, &traces)?;
                    Some(liked_together(&seen.estimates(checkpoint)?, &opinions))
                }
                (How::ValueHead, Some(checkpoint)) => {
                    let model = LanguageModel::new(space, Language::standard(), &checkpoint.model, 0);
                    let model = model.trained_on(&checkpoint.versions);
                    Some(model.judge(task, &traces).map_err(|error| wrong(error.to_string()))?)
                }
                (How::Policy, Some(checkpoint)) => {
                    let model = LanguageModel::new(space, Language::standard(), &checkpoint.model, 0);
                    let model = model.trained_on(&checkpoint.versions);
                    let likelihoods = model.log_likelihoods(task, &traces).map_err(|error| wrong(error.to_string()))?;
                    Some(likelihoods.into_iter().map(|likelihood| likelihood as f32).collect())
                }
                _ => None,
            };
            seen.scores.push(scores);
        }
        Ok(seen)
    }

    /// Of each program, by the estimator of a checkpoint.
    fn estimates(&self, checkpoint: &Checkpoint) -> Result<Vec<f32>, ReplayError> {
        let estimator = estimator_of(&checkpoint.estimators, self.pool.task.target.kind()).cloned().map(Adapted::from);
        let score = |described: &Option<Described>| estimator.as_ref()?.score(&described.as_ref()?.features);
        let scores: Option<Vec<f32>> = self.described.iter().map(score).collect();
        scores.ok_or_else(|| self.wrong("the estimator knows no such machines or features".into()))
    }

    /// The same by a world model.
    fn imagined(&self, checkpoint: &Checkpoint, dynamics: bool, traces: &[Trace]) -> Result<Vec<f32>, ReplayError> {
        let language = Language::standard();
        world_of(&checkpoint.worlds, dynamics)
            .and_then(|world| imagined(world, (self.space, &language), &self.pool.task, traces))
            .map_err(|error| self.wrong(error.to_string()))
    }

    fn wrong(&self, problem: String) -> ReplayError {
        ReplayError::Pool { name: self.pool.name.clone(), problem }
    }

    /// The programs' traces as this space reads them.
    fn traces(&self) -> Result<Vec<Trace>, ReplayError> {
        let Pool { name, task, space, programs, .. } = self.pool;
        let wrong = |problem: String| ReplayError::Pool { name: name.clone(), problem };
        let reader = self.space.reader(task.target.kind(), space).map_err(|error| wrong(error.to_string()))?;
        let upgraded = programs.iter().map(|program| reader.upgrade(task, &program.trace));
        upgraded.collect::<Result<_, _>>().map_err(|error| wrong(error.to_string()))
    }

    /// The first `count` of some of the pool's programs, by a ranker's number.
    ///
    /// # Errors
    /// [`ReplayError`] where the estimate cannot be learned.
    pub fn order(&self, ranker: usize, members: &[usize], count: usize) -> Result<Order, ReplayError> {
        let by = |score: &dyn Fn(usize) -> f64| {
            let mut order = members.to_vec();
            order.sort_by(|a, b| score(*b).total_cmp(&score(*a)));
            order.truncate(count);
            Order::First(order)
        };
        let first_ns = |at: usize| Some(self.pool.programs[at].times.as_ref().ok()?[0]);
        let Ranker { how, checkpoint, .. } = &self.rankers[ranker];
        Ok(match (how, &self.scores[ranker], checkpoint) {
            (How::FirstPass, ..) => by(&|at| first_ns(at).map_or(f64::NEG_INFINITY, |ns| -(ns as f64))),
            (_, Some(scores), _) => by(&|at| f64::from(scores[at])),
            (How::Learning, _, Some(checkpoint)) => {
                let described: Vec<Described> = members.iter().filter_map(|at| self.described[*at].clone()).collect();
                let order = learned_order(
                    (self.space, &self.pool.task),
                    &checkpoint.estimators,
                    &described,
                    &|number| first_ns(members[number]),
                    &|measured| BATCHES.after(measured),
                    count,
                );
                let order = order
                    .map_err(|error| ReplayError::Pool { name: self.pool.name.clone(), problem: error.to_string() })?;
                Order::First(order.into_iter().map(|number| members[number]).collect())
            }
            _ => Order::Any,
        })
    }
}
