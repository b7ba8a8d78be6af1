//! Networks of f32 computed in bf16: as near to f32 as operands of 8 significant bits leave them, with the
//! channels of images last, and nothing between products that is longer than it has to be.
//!
//! `tests/files/graph/make_precise.py` makes the networks. How each is cut into tasks stands in `NAME.txt`
//! beside them; `UPDATE_EXPECT=1` writes that anew.

use std::path::PathBuf;

use super::quantized::expect_description;
use super::{data_of, entries, evaluate_in_tasks};
use tilescribe::graph::{ImportOptions, Precision, Products, Program, import};

fn cases() -> Vec<PathBuf> {
    entries("precise").into_iter().filter(|path| path.is_dir()).collect()
}

fn read(case: &std::path::Path) -> Program {
    import(&case.join("model.onnx"), &ImportOptions::default()).unwrap()
}

/// Root of the sum of squared differences, relative to that of what is expected.
fn distance(found: &[f64], expected: &[f64]) -> f64 {
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let differences = squares(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    (differences / squares(&mut expected.iter().copied())).sqrt()
}

#[test]
fn networks_in_bf16_are_near_to_those_in_f32() {
    let cases = cases();
    assert_eq!(cases.len(), 2);
    for case in cases {
        let inputs = [data_of(&case, "input", 0)];
        let expected = data_of(&case, "output", 0).to_f64();
        for (precision, range) in [(Precision::F32, 0.0..1e-5), (Precision::Bf16, 1e-4..0.01)] {
            let mut program = read(&case);
            program.shorten(precision, Products::All);
            program.validate().unwrap_or_else(|error| panic!("{}: {error}", case.display()));
            let whole = program.evaluate(&inputs).unwrap().remove(0).to_f64();
            let tasks = evaluate_in_tasks(&program, &inputs).remove(0).to_f64();
            for (way, found) in [("whole", &whole), ("in tasks", &tasks)] {
                let distance = distance(found, &expected);
                assert!(range.contains(&distance), "{} {way}, {precision:?}: {distance:e}", case.display());
            }
        }
    }
}

#[test]
fn networks_in_bf16_are_cut_as_expected() {
    expect_description(cases(), &|case| {
        let mut program = read(case);
        program.shorten(Precision::Bf16, Products::All);
        program
    });
}
