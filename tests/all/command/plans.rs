//! `--plan` and `--layouts`: networks that are cut otherwise compute the same, and say how they were cut.

use std::fs;
use std::path::Path;

use super::{Sandbox, elements};

#[test]
fn networks_are_compiled_as_planned_and_say_so() {
    let sandbox = Sandbox::new();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/networks/small_residual.onnx");
    sandbox.file("net.onnx", fs::read(model).unwrap());
    let shown = sandbox.succeed(&["show", "net.onnx", "--plan"]);
    assert!(shown.starts_with("layout 0 = kept (of kept, last)\n    Conv "), "{shown}");
    sandbox.file("some.plan", "layout 0 = last\n");
    let mut results = Vec::new();
    for (folder, how, plan, format) in [
        ("kept", &["--layouts", "kept"], None, 3),
        ("last", &["--layouts", "last"], Some("layout 0 = last\nlayout 1 = last\n"), 8),
        ("some", &["--plan", "some.plan"], Some("layout 0 = last\n"), 8),
    ] {
        sandbox.succeed(&[&["compile", "net.onnx", "-o", folder, "--trials-per-task", "0"][..], how].concat());
        let manifest = fs::read(sandbox.path(folder).join("manifest.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
        assert_eq!(manifest["format"], format);
        assert_eq!(manifest["plan"]["text"].as_str(), plan);
        let shown = sandbox.succeed(&["show", folder, "--plan"]);
        match plan {
            None => assert_eq!(shown, "all decisions have their defaults\n"),
            Some(_) => assert!(shown.starts_with("layout 0 = last (of kept, last)\n    Conv "), "{shown}"),
        }
        sandbox.succeed(&["run", folder, "--output-dir", folder]);
        let output = fs::read_dir(sandbox.path(folder)).unwrap().map(|entry| entry.unwrap().path());
        let output = output.into_iter().find(|path| path.extension().is_some_and(|e| e == "npy")).unwrap();
        results.push(elements(&output));
    }
    let largest = results[0].iter().fold(0.0f32, |most, x| most.max(x.abs()));
    for result in &results[1..] {
        assert!(largest > 0.0 && result.len() == results[0].len());
        assert!(result.iter().zip(&results[0]).all(|(a, b)| (a - b).abs() <= 1e-4 * largest));
    }
}

#[test]
fn plans_of_other_networks_are_refused() {
    let sandbox = Sandbox::new();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/networks/small_residual.onnx");
    sandbox.file("net.onnx", fs::read(model).unwrap());
    sandbox.file("other.plan", "layout 99 = last\n");
    sandbox.fail(&["tasks", "net.onnx", "--plan", "other.plan"], 2, "the plan is not one of this network");
    sandbox.file("bad.plan", "layout\n");
    sandbox.fail(&["tasks", "net.onnx", "--plan", "bad.plan"], 2, "expected `site = value`");
    sandbox.fail(&["tasks", "net.onnx", "--plan", "bad.plan", "--layouts", "last"], 2, "cannot be used with");
    sandbox.fail(&["show", "bad.plan", "--plan"], 2, "--plan is of a network");
}
