//! Networks with run-time extents: what they compute is what the programs of fixed extents compute that they
//! are at each point.

use tilescribe::graph::{
    Collected, Network, Origin, Program, ProgramError, Repeat, Scanned, State, Step, Symbol, Symbols, TensorData,
    partition,
};
use tilescribe::workload::{
    Array, Binary, Combiner, Condition, DType, Expr, Extents, Index, Interval, Parameter, Role, TensorId, Unary, Var,
};

use super::{Builder, layer, listing, var};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// A symbol: the extent of an axis of an input, both by position, and the numbers that it can be.
pub struct Axis {
    input: usize,
    axis: usize,
    low: i64,
    /// The program was built with it.
    high: i64,
}

pub fn symbol(number: usize) -> Index {
    Index::var(Var::parameter(number))
}

/// Makes extents of a program run-time ones: each that is one of these numbers becomes the formula beside it.
pub fn symbolic(builder: Builder, axes: &[Axis], formulas: &[(i64, Index)]) -> Program {
    let mut program = builder.program;
    let list = axes.iter().enumerate().map(|(number, axis)| {
        let (range, origin) =
            (Parameter { low: axis.low, high: axis.high }, Origin::Axis { input: axis.input, axis: axis.axis });
        Symbol::new(format!("n{number}"), range, origin)
    });
    program.symbols = Symbols { list: list.collect(), requirements: Vec::new() };
    let formula = |extent: i64| formulas.iter().find(|(number, _)| *number == extent).map(|(_, formula)| formula);
    let extents = |shape: &[i64]| {
        Extents::new(shape.iter().enumerate().filter_map(|(at, extent)| Some((at, formula(*extent)?.clone()))))
    };
    for (tensor, data) in program.tensors.iter_mut().zip(&program.data) {
        if data.is_none() {
            tensor.extents = extents(&tensor.shape);
        }
    }
    set_extents(&mut program, formulas);
    program
}

/// Makes the extents of a program's stages run-time ones.
fn set_extents(program: &mut Program, formulas: &[(i64, Index)]) {
    let formula = |extent: i64| formulas.iter().find(|(number, _)| *number == extent).map(|(_, formula)| formula);
    for held in program.steps.iter_mut().filter_map(Step::stage_mut) {
        let stage = &mut held.stage;
        let axes: Vec<i64> = stage.spatial.iter().chain(&stage.reduction).copied().collect();
        let range = |var: Var| axes.get(var.0 as usize).map_or(Interval::point(0), |extent| Interval::below(*extent));
        let simple = stage.value.map_indices(&mut |index| match index.has_value() {
            true => index.clone(),
            false => index.simplify(&range),
        });
        stage.value = simple.rewrite(&mut |expr| match expr {
            Expr::Guard { conditions, inside, outside } => {
                let ended = |c: &Condition| match formula(c.high) {
                    Some(end) if c.low == 0 => Condition::within(&c.index, Some(end), c.high),
                    _ => vec![c.clone()],
                };
                Expr::guard(conditions.iter().flat_map(ended).collect(), *inside, *outside)
            }
            other => other,
        });
        let known = axes.iter().enumerate().filter_map(|(at, extent)| Some((at, formula(*extent)?.clone())));
        stage.extents = Extents::new(known);
    }
}

/// Makes the concatenation of a program one of parts that end where these formulas say.
fn join(program: &mut Program, parts: &[(TensorId, Index)], axis: usize) {
    let concatenation = program.steps.iter_mut().filter_map(Step::stage_mut).find(|s| s.node.starts_with("Concat"));
    let stage = &mut concatenation.expect("the program has one").stage;
    let mut value = Expr::float(0.0);
    for (at, (part, end)) in parts.iter().enumerate().rev() {
        let start = if at > 0 { parts[at - 1].1.clone() } else { Index::constant(0) };
        let mut indices: Vec<Index> = (0..stage.spatial.len()).map(var).collect();
        indices[axis] = var(axis).minus(&start);
        let behind = Condition { index: indices[axis].clone(), low: 0, high: i64::MAX };
        let conditions = vec![behind, Condition::below(&var(axis), end)];
        value = Expr::guard(conditions, Expr::load(*part, indices), value);
    }
    stage.value = value;
}

/// Lets symbols be larger than the numbers that the program was built with.
fn widen(program: &mut Program, most: i64) {
    program.symbols.list.iter_mut().for_each(|symbol| symbol.range.high = most);
    let values = vec![most; program.symbols.list.len()];
    for tensor in &mut program.tensors {
        tensor.shape = tensor.extents.at(&tensor.shape, &values);
    }
    for stage in program.steps.iter_mut().filter_map(Step::stage_mut).map(|held| &mut held.stage) {
        let axes: Vec<i64> = stage.spatial.iter().chain(&stage.reduction).copied().collect();
        let mut spatial = stage.extents.at(&axes, &values);
        stage.reduction = spatial.split_off(stage.spatial.len());
        stage.spatial = spatial;
    }
}

/// Cuts the program, and compares what the network computes with what the program computes, at all these
/// points; gives the names of the tasks.
fn check(program: &Program, points: &[&[i64]]) -> String {
    program.validate().unwrap_or_else(|error| panic!("the test's program: {error}"));
    let network = partition(program).unwrap_or_else(|error| panic!("{error}"));
    network.validate().unwrap_or_else(|error| panic!("{error}\n{}", listing(&network)));
    for task in &network.tasks {
        task.workload.validate().unwrap_or_else(|error| panic!("{}: {error}\n{}", task.name, task.workload));
    }
    for values in points {
        compare(program, &network, values);
    }
    let mut lines: Vec<String> = network.tasks.iter().map(|t| format!("{} {}\n", t.weight, t.name)).collect();
    lines.sort();
    lines.concat()
}

pub fn compare(program: &Program, network: &Network, values: &[i64]) {
    let fixed = program.at(values);
    let mut rng = StdRng::seed_from_u64(7);
    let inputs: Vec<TensorData> = fixed
        .inputs
        .iter()
        .map(|(_, tensor)| {
            let tensor = fixed.tensor(*tensor);
            let count = tensor.shape.iter().product::<i64>();
            let bytes: Vec<u8> = match tensor.dtype {
                DType::I64 => (0..count).flat_map(|_| rng.random_range(0..8_i64).to_le_bytes()).collect(),
                _ => (0..count).flat_map(|_| rng.random_range(-1.0..1.0_f32).to_le_bytes()).collect(),
            };
            TensorData { shape: tensor.shape.clone(), dtype: tensor.dtype, bytes: bytes.into() }
        })
        .collect();
    let expected = fixed.evaluate(&inputs).unwrap_or_else(|error| panic!("{values:?}: {error}"));
    assert_eq!(program.evaluate(&inputs).expect("the same program").len(), expected.len());
    let arrays: Vec<Array> =
        inputs.iter().map(|d| Array::from_bytes(d.shape.clone(), d.dtype, &d.bytes).expect("an array")).collect();
    let named: Vec<(&str, &Array)> = fixed.inputs.iter().map(|(name, _)| name.as_str()).zip(&arrays).collect();
    let found = network.evaluate(&named).unwrap_or_else(|error| panic!("{values:?}: {error}\n{}", listing(network)));
    assert_eq!(found.len(), fixed.outputs.len());
    for ((name, _), (expected, (found_name, found))) in fixed.outputs.iter().zip(expected.iter().zip(&found)) {
        assert_eq!(name, found_name);
        assert_eq!(found.shape(), expected.shape, "{name} at {values:?}");
        let expected = expected.to_f64();
        let largest = expected.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
        for (at, (a, b)) in expected.iter().zip(found.as_f32().expect("floats")).enumerate() {
            let distance = (a - f64::from(*b)).abs();
            assert!(distance <= 1e-5 * largest, "{name}[{at}] at {values:?}: {b} instead of {a}\n{}", listing(network));
        }
    }
}

/// The number of tasks where all extents are fixed.
fn tasks_at(program: &Program, values: &[i64]) -> usize {
    partition(&program.at(values)).expect("a well-formed program").tasks.len()
}

pub fn axis(input: usize, axis: usize, low: i64, high: i64) -> Axis {
    Axis { input, axis, low, high }
}

#[test]
fn convolutions_of_a_batch() {
    let mut b = Builder::default();
    let x = b.input("image", &[7, 8, 10, 10]);
    let first = b.conv(x, 8, 3, 1, 1);
    let first = b.relu(first);
    let second = b.conv(first, 8, 3, 1, 1);
    let sum = b.binary(Binary::Add, second, x);
    let block = b.relu(sum);
    let strided = b.conv(block, 16, 3, 2, 1);
    let pooled = b.reshape(strided, &[7, 16, 1, 25]);
    let pooled = b.row_reduce(Combiner::Sum, pooled);
    let flat = b.reshape(pooled, &[7, 16]);
    let out = b.dense(flat, 6);
    b.output("features", out);
    let program = symbolic(b, &[axis(0, 0, 1, 7)], &[(7, symbol(0))]);
    let tasks = check(&program, &[&[1], &[3], &[7]]);
    assert_eq!(tasks.lines().count(), tasks_at(&program, &[3]), "{tasks}");
}

#[test]
fn images_of_any_size() {
    let mut b = Builder::default();
    let x = b.input("image", &[1, 3, 13, 11]);
    let first = b.conv(x, 8, 3, 1, 1);
    let first = b.relu(first);
    let strided = b.conv(first, 4, 3, 2, 1);
    let strided = b.relu(strided);
    let all = b.concat(&[strided, strided], 1);
    let out = b.conv(all, 5, 1, 1, 1);
    b.output("features", out);
    let half = |number| symbol(number).plus_constant(-1).floor_div(2).plus_constant(1);
    // 13 and 11 become 7 and 6
    let formulas = [(13, symbol(0)), (11, symbol(1)), (7, half(0)), (6, half(1))];
    let program = symbolic(b, &[axis(0, 2, 1, 13), axis(0, 3, 2, 11)], &formulas);
    let tasks = check(&program, &[&[1, 2], &[8, 5], &[13, 11], &[2, 10]]);
    assert_eq!(tasks.lines().count(), tasks_at(&program, &[8, 5]), "{tasks}");
}

#[test]
fn a_transformer_over_batch_and_sequence() {
    let mut b = Builder::default();
    let ids = b.ids("ids", &[5, 7]);
    let words = b.constant(&[8, 12]);
    let x = b.gather(words, ids);
    let x = layer(&mut b, x, [5, 7]);
    let x = layer(&mut b, x, [5, 7]);
    b.output("hidden", x);
    let program = symbolic(b, &[axis(0, 0, 1, 5), axis(0, 1, 1, 7)], &[(5, symbol(0)), (7, symbol(1))]);
    let tasks = check(&program, &[&[1, 1], &[2, 6], &[5, 7], &[1, 7]]);
    assert_eq!(tasks.lines().count(), tasks_at(&program, &[2, 6]), "{tasks}");
    assert!(tasks.contains("2 attention"), "{tasks}");
}

/// What is as large as something else at most is not as large in a run: batch, sequence and width are alike.
#[test]
fn a_transformer_whose_extents_are_alike_at_most() {
    let mut b = Builder::default();
    let x = b.input("x", &[5, 7, 12]);
    let x = layer(&mut b, x, [5, 7]);
    b.output("hidden", x);
    let mut program = symbolic(b, &[axis(0, 0, 1, 5), axis(0, 1, 1, 7)], &[(5, symbol(0)), (7, symbol(1))]);
    for most in [12, 4, 3] {
        widen(&mut program, most);
        let tasks = check(&program, &[&[1, 1], &[2, 3], &[3, 2], &[1, most], &[most, 1]]);
        assert_eq!(tasks.lines().count(), tasks_at(&program, &[2, 3]), "{most}\n{tasks}");
        assert!(tasks.contains("1 attention"), "{most}\n{tasks}");
    }
}

#[test]
fn a_cache_that_may_be_empty() {
    let mut b = Builder::default();
    let x = b.input("x", &[1, 5, 8]);
    let past = b.input("past", &[1, 2, 6, 4]);
    let heads = |b: &mut Builder, order: &[usize]| {
        let dense = b.dense(x, 8);
        let split = b.reshape(dense, &[1, 5, 2, 4]);
        b.transpose(split, order)
    };
    let (q, k) = (heads(&mut b, &[0, 2, 1, 3]), heads(&mut b, &[0, 2, 1, 3]));
    let present = b.concat(&[past, k], 2);
    let turned = b.transpose(present, &[0, 1, 3, 2]);
    let scores = b.matmul(q, turned);
    let weights = b.softmax(scores);
    let mixed = b.matmul(weights, present);
    b.output("present", present);
    b.output("mixed", mixed);
    let both = symbol(0).plus(&symbol(1));
    let formulas = [(5, symbol(0)), (6, symbol(1)), (11, both.clone())];
    let mut program = symbolic(b, &[axis(0, 1, 1, 5), axis(1, 2, 0, 6)], &formulas);
    join(&mut program, &[(past, symbol(1)), (k, both)], 2);
    check(&program, &[&[1, 0], &[1, 6], &[5, 3], &[5, 6], &[2, 0]]);
}

#[test]
fn rows_of_any_length() {
    let mut b = Builder::default();
    let x = b.input("x", &[5, 7]);
    let weights = b.softmax(x);
    let total = b.row_reduce(Combiner::Sum, x);
    b.output("weights", weights);
    b.output("total", total);
    let program = symbolic(b, &[axis(0, 0, 1, 5), axis(0, 1, 1, 7)], &[(5, symbol(0)), (7, symbol(1))]);
    let tasks = check(&program, &[&[1, 1], &[4, 3], &[5, 7]]);
    assert_eq!(tasks.lines().count(), tasks_at(&program, &[4, 3]), "{tasks}");
}

/// A view through a factor that all terms of a formula have.
#[test]
fn views_of_sums() {
    let mut b = Builder::default();
    let x = b.input("x", &[8, 3]);
    let part = b.slice(x, 0, 1, 8);
    let active = b.unary(Unary::Exp, part);
    let flat = b.reshape(active, &[21]);
    let shifted = b.scalar(Binary::Add, flat, 1.0);
    b.output("flat", shifted);
    let less = symbol(0).plus_constant(-1);
    let program = symbolic(b, &[axis(0, 0, 2, 8)], &[(8, symbol(0)), (7, less.clone()), (21, less.times(3))]);
    let tasks = check(&program, &[&[2], &[5], &[8]]);
    assert_eq!(tasks.lines().count(), 1, "{tasks}");
}

#[test]
fn parts_one_behind_the_other_along_a_run_time_axis() {
    let mut b = Builder::default();
    let x = b.input("x", &[5, 3]);
    let y = b.input("y", &[6, 3]);
    let (left, right) = (b.relu(x), b.relu(y));
    let all = b.concat(&[left, right], 0);
    let out = b.dense(all, 4);
    b.output("all", all);
    b.output("out", out);
    let both = symbol(0).plus(&symbol(1));
    let mut program =
        symbolic(b, &[axis(0, 0, 1, 5), axis(1, 0, 1, 6)], &[(5, symbol(0)), (6, symbol(1)), (11, both.clone())]);
    join(&mut program, &[(left, symbol(0)), (right, both)], 0);
    check(&program, &[&[1, 1], &[5, 2], &[3, 6], &[5, 6]]);
}

/// Equal numbers at most are not equal extents.
#[test]
fn axes_of_different_symbols_stay_apart() {
    let mut b = Builder::default();
    let x = b.input("x", &[6, 7]);
    let y = b.input("y", &[7, 6]);
    let (a, c) = (b.relu(x), b.relu(y));
    let turned = b.transpose(c, &[1, 0]);
    let left = b.row_reduce(Combiner::Sum, a);
    let right = b.row_reduce(Combiner::Sum, turned);
    b.output("left", left);
    b.output("right", right);
    // x is [n0, n1], y is [n1, n2]: n0 and n2 are alike at most
    let axes = [axis(0, 0, 1, 6), axis(0, 1, 1, 7), axis(1, 1, 1, 6)];
    let mut program = symbolic(b, &axes, &[(6, symbol(0)), (7, symbol(1))]);
    let third = |extents: &Extents| extents.map(|_, f| if *f == symbol(0) { symbol(2) } else { f.clone() });
    for tensor in [y, c, turned, right] {
        let tensor = &mut program.tensors[tensor.0 as usize];
        tensor.extents = third(&tensor.extents);
    }
    for held in program.steps.iter_mut().filter_map(Step::stage_mut) {
        if [c, turned, right].contains(&held.stage.output) {
            held.stage.extents = third(&held.stage.extents);
        }
    }
    check(&program, &[&[1, 7, 6], &[6, 2, 1], &[3, 4, 5], &[6, 7, 6]]);
}

#[test]
fn views_and_names_that_repeat() {
    let mut b = Builder::default();
    let x = b.input("x", &[5, 6]);
    let active = b.relu(x);
    let view = b.reshape(active, &[10, 3]);
    b.output("view", view);
    b.program.outputs.push(("again".into(), view));
    let program = symbolic(b, &[axis(0, 0, 1, 5)], &[(5, symbol(0)), (10, symbol(0).times(2))]);
    let tasks = check(&program, &[&[1], &[4], &[5]]);
    assert_eq!(tasks.lines().count(), tasks_at(&program, &[4]), "{tasks}");
}

/// More run-time extents than their stand-ins could multiply to.
#[test]
fn many_small_extents_of_one_tensor() {
    let mut b = Builder::default();
    let shape = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
    let x = b.input("x", &shape);
    let y = b.relu(x);
    let flat = b.row_reduce(Combiner::Sum, y);
    b.output("sums", flat);
    let axes: Vec<Axis> = shape.iter().enumerate().map(|(at, extent)| axis(0, at, 1, *extent)).collect();
    let formulas: Vec<(i64, Index)> = shape.iter().enumerate().map(|(at, extent)| (*extent, symbol(at))).collect();
    let program = symbolic(b, &axes, &formulas);
    check(&program, &[&[1; 10], &[2, 1, 1, 1, 1, 2, 1, 1, 3, 4]]);
}

/// At one point, two calls of one task may be calls of two.
#[test]
fn calls_of_one_task_have_numbers_of_their_own() {
    let mut b = Builder::default();
    let (x, y) = (b.input("x", &[5, 8]), b.input("y", &[6, 8]));
    let (left, right) = (b.constant(&[8, 4]), b.constant(&[8, 4]));
    let (left, right) = (b.matmul(x, left), b.matmul(y, right));
    b.output("left", left);
    b.output("right", right);
    let axes = [axis(0, 0, 1, 6), axis(1, 0, 1, 6)];
    let mut program = symbolic(b, &axes, &[(5, symbol(0)), (6, symbol(1))]);
    for tensor in program.tensors.iter_mut().filter(|tensor| tensor.shape[0] == 5) {
        tensor.shape[0] = 6;
    }
    for held in program.steps.iter_mut().filter_map(Step::stage_mut) {
        held.stage.spatial[0] = 6;
    }
    assert_eq!(check(&program, &[&[1, 1], &[2, 5], &[6, 3]]), "2 dense_nx8x4\n");
}

/// `state = relu(state + x[i]); y[i] = exp(state)` over 7 steps of a batch of 5, backwards on demand.
fn recurrence(reversed: bool, axes: &[Axis], formulas: &[(i64, Index)]) -> Program {
    let mut b = Builder::default();
    let (x, given) = (b.input("x", &[7, 5, 4]), b.input("state", &[5, 4]));
    let initial = b.unary(Unary::Negate, given);
    let [current, part] = [(); 2].map(|()| b.tensor(&[5, 4], DType::F32, Role::Intermediate));
    let sum = b.binary(Binary::Add, current, part);
    let next = b.relu(sum);
    let shown = b.unary(Unary::Exp, sum);
    let last = b.tensor(&[5, 4], DType::F32, Role::Intermediate);
    let whole = b.tensor(&[7, 5, 4], DType::F32, Role::Intermediate);
    let body: Vec<Step> = b.program.steps.drain(1..).collect();
    let place = b.program.steps.len();
    let (end, all) = (b.unary(Unary::Negate, last), b.unary(Unary::Negate, whole));
    b.output("end", end);
    b.output("all", all);
    let mut program = symbolic(b, axes, formulas);
    let mut inside = Program { steps: body, ..program.clone() };
    set_extents(&mut inside, formulas);
    let repeat = Repeat {
        count: 7,
        formula: formulas.iter().find(|(extent, _)| *extent == 7).map(|(_, formula)| formula.clone()),
        going: None,
        states: vec![State { initial, current, next, last }],
        scanned: vec![Scanned { whole: x, part, reversed }],
        collected: vec![Collected { part: shown, whole, reversed }],
        body: inside.steps,
        node: "Loop".into(),
    };
    program.steps.insert(place, Step::Repeat(repeat));
    program
}

#[test]
fn repetitions_as_long_as_a_sequence() {
    let (batch, length) = (symbol(1), symbol(0));
    let points: [&[i64]; 6] = [&[1, 1], &[2, 5], &[7, 5], &[6, 1], &[3, 2], &[4, 3]];
    for reversed in [false, true] {
        let both = [axis(0, 0, 1, 7), axis(0, 1, 1, 5)];
        let program = recurrence(reversed, &both, &[(7, length.clone()), (5, batch.clone())]);
        let tasks = check(&program, &points);
        assert_eq!(tasks.lines().count(), tasks_at(&program, &[3, 2]), "{tasks}");
        let of_length = recurrence(reversed, &both[..1], &[(7, length.clone())]);
        check(&of_length, &[&[1], &[2], &[7], &[4]]);
        let of_batch = recurrence(reversed, &[axis(0, 1, 1, 5)], &[(5, symbol(0))]);
        check(&of_batch, &[&[1], &[3], &[5]]);
    }
}

#[test]
fn repetitions_count_as_often_as_they_usually_run() {
    let (batch, length) = (symbol(1), symbol(0));
    let axes = [axis(0, 0, 1, 7), axis(0, 1, 1, 5)];
    let mut network = partition(&recurrence(false, &axes, &[(7, length), (5, batch)])).expect("a good program");
    let weights = |network: &Network| -> Vec<usize> { network.tasks.iter().map(|task| task.weight).collect() };
    let most = weights(&network);
    assert!(most.contains(&7) && most.contains(&1), "{most:?}");
    // the geometric mean of 1 and 4 steps is 2
    network.tune_at(&[vec![1, 1], vec![4, 5]]);
    network.validate().expect("weights that fit");
    assert_eq!(weights(&network), most.iter().map(|weight| if *weight == 7 { 2 } else { *weight }).collect::<Vec<_>>());
    network.tasks.iter_mut().for_each(|task| task.weight = 8);
    assert!(network.validate().is_err());
}

#[test]
fn repetitions_that_may_be_none_are_refused() {
    let program = recurrence(false, &[axis(0, 0, 0, 7)], &[(7, symbol(0))]);
    assert!(matches!(program.validate(), Err(ProgramError::Operation { .. })));
}
