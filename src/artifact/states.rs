//! What a loaded network keeps from one run to the next.

use std::ffi::{c_int, c_void};
use std::path::Path;

use libloading::os::unix::{Library, Symbol};

use super::error::ArtifactError;
use super::manifest::{Manifest, StatePort};
use super::model::{CTensor, Model, describes};
use crate::graph::TensorData;

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
}

impl Model {
    fn state_functions(&self) -> Result<&StateFunctions, ArtifactError> {
        self.states.as_ref().ok_or_else(|| ArtifactError::Input("the network keeps no states".into()))
    }

    fn state_port(&self, number: usize) -> Result<&StatePort, ArtifactError> {
        let missing = || ArtifactError::Input(format!("the network has no state {number}"));
        self.manifest().states.get(number).ok_or_else(missing)
    }

    /// Forgets what runs have left: states are zero, and those that grow have no rows.
    ///
    /// # Errors
    /// [`ArtifactError::Input`] where the network keeps no states.
    pub fn reset(&self) -> Result<(), ArtifactError> {
        // SAFETY: the handle is alive.
        self.checked(unsafe { (self.state_functions()?.reset)(self.handle()) })
    }

    /// Takes states that grow back to their first `rows` rows.
    ///
    /// # Errors
    /// [`ArtifactError::Machine`] where one of them has fewer, or is replaced by every run.
    pub fn rewind(&self, rows: i64) -> Result<(), ArtifactError> {
        // SAFETY: the handle is alive.
        self.checked(unsafe { (self.state_functions()?.rewind)(self.handle(), rows) })
    }

    /// The shape of a state, as the next run finds it.
    ///
    /// # Errors
    /// [`ArtifactError::Input`] where there is no such state.
    pub fn state_shape(&self, number: usize) -> Result<Vec<i64>, ArtifactError> {
        let (functions, port) = (self.state_functions()?, &self.state_port(number)?.input);
        let mut shape = vec![0; port.shape.len()];
        // SAFETY: the handle is alive, and the array has as many elements as the state's rank, which the
        // manifest and the library agree about.
        self.checked(unsafe { (functions.shape)(self.handle(), number, shape.as_mut_ptr()) })?;
        Ok(shape)
    }

    /// A copy of a state, as the next run finds it.
    ///
    /// # Errors
    /// [`ArtifactError::Input`] where there is no such state, [`ArtifactError::Machine`] before extents are
    /// known.
    pub fn state(&self, number: usize) -> Result<TensorData, ArtifactError> {
        let (functions, port) = (self.state_functions()?, &self.state_port(number)?.input);
        let shape = self.state_shape(number)?;
        let unknown = || ArtifactError::Internal(format!("the library says that `{}` is {shape:?}", port.name));
        let (dtype, size) = (port.dtype().ok_or_else(unknown)?, port.bytes_at(&shape).ok_or_else(unknown)?);
        let mut bytes = vec![0u8; size];
        // SAFETY: the array has the bytes of the shape that the library says.
        self.checked(unsafe { (functions.get)(self.handle(), number, bytes.as_mut_ptr().cast()) })?;
        Ok(TensorData { shape, dtype, bytes: bytes.into() })
    }

    /// Makes a state what the next run finds. Of states that grow, all need as many rows before that.
    ///
    /// # Errors
    /// [`ArtifactError::Input`] where type or shape are not the state's.
    pub fn set_state(&self, number: usize, data: &TensorData) -> Result<(), ArtifactError> {
        let (functions, port) = (self.state_functions()?, &self.state_port(number)?.input);
        let fits = port.dtype() == Some(data.dtype)
            && port.admits(&data.shape)
            && port.bytes_at(&data.shape) == Some(data.bytes.len());
        if !fits {
            let (name, wanted) = (&port.name, port.shape_text());
            let reason =
                format!("state `{name}` is {}[{wanted}], {}{:?} was given", port.dtype, data.dtype.name(), data.shape);
            return Err(ArtifactError::Input(reason));
        }
        // SAFETY: the handle is alive, the shape has the state's rank, and the array its bytes.
        self.checked(unsafe { (functions.set)(self.handle(), number, data.shape.as_ptr(), data.bytes.as_ptr().cast()) })
    }
}
