//! Loads an artifact and runs it, through the same C functions that any other program would use.

use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};
use memmap2::MmapMut;

use super::error::ArtifactError;
use super::manifest::{Manifest, Port, WEIGHTS_FILE};
use crate::graph::TensorData;
use crate::target::Kind;

type Create = unsafe extern "C" fn(*const c_char, c_int, *mut *mut c_void) -> c_int;
type Run = unsafe extern "C" fn(*mut c_void, *const *const c_void, *const *mut c_void) -> c_int;
type Destroy = unsafe extern "C" fn(*mut c_void);
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;
type Tensors = unsafe extern "C" fn(*mut usize) -> *const CTensor;
type Launch = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type Wait = unsafe extern "C" fn(*mut c_void) -> c_int;
type MissingFeature = unsafe extern "C" fn() -> *const c_char;

/// As the header declares it.
#[repr(C)]
struct CTensor {
    name: *const c_char,
    shape: *const i64,
    bytes: u64,
    rank: u32,
    dtype: u32,
}

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
    destroy: Symbol<Destroy>,
    error_string: Symbol<ErrorString>,
    /// Last, so that it outlives what points into it.
    _library: Library,
}

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
            let model = Model { manifest, handle, run, on_device, destroy, error_string, _library: library };
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
    /// [`ArtifactError::Input`] where number, type or shape differ from the manifest's.
    pub fn bind(&self, inputs: &[TensorData]) -> Result<Bound<'_>, ArtifactError> {
        let ports = &self.manifest.inputs;
        if inputs.len() != ports.len() {
            let reason = format!("{} inputs given, the network takes {}", inputs.len(), ports.len());
            return Err(ArtifactError::Input(reason));
        }
        let mut bound = Bound { model: self, inputs: Vec::new(), outputs: Vec::new() };
        for (port, input) in ports.iter().zip(inputs) {
            if port.dtype() != Some(input.dtype) || port.shape != input.shape || port.bytes() != Some(input.bytes.len())
            {
                let (wanted, given) = (describe(&port.dtype, &port.shape), describe(input.dtype.name(), &input.shape));
                return Err(ArtifactError::Input(format!("input `{}` is {wanted}, {given} was given", port.name)));
            }
            let mut memory = allocate(port)?;
            memory[..input.bytes.len()].copy_from_slice(&input.bytes);
            bound.inputs.push(memory);
        }
        bound.outputs = self.manifest.outputs.iter().map(allocate).collect::<Result<_, _>>()?;
        Ok(bound)
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

    fn error(&self, status: c_int) -> ArtifactError {
        // SAFETY: the function returns a string that lives as long as the library, for every number.
        let text = unsafe { CStr::from_ptr((self.error_string)(status)) };
        ArtifactError::Machine(text.to_string_lossy().into_owned())
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
    // SAFETY: the table holds `count` tensors, and each as many extents as its rank.
    unsafe {
        let first = tensors(&raw mut count);
        count == ports.len()
            && ports.iter().enumerate().all(|(number, port)| {
                let tensor = &*first.add(number);
                let shape = std::slice::from_raw_parts(tensor.shape, tensor.rank as usize);
                let same_type = port.dtype().is_some_and(|dtype| dtype.number() == tensor.dtype);
                same_type && shape == port.shape && port.bytes().is_some_and(|bytes| bytes as u64 == tensor.bytes)
            })
    }
}

/// Inputs and outputs in place, ready to run.
#[derive(Debug)]
pub struct Bound<'m> {
    model: &'m Model,
    inputs: Vec<MmapMut>,
    outputs: Vec<MmapMut>,
}

impl Bound<'_> {
    /// One run.
    ///
    /// # Errors
    /// [`ArtifactError::Machine`] with what the library says.
    pub fn run(&mut self) -> Result<(), ArtifactError> {
        let inputs: Vec<*const c_void> = self.inputs.iter().map(|memory| memory.as_ptr().cast()).collect();
        let outputs: Vec<*mut c_void> = self.outputs.iter_mut().map(|memory| memory.as_mut_ptr().cast()).collect();
        // SAFETY: the handle is alive, and every array has the size that the library declares for it.
        let status = unsafe { (self.model.run)(self.model.handle, inputs.as_ptr(), outputs.as_ptr()) };
        if status == 0 { Ok(()) } else { Err(self.model.error(status)) }
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
        ports.zip(&self.outputs).filter_map(|(port, memory)| tensor(port, memory)).collect()
    }
}

fn tensor(port: &Port, memory: &MmapMut) -> Option<TensorData> {
    let bytes = memory[..port.bytes()?].to_vec().into();
    Some(TensorData { shape: port.shape.clone(), dtype: port.dtype()?, bytes })
}

/// Page-aligned, and zero.
fn allocate(port: &Port) -> Result<MmapMut, ArtifactError> {
    let bytes = port.bytes().ok_or_else(|| ArtifactError::Input(format!("`{}` has no size", port.name)))?;
    MmapMut::map_anon(bytes.max(1)).map_err(|error| ArtifactError::Machine(format!("out of memory: {error}")))
}

/// Whether inputs, outputs and intermediates fit into this machine's memory: the kernel promises more than it
/// has, and ends the process later.
fn fits_memory(manifest: &Manifest) -> Result<(), ArtifactError> {
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

fn describe(dtype: &str, shape: &[i64]) -> String {
    let extents: Vec<String> = shape.iter().map(i64::to_string).collect();
    format!("{dtype}[{}]", extents.join(", "))
}
