//! Operators of the domain `com.microsoft`, which exporters and ONNX Runtime's optimizer write: other names
//! and attributes for what ONNX's own operators compute.

use super::attention::{
    Heads, append_past, by_heads, causal, default_scale, join_heads, part_by_heads, scaled, with_mask,
};
use super::builder::Builder;
use super::contraction;
use super::elementwise;
use super::math::{add, float, literal, load, multiply, sigmoid, var, vars};
use super::normalization;
use super::operator::{Attribute, Operand, Operator, Problem};
use super::parts::{element, stack};
use super::reduction::{Axes, softmax_over};
use super::rotary::{Angles, rotate};
use crate::workload::{Combiner, DType, Expr, Index, TensorId};

/// The operator of ONNX's own domain that computes the rest, on other inputs.
pub(super) fn own(op: &Operator, kind: &str, inputs: &[Option<TensorId>]) -> Operator {
    let operand = |tensor: &Option<TensorId>| tensor.map(|tensor| Operand { tensor, only_reader: false });
    Operator { kind: kind.to_string(), inputs: inputs.iter().map(operand).collect(), ..op.clone() }
}

pub(super) fn check_float(builder: &Builder, input: usize, tensor: TensorId) -> Result<(), Problem> {
    match builder.dtype(tensor) {
        DType::F32 => Ok(()),
        dtype => Err(Problem::Type { input, dtype }),
    }
}

/// What ONNX's own operator gives for these inputs and attributes.
pub(super) fn call(
    builder: &mut Builder,
    op: &Operator,
    kind: &str,
    inputs: &[Option<TensorId>],
    attributes: &[(&str, Attribute)],
) -> Result<TensorId, Problem> {
    let attributes = attributes.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
    let plain = Operator { attributes, outputs: vec![true], ..own(op, kind, inputs) };
    super::lower(builder, &plain)?.first().copied().ok_or_else(|| Problem::Unsupported(kind.to_string()))
}

/// Attributes that an operator hands on, those of them that are there.
pub(super) fn handed<'a>(op: &Operator, names: &[&'a str]) -> Vec<(&'a str, Attribute)> {
    names.iter().filter_map(|name| Some((*name, op.attributes.get(*name)?.clone()))).collect()
}

/// The first input, with those at other positions added, where they are there.
fn sum_of(builder: &mut Builder, op: &Operator, others: &[usize]) -> Result<TensorId, Problem> {
    let x = op.input(0)?;
    check_float(builder, 0, x)?;
    let shape = builder.shape(x);
    let mut value = None;
    for position in others {
        let Some(other) = op.optional(*position) else { continue };
        check_float(builder, *position, other)?;
        if builder.broadcast_shape_of(&[x, other])? != shape {
            return Err(Problem::Shape(format!("{:?} cannot be added to {shape:?}", builder.shape(other))));
        }
        let own = value.unwrap_or_else(|| builder.broadcast(x, &shape));
        value = Some(add(own, builder.broadcast(other, &shape)));
    }
    value.map_or(Ok(x), |value| builder.map(shape, DType::F32, value))
}

/// `Gelu`, `BiasGelu`, `FastGelu` and `QuickGelu`.
pub fn gelu(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let x = sum_of(builder, op, &[1])?;
    if op.kind.ends_with("QuickGelu") {
        let (shape, alpha) = (builder.shape(x), op.float("alpha", 1.702)?);
        let x = builder.broadcast(x, &shape);
        let value = multiply(x.clone(), sigmoid(multiply(float(alpha), x)));
        return Ok(vec![builder.map(shape, DType::F32, value)?]);
    }
    let mut plain = own(op, "Gelu", &[Some(x)]);
    let form = if op.kind.ends_with("FastGelu") { "tanh" } else { "none" };
    plain.attributes.insert("approximate".to_string(), Attribute::Text(form.to_string()));
    elementwise::activation(builder, &plain)
}

/// `FusedMatMul`: a product of operands that are transposed on demand, times a factor.
pub fn fused_matmul(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    for name in ["transBatchA", "transBatchB"] {
        if op.flag(name, false)? {
            return Err(Problem::Unsupported(name.to_string()));
        }
    }
    let mut operands = Vec::new();
    for (position, name) in ["transA", "transB"].into_iter().enumerate() {
        let tensor = op.input(position)?;
        let mut shape = builder.shape(tensor);
        let rank = shape.len();
        let flips = op.flag(name, false)? && rank > 1;
        operands.push(Some(if flips {
            shape.swap(rank - 2, rank - 1);
            let mut at = vars(0, rank);
            at.swap(rank - 2, rank - 1);
            let dtype = builder.dtype(tensor);
            builder.map(shape, dtype, load(tensor, at))?
        } else {
            tensor
        }));
    }
    let product = contraction::matmul(builder, &own(op, "MatMul", &operands))?;
    let alpha = op.float("alpha", 1.0)?;
    let [result] = product[..] else { return Ok(product) };
    if alpha == 1.0 {
        return Ok(product);
    }
    check_float(builder, 0, result)?;
    let shape = builder.shape(result);
    let value = multiply(float(alpha), load(result, vars(0, shape.len())));
    Ok(vec![builder.map(shape, DType::F32, value)?])
}

/// `SkipLayerNormalization` and `SkipSimplifiedLayerNormalization`. Outputs: result, mean, deviation's
/// inverse, and the sum that is normalised.
pub fn skip_normalization(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let is_simple = op.kind.ends_with("SkipSimplifiedLayerNormalization");
    let (bias, shift, kind) = match is_simple {
        true => (3, None, "RMSNormalization"),
        false => (4, op.optional(3), "LayerNormalization"),
    };
    op.input(1)?;
    let sum = sum_of(builder, op, &[1, bias])?;
    if is_simple && (op.wants_output(1) || op.wants_output(2)) {
        return Err(Problem::Unsupported("statistics of a simplified normalisation".to_string()));
    }
    let mut plain = own(op, kind, &[Some(sum), Some(op.input(2)?), shift]);
    plain.attributes.entry("epsilon".to_string()).or_insert(Attribute::Float(1e-12));
    let mut results = normalization::layer(builder, &plain)?;
    let result = results[0];
    // what nobody reads only keeps the places of the outputs
    results.resize(3, result);
    results.push(sum);
    Ok(results)
}

/// `SimplifiedLayerNormalization`, a normalisation by the root of the mean square.
pub fn simplified_normalization(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    if op.wants_output(1) {
        return Err(Problem::Unsupported("statistics of a simplified normalisation".to_string()));
    }
    normalization::layer(builder, &own(op, "RMSNormalization", &[op.optional(0), op.optional(1)]))
}

/// `RotaryEmbedding`: as ONNX's, with the positions in front of the tables. A single position is that of each
/// batch's first element.
pub fn rotary_embedding(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (x, positions) = (op.input(0)?, op.input(1)?);
    let (cosine, sine) = (op.input(2)?, op.input(3)?);
    if op.float("scale", 1.0)? != 1.0 || op.flag("is_packed_batching", false)? {
        return Err(Problem::Unsupported("scale and is_packed_batching".to_string()));
    }
    let shape = builder.shape(x);
    let width = builder.shape(cosine).get(1).copied().unwrap_or(0).saturating_mul(2);
    let rotated = op.int("rotary_embedding_dim", 0)?;
    let heads = match (op.int("num_heads", 0)?, shape.as_slice()) {
        (0, [_, _, hidden]) if width > 0 && rotated == 0 => hidden / width,
        (heads, _) => heads,
    };
    let is_joined = shape.len() == 3;
    let x = if is_joined { by_heads(builder, x, heads, "num_heads")? } else { x };
    let by_head = builder.shape(x);
    let &[_, _, _, _] = by_head.as_slice() else {
        return Err(Problem::Shape(format!("{shape:?} is not batch, heads, time and depth")));
    };
    let positions = match (builder.shape(positions).as_slice(), builder.dtype(positions)) {
        ([1], DType::I64) => {
            let value = add(load(positions, vec![Index::constant(0)]), Expr::Index(var(1)));
            let of_x = builder.extents(x);
            builder.map_over(&[of_x[0].clone(), of_x[2].clone()], DType::I64, value)?
        }
        _ => positions,
    };
    let angles = Angles { cosine, sine, positions: Some(positions) };
    let rotated = Some(rotated).filter(|rotated| *rotated != 0);
    let result = rotate(builder, x, rotated, op.flag("interleaved", false)?, &angles)?;
    Ok(vec![if is_joined { join_heads(builder, result)? } else { result }])
}

/// `MultiHeadAttention` of query, key and value that are apart. Outputs: result, present key and value.
pub fn multi_head_attention(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    if (8..op.inputs.len()).any(|input| op.optional(input).is_some()) || op.wants_output(3) {
        return Err(Problem::Unsupported("MultiHeadAttention with a shared buffer, or its products".to_string()));
    }
    let count = op.optional_int("num_heads")?.ok_or(Problem::MissingAttribute("num_heads"))?;
    let mut parts = Vec::new();
    let mut offset = 0;
    for position in 0..3 {
        let tensor = op.input(position)?;
        check_float(builder, position, tensor)?;
        if builder.rank(tensor) == 4 && position > 0 && op.optional(3).is_none() {
            parts.push(tensor);
            continue;
        }
        let biased = with_part_of_bias(builder, tensor, op.optional(3), &mut offset)?;
        parts.push(by_heads(builder, biased, count, "num_heads")?);
    }
    let mut heads = Heads { query: parts[0], key: parts[1], value: parts[2] };
    let past = append_past(builder, &mut heads, op.optional(6), op.optional(7))?;
    let result = masked_attention(builder, op, &heads, &past, [Some(4), Some(5)])?;
    Ok(vec![result, heads.key, heads.value])
}

/// The result of heads, under a mask of keys and with a bias of scores, at these positions of the inputs.
fn masked_attention(
    builder: &mut Builder,
    op: &Operator,
    heads: &Heads,
    past: &Index,
    [mask, bias]: [Option<usize>; 2],
) -> Result<TensorId, Problem> {
    let shape = heads.scores_shape(builder)?;
    let (mut score, extents) = scaled_score(builder, op, heads)?;
    let given = |input: Option<usize>| input.and_then(|input| Some((input, op.optional(input)?)));
    if let Some((input, tensor)) = given(bias) {
        check_float(builder, input, tensor)?;
        score = with_mask(builder, score, tensor, &shape, &extents)?;
    }
    if let Some(mask) = given(mask) {
        score = with_padding(builder, op, score, mask, &shape)?;
    }
    if op.flag("unidirectional", false)? {
        score = causal(score, past);
    }
    let scores = builder.map_over(&extents, DType::F32, score)?;
    let weights = softmax_over(builder, scores, &Axes::new(&shape, vec![3]))?;
    let result = heads.weighted(builder, weights)?;
    join_heads(builder, result)
}

/// The product of query and key, scaled, and the extents of it.
pub(super) fn scaled_score(builder: &mut Builder, op: &Operator, heads: &Heads) -> Result<(Expr, Vec<Index>), Problem> {
    // 0 stands for the default, as where it is left out
    let scale = match op.float("scale", 0.0)? {
        0.0 => default_scale(builder, heads.query),
        scale => scale,
    };
    let product = heads.product(builder)?;
    let extents = builder.extents(product);
    Ok((scaled(load(product, vars(0, 4)), scale), extents))
}

/// `Attention`, whose query, key and value are one product of its input. Outputs: result, and present key and
/// value.
pub fn attention(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    if op.optional(6).is_some() {
        return Err(Problem::Unsupported("Attention of com.microsoft with a shared buffer".to_string()));
    }
    let (input, weights) = (op.input(0)?, op.input(1)?);
    let mut product = call(builder, op, "MatMul", &[Some(input), Some(weights)], &[])?;
    if let Some(bias) = op.optional(2) {
        product = call(builder, op, "Add", &[Some(product), Some(bias)], &[])?;
    }
    self_attention(builder, op, product, [Some(3), Some(5), Some(4)])
}

/// The result of a product that is query, key and value, and present key and value as one tensor; mask, bias
/// and past are inputs at these positions.
pub(super) fn self_attention(
    builder: &mut Builder,
    op: &Operator,
    product: TensorId,
    [mask, bias, past]: [Option<usize>; 3],
) -> Result<Vec<TensorId>, Problem> {
    if op.flag("do_rotary", false)? || op.flag("past_present_share_buffer", false)? {
        return Err(Problem::Unsupported("Attention of com.microsoft that rotates, or with a shared buffer".into()));
    }
    let count = op.optional_int("num_heads")?.ok_or(Problem::MissingAttribute("num_heads"))?;
    let hidden = builder.shape(product).last().copied().unwrap_or(0);
    if let Some(sizes) = op.ints("qkv_hidden_sizes")?.filter(|sizes| **sizes != [hidden / 3; 3]) {
        return Err(Problem::Unsupported(format!("qkv_hidden_sizes of {sizes:?}, which differ,")));
    }
    if count < 1 || hidden % count.saturating_mul(3) != 0 {
        return Err(Problem::AttributeValue { name: "num_heads", value: count.to_string() });
    }
    let depth = hidden / 3 / count;
    let mut part = |number: i64| part_by_heads(builder, product, number * count, count, depth);
    let (query, key, value) = (part(0)?, part(1)?, part(2)?);
    let mut heads = Heads { query, key, value };
    let past = match past.and_then(|past| op.optional(past)) {
        Some(past) if builder.shape(past).first() != Some(&2) => {
            return Err(Problem::Shape(format!("a past of shape {:?} is no key and value", builder.shape(past))));
        }
        Some(past) => vec![element(builder, past, 0, 0)?, element(builder, past, 0, 1)?],
        None => Vec::new(),
    };
    let past = append_past(builder, &mut heads, past.first().copied(), past.get(1).copied())?;
    let result = masked_attention(builder, op, &heads, &past, [mask, bias])?;
    let present = if op.wants_output(1) { Some(stack(builder, &[heads.key, heads.value], 0)?) } else { None };
    Ok([Some(result), present].into_iter().flatten().collect())
}

/// `EmbedLayerNormalization`: a sum of embeddings of words, positions and segments, normalised. Outputs:
/// result, how many words each entry has, and the sum.
pub fn embed_normalization(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let (words, table) = (op.input(0)?, op.input(2)?);
    let of_words = builder.extents(words);
    if of_words.len() != 2 {
        return Err(Problem::Shape(format!("words of shape {:?} are not batch and time", builder.shape(words))));
    }
    let mut sum = call(builder, op, "Gather", &[Some(table), Some(words)], &[])?;
    let extents = builder.extents(sum);
    let position = match op.optional(8) {
        Some(places) => call(builder, op, "Gather", &[Some(op.input(3)?), Some(places)], &[])?,
        None => first_rows(builder, op.input(3)?, &extents)?,
    };
    sum = call(builder, op, "Add", &[Some(sum), Some(position)], &[])?;
    if let Some(segments) = op.optional(1) {
        let own = call(builder, op, "Gather", &[Some(op.input(4)?), Some(segments)], &[])?;
        sum = call(builder, op, "Add", &[Some(sum), Some(own)], &[])?;
    }
    if builder.extents(sum) != extents {
        return Err(Problem::Shape(format!("embeddings add up to {:?}", builder.shape(sum))));
    }
    let epsilon = ("epsilon", Attribute::Float(op.float("epsilon", 1e-12)? as f32));
    let inputs = [Some(sum), Some(op.input(5)?), Some(op.input(6)?)];
    let result = call(builder, op, "LayerNormalization", &inputs, &[epsilon])?;
    let counted = match op.optional(7) {
        Some(mask) if builder.dtype(mask) == DType::I32 && builder.extents(mask) == of_words => {
            let one = super::math::equal(load(mask, vec![var(0), var(1)]), literal(DType::I32, 1.0));
            let value = Expr::select(one, literal(DType::I32, 1.0), literal(DType::I32, 0.0));
            let [batch, time] = [0, 1].map(|d| of_words[d].clone());
            builder.reduce_over(&[batch], &[time], Combiner::Sum, DType::I32, value)?
        }
        Some(mask) => return Err(Problem::Shape(format!("a mask of shape {:?}", builder.shape(mask)))),
        None => builder.map_over(&of_words[..1], DType::I32, literal(DType::I32, 0.0))?,
    };
    Ok(vec![result, counted, sum])
}

/// The first rows of `[rows, width]`, as many as `[batch, time, width]` has times.
fn first_rows(builder: &mut Builder, table: TensorId, extents: &[Index]) -> Result<TensorId, Problem> {
    let shape = builder.shape(table);
    let (&[rows, _], [_, time, _]) = (shape.as_slice(), extents) else {
        return Err(Problem::Shape(format!("positions of shape {shape:?} are not rows and width")));
    };
    if builder.is_run_time(table) {
        return Err(builder.unsupported_extents());
    }
    match time.as_constant() {
        Some(time) if time <= rows => {}
        Some(time) => return Err(Problem::Shape(format!("{rows} positions for {time} words"))),
        None => builder.formulas.require(&time.clone().times(-1).plus_constant(rows), "how many positions are left")?,
    }
    let width = builder.extents(table)[1].clone();
    let dtype = builder.dtype(table);
    builder.map_over(&[time.clone(), width], dtype, load(table, vars(0, 2)))
}

/// `[batch, time, hidden]` plus its part of the bias, which begins at `offset`.
fn with_part_of_bias(
    builder: &mut Builder,
    tensor: TensorId,
    bias: Option<TensorId>,
    offset: &mut i64,
) -> Result<TensorId, Problem> {
    let Some(bias) = bias else { return Ok(tensor) };
    let (shape, own) = (builder.shape(tensor), builder.shape(bias));
    let start = *offset;
    let (&[_, _, hidden], &[extent]) = (shape.as_slice(), own.as_slice()) else {
        return Err(Problem::Shape(format!("a bias of shape {own:?} does not fit {shape:?}")));
    };
    *offset += hidden;
    if *offset > extent || builder.dtype(bias) != DType::F32 {
        return Err(Problem::Shape(format!("a bias of shape {own:?} does not fit {shape:?}")));
    }
    let value = add(load(tensor, vars(0, 3)), load(bias, vec![var(2).plus_constant(start)]));
    builder.map(shape, DType::F32, value)
}

/// Columns where a mask of `[batch, columns]` is 0, or those from an entry's length on, get the filter's
/// value added. The mask comes with its position among the inputs.
fn with_padding(
    builder: &Builder,
    op: &Operator,
    score: Expr,
    (input, mask): (usize, TensorId),
    scores_shape: &[i64],
) -> Result<Expr, Problem> {
    let own = builder.shape(mask);
    let dtype = builder.dtype(mask);
    if dtype != DType::I32 {
        return Err(Problem::Type { input, dtype });
    }
    let is_out = if own == [scores_shape[0], scores_shape[3]] {
        super::math::equal(load(mask, vec![var(0), var(3)]), literal(dtype, 0.0))
    } else if own == [scores_shape[0]] {
        let length = super::math::cast(dtype, DType::I64, load(mask, vec![var(0)]));
        super::math::less_equal(length, Expr::Index(var(3)))
    } else {
        return Err(Problem::Unsupported(format!("a key padding mask of shape {own:?}")));
    };
    let filter = op.float("mask_filter_value", -10000.0)?;
    Ok(add(score, Expr::select(is_out, float(filter), float(0.0))))
}
