//! Numbers of iterations as formulas, so that it is known what lies at a place that such a number says, and
//! how much it is: the row that an iteration reads, and that which it writes.
//!
//! Formulas of them are nowhere in a finished program. In a value, such a number is read from the tensor that
//! holds it; an extent cannot be one, since a body is compiled once.

use std::cell::Cell;

use super::builder::Builder;
use super::math::{load, maximum, minimum, multiply};
use super::operator::Problem;
use crate::graph::Step;
use crate::graph::symbol::{Origin, Symbol};
use crate::workload::{Binary, DType, Expr, Extents, Index, Parameter, TensorId, Var};

/// Variables of a value that are looked at where numbers of iterations are read.
const MAX_READ: usize = 1 << 12;

impl Builder {
    /// From now on it is known what a tensor of one element holds: the number of an iteration, from 0, of a
    /// repetition of so many.
    ///
    /// # Errors
    /// [`Problem`] for a count that may be below 1.
    pub fn count_iterations(&mut self, number: TensorId, count: &Index) -> Result<Index, Problem> {
        let most = count.clone().plus_constant(-1);
        let high = self.formulas.most(&most)?;
        let name = format!("the number of an iteration of {}", self.node());
        let range = Parameter { low: 0, high };
        let symbol = self.add_symbol(Symbol::new(name, range, Origin::Count { most }));
        if let Some(symbol) = symbol.as_parameter() {
            self.iterations.insert(symbol, number);
        }
        self.known.insert(number, vec![Index::var(symbol)]);
        Ok(Index::var(symbol))
    }

    /// A tensor of one element like another, which holds a formula.
    ///
    /// # Errors
    /// As [`Builder::map`].
    pub fn number_like(&mut self, tensor: TensorId, formula: &Index) -> Result<TensorId, Problem> {
        let (shape, dtype) = (self.shape(tensor), self.dtype(tensor));
        self.known_tensor(shape, dtype, vec![formula.clone()])
    }

    /// Whether a formula depends on the number of an iteration.
    pub(super) fn is_of_iteration(&self, formula: &Index) -> bool {
        !self.iterations.is_empty()
            && self.formulas.symbols.counts_in(formula).iter().any(|symbol| self.iterations.contains_key(symbol))
    }

    /// A value in which numbers of iterations are read.
    ///
    /// # Errors
    /// [`Problem::Unsupported`] where that is too much: a formula may be made of others again and again.
    pub(super) fn with_numbers_read(&self, value: Expr) -> Result<Expr, Problem> {
        if self.iterations.is_empty() {
            return Ok(value);
        }
        let left = Cell::new(MAX_READ);
        let value = value.substitute(&|var| self.number_read(var, &left));
        match left.get() {
            0 => Err(Problem::Unsupported(format!("more than {MAX_READ} numbers of iterations in a value"))),
            _ => Ok(value),
        }
    }

    /// What stands for a symbol that depends on the number of an iteration; `left` are how many may still be
    /// written down, of which one is never used.
    fn number_read(&self, var: Var, left: &Cell<usize>) -> Option<Index> {
        left.set(left.get().saturating_sub(1));
        if left.get() == 0 {
            return None;
        }
        let symbol = var.as_parameter()?;
        if let Some(number) = self.iterations.get(&symbol) {
            return Some(Index::value(load(*number, vec![Index::constant(0); self.rank(*number)])));
        }
        if !self.is_of_iteration(&Index::var(var)) {
            return None;
        }
        let read = |formula: &Index| Expr::Index(formula.substitute(&|var| self.number_read(var, left)));
        let value = match &self.formulas.symbols.list.get(symbol)?.origin {
            Origin::Product(x, y) => multiply(read(x), read(y)),
            // neither is negative
            Origin::Quotient(x, y) => Expr::binary(Binary::Divide, read(x), read(y)),
            Origin::Minimum(x, y) => minimum(read(x), read(y)),
            Origin::Maximum(x, y) => maximum(read(x), read(y)),
            Origin::Axis { .. } | Origin::Rows { .. } | Origin::Count { .. } => return None,
        };
        Some(Index::value(value))
    }

    /// No extent of a body that was made depends on the number of an iteration, nor does anything that a run
    /// is refused for; `first` is the first tensor of the body.
    ///
    /// # Errors
    /// [`Problem::Unsupported`] where one does.
    pub(super) fn check_extents_of_iterations(&self, body: &[Step], first: usize) -> Result<(), Problem> {
        let changing = |formula: &Index| self.is_of_iteration(formula);
        let is_changing = |extents: &Extents| extents.iter().any(|(_, formula)| changing(formula));
        let mut found =
            (first..self.tensors()).any(|tensor| is_changing(&self.tensor(TensorId(tensor as u32)).extents));
        body.iter().for_each(|step| step.for_each_formula(&mut |formula| found |= changing(formula)));
        found |= self.formulas.symbols.requirements.iter().any(|required| changing(&required.formula));
        match found {
            true => Err(Problem::Unsupported("an extent that is another one in each iteration of a loop".to_string())),
            false => Ok(()),
        }
    }

    /// Whether a formula is never as large as a number, nor its negative.
    pub fn is_below(&self, formula: &Index, bound: i64) -> bool {
        self.formulas.range_of(formula).is_some_and(|range| -bound < range.low && range.high < bound)
    }

    /// Whether a tensor holds one whole number of a type that counts.
    pub fn is_counter(&self, tensor: TensorId) -> bool {
        let about = self.tensor(tensor);
        about.elements() == 1 && about.extents.is_fixed() && matches!(about.dtype, DType::I32 | DType::I64)
    }
}
