//! From a network and a schedule for each task to places: where every argument of every call is when the
//! network runs.

use std::collections::{BTreeSet, HashMap};

use tilescribe_runtime::{Port, StatePort};

use super::error::ArtifactError;
use super::extents::{self, Living};
use super::live;
use super::margins::margins;
use super::memory::{self, Block, MemoryPlan};
use super::ports::Ports;
use super::tables::{Argument, ExtentTables, Life, Place};
use super::weights::{Entry, Layout};
use crate::graph::{Binding, Call, Callee, Motion, Network, NetworkBuffer, Region, RegionKind, Source, bound_tensors};
use crate::nest::{Loop, Nest, Scope, Stmt};
use crate::workload::{Expr, Index, Role, TensorId};

/// Where everything is. Weights come from the constants themselves where a kernel reads them as they are, and
/// from a kernel's setup where it packs them.
#[derive(Clone, Debug)]
pub struct Bound {
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    pub states: Vec<StatePort>,
    pub memory: MemoryPlan,
    pub weights: Layout,
    /// How the weights are made, in the order in which they are written.
    pub packs: Vec<Pack>,
    /// By call, in the order of its nest's arguments, or of its routine's.
    pub arguments: Vec<Vec<Argument>>,
    /// By region.
    pub conditions: Vec<Option<Argument>>,
    /// `None`: all extents are fixed.
    pub extents: Option<ExtentTables>,
    /// The intermediates.
    pub lives: Vec<Life>,
}

/// Makes one or more neighbouring entries of the weights.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Pack {
    /// The constant of a buffer, as it is.
    Raw { buffer: usize },
    /// What the setup of a call's kernel writes: all its packed buffers, in order.
    Setup { call: usize },
}

/// What is packed alike is packed once: by the first task with such a setup, and the constants that it takes.
type PackKey = (usize, Vec<Binding>);

/// Binds all calls, for versions of the network that take the same arguments: `versions` holds the nests of
/// each by task. What a setup packs is the first version's.
///
/// # Errors
/// [`ArtifactError::Internal`] where the nests do not fit the network.
pub fn bind(network: &Network, versions: &[Vec<&Nest>]) -> Result<Bound, ArtifactError> {
    versions.iter().try_for_each(|nests| check(network, nests))?;
    let nests = versions.first().ok_or_else(|| ArtifactError::Internal("no version to bind".into()))?;
    let ports = Ports::of(network);
    let living = living(network);
    let (memory, arena) = plan_memory(network, &living);
    live::check(network, &arena, memory.arena_bytes)?;
    let (mut extents, block_of) = match network.symbols.is_empty() {
        true => (None, vec![None; network.buffers.len()]),
        false => {
            let (tables, block_of) = extents::tables(network, ports.extents.clone(), &living, &memory.offsets)?;
            (Some(tables), block_of)
        }
    };
    let mut found = Weights { setups: alike_setups(nests), ..Weights::default() };
    // weights are named by entry first, because their offsets are known only when all entries are
    let of_calls = found.of_calls(network, versions, nests);
    let of_conditions = found.of_conditions(network);
    let Weights { entries, packs, .. } = found;
    let weights = Layout::new(&entries);
    let places = Places { network, ports: &ports, weights: &weights, arena: &arena, block_of: &block_of };
    let arguments = places.of_calls(&of_calls);
    let conditions: Vec<Option<Argument>> = of_conditions
        .into_iter()
        .map(|found| found.map(|(binding, entry)| places.argument(entry, Some(binding))))
        .collect();
    if let Some(tables) = &mut extents {
        tables.shifts = extents::shifts(network, &arguments, &conditions);
        tables.countings = extents::countings(network, &arguments);
    }
    let lives = living.iter().map(|living| places.life(living)).collect();
    let Ports { inputs, outputs, states, .. } = ports;
    Ok(Bound { inputs, outputs, states, memory, weights, packs, arguments, conditions, extents, lives })
}

/// Where what is bound lies, once all of it is known.
struct Places<'a> {
    network: &'a Network,
    ports: &'a Ports,
    weights: &'a Layout,
    /// By buffer that is an intermediate: its offset, or else its block.
    arena: &'a [u64],
    block_of: &'a [Option<usize>],
}

impl Places<'_> {
    /// Arguments of all calls, in the order of their nests' arguments, from the entries of those in the
    /// weights.
    fn of_calls(&self, entries: &[Vec<Option<usize>>]) -> Vec<Vec<Argument>> {
        let mut numbers = 0;
        let of_call = |(call, entries): (&Call, &Vec<Option<usize>>)| {
            let own = entries.iter().enumerate().map(|(at, entry)| self.argument(*entry, call.arguments.get(at)));
            let mut arguments: Vec<Argument> = own.collect();
            // a kernel that takes numbers takes their address behind everything else
            if !call.parameters.is_empty() {
                let place = Place::Parameters { offset: numbers * size_of::<i64>() as u64 };
                arguments.push(Argument { place, motion: Motion::default() });
                numbers += call.parameters.len() as u64;
            }
            arguments
        };
        self.network.calls.iter().zip(entries).map(of_call).collect()
    }

    /// An argument that is an entry of the weights, or else what the binding names.
    fn argument(&self, entry: Option<usize>, binding: Option<&Binding>) -> Argument {
        let buffers = &self.network.buffers;
        let bytes = |elements: i64, buffer: usize| elements * buffers[buffer].dtype.bytes() as i64;
        let offset = binding.map_or(0, |b| bytes(b.offset, b.buffer) as u64);
        let place = match (entry, binding.map(|b| (b.buffer, &buffers[b.buffer].source))) {
            (Some(entry), _) => Place::Weights { offset: self.weights.offsets[entry] + offset },
            (None, Some((buffer, Source::Input(_) | Source::Output(_)))) => {
                self.ports.places[buffer].map_or(Place::Unused, |place| place.later(offset))
            }
            (None, Some((buffer, Source::Intermediate))) => self.intermediate(buffer, offset),
            (None, Some((_, Source::Constant(_))) | None) => Place::Unused,
        };
        let motion = binding.map_or(Motion::default(), |b| Motion { step: bytes(b.motion.step, b.buffer), ..b.motion });
        Argument { place, motion }
    }

    fn intermediate(&self, buffer: usize, offset: u64) -> Place {
        match self.block_of[buffer] {
            Some(block) => Place::Block { block, offset },
            None => Place::Arena { offset: self.arena[buffer] + offset },
        }
    }

    fn life(&self, (buffer, Block { bytes, first, last, .. }): &Living) -> Life {
        Life { place: self.intermediate(*buffer, 0), bytes: *bytes, first: *first, last: *last }
    }
}

/// The tensors of the weights file, as they are found.
#[derive(Default)]
struct Weights {
    entries: Vec<Entry>,
    packs: Vec<Pack>,
    /// By buffer.
    raw: HashMap<usize, usize>,
    packed: HashMap<PackKey, usize>,
    /// By task: the first one whose kernel packs alike.
    setups: Vec<usize>,
}

impl Weights {
    /// The entry of a buffer, if it is a constant.
    fn raw(&mut self, network: &Network, buffer: usize) -> Option<usize> {
        let about = network.buffers.get(buffer).filter(|about| is_constant(about))?;
        Some(*self.raw.entry(buffer).or_insert_with(|| {
            self.packs.push(Pack::Raw { buffer });
            self.entries.push(raw_entry(buffer, about));
            self.entries.len() - 1
        }))
    }

    /// By call, the entry of each argument of its nest, or of its routine, that is in the weights. What no
    /// version reads has none.
    fn of_calls(&mut self, network: &Network, versions: &[Vec<&Nest>], nests: &[&Nest]) -> Vec<Vec<Option<usize>>> {
        let mentions_of: Vec<Vec<Vec<bool>>> =
            versions.iter().map(|nests| nests.iter().map(|nest| body_mentions(nest)).collect()).collect();
        let is_read = |task: usize, id: TensorId| {
            mentions_of.iter().any(|version| version[task].get(id.0 as usize) == Some(&true))
        };
        let entries_of = |(number, call): (usize, &Call)| match call.callee {
            Callee::Task(task) => self.of_kernel(network, (number, call), (task, nests[task]), &|id| is_read(task, id)),
            Callee::Library(_) => call.arguments.iter().map(|binding| self.raw(network, binding.buffer)).collect(),
        };
        network.calls.iter().enumerate().map(entries_of).collect()
    }

    fn of_kernel(
        &mut self,
        network: &Network,
        (number, call): (usize, &Call),
        (task, nest): (usize, &Nest),
        is_read: &dyn Fn(TensorId) -> bool,
    ) -> Vec<Option<usize>> {
        let mut first_packed = None;
        let entry_of = |(position, id): (usize, &TensorId)| {
            let bound = call.arguments.get(position).map(|binding| binding.buffer);
            match (nest.buffer(*id).scope, bound) {
                (Scope::Argument(_), Some(buffer)) if is_read(*id) => self.raw(network, buffer),
                (Scope::Packed, _) => {
                    let first = *first_packed.get_or_insert_with(|| self.packed(number, task, call, nest));
                    // packed buffers are the last arguments, one after the other
                    let packed_before = position - call.arguments.len();
                    Some(first + packed_before)
                }
                _ => None,
            }
        };
        nest.arguments().iter().enumerate().map(entry_of).collect()
    }

    /// By region, what its condition is bound to, and the entry of that.
    fn of_conditions<'n>(&mut self, network: &'n Network) -> Vec<Option<(&'n Binding, Option<usize>)>> {
        let of_region =
            |region: &'n Region| region.condition().map(|condition| (condition, self.raw(network, condition.buffer)));
        network.regions.iter().map(of_region).collect()
    }

    /// The first entry of what a call's setup packs.
    fn packed(&mut self, number: usize, task: usize, call: &Call, nest: &Nest) -> usize {
        *self.packed.entry(pack_key(self.setups[task], call, nest)).or_insert_with(|| {
            self.packs.push(Pack::Setup { call: number });
            let first = self.entries.len();
            self.entries.extend(packed_entries(number, nest));
            first
        })
    }
}

/// Whether every call names existing tasks and buffers, and stays inside them.
fn check(network: &Network, nests: &[&Nest]) -> Result<(), ArtifactError> {
    let internal = |reason: String| Err(ArtifactError::Internal(reason));
    if nests.len() != network.tasks.len() {
        return internal(format!("{} schedules for {} tasks", nests.len(), network.tasks.len()));
    }
    network.validate().map_err(|error| ArtifactError::Internal(error.to_string()))?;
    for (number, call) in network.calls.iter().enumerate() {
        let Some(task) = call.task() else { continue };
        let nest = nests[task];
        let tensors: Vec<TensorId> =
            nest.arguments().into_iter().filter(|id| nest.buffer(*id).scope != Scope::Packed).collect();
        if nest.parameters.len() != call.parameters.len() {
            let (given, taken) = (call.parameters.len(), nest.parameters.len());
            return internal(format!("call {number} gives {given} numbers, its kernel takes {taken}"));
        }
        if tensors.len() != call.arguments.len() {
            let (given, taken) = (call.arguments.len(), tensors.len());
            return internal(format!("call {number} gives {given} arguments, its kernel takes {taken}"));
        }
        let bound = bound_tensors(&network.tasks[task].workload);
        for ((binding, id), (_, tensor)) in call.arguments.iter().zip(tensors).zip(bound) {
            let wanted = nest.buffer(id);
            let fits = network.buffers.get(binding.buffer).is_some_and(|buffer| {
                let constant = is_constant(buffer);
                let is_read_only = matches!(wanted.scope, Scope::Argument(Role::Input | Role::Constant));
                let role_fits =
                    (constant || wanted.scope != Scope::Argument(Role::Constant)) && (!constant || is_read_only);
                role_fits
                    && buffer.dtype == wanted.dtype
                    // where tensors lie in their buffers is what was validated
                    && wanted.shape == tensor.shape
            });
            if !fits {
                return internal(format!("call {number} binds {} to a buffer that does not hold it", wanted.name));
            }
        }
    }
    Ok(())
}

/// The plan, and the offset of each buffer that is an intermediate.
pub(super) fn plan_memory(network: &Network, living: &[Living]) -> (MemoryPlan, Vec<u64>) {
    let blocks: Vec<Block> = living.iter().map(|(_, block)| *block).collect();
    let plan = memory::plan(&blocks);
    let mut offsets = vec![0; network.buffers.len()];
    living.iter().zip(&plan.offsets).for_each(|((buffer, _), offset)| offsets[*buffer] = *offset);
    (plan, offsets)
}

/// The intermediates, at their largest, with the calls that need them.
pub(super) fn living(network: &Network) -> Vec<Living> {
    let mut found: Vec<Living> = Vec::new();
    let mut place_of = HashMap::new();
    let margins = margins(network);
    let mut mention = |buffer: usize, first: usize, last: usize| {
        let about = &network.buffers[buffer];
        if !matches!(about.source, Source::Intermediate) {
            return;
        }
        let place = *place_of.entry(buffer).or_insert_with(|| {
            let (row, others) = about.shape.split_last().unwrap_or((&1, &[]));
            let elements = others.iter().product::<i64>().saturating_mul(row.saturating_add(margins[buffer]));
            let bytes = elements as u64 * about.dtype.bytes() as u64;
            found.push((buffer, Block::new(bytes, first, last)));
            found.len() - 1
        });
        let (_, block): &mut Living = &mut found[place];
        (block.first, block.last) = (block.first.min(first), block.last.max(last));
    };
    for (number, call) in network.calls.iter().enumerate() {
        call.arguments.iter().for_each(|binding| mention(binding.buffer, number, number));
    }
    for region in &network.regions {
        match &region.kind {
            RegionKind::Nearest { .. } => {}
            RegionKind::If { condition, .. } => mention(condition.buffer, region.calls.start, region.calls.start),
            RegionKind::Repeat { going, .. } => {
                let last = region.calls.end - 1;
                going.iter().for_each(|going| mention(going.buffer, region.calls.start, last));
                outliving(network, region).into_iter().for_each(|buffer| mention(buffer, region.calls.start, last));
            }
        }
    }
    found.iter_mut().for_each(|(_, block)| live_in_strands(network, block));
    found
}

/// Takes note of the calls that run beside those that mention a block.
fn live_in_strands(network: &Network, block: &mut Block) {
    let fork_of = |call: usize| network.forks.iter().position(|fork| fork.calls().contains(&call));
    let (first, last) = (fork_of(block.first), fork_of(block.last));
    let start = first.map_or(block.first, |fork| network.forks[fork].calls().start);
    let end = last.map_or(block.last, |fork| network.forks[fork].calls().end - 1);
    block.alive = (start, end);
    let strand_in = |fork: usize| {
        let strands = [block.first, block.last].map(|call| network.forks[fork].strand_of(call));
        Some((fork, strands[0].filter(|_| strands[0] == strands[1])?))
    };
    block.strand = first.filter(|_| first == last).and_then(strand_in);
}

/// The buffers of a repetition that live longer than an iteration: those that are used outside of it, and
/// those of which iterations use different parts.
fn outliving(network: &Network, region: &Region) -> BTreeSet<usize> {
    let conditions = network.regions.iter().filter_map(|region| Some((region.calls.start, region.condition()?)));
    let bindings = network.calls.iter().enumerate().flat_map(|(at, call)| call.arguments.iter().map(move |b| (at, b)));
    let (mut inside, mut outside, mut found) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (at, binding) in bindings.chain(conditions) {
        if region.calls.contains(&at) {
            inside.insert(binding.buffer);
            found.extend((binding.motion.step != 0).then_some(binding.buffer));
        } else {
            outside.insert(binding.buffer);
        }
    }
    found.extend(inside.intersection(&outside));
    found
}

fn is_constant(buffer: &NetworkBuffer) -> bool {
    matches!(buffer.source, Source::Constant(_))
}

/// By task, the first whose setup is the same: programs of one computation for other extents often are.
fn alike_setups(nests: &[&Nest]) -> Vec<usize> {
    let mut first: HashMap<String, usize> = HashMap::new();
    let setup = |nest: &Nest| Nest { body: Vec::new(), ..nest.clone() }.to_string();
    let alike = |(task, nest): (usize, &&Nest)| *first.entry(setup(nest)).or_insert(task);
    nests.iter().enumerate().map(alike).collect()
}

fn pack_key(task: usize, call: &Call, nest: &Nest) -> PackKey {
    let is_packed_from = |(_, id): &(_, &TensorId)| nest.buffer(**id).scope == Scope::Argument(Role::Constant);
    let arguments = nest.arguments();
    (task, call.arguments.iter().zip(&arguments).filter(is_packed_from).map(|(binding, _)| binding.clone()).collect())
}

fn raw_entry(number: usize, buffer: &NetworkBuffer) -> Entry {
    Entry { name: format!("constant.{number}"), dtype: buffer.dtype, shape: buffer.shape.clone() }
}

fn packed_entries(call: usize, nest: &Nest) -> Vec<Entry> {
    let packed = nest.buffers.iter().filter(|buffer| buffer.scope == Scope::Packed);
    let entry = |(number, buffer): (usize, &crate::nest::Buffer)| Entry {
        name: format!("packed.{call}.{number}"),
        dtype: buffer.dtype,
        shape: buffer.shape.clone(),
    };
    packed.enumerate().map(entry).collect()
}

/// By buffer: whether the body, which runs every time, reads or writes it.
fn body_mentions(nest: &Nest) -> Vec<bool> {
    let mut mentioned = vec![false; nest.buffers.len()];
    nest.body.iter().for_each(|statement| mentions(statement, &mut |id| mentioned[id.0 as usize] = true));
    mentioned
}

fn mentions(statement: &Stmt, visit: &mut dyn FnMut(TensorId)) {
    let in_index = |index: &Index, visit: &mut dyn FnMut(TensorId)| {
        Expr::Index(index.clone()).for_each_load(&mut |id, _| visit(id));
    };
    match statement {
        Stmt::Loop(Loop { bounds, body, .. }) => {
            bounds.iter().for_each(|bound| in_index(bound, visit));
            body.iter().for_each(|inner| mentions(inner, visit));
        }
        Stmt::If { conditions, body } => {
            conditions.iter().for_each(|condition| in_index(&condition.index, visit));
            body.iter().for_each(|inner| mentions(inner, visit));
        }
        Stmt::Store { buffer, indices, value } | Stmt::Accumulate { buffer, indices, value, .. } => {
            visit(*buffer);
            indices.iter().for_each(|index| in_index(index, visit));
            value.for_each_load(&mut |id, _| visit(id));
        }
    }
}
