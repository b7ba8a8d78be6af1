//! Training examples: sequences with what was decided in them, and how good that was.

use std::sync::Arc;

use super::position::{check_answers, check_positions};
use super::{Config, ModelError, Position};

/// One sequence to learn from. What many have in common is shared.
#[derive(Clone, PartialEq, Debug)]
pub struct Example {
    /// Read first, at least one position; nothing in it is decided.
    pub prompt: Arc<[Position]>,
    /// What is read and decided behind the prompt, at least one step.
    pub steps: Vec<Step>,
    /// How much the policy's loss counts: 0 or more.
    pub weight: f32,
    /// Examples of one group (a task on one machine) are ranked among each other.
    pub group: u64,
    /// Where the task stands among all, from 0 to 1: the lowest are held out of training.
    pub place: f32,
    /// Log speed relative to the best of the group: 0 for the best, lower for slower ones.
    pub score: f32,
    /// Another prompt, which does not tell the score, for the value head to learn behind.
    pub blind: Option<Arc<[Position]>>,
    /// The prompt that asks for the best, to learn preferences behind.
    pub asking: Option<Arc<[Position]>>,
    /// How others of the group are shown in front of it.
    pub shown: Option<Arc<Shown>>,
}

/// What is read at one position behind a prompt, and decided there.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    pub position: Arc<Position>,
    /// All answers that are possible; none where no question is asked.
    pub answers: Arc<[Vec<u32>]>,
    /// Which of them was chosen.
    pub chosen: usize,
}

impl Example {
    /// Positions with the prompt.
    pub fn length(&self) -> usize {
        self.prompt.len() + self.steps.len()
    }

    pub(super) fn is_of_best_decile(&self) -> bool {
        decile(self.score.exp()) == 9
    }
}

/// Refuses examples that cannot be learned from.
pub(super) fn check(examples: &[Example], config: &Config) -> Result<(), ModelError> {
    for (index, example) in examples.iter().enumerate() {
        check_one(example, config).map_err(|problem| ModelError::Example { index, problem })?;
    }
    Ok(())
}

fn check_one(example: &Example, config: &Config) -> Result<(), String> {
    let Example { weight, score, place, .. } = example;
    if !weight.is_finite() || *weight < 0.0 || !score.is_finite() || !(0.0..=1.0).contains(place) {
        return Err(format!("weight {weight}, score {score} or place {place} is out of range"));
    }
    for prompt in std::iter::once(&example.prompt).chain(&example.blind).chain(&example.asking) {
        let length = prompt.len() + example.steps.len();
        if prompt.is_empty() || example.steps.is_empty() || length > config.max_sequence {
            return Err(format!(
                "{} positions behind a prompt of {} where 1 behind 1 to {} together are possible",
                example.steps.len(),
                prompt.len(),
                config.max_sequence
            ));
        }
        check_positions(prompt, config.vocabulary).map_err(|error| error.to_string())?;
    }
    if let Some(shown) = &example.shown {
        if shown.prompt.is_empty() || shown.deciles.len() != 10 {
            return Err("programs are shown behind a prompt, and tell one of ten deciles".into());
        }
        if shown.prompt.len() + example.steps.len() > config.max_sequence {
            return Err("nothing can be shown in front of it".into());
        }
        let known = |positions| check_positions(positions, config.vocabulary).map_err(|error| error.to_string());
        known(&shown.prompt)?;
        known(&shown.deciles)?;
    }
    for step in &example.steps {
        let position = std::slice::from_ref(step.position.as_ref());
        check_positions(position, config.vocabulary).map_err(|error| error.to_string())?;
        if !step.answers.is_empty() {
            check_answers(&step.answers, config.vocabulary).map_err(|error| error.to_string())?;
            if step.chosen >= step.answers.len() {
                return Err(format!("answer {} of {}", step.chosen, step.answers.len()));
            }
        }
    }
    Ok(())
}

/// How a group's programs are shown in a prompt; all examples of the group share it.
#[derive(Clone, PartialEq, Debug)]
pub struct Shown {
    /// Comes before them, at least one position.
    pub prompt: Vec<Position>,
    /// What follows a program, by the decile of its speed relative to the fastest shown: ten positions.
    pub deciles: Vec<Position>,
}

impl Shown {
    /// The position behind a program of this speed relative to the fastest shown.
    pub fn measured(&self, relative_speed: f32) -> &Position {
        &self.deciles[usize::from(decile(relative_speed)).min(self.deciles.len() - 1)]
    }
}

/// 9 for more than nine tenths of the best speed, 0 for up to one tenth.
pub fn decile(relative_speed: f32) -> u8 {
    ((relative_speed * 10.0).ceil() as u8).saturating_sub(1).min(9)
}

#[cfg(test)]
mod tests {
    use super::decile;

    #[test]
    fn deciles_count_from_the_slowest() {
        let deciles: Vec<u8> = [0.0, 0.05, 0.1, 0.11, 0.9, 0.91, 1.0].into_iter().map(decile).collect();
        assert_eq!(deciles, [0, 0, 0, 1, 8, 9, 9]);
    }
}
