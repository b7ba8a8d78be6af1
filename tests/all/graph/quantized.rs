//! Networks that ONNX Runtime's tool quantised to 8 bits: their sums of products are computed in integers,
//! and give what ONNX Runtime gives.
//!
//! `tests/files/graph/make_quantized.py` makes the networks. How each is cut into tasks stands in `NAME.txt`
//! beside them: types in memory, and what is summed. `UPDATE_EXPECT=1` writes that anew.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::{channels_last, data_of, entries, evaluate_in_tasks, evaluate_network};
use tilescribe::graph::{ImportOptions, Network, Precision, Products, Program, TensorData, import, partition};
use tilescribe::workload::{DType, Role, Stage, Workload};

/// Elements that may be another step of the last quantisation, of a thousand.
const OTHER_STEPS: usize = 50;

fn read(case: &Path) -> Program {
    import(&case.join("model.onnx"), &ImportOptions::default()).unwrap()
}

fn cases() -> Vec<PathBuf> {
    entries("quantized").into_iter().filter(|path| path.is_dir()).collect()
}

#[test]
fn quantised_networks_give_what_onnx_runtime_gives() {
    let cases = cases();
    assert!(cases.len() >= 16, "{} networks", cases.len());
    for case in cases {
        let plain = read(&case);
        let mut program = plain.clone();
        program.shorten(Precision::F32, Products::ByWeights);
        program.validate().unwrap_or_else(|error| panic!("{}: {error}", case.display()));
        let (inputs, expected) = (vec![data_of(&case, "input", 0)], data_of(&case, "output", 0));
        for (way, found) in [
            ("as written", plain.evaluate(&inputs).unwrap().remove(0)),
            ("shortened", program.evaluate(&inputs).unwrap().remove(0)),
            ("in tasks", evaluate_in_tasks(&program, &inputs).remove(0)),
            ("channels last", evaluate_network(&program, &channels_last(&program), &inputs).remove(0)),
        ] {
            assert_same(&format!("{}, {way}", case.display()), &found, &expected);
        }
        let mut again = program.clone();
        again.shorten(Precision::F32, Products::ByWeights);
        assert_eq!(format!("{again:?}"), format!("{program:?}"), "{}: shortened twice", case.display());
    }
}

/// Few elements are next to what is expected, one step of the quantisation away; all others are equal, but
/// for roundings of f32.
fn assert_same(what: &str, found: &TensorData, expected: &TensorData) {
    assert_eq!((&found.shape, found.dtype), (&expected.shape, expected.dtype), "{what}");
    let (found, expected) = (found.to_f64(), expected.to_f64());
    let largest = expected.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    assert!(largest > 0.0, "{what}: nothing to compare");
    let others = found.iter().zip(&expected).filter(|(a, b)| (*a - *b).abs() > 1e-5 * largest).count();
    assert!(others * 1000 <= OTHER_STEPS * found.len(), "{what}: {others} of {} differ", found.len());
    let step = step(&expected).max(0.02 * largest);
    for (a, b) in found.iter().zip(&expected) {
        assert!((a - b).abs() <= 1.01 * step, "{what}: {a} is not {b}");
    }
}

/// The least difference of numbers that are not equal, but for roundings: a step, where they are quantised.
fn step(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let steps = sorted.windows(2).map(|pair| pair[1] - pair[0]).filter(|step| *step > 1e-6);
    steps.fold(f64::INFINITY, f64::min)
}

#[test]
fn quantised_networks_are_cut_as_expected() {
    expect_description(cases(), &|case| {
        let mut program = read(case);
        program.shorten(Precision::F32, Products::ByWeights);
        program
    });
}

/// The tasks of networks are those that stand in a file beside them.
pub fn expect_description(cases: Vec<PathBuf>, shortened: &dyn Fn(&Path) -> Program) {
    let mut differences = Vec::new();
    for case in cases {
        let text = description(&partition(&shortened(&case)).unwrap());
        let expectation = case.with_extension("txt");
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(&expectation, &text).unwrap();
        }
        if std::fs::read_to_string(&expectation).unwrap_or_default() != text {
            differences.push(format!("{}:\n{text}", expectation.display()));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// A line for each call: the task, what it reads and writes of at least as many elements as a vector, and the
/// types of its sums of products.
fn description(network: &Network) -> String {
    let mut text = String::new();
    for call in &network.calls {
        let Some(task) = call.task().map(|task| &network.tasks[task]) else { continue };
        let (reads, writes) = (types(&task.workload, false), types(&task.workload, true));
        let sums: Vec<&str> = task.workload.stages.iter().filter_map(|stage| sum(&task.workload, stage)).collect();
        let sums = if sums.is_empty() { String::new() } else { format!(", sums of {}", sums.join(", ")) };
        writeln!(text, "{}: {reads} -> {writes}{sums}", task.name).unwrap();
    }
    text
}

fn types(workload: &Workload, written: bool) -> String {
    let is_wanted = |role: Role| (role == Role::Output) == written && role != Role::Intermediate;
    let tensors = workload.tensors.iter().filter(|tensor| is_wanted(tensor.role));
    let names: Vec<String> = tensors.map(|tensor| format!("{}{:?}", tensor.dtype.name(), tensor.shape)).collect();
    names.join(" ")
}

/// The type that products are summed in.
fn sum(workload: &Workload, stage: &Stage) -> Option<&'static str> {
    let is_product = format!("{:?}", stage.value).starts_with("Binary(Multiply");
    let dtype: DType = workload.tensor(stage.output).dtype;
    (stage.is_reduction() && is_product).then(|| dtype.name())
}
