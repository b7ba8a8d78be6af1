//! C's `fmod` of f64, exactly: division of the mantissas as whole numbers, a few bits at a time.

use inkwell::basic_block::BasicBlock;
use inkwell::values::BasicValue;
use inkwell::{FloatPredicate, IntPredicate};

use crate::codegen::emit::Emitter;
use crate::codegen::emit::ir::{Element, Value};
use crate::codegen::error::CodegenError;

type Result<T> = std::result::Result<T, CodegenError>;

/// Bits of the quotient in a step: a remainder of 53 bits is shifted by so many without leaving 64.
const STEP: i64 = 11;

impl<'c> Emitter<'_, 'c> {
    /// `x = m · 2ᵉ` and `y = n · 2ᶠ` with whole m and n: where e is not below f, the remainder is
    /// `(m · 2^(e - f) mod n) · 2ᶠ`. Elsewhere x is the smaller one, and its own remainder.
    pub(super) fn remainder_double(&self, x: Value<'c>, y: Value<'c>) -> Result<Value<'c>> {
        let (x, y) = self.ir.same_shape(x, y)?;
        let (zero, one) = (self.ir.integer(Element::I64, 0), self.ir.integer(Element::I64, 1));
        let (size, divisor) = (self.float_intrinsic("llvm.fabs", x)?, self.float_intrinsic("llvm.fabs", y)?);
        let ((m, e), (n, f)) = (self.whole_parts(size)?, self.whole_parts(divisor)?);
        let n = self.ir.select(self.ir.icmp(IntPredicate::EQ, n, zero)?, one, n)?;
        let ahead = self.ir.sub(e, f)?;
        let left = self.ir.select(self.ir.icmp(IntPredicate::SGT, ahead, zero)?, ahead, zero)?;
        let rest = self.long_division(self.ir.urem(m, n)?, n, left)?;

        // in two steps, since the range of one power is too small; both are exact
        let exponent = self.ir.sub(f, self.ir.integer(Element::I64, 1075))?;
        let half = self.ir.ashr(exponent, one)?;
        let value = self.ir.fmul(self.ir.int_to_float(rest, Element::F64)?, self.power_of_two_double(half)?)?;
        let value = self.ir.fmul(value, self.power_of_two_double(self.ir.sub(exponent, half)?)?)?;
        let smaller = self.ir.fcmp(FloatPredicate::OLT, size, divisor)?;
        let value = self.ir.select(smaller, size, value)?;
        // of infinity or by 0 there is none
        let finite = self.ir.fcmp(FloatPredicate::OLT, size, self.ir.double(f64::INFINITY))?;
        let positive = self.ir.fcmp(FloatPredicate::OGT, divisor, self.ir.double(0.0))?;
        let value = self.ir.select(self.ir.and(finite, positive)?, value, self.ir.double(f64::NAN))?;
        self.with_sign(value, x)
    }

    /// `m` and `e` of a number `m · 2^(e - 1075)` that is not negative.
    fn whole_parts(&self, x: Value<'c>) -> Result<(Value<'c>, Value<'c>)> {
        let i64 = |value| self.ir.integer(Element::I64, value);
        let bits = self.ir.reinterpret(x, Element::I64)?;
        let (exponent, fraction) = (self.ir.lshr(bits, i64(52))?, self.ir.and(bits, i64((1 << 52) - 1))?);
        let is_subnormal = self.ir.icmp(IntPredicate::EQ, exponent, i64(0))?;
        let mantissa = self.ir.select(is_subnormal, fraction, self.ir.or(fraction, i64(1 << 52))?)?;
        Ok((mantissa, self.ir.select(is_subnormal, i64(1), exponent)?))
    }

    /// `rest · 2^left mod n`, for a rest below n.
    ///
    /// ```text
    /// do { step = min(left, 11)  rest = (rest << step) mod n  left -= step } while left > 0 in any lane
    /// ```
    fn long_division(&self, rest: Value<'c>, n: Value<'c>, left: Value<'c>) -> Result<Value<'c>> {
        let before: BasicBlock = self.current_block()?;
        let (body, after) = (self.new_block("remainder"), self.new_block("remainder.end"));
        self.ir.builder.build_unconditional_branch(body)?;
        self.ir.builder.position_at_end(body);
        let phi_of = |first: Value<'c>| -> Result<_> {
            let phi = self.ir.builder.build_phi(first.get_type(), "")?;
            phi.add_incoming(&[(&first as &dyn BasicValue, before)]);
            Ok(phi)
        };
        let (rests, lefts) = (phi_of(rest)?, phi_of(left)?);
        let left = lefts.as_basic_value();
        let most = self.ir.integer(Element::I64, STEP);
        let step = self.ir.select(self.ir.icmp(IntPredicate::SLT, left, most)?, left, most)?;
        let rest = self.ir.urem(self.ir.shl(rests.as_basic_value(), step)?, n)?;
        let left = self.ir.sub(left, step)?;
        rests.add_incoming(&[(&rest as &dyn BasicValue, body)]);
        lefts.add_incoming(&[(&left as &dyn BasicValue, body)]);
        let again = match self.ir.icmp(IntPredicate::SGT, left, self.ir.integer(Element::I64, 0))? {
            Value::VectorValue(lanes) => {
                let any = "llvm.vector.reduce.or";
                self.ir.intrinsic(self.shared.module, any, &[lanes.get_type().into()], &[lanes.into()])?
            }
            scalar => scalar,
        };
        self.ir.builder.build_conditional_branch(again.into_int_value(), body, after)?;
        self.ir.builder.position_at_end(after);
        Ok(rest)
    }
}
