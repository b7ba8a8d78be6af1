//! What a loaded network keeps from one run to the next.

use std::ffi::{c_int, c_void};
use std::path::Path;

use libloading::os::unix::{Library, Symbol};

use super::described::{CTensor, describes};
use super::error::ArtifactError;
use super::manifest::Manifest;

type State = unsafe extern "C" fn(usize) -> *const CTensor;
type Reset = unsafe extern "C" fn(*mut c_void) -> c_int;
type Rewind = unsafe extern "C" fn(*mut c_void, i64) -> c_int;
type StateShape = unsafe extern "C" fn(*mut c_void, usize, *mut i64) -> c_int;
type GetState = unsafe extern "C" fn(*mut c_void, usize, *mut c_void) -> c_int;
type SetState = unsafe extern "C" fn(*mut c_void, usize, *const i64, *const c_void) -> c_int;

/// The functions of a library about states.
#[derive(Debug)]
pub(super) struct StateFunctions {
    reset: Symbol<Reset>,
    rewind: Symbol<Rewind>,
    shape: Symbol<StateShape>,
    get: Symbol<GetState>,
    set: Symbol<SetState>,
}

impl StateFunctions {
    /// Finds them, where the network keeps any states.
    ///
    /// # Errors
    /// [`ArtifactError::Invalid`] where the library lacks them, or means others than the manifest.
    ///
    /// # Safety
    /// The library must be one that `compile` linked.
    pub unsafe fn of(
        manifest: &Manifest,
        library: &Library,
        path: &Path,
    ) -> Result<Option<StateFunctions>, ArtifactError> {
        if manifest.states.is_empty() {
            return Ok(None);
        }
        let invalid = |error: libloading::Error| ArtifactError::invalid(path, error.to_string());
        let symbol = |function: &str| format!("{}_{function}", manifest.name).into_bytes();
        // SAFETY: the functions have the types that the header declares, and a tensor as many extents as its
        // rank.
        unsafe {
            let state: Symbol<State> = library.get(&symbol("state")[..]).map_err(invalid)?;
            for (number, port) in manifest.states.iter().enumerate() {
                let found = state(number);
                if found.is_null() || !describes(&*found, &port.input) {
                    let reason = format!("the state `{}` is not that of the manifest", port.input.name);
                    return Err(ArtifactError::invalid(path, reason));
                }
            }
            Ok(Some(StateFunctions {
                reset: library.get(&symbol("reset")[..]).map_err(invalid)?,
                rewind: library.get(&symbol("rewind")[..]).map_err(invalid)?,
                shape: library.get(&symbol("state_shape")[..]).map_err(invalid)?,
                get: library.get(&symbol("get_state")[..]).map_err(invalid)?,
                set: library.get(&symbol("set_state")[..]).map_err(invalid)?,
            }))
        }
    }

    /// # Safety
    /// For this and the functions below: the handle must be a living model of the library, arrays must have
    /// what the state's rank and shape say, and the status is the library's.
    pub unsafe fn reset(&self, handle: *mut c_void) -> c_int {
        // SAFETY: as the caller says.
        unsafe { (self.reset)(handle) }
    }

    /// # Safety
    /// As for [`StateFunctions::reset`].
    pub unsafe fn rewind(&self, handle: *mut c_void, rows: i64) -> c_int {
        // SAFETY: as the caller says.
        unsafe { (self.rewind)(handle, rows) }
    }

    /// # Safety
    /// As for [`StateFunctions::reset`].
    pub unsafe fn shape(&self, handle: *mut c_void, number: usize, shape: &mut [i64]) -> c_int {
        // SAFETY: as the caller says.
        unsafe { (self.shape)(handle, number, shape.as_mut_ptr()) }
    }

    /// # Safety
    /// As for [`StateFunctions::reset`].
    pub unsafe fn get(&self, handle: *mut c_void, number: usize, bytes: &mut [u8]) -> c_int {
        // SAFETY: as the caller says.
        unsafe { (self.get)(handle, number, bytes.as_mut_ptr().cast()) }
    }

    /// # Safety
    /// As for [`StateFunctions::reset`].
    pub unsafe fn set(&self, handle: *mut c_void, number: usize, shape: &[i64], bytes: &[u8]) -> c_int {
        // SAFETY: as the caller says.
        unsafe { (self.set)(handle, number, shape.as_ptr(), bytes.as_ptr().cast()) }
    }
}
