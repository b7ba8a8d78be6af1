//! How far copies of operands run ahead of the products that they are for.

use super::{fetch, limits};
use crate::nest::rewrite::Refusal;
use crate::space::{Built, Fetch, Group, Pipeline, Plan, Rule, Stop, Tape, site};
use crate::target::{Gpu, TaskOn};
use crate::workload::{Role, Workload};

pub(super) struct Stages;

/// Steps of the reduction that are in shared memory at once, at most.
const MAXIMAL_STAGES: i64 = 5;
/// The untuned program's, where there are at least [`DEFAULT_ROUNDS`].
const DEFAULT_STAGES: i64 = 3;
const DEFAULT_ROUNDS: i64 = 4;
/// Blocks of a multiprocessor that the untuned program leaves room for, each of which the driver takes so
/// many bytes for itself.
const BLOCKS: i64 = 2;
const RESERVED: i64 = 1024;

impl Rule<Gpu> for Stages {
    fn name(&self) -> &'static str {
        "stages"
    }

    fn version(&self) -> u32 {
        1
    }

    fn decide(&self, task: &TaskOn<'_, Gpu>, plan: &mut Plan, tape: &mut Tape<'_>) -> Result<(), Stop> {
        let room = limits::room_for_operands(plan, task.machine);
        let whole = i64::from(task.machine.shared_bytes_per_block);
        let Plan { workload, groups, .. } = plan;
        let of_groups: Vec<i64> = groups.iter().map(|group| fetch::bytes(workload, group)).collect();
        let mut left = room - of_groups.iter().sum::<i64>();
        for (group, bytes) in groups.iter_mut().zip(of_groups) {
            tape.settle(group.settled);
            let rounds = steps(group).map_or(1, |axis| group.axes[axis].blocks());
            if rounds < 2 || !is_asynchronous(workload, group) {
                continue;
            }
            let fits = |stages: &i64| *stages == 1 || (*stages <= rounds && bytes * (stages - 1) <= left);
            let candidates: Vec<i64> = (1..=MAXIMAL_STAGES).filter(fits).collect();
            let taken = |stages: i64| whole - left + bytes * (stages - 1) + RESERVED;
            let room_for_others = |stages: &i64| {
                let enough = *stages < DEFAULT_STAGES || rounds >= DEFAULT_ROUNDS;
                let shared = i64::from(task.machine.shared_bytes_per_multiprocessor);
                *stages <= DEFAULT_STAGES && enough && (*stages == 1 || taken(*stages) * BLOCKS <= shared)
            };
            let default = candidates.iter().rposition(room_for_others).unwrap_or(0);
            group.stages = tape.choose_number(site("stages", [group.name()]), &candidates, default)?;
            left -= bytes * (group.stages - 1);
        }
        Ok(())
    }

    fn realise(&self, _: &TaskOn<'_, Gpu>, plan: &Plan, built: &mut Built) -> Result<(), Refusal> {
        for (at, group) in plan.groups.iter().enumerate().filter(|(_, group)| group.stages > 1) {
            let Some(axis) = steps(group) else { continue };
            let steps = built.thread_loops[at][axis].outer;
            built.pipelines.push(Pipeline { steps, buffers: built.copies[at].clone(), stages: group.stages });
        }
        Ok(())
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
