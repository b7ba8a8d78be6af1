//! Ranking by the decisions themselves: no program is built to be judged.
//!
//! Y. Zhai et al., *TLP: A Deep Learning-Based Cost Model for Tensor Program Tuning*, ASPLOS 2023: schedule
//! primitives are read as a language, names as tokens and numbers as numbers, and with several machines a
//! shared trunk has a head for each (MTL-TLP). Here decisions are the sentences. The model is small and
//! learns online: sums of token vectors, a hidden layer, and a head for each machine, by the logistic loss of
//! pairs (C. Burges et al., ICML 2005) over all tasks of the search. Evolution looks at 128 traces for each
//! program that is measured, and only those that are chosen are built.

use std::collections::{BTreeMap, BTreeSet};

use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::iter::{IntoParallelIterator, ParallelIterator};

use super::boosted::LOOKS;
use super::random::Uniform;
use super::replay::{Answers, mutated};
use super::{Candidate, History, Make, Method, Proposal, ProposeError, Proposer, Purpose};
use crate::space::{Space, Tape, Trace, Untuned};
use crate::target::Task;

pub(super) const METHOD: Method = Method {
    name: "tlp",
    about: "Evolution ranked by a small model that reads decisions as tokens, with a head for each machine",
    learns: true,
    purpose: Purpose::Search,
    make: Make::Plain(|space, seed| Ok(Box::new(Tlp::new(space, seed)))),
};

/// Vectors of tokens, which share them by their hashes, and their width.
const BUCKETS: usize = 4096;
const WIDTH: usize = 16;
/// Passes over what is known before each proposal, partners of each program in a pass, and the step of
/// Adagrad (J. Duchi et al., JMLR 2011).
const EPOCHS: usize = 12;
const PARTNERS: usize = 4;
const RATE: f32 = 0.05;
/// Logarithms of speeds that differ by less are noise; those that differ by more than the second weigh the
/// same.
const SAME: f32 = 0.05;
const FAR: f32 = 1.0;
/// Programs of a task that are learned from, the last ones; and measured programs before it is believed.
const REMEMBERED: usize = 256;
const ENOUGH: usize = 4;
/// Generations behind the first population, parents in each, and the share of traces drawn from the space.
const GENERATIONS: usize = 4;
const PARENTS: usize = 64;
const FRESH: f64 = 0.1;
/// The share of what is measured that is drawn.
const EXPLORED: f64 = 0.05;
/// Populations before a small space is taken to be exhausted.
const ROUNDS: usize = 3;

/// Tokens of a trace, by bucket, with what they are multiplied by.
type Tokens = Vec<(usize, f32)>;

/// Of each decision: what is asked, what is answered, both together, and the size of a number.
fn tokens(trace: &Trace) -> Tokens {
    let mut tokens = Vec::with_capacity(4 * trace.0.len());
    let mut add = |parts: [&str; 3], weight: f32| {
        // FNV-1a
        let bytes = parts.iter().flat_map(|part| part.bytes().chain([b'|']));
        let hash =
            bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        tokens.push(((hash ^ hash >> 32) as usize % BUCKETS, weight));
    };
    for choice in &trace.0 {
        let (site, value) = (choice.site.to_string(), choice.value.to_string());
        let verb = site.split(' ').next().unwrap_or_default();
        add([&site, &value, ""], 1.0);
        add([verb, &value, "verb"], 0.5);
        if let Some(number) = choice.value.as_number() {
            let size = (number as f32 + 1.0).log2() / 4.0;
            add([&site, "", "size"], size);
            add([&site, "", "square"], size * size);
        }
    }
    tokens
}

/// What tokens say of speed.
#[derive(Clone)]
struct Model {
    /// `[bucket, width]`
    vectors: Vec<f32>,
    /// By the machine's fingerprint: `[width]`.
    heads: BTreeMap<String, [f32; WIDTH]>,
    /// Squares of gradients in sum, for both.
    vector_squares: Vec<f32>,
    head_squares: BTreeMap<String, [f32; WIDTH]>,
}

impl Model {
    fn random(rng: &mut ChaCha8Rng) -> Model {
        let vectors = (0..BUCKETS * WIDTH).map(|_| rng.random_range(-0.1..0.1)).collect();
        let vector_squares = vec![1e-4; BUCKETS * WIDTH];
        Model { vectors, heads: BTreeMap::new(), vector_squares, head_squares: BTreeMap::new() }
    }

    /// The head of a machine: a new one begins as the mean of the others.
    fn head(&self, machine: &str) -> [f32; WIDTH] {
        let mean = |at: usize| match self.heads.len() {
            0 => {
                if at.is_multiple_of(2) {
                    1.0
                } else {
                    -1.0
                }
            }
            count => self.heads.values().map(|head| head[at]).sum::<f32>() / count as f32,
        };
        self.heads.get(machine).copied().unwrap_or_else(|| std::array::from_fn(mean))
    }

    fn hidden(&self, tokens: &Tokens) -> [f32; WIDTH] {
        let mut sums = [0.0f32; WIDTH];
        for (bucket, weight) in tokens {
            let vector = &self.vectors[bucket * WIDTH..(bucket + 1) * WIDTH];
            sums.iter_mut().zip(vector).for_each(|(sum, value)| *sum += weight * value);
        }
        sums.map(f32::tanh)
    }

    /// The higher, the faster.
    fn score(&self, machine: &str, tokens: &Tokens) -> f32 {
        self.hidden(tokens).iter().zip(self.head(machine)).map(|(hidden, weight)| hidden * weight).sum()
    }

    /// Learns that one program is faster than another, which counts as much as `weight` says.
    fn prefer(&mut self, machine: &str, faster: &Tokens, slower: &Tokens, weight: f32) {
        let head = self.head(machine);
        let hidden = [faster, slower].map(|tokens| self.hidden(tokens));
        let apart: f32 = (0..WIDTH).map(|at| (hidden[0][at] - hidden[1][at]) * head[at]).sum();
        let force = weight / (1.0 + apart.exp());
        for (tokens, hidden, sign) in [(faster, hidden[0], 1.0), (slower, hidden[1], -1.0)] {
            let slope: [f32; WIDTH] = std::array::from_fn(|at| sign * force * head[at] * (1.0 - hidden[at].powi(2)));
            for (bucket, weight) in tokens {
                for (at, slope) in slope.iter().enumerate() {
                    let place = bucket * WIDTH + at;
                    step(&mut self.vectors[place], &mut self.vector_squares[place], slope * weight);
                }
            }
        }
        let mut head = head;
        let squares = self.head_squares.entry(machine.to_string()).or_insert([1e-4; WIDTH]);
        for at in 0..WIDTH {
            step(&mut head[at], &mut squares[at], force * (hidden[0][at] - hidden[1][at]));
        }
        self.heads.insert(machine.to_string(), head);
    }
}

/// A step up the slope.
fn step(value: &mut f32, squares: &mut f32, slope: f32) {
    *squares += slope * slope;
    *value += RATE * slope / squares.sqrt();
}

/// What is known of a task.
#[derive(Default)]
struct Known {
    machine: String,
    /// What was proposed.
    traces: Vec<Trace>,
    /// Of what was measured of it: tokens, and logarithms to base 2 of speeds.
    measured: Vec<(Tokens, f32)>,
}

/// Evolves traces, the same way for the same seed and history.
struct Tlp<'a> {
    space: &'a Space,
    model: Model,
    /// By the task's hash.
    known: BTreeMap<String, Known>,
    rng: ChaCha8Rng,
}

impl<'a> Tlp<'a> {
    fn new(space: &'a Space, seed: u64) -> Tlp<'a> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        Tlp { space, model: Model::random(&mut rng), known: BTreeMap::new(), rng }
    }

    /// Takes note of what was measured, and learns from it and from all other tasks.
    fn learn(&mut self, task: &Task, history: &History) {
        let known = self.known.entry(task.workload.hash().to_string()).or_default();
        if known.traces.is_empty() {
            // a run that is taken up again: the fastest are there still
            known.traces = history.fastest(History::KEPT);
        }
        known.machine = task.target.fingerprint();
        let surplus = known.traces.len().saturating_sub(REMEMBERED);
        known.traces.drain(..surplus);
        let measured = known.traces.iter().filter_map(|trace| Some((trace, history.best_ns(trace)?)));
        known.measured = measured.map(|(trace, ns)| (tokens(trace), -(ns.max(1) as f32).log2())).collect();
        for _ in 0..EPOCHS {
            for Known { machine, measured, .. } in self.known.values() {
                for (tokens, speed) in measured {
                    for _ in 0..PARTNERS {
                        let Some((other, other_speed)) = measured.choose(&mut self.rng) else { continue };
                        let apart = speed - other_speed;
                        let (faster, slower) = if apart > 0.0 { (tokens, other) } else { (other, tokens) };
                        if apart.abs() > SAME {
                            self.model.prefer(machine, faster, slower, apart.abs().min(FAR));
                        }
                    }
                }
            }
        }
    }

    /// Generations of traces, the best first.
    fn evolved(&mut self, task: &Task, history: &History, size: usize, proposal: &mut Proposal) -> Vec<(f32, Trace)> {
        let machine = task.target.fingerprint();
        let (space, model) = (self.space, &self.model);
        let (untuned, _) = space.drive(task, &mut Untuned);
        let known = [history.fastest(PARENTS), vec![untuned]].concat();
        let mut seen: BTreeSet<Trace> = known.iter().cloned().collect();
        let scored = |trace: Trace| (model.score(&machine, &tokens(&trace)), trace);
        let mut pool: Vec<(f32, Trace)> = known.into_iter().map(scored).collect();
        for generation in 0..=GENERATIONS {
            pool.sort_by(|a, b| b.0.total_cmp(&a.0));
            let parents: Vec<&Trace> = pool.iter().take(PARENTS).map(|(_, trace)| trace).collect();
            let fresh = if generation == 0 { 1.0 } else { FRESH };
            let seeds: Vec<(bool, u64)> =
                (0..size).map(|_| (self.rng.random_bool(fresh), self.rng.next_u64())).collect();
            let draw = |(is_fresh, seed): (bool, u64)| {
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                if is_fresh {
                    let mut uniform = Uniform(&mut rng);
                    let mut tape = Tape::drive(&mut uniform);
                    space.schedule(task, &mut tape).ok()?;
                    return Some(Trace(tape.taken().to_vec()));
                }
                let parent = parents.choose(&mut rng)?;
                mutated(space, task, parent, &mut rng)?.trace(space, task)
            };
            let drawn: Vec<Option<Trace>> = seeds.into_par_iter().map(draw).collect();
            proposal.drawn += drawn.len() as u64;
            proposal.dead_ends += drawn.iter().filter(|drawn| drawn.is_none()).count() as u64;
            let new: Vec<Trace> = drawn.into_iter().flatten().filter(|trace| seen.insert(trace.clone())).collect();
            pool.extend(new.into_par_iter().map(scored).collect::<Vec<_>>());
        }
        pool.retain(|(_, trace)| !history.contains(trace));
        pool.sort_by(|a, b| b.0.total_cmp(&a.0));
        pool
    }
}

impl Proposer for Tlp<'_> {
    fn propose(&mut self, task: &Task, history: &History, count: usize) -> Result<Proposal, ProposeError> {
        self.rng.set_stream(history.len() as u64);
        self.learn(task, history);
        let hash = task.workload.hash().to_string();
        let is_taught = self.known.get(&hash).is_some_and(|known| known.measured.len() >= ENOUGH);
        let (mut proposal, mut chosen) = (Proposal::default(), BTreeSet::new());
        let size = (LOOKS * count).div_ceil(GENERATIONS + 1);
        for _ in 0..ROUNDS {
            let mut pool = self.evolved(task, history, size, &mut proposal);
            while proposal.candidates.len() < count && !pool.is_empty() {
                let explores = !is_taught || self.rng.random_bool(EXPLORED);
                let at = if explores { self.rng.random_range(0..pool.len()) } else { 0 };
                let (score, trace) = pool.remove(at);
                if Answers::of(&trace).program(self.space, task).is_some() && chosen.insert(trace.clone()) {
                    let value = is_taught.then_some(score);
                    proposal.candidates.push(Candidate { value, ..Candidate::new(trace) });
                }
            }
        }
        self.known.entry(hash).or_default().traces.extend(chosen);
        Ok(proposal)
    }
}

#[cfg(test)]
mod tests;
