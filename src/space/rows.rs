//! Whether the stages of a task go through memory one after the other, or row by row, or by blocks of rows.

use std::mem::take;

use super::plan::{accesses, shared_rows};
use super::{Built, Plan, Row, Rule, Stop, Tape, site};
use crate::nest::axis_name;
use crate::nest::rewrite::Refusal;
use crate::target::TaskOn;
use crate::workload::{Role, Var, Workload};

/// Joins the loops over leading axes that all stages share, or over blocks of them.
///
/// What every stage of a block leaves to the next one stays in the cache, and what all its rows read is read
/// once for them: attention goes through keys and values once for each block of queries.
pub(super) struct Rows;

/// Rows that may stay together.
const BLOCKS: [i64; 13] = [1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];
/// Rows that the untuned program keeps together, at most: beyond that, operands are reused often enough.
const DEFAULT_BLOCK: i64 = 32;

/// What the rows ask of a machine.
pub(super) trait RowLimits {
    /// Blocks of rows that keep all of it busy.
    fn enough_blocks(&self) -> i64;

    /// Bytes of intermediates that a block of several rows leaves in the untuned program, at most.
    fn near_bytes(&self) -> i64;

    /// Bytes of intermediates that a block of several rows leaves, at most.
    fn maximal_bytes(&self) -> i64;

    /// The same of a row on its own.
    fn maximal_row_bytes(&self) -> i64;
}

impl<M: RowLimits> Rule<M> for Rows {
    fn name(&self) -> &'static str {
        "rows"
    }

    fn version(&self) -> u32 {
        2
    }

    fn decide(&self, task: &TaskOn<'_, M>, plan: &mut Plan, tape: &mut Tape<'_>) -> Result<(), Stop> {
        // joined rows pay where what one reduction leaves is reduced again, or used after another reduction
        let reductions = plan.groups.iter().filter(|g| plan.workload.stages[g.stage].is_reduction()).count();
        if reductions < 2 {
            return Ok(());
        }
        let shared = shared_rows(&plan.workload) as i64;
        let singles = |rows: i64| -> Vec<Row> {
            let extents = plan.workload.stages[0].spatial.iter().take(rows as usize);
            extents.map(|extent| Row { extent: *extent, block: 1 }).collect()
        };
        let most = task.machine.maximal_row_bytes();
        let fits = |rows: &i64| *rows == 0 || bytes(&plan.workload, &singles(*rows)) <= most;
        let candidates: Vec<i64> = (0..=shared).filter(fits).collect();
        let rows = tape.choose_number(site("rows", []), &candidates, candidates.len() - 1)?;
        plan.rows = singles(rows);
        let rows = plan.rows.len();
        for at in 0..rows {
            let candidates = blocks(&plan.workload, &plan.rows, at, task.machine.maximal_bytes());
            let default = default_block(&plan.workload, task.machine, &plan.rows, at, &candidates);
            let site = site("block", ["rows".into(), axis_name(at)]);
            plan.rows[at].block = tape.choose_number(site, &candidates, default)?;
        }
        for group in &mut plan.groups {
            for (axis, row) in group.axes.iter_mut().zip(&plan.rows) {
                (axis.extent, axis.ragged) = (row.block, row.is_ragged());
            }
            let rows = &plan.rows;
            group.axes.retain(|axis| rows.get(axis.position).is_none_or(|row| row.block > 1));
        }
        Ok(())
    }

    fn realise(&self, _: &TaskOn<'_, M>, plan: &Plan, built: &mut Built) -> Result<(), Refusal> {
        let mut outer = Vec::new();
        for at in 0..built.stages.len() {
            let (init, axes) = (built.stages[at].init.clone(), built.stages[at].axes.clone());
            for (vars, of_init) in [(init, true), (axes, false)] {
                if !vars.is_empty() {
                    let (outside, inside) = split(built, &vars, &plan.rows)?;
                    let stage = &mut built.stages[at];
                    let own = if of_init { &mut stage.init } else { &mut stage.axes };
                    own.splice(..plan.rows.len(), inside);
                    outer.push(outside);
                }
            }
        }
        for at in 0..plan.rows.len() {
            let heads: Vec<Var> = outer.iter().map(|outside| outside[at]).collect();
            built.nest = take(&mut built.nest).join(&heads)?;
            built.rows.push(heads[0]);
            if plan.rows[at].block == 1 {
                let init = built.stages.iter_mut().filter_map(|stage| stage.init.get_mut(at));
                init.for_each(|var| *var = heads[0]);
                built.stages.iter_mut().for_each(|stage| stage.axes[at] = heads[0]);
            }
        }
        Ok(())
    }
}

/// Splits the loops over the rows, the loops over blocks outside of all others: the former, and those that
/// are left inside. A row on its own has one loop, which is both.
fn split(built: &mut Built, vars: &[Var], rows: &[Row]) -> Result<(Vec<Var>, Vec<Var>), Refusal> {
    let (mut outside, mut inside, mut cut) = (Vec::new(), Vec::new(), Vec::new());
    for (var, row) in vars.iter().zip(rows) {
        if row.block == 1 {
            outside.push(*var);
            inside.push(*var);
        } else {
            let (nest, outer, inner) = take(&mut built.nest).split(*var, row.block)?;
            built.nest = nest;
            outside.push(outer);
            inside.push(inner);
            cut.push(inner);
        }
    }
    if !cut.is_empty() {
        built.nest = take(&mut built.nest).reorder(&[outside.clone(), cut].concat())?;
    }
    Ok((outside, inside))
}

/// How many iterations of a row axis may stay together, the rows before it decided.
fn blocks(workload: &Workload, rows: &[Row], at: usize, most_bytes: i64) -> Vec<i64> {
    let extent = rows[at].extent;
    let mut candidates: Vec<i64> = BLOCKS.into_iter().filter(|b| *b < extent.max(2)).collect();
    // the whole of the last one is a row axis less
    if at + 1 < rows.len() && extent > 1 {
        candidates.push(extent);
    }
    candidates.retain(|block| *block == 1 || bytes(workload, &with_block(rows, at, *block)) <= most_bytes);
    candidates
}

/// The position of the block of the untuned program: rows stay together where they read the same operand of a
/// contraction, as many as leave the machine enough blocks and fit into near memory.
fn default_block(workload: &Workload, machine: &impl RowLimits, rows: &[Row], at: usize, candidates: &[i64]) -> usize {
    if !shares_operand(workload, rows.len(), at) {
        return 0;
    }
    let fits = |block: i64| {
        let rows = with_block(rows, at, block);
        let together: i64 = rows.iter().map(|row| row.block).product();
        let count: i64 = rows.iter().map(Row::blocks).product();
        together <= DEFAULT_BLOCK && count >= machine.enough_blocks() && bytes(workload, &rows) <= machine.near_bytes()
    };
    candidates.iter().rposition(|block| fits(*block)).unwrap_or(0)
}

fn with_block(rows: &[Row], at: usize, block: i64) -> Vec<Row> {
    let mut rows = rows.to_vec();
    rows[at].block = block;
    rows
}

/// Bytes of the intermediates of one block of rows.
pub(super) fn bytes(workload: &Workload, rows: &[Row]) -> i64 {
    let own = |shape: &[i64]| -> i64 {
        shape.iter().enumerate().map(|(d, extent)| rows.get(d).map_or(*extent, |row| row.block)).product()
    };
    let intermediates = workload.tensors.iter().filter(|tensor| tensor.role == Role::Intermediate);
    intermediates.map(|tensor| own(&tensor.shape) * tensor.dtype.bytes() as i64).sum()
}

/// Whether some stage reduces a product of something that is the same for all iterations of a row axis, over
/// an axis that is no row.
fn shares_operand(workload: &Workload, rows: usize, at: usize) -> bool {
    workload.stages.iter().filter(|stage| stage.is_reduction()).any(|stage| {
        let inner = |axis: usize| Var(axis as u32);
        accesses(stage).iter().any(|access| {
            !access.mentions(inner(at)) && (rows..stage.spatial.len()).any(|axis| access.mentions(inner(axis)))
        })
    })
}

/// Gives every block of rows its own instance of the intermediates.
pub(super) struct Privatise;

impl<M> Rule<M> for Privatise {
    fn name(&self) -> &'static str {
        "privatise"
    }

    fn version(&self) -> u32 {
        2
    }

    fn decide(&self, _: &TaskOn<'_, M>, _: &mut Plan, _: &mut Tape<'_>) -> Result<(), Stop> {
        Ok(())
    }

    fn realise(&self, _: &TaskOn<'_, M>, plan: &Plan, built: &mut Built) -> Result<(), Refusal> {
        if plan.rows.is_empty() {
            return Ok(());
        }
        let rows: Vec<(Var, i64)> = built.rows.iter().zip(&plan.rows).map(|(var, row)| (*var, row.block)).collect();
        for (id, tensor) in plan.workload.ids() {
            if tensor.role == Role::Intermediate && built.nest.uses(id) {
                built.nest = take(&mut built.nest).privatise(id, &rows)?;
            }
        }
        Ok(())
    }
}
