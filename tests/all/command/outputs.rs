//! What commands write: nothing that is not theirs is ever replaced, and nothing is left half done.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tilescribe::record::{Filter, Store};

use super::{Sandbox, TASK, expect_failure, model_of, node, small_model, value};

/// A sandbox with a task and a store of two records of it.
fn measured() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    sandbox.succeed(&["tune", "task.txt", "--method", "random", "--trials", "2", "--store", "s.db"]);
    sandbox
}

/// Names in a sandbox that begin with a point.
fn hidden(sandbox: &Sandbox) -> Vec<String> {
    let entries = fs::read_dir(sandbox.path(".")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with('.')).collect()
}

#[test]
fn nothing_foreign_and_no_source_is_overwritten() {
    let sandbox = measured();
    let notes = "notes of a year\n";
    sandbox.file("notes.txt", notes);
    std::os::unix::fs::symlink("s.db", sandbox.path("link")).unwrap();
    let store = fs::read(sandbox.path("s.db")).unwrap();
    let export = |file: &str, reason: &str| sandbox.fail(&["records", "export", file, "--store", "s.db"], 2, reason);
    export("s.db", "s.db is read from");
    export("./link", "s.db is read from");
    export("notes.txt", "notes.txt exists and is not a corpus file: it was left as it is");
    export("nowhere/c.zst", "there is no folder nowhere");
    export(".", "is a folder");
    let plan = ["plan", "--workloads", "task.txt", "--programs", "1", "-o"];
    sandbox.fail(&[&plan[..], &["task.txt"]].concat(), 2, "task.txt is read from");
    sandbox.fail(&[&plan[..], &["s.db"]].concat(), 2, "s.db exists and is not a plan");
    let collect = ["collect", "--workloads", "task.txt", "--method", "random", "--trials-per-task", "1", "-o"];
    sandbox.fail(&[&collect[..], &["notes.txt"]].concat(), 2, "notes.txt exists and is not a corpus file");
    // whose store would lie in its own place
    sandbox.fail(&[&collect[..], &["new.db"]].concat(), 2, "new.db is read from");
    sandbox.file("README.md", notes);
    sandbox.succeed(&["records", "export", "c.zst", "--store", "s.db"]);
    sandbox.fail(&["pretrain", "--corpus", "c.zst", "-o", "."], 2, "holds a README.md and is no checkpoint");
    sandbox.fail(&["finetune", "--store", "s.db", "-o", "."], 2, "holds a README.md and is no checkpoint");
    fs::create_dir(sandbox.path("out")).unwrap();
    sandbox.file("out/report.html", "<!doctype html><title>mine</title>");
    let compare = ["compare", "--methods", "random", "--workloads", "task.txt", "--trials", "1", "--seeds", "1"];
    sandbox.fail(&[&compare[..], &["-o", "out"]].concat(), 2, "report.html exists and is not a comparison's report");
    for name in ["notes.txt", "README.md"] {
        assert_eq!(fs::read_to_string(sandbox.path(name)).unwrap(), notes);
    }
    assert_eq!(fs::read(sandbox.path("s.db")).unwrap(), store);
    assert_eq!(hidden(&sandbox), [] as [&str; 0]);
}

#[test]
fn a_good_file_stays_until_another_is_complete() {
    let sandbox = measured();
    let export = ["records", "export", "c.zst", "--store", "s.db"];
    assert_eq!(sandbox.succeed(&export).trim(), "2 records");
    let good = fs::read(sandbox.path("c.zst")).unwrap();
    sandbox.fail(&[&export[..], &["--task", "0123"]].concat(), 2, "s.db holds no record of task 0123");
    sandbox.fail(&[&export[..], &["--target", "0123"]].concat(), 2, "s.db holds no record of target 0123");
    let full = sandbox.tilescribe_with_room(0, &export).output().unwrap();
    expect_failure(&full, 3, "cannot write c.zst: File too large");
    assert_eq!(fs::read(sandbox.path("c.zst")).unwrap(), good);
    assert_eq!(hidden(&sandbox), [] as [&str; 0]);
    // a link stays one, and its file is replaced
    sandbox.file("there.zst", &good);
    std::os::unix::fs::symlink("there.zst", sandbox.path("here.zst")).unwrap();
    sandbox.succeed(&["records", "export", "here.zst", "--store", "s.db"]);
    assert!(fs::symlink_metadata(sandbox.path("here.zst")).unwrap().is_symlink());
    // without a file there is none afterwards
    fs::remove_file(sandbox.path("c.zst")).unwrap();
    sandbox.fail(&[&export[..], &["--task", "0123"]].concat(), 2, "holds no record");
    assert!(!sandbox.path("c.zst").exists());
}

/// One operator for each output, so that none is computed twice.
const OPERATORS: [&str; 8] = ["Relu", "Exp", "Neg", "Abs", "Sigmoid", "Tanh", "Softplus", "Ceil"];

#[test]
fn outputs_of_any_name_have_files_of_their_own() {
    let sandbox = Sandbox::new();
    let names =
        ["StatefulPartitionedCall:2", "save_infer_model/scale_0.tmp_1", "a/b", "a:b", "a_b.2", ".", "..", "a=b"];
    let nodes: Vec<Vec<u8>> = OPERATORS.iter().zip(names).map(|(op, name)| node(op, &["x=1"], name)).collect();
    let outputs = names.map(|name| value(name, &[4, 4]));
    sandbox.file("net.onnx", model_of(&nodes, &[value("x=1", &[4, 4])], &outputs));
    // a store that is not there yet is an empty one
    sandbox.succeed(&["compile", "net.onnx", "-o", "net", "--trials-per-task", "0", "--store", "none.db"]);
    assert!(!sandbox.path("none.db").exists());
    let manifest: Value = serde_json::from_slice(&fs::read(sandbox.path("net/manifest.json")).unwrap()).unwrap();
    let table = manifest["output_files"].as_object().unwrap();
    let printed = sandbox.succeed(&["run", "net", "--output-dir", "deep/out"]);
    let written: BTreeSet<String> = fs::read_dir(sandbox.path("deep/out"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    let expected: BTreeSet<String> = table.values().map(|file| file.as_str().unwrap().to_string()).collect();
    assert_eq!((&written, written.len(), table.len()), (&expected, names.len(), names.len()));
    assert!(written.contains("StatefulPartitionedCall%3A2.npy") && written.contains("%2E..npy"), "{written:?}");
    assert_eq!(fs::read_dir(sandbox.path("deep")).unwrap().count(), 1);
    assert!(printed.contains("a/b f32[4, 4]: ") && printed.contains(" -> deep/out/a%2Fb.npy"), "{printed}");
    // the output is an input, whose name holds what parts it from its file
    sandbox.succeed(&["run", "net", "--input", "x=1=deep/out/a%2Fb.npy"]);
    sandbox.fail(&["run", "net", "--input", "y=deep/out/a%2Fb.npy"], 2, "no input `y`; its inputs: x=1");
    sandbox.file("deep/out/a%2Fb.npy", "mine");
    sandbox.fail(&["run", "net", "--output-dir", "deep/out"], 2, "a%2Fb.npy exists and is not a NumPy file");
    // a table that leads elsewhere is refused
    let text = serde_json::to_string(&manifest).unwrap().replace("a_b.2.npy", "../a_b.2.npy");
    sandbox.file("net/manifest.json", text);
    sandbox.fail(&["run", "net", "--output-dir", "other"], 2, "`output_files` does not name the files");
    let twice = model_of(&[node("Relu", &["x"], "y")], &[value("x", &[4])], &[value("y", &[4]), value("y", &[4])]);
    sandbox.file("twice.onnx", twice);
    sandbox.succeed(&["compile", "twice.onnx", "-o", "twice", "--trials-per-task", "0"]);
    let printed = sandbox.succeed(&["run", "twice"]);
    assert_eq!(printed.matches("y f32[4]: ").count(), 1, "{printed}");
}

#[test]
fn an_artifact_replaces_an_artifact_and_nothing_else() {
    let sandbox = Sandbox::new();
    sandbox.file("small.onnx", small_model());
    // a run that was killed has left these; nobody holds their locks
    fs::create_dir(sandbox.path(".tilescribe-draft-abcdef")).unwrap();
    sandbox.file(".tilescribe-draft-abcdef/libnet.so", "half");
    let compile = ["compile", "small.onnx", "-o", "net", "--trials-per-task", "0"];
    sandbox.succeed(&compile);
    sandbox.succeed(&compile);
    assert_eq!(hidden(&sandbox), [] as [&str; 0]);
    sandbox.file("net/notes.txt", "mine");
    sandbox.fail(&compile, 2, "net/notes.txt exists and is not an artifact of Tilescribe");
    assert_eq!(fs::read(sandbox.path("net/notes.txt")).unwrap(), b"mine");
}

#[test]
fn a_request_to_end_is_heard_as_ctrl_c_is() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    sandbox.file("small.onnx", small_model());
    let records = || match Store::open_to_read(&sandbox.path("s.db")) {
        Ok(store) => store.records(&Filter::default()).unwrap_or_default().len(),
        Err(_) => 0,
    };
    let search = ["--method", "random", "--trials-per-task", "100000", "--store", "s.db"];
    for (command, said) in [
        (&["tune", "task.txt"][..], "interrupted; everything that was measured is kept"),
        (&["compile", "small.onnx", "-o", "net"], "with --trials-per-task 0 it makes an artifact of what was found"),
    ] {
        let before = records();
        let mut run = sandbox.tilescribe(&[command, &search].concat());
        let run = run.process_group(0).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        while records() <= before {
            std::thread::sleep(Duration::from_millis(5));
        }
        // SAFETY: a process that was started here and was not waited for.
        assert_eq!(unsafe { libc::kill(run.id().cast_signed(), libc::SIGTERM) }, 0);
        expect_failure(&run.wait_with_output().unwrap(), 130, said);
    }
}
