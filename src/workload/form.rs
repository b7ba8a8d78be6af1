//! What every expression of a stage keeps to, so that whoever walks it may recurse and add without care.

use thiserror::Error;

use super::{Atom, Expr, Index, Stage, Var};

/// Levels of operators in an expression, those of its indices included.
pub const MAX_DEPTH: usize = 128;
/// Operators, loads and index terms of one stage.
pub const MAX_NODES: usize = 16_384;
/// Exclusive bound of coefficients, divisors and constants of indices.
pub const MAX_COEFFICIENT: i64 = 1 << 40;
/// Exclusive bound of the values of an index.
const MAX_MAGNITUDE: i128 = 1 << 62;

/// An expression that is too large to be worked with, or names an axis that its stage lacks.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FormError {
    #[error("an expression of more than {MAX_DEPTH} levels")]
    TooDeep,
    #[error("an expression of more than {MAX_NODES} parts")]
    TooLong,
    #[error("an index by axis {}, which is not there,", .0.0)]
    UnknownAxis(Var),
    #[error("a literal that is not a number")]
    NotANumber,
    #[error("a number of 2^40 and more in an index")]
    Coefficient,
}

/// Checks depths, lengths, names of axes, numbers in indices and literals of what a stage computes. The
/// greatest values of parameters are those that `highest` gives; `None` where there is no such parameter.
///
/// # Errors
/// The first limit that is not kept.
pub fn check_form(stage: &Stage, highest: &dyn Fn(usize) -> Option<i64>) -> Result<(), FormError> {
    Form { stage, highest, nodes: 0 }.check(&stage.value, 0)
}

struct Form<'a> {
    stage: &'a Stage,
    highest: &'a dyn Fn(usize) -> Option<i64>,
    nodes: usize,
}

impl Form<'_> {
    fn count(&mut self, depth: usize) -> Result<(), FormError> {
        self.nodes += 1;
        match () {
            () if depth > MAX_DEPTH => Err(FormError::TooDeep),
            () if self.nodes > MAX_NODES => Err(FormError::TooLong),
            () => Ok(()),
        }
    }

    fn check(&mut self, expr: &Expr, depth: usize) -> Result<(), FormError> {
        self.count(depth)?;
        match expr {
            Expr::Float(value) if value.0.is_nan() => return Err(FormError::NotANumber),
            Expr::Index(index) => drop(self.check_index(index, depth + 1)?),
            Expr::Load { indices, .. } => {
                for index in indices {
                    self.check_index(index, depth + 1)?;
                }
            }
            Expr::Guard { conditions, .. } => {
                for condition in conditions {
                    self.check_index(&condition.index, depth + 1)?;
                }
            }
            Expr::Float(_)
            | Expr::Unary(..)
            | Expr::Binary(..)
            | Expr::Select { .. }
            | Expr::Cast(..)
            | Expr::Bits(..) => {}
        }
        expr.children().try_for_each(|child| self.check(child, depth + 1))
    }

    /// Gives a bound of the index' magnitude, leaving gathered values out.
    fn check_index(&mut self, index: &Index, depth: usize) -> Result<i128, FormError> {
        self.count(depth)?;
        let small = |value: i64| -MAX_COEFFICIENT < value && value < MAX_COEFFICIENT;
        if !small(index.offset()) {
            return Err(FormError::Coefficient);
        }
        let mut magnitude = i128::from(index.offset()).abs();
        for (atom, coefficient) in index.terms() {
            self.count(depth)?;
            if !small(*coefficient) {
                return Err(FormError::Coefficient);
            }
            let part = match atom {
                Atom::Var(var) => i128::from(self.extent(*var)?),
                Atom::FloorDiv(inner, divisor) | Atom::Modulo(inner, divisor) => {
                    if !(2..MAX_COEFFICIENT).contains(divisor) {
                        return Err(FormError::Coefficient);
                    }
                    self.check_index(inner, depth + 1)?.max(i128::from(*divisor))
                }
                Atom::Value(expr) => {
                    self.check(expr, depth + 1)?;
                    0
                }
            };
            magnitude += part * i128::from(*coefficient).abs();
        }
        if magnitude < MAX_MAGNITUDE { Ok(magnitude) } else { Err(FormError::Coefficient) }
    }

    /// The greatest value of a parameter, or the extent of an axis.
    fn extent(&self, var: Var) -> Result<i64, FormError> {
        let known = match var.as_parameter() {
            Some(parameter) => (self.highest)(parameter),
            None if (var.0 as usize) < self.stage.rank() => Some(self.stage.extent(var.0 as usize)),
            None => None,
        };
        known.ok_or(FormError::UnknownAxis(var))
    }
}
