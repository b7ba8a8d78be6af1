//! Index arithmetic is written as far outside as its variables allow, once for each loop.
//!
//! ```text
//! before: for i { for k { … t[256*i + 8*k + 3] … } }
//! after:  for i { p = t + 256*i; for k, q = p then q + 8 { … q[3] … } }
//! ```
//!
//! Innermost loops step pointers instead of multiplying. LLVM's own passes for that, loop strength reduction
//! and what it needs to know, took a quarter of all compile time, and are switched off.

use std::collections::HashMap;

use inkwell::basic_block::BasicBlock;
use inkwell::types::BasicTypeEnum;
use inkwell::values::{BasicValue, InstructionValue, PhiValue, PointerValue};

use crate::codegen::emit::Emitter;
use crate::codegen::emit::ir::{Element, Value};
use crate::codegen::error::CodegenError;
use crate::workload::{Atom, Index, TensorId, Var};

type Result<T> = std::result::Result<T, CodegenError>;

/// Pointers that one loop steps, at most: more would not stay in registers.
const MAXIMAL_STEPPED: usize = 8;

/// The function, or one of the loops around the current place that are not written out.
pub(super) struct LoopLevel<'c> {
    /// Where it begins, and the last instruction of what is computed there for all that is inside.
    block: BasicBlock<'c>,
    last: Option<InstructionValue<'c>>,
    stepping: Option<Stepping<'c>>,
    sums: HashMap<Index, Value<'c>>,
    addresses: HashMap<(TensorId, Index), PointerValue<'c>>,
    /// What stands for an atom times a product of extents.
    pub(super) multiples: HashMap<(Atom, Var), Var>,
}

/// An innermost loop from 0 on, and the pointers that move along with it.
struct Stepping<'c> {
    var: Var,
    before: BasicBlock<'c>,
    pointers: Vec<Stepped<'c>>,
}

struct Stepped<'c> {
    phi: PhiValue<'c>,
    element: BasicTypeEnum<'c>,
    elements: i64,
}

/// The terms of an index whose variables are loops, by level, and the rest.
pub(super) struct Terms<'c> {
    pub(super) levels: Vec<(usize, Index)>,
    /// What is only known here: it depends on loaded values.
    pub(super) here: Vec<Value<'c>>,
    pub(super) constant: i64,
}

impl<'c> LoopLevel<'c> {
    /// A level that begins behind the instructions that its block has now.
    pub(super) fn new(block: BasicBlock<'c>) -> LoopLevel<'c> {
        let last = block.get_last_instruction();
        LoopLevel {
            block,
            last,
            stepping: None,
            sums: HashMap::new(),
            addresses: HashMap::new(),
            multiples: HashMap::new(),
        }
    }

    /// The level of a loop over `var` from 0 on that has no other loop inside; it is entered from `before`.
    pub(super) fn stepping(block: BasicBlock<'c>, var: Var, before: BasicBlock<'c>) -> LoopLevel<'c> {
        LoopLevel { stepping: Some(Stepping { var, before, pointers: Vec::new() }), ..LoopLevel::new(block) }
    }
}

impl<'c> Emitter<'_, 'c> {
    /// Sorts the terms of an index by the levels at which they are known.
    pub(super) fn terms(&mut self, index: &Index) -> Result<Terms<'c>> {
        let folded;
        let index = if index.is_affine() {
            index
        } else {
            // variables with a known value go into divisions as constants
            folded = index.substitute(&|var| match self.binding(var) {
                Ok(super::Binding::Constant(value)) => Some(Index::constant(value)),
                _ => None,
            });
            &folded
        };
        let mut terms = Terms { levels: Vec::new(), here: Vec::new(), constant: index.offset() };
        for (atom, coefficient) in index.terms() {
            if Index::atom(atom.clone()).has_value() {
                let value = self.scalar_atom(atom)?;
                terms.here.push(self.scaled(value, *coefficient)?);
                continue;
            }
            let Some(level) = self.level_of(atom)? else {
                if let Atom::Var(var) = atom
                    && let super::Binding::Constant(value) = self.binding(*var)?
                {
                    terms.constant = terms.constant.wrapping_add(value.wrapping_mul(*coefficient));
                    continue;
                }
                return Err(CodegenError::Internal("a division of constants".into()));
            };
            let term = Index::atom(atom.clone()).times(*coefficient);
            match terms.levels.iter_mut().find(|(known, _)| *known == level) {
                Some((_, sum)) => *sum = std::mem::take(sum).plus(&term),
                None => terms.levels.push((level, term)),
            }
        }
        terms.levels.sort_by_key(|(level, _)| *level);
        Ok(terms)
    }

    /// The innermost level among those of the variables; `None` where all are constants.
    pub(super) fn level_of(&self, atom: &Atom) -> Result<Option<usize>> {
        let (mut found, mut error) = (None, None);
        Index::atom(atom.clone()).for_each_var(&mut |var| match self.binding(var) {
            Ok(super::Binding::Scalar(_, level)) => found = found.max(Some(level)),
            Ok(super::Binding::Constant(_)) => {}
            Ok(_) => {
                error = Some(CodegenError::Internal("a lane's variable where all lanes must agree".into()));
            }
            Err(e) => error = Some(e),
        });
        error.map_or(Ok(found), Err)
    }

    /// The sum of the terms but for the constant; `None` where there are none.
    pub(super) fn sum(&mut self, terms: &Terms<'c>) -> Result<Option<Value<'c>>> {
        let mut sum = None;
        let mut whole = Index::default();
        for (level, index) in &terms.levels {
            whole = whole.plus(index);
            sum = Some(match self.levels[*level].sums.get(&whole) {
                Some(known) => *known,
                None => {
                    let value = self.sum_at(*level, sum, index)?;
                    self.levels[*level].sums.insert(whole.clone(), value);
                    value
                }
            });
        }
        for value in &terms.here {
            sum = Some(match sum {
                Some(sum) => self.ir.add_nsw(sum, *value)?,
                None => *value,
            });
        }
        Ok(sum)
    }

    /// `sum` and the terms of one level, computed there.
    fn sum_at(&mut self, level: usize, sum: Option<Value<'c>>, index: &Index) -> Result<Value<'c>> {
        let atoms: Vec<(Value<'c>, i64)> = index
            .terms()
            .iter()
            .map(|(atom, coefficient)| Ok((self.scalar_atom(atom)?, *coefficient)))
            .collect::<Result<_>>()?;
        self.at_level(level, |this| {
            let mut sum = sum;
            for (value, coefficient) in atoms {
                let term = this.scaled(value, coefficient)?;
                sum = Some(match sum {
                    Some(sum) => this.ir.add_nsw(sum, term)?,
                    None => term,
                });
            }
            sum.ok_or_else(|| CodegenError::Internal("a level without terms".into()))
        })
    }

    fn scaled(&self, value: Value<'c>, coefficient: i64) -> Result<Value<'c>> {
        match coefficient {
            1 => Ok(value),
            _ => self.ir.mul_nsw(value, self.ir.integer(Element::I64, coefficient)),
        }
    }

    /// The address of a buffer's element, but for the constant.
    pub(super) fn pointer_to(
        &mut self,
        buffer: TensorId,
        element: BasicTypeEnum<'c>,
        base: PointerValue<'c>,
        terms: &Terms<'c>,
    ) -> Result<PointerValue<'c>> {
        let mut pointer = base;
        let mut key = (buffer, Index::default());
        for (level, index) in &terms.levels {
            key.1 = key.1.plus(index);
            pointer = match self.levels[*level].addresses.get(&key) {
                Some(known) => *known,
                None => {
                    let found = self.pointer_at(*level, element, pointer, index)?;
                    self.levels[*level].addresses.insert(key.clone(), found);
                    found
                }
            };
        }
        for value in &terms.here {
            pointer = self.ir.offset(element, pointer, *value)?;
        }
        Ok(pointer)
    }

    /// `pointer` moved by the terms of one level: stepped along with its loop where that is an innermost one.
    fn pointer_at(
        &mut self,
        level: usize,
        element: BasicTypeEnum<'c>,
        pointer: PointerValue<'c>,
        index: &Index,
    ) -> Result<PointerValue<'c>> {
        let stepping = self.levels[level].stepping.as_ref().filter(|s| s.pointers.len() < MAXIMAL_STEPPED);
        let Some((var, before)) = stepping.map(|s| (s.var, s.before)).filter(|(var, _)| index.coefficient(*var) != 0)
        else {
            let sum = self.sum_at(level, None, index)?;
            return self.at_level(level, |this| this.ir.offset(element, pointer, sum));
        };
        let elements = index.coefficient(var);
        let phi = self.phi_at(level, pointer.get_type().into())?;
        phi.add_incoming(&[(&pointer, before)]);
        if let Some(stepping) = &mut self.levels[level].stepping {
            stepping.pointers.push(Stepped { phi, element, elements });
        }
        let pointer = phi.as_basic_value().into_pointer_value();
        let rest = index.clone().minus(&Index::var(var).times(elements));
        if rest.terms().is_empty() {
            return Ok(pointer);
        }
        let sum = self.sum_at(level, None, &rest)?;
        self.at_level(level, |this| this.ir.offset(element, pointer, sum))
    }

    /// A phi in front of everything at a level.
    fn phi_at(&mut self, level: usize, of: BasicTypeEnum<'c>) -> Result<PhiValue<'c>> {
        let here = self.current_block()?;
        let block = self.levels[level].block;
        match block.get_first_instruction() {
            Some(first) => self.ir.builder.position_before(&first),
            None => self.ir.builder.position_at_end(block),
        }
        let phi = self.ir.builder.build_phi(of, "")?;
        self.ir.builder.position_at_end(here);
        Ok(phi)
    }

    /// Writes instructions behind those that a level has already.
    pub(super) fn at_level<T>(&mut self, level: usize, write: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let here = self.current_block()?;
        let LoopLevel { block, last, .. } = self.levels[level];
        let next = match last {
            Some(last) => last.get_next_instruction(),
            None => block.get_first_instruction(),
        };
        match next {
            Some(next) => self.ir.builder.position_before(&next),
            None => self.ir.builder.position_at_end(block),
        }
        let result = write(self);
        self.levels[level].last = match next {
            Some(next) => next.get_previous_instruction(),
            None => block.get_last_instruction(),
        };
        self.ir.builder.position_at_end(here);
        result
    }

    /// Steps the pointers of the innermost level, at the end of its loop.
    pub(super) fn step_pointers(&mut self) -> Result<()> {
        let latch = self.current_block()?;
        let Some(stepping) = self.levels.last_mut().and_then(|level| level.stepping.take()) else { return Ok(()) };
        for Stepped { phi, element, elements } in stepping.pointers {
            let by = self.ir.integer(Element::I64, elements);
            let next = self.ir.offset(element, phi.as_basic_value().into_pointer_value(), by)?;
            phi.add_incoming(&[(&next.as_basic_value_enum(), latch)]);
        }
        Ok(())
    }
}
