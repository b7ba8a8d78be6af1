//! Concatenations: parts that their producers write in place.
//!
//! ```text
//! [a | b] along the leading axis      dense parts, one after the other
//! [a | b] along another one           parts of each row, rows of the whole apart
//! ```
//!
//! Along another axis than the leading one, that is done for tensors whose layout was [chosen](super::layout)
//! so: channels last, whose rows hold what was concatenated.
//!
//! Networks that concatenate again and again (densely connected blocks) must not copy again and again: of
//! concatenations that contain one another, the longest owns the memory and the others are views of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::extent::{self, Extent};
use super::prepare::Prepared;
use super::size::{Size, count_loads, may_be_copied};
use super::view::tidy;
use crate::graph::{ProgramStage, Step};
use crate::workload::{Expr, Index, Role, Stage, Tensor, TensorId, Var};

/// Replaces concatenation stages by places for their parts.
pub fn assemble(prepared: &mut Prepared) {
    let written: HashMap<TensorId, usize> =
        prepared.steps.iter().enumerate().flat_map(|(at, s)| s.outputs().into_iter().map(move |t| (t, at))).collect();
    let mut all = collect(prepared);
    // The longest first; among equals the first of the program.
    all.sort_by_key(|c| (std::cmp::Reverse(c.leaves.len()), c.stage));
    let among: BTreeSet<TensorId> = all.iter().map(|concatenation| concatenation.output).collect();
    let of_stages: BTreeSet<TensorId> =
        prepared.steps.iter().filter_map(Step::stage).map(|held| held.stage.output).collect();
    let mut copies: BTreeMap<usize, Vec<ProgramStage>> = BTreeMap::new();
    let mut owners: Vec<Owner> = Vec::new();
    for concatenation in &all {
        let Concatenation { output, leaves, axis, .. } = concatenation;
        let whole = Place { root: *output, axis: *axis, of_stages: &of_stages };
        if let Some((owner, first)) = owners.iter().find_map(|o| Some((o, o.run(leaves, *axis)?)))
            && (Place { root: owner.output, ..whole }).take(prepared, *output, owner.leaves[first].offset)
        {
            prepared.assemblies.insert(*output, owner.fillers[first..first + leaves.len()].to_vec());
            continue;
        }
        let mut fillers = Vec::new();
        for leaf in leaves {
            let is_single = |source: &TensorId| *axis == 0 || !among.contains(source);
            let placed = leaf.source.filter(is_single).filter(|t| whole.take(prepared, *t, leaf.offset));
            fillers.push(placed.unwrap_or_else(|| {
                let dtype = prepared.tensor(*output).dtype;
                let (shape, extents) = (extent::most(&leaf.shape), extent::formulas(&leaf.shape));
                let part = Tensor { extents: extents.clone(), ..Tensor::new(shape.clone(), dtype, Role::Intermediate) };
                let part = prepared.add_tensor(part);
                whole.put(prepared, part, leaf.offset);
                let mut position = 0;
                leaf.value.for_each_load(&mut |tensor, _| {
                    position = position.max(written.get(&tensor).map_or(0, |at| at + 1));
                });
                let node = prepared.steps[concatenation.stage].node().to_owned();
                let stage = Stage { extents, ..Stage::map(part, shape, leaf.value.clone()) };
                copies.entry(position).or_default().push(ProgramStage { stage, node });
                part
            }));
        }
        prepared.assemblies.insert(*output, fillers.clone());
        owners.push(Owner { output: *output, axis: *axis, leaves, fillers });
    }
    let mut steps = Vec::with_capacity(prepared.steps.len());
    for (at, step) in std::mem::take(&mut prepared.steps).into_iter().enumerate() {
        steps.extend(copies.remove(&at).unwrap_or_default().into_iter().map(Step::Stage));
        if !step.stage().is_some_and(|stage| prepared.assemblies.contains_key(&stage.stage.output)) {
            steps.push(step);
        }
    }
    steps.extend(copies.into_values().flatten().map(Step::Stage));
    prepared.steps = steps;
}

/// Where parts of a concatenation lie.
#[derive(Clone, Copy)]
struct Place<'a> {
    root: TensorId,
    axis: usize,
    /// What stages write.
    of_stages: &'a BTreeSet<TensorId>,
}

impl Place<'_> {
    /// Lets a tensor live at an offset of the root, if it may. Operations do not write or read rows in part,
    /// and one that lies so can be a part of nothing else.
    fn take(self, prepared: &mut Prepared, tensor: TensorId, offset: i64) -> bool {
        let [shape, whole] = [tensor, self.root].map(|tensor| extent::of_tensor(prepared.tensor(tensor)));
        let same = |(axis, extent): (usize, &Extent)| axis == self.axis || whole.get(axis) == Some(extent);
        let is_part = || shape.len() == whole.len() && shape.iter().enumerate().all(same);
        let is_of_stages = || self.of_stages.contains(&tensor) && !prepared.kept.contains(&tensor);
        (self.axis == 0 || is_part() && is_of_stages()) && self.put(prepared, tensor, offset)
    }

    /// The same for a tensor of the root's rank.
    fn put(self, prepared: &mut Prepared, tensor: TensorId, offset: i64) -> bool {
        let placed = prepared.place(tensor, self.root, offset);
        if placed && self.axis > 0 {
            prepared.pitches.insert(tensor, (self.axis, prepared.tensor(self.root).shape[self.axis]));
        }
        placed
    }
}

/// Concatenations, and the tensors that fill parts of them as they are.
pub struct Joined {
    /// Those whose parts can follow when their axis is no longer the leading one.
    pub free: BTreeSet<TensorId>,
    pub bound: BTreeSet<TensorId>,
}

/// Which tensors take part in concatenations.
pub fn taking_part(prepared: &Prepared) -> Joined {
    let mut joined = Joined { free: BTreeSet::new(), bound: BTreeSet::new() };
    for Concatenation { output, axis, leaves, .. } in collect(prepared) {
        let fixed = leaves.iter().all(|leaf| leaf.shape.get(axis).is_some_and(Extent::is_fixed));
        let of_rank = |leaf: &Leaf| {
            let mut alike = true;
            leaf.value.for_each_load(&mut |tensor, indices| {
                let given = matches!(prepared.tensor(tensor).role, Role::Input | Role::Constant);
                alike &= given || indices.len() == leaf.shape.len();
            });
            alike
        };
        let tensors = leaves.iter().filter_map(|leaf| leaf.source).chain([output]);
        match fixed && leaves.iter().all(of_rank) {
            true => joined.free.extend(tensors),
            false => joined.bound.extend(tensors),
        }
    }
    joined
}

/// What is concatenated along the innermost of several axes, and could be assembled in place if it was
/// [arranged](Prepared::arranged) so.
pub fn in_rows(prepared: &Prepared) -> Vec<TensorId> {
    let stages = prepared.steps.iter().filter_map(Step::stage).map(|held| &held.stage);
    let could_be = |stage: &&Stage| {
        let axis = axis_of(&stage.value).filter(|axis| *axis > 0 && axis + 1 == stage.spatial.len());
        let is_undecided = !stage.is_reduction() && !prepared.arranged.contains(&stage.output);
        let axis = axis.filter(|_| is_undecided && is_between(prepared, stage.output));
        axis.is_some_and(|axis| pieces_of_rows(prepared, stage, axis).is_some())
    };
    stages.filter(could_be).map(|stage| stage.output).collect()
}

/// Whether a tensor is nobody's but the stages', which may write it in parts.
fn is_between(prepared: &Prepared, tensor: TensorId) -> bool {
    let is_intermediate = prepared.tensor(tensor).role == Role::Intermediate;
    is_intermediate && !prepared.must_exist(tensor) && !prepared.overwritten.contains(&tensor)
}

/// Maximum number of parts of a concatenation; one inside of another that would make more keeps its memory.
const MAX_LEAVES: usize = 256;

struct Concatenation {
    output: TensorId,
    axis: usize,
    /// Position of its stage.
    stage: usize,
    leaves: Vec<Leaf>,
}

/// A part that is no concatenation itself.
#[derive(Clone, Debug)]
struct Leaf {
    /// The tensor of which the part is a copy in order, if it is one.
    source: Option<TensorId>,
    /// In elements of the concatenation.
    offset: i64,
    shape: Vec<Extent>,
    value: Expr,
}

/// A concatenation with memory of its own.
struct Owner<'a> {
    output: TensorId,
    axis: usize,
    leaves: &'a [Leaf],
    /// What fills each leaf.
    fillers: Vec<TensorId>,
}

impl Owner<'_> {
    /// Where the leaves occur one after the other.
    fn run(&self, leaves: &[Leaf], axis: usize) -> Option<usize> {
        let same = |(a, b): (&Leaf, &Leaf)| a.source.is_some() && a.source == b.source && self.axis == axis;
        self.leaves.windows(leaves.len()).position(|run| run.iter().zip(leaves).all(same))
    }
}

/// All concatenations, those inside of others taken apart, and what is computed from each of their elements
/// alone drawn into their parts: `relu(concat(a, b)) = concat(relu(a), relu(b))`.
fn collect(prepared: &Prepared) -> Vec<Concatenation> {
    let mut readers: HashMap<TensorId, usize> = HashMap::new();
    for ProgramStage { stage, .. } in prepared.steps.iter().filter_map(Step::stage) {
        super::loads(stage).into_iter().for_each(|tensor| *readers.entry(tensor).or_default() += 1);
    }
    let mut found: BTreeMap<usize, Concatenation> = BTreeMap::new();
    let mut number: HashMap<TensorId, usize> = HashMap::new();
    for (at, step) in prepared.steps.iter().enumerate() {
        let Some(ProgramStage { stage, .. }) = step.stage() else { continue };
        if stage.is_reduction() || stage.spatial.is_empty() || prepared.overwritten.contains(&stage.output) {
            continue;
        }
        let whole = extent::spatial(stage);
        let axis = axis_of(&stage.value).filter(|axis| *axis == 0 || prepared.arranged.contains(&stage.output));
        let axis = axis.filter(|axis| *axis < stage.spatial.len()).unwrap_or(0);
        let pieces = match axis {
            0 => pieces_along(0, &stage.value, 0, stage.spatial[0]).filter(|pieces| {
                pieces.len() > 1 && pieces.last().is_some_and(|last| is_assembled(prepared, &whole, last.low))
            }),
            _ => pieces_of_rows(prepared, stage, axis),
        };
        let (axis, leaves) = match pieces {
            Some(pieces) => {
                let dtype = prepared.tensor(stage.output).dtype;
                let inner: i64 = stage.spatial[axis + 1..].iter().product();
                let mut leaves = Vec::new();
                for Piece { low, high, value } in pieces {
                    let mut shape = whole.clone();
                    shape[axis] = part_of(&whole[axis], low, high);
                    let value = tidy(&value.substitute(&|var| shifted(var, axis, low)), &extent::most(&shape));
                    let source = prepared.whole_copy(&value, &shape, dtype);
                    let alike = |source: &TensorId| axis == 0 || extent::of_tensor(prepared.tensor(*source)) == shape;
                    let nested = source.filter(alike).and_then(|source| found.get(number.get(&source)?));
                    match nested
                        .filter(|nested| nested.axis == axis)
                        .filter(|nested| leaves.len() + nested.leaves.len() <= MAX_LEAVES)
                    {
                        Some(nested) => leaves.extend(
                            nested.leaves.iter().map(|leaf| Leaf { offset: leaf.offset + low * inner, ..leaf.clone() }),
                        ),
                        None => leaves.push(Leaf { source, offset: low * inner, shape, value }),
                    }
                }
                (axis, leaves)
            }
            None => {
                let whole = super::loads(stage).into_iter().find_map(|tensor| Some((tensor, *number.get(&tensor)?)));
                let Some((tensor, concatenation)) = whole else { continue };
                // what others find in memory is written whole
                let may_be = |of: &&Concatenation| of.axis == 0 || is_between(prepared, stage.output);
                let Some(of) = found.get(&concatenation).filter(may_be) else { continue };
                let (axis, Some(leaves)) = (of.axis, distribute(prepared, &readers, stage, of)) else { continue };
                found.remove(&concatenation);
                number.remove(&tensor);
                (axis, leaves)
            }
        };
        number.insert(stage.output, at);
        found.insert(at, Concatenation { output: stage.output, axis, stage: at, leaves });
    }
    found.into_values().collect()
}

/// Part by part, what an element-wise stage makes of a concatenation; `None` where somebody else needs the
/// concatenation or one of its parts, or where the stage is not element by element.
fn distribute(
    prepared: &Prepared,
    readers: &HashMap<TensorId, usize>,
    stage: &Stage,
    of: &Concatenation,
) -> Option<Vec<Leaf>> {
    let single = |tensor: TensorId| {
        let is_kept = prepared.tensor(tensor).role == Role::Output || prepared.kept.contains(&tensor);
        readers.get(&tensor) == Some(&1) && !is_kept
    };
    // What is given to the network is in memory anyway.
    let given = |tensor: TensorId| matches!(prepared.tensor(tensor).role, Role::Input | Role::Constant);
    let own_parts = of.leaves.iter().all(|leaf| leaf.source.is_none_or(|source| given(source) || single(source)));
    let mut in_order = true;
    let identity = super::view::variables(0, stage.spatial.len());
    stage.value.for_each_load(&mut |tensor, indices| in_order &= tensor != of.output || indices == identity);
    let whole = extent::spatial(stage);
    let same_shape = extent::of_tensor(prepared.tensor(of.output)) == whole;
    if !(single(of.output) && own_parts && in_order && same_shape) {
        return None;
    }
    let copies = count_loads(&stage.value, of.output);
    let own = Size::of(&stage.value);
    let fits = |leaf: &Leaf| {
        let size = Size::of(&leaf.value);
        may_be_copied(size, copies) && own.with_inlined(copies, size).fits()
    };
    if !of.leaves.iter().all(fits) {
        return None;
    }
    let inner: i64 = stage.spatial[of.axis + 1..].iter().product();
    let part = |leaf: &Leaf| {
        let value = stage.value.substitute(&|var| shifted(var, of.axis, leaf.offset / inner));
        let value = value.map_loads(&mut |tensor, _| (tensor == of.output).then(|| leaf.value.clone()));
        Leaf { source: None, value: tidy(&value, &extent::most(&leaf.shape)), ..leaf.clone() }
    };
    // A part has the concatenation's dimensions but one, unless it came out of a nested one of another shape.
    let same = |leaf: &Leaf, axis: usize| axis == of.axis || leaf.shape.get(axis) == Some(&whole[axis]);
    let alike = |leaf: &Leaf| leaf.shape.len() == whole.len() && (0..whole.len()).all(|axis| same(leaf, axis));
    of.leaves.iter().all(alike).then(|| of.leaves.iter().map(part).collect())
}

/// The pieces of a concatenation along another axis than the leading one, if they are worth writing in place.
fn pieces_of_rows(prepared: &Prepared, stage: &Stage, axis: usize) -> Option<Vec<Piece>> {
    let pieces = pieces_along(axis, &stage.value, 0, stage.spatial[axis])?;
    let row = &extent::spatial(stage)[axis..];
    (pieces.len() > 1 && is_assembled_in_rows(prepared, row, &pieces)).then_some(pieces)
}

/// Whether parts of rows are worth writing in place: some of them are what stages write, and no two come from
/// one tensor. All extents from the axis on are known, so that parts begin where they do in every run.
fn is_assembled_in_rows(prepared: &Prepared, row: &[Extent], pieces: &[Piece]) -> bool {
    let read: Vec<TensorId> = pieces
        .iter()
        .filter_map(|piece| match &piece.value {
            Expr::Load { tensor, .. } => Some(*tensor),
            _ => None,
        })
        .collect();
    let distinct: BTreeSet<TensorId> = read.iter().copied().collect();
    row.iter().all(Extent::is_fixed)
        && distinct.len() == pieces.len()
        && read.iter().any(|tensor| prepared.tensor(*tensor).role == Role::Intermediate)
}

/// Whether the parts of a concatenation are where they are in every run: nothing but the leading axis is
/// known only then, and it reaches to its last part, which begins at `last`.
fn is_assembled(prepared: &Prepared, whole: &[Extent], last: i64) -> bool {
    whole[1..].iter().all(Extent::is_fixed) && (whole[0].is_fixed() || prepared.least(&whole[0]) >= last)
}

/// What lies in `low..high` of an axis, of which only the last part can be less in a run.
fn part_of(axis: &Extent, low: i64, high: i64) -> Extent {
    let formula = axis.formula.as_ref().filter(|_| high == axis.most);
    Extent { most: high - low, formula: formula.map(|formula| formula.clone().plus_constant(-low)) }
}

/// The axis of a concatenation moved to where a part begins.
fn shifted(var: Var, axis: usize, by: i64) -> Option<Index> {
    (var == Var(axis as u32)).then(|| Index::var(var).plus_constant(by))
}

/// The axis that a guard is on.
fn axis_of(value: &Expr) -> Option<usize> {
    let Expr::Guard { conditions, .. } = value else { return None };
    let [condition] = conditions.as_slice() else { return None };
    let axis = condition.index.clone().plus_constant(-condition.index.offset()).as_var()?;
    axis.as_parameter().is_none().then_some(axis.0 as usize)
}

/// What a concatenation holds in `low..high` of its axis.
struct Piece {
    low: i64,
    high: i64,
    value: Expr,
}

/// Takes a chain of guards on an axis apart, if each branch is one load.
fn pieces_along(axis: usize, value: &Expr, low: i64, high: i64) -> Option<Vec<Piece>> {
    match value {
        Expr::Guard { conditions, inside, outside } => {
            let [condition] = conditions.as_slice() else { return None };
            let shifted = condition.index.clone().plus_constant(-condition.index.offset());
            if shifted.as_var() != Some(Var(axis as u32)) {
                return None;
            }
            let start = (condition.low - condition.index.offset()).clamp(low, high);
            let end = (condition.high - condition.index.offset()).clamp(start, high);
            let mut pieces = Vec::new();
            for (value, low, high) in [(outside, low, start), (inside, start, end), (outside, end, high)] {
                if low < high {
                    pieces.extend(pieces_along(axis, value, low, high)?);
                }
            }
            Some(pieces)
        }
        Expr::Load { .. } => Some(vec![Piece { low, high, value: value.clone() }]),
        _ => None,
    }
}
