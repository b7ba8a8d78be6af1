//! Which of the rows that all stages share is outermost.

use std::collections::BTreeSet;

use crate::nest::axis_name;
use crate::space::access::accesses;
use crate::space::{Rule, Step, Stop, Tape, View, name, site};
use crate::target::Cpu;
use crate::workload::{Role, TensorId, Var};

/// Heads of attention follow one another in memory, so that rows come before them. But keys and values belong
/// to a head: where those of all heads are larger than the cache, every row of a head should come before the
/// next head.
pub(super) struct RowOrder;

impl Rule<Cpu> for RowOrder {
    fn name(&self) -> &'static str {
        "row-order"
    }

    fn version(&self) -> u32 {
        1
    }

    fn absent_is_default(&self) -> bool {
        true
    }

    fn decide(&self, view: &View<'_, Cpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let several: Vec<usize> = (0..view.rows.len()).filter(|at| view.rows[*at].blocks() > 1).collect();
        if several.len() < 2 {
            return Ok(Vec::new());
        }
        let candidates: Vec<_> = several.iter().map(|at| name(axis_name(*at))).collect();
        let default = outermost(view, &several);
        // before there was the rule, rows were in the order in which they lie
        let answer = tape.choose_since(site("outer", ["rows".into()]), candidates.clone(), default, 0)?;
        let chosen = candidates.iter().position(|candidate| *candidate == answer).unwrap_or(0);
        if chosen == 0 {
            return Ok(Vec::new());
        }
        let first = several[chosen];
        let others = (0..view.rows.len()).filter(|at| *at != first);
        let order = std::iter::once(first).chain(others).map(|at| view.rows[at].over.clone()).collect();
        Ok(vec![Step::Reorder { order }])
    }
}

/// The row, of those with several iterations, that most bytes of operands change with which do not change
/// with all of them, if these are too many for the cache; the first one otherwise.
fn outermost(view: &View<'_, Cpu>, several: &[usize]) -> usize {
    let moves = |bytes: &[(Vec<bool>, u64)], at: usize| -> u64 {
        bytes.iter().filter(|(with, _)| with[at]).map(|(_, bytes)| bytes).sum()
    };
    let reads = view.workload.computed_stages().filter(|(_, stage)| stage.is_reduction());
    let mut seen: BTreeSet<TensorId> = BTreeSet::new();
    let mut bytes: Vec<(Vec<bool>, u64)> = Vec::new();
    for access in reads.flat_map(|(_, stage)| accesses(stage)) {
        let tensor = view.workload.tensor(access.tensor);
        let with: Vec<bool> = several.iter().map(|at| access.mentions(Var(*at as u32))).collect();
        let changes_with_some = with.contains(&true) && with.contains(&false);
        if tensor.role != Role::Intermediate && changes_with_some && seen.insert(access.tensor) {
            bytes.push((with, tensor.elements() as u64 * tensor.dtype.bytes() as u64));
        }
    }
    let most = (0..several.len()).rev().max_by_key(|at| moves(&bytes, *at)).unwrap_or(0);
    if moves(&bytes, most) > view.machine.l2_bytes { most } else { 0 }
}
