//! How far a kernel's output may be from the oracle's.
//!
//! The oracle computes each stage in f64 and rounds once, so the difference is the kernel's rounding. Summing
//! n values of alike size in any order, with the errors of single additions being independent, gives a
//! relative error of about √n·u, u being the unit roundoff (2⁻²⁴ for f32; Higham and Mary, "A new approach to
//! probabilistic rounding error analysis", 2019). Allowed is
//!
//! ```text
//! |x - y| <= 16 u √depth (|y| + scale)
//! ```
//!
//! where the depth is the number of roundings on the longest way from an argument to the output (the product
//! of a stage's reduction extents, or its operators, added up along the chain), and the scale is the root
//! mean square of the oracle's output, for elements that cancellation made small. The factor covers
//! approximated functions (a few u each) and other orders of computation. A program by an algorithm that adds
//! numbers of different size is allowed as much more as [`crate::nest::Nest::error_growth`] says. With inputs
//! as [`super::generate_inputs`] makes them, leaving out a single step of a reduction differs by much more,
//! up to depths of about 100,000. Integers and Booleans must be equal. NaN matches NaN, infinities match
//! themselves.

use std::fmt;

use crate::workload::{Array, Elements, Expr, TensorId, Workload};

/// The factor in front of u √depth.
const FACTOR: f64 = 16.0;

/// No output counts as smaller than this: inputs are of size 1.
const SMALLEST_SCALE: f64 = 1e-3;

/// For one output tensor.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tolerance {
    /// 16 u √depth; 0 for integers.
    pub relative: f64,
    /// Root mean square of the finite elements.
    pub scale: f64,
}

/// An output that is not what it should be.
#[derive(Clone, PartialEq, Debug)]
pub struct Mismatch {
    pub tensor: TensorId,
    /// Position of the worst element in row-major order.
    pub at: usize,
    pub expected: f64,
    pub found: f64,
    /// How far it might have been away.
    pub allowed: f64,
    /// Elements that differ too much.
    pub count: usize,
    /// Elements.
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
        if !expected.dtype().is_float() {
            return Tolerance { relative: 0.0, scale: 0.0 };
        }
        let floats = workload.tensors.iter().filter(|t| t.dtype.is_float());
        let roundoff = floats.map(|t| t.dtype.unit_roundoff()).fold(0.0, f64::max);
        let (mut squares, mut count) = (0.0, 0_u32);
        for at in 0..expected.elements().len() {
            if let Some(value) = expected.number(at).filter(|v| v.is_finite()) {
                squares += value * value;
                count += 1;
            }
        }
        Tolerance {
            relative: FACTOR * roundoff * depths(workload)[tensor.0 as usize].sqrt(),
            scale: (squares / f64::from(count.max(1))).sqrt().max(SMALLEST_SCALE),
        }
    }

    /// For a program whose rounding errors are so many times larger.
    #[must_use]
    pub fn grown(self, times: u32) -> Tolerance {
        Tolerance { relative: self.relative * f64::from(times), ..self }
    }

    /// How far an element may be from `expected`.
    pub fn allowed(&self, expected: f64) -> f64 {
        self.relative * (expected.abs() + self.scale)
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
        match expected.elements() {
            Elements::F32(values) if self.accepts_all(values, found) => Ok(()),
            Elements::F32(values) => self.worst(tensor, values.len(), &|at| {
                let bytes = found.as_chunks().0.get(at).copied();
                (f64::from(values[at]), bytes.map_or(f64::NAN, |b| f64::from(f32::from_le_bytes(b))))
            }),
            _ => match Array::from_bytes(expected.shape().to_vec(), expected.dtype(), found) {
                Ok(array) => self.worst(tensor, expected.elements().len(), &|at| {
                    (expected.number(at).unwrap_or(f64::NAN), array.number(at).unwrap_or(f64::NAN))
                }),
                Err(_) => self.worst(tensor, 1, &|_| (0.0, f64::NAN)),
            },
        }
    }

    /// The quick way out for the usual case; `false` leaves the decision to [`Tolerance::worst`].
    fn accepts_all(&self, expected: &[f32], found: &[u8]) -> bool {
        let found = found.as_chunks().0;
        let fits = |(x, y): (&[u8; 4], &f32)| {
            let (x, y) = (f64::from(f32::from_le_bytes(*x)), f64::from(*y));
            // the difference of two infinities is NaN, which fails
            (x - y).abs() - self.relative * (y.abs() + self.scale) <= 0.0
        };
        found.len() == expected.len() && found.iter().zip(expected).fold(true, |all, pair| all & fits(pair))
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

/// The number of roundings on the longest way to each tensor.
fn depths(workload: &Workload) -> Vec<f64> {
    let mut depths = vec![0.0; workload.tensors.len()];
    for stage in &workload.stages {
        let mut deepest: f64 = 0.0;
        stage.value.for_each_load(&mut |tensor, _| deepest = deepest.max(depths[tensor.0 as usize]));
        let reduced: f64 = stage.reduction.iter().map(|extent| *extent as f64).product();
        depths[stage.output.0 as usize] = deepest + reduced.max(1.0) + operators(&stage.value);
    }
    depths
}

fn operators(expr: &Expr) -> f64 {
    let own = if matches!(expr, Expr::Unary(..) | Expr::Binary(..)) { 1.0 } else { 0.0 };
    own + expr.children().map(operators).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::Tolerance;
    use crate::workload::{Array, DType, Elements, TensorId};

    fn floats(values: &[f32]) -> Array {
        Array::new(vec![values.len() as i64], Elements::F32(values.to_vec())).unwrap()
    }

    #[test]
    fn the_worst_element_is_named() {
        let tolerance = Tolerance { relative: 1e-6, scale: 1.0 };
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
    fn integers_must_be_equal() {
        let tolerance = Tolerance { relative: 0.0, scale: 0.0 };
        let expected = Array::new(vec![2], Elements::I64(vec![7, -1])).unwrap();
        assert_eq!(tolerance.compare(TensorId(0), &expected, &expected.to_bytes()), Ok(()));
        let other = Array::new(vec![2], Elements::I64(vec![7, -2])).unwrap();
        assert_eq!(tolerance.compare(TensorId(0), &expected, &other.to_bytes()).unwrap_err().at, 1);
        assert_eq!(expected.dtype(), DType::I64);
    }
}
