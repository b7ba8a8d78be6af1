//! What the model writes.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::iter::{IntoParallelIterator, ParallelIterator};

use super::options::Heuristics;
use super::{LEAST_WRITTEN, LanguageModel, refused};
use crate::model::{Continuing, Prompt, Sampled, SamplingOptions};
use crate::propose::pool::interleaved;
use crate::propose::typical::Typical;
use crate::propose::writing::{Ending, Writing};
use crate::propose::{Candidate, Proposal, ProposeError};
use crate::space::{Choice, Trace};
use crate::target::Task;

/// A trace that the model wrote.
#[derive(Clone, PartialEq, Debug)]
pub struct Written {
    pub trace: Trace,
    /// Whether all is decided; else the space offered nothing further, or the model's longest sequence was
    /// reached.
    pub complete: bool,
    /// Natural logarithm of the probability that the model gave to what it chose, among the legal ones.
    pub log_likelihood: f64,
}

impl LanguageModel<'_> {
    /// Writes `count` traces as the model likes them: neither ranked nor realised, and the same one more than
    /// once if the model likes it so much. For run-time extents, what it writes for the typical ones is
    /// carried over.
    ///
    /// # Errors
    /// As [`Proposer::propose`](crate::propose::Proposer::propose).
    pub fn sample(&mut self, task: &Task, count: usize) -> Result<Vec<Written>, ProposeError> {
        if let Some(typical) = Typical::of(task) {
            return self.carried(task, &typical, count);
        }
        let prompt = self.prompt(task, self.heuristics.want)?;
        self.write(&prompt, task, &[], count)
    }

    /// Writes traces; where there are parents, every other one begins like one of them.
    pub(super) fn write(
        &mut self,
        prompt: &Prompt,
        task: &Task,
        parents: &[Trace],
        count: usize,
    ) -> Result<Vec<Written>, ProposeError> {
        Ok(self.write_behind(&[(prompt, count)], task, parents)?.into_iter().flatten().collect())
    }

    /// The same behind each of some prompts, of which is said how many.
    fn write_behind(
        &mut self,
        prompts: &[(&Prompt, usize)],
        task: &Task,
        parents: &[Trace],
    ) -> Result<Vec<Vec<Written>>, ProposeError> {
        let reader = self.reader(task)?;
        let Heuristics { temperature, top_p, .. } = self.heuristics;
        let (mut guides, mut options): (Vec<Vec<Writing<'_>>>, Vec<SamplingOptions>) = Default::default();
        for (_, count) in prompts {
            let seed = self.seed ^ self.rounds.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let mut writing = |number: usize| {
                let start = if number % 2 == 1 { start_of_one(parents, &mut random) } else { Vec::new() };
                Writing::new(&reader, self.space, &self.language, task, start)
            };
            guides.push((0..*count).map(&mut writing).collect());
            options.push(SamplingOptions { temperature, top_p, seed });
            self.rounds += 1;
        }
        let continuing = prompts.iter().zip(&mut guides).zip(options);
        let continuing = continuing.map(|((&(prompt, _), guides), options)| Continuing { prompt, guides, options });
        let sampled = self.decoder.sample_all(continuing.collect()).map_err(refused)?;
        guides.into_iter().zip(sampled).map(|(guides, sampled)| written(guides, sampled)).collect()
    }

    /// What the model writes, beside the untuned programs, as far as it is new: behind the first prompt, and
    /// as much behind the second, if there is one.
    pub(super) fn drawn(
        &mut self,
        task: &Task,
        (prompt, showing): (Option<&Prompt>, Option<&Prompt>),
        (untuned, parents): (&[Trace], &[Trace]),
        count: usize,
        proposal: &mut Proposal,
        is_new: &mut dyn FnMut(&Trace) -> bool,
    ) -> Result<Vec<Candidate>, ProposeError> {
        let mut pool = Vec::new();
        let mut join = |trace: Trace, log_likelihood| {
            if is_new(&trace) {
                pool.push(Candidate { trace, log_likelihood, value: None });
            }
        };
        untuned.iter().for_each(|trace| join(trace.clone(), None));
        let mut written = Vec::new();
        if let Some(typical) = Typical::of(task) {
            written = self.carried(task, &typical, count)?;
        }
        // where programs are carried over, those that are written here begin like parents
        if let Some(prompt) = prompt.filter(|_| written.is_empty() || !parents.is_empty()) {
            let behind = if showing.is_some() { count.div_ceil(2) } else { count };
            let shown = showing.map(|showing| (showing, count - behind));
            let prompts: Vec<(&Prompt, usize)> = shown.into_iter().chain([(prompt, behind)]).collect();
            let mut all = self.write_behind(&prompts, task, parents)?;
            let plain = all.pop().unwrap_or_default();
            // in turn: without a ranking, programs are measured in this order
            written.extend(interleaved(plain, all.pop().unwrap_or_default()));
        }
        for written in written {
            proposal.drawn += 1;
            match written.complete {
                true => join(written.trace, Some(written.log_likelihood as f32)),
                false => proposal.dead_ends += 1,
            }
        }
        Ok(pool)
    }

    /// What the model writes for the typical extents of a task, carried over to it.
    fn carried(&mut self, task: &Task, typical: &Typical, count: usize) -> Result<Vec<Written>, ProposeError> {
        let want = self.heuristics.want;
        let Some(prompt) = self.prompt_if_it_fits(&typical.task, want, LEAST_WRITTEN)? else { return Ok(Vec::new()) };
        let written = self.write(&prompt, &typical.task, &[], count)?;
        let space = self.space;
        let carry = |written: Written| match written.complete.then(|| typical.carry(space, task, &written.trace)) {
            Some(Some(trace)) => Written { trace, ..written },
            _ => Written { complete: false, ..written },
        };
        Ok(written.into_par_iter().map(carry).collect())
    }
}

/// What became of sequences.
fn written(guides: Vec<Writing<'_>>, sampled: Vec<Sampled>) -> Result<Vec<Written>, ProposeError> {
    let written = guides.into_iter().zip(sampled).map(|(mut guide, sampled)| {
        let complete = match guide.end.take() {
            Some(Ending::Complete) => true,
            Some(Ending::Stale(stale)) => return Err(stale.into()),
            // nothing follows, or it is longer than the model's sequences
            Some(Ending::Nowhere) | None => false,
        };
        Ok(Written { trace: guide.into_trace(), complete, log_likelihood: sampled.log_likelihood })
    });
    written.collect()
}

/// The first decisions of one of the parents: at least one decision is left open.
fn start_of_one(parents: &[Trace], random: &mut ChaCha8Rng) -> Vec<Choice> {
    let Some(parent) = parents.choose(random).filter(|parent| !parent.0.is_empty()) else { return Vec::new() };
    parent.0[..random.random_range(0..parent.0.len())].to_vec()
}
