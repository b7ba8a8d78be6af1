//! The kernels of a network, for one CPU or for GPUs of several generations.

use std::cmp::Reverse;
use std::collections::HashSet;

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

use super::bind::Bound;
use super::error::ArtifactError;
use super::schedule::Version;
use super::tables::{CpuKernels, Generation, Kernels, Place};
use crate::codegen::{self, DEVICE_ALIGNMENT};
use crate::graph::{Callee, Network};
use crate::nest::Nest;
use crate::target::{Cpu, Gpu, Kind, Target};

/// What the linker makes a library of, beside the tables.
pub struct Code {
    pub kernels: Kernels,
    /// By the names that they shall have.
    pub objects: Vec<(String, Vec<u8>)>,
    /// Files that the tables take in.
    pub texts: Vec<(String, String)>,
}

/// The functions of `src/artifact/deploy/` that all libraries have, and those for either machine, compiled
/// with Tilescribe itself.
const COMMON_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/common.o"));
const LIBRARY_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/library.o"));
const EXTENTS_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/extents.o"));
const MEMORY_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/memory.o"));
const COLD_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cold.o"));
const POISON_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/poison.o"));
const PROCESSOR_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/processor.o"));
const STATE_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/state.o"));
const CALLS_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/calls.o"));
const CPU_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cpu.o"));
const CUDA_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cuda.o"));

/// Whether one artifact can be made for these machines: one CPU of this program's own architecture, of which
/// its C objects are, or GPUs of different generations.
///
/// # Errors
/// [`ArtifactError::Versions`], [`ArtifactError::OtherArchitecture`]
pub fn check_targets<'t>(targets: impl IntoIterator<Item = &'t Target>) -> Result<(), ArtifactError> {
    let mut generations = HashSet::new();
    let mut cpus = 0;
    for target in targets {
        match target {
            Target::Cpu(cpu) if cpu.architecture.name() != std::env::consts::ARCH => {
                let (target, host) = (cpu.architecture.name().into(), std::env::consts::ARCH.into());
                return Err(ArtifactError::OtherArchitecture { target, host });
            }
            Target::Cpu(_) => cpus += 1,
            Target::Gpu(gpu) if !generations.insert(gpu.capability) => return Err(ArtifactError::Versions),
            Target::Gpu(_) => {}
        }
    }
    match (cpus, generations.len()) {
        (1, 0) | (0, 1..) => Ok(()),
        _ => Err(ArtifactError::Versions),
    }
}

/// Whether these machines can run a network: GPUs repeat nothing, branch nowhere, have no run-time library,
/// keep no states, and take inputs of fixed extents alone.
///
/// # Errors
/// [`ArtifactError::OnGpu`]
pub fn check_network<'t>(
    network: &Network,
    targets: impl IntoIterator<Item = &'t Target>,
) -> Result<(), ArtifactError> {
    let needed = match network.calls.iter().find_map(|call| match &call.callee {
        Callee::Task(_) => None,
        Callee::Library(routine) => Some(format!("the routine `{routine}`")),
    }) {
        None if !network.symbols.is_empty() => "extents that are known only at run time".to_string(),
        None if !network.carried.is_empty() => "states that are kept from run to run".to_string(),
        None if network.regions.is_empty() => return Ok(()),
        None => "loops or branches at run time".to_string(),
        Some(routine) => routine,
    };
    match targets.into_iter().any(|target| target.kind() == Kind::Gpu) {
        true => Err(ArtifactError::OnGpu(needed)),
        false => Ok(()),
    }
}

/// Versions of which one artifact can be made, in the order in which they are tried: newest GPUs first.
///
/// # Errors
/// As [`check_targets`].
pub fn checked<'v>(versions: &[Version<'v>]) -> Result<Vec<Version<'v>>, ArtifactError> {
    check_targets(versions.iter().map(|version| version.target))?;
    let mut versions = versions.to_vec();
    versions.sort_by_key(|version| Reverse(version.target.gpu().map(|gpu| gpu.capability).ok()));
    Ok(versions)
}

/// LLVM's names without `+`, sorted: what the kernels may use.
pub fn required_features(target: &Target) -> Vec<String> {
    let Target::Cpu(cpu) = target else { return Vec::new() };
    let mut features: Vec<String> =
        cpu.features.iter().map(|feature| feature.trim_start_matches('+').to_string()).collect();
    features.sort();
    features.dedup();
    features
}

/// Compiles all kernels of versions that were [`checked`].
///
/// # Errors
/// [`ArtifactError::Codegen`], and [`ArtifactError::Internal`] where schedules do not fit their machine.
pub fn code(network: &Network, versions: &[Version<'_>], bound: &Bound) -> Result<Code, ArtifactError> {
    check_network(network, versions.iter().map(|version| version.target))?;
    let mut generations = Vec::new();
    let mut texts = Vec::new();
    for (number, version) in versions.iter().enumerate() {
        let nests: Vec<&Nest> = version.schedules.iter().map(|schedule| &schedule.nest).collect();
        match version.target {
            Target::Cpu(cpu) => return for_cpu(&nests, cpu),
            Target::Gpu(gpu) => {
                let (generation, mut programs) = for_gpu(network, &nests, gpu, bound, number)?;
                generations.push(generation);
                texts.append(&mut programs);
            }
        }
    }
    let objects = [("common.o", COMMON_OBJECT), ("memory.o", MEMORY_OBJECT), ("cuda.o", CUDA_OBJECT)];
    let objects = objects.map(part).into();
    Ok(Code { kernels: Kernels::Gpu(generations), objects, texts })
}

fn part((file, bytes): (&str, &[u8])) -> (String, Vec<u8>) {
    (file.into(), bytes.into())
}

/// What the kernels of a task are called.
fn symbol(task: usize) -> String {
    format!("kernel_{task}")
}

fn for_cpu(nests: &[&Nest], cpu: &Cpu) -> Result<Code, ArtifactError> {
    let symbols: Vec<String> = (0..nests.len()).map(symbol).collect();
    let kernels: Vec<(&str, &Nest)> = symbols.iter().map(String::as_str).zip(nests.iter().copied()).collect();
    // how many threads there are says who makes a model
    let deployed = Cpu { cores: codegen::MAXIMAL_THREADS, ..cpu.clone() };
    // an object for each, side by side: most of the time that an artifact takes is LLVM's
    let compiled = kernels.par_iter().map(|kernel| codegen::object(&[*kernel], &deployed));
    let compiled = compiled.collect::<Result<Vec<_>, _>>()?;
    let scratch: Vec<_> = compiled.iter().flat_map(|object| object.scratch.iter().copied()).collect();
    let of_cores = scratch.iter().filter_map(|scratch| scratch.bytes(cpu.cores.max(1)));
    let workspace_bytes = of_cores.max().unwrap_or(0) as u64;
    let features = required_features(&Target::Cpu(cpu.clone()));
    let parts = [
        ("cold.o", COLD_OBJECT),
        ("common.o", COMMON_OBJECT),
        ("calls.o", CALLS_OBJECT),
        ("cpu.o", CPU_OBJECT),
        ("extents.o", EXTENTS_OBJECT),
        ("library.o", LIBRARY_OBJECT),
        ("memory.o", MEMORY_OBJECT),
        ("poison.o", POISON_OBJECT),
        ("processor.o", PROCESSOR_OBJECT),
        ("state.o", STATE_OBJECT),
        ("runtime.o", codegen::RUNTIME_OBJECT),
    ];
    let kernels = compiled.into_iter().enumerate().map(|(task, object)| (format!("{}.o", symbol(task)), object.bytes));
    let objects = kernels.chain(parts.map(part)).collect();
    let kernels = CpuKernels { workspace_bytes, scratch, features, symbols };
    Ok(Code { kernels: Kernels::Cpu(kernels), objects, texts: Vec::new() })
}

/// The PTX of each task, by the name of a file.
type Programs = Vec<(String, String)>;

fn for_gpu(
    network: &Network,
    nests: &[&Nest],
    gpu: &Gpu,
    bound: &Bound,
    number: usize,
) -> Result<(Generation, Programs), ArtifactError> {
    let (mut modules, mut programs, mut workspace_bytes) = (Vec::new(), Vec::new(), 0);
    for (task, nest) in nests.iter().enumerate() {
        if !nest.setup.is_empty() {
            return Err(ArtifactError::Internal("operands packed by a setup, which no device runs".into()));
        }
        let calls = network.calls.iter().zip(&bound.arguments).filter(|(call, _)| call.task() == Some(task));
        let arguments = calls.flat_map(|(_, arguments)| arguments);
        let alignment = arguments.map(|argument| alignment(&argument.place)).min().unwrap_or(DEVICE_ALIGNMENT);
        let program = codegen::ptx_of(&symbol(task), nest, gpu, alignment)?;
        let file = format!("kernels_{number}_{task}.ptx");
        modules.push((file.clone(), program.launches));
        programs.push((file, program.text));
        workspace_bytes = workspace_bytes.max(program.workspace_bytes as u64);
    }
    Ok((Generation { capability: gpu.capability, workspace_bytes, modules }, programs))
}

/// What an argument in this place is aligned to on a device, in bytes: a call may start anywhere in a buffer.
fn alignment(place: &Place) -> u64 {
    let offset = place.offset();
    1 << (offset | DEVICE_ALIGNMENT).trailing_zeros()
}

impl Kernels {
    pub fn kind(&self) -> Kind {
        match self {
            Kernels::Cpu(_) => Kind::Cpu,
            Kernels::Gpu(_) => Kind::Gpu,
        }
    }

    /// The most scratch memory that a kernel wants.
    pub fn workspace_bytes(&self) -> u64 {
        match self {
            Kernels::Cpu(kernels) => kernels.workspace_bytes,
            Kernels::Gpu(generations) => generations.iter().map(|g| g.workspace_bytes).max().unwrap_or(0),
        }
    }
}
