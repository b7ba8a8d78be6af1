//! Extents that are known only when the network runs: a program for all of them has to be, at each, the
//! program that is imported with fixed ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tilescribe::graph::{
    Dim, ImportError, ImportOptions, Origin, Program, TensorData, import, import_tensor, open_dims,
};
use tilescribe::workload::{DType, put_integer, put_real};

use super::{entries, files};

/// Stages of more points are not evaluated here.
const MAX_POINTS: i64 = 1 << 22;

/// Ranges of dimensions, by name.
type Ranges = BTreeMap<String, (i64, i64)>;
/// Reads a network with these dimensions.
type Read<'a> = &'a dyn Fn(BTreeMap<String, Dim>) -> Result<Program, ImportError>;

fn options(dims: BTreeMap<String, Dim>) -> ImportOptions {
    ImportOptions { dims, ..ImportOptions::default() }
}

/// Numbers that differ from element to element; integers are 0 or 1, so that they are places, too.
fn filled(shape: &[i64], dtype: DType, seed: u64) -> TensorData {
    let (mut state, mut bytes) = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, Vec::new());
    for _ in 0..shape.iter().product::<i64>() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        match dtype.is_float() {
            true => put_real(dtype, (state >> 40) as f64 / f64::from(1 << 24) + 0.1, &mut bytes),
            false => put_integer(dtype, (state >> 40) as i64 % 2, &mut bytes),
        }
    }
    TensorData { shape: shape.to_vec(), dtype, bytes: bytes.into() }
}

/// What becomes of a network with these ranges: `equal` to the fixed ones at the least, the greatest and some
/// other extents, or why not.
fn compare(read: Read<'_>, ranges: &Ranges, inputs: &[(String, Vec<i64>)]) -> String {
    let program = match read(ranges.iter().map(|(name, (low, high))| (name.clone(), Dim::range(*low, *high))).collect())
    {
        Ok(program) => program,
        Err(error) => return error.to_string(),
    };
    if program.is_fixed() {
        return "fixed".to_string();
    }
    if let Err(error) = program.validate() {
        return format!("INVALID: {error}");
    }
    let mut compared = 0;
    for round in 0..5 {
        let value = |(at, (name, (low, high))): (usize, (&String, &(i64, i64)))| {
            let spread = (round * 7919 + at as i64 * 104_729) % (high - low + 1);
            (name.clone(), [*low, *high].get(round as usize).copied().unwrap_or(low + spread))
        };
        let values: BTreeMap<String, i64> = ranges.iter().enumerate().map(value).collect();
        let shapes: Vec<Vec<i64>> = inputs
            .iter()
            .map(|(name, shape)| {
                let extent = |(axis, own): (usize, &i64)| *values.get(&format!("{name}[{axis}]")).unwrap_or(own);
                shape.iter().enumerate().map(extent).collect()
            })
            .collect();
        let views: Vec<&[i64]> = shapes.iter().map(Vec::as_slice).collect();
        let fixed = read(values.iter().map(|(name, value)| (name.clone(), Dim::fixed(*value))).collect());
        let (at, fixed) = match (program.symbol_values(&views), fixed) {
            (Ok(at), Ok(fixed)) => (at, fixed),
            (Ok(_), Err(error)) => return format!("ACCEPTED at {values:?}: {error}"),
            // what broadcasts may be 1 in the fixed network only
            (Err(_), _) => continue,
        };
        compared += 1;
        // of results that are counted, the most may leave nothing of others, which no stage computes
        let is_counted = program.symbols.list.iter().any(|symbol| matches!(symbol.origin, Origin::Count { .. }));
        if let Err(error) = program.at(&at).validate()
            && !is_counted
        {
            return format!("INVALID at {values:?}: {error}");
        }
        let given: Vec<TensorData> = fixed
            .inputs
            .iter()
            .enumerate()
            .map(|(at, (_, tensor))| {
                let tensor = fixed.tensor(*tensor);
                filled(&tensor.shape, tensor.dtype, at as u64 + 1)
            })
            .collect();
        match (program.evaluate(&given), fixed.evaluate(&given)) {
            (Ok(found), Ok(expected)) if !are_close(&found, &expected) => return format!("DIFFERENT at {values:?}"),
            (Err(error), Ok(_)) => return format!("FAILED at {values:?}: {error}"),
            _ => {}
        }
    }
    if compared == 0 { "never fits".to_string() } else { "equal".to_string() }
}

fn are_close(found: &[TensorData], expected: &[TensorData]) -> bool {
    let same = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-4 * (1.0 + b.abs());
    found.len() == expected.len()
        && found
            .iter()
            .zip(expected)
            .all(|(a, b)| a.shape == b.shape && a.dtype == b.dtype && a.to_f64().iter().zip(&b.to_f64()).all(same))
}

/// A file of expectations, which `UPDATE_EXPECT=1` writes anew.
fn check_expectation(path: &Path, found: &str) {
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path, found).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    let differences: Vec<&str> = found.lines().filter(|line| !expected.lines().any(|other| other == *line)).collect();
    assert!(found == expected, "{}: {}", path.display(), differences.join("\n"));
}

/// A file of `open/NAME`, and what stands in each of its cases.
fn open_network(name: &str) -> std::path::PathBuf {
    files().join("open").join(name).join("model.onnx")
}

fn folders(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = entries.filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

/// Without any option: default ranges, and what the networks make of them.
#[test]
fn open_networks_give_what_onnx_runtime_gives() {
    let networks = folders(&files().join("open"));
    assert!(networks.len() >= 8, "{} networks", networks.len());
    let mut lines = String::new();
    for network in networks {
        let name = network.file_name().unwrap().to_string_lossy().into_owned();
        let program = import(&network.join("model.onnx"), &ImportOptions::default()).unwrap();
        program.validate().unwrap_or_else(|error| panic!("{name}: {error}"));
        for symbol in &program.symbols.list {
            let steps = if symbol.multiple == 1 { String::new() } else { format!(" in steps of {}", symbol.multiple) };
            let (low, high) = (symbol.range.low, symbol.range.high);
            lines.push_str(&format!("{name}: {} in {low}..{high}{steps}\n", symbol.name));
        }
        let cases = folders(&network);
        assert!(!cases.is_empty(), "{name}");
        for case in cases {
            let data = |kind: &str, at: usize| import_tensor(&case.join(format!("{kind}_{at}.pb"))).unwrap();
            let inputs: Vec<TensorData> = (0..program.inputs.len()).map(|at| data("input", at)).collect();
            let shapes: Vec<&[i64]> = inputs.iter().map(|input| input.shape.as_slice()).collect();
            let values = program.symbol_values(&shapes).unwrap_or_else(|error| panic!("{}: {error}", case.display()));
            // what is counted has as many elements as are found in the run
            let is_counted = program.symbols.list.iter().any(|symbol| matches!(symbol.origin, Origin::Count { .. }));
            let run = if is_counted { program.clone() } else { program.at(&values) };
            let outputs = run.evaluate(&inputs).unwrap_or_else(|error| panic!("{}: {error}", case.display()));
            let expected: Vec<TensorData> = (0..outputs.len()).map(|at| data("output", at)).collect();
            assert!(are_close(&outputs, &expected), "{}: {outputs:?} is not {expected:?}", case.display());
        }
    }
    check_expectation(&files().join("open/symbols.txt"), &lines);
}

/// Time in front of the batch is no batch.
#[test]
fn networks_are_tuned_for_short_and_long_runs_of_the_least_batch() {
    let points = |name: &str| import(&open_network(name), &ImportOptions::default()).unwrap().symbols.usual_points();
    assert_eq!(points("layers"), [[1, 1], [45, 1], [304, 1], [45, 8]]);
    assert_eq!(points("batchwise"), [[1, 1], [1, 45], [1, 304], [8, 45]]);
    // prompts, and single rows behind a long past
    assert_eq!(points("past"), [[1, 0, 45], [1, 0, 304], [1, 304, 1], [8, 0, 45], [8, 304, 1]]);
}

/// What other multiples of the extents would be is refused in words.
#[test]
fn extents_that_fit_in_steps_alone_are_taken_in_steps() {
    let program = import(&open_network("doubled"), &ImportOptions::default()).unwrap();
    assert_eq!(program.symbols.usual_points()[0][1..], [4, 1, 4, 1]);
    assert!(program.symbol_values(&[&[1, 2, 8, 12]]).is_ok());
    let refused = program.symbol_values(&[&[1, 2, 8, 10]]).unwrap_err().to_string();
    assert_eq!(refused, "axis 3 of input x, width, is 10; the network takes 4 to 2048 in steps of 4");
    // a range that is given is not touched
    let given = given(&[("height", Dim::range(1, 100))]);
    assert!(import(&open_network("doubled"), &given).is_err());
}

fn given(entries: &[(&str, Dim)]) -> ImportOptions {
    options(entries.iter().map(|(name, dim)| (name.to_string(), dim.clone())).collect())
}

fn refusal(path: &Path, entries: &[(&str, Dim)]) -> String {
    import(path, &given(entries)).expect_err("a refusal").to_string()
}

#[test]
fn dimensions_take_the_values_and_ranges_that_are_given() {
    let path = open_network("heads");
    let fixed = import(&path, &given(&[("batch", Dim::fixed(3)), ("sequence", Dim::fixed(5))])).unwrap();
    assert!(fixed.is_fixed());
    assert_eq!(fixed.tensor(fixed.inputs[0].1).shape, [3, 5, 8]);
    let some = import(&path, &given(&[("batch", Dim::fixed(3)), ("sequence", Dim::range(2, 100))])).unwrap();
    assert_eq!(some.symbols.list.len(), 1);
    assert_eq!(some.tensor(some.inputs[0].1).shape, [3, 100, 8]);
    assert!(some.symbol_values(&[&[3, 100, 8]]).is_ok());
    for shape in [[3, 101, 8], [3, 1, 8], [2, 5, 8], [3, 5, 7]] {
        assert!(some.symbol_values(&[&shape]).is_err(), "{shape:?}");
    }
    // a dimension that the file fixes may be opened, too
    let opened = import(&path, &given(&[("x[2]", Dim::range(8, 8))])).unwrap();
    assert_eq!(opened.symbols.list.len(), 2);
}

#[test]
fn dimensions_that_are_given_wrongly_are_refused() {
    let path = open_network("heads");
    let bad = [Dim::fixed(0), Dim::range(5, 4), Dim::range(-1, 4), Dim::range(1, 1 << 31)];
    for dim in bad.into_iter().chain([Dim { points: vec![9], ..Dim::range(1, 8) }]) {
        assert!(refusal(&path, &[("batch", dim)]).starts_with("dimension batch was given as"));
    }
    let unknown = refusal(&path, &[("tme", Dim::fixed(5))]);
    assert_eq!(unknown, "the network has no open dimension tme; it has batch, sequence");
    let fixed = refusal(&files().join("networks/gemm/model.onnx"), &[("batch", Dim::fixed(3))]);
    assert_eq!(fixed, "the network has no open dimension batch; all its extents are fixed");
}

#[test]
fn dimensions_without_a_name_are_called_by_input_and_axis() {
    let path = open_network("unnamed");
    assert_eq!(open_dims(&path).unwrap(), ["time", "x[0]", "x[1]", "x[2]", "x[4]"]);
    let dims = [("x[0]", 2), ("x[1]", 3), ("x[2]", 4), ("time", 5), ("x[4]", 6)];
    let program = import(&path, &given(&dims.map(|(name, extent)| (name, Dim::fixed(extent))))).unwrap();
    assert_eq!(program.tensor(program.inputs[0].1).shape, [2, 3, 4, 5, 6]);
}

/// Default ranges give way to what the network says; those that are given do not.
#[test]
fn ranges_that_do_not_work_are_changed_unless_they_are_given() {
    let path = open_network("equated");
    let program = import(&path, &ImportOptions::default()).unwrap();
    let names: Vec<&str> = program.symbols.list.iter().map(|symbol| symbol.name.as_str()).collect();
    assert_eq!(names, ["a", "more"], "b, c and d are a, depth is 5, and all is more and 3");
    assert!(program.symbol_values(&[&[2, 5], &[2, 5], &[2, 4], &[2, 7]]).is_ok());
    assert!(program.symbol_values(&[&[2, 5], &[3, 5], &[2, 4], &[2, 7]]).is_err());
    assert!(program.symbol_values(&[&[2, 5], &[2, 5], &[2, 4], &[2, 8]]).is_err());
    let given = refusal(&path, &[("depth", Dim::range(6, 9))]);
    assert!(given.ends_with("the extents depth and 5 have to be equal"), "{given}");
    let given = refusal(&open_network("pictures"), &[("height", Dim::range(1, 9))]);
    assert!(given.contains("may be less than 0"), "{given}");
    let given = refusal(&open_network("layers"), &[("steps", Dim::range(0, 9))]);
    assert!(given.ends_with("the number of iterations after the first, steps - 1, may be less than 0"), "{given}");
    let given = refusal(&open_network("squeezed"), &[("length", Dim::range(7, 15))]);
    assert!(given.contains("and 1 have to be equal"), "{given}");
    let given = refusal(&open_network("loop"), &[("columns", Dim::range(1, 1 << 24))]);
    assert!(given.contains("too large"), "{given}");
}

/// Each dimension of each input alone, all leading ones, and all, of each network.
#[test]
fn opened_dimensions_give_what_fixed_ones_give() {
    let mut lines = String::new();
    for case in entries("networks") {
        let path = case.join("model.onnx");
        let read = |dims| import(&path, &options(dims));
        let fixed = read(BTreeMap::new()).unwrap();
        if fixed.stages().map(|held| held.stage.points()).sum::<i64>() > MAX_POINTS {
            continue;
        }
        let inputs: Vec<(String, Vec<i64>)> =
            fixed.inputs.iter().map(|(name, tensor)| (name.clone(), fixed.tensor(*tensor).shape.clone())).collect();
        let around = |extent: i64| if extent == 1 { (1, 3) } else { ((extent - 2).max(1), extent + 3) };
        let mut all = Ranges::new();
        for (name, shape) in &inputs {
            all.extend(shape.iter().enumerate().map(|(axis, extent)| (format!("{name}[{axis}]"), around(*extent))));
        }
        let leading: Ranges = all.clone().into_iter().filter(|(name, _)| name.ends_with("[0]")).collect();
        let singles = all.iter().map(|(name, range)| Ranges::from([(name.clone(), *range)]));
        let mut seen = BTreeSet::new();
        for ranges in singles.chain([leading, all.clone()]).filter(|ranges| !ranges.is_empty()) {
            if seen.insert(ranges.clone()) {
                let names: Vec<&str> = ranges.keys().map(String::as_str).collect();
                let outcome = compare(&read, &ranges, &inputs);
                let name = case.file_name().unwrap().to_string_lossy();
                lines.push_str(&format!("{name} {}: {}\n", names.join(" "), outcome.replace('\n', " ")));
            }
        }
    }
    assert!(!lines.contains("INVALID") && !lines.contains("DIFFERENT") && !lines.contains("ACCEPTED"), "{lines}");
    assert!(!lines.contains("FAILED"), "{lines}");
    check_expectation(&files().join("open/opened.txt"), &lines);
}
