//! Cutting matrix loops into tile registers.

use std::collections::HashMap;

use super::replace_vars;
use crate::nest::{Buffer, Loop, LoopKind, Nest, Scope, Stmt, tiles};
use crate::target::{TILE_LANES, TILE_REGISTERS, TILE_ROWS};
use crate::workload::{Expr, Index, TensorId};

impl Nest {
    /// Cuts matrix loops into [tiles]. Sums that are not stored as they are leave the registers through
    /// memory:
    ///
    /// ```text
    /// matrix for i in 0..20 { matrix for j in 0..16 { y[i, j] = f(r[i, j]) } }
    /// =>
    /// matrix for i in 0..10 { matrix for j in 0..16 { m[i, j] = r[i, j] } }
    /// matrix for i in 0..10 { matrix for j in 0..16 { m[10 + i, j] = r[10 + i, j] } }
    /// for i in 0..20 { vector for j in 0..16 { y[i, j] = f(m[i, j]) } }
    /// ```
    ///
    /// Where something is no tile's work, as a sum whose operands do not lie as the instructions take them,
    /// all of these loops are written out instead. Rows of copies that would push each other out of the
    /// nearest cache get farther apart.
    #[must_use]
    pub fn in_tiles(mut self) -> Nest {
        let known = self.buffers.len();
        let mut cutting = Cutting { kept: HashMap::new(), nest: &mut self };
        let body = std::mem::take(&mut cutting.nest.body);
        match cutting.statements(&body) {
            Some(cut) => {
                self.body = cut;
                self.spread_rows();
            }
            None => {
                self.buffers.truncate(known);
                self.body = body;
                written_out(&mut self.body);
            }
        }
        self
    }
}

impl Nest {
    /// Rows of tiles that lie a power of two apart share few sets of the nearest cache, and push each other
    /// out: those of operands that were copied for the nest lie a line farther.
    fn spread_rows(&mut self) {
        let mut wanted: Vec<TensorId> = Vec::new();
        super::for_each_stmt(&self.body, &mut |stmt| {
            if let Stmt::Loop(l) = stmt
                && let Some(tiles::Action::Multiply { operands, .. }) = tiles::action(self, l)
            {
                let clashes = |tile: &&tiles::Tile<'_>| {
                    let buffer = self.buffer(tile.buffer);
                    buffer.scope == Scope::Workspace
                        && tile.stride * buffer.dtype.bytes() as i64 % CLASHING_BYTES == 0
                        && buffer.shape.last() == Some(&tile.stride)
                        && buffer.extents.is_fixed()
                };
                wanted.extend(operands.iter().filter(clashes).map(|tile| tile.buffer));
            }
        });
        wanted.sort_unstable();
        wanted.dedup();
        for buffer in wanted {
            let known = &mut self.buffers[buffer.0 as usize];
            let line = LINE_BYTES / known.dtype.bytes() as i64;
            if let Some(row) = known.shape.last_mut() {
                *row += line;
            }
        }
    }
}

/// Rows so far apart, or a multiple, lie in a quarter of the sets of a cache of 64 sets at most.
const CLASHING_BYTES: i64 = 1024;
const LINE_BYTES: i64 = 64;

/// Matrix loops as loops that need no tiles: vectors over the innermost, the others unrolled.
fn written_out(stmts: &mut [Stmt]) {
    for stmt in stmts {
        match stmt {
            Stmt::Loop(l) => {
                let is_outer = matches!(l.body.as_slice(), [Stmt::Loop(inner)] if inner.kind == LoopKind::Matrix);
                if l.kind == LoopKind::Matrix {
                    l.kind = if is_outer { LoopKind::Unroll } else { LoopKind::Vector };
                }
                written_out(&mut l.body);
            }
            Stmt::If { body, .. } => written_out(body),
            Stmt::Store { .. } | Stmt::Accumulate { .. } => {}
        }
    }
}

struct Cutting<'a> {
    nest: &'a mut Nest,
    /// By register buffer: where in memory its tiles go.
    kept: HashMap<TensorId, TensorId>,
}

impl Cutting<'_> {
    fn statements(&mut self, stmts: &[Stmt]) -> Option<Vec<Stmt>> {
        let mut result = Vec::with_capacity(stmts.len());
        for stmt in stmts {
            match stmt {
                Stmt::Loop(l) if l.kind == LoopKind::Matrix => result.extend(self.matrix(l)?),
                Stmt::Loop(l) => {
                    let body = self.statements(&l.body)?;
                    result.push(Stmt::Loop(Loop { body, ..l.head() }));
                }
                Stmt::If { conditions, body } => {
                    let body = self.statements(body)?;
                    result.push(Stmt::If { conditions: conditions.clone(), body });
                }
                Stmt::Store { .. } | Stmt::Accumulate { .. } => result.push(stmt.clone()),
            }
        }
        Some(result)
    }

    fn matrix(&mut self, l: &Loop) -> Option<Vec<Stmt>> {
        let (loops, body) = tiles::sides(l);
        if let Some(cut) = self.cut(&loops, body) {
            return Some(cut);
        }
        let [rows, columns] = loops[..] else { return None };
        let (sums, place) = self.sums_of(body)?;
        let kept = self.kept(sums);
        let store = Stmt::Store { buffer: kept, indices: place.clone(), value: Expr::load(sums, place) };
        let mut result = self.cut(&loops, &[store])?;
        let mut body = body.to_vec();
        super::change_exprs(&mut body, &mut |value| {
            *value =
                value.map_loads(&mut |loaded, indices| (loaded == sums).then(|| Expr::load(kept, indices.to_vec())));
        });
        let columns = Loop { kind: LoopKind::Vector, ..columns.around(body) };
        result.push(Stmt::Loop(Loop { kind: LoopKind::Serial, ..rows.around(vec![Stmt::Loop(columns)]) }));
        Some(result)
    }

    /// A tile's work after the other; `None` where it is none.
    fn cut(&self, loops: &[&Loop], body: &[Stmt]) -> Option<Vec<Stmt>> {
        let (rows, columns) = (loops.first()?, loops.last()?);
        let (above, beside) = (even_parts(rows.extent()), parts(columns.extent()));
        if tiles::registers(above.len(), beside.len()) > TILE_REGISTERS {
            return None;
        }
        let mut result = Vec::new();
        for (from_row, height) in above {
            for (from_column, width) in beside.iter().copied() {
                let mut body = body.to_vec();
                let [row, column] = [(rows, from_row), (columns, from_column)]
                    .map(|(l, from)| (l.var, Index::var(l.var).plus_constant(from)));
                replace_vars(&mut body, &|var| {
                    [&row, &column].into_iter().find(|(of, _)| *of == var).map(|(_, at)| at)
                });
                for l in loops.iter().rev() {
                    let extent = match l.var {
                        var if var == rows.var => height,
                        var if var == columns.var => width,
                        _ if l.is_constant() => l.extent(),
                        _ => return None,
                    };
                    body = vec![Stmt::Loop(Loop { bounds: vec![Index::constant(extent)], ..l.around(body) })];
                }
                let is_tile = |stmt: &Stmt| matches!(stmt, Stmt::Loop(l) if tiles::action(self.nest, l).is_some());
                if !body.iter().all(is_tile) {
                    return None;
                }
                result.extend(body);
            }
        }
        [*rows, *columns].iter().all(|l| l.is_constant()).then_some(result)
    }

    /// The one element of a register buffer that is read.
    fn sums_of(&self, body: &[Stmt]) -> Option<(TensorId, Vec<Index>)> {
        let mut found = Vec::new();
        super::for_each_stmt(body, &mut |stmt| {
            if let Stmt::Store { value, .. } | Stmt::Accumulate { value, .. } = stmt {
                value.for_each_load(&mut |buffer, indices| {
                    let is_sum = self.nest.buffer(buffer).scope == Scope::Register;
                    let one = (buffer, indices.to_vec());
                    if is_sum && !found.contains(&one) {
                        found.push(one);
                    }
                });
            }
        });
        found.pop().filter(|_| found.is_empty())
    }

    fn kept(&mut self, sums: TensorId) -> TensorId {
        if let Some(kept) = self.kept.get(&sums) {
            return *kept;
        }
        let of = self.nest.buffer(sums);
        let buffer = Buffer::new(format!("{}_kept", of.name), of.shape.clone(), of.dtype, Scope::BlockShared);
        let kept = self.nest.add_buffer(buffer);
        self.kept.insert(sums, kept);
        kept
    }
}

/// Where tiles begin along their rows, and how many rows each of them has: as even as can be.
fn even_parts(extent: i64) -> Vec<(i64, i64)> {
    let count = (extent + TILE_ROWS - 1) / TILE_ROWS;
    let begin = |part: i64| part * extent / count.max(1);
    (0..count).map(|part| (begin(part), begin(part + 1) - begin(part))).collect()
}

/// The same along columns: whole lines, and what is left.
fn parts(extent: i64) -> Vec<(i64, i64)> {
    let begins = (0..extent).step_by(TILE_LANES as usize);
    begins.map(|begin| (begin, TILE_LANES.min(extent - begin))).collect()
}

#[cfg(test)]
mod tests {
    use super::{even_parts, parts};

    #[test]
    fn rows_are_shared_out_evenly_and_columns_fill_lines() {
        assert_eq!(even_parts(28), [(0, 14), (14, 14)]);
        assert_eq!(even_parts(17), [(0, 8), (8, 9)]);
        assert_eq!(even_parts(5), [(0, 5)]);
        assert_eq!(parts(40), [(0, 16), (16, 16), (32, 8)]);
    }
}
