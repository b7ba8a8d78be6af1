//! `compile --seconds`: a search that ends when its time is over, or when it does not pay any more.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::Sandbox;

#[test]
fn a_search_by_seconds_ends_and_says_why() {
    let sandbox = Sandbox::new();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/networks/small_residual.onnx");
    sandbox.file("net.onnx", fs::read(model).unwrap());
    let compile = ["compile", "net.onnx", "-o", "net", "--method", "random", "--layouts", "kept", "--json"];
    let printed = sandbox.succeed(&[&compile[..], &["--seconds", "1"]].concat());
    let found: Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    let (tasks, trials) = (found["tasks"].as_u64().unwrap(), found["trials"].as_u64().unwrap());
    assert!(trials > tasks, "{found}");
    assert_eq!(found["enough"].as_bool().unwrap(), printed.contains("a further second promises little"), "{printed}");
    sandbox.succeed(&["run", "net"]);
    for other in ["--time-budget", "--trials-per-task"] {
        sandbox.fail(&[&compile[..], &["--seconds", "1", other, "1"]].concat(), 2, "cannot be used with");
    }
}
