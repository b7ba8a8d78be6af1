//! The tensor language: tasks and traces as text and as token ids, without loss in either direction.
//!
//! A sequence is a prompt, then the decisions, then an end token:
//!
//! ```text
//! target x86_64 lanes 16 registers 32 cores 2 l1 49152 l2 2097152 l3 34603008
//! const t0 768 3072
//! input t1 128 768
//! out t2 128 3072 sum 768 mul t0 c b t1 a c
//! want 9
//! tile s0 a = 6 ;
//! tile s0 b = 64 ;
//! <end>
//! ```
//!
//! A prompt that ends with `want better` is followed by programs that were measured, the slowest first, and
//! behind each its speed, a decile of the fastest one's: `measured 9`. Then a program begins that is faster
//! than all of them.
//!
//! Every word of a closed vocabulary ([`Language::vocabulary`]) is one token. Numbers up to 64 are one token
//! each, larger ones are spelled as `2^k · m` in base 64, negative ones and uncommon floats likewise (see
//! `words.rs`); any other name is spelled by its letters. So there is no unknown token, whatever the workload
//! and the machine are.
//!
//! Nothing in here does IO or depends on hash order.

mod task;
mod tokenizer;
mod vocabulary;
mod words;

use std::collections::HashMap;
use std::fmt;

use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::space::{Choice, ParseError, Trace, Words};
use crate::target::Task;

pub use task::{TaskError, parse_task, print_task, target_line};
pub use tokenizer::{tokenizer_json, tokenizer_words};
pub use vocabulary::{Growth, VocabularyError, VocabularyMismatch};

use vocabulary::{EQUALS, SEMICOLON};

/// Token ids that are no trace: the fault of whoever wrote them.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LanguageError {
    #[error("token {at}: there is no token {id}")]
    UnknownToken { at: usize, id: u32 },
    #[error("token {at}: `{found}` where {expected} is expected")]
    Unexpected { at: usize, expected: &'static str, found: String },
    #[error("the tokens end where {expected} is expected")]
    End { expected: &'static str },
    #[error(transparent)]
    Word(#[from] ParseError),
}

/// The quality that a prompt asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Want {
    /// Nothing in particular.
    Any,
    /// This decile of the best known speed: 9 for the best.
    Decile(u8),
    /// A program faster than all that follow the prompt, each with what it was measured at (see
    /// [`Language::encode_measured`]).
    Better,
}

impl fmt::Display for Want {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Want::Any => f.write_str("any"),
            Want::Decile(decile) => decile.fmt(f),
            Want::Better => f.write_str("better"),
        }
    }
}

/// The vocabulary, both ways.
#[derive(Clone, Debug)]
pub struct Language {
    spellings: Vec<String>,
    ids: HashMap<String, u32>,
    marks: words::Marks,
}

/// How models read sequences: all words of a site at once, with the value before. Changed whenever that or
/// the spelling of words changes.
const SEQUENCES: &str = "a position for each decision\n";

impl Language {
    /// The language that Tilescribe ships.
    pub fn standard() -> Language {
        Language::of(vocabulary::STANDARD)
    }

    /// A language of other words, a word a line, each with the number of its line as its id.
    ///
    /// # Errors
    /// [`VocabularyError`] where words are not distinct, or one is missing that others are spelled by.
    pub fn from_words(list: &str) -> Result<Language, VocabularyError> {
        let language = Language::of(list);
        vocabulary::check(&language.spellings).map(|()| language)
    }

    fn of(list: &str) -> Language {
        let spellings: Vec<String> = list.lines().map(str::to_string).collect();
        let ids = spellings.iter().enumerate().map(|(id, s)| (s.clone(), id as u32)).collect();
        let marks = words::Marks::new(&ids);
        Language { spellings, ids, marks }
    }

    /// The spelling of every token, by id. Spellings are distinct and hold no blanks.
    pub fn vocabulary(&self) -> &[String] {
        &self.spellings
    }

    /// What the vocabulary has that an older one lacks, which was written by a list of words.
    ///
    /// # Errors
    /// [`VocabularyMismatch`] where the other one is no older one of this: it has words that are unknown
    /// here, or other ids.
    pub fn growth_since(&self, older: &[String]) -> Result<Growth, VocabularyMismatch> {
        vocabulary::growth(&self.spellings, older)
    }

    /// The first 16 hexadecimal digits of the SHA-256 of the form of sequences and of the first list of
    /// words: checkpoints of another version are refused. New words leave it as it is, whether they take the
    /// place of spare tokens or come behind the last; see [`Language::growth_since`].
    pub fn version(&self) -> String {
        let mut digest = Sha256::new();
        digest.update(SEQUENCES.as_bytes());
        for (id, spelling) in self.spellings.iter().enumerate().take(vocabulary::FIRST_LENGTH) {
            digest.update(vocabulary::first_word(id, spelling).as_bytes());
            digest.update(b"\n");
        }
        digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }

    /// What fills up shorter sequences of a batch.
    pub fn padding(&self) -> u32 {
        self.id(vocabulary::PADDING)
    }

    /// What follows the last decision.
    pub fn end(&self) -> u32 {
        self.id(vocabulary::END)
    }

    /// What comes before the decisions: the target, the workload as it is given (see
    /// [`crate::workload::canonical`]), and the quality asked for.
    pub fn encode_prompt(&self, task: &Task, want: Want) -> Vec<u32> {
        self.prompt_words(task, want).concat()
    }

    /// The tokens of each word of [`Language::encode_prompt`].
    pub fn prompt_words(&self, task: &Task, want: Want) -> Vec<Vec<u32>> {
        let text = format!("{}\n{}want {want}", target_line(&task.target), task.workload);
        text.split_ascii_whitespace().map(|word| self.encode_word(word)).collect()
    }

    /// What follows a program that a prompt shows, of a decile of the fastest one that it shows.
    pub fn encode_measured(&self, decile: u8) -> Vec<u32> {
        [self.encode_word("measured"), self.encode_word(&decile.to_string())].concat()
    }

    /// The tokens of a site or a value, without what ends it.
    pub fn encode_words(&self, words: &Words) -> Vec<u32> {
        words.0.iter().flat_map(|word| self.encode_word(&word.to_string())).collect()
    }

    /// The words of a site, and what ends them.
    pub fn encode_site(&self, site: &Words) -> Vec<u32> {
        self.with_end(site, EQUALS)
    }

    /// The words of a value, and what ends them. No value's tokens begin another's.
    pub fn encode_value(&self, value: &Words) -> Vec<u32> {
        self.with_end(value, SEMICOLON)
    }

    /// All decisions, and the end.
    pub fn encode_trace(&self, trace: &Trace) -> Vec<u32> {
        let choices = trace.0.iter().flat_map(|c| [self.encode_site(&c.site), self.encode_value(&c.value)].concat());
        choices.chain([self.end()]).collect()
    }

    /// Reads what [`Language::encode_trace`] writes; the end may be missing, padding may follow it.
    ///
    /// # Errors
    /// [`LanguageError`] for anything else.
    pub fn decode_trace(&self, tokens: &[u32]) -> Result<Trace, LanguageError> {
        let (equals, semicolon) = (self.id(EQUALS), self.id(SEMICOLON));
        let mut choices = Vec::new();
        let mut at = 0;
        while at < tokens.len() && tokens[at] != self.end() {
            let (site, next) = self.decode_until(tokens, at, equals, "`=`")?;
            let (value, next) = self.decode_until(tokens, next, semicolon, "`;`")?;
            choices.push(Choice { site, value });
            at = next;
        }
        match tokens.iter().enumerate().skip(at + 1).find(|(_, id)| **id != self.padding()) {
            Some((at, id)) => {
                Err(LanguageError::Unexpected { at, expected: "padding", found: self.spelling(at, *id)?.to_string() })
            }
            None => Ok(Trace(choices)),
        }
    }

    /// Any tokens as text, a line for each fact and decision, for people. Text of prompts and traces parses
    /// again.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let mut text = String::new();
        let mut at = 0;
        while at < tokens.len() {
            let (word, next) = match self.decode_word(tokens, at) {
                Ok(decoded) => decoded,
                Err(_) => (self.spellings.get(tokens[at] as usize).cloned().unwrap_or_else(|| "<?>".into()), at + 1),
            };
            at = next;
            let starts_line = matches!(word.as_str(), "input" | "const" | "let" | "out" | "want");
            if word == SEMICOLON || (starts_line && !text.is_empty() && !text.ends_with('\n')) {
                text.push('\n');
            } else if !text.is_empty() && !text.ends_with('\n') {
                text.push(' ');
            }
            if word != SEMICOLON {
                text.push_str(&word);
            }
            // the quality is one word, and ends the prompt
            if text.rsplit('\n').next().is_some_and(|line| line.starts_with("want ")) {
                text.push('\n');
            }
        }
        text
    }

    /// The spellings of tokens with blanks between them: what the tokenizer of [`tokenizer_json`] reads.
    ///
    /// # Errors
    /// [`LanguageError::UnknownToken`] for ids past the vocabulary.
    pub fn spell(&self, tokens: &[u32]) -> Result<String, LanguageError> {
        let spelled: Result<Vec<&str>, LanguageError> =
            tokens.iter().enumerate().map(|(at, id)| self.spelling(at, *id)).collect();
        Ok(spelled?.join(" "))
    }

    fn with_end(&self, words: &Words, terminator: &str) -> Vec<u32> {
        [self.encode_words(words), vec![self.id(terminator)]].concat()
    }

    fn decode_until(
        &self,
        tokens: &[u32],
        start: usize,
        terminator: u32,
        expected: &'static str,
    ) -> Result<(Words, usize), LanguageError> {
        let mut words = Vec::new();
        let mut at = start;
        loop {
            match tokens.get(at) {
                None => return Err(LanguageError::End { expected }),
                Some(id) if *id == terminator && !words.is_empty() => return Ok((Words(words), at + 1)),
                Some(_) => {
                    let (word, next) = self.decode_word(tokens, at)?;
                    words.push(word.parse()?);
                    at = next;
                }
            }
        }
    }

    fn spelling(&self, at: usize, id: u32) -> Result<&str, LanguageError> {
        self.spellings.get(id as usize).map(String::as_str).ok_or(LanguageError::UnknownToken { at, id })
    }

    /// The id of a spelling that the vocabulary is known to hold.
    fn id(&self, spelling: &str) -> u32 {
        self.ids.get(spelling).copied().unwrap_or_default()
    }
}
