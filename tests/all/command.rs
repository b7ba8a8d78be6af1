//! The real program: what it prints, and how it ends when something is wrong.

mod driven;
mod extents;
mod gpu;
mod inputs;
mod kill;
mod learning;
mod loops;
mod outputs;
mod plans;
mod pools;
mod precision;
pub mod refusals;
mod seconds;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A matrix product.
pub const TASK: &str = "input t0 8 16\nconst t1 16 24\nout t2 8 24 sum 16 mul t0 a c t1 c b\n";

/// A folder to run the program in.
pub struct Sandbox {
    folder: tempfile::TempDir,
}

impl Sandbox {
    pub fn new() -> Sandbox {
        Sandbox { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Runs in the folder, with its own cache.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder.path()).env("XDG_CACHE_HOME", self.path("cache")).stdin(Stdio::null());
        command
    }

    /// Our program.
    pub fn tilescribe(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_tilescribe"));
        command.args(arguments);
        command
    }

    /// Our program, which can write files of so many blocks of 512 bytes: like a disk that is full soon.
    fn tilescribe_with_room(&self, blocks: u32, arguments: &[&str]) -> Command {
        let mut command = self.command("sh");
        let limited = format!("ulimit -f {blocks}; exec \"$@\"");
        command.args(["-c", &limited, "sh", env!("CARGO_BIN_EXE_tilescribe")]).args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.tilescribe(arguments).output().unwrap()
    }

    /// Expects success; returns what was printed.
    pub fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Expects an exit code, and an error that says `reason`.
    pub fn fail(&self, arguments: &[&str], code: i32, reason: &str) {
        let output = self.run(arguments);
        expect_failure(&output, code, reason);
    }
}

/// Expects an exit code, and an error that says `reason`.
pub fn expect_failure(output: &Output, code: i32, reason: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(reason), "`{said}` does not say `{reason}`");
    assert!(!said.contains("panicked"), "{said}");
}

/// ONNX by hand: a field of a protobuf message that holds bytes, or a number.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [vec![number << 3 | 2], varint(bytes.len() as u64), bytes.to_vec()].concat()
}

fn number(field: u8, value: u64) -> Vec<u8> {
    [vec![field << 3], varint(value)].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// An operator with inputs and an output.
fn node(op: &str, inputs: &[&str], output: &str) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|input| field(1, input.as_bytes())).collect();
    [inputs, field(2, output.as_bytes()), field(3, output.as_bytes()), field(4, op.as_bytes())].concat()
}

/// An f32 input or output.
fn value(name: &str, shape: &[u64]) -> Vec<u8> {
    value_of(name, shape.iter().flat_map(|extent| field(1, &number(1, *extent))).collect())
}

/// One whose extents have names instead.
fn symbolic(name: &str, dims: &[&str]) -> Vec<u8> {
    value_of(name, dims.iter().flat_map(|dim| field(1, &field(2, dim.as_bytes()))).collect())
}

fn value_of(name: &str, dims: Vec<u8>) -> Vec<u8> {
    let tensor_type = [number(1, 1), field(2, &dims)].concat();
    [field(1, name.as_bytes()), field(2, &field(1, &tensor_type))].concat()
}

/// From `x` to `y`, operator set 17.
fn model(nodes: &[Vec<u8>], shape: &[u64]) -> Vec<u8> {
    model_of(nodes, &[value("x", shape)], &[value("y", shape)])
}

fn model_of(nodes: &[Vec<u8>], inputs: &[Vec<u8>], outputs: &[Vec<u8>]) -> Vec<u8> {
    let nodes: Vec<u8> = nodes.iter().flat_map(|node| field(1, node)).collect();
    let inputs: Vec<u8> = inputs.iter().flat_map(|input| field(11, input)).collect();
    let outputs: Vec<u8> = outputs.iter().flat_map(|output| field(12, output)).collect();
    let graph = [nodes, field(2, b"g"), inputs, outputs].concat();
    [number(1, 8), field(7, &graph), field(8, &number(2, 17))].concat()
}

/// An array as NumPy writes it.
fn numpy(shape: &[usize], values: &[f32]) -> Vec<u8> {
    let extents: String = shape.iter().map(|extent| format!("{extent}, ")).collect();
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({extents}), }}\n");
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

pub fn small_model() -> Vec<u8> {
    model(&[node("Relu", &["x"], "h"), node("Softmax", &["h"], "y")], &[4, 16])
}

#[test]
fn usage_errors_are_the_users() {
    let sandbox = Sandbox::new();
    assert!(sandbox.succeed(&["--help"]).contains("compile"));
    sandbox.fail(&["compile"], 2, "required");
    sandbox.fail(&["compile", "net.onnx", "-o", "out", "--threads", "0"], 2, "0 is not in 1..=256");
    sandbox.fail(&["compile", "missing.onnx", "-o", "out"], 2, "missing.onnx");
    sandbox.fail(&["run", "missing"], 2, "manifest.json");
    sandbox.fail(&["tune", "missing.txt"], 2, "missing.txt");
    let store = sandbox.path("none.db");
    sandbox.fail(&["records", "list", "--store", store.to_str().unwrap()], 2, "there is no store");
}

#[test]
fn networks_that_make_no_sense_are_refused() {
    let sandbox = Sandbox::new();
    let good = small_model();
    let cases = [
        ("empty", Vec::new(), "it holds no graph"),
        ("truncated", good[..good.len() - 9].to_vec(), "it is cut off"),
        ("halved", good[..good.len() / 2].to_vec(), "it is cut off"),
        ("text", b"this is not a network".to_vec(), "no ONNX model"),
        ("unsupported", model(&[node("Levitate", &["x"], "h"), node("Hover", &["h"], "y")], &[4]), "2 of the nodes"),
        ("cyclic", model(&[node("Add", &["x", "y"], "h"), node("Relu", &["h"], "y")], &[4]), "the graph is cyclic: "),
        (
            "huge",
            model(&[node("Relu", &["x"], "y")], &[1 << 62, 1 << 62]),
            "x: shape [4611686018427387904, 4611686018427387904] is too large",
        ),
        ("wide", model(&[node("Relu", &["x"], "y")], &[1 << 62]), "x: shape [4611686018427387904] is too large"),
    ];
    for (name, bytes, reason) in cases {
        let file = format!("{name}.onnx");
        sandbox.file(&file, bytes);
        for arguments in [&["compile", &file, "-o", "out"][..], &["tasks", &file], &["tune", &file], &["bench", &file]]
        {
            let output = sandbox.run(arguments);
            expect_failure(&output, 2, reason);
            expect_failure(&output, 2, &file);
        }
        assert!(!sandbox.path("out").exists(), "{name}");
    }
    // all unsupported operators at once
    let output = sandbox.run(&["tasks", "unsupported.onnx"]);
    for operator in ["ai.onnx.Levitate", "ai.onnx.Hover"] {
        expect_failure(&output, 2, operator);
    }
    sandbox.file("huge.txt", "input t0 4611686018427387904 4\nout t1 4611686018427387904 sum 4 t0 a b\n");
    sandbox.fail(&["tune", "huge.txt", "--method", "random"], 2, "huge.txt holds no task: ");
    sandbox.fail(&["tasks", "huge.onnx", "--dim", "batch=4611686018427387904"], 2, "batch=4611686018427387904");
}

/// `show` of what a tuning of `small.onnx` left in the store.
fn looks_into_programs(sandbox: &Sandbox) {
    let tasks = sandbox.succeed(&["tasks", "small.onnx", "--json"]);
    let task: serde_json::Value = serde_json::from_str(tasks.lines().next().unwrap()).unwrap();
    let hash = task["hash"].as_str().unwrap();
    let best = sandbox.succeed(&["show", &hash[..8]]);
    assert!(best.contains("GFLOP/s") && best.contains(" = "), "{best}");
    // by its network it has a name, otherwise it is the same
    let named = sandbox.succeed(&["show", "small.onnx#0@1"]);
    assert_eq!(best.split_once(',').unwrap().1, named.split_once(',').unwrap().1);
    assert!(sandbox.succeed(&["show", "small.onnx#0", "--ir"]).contains("define void @kernel"));
    assert!(sandbox.succeed(&["show", "small.onnx#0", "--asm"]).contains("kernel:"));
    let why = sandbox.succeed(&["show", "small.onnx#0@1", "--why"]);
    let decisions = best.lines().filter(|line| line.contains(" = ")).count();
    // below a title and the names of rules, decisions stand at the margin, and the steps that follow are
    // indented
    let told = why.lines().skip(1).filter(|line| !line.starts_with(' ') && !line.ends_with(':'));
    assert_eq!(told.count(), decisions, "{why}");
    let schedule = sandbox.succeed(&["show", "small.onnx#0@1", "--schedule"]);
    let mut steps: Vec<&str> = why.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    let mut scheduled: Vec<&str> = schedule.lines().collect();
    steps.sort_unstable();
    scheduled.sort_unstable();
    assert_eq!(steps, scheduled);
    let untuned = sandbox.succeed(&["show", "small.onnx#0", "--untuned", "--why"]);
    let mut untuned_lines = untuned.lines().skip(1).filter(|line| !line.starts_with(' ') && !line.ends_with(':'));
    assert!(untuned_lines.all(|line| line.ends_with("the same")), "{untuned}");
    sandbox.fail(&["show", "small.onnx#0@1000"], 2, "programs of");
    sandbox.fail(&["show", "0123456789ab"], 2, "no task 0123456789ab");
    sandbox.fail(&["show", "small.onnx#0", "--ir", "--asm"], 2, "cannot be used with");
    sandbox.fail(&["show", "small.onnx#0", "--json", "--asm"], 2, "cannot be used with");
}

/// With and without the machine's limits, which `doctor` measures.
#[test]
fn programs_are_compared_with_the_machine() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    sandbox.succeed(&["tune", "task.txt", "--method", "random", "--trials", "2"]);
    let json = |arguments: &[&str]| serde_json::from_str::<Value>(&sandbox.succeed(arguments)).unwrap();
    let before = sandbox.succeed(&["show", "task.txt", "--figures"]);
    assert!(before.contains("must read 2.00 KiB, write 768 B") && before.contains("hottest"), "{before}");
    assert!(before.contains("`tilescribe doctor --measure` measures them") && !before.contains("roofline"), "{before}");
    let figures = json(&["show", "task.txt", "--json"]);
    assert_eq!(figures["figures"]["demand"]["compulsory"]["read_bytes"], 2048, "{figures}");
    assert!(figures["best_ns"].as_u64() > Some(0) && figures["of_peak"].is_null(), "{figures}");
    let machine = json(&["doctor", "--json"]);
    let positive = |value: &Value| assert!(value.as_f64().unwrap() > 0.0, "{machine}");
    let bandwidths = machine["roofline"]["bandwidths"].as_array().unwrap();
    bandwidths.iter().for_each(|bandwidth| positive(&bandwidth["gb_per_s"]["all_cores"]));
    positive(&machine["roofline"]["peak_gflops"]["one_core"]);
    let short = machine["roofline"]["short_peaks"].as_array().into_iter().flatten();
    short.for_each(|peak| positive(&peak["gflops"]["all_cores"]));
    // kept, not measured again
    assert_eq!(json(&["doctor", "--json"])["roofline"], machine["roofline"]);
    let after = sandbox.succeed(&["show", "task.txt", "--figures"]);
    assert!(after.contains(" % of the peak, ") && after.contains(" % of the roofline"), "{after}");
    positive(&json(&["show", "task.txt", "--figures", "--json"])["of_roofline"]);
    assert!(sandbox.succeed(&["show", "task.txt"]).contains("of peak"));
    let kept = fs::read_dir(sandbox.path("cache/tilescribe")).unwrap().map(|entry| entry.unwrap().path());
    let kept = kept.into_iter().find(|path| path.to_string_lossy().contains("roofline-")).unwrap();
    fs::write(&kept, "{").unwrap();
    assert!(sandbox.succeed(&["doctor"]).contains("no figures of this machine"));
    assert!(sandbox.succeed(&["show", "task.txt", "--figures"]).contains("no figures of this machine"));
    assert!(sandbox.succeed(&["doctor", "--measure"]).contains("# f32 peak, GFLOP/s"));
    assert_ne!(fs::read(&kept).unwrap(), b"{");
}

#[test]
fn a_network_compiles_runs_and_is_timed() {
    let sandbox = Sandbox::new();
    sandbox.file("small.onnx", small_model());
    sandbox.succeed(&["compile", "small.onnx", "-o", "plain", "--trials-per-task", "0"]);
    assert!(sandbox.succeed(&["show", "plain"]).contains("not timed"));
    assert!(sandbox.succeed(&["show", "plain", "--task", "0", "--nest"]).contains("body:"));
    let printed = sandbox.succeed(&["compile", "small.onnx", "-o", "net", "--json"]);
    looks_into_programs(&sandbox);
    let summary: serde_json::Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    for key in ["tasks", "trials", "valid", "failed", "seconds", "trials_per_s"] {
        assert!(summary.get(key).is_some(), "{key} in {summary}");
    }
    let printed = sandbox.succeed(&["run", "net", "--output-dir", "first"]);
    assert!(printed.starts_with("y f32[4, 16]"), "{printed}");
    // the output is an input of the same shape: of the softmax of what was a softmax
    sandbox.succeed(&["run", "net", "--input", "x=first/y.npy", "--output-dir", "second"]);
    let rows = elements(&sandbox.path("second/y.npy"));
    for row in rows.chunks(16) {
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{row:?}");
    }
    sandbox.fail(&["run", "net", "--input", "z=first/y.npy"], 2, "no input `z`");
    sandbox.fail(&["run", "net", "--input", "x=small.onnx"], 2, "no .npy file");
    for what in ["net", "small.onnx"] {
        let printed = sandbox.succeed(&["bench", what, "--seconds", "0"]);
        let figures: serde_json::Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
        let number = |key: &str| figures[key].as_f64().unwrap();
        assert!(
            0.0 < number("min_ms") && number("min_ms") <= number("median_ms") && number("runs") >= 1.0,
            "{figures}"
        );
    }
    let printed = sandbox.succeed(&["bench", "net", "--seconds", "0", "--profile", "--trace", "run.json"]);
    let last: serde_json::Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    let tasks = last["profile"]["tasks"].as_array().unwrap();
    let header = printed.lines().next().unwrap();
    assert!(["time", "alone", "idle", "task"].iter().all(|column| header.contains(column)), "{printed}");
    for task in tasks {
        assert!(task["ns"].as_f64().unwrap() > 0.0 && printed.contains(task["task"].as_str().unwrap()), "{printed}");
    }
    let trace: serde_json::Value = serde_json::from_slice(&fs::read(sandbox.path("run.json")).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > tasks.len());
    // a trace may replace another, and nothing else
    sandbox.succeed(&["bench", "net", "--seconds", "0", "--profile", "--trace", "run.json"]);
    sandbox.fail(&["bench", "net", "--profile", "--trace", "small.onnx"], 2, "is not a trace of threads");
    assert!(sandbox.succeed(&["tasks", "small.onnx"]).contains("input t0"));
}

/// The f32 elements of a .npy file: what follows the header's line.
fn elements(path: &Path) -> Vec<f32> {
    let bytes = fs::read(path).unwrap();
    let start = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    bytes[start..].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn the_space_can_be_walked_by_hand() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", format!("# a matrix product\n{TASK}"));
    let mut prefix = String::new();
    for step in 0..200 {
        sandbox.file("prefix.txt", &prefix);
        let printed = sandbox.succeed(&["next", "task.txt", "prefix.txt", "--json"]);
        let next: serde_json::Value = serde_json::from_str(&printed).unwrap();
        if let Some(nest) = next.get("nest") {
            assert!(step > 0 && nest.as_str().unwrap().contains("for "), "{nest}");
            sandbox.fail(&["next", "task.txt", "prefix.txt", "--take", "one more = 1"], 2, "left over");
            sandbox.fail(&["next", "task.txt", "--take", "nothing = 1"], 2, "do not fit");
            return;
        }
        let candidate = &next["candidates"][next["default"].as_u64().unwrap() as usize];
        prefix.push_str(&format!("{} = {}\n", next["site"].as_str().unwrap(), candidate.as_str().unwrap()));
    }
    panic!("no program after 200 decisions:\n{prefix}");
}

#[test]
fn tuning_measures_and_keeps() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    let tune = ["tune", "task.txt", "--method", "random", "--trials-per-task", "3", "--json"];
    let printed = sandbox.succeed(&tune);
    let summary: serde_json::Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    assert_eq!(summary["trials"], 3, "{printed}");
    // what is in the store counts
    let printed = sandbox.succeed(&tune);
    let summary: serde_json::Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    assert_eq!(summary["trials"], 0, "{printed}");
    assert!(sandbox.succeed(&["records", "list"]).contains("3 records"));
    assert_eq!(sandbox.succeed(&["records", "export", "corpus.zst"]).trim(), "3 records");
    let imported = sandbox.succeed(&["records", "import", "corpus.zst", "--store", "other.db"]);
    assert!(imported.contains("3 new"), "{imported}");
    sandbox.fail(&["records", "import", "task.txt", "--store", "other.db"], 2, "");
}

#[test]
fn a_machine_without_a_linker_is_told_what_it_needs() {
    let sandbox = Sandbox::new();
    sandbox.file("small.onnx", small_model());
    let mut command = sandbox.command(env!("CARGO_BIN_EXE_tilescribe"));
    let output =
        command.args(["compile", "small.onnx", "-o", "out"]).env("PATH", sandbox.path("empty")).output().unwrap();
    expect_failure(&output, 3, "install gcc");
    assert!(!sandbox.path("out").exists());
}

#[test]
fn the_doctor_describes_this_machine_as_a_target() {
    let sandbox = Sandbox::new();
    let printed = sandbox.succeed(&["doctor"]);
    sandbox.file("host.toml", &printed);
    sandbox.file("small.onnx", small_model());
    sandbox.succeed(&["compile", "small.onnx", "-o", "net", "--target", "host.toml"]);
    sandbox.file("odd.toml", printed.replace("cores = ", "cores = 9999"));
    sandbox.fail(&["compile", "small.onnx", "-o", "other", "--target", "odd.toml"], 2, "cores");
}
