//! The C functions of an artifact's library, found and compared with the manifest: memory is allocated by
//! what the one says, and used by what the other says.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;

use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW, Symbol};

use crate::error::RuntimeError;
use crate::manifest::Manifest;
use crate::port::Port;
use crate::target::Kind;

type Create = unsafe extern "C" fn(*const c_char, c_int, *mut *mut c_void) -> c_int;
type Run = unsafe extern "C" fn(*mut c_void, *const *const c_void, *const *mut c_void) -> c_int;
type Destroy = unsafe extern "C" fn(*mut c_void);
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;
type Tensors = unsafe extern "C" fn(*mut usize) -> *const CTensor;
pub type WriteTrace = unsafe extern "C" fn(*mut c_void, *mut Event, u64, *mut u64) -> c_int;
pub type Poison = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
pub type TimeCold = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
pub type TakeTurns = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
/// What runs a part of a loop: context, begin, end, number of the thread.
type Body = unsafe extern "C" fn(*mut c_void, i64, i64, i64);
/// What shares a loop between threads: body, context, iterations, threads.
pub type Pool = unsafe extern "C" fn(Body, *mut c_void, i64, i64);
type ShareThreads = unsafe extern "C" fn(*mut c_void, Option<Pool>) -> c_int;
type OwnThreads = unsafe extern "C" fn() -> Option<Pool>;
type EndThreads = unsafe extern "C" fn() -> c_int;
type PinThreads = unsafe extern "C" fn(c_int) -> c_int;
pub type ShareWeights = unsafe extern "C" fn(c_int) -> c_int;
pub type Profile = unsafe extern "C" fn(*mut c_void, *mut u64) -> c_int;
type Launch = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type Wait = unsafe extern "C" fn(*mut c_void) -> c_int;
type SetExtents = unsafe extern "C" fn(*mut c_void, *const *const i64) -> c_int;
type OutputShape = unsafe extern "C" fn(*mut c_void, usize, *mut i64) -> c_int;
type Message = unsafe extern "C" fn(*mut c_void) -> *const c_char;
type Least = unsafe extern "C" fn(usize) -> *const i64;
type MissingFeature = unsafe extern "C" fn() -> *const c_char;
type State = unsafe extern "C" fn(usize) -> *const CTensor;
type Reset = unsafe extern "C" fn(*mut c_void) -> c_int;
type Rewind = unsafe extern "C" fn(*mut c_void, i64) -> c_int;
type StateShape = unsafe extern "C" fn(*mut c_void, usize, *mut i64) -> c_int;
type GetState = unsafe extern "C" fn(*mut c_void, usize, *mut c_void) -> c_int;
type SetState = unsafe extern "C" fn(*mut c_void, usize, *const i64, *const c_void) -> c_int;

/// A tensor as the header declares it.
#[repr(C)]
struct CTensor {
    name: *const c_char,
    shape: *const i64,
    bytes: u64,
    rank: u32,
    dtype: u32,
}

/// What a thread did for a while, as the library writes it down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Event {
    /// In nanoseconds of the machine's monotonic clock.
    pub begin: u64,
    pub end: u64,
    /// In the order of the manifest.
    pub call: u32,
    /// 0 is the caller.
    pub thread: u16,
    what: u16,
}

/// What an [`Event`] is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activity {
    /// A call as a whole.
    Call,
    /// A thread's part of a parallel loop in it.
    Loop,
    /// The wait of whoever started a loop for the other threads.
    Wait,
    /// All strands of a fork: calls that may run at the same time. Its call is the first of them.
    Fork,
}

impl Event {
    pub fn activity(&self) -> Activity {
        match self.what {
            1 => Activity::Loop,
            2 => Activity::Wait,
            3 => Activity::Fork,
            _ => Activity::Call,
        }
    }

    /// In nanoseconds.
    pub fn duration(&self) -> u64 {
        self.end.saturating_sub(self.begin)
    }
}

/// A loaded library. Its functions have the types that the header declares.
#[derive(Debug)]
pub struct Library {
    pub create: Symbol<Create>,
    pub run: Symbol<Run>,
    pub destroy: Symbol<Destroy>,
    error_string: Symbol<ErrorString>,
    missing_feature: Symbol<MissingFeature>,
    /// On a CPU; libraries that older versions linked lack it.
    pub profile: Option<Symbol<Profile>>,
    /// The same.
    pub trace: Option<Symbol<WriteTrace>>,
    /// The same.
    pub share_weights: Option<Symbol<ShareWeights>>,
    /// The same.
    pub poison: Option<Symbol<Poison>>,
    /// The same.
    pub time_cold: Option<Symbol<TimeCold>>,
    /// The same.
    pub take_turns: Option<Symbol<TakeTurns>>,
    /// The same.
    pub threads: Option<ThreadFunctions>,
    /// On a GPU: to start a run on what the device holds, and to wait for it.
    pub on_device: Option<OnDevice>,
    /// Where extents are known only at run time.
    pub extents: Option<ExtentFunctions>,
    /// Where states are kept.
    pub states: Option<StateFunctions>,
    /// Last, so that it outlives what points into it.
    _loaded: Loaded,
}

#[derive(Debug)]
pub struct OnDevice {
    pub launch: Symbol<Launch>,
    pub wait: Symbol<Wait>,
}

/// Whose threads run the loops of a model.
#[derive(Debug)]
pub struct ThreadFunctions {
    pub share: Symbol<ShareThreads>,
    pub own: Symbol<OwnThreads>,
    pub end: Symbol<EndThreads>,
    pub pin: Symbol<PinThreads>,
}

/// What the library says of the extents of a run.
#[derive(Debug)]
pub struct ExtentFunctions {
    pub set: Symbol<SetExtents>,
    pub output_shape: Symbol<OutputShape>,
    pub message: Symbol<Message>,
}

/// What the library says of states.
#[derive(Debug)]
pub struct StateFunctions {
    pub reset: Symbol<Reset>,
    pub rewind: Symbol<Rewind>,
    pub shape: Symbol<StateShape>,
    pub get: Symbol<GetState>,
    pub set: Symbol<SetState>,
}

impl Library {
    /// Loads the library of an artifact.
    ///
    /// # Errors
    /// [`RuntimeError::Invalid`] where it lacks a function, or says other than the manifest.
    ///
    /// # Safety
    /// The library must be one that Tilescribe linked: loading executes code of it.
    pub unsafe fn load(manifest: &Manifest, path: &Path) -> Result<Library, RuntimeError> {
        // SAFETY: as the caller says, and the functions have the types of their names.
        unsafe {
            let loaded = Loaded::open(Some(path), RTLD_NOW | RTLD_LOCAL).map_err(|error| invalid(path, &error))?;
            let functions = Functions { loaded: &loaded, manifest, path };
            functions.check_ports()?;
            Ok(Library {
                create: functions.find("create")?,
                run: functions.find("run")?,
                destroy: functions.find("destroy")?,
                error_string: functions.find("error_string")?,
                missing_feature: functions.find("missing_feature")?,
                profile: functions.find("profile").ok(),
                trace: functions.find("trace").ok(),
                share_weights: functions.find("share_weights").ok(),
                poison: functions.find("poison").ok(),
                time_cold: functions.find("time_cold").ok(),
                take_turns: functions.find("take_turns").ok(),
                threads: functions.of_threads(),
                on_device: functions.on_device()?,
                extents: functions.of_extents()?,
                states: functions.of_states()?,
                _loaded: loaded,
            })
        }
    }

    /// What this machine lacks, by LLVM's name.
    pub fn missing_feature(&self) -> Option<String> {
        // SAFETY: returns a string that lives as long as the library, or null.
        unsafe {
            let missing = (self.missing_feature)();
            (!missing.is_null()).then(|| CStr::from_ptr(missing).to_string_lossy().into_owned())
        }
    }

    /// What a status means.
    pub fn text(&self, status: c_int) -> String {
        // SAFETY: returns a string that lives as long as the library, for every number.
        unsafe { CStr::from_ptr((self.error_string)(status)) }.to_string_lossy().into_owned()
    }
}

/// What the loader says is the cause of what is said of it.
fn invalid(path: &Path, error: &libloading::Error) -> RuntimeError {
    let cause = error.source().map_or_else(String::new, |cause| format!(": {cause}"));
    RuntimeError::invalid(path, format!("{error}{cause}"))
}

/// Functions by their names.
struct Functions<'a> {
    loaded: &'a Loaded,
    manifest: &'a Manifest,
    path: &'a Path,
}

/// # Safety
/// Of all of them: the library is one that Tilescribe linked, and a function is asked for with the type that
/// the header declares.
impl Functions<'_> {
    unsafe fn find<T>(&self, function: &str) -> Result<Symbol<T>, RuntimeError> {
        let name = format!("{}_{function}", self.manifest.name);
        // SAFETY: as the caller says.
        unsafe { self.loaded.get(name.as_bytes()) }.map_err(|error| invalid(self.path, &error))
    }

    fn differs<T>(&self, what: &str) -> Result<T, RuntimeError> {
        Err(RuntimeError::invalid(self.path, format!("{what} not those of the manifest")))
    }

    unsafe fn check_ports(&self) -> Result<(), RuntimeError> {
        for (function, ports) in [("inputs", &self.manifest.inputs), ("outputs", &self.manifest.outputs)] {
            // SAFETY: the table holds as many tensors as the function says.
            let agree = unsafe {
                let tensors: Symbol<Tensors> = self.find(function)?;
                let mut count = 0;
                let first = tensors(&raw mut count);
                let agrees = |(number, port)| describes(&*first.add(number), port);
                count == ports.len() && ports.iter().enumerate().all(agrees)
            };
            if !agree {
                return self.differs(&format!("its {function} are"));
            }
        }
        Ok(())
    }

    unsafe fn on_device(&self) -> Result<Option<OnDevice>, RuntimeError> {
        match self.manifest.kind() {
            // SAFETY: as the caller says.
            Some(Kind::Gpu) => unsafe { Ok(Some(OnDevice { launch: self.find("launch")?, wait: self.find("wait")? })) },
            _ => Ok(None),
        }
    }

    unsafe fn of_threads(&self) -> Option<ThreadFunctions> {
        // SAFETY: as the caller says.
        unsafe {
            let (share, own) = (self.find("share_threads").ok()?, self.find("own_threads").ok()?);
            let (end, pin) = (self.find("end_threads").ok()?, self.find("pin_threads").ok()?);
            Some(ThreadFunctions { share, own, end, pin })
        }
    }

    unsafe fn of_extents(&self) -> Result<Option<ExtentFunctions>, RuntimeError> {
        if !self.manifest.has_symbols() {
            return Ok(None);
        }
        for (function, ports) in [("input_least", &self.manifest.inputs), ("output_least", &self.manifest.outputs)] {
            // SAFETY: as the caller says.
            let least: Symbol<Least> = unsafe { self.find(function)? };
            for (number, port) in ports.iter().enumerate() {
                let expected = port.least_shape();
                // SAFETY: the ranks are those of the manifest, which was compared before.
                let agrees = unsafe {
                    let found = least(number);
                    !found.is_null() && *std::slice::from_raw_parts(found, expected.len()) == expected[..]
                };
                if !agrees {
                    return self.differs(&format!("the extents of `{}` are", port.name));
                }
            }
        }
        // SAFETY: as the caller says.
        unsafe {
            let (set, output_shape) = (self.find("set_extents")?, self.find("output_shape")?);
            Ok(Some(ExtentFunctions { set, output_shape, message: self.find("message")? }))
        }
    }

    unsafe fn of_states(&self) -> Result<Option<StateFunctions>, RuntimeError> {
        if self.manifest.states.is_empty() {
            return Ok(None);
        }
        // SAFETY: as the caller says; a tensor has as many extents as its rank.
        unsafe {
            let state: Symbol<State> = self.find("state")?;
            for (number, port) in self.manifest.states.iter().enumerate() {
                let found = state(number);
                if found.is_null() || !describes(&*found, &port.input) {
                    return self.differs(&format!("type and shape of the state `{}` are", port.input.name));
                }
            }
            Ok(Some(StateFunctions {
                reset: self.find("reset")?,
                rewind: self.find("rewind")?,
                shape: self.find("state_shape")?,
                get: self.find("get_state")?,
                set: self.find("set_state")?,
            }))
        }
    }
}

/// Whether the library says the same of a port.
///
/// # Safety
/// The tensor must have as many extents as its rank says.
unsafe fn describes(tensor: &CTensor, port: &Port) -> bool {
    // SAFETY: as the caller says.
    let shape = unsafe { std::slice::from_raw_parts(tensor.shape, tensor.rank as usize) };
    let same_type = port.dtype().is_some_and(|dtype| dtype.number() == tensor.dtype);
    same_type && shape == port.shape && port.bytes().is_some_and(|bytes| bytes as u64 == tensor.bytes)
}
