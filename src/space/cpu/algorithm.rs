//! Which algorithm computes the task: as it is written, or a convolution by Winograd's.

use crate::nest::LoopKind;
use crate::nest::rewrite::Refusal;
use crate::space::{Built, Plan, Rule, Stop, Tape, Words, name, site};
use crate::target::{Cpu, TaskOn};
use crate::workload::winograd::{self, winograd};

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

    fn decide(&self, task: &TaskOn<'_, Cpu>, plan: &mut Plan, tape: &mut Tape<'_>) -> Result<(), Stop> {
        let sizes: Vec<i64> =
            WINOGRAD_TILES.into_iter().filter(|m| !plan.exact && winograd::applies(task.workload, *m)).collect();
        if sizes.is_empty() {
            return Ok(());
        }
        let mut candidates = vec![name("direct")];
        candidates.extend(sizes.iter().map(|m| Words(vec!["winograd".into(), m.unsigned_abs().into()])));
        let answer = tape.choose(site("algorithm", []), candidates.clone(), 0)?;
        let chosen = candidates.iter().position(|c| *c == answer).filter(|c| *c > 0).map(|c| sizes[c - 1]);
        if let Some(rewritten) = chosen.and_then(|m| winograd(task.workload, m)) {
            *plan = Plan { exact: plan.exact, ..Plan::of(rewritten.workload.clone()) };
            plan.groups.retain(|group| !rewritten.filters.contains(&group.stage));
            // the transforms are bound by memory: one way to compute them is as good as another
            plan.groups.iter_mut().for_each(|group| group.settled = group.stage != rewritten.product);
            plan.algorithm = Some(rewritten);
        }
        Ok(())
    }

    fn realise(&self, _: &TaskOn<'_, Cpu>, plan: &Plan, built: &mut Built) -> Result<(), Refusal> {
        let Some(rewritten) = &plan.algorithm else { return Ok(()) };
        let mut nest = std::mem::take(&mut built.nest);
        for filter in &rewritten.filters {
            // the points of the transform are written out, innermost
            let axes = &built.stages[*filter].axes;
            let (points, others) = axes.split_at(2);
            nest = nest.reorder(&[others, points].concat())?;
            nest = points.iter().try_fold(nest, |nest, var| nest.set_kind(*var, LoopKind::Unroll))?;
            let first = others.first().or(points.first()).ok_or(Refusal::Other("a filter without axes"))?;
            nest = nest.into_setup(*first, plan.workload.stages[*filter].output)?;
        }
        nest.error_growth = rewritten.error_growth;
        built.nest = nest.redirect(rewritten.tiled, rewritten.output, &rewritten.indices, &rewritten.conditions);
        Ok(())
    }
}
