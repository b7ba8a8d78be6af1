//! The steps of a schedule, and the names in them.

use std::fmt::{self, Display, Formatter, Write};

use compact_str::{CompactString, format_compact};

use crate::nest::rewrite::pack::{Content, Layout};
use crate::nest::{LoopKind, axis_name};
use crate::workload::strassen::Panels;
use crate::workload::winograd::Order;
use crate::workload::{Combiner, DType, TensorId};

/// The name of a loop: `s0b` is the loop over axis `b` of stage 0, `s0bo` and `s0bi` are its two parts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LoopName(CompactString);

impl LoopName {
    /// The loop over an axis of a stage in the plain nest.
    pub fn axis(stage: usize, axis: usize) -> LoopName {
        LoopName(format_compact!("s{stage}{}", axis_name(axis)))
    }

    /// The loop that starts the results of a reduction along a spatial axis.
    pub fn init(stage: usize, axis: usize) -> LoopName {
        LoopName::axis(stage, axis).followed_by("init")
    }

    /// Over the tiles of a split loop.
    #[must_use]
    pub fn outer(&self) -> LoopName {
        self.followed_by("o")
    }

    /// Over the iterations of a tile of a split loop.
    #[must_use]
    pub fn inner(&self) -> LoopName {
        self.followed_by("i")
    }

    /// A level of a loop that is cut into several: 0 is the outermost.
    #[must_use]
    pub fn level(&self, level: usize) -> LoopName {
        if level == 0 { self.outer() } else { LoopName(format_compact!("{}{level}", self.0)) }
    }

    /// A loop of one iteration around this one.
    #[must_use]
    pub fn unit(&self) -> LoopName {
        self.followed_by("u")
    }

    /// Both loops as one.
    #[must_use]
    pub fn fused(&self, inner: &LoopName) -> LoopName {
        self.followed_by(&inner.0)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn followed_by(&self, suffix: &str) -> LoopName {
        let mut name = self.0.clone();
        name.push_str(suffix);
        LoopName(name)
    }
}

impl From<&str> for LoopName {
    fn from(name: &str) -> LoopName {
        LoopName(name.into())
    }
}

impl Display for LoopName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An operand: of the ways in which the reduction inside of a loop reads a tensor, one, counted from 0 in the
/// order of their expressions. Reads of what is copied already do not count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reads {
    pub tensor: TensorId,
    pub which: usize,
    /// The loop around the reduction.
    pub of: LoopName,
}

/// Where an operand is packed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Level {
    /// When the network is compiled.
    Setup,
    /// Whole, before the loop around the reduction.
    Before,
    /// At the start of each iteration of a loop.
    Inside(LoopName),
}

/// How the threads of a block lay out what they copy into shared memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Copy {
    /// The box that the loops touch, in the tensor's own order of dimensions.
    Box,
    /// An element for each iteration of the loops that read it. Each group of loops is a dimension of the
    /// copy; the last group is a row.
    Panel { dimensions: Vec<Vec<LoopName>> },
    /// The same in 8 × 8 matrices of one piece each, whose rows are along the last dimension, or else along
    /// the one before.
    CoreMatrices { dimensions: Vec<Vec<LoopName>>, by_columns: bool },
}

/// One operation on a program under construction. Each names the rewrite of [`crate::nest`] that it stands
/// for, whose documentation shows a nest before and after.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// `winograd 4`: starts over with the plain nest of the convolution by Winograd's algorithm, in tiles of
    /// 4 × 4 results, which are written where the convolution's own output is; filters are transformed when
    /// the network is compiled. [`crate::workload::winograd::winograd`], [`crate::nest::Nest::into_setup`],
    /// [`crate::nest::Nest::redirect`]. `winograd 4 by rows`: all stages lead with the rows of tiles.
    Winograd { outputs: i64, order: Order },
    /// `strassen`: starts over with the plain nest of the product by seven products of half the size.
    /// [`crate::workload::strassen::strassen`]. `strassen by column 64`: panels of so many columns of each
    /// half, or rows, are multiplied one after the other.
    Strassen { panels: Option<Panels> },
    /// `merge_groups 4`: starts over with the plain nest of the grouped convolution whose groups are four of
    /// the given ones each, with zeros among their weights. [`crate::workload::merged::merged`].
    MergeGroups { groups: i64 },
    /// `flatten_rows`: starts over with the plain nest of the convolution over images whose rows, with their
    /// borders, are one. [`crate::workload::flat::flat`].
    FlattenRows,
    /// `split_reduction s0 c into 4`: starts over with the plain nest of the workload that reduces an axis in
    /// parts and combines them in a stage of its own. [`crate::workload::Workload::split_reduction`].
    SplitReduction { stage: usize, axis: usize, parts: i64 },
    /// `epilogue s1 of s0`: the element-wise stage is computed as the reduction's results leave the
    /// registers.
    Epilogue { stage: usize, of: usize },
    /// `split s0b by 16 into s0bo s0bi`. [`crate::nest::Nest::split`].
    Split { over: LoopName, by: i64, into: [LoopName; 2] },
    /// `group s0c by 2 into s0co s0ci`: steps of a sum of products that one instruction takes.
    /// [`crate::nest::Nest::group`].
    Group { over: LoopName, by: i64, into: [LoopName; 2] },
    /// `tile s0b by 2 16 4 into s0bo s0b1 s0b2 s0b3`. [`crate::nest::Nest::tile`].
    Tile { over: LoopName, by: Vec<i64>, into: Vec<LoopName> },
    /// `fuse s0a s0b into s0as0b`. [`crate::nest::Nest::fuse`].
    Fuse { outer: LoopName, inner: LoopName, into: LoopName },
    /// `enclose s0bo in s0bou`. [`crate::nest::Nest::enclose`].
    Enclose { over: LoopName, by: LoopName },
    /// `reorder s0boo s0boi s0bi`: from outermost to innermost. [`crate::nest::Nest::reorder`].
    Reorder { order: Vec<LoopName> },
    /// `join s0a s1a`: the first name is the joined loop's. [`crate::nest::Nest::join`].
    Join { loops: Vec<LoopName> },
    /// `parallel s0boo`, `vectorize s0bi`, `unroll s0ai s0ci`, and so on for each kind of loop.
    /// [`crate::nest::Nest::set_kind`].
    Mark { kind: LoopKind, loops: Vec<LoopName> },
    /// `multiply s0a2 s0b2 s0c1 f16`: warps, or the tile registers of a CPU, compute these loops, over rows,
    /// columns and depth, as products of matrices of that type; f32 is rounded to TF32.
    Multiply { rows: LoopName, columns: LoopName, depth: LoopName, operands: DType },
    /// `accumulate t2 at s0boi`: keeps results in registers while the loops inside reduce, and computes the
    /// epilogue as they leave; `over s0co inside s0aoi s0boi`: in blocks of the reduction; `lanes s0ci`: with
    /// accumulators of their own for the iterations of these loops. [`crate::nest::Nest::accumulate`].
    Accumulate { stage: usize, at: LoopName, blocks: Option<(LoopName, Vec<LoopName>)>, lanes: Vec<LoopName> },
    /// `factor s0coi`: the factors that stay the same in the loop are multiplied behind it.
    /// [`crate::nest::Nest::factor`].
    Factor { steps: LoopName },
    /// `pack t1 0 of s0aoo setup panel`: [`crate::nest::Nest::pack`].
    Pack { operand: Reads, level: Level, layout: Layout, content: Content },
    /// `fetch t1 0 of s0ao inside s0co panel [s0c1] [s0b1 s0b2] padding 4 lanes 4 threads 256`: the threads
    /// of a block copy an operand into shared memory, in the order in which it lies in memory, neighbours
    /// several at a time. [`crate::nest::Nest::pack`], [`crate::nest::Nest::relayout`],
    /// [`crate::nest::Nest::cooperate`].
    Fetch { operand: Reads, inside: LoopName, copy: Copy, padding: i64, lanes: i64, threads: i64 },
    /// `privatise t3 over s0a 1 s0b 32`: each block of rows has its own instance.
    /// [`crate::nest::Nest::privatise`].
    Privatise { tensor: TensorId, rows: Vec<(LoopName, i64)> },
    /// `drop_unit_loops`. [`crate::nest::Nest::drop_unit_loops`].
    DropUnitLoops,
    /// `peel_tails`. [`crate::nest::Nest::peel_tails`].
    PeelTails,
    /// `in_tiles`: matrices of a CPU into tile registers. [`crate::nest::Nest::in_tiles`].
    InTiles,
    /// `strip_mine 16`: into vectors of so many lanes. [`crate::nest::Nest::strip_mine`].
    StripMine { lanes: i64 },
    /// `share_in_blocks`: intermediates that fit into registers are for all threads of a block.
    ShareInBlocks,
    /// `in_threads`. [`crate::nest::Nest::in_threads`].
    InThreads,
    /// `fill_tails`. [`crate::nest::Nest::fill_tails`].
    FillTails,
    /// `persist s0co over 264 sum`: so many blocks go through equal shares of the steps of all results
    /// (stream-K). The loop's name is that of the loop over a share from then on.
    /// [`crate::nest::Nest::persistent`].
    Persist { steps: LoopName, grid_blocks: i64, combiner: Combiner },
    /// `pipeline s0co depth 3`: the copies at the start of the loop run ahead of what computes with them; so
    /// many instances of each are kept. [`crate::nest::Nest::pipeline`].
    Pipeline { steps: LoopName, depth: i64 },
    /// `drop_setup_results`. [`crate::nest::Nest::drop_setup_results`].
    DropSetupResults,
    /// `drop_unused`. [`crate::nest::Nest::drop_unused`].
    DropUnused,
}

/// When a step is applied, whichever rule returned it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// As the rules return them.
    Schedule,
    /// When all loops are in place: tails, vectors, threads.
    Close,
    /// When each block's work is complete.
    Persist,
    /// When it is known which steps a block goes through.
    Pipeline,
    /// At last.
    Clean,
}

impl Step {
    pub fn phase(&self) -> Phase {
        match self {
            Step::DropUnitLoops
            | Step::PeelTails
            | Step::InTiles
            | Step::StripMine { .. }
            | Step::ShareInBlocks
            | Step::InThreads
            | Step::FillTails => Phase::Close,
            Step::Persist { .. } => Phase::Persist,
            Step::Pipeline { .. } => Phase::Pipeline,
            Step::DropSetupResults | Step::DropUnused => Phase::Clean,
            _ => Phase::Schedule,
        }
    }

    /// Splits a loop in two.
    pub fn split(over: &LoopName, by: i64) -> (Step, LoopName, LoopName) {
        let (outer, inner) = (over.outer(), over.inner());
        (Step::Split { over: over.clone(), by, into: [outer.clone(), inner.clone()] }, outer, inner)
    }

    /// Makes groups of steps.
    pub fn group(over: &LoopName, by: i64) -> Step {
        Step::Group { over: over.clone(), by, into: [over.outer(), over.inner()] }
    }

    /// Makes one loop of two.
    pub fn fuse(outer: &LoopName, inner: &LoopName) -> (Step, LoopName) {
        let into = outer.fused(inner);
        (Step::Fuse { outer: outer.clone(), inner: inner.clone(), into: into.clone() }, into)
    }

    /// Says how the iterations of some loops are executed; nothing where there are none.
    pub fn mark(kind: LoopKind, loops: Vec<LoopName>) -> Option<Step> {
        (!loops.is_empty()).then_some(Step::Mark { kind, loops })
    }
}

/// Names with blanks between them.
pub(super) fn joined<T: Display>(f: &mut Formatter<'_>, items: impl IntoIterator<Item = T>) -> fmt::Result {
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            f.write_char(' ')?;
        }
        write!(f, "{item}")?;
    }
    Ok(())
}
