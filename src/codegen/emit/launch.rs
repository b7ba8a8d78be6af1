//! Kernels for GPUs: a function for each grid of blocks, in which every thread finds its own place.
//!
//! A kernel is `void NAME(argument, …, workspace)`, all of them addresses in the device's memory. Blocks and
//! threads are numbered in one dimension; the variables of their loops follow from the numbers. Private
//! buffers share the block's dynamic shared memory.

use std::collections::{BTreeSet, HashMap};

use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::context::Context;
use inkwell::module::{Linkage, Module};
use inkwell::types::BasicMetadataTypeEnum;
use inkwell::values::PointerValue;
use inkwell::{AddressSpace, IntPredicate};

use super::hoist::LoopLevel;
use super::ir::{Element, Value};
use super::processor::Processor;
use super::wide::has_wide_products;
use super::{Binding, Emitter, Phase, Shared, alias_scopes};
use crate::codegen::abi::{DEVICE_ALIGNMENT, WORKSPACE_ALIGNMENT};
use crate::codegen::error::CodegenError;
use crate::codegen::gpu::barriers::plan;
use crate::codegen::gpu::matrices::deal_out;
use crate::codegen::gpu::phases::own_registers;
use crate::codegen::layout::Layout;
use crate::codegen::legalize::legalize;
use crate::codegen::registers;
use crate::nest::rewrite::{for_each_expr, for_each_stmt};
use crate::nest::{Loop, LoopKind, Nest, Scope, Stmt};
use crate::target::gpu::Gpu;
use crate::workload::{DType, Expr, Interval, TensorId};

type Result<T> = std::result::Result<T, CodegenError>;

/// LLVM's number of the calling convention of kernels.
const PTX_KERNEL: u32 = 71;
/// LLVM's numbers of address spaces.
const GLOBAL: u16 = 1;
const SHARED: u16 = 3;
/// The most blocks of a grid in its first dimension.
const MAX_BLOCKS: i64 = i32::MAX as i64;

/// A grid of blocks to start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Launch {
    /// Of the function.
    pub symbol: String,
    pub blocks: u32,
    /// Of each block.
    pub threads: u32,
    /// Dynamic shared memory of each block.
    pub shared_bytes: u32,
}

/// Adds a function for each grid of a nest's body, in their order. [`Nest::setup`] is not among them: it runs
/// once, on the host.
///
/// # Errors
/// As [`super::kernel`], and [`CodegenError::Malformed`] for a body that is not a list of block loops;
/// [`CodegenError::Limit`] for more blocks or shared memory than the GPU has.
pub fn launches<'c>(
    context: &'c Context,
    module: &Module<'c>,
    symbol: &str,
    nest: &Nest,
    gpu: &Gpu,
    argument_alignment: u64,
) -> Result<Vec<Launch>> {
    if nest.buffers.iter().any(|buffer| buffer.dtype == DType::F64) {
        return Err(CodegenError::Unsupported("f64 on a GPU; only CPUs compute in it".into()));
    }
    if !nest.parameters.is_empty() {
        return Err(CodegenError::Unsupported("run-time extents on a GPU; only CPUs take them".into()));
    }
    let nest = own_registers(deal_out(nest.clone())?)?;
    let layout = Layout::new(&nest)?;
    let shape = |id: TensorId| nest.buffers.get(id.0 as usize).map_or(Vec::new(), |b| b.shape.clone());
    let body = legalize(&nest.body, &shape);
    let slots = registers::plan(&nest, &[&body]);
    let mut launches = Vec::new();
    for (number, statement) in body.iter().enumerate() {
        let (blocks, inside) = match statement {
            Stmt::Loop(l) if l.kind == LoopKind::Block => nested(l, LoopKind::Block),
            _ => return Err(CodegenError::Malformed("a statement outside of all block loops".into())),
        };
        let shared = Shared {
            context,
            module,
            nest: &nest,
            processor: Processor::Gpu(gpu),
            argument_alignment,
            layout: &layout,
            slots: &slots,
            prefetches: HashMap::new(),
            scopes: alias_scopes(context, &nest),
            plan: plan(&nest, inside)?,
            regions: HashMap::new(),
            threads: most_threads(inside),
            has_wide_products: has_wide_products(inside),
        };
        let places = SharedMemory::of(&nest, inside, gpu.shared_bytes_per_block as usize);
        let launch = Launch {
            symbol: format!("{symbol}_{number}"),
            blocks: u32::try_from(together(&blocks))
                .ok()
                .filter(|blocks| (1..=MAX_BLOCKS).contains(&i64::from(*blocks)))
                .ok_or_else(|| CodegenError::Limit(format!("more than {MAX_BLOCKS} blocks, or none")))?,
            threads: u32::try_from(shared.threads).unwrap_or(u32::MAX),
            shared_bytes: u32::try_from(places.bytes).unwrap_or(u32::MAX),
        };
        if launch.shared_bytes > gpu.shared_bytes_per_block {
            let (asked, most) = (places.bytes, gpu.shared_bytes_per_block);
            return Err(CodegenError::Limit(format!("{asked} bytes of shared memory for a block, of {most}")));
        }
        function(&shared, &launch, &places, &blocks, inside)?;
        launches.push(launch);
    }
    Ok(launches)
}

/// Loops of one kind around one another, and what the innermost holds.
fn nested(outermost: &Loop, kind: LoopKind) -> (Vec<&Loop>, &[Stmt]) {
    let mut loops = vec![outermost];
    let mut inside = &outermost.body[..];
    while let [Stmt::Loop(l)] = inside
        && l.kind == kind
    {
        loops.push(l);
        inside = &l.body;
    }
    (loops, inside)
}

/// How many iterations they have together.
fn together(loops: &[&Loop]) -> i64 {
    loops.iter().map(|l| l.extent()).fold(1, i64::saturating_mul)
}

/// The threads of the largest phase.
fn most_threads(statements: &[Stmt]) -> i64 {
    let most = statements.iter().map(|statement| match statement {
        Stmt::Loop(l) if l.kind == LoopKind::Thread => together(&nested(l, LoopKind::Thread).0),
        Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => most_threads(body),
        Stmt::Store { .. } | Stmt::Accumulate { .. } => 1,
    });
    most.max().unwrap_or(1)
}

/// Where the private buffers of one grid lie in shared memory.
struct SharedMemory {
    /// Bytes from its start.
    offsets: HashMap<TensorId, usize>,
    /// Bytes that nobody writes, where there is room for them: what is read where a guard does not hold.
    idle: Option<usize>,
    bytes: usize,
}

impl SharedMemory {
    fn of(nest: &Nest, statements: &[Stmt], room: usize) -> SharedMemory {
        let mut used = BTreeSet::new();
        for_each_stmt(statements, &mut |statement| {
            if let Stmt::Store { buffer, .. } | Stmt::Accumulate { buffer, .. } = statement {
                used.insert(*buffer);
            }
        });
        for_each_expr(statements, &mut |value| {
            value.for_each_load(&mut |buffer, _| {
                used.insert(buffer);
            });
        });
        let mut is_guarded = false;
        for_each_expr(statements, &mut |value| is_guarded |= guards_private(nest, value));
        let mut places = SharedMemory { offsets: HashMap::new(), idle: None, bytes: 0 };
        for buffer in used.into_iter().filter(|buffer| nest.buffer(*buffer).scope == Scope::BlockShared) {
            places.offsets.insert(buffer, places.bytes);
            places.bytes += nest.buffer(buffer).bytes().next_multiple_of(WORKSPACE_ALIGNMENT);
        }
        let with_idle = places.bytes + DEVICE_ALIGNMENT as usize;
        if is_guarded && with_idle <= room {
            places.idle = Some(places.bytes);
            places.bytes = with_idle;
        }
        places
    }
}

/// Whether a value reads shared memory under a condition.
fn guards_private(nest: &Nest, value: &Expr) -> bool {
    let mut reads = false;
    if let Expr::Guard { inside, .. } = value {
        inside.for_each_load(&mut |buffer, _| reads |= nest.buffer(buffer).scope == Scope::BlockShared);
    }
    reads || value.children().any(|child| guards_private(nest, child))
}

fn function<'c>(
    shared: &Shared<'_, 'c>,
    launch: &Launch,
    places: &SharedMemory,
    blocks: &[&Loop],
    inside: &[Stmt],
) -> Result<()> {
    let context = shared.context;
    let arguments = shared.nest.arguments();
    let address: BasicMetadataTypeEnum = context.ptr_type(AddressSpace::from(GLOBAL)).into();
    let function = shared.add_function(&launch.symbol, &vec![address; arguments.len() + 1], Linkage::External);
    function.set_call_conventions(PTX_KERNEL);
    let most = context.create_string_attribute("nvvm.maxntid", &launch.threads.to_string());
    function.add_attribute(AttributeLoc::Function, most);
    for parameter in 0..=arguments.len() as u32 {
        let is_workspace = parameter as usize == arguments.len();
        let alignment = if is_workspace { DEVICE_ALIGNMENT } else { shared.argument_alignment };
        for (name, value) in [("noalias", 0), ("align", alignment)] {
            let kind = Attribute::get_named_enum_kind_id(name);
            function.add_attribute(AttributeLoc::Param(parameter), context.create_enum_attribute(kind, value));
        }
    }
    let missing = || CodegenError::Internal("a function without its parameters".into());
    let parameters: Vec<PointerValue> = function.get_param_iter().map(|p| p.into_pointer_value()).collect();
    let (workspace, given) = parameters.split_last().ok_or_else(missing)?;
    let mut emitter = Emitter::new(shared, function, *workspace, *workspace);
    for (id, pointer) in arguments.into_iter().zip(given) {
        emitter.pointers[id.0 as usize] = Some(*pointer);
    }
    emitter.place_scratch(*workspace, places)?;
    emitter.materialize_strides()?;
    let block = emitter.special_register("llvm.nvvm.read.ptx.sreg.ctaid.x")?;
    let extents: Vec<i64> = blocks.iter().map(|l| l.extent()).collect();
    let numbers = emitter.digits(block, &extents)?;
    emitter.levels = vec![LoopLevel::new(emitter.frame.start)];
    for (l, number) in blocks.iter().zip(numbers) {
        emitter.bind(l.var, Binding::Scalar(number, 0), Interval::below(l.extent()))?;
    }
    emitter.statements(inside)?;
    if shared.plan.drains {
        emitter.wait_for_copies(0)?;
    }
    emitter.finish()
}

impl<'c> Emitter<'_, 'c> {
    /// Addresses of what is neither an argument nor in slots.
    fn place_scratch(&mut self, workspace: PointerValue<'c>, places: &SharedMemory) -> Result<()> {
        let byte = self.shared.context.i8_type();
        let nest = self.shared.nest;
        let module = self.shared.module;
        let own = module.get_global("shared").unwrap_or_else(|| {
            let global = module.add_global(byte.array_type(0), Some(AddressSpace::from(SHARED)), "shared");
            global.set_linkage(Linkage::External);
            global.set_alignment(WORKSPACE_ALIGNMENT as u32);
            global
        });
        for (number, buffer) in nest.buffers.iter().enumerate() {
            let id = TensorId(number as u32);
            let (base, offset) = match buffer.scope {
                Scope::Argument(_) | Scope::Packed => continue,
                Scope::Workspace => (workspace, self.shared.layout.offset(id)),
                Scope::BlockShared => match places.offsets.get(&id) {
                    Some(offset) => (own.as_pointer_value(), *offset),
                    None => continue,
                },
                Scope::Register if self.shared.slots.contains_key(&id) => continue,
                Scope::Register => {
                    let bytes = u32::try_from(buffer.bytes())
                        .map_err(|_| CodegenError::Limit(format!("{} is too large for a thread", buffer.name)))?;
                    let local = self.entry_variable(byte.array_type(bytes).into(), &buffer.name)?;
                    self.pointers[number] = Some(local);
                    continue;
                }
            };
            let offset = self.ir.integer(Element::I64, offset as i64);
            self.pointers[number] = Some(self.ir.offset(byte.into(), base, offset)?);
        }
        if let Some(offset) = places.idle {
            let offset = self.ir.integer(Element::I64, offset as i64);
            self.block.idle = Some(self.ir.offset(byte.into(), own.as_pointer_value(), offset)?);
        }
        Ok(())
    }

    fn special_register(&self, name: &str) -> Result<Value<'c>> {
        let value = self.ir.intrinsic(self.shared.module, name, &[], &[])?;
        self.ir.zero_extend(value, self.ir.scalar_type(Element::I64))
    }

    /// A number in digits of these extents, the last runs fastest.
    fn digits(&self, number: Value<'c>, extents: &[i64]) -> Result<Vec<Value<'c>>> {
        let mut digits = Vec::with_capacity(extents.len());
        let mut rest = number;
        for (at, extent) in extents.iter().enumerate().rev() {
            let extent = self.ir.integer(Element::I64, *extent);
            if at == 0 {
                digits.push(rest);
                break;
            }
            digits.push(self.ir.urem(rest, extent)?);
            rest = self.ir.udiv(rest, extent)?;
        }
        digits.reverse();
        Ok(digits)
    }

    /// What all threads of a block do before they meet again.
    pub(super) fn phase(&mut self, outermost: &Loop) -> Result<()> {
        if !matches!(self.shared.processor, Processor::Gpu(_)) {
            return Err(CodegenError::Malformed("a thread loop in code for a CPU".into()));
        }
        let (loops, inside) = nested(outermost, LoopKind::Thread);
        let extents: Vec<i64> = loops.iter().map(|l| l.extent()).collect();
        let (thread, numbers) = self.at_level(0, |this| {
            let thread = this.special_register("llvm.nvvm.read.ptx.sreg.tid.x")?;
            Ok((thread, this.digits(thread, &extents)?))
        })?;
        for (l, number) in loops.iter().zip(numbers) {
            self.bind(l.var, Binding::Scalar(number, 0), Interval::below(l.extent()))?;
        }
        self.block.phase = Some(Phase { thread, loops: loops.iter().map(|l| (l.var, l.extent())).collect() });
        let count = together(&loops);
        if count < self.shared.threads {
            let count = self.ir.integer(Element::I64, count);
            let takes_part = self.ir.icmp(IntPredicate::ULT, thread, count)?;
            let (yes, after) = (self.new_block("threads"), self.new_block("threads.end"));
            self.ir.builder.build_conditional_branch(takes_part.into_int_value(), yes, after)?;
            self.ir.builder.position_at_end(yes);
            self.statements_apart(inside)?;
            self.ir.builder.build_unconditional_branch(after)?;
            self.ir.builder.position_at_end(after);
        } else {
            self.statements_apart(inside)?;
        }
        self.block.phase = None;
        loops.iter().rev().for_each(|l| self.unbind(l.var));
        Ok(())
    }
}
