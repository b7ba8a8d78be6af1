//! How the elements of matrices are dealt out to the threads of a warp.
//!
//! As PTX wants it (`mma.m16n8k8`, "Matrix fragments"): of a product of 16 rows and 8 columns, thread `n` of
//! a warp holds elements 0 to 3, of rows `n / 4` and `n / 4 + 8`, and columns `2·(n % 4)` and `2·(n % 4) +
//! 1`. So it does of the product of 16-bit values (`mma.m16n8k16`), whose operands are deeper, and of each
//! eight columns of a wide product (`wgmma.m64nNk16`, "Register Fragments"), of which every warp holds its
//! own 16 rows.

use std::collections::BTreeSet;

use crate::codegen::error::CodegenError;
use crate::nest::matrix::{self, COLUMNS, ROWS};
use crate::nest::rewrite::{change_accesses, for_each_stmt, replace_vars};
use crate::nest::{Loop, LoopKind, Nest, Scope, Stmt};
use crate::target::gpu::WARP;
use crate::workload::{Index, TensorId, Var};

/// Elements of a product of eight columns, or of its first operand, that a thread holds.
pub const OWN: i64 = ROWS * COLUMNS / WARP;

/// Elements that a thread holds of a product.
pub fn held(columns: i64) -> i64 {
    OWN * (columns / COLUMNS)
}

type Result<T> = std::result::Result<T, CodegenError>;

/// Makes thread loops of the warp loops, and registers of the threads of matrices.
///
/// ```text
/// warp w { matrix i { matrix j { r[w, i, j] = 0 } } }
/// =>
/// thread w { thread lane { unroll e in 0..4 { r[w, lane, e] = 0 } } }
/// ```
///
/// Products stay, around one more loop over the elements that a thread holds: `matrix i { matrix j { matrix k
/// { matrix e { r[w, lane, e] += x * y } } } }`.
///
/// # Errors
/// [`CodegenError::Malformed`] where warps use registers that are no matrices.
pub fn deal_out(mut nest: Nest) -> Result<Nest> {
    let mut matrices = BTreeSet::new();
    let (mut sides, mut warps) = (BTreeSet::new(), BTreeSet::new());
    for_each_stmt(&nest.body, &mut |statement| {
        if let Stmt::Loop(l) = statement {
            sides.extend((l.kind == LoopKind::Matrix).then_some(l.var));
            warps.extend((l.kind == LoopKind::Warp).then_some(l.var));
        }
    });
    if warps.is_empty() {
        return Ok(nest);
    }
    let mut body = std::mem::take(&mut nest.body);
    let buffers = &nest.buffers;
    let is_register = |buffer: TensorId| buffers[buffer.0 as usize].scope == Scope::Register;
    for_each_stmt(&body, &mut |statement| {
        let (Stmt::Store { buffer, indices, .. } | Stmt::Accumulate { buffer, indices, .. }) = statement else {
            return;
        };
        let ends = indices.last().and_then(Index::as_var).is_some_and(|var| sides.contains(&var));
        matrices.extend((is_register(*buffer) && ends).then_some(*buffer));
    });
    let mut dealer = Dealer { nest: &mut nest, matrices: &matrices, warps: &warps };
    dealer.statements(&mut body)?;
    for buffer in matrices {
        let lanes_at = leading_warps(&body, buffer, &warps);
        let shape = &mut nest.buffers[buffer.0 as usize].shape;
        let columns = shape.last().copied().unwrap_or(COLUMNS);
        shape.truncate(shape.len().saturating_sub(2));
        shape.push(held(columns));
        shape.insert(lanes_at.min(shape.len()), WARP);
    }
    nest.body = body;
    Ok(nest)
}

/// How many of a register's first indices are warps, wherever it is stored to.
fn leading_warps(body: &[Stmt], wanted: TensorId, warps: &BTreeSet<Var>) -> usize {
    let mut count = 0;
    for_each_stmt(body, &mut |statement| {
        if let Stmt::Store { buffer, indices, .. } = statement
            && *buffer == wanted
        {
            count = of_warps(indices, warps);
        }
    });
    count
}

fn of_warps(indices: &[Index], warps: &BTreeSet<Var>) -> usize {
    indices.iter().take_while(|index| index.as_var().is_some_and(|var| warps.contains(&var))).count()
}

struct Dealer<'a> {
    nest: &'a mut Nest,
    matrices: &'a BTreeSet<TensorId>,
    warps: &'a BTreeSet<Var>,
}

impl Dealer<'_> {
    fn statements(&mut self, statements: &mut [Stmt]) -> Result<()> {
        statements.iter_mut().try_for_each(|statement| match statement {
            Stmt::Loop(l) if l.kind == LoopKind::Warp => self.warp(l),
            Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => self.statements(body),
            Stmt::Store { .. } | Stmt::Accumulate { .. } => Ok(()),
        })
    }

    fn warp(&mut self, l: &mut Loop) -> Result<()> {
        l.kind = LoopKind::Thread;
        if let [Stmt::Loop(inner)] = l.body.as_mut_slice()
            && inner.kind == LoopKind::Warp
        {
            return self.warp(inner);
        }
        let lane = self.nest.new_var("lane");
        self.inside(&mut l.body, lane)?;
        let body = std::mem::take(&mut l.body);
        l.body =
            vec![Stmt::Loop(Loop { var: lane, bounds: vec![Index::constant(WARP)], kind: LoopKind::Thread, body })];
        Ok(())
    }

    /// The statements of a warp, in which `lane` is the thread.
    fn inside(&mut self, statements: &mut [Stmt], lane: Var) -> Result<()> {
        for statement in statements {
            match statement {
                Stmt::Loop(l) if l.kind == LoopKind::Matrix => *statement = self.matrix(l, lane)?,
                Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => self.inside(body, lane)?,
                Stmt::Store { .. } | Stmt::Accumulate { .. } => {
                    return Err(CodegenError::Malformed("a statement of a warp outside of matrices".into()));
                }
            }
        }
        Ok(())
    }

    fn matrix(&mut self, l: &Loop, lane: Var) -> Result<Stmt> {
        let malformed = || CodegenError::Malformed("matrix loops around neither a product nor a store".into());
        let element = self.nest.new_var("element");
        let (loops, statement) = matrix::sides(l).ok_or_else(malformed)?;
        let (rows, columns) = (loops[0].var, loops[1].var);
        let mut own = statement.clone();
        self.own_registers(&mut own, (rows, columns), (lane, element))?;
        let count = Index::constant(held(loops[1].extent()));
        let over_elements = |kind, body| Stmt::Loop(Loop { var: element, bounds: vec![count], kind, body });
        if matrix::is_product(l) {
            let inner = over_elements(LoopKind::Matrix, vec![own]);
            return Ok(loops.iter().rev().fold(inner, |body, side| Stmt::Loop(side.around(vec![body]))));
        }
        let [row, column] = place(lane, element);
        let by = |var: Var| match var {
            v if v == rows => Some(&row),
            v if v == columns => Some(&column),
            _ => None,
        };
        replace_vars(std::slice::from_mut(&mut own), &by);
        Ok(over_elements(LoopKind::Unroll, vec![own]))
    }

    /// Matrices become the elements that the thread holds.
    fn own_registers(
        &self,
        statement: &mut Stmt,
        (rows, columns): (Var, Var),
        (lane, element): (Var, Var),
    ) -> Result<()> {
        let mut bad = false;
        let warps = self.warps;
        let mut change = |buffer: TensorId, indices: &mut Vec<Index>| {
            if self.nest.buffer(buffer).scope != Scope::Register {
                return;
            }
            if !self.matrices.contains(&buffer) || !matrix::ends_in(indices, rows, columns) {
                bad = true;
                return;
            }
            indices.truncate(indices.len() - 2);
            indices.push(Index::var(element));
            indices.insert(of_warps(indices, warps), Index::var(lane));
        };
        change_accesses(std::slice::from_mut(statement), &mut change);
        if bad { Err(CodegenError::Malformed("a register of a warp that is no matrix".into())) } else { Ok(()) }
    }
}

/// Row and column of the element `element` that thread `lane` holds of a product.
fn place(lane: Var, element: Var) -> [Index; 2] {
    let (lane, element) = (Index::var(lane), Index::var(element));
    let row = lane.clone().floor_div(4).plus(&element.clone().floor_div(2).modulo(2).times(8));
    let eight = element.clone().floor_div(OWN).times(COLUMNS);
    let column = lane.modulo(4).times(2).plus(&element.modulo(2)).plus(&eight);
    [row, column]
}

/// Row and depth of the element `element` of the first operand, by the variable of the thread.
pub fn place_in_first(lane: Var, element: i64) -> [Index; 2] {
    let row = Index::var(lane).floor_div(4).plus_constant(8 * (element % 2));
    let depth = Index::var(lane).modulo(4).plus_constant(4 * (element / 2));
    [row, depth]
}

/// Depth and column of the element `element` of the second operand.
pub fn place_in_second(lane: Var, element: i64) -> [Index; 2] {
    let depth = Index::var(lane).modulo(4).plus_constant(4 * element);
    [depth, Index::var(lane).floor_div(4)]
}

/// Rows and depths of the elements of a first operand of 16-bit values, in the order of the thread's
/// registers.
pub fn places_in_first(lane: Var) -> Vec<[Index; 2]> {
    let place = |element: i64| {
        let row = Index::var(lane).floor_div(4).plus_constant(8 * (element / 2 % 2));
        [row, depth_of_half(lane, element % 2 + 8 * (element / 4))]
    };
    (0..8).map(place).collect()
}

/// Depths and columns of the elements of a second operand of 16-bit values.
pub fn places_in_second(lane: Var) -> Vec<[Index; 2]> {
    let place = |element: i64| [depth_of_half(lane, element % 2 + 8 * (element / 2)), Index::var(lane).floor_div(4)];
    (0..4).map(place).collect()
}

fn depth_of_half(lane: Var, offset: i64) -> Index {
    Index::var(lane).modulo(4).times(2).plus_constant(offset)
}
