//! What the pieces of a nest touch. Every level of memory asks for the footprints of the same pieces, so each
//! is collected once for all of them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::footprint::{Footprint, Scratch};
use super::trips::Trips;
use crate::nest::{Loop, Nest, Stmt};
use crate::workload::{Condition, Var};

/// A nest, how often its loops run, and the footprints that were asked for.
pub(crate) struct Pieces<'a> {
    pub nest: &'a Nest,
    trips: Trips<'a>,
    footprints: RefCell<BTreeMap<Piece, Rc<Footprint<'a>>>>,
    scratch: RefCell<Scratch>,
}

/// Statements that follow one another, by address and number, and the loop of which only some iterations run.
/// Addresses stay what they are while the nest is borrowed.
type Piece = (usize, usize, Option<(Var, i64)>);

impl<'a> Pieces<'a> {
    pub fn new(nest: &'a Nest) -> Pieces<'a> {
        Pieces { nest, trips: Trips::new(nest), footprints: RefCell::default(), scratch: RefCell::default() }
    }

    /// What statements touch; `iterations` may shorten a loop.
    pub(super) fn footprint(&self, statements: &'a [Stmt], iterations: Option<(Var, i64)>) -> Rc<Footprint<'a>> {
        let piece = (statements.as_ptr().addr(), statements.len(), iterations);
        if let Some(known) = self.footprints.borrow().get(&piece) {
            return Rc::clone(known);
        }
        let footprint = Rc::new(self.footprint_of(statements, iterations));
        self.footprints.borrow_mut().insert(piece, Rc::clone(&footprint));
        footprint
    }

    /// The same of statements that need not follow one another, which is not remembered.
    pub(super) fn footprint_of(
        &self,
        statements: impl IntoIterator<Item = &'a Stmt>,
        iterations: Option<(Var, i64)>,
    ) -> Footprint<'a> {
        Footprint::of(&self.trips, &mut self.scratch.borrow_mut(), statements, iterations)
    }

    /// How often a loop runs, on average over the loops around it.
    pub fn runs(&self, l: &'a Loop) -> f64 {
        self.trips.runs(l)
    }

    /// How often all conditions hold, of all times that they are asked.
    pub fn odds(&self, conditions: &'a [Condition]) -> f64 {
        self.trips.odds(conditions)
    }
}
