//! What only programs for GPUs have to tell, as numbers: how their launches fill the machine, and how the
//! lanes of a warp access memory.

use super::table::{Named, Table, magnitude};
use crate::analysis::{Launch, Pieces, Requests, launches};
use crate::target::Gpu;

/// How many there are.
pub(super) const OWN_FEATURES: usize = 44;

/// Roughly, what a multiprocessor does in a cycle: instructions of warps, slow ones, turns of the banks,
/// sectors, multiply-adds of its tensor cores.
const INSTRUCTIONS: f64 = 4.0;
const SLOW: f64 = 0.5;
const TURNS: f64 = 1.0;
const SECTORS: f64 = 2.0;
const PRODUCTS: f64 = 1024.0;
/// Cycles, roughly, for which a warp waits where threads meet behind accesses of memory, and of a launch.
const WAIT: f64 = 400.0;
const LAUNCH: f64 = 3000.0;
/// Warps of a multiprocessor that hide what one of them waits for.
const ENOUGH_WARPS: f64 = 16.0;

/// Adds the features of the launches of a program for a workload of so many flops: [`OWN_FEATURES`], for
/// every program.
pub(super) fn add_own_features(table: &mut Table, pieces: &Pieces, gpu: &Gpu, flops: f64) {
    let launches = launches(pieces);
    table.add("launches", [("count", launches.len() as f64)]);
    let nothing = Launch::default();
    let longest = launches.iter().max_by(|a, b| cycles(a, gpu)[1].total_cmp(&cycles(b, gpu)[1])).unwrap_or(&nothing);
    table.add("longest launch", of_launch(longest, gpu));

    let total = |of: &dyn Fn(&Launch) -> f64| launches.iter().map(|launch| launch.blocks * of(launch)).sum::<f64>();
    let counts = [
        ("operations", total(&|l| l.operations)),
        ("slow operations", total(&|l| l.slow_operations)),
        ("tensor-core products", total(&|l| l.products)),
        ("global loads", total(&|l| l.global[0].count)),
        ("sectors loaded", total(&|l| l.global[0].pieces)),
        ("sectors stored", total(&|l| l.global[1].pieces)),
        ("bank turns of loads", total(&|l| l.shared[0].pieces)),
        ("bank turns of stores", total(&|l| l.shared[1].pieces)),
        ("barriers of warps", total(&|l| l.phases * l.warps())),
    ];
    table.add_magnitudes("all launches", counts);
    table.add_per_flop("all launches, per flop", counts, flops);
    // sectors for each access of global memory, bank turns for each of shared memory
    let each = |of: &dyn Fn(&Launch) -> Requests| {
        let count = total(&|l| of(l).count);
        if count > 0.0 { total(&|l| of(l).pieces) / count } else { 0.0 }
    };
    for (side, group) in ["each load", "each store"].into_iter().enumerate() {
        let pieces = [("sectors", each(&|l| l.global[side])), ("bank turns", each(&|l| l.shared[side]))];
        table.add(group, pieces);
    }
    for (at, group) in ["launch cycles if all overlaps", "launch cycles if nothing overlaps"].into_iter().enumerate() {
        let all: f64 = launches.iter().map(|launch| cycles(launch, gpu)[at]).sum();
        table.add_magnitudes(group, [("in all", all)]);
        table.add_per_flop(group, [("per flop", all)], flops);
    }
    let shared_bytes = f64::from(gpu.shared_bytes_per_multiprocessor);
    table.add(
        "gpu",
        [
            ("major capability", f64::from(gpu.capability.major)),
            ("minor capability", f64::from(gpu.capability.minor)),
            ("bandwidth", f64::from(gpu.memory_gb_per_s).log2()),
            ("shared bytes per multiprocessor", shared_bytes.log2()),
            ("L2 bytes", (gpu.l2_bytes as f64).log2()),
        ],
    );
}

/// The launch that takes longest.
fn of_launch(launch: &Launch, gpu: &Gpu) -> [Named; 12] {
    let occupancy = launch.occupancy(gpu);
    let accesses = launch.global[0].count + launch.shared[0].count;
    [
        ("blocks", magnitude(launch.blocks)),
        ("threads", magnitude(launch.threads)),
        ("registers", magnitude(launch.registers)),
        ("shared bytes", magnitude(launch.shared_bytes)),
        ("phases", magnitude(launch.phases)),
        ("resident warps", magnitude(occupancy.warps)),
        ("occupancy", occupancy.share),
        ("waves", magnitude(occupancy.waves)),
        ("evenness of waves", occupancy.even),
        ("used lanes", launch.threads / (32.0 * launch.warps())),
        ("operations per load", ((launch.operations + 1.0) / (accesses + 1.0)).log2()),
        ("products per load", ((launch.products + 1.0) / (accesses + 1.0)).log2()),
    ]
}

/// Cycles of a launch on the busiest multiprocessor, where everything overlaps and where nothing does.
fn cycles(launch: &Launch, gpu: &Gpu) -> [f64; 2] {
    let occupancy = launch.occupancy(gpu);
    let own = (launch.blocks / f64::from(gpu.multiprocessors)).ceil();
    let sum = |requests: &[Requests; 2]| requests[0].pieces + requests[1].pieces;
    let accesses: f64 = launch.global.iter().chain(&launch.shared).map(|requests| requests.count).sum();
    let parts = [
        (launch.operations + accesses) / INSTRUCTIONS,
        launch.slow_operations / SLOW,
        launch.products / PRODUCTS,
        sum(&launch.shared) / TURNS,
        sum(&launch.global) / SECTORS,
    ];
    let waiting = occupancy.waves * launch.phases * WAIT * (ENOUGH_WARPS / occupancy.warps.max(1.0)).min(1.0);
    let most = parts.iter().copied().fold(0.0, f64::max);
    [(own * most).max(waiting) + LAUNCH, own * parts.iter().sum::<f64>() + waiting + LAUNCH]
}

#[cfg(test)]
mod tests {
    use crate::propose::{History, Proposer, Random};
    use crate::rank::{GPU_FEATURES, features};
    use crate::space::{Next, Space};
    use crate::target::{Gpu, Target, Task};

    #[test]
    fn every_program_has_the_same_features() {
        let space = Space::standard();
        let gpu = Gpu::from_toml(include_str!("../../targets/gpus/sm_90a.toml")).unwrap();
        let product = "input t0 96 80\nconst t1 80 64\nout t2 96 64 sum 80 mul t0 a c t1 c b\n";
        let sum = "input t0 3 5000\nout t1 3 sum 5000 t0 a b\n";
        for text in [product, sum] {
            let task = Task { workload: text.parse().unwrap(), target: Target::Gpu(gpu.clone()) };
            let drawn = Random::new(&space, 3).propose(&task, &History::default(), 20).unwrap().candidates;
            let mut all = Vec::new();
            for candidate in &drawn {
                let Ok(Next::Done(nest)) = space.next(&task, &candidate.trace) else { panic!("{}", candidate.trace) };
                let features = features(&task, &nest);
                assert_eq!(features.len(), GPU_FEATURES);
                assert!(features.iter().all(|feature| feature.is_finite()), "{features:?}");
                all.push(features);
            }
            // different programs are told apart
            all.sort_by(|a, b| a.partial_cmp(b).unwrap());
            all.dedup();
            assert!(all.len() * 10 >= drawn.len() * 9, "{} of {}", all.len(), drawn.len());
        }
    }
}
