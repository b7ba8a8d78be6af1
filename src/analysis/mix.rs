//! What a nest makes the processor execute: counts of instructions by kind, estimated from the loops alone.
//!
//! The mix is that of the busiest core: of a parallel loop it executes the largest share. Within the body of
//! an innermost counted loop, equal loads and subexpressions of unrolled loops count once, as a compiler
//! shares them, and what does not change in the loop counts once for all its iterations. Loops run as often
//! as they do on average over the ragged tiles.

use serde::{Deserialize, Serialize};

use super::pieces::Pieces;
use crate::codegen::MAXIMAL_STRIDE;
use crate::nest::tiles::{Action, Tile, action};
use crate::nest::{Loop, LoopKind, Nest, Scope, Stmt};
use crate::target::Target;
use crate::workload::{Atom, Binary, Condition, Expr, Index, TensorId, Var, flatten};

/// Memory instructions, by where the elements of the lanes lie. Counts of whole vectors.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Accesses {
    /// One element: a scalar, or the same for all lanes.
    pub single: f64,
    /// Neighbours.
    pub contiguous: f64,
    /// A small constant distance apart: rows with gaps.
    pub strided: f64,
    /// Farther apart, or at places that are computed: gathers and scatters.
    pub scattered: f64,
}

/// Instructions of one run of a nest's body on its busiest core.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Mix {
    /// Operators on whole vectors; a multiply-add is one.
    pub vector_operations: f64,
    /// Operators on single elements.
    pub scalar_operations: f64,
    /// Operators that take many instructions: division, roots, exponentials and what is made of them.
    pub slow_operations: f64,
    /// From buffers in memory.
    pub loads: Accesses,
    pub stores: Accesses,
    /// Iterations of loops that are neither unrolled nor in vectors.
    pub iterations: f64,
    /// Conditions that are tested.
    pub conditions: f64,
    /// Divisions of indices.
    pub divisions: f64,
    /// Accumulations that each wait for one before: the sum over innermost loops of the longest chain.
    pub chained: f64,
    /// Lanes of vector operations that hold an element, on average; 1 where there are none.
    pub lane_use: f64,
    /// Parallel loops that are entered.
    pub forks: f64,
    /// Iterations of parallel loops that the busiest core executes, and those that it would if they could be
    /// dealt out evenly.
    pub share: f64,
    pub even_share: f64,
}

impl Mix {
    pub fn of(nest: &Nest, target: &Target) -> Mix {
        Mix::of_pieces(&Pieces::new(nest), target)
    }

    pub(crate) fn of_pieces(pieces: &Pieces, target: &Target) -> Mix {
        let cores = f64::from(target.processors().max(1));
        let mut counter = Counter { pieces, cores, mix: Mix::default(), held: 0.0 };
        counter.block(&pieces.nest.body, &Place { runs: 1.0, lanes: target.lanes().max(1) as f64, ..Place::default() });
        let mut mix = counter.mix;
        mix.lane_use = if mix.vector_operations > 0.0 { counter.held / mix.vector_operations } else { 1.0 };
        mix
    }
}

/// Whether an operator takes many instructions: division, a root, an exponential or what is made of them.
pub(super) fn is_slow(value: &Expr) -> bool {
    match value {
        Expr::Unary(operator, _) => operator.is_expensive(),
        Expr::Binary(operator, ..) => operator.is_expensive(),
        _ => false,
    }
}

/// The loops around a statement.
#[derive(Clone, Default)]
struct Place {
    /// How often the body of the innermost counted loop is executed.
    runs: f64,
    /// The innermost counted loop, and its iterations.
    counted: Option<(Var, f64)>,
    /// Unrolled inside of it.
    unrolled: Vec<(Var, f64)>,
    /// The vector loop and its iterations.
    vector: Option<(Var, f64)>,
    /// Of a register.
    lanes: f64,
    is_parallel: bool,
    /// The steps that one instruction takes in every lane.
    dot: Option<Var>,
}

impl Place {
    /// Registers that the lanes fill, of something that depends on these variables; 1 where it is a scalar.
    fn vectors(&self, depends: &dyn Fn(Var) -> bool) -> f64 {
        self.vector.filter(|(var, _)| depends(*var)).map_or(1.0, |(_, extent)| (extent / self.lanes).ceil())
    }

    /// How often something is executed that depends on these variables.
    fn times(&self, depends: &dyn Fn(Var) -> bool) -> f64 {
        let copies: f64 = self.unrolled.iter().filter(|(var, _)| depends(*var)).map(|(_, extent)| extent).product();
        let hoisted =
            self.counted.filter(|(var, trips)| !depends(*var) && *trips > 1.0).map_or(1.0, |(_, trips)| trips);
        self.runs * copies / hoisted
    }

    /// How often something is executed that nothing is known of.
    fn each_time(&self) -> f64 {
        self.runs * self.unrolled.iter().map(|(_, extent)| extent).product::<f64>()
    }

    /// Of the body of a counted loop of so many iterations.
    fn inside(&self, l: &Loop, trips: f64) -> Place {
        let runs = self.each_time() * trips;
        let Place { vector, lanes, is_parallel, .. } = *self;
        Place { runs, counted: Some((l.var, trips)), unrolled: Vec::new(), vector, lanes, is_parallel, dot: None }
    }
}

struct Counter<'p, 'a> {
    pieces: &'p Pieces<'a>,
    cores: f64,
    mix: Mix,
    /// Elements that vector operations computed, in registers of full lanes.
    held: f64,
}

impl<'a> Counter<'_, 'a> {
    fn block(&mut self, statements: &'a [Stmt], place: &Place) {
        for statement in statements {
            match statement {
                Stmt::Loop(l) => self.enter(l, place),
                Stmt::If { conditions, body } => {
                    self.conditions(conditions, place);
                    let runs = place.runs * self.pieces.odds(conditions);
                    self.block(body, &Place { runs, ..place.clone() });
                }
                Stmt::Store { buffer, indices, value } => {
                    self.value(value, place);
                    self.access(*buffer, indices, &[true], place);
                }
                Stmt::Accumulate { buffer, indices, value, .. } => self.accumulate(*buffer, indices, value, place),
            }
        }
    }

    fn enter(&mut self, l: &'a Loop, place: &Place) {
        let trips = self.pieces.runs(l);
        match l.kind {
            LoopKind::Matrix if let Some(action) = action(self.pieces.nest, l) => self.tiles(&action, place),
            LoopKind::Vector => self.block(&l.body, &Place { vector: Some((l.var, trips)), ..place.clone() }),
            LoopKind::Dot => self.block(&l.body, &Place { dot: Some(l.var), ..place.clone() }),
            LoopKind::Unroll => {
                let mut inner = place.clone();
                inner.unrolled.push((l.var, trips));
                self.block(&l.body, &inner);
            }
            LoopKind::Parallel if !place.is_parallel => {
                let own = (trips / self.cores).ceil();
                let inner = place.inside(l, own);
                self.mix.forks += place.each_time();
                self.mix.share += inner.runs;
                self.mix.even_share += place.each_time() * trips / self.cores;
                self.mix.iterations += inner.runs;
                self.block(&l.body, &Place { is_parallel: true, ..inner });
            }
            LoopKind::Parallel
            | LoopKind::Serial
            | LoopKind::Block
            | LoopKind::Thread
            | LoopKind::Warp
            | LoopKind::Matrix => {
                let inner = place.inside(l, trips);
                self.mix.iterations += inner.runs;
                self.block(&l.body, &inner);
            }
        }
    }

    /// Work of tile registers: a product takes a cycle a row, in which two vectors would be multiplied.
    fn tiles(&mut self, action: &Action<'_>, place: &Place) {
        let times = place.each_time();
        match action {
            Action::Start { .. } => {}
            Action::Store { sums, .. } => self.mix.stores.contiguous += times * sums.rows as f64,
            Action::Fetch { sums, .. } => self.mix.loads.contiguous += times * sums.rows as f64,
            Action::Multiply { sums, operands } => {
                let operations = times * VECTORS_A_ROW * sums.rows as f64;
                self.mix.vector_operations += operations;
                self.held += operations * sums.row_bytes as f64 / (place.lanes * BYTES_OF_SUMS);
                self.mix.loads.contiguous += times * loaded_rows(sums, operands) as f64;
            }
        }
    }

    fn accumulate(&mut self, buffer: TensorId, indices: &[Index], value: &Expr, place: &Place) {
        let moves = |var: Var| indices.iter().any(|index| index.mentions(var));
        let mentions = |var: Var| moves(var) || value.mentions(var);
        // the product in front of the sum is of the same instruction
        match value {
            Expr::Binary(Binary::Multiply, x, y) => {
                self.value(x, place);
                self.value(y, place);
            }
            other => self.value(other, place),
        }
        self.operation(&mentions, place);
        let waits = |(var, _): &&(Var, f64)| !moves(*var) && mentions(*var);
        let steps: f64 = place.unrolled.iter().filter(waits).map(|(_, extent)| extent).product();
        if place.counted.is_some_and(|(var, _)| !moves(var)) || steps > 1.0 {
            self.mix.chained += place.runs * steps;
        }
        self.access(buffer, indices, &[false, true], place);
    }

    /// An operator that depends on these variables.
    fn operation(&mut self, depends: &dyn Fn(Var) -> bool, place: &Place) {
        let times = place.times(depends);
        match place.vector.filter(|(var, _)| depends(*var)) {
            Some((_, extent)) => {
                let vectors = (extent / place.lanes).ceil();
                self.mix.vector_operations += times * vectors;
                self.held += times * extent / place.lanes;
            }
            None => self.mix.scalar_operations += times,
        }
    }

    fn value(&mut self, value: &Expr, place: &Place) {
        let depends = |var: Var| value.mentions(var);
        match value {
            Expr::Float(_) | Expr::Index(_) => {}
            Expr::Load { tensor, indices } => return self.access(*tensor, indices, &[false], place),
            Expr::Guard { conditions, .. } => self.conditions(conditions, place),
            Expr::Unary(..) | Expr::Binary(..) => {
                if is_slow(value) {
                    self.mix.slow_operations += place.times(&depends) * place.vectors(&depends);
                }
                self.operation(&depends, place);
            }
            // the instruction takes its operands as they are
            Expr::Cast(..) if place.dot.is_some() => {}
            Expr::Cast(..) | Expr::Bits(..) | Expr::Select { .. } => self.operation(&depends, place),
        }
        value.children().for_each(|child| self.value(child, place));
    }

    fn conditions(&mut self, conditions: &[Condition], place: &Place) {
        for condition in conditions {
            self.mix.conditions += place.times(&|var| condition.index.mentions(var));
            self.divisions(&condition.index, place);
        }
    }

    fn divisions(&mut self, index: &Index, place: &Place) {
        for (atom, _) in index.terms() {
            if let Atom::FloorDiv(inner, _) | Atom::Modulo(inner, _) = atom {
                self.mix.divisions += place.times(&|var| inner.mentions(var));
            }
        }
    }

    /// Reads, writes or both, one after the other.
    fn access(&mut self, buffer: TensorId, indices: &[Index], writes: &[bool], place: &Place) {
        let Some(known) = self.pieces.nest.buffers.get(buffer.0 as usize) else { return };
        if known.scope == Scope::Register {
            return;
        }
        let flat = flatten(indices, &known.shape);
        let times = place.times(&|var| flat.mentions(var));
        let lane = place.vector.filter(|(var, _)| flat.mentions(*var));
        for writes in writes {
            self.divisions(&flat, place);
            let accesses = if *writes { &mut self.mix.stores } else { &mut self.mix.loads };
            let Some((lane, extent)) = lane else {
                accesses.single += times;
                continue;
            };
            let vectors = times * (extent / place.lanes).ceil();
            match lane_step(&flat, lane, place.dot) {
                Some(1) => accesses.contiguous += vectors,
                Some(2..=MAXIMAL_STRIDE) if !writes => accesses.strided += vectors,
                _ => accesses.scattered += vectors,
            }
        }
    }
}

/// Vectors that are multiplied in the time that a row of a product of tiles takes.
pub(super) const VECTORS_A_ROW: f64 = 2.0;
const BYTES_OF_SUMS: f64 = 4.0;

/// Rows of operands that a product loads: each stays in its register for the products beside and below.
pub(super) fn loaded_rows(sums: &Tile<'_>, operands: &[Tile<'_>; 2]) -> i64 {
    let [.., row, column] = sums.indices else { return 0 };
    let is_first = |index: &Index| index.offset() == 0;
    [column, row].into_iter().zip(operands).filter(|(at, _)| is_first(at)).map(|(_, operand)| operand.rows).sum()
}

/// Elements between those of neighbouring lanes: of an instruction that takes several steps of each, which
/// lie side by side, between groups of these; `None` where that is not constant.
pub(super) fn lane_step(flat: &Index, lane: Var, dot: Option<Var>) -> Option<i64> {
    let step = flat.step(lane)?;
    let is_group = |dot: Var| flat.step(dot) == Some(1) && step > 1;
    Some(if dot.is_some_and(is_group) { 1 } else { step })
}

#[cfg(test)]
mod tests {
    use super::Mix;
    use crate::nest::{LoopKind, Nest};
    use crate::target::avx512;
    use crate::workload::Workload;

    /// A product of 8×16 by 16×32, rows of 32 in vectors of 16.
    fn product(kind: LoopKind) -> Nest {
        let text = "input t0 8 16\ninput t1 16 32\nout t2 8 32 sum 16 mul t0 a c t1 c b\n";
        let workload: Workload = text.parse().unwrap();
        let (nest, stages) = Nest::naive_with_vars(&workload);
        let [a, b, c] = stages[0].axes[..] else { panic!("three axes") };
        let (nest, outer, inner) = nest.split(b, 16).unwrap();
        let nest = nest.reorder(&[a, outer, c, inner]).unwrap();
        nest.set_kind(inner, LoopKind::Vector).unwrap().set_kind(a, kind).unwrap()
    }

    #[test]
    fn what_an_innermost_loop_shares_counts_once() {
        let mix = Mix::of(&product(LoopKind::Serial), &avx512());
        assert_eq!((mix.vector_operations, mix.scalar_operations, mix.lane_use), (256.0, 0.0, 1.0));
        // an element of t0 and a row of t1 each time; the sums stay where they are while c runs
        assert_eq!((mix.loads.single, mix.loads.contiguous, mix.stores.contiguous), (256.0, 256.0 + 16.0, 16.0));
        assert_eq!((mix.loads.strided, mix.loads.scattered, mix.stores.scattered), (0.0, 0.0, 0.0));
        // zeros are stored one by one
        assert_eq!(mix.stores.single, 256.0);
        assert_eq!(mix.iterations, f64::from(8 + 8 * 32 + 8 + 8 * 2 + 8 * 2 * 16));
        assert_eq!(mix.chained, 256.0);
    }

    #[test]
    fn an_instruction_that_takes_several_steps_counts_once() {
        let text = "input t0 bf16 8 16\ninput t1 bf16 8 32 2\nlet t3 8 32 sum 8 2 mul cast f32 t0 a + * 2 c d cast f32 t1 c b d\n\
            out t2 like t3 t3 a b\n";
        let workload: Workload = text.parse().unwrap();
        let of = |kind: LoopKind| {
            let (nest, stages) = Nest::naive_with_vars(&workload);
            let [a, b, c, d] = stages[0].axes[..] else { panic!("four axes") };
            let (nest, outer, inner) = nest.split(b, 16).unwrap();
            let nest = nest.reorder(&[a, outer, c, inner, d]).unwrap();
            Mix::of(&nest.set_kind(inner, LoopKind::Vector).unwrap().set_kind(d, kind).unwrap(), &avx512())
        };
        let (dot, apart) = (of(LoopKind::Dot), of(LoopKind::Unroll));
        // 8 rows, 2 vectors of columns, 8 pairs; apart also a conversion of either operand for each step
        assert_eq!(dot.vector_operations, 128.0);
        assert_eq!((apart.vector_operations, apart.scalar_operations), (2.0 * 2.0 * 128.0, 2.0 * 128.0));
        // the sums are copied one by one
        assert_eq!((dot.loads.single, dot.loads.contiguous, dot.loads.strided), (128.0 + 256.0, 128.0 + 16.0, 0.0));
    }

    #[test]
    fn unrolled_rows_share_the_columns_and_parallel_ones_are_dealt_out() {
        let unrolled = Mix::of(&product(LoopKind::Unroll), &avx512());
        // eight rows outside of the counted loops are eight times the same
        assert_eq!(unrolled.vector_operations, 256.0);
        let parallel = Mix::of(&product(LoopKind::Parallel), &avx512());
        assert_eq!((parallel.vector_operations, parallel.forks), (128.0, 1.0));
        assert_eq!((parallel.share, parallel.even_share), (4.0, 4.0));
    }
}
