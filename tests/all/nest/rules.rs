//! Nests that are refused before they run.

use tilescribe::nest::{Fault, FaultKind, Flaw, Loop, LoopKind, Nest, Rule, Scope, Stmt, verify};
use tilescribe::workload::{Binary, DType, Expr, Index, TensorId, Unary, Var};

use super::{INPUT, LANES, OUTPUT, add, binary, broken, fault, i, looped, nest, run, store, to_floats, x};

/// `y[i] = x[i]` for 4 elements, with one scratch buffer `t` of 4 elements.
fn copy(kind: LoopKind, scope: Scope) -> Nest {
    let buffers: &[(&str, &[i64], Scope)] = &[("x", &[4], INPUT), ("y", &[4], OUTPUT), ("t", &[4], scope)];
    nest(buffers, vec![looped(kind, 0, 4, vec![store(1, &[i()], x(i()))])])
}

fn with_body(body: Vec<Stmt>) -> Nest {
    let mut n = copy(LoopKind::Serial, Scope::Register);
    n.body = body;
    n
}

#[test]
fn every_kind_of_loop_may_copy() {
    for kind in [LoopKind::Serial, LoopKind::Parallel, LoopKind::Vector, LoopKind::Unroll] {
        let n = copy(kind, Scope::BlockShared);
        assert_eq!(verify(&n, LANES), Ok(()), "{n}");
        assert_eq!(to_floats(&run(&n).unwrap()[1]), [0.5, 1.5, 2.5, 3.5]);
    }
}

#[test]
fn nonsense_is_refused_by_both() {
    let both = |n: &Nest| match (broken(n), run(n)) {
        (Rule::Structure(flaw), Err(Fault::Malformed { flaw: same, .. })) if flaw == same => flaw,
        other => panic!("{other:?}"),
    };
    let unbound = with_body(vec![store(1, &[i()], Expr::float(0.0))]);
    assert_eq!(both(&unbound), Flaw::Unbound("i".into()));
    let rebound = with_body(vec![looped(LoopKind::Serial, 0, 2, vec![looped(LoopKind::Serial, 0, 2, vec![])])]);
    assert_eq!(both(&rebound), Flaw::Rebound("i".into()));
    let unknown = with_body(vec![store(9, &[], Expr::float(0.0))]);
    assert_eq!(both(&unknown), Flaw::UnknownBuffer(9));
    let rank = with_body(vec![store(1, &[], Expr::float(0.0))]);
    assert_eq!(both(&rank), Flaw::Rank { access: "y[]".into(), expected: 1, found: 0 });
    let stored = with_body(vec![store(1, &[Index::constant(0)], Expr::integer(1))]);
    assert!(matches!(both(&stored), Flaw::Stored { expected: DType::F32, found: DType::I64, .. }));
    let mixed = binary(Binary::Add, Expr::float(1.0), Expr::integer(1));
    assert!(matches!(both(&with_body(vec![store(1, &[Index::constant(0)], mixed)])), Flaw::Mixed { .. }));
    let logic = Expr::unary(Unary::Not, Expr::float(1.0));
    assert!(matches!(both(&with_body(vec![store(1, &[Index::constant(0)], logic)])), Flaw::Operand { .. }));
    let real_index = store(1, &[Index::value(x(Index::constant(0)))], Expr::float(0.0));
    assert!(matches!(both(&with_body(vec![real_index])), Flaw::Operand { operator: "index", .. }));
    let unknown_var = with_body(vec![looped(LoopKind::Serial, 7, 2, vec![])]);
    assert_eq!(both(&unknown_var), Flaw::Unbound("?7".into()));
    let mut empty = copy(LoopKind::Serial, Scope::Workspace);
    empty.buffers[2].shape = vec![4, -1];
    assert_eq!(both(&empty), Flaw::Shape("t".into()));
    empty.buffers[2].shape = vec![1 << 40, 1 << 40];
    assert_eq!(both(&empty), Flaw::Shape("t".into()));
    let no_bounds = Stmt::Loop(Loop { var: Var(0), bounds: vec![], kind: LoopKind::Serial, body: vec![] });
    assert_eq!(both(&with_body(vec![no_bounds])), Flaw::NoBounds);
}

#[test]
fn bounds_follow_the_kind_of_loop() {
    let with = |kind, bounds: Vec<Index>, inner| {
        let inner = Stmt::Loop(Loop { var: Var(1), bounds, kind, body: inner });
        with_body(vec![looped(LoopKind::Serial, 0, 4, vec![inner])])
    };
    let constant = |n| vec![Index::constant(n)];
    let shortened = || vec![Index::constant(4), Index::constant(4).minus(&i())];
    assert_eq!(broken(&with(LoopKind::Serial, vec![i()], vec![])), Rule::FirstBound);
    let gathered = vec![Index::constant(4), Index::value(Expr::Cast(DType::I64, Box::new(x(i()))))];
    assert_eq!(broken(&with(LoopKind::Serial, gathered, vec![])), Rule::Bound { bound: "i64(x[i])".into() });
    assert_eq!(broken(&with(LoopKind::Unroll, shortened(), vec![])), Rule::UnrollBound);
    let too_wide = Rule::VectorBound { max_lanes: LANES };
    assert_eq!(broken(&with(LoopKind::Vector, shortened(), vec![])), too_wide);
    assert_eq!(broken(&with(LoopKind::Vector, constant(LANES + 1), vec![])), too_wide);
    let inner = vec![looped(LoopKind::Unroll, 2, 2, vec![])];
    assert_eq!(broken(&with(LoopKind::Vector, constant(4), inner)), Rule::VectorBody);
    let parallel = looped(LoopKind::Parallel, 1, 2, vec![]);
    assert_eq!(broken(&with_body(vec![looped(LoopKind::Parallel, 0, 2, vec![parallel])])), Rule::NestedParallel);
}

#[test]
fn errors_name_the_place() {
    let inner = looped(LoopKind::Vector, 1, 17, vec![]);
    let n = with_body(vec![looped(LoopKind::Parallel, 0, 4, vec![inner])]);
    let expected = "a vector loop must have one constant bound from 1 to 16; in `vector for j in 0..17` \
                    inside of `parallel for i in 0..4`";
    assert_eq!(verify(&n, LANES).unwrap_err().to_string(), expected);
}

#[test]
fn buffers_are_used_as_their_scope_allows() {
    let zero = || Index::constant(0);
    let one = |buffer| looped(LoopKind::Serial, 0, 4, vec![store(buffer, &[i()], Expr::float(1.0))]);
    assert_eq!(broken(&with_body(vec![one(0)])), Rule::ReadOnly { buffer: "x".into() });
    assert_eq!(fault(&with_body(vec![one(0)])), FaultKind::ReadOnly { element: "x[0]".into() });

    let mut packed = copy(LoopKind::Serial, Scope::Packed);
    assert_eq!(broken(&packed), Rule::NeverWritten { buffer: "t".into() });
    packed.body.push(one(2));
    packed.setup = vec![one(2)];
    assert!(matches!(broken(&packed), Rule::Setup { scope: "packed", .. }));
    packed.body.pop();
    assert_eq!(verify(&packed, LANES), Ok(()));
    packed.setup = vec![looped(LoopKind::Serial, 0, 4, vec![store(2, &[i()], x(i()))])];
    assert!(matches!(broken(&packed), Rule::Setup { scope: "input", .. }));
    packed.setup = vec![one(1)];
    assert!(matches!(broken(&packed), Rule::Setup { scope: "output", .. }));

    let unwritten = with_body(vec![add(1, &[zero()], Expr::float(1.0))]);
    assert_eq!(broken(&unwritten), Rule::NeverWritten { buffer: "y".into() });
    assert_eq!(broken(&with_body(vec![])), Rule::NeverWritten { buffer: "y".into() });
    assert_eq!(fault(&unwritten), FaultKind::Undefined { element: "y[0]".into() });

    let all_write = vec![looped(LoopKind::Parallel, 0, 4, vec![store(1, &[zero()], x(i()))])];
    assert_eq!(broken(&with_body(all_write)), Rule::SharedWrite { var: "i".into(), access: "y[0]".into() });

    let mut escaping = copy(LoopKind::Parallel, Scope::BlockShared);
    let Some(Stmt::Loop(l)) = escaping.body.first_mut() else { unreachable!() };
    l.body.push(store(2, &[zero()], Expr::float(1.0)));
    assert_eq!(verify(&escaping, LANES), Ok(()));
    escaping.body.push(store(2, &[zero()], Expr::float(1.0)));
    assert_eq!(broken(&escaping), Rule::PrivateEscape { buffer: "t".into() });

    let in_register = |kind| {
        let body = vec![store(2, &[i()], x(i())), store(1, &[i()], Expr::load(TensorId(2), vec![i()]))];
        with_body(vec![looped(kind, 0, 4, body)])
    };
    assert_eq!(verify(&in_register(LoopKind::Unroll), LANES), Ok(()));
    assert_eq!(verify(&in_register(LoopKind::Vector), LANES), Ok(()));
    let expected = Rule::RegisterIndex { access: "t[i]".into(), index: "i".into() };
    assert_eq!(broken(&in_register(LoopKind::Serial)), expected);
}
