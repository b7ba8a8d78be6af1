//! NVIDIA devices, through the driver that is found at run time. The only owner of cudarc.

use std::panic::catch_unwind;

use cudarc::driver::{CudaContext, result};
use thiserror::Error;

/// Why no CUDA device can be used. Environment, always.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NoCuda {
    #[error("no driver: libcuda.so is not installed")]
    NoDriver,
    #[error("the driver has no device")]
    NoDevice,
    #[error("the driver does not work: {0}")]
    Driver(String),
}

/// The names of the devices, in the driver's order.
///
/// # Errors
/// [`NoCuda`] where there is none, or none that works.
pub fn devices() -> Result<Vec<String>, NoCuda> {
    // SAFETY: looks for the library and loads it, which runs its initialisers, as any use of the driver does.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err(NoCuda::NoDriver);
    }
    // a driver older than the symbols that are asked for panics
    catch_unwind(names).unwrap_or_else(|_| Err(NoCuda::Driver("it lacks functions of CUDA 13".into())))
}

fn names() -> Result<Vec<String>, NoCuda> {
    let failed = |error: cudarc::driver::DriverError| NoCuda::Driver(error.to_string());
    result::init().map_err(failed)?;
    let count = CudaContext::device_count().map_err(failed)?;
    if count <= 0 {
        return Err(NoCuda::NoDevice);
    }
    (0..count as usize).map(|at| CudaContext::new(at).and_then(|device| device.name()).map_err(failed)).collect()
}
