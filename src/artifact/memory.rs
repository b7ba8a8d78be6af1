//! The static memory plan: where in one arena every intermediate of a network lives.
//!
//! Two blocks may share bytes when no call needs both, nor two calls that may run at the same time. Blocks
//! are placed one after the other, each into the smallest gap that holds it (greedy best fit, as in
//! Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020); a few orders are
//! tried, largest first being the best most of the time, and the smallest arena wins.

use std::cmp::Reverse;

/// Blocks start at multiples of this many bytes: a cache line, and the widest vector register.
pub const ALIGNMENT: u64 = 64;

/// An intermediate, and the calls that need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    pub bytes: u64,
    /// The first and the last call that mention it.
    pub first: usize,
    pub last: usize,
    /// The same where it is alive for calls that run at the same time: for all strands of a fork that one of
    /// them needs it in.
    pub alive: (usize, usize),
    /// The fork, and the strand of it, where nothing else mentions it.
    pub strand: Option<(usize, usize)>,
}

impl Block {
    /// A block that these calls mention, none of which runs beside another.
    pub fn new(bytes: u64, first: usize, last: usize) -> Block {
        Block { bytes, first, last, alive: (first, last), strand: None }
    }

    fn overlaps(&self, other: &Block) -> bool {
        let is_same_strand = self.strand.is_some() && self.strand == other.strand;
        let life = |block: &Block| if is_same_strand { (block.first, block.last) } else { block.alive };
        let (own, others) = (life(self), life(other));
        own.0 <= others.1 && others.0 <= own.1
    }

    fn padded(&self) -> u64 {
        self.bytes.next_multiple_of(ALIGNMENT)
    }
}

/// An offset for each block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryPlan {
    /// In bytes from the start of the arena, by block.
    pub offsets: Vec<u64>,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// What the blocks would take without sharing.
    pub sum_bytes: u64,
    /// What no plan can go below: the most that is alive during one call.
    pub lower_bound_bytes: u64,
}

/// What blocks are placed by, the least first.
type Priority = fn(&Block) -> Reverse<(u64, u64)>;

/// Places all blocks.
pub fn plan(blocks: &[Block]) -> MemoryPlan {
    let orders: [Priority; 3] = [
        |block| Reverse((block.padded(), 0)),
        |block| Reverse(((block.last - block.first) as u64, block.padded())),
        |block| Reverse((u64::MAX - block.first as u64, block.padded())),
    ];
    let place_in = |key: &Priority| {
        let mut order: Vec<usize> = (0..blocks.len()).collect();
        order.sort_by_key(|block| key(&blocks[*block]));
        let offsets = place(blocks, &order);
        (extent(blocks, &offsets), offsets)
    };
    let (arena_bytes, offsets) = orders.iter().map(place_in).min().unwrap_or_default();
    let sum_bytes = blocks.iter().map(Block::padded).sum();
    MemoryPlan { offsets, arena_bytes, sum_bytes, lower_bound_bytes: lower_bound(blocks) }
}

/// In what order blocks are placed when their sizes are known only at run time, and which of those before a
/// block have to lie below it: of two that are alive together, the one that the plan puts lower. Where each
/// block starts behind all that lie below it, no two that are alive together meet, whatever their sizes; and
/// where none is larger than planned, none ends higher than planned.
pub fn stacked(blocks: &[Block], offsets: &[u64]) -> (Vec<usize>, Vec<Vec<usize>>) {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    // nothing lies below what is empty
    order.sort_by_key(|block| (offsets[*block], blocks[*block].bytes > 0, *block));
    let below = order.iter().enumerate().map(|(at, block)| {
        let meets = |other: &usize| blocks[order[*other]].overlaps(&blocks[*block]);
        (0..at).filter(meets).collect()
    });
    (order.clone(), below.collect())
}

/// Best fit in a given order.
fn place(blocks: &[Block], order: &[usize]) -> Vec<u64> {
    let mut offsets = vec![0u64; blocks.len()];
    // placed blocks, by offset
    let mut placed: Vec<usize> = Vec::new();
    // what is empty lies at the start, where it is in no other's way
    for &block in order.iter().filter(|block| blocks[**block].bytes > 0) {
        let size = blocks[block].padded();
        let (mut best_gap, mut best, mut end) = (u64::MAX, None, 0u64);
        for &other in placed.iter().filter(|other| blocks[**other].overlaps(&blocks[block])) {
            let gap = offsets[other].saturating_sub(end);
            if gap >= size && gap < best_gap {
                (best_gap, best) = (gap, Some(end));
            }
            end = end.max(offsets[other] + blocks[other].padded());
        }
        offsets[block] = best.unwrap_or(end);
        let at = placed.partition_point(|other| offsets[*other] < offsets[block]);
        placed.insert(at, block);
    }
    offsets
}

fn extent(blocks: &[Block], offsets: &[u64]) -> u64 {
    blocks.iter().zip(offsets).map(|(block, offset)| offset + block.padded()).max().unwrap_or(0)
}

fn lower_bound(blocks: &[Block]) -> u64 {
    let calls = blocks.iter().map(|block| block.last + 1).max().unwrap_or(0);
    let mut change = vec![0i128; calls + 1];
    for block in blocks {
        change[block.first] += i128::from(block.padded());
        change[block.last + 1] -= i128::from(block.padded());
    }
    let alive = change.iter().scan(0, |alive, change| {
        *alive += change;
        Some(*alive as u64)
    });
    alive.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(bytes: u64, first: usize, last: usize) -> Block {
        Block::new(bytes, first, last)
    }

    #[test]
    fn strands_share_nothing_with_one_another() {
        // two strands, of two calls each, whose calls hand one block to the next
        let in_strand =
            |strand, first, last| Block { alive: (1, 4), strand: Some((0, strand)), ..block(64, first, last) };
        let strands =
            [in_strand(0, 1, 2), in_strand(1, 3, 4), in_strand(1, 3, 3), in_strand(0, 1, 1), in_strand(0, 2, 2)];
        let plan = plan(&strands);
        assert_eq!(plan.arena_bytes, 256, "the last two are alive one after the other");
        assert!(
            strands[0].overlaps(&strands[1]) && !strands[3].overlaps(&strands[4]) && strands[3].overlaps(&strands[2])
        );
    }

    #[test]
    fn a_chain_needs_two_neighbours_at_a_time() {
        let chain: Vec<Block> = (0..10).map(|call| block(1000, call, call + 1)).collect();
        let plan = plan(&chain);
        assert_eq!((plan.arena_bytes, plan.lower_bound_bytes, plan.sum_bytes), (2048, 2048, 10240));
    }

    #[test]
    fn nothing_needs_nothing() {
        assert_eq!(plan(&[]), MemoryPlan { offsets: vec![], arena_bytes: 0, sum_bytes: 0, lower_bound_bytes: 0 });
        assert_eq!(plan(&[block(0, 0, 3)]).arena_bytes, 0);
    }

    #[test]
    fn what_is_empty_lies_on_nothing() {
        let blocks = [block(100, 0, 1), block(64, 2, 3), block(0, 0, 3)];
        let plan = plan(&blocks);
        assert_eq!(plan.offsets, [0, 0, 0]);
        assert_eq!(stacked(&blocks, &plan.offsets), (vec![2, 0, 1], vec![vec![], vec![0], vec![0]]));
    }

    proptest! {
        #[test]
        fn blocks_alive_together_never_share_bytes(
            seeds in prop::collection::vec((0u64..5000, 0usize..20, 0usize..6), 0..40)
        ) {
            let blocks: Vec<Block> = seeds.iter().map(|(bytes, first, more)| block(*bytes, *first, first + more)).collect();
            let plan = plan(&blocks);
            prop_assert!(plan.lower_bound_bytes <= plan.arena_bytes && plan.arena_bytes <= plan.sum_bytes);
            for (i, a) in blocks.iter().enumerate() {
                prop_assert_eq!(plan.offsets[i] % ALIGNMENT, 0);
                prop_assert!(plan.offsets[i] + a.bytes <= plan.arena_bytes);
                for (j, b) in blocks.iter().enumerate().skip(i + 1).filter(|(_, b)| a.overlaps(b)) {
                    let apart = plan.offsets[i] + a.bytes <= plan.offsets[j] || plan.offsets[j] + b.bytes <= plan.offsets[i];
                    prop_assert!(apart || a.bytes == 0 || b.bytes == 0, "{} and {} overlap", i, j);
                }
            }
        }

        /// What `deploy/extents.c` does with the order.
        #[test]
        fn stacked_blocks_of_any_size_never_share_bytes(
            seeds in prop::collection::vec((0u64..5000, 0usize..20, 0usize..6, 0u64..=100), 0..40)
        ) {
            let most: Vec<Block> = seeds.iter().map(|(bytes, first, more, _)| block(*bytes, *first, first + more)).collect();
            let plan = plan(&most);
            let (order, below) = stacked(&most, &plan.offsets);
            let bytes: Vec<u64> = order.iter().map(|at| most[*at].bytes * seeds[*at].3 / 100).collect();
            let mut offsets = Vec::new();
            for below in &below {
                let end = below.iter().map(|other| offsets[*other] + bytes[*other]).max().unwrap_or(0);
                offsets.push(u64::next_multiple_of(end, ALIGNMENT));
            }
            for i in 0..order.len() {
                prop_assert!(offsets[i] <= plan.offsets[order[i]]);
                for j in (0..i).filter(|j| most[order[*j]].overlaps(&most[order[i]])) {
                    let apart = offsets[i] + bytes[i] <= offsets[j] || offsets[j] + bytes[j] <= offsets[i];
                    prop_assert!(apart || bytes[i] == 0 || bytes[j] == 0, "{} and {} overlap", i, j);
                }
            }
        }
    }
}
