//! Training examples, and how they share work: examples of a group that start alike become one batch with one prefix.

use std::collections::BTreeMap;

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Config, ModelError};

/// One sequence to learn from.
#[derive(Clone, PartialEq, Debug)]
pub struct Example {
    /// Prompt and decisions, at least two tokens.
    pub tokens: Vec<u32>,
    /// For each token, whether it was decided, and so counts in the policy's loss; the first never is.
    pub decisions: Vec<bool>,
    /// How much the policy's loss counts: 0 or more.
    pub weight: f32,
    /// Examples of one group (a task) are ranked among each other.
    pub group: u64,
    /// Log speed relative to the best of the group: 0 for the best, lower for slower ones.
    pub score: f32,
}

/// Refuses examples that cannot be learned from.
pub(super) fn check(examples: &[Example], config: &Config) -> Result<(), ModelError> {
    for (index, example) in examples.iter().enumerate() {
        let problem = if example.tokens.len() < 2 || example.tokens.len() > config.max_sequence {
            format!("{} tokens where 2 to {} are possible", example.tokens.len(), config.max_sequence)
        } else if let Some(token) = example.tokens.iter().find(|token| **token as usize >= config.vocabulary) {
            format!("token {token} is outside of the vocabulary of {}", config.vocabulary)
        } else if example.decisions.len() != example.tokens.len() {
            format!("{} decision marks for {} tokens", example.decisions.len(), example.tokens.len())
        } else if example.decisions[0] {
            "the first token is marked as a decision".to_string()
        } else if !example.weight.is_finite() || example.weight < 0.0 || !example.score.is_finite() {
            format!("weight {} or score {} is out of range", example.weight, example.score)
        } else {
            continue;
        };
        return Err(ModelError::Example { index, problem });
    }
    Ok(())
}

/// Members of one group behind their common prefix.
#[derive(Debug)]
pub(super) struct Batch {
    /// What all members start with.
    pub prefix: Vec<u32>,
    /// What follows, padded with zeros to the longest: `[members, length]`.
    pub suffixes: Vec<u32>,
    pub members: usize,
    /// Tokens without padding.
    pub tokens: usize,
    /// Rows of `[members · length]` after which a decision follows, that decision, and its weight.
    pub policy_rows: Vec<u32>,
    pub policy_targets: Vec<u32>,
    pub policy_weights: Vec<f32>,
    /// The row of each member's last token.
    pub last_rows: Vec<u32>,
    /// A random earlier row of each member, where a value is learned too.
    pub early_rows: Vec<u32>,
    pub scores: Vec<f32>,
}

impl Batch {
    /// `members` are positions in `examples`, of one group.
    pub fn new(examples: &[Example], members: &[usize], random: &mut ChaCha8Rng) -> Batch {
        let members: Vec<&Example> = members.iter().map(|i| &examples[*i]).collect();
        // the row before a decision predicts it, so it must stand behind the prefix
        let shared = common_prefix(&members);
        let undecided = members.iter().filter_map(|e| e.decisions.iter().position(|d| *d)).min().unwrap_or(usize::MAX);
        let shortest = members.iter().map(|e| e.tokens.len()).min().unwrap_or(1);
        let start = shared.min(undecided.saturating_sub(1)).min(shortest - 1);
        let length = members.iter().map(|e| e.tokens.len() - start).max().unwrap_or(0);
        let mut batch = Batch {
            prefix: members.first().map_or(Vec::new(), |e| e.tokens[..start].to_vec()),
            suffixes: vec![0; members.len() * length],
            members: members.len(),
            tokens: start + members.iter().map(|e| e.tokens.len() - start).sum::<usize>(),
            policy_rows: Vec::new(),
            policy_targets: Vec::new(),
            policy_weights: Vec::new(),
            last_rows: Vec::new(),
            early_rows: Vec::new(),
            scores: members.iter().map(|e| e.score).collect(),
        };
        for (member, example) in members.iter().enumerate() {
            let suffix = &example.tokens[start..];
            let first_row = member * length;
            batch.suffixes[first_row..][..suffix.len()].copy_from_slice(suffix);
            for (i, token) in suffix.iter().enumerate().skip(1).filter(|(i, _)| example.decisions[start + i]) {
                if example.weight > 0.0 {
                    batch.policy_rows.push((first_row + i - 1) as u32);
                    batch.policy_targets.push(*token);
                    batch.policy_weights.push(example.weight);
                }
            }
            batch.last_rows.push((first_row + suffix.len() - 1) as u32);
            batch.early_rows.push((first_row + random.random_range(0..suffix.len())) as u32);
        }
        batch
    }
}

fn common_prefix(members: &[&Example]) -> usize {
    let Some((first, others)) = members.split_first() else { return 0 };
    let shared = |other: &&Example| first.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
    others.iter().map(shared).min().unwrap_or(first.tokens.len())
}

/// One epoch: members of each group in random batches of up to `size`, alike in length, in random order.
pub(super) fn epoch(examples: &[Example], chosen: &[usize], size: usize, seed: u64, epoch: u64) -> Vec<Vec<usize>> {
    /// Batches that are formed together, sorted by length, so that little is padding.
    const POOL: usize = 4;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(2 * epoch);
    let mut groups: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    chosen.iter().for_each(|i| groups.entry(examples[*i].group).or_default().push(*i));
    let mut batches = Vec::new();
    for members in groups.values_mut() {
        members.shuffle(&mut random);
        for pool in members.chunks_mut(POOL * size) {
            pool.sort_by_key(|i| examples[*i].tokens.len());
            batches.extend(pool.chunks(size).map(<[usize]>::to_vec));
        }
    }
    batches.shuffle(&mut random);
    batches
}

/// Positions of examples to train with, and of those held out: whole groups, at least one if there are two or more.
pub(super) fn split(examples: &[Example], held_out: f32, seed: u64) -> (Vec<usize>, Vec<usize>) {
    let mut groups: Vec<u64> = examples.iter().map(|e| e.group).collect();
    groups.sort_unstable();
    groups.dedup();
    groups.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    let wanted = (groups.len() as f32 * held_out).round() as usize;
    let count = if held_out > 0.0 { wanted.clamp(1, groups.len().max(2) - 1) } else { 0 };
    let held: std::collections::BTreeSet<u64> = groups.into_iter().take(count).collect();
    (0..examples.len()).partition(|i| !held.contains(&examples[*i].group))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::{Batch, Example, epoch, split};

    fn example(tokens: &[u32], first_decision: usize, group: u64) -> Example {
        let decisions = (0..tokens.len()).map(|i| i >= first_decision).collect();
        Example { tokens: tokens.to_vec(), decisions, weight: 1.0, group, score: 0.0 }
    }

    #[test]
    fn rows_predict_every_decision_even_where_members_share_it() {
        let examples = [example(&[1, 2, 3, 4, 5], 3, 0), example(&[1, 2, 3, 4, 6, 7], 3, 0)];
        let batch = Batch::new(&examples, &[0, 1], &mut ChaCha8Rng::seed_from_u64(0));
        assert_eq!(batch.prefix, [1, 2]);
        assert_eq!(batch.suffixes, [3, 4, 5, 0, 3, 4, 6, 7]);
        assert_eq!(batch.policy_rows, [0, 1, 4, 5, 6]);
        assert_eq!(batch.policy_targets, [4, 5, 4, 6, 7]);
        assert_eq!(batch.last_rows, [2, 7]);
        assert_eq!(batch.tokens, 9);
    }

    #[test]
    fn an_epoch_holds_every_example_once_and_no_mixed_group() {
        let examples: Vec<Example> = (0..50).map(|i| example(&[1, 2, i], 2, u64::from(i % 3))).collect();
        let (train, held) = split(&examples, 0.3, 7);
        assert!(
            !held.is_empty() && train.iter().all(|i| held.iter().all(|h| examples[*h].group != examples[*i].group))
        );
        let batches = epoch(&examples, &train, 8, 1, 0);
        assert!(batches.iter().all(|b| b.len() <= 8 && b.iter().all(|i| examples[*i].group == examples[b[0]].group)));
        let mut all = batches.concat();
        all.sort_unstable();
        assert_eq!(all, train);
        assert_eq!(batches, epoch(&examples, &train, 8, 1, 0));
        assert_ne!(batches, epoch(&examples, &train, 8, 1, 1));
    }
}
