//! Copies of rows of neighbours, all of which are there or none: as wide as registers are, whatever their
//! type, behind one test.
//!
//! ```text
//! before: unroll u in 0..4 { vector j in 0..16 { p[16*u + j] = guard(0 <= i < 7, b[i, 16*u + j], 0) } }
//! after:  if 0 <= i < 7 { 64 neighbours of b go to p } else { 64 zeros go to p }
//! ```

use inkwell::types::VectorType;

use crate::codegen::emit::interleave::guarded;
use crate::codegen::emit::ir::vector_type;
use crate::codegen::emit::statement::Truth;
use crate::codegen::emit::{Binding, Emitter, Processor};
use crate::codegen::error::CodegenError;
use crate::nest::{Loop, LoopKind, Stmt};
use crate::workload::{Condition, Expr, Index, Interval, TensorId};

type Result<T> = std::result::Result<T, CodegenError>;

/// Of a register.
const BYTES_OF_LANE: i64 = 4;

/// A copy of a row.
struct Row<'s> {
    /// From the outermost; all are constant.
    loops: Vec<&'s Loop>,
    to: (TensorId, &'s [Index]),
    from: (TensorId, &'s [Index]),
    /// Where they do not hold, the row is of zeros.
    inside: &'s [Condition],
    elements: i64,
}

impl<'c> Emitter<'_, 'c> {
    /// Copies what an unrolled loop, or one of vectors, does, if that is nothing else but a copy of a row;
    /// whether it is.
    pub(super) fn store_as_row(&mut self, l: &Loop) -> Result<bool> {
        let Some(row) = self.row(l) else { return Ok(false) };
        for l in &row.loops {
            self.bind(l.var, Binding::Constant(0), Interval::point(0))?;
        }
        match self.conditions(row.inside)? {
            Truth::Always => self.copy_row(&row)?,
            Truth::Never => self.clear_row(&row)?,
            Truth::Depends(holds) => {
                let (yes, no, after) = (self.new_block("row"), self.new_block("zeros"), self.new_block("row.end"));
                self.ir.builder.build_conditional_branch(holds.into_int_value(), yes, no)?;
                self.ir.builder.position_at_end(yes);
                self.copy_row(&row)?;
                self.ir.builder.build_unconditional_branch(after)?;
                self.ir.builder.position_at_end(no);
                self.clear_row(&row)?;
                self.ir.builder.build_unconditional_branch(after)?;
                self.ir.builder.position_at_end(after);
            }
        }
        row.loops.iter().rev().for_each(|l| self.unbind(l.var));
        Ok(true)
    }

    fn row<'s>(&self, l: &'s Loop) -> Option<Row<'s>> {
        let is_cpu = matches!(self.shared.processor, Processor::Cpu(_));
        if !is_cpu || self.predicate.is_some() || self.lanes.is_some() {
            return None;
        }
        let (mut loops, mut body) = (vec![l], &l.body);
        while let [Stmt::Loop(inner)] = body.as_slice() {
            loops.push(inner);
            body = &inner.body;
        }
        let written_out = |l: &&Loop| l.is_constant() && matches!(l.kind, LoopKind::Unroll | LoopKind::Vector);
        let [Stmt::Store { buffer, indices, value }] = body.as_slice() else { return None };
        let (inside, read) = guarded(value);
        let Expr::Load { tensor, indices: source } = read else { return None };
        let (to, from) = ((*buffer, indices.as_slice()), (*tensor, source.as_slice()));
        let [same, other] = [to, from].map(|(buffer, _)| self.shared.nest.buffer(buffer).dtype);
        if same != other || to.0 == from.0 || !loops.iter().all(written_out) {
            return None;
        }
        let mut elements = 1;
        for l in loops.iter().rev() {
            let is_next = |access| self.steps_of(access, [l]) == Some([Some(elements)]);
            let of_row = inside.iter().all(|condition| !condition.index.mentions(l.var));
            if !(is_next(to) && is_next(from) && of_row) {
                return None;
            }
            elements *= l.extent();
        }
        Some(Row { loops, to, from, inside, elements })
    }

    fn copy_row(&mut self, row: &Row<'_>) -> Result<()> {
        let (to, from) = (self.address(row.to.0, row.to.1)?, self.address(row.from.0, row.from.1)?);
        self.pieces(row, &mut |this, at, of| {
            let (to, from) = (this.behind(row.to.0, &to, at)?, this.behind(row.from.0, &from, at)?);
            let loaded = this.load_neighbours(row.from.0, &from, of)?;
            this.store_bits(row.to.0, &to, loaded)
        })
    }

    fn clear_row(&mut self, row: &Row<'_>) -> Result<()> {
        let to = self.address(row.to.0, row.to.1)?;
        self.pieces(row, &mut |this, at, of| {
            let to = this.behind(row.to.0, &to, at)?;
            this.store_bits(row.to.0, &to, of.const_zero().into())
        })
    }

    /// Does something with each piece of a row: where it begins, and the vector that it is.
    fn pieces(
        &mut self,
        row: &Row<'_>,
        work: &mut dyn FnMut(&mut Self, i64, VectorType<'c>) -> Result<()>,
    ) -> Result<()> {
        let dtype = self.shared.nest.buffer(row.to.0).dtype;
        let widest = (self.shared.processor.lanes() * BYTES_OF_LANE / dtype.bytes() as i64).max(1);
        let mut at = 0;
        while at < row.elements {
            let width = widest.min(1 << (row.elements - at).ilog2());
            work(self, at, vector_type(self.memory_type(dtype), width as u32)?)?;
            at += width;
        }
        Ok(())
    }
}
