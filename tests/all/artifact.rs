//! Artifacts from end to end: written, loaded here and from C, refused where they are damaged or for another
//! machine.

mod callers;
mod cold;
mod counted;
mod counts;
mod forks;
mod extents;
mod gpus;
mod poison;
mod states;
mod threads;
mod whole;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::{Value, json};
use tilescribe::artifact::{self, ArtifactError, Manifest, Model, Options, Resources, RuntimeError, Schedule, Version};
use tilescribe::codegen;
use tilescribe::graph::{self, Network, Program, TensorData};
use tilescribe::space::Space;
use tilescribe::target::{Cpu, Target, Task};
use tilescribe::workload::{Binary, Combiner, DType, Expr, Index, Role, Stage, TensorId, Var};

/// Features that no machine has both of: the one was AMD's, the other is Intel's.
const IMPOSSIBLE: [&str; 2] = ["+xop", "+avx512fp16"];

/// `y = max(x · w1, 0) · w2`, with 4 × 16, 16 × 32 and 32 × 8 elements, or with other rows than 4.
struct Mlp {
    network: Network,
    x: Vec<f32>,
    y: Vec<f32>,
}

impl Mlp {
    fn new() -> Mlp {
        Mlp::of_rows(4)
    }

    fn of_rows(rows: usize) -> Mlp {
        let m = rows as i64;
        let values = |count: usize, step: usize| -> Vec<f32> {
            (0..count).map(|i| ((i * step) % 17) as f32 / 8.0 - 1.0).collect()
        };
        let (x, w1, w2) = (values(rows * 16, 5), values(16 * 32, 7), values(32 * 8, 11));
        let mut program = Program::default();
        let x_id = program.add_tensor(vec![m, 16], DType::F32, Role::Input);
        let w1_id = program.add_constant(TensorData::from_f32(vec![16, 32], &w1));
        let w2_id = program.add_constant(TensorData::from_f32(vec![32, 8], &w2));
        let product = program.add_tensor(vec![m, 32], DType::F32, Role::Intermediate);
        let hidden = program.add_tensor(vec![m, 32], DType::F32, Role::Intermediate);
        let y_id = program.add_tensor(vec![m, 8], DType::F32, Role::Output);
        let load = |id: TensorId, axes: [u32; 2]| Expr::load(id, axes.map(|axis| Index::var(Var(axis))).to_vec());
        let relu = Expr::binary(Binary::Maximum, load(product, [0, 1]), Expr::float(0.0));
        let matmul = |output, shape: Vec<i64>, depth, a, b| {
            let value = Expr::binary(Binary::Multiply, load(a, [0, 2]), load(b, [2, 1]));
            Stage::reduce(output, shape, vec![depth], Combiner::Sum, value)
        };
        let stages = [
            matmul(product, vec![m, 32], 16, x_id, w1_id),
            Stage::map(hidden, vec![m, 32], relu),
            matmul(y_id, vec![m, 8], 32, hidden, w2_id),
        ];
        stages.into_iter().for_each(|stage| program.add_stage(stage, "mlp"));
        program.inputs = vec![("x".into(), x_id)];
        program.outputs = vec![("y".into(), y_id)];
        let product = |a: &[f32], b: &[f32], [m, k, n]: [usize; 3]| -> Vec<f32> {
            (0..m * n).map(|at| (0..k).map(|c| a[at / n * k + c] * b[c * n + at % n]).sum()).collect()
        };
        let hidden: Vec<f32> = product(&x, &w1, [rows, 16, 32]).into_iter().map(|value| value.max(0.0)).collect();
        let y = product(&hidden, &w2, [rows, 32, 8]);
        Mlp { network: graph::partition(&program).unwrap(), x, y }
    }

    fn schedules(&self, target: &Cpu) -> Vec<Schedule> {
        let space = Space::standard();
        let task = |workload: &_| Task { workload: Clone::clone(workload), target: target.clone().into() };
        self.network.tasks.iter().map(|t| Schedule::untuned(&space, &task(&t.workload)).unwrap()).collect()
    }

    fn compile(&self, folder: &Path, target: &Cpu) -> Result<Manifest, ArtifactError> {
        let (schedules, target) = (self.schedules(target), target.clone().into());
        let version = Version { target: &target, schedules: &schedules };
        artifact::compile(&self.network, &[version], &Options { name: "net", folder }, &mut |_| {
            ControlFlow::Continue(())
        })
    }

    fn input(&self) -> TensorData {
        TensorData::from_f32(vec![4, 16], &self.x)
    }

    fn assert_close(&self, found: &[f32]) {
        assert_eq!(found.len(), self.y.len());
        for (found, expected) in found.iter().zip(&self.y) {
            assert!((found - expected).abs() <= 1e-4 * expected.abs().max(1.0), "{found} instead of {expected}");
        }
    }
}

fn threads(count: u32) -> Resources {
    Resources { threads: Some(count), ..Resources::default() }
}

fn host() -> Cpu {
    codegen::host().unwrap()
}

/// An artifact that all tests may read.
fn shared() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("artifact/net");
        Mlp::new().compile(&folder, &host()).unwrap();
        folder
    })
}

/// A copy of it that a test may damage.
fn copied() -> (tempfile::TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("copy");
    fs::create_dir(&folder).unwrap();
    for entry in fs::read_dir(shared()).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    (parent, folder)
}

/// A network of `tests/files/graph`.
fn stored(name: &str) -> (PathBuf, Program) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/graph/networks").join(name);
    let program = graph::import(&folder.join("model.onnx"), &graph::ImportOptions::default()).unwrap();
    (folder, program)
}

#[test]
fn deployed_networks_repeat_branch_and_call_the_library() {
    let names = ["lstm_2", "gru_5", "if_0", "loop_0", "while_0", "scan_5", "top_k_0", "scatter_0", "inside_1"];
    for name in names {
        let (files, program) = stored(name);
        let network = graph::partition(&program).unwrap();
        let (space, target) = (Space::standard(), Target::Cpu(host()));
        let task = |workload: &_| Task { workload: Clone::clone(workload), target: target.clone() };
        let schedules: Vec<Schedule> =
            network.tasks.iter().map(|t| Schedule::untuned(&space, &task(&t.workload)).unwrap()).collect();
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("net");
        let version = Version { target: &target, schedules: &schedules };
        let options = Options { name: "net", folder: &folder };
        artifact::compile(&network, &[version], &options, &mut |_| ControlFlow::Continue(())).unwrap();
        let model = Model::load(&folder, threads(2)).unwrap();
        let data = |kind: &str, at: usize| {
            graph::import_tensor(&files.join(format!("test_data_set_0/{kind}_{at}.pb"))).unwrap()
        };
        let inputs: Vec<TensorData> = (0..program.inputs.len()).map(|at| data("input", at)).collect();
        // the second run finds what the first one left in memory
        for outputs in [model.run(&inputs).unwrap(), model.run(&inputs).unwrap()] {
            for (at, output) in outputs.iter().enumerate() {
                let (found, expected) = (output.to_f64(), data("output", at).to_f64());
                let largest = expected.iter().fold(0.0f64, |m, x| m.max(x.abs()));
                assert_eq!(found.len(), expected.len(), "{name}");
                for (a, b) in found.iter().zip(&expected) {
                    assert!((a - b).abs() <= 1e-5 * largest, "{name}: {a} is not {b}");
                }
            }
        }
        assert!(!model.manifest().regions.is_empty() || name.starts_with("top_k") || name.starts_with("scatter"));
    }
}

#[test]
fn networks_that_only_cpus_run_are_refused_for_gpus() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("targets/gpus/sm_100.toml")).unwrap();
    let gpu = Target::from_toml(&text).unwrap();
    for (name, needed) in [("while_0", "loops or branches"), ("top_k_0", "the routine `top_k")] {
        let network = graph::partition(&stored(name).1).unwrap();
        let error = artifact::check_network(&network, [&gpu]).unwrap_err();
        assert!(matches!(error, ArtifactError::OnGpu(_)) && error.to_string().contains(needed), "{error}");
        artifact::check_network(&network, [&Target::Cpu(host())]).unwrap();
    }
}

#[test]
fn a_loaded_artifact_computes_the_network() {
    let mlp = Mlp::new();
    let model = Model::load(shared(), threads(2)).unwrap();
    for _ in 0..3 {
        mlp.assert_close(&model.run(&[mlp.input()]).unwrap()[0].f32s().unwrap());
    }
    let memory = model.manifest().memory;
    assert!(memory.lower_bound_bytes <= memory.arena_bytes && memory.arena_bytes <= memory.intermediate_bytes);
}

#[test]
fn two_models_of_one_library_run_at_the_same_time() {
    let mlp = Mlp::new();
    std::thread::scope(|scope| {
        for threads in [1, 2] {
            let mlp = &mlp;
            scope.spawn(move || {
                let model = Model::load(shared(), self::threads(threads)).unwrap();
                for _ in 0..50 {
                    mlp.assert_close(&model.run(&[mlp.input()]).unwrap()[0].f32s().unwrap());
                }
            });
        }
    });
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let model = Model::load(shared(), threads(1)).unwrap();
    let wrong_shape = TensorData::from_f32(vec![16, 4], &[0.0; 64]);
    let wrong_type = TensorData::from_i64(vec![4, 16], &[0; 64]);
    for inputs in [vec![], vec![wrong_shape], vec![wrong_type]] {
        assert!(matches!(model.run(&inputs), Err(RuntimeError::Input(_))));
    }
}

#[test]
fn a_c_program_runs_the_artifact() {
    let (parent, mlp) = (tempfile::tempdir().unwrap(), Mlp::new());
    let program = build_c_program("main.c", shared(), parent.path());
    let found = run_c_program(&program, &shared().join("weights.safetensors"), &mlp.x);
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    let (chunks, _) = found.stdout.as_chunks::<4>();
    mlp.assert_close(&chunks.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<f32>>());

    // weights of another compilation, and none at all
    let foreign = parent.path().join("foreign.safetensors");
    let mut bytes = fs::read(shared().join("weights.safetensors")).unwrap();
    bytes[40] ^= 1;
    fs::write(&foreign, bytes).unwrap();
    let found = run_c_program(&program, &foreign, &mlp.x);
    assert_eq!(found.status.code(), Some(3), "{}", String::from_utf8_lossy(&found.stderr));
    let found = run_c_program(&program, &parent.path().join("missing"), &mlp.x);
    assert_eq!(found.status.code(), Some(2), "{}", String::from_utf8_lossy(&found.stderr));
}

#[test]
fn a_processor_that_lacks_features_gets_an_error() {
    let (parent, mlp) = (tempfile::tempdir().unwrap(), Mlp::new());
    let folder = parent.path().join("net");
    let mut target = host();
    target.features.extend(IMPOSSIBLE.map(String::from));
    mlp.compile(&folder, &target).unwrap();
    let refused = Model::load(&folder, threads(1)).map(|_| ()).unwrap_err();
    assert!(matches!(&refused, RuntimeError::Target(reason) if reason.contains("lacks")), "{refused}");

    let program = build_c_program("main.c", &folder, parent.path());
    let found = run_c_program(&program, &folder.join("weights.safetensors"), &mlp.x);
    let said = String::from_utf8_lossy(&found.stderr).into_owned();
    assert_eq!(found.status.code(), Some(1), "{said}");
    assert!(IMPOSSIBLE.iter().any(|feature| said.contains(feature.trim_start_matches('+'))), "{said}");
}

#[test]
fn damaged_files_are_refused() {
    for file in ["libnet.so", "net.h", "weights.safetensors"] {
        let (_parent, folder) = copied();
        let path = folder.join(file);
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x40;
        fs::write(&path, &bytes).unwrap();
        assert_invalid(&folder, "SHA-256");
        fs::write(&path, &bytes[..middle]).unwrap();
        assert_invalid(&folder, "bytes where the manifest says");
        fs::remove_file(&path).unwrap();
        assert_invalid(&folder, "missing");
        std::os::unix::fs::symlink(shared().join(file), &path).unwrap();
        assert_invalid(&folder, "not a plain file");
    }
}

#[test]
fn hostile_manifests_are_refused() {
    let change = |from: &str, to: &str, reason: &str| {
        let (_parent, folder) = copied();
        let path = folder.join("manifest.json");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from}");
        fs::write(&path, text.replace(from, to)).unwrap();
        assert_invalid(&folder, reason);
    };
    change("\"name\": \"net\"", "\"name\": \"../../etc/net\"", "is not a name");
    change("\"libnet.so\"", "\"../libnet.so\"", "and nothing else");
    change("\"net.h\"", "\"/etc/passwd\"", "and nothing else");
    change("\"format\": 3", "\"format\": 5", "format 5");
    change("\"format\": 3", "\"format\": 4", "format 4, 0 symbols and 0 states");
    change("\"format\": 3", "\"format\": 3, \"more\": 1", "unknown field");

    change("\"calls\": [\n    0", "\"calls\": [\n    99", "does not exist");
    change("\"f32\"", "\"f99\"", "impossible");
    // memory is allocated by the manifest and written by the library
    change("\"f32\"", "\"i8\"", "not those of the manifest");
    change("{", "{{", "key must be a string");
}

#[test]
fn manifests_for_machines_that_there_are_not_are_refused() {
    let change = |change: &dyn Fn(&mut Value), reason: &str| {
        let (_parent, folder) = copied();
        let path = folder.join("manifest.json");
        let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut manifest["versions"]);
        fs::write(&path, manifest.to_string()).unwrap();
        assert_invalid(&folder, reason);
    };
    change(&|versions| *versions = json!([]), "for no machine");
    change(&|versions| *versions = json!([versions[0], versions[0]]), "has to hold one CPU");
    change(&|versions| versions[0]["schedules"] = json!([]), "lacks schedules");
    change(&|versions| versions[0]["target"]["cores"] = json!(0), "cores = 0");
    let gpu: Value = serde_json::to_value(gpus::gpu("sm_90")).unwrap();
    change(&|versions| versions[0]["target"] = gpu.clone(), "undefined symbol");
    let mut old = gpu.clone();
    old["capability"] = json!("5.0");
    change(&|versions| versions[0]["target"] = old.clone(), "capability = 5.0");
}

#[test]
fn compiling_replaces_artifacts_and_nothing_else() {
    let (parent, mlp) = (tempfile::tempdir().unwrap(), Mlp::new());
    let folder = parent.path().join("deep/net");
    mlp.compile(&folder, &host()).unwrap();
    fs::write(folder.join("net.h"), "damaged").unwrap();
    mlp.compile(&folder, &host()).unwrap();
    Manifest::read(&folder).unwrap().verify(&folder).unwrap();
    assert_eq!(fs::read_dir(parent.path().join("deep")).unwrap().count(), 1, "nothing is left behind");
    // of another format, which lists its files, too
    let mut manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.join("manifest.json")).unwrap()).unwrap();
    let older = json!({"format": 1, "tilescribe": "0.0.1", "gone": [], "files": manifest["files"].take()});
    fs::write(folder.join("manifest.json"), older.to_string()).unwrap();
    mlp.compile(&folder, &host()).unwrap();
    Manifest::read(&folder).unwrap().verify(&folder).unwrap();

    let foreign = parent.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("thesis.txt"), "years of work").unwrap();
    assert!(matches!(mlp.compile(&foreign, &host()), Err(ArtifactError::Occupied(_))));
    assert!(matches!(mlp.compile(&foreign.join("thesis.txt"), &host()), Err(ArtifactError::Occupied(_))));
    fs::write(foreign.join("manifest.json"), r#"{"format": 1, "name": "my app"}"#).unwrap();
    assert!(matches!(mlp.compile(&foreign, &host()), Err(ArtifactError::Occupied(_))));
    assert_eq!(fs::read_to_string(foreign.join("thesis.txt")).unwrap(), "years of work");
}

#[test]
fn interrupted_compiling_leaves_nothing_behind() {
    let (mlp, parent) = (Mlp::new(), tempfile::tempdir().unwrap());
    let (folder, target) = (parent.path().join("net"), host());
    let (schedules, target) = (mlp.schedules(&target), Target::from(target));
    let (version, options) =
        (Version { target: &target, schedules: &schedules }, Options { name: "net", folder: &folder });
    for step in 0.. {
        let mut left = step;
        let result = artifact::compile(&mlp.network, std::slice::from_ref(&version), &options, &mut |_| {
            left -= 1;
            if left < 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match result {
            Err(ArtifactError::Interrupted) => assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0),
            other => {
                assert!(other.is_ok() && step >= 4, "{step} steps: {other:?}");
                break;
            }
        }
    }
}

#[test]
fn machines_that_no_artifact_is_for_are_refused() {
    let (mlp, parent) = (Mlp::new(), tempfile::tempdir().unwrap());
    let schedules = mlp.schedules(&host());
    let (cpu, gpu) = (Target::from(host()), gpus::gpu("sm_90"));
    let options = Options { name: "net", folder: &parent.path().join("net") };
    for targets in [vec![], vec![&cpu, &cpu], vec![&cpu, &gpu], vec![&gpu, &gpu]] {
        let versions: Vec<_> = targets.into_iter().map(|target| Version { target, schedules: &schedules }).collect();
        let refused = artifact::compile(&mlp.network, &versions, &options, &mut |_| ControlFlow::Continue(()));
        assert!(matches!(refused, Err(ArtifactError::Versions)), "{refused:?}");
    }
    let on_a_gpu = Resources { device: Some(0), ..Resources::default() };
    assert!(matches!(Model::load(shared(), on_a_gpu), Err(RuntimeError::Input(_))));
}

#[test]
fn equal_networks_give_equal_files() {
    let parent = tempfile::tempdir().unwrap();
    let again = Mlp::new().compile(&parent.path().join("again"), &host()).unwrap();
    assert_eq!(again, Manifest::read(shared()).unwrap());
}

fn assert_invalid(folder: &Path, reason: &str) {
    match Model::load(folder, Resources::default()) {
        Err(error @ RuntimeError::Invalid { .. }) => {
            assert!(error.to_string().contains(reason), "{error}, not {reason}")
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("loaded, though {reason}"),
    }
}

fn build_c_program(source: &str, artifact: &Path, folder: &Path) -> PathBuf {
    let program = folder.join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/artifact").join(source);
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"]).arg(&program).arg(source);
    command
        .arg("-I")
        .arg(artifact)
        .arg("-L")
        .arg(artifact)
        .arg("-lnet")
        .arg(format!("-Wl,-rpath,{}", artifact.display()));
    let built = command.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    program
}

fn run_c_program(program: &Path, weights: &Path, x: &[f32]) -> Output {
    let input = program.with_extension("input");
    fs::write(&input, x.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    Command::new(program).arg(weights).arg(input).output().unwrap()
}
