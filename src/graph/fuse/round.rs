//! 16-bit values are rounded where they are stored, and nowhere between: within a task an operator hands its
//! f32 on. What is computed and then quantised is multiplied by the reciprocal of its scale.

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

/// An expression in which what was computed is rounded to whole numbers of a scale without a division: a
/// product takes a tenth of the time, and is as good where the value was rounded already. Elements that are
/// quantised as they are given are divided, as everybody does it.
pub fn without_quotients(value: &Expr) -> Expr {
    value.rewrite(&mut |expr| match expr {
        Expr::Unary(Unary::Round, quotient) => match *quotient {
            Expr::Binary(Binary::Divide, x, y) => match *y {
                Expr::Float(Float(scale)) if !x.is_plain() && (1.0 / scale as f32).is_normal() => {
                    let reciprocal = Expr::float(f64::from(1.0 / scale as f32));
                    Expr::unary(Unary::Round, Expr::Binary(Binary::Multiply, x, Box::new(reciprocal)))
                }
                scale => Expr::unary(Unary::Round, Expr::Binary(Binary::Divide, x, Box::new(scale))),
            },
            other => Expr::unary(Unary::Round, other),
        },
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::without_roundings;
    use crate::workload::{Binary, Condition, DType, Expr, Index, TensorId, Unary, Var};

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
}
