//! Products by weights of 4 and 8 bits, which are widened where they are read: with few rows, a product takes
//! as long as reading its weights does.

use super::builder::Builder;
use super::contrib::check_float;
use super::math::{add, cast, float, literal, load, multiply, subtract, var, vars, within};
use super::operator::{Operator, Problem};
use crate::graph::TensorData;
use crate::workload::{Binary, Combiner, DType, Expr, Index, TensorId};

/// `MatMulNBits`: `x [.., depth] · (scale · (weight - zero point)) [columns, depth]`.
///
/// The reduction runs over blocks of the depth, the bytes of a block, and the numbers of a byte, so that
/// every address is affine, and what a block shares does not depend on its steps.
pub fn matmul(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let layout = Layout::new(op)?;
    let Layout { depth, columns, block, blocks, .. } = layout;
    let (x, packed, scales) = (op.input(0)?, op.input(1)?, op.input(2)?);
    check_float(builder, 0, x)?;
    check_float(builder, 2, scales)?;
    check_bytes(builder, 1, packed)?;
    let mut shape = builder.shape(x);
    let row = block / layout.per_byte();
    if shape.last() != Some(&depth) || builder.shape(packed) != [columns, blocks, row] {
        return Err(layout.misfit());
    }
    let rank = shape.len();
    shape[rank - 1] = columns;
    let (column, of_block, byte, part) = (var(rank - 1), var(rank), var(rank + 1), layout.part_axis(rank + 2));
    let weight = load(packed, vec![column.clone(), of_block.clone(), byte.clone()]);
    let weight = cast(DType::I32, DType::F32, layout.part_of(weight, &part));
    let at_block = [column, of_block.clone()];
    let zero = match op.optional(3) {
        Some(zeros) => layout.zero_point(builder, zeros, at_block.clone())?,
        None => float(f64::from(1 << (layout.bits - 1))),
    };
    let scale = layout.of_blocks(builder, scales, at_block)?;
    let step = of_block.times(block).plus(&byte.times(layout.per_byte())).plus(&part);
    let mut at = vars(0, rank - 1);
    at.push(step.clone());
    // of the last block the weights are whole
    let is_inside = if blocks * block == depth { vec![] } else { vec![within(step, 0, depth)] };
    let x = Expr::guard(is_inside, load(x, at), float(0.0));
    let value = multiply(x, multiply(subtract(weight, zero), scale));
    let mut steps = vec![blocks, row];
    steps.extend((layout.per_byte() > 1).then_some(layout.per_byte()));
    let product = builder.reduce(shape, steps, Combiner::Sum, DType::F32, value)?;
    with_bias(builder, op, product, &layout)
}

fn with_bias(
    builder: &mut Builder,
    op: &Operator,
    product: TensorId,
    layout: &Layout,
) -> Result<Vec<TensorId>, Problem> {
    let Some(bias) = op.optional(5) else { return Ok(vec![product]) };
    check_float(builder, 5, bias)?;
    if builder.shape(bias) != [layout.columns] {
        return Err(layout.misfit());
    }
    let shape = builder.shape(product);
    let value = add(load(product, vars(0, shape.len())), builder.broadcast(bias, &shape));
    Ok(vec![builder.map(shape, DType::F32, value)?])
}

fn check_bytes(builder: &Builder, input: usize, tensor: TensorId) -> Result<(), Problem> {
    match builder.dtype(tensor) {
        DType::U8 => Ok(()),
        dtype => Err(Problem::Type { input, dtype }),
    }
}

/// How the weights lie: `[columns, blocks, bytes of a block]`.
struct Layout {
    depth: i64,
    columns: i64,
    /// Steps of the depth that share a scale.
    block: i64,
    blocks: i64,
    bits: i64,
}

impl Layout {
    fn new(op: &Operator) -> Result<Layout, Problem> {
        let required = |name: &'static str| op.optional_int(name)?.ok_or(Problem::MissingAttribute(name));
        let (depth, columns, block) = (required("K")?, required("N")?, required("block_size")?);
        Builder::check_shape(&[depth, columns, block])?;
        let bits = op.int("bits", 4)?;
        if !matches!(bits, 4 | 8) || block < 16 || block % 2 != 0 {
            return Err(Problem::Unsupported(format!("weights of {bits} bits in blocks of {block}")));
        }
        if op.optional(4).is_some() {
            return Err(Problem::Unsupported("MatMulNBits with g_idx".to_string()));
        }
        Ok(Layout { depth, columns, block, blocks: (depth + block - 1) / block, bits })
    }

    fn misfit(&self) -> Problem {
        Problem::Shape(format!("inputs of MatMulNBits do not fit K = {}, N = {}", self.depth, self.columns))
    }

    fn per_byte(&self) -> i64 {
        8 / self.bits
    }

    /// The axis of the numbers of a byte, where it has several.
    fn part_axis(&self, axis: usize) -> Index {
        if self.per_byte() > 1 { var(axis) } else { Index::constant(0) }
    }

    /// A number of a byte, as an i32; the first is in the low bits.
    fn part_of(&self, byte: Expr, part: &Index) -> Expr {
        if self.bits == 8 { cast(DType::U8, DType::I32, byte) } else { nibble(byte, part) }
    }

    /// What a table of `[columns, blocks]`, or a flat one, has of a block of a column.
    fn of_blocks(&self, builder: &Builder, table: TensorId, at: [Index; 2]) -> Result<Expr, Problem> {
        self.of_rows(builder, table, self.blocks, at)
    }

    /// The same for rows of another width.
    fn of_rows(&self, builder: &Builder, table: TensorId, row: i64, at: [Index; 2]) -> Result<Expr, Problem> {
        let [column, place] = at;
        match builder.shape(table).as_slice() {
            [rows, extent] if [*rows, *extent] == [self.columns, row] => Ok(load(table, vec![column, place])),
            [all] if *all == self.columns * row => Ok(load(table, vec![column.times(row).plus(&place)])),
            _ => Err(self.misfit()),
        }
    }

    /// The zero point of a block, as an f32: floats, or numbers as short as the weights, which become a byte
    /// each.
    fn zero_point(&self, builder: &mut Builder, zeros: TensorId, at: [Index; 2]) -> Result<Expr, Problem> {
        if builder.dtype(zeros) == DType::F32 {
            return self.of_blocks(builder, zeros, at);
        }
        check_bytes(builder, 3, zeros)?;
        let row = (self.blocks + self.per_byte() - 1) / self.per_byte();
        let [column, place] = [var(0), var(1)];
        let byte = self.of_rows(builder, zeros, row, [column, place.clone().floor_div(self.per_byte())])?;
        let point = cast(DType::I32, DType::U8, self.part_of(byte, &place.modulo(self.per_byte())));
        let points = builder.map(vec![self.columns, self.blocks], DType::U8, point)?;
        Ok(cast(DType::U8, DType::F32, load(points, at.to_vec())))
    }
}

/// One of the two numbers in a byte, as an i32.
fn nibble(byte: Expr, part: &Index) -> Expr {
    let by = cast(DType::I64, DType::I32, Expr::Index(part.clone().times(4)));
    let shifted = Expr::binary(Binary::ShiftRight, cast(DType::U8, DType::I32, byte), by);
    Expr::binary(Binary::BitAnd, shifted, literal(DType::I32, 15.0))
}

/// Constants of integers of four bits, two in a byte.
pub(super) struct Nibbles {
    /// Along `axis` half as long as the constants; the first of two numbers is in the low bits.
    bytes: TensorId,
    axis: usize,
    /// What 0 stands for.
    least: i64,
}

/// A constant of 8-bit integers that four bits are enough for, two in a byte along an axis of blocks: weights
/// in blocks are of four bits as a rule, and ONNX's types of four bits are read as those of eight.
pub(super) fn nibbles(builder: &mut Builder, tensor: TensorId, (axis, block): (usize, i64)) -> Option<Nibbles> {
    let data = builder.data(tensor)?;
    let (shape, dtype) = (data.shape.clone(), data.dtype);
    let extent = *shape.get(axis)?;
    if dtype.bytes() != 1 || dtype == DType::Bool || block % 2 != 0 || extent % block != 0 {
        return None;
    }
    let value = |byte: u8| if dtype == DType::I8 { i64::from(byte.cast_signed()) } else { i64::from(byte) };
    let least = if dtype == DType::I8 { -8 } else { 0 };
    if !data.bytes.iter().all(|byte| (least..least + 16).contains(&value(*byte))) {
        return None;
    }
    let inner: usize = shape[axis + 1..].iter().product::<i64>() as usize;
    let number = |byte: u8| (value(byte) - least) as u8;
    let pair = |rows: &[u8]| -> Vec<u8> {
        let (low, high) = rows.split_at(inner);
        low.iter().zip(high).map(|(low, high)| number(*low) | number(*high) << 4).collect()
    };
    let bytes: Vec<u8> = data.bytes.chunks_exact((2 * inner).max(1)).flat_map(pair).collect();
    let mut halved = shape;
    halved[axis] = extent / 2;
    builder.reserve(&halved, DType::U8).ok()?;
    let bytes = builder.constant(TensorData { shape: halved, dtype: DType::U8, bytes: bytes.into() });
    Some(Nibbles { bytes, axis, least })
}

impl Nibbles {
    /// The number at a place of the constants, as an f32.
    pub(super) fn read(&self, mut at: Vec<Index>) -> Expr {
        let place = at[self.axis].clone();
        at[self.axis] = place.clone().floor_div(2);
        let number = cast(DType::I32, DType::F32, nibble(load(self.bytes, at), &place.modulo(2)));
        if self.least == 0 { number } else { add(number, float(self.least as f64)) }
    }
}
