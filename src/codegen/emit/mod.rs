//! Nest to LLVM IR, by rules over any nest.
//!
//! A kernel is `void NAME(void *const *arguments, void *workspace)`; behind its other arguments stands the
//! address of its parameters, where it has any. The bodies of parallel loops are
//! functions of their own, which the runtime calls from its threads. Vector loops are executed lane by lane
//! at once: expressions that depend on the loop's variable become vectors, the others stay scalar and are
//! broadcast where both meet. Conditions that depend on it become masks.

mod accumulate;
mod copies;
mod dot;
mod double;
mod expression;
mod half;
mod hoist;
mod index;
mod interleave;
mod ir;
mod launch;
mod processor;
mod remainder;
mod rows;
mod product;
mod masked;
mod math;
mod memory;
mod power;
mod prefetch;
mod slots;
mod statement;
mod strides;
mod table;
mod tiles;
mod transpose;
mod warp;
mod wide;
mod trigonometry;

pub use launch::{Launch, launches};
pub use processor::Processor;

use std::collections::HashMap;

use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::basic_block::BasicBlock;
use inkwell::context::Context;
use inkwell::module::{Linkage, Module};
use inkwell::types::BasicMetadataTypeEnum;
use inkwell::values::{FunctionValue, MetadataValue, PointerValue};
use inkwell::{AddressSpace, GlobalVisibility};

use crate::codegen::abi::{PARALLEL_FOR, setup_symbol};
use crate::codegen::emit::hoist::LoopLevel;
use crate::codegen::emit::ir::{Ir, Value};
use crate::codegen::emit::prefetch::Prefetches;
use crate::codegen::emit::strides::Stride;
use crate::codegen::emit::transpose::Loaded;
use crate::codegen::emit::wide::Wide;
use crate::codegen::error::CodegenError;
use crate::codegen::gpu::barriers::BarrierPlan;
use crate::codegen::layout::Layout;
use crate::codegen::legalize::legalize;
use crate::codegen::registers::{self, Slots};
use crate::nest::{Nest, Scope, Stmt};
use crate::target::Cpu;
use crate::workload::{Interval, TensorId, Var};

/// Adds the functions `symbol` and `symbol_setup` to a module.
///
/// # Errors
/// [`CodegenError::Malformed`] for a nest that breaks its invariants.
pub fn kernel<'c>(
    context: &'c Context,
    module: &Module<'c>,
    symbol: &str,
    nest: &Nest,
    target: &Cpu,
) -> Result<(), CodegenError> {
    let layout = Layout::new(nest)?;
    let shape = |id: TensorId| nest.buffers.get(id.0 as usize).map_or(Vec::new(), |b| b.shape.clone());
    let setup = legalize(&nest.setup, &shape);
    let body = legalize(&nest.body, &shape);
    let slots = registers::plan(nest, &[&setup, &body]);
    let shared = Shared {
        context,
        module,
        nest,
        processor: Processor::Cpu(target),
        argument_alignment: 1,
        layout: &layout,
        slots: &slots,
        prefetches: prefetch::plan(nest, &body, target),
        scopes: alias_scopes(context, nest),
        plan: BarrierPlan::default(),
        regions: tiles::plan(nest, &body)?,
        threads: 1,
        has_wide_products: false,
    };
    for (name, statements) in [(symbol.to_string(), &body), (setup_symbol(symbol), &setup)] {
        let pointer = context.ptr_type(AddressSpace::default());
        let function = shared.add_function(&name, &[pointer.into(), pointer.into()], Linkage::External);
        let parameter = |n| function.get_nth_param(n).map(|p| p.into_pointer_value());
        let (Some(arguments), Some(workspace)) = (parameter(0), parameter(1)) else {
            return Err(CodegenError::Internal("a function without its parameters".into()));
        };
        let mut emitter = Emitter::new(&shared, function, arguments, workspace);
        let thread = emitter.ir.integer(ir::Element::I64, 0);
        // what setup packs does not depend on the numbers of a run
        if name == symbol {
            emitter.bind_parameters()?;
        }
        emitter.materialize_buffers(thread)?;
        emitter.statements(statements)?;
        emitter.finish()?;
    }
    Ok(())
}

/// What the functions of one kernel have in common.
struct Shared<'a, 'c> {
    context: &'c Context,
    module: &'a Module<'c>,
    nest: &'a Nest,
    processor: Processor<'a>,
    /// Of the kernel's arguments, in bytes; where it is less than an element's, that.
    argument_alignment: u64,
    layout: &'a Layout,
    slots: &'a HashMap<TensorId, Slots>,
    prefetches: Prefetches,
    scopes: AliasScopes<'c>,
    /// Of tile registers.
    regions: tiles::Regions,
    /// On a GPU: what threads do between phases, the threads of a block, and whether groups of warps read
    /// shared memory as one.
    plan: BarrierPlan,
    threads: i64,
    has_wide_products: bool,
}

impl<'c> Shared<'_, 'c> {
    fn add_function(
        &self,
        name: &str,
        parameters: &[BasicMetadataTypeEnum<'c>],
        linkage: Linkage,
    ) -> FunctionValue<'c> {
        let function =
            self.module.add_function(name, self.context.void_type().fn_type(parameters, false), Some(linkage));
        let (cpu, features) = self.processor.llvm_names();
        for (key, value) in [("target-cpu", cpu), ("target-features", features)] {
            function.add_attribute(AttributeLoc::Function, self.context.create_string_attribute(key, &value));
        }
        let nounwind = Attribute::get_named_enum_kind_id("nounwind");
        function.add_attribute(AttributeLoc::Function, self.context.create_enum_attribute(nounwind, 0));
        let Processor::Cpu(target) = self.processor else { return function };
        let width = self.context.create_string_attribute("prefer-vector-width", &target.vector_bits.to_string());
        function.add_attribute(AttributeLoc::Function, width);
        if target.has_feature("sve") {
            // the least and the most that SVE vectors are longer than 128 bits: with it LLVM puts our vectors
            // into them, else into NEON's
            let length = u64::from(target.vector_bits / 128);
            let range = Attribute::get_named_enum_kind_id("vscale_range");
            let range = self.context.create_enum_attribute(range, length << 32 | length);
            function.add_attribute(AttributeLoc::Function, range);
        }
        function
    }
}

/// One scope for each buffer: buffers never overlap, and LLVM may know.
struct AliasScopes<'c> {
    /// By buffer: the list that holds its scope.
    own: Vec<MetadataValue<'c>>,
    /// By buffer: the list of all others' scopes.
    others: Vec<MetadataValue<'c>>,
}

fn alias_scopes<'c>(context: &'c Context, nest: &Nest) -> AliasScopes<'c> {
    let domain = context.metadata_node(&[context.metadata_string("buffers").into()]);
    let scopes: Vec<MetadataValue> = (0..nest.buffers.len())
        .map(|n| context.metadata_node(&[context.metadata_string(&format!("buffer {n}")).into(), domain.into()]))
        .collect();
    let list = |keep: &dyn Fn(usize) -> bool| {
        let kept: Vec<_> = (0..scopes.len()).filter(|n| keep(*n)).map(|n| scopes[n].into()).collect();
        context.metadata_node(&kept)
    };
    AliasScopes {
        own: (0..scopes.len()).map(|n| list(&|other| other == n)).collect(),
        others: (0..scopes.len()).map(|n| list(&|other| other != n)).collect(),
    }
}

/// What a loop variable stands for at this point of the program.
#[derive(Clone, Copy)]
enum Binding<'c> {
    Unbound,
    Constant(i64),
    /// A value, and the number of the level at which it is known: 0 for the function, then the loops around
    /// the place.
    Scalar(Value<'c>, usize),
    /// The variable of the vector loop.
    Lane,
}

/// The vector loop that is being executed.
#[derive(Clone, Copy)]
struct Lanes {
    var: Var,
    /// Iterations.
    extent: u32,
    /// Lanes of the values: the next power of two.
    width: u32,
}

/// What the threads of a block do together.
#[derive(Clone)]
struct Phase<'c> {
    /// The thread's number in the block.
    thread: Value<'c>,
    /// The thread loops, outermost first: variables and extents.
    loops: Vec<(Var, i64)>,
}

/// The function that is written.
#[derive(Clone, Copy)]
struct Frame<'c> {
    function: FunctionValue<'c>,
    /// Holds the variables of register slots.
    entry: BasicBlock<'c>,
    /// Where the program starts, behind them.
    start: BasicBlock<'c>,
    arguments: PointerValue<'c>,
    workspace: PointerValue<'c>,
}

/// What loop variables stand for at the current place.
struct Variables<'c> {
    /// By variable.
    bindings: Vec<Binding<'c>>,
    /// By variable: the values that it takes.
    ranges: Vec<Interval>,
    /// Bound variables, outermost first.
    order: Vec<Var>,
}

/// On a GPU: what the threads of a block are doing.
#[derive(Default)]
struct Block<'c> {
    /// In the block's shared memory: bytes that nobody writes.
    idle: Option<PointerValue<'c>>,
    /// The phase that is being executed.
    phase: Option<Phase<'c>>,
    /// Whether the phase copies asynchronously.
    asynchronous: bool,
    /// Products of the phase that are yet to be executed.
    wide: Vec<Wide<'c>>,
}

/// What the statements of a transposed block have loaded ahead.
#[derive(Default)]
struct Ahead<'c> {
    loaded: Vec<Loaded<'c>>,
    /// The number of the iteration that is computed.
    row: usize,
}

/// Writes one function.
struct Emitter<'a, 'c> {
    shared: &'a Shared<'a, 'c>,
    ir: Ir<'c>,
    frame: Frame<'c>,
    /// The first element of each buffer in memory.
    pointers: Vec<Option<PointerValue<'c>>>,
    /// By buffer and dimension.
    strides: Vec<Vec<Stride>>,
    variables: Variables<'c>,
    /// The function, and the counted loops around the current place.
    levels: Vec<LoopLevel<'c>>,
    lanes: Option<Lanes>,
    /// Where this does not hold, memory is not touched: a scalar, or a mask of lanes.
    predicate: Option<Value<'c>>,
    /// Variables of slots, by buffer and number.
    slots: HashMap<(TensorId, i64), PointerValue<'c>>,
    tiles: tiles::State<'c>,
    block: Block<'c>,
    ahead: Ahead<'c>,
}

impl<'a, 'c> Emitter<'a, 'c> {
    fn new(
        shared: &'a Shared<'a, 'c>,
        function: FunctionValue<'c>,
        arguments: PointerValue<'c>,
        workspace: PointerValue<'c>,
    ) -> Emitter<'a, 'c> {
        let ir = Ir::new(shared.context);
        let entry = shared.context.append_basic_block(function, "entry");
        let start = shared.context.append_basic_block(function, "start");
        ir.builder.position_at_end(start);
        let variables = Variables {
            bindings: vec![Binding::Unbound; shared.nest.vars.len()],
            ranges: vec![Interval::point(0); shared.nest.vars.len()],
            order: Vec::new(),
        };
        Emitter {
            shared,
            ir,
            frame: Frame { function, entry, start, arguments, workspace },
            pointers: vec![None; shared.nest.buffers.len()],
            strides: Vec::new(),
            variables,
            levels: vec![LoopLevel::new(start)],
            lanes: None,
            predicate: None,
            slots: HashMap::new(),
            tiles: tiles::State::default(),
            block: Block::default(),
            ahead: Ahead::default(),
        }
    }

    /// Computes the address and the strides of every buffer, once for the function.
    fn materialize_buffers(&mut self, thread: Value<'c>) -> Result<(), CodegenError> {
        let nest = self.shared.nest;
        let pointer_type = self.shared.context.ptr_type(AddressSpace::default());
        let byte = self.shared.context.i8_type().into();
        for (number, id) in nest.arguments().into_iter().enumerate() {
            let position = self.ir.integer(ir::Element::I64, number as i64);
            let slot = self.ir.offset(pointer_type.into(), self.frame.arguments, position)?;
            let pointer = self.ir.builder.build_load(pointer_type, slot, "")?.into_pointer_value();
            pointer.set_name(&nest.buffer(id).name);
            self.pointers[id.0 as usize] = Some(pointer);
        }
        let layout = self.shared.layout;
        let stride = self.ir.integer(ir::Element::I64, layout.private_bytes as i64);
        let start = self.ir.integer(ir::Element::I64, layout.shared_bytes as i64);
        let behind = self.ir.add_nsw(self.ir.mul_nsw(thread, stride)?, start)?;
        let private = self.ir.offset(byte, self.frame.workspace, behind)?;
        for (number, buffer) in nest.buffers.iter().enumerate() {
            let id = TensorId(number as u32);
            let base = match buffer.scope {
                Scope::Argument(_) | Scope::Packed => continue,
                Scope::Workspace => self.frame.workspace,
                Scope::BlockShared | Scope::Register => private,
            };
            let offset = self.ir.integer(ir::Element::I64, layout.offset(id) as i64);
            self.pointers[number] = Some(self.ir.offset(byte, base, offset)?);
        }
        // strides are computed behind what they are made of
        self.levels = vec![LoopLevel::new(self.frame.start)];
        self.materialize_strides()?;
        self.levels = vec![LoopLevel::new(self.frame.start)];
        Ok(())
    }

    fn finish(self) -> Result<(), CodegenError> {
        self.release_tiles()?;
        self.ir.builder.build_return(None)?;
        self.ir.builder.position_at_end(self.frame.entry);
        self.ir.builder.build_unconditional_branch(self.frame.start)?;
        Ok(())
    }

    fn range(&self, var: Var) -> Interval {
        self.variables.ranges.get(var.0 as usize).copied().unwrap_or(Interval { low: i64::MIN, high: i64::MAX })
    }

    fn bind(&mut self, var: Var, binding: Binding<'c>, range: Interval) -> Result<(), CodegenError> {
        let at = var.0 as usize;
        let unknown = || CodegenError::Malformed(format!("a loop over the unknown variable {at}"));
        *self.variables.bindings.get_mut(at).ok_or_else(unknown)? = binding;
        self.variables.ranges[at] = range;
        self.variables.order.push(var);
        Ok(())
    }

    fn unbind(&mut self, var: Var) {
        self.variables.bindings[var.0 as usize] = Binding::Unbound;
        self.variables.order.pop();
    }

    fn binding(&self, var: Var) -> Result<Binding<'c>, CodegenError> {
        match self.variables.bindings.get(var.0 as usize) {
            None | Some(Binding::Unbound) => {
                let name = self.shared.nest.vars.get(var.0 as usize).cloned().unwrap_or_else(|| var.0.to_string());
                Err(CodegenError::Malformed(format!("the variable {name} is used outside of its loop")))
            }
            Some(binding) => Ok(*binding),
        }
    }

    fn lane_var(&self) -> Option<Var> {
        self.lanes.map(|lanes| lanes.var)
    }

    fn new_block(&self, name: &str) -> BasicBlock<'c> {
        self.shared.context.append_basic_block(self.frame.function, name)
    }

    /// A new function for the body of a parallel loop:
    /// `void body(void *context, int64_t begin, int64_t end, int64_t thread)`.
    fn body_function(&self) -> FunctionValue<'c> {
        let pointer: BasicMetadataTypeEnum = self.shared.context.ptr_type(AddressSpace::default()).into();
        let integer: BasicMetadataTypeEnum = self.shared.context.i64_type().into();
        let name = format!("{}.parallel", self.frame.function.get_name().to_string_lossy());
        self.shared.add_function(&name, &[pointer, integer, integer, integer], Linkage::Internal)
    }

    /// The runtime's `tilescribe_parallel_for`.
    fn parallel_for(&self) -> FunctionValue<'c> {
        let module = self.shared.module;
        module.get_function(PARALLEL_FOR).unwrap_or_else(|| {
            let pointer: BasicMetadataTypeEnum = self.shared.context.ptr_type(AddressSpace::default()).into();
            let integer: BasicMetadataTypeEnum = self.shared.context.i64_type().into();
            let function_type = self.shared.context.void_type().fn_type(&[pointer, pointer, integer, integer], false);
            let function = module.add_function(PARALLEL_FOR, function_type, Some(Linkage::External));
            // linked into the same object: called directly, without a table
            function.as_global_value().set_visibility(GlobalVisibility::Hidden);
            function
        })
    }

    /// The statements of a function, from the outside.
    fn body_emitter(
        &self,
        function: FunctionValue<'c>,
        arguments: PointerValue<'c>,
        workspace: PointerValue<'c>,
    ) -> Self {
        Emitter::new(self.shared, function, arguments, workspace)
    }

    fn statements(&mut self, statements: &[Stmt]) -> Result<(), CodegenError> {
        let mut rest = statements;
        while let [first, behind @ ..] = rest {
            rest = behind;
            self.enter_region(first)?;
            if let (Stmt::If { conditions, body }, [Stmt::If { conditions: others, body: otherwise }, ..]) =
                (first, behind)
                && let Some(condition) = self.alternative(conditions, others)
                && !behind.iter().take(1).chain([first]).any(|one| self.shared.plan.concerns(one))
            {
                self.either(condition, body, otherwise)?;
                rest = &behind[1..];
                continue;
            }
            self.statement(first)?;
        }
        Ok(())
    }
}
