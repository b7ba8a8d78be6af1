//! What the threads of a warp do together.

use inkwell::IntPredicate;

use super::Emitter;
use super::ir::{Element, Value};
use crate::codegen::error::CodegenError;
use crate::nest::Scope;
use crate::target::gpu::WARP;
use crate::workload::{Combiner, DType, Index, TensorId, Var};

type Result<T> = std::result::Result<T, CodegenError>;

impl<'c> Emitter<'_, 'c> {
    /// How many neighbouring threads an accumulation to `indices` combines the values of: 1 where each has an
    /// element of its own, or a register.
    pub(super) fn threads_together(&self, buffer: TensorId, indices: &[Index]) -> i64 {
        let is_register = self.shared.nest.buffer(buffer).scope == Scope::Register;
        let Some(phase) = self.block.phase.as_ref().filter(|_| !is_register) else { return 1 };
        let stays = |(var, _): &&(Var, i64)| !indices.iter().any(|index| index.mentions(*var));
        phase.loops.iter().filter(stays).map(|(_, extent)| extent).product()
    }

    /// Combines the values of `width` neighbouring threads, a power of two up to a warp; each of them gets
    /// the result.
    pub(super) fn combine_threads(
        &mut self,
        (combiner, dtype): (Combiner, DType),
        value: Value<'c>,
        width: i64,
    ) -> Result<Value<'c>> {
        let Some(phase) = &self.block.phase else { return Ok(value) };
        let i32_of = |value: i64| self.ir.integer(Element::I32, value);
        let mask = if phase.loops.iter().map(|(_, extent)| extent).product::<i64>() % WARP == 0 {
            i32_of(-1)
        } else {
            // not all threads of the last warp are here
            let thread = self.ir.truncate(phase.thread, self.ir.scalar_type(Element::I32))?;
            let first = self.ir.and(thread, i32_of((WARP - 1) & !(width - 1)))?;
            self.ir.shl(i32_of((1 << width) - 1), first)?
        };
        let mut value = value;
        let mut distance = width / 2;
        while distance > 0 {
            let other = self.value_of_neighbour(mask, value, distance)?;
            value = self.binary(combiner.binary(), dtype, value, other)?;
            distance /= 2;
        }
        Ok(value)
    }

    /// The value of the thread whose number differs in the bit `distance`.
    fn value_of_neighbour(&self, mask: Value<'c>, value: Value<'c>, distance: i64) -> Result<Value<'c>> {
        if let Value::VectorValue(vector) = value {
            let mut moved = value;
            for lane in 0..vector.get_type().get_size() {
                let at = self.shared.context.i32_type().const_int(u64::from(lane), false);
                let one = self.ir.builder.build_extract_element(vector, at, "")?;
                let other = self.value_of_neighbour(mask, one, distance)?;
                moved = self.ir.builder.build_insert_element(moved.into_vector_value(), other, at, "")?.into();
            }
            return Ok(moved);
        }
        let i32_type = self.ir.scalar_type(Element::I32);
        let shuffled = |name: &str, part: Value<'c>| {
            let all_lanes = self.ir.integer(Element::I32, WARP - 1);
            let distance = self.ir.integer(Element::I32, distance);
            self.ir.intrinsic(self.shared.module, name, &[], &[mask, part, distance, all_lanes])
        };
        let whole = |part| shuffled("llvm.nvvm.shfl.sync.bfly.i32", part);
        match self.ir.element(value)? {
            Element::F32 => shuffled("llvm.nvvm.shfl.sync.bfly.f32", value),
            Element::I32 => whole(value),
            Element::I1 => {
                let moved = whole(self.ir.zero_extend(value, i32_type)?)?;
                self.ir.truncate(moved, self.ir.scalar_type(Element::I1))
            }
            Element::I64 | Element::F64 => {
                let bits = self.ir.reinterpret(value, Element::I64)?;
                let half = self.ir.integer(Element::I64, 32);
                let low = whole(self.ir.truncate(bits, i32_type)?)?;
                let high = whole(self.ir.truncate(self.ir.lshr(bits, half)?, i32_type)?)?;
                let i64_type = self.ir.scalar_type(Element::I64);
                let high = self.ir.shl(self.ir.zero_extend(high, i64_type)?, half)?;
                let moved = self.ir.or(self.ir.zero_extend(low, i64_type)?, high)?;
                if self.ir.element(value)? == Element::F64 {
                    self.ir.reinterpret(moved, Element::F64)
                } else {
                    Ok(moved)
                }
            }
        }
    }

    /// Runs `body` in the first of every `width` neighbouring threads.
    pub(super) fn in_first_of(&mut self, width: i64, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let Some(phase) = &self.block.phase else { return body(self) };
        let rest = self.ir.and(phase.thread, self.ir.integer(Element::I64, width - 1))?;
        let is_first = self.ir.icmp(IntPredicate::EQ, rest, self.ir.integer(Element::I64, 0))?;
        let (yes, after) = (self.new_block("first"), self.new_block("first.end"));
        self.ir.builder.build_conditional_branch(is_first.into_int_value(), yes, after)?;
        self.ir.builder.position_at_end(yes);
        body(self)?;
        self.ir.builder.build_unconditional_branch(after)?;
        self.ir.builder.position_at_end(after);
        Ok(())
    }
}
