//! Fusion: a program of many stages becomes a network of few tasks.
//!
//! The stages are visited once, in order, and each finds its place:
//!
//! - A *reduction* (matrix product, convolution, pooling, mean) anchors a new task, unless it reduces the
//!   same rows as a task whose results it reads: then it continues that task's row chain (softmax, layer
//!   norm; [`rows`]).
//! - An *element-wise* stage joins the task that produced its operand as an epilogue, where it reads each
//!   element of it once, in order or permuted (then the anchor computes in the permuted order), and where
//!   nobody else needs that operand or the stage is too expensive to be computed twice.
//! - Otherwise it waits: readers compute it as a part of themselves (prologue) if [`cost::recompute`] says
//!   so; else it is stored by the task of its operand, or by one of its own.
//!
//! Then contractions join the row chain between them (attention), where nobody else reads what one leaves to
//! the next ([`chain`]); and pairs of reductions become one where a plan says so ([`pair`]).
//!
//! Operations (branches, repetitions, calls of the run-time library) are groups that nothing joins: what they
//! read is stored. The blocks of steps inside of them are cut by themselves.
//!
//! Views and concatenations are gone before that ([`prepare`]), and tensors have the layouts that a [`Plan`]
//! decides ([`layout`]). Joining never makes tasks wait for one another in a circle ([`order`]).

mod chain;
mod concat;
mod cost;
mod evaluate;
mod extent;
mod group;
mod halo;
mod layout;
mod name;
mod network;
mod order;
mod pair;
mod plan;
mod planned;
mod prepare;
mod round;
mod rows;
mod short;
mod size;
mod validate;
mod view;
mod written;

pub use evaluate::NetworkEvaluateError;
pub use plan::{Concern, Kind, Plan, Planned, Prefer};
pub use planned::{partition, partition_as, partition_with};
pub use validate::{NetworkError, bound_tensors};

use std::collections::{BTreeMap, BTreeSet, HashSet};

use thiserror::Error;

use super::step::Counting;
use super::{Program, Symbols};
use crate::trace::{Reason, Stale, Words};
use crate::workload::{Stage, TensorId};
use cost::{Cost, Reader};
use group::{Group, Member, inline_members};
use plan::Planner;
use prepare::{Prepared, extents_of};
use round::{without_bytes, without_quotients, without_roundings};
use size::{Size, count_loads, fits_task, is_full, may_be_copied};
use view::tidy;

/// A program that breaks the invariants of [`Program`], the mistake of whoever made it; or a plan of another
/// program.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PartitionError {
    #[error("{node}: there is no tensor {id}")]
    UnknownTensor { id: u32, node: String },
    #[error("{node}: tensor {id} is accessed with a rank or a shape that it does not have")]
    Rank { id: u32, node: String },
    #[error("{node}: tensor {id} is read before any stage writes it")]
    ReadBeforeWrite { id: u32, node: String },
    #[error("{node}: tensor {id} is written a second time")]
    WrittenTwice { id: u32, node: String },
    #[error("constant {id} has no data")]
    NoData { id: u32 },
    #[error("{node}: tensor {id} has no elements")]
    Extent { id: u32, node: String },
    /// Not the program's mistake, but the plan's.
    #[error("the plan is not one of this network: {0}")]
    Stale(#[from] Stale),
    #[error("the plan ends where `{site}` is asked")]
    Open { site: Words },
    #[error(transparent)]
    DeadEnd(#[from] Reason),
}

/// Cuts a prepared block of a program; groups come in execution order.
fn groups_of(program: &Program, prepared: Prepared) -> (Prepared, Vec<Group>) {
    Fusion::cut(program, prepared).in_order()
}

/// The same as a plan says.
fn planned_groups(
    program: &Program,
    prepared: Prepared,
    planner: &mut Planner<'_, '_>,
) -> Result<(Prepared, Vec<Group>), PartitionError> {
    let mut fusion = Fusion::cut(program, prepared);
    fusion.join_pairs(planner)?;
    Ok(fusion.in_order())
}

struct Fusion<'p> {
    prepared: Prepared,
    /// Positions of steps that read a tensor, by tensor.
    readers: Vec<Vec<usize>>,
    /// Element-wise stages that wait for their readers, with everything that they recompute already inside.
    waiting: BTreeMap<TensorId, Member>,
    /// `None` where one group was absorbed by another.
    groups: Vec<Option<Group>>,
    /// The group that writes a tensor.
    group_of: BTreeMap<TensorId, usize>,
    /// The groups that read a tensor, or did before they were joined with others.
    reading: BTreeMap<TensorId, BTreeSet<usize>>,
    counting: Counting<'p>,
}

impl<'p> Fusion<'p> {
    fn new(prepared: Prepared, symbols: &'p Symbols) -> Fusion<'p> {
        let mut readers = vec![Vec::new(); prepared.tensors.len()];
        for (at, step) in prepared.steps.iter().enumerate() {
            match step.stage() {
                Some(stage) => loads(&stage.stage).into_iter().for_each(|tensor| readers[tensor.0 as usize].push(at)),
                None => step.reads().into_iter().for_each(|t| readers[prepared.resolved(t).0 as usize].push(at)),
            }
        }
        let counting = Counting::of(symbols, &prepared.steps);
        let (waiting, groups, group_of) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        Fusion { prepared, readers, waiting, groups, group_of, reading: BTreeMap::new(), counting }
    }

    /// All stages of a block in groups, without a plan.
    fn cut(program: &'p Program, mut prepared: Prepared) -> Fusion<'p> {
        concat::assemble(&mut prepared);
        prepared.remove_dead_stages();
        let mut fusion = Fusion::new(prepared, &program.symbols);
        for at in 0..fusion.prepared.steps.len() {
            fusion.visit(at);
        }
        fusion.absorb_row_prologues();
        fusion.inline_within_groups();
        fusion.join_contractions();
        fusion
    }

    fn in_order(mut self) -> (Prepared, Vec<Group>) {
        let order = self.execution_order();
        let groups = order.into_iter().filter_map(|at| self.groups[at].take()).collect();
        (self.prepared, groups)
    }

    fn visit(&mut self, at: usize) {
        let Some(program_stage) = self.prepared.steps[at].stage() else { return self.start_operation(at) };
        let member = Member { stage: program_stage.stage.clone(), nodes: vec![program_stage.node.clone()] };
        let member = self.with_prologue(member);
        if member.stage.is_reduction() {
            if !self.continue_row_chain(&member) {
                self.start_group(member);
            }
        } else if !self.join_as_epilogue(&member, at) {
            if self.prepared.is_stored(member.stage.output) {
                self.store(member);
            } else {
                self.waiting.insert(member.stage.output, member);
            }
        }
    }

    /// Takes the waiting stages that it reads into the member; those that must not be recomputed are stored.
    fn with_prologue(&mut self, member: Member) -> Member {
        let read = loads(&member.stage);
        for tensor in &read {
            if self.waiting.contains_key(tensor) && !self.is_recomputed(*tensor) {
                self.store_waiting(*tensor);
            }
        }
        self.store_what_grows_too_large(&member.stage, &read);
        let joined = self.with_inlined(&member);
        if !is_full(&joined.stage.value) || !read.iter().any(|tensor| self.waiting.contains_key(tensor)) {
            return joined;
        }
        // Indices that are put into indices have grown beyond the estimate.
        read.into_iter().for_each(|tensor| self.store_waiting(tensor));
        member
    }

    /// The member, with the waiting stages that it reads inside of it.
    fn with_inlined(&self, member: &Member) -> Member {
        let mut member = member.clone();
        let mut nodes = Vec::new();
        let value = member.stage.value.map_loads(&mut |tensor, indices| {
            let producer = self.waiting.get(&tensor)?;
            nodes.extend(producer.nodes.iter().cloned());
            Some(producer.stage.value.substitute(&|var| indices.get(var.0 as usize).cloned()))
        });
        member.stage.value = tidy(&value, &extents_of(&member.stage));
        nodes.append(&mut member.nodes);
        let mut seen = HashSet::new();
        nodes.retain(|node| seen.insert(node.clone()));
        member.nodes = nodes;
        member
    }

    /// Stores waiting stages that `stage` reads until what remains of them fits into it, the largest first.
    fn store_what_grows_too_large(&mut self, stage: &Stage, read: &[TensorId]) {
        let mut inlined: Vec<(usize, Size, TensorId)> = Vec::new();
        for tensor in read {
            let Some(producer) = self.waiting.get(tensor) else { continue };
            let (copies, size) = (count_loads(&stage.value, *tensor), Size::of(&producer.stage.value));
            match may_be_copied(size, copies) {
                true => inlined.push((copies, size, *tensor)),
                false => self.store_waiting(*tensor),
            }
        }
        let own = Size::of(&stage.value);
        inlined.sort_by_key(|(copies, size, _)| copies * size.parts);
        let fits = |inlined: &[(usize, Size, TensorId)]| {
            let parts = inlined.iter().map(|(copies, size, _)| copies * size.parts).sum();
            let depth = inlined.iter().map(|(_, size, _)| size.depth).max().unwrap_or(0);
            own.with_inlined(1, Size { parts, depth }).fits()
        };
        while !fits(&inlined) {
            let Some((_, _, largest)) = inlined.pop() else { return };
            self.store_waiting(largest);
        }
    }

    fn store_waiting(&mut self, tensor: TensorId) {
        if let Some(producer) = self.waiting.remove(&tensor) {
            self.store(producer);
        }
    }

    /// Whether all readers of a waiting stage compute it again.
    fn is_recomputed(&self, tensor: TensorId) -> bool {
        let stage = &self.waiting[&tensor].stage;
        if cost::dequantizes(&stage.value, &|tensor| self.prepared.tensor(tensor).dtype) {
            return true;
        }
        let elements = stage.points();
        let readers: Vec<Reader> = self
            .final_readers(tensor)
            .into_iter()
            .filter_map(|at| self.prepared.steps[at].stage())
            .map(|reader| Reader::of(&reader.stage, elements))
            .collect();
        let own_size = |t: &TensorId| self.prepared.tensor(*t).elements() * 2 >= elements;
        let operands = loads(stage).into_iter().filter(own_size).count();
        cost::recompute(Cost::of(&stage.value), operands, &readers)
    }

    /// The stages that read a tensor, seen through waiting ones.
    fn final_readers(&self, tensor: TensorId) -> BTreeSet<usize> {
        let (mut found, mut seen) = (BTreeSet::new(), HashSet::new());
        let mut pending = vec![tensor];
        while let Some(tensor) = pending.pop() {
            for at in &self.readers[tensor.0 as usize] {
                match self.prepared.steps[*at].stage().map(|stage| stage.stage.output) {
                    Some(output) if self.waiting.contains_key(&output) => {
                        pending.extend(seen.insert(output).then_some(output));
                    }
                    _ => {
                        found.insert(*at);
                    }
                }
            }
        }
        found
    }

    /// Whether stage `at` is the only one outside of group `g` that needs a tensor of it.
    fn is_only_reader(&self, at: usize, g: usize, tensor: TensorId) -> bool {
        let group_of = |reader: usize| self.group_of.get(&self.prepared.steps[reader].stage()?.stage.output);
        let inside = |reader: usize| group_of(reader) == Some(&g);
        !self.prepared.is_stored(tensor) && self.final_readers(tensor).into_iter().all(|r| r == at || inside(r))
    }

    /// Appends an element-wise stage to the task that wrote one of its operands.
    fn join_as_epilogue(&mut self, member: &Member, at: usize) -> bool {
        let stage = &member.stage;
        let must_be_stored = self.prepared.is_stored(stage.output) || Cost::of(&stage.value).expensive > 0;
        for g in self.producers_latest_first(stage) {
            let Some(group) = self.open_group(g, stage) else { continue };
            let own: Vec<TensorId> = loads(stage).into_iter().filter(|t| group.writes(*t)).collect();
            let only_reader = own.iter().all(|tensor| self.is_only_reader(at, g, *tensor));
            if (only_reader || must_be_stored)
                && let Some(aligned) = self.aligned(group, stage)
            {
                self.join(g, Member { stage: aligned, nodes: member.nodes.clone() });
                return true;
            }
            let nobody_else = || group.members.iter().all(|m| self.is_only_reader(at, g, m.stage.output));
            if only_reader
                && nobody_else()
                && let Some((permuted, aligned)) = group.permute(stage, &self.prepared.tensors)
                && self.prepared.fits_memory(&aligned)
            {
                self.groups[g] = Some(permuted);
                self.join(g, Member { stage: aligned, nodes: member.nodes.clone() });
                return true;
            }
        }
        false
    }

    /// Group `g` has these members from now on.
    fn note_members(&mut self, g: usize, group: &Group) {
        for Member { stage, .. } in &group.members {
            self.group_of.insert(stage.output, g);
            self.note_reads(g, stage);
        }
    }

    fn note_reads(&mut self, g: usize, stage: &Stage) {
        for tensor in loads(stage) {
            self.reading.entry(tensor).or_default().insert(g);
        }
    }

    /// A stage over the axes of a group, if it fits there and can write where its output lies.
    fn aligned(&self, group: &Group, stage: &Stage) -> Option<Stage> {
        group.align(stage, &self.prepared.tensors).filter(|aligned| self.prepared.fits_memory(aligned))
    }

    /// A stage whose result must be in memory: written by the task of an operand if it aligns, else by its
    /// own.
    fn store(&mut self, member: Member) {
        for g in self.producers_latest_first(&member.stage) {
            let Some(group) = self.open_group(g, &member.stage) else { continue };
            if let Some(stage) = self.aligned(group, &member.stage) {
                return self.join(g, Member { stage, nodes: member.nodes });
            }
        }
        self.start_group(member);
    }

    /// A group that `stage` may join: it stays small enough, does not wait for itself, and `stage` reads no
    /// quantised tensor of it that others want in memory, nor a concatenation that it fills.
    fn open_group(&self, g: usize, stage: &Stage) -> Option<&Group> {
        let group = self.groups[g].as_ref().filter(|group| group.operation.is_none())?;
        let is_quantized = |tensor: &TensorId| group.writes(*tensor) && self.prepared.is_quantized(*tensor);
        if loads(stage).iter().any(|tensor| is_quantized(tensor) && (stage.is_reduction() || !self.flows_on(*tensor))) {
            return None;
        }
        if self.reads_joined(stage, g) {
            return None;
        }
        let fits = || fits_task(group.members.iter().map(|member| &member.stage).chain([stage]));
        (!self.would_wait_for_itself(g, stage) && fits()).then_some(group)
    }

    /// Whether a stage reads a concatenation that a group fills. A task does not find in memory what it
    /// writes there itself.
    fn reads_joined(&self, stage: &Stage, g: usize) -> bool {
        let is_assembly = |tensor: &TensorId| self.prepared.assemblies.contains_key(tensor);
        let mut parts = loads(stage).into_iter().filter(is_assembly).flat_map(|tensor| self.prepared.filled_by(tensor));
        parts.any(|part| self.group_of.get(&part) == Some(&g))
    }

    /// An operation, which nothing joins; what it reads is stored by now.
    fn start_operation(&mut self, at: usize) {
        let step = &self.prepared.steps[at];
        let filled =
            step.reads().into_iter().flat_map(|tensor| self.prepared.filled_by(self.prepared.resolved(tensor)));
        let mut after: BTreeSet<usize> = filled.filter_map(|tensor| self.group_of.get(&tensor).copied()).collect();
        step.for_each_formula(&mut |formula| after.extend(self.counting_groups(formula)));
        for output in step.outputs() {
            self.group_of.insert(output, self.groups.len());
        }
        self.groups.push(Some(Group::operation(at, after)));
    }

    fn start_group(&mut self, member: Member) {
        let after = self.producers(&member.stage);
        self.group_of.insert(member.stage.output, self.groups.len());
        self.note_reads(self.groups.len(), &member.stage);
        let group = Group { after, ..Group::new(member, &self.prepared.tensors) };
        self.groups.push(Some(group));
    }

    fn join(&mut self, g: usize, member: Member) {
        let mut after = self.producers(&member.stage);
        after.remove(&g);
        self.group_of.insert(member.stage.output, g);
        self.note_reads(g, &member.stage);
        if let Some(group) = &mut self.groups[g] {
            group.after.extend(after);
            group.members.push(member);
        }
    }

    fn inline_within_groups(&mut self) {
        let mut needed: BTreeMap<TensorId, BTreeSet<usize>> = BTreeMap::new();
        for (g, group) in self.groups.iter().enumerate() {
            for tensor in group.iter().flat_map(|g| &g.members).flat_map(|m| loads(&m.stage)) {
                needed.entry(tensor).or_default().insert(g);
            }
        }
        for (g, group) in self.groups.iter_mut().enumerate() {
            let outside = |t: &TensorId| needed.get(t).is_some_and(|by| by.iter().any(|other| *other != g));
            let prepared = &self.prepared;
            if let Some(group) = group {
                inline_members(group, &|tensor| prepared.must_exist(tensor) || outside(&tensor));
                for member in &mut group.members {
                    let value = without_roundings(&member.stage.value, &|id| prepared.tensor(id).dtype);
                    member.stage.value = without_quotients(without_bytes(&value));
                }
            }
        }
    }
}

/// The distinct tensors that a stage reads, in the order in which it does.
fn loads(stage: &Stage) -> Vec<TensorId> {
    let mut found = Vec::new();
    stage.value.for_each_load(&mut |tensor, _| {
        if !found.contains(&tensor) {
            found.push(tensor);
        }
    });
    found
}
