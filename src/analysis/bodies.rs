//! What single iterations of a nest's loops execute.
//!
//! [`super::Mix`] counts what a whole run executes; how fast a loop is depends on what stands together in its
//! body, too: how many sums are under way at once, how many operands feed them, whether vectors cross cache
//! lines, whether rows a power of two apart fall into the same sets of a cache.

use crate::analysis::Pieces;
use crate::analysis::footprint::{LINE_BYTES, PAGE_BYTES, Unit};
use crate::analysis::mix::{VECTORS_A_ROW, lane_step, loaded_rows};
use crate::nest::tiles::{Action, action};
use crate::nest::{Loop, LoopKind, Scope, Stmt};
use crate::target::Target;
use crate::workload::{Expr, Index, TensorId, Var, flatten};

/// Rows that are this many bytes apart share the sets of a first-level cache, or an eighth of them.
const ALIASING: [i64; 2] = [PAGE_BYTES as i64, PAGE_BYTES as i64 / 8];
/// Counted loops around a body whose strides may alias: what is farther outside runs too rarely.
const NEAR: usize = 2;

/// What stands directly in a counted loop, unrolled and in vectors: instructions of one iteration.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Body {
    /// Iterations on the busiest core.
    pub runs: f64,
    /// Operators on vectors or scalars; a multiply-add is one.
    pub operations: f64,
    /// Operators that take many instructions.
    pub slow: f64,
    /// Sums that are under way together, in vectors or scalars.
    pub sums: f64,
    /// Loads of one element, and of neighbours.
    pub singles: f64,
    pub vectors: f64,
    /// Stores of one element or of neighbours.
    pub stores: f64,
    /// Gathers and scatters.
    pub scattered: f64,
    /// Loads and stores of neighbours that may cross a cache line.
    pub split: f64,
    /// Registers that the lanes of an access fill, at most.
    pub width: f64,
    /// By [`ALIASING`]: the most rows that an access visits so far apart.
    pub aliased: [f64; 2],
    /// The counted loops around, innermost first: iterations, and bytes that all of them touch.
    pub around: Vec<(f64, f64)>,
}

impl Body {
    /// Cycles of all iterations, roughly: enough to tell which body is the hottest.
    pub fn cost(&self) -> f64 {
        let loads = (self.singles + self.vectors) / 2.0;
        let busy = self.operations.max(loads).max(self.stores);
        self.runs * (busy + 10.0 * self.scattered + 8.0 * self.slow + 2.0)
    }
}

/// The bodies of a nest's counted loops, and what stands outside of all.
pub(crate) fn bodies(pieces: &Pieces<'_>, target: &Target) -> Vec<Body> {
    let cores = f64::from(target.processors().max(1));
    let mut walk = Walk { pieces, cores, lanes: target.lanes().max(1), around: Vec::new(), bodies: Vec::new() };
    let mut outside = Body { runs: 1.0, ..Body::default() };
    walk.block(&pieces.nest.body, &mut Within::default(), &mut outside);
    walk.bodies.push(outside);
    walk.bodies
}

/// A counted loop.
#[derive(Clone, Copy)]
struct Counted {
    var: Var,
    trips: f64,
    bytes: f64,
}

/// The loops between a counted loop and a statement.
#[derive(Clone, Default)]
struct Within {
    unrolled: Vec<(Var, f64)>,
    vector: Option<(Var, f64)>,
    /// The steps that one instruction takes in every lane, and how many.
    dot: Option<(Var, i64)>,
}

struct Walk<'p, 'a> {
    pieces: &'p Pieces<'a>,
    cores: f64,
    lanes: i64,
    /// Outermost first.
    around: Vec<Counted>,
    bodies: Vec<Body>,
}

impl<'a> Walk<'_, 'a> {
    fn block(&mut self, statements: &'a [Stmt], within: &mut Within, own: &mut Body) {
        for statement in statements {
            match statement {
                Stmt::Loop(l) => self.enter(statement, l, within, own),
                Stmt::If { body, .. } => self.block(body, within, own),
                Stmt::Store { buffer, indices, value } => {
                    self.value(value, within, own);
                    self.access(*buffer, indices, true, within, own);
                }
                Stmt::Accumulate { buffer, indices, value, .. } => {
                    let moves = |var: Var| indices.iter().any(|index| index.mentions(var));
                    let depends = |var: Var| moves(var) || value.mentions(var);
                    match value {
                        // the product in front of the sum is of the same instruction
                        Expr::Binary(crate::workload::Binary::Multiply, x, y) => {
                            self.value(x, within, own);
                            self.value(y, within, own);
                        }
                        other => self.value(other, within, own),
                    }
                    own.operations += self.registers(within, &depends);
                    own.sums += self.registers(within, &moves);
                    self.access(*buffer, indices, false, within, own);
                    self.access(*buffer, indices, true, within, own);
                }
            }
        }
    }

    fn enter(&mut self, statement: &'a Stmt, l: &'a Loop, within: &mut Within, own: &mut Body) {
        let extent = l.extent() as f64;
        match l.kind {
            LoopKind::Matrix if let Some(action) = action(self.pieces.nest, l) => Self::tiles(&action, within, own),
            LoopKind::Vector => {
                let outer = within.vector.replace((l.var, extent));
                self.block(&l.body, within, own);
                within.vector = outer;
            }
            LoopKind::Dot => {
                let outer = within.dot.replace((l.var, l.extent()));
                self.block(&l.body, within, own);
                within.dot = outer;
            }
            LoopKind::Unroll => {
                within.unrolled.push((l.var, extent));
                self.block(&l.body, within, own);
                within.unrolled.pop();
            }
            LoopKind::Serial
            | LoopKind::Parallel
            | LoopKind::Block
            | LoopKind::Thread
            | LoopKind::Warp
            | LoopKind::Matrix => {
                let trips = if l.kind == LoopKind::Parallel { (extent / self.cores).ceil() } else { extent };
                let bytes = self.pieces.footprint(std::slice::from_ref(statement), None).bytes(Unit::Line) as f64;
                let copies: f64 = within.unrolled.iter().map(|(_, extent)| extent).product();
                self.around.push(Counted { var: l.var, trips, bytes });
                let around = self.around.iter().rev().map(|l| (l.trips, l.bytes)).collect();
                let mut body = Body { runs: own.runs * copies * trips, around, ..Body::default() };
                self.block(&l.body, &mut Within { vector: within.vector, ..Within::default() }, &mut body);
                self.bodies.push(body);
                self.around.pop();
            }
        }
    }

    /// Work of tile registers.
    fn tiles(action: &Action<'_>, within: &Within, own: &mut Body) {
        let copies = Self::copies(within, &|_| true);
        match action {
            Action::Start { .. } => {}
            Action::Store { sums, .. } => own.stores += copies * sums.rows as f64,
            Action::Fetch { sums, .. } => own.vectors += copies * sums.rows as f64,
            Action::Multiply { sums, operands } => {
                let operations = copies * VECTORS_A_ROW * sums.rows as f64;
                own.operations += operations;
                own.sums += operations;
                own.vectors += copies * loaded_rows(sums, operands) as f64;
            }
        }
    }

    /// Copies that unrolled loops make of what depends on these variables.
    fn copies(within: &Within, depends: &dyn Fn(Var) -> bool) -> f64 {
        within.unrolled.iter().filter(|(var, _)| depends(*var)).map(|(_, extent)| extent).product()
    }

    /// Registers that all these copies fill.
    fn registers(&self, within: &Within, depends: &dyn Fn(Var) -> bool) -> f64 {
        let vectors = within.vector.filter(|(var, _)| depends(*var)).map_or(1.0, |(_, extent)| self.vectors(extent));
        Self::copies(within, depends) * vectors
    }

    fn vectors(&self, extent: f64) -> f64 {
        (extent / self.lanes as f64).ceil()
    }

    fn value(&mut self, value: &Expr, within: &Within, own: &mut Body) {
        let depends = |var: Var| value.mentions(var);
        match value {
            Expr::Load { tensor, indices } => return self.access(*tensor, indices, false, within, own),
            // the instruction takes its operands as they are
            Expr::Cast(..) if within.dot.is_some() => {}
            Expr::Binary(..) | Expr::Select { .. } | Expr::Cast(..) | Expr::Bits(..) => {
                own.operations += self.registers(within, &depends);
            }
            Expr::Unary(..) => {
                let registers = self.registers(within, &depends);
                own.operations += registers;
                own.slow += registers;
            }
            Expr::Float(_) | Expr::Index(_) | Expr::Guard { .. } => {}
        }
        value.children().for_each(|child| self.value(child, within, own));
    }

    fn access(&mut self, buffer: TensorId, indices: &[Index], writes: bool, within: &Within, own: &mut Body) {
        let Some(known) = self.pieces.nest.buffers.get(buffer.0 as usize) else { return };
        if known.scope == Scope::Register {
            return;
        }
        let flat = flatten(indices, &known.shape);
        let bytes = known.dtype.bytes() as i64;
        let near = self.around.iter().rev().take(NEAR).map(|l| (l.var, l.trips));
        let strides: Vec<(i64, f64)> = within
            .unrolled
            .iter()
            .copied()
            .chain(near)
            .map(|(var, extent)| (flat.coefficient(var).saturating_abs().saturating_mul(bytes), extent))
            .collect();
        for (most, apart) in own.aliased.iter_mut().zip(ALIASING) {
            let rows = strides.iter().filter(|(stride, _)| *stride != 0 && stride % apart == 0);
            *most = most.max(rows.map(|(_, extent)| extent).product());
        }
        let copies = Self::copies(within, &|var| flat.mentions(var));
        let Some((lane, extent)) = within.vector.filter(|(var, _)| flat.mentions(*var)) else {
            *(if writes { &mut own.stores } else { &mut own.singles }) += copies;
            return;
        };
        own.width = own.width.max(extent / self.lanes as f64);
        let vectors = copies * self.vectors(extent);
        if lane_step(&flat, lane, within.dot.map(|(var, _)| var)) != Some(1) {
            own.scattered += vectors;
            return;
        }
        *(if writes { &mut own.stores } else { &mut own.vectors }) += vectors;
        let steps = within.dot.filter(|(var, _)| flat.mentions(*var)).map_or(1, |(_, steps)| steps);
        let whole = (self.lanes * bytes * steps).min(LINE_BYTES as i64);
        let around = within.unrolled.iter().map(|(var, _)| *var).chain(self.around.iter().map(|l| l.var));
        let mut starts = around.map(|var| flat.coefficient(var)).chain([flat.offset()]);
        if !flat.is_affine() || starts.any(|start| start.saturating_mul(bytes) % whole != 0) {
            own.split += vectors;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Body, bodies};
    use crate::analysis::Pieces;
    use crate::nest::{LoopKind, Nest};
    use crate::target::avx512;
    use crate::workload::Workload;

    /// The body of the product's innermost counted loop: 8 rows unrolled around vectors of 16 columns.
    fn innermost(columns: i64) -> Body {
        let text = format!("input t0 8 16\ninput t1 16 {columns}\nout t2 8 {columns} sum 16 mul t0 a c t1 c b\n");
        let workload: Workload = text.parse().unwrap();
        let (nest, stages) = Nest::naive_with_vars(&workload);
        let [a, b, c] = stages[0].axes[..] else { panic!("three axes") };
        let (nest, outer, inner) = nest.split(b, 16).unwrap();
        let nest = nest.reorder(&[outer, c, a, inner]).unwrap();
        let nest = nest.set_kind(inner, LoopKind::Vector).unwrap().set_kind(a, LoopKind::Unroll).unwrap();
        let all = bodies(&Pieces::new(&nest), &avx512());
        all.into_iter().find(|body| body.vectors > 0.0).unwrap()
    }

    #[test]
    fn what_stands_in_a_body_is_counted() {
        let body = innermost(32);
        assert_eq!((body.runs, body.operations, body.sums), (32.0, 8.0, 8.0));
        // an element of each row of t0, a vector of t1, and the sums
        assert_eq!((body.singles, body.vectors, body.stores), (8.0, 1.0 + 8.0, 8.0));
        assert_eq!((body.split, body.scattered, body.width, body.slow), (0.0, 0.0, 1.0, 0.0));
        let trips: Vec<f64> = body.around.iter().map(|(trips, _)| *trips).collect();
        assert_eq!(trips, [16.0, 2.0]);
        // a column of t0 in its eight lines, a row of t1 and the sums in one line each
        assert!(body.around[0].1 < body.around[1].1, "{:?}", body.around);
    }

    #[test]
    fn rows_that_are_no_whole_lines_apart_split_vectors_and_those_of_a_page_alias() {
        assert_eq!(innermost(48).split, 0.0);
        assert!(innermost(40).split > 0.0);
        assert_eq!(innermost(32).aliased[0], 1.0);
        // the sums' rows, and with them the steps over t1
        assert_eq!(innermost(1024).aliased[0], 16.0);
    }
}
