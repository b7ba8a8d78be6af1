//! Functions of one value, for scalars and vectors alike: elementary functions of f32 as polynomials.
//!
//! The polynomials are within 4 units in the last place over the whole range of f32 (a test samples it
//! densely), infinities, NaN and denormal numbers included; but powers of e that would be denormal are 0.
//! Range reductions are the classic ones (Cody and Waite, *Software Manual for the Elementary Functions*,
//! 1980; Muller, *Elementary Functions*, 2016). The coefficients are minimax fits of our own, found by
//! Lawson's iterated reweighting over Chebyshev nodes; each says what it approximates and how well.

use inkwell::{FloatPredicate, IntPredicate};

use crate::codegen::emit::Emitter;
use crate::codegen::emit::ir::{Element, Value};
use crate::codegen::error::CodegenError;
use crate::workload::{DType, Unary};

type Result<T> = std::result::Result<T, CodegenError>;

/// ln 2 in two parts; the first has few bits, so that small multiples of it are exact.
const LN_2_HIGH: f64 = 0.693_359_375;
const LN_2_LOW: f64 = -2.121_944_400_546_905_8e-4;

/// `eʳ` for |r| ≤ ln 2 / 2, with a relative error of 1.1e-7.
const EXP: [f64; 6] = [1.0, 1.0, 0.49999230309, 0.16667115389, 0.041890331549, 0.0083125012727];

/// Below this powers of e are 0: it is the logarithm of the least f32 that is not denormal. Gradual underflow
/// would cost more than it tells: masks of attention add numbers such as -100, and processors compute with
/// denormal numbers a hundred times more slowly, in the products behind a softmax as well.
const LN_OF_ZERO: f64 = -87.336_544;

/// What an f32 of less than 2²² is added to, and this subtracted again, to be rounded to a whole number.
const ROUNDER: f64 = 12_582_912.0;
/// The same as bits: those of its sum with a whole number n are n more.
const ROUNDER_BITS: i64 = 0x4b40_0000;

/// `(ln(1 + x) - x + x²/2) / x³` for √½ - 1 ≤ x ≤ √2 - 1; the relative error of the logarithm is 7.5e-10.
const LOG: [f64; 9] = [
    0.33333312604,
    -0.250000096,
    0.20002118663,
    -0.16667995843,
    0.14219552279,
    -0.12405589066,
    0.11888162974,
    -0.116756512,
    0.067466382424,
];

/// `erf(√z) / √z` for z ≤ 1; relative error 3.3e-11.
const ERF: [f64; 8] = [
    std::f64::consts::FRAC_2_SQRT_PI,
    -0.37612638435,
    0.11283781974,
    -0.026865400045,
    0.0052209454417,
    -0.00084828289729,
    0.00011256948824,
    -9.6415186721e-06,
];

/// `1 - erf(x)` for 1 ≤ x ≤ [`ERF_END`], in powers of the distance from [`ERF_CENTRE`]; error 3.0e-8.
const ERFC: [f64; 13] = [
    0.00078291103007,
    -0.0040065919568,
    0.0095166594297,
    -0.013728866722,
    0.013123318484,
    -0.0083637971986,
    0.0031433304583,
    -0.00011424178651,
    -0.00063593437302,
    0.00033417397742,
    -2.3527834178e-05,
    -3.4711077946e-05,
    9.1204622243e-06,
];
const ERF_CENTRE: f64 = 2.375;
/// From here on erf is nearer to 1 than to the next f32.
const ERF_END: f64 = 3.92;

/// `(tanh(√z) / √z - 1) / z` for z ≤ 0.39; the error of tanh is 4.1e-9.
const TANH: [f64; 5] = [-0.33333284283, 0.13331501773, -0.053744431582, 0.020653806308, -0.0057208202644];

impl<'c> Emitter<'_, 'c> {
    /// A function of one value.
    pub(super) fn unary(&self, op: Unary, dtype: DType, x: Value<'c>) -> Result<Value<'c>> {
        if op == Unary::Not {
            let x = self.convert(x, Element::I1)?;
            return self.ir.not(x);
        }
        let element = self.ir.element(x)?;
        if !matches!(element, Element::F32 | Element::F64) {
            let zero = self.ir.integer(Element::I64, 0);
            let integer = self.convert(x, Element::I64)?;
            match op {
                Unary::Absolute if dtype == DType::U64 => return Ok(integer),
                Unary::Sign if dtype == DType::U64 => {
                    let nonzero = self.ir.icmp(IntPredicate::NE, integer, zero)?;
                    return self.convert(nonzero, Element::I64);
                }
                Unary::Negate => return self.ir.sub(zero, integer),
                Unary::Absolute => {
                    let negative = self.ir.icmp(IntPredicate::SLT, integer, zero)?;
                    let negated = self.ir.sub(zero, integer)?;
                    return self.ir.select(negative, negated, integer);
                }
                Unary::Sign => {
                    let (one, minus) = (self.ir.integer(Element::I64, 1), self.ir.integer(Element::I64, -1));
                    let positive = self.ir.icmp(IntPredicate::SGT, integer, zero)?;
                    let negative = self.ir.icmp(IntPredicate::SLT, integer, zero)?;
                    let not_positive = self.ir.select(negative, minus, zero)?;
                    return self.ir.select(positive, one, not_positive);
                }
                Unary::Floor | Unary::Ceil | Unary::Round => return Ok(integer),
                _ => {}
            }
        }
        let x = if element == Element::F64 { x } else { self.convert(x, Element::F32)? };
        let one = self.ir.float_like(1.0, x)?;
        match op {
            Unary::Negate => self.ir.fneg(x),
            Unary::Absolute => self.float_intrinsic("llvm.fabs", x),
            Unary::Sqrt => self.float_intrinsic("llvm.sqrt", x),
            Unary::ReciprocalSqrt => {
                let root = self.float_intrinsic("llvm.sqrt", x)?;
                self.ir.fdiv(one, root)
            }
            Unary::Reciprocal => self.ir.fdiv(one, x),
            Unary::Floor => self.rounded("llvm.floor", x),
            Unary::Ceil => self.rounded("llvm.ceil", x),
            Unary::Round => self.rounded("llvm.roundeven", x),
            Unary::Sign => {
                // of zero and NaN: themselves
                let signed = self.ir.intrinsic(
                    self.shared.module,
                    "llvm.copysign",
                    &[x.get_type()],
                    &[self.ir.same_shape(one, x)?.0, x],
                )?;
                let zero = self.ir.float_like(0.0, x)?;
                let nonzero = self.ir.fcmp(FloatPredicate::ONE, x, zero)?;
                self.ir.select(nonzero, signed, x)
            }
            Unary::Not => Err(CodegenError::Internal("`not` is of Booleans".into())),
            _ if element == Element::F64 => self.unary_double(op, x),
            Unary::Exp => self.exp(x),
            Unary::Log => self.log(x),
            Unary::Erf => self.erf(x),
            Unary::Tanh => self.tanh(x),
            Unary::Sigmoid => self.sigmoid(x),
            Unary::Sin => self.sine(x, false),
            Unary::Cos => self.sine(x, true),
            Unary::Tan => self.tangent(x),
            Unary::Asin | Unary::Acos | Unary::Atan | Unary::Sinh | Unary::Cosh | Unary::Asinh | Unary::Atanh => {
                let wide = self.unary_double(op, self.ir.float_resize(x, Element::F64)?)?;
                self.ir.float_resize(wide, Element::F32)
            }
        }
    }

    /// `eˣ`; beyond 128 it is infinite anyway.
    pub(super) fn exp(&self, x: Value<'c>) -> Result<Value<'c>> {
        let (x, zero) = (self.at_most(x, 128.0)?, self.ir.float(0.0));
        // of NaN, too
        let is_more = self.ir.fcmp(FloatPredicate::UGE, x, self.ir.float(LN_OF_ZERO))?;
        if let Some(all) = self.all_lanes(x) {
            let (fraction, shifted) = self.fraction_of_power(x)?;
            return self.scalef(fraction, shifted, self.ir.reinterpret_as(is_more, all.get_type())?);
        }
        // where it is 0, as of all that is masked in a softmax, another power is computed: what is too small
        // for a number takes as long to round as a denormal one
        let power = self.exp_within(self.ir.select(is_more, x, zero)?)?;
        self.ir.select(is_more, power, zero)
    }

    /// `eˣ` for |x| ≤ 128 and NaN.
    fn exp_within(&self, x: Value<'c>) -> Result<Value<'c>> {
        let (fraction, shifted) = self.fraction_of_power(x)?;
        self.scale_by_power(fraction, shifted)
    }

    /// `eʳ`, and n + [`ROUNDER`], of `eˣ = 2ⁿ · eʳ` with `n = round(x / ln 2)`, `r = x - n · ln 2`.
    fn fraction_of_power(&self, x: Value<'c>) -> Result<(Value<'c>, Value<'c>)> {
        let rounder = self.ir.float(ROUNDER);
        let shifted = self.multiply_add(x, self.ir.float(std::f64::consts::LOG2_E), rounder)?;
        let n = self.ir.fsub(shifted, rounder)?;
        let r = self.multiply_add(n, self.ir.float(-LN_2_HIGH), x)?;
        let r = self.multiply_add(n, self.ir.float(-LN_2_LOW), r)?;
        Ok((self.polynomial(r, &EXP)?, shifted))
    }

    /// `x · 2ⁿ` for an integral |n| ≤ 250, given as n + [`ROUNDER`], with overflow and gradual underflow.
    fn scale_by_power(&self, x: Value<'c>, shifted: Value<'c>) -> Result<Value<'c>> {
        if let Some(all) = self.all_lanes(x) {
            return self.scalef(x, shifted, all);
        }
        // its last bits are n; in two steps, since the range of one power is too small
        let n = self.ir.reinterpret(shifted, Element::I32)?;
        let n = self.ir.sub(n, self.ir.integer(Element::I32, ROUNDER_BITS))?;
        let half = self.ir.ashr(n, self.ir.integer(Element::I32, 1))?;
        let rest = self.ir.sub(n, half)?;
        let scaled = self.ir.fmul(x, self.power_of_two(half)?)?;
        self.ir.fmul(scaled, self.power_of_two(rest)?)
    }

    /// The same in the lanes of a mask, which is an integer of 16 bits, and 0 in the others: one instruction
    /// of AVX-512.
    fn scalef(&self, x: Value<'c>, shifted: Value<'c>, lanes: Value<'c>) -> Result<Value<'c>> {
        let n = self.ir.fsub(shifted, self.ir.float(ROUNDER))?;
        let (zeros, current_rounding) = (x.get_type().const_zero(), self.ir.integer(Element::I32, 4));
        let arguments = [x, n, zeros, lanes, current_rounding];
        self.ir.intrinsic(self.shared.module, "llvm.x86.avx512.mask.scalef.ps.512", &[], &arguments)
    }

    /// 2ⁿ of an i32 in -126..=127.
    fn power_of_two(&self, n: Value<'c>) -> Result<Value<'c>> {
        let biased = self.ir.add(n, self.ir.integer(Element::I32, 127))?;
        let bits = self.ir.shl(biased, self.ir.integer(Element::I32, 23))?;
        self.ir.reinterpret(bits, Element::F32)
    }

    /// `ln x = ln m + e · ln 2` with `x = m · 2ᵉ`, `√½ ≤ m < √2`.
    pub(super) fn log(&self, x: Value<'c>) -> Result<Value<'c>> {
        let smallest_normal = f64::from(f32::MIN_POSITIVE);
        let tiny = self.ir.fcmp(FloatPredicate::OLT, x, self.ir.float(smallest_normal))?;
        let enlarged = self.ir.fmul(x, self.ir.float(8_388_608.0))?;
        let normal = self.ir.select(tiny, enlarged, x)?;
        let bits = self.ir.reinterpret(normal, Element::I32)?;
        // the exponent is cut where the mantissa passes √2: subtract the bits of √½
        let i32 = |value| self.ir.integer(Element::I32, value);
        let shifted = self.ir.sub(bits, i32(0x3f35_04f3))?;
        let exponent = self.ir.ashr(shifted, i32(23))?;
        let cut = self.ir.shl(exponent, i32(23))?;
        let mantissa = self.ir.reinterpret(self.ir.sub(bits, cut)?, Element::F32)?;
        let exponent = self.ir.select(tiny, self.ir.sub(exponent, i32(23))?, exponent)?;
        let exponent = self.ir.int_to_float(exponent, Element::F32)?;

        let x1 = self.ir.fsub(mantissa, self.ir.float(1.0))?;
        let square = self.ir.fmul(x1, x1)?;
        let cube = self.ir.fmul(square, x1)?;
        let tail = self.polynomial(x1, &LOG)?;
        let sum = self.ir.fmul(exponent, self.ir.float(LN_2_LOW))?;
        let sum = self.multiply_add(tail, cube, sum)?;
        let sum = self.multiply_add(square, self.ir.float(-0.5), sum)?;
        let sum = self.ir.fadd(sum, x1)?;
        let value = self.multiply_add(exponent, self.ir.float(LN_2_HIGH), sum)?;

        // NaN below zero, minus infinity at zero, infinity and NaN stay
        let finite = self.ir.fcmp(FloatPredicate::OLT, x, self.ir.float(f64::INFINITY))?;
        let value = self.ir.select(finite, value, x)?;
        let zero = self.ir.fcmp(FloatPredicate::OEQ, x, self.ir.float(0.0))?;
        let value = self.ir.select(zero, self.ir.float(f64::NEG_INFINITY), value)?;
        let negative = self.ir.fcmp(FloatPredicate::OLT, x, self.ir.float(0.0))?;
        self.ir.select(negative, self.ir.float(f64::NAN), value)
    }

    /// Odd polynomial below 1; 1 without another polynomial, with the sign of x, above.
    pub(super) fn erf(&self, x: Value<'c>) -> Result<Value<'c>> {
        let magnitude = self.float_intrinsic("llvm.fabs", x)?;
        let square = self.ir.fmul(x, x)?;
        let small = self.ir.fmul(self.polynomial(square, &ERF)?, x)?;
        let limited = self.at_most(magnitude, ERF_END)?;
        let complement = self.polynomial(self.ir.fsub(limited, self.ir.float(ERF_CENTRE))?, &ERFC)?;
        let large = self.with_sign(self.ir.fsub(self.ir.float(1.0), complement)?, x)?;
        let is_small = self.ir.fcmp(FloatPredicate::OLT, magnitude, self.ir.float(1.0))?;
        self.ir.select(is_small, small, large)
    }

    /// Odd polynomial below 0.625; `1 - 2 / (exp(2|x|) + 1)` with the sign of x above.
    pub(super) fn tanh(&self, x: Value<'c>) -> Result<Value<'c>> {
        let magnitude = self.float_intrinsic("llvm.fabs", x)?;
        let square = self.ir.fmul(x, x)?;
        let tail = self.polynomial(square, &TANH)?;
        let cube = self.ir.fmul(square, x)?;
        let small = self.multiply_add(tail, cube, x)?;
        // of 20 and more it is 1
        let twice = self.at_most(self.ir.fadd(magnitude, magnitude)?, 40.0)?;
        let power = self.exp_within(twice)?;
        let quotient = self.quotient(self.ir.float(2.0), self.ir.fadd(power, self.ir.float(1.0))?)?;
        let large = self.ir.fsub(self.ir.float(1.0), quotient)?;
        let large = self.with_sign(large, x)?;
        let is_small = self.ir.fcmp(FloatPredicate::OLT, magnitude, self.ir.float(0.625))?;
        self.ir.select(is_small, small, large)
    }

    /// `1 / (1 + exp(-x))`. From 30 on it is 1; where it would be denormal, it is 0, as powers of e are.
    pub(super) fn sigmoid(&self, x: Value<'c>) -> Result<Value<'c>> {
        let (one, zero) = (self.ir.float(1.0), self.ir.float(0.0));
        // without a power that is denormal
        let x = self.at_most(x, 30.0)?;
        let power = self.exp_within(self.ir.fneg(x)?)?;
        let value = self.quotient(one, self.ir.fadd(power, one)?)?;
        // there, the power is anything
        let is_zero = self.ir.fcmp(FloatPredicate::OLT, x, self.ir.float(LN_OF_ZERO))?;
        self.ir.select(is_zero, zero, value)
    }

    /// `x / y` for normal numbers y whose reciprocals are normal, within 2 units in the last place: where
    /// vectors are divided slowly, by an estimate of the reciprocal and a step of Newton's method.
    fn quotient(&self, x: Value<'c>, y: Value<'c>) -> Result<Value<'c>> {
        let Some(estimate) = self.reciprocal_estimate(y)? else { return self.ir.fdiv(x, y) };
        let error = self.multiply_add(self.ir.fneg(y)?, estimate, self.ir.float(1.0))?;
        let reciprocal = self.multiply_add(estimate, error, estimate)?;
        self.ir.fmul(x, reciprocal)
    }

    /// `x / y` of the lanes of a vector by one f32 for all of them, within 2 units in the last place: its
    /// reciprocal is found once. It is scaled, so that reciprocals of the largest and the least numbers are
    /// neither denormal nor infinite. `None` for anything else.
    pub(super) fn divided_by_one(&self, x: Value<'c>, y: Value<'c>) -> Result<Option<Value<'c>>> {
        let is_such = matches!((x, y), (Value::VectorValue(_), Value::FloatValue(_)))
            && [x, y].map(|value| self.ir.element(value).ok()) == [Some(Element::F32); 2];
        if !is_such {
            return Ok(None);
        }
        const FAR: f64 = (1_u64 << 63) as f64;
        let magnitude = self.float_intrinsic("llvm.fabs", y)?;
        let is_large = self.ir.fcmp(FloatPredicate::OGT, magnitude, self.ir.float(FAR))?;
        let is_small = self.ir.fcmp(FloatPredicate::OLT, magnitude, self.ir.float(FAR.recip()))?;
        let scale = self.ir.select(is_small, self.ir.float(FAR), self.ir.float(1.0))?;
        let scale = self.ir.select(is_large, self.ir.float(FAR.recip()), scale)?;
        let reciprocal = self.ir.fdiv(self.ir.float(1.0), self.ir.fmul(y, scale)?)?;
        self.ir.fmul(self.ir.fmul(x, scale)?, reciprocal).map(Some)
    }

    /// `1 / x` with a relative error of less than 2⁻¹⁴, where that is an instruction, and a faster one.
    fn reciprocal_estimate(&self, x: Value<'c>) -> Result<Option<Value<'c>>> {
        let Some(all) = self.all_lanes(x).filter(|_| self.shared.processor.divides_slowly()) else {
            return Ok(None);
        };
        self.ir.intrinsic(self.shared.module, "llvm.x86.avx512.rcp14.ps.512", &[], &[x, x, all]).map(Some)
    }

    /// The mask of all lanes of a vector of f32 that fills a register of AVX-512.
    fn all_lanes(&self, x: Value<'c>) -> Option<Value<'c>> {
        let Value::VectorValue(vector) = x else { return None };
        let is_whole = vector.get_type().get_size() == 16 && self.shared.processor.has_feature("avx512f");
        is_whole.then(|| self.shared.context.i16_type().const_all_ones().into())
    }

    /// Horner's scheme; coefficients from the constant up.
    pub(super) fn polynomial(&self, x: Value<'c>, coefficients: &[f64]) -> Result<Value<'c>> {
        let Some((highest, lower)) = coefficients.split_last() else {
            return self.ir.float_like(0.0, x);
        };
        let mut value = self.ir.float_like(*highest, x)?;
        for coefficient in lower.iter().rev() {
            value = self.multiply_add(value, x, self.ir.float_like(*coefficient, x)?)?;
        }
        Ok(value)
    }

    pub(super) fn multiply_add(&self, x: Value<'c>, y: Value<'c>, z: Value<'c>) -> Result<Value<'c>> {
        self.ir.fma(self.shared.module, x, y, z)
    }

    /// Between two bounds; NaN stays NaN.
    pub(super) fn clamped(&self, x: Value<'c>, low: f64, high: f64) -> Result<Value<'c>> {
        self.at_most(self.at_least(x, low)?, high)
    }

    fn at_least(&self, x: Value<'c>, low: f64) -> Result<Value<'c>> {
        let low = self.ir.float_like(low, x)?;
        let is_below = self.ir.fcmp(FloatPredicate::OGT, low, x)?;
        self.ir.select(is_below, low, x)
    }

    fn at_most(&self, x: Value<'c>, high: f64) -> Result<Value<'c>> {
        let high = self.ir.float_like(high, x)?;
        let is_above = self.ir.fcmp(FloatPredicate::OLT, high, x)?;
        self.ir.select(is_above, high, x)
    }

    /// The magnitude of one value with the sign of another.
    pub(super) fn with_sign(&self, magnitude: Value<'c>, sign: Value<'c>) -> Result<Value<'c>> {
        let (magnitude, sign) = self.ir.same_shape(magnitude, sign)?;
        self.ir.intrinsic(self.shared.module, "llvm.copysign", &[magnitude.get_type()], &[magnitude, sign])
    }

    /// `llvm.floor`, `llvm.ceil`, `llvm.roundeven` or `llvm.trunc`. Processors before SSE 4.1 have no
    /// instruction for them (LLVM would call the C library): there, adding and subtracting 2²³ rounds to
    /// even, and a comparison corrects.
    pub(super) fn rounded(&self, name: &str, x: Value<'c>) -> Result<Value<'c>> {
        if self.shared.processor.rounds() {
            return self.float_intrinsic(name, x);
        }
        let (exact, one) = match self.ir.element(x)? {
            Element::F64 => (4_503_599_627_370_496.0, self.ir.double(1.0)),
            _ => (8_388_608.0, self.ir.float(1.0)),
        };
        let limit = self.ir.float_like(exact, x)?;
        let magnitude = self.float_intrinsic("llvm.fabs", x)?;
        let nearest = self.ir.fsub(self.ir.fadd(magnitude, limit)?, limit)?;
        let nearest = self.with_sign(nearest, x)?;
        let value = match name {
            "llvm.floor" => {
                let above = self.ir.fcmp(FloatPredicate::OGT, nearest, x)?;
                self.ir.select(above, self.ir.fsub(nearest, one)?, nearest)?
            }
            "llvm.ceil" => {
                let below = self.ir.fcmp(FloatPredicate::OLT, nearest, x)?;
                self.ir.select(below, self.ir.fadd(nearest, one)?, nearest)?
            }
            "llvm.trunc" => {
                let size = self.float_intrinsic("llvm.fabs", nearest)?;
                let beyond = self.ir.fcmp(FloatPredicate::OGT, size, magnitude)?;
                let less = self.with_sign(self.ir.fsub(size, one)?, x)?;
                self.ir.select(beyond, less, nearest)?
            }
            _ => nearest,
        };
        // numbers without a fraction, infinities and NaN stay
        let fractional = self.ir.fcmp(FloatPredicate::OLT, magnitude, limit)?;
        let value = self.ir.select(fractional, value, x)?;
        self.with_sign(value, x)
    }
}
