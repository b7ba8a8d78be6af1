//! `--target FILE`: what each command makes of a machine that is not this one.

use std::io::Write;

use crate::command::{Sandbox, TASK, small_model};

use super::{file, shipped};

#[test]
fn programs_for_any_target_can_be_looked_at() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    let look = |target: &str, view: &str| {
        let file = file(target);
        sandbox.succeed(&["show", "task.txt", "--untuned", view, "--target", file.to_str().unwrap()])
    };
    assert!(look("haswell", "--asm").contains("ymm"));
    assert!(look("neoverse-n1", "--asm").contains("fmla"));
    assert!(look("neoverse-v1", "--ir").contains("vscale_range(2,2)"));
    let path = file("neoverse-n1");
    assert!(!sandbox.succeed(&["next", "task.txt", "--target", path.to_str().unwrap()]).is_empty());
}

#[test]
fn what_cannot_run_here_is_not_measured() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    sandbox.file("small.onnx", small_model());
    let foreign = file("neoverse-n1");
    let foreign = foreign.to_str().unwrap();
    let here = "kernels for neoverse-n1 cannot run here: they are aarch64 code, this is x86_64";
    let method = ["--method", "random", "--target", foreign];
    sandbox.fail(&[&["tune", "task.txt"], &method[..]].concat(), 3, here);
    sandbox.fail(&[&["collect", "--workloads", "task.txt", "-o", "corpus"], &method[..]].concat(), 3, here);
    let compare = ["compare", "--methods", "random", "--workloads", "task.txt", "-o", "out", "--target", foreign];
    sandbox.fail(&compare, 3, here);
    for trials in ["0", "1"] {
        let compile = ["compile", "small.onnx", "-o", "out", "--trials-per-task", trials, "--target", foreign];
        sandbox.fail(&compile, 2, "the target is aarch64 and this machine is x86_64");
    }
    // an x86-64 processor with more than any of this year has
    let lacking = shipped("haswell").to_toml().replace("\"+fma\"", "\"+fma\", \"+amx-avx512\"");
    sandbox.file("lacking.toml", lacking);
    let tune = ["tune", "task.txt", "--method", "random", "--target", "lacking.toml"];
    sandbox.fail(&tune, 3, "kernels for haswell cannot run here: this processor lacks +amx-avx512");
    assert!(!sandbox.path("out").exists() && !sandbox.path("corpus").exists());
}

#[test]
fn files_that_describe_no_machine_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    let good = shipped("haswell").to_toml();
    for (text, reason) in [
        (good.replace("\"haswell\"", "\"haswel\""), "wrong.toml: LLVM knows no processor `haswel` of x86_64"),
        (good.replace("+avx2", "+avx3"), "wrong.toml: LLVM knows no feature `avx3` of x86_64"),
        (good.replace("vector_bits", "vector_bytes"), "wrong.toml: not a target description:"),
        (good.replace("vector_bits = 256", "vector_bits = 1024"), "vector_bits = 1024 is outside of 128, 256 and 512"),
    ] {
        sandbox.file("wrong.toml", text);
        sandbox.fail(&["show", "task.txt", "--untuned", "--target", "wrong.toml"], 2, reason);
    }
    sandbox.fail(
        &["show", "task.txt", "--untuned", "--target", "absent.toml"],
        2,
        "cannot read the target absent.toml",
    );
}

/// A narrower machine than this one: measured here, and the artifact asks for no more than the target has.
#[test]
fn programs_for_a_narrower_machine_are_measured_and_deployed_here() {
    let target = shipped("haswell");
    if let Err(reason) = tilescribe::codegen::check_runs_here(&target) {
        // past the capture of tests' outputs: nobody should believe that it was checked
        let _ = writeln!(std::io::stderr(), "skipped: {reason}");
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.file("small.onnx", small_model());
    let path = file("haswell");
    let target = ["--target", path.to_str().unwrap(), "--threads", "2"];
    sandbox.succeed(
        &[&["compile", "small.onnx", "-o", "out", "--method", "random", "--trials-per-task", "2"], &target[..]]
            .concat(),
    );
    let about = sandbox.succeed(&["show", "out"]);
    assert!(
        about.contains("for the CPU haswell")
            && about.contains("needs aes avx avx2 bmi bmi2 f16c fma popcnt sse4.1 sse4.2"),
        "{about}"
    );
    sandbox.succeed(&["run", "out"]);
}
