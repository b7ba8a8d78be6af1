//! One function for each [`super::ShortKind`].

use rand::Rng;

use super::super::{Builder, axes, axis};
use super::store::{store, store_plain};
use super::{Product, Types, cast, integer, multiply, subtract, widened};
use crate::workload::{Binary, Condition, DType, Expr, Index, Role, TensorId};

/// Types of activations and of constant weights, the usual ones most often.
const BY_WEIGHTS: [[DType; 2]; 8] = {
    use DType::{BF16, I8, U8};
    [[BF16, BF16], [BF16, BF16], [BF16, BF16], [U8, I8], [U8, I8], [I8, I8], [U8, U8], [I8, U8]]
};

/// Of two activations.
const BY_ACTIVATIONS: [[DType; 2]; 5] = {
    use DType::{BF16, I8, U8};
    [[BF16, BF16], [BF16, BF16], [U8, U8], [U8, I8], [I8, I8]]
};

pub(super) fn dense(b: &mut Builder) {
    let types = Types::draw(b, &BY_WEIGHTS);
    let (rows, depth) = (b.extent(1024), b.multiple(types.steps, 4096));
    // columns as heads, which come first in the result
    let (heads, width) = if b.chance(0.2) { (b.extent(16), b.extent(128)) } else { (1, b.extent(4096)) };
    let columns = heads * width;
    let x = b.tensor(&[rows, depth], types.operands[0], Role::Input);
    let turned = b.chance(0.5);
    let shape = if turned { [depth, columns] } else { [columns, depth] };
    let w = b.tensor(&shape, types.operands[1], Role::Constant);
    let (shape, channel, row, column, step) = match heads {
        1 => (vec![rows, columns], 1, axis(0), axis(1), axis(2)),
        _ => (vec![heads, rows, width], 2, axis(1), axis(0).times(width).plus(&axis(2)), axis(3)),
    };
    let indices = if turned { vec![step.clone(), column] } else { vec![column, step.clone()] };
    let value = product(b, widened(&types, x, vec![row, step]), widened(&types, w, indices));
    let sum = b.sum_of(types.sum, &shape, &[depth], value);
    store(b, &Product { sum, types, channel, depth, read: types.operands, by_constants: true });
}

/// Two factors in one order or the other.
fn product(b: &mut Builder, x: Expr, y: Expr) -> Expr {
    if b.chance(0.5) { multiply(x, y) } else { multiply(y, x) }
}

pub(super) fn batched(b: &mut Builder) {
    let types = Types::draw(b, &BY_ACTIVATIONS);
    let (batch, rows, columns) = (b.extent(16), b.extent(256), b.extent(256));
    let depth = b.multiple(types.steps, 256);
    let x = activation(b, types.operands[0], [batch, rows, depth], axis(1), axis(3));
    let y = if b.chance(0.5) {
        activation(b, types.operands[1], [batch, columns, depth], axis(2), axis(3))
    } else {
        activation(b, types.operands[1], [batch, depth, columns], axis(3), axis(2))
    };
    let value = multiply(cast(types.sum, x), cast(types.sum, y));
    let sum = b.sum_of(types.sum, &[batch, rows, columns], &[depth], value);
    store(b, &Product { sum, types, channel: 2, depth, read: types.operands, by_constants: false });
}

/// A matrix of each head, or the heads beside one another in the columns.
fn activation(b: &mut Builder, dtype: DType, [heads, rows, columns]: [i64; 3], row: Index, column: Index) -> Expr {
    if b.chance(0.6) {
        let tensor = b.tensor(&[heads, rows, columns], dtype, Role::Input);
        return Expr::load(tensor, vec![axis(0), row, column]);
    }
    let tensor = b.tensor(&[rows, heads * columns], dtype, Role::Input);
    Expr::load(tensor, vec![row, axis(0).times(columns).plus(&column)])
}

/// One dimension of an image.
struct Window {
    input: i64,
    output: i64,
    kernel: i64,
    stride: i64,
    padding: i64,
}

impl Window {
    fn draw(b: &mut Builder, kernels: &[i64]) -> Window {
        let (kernel, stride) = (b.pick(kernels), b.pick(&[1, 1, 2]));
        let padding = if kernel > 1 && b.chance(0.7) { kernel / 2 } else { 0 };
        let input = b.extent(112).max(kernel - 2 * padding).max(1);
        Window { input, output: (input + 2 * padding - kernel) / stride + 1, kernel, stride, padding }
    }

    /// The same with a kernel of so many steps more, which begin outside.
    fn padded(self, steps: i64) -> Window {
        Window { kernel: (self.kernel + steps - 1) / steps * steps, ..self }
    }

    fn source(&self, output: Index, step: Index) -> Index {
        output.times(self.stride).plus(&step).plus_constant(-self.padding)
    }

    /// Whether all positions are inside.
    fn stays_inside(&self) -> bool {
        self.padding == 0 && (self.output - 1) * self.stride + self.kernel <= self.input
    }
}

/// A load of an image in the type of the sum: outside is a zero point, or 0.
fn bordered(b: &mut Builder, types: &Types, tensor: TensorId, at: Vec<Index>, images: &[(&Window, Index)]) -> Expr {
    let dtype = types.operands[0];
    let outside = match dtype {
        DType::BF16 => Expr::float(0.0),
        _ if b.chance(0.5) => Expr::integer(0),
        _ => Expr::integer(b.random.random_range(dtype.least()..=dtype.greatest())),
    };
    let guarded = images.iter().filter(|(window, _)| !window.stays_inside());
    let conditions: Vec<Condition> =
        guarded.map(|(window, source)| Condition { index: source.clone(), low: 0, high: window.input }).collect();
    let load = Expr::load(tensor, at);
    let read = if conditions.is_empty() { load } else { Expr::guard(conditions, load, cast(dtype, outside)) };
    cast(types.sum, read)
}

pub(super) fn convolution(b: &mut Builder) {
    let types = Types::draw(b, &BY_WEIGHTS);
    let kernels: &[i64] = if b.chance(0.4) { &[1] } else { &[3, 3, 3, 2, 5, 7] };
    let windows = [Window::draw(b, kernels), Window::draw(b, kernels)];
    let groups = if b.chance(0.15) { b.extent(32) } else { 1 };
    let (channels, filters) = (b.multiple(types.steps, 512), b.extent(512));
    let [rows, columns] = &windows;
    let x = b.tensor(&[rows.input, columns.input, groups * channels], types.operands[0], Role::Input);
    // axes: rows, columns, filters, then the channels first or last
    let first = b.chance(0.5);
    let (channel, steps) = if first { (3, [4, 5]) } else { (5, [3, 4]) };
    let over = if first { [channels, rows.kernel, columns.kernel] } else { [rows.kernel, columns.kernel, channels] };
    let group = if groups > 1 { axis(2).floor_div(filters).times(channels) } else { Index::constant(0) };
    let sources = [rows.source(axis(0), axis(steps[0])), columns.source(axis(1), axis(steps[1]))];
    let at = vec![sources[0].clone(), sources[1].clone(), group.plus(&axis(channel))];
    let images: Vec<(&Window, Index)> = windows.iter().zip(sources).collect();
    let load = bordered(b, &types, x, at, &images);
    let orders = [[2, channel, steps[0], steps[1]], [2, steps[0], steps[1], channel], [steps[0], steps[1], channel, 2]];
    let order = b.pick(&orders);
    let all = [&[rows.output, columns.output, groups * filters], over.as_slice()].concat();
    let w = b.tensor(&order.map(|at| all[at]), types.operands[1], Role::Constant);
    let weight = widened(&types, w, order.map(axis).to_vec());
    let value = product(b, load, weight);
    let sum = b.sum_of(types.sum, &all[..3], &over, value);
    let depth = over.iter().product();
    store(b, &Product { sum, types, channel: 2, depth, read: types.operands, by_constants: true });
}

pub(super) fn channels_first(b: &mut Builder) {
    let types = Types::draw(b, &BY_WEIGHTS);
    let rows = Window::draw(b, &[3, 3, 5, 7]);
    let columns = Window::draw(b, &[3, 3, 5, 7]).padded(types.steps);
    let (channels, filters) = (b.pick(&[1, 3, 3, 4, 8]), b.extent(128));
    let x = b.tensor(&[channels, rows.input, columns.input], types.operands[0], Role::Input);
    let w = b.tensor(&[filters, channels, rows.kernel, columns.kernel], types.operands[1], Role::Constant);
    let sources = [rows.source(axis(0), axis(4)), columns.source(axis(1), axis(5))];
    let at = vec![axis(3), sources[0].clone(), sources[1].clone()];
    let [row, column] = sources;
    let load = bordered(b, &types, x, at, &[(&rows, row), (&columns, column)]);
    let value = product(b, load, widened(&types, w, vec![axis(2), axis(3), axis(4), axis(5)]));
    let over = [channels, rows.kernel, columns.kernel];
    let sum = b.sum_of(types.sum, &[rows.output, columns.output, filters], &over, value);
    store(
        b,
        &Product { sum, types, channel: 2, depth: over.iter().product(), read: types.operands, by_constants: true },
    );
}

pub(super) fn depthwise(b: &mut Builder) {
    let types = Types::draw(b, &BY_WEIGHTS);
    let windows = [Window::draw(b, &[3, 3, 5]), Window::draw(b, &[3, 3, 5])];
    let channels = b.extent(512);
    let [rows, columns] = &windows;
    let x = b.tensor(&[rows.input, columns.input, channels], types.operands[0], Role::Input);
    let is_short = b.chance(0.3);
    let dtype = if is_short { types.operands[1] } else { types.sum };
    let w = b.tensor(&[channels, rows.kernel, columns.kernel], dtype, Role::Constant);
    let at = vec![axis(2), axis(3), axis(4)];
    let weight = if is_short { widened(&types, w, at) } else { Expr::load(w, at) };
    let sources = [rows.source(axis(0), axis(3)), columns.source(axis(1), axis(4))];
    let at = vec![sources[0].clone(), sources[1].clone(), axis(2)];
    let images: Vec<(&Window, Index)> = windows.iter().zip(sources).collect();
    let load = bordered(b, &types, x, at, &images);
    let value = product(b, load, weight);
    let over = [rows.kernel, columns.kernel];
    let sum = b.sum_of(types.sum, &[rows.output, columns.output, channels], &over, value);
    store(
        b,
        &Product {
            sum,
            types,
            channel: 2,
            depth: over.iter().product(),
            read: [types.operands[0], dtype],
            by_constants: true,
        },
    );
}

/// ```text
/// sum 3 16 2 mul t0 a + * 32 c + * 2 d e
///   mul t1 b c sub cast f32 bitand cast i32 int 15 shr cast i32 t2 b c d cast i32 int * 4 e 8.0
/// ```
pub(super) fn blocks(b: &mut Builder) {
    let (rows, columns, count) = (b.pick(&[1, 1, 2, 8]), b.extent(4096), b.extent(128));
    let (bits, block) = (b.pick(&[4, 4, 8]), b.pick(&[16, 32, 32, 64]));
    let dtype = b.pick(&[DType::F32, DType::BF16]);
    let x = b.tensor(&[rows, count * block], dtype, Role::Input);
    let scales = b.tensor(&[columns, count], DType::F32, Role::Constant);
    let bytes = b.tensor(&[columns, count, block * bits / 8], DType::U8, Role::Constant);
    let byte = cast(DType::I32, Expr::load(bytes, vec![axis(1), axis(2), axis(3)]));
    let (over, weight, step) = match bits {
        4 => {
            let shift = cast(DType::I32, Expr::Index(axis(4).times(4)));
            let half = Expr::binary(Binary::BitAnd, integer(15), Expr::binary(Binary::ShiftRight, byte, shift));
            (vec![count, block / 2, 2], half, axis(3).times(2).plus(&axis(4)))
        }
        _ => (vec![count, block], byte, axis(3)),
    };
    let zero = match b.random.random_range(0..3) {
        0 => Expr::float(if bits == 4 { 8.0 } else { 128.0 }),
        1 => Expr::load(b.tensor(&[columns, count], DType::F32, Role::Constant), axes(3)[1..].to_vec()),
        _ => {
            let zeros = b.tensor(&[columns, count], DType::U8, Role::Constant);
            cast(DType::F32, Expr::load(zeros, axes(3)[1..].to_vec()))
        }
    };
    let read = Expr::load(x, vec![axis(0), axis(2).times(block).plus(&step)]);
    let read = if dtype == DType::BF16 { cast(DType::F32, read) } else { read };
    let weight = multiply(Expr::load(scales, axes(3)[1..].to_vec()), subtract(cast(DType::F32, weight), zero));
    let sum = b.sum_of(DType::F32, &[rows, columns], &over, multiply(read, weight));
    store_plain(b, sum);
}
