//! Runs ONNX's back-end tests through import and evaluator, or through a compiled artifact, and prints a
//! table.
//!
//! usage: onnx_backend_tests FOLDER [--compiled] [--only TEXT] [--reasons FILE [--update HEAD]]
//!
//! FOLDER holds one folder for each test, with `model.onnx` and `test_data_set_0/{input,output}_N.pb`;
//! `tests/onnx_nodes.py` finds the one of an installed onnx package. With `--compiled`, every network is
//! compiled untuned for this machine, loaded and run. FILE holds lines `test: reason` for the tests that are
//! not supported, behind a line HEAD; with `--update` it is written anew. Exits with 1 if a result is wrong,
//! or if what is not supported differs from FILE.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tilescribe::artifact::{self, Model, Options, Resources, Schedule, Version};
use tilescribe::codegen;
use tilescribe::graph::{
    ImportError, ImportOptions, Precision, Products, Program, TensorData, import, import_tensor, partition,
};
use tilescribe::space::Space;
use tilescribe::target::{Target, Task};

/// What became of a test.
enum Verdict {
    Passed,
    Unsupported(String),
    Wrong(String),
}

/// What the command line asks for.
#[derive(Default)]
struct Arguments {
    folder: PathBuf,
    only: String,
    /// The machine to compile for; `None`: evaluated.
    compiled: Option<Target>,
    reasons: Option<PathBuf>,
    /// The first line of a file of reasons that is written anew.
    update: Option<String>,
}

fn main() -> ExitCode {
    let refuse = |message: String| {
        let options = "[--compiled] [--only TEXT] [--reasons FILE [--update HEAD]]";
        eprintln!("{message}\nusage: onnx_backend_tests FOLDER {options}");
        ExitCode::from(2)
    };
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(message) => return refuse(message),
    };
    let cases = match cases(&arguments.folder, &arguments.only) {
        Ok(cases) if !cases.is_empty() => cases,
        Ok(_) => return refuse(format!("no test in {}", arguments.folder.display())),
        Err(error) => return refuse(format!("cannot read {}: {error}", arguments.folder.display())),
    };
    let (mut passed, mut wrong) = (0, 0);
    let mut unsupported: BTreeMap<String, String> = BTreeMap::new();
    for (name, verdict) in run_all(&cases, arguments.compiled.as_ref()) {
        match verdict {
            Verdict::Passed => passed += 1,
            Verdict::Unsupported(why) => drop(unsupported.insert(name, why)),
            Verdict::Wrong(why) => {
                wrong += 1;
                println!("WRONG {name}: {why}");
            }
        }
    }
    print_causes(&unsupported);
    println!("{} tests: {passed} passed, {} unsupported, {wrong} wrong", cases.len(), unsupported.len());
    let differences = match &arguments.reasons {
        Some(file) => hold(file, &arguments, &unsupported),
        None => Ok(0),
    };
    match differences {
        Ok(0) if wrong == 0 => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => refuse(error),
    }
}

fn print_causes(unsupported: &BTreeMap<String, String>) {
    let mut causes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, why) in unsupported {
        causes.entry(why).or_default().push(name);
    }
    for (why, names) in &causes {
        println!("unsupported {:4} {why} (as {})", names.len(), names[0]);
    }
}

/// Compares what is not supported with a file of reasons, as far as it is about the tests that ran, or writes
/// that anew. Gives the number of differences.
fn hold(file: &Path, arguments: &Arguments, unsupported: &BTreeMap<String, String>) -> Result<usize, String> {
    let refuse = |error: std::io::Error| format!("{}: {error}", file.display());
    let text = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && arguments.update.is_some() => String::new(),
        other => other.map_err(refuse)?,
    };
    let lines = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(": "));
    let known: BTreeMap<&str, &str> = lines.collect();
    let ran = |name: &str| name.contains(&arguments.only);
    if let Some(head) = &arguments.update {
        let others = known.iter().filter(|(name, _)| !ran(name)).map(|(name, why)| (*name, *why));
        let all: BTreeMap<&str, &str> =
            unsupported.iter().map(|(name, why)| (name.as_str(), why.as_str())).chain(others).collect();
        let lines: String = all.iter().map(|(name, why)| format!("{name}: {why}\n")).collect();
        std::fs::write(file, format!("{head}\n{lines}")).map_err(refuse)?;
        return Ok(0);
    }
    let mut differences = 0;
    for (name, why) in unsupported {
        if known.get(name.as_str()) != Some(&why.as_str()) {
            differences += 1;
            println!("without this reason in {}: {name}: {why}", file.display());
        }
    }
    for name in known.keys().filter(|name| ran(name) && !unsupported.contains_key(**name)) {
        differences += 1;
        println!("no longer unsupported, but in {}: {name}", file.display());
    }
    Ok(differences)
}

fn arguments() -> Result<Arguments, String> {
    let mut arguments = Arguments::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--compiled" => {
                let host = codegen::host().map_err(|error| error.to_string())?;
                arguments.compiled = Some(Target::Cpu(host));
            }
            "--only" => arguments.only = words.next().ok_or("--only takes a text")?,
            "--reasons" => arguments.reasons = Some(words.next().ok_or("--reasons takes a file")?.into()),
            "--update" => arguments.update = Some(words.next().ok_or("--update takes the file's first line")?),
            folder if arguments.folder.as_os_str().is_empty() => arguments.folder = folder.into(),
            other => return Err(format!("what is {other}?")),
        }
    }
    Ok(arguments)
}

/// All tests, on all cores, by name.
fn run_all(cases: &[PathBuf], target: Option<&Target>) -> BTreeMap<String, Verdict> {
    let verdicts = Mutex::new(BTreeMap::new());
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = case.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let verdict = run(case, target);
            if let Ok(mut verdicts) = verdicts.lock() {
                verdicts.insert(name, verdict);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    verdicts.into_inner().unwrap_or_default()
}

/// Folders with a model, by name.
fn cases(folder: &Path, only: &str) -> std::io::Result<Vec<PathBuf>> {
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.join("model.onnx").is_file() && path.to_string_lossy().contains(only) {
            cases.push(path);
        }
    }
    cases.sort();
    Ok(cases)
}

fn run(case: &Path, target: Option<&Target>) -> Verdict {
    let mut program = match import(&case.join("model.onnx"), &ImportOptions::default()) {
        Ok(program) => program,
        Err(error) => return refusal(error),
    };
    program.shorten(Precision::F32, Products::All);
    let data = |kind: &str, count: usize| -> Result<Vec<TensorData>, String> {
        let file = |at: usize| case.join(format!("test_data_set_0/{kind}_{at}.pb"));
        (0..count).map(|at| import_tensor(&file(at)).map_err(|error| error.to_string())).collect()
    };
    let outcome = data("input", program.inputs.len()).and_then(|inputs| {
        let outputs = data("output", program.outputs.len())?;
        Ok((inputs, outputs))
    });
    let (inputs, expected) = match outcome {
        Ok(data) => data,
        Err(error) => return Verdict::Unsupported(format!("test data: {error}")),
    };
    let results = match target {
        None => program.evaluate(&inputs).map_err(|error| error.to_string()),
        Some(target) => compiled(&program, target, &inputs),
    };
    match results.and_then(|results| compare(&program, &results, &expected)) {
        Ok(()) => Verdict::Passed,
        Err(why) => Verdict::Wrong(why),
    }
}

/// What an untuned artifact gives, its outputs in the order of the program's.
fn compiled(program: &Program, target: &Target, inputs: &[TensorData]) -> Result<Vec<TensorData>, String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let network = partition(program).map_err(|error| text(&error))?;
    let space = Space::standard();
    let mut schedules = Vec::new();
    for task in &network.tasks {
        let task = Task { workload: task.workload.clone(), target: target.clone() };
        schedules.push(Schedule::untuned(&space, &task).map_err(|error| text(&error))?);
    }
    let folder = tempfile::tempdir().map_err(|error| text(&error))?;
    let folder = folder.path().join("net");
    let version = Version { target, schedules: &schedules };
    let options = Options { name: "net", folder: &folder };
    artifact::compile(&network, &[version], &options, &mut |_| ControlFlow::Continue(()))
        .map_err(|error| text(&error))?;
    let model =
        Model::load(&folder, Resources { threads: Some(2), ..Resources::default() }).map_err(|error| text(&error))?;
    model.run(inputs).map_err(|error| text(&error))
}

/// Sorts refusals by cause; names of nodes and values would make each its own kind.
fn refusal(error: ImportError) -> Verdict {
    Verdict::Unsupported(match error {
        ImportError::Unsupported(nodes) => {
            let mut kinds: Vec<String> = nodes.into_iter().map(|node| node.operator).collect();
            kinds.sort();
            kinds.dedup();
            format!("{} not supported", kinds.join(", "))
        }
        ImportError::ElementType { code, .. } => format!("element type {code}"),
        ImportError::InputType { .. } => "an input that is no tensor".to_string(),
        ImportError::Node { node, problem } => {
            format!(
                "{}: {problem}",
                node.rsplit_once(" (").map_or(node.as_str(), |(_, kind)| kind.trim_end_matches(')'))
            )
        }
        ImportError::Output { problem, .. } | ImportError::Input { problem, .. } => problem.to_string(),
        other => other.to_string(),
    })
}

fn compare(program: &Program, results: &[TensorData], expected: &[TensorData]) -> Result<(), String> {
    for ((name, _), (found, expected)) in program.outputs.iter().zip(results.iter().zip(expected)) {
        if found.shape != expected.shape || found.dtype != expected.dtype {
            let (a, b) = (found.dtype.name(), expected.dtype.name());
            return Err(format!("{name} is {a} {:?}, not {b} {:?}", found.shape, expected.shape));
        }
        let (found, expected) = (found.to_f64(), expected.to_f64());
        let largest = expected.iter().filter(|x| x.is_finite()).fold(0.0f64, |m, x| m.max(x.abs()));
        let differs = |(a, b): (&f64, &f64)| {
            let close = (a - b).abs() <= 1e-3 * b.abs() + 1e-5 * largest;
            a != b && !(a.is_nan() && b.is_nan()) && !close
        };
        if let Some(at) = found.iter().zip(&expected).position(differs) {
            return Err(format!("{name}[{at}] is {}, not {}", found[at], expected[at]));
        }
    }
    Ok(())
}
