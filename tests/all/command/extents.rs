//! Networks whose extents are known only when they run: what is assumed, given, shown and refused.

use serde_json::Value;

use super::{Sandbox, model_of, node, numpy, symbolic};

/// `y = relu(x)` with `x` of batch × `n=1`.
fn compiled(sandbox: &Sandbox, dims: &[&str]) -> String {
    let open = ["batch", "n=1"];
    sandbox.file("net.onnx", model_of(&[node("Relu", &["x"], "y")], &[symbolic("x", &open)], &[symbolic("y", &open)]));
    sandbox.succeed(&[&["compile", "net.onnx", "-o", "net", "--trials-per-task", "0"], dims].concat())
}

fn zeros(shape: &[usize]) -> Vec<u8> {
    numpy(shape, &vec![0.0; shape.iter().product()])
}

#[test]
fn what_is_assumed_is_said() {
    let sandbox = Sandbox::new();
    let printed = compiled(&sandbox, &[]);
    for line in
        ["batch: 1..64, assumed; --dim batch=LOW..HIGH changes it", "n=1: 1..524288, assumed; --dim n=1=LOW..HIGH"]
    {
        assert!(printed.contains(line), "{printed}");
    }
    let printed = compiled(&sandbox, &["--dim", "batch=2..8", "--dim", "n=1=3"]);
    assert!(!printed.contains("assumed"), "{printed}");
    let shown = sandbox.succeed(&["show", "net"]);
    for line in ["input x f32[batch, 3]", "output y f32[batch, 3]", "extent batch 2..8"] {
        assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
    let tasks = sandbox.succeed(&["tasks", "net.onnx", "--dim", "batch=2..8", "--dim", "n=1=3"]);
    assert!(tasks.contains("is batch, 2..8"), "{tasks}");
    // extents to tune for give the range, too
    compiled(&sandbox, &["--dim", "batch=16,1,8", "--dim", "n=1=3"]);
    assert!(sandbox.succeed(&["show", "net"]).contains("extent batch 1..16"));
}

#[test]
fn runs_take_any_extents_of_the_range() {
    let sandbox = Sandbox::new();
    compiled(&sandbox, &["--dim", "batch=2..8", "--dim", "n=1=3..5"]);
    // a middle value, what is asked for, and the shape of a file
    assert!(sandbox.succeed(&["run", "net"]).contains("y f32[5, 4]: "));
    assert!(sandbox.succeed(&["run", "net", "--at", "batch=8"]).contains("y f32[8, 4]: "));
    assert!(sandbox.succeed(&["run", "net", "--at", "batch=2,n=1=5"]).contains("y f32[2, 5]: "));
    sandbox.file("x.npy", zeros(&[7, 3]));
    assert!(sandbox.succeed(&["run", "net", "--input", "x=x.npy"]).contains("y f32[7, 3]: from 0.000000"));

    sandbox.fail(&["run", "net", "--at", "batch=9"], 2, "--at batch=9: the network takes 2 to 8");
    sandbox.fail(&["run", "net", "--at", "btch=8"], 2, "those known at run time are `batch`, `n=1`");
    sandbox.fail(&["run", "net", "--at", "batch=8,batch=8"], 2, "--at gives `batch` twice");
    sandbox.fail(&["run", "net", "--at", "batch"], 2, "expected NAME=N");
    sandbox.file("x.npy", zeros(&[7, 6]));
    sandbox.fail(&["run", "net", "--input", "x=x.npy"], 2, "axis 1 of input x, n=1, is 6; the network takes 3 to 5");
    sandbox.file("x.npy", zeros(&[7]));
    sandbox.fail(&["run", "net", "--input", "x=x.npy"], 2, "input `x` is f32[batch, n=1], f32[7] was given");
    sandbox.fail(&["tasks", "net.onnx", "--dim", "batch=8..2"], 2, "8 is more than 2");
}

#[test]
fn times_are_taken_at_several_extents() {
    let sandbox = Sandbox::new();
    compiled(&sandbox, &["--dim", "batch=2..8", "--dim", "n=1=3"]);
    let rows = |arguments: &[&str]| -> Vec<Value> {
        let printed = sandbox.succeed(&[&["bench", "net", "--seconds", "0.01"], arguments].concat());
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let found = rows(&["--at", "batch=8", "--at", "batch=3"]);
    assert_eq!(found.iter().map(|row| row["at"]["batch"].as_i64()).collect::<Vec<_>>(), [Some(8), Some(3)]);
    assert!(found.iter().all(|row| row["min_ms"].as_f64().is_some_and(|ms| ms > 0.0)));
    assert_eq!(rows(&[])[0]["at"]["batch"], 5);
    sandbox.fail(&["bench", "net", "--at", "batch=3", "--at", "batch=1"], 2, "--at batch=1: the network takes 2 to 8");
}

#[test]
fn tasks_say_what_they_are_tuned_at() {
    let sandbox = Sandbox::new();
    compiled(&sandbox, &["--dim", "n=1=3"]);
    let points = |arguments: &[&str]| -> Vec<String> {
        let printed = sandbox.succeed(&[&["tasks", "net.onnx", "--dim", "n=1=3"], arguments].concat());
        printed.lines().filter_map(|line| line.strip_prefix("tune ")).map(str::to_string).collect()
    };
    // the least, and the middle by ratio
    assert_eq!(points(&["--dim", "batch=1..64"]), ["1", "8"]);
    assert_eq!(points(&["--dim", "batch=16,1,8"]), ["16", "1", "8"]);
    assert_eq!(points(&["--dim", "batch=1..64", "--tune-at", "batch=5", "--tune-at", "batch=64"]), ["5", "64"]);
    let refused = |arguments: &[&str], reason| {
        sandbox.fail(&[&["tasks", "net.onnx", "--dim", "n=1=3", "--dim", "batch=2..8"], arguments].concat(), 2, reason);
    };
    refused(&["--tune-at", "batch=9"], "a point to tune for: batch is 9; the network takes 2 to 8");
    refused(&["--tune-at", "btch=2"], "there is no extent `btch` that is known only at run time; those are `batch`");
}

/// `h_next = h + x`, rows of 2, and `y = relu(h_next)`.
fn summing(sandbox: &Sandbox) {
    let rows = ["batch", "width"];
    let nodes = [node("Add", &["h", "x"], "h_next"), node("Relu", &["h_next"], "y")];
    let port = |name: &str| symbolic(name, &rows);
    sandbox.file("net.onnx", model_of(&nodes, &[port("h"), port("x")], &[port("y"), port("h_next")]));
}

#[test]
fn states_go_on_from_run_to_run() {
    let sandbox = Sandbox::new();
    summing(&sandbox);
    let compile = ["compile", "net.onnx", "-o", "net", "--trials-per-task", "0", "--dim", "width=2"];
    let printed = sandbox.succeed(&[&compile[..], &["--state", "h=h_next"]].concat());
    assert!(printed.contains("state h: replaced by every run"), "{printed}");
    let shown = sandbox.succeed(&["show", "net"]);
    assert!(shown.contains("state h f32[batch, 2], replaced by h_next"), "{shown}");
    // three parts of a stream: 1, 2, 3
    sandbox.file("x.npy", array(&[3, 1, 2], &[1.0, 1.0, 2.0, 2.0, 3.0, 3.0]));
    let printed = sandbox.succeed(&["run", "net", "--input", "x=x.npy", "--loop", "--output-dir", "out"]);
    assert!(printed.contains("3 runs: median ") && printed.contains(" runs/s"), "{printed}");
    let written = std::fs::read(sandbox.path("out/y.npy")).unwrap();
    assert_eq!(&written[written.len() - 24..], floats(&[1.0, 1.0, 3.0, 3.0, 6.0, 6.0]));
    assert!(sandbox.succeed(&["run", "net", "--input", "x=x.npy", "--loop", "2"]).contains("2 runs: "));
    assert!(sandbox.succeed(&["bench", "net", "--seconds", "0.01"]).contains("median_ms"));
    sandbox.fail(&["run", "net", "--input", "x=x.npy", "--loop", "4"], 2, "input `x` has 3 parts");
    sandbox.fail(&["run", "net", "--loop"], 2, "--loop wants a number of runs");
    // the * of a pattern stands for the same text
    sandbox.succeed(&[&compile[..], &["--state", "*=*_next"]].concat());
    sandbox.fail(&[&compile[..], &["--state", "g=h_next"]].concat(), 2, "--state g=h_next fits no input and output");
    sandbox.fail(&[&compile[..], &["--state", "g_*=h"]].concat(), 2, "expected INPUT=OUTPUT, or both with one `*`");
    sandbox.fail(&[&compile[..], &["--state", "x=y", "--state", "h=h_next"]].concat(), 2, "fix it with --dim batch=N");
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// An array, as NumPy writes it.
fn array(shape: &[usize], values: &[f32]) -> Vec<u8> {
    let mut bytes = zeros(shape);
    bytes.truncate(bytes.len() - 4 * values.len());
    [bytes, floats(values)].concat()
}
