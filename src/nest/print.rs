//! A nest as text: at any point of its making, whether or not it is legal. [`super::parse`] reads it back.
//!
//! ```text
//! buffers:
//!   t0: f32[128, 32] input
//!   t1: f32[128] output
//!   t2: f32[128, 96] output[128, 32]      a part of each row is written
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
//!
//! Parameters, if there are any, come first, each with its least and its greatest value:
//!
//! ```text
//! parameters:
//!   len0: 1..512
//! buffers:
//!   t0: f32[len0, 64] input
//! ```
//!
//! A first line `error growth 32` gives [`Nest::error_growth`] where it is not 1. The second of two buffers
//! of one name is called `name#2`; so is a loop variable inside a loop over another of its name. Sums,
//! products and quotients of variables and integers are one [`Index`]; where they are several, or where an
//! index is gathered and stands for a value, `int(...)` delimits the index: `int(i) * int(j)`, `int(t0[i] +
//! 1)`. In an index, `value(...)` delimits arithmetic that is done at run time: `t0[value(t1[i] * t2[i])]`.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Display, Formatter};

use super::{Buffer, Loop, LoopKind, Nest, Scope, Stmt};
use crate::workload::{
    Atom, Binary, Combiner, Condition, Expr, Index, Notation, Parameter, Precedence, Role, TensorId, Unary, Var,
};

impl Display for Nest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let names = Names::of(self);
        if self.error_growth != 1 {
            writeln!(f, "{ERROR_GROWTH} {}", self.error_growth)?;
        }
        if !self.parameters.is_empty() {
            writeln!(f, "{PARAMETERS}:")?;
        }
        for (number, Parameter { low, high }) in self.parameters.iter().enumerate() {
            f.write_str("  ")?;
            names.var(f, Var(number as u32))?;
            writeln!(f, ": {low}..{high}")?;
        }
        writeln!(f, "buffers:")?;
        for (id, buffer) in (0..).map(TensorId).zip(&self.buffers) {
            f.write_str("  ")?;
            names.buffer(f, id)?;
            write!(f, ": {}[", buffer.dtype.name())?;
            for dimension in 0..buffer.shape.len() {
                f.write_str(if dimension > 0 { ", " } else { "" })?;
                index(f, &names, &buffer.extent(dimension), LOOSEST)?;
            }
            write!(f, "] {}", buffer.scope.name())?;
            if let Some(part) = &buffer.part {
                write!(f, "{part:?}")?;
            }
            writeln!(f)?;
        }
        for (title, statements) in [("setup", &self.setup), ("body", &self.body)] {
            if !statements.is_empty() {
                writeln!(f, "{title}:")?;
                block(f, &names, statements, 1)?;
            }
        }
        Ok(())
    }
}

/// The title of the list of parameters.
pub(super) const PARAMETERS: &str = "parameters";

/// What the first line of a text begins with, if errors grow.
pub(super) const ERROR_GROWTH: &str = "error growth";

/// The names of buffers and variables in a text.
struct Names<'a> {
    nest: &'a Nest,
    /// Which of the loops of one name around it a loop is, itself included, if not the first.
    vars: BTreeMap<Var, usize>,
    /// Which of the buffers of one name it is, if not the first.
    buffers: BTreeMap<TensorId, usize>,
}

impl<'a> Names<'a> {
    fn of(nest: &'a Nest) -> Names<'a> {
        let mut names = Names { nest, vars: BTreeMap::new(), buffers: BTreeMap::new() };
        let mut seen = HashMap::<&str, usize>::new();
        for (id, buffer) in (0..).map(TensorId).zip(&nest.buffers) {
            let count = seen.entry(&buffer.name).or_default();
            *count += 1;
            if *count > 1 {
                names.buffers.insert(id, *count);
            }
        }
        for statements in [&nest.setup, &nest.body] {
            names.note_loops(statements, &mut Vec::new());
        }
        names
    }

    fn note_loops(&mut self, statements: &[Stmt], around: &mut Vec<Var>) {
        for statement in statements {
            match statement {
                Stmt::Loop(l) if !around.contains(&l.var) => {
                    let name = self.nest.vars.get(l.var.0 as usize);
                    let same = around.iter().filter(|outer| self.nest.vars.get(outer.0 as usize) == name).count();
                    if same > 0 {
                        self.vars.insert(l.var, same + 1);
                    }
                    around.push(l.var);
                    self.note_loops(&l.body, around);
                    around.pop();
                }
                Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => self.note_loops(body, around),
                Stmt::Store { .. } | Stmt::Accumulate { .. } => {}
            }
        }
    }

    fn var(&self, f: &mut Formatter<'_>, var: Var) -> fmt::Result {
        match self.nest.vars.get(var.0 as usize) {
            Some(name) => f.write_str(name)?,
            None => write!(f, "?{}", var.0)?,
        }
        self.vars.get(&var).map_or(Ok(()), |number| write!(f, "{NUMBER_SIGN}{number}"))
    }

    fn buffer(&self, f: &mut Formatter<'_>, buffer: TensorId) -> fmt::Result {
        match self.nest.buffers.get(buffer.0 as usize) {
            Some(known) => f.write_str(&known.name)?,
            None => write!(f, "?{}", buffer.0)?,
        }
        self.buffers.get(&buffer).map_or(Ok(()), |number| write!(f, "{NUMBER_SIGN}{number}"))
    }
}

/// Between a name and which one of that name it is.
pub(super) const NUMBER_SIGN: char = '#';

/// `name: type[shape] scope`
impl Display for Buffer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}{:?} {}", self.name, self.dtype.name(), self.shape, self.scope.name())
    }
}

impl Scope {
    pub const ALL: [Scope; 8] = [
        Scope::Argument(Role::Input),
        Scope::Argument(Role::Constant),
        Scope::Argument(Role::Intermediate),
        Scope::Argument(Role::Output),
        Scope::Packed,
        Scope::Workspace,
        Scope::BlockShared,
        Scope::Register,
    ];

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
        Shown(|f: &mut Formatter<'_>| head(f, &Names::of(self), statement)).to_string()
    }

    /// An expression, with the names of buffers and variables.
    pub fn show_expr(&self, value: &Expr) -> String {
        Shown(|f: &mut Formatter<'_>| expr(f, &Names::of(self), value, LOOSEST)).to_string()
    }

    /// An index, with the names of variables.
    pub fn show_index(&self, value: &Index) -> String {
        Shown(|f: &mut Formatter<'_>| index(f, &Names::of(self), value, LOOSEST)).to_string()
    }

    /// An element or access: `t0[i, 8*j]`.
    pub fn show_access(&self, buffer: TensorId, indices: &[Index]) -> String {
        Shown(|f: &mut Formatter<'_>| access(f, &Names::of(self), buffer, indices)).to_string()
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

fn block(f: &mut Formatter<'_>, names: &Names<'_>, statements: &[Stmt], depth: usize) -> fmt::Result {
    let indent = 2 * depth;
    for statement in statements {
        write!(f, "{:indent$}", "")?;
        head(f, names, statement)?;
        match statement {
            Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => {
                writeln!(f, " {{")?;
                block(f, names, body, depth + 1)?;
                writeln!(f, "{:indent$}}}", "")?;
            }
            Stmt::Store { .. } | Stmt::Accumulate { .. } => writeln!(f)?,
        }
    }
    Ok(())
}

fn head(f: &mut Formatter<'_>, names: &Names<'_>, statement: &Stmt) -> fmt::Result {
    match statement {
        Stmt::Loop(Loop { var, bounds, kind, .. }) => {
            match kind {
                LoopKind::Serial => f.write_str("for ")?,
                _ => write!(f, "{} for ", kind.name())?,
            }
            names.var(f, *var)?;
            f.write_str(" in 0..")?;
            match bounds.as_slice() {
                [bound] => index(f, names, bound, PRODUCT),
                several => {
                    f.write_str("min(")?;
                    separated(f, several, ", ", |f, bound| index(f, names, bound, LOOSEST))?;
                    f.write_str(")")
                }
            }
        }
        Stmt::If { conditions, .. } => {
            f.write_str("if ")?;
            all_of(f, names, conditions)
        }
        Stmt::Store { buffer, indices, value } => {
            access(f, names, *buffer, indices)?;
            f.write_str(" = ")?;
            expr(f, names, value, LOOSEST)
        }
        Stmt::Accumulate { buffer, indices, combiner, value } => {
            access(f, names, *buffer, indices)?;
            f.write_str(match combiner {
                Combiner::Sum => " += ",
                Combiner::Product => " *= ",
                Combiner::Maximum => " max= ",
                Combiner::Minimum => " min= ",
            })?;
            expr(f, names, value, LOOSEST)
        }
    }
}

/// How the name of a function begins that gives the bits of a value as another type.
pub(super) const BITS: &str = "bits_";

// How tightly operators bind. An operand that binds less tightly than its place asks for stands in
// parentheses.
pub(super) const LOOSEST: u8 = 0;
const DISJUNCTION: u8 = 1;
pub(super) const COMPARISON: u8 = DISJUNCTION + Precedence::Comparison as u8;
pub(super) const SUM: u8 = DISJUNCTION + Precedence::Sum as u8;
pub(super) const PRODUCT: u8 = DISJUNCTION + Precedence::Product as u8;
const PREFIX: u8 = 6;
pub(super) const TIGHTEST: u8 = 7;

fn expr(f: &mut Formatter<'_>, names: &Names<'_>, value: &Expr, place: u8) -> fmt::Result {
    match value {
        Expr::Float(x) => {
            parenthesised(f, if x.0.is_sign_negative() { PREFIX } else { TIGHTEST } < place, |f| write!(f, "{:?}", x.0))
        }
        Expr::Index(x) if x.has_value() => int(f, names, x),
        Expr::Index(x) => index(f, names, x, place),
        Expr::Load { tensor, indices } => access(f, names, *tensor, indices),
        Expr::Unary(op, x) => match op.notation() {
            Notation::Prefix(symbol) => parenthesised(f, PREFIX < place, |f| {
                f.write_str(symbol)?;
                match &**x {
                    // a sign in front of a number is a part of it
                    Expr::Float(_) => parenthesised(f, true, |f| expr(f, names, x, LOOSEST)),
                    Expr::Index(x) => int(f, names, x),
                    _ => expr(f, names, x, TIGHTEST),
                }
            }),
            Notation::Infix(name, _) | Notation::Call(name) => call(f, names, name, &[x]),
        },
        Expr::Cast(dtype, x) => call(f, names, dtype.name(), &[x]),
        Expr::Bits(dtype, x) => call(f, names, &format!("{BITS}{}", dtype.name()), &[x]),
        Expr::Select { condition, yes, no } => call(f, names, "select", &[condition, yes, no]),
        Expr::Guard { conditions, inside, outside } => {
            f.write_str("guard(")?;
            all_of(f, names, conditions)?;
            f.write_str(", ")?;
            expr(f, names, inside, LOOSEST)?;
            f.write_str(", ")?;
            expr(f, names, outside, LOOSEST)?;
            f.write_str(")")
        }
        Expr::Binary(op, x, y) => match infix(*op) {
            Err(name) => call(f, names, name, &[x, y]),
            Ok((symbol, own)) => parenthesised(f, own < place, |f| {
                let is_like_index = is_integer_arithmetic(value);
                let operand = |f: &mut Formatter<'_>, operand: &Expr, place| match operand {
                    Expr::Index(x) if is_like_index => int(f, names, x),
                    _ => expr(f, names, operand, place),
                };
                // comparisons do not chain; all others group to the left
                operand(f, x, if own == COMPARISON { own + 1 } else { own })?;
                write!(f, " {symbol} ")?;
                operand(f, y, own + 1)
            }),
        },
    }
}

/// An index where a value is expected, and where it would be read as something else.
fn int(f: &mut Formatter<'_>, names: &Names<'_>, value: &Index) -> fmt::Result {
    f.write_str("int(")?;
    index(f, names, value, LOOSEST)?;
    f.write_str(")")
}

/// Whether an expression would be read as one index: arithmetic of nothing but indices.
fn is_integer_arithmetic(value: &Expr) -> bool {
    match value {
        Expr::Index(_) | Expr::Unary(Unary::Negate, _) => value.children().all(is_integer_arithmetic),
        Expr::Binary(op, x, y) => {
            matches!(infix(*op), Ok((_, SUM | PRODUCT))) && is_integer_arithmetic(x) && is_integer_arithmetic(y)
        }
        _ => false,
    }
}

/// The symbol of an operator and how tightly it binds; or its name, where it is written as a call.
pub(super) fn infix(op: Binary) -> Result<(&'static str, u8), &'static str> {
    match op.notation() {
        Notation::Infix(symbol, precedence) => Ok((symbol, DISJUNCTION + precedence as u8)),
        Notation::Prefix(name) | Notation::Call(name) => Err(name),
    }
}

fn index(f: &mut Formatter<'_>, names: &Names<'_>, value: &Index, place: u8) -> fmt::Result {
    let own = match (value.terms(), value.offset()) {
        ([], constant) if constant >= 0 => TIGHTEST,
        ([], _) => PREFIX,
        ([(atom, 1)], 0) => return atom_of_index(f, names, atom, place),
        ([(_, coefficient)], 0) if *coefficient >= 0 => PRODUCT,
        _ => SUM,
    };
    // positive terms first: `197 - 8*i`, not `-8*i + 197`
    let (positive, negative): (Vec<_>, Vec<_>) = value.terms().iter().partition(|(_, coefficient)| *coefficient > 0);
    parenthesised(f, own < place, |f| {
        let mut first = true;
        for (atom, coefficient) in positive {
            f.write_str(if first { "" } else { " + " })?;
            term(f, names, atom, coefficient.unsigned_abs())?;
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
            match (first, coefficient) {
                // a sign in front binds more tightly than a division
                (true, -1) => atom_of_index(f, names, atom, PREFIX)?,
                _ => term(f, names, atom, coefficient.unsigned_abs())?,
            }
            first = false;
        }
        Ok(())
    })
}

fn term(f: &mut Formatter<'_>, names: &Names<'_>, atom: &Atom, factor: u64) -> fmt::Result {
    if factor == 1 {
        return atom_of_index(f, names, atom, PRODUCT);
    }
    write!(f, "{factor}*")?;
    atom_of_index(f, names, atom, PREFIX)
}

fn atom_of_index(f: &mut Formatter<'_>, names: &Names<'_>, atom: &Atom, place: u8) -> fmt::Result {
    let division = |f: &mut Formatter<'_>, inner: &Index, symbol: &str, divisor: i64| {
        parenthesised(f, PRODUCT < place, |f| {
            index(f, names, inner, PRODUCT)?;
            write!(f, " {symbol} {divisor}")
        })
    };
    match atom {
        Atom::Var(var) => names.var(f, *var),
        Atom::FloorDiv(inner, divisor) => division(f, inner, "/", *divisor),
        Atom::Modulo(inner, divisor) => division(f, inner, "%", *divisor),
        Atom::Value(value) => match &**value {
            Expr::Float(_) | Expr::Index(_) => call(f, names, "value", &[value]),
            Expr::Unary(op, _) if matches!(op.notation(), Notation::Prefix(_)) => call(f, names, "value", &[value]),
            Expr::Binary(op, ..) if infix(*op).is_ok() => call(f, names, "value", &[value]),
            _ => expr(f, names, value, LOOSEST),
        },
    }
}

fn all_of(f: &mut Formatter<'_>, names: &Names<'_>, conditions: &[Condition]) -> fmt::Result {
    if conditions.is_empty() {
        return f.write_str("true");
    }
    separated(f, conditions, " && ", |f, Condition { index: value, low, high }| {
        if *low > i64::MIN || *high == i64::MAX {
            write!(f, "{low} <= ")?;
        }
        index(f, names, value, SUM)?;
        if *high < i64::MAX { write!(f, " < {high}") } else { Ok(()) }
    })
}

fn access(f: &mut Formatter<'_>, names: &Names<'_>, buffer: TensorId, indices: &[Index]) -> fmt::Result {
    names.buffer(f, buffer)?;
    f.write_str("[")?;
    separated(f, indices, ", ", |f, i| index(f, names, i, LOOSEST))?;
    f.write_str("]")
}

fn call(f: &mut Formatter<'_>, names: &Names<'_>, name: &str, arguments: &[&Expr]) -> fmt::Result {
    write!(f, "{name}(")?;
    separated(f, arguments, ", ", |f, argument| expr(f, names, argument, LOOSEST))?;
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
