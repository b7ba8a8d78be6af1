//! Functions of one f64, within a few units in the last place of f64: for that type, and for f32 where a
//! function is rare and its error in f32 would be large.
//!
//! What they are reduced to are `eˣ - 1`, `ln (1 + x)` and the arc tangent, each of which keeps its relative
//! precision near 0 (Muller, *Elementary Functions*, 2016, chapters 9 and 11). The polynomials interpolate
//! in Chebyshev's nodes, computed with 40 digits; each says what it approximates and how well.

use inkwell::FloatPredicate;

use crate::codegen::emit::Emitter;
use crate::codegen::emit::ir::{Element, Value};
use crate::codegen::error::CodegenError;
use crate::workload::Unary;

type Result<T> = std::result::Result<T, CodegenError>;

/// ln 2 in two parts; the first has few bits, so that small multiples of it are exact.
const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// π/2 in two parts.
const HALF_PI: f64 = std::f64::consts::FRAC_PI_2;
const HALF_PI_LOW: f64 = 6.123_233_995_736_766e-17;

/// `(eʳ - 1 - r) / r²` for |r| ≤ ln 2 / 2; absolute error 2.5e-18.
const EXP: [f64; 11] = [
    0.5,
    0.1666666666666667,
    0.04166666666666667,
    0.008333333333326084,
    0.0013888888888883711,
    0.0001984126987500228,
    2.480158732567746e-05,
    2.755725517000089e-06,
    2.755727347871858e-07,
    2.5105312729622103e-08,
    2.09147553258932e-09,
];

/// `(artanh √z / √z - 1) / z` for z ≤ 0.0297; absolute error 1.9e-17.
const ARTANH: [f64; 9] = [
    0.3333333333333333,
    0.19999999999999996,
    0.14285714285717901,
    0.11111111109863304,
    0.09090909306411327,
    0.0769228681664309,
    0.06667851615680787,
    0.05843341633531372,
    0.05947496626539182,
];

/// `(arctan √z / √z - 1) / z` for √z ≤ tan π/8; absolute error 2.1e-17.
const ARCTAN: [f64; 13] = [
    -0.3333333333333333,
    0.19999999999999993,
    -0.14285714285711498,
    0.11111111110752325,
    -0.09090909066866446,
    0.07692306730961795,
    -0.06666641908302051,
    0.05881923626133301,
    -0.052580257920073425,
    0.04719294405473837,
    -0.04104029750501821,
    0.030626287828475894,
    -0.013908703447288225,
];

/// `erf(√z) / √z` for z ≤ 1; absolute error 1.6e-17.
const ERF: [f64; 13] = [
    std::f64::consts::FRAC_2_SQRT_PI,
    -0.3761263890318375,
    0.11283791670954879,
    -0.026866170645076792,
    0.0052239776248180145,
    -0.000854832698083379,
    0.0001205533111164271,
    -1.4925595266831182e-05,
    1.6461000484121368e-06,
    -1.6350312701054695e-07,
    1.4659775274047436e-08,
    -1.1372848856791674e-09,
    5.957176147748911e-11,
];

/// `erfc(x) · exp(x²)` for 1 ≤ x ≤ 6 and `t = (x - 3) / (x + 3)`; absolute error 1.7e-17.
const ERFC: [f64; 16] = [
    0.17900115118138996,
    -0.3262335600430372,
    0.24560380171233487,
    -0.15011593650077898,
    0.07166583719747308,
    -0.024392499318915004,
    0.004269136356961225,
    0.0007077464666941425,
    -0.0005970624964924544,
    4.525434558991009e-05,
    6.406279226046039e-05,
    -1.2845780030775907e-05,
    -8.00978093907608e-06,
    2.0135111426447427e-06,
    1.2755818949624478e-06,
    3.381355142042904e-09,
];

impl<'c> Emitter<'_, 'c> {
    /// A function that this file has, of an f64.
    pub(super) fn unary_double(&self, op: Unary, x: Value<'c>) -> Result<Value<'c>> {
        let one = self.ir.double(1.0);
        let magnitude = || self.float_intrinsic("llvm.fabs", x);
        match op {
            Unary::Exp => self.exp_double(x),
            Unary::Log => self.log_double(self.ir.fsub(x, one)?, x, self.ir.double(0.0)),
            Unary::Sigmoid => {
                let power = self.exp_double(self.ir.fneg(magnitude()?)?)?;
                let negative = self.ir.fcmp(FloatPredicate::OLT, x, self.ir.double(0.0))?;
                let numerator = self.ir.select(negative, power, one)?;
                self.ir.fdiv(numerator, self.ir.fadd(power, one)?)
            }
            Unary::Tanh => {
                let twice = self.ir.fadd(magnitude()?, magnitude()?)?;
                let less_one = self.exp_less_one(self.clamped(twice, 0.0, 80.0)?)?;
                let value = self.ir.fdiv(less_one, self.ir.fadd(less_one, self.ir.double(2.0))?)?;
                self.with_sign(value, x)
            }
            Unary::Sinh => self.sinh(x),
            Unary::Erf => self.erf_double(x),
            Unary::Cosh => {
                let (grown, shrunk) = self.half_exponentials(x)?;
                self.ir.fadd(grown, shrunk)
            }
            Unary::Atan => self.arctan(x),
            Unary::Asin => {
                let square = self.ir.fmul(self.ir.fsub(one, x)?, self.ir.fadd(one, x)?)?;
                let adjacent = self.float_intrinsic("llvm.sqrt", square)?;
                self.arctan(self.ir.fdiv(x, adjacent)?)
            }
            Unary::Acos => {
                // half the angle, whose tangent nothing cancels in
                let square = self.ir.fdiv(self.ir.fsub(one, x)?, self.ir.fadd(one, x)?)?;
                let half = self.arctan(self.float_intrinsic("llvm.sqrt", square)?)?;
                self.ir.fadd(half, half)
            }
            Unary::Asinh => self.arsinh(x),
            Unary::Atanh => {
                let magnitude = magnitude()?;
                let twice = self.ir.fadd(magnitude, magnitude)?;
                let ratio = self.ir.fdiv(twice, self.ir.fsub(one, magnitude)?)?;
                let logarithm = self.log_double(ratio, self.ir.fadd(one, ratio)?, self.ir.double(0.0))?;
                self.with_sign(self.ir.fmul(self.ir.double(0.5), logarithm)?, x)
            }
            other => Err(CodegenError::Unsupported(format!("`{}` of f64", other.name()))),
        }
    }

    /// `x = n · ln 2 + r`: n, and `eʳ - 1`.
    fn exp_parts(&self, x: Value<'c>) -> Result<(Value<'c>, Value<'c>)> {
        let n = self.rounded("llvm.roundeven", self.ir.fmul(x, self.ir.double(std::f64::consts::LOG2_E))?)?;
        let r = self.multiply_add(n, self.ir.double(-LN_2_HIGH), x)?;
        let r = self.multiply_add(n, self.ir.double(-LN_2_LOW), r)?;
        let tail = self.polynomial(r, &EXP)?;
        Ok((n, self.multiply_add(tail, self.ir.fmul(r, r)?, r)?))
    }

    fn exp_double(&self, x: Value<'c>) -> Result<Value<'c>> {
        // beyond, the result is infinite or 0 anyway
        let (n, less_one) = self.exp_parts(self.clamped(x, -800.0, 800.0)?)?;
        let value = self.ir.fadd(less_one, self.ir.double(1.0))?;
        // in two steps, since the range of one power is too small
        let n = self.convert(n, Element::I64)?;
        let half = self.ir.ashr(n, self.ir.integer(Element::I64, 1))?;
        let scaled = self.ir.fmul(value, self.power_of_two_double(half)?)?;
        self.ir.fmul(scaled, self.power_of_two_double(self.ir.sub(n, half)?)?)
    }

    /// `eˣ - 1` for |x| ≤ 700.
    fn exp_less_one(&self, x: Value<'c>) -> Result<Value<'c>> {
        let (n, less_one) = self.exp_parts(x)?;
        let scale = self.power_of_two_double(self.convert(n, Element::I64)?)?;
        self.multiply_add(scale, less_one, self.ir.fsub(scale, self.ir.double(1.0))?)
    }

    /// 2ⁿ of an i64 in -1022..=1023.
    pub(super) fn power_of_two_double(&self, n: Value<'c>) -> Result<Value<'c>> {
        let biased = self.ir.add(n, self.ir.integer(Element::I64, 1023))?;
        self.ir.reinterpret(self.ir.shl(biased, self.ir.integer(Element::I64, 52))?, Element::F64)
    }

    /// `e^|x| / 2` and `e^-|x| / 2`, which overflow where the sum of both does.
    fn half_exponentials(&self, x: Value<'c>) -> Result<(Value<'c>, Value<'c>)> {
        let half = self.ir.double(0.5);
        let root = self.exp_double(self.ir.fmul(half, self.float_intrinsic("llvm.fabs", x)?)?)?;
        let grown = self.ir.fmul(self.ir.fmul(half, root)?, root)?;
        let shrunk = self.ir.fdiv(self.ir.fdiv(half, root)?, root)?;
        Ok((grown, shrunk))
    }

    /// By `u = e^|x| - 1`: `(u + u / (u + 1)) / 2`, in which nothing cancels; beyond 20, `e^|x| / 2`.
    fn sinh(&self, x: Value<'c>) -> Result<Value<'c>> {
        let magnitude = self.float_intrinsic("llvm.fabs", x)?;
        let u = self.exp_less_one(self.clamped(magnitude, 0.0, 20.0)?)?;
        let quotient = self.ir.fdiv(u, self.ir.fadd(u, self.ir.double(1.0))?)?;
        let small = self.ir.fmul(self.ir.double(0.5), self.ir.fadd(u, quotient)?)?;
        let (large, _) = self.half_exponentials(x)?;
        let is_small = self.ir.fcmp(FloatPredicate::OLT, magnitude, self.ir.double(20.0))?;
        self.with_sign(self.ir.select(is_small, small, large)?, x)
    }

    /// Odd polynomial below 1; `1 - exp(-x²) · polynomial` with the sign of x above.
    fn erf_double(&self, x: Value<'c>) -> Result<Value<'c>> {
        let (one, three) = (self.ir.double(1.0), self.ir.double(3.0));
        let magnitude = self.float_intrinsic("llvm.fabs", x)?;
        let square = self.ir.fmul(x, x)?;
        let small = self.ir.fmul(self.polynomial(square, &ERF)?, x)?;
        let limited = self.clamped(magnitude, 1.0, 6.0)?;
        let t = self.ir.fdiv(self.ir.fsub(limited, three)?, self.ir.fadd(limited, three)?)?;
        let power = self.exp_double(self.ir.fneg(self.ir.fmul(limited, limited)?)?)?;
        let complement = self.ir.fmul(self.polynomial(t, &ERFC)?, power)?;
        let large = self.with_sign(self.ir.fsub(one, complement)?, x)?;
        let is_small = self.ir.fcmp(FloatPredicate::OLT, magnitude, one)?;
        self.ir.select(is_small, small, large)
    }

    /// `ln (1 + y) + more · ln 2`, given `1 + y`, rounded: near 0 by y, elsewhere by that sum.
    fn log_double(&self, y: Value<'c>, sum: Value<'c>, more: Value<'c>) -> Result<Value<'c>> {
        let (i64, one) = (|value| self.ir.integer(Element::I64, value), self.ir.double(1.0));
        let tiny = self.ir.fcmp(FloatPredicate::OLT, sum, self.ir.double(f64::MIN_POSITIVE))?;
        let enlarged = self.ir.fmul(sum, self.ir.double(2f64.powi(54)))?;
        let bits = self.ir.reinterpret(self.ir.select(tiny, enlarged, sum)?, Element::I64)?;
        // the exponent is cut where the mantissa passes √2: subtract the bits of √½
        let exponent = self.ir.ashr(self.ir.sub(bits, i64(0x3fe6_a09e_667f_3bcd))?, i64(52))?;
        let mantissa = self.ir.reinterpret(self.ir.sub(bits, self.ir.shl(exponent, i64(52))?)?, Element::F64)?;
        let exponent = self.ir.select(tiny, self.ir.sub(exponent, i64(54))?, exponent)?;
        let exponent = self.ir.int_to_float(self.convert(exponent, Element::I32)?, Element::F64)?;

        let above = self.ir.fcmp(FloatPredicate::OGT, y, self.ir.double(-0.29))?;
        let near = self.ir.and(above, self.ir.fcmp(FloatPredicate::OLT, y, self.ir.double(0.41))?)?;
        let distance = self.ir.select(near, y, self.ir.fsub(mantissa, one)?)?;
        let exponent = self.ir.select(near, self.ir.double(0.0), exponent)?;
        let exponent = self.ir.fadd(exponent, more)?;
        // ln (1 + d) = 2 artanh (d / (2 + d))
        let s = self.ir.fdiv(distance, self.ir.fadd(distance, self.ir.double(2.0))?)?;
        let twice = self.ir.fadd(s, s)?;
        let z = self.ir.fmul(s, s)?;
        let tail = self.ir.fmul(self.polynomial(z, &ARTANH)?, self.ir.fmul(z, twice)?)?;
        let low = self.multiply_add(exponent, self.ir.double(LN_2_LOW), tail)?;
        let value = self.multiply_add(exponent, self.ir.double(LN_2_HIGH), self.ir.fadd(twice, low)?)?;

        // NaN below zero, minus infinity at zero, infinity and NaN stay
        let finite = self.ir.fcmp(FloatPredicate::OLT, sum, self.ir.double(f64::INFINITY))?;
        let value = self.ir.select(finite, value, sum)?;
        let zero = self.ir.fcmp(FloatPredicate::OEQ, sum, self.ir.double(0.0))?;
        let value = self.ir.select(zero, self.ir.double(f64::NEG_INFINITY), value)?;
        let negative = self.ir.fcmp(FloatPredicate::OLT, sum, self.ir.double(0.0))?;
        self.ir.select(negative, self.ir.double(f64::NAN), value)
    }

    /// `ln (1 + a + a² / (1 + √(a² + 1)))` with a = |x|; `ln a + ln 2` where a² might overflow.
    fn arsinh(&self, x: Value<'c>) -> Result<Value<'c>> {
        let (one, magnitude) = (self.ir.double(1.0), self.float_intrinsic("llvm.fabs", x)?);
        let square = self.ir.fmul(magnitude, magnitude)?;
        let root = self.float_intrinsic("llvm.sqrt", self.ir.fadd(square, one)?)?;
        let small = self.ir.fadd(magnitude, self.ir.fdiv(square, self.ir.fadd(one, root)?)?)?;
        let is_large = self.ir.fcmp(FloatPredicate::OGT, magnitude, self.ir.double(2f64.powi(60)))?;
        let y = self.ir.select(is_large, magnitude, small)?;
        let more = self.ir.select(is_large, one, self.ir.double(0.0))?;
        let value = self.log_double(y, self.ir.fadd(one, y)?, more)?;
        self.with_sign(value, x)
    }

    /// Of |x| or, beyond 1, of its reciprocal t; beyond tan π/8, by `π/4 + arctan ((t - 1) / (t + 1))`.
    fn arctan(&self, x: Value<'c>) -> Result<Value<'c>> {
        let (zero, one) = (self.ir.double(0.0), self.ir.double(1.0));
        let magnitude = self.float_intrinsic("llvm.fabs", x)?;
        let is_large = self.ir.fcmp(FloatPredicate::OGT, magnitude, one)?;
        let t = self.ir.select(is_large, self.ir.fdiv(one, magnitude)?, magnitude)?;
        let is_middle = self.ir.fcmp(FloatPredicate::OGT, t, self.ir.double(0.414_213_562_373_095))?;
        let turned = self.ir.fdiv(self.ir.fsub(t, one)?, self.ir.fadd(t, one)?)?;
        let t = self.ir.select(is_middle, turned, t)?;
        let z = self.ir.fmul(t, t)?;
        let value = self.multiply_add(self.polynomial(z, &ARCTAN)?, self.ir.fmul(z, t)?, t)?;
        let low = self.ir.select(is_middle, self.ir.double(HALF_PI_LOW / 2.0), zero)?;
        let high = self.ir.select(is_middle, self.ir.double(HALF_PI / 2.0), zero)?;
        let value = self.ir.fadd(high, self.ir.fadd(value, low)?)?;
        let rest = self.ir.fsub(value, self.ir.double(HALF_PI_LOW))?;
        let complement = self.ir.fsub(self.ir.double(HALF_PI), rest)?;
        self.with_sign(self.ir.select(is_large, complement, value)?, x)
    }
}
