//! How many of the outermost loops are spread over the threads.

use std::borrow::Cow;
use std::mem::take;

use crate::nest::rewrite::Refusal;
use crate::nest::{LoopKind, Nest};
use crate::space::{Built, Plan, Row, Rule, Stop, Tape, site};
use crate::target::{Cpu, TaskOn};
use crate::workload::Var;

pub(super) struct Parallel;

/// Work below this many operations is not worth waking a thread for, by default.
const SERIAL_FLOPS: i64 = 60_000;

impl Rule<Cpu> for Parallel {
    fn name(&self) -> &'static str {
        "parallel"
    }

    fn version(&self) -> u32 {
        2
    }

    fn decide(&self, task: &TaskOn<'_, Cpu>, plan: &mut Plan, tape: &mut Tape<'_>) -> Result<(), Stop> {
        if task.machine.cores < 2 {
            return Ok(());
        }
        let small = plan.workload.flops() < SERIAL_FLOPS;
        let default = |extents: &[i64]| {
            let enough = i64::from(task.machine.cores) * 4;
            let mut product = 1;
            let needed = extents.iter().take_while(|e| {
                let more = product < enough;
                product *= **e;
                more
            });
            if small { 0 } else { needed.count() }
        };
        if !plan.rows.is_empty() {
            let extents: Vec<i64> = plan.rows.iter().map(Row::blocks).collect();
            let answer = ask("rows".into(), &extents, default(&extents), tape)?;
            plan.groups.iter_mut().for_each(|g| g.parallel = answer);
            return Ok(());
        }
        for group in &mut plan.groups {
            tape.settle(group.settled);
            let extents: Vec<i64> = group.outer_order.iter().map(|a| group.axes[*a].blocks()).collect();
            group.parallel = ask(group.name(), &extents, default(&extents), tape)?;
        }
        Ok(())
    }

    fn realise(&self, _: &TaskOn<'_, Cpu>, plan: &Plan, built: &mut Built) -> Result<(), Refusal> {
        if !plan.rows.is_empty() {
            let count = plan.groups.first().map_or(0, |g| g.parallel);
            built.nest = spread(take(&mut built.nest), &built.rows[..count])?;
            return Ok(());
        }
        for (at, group) in plan.groups.iter().enumerate() {
            let loops: Vec<Var> =
                group.outer_order.iter().take(group.parallel).map(|a| built.loops[at][*a].outer).collect();
            built.nest = spread(take(&mut built.nest), &loops)?;
        }
        Ok(())
    }
}

fn ask(what: Cow<'static, str>, extents: &[i64], default: usize, tape: &mut Tape<'_>) -> Result<usize, Stop> {
    let candidates: Vec<i64> = (0..=extents.len() as i64).collect();
    Ok(tape.choose_number(site("parallel", [what]), &candidates, default)? as usize)
}

/// Fuses loops and spreads the result over the threads.
fn spread(mut nest: Nest, loops: &[Var]) -> Result<Nest, Refusal> {
    let [first, rest @ ..] = loops else { return Ok(nest) };
    let mut fused = *first;
    for next in rest {
        (nest, fused) = nest.fuse(fused, *next)?;
    }
    nest.set_kind(fused, LoopKind::Parallel)
}
