//! The target files that we ship: code for each is legal, and computes the workload wherever it can be run.

mod aarch64;
mod commands;
mod elf;
mod emulated;
mod objects;
mod pairs;
mod programs;
mod run;
mod short;

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

pub use programs::{file, shipped};
use tilescribe::codegen;
use tilescribe::target::Target;

/// Whether one of the programs that a test needs cannot be started; a line says so, and that nothing `is run`
/// then.
pub fn lacks(programs: &[&str], is_run: &str) -> bool {
    let missing: Vec<&str> = programs.iter().copied().filter(|program| !is_there(program)).collect();
    if !missing.is_empty() {
        // past the capture of tests' outputs: nobody should believe that it was checked
        let _ = writeln!(std::io::stderr(), "skipped: no {} to run {is_run} with", missing.join(" and no "));
    }
    !missing.is_empty()
}

fn is_there(program: &str) -> bool {
    let answer = Command::new(program).arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).status();
    answer.is_ok_and(|status| status.success())
}

/// The names of all.
fn names() -> Vec<String> {
    let folder = file("haswell");
    let files = fs::read_dir(folder.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|file| file.extension().is_some_and(|extension| extension == "toml"));
    let mut names: Vec<String> = files.map(|file| file.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn targets_that_are_not_there_are_refused() {
    let haswell = fs::read_to_string(file("haswell")).unwrap();
    let refused = |from: &str, to: &str| {
        assert!(haswell.contains(from), "{from}");
        let target = Target::from_toml(&haswell.replace(from, to));
        target.and_then(|target| codegen::check(target.cpu()?)).unwrap_err().to_string()
    };
    assert_eq!(refused("\"haswell\"", "\"haswel\""), "LLVM knows no processor `haswel` of x86_64");
    // a processor of 32 bits, at which LLVM would end the process
    assert_eq!(refused("\"haswell\"", "\"i686\""), "LLVM knows no processor `i686` of x86_64");
    assert_eq!(refused("+avx2", "+avx3"), "LLVM knows no feature `avx3` of x86_64");
    assert_eq!(
        refused("x86_64", "aarch64"),
        "target: vector_bits = 256 is outside of 128, which is all that AArch64 has without +sve"
    );
    assert!(refused("x86_64", "riscv64").contains("unknown variant `riscv64`"));
    assert!(
        refused("vector_bits = 256", "vector_bits = 257").contains("vector_bits = 257 is outside of 128, 256 and 512")
    );
}
