//! Whether as many blocks as the machine holds go through the steps of all results, an equal share each,
//! however many results there are.

use crate::nest::rewrite::persistent::Shares;
use crate::space::{Group, Rule, Step, Stop, Tape, View, site};
use crate::target::Gpu;
use crate::workload::Workload;

pub(super) struct Persistent;

/// What the rule goes by, beside what the machine says.
struct Heuristics {
    /// Blocks that a multiprocessor gets; 0: as many blocks as there are tiles of results, one after the
    /// other.
    blocks: [i64; 5],
    /// Steps of a block, at least.
    fewest_steps: i64,
    /// Parts of a result, at most: they are added up in one expression.
    most_parts: i64,
}

const HEURISTICS: Heuristics = Heuristics { blocks: [0, 1, 2, 3, 4], fewest_steps: 2, most_parts: 16 };

impl Rule<Gpu> for Persistent {
    fn name(&self) -> &'static str {
        "persistent"
    }

    fn version(&self) -> u32 {
        1
    }

    fn decide(&self, view: &View<'_, Gpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let mut persistent = Vec::new();
        // the blocks of joined rows have more than one stage to go through
        if !view.rows.is_empty() {
            return Ok(persistent);
        }
        for group in &view.groups {
            tape.defaults_only(group.defaults_only);
            let fits = |blocks: &i64| *blocks == 0 || is_worth_it(&view.workload, view.machine, group, *blocks);
            let candidates: Vec<i64> = HEURISTICS.blocks.into_iter().filter(fits).collect();
            if candidates.len() < 2 {
                continue;
            }
            let blocks = tape.choose_number(site("persistent", [group.name()]), &candidates, 0)?;
            let loops = steps(group).and_then(|axis| group.loops(axis));
            let combiner = view.workload.stages[group.stage].combiner;
            if let (Some(loops), Some(combiner), true) = (loops, combiner, blocks > 0) {
                let grid_blocks = blocks * i64::from(view.machine.multiprocessors);
                persistent.push(Step::Persist { steps: loops.outer.clone(), grid_blocks, combiner });
            }
        }
        Ok(persistent)
    }
}

/// The reduction axis whose blocks are the outermost ones that there are several of.
fn steps(group: &Group) -> Option<usize> {
    group.positions(true).into_iter().find(|axis| group.axes[*axis].blocks() > 1)
}

/// Whether there are steps enough for so many blocks on each multiprocessor, shares are no single results,
/// and the parts of results stay in the cache. What a single thread computes has no phases that would stand
/// in the steps.
fn is_worth_it(workload: &Workload, gpu: &Gpu, group: &Group, blocks: i64) -> bool {
    let Some(axis) = steps(group) else { return false };
    let spatial = group.positions(false);
    let product = |of: &dyn Fn(usize) -> i64| spatial.iter().map(|at| of(*at)).fold(1, i64::saturating_mul);
    let (results, steps) = (product(&|at| group.axes[at].blocks()), group.axes[axis].blocks());
    let elements = product(&|at| group.axes[at].tile * group.axes[at].block);
    let lanes: i64 = group.positions(true).into_iter().map(|at| group.axes[at].threads).product();
    let size = workload.tensor(workload.stages[group.stage].output).dtype.bytes() as i64;
    let grid_blocks = blocks * i64::from(gpu.multiprocessors);
    let Some(shares) = Shares::new(results, steps, grid_blocks) else { return false };
    let kept = [2, grid_blocks, elements, lanes, size].into_iter().fold(1, i64::saturating_mul);
    let threads: i64 = group.axes.iter().map(|axis| axis.threads).product();
    (threads > 1 || group.matrix.is_some())
        && shares.each >= HEURISTICS.fewest_steps
        && shares.each != steps
        && shares.most_parts() <= HEURISTICS.most_parts
        && kept <= i64::try_from(gpu.l2_bytes).unwrap_or(i64::MAX)
}
