//! How far an output of a kernel may be from the oracle's.
//!
//! The oracle computes each stage in f64 and rounds once, where it stores. A kernel computes in f32 and
//! rounds at every operation, so the difference is the kernel's rounding. It has three parts, each for one
//! output alone:
//!
//! ```text
//! |x - y| <= (arithmetic + stored) (|y| + scale) + place |y|
//! ```
//!
//! - `arithmetic`: f32 computation, or f64 where a workload has no other floats. Summing n values of alike
//!   size in any order, with independent errors of single additions, gives a relative error of about √n·u,
//!   u = 2⁻²⁴ being the unit roundoff of f32 (Higham
//!   and Mary, "A new approach to probabilistic rounding error analysis", 2019). Allowed is 16 u √depth,
//!   where the depth is the number of roundings on the longest way from an argument to the output: the
//!   product of a stage's reduction extents, and its operators, added up along the chain of stages. The
//!   factor covers approximated functions (a few u each) and other orders of computation. A program by an
//!   algorithm that adds numbers of different size is allowed as much more as
//!   [`crate::nest::Nest::error_growth`] says.
//!   An angle of a sine is rounded to f32 as well, and how far that turns it is u times the angle; four such
//!   errors are allowed for angles beyond 1, which positions make.
//! - `stored`: values of 16 bits that are stored, or converted to, on the longest way to the output. Two
//!   values that differ by less than a place may be rounded to neighbours, which are 2u apart, u being the
//!   unit roundoff of that type. A sum of such errors, which are independent, grows as the sum of the values
//!   does.
//! - `place`: the store of the output itself, where it has 16 bits: one place of the element. f32 needs none,
//!   since `arithmetic` is larger.
//!
//! The scale is the root mean square of the oracle's output, for elements that cancellation made small. With
//! inputs as [`super::generate_inputs`] makes them, a sum of products that lacks a single step differs by
//! more, for f32 up to depths of about 100,000, for 16-bit outputs beyond 4,096. Where inputs must be
//! positive, since a logarithm or a root is taken, a lost step of a deep sum is smaller than a place of a
//! 16-bit output, and only f32 shows it.
//!
//! Sums that are *accumulated* in 16 bits, rounded at each step, err by more than a lost step does, from some
//! depth on: [`super::roundings::check_sums`] refuses those, since no check of them would be worth anything.
//! Import never makes such a sum.
//!
//! Integers and Booleans must be equal, but for integers that floats were rounded to: where the float is next
//! to a boundary, its error shows as the neighbour. Those may differ by 1 for each such rounding on the way,
//! or by as much as such a step becomes (see [`super::jump`]), in a thousandth of the elements. So may floats
//! that were rounded to whole numbers on the way. Where bytes are made of bytes, which may be all that is
//! left of what was bounded, one of the 256 may lead to a boundary: then in as many elements as have it, all
//! of which are the same, and are rounded to the same neighbour.
//! Means of n integers, as those of quantised images, lie halfway between two whole numbers one time in n
//! where they keep their scale: so many elements may be rounded to either.
//! NaN matches NaN, infinities match themselves.

use std::collections::HashMap;
use std::fmt;

use super::angle::angles;
use super::roundings::{Way, places};
use crate::workload::{Array, DType, Elements, Expr, TensorId, Workload};

/// The factor in front of u √depth.
const FACTOR: f64 = 16.0;

/// Roundings of an angle.
const ANGLES: f64 = 4.0;

/// One element in so many may be rounded to a neighbour.
const FEW: usize = 1000;
/// The same of equal elements, where what was rounded before is rounded again.
const FEW_OF_BYTES: usize = 256;

/// No output counts as smaller than this: inputs are of size 1.
const SMALLEST_SCALE: f64 = 1e-3;

/// For one output tensor.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tolerance {
    /// Relative error of f32 computation: 16 u √depth, and that of angles.
    pub arithmetic: f64,
    /// Relative error of the 16-bit values on the way to the output: 2u each.
    pub stored: f64,
    /// Relative distance of neighbours in the output's type, where it has 16 bits.
    pub place: f64,
    /// Distance of the output type's smallest numbers, where it has 16 bits.
    pub smallest_place: f64,
    /// Root mean square of the finite elements.
    pub scale: f64,
    /// Of integers: how often floats were rounded to integers on the way, each of which a neighbour may
    /// replace. Of floats: by how much they change where that happens.
    pub roundings: f64,
    /// Of what is rounded, the share that may lie halfway.
    pub halfway: f64,
}

/// An output that is not what it should be.
#[derive(Clone, PartialEq, Debug)]
pub struct Mismatch {
    pub tensor: TensorId,
    /// Position of the worst element in row-major order.
    pub at: usize,
    pub expected: f64,
    pub found: f64,
    /// Largest difference that is allowed.
    pub allowed: f64,
    /// Number of elements that differ too much.
    pub count: usize,
    /// Number of elements.
    pub of: usize,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { tensor, at, expected, found, allowed, count, of } = self;
        write!(f, "t{}: {count} of {of} elements differ; element {at} is {found} instead of {expected}", tensor.0)?;
        write!(f, ", off by {:e} where {allowed:e} is allowed", (found - expected).abs())
    }
}

impl Tolerance {
    /// For one output of a workload.
    pub fn new(workload: &Workload, tensor: TensorId, expected: &Array) -> Tolerance {
        let way = Way::to_each(workload)[tensor.0 as usize];
        if !expected.dtype().is_float() {
            let roundings = if expected.dtype() == DType::Bool { 0.0 } else { way.roundings };
            return Tolerance { roundings, halfway: way.halfway, ..Tolerance::EQUAL };
        }
        let (mut squares, mut count) = (0.0, 0_u32);
        for at in 0..expected.elements().len() {
            if let Some(value) = expected.number(at).filter(|v| v.is_finite()) {
                squares += value * value;
                count += 1;
            }
        }
        let (place, smallest_place) = places(expected.dtype());
        let beyond = (angles(workload)[tensor.0 as usize] - 1.0).max(0.0);
        Tolerance {
            arithmetic: unit_roundoff(workload) * (FACTOR * way.depth.sqrt() + ANGLES * beyond),
            stored: way.stored - place,
            place,
            smallest_place,
            scale: (squares / f64::from(count.max(1))).sqrt().max(SMALLEST_SCALE),
            roundings: way.jump,
            halfway: way.halfway,
        }
    }

    /// Of integers and Booleans.
    const EQUAL: Tolerance = Tolerance {
        arithmetic: 0.0,
        stored: 0.0,
        place: 0.0,
        smallest_place: 0.0,
        scale: 0.0,
        roundings: 0.0,
        halfway: 0.0,
    };

    /// For a program whose f32 rounding errors are larger by this factor.
    #[must_use]
    pub fn grown(self, factor: u32) -> Tolerance {
        Tolerance { arithmetic: self.arithmetic * f64::from(factor), ..self }
    }

    /// How far an element may be from `expected`.
    pub fn allowed(&self, expected: f64) -> f64 {
        let size = expected.abs();
        (self.arithmetic + self.stored) * (size + self.scale) + self.place * size + self.smallest_place
    }

    fn accepts(&self, expected: f64, found: f64) -> bool {
        // a NaN on one side fails the comparisons, and so does an infinity on the first
        (expected.is_finite() && (found - expected).abs() <= self.allowed(expected))
            || expected == found
            || (expected.is_nan() && found.is_nan())
    }

    /// Compares an output, little-endian and row-major, with what it should be.
    ///
    /// # Errors
    /// The worst element, and how many there are.
    pub fn compare(&self, tensor: TensorId, expected: &Array, found: &[u8]) -> Result<(), Mismatch> {
        if self.roundings > 0.0
            && let Ok(array) = Array::from_bytes(expected.shape().to_vec(), expected.dtype(), found)
            && self.are_neighbours(expected, &array)
        {
            return Ok(());
        }
        match expected.elements() {
            Elements::F32(values) if self.accepts_all(values, found) => Ok(()),
            Elements::F32(values) => self.worst(tensor, values.len(), &|at| {
                let bytes = found.as_chunks().0.get(at).copied();
                (f64::from(values[at]), bytes.map_or(f64::NAN, |b| f64::from(f32::from_le_bytes(b))))
            }),
            _ => match Array::from_bytes(expected.shape().to_vec(), expected.dtype(), found) {
                Ok(array) => match (expected.elements(), array.elements()) {
                    (Elements::I64(expected), Elements::I64(found)) => equal(tensor, expected, found),
                    (Elements::U64(expected), Elements::U64(found)) => equal(tensor, expected, found),
                    _ => self.worst(tensor, expected.elements().len(), &|at| {
                        (expected.number(at).unwrap_or(f64::NAN), array.number(at).unwrap_or(f64::NAN))
                    }),
                },
                Err(_) => self.worst(tensor, 1, &|_| (0.0, f64::NAN)),
            },
        }
    }

    /// The quick way out for the usual case; `false` leaves the decision to [`Tolerance::worst`].
    fn accepts_all(&self, expected: &[f32], found: &[u8]) -> bool {
        let found = found.as_chunks().0;
        let (per_size, constant) = (self.arithmetic + self.stored + self.place, self.allowed(0.0));
        let fits = |(x, y): (&[u8; 4], &f32)| {
            let (x, y) = (f64::from(f32::from_le_bytes(*x)), f64::from(*y));
            // the difference of two infinities is NaN, which fails
            (x - y).abs() - (per_size * y.abs() + constant) <= 0.0
        };
        found.len() == expected.len() && found.iter().zip(expected).fold(true, |all, pair| all & fits(pair))
    }

    /// Whether few elements differ, and none by more than the roundings explain.
    fn are_neighbours(&self, expected: &Array, found: &Array) -> bool {
        let count = expected.elements().len();
        let pairs = (0..count).filter_map(|at| Some((expected.number(at)?, found.number(at)?)));
        let mut different = 0;
        let mut all_near = true;
        let mut alike: HashMap<[u64; 2], usize> = HashMap::new();
        for (expected, found) in pairs.filter(|(expected, found)| !self.accepts(*expected, *found)) {
            different += 1;
            *alike.entry([expected, found].map(f64::to_bits)).or_default() += 1;
            // a NaN is near nothing
            all_near &= (found - expected).abs() - self.allowed(expected) <= self.roundings;
        }
        // integers, which are made of integers
        let is_of_bytes = self.arithmetic == 0.0 && self.roundings > 1.0;
        let same = alike.into_values().max().filter(|same| is_of_bytes && *same <= count / FEW_OF_BYTES);
        let few = (count / FEW).max((count as f64 * self.halfway) as usize);
        all_near && different - same.unwrap_or(0) <= few + 1
    }

    fn worst(&self, tensor: TensorId, of: usize, pair: &dyn Fn(usize) -> (f64, f64)) -> Result<(), Mismatch> {
        let mut worst: Option<Mismatch> = None;
        let mut excess = f64::NEG_INFINITY;
        let mut count = 0;
        for at in 0..of {
            let (expected, found) = pair(at);
            if self.accepts(expected, found) {
                continue;
            }
            count += 1;
            let allowed = self.allowed(expected);
            let off = (found - expected).abs() - allowed;
            if worst.is_none() || (off.is_nan() && excess < f64::INFINITY) || off > excess {
                // the first NaN stays: nothing is greater than it
                excess = if off.is_nan() { f64::INFINITY } else { off };
                worst = Some(Mismatch { tensor, at, expected, found, allowed, count, of });
            }
            if excess == f64::INFINITY && count > 1000 {
                break;
            }
        }
        worst.map_or(Ok(()), |mismatch| Err(Mismatch { count, ..mismatch }))
    }
}

/// Compares integers that f64 does not hold exactly.
fn equal<T: Copy + Into<i128>>(tensor: TensorId, expected: &[T], found: &[T]) -> Result<(), Mismatch> {
    let pairs = || expected.iter().zip(found).map(|(x, y)| ((*x).into(), (*y).into()));
    let differ = || pairs().enumerate().filter(|(_, (x, y))| x != y);
    match differ().max_by_key(|(_, (x, y))| x.abs_diff(*y)) {
        None => Ok(()),
        Some((at, (x, y))) => {
            let (expected_here, found) = (x as f64, y as f64);
            let (count, of) = (differ().count(), expected.len());
            Err(Mismatch { tensor, at, expected: expected_here, found, allowed: 0.0, count, of })
        }
    }
}

/// Of the shortest type that floats are computed in: f64 where nothing else is there, else f32.
fn unit_roundoff(workload: &Workload) -> f64 {
    fn is_wide(expr: &Expr) -> bool {
        match expr {
            // exact
            Expr::Cast(DType::F64, value) if matches!(**value, Expr::Float(_)) => true,
            Expr::Float(_) => false,
            Expr::Cast(dtype, _) | Expr::Bits(dtype, _) if dtype.is_float() && *dtype != DType::F64 => false,
            _ => expr.children().all(is_wide),
        }
    }
    let tensors = workload.tensors.iter().all(|tensor| !tensor.dtype.is_float() || tensor.dtype == DType::F64);
    let wide = tensors && workload.stages.iter().all(|stage| is_wide(&stage.value));
    if wide { DType::F64.unit_roundoff() } else { DType::F32.unit_roundoff() }
}

#[cfg(test)]
mod tests {
    use super::Tolerance;
    use crate::workload::{Array, Elements, TensorId};

    fn floats(values: &[f32]) -> Array {
        Array::new(vec![values.len() as i64], Elements::F32(values.to_vec())).unwrap()
    }

    #[test]
    fn the_worst_element_is_named() {
        let tolerance = Tolerance { arithmetic: 1e-6, scale: 1.0, ..Tolerance::EQUAL };
        let expected = floats(&[1.0, 2.0, f32::INFINITY, f32::NAN]);
        let compare = |found: &[f32]| tolerance.compare(TensorId(3), &expected, &floats(found).to_bytes());
        assert_eq!(compare(&[1.000_001, 2.0, f32::INFINITY, f32::NAN]), Ok(()));
        let mismatch = compare(&[1.1, 2.5, f32::INFINITY, f32::NAN]).unwrap_err();
        assert_eq!((mismatch.at, mismatch.count, mismatch.of), (1, 2, 4));
        let mismatch = compare(&[f32::NAN, 9.0, f32::NEG_INFINITY, 0.0]).unwrap_err();
        assert_eq!(mismatch.count, 4);
        assert!(mismatch.found.is_nan() || mismatch.found.is_infinite());
    }

    #[test]
    fn few_floats_may_be_rounded_to_a_neighbour() {
        let expected = Array::new(vec![300], Elements::I8(vec![5; 300])).unwrap();
        let accepts = |roundings: f64, count: usize, other: i8| {
            let found = (0..300).map(|at| if at < count { other } else { 5 }).collect();
            let found = Array::new(vec![300], Elements::I8(found)).unwrap().to_bytes();
            Tolerance { roundings, ..Tolerance::EQUAL }.compare(TensorId(0), &expected, &found).is_ok()
        };
        assert!(accepts(1.0, 0, 0) && accepts(1.0, 1, 6) && accepts(1.0, 1, 4));
        assert!(!accepts(1.0, 1, 7) && !accepts(1.0, 2, 6));
        // bytes of bytes: one of 256 may lie next to a boundary
        assert!(accepts(2.0, 1, 6) && !accepts(2.0, 3, 6));
        let expected = Array::new(vec![2560], Elements::U8(vec![5; 2560])).unwrap();
        let accepts = |roundings: f64, counts: [(usize, u8); 3]| {
            let others = counts.into_iter().flat_map(|(count, other)| std::iter::repeat_n(other, count));
            let found: Vec<u8> = others.chain(std::iter::repeat(5)).take(2560).collect();
            let found = Array::new(vec![2560], Elements::U8(found)).unwrap().to_bytes();
            Tolerance { roundings, ..Tolerance::EQUAL }.compare(TensorId(0), &expected, &found).is_ok()
        };
        assert!(accepts(2.0, [(10, 6), (2, 4), (1, 7)]) && !accepts(1.0, [(10, 6), (2, 4), (1, 7)]));
        assert!(!accepts(2.0, [(11, 6), (0, 4), (0, 7)]) && !accepts(2.0, [(10, 6), (3, 4), (1, 7)]));
        let workload = "input t0 300\nout t1 i8 300 cast i8 round mul t0 a 100.0\n".parse().unwrap();
        assert_eq!(Tolerance::new(&workload, TensorId(1), &expected).roundings, 1.0);
        let workload = "input t0 i8 300\nout t1 i8 300 add t0 a t0 a\n".parse().unwrap();
        assert_eq!(Tolerance::new(&workload, TensorId(1), &expected).roundings, 0.0);
    }

    #[test]
    fn means_of_integers_may_be_halfway_between_two() {
        let expected = Array::new(vec![300], Elements::U8(vec![5; 300])).unwrap();
        let of = |value: &str| {
            let text = format!(
                "input t0 u8 600 2\nlet t1 300 sum 2 2 {value}\n\
                 out t2 u8 300 cast u8 min 255.0 max 0.0 round mul 1112.586 mul 0.25 t1 a\n"
            );
            Tolerance::new(&text.parse().unwrap(), TensorId(2), &expected)
        };
        let mean = of("mul 0.00089880684 cast f32 sub cast i32 t0 + * 2 a b c cast i32 int 3");
        let accepts = |tolerance: &Tolerance, count: usize, other: u8| {
            let found = (0..300).map(|at| if at < count { other } else { 5 }).collect();
            let found = Array::new(vec![300], Elements::U8(found)).unwrap();
            tolerance.compare(TensorId(2), &expected, &found.to_bytes()).is_ok()
        };
        assert!(accepts(&mean, 75, 6) && accepts(&mean, 75, 4));
        assert!(!accepts(&mean, 150, 6) && !accepts(&mean, 2, 7));
        // a product of two tensors is no mean
        let product = of("mul cast f32 t0 + * 2 a b c cast f32 t0 a c");
        assert!(accepts(&product, 1, 6) && !accepts(&product, 75, 6));
    }

    #[test]
    fn few_whole_floats_may_be_neighbours() {
        let expected = floats(&[5.0; 300]);
        let roundings = |value: &str| {
            let text = format!("input t0 i32 300\nout t1 300 {value}\n");
            Tolerance::new(&text.parse().unwrap(), TensorId(1), &expected).roundings
        };
        assert_eq!(roundings("sub min 255.0 max 0.0 add 128.0 round mul 0.01 cast f32 t0 a 114.0"), 1.0);
        assert_eq!(roundings("mul 0.5 sub round mul 0.01 cast f32 t0 a 114.0"), 0.5);
        assert_eq!(roundings("exp round mul 0.01 cast f32 t0 a"), 0.0);
        assert_eq!(roundings("mul 0.01 cast f32 t0 a"), 0.0);
        let tolerance = Tolerance { arithmetic: 1e-6, scale: 5.0, roundings: 1.0, ..Tolerance::EQUAL };
        let compare = |count: usize, other: f32| {
            let found: Vec<f32> = (0..300).map(|at| if at < count { other } else { 5.0 }).collect();
            tolerance.compare(TensorId(0), &expected, &floats(&found).to_bytes())
        };
        assert!(compare(1, 6.0).is_ok() && compare(300, 5.000_001).is_ok());
        assert!(compare(1, 6.1).is_err() && compare(2, 6.0).is_err() && compare(1, f32::NAN).is_err());
    }

    #[test]
    fn integers_must_be_equal() {
        let tolerance = Tolerance::EQUAL;
        let expected = Array::new(vec![2], Elements::I64(vec![7, -1])).unwrap();
        assert_eq!(tolerance.compare(TensorId(0), &expected, &expected.to_bytes()), Ok(()));
        let other = Array::new(vec![2], Elements::I64(vec![7, -2])).unwrap();
        assert_eq!(tolerance.compare(TensorId(0), &expected, &other.to_bytes()).unwrap_err().at, 1);
        // f64 does not tell these apart
        let large = |last: i64| Array::new(vec![2], Elements::I64(vec![0, (1 << 60) + last])).unwrap();
        let mismatch = Tolerance::EQUAL.compare(TensorId(0), &large(0), &large(1).to_bytes()).unwrap_err();
        assert_eq!((mismatch.at, mismatch.count, mismatch.of), (1, 1, 2));
    }
}
