//! Ranges of open dimensions that give way to what a network says of them.

use std::collections::BTreeSet;

use super::super::error::ImportError;
use super::super::runs::longest_run;
use super::{MAX_EXTENT, MOST_OF_OTHERS, Open, OpenDims};
use crate::graph::lower::{Builder, Conflict, Problem};
use crate::graph::symbol::Symbols;
use crate::workload::{Atom, Index, Interval, Parameter, Var};

/// No extent has to be a multiple of more: seven windows a row, in images that are halved five times.
const MOST_MULTIPLE: i64 = 256;
/// Nor of more for a single reason.
const MOST_FACTOR: i64 = 64;
/// How often ranges are changed.
const MAX_ADJUSTMENTS: usize = 64;

impl OpenDims {
    /// Changes ranges so that what stood against reading the network may not stand against it again; `false`
    /// where there is nothing to change.
    pub fn adjust(&mut self, builder: &Builder, error: &ImportError) -> bool {
        let (ImportError::Node { problem, .. }
        | ImportError::Input { problem, .. }
        | ImportError::Output { problem, .. }) = error
        else {
            return false;
        };
        self.adjustments += 1;
        if self.adjustments > MAX_ADJUSTMENTS {
            return false;
        }
        match (problem, builder.conflict()) {
            (Problem::TooLarge(_) | Problem::Memory { .. }, _) => self.halve(),
            (Problem::Shape(_), Some(Conflict::Unequal(a, b))) => {
                let difference = a.clone().minus(b);
                self.equate(&difference)
                    || self.multiply(&difference)
                    || self.confine(&difference)
                    || self.confine_by_values(builder.symbols(), &difference, &|value| value == 0)
                    || self.confine_alike(builder.symbols(), &difference)
            }
            (Problem::Shape(_), Some(Conflict::Beyond(left))) => self.assume(builder.symbols(), left),
            (Problem::Shape(_), Some(Conflict::Negative(formula))) => {
                self.keep_positive(formula) || self.confine_by_values(builder.symbols(), formula, &|value| value >= 0)
            }
            _ => false,
        }
    }

    /// Halves what default ranges extend to: first of the samples of signals, as long as there are more of
    /// them than other axes have elements.
    fn halve(&mut self) -> bool {
        let is_free = |open: &Open| !open.is_given && open.instead.is_none();
        let is_long = |open: &Open| open.range.high > MOST_OF_OTHERS;
        let are_long = self.list.iter().any(|open| is_free(open) && is_long(open));
        let mut changes = false;
        for open in self.list.iter_mut().filter(|open| is_free(open) && is_long(open) == are_long) {
            let high = (open.range.high / 2 / open.multiple * open.multiple).max(open.range.low + open.multiple);
            changes |= high < open.range.high;
            open.range.high = high.min(open.range.high);
        }
        changes
    }

    /// Lets a difference of formulas be 0, by giving a symbol up that occurs once in it.
    fn equate(&mut self, difference: &Index) -> bool {
        let whole = |number: &usize| self.list[*number].multiple == 1;
        let numbers: Vec<Option<usize>> = self.symbols.iter().map(|number| number.filter(whole)).collect();
        let number = |var: Var| numbers.get(var.as_parameter()?).copied().flatten();
        // symbols that are computed are not to be chosen
        if difference.any_var(&|var| number(var).is_none()) {
            return false;
        }
        let mut candidates: Vec<(bool, usize, Index)> = Vec::new();
        for (atom, coefficient) in difference.terms() {
            let Atom::Var(var) = atom else { continue };
            let Some(number) = number(*var) else { continue };
            let rest = difference.clone().minus(&Index::var(*var).times(*coefficient));
            if coefficient.unsigned_abs() != 1 || rest.mentions(*var) {
                continue;
            }
            candidates.push((self.list[number].is_given, number, rest.times(-*coefficient)));
        }
        // rather a default range than a given one, rather a later input than an earlier
        candidates.sort_by_key(|(is_given, number, _)| (*is_given, usize::MAX - number));
        for (is_given, chosen, value) in candidates {
            let range = self.list[chosen].range;
            if let Some(constant) = value.as_constant() {
                let fits = if is_given { range.contains(constant) } else { (1..MAX_EXTENT).contains(&constant) };
                if fits {
                    self.list[chosen].range = Parameter { low: constant, high: constant };
                    return true;
                }
                continue;
            }
            let of_list = value.substitute(&|var| Some(Index::var(Var(number(var)? as u32))));
            if let Some(Var(other)) = of_list.as_var() {
                let other = &mut self.list[other as usize];
                let (low, high) = match (is_given, other.is_given) {
                    (true, false) => (range.low, range.high),
                    (false, true) => (other.range.low, other.range.high),
                    _ => (range.low.max(other.range.low), range.high.min(other.range.high)),
                };
                if low > high {
                    continue;
                }
                other.range = Parameter { low, high };
                other.is_given |= is_given;
            }
            self.list[chosen].instead = Some(of_list);
            return true;
        }
        false
    }

    /// Takes multiples alone where a difference is 0 for these, whatever they are: what is halved again and
    /// again comes out as what was doubled as often.
    fn multiply(&mut self, difference: &Index) -> bool {
        let mut chosen = BTreeSet::new();
        let mut is_known = true;
        difference.for_each_var(&mut |var| match self.number_of(var) {
            Some(number) => {
                chosen.insert(number);
            }
            None => is_known = false,
        });
        let most = chosen.iter().map(|number| self.list[*number].multiple).max().map_or(0, |own| MOST_MULTIPLE / own);
        if !is_known || chosen.iter().any(|number| self.list[*number].is_given) {
            return false;
        }
        for factor in 2..=most.min(MOST_FACTOR) {
            let scaled = difference.substitute(&|var| Some(Index::var(var).times(factor)));
            let range = |var: Var| match self.number_of(var) {
                Some(number) => self.list[number].part().interval(),
                None => Interval { low: 0, high: i64::MAX },
            };
            if scaled.simplify(&range).as_constant() == Some(0) {
                chosen.into_iter().for_each(|number| self.list[number].take_multiples_of(factor));
                return true;
            }
        }
        false
    }

    /// The open dimension whose symbol this is.
    fn number_of(&self, var: Var) -> Option<usize> {
        self.symbols.get(var.as_parameter()?).copied().flatten()
    }

    /// Narrows a default range to where a difference is 0 that grows or falls with its only symbol: a network
    /// that squeezes what is left of a sequence takes those of which one element is left.
    fn confine(&mut self, difference: &Index) -> bool {
        let mut symbols = BTreeSet::new();
        difference.for_each_var(&mut |var| {
            symbols.insert(var);
        });
        let [Some(number)] = symbols.iter().map(|var| var.as_parameter()).collect::<Vec<_>>()[..] else {
            return false;
        };
        let fallen = difference.clone().times(-1);
        let Some(grown) = [difference, &fallen].into_iter().find(|index| grows(index)) else { return false };
        let own = self.number_of(Var::parameter(number)).map(|at| &mut self.list[at]);
        let Some(own) = own.filter(|own| !own.is_given && own.multiple == 1) else { return false };
        // the first number in the range at which it is at least this
        let first = |least: i64| {
            let (mut low, mut end) = (own.range.low, own.range.high + 1);
            while low < end {
                let middle = low + (end - low) / 2;
                let reaches = grown.at(&|_| middle).is_none_or(|value| value >= least);
                if reaches { end = middle } else { low = middle + 1 }
            }
            low
        };
        let confined = Parameter { low: first(0), high: first(1) - 1 };
        if confined.low > confined.high || confined == own.range {
            return false;
        }
        own.range = confined;
        true
    }

    /// Narrows a default range to the most values in a row for which a formula that depends on nothing else
    /// is what it has to be: a table of positions that is cut to the length of a sequence is only that long.
    fn confine_by_values(&mut self, symbols: &Symbols, formula: &Index, fits: &dyn Fn(i64) -> bool) -> bool {
        let sources: Vec<usize> = symbols.sources_of(formula).into_iter().collect();
        let [source] = sources[..] else { return false };
        let own = self.number_of(Var::parameter(source)).map(|at| &mut self.list[at]);
        let Some(own) = own.filter(|own| !own.is_given && own.multiple == 1) else { return false };
        let holds = |value: i64| symbols.value_where(formula, &BTreeSet::from([source]), value).is_some_and(fits);
        let Some(confined) = longest_run(own.range, &holds).filter(|found| *found != own.range) else {
            return false;
        };
        own.range = confined;
        true
    }

    /// Narrows the default ranges of the dimensions that a formula depends on to the most values in a row for
    /// which it is 0 where all have the same: a table of as many places as an image has parts is one of a
    /// square. Where that leaves other values, all have the least.
    fn confine_alike(&mut self, symbols: &Symbols, formula: &Index) -> bool {
        let sources = symbols.sources_of(formula);
        let numbers = sources.iter().map(|source| self.number_of(Var::parameter(*source)));
        let Some(numbers) = numbers.collect::<Option<Vec<usize>>>() else { return false };
        let is_free = |number: &usize| !self.list[*number].is_given && self.list[*number].multiple == 1;
        if numbers.len() < 2 || !numbers.iter().all(is_free) {
            return false;
        }
        let ranges = || numbers.iter().map(|number| self.list[*number].range);
        let low = ranges().map(|range| range.low).max().unwrap_or(0);
        let high = ranges().map(|range| range.high).min().unwrap_or(0);
        let is_zero = |value: i64| symbols.value_where(formula, &sources, value) == Some(0);
        let Some(mut confined) = longest_run(Parameter { low, high }, &is_zero) else { return false };
        if ranges().all(|range| range == confined) {
            confined.high = confined.low;
        }
        numbers.into_iter().for_each(|number| self.list[number].range = confined);
        low <= high
    }

    /// Has a formula at least 0 in all runs, and no dimension so far that it never is: a table of positions
    /// serves what is cached of a sequence and what is new, together.
    fn assume(&mut self, symbols: &Symbols, left: &Index) -> bool {
        let own = left.substitute(&|var| Some(Index::var(Var(self.number_of(var)? as u32))));
        let is_known = !left.any_var(&|var| self.number_of(var).is_none_or(|number| self.list[number].multiple > 1));
        if !is_known || self.assumed.contains(&own) {
            return false;
        }
        for source in symbols.sources_of(left) {
            let Some(number) = self.number_of(Var::parameter(source)) else { continue };
            let fits = |value: i64| symbols.value_where(left, &BTreeSet::from([source]), value) >= Some(0);
            match longest_run(self.list[number].range, &fits) {
                Some(range) if !self.list[number].is_given => self.list[number].range = range,
                Some(_) => {}
                None => return false,
            }
        }
        self.assumed.push(own);
        true
    }

    /// Moves one end of a default range so far that a formula, which grows or falls with it, is never
    /// negative: rather the low end than the high one.
    fn keep_positive(&mut self, formula: &Index) -> bool {
        let least = |symbol: usize, of_symbol: Interval| {
            let range = |var: Var| match self.number_of(var) {
                Some(_) if var == Var::parameter(symbol) => of_symbol,
                Some(at) => self.list[at].part().interval(),
                None => Interval { low: i64::MIN, high: i64::MAX },
            };
            formula.range(&range).map(|range| range.low)
        };
        for raises in [true, false] {
            for symbol in 0..self.symbols.len() {
                let Some(number) = self.symbols[symbol] else { continue };
                let Open { is_given, multiple, .. } = self.list[number];
                let Interval { low, high } = self.list[number].part().interval();
                // with so many taken away from that end
                let left = |taken: i64| match raises {
                    true => Interval { low: low + taken, high },
                    false => Interval { low, high: high - taken },
                };
                let suffices = |taken: i64| least(symbol, left(taken)).is_some_and(|least| least >= 0);
                if is_given || !formula.mentions(Var::parameter(symbol)) || !suffices(high - low) {
                    continue;
                }
                let (mut few, mut enough) = (0, high - low);
                while few < enough {
                    let middle = few + (enough - few) / 2;
                    if suffices(middle) { enough = middle } else { few = middle + 1 }
                }
                if enough > 0 {
                    let Interval { low, high } = left(enough);
                    self.list[number].range = Parameter { low: low * multiple, high: high * multiple };
                    return true;
                }
            }
        }
        false
    }
}

/// Whether a formula never falls where its symbols grow.
fn grows(formula: &Index) -> bool {
    formula.terms().iter().all(|(atom, coefficient)| match atom {
        Atom::Var(_) => *coefficient > 0,
        Atom::FloorDiv(inner, _) => *coefficient > 0 && grows(inner),
        Atom::Modulo(..) | Atom::Value(_) => false,
    })
}
