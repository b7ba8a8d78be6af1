//! Operators that compute each element from the elements at the same place, after broadcasting.

use super::builder::Builder;
use super::math::{
    absolute, add, and, cast, divide, equal, exp, float, less, less_equal, literal, load, log, maximum, minimum,
    multiply, not, or, power, sigmoid, sqrt, square, subtract, tanh, vars,
};
use super::operator::{Operator, Problem};
use crate::workload::{Binary, DType, Expr, TensorId, Unary};

/// Functions of one number.
pub fn unary(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let dtype = builder.dtype(input);
    let shape = builder.shape(input);
    let x = builder.broadcast(input, &shape);
    let keeps_integers = matches!(op.kind.as_str(), "Abs" | "Neg" | "Sign" | "Relu");
    if dtype == DType::Bool || (!dtype.is_float() && !keeps_integers) {
        return Err(Problem::Type { input: 0, dtype });
    }
    let value = of_one(&op.kind, dtype, x).ok_or_else(|| Problem::Unsupported(op.kind.clone()))?;
    let value = if matches!(op.kind.as_str(), "Neg" | "Abs") { wrapped(dtype, value) } else { value };
    Ok(vec![builder.map(shape, dtype, value)?])
}

/// Whether an operator is a function of one number.
pub fn is_unary(kind: &str) -> bool {
    of_one(kind, DType::F32, float(0.0)).is_some()
}

/// A function of one number without parameters.
pub fn of_one(kind: &str, dtype: DType, x: Expr) -> Option<Expr> {
    Some(match kind {
        "Abs" => absolute(x),
        "Neg" => Expr::unary(Unary::Negate, x),
        "Sign" => Expr::unary(Unary::Sign, x),
        "Relu" => maximum(x, literal(dtype, 0.0)),
        "Exp" => exp(x),
        "Log" => log(x),
        "Sqrt" => sqrt(x),
        "Reciprocal" => Expr::unary(Unary::Reciprocal, x),
        "Erf" => Expr::unary(Unary::Erf, x),
        "Tanh" => tanh(x),
        "Sigmoid" => sigmoid(x),
        "Sin" => Expr::unary(Unary::Sin, x),
        "Cos" => Expr::unary(Unary::Cos, x),
        "Tan" => Expr::unary(Unary::Tan, x),
        "Floor" => Expr::unary(Unary::Floor, x),
        "Ceil" => Expr::unary(Unary::Ceil, x),
        "Round" => Expr::unary(Unary::Round, x),
        "Asin" => Expr::unary(Unary::Asin, x),
        "Acos" => Expr::unary(Unary::Acos, x),
        "Atan" => Expr::unary(Unary::Atan, x),
        "Sinh" => Expr::unary(Unary::Sinh, x),
        "Cosh" => Expr::unary(Unary::Cosh, x),
        "Asinh" => Expr::unary(Unary::Asinh, x),
        // of the hyperbolic sine, √(x² - 1), which neither cancels near 1 nor overflows
        "Acosh" => {
            let sine = multiply(sqrt(subtract(x.clone(), float(1.0))), sqrt(add(x, float(1.0))));
            Expr::unary(Unary::Asinh, sine)
        }
        "Atanh" => Expr::unary(Unary::Atanh, x),
        "Softplus" => softplus(x),
        "Softsign" => divide(x.clone(), add(float(1.0), absolute(x))),
        "HardSwish" => multiply(x.clone(), hard_sigmoid(x, 1.0 / 6.0, 0.5)),
        "Mish" => multiply(x.clone(), tanh(softplus(x))),
        _ => return None,
    })
}

fn negate(x: Expr) -> Expr {
    Expr::unary(Unary::Negate, x)
}

/// `log(1 + exp(x))`, without overflow.
fn softplus(x: Expr) -> Expr {
    add(maximum(x.clone(), float(0.0)), log(add(float(1.0), exp(negate(absolute(x))))))
}

pub fn hard_sigmoid(x: Expr, alpha: f64, beta: f64) -> Expr {
    let line = add(multiply(float(alpha), x), float(beta));
    maximum(float(0.0), minimum(float(1.0), line))
}

pub fn leaky_relu(x: Expr, alpha: f64) -> Expr {
    Expr::select(less(x.clone(), float(0.0)), multiply(float(alpha), x.clone()), x)
}

pub fn thresholded_relu(x: Expr, alpha: f64) -> Expr {
    Expr::select(less(float(alpha), x.clone()), x, float(0.0))
}

pub fn elu(x: Expr, alpha: f64) -> Expr {
    // 0 where it is not less than 0: exp cannot overflow there
    let below = minimum(x.clone(), float(0.0));
    add(maximum(x, float(0.0)), multiply(float(alpha), subtract(exp(below), float(1.0))))
}

/// Activations with parameters.
pub fn activation(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let dtype = builder.dtype(input);
    if dtype != DType::F32 {
        return Err(Problem::Type { input: 0, dtype });
    }
    let shape = builder.shape(input);
    let x = builder.broadcast(input, &shape);
    // 0 where it is not less than 0: exp cannot overflow there
    let below = || minimum(x.clone(), float(0.0));
    let exp_minus_1 = |x: Expr| subtract(exp(x), float(1.0));
    let value = match op.kind.as_str() {
        "LeakyRelu" => leaky_relu(x.clone(), op.float("alpha", 0.01)?),
        "Elu" => elu(x.clone(), op.float("alpha", 1.0)?),
        "Selu" => {
            let alpha = op.float("alpha", 1.673_263_242_354_377_3)?;
            let gamma = op.float("gamma", 1.050_700_987_355_480_5)?;
            let negative = multiply(float(alpha), exp_minus_1(below()));
            multiply(float(gamma), add(maximum(x.clone(), float(0.0)), negative))
        }
        "Celu" => {
            let alpha = op.float("alpha", 1.0)?;
            let negative = multiply(float(alpha), exp_minus_1(divide(below(), float(alpha))));
            add(maximum(x.clone(), float(0.0)), negative)
        }
        "HardSigmoid" => hard_sigmoid(x.clone(), op.float("alpha", 0.2)?, op.float("beta", 0.5)?),
        "ThresholdedRelu" => thresholded_relu(x.clone(), op.float("alpha", 1.0)?),
        "Shrink" => {
            let (bias, lambd) = (op.float("bias", 0.0)?, op.float("lambd", 0.5)?);
            let above = Expr::select(less(float(lambd), x.clone()), subtract(x.clone(), float(bias)), float(0.0));
            Expr::select(less(x.clone(), float(-lambd)), add(x.clone(), float(bias)), above)
        }
        "Swish" => multiply(x.clone(), sigmoid(multiply(float(op.float("alpha", 1.0)?), x.clone()))),
        "Gelu" => match op.text("approximate", "none")? {
            "none" => {
                let erf = Expr::unary(Unary::Erf, multiply(x.clone(), float(std::f64::consts::FRAC_1_SQRT_2)));
                multiply(multiply(float(0.5), x.clone()), add(float(1.0), erf))
            }
            "tanh" => {
                let cube = multiply(square(x.clone()), x.clone());
                let inner = add(x.clone(), multiply(float(0.044715), cube));
                let tanh = tanh(multiply(float((2.0 / std::f64::consts::PI).sqrt()), inner));
                multiply(multiply(float(0.5), x.clone()), add(float(1.0), tanh))
            }
            other => return Err(Problem::AttributeValue { name: "approximate", value: other.to_string() }),
        },
        other => return Err(Problem::Unsupported(other.to_string())),
    };
    Ok(vec![builder.map(shape, dtype, value)?])
}

/// Operators of two or three tensors that broadcast against each other.
pub fn broadcasting(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let inputs = op.all_inputs()?;
    let shape = builder.broadcast_shape_of(&inputs)?;
    let args: Vec<Expr> = inputs.iter().map(|input| builder.broadcast(*input, &shape)).collect();
    let types: Vec<DType> = inputs.iter().map(|input| builder.dtype(*input)).collect();
    if op.kind == "Where" {
        return select(builder, shape, types, args);
    }
    let [x, y] = <[Expr; 2]>::try_from(args).map_err(|args| Problem::MissingInput(args.len().min(2)))?;
    let dtype = types[0];
    let is_integer = !dtype.is_float() && dtype != DType::Bool;
    let takes = match op.kind.as_str() {
        "And" | "Or" | "Xor" => dtype == DType::Bool,
        "Equal" => true,
        _ => dtype != DType::Bool,
    };
    if !takes {
        return Err(Problem::Type { input: 0, dtype });
    }
    if op.kind == "Pow" {
        return pow(builder, shape, &inputs, x, y);
    }
    if types[1] != dtype {
        return Err(Problem::Type { input: 1, dtype: types[1] });
    }
    let (result, value) = match op.kind.as_str() {
        "Add" => (dtype, wrapped(dtype, add(x, y))),
        "Sub" => (dtype, wrapped(dtype, subtract(x, y))),
        "Mul" => (dtype, wrapped(dtype, multiply(x, y))),
        "Div" if is_integer => (dtype, wrapped(dtype, truncating_divide(dtype, x, y))),
        "Div" => (dtype, divide(x, y)),
        "PRelu" => (dtype, Expr::select(less(x.clone(), literal(dtype, 0.0)), multiply(y, x.clone()), x)),
        "Mod" if op.flag("fmod", false)? && is_integer => {
            let quotient = truncating_divide(dtype, x.clone(), y.clone());
            (dtype, subtract(x, multiply(quotient, y)))
        }
        "Mod" => (dtype, Expr::binary(Binary::Remainder, x, y)),
        "Equal" => (DType::Bool, equal(x, y)),
        "Less" => (DType::Bool, less(x, y)),
        "LessOrEqual" => (DType::Bool, less_equal(x, y)),
        "Greater" => (DType::Bool, less(y, x)),
        "GreaterOrEqual" => (DType::Bool, less_equal(y, x)),
        "And" => (DType::Bool, and(x, y)),
        "Or" => (DType::Bool, or(x, y)),
        "Xor" => (DType::Bool, not(equal(x, y))),
        other => return Err(Problem::Unsupported(other.to_string())),
    };
    Ok(vec![builder.map(shape, result, value)?])
}

/// A result of short integers, of which only the low bits count: integers are computed in 64 bits, and what
/// reads the result may be fused with what computes it.
fn wrapped(dtype: DType, value: Expr) -> Expr {
    let is_short = !dtype.is_float() && dtype != DType::Bool && dtype.bits() < 32 || dtype == DType::U32;
    if is_short { Expr::Cast(dtype, Box::new(value)) } else { value }
}

fn select(
    builder: &mut Builder,
    shape: Vec<i64>,
    types: Vec<DType>,
    args: Vec<Expr>,
) -> Result<Vec<TensorId>, Problem> {
    let [condition, yes, no] = <[Expr; 3]>::try_from(args).map_err(|args| Problem::MissingInput(args.len().min(3)))?;
    if types[0] != DType::Bool {
        return Err(Problem::Type { input: 0, dtype: types[0] });
    }
    if types[1] != types[2] {
        return Err(Problem::Type { input: 2, dtype: types[2] });
    }
    Ok(vec![builder.map(shape, types[1], Expr::select(condition, yes, no))?])
}

/// C's division of integers, which rounds towards zero, by one that rounds down.
fn truncating_divide(dtype: DType, x: Expr, y: Expr) -> Expr {
    if !dtype.is_signed() {
        return divide(x, y);
    }
    let zero = || literal(dtype, 0.0);
    let down = divide(x.clone(), y.clone());
    let inexact = not(equal(multiply(down.clone(), y.clone()), x.clone()));
    let negative = not(equal(less(x, zero()), less(y, zero())));
    Expr::select(and(inexact, negative), add(down.clone(), literal(dtype, 1.0)), down)
}

/// Small constant exponents become products. Integers to the power of integers are exact, and wrap.
fn pow(
    builder: &mut Builder,
    shape: Vec<i64>,
    inputs: &[TensorId],
    x: Expr,
    y: Expr,
) -> Result<Vec<TensorId>, Problem> {
    let (base, exponent) = (builder.dtype(inputs[0]), builder.dtype(inputs[1]));
    if exponent == DType::Bool {
        return Err(Problem::Type { input: 1, dtype: exponent });
    }
    let constant = builder.scalar(inputs[1]);
    let value = match constant {
        Some(1.0) => x,
        Some(2.0) => square(x),
        Some(3.0) => multiply(square(x.clone()), x),
        Some(4.0) => square(square(x)),
        Some(0.5) if base == DType::F32 => sqrt(x),
        _ if base == DType::F32 => power(x, cast(exponent, DType::F32, y)),
        _ if base.is_float() => return Err(Problem::Type { input: 0, dtype: base }),
        _ if exponent.is_float() => {
            let power = power(cast(base, DType::F32, x), cast(exponent, DType::F32, y.clone()));
            let whole = Expr::unary(Unary::Round, power.clone());
            let is_whole = equal(Expr::unary(Unary::Floor, y.clone()), y);
            Expr::Cast(base, Box::new(Expr::select(is_whole, whole, power)))
        }
        _ => integer_power(builder, &shape, cast(base, DType::I64, x), cast(exponent, DType::I64, y), base)?,
    };
    Ok(vec![builder.map(shape, base, value)?])
}

/// By squaring. An exponent of 64 or more overflows, whatever it is, unless the base is 0, 1 or -1.
fn integer_power(builder: &mut Builder, shape: &[i64], x: Expr, y: Expr, dtype: DType) -> Result<Expr, Problem> {
    const BITS: u32 = 6;
    let integer = Expr::integer;
    let odd = |value: Expr| Expr::binary(Binary::Remainder, value, integer(2));
    let size = || absolute(y.clone());
    let is_small = less(size(), integer(1 << BITS));
    let exponent = Expr::select(is_small, size(), add(integer((1 << BITS) - 2), odd(size())));
    let exponent = builder.map(shape.to_vec(), DType::I64, exponent)?;
    let own = |tensor: TensorId| load(tensor, vars(0, shape.len()));
    let mut square_of = builder.map(shape.to_vec(), DType::I64, x.clone())?;
    let mut value: Option<Expr> = None;
    for bit in 0..BITS {
        let is_set = equal(odd(divide(own(exponent), integer(1 << bit))), integer(1));
        let factor = Expr::select(is_set, own(square_of), integer(1));
        value = Some(value.map_or(factor.clone(), |value| multiply(value, factor)));
        if bit + 1 < BITS {
            square_of = builder.map(shape.to_vec(), DType::I64, square(own(square_of)))?;
        }
    }
    // of a negative exponent, only what has no fraction is left
    let is_unit = equal(absolute(x), integer(1));
    let vanishes = and(less(y, integer(0)), not(is_unit));
    let value = Expr::select(vanishes, integer(0), value.unwrap_or_else(|| integer(1)));
    Ok(cast(DType::I64, dtype, value))
}

/// `Sum`, `Mean`, `Max` and `Min` of any number of tensors.
pub fn variadic(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let inputs = op.all_inputs()?;
    let dtype = builder.dtype(inputs[0]);
    if dtype == DType::Bool || (op.kind == "Mean" && !dtype.is_float()) {
        return Err(Problem::Type { input: 0, dtype });
    }
    if let Some(position) = inputs.iter().position(|input| builder.dtype(*input) != dtype) {
        return Err(Problem::Type { input: position, dtype: builder.dtype(inputs[position]) });
    }
    let combine = match op.kind.as_str() {
        "Max" => maximum,
        "Min" => minimum,
        _ => add,
    };
    let shape = builder.broadcast_shape_of(&inputs)?;
    // one stage reads at most this many tensors
    const MOST: usize = 32;
    let mut terms: Vec<TensorId> = inputs.clone();
    while terms.len() > MOST {
        let mut partial = Vec::new();
        for some in terms.chunks(MOST) {
            let value = reduce_terms(builder, some, &shape, combine);
            partial.push(builder.map(shape.clone(), dtype, value)?);
        }
        terms = partial;
    }
    let mut value = reduce_terms(builder, &terms, &shape, combine);
    if op.kind == "Mean" && inputs.len() > 1 {
        value = divide(value, literal(dtype, inputs.len() as f64));
    }
    Ok(vec![builder.map(shape, dtype, value)?])
}

fn reduce_terms(builder: &Builder, terms: &[TensorId], shape: &[i64], combine: fn(Expr, Expr) -> Expr) -> Expr {
    let mut loads = terms.iter().map(|term| builder.broadcast(*term, shape));
    let first = loads.next().unwrap_or_else(|| float(0.0));
    loads.fold(first, combine)
}

/// Bounds are attributes before opset 11, and optional inputs since.
pub fn clip(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let (shape, dtype) = (builder.shape(input), builder.dtype(input));
    if dtype == DType::Bool {
        return Err(Problem::Type { input: 0, dtype });
    }
    let bound = |position: usize, name: &'static str| -> Result<Option<Expr>, Problem> {
        if op.opset < 11 {
            let value = op.has(name).then(|| op.float(name, 0.0)).transpose()?;
            return Ok(value.map(|value| literal(dtype, value)));
        }
        let Some(tensor) = op.optional(position) else { return Ok(None) };
        if builder.dtype(tensor) != dtype {
            return Err(Problem::Type { input: position, dtype: builder.dtype(tensor) });
        }
        if builder.rank(tensor) > 0 && builder.shape(tensor) != [1] {
            return Err(Problem::Shape(format!("{name} has to be a scalar")));
        }
        Ok(Some(builder.broadcast(tensor, &[1])))
    };
    let mut value = builder.broadcast(input, &shape);
    let (low, high) = (bound(1, "min")?, bound(2, "max")?);
    if let Some(low) = low {
        value = maximum(value, low);
    }
    if let Some(high) = high {
        value = minimum(value, high);
    }
    Ok(vec![builder.map(shape, dtype, value)?])
}

pub fn convert(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let to = match op.kind.as_str() {
        "CastLike" => builder.dtype(op.input(1)?),
        _ => {
            let code = op.optional_int("to")?.ok_or(Problem::MissingAttribute("to"))?;
            DType::from_onnx(code).ok_or_else(|| Problem::AttributeValue { name: "to", value: code.to_string() })?
        }
    };
    let (shape, from) = (builder.shape(input), builder.dtype(input));
    if from == to {
        return Ok(vec![input]);
    }
    let own = load_own(builder, input, &shape);
    Ok(vec![builder.map(shape, to, cast(from, to, own))?])
}

/// `Not`, `IsNaN` and `IsInf`.
pub fn predicate(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let input = op.input(0)?;
    let (shape, dtype) = (builder.shape(input), builder.dtype(input));
    let takes = if op.kind == "Not" { dtype == DType::Bool } else { dtype == DType::F32 };
    if !takes {
        return Err(Problem::Type { input: 0, dtype });
    }
    let x = load_own(builder, input, &shape);
    let infinite = |x: Expr, sign: f64| equal(x, float(sign * f64::INFINITY));
    let value = match op.kind.as_str() {
        "Not" => not(x),
        "IsNaN" => not(equal(x.clone(), x)),
        "IsInf" => match (op.flag("detect_negative", true)?, op.flag("detect_positive", true)?) {
            (true, true) => infinite(absolute(x), 1.0),
            (true, false) => infinite(x, -1.0),
            (false, true) => infinite(x, 1.0),
            (false, false) => Expr::Cast(DType::Bool, Box::new(Expr::integer(0))),
        },
        other => return Err(Problem::Unsupported(other.to_string())),
    };
    let extents = builder.extents(input);
    Ok(vec![builder.map_over(&extents, DType::Bool, value)?])
}

/// The element at the point of the axes.
fn load_own(builder: &Builder, tensor: TensorId, shape: &[i64]) -> Expr {
    builder.broadcast(tensor, shape)
}
