//! What a precision means on a machine, and whether it is the faster one on this one.

use tilescribe::codegen;
use tilescribe::graph::{Precision, Products};
use tilescribe::measure::roofline::{self, Arithmetic, RooflineError};
use tilescribe::target::{Cpu, Target};
use tilescribe::workload::DType;

/// Which products are computed in bf16 on all of these machines.
pub fn products(targets: &[Target]) -> Products {
    let in_tiles = |target: &Target| target.cpu().is_ok_and(|cpu| cpu.has_tiles([DType::BF16; 2]));
    if targets.iter().all(in_tiles) { Products::All } else { Products::ByWeights }
}

/// Warns of a precision that products reach fewer operations in than in f32: processors may have instructions
/// for short numbers that are no faster, or none. Measures both, if the target is this machine.
pub fn warn_of_slow(precision: Precision, target: &Target) {
    let (Precision::Bf16, Target::Cpu(cpu)) = (precision, target) else { return };
    let is_here = codegen::host().is_ok_and(|host| roofline::key(&host) == roofline::key(cpu));
    if !is_here {
        return;
    }
    // what cannot be measured is nothing to warn of
    if let Ok(Some(reason)) = reason(cpu) {
        tracing::warn!("{reason}: what computing bounds is faster without --precision bf16");
    }
}

/// Peaks differ where one is less than this share of the other: they are measured briefly.
const MARGIN: f64 = 0.9;

fn reason(cpu: &Cpu) -> Result<Option<String>, RooflineError> {
    let peak = |arithmetic| roofline::measure_peak(arithmetic, cpu);
    let Some(bf16) = peak(Arithmetic::Bf16)? else {
        return Ok(Some("this machine has no instructions for bf16".into()));
    };
    let slower = peak(Arithmetic::F32)?.filter(|f32| bf16 < MARGIN * f32);
    Ok(slower.map(|f32| format!("products reach {bf16:.0} GFLOP/s in bf16 on this machine, and {f32:.0} in f32")))
}
