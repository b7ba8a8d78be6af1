//! Plain readings of workloads, and random programs of the space, compiled.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilescribe::nest::Nest;
use tilescribe::space::{Decision, Policy, Space, Untuned};
use tilescribe::target::Task;
use tilescribe::workload::{Binary, Combiner, Condition, DType, Expr, Role, Stage, Unary, Workload};

use super::{binary, check, load, target, v};

struct Uniform(ChaCha8Rng);

impl Policy for Uniform {
    fn pick(&mut self, decision: &Decision) -> usize {
        self.0.random_range(0..decision.candidates.len())
    }
}

/// The plain nest, the untuned program and `samples` random ones.
fn check_programs(name: &str, workload: Workload, samples: u64) {
    let target = target();
    let task = Task { workload, target: target.clone().into() };
    check(name, &Nest::naive(&task.workload), &target, 1e-5);
    let space = Space::standard();
    for seed in 0..=samples {
        let (trace, nest) = match seed {
            0 => space.drive(&task, &mut Untuned),
            _ => space.drive(&task, &mut Uniform(ChaCha8Rng::seed_from_u64(seed))),
        };
        if let Ok(nest) = nest {
            check(&format!("{name}, seed {seed}\n{trace}"), &nest, &target, 1e-5);
        }
    }
}

/// `relu(a[m, k] · b[k, n] + bias[n])`
fn dense(m: i64, k: i64, n: i64) -> Workload {
    let mut w = Workload::default();
    let a = w.add_tensor(vec![m, k], DType::F32, Role::Input);
    let b = w.add_tensor(vec![k, n], DType::F32, Role::Constant);
    let bias = w.add_tensor(vec![n], DType::F32, Role::Constant);
    let t = w.add_tensor(vec![m, n], DType::F32, Role::Intermediate);
    let y = w.add_tensor(vec![m, n], DType::F32, Role::Output);
    let product = binary(Binary::Multiply, load(a, &[&v(0), &v(2)]), load(b, &[&v(2), &v(1)]));
    w.stages.push(Stage::reduce(t, vec![m, n], vec![k], Combiner::Sum, product));
    let sum = binary(Binary::Add, load(t, &[&v(0), &v(1)]), load(bias, &[&v(1)]));
    w.stages.push(Stage::map(y, vec![m, n], binary(Binary::Maximum, sum, Expr::float(0.0))));
    w
}

/// A padded convolution, or the largest value of each window.
fn window(channels: i64, size: [i64; 2], outputs: i64, kernel: i64, stride: i64, combiner: Combiner) -> Workload {
    let pad = kernel / 2;
    let out = size.map(|s| (s + 2 * pad - kernel) / stride + 1);
    let mut w = Workload::default();
    let x = w.add_tensor(vec![channels, size[0], size[1]], DType::F32, Role::Input);
    let f = w.add_tensor(vec![outputs, channels, kernel, kernel], DType::F32, Role::Constant);
    let y = w.add_tensor(vec![outputs, out[0], out[1]], DType::F32, Role::Output);
    let row = v(1).times(stride).plus(&v(4)).plus_constant(-pad);
    let column = v(2).times(stride).plus(&v(5)).plus_constant(-pad);
    let inside = vec![
        Condition { index: row.clone(), low: 0, high: size[0] },
        Condition { index: column.clone(), low: 0, high: size[1] },
    ];
    let outside = Expr::float(if combiner == Combiner::Sum { 0.0 } else { f64::NEG_INFINITY });
    let pixel = Expr::guard(inside, load(x, &[&v(3), &row, &column]), outside);
    let value = binary(Binary::Multiply, pixel, Expr::unary(Unary::Absolute, load(f, &[&v(0), &v(3), &v(4), &v(5)])));
    w.stages.push(Stage::reduce(y, vec![outputs, out[0], out[1]], vec![channels, kernel, kernel], combiner, value));
    w
}

fn softmax(rows: i64, columns: i64) -> Workload {
    let mut w = Workload::default();
    let x = w.add_tensor(vec![rows, columns], DType::F32, Role::Input);
    let most = w.add_tensor(vec![rows], DType::F32, Role::Intermediate);
    let e = w.add_tensor(vec![rows, columns], DType::F32, Role::Intermediate);
    let sum = w.add_tensor(vec![rows], DType::F32, Role::Intermediate);
    let y = w.add_tensor(vec![rows, columns], DType::F32, Role::Output);
    w.stages.push(Stage::reduce(most, vec![rows], vec![columns], Combiner::Maximum, load(x, &[&v(0), &v(1)])));
    let shifted = binary(Binary::Subtract, load(x, &[&v(0), &v(1)]), load(most, &[&v(0)]));
    w.stages.push(Stage::map(e, vec![rows, columns], Expr::unary(Unary::Exp, shifted)));
    w.stages.push(Stage::reduce(sum, vec![rows], vec![columns], Combiner::Sum, load(e, &[&v(0), &v(1)])));
    let quotient = binary(Binary::Divide, load(e, &[&v(0), &v(1)]), load(sum, &[&v(0)]));
    w.stages.push(Stage::map(y, vec![rows, columns], quotient));
    w
}

/// `y[i, j] = table[ids[i], j] · 2`, as an embedding; ids are clamped into the table.
fn gather(rows: i64, table: i64, width: i64) -> Workload {
    let mut w = Workload::default();
    let ids = w.add_tensor(vec![rows], DType::I64, Role::Input);
    let values = w.add_tensor(vec![table, width], DType::F32, Role::Constant);
    let y = w.add_tensor(vec![rows, width], DType::F32, Role::Output);
    let id = tilescribe::workload::Index::value(load(ids, &[&v(0)]));
    w.stages.push(Stage::map(
        y,
        vec![rows, width],
        binary(Binary::Multiply, load(values, &[&id, &v(1)]), Expr::float(2.0)),
    ));
    w
}

/// A transpose of a reshaped tensor, with a comparison, a selection and a cast.
fn shuffle(a: i64, b: i64) -> Workload {
    let mut w = Workload::default();
    let x = w.add_tensor(vec![a * b], DType::F32, Role::Input);
    let y = w.add_tensor(vec![b, a], DType::I64, Role::Output);
    let z = w.add_tensor(vec![a * b], DType::F32, Role::Output);
    let here = v(1).times(b).plus(&v(0));
    let value = binary(Binary::Multiply, load(x, &[&here]), Expr::float(100.0));
    let positive = binary(Binary::Less, Expr::float(0.0), value.clone());
    let selected = Expr::select(positive, value.clone(), Expr::unary(Unary::Floor, value));
    w.stages.push(Stage::map(y, vec![b, a], Expr::Cast(DType::I64, Box::new(selected))));
    let (q, r) = (v(0).floor_div(a), v(0).modulo(a));
    w.stages.push(Stage::map(z, vec![a * b], Expr::Cast(DType::F32, Box::new(load(y, &[&q, &r])))));
    w
}

#[test]
fn dense_programs() {
    check_programs("dense", dense(13, 37, 41), 25);
    check_programs("dense one row", dense(1, 131, 53), 15);
    check_programs("dense wide", dense(24, 64, 96), 15);
}

#[test]
fn window_programs() {
    check_programs("convolution", window(3, [9, 11], 7, 3, 1, Combiner::Sum), 25);
    check_programs("strided convolution", window(5, [13, 13], 6, 3, 2, Combiner::Sum), 15);
    check_programs("maximum", window(2, [12, 17], 3, 3, 2, Combiner::Maximum), 15);
}

#[test]
fn row_programs() {
    check_programs("softmax", softmax(5, 37), 25);
    check_programs("softmax even", softmax(4, 64), 10);
}

#[test]
fn gathers_and_index_maps() {
    check_programs("gather", gather(11, 5, 19), 15);
    check_programs("shuffle", shuffle(7, 12), 15);
}
