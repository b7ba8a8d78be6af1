//! Blocks of memory whose columns, not rows, run along the lanes: they are loaded and stored as rows, and
//! transposed in registers.
//!
//! ```text
//! before: unroll i in 0..14 { vector a in 0..16 { y[196*a + i] = relu(acc[i, a]) + x[196*a + i] } }     scatters and gathers
//! after:  16 rows of 14 elements of x, transposed; 14 vectors of relu(acc) + x, transposed; 16 rows of y
//!
//! before: unroll k in 0..16 { vector j in 0..16 { p[16*k + j] = b[64*j + k] } }                          gathers
//! after:  16 rows of 16 elements of b, transposed; 16 vectors of p
//! ```

use inkwell::values::{PointerValue, VectorValue};

use crate::codegen::abi::MAXIMAL_STRIDE;
use crate::codegen::emit::ir::{Element, Value, vector_type};
use crate::codegen::emit::{Binding, Emitter, Lanes};
use crate::codegen::error::CodegenError;
use crate::nest::{Loop, LoopKind, Stmt};
use crate::workload::{DType, Expr, Index, Interval, TensorId, flatten};

type Result<T> = std::result::Result<T, CodegenError>;

/// Blocks of fewer rows are not worth it.
const LEAST_ROWS: i64 = 4;
/// Lanes among which registers are shuffled cheaply: 128 bits.
pub(super) const PART: usize = 4;

/// A store in a vector loop in an unrolled loop, whose lanes go to different rows and whose iterations to
/// neighbours; or come from there.
pub(super) struct Block<'s> {
    /// Unrolled loops between the two.
    between: Vec<&'s Loop>,
    vector: &'s Loop,
    buffer: TensorId,
    indices: &'s [Index],
    value: &'s Expr,
    /// Whether it is the store whose lanes go to different rows.
    scattered: bool,
}

/// A vector for each iteration of the unrolled loop: what the load of these indices gives in it.
pub(super) struct Loaded<'c> {
    buffer: TensorId,
    indices: Vec<Index>,
    rows: Vec<Value<'c>>,
}

impl<'c> Emitter<'_, 'c> {
    /// The block that an unrolled loop stores, if it consists of nothing else.
    pub(super) fn block<'s>(&self, l: &'s Loop) -> Option<Block<'s>> {
        let (between, vector) = self.vector_within(l).filter(|_| l.extent() >= LEAST_ROWS)?;
        let [Stmt::Store { buffer, indices, value }] = vector.body.as_slice() else { return None };
        // all values are computed before the first is stored
        let mut reads_itself = false;
        value.for_each_load(&mut |tensor, _| reads_itself |= tensor == *buffer);
        let scattered = self.is_transposed(*buffer, indices, l, vector);
        let gathered = || {
            let mut loads = Vec::new();
            unguarded_loads(value, &mut loads);
            // what is nearer is read row by row
            let far = |elements: i64| elements > MAXIMAL_STRIDE;
            loads.iter().any(|(buffer, indices)| self.row_distance(*buffer, indices, l, vector).is_some_and(far))
        };
        let fits = vector.extent() >= PART as i64 && (scattered || gathered());
        (fits && !reads_itself).then_some(Block { between, vector, buffer: *buffer, indices, value, scattered })
    }

    /// Outside of all vectors and conditions: the unrolled loops between a loop and the vector loop that is
    /// all there is in it, and that one.
    pub(super) fn vector_within<'s>(&self, l: &'s Loop) -> Option<(Vec<&'s Loop>, &'s Loop)> {
        if self.predicate.is_some() || self.lanes.is_some() || !l.is_constant() {
            return None;
        }
        let (mut between, mut body) = (Vec::new(), &l.body);
        loop {
            match body.as_slice() {
                [Stmt::Loop(inner)] if !inner.is_constant() => return None,
                [Stmt::Loop(inner)] if inner.kind == LoopKind::Vector => return Some((between, inner)),
                [Stmt::Loop(inner)] if inner.kind == LoopKind::Unroll => between.push(inner),
                _ => return None,
            }
            body = &between[between.len() - 1].body;
        }
    }

    /// Does something in each iteration of unrolled loops.
    pub(super) fn in_each_of(&mut self, loops: &[&Loop], work: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()> {
        let [outermost, others @ ..] = loops else { return work(self) };
        for i in 0..outermost.extent() {
            self.bind(outermost.var, Binding::Constant(i), Interval::point(i))?;
            self.in_each_of(others, work)?;
            self.unbind(outermost.var);
        }
        Ok(())
    }

    /// Whether an access moves by one element with the unrolled loop, and by several with the lanes.
    fn is_transposed(&self, buffer: TensorId, indices: &[Index], l: &Loop, vector: &Loop) -> bool {
        self.row_distance(buffer, indices, l, vector).is_some_and(|elements| elements > 1)
    }

    /// By how many elements an access moves with the lanes, if it moves by one with the unrolled loop.
    fn row_distance(&self, buffer: TensorId, indices: &[Index], l: &Loop, vector: &Loop) -> Option<i64> {
        let found = self.shared.nest.buffers.get(buffer.0 as usize)?;
        let in_memory = !self.shared.slots.contains_key(&buffer) && found.dtype == DType::F32;
        if !in_memory
            || !found.extents.is_fixed()
            || indices.len() != found.shape.len()
            || indices.iter().any(Index::has_value)
        {
            return None;
        }
        let flat = flatten(indices, &found.shape);
        let neighbours = flat.step(l.var) == Some(1);
        flat.step(vector.var).filter(|_| neighbours).map(i64::abs)
    }

    /// Computes and stores a block.
    pub(super) fn store_block(&mut self, l: &Loop, block: &Block<'_>) -> Result<()> {
        self.in_each_of(&block.between, &mut |this| this.store_blocks(l, block))
    }

    /// As many rows at a time as a register has lanes.
    fn store_blocks(&mut self, l: &Loop, block: &Block<'_>) -> Result<()> {
        let vector = block.vector;
        let width = vector.extent().unsigned_abs().next_power_of_two() as usize;
        let side = width.min(self.shared.processor.lanes().unsigned_abs() as usize).max(PART);
        let mut loads = Vec::new();
        unguarded_loads(block.value, &mut loads);
        loads.retain(|(buffer, indices)| self.is_transposed(*buffer, indices, l, vector));
        for first in (0..l.extent()).step_by(side) {
            let count = (l.extent() - first).min(side as i64) as usize;
            let place = Place { l, vector, first, count, side };
            let loaded = loads.iter().map(|(buffer, indices)| self.load_block(*buffer, indices, &place));
            let loaded = loaded.collect::<Result<Vec<_>>>()?;
            let rows = self.rows(&place, block.value, width, loaded)?;
            if !block.scattered {
                self.store_rows(&place, block, width, rows)?;
                continue;
            }
            for part in (0..width).step_by(side) {
                let lanes: Vec<i64> = (part..part + side).map(|lane| lane as i64).collect();
                let rows = rows.iter().map(|row| self.ir.shuffle(*row, &lanes)).collect::<Result<Vec<_>>>()?;
                for (lane, column) in (part..).zip(self.transposed(rows, side)?) {
                    if (lane as i64) < vector.extent() {
                        let pointer = self.row_pointer(block.buffer, block.indices, &place, lane)?;
                        let mask = self.ir.lane_mask(count as u32, side as u32);
                        self.store_row(block.buffer, pointer, mask, column.into())?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The value of each iteration, in all lanes.
    fn rows(
        &mut self,
        place: &Place<'_>,
        value: &Expr,
        width: usize,
        loaded: Vec<Loaded<'c>>,
    ) -> Result<Vec<VectorValue<'c>>> {
        let (l, vector) = (place.l, place.vector);
        let lanes = Lanes { var: vector.var, extent: vector.extent() as u32, width: width as u32 };
        self.lanes = Some(lanes);
        self.bind(vector.var, Binding::Lane, Interval::below(vector.extent()))?;
        self.ahead.loaded = loaded;
        let mut rows = Vec::new();
        for number in 0..place.count {
            let i = place.first + number as i64;
            self.bind(l.var, Binding::Constant(i), Interval::point(i))?;
            self.ahead.row = number;
            let row = self.expression(value)?;
            let row = self.convert(row, Element::F32)?;
            rows.push(self.ir.splat(row, lanes.width)?.into_vector_value());
            self.unbind(l.var);
        }
        self.ahead.loaded.clear();
        self.unbind(vector.var);
        self.lanes = None;
        Ok(rows)
    }

    /// Stores the values of each iteration where its lanes go.
    fn store_rows(
        &mut self,
        place: &Place<'_>,
        block: &Block<'_>,
        width: usize,
        rows: Vec<VectorValue<'c>>,
    ) -> Result<()> {
        let (l, vector) = (place.l, place.vector);
        self.lanes = Some(Lanes { var: vector.var, extent: vector.extent() as u32, width: width as u32 });
        self.bind(vector.var, Binding::Lane, Interval::below(vector.extent()))?;
        for (i, row) in (place.first..).zip(rows) {
            self.bind(l.var, Binding::Constant(i), Interval::point(i))?;
            self.store(block.buffer, block.indices, row.into())?;
            self.unbind(l.var);
        }
        self.unbind(vector.var);
        self.lanes = None;
        Ok(())
    }

    /// What was loaded ahead for the current iteration.
    pub(super) fn loaded_ahead(&self, buffer: TensorId, indices: &[Index]) -> Option<Value<'c>> {
        let found = self.ahead.loaded.iter().find(|loaded| loaded.buffer == buffer && loaded.indices == indices)?;
        found.rows.get(self.ahead.row).copied()
    }

    /// Loads the rows of memory, and turns them into vectors for the iterations.
    fn load_block(&mut self, buffer: TensorId, indices: &[Index], place: &Place<'_>) -> Result<Loaded<'c>> {
        let (extent, side) = (place.vector.extent() as usize, place.side);
        let row_type = vector_type(self.ir.scalar_type(Element::F32), side as u32)?;
        let mask = self.ir.lane_mask(place.count as u32, side as u32);
        let mut parts: Vec<Vec<VectorValue<'c>>> = Vec::new();
        for part in (0..extent.next_power_of_two()).step_by(side) {
            let mut columns = Vec::new();
            for lane in part..(part + side).min(extent) {
                let pointer = self.row_pointer(buffer, indices, place, lane)?;
                columns.push(self.load_row(buffer, pointer, mask, row_type)?.into_vector_value());
            }
            parts.push(self.transposed(columns, side)?);
        }
        let rows = (0..place.count).map(|number| {
            let lanes = parts.iter().map(|part| part[number].get_type().get_size()).sum();
            self.joined(parts.iter().map(|part| part[number]).collect(), lanes)
        });
        Ok(Loaded { buffer, indices: indices.to_vec(), rows: rows.collect::<Result<_>>()? })
    }

    /// The address of the first of a lane's neighbours.
    fn row_pointer(
        &mut self,
        buffer: TensorId,
        indices: &[Index],
        place: &Place<'_>,
        lane: usize,
    ) -> Result<PointerValue<'c>> {
        let lane = lane as i64;
        self.bind(place.vector.var, Binding::Constant(lane), Interval::point(lane))?;
        self.bind(place.l.var, Binding::Constant(place.first), Interval::point(place.first))?;
        let pointer = self.element_pointer(buffer, indices)?;
        self.unbind(place.l.var);
        self.unbind(place.vector.var);
        Ok(pointer)
    }

    /// The vectors `[rows[0][n], rows[1][n], …]` for each lane `n` of the `side` lanes; missing rows give
    /// undefined lanes. Neighbours first, within parts of four lanes; then whole parts.
    pub(super) fn transposed(&self, mut rows: Vec<VectorValue<'c>>, side: usize) -> Result<Vec<VectorValue<'c>>> {
        let lane_type = vector_type(self.ir.scalar_type(Element::F32), side as u32)?;
        rows.resize(side, lane_type.get_poison());
        // by lane within a part, then by group of four rows
        let mut groups: Vec<Vec<VectorValue<'c>>> = vec![Vec::new(); PART];
        for rows in rows.chunks(PART) {
            let within = |order: [usize; PART]| -> Vec<i64> {
                // lanes of the second vector come behind those of the first
                let lane = |at: usize| at / PART * PART + order[at % PART] % PART + order[at % PART] / PART * side;
                (0..side).map(|at| lane(at) as i64).collect()
            };
            let zip = |a, b, order| self.ir.shuffle_pair(a, b, &within(order));
            let [low, high] = [[0, 4, 1, 5], [2, 6, 3, 7]];
            let [first, second] = [[0, 1, 4, 5], [2, 3, 6, 7]];
            let (ab_low, ab_high) = (zip(rows[0], rows[1], low)?, zip(rows[0], rows[1], high)?);
            let (cd_low, cd_high) = (zip(rows[2], rows[3], low)?, zip(rows[2], rows[3], high)?);
            groups[0].push(zip(ab_low, cd_low, first)?);
            groups[1].push(zip(ab_low, cd_low, second)?);
            groups[2].push(zip(ab_high, cd_high, first)?);
            groups[3].push(zip(ab_high, cd_high, second)?);
        }
        let parts = groups.into_iter().map(|group| self.gathered_parts(group)).collect::<Result<Vec<_>>>()?;
        Ok((0..side).map(|lane| parts[lane % PART][lane / PART]).collect())
    }

    /// Of vectors of as many parts as there are vectors: the vectors of their first parts, of their second
    /// ones, …
    fn gathered_parts(&self, vectors: Vec<VectorValue<'c>>) -> Result<Vec<VectorValue<'c>>> {
        if vectors.len() == 1 {
            return Ok(vectors);
        }
        let parts = i64::from(vectors[0].get_type().get_size()) / PART as i64;
        let every_other = |odd: i64| -> Vec<i64> {
            let chosen = (0..parts).map(|at| 2 * at + odd);
            chosen.flat_map(|part| (0..PART as i64).map(move |lane| part * PART as i64 + lane)).collect()
        };
        let half = |odd: i64| -> Result<Vec<VectorValue<'c>>> {
            let pairs = vectors.chunks(2).map(|pair| self.ir.shuffle_pair(pair[0], pair[1], &every_other(odd)));
            self.gathered_parts(pairs.collect::<Result<_>>()?)
        };
        let (even, odd) = (half(0)?, half(1)?);
        Ok(even.into_iter().zip(odd).flat_map(|(even, odd)| [even, odd]).collect())
    }
}

/// Some iterations of the unrolled loop, as many as fit into a register.
struct Place<'s> {
    l: &'s Loop,
    vector: &'s Loop,
    first: i64,
    count: usize,
    /// Lanes of a register.
    side: usize,
}

/// The distinct loads that happen in any case.
fn unguarded_loads(expr: &Expr, found: &mut Vec<(TensorId, Vec<Index>)>) {
    match expr {
        Expr::Load { tensor, indices } => {
            let load = (*tensor, indices.clone());
            if !found.contains(&load) {
                found.push(load);
            }
        }
        Expr::Guard { .. } => {}
        _ => expr.children().for_each(|child| unguarded_loads(child, found)),
    }
}
