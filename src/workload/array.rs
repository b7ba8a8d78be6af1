//! Tensors with elements, for evaluating and for exchanging data with kernels.

use half::{bf16, f16};
use thiserror::Error;

use super::DType;
use super::scalar::{to_bf16, to_f16, to_integer};

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

/// An element of an array.
pub(super) trait Element: Copy + Default + Send + Sync {
    /// From its little-endian bytes.
    fn from_bytes(bytes: &[u8]) -> Self;
    /// Appends its little-endian bytes.
    fn put(self, bytes: &mut Vec<u8>);
    fn real(self) -> f64;
    /// Floats are truncated; of u64, its bits.
    fn integer(self) -> i64;
    /// The nearest float; of integers, the low bits of the truncated value.
    fn from_real(x: f64) -> Self;
    /// The low bits, or the nearest float.
    fn from_integer(x: i64) -> Self;
}

macro_rules! element {
    ($type:ty, $real:expr, $integer:expr, $from_real:expr, $from_integer:expr) => {
        impl Element for $type {
            fn from_bytes(bytes: &[u8]) -> Self {
                bytes.try_into().map_or_else(|_| Self::default(), Self::from_le_bytes)
            }

            fn put(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }

            fn real(self) -> f64 {
                let real: fn($type) -> f64 = $real;
                real(self)
            }

            fn integer(self) -> i64 {
                let integer: fn($type) -> i64 = $integer;
                integer(self)
            }

            fn from_real(x: f64) -> Self {
                let from_real: fn(f64) -> $type = $from_real;
                from_real(x)
            }

            fn from_integer(x: i64) -> Self {
                let from_integer: fn(i64) -> $type = $from_integer;
                from_integer(x)
            }
        }
    };
}

element!(f32, |x| f64::from(x), |x| x as i64, |x| x as f32, |x| x as f64 as f32);
element!(f16, |x| x.to_f64(), |x| x.to_f64() as i64, to_f16, |x| to_f16(x as f64));
element!(bf16, |x| x.to_f64(), |x| x.to_f64() as i64, to_bf16, |x| to_bf16(x as f64));
element!(i8, |x| f64::from(x), |x| i64::from(x), |x| x as i64 as i8, |x| x as i8);
element!(u8, |x| f64::from(x), |x| i64::from(x), |x| x as i64 as u8, |x| x as u8);
element!(i32, |x| f64::from(x), |x| i64::from(x), |x| x as i64 as i32, |x| x as i32);
element!(i64, |x| x as f64, |x| x, |x| x as i64, |x| x);
element!(f64, |x| x, |x| x as i64, |x| x, |x| x as f64);
element!(i16, |x| f64::from(x), |x| i64::from(x), |x| x as i64 as i16, |x| x as i16);
element!(u16, |x| f64::from(x), |x| i64::from(x), |x| x as i64 as u16, |x| x as u16);
element!(u32, |x| f64::from(x), |x| i64::from(x), |x| x as i64 as u32, |x| x as u32);
element!(u64, |x| x as f64, |x| x.cast_signed(), |x| to_integer(DType::U64, x).cast_unsigned(), |x| x.cast_unsigned());

impl Element for bool {
    fn from_bytes(bytes: &[u8]) -> bool {
        bytes.iter().any(|byte| *byte != 0)
    }

    fn put(self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(self));
    }

    fn real(self) -> f64 {
        f64::from(u8::from(self))
    }

    fn integer(self) -> i64 {
        i64::from(self)
    }

    fn from_real(x: f64) -> bool {
        x as i64 != 0
    }

    fn from_integer(x: i64) -> bool {
        x != 0
    }
}

/// The vectors, and the same code for whichever there is.
macro_rules! elements {
    ($($dtype:ident($type:ty),)*) => {
        /// The elements of an [`Array`], in the type that it has in memory.
        #[derive(Clone, PartialEq, Debug)]
        pub enum Elements {
            $($dtype(Vec<$type>),)*
        }

        macro_rules! each_type {
            ($elements:expr, $vector:ident => $body:expr) => {
                match $elements {
                    $(Elements::$dtype($vector) => $body,)*
                }
            };
        }

        impl Elements {
            /// `count` zeros.
            pub fn zeros(dtype: DType, count: usize) -> Elements {
                match dtype {
                    $(DType::$dtype => Elements::$dtype(vec![<$type>::default(); count]),)*
                }
            }

            pub fn dtype(&self) -> DType {
                match self {
                    $(Elements::$dtype(_) => DType::$dtype,)*
                }
            }

            fn from_bytes(dtype: DType, bytes: &[u8]) -> Elements {
                match dtype {
                    $(DType::$dtype => Elements::$dtype(
                        bytes.chunks_exact(size_of::<$type>()).map(Element::from_bytes).collect(),
                    ),)*
                }
            }
        }

        /// The number that an element's little-endian bytes hold.
        pub fn real_from_bytes(dtype: DType, bytes: &[u8]) -> f64 {
            match dtype {
                $(DType::$dtype => <$type>::from_bytes(bytes).real(),)*
            }
        }

        /// The integer that an element's little-endian bytes hold; floats are truncated, a u64 is its bits.
        pub fn integer_from_bytes(dtype: DType, bytes: &[u8]) -> i64 {
            match dtype {
                $(DType::$dtype => <$type>::from_bytes(bytes).integer(),)*
            }
        }

        /// Appends the little-endian bytes of an element: the nearest float; of integers, the low bits.
        pub fn put_real(dtype: DType, x: f64, bytes: &mut Vec<u8>) {
            match dtype {
                $(DType::$dtype => <$type>::from_real(x).put(bytes),)*
            }
        }

        /// Appends the little-endian bytes of an element: the low bits, or the nearest float.
        pub fn put_integer(dtype: DType, x: i64, bytes: &mut Vec<u8>) {
            match dtype {
                $(DType::$dtype => <$type>::from_integer(x).put(bytes),)*
            }
        }
    };
}

elements! {
    F32(f32),
    F16(f16),
    BF16(bf16),
    I8(i8),
    U8(u8),
    I32(i32),
    I64(i64),
    Bool(bool),
    I16(i16),
    U16(u16),
    U32(u32),
    U64(u64),
    F64(f64),
}

pub(super) use each_type;

impl Elements {
    pub fn len(&self) -> usize {
        each_type!(self, vector => vector.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
        let elements = Elements::from_bytes(dtype, bytes);
        Array::new(shape, elements)
    }

    /// Little-endian, row-major.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.elements.len() * self.dtype().bytes());
        each_type!(&self.elements, vector => vector.iter().for_each(|x| x.put(&mut bytes)));
        bytes
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
        each_type!(&self.elements, vector => vector.get(at).map(|x| x.real()))
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
        for dtype in DType::ALL {
            let is_boolean = dtype == DType::Bool;
            let bytes: Vec<u8> =
                (0..6 * dtype.bytes()).map(|i| if is_boolean { (i % 2) as u8 } else { i as u8 * 7 }).collect();
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
