//! Printing, verifying and interpreting nests written by hand: what they compute, and how they are refused.

mod compiled;
mod files;
mod gpu;
mod gpu_programs;
pub mod kept;
mod parts;
mod persistent;
mod products;
mod random;
mod run_time;
mod rewrites;
mod rows;
mod stages;
mod text;
mod workloads;

use std::path::Path;

use tilescribe::nest::{
    Buffer, Fault, FaultKind, Flaw, Loop, LoopKind, Nest, Scope, Stmt, VerifyRule, interpret, statistics, verify,
};
use tilescribe::workload::{
    Binary, Combiner, Condition, DType, Expr, Index, Role, Stage, TensorId, Unary, Var, Workload,
};

const LANES: i64 = 16;

/// `t2[a, b] = Σ t0[a, c] · t1[c, b]`, `t3 = max(t2 + t4[b], 0)`
fn dense(m: i64, n: i64, k: i64) -> Workload {
    let mut w = Workload::default();
    let x = w.add_tensor(vec![m, k], DType::F32, Role::Input);
    let y = w.add_tensor(vec![k, n], DType::F32, Role::Constant);
    let z = w.add_tensor(vec![m, n], DType::F32, Role::Intermediate);
    let out = w.add_tensor(vec![m, n], DType::F32, Role::Output);
    let bias = w.add_tensor(vec![n], DType::F32, Role::Constant);
    let (a, b, c) = (var(0), var(1), var(2));
    let product = binary(Binary::Multiply, load(x, &[&a, &c]), load(y, &[&c, &b]));
    w.stages.push(Stage::reduce(z, vec![m, n], vec![k], Combiner::Sum, product));
    let sum = binary(Binary::Add, load(z, &[&a, &b]), load(bias, &[&b]));
    w.stages.push(Stage::map(out, vec![m, n], binary(Binary::Maximum, sum, Expr::float(0.0))));
    w
}

/// `t1[i] = Σ t0[i + r - 1]` over a window of 3, padded with zeros
fn window(n: i64) -> Workload {
    let mut w = Workload::default();
    let x = w.add_tensor(vec![n], DType::F32, Role::Input);
    let out = w.add_tensor(vec![n], DType::F32, Role::Output);
    let at = var(0).plus(&var(1)).plus_constant(-1);
    let inside = vec![Condition { index: at.clone(), low: 0, high: n }];
    let value = Expr::guard(inside, load(x, &[&at]), Expr::float(0.0));
    w.stages.push(Stage::reduce(out, vec![n], vec![3], Combiner::Sum, value));
    w
}

fn var(number: u32) -> Index {
    Index::var(Var(number))
}

fn load(tensor: TensorId, indices: &[&Index]) -> Expr {
    Expr::load(tensor, indices.iter().map(|i| (*i).clone()).collect())
}

fn binary(op: Binary, x: Expr, y: Expr) -> Expr {
    Expr::binary(op, x, y)
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn to_floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn integers(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn looped(kind: LoopKind, var: u32, extent: i64, body: Vec<Stmt>) -> Stmt {
    Stmt::Loop(Loop { var: Var(var), bounds: vec![Index::constant(extent)], kind, body })
}

fn store(buffer: u32, indices: &[Index], value: Expr) -> Stmt {
    Stmt::Store { buffer: TensorId(buffer), indices: indices.to_vec(), value }
}

fn add(buffer: u32, indices: &[Index], value: Expr) -> Stmt {
    Stmt::Accumulate { buffer: TensorId(buffer), indices: indices.to_vec(), combiner: Combiner::Sum, value }
}

/// A nest over f32 buffers (`x` and so on), with variables `i`, `j`, `k`.
fn nest(buffers: &[(&str, &[i64], Scope)], body: Vec<Stmt>) -> Nest {
    let buffers = buffers.iter().map(|(name, shape, scope)| Buffer::new(*name, shape.to_vec(), DType::F32, *scope));
    let vars = ["i", "j", "k"].map(String::from).to_vec();
    Nest { buffers: buffers.collect(), vars, body, ..Nest::default() }
}

const INPUT: Scope = Scope::Argument(Role::Input);
const CONSTANT: Scope = Scope::Argument(Role::Constant);
const OUTPUT: Scope = Scope::Argument(Role::Output);

/// `x[index]` of buffer 0.
fn x(index: Index) -> Expr {
    Expr::load(TensorId(0), vec![index])
}

fn i() -> Index {
    var(0)
}

fn j() -> Index {
    var(1)
}

/// Runs a nest on 0.5, 1.5, ... in inputs and constants; the bytes of all arguments afterwards.
fn run(nest: &Nest) -> Result<Vec<Vec<u8>>, Fault> {
    let ramp = |count: i64| floats(&(0..count).map(|v| v as f32 + 0.5).collect::<Vec<_>>());
    let mut arguments: Vec<_> = nest.arguments().iter().map(|id| ramp(nest.buffer(*id).elements())).collect();
    interpret(nest, &mut arguments).map(|()| arguments)
}

fn fault(nest: &Nest) -> FaultKind {
    let fault = run(nest).expect_err("the nest has a fault");
    fault.kind().unwrap_or_else(|| panic!("it did not run: {fault}")).clone()
}

fn broken(nest: &Nest) -> VerifyRule {
    verify(nest, LANES).expect_err("the nest breaks a rule").rule
}

fn check_golden(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/nest").join(name);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, expected, "{} differs; UPDATE_EXPECT=1 rewrites it", path.display());
}

// ---- printing

#[test]
fn naive_nests_print() {
    check_golden("dense.txt", &Nest::naive(&dense(5, 7, 3)).to_string());
    check_golden("window.txt", &Nest::naive(&window(9)).to_string());
}

/// A nest with each kind of loop, scope and bound.
fn tiled() -> Nest {
    let buffers: &[(&str, &[i64], Scope)] = &[
        ("x", &[197], INPUT),
        ("w", &[3], CONSTANT),
        ("y", &[197], OUTPUT),
        ("p", &[3], Scope::Packed),
        ("acc", &[8], Scope::Register),
    ];
    let flat = i().times(8).plus(&j());
    let below = vec![Condition { index: flat.clone(), low: i64::MIN, high: 197 }];
    let product = binary(Binary::Multiply, x(flat.clone()), Expr::load(TensorId(3), vec![var(2)]));
    let mut tiled = nest(buffers, Vec::new());
    let acc = || Expr::load(TensorId(4), vec![j()]);
    tiled.setup = vec![looped(LoopKind::Serial, 0, 3, vec![store(3, &[i()], Expr::load(TensorId(1), vec![i()]))])];
    let reduction =
        vec![looped(LoopKind::Vector, 1, 8, vec![Stmt::If { conditions: below, body: vec![add(4, &[j()], product)] }])];
    let tail = Stmt::Loop(Loop {
        var: Var(1),
        bounds: vec![Index::constant(8), Index::constant(197).minus(&i().times(8))],
        kind: LoopKind::Serial,
        body: vec![store(2, &[flat], Expr::unary(Unary::Exp, Expr::load(TensorId(5), vec![j()])))],
    });
    tiled.buffers.push(Buffer::new("s", vec![8], DType::F32, Scope::BlockShared));
    tiled.body = vec![looped(
        LoopKind::Parallel,
        0,
        25,
        vec![
            looped(LoopKind::Vector, 1, 8, vec![store(4, &[j()], Expr::float(0.0))]),
            looped(LoopKind::Unroll, 2, 3, reduction),
            looped(LoopKind::Vector, 1, 8, vec![store(5, &[j()], acc())]),
            tail,
        ],
    )];
    tiled
}

#[test]
fn a_tiled_nest_prints_verifies_and_runs() {
    let tiled = tiled();
    check_golden("tiled.txt", &tiled.to_string());
    assert_eq!(verify(&tiled, LANES), Ok(()));
    let arguments = run(&tiled).unwrap();
    let weights: f32 = 0.5 + 1.5 + 2.5;
    for (at, value) in to_floats(&arguments[2]).into_iter().enumerate() {
        let expected = (weights * (at as f32 + 0.5)).exp();
        assert!(value == expected || (value - expected).abs() <= 1e-5 * expected, "y[{at}] = {value}, not {expected}");
    }
}

#[test]
fn expressions_print_with_the_parentheses_they_need() {
    let shown = nest(&[("x", &[9], INPUT)], Vec::new());
    let (a, b) = (|| x(i()), || x(j()));
    let sum = || binary(Binary::Add, a(), b());
    let cases = [
        (binary(Binary::Multiply, sum(), a()), "(x[i] + x[j]) * x[i]"),
        (binary(Binary::Subtract, a(), sum()), "x[i] - (x[i] + x[j])"),
        (binary(Binary::Subtract, sum(), a()), "x[i] + x[j] - x[i]"),
        (Expr::unary(Unary::Negate, sum()), "-(x[i] + x[j])"),
        (binary(Binary::Less, binary(Binary::Less, a(), b()), a()), "(x[i] < x[j]) < x[i]"),
        (binary(Binary::Maximum, sum(), Expr::float(-1.0)), "max(x[i] + x[j], -1.0)"),
        (binary(Binary::Multiply, Expr::Index(i().plus_constant(-1)), a()), "(i - 1) * x[i]"),
        (Expr::Index(i().times(8).plus(&j()).floor_div(3).times(2).plus_constant(5)), "4*i + 2*((2*i + j) / 3) + 5"),
        (Expr::Index(Index::constant(197).minus(&i().times(8))), "197 - 8*i"),
        (Expr::Index(i().times(-1)), "-i"),
        (x(Index::value(Expr::Cast(DType::I64, Box::new(x(i()))))), "x[i64(x[i])]"),
        (
            Expr::guard(vec![Condition { index: i(), low: 1, high: 4 }], a(), Expr::float(0.0)),
            "guard(1 <= i < 4, x[i], 0.0)",
        ),
        (Expr::select(binary(Binary::LessEqual, a(), b()), a(), b()), "select(x[i] <= x[j], x[i], x[j])"),
    ];
    for (expr, expected) in cases {
        assert_eq!(shown.show_expr(&expr), expected);
    }
}

#[test]
fn loops_over_variables_that_a_nest_lacks_are_refused() {
    let unknown = nest(&[("y", &[1], OUTPUT)], vec![looped(LoopKind::Serial, 7, 2, vec![])]);
    assert_eq!(broken(&unknown), VerifyRule::Structure(Flaw::Unbound("?7".into())));
    assert!(matches!(run(&unknown), Err(Fault::Malformed { flaw: Flaw::Unbound(_), .. })));
}

// ---- what naive nests compute

#[test]
fn naive_dense_is_the_product() {
    let (m, n, k) = (5, 7, 3);
    let naive = Nest::naive(&dense(m, n, k));
    assert_eq!(verify(&naive, LANES), Ok(()));
    let arguments = run(&naive).unwrap();
    let at = |row: i64, column: i64, columns: i64| (row * columns + column) as f32 + 0.5;
    for (flat, value) in to_floats(&arguments[2]).into_iter().enumerate() {
        let (a, b) = (flat as i64 / n, flat as i64 % n);
        let expected: f32 = (0..k).map(|c| at(a, c, k) * at(c, b, n)).sum::<f32>() + at(0, b, n);
        assert!((value - expected).abs() < 1e-3, "[{a}, {b}]: {value}, not {expected}");
    }
}

#[test]
fn figures_count_what_runs_and_what_is_written_out() {
    let figures = statistics(&Nest::naive(&dense(5, 7, 3)));
    assert_eq!(figures.flops, dense(5, 7, 3).flops());
    assert_eq!(figures.loads.argument, 2 * 105 + 35);
    assert_eq!(figures.loads.shared, 105 + 35);
    assert_eq!(figures.stores.argument, 35);
    assert_eq!(figures.shared_bytes, 4 * 35);
    let figures = statistics(&tiled());
    assert_eq!((figures.packed_bytes, figures.private_bytes, figures.register_bytes), (12, 32, 32));
    // store; 3 × (condition, 2 loads, multiplication, accumulation); load, store; load, exp, store, loop;
    // loop
    assert_eq!(figures.operations, 1 + 3 * (1 + 2 + 1 + 3) + 2 + 4 + 1);
}
