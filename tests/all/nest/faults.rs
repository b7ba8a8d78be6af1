//! Nests that are refused while they run.

use tilescribe::nest::{Fault, FaultKind, LoopKind, Nest, Rule, Scope, Stmt, interpret, verify};
use tilescribe::workload::{Binary, Condition, DType, Expr, Index, TensorId};

use super::{
    INPUT, LANES, OUTPUT, add, binary, broken, fault, floats, i, integers, looped, nest, run, store, to_floats, window,
    x,
};

#[test]
fn a_race_is_found() {
    // each iteration writes what the next one reads
    let racing = |kind| {
        let body = vec![store(1, &[i().plus_constant(1)], Expr::load(TensorId(1), vec![i()]))];
        let start = store(1, &[Index::constant(0)], Expr::float(1.0));
        nest(&[("x", &[4], INPUT), ("y", &[5], OUTPUT)], vec![start, looped(kind, 0, 4, body)])
    };
    assert!(run(&racing(LoopKind::Serial)).is_ok());
    assert_eq!(fault(&racing(LoopKind::Parallel)), FaultKind::Race { element: "y[1]".into() });
    assert_eq!(fault(&racing(LoopKind::Vector)), FaultKind::LaneDependence { element: "y[1]".into() });
}

#[test]
fn a_write_after_a_read_of_another_iteration_is_a_race() {
    // iteration i reads y[i + 1], which iteration i + 1 then overwrites; a third one read it in between
    let reads = binary(Binary::Add, Expr::load(TensorId(1), vec![Index::constant(2)]), x(i()));
    let initial = looped(LoopKind::Parallel, 0, 3, vec![store(1, &[i()], Expr::float(0.0))]);
    let racing = looped(LoopKind::Parallel, 0, 3, vec![store(1, &[i()], reads)]);
    let n = nest(&[("x", &[3], INPUT), ("y", &[3], OUTPUT)], vec![initial, racing]);
    assert_eq!(fault(&n), FaultKind::Race { element: "y[2]".into() });
    let text = run(&n).unwrap_err().to_string();
    assert!(text.ends_with("at `y[i] = y[2] + x[i]` where i = 2"), "{text}");
}

#[test]
fn private_buffers_are_undefined_in_each_iteration() {
    let only_first = Stmt::If {
        conditions: vec![Condition { index: i(), low: 0, high: 1 }],
        body: vec![store(2, &[Index::constant(0)], Expr::float(1.0))],
    };
    let body = vec![only_first, store(1, &[i()], Expr::load(TensorId(2), vec![Index::constant(0)]))];
    let with = |kind, scope| {
        let buffers: &[(&str, &[i64], Scope)] = &[("x", &[3], INPUT), ("y", &[3], OUTPUT), ("t", &[1], scope)];
        nest(buffers, vec![looped(kind, 0, 3, body.clone())])
    };
    assert!(run(&with(LoopKind::Serial, Scope::BlockShared)).is_ok());
    assert_eq!(fault(&with(LoopKind::Parallel, Scope::BlockShared)), FaultKind::Undefined { element: "t[0]".into() });
    assert_eq!(fault(&with(LoopKind::Parallel, Scope::Workspace)), FaultKind::Race { element: "t[0]".into() });
}

#[test]
fn lanes_may_share_a_reduction_and_nothing_else() {
    let total = || Index::constant(0);
    let buffers: &[(&str, &[i64], Scope)] = &[("x", &[8], INPUT), ("y", &[1], OUTPUT)];
    let start = || store(1, &[total()], Expr::float(0.0));
    let with = |body| nest(buffers, vec![start(), looped(LoopKind::Vector, 0, 8, body)]);
    let reduction = with(vec![add(1, &[total()], x(i()))]);
    assert_eq!(verify(&reduction, LANES), Ok(()));
    assert_eq!(to_floats(&run(&reduction).unwrap()[1]), [32.0]);
    let dependence = FaultKind::LaneDependence { element: "y[0]".into() };
    assert_eq!(fault(&with(vec![store(1, &[total()], x(i()))])), dependence);
    let uses_itself = add(1, &[total()], Expr::load(TensorId(1), vec![total()]));
    assert_eq!(fault(&with(vec![uses_itself])), dependence);
}

#[test]
fn accesses_outside_of_a_buffer_are_found() {
    let n = nest(
        &[("x", &[3], INPUT), ("y", &[4], OUTPUT)],
        vec![looped(LoopKind::Serial, 0, 4, vec![store(1, &[i()], x(i()))])],
    );
    let expected = FaultKind::OutOfBounds { buffer: "x".into(), dimension: 0, index: 3, extent: 3 };
    assert_eq!(fault(&n), expected);
    assert!(matches!(broken(&n), Rule::OutOfBounds { dimension: 0, extent: 3, .. }));
}

#[test]
fn gathered_indices_are_checked_when_they_run() {
    let mut n = nest(&[("x", &[3], INPUT), ("y", &[2], OUTPUT), ("at", &[2], INPUT)], vec![]);
    n.buffers[2].dtype = DType::I64;
    let gathered = Index::value(Expr::load(TensorId(2), vec![i()]));
    n.body = vec![looped(LoopKind::Serial, 0, 2, vec![store(1, &[i()], x(gathered.clone()))])];
    assert_eq!(verify(&n, LANES), Ok(()));
    let with = |at: &[i64]| {
        let mut arguments = vec![floats(&[1.0, 2.0, 3.0]), vec![0; 8], integers(at)];
        interpret(&n, &mut arguments).map(|()| to_floats(&arguments[1]))
    };
    assert_eq!(with(&[2, 0]), Ok(vec![3.0, 1.0]));
    let expected = FaultKind::GatherOutOfBounds { buffer: "x".into(), dimension: 0, index: 5, extent: 3 };
    assert_eq!(with(&[2, 5]).unwrap_err().kind(), Some(&expected));
    // what is written must be proven
    n.body = vec![looped(LoopKind::Serial, 0, 2, vec![store(1, &[gathered], x(i()))])];
    assert!(matches!(broken(&n), Rule::OutOfBounds { .. }));
}

#[test]
fn outputs_must_be_written_whole() {
    let n = nest(
        &[("x", &[4], INPUT), ("y", &[4], OUTPUT)],
        vec![looped(LoopKind::Serial, 0, 3, vec![store(1, &[i()], x(i()))])],
    );
    assert_eq!(run(&n), Err(Fault::Unwritten { element: "y[3]".into() }));
}

#[test]
fn what_setup_leaves_in_scratch_is_gone() {
    let mut n = nest(
        &[("x", &[1], INPUT), ("y", &[1], OUTPUT), ("t", &[1], Scope::Workspace)],
        vec![store(1, &[Index::constant(0)], Expr::load(TensorId(2), vec![Index::constant(0)]))],
    );
    n.setup = vec![store(2, &[Index::constant(0)], Expr::float(1.0))];
    assert_eq!(fault(&n), FaultKind::Undefined { element: "t[0]".into() });
    assert_eq!(broken(&n), Rule::NeverWritten { buffer: "t".into() });
}

#[test]
fn wrong_arguments_are_refused() {
    let naive = Nest::naive(&window(4));
    assert_eq!(interpret(&naive, &mut []), Err(Fault::Arguments { expected: 2, found: 0 }));
    let short = &mut [vec![0; 16], vec![0; 15]];
    let expected = Fault::ArgumentBytes { name: "t1".into(), expected: 16, found: 15 };
    assert_eq!(interpret(&naive, short), Err(expected));
}

#[test]
fn integer_division_by_zero_is_a_fault() {
    let mut n = nest(&[("x", &[1], INPUT), ("y", &[1], OUTPUT)], vec![]);
    n.buffers[0].dtype = DType::I64;
    n.buffers[1].dtype = DType::I64;
    let zero = Index::constant(0);
    n.body = vec![store(1, std::slice::from_ref(&zero), binary(Binary::Divide, Expr::integer(1), x(zero.clone())))];
    let mut arguments = vec![integers(&[0]), integers(&[0])];
    assert_eq!(interpret(&n, &mut arguments).unwrap_err().kind(), Some(&FaultKind::DivisionByZero));
}
