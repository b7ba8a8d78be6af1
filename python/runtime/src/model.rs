//! A loaded network.

use std::ffi::c_void;
use std::path::PathBuf;

use numpy::PyUntypedArray;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyMapping, PySequence, PyString, PyTuple};
use tilescribe_runtime::manifest::CompiledCall;
use tilescribe_runtime::{Artifact, Resources, RuntimeError};

use crate::arrays::{Given, Taken, leading};
use crate::errors::{self, Kind};
use crate::runners::{Runner, Runners};
use crate::spec::TensorSpec;

/// See `_native.pyi`.
#[pyclass(frozen, module = "tilescribe_runtime", weakref)]
#[derive(Debug)]
pub struct Model {
    runners: Runners,
    path: PathBuf,
    threads: usize,
    inputs: Vec<Py<TensorSpec>>,
    outputs: Vec<Py<TensorSpec>>,
    states: Vec<Py<TensorSpec>>,
    output_names: Py<PyTuple>,
    /// Whether shapes of outputs are those of the manifest.
    is_fixed: bool,
    counts_results: bool,
}

#[pyfunction]
#[pyo3(signature = (path, *, threads=None, device=None, concurrent=None, share_weights=false))]
pub fn load(
    py: Python<'_>,
    path: PathBuf,
    threads: Option<u32>,
    device: Option<u32>,
    concurrent: Option<usize>,
    share_weights: bool,
) -> PyResult<Model> {
    if threads == Some(0) || concurrent == Some(0) {
        return Err(PyValueError::new_err("`threads` and `concurrent` are at least 1"));
    }
    let resources = Resources { threads, device, share_weights };
    let artifact = py.detach(|| Artifact::load(&path, resources)).map_err(|error| errors::error(py, &error))?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.map_or(cores, |threads| threads as usize);
    let manifest = artifact.manifest();
    let limit = match manifest.states.is_empty() {
        true => concurrent.unwrap_or((cores / threads).max(1)),
        // runs go on from one another
        false => 1,
    };
    let specs = |ports: &mut dyn Iterator<Item = &tilescribe_runtime::Port>| -> PyResult<Vec<Py<TensorSpec>>> {
        ports.map(|port| Py::new(py, TensorSpec::new(py, port)?)).collect()
    };
    let inputs = specs(&mut manifest.inputs.iter())?;
    let outputs = specs(&mut manifest.outputs.iter())?;
    let states = specs(&mut manifest.states.iter().map(|state| &state.input))?;
    let output_names = PyTuple::new(py, manifest.outputs.iter().map(|port| port.name.as_str()))?.unbind();
    let (is_fixed, counts_results) = (!manifest.has_symbols(), manifest.counts_results());
    let runners = py.detach(|| Runners::new(artifact, limit)).map_err(|error| errors::error(py, &error))?;
    Ok(Model { runners, path, threads, inputs, outputs, states, output_names, is_fixed, counts_results })
}

/// Arguments of a call, in the order of the inputs.
type Arguments<'py> = Vec<Bound<'py, PyAny>>;

#[pymethods]
impl Model {
    #[pyo3(signature = (*inputs, out=None, **named))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyTuple>,
        out: Option<&Bound<'py, PyAny>>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let arguments = self.arguments(py, inputs, named)?;
        let mut results = self.compute(py, &arguments, out)?;
        match results.len() {
            1 => Ok(results.remove(0)),
            _ => self.named_results(py, results),
        }
    }

    #[pyo3(signature = (inputs, out=None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let arguments = match inputs.cast::<PyMapping>() {
            Ok(mapping) => self.of_mapping(mapping)?,
            Err(_) => self.arguments(py, &inputs.cast::<PySequence>()?.to_tuple()?, None)?,
        };
        let results = self.compute(py, &arguments, out)?;
        let named = PyDict::new(py);
        for (name, result) in self.output_names.bind(py).iter().zip(results) {
            named.set_item(name, result)?;
        }
        Ok(named)
    }

    #[getter]
    fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.inputs)
    }

    #[getter]
    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.outputs)
    }

    #[getter]
    fn states<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.states)
    }

    #[getter]
    fn name(&self) -> &str {
        &self.runners.artifact().manifest().name
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    #[getter]
    fn threads(&self) -> usize {
        self.threads
    }

    #[getter]
    fn concurrent(&self) -> usize {
        self.runners.limit()
    }

    #[getter]
    fn targets(&self) -> Vec<String> {
        self.runners.artifact().manifest().versions.iter().map(|version| version.target.to_string()).collect()
    }

    #[getter]
    fn precision(&self) -> &'static str {
        self.runners.artifact().manifest().precision.name()
    }

    /// The shapes of all outputs for inputs of these shapes.
    fn output_shapes<'py>(&self, py: Python<'py>, shapes: Vec<Vec<i64>>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let runner = self.runner(py)?;
        let shapes: Vec<&[i64]> = shapes.iter().map(Vec::as_slice).collect();
        let found = runner.model().output_shapes(&shapes).map_err(|error| errors::of_run(py, &error))?;
        found.into_iter().map(|shape| PyTuple::new(py, shape)).collect()
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.runner(py)?.model().reset().map_err(|error| errors::error(py, &error))
    }

    fn rewind(&self, py: Python<'_>, rows: i64) -> PyResult<()> {
        self.runner(py)?.model().rewind(rows).map_err(|error| errors::error(py, &error))
    }

    fn state<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let (number, spec) = self.state_spec(py, name)?;
        let runner = self.runner(py)?;
        let (shape, bytes) = runner.model().state(number).map_err(|error| errors::error(py, &error))?;
        let array = Taken::new(py, spec, &shape)?;
        // SAFETY: a new array of this type and shape has these bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), array.data.cast(), bytes.len()) };
        Ok(array.object)
    }

    fn set_state(&self, py: Python<'_>, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let (number, spec) = self.state_spec(py, name)?;
        let given = Given::new(spec, value)?;
        let refused = || Kind::Shape.error(py, format!("state `{name}` is never {:?}", given.shape));
        let length = spec.port.bytes_at(&given.shape).filter(|_| spec.port.admits(&given.shape)).ok_or_else(refused)?;
        // SAFETY: the array has the bytes of its shape, and lives as long as `given`.
        let bytes = unsafe { std::slice::from_raw_parts(given.data.cast::<u8>(), length) };
        let runner = self.runner(py)?;
        let set = runner.model().set_state(number, spec.element, &given.shape, bytes);
        set.map_err(|error| errors::error(py, &error))
    }

    #[pyo3(signature = (inputs=None, *, runs=100))]
    fn profile<'py>(
        slf: &Bound<'py, Model>,
        inputs: Option<Bound<'py, PyAny>>,
        runs: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        static PROFILE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = slf.py();
        PROFILE.import(py, "tilescribe_runtime.profiles", "profile")?.call1((slf, inputs, runs))
    }

    /// Where a run would read its inputs, as addresses: those of the arguments, unless they have to be copied.
    #[pyo3(signature = (*inputs))]
    fn _addresses<'py>(&self, py: Python<'py>, inputs: &Bound<'py, PyTuple>) -> PyResult<Vec<usize>> {
        let given = self.given(py, &self.arguments(py, inputs, None)?)?;
        Ok(given.iter().map(|given| given.data as usize).collect())
    }

    /// What each task takes of `runs` runs: lists of names, calls and nanoseconds.
    fn _profile<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyAny>,
        runs: usize,
    ) -> PyResult<Vec<(String, usize, u64)>> {
        let arguments = match inputs.cast::<PyMapping>() {
            Ok(mapping) => self.of_mapping(mapping)?,
            Err(_) => self.arguments(py, &inputs.cast::<PySequence>()?.to_tuple()?, None)?,
        };
        let given = self.given(py, &arguments)?;
        let mut runner = self.runner(py)?;
        let shapes = self.shapes(py, &runner, &given)?;
        let taken = self.taken(py, &shapes, None)?;
        // what a first run pays is not the network's
        self.run_once(py, &mut runner, &given, &taken)?;
        let pointers = Pointers::of(&given, &taken);
        let model = runner.model_mut();
        let measured = py.detach(move || {
            let pointers = pointers;
            // SAFETY: as in `run_once`.
            let work = |model: &tilescribe_runtime::Model| (0..runs).try_for_each(|_| unsafe { pointers.run(model) });
            model.profiled(work)
        });
        let unmeasured =
            || Kind::Machine.error(py, "this artifact does not measure its calls: compile it anew, for a CPU");
        let (done, spent) = measured.ok_or_else(unmeasured)?;
        done.map_err(|error| errors::of_run(py, &error))?;
        Ok(self.by_task(&spent))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let list = |specs: &[Py<TensorSpec>]| {
            let texts = specs.iter().map(|spec| {
                let port = &spec.bind(py).get().port;
                format!("{}: {}", port.name, port.text())
            });
            texts.collect::<Vec<_>>().join(", ")
        };
        let manifest = self.runners.artifact().manifest();
        let targets = self.targets().join(" and ");
        let (name, inputs, outputs) = (&manifest.name, list(&self.inputs), list(&self.outputs));
        format!("<tilescribe Model {name}: ({inputs}) -> ({outputs}), {} tasks, for {targets}>", manifest.tasks.len())
    }
}

impl Model {
    fn runner(&self, py: Python<'_>) -> PyResult<Runner<'_>> {
        self.runners.take(py).map_err(|error| errors::error(py, &error))
    }

    fn state_spec<'s>(&'s self, py: Python<'s>, name: &str) -> PyResult<(usize, &'s TensorSpec)> {
        let states = self.states.iter().map(|state| state.bind(py).get());
        let found = states.enumerate().find(|(_, spec)| spec.port.name == name);
        found.ok_or_else(|| PyKeyError::new_err(format!("the network keeps no state `{name}`")))
    }

    fn arguments<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Arguments<'py>> {
        if inputs.len() == 1 && named.is_none() {
            let only = inputs.get_item(0)?;
            // asking whether it is a mapping takes longer than the rest
            if !only.is_instance_of::<PyUntypedArray>()
                && let Ok(mapping) = only.cast::<PyMapping>()
            {
                return self.of_mapping(mapping);
            }
        }
        let given = inputs.len();
        if given > self.inputs.len() {
            let message = format!("{given} inputs were given, the network takes {}", self.inputs.len());
            return Err(Kind::Input.error(py, message));
        }
        self.refuse_unknown(py, named, given)?;
        let mut arguments: Arguments<'py> = inputs.iter().collect();
        for spec in &self.inputs[given..] {
            let name = &spec.bind(py).get().port.name;
            let argument = named.map(|named| named.get_item(name)).transpose()?.flatten();
            arguments.push(argument.ok_or_else(|| self.missing(py, name))?);
        }
        Ok(arguments)
    }

    /// Where a name is not that of an input, or that of one that stands among the others.
    fn refuse_unknown(&self, py: Python<'_>, named: Option<&Bound<'_, PyDict>>, given: usize) -> PyResult<()> {
        let Some(named) = named else { return Ok(()) };
        for name in named.keys().iter() {
            let name = name.cast::<PyString>()?.to_cow()?.into_owned();
            match self.inputs.iter().position(|spec| spec.bind(py).get().port.name == name) {
                Some(at) if at < given => {
                    return Err(Kind::Input.error(py, format!("input `{name}` is given twice")));
                }
                Some(_) => {}
                None => return Err(self.unknown(py, &name)),
            }
        }
        Ok(())
    }

    fn of_mapping<'py>(&self, mapping: &Bound<'py, PyMapping>) -> PyResult<Arguments<'py>> {
        let py = mapping.py();
        let mut arguments = Vec::with_capacity(self.inputs.len());
        for spec in &self.inputs {
            let name = &spec.bind(py).get().port.name;
            if !mapping.contains(name)? {
                return Err(self.missing(py, name));
            }
            arguments.push(mapping.get_item(name)?);
        }
        if mapping.len()? > self.inputs.len() {
            for name in mapping.keys()?.iter() {
                let name = name.str()?.to_cow()?.into_owned();
                if !self.inputs.iter().any(|spec| spec.bind(py).get().port.name == name) {
                    return Err(self.unknown(py, &name));
                }
            }
        }
        Ok(arguments)
    }

    fn missing(&self, py: Python<'_>, name: &str) -> PyErr {
        Kind::Input.error(py, format!("input `{name}` is missing; the network takes {}", self.listed(py)))
    }

    fn unknown(&self, py: Python<'_>, name: &str) -> PyErr {
        Kind::Input.error(py, format!("the network has no input `{name}`; it takes {}", self.listed(py)))
    }

    fn listed(&self, py: Python<'_>) -> String {
        let names = self.inputs.iter().map(|spec| format!("`{}`", spec.bind(py).get().port.name));
        names.collect::<Vec<_>>().join(", ")
    }

    fn given<'py>(&self, py: Python<'py>, arguments: &Arguments<'py>) -> PyResult<Vec<Given<'py>>> {
        if arguments.len() != self.inputs.len() {
            let message = format!("{} inputs were given, the network takes {}", arguments.len(), self.listed(py));
            return Err(Kind::Input.error(py, message));
        }
        self.inputs.iter().zip(arguments).map(|(spec, argument)| Given::new(spec.bind(py).get(), argument)).collect()
    }

    /// Sets the extents of a run; the shapes of its outputs where they depend on them.
    fn shapes(&self, py: Python<'_>, runner: &Runner<'_>, given: &[Given<'_>]) -> PyResult<Option<Vec<Vec<i64>>>> {
        if self.is_fixed {
            return Ok(None);
        }
        let inputs: Vec<&[i64]> = given.iter().map(|given| given.shape.as_slice()).collect();
        runner.model().output_shapes(&inputs).map(Some).map_err(|error| errors::of_run(py, &error))
    }

    fn taken<'py>(
        &self,
        py: Python<'py>,
        shapes: &Option<Vec<Vec<i64>>>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Taken<'py>>> {
        let targets = out.map(|out| self.targets_of(py, out)).transpose()?;
        let taken = |(number, spec): (usize, &Py<TensorSpec>)| {
            let spec = spec.bind(py).get();
            let shape = shapes.as_ref().map_or(&spec.port.shape, |shapes| &shapes[number]);
            match targets.as_ref().and_then(|targets| targets[number].as_ref()) {
                Some(target) => Taken::into(spec, shape, target),
                None => Taken::new(py, spec, shape),
            }
        };
        self.outputs.iter().enumerate().map(taken).collect()
    }

    /// The caller's arrays, by output; a single array, a sequence, or a mapping of some of them.
    fn targets_of<'py>(&self, py: Python<'py>, out: &Bound<'py, PyAny>) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        let names = self.output_names.bind(py);
        if self.outputs.len() == 1 && out.is_instance_of::<PyUntypedArray>() {
            return Ok(vec![Some(out.clone())]);
        }
        if let Ok(mapping) = out.cast::<PyMapping>() {
            for name in mapping.keys()?.iter() {
                if !names.contains(&name)? {
                    return Err(Kind::Input.error(py, format!("the network has no output `{name}`")));
                }
            }
            let target = |name: Bound<'py, PyAny>| match mapping.contains(&name)? {
                true => mapping.get_item(name).map(Some),
                false => Ok(None),
            };
            return names.iter().map(target).collect();
        }
        let targets: Vec<Option<Bound<'py, PyAny>>> = match out.cast::<PySequence>() {
            Ok(sequence) => sequence.to_tuple()?.iter().map(Some).collect(),
            Err(_) => vec![Some(out.clone())],
        };
        if targets.len() != self.outputs.len() {
            let message = format!("`out` has {} arrays, the network {} outputs", targets.len(), self.outputs.len());
            return Err(Kind::Input.error(py, message));
        }
        Ok(targets)
    }

    fn run_once(
        &self,
        py: Python<'_>,
        runner: &mut Runner<'_>,
        given: &[Given<'_>],
        taken: &[Taken<'_>],
    ) -> PyResult<()> {
        let pointers = Pointers::of(given, taken);
        let model = runner.model_mut();
        // SAFETY: there is memory of type and shape for all of them, which `given` and `taken` hold.
        let done = py.detach(move || unsafe { pointers.run(model) });
        done.map_err(|error| errors::of_run(py, &error))
    }

    fn compute<'py>(
        &self,
        py: Python<'py>,
        arguments: &Arguments<'py>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let given = self.given(py, arguments)?;
        let mut runner = self.runner(py)?;
        let shapes = self.shapes(py, &runner, &given)?;
        let taken = self.taken(py, &shapes, out)?;
        self.run_once(py, &mut runner, &given, &taken)?;
        if !self.counts_results {
            return Ok(taken.into_iter().map(|taken| taken.object).collect());
        }
        let found = runner.model().current_output_shapes().map_err(|error| errors::error(py, &error))?;
        let room = shapes.unwrap_or_default();
        let trimmed = |((taken, found), room): ((Taken<'py>, Vec<i64>), Vec<i64>)| match found == room {
            true => Ok(taken.object),
            false => leading(&taken.object, &found),
        };
        taken.into_iter().zip(found).zip(room).map(trimmed).collect()
    }

    fn named_results<'py>(&self, py: Python<'py>, results: Vec<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        static OUTPUTS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let class = OUTPUTS.import(py, "tilescribe_runtime.outputs", "Outputs")?;
        class.call1((PyTuple::new(py, results)?, &self.output_names))
    }

    /// Calls, and nanoseconds, by task or routine.
    fn by_task(&self, spent: &[u64]) -> Vec<(String, usize, u64)> {
        let manifest = self.runners.artifact().manifest();
        let mut by_task: Vec<(String, usize, u64)> = Vec::new();
        let mut numbers = std::collections::HashMap::new();
        for (call, ns) in manifest.calls.iter().zip(spent) {
            let name = match call {
                CompiledCall::Task(task) => &manifest.tasks[*task].name,
                CompiledCall::Library(routine) => routine,
            };
            let key = match call {
                CompiledCall::Task(task) => (Some(*task), ""),
                CompiledCall::Library(routine) => (None, routine.as_str()),
            };
            let number = *numbers.entry(key).or_insert_with(|| {
                by_task.push((name.clone(), 0, 0));
                by_task.len() - 1
            });
            by_task[number].1 += 1;
            by_task[number].2 += ns;
        }
        by_task
    }
}

/// Memory of a run, for a thread that has not Python's lock.
struct Pointers {
    inputs: Vec<*const c_void>,
    outputs: Vec<*mut c_void>,
}

// SAFETY: whoever made them waits for the run, and holds the memory meanwhile.
unsafe impl Send for Pointers {}

impl Pointers {
    fn of(given: &[Given<'_>], taken: &[Taken<'_>]) -> Pointers {
        let inputs = given.iter().map(|given| given.data).collect();
        Pointers { inputs, outputs: taken.iter().map(|taken| taken.data).collect() }
    }

    /// # Safety
    /// The memory is alive, and that of the extents that are set.
    unsafe fn run(&self, model: &tilescribe_runtime::Model) -> Result<(), RuntimeError> {
        // SAFETY: as the caller says.
        unsafe { model.run(&self.inputs, &self.outputs) }
    }
}
