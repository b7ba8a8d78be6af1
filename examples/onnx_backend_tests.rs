//! Runs ONNX's back-end tests through import and evaluator, and prints a table.
//!
//! usage: onnx_backend_tests FOLDER [--only TEXT]
//!
//! FOLDER holds one folder for each test, with `model.onnx` and `test_data_set_0/{input,output}_N.pb`;
//! `tests/onnx_nodes.py` finds the one of an installed onnx package. Exits with 1 if a result is wrong.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tilescribe::graph::{ImportError, ImportOptions, Program, TensorData, import, import_tensor};

/// What became of a test.
enum Verdict {
    Passed,
    Unsupported(String),
    Wrong(String),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (folder, only) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [folder] => (PathBuf::from(folder), ""),
        [folder, "--only", only] => (PathBuf::from(folder), only),
        _ => {
            eprintln!("usage: onnx_backend_tests FOLDER [--only TEXT]");
            return ExitCode::from(2);
        }
    };
    let cases = match cases(&folder, only) {
        Ok(cases) if !cases.is_empty() => cases,
        Ok(_) => {
            eprintln!("no test in {}", folder.display());
            return ExitCode::from(2);
        }
        Err(error) => {
            eprintln!("cannot read {}: {error}", folder.display());
            return ExitCode::from(2);
        }
    };
    let (mut passed, mut wrong) = (0, 0);
    let mut unsupported: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for case in &cases {
        let name = case.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match run(case) {
            Verdict::Passed => passed += 1,
            Verdict::Unsupported(why) => unsupported.entry(why).or_default().push(name),
            Verdict::Wrong(why) => {
                wrong += 1;
                println!("WRONG {name}: {why}");
            }
        }
    }
    for (why, names) in &unsupported {
        println!("unsupported {:4} {why} (as {})", names.len(), names[0]);
    }
    let count: usize = unsupported.values().map(Vec::len).sum();
    println!("{} tests: {passed} passed, {count} unsupported, {wrong} wrong", cases.len());
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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

fn run(case: &Path) -> Verdict {
    let program = match import(&case.join("model.onnx"), &ImportOptions::default()) {
        Ok(program) => program,
        Err(error) => return refusal(error),
    };
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
    match compare(&program, &inputs, &expected) {
        Ok(()) => Verdict::Passed,
        Err(why) => Verdict::Wrong(why),
    }
}

/// Sorts refusals by cause; names of nodes and values would make each its own kind.
fn refusal(error: ImportError) -> Verdict {
    Verdict::Unsupported(match error {
        ImportError::Unsupported(nodes) => {
            let mut kinds: Vec<String> = nodes.into_iter().map(|node| node.operator).collect();
            kinds.sort();
            kinds.dedup();
            format!("operators {}", kinds.join(", "))
        }
        ImportError::ElementType { code, .. } => format!("element type {code}"),
        ImportError::InputType { .. } => "an input that is no tensor".to_string(),
        ImportError::SymbolicDims(_) | ImportError::UnknownDim { .. } => "symbolic dimensions".to_string(),
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

fn compare(program: &Program, inputs: &[TensorData], expected: &[TensorData]) -> Result<(), String> {
    let results = program.evaluate(inputs).map_err(|error| error.to_string())?;
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
