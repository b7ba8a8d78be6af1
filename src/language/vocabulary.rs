//! The closed list of tokens: `vocabulary.txt`, a word a line. A token's id is the number of its line, from
//! 0.
//!
//! The list only ever grows. A new word takes the place of a spare token, or a new line at the end; no other
//! line changes, since checkpoints know tokens by their ids. A checkpoint of an older list still loads then
//! ([`Growth`]).

use std::collections::HashSet;

use thiserror::Error;

pub(super) const PADDING: &str = "<pad>";
pub(super) const END: &str = "<end>";
/// Never written by us; tokenizers want one.
pub(super) const UNKNOWN: &str = "<unk>";
/// How a site ends, and how a value ends.
pub(super) const EQUALS: &str = "=";
pub(super) const SEMICOLON: &str = ";";

/// Numbers up to here are one token each.
pub(super) const LARGEST_SINGLE: u64 = 64;
/// The base in which larger numbers are spelled.
pub(super) const BASE: u64 = 64;
/// Powers of two that a number is a multiple of, as exponents.
pub(super) const POWERS: std::ops::Range<u32> = 1..64;
/// Letters of names that are no words of the vocabulary; `\` starts any other byte, in two hexadecimal
/// digits.
pub(super) const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz0123456789._-\\";
/// Before the digits of a negative number, and of a float.
pub(super) const MINUS: &str = "#-";
pub(super) const FLOAT: &str = "#f";

/// What the names of spare tokens begin with. Nothing is ever spelled by them.
const SPARE: &str = "<spare";
/// The length of the first list that a checkpoint was trained on, and the id of the first of its spare
/// tokens, which were its last.
pub(super) const FIRST_LENGTH: usize = 702;
const FIRST_SPARE: usize = 602;

/// The most words of a list: ids are a model's, and its limit.
const LONGEST: usize = 65_536;

/// The shipped list.
pub(super) const STANDARD: &str = include_str!("vocabulary.txt");

/// A list of words that is no vocabulary: the fault of whoever wrote it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum VocabularyError {
    #[error("token {id}: `{word}` is empty or holds blanks")]
    Blank { id: usize, word: String },
    #[error("token {id}: `{word}` is there already")]
    Twice { id: usize, word: String },
    #[error("`{0}` is missing, which words are spelled by")]
    Missing(String),
    #[error("more than {LONGEST} tokens")]
    TooLong,
}

/// Why tokens of another vocabulary do not mean the same here.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum VocabularyMismatch {
    #[error(
        "it has {count} tokens that are unknown here, the first of them `{first}` (token {id}): a newer Tilescribe made it; update this one"
    )]
    Newer { count: usize, id: usize, first: String },
    #[error(
        "token {id} is `{found}` there and `{expected}` here: the lists were made apart; train a model for this one"
    )]
    Other { id: usize, found: String, expected: String },
}

/// What a vocabulary has that an older one lacks.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Growth {
    /// Ids of new words: spare tokens of the older list, and those behind its end.
    pub new: Vec<u32>,
    /// Ids of the words that both have.
    pub shared: Vec<u32>,
}

pub(super) fn is_spare(word: &str) -> bool {
    word.starts_with(SPARE)
}

/// The word of an id as the first list had it.
pub(super) fn first_word(id: usize, word: &str) -> String {
    match id.checked_sub(FIRST_SPARE) {
        Some(spare) => format!("{SPARE}{spare}>"),
        None => word.to_string(),
    }
}

/// Checks a list of words.
pub(super) fn check(words: &[String]) -> Result<(), VocabularyError> {
    if words.len() > LONGEST {
        return Err(VocabularyError::TooLong);
    }
    let mut known = HashSet::new();
    for (id, word) in words.iter().enumerate() {
        if word.is_empty() || word.contains(char::is_whitespace) {
            return Err(VocabularyError::Blank { id, word: word.clone() });
        }
        if !known.insert(word.as_str()) {
            return Err(VocabularyError::Twice { id, word: word.clone() });
        }
    }
    let marks = [PADDING, END, UNKNOWN, EQUALS, SEMICOLON, MINUS, FLOAT].map(str::to_string).into_iter();
    let numbers = (0..=LARGEST_SINGLE).map(|n| n.to_string()).chain((0..BASE).map(digit)).chain(POWERS.map(power));
    let letters = LETTERS.chars().flat_map(|c| [letter(c), last_letter(c)]);
    match marks.chain(numbers).chain(letters).find(|word| !known.contains(word.as_str())) {
        Some(missing) => Err(VocabularyError::Missing(missing)),
        None => Ok(()),
    }
}

/// How `words` have grown out of an `older` list.
pub(super) fn growth(words: &[String], older: &[String]) -> Result<Growth, VocabularyMismatch> {
    let known: HashSet<&String> = words.iter().collect();
    let mut growth = Growth::default();
    let mut unknown = Vec::new();
    for (id, found) in older.iter().enumerate() {
        match words.get(id) {
            Some(word) if is_spare(word) && is_spare(found) => {}
            Some(word) if word == found => growth.shared.push(id as u32),
            Some(_) if is_spare(found) => growth.new.push(id as u32),
            None => unknown.push((id, found)),
            Some(word) if is_spare(word) && !known.contains(found) => unknown.push((id, found)),
            Some(word) => {
                let (found, expected) = (found.clone(), word.clone());
                return Err(VocabularyMismatch::Other { id, found, expected });
            }
        }
    }
    if let Some((id, first)) = unknown.first() {
        return Err(VocabularyMismatch::Newer { count: unknown.len(), id: *id, first: (*first).clone() });
    }
    growth.new.extend((older.len()..words.len()).filter(|id| !is_spare(&words[*id])).map(|id| id as u32));
    Ok(growth)
}

/// A digit that others follow.
pub(super) fn digit(digit: u64) -> String {
    format!("{digit}:")
}

/// A power of two.
pub(super) fn power(exponent: u32) -> String {
    format!("2^{exponent}")
}

/// A letter that others follow.
pub(super) fn letter(letter: char) -> String {
    format!("~{letter}")
}

/// The last letter of a name.
pub(super) fn last_letter(letter: char) -> String {
    format!("{letter}~")
}
