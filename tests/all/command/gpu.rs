//! GPUs as targets: looked into without one, refused where one is needed.

use std::path::Path;

use super::{Sandbox, TASK};

const H100: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/targets/gpus/sm_90.toml");

#[test]
fn programs_for_gpus_are_looked_into_without_one() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    let next = sandbox.succeed(&["next", "task.txt", "--target", H100]);
    assert!(next.contains(" = one of") && next.contains("<- untuned"), "{next}");
    let nest = sandbox.succeed(&["show", "task.txt", "--untuned", "--nest", "--target", H100]);
    assert!(nest.contains("block for") && nest.contains("thread for"), "{nest}");
    let assembly = sandbox.succeed(&["show", "task.txt", "--untuned", "--asm", "--target", H100]);
    assert!(assembly.contains(".target sm_90") && assembly.contains(".entry"), "{assembly}");
    sandbox.fail(&["show", "task.txt", "--untuned", "--ir", "--target", H100], 2, "for CPUs only");
    let plan =
        sandbox.succeed(&["plan", "--workloads", "task.txt", "--programs", "3", "-o", "plan.jsonl", "--target", H100]);
    assert!(plan.contains("3 programs of 1 tasks"), "{plan}");
    // it is no plan for another kind of machine
    sandbox.fail(&["measure", "--plan", "plan.jsonl", "-o", "out.jsonl.zst"], 2, "the trace is no program for");
}

#[test]
fn what_needs_a_gpu_says_so() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    let model = ["tune", "task.txt", "--trials", "1", "--target", H100];
    sandbox.fail(&model, 2, "the model has learned from CPUs only; choose evolution or random");
    sandbox.fail(&["next", "task.txt", "--target", H100, "--threads", "2"], 2, "--threads is about cores");
    sandbox.fail(&["next", "task.txt", "--target", "cuda:first"], 2, "cuda:0 is the first");
    // no driver here: what is missing is the environment's
    if ["/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1"]
        .iter()
        .any(|driver| Path::new(driver).exists())
    {
        return;
    }
    let missing = "libcuda.so is not installed";
    sandbox.fail(&["next", "task.txt", "--target", "cuda"], 3, missing);
    sandbox.fail(&["tune", "task.txt", "--method", "random", "--trials", "1", "--target", "cuda:1"], 3, missing);
    sandbox.fail(&["tune", "task.txt", "--method", "evolution", "--trials", "1", "--target", H100], 3, missing);
    sandbox.succeed(&["plan", "--workloads", "task.txt", "-o", "plan.jsonl", "--target", H100]);
    sandbox.fail(&["measure", "--plan", "plan.jsonl", "-o", "out.jsonl.zst", "--target", H100], 3, missing);
    sandbox.fail(
        &["compare", "--methods", "random", "--workloads", "task.txt", "-o", "out", "--target", H100],
        3,
        missing,
    );
}
