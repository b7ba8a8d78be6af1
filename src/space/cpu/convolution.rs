//! What a convolution costs by one algorithm or another, roughly: the untuned program takes the cheapest.
//!
//! Products go at a share of the machine's peak, while filters arrive from memory. The other stages of
//! Winograd's algorithm only move and add: they are counted by vectors of results, and by what passes
//! through memory where it does not stay near.

use crate::target::Cpu;
use crate::workload::winograd::Figures;
use crate::workload::{Workload, dot_steps};

/// What the model goes by.
struct Pace {
    /// Multiplications and additions of a lane in a cycle: two units for multiply-adds.
    flops: f64,
    /// Share of the peak that the convolution reaches as it is written.
    direct: f64,
    /// How many times as fast as by vectors short numbers are multiplied in tiles: half of what it could be,
    /// since operands are waited for.
    tiles: f64,
    /// Share of the peak that products of transformed data reach.
    products: f64,
    /// Cycles for a vector of results of a transform over one dimension, for each of its points.
    transform: f64,
    /// Bytes that a core exchanges in a cycle with the cache that all share, and with memory.
    shared: f64,
    far: f64,
    /// Cycles between two stages, until all cores are there.
    barrier: f64,
    /// What fewer multiplications have to save, for their larger errors.
    margin: f64,
}

const PACE: Pace = Pace {
    flops: 4.0,
    direct: 0.9,
    tiles: 4.0,
    products: 0.8,
    transform: 0.45,
    shared: 24.0,
    far: 5.0,
    barrier: 6000.0,
    margin: 0.9,
};

const BYTES: f64 = 4.0;
/// The share of the shared cache that what stages leave may take: filters and images lie there as well.
const SHARE_OF_SHARED: f64 = 0.25;
/// Stages that run: two transforms of the data, products, two transforms of the results.
const STAGES: f64 = 5.0;

/// The position of the tiles that take fewest cycles by Winograd's algorithm; `None` where the convolution as
/// it is written takes about as few.
pub(super) fn fewest_cycles(workload: &Workload, tiles: &[Figures], machine: &Cpu) -> Option<usize> {
    let cycles = tiles.iter().map(|of| transformed(of, machine)).enumerate();
    let (at, cycles) = cycles.min_by(|a, b| a.1.total_cmp(&b.1))?;
    let steps = steps_at_once(workload, machine);
    (cycles < PACE.margin * direct(&tiles[at], steps, machine)).then_some(at)
}

/// Steps of the convolution, as it is written, that an instruction takes for each lane.
fn steps_at_once(workload: &Workload, machine: &Cpu) -> f64 {
    let operands = workload.stages.first().and_then(|stage| workload.widened_operands(stage));
    let Some(operands) = operands.filter(|operands| machine.has_dot(*operands)) else { return 1.0 };
    let steps = dot_steps(operands).map_or(1.0, |(steps, _)| steps as f64);
    if machine.has_tiles(operands) { PACE.tiles * steps } else { steps }
}

/// Whether rows of tiles go through all stages, one after the other, rather than all of them stage by stage:
/// where filters, which are read again for every row, stay in the core's own cache, or what stages leave for
/// all rows would not even stay in the shared one.
pub(super) fn rows_join(of: &Figures, machine: &Cpu) -> bool {
    let [filters, left] = [of.filter_elements(), of.left_elements()].map(|elements| elements as f64 * BYTES);
    filters <= machine.l2_bytes as f64 || left > SHARE_OF_SHARED * machine.l3_bytes as f64
}

fn direct(of: &Figures, steps: f64, machine: &Cpu) -> f64 {
    let filters = passes(of.given_filter_elements(), PACE.far, machine);
    (products(of.direct_flops, PACE.direct, machine) / steps).max(filters)
}

fn transformed(of: &Figures, machine: &Cpu) -> f64 {
    let left = of.left_elements();
    let filters = passes(of.filter_elements(), PACE.far, machine);
    let products = products(of.flops(), PACE.products, machine).max(filters);
    let results = (left + of.output_elements()) as f64;
    // data by columns is read with strides, or brought into another order first
    let orders = if of.by_columns { 2.0 } else { 1.0 };
    let lanes = machine.lanes() as f64;
    let transforms = orders * results / lanes * PACE.transform * of.size() as f64 / cores(machine);
    let stays_near = left as f64 * BYTES <= machine.l2_bytes as f64 * cores(machine);
    let moved = if stays_near || rows_join(of, machine) { 0.0 } else { passes(2 * left, PACE.shared, machine) };
    products + transforms + moved + STAGES * PACE.barrier
}

fn cores(machine: &Cpu) -> f64 {
    f64::from(machine.cores.max(1))
}

/// Cycles for as many multiplications and additions.
fn products(flops: i64, share: f64, machine: &Cpu) -> f64 {
    flops as f64 / (PACE.flops * share * machine.lanes() as f64 * cores(machine))
}

/// Cycles in which the cores exchange as many elements, each core its part, with something that takes so many
/// bytes in a cycle.
fn passes(elements: i64, bytes: f64, machine: &Cpu) -> f64 {
    elements as f64 * BYTES / bytes / cores(machine)
}

#[cfg(test)]
mod tests {
    use super::{fewest_cycles, rows_join};
    use crate::target::{Target, avx512};
    use crate::workload::Workload;
    use crate::workload::winograd::{choices, figures};

    /// A 3 × 3 convolution of images, channels last.
    fn convolution(size: i64, channels: i64, filters: i64) -> Workload {
        let text = format!(
            "const t0 {filters} {channels} 3 3\ninput t1 {size} {size} {channels}\nout t2 {size} {size} {filters} \
             sum {channels} 3 3 mul t0 c d e f pad 0.0 t1 ? + a + e -1 ? + b + f -1 d\n"
        );
        text.parse().unwrap()
    }

    #[test]
    fn tiles_are_as_large_as_memory_lets_them_pay() {
        let Target::Cpu(cpu) = avx512() else { panic!("a CPU") };
        let chosen = |workload: &Workload| fewest_cycles(workload, &choices(workload, &[2, 4]), &cpu);
        assert_eq!(chosen(&convolution(56, 64, 64)), Some(1));
        assert_eq!(chosen(&convolution(28, 128, 128)), Some(1));
        // transformed filters come from memory: of 4 × 4 tiles they are four times what was given
        assert_eq!(chosen(&convolution(7, 512, 512)), Some(0));
        // and of few tiles they take longer than the multiplications that they save
        assert_eq!(chosen(&convolution(4, 512, 512)), None);
    }

    #[test]
    fn rows_are_joined_where_filters_stay_near() {
        let Target::Cpu(cpu) = avx512() else { panic!("a CPU") };
        let joined = |workload: &Workload| rows_join(&figures(workload, 4).unwrap(), &cpu);
        assert!(joined(&convolution(56, 64, 64)));
        assert!(!joined(&convolution(14, 256, 256)));
        // what stages leave for all rows is larger than the shared cache holds
        assert!(joined(&convolution(224, 128, 128)));
    }
}
