//! How scratch buffers are laid out.

use super::{Refusal, change_accesses};
use crate::nest::matrix::CORE;
use crate::nest::{Nest, Scope};
use crate::workload::{Index, TensorId};

impl Nest {
    /// Lays a scratch buffer out anew. Each group of its dimensions becomes one, in the order given, and rows
    /// of the last are `padding` elements longer.
    ///
    /// ```text
    /// p[t, k, i] of 16 × 8 × 4                        as [[1], [0, 2]], padding 1
    /// =>
    /// p[k, 4*t + i] of 8 × 65
    /// ```
    ///
    /// # Errors
    /// [`Refusal::NotScratch`], and [`Refusal::DimensionGroups`] where groups do not name all its dimensions
    /// once.
    pub fn relayout(mut self, buffer: TensorId, groups: &[Vec<usize>], padding: i64) -> Result<Nest, Refusal> {
        let known = &mut self.buffers[buffer.0 as usize];
        if !matches!(known.scope, Scope::BlockShared | Scope::Workspace) {
            return Err(Refusal::NotScratch(buffer));
        }
        let mut named: Vec<usize> = groups.concat();
        named.sort_unstable();
        if named.iter().copied().ne(0..known.shape.len()) {
            return Err(Refusal::DimensionGroups(buffer));
        }
        let extents = std::mem::take(&mut known.shape);
        known.shape = groups.iter().map(|group| group.iter().map(|d| extents[*d]).product()).collect();
        if let Some(last) = known.shape.last_mut() {
            *last += padding;
        }
        let joined = |indices: &mut Vec<Index>| {
            let join = |group: &Vec<usize>| {
                group.iter().fold(Index::constant(0), |sum, d| sum.times(extents[*d]).plus(&indices[*d]))
            };
            *indices = groups.iter().map(join).collect();
        };
        change_accesses(&mut self.body, &mut |accessed, indices| {
            if accessed == buffer {
                joined(indices);
            }
        });
        Ok(self)
    }

    /// Lays the last two dimensions of a scratch buffer out in matrices of 8 × 8, each in one piece,
    /// `padding` elements behind each of them. Neighbours in memory are neighbours along the last dimension,
    /// or else along the one before.
    ///
    /// ```text
    /// p[k, j] of 32 × 64                                   by columns, padding 8
    /// =>
    /// p[k / 8, j / 8, 8*(k % 8) + j % 8] of 4 × 8 × 72
    /// ```
    ///
    /// # Errors
    /// [`Refusal::NotScratch`], and [`Refusal::PartOfCoreMatrix`] for sides that are not multiples of 8.
    pub fn in_core_matrices(mut self, buffer: TensorId, by_columns: bool, padding: i64) -> Result<Nest, Refusal> {
        let known = &mut self.buffers[buffer.0 as usize];
        if !matches!(known.scope, Scope::BlockShared | Scope::Workspace) {
            return Err(Refusal::NotScratch(buffer));
        }
        let [others @ .., rows, columns] = known.shape.as_slice() else {
            return Err(Refusal::PartOfCoreMatrix(buffer));
        };
        if rows % CORE != 0 || columns % CORE != 0 {
            return Err(Refusal::PartOfCoreMatrix(buffer));
        }
        known.shape = [others, &[rows / CORE, columns / CORE, CORE * CORE + padding]].concat();
        change_accesses(&mut self.body, &mut |accessed, indices| {
            if accessed == buffer
                && let [.., row, column] = indices.as_mut_slice()
            {
                let (row, column) = (std::mem::take(row), std::mem::take(column));
                let inside = [row.clone().modulo(CORE), column.clone().modulo(CORE)];
                let [outer, inner] = if by_columns { inside } else { [inside[1].clone(), inside[0].clone()] };
                indices.truncate(indices.len() - 2);
                indices.extend([row.floor_div(CORE), column.floor_div(CORE), outer.times(CORE).plus(&inner)]);
            }
        });
        Ok(self)
    }
}
