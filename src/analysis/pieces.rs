//! How long the loops of a nest are planned to be, and what has been found out about its pieces.
//!
//! Every level of memory asks for the footprints of the same pieces, so each is collected once for all of
//! them. Pieces and bounds are told apart by their addresses, which stay what they are while the nest is
//! borrowed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::footprint::{Footprint, Scratch, vars_of};
use crate::nest::{Loop, Nest, Stmt};
use crate::workload::{Condition, Index, Var};

/// A nest and how long its loops are planned to be.
pub(crate) struct Plan<'a> {
    pub nest: &'a Nest,
    /// By `Var`.
    extents: Vec<i64>,
    /// By the address of the bounds or conditions.
    averages: RefCell<BTreeMap<usize, f64>>,
    footprints: RefCell<BTreeMap<Piece, Rc<Footprint<'a>>>>,
    pub(super) scratch: RefCell<Scratch>,
}

/// Statements that follow one another, by address and number, and the loop of which only some iterations run.
type Piece = (usize, usize, Option<(Var, i64)>);

/// The values of variables.
type Point<'a> = dyn Fn(Var) -> i64 + 'a;

/// Averages over more combinations of variables than this are not taken.
const MAX_COMBINATIONS: i64 = 1 << 14;

impl<'a> Plan<'a> {
    pub fn new(nest: &'a Nest) -> Plan<'a> {
        let (averages, footprints, scratch) = (RefCell::default(), RefCell::default(), RefCell::default());
        let mut plan = Plan { nest, extents: vec![1; nest.vars.len()], averages, footprints, scratch };
        plan.note(&nest.body);
        plan
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

    /// What statements touch; `iterations` may shorten a loop.
    pub(super) fn footprint(&self, statements: &'a [Stmt], iterations: Option<(Var, i64)>) -> Rc<Footprint<'a>> {
        let piece = (statements.as_ptr().addr(), statements.len(), iterations);
        if let Some(known) = self.footprints.borrow().get(&piece) {
            return Rc::clone(known);
        }
        let footprint = Rc::new(Footprint::of(self, statements, iterations));
        self.footprints.borrow_mut().insert(piece, Rc::clone(&footprint));
        footprint
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
