//! Formulas of a network's symbols, as a manifest holds them.

use serde::{Deserialize, Serialize};

/// A sum. What a manifest holds may be anything: [`Formula::is_valid`] comes first.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Formula {
    #[serde(default, skip_serializing_if = "is_zero")]
    pub constant: i64,
    /// Coefficients, and what they are multiplied with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub terms: Vec<(i64, Term)>,
}

/// What a sum consists of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Term {
    /// By its number.
    Symbol(usize),
    /// Rounded down; the divisor is at least 1.
    Quotient(Box<Formula>, i64),
    Remainder(Box<Formula>, i64),
}

/// What a symbol is computed from, which is no sum.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Computed {
    /// How much of something a run finds; no more than this.
    Count(Formula),
    Product(Formula, Formula),
    Quotient(Formula, Formula),
    Minimum(Formula, Formula),
    Maximum(Formula, Formula),
}

/// A number that is known when the network runs, and its range.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompiledSymbol {
    /// That of a dimension of the ONNX file, or what it is computed from.
    pub name: String,
    pub low: i64,
    pub high: i64,
    /// It is a multiple of this.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub multiple: i64,
    /// `None`: it is the extent of an input's axis, or the rows of a state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub computed: Option<Computed>,
}

fn one() -> i64 {
    1
}

fn is_one(number: &i64) -> bool {
    *number == 1
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl Formula {
    /// Whether it divides by nothing but positive numbers, and names the first `symbols` symbols alone.
    pub fn is_valid(&self, symbols: usize) -> bool {
        self.terms.iter().all(|(_, term)| match term {
            Term::Symbol(number) => *number < symbols,
            Term::Quotient(inner, divisor) | Term::Remainder(inner, divisor) => *divisor > 0 && inner.is_valid(symbols),
        })
    }

    /// Its value where symbols have these; `None` where it has none, or one that leaves 64 bits.
    pub fn at(&self, values: &[i64]) -> Option<i64> {
        self.terms.iter().try_fold(self.constant, |sum, (coefficient, term)| {
            let value = match term {
                Term::Symbol(number) => *values.get(*number)?,
                Term::Quotient(inner, divisor) => inner.at(values)?.checked_div_euclid(*divisor)?,
                Term::Remainder(inner, divisor) => inner.at(values)?.checked_rem_euclid(*divisor)?,
            };
            sum.checked_add(value.checked_mul(*coefficient)?)
        })
    }

    /// The symbol, if it is nothing else.
    pub fn as_symbol(&self) -> Option<usize> {
        self.as_multiple().filter(|(factor, _)| *factor == 1).map(|(_, number)| number)
    }

    /// A number and the symbol that it is multiplied with, if it is nothing else.
    pub fn as_multiple(&self) -> Option<(i64, usize)> {
        match self.terms.as_slice() {
            [(factor, Term::Symbol(number))] if self.constant == 0 => Some((*factor, *number)),
            _ => None,
        }
    }
}

impl Computed {
    fn formulas(&self) -> Vec<&Formula> {
        match self {
            Computed::Count(most) => vec![most],
            Computed::Product(x, y) | Computed::Quotient(x, y) | Computed::Minimum(x, y) | Computed::Maximum(x, y) => {
                vec![x, y]
            }
        }
    }

    /// Its value where symbols have these; `None` as for [`Formula::at`].
    pub fn at(&self, values: &[i64]) -> Option<i64> {
        match self {
            Computed::Count(most) => most.at(values),
            Computed::Product(x, y) => x.at(values)?.checked_mul(y.at(values)?),
            Computed::Quotient(x, y) => {
                let divisor = y.at(values).filter(|divisor| *divisor > 0)?;
                x.at(values)?.checked_div_euclid(divisor)
            }
            Computed::Minimum(x, y) => Some(x.at(values)?.min(y.at(values)?)),
            Computed::Maximum(x, y) => Some(x.at(values)?.max(y.at(values)?)),
        }
    }
}

impl CompiledSymbol {
    /// Whether it may be this.
    pub fn admits(&self, value: i64) -> bool {
        (self.low..=self.high).contains(&value) && value % self.multiple == 0
    }

    /// Its values in words.
    pub fn values(&self) -> String {
        match self.multiple {
            1 => format!("{} to {}", self.low, self.high),
            multiple => format!("{} to {} in steps of {multiple}", self.low, self.high),
        }
    }

    /// Whether it has values, and is computed from symbols before it, of which there are so many.
    pub fn is_valid(&self, before: usize) -> bool {
        let is_known = |computed: &Computed| computed.formulas().iter().all(|formula| formula.is_valid(before));
        let ends = self.multiple > 0 && self.low % self.multiple == 0 && self.high % self.multiple == 0;
        0 <= self.low && self.low <= self.high && ends && self.computed.as_ref().is_none_or(is_known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_formulas_have_no_value() {
        let of = |text: &str| serde_json::from_str::<Formula>(text).unwrap();
        let zero = of(r#"{"terms": [[1, {"quotient": [{"constant": 3}, 0]}]]}"#);
        assert!(!zero.is_valid(9) && zero.at(&[]).is_none());
        let large = of(r#"{"terms": [[9223372036854775807, {"symbol": 0}]]}"#);
        assert!(large.is_valid(1) && large.at(&[1]).is_some() && large.at(&[2]).is_none());
        assert!(serde_json::from_str::<Formula>(&"{\"terms\": [[1, {\"quotient\": [".repeat(1000)).is_err());
    }
}
