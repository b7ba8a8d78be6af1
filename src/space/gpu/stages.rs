//! How far copies of operands run ahead of the products that they are for.

use super::{fetch, limits};
use crate::space::{Fetch, Group, Rule, Step, Stop, Tape, View, site};
use crate::target::Gpu;
use crate::workload::{Role, Workload};

pub(super) struct Stages;

/// What the rule goes by, beside what the machine says.
struct Heuristics {
    /// Steps of the reduction that are in shared memory at once, at most.
    maximal_stages: i64,
    /// The untuned program's, where the reduction has enough blocks.
    default_stages: i64,
    /// So many blocks of a reduction are enough.
    default_rounds: i64,
    /// Blocks of a multiprocessor that the untuned program leaves room for.
    blocks: i64,
    /// Bytes of shared memory that the driver takes for itself in each block.
    reserved: i64,
}

const HEURISTICS: Heuristics =
    Heuristics { maximal_stages: 5, default_stages: 3, default_rounds: 4, blocks: 2, reserved: 1024 };

impl Rule<Gpu> for Stages {
    fn name(&self) -> &'static str {
        "stages"
    }

    fn version(&self) -> u32 {
        1
    }

    fn decide(&self, view: &View<'_, Gpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let room = limits::room_for_operands(view);
        let whole = i64::from(view.machine.shared_bytes_per_block);
        let workload = &*view.workload;
        let of_groups: Vec<i64> = view.groups.iter().map(|group| fetch::bytes(workload, group)).collect();
        let mut left = room - of_groups.iter().sum::<i64>();
        let mut pipelines = Vec::new();
        for (group, bytes) in view.groups.iter().zip(of_groups) {
            tape.defaults_only(group.defaults_only);
            let Some(axis) = steps(group).filter(|_| is_asynchronous(workload, group)) else { continue };
            let rounds = group.axes[axis].blocks();
            let fits = |stages: &i64| *stages == 1 || (*stages <= rounds && bytes * (stages - 1) <= left);
            let candidates: Vec<i64> = (1..=HEURISTICS.maximal_stages).filter(fits).collect();
            let taken = |stages: i64| whole - left + bytes * (stages - 1) + HEURISTICS.reserved;
            let room_for_others = |stages: &i64| {
                let enough = *stages < HEURISTICS.default_stages || rounds >= HEURISTICS.default_rounds;
                let shared = i64::from(view.machine.shared_bytes_per_multiprocessor);
                *stages <= HEURISTICS.default_stages
                    && enough
                    && (*stages == 1 || taken(*stages) * HEURISTICS.blocks <= shared)
            };
            let default = candidates.iter().rposition(room_for_others).unwrap_or(0);
            let depth = tape.choose_number(site("stages", [group.name()]), &candidates, default)?;
            left -= bytes * (depth - 1);
            if let Some(loops) = group.loops(axis).filter(|_| depth > 1) {
                pipelines.push(Step::Pipeline { steps: loops.outer.clone(), depth });
            }
        }
        Ok(pipelines)
    }
}

/// The reduction axis whose blocks are the innermost ones that there are several of: at the start of each the
/// operands are copied.
fn steps(group: &Group) -> Option<usize> {
    group.positions(true).into_iter().rev().find(|axis| group.axes[*axis].blocks() > 1)
}

/// Whether all copies of a group may go on while threads compute: of what is never written, in pieces that
/// there are instructions for, which have 4 bytes at least.
fn is_asynchronous(workload: &Workload, group: &Group) -> bool {
    let fits = |fetch: &Fetch| {
        let tensor = workload.tensor(fetch.tensor);
        let in_words = match tensor.dtype.bytes() {
            4 | 8 => true,
            2 => fetch.lanes > 1 && fetch.padding % 2 == 0,
            _ => false,
        };
        matches!(tensor.role, Role::Input | Role::Constant) && in_words
    };
    !group.fetches.is_empty() && group.fetches.iter().all(fits)
}
