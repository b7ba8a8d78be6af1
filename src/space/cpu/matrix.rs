//! Whether a sum of products of short numbers is computed in tile registers, where the machine has them.

use super::sizes::{default_tile, vector_tiles};
use crate::nest::tiles::registers;
use crate::space::access::Access;
use crate::space::fuse::touches;
use crate::space::{Axis, Group, MmaTile, Stop, Tape, name, site};
use crate::target::{Cpu, TILE_LANES, TILE_REGISTERS, TILE_ROWS};
use crate::workload::{Var, Workload};

/// A default product has so many rows, and is so deep, at least: an instruction takes as long for less.
const LEAST_ROWS: i64 = 4;
const LEAST_DEPTH: i64 = 4;
/// Tile registers of the untuned program, below each other and beside each other: each operand is used twice.
const DEFAULT_TILES: i64 = 2;

/// Asks along which axis the rows of tiles lie, if there are to be any: it moves the operand that lanes
/// share. Columns are what runs in vectors, and the depth is made of the groups of steps that instructions
/// take.
pub(super) fn matrix(
    workload: &Workload,
    target: &Cpu,
    group: &mut Group,
    reads: &[Access],
    tape: &mut Tape<'_>,
) -> Result<(), Stop> {
    let (Some(dot), Some(columns), [one, other]) = (group.dot, group.vector, reads) else { return Ok(()) };
    let [first, second] = if touches(one, group, columns) { [other, one] } else { [one, other] };
    let dtype = |access: &Access| workload.tensor(access.tensor).dtype;
    let is_free = |at: usize| !group.axes[at].varies && !group.axes[at].ragged && group.axes[at].extent > 1;
    let moves = |at: usize| [touches(first, group, at), touches(second, group, at)];
    let fits = is_free(columns) && is_free(dot.axis) && moves(columns) == [false, true];
    if !fits || !target.has_tiles([dtype(first), dtype(second)]) {
        return Ok(());
    }
    // rows that are known only when it runs, and those of a last block with fewer, are computed in pieces
    let is_row = |at: &usize| {
        let axis = &group.axes[*at];
        (is_free(*at) || axis.varies || axis.ragged) && moves(*at) == [true, false]
    };
    let rows: Vec<usize> = group.positions(false).into_iter().filter(is_row).collect();
    let mut candidates = vec![name("none")];
    candidates.extend(rows.iter().map(|at| name(group.axes[*at].letter())));
    let depth = depths(group.axes[dot.axis].extent).last().copied().unwrap_or(1);
    let length = |at: usize| group.axes[at].usual.typical;
    let is_worth_it = |at: &&usize| length(**at) >= LEAST_ROWS && depth >= LEAST_DEPTH;
    // the longest, and of equals the innermost
    let longest = rows.iter().filter(is_worth_it).max_by_key(|at| (length(**at), **at));
    let default = longest.and_then(|at| rows.iter().position(|row| row == at)).map_or(0, |at| at + 1);
    // before there was the rule, there were no tiles
    let answer = tape.choose_since(site("mma", [group.name()]), candidates.clone(), default, 0)?;
    let chosen = candidates.iter().position(|c| *c == answer).and_then(|c| c.checked_sub(1));
    if let Some(rows) = chosen.map(|at| rows[at]) {
        let operands = dtype(first);
        group.matrix = Some(MmaTile { rows, columns, depth: dot.axis, operands, width: TILE_LANES });
    }
    Ok(())
}

/// Asks for tiles, and their default.
pub(super) type Ask<'a> = &'a mut dyn FnMut(&mut Group, usize, (Vec<i64>, usize)) -> Result<(), Stop>;

/// The block of tile registers: columns, rows, those of a further axis, and the depth of a product.
pub(super) fn tiles(group: &mut Group, reads: &[Access], ask: Ask<'_>) -> Result<(), Stop> {
    let Some(MmaTile { rows, columns, depth, .. }) = group.matrix else { return Ok(()) };
    let most_below = if fits_at_once(group, reads, rows) { most_beside(1) } else { DEFAULT_TILES };
    let most_columns = if most_below > DEFAULT_TILES { TILE_LANES } else { DEFAULT_TILES * TILE_LANES };
    ask(group, columns, tiles_of_columns(group, columns, most_columns))?;
    ask(group, rows, tiles_of_rows(group, (rows, columns), most_below * TILE_ROWS))?;
    if let Some((other, tiles)) = tiles_of_further_rows(group, reads, (rows, columns)) {
        ask(group, other, tiles)?;
    }
    let depths = depths(group.axes[depth].extent);
    let deepest = depths.len() - 1;
    ask(group, depth, (depths, deepest))
}

/// Whether there are more rows than the untuned program has below each other, and registers for all of them:
/// then the other operand, which lies farther away, is read once.
fn fits_at_once(group: &Group, reads: &[Access], rows: usize) -> bool {
    let moves_rows = |at: usize| reads.iter().all(|read| touches(read, group, at) == touches(read, group, rows));
    let is_alone =
        group.positions(false).into_iter().all(|at| at == rows || group.axes[at].extent == 1 || !moves_rows(at));
    let tiles = (group.axes[rows].usual.most + TILE_ROWS - 1) / TILE_ROWS;
    is_alone && (DEFAULT_TILES + 1..=most_beside(1)).contains(&tiles)
}

/// Columns of a block of tile registers: whole lines, or all that there are; the untuned program's up to
/// `most`.
fn tiles_of_columns(group: &Group, at: usize, most: i64) -> (Vec<i64>, usize) {
    let extent = group.axes[at].extent;
    let mut candidates = vector_tiles(extent, TILE_LANES);
    candidates.retain(|tile| *tile <= most_beside(1) * TILE_LANES);
    let default = default_tile(extent, &candidates, most);
    (candidates, default)
}

/// The same of rows.
fn tiles_of_rows(group: &Group, (at, columns): (usize, usize), most_untuned: i64) -> (Vec<i64>, usize) {
    let usual = group.axes[at].usual;
    let beside = (group.axes[columns].tile + TILE_LANES - 1) / TILE_LANES;
    let Axis { ragged, extent, .. } = group.axes[at];
    let most = usual.most.min(most_beside(beside) * TILE_ROWS);
    let candidates: Vec<i64> = (1..=most).filter(|tile| !ragged || extent % tile == 0).collect();
    let default = default_tile(usual.typical, &candidates, most_untuned);
    (candidates, default)
}

/// The same of the axis that takes the place of further rows, where those of one are few, as of an image that
/// is hardly wider than a tile has rows: the innermost other one that moves the same operand.
fn tiles_of_further_rows(
    group: &Group,
    reads: &[Access],
    (rows, columns): (usize, usize),
) -> Option<(usize, (Vec<i64>, usize))> {
    let moves = |at: usize| reads.iter().filter(|read| touches(read, group, at)).count();
    let is_free = |axis: &Axis| !axis.varies && !axis.ragged && axis.extent > 1;
    let fits = |at: &usize| {
        let of_rows = reads.iter().all(|read| touches(read, group, *at) == touches(read, group, rows));
        *at != rows && *at != columns && of_rows && moves(*at) > 0 && is_free(&group.axes[*at])
    };
    let other = group.positions(false).into_iter().rfind(fits)?;
    let tiles = |at: usize, side: i64| (group.axes[at].tile + side - 1) / side;
    let (below, beside) = (tiles(rows, TILE_ROWS), tiles(columns, TILE_LANES));
    let most = (most_beside(beside) / below).min(group.axes[other].extent);
    let candidates: Vec<i64> = (1..=most.max(1)).collect();
    let default = candidates.iter().rposition(|count| count * below <= DEFAULT_TILES).unwrap_or(0);
    Some((other, (candidates, default)))
}

/// Groups of steps that a product can be deep: tails would need tiles of their own.
pub(super) fn depths(extent: i64) -> Vec<i64> {
    (1..=TILE_LANES.min(TILE_ROWS).min(extent)).filter(|depth| extent % depth == 0).collect()
}

/// Tiles beside each other for which there are registers, with so many below each other, or the other way
/// round.
pub(super) fn most_beside(below: i64) -> i64 {
    let fits = |beside: &usize| usize::try_from(below).is_ok_and(|below| registers(below, *beside) <= TILE_REGISTERS);
    (1..TILE_REGISTERS).rfind(fits).unwrap_or(0) as i64
}

/// Whether an operand has to be copied before tiles of it can be loaded: rows lie equally far from one
/// another in memory, and steps side by side; of what lanes take, groups of steps of all of them do.
pub(super) fn needs_copy(workload: &Workload, group: &Group, access: &Access) -> bool {
    let Some(MmaTile { rows, columns, depth, .. }) = group.matrix else { return false };
    let stride = |at: usize| access.stride(workload, Var(group.axes[at].position as u32));
    let in_steps = || match group.fused == Some(rows) {
        // the rows of an axis that two were fused into follow one another where both move alike
        true => {
            let inner = Var(group.axes[rows].position as u32 + 1);
            let extent = workload.stages[group.stage].extent(inner.0 as usize);
            access.stride(workload, inner).is_some_and(|step| stride(rows) == Some(step * extent))
        }
        false => stride(rows).is_some(),
    };
    access.guarded || touches(access, group, columns) || stride(depth) != Some(1) || !in_steps()
}

#[cfg(test)]
mod tests {
    use super::{depths, most_beside};

    #[test]
    fn depths_divide_and_tiles_find_registers() {
        assert_eq!(depths(12), [1, 2, 3, 4, 6, 12]);
        assert_eq!(depths(48), [1, 2, 3, 4, 6, 8, 12, 16]);
        assert_eq!([1, 2, 3, 4, 5, 6].map(most_beside), [5, 2, 1, 1, 1, 0]);
    }
}
