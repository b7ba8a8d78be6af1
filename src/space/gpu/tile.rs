//! Threads, rounds and register tiles of every axis, and the blocks that they make.

use std::mem::take;

use super::arrange::{arrange, cut};
use super::character::Character;
use super::matrix;
use crate::nest::rewrite::Refusal;
use crate::nest::{LoopKind, MAX_THREADS};
use crate::space::fuse::fuse;
use crate::space::plan::{Access, accesses};
use crate::space::{Built, Group, Plan, Rule, Stop, Tape, name, site};
use crate::target::gpu::WARP;
use crate::target::{Gpu, TaskOn};
use crate::workload::{Var, Workload};

pub(super) struct Tile;

/// Accumulators of a thread, at most.
pub(super) const MAXIMAL_ACCUMULATORS: i64 = 128;
/// Registers that a thread wants beside its accumulators.
pub(super) const OTHER_REGISTERS: i64 = 32;
/// Elements of the widest load.
pub(super) const MAXIMAL_VECTOR: i64 = 4;
/// Reduction steps of a block of operands in the untuned program.
const DEFAULT_STEPS: i64 = 16;

impl Rule<Gpu> for Tile {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn version(&self) -> u32 {
        2
    }

    fn decide(&self, task: &TaskOn<'_, Gpu>, plan: &mut Plan, tape: &mut Tape<'_>) -> Result<(), Stop> {
        let Plan { workload, rows, groups, exact, .. } = plan;
        for group in groups {
            tape.settle(group.settled);
            if rows.is_empty() {
                fuse(workload, group, tape)?;
            }
            matrix::sides(workload, task.machine, *exact, group, tape)?;
            if group.matrix.is_some() {
                matrix::warps(task.machine, group, tape)?;
                continue;
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
            matches!(a.stride(workload, var), Some(0 | 1)) && !a.guarded && !(a.mentions(var) && a.slides(stage))
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
        let rounds = ask(group, at, "virtual", left.min(per_tile), rounds)?;
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
