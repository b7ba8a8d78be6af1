//! The words of a text.

use std::str::Chars;

use super::{NestTextError, NestTextProblem};

/// The smallest part of a text that has a meaning.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Token<'a> {
    /// A name or keyword.
    Word(&'a str),
    /// Digits, without a sign.
    Integer(u64),
    /// A number with a fraction or an exponent, without a sign.
    Float(f64),
    Symbol(&'static str),
    /// Of the text.
    End,
}

/// Longer symbols stand before those that they begin with.
const SYMBOLS: [&str; 23] = [
    "+=", "*=", "==", "<=", "&&", "||", "..", "+", "-", "*", "/", "%", "<", "!", "(", ")", "[", "]", "{", "}", ",",
    ":", "=",
];

/// Reads a text token by token, one of which can be looked at before it is taken.
pub(super) struct Lexer<'a> {
    rest: &'a str,
    /// Of `next`, counted from 1.
    line: usize,
    next: Token<'a>,
    /// How `next` is spelled.
    spelled: &'a str,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Result<Lexer<'a>, NestTextError> {
        let mut lexer = Lexer { rest: text, line: 1, next: Token::End, spelled: "" };
        lexer.advance()?;
        Ok(lexer)
    }

    pub(super) fn line(&self) -> usize {
        self.line
    }

    pub(super) fn peek(&self) -> Token<'a> {
        self.next
    }

    /// Takes the next token.
    pub(super) fn take(&mut self) -> Result<Token<'a>, NestTextError> {
        let token = self.next;
        self.advance()?;
        Ok(token)
    }

    /// Takes the next token if it is this symbol.
    pub(super) fn take_symbol(&mut self, symbol: &str) -> Result<bool, NestTextError> {
        let found = matches!(self.next, Token::Symbol(next) if next == symbol);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    /// Takes the next token if it is this word.
    pub(super) fn take_word(&mut self, word: &str) -> Result<bool, NestTextError> {
        let found = matches!(self.next, Token::Word(next) if next == word);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    pub(super) fn symbol(&mut self, symbol: &'static str) -> Result<(), NestTextError> {
        if self.take_symbol(symbol)? { Ok(()) } else { Err(self.expected(symbol)) }
    }

    pub(super) fn word(&mut self, expected: &'static str) -> Result<&'a str, NestTextError> {
        match self.next {
            Token::Word(word) => self.advance().map(|()| word),
            _ => Err(self.expected(expected)),
        }
    }

    /// An integer, perhaps with a sign.
    pub(super) fn integer(&mut self) -> Result<i64, NestTextError> {
        let is_negative = self.take_symbol("-")?;
        let Token::Integer(magnitude) = self.next else { return Err(self.expected("an integer")) };
        let value = i128::from(magnitude) * if is_negative { -1 } else { 1 };
        let value = i64::try_from(value).map_err(|_| self.problem(NestTextProblem::Number))?;
        self.advance().map(|()| value)
    }

    /// The error that the next token is not what was expected.
    pub(super) fn expected(&self, expected: &'static str) -> NestTextError {
        let found = match self.next {
            Token::End => "the end of the text".to_string(),
            _ => format!("`{}`", self.spelled.chars().take(40).collect::<String>()),
        };
        self.problem(NestTextProblem::Expected { expected, found })
    }

    pub(super) fn problem(&self, problem: NestTextProblem) -> NestTextError {
        NestTextError { line: self.line, problem }
    }

    fn advance(&mut self) -> Result<(), NestTextError> {
        let text = self.rest.trim_start();
        self.line += self.rest[..self.rest.len() - text.len()].matches('\n').count();
        let token = |length: usize, token: Token<'a>| (length, token);
        let (length, next) = match text.chars().next() {
            None => token(0, Token::End),
            Some(first) if first.is_ascii_digit() => self.number(text)?,
            Some(first) if first.is_ascii_alphabetic() || matches!(first, '_' | '?') => {
                let length = text[1..].find(|c| !is_of_word(c)).map_or(text.len(), |length| length + 1);
                token(length, Token::Word(&text[..length]))
            }
            Some(first) => match SYMBOLS.into_iter().find(|symbol| text.starts_with(symbol)) {
                Some(symbol) => token(symbol.len(), Token::Symbol(symbol)),
                None => return Err(self.problem(NestTextProblem::Character(first))),
            },
        };
        (self.next, self.spelled, self.rest) = (next, &text[..length], &text[length..]);
        Ok(())
    }

    /// A number at the start of a text, and its length.
    fn number(&self, text: &'a str) -> Result<(usize, Token<'a>), NestTextError> {
        let mut length = digits(text);
        let is_digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
        let mut is_float = false;
        // the bound of a loop follows two dots
        let mut rest = text[length..].chars();
        if rest.next() == Some('.') && is_digit(rest.next()) {
            is_float = true;
            length += 1 + digits(&text[length + 1..]);
        }
        let exponent = exponent(text[length..].chars());
        if exponent > 0 {
            is_float = true;
            length += exponent + digits(&text[length + exponent..]);
        }
        let number = &text[..length];
        let token = match is_float {
            true => number.parse().ok().map(Token::Float),
            false => number.parse().ok().map(Token::Integer),
        };
        token.map(|token| (length, token)).ok_or_else(|| self.problem(NestTextProblem::Number))
    }
}

/// The length of what stands in front of the digits of an exponent, which must follow; 0 without one.
fn exponent(mut text: Chars<'_>) -> usize {
    if text.next() != Some('e') {
        return 0;
    }
    match (text.next(), text.next()) {
        (Some(first), _) if first.is_ascii_digit() => 1,
        (Some('-'), Some(second)) if second.is_ascii_digit() => 2,
        _ => 0,
    }
}

fn digits(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '\'' | '#')
}
