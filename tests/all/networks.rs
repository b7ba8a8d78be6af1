//! Fusion: programs built by hand, cut into tasks, and evaluated both ways.

mod appended;
mod growth;
mod joined;
mod plans;
mod symbolic;
mod run_time;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use rand::{Rng, SeedableRng, rngs::StdRng};
use tilescribe::graph::{
    Callee, ImportOptions, Network, NetworkError, PartitionError, Program, RegionKind, Source, TensorData, import,
    partition,
};
use tilescribe::workload::{
    Array, Binary, Combiner, Condition, DType, Expr, Index, Role, Stage, Tensor, TensorId, Unary, Var, Workload,
    evaluate,
};

/// A program in the making. Operators are written the way an importer writes them: one stage for each ONNX
/// node or for each of its steps.
#[derive(Default)]
struct Builder {
    program: Program,
    constants: u64,
}

impl Builder {
    fn tensor(&mut self, shape: &[i64], dtype: DType, role: Role) -> TensorId {
        self.program.tensors.push(Tensor::new(shape.to_vec(), dtype, role));
        self.program.data.push(None);
        TensorId(self.program.tensors.len() as u32 - 1)
    }

    fn shape(&self, tensor: TensorId) -> Vec<i64> {
        self.program.tensors[tensor.0 as usize].shape.clone()
    }

    fn input(&mut self, name: &str, shape: &[i64]) -> TensorId {
        let tensor = self.tensor(shape, DType::F32, Role::Input);
        self.program.inputs.push((name.into(), tensor));
        tensor
    }

    fn ids(&mut self, name: &str, shape: &[i64]) -> TensorId {
        let tensor = self.tensor(shape, DType::I64, Role::Input);
        self.program.inputs.push((name.into(), tensor));
        tensor
    }

    /// A constant of random numbers, each time others.
    fn constant(&mut self, shape: &[i64]) -> TensorId {
        self.constants += 1;
        let seed = self.constants;
        self.constant_of(shape, seed)
    }

    fn constant_of(&mut self, shape: &[i64], seed: u64) -> TensorId {
        let mut rng = StdRng::seed_from_u64(seed);
        let values: Vec<f32> = (0..shape.iter().product::<i64>()).map(|_| rng.random_range(-0.5..0.5)).collect();
        self.literal(shape, &values)
    }

    fn literal(&mut self, shape: &[i64], values: &[f32]) -> TensorId {
        let tensor = self.tensor(shape, DType::F32, Role::Constant);
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let data = TensorData { shape: shape.to_vec(), dtype: DType::F32, bytes: bytes.into() };
        self.program.data[tensor.0 as usize] = Some(data);
        tensor
    }

    fn output(&mut self, name: &str, tensor: TensorId) {
        self.program.tensors[tensor.0 as usize].role = Role::Output;
        self.program.outputs.push((name.into(), tensor));
    }

    fn push(&mut self, node: &str, stage: impl FnOnce(TensorId) -> Stage, shape: &[i64]) -> TensorId {
        let output = self.tensor(shape, DType::F32, Role::Intermediate);
        let node = format!("{node} {}", output.0);
        self.program.add_stage(stage(output), node);
        output
    }

    fn map(&mut self, node: &str, shape: &[i64], value: Expr) -> TensorId {
        self.push(node, |output| Stage::map(output, shape.to_vec(), value), shape)
    }

    fn reduce(&mut self, node: &str, shape: &[i64], over: &[i64], combiner: Combiner, value: Expr) -> TensorId {
        self.push(node, |output| Stage::reduce(output, shape.to_vec(), over.to_vec(), combiner, value), shape)
    }

    fn unary(&mut self, op: Unary, x: TensorId) -> TensorId {
        let shape = self.shape(x);
        self.map(&format!("{op:?}"), &shape, Expr::unary(op, Expr::load(x, vars(0..shape.len()))))
    }

    /// With numpy's broadcasting.
    fn binary(&mut self, op: Binary, x: TensorId, y: TensorId) -> TensorId {
        let (a, b) = (self.shape(x), self.shape(y));
        let rank = a.len().max(b.len());
        let extent = |shape: &[i64], d: usize| if d + shape.len() < rank { 1 } else { shape[d + shape.len() - rank] };
        let shape: Vec<i64> = (0..rank).map(|d| extent(&a, d).max(extent(&b, d))).collect();
        let load = |tensor, own: &[i64]| {
            let at = |d: usize| if own[d] == 1 { Index::constant(0) } else { var(d + rank - own.len()) };
            Expr::load(tensor, (0..own.len()).map(at).collect())
        };
        self.map(&format!("{op:?}"), &shape, Expr::binary(op, load(x, &a), load(y, &b)))
    }

    fn scalar(&mut self, op: Binary, x: TensorId, value: f32) -> TensorId {
        let y = self.literal(&[], &[value]);
        self.binary(op, x, y)
    }

    fn relu(&mut self, x: TensorId) -> TensorId {
        self.scalar(Binary::Maximum, x, 0.0)
    }

    fn gelu(&mut self, x: TensorId) -> TensorId {
        let scaled = self.scalar(Binary::Divide, x, std::f32::consts::SQRT_2);
        let erf = self.unary(Unary::Erf, scaled);
        let one = self.scalar(Binary::Add, erf, 1.0);
        let product = self.binary(Binary::Multiply, x, one);
        self.scalar(Binary::Multiply, product, 0.5)
    }

    fn reshape(&mut self, x: TensorId, shape: &[i64]) -> TensorId {
        let from = self.shape(x);
        let address =
            strides(shape).into_iter().enumerate().fold(Index::constant(0), |sum, (d, s)| sum.plus(&var(d).times(s)));
        let indices = strides(&from)
            .into_iter()
            .zip(&from)
            .enumerate()
            .map(|(d, (stride, extent))| {
                let quotient = address.clone().floor_div(stride);
                if d == 0 { quotient } else { quotient.modulo(*extent) }
            })
            .collect();
        self.map("Reshape", shape, Expr::load(x, indices))
    }

    /// `out[d] = x[order[d]]` in ONNX's sense.
    fn transpose(&mut self, x: TensorId, order: &[usize]) -> TensorId {
        let from = self.shape(x);
        let shape: Vec<i64> = order.iter().map(|d| from[*d]).collect();
        let mut indices = vec![Index::constant(0); from.len()];
        for (d, source) in order.iter().enumerate() {
            indices[*source] = var(d);
        }
        self.map("Transpose", &shape, Expr::load(x, indices))
    }

    fn slice(&mut self, x: TensorId, axis: usize, start: i64, end: i64) -> TensorId {
        let mut shape = self.shape(x);
        shape[axis] = end - start;
        let mut indices = vars(0..shape.len());
        indices[axis] = var(axis).plus_constant(start);
        self.map("Slice", &shape, Expr::load(x, indices))
    }

    fn concat(&mut self, parts: &[TensorId], axis: usize) -> TensorId {
        let mut shape = self.shape(parts[0]);
        shape[axis] = parts.iter().map(|p| self.shape(*p)[axis]).sum();
        let mut end = shape[axis];
        let mut value = Expr::float(0.0);
        for part in parts.iter().rev() {
            let start = end - self.shape(*part)[axis];
            let mut indices = vars(0..shape.len());
            indices[axis] = var(axis).plus_constant(-start);
            let within = Condition { index: var(axis), low: start, high: end };
            value = Expr::guard(vec![within], Expr::load(*part, indices), value);
            end = start;
        }
        self.map("Concat", &shape, value)
    }

    fn gather(&mut self, table: TensorId, ids: TensorId) -> TensorId {
        let (width, mut shape) = (self.shape(table)[1], self.shape(ids));
        let row = Index::value(Expr::load(ids, vars(0..shape.len())));
        shape.push(width);
        self.map("Gather", &shape, Expr::load(table, vec![row, var(shape.len() - 1)]))
    }

    /// `x[.., m, k] · y[.., k, n]` with equal leading dimensions, or none of `y`.
    fn matmul(&mut self, x: TensorId, y: TensorId) -> TensorId {
        let (a, b) = (self.shape(x), self.shape(y));
        let (rank, k) = (a.len(), a[a.len() - 1]);
        let mut shape = a.clone();
        shape[rank - 1] = b[b.len() - 1];
        let mut left = vars(0..rank);
        left[rank - 1] = var(rank);
        let mut right = vars(rank - b.len()..rank);
        right[b.len() - 2] = var(rank);
        let value = Expr::binary(Binary::Multiply, Expr::load(x, left), Expr::load(y, right));
        self.reduce("MatMul", &shape, &[k], Combiner::Sum, value)
    }

    fn dense(&mut self, x: TensorId, outputs: i64) -> TensorId {
        let width = *self.shape(x).last().expect("a matrix");
        let (weight, bias) = (self.constant(&[width, outputs]), self.constant(&[outputs]));
        let product = self.matmul(x, weight);
        self.binary(Binary::Add, product, bias)
    }

    /// `[n, c, h, w]`, `same` padding, weights `[o, c / groups, k, k]`, with bias.
    fn conv(&mut self, x: TensorId, outputs: i64, kernel: i64, stride: i64, groups: i64) -> TensorId {
        let shape = self.shape(x);
        let (channels, pad) = (shape[1] / groups, kernel / 2);
        let out = |extent: i64| (extent + 2 * pad - kernel) / stride + 1;
        let result = [shape[0], outputs, out(shape[2]), out(shape[3])];
        let weight = self.constant(&[outputs, channels, kernel, kernel]);
        let bias = self.constant(&[outputs]);
        let (h, w) = (
            var(2).times(stride).plus(&var(5)).plus_constant(-pad),
            var(3).times(stride).plus(&var(6)).plus_constant(-pad),
        );
        let group = var(1).floor_div(outputs / groups).times(channels).plus(&var(4));
        let inside = |index: &Index, high: i64| Condition { index: index.clone(), low: 0, high };
        let conditions = vec![inside(&h, shape[2]), inside(&w, shape[3])];
        let read = Expr::guard(conditions, Expr::load(x, vec![var(0), group, h, w]), Expr::float(0.0));
        let weights = Expr::load(weight, vec![var(1), var(4), var(5), var(6)]);
        let value = Expr::binary(Binary::Multiply, read, weights);
        let sum = self.reduce("Conv", &result, &[channels, kernel, kernel], Combiner::Sum, value);
        let bias = Expr::load(bias, vec![var(1)]);
        self.map("Conv", &result, Expr::binary(Binary::Add, Expr::load(sum, vars(0..4)), bias))
    }

    fn row_reduce(&mut self, combiner: Combiner, x: TensorId) -> TensorId {
        let mut shape = self.shape(x);
        let rank = shape.len();
        let row = std::mem::replace(&mut shape[rank - 1], 1);
        let mut indices = vars(0..rank);
        indices[rank - 1] = var(rank);
        self.reduce("Reduce", &shape, &[row], combiner, Expr::load(x, indices))
    }

    fn softmax(&mut self, x: TensorId) -> TensorId {
        let largest = self.row_reduce(Combiner::Maximum, x);
        let shifted = self.binary(Binary::Subtract, x, largest);
        let exps = self.unary(Unary::Exp, shifted);
        let total = self.row_reduce(Combiner::Sum, exps);
        self.binary(Binary::Divide, exps, total)
    }

    fn layer_norm(&mut self, x: TensorId) -> TensorId {
        let width = *self.shape(x).last().expect("rows");
        let total = self.row_reduce(Combiner::Sum, x);
        let mean = self.scalar(Binary::Divide, total, width as f32);
        let centred = self.binary(Binary::Subtract, x, mean);
        let squares = self.binary(Binary::Multiply, centred, centred);
        let total = self.row_reduce(Combiner::Sum, squares);
        let variance = self.scalar(Binary::Divide, total, width as f32);
        let shifted = self.scalar(Binary::Add, variance, 1e-5);
        let deviation = self.unary(Unary::Sqrt, shifted);
        let normal = self.binary(Binary::Divide, centred, deviation);
        let (scale, bias) = (self.constant(&[width]), self.constant(&[width]));
        let scaled = self.binary(Binary::Multiply, normal, scale);
        self.binary(Binary::Add, scaled, bias)
    }
}

fn var(axis: usize) -> Index {
    Index::var(Var(axis as u32))
}

fn vars(axes: std::ops::Range<usize>) -> Vec<Index> {
    axes.map(var).collect()
}

fn strides(shape: &[i64]) -> Vec<i64> {
    tilescribe::workload::row_major_strides(shape)
}

/// Cuts the program, checks the network's invariants, that both give the same results on random inputs, and
/// returns the tasks as `weight name` lines in the order of their names.
fn check(builder: Builder) -> String {
    let program = builder.program;
    let network = partition(&program).expect("a well-formed program");
    network.validate().unwrap_or_else(|error| panic!("{error}\n{}", listing(&network)));
    for task in &network.tasks {
        task.workload.validate().unwrap_or_else(|error| panic!("{}: {error}\n{}", task.name, task.workload));
    }
    compare(&program, &network);
    let mut lines: Vec<String> = network.tasks.iter().map(|t| format!("{} {}\n", t.weight, t.name)).collect();
    lines.sort();
    lines.concat()
}

fn listing(network: &Network) -> String {
    let mut text = String::new();
    for task in &network.tasks {
        writeln!(text, "{} x {}\n{}", task.weight, task.name, task.workload).expect("writing to a string");
    }
    text
}

fn compare(program: &Program, network: &Network) {
    let mut rng = StdRng::seed_from_u64(7);
    let mut given = BTreeMap::new();
    for (name, tensor) in &program.inputs {
        let Tensor { shape, dtype, .. } = &program.tensors[tensor.0 as usize];
        let count = shape.iter().product::<i64>();
        let bytes: Vec<u8> = match dtype {
            DType::I64 => (0..count).flat_map(|_| rng.random_range(0..8_i64).to_le_bytes()).collect(),
            _ => (0..count).flat_map(|_| rng.random_range(-1.0..1.0_f32).to_le_bytes()).collect(),
        };
        given.insert(name.as_str(), (*tensor, Array::from_bytes(shape.clone(), *dtype, &bytes).expect("an array")));
    }
    let whole = Workload {
        tensors: program.tensors.clone(),
        stages: program.stages().map(|s| s.stage.clone()).collect(),
        ..Workload::default()
    };
    let mut arguments: Vec<(TensorId, Array)> = given.values().cloned().collect();
    for (at, data) in program.data.iter().enumerate() {
        if let Some(data) = data {
            let array = Array::from_bytes(data.shape.clone(), data.dtype, &data.bytes).expect("an array");
            arguments.push((TensorId(at as u32), array));
        }
    }
    let arguments: Vec<(TensorId, &Array)> = arguments.iter().map(|(id, array)| (*id, array)).collect();
    let expected: BTreeMap<TensorId, Array> =
        evaluate(&whole, &arguments).expect("a valid program").into_iter().collect();
    let inputs: Vec<(&str, &Array)> = given.iter().map(|(name, (_, array))| (*name, array)).collect();
    let found = network.evaluate(&inputs).unwrap_or_else(|error| panic!("{error}\n{}", listing(network)));
    assert_eq!(found.len(), program.outputs.len());
    for ((name, tensor), (found_name, array)) in program.outputs.iter().zip(&found) {
        assert_eq!(name, found_name);
        let expected =
            expected.get(tensor).unwrap_or_else(|| &given.values().find(|(id, _)| id == tensor).expect("an input").1);
        assert_eq!(array.shape(), expected.shape());
        let (expected, found) = (expected.as_f32().expect("floats"), array.as_f32().expect("floats"));
        let largest = expected.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        assert!(largest > 0.0, "the test would pass with zeros");
        for (at, (a, b)) in expected.iter().zip(found).enumerate() {
            assert!((a - b).abs() <= 1e-5 * largest, "{name}[{at}]: {b} instead of {a}\n{}", listing(network));
        }
    }
}

#[test]
fn residual_block_is_one_task_for_each_convolution() {
    let mut b = Builder::default();
    let x = b.input("image", &[1, 8, 10, 10]);
    let first = b.conv(x, 8, 3, 1, 1);
    let first = b.relu(first);
    let second = b.conv(first, 8, 3, 1, 1);
    let sum = b.binary(Binary::Add, second, x);
    let block = b.relu(sum);
    let strided = b.conv(block, 16, 3, 2, 1);
    let strided = b.relu(strided);
    let main = b.conv(strided, 16, 3, 1, 1);
    let shortcut = b.conv(block, 16, 1, 2, 1);
    let sum = b.binary(Binary::Add, main, shortcut);
    let out = b.relu(sum);
    b.output("features", out);
    assert_eq!(
        check(b),
        "1 conv_1x1s2_8x5x5_16\n1 conv_3x3_16x5x5_16_add_relu\n1 conv_3x3_8x10x10_8_add_relu\n\
         1 conv_3x3_8x10x10_8_relu\n1 conv_3x3s2_8x10x10_16_relu\n"
    );
}

/// A layer of a transformer of width 12, over a batch and a sequence.
fn layer(b: &mut Builder, x: TensorId, [batch, sequence]: [i64; 2]) -> TensorId {
    let heads = |b: &mut Builder, x, order: &[usize]| {
        let dense = b.dense(x, 12);
        let split = b.reshape(dense, &[batch, sequence, 3, 4]);
        b.transpose(split, order)
    };
    let q = heads(b, x, &[0, 2, 1, 3]);
    let k = heads(b, x, &[0, 2, 3, 1]);
    let v = heads(b, x, &[0, 2, 1, 3]);
    let scores = b.matmul(q, k);
    let scores = b.scalar(Binary::Divide, scores, 2.0);
    let weights = b.softmax(scores);
    let mixed = b.matmul(weights, v);
    let mixed = b.transpose(mixed, &[0, 2, 1, 3]);
    let mixed = b.reshape(mixed, &[batch, sequence, 12]);
    let projected = b.dense(mixed, 12);
    let sum = b.binary(Binary::Add, projected, x);
    let normal = b.layer_norm(sum);
    let wide = b.dense(normal, 24);
    let wide = b.gelu(wide);
    let narrow = b.dense(wide, 12);
    let sum = b.binary(Binary::Add, narrow, normal);
    b.layer_norm(sum)
}

#[test]
fn attention_block_is_eight_tasks() {
    let mut b = Builder::default();
    let ids = b.ids("ids", &[1, 6]);
    let (words, positions) = (b.constant(&[8, 12]), b.constant(&[1, 6, 12]));
    let embedded = b.gather(words, ids);
    let embedded = b.binary(Binary::Add, embedded, positions);
    let mut x = b.layer_norm(embedded);
    for _ in 0..2 {
        x = layer(&mut b, x, [1, 6]);
    }
    b.output("hidden", x);
    assert_eq!(
        check(b),
        "1 layer_norm_6x12\n2 attention_6x3x6x4\n2 dense_6x12x12\n2 dense_6x12x12_add\n2 dense_6x12x24_gelu\n\
         2 dense_6x24x12_add\n4 dense_6x12x12\n4 layer_norm_6x12\n"
    );
}

/// `softmax(q · kᵀ / 2 + mask) · v` of 3 heads, 6 queries and 5 keys; the scores, and the result.
fn attention(b: &mut Builder) -> (TensorId, TensorId) {
    let q = b.input("q", &[1, 3, 6, 4]);
    let k = b.input("k", &[1, 3, 4, 5]);
    let v = b.input("v", &[1, 3, 5, 4]);
    let mask = b.constant(&[6, 5]);
    let scores = b.matmul(q, k);
    let scores = b.scalar(Binary::Divide, scores, 2.0);
    let scores = b.binary(Binary::Add, scores, mask);
    let weights = b.softmax(scores);
    (scores, b.matmul(weights, v))
}

#[test]
fn attention_is_one_task() {
    let mut b = Builder::default();
    let (_, mixed) = attention(&mut b);
    b.output("mixed", mixed);
    assert_eq!(check(b), "1 attention_3x6x5x4\n");
}

#[test]
fn attention_in_the_order_of_its_reader_is_one_task() {
    let mut b = Builder::default();
    let (_, mixed) = attention(&mut b);
    let mixed = b.transpose(mixed, &[0, 2, 1, 3]);
    b.output("mixed", mixed);
    assert_eq!(check(b), "1 attention_6x3x5x4\n");
}

#[test]
fn scores_that_somebody_else_reads_are_stored() {
    let mut b = Builder::default();
    let (scores, mixed) = attention(&mut b);
    b.output("scores", scores);
    b.output("mixed", mixed);
    assert_eq!(check(b), "1 matmul_3x6x4x5\n1 matmul_3x6x5x4\n1 softmax_3x6x5\n");
    let mut b = Builder::default();
    let (scores, mixed) = attention(&mut b);
    let other = b.relu(scores);
    b.output("other", other);
    b.output("mixed", mixed);
    assert!(!check(b).contains("attention"));
}

#[test]
fn layers_around_a_norm_keep_to_themselves() {
    let mut b = Builder::default();
    let x = b.input("x", &[6, 8]);
    let first = b.dense(x, 12);
    let normal = b.layer_norm(first);
    let second = b.dense(normal, 10);
    b.output("second", second);
    assert_eq!(check(b), "1 dense_6x12x10\n1 dense_6x8x12\n1 layer_norm_6x12\n");
}

#[test]
fn growing_concatenations_share_one_buffer() {
    let mut b = Builder::default();
    let x = b.input("image", &[1, 3, 6, 6]);
    let first = b.conv(x, 8, 3, 1, 1);
    let mut features = vec![first];
    for _ in 0..4 {
        let all = b.concat(&features, 1);
        let channels = b.shape(all)[1];
        let (scale, shift) = (b.constant(&[channels, 1, 1]), b.constant(&[channels, 1, 1]));
        let scaled = b.binary(Binary::Multiply, all, scale);
        let shifted = b.binary(Binary::Add, scaled, shift);
        let active = b.relu(shifted);
        let narrow = b.conv(active, 8, 1, 1, 1);
        let narrow = b.relu(narrow);
        features.push(b.conv(narrow, 4, 3, 1, 1));
    }
    let all = b.concat(&features, 1);
    let pooled = b.conv(all, 4, 1, 1, 1);
    b.output("features", pooled);
    let network = partition(&b.program).expect("a well-formed program");
    let intermediate = network.buffers.iter().filter(|buffer| matches!(buffer.source, Source::Intermediate));
    assert_eq!(intermediate.count(), 1 + 4, "the features, and a bottleneck for each layer");
    assert_eq!(network.calls.len(), 1 + 2 * 4 + 1);
    assert_eq!(
        check(b),
        "1 conv_1x1_12x6x6_8_relu\n1 conv_1x1_16x6x6_8_relu\n1 conv_1x1_20x6x6_8_relu\n1 conv_1x1_24x6x6_4\n\
         1 conv_1x1_8x6x6_8_relu\n1 conv_3x3_3x6x6_8\n4 conv_3x3_8x6x6_4\n"
    );
}

#[test]
fn squeeze_and_excite_multiplies_in_the_next_convolution() {
    let mut b = Builder::default();
    let x = b.input("image", &[1, 8, 6, 6]);
    let wide = b.conv(x, 8, 3, 1, 8);
    let gate = b.unary(Unary::Sigmoid, wide);
    let active = b.binary(Binary::Multiply, wide, gate);
    let flat = b.reshape(active, &[1, 8, 1, 36]);
    let total = b.row_reduce(Combiner::Sum, flat);
    let mean = b.scalar(Binary::Divide, total, 36.0);
    let narrow = b.conv(mean, 4, 1, 1, 1);
    let narrow = b.relu(narrow);
    let scale = b.conv(narrow, 8, 1, 1, 1);
    let scale = b.unary(Unary::Sigmoid, scale);
    let scaled = b.binary(Binary::Multiply, active, scale);
    let projected = b.conv(scaled, 4, 1, 1, 1);
    b.output("features", projected);
    assert_eq!(
        check(b),
        "1 conv_1x1_4x1_8_sigmoid\n1 conv_1x1_8x1_4_relu\n1 conv_1x1_8x6x6_4\n1 depthwise_3x3_8x6x6_sigmoid\n\
         1 sum_8_over_36\n"
    );
}

#[test]
fn branches_write_their_part_of_a_concatenation() {
    let mut b = Builder::default();
    let x = b.input("image", &[1, 8, 6, 6]);
    let squeezed = b.conv(x, 4, 1, 1, 1);
    let left = b.conv(squeezed, 8, 1, 1, 1);
    let left = b.relu(left);
    let right = b.conv(squeezed, 8, 3, 1, 1);
    let all = b.concat(&[left, right, x], 1);
    let active = b.relu(all);
    b.output("features", active);
    // The activation is drawn into the three parts; the input has no task of its own to write its part.
    assert_eq!(check(b), "1 conv_1x1_4x6x6_8_relu\n1 conv_1x1_8x6x6_4\n1 conv_3x3_4x6x6_8_relu\n1 elementwise_8x6x6\n");
}

#[test]
fn concatenation_along_an_inner_axis_is_an_index_map() {
    let mut b = Builder::default();
    let x = b.input("x", &[5, 6]);
    let y = b.input("y", &[5, 2]);
    let all = b.concat(&[x, y], 1);
    let out = b.dense(all, 7);
    b.output("out", out);
    assert_eq!(check(b), "1 dense_5x8x7\n");
}

#[test]
fn rotary_positions_are_one_task_for_each_operand() {
    let mut b = Builder::default();
    let x = b.input("hidden", &[1, 5, 16]);
    let (cos, sin) = (b.constant(&[1, 1, 5, 8]), b.constant(&[1, 1, 5, 8]));
    let rotated = |b: &mut Builder| {
        let dense = b.dense(x, 16);
        let split = b.reshape(dense, &[1, 5, 2, 8]);
        let heads = b.transpose(split, &[0, 2, 1, 3]);
        let plain = b.binary(Binary::Multiply, heads, cos);
        let (low, high) = (b.slice(heads, 3, 0, 4), b.slice(heads, 3, 4, 8));
        let negative = b.unary(Unary::Negate, high);
        let turned = b.concat(&[negative, low], 3);
        let turned = b.binary(Binary::Multiply, turned, sin);
        b.binary(Binary::Add, plain, turned)
    };
    let (q, k) = (rotated(&mut b), rotated(&mut b));
    let k = b.transpose(k, &[0, 1, 3, 2]);
    let scores = b.matmul(q, k);
    b.output("scores", scores);
    let tasks = check(b);
    assert!(tasks.contains("matmul_2x5x5x8") && tasks.contains("2 dense_5x16x16"), "{tasks}");
    assert_eq!(tasks.matches("elementwise").count(), 2, "{tasks}");
}

#[test]
fn a_split_is_read_by_offset() {
    let mut b = Builder::default();
    let x = b.input("x", &[6, 4]);
    let wide = b.relu(x);
    let (low, high) = (b.slice(wide, 0, 0, 3), b.slice(wide, 0, 3, 6));
    let (left, right) = (b.constant_of(&[4, 5], 90), b.constant_of(&[4, 5], 91));
    let low = b.matmul(low, left);
    let high = b.matmul(high, right);
    b.output("wide", wide);
    b.output("low", low);
    b.output("high", high);
    // Both products are one task, although they read different rows.
    assert_eq!(check(b), "1 elementwise_6x4\n2 dense_3x4x5\n");
}

#[test]
fn outputs_may_repeat_and_may_be_inputs_or_views() {
    let mut b = Builder::default();
    let x = b.input("x", &[2, 6]);
    let active = b.relu(x);
    let view = b.reshape(active, &[3, 4]);
    b.output("view", view);
    b.program.outputs.push(("again".into(), view));
    b.program.outputs.push(("same".into(), x));
    // The second name is a second output of the same task; the input is copied.
    assert_eq!(check(b), "1 copy_2x6\n1 elementwise_2x6\n");
}

#[test]
fn equal_constants_share_a_buffer() {
    let mut b = Builder::default();
    let x = b.input("x", &[3, 4]);
    let (first, second) = (b.constant_of(&[4, 4], 5), b.constant_of(&[4, 4], 5));
    let y = b.matmul(x, first);
    let z = b.matmul(y, second);
    b.output("z", z);
    let network = partition(&b.program).expect("a well-formed program");
    let constants = network.buffers.iter().filter(|buffer| matches!(buffer.source, Source::Constant(_)));
    assert_eq!(constants.count(), 1);
    assert_eq!(check(b), "2 dense_3x4x4\n");
}

#[test]
fn programs_that_are_not_well_formed_are_refused() {
    let well_formed = || {
        let mut b = Builder::default();
        let x = b.input("x", &[3, 4]);
        let y = b.relu(x);
        b.output("y", y);
        b.program
    };
    let set_value = |program: &mut Program, value: Expr| {
        program.steps[0].stage_mut().expect("it is a stage").stage.value = value;
    };
    let mut program = well_formed();
    program.steps.push(program.steps[0].clone());
    assert!(matches!(partition(&program), Err(PartitionError::WrittenTwice { .. })));
    let mut program = well_formed();
    program.steps.clear();
    assert!(matches!(partition(&program), Err(PartitionError::UnknownTensor { .. })));
    let mut program = well_formed();
    set_value(&mut program, Expr::load(TensorId(77), vec![]));
    assert!(matches!(partition(&program), Err(PartitionError::UnknownTensor { id: 77, .. })));
    let mut program = well_formed();
    set_value(&mut program, Expr::load(TensorId(0), vec![var(0)]));
    assert!(matches!(partition(&program), Err(PartitionError::Rank { .. })));
}

#[test]
fn damaged_networks_are_refused() {
    let mut b = Builder::default();
    let x = b.input("x", &[3, 4]);
    let y = b.dense(x, 4);
    let z = b.dense(y, 4);
    b.output("z", z);
    let network = partition(&b.program).expect("a well-formed program");
    let damaged = |damage: &dyn Fn(&mut Network)| {
        let mut network = network.clone();
        damage(&mut network);
        network.validate().expect_err("the network is damaged")
    };
    assert!(matches!(damaged(&|n| n.calls.swap(0, 1)), NetworkError::ReadBeforeWrite { call: 0, .. }));
    assert!(matches!(damaged(&|n| n.calls[0].arguments[0].offset = 1), NetworkError::OutOfRange { .. }));
    assert!(matches!(damaged(&|n| n.calls[0].arguments[0].buffer = 99), NetworkError::UnknownBuffer { .. }));
    assert!(matches!(damaged(&|n| n.calls[0].callee = Callee::Task(99)), NetworkError::UnknownTask { .. }));
    assert!(matches!(damaged(&|n| n.tasks[0].weight += 1), NetworkError::Weight { .. }));
    assert!(matches!(damaged(&|n| n.calls[1].arguments.truncate(1)), NetworkError::Arguments { .. }));
    assert!(matches!(damaged(&|n| n.calls.push(n.calls[1].clone())), NetworkError::WrittenTwice { .. }));
    assert!(matches!(damaged(&|n| n.calls.truncate(1)), NetworkError::Incomplete { .. }));
}

#[test]
fn damaged_regions_are_refused() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/graph/networks/while_0/model.onnx");
    let network = partition(&import(&path, &ImportOptions::default()).unwrap()).unwrap();
    network.validate().unwrap();
    // the loop, and in it what runs while the condition holds, and what runs then
    let kinds: Vec<bool> =
        network.regions.iter().map(|region| matches!(region.kind, RegionKind::Repeat { .. })).collect();
    assert_eq!(kinds, [true, false, false]);
    let damaged = |damage: &dyn Fn(&mut Network)| {
        let mut network = network.clone();
        damage(&mut network);
        network.validate().expect_err("the network is damaged")
    };
    assert!(matches!(damaged(&|n| n.regions[0].calls.end += 99), NetworkError::Region { .. }));
    assert!(matches!(damaged(&|n| n.regions[1].calls.end = n.regions[1].calls.start), NetworkError::Region { .. }));
    assert!(matches!(damaged(&|n| n.regions.swap(0, 2)), NetworkError::Region { .. }));
    assert!(matches!(
        damaged(&|n| n.regions[0].kind = RegionKind::Repeat { count: 0, formula: None, going: None }),
        NetworkError::Region { .. }
    ));
    assert!(matches!(
        damaged(&|n| n.regions[1].kind = RegionKind::Repeat { count: 2, formula: None, going: None }),
        NetworkError::Region { .. }
    ));
}

/// The small networks that `tests/networks.py --make` exports: (file, number of tasks, number of calls).
const SMALL_NETWORKS: [(&str, usize, usize); 2] = [("small_residual", 8, 8), ("small_attention", 8, 9)];

#[test]
fn imported_networks_compute_what_their_program_computes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/networks");
    for (name, tasks, calls) in SMALL_NETWORKS {
        let path = folder.join(format!("{name}.onnx"));
        let program = import(&path, &ImportOptions::default()).expect("an ONNX file");
        let network = partition(&program).expect("a well-formed program");
        network.validate().unwrap_or_else(|error| panic!("{name}: {error}"));
        compare(&program, &network);
        assert_eq!((network.tasks.len(), network.calls.len()), (tasks, calls), "{name}\n{}", listing(&network));
    }
}
