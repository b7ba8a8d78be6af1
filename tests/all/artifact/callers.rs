//! Several callers of several artifacts in one process.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tilescribe::artifact::Trace;

use super::whole::Whole;

/// How long callers go on until runs of theirs have met.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs at least, of each caller.
const ROUNDS: usize = 100;

/// A run on a clock that all threads have in common.
#[derive(Clone, Copy)]
struct Span {
    artifact: usize,
    caller: usize,
    begin: u64,
    end: u64,
}

/// What runs have been like so far.
#[derive(Default)]
struct Runs {
    spans: Vec<Span>,
    /// Whether two of one artifact went on at the same time, and two of different ones.
    met: [bool; 2],
}

impl Runs {
    fn add(&mut self, trace: &Trace, artifact: usize, caller: usize) {
        let begin = trace.events.iter().map(|event| event.begin).min().unwrap();
        let end = trace.events.iter().map(|event| event.end).max().unwrap();
        // those before have ended long ago
        for other in self.spans.iter().rev().take(100) {
            if other.caller != caller && other.begin < end && begin < other.end {
                self.met[usize::from(other.artifact != artifact)] = true;
            }
        }
        self.spans.push(Span { artifact, caller, begin, end });
    }
}

/// Two artifacts, each with two models, called by four threads: all is right, and no model waits until the
/// run of another has ended.
#[test]
fn four_callers_of_two_artifacts_do_not_wait_for_each_other() {
    let artifacts = ["networks/attention", "open/layers"].map(Whole::compile);
    let runs = Mutex::new(Runs::default());
    std::thread::scope(|scope| {
        for caller in 0..4 {
            let (artifact, runs) = (caller / 2, &runs);
            let whole = &artifacts[artifact];
            scope.spawn(move || {
                let (model, case) = (whole.model(2), &whole.cases[caller % whole.cases.len()]);
                let expected = whole.run(&model, case);
                let mut bound = model.bind(&case.inputs).unwrap();
                let start = Instant::now();
                for round in 0.. {
                    let trace = bound.traced(10_000).unwrap().unwrap();
                    assert!(bound.outputs() == expected);
                    let mut runs = runs.lock().unwrap();
                    runs.add(&trace, artifact, caller);
                    if round >= ROUNDS && runs.met == [true, true] || start.elapsed() > PATIENCE {
                        break;
                    }
                }
            });
        }
    });
    assert_eq!(runs.into_inner().unwrap().met, [true, true]);
}

/// The same from C: callers of one model take turns.
#[test]
fn a_c_program_calls_two_networks_from_four_threads() {
    let [first, second] = [("networks/attention", "net"), ("networks/conv_batch_norm", "other")]
        .map(|(name, prefix)| Whole::compile_as(name, prefix));
    let parent = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/artifact/callers.c");
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", "-o", "program"]).arg(source);
    for whole in [&first, &second] {
        let path = whole.path();
        command.arg("-I").arg(&path).arg("-L").arg(&path).arg(format!("-Wl,-rpath,{}", path.display()));
    }
    let built = command.args(["-lnet", "-lother"]).current_dir(parent.path()).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let mut run = Command::new(parent.path().join("program"));
    let mut expected = Vec::new();
    for (number, whole) in [&first, &second].into_iter().enumerate() {
        let case = &whole.cases[0];
        let file = parent.path().join(format!("inputs_{number}"));
        let bytes: Vec<u8> = case.inputs.iter().flat_map(|input| input.bytes.to_vec()).collect();
        std::fs::write(&file, bytes).unwrap();
        run.arg(whole.path().join("weights.safetensors")).arg(file);
        let outputs = whole.run(&whole.model(2), case);
        outputs.iter().for_each(|output| expected.extend_from_slice(&output.bytes));
    }
    let found = run.output().unwrap();
    assert!(found.status.success(), "{}: {}", found.status, String::from_utf8_lossy(&found.stderr));
    assert_eq!(found.stdout, expected);
}
