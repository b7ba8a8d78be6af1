//! Uniform sampling: every candidate of every decision is equally likely.

use std::collections::BTreeSet;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Candidate, History, Make, Method, Proposal, ProposeError, Proposer, Purpose};
use crate::space::{Decision, Policy, Space};
use crate::target::Task;

pub(super) const METHOD: Method = Method {
    name: "random",
    about: "Draws programs: every candidate of every decision is equally likely",
    learns: false,
    purpose: Purpose::Search,
    make: Make::Plain(|space, seed| Ok(Box::new(Random::new(space, seed)))),
};

/// Traces drawn for each one asked for, before a small space is taken to be exhausted.
const DRAWS_PER_CANDIDATE: usize = 30;

/// Draws traces at random, the same ones for the same seed and history.
pub struct Random<'a> {
    space: &'a Space,
    rng: ChaCha8Rng,
}

impl<'a> Random<'a> {
    pub fn new(space: &'a Space, seed: u64) -> Random<'a> {
        Random { space, rng: ChaCha8Rng::seed_from_u64(seed) }
    }
}

/// Takes every candidate with the same probability.
pub(super) struct Uniform<'a>(pub(super) &'a mut ChaCha8Rng);

impl Policy for Uniform<'_> {
    fn pick(&mut self, decision: &Decision) -> usize {
        self.0.random_range(0..decision.candidates.len())
    }
}

impl Proposer for Random<'_> {
    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        let mut proposal = Proposal::default();
        let mut seen = BTreeSet::new();
        // a run that is taken up again would draw what it has drawn before, and take the space to be
        // exhausted
        self.rng.set_stream(history.len() as u64);
        for _ in 0..count * DRAWS_PER_CANDIDATE {
            if proposal.candidates.len() == count {
                break;
            }
            let (trace, result) = self.space.drive(task, &mut Uniform(&mut self.rng));
            proposal.drawn += 1;
            match super::usable(&trace, result) {
                None => proposal.dead_ends += 1,
                Some(_) if history.contains(&trace) || !seen.insert(trace.clone()) => {}
                Some(_) => proposal.candidates.push(Candidate::new(trace)),
            }
        }
        Ok(proposal)
    }
}

#[cfg(test)]
mod tests {
    use super::{History, Proposer, Random};
    use crate::space::Space;
    use crate::target::{Architecture, Cpu, Task};

    #[test]
    fn a_run_that_is_taken_up_again_finds_new_programs() {
        let target = Cpu {
            architecture: Architecture::X86_64,
            cpu: "generic".into(),
            features: Vec::new(),
            vector_bits: 512,
            vector_registers: 32,
            cores: 2,
            l1_bytes: 32 << 10,
            l2_bytes: 1 << 20,
            l3_bytes: 0,
        };
        let workload = "const t0 60 50\ninput t1 37 60\nout t2 37 50 sum 60 mul t0 c b t1 a c\n";
        let task = Task { workload: workload.parse().unwrap(), target: target.into() };
        let (space, mut history) = (Space::standard(), History::default());
        let mut random = Random::new(&space, 3);
        // more than one proposal draws
        for _ in 0..40 {
            for candidate in random.propose(&task, &history, 16).unwrap().candidates {
                history.insert(candidate.trace, Some(1));
            }
        }
        assert_eq!(history.len(), 40 * 16);
        let again = || Random::new(&space, 3).propose(&task, &history, 16).unwrap();
        assert_eq!(again().candidates.len(), 16);
        assert_eq!(again(), again());
    }
}
