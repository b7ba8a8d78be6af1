//! Operators of recurrent token mixers, whose number of steps is known.

use super::builder::Builder;
use super::layout::{join, reshape_to};
use super::math::{add, exp, float, load, multiply, sigmoid, subtract, var, vars, within};
use super::operator::{Operator, Problem};
use crate::workload::{Combiner, DType, Expr, Index, TensorId};

/// Most steps of a recurrence that are written out.
const MAX_STEPS: i64 = 64;

fn check_floats(builder: &Builder, op: &Operator) -> Result<(), Problem> {
    for (input, operand) in op.inputs.iter().enumerate() {
        if let Some(dtype) = operand.map(|operand| builder.dtype(operand.tensor)).filter(|dtype| *dtype != DType::F32) {
            return Err(Problem::Type { input, dtype });
        }
    }
    Ok(())
}

fn check(builder: &Builder, tensor: TensorId, expected: &[i64]) -> Result<(), Problem> {
    match builder.shape(tensor) {
        own if own == expected => Ok(()),
        own => Err(Problem::Shape(format!("{own:?} instead of {expected:?}"))),
    }
}

/// `CausalConvWithState`: each channel's own filter over what came before, and the elements that the next
/// call starts with.
pub fn causal_convolution(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    check_floats(builder, op)?;
    let (x, weight) = (op.input(0)?, op.input(1)?);
    let (shape, filter) = (builder.shape(x), builder.shape(weight));
    let misfit = || Problem::Shape(format!("{filter:?} is no filter of {shape:?}"));
    let (&[batch, channels, length], &[_, 1, taps]) = (shape.as_slice(), filter.as_slice()) else {
        return Err(misfit());
    };
    if taps < 1 {
        return Err(misfit());
    }
    check(builder, weight, &[channels, 1, taps])?;
    let before = taps - 1;
    let state_shape = vec![batch, channels, before];
    let total = length + before;
    let past = op.optional(3);
    if let Some(past) = past {
        check(builder, past, &state_shape)?;
    }
    // an element of what came before and the input, one after the other
    let element = |at: Index| {
        let earlier = match past {
            Some(past) => {
                let earlier = load(past, vec![var(0), var(1), at.clone()]);
                Expr::guard(vec![within(at.clone(), 0, before)], earlier, float(0.0))
            }
            None => float(0.0),
        };
        let own = load(x, vec![var(0), var(1), at.clone().plus_constant(-before)]);
        if before == 0 { own } else { Expr::guard(vec![within(at, before, total)], own, earlier) }
    };
    let factor = load(weight, vec![var(1), Index::constant(0), var(3)]);
    let product = multiply(element(var(2).plus(&var(3))), factor);
    let sum = builder.reduce(shape.clone(), vec![taps], Combiner::Sum, DType::F32, product)?;
    let mut value = load(sum, vars(0, 3));
    if let Some(bias) = op.optional(2) {
        check(builder, bias, &[channels])?;
        value = add(value, load(bias, vec![var(1)]));
    }
    value = match op.text("activation", "none")? {
        "none" => value,
        "silu" | "swish" => multiply(value.clone(), sigmoid(value)),
        other => return Err(Problem::AttributeValue { name: "activation", value: other.to_string() }),
    };
    let result = builder.map(shape, DType::F32, value)?;
    let state = if op.wants_output(1) {
        vec![builder.map(state_shape, DType::F32, element(var(2).plus_constant(length)))?]
    } else {
        vec![]
    };
    Ok([vec![result], state].concat())
}

/// `LinearAttention`: a state of key times value for each head, written out step by step.
pub fn linear_attention(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    check_floats(builder, op)?;
    let mixer = Mixer::new(builder, op)?;
    let Mixer { batch, steps, heads, groups, depth, width, .. } = mixer;
    let state_shape = vec![batch, groups, depth, width];
    let mut state = match op.optional(3) {
        Some(past) => {
            check(builder, past, &state_shape)?;
            past
        }
        None => builder.map(state_shape, DType::F32, float(0.0))?,
    };
    let scale = match op.float("scale", 0.0)? {
        0.0 => 1.0 / (depth.max(1) as f64).sqrt(),
        scale => scale,
    };
    let mut results = Vec::new();
    for step in 0..steps {
        state = mixer.advance(builder, state, step)?;
        let head = var(2);
        let query = load(mixer.query, vec![var(0), Index::constant(step), head.clone().times(depth).plus(&var(4))]);
        let read = load(state, vec![var(0), head.floor_div((heads / groups).max(1)), var(4), var(3)]);
        let value = multiply(query, read);
        let sum = builder.reduce(vec![batch, 1, heads, width], vec![depth], Combiner::Sum, DType::F32, value)?;
        let scaled = multiply(load(sum, vars(0, 4)), float(scale));
        results.push(builder.map(vec![batch, 1, heads, width], DType::F32, scaled)?);
    }
    let result = join(builder, &results, 1)?;
    Ok(vec![reshape_to(builder, result, vec![batch, steps, heads * width])?, state])
}

struct Mixer {
    /// `[batch, steps, heads · depth]`
    query: TensorId,
    /// `[batch, steps, groups · depth]`
    key: TensorId,
    /// `[batch, steps, groups · width]`
    value: TensorId,
    /// `[batch, steps, groups]` or `[batch, steps, groups · depth]`
    decay: Option<TensorId>,
    /// `[batch, steps, groups]` or `[batch, steps, 1]`
    rate: Option<TensorId>,
    batch: i64,
    steps: i64,
    heads: i64,
    groups: i64,
    depth: i64,
    width: i64,
}

impl Mixer {
    fn new(builder: &Builder, op: &Operator) -> Result<Mixer, Problem> {
        let (query, key, value) = (op.input(0)?, op.input(1)?, op.input(2)?);
        let count = |name: &'static str| -> Result<i64, Problem> {
            let count = op.optional_int(name)?.ok_or(Problem::MissingAttribute(name))?;
            let out_of_range = || Problem::AttributeValue { name, value: count.to_string() };
            Some(count).filter(|count| (1..1 << 31).contains(count)).ok_or_else(out_of_range)
        };
        let (heads, groups) = (count("q_num_heads")?, count("kv_num_heads")?);
        let shapes = [query, key, value].map(|tensor| builder.shape(tensor));
        let misfit = || Problem::Shape(format!("{shapes:?} are not query, key and value of {heads} heads"));
        let (&[batch, steps, queries], &[_, _, values]) = (shapes[0].as_slice(), shapes[2].as_slice()) else {
            return Err(misfit());
        };
        if heads % groups != 0 || queries % heads != 0 || values % groups != 0 {
            return Err(misfit());
        }
        if !(1..=MAX_STEPS).contains(&steps) {
            return Err(Problem::Unsupported(format!(
                "a recurrence of {steps} steps (1 to {MAX_STEPS} are written out)"
            )));
        }
        let (depth, width) = (queries / heads, values / groups);
        check(builder, key, &[batch, steps, groups * depth])?;
        check(builder, value, &[batch, steps, values])?;
        let rule = op.text("update_rule", "gated_delta")?;
        let (gates, corrects) = match rule {
            "linear" => (false, false),
            "gated" => (true, false),
            "delta" => (false, true),
            "gated_delta" => (true, true),
            other => return Err(Problem::AttributeValue { name: "update_rule", value: other.to_string() }),
        };
        let (decay, rate) = (op.optional(4), op.optional(5));
        if decay.is_some() != gates || rate.is_some() != corrects {
            return Err(Problem::Unsupported(format!("update rule {rule} with these inputs")));
        }
        if let Some(decay) = decay
            && builder.shape(decay) != [batch, steps, groups]
        {
            check(builder, decay, &[batch, steps, groups * depth])?;
        }
        if let Some(rate) = rate
            && builder.shape(rate) != [batch, steps, 1]
        {
            check(builder, rate, &[batch, steps, groups])?;
        }
        Ok(Mixer { query, key, value, decay, rate, batch, steps, heads, groups, depth, width })
    }

    /// The state after a step: decayed, plus key times what the value adds to what the state holds of it.
    fn advance(&self, builder: &mut Builder, state: TensorId, step: i64) -> Result<TensorId, Problem> {
        let at = |tensor: TensorId, index: Index| load(tensor, vec![var(0), Index::constant(step), index]);
        let decay_shape = self.decay.map(|decay| builder.shape(decay));
        // an element of the decayed state, and of the key, for the depth and width at these axes
        let decayed = |depth: usize, width: usize| {
            let own = load(state, vec![var(0), var(1), var(depth), var(width)]);
            let Some(decay) = self.decay else { return own };
            let index = match decay_shape.as_deref() {
                Some([_, _, extent]) if *extent == self.groups => var(1),
                _ => var(1).times(self.depth).plus(&var(depth)),
            };
            multiply(own, exp(at(decay, index)))
        };
        let key = |depth: usize| at(self.key, var(1).times(self.depth).plus(&var(depth)));
        let value = |width: usize| at(self.value, var(1).times(self.width).plus(&var(width)));
        let mut added = value(3);
        if let Some(rate) = self.rate {
            let shape = vec![self.batch, self.groups, self.width];
            let held = multiply(decayed(3, 2), key(3));
            let held = builder.reduce(shape.clone(), vec![self.depth], Combiner::Sum, DType::F32, held)?;
            let of_group = if builder.shape(rate)[2] == 1 { Index::constant(0) } else { var(1) };
            let change = multiply(at(rate, of_group), subtract(value(2), load(held, vars(0, 3))));
            let change = builder.map(shape, DType::F32, change)?;
            added = load(change, vec![var(0), var(1), var(3)]);
        }
        let next = add(decayed(2, 3), multiply(key(2), added));
        builder.map(vec![self.batch, self.groups, self.depth, self.width], DType::F32, next)
    }
}
