//! What the launches of a program for a GPU ask of it, estimated from the loops alone: [`super::Mix`] for
//! GPUs.
//!
//! Instructions are those of whole warps, of one block. What does not change in the innermost loops counts
//! once for all of their iterations, and equal values of unrolled loops count once. What an access costs is
//! found out from the addresses of the lanes of a block's first warp: in sectors of 32 bytes for global
//! memory, in turns of the 32 banks for shared memory.

use std::collections::BTreeSet;

use super::mix::is_slow;
use super::pieces::Pieces;
use crate::nest::{Loop, LoopKind, Nest, Scope, Stmt};
use crate::target::Gpu;
use crate::target::gpu::{REGISTERS_PER_THREAD, WARP};
use crate::workload::{Binary, Condition, Expr, Index, TensorId, Var, flatten};

/// Bytes that a level of memory beyond shared memory hands over at least.
const SECTOR_BYTES: i64 = 32;
/// Banks of shared memory, of a word each.
const BANKS: i64 = 32;
const WORD_BYTES: i64 = 4;
/// Bytes that a lane accesses at once, at most.
const WIDEST_BYTES: i64 = 16;
/// Registers that a thread wants beside its buffers, and shared memory that a block takes beside its own, in
/// bytes.
const OTHER_REGISTERS: f64 = 32.0;
const OTHER_SHARED_BYTES: f64 = 1024.0;

/// Accesses of one kind of memory by a block.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(crate) struct Requests {
    /// Instructions of a warp.
    pub count: f64,
    /// Sectors of global memory that they touch, or turns of the banks of shared memory that they take.
    pub pieces: f64,
}

/// One grid.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Launch {
    pub blocks: f64,
    /// Of a block.
    pub threads: f64,
    /// Registers of 32 bits that the buffers of a thread take.
    pub registers: f64,
    /// Shared memory that the buffers of a block take.
    pub shared_bytes: f64,
    /// How often the threads of a block may have to wait for one another.
    pub phases: f64,
    /// Instructions of a block's warps, but for those that access memory: all of them, and those that take
    /// long.
    pub operations: f64,
    pub slow_operations: f64,
    /// Multiply-adds of a block on tensor cores.
    pub products: f64,
    /// Loads and stores.
    pub global: [Requests; 2],
    pub shared: [Requests; 2],
}

/// How a GPU takes the blocks of a launch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Occupancy {
    /// Warps of a multiprocessor at the same time, and the share that they are of the most.
    pub warps: f64,
    pub share: f64,
    /// How often the GPU is filled with blocks, and how much of it has something to do, on average.
    pub waves: f64,
    pub even: f64,
}

impl Launch {
    pub fn warps(&self) -> f64 {
        (self.threads / WARP as f64).ceil().max(1.0)
    }

    pub fn occupancy(&self, gpu: &Gpu) -> Occupancy {
        let warps = self.warps();
        let most = (f64::from(gpu.threads_per_multiprocessor) / WARP as f64).floor();
        let registers = (self.registers + OTHER_REGISTERS).min(f64::from(REGISTERS_PER_THREAD)) * WARP as f64 * warps;
        let shared = self.shared_bytes + OTHER_SHARED_BYTES;
        let limits = [
            most / warps,
            f64::from(gpu.registers_per_multiprocessor) / registers,
            f64::from(gpu.shared_bytes_per_multiprocessor) / shared,
            f64::from(gpu.blocks_per_multiprocessor),
        ];
        let resident = limits.into_iter().fold(f64::INFINITY, f64::min).floor().max(1.0);
        let places = resident * f64::from(gpu.multiprocessors);
        let waves = (self.blocks / places).ceil().max(1.0);
        let busy = resident.min((self.blocks / f64::from(gpu.multiprocessors)).ceil()) * warps;
        Occupancy { warps: busy, share: busy / most.max(1.0), waves, even: self.blocks / (waves * places) }
    }
}

/// The launches of a program for a GPU, in their order.
pub(crate) fn launches<'a>(pieces: &Pieces<'a>) -> Vec<Launch> {
    let body: &'a [Stmt] = &pieces.nest.body;
    body.iter().map(|statement| launch(pieces, statement)).collect()
}

fn launch<'a>(pieces: &Pieces<'a>, statement: &'a Stmt) -> Launch {
    let launch = Launch { blocks: 1.0, threads: 1.0, ..Launch::default() };
    let mut counter = Counter { pieces, launch, used: BTreeSet::new() };
    counter.block(std::slice::from_ref(statement), &Place { runs: 1.0, ..Place::default() });
    let Counter { mut launch, used, .. } = counter;
    for buffer in used.iter().filter_map(|id| pieces.nest.buffers.get(id.0 as usize)) {
        match buffer.scope {
            // the threads of a block have a part each
            Scope::Register => launch.registers += buffer.bytes() as f64 / WORD_BYTES as f64 / launch.threads,
            Scope::BlockShared => launch.shared_bytes += buffer.bytes() as f64,
            Scope::Argument(_) | Scope::Packed | Scope::Workspace => {}
        }
    }
    launch
}

/// A loop inside of a phase.
#[derive(Clone, Copy, Debug)]
struct Inner {
    var: Var,
    trips: f64,
    is_unrolled: bool,
}

/// The loops around a statement.
#[derive(Clone, Default)]
struct Place {
    /// How often a block comes here, or to the phase that this is in.
    runs: f64,
    /// Over threads or warps, the fastest last.
    side_by_side: Vec<(Var, i64)>,
    is_of_warps: bool,
    inner: Vec<Inner>,
    vector: Option<(Var, i64)>,
    /// Of the matrices of a warp.
    sides: Vec<(Var, i64)>,
}

impl Place {
    fn is_in_phase(&self) -> bool {
        !self.side_by_side.is_empty()
    }

    fn warps(&self) -> f64 {
        let count: i64 = self.side_by_side.iter().map(|(_, extent)| extent).product();
        if self.is_of_warps { count as f64 } else { (count as f64 / WARP as f64).ceil() }
    }

    /// How often the warps of a block together execute something that depends on these variables.
    fn times(&self, depends: &dyn Fn(Var) -> bool) -> f64 {
        let mut times = self.runs * self.warps();
        let mut moves = false;
        for Inner { var, trips, is_unrolled } in self.inner.iter().rev() {
            moves |= depends(*var);
            if depends(*var) || (moves && !is_unrolled) {
                times *= trips;
            }
        }
        times
    }

    /// Lanes of the first warp, each with the values of the variables of its thread.
    fn lanes(&self) -> Vec<Vec<(Var, i64)>> {
        if self.is_of_warps {
            return vec![Vec::new()];
        }
        let threads: i64 = self.side_by_side.iter().map(|(_, extent)| extent).product();
        let of_lane = |lane: i64| {
            let mut rest = lane;
            let values = self.side_by_side.iter().rev().map(|(var, extent)| {
                let value = rest % extent.max(&1);
                rest /= extent.max(&1);
                (*var, value)
            });
            values.collect()
        };
        (0..threads.min(WARP)).map(of_lane).collect()
    }
}

struct Counter<'p, 'a> {
    pieces: &'p Pieces<'a>,
    launch: Launch,
    used: BTreeSet<TensorId>,
}

impl<'a> Counter<'_, 'a> {
    fn block(&mut self, statements: &'a [Stmt], place: &Place) {
        for statement in statements {
            match statement {
                Stmt::Loop(l) => self.enter(l, place),
                Stmt::If { conditions, body } => {
                    self.conditions(conditions, place);
                    let runs = place.runs * self.pieces.odds(conditions);
                    self.block(body, &Place { runs, ..place.clone() });
                }
                Stmt::Store { buffer, indices, value } => {
                    self.value(value, place);
                    self.access(*buffer, indices, true, place);
                }
                Stmt::Accumulate { buffer, indices, value, .. } => self.accumulate(*buffer, indices, value, place),
            }
        }
    }

    fn enter(&mut self, l: &'a Loop, place: &Place) {
        let trips = self.pieces.runs(l);
        let mut within = place.clone();
        match l.kind {
            LoopKind::Block => self.launch.blocks *= trips,
            LoopKind::Thread | LoopKind::Warp => {
                if !place.is_in_phase() {
                    self.launch.phases += place.runs;
                }
                within.is_of_warps = l.kind == LoopKind::Warp;
                within.side_by_side.push((l.var, l.extent()));
                let count: i64 = within.side_by_side.iter().map(|(_, extent)| extent).product();
                let threads = if within.is_of_warps { count * WARP } else { count };
                self.launch.threads = self.launch.threads.max(threads as f64);
            }
            LoopKind::Vector => within.vector = Some((l.var, l.extent())),
            LoopKind::Matrix => within.sides.push((l.var, l.extent())),
            LoopKind::Serial | LoopKind::Parallel | LoopKind::Unroll | LoopKind::Dot if place.is_in_phase() => {
                let is_unrolled = matches!(l.kind, LoopKind::Unroll | LoopKind::Dot);
                within.inner.push(Inner { var: l.var, trips, is_unrolled });
            }
            LoopKind::Serial | LoopKind::Parallel | LoopKind::Unroll | LoopKind::Dot => within.runs *= trips,
        }
        self.block(&l.body, &within);
    }

    fn accumulate(&mut self, buffer: TensorId, indices: &'a [Index], value: &'a Expr, place: &Place) {
        let mentions = |var: Var| indices.iter().any(|index| index.mentions(var)) || value.mentions(var);
        if place.sides.len() > 2 {
            let each: i64 = place.sides.iter().map(|(_, extent)| extent).product();
            self.launch.products += place.times(&mentions) * each as f64;
            return self.loads(value, place);
        }
        // the product in front of the sum is of the same instruction
        match value {
            Expr::Binary(Binary::Multiply, x, y) => {
                self.value(x, place);
                self.value(y, place);
            }
            other => self.value(other, place),
        }
        self.operation(&mentions, false, place);
        self.access(buffer, indices, false, place);
        self.access(buffer, indices, true, place);
    }

    /// What an expression loads, and nothing else of it.
    fn loads(&mut self, value: &'a Expr, place: &Place) {
        if let Expr::Load { tensor, indices } = value {
            self.access(*tensor, indices, false, place);
        }
        value.children().for_each(|child| self.loads(child, place));
    }

    fn value(&mut self, value: &'a Expr, place: &Place) {
        let depends = |var: Var| value.mentions(var);
        match value {
            Expr::Float(_) | Expr::Index(_) => {}
            Expr::Load { tensor, indices } => return self.access(*tensor, indices, false, place),
            Expr::Guard { conditions, .. } => self.conditions(conditions, place),
            Expr::Unary(..) | Expr::Binary(..) | Expr::Cast(..) | Expr::Bits(..) | Expr::Select { .. } => {
                self.operation(&depends, is_slow(value), place);
            }
        }
        value.children().for_each(|child| self.value(child, place));
    }

    fn conditions(&mut self, conditions: &[Condition], place: &Place) {
        for condition in conditions {
            self.operation(&|var| condition.index.mentions(var), false, place);
        }
    }

    /// An operator, once for each lane of what it depends on.
    fn operation(&mut self, depends: &dyn Fn(Var) -> bool, is_slow: bool, place: &Place) {
        let lanes = place.vector.filter(|(var, _)| depends(*var)).map_or(1, |(_, extent)| extent);
        let of_warp: i64 = place.sides.iter().filter(|(var, _)| depends(*var)).map(|(_, extent)| extent).product();
        let times = place.times(depends) * lanes as f64 * (of_warp as f64 / WARP as f64).max(1.0);
        self.launch.operations += times;
        self.launch.slow_operations += if is_slow { times } else { 0.0 };
    }

    fn access(&mut self, id: TensorId, indices: &'a [Index], writes: bool, place: &Place) {
        let nest: &Nest = self.pieces.nest;
        let Some(buffer) = nest.buffers.get(id.0 as usize) else { return };
        self.used.insert(id);
        if buffer.scope == Scope::Register {
            return;
        }
        let flat = flatten(indices, &buffer.shape);
        let is_near = buffer.scope == Scope::BlockShared;
        let bytes = buffer.dtype.bytes() as i64;
        let times = place.times(&|var| flat.mentions(var));
        let [count, pieces] = match place.sides.is_empty() {
            true => of_lanes(&flat, bytes, is_near, place),
            false => of_matrix(&flat, bytes, is_near, place),
        };
        let requests = match is_near {
            true => &mut self.launch.shared[usize::from(writes)],
            false => &mut self.launch.global[usize::from(writes)],
        };
        requests.count += times * count;
        requests.pieces += times * pieces;
    }
}

/// Instructions, and sectors or turns of the banks, of what the lanes of a warp access.
fn of_lanes(flat: &Index, bytes: i64, is_near: bool, place: &Place) -> [f64; 2] {
    let (mut count, mut width) = (1, 1);
    if let Some((var, extent)) = place.vector.filter(|(var, _)| flat.mentions(*var)) {
        match flat.step(var) {
            Some(1) => {
                width = extent.min(WIDEST_BYTES / bytes).max(1);
                count = (extent + width - 1) / width;
            }
            _ => count = extent,
        }
    }
    let lanes = place.lanes();
    let address = |values: &Vec<(Var, i64)>| {
        let value = |var: Var| values.iter().find(|(known, _)| *known == var).map_or(0, |(_, value)| *value);
        flat.at(&value)?.checked_mul(bytes)
    };
    let addresses: Option<Vec<i64>> = lanes.iter().map(address).collect();
    let each = match addresses {
        Some(addresses) if is_near => bank_turns(&addresses, width * bytes),
        Some(addresses) => sectors(&addresses, width * bytes),
        // gathered: somewhere else each
        None => lanes.len(),
    };
    [count as f64, (count as usize * each) as f64]
}

/// The same of the part of a matrix that a warp holds.
fn of_matrix(flat: &Index, bytes: i64, is_near: bool, place: &Place) -> [f64; 2] {
    let elements: i64 = place.sides.iter().filter(|(var, _)| flat.mentions(*var)).map(|(_, extent)| extent).product();
    let total = (elements * bytes) as f64;
    let piece = if is_near { BANKS * WORD_BYTES } else { SECTOR_BYTES };
    [(total / (WARP * WIDEST_BYTES) as f64).ceil(), (total / piece as f64).ceil()]
}

/// Sectors that lanes touch, of so many bytes from each address on.
fn sectors(addresses: &[i64], width: i64) -> usize {
    let touched = addresses
        .iter()
        .flat_map(|address| address.div_euclid(SECTOR_BYTES)..=(address + width - 1).div_euclid(SECTOR_BYTES));
    touched.collect::<BTreeSet<i64>>().len()
}

/// Turns that the banks take: of the different words that lanes touch, the most that lie in one bank.
fn bank_turns(addresses: &[i64], width: i64) -> usize {
    let words: BTreeSet<i64> = addresses
        .iter()
        .flat_map(|address| address.div_euclid(WORD_BYTES)..=(address + width - 1).div_euclid(WORD_BYTES))
        .collect();
    let mut turns = [0; BANKS as usize];
    for word in words {
        turns[word.rem_euclid(BANKS) as usize] += 1;
    }
    turns.into_iter().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{Launch, Requests, bank_turns, launches, sectors};
    use crate::analysis::Pieces;
    use crate::nest::{LoopKind, Nest};
    use crate::propose::{History, Proposer, Random};
    use crate::space::{Next, Space};
    use crate::target::{Gpu, Target, Task};
    use crate::workload::Workload;

    fn a100() -> Gpu {
        Gpu::from_toml(include_str!("../../targets/gpus/sm_80.toml")).unwrap()
    }

    #[test]
    fn lanes_share_sectors_and_fight_for_banks() {
        let lanes = |step: i64| (0..32).map(|lane| lane * step).collect::<Vec<i64>>();
        assert_eq!([0, 4, 8, 128].map(|step| sectors(&lanes(step), 4)), [1, 4, 8, 32]);
        assert_eq!(sectors(&lanes(16), 16), 16);
        // nobody waits for a word that all want, everybody for words of one bank
        assert_eq!([0, 4, 8, 128, 132].map(|step| bank_turns(&lanes(step), 4)), [1, 1, 2, 32, 1]);
        assert_eq!(bank_turns(&lanes(16), 16), 4);
    }

    /// 64 rows of 256, a block for each row and a thread for each column: a copy turned around, or not.
    fn copy(turned: bool) -> Nest {
        let text =
            if turned { "input t0 256 64\nout t1 64 256 t0 b a\n" } else { "input t0 64 256\nout t1 64 256 t0 a b\n" };
        let workload: Workload = text.parse().unwrap();
        let (nest, stages) = Nest::naive_with_vars(&workload);
        let [row, column] = stages[0].axes[..] else { panic!("two axes") };
        nest.set_kind(row, LoopKind::Block).unwrap().set_kind(column, LoopKind::Thread).unwrap()
    }

    #[test]
    fn a_copy_is_counted_by_warps() {
        let counted = |nest: &Nest| {
            let [launch] = &launches(&Pieces::new(nest))[..] else { panic!("one launch") };
            launch.clone()
        };
        let straight = counted(&copy(false));
        let warps = Requests { count: 8.0, pieces: 32.0 };
        let expected = Launch { blocks: 64.0, threads: 256.0, phases: 1.0, global: [warps; 2], ..Launch::default() };
        assert_eq!(straight, expected);
        let turned = counted(&copy(true));
        assert_eq!(turned.global, [Requests { count: 8.0, pieces: 256.0 }, warps]);
        // all blocks fit at once, and leave 44 of 108 multiprocessors without work
        let occupancy = straight.occupancy(&a100());
        assert_eq!((occupancy.warps, occupancy.waves), (8.0, 1.0));
        assert_eq!(occupancy.even, 64.0 / (8.0 * 108.0));
        let crowded = Launch { shared_bytes: 100_000.0, blocks: 109.0, ..straight };
        assert_eq!(crowded.occupancy(&a100()).waves, 2.0);
    }

    #[test]
    fn no_program_does_less_than_its_workload_asks_for() {
        let space = Space::standard();
        let text = "input t0 96 80\nconst t1 80 64\nout t2 96 64 sum 80 mul t0 a c t1 c b\n";
        let task = Task { workload: text.parse().unwrap(), target: Target::Gpu(a100()) };
        let (mut on_tensor_cores, mut shared) = (0, 0);
        for candidate in Random::new(&space, 1).propose(&task, &History::default(), 60).unwrap().candidates {
            let Ok(Next::Done(nest)) = space.next(&task, &candidate.trace) else { panic!("{}", candidate.trace) };
            let launches = launches(&Pieces::new(&nest));
            let total = |of: fn(&Launch) -> f64| launches.iter().map(|l| l.blocks * of(l)).sum::<f64>();
            let products = total(|l| l.products);
            let multiplied = products + 32.0 * total(|l| l.operations);
            assert!(multiplied > 0.99 * (96 * 80 * 64) as f64, "{multiplied}: {}", candidate.trace);
            let written = total(|l| l.global[1].pieces);
            assert!(written >= (96 * 64 * 4 / 32) as f64, "{written}: {}", candidate.trace);
            assert!(launches.iter().all(|l| l.phases >= 1.0 && l.occupancy(&a100()).even <= 1.0));
            on_tensor_cores += usize::from(products > 0.0);
            shared += usize::from(total(|l| l.shared[0].count) > 0.0);
        }
        assert!(on_tensor_cores > 0 && shared > 0, "{on_tensor_cores} {shared}");
    }
}
