//! Programs for AArch64, run by qemu: one process for all programs of a machine, with the C runtime that
//! artifacts have.
//!
//! It needs `qemu-aarch64` and `aarch64-linux-gnu-gcc` (Debian: qemu-user, gcc-aarch64-linux-gnu,
//! libc6-dev-arm64-cross). Where one of them is missing, nothing is run, and a line says so.

use std::fs;
use std::path::Path;
use std::process::Command;

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use tilescribe::codegen::object;
use tilescribe::measure::Tolerance;
use tilescribe::nest::Nest;
use tilescribe::target::Cpu;
use tilescribe::workload::Role;
use tilescribe::workload::generate::Limits;

use super::pairs::{Oracle, Pair, functions, oracle, pairs};
use super::{lacks, shipped};

const QEMU: &str = "qemu-aarch64";
const COMPILER: &str = "aarch64-linux-gnu-gcc";

/// What outputs and packed buffers hold before.
const POISON: u8 = 0xff;

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

/// Compiles all programs into one executable, runs it, and compares.
fn run(target: &Cpu, processor: &str, workloads: u64, programs: u64) {
    let mut pairs = pairs(target, Limits::SMALL, workloads, programs);
    pairs.extend(functions(target));
    let oracles: Vec<Oracle> = pairs.par_iter().map(|pair| oracle(&pair.task.workload)).collect();
    let folder = tempfile::tempdir().unwrap();
    let workspaces = build(&pairs, target, folder.path());
    let mut input = Vec::new();
    for ((pair, oracle), workspace) in pairs.iter().zip(&oracles).zip(workspaces) {
        let arguments = arguments(&pair.nest, oracle);
        input.extend([arguments.len(), workspace].map(|n| (n as u64).to_le_bytes()).concat());
        for bytes in arguments {
            input.extend((bytes.len() as u64).to_le_bytes());
            input.extend(bytes);
        }
    }
    fs::write(folder.path().join("input"), input).unwrap();
    let stdin = fs::File::open(folder.path().join("input")).unwrap();
    let output =
        Command::new(QEMU).args(["-cpu", processor]).arg(folder.path().join("driver")).stdin(stdin).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find_map(|line| line.strip_prefix("kernel ")?.parse::<usize>().ok());
    let running = last.map_or("", |number| pairs[number].name.as_str());
    assert!(output.status.success(), "{processor}: {}, in {running}{said}", output.status);
    let mut rest = output.stdout.as_slice();
    for (pair, oracle) in pairs.iter().zip(&oracles) {
        compare(pair, oracle, &mut rest).unwrap_or_else(|mismatch| panic!("{processor}, {}{mismatch}", pair.name));
    }
    assert!(rest.is_empty(), "{processor}");
}

/// The executable `driver`: all programs, the runtime, and a loop over them. Returns the workspace of each
/// program, in bytes.
fn build(pairs: &[Pair], target: &Cpu, folder: &Path) -> Vec<usize> {
    let symbols: Vec<String> = (0..pairs.len()).map(|number| format!("k{number}")).collect();
    let kernels: Vec<(&str, &Nest)> =
        symbols.iter().zip(pairs).map(|(symbol, pair)| (symbol.as_str(), &pair.nest)).collect();
    let object = object(&kernels, target).unwrap();
    fs::write(folder.join("kernels.o"), &object.bytes).unwrap();
    let list: String = symbols.iter().map(|symbol| format!("KERNEL({symbol})\n")).collect();
    fs::write(folder.join("kernels.inc"), list).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(COMPILER)
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-static", "-pthread", "-o"])
        .args([folder.join("driver"), root.join("tests/files/targets/driver.c"), root.join("src/runtime/runtime.c")])
        .arg(folder.join("kernels.o"))
        .args([format!("-I{}", folder.display()), format!("-I{}", root.join("src/runtime").display())])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    object.workspace_bytes
}

/// The content of each argument before the run.
fn arguments(nest: &Nest, oracle: &Oracle) -> Vec<Vec<u8>> {
    let given = |id| oracle.inputs.iter().find(|(input, _)| *input == id).map(|(_, array)| array.to_bytes());
    let ids = nest.arguments().into_iter();
    ids.map(|id| given(id).unwrap_or_else(|| vec![POISON; nest.buffer(id).bytes()])).collect()
}

/// Takes what a program wrote into its arguments from `rest`.
fn compare(pair: &Pair, oracle: &Oracle, rest: &mut &[u8]) -> Result<(), String> {
    let workload = &pair.task.workload;
    for id in pair.nest.arguments() {
        let (bytes, behind) =
            rest.split_at_checked(pair.nest.buffer(id).bytes()).ok_or("there is too little output")?;
        *rest = behind;
        let expected = oracle.outputs.iter().find(|(output, _)| *output == id).map(|(_, array)| array);
        let is_output = workload.tensors.get(id.0 as usize).is_some_and(|tensor| tensor.role == Role::Output);
        if let (Some(expected), true) = (expected, is_output) {
            let tolerance = Tolerance::new(workload, id, expected);
            tolerance.compare(id, expected, bytes).map_err(|mismatch| mismatch.to_string())?;
        }
    }
    Ok(())
}
