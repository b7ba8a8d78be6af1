//! One task in the making: stages that agree on their leading axes.

use std::collections::{BTreeMap, BTreeSet};

use super::extent::{self, Extent, are_views, most, of_tensor};
use super::prepare::extents_of;
use super::size::{Size, count_loads, may_be_copied};
use super::view::{Split, flat, identity_address, permutation, reshape_access, tidy, tidy_index, variables};
use crate::workload::{Expr, Index, Stage, Tensor, TensorId, Var};

/// A stage of a group, and the ONNX nodes that it does the work of.
#[derive(Clone, Debug)]
pub struct Member {
    pub stage: Stage,
    pub nodes: Vec<String>,
}

/// Stages that become one task.
///
/// Invariants: every member's spatial axes are `rows`, or `rows` followed by `columns`; members read one
/// another at identity indices. So all stages of a task align on their leading axes. A chain that
/// contractions have joined keeps only this last property: `rows` are the axes that all stages begin with.
#[derive(Clone, Debug)]
pub struct Group {
    /// Extents of the axes that all members share.
    pub rows: Vec<Extent>,
    /// Where the anchor reduces whole rows (softmax, normalisation, mean): the row's extents. Members may
    /// then range over `rows` and `columns`, and reduce `columns` again.
    pub columns: Option<Vec<Extent>>,
    pub members: Vec<Member>,
    /// Groups that write what this one reads.
    pub after: BTreeSet<usize>,
    /// The position of a step that is no stage; then there are no members.
    pub operation: Option<usize>,
}

impl Group {
    /// A group around its first stage.
    pub fn new(member: Member, tensors: &[Tensor]) -> Group {
        let stage = &member.stage;
        let columns =
            (stage.is_reduction() && reads_each_element_once(stage, tensors)).then(|| extent::reduction(stage));
        let rows = extent::spatial(stage);
        Group { rows, columns, members: vec![member], after: BTreeSet::new(), operation: None }
    }

    /// A group of its own for the operation at this position among the steps.
    pub fn operation(at: usize, after: BTreeSet<usize>) -> Group {
        Group { rows: Vec::new(), columns: None, members: Vec::new(), after, operation: Some(at) }
    }

    pub fn writes(&self, tensor: TensorId) -> bool {
        self.members.iter().any(|member| member.stage.output == tensor)
    }

    /// The shape through which the group's members look at a tensor that one of them writes.
    pub fn view(&self, tensor: TensorId) -> Option<Vec<Extent>> {
        self.members.iter().find(|m| m.stage.output == tensor).map(|m| extent::spatial(&m.stage))
    }

    pub fn has_reduction(&self) -> bool {
        self.members.iter().any(|m| m.stage.is_reduction())
    }

    /// Appends the members of another group, if all of them align. They look at its tensors through its own
    /// axes; `tensors` are as they were afterwards.
    pub fn append(&mut self, other: &Group, tensors: &mut [Tensor]) -> bool {
        let of = |member: &Member| member.stage.output.0 as usize;
        let before: Vec<Tensor> = other.members.iter().map(|member| tensors[of(member)].clone()).collect();
        other.members.iter().for_each(|member| extent::view_through(&mut tensors[of(member)], &member.stage));
        let mut aligned = other.members.iter().map(|member| {
            let stage = self.align(&member.stage, tensors)?;
            self.members.push(Member { stage, nodes: member.nodes.clone() });
            Some(())
        });
        let fits = aligned.all(|joined| joined.is_some());
        for (member, tensor) in other.members.iter().zip(before) {
            tensors[of(member)] = tensor;
        }
        fits
    }

    /// The stage over this group's axes, reading the group's tensors at identity indices; `None` where it
    /// does not align.
    ///
    /// `stage` reads all tensors through their shapes in `tensors`.
    pub fn align(&self, stage: &Stage, tensors: &[Tensor]) -> Option<Stage> {
        let target = self.target_axes(stage)?;
        let (spatial, reduction) = (target.spatial.clone(), target.reduction.clone());
        let moved = restate(stage, &spatial, &reduction);
        let extents = extents_of(&moved);
        let mut aligned = true;
        let value = moved.value.map_loads(&mut |tensor, indices| {
            let view = self.view(tensor)?;
            let about = &tensors[tensor.0 as usize];
            let address = flat(indices, &about.shape, &extents);
            let in_order = || address == identity_address(&most(&view), 0) && are_views(&of_tensor(about), &view);
            aligned &= view.len() <= extents.len() && in_order();
            Some(Expr::load(tensor, variables(0, view.len())))
        });
        aligned.then_some(Stage { value, ..moved })
    }

    /// Over which of the group's axes a stage ranges: those with as many points, in every run.
    fn target_axes(&self, stage: &Stage) -> Option<Axes> {
        let (spatial, reduction) = (extent::spatial(stage), extent::reduction(stage));
        let is_rows = are_views(&spatial, &self.rows);
        match (&self.columns, stage.is_reduction()) {
            (Some(columns), true) if is_rows && are_views(&reduction, columns) => {
                Some(Axes { spatial: self.rows.clone(), reduction: columns.clone() })
            }
            (_, true) => None,
            (_, false) if is_rows => Some(Axes { spatial: self.rows.clone(), reduction: vec![] }),
            (Some(columns), false) => {
                let whole = [self.rows.as_slice(), columns].concat();
                are_views(&spatial, &whole).then_some(Axes { spatial: whole, reduction: vec![] })
            }
            _ => None,
        }
    }

    /// Where an element-wise `stage` reads the group's tensors in another order, the group over the stage's
    /// axes, and the stage over the same ones: `out[h, s, d] = f(acc[s, 64·h + d])` makes the anchor compute
    /// `acc[h, s, d]`.
    ///
    /// `None` where it does not read each element once. The caller makes sure that nobody else reads the
    /// group's tensors.
    pub fn permute(&self, stage: &Stage, tensors: &[Tensor]) -> Option<(Group, Stage)> {
        let members_are_rows = self.members.iter().all(|m| extent::spatial(&m.stage) == self.rows);
        if stage.is_reduction() || !members_are_rows {
            return None;
        }
        let axes = extent::spatial(stage);
        let mut split: Option<Split> = None;
        let mut agree = true;
        stage.value.for_each_load(&mut |tensor, indices| {
            if self.writes(tensor) {
                let shape = of_tensor(&tensors[tensor.0 as usize]);
                let found = are_views(&shape, &self.rows).then(|| {
                    let access = reshape_access(indices, &shape, &self.rows, &stage.spatial);
                    permutation(&access, &self.rows, &axes)
                });
                let found = found.flatten();
                agree &= match (&split, &found) {
                    (_, None) => false,
                    (None, _) => true,
                    (Some(a), Some(b)) => a.extents == b.extents && a.indices == b.indices,
                };
                split = split.take().or(found);
            }
        });
        let split = split.filter(|_| agree)?;
        let axes = split.extents.len();
        let own = variables(0, axes);
        let internal = |tensor, _: &[Index]| self.writes(tensor).then(|| Expr::load(tensor, own.clone()));

        let mut group = self.clone();
        for Member { stage, .. } in &mut group.members {
            let spatial = stage.spatial.len();
            let replace = |var: Var| {
                let at = var.as_parameter().is_none().then_some(var.0 as usize)?;
                Some(match split.indices.get(at) {
                    Some(index) if at < spatial => index.clone(),
                    _ => Index::var(Var((axes + at - spatial) as u32)),
                })
            };
            stage.value = stage.value.substitute(&replace).map_loads(&mut |t, i| internal(t, i));
            stage.extents = extent::formulas(&[split.extents.as_slice(), &extent::reduction(stage)].concat());
            stage.spatial = most(&split.extents);
            stage.value = tidy(&stage.value, &extents_of(stage));
        }
        group.rows = split.extents.clone();
        let value = stage.value.substitute(&|var| split.axes.get(var.0 as usize).cloned());
        let spatial = most(&split.extents);
        let value = tidy(&value.map_loads(&mut |t, i| internal(t, i)), &spatial);
        let extents = extent::formulas(&split.extents);
        Some((group, Stage { extents, ..Stage::map(stage.output, spatial, value) }))
    }
}

struct Axes {
    spatial: Vec<Extent>,
    reduction: Vec<Extent>,
}

/// The same stage over axes that run through the same points in the same order: views of its own.
pub fn restate(stage: &Stage, spatial: &[Extent], reduction: &[Extent]) -> Stage {
    let old = (extent::spatial(stage), extent::reduction(stage));
    if old.0 == spatial && old.1 == reduction {
        return stage.clone();
    }
    let whole = [spatial, reduction].concat();
    let ranges = most(&whole);
    let access = |first: usize, new: &[Extent], old: &[Extent]| {
        let address = reshape_access(&variables(first, new.len()), new, old, &ranges);
        debug_assert_eq!(address.len(), old.len());
        address
    };
    let axes = [access(0, spatial, &old.0), access(spatial.len(), reduction, &old.1)].concat();
    let value = tidy(&stage.value.substitute(&|var| axes.get(var.0 as usize).cloned()), &ranges);
    let (spatial, reduction, extents) = (most(spatial), most(reduction), extent::formulas(&whole));
    Stage { spatial, reduction, value, extents, ..stage.clone() }
}

/// Whether a reduction reads some tensor so that each element takes part once: a row reduction, not a
/// contraction or a window.
fn reads_each_element_once(stage: &Stage, tensors: &[Tensor]) -> bool {
    let extents = extent::axes(stage);
    let mut found = false;
    stage.value.for_each_load(&mut |tensor, indices| {
        found |= permutation(indices, &of_tensor(&tensors[tensor.0 as usize]), &extents).is_some();
        found |= indices.iter().any(Index::has_value) && names_each_axis_once(indices, extents.len());
    });
    found
}

/// Gathered rows: each axis selects along a dimension of its own, or by a gathered index.
fn names_each_axis_once(indices: &[Index], rank: usize) -> bool {
    let is_axis = |index: &Index| index.as_var().is_some_and(|var| var.as_parameter().is_none());
    (0..rank).all(|axis| indices.iter().filter(|index| index.mentions(Var(axis as u32))).count() == 1)
        && indices.iter().all(|index| is_axis(index) || index.has_value())
}

/// Rewrites the members' accesses to `shape` views and drops what nobody reads: element-wise members with a
/// single reader inside of the group move into it.
pub fn inline_members(group: &mut Group, kept: &dyn Fn(TensorId) -> bool) {
    loop {
        let mut readers: BTreeMap<TensorId, Vec<usize>> = BTreeMap::new();
        for (at, member) in group.members.iter().enumerate() {
            let mut read = BTreeSet::new();
            member.stage.value.for_each_load(&mut |tensor, _| {
                read.insert(tensor);
            });
            for tensor in read {
                readers.entry(tensor).or_default().push(at);
            }
        }
        let candidate = group.members.iter().enumerate().find_map(|(at, member)| {
            let stage = &member.stage;
            let read_by = readers.get(&stage.output).map_or(&[][..], Vec::as_slice);
            if kept(stage.output) || stage.is_reduction() {
                return None;
            }
            if read_by.is_empty() {
                return Some((at, vec![]));
            }
            let cost = super::cost::Cost::of(&stage.value);
            // One level of a row group may be wider than another: a value for the row is not computed again
            // for each column.
            let wider = read_by.iter().any(|r| group.members[*r].stage.points() > stage.points());
            let cheap_enough = match read_by.len() {
                1 => !wider || cost.expensive == 0 && cost.cheap <= 1,
                _ => !wider && cost.expensive == 0 && cost.cheap <= 2,
            };
            (cheap_enough && fits_readers(&group.members, at, read_by)).then(|| (at, read_by.to_vec()))
        });
        let Some((at, read_by)) = candidate else { return };
        let inlined = group.members.remove(at);
        for reader in read_by {
            let member = &mut group.members[reader - usize::from(reader > at)];
            let value = member.stage.value.map_loads(&mut |tensor, indices| {
                (tensor == inlined.stage.output)
                    .then(|| inlined.stage.value.substitute(&|var| indices.get(var.0 as usize).cloned()))
            });
            member.stage.value = tidy(&value, &extents_of(&member.stage));
            let nodes: Vec<String> = inlined.nodes.iter().filter(|n| !member.nodes.contains(n)).cloned().collect();
            member.nodes.splice(0..0, nodes);
        }
    }
}

/// Whether a member stays small enough as a part of all its readers.
fn fits_readers(members: &[Member], at: usize, read_by: &[usize]) -> bool {
    let Stage { output, value, .. } = &members[at].stage;
    let size = Size::of(value);
    let mut places = 0;
    let mut fits = true;
    for reader in read_by {
        let value = &members[*reader].stage.value;
        let copies = count_loads(value, *output);
        places += copies;
        fits &= Size::of(value).with_inlined(copies, size).fits();
    }
    fits && may_be_copied(size, places)
}

/// The part of a tensor's leading dimension that `stages` read, if it is narrower than the tensor: `(first,
/// count)`. It is where it is, and in the tensor, in every run; `least` is the least that an extent can be.
pub fn narrowed_rows(
    stages: &[&Stage],
    tensor: TensorId,
    shape: &[Extent],
    least: &dyn Fn(&Extent) -> i64,
) -> Option<(i64, i64)> {
    let (leading, inner) = shape.split_first()?;
    if !inner.iter().all(Extent::is_fixed) {
        return None;
    }
    let extent = leading.most;
    let (mut low, mut high, mut known) = (i64::MAX, i64::MIN, true);
    for stage in stages {
        let extents = extents_of(stage);
        stage.value.for_each_load(&mut |read, indices| {
            if read == tensor {
                match tidy_index(&indices[0], &extents).range(&super::view::ranges(&extents)) {
                    Some(range) => (low, high) = (low.min(range.low), high.max(range.high)),
                    None => known = false,
                }
            }
        });
    }
    let inside = known && low >= 0 && high < least(leading) && low <= high;
    (inside && high - low + 1 < extent).then_some((low, high - low + 1))
}
