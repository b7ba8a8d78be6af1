//! Scalar expressions, of values in one or all lanes.

use inkwell::{FloatPredicate, IntPredicate};

use crate::codegen::emit::Emitter;
use crate::codegen::emit::ir::{Element, Ir, Value};
use crate::codegen::emit::memory::register_element;
use crate::codegen::emit::statement::Truth;
use crate::codegen::error::CodegenError;
use crate::nest::Scope;
use crate::workload::{Binary, Class, DType, Expr, TensorId, Unary};

type Result<T> = std::result::Result<T, CodegenError>;

impl<'c> Emitter<'_, 'c> {
    /// The value of an expression: a vector where it depends on the lane, else a scalar.
    pub(super) fn expression(&mut self, expr: &Expr) -> Result<Value<'c>> {
        if let Some(value) = self.looked_up(expr)? {
            return Ok(value);
        }
        match expr {
            Expr::Float(value) => Ok(self.ir.float(value.0)),
            Expr::Index(index) if self.moves(index) => {
                let value = self.lane_index(index)?;
                self.convert(value, Element::I64)
            }
            Expr::Index(index) => self.scalar_index(index),
            Expr::Load { tensor, indices } => self.load(*tensor, indices),
            Expr::Unary(op, x) => {
                let dtype = self.dtype(x);
                let x = match reciprocal_factor(*op, x).filter(|_| dtype == DType::F32) {
                    Some((x, factor)) => {
                        let x = self.expression(x)?;
                        self.ir.fmul(x, self.ir.float(factor))?
                    }
                    None => self.expression(x)?,
                };
                self.unary(*op, dtype, x)
            }
            Expr::Binary(Binary::Power, x, exponent) => {
                let x = self.expression(x)?;
                let literal = match &**exponent {
                    Expr::Cast(DType::F64, literal) => literal,
                    other => other,
                };
                match literal {
                    Expr::Float(exponent) => self.power_constant(x, exponent.0),
                    _ => {
                        let exponent = self.expression(exponent)?;
                        self.power(x, exponent)
                    }
                }
            }
            Expr::Binary(op, x, y) => {
                let dtype = self.dtype(x);
                let is_result = *op == Binary::Divide && self.is_result(y);
                let x = self.expression(x)?;
                let y = self.expression(y)?;
                if is_result && let Some(quotient) = self.divided_by_one(x, y)? {
                    return Ok(quotient);
                }
                self.binary(*op, dtype, x, y)
            }
            Expr::Select { condition, yes, no } => {
                let condition = self.expression(condition)?;
                let condition = self.convert(condition, Element::I1)?;
                let (yes, no) = (self.expression(yes)?, self.expression(no)?);
                let (yes, no) = self.same_element(yes, no)?;
                self.ir.select(condition, yes, no)
            }
            Expr::Guard { conditions, inside, outside } => {
                let holds = match self.conditions(conditions)? {
                    Truth::Always => return self.expression(inside),
                    Truth::Never => return self.expression(outside),
                    Truth::Depends(holds) => holds,
                };
                // both sides are computed; only the loads of the inside are held back
                let outer = self.predicate;
                self.narrow_predicate(holds)?;
                let inside = self.expression(inside)?;
                self.predicate = outer;
                let outside = self.expression(outside)?;
                let (inside, outside) = self.same_element(inside, outside)?;
                self.ir.select(holds, inside, outside)
            }
            Expr::Cast(dtype, x) if is_bounded(x, *dtype) => {
                // no bits are lost, and a vector of 64-bit integers would hold half as many
                let x = self.expression(x)?;
                self.ir.bounded_float_to_int(x, Element::I32)
            }
            Expr::Cast(dtype, x) => {
                let from = self.dtype(x);
                let fits = dtype.is_float() && self.integer_bits(x).is_some_and(|bits| bits <= 32);
                let x = self.expression(x)?;
                // a vector holds twice as many of these, and most processors convert only them
                let x = if fits { self.convert(x, Element::I32)? } else { x };
                self.cast(from, *dtype, x)
            }
            Expr::Bits(dtype, x) => {
                let from = self.dtype(x);
                let x = self.expression(x)?;
                self.bits(from, *dtype, x)
            }
        }
    }

    /// Whether a value depends on what was computed before, as a row's sum or deviation does. By what is
    /// given, or comes out, is divided exactly: steps of quantisation may lie in the middle of two numbers.
    fn is_result(&self, value: &Expr) -> bool {
        let mut found = false;
        value.for_each_load(&mut |tensor, _| {
            let scope = self.shared.nest.buffers.get(tensor.0 as usize).map(|buffer| buffer.scope);
            found |= !matches!(scope, None | Some(Scope::Argument(_) | Scope::Packed));
        });
        found
    }

    fn dtype(&self, expr: &Expr) -> DType {
        expr.dtype(&|tensor| self.stored_type(tensor))
    }

    /// How many bits, that of the sign among them, are enough for a value of integers, whatever is loaded.
    /// Values are computed in 64 bits, so that sums are longer than their type.
    fn integer_bits(&self, expr: &Expr) -> Option<u32> {
        let of_type = |dtype: DType| match dtype.class() {
            Class::Signed => Some(dtype.bits()),
            Class::Unsigned => Some(dtype.bits() + 1),
            _ => None,
        };
        match expr {
            Expr::Load { tensor, .. } => of_type(self.stored_type(*tensor)),
            Expr::Index(index) => index.as_constant().map(|value| 65 - value.unsigned_abs().leading_zeros()),
            Expr::Cast(dtype, x) => {
                let own = of_type(*dtype)?;
                Some(self.integer_bits(x).filter(|bits| *bits <= own && dtype.is_signed()).unwrap_or(own))
            }
            Expr::Binary(op, x, y) => {
                let (x, y) = (self.integer_bits(x)?, self.integer_bits(y));
                match op {
                    Binary::ShiftRight => Some(x),
                    Binary::BitAnd | Binary::BitOr | Binary::BitXor => Some(x.max(y?)),
                    Binary::Add | Binary::Subtract => Some(x.max(y?) + 1),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// The type of a buffer; of one that does not exist, which accesses find out, any.
    pub(super) fn stored_type(&self, buffer: TensorId) -> DType {
        self.shared.nest.buffers.get(buffer.0 as usize).map_or(DType::F32, |found| found.dtype)
    }

    /// Of operands of a type. In registers a u64 is an i64 with the same bits.
    pub(super) fn binary(&self, op: Binary, dtype: DType, x: Value<'c>, y: Value<'c>) -> Result<Value<'c>> {
        if dtype == DType::U64
            && let Some(result) = self.unsigned_binary(op, x, y)?
        {
            return Ok(result);
        }
        if matches!(op, Binary::And | Binary::Or) {
            let (x, y) = (self.convert(x, Element::I1)?, self.convert(y, Element::I1)?);
            return if op == Binary::And { self.ir.and(x, y) } else { self.ir.or(x, y) };
        }
        let (mut x, mut y) = self.same_element(x, y)?;
        if self.ir.element(x)? == Element::I1 && op != Binary::Equal {
            (x, y) = (self.convert(x, Element::I64)?, self.convert(y, Element::I64)?);
        }
        let float = matches!(self.ir.element(x)?, Element::F32 | Element::F64);
        match (op, float) {
            (Binary::Add, true) => self.ir.fadd(x, y),
            (Binary::Subtract, true) => self.ir.fsub(x, y),
            (Binary::Multiply, true) => self.ir.fmul(x, y),
            (Binary::Divide, true) => self.ir.fdiv(x, y),
            (Binary::Remainder, true) => self.float_remainder(x, y),
            // the form of one instruction; where one is NaN, the second
            (Binary::Maximum, true) => {
                let greater = self.ir.fcmp(FloatPredicate::OGT, x, y)?;
                self.ir.select(greater, x, y)
            }
            (Binary::Minimum, true) => {
                let less = self.ir.fcmp(FloatPredicate::OLT, x, y)?;
                self.ir.select(less, x, y)
            }
            (Binary::Power, true) => self.power(x, y),
            (Binary::Less, true) => self.ir.fcmp(FloatPredicate::OLT, x, y),
            (Binary::LessEqual, true) => self.ir.fcmp(FloatPredicate::OLE, x, y),
            (Binary::Equal, true) => self.ir.fcmp(FloatPredicate::OEQ, x, y),
            (Binary::Add, false) => self.ir.add(x, y),
            (Binary::Subtract, false) => self.ir.sub(x, y),
            (Binary::Multiply, false) => self.ir.mul(x, y),
            (Binary::Divide, false) => Ok(self.integer_divide(x, y)?.0),
            (Binary::Remainder, false) => Ok(self.integer_divide(x, y)?.1),
            (Binary::Maximum, false) => {
                let greater = self.ir.icmp(IntPredicate::SGT, x, y)?;
                self.ir.select(greater, x, y)
            }
            (Binary::Minimum, false) => {
                let less = self.ir.icmp(IntPredicate::SLT, x, y)?;
                self.ir.select(less, x, y)
            }
            (Binary::Power, false) => {
                let (x, y) = (self.convert(x, Element::F32)?, self.convert(y, Element::F32)?);
                let power = self.power(x, y)?;
                self.convert(power, Element::I64)
            }
            (Binary::Less, false) => self.ir.icmp(IntPredicate::SLT, x, y),
            (Binary::LessEqual, false) => self.ir.icmp(IntPredicate::SLE, x, y),
            (Binary::Equal, false) => self.ir.icmp(IntPredicate::EQ, x, y),
            (Binary::BitAnd, false) => self.ir.and(x, y),
            (Binary::BitOr, false) => self.ir.or(x, y),
            (Binary::BitXor, false) => self.ir.xor(x, y),
            (Binary::ShiftLeft, false) => {
                let (fits, by) = self.shift_amount(y, 0)?;
                self.ir.select(fits, self.ir.shl(x, by)?, self.ir.integer(Element::I64, 0))
            }
            (Binary::ShiftRight, false) => self.ir.ashr(x, self.shift_amount(y, 63)?.1),
            (Binary::And | Binary::Or, _) => Err(CodegenError::Internal("`and` is of Booleans".into())),
            (Binary::BitAnd | Binary::BitOr | Binary::BitXor | Binary::ShiftLeft | Binary::ShiftRight, true) => {
                Err(CodegenError::Internal(format!("`{}` is of integers", op.name())))
            }
        }
    }

    /// What differs where the highest bit is no sign.
    fn unsigned_binary(&self, op: Binary, x: Value<'c>, y: Value<'c>) -> Result<Option<Value<'c>>> {
        let zero = self.ir.integer(Element::I64, 0);
        let choose = |predicate| {
            let first = self.ir.icmp(predicate, x, y)?;
            self.ir.select(first, x, y)
        };
        // a division by zero gives 0 and must not trap: lanes that are not used compute too
        let divide = |divide: fn(&Ir<'c>, Value<'c>, Value<'c>) -> Result<Value<'c>>| {
            let by_zero = self.ir.icmp(IntPredicate::EQ, y, zero)?;
            let divisor = self.ir.select(by_zero, self.ir.integer(Element::I64, 1), y)?;
            self.ir.select(by_zero, zero, divide(&self.ir, x, divisor)?)
        };
        Ok(Some(match op {
            Binary::Divide => divide(Ir::udiv)?,
            Binary::Remainder => divide(Ir::urem)?,
            Binary::Maximum => choose(IntPredicate::UGT)?,
            Binary::Minimum => choose(IntPredicate::ULT)?,
            Binary::Less => self.ir.icmp(IntPredicate::ULT, x, y)?,
            Binary::LessEqual => self.ir.icmp(IntPredicate::ULE, x, y)?,
            Binary::ShiftRight => {
                let (fits, by) = self.shift_amount(y, 0)?;
                self.ir.select(fits, self.ir.lshr(x, by)?, zero)?
            }
            _ => return Ok(None),
        }))
    }

    /// Whether a number of bits is below 64, and the number, or another where it is not: LLVM's shifts are
    /// undefined there.
    fn shift_amount(&self, by: Value<'c>, otherwise: i64) -> Result<(Value<'c>, Value<'c>)> {
        let fits = self.ir.icmp(IntPredicate::ULT, by, self.ir.integer(Element::I64, 64))?;
        Ok((fits, self.ir.select(fits, by, self.ir.integer(Element::I64, otherwise))?))
    }

    /// Quotient towards minus infinity, and the remainder with the divisor's sign. By zero: both are 0; the
    /// quotient of the smallest number and -1 wraps. Neither may trap, since lanes that are not used compute
    /// too.
    fn integer_divide(&self, x: Value<'c>, y: Value<'c>) -> Result<(Value<'c>, Value<'c>)> {
        let zero = self.ir.integer(Element::I64, 0);
        let one = self.ir.integer(Element::I64, 1);
        let by_zero = self.ir.icmp(IntPredicate::EQ, y, zero)?;
        let by_minus = self.ir.icmp(IntPredicate::EQ, y, self.ir.integer(Element::I64, -1))?;
        let special = self.ir.or(by_zero, by_minus)?;
        let divisor = self.ir.select(special, one, y)?;
        let quotient = self.ir.sdiv(x, divisor)?;
        let remainder = self.ir.sub(x, self.ir.mul(quotient, divisor)?)?;
        // the remainder has the dividend's sign: correct both where it is not the divisor's
        let nonzero = self.ir.icmp(IntPredicate::NE, remainder, zero)?;
        let differs = self.ir.icmp(IntPredicate::SLT, self.ir.xor(remainder, divisor)?, zero)?;
        let correct = self.ir.and(nonzero, differs)?;
        let floor = self.ir.select(correct, self.ir.sub(quotient, one)?, quotient)?;
        let modulo = self.ir.select(correct, self.ir.add(remainder, divisor)?, remainder)?;
        let negated = self.ir.sub(zero, x)?;
        let floor = self.ir.select(by_minus, negated, floor)?;
        Ok((self.ir.select(by_zero, zero, floor)?, self.ir.select(special, zero, modulo)?))
    }

    pub(super) fn float_intrinsic(&self, name: &str, x: Value<'c>) -> Result<Value<'c>> {
        self.ir.intrinsic(self.shared.module, name, &[x.get_type()], &[x])
    }

    /// The wider of two element types for both.
    fn same_element(&self, x: Value<'c>, y: Value<'c>) -> Result<(Value<'c>, Value<'c>)> {
        let (of_x, of_y) = (self.ir.element(x)?, self.ir.element(y)?);
        if of_x == of_y {
            return Ok((x, y));
        }
        let rank = |element| match element {
            Element::I1 => 0,
            Element::I32 => 1,
            Element::I64 => 2,
            Element::F32 => 3,
            Element::F64 => 4,
        };
        let to = if rank(of_x) > rank(of_y) { of_x } else { of_y };
        Ok((self.convert(x, to)?, self.convert(y, to)?))
    }

    /// The value in another type: numbers to Booleans by comparing with 0, floats to integers towards zero
    /// with saturation.
    pub(super) fn convert(&self, x: Value<'c>, to: Element) -> Result<Value<'c>> {
        let from = self.ir.element(x)?;
        match (from, to) {
            _ if from == to => Ok(x),
            (Element::I1, Element::I32 | Element::I64) => self.ir.zero_extend(x, self.ir.type_like(to, x)),
            (Element::I1, Element::F32 | Element::F64) => {
                let (one, zero) = if to == Element::F32 {
                    (self.ir.float(1.0), self.ir.float(0.0))
                } else {
                    (self.ir.double(1.0), self.ir.double(0.0))
                };
                self.ir.select(x, one, zero)
            }
            (Element::I32, Element::I64) => self.ir.sign_extend(x, self.ir.type_like(to, x)),
            (Element::I64, Element::I32) => self.ir.truncate(x, self.ir.type_like(to, x)),
            (Element::I32 | Element::I64, Element::F32 | Element::F64) => self.ir.int_to_float(x, to),
            (Element::F32 | Element::F64, Element::I32 | Element::I64) => {
                self.ir.float_to_int(self.shared.module, x, to)
            }
            (Element::F32 | Element::F64, Element::I1) => {
                let zero = self.ir.float_like(0.0, x)?;
                self.ir.fcmp(FloatPredicate::UNE, x, zero)
            }
            (Element::I32 | Element::I64, Element::I1) => self.ir.icmp(IntPredicate::NE, x, self.ir.integer(from, 0)),
            _ => self.ir.float_resize(x, to),
        }
    }

    /// A cast to an element type: integers wrap to its width, floats are rounded to it.
    fn cast(&self, from: DType, dtype: DType, x: Value<'c>) -> Result<Value<'c>> {
        let to = register_element(dtype);
        let x = match (from, dtype) {
            (DType::U64, _) if dtype.is_float() => self.ir.unsigned_to_float(x, to)?,
            (_, DType::U64) if from.is_float() => {
                let positive = self.ir.fcmp(FloatPredicate::OGT, x, self.ir.float_like(0.0, x)?)?;
                let unsigned = self.ir.float_to_unsigned(self.shared.module, x, to)?;
                self.ir.select(positive, unsigned, self.convert(x, to)?)?
            }
            _ => self.convert(x, to)?,
        };
        if dtype.is_literal() || matches!(dtype, DType::Bool | DType::F64) {
            return Ok(x);
        }
        if dtype.is_float() {
            let bits = self.narrow_half(x, dtype)?;
            return self.widen_half(bits, dtype);
        }
        if dtype.bits() == 64 {
            return Ok(x);
        }
        let by = self.ir.integer(Element::I64, 64 - i64::from(dtype.bits()));
        let up = self.ir.shl(x, by)?;
        if dtype.is_signed() { self.ir.ashr(up, by) } else { self.ir.lshr(up, by) }
    }
}

/// Whether a float lies between the least and the greatest number of a short integer type, or is NaN.
fn is_bounded(value: &Expr, dtype: DType) -> bool {
    let is_short = !dtype.is_float() && dtype != DType::Bool && dtype.bits() <= 16;
    let both = [[Binary::Minimum, Binary::Maximum], [Binary::Maximum, Binary::Minimum]];
    let is_bounded = |[outer, inner]: [Binary; 2]| {
        bounded(value, outer, dtype).and_then(|rest| bounded(rest, inner, dtype)).is_some()
    };
    is_short && both.into_iter().any(is_bounded)
}

/// What is bounded from one side by a number that a type of integers holds.
fn bounded(value: &Expr, op: Binary, dtype: DType) -> Option<&Expr> {
    let is_within = |bound: &f64| (dtype.least() as f64..=dtype.greatest() as f64).contains(bound);
    match value {
        Expr::Binary(own, x, y) if *own == op => match (&**x, &**y) {
            (Expr::Float(bound), rest) | (rest, Expr::Float(bound)) if is_within(&bound.0) => Some(rest),
            _ => None,
        },
        _ => None,
    }
}

/// What a function's argument is, if it is divided by a number, and what it is multiplied by instead: the
/// function changes by less than the unit in the last place that its argument may.
fn reciprocal_factor(op: Unary, x: &Expr) -> Option<(&Expr, f64)> {
    let Expr::Binary(Binary::Divide, x, divisor) = x else { return None };
    let Expr::Float(divisor) = **divisor else { return None };
    let is_near = (2f64.powi(-64)..2f64.powi(64)).contains(&divisor.0.abs());
    let is_flat = matches!(op, Unary::Erf | Unary::Tanh | Unary::Sigmoid);
    (is_near && is_flat).then(|| (&**x, divisor.0.recip()))
}
