//! Convolutions by fewer multiplications: Winograd's algorithm as a rewrite of the workload.
//!
//! A convolution of stride 1 over windows of r × r becomes, for tiles of m × m outputs and t = m + r - 1:
//!
//! ```text
//! U[i, j, k, c]        = G w[k, c] Gᵀ                        of constants alone: computed when the network is compiled
//! P[c, y, q, u]        = x[c, y, m·u + q], with its padding    so that neighbouring tiles are neighbours in memory
//! V[i, j, c, v, u]     = Bᵀ P[c, m·v.., .., u..] B
//! M[i, j, k, v, u]     = Σ_c U[i, j, k, c] V[i, j, c, v, u]
//! y[k, m·v + p, m·u + q] = Aᵀ M[.., k, v, u] A, and the epilogue
//! ```
//!
//! Each transform is two stages, one for each dimension; [`Order`] says in which order their axes are. The
//! multiplications of M are `(t / m)² / r²` of those of the convolution: 0.44 for F(2×2, 3×3), 0.25 for
//! F(4×4, 3×3). Its rounding errors are larger, up to 2 and 32 times, since numbers of different size are
//! added; so it is only used where that is allowed.

mod figures;
mod rows;
mod transform;

pub use figures::{Figures, figures};

use std::collections::BTreeMap;

use super::expr::Condition;
use super::{Combiner, DType, Expr, Extents, Index, Role, Stage, Tensor, TensorId, Var, Workload, typed_identity};
use transform::{Sharing, Transform, combination, piecewise};

/// Windows that it is offered for.
const WINDOWS: [i64; 2] = [3, 5];
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

/// A convolution in the form of Winograd's algorithm.
#[derive(Clone, PartialEq, Debug)]
pub struct Winograd {
    /// Its tensors start with those of the original workload; what the original's stages wrote is not
    /// written, `tiled` instead.
    pub workload: Workload,
    /// The stages that transform the constants, in order: the first two axes are of the window or the
    /// transform.
    pub filters: Vec<usize>,
    /// The stage that multiplies; those around it only move and add.
    pub product: usize,
    /// What the last stages write, an output of the original each, in tiles. They may read the outputs
    /// before them.
    pub outputs: Vec<Tiled>,
    /// How many times larger its rounding errors may be: the product over both dimensions of what the
    /// transform of one makes.
    pub error_growth: u32,
    /// Where an element of such a tensor is in its output; the axes are those of the last stages.
    pub indices: Vec<Index>,
    /// Elements for which these do not hold lie outside of it.
    pub conditions: Vec<Condition>,
}

/// An output of a convolution, in tiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tiled {
    pub tiled: TensorId,
    /// The original's.
    pub output: TensorId,
}

/// A dimension of the window: `data` reads at the sum of both axes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Window {
    spatial: usize,
    reduction: usize,
}

/// The convolution in a workload.
struct Convolution<'a> {
    workload: &'a Workload,
    stage: &'a Stage,
    /// Element-wise stages on top of it.
    behind: &'a [Stage],
    data: &'a Expr,
    weights: &'a Expr,
    weights_first: bool,
    windows: [Window; 2],
    /// Extent of the window, in both dimensions.
    width: i64,
}

/// Whether [`winograd`] gives anything, which is quicker to say.
pub fn applies(workload: &Workload, outputs: i64) -> bool {
    Convolution::in_tiles(workload, outputs).is_some()
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
/// all that is no convolution by constant weights of stride 1, with a square window, over a few channels at
/// least.
///
/// Element-wise stages may follow the convolution. Operands may be short numbers that are multiplied as f32:
/// then the transforms and the products are of f32, whatever the machine has for short ones.
pub fn winograd(workload: &Workload, outputs: i64, order: Order) -> Option<Winograd> {
    let (convolution, transform) = prepare(workload, outputs)?;
    let rewrite = Rewrite::new(&convolution, &transform, outputs);
    Some(match order {
        Order::Points => rewrite.by_points(),
        Order::Rows => rewrite.by_rows(),
    })
}

fn prepare(workload: &Workload, outputs: i64) -> Option<(Convolution<'_>, Transform)> {
    let convolution = Convolution::in_tiles(workload, outputs)?;
    let transform = Transform::new(usize::try_from(outputs).ok()?, usize::try_from(convolution.width).ok()?)?;
    Some((convolution, transform))
}

impl<'a> Convolution<'a> {
    /// The convolution, where there is a transform for tiles of `outputs` × `outputs`.
    fn in_tiles(workload: &'a Workload, outputs: i64) -> Option<Convolution<'a>> {
        let convolution = Convolution::find(workload)?;
        let (outputs, window) = (usize::try_from(outputs).ok()?, usize::try_from(convolution.width).ok()?);
        let fits = |window: &Window| convolution.stage.extent(window.spatial) >= outputs as i64;
        (Transform::exists(outputs, window) && convolution.windows.iter().all(fits)).then_some(convolution)
    }

    fn find(workload: &'a Workload) -> Option<Convolution<'a>> {
        let (stage, behind) = workload.stages.split_first()?;
        let is_sum = stage.combiner == Some(Combiner::Sum) && workload.tensor(stage.output).dtype == DType::F32;
        if !is_sum || !behind.iter().all(|follower| is_element_wise(workload, stage, follower)) {
            return None;
        }
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
            let slides = |s: &usize| {
                let window = Window { spatial: *s, reduction };
                !weights.mentions(axis(*s)) && weights.mentions(axis(reduction)) && window.is_only_read_as_sum(data)
            };
            if let Some(spatial) = (0..spatial).find(slides) {
                windows.push(Window { spatial, reduction });
            }
        }
        let &[first, second] = windows.as_slice() else { return None };
        let width = stage.extent(first.reduction);
        let distinct = first.spatial != second.spatial && width == stage.extent(second.reduction);
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
            behind,
            data,
            weights,
            weights_first,
            windows: if first.spatial < second.spatial { [first, second] } else { [second, first] },
            width,
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

/// Whether a stage behind the first one computes an element from those at the same place of what the stages
/// before it wrote, and from what was given.
fn is_element_wise(workload: &Workload, first: &Stage, stage: &Stage) -> bool {
    let is_own = |(position, index): (usize, &Index)| index.as_var() == Some(axis(position));
    let is_given = |tensor: TensorId| matches!(workload.tensor(tensor).role, Role::Input | Role::Constant);
    let mut aligned = !stage.is_reduction() && stage.is_over_results_of(first);
    stage.value.for_each_load(&mut |tensor, indices| {
        aligned &= is_given(tensor) || indices.iter().enumerate().all(is_own);
    });
    aligned
}

impl Window {
    fn is_only_read_as_sum(self, data: &Expr) -> bool {
        let (spatial, reduction) = (axis(self.spatial), axis(self.reduction));
        let moved = |axis| (axis == spatial).then(|| Index::var(spatial).minus(&Index::var(reduction)));
        data.mentions(spatial) && data.mentions(reduction) && !data.substitute(&moved).mentions(reduction)
    }
}

struct Rewrite<'a> {
    convolution: &'a Convolution<'a>,
    transform: &'a Transform,
    /// Outputs of a tile in each dimension: m.
    outputs: i64,
    /// t.
    size: i64,
    /// Tiles in each dimension.
    tiles: [Index; 2],
    result: Workload,
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
        let result = Workload { stages: Vec::new(), ..convolution.workload.clone() };
        Rewrite { convolution, transform, outputs, size: transform.size() as i64, tiles, result }
    }

    fn by_points(mut self) -> Winograd {
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
        self.stage_of(DType::F32, role, spatial, value)
    }

    fn stage_of(&mut self, dtype: DType, role: Role, spatial: &[Index], value: Expr) -> TensorId {
        let most = self.most(spatial);
        self.append((role, dtype), spatial, |output| Stage::map(output, most, value))
    }

    /// A stage of a new tensor, whose axes have these extents in a run, those of a reduction behind.
    fn append(
        &mut self,
        (role, dtype): (Role, DType),
        extents: &[Index],
        stage: impl FnOnce(TensorId) -> Stage,
    ) -> TensorId {
        let output = TensorId(self.result.tensors.len() as u32);
        let mut stage = stage(output);
        stage.extents = Extents::new(extents.iter().cloned().enumerate());
        let written = Extents::new(extents[..stage.spatial.len()].iter().cloned().enumerate());
        self.result.add_tensor(stage.spatial.clone(), dtype, role);
        self.result.tensors[output.0 as usize].extents = written;
        self.result.stages.push(stage);
        output
    }

    /// What extents are at most.
    fn most(&self, extents: &[Index]) -> Vec<i64> {
        extents.iter().map(|extent| self.result.formula_range(extent).map_or(0, |range| range.high)).collect()
    }

    fn extents(&self, axes: &[usize]) -> Vec<Index> {
        axes.iter().map(|axis| self.convolution.stage.formula(*axis)).collect()
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
        let value = Self::rows(&self.transform.filter, 0, Sharing::Parity, &weight);
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
        let value = Self::rows(&self.transform.filter, 1, Sharing::Parity, &element);
        let spatial = [numbers(&[self.size, self.size]), self.extents(&axes)].concat();
        self.stage(Role::Constant, &spatial, value)
    }

    /// P: the axes of the data, rows, columns of a tile, tiles. The window's offset is part of the position.
    fn padded(&mut self) -> TensorId {
        let Convolution { data, windows, stage, width, .. } = *self.convolution;
        let axes = self.convolution.other_axes(data);
        let (m, others) = (self.outputs, axes.len());
        let column = var(others + 2).times(m).plus(&var(others + 1));
        let positions = [var(others), column];
        let value = data.substitute(&|axis| {
            let at = axis.0 as usize;
            if let Some(dimension) = windows.iter().position(|w| w.spatial == at) {
                return Some(positions[dimension].clone());
            }
            if windows.iter().any(|w| w.reduction == at) {
                return Some(Index::constant(0));
            }
            axes.iter().position(|a| *a == at).map(var)
        });
        let mut spatial = self.extents(&axes);
        let beside = (width - 1 + m - 1) / m;
        spatial.push(self.tiles[0].clone().times(m).plus_constant(width - 1));
        spatial.extend([Index::constant(m), self.tiles[1].clone().plus_constant(beside)]);
        // the last tiles may reach beyond what the convolution reads
        let read = windows.map(|w| stage.formula(w.spatial).plus_constant(width - 1));
        let reach = [spatial[others].clone(), spatial[others + 2].clone().times(m)];
        let conditions = (0..2).flat_map(|d| self.inside(&positions[d], &reach[d], &read[d])).collect();
        self.stage(Role::Intermediate, &spatial, Expr::guard(conditions, value, Expr::float(0.0)))
    }

    /// What has to hold for an index that runs below `reach` to be below `extent`.
    fn inside(&self, index: &Index, reach: &Index, extent: &Index) -> Vec<Condition> {
        match (reach.as_constant(), extent.as_constant()) {
            (Some(reach), Some(extent)) if reach <= extent => Vec::new(),
            (_, Some(extent)) => Condition::within(index, None, extent),
            (_, None) => Condition::within(index, Some(extent), self.most(std::slice::from_ref(extent))[0]),
        }
    }

    /// Bᵀ P: axes i, those of the data, tiles, columns of a tile, tiles.
    fn data_rows(&mut self, padded: TensorId) -> TensorId {
        let axes = self.convolution.other_axes(self.convolution.data);
        let others = axes.len();
        let element = |a: usize| {
            let mut indices: Vec<Index> = (0..others).map(|at| var(at + 1)).collect();
            indices.push(var(others + 1).times(self.outputs).plus_constant(a as i64));
            indices.extend([var(others + 2), var(others + 3)]);
            Expr::load(padded, indices)
        };
        let value = Self::rows(&self.transform.data, 0, Sharing::Parity, &element);
        let mut spatial = numbers(&[self.size]);
        spatial.extend(self.extents(&axes));
        spatial.push(self.tiles[0].clone());
        spatial.extend(self.result.tensor(padded).formulas().drain(others + 1..));
        self.stage(Role::Intermediate, &spatial, value)
    }

    /// V = (Bᵀ P) B: axes i, j, those of the data, tiles in both dimensions.
    fn data(&mut self, rows: TensorId) -> TensorId {
        let axes = self.convolution.other_axes(self.convolution.data);
        let (m, others) = (self.outputs, axes.len());
        let element = |b: usize| {
            let b = b as i64;
            let mut indices = vec![var(0)];
            indices.extend((0..=others).map(|at| var(at + 2)));
            indices.extend([Index::constant(b % m), var(others + 3).plus_constant(b / m)]);
            Expr::load(rows, indices)
        };
        let value = Self::rows(&self.transform.data, 1, Sharing::Parity, &element);
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
        let most = [self.most(&spatial), self.most(&reduction)];
        let reduce = |output| {
            let [spatial, reduction] = most;
            Stage::reduce(output, spatial, reduction, Combiner::Sum, value)
        };
        self.append((Role::Intermediate, DType::F32), &[spatial, reduction].concat(), reduce)
    }

    /// Aᵀ M: axis j, then those of the convolution, that of the window's first dimension as a pair of tile
    /// and position in it.
    fn output_rows(&mut self, product: TensorId) -> TensorId {
        let first = self.convolution.windows[0].spatial;
        let mut spatial = self.result.tensor(product).formulas().split_off(1);
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
    fn output(self, rows: TensorId) -> Winograd {
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

    /// With the last stages, which write the outputs in tiles: the sums at these places of them, and what
    /// element-wise stages make of these. What only these leave to one another is not written; outputs are
    /// read where they are.
    fn finish(mut self, spatial: &[Index], sum: Expr, indices: Vec<Index>, conditions: Vec<Condition>) -> Winograd {
        let Convolution { workload, stage, behind, .. } = *self.convolution;
        let product = self.result.stages.iter().position(Stage::is_reduction).unwrap_or(0);
        let mut inner: BTreeMap<TensorId, Expr> = BTreeMap::new();
        let mut outputs = Vec::new();
        for (number, written) in std::iter::once(stage).chain(behind).enumerate() {
            let value = match number {
                0 => sum.clone(),
                _ => {
                    let moved = written.value.substitute(&|axis| indices.get(axis.0 as usize).cloned());
                    moved.map_loads(&mut |tensor, _| inner.get(&tensor).cloned())
                }
            };
            let Tensor { role, dtype, .. } = *workload.tensor(written.output);
            if role == Role::Intermediate {
                inner.insert(written.output, value);
                continue;
            }
            let value = match number {
                0 => value,
                _ => Expr::guard(conditions.clone(), value, typed_identity(Combiner::Sum, dtype)),
            };
            let tiled = self.stage_of(dtype, Role::Intermediate, spatial, value);
            outputs.push(Tiled { tiled, output: written.output });
        }
        let error_growth = self.transform.error_growth().powi(2).ceil() as u32;
        Winograd { workload: self.result, filters: vec![0, 1], product, outputs, error_growth, indices, conditions }
    }
}

#[cfg(test)]
mod tests;
