//! The gate and the stopwatch on an NVIDIA GPU.
//!
//! Events of the stream take the times. A task's arguments are there in several copies, which runs take in
//! turn, so that no run finds what the one before it left in the second-level cache. Clocks are left as they
//! are.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUevent_flags, CUfunction_attribute};
use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaSlice, CudaStream, DevicePtr, DriverError, LaunchConfig, PushKernelArg,
    result,
};
use cudarc::nvrtc;

use crate::codegen::{Launch, Ptx, ptx};
use crate::measure::bench::Bench;
use crate::measure::bench::Refusal;
use crate::measure::gate::check_arguments;
use crate::measure::memory::POISON;
use crate::measure::oracle::Expected;
use crate::measure::output::Output;
use crate::measure::timing::{Reference, Timing};
use crate::nest::Nest;
use crate::outcome::{Failure, Outcome};
use crate::target::{Gpu, Task};
use crate::workload::{Array, TensorId};

/// Number of guard bytes in front of every buffer, and behind it: nobody may write them.
const GUARD_BYTES: usize = 512;
/// Maximum number of copies of the arguments.
const MAXIMAL_COPIES: usize = 64;
/// Maximum memory of all copies together, in bytes.
const MAXIMAL_BYTES: usize = 4 << 30;
/// Starting a kernel takes microseconds; samples are long enough for that not to count.
const SHORTEST_SAMPLE: Duration = Duration::from_micros(500);

/// A task's buffers on a device, filled, with what must come out of them.
pub(in crate::measure) struct CudaBench {
    task: Task,
    gpu: Gpu,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    /// Each holds all tensors of the workload that are arguments.
    copies: Vec<Vec<(TensorId, Memory)>>,
    outputs: Vec<(TensorId, Output)>,
    /// A failed run may take the whole context with it.
    broken: Option<String>,
}

/// A buffer between guard bytes.
struct Memory {
    whole: CudaSlice<u8>,
    /// Of the buffer's first byte.
    address: u64,
    bytes: usize,
}

/// A nest as PTX.
pub(in crate::measure) struct CudaCompiled {
    nest: Nest,
    program: Ptx,
    compile_us: u64,
}

/// A program on the device, with its workspace.
pub(in crate::measure) struct CudaLoaded {
    functions: Vec<(CudaFunction, Launch)>,
    /// In their order: the tensors that it takes.
    arguments: Vec<TensorId>,
    workspace: Memory,
    compile_us: u64,
    warm_up: Duration,
    error_growth: u32,
    /// The copy of the arguments that the next run takes.
    next_copy: usize,
}

fn memory(error: DriverError) -> Refusal {
    Refusal::new(Failure::Memory, format!("on the device: {error}"))
}

impl CudaBench {
    /// Puts inputs and constants on a device.
    ///
    /// # Errors
    /// [`Failure::Memory`] where there is not enough, [`Failure::Compile`] where the target is no GPU,
    /// [`Failure::Crash`] where the device does not work.
    pub fn new(task: Task, device: usize, expected: Expected) -> Result<CudaBench, Refusal> {
        let gpu = task.target.gpu().map_err(|e| Refusal::new(Failure::Compile, e))?.clone();
        let dead = |error: DriverError| Refusal::new(Failure::Crash, format!("device {device}: {error}"));
        let context = CudaContext::new(device).map_err(dead)?;
        let stream = context.new_stream().map_err(dead)?;
        let bytes: usize =
            expected.inputs.iter().chain(&expected.outputs).map(|(id, _)| task.workload.tensor(*id).bytes()).sum();
        let wanted = (2 * gpu.l2_bytes as usize).div_ceil(bytes.max(1)) + 1;
        let count = wanted.min(MAXIMAL_COPIES).min(MAXIMAL_BYTES / bytes.max(1)).max(1);
        let mut copies = Vec::with_capacity(count);
        for _ in 0..count {
            let mut arguments = Vec::new();
            for (id, array) in &expected.inputs {
                arguments.push((*id, Memory::new(&stream, &array.to_bytes())?));
            }
            for (id, _) in &expected.outputs {
                arguments.push((*id, Memory::new(&stream, &vec![POISON; task.workload.tensor(*id).bytes()])?));
            }
            copies.push(arguments);
        }
        stream.synchronize().map_err(dead)?;
        let output = |(id, array): (TensorId, Array)| (id, Output::new(&task.workload, id, array));
        let outputs = expected.outputs.into_iter().map(output).collect();
        Ok(CudaBench { task, gpu, context, stream, copies, outputs, broken: None })
    }

    fn launch(&self, loaded: &CudaLoaded, copy: usize) -> Result<(), DriverError> {
        let held = &self.copies[copy];
        let address =
            |id: &TensorId| held.iter().find(|(other, _)| other == id).map_or(0, |(_, memory)| memory.address);
        let mut addresses: Vec<u64> = loaded.arguments.iter().map(address).collect();
        addresses.push(loaded.workspace.address);
        for (function, launch) in &loaded.functions {
            let mut call = self.stream.launch_builder(function);
            addresses.iter().for_each(|address| {
                call.arg(address);
            });
            let config = LaunchConfig {
                grid_dim: (launch.blocks, 1, 1),
                block_dim: (launch.threads, 1, 1),
                shared_mem_bytes: launch.shared_bytes,
            };
            // SAFETY: the function takes the addresses of its arguments and of the workspace, in this order,
            // each as large as its buffer; one that writes elsewhere changes guard bytes, or takes the
            // context down, which is a worker's fate.
            unsafe { call.launch(config) }?;
        }
        Ok(())
    }

    /// Time of this many runs, by the device's clock.
    fn runs(&self, loaded: &mut CudaLoaded, count: u32) -> Result<Duration, DriverError> {
        let event = || self.context.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let (begin, end): (CudaEvent, CudaEvent) = (event()?, event()?);
        begin.record(&self.stream)?;
        for _ in 0..count {
            let copy = loaded.next_copy;
            loaded.next_copy = (copy + 1) % self.copies.len();
            self.launch(loaded, copy)?;
        }
        end.record(&self.stream)?;
        let elapsed_ms = begin.elapsed_ms(&end)?;
        Ok(Duration::from_secs_f64(f64::from(elapsed_ms).max(0.0) / 1e3))
    }

    /// The outcome of what the driver refused: whatever comes next in this context would fail, too.
    fn fail(&mut self, error: DriverError) -> Refusal {
        self.broken = Some(error.to_string());
        Refusal::new(Failure::Crash, error)
    }

    fn judge(&self, loaded: &CudaLoaded, copy: usize) -> Result<(), Refusal> {
        for (id, held) in &self.copies[copy] {
            held.check_guard_bytes(&self.stream, &format!("t{}", id.0))?;
            if let Some((_, output)) = self.outputs.iter().find(|(other, _)| other == id) {
                let found = held.read(&self.stream)?;
                let compared = output.compare(*id, loaded.error_growth, &found);
                compared.map_err(|what| Refusal::new(Failure::WrongResult, what))?;
            }
        }
        loaded.workspace.check_guard_bytes(&self.stream, "the workspace")
    }

    fn poison_outputs(&self, copy: usize) -> Result<(), Refusal> {
        for (id, held) in &self.copies[copy] {
            if self.outputs.iter().any(|(other, ..)| other == id) {
                held.poison(&self.stream).map_err(memory)?;
            }
        }
        Ok(())
    }

    /// The copy that the last run took.
    fn last_copy(&self, loaded: &CudaLoaded) -> usize {
        (loaded.next_copy + self.copies.len() - 1) % self.copies.len()
    }
}

impl Bench for CudaBench {
    type Machine = Gpu;
    type Compiled = CudaCompiled;
    type Loaded = CudaLoaded;

    fn machine(&self) -> &Gpu {
        &self.gpu
    }

    fn compilers(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    fn compile(machine: &Gpu, nest: Nest) -> Result<CudaCompiled, Refusal> {
        let start = Instant::now();
        let program = ptx(&nest, machine).map_err(|e| Refusal::new(Failure::Compile, e))?;
        let compile_us = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        Ok(CudaCompiled { nest, program, compile_us })
    }

    fn place(&mut self, CudaCompiled { nest, program, compile_us }: &CudaCompiled) -> Result<CudaLoaded, Refusal> {
        check_arguments(&self.task.workload, nest)?;
        if !nest.setup.is_empty() {
            return Err(Refusal::new(Failure::Compile, "operands packed by a setup, which no device runs"));
        }
        let refused = |error: DriverError| Refusal::new(Failure::Compile, format!("the driver: {error}"));
        let start = Instant::now();
        let module = self.context.load_module(nvrtc::Ptx::from_src(&program.text)).map_err(refused)?;
        let mut functions = Vec::with_capacity(program.launches.len());
        for launch in program.launches.iter().cloned() {
            let function = module.load_function(&launch.symbol).map_err(refused)?;
            let shared = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = i32::try_from(launch.shared_bytes).unwrap_or(i32::MAX);
            function.set_attribute(shared, bytes).map_err(refused)?;
            functions.push((function, launch));
        }
        let workspace = Memory::new(&self.stream, &vec![POISON; program.workspace_bytes])?;
        let assembled_us = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        Ok(CudaLoaded {
            functions,
            arguments: nest.arguments(),
            workspace,
            compile_us: compile_us.saturating_add(assembled_us),
            warm_up: Duration::ZERO,
            error_growth: nest.error_growth,
            next_copy: 0,
        })
    }

    fn check(&mut self, loaded: &mut CudaLoaded) -> Result<(), Refusal> {
        let copy = loaded.next_copy;
        self.poison_outputs(copy)?;
        loaded.workspace.poison(&self.stream).map_err(memory)?;
        loaded.warm_up = self.runs(loaded, 1).map_err(|error| self.fail(error))?;
        self.judge(loaded, copy)
    }

    fn time(
        &mut self,
        loaded: &mut CudaLoaded,
        timing: &Timing,
        incumbent_ns: Option<u64>,
        reference: Option<(&mut CudaLoaded, u64)>,
    ) -> Result<Outcome, Refusal> {
        let timing = Timing { shortest_sample: SHORTEST_SAMPLE, ..timing.clone() };
        let failed = std::cell::Cell::new(None);
        let timed = |kernel: &mut CudaLoaded, count: u32| {
            // nothing more is learnt once a run has failed: what follows is as good as endless
            let endless = Duration::from_secs(3600);
            self.runs(kernel, count).unwrap_or_else(|error| {
                failed.set(Some(error));
                endless
            })
        };
        let (other, known_ns) = reference.unzip();
        let mut run_other = other.map(|other| move |count: u32| timed(other, count));
        let reference = run_other
            .as_mut()
            .zip(known_ns)
            .map(|(run, known_ns)| Reference { known_ns, run: run as &mut dyn FnMut(u32) -> Duration });
        let warm_up = loaded.warm_up;
        let times_ns = timing.sample(incumbent_ns, warm_up, &mut |count| timed(loaded, count), reference);
        if let Some(error) = failed.take() {
            return Err(self.fail(error));
        }
        // the outputs that are judged must be its own
        self.poison_outputs(loaded.next_copy)?;
        self.runs(loaded, 1).map_err(|error| self.fail(error))?;
        self.judge(loaded, self.last_copy(loaded))?;
        Ok(Outcome::Timed { times_ns, compile_us: loaded.compile_us })
    }

    fn time_in_turn(&mut self, kernels: &mut [CudaLoaded], timing: &Timing) -> Vec<Outcome> {
        let timing = Timing { shortest_sample: SHORTEST_SAMPLE, ..timing.clone() };
        let compile_us: Vec<u64> = kernels.iter().map(|loaded| loaded.compile_us).collect();
        let failed = std::cell::Cell::new(None);
        let this = &*self;
        let mut runs: Vec<_> = kernels
            .iter_mut()
            .map(|loaded| {
                let failed = &failed;
                move |count: u32| {
                    this.runs(loaded, count).unwrap_or_else(|error| {
                        failed.set(Some(error));
                        Duration::from_secs(3600)
                    })
                }
            })
            .collect();
        let mut borrowed: Vec<&mut dyn FnMut(u32) -> Duration> =
            runs.iter_mut().map(|run| run as &mut dyn FnMut(u32) -> Duration).collect();
        let times = timing.sample_in_turn(&mut borrowed);
        drop(borrowed);
        drop(runs);
        if let Some(error) = failed.take() {
            self.broken = Some(DriverError::to_string(&error));
        }
        let outcome = |(times_ns, compile_us)| Outcome::Timed { times_ns, compile_us };
        times.into_iter().zip(compile_us).map(outcome).collect()
    }

    fn unload(&mut self, loaded: CudaLoaded) {
        drop(loaded);
    }

    fn is_broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }
}

impl Memory {
    fn new(stream: &Arc<CudaStream>, bytes: &[u8]) -> Result<Memory, Refusal> {
        let mut image = vec![POISON; GUARD_BYTES];
        image.extend_from_slice(bytes);
        image.resize(bytes.len().next_multiple_of(16) + 2 * GUARD_BYTES, POISON);
        let whole = stream.clone_htod(&image).map_err(memory)?;
        let address = whole.device_ptr(stream).0 + GUARD_BYTES as u64;
        Ok(Memory { whole, address, bytes: bytes.len() })
    }

    fn poison(&self, stream: &CudaStream) -> Result<(), DriverError> {
        // SAFETY: the buffer is `bytes` long from `address` on, and the stream orders this with all other
        // uses.
        unsafe { result::memset_d8_async(self.address, POISON, self.bytes, stream.cu_stream()) }
    }

    fn read(&self, stream: &Arc<CudaStream>) -> Result<Vec<u8>, Refusal> {
        let found = stream.clone_dtoh(&self.whole.slice(GUARD_BYTES..GUARD_BYTES + self.bytes)).map_err(memory)?;
        stream.synchronize().map_err(memory)?;
        Ok(found)
    }

    /// Checks that nobody wrote next to the buffer.
    fn check_guard_bytes(&self, stream: &Arc<CudaStream>, name: &str) -> Result<(), Refusal> {
        let whole = self.whole.len();
        for (range, place) in
            [(0..GUARD_BYTES, "before the start"), (GUARD_BYTES + self.bytes..whole, "behind the end")]
        {
            let guards = stream.clone_dtoh(&self.whole.slice(range)).map_err(memory)?;
            stream.synchronize().map_err(memory)?;
            let written = guards.iter().filter(|byte| **byte != POISON).count();
            if written > 0 {
                return Err(Refusal::new(Failure::WrongResult, format!("wrote {written} bytes {place} of {name}")));
            }
        }
        Ok(())
    }
}
