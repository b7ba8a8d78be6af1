//! Groups become workloads, equal workloads become tasks, tensors become buffers.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::group::{Group, narrowed_rows};
use super::name::task_name;
use super::prepare::Prepared;
use crate::graph::{Binding, Call, Network, NetworkBuffer, NetworkTask, Program, Source, TensorData};
use crate::workload::{Expr, Index, Role, Stage, TensorId, Workload, canonical};

/// The network of groups in execution order.
pub fn assemble(program: &Program, prepared: &Prepared, groups: &[Group]) -> Network {
    let mut assembly = Assembly {
        program,
        prepared,
        network: Network::default(),
        buffer_of: HashMap::new(),
        constants: HashMap::new(),
        task_of: HashMap::new(),
    };
    for (name, tensor) in &program.inputs {
        assembly.add_buffer(*tensor, Source::Input(name.clone()));
    }
    for (name, tensor) in &prepared.outputs {
        assembly.add_buffer(*tensor, Source::Output(name.clone()));
    }
    let needed = readers(groups);
    for (at, group) in groups.iter().enumerate() {
        let kept = |tensor: TensorId| {
            prepared.is_stored(tensor) || needed.get(&tensor).is_some_and(|by| by.iter().any(|g| *g != at))
        };
        assembly.add_call(group, &kept);
    }
    assembly.network
}

impl NetworkTask {
    /// Floating-point operations of one call.
    pub fn flops(&self) -> i64 {
        self.workload.flops()
    }

    /// Bytes of one call's inputs, constants and outputs, each counted once: the least that it moves.
    pub fn bytes(&self) -> usize {
        super::validate::bound_tensors(&self.workload).map(|(_, tensor)| tensor.bytes()).sum()
    }
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
    prepared: &'a Prepared,
    network: Network,
    buffer_of: HashMap<TensorId, usize>,
    /// Constant buffers by a hash of their elements.
    constants: HashMap<u64, Vec<usize>>,
    /// By canonical form.
    task_of: HashMap<Workload, usize>,
}

impl Assembly<'_> {
    fn add_call(&mut self, group: &Group, kept: &dyn Fn(TensorId) -> bool) {
        let (workload, bindings) = self.workload(group, kept);
        let canonical = canonical(&workload);
        let renumbered = bindings.into_iter().filter_map(|(id, at)| Some((canonical.tensors[id.0 as usize]?, at)));
        let arguments: BTreeMap<TensorId, Binding> = renumbered.collect();
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
        self.network.tasks[task].weight += 1;
        self.network.calls.push(Call { task, arguments: arguments.into_values().collect() });
    }

    /// The group's computation, and by its tensors where inputs, constants and outputs lie.
    fn workload(&mut self, group: &Group, kept: &dyn Fn(TensorId) -> bool) -> (Workload, Vec<(TensorId, Binding)>) {
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
                let source = self.prepared.tensor(tensor).clone();
                let (mut shape, mut first) = (source.shape, 0);
                if let Some((row, count)) = narrowed_rows(&stages, tensor, &shape) {
                    (first, shape[0]) = (row, count);
                }
                let skipped = first * shape.iter().skip(1).product::<i64>();
                let role = if source.role == Role::Constant { Role::Constant } else { Role::Input };
                let id = workload.add_tensor(shape, source.dtype, role);
                bindings.push((id, self.binding(tensor, skipped)));
                own.insert(tensor, (id, first));
            });
            let role = if kept(stage.output) { Role::Output } else { Role::Intermediate };
            let dtype = self.prepared.tensor(stage.output).dtype;
            let id = workload.add_tensor(stage.spatial.clone(), dtype, role);
            if role == Role::Output {
                bindings.push((id, self.binding(stage.output, 0)));
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

    fn binding(&mut self, tensor: TensorId, skipped: i64) -> Binding {
        let (root, offset) = self.prepared.storage(tensor);
        let buffer = match self.buffer_of.get(&root) {
            Some(buffer) => *buffer,
            None => match self.program.data.get(root.0 as usize).and_then(Option::as_ref) {
                Some(data) => self.constant_buffer(root, data),
                None => self.add_buffer(root, Source::Intermediate),
            },
        };
        Binding { buffer, offset: offset + skipped }
    }

    /// Constants with equal elements share one buffer.
    fn constant_buffer(&mut self, tensor: TensorId, data: &TensorData) -> usize {
        let mut hasher = DefaultHasher::new();
        (data.dtype, &data.bytes[..]).hash(&mut hasher);
        let key = hasher.finish();
        let equal = |buffer: &&usize| match &self.network.buffers[**buffer].source {
            Source::Constant(other) => other.dtype == data.dtype && other.bytes == data.bytes,
            Source::Input(_) | Source::Output(_) | Source::Intermediate => false,
        };
        if let Some(buffer) = self.constants.get(&key).and_then(|buffers| buffers.iter().find(equal)).copied() {
            self.buffer_of.insert(tensor, buffer);
            return buffer;
        }
        let buffer = self.add_buffer(tensor, Source::Constant(data.clone()));
        self.constants.entry(key).or_default().push(buffer);
        buffer
    }

    fn add_buffer(&mut self, tensor: TensorId, source: Source) -> usize {
        // Shapes as in the program, with their axes of extent 1.
        let known = self.program.tensors.get(tensor.0 as usize).unwrap_or(self.prepared.tensor(tensor));
        self.network.buffers.push(NetworkBuffer { shape: known.shape.clone(), dtype: known.dtype, source });
        self.buffer_of.insert(tensor, self.network.buffers.len() - 1);
        self.network.buffers.len() - 1
    }
}
