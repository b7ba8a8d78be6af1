//! Convolutions by fewer multiplications: Winograd's algorithm as a rewrite of the workload.
//!
//! A convolution of stride s over windows of r × r becomes, for tiles of m × m outputs and t = s·m + r - s:
//!
//! ```text
//! U[i, j, k, c]        = G w[k, c] Gᵀ                        of constants alone: computed when the network is compiled
//! P[c, y, q, u]        = x[c, y, s·m·u + q], with its padding  so that neighbouring tiles are neighbours in memory
//! V[i, j, c, v, u]     = Bᵀ P[c, s·m·v.., .., u..] B
//! M[i, j, k, v, u]     = Σ_c U[i, j, k, c] V[i, j, c, v, u]
//! y[k, m·v + p, m·u + q] = Aᵀ M[.., k, v, u] A, and the epilogue
//! ```
//!
//! Each transform is two stages, one for each dimension; [`Order`] says in which order their axes are. The
//! multiplications of M are `(t / m)² / r²` of those of the convolution: 0.44 for F(2×2, 3×3), 0.25 for
//! F(4×4, 3×3), and 0.69 and 0.56 where the stride is 2. Its rounding errors are larger, up to 2 and 32
//! times, since numbers of different size are added; so it is only used where that is allowed.

mod figures;
mod rows;
pub(super) mod transform;

pub use figures::{Figures, choices, figures};

use super::expr::Condition;
use super::rewritten::{Rewritten, Stages, leading_sum};
use super::{Combiner, DType, Expr, Index, Role, Stage, TensorId, Var, Workload};
use transform::{Sharing, Transform, combination, piecewise};

/// Windows that it is offered for.
const WINDOWS: [i64; 2] = [3, 5];
/// Strides that it is offered for.
const STRIDES: [i64; 2] = [1, 2];
/// Reductions of fewer steps for each element of the window do not pay for the transforms.
const FEWEST_CHANNELS: i64 = 8;

/// Which axes its stages lead with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Order {
    /// Points of the transform: each is one large product.
    Points,
    /// Rows of tiles, which all stages [share](super::shared_axes).
    Rows,
}

/// A dimension of the window: `data` reads at the sum of both axes, the spatial one times the stride.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Window {
    spatial: usize,
    reduction: usize,
}

/// The convolution in a workload.
struct Convolution<'a> {
    workload: &'a Workload,
    stage: &'a Stage,
    data: &'a Expr,
    weights: &'a Expr,
    weights_first: bool,
    windows: [Window; 2],
    /// Extent of the window, in both dimensions.
    width: i64,
    /// Elements of the data between two outputs, in both dimensions.
    stride: i64,
}

/// Whether all tensors of a workload are f32, and its first stage has at most an epilogue behind it.
pub fn is_plain(workload: &Workload) -> bool {
    let follows = match workload.stages.as_slice() {
        [_] => true,
        [stage, _] => workload.tensor(stage.output).role == Role::Intermediate && workload.epilogue_of(0).is_some(),
        _ => false,
    };
    follows && workload.tensors.iter().all(|tensor| tensor.dtype == DType::F32)
}

/// The rewritten workload for tiles of `outputs` × `outputs`; `None` where the algorithm does not apply: to
/// all that is no convolution by constant weights of stride 1 or 2, with a square window, over a few channels
/// at least.
///
/// Element-wise stages may follow the convolution. Operands may be short numbers that are multiplied as f32:
/// then the transforms and the products are of f32, whatever the machine has for short ones.
pub fn winograd(workload: &Workload, outputs: i64, order: Order) -> Option<Rewritten> {
    let (convolution, transform) = prepare(workload, outputs)?;
    let rewrite = Rewrite::new(&convolution, &transform, outputs);
    Some(match order {
        Order::Points => rewrite.by_points(),
        Order::Rows => rewrite.by_rows(),
    })
}

fn prepare(workload: &Workload, outputs: i64) -> Option<(Convolution<'_>, Transform)> {
    let convolution = Convolution::in_tiles(workload, outputs)?;
    let transform = Transform::new(convolution.sizes(outputs))?;
    Some((convolution, transform))
}

impl<'a> Convolution<'a> {
    /// The convolution, where there is a transform for tiles of `outputs` × `outputs`.
    fn in_tiles(workload: &'a Workload, outputs: i64) -> Option<Convolution<'a>> {
        Convolution::find(workload).filter(|convolution| convolution.divides(outputs))
    }

    /// Whether there is a transform for tiles of `outputs` × `outputs`, and one fits into an image.
    fn divides(&self, outputs: i64) -> bool {
        let fits = |window: &Window| self.stage.extent(window.spatial) >= outputs;
        Transform::exists(self.sizes(outputs)) && self.windows.iter().all(fits)
    }

    /// What a transform is made for: outputs of a tile, window and stride.
    fn sizes(&self, outputs: i64) -> [usize; 3] {
        [outputs, self.width, self.stride].map(|size| usize::try_from(size).unwrap_or(0))
    }

    fn find(workload: &'a Workload) -> Option<Convolution<'a>> {
        let stage = leading_sum(workload).filter(|stage| workload.tensor(stage.output).dtype == DType::F32)?;
        let Expr::Binary(super::Binary::Multiply, left, right) = &stage.value else { return None };
        let constant = |e: &Expr| {
            let (mut reads, mut all) = (false, true);
            e.for_each_load(&mut |tensor, _| {
                reads = true;
                all &= workload.tensor(tensor).role == Role::Constant;
            });
            reads && all
        };
        let (data, weights, weights_first) = match (constant(left), constant(right)) {
            (false, true) => (&**left, &**right, false),
            (true, false) => (&**right, &**left, true),
            _ => return None,
        };
        let of = |tensor: TensorId| workload.tensor(tensor).dtype;
        if [left, right].iter().any(|factor| factor.dtype(&of) != DType::F32) {
            return None;
        }
        let spatial = stage.spatial.len();
        let mut windows = Vec::new();
        for reduction in (spatial..stage.rank()).filter(|r| WINDOWS.contains(&stage.extent(*r))) {
            let slides = |s: usize| {
                let window = Window { spatial: s, reduction };
                let is_of_data = !weights.mentions(axis(s)) && weights.mentions(axis(reduction));
                Some((window, window.stride(data).filter(|_| is_of_data)?))
            };
            windows.extend((0..spatial).find_map(slides));
        }
        let &[(first, stride), (second, other)] = windows.as_slice() else { return None };
        let width = stage.extent(first.reduction);
        let is_square = width == stage.extent(second.reduction) && stride == other;
        let distinct = first.spatial != second.spatial && is_square;
        let channels: i64 = (spatial..stage.rank())
            .filter(|r| *r != first.reduction && *r != second.reduction)
            .map(|r| stage.extent(r))
            .product();
        // the weights are transformed when the network is compiled
        let run_time = |axis: usize| stage.formula(axis).as_constant().is_none() && weights.mentions(self::axis(axis));
        let is_known = !(0..stage.rank()).any(run_time);
        (distinct && is_known && channels >= FEWEST_CHANNELS).then_some(Convolution {
            workload,
            stage,
            data,
            weights,
            weights_first,
            windows: if first.spatial < second.spatial { [first, second] } else { [second, first] },
            width,
            stride,
        })
    }

    /// The axes that an operand moves with, without the windows.
    fn other_axes(&self, operand: &Expr) -> Vec<usize> {
        let in_window = |axis: &usize| self.windows.iter().any(|w| w.spatial == *axis || w.reduction == *axis);
        (0..self.stage.rank()).filter(|position| !in_window(position) && operand.mentions(axis(*position))).collect()
    }
}

fn axis(position: usize) -> Var {
    Var(position as u32)
}

impl Window {
    /// The stride with which the window moves over the data, if that is all that its axes do.
    fn stride(self, data: &Expr) -> Option<i64> {
        let (spatial, reduction) = (axis(self.spatial), axis(self.reduction));
        let is_sum = |stride: &i64| {
            let start = Index::var(spatial).times(*stride);
            let moved = |axis| (axis == reduction).then(|| Index::var(reduction).minus(&start));
            !data.substitute(&moved).mentions(spatial)
        };
        STRIDES.into_iter().find(is_sum).filter(|_| data.mentions(spatial) && data.mentions(reduction))
    }
}

struct Rewrite<'a> {
    convolution: &'a Convolution<'a>,
    transform: &'a Transform,
    /// Outputs of a tile in each dimension: m.
    outputs: i64,
    /// t.
    size: i64,
    /// Elements of the data between two tiles, in each dimension: s·m.
    step: i64,
    /// Elements that two neighbouring tiles have in common: r - s.
    overlap: i64,
    /// Tiles in each dimension.
    tiles: [Index; 2],
    made: Stages,
}

fn numbers(extents: &[i64]) -> Vec<Index> {
    extents.iter().map(|extent| Index::constant(*extent)).collect()
}

fn var(axis: usize) -> Index {
    Index::var(Var(axis as u32))
}

impl<'a> Rewrite<'a> {
    fn new(convolution: &'a Convolution<'a>, transform: &'a Transform, outputs: i64) -> Rewrite<'a> {
        let of_run = |window: Window| convolution.stage.formula(window.spatial);
        let tiles = convolution.windows.map(|w| of_run(w).plus_constant(outputs - 1).floor_div(outputs));
        let made = Stages::new(convolution.workload);
        let (size, step) = (transform.size() as i64, outputs * convolution.stride);
        let overlap = convolution.width - convolution.stride;
        Rewrite { convolution, transform, outputs, size, step, overlap, tiles, made }
    }

    fn by_points(mut self) -> Rewritten {
        let rows = self.filter_rows();
        let filter = self.filter(rows);
        let padded = self.padded();
        let rows = self.data_rows(padded);
        let data = self.data(rows);
        let product = self.product(filter, data);
        let rows = self.output_rows(product);
        self.output(rows)
    }

    fn stage(&mut self, role: Role, spatial: &[Index], value: Expr) -> TensorId {
        self.made.map((role, DType::F32), spatial, value)
    }

    fn extents(&self, axes: &[usize]) -> Vec<Index> {
        axes.iter().map(|axis| self.convolution.stage.formula(*axis)).collect()
    }

    /// What rows of `Bᵀ` and `G` have in common.
    fn parity(&self) -> Sharing {
        Sharing::Parity { stride: self.transform.stride }
    }

    /// The elements of the data that the convolution reads, padding included, in each dimension.
    fn read(&self) -> [Index; 2] {
        let Convolution { stage, windows, stride, .. } = self.convolution;
        windows.map(|w| stage.formula(w.spatial).times(*stride).plus_constant(self.overlap))
    }

    /// The data with an element of its padded form, in each dimension, in the place of the window.
    fn data_at(&self, positions: [&Index; 2], other: &dyn Fn(usize) -> Option<Index>) -> Expr {
        let Convolution { data, windows, .. } = self.convolution;
        data.substitute(&|axis| {
            let at = axis.0 as usize;
            if let Some(dimension) = windows.iter().position(|w| w.reduction == at) {
                return Some(positions[dimension].clone());
            }
            if windows.iter().any(|w| w.spatial == at) {
                return Some(Index::constant(0));
            }
            other(at)
        })
    }

    /// The rows of a matrix applied to terms, a row for each point of an axis.
    fn rows(matrix: &[Vec<f64>], axis: usize, sharing: Sharing, term: &dyn Fn(usize) -> Expr) -> Expr {
        piecewise(Var(axis as u32), matrix.iter().map(|row| combination(row, sharing, term)).collect())
    }

    /// G w: axes i, columns of the window, then those of the weights.
    fn filter_rows(&mut self) -> TensorId {
        let Convolution { weights, windows, width, .. } = *self.convolution;
        let axes = self.convolution.other_axes(weights);
        let weight = |r: usize| {
            weights.substitute(&|axis| match axis.0 as usize {
                at if at == windows[0].reduction => Some(Index::constant(r as i64)),
                at if at == windows[1].reduction => Some(var(1)),
                at => axes.iter().position(|a| *a == at).map(|position| var(position + 2)),
            })
        };
        let value = Self::rows(&self.transform.filter, 0, self.parity(), &weight);
        let spatial = [numbers(&[self.size, width]), self.extents(&axes)].concat();
        self.stage(Role::Constant, &spatial, value)
    }

    /// U = (G w) Gᵀ: axes i, j, then those of the weights.
    fn filter(&mut self, rows: TensorId) -> TensorId {
        let axes = self.convolution.other_axes(self.convolution.weights);
        let element = |s: usize| {
            let mut indices = vec![var(0), Index::constant(s as i64)];
            indices.extend((0..axes.len()).map(|at| var(at + 2)));
            Expr::load(rows, indices)
        };
        let value = Self::rows(&self.transform.filter, 1, self.parity(), &element);
        let spatial = [numbers(&[self.size, self.size]), self.extents(&axes)].concat();
        self.stage(Role::Constant, &spatial, value)
    }

    /// P: the axes of the data, rows, columns of a tile, tiles. The window's offset is part of the position.
    fn padded(&mut self) -> TensorId {
        let axes = self.convolution.other_axes(self.convolution.data);
        let (step, others) = (self.step, axes.len());
        let column = var(others + 2).times(step).plus(&var(others + 1));
        let positions = [var(others), column];
        let value = self.data_at([&positions[0], &positions[1]], &|at| axes.iter().position(|a| *a == at).map(var));
        let mut spatial = self.extents(&axes);
        let beside = (self.overlap + step - 1) / step;
        spatial.push(self.tiles[0].clone().times(step).plus_constant(self.overlap));
        spatial.extend([Index::constant(step), self.tiles[1].clone().plus_constant(beside)]);
        // the last tiles may reach beyond what the convolution reads
        let read = self.read();
        let reach = [spatial[others].clone(), spatial[others + 2].clone().times(step)];
        let conditions = (0..2).flat_map(|d| self.inside(&positions[d], &reach[d], &read[d])).collect();
        self.stage(Role::Intermediate, &spatial, Expr::guard(conditions, value, Expr::float(0.0)))
    }

    /// What has to hold for an index that runs below `reach` to be below `extent`.
    fn inside(&self, index: &Index, reach: &Index, extent: &Index) -> Vec<Condition> {
        match (reach.as_constant(), extent.as_constant()) {
            (Some(reach), Some(extent)) if reach <= extent => Vec::new(),
            (_, Some(extent)) => Condition::within(index, None, extent),
            (_, None) => Condition::within(index, Some(extent), self.made.most(std::slice::from_ref(extent))[0]),
        }
    }

    /// Bᵀ P: axes i, those of the data, tiles, columns of a tile, tiles.
    fn data_rows(&mut self, padded: TensorId) -> TensorId {
        let axes = self.convolution.other_axes(self.convolution.data);
        let others = axes.len();
        let element = |a: usize| {
            let mut indices: Vec<Index> = (0..others).map(|at| var(at + 1)).collect();
            indices.push(var(others + 1).times(self.step).plus_constant(a as i64));
            indices.extend([var(others + 2), var(others + 3)]);
            Expr::load(padded, indices)
        };
        let value = Self::rows(&self.transform.data, 0, self.parity(), &element);
        let mut spatial = numbers(&[self.size]);
        spatial.extend(self.extents(&axes));
        spatial.push(self.tiles[0].clone());
        spatial.extend(self.made.workload.tensor(padded).formulas().drain(others + 1..));
        self.stage(Role::Intermediate, &spatial, value)
    }

    /// V = (Bᵀ P) B: axes i, j, those of the data, tiles in both dimensions.
    fn data(&mut self, rows: TensorId) -> TensorId {
        let axes = self.convolution.other_axes(self.convolution.data);
        let (step, others) = (self.step, axes.len());
        let element = |b: usize| {
            let b = b as i64;
            let mut indices = vec![var(0)];
            indices.extend((0..=others).map(|at| var(at + 2)));
            indices.extend([Index::constant(b % step), var(others + 3).plus_constant(b / step)]);
            Expr::load(rows, indices)
        };
        let value = Self::rows(&self.transform.data, 1, self.parity(), &element);
        let spatial = [numbers(&[self.size, self.size]), self.extents(&axes), self.tiles.to_vec()].concat();
        self.stage(Role::Intermediate, &spatial, value)
    }

    /// M: axes i, j, then those of the convolution, tiles in place of the windows' axes.
    fn product(&mut self, filter: TensorId, data: TensorId) -> TensorId {
        let Convolution { stage, windows, .. } = *self.convolution;
        let mut spatial = numbers(&[self.size, self.size]);
        spatial.extend((0..stage.spatial.len()).map(|axis| stage.formula(axis)));
        windows.iter().zip(&self.tiles).for_each(|(w, tiles)| spatial[w.spatial + 2].clone_from(tiles));
        let is_window = |axis: &usize| windows.iter().any(|w| w.reduction == *axis);
        let reduction: Vec<usize> = (stage.spatial.len()..stage.rank()).filter(|axis| !is_window(axis)).collect();
        let place = |axis: usize| match reduction.iter().position(|r| *r == axis) {
            Some(at) => var(2 + stage.spatial.len() + at),
            None => var(2 + axis),
        };
        let access = |tensor: TensorId, operand: &Expr, tiles: bool| {
            let mut indices = vec![var(0), var(1)];
            indices.extend(self.convolution.other_axes(operand).into_iter().map(place));
            if tiles {
                indices.extend(windows.iter().map(|w| place(w.spatial)));
            }
            Expr::load(tensor, indices)
        };
        let mut factors = [access(data, self.convolution.data, true), access(filter, self.convolution.weights, false)];
        if self.convolution.weights_first {
            factors.reverse();
        }
        let [left, right] = factors;
        let value = Expr::binary(super::Binary::Multiply, left, right);
        let reduction = self.extents(&reduction);
        let most = [self.made.most(&spatial), self.made.most(&reduction)];
        let reduce = |output| {
            let [spatial, reduction] = most;
            Stage::reduce(output, spatial, reduction, Combiner::Sum, value)
        };
        self.made.append((Role::Intermediate, DType::F32), &[spatial, reduction].concat(), reduce)
    }

    /// Aᵀ M: axis j, then those of the convolution, that of the window's first dimension as a pair of tile
    /// and position in it.
    fn output_rows(&mut self, product: TensorId) -> TensorId {
        let first = self.convolution.windows[0].spatial;
        let mut spatial = self.made.workload.tensor(product).formulas().split_off(1);
        spatial.insert(first + 2, Index::constant(self.outputs));
        let element = |i: usize| {
            let mut indices = vec![Index::constant(i as i64)];
            indices.extend((0..spatial.len()).filter(|at| *at != first + 2).map(var));
            Expr::load(product, indices)
        };
        let value = Self::rows(&self.transform.output, first + 2, Sharing::Size, &element);
        self.stage(Role::Intermediate, &spatial, value)
    }

    /// The output in tiles: the convolution's axes, those of the windows as pairs of tile and position in it.
    fn output(self, rows: TensorId) -> Rewritten {
        let Convolution { stage, windows, .. } = *self.convolution;
        let (mut spatial, mut indices, mut conditions) = (Vec::new(), Vec::new(), Vec::new());
        for axis in 0..stage.spatial.len() {
            let (at, extent) = (spatial.len(), stage.formula(axis));
            if let Some(dimension) = windows.iter().position(|w| w.spatial == axis) {
                let (index, tiles) = (var(at).times(self.outputs).plus(&var(at + 1)), &self.tiles[dimension]);
                conditions.extend(self.inside(&index, &tiles.clone().times(self.outputs), &extent));
                indices.push(index);
                spatial.extend([tiles.clone(), Index::constant(self.outputs)]);
            } else {
                indices.push(var(at));
                spatial.push(extent);
            }
        }
        let second = windows[1].spatial + 2;
        let element = |j: usize| {
            let mut point = vec![Index::constant(j as i64)];
            point.extend((0..spatial.len()).filter(|at| *at != second).map(var));
            Expr::load(rows, point)
        };
        let sum = Self::rows(&self.transform.output, second, Sharing::Size, &element);
        self.finish(&spatial, sum, indices, conditions)
    }

    /// With the last stages, which write the outputs in tiles.
    fn finish(mut self, spatial: &[Index], sum: Expr, indices: Vec<Index>, conditions: Vec<Condition>) -> Rewritten {
        let outputs = self.made.outputs(self.convolution.workload, spatial, sum, (&indices, &conditions));
        let error_growth = self.transform.error_growth().powi(2).ceil() as u32;
        let (workload, product) = self.made.finish();
        let constants = vec![(0, 2), (1, 2)];
        Rewritten { workload, constants, product, outputs, error_growth, indices, conditions }
    }
}

#[cfg(test)]
mod tests;
