//! Programs whose extents are known when they run: cut into tasks with parameters, which compute what the
//! program does at each point.

use rand::{Rng, SeedableRng, rngs::StdRng};
use tilescribe::graph::{
    Collected, Network, NetworkError, NetworkEvaluateError, Origin, Program, Repeat, Scanned, State, Step, Symbol,
    TensorData, partition,
};
use tilescribe::workload::{
    Array, Binary, Condition, DType, Expr, Extents, Index, Parameter, Role, TensorId, Unary, Var, put_integer, put_real,
};

use super::{Builder, var, vars};

/// An extent that a fixed program has where the one of a run shall be, and what that is.
type Opened = (i64, Index);

fn symbol(number: usize) -> Index {
    Index::var(Var::parameter(number))
}

/// A program in which these extents are formulas of symbols. `symbols` are the input and the axis that each
/// comes from, with its least value; `opened` says what the extents are in terms of them.
fn opened(mut program: Program, symbols: &[(usize, usize, i64)], opened: &[Opened]) -> Program {
    let extents = |shape: &[i64]| {
        let formula = |(at, extent): (usize, &i64)| {
            let (_, formula) = opened.iter().find(|(fixed, _)| fixed == extent)?;
            Some((at, formula.clone()))
        };
        Extents::new(shape.iter().enumerate().filter_map(formula))
    };
    for (input, axis, low) in symbols {
        let high = program.tensor(program.inputs[*input].1).shape[*axis];
        let (input, axis) = (*input, *axis);
        let name = format!("s{}", program.symbols.list.len());
        let range = Parameter { low: *low, high };
        program.symbols.add(Symbol::new(name, range, Origin::Axis { input, axis }));
    }
    for tensor in program.tensors.iter_mut().filter(|tensor| tensor.role != Role::Constant) {
        tensor.extents = extents(&tensor.shape);
    }
    let mut steps: Vec<&mut Step> = program.steps.iter_mut().collect();
    while let Some(step) = steps.pop() {
        if let Some(held) = step.stage_mut() {
            held.stage.extents = extents(&[held.stage.spatial.as_slice(), &held.stage.reduction].concat());
        }
        steps.extend(step.blocks_mut().into_iter().flatten());
    }
    program.validate().unwrap_or_else(|error| panic!("{error}"));
    program
}

fn random(shape: &[i64], dtype: DType, rng: &mut StdRng) -> TensorData {
    let mut bytes = Vec::new();
    for _ in 0..shape.iter().product::<i64>() {
        match dtype.is_float() {
            true => put_real(dtype, rng.random_range(-1.0..1.0), &mut bytes),
            false => put_integer(dtype, rng.random_range(0..4), &mut bytes),
        }
    }
    TensorData { shape: shape.to_vec(), dtype, bytes: bytes.into() }
}

/// Cuts a program, compares network and program where symbols have these values, and gives the tasks as
/// `weight name` lines.
fn check(program: &Program, points: &[&[i64]]) -> (Network, String) {
    let network = partition(program).expect("a well-formed program");
    network.validate().unwrap_or_else(|error| panic!("{error}"));
    for task in &network.tasks {
        task.workload.validate().unwrap_or_else(|error| panic!("{}: {error}\n{}", task.name, task.workload));
    }
    let mut rng = StdRng::seed_from_u64(11);
    for point in points {
        let fixed = program.at(point);
        let given = |(_, tensor): &(String, TensorId)| {
            let about = fixed.tensor(*tensor);
            random(&about.shape, about.dtype, &mut rng)
        };
        let given: Vec<TensorData> = fixed.inputs.iter().map(given).collect();
        let expected = fixed.evaluate(&given).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(program.evaluate(&given).unwrap_or_else(|error| panic!("{error}")), expected);
        let array =
            |data: &TensorData| Array::from_bytes(data.shape.clone(), data.dtype, &data.bytes).expect("an array");
        let arrays: Vec<Array> = given.iter().map(array).collect();
        let named: Vec<(&str, &Array)> = program.inputs.iter().map(|(name, _)| name.as_str()).zip(&arrays).collect();
        let found = network.evaluate(&named).unwrap_or_else(|error| panic!("{point:?}: {error}"));
        assert_eq!(found.len(), expected.len());
        for ((name, found), expected) in found.iter().zip(&expected) {
            let expected = array(expected);
            assert_eq!(found.shape(), expected.shape(), "{name} at {point:?}");
            let (found, expected) = (found.as_f32().expect("floats"), expected.as_f32().expect("floats"));
            let largest = expected.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            assert!(largest > 0.0 || expected.is_empty(), "{name} at {point:?}: nothing to compare");
            for (a, b) in expected.iter().zip(found) {
                assert!((a - b).abs() <= 1e-5 * largest, "{name} at {point:?}: {b} instead of {a}");
            }
        }
    }
    let mut lines: Vec<String> = network.tasks.iter().map(|t| format!("{} {}\n", t.weight, t.name)).collect();
    lines.sort();
    (network, lines.concat())
}

/// A block of an encoder over 5 sequences of 13, 3 heads of 4.
fn encoder() -> Builder {
    let mut b = Builder::default();
    let x = b.input("x", &[5, 13, 12]);
    let heads = |b: &mut Builder, x, order: &[usize]| {
        let dense = b.dense(x, 12);
        let split = b.reshape(dense, &[5, 13, 3, 4]);
        b.transpose(split, order)
    };
    let normal = b.layer_norm(x);
    let q = heads(&mut b, normal, &[0, 2, 1, 3]);
    let k = heads(&mut b, normal, &[0, 2, 3, 1]);
    let v = heads(&mut b, normal, &[0, 2, 1, 3]);
    let scores = b.matmul(q, k);
    let scores = b.scalar(Binary::Divide, scores, 2.0);
    let weights = b.softmax(scores);
    let mixed = b.matmul(weights, v);
    let mixed = b.transpose(mixed, &[0, 2, 1, 3]);
    let mixed = b.reshape(mixed, &[5, 13, 12]);
    let projected = b.dense(mixed, 12);
    let sum = b.binary(Binary::Add, projected, x);
    let wide = b.dense(sum, 24);
    let wide = b.gelu(wide);
    b.output("hidden", wide);
    b
}

#[test]
fn an_encoder_has_the_tasks_that_it_has_with_fixed_extents() {
    let fixed = partition(&encoder().program).unwrap();
    let program = opened(encoder().program, &[(0, 0, 1), (0, 1, 1)], &[(5, symbol(0)), (13, symbol(1))]);
    let (network, tasks) = check(&program, &[&[5, 13], &[1, 1], &[2, 7], &[1, 13]]);
    assert_eq!(
        tasks,
        "1 attention_nxmx3xmx4\n1 dense_nmx12x12\n1 dense_nmx12x12_add\n1 dense_nmx12x24_gelu\n1 layer_norm_nxmx12\n\
         2 dense_nmx12x12\n"
    );
    assert_eq!((network.tasks.len(), network.calls.len()), (fixed.tasks.len(), fixed.calls.len()));
    let named = |network: &Network| network.calls.iter().map(|call| call.parameters.clone()).collect::<Vec<_>>();
    assert!(named(&network).iter().all(|parameters| *parameters == [symbol(0), symbol(1)]));
}

#[test]
fn tasks_over_different_symbols_are_one_task() {
    let mut b = Builder::default();
    let (x, y) = (b.input("x", &[13, 8]), b.input("y", &[11, 8]));
    let weight = b.constant(&[8, 6]);
    for (name, input) in [("a", x), ("b", y)] {
        let product = b.matmul(input, weight);
        b.output(name, product);
    }
    // as long at most, or the tasks would plan for other sizes
    let mut program = opened(b.program, &[(0, 0, 1), (1, 0, 1)], &[(13, symbol(0)), (11, symbol(1))]);
    let (network, tasks) = check(&program, &[&[13, 11], &[2, 5]]);
    assert_eq!((network.tasks.len(), tasks.as_str()), (2, "1 dense_nx8x6\n1 dense_nx8x6\n"));
    let tensors = program.tensors.iter_mut().filter(|tensor| tensor.shape[0] == 11);
    tensors.for_each(|tensor| tensor.shape[0] = 13);
    for step in &mut program.steps {
        step.stage_mut().expect("a stage").stage.spatial[0] = 13;
    }
    program.symbols.list[1].range.high = 13;
    let (network, tasks) = check(&program, &[&[13, 11], &[2, 13]]);
    assert_eq!(tasks, "2 dense_nx8x6\n");
    assert_eq!(network.calls[0].parameters, [symbol(0)]);
    assert_eq!(network.calls[1].parameters, [symbol(1)]);
}

/// `past ++ new` along an axis, of as many elements as the formulas say.
fn appended(b: &mut Builder, past: (TensorId, Index), new: (TensorId, Index), axis: usize) -> TensorId {
    let mut shape = b.shape(past.0);
    let most = (shape[axis], b.shape(new.0)[axis]);
    shape[axis] = most.0 + most.1;
    let mut later = vars(0..shape.len());
    later[axis] = var(axis).minus(&past.1);
    let within = |index: &Index, extent: &Index, most: i64| {
        Condition::within(index, Some(extent).filter(|extent| extent.as_constant().is_none()), most)
    };
    let (in_past, in_new) = (within(&var(axis), &past.1, most.0), within(&later[axis], &new.1, most.1));
    let new = Expr::guard(in_new, Expr::load(new.0, later), Expr::float(0.0));
    b.map("Concat", &shape, Expr::guard(in_past, Expr::load(past.0, vars(0..shape.len())), new))
}

#[test]
fn a_cache_grows_by_what_is_new() {
    let mut b = Builder::default();
    let (past, x) = (b.input("past", &[3, 7, 4]), b.input("x", &[3, 13, 4]));
    let weight = b.constant(&[4, 4]);
    let new = b.matmul(x, weight);
    let keys = appended(&mut b, (past, symbol(0)), (new, symbol(1)), 1);
    b.output("keys", keys);
    let turned = b.transpose(keys, &[0, 2, 1]);
    let scores = b.matmul(x, turned);
    let weights = b.softmax(scores);
    let mixed = b.matmul(weights, keys);
    b.output("mixed", mixed);
    let lengths = [(7, symbol(0)), (13, symbol(1)), (20, symbol(0).plus(&symbol(1)))];
    let program = opened(b.program, &[(0, 1, 0), (1, 1, 1)], &lengths);
    let (_, tasks) = check(&program, &[&[7, 13], &[0, 1], &[0, 13], &[5, 1], &[3, 4]]);
    assert_eq!(tasks, "1 attention_3xnxnplusmx4\n1 dense_3nx4x4\n1 elementwise_3xnplusmx4\n");
}

#[test]
fn rows_behind_fixed_ones_are_written_in_place() {
    let mut b = Builder::default();
    let (first, rest) = (b.input("first", &[2, 4]), b.input("rest", &[13, 4]));
    let (first, rest) = (b.unary(Unary::Tanh, first), b.unary(Unary::Exp, rest));
    let both = appended(&mut b, (first, Index::constant(2)), (rest, symbol(0)), 0);
    let weight = b.constant(&[4, 6]);
    let product = b.matmul(both, weight);
    b.output("product", product);
    let longer = [(13, symbol(0)), (15, symbol(0).plus_constant(2))];
    let program = opened(b.program, &[(1, 0, 0)], &longer);
    let (network, tasks) = check(&program, &[&[13], &[1], &[0]]);
    assert_eq!(tasks, "1 dense_nplus2x4x6\n1 elementwise_2x4\n1 elementwise_nx4\n");
    assert_eq!(network.buffers.iter().filter(|buffer| buffer.shape == [15, 4]).count(), 1);
}

#[test]
fn the_last_row_is_found_when_it_runs() {
    let mut b = Builder::default();
    let x = b.input("x", &[3, 13, 4]);
    let wide = b.dense(x, 8);
    let last = b.map("Gather", &[3, 8], Expr::load(wide, vec![var(0), symbol(0).plus_constant(-1), var(1)]));
    let first = b.map("Gather", &[3, 8], Expr::load(wide, vec![var(0), Index::constant(0), var(1)]));
    let sum = b.binary(Binary::Add, last, first);
    b.output("sum", sum);
    let program = opened(b.program, &[(0, 1, 1)], &[(13, symbol(0))]);
    check(&program, &[&[13], &[1], &[6]]);
}

/// `h = tanh(x[t] + h · w)`, for 6 steps of 5 sequences, in both directions.
fn recurrence(reversed: bool) -> Program {
    let mut b = Builder::default();
    let (x, initial) = (b.input("x", &[6, 5, 4]), b.input("h", &[5, 4]));
    let initial = b.unary(Unary::Tanh, initial);
    let weight = b.constant(&[4, 4]);
    let (current, part) =
        (b.tensor(&[5, 4], DType::F32, Role::Intermediate), b.tensor(&[5, 4], DType::F32, Role::Intermediate));
    let before = b.program.steps.len();
    let product = b.matmul(current, weight);
    let sum = b.binary(Binary::Add, product, part);
    let next = b.unary(Unary::Tanh, sum);
    let product = b.matmul(current, weight);
    let left = b.binary(Binary::Subtract, part, product);
    let body = b.program.steps.split_off(before);
    let last = b.tensor(&[5, 4], DType::F32, Role::Intermediate);
    let whole = b.tensor(&[6, 5, 4], DType::F32, Role::Intermediate);
    b.program.steps.push(Step::Repeat(Repeat {
        count: 6,
        formula: None,
        going: None,
        states: vec![State { initial, current, next, last }],
        scanned: vec![Scanned { whole: x, part, reversed }],
        collected: vec![Collected { part: left, whole, reversed }],
        body,
        node: "RNN".into(),
    }));
    for (name, tensor) in [("last", last), ("all", whole)] {
        let result = b.scalar(Binary::Multiply, tensor, 2.0);
        b.output(name, result);
    }
    b.program
}

#[test]
fn a_recurrence_goes_on_by_as_many_elements_as_there_are() {
    for reversed in [false, true] {
        let program = opened(recurrence(reversed), &[(0, 1, 1)], &[(5, symbol(0))]);
        let (network, _) = check(&program, &[&[5], &[1], &[3]]);
        let steps = network.calls.iter().flat_map(|call| &call.arguments).filter_map(|at| at.run_time.step.clone());
        let steps: Vec<Index> = steps.collect();
        assert!(steps.contains(&symbol(0).times(if reversed { -4 } else { 4 })), "{steps:?}");
    }
}

#[test]
fn other_extents_and_damaged_networks_are_refused() {
    let program = opened(encoder().program, &[(0, 0, 1), (0, 1, 1)], &[(5, symbol(0)), (13, symbol(1))]);
    let network = partition(&program).unwrap();
    let mut rng = StdRng::seed_from_u64(3);
    let mut refused = |shape: &[i64]| {
        let data = random(shape, DType::F32, &mut rng);
        let array = Array::from_bytes(data.shape.clone(), data.dtype, &data.bytes).expect("an array");
        network.evaluate(&[("x", &array)]).expect_err("other extents").to_string()
    };
    assert_eq!(refused(&[6, 13, 12]), "axis 0 of input x, s0, is 6; the network takes 1 to 5");
    assert_eq!(refused(&[2, 0, 12]), "axis 1 of input x, s1, is 0; the network takes 1 to 13");
    assert_eq!(refused(&[2, 3, 11]), "axis 2 of input x is 11; it has to be 12");
    assert_eq!(refused(&[2, 3]), "input x has 2 axes; the network takes 3");
    assert!(matches!(network.evaluate(&[]), Err(NetworkEvaluateError::Missing { .. })));
    let damaged = |damage: &dyn Fn(&mut Network)| {
        let mut network = network.clone();
        damage(&mut network);
        network.validate().expect_err("the network is damaged")
    };
    let parameters = |error: NetworkError| matches!(error, NetworkError::Parameters { call: 0 });
    assert!(parameters(damaged(&|n| n.calls[0].parameters.truncate(1))));
    assert!(parameters(damaged(&|n| n.calls[0].parameters[1] = symbol(7))));
    assert!(parameters(damaged(&|n| n.calls[0].parameters[1] = symbol(1).plus_constant(1))));
    let moved = damaged(&|n| n.calls[0].arguments[0].run_time.offset = Some(symbol(0)));
    assert!(matches!(moved, NetworkError::RunTime { call: 0, argument: 0 }));
}
