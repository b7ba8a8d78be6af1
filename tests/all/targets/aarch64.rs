//! Programs for AArch64, run by qemu.
//!
//! It needs `qemu-aarch64` and `aarch64-linux-gnu-gcc` (Debian: qemu-user, gcc-aarch64-linux-gnu,
//! libc6-dev-arm64-cross). Where one of them is missing, nothing is run, and a line says so.

use tilescribe::target::Cpu;
use tilescribe::workload::generate::Limits;

use super::emulated::{self, COMPILER, QEMU};
use super::pairs::{functions, pairs};
use super::{lacks, shipped};

#[test]
fn programs_for_aarch64_compute_the_workload() {
    let sve = shipped("neoverse-v1");
    let wide = Cpu { vector_bits: 512, ..sve.clone() };
    if lacks(&[QEMU, COMPILER], "AArch64 programs") {
        return;
    }
    // the length of SVE vectors, in bytes, is the machine's
    run(&shipped("neoverse-n1"), "neoverse-n1", 2, 2);
    run(&sve, "max,sve-default-vector-length=32", 2, 2);
    run(&wide, "max,sve-default-vector-length=64", 1, 1);
}

fn run(target: &Cpu, processor: &str, workloads: u64, programs: u64) {
    let mut pairs = pairs(target, Limits::SMALL, workloads, programs);
    pairs.extend(functions(target));
    emulated::run(&pairs, target, processor);
}
