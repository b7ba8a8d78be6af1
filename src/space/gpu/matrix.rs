//! Products of matrices: whether warps compute a stage so, and along which axes.

use super::limits::THREAD;
use crate::nest::matrix::{self, COLUMNS, GROUP, ROWS};
use crate::space::access::Access;
use crate::space::fuse::touches;
use crate::space::operands::packable;
use crate::space::{Group, MmaTile, Stop, Tape, Word, Words, name, site};
use crate::target::Gpu;
use crate::target::gpu::WARP;
use crate::workload::{Atom, Binary, Combiner, DType, Expr, Var, Workload};

/// What the rule goes by, beside what the machine says.
struct Heuristics {
    /// Warps of a block that multiplies matrices, at most.
    maximal_warps: i64,
    /// Columns of the products that four warps execute together.
    widths: [i64; 7],
    /// The most that the untuned program takes.
    default_width: i64,
    /// The same where wider ones would leave multiprocessors without work.
    narrow_width: i64,
}

const HEURISTICS: Heuristics =
    Heuristics { maximal_warps: 16, widths: [16, 32, 64, 96, 128, 192, 256], default_width: 128, narrow_width: 64 };
/// Results of a block of the untuned program, at least.
pub(super) const LEAST_RESULTS: i64 = GROUP * ROWS * HEURISTICS.narrow_width;

/// Whether warps compute the stage as products of matrices, and along which axes: rows move one operand,
/// columns the other, the depth both.
pub(super) fn tile(
    workload: &Workload,
    gpu: &Gpu,
    exact: bool,
    group: &mut Group,
    tape: &mut Tape<'_>,
) -> Result<(), Stop> {
    let stage = &workload.stages[group.stage];
    let (Some(Combiner::Sum), Expr::Binary(Binary::Multiply, x, y)) = (stage.combiner, &stage.value) else {
        return Ok(());
    };
    let operands = packable(workload, group);
    let is_operand = |value: &Expr| {
        let mut loads = 0;
        value.for_each_load(&mut |_, _| loads += 1);
        let inner = if let Expr::Cast(DType::F32, inner) = value { inner } else { value };
        let plain = matches!(inner, Expr::Load { .. } | Expr::Guard { .. });
        plain && loads == 1
    };
    let types: Vec<DType> = operands.iter().map(|(access, _)| workload.tensor(access.tensor).dtype).collect();
    let Some(taken) = types.first().copied().filter(|first| types.iter().all(|dtype| dtype == first)) else {
        return Ok(());
    };
    // products of 16-bit values are exact
    let is_allowed = matches!(taken, DType::F16 | DType::BF16) || (taken == DType::F32 && !exact);
    let sums_floats = workload.tensor(stage.output).dtype == DType::F32;
    if !is_allowed || operands.len() != 2 || !is_operand(x) || !is_operand(y) || !sums_floats {
        return Ok(());
    }
    let moves = |at: usize| [touches(&operands[0].0, group, at), touches(&operands[1].0, group, at)];
    // steps beyond an axis's end have to multiply zeros, and what wraps around is none there
    let has_zeros_beyond = |at: &usize| {
        let is_whole = group.axes[*at].extent % depth_of(taken) == 0;
        is_whole || operands.iter().all(|(access, _)| !wraps_along(access, group, *at))
    };
    let suits = |at: &usize| moves(*at) == [true; 2] && has_zeros_beyond(at);
    let depth = group.positions(true).into_iter().filter(suits).max_by_key(|at| group.axes[*at].extent);
    let Some(depth) = depth else { return Ok(()) };
    let of = |wanted: [bool; 2]| -> Vec<usize> {
        let fits = |at: &usize| moves(*at) == wanted && group.axes[*at].extent > 1;
        group.positions(false).into_iter().filter(fits).collect()
    };
    let (firsts, seconds) = (of([true, false]), of([false, true]));
    let pairs = firsts.iter().flat_map(|a| seconds.iter().flat_map(|b| [(*a, *b), (*b, *a)]));
    let pairs: Vec<(usize, usize)> = pairs.collect();
    let mut candidates = vec![name("none")];
    candidates.extend(
        pairs
            .iter()
            .map(|(rows, columns)| Words([rows, columns].map(|at| Word::Name(group.axes[*at].letter())).to_vec())),
    );
    // results lie along columns; what is not even a tile is not worth one
    let innermost = group.positions(false).into_iter().max();
    let is_worth_it = |(rows, columns): &(usize, usize)| {
        let long = |at: usize, side: i64| 2 * group.axes[at].extent > side;
        Some(*columns) == innermost && long(*rows, ROWS) && long(*columns, COLUMNS)
    };
    // others are rounded
    let exactly = taken != DType::F32;
    let default = pairs.iter().position(|pair| exactly && is_worth_it(pair)).map_or(0, |at| at + 1);
    let answer = tape.choose(site("mma", [group.name()]), candidates.clone(), default)?;
    let chosen = candidates.iter().position(|c| *c == answer).filter(|c| *c > 0).map(|c| pairs[c - 1]);
    if let Some((rows, columns)) = chosen {
        let width = width(gpu, taken, group, (rows, columns), tape)?;
        group.matrix = Some(MmaTile { rows, columns, depth, operands: taken, width });
    }
    Ok(())
}

/// Steps of the reduction that one product takes.
fn depth_of(operands: DType) -> i64 {
    if operands == DType::F32 { matrix::DEPTH } else { matrix::DEPTH_OF_HALVES }
}

/// Whether an access stays inside of its tensor along an axis since it wraps around.
fn wraps_along(access: &Access, group: &Group, at: usize) -> bool {
    let position = group.axes[at].position as u32;
    let parts = position..=position + u32::from(group.fused == Some(at));
    let wraps = |atom: &Atom| matches!(atom, Atom::Modulo(of, _) if parts.clone().any(|part| of.mentions(Var(part))));
    access.indices.iter().any(|index| index.terms().iter().any(|(atom, _)| wraps(atom)))
}

/// How many columns a product has: those that a warp multiplies by itself, or more of them together with
/// three others.
fn width(
    gpu: &Gpu,
    operands: DType,
    group: &Group,
    (rows, columns): (usize, usize),
    tape: &mut Tape<'_>,
) -> Result<i64, Stop> {
    let (rows, columns) = (group.axes[rows].extent, group.axes[columns].extent);
    if !gpu.capability.has_warp_groups() || operands == DType::F32 || 2 * rows <= GROUP * ROWS {
        return Ok(COLUMNS);
    }
    let widths: Vec<i64> = HEURISTICS.widths.into_iter().filter(|width| *width < 2 * columns).collect();
    let mut candidates = vec![name("none")];
    candidates.extend(widths.iter().map(|width| Words::from(width.unsigned_abs())));
    let most = if is_enough_for(gpu, group, 2 * GROUP * ROWS * HEURISTICS.default_width) {
        HEURISTICS.default_width
    } else {
        HEURISTICS.narrow_width
    };
    let default = widths.iter().rposition(|width| *width <= columns.min(most)).map_or(0, |at| at + 1);
    let answer = tape.choose(site("wgmma", [group.name()]), candidates.clone(), default)?;
    let chosen = candidates.iter().position(|c| *c == answer).filter(|c| *c > 0);
    Ok(chosen.map_or(COLUMNS, |c| widths[c - 1]))
}

/// Whether there are so many results for a block on every multiprocessor.
fn is_enough_for(gpu: &Gpu, group: &Group, results: i64) -> bool {
    let all: i64 = group.positions(false).into_iter().map(|at| group.axes[at].extent).product();
    all / results >= i64::from(gpu.multiprocessors)
}

/// Whether an access is to the operand that columns move, of a product that four warps execute together.
pub(super) fn is_wide_operand(group: &Group, access: &Access) -> bool {
    group.matrix.is_some_and(|sides| sides.is_wide() && touches(access, group, sides.columns))
}

/// The warps of a block along the sides of the products, how many products each of them computes side by
/// side, and how deep it goes before they meet.
pub(super) fn warps(gpu: &Gpu, group: &mut Group, tape: &mut Tape<'_>) -> Result<(), Stop> {
    let Some(sides) = group.matrix else { return Ok(()) };
    let MmaTile { rows, columns, depth, operands, width } = sides;
    let mut left = HEURISTICS.maximal_warps;
    for (at, side, least) in [(rows, ROWS, if sides.is_wide() { GROUP } else { 1 }), (columns, width, 1)] {
        let products = (group.axes[at].extent + side - 1) / side;
        let fits = |count: &i64| (least..=left).contains(count) && (*count == least || *count < 2 * products);
        let candidates: Vec<i64> = [1, 2, 4, 8, 16].into_iter().filter(fits).collect();
        // two by two warps, or a group of four, or two of them
        let wanted = match sides.is_wide() {
            false => 2,
            true if at == rows && is_enough_for(gpu, group, 2 * GROUP * ROWS * width) => 2 * GROUP,
            true => least,
        };
        let default = candidates.iter().rposition(|count| *count <= wanted).unwrap_or(0);
        let answer =
            tape.choose_number(site("threads", [group.name(), group.axes[at].letter()]), &candidates, default)?;
        (group.axes[at].tile, group.axes[at].threads) = (side, answer);
        left /= answer;
    }
    let threads = WARP * group.axes[rows].threads * group.axes[columns].threads;
    let registers = i64::from(gpu.registers_per_multiprocessor) / threads - THREAD.other_registers;
    let mut left = (registers.min(THREAD.maximal_accumulators) / (ROWS * width / WARP)).max(1);
    for (at, wanted) in if sides.is_wide() { [(rows, 1), (columns, 1)] } else { [(rows, 2), (columns, 4)] } {
        let axis = &group.axes[at];
        let most = ((axis.tiles() + axis.threads - 1) / axis.threads).min(left).min(8);
        let candidates: Vec<i64> = (1..=most).collect();
        let default = candidates.iter().rposition(|count| *count <= wanted).unwrap_or(0);
        let answer = tape.choose_number(site("virtual", [group.name(), axis.letter()]), &candidates, default)?;
        group.axes[at].block = group.axes[at].threads * answer;
        left /= answer;
    }
    group.axes[depth].tile = depth_of(operands);
    for at in group.positions(true) {
        let most = group.axes[at].tiles();
        // tails of a window would not be of zeros
        let fits = |count: &i64| *count <= most && (at == depth || most % count == 0);
        let candidates: Vec<i64> = [1, 2, 3, 4, 6, 8].into_iter().filter(fits).collect();
        let wanted = if at == depth { 4 } else { 1 };
        let default = candidates.iter().rposition(|count| *count <= wanted).unwrap_or(0);
        let letter = group.axes[at].letter();
        group.axes[at].block = tape.choose_number(site("steps", [group.name(), letter]), &candidates, default)?;
    }
    Ok(())
}
