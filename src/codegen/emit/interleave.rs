//! Copies whose lanes go to groups of neighbours, and whose iterations are the places in a group, as
//! instructions for short numbers take the steps of a lane: rows are loaded as they lie in memory, and
//! interleaved in registers.
//!
//! ```text
//! before: unroll q in 0..2 { vector j in 0..16 { p[2*j + q] = b[128*q + j] } }     scatters
//! after:  2 rows of 16 elements of b, interleaved; 32 neighbours of p
//! ```
//!
//! Rows that are outside of a tensor are zeros: what is read for them is thrown away. Rows of other values
//! than copies are computed as vectors first.
//!
//! Where the steps of a lane are neighbours already, and lanes are far apart, groups are transposed:
//!
//! ```text
//! before: unroll i in 0..16 { unroll q in 0..2 { vector j in 0..16 { p[32*i + 2*j + q] = b[64*j + 2*i + q] } } }
//! after:  16 rows of 16 groups of b, transposed; 16 rows of 16 groups of p
//! ```

use inkwell::types::VectorType;
use inkwell::values::{PointerValue, VectorValue};

use crate::codegen::emit::ir::{Element, Value, vector_type};
use crate::codegen::emit::memory::register_element;
use crate::codegen::emit::statement::Truth;
use crate::codegen::emit::transpose::PART;
use crate::codegen::emit::{Binding, Emitter, Lanes, Processor};
use crate::codegen::error::CodegenError;
use crate::nest::{Loop, Stmt};
use crate::workload::{Condition, Expr, Index, Interval, TensorId};

type Result<T> = std::result::Result<T, CodegenError>;

/// Elements of a group, at most.
const MOST: i64 = 4;
/// What a group is, where it is moved as a whole: the bytes of one f32.
const BYTES_OF_GROUP: i64 = 4;

/// What is read, and the conditions outside of which it is 0.
pub(super) fn guarded(value: &Expr) -> (&[Condition], &Expr) {
    match value {
        Expr::Guard { conditions, inside, outside } if outside.is_zero() => (conditions, inside),
        other => (&[], other),
    }
}

/// Rows that go to groups.
struct Interleaved<'s> {
    /// Unrolled loops between the one over places and the one over lanes.
    between: Vec<&'s Loop>,
    vector: &'s Loop,
    to: (TensorId, &'s [Index]),
    rows: Rows<'s>,
}

/// What a row is.
enum Rows<'s> {
    Copied {
        from: (TensorId, &'s [Index]),
        /// Where they do not hold, a row is of zeros.
        inside: &'s [Condition],
    },
    Computed(&'s Expr),
}

fn reads(value: &Expr, buffer: TensorId) -> bool {
    let mut found = false;
    value.for_each_load(&mut |loaded, _| found |= loaded == buffer);
    found
}

/// A copy of groups whose lanes are far apart.
struct Regrouped<'s> {
    /// Unrolled loops between the one over groups and the one over lanes.
    between: Vec<&'s Loop>,
    vector: &'s Loop,
    steps: &'s Loop,
    to: (TensorId, &'s [Index]),
    from: (TensorId, &'s [Index]),
    /// Where they do not hold, the groups of a lane are zeros.
    inside: &'s [Condition],
}

impl<'c> Emitter<'_, 'c> {
    /// Copies what an unrolled loop does, if that is nothing else but a copy to groups; whether it is.
    pub(super) fn store_in_groups(&mut self, l: &Loop) -> Result<bool> {
        if !matches!(self.shared.processor, Processor::Cpu(_)) {
            return Ok(false);
        }
        if let Some(copy) = self.interleaved(l) {
            self.in_each_of(&copy.between, &mut |this| this.store_interleaved(l, &copy))?;
            return Ok(true);
        }
        let Some(copy) = self.regrouped(l) else { return Ok(false) };
        self.bind(copy.steps.var, Binding::Constant(0), Interval::point(0))?;
        self.in_each_of(&copy.between, &mut |this| this.store_regrouped(l, &copy))?;
        self.unbind(copy.steps.var);
        Ok(true)
    }

    /// The rows that an unrolled loop sends to groups, if it does nothing else.
    fn interleaved<'s>(&self, l: &'s Loop) -> Option<Interleaved<'s>> {
        let (between, vector) = self.vector_within(l).filter(|_| l.extent() <= MOST)?;
        let [Stmt::Store { buffer, indices, value }] = vector.body.as_slice() else { return None };
        let to = (*buffer, indices.as_slice());
        let [place, lane] = self.steps_of(to, [l, vector])?;
        let dtype = self.shared.nest.buffer(to.0).dtype;
        let groups = place == Some(1) && lane == Some(l.extent());
        let fits = groups && l.extent().count_ones() == 1 && dtype.bytes() <= 2 && !reads(value, to.0);
        let rows = self.copied_rows(to, vector, value).or_else(|| self.computed_rows(vector, value));
        rows.filter(|_| fits).map(|rows| Interleaved { between, vector, to, rows })
    }

    fn copied_rows<'s>(&self, to: (TensorId, &'s [Index]), vector: &'s Loop, value: &'s Expr) -> Option<Rows<'s>> {
        let (inside, read) = guarded(value);
        let Expr::Load { tensor, indices: source } = read else { return None };
        let from = (*tensor, source.as_slice());
        let [neighbour] = self.steps_of(from, [vector])?;
        let [same, other] = [to, from].map(|(buffer, _)| self.shared.nest.buffer(buffer).dtype);
        // all lanes at a time, where conditions are about them
        let of_rows = |condition: &Condition| !condition.index.mentions(vector.var);
        let whole = vector.extent().count_ones() == 1 || inside.iter().all(of_rows);
        let fits = neighbour == Some(1) && same == other;
        let fits = fits && whole && (inside.is_empty() || self.has_rows(*tensor, vector.extent()));
        fits.then_some(Rows::Copied { from, inside })
    }

    /// Rows of values that are no copies, of a register at most.
    fn computed_rows<'s>(&self, vector: &Loop, value: &'s Expr) -> Option<Rows<'s>> {
        let is_register = vector.extent().count_ones() == 1 && vector.extent() <= self.shared.processor.lanes();
        is_register.then_some(Rows::Computed(value))
    }

    /// By how many elements an access to memory moves with each of these loops.
    pub(super) fn steps_of<const N: usize>(
        &self,
        (buffer, indices): (TensorId, &[Index]),
        loops: [&Loop; N],
    ) -> Option<[Option<i64>; N]> {
        let known = self.shared.nest.buffers.get(buffer.0 as usize).filter(|b| b.shape.len() == indices.len())?;
        let in_memory = !self.shared.slots.contains_key(&buffer) && !indices.iter().any(Index::has_value);
        in_memory.then(|| loops.map(|l| known.step(indices, l.var)))
    }

    /// Sends rows to groups.
    fn store_interleaved(&mut self, l: &Loop, copy: &Interleaved<'_>) -> Result<()> {
        let extent = copy.vector.extent();
        // as many lanes at a time as a power of two
        let mut first = 0;
        while first < extent {
            let width = 1 << (extent - first).ilog2();
            self.store_lanes(l, copy, [first, width])?;
            first += width;
        }
        Ok(())
    }

    /// Sends `width` lanes, from the `first` on.
    fn store_lanes(&mut self, l: &Loop, copy: &Interleaved<'_>, [first, width]: [i64; 2]) -> Result<()> {
        let vector = copy.vector;
        self.lanes = Some(Lanes { var: vector.var, extent: width as u32, width: width as u32 });
        self.bind(vector.var, Binding::Lane, Interval::below(vector.extent()))?;
        let (mut rows, mut to) = (Vec::new(), None);
        for place in 0..l.extent() {
            self.bind(l.var, Binding::Constant(place), Interval::point(place))?;
            let row = match &copy.rows {
                Rows::Copied { from, inside } => self.row_or_zeros(*from, inside, [first, width])?,
                Rows::Computed(value) => self.computed_row(copy.to.0, value, width)?,
            };
            rows.push(row.into_vector_value());
            if place == 0 {
                to = Some(self.address(copy.to.0, copy.to.1)?);
            }
            self.unbind(l.var);
        }
        self.unbind(vector.var);
        self.lanes = None;
        let Some(address) = to else { return Ok(()) };
        let address = self.behind(copy.to.0, &address, first * l.extent())?;
        let groups = self.interleave(rows)?;
        self.store_bits(copy.to.0, &address, groups.into())
    }

    /// The lanes of a value, as they are stored.
    fn computed_row(&mut self, to: TensorId, value: &Expr, width: i64) -> Result<Value<'c>> {
        let dtype = self.shared.nest.buffer(to).dtype;
        let value = self.expression(value)?;
        let value = self.convert(value, register_element(dtype))?;
        let value = self.ir.splat(value, width as u32)?;
        self.storable(value, dtype)
    }

    fn row_or_zeros(
        &mut self,
        (buffer, indices): (TensorId, &[Index]),
        inside: &[Condition],
        [first, width]: [i64; 2],
    ) -> Result<Value<'c>> {
        let element = self.memory_type(self.shared.nest.buffer(buffer).dtype);
        let row = vector_type(element, width as u32)?;
        let holds = match self.conditions(inside)? {
            Truth::Always => None,
            Truth::Never => return Ok(row.const_zero().into()),
            Truth::Depends(holds) => Some(holds),
        };
        let address = self.address(buffer, indices)?;
        let mut address = self.behind(buffer, &address, first)?;
        match holds {
            None => self.load_neighbours(buffer, &address, row),
            // of its own for each lane
            Some(mask) if mask.is_vector_value() => self.load_row(buffer, address.pointer, mask, row),
            Some(holds) => {
                address.pointer = self.row_or_any(buffer, address.pointer, holds)?;
                let loaded = self.load_neighbours(buffer, &address, row)?;
                self.ir.select(holds, loaded, row.const_zero().into())
            }
        }
    }

    /// Whether the first elements of a buffer can be read in the place of a row of so many.
    fn has_rows(&self, buffer: TensorId, elements: i64) -> bool {
        let known = self.shared.nest.buffer(buffer);
        known.extents.is_fixed() && known.elements() >= elements
    }

    /// The address of a row, or where there is none, of elements that nobody uses.
    fn row_or_any(&self, buffer: TensorId, row: PointerValue<'c>, is_row: Value<'c>) -> Result<PointerValue<'c>> {
        let base = self.pointers[buffer.0 as usize]
            .ok_or_else(|| CodegenError::Internal("a copy of what has no address".into()))?;
        Ok(self.ir.select(is_row, row.into(), base.into())?.into_pointer_value())
    }

    /// The first lanes of all vectors, then their second lanes, …; as many vectors as a power of two.
    fn interleave(&self, rows: Vec<VectorValue<'c>>) -> Result<VectorValue<'c>> {
        // every other one, so that what is interleaved last lies next to each other
        let halves = |odd: usize| rows.iter().skip(odd).step_by(2).copied().collect::<Vec<_>>();
        match rows.as_slice() {
            [one] => Ok(*one),
            _ => {
                let (even, odd) = (self.interleave(halves(0))?, self.interleave(halves(1))?);
                let width = i64::from(even.get_type().get_size());
                let order: Vec<i64> = (0..width).flat_map(|lane| [lane, width + lane]).collect();
                self.ir.shuffle_pair(even, odd, &order)
            }
        }
    }

    /// The copy of groups that an unrolled loop makes, if it does nothing else.
    fn regrouped<'s>(&self, l: &'s Loop) -> Option<Regrouped<'s>> {
        let (mut between, vector) = self.vector_within(l)?;
        let [Stmt::Store { buffer, indices, value }] = vector.body.as_slice() else { return None };
        let (inside, read) = guarded(value);
        let Expr::Load { tensor, indices: source } = read else { return None };
        let (to, from) = ((*buffer, indices.as_slice()), (*tensor, source.as_slice()));
        let one = Some([Some(1)]);
        let are_steps = |l: &&Loop| self.steps_of(to, [l]) == one && self.steps_of(from, [l]) == one;
        let steps = between.remove(between.iter().position(are_steps)?);
        let [same, other] = [to, from].map(|(buffer, _)| self.shared.nest.buffer(buffer).dtype);
        let group = Some(steps.extent());
        let of_lanes = |condition: &Condition| ![l, steps].iter().any(|l| condition.index.mentions(l.var));
        let may_miss = || self.has_rows(*tensor, l.extent() * steps.extent()) && inside.iter().all(of_lanes);
        let fits = self.steps_of(to, [steps, vector])? == [Some(1), group]
            && self.steps_of(from, [steps, l])? == [Some(1), group]
            && (to.0 != from.0 && same == other)
            && steps.extent() * same.bytes() as i64 == BYTES_OF_GROUP;
        let fits = fits && (inside.is_empty() || may_miss());
        fits.then_some(Regrouped { between, vector, steps, to, from, inside })
    }

    /// Copies groups.
    fn store_regrouped(&mut self, l: &Loop, copy: &Regrouped<'_>) -> Result<()> {
        let side = self.shared.processor.lanes().max(PART as i64);
        let row = vector_type(self.ir.scalar_type(Element::F32), side as u32)?;
        for first in (0..l.extent()).step_by(side as usize) {
            for lane in (0..copy.vector.extent()).step_by(side as usize) {
                let [groups, lanes] = [(l, first), (copy.vector, lane)].map(|(l, from)| (l.extent() - from).min(side));
                let [of_groups, of_lanes] = [groups, lanes].map(|count| self.ir.lane_mask(count as u32, side as u32));
                let mut rows = Vec::new();
                for lane in lane..lane + lanes {
                    let row = self.groups_or_zeros(copy, [(l, first), (copy.vector, lane)], of_groups, row)?;
                    rows.push(row.into_vector_value());
                }
                for (at, column) in (first..first + groups).zip(self.transposed(rows, side as usize)?) {
                    let pointer = self.group_pointer(copy.to, [(l, at), (copy.vector, lane)])?;
                    self.store_row(copy.to.0, pointer, of_lanes, column.into())?;
                }
            }
        }
        Ok(())
    }

    /// The groups of a lane from these iterations on, as far as the mask holds.
    fn groups_or_zeros(
        &mut self,
        copy: &Regrouped<'_>,
        at: [(&Loop, i64); 2],
        mask: Value<'c>,
        row: VectorType<'c>,
    ) -> Result<Value<'c>> {
        let (vector, lane) = at[1];
        self.bind(vector.var, Binding::Constant(lane), Interval::point(lane))?;
        let inside = self.conditions(copy.inside)?;
        self.unbind(vector.var);
        let pointer = self.group_pointer(copy.from, at)?;
        match inside {
            Truth::Never => Ok(row.const_zero().into()),
            Truth::Always => self.load_row(copy.from.0, pointer, mask, row),
            Truth::Depends(holds) => {
                let pointer = self.row_or_any(copy.from.0, pointer, holds)?;
                let loaded = self.load_row(copy.from.0, pointer, mask, row)?;
                self.ir.select(holds, loaded, row.const_zero().into())
            }
        }
    }

    /// The address of a group, at these iterations.
    fn group_pointer(
        &mut self,
        (buffer, indices): (TensorId, &[Index]),
        at: [(&Loop, i64); 2],
    ) -> Result<PointerValue<'c>> {
        for (l, i) in at {
            self.bind(l.var, Binding::Constant(i), Interval::point(i))?;
        }
        let pointer = self.element_pointer(buffer, indices)?;
        at.into_iter().rev().for_each(|(l, _)| self.unbind(l.var));
        Ok(pointer)
    }
}
