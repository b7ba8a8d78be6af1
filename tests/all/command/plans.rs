//! `--plan`, `--layouts` and `--without`: networks that are cut otherwise compute the same, and say how they
//! were cut; what was learned of plans is kept.

use std::fs;
use std::path::Path;

use serde_json::Value;

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
        ("last", &["--layouts", "last"], Some("layout 0 = last\nconcatenation 0 = last\n"), 8),
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

#[test]
fn plans_are_searched_and_kept() {
    let sandbox = Sandbox::new();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/networks/small_residual.onnx");
    sandbox.file("net.onnx", fs::read(model).unwrap());
    let compile = ["compile", "net.onnx", "-o", "net", "--trials-per-task", "2", "--method", "random", "--json"];
    let last = |printed: &str| -> Value { serde_json::from_str(printed.lines().last().unwrap()).unwrap() };
    let printed = sandbox.succeed(&compile);
    assert!(printed.contains("every layout last") && printed.contains("plan taken: "), "{printed}");
    let line = last(&printed);
    let tried = line["plans"]["tried"].as_array().unwrap();
    assert_eq!((&tried[0]["plan"], &tried[0]["from"]), (&Value::from(""), &Value::from("default")));
    assert_eq!(tried[1]["from"], "every layout last");
    assert!(tried.iter().all(|plan| plan["tasks_ns"].as_f64().unwrap() > 0.0), "{line}");
    let runs = tried.iter().filter(|plan| plan["run_ns"].is_number()).count();
    assert!(runs == 0 || (2..=4).contains(&runs), "{line}");
    let taken = line["plan"].as_str().unwrap_or("");
    assert!(tried.iter().any(|plan| plan["plan"] == taken), "{line}");
    assert_eq!(line["plans"]["other_taken"], !taken.is_empty());
    assert_eq!(tried[line["plans"]["taken"].as_u64().unwrap() as usize]["plan"], taken);

    let listed = sandbox.succeed(&["records", "plans", "--json"]);
    let listed: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(listed.len(), tried.len());
    for plan in tried {
        let kept = listed.iter().find(|kept| kept["plan"] == plan["plan"]).unwrap();
        let of = |line: &Value| ["tasks_ns", "timing", "run_ns"].map(|field| line[field].clone());
        assert_eq!(of(kept), of(plan));
        assert_eq!((kept["name"].as_str(), &kept["tasks"]), (Some("net"), &plan["tasks"]));
    }
    let network = listed[0]["network"].as_str().unwrap();
    let printed = sandbox.succeed(&["records", "plans", "--network", network]);
    assert!(printed.lines().count() == tried.len() && printed.contains(" 0 decisions "), "{printed}");
    assert_eq!(sandbox.succeed(&["records", "plans", "--network", "0123"]), "");

    // all of it from the store
    let stored = ["compile", "net.onnx", "-o", "again", "--trials-per-task", "0", "--json"];
    let again = last(&sandbox.succeed(&stored));
    assert!(again["plans"]["tried"].as_array().unwrap().len() >= tried.len(), "{again}");
    assert_eq!(again["plans"]["measured_for_moves"], 0);
    let without = |kinds: &str| last(&sandbox.succeed(&[&stored[..], &["--without", kinds]].concat()));
    let nothing = without("layout,concatenation,join");
    assert!(nothing["plans"].is_null() && nothing["plan"].is_null(), "{nothing}");
    // where moves have measured the tasks of other kinds, these may be decided still
    let other = without("layout");
    let plans = other["plans"]["tried"].as_array().into_iter().flatten().map(|tried| &tried["plan"]);
    assert!(plans.chain([&other["plan"]]).all(|plan| !plan.as_str().unwrap_or("").contains("layout")), "{other}");
    let last_only = last(&sandbox.succeed(&[&stored[..], &["--layouts", "last"]].concat()));
    assert!(last_only["plans"].is_null() && last_only["plan"].is_string(), "{last_only}");
    sandbox.fail(&[&stored[..], &["--without", "colour"]].concat(), 2, "invalid value 'colour'");
    let both = ["--layouts", "last", "--without", "layout"];
    sandbox.fail(&[&stored[..], &both].concat(), 2, "--layouts last decides what --without layout leaves");
}
