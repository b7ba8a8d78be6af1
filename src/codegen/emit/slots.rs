//! Register slots: buffers whose elements are variables of the function, which LLVM turns into values.

use inkwell::basic_block::BasicBlock;
use inkwell::types::{BasicTypeEnum, VectorType};
use inkwell::values::PointerValue;

use crate::codegen::emit::Emitter;
use crate::codegen::emit::ir::{Element, Value, shaped};
use crate::codegen::emit::memory::register_element;
use crate::codegen::error::CodegenError;
use crate::codegen::registers::Slots;
use crate::workload::{DType, Index, TensorId};

type Result<T> = std::result::Result<T, CodegenError>;

/// What a slot holds: sums of 32 bits are no longer than they have to be, since registers are few.
fn slot_element(dtype: DType) -> Element {
    if dtype == DType::I32 { Element::I32 } else { register_element(dtype) }
}

/// A part of a register buffer.
struct Place<'c> {
    pointer: PointerValue<'c>,
    slot_type: BasicTypeEnum<'c>,
    /// A single lane of the slot; `None` for the whole.
    element: Option<i64>,
}

impl<'c> Emitter<'_, 'c> {
    pub(super) fn load_slot(&mut self, buffer: TensorId, slots: Slots, indices: &[Index]) -> Result<Value<'c>> {
        let value = self.load_place(buffer, slots, indices)?;
        self.convert(value, register_element(self.shared.nest.buffer(buffer).dtype))
    }

    /// As it is in the slot.
    fn load_place(&mut self, buffer: TensorId, slots: Slots, indices: &[Index]) -> Result<Value<'c>> {
        let place = self.slot(buffer, slots, indices)?;
        let slot = self.ir.builder.build_load(place.slot_type, place.pointer, "")?;
        let Value::VectorValue(vector) = slot else { return Ok(slot) };
        match (place.element, self.lanes) {
            (None, Some(lanes)) if lanes.width != vector.get_type().get_size() => self.fitted(slot, lanes.width, None),
            (None, _) => Ok(slot),
            (Some(element), _) => {
                let element = self.shared.context.i64_type().const_int(element as u64, false);
                Ok(self.ir.builder.build_extract_element(vector, element, "")?)
            }
        }
    }

    pub(super) fn store_slot(
        &mut self,
        buffer: TensorId,
        slots: Slots,
        indices: &[Index],
        value: Value<'c>,
    ) -> Result<()> {
        let value = self.convert(value, slot_element(self.shared.nest.buffer(buffer).dtype))?;
        let place = self.slot(buffer, slots, indices)?;
        let width = match place.slot_type {
            BasicTypeEnum::VectorType(vector) => vector.get_size(),
            _ => {
                if value.is_vector_value() {
                    return Err(CodegenError::Malformed("lanes store different values into one register".into()));
                }
                self.ir.builder.build_store(place.pointer, value)?;
                return Ok(());
            }
        };
        let new = match (place.element, self.lanes) {
            (Some(element), _) => {
                let old = self.ir.builder.build_load(place.slot_type, place.pointer, "")?.into_vector_value();
                let element = self.shared.context.i64_type().const_int(element as u64, false);
                self.ir.builder.build_insert_element(old, value, element, "")?.into()
            }
            (None, lanes) => {
                let lanes =
                    lanes.ok_or_else(|| CodegenError::Internal("a vector store outside of a vector loop".into()))?;
                let mut value = self.ir.splat(value, lanes.width)?;
                let mut mask = self.active_lanes()?;
                if lanes.width != width {
                    value = self.fitted(value, width, None)?;
                    let all = || (lanes.width < width).then(|| self.ir.lane_mask(lanes.width, lanes.width));
                    let none = self.ir.lane_mask(0, lanes.width);
                    mask = match mask.or_else(all) {
                        Some(mask) => Some(self.fitted(mask, width, Some(none))?),
                        None => None,
                    };
                }
                match mask {
                    None => value,
                    Some(mask) => {
                        let old = self.ir.builder.build_load(place.slot_type, place.pointer, "")?;
                        self.ir.select(mask, value, old)?
                    }
                }
            }
        };
        self.ir.builder.build_store(place.pointer, new)?;
        Ok(())
    }

    /// The first lanes of a vector, or all of them and what is missing from `fill`, undefined without it.
    fn fitted(&self, value: Value<'c>, width: u32, fill: Option<Value<'c>>) -> Result<Value<'c>> {
        let given = i64::from(value.into_vector_value().get_type().get_size());
        let order: Vec<i64> = (0..i64::from(width)).map(|lane| if lane < given { lane } else { -1 }).collect();
        self.widened(value, &order, fill)
    }

    /// Spreads a vector over more lanes; lanes of `order` that are negative come from `fill`, or are
    /// undefined.
    pub(super) fn widened(&self, value: Value<'c>, order: &[i64], fill: Option<Value<'c>>) -> Result<Value<'c>> {
        let vector = value.into_vector_value();
        let width = u64::from(vector.get_type().get_size());
        let i32_type = self.shared.context.i32_type();
        let order: Vec<_> = order
            .iter()
            .map(|lane| match (u64::try_from(*lane), fill) {
                (Ok(lane), _) => i32_type.const_int(lane, false),
                (Err(_), Some(_)) => i32_type.const_int(width, false),
                (Err(_), None) => i32_type.get_poison(),
            })
            .collect();
        let fill = fill.map_or(vector.get_type().get_poison(), Value::into_vector_value);
        let order = VectorType::const_vector(&order);
        Ok(self.ir.builder.build_shuffle_vector(vector, fill, order, "")?.into())
    }

    fn slot(&mut self, buffer: TensorId, slots: Slots, indices: &[Index]) -> Result<Place<'c>> {
        let found = self.shared.nest.buffer(buffer);
        let (shape, scalar) = (found.shape.clone(), self.ir.scalar_type(slot_element(found.dtype)));
        let name = found.name.clone();
        let mut number = 0;
        let mut element = None;
        let mut lanes = slots.chunk;
        for (dimension, (index, extent)) in indices.iter().zip(&shape).enumerate() {
            let (_, same) = self.split_lane_terms(index);
            let (rest, offset) = self.scalar_terms(&same)?;
            if rest.is_some() || offset < 0 || offset >= *extent {
                return Err(CodegenError::Malformed(format!(
                    "{name} is a register, but accessed at [{offset}] of {extent}"
                )));
            }
            if slots.dimension == Some(dimension) {
                number = number * ((extent + slots.chunk - 1) / slots.chunk) + offset / slots.chunk;
                element = (!self.moves(index)).then_some(offset % slots.chunk);
                // the last slot is no wider than what is left: half a register, where machines have them
                lanes = lanes.min(extent - offset / slots.chunk * slots.chunk);
            } else {
                number = number * extent + offset;
            }
        }
        let width = slots.dimension.map(|_| (lanes as u32).next_power_of_two());
        let slot_type = shaped(scalar, width)?;
        let pointer = match self.slots.get(&(buffer, number)) {
            Some(pointer) => *pointer,
            None => {
                let pointer = self.entry_variable(slot_type, &format!("{name}.{number}"))?;
                self.slots.insert((buffer, number), pointer);
                pointer
            }
        };
        Ok(Place { pointer, slot_type, element })
    }

    /// A variable of this function, which `sroa` turns into values.
    pub(super) fn entry_variable(&mut self, of: BasicTypeEnum<'c>, name: &str) -> Result<PointerValue<'c>> {
        let here: Option<BasicBlock> = self.ir.builder.get_insert_block();
        self.ir.builder.position_at_end(self.frame.entry);
        let pointer = self.ir.builder.build_alloca(of, name)?;
        if let Some(here) = here {
            self.ir.builder.position_at_end(here);
        }
        Ok(pointer)
    }
}
