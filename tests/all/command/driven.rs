//! What a program that drives this one relies on: `check`, and messages in JSON.

use std::process::Output;

use serde_json::{Value, json};

use super::{Sandbox, model_of, node, small_model, symbolic, value};

fn json_lines(bytes: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(bytes).lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// What a command writes with messages in JSON.
fn driven(sandbox: &Sandbox, arguments: &[&str]) -> Output {
    sandbox.tilescribe(&[&["--message-format", "json"], arguments].concat()).output().unwrap()
}

/// The error that a command ends with.
fn error_of(sandbox: &Sandbox, arguments: &[&str], code: i32) -> Value {
    let output = driven(sandbox, arguments);
    assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
    json_lines(&output.stderr).pop().unwrap()
}

#[test]
fn a_network_is_checked_without_compiling_it() {
    let sandbox = Sandbox::new();
    let open = ["batch", "width"];
    sandbox.file("net.onnx", model_of(&[node("Relu", &["x"], "y")], &[symbolic("x", &open)], &[symbolic("y", &open)]));
    let printed = sandbox.succeed(&["check", "net.onnx", "--dim", "batch=1..8", "--dim", "width=3"]);
    for line in ["input x: f32[batch, 3]", "output y: f32[batch, 3]", "net.onnx: 1 task, 1 call, 24 flop at most"] {
        assert!(printed.lines().any(|printed| printed == line), "{line}: {printed}");
    }
    let found: Value = serde_json::from_str(&sandbox.succeed(&[
        "check",
        "net.onnx",
        "--dim",
        "batch=1..8",
        "--dim",
        "width=3",
        "--json",
    ]))
    .unwrap();
    let port = |name: &str| json!([{"name": name, "dtype": "f32", "shape": ["batch", 3]}]);
    assert_eq!((&found["inputs"], &found["outputs"]), (&port("x"), &port("y")));
    assert_eq!(found["dimensions"], json!([{"name": "batch", "low": 1, "high": 8, "multiple": 1}]));
    assert!(!sandbox.path("net").exists());
}

#[test]
fn errors_say_whose_fault_they_are() {
    let sandbox = Sandbox::new();
    let (x, z) = (value("x", &[2, 3]), value("z", &[2, 3]));
    let nodes = [node("Abacus", &["x"], "y"), node("Sundial", &["y"], "z")];
    sandbox.file("new.onnx", model_of(&nodes, &[x], &[z]));
    let error = error_of(&sandbox, &["check", "new.onnx"], 2);
    assert_eq!(
        (&error["type"], &error["blame"], &error["cause"]),
        (&json!("error"), &json!("input"), &json!("unsupported"))
    );
    let named = [("Abacus", "y"), ("Sundial", "z")];
    let nodes = named.map(|(operator, node)| json!({"domain": "", "operator": operator, "node": node}));
    assert_eq!(error["nodes"], json!(nodes));
    sandbox.file("text.onnx", "not a network");
    sandbox.file("net.onnx", small_model());
    for (arguments, code, blame, cause) in [
        (&["check", "text.onnx"][..], 2, "input", "network"),
        (&["check", "net.onnx", "--dim", "batch=3"], 2, "input", "other"),
        (&["check", "net.onnx", "--abacus"], 2, "input", "arguments"),
        (&["check", "net.onnx", "--target", "text.onnx"], 2, "input", "target"),
        (&["check", "missing.onnx"], 2, "input", "network"),
        (&["compile", "net.onnx", "-o", "text.onnx"], 2, "input", "other"),
    ] {
        let error = error_of(&sandbox, arguments, code);
        assert_eq!((&error["blame"], &error["cause"]), (&json!(blame), &json!(cause)), "{error}");
        assert!(!error["text"].as_str().unwrap().is_empty());
    }
}

#[test]
fn progress_is_an_object_a_line() {
    let sandbox = Sandbox::new();
    sandbox.file("net.onnx", small_model());
    let arguments = ["compile", "net.onnx", "-o", "net", "--trials-per-task", "2", "--method", "random"];
    let output = driven(&sandbox, &arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = json_lines(&output.stderr);
    let measuring: Vec<&Value> = lines.iter().filter(|line| line["what"] == "measuring").collect();
    assert!(!measuring.is_empty(), "{lines:?}");
    for line in measuring {
        assert!(line["type"] == "progress" && line["done"].is_u64() && line["elapsed_s"].is_f64(), "{line}");
        assert!(line["total"].as_u64().is_none_or(|total| line["done"].as_u64() <= Some(total)), "{line}");
    }
}

#[test]
fn machines_that_there_are_not_have_no_programs_to_show() {
    let sandbox = Sandbox::new();
    sandbox.file("net.onnx", small_model());
    sandbox.succeed(&["compile", "net.onnx", "-o", "net", "--trials-per-task", "0"]);
    let path = sandbox.path("net/manifest.json");
    let mut manifest: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    manifest["versions"][0]["target"]["cpu"] = json!("abacus");
    std::fs::write(&path, manifest.to_string()).unwrap();
    sandbox.fail(&["show", "net", "--task", "0"], 2, "LLVM knows no");
}
