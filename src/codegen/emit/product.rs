//! Products of matrices on tensor cores.

use super::Emitter;
use super::ir::{Element, Value};
use crate::codegen::CodegenError;
use crate::codegen::gpu::matrices::{OWN, place_in_first, place_in_second};
use crate::nest::matrix::operands;
use crate::nest::{Loop, Stmt};
use crate::workload::{Binary, Expr, Index, Var};

type Result<T> = std::result::Result<T, CodegenError>;

/// Of the second operand, for each thread.
const OWN_OF_SECOND: i64 = 2;

impl<'c> Emitter<'_, 'c> {
    /// What [`crate::codegen::gpu::matrices::deal_out`] leaves of a product.
    pub(super) fn matrix_product(&mut self, l: &Loop) -> Result<()> {
        let malformed = || CodegenError::Malformed("matrix loops that were not dealt out".into());
        let (vars, statement) = sides(l).ok_or_else(malformed)?;
        let ([rows, columns, depth], Stmt::Accumulate { buffer, indices, value, .. }) = (vars, statement) else {
            return Err(malformed());
        };
        let Expr::Binary(Binary::Multiply, x, y) = value else { return Err(malformed()) };
        let [first, second] = operands(x, y, rows);
        let lane =
            self.phase.as_ref().and_then(|phase| phase.loops.last()).map(|(lane, _)| *lane).ok_or_else(malformed)?;

        let mut arguments = Vec::new();
        for element in 0..OWN {
            arguments.push(self.operand(first, [rows, depth], place_in_first(lane, element))?);
        }
        for element in 0..OWN_OF_SECOND {
            arguments.push(self.operand(second, [depth, columns], place_in_second(lane, element))?);
        }
        let at = |element: i64| {
            let mut own = indices.clone();
            own.pop();
            own.push(Index::constant(element));
            own
        };
        for element in 0..OWN {
            arguments.push(self.load(*buffer, &at(element))?);
        }
        let result = self.ir.intrinsic(self.shared.module, "llvm.nvvm.mma.m16n8k8.row.col.tf32", &[], &arguments)?;
        let Value::StructValue(result) = result else {
            return Err(CodegenError::Internal("a product gives a struct".into()));
        };
        for element in 0..OWN {
            let value = self.ir.builder.build_extract_value(result, element as u32, "")?;
            self.store(*buffer, &at(element), value)?;
        }
        Ok(())
    }

    /// The element of an operand where its sides are at `place`, rounded as the product wants it.
    fn operand(&mut self, operand: &Expr, sides: [Var; 2], place: [Index; 2]) -> Result<Value<'c>> {
        let at = |var: Var| sides.iter().position(|side| *side == var).map(|side| place[side].clone());
        let value = self.expression(&operand.substitute(&at))?;
        let value = self.convert(value, Element::F32)?;
        self.ir.intrinsic(self.shared.module, "llvm.nvvm.f2tf32.rna", &[], &[value])
    }
}

/// The loop that is all that another one holds.
fn only(l: &Loop) -> Option<&Loop> {
    match l.body.as_slice() {
        [Stmt::Loop(inner)] => Some(inner),
        _ => None,
    }
}

/// The variables of the three sides, and the statement behind the loop over elements.
fn sides(l: &Loop) -> Option<([Var; 3], &Stmt)> {
    let columns = only(l)?;
    let depth = only(columns)?;
    let elements = only(depth)?;
    match elements.body.as_slice() {
        [statement @ Stmt::Accumulate { .. }] => Some(([l.var, columns.var, depth.var], statement)),
        _ => None,
    }
}
