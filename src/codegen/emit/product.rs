//! Products of matrices on tensor cores.

use inkwell::types::BasicTypeEnum;

use super::Emitter;
use super::ir::{Element, Value};
use crate::codegen::error::CodegenError;
use crate::codegen::gpu::matrices::{OWN, place_in_first, place_in_second, places_in_first, places_in_second};
use crate::nest::matrix::{COLUMNS, DEPTH_OF_HALVES, ROWS, operands};
use crate::nest::{Loop, LoopKind, Scope, Stmt};
use crate::workload::{Binary, DType, Expr, Index, Interval, Var, flatten};

type Result<T> = std::result::Result<T, CodegenError>;

/// Of the second operand, for each thread.
const OWN_OF_SECOND: i64 = 2;

const PRODUCT_OF_TF32: &str = "llvm.nvvm.mma.m16n8k8.row.col.tf32";
const PRODUCT_OF_F16: &str = "llvm.nvvm.mma.m16n8k16.row.col.f32.f32";
const PRODUCT_OF_BF16: &str = "llvm.nvvm.mma.m16n8k16.row.col.bf16";

impl<'c> Emitter<'_, 'c> {
    /// What [`crate::codegen::gpu::matrices::deal_out`] leaves of a product.
    pub(super) fn matrix_product(&mut self, l: &Loop) -> Result<()> {
        let malformed = || CodegenError::Malformed("matrix loops that were not dealt out".into());
        let (vars, count, statement) = sides(l).ok_or_else(malformed)?;
        let ([rows, columns, depth], Stmt::Accumulate { buffer, indices, value, .. }) = (vars, statement) else {
            return Err(malformed());
        };
        let Expr::Binary(Binary::Multiply, x, y) = value else { return Err(malformed()) };
        let [first, second] = operands(x, y, rows);
        let lane = self
            .block
            .phase
            .as_ref()
            .and_then(|phase| phase.loops.last())
            .map(|(lane, _)| *lane)
            .ok_or_else(malformed)?;

        let (name, mut arguments) = match (first, second) {
            (Expr::Cast(_, first), Expr::Cast(_, second)) => {
                let (of_first, of_second) = (self.half_of(first)?, self.half_of(second)?);
                if of_first != of_second {
                    return Err(CodegenError::Malformed("a product of two types".into()));
                }
                let mut arguments = match self.whole(first, of_first, (rows, depth), Operand::First, lane)? {
                    Some(registers) => registers,
                    None => self.pairs(first, of_first, [rows, depth], &places_in_first(lane))?,
                };
                if count > COLUMNS {
                    let sides = (depth, columns, count);
                    return self.collect_wide_product((*buffer, indices), of_first, arguments, second, sides);
                }
                arguments.extend(match self.whole(second, of_second, (columns, depth), Operand::Second, lane)? {
                    Some(registers) => registers,
                    None => self.pairs(second, of_second, [depth, columns], &places_in_second(lane))?,
                });
                (if of_first == DType::F16 { PRODUCT_OF_F16 } else { PRODUCT_OF_BF16 }, arguments)
            }
            _ => {
                let mut arguments = Vec::new();
                for element in 0..OWN {
                    arguments.push(self.operand(first, [rows, depth], place_in_first(lane, element))?);
                }
                for element in 0..OWN_OF_SECOND {
                    arguments.push(self.operand(second, [depth, columns], place_in_second(lane, element))?);
                }
                (PRODUCT_OF_TF32, arguments)
            }
        };
        let at = |element: i64| {
            let mut own = indices.clone();
            own.pop();
            own.push(Index::constant(element));
            own
        };
        for element in 0..OWN {
            arguments.push(self.load(*buffer, &at(element))?);
        }
        let result = self.ir.intrinsic(self.shared.module, name, &[], &arguments)?;
        let Value::StructValue(result) = result else {
            return Err(CodegenError::Internal("a product gives a struct".into()));
        };
        for element in 0..OWN {
            let value = self.ir.builder.build_extract_value(result, element as u32, "")?;
            self.store(*buffer, &at(element), value)?;
        }
        Ok(())
    }

    /// The 16-bit type of an operand.
    fn half_of(&self, operand: &Expr) -> Result<DType> {
        let mut found = None;
        operand.for_each_load(&mut |tensor, _| found = Some(self.shared.nest.buffer(tensor).dtype));
        match found {
            Some(half @ (DType::F16 | DType::BF16)) => Ok(half),
            _ => Err(CodegenError::Malformed("an operand that is neither of f32 nor of a 16-bit type".into())),
        }
    }

    /// The registers of an operand of a 16-bit type that lies in shared memory in rows of 16 bytes: one
    /// instruction loads all its matrices of 8 × 8. `None` where it lies otherwise.
    fn whole(
        &mut self,
        operand: &Expr,
        half: DType,
        (across, depth): (Var, Var),
        which: Operand,
        lane: Var,
    ) -> Result<Option<Vec<Value<'c>>>> {
        let Expr::Load { tensor, indices } = operand else { return Ok(None) };
        let buffer = self.shared.nest.buffer(*tensor);
        let sides = [(across, if which == Operand::First { ROWS } else { COLUMNS }), (depth, DEPTH_OF_HALVES)];
        let range = |var: Var| match sides.iter().find(|(side, _)| *side == var) {
            Some((_, extent)) => Interval::below(*extent),
            None => self.range(var),
        };
        let simple: Vec<Index> = indices.iter().map(|index| index.simplify(&range)).collect();
        if buffer.scope != Scope::BlockShared
            || simple.len() != buffer.shape.len()
            || simple.iter().any(Index::has_value)
        {
            return Ok(None);
        }
        let flat = flatten(&simple, &buffer.shape);
        let transposed = match (flat.step(depth), flat.step(across)) {
            (Some(1), Some(_)) => false,
            (Some(_), Some(1)) => true,
            _ => return Ok(None),
        };
        let [at_across, at_depth] = row_of_matrix(which, transposed, lane);
        let moved = |var: Var| match var {
            v if v == across => Some(at_across.clone()),
            v if v == depth => Some(at_depth.clone()),
            _ => None,
        };
        let indices: Vec<Index> = simple.iter().map(|index| index.substitute(&moved)).collect();
        let address = self.address(*tensor, &indices)?;
        if address.alignment < ROW_OF_MATRIX {
            return Ok(None);
        }
        let count = if which == Operand::First { 4 } else { 2 };
        let name =
            format!("llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{}.b16", if transposed { ".trans" } else { "" });
        let overload = [address.pointer.get_type().into()];
        let Value::StructValue(loaded) =
            self.ir.intrinsic(self.shared.module, &name, &overload, &[address.pointer.into()])?
        else {
            return Err(CodegenError::Internal("loaded matrices are a struct".into()));
        };
        let mut registers = Vec::new();
        for number in 0..count {
            let register = self.ir.builder.build_extract_value(loaded, number, "")?;
            registers.push(self.ir.builder.build_bit_cast(register, self.pair_type(half), "")?);
        }
        Ok(Some(registers))
    }

    /// What a product takes two 16-bit values in.
    fn pair_type(&self, half: DType) -> BasicTypeEnum<'c> {
        let context = self.shared.context;
        if half == DType::F16 { context.f16_type().vec_type(2).into() } else { context.i32_type().into() }
    }

    /// The elements of an operand of a 16-bit type that a thread gives, two in a register.
    fn pairs(&mut self, operand: &Expr, half: DType, sides: [Var; 2], places: &[[Index; 2]]) -> Result<Vec<Value<'c>>> {
        let mut registers = Vec::new();
        for pair in places.chunks(2) {
            let mut register = self.shared.context.i16_type().vec_type(2).get_poison();
            for (number, place) in pair.iter().enumerate() {
                let at = |var: Var| sides.iter().position(|side| *side == var).map(|side| place[side].clone());
                let value = self.expression(&operand.substitute(&at))?;
                let bits = self.narrow_half(value, half)?;
                let number = self.shared.context.i32_type().const_int(number as u64, false);
                register = self.ir.builder.build_insert_element(register, bits, number, "")?;
            }
            registers.push(self.ir.builder.build_bit_cast(register, self.pair_type(half), "")?);
        }
        Ok(registers)
    }

    /// The element of an operand where its sides are at `place`, rounded as the product wants it.
    fn operand(&mut self, operand: &Expr, sides: [Var; 2], place: [Index; 2]) -> Result<Value<'c>> {
        let at = |var: Var| sides.iter().position(|side| *side == var).map(|side| place[side].clone());
        let value = self.expression(&operand.substitute(&at))?;
        let value = self.convert(value, Element::F32)?;
        self.ir.intrinsic(self.shared.module, "llvm.nvvm.f2tf32.rna", &[], &[value])
    }
}

/// Which operand of a product.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operand {
    First,
    Second,
}

/// Bytes of a row of 8 × 8 values of 16 bits.
const ROW_OF_MATRIX: u32 = 16;

/// The row of a matrix of 8 × 8 whose address a thread gives (PTX, `ldmatrix`): where it is across the
/// operand, and how deep. The matrices come in the order of the registers: of the first operand, its upper
/// and its lower rows, then both once more, deeper.
fn row_of_matrix(which: Operand, transposed: bool, lane: Var) -> [Index; 2] {
    let lane = || Index::var(lane);
    let none = Index::constant(0);
    match (which, transposed) {
        (Operand::First, false) => [lane().modulo(16), lane().floor_div(16).times(8)],
        (Operand::First, true) => {
            [lane().floor_div(8).modulo(2).times(8), lane().modulo(8).plus(&lane().floor_div(16).times(8))]
        }
        // only the first sixteen threads are asked
        (Operand::Second, false) => [lane().modulo(8), lane().floor_div(8).modulo(2).times(8)],
        (Operand::Second, true) => [none, lane().modulo(16)],
    }
}

/// The loop that is all that another one holds.
fn only(l: &Loop) -> Option<&Loop> {
    match l.body.as_slice() {
        [Stmt::Loop(inner)] => Some(inner),
        _ => None,
    }
}

/// The variables of the three sides, the number of columns, and the statement behind the loop over elements.
pub(super) fn sides(l: &Loop) -> Option<([Var; 3], i64, &Stmt)> {
    let columns = only(l)?;
    let depth = only(columns)?;
    let elements = only(depth).filter(|elements| elements.kind == LoopKind::Matrix)?;
    match elements.body.as_slice() {
        [statement @ Stmt::Accumulate { .. }] => Some(([l.var, columns.var, depth.var], columns.extent(), statement)),
        _ => None,
    }
}
