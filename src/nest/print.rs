//! A nest as text, for people: at any point of its making, whether or not it is legal.
//!
//! ```text
//! buffers:
//!   t0: f32[128, 32] input
//!   t1: f32[128] output
//!   acc: f32[16] register
//! body:
//!   parallel for i in 0..8 {
//!     vector for j in 0..16 {
//!       acc[j] = 0.0
//!     }
//!     ...
//! ```
//!
//! Operators have C's precedence, and parentheses stand only where it needs them. In an index, `/` and `%`
//! round towards minus infinity. `guard(conditions, inside, outside)` evaluates `inside` only where the
//! conditions hold.

use std::fmt::{self, Display, Formatter};

use super::{Buffer, Loop, LoopKind, Nest, Scope, Stmt};
use crate::workload::{Atom, Binary, Combiner, Condition, Expr, Index, Notation, Precedence, Role, TensorId, Var};

impl Display for Nest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "buffers:")?;
        for buffer in &self.buffers {
            writeln!(f, "  {buffer}")?;
        }
        for (title, statements) in [("setup", &self.setup), ("body", &self.body)] {
            if !statements.is_empty() {
                writeln!(f, "{title}:")?;
                block(f, self, statements, 1)?;
            }
        }
        Ok(())
    }
}

/// `name: type[shape] scope`
impl Display for Buffer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}{:?} {}", self.name, self.dtype.name(), self.shape, self.scope.name())
    }
}

impl Scope {
    /// As it is spelled in texts.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Argument(Role::Input) => "input",
            Scope::Argument(Role::Constant) => "constant",
            Scope::Argument(Role::Intermediate) => "intermediate",
            Scope::Argument(Role::Output) => "output",
            Scope::Packed => "packed",
            Scope::Workspace => "workspace",
            Scope::BlockShared => "block-shared",
            Scope::Register => "register",
        }
    }
}

impl Nest {
    /// The first line of a statement: all of a store, the head of a loop or condition.
    pub fn show_statement(&self, statement: &Stmt) -> String {
        Shown(|f: &mut Formatter<'_>| head(f, self, statement)).to_string()
    }

    /// An expression, with the names of buffers and variables.
    pub fn show_expr(&self, value: &Expr) -> String {
        Shown(|f: &mut Formatter<'_>| expr(f, self, value, LOOSEST)).to_string()
    }

    /// An index, with the names of variables.
    pub fn show_index(&self, value: &Index) -> String {
        Shown(|f: &mut Formatter<'_>| index(f, self, value, LOOSEST)).to_string()
    }

    /// An element or access: `t0[i, 8*j]`.
    pub fn show_access(&self, buffer: TensorId, indices: &[Index]) -> String {
        Shown(|f: &mut Formatter<'_>| access(f, self, buffer, indices)).to_string()
    }

    /// The name of a variable; of one that the nest lacks, its number.
    pub fn var_name(&self, var: Var) -> String {
        self.vars.get(var.0 as usize).cloned().unwrap_or_else(|| format!("?{}", var.0))
    }
}

/// Displays by a closure.
struct Shown<F>(F);

impl<F: Fn(&mut Formatter<'_>) -> fmt::Result> Display for Shown<F> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        (self.0)(f)
    }
}

fn block(f: &mut Formatter<'_>, nest: &Nest, statements: &[Stmt], depth: usize) -> fmt::Result {
    let indent = 2 * depth;
    for statement in statements {
        write!(f, "{:indent$}", "")?;
        head(f, nest, statement)?;
        match statement {
            Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => {
                writeln!(f, " {{")?;
                block(f, nest, body, depth + 1)?;
                writeln!(f, "{:indent$}}}", "")?;
            }
            Stmt::Store { .. } | Stmt::Accumulate { .. } => writeln!(f)?,
        }
    }
    Ok(())
}

fn head(f: &mut Formatter<'_>, nest: &Nest, statement: &Stmt) -> fmt::Result {
    match statement {
        Stmt::Loop(Loop { var, bounds, kind, .. }) => {
            f.write_str(match kind {
                LoopKind::Serial => "for ",
                LoopKind::Parallel => "parallel for ",
                LoopKind::Vector => "vector for ",
                LoopKind::Unroll => "unroll for ",
                LoopKind::Block => "block for ",
                LoopKind::Thread => "thread for ",
                LoopKind::Warp => "warp for ",
                LoopKind::Matrix => "matrix for ",
            })?;
            write!(f, "{} in 0..", nest.var_name(*var))?;
            match bounds.as_slice() {
                [bound] => index(f, nest, bound, PRODUCT),
                several => {
                    f.write_str("min(")?;
                    separated(f, several, ", ", |f, bound| index(f, nest, bound, LOOSEST))?;
                    f.write_str(")")
                }
            }
        }
        Stmt::If { conditions, .. } => {
            f.write_str("if ")?;
            all_of(f, nest, conditions)
        }
        Stmt::Store { buffer, indices, value } => {
            access(f, nest, *buffer, indices)?;
            f.write_str(" = ")?;
            expr(f, nest, value, LOOSEST)
        }
        Stmt::Accumulate { buffer, indices, combiner, value } => {
            access(f, nest, *buffer, indices)?;
            f.write_str(match combiner {
                Combiner::Sum => " += ",
                Combiner::Product => " *= ",
                Combiner::Maximum => " max= ",
                Combiner::Minimum => " min= ",
            })?;
            expr(f, nest, value, LOOSEST)
        }
    }
}

// How tightly operators bind. An operand that binds less tightly than its place asks for stands in
// parentheses.
const LOOSEST: u8 = 0;
const DISJUNCTION: u8 = 1;
const COMPARISON: u8 = DISJUNCTION + Precedence::Comparison as u8;
const SUM: u8 = DISJUNCTION + Precedence::Sum as u8;
const PRODUCT: u8 = DISJUNCTION + Precedence::Product as u8;
const PREFIX: u8 = 6;
const TIGHTEST: u8 = 7;

fn expr(f: &mut Formatter<'_>, nest: &Nest, value: &Expr, place: u8) -> fmt::Result {
    match value {
        Expr::Float(x) => {
            parenthesised(f, if x.0.is_sign_negative() { PREFIX } else { TIGHTEST } < place, |f| write!(f, "{:?}", x.0))
        }
        Expr::Index(x) => index(f, nest, x, place),
        Expr::Load { tensor, indices } => access(f, nest, *tensor, indices),
        Expr::Unary(op, x) => match op.notation() {
            Notation::Prefix(symbol) => parenthesised(f, PREFIX < place, |f| {
                f.write_str(symbol)?;
                expr(f, nest, x, TIGHTEST)
            }),
            Notation::Infix(name, _) | Notation::Call(name) => call(f, nest, name, &[x]),
        },
        Expr::Cast(dtype, x) => call(f, nest, dtype.name(), &[x]),
        Expr::Select { condition, yes, no } => call(f, nest, "select", &[condition, yes, no]),
        Expr::Guard { conditions, inside, outside } => {
            f.write_str("guard(")?;
            all_of(f, nest, conditions)?;
            f.write_str(", ")?;
            expr(f, nest, inside, LOOSEST)?;
            f.write_str(", ")?;
            expr(f, nest, outside, LOOSEST)?;
            f.write_str(")")
        }
        Expr::Binary(op, x, y) => match infix(*op) {
            Err(name) => call(f, nest, name, &[x, y]),
            Ok((symbol, own)) => parenthesised(f, own < place, |f| {
                // comparisons do not chain; all others group to the left
                expr(f, nest, x, if own == COMPARISON { own + 1 } else { own })?;
                write!(f, " {symbol} ")?;
                expr(f, nest, y, own + 1)
            }),
        },
    }
}

/// The symbol of an operator and how tightly it binds; or its name, where it is written as a call.
fn infix(op: Binary) -> Result<(&'static str, u8), &'static str> {
    match op.notation() {
        Notation::Infix(symbol, precedence) => Ok((symbol, DISJUNCTION + precedence as u8)),
        Notation::Prefix(name) | Notation::Call(name) => Err(name),
    }
}

fn index(f: &mut Formatter<'_>, nest: &Nest, value: &Index, place: u8) -> fmt::Result {
    let own = match (value.terms(), value.offset()) {
        ([], constant) if constant >= 0 => TIGHTEST,
        ([], _) => PREFIX,
        ([(atom, 1)], 0) => return atom_of_index(f, nest, atom, place),
        ([(_, coefficient)], 0) if *coefficient >= 0 => PRODUCT,
        _ => SUM,
    };
    // positive terms first: `197 - 8*i`, not `-8*i + 197`
    let (positive, negative): (Vec<_>, Vec<_>) = value.terms().iter().partition(|(_, coefficient)| *coefficient > 0);
    parenthesised(f, own < place, |f| {
        let mut first = true;
        for (atom, coefficient) in positive {
            f.write_str(if first { "" } else { " + " })?;
            term(f, nest, atom, coefficient.unsigned_abs())?;
            first = false;
        }
        match value.offset() {
            0 if !first || !negative.is_empty() => {}
            constant if first => {
                write!(f, "{constant}")?;
                first = false;
            }
            constant => {
                write!(f, " {} {}", if constant < 0 { '-' } else { '+' }, constant.unsigned_abs())?;
            }
        }
        for (atom, coefficient) in negative {
            f.write_str(if first { "-" } else { " - " })?;
            term(f, nest, atom, coefficient.unsigned_abs())?;
            first = false;
        }
        Ok(())
    })
}

fn term(f: &mut Formatter<'_>, nest: &Nest, atom: &Atom, factor: u64) -> fmt::Result {
    if factor == 1 {
        return atom_of_index(f, nest, atom, PRODUCT);
    }
    write!(f, "{factor}*")?;
    atom_of_index(f, nest, atom, PREFIX)
}

fn atom_of_index(f: &mut Formatter<'_>, nest: &Nest, atom: &Atom, place: u8) -> fmt::Result {
    let division = |f: &mut Formatter<'_>, inner: &Index, symbol: &str, divisor: i64| {
        parenthesised(f, PRODUCT < place, |f| {
            index(f, nest, inner, PRODUCT)?;
            write!(f, " {symbol} {divisor}")
        })
    };
    match atom {
        Atom::Var(var) => f.write_str(&nest.var_name(*var)),
        Atom::FloorDiv(inner, divisor) => division(f, inner, "/", *divisor),
        Atom::Modulo(inner, divisor) => division(f, inner, "%", *divisor),
        Atom::Value(value) => expr(f, nest, value, place),
    }
}

fn all_of(f: &mut Formatter<'_>, nest: &Nest, conditions: &[Condition]) -> fmt::Result {
    if conditions.is_empty() {
        return f.write_str("true");
    }
    separated(f, conditions, " && ", |f, Condition { index: value, low, high }| {
        if *low > i64::MIN || *high == i64::MAX {
            write!(f, "{low} <= ")?;
        }
        index(f, nest, value, SUM)?;
        if *high < i64::MAX { write!(f, " < {high}") } else { Ok(()) }
    })
}

fn access(f: &mut Formatter<'_>, nest: &Nest, buffer: TensorId, indices: &[Index]) -> fmt::Result {
    match nest.buffers.get(buffer.0 as usize) {
        Some(known) => write!(f, "{}[", known.name)?,
        None => write!(f, "?{}[", buffer.0)?,
    }
    separated(f, indices, ", ", |f, i| index(f, nest, i, LOOSEST))?;
    f.write_str("]")
}

fn call(f: &mut Formatter<'_>, nest: &Nest, name: &str, arguments: &[&Expr]) -> fmt::Result {
    write!(f, "{name}(")?;
    separated(f, arguments, ", ", |f, argument| expr(f, nest, argument, LOOSEST))?;
    f.write_str(")")
}

fn separated<T>(
    f: &mut Formatter<'_>,
    items: &[T],
    separator: &str,
    mut show: impl FnMut(&mut Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (position, item) in items.iter().enumerate() {
        f.write_str(if position == 0 { "" } else { separator })?;
        show(f, item)?;
    }
    Ok(())
}

fn parenthesised(
    f: &mut Formatter<'_>,
    needed: bool,
    show: impl FnOnce(&mut Formatter<'_>) -> fmt::Result,
) -> fmt::Result {
    if !needed {
        return show(f);
    }
    f.write_str("(")?;
    show(f)?;
    f.write_str(")")
}
