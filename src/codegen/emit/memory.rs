//! Loads and stores in memory: single elements, rows of elements, and gathers.

use inkwell::IntPredicate;
use inkwell::types::{BasicTypeEnum, VectorType};
use inkwell::values::{AsValueRef, BasicValue, CallSiteValue, InstructionValue, IntValue, PointerValue, VectorValue};

use crate::codegen::abi::{DEVICE_ALIGNMENT, MAXIMAL_STRIDE, WORKSPACE_ALIGNMENT};
use crate::codegen::emit::ir::{Element, Value, vector_type};
use crate::codegen::emit::masked::reachable;
use crate::codegen::emit::{Binding, Emitter, Processor};
use crate::codegen::error::CodegenError;
use crate::nest::{Buffer, Scope};
use crate::workload::{Atom, Class, DType, Index, TensorId, gcd};

type Result<T> = std::result::Result<T, CodegenError>;

/// Where an access goes, in elements.
pub(super) struct Address<'c> {
    /// The element of lane 0, or of all lanes.
    pub(super) pointer: PointerValue<'c>,
    lanes: LaneOffsets<'c>,
    /// Bytes that the address of lane 0 is surely a multiple of.
    pub(super) alignment: u32,
}

/// How far each lane's element is from the address.
#[derive(Clone, Copy)]
enum LaneOffsets<'c> {
    /// All lanes access the same element.
    Same,
    /// Lane `n` accesses the n-th element.
    Contiguous,
    /// Lane `n` accesses the element `n · stride`, a stride of few elements.
    Strided(u32),
    /// A vector of distances in elements.
    Vector(Value<'c>),
}

impl<'c> Emitter<'_, 'c> {
    pub(super) fn load(&mut self, buffer: TensorId, indices: &[Index]) -> Result<Value<'c>> {
        let dtype = self.checked_access(buffer, indices)?;
        if let Some(slots) = self.shared.slots.get(&buffer).copied() {
            return self.load_slot(buffer, slots, indices);
        }
        if let Some(value) = self.loaded_ahead(buffer, indices) {
            return Ok(value);
        }
        if self.shared.nest.buffer(buffer).elements() == 0 {
            return Ok(self.ir.scalar_type(register_element(dtype)).const_zero());
        }
        let raw = self.load_bits(buffer, indices)?;
        self.loaded(raw, dtype)
    }

    /// Elements as they are in memory.
    pub(super) fn load_bits(&mut self, buffer: TensorId, indices: &[Index]) -> Result<Value<'c>> {
        let dtype = self.checked_access(buffer, indices)?;
        let address = self.address(buffer, indices)?;
        let memory = self.memory_type(dtype);
        Ok(match (address.lanes, self.lanes) {
            (LaneOffsets::Same, _) | (_, None) => self.load_one(buffer, &address, memory)?,
            (LaneOffsets::Contiguous, Some(lanes)) => {
                self.load_neighbours(buffer, &address, vector_type(memory, lanes.width)?)?
            }
            (LaneOffsets::Strided(stride), Some(_)) if dtype.bytes() >= 4 => {
                self.load_strided(buffer, address.pointer, stride, dtype)?
            }
            (offsets, Some(lanes)) => {
                let offsets = self.lane_offsets(offsets, lanes.width);
                let vector = vector_type(memory, lanes.width)?;
                let pointers = self.lane_pointers(memory, address.pointer, offsets)?;
                let mask = match self.active_lanes()? {
                    Some(mask) => mask,
                    None => self.ir.lane_mask(lanes.width, lanes.width),
                };
                let arguments = [pointers, mask, vector.const_zero().into()];
                let overload = [vector.into(), pointers.get_type()];
                let call = self.ir.intrinsic_call(self.shared.module, "llvm.masked.gather", &overload, &arguments)?;
                self.annotate_call(buffer, call, 0)?;
                self.call_value(call)?
            }
        })
    }

    /// What all lanes load, as a value of this type: it may be wider than the buffer's elements.
    pub(super) fn load_one(
        &mut self,
        buffer: TensorId,
        address: &Address<'c>,
        of: BasicTypeEnum<'c>,
    ) -> Result<Value<'c>> {
        let pointer = self.safe_pointer(buffer, address.pointer)?;
        let value = self.ir.builder.build_load(of, pointer, "")?;
        self.annotate_value(buffer, value, address.alignment)?;
        Ok(value)
    }

    /// Values that follow one another, one for each lane.
    pub(super) fn load_neighbours(
        &mut self,
        buffer: TensorId,
        address: &Address<'c>,
        of: VectorType<'c>,
    ) -> Result<Value<'c>> {
        match self.active_lanes()? {
            None => {
                let value = self.ir.builder.build_load(of, address.pointer, "")?;
                self.annotate_value(buffer, value, address.alignment)?;
                Ok(value)
            }
            Some(mask) => self.load_row(buffer, address.pointer, mask, of),
        }
    }

    pub(super) fn store(&mut self, buffer: TensorId, indices: &[Index], value: Value<'c>) -> Result<()> {
        let dtype = self.checked_access(buffer, indices)?;
        let value = self.convert(value, register_element(dtype))?;
        if let Some(slots) = self.shared.slots.get(&buffer).copied() {
            return self.store_slot(buffer, slots, indices, value);
        }
        let address = self.address(buffer, indices)?;
        let value = self.storable(value, dtype)?;
        self.store_bits(buffer, &address, value)
    }

    /// Whether a store of what is loaded takes its elements as they are: no short float is rounded again.
    pub(super) fn copies_bits(&self, to: TensorId, from: TensorId) -> bool {
        let buffers = &self.shared.nest.buffers;
        let [to, from] = [to, from].map(|buffer| {
            let known = buffers.get(buffer.0 as usize).filter(|known| known.elements() > 0)?;
            (!self.shared.slots.contains_key(&buffer)).then_some(known.dtype)
        });
        to == from && to.is_some_and(|dtype| dtype.bytes() == 2 && matches!(dtype.class(), Class::Float { .. }))
    }

    /// Stores elements as they are in memory: one, one for each lane, or neighbours outside of vector loops.
    pub(super) fn store_bits(&mut self, buffer: TensorId, address: &Address<'c>, value: Value<'c>) -> Result<()> {
        let memory = self.memory_type(self.shared.nest.buffer(buffer).dtype);
        match (address.lanes, self.lanes) {
            (LaneOffsets::Same, Some(_)) if value.is_vector_value() => {
                return Err(CodegenError::Malformed("lanes store different values into one element".into()));
            }
            (LaneOffsets::Same, _) | (_, None) => {
                let store = self.ir.builder.build_store(address.pointer, value)?;
                self.annotate(buffer, store, address.alignment)?;
            }
            (LaneOffsets::Contiguous, Some(lanes)) => {
                let value = self.ir.splat(value, lanes.width)?;
                match self.active_lanes()? {
                    None => {
                        let store = self.ir.builder.build_store(address.pointer, value)?;
                        self.annotate(buffer, store, address.alignment)?;
                    }
                    Some(mask) => {
                        self.store_row(buffer, address.pointer, mask, value)?;
                    }
                }
            }
            (offsets, Some(lanes)) => {
                let offsets = self.lane_offsets(offsets, lanes.width);
                let value = self.ir.splat(value, lanes.width)?;
                let pointers = self.lane_pointers(memory, address.pointer, offsets)?;
                let mask = match self.active_lanes()? {
                    Some(mask) => mask,
                    None => self.ir.lane_mask(lanes.width, lanes.width),
                };
                let overload = [value.get_type(), pointers.get_type()];
                let call = self.ir.intrinsic_call(
                    self.shared.module,
                    "llvm.masked.scatter",
                    &overload,
                    &[value, pointers, mask],
                )?;
                self.annotate_call(buffer, call, 1)?;
            }
        }
        Ok(())
    }

    /// ```text
    /// before: gather t[0], t[2], t[4], …
    /// after:  masked load of t[0], _, t[2], _, t[4], …, then a shuffle
    /// ```
    ///
    /// Only the lanes that are kept are accessed, so that nothing behind the last of them is.
    fn load_strided(
        &mut self,
        buffer: TensorId,
        pointer: PointerValue<'c>,
        stride: u32,
        dtype: DType,
    ) -> Result<Value<'c>> {
        let width = self.lanes.map_or(1, |lanes| lanes.width);
        let row = vector_type(self.memory_type(dtype), width * stride)?;
        let kept: Vec<i64> = (0..width).map(|lane| i64::from(lane * stride)).collect();
        // lane n of the mask, if any, spread to lane n · stride; the others come from a vector of none
        let order: Vec<i64> =
            (0..width * stride).map(|at| if at % stride == 0 { i64::from(at / stride) } else { -1 }).collect();
        let active = match self.active_lanes()? {
            Some(mask) => mask,
            None => self.ir.lane_mask(width, width),
        };
        let none = self.ir.lane_mask(0, width);
        let mask = self.widened(active, &order, Some(none))?;
        let of_active = reachable(active.into_vector_value());
        let is_reachable = |lane: &i64| usize::try_from(*lane).is_ok_and(|lane| of_active[lane]);
        let reachable: Vec<bool> = order.iter().map(is_reachable).collect();
        let value = self.load_lanes(buffer, pointer, mask, &reachable, row)?;
        Ok(self.ir.shuffle(value.into_vector_value(), &kept)?.into())
    }

    fn lane_offsets(&self, lanes: LaneOffsets<'c>, width: u32) -> Value<'c> {
        match lanes {
            LaneOffsets::Same => self.ir.ramp(Element::I64, width, 0),
            LaneOffsets::Contiguous => self.ir.ramp(Element::I64, width, 1),
            LaneOffsets::Strided(stride) => self.ir.ramp(Element::I64, width, i64::from(stride)),
            LaneOffsets::Vector(offsets) => offsets,
        }
    }

    fn checked_access(&self, buffer: TensorId, indices: &[Index]) -> Result<DType> {
        let Some(found) = self.shared.nest.buffers.get(buffer.0 as usize) else {
            return Err(CodegenError::Malformed(format!("an access to buffer {}, which does not exist", buffer.0)));
        };
        if indices.len() != found.shape.len() {
            let (name, given, rank) = (&found.name, indices.len(), found.shape.len());
            return Err(CodegenError::Malformed(format!("{name} has {rank} dimensions, an access {given}")));
        }
        Ok(found.dtype)
    }

    /// The same, so many elements farther.
    pub(super) fn behind(&self, buffer: TensorId, address: &Address<'c>, elements: i64) -> Result<Address<'c>> {
        let dtype = self.shared.nest.buffer(buffer).dtype;
        let distance = self.ir.integer(Element::I64, elements);
        let pointer = self.ir.offset(self.memory_type(dtype), address.pointer, distance)?;
        let bytes = elements.unsigned_abs() * dtype.bytes() as u64;
        let alignment = gcd(u64::from(address.alignment), bytes) as u32;
        Ok(Address { pointer, alignment, lanes: address.lanes })
    }

    /// Row-major, in elements. Gathered indices are clamped into their dimension, so that no input can lead
    /// outside of the buffer.
    pub(super) fn address(&mut self, buffer: TensorId, indices: &[Index]) -> Result<Address<'c>> {
        let found = self.shared.nest.buffer(buffer);
        let base = self.pointers[buffer.0 as usize]
            .ok_or_else(|| CodegenError::Internal(format!("{} has no address", found.name)))?;
        let mut flat = Index::constant(0);
        let mut gathered: Option<Value> = None;
        for (dimension, index) in indices.iter().enumerate() {
            let stride = self.stride_of(buffer, dimension)?;
            let (is_gathered, moves) = (index.has_value(), self.moves(index));
            if !is_gathered && (!moves || stride.product.is_none()) {
                let index = if index.is_affine() { index.clone() } else { index.simplify(&|var| self.range(var)) };
                flat = flat.plus(&self.strided(&index, stride)?);
                continue;
            }
            let value = if moves { self.lane_index(index)? } else { self.scalar_index(index)? };
            let value = self.convert(value, Element::I64)?;
            let value = if is_gathered { self.clamp(value, &found.extent(dimension))? } else { value };
            let by = self.stride_value(stride)?;
            let part = self.ir.mul(value, self.shaped_scalar(by, value)?)?;
            gathered = Some(match gathered {
                Some(sum) => self.ir.add(sum, part)?,
                None => part,
            });
        }
        let (moving, same) = self.split_lane_terms(&flat.join_divisions());
        let element = self.memory_type(found.dtype);
        let apart = if gathered.is_some() { 1 } else { self.common_step(&same) };
        let alignment = self.alignment(found, apart);
        let terms = self.terms(&same)?;
        let mut pointer = self.pointer_to(buffer, element, base, &terms)?;
        let mut vector = None;
        match gathered {
            Some(offsets) if offsets.is_vector_value() => vector = Some(offsets),
            Some(offset) => pointer = self.ir.offset(element, pointer, offset)?,
            None => {}
        }
        // constants last: they become displacements
        pointer = self.ir.offset(element, pointer, self.ir.integer(Element::I64, terms.constant))?;
        if let (None, [(Atom::Var(_), stride @ 1..=MAXIMAL_STRIDE)]) = (vector, moving.as_slice()) {
            let lanes = if *stride == 1 { LaneOffsets::Contiguous } else { LaneOffsets::Strided(*stride as u32) };
            return Ok(Address { pointer, lanes, alignment });
        }
        if !moving.is_empty() {
            let index = moving
                .into_iter()
                .fold(Index::constant(0), |sum, (atom, coefficient)| sum.plus(&Index::atom(atom).times(coefficient)));
            let offsets = self.lane_index(&index)?;
            vector = Some(match vector {
                Some(sum) => {
                    let wide = self.convert(offsets, Element::I64)?;
                    self.ir.add(sum, wide)?
                }
                None => offsets,
            });
        }
        Ok(Address { pointer, lanes: vector.map_or(LaneOffsets::Same, LaneOffsets::Vector), alignment })
    }

    /// A number of elements that an index is surely a multiple of; 0 where it is 0.
    fn common_step(&self, index: &Index) -> u64 {
        let mut constant = index.offset();
        let mut step = 0;
        for (atom, coefficient) in index.terms() {
            match atom {
                Atom::Var(var) if let Ok(Binding::Constant(value)) = self.binding(*var) => {
                    constant = constant.wrapping_add(value.wrapping_mul(*coefficient));
                }
                _ => step = gcd(step, coefficient.unsigned_abs()),
            }
        }
        gcd(step, constant.unsigned_abs())
    }

    /// Of an element so many elements from its buffer's start.
    fn alignment(&self, buffer: &Buffer, elements: u64) -> u32 {
        let element = buffer.dtype.bytes() as u64;
        let start = match (self.shared.processor, buffer.scope) {
            (Processor::Cpu(_), _) => element.min(WORKSPACE_ALIGNMENT as u64),
            (Processor::Gpu(_), Scope::Argument(_)) => self.shared.argument_alignment.max(element),
            (Processor::Gpu(_), _) => DEVICE_ALIGNMENT,
        };
        u32::try_from(gcd(start, elements.saturating_mul(element))).unwrap_or(1)
    }

    /// The address of an access outside of vector loops.
    pub(super) fn element_pointer(&mut self, buffer: TensorId, indices: &[Index]) -> Result<PointerValue<'c>> {
        Ok(self.address(buffer, indices)?.pointer)
    }

    /// As [`Emitter::annotate`], for an access that is a call with the address as its `argument`.
    pub(super) fn annotate_call(&self, buffer: TensorId, call: CallSiteValue<'c>, argument: u32) -> Result<()> {
        self.ir.align_argument(call, argument, self.shared.nest.buffer(buffer).dtype.bytes() as u64);
        let value = call.try_as_basic_value();
        self.annotate_scopes(buffer, value.instruction().or(value.basic().and_then(|v| v.as_instruction_value())))
    }

    /// The nearest number that is an index of a dimension of this extent.
    fn clamp(&mut self, value: Value<'c>, extent: &Index) -> Result<Value<'c>> {
        let zero = self.ir.integer(Element::I64, 0);
        let high = match extent.as_constant() {
            Some(extent) => self.ir.integer(Element::I64, (extent - 1).max(0)),
            None => {
                let last = self.scalar_index(&extent.clone().plus_constant(-1))?;
                self.shaped_scalar(last, value)?
            }
        };
        let low = self.ir.icmp(IntPredicate::SGT, value, zero)?;
        let value = self.ir.select(low, value, zero)?;
        let below = self.ir.icmp(IntPredicate::SLT, value, high)?;
        self.ir.select(below, value, high)
    }

    fn lane_pointers(
        &self,
        element: BasicTypeEnum<'c>,
        base: PointerValue<'c>,
        offsets: Value<'c>,
    ) -> Result<Value<'c>> {
        let offsets = self.convert(offsets, Element::I64)?.into_vector_value();
        // SAFETY: only builds the instruction, and wraps its operand and result. LLVM's instruction takes a
        // vector of offsets and gives a vector of pointers then; inkwell's method has types for scalars only,
        // but hands both through
        let pointers = unsafe {
            let offsets = IntValue::new(offsets.as_value_ref());
            VectorValue::new(self.ir.builder.build_gep(element, base, &[offsets], "")?.as_value_ref())
        };
        Ok(pointers.into())
    }

    /// Under a predicate, an address that may be read wherever the predicate does not hold: the buffer's
    /// first element, or in shared memory, where another thread may be writing that one, bytes that nobody
    /// writes. A buffer that may have no element is spared: the kernel's arguments can be read, too.
    fn safe_pointer(&self, buffer: TensorId, pointer: PointerValue<'c>) -> Result<PointerValue<'c>> {
        let idle = self.block.idle.filter(|_| self.shared.nest.buffer(buffer).scope == Scope::BlockShared);
        let known = self.shared.nest.buffer(buffer);
        let may_be_empty =
            |(_, extent): (usize, &Index)| extent.range(&|var| self.range(var)).is_none_or(|r| r.low < 1);
        let own = match known.extents.iter().any(may_be_empty) {
            true => Some(self.frame.arguments),
            false => self.pointers[buffer.0 as usize],
        };
        let (Some(predicate), Some(base)) = (self.predicate, idle.or(own)) else {
            return Ok(pointer);
        };
        let any = match predicate {
            Value::VectorValue(mask) => self.ir.intrinsic(
                self.shared.module,
                "llvm.vector.reduce.or",
                &[mask.get_type().into()],
                &[predicate],
            )?,
            scalar => scalar,
        };
        Ok(self.ir.select(any, pointer.into(), base.into())?.into_pointer_value())
    }

    /// The mask of lanes that take part in an access; `None` where all do.
    pub(super) fn active_lanes(&self) -> Result<Option<Value<'c>>> {
        let Some(lanes) = self.lanes else { return Ok(None) };
        let tail = (lanes.extent < lanes.width).then(|| self.ir.lane_mask(lanes.extent, lanes.width));
        Ok(match (tail, self.predicate) {
            (None, None) => None,
            (Some(tail), None) => Some(tail),
            (None, Some(predicate)) => Some(self.ir.splat(predicate, lanes.width)?),
            (Some(tail), Some(predicate)) => Some(self.ir.and(predicate, tail)?),
        })
    }

    pub(super) fn narrow_predicate(&mut self, condition: Value<'c>) -> Result<()> {
        self.predicate = Some(match self.predicate {
            Some(outer) => self.ir.and(outer, condition)?,
            None => condition,
        });
        Ok(())
    }

    // register slots

    pub(super) fn memory_type(&self, dtype: DType) -> BasicTypeEnum<'c> {
        let context = self.shared.context;
        match (dtype.class(), dtype.bytes()) {
            (Class::Float { .. }, 8) => context.f64_type().into(),
            (Class::Float { .. }, 4) => context.f32_type().into(),
            // short floats as bits: see `half`
            (_, 1) => context.i8_type().into(),
            (_, 2) => context.i16_type().into(),
            (_, 4) => context.i32_type().into(),
            _ => context.i64_type().into(),
        }
    }

    fn loaded(&self, value: Value<'c>, dtype: DType) -> Result<Value<'c>> {
        match dtype.class() {
            _ if dtype.is_literal() || dtype == DType::F64 => Ok(value),
            Class::Float { .. } => self.widen_half(value, dtype),
            Class::Boolean => {
                let zero = value.get_type().const_zero();
                self.ir.icmp(IntPredicate::NE, value, zero)
            }
            Class::Unsigned => self.ir.zero_extend(value, self.ir.type_like(Element::I64, value)),
            Class::Signed => self.ir.sign_extend(value, self.ir.type_like(Element::I64, value)),
        }
    }

    pub(super) fn storable(&self, value: Value<'c>, dtype: DType) -> Result<Value<'c>> {
        let memory = self.shaped_like(self.memory_type(dtype), value)?;
        match dtype.class() {
            _ if dtype.is_literal() || dtype == DType::F64 => Ok(value),
            Class::Float { .. } => self.narrow_half(value, dtype),
            Class::Boolean => self.ir.zero_extend(value, memory),
            Class::Unsigned | Class::Signed => self.ir.truncate(value, memory),
        }
    }

    /// The bits of a value as another type of as many bits: by way of what both are in memory.
    pub(super) fn bits(&self, from: DType, to: DType, x: Value<'c>) -> Result<Value<'c>> {
        let stored = self.storable(self.convert(x, register_element(from))?, from)?;
        let memory = self.shaped_like(self.memory_type(to), stored)?;
        self.loaded(self.ir.builder.build_bit_cast(stored, memory, "")?, to)
    }

    pub(super) fn call_value(&self, call: inkwell::values::CallSiteValue<'c>) -> Result<Value<'c>> {
        call.try_as_basic_value().basic().ok_or_else(|| CodegenError::Internal("a load without a value".into()))
    }

    fn annotate_value(&self, buffer: TensorId, value: Value<'c>, alignment: u32) -> Result<()> {
        match value.as_instruction_value() {
            Some(instruction) => self.annotate(buffer, instruction, alignment),
            None => Ok(()),
        }
    }

    /// What is known of the address; and buffers do not overlap.
    fn annotate(&self, buffer: TensorId, instruction: InstructionValue<'c>, alignment: u32) -> Result<()> {
        instruction.set_alignment(alignment).map_err(|e| CodegenError::Internal(format!("alignment: {e}")))?;
        self.annotate_scopes(buffer, Some(instruction))
    }

    fn annotate_scopes(&self, buffer: TensorId, instruction: Option<InstructionValue<'c>>) -> Result<()> {
        let Some(instruction) = instruction else { return Ok(()) };
        let scopes = &self.shared.scopes;
        let number = buffer.0 as usize;
        for (kind, list) in [("alias.scope", scopes.own[number]), ("noalias", scopes.others[number])] {
            let kind = self.shared.context.get_kind_id(kind);
            instruction.set_metadata(list, kind).map_err(|e| CodegenError::Internal(format!("metadata: {e}")))?;
        }
        Ok(())
    }
}

/// How values of an element type are computed with.
pub(super) fn register_element(dtype: DType) -> Element {
    match dtype.class() {
        Class::Float { .. } if dtype == DType::F64 => Element::F64,
        Class::Float { .. } => Element::F32,
        Class::Boolean => Element::I1,
        Class::Signed | Class::Unsigned => Element::I64,
    }
}
