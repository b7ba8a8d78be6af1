//! Fractions of extents, as floats hold them.

use super::formulas::Formulas;
use super::operator::Problem;
use crate::workload::Index;

/// Whole numbers below this are floats of 32 bits. A quotient of two of them that is no whole number is
/// rounded to neither of those around it: it is farther from them than half of its last place.
pub(super) const MAX_WHOLE: i64 = 1 << 24;
/// Most powers of two in the denominator of a constant.
const MAX_SHIFT: u32 = 30;
/// Exclusive bound of its numerator.
const MAX_NUMERATOR: f64 = (1u32 << 31) as f64;

/// A number as a fraction in lowest terms, where its denominator is a power of two.
pub(super) fn over_power_of_two(value: f64) -> Option<(i64, i64)> {
    let shifted = |shift: &u32| value * f64::from(*shift).exp2();
    let shift = (0..=MAX_SHIFT).find(|shift| shifted(shift).fract() == 0.0)?;
    let numerator = Some(shifted(&shift)).filter(|numerator| numerator.abs() < MAX_NUMERATOR)?;
    Some((numerator as i64, 1 << shift))
}

/// The number that a float stands for.
#[derive(Clone, Debug)]
pub(super) struct Fraction {
    numerator: Index,
    /// At least 1.
    denominator: i64,
    float: Float,
}

/// What a float is of a fraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Float {
    /// The same number.
    Exact,
    /// The nearest.
    Nearest,
    /// Its square root, or the nearest to that.
    Root,
}

impl Fraction {
    /// A whole number; `None` for one that a float may not hold.
    pub(super) fn whole(formulas: &Formulas, numerator: Index) -> Option<Fraction> {
        Fraction::rounded(formulas, numerator, 1)
    }

    pub(super) fn constant(value: f64) -> Option<Fraction> {
        let (numerator, denominator) = over_power_of_two(value)?;
        let is_small = numerator.abs() < MAX_WHOLE && denominator < MAX_WHOLE;
        is_small.then(|| Fraction { numerator: Index::constant(numerator), denominator, float: Float::Exact })
    }

    /// A fraction of these, as the float that an operator rounds it to.
    fn rounded(formulas: &Formulas, numerator: Index, denominator: i64) -> Option<Fraction> {
        let range = formulas.range_of(&numerator)?;
        let is_small = -MAX_WHOLE < range.low && range.high < MAX_WHOLE && denominator < MAX_WHOLE;
        let float = if denominator.count_ones() == 1 { Float::Exact } else { Float::Nearest };
        is_small.then_some(Fraction { numerator, denominator, float })
    }

    /// The square root of a whole number.
    pub(super) fn root(self) -> Option<Fraction> {
        let is_whole = self.float == Float::Exact && self.denominator == 1;
        is_whole.then_some(Fraction { float: Float::Root, ..self })
    }

    pub(super) fn is_half(&self) -> bool {
        self.float == Float::Exact && self.numerator.as_constant().is_some_and(|half| 2 * half == self.denominator)
    }

    /// Sum, difference, product or quotient. Each rounds once: its operands are exact.
    pub(super) fn combined(formulas: &Formulas, kind: &str, x: &Fraction, y: &Fraction) -> Option<Fraction> {
        if [x, y].iter().any(|operand| operand.float != Float::Exact) {
            return None;
        }
        let scaled = |x: &Index, by: i64| -> Option<Index> {
            // neither factor is as large as to overflow
            (by.unsigned_abs() <= MAX_WHOLE as u64).then(|| x.clone().times(by))
        };
        let (numerator, denominator) = match kind {
            "Add" | "Sub" => {
                let (a, b) = (scaled(&x.numerator, y.denominator)?, scaled(&y.numerator, x.denominator)?);
                let sum = if kind == "Add" { a.plus(&b) } else { a.minus(&b) };
                (sum, x.denominator.checked_mul(y.denominator)?)
            }
            "Mul" => {
                let (formula, factor) = match (x.numerator.as_constant(), y.numerator.as_constant()) {
                    (_, Some(factor)) => (&x.numerator, factor),
                    (Some(factor), _) => (&y.numerator, factor),
                    _ => return None,
                };
                (scaled(formula, factor)?, x.denominator.checked_mul(y.denominator)?)
            }
            "Div" => {
                let divisor = y.numerator.as_constant().filter(|divisor| *divisor > 0)?;
                (scaled(&x.numerator, y.denominator)?, x.denominator.checked_mul(divisor)?)
            }
            _ => return None,
        };
        Fraction::rounded(formulas, numerator, denominator)
    }

    /// The whole number that it becomes; `None` where it may be negative, or that is not followed.
    pub(super) fn to_whole(&self, formulas: &mut Formulas, kind: &str) -> Result<Option<Index>, Problem> {
        if formulas.range_of(&self.numerator).is_none_or(|range| range.low < 0) {
            return Ok(None);
        }
        if self.float == Float::Root {
            return if matches!(kind, "Floor" | "Cast") { formulas.square_root(&self.numerator) } else { Ok(None) };
        }
        let more = match kind {
            // a cast leaves out what is behind the point
            "Floor" | "Cast" => 0,
            "Ceil" => self.denominator - 1,
            _ => return Ok(None),
        };
        let dividend = self.numerator.clone().plus_constant(more);
        formulas.quotient(&dividend, &Index::constant(self.denominator)).map(Some)
    }
}
