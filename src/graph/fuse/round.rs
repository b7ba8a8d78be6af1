//! 16-bit values are rounded where they are stored, and nowhere between: within a task an operator hands its
//! f32 on; bytes that are read where they are computed are whole floats. What is computed and then quantised
//! is multiplied by the reciprocal of its scale.

use crate::workload::{Binary, DType, Expr, Float, TensorId, Unary};

/// An expression without rounding to 16 bits and back, and without conversions to f32 of what is f32.
pub fn without_roundings(value: &Expr, of: &dyn Fn(TensorId) -> DType) -> Expr {
    value.rewrite(&mut |expr| match expr {
        Expr::Cast(DType::F32, inner) => match *inner {
            Expr::Cast(DType::F16 | DType::BF16, x) if x.dtype(of) == DType::F32 => *x,
            x if x.dtype(of) == DType::F32 => x,
            x => Expr::Cast(DType::F32, Box::new(x)),
        },
        Expr::Guard { conditions, inside, outside } => match (*inside, &*outside) {
            // outermost, a conversion can be left out of a copy, guard and all
            (Expr::Cast(DType::F32, x), Expr::Float(zero)) if zero.0 == 0.0 => {
                let zero = Expr::Cast(x.dtype(of), outside);
                Expr::Cast(DType::F32, Box::new(Expr::guard(conditions, *x, zero)))
            }
            (inside, _) => Expr::guard(conditions, inside, *outside),
        },
        other => other,
    })
}

/// An expression that quantises what was computed without a division: by a scale's reciprocal it takes a
/// tenth of the time, and is as good where the value was rounded before. Elements that are quantised as they
/// are given are divided, as everybody does it; and so is what is only rounded, and not cut to a range.
pub fn without_quotients(value: Expr) -> Expr {
    value.rewrite(&mut |expr| match expr {
        Expr::Binary(op @ (Binary::Minimum | Binary::Maximum), x, y) => match (*x, *y) {
            (bound @ Expr::Float(_), x) => Expr::binary(op, bound, rounded_product(x)),
            (x, bound @ Expr::Float(_)) => Expr::binary(op, rounded_product(x), bound),
            (x, y) => Expr::binary(op, x, y),
        },
        other => other,
    })
}

/// An expression in which floats that were rounded and cut to the range of a byte do not become one to be
/// dequantised at once: they are that number, and so is what a zero point leaves of it.
///
/// ```text
/// before: scale * f32(i32(u8(min(max(round(x) + 9, 0), 255))) - 9)
/// after:  scale * (min(max(round(x) + 9, 0), 255) - 9)
/// ```
pub fn without_bytes(value: &Expr) -> Expr {
    value.rewrite(&mut |expr| match expr {
        Expr::Cast(DType::F32, x) => match whole_float(&x) {
            Some((float, true)) => float,
            _ => Expr::Cast(DType::F32, x),
        },
        other => other,
    })
}

/// Integers as the floats that they are, and whether they were floats before.
fn whole_float(integers: &Expr) -> Option<(Expr, bool)> {
    match integers {
        Expr::Cast(DType::I32, x) => whole_float(x),
        Expr::Cast(dtype @ (DType::U8 | DType::I8), x) => is_bounded(x, *dtype).then(|| ((**x).clone(), true)),
        Expr::Index(index) => {
            let literal = index.as_constant().filter(|value| value.abs() <= 1 << 16)?;
            Some((Expr::float(literal as f64), false))
        }
        Expr::Binary(op @ (Binary::Add | Binary::Subtract), x, y) => {
            let ((x, was_float), (y, also)) = (whole_float(x)?, whole_float(y)?);
            Some((Expr::binary(*op, x, y), was_float || also))
        }
        _ => None,
    }
}

/// Whether a float is a whole number that a type of bytes holds.
fn is_bounded(value: &Expr, dtype: DType) -> bool {
    let fits = |bound: f64| dtype.least() as f64 <= bound && bound <= dtype.greatest() as f64;
    value.is_whole_float() && value.as_clamped().is_some_and(|(low, high, _)| fits(low) && fits(high))
}

/// What a quotient by a scale is rounded to, and perhaps shifted, by way of a product.
fn rounded_product(value: Expr) -> Expr {
    match value {
        Expr::Binary(op @ (Binary::Add | Binary::Subtract), x, y) => match (*x, *y) {
            (zero @ Expr::Float(_), x) => Expr::binary(op, zero, rounded_product(x)),
            (x, zero) => Expr::binary(op, rounded_product(x), zero),
        },
        Expr::Unary(Unary::Round, quotient) => Expr::unary(Unary::Round, product(*quotient)),
        other => other,
    }
}

fn product(quotient: Expr) -> Expr {
    let Expr::Binary(Binary::Divide, x, scale) = quotient else { return quotient };
    let reciprocal = if let Expr::Float(Float(scale)) = *scale { 1.0 / scale as f32 } else { f32::NAN };
    match reciprocal.is_normal() && !x.is_plain() {
        true => Expr::Binary(Binary::Multiply, x, Box::new(Expr::float(f64::from(reciprocal)))),
        false => Expr::Binary(Binary::Divide, x, scale),
    }
}

#[cfg(test)]
mod tests {
    use super::{without_bytes, without_quotients, without_roundings};
    use crate::workload::{Binary, Condition, DType, Expr, Index, TensorId, Unary, Var, Workload};

    #[test]
    fn only_roundings_between_operators_go() {
        let types = [DType::F16, DType::F32, DType::I64];
        let of = |tensor: TensorId| types[tensor.0 as usize];
        let load = |tensor| Expr::load(TensorId(tensor), vec![]);
        let cast = |dtype, x| Expr::Cast(dtype, Box::new(x));
        let wide = |x| cast(DType::F32, x);
        let guard = |inside, outside| {
            Expr::guard(vec![Condition { index: Index::var(Var(0)), low: 0, high: 4 }], inside, outside)
        };
        let exp = Expr::unary(Unary::Exp, wide(load(0)));
        let rounded = |x| wide(cast(DType::F16, x));
        let sum = |x| Expr::binary(Binary::Add, x, load(1));
        for (before, after) in [
            (sum(rounded(exp.clone())), sum(exp.clone())),
            (cast(DType::F16, sum(rounded(sum(exp.clone())))), cast(DType::F16, sum(sum(exp.clone())))),
            (wide(sum(load(1))), sum(load(1))),
            // integers may be longer than f32
            (rounded(load(2)), rounded(load(2))),
            (wide(load(0)), wide(load(0))),
            (guard(wide(load(0)), Expr::float(0.0)), wide(guard(load(0), cast(DType::F16, Expr::float(0.0))))),
            (guard(wide(load(0)), Expr::float(1.0)), guard(wide(load(0)), Expr::float(1.0))),
        ] {
            assert_eq!(without_roundings(&before, &of), after);
        }
    }

    #[test]
    fn bytes_that_are_read_where_they_are_computed_stay_floats() {
        let workload = |value: &str| -> Workload {
            format!("input t0 9\ninput t1 u8 9\nout t2 9 mul 0.5 {value}\n").parse().unwrap()
        };
        let rewritten = |value: &str| {
            let mut workload = workload(value);
            workload.stages[0].value = without_bytes(&workload.stages[0].value);
            workload.to_string()
        };
        let rounded = "min 255.0 max 0.0 add 9.0 round mul t0 a 8.0";
        let whole = format!("sub {rounded} 9.0");
        assert_eq!(
            rewritten(&format!("cast f32 sub cast i32 cast u8 {rounded} cast i32 int 9")),
            workload(&whole).to_string()
        );
        for kept in [
            // stored bytes, bounds of another type, and what is no whole number
            "cast f32 sub cast i32 t1 a cast i32 int 9",
            "cast f32 cast i32 cast i8 min 255.0 max 0.0 round t0 a",
            "cast f32 cast i32 cast u8 min 255.0 max 0.0 add 0.5 round t0 a",
            "cast f32 cast i32 cast u8 min 255.0 max 0.0 t0 a",
        ] {
            assert_eq!(rewritten(kept), workload(kept).to_string());
        }
    }

    #[test]
    fn only_what_is_computed_and_quantised_is_multiplied() {
        let load = || Expr::load(TensorId(0), vec![]);
        let binary = Expr::binary;
        let sum = || binary(Binary::Add, load(), load());
        let rounded = |quotient| Expr::unary(Unary::Round, quotient);
        let divided = |x| rounded(binary(Binary::Divide, x, Expr::float(0.25)));
        let bounded = |x| {
            let shifted = binary(Binary::Add, x, Expr::float(3.0));
            let above = binary(Binary::Maximum, shifted, Expr::float(0.0));
            Expr::Cast(DType::U8, Box::new(binary(Binary::Minimum, above, Expr::float(255.0))))
        };
        let multiplied = rounded(binary(Binary::Multiply, sum(), Expr::float(4.0)));
        assert_eq!(without_quotients(bounded(divided(sum()))), bounded(multiplied));
        for kept in [divided(sum()), bounded(divided(load())), bounded(rounded(sum()))] {
            assert_eq!(without_quotients(kept.clone()), kept);
        }
    }
}
