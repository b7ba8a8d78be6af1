//! Chains of mutations, accepted by an annealed criterion.
//!
//! J. Shao et al., *Tensor Program Optimization with Probabilistic Programs*, NeurIPS 2022 (MetaSchedule).
//! Traces are the state: a mutator takes one decision of a trace anew, the trace is replayed, and the new one
//! is accepted as N. Metropolis et al. do (J. Chem. Phys. 1953), at a temperature that falls along the chain,
//! by what boosted trees say of the two. The best of all that the chains came by are measured, and a few that
//! are drawn; the trees are trained anew with every batch.

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::boosted::{Boosted, LOOKS, Scored};
use super::mutation::children;
use super::replay::{Answers, mutated};
use super::{History, Make, Method, Proposal, ProposeError, Proposer, Purpose};
use crate::space::Space;
use crate::target::Task;

pub(super) const METHOD: Method = Method {
    name: "metaschedule",
    about: "Chains of mutated traces with annealed acceptance, ranked by boosted trees",
    learns: true,
    purpose: Purpose::Search,
    make: Make::Plain(|space, seed| Ok(Box::new(Chains::new(space, seed)))),
};

/// Chains that go on side by side, and the share of them that begin at the fastest programs known, at most.
const CHAINS: usize = 64;
const KNOWN: f64 = 0.5;
/// Temperatures at the beginning and at the end of a chain, in the trees' unit: speed relative to the best.
const TEMPERATURES: [f32; 2] = [0.2, 0.01];
/// The share of what is measured that is drawn.
const EXPLORED: f64 = 0.05;
/// Rounds of chains before a small space is taken to be exhausted.
const ROUNDS: usize = 3;

/// Walks, the same way for the same seed and history.
struct Chains<'a> {
    boosted: Boosted<'a>,
    rng: ChaCha8Rng,
}

impl<'a> Chains<'a> {
    fn new(space: &'a Space, seed: u64) -> Chains<'a> {
        Chains { boosted: Boosted::new(space, seed), rng: ChaCha8Rng::seed_from_u64(seed) }
    }
}

/// Whether a step from one score to another is taken.
fn is_accepted(from: f32, to: f32, temperature: f32, rng: &mut ChaCha8Rng) -> bool {
    to >= from || rng.random_range(0.0..1.0f32) < ((to - from) / temperature).exp()
}

impl Proposer for Chains<'_> {
    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        self.rng.set_stream(history.len() as u64);
        let (space, rng) = (self.boosted.space, &mut self.rng);
        let mut pool = self.boosted.pool(task, history)?;
        let steps = (LOOKS * count / CHAINS).max(1);
        for _ in 0..ROUNDS {
            if pool.programs.len() >= count {
                break;
            }
            let known = history.fastest((KNOWN * CHAINS as f64) as usize);
            let mut chains: Vec<Scored> =
                pool.look(known.iter().map(Answers::of).collect()).into_iter().flatten().collect();
            let seeds = (chains.len()..CHAINS).map(|_| rng.next_u64()).collect();
            chains.extend(pool.join(children(space, task, &[], seeds)).into_iter().flatten());
            for step in 1..steps {
                let done = step as f32 / steps as f32;
                let temperature = TEMPERATURES[0] * (TEMPERATURES[1] / TEMPERATURES[0]).powf(done);
                let mut mutate = |chain: &Scored| {
                    let trace = &chain.described.trace;
                    mutated(space, task, trace, rng).unwrap_or_else(|| Answers::of(trace))
                };
                let mutations = chains.iter().map(&mut mutate).collect();
                for (chain, mutation) in chains.iter_mut().zip(pool.look(mutations)) {
                    let accepted = mutation.filter(|new| is_accepted(chain.score, new.score, temperature, rng));
                    if let Some(new) = accepted {
                        *chain = new;
                    }
                }
            }
        }
        let chosen = pool.choose(count, EXPLORED, rng);
        Ok(self.boosted.propose(task, pool, chosen))
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::{Chains, is_accepted};
    use crate::propose::example::beats_chance;
    use crate::space::Space;

    #[test]
    fn the_colder_the_fewer_steps_back() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut back = |temperature| (0..1000).filter(|_| is_accepted(0.8, 0.7, temperature, &mut rng)).count();
        let (hot, cold) = (back(0.2), back(0.02));
        assert!((550..660).contains(&hot) && cold < 20, "{hot} {cold}");
        assert!(is_accepted(0.5, 0.5, 0.01, &mut rng));
    }

    #[test]
    fn it_is_better_than_chance() {
        let space = Space::standard();
        beats_chance(&mut Chains::new(&space, 1));
    }
}
