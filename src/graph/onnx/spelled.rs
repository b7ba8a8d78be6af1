//! Names of dimensions that say what they are: `past_sequence_length + sequence_length`, `2*s0 + 1`.
//!
//! Exporters name the axis of a mask by what it has to be. Taken at its word, it is no dimension of its own,
//! and what is computed from the others is known to be as long.

use crate::workload::{Index, Var};

/// Bytes of a name that is read.
const MAX_LENGTH: usize = 200;
/// No factor and no constant of a formula is more.
const MAX_NUMBER: i64 = 1 << 20;

/// The sum that a name spells, of other dimensions, which `number_of` knows by their names; the variables are
/// their numbers. `None` for what is just a name, and for all that is no such sum.
pub(super) fn formula(name: &str, number_of: &dyn Fn(&str) -> Option<usize>) -> Option<Index> {
    let is_compound = name.len() <= MAX_LENGTH && name.contains(['+', '-', '*']);
    if !is_compound || name.chars().any(|c| !(c.is_alphanumeric() || "_.+-* ".contains(c))) {
        return None;
    }
    let mut sum = Index::constant(0);
    let mut rest = name.trim();
    let mut sign = 1;
    loop {
        if let Some(after) = rest.strip_prefix('-') {
            (sign, rest) = (-sign, after.trim_start());
        }
        // a hyphen is a part of a name
        let end = rest.find('+').into_iter().chain(rest.find(" -").map(|space| space + 1)).min().unwrap_or(rest.len());
        sum = sum.plus(&term(&rest[..end], number_of)?.times(sign));
        let Some(next) = rest[end..].chars().next() else { break };
        (sign, rest) = (if next == '-' { -1 } else { 1 }, rest[end + 1..].trim_start());
    }
    sum.as_constant().is_none().then_some(sum)
}

/// A product of numbers and of one dimension at most.
fn term(text: &str, number_of: &dyn Fn(&str) -> Option<usize>) -> Option<Index> {
    let (mut factor, mut dimension) = (1_i64, None);
    for part in text.split('*').map(str::trim) {
        match part.parse::<i64>() {
            Ok(number) => {
                factor = factor.checked_mul(number).filter(|product| product.abs() <= MAX_NUMBER)?;
            }
            Err(_) if dimension.is_none() => dimension = Some(u32::try_from(number_of(part)?).ok()?),
            Err(_) => return None,
        }
    }
    Some(dimension.map_or(Index::constant(factor), |number| Index::var(Var(number)).times(factor)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_read_and_names_are_left_alone() {
        let names = ["past_sequence_length", "sequence_length", "s0", "kv-length", "length"];
        let read = |name: &str| formula(name, &|part| names.iter().position(|known| *known == part));
        let of = |number: u32| Index::var(Var(number));
        assert_eq!(read("past_sequence_length + sequence_length"), Some(of(0).plus(&of(1))));
        assert_eq!(read("2*s0 - 1"), Some(of(2).times(2).plus_constant(-1)));
        assert_eq!(read("-s0 + s0*3"), Some(of(2).times(2)));
        assert_eq!(read("kv-length - 2"), Some(of(3).plus_constant(-2)));
        for other in ["s0", "s0-length", "s0 + other", "s0*s0", "s0//2", "s0 +", "(s0 + 1)", "2 + 3", "s0 - s0", ""] {
            assert_eq!(read(other), None, "{other}");
        }
        assert_eq!(read("1048577*s0"), None);
    }
}
