//! What the library of an artifact says of inputs, outputs and states.

use std::ffi::c_char;

use super::manifest::Port;

/// As the header declares it.
#[repr(C)]
pub(super) struct CTensor {
    pub(super) name: *const c_char,
    pub(super) shape: *const i64,
    bytes: u64,
    rank: u32,
    dtype: u32,
}

/// Whether the library says the same of a port.
///
/// # Safety
/// The tensor must have as many extents as its rank says.
pub(super) unsafe fn describes(tensor: &CTensor, port: &Port) -> bool {
    // SAFETY: as the caller says.
    let shape = unsafe { std::slice::from_raw_parts(tensor.shape, tensor.rank as usize) };
    let same_type = port.dtype().is_some_and(|dtype| dtype.number() == tensor.dtype);
    same_type && shape == port.shape && port.bytes().is_some_and(|bytes| bytes as u64 == tensor.bytes)
}
