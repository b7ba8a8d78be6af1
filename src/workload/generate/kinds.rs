//! One function for each [`Kind`].

use rand::Rng;
use rand::seq::SliceRandom;

use super::{Builder, Kind, axes, axis};
use crate::workload::{Binary, Combiner, Condition, DType, Expr, Index, Role, TensorId, Unary, row_major_strides};

pub(super) fn build(kind: Kind, b: &mut Builder) {
    match kind {
        Kind::Dense => dense(b),
        Kind::BatchedProduct => batched_product(b),
        Kind::Convolution => convolution(b),
        Kind::DepthwiseConvolution => depthwise(b),
        Kind::TransposedConvolution => transposed_convolution(b),
        Kind::Pooling => pooling(b),
        Kind::Softmax => {
            let input = draw_input(b);
            softmax(b, input);
        }
        Kind::LayerNorm => layer_norm(b),
        Kind::Attention => attention(b),
        Kind::Reduction => reduction(b),
        Kind::ElementWise => {
            let input = draw_input(b);
            let steps = b.random.random_range(1..5);
            (0..steps).fold(input, |last, _| element_wise(b, last));
        }
        Kind::Transpose => transpose(b),
        Kind::Reshape => reshape(b),
        Kind::Gather => gather(b),
        Kind::Concatenation => concatenation(b),
    }
}

fn multiply(x: Expr, y: Expr) -> Expr {
    Expr::binary(Binary::Multiply, x, y)
}

fn add(x: Expr, y: Expr) -> Expr {
    Expr::binary(Binary::Add, x, y)
}

/// `weight` under the indices, or under the last two of them swapped, with the shape to match.
fn matrix(b: &mut Builder, constant: bool, batch: &[i64], rows: i64, columns: i64, indices: Vec<Index>) -> Expr {
    let mut shape = batch.to_vec();
    let mut indices = indices;
    shape.extend([rows, columns]);
    if b.chance(0.3) {
        let last = shape.len() - 1;
        shape.swap(last - 1, last);
        indices.swap(last - 1, last);
    }
    let id = if constant { b.constant(&shape) } else { b.input(&shape) };
    Expr::load(id, indices)
}

fn dense(b: &mut Builder) {
    let batch: Vec<i64> = if b.chance(0.3) { vec![b.extent(16)] } else { vec![] };
    let (m, n, k) = (b.extent(1024), b.extent(4096), b.extent(4096));
    let rank = batch.len();
    let shape = [batch.clone(), vec![m, n]].concat();
    let mut indices = axes(rank + 1);
    indices.push(axis(rank + 2));
    let x = matrix(b, false, &batch, m, k, indices);
    let w = matrix(b, true, &[], k, n, vec![axis(rank + 2), axis(rank + 1)]);
    let product = b.reduce(&shape, &[k], Combiner::Sum, multiply(x, w));
    let biased = if b.chance(0.7) { bias(b, product, rank + 1) } else { product };
    epilogue(b, biased);
}

/// Adds a constant along one axis.
fn bias(b: &mut Builder, tensor: TensorId, along: usize) -> TensorId {
    let shape = b.shape(tensor);
    let bias = b.constant(&[shape[along]]);
    let sum = add(Expr::load(tensor, axes(shape.len())), Expr::load(bias, vec![axis(along)]));
    b.map(&shape, sum)
}

/// A few element-wise stages, or none.
fn epilogue(b: &mut Builder, tensor: TensorId) {
    let steps = b.pick(&[0, 0, 1, 1, 1, 2]);
    (0..steps).fold(tensor, |last, _| element_wise(b, last));
}

/// An activation, or a product or sum with another tensor, broadcast along some axes.
fn element_wise(b: &mut Builder, tensor: TensorId) -> TensorId {
    let shape = b.shape(tensor);
    let x = || Expr::load(tensor, axes(shape.len()));
    let literal = Expr::float;
    let value = match b.random.random_range(0..14) {
        0 | 1 => Expr::binary(Binary::Maximum, x(), literal(0.0)),
        2 => Expr::binary(Binary::Minimum, Expr::binary(Binary::Maximum, x(), literal(0.0)), literal(6.0)),
        3 => {
            let erf = Expr::unary(Unary::Erf, multiply(x(), literal(f64::from(std::f32::consts::FRAC_1_SQRT_2))));
            multiply(multiply(x(), literal(0.5)), add(erf, literal(1.0)))
        }
        4 => {
            let cubic = add(x(), multiply(literal(0.044715), multiply(x(), multiply(x(), x()))));
            let tanh = Expr::unary(Unary::Tanh, multiply(literal(0.797_884_6), cubic));
            multiply(multiply(x(), literal(0.5)), add(tanh, literal(1.0)))
        }
        5 => multiply(x(), Expr::unary(Unary::Sigmoid, x())),
        6 => {
            let op = b.pick(&[Unary::Tanh, Unary::Sigmoid, Unary::Exp, Unary::Absolute, Unary::Negate, Unary::Sin]);
            Expr::unary(op, x())
        }
        7 => Expr::select(Expr::binary(Binary::Less, x(), literal(0.0)), multiply(x(), literal(0.01)), x()),
        8 => Expr::unary(Unary::Sqrt, add(multiply(x(), x()), literal(1e-5))),
        _ => {
            let kept: Vec<usize> = (0..shape.len()).filter(|_| b.random.random_bool(0.7)).collect();
            let extents: Vec<i64> = kept.iter().map(|d| shape[*d]).collect();
            let other = if b.chance(0.5) { b.input(&extents) } else { b.constant(&extents) };
            let op = b.pick(&[Binary::Add, Binary::Add, Binary::Multiply, Binary::Subtract, Binary::Maximum]);
            Expr::binary(op, x(), Expr::load(other, kept.iter().map(|d| axis(*d)).collect()))
        }
    };
    b.map(&shape, value)
}

fn batched_product(b: &mut Builder) {
    let batch: Vec<i64> = (0..b.pick(&[1, 1, 2])).map(|_| b.extent(64)).collect();
    let (m, n, k) = (b.extent(512), b.extent(512), b.extent(512));
    let rank = batch.len();
    let shape = [batch.clone(), vec![m, n]].concat();
    let batch_axes = axes(rank);
    let x = matrix(b, false, &batch, m, k, [batch_axes.clone(), vec![axis(rank), axis(rank + 2)]].concat());
    let y = matrix(b, false, &batch, k, n, [batch_axes, vec![axis(rank + 2), axis(rank + 1)]].concat());
    let product = b.reduce(&shape, &[k], Combiner::Sum, multiply(x, y));
    epilogue(b, product);
}

/// One spatial dimension of a window.
struct Window {
    input: i64,
    output: i64,
    kernel: i64,
    stride: i64,
    dilation: i64,
    padding: i64,
    /// Whether positions outside are read from the other end.
    wraps: bool,
}

impl Window {
    fn draw(b: &mut Builder, most: i64) -> Window {
        let kernel = b.pick(&[1, 1, 2, 3, 3, 3, 5, 7]);
        let stride = b.pick(&[1, 1, 1, 2, 3]);
        let dilation = b.pick(&[1, 1, 1, 1, 2]);
        let reach = dilation * (kernel - 1) + 1;
        let padding = if b.chance(0.5) { reach / 2 } else { 0 };
        let input = b.extent(most).max(reach - 2 * padding).max(1);
        let output = (input + 2 * padding - reach) / stride + 1;
        Window { input, output, kernel, stride, dilation, padding, wraps: false }
    }

    /// The same, or wrapped.
    fn wrapped_or_not(self, b: &mut Builder) -> Window {
        Window { wraps: self.padding > 0 && b.chance(0.3), ..self }
    }

    /// Where a point of the output and of the kernel reads.
    fn source(&self, output: Index, kernel: Index) -> Index {
        let at = output.times(self.stride).plus(&kernel.times(self.dilation)).plus_constant(-self.padding);
        if self.wraps { at.modulo(self.input) } else { at }
    }
}

/// A load of `[batch, channel, sources...]`, guarded where it is padded.
fn windowed(tensor: TensorId, first: Vec<Index>, windows: &[Window], sources: Vec<Index>, outside: f64) -> Expr {
    let guarded = windows.iter().zip(&sources).filter(|(w, _)| w.padding > 0 && !w.wraps);
    let conditions = guarded.map(|(w, s)| Condition { index: s.clone(), low: 0, high: w.input }).collect();
    Expr::guard(conditions, Expr::load(tensor, [first, sources].concat()), Expr::float(outside))
}

fn convolution(b: &mut Builder) {
    let rank = b.pick(&[1, 2, 2, 2, 3]);
    let windows: Vec<Window> = (0..rank).map(|_| Window::draw(b, [224, 112, 28][rank - 1])).collect();
    let groups = if b.chance(0.2) { b.extent(32) } else { 1 };
    let (batch, channels, filters) = (b.pick(&[1, 1, 1, 2, 4]), b.extent(512), b.extent(512));
    let input_shape: Vec<i64> = [vec![batch, groups * channels], windows.iter().map(|w| w.input).collect()].concat();
    let weight_shape: Vec<i64> =
        [vec![groups * filters, channels], windows.iter().map(|w| w.kernel).collect()].concat();
    let shape: Vec<i64> = [vec![batch, groups * filters], windows.iter().map(|w| w.output).collect()].concat();
    let over: Vec<i64> = [vec![channels], windows.iter().map(|w| w.kernel).collect()].concat();
    let (x, w) = (b.input(&input_shape), b.constant(&weight_shape));
    let channel = axis(rank + 2);
    let kernels: Vec<Index> = (0..rank).map(|d| axis(rank + 3 + d)).collect();
    let sources = windows.iter().enumerate().map(|(d, w)| w.source(axis(2 + d), kernels[d].clone())).collect();
    let group = if groups > 1 { axis(1).floor_div(filters).times(channels) } else { Index::constant(0) };
    let load = windowed(x, vec![axis(0), group.plus(&channel)], &windows, sources, 0.0);
    let weight = Expr::load(w, [vec![axis(1), channel], kernels].concat());
    let product = b.reduce(&shape, &over, Combiner::Sum, multiply(load, weight));
    let biased = if b.chance(0.7) { bias(b, product, 1) } else { product };
    epilogue(b, biased);
}

fn depthwise(b: &mut Builder) {
    let windows: Vec<Window> = (0..2).map(|_| Window::draw(b, 112).wrapped_or_not(b)).collect();
    let (batch, channels) = (b.pick(&[1, 1, 2]), b.extent(512));
    let x = b.input(&[batch, channels, windows[0].input, windows[1].input]);
    let w = b.constant(&[channels, windows[0].kernel, windows[1].kernel]);
    let sources = vec![windows[0].source(axis(2), axis(4)), windows[1].source(axis(3), axis(5))];
    let load = windowed(x, axes(2), &windows, sources, 0.0);
    let weight = Expr::load(w, vec![axis(1), axis(4), axis(5)]);
    let shape = [batch, channels, windows[0].output, windows[1].output];
    let over = [windows[0].kernel, windows[1].kernel];
    let product = b.reduce(&shape, &over, Combiner::Sum, multiply(load, weight));
    let biased = if b.chance(0.7) { bias(b, product, 1) } else { product };
    epilogue(b, biased);
}

fn transposed_convolution(b: &mut Builder) {
    let (kernel, stride) = (b.pick(&[2, 3, 4, 5]), b.pick(&[1, 2, 2, 3]));
    let padding = b.random.random_range(0..kernel);
    let (channels, filters) = (b.extent(128), b.extent(128));
    let input = [b.extent(32).max(3), b.extent(32).max(3)];
    let output = input.map(|n| ((n - 1) * stride + kernel - 2 * padding).max(1));
    let x = b.input(&[channels, input[0], input[1]]);
    let w = b.constant(&[channels, filters, kernel, kernel]);
    let mut conditions = Vec::new();
    let mut sources = Vec::new();
    for (d, extent) in input.into_iter().enumerate() {
        let at = axis(1 + d).plus_constant(padding).minus(&axis(4 + d));
        if stride > 1 {
            conditions.push(Condition { index: at.clone().modulo(stride), low: 0, high: 1 });
        }
        let source = at.floor_div(stride);
        conditions.push(Condition { index: source.clone(), low: 0, high: extent });
        sources.push(source);
    }
    let load = Expr::guard(conditions, Expr::load(x, [vec![axis(3)], sources].concat()), Expr::float(0.0));
    let weight = Expr::load(w, vec![axis(3), axis(0), axis(4), axis(5)]);
    let shape = [filters, output[0], output[1]];
    let product = b.reduce(&shape, &[channels, kernel, kernel], Combiner::Sum, multiply(load, weight));
    epilogue(b, product);
}

fn pooling(b: &mut Builder) {
    let windows: Vec<Window> = (0..2).map(|_| Window::draw(b, 112).wrapped_or_not(b)).collect();
    let (batch, channels) = (b.pick(&[1, 1, 2]), b.extent(512));
    let x = b.input(&[batch, channels, windows[0].input, windows[1].input]);
    let sources = vec![windows[0].source(axis(2), axis(4)), windows[1].source(axis(3), axis(5))];
    let shape = [batch, channels, windows[0].output, windows[1].output];
    let over = [windows[0].kernel, windows[1].kernel];
    if b.chance(0.5) {
        let load = windowed(x, axes(2), &windows, sources, f64::NEG_INFINITY);
        b.reduce(&shape, &over, Combiner::Maximum, load);
        return;
    }
    let load = windowed(x, axes(2), &windows, sources, 0.0);
    let sum = b.reduce(&shape, &over, Combiner::Sum, load);
    let scale = f64::from(1.0 / (over[0] * over[1]) as f32);
    b.map(&shape, multiply(Expr::load(sum, axes(4)), Expr::float(scale)));
}

/// An input of one to four dimensions.
fn draw_input(b: &mut Builder) -> TensorId {
    let rank = b.random.random_range(1..5);
    let shape: Vec<i64> = (0..rank).map(|d| b.extent(if d < 2 { 128 } else { 1024 })).collect();
    b.input(&shape)
}

/// Over the last axis.
fn softmax(b: &mut Builder, x: TensorId) -> TensorId {
    let shape = b.shape(x);
    let (last, outer) = (shape.len() - 1, shape[..shape.len() - 1].to_vec());
    let row = [axes(last), vec![axis(last)]].concat();
    let largest = b.reduce(&outer, &[shape[last]], Combiner::Maximum, Expr::load(x, row.clone()));
    let difference = Expr::binary(Binary::Subtract, Expr::load(x, row.clone()), Expr::load(largest, axes(last)));
    let exp = b.map(&shape, Expr::unary(Unary::Exp, difference));
    let sum = b.reduce(&outer, &[shape[last]], Combiner::Sum, Expr::load(exp, row.clone()));
    b.map(&shape, Expr::binary(Binary::Divide, Expr::load(exp, row), Expr::load(sum, axes(last))))
}

fn layer_norm(b: &mut Builder) {
    let x = draw_input(b);
    let shape = b.shape(x);
    let (last, outer) = (shape.len() - 1, shape[..shape.len() - 1].to_vec());
    let row = axes(last + 1);
    let scale = Expr::float(f64::from(1.0 / shape[last] as f32));
    let sum = b.reduce(&outer, &[shape[last]], Combiner::Sum, Expr::load(x, row.clone()));
    let mean = b.map(&outer, multiply(Expr::load(sum, axes(last)), scale.clone()));
    let centred = Expr::binary(Binary::Subtract, Expr::load(x, row.clone()), Expr::load(mean, axes(last)));
    let centred = b.map(&shape, centred);
    let square = multiply(Expr::load(centred, row.clone()), Expr::load(centred, row.clone()));
    let variance = b.reduce(&outer, &[shape[last]], Combiner::Sum, square);
    let stable = add(multiply(Expr::load(variance, axes(last)), scale), Expr::float(1e-5));
    let inverse = b.map(&outer, Expr::unary(Unary::ReciprocalSqrt, stable));
    let (gain, shift) = (b.constant(&[shape[last]]), b.constant(&[shape[last]]));
    let normal = multiply(Expr::load(centred, row), Expr::load(inverse, axes(last)));
    let scaled = multiply(normal, Expr::load(gain, vec![axis(last)]));
    b.map(&shape, add(scaled, Expr::load(shift, vec![axis(last)])));
}

fn attention(b: &mut Builder) {
    let (heads, queries, keys, width) = (b.extent(16), b.extent(256), b.extent(256), b.extent(128));
    let q = b.input(&[heads, queries, width]);
    let k = b.input(&[heads, keys, width]);
    let v = b.input(&[heads, keys, width]);
    // the heads of a query may lie beside one another, as the next layer wants them
    let beside = b.chance(0.5);
    let (rows, head, query) =
        if beside { ([queries, heads], axis(1), axis(0)) } else { ([heads, queries], axis(0), axis(1)) };
    let wide = [rows[0], rows[1], keys];
    let product = multiply(
        Expr::load(q, vec![head.clone(), query.clone(), axis(3)]),
        Expr::load(k, vec![head.clone(), axis(2), axis(3)]),
    );
    let mut scores = b.reduce(&wide, &[width], Combiner::Sum, product);
    if b.chance(0.8) {
        let scale = Expr::float(f64::from(1.0 / (width as f32).sqrt()));
        scores = b.map(&wide, multiply(Expr::load(scores, axes(3)), scale));
    }
    if b.chance(0.4) {
        let mask = if b.chance(0.5) { b.constant(&[queries, keys]) } else { b.input(&[queries, keys]) };
        scores = b.map(&wide, add(Expr::load(scores, axes(3)), Expr::load(mask, vec![query, axis(2)])));
    }
    let weights = softmax(b, scores);
    let product =
        multiply(Expr::load(weights, vec![axis(0), axis(1), axis(3)]), Expr::load(v, vec![head, axis(3), axis(2)]));
    b.reduce(&[rows[0], rows[1], width], &[keys], Combiner::Sum, product);
}

fn reduction(b: &mut Builder) {
    let x = draw_input(b);
    let shape = b.shape(x);
    let reduced: Vec<bool> = shape.iter().map(|_| b.chance(0.5)).collect();
    let select = |wanted: bool| -> Vec<i64> {
        shape.iter().zip(&reduced).filter(|(_, r)| **r == wanted).map(|(e, _)| *e).collect()
    };
    let (outer, over) = (select(false), select(true));
    let (mut kept, mut summed) = (0, outer.len());
    let indices = reduced
        .iter()
        .map(|reduced| {
            let next = if *reduced { &mut summed } else { &mut kept };
            *next += 1;
            axis(*next - 1)
        })
        .collect();
    let combiner = b.pick(&[Combiner::Sum, Combiner::Sum, Combiner::Maximum, Combiner::Minimum, Combiner::Product]);
    let load = Expr::load(x, indices);
    let value = if b.chance(0.3) { multiply(load.clone(), load) } else { load };
    let sum = b.reduce(&outer, &over, combiner, value);
    epilogue(b, sum);
}

fn transpose(b: &mut Builder) {
    let x = draw_input(b);
    let shape = b.shape(x);
    let mut order: Vec<usize> = (0..shape.len()).collect();
    order.shuffle(&mut b.random);
    // dimension `order[d]` of the input is axis `d`
    let mut indices = vec![Index::constant(0); shape.len()];
    order.iter().enumerate().for_each(|(d, from)| indices[*from] = axis(d));
    let extents: Vec<i64> = order.iter().map(|from| shape[*from]).collect();
    let turned = b.map(&extents, Expr::load(x, indices));
    epilogue(b, turned);
}

fn reshape(b: &mut Builder) {
    let factors: Vec<i64> = (0..b.random.random_range(2..5)).map(|_| b.extent(24)).collect();
    let (from, to) = (group(b, &factors), group(b, &factors));
    let x = b.input(&from);
    let flat = axes(to.len())
        .into_iter()
        .zip(row_major_strides(&to))
        .fold(Index::constant(0), |sum, (index, stride)| sum.plus(&index.times(stride)));
    let indices = from
        .iter()
        .zip(row_major_strides(&from))
        .map(|(extent, stride)| flat.clone().floor_div(stride).modulo(*extent))
        .collect();
    let reshaped = b.map(&to, Expr::load(x, indices));
    epilogue(b, reshaped);
}

/// Multiplies some neighbours.
fn group(b: &mut Builder, factors: &[i64]) -> Vec<i64> {
    let mut shape: Vec<i64> = Vec::new();
    for factor in factors {
        match shape.last_mut() {
            Some(last) if b.random.random_bool(0.5) => *last *= factor,
            _ => shape.push(*factor),
        }
    }
    shape
}

fn gather(b: &mut Builder) {
    let (rows, width) = (b.extent(4096), b.extent(1024));
    let positions: Vec<i64> = (0..b.pick(&[1, 2])).map(|_| b.extent(128)).collect();
    let dtype = b.pick(&[DType::I64, DType::I64, DType::I32]);
    let ids = b.workload.add_tensor(positions.clone(), dtype, Role::Input);
    let table = b.constant(&[rows, width]);
    let loaded = Expr::Cast(DType::I64, Box::new(Expr::load(ids, axes(positions.len()))));
    let row = if b.chance(0.5) {
        // as import has it: negative positions count from the end
        Index::value(loaded).modulo(rows)
    } else {
        let at_least = Expr::binary(Binary::Maximum, loaded, Expr::integer(0));
        Index::value(Expr::binary(Binary::Minimum, at_least, Expr::integer(rows - 1)))
    };
    let rank = positions.len();
    let shape = [positions, vec![width]].concat();
    let read = b.map(&shape, Expr::load(table, vec![row, axis(rank)]));
    epilogue(b, read);
}

fn concatenation(b: &mut Builder) {
    let rank = b.random.random_range(1..4);
    let mut shape: Vec<i64> = (0..rank).map(|_| b.extent(128)).collect();
    let along = b.random.random_range(0..rank);
    let parts: Vec<i64> = (0..b.random.random_range(2..4)).map(|_| b.extent(128)).collect();
    shape[along] = parts.iter().sum();
    let mut end = shape[along];
    let mut value: Option<Expr> = None;
    for part in parts.iter().rev() {
        let start = end - part;
        let mut part_shape = shape.clone();
        part_shape[along] = *part;
        let tensor = b.input(&part_shape);
        let mut indices = axes(rank);
        indices[along] = axis(along).plus_constant(-start);
        let load = Expr::load(tensor, indices);
        value = Some(match value {
            None => load,
            Some(rest) => {
                let within = Condition { index: axis(along), low: start, high: end };
                Expr::guard(vec![within], load, rest)
            }
        });
        end = start;
    }
    if let Some(value) = value {
        let joined = b.map(&shape, guard_tail(value, along, *parts.last().unwrap_or(&1), shape[along]));
        epilogue(b, joined);
    }
}

/// The last part is read only where the others end.
fn guard_tail(value: Expr, along: usize, last: i64, total: i64) -> Expr {
    match value {
        Expr::Guard { conditions, inside, outside } => {
            Expr::Guard { conditions, inside, outside: Box::new(guard_tail(*outside, along, last, total)) }
        }
        load => {
            let behind = Condition { index: axis(along), low: total - last, high: total };
            Expr::guard(vec![behind], load, Expr::float(0.0))
        }
    }
}
