//! Evolution: mutations of the fastest programs measured so far, among uniformly drawn ones.
//!
//! What Ansor and MetaSchedule do without their cost models. Before much is measured, the untuned programs are parents, too:
//! one for each answer to the first decision, the algorithm where there are several, after which little of another parent could be kept.

use std::collections::{BTreeMap, BTreeSet};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Candidate, History, Proposal, ProposeError, Proposer};
use crate::nest::Nest;
use crate::space::{Decision, Policy, Reason, Space, Trace, Untuned, Words};
use crate::target::Task;

/// The fastest programs, which become parents.
const PARENTS: usize = 8;
/// The part of candidates that are drawn from the whole space, so that the search does not end in the first valley.
const FRESH: f64 = 0.25;
/// Decisions of a parent that are taken anew, on average.
const MUTATIONS: f64 = 2.0;
/// The part of mutations that go to a neighbour in the list of candidates, which for sizes is one of similar size.
const STEPS: f64 = 0.5;
/// Traces drawn for each one asked for, before a small space is taken to be exhausted.
const DRAWS_PER_CANDIDATE: usize = 30;

/// Mutates what was fast, the same way for the same seed and history.
pub struct Evolution<'a> {
    space: &'a Space,
    rng: ChaCha8Rng,
}

impl<'a> Evolution<'a> {
    pub fn new(space: &'a Space, seed: u64) -> Evolution<'a> {
        Evolution { space, rng: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// The untuned program, then those with other first decisions; dead ends are left out.
    fn untuned(&self, task: &Task) -> Vec<Trace> {
        let mut programs = Vec::new();
        let mut add = |(trace, result): (Trace, Result<Nest, Reason>)| {
            if result.is_ok() && !programs.contains(&trace) {
                programs.push(trace);
            }
        };
        add(self.space.drive(task, &mut Untuned));
        for answer in 0.. {
            let mut first = First { answer, candidates: None };
            add(self.space.drive(task, &mut first));
            if first.candidates.is_none_or(|count| answer + 1 >= count) {
                break;
            }
        }
        programs
    }

    fn child(&mut self, task: &Task, parents: &[Trace]) -> (Trace, Result<Nest, Reason>) {
        let fresh = self.rng.random_bool(FRESH);
        // the fastest most often: the smaller of two draws
        let parent = (!parents.is_empty())
            .then(|| self.rng.random_range(0..parents.len()).min(self.rng.random_range(0..parents.len())))
            .filter(|_| !fresh)
            .map(|at| &parents[at]);
        let rate = match parent {
            None => 1.0,
            Some(parent) => (MUTATIONS / parent.0.len().max(1) as f64).min(0.5),
        };
        let inherited: BTreeMap<&Words, &Words> =
            parent.iter().flat_map(|parent| &parent.0).map(|choice| (&choice.site, &choice.value)).collect();
        self.space.drive(task, &mut Mutation { inherited, rate, rng: &mut self.rng })
    }
}

/// Takes a parent's decisions, but for a few. Where a mutation has made one of them illegal or raised a new question, the untuned answer stands in.
struct Mutation<'a> {
    inherited: BTreeMap<&'a Words, &'a Words>,
    rate: f64,
    rng: &'a mut ChaCha8Rng,
}

impl Policy for Mutation<'_> {
    fn pick(&mut self, decision: &Decision) -> usize {
        let inherited = self.inherited.get(&decision.site);
        let kept = inherited.and_then(|value| decision.candidates.iter().position(|candidate| candidate == *value));
        let count = decision.candidates.len();
        let Some(kept) = kept else {
            return if self.inherited.is_empty() { self.rng.random_range(0..count) } else { decision.default };
        };
        if !self.rng.random_bool(self.rate) {
            return kept;
        }
        if !self.rng.random_bool(STEPS) {
            return self.rng.random_range(0..count);
        }
        if self.rng.random_bool(0.5) { (kept + 1).min(count - 1) } else { kept.saturating_sub(1) }
    }
}

/// Gives one answer to the first decision, the untuned one to all others.
struct First {
    answer: usize,
    /// How many there were, once it was asked.
    candidates: Option<usize>,
}

impl Policy for First {
    fn pick(&mut self, decision: &Decision) -> usize {
        match self.candidates {
            Some(_) => decision.default,
            None => {
                self.candidates = Some(decision.candidates.len());
                self.answer.min(decision.candidates.len() - 1)
            }
        }
    }
}

impl Proposer for Evolution<'_> {
    fn name(&self) -> &str {
        "evolution"
    }

    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        let mut proposal = Proposal::default();
        let mut seen = BTreeSet::new();
        // a run that is taken up again would draw what it has drawn before, and take the space to be exhausted
        self.rng.set_stream(history.len() as u64);
        let mut parents = history.fastest(PARENTS);
        if parents.len() < PARENTS {
            let untuned = self.untuned(task);
            for trace in untuned.iter().filter(|trace| !history.contains(trace)).take(count) {
                proposal.drawn += 1;
                seen.insert(trace.clone());
                proposal.candidates.push(Candidate { trace: trace.clone(), log_likelihood: None, value: None });
            }
            parents.extend(untuned);
        }
        for _ in 0..count * DRAWS_PER_CANDIDATE {
            if proposal.candidates.len() == count {
                break;
            }
            let (trace, result) = self.child(task, &parents);
            proposal.drawn += 1;
            match result {
                Err(_) => proposal.dead_ends += 1,
                Ok(_) if history.contains(&trace) || !seen.insert(trace.clone()) => {}
                Ok(_) => proposal.candidates.push(Candidate { trace, log_likelihood: None, value: None }),
            }
        }
        Ok(proposal)
    }
}

#[cfg(test)]
mod tests {
    use super::{Evolution, History, Proposer, Untuned};
    use crate::space::{Next, Space};
    use crate::target::{Architecture, Target, Task};

    fn task() -> Task {
        let target = Target {
            architecture: Architecture::X86_64,
            cpu: "cascadelake".into(),
            features: vec!["+avx512f".into()],
            vector_bits: 512,
            vector_registers: 32,
            cores: 2,
            l1_bytes: 32 << 10,
            l2_bytes: 1 << 20,
            l3_bytes: 32 << 20,
        };
        let workload = "const t0 60 50\ninput t1 37 60\nout t2 37 50 sum 60 mul t0 c b t1 a c\n";
        Task { workload: workload.parse().unwrap(), target }
    }

    #[test]
    fn children_are_legal_new_and_mostly_like_their_parents() {
        let (space, task) = (Space::standard(), task());
        let (parent, _) = space.drive(&task, &mut Untuned);
        let mut history = History::default();
        history.insert(parent.clone(), Some(5));
        let proposal = Evolution::new(&space, 1).propose(&task, &history, 40).unwrap();
        let parents = Evolution::new(&space, 1).untuned(&task);
        assert_eq!(parents[0], parent);
        assert!(parents[1..].iter().all(|other| proposal.candidates.iter().any(|c| c.trace == *other)));
        assert_eq!(proposal, Evolution::new(&space, 1).propose(&task, &history, 40).unwrap());
        assert_eq!(proposal.candidates.len(), 40);
        let mut alike = 0;
        for candidate in &proposal.candidates {
            assert!(matches!(space.next(&task, &candidate.trace), Ok(Next::Done(_))));
            assert!(!history.contains(&candidate.trace));
            let kept = |parent: &crate::space::Trace| {
                candidate.trace.0.iter().filter(|choice| parent.0.contains(choice)).count()
            };
            alike += usize::from(parents.iter().any(|parent| 2 * kept(parent) > parent.0.len()));
        }
        assert!((20..40).contains(&alike), "{alike}");
    }
}
