//! Groups become workloads, equal workloads become tasks, tensors become buffers.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::extent::{self, of_tensor};
use super::group::{Group, narrowed_rows};
use super::layout;
use super::name::task_name;
use super::plan::Planner;
use super::prepare::{Block, Prepared};
use super::{PartitionError, groups_of, planned_groups};
use crate::graph::{
    Binding, Call, Callee, Collected, Conditional, LibraryCall, Motion, Network, NetworkBuffer, NetworkTask, Program,
    Region, RegionKind, Repeat, Routine, RunTime, Scanned, Source, State, Step, TensorData,
};
use crate::workload::{Expr, Extents, Index, Role, Stage, Tensor, TensorId, Var, Workload, canonical};

/// The network of a program that was checked, as a plan has it.
pub fn assemble(program: &Program, planner: &mut Planner<'_, '_>) -> Result<Network, PartitionError> {
    let mut prepared = Prepared::new(program, Block { steps: &program.steps, results: &[], outputs: &program.outputs });
    layout::arrange(&mut prepared, planner)?;
    let mut assembly = Assembly {
        program,
        network: Network {
            symbols: program.symbols.clone(),
            carried: program.carried.clone(),
            precision: program.precision,
            ..Network::default()
        },
        place_of: HashMap::new(),
        constants: HashMap::new(),
        task_of: HashMap::new(),
        iterations: 1,
    };
    let (prepared, groups) = planned_groups(program, prepared, planner)?;
    let mut level = Level { prepared: &prepared, buffer_of: HashMap::new() };
    for (name, tensor) in &program.inputs {
        assembly.add_buffer(&mut level, *tensor, Source::Input(name.clone()));
    }
    for ((name, tensor), (_, given)) in prepared.outputs.iter().zip(&program.outputs) {
        let buffer = assembly.add_buffer(&mut level, *tensor, Source::Output(name.clone()));
        // a copy of what the program gives has lost its axes of extent 1
        let about = program.tensor(*given);
        let held = &mut assembly.network.buffers[buffer];
        (held.shape, held.extents) = (about.shape.clone(), about.extents.clone());
    }
    assembly.add_groups(&mut level, &groups);
    Ok(assembly.network)
}

impl NetworkTask {
    /// Floating-point operations of one call.
    pub fn flops(&self) -> i64 {
        self.workload.flops()
    }

    /// Bytes of one call's inputs, constants and outputs, each counted once: the least that it moves.
    pub fn bytes(&self) -> usize {
        super::validate::bound_tensors(&self.workload).map(|(id, _)| self.workload.touched_bytes(id)).sum()
    }
}

/// A number that is known only when it runs.
fn run_time(formula: &Index) -> Option<Index> {
    Some(formula.clone()).filter(|formula| formula.as_constant().is_none())
}

fn add(workload: &mut Workload, tensor: Tensor) -> TensorId {
    workload.tensors.push(tensor);
    TensorId(workload.tensors.len() as u32 - 1)
}

/// The groups that read each tensor.
fn readers(groups: &[Group]) -> HashMap<TensorId, Vec<usize>> {
    let mut found: HashMap<TensorId, Vec<usize>> = HashMap::new();
    for (at, group) in groups.iter().enumerate() {
        for member in &group.members {
            member.stage.value.for_each_load(&mut |tensor, _| found.entry(tensor).or_default().push(at));
        }
    }
    found
}

struct Assembly<'a> {
    program: &'a Program,
    network: Network,
    /// Where tensors lie that more than one block names.
    place_of: HashMap<TensorId, Binding>,
    /// Constant buffers by a hash of some of their elements.
    constants: HashMap<u64, Alike>,
    /// By canonical form.
    task_of: HashMap<Workload, usize>,
    /// How often what is added next runs.
    iterations: usize,
}

/// Constant buffers some of whose elements are equal, with the hash of all of them where that was needed:
/// most constants are told apart without reading all of their elements.
#[derive(Default)]
struct Alike(Vec<(usize, Option<u64>)>);

impl Alike {
    /// The buffer with these elements.
    fn equal_to<'d>(&mut self, data: &TensorData, data_of: &dyn Fn(usize) -> Option<&'d TensorData>) -> Option<usize> {
        let mut own = None;
        for (buffer, hash) in &mut self.0 {
            let Some(other) = data_of(*buffer) else { continue };
            let hash = *hash.get_or_insert_with(|| hash_of(&other.bytes));
            let is_equal = hash == *own.get_or_insert_with(|| hash_of(&data.bytes))
                && other.dtype == data.dtype
                && other.bytes == data.bytes;
            if is_equal {
                return Some(*buffer);
            }
        }
        None
    }
}

/// A hash of the type, the size and some bytes of a constant.
fn sample(data: &TensorData) -> u64 {
    const SAMPLES: usize = 16;
    const BYTES: usize = 16;
    let mut hasher = DefaultHasher::new();
    (data.dtype, data.bytes.len()).hash(&mut hasher);
    let step = (data.bytes.len() / SAMPLES).max(BYTES);
    for at in (0..data.bytes.len()).step_by(step) {
        hasher.write(&data.bytes[at..(at + BYTES).min(data.bytes.len())]);
    }
    hasher.finish()
}

fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// A block of steps while its calls are made.
struct Level<'a> {
    prepared: &'a Prepared,
    /// Buffers of its tensors; some of these are not the program's.
    buffer_of: HashMap<TensorId, usize>,
}

impl Assembly<'_> {
    /// Makes the calls of groups in execution order.
    fn add_groups(&mut self, level: &mut Level<'_>, groups: &[Group]) {
        let prepared = level.prepared;
        for step in &prepared.steps {
            if let Step::Repeat(repeat) = step {
                repeat.states.iter().for_each(|state| self.add_state(state, repeat));
            }
        }
        let needed = readers(groups);
        for (at, group) in groups.iter().enumerate() {
            let kept = |tensor: TensorId| {
                prepared.must_exist(tensor) || needed.get(&tensor).is_some_and(|by| by.iter().any(|g| *g != at))
            };
            match group.operation.map(|at| &prepared.steps[at]) {
                None => self.add_call(level, group, &kept),
                Some(operation) => self.add_operation(level, operation),
            }
        }
    }

    /// Memory for a state: iterations read one half of it and write the other, in turn.
    fn add_state(&mut self, state: &State, repeat: &Repeat) {
        let about = self.program.tensor(state.initial);
        let (elements, shape) = (about.elements(), [&[2], about.shape.as_slice()].concat());
        let size = self.network.symbols.elements(about);
        let buffer = self.network.buffers.len();
        self.network.buffers.push(NetworkBuffer {
            shape,
            extents: about.extents.moved(|axis| Some(axis + 1)),
            dtype: about.dtype,
            source: Source::Intermediate,
        });
        let moving = |phase| Binding {
            motion: Motion { step: elements, period: 2, phase },
            run_time: RunTime { step: run_time(&size), offset: None },
            ..Binding::fixed(buffer, 0)
        };
        self.place_of.insert(state.initial, Binding::fixed(buffer, 0));
        self.place_of.insert(state.current, moving(0));
        self.place_of.insert(state.next, moving(1));
        // after an odd number of iterations, the last one wrote the second half
        let (parity, most) = match &repeat.formula {
            Some(count) => (count.clone().modulo(2), 1),
            None => (Index::constant(repeat.count % 2), repeat.count % 2),
        };
        let last = Binding::fixed(buffer, 0).later(&self.network.symbols.product(&parity, &size), most * elements);
        self.place_of.insert(state.last, last);
    }

    fn add_operation(&mut self, level: &mut Level<'_>, operation: &Step) {
        // blocks find constants themselves
        let is_constant = |tensor: &TensorId| self.program.data[tensor.0 as usize].is_some();
        let shared: Vec<TensorId> = operation.reads().into_iter().filter(|tensor| !is_constant(tensor)).collect();
        for read in shared {
            let place = self.read_place(level, read);
            self.place_of.insert(read, place);
        }
        match operation {
            Step::Stage(_) => {}
            Step::Library(LibraryCall { routine: Routine::Copy { .. }, inputs, outputs, .. })
                if outputs.iter().all(|output| self.is_free(level, *output)) =>
            {
                for (input, output) in inputs.iter().zip(outputs) {
                    let place = self.read_place(level, *input);
                    self.place_of.insert(*output, place);
                }
            }
            Step::Library(LibraryCall { routine, sizes, inputs, outputs, count, .. }) => {
                let mut arguments: Vec<Binding> = inputs.iter().map(|input| self.read_place(level, *input)).collect();
                arguments.extend(outputs.iter().map(|output| self.binding(level, *output, 0)));
                self.network.calls.push(Call {
                    callee: Callee::Library(routine.clone()),
                    arguments,
                    parameters: sizes.clone(),
                    count: *count,
                });
            }
            Step::If(Conditional { condition, branches, outputs, .. }) => {
                let condition = self.read_place(level, *condition);
                for (branch, wanted) in branches.iter().zip([true, false]) {
                    for (result, output) in branch.results.iter().zip(outputs) {
                        let place = self.binding(level, *output, 0);
                        self.place_of.insert(*result, place);
                    }
                    let kind = RegionKind::If { condition: condition.clone(), wanted };
                    self.add_region(kind, &branch.steps, &branch.results);
                }
            }
            Step::Repeat(repeat) => {
                for Scanned { whole, part, reversed } in &repeat.scanned {
                    let whole = self.read_place(level, *whole);
                    let place = self.element(&whole, *part, repeat, *reversed);
                    self.place_of.insert(*part, place);
                }
                for Collected { part, whole, reversed } in &repeat.collected {
                    let whole = self.binding(level, *whole, 0);
                    let place = self.element(&whole, *part, repeat, *reversed);
                    self.place_of.insert(*part, place);
                }
                let results: Vec<TensorId> = repeat.states.iter().map(|state| state.next).collect();
                let results = [results, repeat.collected.iter().map(|collected| collected.part).collect()].concat();
                let going = repeat.going.and_then(|state| self.place_of.get(&repeat.states[state].current).cloned());
                let kind = RegionKind::Repeat { count: repeat.count, formula: repeat.formula.clone(), going };
                let outside = self.iterations;
                self.add_region(kind, &repeat.body, &results);
                self.iterations = outside;
            }
        }
    }

    /// Whether nothing has a place for a tensor yet: it may be wherever what it is a copy of is.
    fn is_free(&self, level: &Level<'_>, tensor: TensorId) -> bool {
        let is_own = level.prepared.storage(tensor) == (tensor, 0);
        is_own && !self.place_of.contains_key(&tensor) && !level.buffer_of.contains_key(&tensor)
    }

    /// Where an iteration finds its element of the leading axis of a tensor.
    fn element(&mut self, whole: &Binding, part: TensorId, repeat: &Repeat, reversed: bool) -> Binding {
        let about = self.program.tensor(part);
        let (size, most) = (self.network.symbols.elements(about), about.elements());
        let (direction, first) = match reversed {
            false => (1, whole.clone()),
            true => {
                let last = repeat.formula.clone().unwrap_or(Index::constant(repeat.count)).plus_constant(-1);
                (-1, whole.later(&self.network.symbols.product(&last, &size), (repeat.count - 1) * most))
            }
        };
        let motion = Motion { step: direction * most, period: 0, phase: 0 };
        Binding { motion, run_time: RunTime { step: run_time(&size.times(direction)), ..first.run_time }, ..first }
    }

    /// Where an operation finds a tensor that it reads.
    fn read_place(&mut self, level: &mut Level<'_>, tensor: TensorId) -> Binding {
        let resolved = level.prepared.resolved(tensor);
        self.binding(level, resolved, 0)
    }

    /// The calls of a block inside of an operation.
    fn add_region(&mut self, kind: RegionKind, steps: &[Step], results: &[TensorId]) {
        let (first, at) = (self.network.calls.len(), self.network.regions.len());
        let region = Region { calls: first..first, kind };
        self.iterations = self.iterations.saturating_mul(region.expected_iterations() as usize);
        self.network.regions.push(region);
        let (prepared, groups) =
            groups_of(self.program, Prepared::new(self.program, Block { steps, results, outputs: &[] }));
        let mut level = Level { prepared: &prepared, buffer_of: HashMap::new() };
        self.add_groups(&mut level, &groups);
        self.network.regions[at].calls.end = self.network.calls.len();
    }

    fn add_call(&mut self, level: &mut Level<'_>, group: &Group, kept: &dyn Fn(TensorId) -> bool) {
        let (mut workload, bindings) = self.workload(level, group, kept);
        let symbols = self.network.symbols.become_parameters(&mut workload);
        let canonical = canonical(&workload);
        let renumbered = bindings.into_iter().filter_map(|(id, at)| Some((canonical.tensors[id.0 as usize]?, at)));
        let arguments: BTreeMap<TensorId, Binding> = renumbered.collect();
        let renumbered = symbols.iter().zip(&canonical.parameters).filter_map(|(symbol, at)| Some(((*at)?, *symbol)));
        let parameters: BTreeMap<usize, Var> = renumbered.collect();
        let tasks = &mut self.network.tasks;
        let task = *self.task_of.entry(canonical.workload.clone()).or_insert_with(|| {
            let mut nodes: Vec<String> = Vec::new();
            for node in group.members.iter().flat_map(|m| &m.nodes) {
                if !nodes.contains(node) {
                    nodes.push(node.clone());
                }
            }
            // The name shows the axes as the network has them, before the canonical form merges some.
            let name = task_name(&workload, &nodes);
            tasks.push(NetworkTask { name, workload: canonical.workload, weight: 0, nodes });
            tasks.len() - 1
        });
        self.network.tasks[task].weight = self.network.tasks[task].weight.saturating_add(self.iterations);
        let (callee, arguments) = (Callee::Task(task), arguments.into_values().collect());
        let parameters = parameters.into_values().map(Index::var).collect();
        self.network.calls.push(Call { callee, arguments, parameters, count: None });
    }

    /// The group's computation, and by its tensors where inputs, constants and outputs lie.
    fn workload(
        &mut self,
        level: &mut Level<'_>,
        group: &Group,
        kept: &dyn Fn(TensorId) -> bool,
    ) -> (Workload, Vec<(TensorId, Binding)>) {
        let mut workload = Workload::default();
        let mut bindings = Vec::new();
        // By program tensor: its number in the workload, and the first of its rows that the workload sees.
        let mut own: HashMap<TensorId, (TensorId, i64)> = HashMap::new();
        let stages: Vec<&Stage> = group.members.iter().map(|m| &m.stage).collect();
        for stage in &stages {
            stage.value.for_each_load(&mut |tensor, _| {
                if own.contains_key(&tensor) || group.writes(tensor) {
                    return;
                }
                let source = level.prepared.tensor(tensor);
                let (mut shape, mut extents, mut first) = (source.shape.clone(), source.extents.clone(), 0);
                let least = |extent: &extent::Extent| level.prepared.least(extent);
                if let Some((row, count)) = narrowed_rows(&stages, tensor, &of_tensor(source), &least) {
                    (first, shape[0]) = (row, count);
                    extents = Extents::fixed();
                }
                if let Some((axis, pitch)) = level.prepared.pitches.get(&tensor) {
                    shape[*axis] = *pitch;
                }
                let skipped = first * shape.iter().skip(1).product::<i64>();
                let role = if source.role == Role::Constant { Role::Constant } else { Role::Input };
                let id = add(&mut workload, Tensor { shape, extents, role, dtype: source.dtype });
                bindings.push((id, self.binding(level, tensor, skipped)));
                own.insert(tensor, (id, first));
            });
            let role = if kept(stage.output) { Role::Output } else { Role::Intermediate };
            let dtype = level.prepared.tensor(stage.output).dtype;
            let extents = extent::formulas(&extent::spatial(stage));
            let shape = level.prepared.memory_shape(stage.output, &stage.spatial);
            debug_assert!(shape.is_some(), "a stage joined a group that it does not fit");
            let shape = shape.unwrap_or_else(|| stage.spatial.clone());
            let id = add(&mut workload, Tensor { shape, extents, role, dtype });
            if role == Role::Output {
                bindings.push((id, self.binding(level, stage.output, 0)));
            }
            own.insert(stage.output, (id, 0));
        }
        for stage in stages {
            let value = stage.value.map_loads(&mut |tensor, indices| {
                let (id, first) = own[&tensor];
                let shifted = |(d, index): (usize, &Index)| match d {
                    0 => index.clone().plus_constant(-first),
                    _ => index.clone(),
                };
                Some(Expr::load(id, indices.iter().enumerate().map(shifted).collect()))
            });
            workload.stages.push(Stage { output: own[&stage.output].0, value, ..stage.clone() });
        }
        (workload, bindings)
    }

    fn binding(&mut self, level: &mut Level<'_>, tensor: TensorId, skipped: i64) -> Binding {
        let (root, offset) = level.prepared.storage(tensor);
        if let Some(place) = self.place_of.get(&root) {
            return place.later(&Index::constant(offset + skipped), offset + skipped);
        }
        let buffer = match level.buffer_of.get(&root) {
            Some(buffer) => *buffer,
            None => match self.program.data.get(root.0 as usize).and_then(Option::as_ref) {
                Some(data) => self.constant_buffer(level, root, data),
                None => self.add_buffer(level, root, Source::Intermediate),
            },
        };
        Binding::fixed(buffer, offset + skipped)
    }

    /// Constants with equal elements share one buffer.
    fn constant_buffer(&mut self, level: &mut Level<'_>, tensor: TensorId, data: &TensorData) -> usize {
        let network = &self.network;
        let known = self.constants.entry(sample(data)).or_default();
        if let Some(buffer) = known.equal_to(data, &|buffer| match &network.buffers[buffer].source {
            Source::Constant(other) => Some(other),
            Source::Input(_) | Source::Output(_) | Source::Intermediate => None,
        }) {
            level.buffer_of.insert(tensor, buffer);
            return buffer;
        }
        let buffer = self.add_buffer(level, tensor, Source::Constant(data.clone()));
        self.constants.entry(sample(data)).or_default().0.push((buffer, None));
        buffer
    }

    fn add_buffer(&mut self, level: &mut Level<'_>, tensor: TensorId, source: Source) -> usize {
        // Shapes as in the program, with their axes of extent 1.
        let known = self.program.tensors.get(tensor.0 as usize).unwrap_or(level.prepared.tensor(tensor));
        self.network.buffers.push(NetworkBuffer {
            shape: known.shape.clone(),
            extents: known.extents.clone(),
            dtype: known.dtype,
            source,
        });
        level.buffer_of.insert(tensor, self.network.buffers.len() - 1);
        self.network.buffers.len() - 1
    }
}
