//! What decisions are about: groups of stages that are scheduled on their own, the axes of each, and the rows
//! that they share.

use std::borrow::Cow;

use super::schedule::{LoopName, Step};
use crate::nest::axis_name;
use crate::nest::matrix::COLUMNS;
use crate::workload::{DType, Stage, TensorId, Var, Workload};

/// A leading axis that all stages share: `block` iterations of it stay together, and the loop over these
/// blocks is joined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// At most.
    pub extent: i64,
    pub usual: Usual,
    /// Whether the extent is known only when it runs.
    pub varies: bool,
    pub block: i64,
    /// The joined loop.
    pub over: LoopName,
}

/// An extent where programs are timed: what a fixed one is anyway. Choices go by this rather than by what an
/// extent is at most, which may be far from every run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usual {
    /// At the point with the most work.
    pub typical: i64,
    /// At all points, at most.
    pub most: i64,
}

/// A stage that is scheduled on its own, with the element-wise stage that is computed as its results are
/// written.
#[derive(Clone, Debug)]
pub struct Group {
    pub stage: usize,
    /// Nothing is asked about it: it is scheduled as in the untuned program.
    pub defaults_only: bool,
    pub epilogue: Option<usize>,
    /// Spatial axes inside of the rows, blocks of rows among them, then reduction axes.
    pub axes: Vec<Axis>,
    /// Position in `axes` of an axis that is fused with the one behind it.
    pub fused: Option<usize>,
    /// Position in `axes`.
    pub vector: Option<usize>,
    /// Positions in `axes` of the spatial axes, in the order of the loops over their blocks, outermost first.
    pub outer_order: Vec<usize>,
    /// Positions in `axes` of the reduction axes that have several tiles in a block, in the order of the
    /// loops over these, outermost first.
    pub reduction_order: Vec<usize>,
    /// Position in `axes` of the innermost loop's axis.
    pub innermost: Option<usize>,
    /// Where the results of the reduction are in registers: inside of this loop.
    pub at: Option<LoopName>,
    /// On a CPU: steps of the reduction that one instruction takes together.
    pub dot: Option<DotSteps>,
    /// How warps of a GPU, or tile registers of a CPU, compute it as products of matrices.
    pub matrix: Option<MmaTile>,
    /// On a GPU: operands that are copied into shared memory.
    pub fetches: Vec<Fetch>,
}

/// A loop axis and how it is cut: `block` register tiles of `tile` iterations make a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Position among the stage's axes.
    pub position: usize,
    /// At most.
    pub extent: i64,
    pub usual: Usual,
    /// Whether the extent is known only when it runs.
    pub varies: bool,
    pub reduction: bool,
    /// Whether it is shorter than `extent` in the last block of rows. Tiles divide the extent then.
    pub ragged: bool,
    pub tile: i64,
    pub block: i64,
    /// Of a block's tiles, so many next to each other go to a thread each; all of them are dealt out in
    /// `block / threads` rounds. 1 on a CPU.
    pub threads: i64,
    /// The loop over all of it, before it is cut.
    pub whole: LoopName,
    /// The loops that it is cut into.
    pub loops: Option<AxisLoops>,
}

/// The loops of an axis: over blocks, over the tiles of a block (on a GPU: over the rounds of its threads),
/// over threads (in warps, where they are many), inside of a tile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AxisLoops {
    pub outer: LoopName,
    pub inner: LoopName,
    pub threads: Vec<LoopName>,
    pub tile: LoopName,
}

/// Steps of a sum of products of short numbers that one instruction takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DotSteps {
    /// Position in [`Group::axes`] of the axis that they are steps of; its extent counts groups of them.
    pub axis: usize,
    /// Of a group.
    pub steps: i64,
}

/// The products of matrices that warps, or tile registers, compute: positions in [`Group::axes`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MmaTile {
    pub rows: usize,
    pub columns: usize,
    pub depth: usize,
    /// The type of the operand that rows move.
    pub operands: DType,
    /// Columns of a product: on a GPU more than [`COLUMNS`] where four warps execute it together.
    pub width: i64,
}

/// An operand that the threads of a block copy into shared memory, for each block of the reduction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetch {
    pub tensor: TensorId,
    /// Of several ways in which the stage reads the tensor, this one, counted from 0.
    pub which: usize,
    /// Neighbours that a thread copies at once.
    pub lanes: i64,
    /// Elements left out behind each row, so that rows begin in different banks.
    pub padding: i64,
}

impl Usual {
    pub(super) fn fixed(extent: i64) -> Usual {
        Usual { typical: extent, most: extent }
    }

    /// Of a stage's axis.
    pub(super) fn of(stage: &Stage, axis: usize, points: &[Vec<i64>]) -> Usual {
        let Some(formula) = stage.extents.get(axis) else { return Usual::fixed(stage.extent(axis)) };
        let at = |values: &Vec<i64>| {
            let value = |var: Var| var.as_parameter().and_then(|number| values.get(number)).copied().unwrap_or(1);
            formula.at(&value).unwrap_or_else(|| stage.extent(axis)).clamp(1, stage.extent(axis).max(1))
        };
        let mut extents = points.iter().map(at);
        let typical = extents.next().unwrap_or_else(|| stage.extent(axis));
        Usual { typical, most: extents.fold(typical, i64::max) }
    }
}

impl Row {
    /// Iterations of the joined loop where programs are timed.
    pub fn usual_blocks(&self) -> i64 {
        (self.usual.typical + self.block - 1) / self.block
    }

    /// Iterations of the joined loop.
    pub fn blocks(&self) -> i64 {
        (self.extent + self.block - 1) / self.block
    }

    /// Whether the last block may be shorter than the others.
    pub fn is_ragged(&self) -> bool {
        self.varies || self.extent % self.block != 0
    }
}

impl Axis {
    /// Tiles of a block that one thread computes.
    pub fn rounds(&self) -> i64 {
        self.block / self.threads.max(1)
    }

    pub fn tiles(&self) -> i64 {
        (self.extent + self.tile - 1) / self.tile
    }

    pub fn blocks(&self) -> i64 {
        (self.tiles() + self.block - 1) / self.block
    }

    /// Tiles where programs are timed.
    pub fn usual_tiles(&self) -> i64 {
        (self.usual.typical + self.tile - 1) / self.tile
    }

    /// Blocks where programs are timed.
    pub fn usual_blocks(&self) -> i64 {
        (self.usual_tiles() + self.block - 1) / self.block
    }

    /// Its letter in sites.
    pub fn letter(&self) -> Cow<'static, str> {
        axis_name(self.position)
    }
}

impl MmaTile {
    /// Whether four warps execute a product together, each for its own rows.
    pub fn is_wide(&self) -> bool {
        self.width > COLUMNS
    }
}

impl Group {
    pub(super) fn new(workload: &Workload, stage: usize, points: &[Vec<i64>]) -> Group {
        let s = &workload.stages[stage];
        let axis = |position| Axis {
            position,
            extent: s.extent(position),
            usual: Usual::of(s, position, points),
            varies: s.extents.get(position).is_some(),
            reduction: position >= s.spatial.len(),
            ragged: false,
            tile: 1,
            block: 1,
            threads: 1,
            whole: LoopName::axis(stage, position),
            loops: None,
        };
        Group {
            stage,
            defaults_only: false,
            epilogue: None,
            axes: (0..s.rank()).map(axis).collect(),
            fused: None,
            vector: None,
            outer_order: Vec::new(),
            reduction_order: Vec::new(),
            innermost: None,
            at: None,
            dot: None,
            matrix: None,
            fetches: Vec::new(),
        }
    }

    /// The word by which sites name it.
    pub fn name(&self) -> Cow<'static, str> {
        // sites are named at every decision of every trace
        match FIRST_STAGES.get(2 * self.stage..2 * self.stage + 2) {
            Some(name) => name.into(),
            None => format!("s{}", self.stage).into(),
        }
    }

    /// Positions in `axes` of the spatial or of the reduction axes.
    pub fn positions(&self, reduction: bool) -> Vec<usize> {
        (0..self.axes.len()).filter(|a| self.axes[*a].reduction == reduction).collect()
    }

    /// Position in `axes` of the reduction axis that is cut into blocks.
    pub fn depth(&self) -> Option<usize> {
        (0..self.axes.len()).find(|at| self.axes[*at].reduction && self.axes[*at].blocks() > 1)
    }

    /// Vector operations that one pass over the register tile takes, on registers of `lanes` elements.
    pub fn register_tile(&self, lanes: i64) -> i64 {
        let count = |(at, axis): (usize, &Axis)| {
            if Some(at) == self.vector {
                (axis.tile + lanes - 1) / lanes
            } else if axis.reduction {
                1
            } else {
                axis.tile
            }
        };
        self.axes.iter().enumerate().map(count).product()
    }

    /// Makes one axis of two neighbours.
    pub(super) fn fuse(&mut self, at: usize) -> Step {
        let inner = self.axes.remove(at + 1);
        let axis = &mut self.axes[at];
        let (step, into) = Step::fuse(&axis.whole, &inner.whole);
        axis.extent *= inner.extent;
        axis.usual =
            Usual { typical: axis.usual.typical * inner.usual.typical, most: axis.usual.most * inner.usual.most };
        axis.whole = into;
        self.fused = Some(at);
        if let Some(dot) = &mut self.dot
            && dot.axis > at
        {
            dot.axis -= 1;
        }
        step
    }

    /// The loops of an axis that is cut.
    pub fn loops(&self, at: usize) -> Option<&AxisLoops> {
        self.axes[at].loops.as_ref()
    }

    /// The position of the axis that has this loop over its blocks, or inside of its tiles.
    pub(super) fn axis_of(&self, name: &LoopName) -> Option<usize> {
        let is_of = |axis: &Axis| axis.loops.as_ref().is_some_and(|l| l.outer == *name || l.tile == *name);
        self.axes.iter().position(is_of)
    }
}

const FIRST_STAGES: &str = "s0s1s2s3s4s5s6s7s8s9";
