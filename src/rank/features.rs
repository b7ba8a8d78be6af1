//! A finished program as numbers that a learned estimate of its speed starts from.
//!
//! Counts enter as logarithms, and again relative to the arithmetic that the workload asks for: programs of
//! one task differ by factors. To these come rough times in cycles, as the sum and as the maximum of what
//! instructions and levels of memory take on any processor of the last ten years. They only have to order
//! programs; what they get wrong is learned. Last come the bodies of the two hottest loops: what one
//! iteration executes, and the loops around it.

use super::gpu_features::{OWN_FEATURES, add_own_features};
use super::table::{Feature, Named, Table, magnitude};
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
/// The bodies of loops that have features of their own, and the loops around each, innermost first.
const HOTTEST: [&str; 2] = ["hottest body", "second hottest body"];
const AROUND: usize = 5;
const LOOPS_ITERATIONS: [&str; AROUND] = [
    "iterations of loop 1",
    "iterations of loop 2",
    "iterations of loop 3",
    "iterations of loop 4",
    "iterations of loop 5",
];
const LOOPS_BYTES: [&str; AROUND] =
    ["bytes of loop 1", "bytes of loop 2", "bytes of loop 3", "bytes of loop 4", "bytes of loop 5"];
/// Registers that a GPU's thread has for what a CPU keeps in vectors.
const GPU_REGISTERS: f64 = 32.0;

/// How many features a program for such a machine has.
pub fn features_of(kind: Kind) -> usize {
    match kind {
        Kind::Cpu => FEATURES,
        Kind::Gpu => GPU_FEATURES,
    }
}

/// Features of a program: [`FEATURES`] on a CPU, [`GPU_FEATURES`] on a GPU. Where extents are known only at
/// run time, those at [`Workload::typical_point`].
///
/// [`Workload::typical_point`]: crate::workload::Workload::typical_point
pub fn features(task: &Task, nest: &Nest) -> Vec<f32> {
    named_features(task, nest).into_iter().map(|feature| feature.value as f32).collect()
}

/// The same with their names.
pub fn named_features(task: &Task, nest: &Nest) -> Vec<Feature> {
    if !task.workload.is_fixed() {
        let values = task.workload.typical_point();
        let fixed = Task { workload: task.workload.at(&values), target: task.target.clone() };
        return named_features(&fixed, &nest.at(&values));
    }
    let target = &task.target;
    let pieces = Pieces::new(nest);
    let (demand, mix, sizes) = (Demand::of(&task.workload), Mix::of_pieces(&pieces, target), statistics(nest));
    let levels = moved_by_level(&pieces.traffic(target));
    let flops = demand.flops as f64 + 1.0;
    let columns = task.workload.tensors.last().and_then(|tensor| tensor.shape.last()).copied().unwrap_or(1);

    let mut table = Table::default();
    table.add_magnitudes(
        "workload",
        [
            ("flops", flops),
            ("compulsory bytes", demand.compulsory.total_bytes() as f64),
            ("error growth", f64::from(nest.error_growth)),
        ],
    );
    table.add_magnitudes("count", counts(&mix));
    table.add_magnitudes("bytes", bytes(&levels));
    table.add_magnitudes("size", size_of_each(&sizes));
    table.add_per_flop("count per flop", counts(&mix), flops);
    table.add_per_flop("bytes per flop", bytes(&levels), flops);
    table.add_per_flop("size per flop", [("operations", sizes.operations as f64)], flops);
    let vectors = magnitude(mix.vector_operations);
    let beside = [
        ("single loads", mix.loads.single),
        ("contiguous loads", mix.loads.contiguous),
        ("iterations", mix.iterations),
        ("chained", mix.chained),
    ];
    table.add("per vector operation", beside.map(|(name, count)| (name, magnitude(count) - vectors)));
    let imbalance = if mix.even_share > 0.0 { mix.share / mix.even_share } else { 1.0 };
    table.add("use", [("lanes", mix.lane_use), ("imbalance", imbalance)]);
    let cycles = cycles(&mix, &levels, f64::from(target.processors().max(1)));
    for (group, cycles) in ["cycles if all overlaps", "cycles if nothing overlaps"].into_iter().zip(cycles) {
        table.add_magnitudes(group, [("in all", cycles)]);
        table.add_per_flop(group, [("per flop", cycles)], flops);
    }
    let misses = |entries: u64| pieces.translations(target, entries) as f64;
    let [first, second] = TRANSLATIONS.map(misses);
    table.add_magnitudes("translation misses", [("first level", first), ("second level", second)]);

    let mut bodies = bodies(&pieces, target);
    bodies.sort_by(|a, b| b.cost().total_cmp(&a.cost()));
    let all: f64 = bodies.iter().map(Body::cost).sum();
    for (number, group) in HOTTEST.into_iter().enumerate() {
        add_body(&mut table, group, bodies.get(number).unwrap_or(&Body::default()), all, registers(target));
    }
    table.add("all bodies", of_all(&bodies));
    let buffers = |scope: Scope| nest.buffers.iter().filter(|buffer| buffer.scope == scope).count() as f64;
    table.add_magnitudes(
        "buffers",
        [
            ("packed", buffers(Scope::Packed)),
            ("workspace", buffers(Scope::Workspace)),
            ("block-shared", buffers(Scope::BlockShared)),
        ],
    );
    table.add(
        "task",
        [
            ("processors", f64::from(target.processors())),
            ("columns", magnitude(columns as f64)),
            ("whole vectors", f64::from(u8::from(columns % target.lanes().max(1) == 0))),
            ("tensors", task.workload.tensors.len() as f64),
        ],
    );
    if let Target::Gpu(gpu) = target {
        add_own_features(&mut table, &pieces, gpu, flops);
    }
    table.features()
}

fn counts(mix: &Mix) -> [Named; 16] {
    [
        ("vector operations", mix.vector_operations),
        ("scalar operations", mix.scalar_operations),
        ("slow operations", mix.slow_operations),
        ("single loads", mix.loads.single),
        ("contiguous loads", mix.loads.contiguous),
        ("strided loads", mix.loads.strided),
        ("scattered loads", mix.loads.scattered),
        ("single stores", mix.stores.single),
        ("contiguous stores", mix.stores.contiguous),
        ("scattered stores", mix.stores.scattered),
        ("iterations", mix.iterations),
        ("conditions", mix.conditions),
        ("divisions", mix.divisions),
        ("chained", mix.chained),
        ("forks", mix.forks),
        ("busiest share", mix.share),
    ]
}

fn bytes(levels: &[[f64; 2]; 4]) -> [Named; 8] {
    let [registers, second, third, memory] = levels;
    [
        ("read from L1", registers[0]),
        ("written to L1", registers[1]),
        ("read from L2", second[0]),
        ("written to L2", second[1]),
        ("read from L3", third[0]),
        ("written to L3", third[1]),
        ("read from memory", memory[0]),
        ("written to memory", memory[1]),
    ]
}

fn size_of_each(sizes: &Statistics) -> [Named; 5] {
    [
        ("operations", sizes.operations as f64),
        ("packed bytes", sizes.packed_bytes as f64),
        ("shared bytes", sizes.shared_bytes as f64),
        ("private bytes", sizes.private_bytes as f64),
        ("register bytes", sizes.register_bytes as f64),
    ]
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

/// Vector registers: more live values than that do not fit.
fn registers(target: &Target) -> f64 {
    match target {
        Target::Cpu(cpu) => f64::from(cpu.vector_registers.max(1)),
        Target::Gpu(_) => GPU_REGISTERS,
    }
}

/// Adds a body of a loop; `all` is the cost of all bodies in sum.
fn add_body(table: &mut Table, group: &'static str, body: &Body, all: f64, registers: f64) {
    let live = body.sums + body.vectors.min(8.0) + body.singles.min(2.0);
    let intensity = (body.operations + 0.5).log2() - (body.singles + body.vectors + 0.5).log2();
    let accesses = body.runs * (body.vectors + body.stores);
    let counts = [
        ("operations", body.operations),
        ("sums", body.sums),
        ("single loads", body.singles),
        ("vector loads", body.vectors),
        ("scattered", body.scattered),
        ("stores", body.stores),
        ("split by cache lines", body.split),
        ("rows that alias in L1", body.aliased[0]),
        ("rows that alias in an eighth of L1", body.aliased[1]),
        ("slow operations", body.slow),
        ("spilled values", (live - registers).max(0.0)),
        ("cost", body.cost()),
        ("runs", body.runs),
    ];
    let shares = [
        ("width", body.width),
        ("registers used", (live / registers).min(4.0)),
        ("intensity", intensity),
        ("share of the cost", body.cost() / all.max(1.0)),
        ("share of split accesses", body.split * body.runs / (1.0 + accesses)),
    ];
    let around = |at: usize| body.around.get(at).copied().unwrap_or((0.0, 0.0));
    let around: [(f64, f64); AROUND] = std::array::from_fn(around);
    table.add_magnitudes(group, counts);
    table.add(group, shares);
    table.add_magnitudes(group, LOOPS_ITERATIONS.into_iter().zip(around.map(|(iterations, _)| iterations)));
    table.add_magnitudes(group, LOOPS_BYTES.into_iter().zip(around.map(|(_, bytes)| bytes)));
}

/// All bodies in sum: accesses that cross cache lines, operations, and cycles with the waits of dependent
/// operations.
fn of_all(bodies: &[Body]) -> [Named; 5] {
    let sum = |of: &dyn Fn(&Body) -> f64| bodies.iter().map(|body| body.runs * of(body)).sum::<f64>();
    let split = sum(&|body| body.split);
    let waiting = |body: &Body| {
        let chain = if body.sums > 0.0 { CHAINED * body.operations / body.sums.max(1.0) } else { 0.0 };
        let loads = (body.singles + body.vectors + body.split) / 2.0;
        body.operations.max(loads).max(body.stores + body.split).max(chain) + ITERATION
    };
    [
        ("split by cache lines", magnitude(split)),
        ("share of split accesses", split / (1.0 + sum(&|body| body.vectors + body.stores))),
        ("operations", magnitude(sum(&|body| body.operations))),
        ("count", bodies.len() as f64),
        ("cycles with dependences", magnitude(sum(&waiting))),
    ]
}
