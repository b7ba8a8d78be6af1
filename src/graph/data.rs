//! The elements of constants, and of inputs and outputs of the evaluator.

use std::fmt;

use crate::workload::{DType, integer_from_bytes, put_real, real_from_bytes};

/// Shared bytes: cloning and slicing copy nothing, and those that come from a file stay in the file's
/// mapping. They need not be aligned to the element type.
pub use prost::bytes::Bytes;

/// A dense tensor: its elements row-major and little-endian. A Boolean is one byte, 0 or 1.
#[derive(Clone, PartialEq)]
pub struct TensorData {
    pub shape: Vec<i64>,
    pub dtype: DType,
    pub bytes: Bytes,
}

impl TensorData {
    pub fn from_f32(shape: Vec<i64>, values: &[f32]) -> TensorData {
        TensorData { shape, dtype: DType::F32, bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect() }
    }

    /// Values of any type: rounded to floats, or truncated to integers.
    pub fn from_f64(shape: Vec<i64>, dtype: DType, values: impl IntoIterator<Item = f64>) -> TensorData {
        let mut bytes = Vec::new();
        values.into_iter().for_each(|value| put_real(dtype, value, &mut bytes));
        TensorData { shape, dtype, bytes: bytes.into() }
    }

    pub fn from_i64(shape: Vec<i64>, values: &[i64]) -> TensorData {
        TensorData { shape, dtype: DType::I64, bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect() }
    }

    pub fn from_bool(shape: Vec<i64>, values: &[bool]) -> TensorData {
        TensorData { shape, dtype: DType::Bool, bytes: values.iter().map(|v| u8::from(*v)).collect() }
    }

    pub fn elements(&self) -> i64 {
        self.shape.iter().product()
    }

    /// As many of its first elements as a shape has.
    #[must_use]
    pub fn leading(self, shape: Vec<i64>) -> TensorData {
        let bytes = shape.iter().product::<i64>().max(0) as usize * self.dtype.bytes();
        let bytes = self.bytes.slice(..bytes.min(self.bytes.len()));
        TensorData { shape, bytes, ..self }
    }

    /// The elements of an f32 tensor, in order; `None` for other types.
    pub fn f32s(&self) -> Option<Vec<f32>> {
        (self.dtype == DType::F32)
            .then(|| self.bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    /// The elements of an integer or Boolean tensor, in order; `None` for floats.
    pub fn integers(&self) -> Option<Vec<i64>> {
        let integer = |element: &[u8]| integer_from_bytes(self.dtype, element);
        (!self.dtype.is_float()).then(|| self.bytes.chunks_exact(self.dtype.bytes()).map(integer).collect())
    }

    /// The elements as f64, whatever their type.
    pub fn to_f64(&self) -> Vec<f64> {
        let real = |element: &[u8]| real_from_bytes(self.dtype, element);
        self.bytes.chunks_exact(self.dtype.bytes()).map(real).collect()
    }
}

/// Shows the first elements only: a constant may hold hundreds of megabytes.
impl fmt::Debug for TensorData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = self.bytes.len().min(8 * self.dtype.bytes());
        let few = TensorData { shape: vec![], dtype: self.dtype, bytes: self.bytes.slice(..start) };
        write!(f, "{} {:?} {:?}", self.dtype.name(), self.shape, few.to_f64())?;
        if start < self.bytes.len() { f.write_str(" ..") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_survive_the_way_through_bytes() {
        assert_eq!(TensorData::from_f32(vec![2], &[1.5, -2.0]).f32s(), Some(vec![1.5, -2.0]));
        assert_eq!(TensorData::from_i64(vec![2], &[i64::MIN, 7]).integers(), Some(vec![i64::MIN, 7]));
        assert_eq!(TensorData::from_bool(vec![2], &[true, false]).integers(), Some(vec![1, 0]));
        assert_eq!(TensorData::from_f32(vec![1], &[3.0]).integers(), None);
    }

    #[test]
    fn debug_output_is_short() {
        let data = TensorData::from_f32(vec![1000], &[0.5; 1000]);
        assert!(format!("{data:?}").len() < 100);
    }
}
