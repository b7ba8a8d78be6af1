//! Training examples, and how they share work: examples of a group that start alike become one batch with one
//! prefix.

use std::collections::BTreeMap;

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Position;
use super::example::Example;
use super::shown::{Groups, lead};

/// Members of one group behind their common prefix.
#[derive(Debug)]
pub(super) struct Batch<'a> {
    /// What all members start with.
    pub prefix: Vec<&'a Position>,
    /// What follows, padded to the longest: `[members, length]`.
    pub suffixes: Vec<&'a Position>,
    pub members: usize,
    /// Positions without padding.
    pub positions: usize,
    /// Questions with several answers: their rows of `[members · length]`, answers, which was chosen, and its
    /// weight.
    pub rows: Vec<u32>,
    pub questions: Vec<&'a [Vec<u32>]>,
    pub chosen: Vec<usize>,
    pub weights: Vec<f32>,
    /// Whose each of these is.
    pub member_of: Vec<u32>,
    /// The row of each member's last position.
    pub last_rows: Vec<u32>,
    /// A random earlier row of each member, where a value is learned too.
    pub early_rows: Vec<u32>,
    pub scores: Vec<f32>,
    /// What is learned from it beside what the policy chose.
    pub lesson: Lesson,
}

/// What a batch teaches beside what was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lesson {
    /// Nothing: the prompts tell the scores.
    Nothing,
    /// Values.
    Values,
    /// Which of two members the policy is to prefer. What both chose is asked for, then.
    Preferences,
}

/// What the members of a batch stand behind.
#[derive(Clone, Copy)]
pub(super) enum Behind<'g> {
    /// Prompts that tell the quality that was reached.
    Told,
    /// Prompts that do not.
    Blind,
    /// Prompts that ask for the best.
    Asking,
    /// A prompt that shows others of these groups, in sequences of at most so many positions.
    Shown(&'g Groups, usize),
}

impl<'a> Batch<'a> {
    /// `chosen` are positions in `examples`, of one group.
    pub fn new(examples: &'a [Example], chosen: &[usize], behind: Behind<'_>, random: &mut ChaCha8Rng) -> Batch<'a> {
        let members: Vec<&Example> = chosen.iter().map(|i| &examples[*i]).collect();
        let how = members.first().and_then(|first| first.shown.as_deref());
        if let (Behind::Shown(groups, most), Some(how)) = (behind, how) {
            let longest = members.iter().map(|example| example.steps.len()).max().unwrap_or(0);
            let room = most.saturating_sub(how.prompt.len() + longest);
            let shown = groups.shown_to(examples, chosen, room, random);
            let fastest = shown.iter().map(|i| examples[*i].score).fold(f32::NEG_INFINITY, f32::max);
            let prefix = lead(examples, &shown, how);
            let learns = |example: &Example| example.score > fastest;
            let own = members.into_iter().map(|m| (&[][..], m)).collect();
            return Batch::behind(prefix, own, Lesson::Values, learns, random);
        }
        let prompt_of = |example: &'a Example| -> &'a [Position] {
            let other = match behind {
                Behind::Told => None,
                Behind::Blind | Behind::Shown(..) => example.blind.as_ref(),
                Behind::Asking => example.asking.as_ref(),
            };
            other.unwrap_or(&example.prompt)
        };
        // what is decided stands behind the prefix
        let prompts: Vec<&[Position]> = members.iter().map(|example| prompt_of(example)).collect();
        let start = common_prefix(&prompts);
        let prefix = prompts.first().map_or(Vec::new(), |first| first[..start].iter().collect());
        let tells = members.iter().any(|example| example.blind.is_some());
        let lesson = match behind {
            Behind::Asking => Lesson::Preferences,
            Behind::Told if tells => Lesson::Nothing,
            _ => Lesson::Values,
        };
        let own = prompts.into_iter().map(|prompt| &prompt[start..]).zip(members).collect();
        Batch::behind(prefix, own, lesson, |_| true, random)
    }

    /// Members with what is left of their prompts, behind a common prefix.
    fn behind(
        prefix: Vec<&'a Position>,
        members: Vec<(&'a [Position], &'a Example)>,
        lesson: Lesson,
        learns: impl Fn(&Example) -> bool,
        random: &mut ChaCha8Rng,
    ) -> Batch<'a> {
        let length_of = |(prompt, example): &(&[Position], &Example)| prompt.len() + example.steps.len();
        let length = members.iter().map(length_of).max().unwrap_or(0);
        let mut batch = Batch {
            positions: prefix.len() + members.iter().map(length_of).sum::<usize>(),
            prefix,
            suffixes: Vec::with_capacity(members.len() * length),
            members: members.len(),
            rows: Vec::new(),
            questions: Vec::new(),
            chosen: Vec::new(),
            weights: Vec::new(),
            member_of: Vec::new(),
            last_rows: Vec::new(),
            early_rows: Vec::new(),
            scores: members.iter().map(|(_, example)| example.score).collect(),
            lesson,
        };
        for (number, member) in members.into_iter().enumerate() {
            let (first_row, own) = (number * length, length_of(&member));
            let (prompt, example) = member;
            batch.suffixes.extend(prompt.iter().chain(example.steps.iter().map(|step| step.position.as_ref())));
            if let Some(last) = batch.suffixes.last().copied() {
                // later positions are seen by none of the earlier ones, and nothing is learned there
                batch.suffixes.resize(first_row + length, last);
            }
            let first_step = first_row + prompt.len();
            // behind prompts that ask for the best, only that is imitated
            let weight = match lesson {
                Lesson::Preferences if !example.is_of_best_decile() => 0.0,
                _ => example.weight,
            };
            let is_asked = lesson == Lesson::Preferences || (weight > 0.0 && learns(example));
            for (at, step) in example.steps.iter().enumerate().filter(|(_, step)| is_asked && step.answers.len() > 1) {
                batch.rows.push((first_step + at) as u32);
                batch.questions.push(&step.answers);
                batch.chosen.push(step.chosen);
                batch.weights.push(weight);
                batch.member_of.push(number as u32);
            }
            batch.last_rows.push((first_row + own - 1) as u32);
            batch.early_rows.push((first_row + random.random_range(0..own)) as u32);
        }
        batch
    }
}

/// Positions that all prompts start with.
fn common_prefix(prompts: &[&[Position]]) -> usize {
    let Some((first, others)) = prompts.split_first() else { return 0 };
    let shared = |other: &&[Position]| first.iter().zip(*other).take_while(|(a, b)| a == b).count();
    others.iter().map(shared).min().unwrap_or(first.len())
}

/// One epoch: members of each group in random batches of up to `size`, alike in length, in random order. Of
/// each group some are left out: they are drawn one after the other, those of weight 0 `least_share` times as
/// likely as those of weight 1. All epochs are of the same length.
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
        // weighted sampling without replacement (Efraimidis and Spirakis 2006): the largest of uniform
        // numbers to the power 1 / share
        let mut keys: Vec<(f64, usize)> =
            members.iter().map(|i| (random.random::<f64>().max(f64::MIN_POSITIVE).ln() / share(*i), *i)).collect();
        keys.sort_by(|a, b| b.0.total_cmp(&a.0));
        *members = keys.into_iter().take(shown).map(|(_, i)| i).collect();
        members.shuffle(&mut random);
        for pool in members.chunks_mut(POOL * size) {
            pool.sort_by_key(|i| examples[*i].length());
            batches.extend(pool.chunks(size).map(<[usize]>::to_vec));
        }
    }
    batches.shuffle(&mut random);
    batches
}

/// Positions of examples to train with, and of those held out: whole tasks, those of the lowest places; at
/// least one if there are two or more.
pub(super) fn split(examples: &[Example], held_out: f32) -> (Vec<usize>, Vec<usize>) {
    let mut places: Vec<f32> = examples.iter().map(|example| example.place).collect();
    places.sort_unstable_by(f32::total_cmp);
    places.dedup();
    let wanted = places.partition_point(|place| *place < held_out);
    let count = if held_out > 0.0 { wanted.clamp(1, places.len().max(2) - 1) } else { 0 };
    // fewer than two tasks: none can be spared
    let first_shown = if places.len() < 2 { None } else { places.get(count) };
    (0..examples.len()).partition(|i| first_shown.is_none_or(|first| examples[*i].place >= *first))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::{Batch, Behind, Example, Lesson, Position, epoch, split};
    use crate::model::Config;
    use crate::model::example::{Shown, Step, check};
    use crate::model::shown::Groups;

    fn prompt(tokens: &[u32]) -> Arc<[Position]> {
        tokens.iter().map(|token| Position::word(vec![*token])).collect()
    }

    /// A sequence of single tokens, where every step but the last decides between 7, 8 and 9.
    fn example(before: &[u32], steps: &[u32], group: u64) -> Example {
        let answers: Arc<[Vec<u32>]> = [vec![7], vec![8], vec![9]].into();
        let step = |(at, token): (usize, &u32)| Step {
            position: Arc::new(Position::word(vec![*token])),
            answers: if at + 1 < steps.len() { Arc::clone(&answers) } else { Arc::new([]) },
            chosen: at % 3,
        };
        let steps = steps.iter().enumerate().map(step).collect();
        Example {
            prompt: prompt(before),
            steps,
            weight: 1.0,
            group,
            place: group as f32 / 4.0,
            score: 0.0,
            blind: None,
            asking: None,
            shown: None,
        }
    }

    fn tokens(positions: &[&Position]) -> Vec<u32> {
        positions.iter().map(|position| position.question[0]).collect()
    }

    #[test]
    fn every_question_has_its_row_behind_the_shared_prompt() {
        let examples = [example(&[1, 2], &[3, 4, 5], 0), example(&[1, 2], &[3, 4, 6, 7], 0)];
        let batch = Batch::new(&examples, &[0, 1], Behind::Told, &mut ChaCha8Rng::seed_from_u64(0));
        assert_eq!(tokens(&batch.prefix), [1, 2]);
        assert_eq!(tokens(&batch.suffixes), [3, 4, 5, 5, 3, 4, 6, 7]);
        assert_eq!((batch.rows, batch.chosen), (vec![0, 1, 4, 5, 6], vec![0, 1, 0, 1, 2]));
        assert_eq!((batch.questions.len(), batch.questions[0]), (5, &[vec![7], vec![8], vec![9]][..]));
        assert_eq!(batch.last_rows, [2, 7]);
        assert_eq!(batch.positions, 9);
    }

    #[test]
    fn a_blind_prompt_takes_the_place_of_the_one_that_tells() {
        let mut examples = [example(&[1, 9], &[3, 4], 0), example(&[1, 8], &[5, 6], 0)];
        for example in &mut examples {
            example.blind = Some(prompt(&[1, 7, 7]));
        }
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let batch = Batch::new(&examples, &[0, 1], Behind::Blind, &mut random);
        assert_eq!((tokens(&batch.prefix), tokens(&batch.suffixes)), (vec![1, 7, 7], vec![3, 4, 5, 6]));
        assert_eq!(batch.rows, [0, 2]);
        assert_eq!(batch.lesson, Lesson::Values);
        let batch = Batch::new(&examples, &[0, 1], Behind::Told, &mut random);
        assert_eq!((tokens(&batch.prefix), tokens(&batch.suffixes)), (vec![1], vec![9, 3, 4, 8, 5, 6]));
        assert_eq!(batch.rows, [1, 4]);
        assert_eq!(batch.lesson, Lesson::Nothing, "these prompts tell the scores");
    }

    #[test]
    fn slower_ones_of_the_group_are_shown_and_faster_ones_learned() {
        let how = Arc::new(Shown {
            prompt: prompt(&[1, 2]).to_vec(),
            deciles: (40..50).map(|token| Position::word(vec![token])).collect(),
        });
        let mut examples: Vec<Example> = (0..12).map(|i| example(&[1, 9], &[10 + i, 4], 0)).collect();
        // no speed is a whole number of tenths of another
        let speed = |i: u32| 10 * i + 13;
        for (i, example) in (0..12).zip(&mut examples) {
            (example.score, example.shown) = ((speed(i) as f32 / speed(11) as f32).ln(), Some(Arc::clone(&how)));
        }
        let groups = Groups::new(&examples, &(0..12).collect::<Vec<_>>());
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let mut counts = [0; 10];
        for _ in 0..200 {
            let batch = Batch::new(&examples, &[5, 8, 11], Behind::Shown(&groups, 14), &mut random);
            let prefix = tokens(&batch.prefix);
            assert!(prefix.starts_with(&[1, 2]) && prefix.len() % 3 == 2 && prefix.len() <= 12, "{prefix:?}");
            let shown: Vec<u32> = prefix[2..].chunks(3).map(|program| program[0] - 10).collect();
            counts[shown.len()] += 1;
            assert!(shown.is_sorted() && shown.iter().all(|i| ![5, 8, 11].contains(i)), "{shown:?}");
            if let Some(fastest) = shown.last() {
                let told: Vec<u32> = prefix[2..].chunks(3).map(|program| program[2] - 40).collect();
                let relative = |i: &u32| (10 * speed(*i)).div_ceil(speed(*fastest)) - 1;
                assert_eq!(told, shown.iter().map(relative).collect::<Vec<u32>>());
            }
            // at each of its two steps there is a question, but behind the last there is none
            let better = [5, 8, 11].iter().filter(|i| shown.last().is_none_or(|fastest| *i > fastest)).count();
            assert!(better > 0 && batch.rows.len() == better && batch.lesson == Lesson::Values, "{shown:?}");
            assert_eq!(tokens(&batch.suffixes), [15, 4, 18, 4, 21, 4]);
        }
        // three positions each, behind two of the prompt and before two of a member, of 14
        assert!(
            counts[..4].iter().all(|count| *count > 5) && counts[4..].iter().all(|count| *count == 0),
            "{counts:?}"
        );
    }

    #[test]
    fn what_cannot_be_learned_from_is_refused() {
        let config = Config { max_sequence: 5, ..Config::standard(10) };
        let fine = example(&[1, 2], &[3, 4, 5], 0);
        assert!(check(std::slice::from_ref(&fine), &config).is_ok());
        let refused = |change: &dyn Fn(&mut Example)| {
            let mut example = fine.clone();
            change(&mut example);
            check(&[example], &config).is_err()
        };
        assert!(
            refused(&|e| e.place = 1.5) && refused(&|e| e.weight = f32::NAN) && refused(&|e| e.score = f32::INFINITY)
        );
        assert!(refused(&|e| e.prompt = prompt(&[])) && refused(&|e| e.steps.clear()));
        assert!(refused(&|e| e.prompt = prompt(&[1, 2, 3])) && refused(&|e| e.blind = Some(prompt(&[1, 2, 3]))));
        assert!(refused(&|e| e.prompt = prompt(&[10])) && refused(&|e| e.blind = Some(prompt(&[10]))));
        assert!(refused(&|e| e.steps[0].chosen = 3) && refused(&|e| e.steps[1].answers = [vec![1], vec![]].into()));
        assert!(refused(&|e| e.steps[0].answers = [vec![10]].into()));
        assert!(refused(&|e| e.steps[0].position = Arc::new(Position::default())));
    }

    #[test]
    fn an_epoch_holds_every_example_once_and_no_mixed_group() {
        let examples: Vec<Example> = (0..50).map(|i| example(&[1, 2], &[i], u64::from(i % 3))).collect();
        let (train, held) = split(&examples, 0.3);
        assert!(
            !held.is_empty() && train.iter().all(|i| held.iter().all(|h| examples[*h].group != examples[*i].group))
        );
        let shown = |share: f32| split(&examples, share).0.len();
        // two of three tasks; all but the last; all that there are
        assert_eq!((shown(0.2), shown(1.0), shown(0.0)), (33, 16, 50));
        assert_eq!(split(&examples[..1], 0.5), (vec![0], vec![]));
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
        let mut examples: Vec<Example> = (0..40).map(|i| example(&[1, 2], &[i], 0)).collect();
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
