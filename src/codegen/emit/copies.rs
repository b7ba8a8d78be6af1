//! Copies from memory to a block's shared memory that go on while threads compute, and waiting for them.

use super::ir::Element;
use super::statement::Truth;
use super::{Binding, Emitter};
use crate::codegen::error::CodegenError;
use crate::codegen::gpu::barriers::copied;
use crate::nest::{Loop, Stmt};
use crate::workload::{Condition, Expr, Index, Interval, TensorId, Var, flatten};

type Result<T> = std::result::Result<T, CodegenError>;

/// Bytes that one instruction copies, at least and at most.
const NARROWEST: u32 = 4;
const WIDEST: u32 = 16;

impl<'c> Emitter<'_, 'c> {
    /// All threads of a block meet here, each after it left at most `wait` groups of its copies under way.
    pub(super) fn barrier(&mut self, wait: Option<u32>) -> Result<()> {
        if let Some(wait) = wait {
            self.wait_for_copies(wait)?;
        }
        if self.shared.has_wide_products {
            // what this thread has written is seen by others' products, too, which read memory by another way
            // than threads do
            self.ir.intrinsic_call(self.shared.module, "llvm.nvvm.fence.proxy.async.shared_cta", &[], &[])?;
        }
        let zero = self.shared.context.i32_type().const_zero().into();
        self.ir.intrinsic_call(self.shared.module, "llvm.nvvm.barrier.cta.sync.aligned.all", &[], &[zero])?;
        Ok(())
    }

    pub(super) fn wait_for_copies(&mut self, left: u32) -> Result<()> {
        let left = self.ir.integer(Element::I32, i64::from(left));
        self.ir.intrinsic_call(self.shared.module, "llvm.nvvm.cp.async.wait.group", &[], &[left])?;
        Ok(())
    }

    /// What this thread has started to copy since it did so last is a group.
    pub(super) fn commit_copies(&mut self) -> Result<()> {
        self.ir.intrinsic_call(self.shared.module, "llvm.nvvm.cp.async.commit.group", &[], &[])?;
        Ok(())
    }

    /// Starts to copy an element, or the neighbours of a vector loop for which [`Emitter::copies_neighbours`]
    /// holds. Where the value's guard does not, zeros are written and nothing is read, but from an address
    /// that there is. What starts anywhere in a word is copied at once: there is no instruction for it.
    pub(super) fn copy(&mut self, buffer: TensorId, indices: &[Index], value: &Expr) -> Result<()> {
        let (tensor, from, guard) =
            copied(value).ok_or_else(|| CodegenError::Internal("a copy that changes what it copies".into()))?;
        let holds = match guard {
            None => None,
            Some((conditions, _)) => match self.conditions(conditions)? {
                Truth::Always => None,
                Truth::Never => Some(self.ir.integer(Element::I1, 0)),
                Truth::Depends(holds) => Some(holds),
            },
        };
        let base = self.pointers[tensor.0 as usize]
            .ok_or_else(|| CodegenError::Internal("a copy of what has no address".into()))?;
        let (to, from) = (self.address(buffer, indices)?, self.address(tensor, from)?);
        let element = self.shared.nest.buffer(buffer).dtype.bytes() as u32;
        let bytes = element * self.lanes.map_or(1, |lanes| lanes.extent);
        let piece = to.alignment.min(from.alignment).min(WIDEST).min(bytes);
        if piece < NARROWEST {
            let value = self.expression(value)?;
            return self.store(buffer, indices, value);
        }
        let byte = self.shared.context.i8_type().into();
        for at in (0..bytes).step_by(piece as usize) {
            let behind = self.ir.integer(Element::I64, i64::from(at));
            let (to, from) = (self.ir.offset(byte, to.pointer, behind)?, self.ir.offset(byte, from.pointer, behind)?);
            // past the first level of the cache where that is possible: nobody else reads it from there
            let level = if piece == WIDEST { "cg" } else { "ca" };
            let name = format!("llvm.nvvm.cp.async.{level}.shared.global.{piece}");
            match holds {
                None => self.ir.intrinsic_call(self.shared.module, &name, &[], &[to.into(), from.into()])?,
                Some(holds) => {
                    let from = self.ir.select(holds, from.into(), base.into())?;
                    let size = |bytes: u32| self.ir.integer(Element::I32, i64::from(bytes));
                    let size = self.ir.select(holds, size(piece), size(0))?;
                    let name = format!("{name}.s");
                    self.ir.intrinsic_call(self.shared.module, &name, &[], &[to.into(), from, size])?
                }
            };
        }
        Ok(())
    }

    /// Whether the iterations of a vector loop copy neighbours to neighbours, all of them or none.
    pub(super) fn copies_neighbours(&mut self, l: &Loop) -> Result<bool> {
        self.bind(l.var, Binding::Lane, Interval::below(l.extent()))?;
        let fits =
            l.is_constant() && l.extent().count_ones() == 1 && l.body.iter().all(|inner| self.is_row(inner, l.var));
        self.unbind(l.var);
        Ok(fits)
    }

    fn is_row(&self, statement: &Stmt, var: Var) -> bool {
        let stays = |conditions: &[Condition]| !conditions.iter().any(|c| c.index.mentions(var));
        let moves_by_one = |buffer: TensorId, indices: &[Index]| {
            let simple: Vec<Index> = indices.iter().map(|index| index.simplify(&|var| self.range(var))).collect();
            flatten(&simple, &self.shared.nest.buffer(buffer).shape).step(var) == Some(1)
        };
        match statement {
            Stmt::If { conditions, body } => stays(conditions) && body.iter().all(|inner| self.is_row(inner, var)),
            Stmt::Store { buffer, indices, value } => copied(value).is_some_and(|(tensor, from, guard)| {
                guard.is_none_or(|(conditions, _)| stays(conditions))
                    && moves_by_one(*buffer, indices)
                    && moves_by_one(tensor, from)
            }),
            Stmt::Loop(_) | Stmt::Accumulate { .. } => false,
        }
    }
}
