//! Uniform sampling: every candidate of every decision is equally likely.

use std::collections::BTreeSet;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Candidate, History, Proposal, ProposeError, Proposer};
use crate::space::{Decision, Policy, Space};
use crate::target::Task;

/// Traces drawn for each one asked for, before a small space is taken to be exhausted.
const DRAWS_PER_CANDIDATE: usize = 30;

/// Draws traces at random, the same ones for the same seed.
pub struct Random<'a> {
    space: &'a Space,
    rng: ChaCha8Rng,
}

impl<'a> Random<'a> {
    pub fn new(space: &'a Space, seed: u64) -> Random<'a> {
        Random { space, rng: ChaCha8Rng::seed_from_u64(seed) }
    }
}

struct Uniform<'a>(&'a mut ChaCha8Rng);

impl Policy for Uniform<'_> {
    fn pick(&mut self, decision: &Decision) -> usize {
        self.0.random_range(0..decision.candidates.len())
    }
}

impl Proposer for Random<'_> {
    fn name(&self) -> &str {
        "random"
    }

    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        let mut proposal = Proposal::default();
        let mut seen = BTreeSet::new();
        for _ in 0..count * DRAWS_PER_CANDIDATE {
            if proposal.candidates.len() == count {
                break;
            }
            let (trace, result) = self.space.drive(task, &mut Uniform(&mut self.rng));
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
