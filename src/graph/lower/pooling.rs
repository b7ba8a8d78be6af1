//! Poolings over windows and over whole planes.

use super::builder::{Builder, flat_index, unflatten};
use super::math::{
    add, divide, equal, float, literal, load, maximum, minimum, multiply, power, square, subtract, var, vars,
};
use super::operator::{Operator, Problem};
use super::reduction::Axes;
use super::reshape::reshape_to;
use super::window::{OpenWindow, Window, positions, windows};
use crate::graph::TensorData;
use crate::workload::{Combiner, DType, Expr, Index, TensorId};

/// `MaxPool`, `AveragePool` and `LpPool` of `[n, c, ..]`.
pub fn pool(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let x = op.input(0)?;
    let (shape, dtype) = (builder.shape(x), builder.dtype(x));
    let is_short = matches!(dtype, DType::I8 | DType::U8);
    if dtype != DType::F32 && !(is_short && op.kind == "MaxPool") {
        return Err(Problem::Type { input: 0, dtype });
    }
    if shape.len() < 3 {
        return Err(Problem::Shape(format!("{shape:?} has no dimensions to pool over")));
    }
    let kernel = op.ints("kernel_shape")?.ok_or(Problem::MissingAttribute("kernel_shape"))?;
    let extents = builder.extents(x);
    let windows = windows(builder, op, &extents[2..], kernel)?;
    let rank = windows.len();
    let (at, guards) = positions(&windows, 2, 2 + rank);
    let read = load(x, [vars(0, 2), at.clone()].concat());
    let spatial: Vec<Index> = extents[..2].iter().cloned().chain(windows.iter().map(|w| w.output_extent())).collect();
    let taps: Vec<Index> = kernel.iter().map(|extent| Index::constant(*extent)).collect();
    let combine = |builder: &mut Builder, combiner: Combiner, value: Expr| {
        builder.reduce_over(&spatial, &taps, combiner, dtype, value)
    };
    let result = match op.kind.as_str() {
        "MaxPool" => {
            let least = if dtype.is_float() { f64::NEG_INFINITY } else { dtype.least() as f64 };
            let value = Expr::guard(guards.clone(), read.clone(), literal(dtype, least));
            let largest = combine(builder, Combiner::Maximum, value)?;
            if !op.wants_output(1) {
                return Ok(vec![largest]);
            }
            let own = vars(0, 2 + rank);
            if extents[1..].iter().any(|extent| extent.as_constant().is_none()) {
                return Err(Problem::Unsupported("the places of maxima with run-time extents".to_string()));
            }
            let is_largest = equal(read, load(largest, own));
            // the first place of the largest; where nothing equals it (not a number), still a place
            let last = Expr::Index(builder.formulas.product(&extents)?.plus_constant(-1));
            let place = Expr::Index(flat_index(&shape, &[vars(0, 2), at].concat()));
            let value = Expr::guard(guards, Expr::select(is_largest, place, last.clone()), last);
            let place = builder.reduce_over(&spatial, &taps, Combiner::Minimum, DType::I64, value)?;
            let place = if op.flag("storage_order", false)? { column_major(builder, place, &shape)? } else { place };
            return Ok(vec![largest, place]);
        }
        "AveragePool" => {
            let total = combine(builder, Combiner::Sum, Expr::guard(guards, read, float(0.0)))?;
            let shares = shares(builder, &windows, op.flag("count_include_pad", false)?)?;
            builder.map_over(&spatial, dtype, multiply(load(total, vars(0, 2 + rank)), shares))?
        }
        "LpPool" => {
            let (powered, root) = norm(op)?;
            let total = combine(builder, Combiner::Sum, Expr::guard(guards, powered(read), float(0.0)))?;
            builder.map_over(&spatial, dtype, root(load(total, vars(0, 2 + rank))))?
        }
        other => return Err(Problem::Unsupported(other.to_string())),
    };
    Ok(vec![result])
}

/// Places in a tensor `[n, c, ..]` of this shape, counted so that the first dimension of a plane is the
/// innermost.
fn column_major(builder: &mut Builder, places: TensorId, shape: &[i64]) -> Result<TensorId, Problem> {
    let own = builder.shape(places);
    let place = Index::value(load(places, vars(0, own.len())));
    let plane: i64 = shape[2..].iter().product();
    let mut stride = 1;
    let mut counted = place.clone().floor_div(plane).times(plane);
    for (index, extent) in unflatten(&shape[2..], &place.modulo(plane)).into_iter().zip(&shape[2..]) {
        counted = counted.plus(&index.times(stride));
        stride *= extent;
    }
    builder.map(own, DType::I64, Expr::Index(counted))
}

/// What each sum is multiplied by to become an average: 1 over the taps that count, by output position.
fn shares(builder: &mut Builder, windows: &[Window], padding: bool) -> Result<Expr, Problem> {
    let mut uniform = 1.0;
    let mut factors: Option<Expr> = None;
    let mut product = |share: Expr| {
        factors = Some(match factors.take() {
            Some(before) => multiply(before, share),
            None => share,
        });
    };
    for (d, window) in windows.iter().enumerate() {
        if let Some(open) = &window.open {
            if open.stays_inside {
                uniform *= 1.0 / window.kernel as f64;
                continue;
            }
            let taps = taps_in_run(window, open, &var(2 + d), padding);
            product(divide(float(1.0), Expr::Cast(DType::F32, Box::new(taps))));
            continue;
        }
        builder.reserve(&[window.output], DType::F32)?;
        let shares: Vec<f32> = (0..window.output).map(|at| 1.0 / window.taps(at, padding).max(1) as f32).collect();
        if shares.iter().all(|share| *share == shares[0]) {
            uniform *= f64::from(shares[0]);
            continue;
        }
        let table = builder.constant(TensorData::from_f32(vec![window.output], &shares));
        product(load(table, vec![var(2 + d)]));
    }
    Ok(match factors {
        Some(factors) if uniform == 1.0 => factors,
        Some(factors) => multiply(factors, float(uniform)),
        None => float(uniform),
    })
}

/// [`Window::taps`], at least 1, where it is known only when the network runs.
fn taps_in_run(window: &Window, open: &OpenWindow, at: &Index, padding: bool) -> Expr {
    let Window { kernel, stride, dilation, .. } = *window;
    let start = at.clone().times(stride).minus(&open.pad_before);
    let before = |bound: Index| {
        let taps = Expr::Index(bound.minus(&start).plus_constant(dilation - 1).floor_div(dilation));
        minimum(maximum(taps, Expr::integer(0)), Expr::integer(kernel))
    };
    let (low, high) = match padding {
        true => (open.pad_before.clone().times(-1), open.input.clone().plus(&open.pad_after)),
        false => (Index::constant(0), open.input.clone()),
    };
    maximum(subtract(before(high), before(low)), Expr::integer(1))
}

type Function = Box<dyn Fn(Expr) -> Expr>;

/// What to sum for the p-norm, and what makes it of the sum.
fn norm(op: &Operator) -> Result<(Function, Function), Problem> {
    let absolute = super::math::absolute;
    Ok(match op.int("p", 2)? {
        1 => (Box::new(absolute), Box::new(|x| x)),
        2 => (Box::new(square), Box::new(super::math::sqrt)),
        p @ 3..=1024 => {
            (Box::new(move |x| power(absolute(x), float(p as f64))), Box::new(move |x| power(x, float(1.0 / p as f64))))
        }
        p => return Err(Problem::AttributeValue { name: "p", value: p.to_string() }),
    })
}

/// `GlobalAveragePool`, `GlobalMaxPool` and `GlobalLpPool` of `[n, c, ..]`.
pub fn global(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let x = op.input(0)?;
    let (shape, dtype) = (builder.shape(x), builder.dtype(x));
    if dtype != DType::F32 {
        return Err(Problem::Type { input: 0, dtype });
    }
    if shape.len() < 3 {
        return Err(Problem::Shape(format!("{shape:?} has no dimensions to pool over")));
    }
    let over = Axes::new(&shape, (2..shape.len()).collect());
    let read = load(x, over.indices.clone());
    let result = match op.kind.as_str() {
        "GlobalMaxPool" => over.reduce(builder, Combiner::Maximum, dtype, read)?,
        "GlobalAveragePool" => {
            let total = over.reduce(builder, Combiner::Sum, dtype, read)?;
            let mean = over.mean(builder, x)?;
            over.finish(builder, total, mean)?
        }
        "GlobalLpPool" => {
            let (powered, root) = norm(op)?;
            let total = over.reduce(builder, Combiner::Sum, dtype, powered(read))?;
            over.finish(builder, total, root)?
        }
        other => return Err(Problem::Unsupported(other.to_string())),
    };
    Ok(vec![reshape_to(builder, result, over.kept_shape(&shape))?])
}

/// Local response normalisation: `x / (bias + alpha / size · Σ x²)^beta` over `size` neighbouring channels.
pub fn local_response(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let x = op.input(0)?;
    let (shape, dtype) = (builder.shape(x), builder.dtype(x));
    if dtype != DType::F32 {
        return Err(Problem::Type { input: 0, dtype });
    }
    let size = op.optional_int("size")?.ok_or(Problem::MissingAttribute("size"))?;
    if shape.len() < 2 || !(1..1 << 30).contains(&size) {
        return Err(Problem::AttributeValue { name: "size", value: size.to_string() });
    }
    let (alpha, beta, bias) = (op.float("alpha", 0.0001)?, op.float("beta", 0.75)?, op.float("bias", 1.0)?);
    let rank = shape.len();
    let channels = Window {
        input: shape[1],
        output: shape[1],
        kernel: size,
        stride: 1,
        dilation: 1,
        pad_before: (size - 1) / 2,
        pad_after: size / 2,
        open: None,
    };
    let neighbour = channels.position(&var(1), &var(rank));
    let guard = channels.inside(&neighbour);
    let mut at = vars(0, rank);
    at[1] = neighbour;
    let value = Expr::guard(guard, square(load(x, at)), literal(dtype, 0.0));
    let total = builder.reduce(shape.clone(), vec![size], Combiner::Sum, dtype, value)?;
    let base = add(float(bias), multiply(float(alpha / size as f64), load(total, vars(0, rank))));
    let value = divide(load(x, vars(0, rank)), power(base, float(beta)));
    Ok(vec![builder.map(shape, dtype, value)?])
}
