//! How scratch buffers are laid out.

use super::{Refusal, change_accesses};
use crate::nest::{Nest, Scope};
use crate::workload::{Index, TensorId};

impl Nest {
    /// Lays a scratch buffer out anew. Each group of its dimensions becomes one, in the order given, and rows of the last are `padding` elements longer.
    ///
    /// ```text
    /// p[t, k, i] of 16 × 8 × 4                        as [[1], [0, 2]], padding 1
    /// =>
    /// p[k, 4*t + i] of 8 × 65
    /// ```
    ///
    /// # Errors
    /// [`Refusal::Other`] for a buffer that is no scratch, and for groups that do not name all its dimensions once.
    pub fn relayout(mut self, buffer: TensorId, groups: &[Vec<usize>], padding: i64) -> Result<Nest, Refusal> {
        let known = &mut self.buffers[buffer.0 as usize];
        if !matches!(known.scope, Scope::Private | Scope::Shared) {
            return Err(Refusal::Other("only scratch is laid out anew"));
        }
        let mut named: Vec<usize> = groups.concat();
        named.sort_unstable();
        if named.iter().copied().ne(0..known.shape.len()) {
            return Err(Refusal::Other("groups of dimensions must name each once"));
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
}
