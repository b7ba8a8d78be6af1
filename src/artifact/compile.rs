//! Writes an artifact.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread;

use memmap2::{MmapMut, MmapOptions};
use tilescribe_runtime::manifest::{
    CompiledCall, CompiledRegion, CompiledSchedule, CompiledTask, CompiledVersion, FileDigest, MANIFEST_FILE, Manifest,
    Memory, WEIGHTS_FILE, digest, header_file, is_identifier, library_file, output_files,
};

use super::bind::{self, Bound, Pack};
use super::code::{self, Code};
use super::error::ArtifactError;
use super::formula;
use super::header::{Ports, header};
use super::link::link;
use super::planned;
use super::schedule::{Schedule, Version};
use super::tables::{TableCall, Tables, assembly};
use super::weights::Writer;
use crate::codegen;
use crate::files::DraftFolder;
use crate::graph::{Call, Callee, Fork, Network, Region, RegionKind, Source};
use crate::nest::{Nest, Scope};
use crate::target::Architecture;
use crate::workload::{Role, TensorId};

/// What it is called, and where it goes.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// Prefix of the C functions and name of the library: a letter, then letters, digits and `_`.
    pub name: &'a str,
    /// The folder; an artifact that stands there is replaced.
    pub folder: &'a Path,
}

/// What compiling is at, for people who wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    Weights { done: usize, of: usize },
    Kernels,
    Linking,
    Hashing,
}

/// Compiles a network for one CPU, or for GPUs of one or more generations. The folder appears complete, or
/// stays as it was. Constants are packed one call at a time and streamed, so that they are never held twice.
/// `progress` may end it before each step.
///
/// # Errors
/// [`ArtifactError`] says whose fault it is; see its variants.
pub fn compile(
    network: &Network,
    versions: &[Version<'_>],
    options: &Options<'_>,
    progress: &mut dyn FnMut(Step) -> ControlFlow<()>,
) -> Result<Manifest, ArtifactError> {
    let all = &mut |_: &Path, manifest: &Manifest| ControlFlow::Continue(vec![true; manifest.forks.len()]);
    compile_judged(network, versions, options, progress, all)
}

/// The same, where somebody decides about the network's forks once it can run.
///
/// # Errors
/// As [`compile`]; [`ArtifactError::Interrupted`] where the judge breaks off.
pub fn compile_judged(
    network: &Network,
    versions: &[Version<'_>],
    options: &Options<'_>,
    progress: &mut dyn FnMut(Step) -> ControlFlow<()>,
    judge: &mut Judge<'_>,
) -> Result<Manifest, ArtifactError> {
    let name = options.name;
    // names of our own symbols start with `tilescribe_`
    if !is_identifier(name) || name.starts_with("tilescribe") {
        return Err(ArtifactError::Name(name.to_string()));
    }
    let versions = code::checked(versions)?;
    let bound = bind::bind(network, &nests_of(&versions))?;
    compile_bound(network, &versions, bound, options, progress, judge)
}

/// Says of each fork of an artifact, which lies in a folder and is complete but for the manifest, whether its
/// strands shall run at the same time.
pub type Judge<'j> = dyn FnMut(&Path, &Manifest) -> ControlFlow<(), Vec<bool>> + 'j;

/// The same for calls that are bound, and versions that are checked.
pub(super) fn compile_bound(
    network: &Network,
    versions: &[Version<'_>],
    bound: Bound,
    options: &Options<'_>,
    progress: &mut dyn FnMut(Step) -> ControlFlow<()>,
    judge: &mut Judge<'_>,
) -> Result<Manifest, ArtifactError> {
    let name = options.name;
    let first = versions.first().ok_or(ArtifactError::Versions)?;
    let nests: Vec<&Nest> = first.schedules.iter().map(|schedule| &schedule.nest).collect();
    let parent = prepare(options.folder)?;
    let scratch = DraftFolder::create_in(&parent).map_err(|source| ArtifactError::write(&parent, source))?;
    let file = |file: &str| scratch.path().join(file);

    let weights = file(WEIGHTS_FILE);
    let weights_id = write_weights(network, &nests, &bound, &weights, progress)?;
    enter(progress, Step::Kernels)?;
    let (code, weights_digest) = code_and_digest(|| code::code(network, versions, &bound), &weights)?;
    enter(progress, Step::Linking)?;
    let library = Library { name, weights_id: &weights_id, code: &code, path: &file(&library_file(name)) };
    library.link(network, &bound)?;
    let ports = Ports { inputs: &bound.inputs, outputs: &bound.outputs, states: &bound.states };
    let header = header(name, code.kernels.kind(), &ports, &network.symbols, network.calls.len());
    write(&file(&header_file(name)), header.as_bytes())?;

    enter(progress, Step::Hashing)?;
    let header_digest = digest(&file(&header_file(name)))?;
    let described = |network: &Network, bound: &Bound| -> Result<Manifest, ArtifactError> {
        let files = BTreeMap::from([
            (WEIGHTS_FILE.to_string(), weights_digest.clone()),
            (header_file(name), header_digest.clone()),
            (library_file(name), digest(library.path)?),
        ]);
        Ok(manifest(name, network, versions, (bound, code.kernels.workspace_bytes()), files))
    };
    let mut manifest = described(network, &bound)?;
    let forks = judged(network, (scratch.path(), &manifest), judge)?;
    if forks.len() < network.forks.len() {
        // what runs one after the other after all may share memory
        let network = Network { forks, ..network.clone() };
        let bound = bind::bind(&network, &nests_of(versions))?;
        library.link(&network, &bound)?;
        manifest = described(&network, &bound)?;
    }
    let text = serde_json::to_string_pretty(&manifest).map_err(|error| ArtifactError::Internal(error.to_string()))?;
    write(&file(MANIFEST_FILE), text.as_bytes())?;
    scratch.replace(options.folder).map_err(|source| ArtifactError::write(options.folder, source))?;
    Ok(manifest)
}

/// By version, then by task.
fn nests_of<'v>(versions: &[Version<'v>]) -> Vec<Vec<&'v Nest>> {
    versions.iter().map(|version| version.schedules.iter().map(|schedule| &schedule.nest).collect()).collect()
}

/// The library of an artifact: kernels, and tables that say where everything is.
struct Library<'l> {
    name: &'l str,
    weights_id: &'l str,
    code: &'l Code,
    path: &'l Path,
}

impl Library<'_> {
    fn link(&self, network: &Network, bound: &Bound) -> Result<(), ArtifactError> {
        let Library { name, code, .. } = self;
        let with_arguments = network.calls.iter().zip(&bound.arguments);
        let calls: Vec<_> = with_arguments
            .map(|(call, arguments)| TableCall { callee: &call.callee, numbers: call.parameters.len(), arguments })
            .collect();
        let regions: Vec<_> = network.regions.iter().zip(bound.conditions.iter().copied()).collect();
        let tables = Tables {
            name,
            weights_id: self.weights_id,
            weights_bytes: bound.weights.file_bytes,
            arena_bytes: bound.memory.arena_bytes,
            inputs: &bound.inputs,
            outputs: &bound.outputs,
            states: &bound.states,
            tasks: network.tasks.len(),
            calls: &calls,
            regions: &regions,
            forks: &network.forks,
            extents: bound.extents.as_ref(),
            lives: &bound.lives,
            kernels: &code.kernels,
        };
        let exported: Vec<String> = tables.functions().map(|function| format!("{name}_{function}")).collect();
        let architecture = Architecture::here().map_err(codegen::CodegenError::from)?;
        link(&exported, &assembly(&tables, architecture)?, &code.texts, &code.objects, self.path)
    }
}

/// Kernels, and meanwhile, where the system gives a thread for it, the digest of the weights.
fn code_and_digest<C>(
    code: impl FnOnce() -> Result<C, ArtifactError>,
    weights: &Path,
) -> Result<(C, FileDigest), ArtifactError> {
    let failed = |_| ArtifactError::Internal("the thread that hashes weights failed".into());
    thread::scope(|scope| {
        let hashing = thread::Builder::new().spawn_scoped(scope, || digest(weights));
        let code = code()?;
        let digest = match hashing {
            Ok(hashing) => hashing.join().map_err(failed)??,
            Err(_) => digest(weights)?,
        };
        Ok((code, digest))
    })
}

/// The forks that stay, by a judge of the artifact in a folder.
fn judged(
    network: &Network,
    (folder, manifest): (&Path, &Manifest),
    judge: &mut Judge<'_>,
) -> Result<Vec<Fork>, ArtifactError> {
    if network.forks.is_empty() {
        return Ok(Vec::new());
    }
    match judge(folder, manifest) {
        ControlFlow::Continue(stays) => {
            let stays = network.forks.iter().zip(stays).filter(|(_, stays)| *stays);
            Ok(stays.map(|(fork, _)| fork.clone()).collect())
        }
        ControlFlow::Break(()) => Err(ArtifactError::Interrupted),
    }
}

fn compiled_forks(forks: &[Fork]) -> Vec<Vec<[usize; 2]>> {
    let strands = |fork: &Fork| fork.strands.iter().map(|strand| [strand.start, strand.end]).collect();
    forks.iter().map(strands).collect()
}

/// What is told of an artifact whose files have these digests.
fn manifest(
    name: &str,
    network: &Network,
    versions: &[Version<'_>],
    (bound, workspace_bytes): (&Bound, u64),
    files: BTreeMap<String, FileDigest>,
) -> Manifest {
    let tasks = network.tasks.iter().map(|task| CompiledTask {
        name: task.name.clone(),
        weight: task.weight,
        nodes: task.nodes.clone(),
        workload: task.workload.to_string(),
    });
    let mut manifest = Manifest {
        format: 0,
        tilescribe: env!("CARGO_PKG_VERSION").to_string(),
        name: name.to_string(),
        versions: versions.iter().map(compiled).collect(),
        symbols: network.symbols.list.iter().map(formula::symbol).collect(),
        inputs: bound.inputs.clone(),
        output_files: output_files(&bound.outputs),
        outputs: bound.outputs.clone(),
        precision: network.precision,
        states: bound.states.clone(),
        memory: Memory {
            arena_bytes: bound.memory.arena_bytes,
            intermediate_bytes: bound.memory.sum_bytes,
            lower_bound_bytes: bound.memory.lower_bound_bytes,
            workspace_bytes,
            weights_bytes: bound.weights.file_bytes,
        },
        plan: planned::plan(network),
        tasks: tasks.collect(),
        calls: network.calls.iter().map(|call| called(&call.callee)).collect(),
        regions: network.regions.iter().map(region).collect(),
        forks: compiled_forks(&network.forks),
        files,
    };
    manifest.format = manifest.least_format();
    manifest
}

/// What a call runs, as the manifest has it.
pub fn called(callee: &Callee) -> CompiledCall {
    match callee {
        Callee::Task(task) => CompiledCall::Task(*task),
        Callee::Library(routine) => CompiledCall::Library(routine.to_string()),
    }
}

fn region(region: &Region) -> CompiledRegion {
    let count = match region.kind {
        RegionKind::Repeat { count, .. } => Some(count),
        RegionKind::If { .. } | RegionKind::Nearest { .. } => None,
    };
    let is_choice = matches!(region.kind, RegionKind::Nearest { .. });
    CompiledRegion { first: region.calls.start, end: region.calls.end, count, is_choice }
}

/// A version as the manifest has it.
fn compiled(version: &Version<'_>) -> CompiledVersion {
    let schedule =
        |schedule: &Schedule| CompiledSchedule { trace: schedule.trace.to_string(), best_ns: schedule.best_ns };
    CompiledVersion {
        target: version.target.clone(),
        required_features: code::required_features(version.target),
        schedules: version.schedules.iter().map(schedule).collect(),
    }
}

/// Makes sure that an artifact may be written to a folder: nothing stands there, or an artifact and nothing
/// else, since all of it is replaced.
///
/// # Errors
/// [`ArtifactError::Occupied`] with what else there is.
pub fn check_output(folder: &Path) -> Result<(), ArtifactError> {
    match std::fs::symlink_metadata(folder) {
        Err(_) => return Ok(()),
        Ok(about) if about.is_dir() => {}
        Ok(_) => return Err(ArtifactError::Occupied(folder.into())),
    }
    let own = Manifest::files_of(folder).unwrap_or_default();
    for entry in std::fs::read_dir(folder).map_err(|source| ArtifactError::read(folder, source))? {
        let entry = entry.map_err(|source| ArtifactError::read(folder, source))?;
        if !entry.file_name().to_str().is_some_and(|name| own.contains(name)) {
            let other = if own.is_empty() { folder.to_path_buf() } else { entry.path() };
            return Err(ArtifactError::Occupied(other));
        }
    }
    Ok(())
}

/// Makes sure that the folder may be written, and returns the one that will hold it.
fn prepare(folder: &Path) -> Result<PathBuf, ArtifactError> {
    let folder = std::path::absolute(folder).map_err(|source| ArtifactError::write(folder, source))?;
    check_output(&folder)?;
    let parent = folder.parent().unwrap_or(&folder).to_path_buf();
    std::fs::create_dir_all(&parent).map_err(|source| ArtifactError::write(&parent, source))?;
    Ok(parent)
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), ArtifactError> {
    std::fs::write(path, bytes).map_err(|source| ArtifactError::write(path, source))
}

fn enter(progress: &mut dyn FnMut(Step) -> ControlFlow<()>, step: Step) -> Result<(), ArtifactError> {
    match progress(step) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(ArtifactError::Interrupted),
    }
}

/// Packs and writes all constants; returns the id of the file.
fn write_weights(
    network: &Network,
    nests: &[&Nest],
    bound: &Bound,
    path: &Path,
    progress: &mut dyn FnMut(Step) -> ControlFlow<()>,
) -> Result<String, ArtifactError> {
    let mut writer = Writer::create(path, &bound.weights)?;
    let mut setups: HashMap<usize, codegen::Kernel> = HashMap::new();
    let mut entry = 0;
    for (done, pack) in bound.packs.iter().enumerate() {
        enter(progress, Step::Weights { done, of: bound.packs.len() })?;
        match pack {
            Pack::Raw { buffer } => {
                let Source::Constant(data) = &network.buffers[*buffer].source else {
                    return Err(ArtifactError::Internal(format!("buffer {buffer} is no constant")));
                };
                writer.write(entry, &data.bytes)?;
                entry += 1;
            }
            Pack::Setup { call } => {
                let call = &network.calls[*call];
                let Some(task) = call.task() else {
                    return Err(ArtifactError::Internal("a routine packs nothing".into()));
                };
                let kernel = match setups.entry(task) {
                    std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                    std::collections::hash_map::Entry::Vacant(entry) => entry.insert(setup_kernel(nests[task])?),
                };
                for packed in run_setup(network, call, nests[task], kernel)? {
                    writer.write(entry, &packed.bytes[..packed.used])?;
                    entry += 1;
                }
            }
        }
    }
    writer.finish()
}

/// Memory that is aligned for vectors; mapped, so that it goes back to the system when it is dropped.
struct Aligned {
    bytes: MmapMut,
    used: usize,
}

impl Aligned {
    /// It takes up what is written to: scratch memory is laid out for extents of which a setup knows nothing.
    fn new(used: usize) -> Result<Aligned, ArtifactError> {
        let bytes = MmapOptions::new().len(used.max(1)).no_reserve_swap().map_anon();
        bytes.map(|bytes| Aligned { bytes, used }).map_err(ArtifactError::Memory)
    }
}

/// The setup of a nest, for this machine: what is packed does not depend on the target.
fn setup_kernel(nest: &Nest) -> Result<codegen::Kernel, ArtifactError> {
    let setup = Nest { body: Vec::new(), ..nest.clone() };
    Ok(codegen::Kernel::load(&setup, &codegen::host()?)?)
}

/// All packed buffers of a call, in order.
fn run_setup(
    network: &Network,
    call: &Call,
    nest: &Nest,
    kernel: &codegen::Kernel,
) -> Result<Vec<Aligned>, ArtifactError> {
    let mut memory = Vec::new();
    for (position, id) in nest.arguments().into_iter().enumerate() {
        memory.push(argument(network, call, nest, position, id)?);
    }
    let mut workspace = Aligned::new(kernel.workspace_bytes())?;
    let addresses: Vec<*mut u8> = memory.iter_mut().map(|argument| argument.bytes.as_mut_ptr()).collect();
    // SAFETY: constants and packed buffers, which are all that a setup touches, have the size that the nest
    // declares; all memory is aligned to pages, and nobody else uses it.
    unsafe { kernel.setup(&addresses, workspace.bytes.as_mut_ptr()) };
    let first_packed = call.arguments.len();
    Ok(memory.split_off(first_packed))
}

/// The memory of one argument of a setup: constants with their values, packed buffers empty, the rest not
/// there.
fn argument(
    network: &Network,
    call: &Call,
    nest: &Nest,
    position: usize,
    id: TensorId,
) -> Result<Aligned, ArtifactError> {
    let buffer = nest.buffer(id);
    match (buffer.scope, call.arguments.get(position)) {
        (Scope::Packed, _) => Aligned::new(buffer.bytes()),
        (Scope::Argument(Role::Constant), Some(binding)) => {
            let Source::Constant(data) = &network.buffers[binding.buffer].source else {
                return Err(ArtifactError::Internal(format!("{} is bound to no constant", buffer.name)));
            };
            let start = binding.offset as usize * buffer.dtype.bytes();
            let mut memory = Aligned::new(buffer.bytes())?;
            memory.bytes[..buffer.bytes()].copy_from_slice(&data.bytes[start..start + buffer.bytes()]);
            Ok(memory)
        }
        _ => Aligned::new(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::{Model, Resources};
    use crate::graph::{ImportOptions, TensorData, import, import_tensor, partition};
    use crate::space::Space;
    use crate::target::{Target, Task};

    /// Makes artifacts of a network of `tests/files/graph`, in each of which the range of one intermediate
    /// ends a call too early: how many they are, and in how many of them runs that poison what is free give
    /// other outputs.
    fn too_short(name: &str, case: &str) -> (usize, usize) {
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/graph").join(name);
        let network = partition(&import(&files.join("model.onnx"), &ImportOptions::default()).unwrap()).unwrap();
        let (space, target) = (Space::standard(), Target::Cpu(codegen::host().unwrap()));
        let task = |workload: &_| Task { workload: Clone::clone(workload), target: target.clone() };
        let schedules: Vec<Schedule> =
            network.tasks.iter().map(|t| Schedule::untuned(&space, &task(&t.workload)).unwrap()).collect();
        let versions = [Version { target: &target, schedules: &schedules }];
        let nests: Vec<&Nest> = schedules.iter().map(|schedule| &schedule.nest).collect();
        let bound = bind::bind(&network, &[nests]).unwrap();
        let inputs = network.buffers.iter().filter(|buffer| matches!(buffer.source, Source::Input(_))).count();
        let data = |at: usize| import_tensor(&files.join(format!("{case}/input_{at}.pb"))).unwrap();
        let inputs: Vec<TensorData> = (0..inputs).map(data).collect();
        let outputs = |bound: Bound| -> [Vec<TensorData>; 2] {
            let parent = tempfile::tempdir().unwrap();
            let options = Options { name: "net", folder: &parent.path().join("net") };
            let all = &mut |_: &Path, _: &Manifest| ControlFlow::Continue(Vec::new());
            compile_bound(&network, &versions, bound, &options, &mut |_| ControlFlow::Continue(()), all).unwrap();
            let model = Model::load(options.folder, Resources { threads: Some(1), ..Resources::default() }).unwrap();
            [false, true].map(|poison| {
                model.poison(poison).unwrap();
                model.run(&inputs).unwrap()
            })
        };
        let [expected, found] = outputs(bound.clone());
        assert!(found == expected, "{name}");
        let (mut mutants, mut caught) = (0, 0);
        for number in (0..bound.lives.len()).filter(|at| bound.lives[*at].first < bound.lives[*at].last) {
            let mut mutant = bound.clone();
            mutant.lives[number].last -= 1;
            let [unharmed, found] = outputs(mutant);
            assert!(unharmed == expected, "{name}");
            mutants += 1;
            caught += usize::from(found != expected);
        }
        (mutants, caught)
    }

    #[test]
    fn poison_shows_a_live_range_that_ends_too_early() {
        for (name, case) in [
            ("networks/attention", "test_data_set_0"),
            ("networks/scan_5", "test_data_set_0"),
            ("networks/regions", "test_data_set_0"),
            ("networks/lstm_2", "test_data_set_0"),
            ("open/layers", "case_0"),
        ] {
            let (mutants, caught) = too_short(name, case);
            assert!(mutants > 0 && caught == mutants, "{name}: {caught} of {mutants}");
        }
    }
}
