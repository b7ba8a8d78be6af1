//! Threads, rounds and register tiles of every axis, and the blocks that they make.

use super::arrange::{arrange, cut};
use super::limits::THREAD;
use super::mapping::DefaultMapping;
use super::matrix;
use crate::nest::{LoopKind, MAX_THREADS};
use crate::space::access::{Access, accesses};
use crate::space::fuse::fuse;
use crate::space::{Group, Rule, Step, Stop, Tape, View, name, site};
use crate::target::Gpu;
use crate::target::gpu::WARP;
use crate::workload::{Var, Workload};

pub(super) struct Tile;

/// Reduction steps of a block of operands in the untuned program.
const DEFAULT_STEPS: i64 = 16;

impl Rule<Gpu> for Tile {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn version(&self) -> u32 {
        2
    }

    fn decide(&self, view: &View<'_, Gpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let (workload, gpu, in_grid) = (&*view.workload, view.machine, view.rows.is_empty());
        let mut steps = Vec::new();
        for group in &view.groups {
            tape.defaults_only(group.defaults_only);
            let mut group = group.clone();
            if in_grid {
                let reads = accesses(&workload.stages[group.stage]);
                steps.extend(fuse(workload, &mut group, &reads, tape)?);
            }
            matrix::tile(workload, gpu, view.exact, &mut group, tape)?;
            if group.matrix.is_some() {
                matrix::warps(gpu, &mut group, tape)?;
            } else {
                let mapping = DefaultMapping::of(workload, gpu, &group, in_grid);
                vector(workload, &mut group, &mapping, tape)?;
                threads(&mut group, &mapping, tape)?;
                tiles(gpu, &mut group, &mapping, tape)?;
                self::steps(&mut group, &mapping, tape)?;
            }
            cut(&mut group, &mut steps);
            arrange(workload, &group, in_grid, &mut steps);
        }
        let rows = view.rows.iter().map(|row| row.over.clone()).collect();
        steps.extend(Step::mark(LoopKind::Block, rows));
        Ok(steps)
    }
}

/// Which spatial axis a thread's neighbours in memory lie along.
fn vector(workload: &Workload, group: &mut Group, mapping: &DefaultMapping, tape: &mut Tape<'_>) -> Result<(), Stop> {
    let spatial: Vec<usize> = group.positions(false).into_iter().filter(|at| group.axes[*at].extent > 1).collect();
    let mut candidates = vec![name("none")];
    candidates.extend(spatial.iter().map(|at| name(group.axes[*at].letter())));
    let stage = &workload.stages[group.stage];
    let reads: Vec<Access> = accesses(stage);
    // written and read next to each other, and nothing stands in the way of a wide load
    let last = stage.spatial.len().saturating_sub(1);
    let suits = |at: &usize| {
        let var = Var((group.axes[*at].position + usize::from(group.fused == Some(*at))) as u32);
        let wide = group.axes[*at].extent % THREAD.maximal_vector == 0;
        let reads_along = reads.iter().all(|a| {
            matches!(a.stride(workload, var), Some(0 | 1)) && !a.guarded && !(a.mentions(var) && a.slides(stage))
        });
        var.0 as usize == last && wide && (reads_along || mapping.contracts)
    };
    let default = spatial.iter().position(suits).map_or(0, |at| at + 1);
    let answer = tape.choose(site("vector", [group.name()]), candidates.clone(), default)?;
    group.vector = candidates.iter().position(|c| *c == answer).filter(|c| *c > 0).map(|c| spatial[c - 1]);
    Ok(())
}

/// How many threads go along each axis.
fn threads(group: &mut Group, mapping: &DefaultMapping, tape: &mut Tape<'_>) -> Result<(), Stop> {
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
        let default = candidates.iter().rposition(|count| *count <= mapping.threads[at]).unwrap_or(0);
        let answer = tape.choose_number(site("threads", [group.name(), axis.letter()]), &candidates, default)?;
        group.axes[at].threads = answer;
        left /= answer;
    }
    Ok(())
}

/// The register tile of each spatial axis, and in how many rounds a block's threads go over it.
fn tiles(gpu: &Gpu, group: &mut Group, mapping: &DefaultMapping, tape: &mut Tape<'_>) -> Result<(), Stop> {
    let threads: i64 = group.axes.iter().map(|axis| axis.threads).product();
    let registers = i64::from(gpu.registers_per_multiprocessor) / threads.max(WARP);
    let mut left = (registers - THREAD.other_registers).clamp(4, THREAD.maximal_accumulators);
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
        let (tile, rounds) = mapping.tiles[at];
        let axis = &group.axes[at];
        let wanted = if group.vector == Some(at) && !mapping.contracts { THREAD.maximal_vector } else { tile };
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
fn steps(group: &mut Group, mapping: &DefaultMapping, tape: &mut Tape<'_>) -> Result<(), Stop> {
    let mut wanted = if mapping.contracts { DEFAULT_STEPS } else { i64::MAX };
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
