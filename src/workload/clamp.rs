//! Floats that were rounded to whole numbers and cut to a range, as quantisation writes them.

use super::{Binary, Expr, Unary};

impl Expr {
    /// The bounds and the value of one that is cut to a range, `min(max(value, low), high)` or the other way
    /// round, literals on either side.
    pub fn as_clamped(&self) -> Option<(f64, f64, &Expr)> {
        let (outer, one, within) = self.beside_literal()?;
        let (inner, other, value) = within.beside_literal()?;
        match (outer, inner) {
            (Binary::Minimum, Binary::Maximum) => Some((other, one, value)),
            (Binary::Maximum, Binary::Minimum) => Some((one, other, value)),
            _ => None,
        }
    }

    /// Whether it is a float that was rounded to a whole number, and then only shifted by whole literals or
    /// cut to a range of them.
    pub fn is_whole_float(&self) -> bool {
        match self {
            Expr::Unary(Unary::Round | Unary::Floor | Unary::Ceil, _) => true,
            _ => self.beside_literal().is_some_and(|(op, literal, value)| {
                let keeps = matches!(op, Binary::Add | Binary::Subtract | Binary::Minimum | Binary::Maximum);
                keeps && literal.fract() == 0.0 && value.is_whole_float()
            }),
        }
    }

    /// An operator's literal operand and the other one.
    fn beside_literal(&self) -> Option<(Binary, f64, &Expr)> {
        let Expr::Binary(op, x, y) = self else { return None };
        match (&**x, &**y) {
            (Expr::Float(literal), other) | (other, Expr::Float(literal)) => Some((*op, literal.0, other)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::workload::{Binary, Expr, Unary, Workload};

    fn value(text: &str) -> Expr {
        let workload: Workload = format!("input t0 9\nout t1 9 {text}\n").parse().unwrap();
        workload.stages[0].value.clone()
    }

    #[test]
    fn bounds_may_stand_in_any_order_and_on_any_side() {
        for text in ["min 255.0 max 3.0 t0 a", "max 3.0 min 255.0 t0 a", "min max t0 a 3.0 255.0"] {
            let clamped = value(text);
            let (low, high, inner) = clamped.as_clamped().unwrap();
            assert_eq!((low, high), (3.0, 255.0));
            assert!(matches!(inner, Expr::Load { .. }));
        }
        for text in ["min 255.0 min 3.0 t0 a", "max 3.0 t0 a", "min 255.0 max t0 a t0 a", "add 1.0 max 3.0 t0 a"] {
            assert!(value(text).as_clamped().is_none(), "{text}");
        }
    }

    #[test]
    fn whole_floats_are_rounded_and_stay_whole() {
        for text in ["round t0 a", "floor t0 a", "min 255.0 max 0.0 add 9.0 round mul 0.3 t0 a", "sub ceil t0 a 3.0"] {
            assert!(value(text).is_whole_float(), "{text}");
        }
        for text in ["t0 a", "add 0.5 round t0 a", "mul 2.0 round t0 a", "add t0 a round t0 a", "round t0 a"] {
            let whole = value(text);
            let doubled = Expr::binary(Binary::Multiply, whole.clone(), Expr::float(0.5));
            assert!(!doubled.is_whole_float());
            assert_eq!(whole.is_whole_float(), matches!(whole, Expr::Unary(Unary::Round, _)), "{text}");
        }
    }
}
