//! NVIDIA devices, through the driver that is found at run time. The only owner of cudarc.

mod bench;

pub(super) use bench::{CudaBench, CudaCompiled};

use std::panic::{UnwindSafe, catch_unwind};

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, DriverError, result};
use thiserror::Error;

use crate::target::TargetError;
use crate::target::gpu::{Capability, Gpu};

/// Why no CUDA device can be used. Environment, always.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NoCuda {
    #[error("no driver: libcuda.so is not installed")]
    NoDriver,
    #[error("the driver has no device")]
    NoDevice,
    #[error("there is no device {wanted}: the last is {}", .count - 1)]
    NoSuchDevice { wanted: usize, count: usize },
    #[error("device {number} is of {found}, and has less than the target, of {wanted}, or other instructions")]
    Other { number: usize, found: String, wanted: String },
    #[error("the driver does not work: {0}")]
    Driver(String),
    #[error(transparent)]
    Unknown(#[from] TargetError),
}

/// The names of the devices, in the driver's order.
///
/// # Errors
/// [`NoCuda`] where there is none, or none that works.
pub fn devices() -> Result<Vec<String>, NoCuda> {
    with_driver(|count| {
        (0..count).map(|at| CudaContext::new(at).and_then(|device| device.name()).map_err(failed)).collect()
    })
}

/// A device as a target, by its number in the driver's order.
///
/// # Errors
/// [`NoCuda`] where there is no such device, none that works, or none that we write kernels for.
pub fn detect(number: usize) -> Result<Gpu, NoCuda> {
    with_driver(move |count| {
        if number >= count {
            return Err(NoCuda::NoSuchDevice { wanted: number, count });
        }
        let device = CudaContext::new(number).map_err(failed)?;
        let ask =
            |what: Attribute| device.attribute(what).map_err(failed).map(|value| u32::try_from(value).unwrap_or(0));
        let (major, minor) = device.compute_capability().map_err(failed)?;
        let number = |value: i32| u32::try_from(value).unwrap_or(0);
        let clock_khz = u64::from(ask(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?);
        let bus_bits = u64::from(ask(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?);
        // two transfers in a cycle; newer drivers do not tell the clock of every memory
        let gb_per_s = u32::try_from(2 * clock_khz * bus_bits / 8 / 1_000_000).unwrap_or(0).max(1);
        let gpu = Gpu {
            capability: Capability::new(number(major), number(minor)).with_specific(),
            multiprocessors: ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_bytes_per_block: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            shared_bytes_per_multiprocessor: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
            registers_per_multiprocessor: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
            threads_per_multiprocessor: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
            blocks_per_multiprocessor: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR)?,
            l2_bytes: u64::from(ask(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
            memory_gb_per_s: gb_per_s,
        };
        Ok(gpu.validated()?)
    })
}

/// Whether a device runs what is written for a GPU: it is of the same generation, or a later one of the same
/// family, and has as much room.
///
/// # Errors
/// As [`detect`], and where it does not.
pub fn check_runs_on(gpu: &Gpu, number: usize) -> Result<(), NoCuda> {
    let here = detect(number)?;
    let (wanted, found) = (gpu.capability, here.capability);
    let fits = found.runs(wanted)
        && here.shared_bytes_per_block >= gpu.shared_bytes_per_block
        && here.registers_per_multiprocessor >= gpu.registers_per_multiprocessor;
    match fits {
        true => Ok(()),
        false => Err(NoCuda::Other { number, found: found.architecture(), wanted: wanted.architecture() }),
    }
}

/// Calls `ask` with the number of devices, at least one.
fn with_driver<T>(ask: impl FnOnce(usize) -> Result<T, NoCuda> + UnwindSafe) -> Result<T, NoCuda> {
    if !has_driver() {
        return Err(NoCuda::NoDriver);
    }
    let asked = move || {
        result::init().map_err(failed)?;
        match CudaContext::device_count().map_err(failed)? {
            count @ 1.. => ask(count.unsigned_abs() as usize),
            _ => Err(NoCuda::NoDevice),
        }
    };
    // a driver older than the symbols that are asked for panics
    catch_unwind(asked).unwrap_or_else(|_| Err(NoCuda::Driver("it lacks functions of CUDA 13".into())))
}

/// Whether the driver's library can be loaded.
#[cfg(not(feature = "cuda"))]
fn has_driver() -> bool {
    // SAFETY: looks for the library and loads it, which runs its initialisers, as any use of the driver does.
    unsafe { cudarc::driver::sys::is_culib_present() }
}

/// Whether the driver's library can be loaded. candle has cudarc linked to it, which would take it for
/// present: `link/link.c` stands in between.
#[cfg(feature = "cuda")]
fn has_driver() -> bool {
    unsafe extern "C" {
        safe fn tilescribe_has_driver() -> std::ffi::c_int;
    }
    tilescribe_has_driver() != 0
}

fn failed(error: DriverError) -> NoCuda {
    NoCuda::Driver(error.to_string())
}
