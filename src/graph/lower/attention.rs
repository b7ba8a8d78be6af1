//! Attention as one operator: the stages of the product, softmax and product that exporters write otherwise,
//! so that it is fused as those are.

use super::builder::{Builder, broadcast_shape};
use super::math::{add, cast, divide, float, less, load, multiply, tanh, var, vars, within};
use super::operator::{Operator, Problem};
use super::parts::join;
use super::reduction::{Axes, softmax_over};
use crate::workload::{Combiner, DType, Expr, Index, TensorId};

/// Query, key and value by heads.
pub(super) struct Heads {
    /// `[batch, heads, rows, depth]`
    pub query: TensorId,
    /// `[batch, groups, columns, depth]`
    pub key: TensorId,
    /// `[batch, groups, columns, width]`
    pub value: TensorId,
}

/// `Attention`. Outputs: result, present key and value, and the scores at the point that
/// `qk_matmul_output_mode` names.
pub fn attention(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let inputs = [op.input(0)?, op.input(1)?, op.input(2)?];
    let ranks = inputs.map(|input| builder.rank(input));
    if ranks[1] != ranks[0] || ranks[2] != ranks[0] {
        return Err(Problem::Shape(format!("query, key and value have {ranks:?} dimensions")));
    }
    check_precision(op, "softmax_precision")?;
    let mut heads = Heads {
        query: split_heads(builder, inputs[0], op, "q_num_heads")?,
        key: split_heads(builder, inputs[1], op, "kv_num_heads")?,
        value: split_heads(builder, inputs[2], op, "kv_num_heads")?,
    };
    let past = append_past(builder, &mut heads, op.optional(4), op.optional(5))?;
    let shape = heads.scores_shape(builder)?;
    let scale = op.float("scale", default_scale(builder, heads.query))?;
    let product = heads.product(builder)?;
    let extents = builder.extents(product);
    let scaled = scaled(load(product, vars(0, 4)), scale);
    let cap = op.float("softcap", 0.0)?;
    let capped = if cap > 0.0 { soft_cap(scaled.clone(), cap) } else { scaled.clone() };
    let mut masked = capped.clone();
    if let Some(mask) = op.optional(3) {
        masked = with_mask(builder, masked, mask, &shape, &extents)?;
    }
    if op.flag("is_causal", false)? {
        masked = causal(masked, &past);
    }
    if let Some(lengths) = op.optional(6) {
        masked = with_lengths(builder, masked, lengths, &extents[0])?;
    }
    let scores = builder.map_over(&extents, DType::F32, masked)?;
    let weights = softmax_over(builder, scores, &Axes::new(&shape, vec![3]))?;
    let mut result = heads.weighted(builder, weights)?;
    if ranks[0] == 3 {
        result = join_heads(builder, result)?;
    }
    let mut results = vec![result, heads.key, heads.value];
    if op.wants_output(3) {
        results.push(match op.int("qk_matmul_output_mode", 0)? {
            0 => builder.map_over(&extents, DType::F32, scaled)?,
            1 => builder.map_over(&extents, DType::F32, capped)?,
            2 => scores,
            3 => weights,
            mode => return Err(Problem::AttributeValue { name: "qk_matmul_output_mode", value: mode.to_string() }),
        });
    }
    Ok(results)
}

/// `FlexAttention` without functions of its scores and weights: import refuses those, which are subgraphs.
pub fn flex_attention(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    check_precision(op, "softmax_precision")?;
    let heads = Heads { query: op.input(0)?, key: op.input(1)?, value: op.input(2)? };
    let shape = heads.scores_shape(builder)?;
    let scale = op.float("scale", default_scale(builder, heads.query))?;
    let product = heads.product(builder)?;
    let scores = builder.map(shape.clone(), DType::F32, scaled(load(product, vars(0, 4)), scale))?;
    let weights = softmax_over(builder, scores, &Axes::new(&shape, vec![3]))?;
    Ok(vec![heads.weighted(builder, weights)?])
}

impl Heads {
    /// `[batch, heads, rows, columns]`, once the three operands are known to fit.
    pub fn scores_shape(&self, builder: &mut Builder) -> Result<Vec<i64>, Problem> {
        self.check_run_time(builder)?;
        for (input, tensor) in [self.query, self.key, self.value].into_iter().enumerate() {
            let dtype = builder.dtype(tensor);
            if dtype != DType::F32 {
                return Err(Problem::Type { input, dtype });
            }
        }
        let (query, key, value) = (builder.shape(self.query), builder.shape(self.key), builder.shape(self.value));
        let fits = match (query.as_slice(), key.as_slice(), value.as_slice()) {
            ([qb, qh, _, qd], [kb, kh, kt, kd], [vb, vh, vt, _]) => {
                qb == kb && kb == vb && kh == vh && kt == vt && qd == kd && *kh > 0 && qh % kh == 0
            }
            _ => false,
        };
        if !fits {
            return Err(Problem::Shape(format!("query {query:?}, key {key:?} and value {value:?} do not fit")));
        }
        Ok(vec![query[0], query[1], query[2], key[2]])
    }

    /// Heads and depths are fixed; what else operands share is the same in every run.
    fn check_run_time(&self, builder: &mut Builder) -> Result<(), Problem> {
        let operands = [self.query, self.key, self.value];
        if !operands.iter().any(|tensor| builder.is_run_time(*tensor)) || operands.iter().any(|t| builder.rank(*t) != 4)
        {
            return Ok(());
        }
        if operands.iter().any(|tensor| [1, 3].iter().any(|d| builder.tensor(*tensor).extents.get(*d).is_some())) {
            return Err(Problem::Unsupported("attention with run-time heads or depths".to_string()));
        }
        let misfit = || Problem::Shape("query, key and value do not fit one another".to_string());
        let pairs =
            [((self.query, 0), (self.key, 0)), ((self.key, 0), (self.value, 0)), ((self.key, 2), (self.value, 2))];
        pairs.into_iter().try_for_each(|(a, b)| builder.unify_dimensions(a, b, misfit))
    }

    /// The head of keys and values that belongs to a head of queries, which is axis 1.
    fn group(&self, builder: &Builder) -> Index {
        let (heads, groups) = (builder.shape(self.query)[1], builder.shape(self.key)[1]);
        var(1).floor_div((heads / groups).max(1))
    }

    /// Query times key, of [`Heads::scores_shape`].
    pub fn product(&self, builder: &mut Builder) -> Result<TensorId, Problem> {
        let shape = self.scores_shape(builder)?;
        let depth = builder.shape(self.query)[3];
        let query = load(self.query, vec![var(0), var(1), var(2), var(4)]);
        let key = load(self.key, vec![var(0), self.group(builder), var(3), var(4)]);
        builder.reduce(shape, vec![depth], Combiner::Sum, DType::F32, multiply(query, key))
    }

    /// Weights times value: `[batch, heads, rows, width]`.
    pub fn weighted(&self, builder: &mut Builder, weights: TensorId) -> Result<TensorId, Problem> {
        let mut shape = builder.shape(weights);
        let columns = shape[3];
        shape[3] = builder.shape(self.value)[3];
        let weight = load(weights, vec![var(0), var(1), var(2), var(4)]);
        let value = load(self.value, vec![var(0), self.group(builder), var(4), var(3)]);
        builder.reduce(shape, vec![columns], Combiner::Sum, DType::F32, multiply(weight, value))
    }
}

/// The softmax is computed in f32, whatever float is asked for.
fn check_precision(op: &Operator, name: &'static str) -> Result<(), Problem> {
    match op.optional_int(name)? {
        None => Ok(()),
        // f32, f16, f64 and bf16
        Some(1 | 10 | 11 | 16) => Ok(()),
        Some(code) => Err(Problem::AttributeValue { name, value: code.to_string() }),
    }
}

/// `1 / sqrt(depth)`
pub(super) fn default_scale(builder: &Builder, query: TensorId) -> f64 {
    let depth = builder.shape(query).last().copied().unwrap_or(1).max(1);
    1.0 / (depth as f64).sqrt()
}

pub(super) fn scaled(score: Expr, scale: f64) -> Expr {
    if scale == 1.0 { score } else { multiply(score, float(scale)) }
}

pub(super) fn soft_cap(score: Expr, cap: f64) -> Expr {
    multiply(tanh(divide(score, float(cap))), float(cap))
}

fn minus_infinity() -> Expr {
    float(f64::NEG_INFINITY)
}

/// Columns beyond a row, counted from behind the past, do not take part.
pub(super) fn causal(score: Expr, past: &Index) -> Expr {
    let ahead = var(3).minus(&var(2));
    let visible = match past.as_constant() {
        Some(past) => within(ahead, -(1 << 31), past + 1),
        None => within(ahead.minus(past), -(1 << 31), 1),
    };
    Expr::guard(vec![visible], score, minus_infinity())
}

/// Scores under a mask: Booleans choose, floats are added. A last dimension that is too short leaves out the
/// columns behind it.
pub(super) fn with_mask(
    builder: &mut Builder,
    score: Expr,
    mask: TensorId,
    scores_shape: &[i64],
    extents: &[Index],
) -> Result<Expr, Problem> {
    let own = builder.shape(mask);
    if builder.is_run_time(mask) || extents.iter().any(|extent| extent.as_constant().is_none()) {
        let (of_mask, misfit) =
            (builder.extents(mask), || Problem::Shape(format!("a mask of shape {own:?} does not fit")));
        if of_mask.len() > 4 || of_mask.last().is_none_or(|columns| columns.as_constant() == Some(1)) {
            return Err(misfit());
        }
        if builder.broadcast_extents(&[extents.to_vec(), of_mask])? != extents {
            return Err(misfit());
        }
    }
    let misfit = || Problem::Shape(format!("a mask of shape {own:?} does not fit scores of shape {scores_shape:?}"));
    let columns = *own.last().ok_or_else(misfit)?;
    let mut covered = scores_shape.to_vec();
    covered[3] = columns;
    if own.len() > 4 || columns > scores_shape[3] || broadcast_shape(&[covered.clone(), own.clone()])? != covered {
        return Err(misfit());
    }
    if columns == 0 {
        return Ok(minus_infinity());
    }
    // of a single column, the last dimension's extent is that of the mask, which is not repeated
    let element = match builder.dtype(mask) {
        DType::Bool | DType::F32 => builder.broadcast(mask, scores_shape),
        dtype => return Err(Problem::Type { input: 3, dtype }),
    };
    let masked = match builder.dtype(mask) {
        DType::Bool => Expr::select(element, score, minus_infinity()),
        _ => add(score, element),
    };
    if columns == scores_shape[3] {
        return Ok(masked);
    }
    Ok(Expr::guard(vec![within(var(3), 0, columns)], masked, minus_infinity()))
}

/// Columns from an entry's length on do not take part.
pub(super) fn with_lengths(
    builder: &mut Builder,
    score: Expr,
    lengths: TensorId,
    batch: &Index,
) -> Result<Expr, Problem> {
    let dtype = builder.dtype(lengths);
    if !matches!(dtype, DType::I32 | DType::I64) {
        return Err(Problem::Type { input: 6, dtype });
    }
    let own = builder.extents(lengths);
    if own.len() != 1 {
        return Err(Problem::Shape(format!("{:?} is no list of lengths", builder.shape(lengths))));
    }
    builder.formulas.unify(&own[0], batch)?;
    let length = cast(dtype, DType::I64, load(lengths, vec![var(0)]));
    Ok(Expr::select(less(Expr::Index(var(3)), length), score, minus_infinity()))
}

/// Key and value behind those of the past; gives how many columns that has.
pub(super) fn append_past(
    builder: &mut Builder,
    heads: &mut Heads,
    key: Option<TensorId>,
    value: Option<TensorId>,
) -> Result<Index, Problem> {
    let (Some(past_key), Some(past_value)) = (key, value) else {
        return match (key, value) {
            (None, None) => Ok(Index::constant(0)),
            _ => Err(Problem::Unsupported("a past of keys alone or values alone".to_string())),
        };
    };
    if [past_key, past_value].iter().any(|tensor| builder.is_run_time(*tensor)) {
        return append_past_in_run(builder, heads, past_key, past_value);
    }
    let columns = builder.shape(past_key).get(2).copied().unwrap_or(0);
    for (past, new) in [(past_key, &mut heads.key), (past_value, &mut heads.value)] {
        let (mut expected, own) = (builder.shape(*new), builder.shape(past));
        if let Some(extent) = expected.get_mut(2) {
            *extent = columns;
        }
        if own != expected || builder.dtype(past) != builder.dtype(*new) {
            return Err(Problem::Shape(format!("a past of shape {own:?} instead of {expected:?}")));
        }
        if columns > 0 {
            *new = if builder.shape(*new)[2] > 0 { join(builder, &[past, *new], 2)? } else { past };
        }
    }
    Ok(Index::constant(columns))
}

/// The same of a past whose extents are known only when the network runs.
fn append_past_in_run(
    builder: &mut Builder,
    heads: &mut Heads,
    past_key: TensorId,
    past_value: TensorId,
) -> Result<Index, Problem> {
    let misfit = || Problem::Shape("the past does not fit key and value".to_string());
    for (past, new) in [(past_key, &mut heads.key), (past_value, &mut heads.value)] {
        if builder.rank(past) != 4 || builder.rank(*new) != 4 || builder.dtype(past) != builder.dtype(*new) {
            return Err(misfit());
        }
        for d in [0, 1, 3] {
            builder.unify_dimensions((past, d), (*new, d), misfit)?;
        }
        *new = join(builder, &[past, *new], 2)?;
    }
    builder.unify_dimensions((past_key, 2), (past_value, 2), misfit)?;
    Ok(builder.extents(past_key)[2].clone())
}

/// `[batch, time, heads · depth]` as `[batch, heads, time, depth]`; four dimensions are that already.
fn split_heads(
    builder: &mut Builder,
    tensor: TensorId,
    op: &Operator,
    name: &'static str,
) -> Result<TensorId, Problem> {
    match builder.rank(tensor) {
        4 => Ok(tensor),
        _ => {
            let heads = op.optional_int(name)?.ok_or(Problem::MissingAttribute(name))?;
            by_heads(builder, tensor, heads, name)
        }
    }
}

/// `[batch, time, heads · depth]` as `[batch, heads, time, depth]`.
pub(super) fn by_heads(
    builder: &mut Builder,
    tensor: TensorId,
    heads: i64,
    name: &'static str,
) -> Result<TensorId, Problem> {
    let shape = builder.shape(tensor);
    let &[_, _, hidden] = shape.as_slice() else {
        return Err(Problem::Shape(format!("{shape:?} is not batch, time and heads")));
    };
    if heads < 1 || hidden % heads != 0 {
        return Err(Problem::AttributeValue { name, value: heads.to_string() });
    }
    part_by_heads(builder, tensor, 0, heads, hidden / heads)
}

/// Some heads of `[batch, time, all heads · depth]`, from `first` on, as `[batch, heads, time, depth]`.
pub(super) fn part_by_heads(
    builder: &mut Builder,
    tensor: TensorId,
    first: i64,
    heads: i64,
    depth: i64,
) -> Result<TensorId, Problem> {
    let shape = builder.shape(tensor);
    let end = first.checked_add(heads).and_then(|end| end.checked_mul(depth));
    let (&[batch, time, hidden], Some(end)) = (shape.as_slice(), end) else {
        return Err(Problem::Shape(format!("{shape:?} is not batch, time and heads")));
    };
    if end > hidden || builder.tensor(tensor).extents.get(2).is_some() {
        return Err(Problem::Shape(format!("{shape:?} has no {heads} heads of depth {depth} from head {first} on")));
    }
    let place = var(1).times(depth).plus(&var(3)).plus_constant(first * depth);
    let value = load(tensor, vec![var(0), var(2), place]);
    let dtype = builder.dtype(tensor);
    builder.map(vec![batch, heads, time, depth], dtype, value)
}

/// `[batch, heads, time, depth]` as `[batch, time, heads · depth]`.
pub(super) fn join_heads(builder: &mut Builder, tensor: TensorId) -> Result<TensorId, Problem> {
    let shape = builder.shape(tensor);
    let &[batch, heads, time, depth] = shape.as_slice() else {
        return Err(Problem::Shape(format!("{shape:?} is not batch, heads, time and depth")));
    };
    let hidden = heads.checked_mul(depth).ok_or_else(|| Problem::TooLarge(shape.clone()))?;
    let divisor = depth.max(1);
    let value = load(tensor, vec![var(0), var(2).floor_div(divisor), var(1), var(2).modulo(divisor)]);
    let dtype = builder.dtype(tensor);
    builder.map(vec![batch, time, hidden], dtype, value)
}
