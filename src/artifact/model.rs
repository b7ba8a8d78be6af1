//! A loaded artifact with tensors of the graph as inputs and outputs.

use std::ffi::c_void;
use std::path::Path;

use memmap2::MmapMut;
use tilescribe_runtime::port::described;
use tilescribe_runtime::{Manifest, Port, Resources, RuntimeError, Trace};

use crate::graph::TensorData;

/// A loaded network: [`tilescribe_runtime::Model`], which holds inputs and outputs.
#[derive(Debug)]
pub struct Model(tilescribe_runtime::Model);

impl Model {
    /// Loads a folder that [`super::compile`] wrote.
    ///
    /// # Errors
    /// As [`tilescribe_runtime::Model::load`].
    pub fn load(folder: &Path, resources: Resources) -> Result<Model, RuntimeError> {
        tilescribe_runtime::Model::load(folder, resources).map(Model)
    }

    /// Loads what [`super::compile`] has just written, and returned the manifest of.
    ///
    /// # Errors
    /// As [`tilescribe_runtime::Artifact::load_written`].
    pub fn load_written(folder: &Path, manifest: Manifest, resources: Resources) -> Result<Model, RuntimeError> {
        tilescribe_runtime::Artifact::load_written(folder, manifest, resources)?.model().map(Model)
    }

    pub fn manifest(&self) -> &Manifest {
        self.0.manifest()
    }

    /// Takes inputs, in the order of the manifest, and makes room for outputs; runs of what it returns copy
    /// nothing.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] where number, type or shape differ from the manifest's, or the network does
    /// not take these extents together.
    pub fn bind(&self, inputs: &[TensorData]) -> Result<Bound<'_>, RuntimeError> {
        let ports = &self.manifest().inputs;
        if inputs.len() != ports.len() {
            let reason = format!("{} inputs given, the network takes {}", inputs.len(), ports.len());
            return Err(RuntimeError::Input(reason));
        }
        for (port, input) in ports.iter().zip(inputs) {
            port.check(input.dtype, &input.shape)?;
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
                let given = described(input.dtype, &input.shape);
                let reason = format!("input `{}` has {} bytes, {given} does not", port.name, input.bytes.len());
                return Err(RuntimeError::Input(reason));
            }
            memory[..input.bytes.len()].copy_from_slice(&input.bytes);
            bound.inputs.push(memory);
        }
        for (port, shape) in self.manifest().outputs.iter().zip(outputs) {
            bound.outputs.push((allocate(port, &shape)?, shape));
        }
        Ok(bound)
    }

    /// The shapes of all outputs for inputs of these shapes; of results whose extents depend on data, the
    /// largest that they can be.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] for extents that the network does not take; it names input, axis and range.
    pub fn output_shapes(&self, inputs: &[&[i64]]) -> Result<Vec<Vec<i64>>, RuntimeError> {
        self.0.output_shapes(inputs)
    }

    /// Computes all outputs.
    ///
    /// # Errors
    /// As [`Model::bind`] and [`Bound::run`].
    pub fn run(&self, inputs: &[TensorData]) -> Result<Vec<TensorData>, RuntimeError> {
        let mut bound = self.bind(inputs)?;
        bound.run()?;
        Ok(bound.outputs())
    }

    /// Has runs share their loops between the threads of another model's artifact; see
    /// [`tilescribe_runtime::Model::share_threads`].
    ///
    /// # Errors
    /// As there.
    pub fn share_threads(&mut self, with: &Model) -> Result<(), RuntimeError> {
        self.0.share_threads(&with.0.artifact())
    }

    /// As [`tilescribe_runtime::Model::poison`].
    ///
    /// # Errors
    /// As there.
    pub fn poison(&self, poison: bool) -> Result<(), RuntimeError> {
        self.0.poison(poison)
    }

    /// Forgets what runs have left: states are zero, and those that grow have no rows.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] where the network keeps no states.
    pub fn reset(&self) -> Result<(), RuntimeError> {
        self.0.reset()
    }

    /// Takes states that grow back to their first `rows` rows.
    ///
    /// # Errors
    /// [`RuntimeError::Machine`] where one of them has fewer, or is replaced by every run.
    pub fn rewind(&self, rows: i64) -> Result<(), RuntimeError> {
        self.0.rewind(rows)
    }

    /// The shape of a state, as the next run finds it.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] where there is no such state.
    pub fn state_shape(&self, number: usize) -> Result<Vec<i64>, RuntimeError> {
        self.0.state_shape(number)
    }

    /// A copy of a state, as the next run finds it.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] where there is no such state, [`RuntimeError::Machine`] before extents are
    /// known.
    pub fn state(&self, number: usize) -> Result<TensorData, RuntimeError> {
        let (shape, bytes) = self.0.state(number)?;
        let dtype = self.manifest().states.get(number).and_then(|state| state.input.dtype());
        let dtype = dtype.ok_or_else(|| RuntimeError::Internal(format!("state {number} has no type")))?;
        Ok(TensorData { shape, dtype, bytes: bytes.into() })
    }

    /// Makes a state what the next run finds. Of states that grow, all need as many rows before that.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] where type or shape are not the state's.
    pub fn set_state(&self, number: usize, data: &TensorData) -> Result<(), RuntimeError> {
        self.0.set_state(number, data.dtype, &data.shape, &data.bytes)
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
    /// [`RuntimeError::Input`] where number, type or shape differ.
    pub fn give(&mut self, inputs: &[TensorData]) -> Result<(), RuntimeError> {
        let ports = &self.model.manifest().inputs;
        let fits = |((port, shape), input): ((&Port, &Vec<i64>), &TensorData)| {
            port.dtype() == Some(input.dtype)
                && *shape == input.shape
                && port.bytes_at(shape) == Some(input.bytes.len())
        };
        if inputs.len() != ports.len() || !ports.iter().zip(&self.shapes).zip(inputs).all(fits) {
            return Err(RuntimeError::Input("inputs of another type or shape than those before".into()));
        }
        for (memory, input) in self.inputs.iter_mut().zip(inputs) {
            memory[..input.bytes.len()].copy_from_slice(&input.bytes);
        }
        Ok(())
    }

    /// One run.
    ///
    /// # Errors
    /// [`RuntimeError::Machine`] with what the library says.
    pub fn run(&mut self) -> Result<(), RuntimeError> {
        // others may have been set for another `Bound` of the model
        let shapes: Vec<&[i64]> = self.shapes.iter().map(Vec::as_slice).collect();
        if self.model.manifest().states.is_empty() {
            self.model.0.set_extents(&shapes)?;
        } else {
            // outputs may grow with the states
            let found = self.model.output_shapes(&shapes)?;
            let ports = self.model.manifest().outputs.iter();
            for ((port, (memory, shape)), found) in ports.zip(&mut self.outputs).zip(found) {
                if *shape != found {
                    (*memory, *shape) = (allocate(port, &found)?, found);
                }
            }
        }
        let inputs: Vec<*const c_void> = self.inputs.iter().map(|memory| memory.as_ptr().cast()).collect();
        let outputs: Vec<*mut c_void> = self.outputs.iter_mut().map(|(memory, _)| memory.as_mut_ptr().cast()).collect();
        // SAFETY: every array has the bytes of its shape.
        unsafe { self.model.0.run(&inputs, &outputs)? };
        if self.model.manifest().counts_results() {
            let found = self.model.0.current_output_shapes()?;
            self.outputs.iter_mut().zip(found).for_each(|((_, shape), found)| *shape = found);
        }
        Ok(())
    }

    /// One more run on the same inputs, which a GPU has kept since [`Bound::run`]: what it computes stays
    /// there.
    ///
    /// # Errors
    /// As [`Bound::run`].
    pub fn repeat(&mut self) -> Result<(), RuntimeError> {
        match self.model.0.repeat() {
            Some(done) => done,
            None => self.run(),
        }
    }

    /// One run, and what every thread did, up to `room` events; `None` where the library does not tell: on
    /// GPUs, or where an older version linked it.
    ///
    /// # Errors
    /// As [`Bound::run`].
    pub fn traced(&mut self, room: usize) -> Result<Option<Trace>, RuntimeError> {
        let model = self.model;
        match model.0.traced(room, |_| self.run()) {
            Some((done, trace)) => done.map(|()| Some(trace)),
            None => Ok(None),
        }
    }

    /// As [`Bound::traced`], calls one after the other, those that may run at the same time as well.
    ///
    /// # Errors
    /// As [`Bound::run`].
    pub fn traced_in_turn(&mut self, room: usize) -> Result<Option<Trace>, RuntimeError> {
        let model = self.model;
        match model.0.traced_in_turn(room, |_| self.run()) {
            Some((done, trace)) => done.map(|()| Some(trace)),
            None => Ok(None),
        }
    }

    /// As [`Bound::traced`], each call by itself, with the network's weights in memory: the events are those
    /// of the second time that each is made.
    ///
    /// # Errors
    /// As [`Bound::run`].
    pub fn traced_cold(&mut self, room: usize) -> Result<Option<Trace>, RuntimeError> {
        let model = self.model;
        match model.0.traced_cold(room, |_| self.run()) {
            Some((done, trace)) => done.map(|()| Some(trace)),
            None => Ok(None),
        }
    }

    /// What the last run computed.
    pub fn outputs(&self) -> Vec<TensorData> {
        let ports = self.model.manifest().outputs.iter();
        ports.zip(&self.outputs).filter_map(|(port, (memory, shape))| tensor(port, memory, shape)).collect()
    }
}

fn tensor(port: &Port, memory: &MmapMut, shape: &[i64]) -> Option<TensorData> {
    let bytes = memory[..port.bytes_at(shape)?].to_vec().into();
    Some(TensorData { shape: shape.to_vec(), dtype: port.dtype()?, bytes })
}

/// Page-aligned, and zero.
fn allocate(port: &Port, shape: &[i64]) -> Result<MmapMut, RuntimeError> {
    let bytes = port.bytes_at(shape).ok_or_else(|| RuntimeError::Input(format!("`{}` has no size", port.name)))?;
    MmapMut::map_anon(bytes.max(1)).map_err(|error| RuntimeError::Machine(format!("out of memory: {error}")))
}
