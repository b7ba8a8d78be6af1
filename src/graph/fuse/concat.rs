//! Concatenations along the leading axis: dense parts one after the other, which their producers write in
//! place.
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
    let mut copies: BTreeMap<usize, Vec<ProgramStage>> = BTreeMap::new();
    let mut owners: Vec<Owner> = Vec::new();
    for concatenation in &all {
        let Concatenation { output, leaves, .. } = concatenation;
        if let Some((owner, first)) = owners.iter().find_map(|o| Some((o, o.run(leaves)?)))
            && prepared.place(*output, owner.output, owner.leaves[first].offset)
        {
            prepared.assemblies.insert(*output, owner.fillers[first..first + leaves.len()].to_vec());
            continue;
        }
        let mut fillers = Vec::new();
        for leaf in leaves {
            let placed = leaf.source.filter(|source| prepared.place(*source, *output, leaf.offset));
            fillers.push(placed.unwrap_or_else(|| {
                let dtype = prepared.tensor(*output).dtype;
                let (shape, extents) = (extent::most(&leaf.shape), extent::formulas(&leaf.shape));
                let part = Tensor { extents: extents.clone(), ..Tensor::new(shape.clone(), dtype, Role::Intermediate) };
                let part = prepared.add_tensor(part);
                prepared.places.insert(part, (*output, leaf.offset));
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
        owners.push(Owner { output: *output, leaves, fillers });
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

/// Concatenations, and the tensors that fill parts of them as they are.
pub fn taking_part(prepared: &Prepared) -> BTreeSet<TensorId> {
    let mut found = BTreeSet::new();
    for concatenation in collect(prepared) {
        found.insert(concatenation.output);
        found.extend(concatenation.leaves.iter().filter_map(|leaf| leaf.source));
    }
    found
}

/// Maximum number of parts of a concatenation; one inside of another that would make more keeps its memory.
const MAX_LEAVES: usize = 256;

struct Concatenation {
    output: TensorId,
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
    leaves: &'a [Leaf],
    /// What fills each leaf.
    fillers: Vec<TensorId>,
}

impl Owner<'_> {
    /// Where the leaves occur one after the other.
    fn run(&self, leaves: &[Leaf]) -> Option<usize> {
        let same = |(a, b): (&Leaf, &Leaf)| a.source.is_some() && a.source == b.source;
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
        let pieces = leading_pieces(&stage.value, 0, stage.spatial[0]).filter(|pieces| {
            pieces.len() > 1 && pieces.last().is_some_and(|last| is_assembled(prepared, &whole, last.low))
        });
        let leaves = match pieces {
            Some(pieces) => {
                let dtype = prepared.tensor(stage.output).dtype;
                let inner: i64 = stage.spatial[1..].iter().product();
                let mut leaves = Vec::new();
                for Piece { low, high, value } in pieces {
                    let mut shape = whole.clone();
                    shape[0] = part_of(&whole[0], low, high);
                    let value = tidy(&value.substitute(&|var| shifted(var, low)), &extent::most(&shape));
                    let source = prepared.whole_copy(&value, &shape, dtype);
                    let nested = source.and_then(|source| found.get(number.get(&source)?));
                    match nested.filter(|nested| leaves.len() + nested.leaves.len() <= MAX_LEAVES) {
                        Some(nested) => leaves.extend(
                            nested.leaves.iter().map(|leaf| Leaf { offset: leaf.offset + low * inner, ..leaf.clone() }),
                        ),
                        None => leaves.push(Leaf { source, offset: low * inner, shape, value }),
                    }
                }
                leaves
            }
            None => {
                let whole = super::loads(stage).into_iter().find_map(|tensor| Some((tensor, *number.get(&tensor)?)));
                let Some((tensor, concatenation)) = whole else { continue };
                let Some(leaves) = found.get(&concatenation).and_then(|c| distribute(prepared, &readers, stage, c))
                else {
                    continue;
                };
                found.remove(&concatenation);
                number.remove(&tensor);
                leaves
            }
        };
        number.insert(stage.output, at);
        found.insert(at, Concatenation { output: stage.output, stage: at, leaves });
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
    let inner: i64 = stage.spatial[1..].iter().product();
    let part = |leaf: &Leaf| {
        let value = stage.value.substitute(&|var| shifted(var, leaf.offset / inner));
        let value = value.map_loads(&mut |tensor, _| (tensor == of.output).then(|| leaf.value.clone()));
        Leaf { source: None, value: tidy(&value, &extent::most(&leaf.shape)), ..leaf.clone() }
    };
    // A part has the concatenation's dimensions but the first, unless it came out of a nested one of another
    // shape.
    of.leaves.iter().all(|leaf| leaf.shape[1..] == whole[1..]).then(|| of.leaves.iter().map(part).collect())
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

/// The leading axis moved to where a part begins.
fn shifted(var: Var, by: i64) -> Option<Index> {
    (var.0 == 0).then(|| Index::var(var).plus_constant(by))
}

/// What a concatenation holds in `low..high` of its axis.
struct Piece {
    low: i64,
    high: i64,
    value: Expr,
}

/// Takes a chain of guards on the leading axis apart, if each branch is one load.
fn leading_pieces(value: &Expr, low: i64, high: i64) -> Option<Vec<Piece>> {
    match value {
        Expr::Guard { conditions, inside, outside } => {
            let [condition] = conditions.as_slice() else { return None };
            let shifted = condition.index.clone().plus_constant(-condition.index.offset());
            if shifted.as_var() != Some(Var(0)) {
                return None;
            }
            let start = (condition.low - condition.index.offset()).clamp(low, high);
            let end = (condition.high - condition.index.offset()).clamp(start, high);
            let mut pieces = Vec::new();
            for (value, low, high) in [(outside, low, start), (inside, start, end), (outside, end, high)] {
                if low < high {
                    pieces.extend(leading_pieces(value, low, high)?);
                }
            }
            Some(pieces)
        }
        Expr::Load { .. } => Some(vec![Piece { low, high, value: value.clone() }]),
        _ => None,
    }
}
