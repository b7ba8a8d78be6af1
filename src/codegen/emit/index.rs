//! Integer arithmetic of loop variables: indices and conditions.

use inkwell::IntPredicate;

use crate::codegen::emit::ir::{Element, Value};
use crate::codegen::emit::statement::Truth;
use crate::codegen::emit::{Binding, Emitter, Processor};
use crate::codegen::error::CodegenError;
use crate::workload::{Atom, Condition, Index, Interval, Var};

type Result<T> = std::result::Result<T, CodegenError>;

impl<'c> Emitter<'_, 'c> {
    /// An index that is equal in all lanes, as a scalar i64.
    pub(super) fn scalar_index(&mut self, index: &Index) -> Result<Value<'c>> {
        let (rest, constant) = self.scalar_terms(index)?;
        match rest {
            Some(rest) if constant == 0 => Ok(rest),
            Some(rest) => self.ir.add_nsw(rest, self.ir.integer(Element::I64, constant)),
            None => Ok(self.ir.integer(Element::I64, constant)),
        }
    }

    /// An index that is equal in all lanes, as the sum of a value and a constant.
    pub(super) fn scalar_terms(&mut self, index: &Index) -> Result<(Option<Value<'c>>, i64)> {
        let terms = self.terms(index)?;
        Ok((self.sum(&terms)?, terms.constant))
    }

    /// The value of a variable, a division or a gathered index.
    pub(super) fn scalar_atom(&mut self, atom: &Atom) -> Result<Value<'c>> {
        match atom {
            Atom::Var(var) => match self.binding(*var)? {
                Binding::Scalar(value, _) => Ok(value),
                Binding::Constant(value) => Ok(self.ir.integer(Element::I64, value)),
                Binding::Lane | Binding::Unbound => {
                    Err(CodegenError::Internal("a lane's variable where all lanes must agree".into()))
                }
            },
            Atom::FloorDiv(inner, divisor) => self.divided(inner, *divisor, Part::Quotient),
            Atom::Modulo(inner, divisor) => self.divided(inner, *divisor, Part::Remainder),
            Atom::Value(expr) => {
                let value = self.expression(expr)?;
                self.convert(value, Element::I64)
            }
        }
    }

    fn divided(&mut self, inner: &Index, divisor: i64, part: Part) -> Result<Value<'c>> {
        let terms = self.terms(inner)?;
        let (rest, never_negative) = (self.sum(&terms)?, self.never_negative(inner));
        let constant = self.ir.integer(Element::I64, terms.constant);
        // GPUs have no wide division, nor a wide product to do it by
        let narrow = matches!(self.shared.processor, Processor::Gpu(_))
            && never_negative
            && divisor < i64::from(i32::MAX)
            && self.fits_i32(inner);
        let divide = |this: &mut Self| {
            let value = match rest {
                Some(rest) => this.ir.add_nsw(rest, constant)?,
                None => constant,
            };
            if !narrow {
                return this.floor_divide(value, divisor, part, never_negative);
            }
            let value = this.ir.truncate(value, this.ir.scalar_type(Element::I32))?;
            let value = this.floor_divide(value, divisor, part, never_negative)?;
            this.ir.zero_extend(value, this.ir.scalar_type(Element::I64))
        };
        match terms.levels.last() {
            Some((level, _)) if terms.here.is_empty() => self.at_level(*level, divide),
            _ => divide(self),
        }
    }

    /// Whether an index is known not to be negative.
    fn never_negative(&self, index: &Index) -> bool {
        index.range(&|var| self.range(var)).is_some_and(|range| range.low >= 0)
    }

    /// Floor division or remainder by a constant, of scalars and vectors, i32 and i64.
    fn floor_divide(&self, value: Value<'c>, divisor: i64, part: Part, never_negative: bool) -> Result<Value<'c>> {
        let element = self.ir.element(value)?;
        let by = self.ir.integer(element, divisor);
        if divisor > 0 && (divisor as u64).is_power_of_two() {
            return match part {
                Part::Quotient => self.ir.ashr(value, self.ir.integer(element, i64::from(divisor.trailing_zeros()))),
                Part::Remainder => self.ir.and(value, self.ir.integer(element, divisor - 1)),
            };
        }
        if never_negative {
            return match part {
                Part::Quotient => self.ir.udiv(value, by),
                Part::Remainder => self.ir.urem(value, by),
            };
        }
        // division rounds towards zero: one less where the remainder is negative
        let quotient = self.ir.sdiv(value, by)?;
        let remainder = self.ir.sub(value, self.ir.mul(quotient, by)?)?;
        let zero = self.ir.integer(element, 0);
        let negative = self.ir.icmp(IntPredicate::SLT, remainder, zero)?;
        match part {
            Part::Quotient => {
                let one_less = self.ir.sub(quotient, self.ir.integer(element, 1))?;
                self.ir.select(negative, one_less, quotient)
            }
            Part::Remainder => {
                let wrapped = self.ir.add(remainder, by)?;
                self.ir.select(negative, wrapped, remainder)
            }
        }
    }

    /// An index in each lane. In i32 where its values and those of its parts fit, since vectors of these are
    /// twice as fast.
    pub(super) fn lane_index(&mut self, index: &Index) -> Result<Value<'c>> {
        let element = if self.fits_i32(index) { Element::I32 } else { Element::I64 };
        self.lane_index_in(index, element)
    }

    fn fits_i32(&self, index: &Index) -> bool {
        // partial sums may leave the range of the whole: bound the sum of magnitudes
        let mut magnitude = index.offset().unsigned_abs();
        for (atom, coefficient) in index.terms() {
            let bound = match atom {
                Atom::Var(var) => {
                    let Interval { low, high } = self.range(*var);
                    low.unsigned_abs().max(high.unsigned_abs())
                }
                Atom::FloorDiv(inner, divisor) => {
                    if !self.fits_i32(inner) || *divisor > i64::from(i32::MAX) {
                        return false;
                    }
                    u64::from(i32::MAX.unsigned_abs()) / divisor.unsigned_abs() + 1
                }
                Atom::Modulo(inner, divisor) => {
                    if !self.fits_i32(inner) || *divisor > i64::from(i32::MAX) {
                        return false;
                    }
                    divisor.unsigned_abs()
                }
                Atom::Value(_) => return false,
            };
            magnitude = magnitude.saturating_add(bound.saturating_mul(coefficient.unsigned_abs()));
        }
        magnitude < i32::MAX as u64
    }

    fn lane_index_in(&mut self, index: &Index, element: Element) -> Result<Value<'c>> {
        let Some(lanes) = self.lanes else { return self.narrowed(index, element) };
        let (moving, same) = self.split_lane_terms(index);
        let mut sum = self.narrowed(&same, element)?;
        for (atom, coefficient) in moving {
            let term = match &atom {
                Atom::Var(_) => self.ir.ramp(element, lanes.width, coefficient),
                other => {
                    let value = self.lane_atom(other, element)?;
                    self.ir.mul(value, self.ir.integer(element, coefficient))?
                }
            };
            sum = self.ir.add(sum, term)?;
        }
        self.ir.splat(sum, lanes.width)
    }

    fn lane_atom(&mut self, atom: &Atom, element: Element) -> Result<Value<'c>> {
        match atom {
            Atom::Var(_) => self.lane_index_in(&Index::atom(atom.clone()), element),
            Atom::FloorDiv(inner, divisor) => {
                let value = self.lane_index_in(inner, element)?;
                self.floor_divide(value, *divisor, Part::Quotient, self.never_negative(inner))
            }
            Atom::Modulo(inner, divisor) => {
                let value = self.lane_index_in(inner, element)?;
                self.floor_divide(value, *divisor, Part::Remainder, self.never_negative(inner))
            }
            Atom::Value(expr) => {
                let value = self.expression(expr)?;
                self.convert(value, element)
            }
        }
    }

    fn narrowed(&mut self, index: &Index, element: Element) -> Result<Value<'c>> {
        let value = self.scalar_index(index)?;
        if element == Element::I32 { self.ir.truncate(value, self.ir.scalar_type(Element::I32)) } else { Ok(value) }
    }

    /// The terms that depend on the vector loop's variable, and the sum of the others.
    pub(super) fn split_lane_terms(&self, index: &Index) -> (Vec<(Atom, i64)>, Index) {
        let Some(var) = self.lane_var() else { return (Vec::new(), index.clone()) };
        let mut moving = Vec::new();
        let mut same = Index::constant(index.offset());
        for (atom, coefficient) in index.terms() {
            let term = Index::atom(atom.clone());
            if term.mentions(var) {
                moving.push((atom.clone(), *coefficient));
            } else {
                same = same.plus(&term.times(*coefficient));
            }
        }
        (moving, same)
    }

    /// Whether all conditions hold, as a scalar or, where one depends on the lane, as a mask.
    pub(super) fn conditions(&mut self, conditions: &[Condition]) -> Result<Truth<'c>> {
        let mut all = None;
        for condition in conditions {
            let holds = match self.condition(condition)? {
                Truth::Always => continue,
                Truth::Never => return Ok(Truth::Never),
                Truth::Depends(value) => value,
            };
            all = Some(match all {
                None => holds,
                Some(others) => self.ir.and(others, holds)?,
            });
        }
        Ok(all.map_or(Truth::Always, Truth::Depends))
    }

    fn condition(&mut self, condition: &Condition) -> Result<Truth<'c>> {
        let Condition { index, low, high } = condition;
        let index = index.simplify(&|var| self.range(var));
        let range = index.range(&|var| self.range(var)).unwrap_or(Interval { low: i64::MIN, high: i64::MAX });
        if range.low >= *low && range.high < *high {
            return Ok(Truth::Always);
        }
        if range.high < *low || range.low >= *high {
            return Ok(Truth::Never);
        }
        let moves = self.lane_var().is_some_and(|var| index.mentions(var));
        let value = if moves { self.lane_index(&index)? } else { self.scalar_index(&index)? };
        let element = self.ir.element(value)?;
        let mut holds = None;
        if range.low < *low {
            holds = Some(self.ir.icmp(IntPredicate::SGE, value, self.bound(element, *low))?);
        }
        if range.high >= *high {
            let below = self.ir.icmp(IntPredicate::SLT, value, self.bound(element, *high))?;
            holds = Some(match holds {
                Some(above) => self.ir.and(above, below)?,
                None => below,
            });
        }
        Ok(holds.map_or(Truth::Always, Truth::Depends))
    }

    /// A bound in the type of what it bounds: beyond its range, the range's end decides the same.
    fn bound(&self, element: Element, value: i64) -> Value<'c> {
        let value = if element == Element::I32 { value.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) } else { value };
        self.ir.integer(element, value)
    }

    /// Whether an index depends on the lane.
    pub(super) fn moves(&self, index: &Index) -> bool {
        self.lane_var().is_some_and(|var: Var| index.mentions(var))
    }
}

#[derive(Clone, Copy)]
enum Part {
    Quotient,
    Remainder,
}
