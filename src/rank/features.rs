//! A finished program as numbers that a learned estimate of its speed starts from.
//!
//! Counts enter as logarithms, and again relative to the arithmetic that the workload asks for: programs of
//! one task differ by factors. To these come rough times in cycles, as the sum and as the maximum of what
//! instructions and levels of memory take on any processor of the last ten years. They only have to order
//! programs; what they get wrong is learned. Last come the bodies of the two hottest loops: what one
//! iteration executes, and the loops around it.

use super::gpu_features::{OWN_FEATURES, own_features};
use crate::analysis::{Body, Demand, LevelTraffic, Mix, Pieces, bodies};
use crate::nest::{Nest, Scope, Statistics, statistics};
use crate::target::{Kind, Target, Task};

/// Changes whenever the meaning of a feature does: an estimator of another version is refused.
pub const FEATURES_VERSION: &str = "3";

/// How many there are of a program for a CPU.
pub const FEATURES: usize = 137;

/// The same of programs for GPUs, which have these and others.
pub const GPU_FEATURES_VERSION: &str = "1";
pub const GPU_FEATURES: usize = FEATURES + OWN_FEATURES;

/// Entries of the first and second translation buffers of common processors.
const TRANSLATIONS: [u64; 2] = [64, 1536];
/// Bytes that each level beyond the first hands over in a cycle: L2 and L3 to one core, memory to all.
const BYTES_PER_CYCLE: [f64; 3] = [40.0, 12.0, 8.0];
/// Cycles, roughly: of a gather or scatter of a vector, of a slow operator, between two dependent
/// accumulations, for a loop's counter, a condition and a division, and to start threads.
const SCATTERED: f64 = 20.0;
const SLOW: f64 = 8.0;
const CHAINED: f64 = 4.0;
const ITERATION: f64 = 2.0;
const CONDITION: f64 = 2.0;
const DIVISION: f64 = 10.0;
const FORK: f64 = 1000.0;
/// Bodies of loops that are looked at one by one, and loops around each.
const HOTTEST: usize = 2;
const AROUND: usize = 5;
/// Vector registers: more live values than that do not fit.
const REGISTERS: f64 = 32.0;

/// How many features a program for such a machine has.
pub fn features_of(kind: Kind) -> usize {
    match kind {
        Kind::Cpu => FEATURES,
        Kind::Gpu => GPU_FEATURES,
    }
}

/// Features of a program: [`FEATURES`] on a CPU, [`GPU_FEATURES`] on a GPU.
pub fn features(task: &Task, nest: &Nest) -> Vec<f32> {
    let target = &task.target;
    let pieces = Pieces::new(nest);
    let (demand, mix, sizes) = (Demand::of(&task.workload), Mix::of_pieces(&pieces, target), statistics(nest));
    let levels = moved_by_level(&pieces.traffic(target));
    let flops = demand.flops as f64 + 1.0;

    let counts = counts(&mix);
    let moved: Vec<f64> = levels.iter().flatten().copied().collect();
    let mut features = vec![flops, demand.compulsory.total_bytes() as f64, f64::from(nest.error_growth)];
    features.extend(counts.iter().chain(&moved).chain(&size_of_each(&sizes)));
    features.iter_mut().for_each(|count| *count = magnitude(*count));

    let written_out = sizes.operations as f64;
    let relative = counts.iter().chain(&moved).chain([&written_out]);
    features.extend(relative.map(|count| ((count + 1.0) / flops).log2()));
    let vectors = magnitude(mix.vector_operations);
    let beside = [mix.loads.single, mix.loads.contiguous, mix.iterations, mix.chained];
    features.extend(beside.map(|count| magnitude(count) - vectors));
    let imbalance = if mix.even_share > 0.0 { mix.share / mix.even_share } else { 1.0 };
    features.extend([mix.lane_use, imbalance]);
    for cycles in cycles(&mix, &levels, f64::from(target.processors().max(1))) {
        features.extend([magnitude(cycles), ((cycles + 1.0) / flops).log2()]);
    }
    features.extend(TRANSLATIONS.map(|entries| magnitude(pieces.translations(target, entries) as f64)));
    let mut bodies = bodies(&pieces, target);
    bodies.sort_by(|a, b| b.cost().total_cmp(&a.cost()));
    let all: f64 = bodies.iter().map(Body::cost).sum();
    for number in 0..HOTTEST {
        features.extend(of_body(bodies.get(number).unwrap_or(&Body::default()), all));
    }
    features.extend(of_all(&bodies));
    let buffers = |scope: Scope| magnitude(nest.buffers.iter().filter(|buffer| buffer.scope == scope).count() as f64);
    features.extend([Scope::Packed, Scope::Workspace, Scope::BlockShared].map(buffers));
    let columns = task.workload.tensors.last().and_then(|tensor| tensor.shape.last()).copied().unwrap_or(1);
    let whole = f64::from(u8::from(columns % target.lanes().max(1) == 0));
    features.extend([f64::from(target.processors()), magnitude(columns as f64), whole]);
    features.push(task.workload.tensors.len() as f64);
    if let Target::Gpu(gpu) = target {
        features.extend(own_features(&pieces, gpu, flops));
    }
    features.into_iter().map(|feature| feature as f32).collect()
}

pub(super) fn magnitude(count: f64) -> f64 {
    (1.0 + count.max(0.0)).log2()
}

fn counts(mix: &Mix) -> [f64; 16] {
    [
        mix.vector_operations,
        mix.scalar_operations,
        mix.slow_operations,
        mix.loads.single,
        mix.loads.contiguous,
        mix.loads.strided,
        mix.loads.scattered,
        mix.stores.single,
        mix.stores.contiguous,
        mix.stores.scattered,
        mix.iterations,
        mix.conditions,
        mix.divisions,
        mix.chained,
        mix.forks,
        mix.share,
    ]
}

fn size_of_each(sizes: &Statistics) -> [f64; 5] {
    [sizes.operations, sizes.packed_bytes, sizes.shared_bytes, sizes.private_bytes, sizes.register_bytes]
        .map(|size| size as f64)
}

/// Bytes read and written of registers' supplier, L2, L3 and memory. A target without some level has what
/// lies behind it in its place.
fn moved_by_level(traffic: &[LevelTraffic]) -> [[f64; 2]; 4] {
    let last = traffic.len().saturating_sub(1);
    std::array::from_fn(|number| {
        traffic
            .get(number.min(last))
            .map_or([0.0; 2], |level| [level.moved.read_bytes as f64, level.moved.written_bytes as f64])
    })
}

/// Cycles of the busiest core, where everything overlaps and where nothing does.
fn cycles(mix: &Mix, levels: &[[f64; 2]; 4], cores: f64) -> [f64; 2] {
    let (loads, stores) = (&mix.loads, &mix.stores);
    let arithmetic = mix.vector_operations + mix.scalar_operations / 2.0 + SLOW * mix.slow_operations;
    let loading = loads.single + loads.contiguous + 2.0 * loads.strided + SCATTERED * loads.scattered;
    let storing = stores.single + stores.contiguous + SCATTERED * stores.scattered;
    let executing = arithmetic.max(loading / 2.0).max(storing).max(CHAINED * mix.chained);
    let at = |level: usize, sharers: f64| (levels[level][0] + levels[level][1]) / sharers / BYTES_PER_CYCLE[level - 1];
    let memory = [at(1, cores), at(2, cores), at(3, 1.0)];
    let control = ITERATION * mix.iterations + CONDITION * mix.conditions + DIVISION * mix.divisions + FORK * mix.forks;
    [memory.iter().fold(executing, |most, time| most.max(*time)), executing + memory.iter().sum::<f64>()]
        .map(|cycles| cycles + control)
}

/// A body of a loop; `all` is the cost of all bodies together.
fn of_body(body: &Body, all: f64) -> impl Iterator<Item = f64> {
    let live = body.sums + body.vectors.min(8.0) + body.singles.min(2.0);
    let intensity = (body.operations + 0.5).log2() - (body.singles + body.vectors + 0.5).log2();
    let accesses = body.runs * (body.vectors + body.stores);
    let counts = [
        body.operations,
        body.sums,
        body.singles,
        body.vectors,
        body.scattered,
        body.stores,
        body.split,
        body.aliased[0],
        body.aliased[1],
        body.slow,
        (live - REGISTERS).max(0.0),
        body.cost(),
        body.runs,
    ];
    let shares = [
        body.width,
        (live / REGISTERS).min(4.0),
        intensity,
        body.cost() / all.max(1.0),
        body.split * body.runs / (1.0 + accesses),
    ];
    let around = |of: fn(&(f64, f64)) -> f64| {
        let known: Vec<f64> = body.around.iter().take(AROUND).map(of).collect();
        (0..AROUND).map(move |at| magnitude(known.get(at).copied().unwrap_or(0.0)))
    };
    let loops = around(|l| l.0).chain(around(|l| l.1));
    counts.map(magnitude).into_iter().chain(shares).chain(loops)
}

/// All bodies together: what crosses cache lines, what is executed, and cycles with what waits for one
/// another.
fn of_all(bodies: &[Body]) -> [f64; 5] {
    let sum = |of: &dyn Fn(&Body) -> f64| bodies.iter().map(|body| body.runs * of(body)).sum::<f64>();
    let split = sum(&|body| body.split);
    let waiting = |body: &Body| {
        let chain = if body.sums > 0.0 { CHAINED * body.operations / body.sums.max(1.0) } else { 0.0 };
        let loads = (body.singles + body.vectors + body.split) / 2.0;
        body.operations.max(loads).max(body.stores + body.split).max(chain) + ITERATION
    };
    [
        magnitude(split),
        split / (1.0 + sum(&|body| body.vectors + body.stores)),
        magnitude(sum(&|body| body.operations)),
        bodies.len() as f64,
        magnitude(sum(&waiting)),
    ]
}
