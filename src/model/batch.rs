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
    /// Another prompt, which does not tell the score, for the value head to learn behind.
    pub blind: Option<Blind>,
}

/// What stands in for the first tokens of a sequence.
#[derive(Clone, PartialEq, Debug)]
pub struct Blind {
    /// How many tokens are replaced; none of them was decided.
    pub replaced: usize,
    pub tokens: Vec<u32>,
}

impl Example {
    /// Tokens, and for each whether it was decided; behind the blind prompt if that is asked for and there is one.
    fn sequence(&self, blind: bool) -> (Vec<u32>, Vec<bool>) {
        match self.blind.as_ref().filter(|_| blind) {
            None => (self.tokens.clone(), self.decisions.clone()),
            Some(Blind { replaced, tokens }) => (
                [tokens, &self.tokens[*replaced..]].concat(),
                [&vec![false; tokens.len()][..], &self.decisions[*replaced..]].concat(),
            ),
        }
    }
}

/// Refuses examples that cannot be learned from.
pub(super) fn check(examples: &[Example], config: &Config) -> Result<(), ModelError> {
    for (index, example) in examples.iter().enumerate() {
        let undecided = example.decisions.iter().position(|d| *d).unwrap_or(example.tokens.len());
        let blind_length = |blind: &Blind| blind.tokens.len() + example.tokens.len().saturating_sub(blind.replaced);
        let problem = if example.tokens.len() < 2 || example.tokens.len() > config.max_sequence {
            format!("{} tokens where 2 to {} are possible", example.tokens.len(), config.max_sequence)
        } else if let Some(token) = example
            .tokens
            .iter()
            .chain(example.blind.iter().flat_map(|blind| &blind.tokens))
            .find(|token| **token as usize >= config.vocabulary)
        {
            format!("token {token} is outside of the vocabulary of {}", config.vocabulary)
        } else if example.decisions.len() != example.tokens.len() {
            format!("{} decision marks for {} tokens", example.decisions.len(), example.tokens.len())
        } else if example.decisions[0] {
            "the first token is marked as a decision".to_string()
        } else if !example.weight.is_finite() || example.weight < 0.0 || !example.score.is_finite() {
            format!("weight {} or score {} is out of range", example.weight, example.score)
        } else if example.blind.as_ref().is_some_and(|blind| {
            blind.tokens.is_empty()
                || blind.replaced > undecided.min(example.tokens.len() - 1)
                || blind_length(blind) > config.max_sequence
        }) {
            "its blind prompt is empty, replaces decisions, or makes the sequence too long".to_string()
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
    /// Whether values are learned from it: unless the prompts tell the scores.
    pub values: bool,
}

impl Batch {
    /// `members` are positions in `examples`, of one group; `blind`, behind their blind prompts.
    pub fn new(examples: &[Example], members: &[usize], blind: bool, random: &mut ChaCha8Rng) -> Batch {
        let members: Vec<&Example> = members.iter().map(|i| &examples[*i]).collect();
        let sequences: Vec<(Vec<u32>, Vec<bool>)> = members.iter().map(|e| e.sequence(blind)).collect();
        // the row before a decision predicts it, so it must stand behind the prefix
        let shared = common_prefix(&sequences);
        let undecided = sequences.iter().filter_map(|(_, d)| d.iter().position(|d| *d)).min().unwrap_or(usize::MAX);
        let shortest = sequences.iter().map(|(tokens, _)| tokens.len()).min().unwrap_or(1);
        let start = shared.min(undecided.saturating_sub(1)).min(shortest - 1);
        let length = sequences.iter().map(|(tokens, _)| tokens.len() - start).max().unwrap_or(0);
        let mut batch = Batch {
            prefix: sequences.first().map_or(Vec::new(), |(tokens, _)| tokens[..start].to_vec()),
            suffixes: vec![0; members.len() * length],
            members: members.len(),
            tokens: start + sequences.iter().map(|(tokens, _)| tokens.len() - start).sum::<usize>(),
            policy_rows: Vec::new(),
            policy_targets: Vec::new(),
            policy_weights: Vec::new(),
            last_rows: Vec::new(),
            early_rows: Vec::new(),
            scores: members.iter().map(|e| e.score).collect(),
            values: members.iter().all(|e| blind || e.blind.is_none()),
        };
        for (member, (example, (tokens, decisions))) in members.iter().zip(&sequences).enumerate() {
            let suffix = &tokens[start..];
            let first_row = member * length;
            batch.suffixes[first_row..][..suffix.len()].copy_from_slice(suffix);
            for (i, token) in suffix.iter().enumerate().skip(1).filter(|(i, _)| decisions[start + i]) {
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

fn common_prefix(sequences: &[(Vec<u32>, Vec<bool>)]) -> usize {
    let Some(((first, _), others)) = sequences.split_first() else { return 0 };
    let shared = |(other, _): &(Vec<u32>, _)| first.iter().zip(other).take_while(|(a, b)| a == b).count();
    others.iter().map(shared).min().unwrap_or(first.len())
}

/// One epoch: members of each group in random batches of up to `size`, alike in length, in random order. Of each group some are left out: they
/// are drawn one after the other, those of weight 0 `least_share` times as likely as those of weight 1. All epochs are of the same length.
pub(super) fn epoch(
    examples: &[Example],
    chosen: &[usize],
    size: usize,
    least_share: f32,
    (seed, epoch): (u64, u64),
) -> Vec<Vec<usize>> {
    /// Batches that are formed together, sorted by length, so that little is padding.
    const POOL: usize = 4;
    let share = |i: usize| f64::from(least_share + (1.0 - least_share) * examples[i].weight).clamp(1e-3, 1.0);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(2 * epoch);
    let mut groups: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    chosen.iter().for_each(|i| groups.entry(examples[*i].group).or_default().push(*i));
    let mut batches = Vec::new();
    for members in groups.values_mut() {
        let shown = members.iter().map(|i| share(*i)).sum::<f64>().round().max(1.0) as usize;
        // weighted sampling without replacement (Efraimidis and Spirakis 2006): the largest of uniform numbers to the power 1 / share
        let mut keys: Vec<(f64, usize)> =
            members.iter().map(|i| (random.random::<f64>().max(f64::MIN_POSITIVE).ln() / share(*i), *i)).collect();
        keys.sort_by(|a, b| b.0.total_cmp(&a.0));
        *members = keys.into_iter().take(shown).map(|(_, i)| i).collect();
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

    use super::{Batch, Blind, Example, epoch, split};

    fn example(tokens: &[u32], first_decision: usize, group: u64) -> Example {
        let decisions = (0..tokens.len()).map(|i| i >= first_decision).collect();
        Example { tokens: tokens.to_vec(), decisions, weight: 1.0, group, score: 0.0, blind: None }
    }

    #[test]
    fn rows_predict_every_decision_even_where_members_share_it() {
        let examples = [example(&[1, 2, 3, 4, 5], 3, 0), example(&[1, 2, 3, 4, 6, 7], 3, 0)];
        let batch = Batch::new(&examples, &[0, 1], false, &mut ChaCha8Rng::seed_from_u64(0));
        assert_eq!(batch.prefix, [1, 2]);
        assert_eq!(batch.suffixes, [3, 4, 5, 0, 3, 4, 6, 7]);
        assert_eq!(batch.policy_rows, [0, 1, 4, 5, 6]);
        assert_eq!(batch.policy_targets, [4, 5, 4, 6, 7]);
        assert_eq!(batch.last_rows, [2, 7]);
        assert_eq!(batch.tokens, 9);
    }

    #[test]
    fn a_blind_prompt_takes_the_place_of_the_one_that_tells() {
        let mut examples = [example(&[1, 9, 3, 4], 2, 0), example(&[1, 8, 5, 6], 2, 0)];
        for example in &mut examples {
            example.blind = Some(Blind { replaced: 2, tokens: vec![1, 7, 7] });
        }
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let batch = Batch::new(&examples, &[0, 1], true, &mut random);
        assert_eq!((batch.prefix, batch.suffixes), (vec![1, 7], vec![7, 3, 4, 7, 5, 6]));
        assert_eq!((batch.policy_rows, batch.policy_targets), (vec![0, 1, 3, 4], vec![3, 4, 5, 6]));
        assert!(batch.values);
        let batch = Batch::new(&examples, &[0, 1], false, &mut random);
        assert_eq!((batch.prefix, batch.suffixes), (vec![1], vec![9, 3, 4, 8, 5, 6]));
        assert!(!batch.values, "these prompts tell the scores");
    }

    #[test]
    fn an_epoch_holds_every_example_once_and_no_mixed_group() {
        let examples: Vec<Example> = (0..50).map(|i| example(&[1, 2, i], 2, u64::from(i % 3))).collect();
        let (train, held) = split(&examples, 0.3, 7);
        assert!(
            !held.is_empty() && train.iter().all(|i| held.iter().all(|h| examples[*h].group != examples[*i].group))
        );
        let batches = epoch(&examples, &train, 8, 1.0, (1, 0));
        assert!(batches.iter().all(|b| b.len() <= 8 && b.iter().all(|i| examples[*i].group == examples[b[0]].group)));
        let mut all = batches.concat();
        all.sort_unstable();
        assert_eq!(all, train);
        assert_eq!(batches, epoch(&examples, &train, 8, 1.0, (1, 0)));
        assert_ne!(batches, epoch(&examples, &train, 8, 1.0, (1, 1)));
    }
    #[test]
    fn what_weighs_little_is_shown_seldom_in_epochs_of_one_length() {
        let mut examples: Vec<Example> = (0..40).map(|i| example(&[1, 2, i], 2, 0)).collect();
        examples[..20].iter_mut().for_each(|example| example.weight = 0.0);
        let chosen: Vec<usize> = (0..40).collect();
        let mut shown = [0; 40];
        for number in 0..100 {
            let all = epoch(&examples, &chosen, 8, 0.25, (1, number)).concat();
            assert_eq!(all.len(), 25);
            all.into_iter().for_each(|i| shown[i] += 1);
        }
        let of = |half: &[u32]| f64::from(half.iter().sum::<u32>()) / 2000.0;
        let (light, heavy) = (of(&shown[..20]), of(&shown[20..]));
        assert!(light < 0.55 && heavy > 0.75, "{light} {heavy}");
    }
}
