//! Parsing. Text comes from outside: depth, length and numbers are bounded before anything is built.

use std::collections::BTreeMap;
use std::str::FromStr;

use thiserror::Error;

use super::{axis_from_name, parameter_from_name, parse_float};
use crate::workload::form::{MAX_COEFFICIENT, MAX_DEPTH};
use crate::workload::parameter::{is_formula, parameter_range};
use crate::workload::validate::{MAX_AXES, MAX_TENSORS, WorkloadError};
use crate::workload::{
    Atom, Binary, Combiner, Condition, DType, Expr, Extents, Index, Parameter, Role, Stage, Tensor, TensorId, Unary,
    Var, Workload,
};

/// Longest text that is read.
const MAX_BYTES: usize = 1 << 20;

/// Text that is no workload: the fault of whoever wrote it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TextError {
    #[error("the text of a workload is longer than {MAX_BYTES} bytes")]
    TooLong,
    #[error("line {line}: expected {expected}, found `{found}`")]
    Word { line: usize, expected: &'static str, found: String },
    #[error("line {line} ends where {expected} is expected")]
    End { line: usize, expected: &'static str },
    #[error("line {line}: the expression is deeper than {MAX_DEPTH} levels")]
    TooDeep { line: usize },
    #[error("line {line}: a number in an index is too large; less than 2^40 is supported")]
    Coefficient { line: usize },
    #[error("line {line}: parameters are numbered from len0 without gaps, before all tensors")]
    ParameterOrder { line: usize },
    #[error("line {line}: an extent is no formula of parameters for numbers from 0 on")]
    Extent { line: usize },
    #[error("line {line} defines t{tensor} a second time")]
    Redefined { line: usize, tensor: u32 },
    #[error("tensors are numbered from t0 without gaps; t{0} is missing")]
    Gap(u32),
    #[error(transparent)]
    Invalid(#[from] WorkloadError),
}

impl FromStr for Workload {
    type Err = TextError;

    /// Reads and validates a workload.
    fn from_str(text: &str) -> Result<Workload, TextError> {
        if text.len() > MAX_BYTES {
            return Err(TextError::TooLong);
        }
        let (mut parameters, mut points) = (Vec::new(), Vec::new());
        let mut tensors = BTreeMap::new();
        let mut stages = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let mut words = line.split_ascii_whitespace();
            let Some(keyword) = words.next() else { continue };
            let mut parser =
                Parser { line: number + 1, words: words.peekable(), parameters: &parameters, tensors: &tensors };
            if keyword == "param" {
                let parameter = parser.parameter()?;
                parameters.push(parameter);
                continue;
            }
            if keyword == "tune" {
                points.push(parser.point()?);
                continue;
            }
            let (id, tensor, stage) = parser.line(keyword)?;
            if tensors.insert(id.0, tensor).is_some() {
                return Err(TextError::Redefined { line: number + 1, tensor: id.0 });
            }
            stages.extend(stage);
        }
        if let Some(gap) = (0u32..).zip(tensors.keys()).find_map(|(expected, id)| (expected != *id).then_some(expected))
        {
            return Err(TextError::Gap(gap));
        }
        let workload = Workload { parameters, points, tensors: tensors.into_values().collect(), stages };
        workload.validate()?;
        Ok(workload)
    }
}

struct Parser<'a> {
    line: usize,
    words: std::iter::Peekable<std::str::SplitAsciiWhitespace<'a>>,
    parameters: &'a [Parameter],
    tensors: &'a BTreeMap<u32, Tensor>,
}

impl<'a> Parser<'a> {
    fn line(&mut self, keyword: &str) -> Result<(TensorId, Tensor, Option<Stage>), TextError> {
        let role = match keyword {
            "input" => Role::Input,
            "const" => Role::Constant,
            "let" => Role::Intermediate,
            "out" => Role::Output,
            other => return Err(self.wrong("`input`, `const`, `let` or `out`", other)),
        };
        let id = self.tensor_id()?;
        let dtype = self.next_if(DType::from_name).unwrap_or(DType::F32);
        if matches!(role, Role::Input | Role::Constant) {
            let (shape, extents) = self.extents()?;
            return match self.words.next() {
                Some(word) => Err(self.wrong("an extent", word)),
                None => Ok((id, Tensor { shape, dtype, role, extents }, None)),
            };
        }
        let is_like = self.words.next_if_eq(&"like").is_some();
        let (spatial, own) = if is_like {
            let like = self.known_tensor()?.1;
            (like.shape.clone(), like.extents.clone())
        } else {
            self.extents()?
        };
        let is_part = !is_like && self.words.next_if_eq(&"like").is_some();
        let (shape, whole) = if is_part { self.extents()? } else { (spatial.clone(), own.clone()) };
        let combiner = self.next_if(Combiner::from_name);
        let (reduction, reduced) = if combiner.is_some() { self.extents()? } else { Default::default() };
        let value = self.expr(0)?;
        if let Some(word) = self.words.next() {
            return Err(self.wrong("the end of the line", word));
        }
        let extents = own.followed_by(spatial.len(), &reduced);
        let stage = Stage { output: id, spatial, reduction, combiner, value, extents };
        Ok((id, Tensor { shape, dtype, role, extents: whole }, Some(stage)))
    }

    fn wrong(&self, expected: &'static str, found: &str) -> TextError {
        TextError::Word { line: self.line, expected, found: found.chars().take(40).collect() }
    }

    fn word(&mut self, expected: &'static str) -> Result<&'a str, TextError> {
        self.words.next().ok_or(TextError::End { line: self.line, expected })
    }

    /// The next word, if `read` knows it.
    fn next_if<T>(&mut self, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        let value = read(self.words.peek()?)?;
        self.words.next();
        Some(value)
    }

    fn tensor_id(&mut self) -> Result<TensorId, TextError> {
        let word = self.word("a tensor")?;
        tensor_from_name(word).ok_or_else(|| self.wrong("a tensor, `t0` to `t255`", word))
    }

    fn known_tensor(&mut self) -> Result<(TensorId, &'a Tensor), TextError> {
        let word = self.word("a tensor")?;
        self.find_tensor(word).ok_or_else(|| self.wrong("a tensor of an earlier line", word))
    }

    fn find_tensor(&self, word: &str) -> Option<(TensorId, &'a Tensor)> {
        let id = tensor_from_name(word)?;
        self.tensors.get(&id.0).map(|tensor| (id, tensor))
    }

    /// The rest of a line that gives the next parameter its range.
    fn parameter(&mut self) -> Result<Parameter, TextError> {
        let name = self.word("a parameter")?;
        if parameter_from_name(name) != Some(self.parameters.len()) || !self.tensors.is_empty() {
            return Err(TextError::ParameterOrder { line: self.line });
        }
        let (low, high) = (self.integer()?, self.integer()?);
        match self.words.next() {
            Some(word) => Err(self.wrong("the end of the line", word)),
            None => Ok(Parameter { low, high }),
        }
    }

    /// The rest of a line that gives every parameter a number.
    fn point(&mut self) -> Result<Vec<i64>, TextError> {
        let values = self.parameters.iter().map(|_| self.integer()).collect::<Result<Vec<_>, _>>()?;
        match self.words.next() {
            Some(word) => Err(self.wrong("the end of the line", word)),
            None => Ok(values),
        }
    }

    /// What extents are at most, and the formulas of those that are known when it runs.
    fn extents(&mut self) -> Result<(Vec<i64>, Extents), TextError> {
        let (mut most, mut formulas) = (Vec::new(), Vec::new());
        while let Some(word) = self.words.peek().copied() {
            let extent = if let Some(extent) = self.next_if(parse_extent) {
                Index::constant(extent)
            } else if matches!(word, "+" | "*" | "/" | "%") || parameter_from_name(word).is_some() {
                self.index(0)?
            } else {
                break;
            };
            if most.len() == MAX_AXES {
                return Err(self.wrong("at most 32 extents", word));
            }
            if !is_formula(&extent, self.parameters.len()) {
                return Err(TextError::Extent { line: self.line });
            }
            let range = extent.range(&|var| parameter_range(self.parameters, var));
            most.push(range.ok_or(TextError::Extent { line: self.line })?.high);
            formulas.push((most.len() - 1, extent));
        }
        Ok((most, Extents::new(formulas)))
    }

    fn integer(&mut self) -> Result<i64, TextError> {
        let word = self.word("an integer")?;
        parse_integer(word).ok_or_else(|| self.wrong("an integer", word))
    }

    fn deeper(&self, depth: usize) -> Result<usize, TextError> {
        if depth < 2 * MAX_DEPTH { Ok(depth + 1) } else { Err(TextError::TooDeep { line: self.line }) }
    }

    fn expr(&mut self, depth: usize) -> Result<Expr, TextError> {
        let word = self.word("an expression")?;
        let below = self.deeper(depth)?;
        if let Some(op) = Unary::from_name(word) {
            return Ok(Expr::unary(op, self.expr(below)?));
        }
        if let Some(op) = Binary::from_name(word) {
            return Ok(Expr::binary(op, self.expr(below)?, self.expr(below)?));
        }
        match word {
            "int" => Ok(Expr::Index(self.index(below)?)),
            "select" => Ok(Expr::select(self.expr(below)?, self.expr(below)?, self.expr(below)?)),
            "guard" => self.guard(below),
            "pad" => self.pad(below),
            "cast" => Ok(Expr::Cast(self.dtype()?, Box::new(self.expr(below)?))),
            "bits" => Ok(Expr::Bits(self.dtype()?, Box::new(self.expr(below)?))),
            _ => {
                if let Some((id, tensor)) = self.find_tensor(word) {
                    let indices = tensor.shape.iter().map(|_| self.index(below)).collect::<Result<_, _>>()?;
                    return Ok(Expr::load(id, indices));
                }
                parse_float(word).map(Expr::float).ok_or_else(|| self.wrong("an expression", word))
            }
        }
    }

    fn dtype(&mut self) -> Result<DType, TextError> {
        let word = self.word("a type")?;
        DType::from_name(word).ok_or_else(|| self.wrong("a type", word))
    }

    fn guard(&mut self, depth: usize) -> Result<Expr, TextError> {
        let count = self.integer()?;
        let mut conditions = Vec::new();
        // every condition takes words, so a large count runs into the end of the line
        for _ in 0..count {
            conditions.push(Condition { index: self.index(depth)?, low: self.integer()?, high: self.integer()? });
        }
        let (inside, outside) = (self.expr(depth)?, self.expr(depth)?);
        Ok(Expr::Guard { conditions, inside: Box::new(inside), outside: Box::new(outside) })
    }

    fn pad(&mut self, depth: usize) -> Result<Expr, TextError> {
        let outside = self.expr(depth)?;
        let (id, tensor) = self.known_tensor()?;
        let (mut indices, mut conditions) = (Vec::new(), Vec::new());
        for extent in &tensor.shape {
            let marked = self.words.next_if_eq(&"?").is_some();
            let index = self.index(depth)?;
            if marked {
                conditions.push(Condition { index: index.clone(), low: 0, high: *extent });
            }
            indices.push(index);
        }
        Ok(Expr::Guard { conditions, inside: Box::new(Expr::load(id, indices)), outside: Box::new(outside) })
    }

    /// A sum of terms; long sums do not nest.
    fn index(&mut self, depth: usize) -> Result<Index, TextError> {
        let below = self.deeper(depth)?;
        let mut sum = Index::constant(0);
        while self.words.next_if_eq(&"+").is_some() {
            let term = self.term(below)?;
            sum = self.bounded(sum.plus(&term))?;
        }
        let last = self.term(below)?;
        self.bounded(sum.plus(&last))
    }

    fn term(&mut self, depth: usize) -> Result<Index, TextError> {
        let word = self.word("an index")?;
        match word {
            "*" => {
                let factor = self.integer()?;
                let index = self.index(depth)?;
                self.times(index, factor)
            }
            "/" | "%" => {
                let inner = Box::new(self.index(depth)?);
                let divisor = self.integer()?;
                if !(2..MAX_COEFFICIENT).contains(&divisor) {
                    return Err(self.wrong("a divisor of at least 2", &divisor.to_string()));
                }
                let atom = if word == "/" { Atom::FloorDiv(inner, divisor) } else { Atom::Modulo(inner, divisor) };
                Ok(Index::atom(atom))
            }
            "value" => Ok(Index::atom(Atom::Value(Box::new(self.expr(depth)?)))),
            "+" => {
                let first = self.index(depth)?;
                let second = self.index(depth)?;
                self.bounded(first.plus(&second))
            }
            _ => {
                if let Some(number) = parameter_from_name(word) {
                    return Ok(Index::var(Var::parameter(number)));
                }
                if let Some(axis) = axis_from_name(word) {
                    return Ok(Index::var(Var(axis as u32)));
                }
                let value = parse_integer(word).ok_or_else(|| self.wrong("an index", word))?;
                self.bounded(Index::constant(value))
            }
        }
    }

    fn times(&self, index: Index, factor: i64) -> Result<Index, TextError> {
        let fits = |value: i64| value.checked_mul(factor).is_some_and(|v| v.abs() < MAX_COEFFICIENT);
        if fits(index.offset()) && index.terms().iter().all(|(_, coefficient)| fits(*coefficient)) {
            Ok(index.times(factor))
        } else {
            Err(TextError::Coefficient { line: self.line })
        }
    }

    fn bounded(&self, index: Index) -> Result<Index, TextError> {
        let fits = |value: i64| value.unsigned_abs() < MAX_COEFFICIENT.unsigned_abs();
        if fits(index.offset()) && index.terms().iter().all(|(_, coefficient)| fits(*coefficient)) {
            Ok(index)
        } else {
            Err(TextError::Coefficient { line: self.line })
        }
    }
}

fn tensor_from_name(word: &str) -> Option<TensorId> {
    let digits = word.strip_prefix('t')?;
    let id: u32 = digits.parse().ok().filter(|id: &u32| (*id as usize) < MAX_TENSORS && id.to_string() == digits)?;
    Some(TensorId(id))
}

/// An integer without a sign.
fn parse_extent(word: &str) -> Option<i64> {
    word.parse::<i64>().ok().filter(|n| n.to_string() == word && *n >= 0)
}

fn parse_integer(word: &str) -> Option<i64> {
    word.parse::<i64>().ok().filter(|n| n.to_string() == word)
}
