//! Loads an artifact and runs it, through the same C functions that any other program would use.

use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};
use memmap2::MmapMut;

use super::described::{CTensor, describes};
use super::error::ArtifactError;
use super::manifest::{Manifest, Port, WEIGHTS_FILE};
use super::states::StateFunctions;
use crate::graph::TensorData;
use crate::target::Kind;

type Create = unsafe extern "C" fn(*const c_char, c_int, *mut *mut c_void) -> c_int;
type Run = unsafe extern "C" fn(*mut c_void, *const *const c_void, *const *mut c_void) -> c_int;
type Destroy = unsafe extern "C" fn(*mut c_void);
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;
type Tensors = unsafe extern "C" fn(*mut usize) -> *const CTensor;
type Launch = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type Wait = unsafe extern "C" fn(*mut c_void) -> c_int;
type SetExtents = unsafe extern "C" fn(*mut c_void, *const *const i64) -> c_int;
type OutputShape = unsafe extern "C" fn(*mut c_void, usize, *mut i64) -> c_int;
type Message = unsafe extern "C" fn(*mut c_void) -> *const c_char;
type Least = unsafe extern "C" fn(usize) -> *const i64;
type MissingFeature = unsafe extern "C" fn() -> *const c_char;

/// Where a network runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resources {
    /// Of a CPU; `None` stands for every core that this process may use.
    pub threads: Option<u32>,
    /// The number of a GPU in the driver's order; `None` stands for the first.
    pub device: Option<u32>,
}

/// A loaded network. On a CPU, its weights stay in the file, mapped.
#[derive(Debug)]
pub struct Model {
    manifest: Manifest,
    handle: *mut c_void,
    run: Symbol<Run>,
    /// On a GPU: to start a run on what the device holds, and to wait for it.
    on_device: Option<(Symbol<Launch>, Symbol<Wait>)>,
    /// Where extents are known only at run time.
    extents: Option<ExtentFunctions>,
    /// Where states are kept.
    states: Option<StateFunctions>,
    destroy: Symbol<Destroy>,
    error_string: Symbol<ErrorString>,
    /// Last, so that it outlives what points into it.
    _library: Library,
}

/// What the library says of the extents of a run.
#[derive(Debug)]
struct ExtentFunctions {
    set: Symbol<SetExtents>,
    output_shape: Symbol<OutputShape>,
    message: Symbol<Message>,
}

impl ExtentFunctions {
    /// Finds them, where the network has any extents that are not fixed.
    ///
    /// # Errors
    /// [`ArtifactError::Invalid`] where the library lacks them, or means others than the manifest.
    ///
    /// # Safety
    /// The library must be one that `compile` linked.
    unsafe fn of(
        manifest: &Manifest,
        library: &Library,
        path: &Path,
    ) -> Result<Option<ExtentFunctions>, ArtifactError> {
        if !manifest.has_symbols() {
            return Ok(None);
        }
        let invalid = |error: libloading::Error| ArtifactError::invalid(path, error.to_string());
        let symbol = |function: &str| format!("{}_{function}", manifest.name).into_bytes();
        // SAFETY: the functions have the types that the header declares.
        unsafe {
            for (function, ports) in [("input_least", &manifest.inputs), ("output_least", &manifest.outputs)] {
                let least: Symbol<Least> = library.get(&symbol(function)[..]).map_err(invalid)?;
                for (number, port) in ports.iter().enumerate() {
                    let found = least(number);
                    let expected = port.least_shape();
                    if found.is_null() || *std::slice::from_raw_parts(found, expected.len()) != expected[..] {
                        let reason = format!("the extents of `{}` are not those of the manifest", port.name);
                        return Err(ArtifactError::invalid(path, reason));
                    }
                }
            }
            let set = library.get(&symbol("set_extents")[..]).map_err(invalid)?;
            let output_shape = library.get(&symbol("output_shape")[..]).map_err(invalid)?;
            let message = library.get(&symbol("message")[..]).map_err(invalid)?;
            Ok(Some(ExtentFunctions { set, output_shape, message }))
        }
    }
}

/// As in `deploy.h`.
const STATUS_BAD_EXTENTS: c_int = 7;

impl Model {
    /// Loads a folder that [`super::compile`] wrote. Loading executes the code of the folder: hashes protect
    /// from damage, not from a folder of someone who is not trusted.
    ///
    /// # Errors
    /// [`ArtifactError::Invalid`] where files are missing, damaged, or of another format,
    /// [`ArtifactError::Machine`] where this machine cannot run it, and [`ArtifactError::Input`] for
    /// resources of another kind of machine.
    pub fn load(folder: &Path, resources: Resources) -> Result<Model, ArtifactError> {
        let manifest = Manifest::read(folder)?;
        let place = resources.place(&manifest)?;
        fits_memory(&manifest)?;
        manifest.verify(folder)?;
        let path = folder.join(manifest.library_file());
        // an absolute path, so that the loader does not search
        let path = std::path::absolute(&path).map_err(|source| ArtifactError::read(&path, source))?;
        let invalid = |error: libloading::Error| {
            let cause = error.source().map_or_else(String::new, |cause| format!(": {cause}"));
            ArtifactError::invalid(&path, format!("{error}{cause}"))
        };
        let symbol = |function: &str| format!("{}_{function}", manifest.name).into_bytes();
        // SAFETY: the library is one that `compile` linked, as its hash in the manifest says; loading runs no
        // code of it, and the functions have the types that its header declares.
        unsafe {
            let library = Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL).map_err(invalid)?;
            let create: Symbol<Create> = library.get(&symbol("create")[..]).map_err(invalid)?;
            let run: Symbol<Run> = library.get(&symbol("run")[..]).map_err(invalid)?;
            let destroy: Symbol<Destroy> = library.get(&symbol("destroy")[..]).map_err(invalid)?;
            let error_string: Symbol<ErrorString> = library.get(&symbol("error_string")[..]).map_err(invalid)?;
            let missing_feature: Symbol<MissingFeature> =
                library.get(&symbol("missing_feature")[..]).map_err(invalid)?;
            for (function, ports) in [("inputs", &manifest.inputs), ("outputs", &manifest.outputs)] {
                let tensors: Symbol<Tensors> = library.get(&symbol(function)[..]).map_err(invalid)?;
                if !agree(ports, &tensors) {
                    let reason = format!("its {function} are not those of the manifest");
                    return Err(ArtifactError::invalid(&path, reason));
                }
            }
            let extents = ExtentFunctions::of(&manifest, &library, &path)?;
            let states = StateFunctions::of(&manifest, &library, &path)?;
            let missing = missing_feature();
            if !missing.is_null() {
                return Err(ArtifactError::Machine(lacks(&manifest, &CStr::from_ptr(missing).to_string_lossy())));
            }
            let weights = folder.join(WEIGHTS_FILE);
            let weights = CString::new(weights.as_os_str().as_bytes())
                .map_err(|_| ArtifactError::invalid(folder, "a zero byte in its path"))?;
            let mut handle = std::ptr::null_mut();
            let on_device = match manifest.kind() {
                Some(Kind::Gpu) => {
                    let launch = library.get(&symbol("launch")[..]).map_err(invalid)?;
                    Some((launch, library.get(&symbol("wait")[..]).map_err(invalid)?))
                }
                _ => None,
            };
            let status = create(weights.as_ptr(), place, &raw mut handle);
            let model =
                Model { manifest, handle, run, on_device, extents, states, destroy, error_string, _library: library };
            if status == 0 { Ok(model) } else { Err(model.error(status)) }
        }
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Takes inputs, in the order of the manifest, and makes room for outputs; runs of what it returns copy
    /// nothing.
    ///
    /// # Errors
    /// [`ArtifactError::Input`] where number, type or shape differ from the manifest's, or the network does
    /// not take these extents together.
    pub fn bind(&self, inputs: &[TensorData]) -> Result<Bound<'_>, ArtifactError> {
        let ports = &self.manifest.inputs;
        if inputs.len() != ports.len() {
            let reason = format!("{} inputs given, the network takes {}", inputs.len(), ports.len());
            return Err(ArtifactError::Input(reason));
        }
        for (port, input) in ports.iter().zip(inputs) {
            let has_rank =
                if self.extents.is_some() { port.shape.len() == input.shape.len() } else { port.shape == input.shape };
            if port.dtype() != Some(input.dtype) || !has_rank {
                let (wanted, given) = (format!("{}[{}]", port.dtype, port.shape_text()), describe(input));
                return Err(ArtifactError::Input(format!("input `{}` is {wanted}, {given} was given", port.name)));
            }
        }
        let shapes: Vec<&[i64]> = inputs.iter().map(|input| input.shape.as_slice()).collect();
        let outputs = self.output_shapes(&shapes)?;
        let mut bound = Bound {
            model: self,
            shapes: inputs.iter().map(|input| input.shape.clone()).collect(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        for (port, input) in ports.iter().zip(inputs) {
            let mut memory = allocate(port, &input.shape)?;
            if port.bytes_at(&input.shape) != Some(input.bytes.len()) {
                let reason =
                    format!("input `{}` has {} bytes, {} does not", port.name, input.bytes.len(), describe(input));
                return Err(ArtifactError::Input(reason));
            }
            memory[..input.bytes.len()].copy_from_slice(&input.bytes);
            bound.inputs.push(memory);
        }
        for (port, shape) in self.manifest.outputs.iter().zip(outputs) {
            bound.outputs.push((allocate(port, &shape)?, shape));
        }
        Ok(bound)
    }

    /// The shapes of all outputs for inputs of these shapes; of results whose extents depend on data, the
    /// largest that they can be.
    ///
    /// # Errors
    /// [`ArtifactError::Input`] for extents that the network does not take; it names input, axis and range.
    pub fn output_shapes(&self, inputs: &[&[i64]]) -> Result<Vec<Vec<i64>>, ArtifactError> {
        self.set_extents(inputs)?;
        self.current_output_shapes()
    }

    /// The shapes of all outputs for the extents that are set; of results that are counted, those at most
    /// before a run, and what they are after it.
    fn current_output_shapes(&self) -> Result<Vec<Vec<i64>>, ArtifactError> {
        let ports = &self.manifest.outputs;
        let Some(extents) = &self.extents else { return Ok(ports.iter().map(|port| port.shape.clone()).collect()) };
        let shape_of = |(number, port): (usize, &Port)| {
            let mut shape = vec![0; port.shape.len()];
            // SAFETY: the handle is alive, and the array has as many elements as the output's rank, which the
            // manifest and the library agree about.
            let status = unsafe { (extents.output_shape)(self.handle, number, shape.as_mut_ptr()) };
            match status {
                0 if port.admits(&shape) => Ok(shape),
                0 => Err(ArtifactError::Internal(format!("the library says that `{}` is {shape:?}", port.name))),
                refused => Err(self.error(refused)),
            }
        };
        ports.iter().enumerate().map(shape_of).collect()
    }

    /// Tells the library the extents of the inputs, where they are not all fixed.
    fn set_extents(&self, shapes: &[&[i64]]) -> Result<(), ArtifactError> {
        let Some(extents) = &self.extents else { return Ok(()) };
        let ports = &self.manifest.inputs;
        if shapes.len() != ports.len() || shapes.iter().zip(ports).any(|(shape, port)| shape.len() != port.shape.len())
        {
            return Err(ArtifactError::Input("shapes of other inputs than the network has".into()));
        }
        let addresses: Vec<*const i64> = shapes.iter().map(|shape| shape.as_ptr()).collect();
        // SAFETY: the handle is alive, and there are as many arrays as inputs, with as many extents as their
        // ranks, which the manifest and the library agree about.
        self.checked(unsafe { (extents.set)(self.handle, addresses.as_ptr()) })
    }

    /// Computes all outputs.
    ///
    /// # Errors
    /// As [`Model::bind`] and [`Bound::run`].
    pub fn run(&self, inputs: &[TensorData]) -> Result<Vec<TensorData>, ArtifactError> {
        let mut bound = self.bind(inputs)?;
        bound.run()?;
        Ok(bound.outputs())
    }

    /// What a status means.
    fn checked(&self, status: c_int) -> Result<(), ArtifactError> {
        if status == 0 { Ok(()) } else { Err(self.error(status)) }
    }

    fn error(&self, status: c_int) -> ArtifactError {
        if let (STATUS_BAD_EXTENTS, Some(extents)) = (status, &self.extents) {
            // SAFETY: the message is a string that lives until the next call, and models are not shared
            // between threads.
            let message = unsafe { CStr::from_ptr((extents.message)(self.handle)) };
            return ArtifactError::Input(message.to_string_lossy().into_owned());
        }
        // SAFETY: the function returns a string that lives as long as the library, for every number.
        let text = unsafe { CStr::from_ptr((self.error_string)(status)) };
        ArtifactError::Machine(text.to_string_lossy().into_owned())
    }
}

/// States, which are kept from run to run.
impl Model {
    fn state_functions(&self) -> Result<&StateFunctions, ArtifactError> {
        self.states.as_ref().ok_or_else(|| ArtifactError::Input("the network keeps no states".into()))
    }

    fn state_port(&self, number: usize) -> Result<&Port, ArtifactError> {
        let missing = || ArtifactError::Input(format!("the network has no state {number}"));
        Ok(&self.manifest.states.get(number).ok_or_else(missing)?.input)
    }

    /// Forgets what runs have left: states are zero, and those that grow have no rows.
    ///
    /// # Errors
    /// [`ArtifactError::Input`] where the network keeps no states.
    pub fn reset(&self) -> Result<(), ArtifactError> {
        // SAFETY: the handle is alive.
        self.checked(unsafe { self.state_functions()?.reset(self.handle) })
    }

    /// Takes states that grow back to their first `rows` rows.
    ///
    /// # Errors
    /// [`ArtifactError::Machine`] where one of them has fewer, or is replaced by every run.
    pub fn rewind(&self, rows: i64) -> Result<(), ArtifactError> {
        // SAFETY: the handle is alive.
        self.checked(unsafe { self.state_functions()?.rewind(self.handle, rows) })
    }

    /// The shape of a state, as the next run finds it.
    ///
    /// # Errors
    /// [`ArtifactError::Input`] where there is no such state.
    pub fn state_shape(&self, number: usize) -> Result<Vec<i64>, ArtifactError> {
        let (functions, port) = (self.state_functions()?, self.state_port(number)?);
        let mut shape = vec![0; port.shape.len()];
        // SAFETY: the handle is alive, and the array has as many elements as the state's rank, which the
        // manifest and the library agree about.
        self.checked(unsafe { functions.shape(self.handle, number, &mut shape) })?;
        Ok(shape)
    }

    /// A copy of a state, as the next run finds it.
    ///
    /// # Errors
    /// [`ArtifactError::Input`] where there is no such state, [`ArtifactError::Machine`] before extents are
    /// known.
    pub fn state(&self, number: usize) -> Result<TensorData, ArtifactError> {
        let (functions, port) = (self.state_functions()?, self.state_port(number)?);
        let shape = self.state_shape(number)?;
        let unknown = || ArtifactError::Internal(format!("the library says that `{}` is {shape:?}", port.name));
        let (dtype, size) = (port.dtype().ok_or_else(unknown)?, port.bytes_at(&shape).ok_or_else(unknown)?);
        let mut bytes = vec![0u8; size];
        // SAFETY: the array has the bytes of the shape that the library says.
        self.checked(unsafe { functions.get(self.handle, number, &mut bytes) })?;
        Ok(TensorData { shape, dtype, bytes: bytes.into() })
    }

    /// Makes a state what the next run finds. Of states that grow, all need as many rows before that.
    ///
    /// # Errors
    /// [`ArtifactError::Input`] where type or shape are not the state's.
    pub fn set_state(&self, number: usize, data: &TensorData) -> Result<(), ArtifactError> {
        let (functions, port) = (self.state_functions()?, self.state_port(number)?);
        let fits = port.dtype() == Some(data.dtype)
            && port.admits(&data.shape)
            && port.bytes_at(&data.shape) == Some(data.bytes.len());
        if !fits {
            let (name, wanted) = (&port.name, port.shape_text());
            let reason = format!("state `{name}` is {}[{wanted}], {} was given", port.dtype, describe(data));
            return Err(ArtifactError::Input(reason));
        }
        // SAFETY: the handle is alive, the shape has the state's rank, and the array its bytes.
        self.checked(unsafe { functions.set(self.handle, number, &data.shape, &data.bytes) })
    }
}

impl Resources {
    /// What the library's `create` takes.
    fn place(self, manifest: &Manifest) -> Result<c_int, ArtifactError> {
        let place = match (manifest.kind(), self.threads, self.device) {
            (Some(Kind::Gpu), None, device) => device.unwrap_or(0),
            (Some(Kind::Gpu), Some(_), _) => {
                return Err(ArtifactError::Input("the network was compiled for GPUs: it runs on no threads".into()));
            }
            (_, threads, None) => threads.unwrap_or(0),
            (_, _, Some(_)) => {
                return Err(ArtifactError::Input("the network was compiled for CPUs: it runs on no device".into()));
            }
        };
        Ok(c_int::try_from(place).unwrap_or(c_int::MAX))
    }
}

/// Why a machine is refused that lacks something.
fn lacks(manifest: &Manifest, missing: &str) -> String {
    let targets: Vec<String> = manifest.versions.iter().map(|version| version.target.to_string()).collect();
    let machine = if manifest.kind() == Some(Kind::Gpu) { "machine" } else { "processor" };
    format!("this {machine} lacks `{missing}`; the network was compiled for {}", targets.join(" and "))
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: the handle comes from `create`, or is null, which is allowed; nothing uses it afterwards.
        unsafe { (self.destroy)(self.handle) }
    }
}

/// Whether the manifest says of the inputs or outputs what the library says: memory is allocated by the one,
/// and used by the other.
///
/// # Safety
/// The function must be one that `tables.rs` made.
unsafe fn agree(ports: &[Port], tensors: &Symbol<Tensors>) -> bool {
    let mut count = 0;
    // SAFETY: the table holds `count` tensors.
    unsafe {
        let first = tensors(&raw mut count);
        count == ports.len() && ports.iter().enumerate().all(|(number, port)| describes(&*first.add(number), port))
    }
}

/// Inputs and outputs in place, ready to run.
#[derive(Debug)]
pub struct Bound<'m> {
    model: &'m Model,
    /// Of the inputs.
    shapes: Vec<Vec<i64>>,
    inputs: Vec<MmapMut>,
    /// With their shapes.
    outputs: Vec<(MmapMut, Vec<i64>)>,
}

impl Bound<'_> {
    /// Takes other inputs, of the same shapes.
    ///
    /// # Errors
    /// [`ArtifactError::Input`] where number, type or shape differ.
    pub fn give(&mut self, inputs: &[TensorData]) -> Result<(), ArtifactError> {
        let ports = &self.model.manifest.inputs;
        let fits = |((port, shape), input): ((&Port, &Vec<i64>), &TensorData)| {
            port.dtype() == Some(input.dtype)
                && *shape == input.shape
                && port.bytes_at(shape) == Some(input.bytes.len())
        };
        if inputs.len() != ports.len() || !ports.iter().zip(&self.shapes).zip(inputs).all(fits) {
            return Err(ArtifactError::Input("inputs of another type or shape than those before".into()));
        }
        for (memory, input) in self.inputs.iter_mut().zip(inputs) {
            memory[..input.bytes.len()].copy_from_slice(&input.bytes);
        }
        Ok(())
    }

    /// One run.
    ///
    /// # Errors
    /// [`ArtifactError::Machine`] with what the library says.
    pub fn run(&mut self) -> Result<(), ArtifactError> {
        // others may have been set for another `Bound` of the model
        let shapes: Vec<&[i64]> = self.shapes.iter().map(Vec::as_slice).collect();
        match self.model.states {
            None => self.model.set_extents(&shapes)?,
            // outputs may grow with the states
            Some(_) => {
                let found = self.model.output_shapes(&shapes)?;
                let ports = self.model.manifest.outputs.iter();
                for ((port, (memory, shape)), found) in ports.zip(&mut self.outputs).zip(found) {
                    if *shape != found {
                        (*memory, *shape) = (allocate(port, &found)?, found);
                    }
                }
            }
        }
        let inputs: Vec<*const c_void> = self.inputs.iter().map(|memory| memory.as_ptr().cast()).collect();
        let outputs: Vec<*mut c_void> = self.outputs.iter_mut().map(|(memory, _)| memory.as_mut_ptr().cast()).collect();
        // SAFETY: the handle is alive, and every array has the size that the library declares for it.
        let status = unsafe { (self.model.run)(self.model.handle, inputs.as_ptr(), outputs.as_ptr()) };
        self.model.checked(status)?;
        if self.model.manifest.counts_results() {
            let found = self.model.current_output_shapes()?;
            self.outputs.iter_mut().zip(found).for_each(|((_, shape), found)| *shape = found);
        }
        Ok(())
    }

    /// One more run on the same inputs, which a GPU has kept since [`Bound::run`]: what it computes stays
    /// there.
    ///
    /// # Errors
    /// As [`Bound::run`].
    pub fn repeat(&mut self) -> Result<(), ArtifactError> {
        let Some((launch, wait)) = &self.model.on_device else { return self.run() };
        // SAFETY: the handle is alive, and no other run of it is under way, since models are not shared
        // between threads.
        let status = unsafe {
            match launch(self.model.handle, std::ptr::null_mut()) {
                0 => wait(self.model.handle),
                refused => refused,
            }
        };
        if status == 0 { Ok(()) } else { Err(self.model.error(status)) }
    }

    /// What the last run computed.
    pub fn outputs(&self) -> Vec<TensorData> {
        let ports = self.model.manifest.outputs.iter();
        ports.zip(&self.outputs).filter_map(|(port, (memory, shape))| tensor(port, memory, shape)).collect()
    }
}

fn tensor(port: &Port, memory: &MmapMut, shape: &[i64]) -> Option<TensorData> {
    let bytes = memory[..port.bytes_at(shape)?].to_vec().into();
    Some(TensorData { shape: shape.to_vec(), dtype: port.dtype()?, bytes })
}

/// Page-aligned, and zero.
fn allocate(port: &Port, shape: &[i64]) -> Result<MmapMut, ArtifactError> {
    let bytes = port.bytes_at(shape).ok_or_else(|| ArtifactError::Input(format!("`{}` has no size", port.name)))?;
    MmapMut::map_anon(bytes.max(1)).map_err(|error| ArtifactError::Machine(format!("out of memory: {error}")))
}

/// Whether inputs, outputs and intermediates fit into this machine's memory: the kernel promises more than it
/// has, and ends the process later.
fn fits_memory(manifest: &Manifest) -> Result<(), ArtifactError> {
    // how much it is turns out with the extents, and the library says so then
    if manifest.has_symbols() {
        return Ok(());
    }
    let memory = &manifest.memory;
    let arena =
        if manifest.kind() == Some(Kind::Gpu) { 0 } else { memory.arena_bytes.saturating_add(memory.workspace_bytes) };
    // outputs are handed out as copies
    let of_ports = |ports: &[Port]| {
        ports.iter().map(|port| port.bytes().map_or(u64::MAX, |b| b as u64)).fold(0, u64::saturating_add)
    };
    let needed = [arena, of_ports(&manifest.inputs), of_ports(&manifest.outputs), of_ports(&manifest.outputs)];
    let needed = needed.into_iter().fold(0, u64::saturating_add);
    match memory_bytes() {
        Some(available) if needed > available => Err(ArtifactError::Machine(format!(
            "out of memory: the network needs {needed} bytes for inputs, outputs and intermediates; this machine has {available}"
        ))),
        _ => Ok(()),
    }
}

/// Bytes of main memory and swap; `None` where the system does not say.
fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(field("MemTotal:")?.saturating_add(field("SwapTotal:").unwrap_or(0)))
}

fn describe(data: &TensorData) -> String {
    let extents: Vec<String> = data.shape.iter().map(i64::to_string).collect();
    format!("{}[{}]", data.dtype.name(), extents.join(", "))
}
