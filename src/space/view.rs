//! What is known of a program while its decisions are taken, without a nest: which stages are scheduled, how
//! their axes are cut, and what the loops are called.
//!
//! A [`View`] changes by nothing but [`Step`]s, so that it never says anything else than the schedule does.

use std::borrow::Cow;
use std::sync::Arc;

use super::access::Access;
use super::schedule::{LoopName, Reads, Step};
use super::seen::Seen;
use crate::nest::matrix::COLUMNS;
use crate::nest::{LoopKind, axis_name};
use crate::workload::winograd::Order;
use crate::workload::{Algorithm, DType, Stage, TensorId, Var, Workload};

/// A task on a machine of one kind, as the steps so far have changed it.
#[derive(Clone, Debug)]
pub struct View<'a, M> {
    pub machine: &'a M,
    /// Whether algorithms with larger rounding errors than the plain one's are left out.
    pub exact: bool,
    /// The task's workload, or what an algorithm has made of it.
    pub workload: Seen<'a>,
    /// The task's workload.
    pub(super) given: &'a Workload,
    /// The leading axes that all stages are joined over.
    pub rows: Vec<Row>,
    pub groups: Vec<Group>,
    /// Numbers for the workload's parameters that programs are timed with, that with the most work first.
    points: Vec<Vec<i64>>,
    steps: Vec<Step>,
}

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
    fn fixed(extent: i64) -> Usual {
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
    fn new(workload: &Workload, stage: usize, points: &[Vec<i64>]) -> Group {
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
    fn axis_of(&self, name: &LoopName) -> Option<usize> {
        let is_of = |axis: &Axis| axis.loops.as_ref().is_some_and(|l| l.outer == *name || l.tile == *name);
        self.axes.iter().position(is_of)
    }
}

const FIRST_STAGES: &str = "s0s1s2s3s4s5s6s7s8s9";

impl<'a, M> View<'a, M> {
    /// Every stage on its own, no axis cut.
    pub fn new(workload: &'a Workload, machine: &'a M, exact: bool) -> View<'a, M> {
        let mut view = View {
            machine,
            exact,
            workload: Seen::Given(workload),
            given: workload,
            rows: Vec::new(),
            groups: Vec::new(),
            points: workload.points_by_work(),
            steps: Vec::new(),
        };
        view.start_over();
        view
    }

    fn start_over(&mut self) {
        self.rows.clear();
        let stages = 0..self.workload.stages.len();
        self.groups = stages.map(|stage| Group::new(&self.workload, stage, &self.points)).collect();
    }

    /// The first stage that runs, and its number.
    fn first_stage(&self) -> (usize, &Stage) {
        let first = self.workload.computed_stages().next();
        first.unwrap_or((0, &self.workload.stages[0]))
    }

    /// Whether an access moves with the rows that all stages are joined over.
    pub fn is_of_rows(&self, access: &Access) -> bool {
        (0..self.rows.len()).any(|row| access.mentions(Var(row as u32)))
    }

    /// How a convolution is computed by Winograd's algorithm, if it is.
    pub fn winograd(&self) -> Option<(i64, Order)> {
        self.steps.iter().find_map(|step| match step {
            Step::Winograd { outputs, order } => Some((*outputs, *order)),
            _ => None,
        })
    }

    /// A leading axis of all stages that run, not joined yet.
    pub(super) fn row(&self, position: usize) -> Row {
        let (number, first) = self.first_stage();
        Row {
            extent: first.extent(position),
            usual: Usual::of(first, position, &self.points),
            varies: first.extents.get(position).is_some(),
            block: 1,
            over: LoopName::axis(number, position),
        }
    }

    pub(super) fn into_steps(self) -> Vec<Step> {
        self.steps
    }

    /// Starts over with what an algorithm makes of the task's workload, if it applies.
    fn rewrite(&mut self, by: Algorithm) {
        let Some(rewritten) = by.of(self.given) else { return };
        // whatever was made of it before
        self.steps.clear();
        self.workload = Seen::Rewritten(Arc::clone(&rewritten));
        self.start_over();
        self.groups.retain(|group| rewritten.constants.iter().all(|(stage, _)| *stage != group.stage));
        // the transforms are bound by memory: one way to compute them is as good as another
        let transforms = self.groups.iter_mut().filter(|group| group.stage != rewritten.product);
        transforms.for_each(|group| group.defaults_only = true);
    }

    /// Takes a step.
    pub fn push(&mut self, step: Step) {
        match &step {
            Step::Winograd { outputs, order } => self.rewrite(Algorithm::Winograd { outputs: *outputs, order: *order }),
            Step::Strassen => self.rewrite(Algorithm::Strassen),
            Step::MergeGroups { groups } => self.rewrite(Algorithm::Merged { groups: *groups }),
            Step::FlattenRows => self.rewrite(Algorithm::Flat),
            Step::SplitReduction { stage, axis, parts } => {
                if let Some(split) = self.workload.split_reduction(*stage, *axis, *parts) {
                    self.workload = Seen::Split(Arc::new(split));
                    self.start_over();
                }
            }
            Step::Epilogue { stage, of } => {
                self.groups.iter_mut().filter(|g| g.stage == *of).for_each(|g| g.epilogue = Some(*stage));
                self.groups.retain(|g| g.stage != *stage);
            }
            Step::Split { over, by, into } => self.split(over, *by, into),
            Step::Group { over, by, into } => self.group(over, *by, &into[0]),
            Step::Tile { over, by, into } => self.tile(over, by, into),
            Step::Fuse { outer, inner, .. } => self.fuse(outer, inner),
            Step::Join { loops } => self.join(loops),
            Step::Reorder { order } => self.reorder(order),
            Step::Mark { kind: LoopKind::Vector, loops } => {
                for group in &mut self.groups {
                    group.vector = loops.iter().find_map(|name| group.axis_of(name)).or(group.vector);
                }
            }
            Step::Multiply { rows, columns, depth, operands } => {
                for group in &mut self.groups {
                    let [rows, columns, depth] = [rows, columns, depth].map(|name| group.axis_of(name));
                    if let (Some(rows), Some(columns), Some(depth)) = (rows, columns, depth) {
                        let width = group.axes[columns].tile;
                        group.matrix = Some(MmaTile { rows, columns, depth, operands: *operands, width });
                    }
                }
            }
            Step::Accumulate { stage, at, .. } => {
                self.groups.iter_mut().filter(|g| g.stage == *stage).for_each(|g| g.at = Some(at.clone()));
            }
            Step::Fetch { operand: Reads { tensor, which, of }, lanes, padding, .. } => {
                if let Some(group) = self.groups.iter_mut().find(|group| group.at.as_ref() == Some(of)) {
                    // what is copied already is not counted there
                    let done = group.fetches.iter().filter(|fetch| fetch.tensor == *tensor).count();
                    let (which, lanes, padding) = (which + done, *lanes, *padding);
                    group.fetches.push(Fetch { tensor: *tensor, which, lanes, padding });
                }
            }
            _ => {}
        }
        self.steps.push(step);
    }

    fn axes_mut(&mut self) -> impl Iterator<Item = &mut Axis> {
        self.groups.iter_mut().flat_map(|group| &mut group.axes)
    }

    /// Tiles out of a whole axis, then blocks out of its tiles.
    fn split(&mut self, over: &LoopName, by: i64, [outer, inner]: &[LoopName; 2]) {
        for axis in self.axes_mut() {
            match &mut axis.loops {
                None if axis.whole == *over => {
                    axis.tile = by;
                    let (outer, tile) = (outer.clone(), inner.clone());
                    axis.loops = Some(AxisLoops { inner: outer.clone(), outer, threads: Vec::new(), tile });
                    return;
                }
                Some(loops) if loops.outer == *over => {
                    axis.block = by;
                    (loops.outer, loops.inner) = (outer.clone(), inner.clone());
                    return;
                }
                _ => {}
            }
        }
    }

    /// Groups of steps out of a whole axis.
    fn group(&mut self, over: &LoopName, steps: i64, outer: &LoopName) {
        for group in &mut self.groups {
            let found = group.axes.iter().position(|axis| axis.loops.is_none() && axis.whole == *over);
            let Some(at) = found else { continue };
            let axis = &mut group.axes[at];
            let groups = |extent: i64| (extent + steps - 1) / steps;
            axis.extent = groups(axis.extent);
            axis.usual = Usual { typical: groups(axis.usual.typical), most: groups(axis.usual.most) };
            axis.whole = outer.clone();
            group.dot = Some(DotSteps { axis: at, steps });
        }
    }

    /// Rounds, threads and a tile out of a whole axis.
    fn tile(&mut self, over: &LoopName, by: &[i64], into: &[LoopName]) {
        let ([rounds, threads @ .., tile], [outer, inner, of_threads @ .., last]) = (by, into) else { return };
        if let Some(axis) = self.axes_mut().find(|axis| axis.loops.is_none() && axis.whole == *over) {
            axis.tile = *tile;
            axis.threads = threads.iter().product();
            axis.block = axis.threads * rounds;
            let (outer, inner, tile) = (outer.clone(), inner.clone(), last.clone());
            axis.loops = Some(AxisLoops { outer, inner, threads: of_threads.to_vec(), tile });
        }
    }

    fn fuse(&mut self, outer: &LoopName, inner: &LoopName) {
        for group in &mut self.groups {
            let is_pair = |pair: &[Axis]| {
                pair[0].whole == *outer && pair[1].whole == *inner && pair.iter().all(|axis| axis.loops.is_none())
            };
            if let Some(at) = group.axes.windows(2).position(is_pair) {
                group.fuse(at);
            }
        }
    }

    /// The next leading axis becomes a row: what is left of it inside is a block of rows, or nothing.
    fn join(&mut self, loops: &[LoopName]) {
        let (position, Some(over)) = (self.rows.len(), loops.first()) else { return };
        let mut row = Row { over: over.clone(), ..self.row(position) };
        for group in &mut self.groups {
            (group.outer_order, group.innermost) = (Vec::new(), None);
            let Some(at) = group.axes.iter().position(|axis| axis.position == position) else { continue };
            match group.axes[at].loops.take() {
                None => drop(group.axes.remove(at)),
                Some(cut) => {
                    let axis = &mut group.axes[at];
                    row.block = axis.tile;
                    (axis.extent, axis.tile, axis.whole) = (row.block, 1, cut.tile);
                    axis.usual = Usual::fixed(row.block);
                    axis.ragged = row.is_ragged();
                }
            }
        }
        self.rows.push(row);
    }

    fn reorder(&mut self, order: &[LoopName]) {
        for group in &mut self.groups {
            // a reordering is of one group's loops, from the first to the last
            let mut ends = order.first().into_iter().chain(order.last());
            if ends.all(|name| group.axis_of(name).is_none()) {
                continue;
            }
            let ordered = |reduction: bool, level: fn(&AxisLoops) -> &LoopName| -> Vec<usize> {
                let among = group.positions(reduction).into_iter();
                let place = |at: usize| {
                    let loops = group.loops(at)?;
                    Some((order.iter().position(|name| name == level(loops))?, at))
                };
                let mut places: Vec<(usize, usize)> = among.filter_map(place).collect();
                places.sort_unstable();
                places.into_iter().map(|(_, at)| at).collect()
            };
            let outer = ordered(false, |loops| &loops.outer);
            let mut steps = ordered(true, |loops| &loops.inner);
            steps.retain(|at| group.axes[*at].block > 1);
            if !outer.is_empty() {
                group.outer_order = outer;
            }
            if !steps.is_empty() {
                group.reduction_order = steps;
            }
            group.innermost = order.last().and_then(|name| group.axis_of(name)).or(group.innermost);
        }
    }
}
