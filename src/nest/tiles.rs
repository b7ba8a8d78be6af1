//! Tiles: which `Matrix` loops of a CPU one instruction executes.
//!
//! A processor with tile registers (Intel's AMX) multiplies matrices of short numbers: up to 16 rows of the
//! first by up to 16 columns of the second, as many [dot products](super::dot) deep as a line of memory
//! holds. A tile is a part of a `Register` buffer. It is started, accumulated, stored and fetched as a whole:
//!
//! ```text
//! matrix for i in 0..16 { matrix for j in 0..16 { r[i, j] = 0 } }
//! matrix for i in 0..16 { matrix for k in 0..16 { matrix for j in 0..16 { dot for q in 0..2 { r[i, j] += f32 x[i, k, q] * f32 y[k, j, q] } } } }
//! matrix for i in 0..16 { matrix for j in 0..16 { m[i, j] = r[i, j] } }
//! matrix for i in 0..16 { matrix for j in 0..16 { r[i, j] = m[i, j] } }
//! ```
//!
//! Rows lie in memory as the instructions take them: what a row of a tile holds side by side, and rows
//! equally far from one another.

use super::dot::{self, Operand};
use super::{Buffer, Loop, LoopKind, Nest, Scope, Stmt};
use crate::target::{TILE_LANES, TILE_ROWS};
use crate::workload::{Expr, Index, TensorId, Var, flatten};

/// What the instructions do with tiles.
pub enum Action<'a> {
    /// Sets all sums to zero.
    Start { sums: Tile<'a> },
    /// Adds a product.
    Multiply { sums: Tile<'a>, operands: [Tile<'a>; 2] },
    /// From a register to memory.
    Store { sums: Tile<'a>, to: Tile<'a> },
    /// From memory to a register.
    Fetch { sums: Tile<'a>, from: Tile<'a> },
}

/// A matrix of elements of a buffer.
#[derive(Clone, Copy)]
pub struct Tile<'a> {
    pub buffer: TensorId,
    pub indices: &'a [Index],
    pub rows: i64,
    /// Bytes of a row.
    pub row_bytes: i64,
    /// Elements from a row to the next; of a register it means nothing.
    pub stride: i64,
}

/// Registers for sums in so many tiles below and beside each other, with their operands: of the side with
/// fewer tiles all stay in registers, while those of the other one pass through two.
pub fn registers(below: usize, beside: usize) -> usize {
    let (fewer, more) = (below.min(beside), below.max(beside));
    below * beside + fewer + more.min(PASSING)
}

/// Registers through which operands pass that are used for one row of sums, or one column, at most: while one
/// is multiplied, the next is loaded.
pub const PASSING: usize = 2;

/// What the matrix loops from `l` on do with tiles; `None` where no instruction does it.
pub fn action<'a>(nest: &Nest, l: &'a Loop) -> Option<Action<'a>> {
    let (loops, body) = sides(l);
    let [only] = body else { return None };
    match (&loops[..], only) {
        ([rows, depth, columns], Stmt::Loop(group)) if group.kind == LoopKind::Dot => {
            multiply(nest, [*rows, *depth, *columns], group)
        }
        ([rows, columns], Stmt::Store { buffer, indices, value }) => {
            moved(nest, [*rows, *columns], (*buffer, indices), value)
        }
        _ => None,
    }
}

/// The variables of the loops that an action stands for.
pub fn variables(l: &Loop) -> Vec<Var> {
    let (loops, body) = sides(l);
    let group = match body {
        [Stmt::Loop(group)] if group.kind == LoopKind::Dot => Some(group.var),
        _ => None,
    };
    loops.into_iter().map(|l| l.var).chain(group).collect()
}

/// The matrix loops from `l` on, each the only statement of the one around, and what stands inside.
pub fn sides(l: &Loop) -> (Vec<&Loop>, &[Stmt]) {
    let mut loops = vec![l];
    let mut body = &l.body[..];
    while let [Stmt::Loop(inner)] = body
        && inner.kind == LoopKind::Matrix
    {
        loops.push(inner);
        body = &inner.body;
    }
    (loops, body)
}

/// Whether a loop is a side of a tile of at most so many rows or lanes.
fn is_side(l: &Loop, most: i64) -> bool {
    l.kind == LoopKind::Matrix && l.is_constant() && (1..=most).contains(&l.extent())
}

fn multiply<'a>(nest: &Nest, [rows, depth, columns]: [&'a Loop; 3], group: &'a Loop) -> Option<Action<'a>> {
    let product = dot::product(nest, group)?;
    let is_tile = is_side(rows, TILE_ROWS) && is_side(depth, TILE_ROWS.min(TILE_LANES)) && is_side(columns, TILE_LANES);
    let sums = sums(nest, (product.buffer, product.indices), [rows, columns])?;
    let step = |operand: &Operand<'_>, l: &Loop| step(nest.buffer(operand.buffer), operand.indices, l.var);
    let [first, second] = match step(&product.operands[0], columns) {
        Some(0) => product.operands,
        _ => [product.operands[1], product.operands[0]],
    };
    let is_in_groups = |operand: &Operand<'_>, along: &Loop, across: &Loop| {
        let steps = [group, along, across].map(|l| step(operand, l));
        steps == [Some(1), Some(group.extent()), Some(0)] && !operand.is_guarded
    };
    if !is_tile || !is_in_groups(&first, depth, columns) || !is_in_groups(&second, columns, rows) {
        return None;
    }
    let tile = |operand: &Operand<'a>, rows: &Loop, along: &Loop| {
        let row_bytes = along.extent() * group.extent() * operand.dtype.bytes() as i64;
        let stride = step(operand, rows)?;
        Some(Tile { buffer: operand.buffer, indices: operand.indices, rows: rows.extent(), row_bytes, stride })
    };
    Some(Action::Multiply { sums, operands: [tile(&first, rows, depth)?, tile(&second, depth, columns)?] })
}

/// Sums in registers: the last two indices move with the sides.
fn sums<'a>(nest: &Nest, (buffer, indices): (TensorId, &'a [Index]), [rows, columns]: [&Loop; 2]) -> Option<Tile<'a>> {
    let known = nest.buffer(buffer);
    let moves = |index: &Index| [rows, columns].map(|l| index.step(l.var));
    let [others @ .., row, column] = indices else { return None };
    let fits = known.scope == Scope::Register
        && known.dtype.bytes() == 4
        && [moves(row), moves(column)] == [[Some(1), Some(0)], [Some(0), Some(1)]]
        && others.iter().all(|index| moves(index) == [Some(0); 2]);
    fits.then(|| Tile { buffer, indices, rows: rows.extent(), row_bytes: 4 * columns.extent(), stride: 0 })
}

/// What a store to an element for each of two sides does.
fn moved<'a>(nest: &Nest, sides: [&Loop; 2], to: (TensorId, &'a [Index]), value: &'a Expr) -> Option<Action<'a>> {
    let [rows, columns] = sides;
    if !is_side(rows, TILE_ROWS) || !is_side(columns, TILE_LANES) {
        return None;
    }
    let is_register = |buffer: TensorId| nest.buffer(buffer).scope == Scope::Register;
    let in_memory = |(buffer, indices): (TensorId, &'a [Index])| {
        let known: &Buffer = nest.buffer(buffer);
        let is_row = step(known, indices, columns.var) == Some(1) && known.dtype.bytes() == 4 && !is_register(buffer);
        let stride = step(known, indices, rows.var).filter(|_| is_row)?;
        Some(Tile { buffer, indices, rows: rows.extent(), row_bytes: 4 * columns.extent(), stride })
    };
    match value {
        Expr::Load { tensor, indices } if nest.buffer(*tensor).dtype == nest.buffer(to.0).dtype => {
            let from = (*tensor, &indices[..]);
            if is_register(to.0) {
                return Some(Action::Fetch { sums: sums(nest, to, sides)?, from: in_memory(from)? });
            }
            Some(Action::Store { sums: sums(nest, from, sides)?, to: in_memory(to)? })
        }
        value if value.is_zero() => Some(Action::Start { sums: sums(nest, to, sides)? }),
        _ => None,
    }
}

/// Elements that an access moves by when a variable grows by one; `None` where that is not constant.
fn step(buffer: &Buffer, indices: &[Index], var: Var) -> Option<i64> {
    // what a fused axis divides is whole again in memory
    let in_memory = || flatten(indices, &buffer.shape).step(var).filter(|_| buffer.extents.is_fixed());
    buffer.step(indices, var).or_else(in_memory)
}
