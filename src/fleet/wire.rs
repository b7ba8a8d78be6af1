//! What travels: plans to workers, and what they measured back. Nothing of it is believed before it is
//! checked.

use serde::{Deserialize, Serialize};
use tokio_postgres::Row;

use super::error::FleetError;
use crate::measure::{Batch, Mode};
use crate::outcome::{Failure, Outcome};
use crate::space::{Space, Trace};
use crate::target::{Target, Task};
use crate::workload::Workload;

/// The most programs of a plan.
pub const MAX_PROGRAMS: usize = 4096;
/// The longest text of a workload that a worker reads.
const MAX_WORKLOAD_BYTES: usize = 1 << 20;
/// The longest text of a trace that a worker reads.
const MAX_TRACE_BYTES: usize = 1 << 16;
/// The most of the times of a program that are sent, and the most of a failure's detail.
const MAX_TIMES: usize = 65_536;
const MAX_DETAIL_BYTES: usize = 4096;

/// What became of a program of a plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    /// Of the program in its plan, from 1.
    pub number: i32,
    failure: Option<Failure>,
    pub detail: String,
    pub times_ns: Vec<u64>,
    compile_us: u64,
}

impl Measured {
    pub fn new(number: i32, outcome: Outcome) -> Measured {
        match outcome {
            Outcome::Timed { mut times_ns, compile_us } => {
                times_ns.truncate(MAX_TIMES);
                // a clock may be too coarse for a program
                times_ns.iter_mut().for_each(|ns| *ns = (*ns).max(1));
                Measured { number, failure: None, detail: String::new(), times_ns, compile_us }
            }
            Outcome::Failed { cause, detail } => {
                let mut detail = detail.replace('\0', "");
                detail.truncate(detail.floor_char_boundary(MAX_DETAIL_BYTES));
                Measured { number, failure: Some(cause), detail, times_ns: Vec::new(), compile_us: 0 }
            }
        }
    }
}

/// The right to measure the programs of a plan, for a while.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub id: LeaseId,
    /// Without a word from the worker it is lost after so many seconds.
    pub seconds: u64,
    /// What is left of the plan.
    pub batch: Batch,
    /// Of these programs in the plan, from 1.
    pub numbers: Vec<i32>,
}

/// Names a lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct LeaseId {
    pub plan: i64,
    pub fence: i64,
}

/// An answer to the question for a plan.
pub(super) enum Offer {
    Lease(Box<Lease>),
    /// A plan that makes no sense here, and why.
    Senseless(LeaseId, String),
    /// Nothing waits.
    Nothing,
    /// Nothing is to be taken.
    Draining,
}

impl Offer {
    /// Reads what `fleet.lease` returned to a worker with this target and space. A coordinator can make a
    /// worker compute, and nothing else: what is taken are a task and decisions, both within limits and in
    /// full; the target is the worker's own.
    ///
    /// # Errors
    /// [`FleetError::Nonsense`] where not even the lease can be told.
    pub fn read(row: Option<&Row>, target: &Target, space: &Space) -> Result<Offer, FleetError> {
        let Some(row) = row else { return Ok(Offer::Nothing) };
        let column = |error: tokio_postgres::Error| FleetError::Nonsense(error.to_string());
        if row.try_get::<_, Option<bool>>("is_draining").map_err(column)? == Some(true) {
            return Ok(Offer::Draining);
        }
        let id = LeaseId { plan: row.try_get("plan").map_err(column)?, fence: row.try_get("fence").map_err(column)? };
        let seconds: i32 = row.try_get("seconds").map_err(column)?;
        Ok(match batch(row, target, space) {
            Ok((batch, numbers)) => Offer::Lease(Box::new(Lease {
                id,
                seconds: u64::try_from(seconds).unwrap_or(1).max(1),
                batch,
                numbers,
            })),
            Err(reason) => Offer::Senseless(id, reason),
        })
    }
}

fn batch(row: &Row, target: &Target, space: &Space) -> Result<(Batch, Vec<i32>), String> {
    let text = |name: &str| row.try_get::<_, String>(name).map_err(|error| error.to_string());
    if text("fingerprint")? != target.fingerprint() {
        return Err("it is for another target".into());
    }
    let (found, own) = (text("space")?, space.version(target.kind()));
    if found != own {
        return Err(format!("it is of the search space {found:.200}, and this worker reads {own}"));
    }
    let mode = Mode::from_name(&text("kind")?).ok_or("it is of an unknown kind")?;
    let (hash, workload) = (text("hash")?, text("workload")?);
    if workload.len() > MAX_WORKLOAD_BYTES {
        return Err(format!("its workload has more than {MAX_WORKLOAD_BYTES} bytes"));
    }
    let workload: Workload = workload.parse().map_err(|error| format!("its workload: {error}"))?;
    if workload.hash() != hash {
        return Err("its workload has another hash".into());
    }
    let task = Task { workload, target: target.clone() };
    let texts: Vec<String> = row.try_get("traces").map_err(|error| error.to_string())?;
    if texts.len() > MAX_PROGRAMS {
        return Err(format!("it has more than {MAX_PROGRAMS} programs"));
    }
    let mut numbers: Vec<i32> = row.try_get("numbers").map_err(|error| error.to_string())?;
    if mode == Mode::Finals {
        // they are told apart only together
        numbers = (1..).take(texts.len()).collect();
    }
    let mut traces = Vec::with_capacity(numbers.len());
    for number in &numbers {
        let text = usize::try_from(*number - 1).ok().and_then(|at| texts.get(at)).ok_or("it has no such program")?;
        traces.push(trace(text).map_err(|reason| format!("its program {number}: {reason}"))?);
    }
    let best: Option<String> = row.try_get("best_trace").map_err(|error| error.to_string())?;
    let best_ns: Option<i64> = row.try_get("best_ns").map_err(|error| error.to_string())?;
    let best = best.map(|text| trace(&text)).transpose().map_err(|reason| format!("its fastest program: {reason}"))?;
    let best = best.zip(best_ns.and_then(|ns| u64::try_from(ns).ok()));
    // the child process that measures holds every trace to the space; of the one that all are timed beside it
    // would only say that it cannot be had
    if let Some((trace, _)) = &best
        && !space.offers(&task, trace)
    {
        return Err("its fastest program is none".into());
    }
    Ok((Batch { task, traces, mode, best }, numbers))
}

fn trace(text: &str) -> Result<Trace, String> {
    match text.len() > MAX_TRACE_BYTES {
        true => Err(format!("more than {MAX_TRACE_BYTES} bytes")),
        false => text.parse().map_err(|error| format!("{error}")),
    }
}

/// What a coordinator reads of a program that was measured.
///
/// # Errors
/// [`FleetError::Nonsense`].
pub(super) fn outcome(row: &Row) -> Result<Outcome, FleetError> {
    let nonsense = |error: tokio_postgres::Error| FleetError::Nonsense(error.to_string());
    let failure: Option<String> = row.try_get("failure").map_err(nonsense)?;
    if let Some(name) = failure {
        let cause = Failure::from_name(&name);
        let cause = cause.ok_or_else(|| FleetError::Nonsense(format!("an unknown failure `{name:.80}`")))?;
        return Ok(Outcome::failed(cause, row.try_get::<_, String>("detail").map_err(nonsense)?));
    }
    let unsigned = |value: i64| u64::try_from(value).map_err(|_| FleetError::Nonsense("a negative time".into()));
    let times: Vec<i64> = row.try_get("times_ns").map_err(nonsense)?;
    let times_ns = times.into_iter().map(unsigned).collect::<Result<Vec<u64>, _>>()?;
    if times_ns.is_empty() {
        return Err(FleetError::Nonsense("a timed program without times".into()));
    }
    Ok(Outcome::Timed { times_ns, compile_us: unsigned(row.try_get("compile_us").map_err(nonsense)?)? })
}
