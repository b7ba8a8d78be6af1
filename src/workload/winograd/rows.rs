//! The rewrite whose stages all lead with the rows of tiles: a few rows may go through all of them before
//! the next do, and what they leave stays in the cache.
//!
//! ```text
//! T[v, i, c, x]        = Bᵀ x[c, s·m·v + .., x], with its padding
//! V[v, i, j, c, u]     = T[v, i, c, s·m·u + ..] B
//! M[v, i, j, u, k]     = Σ_c U[i, j, k, c] V[v, i, j, c, u]
//! Z[v, p, j, u, k]     = Aᵀ M[v, .., j, u, k]
//! y[k, m·v + p, m·u + q] = Z[v, p, .., u, k] A, and the epilogue
//! ```
//!
//! Axes that data has and filters have not (a batch) lead as well. `T` and `V` have the other axes of the
//! data in the order that they have in memory.

use super::transform::Sharing;
use super::{Convolution, Rewrite, Rewritten, var};
use crate::workload::{Binary, Combiner, DType, Expr, Index, Role, Stage, TensorId};

/// What an axis of a stage is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    /// An axis of the convolution that is no window's.
    Own(usize),
    /// v
    TileRow,
    /// u
    TileColumn,
    /// i
    PointRow,
    /// j
    PointColumn,
    /// p
    OutputRow,
    /// q
    OutputColumn,
    /// Of the data, its padding included: `s·m·u` and what follows.
    Column,
}

/// The axes of a tensor, in the order of its dimensions.
pub(super) type Slots = Vec<Slot>;

impl Convolution<'_> {
    /// Axes of the data that filters have not.
    fn batch(&self) -> Slots {
        let of_filters = self.other_axes(self.weights);
        let own = self.other_axes(self.data).into_iter();
        own.filter(|a| *a < self.stage.spatial.len() && !of_filters.contains(a)).map(Slot::Own).collect()
    }

    /// The other axes of the data and its columns, as they follow one another in memory.
    pub(super) fn data_order(&self) -> Slots {
        let mut accesses = Vec::new();
        self.data.for_each_load(&mut |_, indices| accesses.push(indices.to_vec()));
        let column = self.windows[1].spatial;
        let place = |axis: usize| {
            accesses.first().and_then(|indices| indices.iter().rposition(|index| index.mentions(super::axis(axis))))
        };
        let batch = self.batch();
        let mut order: Vec<usize> = self.other_axes(self.data);
        order.retain(|axis| !batch.contains(&Slot::Own(*axis)));
        order.push(column);
        order.sort_by_key(|axis| place(*axis));
        order.into_iter().map(|axis| if axis == column { Slot::Column } else { Slot::Own(axis) }).collect()
    }

    /// Whether columns are innermost in the data's memory.
    pub(super) fn is_by_columns(&self) -> bool {
        self.data_order().last() == Some(&Slot::Column)
    }
}

impl Rewrite<'_> {
    pub(super) fn by_rows(mut self) -> Rewritten {
        let rows = self.filter_rows();
        let filter = self.filter(rows);
        let data = self.convolution.data_order();
        let (rows, of_rows) = self.transformed_rows(&data);
        let (points, of_points) = self.transformed(rows, &of_rows, &data);
        let (product, of_product) = self.multiplied(filter, points, &of_points);
        let (rows, of_rows) = self.summed_rows(product, &of_product);
        self.summed(rows, &of_rows)
    }

    fn extent(&self, slot: Slot) -> Index {
        match slot {
            Slot::Own(axis) => self.convolution.stage.formula(axis),
            Slot::TileRow => self.tiles[0].clone(),
            Slot::TileColumn => self.tiles[1].clone(),
            Slot::PointRow | Slot::PointColumn => Index::constant(self.size),
            Slot::OutputRow | Slot::OutputColumn => Index::constant(self.outputs),
            Slot::Column => self.tiles[1].clone().times(self.step).plus_constant(self.overlap),
        }
    }

    fn mapped(&mut self, slots: Slots, value: Expr) -> (TensorId, Slots) {
        let extents: Vec<Index> = slots.iter().map(|slot| self.extent(*slot)).collect();
        (self.stage(Role::Intermediate, &extents, value), slots)
    }

    /// T: only rows are transformed.
    fn transformed_rows(&mut self, data: &Slots) -> (TensorId, Slots) {
        let slots = [self.convolution.batch(), vec![Slot::TileRow, Slot::PointRow], data.clone()].concat();
        let column = at(&slots, Slot::Column);
        let read = self.read();
        let reach = [self.tiles[0].clone().times(self.step).plus_constant(self.overlap), self.extent(Slot::Column)];
        let element = |l: usize| {
            let row = at(&slots, Slot::TileRow).times(self.step).plus_constant(l as i64);
            let place = |at: usize| slots.iter().position(|slot| *slot == Slot::Own(at)).map(var);
            let value = self.data_at([&row, &column], &place);
            // the last tiles may reach beyond what the convolution reads
            let positions = [&row, &column];
            let conditions = (0..2).flat_map(|d| self.inside(positions[d], &reach[d], &read[d])).collect();
            Expr::guard(conditions, value, Expr::float(0.0))
        };
        let value = Self::rows(&self.transform.data, place(&slots, Slot::PointRow), self.parity(), &element);
        self.mapped(slots, value)
    }

    /// V: columns are transformed as well.
    fn transformed(&mut self, rows: TensorId, of_rows: &Slots, data: &Slots) -> (TensorId, Slots) {
        let inner = data.iter().map(|slot| if *slot == Slot::Column { Slot::TileColumn } else { *slot });
        let outer = [self.convolution.batch(), vec![Slot::TileRow, Slot::PointRow, Slot::PointColumn]].concat();
        let slots: Slots = outer.into_iter().chain(inner).collect();
        let element = |l: usize| {
            let column = at(&slots, Slot::TileColumn).times(self.step).plus_constant(l as i64);
            read(rows, of_rows, &slots, (Slot::Column, column))
        };
        let value = Self::rows(&self.transform.data, place(&slots, Slot::PointColumn), self.parity(), &element);
        self.mapped(slots, value)
    }

    /// The spatial axes of the convolution but for a batch, others in the place of its windows'.
    fn spatial(&self, rows: &[Slot], columns: &[Slot]) -> Slots {
        let Convolution { stage, windows, .. } = self.convolution;
        let batch = self.convolution.batch();
        let slots = (0..stage.spatial.len()).flat_map(|axis| match axis {
            _ if axis == windows[0].spatial => rows.to_vec(),
            _ if axis == windows[1].spatial => columns.to_vec(),
            _ => vec![Slot::Own(axis)],
        });
        slots.filter(|slot| !batch.contains(slot)).collect()
    }

    /// M.
    fn multiplied(&mut self, filter: TensorId, points: TensorId, of_points: &Slots) -> (TensorId, Slots) {
        let Convolution { stage, windows, .. } = *self.convolution;
        let outer = [self.convolution.batch(), vec![Slot::TileRow, Slot::PointRow, Slot::PointColumn]].concat();
        // what only filters have goes last, in vectors
        let data = self.convolution.other_axes(self.convolution.data);
        let of_filters = |slot: &Slot| matches!(slot, Slot::Own(axis) if !data.contains(axis));
        let (last, first): (Slots, Slots) = self.spatial(&[], &[Slot::TileColumn]).into_iter().partition(of_filters);
        let slots = [outer, first, last].concat();
        let is_window = |axis: &usize| windows.iter().any(|w| w.reduction == *axis);
        let summed: Vec<usize> = (stage.spatial.len()..stage.rank()).filter(|axis| !is_window(axis)).collect();
        let all: Slots = slots.iter().copied().chain(summed.iter().copied().map(Slot::Own)).collect();
        let filters = self.convolution.other_axes(self.convolution.weights).into_iter().map(Slot::Own);
        let of_filter: Slots = [Slot::PointRow, Slot::PointColumn].into_iter().chain(filters).collect();
        let load = |tensor, of: &Slots| Expr::load(tensor, of.iter().map(|slot| at(&all, *slot)).collect());
        let mut factors = [load(points, of_points), load(filter, &of_filter)];
        if self.convolution.weights_first {
            factors.reverse();
        }
        let [left, right] = factors;
        let value = Expr::binary(Binary::Multiply, left, right);
        let extents: Vec<Index> = all.iter().map(|slot| self.extent(*slot)).collect();
        let most = self.made.most(&extents);
        let (spatial, reduction) = most.split_at(slots.len());
        let reduce = |output| Stage::reduce(output, spatial.to_vec(), reduction.to_vec(), Combiner::Sum, value);
        (self.made.append((Role::Intermediate, DType::F32), &extents, reduce), slots)
    }

    /// Z: rows of a tile.
    fn summed_rows(&mut self, product: TensorId, of_product: &Slots) -> (TensorId, Slots) {
        let change = |slot: &Slot| if *slot == Slot::PointRow { Slot::OutputRow } else { *slot };
        let slots: Slots = of_product.iter().map(change).collect();
        let element = |i: usize| read(product, of_product, &slots, (Slot::PointRow, Index::constant(i as i64)));
        let value = Self::rows(&self.transform.output, place(&slots, Slot::OutputRow), Sharing::Size, &element);
        self.mapped(slots, value)
    }

    /// The output in tiles.
    fn summed(self, rows: TensorId, of_rows: &Slots) -> Rewritten {
        let Convolution { stage, windows, .. } = *self.convolution;
        let outer = [self.convolution.batch(), vec![Slot::TileRow]].concat();
        let slots = [outer, self.spatial(&[Slot::OutputRow], &[Slot::TileColumn, Slot::OutputColumn])].concat();
        let element = |j: usize| read(rows, of_rows, &slots, (Slot::PointColumn, Index::constant(j as i64)));
        let sum = Self::rows(&self.transform.output, place(&slots, Slot::OutputColumn), Sharing::Size, &element);
        let (mut indices, mut conditions) = (Vec::new(), Vec::new());
        for axis in 0..stage.spatial.len() {
            let Some(dimension) = windows.iter().position(|w| w.spatial == axis) else {
                indices.push(at(&slots, Slot::Own(axis)));
                continue;
            };
            let (tile, output) = [(Slot::TileRow, Slot::OutputRow), (Slot::TileColumn, Slot::OutputColumn)][dimension];
            let index = at(&slots, tile).times(self.outputs).plus(&at(&slots, output));
            let reach = self.tiles[dimension].clone().times(self.outputs);
            conditions.extend(self.inside(&index, &reach, &stage.formula(axis)));
            indices.push(index);
        }
        let extents: Vec<Index> = slots.iter().map(|slot| self.extent(*slot)).collect();
        self.finish(&extents, sum, indices, conditions)
    }
}

fn place(slots: &Slots, slot: Slot) -> usize {
    slots.iter().position(|own| *own == slot).unwrap_or(slots.len())
}

fn at(slots: &Slots, slot: Slot) -> Index {
    var(place(slots, slot))
}

/// The element of a tensor at a stage's point, but for one of its axes.
fn read(tensor: TensorId, of: &Slots, slots: &Slots, (other, index): (Slot, Index)) -> Expr {
    let indices = of.iter().map(|slot| if *slot == other { index.clone() } else { at(slots, *slot) });
    Expr::load(tensor, indices.collect())
}
