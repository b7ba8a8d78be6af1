//! A loaded network: states, extents and runs, on memory of the caller.

mod watch;

use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use crate::dtype::DType;
use crate::error::RuntimeError;
use crate::library::{Library, StateFunctions};
use crate::manifest::{Manifest, WEIGHTS_FILE};
use crate::port::{Port, described};
use crate::target::Kind;

pub use watch::Trace;

/// Where a network runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resources {
    /// Of a CPU, up to 256, whatever number the network was compiled for; `None` stands for every core that
    /// this process may use.
    pub threads: Option<u32>,
    /// The number of a GPU in the driver's order; `None` stands for the first.
    pub device: Option<u32>,
    /// Whether the weights are a mapping of their file, which processes that run the same network hold once.
    /// Otherwise each has a copy in large pages, which it reads faster.
    pub share_weights: bool,
}

/// A loaded artifact: code that any number of models share. Cloning it copies nothing.
#[derive(Clone, Debug)]
pub struct Artifact(Arc<Code>);

#[derive(Debug)]
struct Code {
    manifest: Manifest,
    library: Library,
    weights: CString,
    /// What the library's `create` takes.
    place: c_int,
    share_weights: bool,
}

impl Artifact {
    /// Loads an artifact. Loading executes the code of the folder: hashes protect from damage, not from a
    /// folder of someone who is not trusted.
    ///
    /// # Errors
    /// [`RuntimeError::Invalid`] where files are missing, damaged, or of another format,
    /// [`RuntimeError::Target`] where this machine lacks what it was compiled for, [`RuntimeError::Machine`]
    /// where memory does not suffice, and [`RuntimeError::Input`] for resources of another kind of machine.
    pub fn load(folder: &Path, resources: Resources) -> Result<Artifact, RuntimeError> {
        let manifest = Manifest::read(folder)?;
        let place = resources.fit(&manifest)?;
        manifest.verify(folder)?;
        Artifact::open(folder, manifest, place, resources.share_weights)
    }

    /// Loads an artifact that this process has just written, and has the manifest of: its files are not read
    /// once more to see whether they are what was written.
    ///
    /// # Errors
    /// As [`Artifact::load`], but for damaged files.
    #[doc(hidden)]
    pub fn load_written(folder: &Path, manifest: Manifest, resources: Resources) -> Result<Artifact, RuntimeError> {
        manifest.check().map_err(|problem| RuntimeError::invalid(folder, problem))?;
        let place = resources.fit(&manifest)?;
        Artifact::open(folder, manifest, place, resources.share_weights)
    }

    fn open(folder: &Path, manifest: Manifest, place: c_int, share_weights: bool) -> Result<Artifact, RuntimeError> {
        let path = folder.join(manifest.library_file());
        // an absolute path, so that the loader does not search
        let path = std::path::absolute(&path).map_err(|source| RuntimeError::read(&path, source))?;
        // SAFETY: the library is one that Tilescribe linked: its hash says so, or who has just written it.
        let library = unsafe { Library::load(&manifest, &path)? };
        if let Some(missing) = library.missing_feature() {
            return Err(RuntimeError::Target(lacks(&manifest, &missing)));
        }
        // found again from whatever folder the process works in when it makes one more model
        let weights = path.with_file_name(WEIGHTS_FILE);
        let weights = CString::new(weights.as_os_str().as_bytes())
            .map_err(|_| RuntimeError::invalid(folder, "a zero byte in its path"))?;
        Ok(Artifact(Arc::new(Code { manifest, library, weights, place, share_weights })))
    }

    pub fn manifest(&self) -> &Manifest {
        &self.0.manifest
    }

    /// Whether each thread of the artifact stays on a processor of its own, from the next run on; not where
    /// there are more threads than processors. Callers of runs may bind themselves.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] where it has no threads to place: on GPUs, or where an older version linked
    /// it.
    pub fn pin_threads(&self, pin: bool) -> Result<(), RuntimeError> {
        let missing = || RuntimeError::Input("the network's library places no threads".into());
        let threads = self.0.library.threads.as_ref().ok_or_else(missing)?;
        // SAFETY: takes any number, and waits for a loop that runs.
        unsafe { (threads.pin)(c_int::from(pin)) };
        Ok(())
    }

    /// One more model, with intermediates and states of its own. The weights are there once for all of them.
    ///
    /// # Errors
    /// [`RuntimeError::Machine`] where memory or driver do not suffice.
    pub fn model(&self) -> Result<Model, RuntimeError> {
        let mut handle = std::ptr::null_mut();
        let code = Arc::clone(&self.0);
        if let Some(share_weights) = &code.library.share_weights {
            // SAFETY: takes any number, from any thread.
            unsafe { share_weights(c_int::from(code.share_weights)) };
        }
        // SAFETY: the path ends with a zero, and the function writes one pointer.
        let status = unsafe { (code.library.create)(code.weights.as_ptr(), code.place, &raw mut handle) };
        let model = Model { handle, code, lender: None };
        model.checked(status)?;
        Ok(model)
    }
}

/// A network that is ready to run. It may go from thread to thread; threads that run at one time have one
/// each.
#[derive(Debug)]
pub struct Model {
    handle: *mut c_void,
    code: Arc<Code>,
    /// Whose threads it has, if not its own library's.
    lender: Option<Arc<Code>>,
}

// SAFETY: the library keeps nothing by thread that outlives a call, and `Model` is not `Sync`: calls come one
// after the other.
unsafe impl Send for Model {}

/// As in `deploy.h`.
const STATUS_BAD_EXTENTS: c_int = 7;

impl Model {
    /// Loads an artifact and makes its only model.
    ///
    /// # Errors
    /// As [`Artifact::load`] and [`Artifact::model`].
    pub fn load(folder: &Path, resources: Resources) -> Result<Model, RuntimeError> {
        Artifact::load(folder, resources)?.model()
    }

    pub fn manifest(&self) -> &Manifest {
        &self.code.manifest
    }

    /// What the model was made of.
    pub fn artifact(&self) -> Artifact {
        Artifact(Arc::clone(&self.code))
    }

    /// The shapes of all outputs for inputs of these shapes; of results whose extents depend on data, the
    /// largest that they can be.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] for extents that the network does not take; it names input, axis and range.
    pub fn output_shapes(&self, inputs: &[&[i64]]) -> Result<Vec<Vec<i64>>, RuntimeError> {
        self.set_extents(inputs)?;
        self.current_output_shapes()
    }

    /// The shapes of all outputs for the extents that are set; of results that are counted, those at most
    /// before a run, and what they are after it.
    ///
    /// # Errors
    /// [`RuntimeError::Machine`] before extents are set.
    pub fn current_output_shapes(&self) -> Result<Vec<Vec<i64>>, RuntimeError> {
        let ports = &self.manifest().outputs;
        let Some(extents) = &self.code.library.extents else {
            return Ok(ports.iter().map(|port| port.shape.clone()).collect());
        };
        let shape_of = |(number, port): (usize, &Port)| {
            let mut shape = vec![0; port.shape.len()];
            // SAFETY: the handle is alive, and the array has as many elements as the output's rank, which the
            // manifest and the library agree about.
            let status = unsafe { (extents.output_shape)(self.handle, number, shape.as_mut_ptr()) };
            match status {
                0 if port.admits(&shape) => Ok(shape),
                0 => Err(RuntimeError::Internal(format!("the library says that `{}` is {shape:?}", port.name))),
                refused => Err(self.error(refused)),
            }
        };
        ports.iter().enumerate().map(shape_of).collect()
    }

    /// Tells the library the extents of the inputs, where they are not all fixed.
    ///
    /// # Errors
    /// As [`Model::output_shapes`].
    pub fn set_extents(&self, shapes: &[&[i64]]) -> Result<(), RuntimeError> {
        let ports = &self.manifest().inputs;
        if shapes.len() != ports.len() || shapes.iter().zip(ports).any(|(shape, port)| shape.len() != port.shape.len())
        {
            return Err(RuntimeError::Input("shapes of other inputs than the network has".into()));
        }
        let Some(extents) = &self.code.library.extents else { return Ok(()) };
        let addresses: Vec<*const i64> = shapes.iter().map(|shape| shape.as_ptr()).collect();
        // SAFETY: the handle is alive, and there are as many arrays as inputs, with as many extents as their
        // ranks, which the manifest and the library agree about.
        self.checked(unsafe { (extents.set)(self.handle, addresses.as_ptr()) })
    }

    /// Computes all outputs, at the extents that are set. Copies nothing.
    ///
    /// # Errors
    /// [`RuntimeError::Machine`] with what the library says, [`RuntimeError::Input`] where what it finds in
    /// inputs leaves what the network takes.
    ///
    /// # Safety
    /// There must be as many arrays as the manifest has inputs and outputs, in its order, each with the bytes
    /// of its shape ([`Model::output_shapes`]), for as long as the call runs. Arrays may start anywhere.
    pub unsafe fn run(&self, inputs: &[*const c_void], outputs: &[*mut c_void]) -> Result<(), RuntimeError> {
        // SAFETY: as the caller says, and the handle is alive.
        self.checked(unsafe { (self.code.library.run)(self.handle, inputs.as_ptr(), outputs.as_ptr()) })
    }

    /// One more run on the inputs that a GPU holds since [`Model::run`]: what it computes stays there. `None`
    /// on a CPU.
    ///
    /// # Errors
    /// As [`Model::run`].
    pub fn repeat(&self) -> Option<Result<(), RuntimeError>> {
        let device = self.code.library.on_device.as_ref()?;
        // SAFETY: the handle is alive, and no other run of it is under way.
        let status = unsafe {
            match (device.launch)(self.handle, std::ptr::null_mut()) {
                0 => (device.wait)(self.handle),
                refused => refused,
            }
        };
        Some(self.checked(status))
    }

    /// Has runs share their loops between the threads of another artifact, or of its own again: threads
    /// belong to an artifact, whose models have them in common. Of models that run at the same time on the
    /// same threads, one has them for the time of a loop, and the others do without meanwhile.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] where one of both has no threads to share: on GPUs, or where an older version
    /// linked it.
    pub fn share_threads(&mut self, with: &Artifact) -> Result<(), RuntimeError> {
        let missing = || RuntimeError::Input("the network's library shares no threads".into());
        let lender = Arc::clone(&with.0);
        let (own, other) = (&self.code.library.threads, &lender.library.threads);
        let (Some(own), Some(other)) = (own, other) else { return Err(missing()) };
        // SAFETY: the handle is alive, and so is the other library as long as the model has its threads.
        self.checked(unsafe { (own.share)(self.handle, (other.own)()) })?;
        if let Some(before) = self.lender.replace(lender) {
            before.end_threads();
        }
        Ok(())
    }

    /// What a status means.
    fn checked(&self, status: c_int) -> Result<(), RuntimeError> {
        if status == 0 { Ok(()) } else { Err(self.error(status)) }
    }

    fn error(&self, status: c_int) -> RuntimeError {
        if let (STATUS_BAD_EXTENTS, Some(extents)) = (status, &self.code.library.extents) {
            // SAFETY: the message is a string that lives until the next call.
            let message = unsafe { CStr::from_ptr((extents.message)(self.handle)) };
            return RuntimeError::Input(message.to_string_lossy().into_owned());
        }
        RuntimeError::Machine(self.code.library.text(status))
    }
}

/// States, which are kept from run to run.
impl Model {
    fn state_functions(&self) -> Result<&StateFunctions, RuntimeError> {
        let none = || RuntimeError::Input("the network keeps no states".into());
        self.code.library.states.as_ref().ok_or_else(none)
    }

    fn state_port(&self, number: usize) -> Result<&Port, RuntimeError> {
        let missing = || RuntimeError::Input(format!("the network has no state {number}"));
        Ok(&self.manifest().states.get(number).ok_or_else(missing)?.input)
    }

    /// Forgets what runs have left: states are zero, and those that grow have no rows.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] where the network keeps no states.
    pub fn reset(&self) -> Result<(), RuntimeError> {
        // SAFETY: the handle is alive.
        self.checked(unsafe { (self.state_functions()?.reset)(self.handle) })
    }

    /// Takes states that grow back to their first `rows` rows.
    ///
    /// # Errors
    /// [`RuntimeError::Machine`] where one of them has fewer, or is replaced by every run.
    pub fn rewind(&self, rows: i64) -> Result<(), RuntimeError> {
        // SAFETY: the handle is alive.
        self.checked(unsafe { (self.state_functions()?.rewind)(self.handle, rows) })
    }

    /// The shape of a state, as the next run finds it.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] where there is no such state.
    pub fn state_shape(&self, number: usize) -> Result<Vec<i64>, RuntimeError> {
        let (functions, port) = (self.state_functions()?, self.state_port(number)?);
        let mut shape = vec![0; port.shape.len()];
        // SAFETY: the handle is alive, and the array has as many elements as the state's rank, which the
        // manifest and the library agree about.
        self.checked(unsafe { (functions.shape)(self.handle, number, shape.as_mut_ptr()) })?;
        Ok(shape)
    }

    /// A copy of a state, as the next run finds it: its shape and its elements.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] where there is no such state, [`RuntimeError::Machine`] before extents are
    /// known.
    pub fn state(&self, number: usize) -> Result<(Vec<i64>, Vec<u8>), RuntimeError> {
        let (functions, port) = (self.state_functions()?, self.state_port(number)?);
        let shape = self.state_shape(number)?;
        let unknown = || RuntimeError::Internal(format!("the library says that `{}` is {shape:?}", port.name));
        let mut bytes = vec![0u8; port.bytes_at(&shape).ok_or_else(unknown)?];
        // SAFETY: the array has the bytes of the shape that the library says.
        self.checked(unsafe { (functions.get)(self.handle, number, bytes.as_mut_ptr().cast()) })?;
        Ok((shape, bytes))
    }

    /// Makes a state what the next run finds. Of states that grow, all need as many rows before that.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] where type or shape are not the state's.
    pub fn set_state(&self, number: usize, dtype: DType, shape: &[i64], bytes: &[u8]) -> Result<(), RuntimeError> {
        let (functions, port) = (self.state_functions()?, self.state_port(number)?);
        let fits = port.dtype() == Some(dtype) && port.admits(shape) && port.bytes_at(shape) == Some(bytes.len());
        if !fits {
            let (wanted, given) = (port.text(), described(dtype, shape));
            return Err(RuntimeError::Input(format!("state `{}` is {wanted}, {given} was given", port.name)));
        }
        // SAFETY: the handle is alive, the shape has the state's rank, and the array its bytes.
        self.checked(unsafe { (functions.set)(self.handle, number, shape.as_ptr(), bytes.as_ptr().cast()) })
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: the handle comes from `create`, or is null, which is allowed; nothing uses it afterwards.
        unsafe { (self.code.library.destroy)(self.handle) }
        if let Some(lender) = &self.lender {
            lender.end_threads();
        }
    }
}

impl Code {
    /// Before the library may be unloaded: loops of models that still have the threads start them again.
    fn end_threads(&self) {
        if let Some(threads) = &self.library.threads {
            // SAFETY: waits for a loop that runs.
            unsafe { (threads.end)() };
        }
    }
}

impl Resources {
    /// What the library's `create` takes.
    fn place(self, manifest: &Manifest) -> Result<c_int, RuntimeError> {
        let place = match (manifest.kind(), self.threads, self.device) {
            (Some(Kind::Gpu), None, device) => device.unwrap_or(0),
            (Some(Kind::Gpu), Some(_), _) => {
                return Err(RuntimeError::Input("the network was compiled for GPUs: it runs on no threads".into()));
            }
            (_, threads, None) => threads.unwrap_or(0),
            (_, _, Some(_)) => {
                return Err(RuntimeError::Input("the network was compiled for CPUs: it runs on no device".into()));
            }
        };
        Ok(c_int::try_from(place).unwrap_or(c_int::MAX))
    }

    /// The same, where a network of this manifest fits into memory.
    fn fit(self, manifest: &Manifest) -> Result<c_int, RuntimeError> {
        let place = self.place(manifest)?;
        fits_memory(manifest, self.share_weights)?;
        Ok(place)
    }
}

/// Why a machine is refused that lacks something.
fn lacks(manifest: &Manifest, missing: &str) -> String {
    let targets: Vec<String> = manifest.versions.iter().map(|version| version.target.to_string()).collect();
    let machine = if manifest.kind() == Some(Kind::Gpu) { "machine" } else { "processor" };
    format!("this {machine} lacks `{missing}`; the network was compiled for {}", targets.join(" and "))
}

/// Whether inputs, outputs, intermediates and a copy of the weights fit into this machine's memory: the
/// kernel promises more than it has, and ends the process later.
fn fits_memory(manifest: &Manifest, share_weights: bool) -> Result<(), RuntimeError> {
    // how much it is turns out with the extents, and the library says so then
    if manifest.has_symbols() {
        return Ok(());
    }
    let memory = &manifest.memory;
    let is_cpu = manifest.kind() != Some(Kind::Gpu);
    let arena = if is_cpu { memory.arena_bytes.saturating_add(memory.workspace_bytes) } else { 0 };
    let weights = if is_cpu && !share_weights { memory.weights_bytes } else { 0 };
    // outputs are handed out as copies
    let of_ports = |ports: &[Port]| {
        ports.iter().map(|port| port.bytes().map_or(u64::MAX, |b| b as u64)).fold(0, u64::saturating_add)
    };
    let needed = [arena, weights, of_ports(&manifest.inputs), of_ports(&manifest.outputs), of_ports(&manifest.outputs)];
    let needed = needed.into_iter().fold(0, u64::saturating_add);
    match memory_bytes() {
        Some(available) if needed > available => Err(RuntimeError::Machine(format!(
            "out of memory: the network needs {needed} bytes for inputs, outputs, intermediates and weights; this machine has {available}"
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
