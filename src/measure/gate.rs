//! The gate: compiles a nest, runs it on guarded buffers, and compares what it wrote with the oracle's
//! outputs.

use std::collections::HashMap;
use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bench::{Bench, Refusal};
use super::cold::{Copies, bytes_between};
use super::memory::{Breach, Region};
use super::oracle::Example;
use super::output::Output;
use super::timing::{Reference, Timing, by_the_clock};
use crate::codegen::Kernel;
use crate::nest::{Nest, Scope, verify};
use crate::outcome::{Failure, Outcome};
use crate::target::{Cpu, Task};
use crate::workload::{Role, TensorId, Workload};

/// Maximum number of regions that wait for the next candidate: packed constants, their copies and a workspace
/// of a few finalists.
const SPARE_REGIONS: usize = 32;

/// A task's buffers, filled, with what must come out of them.
pub struct Workbench {
    task: Task,
    cpu: Cpu,
    examples: Vec<Prepared>,
    /// Regions of earlier candidates, for packed buffers and workspaces of later ones.
    spare: Vec<Region>,
}

/// One choice of the parameters, with buffers of the extents that it gives.
struct Prepared {
    /// The task's workload for it, and its numbers.
    workload: Workload,
    values: Vec<i64>,
    /// How often it runs in what is timed as one.
    times: u32,
    arguments: HashMap<TensorId, Argument>,
}

struct Argument {
    region: Region,
    /// Of an output: what must come out.
    expected: Option<Output>,
}

/// A kernel with everything it needs.
pub struct Loaded {
    kernel: Arc<Kernel>,
    /// By example: addresses of the buffers, in the order of the nest's arguments, then that of its
    /// parameters, and how often it runs in what is timed.
    runs: Vec<(Vec<*mut u8>, u32)>,
    packed: Vec<Region>,
    /// What it reads of constants when it runs: which addresses, and bytes.
    constants: Vec<(usize, usize)>,
    /// Where it takes its constants from in turn.
    copies: Option<Copies>,
    workspace: Region,
    /// By example: what it reaches of the workspace.
    reached: Vec<Vec<Range<usize>>>,
    /// Microseconds from the nest to loaded machine code.
    compile_us: u64,
    /// Time of the run that was checked; zero before.
    warm_up: Duration,
    /// [`Nest::error_growth`] of its nest.
    error_growth: u32,
    /// Whether several cores run it.
    is_parallel: bool,
}

/// A nest and its machine code, without buffers.
pub struct Compiled {
    nest: Nest,
    kernel: Arc<Kernel>,
    /// Microseconds from the nest to loaded machine code.
    compile_us: u64,
}

impl Workbench {
    /// Puts inputs and constants into memory that kernels may only read.
    ///
    /// # Errors
    /// [`Failure::Memory`] where there is not enough, [`Failure::Compile`] where the target is no CPU.
    pub fn new(task: Task, examples: impl Into<Vec<Example>>) -> Result<Workbench, Refusal> {
        let cpu = task.target.cpu().map_err(|e| Refusal::new(Failure::Compile, e))?.clone();
        let examples = examples.into().into_iter().map(|example| Prepared::new(&task.workload, example));
        let examples = examples.collect::<Result<Vec<_>, _>>()?;
        Ok(Workbench { task, cpu, examples, spare: Vec::new() })
    }

    /// With memory that another one has left: what the system gives anew it clears first.
    #[must_use]
    pub(super) fn with_spare(self, spare: Vec<Region>) -> Workbench {
        Workbench { spare, ..self }
    }

    /// Compiles a nest of this task and packs its constants.
    ///
    /// # Errors
    /// [`Failure::Compile`] where the verifier or code generation refuses it, [`Failure::Memory`] where its
    /// buffers do not fit.
    pub fn load(&mut self, nest: &Nest) -> Result<Loaded, Refusal> {
        let compiled = Workbench::compile(&self.cpu, nest.clone())?;
        self.place(&compiled)
    }

    fn poison_outputs(&mut self) {
        let arguments = self.examples.iter_mut().flat_map(|example| example.arguments.values_mut());
        arguments.filter(|argument| argument.expected.is_some()).for_each(|argument| argument.region.poison());
    }

    fn judge(&self, loaded: &Loaded) -> Result<(), Refusal> {
        self.examples.iter().try_for_each(|example| example.judge(loaded.error_growth))?;
        loaded.packed.iter().try_for_each(|region| check_guard_bytes(region, "a packed buffer"))?;
        check_guard_bytes(&loaded.workspace, "the workspace")
    }

    /// Memory for a kernel's scratch buffers. Those for extents of a run are laid out for the greatest ones,
    /// of which a run reaches little.
    fn workspace(&mut self, nest: &Nest, bytes: usize, reached: &[Vec<Range<usize>>]) -> Result<Region, Refusal> {
        let name = "the workspace";
        if nest.parameters.is_empty() {
            return self.region(bytes, name);
        }
        let all = reached.concat();
        let needed = all.iter().map(Range::len).sum();
        Region::sparse(bytes, &all, name).map_err(|e| Refusal::memory(needed, &e))
    }

    /// Poisoned memory.
    fn region(&mut self, bytes: usize, name: &str) -> Result<Region, Refusal> {
        let mut region = self.memory(bytes, name)?;
        region.poison();
        Ok(region)
    }

    /// Memory that holds anything: a spare region, unless none fits well.
    fn memory(&mut self, bytes: usize, name: &str) -> Result<Region, Refusal> {
        let fits = |region: &Region| (bytes..=4 * bytes + (1 << 16)).contains(&region.capacity());
        let smallest =
            (0..self.spare.len()).filter(|at| fits(&self.spare[*at])).min_by_key(|at| self.spare[*at].capacity());
        Ok(match smallest {
            Some(at) => {
                let mut region = self.spare.swap_remove(at);
                region.reuse(bytes, name);
                region
            }
            None => match map(bytes, name) {
                // the spare ones may be what is in the way
                Err(_) if !self.spare.is_empty() => {
                    self.spare.clear();
                    map(bytes, name)?
                }
                other => other?,
            },
        })
    }
}

impl Bench for Workbench {
    type Machine = Cpu;
    type Compiled = Compiled;
    type Loaded = Loaded;

    fn machine(&self) -> &Cpu {
        &self.cpu
    }

    fn compilers(&self) -> usize {
        self.cpu.cores.max(1) as usize
    }

    fn compile(target: &Cpu, nest: Nest) -> Result<Compiled, Refusal> {
        verify(&nest, target.lanes()).map_err(|e| Refusal::new(Failure::Compile, e))?;
        let start = Instant::now();
        let kernel = Kernel::load(&nest, target).map_err(|e| Refusal::new(Failure::Compile, e))?;
        let compile_us = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        Ok(Compiled { nest, kernel: Arc::new(kernel), compile_us })
    }

    fn place(&mut self, Compiled { nest, kernel, compile_us }: &Compiled) -> Result<Loaded, Refusal> {
        check_arguments(&self.task.workload, nest)?;
        let reached = self.examples.iter().map(|example| Kernel::reached(nest, &example.values, self.cpu.cores));
        let reached: Vec<_> = reached.collect::<Result<_, _>>().map_err(|e| Refusal::new(Failure::Compile, e))?;
        let workspace = self.workspace(nest, kernel.workspace_bytes(), &reached)?;
        let mut loaded = Loaded {
            kernel: Arc::clone(kernel),
            runs: Vec::new(),
            packed: Vec::new(),
            constants: constants(nest),
            copies: None,
            workspace,
            reached,
            compile_us: *compile_us,
            warm_up: Duration::ZERO,
            error_growth: nest.error_growth,
            is_parallel: self.cpu.cores > 1 && nest.is_parallel(),
        };
        for id in nest.arguments().into_iter().filter(|id| nest.buffer(*id).scope == Scope::Packed) {
            let buffer = nest.buffer(id);
            loaded.packed.push(self.region(buffer.bytes(), &buffer.name)?);
        }
        for example in &self.examples {
            loaded.runs.push((example.addresses(nest, &loaded.packed), example.times));
        }
        let Some((addresses, _)) = loaded.runs.first() else {
            return Err(Refusal::new(Failure::Compile, "nothing to run it with"));
        };
        // SAFETY: the addresses are those of the nest's arguments in order, each as large as its buffer and
        // aligned. A kernel that writes elsewhere hits guard pages and ends this process, which is a worker.
        unsafe { loaded.kernel.setup(addresses, loaded.workspace.address()) };
        for region in &mut loaded.packed {
            check_guard_bytes(region, "a packed buffer")?;
            region.set_read_only(true).map_err(|e| Refusal::memory(0, &e))?;
        }
        check_guard_bytes(&loaded.workspace, "the workspace")?;
        Ok(loaded)
    }

    fn check(&mut self, loaded: &mut Loaded) -> Result<(), Refusal> {
        self.poison_outputs();
        for example in 0..loaded.runs.len() {
            loaded.poison_workspace(example);
            let took = by_the_clock(&mut || loaded.run_once(example), 1);
            loaded.warm_up += took * loaded.runs[example].1;
        }
        self.judge(loaded)
    }

    fn time(
        &mut self,
        loaded: &mut Loaded,
        timing: &Timing,
        incumbent_ns: Option<u64>,
        reference: Option<(&mut Loaded, u64)>,
    ) -> Result<Outcome, Refusal> {
        let (other, known_ns) = reference.unzip();
        let is_other_kind = other.as_ref().is_some_and(|other| other.is_parallel != loaded.is_parallel);
        let timing = if is_other_kind { timing.clone().between_kinds() } else { timing.clone() };
        let mut run_other = other.map(|other| move |count: u32| by_the_clock(&mut || other.run(), count));
        let reference = run_other
            .as_mut()
            .zip(known_ns)
            .map(|(run, known_ns)| Reference { known_ns, run: run as &mut dyn FnMut(u32) -> Duration });
        let in_turn = reference.is_some();
        let warm_up = loaded.warm_up;
        let mut run = |count: u32| by_the_clock(&mut || loaded.run(), count);
        let times_ns = timing.sample(incumbent_ns, warm_up, &mut run, reference);
        if in_turn {
            // the outputs that are judged must be its own
            self.poison_outputs();
            (0..loaded.runs.len()).for_each(|example| loaded.run_once(example));
        }
        self.judge(loaded)?;
        Ok(Outcome::Timed { times_ns, compile_us: loaded.compile_us })
    }

    fn time_in_turn(&mut self, kernels: &mut [Loaded], timing: &Timing) -> Vec<Outcome> {
        if timing.read_between > 0 {
            let between = bytes_between(timing.read_between, &self.cpu, kernels.len());
            let between = usize::try_from(between).unwrap_or(usize::MAX);
            let copies = kernels.iter().map(|loaded| loaded.copies(between, |bytes| self.memory(bytes, "constants")));
            // where memory is short, all of them run from the caches
            if let Ok(copies) = copies.collect::<Result<Vec<_>, _>>() {
                kernels.iter_mut().zip(copies).for_each(|(loaded, copies)| loaded.copies = copies);
            }
        }
        let compile_us: Vec<u64> = kernels.iter().map(|loaded| loaded.compile_us).collect();
        let mut runs: Vec<_> =
            kernels.iter_mut().map(|loaded| move |count: u32| by_the_clock(&mut || loaded.run(), count)).collect();
        let mut borrowed: Vec<&mut dyn FnMut(u32) -> Duration> =
            runs.iter_mut().map(|run| run as &mut dyn FnMut(u32) -> Duration).collect();
        let times = timing.sample_in_turn(&mut borrowed);
        times
            .into_iter()
            .zip(compile_us)
            .map(|(times_ns, compile_us)| Outcome::Timed { times_ns, compile_us })
            .collect()
    }

    fn into_spare(self) -> Vec<Region> {
        self.spare
    }

    fn unload(&mut self, loaded: Loaded) {
        let workspace = self.task.workload.is_fixed().then_some(loaded.workspace);
        let copies = loaded.copies.map(Copies::into_region);
        for mut region in loaded.packed.into_iter().chain(workspace).chain(copies) {
            if self.spare.len() < SPARE_REGIONS && region.set_read_only(false).is_ok() {
                self.spare.push(region);
            }
        }
    }
}

impl Loaded {
    pub fn compile_us(&self) -> u64 {
        self.compile_us
    }

    /// Poisons what an example reaches.
    fn poison_workspace(&mut self, example: usize) {
        self.reached[example].iter().for_each(|part| self.workspace.poison_part(part.clone()));
    }

    /// What is timed as one.
    fn run(&mut self) {
        for example in 0..self.runs.len() {
            for _ in 0..self.runs[example].1 {
                self.run_once(example);
            }
        }
    }

    /// Copies of its constants, which are the same in all examples.
    fn copies(
        &self,
        between: usize,
        memory: impl FnOnce(usize) -> Result<Region, Refusal>,
    ) -> Result<Option<Copies>, Refusal> {
        let Some((addresses, _)) = self.runs.first() else { return Ok(None) };
        let bytes = |(at, bytes): &(usize, usize)| {
            // SAFETY: the address is that of a buffer of so many bytes, which nobody writes.
            (*at, unsafe { std::slice::from_raw_parts(addresses[*at].cast_const(), *bytes) })
        };
        Copies::new(&self.constants.iter().map(bytes).collect::<Vec<_>>(), between, memory)
    }

    fn run_once(&mut self, example: usize) {
        if let Some(copies) = &mut self.copies {
            copies.turn(&mut self.runs[example].0);
        }
        // SAFETY: as for `setup`; nobody else uses the buffers meanwhile. The numbers behind the buffers are
        // ones that the parameters can have, which buffers are sized by.
        unsafe { self.kernel.run(&self.runs[example].0, self.workspace.address()) };
    }
}

impl Prepared {
    /// Puts inputs and constants into memory that kernels may only read.
    fn new(workload: &Workload, Example { values, times, expected }: Example) -> Result<Prepared, Refusal> {
        let workload = workload.at(&values);
        let mut arguments = HashMap::new();
        for (id, array) in expected.inputs {
            let bytes = workload.tensor(id).bytes();
            let mut region = map(bytes, &format!("t{}", id.0))?;
            region.bytes_mut().copy_from_slice(&array.to_bytes());
            region.set_read_only(true).map_err(|e| Refusal::memory(bytes, &e))?;
            arguments.insert(id, Argument { region, expected: None });
        }
        for (id, array) in expected.outputs {
            let region = map(workload.tensor(id).bytes(), &format!("t{}", id.0))?;
            arguments.insert(id, Argument { region, expected: Some(Output::new(&workload, id, array)) });
        }
        Ok(Prepared { workload, values, times, arguments })
    }

    /// What a kernel is called with: the nest's arguments in order, then its parameters.
    fn addresses(&self, nest: &Nest, packed: &[Region]) -> Vec<*mut u8> {
        let tensors = nest.arguments().into_iter().filter_map(|id| self.arguments.get(&id));
        let buffers = tensors.map(|argument| &argument.region).chain(packed).map(Region::address);
        let parameters = (!nest.parameters.is_empty()).then(|| self.values.as_ptr().cast_mut().cast());
        buffers.chain(parameters).collect()
    }

    fn judge(&self, error_growth: u32) -> Result<(), Refusal> {
        for (id, _) in self.workload.ids() {
            let Some(argument) = self.arguments.get(&id) else { continue };
            check_guard_bytes(&argument.region, &format!("t{}", id.0))?;
            if let Some(output) = &argument.expected {
                let compared = output.compare(id, error_growth, argument.region.bytes());
                compared.map_err(|what| Refusal::new(Failure::WrongResult, self.about(what)))?;
            }
        }
        Ok(())
    }

    /// What is wrong, with the numbers that it is wrong for.
    fn about(&self, what: impl Display) -> String {
        if self.values.is_empty() {
            what.to_string()
        } else {
            format!("{what}, where the parameters are {:?}", self.values)
        }
    }
}

/// Checks that the arguments of a nest are the tensors of its workload that are arguments, and buffers that
/// its setup packs.
///
/// # Errors
/// [`Failure::Compile`] where they are not.
pub(super) fn check_arguments(workload: &Workload, nest: &Nest) -> Result<(), Refusal> {
    let mut tensors = 0;
    for id in nest.arguments().into_iter().filter(|id| nest.buffer(*id).scope != Scope::Packed) {
        tensors += 1;
        let buffer = nest.buffer(id);
        let fits = workload.tensors.get(id.0 as usize).is_some_and(|tensor| {
            tensor.role != Role::Intermediate
                && buffer.scope == Scope::Argument(tensor.role)
                && buffer.shape == tensor.shape
                && buffer.extents.iter().count() == tensor.extents.iter().count()
                && buffer.dtype == tensor.dtype
        });
        if !fits {
            let detail = format!("argument `{}` of the nest is no tensor of the workload", buffer.name);
            return Err(Refusal::new(Failure::Compile, detail));
        }
    }
    let wanted = workload.tensors.iter().filter(|tensor| tensor.role != Role::Intermediate).count();
    if tensors != wanted {
        let detail = format!("the nest has {tensors} arguments, the workload {wanted}");
        return Err(Refusal::new(Failure::Compile, detail));
    }
    Ok(())
}

/// The constants and packed buffers that a nest reads when it runs: their places among the addresses of
/// [`Prepared::addresses`], and bytes.
fn constants(nest: &Nest) -> Vec<(usize, usize)> {
    let is_packed = |id: &TensorId| nest.buffer(*id).scope == Scope::Packed;
    let (packed, given): (Vec<TensorId>, Vec<TensorId>) = nest.arguments().into_iter().partition(is_packed);
    let used = nest.used_when_it_runs();
    let constant = Scope::Argument(Role::Constant);
    let numbered = given.into_iter().chain(packed).enumerate();
    let read = numbered.filter(|(_, id)| used[id.0 as usize] && (is_packed(id) || nest.buffer(*id).scope == constant));
    read.map(|(at, id)| (at, nest.buffer(id).bytes())).collect()
}

fn map(bytes: usize, name: &str) -> Result<Region, Refusal> {
    Region::new(bytes, name).map_err(|e| Refusal::memory(bytes, &e))
}

/// Checks that nobody wrote next to a buffer.
fn check_guard_bytes(region: &Region, name: &str) -> Result<(), Refusal> {
    let detail = match region.breach() {
        None => return Ok(()),
        Some(Breach::Before(bytes)) => format!("wrote {bytes} bytes before the start of {name}"),
        Some(Breach::Behind(bytes)) => format!("wrote {bytes} bytes behind the end of {name}"),
    };
    Err(Refusal::new(Failure::WrongResult, detail))
}
