//! What commands read: files that never end, stores that cannot be written to or were changed, dimensions and
//! cores that are not there.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use super::{Sandbox, TASK, model_of, node, small_model, symbolic, value};

#[test]
fn pipes_and_devices_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    sandbox.file("small.onnx", small_model());
    let pipe = CString::new(sandbox.path("pipe").as_os_str().as_bytes()).unwrap();
    // SAFETY: a string that ends in zero.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    sandbox.succeed(&["compile", "small.onnx", "-o", "net", "--trials-per-task", "0"]);
    for file in ["pipe", "/dev/zero"] {
        let input = format!("x={file}");
        let commands: [&[&str]; 13] = [
            &["tasks", file],
            &["tune", file],
            &["next", "task.txt", file],
            &["next", "task.txt", "--target", file],
            &["show", "task.txt", "--trace", file],
            &["run", "net", "--input", &input],
            &["measure", "--plan", file, "-o", "c.zst"],
            &["records", "import", file],
            &["records", "agreement", file, file],
            &["records", "list", "--store", file],
            &["plan", "--workloads", file, "-o", "plan.jsonl"],
            &["plan", "--records", file, "-o", "plan.jsonl"],
            &["pretrain", "--corpus", file, "-o", "own"],
        ];
        for arguments in commands {
            sandbox.fail(arguments, 2, "not a regular file");
        }
    }
}

/// May our program override permissions, as root does, then they would tell nothing.
fn give_up_overriding() -> std::io::Result<()> {
    const CAP_DAC_OVERRIDE: libc::c_ulong = 1;
    const CAP_DAC_READ_SEARCH: libc::c_ulong = 2;
    for capability in [CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH] {
        // SAFETY: takes numbers only. Whoever is not root has nothing to give up, and is refused.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
    Ok(())
}

#[test]
fn a_store_that_cannot_be_written_to_is_read() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    fs::create_dir(sandbox.path("disk")).unwrap();
    let tune = ["tune", "task.txt", "--method", "random", "--trials", "2", "--store", "disk/a b?.db"];
    sandbox.succeed(&tune);
    let permit = |name: &str, mode| fs::set_permissions(sandbox.path(name), fs::Permissions::from_mode(mode)).unwrap();
    permit("disk/a b?.db", 0o444);
    permit("disk", 0o555);
    let run = |arguments: &[&str]| {
        let mut command = sandbox.tilescribe(arguments);
        // SAFETY: only makes system calls.
        unsafe { command.pre_exec(give_up_overriding) };
        command.output().unwrap()
    };
    let listed = run(&["records", "list", "--store", "disk/a b?.db"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("2 records"), "{listed:?}");
    let shown = run(&["show", "task.txt", "--store", "disk/a b?.db"]);
    assert!(shown.status.success(), "{shown:?}");
    super::expect_failure(&run(&tune), 3, "cannot be written to");
    assert_eq!(fs::read_dir(sandbox.path("disk")).unwrap().count(), 1);
    permit("disk", 0o755);
}

#[test]
fn a_store_that_was_changed_is_the_users() {
    let sandbox = Sandbox::new();
    sandbox.file("small.onnx", small_model());
    let compile = ["compile", "small.onnx", "-o", "net", "--store", "s.db", "--method", "random", "--trials-per-task"];
    sandbox.succeed(&[&compile[..], &["2"]].concat());
    let change = |sql: &str| {
        let store = rusqlite::Connection::open(sandbox.path("s.db")).unwrap();
        store.execute_batch(sql).unwrap();
        store.close().unwrap();
    };
    let untuned = [&compile[..], &["0"]].concat();
    change("CREATE TABLE kept AS SELECT * FROM records; UPDATE records SET trace = 'tile nowhere = 3'");
    sandbox.fail(&untuned, 2, "in the store does not fit it");
    sandbox.succeed(&["tune", "small.onnx", "--store", "s.db", "--method", "random", "--trials", "1"]);
    change("DELETE FROM records WHERE trace = 'tile nowhere = 3'");
    for change_of in [
        "UPDATE records SET trace = 'no trace at all'",
        "UPDATE records SET times_ns = 'soon' WHERE failure IS NULL",
        "UPDATE records SET failure = 'boredom'",
    ] {
        change("DELETE FROM records; INSERT INTO records SELECT * FROM kept");
        sandbox.succeed(&untuned);
        change(change_of);
        sandbox.fail(&["records", "export", "c.zst", "--store", "s.db"], 2, "the record store is damaged");
    }
    change("DELETE FROM records; INSERT INTO records SELECT * FROM kept");
    change("CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM tasks; END");
    sandbox.fail(&["records", "list", "--store", "s.db"], 2, "it holds 1 triggers, views or virtual tables");
}

#[test]
fn dimensions_are_set_by_names_that_the_network_has() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    let net = |dims: &[&str]| model_of(&[node("Relu", &["x"], "y")], &[symbolic("x", dims)], &[symbolic("y", dims)]);
    sandbox.file("net.onnx", net(&["batch", "n=1"]));
    sandbox.file("fixed.onnx", model_of(&[node("Relu", &["x"], "y")], &[value("x", &[4])], &[value("y", &[4])]));
    assert!(sandbox.succeed(&["show", "net.onnx", "--untuned"]).contains("not timed"));
    let both = ["--dim", "batch=2", "--dim", "n=1=3"];
    for command in [&["show", "net.onnx#0", "--untuned"][..], &["next", "net.onnx"], &["tasks", "net.onnx"]] {
        sandbox.succeed(&[command, &both].concat());
        sandbox.fail(
            &[command, &both, &["--dim", "btch=2"]].concat(),
            2,
            "there is no dimension `btch`; those without an extent are `batch`, `n=1`",
        );
    }
    sandbox.fail(&["tasks", "net.onnx", "--dim", "batch=2", "--dim", "batch=3"], 2, "`batch` is set twice");
    sandbox.fail(&["tasks", "net.onnx", "--dim", "batch"], 2, "expected NAME=N");
    sandbox.fail(&["tasks", "fixed.onnx", "--dim", "batch=2"], 2, "no dimension `batch`: all extents are known");
    sandbox.fail(&["next", "task.txt", "--dim", "batch=2"], 2, "sets a dimension of a network, and none is read");
}

#[test]
fn inputs_become_constants() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    let inputs = [value("x", &[4]), value("by", &[1])];
    sandbox.file("net.onnx", model_of(&[node("Mul", &["x", "by"], "y")], &inputs, &[value("y", &[4])]));
    let printed = sandbox.succeed(&["check", "net.onnx", "--constant", "by=0.5"]);
    assert!(printed.contains("input x: f32[4]") && !printed.contains("input by"), "{printed}");
    let refused = |arguments: &[&str], why: &str| sandbox.fail(&[&["tasks"], arguments].concat(), 2, why);
    refused(&["net.onnx", "--constant", "by=true", "--constant", "by=2"], "input `by` is set twice");
    refused(&["net.onnx", "--constant", "b=2"], "the network has no input b; it has x, by");
    refused(&["net.onnx", "--constant", "by=two"], "`two` is neither a number nor true or false");
    let alone = ["next", "task.txt", "--constant", "by=2"];
    sandbox.fail(&alone, 2, "--constant by=... is an input of a network, and none is read");
}

#[test]
fn more_cores_than_there_are_are_not_measured() {
    let sandbox = Sandbox::new();
    sandbox.file("task.txt", TASK);
    sandbox.file("small.onnx", small_model());
    let there = tilescribe::codegen::host().unwrap().cores;
    let too_many = (there + 1).to_string();
    let reason = format!("this process may use {there}. Give --threads {there}, or fewer");
    for command in [&["tune", "task.txt"][..], &["bench", "small.onnx"], &["compile", "small.onnx", "-o", "net"]] {
        sandbox.fail(&[command, &["--threads", &too_many]].concat(), 2, &reason);
    }
    // nothing is measured: another machine may have them
    let untuned = ["compile", "small.onnx", "-o", "net", "--trials-per-task", "0", "--threads", &too_many];
    sandbox.succeed(&untuned);
}

#[test]
fn messages_say_it_once_and_what_to_do_next() {
    let sandbox = Sandbox::new();
    sandbox.file("small.onnx", small_model());
    let said = sandbox.run(&["compile", "missing.onnx", "-o", "net"]).stderr;
    let said = String::from_utf8(said).unwrap();
    assert_eq!(said.matches("missing.onnx").count(), 1, "{said}");
    sandbox.fail(&["run", "small.onnx"], 2, "`tilescribe compile small.onnx -o small` makes one");
    let printed =
        sandbox.succeed(&["compile", "small.onnx", "-o", "net", "--method", "random", "--trials-per-task", "1"]);
    assert!(printed.contains("tuned    untuned   faster  calls  task"), "{printed}");
    assert!(printed.contains("net: 1 task, 1 call, 0 tasks untuned"), "{printed}");
    let mut header = "{'descr': '<f8', 'fortran_order': False, 'shape': (4, 16), }".to_string();
    header.push_str(&" ".repeat(118 - header.len() - 1));
    header.push('\n');
    let double = [&b"\x93NUMPY\x01\x00\x76\x00"[..], header.as_bytes(), &[0; 8 * 64]].concat();
    sandbox.file("double.npy", double);
    sandbox.fail(&["run", "net", "--input", "x=double.npy"], 2, "save x.astype(\"<f4\")");
    assert!(sandbox.succeed(&["records", "list"]).contains("1 record "));
}

/// One task of terabytes does not keep the others from being tuned, nor the network from being compiled.
#[test]
fn a_task_that_cannot_be_measured_stays_untuned() {
    let sandbox = Sandbox::new();
    let nodes = [node("Relu", &["x"], "y"), node("Relu", &["u"], "v")];
    let inputs = [value("x", &[8, 16]), value("u", &[1 << 16, 1 << 15])];
    sandbox.file("net.onnx", model_of(&nodes, &inputs, &[value("y", &[8, 16]), value("v", &[1 << 16, 1 << 15])]));
    let told = "cannot be measured, and stays untuned: it needs 32.0 GiB of memory for its tensors; 16.0 GiB are allowed: --measuring-memory raises that";
    let compile = ["compile", "net.onnx", "-o", "net", "--method", "random", "--trials-per-task", "2"];
    let output = sandbox.tilescribe(&compile).output().unwrap();
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{complained}");
    assert!(complained.contains(told), "{complained}");
    assert!(said.contains("2 tasks, 2 calls, 1 task untuned"), "{said}");
    sandbox.fail(&["run", "net"], 3, "memory");
    let alone = model_of(&nodes[1..], &inputs[1..], &[value("v", &[1 << 16, 1 << 15])]);
    sandbox.file("large.onnx", alone);
    sandbox.fail(&["tune", "large.onnx", "--method", "random"], 2, "nothing can be measured: it needs 32.0 GiB");
}
