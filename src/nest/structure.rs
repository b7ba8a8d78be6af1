//! Whether a nest can be read at all: names, ranks and types. [`super::verify`] builds upon it, and so does
//! [`super::interpret`], which finds the other faults by running.

use thiserror::Error;

use super::{Buffer, Nest, Stmt};
use crate::workload::{Atom, Condition, DType, Expr, Index, Interval, Operands, Parameter, TensorId, Var};

/// Why a nest makes no sense.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Flaw {
    #[error("buffer `{0}` has a negative extent, one that may exceed what it is at most, or more than 2^48 elements")]
    Shape(String),
    #[error("parameter {0} lies in an empty range, or has no name")]
    Parameter(usize),
    #[error("there is no buffer {0}")]
    UnknownBuffer(u32),
    #[error("variable `{0}` is used outside of its loop")]
    Unbound(String),
    #[error("variable `{0}` is bound again inside of its loop")]
    Rebound(String),
    #[error("a loop without bounds")]
    NoBounds,
    #[error("`{access}` has {found} indices, its buffer {expected}")]
    Rank { access: String, expected: usize, found: usize },
    #[error("`{expr}` is {}, which `{operator}` does not take", found.name())]
    Operand { operator: &'static str, expr: String, found: DType },
    #[error("`{expr}` mixes {} and {}", left.name(), right.name())]
    Mixed { expr: String, left: DType, right: DType },
    #[error("a value of type {} goes to `{access}` of type {}", found.name(), expected.name())]
    Stored { access: String, expected: DType, found: DType },
}

/// Checks shapes, buffers, variables, ranks and types; the first flaw with the statement that has it.
pub(super) fn check(nest: &Nest) -> Result<(), (Flaw, String)> {
    for buffer in &nest.buffers {
        let elements =
            buffer.shape.iter().try_fold(1i64, |n, e| n.checked_mul(*e).filter(|n| *e >= 0 && *n <= 1 << 48));
        let is_part = |part: &Vec<i64>| {
            let fits = |(own, whole): (&i64, &i64)| (0..=*whole).contains(own);
            part.len() == buffer.shape.len() && part.iter().zip(&buffer.shape).all(fits)
        };
        if elements.is_none() || !buffer.part.as_ref().is_none_or(is_part) {
            return Err((Flaw::Shape(buffer.name.clone()), buffer.to_string()));
        }
    }
    let bad = |(at, p): &(usize, &Parameter)| p.low < 0 || p.low > p.high || *at >= nest.vars.len();
    if let Some((at, _)) = nest.parameters.iter().enumerate().find(bad) {
        return Err((Flaw::Parameter(at), format!("{} parameters", nest.parameters.len())));
    }
    if let Some(buffer) = nest.buffers.iter().find(|buffer| !extents_fit(nest, buffer)) {
        return Err((Flaw::Shape(buffer.name.clone()), buffer.to_string()));
    }
    let bound = (0..nest.vars.len()).map(|var| nest.is_parameter(Var(var as u32))).collect();
    let mut checker = Checker { nest, bound };
    checker.block(&nest.setup)?;
    checker.block(&nest.body)
}

/// Whether extents that are known only when it runs are formulas of the parameters that stay in the shape.
fn extents_fit(nest: &Nest, buffer: &Buffer) -> bool {
    let range = |var: Var| nest.parameters.get(var.0 as usize).map_or(Interval::point(0), |p| p.interval());
    buffer.extents.iter().all(|(at, formula)| {
        let is_formula = !formula.has_value() && !formula.any_var(&|var| !nest.is_parameter(var));
        let most = buffer.shape.get(at).copied().unwrap_or(0);
        is_formula && formula.range(&range).is_some_and(|range| range.low >= 0 && range.high <= most)
    })
}

struct Checker<'a> {
    nest: &'a Nest,
    bound: Vec<bool>,
}

impl Checker<'_> {
    fn block(&mut self, statements: &[Stmt]) -> Result<(), (Flaw, String)> {
        statements.iter().try_for_each(|statement| {
            self.head(statement).map_err(|flaw| (flaw, self.nest.show_statement(statement)))?;
            match statement {
                Stmt::If { body, .. } => self.block(body),
                Stmt::Loop(l) => {
                    self.bound[l.var.0 as usize] = true;
                    let result = self.block(&l.body);
                    self.bound[l.var.0 as usize] = false;
                    result
                }
                Stmt::Store { .. } | Stmt::Accumulate { .. } => Ok(()),
            }
        })
    }

    fn head(&self, statement: &Stmt) -> Result<(), Flaw> {
        match statement {
            Stmt::Loop(l) => {
                if l.bounds.is_empty() {
                    return Err(Flaw::NoBounds);
                }
                l.bounds.iter().try_for_each(|bound| self.index(bound))?;
                match self.bound.get(l.var.0 as usize) {
                    None => Err(Flaw::Unbound(self.nest.var_name(l.var))),
                    Some(true) => Err(Flaw::Rebound(self.nest.var_name(l.var))),
                    Some(false) => Ok(()),
                }
            }
            Stmt::If { conditions, .. } => self.conditions(conditions),
            Stmt::Store { buffer, indices, value } => self.stored(*buffer, indices, value),
            Stmt::Accumulate { buffer, indices, value, .. } => self.stored(*buffer, indices, value),
        }
    }

    fn stored(&self, buffer: TensorId, indices: &[Index], value: &Expr) -> Result<(), Flaw> {
        let expected = self.access(buffer, indices)?;
        let found = self.expr(value)?;
        let fits = match literal(value) {
            true => found.is_float() == expected.is_float(),
            false => found == expected,
        };
        if fits {
            return Ok(());
        }
        Err(Flaw::Stored { access: self.nest.show_access(buffer, indices), expected, found })
    }

    fn access(&self, buffer: TensorId, indices: &[Index]) -> Result<DType, Flaw> {
        let known = self.nest.buffers.get(buffer.0 as usize).ok_or(Flaw::UnknownBuffer(buffer.0))?;
        if known.shape.len() != indices.len() {
            let access = self.nest.show_access(buffer, indices);
            return Err(Flaw::Rank { access, expected: known.shape.len(), found: indices.len() });
        }
        indices.iter().try_for_each(|index| self.index(index))?;
        Ok(known.dtype)
    }

    fn conditions(&self, conditions: &[Condition]) -> Result<(), Flaw> {
        conditions.iter().try_for_each(|condition| self.index(&condition.index))
    }

    fn index(&self, index: &Index) -> Result<(), Flaw> {
        index.terms().iter().try_for_each(|(atom, _)| match atom {
            Atom::Var(var) => self.var(*var),
            Atom::FloorDiv(inner, _) | Atom::Modulo(inner, _) => self.index(inner),
            Atom::Value(value) => match self.expr(value)? {
                found if found.is_float() || found == DType::Bool => {
                    Err(Flaw::Operand { operator: "index", expr: self.nest.show_expr(value), found })
                }
                _ => Ok(()),
            },
        })
    }

    fn var(&self, var: Var) -> Result<(), Flaw> {
        match self.bound.get(var.0 as usize) {
            Some(true) => Ok(()),
            _ => Err(Flaw::Unbound(self.nest.var_name(var))),
        }
    }

    /// The type of an expression.
    fn expr(&self, expr: &Expr) -> Result<DType, Flaw> {
        let wrong = |operator: &'static str, operand: &Expr, found: DType| {
            Err(Flaw::Operand { operator, expr: self.nest.show_expr(operand), found })
        };
        let same = |left: DType, right: DType| match left == right {
            true => Ok(left),
            false => Err(Flaw::Mixed { expr: self.nest.show_expr(expr), left, right }),
        };
        match expr {
            Expr::Float(_) => Ok(DType::F32),
            Expr::Index(index) => self.index(index).map(|()| DType::I64),
            Expr::Load { tensor, indices } => self.access(*tensor, indices),
            Expr::Cast(to, x) => self.expr(x).map(|_| *to),
            Expr::Bits(to, x) => match self.expr(x)? {
                found if found.bytes() == to.bytes() => Ok(*to),
                found => wrong("bits", x, found),
            },
            Expr::Unary(op, x) => {
                let found = self.expr(x)?;
                if op.takes().contain(found) { Ok(found) } else { wrong("function", x, found) }
            }
            Expr::Binary(op, x, y) => {
                let found = same(self.expr(x)?, self.expr(y)?)?;
                match op.takes() {
                    takes if takes.contain(found) => Ok(if op.is_comparison() { DType::Bool } else { found }),
                    Operands::Booleans => wrong("logic", x, found),
                    _ => wrong("arithmetic", x, found),
                }
            }
            Expr::Select { condition, yes, no } => match self.expr(condition)? {
                DType::Bool => same(self.expr(yes)?, self.expr(no)?),
                found => wrong("select", condition, found),
            },
            Expr::Guard { conditions, inside, outside } => {
                self.conditions(conditions)?;
                same(self.expr(inside)?, self.expr(outside)?)
            }
        }
    }
}

/// Whether a value is written in the program, and so takes the type of where it goes.
pub(super) fn literal(value: &Expr) -> bool {
    match value {
        Expr::Float(_) => true,
        Expr::Index(index) => index.as_constant().is_some(),
        _ => false,
    }
}
