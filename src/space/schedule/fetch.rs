//! Copying an operand into shared memory, all threads of a block together.

use super::{Copy, LoopName, Problem};
use crate::nest::rewrite::pack::{Content, Layout, Place};
use crate::nest::rewrite::{Refusal, find_loop, find_loop_mut, for_each_expr, for_each_stmt};
use crate::nest::{Loop, LoopKind, Nest, Scope, Stmt};
use crate::workload::{Expr, Index, TensorId, Var, row_major_strides, stride_along};

/// Copies an operand of the reduction inside of the loop `of`, at the start of each iteration of the loop
/// `inside`. `names` finds the loops that the copy's dimensions are made of.
pub(super) fn fetch(
    nest: Nest,
    (of, operand): (Var, (TensorId, usize)),
    inside: Var,
    (copy, padding): (&Copy, i64),
    (threads, lanes): (i64, i64),
    names: &dyn Fn(&LoopName) -> Result<Var, Problem>,
) -> Result<Nest, Problem> {
    let layout = if *copy == Copy::Box { Layout::Box } else { Layout::Panel };
    let mut nest = nest.pack(of, operand, Place::Inside(inside), (layout, Content::Own))?;
    let buffer = TensorId(nest.buffers.len() as u32 - 1);
    enclose_single(&mut nest, inside, buffer);
    let head = first_loop_inside(&nest, inside).ok_or(Refusal::NoLoop(inside))?;
    let (nest, head) = in_order_of_memory(nest, head)?;
    let nest = match copy {
        Copy::Box => {
            let each: Vec<Vec<usize>> = (0..nest.buffer(buffer).shape.len()).map(|dimension| vec![dimension]).collect();
            nest.relayout(buffer, &each, padding)?
        }
        Copy::Panel { dimensions } => {
            let dimensions = positions(&nest, buffer, dimensions, names)?;
            nest.relayout(buffer, &dimensions, padding)?
        }
        Copy::CoreMatrices { dimensions, by_columns } => {
            let dimensions = positions(&nest, buffer, dimensions, names)?;
            nest.relayout(buffer, &dimensions, 0)?.in_core_matrices(buffer, *by_columns, padding)?
        }
    };
    Ok(nest.cooperate(head, threads, lanes)?)
}

/// A copy of one element has no loop that threads could share: it gets one.
fn enclose_single(nest: &mut Nest, inside: Var, buffer: TensorId) {
    let is_single = |stmt: &Stmt| matches!(stmt, Stmt::Store { buffer: written, .. } if *written == buffer);
    if !find_loop(&nest.body, inside).and_then(|l| l.body.first()).is_some_and(is_single) {
        return;
    }
    let var = nest.new_var("single");
    if let Some(l) = find_loop_mut(&mut nest.body, inside) {
        let copy = vec![l.body.remove(0)];
        let one = Loop { var, bounds: vec![Index::constant(1)], kind: LoopKind::Serial, body: copy };
        l.body.insert(0, Stmt::Loop(one));
    }
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

/// The dimensions of a copy, in groups: of the loops in each group those that the copy has a dimension for.
/// Groups without one are left out.
fn positions(
    nest: &Nest,
    copy: TensorId,
    groups: &[Vec<LoopName>],
    names: &dyn Fn(&LoopName) -> Result<Var, Problem>,
) -> Result<Vec<Vec<usize>>, Problem> {
    let mut read: Option<Vec<Index>> = None;
    for_each_expr(&nest.body, &mut |value: &Expr| {
        value.for_each_load(&mut |loaded, indices| {
            if loaded == copy {
                read.get_or_insert_with(|| indices.to_vec());
            }
        });
    });
    let vars: Vec<Option<Var>> = read.ok_or(Problem::NoCopy)?.iter().map(Index::as_var).collect();
    let mut dimensions = Vec::new();
    for group in groups {
        let mut own = Vec::new();
        for name in group {
            let var = names(name)?;
            own.extend(vars.iter().position(|read| *read == Some(var)));
        }
        if !own.is_empty() {
            dimensions.push(own);
        }
    }
    Ok(dimensions)
}

/// The buffers of shared memory that the threads fill at the start of a loop's body.
pub(super) fn copies_at_start(nest: &Nest, steps: Var) -> Vec<TensorId> {
    let mut copies = Vec::new();
    let Some(l) = find_loop(&nest.body, steps) else { return copies };
    for statement in &l.body {
        let mut is_copy = matches!(statement, Stmt::Loop(Loop { kind: LoopKind::Thread, .. }));
        let mut filled = Vec::new();
        for_each_stmt(std::slice::from_ref(statement), &mut |inner| match inner {
            Stmt::Store { buffer, .. } if nest.buffer(*buffer).scope == Scope::BlockShared => filled.push(*buffer),
            Stmt::Store { .. } | Stmt::Accumulate { .. } => is_copy = false,
            Stmt::Loop(_) | Stmt::If { .. } => {}
        });
        if !is_copy {
            break;
        }
        copies.extend(filled);
    }
    copies
}
