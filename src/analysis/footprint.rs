//! Which data a piece of a nest touches.
//!
//! Each access is a box: the values that its indices take while the loops inside of the piece run and those
//! outside stand still. The boxes of one buffer are united by the smaller of their hull and their sum. Caches
//! move whole lines, so a run of neighbours counts in lines; strided elements count a line each where that is
//! less than what lies between them.
//!
//! Where a loop outside of the piece shortens one inside (a last tile) or decides whether it runs at all (a
//! peeled tail), the cache must have room for the longest, but what is moved counts with the average.

use std::mem::take;

use serde::{Deserialize, Serialize};

use super::trips::{Trips, vars_of};
use crate::nest::{Nest, Scope, Stmt};
use crate::workload::{Atom, Expr, Index, Interval, TensorId, Var, gcd};

/// Bytes of a cache line on every processor that we generate code for.
pub const LINE_BYTES: u64 = 64;

/// Bytes of a page of memory.
pub(super) const PAGE_BYTES: u64 = 4096;

/// Bytes that cross a boundary between two levels of memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Moved {
    /// Towards the processor.
    pub read_bytes: u64,
    /// Away from it. That a store first reads the line is not counted.
    pub written_bytes: u64,
}

impl Moved {
    /// Bytes in both directions.
    pub fn total_bytes(self) -> u64 {
        self.read_bytes.saturating_add(self.written_bytes)
    }

    pub(super) fn plus(self, other: Moved) -> Moved {
        Moved {
            read_bytes: self.read_bytes.saturating_add(other.read_bytes),
            written_bytes: self.written_bytes.saturating_add(other.written_bytes),
        }
    }

    pub(super) fn times(self, runs: f64) -> Moved {
        let scaled = |bytes: u64| (bytes as f64 * runs).round() as u64;
        Moved { read_bytes: scaled(self.read_bytes), written_bytes: scaled(self.written_bytes) }
    }
}

/// In what data is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    Element,
    Line,
    /// What one entry of a translation buffer covers.
    Page,
}

/// What a piece of a nest touches, but for registers.
pub(super) struct Footprint<'a> {
    nest: &'a Nest,
    /// Ordered by tensor.
    touched: Vec<(TensorId, Touched)>,
}

/// What is touched of one buffer.
#[derive(Default)]
pub(super) struct Touched {
    boxes: Vec<Region>,
    /// Something is read before it was written here.
    pub read: bool,
    pub written: bool,
    /// The variables that the accesses depend on, those of outer loops too.
    vars: Vec<Var>,
}

impl Touched {
    pub fn depends_on(&self, var: Var) -> bool {
        self.vars.contains(&var)
    }
}

/// By dimension, what one access touches.
#[derive(Clone, Debug)]
struct Region {
    spans: Vec<Span>,
    /// The maximum number of elements.
    points: u64,
    /// Of what it touches at most, how much it does on average.
    share: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    low: i64,
    high: i64,
    /// The maximum number of different values.
    count: u64,
}

impl<'a> Footprint<'a> {
    /// `iterations` may shorten a loop: a core's part of it.
    pub fn of(
        trips: &Trips<'a>,
        scratch: &mut Scratch,
        statements: impl IntoIterator<Item = &'a Stmt>,
        iterations: Option<(Var, i64)>,
    ) -> Footprint<'a> {
        scratch.extents.resize(trips.nest.vars.len(), None);
        let footprint = Footprint { nest: trips.nest, touched: Vec::with_capacity(trips.nest.buffers.len()) };
        let mut collector = Collector { footprint, trips, iterations, share: 1.0, scratch };
        statements.into_iter().for_each(|statement| collector.statement(statement));
        collector.footprint
    }

    /// Only the buffers that `keep` names.
    pub fn retain(mut self, keep: &dyn Fn(&Scope) -> bool) -> Footprint<'a> {
        let nest = self.nest;
        self.touched.retain(|(id, _)| keep(&nest.buffer(*id).scope));
        self
    }

    fn of_tensor(&mut self, id: TensorId) -> &mut Touched {
        let at = self.touched.binary_search_by_key(&id, |(id, _)| *id).unwrap_or_else(|at| {
            self.touched.insert(at, (id, Touched::default()));
            at
        });
        &mut self.touched[at].1
    }

    /// Bytes that must lie in a cache for nothing to be loaded twice.
    pub fn bytes(&self, unit: Unit) -> u64 {
        self.touched
            .iter()
            .fold(0u64, |sum, (id, touched)| sum.saturating_add(self.united_bytes(unit, *id, touched, &|_| 1.0)))
    }

    /// Bytes that come and go where everything fits.
    pub fn moved(&self, unit: Unit) -> Moved {
        self.moved_by(unit, &|_| 1.0)
    }

    /// The same, each buffer so many times.
    pub fn moved_by(&self, unit: Unit, times: &dyn Fn(&Touched) -> f64) -> Moved {
        self.touched.iter().fold(Moved::default(), |sum, (id, touched)| {
            let bytes = self.united_bytes(unit, *id, touched, &|region| region.share);
            let part = |counts: bool| if counts { bytes } else { 0 };
            let once = Moved { read_bytes: part(touched.read), written_bytes: part(touched.written) };
            sum.plus(once.times(times(touched)))
        })
    }

    fn united_bytes(&self, unit: Unit, id: TensorId, touched: &Touched, share: &dyn Fn(&Region) -> f64) -> u64 {
        let bytes = |region: &Region| (self.region_bytes(unit, id, region) as f64 * share(region)).round() as u64;
        let sum = touched.boxes.iter().fold(0u64, |sum, region| sum.saturating_add(bytes(region)));
        match touched.boxes.as_slice() {
            [only] => sum.min(self.region_bytes(unit, id, only)),
            boxes => hull(boxes).map_or(sum, |hull| sum.min(self.region_bytes(unit, id, &hull))),
        }
    }

    fn region_bytes(&self, unit: Unit, id: TensorId, region: &Region) -> u64 {
        let buffer = self.nest.buffer(id);
        let element = buffer.dtype.bytes() as u64;
        let rounded = |bytes: u64| match unit {
            Unit::Element => bytes,
            Unit::Line => bytes.checked_next_multiple_of(LINE_BYTES).unwrap_or(u64::MAX),
            Unit::Page => bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX),
        };
        let scattered = region.points.saturating_mul(rounded(element));
        let (runs, run) = runs(region, &buffer.shape, unit);
        scattered.min(runs.saturating_mul(rounded(run.saturating_mul(element))))
    }
}

/// How many runs of neighbours a region consists of, and how long one is.
fn runs(region: &Region, shape: &[i64], unit: Unit) -> (u64, u64) {
    let mut run = 1u64;
    let mut outer = region.spans.len();
    while outer > 0 {
        let (span, extent) = (region.spans[outer - 1], shape[outer - 1].max(0) as u64);
        let width = span.high.abs_diff(span.low).saturating_add(1).min(extent);
        let is_last = outer == region.spans.len();
        // holes between neighbours share their lines, holes between rows do not
        if span.count < width && !(is_last && unit != Unit::Element) {
            break;
        }
        run = run.saturating_mul(width);
        outer -= 1;
        if width < extent {
            break;
        }
    }
    let count = |(span, extent): (&Span, &i64)| span.count.min((*extent).max(0) as u64);
    let runs = region.spans[..outer].iter().zip(shape).map(count).fold(1u64, u64::saturating_mul);
    (runs, run)
}

/// The smallest region around others.
fn hull(boxes: &[Region]) -> Option<Region> {
    let mut all = boxes.iter();
    let first = all.next()?.clone();
    Some(all.fold(first, |mut hull, region| {
        hull.points = hull.points.saturating_add(region.points);
        for (span, other) in hull.spans.iter_mut().zip(&region.spans) {
            let (low, high) = (span.low.min(other.low), span.high.max(other.high));
            let most = span.count.saturating_add(other.count);
            *span = Span { low, high, count: most.min(high.abs_diff(low).saturating_add(1)) };
        }
        hull
    }))
}

struct Collector<'a, 'p> {
    footprint: Footprint<'a>,
    trips: &'p Trips<'a>,
    iterations: Option<(Var, i64)>,
    /// Of the statement at hand.
    share: f64,
    scratch: &'p mut Scratch,
}

/// Memory that is used from piece to piece.
#[derive(Default)]
pub(super) struct Scratch {
    /// Of the loops inside of the piece that are open, by `Var`.
    extents: Vec<Option<i64>>,
    /// Of the access at hand.
    vars: Vec<Var>,
    spans: Vec<Span>,
}

impl<'a> Collector<'a, '_> {
    fn statement(&mut self, statement: &'a Stmt) {
        let before = self.share;
        match statement {
            Stmt::Loop(l) => {
                let part = self.iterations.filter(|(var, _)| *var == l.var).map(|(_, count)| count);
                if self.is_decided_outside(&l.bounds) {
                    self.share *= self.trips.runs(l) / l.extent().max(1) as f64;
                }
                l.bounds.iter().for_each(|bound| self.gathers(bound));
                self.open(l.var, Some(part.unwrap_or(l.extent())));
                l.body.iter().for_each(|inner| self.statement(inner));
                self.open(l.var, None);
            }
            Stmt::If { conditions, body } => {
                if self.is_decided_outside(conditions.iter().map(|c| &c.index)) {
                    self.share *= self.trips.odds(conditions);
                }
                conditions.iter().for_each(|condition| self.gathers(&condition.index));
                body.iter().for_each(|inner| self.statement(inner));
            }
            Stmt::Store { buffer, indices, value } => {
                self.loads(value);
                self.access(*buffer, indices, false, true);
            }
            Stmt::Accumulate { buffer, indices, value, .. } => {
                self.loads(value);
                self.access(*buffer, indices, true, true);
            }
        }
        self.share = before;
    }

    fn open(&mut self, var: Var, extent: Option<i64>) {
        if let Some(known) = self.scratch.extents.get_mut(var.0 as usize) {
            *known = extent;
        }
    }

    /// By loops outside of the piece only; what is decided inside, the boxes and their hull show.
    fn is_decided_outside<'i>(&self, indices: impl IntoIterator<Item = &'i Index>) -> bool {
        let is_open = |var: Var| self.scratch.extents.get(var.0 as usize).copied().flatten().is_some();
        !indices.into_iter().any(|index| index.any_var(&is_open))
    }

    fn loads(&mut self, value: &Expr) {
        value.for_each_load(&mut |buffer, indices| self.access(buffer, indices, true, false));
    }

    fn gathers(&mut self, index: &Index) {
        if index.has_value() {
            self.loads(&Expr::Index(index.clone()));
        }
    }

    fn access(&mut self, buffer: TensorId, indices: &[Index], reads: bool, writes: bool) {
        if writes {
            indices.iter().for_each(|index| self.gathers(index));
        }
        let shape = match self.footprint.nest.buffers.get(buffer.0 as usize) {
            Some(known) if known.scope != Scope::Register => &known.shape,
            _ => return,
        };
        let (mut vars, mut spans) = (take(&mut self.scratch.vars), take(&mut self.scratch.spans));
        vars_of(indices, &mut vars);
        spans.clear();
        spans.extend(indices.iter().zip(shape).map(|(index, extent)| self.span(index, *extent)));
        let (points, share) = (self.points(&vars), self.share);
        let touched = self.footprint.of_tensor(buffer);
        touched.read |= reads && !touched.written;
        touched.written |= writes;
        touched.vars.reserve(vars.len());
        for var in &vars {
            if !touched.vars.contains(var) {
                touched.vars.push(*var);
            }
        }
        if !touched.boxes.iter().any(|b| b.spans == spans && b.points == points && b.share == share) {
            touched.boxes.push(Region { spans: spans.clone(), points, share });
        }
        (self.scratch.vars, self.scratch.spans) = (vars, spans);
    }

    fn span(&self, index: &Index, extent: i64) -> Span {
        if let Some(span) = self.span_of_affine(index) {
            return span;
        }
        let range = index.range(&|var| self.range(var));
        // what is gathered may lie anywhere
        let Interval { low, high } = range.unwrap_or(Interval::below(extent));
        let steps = high.abs_diff(low) / step(index).max(1);
        let mut vars = Vec::new();
        vars_of([index], &mut vars);
        Span { low, high, count: self.points(&vars).min(steps.saturating_add(1)) }
    }

    /// The same in one go, for the most frequent sort; `None` for any other, and where numbers leave 64 bits.
    fn span_of_affine(&self, index: &Index) -> Option<Span> {
        let (mut low, mut high, mut points) = (index.offset(), index.offset(), 1u64);
        for (atom, coefficient) in index.terms() {
            let Atom::Var(var) = atom else { return None };
            let last = self.range(*var).high;
            let reach = last.checked_mul(*coefficient)?;
            let end = if reach < 0 { &mut low } else { &mut high };
            *end = end.checked_add(reach)?;
            points = points.saturating_mul(last as u64 + 1);
        }
        let steps = high.abs_diff(low) / step(index).max(1);
        Some(Span { low, high, count: points.min(steps.saturating_add(1)) })
    }

    /// From 0 on.
    fn range(&self, var: Var) -> Interval {
        self.scratch.extents.get(var.0 as usize).copied().flatten().map_or(Interval::point(0), Interval::below)
    }

    /// How many combinations of values these variables have in the piece.
    fn points(&self, vars: &[Var]) -> u64 {
        let values = |var: &Var| self.range(*var).high as u64 + 1;
        vars.iter().map(values).fold(1u64, u64::saturating_mul)
    }
}

/// The values of an index lie this far apart, or a multiple of it: the greatest common divisor of its
/// coefficients.
fn step(index: &Index) -> u64 {
    index.terms().iter().fold(0, |divisor, (_, coefficient)| {
        if divisor == 1 {
            return 1;
        }
        gcd(divisor, coefficient.unsigned_abs())
    })
}
