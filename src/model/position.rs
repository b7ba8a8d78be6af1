//! What the model reads and chooses from: a few tokens together, each in a slot.
//!
//! A position of a sequence holds all words of a question, and of the answer to the one before. So a sequence
//! is as long as there are decisions, not tokens, and an answer is chosen in one piece: its tokens are scored
//! together, and only the answers that are possible compete. Tokens are told apart by their slots, each of
//! which weighs the dimensions of the embedding in its own way.

use super::ModelError;

/// What is read at one position, at least one token. Tokens beyond the last slot of a [`super::Config`] share
/// that one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Position {
    /// The answer to the question before; empty at first.
    pub answer: Vec<u32>,
    /// The next question, or a word of a prompt.
    pub question: Vec<u32>,
}

impl Position {
    /// Something that answers nothing.
    pub fn word(tokens: Vec<u32>) -> Position {
        Position { answer: Vec::new(), question: tokens }
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.answer.len() + self.question.len()
    }

    /// Tokens and the slots in which they are read, of twice `slots`: questions in the first half.
    pub(super) fn slotted(&self, slots: usize) -> impl Iterator<Item = (u32, usize)> {
        let answer = slotted(&self.answer, slots).map(move |(token, slot)| (token, slots + slot));
        slotted(&self.question, slots).chain(answer)
    }
}

/// The tokens of an answer and their slots.
pub(super) fn slotted(tokens: &[u32], slots: usize) -> impl Iterator<Item = (u32, usize)> {
    tokens.iter().enumerate().map(move |(at, token)| (*token, at.min(slots - 1)))
}

/// Refuses positions that hold nothing, and tokens outside of the vocabulary.
pub(super) fn check_positions(positions: &[Position], vocabulary: usize) -> Result<(), ModelError> {
    for position in positions {
        if position.tokens() == 0 {
            return Err(ModelError::Empty);
        }
        check_tokens(&position.answer, vocabulary)?;
        check_tokens(&position.question, vocabulary)?;
    }
    Ok(())
}

/// Refuses no answers at all, empty ones, and tokens outside of the vocabulary.
pub(super) fn check_answers(answers: &[Vec<u32>], vocabulary: usize) -> Result<(), ModelError> {
    if answers.is_empty() || answers.iter().any(Vec::is_empty) {
        return Err(ModelError::Empty);
    }
    answers.iter().try_for_each(|tokens| check_tokens(tokens, vocabulary))
}

fn check_tokens(tokens: &[u32], vocabulary: usize) -> Result<(), ModelError> {
    match tokens.iter().find(|token| **token as usize >= vocabulary) {
        Some(&token) => Err(ModelError::Token { token, vocabulary }),
        None => Ok(()),
    }
}
