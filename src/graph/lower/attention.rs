//! Attention and rotary position embeddings.
//!
//! Attention becomes the stages of the pattern that exporters write (product, softmax, product), so that it
//! is fused as that is.

use super::builder::Builder;
use super::convolution::check_floats;
use super::gather::check_index_type;
use super::layout::{concatenated, permute, reshape_to};
use super::math::{add, divide, float, gathered, load, multiply, subtract, tanh, var, vars, within};
use super::operator::{Operator, Problem};
use super::reduction::softmax_over;
use crate::workload::{Combiner, DType, Expr, Index, TensorId};

/// Positions of the inputs of `Attention`.
const MASK: usize = 3;
const PAST: [usize; 2] = [4, 5];
const LENGTHS: usize = 6;

/// Extents of an attention; heads of queries come in groups that share one of keys and values.
struct Extents {
    batch: i64,
    heads: i64,
    /// Heads of queries for one of keys and values.
    group: i64,
    queries: i64,
    /// Keys of before, which come first.
    past: i64,
    keys: i64,
    /// Elements of a key and of a query, and of a value.
    key_width: i64,
    value_width: i64,
}

/// `Attention` of opset 23 and 24. Results: the attention, keys and values with those of before, and the
/// scores as the mode says.
pub fn attention(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let inputs = [op.input(0)?, op.input(1)?, op.input(2)?];
    check_floats(builder, &inputs)?;
    let is_flat = builder.rank(inputs[0]) == 3;
    let (of_queries, of_keys) = (op.int("q_num_heads", 0)?, op.int("kv_num_heads", 0)?);
    let query = by_heads(builder, inputs[0], of_queries)?;
    let mut cached = [by_heads(builder, inputs[1], of_keys)?, by_heads(builder, inputs[2], of_keys)?];
    let mut past = 0;
    for (own, position) in cached.iter_mut().zip(PAST) {
        let Some(before) = op.optional(position) else { continue };
        let (shape, new) = (builder.shape(before), builder.shape(*own));
        let fits = shape.len() == 4 && (0..4).all(|d| d == 2 || shape[d] == new[d]);
        if !fits || builder.dtype(before) != DType::F32 {
            return Err(Problem::Shape(format!("input {position} of shape {shape:?} does not fit {new:?}")));
        }
        past = shape[2];
        *own = concatenated(builder, vec![before, *own], 2)?;
    }
    let [key, value] = cached;
    let extents = Extents::new(builder, [query, key, value], past)?;

    let scale = op.float("scale", 1.0 / (extents.key_width.max(1) as f64).sqrt())?;
    let products = extents.products(builder, query, key)?;
    let all = vec![extents.batch, extents.heads, extents.queries, extents.keys];
    let scaled = multiply(load(products, vars(0, 4)), float(scale));
    let softcap = op.float("softcap", 0.0)?;
    let capped = match softcap > 0.0 {
        true => multiply(tanh(divide(scaled.clone(), float(softcap))), float(softcap)),
        false => scaled.clone(),
    };
    let masked = masked(builder, op, &extents, capped.clone())?;
    let scores = builder.map(all.clone(), DType::F32, masked)?;
    let weights = softmax_over(builder, scores, vec![3], false)?;

    let spatial = vec![extents.batch, extents.heads, extents.queries, extents.value_width];
    let at = [var(0), extents.shared_head(), var(4), var(3)].to_vec();
    let summand = multiply(load(weights, vec![var(0), var(1), var(2), var(4)]), load(value, at));
    let mut result = builder.reduce(spatial, vec![extents.keys], Combiner::Sum, DType::F32, summand)?;
    if is_flat {
        result = permute(builder, result, &[0, 2, 1, 3])?;
        result =
            reshape_to(builder, result, vec![extents.batch, extents.queries, extents.heads * extents.value_width])?;
    }
    let told = match op.int("qk_matmul_output_mode", 0)? {
        _ if !op.wants_output(3) => scores,
        0 => builder.map(all, DType::F32, scaled)?,
        1 => builder.map(all, DType::F32, capped)?,
        2 => scores,
        3 => weights,
        other => return Err(Problem::AttributeValue { name: "qk_matmul_output_mode", value: other.to_string() }),
    };
    Ok(vec![result, key, value, told])
}

/// `[batch, length, heads · width]` as `[batch, heads, length, width]`; what has four dimensions is that
/// already.
fn by_heads(builder: &mut Builder, tensor: TensorId, heads: i64) -> Result<TensorId, Problem> {
    let shape = builder.shape(tensor);
    match *shape.as_slice() {
        [_, _, _, _] => Ok(tensor),
        [batch, length, all] if heads > 0 && all % heads == 0 => {
            let split = reshape_to(builder, tensor, vec![batch, length, heads, all / heads])?;
            permute(builder, split, &[0, 2, 1, 3])
        }
        _ => Err(Problem::Shape(format!("{shape:?} does not consist of {heads} heads"))),
    }
}

impl Extents {
    /// Of `[batch, heads, length, width]`, all three.
    fn new(builder: &Builder, tensors: [TensorId; 3], past: i64) -> Result<Extents, Problem> {
        let [q, k, v] = tensors.map(|tensor| builder.shape(tensor));
        let fits = [&q, &k, &v].iter().all(|shape| shape.len() == 4 && shape[0] == q[0])
            && k[..3] == v[..3]
            && q[3] == k[3]
            && k[1] > 0
            && q[1] % k[1] == 0;
        if !fits {
            let reason = format!("queries {q:?}, keys {k:?} and values {v:?} do not fit one another");
            return Err(Problem::Shape(reason));
        }
        Ok(Extents {
            batch: q[0],
            heads: q[1],
            group: q[1] / k[1],
            queries: q[2],
            past,
            keys: k[2],
            key_width: q[3],
            value_width: v[3],
        })
    }

    /// The head of keys and values for the head of queries that axis 1 stands for.
    fn shared_head(&self) -> Index {
        if self.group == 1 { var(1) } else { var(1).floor_div(self.group) }
    }

    /// Products of queries and keys, `[batch, heads, queries, keys]`.
    fn products(&self, builder: &mut Builder, query: TensorId, key: TensorId) -> Result<TensorId, Problem> {
        builder.materialize(query)?;
        builder.materialize(key)?;
        let spatial = vec![self.batch, self.heads, self.queries, self.keys];
        let at = [var(0), self.shared_head(), var(3), var(4)].to_vec();
        let product = multiply(load(query, vec![var(0), var(1), var(2), var(4)]), load(key, at));
        builder.reduce(spatial, vec![self.key_width], Combiner::Sum, DType::F32, product)
    }
}

/// A score, with all that masks it: what must not be looked at is minus infinity.
fn masked(builder: &Builder, op: &Operator, extents: &Extents, score: Expr) -> Result<Expr, Problem> {
    let nothing = || float(f64::NEG_INFINITY);
    let mut value = score;
    if let Some(mask) = op.optional(MASK) {
        let (shape, dtype) = (builder.shape(mask), builder.dtype(mask));
        let whole = [extents.batch, extents.heads, extents.queries, extents.keys];
        let skipped = whole.len().checked_sub(shape.len());
        let misfit = || Problem::Shape(format!("a mask of shape {shape:?} does not fit {whole:?}"));
        let (Some(skipped), Some(length)) = (skipped, shape.last().copied()) else { return Err(misfit()) };
        let fits = |d: usize| shape[d] == 1 || shape[d] == whole[skipped + d];
        if !(0..shape.len() - 1).all(fits) || length > extents.keys {
            return Err(misfit());
        }
        let place = |d: usize| {
            let is_broadcast = shape[d] == 1 && d + 1 < shape.len();
            if is_broadcast { Index::constant(0) } else { var(skipped + d) }
        };
        let read = load(mask, (0..shape.len()).map(place).collect());
        value = match dtype {
            DType::F32 => add(value, read),
            DType::Bool => Expr::select(read, value, nothing()),
            dtype => return Err(Problem::Type { input: MASK, dtype }),
        };
        if length < extents.keys {
            value = Expr::guard(vec![within(var(3), 0, length)], value, nothing());
        }
    }
    if op.flag("is_causal", false)? {
        let ahead = var(2).minus(&var(3)).plus_constant(extents.past);
        value = Expr::guard(vec![within(ahead, 0, i64::MAX)], value, nothing());
    }
    if let Some(lengths) = op.optional(LENGTHS) {
        check_index_type(builder, LENGTHS, lengths)?;
        if builder.shape(lengths) != [extents.batch] {
            let found = builder.shape(lengths);
            return Err(Problem::Shape(format!("lengths of shape {found:?} do not fit a batch of {}", extents.batch)));
        }
        let left = Index::value(load(lengths, vec![var(0)])).minus(&var(3));
        value = Expr::guard(vec![within(left, 1, i64::MAX)], value, nothing());
    }
    Ok(value)
}

/// `RotaryEmbedding`: pairs of elements of each head are turned by an angle of their position. Pairs are
/// neighbours, or elements of both halves.
pub fn rotary_embedding(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (input, cosines, sines) = (op.input(0)?, op.input(1)?, op.input(2)?);
    check_floats(builder, &[input, cosines, sines])?;
    let own = builder.shape(input);
    let x = by_heads(builder, input, op.int("num_heads", 0)?)?;
    let shape = builder.shape(x);
    let (batch, heads, length, width) = (shape[0], shape[1], shape[2], shape[3]);
    let turned = match op.int("rotary_embedding_dim", 0)? {
        0 => width,
        turned => turned,
    };
    if turned % 2 != 0 || !(0..=width).contains(&turned) {
        return Err(Problem::AttributeValue { name: "rotary_embedding_dim", value: turned.to_string() });
    }
    let half = turned / 2;
    let row = rows(builder, op, [batch, length, half])?;
    let is_interleaved = op.flag("interleaved", false)?;
    let at = |d: Index| load(x, vec![var(0), var(1), var(2), d]);
    let d = var(3);
    // the number of a pair, and its two elements
    let (pair, low, high) = match is_interleaved {
        true => {
            let pair = d.clone().floor_div(2);
            (pair.clone(), pair.clone().times(2), pair.times(2).plus_constant(1))
        }
        false => (d.clone().modulo(half.max(1)), d.clone().plus_constant(-half), d.clone().plus_constant(half)),
    };
    let angle = |cache: TensorId| load(cache, [row.clone(), vec![pair.clone()]].concat());
    let first = subtract(multiply(angle(cosines), at(d.clone())), multiply(angle(sines), at(high)));
    let second = add(multiply(angle(sines), at(low)), multiply(angle(cosines), at(d.clone())));
    let rest = at(d.clone());
    let value = match is_interleaved {
        true => {
            let turn = Expr::guard(vec![within(d.clone().modulo(2), 0, 1)], first, second);
            if turned < width { Expr::guard(vec![within(d, 0, turned)], turn, rest) } else { turn }
        }
        false => {
            let upper = Expr::guard(vec![within(d.clone(), half, turned)], second, rest);
            Expr::guard(vec![within(d, 0, half)], first, upper)
        }
    };
    let mut result = builder.map(shape, DType::F32, value)?;
    if own.len() == 3 {
        result = permute(builder, result, &[0, 2, 1, 3])?;
        result = reshape_to(builder, result, vec![batch, length, heads * width])?;
    }
    Ok(vec![result])
}

/// Where the tables of cosines and sines have the row of a position: at its number, which an input gives, or
/// at its place in the batch.
fn rows(builder: &Builder, op: &Operator, [batch, length, half]: [i64; 3]) -> Result<Vec<Index>, Problem> {
    let tables = [op.input(1)?, op.input(2)?].map(|cache| builder.shape(cache));
    let misfit = || Problem::Shape(format!("tables of shape {:?} and {:?} do not fit", tables[0], tables[1]));
    if tables[0] != tables[1] {
        return Err(misfit());
    }
    match op.optional(3) {
        None if tables[0] == [batch, length, half] => Ok(vec![var(0), var(2)]),
        Some(positions) if tables[0].len() == 2 && tables[0][0] > 0 && tables[0][1] == half => {
            check_index_type(builder, 3, positions)?;
            if builder.shape(positions) != [batch, length] {
                return Err(Problem::Shape(format!("positions of shape {:?} do not fit", builder.shape(positions))));
            }
            Ok(vec![gathered(load(positions, vec![var(0), var(2)]), tables[0][0])])
        }
        _ => Err(misfit()),
    }
}
