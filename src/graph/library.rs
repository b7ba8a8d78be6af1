//! The run-time library: what no loop nest computes well, because it stores at places that depend on data, or
//! sorts.
//!
//! `artifact/deploy/library.c` does the same, and deployed networks call that; here is the reference that it
//! is compared with.

use std::cmp::Ordering;
use std::fmt;

use super::TensorData;
use crate::workload::{DType, integer_from_bytes, put_real, real_from_bytes};

/// How an element and an update become one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reduction {
    /// The update; of several the last.
    Replace,
    Add,
    Multiply,
    Maximum,
    Minimum,
}

/// A routine, with all that it knows before it runs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Routine {
    /// Values `[outer, extent, inner]` to the `count` greatest or least along the middle axis, and their
    /// places, `[outer, count, inner]` both, the foremost first; of equal ones the earlier. A NaN is above
    /// all numbers.
    TopK { outer: i64, extent: i64, inner: i64, count: i64, largest: bool, dtype: DType },
    /// Data of `blocks` blocks of `block` elements, places `[updates]` in i64, each the number of a block,
    /// and updates of as many blocks: the data with all updates, one after the other.
    Scatter { blocks: i64, block: i64, updates: i64, reduction: Reduction, dtype: DType },
    /// Data `[outer, capacity, block]` and rows `[outer, rows, block]`: the data with these rows from row
    /// `first` on. Networks have both data in the same memory, so that only rows are written.
    Append { outer: i64, first: i64, rows: i64, capacity: i64, block: i64, dtype: DType },
    /// Data `[elements]`, for a tensor of another shape. Networks have both in the same memory if they can.
    Copy { elements: i64, dtype: DType },
    /// A number in i64, as what is counted: at most `most`.
    Read { most: i64 },
    /// Data `[elements]`: the places in i64 of those elements that are not zero, in order, and their number.
    NonZero { elements: i64, dtype: DType },
    /// Data `[rows, length]`: the places of the first rows of their kind, in the order of the rows or, where
    /// `sorted`, of their elements; by row, the number of its kind; by kind, how many there are; and the
    /// number of kinds. All in i64. A NaN is above all numbers, and of a kind with every other.
    Unique { rows: i64, length: i64, sorted: bool, dtype: DType },
    /// Boxes `[batch, boxes, 4]` and scores `[batch, classes, boxes]` in f32; how many boxes of a class are
    /// kept, one element of i64; the overlap that is tolerated and the score that has to be exceeded, one
    /// element of f32 each: `[selected, 3]` in i64 of batch, class and box, class by class and the highest
    /// score first, at most `most` of each; memory of no meaning, `[boxes]` in i64; and their number. A box
    /// is left out that overlaps one before it by more than the tolerance, as a share of their union. Corners
    /// of boxes are opposite ones, y before x; or `centred`, and the centre's x and y come before width and
    /// height.
    NonMaxSuppression { batch: i64, classes: i64, boxes: i64, most: i64, centred: bool },
}

impl fmt::Display for Routine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Routine::TopK { outer, extent, inner, count, largest, dtype } => {
                let which = if *largest { "largest" } else { "smallest" };
                write!(f, "top_k {which} {count} of {} {outer}x{extent}x{inner}", dtype.name())
            }
            Routine::Scatter { blocks, block, updates, reduction, dtype } => {
                write!(f, "scatter {reduction:?} {updates} into {} {blocks}x{block}", dtype.name())
            }
            Routine::Append { outer, rows, capacity, block, dtype, .. } => {
                write!(f, "append {rows} to {} {outer}x{capacity}x{block}", dtype.name())
            }
            Routine::Copy { elements, dtype } => write!(f, "copy {} {elements}", dtype.name()),
            Routine::Read { most } => write!(f, "read {most}"),
            Routine::NonZero { elements, dtype } => write!(f, "non_zero {} {elements}", dtype.name()),
            Routine::Unique { rows, length, sorted, dtype } => {
                let order = if *sorted { "sorted" } else { "in order" };
                write!(f, "unique {order} {} {rows}x{length}", dtype.name())
            }
            Routine::NonMaxSuppression { batch, classes, boxes, most, .. } => {
                write!(f, "non_max_suppression {most} of {batch}x{classes}x{boxes}")
            }
        }
    }
}

impl Routine {
    /// Elements and types of what it takes.
    pub fn inputs(&self) -> Vec<(i64, DType)> {
        match *self {
            Routine::TopK { outer, extent, inner, dtype, .. } => vec![(outer * extent * inner, dtype)],
            Routine::Scatter { blocks, block, updates, dtype, .. } => {
                vec![(blocks * block, dtype), (updates, DType::I64), (updates * block, dtype)]
            }
            Routine::Append { outer, rows, capacity, block, dtype, .. } => {
                vec![(outer * capacity * block, dtype), (outer * rows * block, dtype)]
            }
            Routine::Copy { elements, dtype } | Routine::NonZero { elements, dtype } => vec![(elements, dtype)],
            Routine::Read { .. } => vec![(1, DType::I64)],
            Routine::Unique { rows, length, dtype, .. } => vec![(rows * length, dtype)],
            Routine::NonMaxSuppression { batch, classes, boxes, .. } => vec![
                (batch * boxes * 4, DType::F32),
                (batch * classes * boxes, DType::F32),
                (1, DType::I64),
                (1, DType::F32),
                (1, DType::F32),
            ],
        }
    }

    /// Elements and types of what it gives.
    pub fn outputs(&self) -> Vec<(i64, DType)> {
        match *self {
            Routine::TopK { outer, inner, count, dtype, .. } => {
                vec![(outer * count * inner, dtype), (outer * count * inner, DType::I64)]
            }
            Routine::Scatter { blocks, block, dtype, .. } => vec![(blocks * block, dtype)],
            Routine::Append { outer, capacity, block, dtype, .. } => vec![(outer * capacity * block, dtype)],
            Routine::Copy { elements, dtype } => vec![(elements, dtype)],
            Routine::Read { .. } => vec![(1, DType::I64)],
            Routine::NonZero { elements, .. } => vec![(elements, DType::I64), (1, DType::I64)],
            Routine::Unique { rows, .. } => {
                vec![(rows, DType::I64), (rows, DType::I64), (rows, DType::I64), (1, DType::I64)]
            }
            Routine::NonMaxSuppression { batch, classes, boxes, most, .. } => {
                vec![(batch * classes * most * 3, DType::I64), (boxes, DType::I64), (1, DType::I64)]
            }
        }
    }

    /// Whether the last of what it gives is how many elements, along the leading axis, others of it have;
    /// elements and types are those at most.
    pub fn counts(&self) -> bool {
        match self {
            Routine::TopK { .. } | Routine::Scatter { .. } | Routine::Append { .. } | Routine::Copy { .. } => false,
            Routine::Read { .. }
            | Routine::NonZero { .. }
            | Routine::Unique { .. }
            | Routine::NonMaxSuppression { .. } => true,
        }
    }

    /// Its numbers that may depend on the extents of a run; at most.
    pub fn sizes(&self) -> Vec<i64> {
        match *self {
            Routine::TopK { outer, extent, inner, count, .. } => vec![outer, extent, inner, count],
            Routine::Scatter { blocks, block, updates, .. } => vec![blocks, block, updates],
            Routine::Append { outer, first, rows, capacity, block, .. } => vec![outer, first, rows, capacity, block],
            Routine::Read { most } => vec![most],
            Routine::Copy { elements, .. } | Routine::NonZero { elements, .. } => vec![elements],
            Routine::Unique { rows, length, .. } => vec![rows, length],
            Routine::NonMaxSuppression { batch, classes, boxes, most, .. } => vec![batch, classes, boxes, most],
        }
    }

    /// The same with other sizes, in the order of [`Routine::sizes`]; without any, as it is.
    #[must_use]
    pub fn with_sizes(&self, sizes: &[i64]) -> Routine {
        match (self.clone(), sizes) {
            (Routine::TopK { largest, dtype, .. }, &[outer, extent, inner, count]) => {
                Routine::TopK { outer, extent, inner, count, largest, dtype }
            }
            (Routine::Scatter { reduction, dtype, .. }, &[blocks, block, updates]) => {
                Routine::Scatter { blocks, block, updates, reduction, dtype }
            }
            (Routine::Append { dtype, .. }, &[outer, first, rows, capacity, block]) => {
                Routine::Append { outer, first, rows, capacity, block, dtype }
            }
            (Routine::Read { .. }, &[most]) => Routine::Read { most },
            (Routine::Copy { dtype, .. }, &[elements]) => Routine::Copy { elements, dtype },
            (Routine::NonZero { dtype, .. }, &[elements]) => Routine::NonZero { elements, dtype },
            (Routine::Unique { sorted, dtype, .. }, &[rows, length]) => Routine::Unique { rows, length, sorted, dtype },
            (Routine::NonMaxSuppression { centred, .. }, &[batch, classes, boxes, most]) => {
                Routine::NonMaxSuppression { batch, classes, boxes, most, centred }
            }
            (routine, _) => routine,
        }
    }

    /// The bytes of all results, given those of what it takes.
    pub fn run(&self, inputs: &[&[u8]]) -> Vec<Vec<u8>> {
        match (self, inputs) {
            (Routine::TopK { outer, extent, inner, count, largest, dtype }, [values]) => {
                top_k(values, [*outer, *extent, *inner, *count].map(|size| size as usize), *largest, *dtype)
            }
            (Routine::Scatter { block, reduction, dtype, .. }, [data, places, updates]) => {
                vec![scatter(data, places, updates, *block as usize, *reduction, *dtype)]
            }
            (Routine::Append { outer, first, rows, capacity, block, dtype }, [data, added]) => {
                let sizes = [*outer, *first, *rows, *capacity, *block * dtype.bytes() as i64];
                vec![append(data, added, sizes.map(|size| size as usize))]
            }
            (Routine::Copy { .. } | Routine::Read { .. }, [data]) => vec![data.to_vec()],
            (Routine::NonZero { elements, dtype }, [data]) => non_zero(data, *elements as usize, *dtype),
            (Routine::Unique { rows, length, sorted, dtype }, [data]) => {
                unique(data, [*rows as usize, *length as usize], *sorted, *dtype)
            }
            (
                Routine::NonMaxSuppression { batch, classes, boxes, most, centred },
                [places, scores, kept, overlap, least],
            ) => {
                let kept = kept.first_chunk().copied().map_or(0, i64::from_le_bytes).clamp(0, *most);
                let sizes = [*batch, *classes, *boxes, kept, *most].map(|size| size as usize);
                let scores = Scores { values: &floats(scores), least: first_float(least) };
                suppressed(sizes, &floats(places), &scores, first_float(overlap), *centred)
            }
            _ => Vec::new(),
        }
    }

    /// The results, as tensors of these shapes.
    pub fn evaluate(&self, inputs: &[&TensorData], shapes: &[Vec<i64>]) -> Vec<TensorData> {
        let bytes: Vec<&[u8]> = inputs.iter().map(|data| &data.bytes[..]).collect();
        let outputs = self.run(&bytes).into_iter().zip(self.outputs()).zip(shapes);
        outputs
            .map(|((bytes, (_, dtype)), shape)| TensorData { shape: shape.clone(), dtype, bytes: bytes.into() })
            .collect()
    }
}

fn integers(values: impl IntoIterator<Item = usize>, room: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = values.into_iter().flat_map(|value| (value as i64).to_le_bytes()).collect();
    bytes.resize(room * 8, 0);
    bytes
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn first_float(bytes: &[u8]) -> f32 {
    floats(bytes).first().copied().unwrap_or(0.0)
}

fn non_zero(data: &[u8], elements: usize, dtype: DType) -> Vec<Vec<u8>> {
    let is_zero = |bytes: &[u8]| match dtype.is_float() {
        true => real_from_bytes(dtype, bytes) == 0.0,
        false => bytes.iter().all(|byte| *byte == 0),
    };
    let found: Vec<usize> = (0..elements).filter(|at| !is_zero(&data[at * dtype.bytes()..][..dtype.bytes()])).collect();
    let count = integers([found.len()], 1);
    vec![integers(found, elements), count]
}

/// `[rows, length]`
fn unique(data: &[u8], [rows, length]: [usize; 2], sorted: bool, dtype: DType) -> Vec<Vec<u8>> {
    let size = dtype.bytes();
    let row = |at: usize| data[at * length * size..][..length * size].chunks_exact(size);
    let order = |a: usize, b: usize| {
        let different = row(a).zip(row(b)).map(|(x, y)| compare(x, y, dtype)).find(|order| order.is_ne());
        different.unwrap_or(Ordering::Equal)
    };
    let mut by_elements: Vec<usize> = (0..rows).collect();
    by_elements.sort_by(|a, b| order(*a, *b));
    // kinds, each by its first row
    let mut kinds: Vec<&[usize]> = by_elements.chunk_by(|a, b| order(*a, *b).is_eq()).collect();
    if !sorted {
        kinds.sort_by_key(|kind| kind[0]);
    }
    let mut kind_of = vec![0; rows];
    for (number, kind) in kinds.iter().enumerate() {
        kind.iter().for_each(|row| kind_of[*row] = number);
    }
    let firsts = integers(kinds.iter().map(|kind| kind[0]), rows);
    let counts = integers(kinds.iter().map(|kind| kind.len()), rows);
    vec![firsts, integers(kind_of, rows), counts, integers([kinds.len()], 1)]
}

/// Scores, and what a box's has to exceed.
struct Scores<'a> {
    values: &'a [f32],
    least: f32,
}

/// `[batch, classes, boxes, kept, most]`
fn suppressed(sizes: [usize; 5], places: &[f32], scores: &Scores, overlap: f32, centred: bool) -> Vec<Vec<u8>> {
    let [batch, classes, boxes, limit, most] = sizes;
    let mut found = Vec::new();
    for (b, c) in (0..batch).flat_map(|b| (0..classes).map(move |c| (b, c))) {
        let score = |at: usize| scores.values[(b * classes + c) * boxes + at];
        let corners = |at: usize| corners(&places[(b * boxes + at) * 4..][..4], centred);
        let mut order: Vec<usize> = (0..boxes).filter(|at| score(*at) > scores.least).collect();
        // stable: equal ones stay in their order
        order.sort_by(|x, y| score(*y).partial_cmp(&score(*x)).unwrap_or(Ordering::Equal));
        let mut kept: Vec<usize> = Vec::new();
        for at in order {
            if kept.len() >= limit {
                break;
            }
            if kept.iter().all(|other| share(corners(at), corners(*other)) <= overlap) {
                kept.push(at);
            }
        }
        found.extend(kept.into_iter().map(|at| [b, c, at]));
    }
    let count = integers([found.len()], 1);
    vec![integers(found.into_iter().flatten(), batch * classes * most * 3), integers([], boxes), count]
}

/// Lower and upper ends of a box along two axes.
fn corners(place: &[f32], centred: bool) -> [[f32; 2]; 2] {
    let [a, b, c, d] = [place[0], place[1], place[2], place[3]];
    match centred {
        true => [[a - c / 2.0, a + c / 2.0], [b - d / 2.0, b + d / 2.0]],
        false => [[a.min(c), a.max(c)], [b.min(d), b.max(d)]],
    }
}

/// What boxes have in common, as a share of what either has; 0 where they have nothing or no area.
fn share(x: [[f32; 2]; 2], y: [[f32; 2]; 2]) -> f32 {
    let area = |place: [[f32; 2]; 2]| (place[0][1] - place[0][0]) * (place[1][1] - place[1][0]);
    let common = |d: usize| x[d][1].min(y[d][1]) - x[d][0].max(y[d][0]);
    let (first, second) = (common(0), common(1));
    if first <= 0.0 || second <= 0.0 || area(x) <= 0.0 || area(y) <= 0.0 {
        return 0.0;
    }
    let common = first * second;
    common / (area(x) + area(y) - common)
}

/// `[outer, extent, inner, count]`
fn top_k(values: &[u8], sizes: [usize; 4], largest: bool, dtype: DType) -> Vec<Vec<u8>> {
    let ([outer, extent, inner, count], size) = (sizes, dtype.bytes());
    let element = |at: usize| &values[at * size..][..size];
    let (mut found, mut places) = (vec![0; outer * count * inner * size], vec![0; outer * count * inner * 8]);
    for row in 0..outer * inner {
        let (o, i) = (row / inner, row % inner);
        let at = |place: usize| (o * extent + place) * inner + i;
        let mut order: Vec<usize> = (0..extent).collect();
        // stable: equal ones stay in their order
        order.sort_by(|a, b| {
            let order = compare(element(at(*a)), element(at(*b)), dtype);
            if largest { order.reverse() } else { order }
        });
        for (rank, place) in order.into_iter().take(count).enumerate() {
            let to = (o * count + rank) * inner + i;
            found[to * size..][..size].copy_from_slice(element(at(place)));
            places[to * 8..][..8].copy_from_slice(&(place as i64).to_le_bytes());
        }
    }
    vec![found, places]
}

/// The order of numbers, with NaN as the greatest.
fn compare(a: &[u8], b: &[u8], dtype: DType) -> Ordering {
    if !dtype.is_float() {
        return order_of_integers(integer_from_bytes(dtype, a), integer_from_bytes(dtype, b), dtype);
    }
    let (a, b) = (real_from_bytes(dtype, a), real_from_bytes(dtype, b));
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

fn scatter(data: &[u8], places: &[u8], updates: &[u8], block: usize, reduction: Reduction, dtype: DType) -> Vec<u8> {
    let mut result = data.to_vec();
    let (size, length) = (dtype.bytes(), block * dtype.bytes());
    for (place, update) in places.as_chunks::<8>().0.iter().zip(updates.chunks_exact(length)) {
        let first = usize::try_from(i64::from_le_bytes(*place)).ok().and_then(|place| place.checked_mul(length));
        // whoever computes places wraps them
        let Some(into) = first.and_then(|first| result.get_mut(first..first.checked_add(length)?)) else { continue };
        if reduction == Reduction::Replace {
            into.copy_from_slice(update);
            continue;
        }
        for (into, update) in into.chunks_exact_mut(size).zip(update.chunks_exact(size)) {
            combine(into, update, reduction, dtype);
        }
    }
    result
}

/// `[outer, first, rows, capacity, bytes of a row]`; rows that have no place are left out.
fn append(data: &[u8], added: &[u8], [outer, first, rows, capacity, row]: [usize; 5]) -> Vec<u8> {
    let mut result = data.to_vec();
    for part in 0..outer {
        let (to, from) = ((part * capacity + first) * row, part * rows * row);
        let (into, from) = (result.get_mut(to..to + rows * row), added.get(from..from + rows * row));
        if let (Some(into), Some(from)) = (into, from) {
            into.copy_from_slice(from);
        }
    }
    result
}

/// The order of integers that are held as i64, whose bits are those of u64 where the type has no sign.
fn order_of_integers(a: i64, b: i64, dtype: DType) -> Ordering {
    if dtype.is_signed() { a.cmp(&b) } else { (a as u64).cmp(&(b as u64)) }
}

/// Floats are rounded once, of integers the last bytes count. A NaN stays one.
fn combine(into: &mut [u8], update: &[u8], reduction: Reduction, dtype: DType) {
    if dtype.is_float() {
        let (a, b) = (real_from_bytes(dtype, into), real_from_bytes(dtype, update));
        let of_order = |wanted: Ordering| if a.is_nan() || a.partial_cmp(&b) == Some(wanted) { a } else { b };
        let value = match reduction {
            Reduction::Replace => b,
            Reduction::Add => a + b,
            Reduction::Multiply => a * b,
            Reduction::Maximum => of_order(Ordering::Greater),
            Reduction::Minimum => of_order(Ordering::Less),
        };
        let mut bytes = Vec::with_capacity(into.len());
        put_real(dtype, value, &mut bytes);
        into.copy_from_slice(&bytes);
        return;
    }
    let (a, b) = (integer_from_bytes(dtype, into), integer_from_bytes(dtype, update));
    let is_greater = order_of_integers(a, b, dtype) == Ordering::Greater;
    let value = match reduction {
        Reduction::Replace => b,
        Reduction::Add => a.wrapping_add(b),
        Reduction::Multiply => a.wrapping_mul(b),
        Reduction::Maximum => {
            if is_greater {
                a
            } else {
                b
            }
        }
        Reduction::Minimum => {
            if is_greater {
                b
            } else {
                a
            }
        }
    };
    into.copy_from_slice(&value.to_le_bytes()[..into.len()]);
}
