//! Evolution among many: for each program that is measured, 128 are looked at.
//!
//! L. Zheng et al., *Ansor: Generating High-Performance Tensor Programs for Deep Learning*, OSDI 2020. A
//! population of random programs and of the fastest that were measured goes through a few generations of
//! mutations and crosses, parents chosen by what boosted trees say of them, which are trained anew on all
//! measurements with every batch. The best of all are measured, and a few that are drawn.

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::boosted::{Boosted, LOOKS, Scored, crossed, roulette};
use super::mutation::children;
use super::replay::{Answers, mutated};
use super::{History, Make, Method, Proposal, ProposeError, Proposer, Purpose};
use crate::space::Space;
use crate::target::Task;

pub(super) const METHOD: Method = Method {
    name: "ansor",
    about: "Evolution that looks at 128 programs for each one measured, ranked by boosted trees",
    learns: true,
    purpose: Purpose::Search,
    make: Make::Plain(|space, seed| Ok(Box::new(Ansor::new(space, seed)))),
};

/// Generations behind the first population, which is as large as each of them.
const GENERATIONS: usize = 4;
/// The share of a population that are the fastest programs known, at most, and of children with two parents.
const KNOWN: f64 = 0.2;
const CROSSED: f64 = 0.05;
/// The share of what is measured that is drawn.
const EXPLORED: f64 = 0.05;
/// Populations before a small space is taken to be exhausted.
const ROUNDS: usize = 3;

/// Evolves populations, the same way for the same seed and history.
struct Ansor<'a> {
    boosted: Boosted<'a>,
    rng: ChaCha8Rng,
}

impl<'a> Ansor<'a> {
    fn new(space: &'a Space, seed: u64) -> Ansor<'a> {
        Ansor { boosted: Boosted::new(space, seed), rng: ChaCha8Rng::seed_from_u64(seed) }
    }
}

impl Proposer for Ansor<'_> {
    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        self.rng.set_stream(history.len() as u64);
        let (space, rng) = (self.boosted.space, &mut self.rng);
        let mut pool = self.boosted.pool(task, history)?;
        let size = (LOOKS * count).div_ceil(GENERATIONS + 1);
        for _ in 0..ROUNDS {
            if pool.programs.len() >= count {
                break;
            }
            let known = history.fastest((KNOWN * size as f64) as usize);
            let mut population: Vec<Scored> =
                pool.look(known.iter().map(Answers::of).collect()).into_iter().flatten().collect();
            let seeds = (population.len()..size).map(|_| rng.next_u64()).collect();
            population.extend(pool.join(children(space, task, &[], seeds)).into_iter().flatten());
            let generations = if pool.is_taught() { GENERATIONS } else { 0 };
            for _ in 0..generations {
                let mut bred = Vec::with_capacity(size);
                while bred.len() < size && !population.is_empty() {
                    let Some(parent) = roulette(&population, rng) else { break };
                    bred.push(match roulette(&population, rng).filter(|_| rng.random_bool(CROSSED)) {
                        Some(other) => crossed(parent, other, rng),
                        None => mutated(space, task, parent, rng).unwrap_or_else(|| Answers::of(parent)),
                    });
                }
                let next: Vec<Scored> = pool.look(bred).into_iter().flatten().collect();
                population = if next.is_empty() { population } else { next };
            }
        }
        let chosen = pool.choose(count, EXPLORED, rng);
        Ok(self.boosted.propose(task, pool, chosen))
    }
}

#[cfg(test)]
mod tests {
    use super::Ansor;
    use crate::propose::example::beats_chance;
    use crate::space::Space;

    #[test]
    fn it_is_better_than_chance() {
        let space = Space::standard();
        beats_chance(&mut Ansor::new(&space, 1));
    }
}
