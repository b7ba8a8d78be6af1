//! What stands for NVIDIA's libraries where candle is linked with its CUDA back end
//! (`src/measure/cuda/link/link.c`).

use std::path::Path;
use std::process::Command;

use crate::targets::lacks;

const LIBRARIES: [&str; 3] = ["libcuda.so.1", "libcublas.so.13", "libcurand.so.10"];

/// Builds with a compiler, and runs with and without stand-ins for the libraries.
fn check(compiler: &str, runner: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = root.join("tests/files/measure");
    let cc = |arguments: &mut Command| {
        let done =
            arguments.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]).current_dir(&folder).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    cc(Command::new(compiler)
        .args(["-fPIE", "-pie", "-pthread", "-o", "calls"])
        .args([files.join("calls.c"), root.join("src/measure/cuda/link/link.c")])
        .arg("-ldl"));
    let said = |libraries: &Path| {
        let mut command: Vec<&str> = runner.to_vec();
        command.push("./calls");
        let run = Command::new(command[0])
            .args(&command[1..])
            .env_remove("CUDA_HOME")
            .env_remove("CUDA_PATH")
            .env("LD_LIBRARY_PATH", libraries)
            .current_dir(&folder)
            .output()
            .unwrap();
        assert!(run.status.success(), "{}: {}", run.status, String::from_utf8_lossy(&run.stderr));
        String::from_utf8(run.stdout).unwrap()
    };
    // on a machine with a GPU, its driver would answer
    if !Path::new("/dev/nvidiactl").exists() {
        assert_eq!(said(Path::new("/nonexistent")), "0: 100 100 1 101\n");
    }
    let libraries = folder.path().join("libraries");
    std::fs::create_dir(&libraries).unwrap();
    for name in LIBRARIES {
        cc(Command::new(compiler)
            .args(["-shared", "-fPIC", "-o"])
            .arg(libraries.join(name))
            .arg(files.join("libraries.c")));
    }
    let sum: u32 = (1..=11).map(|number| number * number).sum();
    assert_eq!(said(&libraries), format!("1: 1003 {sum} 2012 3123\n"));
}

#[test]
fn functions_of_cuda_are_found_when_they_are_called() {
    check("cc", &[]);
}

#[test]
fn functions_of_cuda_are_found_when_they_are_called_on_aarch64() {
    if !lacks(&["qemu-aarch64", "aarch64-linux-gnu-gcc"], "AArch64 programs") {
        check("aarch64-linux-gnu-gcc", &["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]);
    }
}
