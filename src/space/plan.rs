//! What has been decided so far: plain data that rules fill in, one after the other, and then turn into
//! rewrites.
//!
//! Decisions are taken on the plan alone, which is cheap; the nest is built once, when the last one is taken.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::nest::matrix::COLUMNS;
use crate::nest::{Nest, StageVars, axis_name};
use crate::target::Task;
use crate::workload::winograd::Winograd;
use crate::workload::{Atom, Combiner, DType, Expr, Index, Stage, TensorId, Var, Workload, shared_axes, stride_along};

use super::Words;
use crate::nest::rewrite::pack::Layout;

/// The decisions about a whole task.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is scheduled: the task's workload, or what an algorithm makes of it.
    pub workload: Workload,
    /// Whether algorithms with larger rounding errors than the plain one's are left out.
    pub exact: bool,
    /// Where the workload is not the task's own.
    pub algorithm: Option<Winograd>,
    /// The leading axes that all stages are joined over.
    pub rows: Vec<Row>,
    pub groups: Vec<Group>,
    /// Decisions of rules that keep their own: by site.
    pub notes: BTreeMap<Words, Words>,
}

/// A leading axis that all stages share: `block` iterations of it stay together, and the loop over these
/// blocks is joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    pub extent: i64,
    pub block: i64,
}

impl Row {
    /// Iterations of the joined loop.
    pub fn blocks(&self) -> i64 {
        (self.extent + self.block - 1) / self.block
    }

    /// Whether the last block is shorter than the others.
    pub fn is_ragged(&self) -> bool {
        self.extent % self.block != 0
    }
}

/// The decisions about a stage that is scheduled on its own, with the element-wise stage that is computed as
/// its results are written.
#[derive(Clone, Debug)]
pub struct Group {
    pub stage: usize,
    /// Nothing is asked about it: it is scheduled as in the untuned program.
    pub settled: bool,
    pub epilogue: Option<usize>,
    /// Spatial axes inside of the rows, blocks of rows among them, then reduction axes.
    pub axes: Vec<Axis>,
    /// Position in `axes` of an axis that is fused with the one behind it.
    pub fused: Option<usize>,
    /// Position in `axes`.
    pub vector: Option<usize>,
    /// Position in `axes` of the reduction axis that is blocked outside of the register tile.
    pub depth: Option<usize>,
    /// Positions in `axes`, outermost first.
    pub outer_order: Vec<usize>,
    pub inner_order: Vec<usize>,
    pub reduction_order: Vec<usize>,
    pub packs: Vec<Packing>,
    /// On a GPU: whether warps compute it as products of matrices.
    pub matrix: Option<Sides>,
    pub fetches: Vec<Fetch>,
    /// How many steps of the reduction their copies are kept of, those under way among them: 1 where each
    /// step waits for its own.
    pub stages: i64,
    /// On a GPU: how many blocks go through the steps of all results together; 0 where each has its own
    /// results.
    pub workers: i64,
    /// How many of the outermost loops are spread over the threads.
    pub parallel: usize,
}

/// A loop axis and how it is cut: `block` register tiles of `tile` iterations make a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Position among the stage's axes.
    pub position: usize,
    pub extent: i64,
    pub reduction: bool,
    /// Whether it is shorter than `extent` in the last block of rows. Tiles divide the extent then.
    pub ragged: bool,
    pub tile: i64,
    pub block: i64,
    /// Of a block's tiles, so many next to each other go to a thread each; all of them are dealt out in
    /// `block / threads` rounds. 1 on a CPU.
    pub threads: i64,
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

    /// Its letter in sites.
    pub fn letter(&self) -> Cow<'static, str> {
        axis_name(self.position)
    }
}

/// An operand that is copied before it is read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packing {
    pub tensor: TensorId,
    /// Of several ways in which the stage reads the tensor, this one, counted from 0.
    pub which: usize,
    pub level: Level,
    pub layout: Layout,
}

/// Of products of matrices: positions in [`Group::axes`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sides {
    pub rows: usize,
    pub columns: usize,
    pub depth: usize,
    /// The type of both operands.
    pub operands: DType,
    /// Columns of a product: more than [`COLUMNS`] where four warps execute it together.
    pub width: i64,
}

impl Sides {
    /// Whether four warps execute a product together, each for its own rows.
    pub fn is_wide(&self) -> bool {
        self.width > COLUMNS
    }
}

/// An operand that the threads of a block copy into shared memory, for each of its reduction blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetch {
    pub tensor: TensorId,
    /// As of [`Packing`].
    pub which: usize,
    pub layout: Layout,
    /// Neighbours that a thread copies at once.
    pub lanes: i64,
    /// Elements left out behind each row, so that rows begin in different banks.
    pub padding: i64,
}

/// Where in the nest an operand is packed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// When the network is compiled.
    Setup,
    /// Before the stage.
    Before,
    /// Inside of the outer loops.
    Outer,
    /// Inside of the loop over reduction blocks.
    Block,
}

/// A nest under construction, and the loops by which rules find their way in it.
#[derive(Clone, Debug)]
pub struct Built {
    pub nest: Nest,
    pub stages: Vec<StageVars>,
    /// The loops over the blocks of rows, outermost first.
    pub rows: Vec<Var>,
    /// By group and by position in [`Group::axes`].
    pub loops: Vec<Vec<AxisLoops>>,
    /// By group: the place of accumulation.
    pub at: Vec<Option<Var>>,
    /// On a GPU, by group and by position in [`Group::axes`].
    pub thread_loops: Vec<Vec<ThreadLoops>>,
    /// On a GPU, by group: what its operands are copied into.
    pub copies: Vec<Vec<TensorId>>,
    /// What is left to do when all else is done, in this order, so that no other rewrite needs to know of it.
    pub dealt: Vec<Dealt>,
    pub pipelines: Vec<Pipeline>,
}

/// For [`Nest::persistent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dealt {
    pub steps: Var,
    pub workers: i64,
    pub combiner: Combiner,
}

/// For [`Nest::pipeline`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pipeline {
    pub steps: Var,
    pub buffers: Vec<TensorId>,
    pub stages: i64,
}

/// The loops of one axis on a GPU: over blocks, over the rounds of a block, over its threads (in warps, where
/// they are many), inside of a tile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadLoops {
    pub outer: Var,
    pub round: Var,
    pub threads: Vec<Var>,
    pub tile: Var,
}

/// The loops of one axis: over blocks, over the tiles of a block, inside of a tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AxisLoops {
    pub outer: Var,
    pub inner: Var,
    pub tile: Var,
}

impl Plan {
    /// Nothing decided: every stage on its own.
    pub fn new(task: &Task) -> Plan {
        Plan::of(task.workload.clone())
    }

    /// Nothing decided about a workload.
    pub fn of(workload: Workload) -> Plan {
        let groups = (0..workload.stages.len()).map(|stage| Group::new(&workload, stage)).collect();
        Plan { workload, exact: false, algorithm: None, rows: Vec::new(), groups, notes: BTreeMap::new() }
    }
}

impl Group {
    fn new(workload: &Workload, stage: usize) -> Group {
        let s = &workload.stages[stage];
        let axis = |position| {
            let (extent, reduction) = (s.extent(position), position >= s.spatial.len());
            Axis { position, extent, reduction, ragged: false, tile: 1, block: 1, threads: 1 }
        };
        Group {
            stage,
            settled: false,
            epilogue: None,
            axes: (0..s.rank()).map(axis).collect(),
            fused: None,
            vector: None,
            depth: None,
            outer_order: Vec::new(),
            inner_order: Vec::new(),
            reduction_order: Vec::new(),
            packs: Vec::new(),
            matrix: None,
            fetches: Vec::new(),
            stages: 1,
            workers: 0,
            parallel: 0,
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
}

const FIRST_STAGES: &str = "s0s1s2s3s4s5s6s7s8s9";

/// An access to a tensor in a stage, with the guard around it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    pub tensor: TensorId,
    pub indices: Vec<Index>,
    pub guarded: bool,
}

/// The distinct accesses of a stage's value.
pub fn accesses(stage: &Stage) -> Vec<Access> {
    let mut found = Vec::new();
    collect(&stage.value, false, &mut found);
    found
}

fn collect(expr: &Expr, guarded: bool, found: &mut Vec<Access>) {
    match expr {
        Expr::Load { tensor, indices } => {
            let access = Access { tensor: *tensor, indices: indices.clone(), guarded };
            if !found.contains(&access) {
                found.push(access);
            }
        }
        Expr::Guard { inside, outside, .. } => {
            collect(inside, true, found);
            collect(outside, guarded, found);
        }
        _ => expr.children().for_each(|child| collect(child, guarded, found)),
    }
}

impl Access {
    /// Elements that memory moves by when an axis moves by one; `None` where that is not constant.
    pub fn stride(&self, workload: &Workload, axis: Var) -> Option<i64> {
        stride_along(&self.indices, &workload.tensor(self.tensor).strides(), axis)
    }

    /// Whether several axes move the access along one dimension, as in a convolution.
    pub fn has_window(&self) -> bool {
        self.indices.iter().any(|index| index.terms().len() > 1)
    }

    /// Whether several axes of the stage that it is in move the access over the same elements of a dimension.
    /// The parts and the steps of an axis that was cut, or patches side by side, do not, though they are [a
    /// window](Self::has_window), too.
    pub fn slides(&self, stage: &Stage) -> bool {
        self.indices.iter().any(|index| {
            let mut terms: Vec<(i64, Option<i64>)> = Vec::with_capacity(index.terms().len());
            terms.extend(index.terms().iter().map(|(atom, coefficient)| {
                let extent = if let Atom::Var(var) = atom { Some(stage.extent(var.0 as usize)) } else { None };
                (coefficient.abs(), extent)
            }));
            terms.sort_unstable();
            let mut reach = 0i64;
            terms.len() > 1
                && terms.into_iter().any(|(coefficient, extent)| {
                    let overlaps = extent.is_none() || coefficient <= reach;
                    reach = reach.saturating_add(coefficient.saturating_mul(extent.unwrap_or(1) - 1));
                    overlaps
                })
        })
    }

    /// Whether an axis moves the access in steps of several elements of a dimension, as in a strided
    /// convolution.
    pub fn has_scaled_axis(&self) -> bool {
        self.indices.iter().any(|index| index.terms().iter().any(|(_, coefficient)| coefficient.abs() > 1))
    }

    pub fn mentions(&self, axis: Var) -> bool {
        self.indices.iter().any(|index| index.mentions(axis))
    }
}

/// How many leading spatial axes all stages of a workload share.
pub fn shared_rows(workload: &Workload) -> usize {
    shared_axes(&workload.stages.iter().collect::<Vec<_>>())
}
