//! How many of the outermost loops are spread over the threads.

use std::borrow::Cow;

use crate::nest::LoopKind;
use crate::space::{LoopName, Rule, Step, Stop, Tape, View, site};
use crate::target::Cpu;

pub(super) struct Parallel;

/// What the rule goes by, beside what the machine says.
struct Heuristics {
    /// Work below this many operations is not worth waking a thread for, by default.
    serial_flops: i64,
    /// Iterations for each core that the untuned program spreads, at least.
    iterations_per_core: i64,
}

const HEURISTICS: Heuristics = Heuristics { serial_flops: 60_000, iterations_per_core: 4 };

impl Rule<Cpu> for Parallel {
    fn name(&self) -> &'static str {
        "parallel"
    }

    fn version(&self) -> u32 {
        2
    }

    fn decide(&self, view: &View<'_, Cpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let mut steps = Vec::new();
        if view.machine.cores < 2 {
            return Ok(steps);
        }
        let small = view.workload.flops() < HEURISTICS.serial_flops;
        let default = |extents: &[i64]| {
            let enough = i64::from(view.machine.cores) * HEURISTICS.iterations_per_core;
            let mut product = 1;
            let needed = extents.iter().take_while(|e| {
                let more = product < enough;
                product *= **e;
                more
            });
            if small { 0 } else { needed.count() }
        };
        let mut ask = |what: Cow<'static, str>, loops: Vec<(LoopName, i64)>, tape: &mut Tape<'_>| -> Result<(), Stop> {
            let extents: Vec<i64> = loops.iter().map(|(_, extent)| *extent).collect();
            let candidates: Vec<i64> = (0..=extents.len() as i64).collect();
            let count = tape.choose_number(site("parallel", [what]), &candidates, default(&extents))?;
            spread(loops.into_iter().take(count as usize).map(|(over, _)| over), &mut steps);
            Ok(())
        };
        if !view.rows.is_empty() {
            let loops = view.rows.iter().map(|row| (row.over.clone(), row.blocks())).collect();
            ask("rows".into(), loops, tape)?;
            return Ok(steps);
        }
        for group in &view.groups {
            tape.defaults_only(group.defaults_only);
            let several = group.outer_order.iter().filter(|at| group.axes[**at].blocks() > 1);
            let outer = several.filter_map(|at| Some((group.loops(*at)?.outer.clone(), group.axes[*at].blocks())));
            ask(group.name(), outer.collect(), tape)?;
        }
        Ok(steps)
    }
}

/// Fuses loops and spreads the result over the threads.
fn spread(mut loops: impl Iterator<Item = LoopName>, steps: &mut Vec<Step>) {
    let Some(mut fused) = loops.next() else { return };
    for next in loops {
        let (step, into) = Step::fuse(&fused, &next);
        steps.push(step);
        fused = into;
    }
    steps.extend(Step::mark(LoopKind::Parallel, vec![fused]));
}
