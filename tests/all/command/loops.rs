//! Networks whose loops only computed conditions end.

use super::{Sandbox, field, model, node, numpy, value, varint};

/// Inputs that mean nothing need not end a loop: what is measured are its tasks, not the network.
#[test]
fn a_loop_that_may_never_end_is_not_run_to_be_compiled() {
    let sandbox = Sandbox::new();
    // it goes on as long as the sum is a number
    let nodes = [node("Tanh", &["s"], "t"), node("ReduceSum", &["t"], "r"), node("Equal", &["r", "r"], "on")];
    let nodes: Vec<u8> = nodes.iter().flat_map(|node| field(1, node)).collect();
    let inputs: Vec<u8> = ["i", "go", "s"].iter().flat_map(|name| field(11, &value(name, &[]))).collect();
    let outputs: Vec<u8> = ["on", "t"].iter().flat_map(|name| field(12, &value(name, &[]))).collect();
    let body = [nodes, field(2, b"body"), inputs, outputs].concat();
    let is_graph = [vec![0xa0, 0x01], varint(5)].concat();
    let attribute = [field(1, b"body"), field(6, &body), is_graph].concat();
    let repeats = [node("Loop", &["", "", "x"], "y"), field(5, &attribute)].concat();
    sandbox.file("net.onnx", model(&[repeats], &[4, 16]));
    let compile = ["compile", "net.onnx", "-o", "net", "--trials-per-task", "3", "--method", "random"];
    sandbox.succeed(&[&compile[..], &["--store", "store.db"]].concat());
    let mut values = [0.5; 64];
    values[0] = f32::NAN;
    sandbox.file("x.npy", numpy(&[4, 16], &values));
    let printed = sandbox.succeed(&["run", "net", "--input", "x=x.npy"]);
    assert!(printed.contains("y f32[4, 16]: "), "{printed}");
}
