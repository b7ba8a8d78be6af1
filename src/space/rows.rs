//! Whether the stages of a task go through memory one after the other, or row by row, or by blocks of rows.

use super::access::accesses;
use super::{LoopName, Row, Rule, Step, Stop, Tape, View, site};
use crate::nest::axis_name;
use crate::workload::winograd::Order;
use crate::workload::{Index, Role, Stage, Tensor, TensorId, Var, Workload, shared_axes};

/// Joins the loops over leading axes that all stages share, or over blocks of them.
///
/// What every stage of a block leaves to the next one stays in the cache, and what all its rows read is read
/// once for them: attention goes through keys and values once for each block of queries.
pub(super) struct Rows;

/// What the rule goes by, beside what the machine says.
struct Heuristics {
    /// Rows that may stay together.
    blocks: [i64; 13],
    /// Rows that the untuned program keeps together, at most: beyond that, operands are reused often enough.
    default_block: i64,
}

const HEURISTICS: Heuristics =
    Heuristics { blocks: [1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128], default_block: 32 };

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

    /// Whether the untuned program joins rows at all.
    fn joins(&self, _given: &Workload, _winograd: Option<(i64, Order)>) -> bool {
        true
    }
}

impl<M: RowLimits> Rule<M> for Rows {
    fn name(&self) -> &'static str {
        "rows"
    }

    fn version(&self) -> u32 {
        2
    }

    fn decide(&self, view: &View<'_, M>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        if view.panels().is_some() {
            // that is what panels are for
            return Ok(join(view, &[view.row(0)]));
        }
        // joined rows pay where what one reduction leaves is reduced again, or used after another reduction
        let reductions = view.groups.iter().filter(|g| view.workload.stages[g.stage].is_reduction()).count();
        // or where every stage passes over memory, and a few rows of it stay near
        if reductions < 2 && !view.winograd().is_some_and(|(_, order)| order == Order::Rows) {
            return Ok(Vec::new());
        }
        let shared = shared_rows(&view.workload) as i64;
        let singles = |rows: i64| -> Vec<Row> { (0..rows as usize).map(|at| view.row(at)).collect() };
        let most = view.machine.maximal_row_bytes();
        let fits = |rows: &i64| *rows == 0 || bytes(&view.workload, &singles(*rows)) <= most;
        let candidates: Vec<i64> = (0..=shared).filter(fits).collect();
        let joins = view.machine.joins(view.given, view.winograd());
        let default = if joins { candidates.len() - 1 } else { 0 };
        let count = tape.choose_number(site("rows", []), &candidates, default)?;
        let mut rows = singles(count);
        for at in 0..rows.len() {
            let candidates = blocks(&view.workload, &rows, at, view.machine.maximal_bytes());
            let default = default_block(&view.workload, view.machine, &rows, at, &candidates);
            let site = site("block", ["rows".into(), axis_name(at)]);
            rows[at].block = tape.choose_number(site, &candidates, default)?;
        }
        Ok(join(view, &rows))
    }
}

/// Cuts the loops over the rows of every stage into blocks, and joins those over the blocks.
fn join<M>(view: &View<'_, M>, rows: &[Row]) -> Vec<Step> {
    let (mut steps, mut outer) = (Vec::new(), Vec::new());
    for (number, stage) in view.joinable() {
        if stage.is_reduction() {
            outer.push(split(rows, |row| LoopName::init(number, row), &mut steps));
        }
        outer.push(split(rows, |row| LoopName::axis(number, row), &mut steps));
    }
    steps.extend((0..rows.len()).map(|at| Step::Join { loops: outer.iter().map(|loops| loops[at].clone()).collect() }));
    steps
}

/// Splits the loops over the rows, the loops over blocks outside of all others, and returns these. A row on
/// its own has one loop.
fn split(rows: &[Row], whole: impl Fn(usize) -> LoopName, steps: &mut Vec<Step>) -> Vec<LoopName> {
    let (mut outside, mut inside) = (Vec::new(), Vec::new());
    for (at, row) in rows.iter().enumerate() {
        let whole = whole(at);
        if row.block == 1 {
            outside.push(whole);
        } else {
            let (step, outer, inner) = Step::split(&whole, row.block);
            steps.push(step);
            outside.push(outer);
            inside.push(inner);
        }
    }
    if !inside.is_empty() {
        steps.push(Step::Reorder { order: [outside.clone(), inside].concat() });
    }
    outside
}

/// How many iterations of a row axis may stay together, the rows before it decided.
fn blocks(workload: &Workload, rows: &[Row], at: usize, most_bytes: i64) -> Vec<i64> {
    let extent = rows[at].extent;
    let most = rows[at].usual.most;
    let mut candidates: Vec<i64> = HEURISTICS.blocks.into_iter().filter(|b| *b < most.max(2)).collect();
    // the whole of the last one is a row axis less
    if at + 1 < rows.len() && extent > 1 && !rows[at].varies {
        candidates.push(extent);
    }
    candidates.retain(|block| *block == 1 || bytes(workload, &with_block(rows, at, *block)) <= most_bytes);
    candidates
}

/// The position of the block of the untuned program: rows stay together where they read the same operand of a
/// contraction, as many as leave the machine enough blocks and fit into near memory.
fn default_block(workload: &Workload, machine: &impl RowLimits, rows: &[Row], at: usize, candidates: &[i64]) -> usize {
    let slides = |row: usize| workload.stages.iter().any(|stage| slides_along(stage, row));
    // of rows that windows slide over, neighbours in memory stay together
    if !shares_operand(workload, rows.len(), at) || slides(at) && (at + 1..rows.len()).any(slides) {
        return 0;
    }
    let fits = |block: i64| {
        let rows = with_block(rows, at, block);
        let together: i64 = rows.iter().map(|row| row.block).product();
        let count: i64 = rows.iter().map(Row::usual_blocks).product();
        together <= HEURISTICS.default_block
            && count >= machine.enough_blocks()
            && bytes(workload, &rows) <= machine.near_bytes()
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
    let written = workload.computed_stages().map(|(_, stage)| workload.tensor(stage.output));
    written
        .filter(|tensor| tensor.role == Role::Intermediate)
        .map(|tensor| own(&tensor.shape) * tensor.dtype.bytes() as i64)
        .sum()
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

/// Whether windows of a stage slide over an axis.
fn slides_along(stage: &Stage, axis: usize) -> bool {
    let along = |index: &Index| index.mentions(Var(axis as u32)) && stage.slides(index);
    accesses(stage).iter().any(|access| access.indices.iter().any(along))
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

    fn decide(&self, view: &View<'_, M>, _: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        if view.rows.is_empty() {
            return Ok(Vec::new());
        }
        let rows: Vec<(LoopName, i64)> = view.rows.iter().map(|row| (row.over.clone(), row.block)).collect();
        let joined: Vec<TensorId> = view.joinable().map(|(_, stage)| stage.output).collect();
        let is_left = |(id, tensor): &(TensorId, &Tensor)| tensor.role == Role::Intermediate && joined.contains(id);
        let intermediates = view.workload.ids().filter(is_left);
        Ok(intermediates.map(|(tensor, _)| Step::Privatise { tensor, rows: rows.clone() }).collect())
    }
}

/// How many leading spatial axes all stages of a workload that run share.
fn shared_rows(workload: &Workload) -> usize {
    shared_axes(&workload.computed_stages().map(|(_, stage)| stage).collect::<Vec<_>>())
}
