//! Programs for other x86-64 processors, run on this one.

use std::io::Write;

use tilescribe::codegen::check_runs_here;
use tilescribe::measure::{Bench, OracleCache, Workbench};
use tilescribe::workload::generate::Limits;

use super::emulated::{COMPILER, QEMU};
use super::pairs::{functions, joined, pairs};
use super::short::Machine;
use super::{lacks, shipped};

/// Programs for each workload of joined reductions.
const JOINED_PROGRAMS: u64 = 48;

/// The gate that measured programs pass: guarded buffers, and the evaluator's outputs.
fn check_programs(name: &str, workloads: u64, programs: u64) {
    let target = shipped(name);
    if let Err(reason) = check_runs_here(&target) {
        // past the capture of tests' outputs: nobody should believe that it was checked
        let _ = writeln!(std::io::stderr(), "skipped: {reason}");
        return;
    }
    let mut pairs = pairs(&target, Limits::SMALL, workloads, programs);
    pairs.extend(functions(&target));
    pairs.extend(joined(&target, JOINED_PROGRAMS));
    assert!(pairs.len() >= 100, "{} pairs", pairs.len());
    let mut refused = Vec::new();
    for pair in pairs {
        let expected = OracleCache::default().expected(&pair.task.workload, 1).unwrap();
        let mut bench = Workbench::new(pair.task, expected).unwrap();
        let checked = bench.load(&pair.nest).and_then(|mut loaded| bench.check(&mut loaded));
        refused.extend(checked.err().map(|refusal| format!("{}{}: {}", pair.name, refusal.cause, refusal.detail)));
    }
    assert!(refused.is_empty(), "{}", refused.join("\n\n"));
}

#[test]
fn programs_for_avx2_compute_the_workload() {
    check_programs("haswell", 3, 3);
}

#[test]
fn programs_for_any_x86_64_compute_the_workload() {
    check_programs("x86-64", 2, 2);
}

/// Pairs for each machine; `tools/short_pairs.rs` checks more.
const SHORT_PAIRS: u64 = 240;

/// Programs with dot products among the pairs, at least, where a machine has instructions for all of them.
const LEAST_DOTS: usize = 20;

/// Checks pairs of workloads of short numbers.
fn check_short(machine: &Machine) {
    if let Some(reason) = machine.missing() {
        let _ = writeln!(std::io::stderr(), "skipped: {reason}");
        return;
    }
    let checked = machine.check(0..SHORT_PAIRS);
    assert_eq!(checked.pairs as u64, SHORT_PAIRS);
    let dots = if machine.has_all_dots() { LEAST_DOTS } else { 0 };
    assert!(checked.dots >= dots, "{} programs with dot products for {}", checked.dots, machine.name);
}

#[test]
fn programs_of_short_numbers_compute_the_workload_here() {
    check_short(&Machine::here());
}

#[test]
fn programs_of_short_numbers_without_instructions_compute_the_workload() {
    check_short(&Machine::avx2());
}

#[test]
fn programs_of_short_numbers_for_aarch64_compute_the_workload() {
    if !lacks(&[QEMU, COMPILER], "AArch64 programs of short numbers") {
        check_short(&Machine::aarch64());
    }
}
