//! `LSTM`, `GRU` and `RNN`: the product of the input for all steps at once, then step by step the product of
//! the state and what the gates make of both. `DynamicQuantizeLSTM` rounds what its weights of 8 bits are
//! multiplied with to 8 bits, too, all steps of the input at once and the state in each step; sums are exact
//! but for the rounding of f32.

use super::activation::{Activation, activations};
use super::builder::Builder;
use super::layout::permute;
use super::math::{add, float, less, literal, load, multiply, subtract, var, vars, within};
use super::operator::{Operator, Problem};
use super::parts::{element, stack};
use super::quantization;
use crate::workload::{Combiner, DType, Expr, Index, TensorId};

/// A sequence of so few steps is unrolled.
const UNROLLED_STEPS: i64 = 4;
/// Inside of a loop, where no other one can be, one of so few is.
const UNROLLED_INSIDE: i64 = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cell {
    Lstm,
    Gru,
    Plain,
}

impl Cell {
    /// Parts of the weights along their second axis.
    fn gates(self) -> i64 {
        match self {
            Cell::Lstm => 4,
            Cell::Gru => 3,
            Cell::Plain => 1,
        }
    }

    /// The activations of a direction by default.
    fn activations(self) -> &'static [&'static str] {
        match self {
            Cell::Lstm => &["Sigmoid", "Tanh", "Tanh"],
            Cell::Gru => &["Sigmoid", "Tanh"],
            Cell::Plain => &["Tanh"],
        }
    }
}

/// One use of an operator, its inputs checked.
struct Network {
    cell: Cell,
    steps: Index,
    batch: Index,
    input: i64,
    hidden: i64,
    directions: i64,
    /// Whether the batch comes before the steps and the directions.
    batch_first: bool,
    x: TensorId,
    w: TensorId,
    r: TensorId,
    bias: Option<TensorId>,
    lengths: Option<TensorId>,
    initial: [Option<TensorId>; 2],
    peepholes: Option<TensorId>,
    couples_forget: bool,
    resets_late: bool,
    /// Whether what weights are multiplied with is rounded to 8 bits first, as it comes.
    rounds: bool,
}

/// Outputs of all steps, `[steps, directions, batch, hidden]`, the last output and, of an LSTM, the last cell
/// state, `[directions, batch, hidden]`; with the batch in front where `layout` is 1.
pub fn recurrent(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let network = Network::new(builder, op)?;
    let backwards: Vec<bool> = match op.text("direction", "forward")? {
        "forward" => vec![false],
        "reverse" => vec![true],
        "bidirectional" => vec![false, true],
        other => return Err(Problem::AttributeValue { name: "direction", value: other.to_string() }),
    };
    if network.directions != backwards.len() as i64 {
        return Err(Problem::Shape(format!("weights of {} directions", network.directions)));
    }
    let activations = activations(op, network.cell.activations(), backwards.len())?;
    let per_direction = network.cell.activations().len();
    let (mut all, mut last) = (Vec::new(), vec![Vec::new(); 2]);
    for (d, backwards) in backwards.into_iter().enumerate() {
        let functions = &activations[d * per_direction..][..per_direction];
        let direction = Direction { network: &network, d: d as i64, backwards, functions };
        let (outputs, states) = direction.run(builder)?;
        all.push(outputs);
        last.iter_mut().zip(states).for_each(|(last, state)| last.push(state));
    }
    let axis = if network.batch_first { 2 } else { 1 };
    let mut outputs = stack(builder, &all, axis)?;
    if network.batch_first {
        outputs = permute(builder, outputs, &[1, 0, 2, 3])?;
    }
    let mut results = vec![outputs];
    for states in last.iter().filter(|states| !states.is_empty()) {
        results.push(stack(builder, states, usize::from(network.batch_first))?);
    }
    Ok(results)
}

impl Network {
    fn new(builder: &mut Builder, op: &Operator) -> Result<Network, Problem> {
        let cell = match op.kind.as_str() {
            "LSTM" | "com.microsoft.DynamicQuantizeLSTM" => Cell::Lstm,
            "GRU" => Cell::Gru,
            _ => Cell::Plain,
        };
        let rounds = op.kind.contains("Quantize");
        let x = op.input(0)?;
        let [w, r] = match rounds {
            false => [op.input(1)?, op.input(2)?],
            true => [short_weights(builder, op, 1, 8)?, short_weights(builder, op, 2, 10)?],
        };
        builder.materialize(w)?;
        builder.materialize(r)?;
        let batch_first = op.flag("layout", false)?;
        let (of_x, of_w, of_r) = (builder.shape(x), builder.shape(w), builder.shape(r));
        if [w, r].iter().any(|tensor| builder.is_run_time(*tensor)) {
            return Err(builder.unsupported_extents());
        }
        let wrong = || Problem::Shape(format!("input {of_x:?}, weights {of_w:?} and {of_r:?} do not fit one another"));
        let ([_, _, input], [directions, wide, depth], [_, _, hidden]) = (&of_x[..], &of_w[..], &of_r[..]) else {
            return Err(wrong());
        };
        let extents = builder.extents(x);
        if extents[2].as_constant().is_none() {
            builder.formulas.unify(&extents[2], &Index::constant(*depth))?;
        }
        let (steps, batch) = (extents[usize::from(batch_first)].clone(), extents[usize::from(!batch_first)].clone());
        let gates = cell.gates().checked_mul(*hidden).ok_or_else(wrong)?;
        let fits = depth == input && *wide == gates && of_r == [*directions, gates, *hidden];
        if !fits || of_x.contains(&0) || gates == 0 || op.optional_int("hidden_size")?.is_some_and(|h| h != *hidden) {
            return Err(wrong());
        }
        let (of_directions, of_hidden) = (Index::constant(*directions), Index::constant(*hidden));
        let state = match batch_first {
            true => [batch.clone(), of_directions.clone(), of_hidden],
            false => [of_directions.clone(), batch.clone(), of_hidden],
        };
        let is_lstm = cell == Cell::Lstm;
        let peepholes = given(builder, op, 7, DType::F32, &[of_directions.clone(), Index::constant(3 * hidden)])?;
        let network = Network {
            cell,
            steps: steps.clone(),
            batch: batch.clone(),
            input: *input,
            hidden: *hidden,
            directions: *directions,
            batch_first,
            x,
            w,
            r,
            bias: given(builder, op, 3, DType::F32, &[of_directions, Index::constant(2 * gates)])?,
            lengths: given(builder, op, 4, DType::I32, std::slice::from_ref(&batch))?,
            initial: [
                given(builder, op, 5, DType::F32, &state)?,
                if is_lstm { given(builder, op, 6, DType::F32, &state)? } else { None },
            ],
            peepholes: peepholes.filter(|_| is_lstm),
            couples_forget: is_lstm && op.flag("input_forget", false)?,
            resets_late: cell == Cell::Gru && op.flag("linear_before_reset", false)?,
            rounds,
        };
        for (input, tensor) in [x, w, r].into_iter().enumerate() {
            if builder.dtype(tensor) != DType::F32 {
                return Err(Problem::Type { input, dtype: builder.dtype(tensor) });
            }
        }
        // lengths that leave nothing out
        let is_whole = |lengths: &TensorId| {
            !builder.integers(*lengths).is_some_and(|l| l.iter().all(|l| Some(*l) == steps.as_constant()))
        };
        Ok(Network { lengths: network.lengths.filter(is_whole), ..network })
    }

    /// What weights are multiplied with: a tensor, or what its elements are as 8 bits.
    fn factor(&self, builder: &mut Builder, tensor: TensorId) -> Result<TensorId, Problem> {
        if !self.rounds {
            return Ok(tensor);
        }
        let parts = quantization::dynamic_of(builder, tensor)?;
        let [short, scale, zero_point] = parts[..] else { return Err(Problem::MissingInput(0)) };
        let shape = builder.shape(tensor);
        let as_float = |tensor: TensorId, at: Vec<Index>| Expr::Cast(DType::F32, Box::new(load(tensor, at)));
        let distance = subtract(as_float(short, vars(0, shape.len())), as_float(zero_point, vec![]));
        builder.map(shape, DType::F32, multiply(distance, load(scale, vec![])))
    }

    fn states(&self) -> usize {
        if self.cell == Cell::Lstm { 2 } else { 1 }
    }
}

/// Weights of 8 bits, `[directions, depth, gates · hidden]`, with a scale and a zero point for each direction
/// or each of its columns, as `LSTM` has them: `[directions, gates · hidden, depth]` in f32.
fn short_weights(builder: &mut Builder, op: &Operator, input: usize, scale: usize) -> Result<TensorId, Problem> {
    let (weights, scales, zero_points) = (op.input(input)?, op.input(scale)?, op.input(scale + 1)?);
    if [weights, scales, zero_points].iter().any(|tensor| builder.is_run_time(*tensor)) {
        return Err(builder.unsupported_extents());
    }
    let (shape, of_scales) = (builder.shape(weights), builder.shape(scales));
    let [directions, depth, columns] = shape[..] else {
        return Err(Problem::Shape(format!("weights of shape {shape:?}")));
    };
    let at = match of_scales[..] {
        [count] if count == directions => vec![var(0)],
        [count, of_columns] if count == directions && of_columns == columns => vec![var(0), var(1)],
        _ => return Err(Problem::Shape(format!("{of_scales:?} scales do not fit weights of {shape:?}"))),
    };
    let dtype = builder.dtype(weights);
    let is_short = matches!(dtype, DType::I8 | DType::U8) && builder.dtype(zero_points) == dtype;
    if !is_short || builder.dtype(scales) != DType::F32 || builder.shape(zero_points) != of_scales {
        return Err(Problem::Type { input, dtype });
    }
    let as_float = |tensor: TensorId, at: Vec<Index>| Expr::Cast(DType::F32, Box::new(load(tensor, at)));
    let distance = subtract(as_float(weights, vec![var(0), var(2), var(1)]), as_float(zero_points, at.clone()));
    builder.map(vec![directions, columns, depth], DType::F32, multiply(distance, load(scales, at)))
}

/// An input that may be left out.
fn given(
    builder: &mut Builder,
    op: &Operator,
    input: usize,
    dtype: DType,
    extents: &[Index],
) -> Result<Option<TensorId>, Problem> {
    let Some(tensor) = op.optional(input) else { return Ok(None) };
    if builder.dtype(tensor) != dtype {
        return Err(Problem::Type { input, dtype: builder.dtype(tensor) });
    }
    let found = builder.extents(tensor);
    if found.len() != extents.len() {
        return Err(Problem::Shape(format!("input {input} has {} dimensions, not {}", found.len(), extents.len())));
    }
    found.iter().zip(extents).try_for_each(|(found, extent)| builder.formulas.unify(found, extent))?;
    Ok(Some(tensor))
}

struct Direction<'a> {
    network: &'a Network,
    d: i64,
    backwards: bool,
    functions: &'a [Activation],
}

/// What a step reads beside the states.
struct Inputs {
    /// `[batch, gates · hidden]`: the product of the input, and the biases.
    x: TensorId,
    /// `[batch]`: whether the sequence has this step.
    valid: Option<TensorId>,
}

impl Direction<'_> {
    /// Outputs of all steps, `[steps, batch, hidden]`, and the last states.
    fn run(&self, builder: &mut Builder) -> Result<(TensorId, Vec<TensorId>), Problem> {
        let states = (0..self.network.states()).map(|state| self.initial(builder, state));
        let states = states.collect::<Result<Vec<_>, _>>()?;
        let mut scanned = vec![self.input_product(builder)?];
        scanned.extend(self.valid(builder)?);
        let most = if builder.is_repeated() { UNROLLED_INSIDE } else { UNROLLED_STEPS };
        if let Some(steps) = self.network.steps.as_constant().filter(|steps| *steps <= most) {
            return self.unroll(builder, steps, states, &scanned);
        }
        let scanned: Vec<(TensorId, bool)> = scanned.into_iter().map(|whole| (whole, self.backwards)).collect();
        let open = builder.open_repeat(&self.network.steps, &states, &scanned)?;
        let (next, output) = self.step(builder, &open.currents(), &Inputs::of(&open.parts()))?;
        let (last, outputs) = builder.close_repeat(open, &next, &[(output, self.backwards)])?;
        Ok((outputs[0], last))
    }

    fn unroll(
        &self,
        builder: &mut Builder,
        steps: i64,
        mut states: Vec<TensorId>,
        scanned: &[TensorId],
    ) -> Result<(TensorId, Vec<TensorId>), Problem> {
        let mut outputs = Vec::new();
        for step in 0..steps {
            let place = if self.backwards { steps - 1 - step } else { step };
            let parts = scanned.iter().map(|whole| element(builder, *whole, 0, place));
            let parts = parts.collect::<Result<Vec<_>, _>>()?;
            let (next, output) = self.step(builder, &states, &Inputs::of(&parts))?;
            states = next;
            outputs.push(output);
        }
        if self.backwards {
            outputs.reverse();
        }
        Ok((stack(builder, &outputs, 0)?, states))
    }

    /// `[batch, hidden]`
    fn initial(&self, builder: &mut Builder, state: usize) -> Result<TensorId, Problem> {
        let Network { hidden, batch_first, initial, .. } = *self.network;
        let value = match initial[state] {
            None => float(0.0),
            Some(initial) => {
                let d = Index::constant(self.d);
                load(initial, if batch_first { vec![var(0), d, var(1)] } else { vec![d, var(0), var(1)] })
            }
        };
        builder.map_over(&self.of_batch(hidden), DType::F32, value)
    }

    /// `[batch, columns]`
    fn of_batch(&self, columns: i64) -> [Index; 2] {
        [self.network.batch.clone(), Index::constant(columns)]
    }

    /// `[steps, batch]`, where sequences have different lengths.
    fn valid(&self, builder: &mut Builder) -> Result<Option<TensorId>, Problem> {
        let Network { steps, batch, lengths: Some(lengths), .. } = self.network else { return Ok(None) };
        let length = Expr::Cast(DType::I64, Box::new(load(*lengths, vec![var(1)])));
        let value = less(Expr::Index(var(0)), length);
        Ok(Some(builder.map_over(&[steps.clone(), batch.clone()], DType::Bool, value)?))
    }

    /// `[steps, batch, gates · hidden]`: the product of the input for all steps, with all biases but the one
    /// that is reset with the state.
    fn input_product(&self, builder: &mut Builder) -> Result<TensorId, Problem> {
        let Network { cell, input, hidden, batch_first, x, w, resets_late, .. } = *self.network;
        let x = self.network.factor(builder, x)?;
        let wide = cell.gates() * hidden;
        let at = if batch_first { vec![var(1), var(0), var(3)] } else { vec![var(0), var(1), var(3)] };
        let value = multiply(load(x, at), load(w, vec![Index::constant(self.d), var(2), var(3)]));
        let extents = [self.network.steps.clone(), self.network.batch.clone(), Index::constant(wide)];
        let depth = [Index::constant(input)];
        let product = builder.reduce_over(&extents, &depth, Combiner::Sum, DType::F32, value)?;
        let Some(bias) = self.network.bias else { return Ok(product) };
        let of = |first: i64| load(bias, vec![Index::constant(self.d), var(0).plus_constant(first)]);
        let both = add(of(0), of(wide));
        let value = match resets_late {
            true => Expr::guard(vec![within(var(0), 0, 2 * hidden)], both, of(0)),
            false => both,
        };
        let bias = builder.map(vec![wide], DType::F32, value)?;
        builder.map_over(&extents, DType::F32, add(load(product, vars(0, 3)), load(bias, vec![var(2)])))
    }

    /// The state times a part of the recurrent weights, `[batch, columns]`.
    fn state_product(
        &self,
        builder: &mut Builder,
        state: TensorId,
        first: i64,
        columns: i64,
    ) -> Result<TensorId, Problem> {
        let Network { hidden, r, .. } = *self.network;
        let state = self.network.factor(builder, state)?;
        let weight = load(r, vec![Index::constant(self.d), var(1).plus_constant(first), var(2)]);
        let value = multiply(load(state, vec![var(0), var(2)]), weight);
        builder.reduce_over(&self.of_batch(columns), &[Index::constant(hidden)], Combiner::Sum, DType::F32, value)
    }

    /// The next states, and the output.
    fn step(
        &self,
        builder: &mut Builder,
        states: &[TensorId],
        inputs: &Inputs,
    ) -> Result<(Vec<TensorId>, TensorId), Problem> {
        let next = match self.network.cell {
            Cell::Lstm => self.lstm(builder, states[0], states[1], inputs.x)?,
            Cell::Gru => vec![self.gru(builder, states[0], inputs.x)?],
            Cell::Plain => vec![self.plain(builder, states[0], inputs.x)?],
        };
        let Some(valid) = inputs.valid else { return Ok((next.clone(), next[0])) };
        let shape = self.of_batch(self.network.hidden);
        let own = vars(0, 2);
        let mut chosen = |yes: TensorId, no: Expr| {
            builder.map_over(&shape, DType::F32, Expr::select(load(valid, vec![var(0)]), load(yes, own.clone()), no))
        };
        let kept = next.iter().zip(states).map(|(next, state)| chosen(*next, load(*state, own.clone())));
        let kept = kept.collect::<Result<Vec<_>, _>>()?;
        Ok((kept, chosen(next[0], literal(DType::F32, 0.0))?))
    }

    fn plain(&self, builder: &mut Builder, state: TensorId, x: TensorId) -> Result<TensorId, Problem> {
        let Network { hidden, .. } = *self.network;
        let product = self.state_product(builder, state, 0, hidden)?;
        let sum = add(load(product, vars(0, 2)), load(x, vars(0, 2)));
        builder.map_over(&self.of_batch(hidden), DType::F32, self.functions[0].of(sum))
    }

    /// Gates: input, output, forget, cell. Peepholes: input, output, forget.
    fn lstm(
        &self,
        builder: &mut Builder,
        state: TensorId,
        cell: TensorId,
        x: TensorId,
    ) -> Result<Vec<TensorId>, Problem> {
        let Network { hidden, peepholes, couples_forget, .. } = *self.network;
        let [f, g, h] = self.functions else { return Err(Problem::MissingAttribute("activations")) };
        let product = self.state_product(builder, state, 0, 4 * hidden)?;
        let sum = add(load(product, vars(0, 2)), load(x, vars(0, 2)));
        let gates = builder.map_over(&self.of_batch(4 * hidden), DType::F32, sum)?;
        let gate = |gate: i64| load(gates, vec![var(0), var(1).plus_constant(gate * hidden)]);
        let peeping = |number: i64, cell: TensorId| match peepholes {
            None => gate(number),
            Some(peepholes) => {
                let weight = load(peepholes, vec![Index::constant(self.d), var(1).plus_constant(number * hidden)]);
                add(gate(number), multiply(weight, load(cell, vars(0, 2))))
            }
        };
        let input = f.of(peeping(0, cell));
        let forget = if couples_forget { subtract(float(1.0), input.clone()) } else { f.of(peeping(2, cell)) };
        let value = add(multiply(forget, load(cell, vars(0, 2))), multiply(input, g.of(gate(3))));
        let next = builder.map_over(&self.of_batch(hidden), DType::F32, value)?;
        let value = multiply(f.of(peeping(1, next)), h.of(load(next, vars(0, 2))));
        Ok(vec![builder.map_over(&self.of_batch(hidden), DType::F32, value)?, next])
    }

    /// Gates: update, reset, hidden.
    fn gru(&self, builder: &mut Builder, state: TensorId, x: TensorId) -> Result<TensorId, Problem> {
        let Network { hidden, bias, resets_late, .. } = *self.network;
        let [f, g] = self.functions else { return Err(Problem::MissingAttribute("activations")) };
        let shape = self.of_batch(hidden);
        let columns = if resets_late { 3 * hidden } else { 2 * hidden };
        let product = self.state_product(builder, state, 0, columns)?;
        let at = |tensor: TensorId, gate: i64| load(tensor, vec![var(0), var(1).plus_constant(gate * hidden)]);
        let gate = |gate: i64| f.of(add(at(product, gate), at(x, gate)));
        let own = |tensor: TensorId| load(tensor, vars(0, 2));
        let candidate = if resets_late {
            let late = match bias {
                None => at(product, 2),
                Some(bias) => {
                    let place = var(1).plus_constant(5 * hidden);
                    add(at(product, 2), load(bias, vec![Index::constant(self.d), place]))
                }
            };
            g.of(add(at(x, 2), multiply(gate(1), late)))
        } else {
            let reset = builder.map_over(&shape, DType::F32, multiply(gate(1), own(state)))?;
            let late = self.state_product(builder, reset, 2 * hidden, hidden)?;
            g.of(add(at(x, 2), own(late)))
        };
        let update = builder.map_over(&shape, DType::F32, gate(0))?;
        let value = add(multiply(subtract(float(1.0), own(update)), candidate), multiply(own(update), own(state)));
        builder.map_over(&shape, DType::F32, value)
    }
}

impl Inputs {
    fn of(parts: &[TensorId]) -> Inputs {
        Inputs { x: parts[0], valid: parts.get(1).copied() }
    }
}
