//! Programs for AArch64 in an emulator: one process for all programs of a machine, with the C runtime that
//! artifacts have.

use std::fs;
use std::path::Path;
use std::process::Command;

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use tilescribe::codegen::object;
use tilescribe::measure::Expected;
use tilescribe::nest::Nest;
use tilescribe::target::Cpu;

use super::programs::Pair;

pub const QEMU: &str = "qemu-aarch64";
pub const COMPILER: &str = "aarch64-linux-gnu-gcc";

/// Compiles all programs into one executable, runs it on a processor that the emulator knows, and compares.
pub fn run(pairs: &[Pair], target: &Cpu, processor: &str) {
    let expected: Vec<Expected> = pairs.par_iter().map(Pair::expected).collect();
    let folder = tempfile::tempdir().unwrap();
    let workspaces = build(pairs, target, folder.path());
    let mut input = Vec::new();
    for ((pair, expected), workspace) in pairs.iter().zip(&expected).zip(workspaces) {
        let arguments = pair.arguments(expected);
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
    for (pair, expected) in pairs.iter().zip(&expected) {
        let left = written(&pair.nest, &mut rest);
        pair.compare(expected, &left).unwrap_or_else(|mismatch| panic!("{processor}, {}{mismatch}", pair.name));
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

/// Takes what a program left in its arguments from `rest`.
fn written(nest: &Nest, rest: &mut &[u8]) -> Vec<Vec<u8>> {
    let mut take = |bytes: usize| {
        let (first, behind) = rest.split_at_checked(bytes).expect("there is too little output");
        *rest = behind;
        first.to_vec()
    };
    nest.arguments().into_iter().map(|id| take(nest.buffer(id).bytes())).collect()
}
