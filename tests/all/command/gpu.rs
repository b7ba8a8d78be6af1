//! GPUs as targets: looked into without one, refused where one is needed.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tilescribe::outcome::Outcome;
use tilescribe::propose::{History, Proposer, Random};
use tilescribe::record::{CorpusWriter, Entry, Record};
use tilescribe::space::Space;
use tilescribe::target::{Kind, Target, Task};

use super::learning::collected;
use super::{Sandbox, TASK};

const NETWORK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/files/graph/networks/gemm/model.onnx");
const A100: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/targets/gpus/sm_80.toml");
const HASWELL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/targets/haswell.toml");
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
    assert!(plan.contains("3 programs of 1 task"), "{plan}");
    // it is no plan for another kind of machine
    sandbox.fail(
        &["measure", "--plan", "plan.jsonl", "-o", "out.jsonl.zst"],
        2,
        "of programs for another kind of machine",
    );
}

#[test]
fn networks_are_compiled_for_gpus_without_one() {
    let sandbox = Sandbox::new();
    let untuned = ["compile", NETWORK, "-o", "net", "--trials-per-task", "0", "--target", H100];
    let compiled = sandbox.succeed(&[&untuned[..], &["--also", A100]].concat());
    assert!(compiled.contains("on 2 machines"), "{compiled}");
    let shown = sandbox.succeed(&["show", "net"]);
    assert!(shown.contains("compute capability 9.0, a GPU of compute capability 8.0"), "{shown}");
    let header = std::fs::read_to_string(sandbox.path("net/net.h")).unwrap();
    assert!(header.contains("int net_launch(net_model *model, void *stream);"), "{header}");
    for other in [H100, HASWELL] {
        sandbox.fail(&[&untuned[..], &["--also", other]].concat(), 2, "GPUs of different generations");
    }
}

#[test]
fn what_needs_a_gpu_says_so() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    let model = ["tune", "task.txt", "--method", "lm", "--trials", "1", "--target", H100];
    sandbox.fail(&model, 2, "lm: the model has learned from CPUs only; choose evolution or random");
    let rival = ["compare", "--rival", "mine=built-in", "--workloads", "task.txt", "-o", "out", "--target", H100];
    sandbox.fail(&rival, 2, "mine: the model has learned from CPUs only");
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
    sandbox.fail(&["compile", NETWORK, "-o", "net", "--target", H100], 3, missing);
    sandbox.succeed(&["compile", NETWORK, "-o", "net", "--target", H100, "--trials-per-task", "0"]);
    sandbox.fail(&["run", "net"], 3, "libcuda.so.1");
    sandbox.succeed(&["plan", "--workloads", "task.txt", "-o", "plan.jsonl", "--target", H100]);
    sandbox.fail(&["measure", "--plan", "plan.jsonl", "-o", "out.jsonl.zst", "--target", H100], 3, missing);
    sandbox.fail(
        &["compare", "--methods", "random", "--workloads", "task.txt", "-o", "out", "--target", H100],
        3,
        missing,
    );
}

/// A corpus of programs for a GPU, with times that nobody has measured.
fn pretended(path: &Path) {
    let target = Target::from_toml(&std::fs::read_to_string(H100).unwrap()).unwrap();
    let (space, task) = (Space::standard(), Arc::new(Task { workload: TASK.parse().unwrap(), target }));
    let drawn = Random::new(&space, 1).propose(&task, &History::default(), 8).unwrap();
    let mut writer = CorpusWriter::new(File::create(path).unwrap()).unwrap();
    for (number, candidate) in (1..).zip(drawn.candidates) {
        let outcome = Outcome::Timed { times_ns: vec![1000 * number], compile_us: 1 };
        let record = Record::new(&task, &space.version(Kind::Gpu), candidate.trace, outcome, "random", 0);
        writer.write(&Entry { task: Arc::clone(&task), record }).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn a_model_that_has_learned_from_gpus_writes_programs_for_them() {
    let sandbox = collected();
    sandbox.file("task.txt", TASK);
    pretended(&sandbox.path("gpu.jsonl.zst"));
    let options = ["-o", "own", "--epochs", "1", "--held-out", "0"];
    let pretrain = |corpus: &[&'static str]| [&["pretrain", "--corpus"], corpus, &options].concat();
    sandbox.fail(&pretrain(&["gpu.jsonl.zst"]), 2, "is of this search space (cpu:");
    sandbox.succeed(&pretrain(&["corpus.jsonl.zst", "gpu.jsonl.zst"]));
    let read = |file: &str| std::fs::read_to_string(sandbox.path("own").join(file)).unwrap();
    let config: Value = serde_json::from_str(&read("config.json")).unwrap();
    assert_eq!(config["versions"]["gpu"]["space"], Space::standard().version(Kind::Gpu));
    let card = read("README.md");
    assert!(card.contains("20 records of 3 tasks") && card.contains("## Estimator for GPUs\n"), "{card}");

    for method in ["lm", "guided"] {
        let plan = ["plan", "--workloads", "task.txt", "--programs", "3", "-o", "plan.jsonl", "--target", H100];
        let of = |checkpoint| [&plan[..], &["--method", method, "--checkpoint", checkpoint]].concat();
        assert!(sandbox.succeed(&of("own")).contains("3 programs of 1 task"));
        sandbox.fail(&of("built-in"), 2, "the model has learned from CPUs only");
    }
    sandbox.succeed(&["tune", "task.txt", "--checkpoint", "own", "--trials-per-task", "2", "--store", "own.db"]);
}
