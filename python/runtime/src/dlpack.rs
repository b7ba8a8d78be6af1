//! Tensors of other libraries, lent through DLPack (<https://dmlc.github.io/dlpack>).
//!
//! A capsule that is never consumed gives its tensor back when it goes: lending for a call means to hold it.

use std::ffi::c_void;

use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};
use tilescribe_runtime::DType;

use crate::errors::Kind;

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    /// In elements; null where the tensor is dense and row-major.
    strides: *const i64,
    byte_offset: u64,
}

/// Memory of the host, plain or pinned for a GPU.
const HOST: [i32; 2] = [1, 3];
/// More dimensions than any library has.
const MAX_RANK: usize = 64;

/// A tensor in the host's memory, as long as the capsule lives.
#[derive(Debug)]
pub struct Lent<'py> {
    _capsule: Bound<'py, PyCapsule>,
    pub element: Option<DType>,
    pub shape: Vec<i64>,
    strides: Option<Vec<i64>>,
    pub data: *mut u8,
    /// As the library names it: kind and bits.
    spelled: (u8, u8),
}

impl<'py> Lent<'py> {
    /// Borrows from an object that has `__dlpack__`, or is what that returns; `None` for others.
    ///
    /// # Errors
    /// What `__dlpack__` raises, and an `InputError` for memory of other devices.
    pub fn new(object: &Bound<'py, PyAny>) -> PyResult<Option<Lent<'py>>> {
        let py = object.py();
        let capsule = match object.cast::<PyCapsule>() {
            Ok(capsule) => capsule.clone(),
            Err(_) => match object.getattr_opt(pyo3::intern!(py, "__dlpack__"))? {
                Some(lend) => lend.call0()?.cast_into::<PyCapsule>()?,
                None => return Ok(None),
            },
        };
        let pointer = capsule.pointer_checked(Some(c"dltensor"))?;
        // SAFETY: a capsule of this name holds a DLManagedTensor, which begins with the tensor.
        let tensor = unsafe { pointer.cast::<Tensor>().as_ref() };
        if !HOST.contains(&tensor.device) {
            let message = "the tensor is not in the host's memory: copy it there first (`.cpu()`)";
            return Err(Kind::Input.error(py, message));
        }
        let rank = usize::try_from(tensor.ndim).ok().filter(|rank| *rank <= MAX_RANK);
        let rank = rank.ok_or_else(|| Kind::Input.error(py, "a tensor of an impossible rank"))?;
        let list = |pointer: *const i64| match rank {
            0 => Vec::new(),
            // SAFETY: the tensor has as many extents and strides as its rank.
            _ => unsafe { std::slice::from_raw_parts(pointer, rank) }.to_vec(),
        };
        let strides = (!tensor.strides.is_null()).then(|| list(tensor.strides));
        let data = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
        let element = if tensor.lanes == 1 { element(tensor.code, tensor.bits) } else { None };
        let (shape, spelled) = (list(tensor.shape), (tensor.code, tensor.bits));
        Ok(Some(Lent { _capsule: capsule, element, shape, strides, data, spelled }))
    }

    /// Whether its elements lie as the runtime reads them.
    pub fn is_dense(&self) -> bool {
        let Some(strides) = &self.strides else { return true };
        let mut dense = 1;
        for (extent, stride) in self.shape.iter().zip(strides).rev() {
            if *extent != 1 && *stride != dense {
                return self.shape.contains(&0);
            }
            dense *= extent;
        }
        true
    }

    /// Its elements, dense and row-major.
    pub fn copied(&self, size: usize) -> Vec<u8> {
        let elements: i64 = self.shape.iter().product();
        let mut copy = Vec::with_capacity(elements.max(0) as usize * size);
        let mut index = vec![0i64; self.shape.len()];
        let strides = self.strides.as_deref().unwrap_or_default();
        for _ in 0..elements {
            let offset: i64 = index.iter().zip(strides).map(|(at, stride)| at * stride).sum();
            // SAFETY: the index lies within the shape, so the element is the tensor's.
            let bytes = unsafe { std::slice::from_raw_parts(self.data.offset(offset as isize * size as isize), size) };
            copy.extend_from_slice(bytes);
            for (at, extent) in index.iter_mut().zip(&self.shape).rev() {
                *at += 1;
                if *at < *extent {
                    break;
                }
                *at = 0;
            }
        }
        copy
    }

    /// Its type in words.
    pub fn type_name(&self) -> String {
        match self.element {
            Some(element) => element.name().to_string(),
            None => format!("DLPack's type {} of {} bits", self.spelled.0, self.spelled.1),
        }
    }
}

/// By DLPack's kind and number of bits.
fn element(code: u8, bits: u8) -> Option<DType> {
    let element = match (code, bits) {
        (0, 8) => DType::I8,
        (0, 16) => DType::I16,
        (0, 32) => DType::I32,
        (0, 64) => DType::I64,
        (1, 8) => DType::U8,
        (1, 16) => DType::U16,
        (1, 32) => DType::U32,
        (1, 64) => DType::U64,
        (2, 16) => DType::F16,
        (2, 32) => DType::F32,
        (2, 64) => DType::F64,
        (4, 16) => DType::BF16,
        (6, 8) => DType::Bool,
        _ => return None,
    };
    Some(element)
}
