//! `--precision`: every command that reads a network honours it, and the others refuse it.

use std::fs;

use serde_json::Value;

use super::{Sandbox, TASK, elements, field, node, number, value};

/// `y = x · w`, of 4 × 32 by 32 × 24.
fn product() -> Vec<u8> {
    let raw: Vec<u8> = (0..32 * 24u16).flat_map(|at| (f32::from(at % 37) / 37.0 - 0.4).to_le_bytes()).collect();
    let weights = [number(1, 32), number(1, 24), number(2, 1), field(8, b"w"), field(9, &raw)].concat();
    let (x, y) = (field(11, &value("x", &[4, 32])), field(12, &value("y", &[4, 24])));
    let product = field(1, &node("MatMul", &["x", "w"], "y"));
    let graph = [product, field(2, b"g"), field(5, &weights), x, y].concat();
    [number(1, 8), field(7, &graph), field(8, &number(2, 17))].concat()
}

fn last_line(printed: &str) -> Value {
    serde_json::from_str(printed.lines().last().unwrap()).unwrap()
}

const PRECISIONS: [&str; 2] = ["f32", "bf16"];

#[test]
fn artifacts_are_compiled_in_the_precision_and_say_so() {
    let sandbox = Sandbox::new();
    sandbox.file("net.onnx", product());
    let mut results = Vec::new();
    for (precision, format) in PRECISIONS.into_iter().zip([3, 7]) {
        let arguments = ["compile", "net.onnx", "-o", precision, "--precision", precision];
        let printed = sandbox.succeed(&[&arguments[..], &["--trials-per-task", "0", "--json"]].concat());
        assert_eq!(last_line(&printed)["precision"], precision);
        let shown = sandbox.succeed(&["show", precision]);
        assert!(shown.contains(&format!("precision {precision}\n")), "{shown}");
        let manifest = fs::read(sandbox.path(precision).join("manifest.json")).unwrap();
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        assert_eq!((&manifest["format"], manifest["precision"].as_str().unwrap_or("f32")), (&format.into(), precision));
        sandbox.succeed(&["run", precision, "--output-dir", "out"]);
        results.push(elements(&sandbox.path("out/y.npy")));
    }
    let off = results[0].iter().zip(&results[1]).map(|(exact, short)| (exact - short).abs()).fold(0.0, f32::max);
    assert!(1e-4 < off && off < 0.05, "{off}");

    let damaged = sandbox.path("bf16/manifest.json");
    let text = fs::read_to_string(&damaged).unwrap();
    for (from, to, reason) in [("\"bf16\"", "\"bf8\"", "bf8"), ("\"format\": 7", "\"format\": 3", "format 3")] {
        assert!(text.contains(from), "{text}");
        fs::write(&damaged, text.replacen(from, to, 1)).unwrap();
        sandbox.fail(&["run", "bf16"], 2, reason);
    }
}

#[test]
fn every_command_honours_the_precision() {
    let sandbox = Sandbox::new();
    sandbox.file("net.onnx", product());
    let mut hashes = Vec::new();
    for precision in PRECISIONS {
        let with = |arguments: &[&str]| sandbox.succeed(&[arguments, &["--precision", precision]].concat());
        let is_read = |printed: &str| assert_eq!(printed.contains("bf16"), precision == "bf16", "{printed}");
        assert_eq!(last_line(&with(&["check", "net.onnx", "--json"]))["precision"], precision);
        let task = last_line(&with(&["tasks", "net.onnx", "--json"]));
        is_read(task["workload"].as_str().unwrap());
        let hash = task["hash"].as_str().unwrap().to_string();
        // behind that which rounds the input
        let product = format!("net.onnx#{}", task["task"]);
        is_read(&with(&["show", &product, "--untuned", "--nest"]));
        with(&["tune", "net.onnx", "--method", "random", "--trials-per-task", "1"]);
        assert!(sandbox.succeed(&["records", "list"]).contains(&hash[..6]));
        with(&["show", &product]);
        let next = with(&["next", &product]);
        assert!(next.contains("= one of"), "{next}");
        with(&["bench", "net.onnx", "--seconds", "0"]);
        let methods = ["compare", "--methods", "random", "--trials", "1", "--seeds", "1", "-o", precision];
        with(&[&methods[..], &["--workloads", "net.onnx"]].concat());
        hashes.push(hash);
    }
    assert_ne!(hashes[0], hashes[1]);
    // artifacts that `bench` keeps
    assert_eq!(fs::read_dir(sandbox.path("cache/tilescribe/artifacts")).unwrap().count(), 2);
    let compared = PRECISIONS.map(|precision| fs::read_to_string(sandbox.path(precision).join("runs.jsonl")).unwrap());
    for (runs, hash) in compared.iter().zip(&hashes) {
        assert!(runs.contains(hash.as_str()), "{runs}");
    }
}

#[test]
fn a_precision_without_a_network_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.file("net.onnx", product());
    sandbox.file("task.txt", TASK);
    sandbox.succeed(&["compile", "net.onnx", "-o", "net", "--trials-per-task", "0"]);
    for arguments in [&["tune", "task.txt"][..], &["next", "task.txt"], &["show", "net"], &["bench", "net"]] {
        sandbox.fail(&[arguments, &["--precision", "bf16"]].concat(), 2, "none is read");
    }
    sandbox.fail(&["check", "net.onnx", "--precision", "bf8"], 2, "`bf8` is no precision: f32 or bf16");
}
