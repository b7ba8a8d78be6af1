//! A task that the worker is ready for: its candidates are compiled, checked and timed here, on whatever
//! machine it is for.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::bench::{Bench, Refusal};
use super::codes::{Code, Codes};
use super::memory::Region;
use super::protocol::{Phase, Reply};
use super::timing::Timing;
use crate::nest::Nest;
use crate::outcome::{Failure, Outcome};
use crate::space::{Next, Space, Trace};
use crate::target::Task;

/// What the worker does for a task, whichever machine it is for.
pub(super) trait Prepared {
    /// Compiles on all cores what will be measured next: measuring wants the whole machine, compiling one
    /// candidate does not. What does not fit the space is left for [`Prepared::measure`] to refuse.
    fn compile_ahead(&mut self, traces: &[String]);

    /// The answer to [`super::protocol::Request::Measure`]; `enter` is told of each phase.
    ///
    /// # Errors
    /// What `enter` says.
    fn measure(
        &mut self,
        trace: &str,
        incumbent_ns: Option<u64>,
        reference: Option<(String, u64)>,
        enter: &mut dyn FnMut(Phase) -> io::Result<()>,
    ) -> io::Result<Reply>;

    /// The answer to [`super::protocol::Request::Finals`].
    fn finals(&mut self, traces: &[String]) -> Reply;

    /// Memory that the next task may have.
    fn into_spare(self: Box<Self>) -> Vec<Region>;

    /// As of [`Bench`].
    fn is_broken(&self) -> Option<&str>;
}

/// A task and its bench.
pub(super) struct Ready<B: Bench> {
    space: Arc<Space>,
    timing: Timing,
    task: Task,
    bench: B,
    /// What candidates run in turn with, and its trace.
    reference: Option<(String, B::Loaded)>,
    /// What was compiled, of this task by its name there.
    codes: Codes<B::Compiled>,
    name: Arc<str>,
}

/// Why a trace leads to no nest.
enum NoNest {
    Refused(String),
    DeadEnd(String),
}

impl<B: Bench> Ready<B> {
    pub(super) fn new(space: Arc<Space>, codes: Codes<B::Compiled>, timing: Timing, task: Task, bench: B) -> Ready<B> {
        let name = format!("{}\n{}", task.target.fingerprint(), task.workload).into();
        Ready { space, timing, task, bench, reference: None, codes, name }
    }

    /// Compiles a trace, unless that was done before.
    fn compiled(&self, trace: &str) -> Result<Code<B::Compiled>, NoNest> {
        if let Some(known) = self.codes.get(&self.name, trace) {
            return Ok(known);
        }
        let code = Arc::new(B::compile(self.bench.machine(), nest_of(&self.space, &self.task, trace)?));
        self.codes.insert(&self.name, trace, &code);
        Ok(code)
    }

    /// Gives what was compiled its buffers.
    fn placed(&mut self, code: &Code<B::Compiled>) -> Result<B::Loaded, Refusal> {
        self.bench.place(code.as_ref().as_ref().map_err(Clone::clone)?)
    }

    /// Places and checks what was compiled.
    fn checked(&mut self, code: &Code<B::Compiled>) -> Result<B::Loaded, Refusal> {
        let mut loaded = self.placed(code)?;
        match self.bench.check(&mut loaded) {
            Ok(()) => Ok(loaded),
            Err(refusal) => {
                self.bench.unload(loaded);
                Err(refusal)
            }
        }
    }

    /// Makes `trace` the reference, if it is not; one that does not pass the gate, for lack of memory, is
    /// done without.
    fn refer_to(&mut self, trace: &str) {
        if self.reference.as_ref().is_some_and(|(current, _)| current == trace) {
            return;
        }
        if let Some((_, loaded)) = self.reference.take() {
            self.bench.unload(loaded);
        }
        if let Ok(code) = self.compiled(trace)
            && let Ok(loaded) = self.checked(&code)
        {
            self.reference = Some((trace.to_string(), loaded));
        }
    }
}

impl<B: Bench> Prepared for Ready<B> {
    fn compile_ahead(&mut self, traces: &[String]) {
        let (space, task, machine, next) = (&*self.space, &self.task, self.bench.machine(), AtomicUsize::new(0));
        let (codes, name) = (&self.codes, &self.name);
        std::thread::scope(|scope| {
            for _ in 0..self.bench.compilers() {
                scope.spawn(|| {
                    while let Some(trace) = traces.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if codes.get(name, trace).is_none()
                            && let Ok(nest) = nest_of(space, task, trace)
                        {
                            codes.insert(name, trace, &Arc::new(B::compile(machine, nest)));
                        }
                    }
                });
            }
        });
    }

    fn measure(
        &mut self,
        trace: &str,
        incumbent_ns: Option<u64>,
        reference: Option<(String, u64)>,
        enter: &mut dyn FnMut(Phase) -> io::Result<()>,
    ) -> io::Result<Reply> {
        if let Some((reference, _)) = &reference {
            self.refer_to(reference);
        }
        enter(Phase::Compile)?;
        let code = match self.compiled(trace) {
            Ok(code) => code,
            Err(NoNest::Refused(detail)) => return Ok(Reply::Refused { detail }),
            Err(NoNest::DeadEnd(reason)) => return Ok(Reply::Measured(Outcome::failed(Failure::DeadEnd, reason))),
        };
        let mut loaded = match self.placed(&code) {
            Ok(loaded) => loaded,
            Err(refusal) => return Ok(Reply::Measured(refusal.into())),
        };
        enter(Phase::Check)?;
        let mut result = self.bench.check(&mut loaded).map(|()| None);
        if result.is_ok() {
            enter(Phase::Time)?;
            result = {
                let in_turn = self.reference.as_mut().map(|(_, loaded)| loaded).zip(reference.map(|(_, ns)| ns));
                self.bench.time(&mut loaded, &self.timing, incumbent_ns, in_turn).map(Some)
            };
        }
        self.bench.unload(loaded);
        Ok(Reply::Measured(match result {
            Ok(Some(outcome)) => outcome,
            Ok(None) => Outcome::failed(Failure::Compile, "checked, but not timed"),
            Err(refusal) => refusal.into(),
        }))
    }

    fn finals(&mut self, traces: &[String]) -> Reply {
        let mut outcomes: Vec<Option<Outcome>> = vec![None; traces.len()];
        let mut finalists: Vec<(usize, B::Loaded)> = Vec::new();
        self.compile_ahead(traces);
        for (at, trace) in traces.iter().enumerate() {
            let checked = match self.compiled(trace) {
                Err(NoNest::Refused(detail)) => return Reply::Refused { detail },
                Err(NoNest::DeadEnd(detail)) => Err(Refusal { cause: Failure::DeadEnd, detail }),
                Ok(code) => self.checked(&code),
            };
            match checked {
                Ok(loaded) => finalists.push((at, loaded)),
                Err(refusal) => outcomes[at] = Some(refusal.into()),
            }
        }
        let (places, mut kernels): (Vec<usize>, Vec<B::Loaded>) = finalists.into_iter().unzip();
        for (at, outcome) in places.into_iter().zip(self.bench.time_in_turn(&mut kernels, &self.timing)) {
            outcomes[at] = Some(outcome);
        }
        kernels.into_iter().for_each(|loaded| self.bench.unload(loaded));
        Reply::Compared(outcomes.into_iter().flatten().collect())
    }

    fn into_spare(mut self: Box<Self>) -> Vec<Region> {
        if let Some((_, loaded)) = self.reference.take() {
            self.bench.unload(loaded);
        }
        self.bench.into_spare()
    }

    fn is_broken(&self) -> Option<&str> {
        self.bench.is_broken()
    }
}

fn nest_of(space: &Space, task: &Task, trace: &str) -> Result<Nest, NoNest> {
    let trace: Trace = trace.parse().map_err(|e| NoNest::Refused(format!("{e}")))?;
    match space.next(task, &trace) {
        Ok(Next::Done(nest)) => Ok(nest),
        Ok(Next::DeadEnd(reason)) => Err(NoNest::DeadEnd(reason.0)),
        Ok(Next::Defect(defect)) => Err(NoNest::Refused(format!("a rule is at fault: {defect}"))),
        Ok(Next::Choose(decision)) => {
            Err(NoNest::Refused(format!("the trace ends where `{}` is asked", decision.site)))
        }
        Err(stale) => Err(NoNest::Refused(stale.to_string())),
    }
}
