//! Threads, rounds and register tiles of every axis, and the blocks that they make.

use std::mem::take;

use crate::nest::rewrite::Refusal;
use crate::nest::rewrite::accumulate::Reduction;
use crate::nest::{LoopKind, MAX_THREADS};
use crate::space::fuse::{fuse, touches};
use crate::space::plan::accesses;
use crate::space::{Access, Built, Group, Plan, Rule, Stop, Tape, ThreadLoops, name, site};
use crate::target::gpu::WARP;
use crate::target::{Gpu, TaskOn};
use crate::workload::{Var, Workload};

pub(super) struct Tile;

/// Accumulators of a thread, at most.
const MAXIMAL_ACCUMULATORS: i64 = 128;
/// Registers that a thread wants beside its accumulators.
const OTHER_REGISTERS: i64 = 32;
/// Elements of the widest load.
const MAXIMAL_VECTOR: i64 = 4;
/// Steps of a reduction times accumulators that are written out, at most.
const MAXIMAL_BODY: i64 = 512;
/// Threads of a block in the untuned program.
const DEFAULT_THREADS: i64 = 256;
/// Reduction steps of a block of operands in the untuned program.
const DEFAULT_STEPS: i64 = 16;
/// Reductions of so many steps are worth threads of their own where there is little else to do.
const DEEP: i64 = 64;

impl Rule<Gpu> for Tile {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn version(&self) -> u32 {
        1
    }

    fn decide(&self, task: &TaskOn<'_, Gpu>, plan: &mut Plan, tape: &mut Tape<'_>) -> Result<(), Stop> {
        let Plan { workload, rows, groups, .. } = plan;
        for group in groups {
            tape.settle(group.settled);
            if rows.is_empty() {
                fuse(workload, group, tape)?;
            }
            let character = Character::of(workload, task.machine, group, rows.is_empty());
            vector(workload, group, &character, tape)?;
            threads(group, &character, tape)?;
            tiles(task.machine, group, &character, tape)?;
            steps(group, &character, tape)?;
        }
        Ok(())
    }

    fn realise(&self, _: &TaskOn<'_, Gpu>, plan: &Plan, built: &mut Built) -> Result<(), Refusal> {
        for (at, group) in plan.groups.iter().enumerate() {
            cut(group, at, built)?;
            arrange(&plan.workload, group, at, plan.rows.is_empty(), built)?;
        }
        built.rows.iter().try_for_each(|row| {
            built.nest = take(&mut built.nest).set_kind(*row, LoopKind::Block)?;
            Ok(())
        })
    }
}

/// What kind of work a stage is, as far as the untuned program goes by it.
struct Character {
    /// Threads that the untuned program gives each axis.
    threads: Vec<i64>,
    /// Tiles and rounds that it gives each spatial axis.
    tiles: Vec<(i64, i64)>,
    /// Whether operands are read again by several threads of a block.
    contracts: bool,
}

impl Character {
    fn of(workload: &Workload, gpu: &Gpu, group: &Group, in_grid: bool) -> Character {
        let stage = &workload.stages[group.stage];
        let reads = accesses(stage);
        let (spatial, reduced) = (group.positions(false), group.positions(true));
        let outputs: i64 = spatial.iter().map(|at| group.axes[*at].extent).product();
        let steps: i64 = reduced.iter().map(|at| group.axes[*at].extent).product();
        let lacks = |at: &usize| reads.iter().any(|a| !touches(a, group, *at));
        // the axes along which some operand is read again
        let mut shared: Vec<usize> =
            spatial.iter().copied().filter(|at| lacks(at) && group.axes[*at].extent > 1).collect();
        let wanted_outputs = if in_grid { i64::from(gpu.multiprocessors) * 4 * WARP } else { 4 * WARP };
        let contracts = stage.is_reduction() && shared.len() >= 2 && outputs >= wanted_outputs && steps >= 8;
        let (mut threads, mut tiles) = (vec![1; group.axes.len()], vec![(1, 1); group.axes.len()]);
        if contracts {
            shared.sort_by_key(|at| group.axes[*at].extent);
            let inner = innermost(&shared);
            let outer = shared.iter().rev().copied().find(|at| *at != inner).unwrap_or(inner);
            let blocks = |side: i64| -> i64 {
                let of = |at: &usize| {
                    let axis = &group.axes[*at];
                    if *at == inner || *at == outer { (axis.extent + side - 1) / side } else { axis.extent }
                };
                spatial.iter().map(of).product()
            };
            // the largest square tile that leaves every multiprocessor a block
            let side =
                [128, 64, 32].into_iter().find(|side| blocks(*side) >= i64::from(gpu.multiprocessors)).unwrap_or(32);
            for at in [inner, outer] {
                let extent = group.axes[at].extent;
                let per_thread = (side / 16).min((extent + 15) / 16).max(1);
                let tile = power_up_to(per_thread, MAXIMAL_VECTOR);
                tiles[at] = (tile, (per_thread / tile).max(1));
                threads[at] = power_up_to((extent + tile - 1) / tile, 16);
            }
            return Character { threads, tiles, contracts };
        }
        let mut left = DEFAULT_THREADS;
        if stage.is_reduction() && steps >= DEEP && outputs < wanted_outputs {
            // neighbours along the reduction axis that memory is read along
            let near = |at: &usize| {
                let var = Var((group.axes[*at].position + usize::from(group.fused == Some(*at))) as u32);
                reads.iter().filter(|a| a.stride(workload, var) == Some(1)).count()
            };
            if let Some(at) = reduced.iter().copied().max_by_key(|at| (near(at), group.axes[*at].extent)) {
                let most = if outputs * WARP >= DEFAULT_THREADS { WARP } else { DEFAULT_THREADS };
                threads[at] = power_up_to(group.axes[at].extent, most);
                left /= threads[at];
            }
        }
        for at in spatial.iter().rev() {
            let extent = group.axes[*at].extent;
            threads[*at] = power_up_to(extent, left);
            left = (left / threads[*at]).max(1);
        }
        Character { threads, tiles, contracts }
    }
}

/// The last of some positions.
fn innermost(positions: &[usize]) -> usize {
    positions.iter().copied().max().unwrap_or(0)
}

/// The least power of two that covers `extent`, up to `most`, a power of two.
fn power_up_to(extent: i64, most: i64) -> i64 {
    extent.max(1).unsigned_abs().next_power_of_two().min(most.unsigned_abs()) as i64
}

/// Which spatial axis a thread's neighbours in memory lie along.
fn vector(workload: &Workload, group: &mut Group, character: &Character, tape: &mut Tape<'_>) -> Result<(), Stop> {
    let spatial: Vec<usize> = group.positions(false).into_iter().filter(|at| group.axes[*at].extent > 1).collect();
    let mut candidates = vec![name("none")];
    candidates.extend(spatial.iter().map(|at| name(group.axes[*at].letter())));
    let stage = &workload.stages[group.stage];
    let reads: Vec<Access> = accesses(stage);
    // written and read next to each other, and nothing stands in the way of a wide load
    let last = stage.spatial.len().saturating_sub(1);
    let suits = |at: &usize| {
        let var = Var((group.axes[*at].position + usize::from(group.fused == Some(*at))) as u32);
        let wide = group.axes[*at].extent % MAXIMAL_VECTOR == 0;
        let reads_along = reads.iter().all(|a| {
            matches!(a.stride(workload, var), Some(0 | 1)) && !a.guarded && !(a.mentions(var) && a.has_window())
        });
        var.0 as usize == last && wide && (reads_along || character.contracts)
    };
    let default = spatial.iter().position(suits).map_or(0, |at| at + 1);
    let answer = tape.choose(site("vector", [group.name()]), candidates.clone(), default)?;
    group.vector = candidates.iter().position(|c| *c == answer).filter(|c| *c > 0).map(|c| spatial[c - 1]);
    Ok(())
}

/// How many threads go along each axis.
fn threads(group: &mut Group, character: &Character, tape: &mut Tape<'_>) -> Result<(), Stop> {
    let mut left = MAX_THREADS;
    for at in 0..group.axes.len() {
        let axis = &group.axes[at];
        if axis.extent == 1 {
            continue;
        }
        let powers = (0..).map(|power| 1i64 << power).take_while(|count| *count < 2 * axis.extent && *count <= left);
        let mut candidates: Vec<i64> = powers.collect();
        // the threads of a reduction are combined pair by pair
        if !axis.reduction && axis.extent <= left.min(2 * WARP) && !candidates.contains(&axis.extent) {
            candidates.push(axis.extent);
            candidates.sort_unstable();
        }
        let default = candidates.iter().rposition(|count| *count <= character.threads[at]).unwrap_or(0);
        let answer = tape.choose_number(site("threads", [group.name(), axis.letter()]), &candidates, default)?;
        group.axes[at].threads = answer;
        left /= answer;
    }
    Ok(())
}

/// The register tile of each spatial axis, and in how many rounds a block's threads go over it.
fn tiles(gpu: &Gpu, group: &mut Group, character: &Character, tape: &mut Tape<'_>) -> Result<(), Stop> {
    let threads: i64 = group.axes.iter().map(|axis| axis.threads).product();
    let registers = i64::from(gpu.registers_per_multiprocessor) / threads.max(WARP);
    let mut left = (registers - OTHER_REGISTERS).clamp(4, MAXIMAL_ACCUMULATORS);
    let mut ask = |group: &mut Group, at: usize, verb, most: i64, wanted: i64| -> Result<i64, Stop> {
        let axis = &group.axes[at];
        let candidates: Vec<i64> = match group.vector == Some(at) && verb == "tile" {
            true => [1, 2, 4].into_iter().filter(|tile| *tile <= most).collect(),
            false => (1..=8).filter(|count| *count <= most).collect(),
        };
        let default = candidates.iter().rposition(|count| *count <= wanted).unwrap_or(0);
        tape.choose_number(site(verb, [group.name(), axis.letter()]), &candidates, default)
    };
    for at in group.positions(false) {
        let (tile, rounds) = character.tiles[at];
        let axis = &group.axes[at];
        let wanted = if group.vector == Some(at) && !character.contracts { MAXIMAL_VECTOR } else { tile };
        let per_thread = (axis.extent + axis.threads - 1) / axis.threads;
        let tile = ask(group, at, "tile", left.min(per_thread), wanted)?;
        left /= tile;
        let per_tile = (per_thread + tile - 1) / tile;
        let rounds = ask(group, at, "rounds", left.min(per_tile), rounds)?;
        left /= rounds;
        let axis = &mut group.axes[at];
        axis.tile = tile;
        axis.block = axis.threads * rounds;
    }
    Ok(())
}

/// How much of each reduction axis a thread goes through before the threads of its block meet.
fn steps(group: &mut Group, character: &Character, tape: &mut Tape<'_>) -> Result<(), Stop> {
    let mut wanted = if character.contracts { DEFAULT_STEPS } else { i64::MAX };
    for at in group.positions(true).into_iter().rev() {
        let axis = &group.axes[at];
        let most = (axis.extent + axis.threads - 1) / axis.threads;
        let mut candidates: Vec<i64> =
            [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64].into_iter().filter(|c| *c < most).collect();
        candidates.push(most);
        let default = candidates.iter().rposition(|count| *count <= wanted).unwrap_or(0);
        let answer = tape.choose_number(site("steps", [group.name(), axis.letter()]), &candidates, default)?;
        let axis = &mut group.axes[at];
        axis.block = axis.threads * answer;
        wanted = (wanted / answer).max(1);
    }
    Ok(())
}

/// Cuts every axis of a group.
fn cut(group: &Group, at: usize, built: &mut Built) -> Result<(), Refusal> {
    for (position, axis) in group.axes.iter().enumerate() {
        let mut var = built.stages[group.stage].axes[axis.position];
        if group.fused == Some(position) {
            let next = built.stages[group.stage].axes[axis.position + 1];
            (built.nest, var) = take(&mut built.nest).fuse(var, next)?;
        }
        // threads of a reduction meet within warps first
        let warps: Vec<i64> = match axis.reduction && axis.threads > WARP {
            true => vec![axis.threads / WARP, WARP],
            false => vec![axis.threads],
        };
        let mut factors = vec![axis.rounds()];
        factors.extend(warps.iter().copied().filter(|threads| *threads > 1));
        factors.push(axis.tile);
        let (nest, vars) = take(&mut built.nest).tile(var, &factors)?;
        built.nest = nest;
        let [outer, round, threads @ .., tile] = vars.as_slice() else {
            return Err(Refusal::Other("an axis without its loops"));
        };
        let loops = ThreadLoops { outer: *outer, round: *round, threads: threads.to_vec(), tile: *tile };
        built.thread_loops[at].push(loops);
    }
    Ok(())
}

/// Puts the loops of a group in order, says what executes them, and moves accumulators into registers.
fn arrange(workload: &Workload, group: &Group, at: usize, in_grid: bool, built: &mut Built) -> Result<(), Refusal> {
    let loops = built.thread_loops[at].clone();
    let (spatial, reduced) = (group.positions(false), group.positions(true));
    let of = |positions: &[usize], level: &dyn Fn(&ThreadLoops) -> Vec<Var>| -> Vec<Var> {
        positions.iter().flat_map(|position| level(&loops[*position])).collect()
    };
    let outer = of(&spatial, &|l| vec![l.outer]);
    let steps = of(&reduced, &|l| vec![l.outer]);
    let (threads, lanes) = (of(&spatial, &|l| l.threads.clone()), of(&reduced, &|l| l.threads.clone()));
    let (inner_steps, ends) = (of(&reduced, &|l| vec![l.round]), of(&reduced, &|l| vec![l.tile]));
    let rounds = of(&spatial, &|l| vec![l.round]);
    let others: Vec<usize> = spatial.iter().copied().filter(|position| group.vector != Some(*position)).collect();
    let mut tile = of(&others, &|l| vec![l.tile]);
    tile.extend(group.vector.map(|position| loops[position].tile));

    let all = [&outer[..], &steps, &threads, &lanes, &inner_steps, &ends, &rounds, &tile].concat();
    let mut nest = take(&mut built.nest);
    if !all.is_empty() {
        nest = nest.reorder(&all)?;
    }
    let written_out =
        accumulators(group) * group.axes.iter().filter(|a| a.reduction).map(|a| a.rounds()).product::<i64>();
    let steps_kind = if written_out <= MAXIMAL_BODY { LoopKind::Unroll } else { LoopKind::Serial };
    let outer_kind = if in_grid { LoopKind::Block } else { LoopKind::Serial };
    let kinds = [
        (&outer, outer_kind),
        (&threads, LoopKind::Thread),
        (&lanes, LoopKind::Thread),
        (&inner_steps, steps_kind),
        (&ends, LoopKind::Unroll),
        (&rounds, LoopKind::Unroll),
        (&tile, LoopKind::Unroll),
    ];
    for (vars, kind) in kinds {
        nest = vars.iter().try_fold(nest, |nest, var| nest.set_kind(*var, kind))?;
    }
    if let Some(position) = group.vector.filter(|position| group.axes[*position].tile > 1) {
        nest = nest.set_kind(loops[position].tile, LoopKind::Vector)?;
    }
    // the loop inside of which the phases stand
    let place = match (outer.last(), all.first()) {
        (Some(innermost), _) => Some(*innermost),
        (None, Some(first)) => {
            let unit;
            (nest, unit) = nest.enclose(*first)?;
            nest = nest.set_kind(unit, outer_kind)?;
            Some(unit)
        }
        (None, None) => None,
    };
    let stage = &workload.stages[group.stage];
    if stage.is_reduction() {
        let place = place.ok_or(Refusal::Other("a reduction without loops"))?;
        let epilogue = group.epilogue.map(|e| &workload.stages[e]);
        nest = nest.accumulate(stage.output, place, &Reduction { blocks: None, lanes }, epilogue)?;
    }
    built.at[at] = place;
    built.nest = nest;
    Ok(())
}

/// Results that a thread keeps at once.
fn accumulators(group: &Group) -> i64 {
    group.axes.iter().filter(|axis| !axis.reduction).map(|axis| axis.tile * axis.rounds()).product()
}
