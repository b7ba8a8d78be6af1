//! Layouts of tensors between tasks: the order in which their dimensions lie in memory.
//!
//! ```text
//! layout 0 = kept      [32, 112, 112]: channels, rows, columns of an image, as ONNX has it
//! layout 0 = last      [112, 112, 32]: what weights and biases depend on lies innermost
//! ```
//!
//! No operator is named. The dimensions that go last are those that the constants of the stage that writes a
//! tensor depend on; all others keep their order before them. Tensors that stages connect element by element
//! (residual sums, activations, scalings, windows of pooling) form a class and get their layout together:
//! tasks are then cut as they are without. What is transposed for windows of weights to read it, as tokens
//! that become an image, may stay as it lay: then nothing is transposed.
//!
//! Concatenations move with their parts, so that what was concatenated along channels lies in each pixel;
//! parts are written there in place ([`concat`]). They are a kind of their own, `concatenation 0 = last`:
//! parts that lie in one another's rows cost their writers something. What is concatenated along the
//! innermost axis before anything moves, as channels of short numbers are, is copied part by part, or written
//! in place in the same way:
//!
//! ```text
//! parts 0 = copied     by a stage of its own, or by its readers
//! parts 0 = placed     in the rows of the whole, by who computes them
//! ```
//!
//! Left as they are: what is given to the network or to an operation, its outputs, tensors that share memory
//! with others (parts of concatenations whose extents are known only when the network runs, among them), and
//! classes with one of these but what is given.

use std::collections::{BTreeMap, BTreeSet};

use super::concat;
use super::extent::{self, Extent, are_views, matching_segments, of_tensor};
use super::plan::{Concern, Kind, Planner};
use super::prepare::{Prepared, extents_of};
use super::view::{flat, identity_address};
use super::{PartitionError, loads};
use crate::graph::{ProgramStage, Step};
use crate::trace::{Word, Words};
use crate::workload::{Atom, Expr, Index, Role, Stage, TensorId, Var};

/// Which of the old dimensions is at each place, by tensor.
type Orders = BTreeMap<TensorId, Vec<usize>>;

/// Decides the layouts of a program without views, and rewrites it.
pub fn arrange(prepared: &mut Prepared, planner: &mut Planner<'_, '_>) -> Result<(), PartitionError> {
    let mut orders = Orders::new();
    let (concatenated, others) = classes(prepared);
    for (kind, classes) in [(Kind::Layout, others), (Kind::Concatenation, concatenated)] {
        for (number, class) in (0_u64..).zip(classes) {
            let site = Words(vec![Word::from(kind.name()), Word::from(number)]);
            let concerns = concerns(prepared, &|written| class.contains_key(&written));
            if planner.choose(kind, site, &["kept", "last"], concerns)?.is("last") {
                orders.extend(class);
            }
        }
    }
    if !orders.is_empty() {
        lay_out(prepared, orders);
    }
    place_parts(prepared, planner)
}

/// Decides of each concatenation along the innermost axis whether its parts are written in place.
fn place_parts(prepared: &mut Prepared, planner: &mut Planner<'_, '_>) -> Result<(), PartitionError> {
    for (number, tensor) in (0_u64..).zip(concat::in_rows(prepared)) {
        let site = Words(vec![Word::from(Kind::Parts.name()), Word::from(number)]);
        let concerns = concerns(prepared, &|written| written == tensor);
        if planner.choose(Kind::Parts, site, &["copied", "placed"], concerns)?.is("placed") {
            prepared.arranged.insert(tensor);
        }
    }
    Ok(())
}

/// Gives tensors these orders.
fn lay_out(prepared: &mut Prepared, orders: Orders) {
    for ProgramStage { stage, .. } in prepared.steps.iter_mut().filter_map(Step::stage_mut) {
        rearrange(stage, &orders);
    }
    prepared.arranged.extend(orders.keys());
    for (tensor, order) in orders {
        let about = &mut prepared.tensors[tensor.0 as usize];
        about.shape = order.iter().map(|old| about.shape[*old]).collect();
        about.extents = about.extents.moved(|old| order.iter().position(|dimension| *dimension == old));
    }
    // what was transposed to be read may now be in order
    prepared.remove_views();
}

/// Who writes the tensors that a decision is about.
fn concerns(prepared: &Prepared, is_concerned: &dyn Fn(TensorId) -> bool) -> Vec<Concern> {
    let written = prepared.steps.iter().filter_map(Step::stage).filter(|held| is_concerned(held.stage.output));
    written.map(|held| Concern { node: held.node.clone(), shape: held.stage.spatial.clone() }).collect()
}

/// The stage over the axes of its result where they are now, reading tensors as they lie now.
fn rearrange(stage: &mut Stage, orders: &Orders) {
    if let Some(order) = orders.get(&stage.output) {
        let place = |axis: usize| order.iter().position(|old| *old == axis).unwrap_or(axis);
        let places: Vec<Index> = (0..order.len()).map(|axis| Index::var(Var(place(axis) as u32))).collect();
        stage.value = stage.value.substitute(&|var| {
            let axis = var.as_parameter().is_none().then_some(var.0 as usize)?;
            places.get(axis).cloned()
        });
        stage.extents = stage.extents.moved(|axis| Some(place(axis)));
        stage.spatial = order.iter().map(|old| stage.spatial[*old]).collect();
    }
    stage.value.for_each_load_mut(&mut |tensor, indices| {
        if let Some(order) = orders.get(&tensor) {
            let old = std::mem::take(indices);
            *indices = order.iter().map(|dimension| old[*dimension].clone()).collect();
        }
    });
}

/// A range of dimensions of one tensor, and the same memory of the other.
type Segment = ((usize, usize), (usize, usize));

/// A stage that connects one of its operands with its result, element by element.
struct Tie {
    operand: TensorId,
    result: TensorId,
    segments: Vec<Segment>,
}

/// Tensors whose layout is decided together, with the orders in which what constants depend on comes last;
/// only where that is another one. Those with concatenations, and the others; each in the order in which the
/// first of a class is written.
fn classes(prepared: &Prepared) -> (Vec<Orders>, Vec<Orders>) {
    let joined = concat::taking_part(prepared);
    let free = free_tensors(prepared, &joined.bound);
    let stages = || prepared.steps.iter().filter_map(Step::stage).map(|held| &held.stage);
    let ties: Vec<Tie> = stages().flat_map(|stage| ties(prepared, stage)).collect();
    let class_of = connected(&ties);
    let class = |tensor: TensorId| class_of.get(&tensor).copied().unwrap_or(tensor);
    let bound: BTreeSet<TensorId> =
        ties.iter().flat_map(|tie| [tie.operand, tie.result]).filter(|t| !free.contains(t)).map(class).collect();

    let nothing = |tensor: &TensorId| (*tensor, vec![false; prepared.tensor(*tensor).shape.len()]);
    let mut last: Last = free.iter().map(nothing).collect();
    let written = |stage: &&Stage| free.contains(&stage.output);
    let of_constants = |stage: &Stage| (stage.output, constant_axes(prepared, stage));
    last.extend(stages().filter(written).filter(|stage| stage.is_reduction()).map(of_constants));
    spread(&mut last, &ties);
    // Where no sum multiplies weights, scales and biases say what varies with constants.
    let anchored: BTreeSet<TensorId> =
        last.iter().filter(|(_, moved)| moved.contains(&true)).map(|(tensor, _)| class(*tensor)).collect();
    let maps =
        stages().filter(written).filter(|stage| !stage.is_reduction() && !anchored.contains(&class(stage.output)));
    last.extend(maps.map(of_constants));
    spread(&mut last, &ties);
    let undecided = |(tensor, _): &(TensorId, Vec<bool>)| last.get(tensor).is_some_and(|moved| !moved.contains(&true));
    let turned: Vec<(TensorId, Vec<bool>)> =
        stages().filter(written).filter_map(|stage| turned_for_windows(prepared, stage)).filter(undecided).collect();
    last.extend(turned);
    spread(&mut last, &ties);

    let mut found: Vec<(TensorId, Orders)> = Vec::new();
    for stage in stages().filter(written).filter(|stage| !bound.contains(&class(stage.output))) {
        let rank = stage.spatial.len();
        let own = last.get(&stage.output);
        let is_last = |axis: &usize| own.is_some_and(|moved| moved[*axis]);
        let order: Vec<usize> =
            (0..rank).filter(|axis| !is_last(axis)).chain((0..rank).filter(|axis| is_last(axis))).collect();
        if order.iter().copied().eq(0..rank) {
            continue;
        }
        let class = class(stage.output);
        match found.iter_mut().find(|(known, _)| *known == class) {
            Some((_, orders)) => drop(orders.insert(stage.output, order)),
            None => found.push((class, Orders::from([(stage.output, order)]))),
        }
    }
    let is_concatenated = |orders: &Orders| orders.keys().any(|tensor| joined.free.contains(tensor));
    found.into_iter().map(|(_, orders)| orders).partition(is_concatenated)
}

/// What a stage writes that does nothing but transpose something for windows of weights, as tokens become an
/// image and are convolved: the dimensions that go last for it to lie as it was.
fn turned_for_windows(prepared: &Prepared, stage: &Stage) -> Option<(TensorId, Vec<bool>)> {
    let Expr::Load { tensor, indices } = &stage.value else { return None };
    let axis_of = |index: &Index| match index.terms() {
        [(Atom::Var(var), 1)] if index.offset() == 0 => Some(var.0 as usize),
        _ => None,
    };
    let order: Vec<usize> = indices.iter().map(axis_of).collect::<Option<_>>()?;
    let is_permutation = (0..stage.spatial.len()).all(|axis| order.contains(&axis));
    // those before the descent keep their order, and those behind it have theirs
    let descents: Vec<usize> = (1..order.len()).filter(|at| order[at - 1] > order[*at]).collect();
    let &[descent] = descents.as_slice() else { return None };
    if stage.is_reduction() || order.len() != stage.spatial.len() || !is_permutation {
        return None;
    }
    let slides = |reader: &Stage| {
        let mut windows = false;
        reader.value.for_each_load(&mut |read, indices| {
            windows |= read == stage.output && indices.iter().any(|index| reader.slides(index));
        });
        windows && weighs(prepared, reader)
    };
    let mut stages = prepared.steps.iter().filter_map(Step::stage).map(|held| &held.stage);
    let given = matches!(prepared.tensor(*tensor).role, Role::Input | Role::Constant);
    if given || !stages.any(slides) {
        return None;
    }
    let moved = (0..order.len()).map(|axis| order[descent..].contains(&axis)).collect();
    Some((stage.output, moved))
}

/// Whether a stage sums what it multiplies with constants.
fn weighs(prepared: &Prepared, stage: &Stage) -> bool {
    stage.is_reduction() && loads(stage).iter().any(|t| prepared.tensor(*t).role == Role::Constant)
}

/// Tensors that stages write and only stages read, in memory of their own.
fn free_tensors(prepared: &Prepared, joined: &BTreeSet<TensorId>) -> BTreeSet<TensorId> {
    let is_free = |tensor: &TensorId| {
        let about = prepared.tensor(*tensor);
        let is_between = about.role == Role::Intermediate && !prepared.must_exist(*tensor);
        is_between && about.shape.len() > 1 && !prepared.overwritten.contains(tensor) && !joined.contains(tensor)
    };
    prepared.steps.iter().filter_map(Step::stage).map(|held| held.stage.output).filter(is_free).collect()
}

/// The spatial axes that the constants of a stage depend on.
fn constant_axes(prepared: &Prepared, stage: &Stage) -> Vec<bool> {
    let mut found = vec![false; stage.spatial.len()];
    stage.value.for_each_load(&mut |tensor, indices| {
        if prepared.tensor(tensor).role == Role::Constant {
            let mentioned = |axis: usize| indices.iter().any(|index| index.mentions(Var(axis as u32)));
            found.iter_mut().enumerate().for_each(|(axis, found)| *found |= mentioned(axis));
        }
    });
    found
}

/// What a stage connects with its result, but what is given or has fewer than two dimensions.
fn ties(prepared: &Prepared, stage: &Stage) -> Vec<Tie> {
    let own = extent::spatial(stage);
    let is_given = |tensor: &TensorId| matches!(prepared.tensor(*tensor).role, Role::Input | Role::Constant);
    let weighs = weighs(prepared, stage);
    let mut found = Vec::new();
    stage.value.for_each_load(&mut |operand, indices| {
        let shape = of_tensor(prepared.tensor(operand));
        if weighs || is_given(&operand) || own.len().min(shape.len()) < 2 {
            return;
        }
        let segments = match is_along_axes(stage, indices) {
            true => Some((0..own.len()).map(|axis| ((axis, axis + 1), (axis, axis + 1))).collect()),
            false => is_in_order(stage, &own, &shape, indices).then(|| matching_segments(&shape, &own)),
        };
        found.extend(segments.map(|segments| Tie { operand, result: stage.output, segments }));
    });
    found
}

/// Whether each dimension of an operand is read along the axis of the result at its place, and no other.
fn is_along_axes(stage: &Stage, indices: &[Index]) -> bool {
    let spatial = stage.spatial.len();
    let mentions = |index: &Index, axis: usize| index.mentions(Var(axis as u32));
    let is_along = |(at, index): (usize, &Index)| (0..spatial).all(|axis| mentions(index, axis) == (axis == at));
    indices.len() == spatial && indices.iter().enumerate().all(is_along)
}

/// Whether an element-wise stage reads an operand in the order of memory, through whatever shape.
fn is_in_order(stage: &Stage, own: &[Extent], shape: &[Extent], indices: &[Index]) -> bool {
    let ranges = extents_of(stage);
    let address = || flat(indices, &extent::most(shape), &ranges);
    !stage.is_reduction() && are_views(shape, own) && address() == identity_address(&ranges, 0)
}

/// By tensor, the least of those that it is connected with.
fn connected(ties: &[Tie]) -> BTreeMap<TensorId, TensorId> {
    fn root(parents: &BTreeMap<TensorId, TensorId>, tensor: TensorId) -> TensorId {
        let mut at = tensor;
        while let Some(parent) = parents.get(&at).filter(|parent| **parent != at) {
            at = *parent;
        }
        at
    }
    let mut parents = BTreeMap::new();
    for Tie { operand, result, .. } in ties {
        let (a, b) = (root(&parents, *operand), root(&parents, *result));
        parents.insert(a.max(b), a.min(b));
        for tensor in [*operand, *result] {
            parents.insert(tensor, a.min(b));
        }
        parents.insert(a.min(b), a.min(b));
    }
    parents.keys().map(|tensor| (*tensor, root(&parents, *tensor))).collect()
}

/// By tensor and dimension, whether it goes last.
type Last = BTreeMap<TensorId, Vec<bool>>;

/// What goes last on one side of a tie does so on the other: whole segments, so that their order in memory
/// stays the same.
fn spread(last: &mut Last, ties: &[Tie]) {
    loop {
        let mut changes = false;
        // both ways, so that long chains take few rounds
        for Tie { operand, result, segments } in ties.iter().chain(ties.iter().rev()) {
            for (of_operand, of_result) in segments {
                let sides = [(*operand, *of_operand), (*result, *of_result)];
                let marked = |(tensor, (first, end)): &(TensorId, (usize, usize))| {
                    last.get(tensor).is_some_and(|moved| moved[*first..*end].contains(&true))
                };
                if !sides.iter().any(marked) {
                    continue;
                }
                for (tensor, (first, end)) in sides {
                    let Some(moved) = last.get_mut(&tensor) else { continue };
                    changes |= moved[first..end].contains(&false);
                    moved[first..end].fill(true);
                }
            }
        }
        if !changes {
            return;
        }
    }
}
