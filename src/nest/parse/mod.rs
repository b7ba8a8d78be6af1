//! Parsing of nests: what `Display` prints (see [`super::print`]).
//!
//! - Line breaks and indentation mean nothing.
//! - A name stands for the innermost loop around of that name. A loop inside a loop of its own name is over
//!   the same variable, which the verifier refuses; printing never writes that.
//! - A variable of no loop around is one that is unbound; `?7[...]` is a buffer that the nest lacks. Both are
//!   found by the verifier.
//! - Two loops of one name side by side have variables of their own. Variables are numbered so that printing
//!   gives the text back.
//!
//! Text comes from outside: its length, the levels of its statements and expressions and its numbers are
//! bounded before anything is built. A nest that parses need not be legal.

mod lex;
mod sum;
mod tree;

use std::str::FromStr;

use thiserror::Error;

use self::lex::{Lexer, Token};
use self::sum::{Order, Sum, Term};
use self::tree::{Expressions, Test, Tree, plain_name};
use super::print::{ERROR_GROWTH, NUMBER_SIGN, PARAMETERS, PRODUCT};
use super::{Buffer, Loop, LoopKind, Nest, Scope, Stmt};
use crate::workload::validate::MAX_PARAMETERS;
use crate::workload::{Atom, Combiner, Condition, DType, Expr, Extents, Index, Interval, Parameter, TensorId, Var};

/// Longest text that is read.
pub const MAX_BYTES: usize = 1 << 22;
/// Buffers of a nest.
pub const MAX_BUFFERS: usize = 4096;
/// Levels of loops and conditions, and of operators in an expression.
pub const MAX_DEPTH: usize = 256;

/// Text that is no nest: the fault of whoever wrote it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("line {line}: {problem}")]
pub struct NestTextError {
    /// Counted from 1.
    pub line: usize,
    pub problem: NestTextProblem,
}

/// What is wrong with a text.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NestTextProblem {
    #[error("the text of a nest is longer than {MAX_BYTES} bytes")]
    TooLong,
    #[error("{expected} is expected, not {found}")]
    Expected { expected: &'static str, found: String },
    #[error("no word begins with {0:?}")]
    Character(char),
    #[error("there is no buffer `{0}`")]
    UnknownBuffer(String),
    #[error("a variable of no loop, and without a name")]
    UnknownVariable,
    #[error("more than {MAX_BUFFERS} buffers")]
    Buffers,
    #[error("a second buffer `{0}`")]
    SecondBuffer(String),
    #[error("`{0}` does not follow the others of its name")]
    NameNumber(String),
    #[error("`{0}` is no function of that many arguments")]
    Call(String),
    #[error("more than {MAX_DEPTH} levels of statements or operators")]
    TooDeep,
    #[error("a number that is too large")]
    Number,
    #[error("a sum of too many terms")]
    Terms,
    #[error("more than {MAX_PARAMETERS} parameters")]
    Parameters,
    #[error("parameters have names of their own, and stand first in every sum")]
    ParameterOrder,
    #[error("an extent is a number or a formula of parameters")]
    Extent,
    #[error("an index is divided by {0}; a divisor is a constant of at least 2")]
    Divisor(i64),
}

impl FromStr for Nest {
    type Err = NestTextError;

    fn from_str(text: &str) -> Result<Nest, NestTextError> {
        if text.len() > MAX_BYTES {
            return Err(NestTextError { line: 1, problem: NestTextProblem::TooLong });
        }
        Parser { expressions: Expressions::new(Lexer::new(text)?), order: Order::default(), depth: 0 }.nest()
    }
}

/// A statement as it is written.
enum Line {
    Loop { var: usize, kind: LoopKind, bounds: Vec<Tree>, body: Vec<Line> },
    If { conditions: Vec<Test>, body: Vec<Line> },
    Assign { buffer: TensorId, indices: Vec<Tree>, combiner: Option<Combiner>, value: Tree },
}

struct Parser<'a> {
    expressions: Expressions<'a>,
    order: Order,
    /// Loops and conditions around.
    depth: usize,
}

impl<'a> Parser<'a> {
    fn nest(mut self) -> Result<Nest, NestTextError> {
        let error_growth = self.error_growth()?;
        let parameters = self.parameters()?;
        self.title("buffers")?;
        let (mut buffers, mut shapes) = (Vec::new(), Vec::new());
        while !matches!(self.lexer().peek(), Token::Word("setup" | "body") | Token::End) {
            let id = TensorId(buffers.len() as u32);
            let (buffer, shape) = self.buffer(id)?;
            buffers.push(buffer);
            shapes.push(shape);
        }
        let has_setup = matches!(self.lexer().peek(), Token::Word("setup"));
        let setup = if has_setup { self.section("setup")? } else { Vec::new() };
        let has_body = matches!(self.lexer().peek(), Token::Word("body"));
        let body = if has_body { self.section("body")? } else { Vec::new() };
        if self.lexer().peek() != Token::End {
            return Err(self.lexer().expected(if has_body { "a statement" } else { "`body:`" }));
        }
        let vars = self.expressions.names.vars;
        let numbers = self.order.numbers(vars.len());
        if numbers.iter().take(parameters.len()).copied().ne(0..parameters.len() as u32) {
            return Err(NestTextError { line: 1, problem: NestTextProblem::ParameterOrder });
        }
        let mut names = vec![String::new(); vars.len()];
        numbers.iter().zip(vars).for_each(|(number, name)| names[*number as usize] = name);
        // all sums were looked at when they were read
        let line = self.expressions.lexer.line();
        let built = |statements: &[Line]| {
            Numbered(&numbers).block(statements).map_err(|problem| NestTextError { line, problem })
        };
        for (buffer, shape) in buffers.iter_mut().zip(&shapes) {
            let formulas = Numbered(&numbers).indices(shape).map_err(|problem| NestTextError { line: 1, problem })?;
            buffer.shape = most_of(&formulas, &parameters)?;
            buffer.extents = Extents::new(formulas.into_iter().enumerate());
        }
        let (setup, body) = (built(&setup)?, built(&body)?);
        Ok(Nest { parameters, buffers, vars: names, setup, body, error_growth })
    }

    fn lexer(&mut self) -> &mut Lexer<'a> {
        &mut self.expressions.lexer
    }

    fn error_growth(&mut self) -> Result<u32, NestTextError> {
        let mut words = ERROR_GROWTH.split(' ');
        let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if !self.lexer().take_word(first)? {
            return Ok(1);
        }
        if !self.lexer().take_word(second)? {
            return Err(self.lexer().expected("`growth`"));
        }
        let problem = self.lexer().problem(NestTextProblem::Number);
        u32::try_from(self.lexer().integer()?).map_err(|_| problem)
    }

    fn title(&mut self, title: &'static str) -> Result<(), NestTextError> {
        if !self.lexer().take_word(title)? {
            return Err(self.lexer().expected(title));
        }
        self.lexer().symbol(":")
    }

    /// The list of parameters, which may be left out.
    fn parameters(&mut self) -> Result<Vec<Parameter>, NestTextError> {
        let mut parameters = Vec::new();
        if !matches!(self.lexer().peek(), Token::Word(PARAMETERS)) {
            return Ok(parameters);
        }
        self.title(PARAMETERS)?;
        while !matches!(self.lexer().peek(), Token::Word("buffers") | Token::End) {
            if parameters.len() >= MAX_PARAMETERS {
                return Err(self.lexer().problem(NestTextProblem::Parameters));
            }
            let name = self.lexer().word("a parameter or `buffers:`")?;
            let known = self.expressions.names.begin_loop(name).map_err(|problem| self.lexer().problem(problem))?;
            if known != parameters.len() {
                return Err(self.lexer().problem(NestTextProblem::ParameterOrder));
            }
            self.lexer().symbol(":")?;
            let low = self.lexer().integer()?;
            self.lexer().symbol("..")?;
            let high = self.lexer().integer()?;
            if low < 0 || low > high {
                return Err(self.lexer().problem(NestTextProblem::Number));
            }
            parameters.push(Parameter { low, high });
        }
        Ok(parameters)
    }

    /// `name: type[shape] scope`; what the extents are at most is found when variables have numbers.
    fn buffer(&mut self, id: TensorId) -> Result<(Buffer, Vec<Tree>), NestTextError> {
        let name = self.lexer().word("a buffer, `setup:` or `body:`")?;
        if id.0 as usize >= MAX_BUFFERS {
            return Err(self.lexer().problem(NestTextProblem::Buffers));
        }
        let plain = plain_name(name, self.expressions.names.buffers.keys().copied());
        let plain = plain.map_err(|problem| self.lexer().problem(problem))?.to_string();
        if self.expressions.names.buffers.insert(name, id).is_some() {
            let name = name.chars().take(40).collect();
            return Err(self.lexer().problem(NestTextProblem::SecondBuffer(name)));
        }
        self.lexer().symbol(":")?;
        let Token::Word(word) = self.lexer().peek() else { return Err(self.lexer().expected("a type")) };
        let dtype = DType::from_name(word).ok_or_else(|| self.lexer().expected("a type"))?;
        self.lexer().take()?;
        self.lexer().symbol("[")?;
        let (shape, _) = self.expressions.list("]")?;
        shape
            .iter()
            .try_for_each(|extent| self.order.note_index(extent))
            .map_err(|problem| self.lexer().problem(problem))?;
        let scope = self.scope()?;
        let part = if self.lexer().take_symbol("[")? { Some(self.part()?) } else { None };
        Ok((Buffer { part, ..Buffer::new(plain, Vec::new(), dtype, scope) }, shape))
    }

    /// `extent, extent]`: how much of a buffer is written.
    fn part(&mut self) -> Result<Vec<i64>, NestTextError> {
        let mut part = Vec::new();
        while !self.lexer().take_symbol("]")? {
            if !part.is_empty() {
                self.lexer().symbol(",")?;
            }
            part.push(self.lexer().integer()?);
        }
        Ok(part)
    }

    fn scope(&mut self) -> Result<Scope, NestTextError> {
        let Token::Word(word) = self.lexer().peek() else { return Err(self.lexer().expected("a scope")) };
        let known = Scope::ALL.into_iter().find(|scope| scope.name().split('-').next() == Some(word));
        let scope = known.ok_or_else(|| self.lexer().expected("a scope"))?;
        self.lexer().take()?;
        for part in scope.name().split('-').skip(1) {
            self.lexer().symbol("-")?;
            if !self.lexer().take_word(part)? {
                return Err(self.lexer().expected("the rest of a scope's name"));
            }
        }
        Ok(scope)
    }

    fn section(&mut self, title: &'static str) -> Result<Vec<Line>, NestTextError> {
        self.title(title)?;
        let mut statements = Vec::new();
        while !matches!(self.lexer().peek(), Token::End) {
            if title == "setup" && matches!(self.lexer().peek(), Token::Word("body")) {
                break;
            }
            statements.push(self.statement()?);
        }
        Ok(statements)
    }

    fn block(&mut self) -> Result<Vec<Line>, NestTextError> {
        self.lexer().symbol("{")?;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.lexer().problem(NestTextProblem::TooDeep));
        }
        let mut statements = Vec::new();
        while !self.lexer().take_symbol("}")? {
            statements.push(self.statement()?);
        }
        self.depth -= 1;
        Ok(statements)
    }

    fn statement(&mut self) -> Result<Line, NestTextError> {
        let line = self.lexer().line();
        let word = self.lexer().word("a statement or `}`")?;
        let kind = LoopKind::ALL.into_iter().find(|kind| kind.name() == word);
        let statement = match kind {
            _ if word == "if" && self.lexer().peek() != Token::Symbol("[") => self.condition()?,
            Some(LoopKind::Serial) => self.loop_of(LoopKind::Serial)?,
            Some(kind) if self.lexer().take_word("for")? => self.loop_of(kind)?,
            _ => self.assignment(word)?,
        };
        self.note(&statement).map_err(|problem| NestTextError { line, problem })?;
        Ok(statement)
    }

    fn condition(&mut self) -> Result<Line, NestTextError> {
        let conditions = self.expressions.conditions()?;
        Ok(Line::If { conditions, body: self.block()? })
    }

    fn loop_of(&mut self, kind: LoopKind) -> Result<Line, NestTextError> {
        let name = self.lexer().word("a variable")?;
        if !self.lexer().take_word("in")? {
            return Err(self.lexer().expected("`in`"));
        }
        match self.lexer().take()? {
            Token::Integer(0) => self.lexer().symbol("..")?,
            _ => return Err(self.lexer().expected("a range `0..`")),
        }
        // of several bounds the smallest holds
        let bounds = match self.lexer().peek() {
            Token::Word("min") => {
                self.lexer().take()?;
                self.lexer().symbol("(")?;
                self.expressions.list(")")?.0
            }
            _ => vec![self.expressions.operators(PRODUCT)?.0],
        };
        let var = self.expressions.names.begin_loop(name);
        let var = var.map_err(|problem| self.lexer().problem(problem))?;
        let body = self.block()?;
        self.expressions.names.around.pop();
        Ok(Line::Loop { var, kind, bounds, body })
    }

    fn assignment(&mut self, name: &str) -> Result<Line, NestTextError> {
        let (buffer, indices, _) = self.expressions.access(name)?;
        let combiner = match self.lexer().peek() {
            Token::Symbol("=") => None,
            Token::Symbol("+=") => Some(Combiner::Sum),
            Token::Symbol("*=") => Some(Combiner::Product),
            Token::Word("max") => Some(Combiner::Maximum),
            Token::Word("min") => Some(Combiner::Minimum),
            _ => return Err(self.lexer().expected("`=`, `+=`, `*=`, `max=` or `min=`")),
        };
        self.lexer().take()?;
        if matches!(combiner, Some(Combiner::Maximum | Combiner::Minimum)) {
            self.lexer().symbol("=")?;
        }
        Ok(Line::Assign { buffer, indices, combiner, value: self.expressions.expr()? })
    }

    /// The order of variables in the indices of a statement, without its body.
    fn note(&mut self, statement: &Line) -> Result<(), NestTextProblem> {
        match statement {
            Line::Loop { bounds, .. } => bounds.iter().try_for_each(|bound| self.order.note_index(bound)),
            Line::If { conditions, .. } => self.order.note_tests(conditions),
            Line::Assign { indices, value, .. } => {
                indices.iter().try_for_each(|index| self.order.note_index(index))?;
                self.order.note_expr(value)
            }
        }
    }
}

/// What extents are at most.
fn most_of(formulas: &[Index], parameters: &[Parameter]) -> Result<Vec<i64>, NestTextError> {
    let range = |var: Var| parameters.get(var.0 as usize).map(|parameter| parameter.interval());
    let unknown = |formula: &Index| formula.has_value() || formula.any_var(&|var| range(var).is_none());
    let most = |formula: &Index| {
        let known =
            if unknown(formula) { None } else { formula.range(&|var| range(var).unwrap_or(Interval::point(0))) };
        known.map(|known| known.high).ok_or(NestTextError { line: 1, problem: NestTextProblem::Extent })
    };
    formulas.iter().map(most).collect()
}

/// Makes statements and expressions of what was read, with a number for each variable.
struct Numbered<'a>(&'a [u32]);

impl Numbered<'_> {
    fn block(&self, statements: &[Line]) -> Result<Vec<Stmt>, NestTextProblem> {
        statements.iter().map(|statement| self.statement(statement)).collect()
    }

    fn statement(&self, statement: &Line) -> Result<Stmt, NestTextProblem> {
        Ok(match statement {
            Line::Loop { var, kind, bounds, body } => Stmt::Loop(Loop {
                var: self.var(*var),
                bounds: self.indices(bounds)?,
                kind: *kind,
                body: self.block(body)?,
            }),
            Line::If { conditions, body } => {
                Stmt::If { conditions: self.conditions(conditions)?, body: self.block(body)? }
            }
            Line::Assign { buffer, indices, combiner, value } => {
                let (buffer, indices, value) = (*buffer, self.indices(indices)?, self.expr(value)?);
                match *combiner {
                    None => Stmt::Store { buffer, indices, value },
                    Some(combiner) => Stmt::Accumulate { buffer, indices, combiner, value },
                }
            }
        })
    }

    fn var(&self, var: usize) -> Var {
        Var(self.0[var])
    }

    fn conditions(&self, tests: &[Test]) -> Result<Vec<Condition>, NestTextProblem> {
        let condition =
            |test: &Test| Ok(Condition { index: self.index(&sum::sum(&test.index)?)?, low: test.low, high: test.high });
        tests.iter().map(condition).collect()
    }

    fn indices(&self, trees: &[Tree]) -> Result<Vec<Index>, NestTextProblem> {
        trees.iter().map(|tree| self.index(&sum::sum(tree)?)).collect()
    }

    fn index(&self, sum: &Sum<'_>) -> Result<Index, NestTextProblem> {
        let mut index = Index::constant(sum.constant);
        for (term, coefficient) in &sum.terms {
            let atom = match term {
                Term::Var(var) => Atom::Var(self.var(*var)),
                Term::FloorDiv(inner, divisor) => Atom::FloorDiv(Box::new(self.index(inner)?), *divisor),
                Term::Modulo(inner, divisor) => Atom::Modulo(Box::new(self.index(inner)?), *divisor),
                Term::Value(tree) => Atom::Value(Box::new(self.expr(tree)?)),
            };
            index = index.plus(&Index::atom(atom).times(*coefficient));
        }
        Ok(index)
    }

    fn expr(&self, tree: &Tree) -> Result<Expr, NestTextProblem> {
        if sum::is_index(tree) {
            return Ok(Expr::Index(self.index(&sum::sum(tree)?)?));
        }
        Ok(match tree {
            Tree::Integer(value) => Expr::integer(*value),
            Tree::Float(value) => Expr::float(*value),
            Tree::Var(var) => Expr::Index(Index::var(self.var(*var))),
            Tree::Load(tensor, indices) => Expr::load(*tensor, self.indices(indices)?),
            Tree::Unary(op, x) => Expr::unary(*op, self.expr(x)?),
            Tree::Binary(op, xy) => Expr::binary(*op, self.expr(&xy.0)?, self.expr(&xy.1)?),
            Tree::Cast(dtype, x) => Expr::Cast(*dtype, Box::new(self.expr(x)?)),
            Tree::Bits(dtype, x) => Expr::Bits(*dtype, Box::new(self.expr(x)?)),
            Tree::Select(parts) => Expr::select(self.expr(&parts.0)?, self.expr(&parts.1)?, self.expr(&parts.2)?),
            Tree::Guard(tests, sides) => Expr::Guard {
                conditions: self.conditions(tests)?,
                inside: Box::new(self.expr(&sides.0)?),
                outside: Box::new(self.expr(&sides.1)?),
            },
            Tree::Int(x) => Expr::Index(self.index(&sum::sum(x)?)?),
            Tree::Value(_) => Expr::Index(self.index(&sum::sum(tree)?)?),
            Tree::Group(x) => self.expr(x)?,
        })
    }
}
