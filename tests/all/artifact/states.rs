//! Artifacts that keep states from run to run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tilescribe::artifact::{Manifest, Model, Resources, RuntimeError};
use tilescribe::graph::{self, CarryError, ImportOptions, Origin, Program, Step, Symbol, TensorData};
use tilescribe::workload::{Binary, DType, Expr, Extents, Index, Parameter, Role, Stage, TensorId, Var};

use super::extents::compile;
use super::{build_c_program, threads};

/// `present = past, then x`, whose scores and means are `y`: rows of 4 elements, for a batch.
fn cached() -> Program {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/graph/open/past/model.onnx");
    graph::import(&path, &ImportOptions::default()).unwrap()
}

/// `h' = h / 2 + x`, `y = 3 h'`, for rows of any number.
fn decaying() -> Program {
    let mut program = Program::default();
    let rows = Symbol::new("rows", Parameter { low: 1, high: 6 }, Origin::Axis { input: 0, axis: 0 });
    let rows = Index::var(program.symbols.add(rows));
    let extents = Extents::new([(0, rows)]);
    let mut tensor = |role| {
        let id = program.add_tensor(vec![6, 3], DType::F32, role);
        program.tensors[id.0 as usize].extents = extents.clone();
        id
    };
    let (h, x) = (tensor(Role::Input), tensor(Role::Input));
    let (next, y) = (tensor(Role::Output), tensor(Role::Output));
    let load = |id: TensorId| Expr::load(id, vec![Index::var(Var(0)), Index::var(Var(1))]);
    let binary = |kind, a, b| Expr::binary(kind, a, b);
    let halved = binary(Binary::Multiply, load(h), Expr::float(0.5));
    for (output, value) in
        [(next, binary(Binary::Add, halved, load(x))), (y, binary(Binary::Multiply, load(next), Expr::float(3.0)))]
    {
        let stage = Stage { extents: extents.clone(), ..Stage::map(output, vec![6, 3], value) };
        program.add_stage(stage, "decay");
    }
    program.inputs = vec![("h".into(), h), ("x".into(), x)];
    program.outputs = vec![("y".into(), y), ("h_next".into(), next)];
    program
}

fn pair(input: &str, output: &str) -> Vec<(String, String)> {
    vec![(input.to_string(), output.to_string())]
}

/// The artifact of a program with a state, in a folder of its own.
fn compiled(program: &Program, input: &str, output: &str, name: &str) -> PathBuf {
    let mut program = program.clone();
    program.carry(&pair(input, output)).unwrap();
    program.validate().unwrap();
    let network = graph::partition(&program).unwrap();
    network.validate().unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("artifact").join(name);
    compile(&network, &folder).unwrap();
    folder
}

fn values(shape: &[i64], seed: usize) -> TensorData {
    let count = shape.iter().product::<i64>() as usize;
    let values: Vec<f32> = (0..count).map(|i| ((i * 7 + seed * 5) % 17) as f32 / 8.0 - 1.0).collect();
    TensorData::from_f32(shape.to_vec(), &values)
}

#[track_caller]
fn assert_close(found: &TensorData, expected: &TensorData) {
    assert_eq!(found.shape, expected.shape);
    for (found, expected) in found.to_f64().iter().zip(expected.to_f64()) {
        assert!((found - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{found} is not {expected}");
    }
}

fn refused(result: Result<impl std::fmt::Debug, RuntimeError>) -> String {
    match result {
        Err(RuntimeError::Input(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_appended_in_place_is_what_the_plain_network_gives() {
    let (plain, folder) = (cached(), compiled(&cached(), "past", "present", "appended"));
    let model = Model::load(&folder, threads(2)).unwrap();
    let (manifest, outputs) = (model.manifest(), &model.manifest().outputs);
    assert_eq!((manifest.inputs.len(), outputs.len(), manifest.states.len()), (1, 1, 1));
    let y = plain.outputs.iter().position(|(name, _)| *name == outputs[0].name).unwrap();
    let present = 1 - y;
    for batch in [2, 1] {
        model.reset().unwrap();
        let mut past = TensorData::from_f32(vec![batch, 0, 4], &[]);
        let mut steps = Vec::new();
        for (step, new) in [3, 1, 1, 5, 1].into_iter().enumerate() {
            let x = values(&[batch, new, 4], step);
            let expected = plain.evaluate(&[past, x.clone()]).unwrap();
            assert_close(&model.run(std::slice::from_ref(&x)).unwrap()[0], &expected[y]);
            assert_eq!(model.state(0).unwrap(), expected[present]);
            past = expected[present].clone();
            steps.push((x, expected));
        }
        // the last steps again
        let (x, expected) = &steps[3];
        model.rewind(5).unwrap();
        assert_close(&model.run(std::slice::from_ref(x)).unwrap()[0], &expected[y]);
        // and from outside
        model.set_state(0, &steps[3].1[present]).unwrap();
        let (x, expected) = &steps[4];
        assert_close(&model.run(std::slice::from_ref(x)).unwrap()[0], &expected[y]);
    }
}

#[test]
fn a_bound_run_goes_on_from_the_one_before() {
    let (plain, folder) = (cached(), compiled(&cached(), "past", "present", "bound"));
    let model = Model::load(&folder, threads(1)).unwrap();
    let x = values(&[1, 2, 4], 3);
    let mut bound = model.bind(std::slice::from_ref(&x)).unwrap();
    let mut past = TensorData::from_f32(vec![1, 0, 4], &[]);
    let y = plain.outputs.iter().position(|(name, _)| *name == model.manifest().outputs[0].name).unwrap();
    for _ in 0..4 {
        bound.run().unwrap();
        let expected = plain.evaluate(&[past, x.clone()]).unwrap();
        // its shape grows with the state
        assert_close(&bound.outputs()[0], &expected[y]);
        past = expected[1 - y].clone();
    }
}

#[test]
fn what_does_not_fit_a_state_is_refused() {
    let folder = compiled(&cached(), "past", "present", "refused");
    let model = Model::load(&folder, threads(1)).unwrap();
    model.run(&[values(&[2, 3, 4], 0)]).unwrap();
    let reason = refused(model.run(&[values(&[1, 3, 4], 0)]));
    assert!(reason.contains("axis 0 of state past is 2; inputs of these extents want 1: reset the states first"));
    // it goes on as before
    model.run(&[values(&[2, 1, 4], 0)]).unwrap();
    assert_eq!(model.state(0).unwrap().shape, [2, 4, 4]);
    assert!(matches!(model.rewind(5), Err(RuntimeError::Machine(_))), "more rows than there are");
    assert!(refused(model.set_state(0, &values(&[2, 3, 5], 0))).contains("state `past` is f32["));
    assert!(refused(model.set_state(1, &values(&[2, 3, 4], 0))).contains("no state 1"));
    assert!(matches!(model.set_state(0, &values(&[65, 3, 4], 0)), Err(RuntimeError::Input(_))));
    // there is no room for more than the network takes
    let high = model.manifest().symbols.iter().find(|symbol| symbol.name == "past").unwrap().high;
    model.set_state(0, &values(&[2, high, 4], 0)).unwrap();
    model.run(&[values(&[2, 1, 4], 0)]).unwrap();
    let reason = refused(model.run(&[values(&[2, 1, 4], 0)]));
    assert_eq!(reason, format!("past is {}; the network takes 0 to {high}", high + 1));
}

#[test]
fn what_replaces_a_state_is_what_the_next_run_finds() {
    let (plain, folder) = (decaying(), compiled(&decaying(), "h", "h_next", "replaced"));
    let model = Model::load(&folder, threads(1)).unwrap();
    assert!(model.manifest().states[0].grows.is_none());
    for rows in [2, 5] {
        model.reset().unwrap();
        let mut h = TensorData::from_f32(vec![rows, 3], &vec![0.0; 3 * rows as usize]);
        for step in 0..5 {
            let x = values(&[rows, 3], step);
            let expected = plain.evaluate(&[h, x.clone()]).unwrap();
            assert_close(&model.run(&[x]).unwrap()[0], &expected[0]);
            h = expected[1].clone();
            assert_close(&model.state(0).unwrap(), &h);
        }
    }
    assert!(matches!(model.rewind(0), Err(RuntimeError::Machine(_))), "what was replaced is gone");
    let stateless = Path::new(env!("CARGO_TARGET_TMPDIR")).join("artifact/stateless");
    compile(&graph::partition(&plain).unwrap(), &stateless).unwrap();
    assert!(refused(Model::load(&stateless, Resources::default()).unwrap().reset()).contains("keeps no states"));
}

#[test]
fn states_of_fixed_extents_are_kept() {
    let fixed = decaying().at(&[4]);
    let folder = compiled(&fixed, "h", "h_next", "fixed_state");
    let model = Model::load(&folder, threads(1)).unwrap();
    let mut h = TensorData::from_f32(vec![4, 3], &[0.0; 12]);
    for step in 0..3 {
        let x = values(&[4, 3], step);
        let expected = fixed.evaluate(&[h, x.clone()]).unwrap();
        assert_close(&model.run(&[x]).unwrap()[0], &expected[0]);
        h = expected[1].clone();
    }
    assert_eq!(Manifest::read(&folder).unwrap().least_format(), 5);
}

#[test]
fn only_what_can_come_back_is_a_state() {
    let carry = |program: &Program, input: &str, output: &str| program.clone().carry(&pair(input, output));
    let (cached, decaying) = (cached(), decaying());
    assert!(matches!(carry(&decaying, "g", "y"), Err(CarryError::NoInput { .. })));
    assert!(matches!(carry(&decaying, "h", "z"), Err(CarryError::NoOutput { .. })));
    assert!(matches!(carry(&cached, "x", "y"), Err(CarryError::Misfit { .. })));
    // x is behind the past, not in front of it
    assert!(matches!(carry(&cached, "x", "present"), Err(CarryError::NotAppended { .. })));
    let twice = [pair("h", "h_next"), pair("h", "y")].concat();
    assert_eq!(decaying.clone().carry(&twice), Err(CarryError::Twice("h".into())));
    // nothing else says how many rows there are
    let both = [pair("h", "h_next"), pair("x", "y")].concat();
    assert_eq!(decaying.clone().carry(&both), Err(CarryError::Unknown { name: "rows".into() }));
    // other rows than those of the past
    let mut shifted = cached.clone();
    let present = shifted.outputs.iter().find(|(name, _)| name == "present").unwrap().1;
    for held in shifted.steps.iter_mut().filter_map(Step::stage_mut).filter(|held| held.stage.output == present) {
        let Expr::Guard { conditions, .. } = &mut held.stage.value else { panic!("{:?}", held.stage) };
        conditions.iter_mut().for_each(|condition| condition.low += 1);
    }
    assert!(matches!(carry(&shifted, "past", "present"), Err(CarryError::NotAppended { .. })));
    let mut never_empty = cached.clone();
    never_empty.symbols.list.iter_mut().for_each(|symbol| symbol.range.low = symbol.range.low.max(1));
    assert!(matches!(carry(&never_empty, "past", "present"), Err(CarryError::NeverEmpty { low: 1, .. })));
}

#[test]
fn programs_in_c_keep_states() {
    let folder = compiled(&cached(), "past", "present", "state_in_c");
    let scratch = tempfile::tempdir().unwrap();
    let program = build_c_program("states.c", &folder, scratch.path());
    let output = Command::new(program).arg(folder.join("weights.safetensors")).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let header = fs::read_to_string(folder.join("net.h")).unwrap();
    assert!(header.contains("0: past, f32[batch, past, 4]: present grows along axis 1, up to 4096"), "{header}");
}
