//! Formulas of a network's symbols, as a manifest holds them.

use tilescribe_runtime::formula::{CompiledSymbol, Computed, Formula, Term};

use crate::graph::{Origin, Symbol};
use crate::workload::{Atom, Index, Var};

/// `None` where it depends on anything but symbols.
pub(super) fn formula(index: &Index) -> Option<Formula> {
    let term = |(atom, coefficient): &(Atom, i64)| {
        let term = match atom {
            Atom::Var(var) => Term::Symbol(var.as_parameter()?),
            Atom::FloorDiv(inner, divisor) => Term::Quotient(Box::new(formula(inner)?), *divisor),
            Atom::Modulo(inner, divisor) => Term::Remainder(Box::new(formula(inner)?), *divisor),
            Atom::Value(_) => return None,
        };
        Some((*coefficient, term))
    };
    let terms = index.terms().iter().map(term).collect::<Option<_>>()?;
    Some(Formula { constant: index.offset(), terms })
}

fn computed(origin: &Origin) -> Option<Computed> {
    let pair = |x: &Index, y: &Index| Some((formula(x)?, formula(y)?));
    match origin {
        Origin::Axis { .. } | Origin::Rows { .. } => None,
        Origin::Count { most } => formula(most).map(Computed::Count),
        Origin::Product(x, y) => pair(x, y).map(|(x, y)| Computed::Product(x, y)),
        Origin::Quotient(x, y) => pair(x, y).map(|(x, y)| Computed::Quotient(x, y)),
        Origin::Minimum(x, y) => pair(x, y).map(|(x, y)| Computed::Minimum(x, y)),
        Origin::Maximum(x, y) => pair(x, y).map(|(x, y)| Computed::Maximum(x, y)),
    }
}

pub(super) fn symbol(symbol: &Symbol) -> CompiledSymbol {
    let Symbol { name, range, multiple, origin } = symbol;
    let (low, high) = (range.low, range.high);
    CompiledSymbol { name: name.clone(), low, high, multiple: *multiple, computed: computed(origin) }
}

/// A formula with the names of symbols, for people.
pub fn text(index: &Index, names: &[&str]) -> String {
    let named = crate::nest::Nest { vars: names.iter().map(ToString::to_string).collect(), ..Default::default() };
    let own = |var: Var| var.as_parameter().map(|number| Index::var(Var(number as u32)));
    named.show_index(&index.substitute(&own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_are_written_and_read() {
        let (n, m) = (Index::var(Var::parameter(0)), Index::var(Var::parameter(1)));
        let index =
            n.clone().times(3).plus(&m.clone().plus_constant(1).floor_div(2)).minus(&n.modulo(5)).plus_constant(-7);
        let written = formula(&index).unwrap();
        let json = serde_json::to_string(&written).unwrap();
        assert_eq!(serde_json::from_str::<Formula>(&json).unwrap(), written, "{json}");
        for values in [[0, 0], [13, 8], [2, 7]] {
            let point = |var: Var| var.as_parameter().map_or(0, |number| values[number]);
            assert_eq!(written.at(&values), index.at(&point));
        }
        assert_eq!(text(&m, &["n", "m"]), "m");
        assert!(written.is_valid(2) && !written.is_valid(1) && written.at(&[1]).is_none());
    }
}
