//! Random small workloads of the kinds that networks hold, with odd and prime extents among them.

use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use tilescribe::workload::{Binary, Combiner, Condition, DType, Expr, Index, Role, Stage, TensorId, Unary, Workload};

use super::{binary, load, var};

/// A workload of at most some ten thousand points, and the name of its kind.
pub fn random_workload(rng: &mut ChaCha8Rng) -> (&'static str, Workload) {
    type Make = fn(&mut ChaCha8Rng) -> Workload;
    let kinds: [(&'static str, Make); 20] = [
        ("product", product),
        ("product", product),
        ("product", product),
        ("product", product),
        ("convolution", convolution),
        ("convolution", convolution),
        ("filter", filter),
        ("filter", filter),
        ("filter", filter),
        ("filter", filter),
        ("transposed", transposed),
        ("gather", gather),
        ("depthwise", depthwise),
        ("pooling", pooling),
        ("softmax", softmax),
        ("attention", attention),
        ("attention", attention),
        ("reduction", reduction),
        ("map", map),
        ("pair", pair),
    ];
    let (kind, make) = kinds[rng.random_range(0..kinds.len())];
    let workload = make(rng);
    let half = [DType::F16, DType::BF16][rng.random_range(0..2)];
    (kind, if rng.random_range(0..6) == 0 { in_halves(&workload, half) } else { workload })
}

/// A window over rows and columns, or along them, and a product behind it; or a product and a window.
fn pair(rng: &mut ChaCha8Rng) -> Workload {
    let [channels, outputs] = [0; 2].map(|_| rng.random_range(2..9));
    let [height, width, kernel, stride] =
        [(3, 8), (3, 8), (1, 4), (1, 3)].map(|(low, high)| rng.random_range(low..high));
    let [tall, wide] = [height, width].map(|extent| (extent - 1) * stride + kernel);
    let max = rng.random_range(0..3) == 0;
    let text = match rng.random_range(0..3) {
        0 if max => format!(
            "input t0 {tall} {wide} {channels}\nlet t1 {height} {width} {channels} maxof {kernel} {kernel} t0 + * {stride} \
             a d + * {stride} b e c\nconst t2 {outputs} {channels}\nout t3 {height} {width} {outputs} sum {channels} mul \
             t2 c d t1 a b d\n"
        ),
        0 | 1 => format!(
            "input t0 {tall} {wide} {channels}\nconst t1 {channels} {kernel} {kernel}\nlet t2 {height} {width} {channels} \
             sum {kernel} {kernel} mul t1 c d e t0 + * {stride} a d + * {stride} b e c\nlet t3 like t2 max 0.0 t2 a b \
             c\nconst t4 {outputs} {channels}\nout t5 {height} {width} {outputs} sum {channels} mul t4 c d t3 a b d\n"
        ),
        _ => format!(
            "input t0 {channels} {tall} {wide}\nconst t1 {outputs} {channels}\nlet t2 {outputs} {tall} {wide} sum {channels} \
             mul t1 a d t0 d b c\nout t3 {outputs} {height} {width} maxof {kernel} {kernel} t2 a + * {stride} b d + * \
             {stride} c e\n"
        ),
    };
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The same with arguments and results of a 16-bit type, but for sums that nothing follows. All is computed
/// in f32.
fn in_halves(workload: &Workload, half: DType) -> Workload {
    let mut result = workload.clone();
    for tensor in &mut result.tensors {
        let is_summed = |stage: &Stage| stage.is_reduction() && workload.tensor(stage.output) == tensor;
        let is_argument = matches!(tensor.role, Role::Input | Role::Constant);
        if tensor.dtype == DType::F32
            && (is_argument || tensor.role == Role::Output && !workload.stages.iter().any(is_summed))
        {
            tensor.dtype = half;
        }
    }
    for stage in &mut result.stages {
        let dtype = |id: TensorId| result.tensors[id.0 as usize].dtype;
        let convert = |dtype, x| Expr::Cast(dtype, Box::new(x));
        let widen = |expr: Expr| match &expr {
            Expr::Load { tensor, .. } if dtype(*tensor) == half => convert(DType::F32, expr),
            _ => expr,
        };
        // padding stays next to what it pads
        let mut move_out = |expr: Expr| match widen(expr) {
            Expr::Guard { conditions, inside, outside } => match (*inside, *outside) {
                (Expr::Cast(DType::F32, x), Expr::Float(zero)) if zero.0 == 0.0 => {
                    convert(DType::F32, Expr::guard(conditions, *x, convert(half, Expr::float(0.0))))
                }
                (inside, outside) => Expr::guard(conditions, inside, outside),
            },
            other => other,
        };
        let value = stage.value.rewrite(&mut move_out);
        stage.value = if dtype(stage.output) == half { convert(half, value) } else { value };
    }
    result
}

fn extent(rng: &mut ChaCha8Rng, most: i64) -> i64 {
    // primes, powers of two and their neighbours
    let all = [1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 19, 23, 31, 32, 33, 37, 48, 64, 67, 128, 131, 197, 256, 300];
    let fitting: Vec<i64> = all.into_iter().filter(|e| *e <= most).collect();
    *fitting.choose(rng).unwrap_or(&1)
}

fn either(rng: &mut ChaCha8Rng) -> bool {
    rng.random_range(0..2) == 0
}

fn constant_or_input(rng: &mut ChaCha8Rng) -> Role {
    if either(rng) { Role::Constant } else { Role::Input }
}

/// The output itself, or an intermediate behind which one element-wise stage or two follow.
fn finish(w: &mut Workload, rng: &mut ChaCha8Rng, mut stage: Stage) {
    let shape = stage.spatial.clone();
    let axes: Vec<Index> = (0..shape.len() as u32).map(var).collect();
    let axes: Vec<&Index> = axes.iter().collect();
    let steps = rng.random_range(0..3);
    for step in 0..steps {
        let role = if step + 1 == steps { Role::Output } else { Role::Intermediate };
        let last = stage.output;
        w.stages.push(stage);
        let next = w.add_tensor(shape.clone(), DType::F32, role);
        let value = match rng.random_range(0..4) {
            0 => binary(Binary::Maximum, load(last, &axes), Expr::float(0.0)),
            1 => Expr::unary(Unary::Tanh, load(last, &axes)),
            2 => {
                let at = rng.random_range(0..shape.len().max(1));
                match shape.get(at) {
                    None => load(last, &axes),
                    Some(extent) => {
                        let bias = w.add_tensor(vec![*extent], DType::F32, Role::Constant);
                        binary(Binary::Add, load(last, &axes), load(bias, &axes[at..=at]))
                    }
                }
            }
            _ => {
                let other = w.add_tensor(shape.clone(), DType::F32, Role::Input);
                binary(Binary::Multiply, load(last, &axes), load(other, &axes))
            }
        };
        stage = Stage::map(next, shape.clone(), value);
    }
    w.tensors[stage.output.0 as usize].role = Role::Output;
    w.stages.push(stage);
}

/// A product of matrices, of batches of them, with either operand transposed.
fn product(rng: &mut ChaCha8Rng) -> Workload {
    let mut w = Workload::default();
    let k = extent(rng, 300);
    let m = extent(rng, (6000 / k).clamp(1, 67));
    let n = extent(rng, (12000 / (k * m)).clamp(1, 67));
    let batch = either(rng).then(|| extent(rng, 3));
    let lead = |shape: Vec<i64>| batch.into_iter().chain(shape).collect::<Vec<i64>>();
    let first = batch.map_or(0, |_| 1);
    let (a, b, c) = (var(first), var(first + 1), var(first + 2));
    let z = var(0);
    let index = |x: &Index, y: &Index| batch.map(|_| z.clone()).into_iter().chain([x.clone(), y.clone()]).collect();
    let (left, right) = (either(rng), either(rng));
    let x = w.add_tensor(lead(if left { vec![k, m] } else { vec![m, k] }), DType::F32, Role::Input);
    let y = w.add_tensor(lead(if right { vec![n, k] } else { vec![k, n] }), DType::F32, constant_or_input(rng));
    let x = Expr::load(x, if left { index(&c, &a) } else { index(&a, &c) });
    let y = Expr::load(y, if right { index(&b, &c) } else { index(&c, &b) });
    let out = w.add_tensor(lead(vec![m, n]), DType::F32, Role::Intermediate);
    let stage = Stage::reduce(out, lead(vec![m, n]), vec![k], Combiner::Sum, binary(Binary::Multiply, x, y));
    finish(&mut w, rng, stage);
    w
}

/// The position that a window reads along one dimension.
struct Window {
    input: i64,
    output: i64,
    kernel: i64,
    stride: i64,
    dilation: i64,
    pad: i64,
    /// Whether what lies outside is read from the other end, and no zeros.
    wraps: bool,
}

impl Window {
    fn random(rng: &mut ChaCha8Rng, most: i64) -> Window {
        let kernel = *[1, 2, 3, 3, 5].choose(rng).unwrap_or(&3);
        let (stride, dilation) = (rng.random_range(1..=2), rng.random_range(1..=2));
        let reach = dilation * (kernel - 1) + 1;
        let pad = rng.random_range(0..=reach / 2);
        let input = extent(rng, most).max(reach);
        let output = (input + 2 * pad - reach) / stride + 1;
        Window { input, output, kernel, stride, dilation, pad, wraps: false }
    }

    /// The same, or wrapped.
    fn wrapped_or_not(self, rng: &mut ChaCha8Rng) -> Window {
        Window { wraps: rng.random_range(0..3) == 0, ..self }
    }

    fn at(&self, output: u32, kernel: u32) -> Index {
        let at = var(output).times(self.stride).plus(&var(kernel).times(self.dilation)).plus_constant(-self.pad);
        if self.wraps { at.modulo(self.input) } else { at }
    }

    fn guard(&self, index: &Index) -> Option<Condition> {
        (self.pad > 0 && !self.wraps).then(|| Condition { index: index.clone(), low: 0, high: self.input })
    }
}

/// A convolution of any stride and dilation over few channels.
fn convolution(rng: &mut ChaCha8Rng) -> Workload {
    let channels = [extent(rng, 2), extent(rng, 5), extent(rng, 17)];
    let windows = [Window::random(rng, 8), Window::random(rng, 19)];
    let weights = constant_or_input(rng);
    convolved(rng, channels, &windows, weights)
}

/// A convolution that an algorithm of fewer multiplications may compute: a square window of stride 1 or 2 by
/// constant weights.
fn filter(rng: &mut ChaCha8Rng) -> Workload {
    let kernel = if rng.random_range(0..4) == 0 { 5 } else { 3 };
    let pad = rng.random_range(0..=kernel / 2);
    let channels = [extent(rng, 2), rng.random_range(8..20), extent(rng, 5)];
    let stride = if rng.random_range(0..3) == 0 { 2 } else { 1 };
    let windows = [11, 19].map(|most| {
        let input = extent(rng, most).max(kernel + 3 * stride);
        let output = (input + 2 * pad - kernel) / stride + 1;
        Window { input, output, kernel, stride, dilation: 1, pad, wraps: false }.wrapped_or_not(rng)
    });
    convolved(rng, channels, &windows, Role::Constant)
}

/// `y[n, o, h, w] = Σ x[n, c, ..] · k[o, c, r, s]`, with the extents of n, c and o.
fn convolved(
    rng: &mut ChaCha8Rng,
    [batch, channels, filters]: [i64; 3],
    [rows, columns]: &[Window; 2],
    weights: Role,
) -> Workload {
    let mut w = Workload::default();
    let x = w.add_tensor(vec![batch, channels, rows.input, columns.input], DType::F32, Role::Input);
    let k = w.add_tensor(vec![filters, channels, rows.kernel, columns.kernel], DType::F32, weights);
    let spatial = vec![batch, filters, rows.output, columns.output];
    let out = w.add_tensor(spatial.clone(), DType::F32, Role::Intermediate);
    let (row, column) = (rows.at(2, 5), columns.at(3, 6));
    let conditions = rows.guard(&row).into_iter().chain(columns.guard(&column)).collect();
    let read = Expr::guard(conditions, load(x, &[&var(0), &var(4), &row, &column]), Expr::float(0.0));
    let value = binary(Binary::Multiply, read, load(k, &[&var(1), &var(4), &var(5), &var(6)]));
    let reduction = vec![channels, rows.kernel, columns.kernel];
    let stage = Stage::reduce(out, spatial, reduction, Combiner::Sum, value);
    finish(&mut w, rng, stage);
    w
}

fn windowed(rng: &mut ChaCha8Rng, combiner: Combiner, outside: f64, weights: bool) -> Workload {
    let mut w = Workload::default();
    let channels = extent(rng, 33);
    let rows = Window::random(rng, 8).wrapped_or_not(rng);
    let columns = Window::random(rng, 17).wrapped_or_not(rng);
    let x = w.add_tensor(vec![channels, rows.input, columns.input], DType::F32, Role::Input);
    let spatial = vec![channels, rows.output, columns.output];
    let out = w.add_tensor(spatial.clone(), DType::F32, Role::Intermediate);
    let (row, column) = (rows.at(1, 3), columns.at(2, 4));
    let conditions = rows.guard(&row).into_iter().chain(columns.guard(&column)).collect();
    let mut value = Expr::guard(conditions, load(x, &[&var(0), &row, &column]), Expr::float(outside));
    if weights {
        let k = w.add_tensor(vec![channels, rows.kernel, columns.kernel], DType::F32, Role::Constant);
        value = binary(Binary::Multiply, value, load(k, &[&var(0), &var(3), &var(4)]));
    }
    let stage = Stage::reduce(out, spatial, vec![rows.kernel, columns.kernel], combiner, value);
    finish(&mut w, rng, stage);
    w
}

/// A transposed convolution: what it reads moves against the kernel, and stands between zeros where it
/// strides.
fn transposed(rng: &mut ChaCha8Rng) -> Workload {
    let mut w = Workload::default();
    let (channels, filters) = (extent(rng, 7), extent(rng, 17));
    let sides = [7, 17].map(|most| {
        let (kernel, stride) = (rng.random_range(1..=4), rng.random_range(1..=2));
        let (input, pad) = (extent(rng, most).max(2), rng.random_range(0..kernel));
        let output = ((input - 1) * stride + kernel - 2 * pad).max(1);
        (input, output, kernel, stride, pad)
    });
    let [(rows, _, height, ..), (columns, _, width, ..)] = sides;
    let x = w.add_tensor(vec![channels, rows, columns], DType::F32, Role::Input);
    let k = w.add_tensor(vec![channels, filters, height, width], DType::F32, constant_or_input(rng));
    let spatial = vec![filters, sides[0].1, sides[1].1];
    let out = w.add_tensor(spatial.clone(), DType::F32, Role::Intermediate);
    let (mut conditions, mut sources) = (Vec::new(), vec![var(3)]);
    for (number, (input, _, _, stride, pad)) in (0..).zip(sides) {
        let at = var(1 + number).plus_constant(pad).minus(&var(4 + number));
        let source = if stride > 1 { at.clone().floor_div(stride) } else { at.clone() };
        if stride > 1 {
            conditions.push(Condition { index: at.modulo(stride), low: 0, high: 1 });
        }
        conditions.push(Condition { index: source.clone(), low: 0, high: input });
        sources.push(source);
    }
    let read = Expr::guard(conditions, Expr::load(x, sources), Expr::float(0.0));
    let value = binary(Binary::Multiply, read, load(k, &[&var(3), &var(0), &var(4), &var(5)]));
    let stage = Stage::reduce(out, spatial, vec![channels, height, width], Combiner::Sum, value);
    finish(&mut w, rng, stage);
    w
}

/// Rows of a table, or weighted sums of several, by loaded positions that are wrapped or clamped.
fn gather(rng: &mut ChaCha8Rng) -> Workload {
    let mut w = Workload::default();
    let (rows, width, count) = (extent(rng, 67).max(2), extent(rng, 67), extent(rng, 37));
    let terms = either(rng).then(|| extent(rng, 7));
    let dtype = if either(rng) { DType::I64 } else { DType::I32 };
    let positions = [count].into_iter().chain(terms).collect();
    let ids = w.add_tensor(positions, dtype, Role::Input);
    let table = w.add_tensor(vec![rows, width], DType::F32, constant_or_input(rng));
    let (a, b, c) = (var(0), var(1), var(2));
    let id = load(ids, &if terms.is_some() { vec![&a, &c] } else { vec![&a] });
    let id = if dtype == DType::I64 { id } else { Expr::Cast(DType::I64, Box::new(id)) };
    let row = match rng.random_range(0..4) {
        0 => {
            let least = binary(Binary::Maximum, id, Expr::integer(0));
            Index::value(binary(Binary::Minimum, least, Expr::integer(rows - 1)))
        }
        1 => Index::value(id).plus(&a).modulo(rows),
        _ => Index::value(id).modulo(rows),
    };
    let read = load(table, &[&row, &b]);
    let shape = vec![count, width];
    let out = w.add_tensor(shape.clone(), DType::F32, Role::Intermediate);
    let stage = match terms {
        None => Stage::map(out, shape, read),
        Some(terms) => {
            let weights = w.add_tensor(vec![count, terms], DType::F32, Role::Input);
            let value = binary(Binary::Multiply, read, load(weights, &[&a, &c]));
            Stage::reduce(out, shape, vec![terms], Combiner::Sum, value)
        }
    };
    finish(&mut w, rng, stage);
    w
}

fn depthwise(rng: &mut ChaCha8Rng) -> Workload {
    windowed(rng, Combiner::Sum, 0.0, true)
}

fn pooling(rng: &mut ChaCha8Rng) -> Workload {
    windowed(rng, Combiner::Maximum, f64::NEG_INFINITY, false)
}

/// The maximum of each row, exponentials, their sum, the quotient.
fn softmax(rng: &mut ChaCha8Rng) -> Workload {
    let mut w = Workload::default();
    let (m, n) = (extent(rng, 23), extent(rng, 197));
    let x = w.add_tensor(vec![m, n], DType::F32, Role::Input);
    let most = w.add_tensor(vec![m], DType::F32, Role::Intermediate);
    let exp = w.add_tensor(vec![m, n], DType::F32, Role::Intermediate);
    let sum = w.add_tensor(vec![m], DType::F32, Role::Intermediate);
    let out = w.add_tensor(vec![m, n], DType::F32, Role::Output);
    let (a, b) = (var(0), var(1));
    w.stages.push(Stage::reduce(most, vec![m], vec![n], Combiner::Maximum, load(x, &[&a, &b])));
    let shifted = binary(Binary::Subtract, load(x, &[&a, &b]), load(most, &[&a]));
    w.stages.push(Stage::map(exp, vec![m, n], Expr::unary(Unary::Exp, shifted)));
    w.stages.push(Stage::reduce(sum, vec![m], vec![n], Combiner::Sum, load(exp, &[&a, &b])));
    w.stages.push(Stage::map(out, vec![m, n], binary(Binary::Divide, load(exp, &[&a, &b]), load(sum, &[&a]))));
    w
}

/// `softmax(scale · q · kᵀ + mask) · v` for each head, with or without scale and mask, heads outside of
/// queries or inside of them.
fn attention(rng: &mut ChaCha8Rng) -> Workload {
    let mut w = Workload::default();
    let (heads, queries) = (extent(rng, 3), extent(rng, 37));
    let (keys, width, values) = (extent(rng, 33), extent(rng, 8), extent(rng, 19));
    let inside = either(rng);
    let rows = if inside { vec![queries, heads] } else { vec![heads, queries] };
    let (h, q) = if inside { (var(1), var(0)) } else { (var(0), var(1)) };
    let (first, second) = (var(0), var(1));
    let (a, b, c, d) = (&first, &second, var(2), var(3));
    let wide = [rows.as_slice(), &[keys]].concat();
    let input = |w: &mut Workload, shape: &[i64]| w.add_tensor(shape.to_vec(), DType::F32, Role::Input);
    let inner = |w: &mut Workload, shape: &[i64]| w.add_tensor(shape.to_vec(), DType::F32, Role::Intermediate);

    let (question, key) = if either(rng) {
        // one tensor holds both
        let both = input(&mut w, &[queries.max(keys), 2, heads, width]);
        (load(both, &[&q, &Index::constant(0), &h, &d]), load(both, &[&c, &Index::constant(1), &h, &d]))
    } else {
        let question = input(&mut w, &[heads, queries, width]);
        let across = either(rng);
        let key = input(&mut w, &if across { [heads, width, keys] } else { [heads, keys, width] });
        (load(question, &[&h, &q, &d]), load(key, &if across { [&h, &d, &c] } else { [&h, &c, &d] }))
    };
    let mut scores = inner(&mut w, &wide);
    let product = binary(Binary::Multiply, question, key);
    w.stages.push(Stage::reduce(scores, wide.clone(), vec![width], Combiner::Sum, product));
    let (scaled, masked) = (either(rng), either(rng));
    if scaled || masked {
        let mut value = load(scores, &[a, b, &c]);
        if scaled {
            value = binary(Binary::Multiply, value, Expr::float(0.25));
        }
        if masked {
            let mask = input(&mut w, &[queries, keys]);
            value = binary(Binary::Add, value, load(mask, &[&q, &c]));
        }
        scores = inner(&mut w, &wide);
        w.stages.push(Stage::map(scores, wide.clone(), value));
    }
    let (most, exp) = (inner(&mut w, &rows), inner(&mut w, &wide));
    let (sum, weights) = (inner(&mut w, &rows), inner(&mut w, &wide));
    let score = || load(scores, &[a, b, &c]);
    w.stages.push(Stage::reduce(most, rows.clone(), vec![keys], Combiner::Maximum, score()));
    let shifted = binary(Binary::Subtract, score(), load(most, &[a, b]));
    w.stages.push(Stage::map(exp, wide.clone(), Expr::unary(Unary::Exp, shifted)));
    w.stages.push(Stage::reduce(sum, rows.clone(), vec![keys], Combiner::Sum, load(exp, &[a, b, &c])));
    let quotient = binary(Binary::Divide, load(exp, &[a, b, &c]), load(sum, &[a, b]));
    w.stages.push(Stage::map(weights, wide, quotient));
    let shape = [rows.as_slice(), &[values]].concat();
    let value = input(&mut w, &[heads, keys, values]);
    let out = w.add_tensor(shape.clone(), DType::F32, Role::Intermediate);
    let product = binary(Binary::Multiply, load(weights, &[a, b, &d]), load(value, &[&h, &d, &c]));
    let stage = Stage::reduce(out, shape, vec![keys], Combiner::Sum, product);
    finish(&mut w, rng, stage);
    w
}

/// Any combiner over the axes of one side; down to a scalar.
fn reduction(rng: &mut ChaCha8Rng) -> Workload {
    let mut w = Workload::default();
    let (m, n, k) = (extent(rng, 17), extent(rng, 7), extent(rng, 300));
    let x = w.add_tensor(vec![m, k, n], DType::F32, Role::Input);
    let combiner =
        *[Combiner::Sum, Combiner::Product, Combiner::Maximum, Combiner::Minimum].choose(rng).unwrap_or(&Combiner::Sum);
    let (spatial, reduced, indices) = match rng.random_range(0..3) {
        0 => (vec![m, n], vec![k], [var(0), var(2), var(1)]),
        1 => (vec![k], vec![m, n], [var(1), var(0), var(2)]),
        _ => (vec![], vec![m, k, n], [var(0), var(1), var(2)]),
    };
    let out = w.add_tensor(spatial.clone(), DType::F32, Role::Intermediate);
    let value = Expr::load(x, indices.to_vec());
    let stage = Stage::reduce(out, spatial, reduced, combiner, value);
    finish(&mut w, rng, stage);
    w
}

/// Element-wise over a reshaped and transposed operand, one that is broadcast, and a padded slice.
fn map(rng: &mut ChaCha8Rng) -> Workload {
    let mut w = Workload::default();
    let (m, n, k) = (extent(rng, 13), extent(rng, 19), extent(rng, 33));
    let x = w.add_tensor(vec![k, m * n], DType::F32, Role::Input);
    let y = w.add_tensor(vec![n], DType::F32, constant_or_input(rng));
    let out = w.add_tensor(vec![m, n * k], DType::F32, Role::Intermediate);
    let (a, b) = (var(0), var(1));
    let (column, deep) = (b.clone().floor_div(k), b.clone().modulo(k));
    let flat = a.clone().times(n).plus(&column);
    let shifted = column.clone().plus_constant(-1);
    let inside = vec![Condition { index: shifted.clone(), low: 0, high: n }];
    let padded = Expr::guard(inside, load(y, &[&shifted]), Expr::float(0.5));
    let value = binary(Binary::Add, load(x, &[&deep, &flat]), padded);
    let stage = Stage::map(out, vec![m, n * k], value);
    finish(&mut w, rng, stage);
    w
}
