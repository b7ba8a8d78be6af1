//! Dot products of short numbers, by the instruction that the processor has for them.

use inkwell::intrinsics::Intrinsic;
use inkwell::types::BasicTypeEnum;

use crate::codegen::emit::ir::{Element, Value, vector_type};
use crate::codegen::emit::{Binding, Emitter, Processor};
use crate::codegen::error::CodegenError;
use crate::nest::Loop;
use crate::nest::dot::{self, Operand, Product};
use crate::target::{Architecture, Cpu};
use crate::workload::{DType, Interval};

type Result<T> = std::result::Result<T, CodegenError>;

/// An instruction for dot products: LLVM's name of it, whether that takes the types of its result and its
/// operands, and whether its operands are exchanged.
struct Instruction {
    name: &'static str,
    is_overloaded: bool,
    is_exchanged: bool,
}

/// The instruction for operands of such types, with so many lanes of 32 bits.
fn instruction(target: &Cpu, operands: [DType; 2], lanes: u32) -> Option<Instruction> {
    let has = |name: &str| target.has_feature(name);
    let x86 = |name| Some(Instruction { name, is_overloaded: false, is_exchanged: false });
    let exchanged = |found: Option<Instruction>| found.map(|found| Instruction { is_exchanged: true, ..found });
    match (target.architecture, operands, lanes) {
        (Architecture::X86_64, [DType::BF16, DType::BF16], _) if has("avx512bf16") => match lanes {
            16 => x86("llvm.x86.avx512bf16.dpbf16ps.512"),
            8 if has("avx512vl") => x86("llvm.x86.avx512bf16.dpbf16ps.256"),
            4 if has("avx512vl") => x86("llvm.x86.avx512bf16.dpbf16ps.128"),
            _ => None,
        },
        (Architecture::X86_64, [DType::U8, DType::I8], _) => match lanes {
            16 if has("avx512vnni") => x86("llvm.x86.avx512.vpdpbusd.512"),
            8 if has("avxvnni") || has("avx512vnni") && has("avx512vl") => x86("llvm.x86.avx512.vpdpbusd.256"),
            4 if has("avxvnni") || has("avx512vnni") && has("avx512vl") => x86("llvm.x86.avx512.vpdpbusd.128"),
            _ => None,
        },
        (Architecture::X86_64, [DType::I8, DType::U8], _) => {
            exchanged(instruction(target, [DType::U8, DType::I8], lanes))
        }
        (Architecture::Aarch64, _, 4) => {
            let neon = |name| Some(Instruction { name, is_overloaded: true, is_exchanged: false });
            match operands {
                [DType::BF16, DType::BF16] if has("bf16") => neon("llvm.aarch64.neon.bfdot"),
                [DType::U8, DType::U8] if has("dotprod") => neon("llvm.aarch64.neon.udot"),
                [DType::I8, DType::I8] if has("dotprod") => neon("llvm.aarch64.neon.sdot"),
                [DType::U8, DType::I8] if has("i8mm") => neon("llvm.aarch64.neon.usdot"),
                [DType::I8, DType::U8] if has("i8mm") => exchanged(neon("llvm.aarch64.neon.usdot")),
                _ => None,
            }
        }
        _ => None,
    }
}

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
            if let (Some(instruction), [Some(first), Some(second)]) = (instruction(target, types, lanes.width), groups)
                && self.moves_in_lanes(&product)
            {
                return self.dot_instruction(&product, l, &instruction, [first, second]);
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
        if !is_memory || gathers || buffer.step(operand.indices, l.var) != Some(1) {
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
        instruction: &Instruction,
        groups: [Group; 2],
    ) -> Result<()> {
        self.bind(l.var, Binding::Constant(0), Interval::point(0))?;
        let mut operands = Vec::with_capacity(2);
        for (operand, group) in product.operands.iter().zip(groups) {
            operands.push(self.load_group(operand, group)?);
        }
        self.unbind(l.var);
        if instruction.is_exchanged {
            operands.reverse();
        }
        let sum = self.load(product.buffer, product.indices)?;
        let is_whole = product.operands[0].dtype != DType::BF16;
        let sum = if is_whole { self.convert(sum, Element::I32)? } else { sum };
        let overload = match instruction.is_overloaded {
            true => vec![sum.get_type(), self.short_type(product.operands[0].dtype, sum)?],
            false => Vec::new(),
        };
        let missing = || CodegenError::Internal(format!("LLVM has no {}", instruction.name));
        let function = Intrinsic::find(instruction.name)
            .and_then(|found| found.get_declaration(self.shared.module, &overload))
            .ok_or_else(missing)?;
        let mut arguments = vec![sum];
        for (operand, wanted) in operands.into_iter().zip(function.get_type().get_param_types().into_iter().skip(1)) {
            let wanted = BasicTypeEnum::try_from(wanted).map_err(|()| missing())?;
            arguments.push(self.ir.builder.build_bit_cast(operand, wanted, "")?);
        }
        let new = self.ir.intrinsic(self.shared.module, instruction.name, &overload, &arguments)?;
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
                let value = self.load_word(operand.buffer, &address, word)?;
                self.ir.splat(value, width)
            }
            Group::Neighbours => self.load_words(operand.buffer, &address, vector_type(word, width)?),
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
