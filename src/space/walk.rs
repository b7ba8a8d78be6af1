//! Questions of one program after the other: what rules have decided is not decided again for each of them.

use super::{Choice, Decision, Machine, Reason, Space, Stale, Stop, Tape, Trace, View};
use crate::target::{Cpu, Gpu, Target, Task};

/// A program whose decisions are taken one by one.
pub struct Walk<'a> {
    space: &'a Space,
    task: &'a Task,
    trace: Trace,
    place: Place<'a>,
}

enum Place<'a> {
    Cpu(Standing<'a, Cpu>),
    Gpu(Standing<'a, Gpu>),
}

/// How far the rules of a machine have come.
struct Standing<'a, M> {
    view: View<'a, M>,
    /// The number of the rule that decides next.
    rule: usize,
    /// Decisions of the rules before it.
    decided: usize,
}

impl<'a> Walk<'a> {
    /// Before the first decision.
    pub fn new(space: &'a Space, task: &'a Task) -> Walk<'a> {
        let (workload, exact) = (&task.workload, space.exact);
        let place = match &task.target {
            Target::Cpu(machine) => Place::Cpu(Standing::new(View::new(workload, machine, exact))),
            Target::Gpu(machine) => Place::Gpu(Standing::new(View::new(workload, machine, exact))),
        };
        Walk { space, task, trace: Trace::default(), place }
    }

    /// What was decided so far.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// The same, in the end.
    pub fn into_trace(self) -> Trace {
        self.trace
    }

    /// Takes a decision. Whether it is one that is asked for shows with the next question.
    pub fn take(&mut self, choice: Choice) {
        self.trace.0.push(choice);
    }

    /// What is asked next; `None` where everything is decided.
    ///
    /// # Errors
    /// As [`Space::next`]; a dead end is the inner error.
    pub fn question(&mut self) -> Result<Result<Option<Decision>, Reason>, Stale> {
        let Walk { space, task, trace, place } = self;
        let asked = match place {
            Place::Cpu(standing) => standing.advance(space, &space.cpu, task, trace),
            Place::Gpu(_) if !task.workload.is_fixed() => return Ok(Err(super::no_open_extents())),
            Place::Gpu(standing) => standing.advance(space, &space.gpu, task, trace),
        };
        match asked {
            Ok(()) => Ok(Ok(None)),
            Err(Stop::Choose(decision)) => Ok(Ok(Some(decision))),
            Err(Stop::DeadEnd(reason)) => Ok(Err(reason)),
            Err(Stop::Stale(stale)) => Err(stale),
        }
    }
}

impl<'a, M> Standing<'a, M> {
    fn new(view: View<'a, M>) -> Standing<'a, M> {
        Standing { view, rule: 0, decided: 0 }
    }

    /// Lets rules decide until the trace runs out, from the one on that has not decided yet.
    fn advance(&mut self, space: &Space, machine: &Machine<M>, task: &Task, trace: &Trace) -> Result<(), Stop> {
        let mut tape = Tape::replay_behind(trace, self.decided);
        space.restrict(task, &mut tape);
        while self.rule < machine.rules.len() {
            machine.decide_one(self.rule, &mut self.view, &mut tape, &mut |_, _, _| {})?;
            (self.rule, self.decided) = (self.rule + 1, tape.taken().len());
        }
        tape.finish().map_err(Stop::Stale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::propose::example::product;
    use crate::space::{Next, Untuned};

    #[test]
    fn a_walk_asks_what_the_space_asks() {
        let (space, task) = (Space::standard(), product());
        let (untuned, _) = space.drive(&task, &mut Untuned);
        let mut walk = Walk::new(&space, &task);
        for choice in &untuned.0 {
            let Ok(Next::Choose(expected)) = space.next(&task, walk.trace()) else { panic!("more is asked") };
            assert_eq!(walk.question(), Ok(Ok(Some(expected.clone()))));
            assert_eq!(walk.question(), Ok(Ok(Some(expected))), "asking changes nothing");
            walk.take(choice.clone());
        }
        assert_eq!(walk.question(), Ok(Ok(None)));
        walk.take(untuned.0[0].clone());
        assert!(matches!(walk.question(), Err(Stale::LeftOver { left: 1, .. })));
        let mut walk = Walk::new(&space, &task);
        walk.take(Choice { site: "nowhere".into(), value: 1.into() });
        assert!(matches!(walk.question(), Err(Stale::Site { at: 0, .. })));
    }
}
