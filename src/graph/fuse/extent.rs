//! Extents of axes and dimensions as fusion compares them: how large they are at most, and by what formula
//! those are given that are known only when the network runs.

use crate::workload::{Extents, Index, Stage, Tensor};

/// An extent of an axis or of a dimension.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extent {
    pub most: i64,
    /// `None` where it is fixed.
    pub formula: Option<Index>,
}

impl Extent {
    pub fn fixed(extent: i64) -> Extent {
        Extent { most: extent, formula: None }
    }

    pub fn is_fixed(&self) -> bool {
        self.formula.is_none()
    }

    /// A constant where it is fixed.
    fn index(&self) -> Index {
        self.formula.clone().unwrap_or(Index::constant(self.most))
    }
}

fn listed(most: &[i64], extents: &Extents, first: usize) -> Vec<Extent> {
    let extent = |(at, most): (usize, &i64)| Extent { most: *most, formula: extents.get(first + at).cloned() };
    most.iter().enumerate().map(extent).collect()
}

/// The extents of a tensor's dimensions.
pub fn of_tensor(tensor: &Tensor) -> Vec<Extent> {
    listed(&tensor.shape, &tensor.extents, 0)
}

/// Gives a tensor the shape of the stage that writes it.
pub fn view_through(tensor: &mut Tensor, stage: &Stage) {
    tensor.shape.clone_from(&stage.spatial);
    tensor.extents = formulas(&spatial(stage));
}

/// The extents of a stage's spatial axes.
pub fn spatial(stage: &Stage) -> Vec<Extent> {
    listed(&stage.spatial, &stage.extents, 0)
}

/// The extents of a stage's reduction axes.
pub fn reduction(stage: &Stage) -> Vec<Extent> {
    listed(&stage.reduction, &stage.extents, stage.spatial.len())
}

/// The extents of all axes of a stage, spatial ones first.
pub fn axes(stage: &Stage) -> Vec<Extent> {
    [spatial(stage), reduction(stage)].concat()
}

/// How large they are at most.
pub fn most(extents: &[Extent]) -> Vec<i64> {
    extents.iter().map(|extent| extent.most).collect()
}

/// The formulas of those that are known when it runs.
pub fn formulas(extents: &[Extent]) -> Extents {
    Extents::new(extents.iter().enumerate().filter_map(|(at, extent)| Some((at, extent.formula.clone()?))))
}

/// How many elements arrays of these extents have at most.
pub fn points(extents: &[Extent]) -> i64 {
    extents.iter().map(|extent| extent.most).product()
}

/// Whether arrays of these extents are the same memory in another shape, in every run: they have equally many
/// elements, and what is known only when it runs is as long and as far apart in both.
pub fn are_views(some: &[Extent], others: &[Extent]) -> bool {
    if points(some) != points(others) {
        return false;
    }
    if some.iter().chain(others).all(Extent::is_fixed) {
        return true;
    }
    matching_segments(some, others).into_iter().all(|((first, end), (other_first, other_end))| {
        let (some, others) = (&some[first..end], &others[other_first..other_end]);
        let same_size = || points(some) == points(others);
        some == others || same_size() && size(some).is_some_and(|size_of_some| Some(size_of_some) == size(others))
    })
}

/// The number of elements as a formula, where only the leading extent (those of 1 aside) is known when it
/// runs: then elements are as far apart as they are at most.
fn size(extents: &[Extent]) -> Option<Index> {
    let Some(leading) = extents.iter().position(|extent| *extent != Extent::fixed(1)) else {
        return Some(Index::constant(1));
    };
    let inner = &extents[leading + 1..];
    inner.iter().all(Extent::is_fixed).then(|| extents[leading].index().times(points(inner)))
}

type Segment = (usize, usize);

/// The finest runs of dimensions of both shapes that hold equally many elements at most.
pub fn matching_segments(from: &[Extent], to: &[Extent]) -> Vec<(Segment, Segment)> {
    let (mut segments, mut f, mut t) = (Vec::new(), 0, 0);
    while f < from.len() && t < to.len() {
        let (from_start, to_start) = (f, t);
        let (mut left, mut right) = (from[f].most, to[t].most);
        (f, t) = (f + 1, t + 1);
        while left != right {
            if left < right && f < from.len() {
                left *= from[f].most;
                f += 1;
            } else if right < left && t < to.len() {
                right *= to[t].most;
                t += 1;
            } else {
                break;
            }
        }
        segments.push(((from_start, f), (to_start, t)));
    }
    if f < from.len() || t < to.len() {
        match segments.last_mut() {
            Some(last) => (last.0.1, last.1.1) = (from.len(), to.len()),
            None => segments.push(((0, from.len()), (0, to.len()))),
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::{Extent, are_views};
    use crate::workload::{Index, Var};

    fn run_time(factor: i64, most: i64) -> Extent {
        Extent { most, formula: Some(Index::var(Var::parameter(0)).times(factor)) }
    }

    #[test]
    fn run_time_extents_are_views_where_their_strides_agree() {
        let fixed = Extent::fixed;
        let heads = [run_time(1, 8), fixed(12), fixed(64)];
        assert!(are_views(&heads, &[run_time(1, 8), fixed(768)]));
        assert!(are_views(&heads, &[run_time(12, 96), fixed(64)]));
        assert!(!are_views(&heads, &[fixed(8), fixed(768)]));
        assert!(!are_views(&heads, &[run_time(24, 192), fixed(64)]));
        // rows of rows are so many only when it runs
        assert!(!are_views(&[fixed(2), run_time(1, 8), fixed(3)], &[run_time(2, 16), fixed(3)]));
        assert!(are_views(&[fixed(2), run_time(1, 8), fixed(6)], &[fixed(2), run_time(1, 8), fixed(2), fixed(3)]));
        let other = Extent { most: 8, formula: Some(Index::var(Var::parameter(1))) };
        assert!(!are_views(&[other, fixed(12), fixed(64)], &heads));
        assert!(are_views(&[fixed(6)], &[fixed(2), fixed(3)]) && !are_views(&[fixed(6)], &[fixed(2)]));
    }
}
