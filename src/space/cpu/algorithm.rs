//! Which algorithm computes the task: as it is written, or a convolution by Winograd's.

use crate::space::{Rule, Step, Stop, Tape, View, Words, name, site};
use crate::target::Cpu;
use crate::workload::winograd::{self, Order};
use crate::workload::{Role, Tensor, Workload};

/// Rewrites the workload before anything else is decided.
pub(super) struct Algorithm;

/// Outputs of a tile in each dimension.
const WINOGRAD_TILES: [i64; 2] = [2, 4];

impl Rule<Cpu> for Algorithm {
    fn name(&self) -> &'static str {
        "algorithm"
    }

    fn version(&self) -> u32 {
        1
    }

    fn decide(&self, view: &View<'_, Cpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let applies = |m: &i64| !view.exact && winograd::applies(&view.workload, *m);
        let sizes: Vec<i64> = WINOGRAD_TILES.into_iter().filter(applies).collect();
        if sizes.is_empty() {
            return Ok(Vec::new());
        }
        let mut candidates = vec![name("direct")];
        candidates.extend(sizes.iter().map(|m| Words(vec!["winograd".into(), m.unsigned_abs().into()])));
        // the most outputs a tile, where what it takes stays near
        let default = sizes.iter().rposition(|m| rows_pay(&view.workload, *m, view.machine)).map_or(0, |at| at + 1);
        let answer = tape.choose(site("algorithm", []), candidates.clone(), default)?;
        let chosen = candidates.iter().position(|c| *c == answer).filter(|c| *c > 0).map(|c| sizes[c - 1]);
        Ok(chosen.map(|outputs| Step::Winograd { outputs, order: Order::Points }).into_iter().collect())
    }
}

/// Whether a convolution by Winograd's algorithm goes through all of its stages for each row of tiles.
///
/// Otherwise every stage leaves all of its results in memory before the next one starts, but each filter is
/// read once.
pub(super) struct TileRows;

impl Rule<Cpu> for TileRows {
    fn name(&self) -> &'static str {
        "tile-rows"
    }

    fn version(&self) -> u32 {
        1
    }

    fn absent_is_default(&self) -> bool {
        true
    }

    fn decide(&self, view: &View<'_, Cpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let Some((outputs, _)) = view.winograd() else { return Ok(Vec::new()) };
        let candidates = vec![name("none"), name("each")];
        let pays = rows_pay(view.given, outputs, view.machine);
        // before there was the rule, every stage went through all tiles
        let answer = tape.choose_since(site("rows", ["tiles".into()]), candidates.clone(), pays.into(), 0)?;
        let by_rows = answer == candidates[1];
        Ok(by_rows.then_some(Step::Winograd { outputs, order: Order::Rows }).into_iter().collect())
    }
}

/// Bytes of the largest tensor of a role that a stage writes.
fn bytes(workload: &Workload, role: Role) -> i64 {
    let written = workload.stages.iter().map(|stage| workload.tensor(stage.output));
    let bytes = |tensor: &Tensor| tensor.elements().saturating_mul(tensor.dtype.bytes() as i64);
    written.filter(|tensor| tensor.role == role).map(bytes).max().unwrap_or(0)
}

/// Whether rows of tiles pay: filters, which are read again for every row, stay in near memory, what the
/// stages leave for all rows would not, and tiles are read in vectors of channels.
fn rows_pay(workload: &Workload, outputs: i64, machine: &Cpu) -> bool {
    winograd::winograd(workload, outputs, Order::Rows).is_some_and(|rewritten| {
        let near = machine.l2_bytes as i64;
        let bytes = |role| bytes(&rewritten.workload, role);
        !rewritten.by_columns && bytes(Role::Constant) <= near && bytes(Role::Intermediate) > near
    })
}
