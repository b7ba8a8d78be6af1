//! Products of matrices: whether warps compute a stage so, and along which axes.

use super::tile::{MAXIMAL_ACCUMULATORS, OTHER_REGISTERS};
use crate::nest::matrix::{self, COLUMNS, ROWS};
use crate::space::fuse::touches;
use crate::space::operands::packable;
use crate::space::{Group, Sides, Stop, Tape, Word, Words, name, site};
use crate::target::Gpu;
use crate::target::gpu::WARP;
use crate::workload::{Binary, Combiner, DType, Expr, Workload};

/// Warps of a block that multiplies matrices, at most.
const MAXIMAL_WARPS: i64 = 16;
/// Operands that are rounded to 11 bits err 8,192 times as much as others; errors of single products cancel, though, so that their sums do not.
pub(super) const ERROR_GROWTH: u32 = 512;

/// Whether warps compute the stage as products of matrices, and along which axes: rows move one operand, columns the other, the depth both.
pub(super) fn sides(workload: &Workload, exact: bool, group: &mut Group, tape: &mut Tape<'_>) -> Result<(), Stop> {
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
    let depth =
        group.positions(true).into_iter().filter(|at| moves(*at) == [true; 2]).max_by_key(|at| group.axes[*at].extent);
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
    let answer = tape.choose(site("mma", [group.name()]), candidates.clone(), 0)?;
    let chosen = candidates.iter().position(|c| *c == answer).filter(|c| *c > 0).map(|c| pairs[c - 1]);
    group.matrix = chosen.map(|(rows, columns)| Sides { rows, columns, depth, operands: taken });
    Ok(())
}

/// The warps of a block along the sides of the products, how many products each of them computes side by side, and how deep it goes before they meet.
pub(super) fn warps(gpu: &Gpu, group: &mut Group, tape: &mut Tape<'_>) -> Result<(), Stop> {
    let Some(Sides { rows, columns, depth, operands }) = group.matrix else { return Ok(()) };
    let mut left = MAXIMAL_WARPS;
    for (at, side, wanted) in [(rows, ROWS, 2), (columns, COLUMNS, 2)] {
        let products = (group.axes[at].extent + side - 1) / side;
        let candidates: Vec<i64> =
            [1, 2, 4, 8].into_iter().filter(|count| *count <= left && *count < 2 * products).collect();
        let default = candidates.iter().rposition(|count| *count <= wanted).unwrap_or(0);
        let answer =
            tape.choose_number(site("threads", [group.name(), group.axes[at].letter()]), &candidates, default)?;
        (group.axes[at].tile, group.axes[at].threads) = (side, answer);
        left /= answer;
    }
    let threads = WARP * group.axes[rows].threads * group.axes[columns].threads;
    let registers = i64::from(gpu.registers_per_multiprocessor) / threads - OTHER_REGISTERS;
    let mut left = (registers.min(MAXIMAL_ACCUMULATORS) / (ROWS * COLUMNS / WARP)).max(1);
    for (at, wanted) in [(rows, 2), (columns, 4)] {
        let axis = &group.axes[at];
        let most = ((axis.tiles() + axis.threads - 1) / axis.threads).min(left).min(8);
        let candidates: Vec<i64> = (1..=most).collect();
        let default = candidates.iter().rposition(|count| *count <= wanted).unwrap_or(0);
        let answer = tape.choose_number(site("virtual", [group.name(), axis.letter()]), &candidates, default)?;
        group.axes[at].block = group.axes[at].threads * answer;
        left /= answer;
    }
    group.axes[depth].tile = if operands == DType::F32 { matrix::DEPTH } else { matrix::DEPTH_OF_HALVES };
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
