//! Coordinate descent from the untuned program.
//!
//! M. Canesche, V. M. do Rosário, E. Borin and F. M. Quintão Pereira, *The Droplet Search Algorithm for
//! Kernel Scheduling*, ACM TACO 2024: one decision at a time is moved to a neighbouring candidate, the search
//! goes to the best of the neighbours whose runs are faster by a statistical test, and ends where there is
//! none. The neighbours beyond are measured in advance. Behind exploration: M. Canesche, G. Verma and F. M.
//! Quintão Pereira, *Explore as a Storm, Exploit as a Raindrop*, arXiv 2406.20037, 2024: when evolution has
//! seen 300 programs, the descent begins at its best.
//!
//! A descent that has ended is followed by another: from a program drawn from the whole space, or, behind
//! exploration, from the next best program. What was measured decides alone where a descent stands, so a run
//! that is taken up again goes on where it was.

use std::collections::{BTreeSet, HashMap};

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use super::random::Uniform;
use super::replay::{Answers, steps};
use super::{Candidate, Evolution, History, Make, Method, Proposal, ProposeError, Proposer, Purpose};
use crate::space::{Space, Trace, Untuned};
use crate::target::Task;

pub(super) const METHOD: Method = Method {
    name: "droplet",
    about: "Coordinate descent from the untuned program, by steps that a t-test finds faster",
    learns: true,
    purpose: Purpose::Search,
    make: Make::Plain(|space, seed| Ok(Box::new(Droplet::new(space, seed)))),
};

pub(super) const STORM: Method = Method {
    name: "storm",
    about: "Evolution until 300 programs are measured, then coordinate descent from the best of them",
    learns: true,
    purpose: Purpose::Search,
    make: Make::Plain(|space, seed| Ok(Box::new(Storm::new(space, seed, EXPLORED)))),
};

/// Programs that are measured before the descent begins.
const EXPLORED: usize = 300;
/// Descents begun in one proposal before the space is taken to be exhausted, and draws for each.
const STARTS: u64 = 24;
/// How far neighbours are measured in advance.
const FARTHEST: usize = 2;

/// Where a descent begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Starts {
    /// At the untuned program, then anywhere.
    Anywhere,
    /// At the fastest programs that are known, one after the other.
    Fastest,
}

/// Descends, the same way for the same seed and history.
pub struct Droplet<'a> {
    space: &'a Space,
    seed: u64,
    starts: Starts,
    /// By the task's hash.
    descents: HashMap<String, Descent>,
}

/// Where a descent stands.
#[derive(Clone)]
struct Descent {
    /// How many were ended before.
    number: u64,
    centre: Trace,
    /// Neighbours, the nearest first: how far they are.
    around: Vec<(usize, Trace)>,
}

impl<'a> Droplet<'a> {
    pub fn new(space: &'a Space, seed: u64) -> Droplet<'a> {
        Droplet { space, seed, starts: Starts::Anywhere, descents: HashMap::new() }
    }

    fn start(&self, task: &Task, history: &History, number: u64) -> Option<Descent> {
        let centre = match (self.starts, number) {
            (Starts::Fastest, _) => history.fastest(History::KEPT).into_iter().nth(number as usize)?,
            (Starts::Anywhere, 0) => {
                let (trace, nest) = self.space.drive(task, &mut Untuned);
                super::usable(&trace, nest).map(|_| trace)?
            }
            (Starts::Anywhere, _) => {
                let mut rng = ChaCha8Rng::seed_from_u64(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let (trace, nest) = self.space.drive(task, &mut Uniform(&mut rng));
                super::usable(&trace, nest).map(|_| trace)?
            }
        };
        Some(self.around(task, number, centre))
    }

    /// The nearest come first, in an order that the seed decides.
    fn around(&self, task: &Task, number: u64, centre: Trace) -> Descent {
        let mut all = steps(self.space, task, &centre, FARTHEST);
        all.shuffle(&mut ChaCha8Rng::seed_from_u64(self.seed ^ number));
        all.sort_by_key(|step| step.distance);
        let answers = Answers::of(&centre);
        let near: Vec<Option<(usize, Trace)>> = all
            .par_iter()
            .map(|step| {
                let program = answers.clone().with(&step.site, &step.value).program(self.space, task);
                Some((step.distance, program?.0))
            })
            .collect();
        Descent { number, centre, around: near.into_iter().flatten().collect() }
    }

    /// Follows the measured neighbours down.
    fn descended(&self, task: &Task, history: &History, mut descent: Descent) -> Descent {
        loop {
            let faster = descent.around.iter().map(|(_, trace)| trace);
            let faster = faster.filter(|trace| history.is_faster(trace, &descent.centre));
            let Some(best) = faster.min_by_key(|trace| history.best_ns(trace)).cloned() else { return descent };
            // the runs' means and the best runs can disagree: no way leads round in a circle
            if history.best_ns(&best) >= history.best_ns(&descent.centre).or(Some(u64::MAX)) {
                return descent;
            }
            descent = self.around(task, descent.number, best);
        }
    }
}

impl Proposer for Droplet<'_> {
    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        let (mut proposal, mut seen) = (Proposal::default(), BTreeSet::new());
        let hash = task.workload.hash().to_string();
        let mut standing = self.descents.remove(&hash);
        let mut number = standing.as_ref().map_or(0, |descent| descent.number);
        for _ in 0..STARTS {
            let begun = standing.take().or_else(|| self.start(task, history, number));
            let Some(descent) = begun else {
                (number, proposal.dead_ends, proposal.drawn) = (number + 1, proposal.dead_ends + 1, proposal.drawn + 1);
                continue;
            };
            let descent = self.descended(task, history, descent);
            let centre = (0, &descent.centre);
            let all = std::iter::once(centre).chain(descent.around.iter().map(|(far, trace)| (*far, trace)));
            let mut is_open = false;
            for (far, trace) in all {
                is_open |= far < FARTHEST && !history.is_measured(trace);
                if proposal.candidates.len() < count && !history.contains(trace) && seen.insert(trace.clone()) {
                    proposal.drawn += 1;
                    proposal.candidates.push(Candidate::new(trace.clone()));
                }
            }
            if is_open || proposal.candidates.len() == count {
                standing = Some(descent);
                break;
            }
            number = descent.number + 1;
        }
        self.descents.extend(standing.map(|descent| (hash, descent)));
        Ok(proposal)
    }
}

/// Explores by evolution, then descends.
struct Storm<'a> {
    evolution: Evolution<'a>,
    droplet: Droplet<'a>,
    /// Programs that evolution is for.
    explored: usize,
}

impl<'a> Storm<'a> {
    fn new(space: &'a Space, seed: u64, explored: usize) -> Storm<'a> {
        let droplet = Droplet { starts: Starts::Fastest, ..Droplet::new(space, seed) };
        Storm { evolution: Evolution::new(space, None, seed), droplet, explored }
    }
}

impl Proposer for Storm<'_> {
    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        let left = self.explored.saturating_sub(history.len());
        if left > 0 {
            let explored = self.evolution.propose(task, history, count.min(left))?;
            if !explored.candidates.is_empty() {
                return Ok(explored);
            }
        }
        self.droplet.propose(task, history, count)
    }
}

#[cfg(test)]
mod tests {
    use super::{Droplet, Storm};
    use crate::propose::example::{fall, product, slope};
    use crate::propose::{History, Proposer};
    use crate::space::{Space, Untuned};

    #[test]
    fn it_descends_a_slope_to_its_foot_and_begins_again() {
        let (space, task) = (Space::standard(), product());
        let mut droplet = Droplet::new(&space, 1);
        let (history, bests) = fall(&mut droplet, slope, 24, 8);
        let (untuned, _) = space.drive(&task, &mut Untuned);
        assert!(history.is_measured(&untuned) && bests[0] <= slope(&untuned));
        assert!(bests.is_sorted_by(|a, b| a >= b) && bests[6] * 4 < bests[0] * 3, "{bests:?}");
        assert!((150..=192).contains(&history.len()), "it does not stop at the foot: {}", history.len());
        // another proposer goes on where this one stands
        let again = Droplet::new(&space, 1).propose(&task, &history, 8).unwrap();
        assert!(again.candidates.iter().all(|candidate| !history.contains(&candidate.trace)));
    }

    #[test]
    fn what_is_being_measured_is_waited_for() {
        let (space, task) = (Space::standard(), product());
        let (mut droplet, mut history) = (Droplet::new(&space, 1), History::default());
        let all = droplet.propose(&task, &history, 500).unwrap().candidates;
        assert!((10..500).contains(&all.len()), "the untuned program and what is around it: {}", all.len());
        all.iter().for_each(|candidate| history.expect(&candidate.trace));
        assert_eq!(droplet.propose(&task, &history, 8).unwrap().candidates, []);
    }

    #[test]
    fn a_storm_is_followed_by_a_droplet_from_its_best() {
        let (space, task) = (Space::standard(), product());
        let (history, bests) = fall(&mut Storm::new(&space, 1, 16), slope, 12, 8);
        assert!(bests[11] < bests[1], "{bests:?}");
        // what follows exploration is around the best
        let mut storm = Storm::new(&space, 1, 16);
        let next = storm.propose(&task, &history, 1).unwrap().candidates.remove(0).trace;
        let best = history.best().unwrap().0;
        let differing = next.0.iter().filter(|choice| !best.0.contains(choice)).count();
        assert!(differing <= best.0.len() / 2, "{best}{next}");
    }
}
