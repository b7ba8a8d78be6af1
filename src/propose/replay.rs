//! Decisions of a program taken over into another: site by site, and in the open. What comes out is a trace
//! of its own, whose every decision is legal; nothing that is replayed later is repaired.

use std::collections::BTreeMap;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rayon::iter::{IntoParallelIterator, ParallelIterator};

use crate::nest::Nest;
use crate::rank::{Described, features};
use crate::space::{Decided, Decision, NoProgram, Policy, Space, Tape, Trace, Words};
use crate::target::Task;

/// Answers by site. Where one is not offered, the nearest number is; where nothing is known, the default.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers(BTreeMap<Words, Words>);

impl Answers {
    pub fn of(trace: &Trace) -> Answers {
        Answers(trace.0.iter().map(|choice| (choice.site.clone(), choice.value.clone())).collect())
    }

    /// With another answer to a question.
    #[must_use]
    pub fn with(mut self, site: &Words, value: &Words) -> Answers {
        self.0.insert(site.clone(), value.clone());
        self
    }

    pub fn get(&self, site: &Words) -> Option<&Words> {
        self.0.get(site)
    }

    /// The trace that answers so, without the nest; `None` where nothing follows.
    pub fn trace(mut self, space: &Space, task: &Task) -> Option<Trace> {
        decided(space, task, &mut self).map(|decided| decided.trace)
    }

    /// The program that answers so; `None` where there is none.
    pub fn program(mut self, space: &Space, task: &Task) -> Option<(Trace, Nest)> {
        let (trace, nest): (Trace, Result<Nest, NoProgram>) = space.drive(task, &mut self);
        super::usable(&trace, nest).map(|nest| (trace, nest))
    }
}

/// What a policy decides, without the nest; `None` where nothing follows.
pub(super) fn decided(space: &Space, task: &Task, policy: &mut dyn Policy) -> Option<Decided> {
    let mut tape = Tape::drive(policy);
    space.schedule(task, &mut tape).ok()?;
    Some(Decided::by(tape))
}

impl Policy for Answers {
    fn pick(&mut self, decision: &Decision) -> usize {
        let Decision { candidates, default, .. } = decision;
        let Some(wanted) = self.get(&decision.site) else { return *default };
        let same = candidates.iter().position(|candidate| candidate == wanted);
        same.or_else(|| nearest(candidates, wanted.as_number()?)).unwrap_or(*default)
    }
}

/// The number that differs least from another by its ratio.
pub(super) fn nearest(candidates: &[Words], wanted: u64) -> Option<usize> {
    let apart = |number: u64| ((number.max(1) as f64) / (wanted.max(1) as f64)).ln().abs();
    let numbers = candidates.iter().enumerate().filter_map(|(at, words)| Some((at, apart(words.as_number()?))));
    numbers.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
}

/// What programs look like, which answer so; dead ends are left out.
pub(super) fn described(space: &Space, task: &Task, all: Vec<Answers>) -> Vec<Option<Described>> {
    let look = |answers: Answers| {
        let (trace, nest) = answers.program(space, task)?;
        Some(Described { features: features(task, &nest), trace })
    };
    all.into_par_iter().map(look).collect()
}

/// A decision of a program, and another answer to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub site: Words,
    pub value: Words,
    /// How far it is from the present answer in the list of candidates; between names, it is always one.
    pub distance: usize,
    /// Whether it goes up the list.
    pub up: bool,
}

/// The other answers to the decisions of a finished trace, up to a distance; one that says nothing of the
/// order of its candidates (names do not) has them all at a distance of one.
pub(super) fn steps(space: &Space, task: &Task, trace: &Trace, most: usize) -> Vec<Step> {
    let decisions = space.decisions(task, trace).unwrap_or_default();
    let mut steps = Vec::new();
    for (Decision { site, candidates, .. }, choice) in decisions.iter().zip(&trace.0) {
        let Some(present) = candidates.iter().position(|candidate| *candidate == choice.value) else { continue };
        let are_numbers = candidates.iter().all(|candidate| candidate.as_number().is_some());
        for (at, value) in candidates.iter().enumerate().filter(|(at, _)| *at != present) {
            let distance = if are_numbers { at.abs_diff(present) } else { 1 };
            if distance <= most {
                steps.push(Step { site: site.clone(), value: value.clone(), distance, up: at > present });
            }
        }
    }
    steps
}

/// Answers like a trace's, but for a single decision, which is drawn: another candidate, for numbers half of
/// the time one that is next to the present one.
pub(super) fn mutated(space: &Space, task: &Task, trace: &Trace, rng: &mut ChaCha8Rng) -> Option<Answers> {
    let decisions = space.decisions(task, trace)?;
    if decisions.is_empty() {
        return None;
    }
    let at = rng.random_range(0..decisions.len());
    let (decision, present) = (&decisions[at], &trace.0.get(at)?.value);
    let count = decision.candidates.len();
    let now = decision.candidates.iter().position(|candidate| candidate == present)?;
    let is_number = present.as_number().is_some();
    let next = match is_number && rng.random_bool(0.5) {
        true if now == 0 || (now + 1 < count && rng.random_bool(0.5)) => now + 1,
        true => now - 1,
        false => (now + rng.random_range(1..count.max(2))) % count,
    };
    Some(Answers::of(trace).with(&decision.site, decision.candidates.get(next)?))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::{Answers, ChaCha8Rng, mutated, steps};
    use crate::propose::example::product;
    use crate::space::{Space, Trace, Untuned, Words};

    #[test]
    fn what_is_not_offered_is_answered_in_the_open() {
        let (space, task) = (Space::standard(), product());
        let (untuned, _) = space.drive(&task, &mut Untuned);
        assert_eq!(Answers::of(&untuned).trace(&space, &task), Some(untuned.clone()));
        // 1000 is nowhere offered, nor is a name that no rule knows
        let mut foreign = untuned.clone();
        for choice in &mut foreign.0 {
            choice.value = if choice.value.as_number().is_some() { Words::from(1000) } else { "unheard-of".into() };
        }
        let (repaired, _) = Answers::of(&foreign).program(&space, &task).unwrap();
        assert!(space.offers(&task, &repaired));
        let largest = space.decisions(&task, &repaired).unwrap();
        for (decision, choice) in largest.iter().zip(&repaired.0) {
            match choice.value.as_number() {
                Some(number) => assert!(decision.candidates.iter().all(|c| c.as_number() <= Some(number))),
                None => assert_eq!(decision.candidates[decision.default], choice.value),
            }
        }
        assert_eq!(Answers::of(&Trace::default()).trace(&space, &task), Some(untuned));
    }

    #[test]
    fn a_step_changes_one_decision() {
        let (space, task) = (Space::standard(), product());
        let (untuned, _) = space.drive(&task, &mut Untuned);
        let near = steps(&space, &task, &untuned, 1);
        assert!(near.len() > untuned.0.len() / 2 && near.len() < steps(&space, &task, &untuned, 2).len());
        for step in near {
            let now = Answers::of(&untuned).get(&step.site).cloned().unwrap();
            assert!(now != step.value && step.distance == 1);
            if let Some((now, then)) = now.as_number().zip(step.value.as_number()) {
                assert_eq!(then > now, step.up);
            }
            let trace = Answers::of(&untuned).with(&step.site, &step.value).trace(&space, &task);
            assert!(trace.is_none_or(|trace| trace != untuned && space.offers(&task, &trace)));
        }
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for _ in 0..40 {
            let child = mutated(&space, &task, &untuned, &mut rng).unwrap().trace(&space, &task);
            assert!(child.is_none_or(|child| child != untuned));
        }
    }
}
