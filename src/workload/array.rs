//! Tensors with elements, for evaluating and for exchanging data with kernels.

use half::{bf16, f16};
use thiserror::Error;

use super::DType;

/// The elements of an [`Array`], in the type that it has in memory.
#[derive(Clone, PartialEq, Debug)]
pub enum Elements {
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
    I8(Vec<i8>),
    U8(Vec<u8>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    Bool(Vec<bool>),
}

/// A dense row-major tensor with its elements.
#[derive(Clone, PartialEq, Debug)]
pub struct Array {
    shape: Vec<i64>,
    elements: Elements,
}

/// Elements do not fit a shape: the caller's mistake.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ArrayError {
    #[error("shape {shape:?} has an extent below 0, or more elements than 64 bits can count")]
    Shape { shape: Vec<i64> },
    #[error("shape {shape:?} holds {expected} elements, {found} were given")]
    Count { shape: Vec<i64>, expected: usize, found: usize },
    #[error("{found} bytes do not divide into elements of {dtype}", dtype = dtype.name())]
    Bytes { dtype: DType, found: usize },
}

/// Runs the same code on whichever vector there is.
macro_rules! each_type {
    ($elements:expr, $vector:ident => $body:expr) => {
        match $elements {
            Elements::F32($vector) => $body,
            Elements::F16($vector) => $body,
            Elements::BF16($vector) => $body,
            Elements::I8($vector) => $body,
            Elements::U8($vector) => $body,
            Elements::I32($vector) => $body,
            Elements::I64($vector) => $body,
            Elements::Bool($vector) => $body,
        }
    };
}

impl Elements {
    /// `count` zeros.
    pub fn zeros(dtype: DType, count: usize) -> Elements {
        match dtype {
            DType::F32 => Elements::F32(vec![0.0; count]),
            DType::F16 => Elements::F16(vec![f16::ZERO; count]),
            DType::BF16 => Elements::BF16(vec![bf16::ZERO; count]),
            DType::I8 => Elements::I8(vec![0; count]),
            DType::U8 => Elements::U8(vec![0; count]),
            DType::I32 => Elements::I32(vec![0; count]),
            DType::I64 => Elements::I64(vec![0; count]),
            DType::Bool => Elements::Bool(vec![false; count]),
        }
    }

    pub fn len(&self) -> usize {
        each_type!(self, vector => vector.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn dtype(&self) -> DType {
        match self {
            Elements::F32(_) => DType::F32,
            Elements::F16(_) => DType::F16,
            Elements::BF16(_) => DType::BF16,
            Elements::I8(_) => DType::I8,
            Elements::U8(_) => DType::U8,
            Elements::I32(_) => DType::I32,
            Elements::I64(_) => DType::I64,
            Elements::Bool(_) => DType::Bool,
        }
    }
}

impl Array {
    /// # Errors
    /// [`ArrayError`] unless the shape holds exactly these elements.
    pub fn new(shape: Vec<i64>, elements: Elements) -> Result<Array, ArrayError> {
        let expected = count(&shape)?;
        if expected != elements.len() {
            return Err(ArrayError::Count { shape, expected, found: elements.len() });
        }
        Ok(Array { shape, elements })
    }

    /// # Errors
    /// [`ArrayError::Shape`] for a negative extent or more elements than can be counted.
    pub fn zeros(shape: Vec<i64>, dtype: DType) -> Result<Array, ArrayError> {
        let elements = Elements::zeros(dtype, count(&shape)?);
        Ok(Array { shape, elements })
    }

    /// From little-endian bytes.
    ///
    /// # Errors
    /// [`ArrayError`] unless the shape holds exactly these elements.
    pub fn from_bytes(shape: Vec<i64>, dtype: DType, bytes: &[u8]) -> Result<Array, ArrayError> {
        if !bytes.len().is_multiple_of(dtype.bytes()) {
            return Err(ArrayError::Bytes { dtype, found: bytes.len() });
        }
        let elements = match dtype {
            DType::F32 => Elements::F32(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
            DType::F16 => Elements::F16(bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b)).collect()),
            DType::BF16 => Elements::BF16(bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b)).collect()),
            DType::I8 => Elements::I8(bytes.iter().map(|b| b.cast_signed()).collect()),
            DType::U8 => Elements::U8(bytes.to_vec()),
            DType::I32 => Elements::I32(bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b)).collect()),
            DType::I64 => Elements::I64(bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect()),
            DType::Bool => Elements::Bool(bytes.iter().map(|b| *b != 0).collect()),
        };
        Array::new(shape, elements)
    }

    /// Little-endian, row-major.
    pub fn to_bytes(&self) -> Vec<u8> {
        match &self.elements {
            Elements::F32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Elements::F16(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Elements::BF16(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Elements::I8(v) => v.iter().map(|x| x.cast_unsigned()).collect(),
            Elements::U8(v) => v.clone(),
            Elements::I32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Elements::I64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Elements::Bool(v) => v.iter().map(|x| u8::from(*x)).collect(),
        }
    }

    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    pub fn dtype(&self) -> DType {
        self.elements.dtype()
    }

    pub fn elements(&self) -> &Elements {
        &self.elements
    }

    pub fn elements_mut(&mut self) -> &mut Elements {
        &mut self.elements
    }

    /// The elements, if they are f32.
    pub fn as_f32(&self) -> Option<&[f32]> {
        match &self.elements {
            Elements::F32(values) => Some(values),
            _ => None,
        }
    }

    /// The element at a position of the row-major order, as a number; `None` past the end.
    pub fn number(&self, at: usize) -> Option<f64> {
        match &self.elements {
            Elements::F32(v) => v.get(at).map(|x| f64::from(*x)),
            Elements::F16(v) => v.get(at).map(|x| x.to_f64()),
            Elements::BF16(v) => v.get(at).map(|x| x.to_f64()),
            Elements::I8(v) => v.get(at).map(|x| f64::from(*x)),
            Elements::U8(v) => v.get(at).map(|x| f64::from(*x)),
            Elements::I32(v) => v.get(at).map(|x| f64::from(*x)),
            Elements::I64(v) => v.get(at).map(|x| *x as f64),
            Elements::Bool(v) => v.get(at).map(|x| f64::from(u8::from(*x))),
        }
    }

    /// The same elements under another shape.
    ///
    /// # Errors
    /// [`ArrayError`] unless the shape holds as many elements.
    pub fn reshaped(&self, shape: Vec<i64>) -> Result<Array, ArrayError> {
        Array::new(shape, self.elements.clone())
    }
}

fn count(shape: &[i64]) -> Result<usize, ArrayError> {
    let product =
        shape.iter().try_fold(1i64, |product, extent| if *extent < 0 { None } else { product.checked_mul(*extent) });
    product.and_then(|p| usize::try_from(p).ok()).ok_or_else(|| ArrayError::Shape { shape: shape.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::{Array, ArrayError};
    use crate::workload::DType;

    #[test]
    fn bytes_round_trip_in_every_type() {
        use DType::*;
        for dtype in [F32, F16, BF16, I8, U8, I32, I64, Bool] {
            let bytes: Vec<u8> =
                (0..6 * dtype.bytes()).map(|i| if dtype == Bool { (i % 2) as u8 } else { i as u8 * 7 }).collect();
            let array = Array::from_bytes(vec![2, 3], dtype, &bytes).unwrap();
            assert_eq!(array.to_bytes(), bytes, "{}", dtype.name());
            assert_eq!(array.dtype(), dtype);
        }
    }

    #[test]
    fn wrong_sizes_are_refused() {
        assert!(matches!(Array::from_bytes(vec![2], DType::F32, &[0; 7]), Err(ArrayError::Bytes { found: 7, .. })));
        assert!(matches!(
            Array::from_bytes(vec![2], DType::F32, &[0; 4]),
            Err(ArrayError::Count { expected: 2, found: 1, .. })
        ));
        assert!(matches!(Array::zeros(vec![-1], DType::F32), Err(ArrayError::Shape { .. })));
        assert!(matches!(Array::zeros(vec![1 << 62, 4], DType::F32), Err(ArrayError::Shape { .. })));
    }
}
