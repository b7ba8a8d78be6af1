//! Inputs that are one number in every run.

use std::collections::BTreeMap;

use tilescribe::graph::{ImportOptions, Program, TensorData, import};

use super::files;

/// `y`, and what one branch alone has of it, of `x` and a flag.
fn merged(constants: &[(&str, f64)]) -> Result<Program, String> {
    let constants: BTreeMap<String, f64> = constants.iter().map(|(name, value)| (name.to_string(), *value)).collect();
    let options = ImportOptions { constants, ..ImportOptions::default() };
    import(&files().join("constant/merged/model.onnx"), &options).map_err(|error| error.to_string())
}

fn names(list: &[(String, tilescribe::workload::TensorId)]) -> Vec<&str> {
    list.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn a_constant_decides_a_branch() {
    let x = TensorData::from_f32(vec![2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let doubled: Vec<f64> = x.to_f64().iter().map(|value| 2.0 * value).collect();
    let squares: Vec<f64> = x.to_f64().iter().map(|value| value * value).collect();

    let with = merged(&[("flag", 1.0)]).unwrap();
    assert_eq!((names(&with.inputs), names(&with.outputs)), (vec!["x"], vec!["y"]));
    assert_eq!(with.evaluate(std::slice::from_ref(&x)).unwrap()[0].to_f64(), doubled);

    let without = merged(&[("flag", 0.0)]).unwrap();
    assert_eq!((names(&without.inputs), names(&without.outputs)), (vec!["x"], vec!["y", "rest"]));
    let found = without.evaluate(&[x]).unwrap();
    assert_eq!([found[0].to_f64(), found[1].to_f64()], [squares.clone(), squares]);
}

#[test]
fn constants_that_make_no_sense_are_refused() {
    assert!(merged(&[]).unwrap_err().contains("has no elements"));
    assert_eq!(merged(&[("flog", 1.0)]).unwrap_err(), "the network has no input flog; it has x, flag");
    assert_eq!(merged(&[("flag", 2.0)]).unwrap_err(), "input flag cannot be a constant: 2 is no bool");
    let open = merged(&[("x", 1.0), ("flag", 1.0)]).unwrap_err();
    assert_eq!(open, "input x cannot be a constant: the file leaves an extent of it open");
}
