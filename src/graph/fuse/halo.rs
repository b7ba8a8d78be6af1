//! Blocks of rows whose windows overlap: a reduction and one that slides over what it leaves, block by block.
//!
//! ```text
//! t[h, w, c] = Σ x[h, w, k] · u[c, k]            y[h, w, c] = Σ t[h + i - 1, w + j - 1, c] · v[c, i, j]
//! =>
//! t[b, r, w, c] = Σ x[4·b + r - 1, w, k] · u[c, k]      of block b, six rows r: four and a halo
//! y[b, p, w, c] = Σ t[b, p + i, w + j - 1, c] · v[c, i, j]      its four rows p
//! ```
//!
//! Both share the axis b, and what is between them stays in the cache. Rows of a halo are computed once more
//! for each block that they belong to. (Overlapped tiles: Krishnamoorthy et al., *Effective Automatic
//! Parallelization of Stencil Computations*, PLDI 2007; of layers: Alwani et al., *Fused-Layer CNN
//! Accelerators*, MICRO 2016.)

use super::group::Member;
use super::prepare::extents_of;
use super::view::{ranges, tidy};
use crate::workload::{
    Atom, Combiner, Condition, Expr, Index, Stage, Tensor, TensorId, Var, shared_axes, typed_identity,
};

/// Blocks, those of leading axes counted, at least.
const LEAST_BLOCKS: i64 = 8;
/// Bytes that stages leave for a block, at most: they stay in the cache of a core.
const MOST_BYTES: i64 = 512 << 10;
/// Where leading axes alone have so many rows, each of which stays as near, these are shared without halos.
const ENOUGH_ROWS: i64 = 16;
/// Bytes that are not written, at least: fewer stay in the caches of some cores without that.
const LEAST_BYTES: i64 = 2 << 20;
/// Operations that are done once more, for each byte that is not written, at most.
const MOST_REPEATED: i64 = 10;

/// How windows slide over the rows that other stages leave.
struct Windows {
    /// The axis of rows, in all stages.
    axis: usize,
    /// Rows that are given, and that are made of them.
    rows: [i64; 2],
    /// A row is made of those from `low` to `high` behind `stride` times its number.
    stride: i64,
    low: i64,
    high: i64,
}

/// The rows of a block.
struct Block {
    made: i64,
    given: i64,
    count: i64,
}

/// Stages, and those that slide over what they leave, over blocks of rows; `None` where windows do not slide
/// over rows that both sides share otherwise, or more would be computed again than is saved.
pub(super) fn over_blocks(before: &[Member], behind: &[Member], tensors: &[Tensor]) -> Option<Vec<Member>> {
    let [given, made] = [before, behind].map(|members| members.iter().map(|m| &m.stage).collect::<Vec<&Stage>>());
    let windows = Windows::of(&given, &made)?;
    if !given.iter().all(|stage| windows.can_guard(stage, &given, tensors)) {
        return None;
    }
    let block = windows.block(&given, &made, tensors)?;
    let given = before.iter().map(|member| windows.given(member, before, &block, tensors));
    let made = behind.iter().map(|member| windows.made(member, [before, behind], &block));
    Some(given.chain(made).collect())
}

fn writes(members: &[Member], tensor: TensorId) -> bool {
    members.iter().any(|member| member.stage.output == tensor)
}

impl Windows {
    fn of(before: &[&Stage], behind: &[&Stage]) -> Option<Windows> {
        let all = [before, behind].concat();
        let axis = shared_axes(&all);
        let is_shared = |stages: &[&Stage]| shared_axes(stages) > axis;
        if !all.iter().all(|stage| stage.extents.is_fixed()) || !is_shared(before) || !is_shared(behind) {
            return None;
        }
        let (mut stride, mut low, mut high) = (None, i64::MAX, i64::MIN);
        let mut slides = true;
        for stage in behind {
            stage.value.for_each_load(&mut |tensor, indices| {
                if !before.iter().any(|other| other.output == tensor) {
                    return;
                }
                let elsewhere = indices.iter().enumerate().any(|(d, i)| d != axis && i.mentions(var(axis)));
                let window = indices.get(axis).and_then(|index| window(stage, index, axis)).filter(|_| !elsewhere);
                match window {
                    Some((step, first, last)) if stride.is_none_or(|known| known == step) => {
                        (stride, low, high) = (Some(step), low.min(first), high.max(last));
                    }
                    _ => slides = false,
                }
            });
        }
        let rows = [before, behind].map(|stages| stages[0].spatial[axis]);
        Some(Windows { axis, rows, stride: stride.filter(|_| slides)?, low, high })
    }

    /// Whether what a stage before would read for rows that are nobody's can be told, and is not read: by
    /// plain indices, of fixed extents.
    fn can_guard(&self, stage: &Stage, before: &[&Stage], tensors: &[Tensor]) -> bool {
        let mut can = true;
        stage.value.for_each_load(&mut |tensor, indices| {
            let is_given = before.iter().any(|other| other.output == tensor);
            let extents = &tensors[tensor.0 as usize].extents;
            let mut by_rows = indices.iter().enumerate().filter(|(_, index)| index.mentions(var(self.axis)));
            can &= is_given || by_rows.all(|(at, index)| !index.has_value() && extents.get(at).is_none());
        });
        can
    }

    /// The largest blocks that stay near; `None` where none does, where too little is saved, or too much
    /// would be computed again for it.
    fn block(&self, before: &[&Stage], behind: &[&Stage], tensors: &[Tensor]) -> Option<Block> {
        let [given, made] = self.rows;
        let leading: i64 = before[0].spatial[..self.axis].iter().product();
        let bytes = |tensor: TensorId| {
            let about = &tensors[tensor.0 as usize];
            about.elements() * about.dtype.bytes() as i64
        };
        let is_taken = |stage: &&&Stage| {
            let mut taken = false;
            let mut look = |tensor, _: &[Index]| taken |= tensor == stage.output;
            behind.iter().for_each(|reader| reader.value.for_each_load(&mut look));
            taken
        };
        let saved: i64 = before.iter().filter(is_taken).map(|stage| bytes(stage.output)).sum();
        if saved < LEAST_BYTES || leading >= ENOUGH_ROWS && saved / leading <= MOST_BYTES {
            return None;
        }
        let of_row = saved / leading.max(1) / given.max(1);
        let operations: i64 = before.iter().filter(|stage| stage.is_reduction()).map(|stage| 2 * stage.points()).sum();
        let blocks = (1..made).rev().filter(|rows| made % rows == 0).map(|rows| Block {
            made: rows,
            given: (rows - 1) * self.stride + self.high - self.low + 1,
            count: made / rows,
        });
        let near = |block: &Block| leading * block.count >= LEAST_BLOCKS && block.given * of_row <= MOST_BYTES;
        let block = blocks.into_iter().find(near)?;
        let repeated = (block.given * block.count - given).max(0);
        (operations / given * repeated <= MOST_REPEATED * saved).then_some(block)
    }

    /// The number of a row that stages before compute: of a block, and in it.
    fn given_row(&self, block: &Block) -> Index {
        let first = Index::var(var(self.axis)).times(block.made * self.stride);
        first.plus(&Index::var(var(self.axis + 1))).plus_constant(self.low)
    }

    /// Axes of a stage, those of its rows replaced.
    fn moved(&self, stage: &Stage, row: &Index, [count, rows]: [i64; 2]) -> (Vec<i64>, Expr) {
        let mut spatial = stage.spatial.clone();
        spatial.splice(self.axis..=self.axis, [count, rows]);
        let value = stage.value.substitute(&|read| {
            let at = read.0 as usize;
            match at.cmp(&self.axis) {
                std::cmp::Ordering::Less => None,
                std::cmp::Ordering::Equal => Some(row.clone()),
                std::cmp::Ordering::Greater => Some(Index::var(var(at + 1))),
            }
        });
        (spatial, value)
    }

    /// An access to what has blocks of rows.
    fn in_blocks(&self, tensor: TensorId, indices: &[Index], row: Index) -> Expr {
        let mut indices = indices.to_vec();
        indices.splice(self.axis..=self.axis, [Index::var(var(self.axis)), row]);
        Expr::load(tensor, indices)
    }

    /// A stage before, over the rows of blocks and their halos. Those beyond the first row and the last one
    /// are nobody's: what they would read is not read.
    fn given(&self, Member { stage, nodes }: &Member, before: &[Member], block: &Block, tensors: &[Tensor]) -> Member {
        let (spatial, value) = self.moved(stage, &self.given_row(block), [block.count, block.given]);
        let own_row = Index::var(var(self.axis + 1));
        let value = value.map_loads(&mut |tensor, indices| {
            writes(before, tensor).then(|| self.in_blocks(tensor, indices, own_row.clone()))
        });
        let mut moved = Stage { spatial, value, ..stage.clone() };
        let extents = extents_of(&moved);
        let of_rows = [self.axis, self.axis + 1].map(var);
        let needed = |tensor: TensorId, indices: &[Index], known: &[Condition]| {
            let about = &tensors[tensor.0 as usize];
            let is_of_rows = |index: &Index| of_rows.iter().any(|row| index.mentions(*row));
            let dimensions = indices.iter().zip(&about.shape).filter(|(index, _)| is_of_rows(index));
            let unknown = dimensions.filter(|(index, extent)| {
                let is_inside = |low: i64, high: i64| low >= 0 && high < **extent;
                let of_itself = index.range(&ranges(&extents)).is_some_and(|range| is_inside(range.low, range.high));
                let implied = known.iter().filter_map(|condition| condition.implied_range(index));
                !of_itself && !implied.into_iter().any(|range| is_inside(range.low, range.high))
            });
            let conditions = unknown.map(|(index, extent)| Condition { index: index.clone(), low: 0, high: *extent });
            (conditions.collect(), typed_identity(Combiner::Sum, about.dtype))
        };
        guard_loads(&mut moved.value, &[], &|tensor, indices, known| match writes(before, tensor) {
            true => (Vec::new(), Expr::float(0.0)),
            false => needed(tensor, indices, known),
        });
        Member { stage: Stage { value: tidy(&moved.value, &extents), ..moved }, nodes: nodes.clone() }
    }

    /// A stage behind, over the rows of blocks.
    fn made(&self, Member { stage, nodes }: &Member, [before, behind]: [&[Member]; 2], block: &Block) -> Member {
        let own_row = Index::var(var(self.axis + 1));
        let row = Index::var(var(self.axis)).times(block.made).plus(&own_row);
        let (spatial, value) = self.moved(stage, &row, [block.count, block.made]);
        let first = Index::var(var(self.axis)).times(block.made * self.stride).plus_constant(self.low);
        let value = value.map_loads(&mut |tensor, indices| {
            if writes(behind, tensor) {
                return Some(self.in_blocks(tensor, indices, own_row.clone()));
            }
            let in_block = || indices[self.axis].clone().minus(&first);
            writes(before, tensor).then(|| self.in_blocks(tensor, indices, in_block()))
        });
        let moved = Stage { spatial, value, ..stage.clone() };
        let value = tidy(&moved.value, &extents_of(&moved));
        Member { stage: Stage { value, ..moved }, nodes: nodes.clone() }
    }
}

fn var(axis: usize) -> Var {
    Var(axis as u32)
}

/// The step of an index along an axis of a stage, and the least and the most that steps of its reduction add.
fn window(stage: &Stage, index: &Index, axis: usize) -> Option<(i64, i64, i64)> {
    let (mut stride, mut low, mut high) = (0, index.offset(), index.offset());
    for (atom, coefficient) in index.terms() {
        let Atom::Var(read) = atom else { return None };
        if *read == var(axis) {
            stride = *coefficient;
            continue;
        }
        let reduced = (read.0 as usize).checked_sub(stage.spatial.len())?;
        let reach = coefficient * (stage.reduction.get(reduced)? - 1);
        (low, high) = (low + reach.min(0), high + reach.max(0));
    }
    (stride > 0).then_some((stride, low, high))
}

/// What a load needs to be inside of its tensor, of which the conditions around it say some; and what is
/// there elsewhere.
type Needed<'n> = &'n dyn Fn(TensorId, &[Index], &[Condition]) -> (Vec<Condition>, Expr);

fn guard_loads(value: &mut Expr, known: &[Condition], needed: Needed<'_>) {
    match value {
        Expr::Load { tensor, indices } => {
            let (conditions, outside) = needed(*tensor, indices, known);
            *value = Expr::guard(conditions, value.clone(), outside);
        }
        Expr::Guard { conditions, inside, outside } => {
            guard_loads(inside, &[known, conditions].concat(), needed);
            guard_loads(outside, known, needed);
        }
        _ => value.children_mut().for_each(|child| guard_loads(child, known, needed)),
    }
}
