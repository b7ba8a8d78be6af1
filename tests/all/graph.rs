//! Import: agreement with ONNX Runtime on small networks, refusal of what is hostile or unsupported, folding.
//!
//! `tests/files/graph/make.py` makes the files. Expected refusals stand in `refused/NAME.txt`; with
//! `UPDATE_EXPECT=1` they are written anew.

#[path = "graph/constants.rs"]
mod constants;
#[path = "graph/extents.rs"]
mod extents;
#[path = "graph/precise.rs"]
mod precise;
#[path = "graph/quantized.rs"]
mod quantized;

use std::path::{Path, PathBuf};

use tilescribe::graph::{
    ImportOptions, Network, Prefer, Program, Step, TensorData, import, import_tensor, partition, partition_with,
};
use tilescribe::space::Tape;
use tilescribe::workload::{Array, DType, Role};

fn files() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/graph")
}

fn network(name: &str) -> Program {
    import(&files().join("networks").join(name).join("model.onnx"), &ImportOptions::default()).unwrap()
}

/// What is in a folder, by name.
fn entries(folder: &str) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(files().join(folder)).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn small_networks_give_what_onnx_runtime_gives() {
    let cases = entries("networks");
    assert!(cases.len() >= 12, "{} networks", cases.len());
    let mut decided = 0;
    for case in cases {
        let program = import(&case.join("model.onnx"), &ImportOptions::default()).unwrap();
        program.validate().unwrap();
        let data = |kind: &str, at: usize| data_of(&case, kind, at);
        let inputs: Vec<TensorData> = (0..program.inputs.len()).map(|at| data("input", at)).collect();
        let outputs = program.evaluate(&inputs).unwrap();
        let in_tasks = evaluate_in_tasks(&program, &inputs);
        let planned = channels_last(&program);
        decided += usize::from(!planned.planned.is_empty());
        let channels_last = evaluate_network(&program, &planned, &inputs);
        for (at, output) in outputs.iter().chain(&in_tasks).chain(&channels_last).enumerate() {
            let expected = data("output", at % outputs.len());
            assert_eq!((&output.shape, output.dtype), (&expected.shape, expected.dtype), "{}", case.display());
            let (found, expected) = (output.to_f64(), expected.to_f64());
            let largest = expected.iter().fold(0.0f64, |m, x| m.max(x.abs()));
            assert!(largest > 0.0, "{}: nothing to compare", case.display());
            // ONNX Runtime rounds to 16 bits between operators that we round behind only
            let allowed = match output.dtype {
                DType::F16 => 5e-3,
                DType::F64 => 1e-14,
                _ => 1e-5,
            };
            for (a, b) in found.iter().zip(&expected) {
                assert!((a - b).abs() <= allowed * largest, "{}: {a} is not {b}", case.display());
            }
        }
    }
    assert!(decided >= 5, "{decided} networks have layouts to decide");
}

/// An input or output of a case.
fn data_of(case: &Path, kind: &str, at: usize) -> TensorData {
    import_tensor(&case.join(format!("test_data_set_0/{kind}_{at}.pb"))).unwrap()
}

/// What the network's tasks give, one after the other.
fn evaluate_in_tasks(program: &Program, inputs: &[TensorData]) -> Vec<TensorData> {
    evaluate_network(program, &partition(program).unwrap(), inputs)
}

/// The network with all layouts that can be: what constants depend on lies innermost.
fn channels_last(program: &Program) -> Network {
    partition_with(program, Tape::drive(&mut Prefer("last".into()))).unwrap()
}

fn evaluate_network(program: &Program, network: &Network, inputs: &[TensorData]) -> Vec<TensorData> {
    network.validate().unwrap();
    network.tasks.iter().for_each(|task| task.workload.validate().unwrap());
    let array = |data: &TensorData| Array::from_bytes(data.shape.clone(), data.dtype, &data.bytes).unwrap();
    let arrays: Vec<Array> = inputs.iter().map(array).collect();
    let named: Vec<(&str, &Array)> = program.inputs.iter().map(|(name, _)| name.as_str()).zip(&arrays).collect();
    let results = network.evaluate(&named).unwrap();
    let tensor = |(name, _): &(String, _)| {
        let (_, found) = results.iter().find(|(other, _)| other == name).unwrap();
        TensorData { shape: found.shape().to_vec(), dtype: found.dtype(), bytes: found.to_bytes().into() }
    };
    program.outputs.iter().map(tensor).collect()
}

#[test]
fn what_is_known_at_import_leaves_no_operation() {
    // one branch, short loops, functions and short sequences are put in place; long ones stay
    let operations = |name: &str| network(name).steps.iter().filter(|step| step.stage().is_none()).count();
    assert_eq!(["function_0", "loop_0"].map(operations), [0, 1]);
    let kinds = |name: &str| -> Vec<&'static str> {
        let kind = |step: &Step| match step {
            Step::Stage(_) => None,
            Step::Library(_) => Some("library"),
            Step::If(_) => Some("if"),
            Step::Repeat(_) => Some("repeat"),
        };
        network(name).steps.iter().filter_map(kind).collect()
    };
    assert_eq!(kinds("if_0"), ["if"]);
    assert_eq!(kinds("while_0"), ["repeat"]);
    assert_eq!(kinds("top_k_0"), ["library"]);
    assert_eq!(kinds("inside_1"), ["repeat"]);
}

#[test]
fn weights_of_sixteen_bits_stay_so() {
    let program = network("half");
    let weights: Vec<DType> =
        program.data.iter().flatten().filter(|data| data.elements() > 1).map(|data| data.dtype).collect();
    // of the convolution, both products and the norm, with their biases
    assert_eq!(weights, [DType::F16; 6]);
}

#[test]
fn hostile_files_are_refused_with_a_clear_message() {
    let models = entries("refused").into_iter().filter(|path| path.extension().is_some_and(|e| e == "onnx"));
    let mut differences = Vec::new();
    for path in models {
        let error = import(&path, &ImportOptions::default()).expect_err(&path.display().to_string());
        let folder = format!("{}/", files().join("refused").display());
        let message = format!("{error}\n").replace(&folder, "");
        let expectation = path.with_extension("txt");
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(&expectation, &message).unwrap();
        }
        let expected = std::fs::read_to_string(&expectation).unwrap_or_default();
        if message != expected {
            differences.push(format!("{}: {message:?} is not {expected:?}", path.display()));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn every_prefix_of_a_file_is_refused_or_valid() {
    let bytes = std::fs::read(files().join("networks/gemm/model.onnx")).unwrap();
    let mut refused = 0;
    for end in 0..bytes.len() {
        match tilescribe::graph::import_bytes(bytes[..end].to_vec().into(), &ImportOptions::default()) {
            Ok(program) => program.validate().unwrap(),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > bytes.len() * 9 / 10);
}

#[test]
fn every_changed_byte_is_survived() {
    for name in [
        "shapes",
        "conv_batch_norm",
        "transposed",
        "columns",
        "determinants",
        "grids",
        "largest",
        "regions",
        "reversed",
        "running",
        "if_0",
        "while_0",
        "function_0",
    ] {
        let bytes = std::fs::read(files().join("networks").join(name).join("model.onnx")).unwrap();
        let mut imported = 0;
        for at in 0..bytes.len() {
            for change in [0x01u8, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= change;
                if let Ok(program) = tilescribe::graph::import_bytes(changed.into(), &ImportOptions::default()) {
                    program.validate().unwrap();
                    imported += 1;
                }
            }
        }
        assert!(imported > 0);
    }
}

#[test]
fn computed_constants_stay_below_a_limit_that_can_be_raised() {
    // the table of an average over a padded window has as many elements as the output
    let path = files().join("networks/pooling/model.onnx");
    let limited = ImportOptions { constant_bytes: 8, ..ImportOptions::default() };
    let error = import(&path, &limited).unwrap_err();
    assert!(error.to_string().contains("; 8 are allowed"), "{error}");
    import(&path, &ImportOptions { constant_bytes: 1 << 12, ..limited }).unwrap();
}

#[test]
fn batch_normalisation_disappears_into_the_convolution() {
    let program = network("conv_batch_norm");
    // the convolution, its groups seen as channels, bias, ReLU
    assert_eq!(program.steps.len(), 4);
    // where something else reads the convolution, it has to stay as it is
    assert_eq!(network("conv_read_twice").steps.len(), 3);
}

#[test]
fn constants_fold_unless_that_inflates() {
    let program = network("shapes");
    let integers = program.tensors.iter().filter(|tensor| tensor.dtype == DType::I64).count();
    assert_eq!(integers, 0, "shapes are no tensors of the program");
    // a product packs its constant operand; what only adds zeros stays a literal
    let fills = network("fills");
    let constants: Vec<&[i64]> =
        fills.tensors.iter().filter(|t| t.role == Role::Constant).map(|t| t.shape.as_slice()).collect();
    assert_eq!(constants, [&[8i64, 12000][..]]);
    assert_eq!(fills.steps.len(), 4);
}

#[test]
fn what_comes_of_a_large_intermediate_constant_folds() {
    let program = network("bulky");
    let constants: Vec<&[i64]> =
        program.tensors.iter().filter(|t| t.role == Role::Constant).map(|t| t.shape.as_slice()).collect();
    // neither the table nor its layers are left, but the bias that comes of them
    assert!(constants.contains(&&[4i64, 9, 7][..]), "{constants:?}");
    assert!(!constants.contains(&&[300i64, 2][..]) && !constants.contains(&&[2i64, 256][..]), "{constants:?}");
    let sums = program.steps.iter().filter_map(Step::stage).filter(|held| held.stage.is_reduction()).count();
    // a convolution that its normalisation has changed stays, and the mean of what it gives
    assert_eq!(sums, 2);
}
