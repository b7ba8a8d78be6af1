//! `GroupQueryAttention` of `com.microsoft`: what decoders are exported as for ONNX Runtime.
//!
//! Keys and values stand behind those of the past, whose number each entry of the batch has of its own, known
//! when the network runs. The buffer of the past may have more room than is used.

use super::attention::{Heads, by_heads, causal, join_heads, part_by_heads, soft_cap, with_mask};
use super::builder::Builder;
use super::contrib::{check_float, scaled_score};
use super::gather::check_index_type;
use super::math::{add, cast, float, less, less_equal, load, maximum, minimum, or, subtract, var, vars, within};
use super::operator::{Operator, Problem};
use super::reduction::{Axes, softmax_over};
use super::rotary::{Angles, rotate};
use crate::workload::{Condition, DType, Expr, Index, TensorId};

/// `GroupQueryAttention`. Outputs: result, present key and value.
pub fn group_query_attention(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    refuse_variants(op)?;
    let mut heads = split(builder, op)?;
    heads.scores_shape(builder)?;
    let rows = builder.extents(heads.query);
    let past = Past::new(builder, op, &heads, &rows)?;
    if op.flag("do_rotary", false)? {
        turn(builder, op, &mut heads, &past, &rows)?;
    }
    if let Some([key, value]) = past.buffers {
        let columns = past.columns(builder, op)?;
        heads.key = past.append(builder, heads.key, key, &columns)?;
        heads.value = past.append(builder, heads.value, value, &columns)?;
    }
    let shape = heads.scores_shape(builder)?;
    let (mut score, extents) = scaled_score(builder, op, &heads)?;
    let cap = op.float("softcap", 0.0)?;
    if cap > 0.0 {
        score = soft_cap(score, cap);
    }
    if let Some(bias) = op.optional(10) {
        check_float(builder, 10, bias)?;
        score = with_mask(builder, score, bias, &shape, &extents)?;
    }
    let score = past.visible(op, score)?;
    let scores = builder.map_over(&extents, DType::F32, score)?;
    let weights = softmax_over(builder, scores, &Axes::new(&shape, vec![3]))?;
    let result = heads.weighted(builder, weights)?;
    Ok(vec![join_heads(builder, result)?, heads.key, heads.value])
}

/// What changes the results and is not computed here.
fn refuse_variants(op: &Operator) -> Result<(), Problem> {
    let unsupported = |what: &str| Err(Problem::Unsupported(format!("GroupQueryAttention with {what}")));
    if op.int("smooth_softmax", 0)? > 0 || op.optional(11).is_some() {
        return unsupported("a sink");
    }
    if op.int("qk_output", 0)? != 0 || op.wants_output(3) {
        return unsupported("its scores as an output");
    }
    let is_quantised = |name| Ok::<bool, Problem>(op.text(name, "NONE")? != "NONE");
    if is_quantised("k_quant_type")? || is_quantised("v_quant_type")? || (12..14).any(|at| op.optional(at).is_some()) {
        return unsupported("a quantised cache");
    }
    Ok(())
}

/// Query, key and value by heads; they come apart, or as one.
fn split(builder: &mut Builder, op: &Operator) -> Result<Heads, Problem> {
    let required = |name: &'static str| op.optional_int(name)?.ok_or(Problem::MissingAttribute(name));
    let (count, groups) = (required("num_heads")?, required("kv_num_heads")?);
    let query = op.input(0)?;
    check_float(builder, 0, query)?;
    if let Some(key) = op.optional(1) {
        return Ok(Heads {
            query: by_heads(builder, query, count, "num_heads")?,
            key: by_heads(builder, key, groups, "kv_num_heads")?,
            value: by_heads(builder, op.input(2)?, groups, "kv_num_heads")?,
        });
    }
    let shape = builder.shape(query);
    let all = groups.checked_mul(2).and_then(|both| both.checked_add(count)).filter(|_| count > 0 && groups > 0);
    let (Some(&hidden), Some(all)) = (shape.get(2), all) else {
        return Err(Problem::Shape(format!("{count} and {groups} heads do not fit {shape:?}")));
    };
    if hidden % all != 0 {
        return Err(Problem::AttributeValue { name: "num_heads", value: count.to_string() });
    }
    let depth = hidden / all;
    Ok(Heads {
        query: part_by_heads(builder, query, 0, count, depth)?,
        key: part_by_heads(builder, query, count, groups, depth)?,
        value: part_by_heads(builder, query, count + groups, groups, depth)?,
    })
}

/// What was computed before.
struct Past {
    /// Keys and values, `[batch, groups, room, depth]`.
    buffers: Option<[TensorId; 2]>,
    /// How many columns of them each entry has, `[batch]` of i64; `None`: none.
    used: Option<TensorId>,
}

impl Past {
    fn new(builder: &mut Builder, op: &Operator, heads: &Heads, rows: &[Index]) -> Result<Past, Problem> {
        let buffers = match (op.optional(3), op.optional(4)) {
            (Some(key), Some(value)) => Some([key, value]),
            (None, None) => None,
            _ => return Err(Problem::Unsupported("a past of keys alone or values alone".to_string())),
        };
        let lengths = op.input(5)?;
        check_index_type(builder, 5, lengths)?;
        let misfit =
            |builder: &Builder, tensor| Problem::Shape(format!("{:?} does not fit the batch", builder.shape(tensor)));
        let mut at = vec![Index::constant(0); builder.rank(lengths)];
        if builder.tensor(lengths).elements() > 1 || builder.is_run_time(lengths) {
            at[..1].clone_from_slice(&[var(0)]);
            if at.len() > 2 || (at.len() == 2 && builder.shape(lengths)[1] != 1) {
                return Err(misfit(builder, lengths));
            }
            let of_lengths = builder.extents(lengths)[0].clone();
            builder.formulas.unify(&of_lengths, &rows[0])?;
        } else if rows[0].as_constant() != Some(1) {
            return Err(misfit(builder, lengths));
        }
        for (past, new) in buffers.iter().flatten().zip([heads.key, heads.value]) {
            if builder.rank(*past) != 4 || builder.dtype(*past) != builder.dtype(new) {
                return Err(misfit(builder, *past));
            }
            for d in [0, 1, 3] {
                builder.unify_dimensions((*past, d), (new, d), || {
                    Problem::Shape("the past does not fit key and value".to_string())
                })?;
            }
        }
        if let Some([key, value]) = buffers {
            builder.unify_dimensions((key, 2), (value, 2), || {
                Problem::Shape("the past of keys and that of values differ".to_string())
            })?;
        }
        // the first call may come with an empty past
        let buffers = buffers.filter(|[key, _]| builder.extents(*key)[2].as_constant() != Some(0));
        if buffers.is_none() {
            return Ok(Past { buffers, used: None });
        }
        // the lengths are those of everything, less one; shorter ones than what is new are padded prompts
        let length = cast(builder.dtype(lengths), DType::I64, load(lengths, at));
        let before = subtract(length, Expr::Index(rows[2].clone().plus_constant(-1)));
        let used = builder.map_over(&rows[..1], DType::I64, maximum(before, Expr::integer(0)))?;
        Ok(Past { buffers, used: Some(used) })
    }

    /// How many columns the entry at axis 0 has.
    fn used(&self) -> Expr {
        self.used.map_or(Expr::integer(0), |used| load(used, vec![var(0)]))
    }

    /// How many columns there are afterwards: those of the total length that is asked for, or all there is
    /// room for.
    fn columns(&self, builder: &mut Builder, op: &Operator) -> Result<Index, Problem> {
        let total = match builder.formulas_input(op, 6)?.as_slice() {
            [total] => total.clone(),
            _ => return Err(Problem::Shape("the total length is no single value".to_string())),
        };
        let room = self.buffers.map_or(Index::constant(0), |[key, _]| builder.extents(key)[2].clone());
        builder.formulas.greater(&total, &room)
    }

    /// New columns behind those of the past that are used; the others stay as they were.
    fn append(
        &self,
        builder: &mut Builder,
        new: TensorId,
        past: TensorId,
        columns: &Index,
    ) -> Result<TensorId, Problem> {
        let mut extents = builder.extents(new);
        let count = std::mem::replace(&mut extents[2], columns.clone());
        let room = builder.extents(past)[2].clone();
        let place = || subtract(Expr::Index(var(2)), self.used());
        let last = Expr::Index(count.clone().plus_constant(-1));
        let clamped = Index::value(maximum(minimum(place(), last), Expr::integer(0)));
        let added = load(new, vec![var(0), var(1), clamped, var(3)]);
        let is_past = or(less(place(), Expr::integer(0)), less_equal(Expr::Index(count), place()));
        let either = Expr::select(is_past, load(past, vars(0, 4)), added.clone());
        let open = Some(&room).filter(|room| room.as_constant().is_none());
        let inside = Condition::within(&var(2), open, builder.shape(past)[2]);
        let dtype = builder.dtype(new);
        builder.map_over(&extents, dtype, Expr::guard(inside, either, added))
    }

    /// A row sees what is before it and itself, within a window of columns if there is one.
    fn visible(&self, op: &Operator, score: Expr) -> Result<Expr, Problem> {
        let window = op.int("local_window_size", -1)?;
        if window == 0 || window < -1 {
            return Err(Problem::AttributeValue { name: "local_window_size", value: window.to_string() });
        }
        let hidden = || float(f64::NEG_INFINITY);
        if self.used.is_none() {
            let score = causal(score, &Index::constant(0));
            let ahead = var(3).minus(&var(2));
            return Ok(match window {
                -1 => score,
                _ => Expr::guard(vec![within(ahead, 1 - window.min(1 << 31), 1)], score, hidden()),
            });
        }
        let row = || add(self.used(), Expr::Index(var(2)));
        let score = Expr::select(less_equal(Expr::Index(var(3)), row()), score, hidden());
        if window == -1 {
            return Ok(score);
        }
        let first = subtract(row(), Expr::integer(window - 1));
        Ok(Expr::select(less(Expr::Index(var(3)), first), hidden(), score))
    }
}

/// Query and key turned by the angles of their positions.
fn turn(builder: &mut Builder, op: &Operator, heads: &mut Heads, past: &Past, rows: &[Index]) -> Result<(), Problem> {
    let (cosine, sine) = (op.input(7)?, op.input(8)?);
    let positions = match op.optional(9) {
        Some(positions) => positions,
        None => {
            let position = add(past.used(), Expr::Index(var(1)));
            builder.map_over(&[rows[0].clone(), rows[2].clone()], DType::I64, position)?
        }
    };
    let angles = Angles { cosine, sine, positions: Some(positions) };
    let rotated = builder.shape(cosine).get(1).copied().unwrap_or(0).saturating_mul(2);
    let interleaved = op.flag("rotary_interleaved", false)?;
    for tensor in [&mut heads.query, &mut heads.key] {
        *tensor = rotate(builder, *tensor, Some(rotated), interleaved, &angles)?;
    }
    Ok(())
}
