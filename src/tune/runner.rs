//! Who measures what a search proposes: this machine, or a fleet.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use thiserror::Error;

use crate::fleet::{FleetError, News, Origin, Session};
use crate::measure::{Batch, MeasureError, Measurer, Running};
use crate::outcome::Outcome;
use crate::record::Record;
use crate::space::Trace;
use crate::target::{Target, Task};

/// Names a batch for the runner that took it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BatchId(pub i64);

/// What a runner says of what it was given.
#[derive(Debug)]
pub enum Answer {
    /// What became of a program, by its number in the batch.
    Measured { batch: BatchId, number: usize, outcome: Outcome },
    /// The batch is done.
    Done { batch: BatchId },
    /// Nothing, or nothing more, of the batch can be measured.
    Failed { batch: BatchId, error: RunnerError },
    /// Nothing yet.
    Waiting,
}

/// Why a batch cannot be measured, or a runner not go on.
#[derive(Debug, Error)]
pub enum RunnerError {
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// The fleet has given the batch up, and says why.
    #[error("the fleet has given up plan {plan}: {cause}")]
    Parked { plan: i64, cause: String },
    #[error(transparent)]
    Fleet(#[from] FleetError),
}

/// Measures batches, several at a time if it can.
pub trait Runner {
    /// How many batches it wants to have at a time.
    fn width(&self) -> usize;

    /// Whether batches travel: the fewer and the larger, the better.
    fn is_far(&self) -> bool {
        false
    }

    /// Takes a batch. `origin` says who wrote it.
    ///
    /// # Errors
    /// [`RunnerError`] where it takes nothing more.
    fn submit(&mut self, batch: Batch, origin: Origin<'_>) -> Result<BatchId, RunnerError>;

    /// An answer; one that is not there yet may be waited for, though not for ever.
    ///
    /// # Errors
    /// [`RunnerError`] where there will be none.
    fn wait(&mut self, may_wait: bool) -> Result<Answer, RunnerError>;

    /// Nobody waits for the batches any more.
    fn withdraw(&mut self);

    /// Batches of a task that an earlier run of the same command gave it, and that it will answer for.
    ///
    /// # Errors
    /// As [`Runner::submit`].
    fn resume(&mut self, _task: &Task, _origin: Origin<'_>) -> Result<Vec<(BatchId, Vec<Trace>)>, RunnerError> {
        Ok(Vec::new())
    }

    /// What is known of a task beside what this machine keeps.
    ///
    /// # Errors
    /// As [`Runner::submit`].
    fn known(&mut self, _task: &Task) -> Result<Vec<Record>, RunnerError> {
        Ok(Vec::new())
    }
}

/// This machine: one program at a time, in the order in which they come. What it measures next is compiled
/// while the search writes what comes after that.
pub struct Local<'a> {
    measurer: &'a mut Measurer,
    batches: VecDeque<(BatchId, Running)>,
    given: i64,
}

impl<'a> Local<'a> {
    pub fn new(measurer: &'a mut Measurer) -> Local<'a> {
        Local { measurer, batches: VecDeque::new(), given: 0 }
    }
}

impl Runner for Local<'_> {
    fn width(&self) -> usize {
        2
    }

    fn submit(&mut self, batch: Batch, _: Origin<'_>) -> Result<BatchId, RunnerError> {
        self.given += 1;
        let id = BatchId(self.given);
        let running = Running::new(batch);
        if self.batches.is_empty() {
            running.begin(self.measurer);
        }
        self.batches.push_back((id, running));
        Ok(id)
    }

    fn wait(&mut self, may_wait: bool) -> Result<Answer, RunnerError> {
        let first = self.batches.front_mut().filter(|_| may_wait);
        let Some((id, running)) = first else { return Ok(Answer::Waiting) };
        let batch = *id;
        let answer = match running.step(self.measurer) {
            Ok(Some((number, outcome))) => return Ok(Answer::Measured { batch, number, outcome }),
            Ok(None) => Answer::Done { batch },
            Err(error) => Answer::Failed { batch, error: error.into() },
        };
        self.batches.pop_front();
        if let Some((_, next)) = self.batches.front() {
            next.begin(self.measurer);
        }
        Ok(answer)
    }

    fn withdraw(&mut self) {
        self.batches.clear();
    }
}

/// A fleet's workers.
pub struct Fleet {
    session: Session,
    /// Fingerprints of the targets that batches are for.
    targets: Vec<String>,
    /// So many batches at a time; `None`: two for each worker that is there, so that none waits for the next.
    width: Option<usize>,
    /// Plans that somebody waits for.
    open: BTreeSet<i64>,
}

/// Batches in flight where their number follows from that of the workers.
const FLIGHT: [usize; 2] = [2, 128];
/// How long one waits for news before one looks around.
const GLANCE: Duration = Duration::from_millis(200);

impl Fleet {
    /// A search that keeps all workers busy, or one among many, which has a single batch in flight.
    pub fn new(session: Session, targets: &[Target], is_alone: bool) -> Fleet {
        let targets = targets.iter().map(Target::fingerprint).collect();
        Fleet { session, targets, width: (!is_alone).then_some(1), open: BTreeSet::new() }
    }
}

impl Runner for Fleet {
    fn width(&self) -> usize {
        let [least, most] = FLIGHT;
        self.width.unwrap_or_else(|| (2 * self.session.coordinator().workers(&self.targets)).clamp(least, most))
    }

    fn submit(&mut self, batch: Batch, origin: Origin<'_>) -> Result<BatchId, RunnerError> {
        let plan = self.session.submit(&batch, origin)?;
        self.open.insert(plan);
        Ok(BatchId(plan))
    }

    fn wait(&mut self, may_wait: bool) -> Result<Answer, RunnerError> {
        let Some(news) = self.session.wait(if may_wait { GLANCE } else { Duration::ZERO })? else {
            return Ok(Answer::Waiting);
        };
        let (News::Measured { plan, .. } | News::Done { plan } | News::Parked { plan, .. }) = news;
        let is_last = !matches!(news, News::Measured { .. });
        let is_open = if is_last { self.open.remove(&plan) } else { self.open.contains(&plan) };
        if !is_open {
            return Ok(Answer::Waiting);
        }
        let batch = BatchId(plan);
        Ok(match news {
            News::Measured { number, outcome, .. } => Answer::Measured { batch, number, outcome },
            News::Done { .. } => Answer::Done { batch },
            News::Parked { cause, .. } => Answer::Failed { batch, error: RunnerError::Parked { plan, cause } },
        })
    }

    fn is_far(&self) -> bool {
        true
    }

    fn withdraw(&mut self) {
        self.open.clear();
        if let Err(error) = self.session.withdraw() {
            tracing::warn!("plans that nobody waits for stay in the fleet: {error}");
        }
    }

    fn resume(&mut self, task: &Task, origin: Origin<'_>) -> Result<Vec<(BatchId, Vec<Trace>)>, RunnerError> {
        let adopted = self.session.adopt(task, origin)?;
        self.open.extend(adopted.iter().map(|adopted| adopted.plan));
        Ok(adopted.into_iter().map(|adopted| (BatchId(adopted.plan), adopted.traces)).collect())
    }

    fn known(&mut self, task: &Task) -> Result<Vec<Record>, RunnerError> {
        Ok(self.session.coordinator().known(task)?)
    }
}
