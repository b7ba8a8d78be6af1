//! Powers and remainders of f32, computed in f64, which leaves bits to spare.

use inkwell::FloatPredicate;
use inkwell::IntPredicate;

use crate::codegen::emit::Emitter;
use crate::codegen::emit::ir::{Element, Value};
use crate::codegen::error::CodegenError;

type Result<T> = std::result::Result<T, CodegenError>;

/// `2ˣ` for |x| ≤ ½; relative error 4.0e-11.
const EXP2: [f64; 8] = [
    0.9999999999616828,
    0.6931471807284433,
    0.24022651198159556,
    0.05550410353454841,
    0.00961802725351402,
    0.0013333922559713991,
    0.0001546929117177034,
    1.5201922121289217e-5,
];

/// `log₂((1 + √z) / (1 - √z)) / √z` for z ≤ 0.0296; absolute error 1.5e-13.
const LOG2: [f64; 7] = [
    2.88539008177788,
    0.9617966937556142,
    0.577078108621345,
    0.41218359938136834,
    0.32164227905207765,
    0.2294342741867549,
    0.6128718587288928,
];

impl<'c> Emitter<'_, 'c> {
    /// Small integral exponents are products; the square root has an instruction.
    pub(super) fn power_constant(&self, x: Value<'c>, exponent: f64) -> Result<Value<'c>> {
        let x = if self.ir.element(x)? == Element::F64 { x } else { self.convert(x, Element::F32)? };
        let one = self.ir.float_like(1.0, x)?;
        if exponent == 0.0 {
            Ok(one)
        } else if exponent == 1.0 {
            Ok(x)
        } else if exponent == 2.0 {
            self.ir.fmul(x, x)
        } else if exponent == 3.0 {
            self.ir.fmul(self.ir.fmul(x, x)?, x)
        } else if exponent == -1.0 {
            self.ir.fdiv(one, x)
        } else if exponent == 0.5 {
            // the power of minus infinity is infinite, that of -0 is 0
            let zero = self.ir.float_like(0.0, x)?;
            let root = self.float_intrinsic("llvm.sqrt", self.ir.fadd(x, zero)?)?;
            let infinite = self.ir.fcmp(FloatPredicate::OEQ, x, self.ir.float_like(f64::NEG_INFINITY, x)?)?;
            self.ir.select(infinite, self.ir.float_like(f64::INFINITY, x)?, root)
        } else {
            self.power(x, self.ir.float(exponent))
        }
    }

    /// `xʸ = 2^(y · log₂ |x|)`, with the special cases of C's `pow`.
    pub(super) fn power(&self, x: Value<'c>, y: Value<'c>) -> Result<Value<'c>> {
        if self.ir.element(x)? == Element::F64 {
            return Err(CodegenError::Unsupported(
                "powers of f64 with other exponents than 0, 1, 2, 3, -1 and ½".into(),
            ));
        }
        let (x, y) = (self.convert(x, Element::F32)?, self.convert(y, Element::F32)?);
        let (x, y) = self.ir.same_shape(x, y)?;
        let magnitude = self.float_intrinsic("llvm.fabs", x)?;
        let wide_y = self.ir.float_resize(y, Element::F64)?;
        let logarithm = self.log2_wide(magnitude)?;
        let exponent = self.ir.fmul(wide_y, logarithm)?;
        let wide = self.exp2_wide(exponent)?;
        let mut value = self.ir.float_resize(wide, Element::F32)?;

        let float = |value| self.ir.float(value);
        // a negative base: odd powers are negative, fractional ones undefined
        let whole = self.rounded("llvm.trunc", y)?;
        let integral = self.ir.fcmp(FloatPredicate::OEQ, whole, y)?;
        let halved = self.ir.fmul(y, float(0.5))?;
        let half_whole = self.rounded("llvm.trunc", halved)?;
        let odd = self.ir.and(integral, self.ir.fcmp(FloatPredicate::UNE, half_whole, halved)?)?;
        let bits = self.ir.reinterpret(x, Element::I32)?;
        let sign = self.ir.icmp(IntPredicate::SLT, bits, self.ir.integer(Element::I32, 0))?;
        let negated = self.ir.fneg(value)?;
        value = self.ir.select(self.ir.and(sign, odd)?, negated, value)?;
        let negative = self.ir.fcmp(FloatPredicate::OLT, x, float(0.0))?;
        let finite = self.ir.fcmp(FloatPredicate::OGT, x, float(f64::NEG_INFINITY))?;
        let undefined = self.ir.and(self.ir.and(negative, finite)?, self.ir.not(integral)?)?;
        value = self.ir.select(undefined, float(f64::NAN), value)?;
        // 1 to any power, and anything to the power of 0; -1 to an infinite one
        let y_zero = self.ir.fcmp(FloatPredicate::OEQ, y, float(0.0))?;
        let x_one = self.ir.fcmp(FloatPredicate::OEQ, x, float(1.0))?;
        let x_minus = self.ir.fcmp(FloatPredicate::OEQ, x, float(-1.0))?;
        let y_magnitude = self.float_intrinsic("llvm.fabs", y)?;
        let y_infinite = self.ir.fcmp(FloatPredicate::OEQ, y_magnitude, float(f64::INFINITY))?;
        let ones = self.ir.or(self.ir.or(y_zero, x_one)?, self.ir.and(x_minus, y_infinite)?)?;
        self.ir.select(ones, float(1.0), value)
    }

    /// log₂ of an f32 that is not negative, as f64. `x = m · 2ᵉ`, `log₂ m` by the series of the inverse
    /// hyperbolic tangent.
    fn log2_wide(&self, x: Value<'c>) -> Result<Value<'c>> {
        // every f32 but 0 is a normal f64
        let wide = self.ir.float_resize(x, Element::F64)?;
        let bits = self.ir.reinterpret(wide, Element::I64)?;
        let i64 = |value| self.ir.integer(Element::I64, value);
        let shifted = self.ir.sub(bits, i64(0x3fe6_a09e_667f_3bcd))?;
        let exponent = self.ir.ashr(shifted, i64(52))?;
        let mantissa = self.ir.reinterpret(self.ir.sub(bits, self.ir.shl(exponent, i64(52))?)?, Element::F64)?;
        // 64-bit integers to floats and back are slow before AVX-512, 32-bit ones are not
        let exponent = self.convert(exponent, Element::I32)?;
        let exponent = self.ir.int_to_float(exponent, Element::F64)?;
        let one = self.ir.double(1.0);
        let s = self.ir.fdiv(self.ir.fsub(mantissa, one)?, self.ir.fadd(mantissa, one)?)?;
        let z = self.ir.fmul(s, s)?;
        let series = self.polynomial(z, &LOG2)?;
        let value = self.multiply_add(series, s, exponent)?;
        let zero = self.ir.fcmp(FloatPredicate::OEQ, wide, self.ir.double(0.0))?;
        let value = self.ir.select(zero, self.ir.double(f64::NEG_INFINITY), value)?;
        let finite = self.ir.fcmp(FloatPredicate::OLT, wide, self.ir.double(f64::INFINITY))?;
        self.ir.select(finite, value, wide)
    }

    /// 2ˣ of an f64. Exact enough to round to f32, whose range it covers.
    fn exp2_wide(&self, x: Value<'c>) -> Result<Value<'c>> {
        let (low, high) = (self.ir.double(-200.0), self.ir.double(200.0));
        let below = self.ir.fcmp(FloatPredicate::OLT, x, low)?;
        let x = self.ir.select(below, low, x)?;
        let above = self.ir.fcmp(FloatPredicate::OGT, x, high)?;
        let x = self.ir.select(above, high, x)?;
        let n = self.rounded("llvm.roundeven", x)?;
        let fraction = self.ir.fsub(x, n)?;
        let value = self.polynomial(fraction, &EXP2)?;
        let n = self.ir.float_to_int(self.shared.module, n, Element::I32)?;
        let n = self.convert(n, Element::I64)?;
        let biased = self.ir.add(n, self.ir.integer(Element::I64, 1023))?;
        let power = self.ir.reinterpret(self.ir.shl(biased, self.ir.integer(Element::I64, 52))?, Element::F64)?;
        self.ir.fmul(value, power)
    }

    /// C's `fmod`, exactly: long division in steps of 28 bits, whose products f64 holds without rounding.
    pub(super) fn float_remainder(&self, x: Value<'c>, y: Value<'c>) -> Result<Value<'c>> {
        if self.ir.element(x)? == Element::F64 {
            return self.remainder_double(x, y);
        }
        let (x, y) = self.ir.same_shape(x, y)?;
        let magnitude = self.float_intrinsic("llvm.fabs", x)?;
        let divisor = self.float_intrinsic("llvm.fabs", y)?;
        let mut rest = self.ir.float_resize(magnitude, Element::F64)?;
        let wide = self.ir.float_resize(divisor, Element::F64)?;
        // f32 numbers span 277 binary orders of magnitude
        for step in (0..=9).rev() {
            let scaled = self.ir.fmul(wide, self.ir.double(2f64.powi(28 * step)))?;
            let quotient = self.ir.fdiv(rest, scaled)?;
            let quotient = self.rounded("llvm.trunc", quotient)?;
            let product = self.ir.fmul(quotient, scaled)?;
            rest = self.ir.fsub(rest, product)?;
            // the quotient may have been rounded up to the next integer
            let negative = self.ir.fcmp(FloatPredicate::OLT, rest, self.ir.double(0.0))?;
            let corrected = self.ir.fadd(rest, scaled)?;
            rest = self.ir.select(negative, corrected, rest)?;
        }
        let rest = self.ir.float_resize(rest, Element::F32)?;
        // a finite number by infinity is itself; by 0, or infinity by anything, undefined
        let infinite = self.ir.fcmp(FloatPredicate::OEQ, divisor, self.ir.float(f64::INFINITY))?;
        let x_finite = self.ir.fcmp(FloatPredicate::OLT, magnitude, self.ir.float(f64::INFINITY))?;
        let value = self.ir.select(self.ir.and(infinite, x_finite)?, magnitude, rest)?;
        self.ir.intrinsic(self.shared.module, "llvm.copysign", &[value.get_type()], &[value, x])
    }
}
