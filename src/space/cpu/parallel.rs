//! How many of the outermost loops are spread over the threads.

use std::borrow::Cow;

use crate::nest::LoopKind;
use crate::space::{LoopName, Row, Rule, Step, Stop, Tape, View, site};
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
        let default = |loops: &[Spread]| {
            let enough = i64::from(view.machine.cores) * HEURISTICS.iterations_per_core;
            let mut product = 1;
            let needed = loops.iter().take_while(|l| {
                let more = product < enough;
                product *= l.usual;
                more
            });
            if small { 0 } else { needed.count() }
        };
        let mut ask = |what: Cow<'static, str>, loops: Vec<Spread>, tape: &mut Tape<'_>| -> Result<(), Stop> {
            let candidates: Vec<i64> = (0..=loops.len() as i64).collect();
            let count = tape.choose_number(site("parallel", [what]), &candidates, default(&loops))?;
            spread(&loops[..count as usize], &mut steps);
            Ok(())
        };
        if !view.rows.is_empty() {
            let spread_over =
                |row: &Row| Spread { over: row.over.clone(), usual: row.usual_blocks(), varies: row.varies };
            let loops = view.rows.iter().map(spread_over).collect();
            ask("rows".into(), loops, tape)?;
        }
        for group in view.groups.iter().filter(|group| !view.is_joined(group)) {
            tape.defaults_only(group.defaults_only);
            let several = group.outer_order.iter().filter(|at| group.axes[**at].blocks() > 1);
            let outer = several.filter_map(|at| {
                let axis = &group.axes[*at];
                let over = group.loops(*at)?.outer.clone();
                Some(Spread { over, usual: axis.usual_blocks(), varies: axis.varies })
            });
            ask(group.name(), outer.collect(), tape)?;
        }
        Ok(steps)
    }
}

/// A loop that threads may share.
struct Spread {
    over: LoopName,
    /// Iterations where programs are timed.
    usual: i64,
    /// Whether it is known only when it runs how many there are.
    varies: bool,
}

/// Spreads loops over the threads, as one. Where it is known only when it runs how often they run, they stay
/// apart, and are dealt out together then.
fn spread(loops: &[Spread], steps: &mut Vec<Step>) {
    if loops.iter().any(|l| l.varies) {
        steps.extend(Step::mark(LoopKind::Parallel, loops.iter().map(|l| l.over.clone()).collect()));
        return;
    }
    let [first, others @ ..] = loops else { return };
    let mut fused = first.over.clone();
    for next in others {
        let (step, into) = Step::fuse(&fused, &next.over);
        steps.push(step);
        fused = into;
    }
    steps.extend(Step::mark(LoopKind::Parallel, vec![fused]));
}
