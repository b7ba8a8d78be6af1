//! Dot products of short numbers, by the instruction that the processor has for them.

use inkwell::types::BasicTypeEnum;

use crate::codegen::emit::ir::{Element, Value, vector_type};
use crate::codegen::emit::{Binding, Emitter, Processor};
use crate::codegen::error::CodegenError;
use crate::nest::Loop;
use crate::nest::dot::{self, Operand, Product};
use crate::target::Dot;
use crate::workload::{DType, Interval};

type Result<T> = std::result::Result<T, CodegenError>;

impl<'c> Emitter<'_, 'c> {
    /// One instruction where the processor has it and the operands lie as it takes them; otherwise the steps
    /// are written out.
    pub(super) fn dot_product(&mut self, l: &Loop) -> Result<()> {
        let nest = self.shared.nest;
        if let (Processor::Cpu(target), Some(product), Some(lanes)) =
            (self.shared.processor, dot::product(nest, l), self.lanes)
        {
            let types = product.operands.map(|operand| operand.dtype);
            let groups = product.operands.map(|operand| self.group(&operand, l));
            let found = target.architecture.dot(types, lanes.width, &|name| target.has_feature(name));
            if let (Some(instruction), [Some(first), Some(second)]) = (found, groups)
                && self.moves_in_lanes(&product)
            {
                return self.dot_instruction(&product, l, instruction, [first, second]);
            }
        }
        self.written_out(l)
    }

    fn moves_in_lanes(&self, product: &Product<'_>) -> bool {
        self.lane_var().is_some_and(|lane| product.indices.iter().any(|index| index.mentions(lane)))
    }

    /// How the elements of an operand lie that the steps of each lane take: `None` where they are not
    /// neighbours.
    fn group(&self, operand: &Operand<'_>, l: &Loop) -> Option<Group> {
        let buffer = self.shared.nest.buffer(operand.buffer);
        let is_memory = !self.shared.slots.contains_key(&operand.buffer) && buffer.elements() > 0;
        let gathers = operand.indices.iter().any(crate::workload::Index::has_value);
        if operand.is_guarded || !is_memory || gathers || buffer.step(operand.indices, l.var) != Some(1) {
            return None;
        }
        match buffer.step(operand.indices, self.lane_var()?)? {
            0 => Some(Group::Same),
            step if step == l.extent() => Some(Group::Neighbours),
            _ => None,
        }
    }

    fn dot_instruction(
        &mut self,
        product: &Product<'_>,
        l: &Loop,
        (instruction, is_exchanged): (Dot, bool),
        groups: [Group; 2],
    ) -> Result<()> {
        self.bind(l.var, Binding::Constant(0), Interval::point(0))?;
        let mut operands = Vec::with_capacity(2);
        for (operand, group) in product.operands.iter().zip(groups) {
            operands.push(self.load_group(operand, group)?);
        }
        self.unbind(l.var);
        if is_exchanged {
            operands.reverse();
        }
        let sum = self.load(product.buffer, product.indices)?;
        let is_whole = product.operands[0].dtype != DType::BF16;
        let sum = if is_whole { self.convert(sum, Element::I32)? } else { sum };
        let overload = match instruction.is_overloaded {
            true => vec![sum.get_type(), self.short_type(product.operands[0].dtype, sum)?],
            false => Vec::new(),
        };
        let function = self.ir.declared(self.shared.module, instruction.intrinsic, &overload)?;
        let mut arguments = vec![sum];
        for (operand, wanted) in operands.into_iter().zip(function.get_type().get_param_types().into_iter().skip(1)) {
            let wanted = BasicTypeEnum::try_from(wanted)
                .map_err(|()| CodegenError::Internal(format!("{} takes no such operand", instruction.intrinsic)))?;
            arguments.push(self.ir.builder.build_bit_cast(operand, wanted, "")?);
        }
        let new = self.ir.intrinsic(self.shared.module, instruction.intrinsic, &overload, &arguments)?;
        self.store(product.buffer, product.indices, new)
    }

    /// Vectors of as many short numbers as fill a vector like `sum`.
    fn short_type(&self, dtype: DType, sum: Value<'c>) -> Result<BasicTypeEnum<'c>> {
        let context = self.shared.context;
        let lanes = match sum {
            Value::VectorValue(vector) => vector.get_type().get_size(),
            _ => 1,
        };
        Ok(match dtype {
            DType::BF16 => context.bf16_type().vec_type(2 * lanes).into(),
            _ => context.i8_type().vec_type(4 * lanes).into(),
        })
    }

    /// The steps of every lane, as a vector of 32-bit words.
    fn load_group(&mut self, operand: &Operand<'_>, group: Group) -> Result<Value<'c>> {
        let word = self.ir.scalar_type(Element::I32);
        let width = self.lanes.map_or(1, |lanes| lanes.width);
        let address = self.address(operand.buffer, operand.indices)?;
        match group {
            Group::Same => {
                let value = self.load_one(operand.buffer, &address, word)?;
                self.ir.splat(value, width)
            }
            Group::Neighbours => self.load_neighbours(operand.buffer, &address, vector_type(word, width)?),
        }
    }
}

/// How the steps of the lanes lie in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    /// All lanes take the same.
    Same,
    /// Those of a lane follow those of the lane before.
    Neighbours,
}
