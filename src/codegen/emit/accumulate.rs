//! Accumulations: what lanes and threads have in common is combined first.

use crate::codegen::emit::Emitter;
use crate::codegen::emit::ir::{Element, Value};
use crate::codegen::emit::memory::register_element;
use crate::codegen::error::CodegenError;
use crate::workload::scalar::identity_integer;
use crate::workload::{Binary, Combiner, DType, Expr, Index, TensorId};

type Result<T> = std::result::Result<T, CodegenError>;

impl<'c> Emitter<'_, 'c> {
    /// Combines an element with a value, and all lanes or threads of it before where they share the element.
    pub(super) fn accumulate(
        &mut self,
        buffer: TensorId,
        indices: &[Index],
        combiner: Combiner,
        value: &Expr,
    ) -> Result<()> {
        let dtype = self.stored_type(buffer);
        let combiner = (combiner, dtype);
        let together = self.threads_together(buffer, indices);
        if together > 1 {
            let value = self.expression(value)?;
            let value = self.combine_threads(combiner, value, together)?;
            return self.in_first_of(together, |this| {
                let old = this.load(buffer, indices)?;
                let new = this.combine(combiner, old, value)?;
                this.store(buffer, indices, new)
            });
        }
        let moves = self.lane_var().is_none_or(|var| indices.iter().any(|index| index.mentions(var)));
        if !moves {
            let value = self.expression(value)?;
            let value = self.reduce_lanes(combiner, value)?;
            // all lanes meet in one element, which is accessed whatever the mask was
            let outer = self.predicate.take();
            let old = self.load(buffer, indices)?;
            let new = self.combine(combiner, old, value)?;
            self.store(buffer, indices, new)?;
            self.predicate = outer;
            return Ok(());
        }
        let new = match value {
            // a product is summed with one rounding
            Expr::Binary(Binary::Multiply, x, y) if combiner.0 == Combiner::Sum && dtype.is_float() => {
                let (x, y) = (self.expression(x)?, self.expression(y)?);
                let old = self.load(buffer, indices)?;
                let element = register_element(dtype);
                let (x, y) = (self.convert(x, element)?, self.convert(y, element)?);
                self.ir.fma(self.shared.module, x, y, old)?
            }
            _ => {
                let value = self.expression(value)?;
                let old = self.load(buffer, indices)?;
                self.combine(combiner, old, value)?
            }
        };
        self.store(buffer, indices, new)
    }

    /// A combiner comes with the type that it combines.
    fn combine(&mut self, (combiner, dtype): (Combiner, DType), old: Value<'c>, value: Value<'c>) -> Result<Value<'c>> {
        let value = self.convert(value, self.ir.element(old)?)?;
        self.binary(combiner.binary(), dtype, old, value)
    }

    /// Combines the active lanes into a scalar, pair by pair.
    fn reduce_lanes(&mut self, (combiner, dtype): (Combiner, DType), value: Value<'c>) -> Result<Value<'c>> {
        let Some(lanes) = self.lanes else { return Ok(value) };
        let mut value = self.ir.splat(value, lanes.width)?;
        let element = self.ir.element(value)?;
        let identity = match element {
            Element::F32 | Element::F64 => self.ir.float_like(combiner.identity(), value)?,
            Element::I1 => {
                self.ir.integer(Element::I1, i64::from(matches!(combiner, Combiner::Product | Combiner::Minimum)))
            }
            Element::I32 | Element::I64 => self.ir.integer(element, identity_integer(combiner, dtype)),
        };
        if let Some(mask) = self.active_lanes()? {
            value = self.ir.select(mask, value, identity)?;
        }
        let mut width = i64::from(lanes.width);
        let total = width;
        while width > 1 {
            width /= 2;
            let order: Vec<i64> = (0..total).map(|lane| if lane < width { lane + width } else { -1 }).collect();
            let upper = self.ir.shuffle(value.into_vector_value(), &order)?;
            value = self.binary(combiner.binary(), dtype, value, upper.into())?;
        }
        let first = self.shared.context.i64_type().const_zero();
        Ok(self.ir.builder.build_extract_element(value.into_vector_value(), first, "")?)
    }
}
