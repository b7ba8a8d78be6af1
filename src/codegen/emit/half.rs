//! The 16-bit floating-point types: bits in memory, f32 in registers.
//!
//! Conversions are instructions where the processor has them. Elsewhere LLVM would call a library that
//! kernels are not linked with, so integer operations do the same: exactly, to the nearest even, with
//! subnormal numbers, infinities and NaN. Only the instructions of x86 that round to bf16, and multiply it,
//! take subnormal numbers (below 10⁻³⁸) for zeros.

use inkwell::types::{BasicTypeEnum, FloatType};
use inkwell::{FloatPredicate, IntPredicate};

use crate::codegen::emit::Emitter;
use crate::codegen::emit::ir::{Element, Value, shaped};
use crate::codegen::emit::processor::Processor;
use crate::codegen::error::CodegenError;
use crate::workload::DType;

type Result<T> = std::result::Result<T, CodegenError>;

/// The bits of an f32's sign, and of its exponent.
const SIGN: i64 = 0x8000_0000;
const EXPONENT: i64 = 0x7f80_0000;
/// By how many bits an f32's fraction is longer than an f16's.
const LONGER: i64 = 13;
/// By how much the exponents' biases differ: 127 and 15.
const BIAS: i64 = 112;

impl<'c> Emitter<'_, 'c> {
    /// From an f16's or bf16's bits, of type i16, to f32.
    pub(super) fn widen_half(&self, bits: Value<'c>, dtype: DType) -> Result<Value<'c>> {
        if self.converts(dtype) {
            let half = self.ir.builder.build_bit_cast(bits, self.half_like(dtype, bits)?, "")?;
            return self.ir.float_resize(half, Element::F32);
        }
        let wide = self.ir.zero_extend(bits, self.ir.type_like(Element::I32, bits))?;
        match dtype {
            DType::BF16 => self.ir.reinterpret(self.ir.shl(wide, self.word(16))?, Element::F32),
            _ => self.widen_by_integers(wide),
        }
    }

    /// From f32 to the nearest f16 or bf16, as bits of type i16.
    pub(super) fn narrow_half(&self, x: Value<'c>, dtype: DType) -> Result<Value<'c>> {
        let i16s = self.shaped_like(self.shared.context.i16_type().into(), x)?;
        if self.converts(dtype) || (dtype == DType::BF16 && self.shared.processor.rounds_to_bf16()) {
            let half = self.ir.float_cast(x, self.half_like(dtype, x)?)?;
            return Ok(self.ir.builder.build_bit_cast(half, i16s, "")?);
        }
        let bits = self.ir.reinterpret(x, Element::I32)?;
        let narrow = if dtype == DType::BF16 { self.round_to_bf16(x, bits)? } else { self.round_to_f16(bits)? };
        self.ir.truncate(narrow, i16s)
    }

    /// Whether there are instructions to and from a type. From bf16, a shift is as good.
    fn converts(&self, dtype: DType) -> bool {
        match (self.shared.processor, dtype) {
            (Processor::Gpu(_), _) => true,
            (processor, DType::F16) => processor.converts_halves(),
            (Processor::Cpu(_), _) => false,
        }
    }

    /// ```text
    /// sign, then (fraction and exponent, moved to where f32 has them) · 2¹¹², which makes numbers of subnormal ones, too;
    /// infinities and NaN have all bits of the exponent
    /// ```
    fn widen_by_integers(&self, wide: Value<'c>) -> Result<Value<'c>> {
        let sign = self.ir.shl(self.ir.and(wide, self.word(0x8000))?, self.word(16))?;
        let magnitude = self.ir.and(wide, self.word(0x7fff))?;
        let moved = self.ir.shl(magnitude, self.word(LONGER))?;
        let scaled = self.ir.fmul(self.ir.reinterpret(moved, Element::F32)?, self.ir.float(2f64.powi(BIAS as i32)))?;
        let scaled = self.ir.reinterpret(scaled, Element::I32)?;
        let special = self.ir.icmp(IntPredicate::UGE, magnitude, self.word(0x7c00))?;
        let value = self.ir.select(special, self.ir.or(moved, self.word(EXPONENT))?, scaled)?;
        self.ir.reinterpret(self.ir.or(value, sign)?, Element::F32)
    }

    fn round_to_bf16(&self, x: Value<'c>, bits: Value<'c>) -> Result<Value<'c>> {
        let odd = self.ir.and(self.ir.lshr(bits, self.word(16))?, self.word(1))?;
        let rounded = self.ir.add(self.ir.add(bits, self.word(0x7fff))?, odd)?;
        // a quiet NaN keeps its upper bits, whatever they are
        let quiet = self.ir.or(bits, self.word(0x0040_0000))?;
        let is_nan = self.ir.fcmp(FloatPredicate::UNO, x, x)?;
        self.ir.lshr(self.ir.select(is_nan, quiet, rounded)?, self.word(16))
    }

    fn round_to_f16(&self, bits: Value<'c>) -> Result<Value<'c>> {
        let sign = self.ir.and(bits, self.word(SIGN))?;
        let magnitude = self.ir.xor(bits, sign)?;
        let odd = self.ir.and(self.ir.lshr(magnitude, self.word(LONGER))?, self.word(1))?;
        let rebased = self.ir.sub(magnitude, self.word((BIAS << 23) - 0xfff))?;
        let normal = self.ir.lshr(self.ir.add(rebased, odd)?, self.word(LONGER))?;
        // below the smallest normal number: adding ½ leaves the fraction in the lowest bits, rounded
        let half = self.ir.float(0.5);
        let sum = self.ir.fadd(self.ir.reinterpret(magnitude, Element::F32)?, half)?;
        let subnormal = self.ir.sub(self.ir.reinterpret(sum, Element::I32)?, self.word(0x3f00_0000))?;
        let is_subnormal = self.ir.icmp(IntPredicate::ULT, magnitude, self.word((BIAS + 1) << 23))?;
        let finite = self.ir.select(is_subnormal, subnormal, normal)?;
        let is_nan = self.ir.icmp(IntPredicate::UGT, magnitude, self.word(EXPONENT))?;
        let special = self.ir.select(is_nan, self.word(0x7e00), self.word(0x7c00))?;
        // 2¹⁶ and more; what is a little less rounds up to infinity by itself
        let is_large = self.ir.icmp(IntPredicate::UGE, magnitude, self.word((127 + 16) << 23))?;
        let value = self.ir.select(is_large, special, finite)?;
        self.ir.or(value, self.ir.lshr(sign, self.word(16))?)
    }

    fn word(&self, value: i64) -> Value<'c> {
        self.ir.integer(Element::I32, value)
    }

    fn half_like(&self, dtype: DType, like: Value<'c>) -> Result<BasicTypeEnum<'c>> {
        let context = self.shared.context;
        let half: FloatType = if dtype == DType::BF16 { context.bf16_type() } else { context.f16_type() };
        self.shaped_like(half.into(), like)
    }

    /// The type in as many lanes as a value has.
    pub(super) fn shaped_like(&self, scalar: BasicTypeEnum<'c>, like: Value<'c>) -> Result<BasicTypeEnum<'c>> {
        let width = match like {
            Value::VectorValue(vector) => Some(vector.get_type().get_size()),
            _ => None,
        };
        shaped(scalar, width)
    }
}
