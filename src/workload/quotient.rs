//! Quotients of quotients: numbers of blocks, written in one way.

use super::index::{Atom, Index, gcd};

/// Larger divisors are not made.
const MAX_DIVISOR: i64 = 1 << 31;

/// A formula whose quotients are written in one way only, to be compared: `x - floor(127 x / 128)` and
/// `floor((x + 127) / 128)` are the same, the number of blocks of 128; `floor((floor(x / 5) + 1) / 2)` is
/// `floor((x + 5) / 10)`, and `floor((2 x + 3) / 4)` is `floor((x + 1) / 2)`.
pub fn canonical(formula: &Index) -> Index {
    formula.terms().iter().fold(Index::constant(formula.offset()), |sum, (atom, coefficient)| {
        let own = match atom {
            Atom::FloorDiv(inner, divisor) => canonical_quotient(&canonical(inner), *divisor),
            other => Index::atom(other.clone()),
        };
        sum.plus(&own.times(*coefficient))
    })
}

/// A quotient of a quotient becomes one, and factors in common with the divisor are left out. Multiples of
/// the divisor are taken out, so that each coefficient is half of it at most; the first of those that are
/// left is positive: `floor(-x / d)` is `-floor((x + d - 1) / d)`.
fn canonical_quotient(inner: &Index, divisor: i64) -> Index {
    if let [(Atom::FloorDiv(dividend, own), 1)] = inner.terms() {
        let offset = inner.offset().checked_mul(*own);
        if let (Some(offset), Some(joint @ ..MAX_DIVISOR)) = (offset, own.checked_mul(divisor)) {
            return canonical_quotient(&dividend.as_ref().clone().plus_constant(offset), joint);
        }
    }
    let coefficients = inner.terms().iter().map(|(_, coefficient)| coefficient.unsigned_abs());
    let common = i64::try_from(coefficients.fold(divisor.unsigned_abs(), gcd)).unwrap_or(1);
    if common > 1 {
        return canonical_quotient(&inner.clone().divided(common), divisor / common);
    }
    let (mut whole, mut rest) = (Index::constant(0), Index::constant(inner.offset()));
    for (atom, coefficient) in inner.terms() {
        let multiple = coefficient.saturating_mul(2).saturating_add(divisor - 1).div_euclid(divisor.saturating_mul(2));
        whole = whole.plus(&Index::atom(atom.clone()).times(multiple));
        rest = rest.plus(&Index::atom(atom.clone()).times(coefficient - multiple * divisor));
    }
    match rest.terms().first() {
        Some((_, ..0)) => whole.minus(&rest.times(-1).plus_constant(divisor - 1).floor_div(divisor)),
        _ => whole.plus(&rest.floor_div(divisor)),
    }
}

#[cfg(test)]
mod tests {
    use super::canonical;
    use crate::workload::{Index, Var};

    fn x() -> Index {
        Index::var(Var(0))
    }

    #[test]
    fn what_is_canonical_has_the_same_value() {
        let y = || Index::var(Var(1));
        let formulas = [
            x().times(127).floor_div(128),
            x().minus(&x().times(511).floor_div(512)).times(3),
            x().floor_div(5).plus_constant(1).floor_div(2).plus_constant(-7).floor_div(3),
            x().times(-3).plus(&y().times(5)).plus_constant(2).floor_div(4),
            x().times(-6).plus(&y().times(4)).plus_constant(-7).floor_div(12),
            x().times(6).plus_constant(5).floor_div(3),
            y().times(9).minus(&x()).floor_div(7).times(-2).plus(&x().modulo(6)),
        ];
        for formula in formulas {
            let other = canonical(&formula);
            for (x, y) in (-40..300).flat_map(|x| [(x, 3 * x - 50), (x, 17)]) {
                let value = |var: Var| if var == Var(0) { x } else { y };
                assert_eq!(other.at(&value), formula.at(&value), "{formula:?} and {other:?} at {x}, {y}");
            }
        }
    }

    #[test]
    fn numbers_of_blocks_are_the_same_however_they_are_written() {
        let blocks = x().plus_constant(127).floor_div(128);
        assert_eq!(canonical(&x().minus(&x().times(127).floor_div(128))), canonical(&blocks));
        let by_steps = x().floor_div(5).floor_div(2).plus_constant(1).floor_div(2);
        assert_eq!(canonical(&by_steps), canonical(&x().floor_div(10).plus_constant(1).floor_div(2)));
        assert_ne!(canonical(&x().plus_constant(126).floor_div(128)), canonical(&blocks));
    }
}
