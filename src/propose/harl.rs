//! Bandits over structures, an actor and a critic over sizes.
//!
//! Z. Zhang, B. He and Z. Zhang, *HARL: Hierarchical Adaptive Reinforcement Learning Based Auto Scheduler for
//! Neural Networks*, ICPP 2022. Decisions between names that change what is asked after them make up the
//! structure of a program. Upper confidence bounds over a window of the last measurements (A. Garivier and E.
//! Moulines, ALT 2011: what is best changes while the rest gets better) choose the structure. From programs
//! of the structures, tracks go on side by side: an actor takes a size one step up or down, a critic tells
//! what a program will still become, and both learn by the temporal difference (R. Sutton and A. Barto, 2018,
//! section 13.5). Rewards are what boosted trees, trained anew with every batch, say of a step. Tracks of
//! little advantage are stopped early.

mod agent;

use std::collections::{BTreeMap, HashMap};

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::boosted::{Boosted, LOOKS, Scored};
use super::replay::{Answers, steps};
use super::{History, Make, Method, Proposal, ProposeError, Proposer, Purpose};
use crate::space::{Decision, Policy, Space, Trace, Words};
use crate::target::Task;

use agent::{Agent, Taken};

pub(super) const METHOD: Method = Method {
    name: "harl",
    about: "Bandits choose the structure, an actor and a critic the sizes; poor tracks are stopped",
    learns: true,
    purpose: Purpose::Search,
    make: Make::Plain(|space, seed| Ok(Box::new(Harl::new(space, seed)))),
};

/// Measurements that the bandits go by: the last ones. How far the bounds lie above the mean.
const WINDOW: usize = 64;
const CONFIDENCE: f64 = 0.3;
/// Tracks that begin, and those that are never stopped; steps between two times that some are stopped, and
/// the share of them that is.
const TRACKS: usize = 32;
const LEAST_TRACKS: usize = 8;
const PATIENCE: usize = 4;
const STOPPED: f64 = 0.25;
/// The share of tracks whose sizes begin as drawn; the others' begin like a fast program's.
const DRAWN: f64 = 0.4;
/// The share of what is measured that is drawn.
const EXPLORED: f64 = 0.05;
/// Rounds of tracks before a small space is taken to be exhausted.
const ROUNDS: usize = 3;

/// Which answers were given to a question of the structure, how often, and what came of it in sum.
type Arms = BTreeMap<(Words, Words), (f64, f64)>;

/// What the bandits know: which sites are of the structure, and what their answers are worth.
struct Bandits<'a> {
    structural: &'a BTreeMap<Words, bool>,
    arms: Arms,
}

impl Bandits<'_> {
    /// The upper confidence bound of an answer; none is above what was not tried.
    fn bound(&self, site: &Words, value: &Words, plays: f64) -> f64 {
        let arm = self.arms.get(&(site.clone(), value.clone()));
        arm.map_or(f64::INFINITY, |(count, sum)| sum / count + CONFIDENCE * ((plays + 1.0).ln() / count).sqrt())
    }

    fn pick(&self, decision: &Decision, rng: &mut ChaCha8Rng) -> usize {
        let Decision { site, candidates, .. } = decision;
        let plays: f64 = self.arms.iter().filter(|((of, _), _)| of == site).map(|(_, (count, _))| count).sum();
        let bounds: Vec<f64> = candidates.iter().map(|value| self.bound(site, value, plays)).collect();
        let best = bounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let equal: Vec<usize> = (0..bounds.len()).filter(|at| bounds[*at] >= best).collect();
        equal.choose(rng).copied().unwrap_or(decision.default)
    }

    fn is_structural(&self, site: &Words) -> bool {
        self.structural.get(site).copied().unwrap_or(false)
    }
}

/// Writes the beginning of a track: structure by the bandits, all else drawn, or like a fast program's.
struct Beginning<'a> {
    bandits: &'a Bandits<'a>,
    like: Option<Answers>,
    rng: &'a mut ChaCha8Rng,
    /// The structure as it was chosen: the trace is what else was.
    taken: Answers,
}

impl Policy for Beginning<'_> {
    fn pick(&mut self, decision: &Decision) -> usize {
        let at = if self.bandits.is_structural(&decision.site) {
            self.bandits.pick(decision, self.rng)
        } else if let Some(like) = &mut self.like {
            like.pick(decision)
        } else {
            self.rng.random_range(0..decision.candidates.len())
        };
        let taken = std::mem::take(&mut self.taken);
        self.taken = taken.with(&decision.site, &decision.candidates[at]);
        at
    }
}

/// The sites of a trace that belong to the structure: names whose other answers are followed by other
/// questions.
fn structural_sites(space: &Space, task: &Task, trace: &Trace, known: &mut BTreeMap<Words, bool>) {
    let sites = |trace: &Trace| trace.0.iter().map(|choice| choice.site.clone()).collect::<Vec<_>>();
    let own = sites(trace);
    for step in steps(space, task, trace, 1).iter().filter(|step| step.value.as_number().is_none()) {
        if known.get(&step.site) != Some(&true) {
            let other = Answers::of(trace).with(&step.site, &step.value).trace(space, task);
            known.insert(step.site.clone(), other.is_none_or(|other| sites(&other) != own));
        }
    }
}

/// Where a track stands, and what its last steps were better than expected.
struct Track {
    at: Scored,
    advantage: f32,
}

/// Searches, the same way for the same seed and history.
struct Harl<'a> {
    boosted: Boosted<'a>,
    /// By the task's hash: the agent, and which sites are of the structure.
    tasks: HashMap<String, (Agent, BTreeMap<Words, bool>)>,
    /// By the task's hash: what was proposed, the last ones.
    proposed: HashMap<String, Vec<Trace>>,
    rng: ChaCha8Rng,
}

impl<'a> Harl<'a> {
    fn new(space: &'a Space, seed: u64) -> Harl<'a> {
        let (tasks, proposed) = (HashMap::new(), HashMap::new());
        Harl { boosted: Boosted::new(space, seed), tasks, proposed, rng: ChaCha8Rng::seed_from_u64(seed) }
    }
}

/// What answers of the structure came to: the speed relative to the best known program.
fn arms(structural: &BTreeMap<Words, bool>, measured: &[Trace], history: &History) -> Arms {
    let mut arms = Arms::new();
    let best = history.best().map_or(1.0, |(_, ns)| ns as f64);
    for trace in measured.iter().filter(|trace| history.is_measured(trace)) {
        let reward = history.best_ns(trace).map_or(0.0, |ns| best / ns.max(1) as f64);
        for choice in trace.0.iter().filter(|choice| structural.get(&choice.site) == Some(&true)) {
            let (count, sum) = arms.entry((choice.site.clone(), choice.value.clone())).or_default();
            (*count, *sum) = (*count + 1.0, *sum + reward);
        }
    }
    arms
}

impl Proposer for Harl<'_> {
    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        self.rng.set_stream(history.len() as u64);
        let (space, rng, hash) = (self.boosted.space, &mut self.rng, task.workload.hash().to_string());
        let (mut agent, mut structural) = self.tasks.remove(&hash).unwrap_or((Agent::new(), BTreeMap::new()));
        let proposed = self.proposed.entry(hash.clone()).or_insert_with(|| history.fastest(WINDOW));
        let known = history.fastest(TRACKS);
        let untuned = Answers::default().trace(space, task);
        for trace in untuned.iter().chain(known.iter().take(2)) {
            structural_sites(space, task, trace, &mut structural);
        }
        let bandits = Bandits { structural: &structural, arms: arms(&structural, proposed, history) };
        let mut pool = self.boosted.pool(task, history)?;
        for _ in 0..ROUNDS {
            if pool.programs.len() >= count {
                break;
            }
            let mut beginnings = Vec::with_capacity(TRACKS);
            for _ in 0..TRACKS {
                let like = (!rng.random_bool(DRAWN)).then(|| known.choose(rng).map(Answers::of).unwrap_or_default());
                let mut beginning = Beginning { bandits: &bandits, like, rng, taken: Answers::default() };
                // only what is decided is wanted here
                let _ = space.schedule(task, &mut crate::space::Tape::drive(&mut beginning));
                beginnings.push(beginning.taken);
            }
            let begun = pool.look(beginnings).into_iter().flatten();
            let mut tracks: Vec<Track> = begun.map(|at| Track { at, advantage: 0.0 }).collect();
            let mut looks = LOOKS * count;
            for number in 1usize.. {
                if tracks.is_empty() || looks < tracks.len() {
                    break;
                }
                looks -= tracks.len();
                advance(space, task, &mut agent, &bandits, &mut tracks, &mut pool, rng);
                if number % PATIENCE == 0 && tracks.len() > LEAST_TRACKS {
                    tracks.sort_by(|a, b| b.advantage.total_cmp(&a.advantage));
                    let left = tracks.len() - (STOPPED * tracks.len() as f64).ceil() as usize;
                    tracks.truncate(left.max(LEAST_TRACKS));
                    tracks.iter_mut().for_each(|track| track.advantage = 0.0);
                }
            }
        }
        let chosen = pool.choose(count, EXPLORED, rng);
        proposed.extend(chosen.iter().map(|scored| scored.described.trace.clone()));
        let surplus = proposed.len().saturating_sub(WINDOW);
        proposed.drain(..surplus);
        self.tasks.insert(hash, (agent, structural));
        Ok(self.boosted.propose(task, pool, chosen))
    }
}

/// Takes a step on every track.
fn advance(
    space: &Space,
    task: &Task,
    agent: &mut Agent,
    bandits: &Bandits<'_>,
    tracks: &mut [Track],
    pool: &mut super::boosted::Pool<'_>,
    rng: &mut ChaCha8Rng,
) {
    let mut taken = Vec::with_capacity(tracks.len());
    let mut answers = Vec::with_capacity(tracks.len());
    for track in tracks.iter() {
        let trace = &track.at.described.trace;
        let mut steps = steps(space, task, trace, 1);
        steps.retain(|step| !bandits.is_structural(&step.site));
        let chances = agent.policy(&steps);
        let mut at = rng.random_range(0.0..1.0f32);
        let choice = chances.iter().position(|chance| {
            at -= chance;
            at <= 0.0
        });
        let choice = choice.unwrap_or(steps.len().saturating_sub(1));
        let own = Answers::of(trace);
        answers.push(steps.get(choice).map_or(own.clone(), |step| own.with(&step.site, &step.value)));
        taken.push(Taken { before: track.at.described.features.clone(), steps, chances, choice });
    }
    for ((track, taken), after) in tracks.iter_mut().zip(&taken).zip(pool.look(answers)) {
        let reward = after.as_ref().map_or(-1.0, |after| after.score - track.at.score);
        let features = after.as_ref().map(|after| after.described.features.as_slice());
        track.advantage += agent.learn(taken, reward, features);
        if let Some(after) = after {
            track.at = after;
        }
    }
}

#[cfg(test)]
mod tests;
