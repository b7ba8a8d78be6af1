//! Shapes: axes of extent 1, axes that are read in parts, axes that are always read together.

use std::collections::BTreeSet;

use super::simplify;
use crate::workload::{Atom, Expr, Extents, Index, Stage, Tensor, TensorId, Var, Workload};

/// Removes axes and dimensions of extent 1.
pub(super) fn drop_unit_axes(mut workload: Workload) -> Workload {
    let tensors = workload.tensors.clone();
    for stage in &mut workload.stages {
        let mut kept = 0;
        let units = unit_axes(stage, &tensors);
        let targets: Vec<Option<Index>> = units
            .iter()
            .map(|is_unit| {
                if *is_unit {
                    return Some(Index::constant(0));
                }
                kept += 1;
                Some(Index::var(Var(kept - 1)))
            })
            .collect();
        stage.value = stage.value.substitute(&|var| targets.get(var.0 as usize).cloned().flatten());
        stage.value = stage.value.map_loads(&mut |id, indices| {
            let tensor = &tensors[id.0 as usize];
            let kept = indices.iter().enumerate().filter(|(d, _)| !tensor.is_unit(*d)).map(|(_, index)| index.clone());
            Some(Expr::load(id, kept.collect()))
        });
        let (of_spatial, of_reduction) = units.split_at(stage.spatial.len());
        retain(&mut stage.spatial, of_spatial);
        retain(&mut stage.reduction, of_reduction);
        stage.extents = without(&stage.extents, &units);
        if stage.reduction.is_empty() {
            stage.combiner = None;
        }
    }
    for tensor in &mut workload.tensors {
        let units: Vec<bool> = (0..tensor.shape.len()).map(|d| tensor.is_unit(d)).collect();
        retain(&mut tensor.shape, &units);
        tensor.extents = without(&tensor.extents, &units);
    }
    workload
}

/// By axis, whether it has extent 1; one along which a part is written of more elements stays.
pub(super) fn unit_axes(stage: &Stage, tensors: &[Tensor]) -> Vec<bool> {
    let output = &tensors[stage.output.0 as usize];
    (0..stage.rank()).map(|axis| stage.is_unit(axis) && output.shape.get(axis).is_none_or(|own| *own == 1)).collect()
}

/// Outputs end where the last row does that is written of them.
pub(super) fn trim(mut workload: Workload) -> Workload {
    for stage in &workload.stages {
        let about = &mut workload.tensors[stage.output.0 as usize];
        if let (Some(whole), Some(part)) = (about.shape.first_mut(), stage.spatial.first()) {
            *whole = *part;
        }
    }
    workload
}

/// Keeps the extents that are no units.
fn retain(extents: &mut Vec<i64>, units: &[bool]) {
    let mut units = units.iter();
    extents.retain(|_| units.next() != Some(&true));
}

/// The run-time extents, numbered without the units.
fn without(extents: &Extents, units: &[bool]) -> Extents {
    extents.moved(|at| Some(at - units[..at].iter().filter(|unit| **unit).count()))
}

/// Splits axes that are read through divisions, as long as that leaves fewer divisions.
pub(super) fn split(mut workload: Workload) -> Workload {
    let mut divisions = count_divisions(&workload);
    while divisions > 0 {
        let better = split_candidates(&workload).into_iter().find_map(|(stage, axis, inner)| {
            let changed = simplify::simplify(&split_axis(&workload, stage, axis, inner)?);
            let left = count_divisions(&changed);
            (left < divisions && changed.validate().is_ok()).then_some((changed, left))
        });
        match better {
            Some((changed, left)) => (workload, divisions) = (changed, left),
            None => break,
        }
    }
    workload
}

fn count_divisions(workload: &Workload) -> usize {
    let mut count = 0;
    for stage in &workload.stages {
        for_each_division(&stage.value, &mut |_, _| count += 1);
    }
    count
}

/// Calls `visit` with the operands of every division and remainder, nested ones too.
fn for_each_division(expr: &Expr, visit: &mut dyn FnMut(&Index, i64)) {
    expr.for_each_index(&mut |index| for_each_division_of_index(index, visit));
}

fn for_each_division_of_index(index: &Index, visit: &mut dyn FnMut(&Index, i64)) {
    for (atom, _) in index.terms() {
        match atom {
            Atom::Var(_) => {}
            Atom::FloorDiv(inner, divisor) | Atom::Modulo(inner, divisor) => {
                visit(inner, *divisor);
                for_each_division_of_index(inner, visit);
            }
            Atom::Value(expr) => for_each_division(expr, visit),
        }
    }
}

/// `(stage, axis, inner extent)` of axes that are divided, with the part of the divisor that falls on the
/// axis.
fn split_candidates(workload: &Workload) -> Vec<(usize, usize, i64)> {
    let mut found = BTreeSet::new();
    for (number, stage) in workload.stages.iter().enumerate() {
        for_each_division(&stage.value, &mut |inner, divisor| {
            for (atom, coefficient) in inner.terms() {
                let Atom::Var(var) = atom else { continue };
                if var.as_parameter().is_some() || stage.extents.get(var.0 as usize).is_some() {
                    continue;
                }
                let extent = stage.extent(var.0 as usize);
                // (c · v) / d reads v in parts of d / c
                let part =
                    if *coefficient > 0 && divisor % coefficient == 0 { divisor / coefficient } else { continue };
                if part > 1 && part < extent && extent % part == 0 {
                    found.insert((number, var.0 as usize, part));
                }
            }
        });
    }
    found.into_iter().collect()
}

/// Replaces an axis of extent `n` by two of `n / inner` and `inner`; where the axis is spatial, the dimension
/// of the tensor too, everywhere. `None` where there are too many axes.
fn split_axis(workload: &Workload, number: usize, axis: usize, inner: i64) -> Option<Workload> {
    let mut result = workload.clone();
    let stage = &mut result.stages[number];
    if stage.rank() >= crate::workload::validate::MAX_AXES {
        return None;
    }
    stage.value = stage.value.substitute(&|var| {
        let position = var.0 as usize;
        if var.as_parameter().is_some() {
            return None;
        }
        match position.cmp(&axis) {
            std::cmp::Ordering::Less => None,
            std::cmp::Ordering::Equal => Some(Index::var(var).times(inner).plus(&Index::var(Var(var.0 + 1)))),
            std::cmp::Ordering::Greater => Some(Index::var(Var(var.0 + 1))),
        }
    });
    let spatial = stage.spatial.len();
    let (extents, at) =
        if axis < spatial { (&mut stage.spatial, axis) } else { (&mut stage.reduction, axis - spatial) };
    extents[at] /= inner;
    extents.insert(at + 1, inner);
    let behind = |at: usize| Some(if at > axis { at + 1 } else { at });
    stage.extents = stage.extents.moved(behind);
    if axis < spatial {
        let tensor = stage.output;
        let about = &mut result.tensors[tensor.0 as usize];
        if about.shape[axis] % inner != 0 {
            return None;
        }
        about.shape[axis] /= inner;
        about.shape.insert(axis + 1, inner);
        about.extents = about.extents.moved(behind);
        for stage in &mut result.stages {
            stage.value = stage.value.map_loads(&mut |id, indices| {
                let mut indices = indices.to_vec();
                if id == tensor {
                    let whole = indices[axis].clone();
                    indices[axis] = whole.clone().floor_div(inner);
                    indices.insert(axis + 1, whole.modulo(inner));
                }
                Some(Expr::load(id, indices))
            });
        }
    }
    Some(result)
}

/// Merges neighbouring axes wherever every access treats them as one.
pub(super) fn merge(mut workload: Workload) -> Workload {
    'again: loop {
        for number in 0..workload.stages.len() {
            for axis in 0..workload.stages[number].rank().saturating_sub(1) {
                if let Some(group) = Group::grow(&workload, number, axis) {
                    workload = group.apply(&workload);
                    continue 'again;
                }
            }
        }
        return workload;
    }
}

/// Neighbours that can only be merged together: axes of stages and dimensions of tensors, each named by the
/// first of the two.
#[derive(Default)]
struct Group {
    axes: BTreeSet<(usize, usize)>,
    dimensions: BTreeSet<(TensorId, usize)>,
}

impl Group {
    /// All that has to be merged along with `axis` and the next one; `None` where something forbids it.
    fn grow(workload: &Workload, number: usize, axis: usize) -> Option<Group> {
        let mut group = Group::default();
        let mut pending_axes = vec![(number, axis)];
        let mut pending_dimensions: Vec<(TensorId, usize)> = Vec::new();
        loop {
            if let Some((number, axis)) = pending_axes.pop() {
                if group.axes.insert((number, axis)) {
                    group.check_axes(workload, number, axis, &mut pending_dimensions)?;
                }
            } else if let Some((tensor, dimension)) = pending_dimensions.pop() {
                if group.dimensions.insert((tensor, dimension)) {
                    group.check_dimensions(workload, tensor, dimension, &mut pending_axes)?;
                }
            } else {
                return Some(group);
            }
        }
    }

    fn check_axes(
        &self,
        workload: &Workload,
        number: usize,
        axis: usize,
        pending: &mut Vec<(TensorId, usize)>,
    ) -> Option<()> {
        let stage = &workload.stages[number];
        let spatial = stage.spatial.len();
        // one kind, and no axis in two pairs
        if axis + 1 == spatial || axis + 1 >= stage.rank() {
            return None;
        }
        if self.axes.contains(&(number, axis + 1)) || (axis > 0 && self.axes.contains(&(number, axis - 1))) {
            return None;
        }
        if stage.extent(axis).checked_mul(stage.extent(axis + 1))? >= crate::workload::validate::MAX_EXTENT {
            return None;
        }
        // how far the two go together is a formula only where the second one is fixed
        if stage.extents.get(axis + 1).is_some() {
            return None;
        }
        if axis < spatial {
            // rows of which parts are written are apart
            if workload.tensor(stage.output).shape[axis + 1] != stage.spatial[axis + 1] {
                return None;
            }
            pending.push((stage.output, axis));
        }
        let pair = Pair { first: Var(axis as u32), extent: stage.extent(axis + 1) };
        pair.fits_expr(&stage.value, workload, pending).then_some(())
    }

    fn check_dimensions(
        &self,
        workload: &Workload,
        tensor: TensorId,
        dimension: usize,
        pending: &mut Vec<(usize, usize)>,
    ) -> Option<()> {
        let about = workload.tensor(tensor);
        let shape = &about.shape;
        if about.extents.get(dimension + 1).is_some() {
            return None;
        }
        let taken = |d: usize| self.dimensions.contains(&(tensor, d));
        if taken(dimension + 1) || (dimension > 0 && taken(dimension - 1)) {
            return None;
        }
        if shape[dimension].checked_mul(shape[dimension + 1])? >= crate::workload::validate::MAX_EXTENT {
            return None;
        }
        if let Some(producer) = workload.producer(tensor) {
            pending.push((producer, dimension));
        }
        let mut fits = true;
        for (number, stage) in workload.stages.iter().enumerate() {
            stage.value.for_each_load(&mut |id, indices| {
                if id != tensor {
                    return;
                }
                match indices[dimension].as_var().filter(|first| first.as_parameter().is_none()) {
                    Some(first) => {
                        let pair = Pair { first, extent: stage.extent(first.0 as usize + 1) };
                        let plain = pair.is_plain(indices, shape, dimension);
                        fits &= plain;
                        if plain {
                            pending.push((number, first.0 as usize));
                        }
                    }
                    None => fits = false,
                }
            });
        }
        fits.then_some(())
    }

    fn apply(&self, workload: &Workload) -> Workload {
        let mut result = workload.clone();
        for (number, stage) in result.stages.iter_mut().enumerate() {
            // dimensions first: both indices of a pair are still there
            stage.value = stage.value.map_loads(&mut |id, indices| {
                let shape = &workload.tensor(id).shape;
                let mut merged = Vec::new();
                let mut dimension = 0;
                while dimension < indices.len() {
                    if self.dimensions.contains(&(id, dimension)) {
                        let outer = indices[dimension].clone().times(shape[dimension + 1]);
                        merged.push(outer.plus(&indices[dimension + 1]));
                        dimension += 2;
                    } else {
                        merged.push(indices[dimension].clone());
                        dimension += 1;
                    }
                }
                Some(Expr::load(id, merged))
            });
            let first: Vec<usize> = self.axes.iter().filter(|(n, _)| *n == number).map(|(_, axis)| *axis).collect();
            merge_axes(stage, &first);
        }
        for (tensor, dimension) in self.dimensions.iter().rev() {
            let about = &mut result.tensors[tensor.0 as usize];
            let inner = about.shape.remove(dimension + 1);
            about.shape[*dimension] *= inner;
            about.extents = merged(&about.extents, *dimension, inner);
        }
        result
    }
}

/// Merges axes `f` and `f + 1` for every `f` of `first` (ascending, no neighbours).
fn merge_axes(stage: &mut Stage, first: &[usize]) {
    let position = |axis: usize| Var((axis - first.iter().filter(|f| **f < axis).count()) as u32);
    stage.value = stage.value.map_indices(&mut |index| merge_in_index(index, first, &position));
    let spatial = stage.spatial.len();
    for axis in first.iter().rev() {
        let (extents, at) =
            if *axis < spatial { (&mut stage.spatial, *axis) } else { (&mut stage.reduction, axis - spatial) };
        let inner = extents.remove(at + 1);
        extents[at] *= inner;
        stage.extents = merged(&stage.extents, *axis, inner);
    }
}

/// The run-time extents where an extent and the next one, which is fixed, become one.
fn merged(extents: &Extents, at: usize, inner: i64) -> Extents {
    let longer = extents.map(|position, formula| formula.clone().times(if position == at { inner } else { 1 }));
    longer.moved(|position| Some(if position > at { position - 1 } else { position }))
}

/// `c · extent · x + c · y` becomes `c · z`; other axes are renumbered.
fn merge_in_index(index: &Index, first: &[usize], position: &dyn Fn(usize) -> Var) -> Index {
    let mut result = Index::constant(index.offset());
    for (atom, coefficient) in index.terms() {
        let value = match atom {
            Atom::Var(var) if var.as_parameter().is_some() => Index::var(*var),
            Atom::Var(var) => {
                let axis = var.0 as usize;
                if axis > 0 && first.contains(&(axis - 1)) {
                    Index::var(position(axis - 1))
                } else if first.contains(&axis) {
                    // comes with its partner, which stands for both
                    continue;
                } else {
                    Index::var(position(axis))
                }
            }
            Atom::FloorDiv(inner, divisor) => {
                Index::atom(Atom::FloorDiv(Box::new(merge_in_index(inner, first, position)), *divisor))
            }
            Atom::Modulo(inner, divisor) => {
                Index::atom(Atom::Modulo(Box::new(merge_in_index(inner, first, position)), *divisor))
            }
            Atom::Value(expr) => Index::value(expr.map_indices(&mut |index| merge_in_index(index, first, position))),
        };
        result = result.plus(&value.times(*coefficient));
    }
    result
}

/// An axis and the next one, whose extent is given.
struct Pair {
    first: Var,
    extent: i64,
}

impl Pair {
    fn second(&self) -> Var {
        Var(self.first.0 + 1)
    }

    /// Whether two dimensions are indexed by exactly the two axes, the second one over its whole extent.
    fn is_plain(&self, indices: &[Index], shape: &[i64], dimension: usize) -> bool {
        dimension + 1 < indices.len()
            && indices[dimension].as_var() == Some(self.first)
            && indices[dimension + 1].as_var() == Some(self.second())
            && shape[dimension + 1] == self.extent
    }

    /// Whether the axes occur only as neighbouring dimensions, which are pushed to `pending`, or in linear
    /// indices.
    fn fits_expr(&self, expr: &Expr, workload: &Workload, pending: &mut Vec<(TensorId, usize)>) -> bool {
        let own = match expr {
            Expr::Load { tensor, indices } => {
                let shape = &workload.tensor(*tensor).shape;
                let mut dimension = 0;
                let mut fits = true;
                while dimension < indices.len() {
                    if self.is_plain(indices, shape, dimension) {
                        pending.push((*tensor, dimension));
                        dimension += 2;
                    } else {
                        fits &= self.fits_index(&indices[dimension], workload, pending);
                        dimension += 1;
                    }
                }
                fits
            }
            Expr::Index(index) => self.fits_index(index, workload, pending),
            Expr::Guard { conditions, .. } => conditions.iter().all(|c| self.fits_index(&c.index, workload, pending)),
            Expr::Float(_)
            | Expr::Unary(..)
            | Expr::Binary(..)
            | Expr::Select { .. }
            | Expr::Cast(..)
            | Expr::Bits(..) => true,
        };
        own && expr.children().all(|child| self.fits_expr(child, workload, pending))
    }

    /// Whether the axes occur only as `c · (extent · first + second)`, inside of divisions too.
    fn fits_index(&self, index: &Index, workload: &Workload, pending: &mut Vec<(TensorId, usize)>) -> bool {
        let (outer, inner) = (index.coefficient(self.first), index.coefficient(self.second()));
        inner.checked_mul(self.extent) == Some(outer)
            && index.terms().iter().all(|(atom, _)| match atom {
                Atom::Var(_) => true,
                Atom::FloorDiv(inner, _) | Atom::Modulo(inner, _) => self.fits_index(inner, workload, pending),
                Atom::Value(expr) => self.fits_expr(expr, workload, pending),
            })
    }
}
