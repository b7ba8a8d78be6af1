//! How far a result moves where a float on its way is rounded to another whole number.

use crate::workload::{Binary, DType, Expr, TensorId, Unary};

/// By how much a value changes where floats that it is computed from are rounded to neighbours, each once,
/// and what it loads changes by `of_loaded`; 0 where that is beyond this analysis.
pub(super) fn jump(expr: &Expr, of_loaded: &dyn Fn(TensorId) -> f64, of: &dyn Fn(TensorId) -> DType) -> f64 {
    let inner = |x: &Expr| jump(x, of_loaded, of);
    match expr {
        Expr::Load { tensor, .. } => of_loaded(*tensor),
        Expr::Unary(Unary::Round | Unary::Floor | Unary::Ceil, x) => 1.0 + inner(x).ceil(),
        // a conversion to integers rounds what nobody rounded before
        Expr::Cast(to, x) if !to.is_float() && x.dtype(of).is_float() && !x.is_whole_float() => 1.0 + inner(x).ceil(),
        Expr::Cast(_, x) => inner(x),
        Expr::Unary(op, x) => steepness(*op) * inner(x),
        Expr::Binary(Binary::Add | Binary::Subtract, x, y) => inner(x) + inner(y),
        Expr::Binary(Binary::Maximum | Binary::Minimum, x, y) => inner(x).max(inner(y)),
        Expr::Binary(Binary::Multiply, x, y) => {
            let part = |moving: f64, other: &Expr| if moving == 0.0 { 0.0 } else { moving * bound(other, of) };
            let moved = part(inner(x), y) + part(inner(y), x);
            if moved.is_finite() { moved } else { 0.0 }
        }
        Expr::Binary(Binary::Divide, x, y) => match &**y {
            Expr::Float(divisor) if divisor.0 != 0.0 => inner(x) / divisor.0.abs(),
            _ => 0.0,
        },
        Expr::Guard { inside, outside, .. } => inner(inside).max(inner(outside)),
        _ => 0.0,
    }
}

/// How much faster than its operand a function changes at most; 0 where there is no such number.
fn steepness(op: Unary) -> f64 {
    match op {
        Unary::Negate | Unary::Absolute | Unary::Tanh => 1.0,
        Unary::Sigmoid => 0.25,
        // 2 / √π
        Unary::Erf => std::f64::consts::FRAC_2_SQRT_PI,
        _ => 0.0,
    }
}

/// How large a value is at most; infinite where nothing is known.
fn bound(expr: &Expr, of: &dyn Fn(TensorId) -> DType) -> f64 {
    let inner = |x: &Expr| bound(x, of);
    match expr {
        Expr::Float(value) => value.0.abs(),
        Expr::Index(index) => index.as_constant().map_or(f64::INFINITY, |value| (value as f64).abs()),
        Expr::Load { tensor, .. } => largest(of(*tensor)),
        Expr::Cast(to, x) => inner(x).min(largest(*to)),
        Expr::Unary(Unary::Sigmoid | Unary::Tanh | Unary::Erf, _) => 1.0,
        Expr::Unary(Unary::Negate | Unary::Absolute, x) => inner(x),
        Expr::Unary(Unary::Round | Unary::Floor | Unary::Ceil, x) => inner(x) + 1.0,
        Expr::Binary(Binary::Add | Binary::Subtract, x, y) => inner(x) + inner(y),
        Expr::Binary(Binary::Multiply, x, y) => inner(x) * inner(y),
        Expr::Binary(Binary::Maximum | Binary::Minimum, ..) => {
            expr.as_clamped().map_or(f64::INFINITY, |(low, high, _)| low.abs().max(high.abs()))
        }
        Expr::Guard { inside, outside, .. } => inner(inside).max(inner(outside)),
        _ => f64::INFINITY,
    }
}

/// The largest magnitude of a byte; longer numbers have none that would say anything.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::Bool => 1.0,
        DType::U8 => 255.0,
        DType::I8 => 128.0,
        _ => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::jump;
    use crate::workload::Workload;

    /// How far an element of bytes may be off that a value gives, of bytes `t0` and floats `t1`.
    fn of(value: &str) -> f64 {
        let text = format!("input t0 u8 300\ninput t1 300\nout t2 u8 300 cast u8 min 255.0 max 0.0 round {value}\n");
        let workload: Workload = text.parse().unwrap();
        jump(&workload.stages[0].value, &|_| 0.0, &|tensor| workload.tensor(tensor).dtype)
    }

    const QUANTISED: &str = "cast f32 sub cast i32 cast u8 min 255.0 max 0.0 round mul 50.0 t1 a cast i32 int 100";

    #[test]
    fn what_is_rounded_twice_moves_as_far_as_the_function_between_takes_it() {
        assert_eq!(of("mul 50.0 t1 a"), 1.0);
        // a step of 0.02, and four times as many of those that come behind
        assert_eq!(of(&format!("mul 200.0 mul 0.02 {QUANTISED}")), 5.0);
        assert_eq!(of(&format!("mul 800.0 sigmoid mul 0.02 {QUANTISED}")), 5.0);
        // x · sigmoid(x): |x| is at most 355 steps
        let both = of(&format!("mul 1.0 mul {QUANTISED} sigmoid mul 0.02 {QUANTISED}"));
        assert_eq!(both, 1.0 + (1.0 + 355.0 * 0.02 * 0.25_f64).ceil());
        // the same where the bytes stayed floats
        let whole = "sub min 255.0 max 0.0 round mul 50.0 t1 a 100.0";
        assert_eq!(of(&format!("mul 1.0 mul {whole} sigmoid mul 0.02 {whole}")), both);
        // a byte that is given was not rounded here; of what has no bound nothing more is known
        assert_eq!(of("mul 100.0 cast f32 t0 a"), 1.0);
        assert_eq!(of(&format!("mul t1 a {QUANTISED}")), 1.0);
    }
}
