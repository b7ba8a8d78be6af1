//! Programs that a prompt shows: what was measured of a task, read before the next program is written.
//!
//! A batch shows some members of the group that its own members belong to, the slowest first, each followed
//! by how fast it was relative to the fastest that is shown. What is faster than all of them teaches the
//! policy; all members teach the value head, which so learns to judge in the light of what was measured.

use std::collections::BTreeMap;

use rand::Rng;
use rand::seq::index;
use rand_chacha::ChaCha8Rng;

use super::Position;
use super::example::{Example, Shown};

/// The most programs that a prompt shows.
pub const MOST_SHOWN: usize = 9;

/// The examples of each group.
#[derive(Default)]
pub(super) struct Groups(BTreeMap<u64, Vec<usize>>);

impl Groups {
    /// Of those that are chosen.
    pub fn new(examples: &[Example], chosen: &[usize]) -> Groups {
        let mut groups: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        chosen.iter().for_each(|i| groups.entry(examples[*i].group).or_default().push(*i));
        Groups(groups)
    }

    /// What to show to members of a group, the slowest first: up to [`MOST_SHOWN`] others of the group, as
    /// many as fit into `room` positions, all slower than a member drawn at random, so that there is
    /// something to learn.
    pub fn shown_to(
        &self,
        examples: &[Example],
        members: &[usize],
        room: usize,
        random: &mut ChaCha8Rng,
    ) -> Vec<usize> {
        let mut scores: Vec<f32> = members.iter().map(|i| examples[*i].score).collect();
        scores.sort_unstable_by(f32::total_cmp);
        let Some(bound) = scores.get(random.random_range(0..scores.len().max(1))) else { return Vec::new() };
        let group = members.first().and_then(|i| self.0.get(&examples[*i].group)).map_or(&[][..], Vec::as_slice);
        let slower: Vec<usize> =
            group.iter().copied().filter(|i| examples[*i].score < *bound && !members.contains(i)).collect();
        let count = random.random_range(0..=MOST_SHOWN).min(slower.len());
        let mut shown: Vec<usize> =
            index::sample(random, slower.len(), count).into_iter().map(|at| slower[at]).collect();
        shown.sort_by(|a, b| examples[*a].score.total_cmp(&examples[*b].score));
        let length = |i: &usize| examples[*i].steps.len() + 1;
        while shown.iter().map(length).sum::<usize>() > room {
            shown.remove(0);
        }
        shown
    }
}

/// The positions of a prompt that shows these examples, in their order.
pub(super) fn lead<'a>(examples: &'a [Example], shown: &[usize], how: &'a Shown) -> Vec<&'a Position> {
    let best = shown.iter().map(|i| examples[*i].score).fold(f32::NEG_INFINITY, f32::max);
    let mut lead: Vec<&Position> = how.prompt.iter().collect();
    for example in shown.iter().map(|i| &examples[*i]) {
        lead.extend(example.steps.iter().map(|step| step.position.as_ref()));
        lead.push(how.measured((example.score - best).exp()));
    }
    lead
}
