//! Products that four warps execute together, their second operand in shared memory (PTX, `wgmma`).
//!
//! They are asynchronous: the registers that they read and write are not to be touched meanwhile. So a phase
//! collects its products, with all that they take; where it ends, or a loop inside of it, they are started
//! one after the other and waited for once.

use inkwell::InlineAsmDialect;
use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::types::{BasicMetadataTypeEnum, BasicTypeEnum};
use inkwell::values::BasicValueEnum;

use super::ir::{Element, Value};
use super::product::sides;
use super::{Binding, Emitter};
use crate::codegen::error::CodegenError;
use crate::codegen::gpu::matrices::held;
use crate::nest::matrix::{COLUMNS, CoreMatrices, DEPTH_OF_HALVES, GROUP, core_matrices};
use crate::nest::rewrite::for_each_stmt;
use crate::nest::{Scope, Stmt};
use crate::workload::{DType, Expr, Index, Interval, TensorId, Var, flatten};

type Result<T> = std::result::Result<T, CodegenError>;

/// A product that is to be executed.
pub(super) struct Wide<'c> {
    /// The registers that it is added to, but for the last index, the element.
    sum: (TensorId, Vec<Index>),
    columns: i64,
    half: DType,
    /// The thread's registers of the first operand.
    first: Vec<Value<'c>>,
    /// Describes where the second operand lies.
    descriptor: Value<'c>,
    by_columns: bool,
}

/// Whether there are such products among the statements of a block.
pub(super) fn has_wide_products(statements: &[Stmt]) -> bool {
    let mut found = false;
    for_each_stmt(statements, &mut |statement| {
        if let Stmt::Loop(l) = statement {
            found |= sides(l).is_some_and(|(_, columns, _)| columns > COLUMNS);
        }
    });
    found
}

impl<'c> Emitter<'_, 'c> {
    /// Notes a product, of which `first` are the registers of the first operand.
    pub(super) fn collect_wide_product(
        &mut self,
        (buffer, indices): (TensorId, &[Index]),
        half: DType,
        first: Vec<Value<'c>>,
        second: &Expr,
        (depth, columns, count): (Var, Var, i64),
    ) -> Result<()> {
        let word = self.ir.scalar_type(Element::I32);
        let first = first
            .into_iter()
            .map(|register| Ok(self.ir.builder.build_bit_cast(register, word, "")?))
            .collect::<Result<Vec<Value<'c>>>>()?;
        let (descriptor, by_columns) = self.descriptor(second, depth, (columns, count))?;
        // the loops around are written out: their variables are numbers here, and other ones where products
        // are executed
        let known = |var: Var| match self.binding(var) {
            Ok(Binding::Constant(value)) => Some(Index::constant(value)),
            _ => None,
        };
        let place = indices[..indices.len().saturating_sub(1)].iter().map(|index| index.substitute(&known)).collect();
        self.block.wide.push(Wide { sum: (buffer, place), columns: count, half, first, descriptor, by_columns });
        Ok(())
    }

    /// What the instruction takes in place of the second operand ("Matrix-descriptor"): its address, and how
    /// far its core matrices are apart, all in units of 16 bytes.
    fn descriptor(&mut self, operand: &Expr, depth: Var, (columns, count): (Var, i64)) -> Result<(Value<'c>, bool)> {
        let malformed = |what: &str| CodegenError::Malformed(format!("the second operand of a wide product {what}"));
        let Expr::Load { tensor, indices } = operand else { return Err(malformed("is computed")) };
        let buffer = self.shared.nest.buffer(*tensor);
        if buffer.scope != Scope::BlockShared {
            return Err(malformed("is not in shared memory"));
        }
        if !self.is_same_in_groups(operand) {
            return Err(malformed("is another one for each of its warps"));
        }
        let range = |var: Var| match var {
            v if v == depth => Interval::below(DEPTH_OF_HALVES),
            v if v == columns => Interval::below(count),
            v => self.range(v),
        };
        let simple: Vec<Index> = indices.iter().map(|index| index.simplify(&range)).collect();
        let layout = core_layout(&flatten(&simple, &buffer.shape), depth, (columns, count))
            .ok_or_else(|| malformed("is not in core matrices"))?;
        let bytes = buffer.dtype.bytes() as i64;
        let start = |var: Var| (var == depth || var == columns).then(|| Index::constant(0));
        let first: Vec<Index> = simple.iter().map(|index| index.substitute(&start)).collect();
        let address = self.address(*tensor, &first)?;
        if address.alignment < UNIT as u32 {
            return Err(malformed("is not aligned"));
        }
        let long = self.shared.context.i64_type();
        let address: Value<'c> = self.ir.builder.build_ptr_to_int(address.pointer, long, "")?.into();
        let address = self.ir.and(address, self.ir.integer(Element::I64, FIELD))?;
        let address = self.ir.lshr(address, self.ir.integer(Element::I64, i64::from(UNIT.trailing_zeros())))?;
        let apart = |elements: i64| ((elements * bytes) & FIELD) / UNIT;
        let fixed = apart(layout.along_depth) << 16 | apart(layout.along_columns) << 32;
        Ok((self.ir.or(address, self.ir.integer(Element::I64, fixed))?, layout.by_columns))
    }

    /// Whether the four warps of every group read the same operand: those whose numbers differ in the last
    /// two bits.
    fn is_same_in_groups(&self, operand: &Expr) -> bool {
        let Some(phase) = &self.block.phase else { return false };
        let [.., (warps, count), (lane, _)] = phase.loops[..] else { return false };
        count % GROUP == 0 && !operand.mentions(warps) && !operand.mentions(lane)
    }

    /// Statements that are not executed together with those around them, but again and again, or by some
    /// threads: products among them are done at their end.
    pub(super) fn statements_apart(&mut self, statements: &[Stmt]) -> Result<()> {
        self.statements(statements)?;
        self.execute_wide_products()
    }

    /// Executes what was collected.
    pub(super) fn execute_wide_products(&mut self) -> Result<()> {
        let products = std::mem::take(&mut self.block.wide);
        if products.is_empty() {
            return Ok(());
        }
        // of each sum the product that it was seen at first, and where its values start among those of all
        // registers
        let mut sums: Vec<(&Wide<'c>, usize)> = Vec::new();
        let mut registers = Vec::new();
        for product in &products {
            if sums.iter().all(|(other, _)| other.sum != product.sum) {
                sums.push((product, registers.len()));
                for (buffer, at) in self.elements_of(product) {
                    registers.push(self.load(buffer, &at)?);
                }
            }
        }
        let of_sums = registers.len();
        registers.extend(products.iter().flat_map(|product| product.first.iter().copied()));
        // all of them have their values before the fence, and nobody touches them before the end of the wait
        let mut registers = self.tied_assembly("wgmma.fence.sync.aligned;", &registers, &[])?;
        let mut first = registers.split_off(of_sums).into_iter();
        for product in &products {
            let start = sums.iter().find(|(other, _)| other.sum == product.sum).map_or(0, |(_, start)| *start);
            let own = start..start + held(product.columns) as usize;
            let first: Vec<Value<'c>> = first.by_ref().take(product.first.len()).collect();
            let results = self.wide_product(product, &registers[own.clone()], &first)?;
            registers.splice(own, results);
        }
        self.ir.intrinsic_call(self.shared.module, "llvm.nvvm.wgmma.commit_group.sync.aligned", &[], &[])?;
        let registers = self.tied_assembly("wgmma.wait_group.sync.aligned 0;", &registers, &[])?;
        for (product, start) in sums {
            let places: Vec<_> = self.elements_of(product).collect();
            for ((buffer, at), value) in places.into_iter().zip(&registers[start..]) {
                self.store(buffer, &at, *value)?;
            }
        }
        Ok(())
    }

    /// Where the elements of a product are that the thread holds.
    fn elements_of(&self, product: &Wide<'c>) -> impl Iterator<Item = (TensorId, Vec<Index>)> + use<'c> {
        let (buffer, place) = product.sum.clone();
        (0..held(product.columns)).map(move |element| {
            let mut at = place.clone();
            at.push(Index::constant(element));
            (buffer, at)
        })
    }

    fn wide_product(&self, product: &Wide<'c>, sum: &[Value<'c>], first: &[Value<'c>]) -> Result<Vec<Value<'c>>> {
        let half = product.half.name();
        let list =
            |numbers: std::ops::Range<usize>| numbers.map(|number| format!("${number}")).collect::<Vec<_>>().join(", ");
        // behind the results come the values that these start from
        let (others, descriptor) = (2 * sum.len(), 2 * sum.len() + first.len());
        let text = format!(
            "wgmma.mma_async.sync.aligned.m64n{}k{DEPTH_OF_HALVES}.f32.{half}.{half} {{{}}}, {{{}}}, ${descriptor}, 1, 1, 1, {};",
            product.columns,
            list(0..sum.len()),
            list(others..descriptor),
            u8::from(product.by_columns),
        );
        self.tied_assembly(&text, sum, &[first, &[product.descriptor]].concat())
    }

    /// Assembly that changes the registers of some values, f32 and i32, and reads others'.
    fn tied_assembly(&self, text: &str, changed: &[Value<'c>], read: &[Value<'c>]) -> Result<Vec<Value<'c>>> {
        let context = self.shared.context;
        let letter = |value: &Value<'c>| -> Result<&'static str> {
            Ok(match self.ir.element(*value)? {
                Element::F32 => "f",
                Element::I64 => "l",
                _ => "r",
            })
        };
        let types: Vec<BasicTypeEnum> = changed.iter().map(BasicValueEnum::get_type).collect();
        let results = context.struct_type(&types, false);
        let arguments = [changed, read].concat();
        let types: Vec<BasicMetadataTypeEnum> = arguments.iter().map(|value| value.get_type().into()).collect();
        let function = results.fn_type(&types, false);
        let mut constraints =
            changed.iter().map(|value| Ok(format!("={}", letter(value)?))).collect::<Result<Vec<_>>>()?;
        constraints.extend((0..changed.len()).map(|number| number.to_string()));
        for value in read {
            constraints.push(letter(value)?.to_string());
        }
        constraints.push("~{memory}".to_string());
        let (constraints, dialect) = (constraints.join(","), Some(InlineAsmDialect::ATT));
        let assembly = context.create_inline_asm(function, text.into(), constraints, true, false, dialect, false);
        let arguments: Vec<_> = arguments.into_iter().map(Into::into).collect();
        let call = self.ir.builder.build_indirect_call(function, assembly, &arguments, "")?;
        for name in ["convergent", "nounwind"] {
            let kind = Attribute::get_named_enum_kind_id(name);
            call.add_attribute(AttributeLoc::Function, context.create_enum_attribute(kind, 0));
        }
        let Some(Value::StructValue(result)) = call.try_as_basic_value().basic() else {
            return Err(CodegenError::Internal("assembly gives a struct".into()));
        };
        let element = |number: usize| Ok(self.ir.builder.build_extract_value(result, number as u32, "")?);
        (0..changed.len()).map(element).collect()
    }
}

/// Bytes that addresses and distances of a descriptor are multiples of.
const UNIT: i64 = 16;
/// Bits of an address in shared memory that a descriptor has room for.
const FIELD: i64 = 0x3ffff;

/// How an operand lies whose element of a depth and a column is at `flat`, where that is no matter of other
/// variables.
fn core_layout(flat: &Index, depth: Var, (columns, count): (Var, i64)) -> Option<CoreMatrices> {
    let mut own = Index::constant(0);
    for (atom, coefficient) in flat.terms() {
        let term = Index::atom(atom.clone()).times(*coefficient);
        let (mut mentions, mut others) = (false, false);
        term.for_each_var(&mut |var| if var == depth || var == columns { mentions = true } else { others = true });
        if mentions && others {
            return None;
        }
        if mentions {
            own = own.plus(&term);
        }
    }
    let at = |row: i64, column: i64| own.at(&|var| if var == depth { row } else { column });
    let first = at(0, 0)?;
    core_matrices(count, &|row, column| Some(at(row, column)? - first))
}
