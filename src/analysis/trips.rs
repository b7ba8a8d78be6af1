//! How often the loops of a nest run, and how often its conditions hold, on average over the loops around.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::nest::{Loop, Nest, Stmt};
use crate::workload::{Condition, Index, Var};

/// The extents of a nest's loops, and the averages that were taken of those that depend on other loops.
pub(crate) struct Trips<'a> {
    pub nest: &'a Nest,
    /// By `Var`.
    extents: Vec<i64>,
    /// By the address of the bounds or conditions, which stay where they are while the nest is borrowed.
    averages: RefCell<BTreeMap<usize, f64>>,
}

/// The values of variables.
type Point<'a> = dyn Fn(Var) -> i64 + 'a;

/// Averages over more combinations of variables than this are not taken.
const MAX_COMBINATIONS: i64 = 1 << 14;

impl<'a> Trips<'a> {
    pub fn new(nest: &'a Nest) -> Trips<'a> {
        let mut trips = Trips { nest, extents: vec![1; nest.vars.len()], averages: RefCell::default() };
        trips.note(&nest.body);
        trips
    }

    fn note(&mut self, statements: &[Stmt]) {
        for statement in statements {
            match statement {
                Stmt::Loop(l) => {
                    if let Some(extent) = self.extents.get_mut(l.var.0 as usize) {
                        *extent = l.extent().max(0);
                    }
                    self.note(&l.body);
                }
                Stmt::If { body, .. } => self.note(body),
                Stmt::Store { .. } | Stmt::Accumulate { .. } => {}
            }
        }
    }

    /// How often a loop runs, on average over the loops around it.
    pub fn runs(&self, l: &'a Loop) -> f64 {
        let planned = l.extent().max(0) as f64;
        if l.is_constant() {
            return planned;
        }
        let trips = |at: &Point| {
            let bounds = l.bounds.iter().map(|bound| bound.at(at));
            bounds.min().flatten().map(|trips| trips.max(0) as f64)
        };
        self.once(&l.bounds, || self.average(l.bounds.iter(), &trips).unwrap_or(planned))
    }

    /// How often all conditions hold, of all times that they are asked.
    pub fn odds(&self, conditions: &'a [Condition]) -> f64 {
        let holds = |at: &Point| {
            let of = |c: &Condition| c.index.at(at).map(|value| (c.low..c.high).contains(&value));
            let all = conditions.iter().try_fold(true, |all, condition| Some(all & of(condition)?))?;
            Some(f64::from(u8::from(all)))
        };
        self.once(conditions, || self.average(conditions.iter().map(|c| &c.index), &holds).unwrap_or(1.0))
    }

    /// The average that belongs to bounds or conditions, taken once.
    fn once<T>(&self, of: &'a [T], take: impl FnOnce() -> f64) -> f64 {
        let address = of.as_ptr().addr();
        let known = self.averages.borrow().get(&address).copied();
        known.unwrap_or_else(|| {
            let average = take();
            self.averages.borrow_mut().insert(address, average);
            average
        })
    }

    /// `None` where a value is gathered, or there are too many.
    fn average<'i>(&self, indices: impl Iterator<Item = &'i Index>, of: &dyn Fn(&Point) -> Option<f64>) -> Option<f64> {
        let mut vars = Vec::new();
        vars_of(indices, &mut vars);
        let extent = |var: &Var| self.extents.get(var.0 as usize).copied().unwrap_or(1).max(1);
        let all = vars.iter().try_fold(1i64, |all, var| all.checked_mul(extent(var)));
        let all = all.filter(|all| *all <= MAX_COMBINATIONS)?;
        let mut values = vec![0; self.extents.len()];
        let mut sum = 0.0;
        for _ in 0..all {
            sum += of(&|var| values.get(var.0 as usize).copied().unwrap_or(0))?;
            advance(&mut values, vars.iter().map(|var| (*var, extent(var))));
        }
        Some(sum / all as f64)
    }
}

/// The next combination of values; the first variable runs fastest.
fn advance(values: &mut [i64], vars: impl Iterator<Item = (Var, i64)>) {
    for (var, extent) in vars {
        let Some(value) = values.get_mut(var.0 as usize) else { continue };
        *value += 1;
        if *value < extent {
            return;
        }
        *value = 0;
    }
}

/// The variables of indices, those of gathered values too, each once.
pub(super) fn vars_of<'i>(indices: impl IntoIterator<Item = &'i Index>, vars: &mut Vec<Var>) {
    vars.clear();
    indices.into_iter().for_each(|index| index.for_each_var(&mut |var| vars.push(var)));
    vars.sort_unstable();
    vars.dedup();
}
