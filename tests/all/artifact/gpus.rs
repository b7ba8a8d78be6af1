//! Artifacts for GPUs, on a stand-in for the driver (`tests/files/artifact/driver.c`), which holds their host
//! side to the driver's rules, and computes each task by its naive nest: what the kernels themselves compute
//! is checked by the tests of nests.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tilescribe::artifact::{self, Manifest, Options, Schedule, Version};
use tilescribe::codegen::{self, RUNTIME_OBJECT};
use tilescribe::graph::{self, ImportOptions, Network, TensorData, import_tensor};
use tilescribe::nest::Nest;
use tilescribe::space::Space;
use tilescribe::target::{Target, Task};
use tilescribe::workload::DType;

use super::host;

/// What H100 says of itself, and RTX 3090.
const H100: &str = "9.0:232448";
const RTX_3090: &str = "8.6:101376";

/// The network that GPUs are not for.
const DOUBLE: &str = "double";

/// The rules for GPUs stage the operands of its integer convolution through a loop that is not there.
const QUANTIZED: &str = "quantized";

/// A description that comes with Tilescribe.
pub fn gpu(name: &str) -> Target {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets/gpus").join(name).with_extension("toml");
    Target::from_toml(&fs::read_to_string(path).unwrap()).unwrap()
}

/// A network with what ONNX Runtime computes.
struct Case {
    network: Network,
    inputs: Vec<TensorData>,
    outputs: Vec<TensorData>,
}

impl Case {
    fn read(folder: &Path) -> Case {
        let program = graph::import(&folder.join("model.onnx"), &ImportOptions::default()).unwrap();
        let data = |kind: &str, count: usize| -> Vec<TensorData> {
            let path = |at: usize| folder.join(format!("test_data_set_0/{kind}_{at}.pb"));
            (0..count).map(|at| import_tensor(&path(at)).unwrap()).collect()
        };
        let (inputs, outputs) = (data("input", program.inputs.len()), data("output", program.outputs.len()));
        Case { network: graph::partition(&program).unwrap(), inputs, outputs }
    }

    fn named(name: &str) -> Case {
        Case::read(&networks().join(name))
    }

    /// Outputs as a program wrote them, one behind the other.
    fn check(&self, name: &str, mut written: &[u8]) {
        for expected in &self.outputs {
            let (bytes, rest) = written.split_at(expected.bytes.len());
            written = rest;
            let found = TensorData { bytes: bytes.to_vec().into(), ..expected.clone() }.to_f64();
            let expected_values = expected.to_f64();
            let largest = expected_values.iter().fold(0.0f64, |most, value| most.max(value.abs()));
            let allowed = if expected.dtype == DType::F16 { 5e-3 } else { 1e-4 };
            for (found, expected) in found.iter().zip(&expected_values) {
                assert!((found - expected).abs() <= allowed * largest, "{name}: {found} instead of {expected}");
            }
        }
        assert!(written.is_empty(), "{name}: {} bytes too many", written.len());
    }
}

fn networks() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/graph/networks")
}

/// An artifact, a program that runs it, the driver, and what that computes with.
struct Deployed {
    folder: tempfile::TempDir,
    manifest: Manifest,
}

impl Deployed {
    fn new(network: &Network, generations: &[&str]) -> Deployed {
        let folder = tempfile::tempdir().unwrap();
        let targets: Vec<Target> = generations.iter().map(|name| gpu(name)).collect();
        let schedules: Vec<Vec<Schedule>> = targets.iter().map(|target| untuned(network, target)).collect();
        let versions: Vec<Version<'_>> =
            targets.iter().zip(&schedules).map(|(target, schedules)| Version { target, schedules }).collect();
        let net = folder.path().join("net");
        let manifest = artifact::compile(network, &versions, &Options { name: "net", folder: &net }, &mut |_| {
            ControlFlow::Continue(())
        });
        let deployed = Deployed { folder, manifest: manifest.unwrap() };
        deployed.make_stand_in(network, &schedules[0]);
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/artifact");
        let flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"];
        deployed.cc(Command::new("cc")
            .args(flags)
            .args(["-shared", "-fPIC", "-o", "libcuda.so.1"])
            .arg(files.join("driver.c")));
        deployed.cc(Command::new("cc")
            .args(flags)
            .args(["-o", "program", "-Inet", "-Lnet", "-Wl,-rpath"])
            .arg(&net)
            .arg(files.join("device.c"))
            .arg("-lnet"));
        deployed
    }

    /// The tasks as functions of the host, by the names that the artifact's kernels have.
    fn make_stand_in(&self, network: &Network, schedules: &[Schedule]) {
        let naive: Vec<Nest> = network.tasks.iter().map(|task| Nest::naive(&task.workload)).collect();
        for (naive, schedule) in naive.iter().zip(schedules) {
            assert_eq!(naive.arguments(), schedule.nest.arguments());
        }
        let symbols: Vec<String> = (0..naive.len()).map(|task| format!("kernel_{task}")).collect();
        let kernels: Vec<(&str, &Nest)> = symbols.iter().map(String::as_str).zip(&naive).collect();
        let object = codegen::object(&kernels, &host()).unwrap();
        assert!(object.workspace_bytes.iter().all(|bytes| *bytes <= 1 << 20));
        fs::write(self.path("kernels.o"), object.bytes).unwrap();
        fs::write(self.path("runtime.o"), RUNTIME_OBJECT).unwrap();
        self.cc(Command::new("cc").args(["-shared", "-o", "stand_in.so", "kernels.o", "runtime.o", "-pthread", "-lm"]));
    }

    fn cc(&self, command: &mut Command) {
        let done = command.current_dir(self.folder.path()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command that finds the driver.
    fn command(&self, program: &Path, gpus: &str) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.folder.path()).env("GPUS", gpus).env("STAND_IN", self.path("stand_in.so"));
        command
    }

    /// The C program with these inputs, on a device.
    fn program(&self, inputs: &[TensorData], gpus: &str, device: usize) -> Command {
        let mut command = self.command(&self.path("program"), gpus);
        command.arg(self.path("net/weights.safetensors")).arg(device.to_string());
        for (number, input) in inputs.iter().enumerate() {
            let path = self.path(&format!("input_{number}"));
            fs::write(&path, &input.bytes).unwrap();
            command.arg(path);
        }
        command
    }
}

fn untuned(network: &Network, target: &Target) -> Vec<Schedule> {
    let space = Space::standard();
    let task = |workload: &_| Task { workload: Clone::clone(workload), target: target.clone() };
    network.tasks.iter().map(|found| Schedule::untuned(&space, &task(&found.workload)).unwrap()).collect()
}

fn said(output: &Output) -> String {
    format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr))
}

#[test]
fn small_networks_run_on_a_gpu() {
    let mut cases: Vec<PathBuf> = fs::read_dir(networks()).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    assert!(cases.len() >= 12, "{} networks", cases.len());
    for folder in cases {
        let (name, case) = (folder.file_name().unwrap().to_string_lossy(), Case::read(&folder));
        // those with loops, branches and library calls run on CPUs only
        let is_for_cpus = artifact::check_network(&case.network, [&gpu("sm_90")]).is_err();
        if name == DOUBLE || name == QUANTIZED || is_for_cpus {
            continue;
        }
        let deployed = Deployed::new(&case.network, &["sm_90"]);
        let found = deployed.program(&case.inputs, H100, 0).output().unwrap();
        assert!(found.status.success(), "{name}: {}", said(&found));
        case.check(&name, &found.stdout);
    }
}

#[test]
fn a_gpu_does_not_compute_in_f64() {
    let (case, target) = (Case::named(DOUBLE), gpu("sm_90"));
    let schedules = untuned(&case.network, &target);
    let folder = tempfile::tempdir().unwrap();
    let options = Options { name: "net", folder: &folder.path().join("net") };
    let versions = [Version { target: &target, schedules: &schedules }];
    let error = artifact::compile(&case.network, &versions, &options, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(error.to_string().contains("f64 on a GPU"), "{error}");
}

#[test]
fn a_gpu_gets_the_newest_kernels_that_it_understands() {
    let case = Case::named("gemm");
    let deployed = Deployed::new(&case.network, &["sm_80", "sm_90a"]);
    let capabilities: Vec<String> =
        deployed.manifest.versions.iter().map(|version| version.target.to_string()).collect();
    assert!(capabilities[0].contains("9.0a") && capabilities[1].contains("8.0"), "{capabilities:?}");
    // the driver refuses PTX of generations that it does not understand
    let both = format!("7.5:65536 {RTX_3090}");
    for (gpus, device) in [(H100, 0), (RTX_3090, 0), ("12.0:101376", 0), (both.as_str(), 1)] {
        let found = deployed.program(&case.inputs, gpus, device).output().unwrap();
        assert!(found.status.success(), "{gpus}: {}", said(&found));
        case.check(gpus, &found.stdout);
    }
    // too old, none at all, not there
    for (gpus, device, missing) in
        [("7.5:65536", 0, "8.0"), ("", 0, "a GPU"), (H100, 1, "no such GPU"), (both.as_str(), 0, "no such GPU")]
    {
        let found = deployed.program(&case.inputs, gpus, device).output().unwrap();
        assert_eq!(found.status.code(), Some(1), "{gpus}: {}", said(&found));
        assert!(said(&found).contains(missing), "{gpus}: {}", said(&found));
    }
}

#[test]
fn whatever_the_driver_refuses_is_reported_and_given_back() {
    let case = Case::named("gemm");
    let deployed = Deployed::new(&case.network, &["sm_90"]);
    let driver = include_str!("../../files/artifact/driver.c");
    let mut refused = Vec::new();
    for function in driver.lines().filter_map(|line| line.strip_prefix("int ")?.split_once('(').map(|(name, _)| name)) {
        let found = deployed.program(&case.inputs, H100, 0).env("FAIL", format!("{function}:700")).output().unwrap();
        // what gives something back is not asked for success
        if found.status.success() {
            continue;
        }
        let expected = if matches!(function, "cuInit") { 1 } else { 50 };
        assert_eq!(found.status.code(), Some(expected), "{function}: {}", said(&found));
        assert!(function == "cuInit" || said(&found).contains("the driver says"), "{function}: {}", said(&found));
        refused.push(function);
    }
    assert!(refused.len() >= 16, "{refused:?}");
    let found = deployed.program(&case.inputs, H100, 0).env("FAIL", "cuMemAlloc_v2:2").output().unwrap();
    assert_eq!(found.status.code(), Some(4), "{}", said(&found));
}

#[test]
fn a_driver_without_our_functions_is_named() {
    let case = Case::named("gemm");
    let deployed = Deployed::new(&case.network, &["sm_90"]);
    fs::write(deployed.path("empty.c"), "int cuInit(unsigned flags) { return (int)flags; }\n").unwrap();
    deployed.cc(Command::new("cc").args(["-shared", "-fPIC", "-o", "libcuda.so.1", "empty.c"]));
    let found = deployed.program(&case.inputs, H100, 0).output().unwrap();
    assert_eq!(found.status.code(), Some(1), "{}", said(&found));
    assert!(said(&found).contains("a newer NVIDIA driver (cu"), "{}", said(&found));
}

#[test]
fn the_program_runs_and_times_artifacts_for_gpus() {
    let case = Case::named("gemm");
    let deployed = Deployed::new(&case.network, &["sm_90"]);
    let tilescribe = |arguments: &[&str]| {
        let mut command = deployed.command(Path::new(env!("CARGO_BIN_EXE_tilescribe")), H100);
        command.current_dir(deployed.folder.path()).args(arguments).output().unwrap()
    };
    let found = tilescribe(&["run", "net"]);
    assert!(found.status.success() && !found.stdout.is_empty(), "{}", said(&found));
    let found = tilescribe(&["bench", "net", "--seconds", "0.05"]);
    assert!(found.status.success(), "{}", said(&found));
    assert!(String::from_utf8_lossy(&found.stdout).contains("\"median_ms\""), "{found:?}");
    let found = tilescribe(&["show", "net"]);
    assert!(String::from_utf8_lossy(&found.stdout).contains("compute capability 9.0"), "{found:?}");
    for (arguments, code, reason) in
        [(["run", "net", "--threads", "2"], 2, "no threads"), (["run", "net", "--device", "3"], 3, "no such GPU")]
    {
        let found = tilescribe(&arguments);
        assert_eq!(found.status.code(), Some(code), "{}", said(&found));
        assert!(said(&found).contains(reason), "{}", said(&found));
    }
}
