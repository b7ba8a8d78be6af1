//! Which operands a block's threads copy into shared memory, and how these copies are laid out.

use std::mem::take;

use super::limits;
use super::matrix::is_wide_operand;
use crate::nest::matrix::CORE;
use crate::nest::rewrite::pack::{Content, Layout, Place};
use crate::nest::rewrite::{Refusal, find_loop, for_each_expr};
use crate::nest::{Loop, Nest, Stmt};
use crate::space::fuse::touches;
use crate::space::operands::{fits_box, packable};
use crate::space::plan::Access;
use crate::space::{Built, Fetch, Group, Plan, Rule, Stop, Tape, ThreadLoops, Word, name, site};
use crate::target::gpu::WARP;
use crate::target::{Gpu, TaskOn};
use crate::workload::{Atom, DType, Expr, Index, TensorId, Var, Workload, row_major_strides, stride_along};

pub(super) struct Fetches;

/// Neighbours that a thread can copy at once; the most are of 16-bit values.
const LANES: [i64; 4] = [1, 2, 4, 8];
const MOST_LANES: i64 = 4;
/// Elements left out behind each row.
const PADDINGS: [i64; 5] = [0, 1, 2, 4, MOST_PADDING];
const MOST_PADDING: i64 = 8;

impl Rule<Gpu> for Fetches {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn version(&self) -> u32 {
        3
    }

    fn decide(&self, task: &TaskOn<'_, Gpu>, plan: &mut Plan, tape: &mut Tape<'_>) -> Result<(), Stop> {
        let room = limits::room_for_operands(plan, task.machine);
        let Plan { workload, groups, .. } = plan;
        for group in groups {
            tape.settle(group.settled);
            let mut left = room;
            for (access, which) in packable(workload, group) {
                let tensor = format!("t{}", access.tensor.0);
                let ask = |verb| {
                    let mut site = site(verb, [group.name(), tensor.clone().into()]);
                    site.0.extend(which.map(|which| Word::Number(which as u64)));
                    site
                };
                let bytes = elements(workload, group, &access, MOST_PADDING)
                    * workload.tensor(access.tensor).dtype.bytes() as i64;
                let mut candidates = Vec::new();
                if group.matrix.is_none() {
                    candidates.push((name("none"), None));
                }
                if bytes <= left {
                    candidates.push((name("panel"), Some(Layout::Panel)));
                    // a box has no zeros beyond the end of a window
                    let slides = access.slides(&workload.stages[group.stage]);
                    let boxes = group.matrix.is_none() && slides && fits_box(workload, group, &access);
                    candidates.extend(boxes.then_some((name("box"), Some(Layout::Box))));
                }
                let words: Vec<_> = candidates.iter().map(|(words, _)| words.clone()).collect();
                let default = if is_shared(group, &access) { candidates.len().saturating_sub(1) } else { 0 };
                let answer = tape.choose(ask("copy"), words.clone(), default)?;
                let chosen = words.iter().position(|c| *c == answer).and_then(|at| candidates[at].1);
                let Some(layout) = chosen else { continue };
                left -= bytes;
                let along = axis_in_memory(workload, group, &access);
                let is_short = workload.tensor(access.tensor).dtype.bytes() == 2;
                let fits = |lanes: i64| lanes <= MOST_LANES || is_short;
                let even = |lanes: &i64| {
                    *lanes == 1
                        || (fits(*lanes) && along.is_some_and(|at| is_even(workload, group, &access, at, *lanes)))
                };
                let candidates: Vec<i64> = LANES.into_iter().filter(even).collect();
                // wide, but none of the threads without work
                let threads = threads_of(group);
                let share = elements(workload, group, &access, 0) / threads.max(1);
                let default = candidates.iter().rposition(|lanes| *lanes <= share).unwrap_or(0);
                let lanes = tape.choose_number(ask("lanes"), &candidates, default)?;
                // core matrices start at multiples of 16 bytes
                let whole = |padding: &i64| padding % CORE == 0 || !is_wide_operand(group, &access);
                let paddings: Vec<i64> = PADDINGS.into_iter().filter(whole).collect();
                let default = paddings
                    .iter()
                    .position(|padding| *padding == default_padding(workload, group, &access, layout))
                    .unwrap_or(0);
                let padding = tape.choose_number(ask("bank"), &paddings, default)?;
                group.fetches.push(Fetch { tensor: access.tensor, which: which.unwrap_or(0), layout, lanes, padding });
            }
        }
        Ok(())
    }

    fn realise(&self, _: &TaskOn<'_, Gpu>, plan: &Plan, built: &mut Built) -> Result<(), Refusal> {
        for (at, group) in plan.groups.iter().enumerate() {
            for number in 0..group.fetches.len() {
                fetch(&plan.workload, group, at, number, built)?;
            }
        }
        Ok(())
    }
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
fn fetch(workload: &Workload, group: &Group, at: usize, number: usize, built: &mut Built) -> Result<(), Refusal> {
    let wanted = &group.fetches[number];
    let loops = &built.thread_loops[at];
    let steps = group.positions(true).last().map(|position| loops[*position].outer);
    let (Some(stage), Some(steps)) = (built.at[at], steps) else { return Ok(()) };
    // what is fetched already reads a copy
    let done = group.fetches[..number].iter().filter(|f| f.tensor == wanted.tensor).count();
    let operand = (wanted.tensor, wanted.which - done);
    let mut nest = take(&mut built.nest).pack(stage, operand, Place::Inside(steps), (wanted.layout, Content::Own))?;
    let copy = TensorId(nest.buffers.len() as u32 - 1);
    let head = first_loop_inside(&nest, steps).ok_or(Refusal::NoLoop(steps))?;
    let (nest_in_order, head) = in_order_of_memory(nest, head)?;
    nest = nest_in_order;
    let operand = packable(workload, group).into_iter().find(|(access, which)| is_of(wanted, access, *which));
    let (access, _) = operand.ok_or(Refusal::Other("a copy of no operand"))?;
    let groups = match wanted.layout {
        Layout::Panel => rows_of_a_panel(&nest, copy, group, loops, is_deep(workload, group, &access)),
        Layout::Box => (0..nest.buffer(copy).shape.len()).map(|dimension| vec![dimension]).collect(),
    };
    nest = if is_wide_operand(group, &access) {
        // what are neighbours in memory stay so
        let along = axis_in_memory(workload, group, &access);
        let by_columns = along.is_none_or(|at| !group.axes[at].reduction);
        nest.relayout(copy, &groups, 0)?.in_core_matrices(copy, by_columns, wanted.padding)?
    } else {
        nest.relayout(copy, &groups, wanted.padding)?
    };
    built.nest = nest.cooperate(head, threads_of(group), wanted.lanes)?;
    built.copies[at].push(copy);
    Ok(())
}

fn first_loop_inside(nest: &Nest, of: Var) -> Option<Var> {
    match find_loop(&nest.body, of)?.body.first() {
        Some(Stmt::Loop(inner)) => Some(inner.var),
        _ => None,
    }
}

/// Puts the loops of a copy in the order in which the operand lies in memory, so that neighbouring threads
/// read neighbours. Returns the outermost.
fn in_order_of_memory(nest: Nest, head: Var) -> Result<(Nest, Var), Refusal> {
    let mut loops: Vec<&Loop> = Vec::new();
    let mut next = find_loop(&nest.body, head);
    let mut step = None;
    while let Some(l) = next {
        loops.push(l);
        next = match l.body.as_slice() {
            [Stmt::Loop(inner)] => Some(inner),
            [Stmt::Store { value, .. }] => {
                value.for_each_load(&mut |tensor, indices| step = Some((tensor, indices.to_vec())));
                None
            }
            _ => None,
        };
    }
    let Some((tensor, indices)) = step else { return Ok((nest, head)) };
    let strides = row_major_strides(&nest.buffer(tensor).shape);
    let reach = |l: &Loop| stride_along(&indices, &strides, l.var).map_or(i64::MAX, i64::abs);
    let mut order: Vec<&Loop> = loops.clone();
    order.sort_by_key(|l| std::cmp::Reverse(reach(l)));
    // what bounds another loop must stay outside of it
    let is_bound = |l: &Loop, by: &Loop| l.bounds.iter().any(|bound| bound.mentions(by.var));
    if order.iter().enumerate().any(|(at, l)| order[at..].iter().any(|inner| is_bound(l, inner))) {
        return Ok((nest, head));
    }
    let order: Vec<Var> = order.into_iter().map(|l| l.var).collect();
    let first = order.first().copied().unwrap_or(head);
    Ok((nest.reorder(&order)?, first))
}

/// The dimensions of a panel as rows: one for each reduction step, with what all threads of the block read in
/// it, the vector's axis innermost. Or, where it is `deep`, a row along the depth for each of the others.
fn rows_of_a_panel(nest: &Nest, copy: TensorId, group: &Group, loops: &[ThreadLoops], deep: bool) -> Vec<Vec<usize>> {
    let mut read: Option<Vec<Index>> = None;
    for_each_expr(&nest.body, &mut |value: &Expr| {
        value.for_each_load(&mut |loaded, indices| {
            if loaded == copy {
                read.get_or_insert_with(|| indices.to_vec());
            }
        });
    });
    let vars: Vec<Option<Var>> = read.unwrap_or_default().iter().map(Index::as_var).collect();
    let dimension = |var: Var| vars.iter().position(|read| *read == Some(var));
    let of_axis = |position: usize| -> Vec<usize> {
        let l = &loops[position];
        [l.round].iter().chain(&l.threads).chain([&l.tile]).filter_map(|var| dimension(*var)).collect()
    };
    // the depth of a product next to its columns
    let mut reduced = group.positions(true);
    reduced.sort_by_key(|position| group.matrix.is_some_and(|sides| sides.depth == *position));
    let mut rows: Vec<Vec<usize>> = reduced.into_iter().map(of_axis).collect();
    let mut inside: Vec<usize> = group.positions(false);
    inside.sort_by_key(|position| group.vector == Some(*position));
    let inside: Vec<usize> = inside.into_iter().flat_map(of_axis).collect();
    rows.insert(if deep { rows.len().saturating_sub(1) } else { rows.len() }, inside);
    rows.retain(|row| !row.is_empty());
    rows
}
