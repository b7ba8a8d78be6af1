//! Operators of recurrent token mixers.

use super::builder::Builder;
use super::layout::permute;
use super::math::{add, exp, float, load, multiply, sigmoid, subtract, var, vars, within};
use super::operator::{Operator, Problem};
use super::parts::join;
use super::reshape::{reshape_to, reshape_to_extents};
use crate::workload::{Combiner, Condition, DType, Expr, Index, TensorId};

/// A recurrence of so many steps is written out.
const UNROLLED_STEPS: i64 = 64;

fn check_floats(builder: &Builder, op: &Operator) -> Result<(), Problem> {
    for (input, operand) in op.inputs.iter().enumerate() {
        if let Some(dtype) = operand.map(|operand| builder.dtype(operand.tensor)).filter(|dtype| *dtype != DType::F32) {
            return Err(Problem::Type { input, dtype });
        }
    }
    Ok(())
}

fn check(builder: &mut Builder, tensor: TensorId, expected: &[Index]) -> Result<(), Problem> {
    let own = builder.extents(tensor);
    let differ = |(a, b): (&Index, &Index)| a.as_constant().zip(b.as_constant()).is_some_and(|(a, b)| a != b);
    if own.len() != expected.len() || own.iter().zip(expected).any(differ) {
        let spelled =
            |shape: &[Index]| shape.iter().map(|x| builder.formulas.spelled(x)).collect::<Vec<_>>().join(", ");
        return Err(Problem::Shape(format!("[{}] instead of [{}]", spelled(&own), spelled(expected))));
    }
    own.iter().zip(expected).try_for_each(|(own, expected)| builder.formulas.unify(own, expected))
}

/// `CausalConvWithState`: each channel's own filter over what came before, and the elements that the next
/// call starts with.
pub fn causal_convolution(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    check_floats(builder, op)?;
    let (x, weight) = (op.input(0)?, op.input(1)?);
    let (shape, filter) = (builder.shape(x), builder.shape(weight));
    let misfit = || Problem::Shape(format!("{filter:?} is no filter of {shape:?}"));
    let (&[_, _, _], &[_, 1, taps]) = (shape.as_slice(), filter.as_slice()) else {
        return Err(misfit());
    };
    let extents = builder.extents(x);
    if taps < 1 {
        return Err(misfit());
    }
    check(builder, weight, &[extents[1].clone(), Index::constant(1), Index::constant(taps)])?;
    let before = taps - 1;
    let state_shape = [extents[0].clone(), extents[1].clone(), Index::constant(before)];
    let length = &extents[2];
    let total = length.clone().plus_constant(before);
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
        let is_new = match total.as_constant() {
            Some(total) => vec![within(at, before, total)],
            None => {
                let apart = at.clone().plus_constant(-before);
                vec![Condition { index: apart, low: 0, high: i64::MAX }, Condition::below(&at, &total)]
            }
        };
        if before == 0 { own } else { Expr::guard(is_new, own, earlier) }
    };
    let factor = load(weight, vec![var(1), Index::constant(0), var(3)]);
    let product = multiply(element(var(2).plus(&var(3))), factor);
    let sum = builder.reduce_over(&extents, &[Index::constant(taps)], Combiner::Sum, DType::F32, product)?;
    let mut value = load(sum, vars(0, 3));
    if let Some(bias) = op.optional(2) {
        check(builder, bias, &extents[1..2])?;
        value = add(value, load(bias, vec![var(1)]));
    }
    value = match op.text("activation", "none")? {
        "none" => value,
        "silu" | "swish" => multiply(value.clone(), sigmoid(value)),
        other => return Err(Problem::AttributeValue { name: "activation", value: other.to_string() }),
    };
    let result = builder.map_over(&extents, DType::F32, value)?;
    let state = if op.wants_output(1) {
        vec![builder.map_over(&state_shape, DType::F32, element(var(2).plus(length)))?]
    } else {
        vec![]
    };
    Ok([vec![result], state].concat())
}

/// `LinearAttention`: a state of key times value for each head; written out step by step where there are few.
pub fn linear_attention(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    check_floats(builder, op)?;
    let mixer = Mixer::new(builder, op)?;
    let state_shape = mixer.state_shape();
    let state = match op.optional(3) {
        Some(past) => {
            check(builder, past, &state_shape)?;
            past
        }
        None => builder.map_over(&state_shape, DType::F32, float(0.0))?,
    };
    let scale = match op.float("scale", 0.0)? {
        0.0 => 1.0 / (mixer.depth.max(1) as f64).sqrt(),
        scale => scale,
    };
    match mixer.steps.as_constant() {
        Some(steps) if steps < 1 => Err(Problem::Unsupported(format!("a recurrence of {steps} steps"))),
        Some(steps) if steps <= UNROLLED_STEPS => mixer.unroll(builder, steps, state, scale),
        _ => mixer.repeat(builder, state, scale),
    }
}

#[derive(Clone)]
struct Mixer {
    /// `[batch, steps, heads · depth]`
    query: TensorId,
    /// `[batch, steps, groups · depth]`
    key: TensorId,
    /// `[batch, steps, groups · width]`
    value: TensorId,
    /// `[batch, steps, groups]` or `[batch, steps, groups · depth]`
    decay: Option<TensorId>,
    decays_by_group: bool,
    /// `[batch, steps, groups]` or `[batch, steps, 1]`
    rate: Option<TensorId>,
    has_common_rate: bool,
    batch: Index,
    steps: Index,
    heads: i64,
    groups: i64,
    depth: i64,
    width: i64,
}

/// Where the elements of a step are.
#[derive(Clone, Copy)]
enum Place {
    /// In tensors of all steps.
    Step(i64),
    /// In tensors of this step alone, which lack the axis of the steps.
    Part,
}

impl Place {
    fn load(self, tensor: TensorId, index: Index) -> Expr {
        match self {
            Place::Step(step) => load(tensor, vec![var(0), Index::constant(step), index]),
            Place::Part => load(tensor, vec![var(0), index]),
        }
    }
}

impl Mixer {
    fn new(builder: &mut Builder, op: &Operator) -> Result<Mixer, Problem> {
        let (query, key, value) = (op.input(0)?, op.input(1)?, op.input(2)?);
        let count = |name: &'static str| -> Result<i64, Problem> {
            let count = op.optional_int(name)?.ok_or(Problem::MissingAttribute(name))?;
            let out_of_range = || Problem::AttributeValue { name, value: count.to_string() };
            Some(count).filter(|count| (1..1 << 31).contains(count)).ok_or_else(out_of_range)
        };
        let (heads, groups) = (count("q_num_heads")?, count("kv_num_heads")?);
        let shapes = [query, key, value].map(|tensor| builder.shape(tensor));
        let misfit = || Problem::Shape(format!("{shapes:?} are not query, key and value of {heads} heads"));
        let (of_query, of_value) = (builder.extents(query), builder.extents(value));
        let ([batch, steps, queries], [_, _, values]) = (of_query.as_slice(), of_value.as_slice()) else {
            return Err(misfit());
        };
        let (Some(queries), Some(values)) = (queries.as_constant(), values.as_constant()) else {
            return Err(builder.unsupported_extents());
        };
        if heads % groups != 0 || queries % heads != 0 || values % groups != 0 {
            return Err(misfit());
        }
        let (depth, width) = (queries / heads, values / groups);
        let of_steps = |wide: i64| [batch.clone(), steps.clone(), Index::constant(wide)];
        check(builder, key, &of_steps(groups * depth))?;
        check(builder, value, &of_steps(values))?;
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
        let ends_with = |builder: &Builder, tensor: Option<TensorId>, wide: i64| {
            tensor.is_some_and(|tensor| builder.extents(tensor).last() == Some(&Index::constant(wide)))
        };
        let decays_by_group = ends_with(builder, decay, groups);
        if let Some(decay) = decay {
            check(builder, decay, &of_steps(if decays_by_group { groups } else { groups * depth }))?;
        }
        let has_common_rate = ends_with(builder, rate, 1);
        if let Some(rate) = rate {
            check(builder, rate, &of_steps(if has_common_rate { 1 } else { groups }))?;
        }
        Ok(Mixer {
            query,
            key,
            value,
            decay,
            decays_by_group,
            rate,
            has_common_rate,
            batch: batch.clone(),
            steps: steps.clone(),
            heads,
            groups,
            depth,
            width,
        })
    }

    /// `[batch, groups, depth, width]`
    fn state_shape(&self) -> [Index; 4] {
        let constant = Index::constant;
        [self.batch.clone(), constant(self.groups), constant(self.depth), constant(self.width)]
    }

    /// The results of all steps and the last state, with all steps written out.
    fn unroll(
        &self,
        builder: &mut Builder,
        steps: i64,
        mut state: TensorId,
        scale: f64,
    ) -> Result<Vec<TensorId>, Problem> {
        let mut results = Vec::new();
        for step in 0..steps {
            state = self.advance(builder, state, Place::Step(step))?;
            results.push(self.read(builder, state, Place::Step(step), scale)?);
        }
        let result = join(builder, &results, 1)?;
        Ok(vec![self.flat(builder, result)?, state])
    }

    /// The same as a repetition.
    fn repeat(&self, builder: &mut Builder, state: TensorId, scale: f64) -> Result<Vec<TensorId>, Problem> {
        let given = [Some(self.query), Some(self.key), Some(self.value), self.decay, self.rate];
        let mut scanned = Vec::new();
        for tensor in given.into_iter().flatten() {
            scanned.push((permute(builder, tensor, &[1, 0, 2])?, false));
        }
        let open = builder.open_repeat(&self.steps, &[state], &scanned)?;
        let mut parts = open.parts().into_iter();
        let mut next = |before: TensorId| parts.next().unwrap_or(before);
        let (query, key, value) = (next(self.query), next(self.key), next(self.value));
        let (decay, rate) = (self.decay.map(&mut next), self.rate.map(&mut next));
        let of_step = Mixer { query, key, value, decay, rate, ..self.clone() };
        let before = open.currents().first().copied().unwrap_or(state);
        let after = of_step.advance(builder, before, Place::Part)?;
        let result = of_step.read(builder, after, Place::Part, scale)?;
        let (last, results) = builder.close_repeat(open, &[after], &[(result, false)])?;
        let result = permute(builder, results[0], &[1, 0, 2, 3, 4])?;
        Ok(vec![self.flat(builder, result)?, last[0]])
    }

    /// `[batch, steps, heads · width]`
    fn flat(&self, builder: &mut Builder, result: TensorId) -> Result<TensorId, Problem> {
        let wide = self.heads * self.width;
        match (self.batch.as_constant(), self.steps.as_constant()) {
            (Some(batch), Some(steps)) => reshape_to(builder, result, vec![batch, steps, wide]),
            _ => {
                let extents = [self.batch.clone(), self.steps.clone(), Index::constant(wide)];
                reshape_to_extents(builder, result, &extents)
            }
        }
    }

    /// What queries find in a state, `[batch, 1, heads, width]`.
    fn read(&self, builder: &mut Builder, state: TensorId, place: Place, scale: f64) -> Result<TensorId, Problem> {
        let head = var(2);
        let query = place.load(self.query, head.clone().times(self.depth).plus(&var(4)));
        let read = load(state, vec![var(0), head.floor_div((self.heads / self.groups).max(1)), var(4), var(3)]);
        let constant = Index::constant;
        let shape = [self.batch.clone(), constant(1), constant(self.heads), constant(self.width)];
        let value = multiply(query, read);
        let sum = builder.reduce_over(&shape, &[constant(self.depth)], Combiner::Sum, DType::F32, value)?;
        builder.map_over(&shape, DType::F32, multiply(load(sum, vars(0, 4)), float(scale)))
    }

    /// The state after a step: decayed, plus key times what the value adds to what the state holds of it.
    fn advance(&self, builder: &mut Builder, state: TensorId, place: Place) -> Result<TensorId, Problem> {
        // an element of the decayed state, and of the key, for the depth and width at these axes
        let decayed = |depth: usize, width: usize| {
            let own = load(state, vec![var(0), var(1), var(depth), var(width)]);
            let Some(decay) = self.decay else { return own };
            let index = match self.decays_by_group {
                true => var(1),
                false => var(1).times(self.depth).plus(&var(depth)),
            };
            multiply(own, exp(place.load(decay, index)))
        };
        let key = |depth: usize| place.load(self.key, var(1).times(self.depth).plus(&var(depth)));
        let value = |width: usize| place.load(self.value, var(1).times(self.width).plus(&var(width)));
        let mut added = value(3);
        if let Some(rate) = self.rate {
            let shape = [self.batch.clone(), Index::constant(self.groups), Index::constant(self.width)];
            let held = multiply(decayed(3, 2), key(3));
            let depth = Index::constant(self.depth);
            let held = builder.reduce_over(&shape, &[depth], Combiner::Sum, DType::F32, held)?;
            let of_group = if self.has_common_rate { Index::constant(0) } else { var(1) };
            let change = multiply(place.load(rate, of_group), subtract(value(2), load(held, vars(0, 3))));
            let change = builder.map_over(&shape, DType::F32, change)?;
            added = load(change, vec![var(0), var(1), var(3)]);
        }
        let next = add(decayed(2, 3), multiply(key(2), added));
        builder.map_over(&self.state_shape(), DType::F32, next)
    }
}
