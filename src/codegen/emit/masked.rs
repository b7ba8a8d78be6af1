//! Rows of elements under a mask.
//!
//! A row is split here into what a register holds, and parts that no lane reaches are left out. LLVM 22
//! splits wider vectors itself, but where it finds only afterwards that the mask of a part is empty, it
//! accesses all lanes of the part, or fails (`X86AvoidSFB` knows no size of such an access).

use inkwell::llvm_sys::core::LLVMGetAggregateElement;
use inkwell::types::VectorType;
use inkwell::values::{AsValueRef, InstructionOpcode, IntValue, PointerValue, VectorValue};

use crate::codegen::emit::ir::{Element, Value, vector_type};
use crate::codegen::emit::{Emitter, Processor};
use crate::codegen::error::CodegenError;
use crate::workload::TensorId;

type Result<T> = std::result::Result<T, CodegenError>;

/// Lanes `first..first + count` of a row.
#[derive(Clone, Copy)]
struct Part {
    first: u32,
    count: u32,
}

impl Part {
    fn lanes(self) -> Vec<i64> {
        (self.first..self.first + self.count).map(i64::from).collect()
    }
}

impl<'c> Emitter<'_, 'c> {
    /// Neighbouring elements where the mask holds, zeros elsewhere.
    pub(super) fn load_row(
        &self,
        buffer: TensorId,
        pointer: PointerValue<'c>,
        mask: Value<'c>,
        row: VectorType<'c>,
    ) -> Result<Value<'c>> {
        self.load_lanes(buffer, pointer, mask, &reachable(mask.into_vector_value()), row)
    }

    /// The same for a mask that holds in some of these lanes at most.
    pub(super) fn load_lanes(
        &self,
        buffer: TensorId,
        pointer: PointerValue<'c>,
        mask: Value<'c>,
        reachable: &[bool],
        row: VectorType<'c>,
    ) -> Result<Value<'c>> {
        let mut loaded: Vec<VectorValue> = Vec::new();
        for part in self.parts(row, buffer) {
            let of_part = vector_type(row.get_element_type(), part.count)?;
            let value = match is_reached(part, reachable) {
                false => of_part.const_zero(),
                true => {
                    let (pointer, mask) = self.at(part, pointer, mask, row)?;
                    let arguments = [pointer.into(), mask, of_part.const_zero().into()];
                    let overload = [of_part.into(), pointer.get_type().into()];
                    let call = self.ir.intrinsic_call(self.shared.module, "llvm.masked.load", &overload, &arguments)?;
                    self.annotate_call(buffer, call, 0)?;
                    self.call_value(call)?.into_vector_value()
                }
            };
            let filled = loaded.first().map_or(part.count, |first: &VectorValue| first.get_type().get_size());
            let order: Vec<i64> =
                (0..filled).map(|lane| if lane < part.count { i64::from(lane) } else { -1 }).collect();
            loaded.push(if filled == part.count { value } else { self.ir.shuffle(value, &order)? });
        }
        self.joined(loaded, row.get_size())
    }

    /// Neighbouring elements, where the mask holds.
    pub(super) fn store_row(
        &self,
        buffer: TensorId,
        pointer: PointerValue<'c>,
        mask: Value<'c>,
        row: Value<'c>,
    ) -> Result<()> {
        let (row, reachable) = (row.into_vector_value(), reachable(mask.into_vector_value()));
        for part in self.parts(row.get_type(), buffer).into_iter().filter(|part| is_reached(*part, &reachable)) {
            let own =
                if part.count == row.get_type().get_size() { row } else { self.ir.shuffle(row, &part.lanes())? };
            let (pointer, mask) = self.at(part, pointer, mask, row.get_type())?;
            let overload = [own.get_type().into(), pointer.get_type().into()];
            let arguments = [own.into(), pointer.into(), mask];
            let call = self.ir.intrinsic_call(self.shared.module, "llvm.masked.store", &overload, &arguments)?;
            self.annotate_call(buffer, call, 1)?;
        }
        Ok(())
    }

    /// The parts of a row that registers hold; it is one where nothing is known of registers.
    fn parts(&self, row: VectorType<'c>, buffer: TensorId) -> Vec<Part> {
        let bits = match self.shared.processor {
            Processor::Cpu(target) => target.register_bits(),
            Processor::Gpu(_) => None,
        };
        let (width, element) = (row.get_size(), 8 * self.shared.nest.buffer(buffer).dtype.bytes() as u32);
        let count = bits.map_or(width, |bits| bits / element);
        // what is left over is a part of its own; its lanes are filled up where parts are joined
        let part = |first: u32| Part { first, count: count.min(width - first) };
        (0..width).step_by(count as usize).map(part).collect()
    }

    /// Where a part of a row begins, and its mask.
    fn at(
        &self,
        part: Part,
        pointer: PointerValue<'c>,
        mask: Value<'c>,
        row: VectorType<'c>,
    ) -> Result<(PointerValue<'c>, Value<'c>)> {
        if part.count == row.get_size() {
            return Ok((pointer, mask));
        }
        let first = self.ir.integer(Element::I64, i64::from(part.first));
        let pointer = self.ir.offset(row.get_element_type(), pointer, first)?;
        Ok((pointer, self.ir.shuffle(mask.into_vector_value(), &part.lanes())?.into()))
    }

    /// The first `width` lanes of vectors of one type, one behind the other.
    pub(super) fn joined(&self, mut parts: Vec<VectorValue<'c>>, width: u32) -> Result<Value<'c>> {
        parts.resize(parts.len().next_power_of_two(), parts[0].get_type().get_poison());
        while parts.len() > 1 {
            let order: Vec<i64> = (0..2 * i64::from(parts[0].get_type().get_size())).collect();
            let joined = parts.chunks(2).map(|pair| self.ir.shuffle_pair(pair[0], pair[1], &order));
            parts = joined.collect::<Result<_>>()?;
        }
        let order: Vec<i64> = (0..i64::from(width)).collect();
        Ok(if parts[0].get_type().get_size() == width { parts[0] } else { self.ir.shuffle(parts[0], &order)? }.into())
    }
}

fn is_reached(part: Part, reachable: &[bool]) -> bool {
    reachable.iter().skip(part.first as usize).take(part.count as usize).any(|lane| *lane)
}

/// By lane: whether the mask may hold there, as far as its constants say.
pub(super) fn reachable(mask: VectorValue<'_>) -> Vec<bool> {
    let width = mask.get_type().get_size();
    if let Some(and) = mask.as_instruction().filter(|it| it.get_opcode() == InstructionOpcode::And) {
        let operand = |at: u32| and.get_operand(at)?.value().filter(|value| value.is_vector_value());
        if let (Some(a), Some(b)) = (operand(0), operand(1)) {
            let (a, b) = (reachable(a.into_vector_value()), reachable(b.into_vector_value()));
            return a.into_iter().zip(b).map(|(a, b)| a && b).collect();
        }
    }
    if !mask.is_const() {
        return vec![true; width as usize];
    }
    let may_hold = |lane: u32| {
        // SAFETY: the mask is a constant vector; for a lane of it LLVM returns a constant of its element
        // type, or null for an expression that it does not take apart.
        let element = unsafe { LLVMGetAggregateElement(mask.as_value_ref(), lane) };
        if element.is_null() {
            return true;
        }
        // SAFETY: as above, and a mask holds integers of one bit.
        let element = unsafe { IntValue::new(element) };
        element.get_zero_extended_constant() != Some(0)
    };
    (0..width).map(may_hold).collect()
}
