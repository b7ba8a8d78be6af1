//! Strides that are known only when a kernel runs.
//!
//! The address of an element is a sum of indices times strides. Where extents are a kernel's parameters, some
//! strides are products of them, which an [`Index`] does not hold. So whatever such a stride is multiplied
//! with becomes a variable of its own, at the level of the loop where it is known:
//!
//! ```text
//! before: for i in 0..n { for j in 0..8 { … t[i, j, k] … } }             t of n × m × 64
//! after:  s = 64·m   for i in 0..n { p = i·s   for j { … t[p + 64·j + k] … } }
//! ```

use std::collections::HashMap;

use crate::codegen::emit::ir::{Element, Value};
use crate::codegen::emit::{Binding, Emitter};
use crate::codegen::error::CodegenError;
use crate::workload::{Atom, Index, Interval, TensorId, Var};

type Result<T> = std::result::Result<T, CodegenError>;

/// Elements between neighbours along a dimension: a constant, times a product of extents.
#[derive(Clone, Copy)]
pub(super) struct Stride {
    pub(super) factor: i64,
    /// Stands for the product; `None` where all extents are fixed.
    pub(super) product: Option<Var>,
}

impl<'c> Emitter<'_, 'c> {
    /// Makes the parameters known, whose values lie behind the other arguments.
    pub(super) fn bind_parameters(&mut self) -> Result<()> {
        let nest = self.shared.nest;
        if nest.parameters.is_empty() {
            return Ok(());
        }
        let pointer = self.shared.context.ptr_type(inkwell::AddressSpace::default());
        let integer = self.shared.context.i64_type();
        let position = self.ir.integer(Element::I64, nest.arguments().len() as i64);
        let slot = self.ir.offset(pointer.into(), self.frame.arguments, position)?;
        let values = self.ir.builder.build_load(pointer, slot, "parameters")?.into_pointer_value();
        for (var, range) in nest.parameter_ranges() {
            let position = self.ir.integer(Element::I64, i64::from(var.0));
            let address = self.ir.offset(integer.into(), values, position)?;
            let name = nest.vars.get(var.0 as usize).map_or("", String::as_str);
            let value = self.ir.builder.build_load(integer, address, name)?;
            self.bind(var, Binding::Scalar(value, 0), range)?;
        }
        Ok(())
    }

    /// Computes the strides of all buffers, once for the function.
    pub(super) fn materialize_strides(&mut self) -> Result<()> {
        let mut products: HashMap<Vec<Index>, Var> = HashMap::new();
        let nest = self.shared.nest;
        self.strides.clear();
        let are_known = nest.parameter_ranges().all(|(var, _)| self.binding(var).is_ok());
        for buffer in &nest.buffers {
            // setup, which is given no numbers, has no business with what changes with them
            if !are_known && !buffer.extents.is_fixed() {
                self.strides.push(Vec::new());
                continue;
            }
            let mut of_buffer = Vec::with_capacity(buffer.shape.len());
            let (mut factor, mut formulas) = (1i64, Vec::new());
            for (dimension, most) in buffer.shape.iter().enumerate().rev() {
                let product = if formulas.is_empty() { None } else { Some(self.product(&formulas, &mut products)?) };
                of_buffer.push(Stride { factor, product });
                match buffer.extents.get(dimension) {
                    None => factor = factor.saturating_mul(*most),
                    Some(formula) => formulas.push(formula.clone()),
                }
            }
            of_buffer.reverse();
            self.strides.push(of_buffer);
        }
        Ok(())
    }

    /// The variable that stands for a product of formulas, the last of which is new.
    fn product(&mut self, formulas: &[Index], known: &mut HashMap<Vec<Index>, Var>) -> Result<Var> {
        if let Some(var) = known.get(formulas) {
            return Ok(*var);
        }
        let [others @ .., last] = formulas else { return Err(CodegenError::Internal("a product of nothing".into())) };
        let mut value = self.scalar_index(last)?;
        let mut range = last.range(&|var| self.range(var)).unwrap_or(Interval { low: 0, high: i64::MAX });
        if !others.is_empty() {
            let before = self.product(others, known)?;
            let product = self.scalar_atom(&Atom::Var(before))?;
            value = self.ir.mul_nsw(product, value)?;
            range = times(self.range(before), range);
        }
        let var = self.new_variable(value, 0, range);
        known.insert(formulas.to_vec(), var);
        Ok(var)
    }

    pub(super) fn stride_of(&self, buffer: TensorId, dimension: usize) -> Result<Stride> {
        let known = self.strides.get(buffer.0 as usize).and_then(|strides| strides.get(dimension));
        let unknown = || CodegenError::Malformed("setup uses what is known only when it runs".into());
        known.copied().ok_or_else(unknown)
    }

    /// The value of a stride.
    pub(super) fn stride_value(&mut self, stride: Stride) -> Result<Value<'c>> {
        let index = match stride.product {
            Some(product) => Index::var(product).times(stride.factor),
            None => Index::constant(stride.factor),
        };
        self.scalar_index(&index)
    }

    /// A scalar, in all lanes where another value has several.
    pub(super) fn shaped_scalar(&self, x: Value<'c>, like: Value<'c>) -> Result<Value<'c>> {
        if let Value::VectorValue(vector) = like { self.ir.splat(x, vector.get_type().get_size()) } else { Ok(x) }
    }

    /// An index that is equal in all lanes, times a stride.
    pub(super) fn strided(&mut self, index: &Index, stride: Stride) -> Result<Index> {
        let Some(product) = stride.product else { return Ok(index.clone().times(stride.factor)) };
        // variables with a known value are constants here
        let folded = index.substitute(&|var| match self.binding(var) {
            Ok(Binding::Constant(value)) => Some(Index::constant(value)),
            _ => None,
        });
        let mut sum = Index::var(product).times(folded.offset());
        for (atom, coefficient) in folded.terms() {
            sum = sum.plus(&Index::var(self.multiple(atom, product)?).times(*coefficient));
        }
        Ok(sum.times(stride.factor))
    }

    /// The variable that stands for an atom times a product of extents, computed where the atom is known.
    fn multiple(&mut self, atom: &Atom, product: Var) -> Result<Var> {
        let level = self.level_of(atom)?.unwrap_or(0);
        let key = (atom.clone(), product);
        if let Some(known) = self.levels[level].multiples.get(&key) {
            return Ok(*known);
        }
        let (value, by) = (self.scalar_atom(atom)?, self.scalar_atom(&Atom::Var(product))?);
        let value = self.at_level(level, |this| this.ir.mul_nsw(value, by))?;
        let own = Index::atom(atom.clone()).range(&|var| self.range(var));
        let range = times(own.unwrap_or(Interval { low: i64::MIN, high: i64::MAX }), self.range(product));
        let var = self.new_variable(value, level, range);
        self.levels[level].multiples.insert(key, var);
        Ok(var)
    }

    /// A variable of no loop.
    fn new_variable(&mut self, value: Value<'c>, level: usize, range: Interval) -> Var {
        self.variables.bindings.push(Binding::Scalar(value, level));
        self.variables.ranges.push(range);
        Var(self.variables.bindings.len() as u32 - 1)
    }
}

/// What products of values of two ranges can be.
fn times(x: Interval, y: Interval) -> Interval {
    let ends = [x.low.saturating_mul(y.low), x.low.saturating_mul(y.high), x.high.saturating_mul(y.low)];
    let last = x.high.saturating_mul(y.high);
    Interval { low: ends.iter().copied().fold(last, i64::min), high: ends.into_iter().fold(last, i64::max) }
}
