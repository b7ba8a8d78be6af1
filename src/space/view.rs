//! What is known of a program while its decisions are taken, without a nest: which stages are scheduled, how
//! their axes are cut, and what the loops are called.
//!
//! A [`View`] changes by nothing but [`Step`]s, so that it never says anything else than the schedule does.

use std::sync::Arc;

use super::access::Access;
use super::group::{Axis, AxisLoops, DotSteps, Fetch, Group, MmaTile, Row, Usual};
use super::schedule::{LoopName, Reads, Step};
use super::seen::Seen;
use crate::nest::LoopKind;
use crate::workload::strassen::{Panels, Side};
use crate::workload::winograd::Order;
use crate::workload::{Algorithm, Stage, Var, Workload};

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

    /// The stages that may be joined over leading axes, with their numbers: all that run, but for what all
    /// panels of columns read.
    pub fn joinable(&self) -> impl Iterator<Item = (usize, &Stage)> {
        let is_of_columns = matches!(self.panels(), Some(Panels { of: Side::Columns, .. }));
        self.workload.computed_stages().skip(usize::from(is_of_columns))
    }

    /// Whether the stages of a group are joined with others.
    pub fn is_joined(&self, group: &Group) -> bool {
        !self.rows.is_empty() && self.joinable().any(|(stage, _)| stage == group.stage)
    }

    /// The first stage that is joined with others, or would be, and its number.
    fn first_stage(&self) -> (usize, &Stage) {
        let first = self.joinable().next();
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

    /// How a product is computed by Strassen's algorithm, if it is: whole, or by panels.
    pub fn strassen(&self) -> Option<Option<Panels>> {
        self.steps.iter().find_map(|step| match step {
            Step::Strassen { panels } => Some(*panels),
            _ => None,
        })
    }

    /// The panels of a product that goes through all stages by them.
    pub fn panels(&self) -> Option<Panels> {
        self.strassen().flatten()
    }

    /// A leading axis of all stages that are joined, not joined yet.
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
            Step::Strassen { panels } => self.rewrite(Algorithm::Strassen { panels: *panels }),
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
        let joined: Vec<usize> = self.joinable().map(|(stage, _)| stage).collect();
        for group in self.groups.iter_mut().filter(|group| joined.contains(&group.stage)) {
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
        // rows that the order does not name keep their places
        let place = |row: &Row| order.iter().position(|name| *name == row.over);
        if self.rows.iter().all(|row| place(row).is_some()) {
            self.rows.sort_by_key(place);
        }
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
