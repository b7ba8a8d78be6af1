//! Networks on which fusion must stop: everything fits into one task, which would outgrow its own text.

use std::time::{Duration, Instant};

use tilescribe::graph::{Network, TensorData, partition};
use tilescribe::workload::{Array, Binary, DType, Role, TensorId, Unary, Workload};

use super::Builder;

const SHAPE: [i64; 2] = [3, 5];

/// Far more than a linear pass takes in the slowest build, far less than one that doubles.
const ALLOWED: Duration = Duration::from_secs(20);

/// A network of one input and one output, built by `layers`.
fn network(layers: impl FnOnce(&mut Builder, TensorId) -> TensorId) -> Network {
    let mut b = Builder::default();
    let x = b.input("x", &SHAPE);
    let y = layers(&mut b, x);
    b.output("y", y);
    let start = Instant::now();
    let network = partition(&b.program).expect("a well-formed program");
    assert!(start.elapsed() < ALLOWED, "{:?}", start.elapsed());
    network.validate().expect("a valid network");
    for task in &network.tasks {
        let text = task.workload.to_string();
        let parsed: Workload = text.parse().unwrap_or_else(|error| panic!("{}: {error}", task.name));
        assert_eq!(parsed, task.workload);
    }
    if b.program.tensors[y.0 as usize].elements() < 1 << 12 {
        compare(&b, &network);
    }
    network
}

/// The program stage by stage, and the network task by task.
fn compare(b: &Builder, network: &Network) {
    let values: Vec<f32> = (0..15).map(|i| i as f32 / 20.0 - 0.3).collect();
    let data = TensorData::from_f32(SHAPE.to_vec(), &values);
    let expected = b.program.evaluate(std::slice::from_ref(&data)).expect("a valid program")[0].to_f64();
    let array = Array::from_bytes(data.shape.clone(), DType::F32, &data.bytes).expect("an array");
    let found = network.evaluate(&[("x", &array)]).expect("a valid network");
    let found = found[0].1.as_f32().expect("floats");
    let largest = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    assert!(largest > 0.0 && largest.is_finite());
    for (a, b) in expected.iter().zip(found) {
        assert!((a - f64::from(*b)).abs() <= 1e-5 * largest, "{b} instead of {a}");
    }
}

fn swish(b: &mut Builder, x: TensorId) -> TensorId {
    let gate = b.unary(Unary::Sigmoid, x);
    b.binary(Binary::Multiply, x, gate)
}

#[test]
fn a_long_chain_is_cut() {
    let chain = |length: usize| {
        network(|b, x| {
            let kinds = [Unary::Negate, Unary::Tanh, Unary::Absolute, Unary::Sigmoid, Unary::Cos];
            (0..length).fold(x, |x, at| b.unary(kinds[at % kinds.len()], x))
        })
    };
    assert_eq!(chain(40).tasks[0].workload.stages.len(), 1);
    chain(150);
    assert!(chain(2000).calls.len() > 1);
}

#[test]
fn a_value_that_is_read_twice_does_not_double_for_ever() {
    let three = network(|b, x| (0..3).fold(x, |x, _| swish(b, x)));
    assert_eq!(three.tasks[0].workload.stages.len(), 1);
    for layers in [12, 20, 60] {
        network(|b, x| (0..layers).fold(x, |x, _| swish(b, x)));
        network(|b, x| {
            let sum = (0..layers).fold(x, |x, _| b.binary(Binary::Add, x, x));
            b.scalar(Binary::Multiply, sum, 1e-3)
        });
    }
}

#[test]
fn many_nodes_that_read_one_another_take_linear_time() {
    let parts = |network: &Network| network.tasks.iter().map(|task| task.workload.to_string().len()).sum::<usize>();
    let mixed = |count: usize| {
        network(|b, x| {
            let mut made = vec![x; 6];
            for at in 0..count {
                let (near, far) = (made[made.len() - 1], made[made.len() - 2 - at * 7 % 5]);
                let next = match at % 4 {
                    0 => b.binary(Binary::Add, near, far),
                    1 => b.unary(Unary::Tanh, near),
                    2 => b.binary(Binary::Maximum, near, far),
                    _ => b.binary(Binary::Subtract, far, near),
                };
                made.push(next);
            }
            made[made.len() - 1]
        })
    };
    assert!(parts(&mixed(2000)) < 400_000);
}

#[test]
fn a_concatenation_doubled_again_and_again_keeps_few_parts() {
    let doubled = |times: usize| network(|b, x| (0..times).fold(x, |x, _| b.concat(&[x, x], 0)));
    doubled(6);
    let calls = doubled(24).calls.len();
    assert!(calls < 2000, "{calls} calls");
}

#[test]
fn a_chain_behind_a_concatenation_is_cut() {
    network(|b, x| {
        let y = b.unary(Unary::Tanh, x);
        let both = b.concat(&[x, y], 0);
        let summed = (0..30).fold(both, |x, _| b.binary(Binary::Add, x, x));
        let small = b.scalar(Binary::Multiply, summed, 1e-6);
        (0..200).fold(small, |x, _| b.unary(Unary::Tanh, x))
    });
}

#[test]
fn every_operand_of_a_long_sum_finds_its_task() {
    let mut b = Builder::default();
    let inputs: Vec<TensorId> = (0..300).map(|at| b.input(&format!("x{at}"), &SHAPE)).collect();
    let sum = inputs[1..].iter().fold(inputs[0], |sum, x| b.binary(Binary::Add, sum, *x));
    b.output("y", sum);
    let network = partition(&b.program).expect("a well-formed program");
    network.validate().expect("a valid network");
    for task in &network.tasks {
        task.workload.to_string().parse::<Workload>().unwrap_or_else(|error| panic!("{error}"));
        let read = task.workload.tensors.iter().filter(|tensor| tensor.role == Role::Input).count();
        assert!(read <= 200, "{read} inputs");
    }
}
