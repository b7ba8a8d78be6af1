//! Artifacts of networks whose extents are known only when they run.

use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};
use tilescribe::artifact::{self, ArtifactError, Manifest, Model, Options, RuntimeError, Schedule, Version};
use tilescribe::graph::{self, ImportOptions, Network, Origin, Region, Requirement, Symbol, TensorData};
use tilescribe::space::Space;
use tilescribe::target::{Target, Task};
use tilescribe::workload::{Binary, DType, Expr, Extents, Index, Parameter, Role, Tensor, Var, Workload};

use super::{Mlp, assert_invalid, build_c_program, host, threads};

/// Rows at most.
const MOST: usize = 37;

/// The perceptron, for up to [`MOST`] rows, but not for 7.
fn network() -> Network {
    network_of(MOST)
}

fn network_of(most: usize) -> Network {
    let mut network = Mlp::of_rows(most).network;
    let range = Parameter { low: 0, high: most as i64 };
    let rows = Index::var(Var::parameter(0));
    let open = |shape: &[i64]| match shape.first() {
        Some(first) if *first == most as i64 => Extents::new([(0, rows.clone())]),
        _ => Extents::fixed(),
    };
    for task in &mut network.tasks {
        task.workload.parameters = vec![range];
        task.workload.tensors.iter_mut().for_each(|tensor| tensor.extents = open(&tensor.shape));
        task.workload.stages.iter_mut().for_each(|stage| stage.extents = open(&stage.spatial));
        task.workload.validate().unwrap();
    }
    network.buffers.iter_mut().for_each(|buffer| buffer.extents = open(&buffer.shape));
    network.calls.iter_mut().for_each(|call| call.parameters = vec![rows.clone()]);
    let symbols = &mut network.symbols;
    symbols.add(Symbol::new("rows", range, Origin::Axis { input: 0, axis: 0 }));
    // a product that nobody needs, and a requirement that 7 rows break: (rows - 7)² is at least 1
    let apart = rows.plus_constant(-7);
    let square = Origin::Product(apart.clone(), apart);
    let square = symbols.add(Symbol::new("square", Parameter { low: 0, high: (most * most) as i64 }, square));
    let formula = Index::var(square).plus_constant(-1);
    symbols.requirements.push(Requirement { formula, what: "7 rows of x are too few, or too many".into() });
    network
}

fn untuned(workload: &Workload, target: &Target) -> Schedule {
    let task = Task { workload: workload.clone(), target: target.clone() };
    Schedule::untuned(&Space::standard(), &task).unwrap()
}

pub fn compile(network: &Network, folder: &Path) -> Result<Manifest, ArtifactError> {
    let target = Target::Cpu(host());
    let schedules: Vec<Schedule> = network.tasks.iter().map(|task| untuned(&task.workload, &target)).collect();
    compile_with(network, &schedules, folder)
}

fn compile_with(network: &Network, schedules: &[Schedule], folder: &Path) -> Result<Manifest, ArtifactError> {
    let (target, options) = (Target::Cpu(host()), Options { name: "net", folder });
    let version = Version { target: &target, schedules };
    artifact::compile(network, &[version], &options, &mut |_| ControlFlow::Continue(()))
}

/// An artifact that all tests may read.
fn shared() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("artifact/any_rows");
        compile(&network(), &folder).unwrap();
        folder
    })
}

fn rows(count: usize) -> (Mlp, TensorData) {
    let mlp = Mlp::of_rows(count);
    let input = TensorData::from_f32(vec![count as i64, 16], &mlp.x);
    (mlp, input)
}

#[test]
fn one_artifact_serves_all_extents() {
    let model = Model::load(shared(), threads(2)).unwrap();
    for count in [1, MOST, 2, 3, 3, 16, 20, 36, MOST] {
        let (mlp, input) = rows(count);
        let outputs = model.run(&[input]).unwrap();
        assert_eq!(outputs[0].shape, [count as i64, 8]);
        mlp.assert_close(&outputs[0].f32s().unwrap());
    }
    let nothing = model.run(&[TensorData::from_f32(vec![0, 16], &[])]).unwrap();
    assert_eq!((nothing[0].shape.as_slice(), nothing[0].bytes.len()), (&[0i64, 8][..], 0));
    // two that are bound at the same time do not disturb each other
    let ((few, x), (many, y)) = (rows(2), rows(30));
    let (mut a, mut b) = (model.bind(&[x]).unwrap(), model.bind(&[y]).unwrap());
    for _ in 0..2 {
        a.run().unwrap();
        b.run().unwrap();
        few.assert_close(&a.outputs()[0].f32s().unwrap());
        many.assert_close(&b.outputs()[0].f32s().unwrap());
    }
}

/// One task tuned for 2000 and for 4000 rows; the program for many rows gives twice the result, to be known
/// by.
#[test]
fn the_program_of_the_nearest_point_runs() {
    const ROWS: usize = 4096;
    let mut network = network_of(ROWS);
    network.tune_at(&[vec![2000, 1993 * 1993], vec![4000, 3993 * 3993]]);
    network.specialise();
    network.validate().unwrap();
    let weights = network.tasks.iter().map(|task| task.weight);
    assert_eq!((network.calls.len(), weights.collect::<Vec<_>>()), (2 * network.regions.len(), vec![1; 4]));
    let target = Target::Cpu(host());
    let schedule = |task: &graph::NetworkTask| {
        let mut workload = task.workload.clone();
        let last = workload.stages.last_mut().unwrap();
        if task.name.ends_with("_at_4000") && last.is_reduction() {
            last.value = Expr::binary(Binary::Multiply, last.value.clone(), Expr::float(2.0));
        }
        untuned(&workload, &target)
    };
    let schedules: Vec<Schedule> = network.tasks.iter().map(schedule).collect();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("artifact/nearest");
    let manifest = compile_with(&network, &schedules, &folder).unwrap();
    assert!(manifest.regions.iter().all(|region| region.is_choice && region.end == region.first + 2));
    let model = Model::load(&folder, threads(2)).unwrap();
    // 2829 is beyond the geometric mean of both
    for (count, factor) in [(1, 1.0), (2828, 1.0), (2829, 2.0), (4096, 2.0), (2000, 1.0)] {
        let (mut mlp, input) = rows(count);
        mlp.y.iter_mut().for_each(|y| *y *= factor);
        mlp.assert_close(&model.run(&[input]).unwrap()[0].f32s().unwrap());
    }
    // what would compute something else is no choice
    let mut other = network.clone();
    other.tasks[1].workload.stages[0].spatial[1] -= 1;
    assert!(other.validate().is_err());
}

#[test]
fn extents_that_the_network_does_not_take_are_refused() {
    let model = Model::load(shared(), threads(1)).unwrap();
    let input = |shape: [i64; 2]| TensorData::from_f32(shape.to_vec(), &vec![0.0; (shape[0] * shape[1]) as usize]);
    for (shape, message) in [
        ([38, 16], "axis 0 of input x, rows, is 38; the network takes 0 to 37"),
        ([7, 16], "the extents do not fit together: 7 rows of x are too few, or too many"),
        ([4, 15], "axis 1 of input x is 15; it has to be 16"),
    ] {
        match model.run(&[input(shape)]) {
            Err(RuntimeError::Input(reason)) => assert_eq!(reason, message),
            other => panic!("{shape:?}: {other:?}"),
        }
        // the same words as from what the network itself says
        let network = network();
        let extents = network.buffers[0].extents.clone();
        let x = Tensor { extents, ..Tensor::new(vec![37, 16], DType::F32, Role::Input) };
        assert_eq!(network.symbols.values(&[("x", &x)], &[&shape]).unwrap_err().to_string(), message);
    }
    let flat = TensorData::from_f32(vec![16], &[0.0; 16]);
    let refused = model.run(&[flat]).unwrap_err().to_string();
    assert_eq!(refused, "input `x` is f32[rows, 16], f32[16] was given");
    let (mlp, input) = rows(5);
    mlp.assert_close(&model.run(&[input]).unwrap()[0].f32s().unwrap());
}

#[test]
fn manifest_and_header_describe_the_extents() {
    let manifest = Manifest::read(shared()).unwrap();
    assert_eq!((manifest.format, manifest.symbols.len()), (4, 2));
    let port = &manifest.inputs[0];
    assert_eq!((port.shape.as_slice(), port.least_shape().as_slice()), (&[37i64, 16][..], &[0i64, 16][..]));
    assert_eq!(port.shape_text(), "rows, 16");
    let header = fs::read_to_string(shared().join("net.h")).unwrap();
    for part in ["f32[rows, 16]", "rows is 0 to 37", "net_set_extents", "NET_BAD_EXTENTS = 7"] {
        assert!(header.contains(part), "{part}");
    }
    let fixed = fs::read_to_string(super::shared().join("net.h")).unwrap();
    assert!(!fixed.contains("extents") && Manifest::read(super::shared()).unwrap().format == 3);
}

/// What the library says must be what [`Symbols::values`] says, for formulas of every kind.
#[test]
fn the_library_computes_what_the_network_says() {
    let mut network = network();
    network.symbols.requirements.clear();
    let rows = Index::var(Var::parameter(0));
    let any = Parameter { low: 0, high: 1 << 40 };
    let mut add = |name: &str, range: Parameter, origin: Origin| {
        Index::var(network.symbols.add(Symbol::new(name, range, origin)))
    };
    let third = rows.clone().plus_constant(-4).floor_div(3);
    let quotient = add("quotient", any, Origin::Quotient(rows.clone().times(5).plus_constant(7), rows.clone()));
    let minimum = add("minimum", any, Origin::Minimum(quotient.clone(), rows.clone().plus_constant(-1)));
    let maximum = add("maximum", Parameter { low: 0, high: 34 }, Origin::Maximum(minimum.clone(), third.clone()));
    let product = add("product", any, Origin::Product(maximum, rows.clone().modulo(4).plus_constant(2)));
    let huge = rows.clone().plus_constant(-35).times(i64::MAX);
    let required = [
        (third.clone().times(-1).plus_constant(9), "a third is at most 9"),
        (rows.clone().modulo(5).times(3).minus(&rows.clone().modulo(7)), "remainders"),
        (product.minus(&quotient).plus_constant(40), "a product"),
        (Index::constant(-1).minus(&huge), "what leaves 64 bits is refused"),
    ];
    let requirement = |(formula, what): (Index, &str)| Requirement { formula, what: what.into() };
    network.symbols.requirements = required.map(requirement).into();
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("net");
    compile(&network, &folder).unwrap();
    let model = Model::load(&folder, threads(1)).unwrap();
    let x =
        Tensor { extents: network.buffers[0].extents.clone(), ..Tensor::new(vec![37, 16], DType::F32, Role::Input) };
    let mut refusals = BTreeSet::new();
    for count in -2..=40 {
        let shape: &[i64] = &[count, 16];
        let expected = network.symbols.values(&[("x", &x)], &[shape]).map_err(|error| error.to_string());
        let found = model.output_shapes(&[shape]).map_err(|error| error.to_string());
        assert_eq!(found, expected.map(|values| vec![vec![values[0], 8]]), "{count} rows");
        refusals.extend(found.err());
    }
    assert!(refusals.len() >= 8, "{refusals:?}");
}

/// What ONNX Runtime makes of networks with recurrences, forwards and backwards, at several numbers of steps.
#[test]
fn repetitions_run_as_often_as_extents_say() {
    for name in ["tagger", "layers", "scan", "loop", "until", "batchwise", "mixers", "either"] {
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/graph/open").join(name);
        let program = graph::import(&files.join("model.onnx"), &ImportOptions::default()).unwrap();
        let network = graph::partition(&program).unwrap();
        assert!(network.regions.iter().any(Region::is_open), "{name}");
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("net");
        compile(&network, &folder).unwrap();
        let model = Model::load(&folder, threads(2)).unwrap();
        let cases = |case: &usize| files.join(format!("case_{case}")).is_dir();
        let cases: Vec<usize> = (0..).take_while(cases).collect();
        assert!(cases.len() >= 3, "{name}");
        // from the fewest steps to the most, and back
        for case in cases.iter().chain(cases.iter().rev()) {
            let data = |kind: &str, at: usize| {
                graph::import_tensor(&files.join(format!("case_{case}/{kind}_{at}.pb"))).unwrap()
            };
            let inputs: Vec<TensorData> = (0..program.inputs.len()).map(|at| data("input", at)).collect();
            for (at, found) in model.run(&inputs).unwrap().iter().enumerate() {
                let expected = data("output", at);
                assert_eq!(found.shape, expected.shape, "{name} {case}");
                for (found, expected) in found.f32s().unwrap().iter().zip(expected.f32s().unwrap()) {
                    let is_close = (found - expected).abs() <= 1e-4 * expected.abs().max(1.0);
                    assert!(is_close, "{name} {case}, output {at}: {found} instead of {expected}");
                }
            }
        }
    }
}

#[test]
fn a_c_program_runs_it_at_several_extents() {
    let parent = tempfile::tempdir().unwrap();
    let program = build_c_program("extents.c", shared(), parent.path());
    let (all, input) = (Mlp::of_rows(MOST), parent.path().join("input"));
    fs::write(&input, all.x.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let counts = ["3", "37", "0", "7", "38", "-1", "3", "20"];
    let found = Command::new(program).arg(shared().join("weights.safetensors")).arg(input).args(counts).output();
    let found = found.unwrap();
    let said = String::from_utf8_lossy(&found.stderr).into_owned();
    assert!(found.status.success(), "{:?}: {said}", found.status);
    let refused: Vec<&str> = said.lines().collect();
    let refusal = "the network does not take inputs of these extents: ";
    assert_eq!(
        refused,
        [
            format!("{refusal}the extents do not fit together: 7 rows of x are too few, or too many"),
            format!("{refusal}axis 0 of input x, rows, is 38; the network takes 0 to 37"),
            format!("{refusal}axis 0 of input x, rows, is -1; the network takes 0 to 37"),
        ]
    );
    let values: Vec<f32> = found.stdout.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let mut rest = values.as_slice();
    for count in [3, MOST, 3, 20] {
        let (own, others) = rest.split_at(count * 8);
        // rows do not depend on one another
        for (found, expected) in own.iter().zip(&all.y) {
            assert!((found - expected).abs() <= 1e-4 * expected.abs().max(1.0), "{found} instead of {expected}");
        }
        rest = others;
    }
    assert!(rest.is_empty());
}

#[test]
fn hostile_extents_in_manifests_are_refused() {
    let change = |change: &dyn Fn(&mut Value), reason: &str| {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("copy");
        fs::create_dir(&folder).unwrap();
        for entry in fs::read_dir(shared()).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
        }
        let path = folder.join("manifest.json");
        let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut manifest);
        fs::write(&path, manifest.to_string()).unwrap();
        assert_invalid(&folder, reason);
    };
    change(&|manifest| manifest["format"] = json!(3), "format 3, 2 symbols and 0 states");
    change(&|manifest| manifest["symbols"] = json!([]), "format 4, 0 symbols and 0 states");
    change(&|manifest| manifest["symbols"][0]["low"] = json!(-1), "impossible range or origin");
    change(&|manifest| manifest["symbols"][0]["high"] = json!(-1), "impossible range or origin");
    let own = json!({"product": [{"terms": [[1, {"symbol": 1}]]}, {}]});
    change(&|manifest| manifest["symbols"][1]["computed"] = own.clone(), "impossible range or origin");
    change(&|manifest| manifest["symbols"][1]["computed"] = json!({"power": [{}, {}]}), "unknown variant");
    change(
        &|manifest| manifest["inputs"][0]["extents"]["9"] = manifest["inputs"][0]["extents"]["0"].clone(),
        "impossible",
    );
    change(&|manifest| manifest["inputs"][0]["extents"]["0"]["least"] = json!(38), "impossible run-time extents");
    change(
        &|manifest| manifest["inputs"][0]["extents"]["0"]["formula"] = json!({"terms": [[1, {"symbol": 2}]]}),
        "impossible",
    );
    // memory is allocated by the manifest and written by the library
    change(&|manifest| manifest["outputs"][0]["extents"]["0"]["least"] = json!(1), "not those of the manifest");
    change(&|manifest| manifest["outputs"][0]["shape"][0] = json!(36), "not those of the manifest");
}

#[test]
fn gpus_refuse_run_time_extents() {
    let error = artifact::check_network(&network(), [&super::gpus::gpu("sm_90")]).unwrap_err();
    assert!(error.to_string().contains("extents that are known only at run time"), "{error}");
}
