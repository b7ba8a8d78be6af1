//! Where the lanes of a block are, and what affine indices are there.

/// How an affine index moves from lane to lane.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Pattern {
    Uniform,
    Contiguous,
    General,
}

/// The lanes' part of an affine index, for the block at hand; `shift` is that of the other axes.
pub(super) struct Offsets {
    pub(super) lanes: Vec<i64>,
    pub(super) pattern: Pattern,
    /// The least and the largest of the lanes.
    pub(super) low: i64,
    pub(super) high: i64,
    pub(super) shift: i64,
}

impl Offsets {
    pub(super) fn empty() -> Offsets {
        Offsets { lanes: Vec::new(), pattern: Pattern::General, low: 0, high: 0, shift: 0 }
    }

    /// Whether `low <= value < high` in all lanes, or in none; `None` where it depends on the lane.
    pub(super) fn test(&self, low: i64, high: i64) -> Option<bool> {
        let (least, largest) = (self.low.saturating_add(self.shift), self.high.saturating_add(self.shift));
        match () {
            () if least >= low && largest < high => Some(true),
            () if largest < low || least >= high => Some(false),
            () => None,
        }
    }
}

/// Walks over the points of some axes in row-major order.
pub(super) struct Walk<'a> {
    pub(super) extents: &'a [usize],
    pub(super) point: Vec<i64>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(extents: &'a [usize], start: usize) -> Walk<'a> {
        Walk { extents, point: unravel(start, extents) }
    }

    /// To the next point: `moved(axis, reset)` says that `axis` grew by one and the axes after it (if
    /// `reset`) went from their end to 0. Returns false past the last point.
    pub(super) fn advance(&mut self, moved: impl FnOnce(usize, bool)) -> bool {
        for axis in (0..self.extents.len()).rev() {
            if self.point[axis] + 1 < self.extents[axis] as i64 {
                self.point[axis] += 1;
                moved(axis, axis + 1 < self.extents.len());
                return true;
            }
            self.point[axis] = 0;
        }
        false
    }
}

/// How far an index moves with one step of a [`Walk`].
pub(super) fn step(coefficients: &[i64], axis: usize, reset: bool, extents: &[usize]) -> i64 {
    let back = |axis: usize| coefficients[axis].wrapping_mul(extents[axis] as i64 - 1);
    let resets = if reset { (axis + 1..extents.len()).map(back).fold(0, i64::wrapping_add) } else { 0 };
    coefficients[axis].wrapping_sub(resets)
}

pub(super) fn dot(coefficients: &[i64], point: &[i64]) -> i64 {
    coefficients.iter().zip(point).fold(0, |sum, (c, p)| sum.wrapping_add(c.wrapping_mul(*p)))
}

pub(super) fn unravel(position: usize, extents: &[usize]) -> Vec<i64> {
    let mut rest = position;
    let mut point = vec![0; extents.len()];
    for axis in (0..extents.len()).rev() {
        point[axis] = (rest % extents[axis]) as i64;
        rest /= extents[axis];
    }
    point
}
