//! One word to tokens and back.
//!
//! A number above 64 is `2^k · m` with an odd `m`: the token `2^k` (left out for odd numbers), then the
//! digits of `m` in base 64, all but the last marked by a colon. So its size and what divides it can be seen:
//! `3072` is `2^10 3`, `197` is `3: 5`, `3136` is `2^6 49`. A float that is no word is `#f`, its odd
//! mantissa, and its power of two. Spellings are unique: decoding refuses any other.

use std::collections::HashMap;

use super::vocabulary::{BASE, FLOAT, LARGEST_SINGLE, LETTERS, MINUS, POWERS, digit, last_letter, letter, power};
use super::{Language, LanguageError};
use crate::workload::text::{float_text, parse_float};

/// Ids of the tokens that words are spelled by.
#[derive(Clone, Debug)]
pub(super) struct Marks {
    /// By id.
    roles: HashMap<u32, Role>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Role {
    /// A number up to 64: a last digit, too.
    Number(u64),
    /// A digit that others follow.
    Digit(u64),
    Power(u32),
    Minus,
    Float,
    Letter(char),
    LastLetter(char),
}

impl Marks {
    pub(super) fn new(ids: &HashMap<String, u32>) -> Marks {
        let numbers = (0..=LARGEST_SINGLE).map(|n| (n.to_string(), Role::Number(n)));
        let digits = (0..BASE).map(|d| (digit(d), Role::Digit(d)));
        let powers = POWERS.map(|p| (power(p), Role::Power(p)));
        let letters = LETTERS.chars().map(|c| (letter(c), Role::Letter(c)));
        let last = LETTERS.chars().map(|c| (last_letter(c), Role::LastLetter(c)));
        let marks = [(MINUS.to_string(), Role::Minus), (FLOAT.to_string(), Role::Float)];
        let all = numbers.chain(digits).chain(powers).chain(letters).chain(last).chain(marks);
        Marks { roles: all.filter_map(|(spelling, role)| Some((*ids.get(&spelling)?, role))).collect() }
    }
}

impl Language {
    /// The tokens of one word: a name, an integer or a float, without blanks.
    pub(super) fn encode_word(&self, word: &str) -> Vec<u32> {
        let role = |id: &u32| self.marks.roles.get(id);
        // marks are no words, though some look like one
        if let Some(id) = self.ids.get(word).filter(|id| matches!(role(id), None | Some(Role::Number(_)))) {
            return vec![*id];
        }
        let mut tokens = Vec::new();
        if let Some(number) = word.parse::<u64>().ok().filter(|n| n.to_string() == word) {
            self.push_number(number, &mut tokens);
        } else if let Some(number) = word.parse::<i64>().ok().filter(|n| n.to_string() == word) {
            self.push_signed(number, &mut tokens);
        } else if let Some(value) = parse_float(word).filter(|v| v.is_finite() && float_text(*v) == word) {
            tokens.push(self.id(FLOAT));
            let (mantissa, exponent) = decompose(value);
            if value.is_sign_negative() {
                tokens.push(self.id(MINUS));
            }
            self.push_number(mantissa, &mut tokens);
            self.push_signed(exponent, &mut tokens);
        } else {
            self.push_letters(word, &mut tokens);
        }
        tokens
    }

    /// The word that starts at `at`, and where the next one starts.
    pub(super) fn decode_word(&self, tokens: &[u32], at: usize) -> Result<(String, usize), LanguageError> {
        let mut reader = Reader { language: self, tokens, at };
        let first = reader.peek("a word")?;
        let word = match self.marks.roles.get(&first) {
            None => {
                reader.at += 1;
                self.spelling(at, first)?.to_string()
            }
            Some(Role::Number(_) | Role::Digit(_) | Role::Power(_)) => reader.number()?.to_string(),
            Some(Role::Minus) => {
                let value = reader.signed()?;
                value.to_string()
            }
            Some(Role::Float) => reader.float()?,
            Some(Role::Letter(_) | Role::LastLetter(_)) => reader.letters()?,
        };
        // one spelling for each word
        if self.encode_word(&word) != tokens[at..reader.at] {
            return Err(LanguageError::Unexpected { at, expected: "the usual spelling of a word", found: word });
        }
        Ok((word, reader.at))
    }

    fn push_number(&self, number: u64, tokens: &mut Vec<u32>) {
        if number <= LARGEST_SINGLE {
            tokens.push(self.id(&number.to_string()));
            return;
        }
        let exponent = number.trailing_zeros();
        if exponent > 0 {
            tokens.push(self.id(&power(exponent)));
        }
        let mut digits = Vec::new();
        let mut rest = number >> exponent;
        while rest > 0 {
            digits.push(rest % BASE);
            rest /= BASE;
        }
        for (position, value) in digits.into_iter().enumerate().rev() {
            tokens.push(self.id(&if position > 0 { digit(value) } else { value.to_string() }));
        }
    }

    fn push_signed(&self, number: i64, tokens: &mut Vec<u32>) {
        if number < 0 {
            tokens.push(self.id(MINUS));
        }
        self.push_number(number.unsigned_abs(), tokens);
    }

    fn push_letters(&self, word: &str, tokens: &mut Vec<u32>) {
        let mut letters = Vec::new();
        for byte in word.bytes() {
            match char::from(byte) {
                plain if plain != '\\' && LETTERS.contains(plain) => letters.push(plain),
                _ => letters.extend(format!("\\{byte:02x}").chars()),
            }
        }
        let last = letters.len().saturating_sub(1);
        for (position, each) in letters.into_iter().enumerate() {
            tokens.push(self.id(&if position < last { letter(each) } else { last_letter(each) }));
        }
    }
}

/// `(m, e)` with `|value| = m · 2^e`, `m` odd or 0.
fn decompose(value: f64) -> (u64, i64) {
    let bits = value.to_bits();
    let fraction = bits & ((1 << 52) - 1);
    let biased = (bits >> 52) & 0x7ff;
    let (mantissa, exponent) = if biased == 0 { (fraction, -1074) } else { (fraction | 1 << 52, biased as i64 - 1075) };
    if mantissa == 0 {
        return (0, 0);
    }
    let zeros = mantissa.trailing_zeros();
    (mantissa >> zeros, exponent + i64::from(zeros))
}

/// `mantissa · 2^exponent`; `None` where no f64 is equal.
fn compose(mantissa: u64, exponent: i64) -> Option<f64> {
    if mantissa >= 1 << 53 || !(-1074..=971).contains(&exponent) {
        return None;
    }
    // in two steps, so that neither power leaves the range
    let half = (exponent / 2) as i32;
    let value = mantissa as f64 * 2f64.powi(half) * 2f64.powi(exponent as i32 - half);
    value.is_finite().then_some(value)
}

struct Reader<'a> {
    language: &'a Language,
    tokens: &'a [u32],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self, expected: &'static str) -> Result<u32, LanguageError> {
        self.tokens.get(self.at).copied().ok_or(LanguageError::End { expected })
    }

    fn next(&mut self, expected: &'static str) -> Result<Role, LanguageError> {
        let id = self.peek(expected)?;
        let role = self.language.marks.roles.get(&id).copied();
        let role = role.ok_or_else(|| self.unexpected(expected))?;
        self.at += 1;
        Ok(role)
    }

    fn unexpected(&self, expected: &'static str) -> LanguageError {
        let id = self.tokens.get(self.at).copied().unwrap_or(u32::MAX);
        match self.language.spelling(self.at, id) {
            Ok(found) => LanguageError::Unexpected { at: self.at, expected, found: found.to_string() },
            Err(error) => error,
        }
    }

    fn number(&mut self) -> Result<u64, LanguageError> {
        const EXPECTED: &str = "the digits of a number";
        let start = self.at;
        let overflow =
            || LanguageError::Unexpected { at: start, expected: "a number below 2^64", found: "more".into() };
        let mut power = 0;
        let mut value = 0u64;
        loop {
            match self.next(EXPECTED)? {
                Role::Power(p) if self.at == start + 1 => power = p,
                Role::Digit(digit) => {
                    value = value.checked_mul(BASE).and_then(|v| v.checked_add(digit)).ok_or_else(overflow)?;
                }
                Role::Number(digit) => {
                    let single = self.at == start + 1;
                    if !single {
                        value = value.checked_mul(BASE).ok_or_else(overflow)?;
                    }
                    let odd = value.checked_add(digit).ok_or_else(overflow)?;
                    return odd.checked_mul(1 << power).ok_or_else(overflow);
                }
                _ => {
                    self.at -= 1;
                    return Err(self.unexpected(EXPECTED));
                }
            }
        }
    }

    fn signed(&mut self) -> Result<i64, LanguageError> {
        let at = self.at;
        let negative = self.language.marks.roles.get(&self.peek("a number")?) == Some(&Role::Minus);
        self.at += usize::from(negative);
        let magnitude = self.number()?;
        let value = if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() };
        value.ok_or(LanguageError::Unexpected { at, expected: "a number of 64 bits", found: magnitude.to_string() })
    }

    fn float(&mut self) -> Result<String, LanguageError> {
        let at = self.at;
        self.at += 1;
        let negative = self.language.marks.roles.get(&self.peek("a mantissa")?) == Some(&Role::Minus);
        self.at += usize::from(negative);
        let (mantissa, exponent) = (self.number()?, self.signed()?);
        let magnitude = compose(mantissa, exponent).ok_or(LanguageError::Unexpected {
            at,
            expected: "a float",
            found: format!("{mantissa} · 2^{exponent}"),
        })?;
        Ok(float_text(if negative { -magnitude } else { magnitude }))
    }

    fn letters(&mut self) -> Result<String, LanguageError> {
        const EXPECTED: &str = "the letters of a name";
        let start = self.at;
        let mut letters = String::new();
        loop {
            match self.next(EXPECTED)? {
                Role::Letter(letter) => letters.push(letter),
                Role::LastLetter(letter) => {
                    letters.push(letter);
                    break;
                }
                _ => {
                    self.at -= 1;
                    return Err(self.unexpected(EXPECTED));
                }
            }
        }
        let found = letters.clone();
        unescape(&letters).ok_or(LanguageError::Unexpected { at: start, expected: "escaped UTF-8", found })
    }
}

/// Resolves `\hh`.
fn unescape(letters: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = letters.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first == b'\\' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}
