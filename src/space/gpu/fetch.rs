//! Which operands a block's threads copy into shared memory, and how these copies are laid out.

use super::limits;
use super::matrix::is_wide_operand;
use crate::nest::matrix::CORE;
use crate::nest::rewrite::pack::Layout;
use crate::space::access::Access;
use crate::space::fuse::touches;
use crate::space::operands::{fits_box, packable};
use crate::space::schedule::{Copy, Reads};
use crate::space::{Fetch, Group, LoopName, Rule, Step, Stop, Tape, View, Word, name, site};
use crate::target::Gpu;
use crate::target::gpu::WARP;
use crate::workload::{Atom, DType, Index, TensorId, Var, Workload};

pub(super) struct Fetches;

/// What the rule goes by, beside what the machine says.
struct Heuristics {
    /// Neighbours that a thread can copy at once.
    lanes: [i64; 4],
    /// Of values that have more than 16 bits, at most.
    most_lanes: i64,
}

const HEURISTICS: Heuristics = Heuristics { lanes: [1, 2, 4, 8], most_lanes: 4 };
/// Elements left out behind each row.
const PADDINGS: [i64; 5] = [0, 1, 2, 4, MOST_PADDING];
/// The most of them, which room is kept for.
const MOST_PADDING: i64 = 8;

impl Rule<Gpu> for Fetches {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn version(&self) -> u32 {
        3
    }

    fn decide(&self, view: &View<'_, Gpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let room = limits::room_for_operands(view);
        let mut steps = Vec::new();
        for group in &view.groups {
            tape.defaults_only(group.defaults_only);
            decide_group(view, group, room, tape, &mut steps)?;
        }
        Ok(steps)
    }
}

/// Which operands of a group are copied, into `room` bytes.
fn decide_group(
    view: &View<'_, Gpu>,
    group: &Group,
    room: i64,
    tape: &mut Tape<'_>,
    steps: &mut Vec<Step>,
) -> Result<(), Stop> {
    let workload = &*view.workload;
    let mut left = room;
    let mut done: Vec<TensorId> = Vec::new();
    for (access, which) in packable(workload, group) {
        let tensor = format!("t{}", access.tensor.0);
        let ask = |verb| {
            let mut site = site(verb, [group.name(), tensor.clone().into()]);
            site.0.extend(which.map(|which| Word::Number(which as u64)));
            site
        };
        let bytes =
            elements(workload, group, &access, MOST_PADDING) * workload.tensor(access.tensor).dtype.bytes() as i64;
        let layouts = layouts(view, group, &access, bytes <= left);
        let words: Vec<_> = layouts.iter().map(|(words, _)| name(*words)).collect();
        let default = if is_shared(group, &access) { layouts.len().saturating_sub(1) } else { 0 };
        let answer = tape.choose(ask("copy"), words.clone(), default)?;
        let chosen = words.iter().position(|c| *c == answer).and_then(|at| layouts[at].1);
        let Some(layout) = chosen else { continue };
        left -= bytes;
        let (candidates, default) = lanes(workload, group, &access);
        let lanes = tape.choose_number(ask("lanes"), &candidates, default)?;
        // core matrices start at multiples of 16 bytes
        let whole = |padding: &i64| padding % CORE == 0 || !is_wide_operand(group, &access);
        let paddings: Vec<i64> = PADDINGS.into_iter().filter(whole).collect();
        let wanted = default_padding(workload, group, &access, layout);
        let default = paddings.iter().position(|padding| *padding == wanted).unwrap_or(0);
        let padding = tape.choose_number(ask("bank"), &paddings, default)?;
        // what is copied already reads its copy
        let before = done.iter().filter(|tensor| **tensor == access.tensor).count();
        done.push(access.tensor);
        steps.extend(fetch(workload, group, (&access, which.unwrap_or(0) - before), layout, (padding, lanes)));
    }
    Ok(())
}

/// How an operand may be copied; `None`: not at all, which products of matrices need.
fn layouts(
    view: &View<'_, Gpu>,
    group: &Group,
    access: &Access,
    has_room: bool,
) -> Vec<(&'static str, Option<Layout>)> {
    let mut layouts = Vec::new();
    if group.matrix.is_none() {
        layouts.push(("none", None));
    }
    if has_room {
        layouts.push(("panel", Some(Layout::Panel)));
        // a box has no zeros beyond the end of a window
        let slides = access.slides(&view.workload.stages[group.stage]);
        let boxes = group.matrix.is_none() && slides && fits_box(view, group, access);
        layouts.extend(boxes.then_some(("box", Some(Layout::Box))));
    }
    layouts
}

/// How many neighbours a thread may copy at once, and the position of the untuned program's number: wide, but
/// none of the threads without work.
fn lanes(workload: &Workload, group: &Group, access: &Access) -> (Vec<i64>, usize) {
    let along = axis_in_memory(workload, group, access);
    let is_short = workload.tensor(access.tensor).dtype.bytes() == 2;
    let fits = |lanes: i64| lanes <= HEURISTICS.most_lanes || is_short;
    let even = |lanes: &i64| {
        *lanes == 1 || (fits(*lanes) && along.is_some_and(|at| is_even(workload, group, access, at, *lanes)))
    };
    let candidates: Vec<i64> = HEURISTICS.lanes.into_iter().filter(even).collect();
    let share = elements(workload, group, access, 0) / threads_of(group).max(1);
    let default = candidates.iter().rposition(|lanes| *lanes <= share).unwrap_or(0);
    (candidates, default)
}

/// The untuned program's padding, such that threads who read or write side by side do so in different banks.
fn default_padding(workload: &Workload, group: &Group, access: &Access, layout: Layout) -> i64 {
    let along_reduction = axis_in_memory(workload, group, access).is_some_and(|at| group.axes[at].reduction);
    match group.matrix {
        // eight rows of four words each
        Some(sides) if sides.operands == DType::F32 && is_deep(workload, group, access) => 4,
        Some(_) => MOST_PADDING,
        // what is turned around on the way is written across rows
        None if layout == Layout::Panel && along_reduction => 4,
        None => 0,
    }
}

/// Whether the copy's rows run along the depth of a product, as the operand does in memory: warps load
/// matrices from either order.
fn is_deep(workload: &Workload, group: &Group, access: &Access) -> bool {
    let depth = group.matrix.map(|sides| sides.depth);
    depth.is_some() && axis_in_memory(workload, group, access) == depth && !is_wide_operand(group, access)
}

/// Elements of the copy of an operand that a block of the reduction reads, with `padding` behind each of its
/// rows: a row for each step, or one along the depth for each of the others, or a core matrix.
fn elements(workload: &Workload, group: &Group, access: &Access, padding: i64) -> i64 {
    let of = |wanted: &dyn Fn(usize) -> bool| -> i64 {
        let touched = (0..group.axes.len()).filter(|at| touches(access, group, *at) && wanted(*at));
        touched.map(|at| group.axes[at].tile * group.axes[at].block).fold(1, i64::saturating_mul)
    };
    let all = of(&|_| true);
    let row = match group.matrix {
        Some(sides) if is_deep(workload, group, access) => of(&|at| at == sides.depth),
        _ if is_wide_operand(group, access) => CORE * CORE,
        _ => of(&|at| !group.axes[at].reduction),
    };
    (all / row).saturating_mul(row.saturating_add(padding))
}

/// Bytes of what a group copies for a block of the reduction.
pub(super) fn bytes(workload: &Workload, group: &Group) -> i64 {
    let mut total = 0i64;
    for (access, which) in packable(workload, group) {
        if let Some(fetch) = group.fetches.iter().find(|fetch| is_of(fetch, &access, which)) {
            let size = workload.tensor(access.tensor).dtype.bytes() as i64;
            total = total.saturating_add(elements(workload, group, &access, fetch.padding).saturating_mul(size));
        }
    }
    total
}

/// Whether this is the copy of an operand.
fn is_of(fetch: &Fetch, access: &Access, which: Option<usize>) -> bool {
    fetch.tensor == access.tensor && fetch.which == which.unwrap_or(0)
}

/// Threads of a block.
fn threads_of(group: &Group) -> i64 {
    let product: i64 = group.axes.iter().map(|axis| axis.threads).product();
    if group.matrix.is_some() { product * WARP } else { product }
}

/// Whether several threads of a block read the same elements.
fn is_shared(group: &Group, access: &Access) -> bool {
    group.positions(false).into_iter().any(|at| group.axes[at].threads > 1 && !touches(access, group, at))
        && group.positions(true).into_iter().all(|at| group.axes[at].threads == 1)
}

/// The axis along which an operand's elements are neighbours.
fn axis_in_memory(workload: &Workload, group: &Group, access: &Access) -> Option<usize> {
    (0..group.axes.len()).find(|at| {
        let axis = &group.axes[*at];
        let last = axis.position + usize::from(group.fused == Some(*at));
        touches(access, group, *at) && access.stride(workload, Var(last as u32)) == Some(1)
    })
}

/// Whether neighbours along an axis can be copied `lanes` at a time.
fn is_even(workload: &Workload, group: &Group, access: &Access, at: usize, lanes: i64) -> bool {
    let axis = &group.axes[at];
    let last = Var((axis.position + usize::from(group.fused == Some(at))) as u32);
    let is_other = |atom: &Atom| *atom != Atom::Var(last);
    let in_step = |index: &Index| index.terms().iter().all(|(atom, by)| !is_other(atom) || by % lanes == 0);
    let aligned = access.indices.iter().filter(|index| index.mentions(last)).all(in_step);
    let whole = (axis.tile * axis.block) % lanes == 0 && axis.extent % lanes == 0;
    !access.guarded && !access.slides(&workload.stages[group.stage]) && aligned && whole
}

/// Copies an operand at the start of each reduction block, all threads together.
fn fetch(
    workload: &Workload,
    group: &Group,
    (access, which): (&Access, usize),
    layout: Layout,
    (padding, lanes): (i64, i64),
) -> Option<Step> {
    let of = group.at.clone()?;
    let inside = group.positions(true).last().and_then(|at| group.loops(*at))?.outer.clone();
    let copy = match layout {
        Layout::Box => Copy::Box,
        Layout::Panel => {
            let dimensions = rows_of_a_panel(group, is_deep(workload, group, access));
            // what are neighbours in memory stay so
            let by_columns = axis_in_memory(workload, group, access).is_none_or(|at| !group.axes[at].reduction);
            match is_wide_operand(group, access) {
                true => Copy::CoreMatrices { dimensions, by_columns },
                false => Copy::Panel { dimensions },
            }
        }
    };
    let operand = Reads { tensor: access.tensor, which, of };
    Some(Step::Fetch { operand, inside, copy, padding, lanes, threads: threads_of(group) })
}

/// The loops of a panel in rows: one for each reduction step, with what all threads of the block read in it,
/// the vector's axis innermost. Or, where it is `deep`, a row along the depth for each of the others.
fn rows_of_a_panel(group: &Group, deep: bool) -> Vec<Vec<LoopName>> {
    let of_axis = |position: usize| -> Vec<LoopName> {
        let loops = group.loops(position).into_iter();
        loops.flat_map(|l| [&l.inner].into_iter().chain(&l.threads).chain([&l.tile]).cloned()).collect()
    };
    // the depth of a product next to its columns
    let mut reduced = group.positions(true);
    reduced.sort_by_key(|position| group.matrix.is_some_and(|tile| tile.depth == *position));
    let mut rows: Vec<Vec<LoopName>> = reduced.into_iter().map(of_axis).collect();
    let mut inside: Vec<usize> = group.positions(false);
    inside.sort_by_key(|position| group.innermost == Some(*position));
    let inside: Vec<LoopName> = inside.into_iter().flat_map(of_axis).collect();
    rows.insert(if deep { rows.len().saturating_sub(1) } else { rows.len() }, inside);
    rows
}
