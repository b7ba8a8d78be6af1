//! Expressions as they are written: variables have no numbers in the nest yet, and sums are in the order of
//! the text.

use std::collections::HashMap;

use super::lex::{Lexer, Token};
use super::{MAX_DEPTH, NUMBER_SIGN, NestTextError, NestTextProblem};
use crate::nest::print::{BITS, COMPARISON, LOOSEST, SUM, TIGHTEST, infix};
use crate::workload::{Binary, DType, Notation, TensorId, Unary};

pub(super) enum Tree {
    Integer(i64),
    Float(f64),
    /// Which variable of the text it is.
    Var(usize),
    Load(TensorId, Vec<Tree>),
    Unary(Unary, Box<Tree>),
    Binary(Binary, Box<(Tree, Tree)>),
    Cast(DType, Box<Tree>),
    Bits(DType, Box<Tree>),
    /// Condition, then both values.
    Select(Box<(Tree, Tree, Tree)>),
    /// Inside, then outside.
    Guard(Vec<Test>, Box<(Tree, Tree)>),
    /// `int(...)`: an index where a value is expected.
    Int(Box<Tree>),
    /// `value(...)`: a value in an index.
    Value(Box<Tree>),
    /// `(...)`
    Group(Box<Tree>),
}

/// A condition.
pub(super) struct Test {
    pub(super) index: Tree,
    pub(super) low: i64,
    pub(super) high: i64,
}

/// What names stand for.
#[derive(Default)]
pub(super) struct Names<'a> {
    pub(super) buffers: HashMap<&'a str, TensorId>,
    /// The variables of the loops around, outermost first.
    pub(super) around: Vec<(&'a str, usize)>,
    /// Variables of no loop around.
    pub(super) free: HashMap<&'a str, usize>,
    /// The name of each variable.
    pub(super) vars: Vec<String>,
}

impl<'a> Names<'a> {
    fn new_var(&mut self, name: &str) -> usize {
        self.vars.push(name.to_string());
        self.vars.len() - 1
    }

    /// The variable of a loop that begins. One inside of a loop of the same name is over its variable.
    pub(super) fn begin_loop(&mut self, name: &'a str) -> Result<usize, NestTextProblem> {
        let var = match self.of_loop(name) {
            Some(var) => var,
            None => {
                let plain = plain_name(name, self.around.iter().map(|(outer, _)| *outer))?;
                self.new_var(plain)
            }
        };
        self.around.push((name, var));
        Ok(var)
    }

    /// The variable of a loop around.
    fn of_loop(&self, name: &str) -> Option<usize> {
        self.around.iter().rev().find(|(known, _)| *known == name).map(|(_, var)| *var)
    }

    fn is_of_loop(&self, name: &str) -> bool {
        self.of_loop(name).is_some()
    }

    /// The variable of a name. One of no loop around is noted, so that the verifier finds it.
    fn var(&mut self, name: &'a str) -> usize {
        if let Some(var) = self.of_loop(name).or_else(|| self.free.get(name).copied()) {
            return var;
        }
        let var = self.new_var(name);
        self.free.insert(name, var);
        var
    }

    /// The buffer of a name; `?7` is one that the nest lacks.
    fn buffer(&self, name: &str) -> Option<TensorId> {
        let lacking = || name.strip_prefix('?')?.parse().ok().filter(|id| *id as usize >= self.buffers.len());
        self.buffers.get(name).copied().or_else(|| lacking().map(TensorId))
    }
}

/// A name without the number that tells it apart, which must be the next of the names `before`.
pub(super) fn plain_name<'a>(name: &'a str, before: impl Iterator<Item = &'a str>) -> Result<&'a str, NestTextProblem> {
    let Some((plain, number)) = name.split_once(NUMBER_SIGN) else { return Ok(name) };
    let same = before.filter(|other| other.split(NUMBER_SIGN).next() == Some(plain)).count();
    let is_next = same > 0 && number == (same + 1).to_string();
    if is_next { Ok(plain) } else { Err(NestTextProblem::NameNumber(name.chars().take(40).collect())) }
}

/// A tree, and how many levels it has.
type Grown = (Tree, usize);

pub(super) struct Expressions<'a> {
    pub(super) lexer: Lexer<'a>,
    pub(super) names: Names<'a>,
    /// How many calls of [`Expressions::operators`] are under way.
    depth: usize,
}

impl<'a> Expressions<'a> {
    pub(super) fn new(lexer: Lexer<'a>) -> Expressions<'a> {
        Expressions { lexer, names: Names::default(), depth: 0 }
    }

    pub(super) fn expr(&mut self) -> Result<Tree, NestTextError> {
        self.operators(LOOSEST).map(|(tree, _)| tree)
    }

    /// `name[index, ...]`, with the name read already; how many levels its indices have.
    pub(super) fn access(&mut self, name: &str) -> Result<(TensorId, Vec<Tree>, usize), NestTextError> {
        let buffer = self
            .names
            .buffer(name)
            .ok_or_else(|| self.lexer.problem(NestTextProblem::UnknownBuffer(name.chars().take(40).collect())))?;
        self.lexer.symbol("[")?;
        let (indices, levels) = self.list("]")?;
        Ok((buffer, indices, levels))
    }

    /// Conditions with `&&` between them, or `true`.
    pub(super) fn conditions(&mut self) -> Result<Vec<Test>, NestTextError> {
        self.tests().map(|(tests, _)| tests)
    }

    /// What stands between brackets, the closing one included.
    pub(super) fn list(&mut self, close: &'static str) -> Result<(Vec<Tree>, usize), NestTextError> {
        let (mut list, mut levels) = (Vec::new(), 0);
        if self.lexer.take_symbol(close)? {
            return Ok((list, levels));
        }
        loop {
            let (tree, its_levels) = self.operators(LOOSEST)?;
            list.push(tree);
            levels = levels.max(its_levels);
            if self.lexer.take_symbol(close)? {
                return Ok((list, levels));
            }
            self.lexer.symbol(",")?;
        }
    }

    /// An index or expression whose operators bind as tightly as `loosest` at least.
    pub(super) fn operators(&mut self, loosest: u8) -> Result<Grown, NestTextError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.lexer.problem(NestTextProblem::TooDeep));
        }
        let (mut left, mut levels) = self.operand()?;
        // comparisons do not chain
        let mut tightest = TIGHTEST;
        while let Token::Symbol(symbol) = self.lexer.peek() {
            let Some((op, own)) = binary(symbol) else { break };
            if !(loosest..=tightest).contains(&own) {
                break;
            }
            self.lexer.take()?;
            let (right, its_levels) = self.operators(own + 1)?;
            left = Tree::Binary(op, Box::new((left, right)));
            levels = self.above(levels.max(its_levels))?;
            tightest = if own == COMPARISON { COMPARISON - 1 } else { own };
        }
        self.depth -= 1;
        Ok((left, levels))
    }

    fn above(&self, levels: usize) -> Result<usize, NestTextError> {
        if levels < MAX_DEPTH { Ok(levels + 1) } else { Err(self.lexer.problem(NestTextProblem::TooDeep)) }
    }

    fn operand(&mut self) -> Result<Grown, NestTextError> {
        let tree = match self.lexer.peek() {
            Token::Integer(magnitude) => self.number(i128::from(magnitude))?,
            Token::Float(value) => Tree::Float(value),
            Token::Word(word) => {
                self.lexer.take()?;
                return self.named(word);
            }
            Token::Symbol("(") => {
                self.lexer.take()?;
                let (inner, levels) = self.operators(LOOSEST)?;
                self.lexer.symbol(")")?;
                return Ok((Tree::Group(Box::new(inner)), self.above(levels)?));
            }
            Token::Symbol("-") => {
                self.lexer.take()?;
                return self.negative();
            }
            Token::Symbol("!") => {
                self.lexer.take()?;
                return self.prefixed(Unary::Not);
            }
            _ => return Err(self.lexer.expected("an expression")),
        };
        self.lexer.take()?;
        Ok((tree, 1))
    }

    /// What follows a minus sign. That of a number is a part of it.
    fn negative(&mut self) -> Result<Grown, NestTextError> {
        let tree = match self.lexer.peek() {
            Token::Integer(magnitude) => self.number(-i128::from(magnitude))?,
            Token::Float(value) => Tree::Float(-value),
            Token::Word("inf") => Tree::Float(f64::NEG_INFINITY),
            _ => return self.prefixed(Unary::Negate),
        };
        self.lexer.take()?;
        Ok((tree, 1))
    }

    fn prefixed(&mut self, op: Unary) -> Result<Grown, NestTextError> {
        let (operand, levels) = self.operators(TIGHTEST)?;
        Ok((Tree::Unary(op, Box::new(operand)), self.above(levels)?))
    }

    fn number(&self, value: i128) -> Result<Tree, NestTextError> {
        i64::try_from(value).map(Tree::Integer).map_err(|_| self.lexer.problem(NestTextProblem::Number))
    }

    /// What a word begins: an access, a call, a number or a variable.
    fn named(&mut self, word: &'a str) -> Result<Grown, NestTextError> {
        match self.lexer.peek() {
            Token::Symbol("[") => {
                let (buffer, indices, levels) = self.access(word)?;
                Ok((Tree::Load(buffer, indices), self.above(levels)?))
            }
            Token::Symbol("(") => self.call(word),
            _ if word == "inf" => Ok((Tree::Float(f64::INFINITY), 1)),
            _ if word == "NaN" => Ok((Tree::Float(f64::NAN), 1)),
            _ if word.starts_with('?') || word.contains(NUMBER_SIGN) && !self.names.is_of_loop(word) => {
                Err(self.lexer.problem(NestTextProblem::UnknownVariable))
            }
            _ => Ok((Tree::Var(self.names.var(word)), 1)),
        }
    }

    fn call(&mut self, function: &str) -> Result<Grown, NestTextError> {
        let line = self.lexer.line();
        self.lexer.symbol("(")?;
        if function == "guard" {
            return self.guard();
        }
        let (arguments, levels) = self.list(")")?;
        let unary = Unary::ALL.into_iter().find(|op| matches!(op.notation(), Notation::Call(name) if name == function));
        let binary = Binary::ALL.into_iter().find(|op| infix(*op) == Err(function));
        let mut arguments = arguments.into_iter();
        let next = (arguments.next(), arguments.next(), arguments.next(), arguments.next());
        let tree = match (unary, binary, DType::from_name(function), next) {
            (Some(op), _, _, (Some(x), None, ..)) => Tree::Unary(op, Box::new(x)),
            (_, Some(op), _, (Some(x), Some(y), None, _)) => Tree::Binary(op, Box::new((x, y))),
            (_, _, Some(dtype), (Some(x), None, ..)) => Tree::Cast(dtype, Box::new(x)),
            (.., (Some(x), None, ..)) if let Some(dtype) = bits_of(function) => Tree::Bits(dtype, Box::new(x)),
            (.., (Some(x), None, ..)) if function == "int" => Tree::Int(Box::new(x)),
            (.., (Some(x), None, ..)) if function == "value" => Tree::Value(Box::new(x)),
            (.., (Some(x), Some(y), Some(z), None)) if function == "select" => Tree::Select(Box::new((x, y, z))),
            _ => {
                let problem = NestTextProblem::Call(function.chars().take(40).collect());
                return Err(NestTextError { line, problem });
            }
        };
        Ok((tree, self.above(levels)?))
    }

    fn guard(&mut self) -> Result<Grown, NestTextError> {
        let (tests, levels) = self.tests()?;
        self.lexer.symbol(",")?;
        let (inside, of_inside) = self.operators(LOOSEST)?;
        self.lexer.symbol(",")?;
        let (outside, of_outside) = self.operators(LOOSEST)?;
        self.lexer.symbol(")")?;
        let levels = self.above(levels.max(of_inside).max(of_outside))?;
        Ok((Tree::Guard(tests, Box::new((inside, outside))), levels))
    }

    fn tests(&mut self) -> Result<(Vec<Test>, usize), NestTextError> {
        if self.lexer.take_word("true")? {
            return Ok((Vec::new(), 0));
        }
        let (mut tests, mut most) = (Vec::new(), 0);
        loop {
            let (first, levels) = self.operators(SUM)?;
            most = most.max(levels);
            let (low, index) = match first {
                Tree::Integer(low) if self.lexer.take_symbol("<=")? => {
                    let (index, levels) = self.operators(SUM)?;
                    most = most.max(levels);
                    (Some(low), index)
                }
                index => (None, index),
            };
            let high = if self.lexer.take_symbol("<")? { Some(self.lexer.integer()?) } else { None };
            if low.is_none() && high.is_none() {
                return Err(self.lexer.expected("a bound of the condition: `<` and an integer"));
            }
            tests.push(Test { index, low: low.unwrap_or(i64::MIN), high: high.unwrap_or(i64::MAX) });
            if !self.lexer.take_symbol("&&")? {
                return Ok((tests, most));
            }
        }
    }
}

/// The type of `bits_u32` and its like.
fn bits_of(function: &str) -> Option<DType> {
    DType::from_name(function.strip_prefix(BITS)?)
}

/// The operator of a symbol, and how tightly it binds.
fn binary(symbol: &str) -> Option<(Binary, u8)> {
    Binary::ALL.into_iter().find_map(|op| match infix(op) {
        Ok((own, tightness)) if own == symbol => Some((op, tightness)),
        _ => None,
    })
}
