//! How many bytes each level of memory hands over, estimated from the nest alone.
//!
//! The classical model of reuse by footprint, which Roller (OSDI 2022) sizes its tiles by and which
//! "Analytical Modeling Is Enough for High-Performance BLIS" (Low et al., TOMS 2016) derives block sizes
//! from. For a cache of some capacity, walk from the outside inwards:
//!
//! ```text
//! traffic(piece) = footprint(piece)             where that fits: everything is loaded once
//! traffic(loop)  = footprint(loop)              where one iteration fits: what it shares with the next one stays
//! traffic(loop)  = iterations · traffic(body)   otherwise: when an iteration begins, nothing of the one before is left
//! traffic(block) = Σ traffic(statement)         otherwise
//! ```
//!
//! Caches are taken to be empty at the start, fully associative, with the least recently used line leaving;
//! loops that others shorten to run as often as they do on average. The iterations of a parallel loop are
//! dealt to the cores in equal parts: private caches load what is shared once a core, and inside of such a
//! loop a shared cache is divided by the cores.
//!
//! The first level serves the processor's loads and stores. Registers keep what unrolled and vector loops use
//! again, and what does not change in an innermost loop; buffers meant for registers are taken to live there.

use serde::{Deserialize, Serialize};

use super::footprint::{Moved, PAGE_BYTES, Touched, Unit};
use super::pieces::Pieces;
use crate::nest::{Loop, LoopKind, Nest, Stmt};
use crate::target::{Level, Target};
use crate::workload::Var;

/// What a level of memory hands over.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LevelTraffic {
    pub level: Level,
    /// Of one core's cache where it is private; `None` for memory.
    pub capacity_bytes: Option<u64>,
    /// Between this level and the next nearer one (the processor, for the first), over all cores.
    pub moved: Moved,
}

/// What all iterations of a loop touch, without those of the loops around it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LoopFootprint {
    pub name: String,
    /// Loops around it, vector and unrolled ones not counted.
    pub depth: usize,
    pub is_parallel: bool,
    /// As planned; the last tile may have fewer.
    pub iterations: i64,
    /// In whole cache lines.
    pub footprint_bytes: u64,
    /// The nearest level that holds it.
    pub fits: Level,
}

/// Bytes that each level of `target` hands over in one run of a nest's body, nearest first.
pub fn traffic(nest: &Nest, target: &Target) -> Vec<LevelTraffic> {
    Pieces::new(nest).traffic(target)
}

/// How often the translation of an address must be fetched into a buffer of so many entries, over all cores:
/// pages are moved as lines are.
pub fn translations(nest: &Nest, target: &Target, entries: u64) -> u64 {
    Pieces::new(nest).translations(target, entries)
}

impl Pieces<'_> {
    /// [`traffic()`] of its nest.
    pub fn traffic(&self, target: &Target) -> Vec<LevelTraffic> {
        let mut nearer: Option<(Level, u64)> = None;
        let levels = target.levels().into_iter().map(|(level, capacity_bytes)| {
            let moved = match nearer {
                None => served_to_registers(self, &self.nest.body),
                Some((nearer, capacity)) => {
                    let cores = i64::from(target.processors()).max(1);
                    Cache { pieces: self, capacity, cores, is_private: nearer.is_private(), unit: Unit::Line }
                        .block(&self.nest.body)
                }
            };
            nearer = capacity_bytes.map(|bytes| (level, bytes));
            LevelTraffic { level, capacity_bytes, moved }
        });
        levels.collect()
    }

    /// [`translations`] of its nest.
    pub fn translations(&self, target: &Target, entries: u64) -> u64 {
        let capacity = entries.saturating_mul(PAGE_BYTES);
        let cores = i64::from(target.processors()).max(1);
        let pages = Cache { pieces: self, capacity, cores, is_private: true, unit: Unit::Page };
        pages.block(&self.nest.body).total_bytes() / PAGE_BYTES
    }
}

/// Serial and parallel loops of a nest's body with their footprints, in the order of the program.
pub fn loop_footprints(nest: &Nest, target: &Target) -> Vec<LoopFootprint> {
    let mut found = Vec::new();
    list_loops(&Pieces::new(nest), target, &nest.body, 0, &mut found);
    found
}

fn list_loops<'a>(
    pieces: &Pieces<'a>,
    target: &Target,
    statements: &'a [Stmt],
    depth: usize,
    found: &mut Vec<LoopFootprint>,
) {
    for statement in statements {
        match statement {
            Stmt::Loop(l) if is_serial(l) => {
                let footprint_bytes = pieces.footprint(std::slice::from_ref(statement), None).bytes(Unit::Line);
                let holds =
                    |(_, capacity): &(Level, Option<u64>)| capacity.is_none_or(|bytes| footprint_bytes <= bytes);
                found.push(LoopFootprint {
                    name: pieces.nest.var_name(l.var),
                    depth,
                    is_parallel: l.kind == LoopKind::Parallel,
                    iterations: l.extent(),
                    footprint_bytes,
                    fits: target.levels().into_iter().find(holds).map_or(Level::Memory, |(level, _)| level),
                });
                list_loops(pieces, target, &l.body, depth + 1, found);
            }
            Stmt::Loop(Loop { body, .. }) | Stmt::If { body, .. } => list_loops(pieces, target, body, depth, found),
            Stmt::Store { .. } | Stmt::Accumulate { .. } => {}
        }
    }
}

/// Executed one iteration after the other by a core.
fn is_serial(l: &Loop) -> bool {
    matches!(l.kind, LoopKind::Serial | LoopKind::Parallel)
}

fn contains(statements: &[Stmt], wanted: &dyn Fn(&Loop) -> bool) -> bool {
    statements.iter().any(|statement| match statement {
        Stmt::Loop(l) => wanted(l) || contains(&l.body, wanted),
        Stmt::If { body, .. } => contains(body, wanted),
        Stmt::Store { .. } | Stmt::Accumulate { .. } => false,
    })
}

/// A cache that is filled from the next level.
struct Cache<'p, 'a> {
    pieces: &'p Pieces<'a>,
    /// In bytes.
    capacity: u64,
    /// That share the capacity, or have as much each.
    cores: i64,
    is_private: bool,
    /// In what is moved.
    unit: Unit,
}

impl<'a> Cache<'_, 'a> {
    fn bytes(&self, statements: &'a [Stmt]) -> u64 {
        self.pieces.footprint(statements, None).bytes(self.unit)
    }

    fn moved(&self, statements: &'a [Stmt], part: Option<(Var, i64)>) -> Moved {
        self.pieces.footprint(statements, part).moved(self.unit)
    }

    fn block(&self, statements: &'a [Stmt]) -> Moved {
        let is_spread = self.is_private && contains(statements, &|l| l.kind == LoopKind::Parallel);
        if !is_spread && self.bytes(statements) <= self.capacity {
            return self.moved(statements, None);
        }
        self.parts(statements)
    }

    /// Of a block that does not fit.
    fn parts(&self, statements: &'a [Stmt]) -> Moved {
        statements.iter().map(|statement| self.statement(statement)).fold(Moved::default(), Moved::plus)
    }

    fn statement(&self, statement: &'a Stmt) -> Moved {
        let alone = std::slice::from_ref(statement);
        match statement {
            Stmt::Loop(l) if l.kind == LoopKind::Parallel && self.cores > 1 => self.parallel(l, alone),
            Stmt::Loop(l) => {
                let is_spread =
                    self.is_private && self.cores > 1 && contains(&l.body, &|l| l.kind == LoopKind::Parallel);
                match !is_spread && self.bytes(&l.body) <= self.capacity {
                    true => self.moved(alone, None),
                    false => self.parts(&l.body).times(self.pieces.runs(l)),
                }
            }
            Stmt::If { conditions, body } => self.block(body).times(self.pieces.odds(conditions)),
            Stmt::Store { .. } | Stmt::Accumulate { .. } => self.moved(alone, None),
        }
    }

    fn parallel(&self, l: &'a Loop, alone: &'a [Stmt]) -> Moved {
        let active = self.cores.min(l.extent()).max(1);
        let one = self.bytes(&l.body);
        let capacity = if self.is_private { self.capacity } else { self.capacity / active as u64 };
        if one > capacity {
            // each core is alone now
            return Cache { capacity, cores: 1, ..*self }.parts(&l.body).times(self.pieces.runs(l));
        }
        if !self.is_private {
            return self.moved(alone, None);
        }
        let part = l.extent().saturating_add(active - 1) / active;
        let (full, rest) = (l.extent() / part.max(1), l.extent() % part.max(1));
        let of = |count: i64| self.moved(alone, Some((l.var, count)));
        let last = if rest > 0 { of(rest) } else { Moved::default() };
        of(part).times(full.max(0) as f64).plus(last)
    }
}

/// Bytes that loads and stores of the processor move.
fn served_to_registers<'a>(pieces: &Pieces<'a>, statements: &'a [Stmt]) -> Moved {
    let mut moved = Moved::default();
    let mut straight = Vec::new();
    for statement in statements {
        let part = match statement {
            _ if !contains(std::slice::from_ref(statement), &is_serial) => {
                straight.push(statement);
                continue;
            }
            Stmt::Loop(l) if is_serial(l) && !contains(&l.body, &is_serial) => {
                // stores are executed every time, and what is stored is not kept
                let times = |touched: &Touched| match touched.written || touched.depends_on(l.var) {
                    true => pieces.runs(l),
                    false => 1.0,
                };
                pieces.footprint(&l.body, None).moved_by(Unit::Element, &times)
            }
            Stmt::Loop(l) => served_to_registers(pieces, &l.body).times(pieces.runs(l)),
            Stmt::If { conditions, body } => served_to_registers(pieces, body).times(pieces.odds(conditions)),
            Stmt::Store { .. } | Stmt::Accumulate { .. } => continue,
        };
        moved = moved.plus(part);
    }
    moved.plus(pieces.footprint_of(straight, None).moved(Unit::Element))
}
