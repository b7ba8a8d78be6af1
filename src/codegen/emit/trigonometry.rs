//! Sine, cosine and tangent of f32.

use inkwell::{FloatPredicate, IntPredicate};

use crate::codegen::emit::Emitter;
use crate::codegen::emit::ir::{Element, Value};
use crate::codegen::error::CodegenError;

type Result<T> = std::result::Result<T, CodegenError>;

/// `(sin(√z) / √z - 1) / z` for √z ≤ π/4; the error of the sine is 4.9e-12.
const SINE: [f64; 4] = [-0.16666666641, 0.0083333293623, -0.00019839327136, 2.7182372771e-06];

/// `(cos(√z) - 1 + z/2) / z²` for √z ≤ π/4; the error of the cosine is 1.0e-13.
const COSINE: [f64; 4] = [0.041666666622, -0.0013888883723, 2.4799511762e-05, -2.7209547582e-07];

impl<'c> Emitter<'_, 'c> {
    /// The sine, or the cosine: `x = n · π/2 + r`, and the quadrant n selects function and sign.
    pub(super) fn sine(&self, x: Value<'c>, cosine: bool) -> Result<Value<'c>> {
        let (r, quadrant) = self.reduce_angle(x)?;
        let (sine, cosine_value) = self.sine_and_cosine(r)?;

        let i32 = |value| self.ir.integer(Element::I32, value);
        // cos x = sin(x + π/2)
        let quadrant = if cosine { self.ir.add(quadrant, i32(1))? } else { quadrant };
        let is_odd = self.ir.icmp(IntPredicate::NE, self.ir.and(quadrant, i32(1))?, i32(0))?;
        let value = self.ir.select(is_odd, cosine_value, sine)?;
        let is_upper = self.ir.icmp(IntPredicate::NE, self.ir.and(quadrant, i32(2))?, i32(0))?;
        let negated = self.ir.fneg(value)?;
        let value = self.ir.select(is_upper, negated, value)?;
        self.unless_infinite(x, value)
    }

    /// The tangent: sine by cosine of the reduced angle, or the other way round in every other quadrant.
    pub(super) fn tangent(&self, x: Value<'c>) -> Result<Value<'c>> {
        let (r, quadrant) = self.reduce_angle(x)?;
        let (sine, cosine) = self.sine_and_cosine(r)?;
        let i32 = |value| self.ir.integer(Element::I32, value);
        let is_odd = self.ir.icmp(IntPredicate::NE, self.ir.and(quadrant, i32(1))?, i32(0))?;
        let numerator = self.ir.select(is_odd, self.ir.fneg(cosine)?, sine)?;
        let denominator = self.ir.select(is_odd, sine, cosine)?;
        self.unless_infinite(x, self.ir.fdiv(numerator, denominator)?)
    }

    /// Of an angle in -π/4..π/4.
    fn sine_and_cosine(&self, r: Value<'c>) -> Result<(Value<'c>, Value<'c>)> {
        let z = self.ir.fmul(r, r)?;
        let tail = self.polynomial(z, &SINE)?;
        let sine = self.multiply_add(tail, self.ir.fmul(z, r)?, r)?;
        let tail = self.polynomial(z, &COSINE)?;
        let near = self.multiply_add(z, self.ir.float(-0.5), self.ir.float(1.0))?;
        Ok((sine, self.multiply_add(tail, self.ir.fmul(z, z)?, near)?))
    }

    /// NaN for angles that are infinite or none.
    fn unless_infinite(&self, x: Value<'c>, value: Value<'c>) -> Result<Value<'c>> {
        let magnitude = self.float_intrinsic("llvm.fabs", x)?;
        let finite = self.ir.fcmp(FloatPredicate::OLT, magnitude, self.ir.float(f64::INFINITY))?;
        self.ir.select(finite, value, self.ir.float(f64::NAN))
    }

    /// Angle in -π/4..π/4, and the quadrant (its lower two bits count).
    ///
    /// Payne and Hanek's reduction ("Radian reduction for trigonometric functions", 1983), in integers: a
    /// finite `x = m · 2ᵉ` with 24 bits of m. Of `x · 2/π` only the bits around the binary point matter:
    /// those above are multiples of four quadrants. So m is multiplied by 96 bits of 2/π that start at the
    /// right place.
    fn reduce_angle(&self, x: Value<'c>) -> Result<(Value<'c>, Value<'c>)> {
        let i32 = |value| self.ir.integer(Element::I32, value);
        let i64 = |value| self.ir.integer(Element::I64, value);
        let bits = self.ir.reinterpret(x, Element::I32)?;
        let exponent = self.ir.and(self.ir.lshr(bits, i32(23))?, i32(0xff))?;
        let fraction = self.ir.and(bits, i32(0x7f_ffff))?;
        let mantissa = self.ir.or(fraction, i32(0x80_0000))?;
        // |x| = mantissa · 2^(exponent - 150); below 2^-27 the angle is its own sine, and the shift must not be negative
        let tiny = self.ir.icmp(IntPredicate::SLT, exponent, i32(100))?;
        let place = self.ir.select(tiny, i32(0), self.ir.sub(exponent, i32(100))?)?;
        // window: bits `place - 50 - 2 ..` of 2/π, as three words
        let words = self.two_over_pi_window(place)?;
        let wide = self.ir.type_like(Element::I64, x);
        let m = self.ir.zero_extend(mantissa, wide)?;
        // product modulo 2^96, in words p0 (high), p1, p2: of p2 only its carry into p1 is needed
        let low = self.ir.lshr(self.ir.mul(m, words[2])?, i64(32))?;
        let middle = self.ir.add(self.ir.mul(m, words[1])?, low)?;
        let high = self.ir.add(self.ir.mul(m, words[0])?, self.ir.lshr(middle, i64(32))?)?;
        // 64 bits: 2 of quadrant, 62 of fraction
        let middle_word = self.ir.and(middle, i64(0xffff_ffff))?;
        let turns = self.ir.or(self.ir.shl(high, i64(32))?, middle_word)?;
        // round to the nearest quadrant; the rest is a signed fraction of it
        let rounded = self.ir.add(turns, i64(1 << 61))?;
        let quadrant = self.ir.lshr(rounded, i64(62))?;
        let rest = self.ir.sub(turns, self.ir.shl(quadrant, i64(62))?)?;
        let rest = self.ir.int_to_float(rest, Element::F64)?;
        let angle = self.ir.fmul(rest, self.ir.double(std::f64::consts::FRAC_PI_2 / 4_611_686_018_427_387_904.0))?;
        let angle = self.ir.float_resize(angle, Element::F32)?;
        let quadrant = self.convert(quadrant, Element::I32)?;
        // an odd function: the sign of x goes to both
        let negative = self.ir.icmp(IntPredicate::SLT, bits, i32(0))?;
        let angle = self.ir.select(negative, self.ir.fneg(angle)?, angle)?;
        let quadrant = self.ir.select(negative, self.ir.sub(i32(0), quadrant)?, quadrant)?;
        let angle = self.ir.select(tiny, x, angle)?;
        let quadrant = self.ir.select(tiny, i32(0), quadrant)?;
        Ok((angle, quadrant))
    }

    /// Three words of 32 bits, in i64 lanes, of 2/π from bit `place` on, where bit 0 has the weight 2^51
    /// (zeros before the point).
    fn two_over_pi_window(&self, place: Value<'c>) -> Result<[Value<'c>; 3]> {
        // x = m·2^(e-150), e = place + 100: x·2/π = m · (2/π · 2^(place - 50)). The window holds, modulo 4,
        // bits of weight 2^1 … 2^-94
        let i32 = |value| self.ir.integer(Element::I32, value);
        let i64 = |value| self.ir.integer(Element::I64, value);
        let word = self.ir.lshr(place, i32(5))?;
        let shift = self.convert(self.ir.and(place, i32(31))?, Element::I64)?;
        let mut pairs = Vec::new();
        for n in 0..4 {
            pairs.push(self.two_over_pi_word(self.ir.add(word, i32(n))?)?);
        }
        let mut words = Vec::new();
        for pair in pairs.windows(2) {
            let joined = self.ir.or(self.ir.shl(pair[0], i64(32))?, pair[1])?;
            let shifted = self.ir.lshr(self.ir.shl(joined, shift)?, i64(32))?;
            words.push(shifted);
        }
        <[Value; 3]>::try_from(words).map_err(|_| CodegenError::Internal("four words have three pairs".into()))
    }

    /// Word `n` of [`TWO_OVER_PI`], zero-extended: a chain of selections, since `n` differs between lanes.
    fn two_over_pi_word(&self, n: Value<'c>) -> Result<Value<'c>> {
        let mut value = self.ir.integer(Element::I64, 0);
        for (number, word) in TWO_OVER_PI.iter().enumerate() {
            let here = self.ir.icmp(IntPredicate::EQ, n, self.ir.integer(Element::I32, number as i64))?;
            value = self.ir.select(here, self.ir.integer(Element::I64, i64::from(*word)), value)?;
        }
        Ok(value)
    }
}

/// 52 bits of the integral part of 2^51 · 2/π (zeros), then its binary expansion, most significant word
/// first.
const TWO_OVER_PI: [u32; 9] = [
    0x0000_0000,
    0x0000_0a2f,
    0x9836_e4e4,
    0x4152_9fc2,
    0x757d_1f53,
    0x4ddc_0db6,
    0x2959_93c4,
    0x3904_1fe5,
    0x163a_bdeb,
];
