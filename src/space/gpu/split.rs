//! Whether a reduction is computed in parts, by more blocks than there are results for.

use super::{mapping, matrix};
use crate::space::access::{Access, accesses};
use crate::space::{Group, Rule, Step, Stop, Tape, View, site};
use crate::target::Gpu;
use crate::workload::Workload;

/// Rewrites the workload before anything else is decided. What the parts come to is combined by a grid of its
/// own.
pub(super) struct Split;

/// What the rule goes by, beside what the machine says.
struct Heuristics {
    /// Parts of a reduction, at most.
    maximal_parts: i64,
    /// Steps of a part, at least.
    fewest_steps: i64,
    /// Steps of a part of the untuned program, at least.
    default_steps: i64,
}

const HEURISTICS: Heuristics = Heuristics { maximal_parts: 64, fewest_steps: 8, default_steps: 128 };

impl Rule<Gpu> for Split {
    fn name(&self) -> &'static str {
        "split"
    }

    fn version(&self) -> u32 {
        1
    }

    fn decide(&self, view: &View<'_, Gpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let workload = &*view.workload;
        // where several reductions follow one another, joined rows keep what is between them in a block
        let mut reductions = view.groups.iter().filter(|group| workload.stages[group.stage].is_reduction());
        let (Some(group), None) = (reductions.next(), reductions.next()) else { return Ok(Vec::new()) };
        let deepest = group.positions(true).into_iter().max_by_key(|at| (group.axes[*at].extent, usize::MAX - at));
        let Some(axis) = deepest else { return Ok(Vec::new()) };
        let candidates = parts(workload, view.machine, group, axis);
        let default = default(workload, view.machine, group, &candidates);
        let site = site("split", [group.name(), group.axes[axis].letter()]);
        let parts = tape.choose_number(site, &candidates, default)?;
        let (stage, axis) = (group.stage, group.axes[axis].position);
        let split = (parts > 1).then_some(Step::SplitReduction { stage, axis, parts });
        Ok(split.into_iter().collect())
    }
}

/// Steps of the whole reduction.
fn steps(group: &Group) -> i64 {
    group.positions(true).into_iter().map(|at| group.axes[at].extent).fold(1, i64::saturating_mul)
}

/// Into how many parts an axis may be cut: equal ones, that are worth it, and whose results stay in the
/// cache.
fn parts(workload: &Workload, gpu: &Gpu, group: &Group, axis: usize) -> Vec<i64> {
    let output = workload.tensor(workload.stages[group.stage].output);
    let room = i64::try_from(gpu.l2_bytes).unwrap_or(i64::MAX) / (output.bytes().max(1) as i64);
    let most = (steps(group) / HEURISTICS.fewest_steps).min(room).min(HEURISTICS.maximal_parts);
    let extent = group.axes[axis].extent;
    (1..=most.max(1)).filter(|parts| extent % parts == 0).collect()
}

/// The position of as many parts as give every multiprocessor a block, for contractions that have not enough
/// results for that.
fn default(workload: &Workload, gpu: &Gpu, group: &Group, candidates: &[i64]) -> usize {
    if mapping::shared(workload, group).len() < 2 {
        return 0;
    }
    let outputs: i64 = group.positions(false).into_iter().map(|at| group.axes[at].extent).product();
    // products of 16-bit values are tensor cores'
    let is_short = |access: &Access| workload.tensor(access.tensor).dtype.bytes() == 2;
    let on_tensor_cores = accesses(&workload.stages[group.stage]).iter().all(is_short);
    let tile = if on_tensor_cores { matrix::LEAST_RESULTS } else { mapping::LEAST_TILE };
    let blocks = (outputs + tile - 1) / tile;
    let deep = candidates.iter().filter(|parts| steps(group) / **parts >= HEURISTICS.default_steps).count();
    let enough = candidates.iter().take_while(|parts| blocks * **parts < i64::from(gpu.multiprocessors)).count();
    enough.min(deep.saturating_sub(1))
}
