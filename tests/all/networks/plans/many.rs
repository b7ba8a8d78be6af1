//! Two thousand plans of ten networks: small ones of the kinds that people publish, and random ones. Whatever
//! kinds of decisions there are, each network computes what its program computes.

use std::collections::BTreeSet;
use std::thread;

use rand::{Rng, SeedableRng, rngs::StdRng};
use tilescribe::graph::{Network, Plan, Program, TensorData, partition, partition_as};
use tilescribe::space::{Decision, Policy};
use tilescribe::workload::{Array, Binary, Combiner, TensorId, Unary};

use super::super::symbolic::{axis, symbol, symbolic};
use super::super::{Builder, listing};
use super::{attended, drive, gated, global_pool, pool, random_network};

/// Plans of all networks together, at least; and of one of them, at most.
const PLANS: usize = 2000;
const OF_ONE: usize = 300;

/// Takes another candidate than the default as often as it was made for.
struct Sometimes {
    rng: StdRng,
    often: f64,
}

impl Policy for Sometimes {
    fn pick(&mut self, decision: &Decision) -> usize {
        if !self.rng.random_bool(self.often) {
            return decision.default;
        }
        self.rng.random_range(0..decision.candidates.len())
    }
}

fn image(b: &mut Builder, shape: [i64; 4]) -> TensorId {
    b.input("image", &shape)
}

fn classified(mut b: Builder, x: TensorId) -> Program {
    let shape = b.shape(x);
    let mean = global_pool(&mut b, x);
    let flat = b.reshape(mean, &shape[..2]);
    let classes = b.dense(flat, 3);
    b.output("classes", classes);
    b.program
}

fn conv_relu(b: &mut Builder, x: TensorId, outputs: i64, kernel: i64, stride: i64, groups: i64) -> TensorId {
    let sum = b.conv(x, outputs, kernel, stride, groups);
    b.relu(sum)
}

/// Blocks of two convolutions, or three with a bottleneck, around a residual stream; the inner convolutions
/// of bottlenecks may have groups.
fn residual(groups: i64) -> Program {
    let mut b = Builder::default();
    let x = image(&mut b, [1, 3, 15, 13]);
    let x = conv_relu(&mut b, x, 4, 3, 2, 1);
    let mut x = pool(&mut b, x, Combiner::Maximum);
    for (channels, stride) in [(4, 1), (8, 2), (8, 1), (8, 1)] {
        let inner = conv_relu(&mut b, x, 4, 1, 1, 1);
        let inner = conv_relu(&mut b, inner, 4, 3, stride, groups);
        let inner = b.conv(inner, channels, 1, 1, 1);
        let shortcut = if b.shape(x) == b.shape(inner) { x } else { b.conv(x, channels, 1, stride, 1) };
        let sum = b.binary(Binary::Add, inner, shortcut);
        x = b.relu(sum);
        let inner = conv_relu(&mut b, x, channels, 3, 1, groups);
        let inner = b.conv(inner, channels, 3, 1, 1);
        let sum = b.binary(Binary::Add, inner, x);
        x = b.relu(sum);
    }
    classified(b, x)
}

fn inverted_residual() -> Program {
    let mut b = Builder::default();
    let x = image(&mut b, [2, 3, 9, 7]);
    let mut x = conv_relu(&mut b, x, 4, 3, 2, 1);
    for (number, stride) in [1, 1, 2, 1].into_iter().enumerate() {
        let wide = conv_relu(&mut b, x, 8, 1, 1, 1);
        let moved = conv_relu(&mut b, wide, 8, 3, stride, 8);
        let moved = if number % 2 == 1 { gated(&mut b, moved) } else { moved };
        let narrow = b.conv(moved, 4, 1, 1, 1);
        x = if stride == 1 { b.binary(Binary::Add, narrow, x) } else { narrow };
    }
    let wide = conv_relu(&mut b, x, 12, 1, 1, 1);
    classified(b, wide)
}

fn dense_block() -> Program {
    let mut b = Builder::default();
    let x = image(&mut b, [1, 3, 8, 7]);
    let mut x = conv_relu(&mut b, x, 4, 3, 1, 1);
    for block in 0..2 {
        for _ in 0..4 {
            let channels = b.shape(x)[1];
            let (scale, shift) = (b.constant(&[channels, 1, 1]), b.constant(&[channels, 1, 1]));
            let normal = b.binary(Binary::Multiply, x, scale);
            let normal = b.binary(Binary::Add, normal, shift);
            let normal = b.relu(normal);
            let narrow = conv_relu(&mut b, normal, 6, 1, 1, 1);
            let grown = b.conv(narrow, 3, 3, 1, 1);
            x = b.concat(&[x, grown], 1);
        }
        if block == 0 {
            let narrow = b.conv(x, 6, 1, 1, 1);
            x = pool(&mut b, narrow, Combiner::Sum);
        }
    }
    classified(b, x)
}

fn fire_modules() -> Program {
    let mut b = Builder::default();
    let x = image(&mut b, [1, 3, 9, 7]);
    let mut x = conv_relu(&mut b, x, 6, 3, 2, 1);
    for number in 0..9 {
        let squeezed = conv_relu(&mut b, x, 3, 1, 1, 1);
        let ones = conv_relu(&mut b, squeezed, 4, 1, 1, 1);
        let threes = conv_relu(&mut b, squeezed, 4, 3, 1, 1);
        let both = b.concat(&[ones, threes], 1);
        x = if number % 3 == 2 && b.shape(x) == b.shape(both) { b.binary(Binary::Add, both, x) } else { both };
    }
    classified(b, x)
}

/// Convolutions, and layers of a transformer over their pixels.
fn transformer() -> Program {
    let mut b = Builder::default();
    let x = image(&mut b, [1, 3, 8, 8]);
    let mut x = conv_relu(&mut b, x, 6, 3, 2, 1);
    for _ in 0..2 {
        let moved = conv_relu(&mut b, x, 6, 3, 1, 6);
        let sum = b.binary(Binary::Add, moved, x);
        let wide = attended(&mut b, sum);
        let narrow = conv_relu(&mut b, wide, 6, 1, 1, 1);
        x = conv_relu(&mut b, narrow, 6, 3, 1, 1);
    }
    let x = conv_relu(&mut b, x, 4, 1, 1, 1);
    let flat = b.reshape(x, &[1, 64]);
    let out = b.dense(flat, 3);
    b.output("classes", out);
    b.program
}

/// A step of an LSTM that reads what convolutions see, and says where they look.
fn recurrent() -> Program {
    let mut b = Builder::default();
    let x = image(&mut b, [2, 3, 6, 5]);
    let (hidden, cell) = (b.input("hidden", &[2, 8]), b.input("cell", &[2, 8]));
    let mut x = conv_relu(&mut b, x, 6, 3, 1, 1);
    for _ in 0..4 {
        x = conv_relu(&mut b, x, 8, 3, 1, 1);
    }
    let mean = global_pool(&mut b, x);
    let seen = b.reshape(mean, &[2, 8]);
    let (of_seen, of_hidden) = (b.dense(seen, 32), b.dense(hidden, 32));
    let gates = b.binary(Binary::Add, of_seen, of_hidden);
    let gate = |b: &mut Builder, number: i64, op| {
        let part = b.slice(gates, 1, 8 * number, 8 * number + 8);
        b.unary(op, part)
    };
    let (input, output) = (gate(&mut b, 0, Unary::Sigmoid), gate(&mut b, 1, Unary::Sigmoid));
    let (forget, new) = (gate(&mut b, 2, Unary::Sigmoid), gate(&mut b, 3, Unary::Tanh));
    let (kept, added) = (b.binary(Binary::Multiply, forget, cell), b.binary(Binary::Multiply, input, new));
    let cell = b.binary(Binary::Add, kept, added);
    let bounded = b.unary(Unary::Tanh, cell);
    let hidden = b.binary(Binary::Multiply, output, bounded);
    let weights = b.reshape(hidden, &[2, 8, 1, 1]);
    let looked = b.binary(Binary::Multiply, x, weights);
    let mut y = conv_relu(&mut b, looked, 4, 1, 1, 1);
    for _ in 0..3 {
        y = conv_relu(&mut b, y, 4, 3, 1, 2);
    }
    let out = b.conv(y, 2, 1, 1, 1);
    b.output("map", out);
    b.output("next_cell", cell);
    b.program
}

/// The batch and the height are known when it runs.
fn any_batch() -> Program {
    let mut b = Builder::default();
    let x = image(&mut b, [7, 3, 11, 5]);
    let mut x = conv_relu(&mut b, x, 4, 3, 1, 1);
    for number in 0..4 {
        let wide = conv_relu(&mut b, x, 8, 1, 1, 1);
        let moved = conv_relu(&mut b, wide, 8, 3, 1, if number % 2 == 0 { 8 } else { 2 });
        let narrow = b.conv(moved, 4, 1, 1, 1);
        x = b.binary(Binary::Add, narrow, x);
    }
    let program = classified(b, x);
    let builder = Builder { program, ..Builder::default() };
    symbolic(builder, &[axis(0, 0, 1, 7), axis(0, 2, 1, 11)], &[(7, symbol(0)), (11, symbol(1))])
}

fn networks() -> Vec<(&'static str, Program)> {
    vec![
        ("residual", residual(1)),
        ("inverted residual", inverted_residual()),
        ("dense block", dense_block()),
        ("fire modules", fire_modules()),
        ("grouped", residual(2)),
        ("transformer", transformer()),
        ("recurrent", recurrent()),
        ("any batch", any_batch()),
        ("random", random_network(3, 20..21)),
        ("another random", random_network(11, 20..21)),
    ]
}

/// Inputs, and what the program computes from them.
struct Expected {
    inputs: Vec<(String, Array)>,
    outputs: Vec<TensorData>,
}

fn expected(program: &Program, values: &[i64]) -> Expected {
    let fixed = program.at(values);
    let mut rng = StdRng::seed_from_u64(17);
    let mut inputs = Vec::new();
    for (name, tensor) in &fixed.inputs {
        let shape = fixed.tensor(*tensor).shape.clone();
        let values: Vec<f32> = (0..shape.iter().product::<i64>()).map(|_| rng.random_range(-1.0..1.0)).collect();
        inputs.push((name.clone(), TensorData::from_f32(shape, &values)));
    }
    let given: Vec<TensorData> = inputs.iter().map(|(_, data)| data.clone()).collect();
    let outputs = program.evaluate(&given).expect("a valid program");
    let array = |data: &TensorData| Array::from_bytes(data.shape.clone(), data.dtype, &data.bytes).expect("an array");
    Expected { inputs: inputs.iter().map(|(name, data)| (name.clone(), array(data))).collect(), outputs }
}

impl Expected {
    fn compare(&self, network: &Network, name: &str) {
        let about = || format!("{name}, as\n{}{}", network.plan(), listing(network));
        let inputs: Vec<(&str, &Array)> = self.inputs.iter().map(|(name, array)| (name.as_str(), array)).collect();
        let found = network.evaluate(&inputs).unwrap_or_else(|error| panic!("{error}: {}", about()));
        assert_eq!(found.len(), self.outputs.len());
        for ((output, found), expected) in found.iter().zip(&self.outputs) {
            assert_eq!(found.shape(), expected.shape);
            let (expected, found) = (expected.to_f64(), found.as_f32().expect("floats"));
            let largest = expected.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
            assert!(largest > 0.0, "the test would pass with zeros");
            for (at, (a, b)) in expected.iter().zip(found).enumerate() {
                let distance = (a - f64::from(*b)).abs();
                assert!(distance <= 3e-5 * largest, "{output}[{at}]: {b} instead of {a} in {}", about());
            }
        }
    }
}

/// Compares a network whose calls are in another order, since they may run at the same time; gives how many
/// forks it has.
fn compare_forked(network: &Network, (name, seed): (&str, u64), run: &Expected) -> usize {
    let mut rng = StdRng::seed_from_u64(seed);
    let costs: Vec<f64> = network.tasks.iter().map(|_| rng.random_range(0.0..1.0)).collect();
    let mut forked = network.clone();
    forked.fork(&|task| costs[task]);
    forked.validate().unwrap_or_else(|error| panic!("{name}: {error}\n{}", listing(&forked)));
    run.compare(&forked, name);
    forked.forks.len()
}

/// Compares networks by so many distinct plans, or by as many as are found; gives how many, and the forks in
/// them.
fn compare_plans(name: &str, program: &Program, seed: u64) -> (usize, usize) {
    let runs: Vec<Expected> = match program.symbols.list.as_slice() {
        [] => vec![expected(program, &[])],
        symbols => [1, 2]
            .map(|at| symbols.iter().map(|s| if at == 1 { s.range.low } else { s.range.high }).collect::<Vec<_>>())
            .map(|values| expected(program, &values))
            .into(),
    };
    let default = partition(program).expect("a well-formed program");
    assert!(!default.planned.is_empty(), "{name}: nothing is decided");
    runs.iter().for_each(|run| run.compare(&default, name));
    let (mut seen, mut forks) = (BTreeSet::from([Plan::default()]), 0);
    for attempt in 0..3 * OF_ONE as u64 {
        if seen.len() > OF_ONE {
            break;
        }
        let rng = StdRng::seed_from_u64(1000 * seed + attempt);
        let often = [1.0, 0.5, 0.15][attempt as usize % 3];
        let network = drive(program, &mut Sometimes { rng, often });
        if !seen.insert(network.plan()) {
            continue;
        }
        forks += compare_forked(&network, (name, attempt), &runs[seen.len() % runs.len()]);
        if seen.len() % 10 == 0 {
            let again = partition_as(program, &network.plan()).expect("its own plan");
            assert_eq!((listing(&again), again.hash()), (listing(&network), network.hash()), "{name}");
        }
    }
    (seen.len() - 1, forks)
}

#[test]
fn thousands_of_plans_compute_what_their_programs_compute() {
    let counts: Vec<(&str, (usize, usize))> = thread::scope(|scope| {
        let networks = networks().into_iter().zip(0..);
        let work = |((name, program), seed)| scope.spawn(move || (name, compare_plans(name, &program, seed)));
        let workers: Vec<_> = networks.map(work).collect();
        workers.into_iter().map(|worker| worker.join().expect("all plans compute the same")).collect()
    });
    let plans: usize = counts.iter().map(|(_, (plans, _))| plans).sum();
    assert!(plans >= PLANS, "{plans} plans: {counts:?}");
    let forks: usize = counts.iter().map(|(_, (_, forks))| forks).sum();
    assert!(forks >= PLANS, "{forks} forks: {counts:?}");
}
