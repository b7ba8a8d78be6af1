//! Formulas of extents that are known when the network runs: arithmetic on them, and what has to hold for
//! them.

use super::operator::Problem;
use super::polynomial::Polynomial;
use crate::graph::symbol::{Origin, Requirement, Symbol, Symbols};
use crate::workload::quotient::canonical;
use crate::workload::{Atom, Index, Interval, Parameter, Var, gcd};

/// Exclusive bound of what a symbol can be.
const MAX_VALUE: i64 = 1 << 31;
/// Symbols of a network that is being read.
const MAX_SYMBOLS: usize = 1 << 12;
/// Bytes of the name that spells what a symbol is computed from: those of others are part of it.
const MAX_NAME: usize = 120;

/// What does not hold for all values of the symbols. Whoever reads the network may choose others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Conflict {
    /// The two have to be equal.
    Unequal(Index, Index),
    /// It has to be at least 0.
    Negative(Index),
    /// It has to be at least 0 in every run that is not refused: a table is cut to what is in use of it.
    Beyond(Index),
}

/// The numbers that formulas are made of.
#[derive(Debug, Default)]
pub(super) struct Formulas {
    pub symbols: Symbols,
    pub conflict: Option<Conflict>,
    /// What is at least 0, since a run is refused in which it is not.
    pub assumed: Vec<Index>,
}

impl Formulas {
    /// The values that a variable of a formula can take.
    pub(super) fn symbol_range(&self, var: Var) -> Interval {
        let symbol = var.as_parameter().and_then(|number| self.symbols.list.get(number));
        symbol.map_or(Interval::point(0), |symbol| symbol.range.interval())
    }

    pub(super) fn range_of(&self, formula: &Index) -> Option<Interval> {
        formula.range(&|var| self.symbol_range(var))
    }

    /// What an extent is at most.
    ///
    /// # Errors
    /// [`Problem::TooLarge`] for what may be 2^31 or more, and [`Problem::Shape`] for what may be negative.
    pub(super) fn most(&mut self, formula: &Index) -> Result<i64, Problem> {
        if let Some(constant) = formula.as_constant() {
            return Ok(constant);
        }
        self.require(formula, "an extent")?;
        match self.range_of(formula) {
            Some(range) if range.high < MAX_VALUE => Ok(range.high),
            _ => Err(Problem::TooLarge(vec![MAX_VALUE])),
        }
    }

    /// A formula is at least 0, whatever the symbols are.
    ///
    /// # Errors
    /// [`Problem::Shape`] where it is not.
    pub(super) fn require(&mut self, formula: &Index, what: &str) -> Result<(), Problem> {
        if self.range_of(formula).is_some_and(|range| range.low >= 0) {
            return Ok(());
        }
        self.conflict = Some(Conflict::Negative(formula.clone()));
        Err(Problem::Shape(format!("{what}, {}, may be less than 0", self.spelled(formula))))
    }

    /// A formula that never exceeds another: itself, where that is known, or their lesser; then a run is
    /// refused in which it exceeds it.
    ///
    /// # Errors
    /// As [`Formulas::require`], where nothing of it is counted: then other ranges avoid it.
    pub(super) fn bounded(&mut self, formula: &Index, most: &Index, what: &str) -> Result<Index, Problem> {
        if self.is_at_most(formula, most) {
            return Ok(formula.clone());
        }
        let left = most.clone().minus(formula);
        if self.symbols.counts_in(&left).is_empty() {
            self.require(&left, &format!("what {what} leaves"))?;
            return Ok(formula.clone());
        }
        let text = format!("{what} is at most {}", self.spelled(most));
        self.demand(&left, text);
        self.lesser(formula, most)
    }

    /// An extent that an operator computes from others: at least `least`, which other ranges see to, where
    /// nothing of it is counted. What is counted may be none, and the extent 0 then; a run is refused in
    /// which it is negative.
    ///
    /// # Errors
    /// As [`Formulas::require`]; [`Problem::Shape`] for what is less than `least` whatever is counted.
    pub(super) fn left_of(&mut self, formula: &Index, least: i64, what: &str) -> Result<Index, Problem> {
        if self.symbols.counts_in(formula).is_empty() {
            self.require(&formula.clone().plus_constant(-least), what)?;
            return Ok(formula.clone());
        }
        match self.range_of(formula) {
            Some(range) if range.high < least => {
                Err(Problem::Shape(format!("{what}, {}, is always less than {least}", self.spelled(formula))))
            }
            Some(range) if range.low >= 0 => Ok(formula.clone()),
            _ => {
                let text = format!("{what}, {}, is at least 0", self.spelled(formula));
                self.demand(formula, text);
                self.natural(formula)
            }
        }
    }

    /// A run is refused in which a formula is negative, and nothing is read for such a one.
    pub(super) fn assume(&mut self, formula: &Index) {
        let (more, less): (Vec<_>, Vec<_>) = formula.terms().iter().partition(|(_, coefficient)| *coefficient > 0);
        let sum = |terms: Vec<&(Atom, i64)>| {
            let term =
                |(atom, coefficient): &(Atom, i64)| Index::atom(atom.clone()).times(coefficient.saturating_abs());
            terms.into_iter().fold(Index::constant(0), |sum, own| sum.plus(&term(own)))
        };
        let most = sum(more).plus_constant(formula.offset());
        let text = format!("{} is at most {}", self.spelled(&sum(less)), self.spelled(&most));
        self.demand(formula, text);
        self.assumed.push(formula.clone());
    }

    /// A run is refused in which a formula is negative.
    fn demand(&mut self, formula: &Index, what: String) {
        if !self.symbols.requirements.iter().any(|known| known.formula == *formula) {
            self.symbols.requirements.push(Requirement { formula: formula.clone(), what });
        }
    }

    /// A formula, or the number that it always is.
    pub(super) fn settled(&self, formula: &Index) -> Index {
        let only = self.range_of(formula).filter(|range| range.low == range.high && formula.as_var().is_none());
        only.map_or_else(|| formula.clone(), |range| Index::constant(range.low))
    }

    /// Two extents are the same.
    ///
    /// # Errors
    /// [`Problem::Shape`] where they may differ.
    pub(super) fn unify(&mut self, a: &Index, b: &Index) -> Result<(), Problem> {
        let difference = a.clone().minus(b);
        let never_differ = || {
            self.range_of(&difference) == Some(Interval::point(0)) || canonical(&difference).as_constant() == Some(0)
        };
        if a == b || self.polynomial(a).is_some_and(|a| Some(a) == self.polynomial(b)) || never_differ() {
            return Ok(());
        }
        let is_less = self.exceeded(a, b).or_else(|| self.exceeded(b, a));
        if let Some(left) = is_less {
            self.conflict = Some(Conflict::Negative(left));
        } else if let Some(left) = self.equal_within(a, b) {
            self.conflict = Some(Conflict::Beyond(left));
        } else if a.as_constant().is_none() || b.as_constant().is_none() {
            self.conflict = Some(Conflict::Unequal(a.clone(), b.clone()));
        }
        Err(Problem::Shape(format!("the extents {} and {} have to be equal", self.spelled(a), self.spelled(b))))
    }

    /// What is at least 0 where the least or greatest of two formulas, `of`, is the one of them.
    fn exceeded(&self, of: &Index, one: &Index) -> Option<Index> {
        let symbol = self.symbols.list.get(of.as_var()?.as_parameter()?)?;
        match &symbol.origin {
            Origin::Minimum(x, y) if y == one => Some(x.clone().minus(y)),
            Origin::Minimum(x, y) if x == one => Some(y.clone().minus(x)),
            Origin::Maximum(x, y) if y == one => Some(y.clone().minus(x)),
            Origin::Maximum(x, y) if x == one => Some(x.clone().minus(y)),
            _ => None,
        }
    }

    /// A formula as people read it.
    pub(super) fn spelled(&self, formula: &Index) -> String {
        let mut text = String::new();
        for (atom, coefficient) in formula.terms() {
            let own = match atom {
                Atom::Var(var) => {
                    let symbol = var.as_parameter().and_then(|number| self.symbols.list.get(number));
                    symbol.map_or_else(|| "?".to_string(), |symbol| symbol.name.clone())
                }
                Atom::FloorDiv(inner, divisor) => format!("floor(({}) / {divisor})", self.spelled(inner)),
                Atom::Modulo(inner, divisor) => format!("({}) mod {divisor}", self.spelled(inner)),
                Atom::Value(_) => "?".to_string(),
            };
            let sign = if *coefficient < 0 { " - " } else { " + " };
            text.push_str(sign);
            if coefficient.unsigned_abs() != 1 {
                text.push_str(&format!("{} · ", coefficient.unsigned_abs()));
            }
            text.push_str(&own);
        }
        match (formula.offset(), text.is_empty()) {
            (constant, true) => return constant.to_string(),
            (0, _) => {}
            (constant, _) if constant < 0 => text.push_str(&format!(" - {}", constant.unsigned_abs())),
            (constant, _) => text.push_str(&format!(" + {constant}")),
        }
        text.strip_prefix(" + ").unwrap_or(text.trim_start()).to_string()
    }

    /// A formula, multiplied out; what is always one number, as this number.
    pub(super) fn polynomial(&self, formula: &Index) -> Option<Polynomial> {
        let factors = |atom: &Atom| {
            let range = self.range_of(&Index::atom(atom.clone()));
            if let Some(only) = range.filter(|range| range.low == range.high) {
                return Some((Index::constant(only.low), Index::constant(1)));
            }
            let Atom::Var(var) = atom else { return None };
            match &self.symbols.list.get(var.as_parameter()?)?.origin {
                Origin::Product(x, y) => Some((canonical(x), canonical(y))),
                _ => None,
            }
        };
        Polynomial::of(&canonical(formula), &factors)
    }

    /// The product of formulas, multiplied out.
    pub(super) fn polynomial_product(&self, formulas: &[Index]) -> Option<Polynomial> {
        formulas.iter().try_fold(Polynomial::constant(1), |product, formula| product.times(&self.polynomial(formula)?))
    }

    /// A polynomial as a formula, with symbols for its products: the factors of all its terms stand in front
    /// of the others, where the sum of the terms says less about its values.
    pub(super) fn formula_of(&mut self, polynomial: &Polynomial) -> Result<Index, Problem> {
        let sum = self.sum_of(polynomial)?;
        let (common, rest) = polynomial.factored();
        if common.is_empty() {
            return Ok(sum);
        }
        let rest = self.sum_of(&rest)?;
        let factors: Vec<Index> = [rest].into_iter().chain(common.into_iter().map(Index::atom)).collect();
        self.narrower(sum, &factors)
    }

    /// A product that is multiplied out, or as its factors stand, where that says more about its values: of
    /// `n² - 2n + 1` it does not show that it is never negative, of `(n - 1)(n - 1)` it does.
    fn narrower(&mut self, sum: Index, factors: &[Index]) -> Result<Index, Problem> {
        let start = Interval { low: 1, high: 1 };
        let range = factors.iter().try_fold(start, |product, factor| {
            let own = self.range_of(factor).filter(|range| range.low >= 0)?;
            Some(Interval { low: product.low.checked_mul(own.low)?, high: product.high.checked_mul(own.high)? })
        });
        if range.is_none() || self.range_of(&sum) == range {
            return Ok(sum);
        }
        let (mut constant, mut product): (i64, Option<Index>) = (1, None);
        for factor in factors {
            match (factor.as_constant(), product.take()) {
                (Some(own), before) => {
                    constant = constant.checked_mul(own).ok_or(Problem::TooLarge(vec![i64::MAX]))?;
                    product = before;
                }
                (None, None) => product = Some(factor.clone()),
                (None, Some(before)) => product = Some(self.derived(Origin::Product(before, factor.clone()))?),
            }
        }
        self.checked_sum(Index::constant(0), product.unwrap_or(Index::constant(1)), constant)
    }

    pub(super) fn sum_of(&mut self, polynomial: &Polynomial) -> Result<Index, Problem> {
        let terms: Vec<(Vec<Atom>, i64)> = polynomial.terms().map(|(atoms, c)| (atoms.to_vec(), c)).collect();
        let mut sum = Index::constant(0);
        for (atoms, coefficient) in terms {
            let mut product: Option<Index> = None;
            for atom in atoms {
                let atom = Index::atom(atom);
                product = Some(match product {
                    None => atom,
                    Some(before) => self.derived(Origin::Product(before, atom))?,
                });
            }
            sum = self.checked_sum(sum, product.unwrap_or(Index::constant(1)), coefficient)?;
        }
        Ok(sum)
    }

    fn checked_sum(&self, sum: Index, term: Index, coefficient: i64) -> Result<Index, Problem> {
        let too_large = || Problem::TooLarge(vec![i64::MAX]);
        let range = self.range_of(&term).ok_or_else(too_large)?;
        let scaled = range.high.checked_mul(coefficient).filter(|value| value.unsigned_abs() < 1 << 40);
        scaled.ok_or_else(too_large)?;
        Ok(sum.plus(&term.times(coefficient)))
    }

    /// The product of formulas.
    ///
    /// # Errors
    /// [`Problem::TooLarge`].
    pub(super) fn product(&mut self, formulas: &[Index]) -> Result<Index, Problem> {
        let product = self.polynomial_product(formulas).ok_or(Problem::TooLarge(vec![i64::MAX]))?;
        let sum = self.formula_of(&product)?;
        self.narrower(sum, formulas)
    }

    /// The quotient, rounded down. The divisor is at least 1.
    ///
    /// # Errors
    /// [`Problem::Shape`] for a divisor that may be less than 1.
    pub(super) fn quotient(&mut self, x: &Index, y: &Index) -> Result<Index, Problem> {
        let (dividend, divisor) = (self.polynomial(x), self.polynomial(y));
        let exact = dividend.zip(divisor).and_then(|(x, y)| x.divided_by(&y));
        if let Some(exact) = exact {
            return self.formula_of(&exact);
        }
        match y.as_constant() {
            Some(divisor) if divisor > 0 => Ok(self.simple(&x.clone().floor_div(divisor))),
            _ => {
                self.require(&y.clone().plus_constant(-1), "a divisor, less 1")?;
                self.derived(Origin::Quotient(x.clone(), y.clone()))
            }
        }
    }

    /// A formula in the form about whose values most is known: of one quotient and what is added to it, one
    /// quotient, where that has fewer values. `x - floor(x / 2)` is `floor((x + 1) / 2)`.
    pub(super) fn simple(&self, formula: &Index) -> Index {
        let (common, formula) = &without_common_factor(formula);
        if *common > 1 {
            return self.simple(formula).times(*common);
        }
        let simplified = |formula: &Index| formula.simplify(&|var| self.symbol_range(var));
        let width =
            |formula: &Index| self.range_of(formula).map_or(i128::MAX, |r| i128::from(r.high) - i128::from(r.low));
        let fewer_values = |a: Index, b: Index| if width(&b) < width(&a) { b } else { a };
        let plain = simplified(formula);
        let plain = fewer_values(plain.clone(), simplified(&canonical(&plain)));
        let plain = fewer_values(plain.clone(), simplified(&self.with_known_maxima(&plain)));
        let mut quotients = plain.terms().iter().filter_map(|(atom, coefficient)| match atom {
            Atom::FloorDiv(inner, divisor) => Some((inner, *divisor, *coefficient)),
            _ => None,
        });
        let (Some((inner, divisor, coefficient @ (1 | -1))), None) = (quotients.next(), quotients.next()) else {
            return plain;
        };
        let quotient = Index::atom(Atom::FloorDiv(inner.clone(), divisor));
        let whole = plain.clone().minus(&quotient.times(coefficient)).times(divisor);
        let dividend = match coefficient {
            1 => whole.plus(inner),
            _ => whole.minus(inner).plus_constant(divisor - 1),
        };
        let joined = simplified(&dividend.floor_div(divisor));
        fewer_values(plain, joined)
    }

    /// What no sum says: a symbol of its own, the same for the same origin.
    pub(super) fn derived(&mut self, origin: Origin) -> Result<Index, Problem> {
        let list = &self.symbols.list;
        if let Some(known) = list.iter().position(|symbol| symbol.origin == origin) {
            return Ok(Index::var(Var::parameter(known)));
        }
        let too_large = || Problem::TooLarge(vec![i64::MAX]);
        if list.len() >= MAX_SYMBOLS {
            return Err(Problem::Unsupported(format!("more than {MAX_SYMBOLS} extents that follow from others")));
        }
        let range = self.range_of_derived(&origin).ok_or_else(too_large)?;
        if range.low < 0 {
            return Err(Problem::Unsupported(format!("{}, which may be negative,", self.name_of(&origin))));
        }
        if range.high >= MAX_VALUE {
            return Err(too_large());
        }
        let spelled = Some(self.name_of(&origin)).filter(|name| name.len() <= MAX_NAME);
        let name = spelled.unwrap_or_else(|| format!("extent {}", self.symbols.list.len()));
        let range = Parameter { low: range.low, high: range.high };
        Ok(Index::var(self.symbols.add(Symbol::new(name, range, origin))))
    }

    fn range_of_derived(&self, origin: &Origin) -> Option<Interval> {
        let both = |x: &Index, y: &Index| Some((self.range_of(x)?, self.range_of(y)?));
        match origin {
            Origin::Axis { .. } | Origin::Rows { .. } => None,
            Origin::Count { most } => Some(Interval { low: 0, ..self.range_of(most)? }),
            Origin::Product(x, y) => {
                let (x, y) = both(x, y)?;
                let ends = [(x.low, y.low), (x.low, y.high), (x.high, y.low), (x.high, y.high)];
                let ends = ends.into_iter().map(|(x, y)| x.checked_mul(y)).collect::<Option<Vec<_>>>()?;
                Some(Interval { low: *ends.iter().min()?, high: *ends.iter().max()? })
            }
            Origin::Quotient(x, y) => {
                let (x, y) = both(x, y)?;
                (x.low >= 0 && y.low > 0).then(|| Interval { low: x.low / y.high, high: x.high / y.low })
            }
            Origin::Minimum(x, y) => {
                let (x, y) = both(x, y)?;
                Some(Interval { low: x.low.min(y.low), high: x.high.min(y.high) })
            }
            Origin::Maximum(x, y) => {
                let (x, y) = both(x, y)?;
                Some(Interval { low: x.low.max(y.low), high: x.high.max(y.high) })
            }
        }
    }

    fn name_of(&self, origin: &Origin) -> String {
        let spelled = |x: &Index| match x.as_var() {
            Some(_) => self.spelled(x),
            None => format!("({})", self.spelled(x)),
        };
        match origin {
            Origin::Axis { .. } | Origin::Rows { .. } | Origin::Count { .. } => String::new(),
            Origin::Product(x, y) => format!("{} · {}", spelled(x), spelled(y)),
            Origin::Quotient(x, y) => format!("floor({} / {})", spelled(x), spelled(y)),
            Origin::Minimum(x, y) => format!("min({}, {})", self.spelled(x), self.spelled(y)),
            Origin::Maximum(x, y) => format!("max({}, {})", self.spelled(x), self.spelled(y)),
        }
    }
}

/// What all terms of a formula are multiples of, and the formula divided by it.
pub(super) fn without_common_factor(formula: &Index) -> (i64, Index) {
    let coefficients = formula.terms().iter().map(|(_, coefficient)| *coefficient).chain([formula.offset()]);
    let common = coefficients.fold(0, |common, own| gcd(common, own.unsigned_abs()));
    let common = i64::try_from(common).unwrap_or(1).max(1);
    (common, formula.clone().divided(common))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lengthened_to_whole_windows_is_one_quotient() {
        let mut formulas = Formulas::default();
        let range = Parameter { low: 1, high: 100 };
        let n = Index::var(formulas.symbols.add(Symbol::new("n", range, Origin::Axis { input: 0, axis: 0 })));
        let lengthened = n.clone().times(4).minus(&n.clone().times(2).floor_div(4).times(4));
        let simple = formulas.simple(&lengthened);
        assert_eq!(simple.terms().len(), 1, "{simple:?}");
        assert_eq!(formulas.range_of(&simple), Some(Interval { low: 4, high: 200 }));
        for value in 1..100 {
            let at = |formula: &Index| formula.at(&|_| value);
            assert_eq!(at(&simple), at(&lengthened));
        }
    }
}
