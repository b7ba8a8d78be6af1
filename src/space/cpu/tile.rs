//! Register tiles and blocks: which axes are fused, which one runs in vectors, and how each is cut.

use super::matrix;
use super::sizes::{default_tile, vector_tiles};
use crate::nest::LoopKind;
use crate::space::access::{Access, accesses};
use crate::space::fuse::{fuse, touches};
use crate::space::operands::{counts_blocks, reads_short_constants};
use crate::space::rows::RowLimits;
use crate::space::{Axis, Group, MmaTile, Rule, Step, Stop, Tape, View, name, site};
use crate::target::{Architecture, Cpu};
use crate::workload::{Expr, Role, Stage, Var, Workload, row_major_strides};

pub(super) struct Tile;

/// What the rule goes by, beside what the machine says.
struct Heuristics {
    /// Vector operations in a body that several reduction steps are written out in, at most: longer ones take
    /// long to compile and gain nothing.
    maximal_body: i64,
    /// Reductions of so many steps are worth packed operands.
    deep: i64,
    /// Behind so many steps it does not count how the output is written.
    very_deep: i64,
    /// Reductions of fewer steps are not cut into blocks.
    shallowest: i64,
    /// Combining the lanes of a reduction takes longer than so many steps, however short vectors are.
    short_reduction: i64,
    /// In a product, whose results can lie in lanes as well, it takes longer than the steps of this many
    /// vectors.
    vectors_to_combine: i64,
    /// Axes of so many points can be written out for the value's sake.
    maximal_pieces: i64,
    /// Work on vectors that are not used again needs no more than this many independent ones.
    maximal_map_tile: i64,
    /// The untuned tile of an axis that reuses what is loaded in vectors, and of one that reuses anything
    /// else, at most.
    default_tiles: [i64; 2],
    /// An axis of so many points can take the place of one outside of it in reusing vectors.
    long: i64,
    /// Points of an axis in an untuned block.
    default_block: i64,
    /// The same where tile registers multiply, which are done with a block so soon that operands are waited
    /// for: they are better used more often.
    block_of_tiles: i64,
    /// Blocks of an axis of element-wise work.
    map_blocks: i64,
    /// Reductions up to so many steps are not cut in the untuned program; steps of a block of others, and
    /// steps of the smallest block.
    whole_depth: i64,
    default_depth: i64,
    least_depth: i64,
    /// By how much more than that the depths of sums of dot products are longer than they have steps.
    shorter: i64,
}

const HEURISTICS: Heuristics = Heuristics {
    maximal_body: 64,
    deep: 64,
    very_deep: 1024,
    shallowest: 128,
    short_reduction: 8,
    vectors_to_combine: 4,
    maximal_pieces: 8,
    maximal_map_tile: 8,
    default_tiles: [14, 12],
    long: 6,
    default_block: 96,
    block_of_tiles: 256,
    map_blocks: 16,
    whole_depth: 1024,
    default_depth: 512,
    least_depth: 32,
    shorter: 2,
};

impl Rule<Cpu> for Tile {
    fn name(&self) -> &'static str {
        "tile"
    }

    fn version(&self) -> u32 {
        3
    }

    fn decide(&self, view: &View<'_, Cpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let workload = &*view.workload;
        let mut steps = Vec::new();
        for group in &view.groups {
            // the threads share the rows, where there are any
            let sharing = if view.is_joined(group) { 1 } else { view.machine.enough_blocks() };
            tape.defaults_only(group.defaults_only);
            let mut group = group.clone();
            let reads = accesses(&workload.stages[group.stage]);
            steps.extend(fuse(workload, &mut group, &reads, tape)?);
            let is_passed_on = view.panels().is_some() && view.is_joined(&group);
            vector(workload, view.machine, (&mut group, is_passed_on), &reads, tape)?;
            matrix::matrix(workload, view.machine, &mut group, &reads, tape)?;
            tiles(workload, view.machine, &mut group, &reads, tape)?;
            blocks(workload, view.machine, sharing, &mut group, &reads, tape)?;
            cut(&group, &mut steps);
        }
        Ok(steps)
    }
}

/// Cuts every axis into blocks of tiles, and says how tiles are executed.
fn cut(group: &Group, steps: &mut Vec<Step>) {
    let (mut unrolled, mut vector) = (Vec::new(), Vec::new());
    for (at, axis) in group.axes.iter().enumerate() {
        let (step, tiles, tile) = Step::split(&axis.whole, axis.tile);
        let (blocks, _, _) = Step::split(&tiles, axis.block);
        steps.extend([step, blocks]);
        let is_side = group.matrix.is_some_and(|matrix| [matrix.rows, matrix.depth].contains(&at));
        match group.vector == Some(at) {
            true => vector.push(tile),
            false => unrolled.extend((!is_side).then_some(tile)),
        }
    }
    steps.extend(Step::mark(LoopKind::Unroll, unrolled));
    steps.extend(Step::mark(LoopKind::Vector, vector));
    if let Some(MmaTile { rows, columns, depth, operands, .. }) = group.matrix {
        let [rows, columns, depth] = [rows, columns, depth].map(|at| group.axes[at].whole.inner());
        steps.push(Step::Multiply { rows, columns, depth, operands });
    }
}

/// Which axis runs in vectors. Where a group's results are passed on in the cache, it matters little how they
/// are written.
fn vector(
    workload: &Workload,
    target: &Cpu,
    (group, is_passed_on): (&mut Group, bool),
    reads: &[Access],
    tape: &mut Tape<'_>,
) -> Result<(), Stop> {
    // what one instruction adds up of a reduction, it does for results in lanes
    let may_run = |at: &usize| group.axes[*at].extent > 1 && !(group.dot.is_some() && group.axes[*at].reduction);
    let candidates: Vec<usize> = (0..group.axes.len()).filter(may_run).collect();
    if candidates.is_empty() {
        return Ok(());
    }
    let score = |at: &usize| vector_score(workload, target, (group, is_passed_on), reads, *at);
    let scores: Vec<i64> = candidates.iter().map(score).collect();
    let best = (0..scores.len()).max_by_key(|at| (scores[*at], *at)).unwrap_or(0);
    let names: Vec<_> = candidates.iter().map(|at| name(group.axes[*at].letter())).collect();
    let answer = tape.choose(site("vector", [group.name()]), names.clone(), best)?;
    group.vector = names.iter().position(|n| *n == answer).map(|at| candidates[at]);
    Ok(())
}

/// How well the accesses of a stage suit vectors along an axis: neighbours in memory and broadcasts are good,
/// strides are bad, and so are windows and borders, which have to be copied first. The panels of a constant
/// cost nothing. After many reduction steps it matters little how the output is written.
fn vector_score(
    workload: &Workload,
    target: &Cpu,
    (group, is_passed_on): (&Group, bool),
    reads: &[Access],
    at: usize,
) -> i64 {
    let stage = &workload.stages[group.stage];
    let axis = &group.axes[at];
    let var = Var((axis.position + usize::from(group.fused == Some(at))) as u32);
    let steps: i64 = stage.reduction.iter().product();
    let of_stride = |stride: Option<i64>| match stride {
        Some(1) => 2,
        Some(0) => 1,
        _ => -2,
    };
    let of_access = |a: &Access| {
        let stride = a.stride(workload, var);
        let constant = workload.tensor(a.tensor).role == Role::Constant;
        match stride {
            Some(0) => 1,
            _ if constant && !axis.reduction && steps >= HEURISTICS.deep => 3,
            Some(1) if steps >= HEURISTICS.deep && (a.guarded || a.has_window()) => -2,
            Some(1) => 2,
            _ if constant && !axis.reduction => 0,
            _ => -2,
        }
    };
    let mut score: i64 = reads.iter().map(of_access).sum();
    if axis.reduction {
        score -= 1;
    } else if steps < HEURISTICS.very_deep && !is_passed_on {
        score += of_stride(row_major_strides(&stage.spatial).get(var.0 as usize).copied());
    }
    let few = match axis.reduction {
        false => axis.usual.typical * 2 < target.lanes(),
        true if is_product(group, reads, target.lanes()) => {
            axis.usual.typical < HEURISTICS.vectors_to_combine * target.lanes()
        }
        true => axis.usual.typical < HEURISTICS.short_reduction,
    };
    if few { score - 3 } else { score }
}

/// Whether every operand is used for several results, and the results along some axis fill a vector.
fn is_product(group: &Group, reads: &[Access], lanes: i64) -> bool {
    let results = group.positions(false);
    let shared = |read: &Access| results.iter().any(|at| group.axes[*at].extent > 1 && !touches(read, group, *at));
    reads.iter().all(shared) && results.iter().any(|at| group.axes[*at].usual.typical >= lanes)
}

/// The register tile of every axis.
fn tiles(
    workload: &Workload,
    target: &Cpu,
    group: &mut Group,
    reads: &[Access],
    tape: &mut Tape<'_>,
) -> Result<(), Stop> {
    let mut ask = |group: &mut Group, at: usize, (candidates, default): (Vec<i64>, usize)| -> Result<(), Stop> {
        let site = site("tile", [group.name(), group.axes[at].letter()]);
        group.axes[at].tile = tape.choose_number(site, &candidates, default)?;
        Ok(())
    };
    if group.matrix.is_some() {
        return matrix::tiles(group, reads, &mut ask);
    }
    if let Some(at) = group.vector {
        let tiles = tiles_in_vectors(workload, target, group, at);
        ask(group, at, tiles)?;
    }
    let written_out = pieces(&workload.stages[group.stage], group);
    for at in written_out.iter().copied() {
        if Some(at) != group.vector {
            let whole = group.axes[at].extent;
            ask(group, at, (vec![1, whole], 1))?;
        }
    }
    for at in group.positions(false) {
        if Some(at) != group.vector && !written_out.contains(&at) {
            let tiles = tiles_of_results(workload, target, group, reads, at);
            ask(group, at, tiles)?;
        }
    }
    for at in group.positions(true) {
        if Some(at) != group.vector {
            let tiles = tiles_of_steps(workload, target, group, at);
            ask(group, at, tiles)?;
        }
    }
    Ok(())
}

/// Tiles of the axis that runs in vectors, and the untuned one among them.
fn tiles_in_vectors(workload: &Workload, target: &Cpu, group: &Group, at: usize) -> (Vec<i64>, usize) {
    let lanes = target.lanes();
    let Axis { extent, usual, .. } = group.axes[at];
    let mut candidates = vector_tiles(extent, lanes);
    candidates.retain(|tile| *tile < usual.most + lanes || *tile == lanes);
    if group.axes[at].ragged {
        candidates.retain(|tile| extent % tile == 0);
    }
    // a single row of results has the registers for itself, and weights come in whole cache lines
    let is_row = group.positions(false).into_iter().all(|other| other == at || group.axes[other].usual.most == 1);
    let is_alone = is_row && (group.dot.is_some() || reads_short_constants(workload, group));
    let is_of_sums = workload.stages[group.stage].is_reduction() && !group.axes[at].reduction;
    let most = if is_of_sums && !is_alone { 2 * lanes } else { 4 * lanes };
    let default = default_tile(usual.typical, &candidates, most);
    (candidates, default)
}

/// The same of another axis of the results.
fn tiles_of_results(
    workload: &Workload,
    target: &Cpu,
    group: &Group,
    reads: &[Access],
    at: usize,
) -> (Vec<i64>, usize) {
    let lanes = target.lanes();
    let reduces = workload.stages[group.stage].is_reduction();
    let registers = i64::from(target.vector_registers);
    let budget = if reduces { registers * 7 / 8 } else { HEURISTICS.maximal_map_tile };
    let room = registers - operands(target.architecture);
    let axis = &group.axes[at];
    let most = (budget / group.register_tile(lanes)).clamp(1, axis.usual.most);
    let candidates: Vec<i64> = (1..=most).filter(|tile| !axis.ragged || axis.extent % tile == 0).collect();
    // all can be tried, but the untuned program has no spills
    let mut fitting = most.min(room / group.register_tile(lanes)).max(1);
    let reused = |at: usize, by: &dyn Fn(&Access) -> bool| {
        reduces && reads.iter().filter(|a| by(a)).any(|a| !touches(a, group, at))
    };
    let in_vectors = |a: &Access| group.vector.is_none_or(|v| touches(a, group, v));
    // a window that is loaded in vectors, once for all of its results, wants registers of its own
    let results_in_lanes = group.vector.is_some_and(|v| !group.axes[v].reduction);
    let slides = || reads.iter().any(|a| in_vectors(a) && touches(a, group, at));
    if results_in_lanes && reused(at, &in_vectors) && slides() {
        fitting = fitting.min(HEURISTICS.maximal_map_tile / group.register_tile(lanes)).max(1);
    }
    // of several axes that reuse what is loaded in vectors, the innermost finds its other operands in the
    // same lines
    let inner = |other: &usize| {
        *other > at && Some(*other) != group.vector && group.axes[*other].usual.typical >= HEURISTICS.long
    };
    let further = || group.positions(false).into_iter().filter(inner).any(|other| reused(other, &in_vectors));
    let [in_vectors_at_most, others_at_most] = HEURISTICS.default_tiles;
    let up_to = |most: i64| default_tile(axis.usual.typical, &candidates, fitting.min(most));
    let default = match reused(at, &in_vectors) {
        true if further() => 0,
        true => up_to(in_vectors_at_most),
        false if reused(at, &|_| true) => up_to(others_at_most),
        false => 0,
    };
    (candidates, default)
}

/// The same of an axis of the reduction: how many of its steps are written out.
fn tiles_of_steps(workload: &Workload, target: &Cpu, group: &Group, at: usize) -> (Vec<i64>, usize) {
    let written_out: i64 = group.axes.iter().filter(|a| a.reduction).map(|a| a.tile).product();
    let in_lanes = group.vector.is_some_and(|v| group.axes[v].reduction);
    let body = group.register_tile(target.lanes()) * if in_lanes { 1 } else { written_out };
    let axis = &group.axes[at];
    let fits = |t: &i64| *t == 1 || (*t <= axis.extent && t * body <= HEURISTICS.maximal_body);
    let mut candidates: Vec<i64> =
        [1, 2, 4, 8, 16].into_iter().chain((axis.extent <= 11).then_some(axis.extent)).filter(fits).collect();
    candidates.sort_unstable();
    candidates.dedup();
    // a block's scale is multiplied behind its steps, unless blocks are written out
    let is_short = axis.extent <= 7 && group.dot.is_none() && !counts_blocks(workload, group, at);
    let default = if is_short { candidates.len() - 1 } else { 0 };
    (candidates, default)
}

/// Axes at whose points the value of an element-wise stage is written differently, a transform's points: only
/// written out they cost nothing.
fn pieces(stage: &Stage, group: &Group) -> Vec<usize> {
    let mut selected = Vec::new();
    select(&stage.value, &mut selected);
    let is_piece = |at: &usize| {
        let axis = &group.axes[*at];
        axis.extent <= HEURISTICS.maximal_pieces
            && selected.contains(&Var(axis.position as u32))
            && group.fused != Some(*at)
    };
    if stage.is_reduction() { Vec::new() } else { group.positions(false).into_iter().filter(is_piece).collect() }
}

/// The axes that conditions test alone.
fn select(expr: &Expr, found: &mut Vec<Var>) {
    if let Expr::Guard { conditions, .. } = expr {
        found.extend(conditions.iter().filter_map(|c| c.index.as_var()));
        found.dedup();
    }
    expr.children().for_each(|child| select(child, found));
}

/// Registers that a register tile wants beside its accumulators: two vectors, a broadcast, and one for what
/// is loaded in advance. AArch64 loads what it broadcasts in pairs.
fn operands(architecture: Architecture) -> i64 {
    architecture.operand_registers()
}

/// How many register tiles make a block, for every axis that has several.
///
/// The untuned program has at least `sharing` blocks, if there are so many tiles at all.
fn blocks(
    workload: &Workload,
    target: &Cpu,
    sharing: i64,
    group: &mut Group,
    reads: &[Access],
    tape: &mut Tape<'_>,
) -> Result<(), Stop> {
    let reduces = workload.stages[group.stage].is_reduction();
    let tiles: i64 = group.positions(false).into_iter().map(|at| group.axes[at].usual_tiles()).product();
    let mut most = (tiles / sharing).max(1);
    let block = if group.matrix.is_some() { HEURISTICS.block_of_tiles } else { HEURISTICS.default_block };
    for at in group.positions(false) {
        let axis = &group.axes[at];
        // a block that reaches beyond every point is none that helps
        let candidates = counts((axis.usual.most + axis.tile - 1) / axis.tile);
        let tiles = axis.usual_tiles();
        // nothing is read again along an axis that every operand moves with
        let reused = reads.iter().any(|a| !touches(a, group, at));
        let wanted = match reduces {
            true if reused => (block / axis.tile).clamp(1, most),
            true => 1,
            false => (tiles / HEURISTICS.map_blocks).max(1),
        };
        let default = candidates.partition_point(|c| *c <= wanted.min(tiles)).saturating_sub(1);
        let answer = tape.choose_number(site("block", [group.name(), axis.letter()]), &candidates, default)?;
        group.axes[at].block = answer;
        most = (most / group.axes[at].block).max(1);
    }
    for at in group.positions(true) {
        group.axes[at].block = group.axes[at].tiles();
    }
    // lanes of a reduction are combined once, so it cannot stop in between
    if group.vector.is_some_and(|v| group.axes[v].reduction) {
        return Ok(());
    }
    let deepest = group.positions(true).into_iter().max_by_key(|at| (group.axes[*at].extent, *at));
    // steps that the other reduction axes, a convolution's window, take for each of the deepest one
    let others: i64 =
        group.positions(true).into_iter().filter(|at| Some(*at) != deepest).map(|at| group.axes[at].extent).product();
    // results are written after the last block: there has to be one
    let stage = &workload.stages[group.stage];
    let may_be_empty = |axis: &Axis| {
        let formula = stage.extents.get(axis.position);
        formula.is_some_and(|formula| workload.formula_range(formula).is_none_or(|range| range.low < 1))
    };
    let is_cut =
        |at: &usize| group.axes[*at].extent * others >= HEURISTICS.shallowest && !may_be_empty(&group.axes[*at]);
    if let Some(at) = deepest.filter(is_cut) {
        let axis = &group.axes[at];
        let tiles = axis.tiles();
        let steps = axis.tile * others;
        let candidates: Vec<i64> =
            counts(tiles).into_iter().filter(|c| c * steps >= HEURISTICS.least_depth || *c == tiles).collect();
        // steps of short numbers, several at once, take as much less memory
        let shorter = group.dot.map_or(1, |dot| dot.steps * HEURISTICS.shorter);
        let wanted = match group.matrix {
            // rows of tiles are used again and again, and so stay next to the core
            Some(matrix) => {
                let near = target.l1_bytes as i64 * 2 / 3;
                (near / (group.axes[matrix.rows].tile * steps * BYTES_OF_GROUP)).max(1)
            }
            None if axis.usual.typical * others <= HEURISTICS.whole_depth * shorter => tiles,
            None => HEURISTICS.default_depth * shorter / steps,
        };
        let default = candidates.partition_point(|c| *c <= wanted).saturating_sub(1);
        // a copy of the last block is as large as the others
        let even = candidates[..=default].iter().rposition(|c| tiles % c == 0 && c * 2 > candidates[default]);
        let default = even.filter(|_| group.dot.is_some()).unwrap_or(default);
        let answer = tape.choose_number(site("depth", [group.name(), axis.letter()]), &candidates, default)?;
        group.axes[at].block = answer;
    }
    Ok(())
}

/// Of steps that an instruction takes at once.
const BYTES_OF_GROUP: i64 = 4;

/// Even parts of a whole that are among its counts.
const PARTS: [i64; 7] = [1, 2, 3, 4, 6, 8, 16];

/// Counts up to `most`: all small ones, then steps of a quarter to a third, and even parts of the whole.
fn counts(most: i64) -> Vec<i64> {
    let steps = [
        1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048,
        4096,
    ];
    let mut counts = Vec::with_capacity(steps.len() + PARTS.len());
    counts.extend(steps.into_iter().take_while(|c| *c < most));
    counts.extend(PARTS.map(|parts| (most + parts - 1) / parts));
    counts.sort_unstable();
    counts.dedup();
    counts
}
