//! Row chains: reductions of the same rows, and what is element-wise before them, in one task.

use std::collections::BTreeSet;

use super::group::{Group, Member};
use super::prepare::extents_of;
use super::size::fits_task;
use super::view::flat;
use super::{Fusion, loads};
use crate::workload::{Stage, TensorId};

/// As many row groups are tried that read what a stage reads, and write nothing that it does.
const MAX_SIBLINGS: usize = 32;

impl Fusion<'_> {
    /// Appends a reduction to a task that reduces the same rows.
    pub(super) fn continue_row_chain(&mut self, member: &Member) -> bool {
        let stage = &member.stage;
        for g in self.producers_latest_first(stage).into_iter().chain(self.siblings(stage)) {
            let Some(group) = self.open_group(g, stage).filter(|g| g.columns.is_some()) else { continue };
            let Some(aligned) = self.aligned(group, stage) else { continue };
            let axes = aligned.rank();
            let reads_row = loads(&aligned).into_iter().any(|t| group.view(t).is_some_and(|view| view.len() == axes));
            if reads_row || self.shares_row(group, &aligned) {
                self.join(g, Member { stage: aligned, nodes: member.nodes.clone() });
                return true;
            }
        }
        false
    }

    /// Row groups that read a tensor that `stage` reads too, the latest first.
    fn siblings(&self, stage: &Stage) -> Vec<usize> {
        let is_chain = |g: &usize| self.groups[*g].as_ref().is_some_and(|group| group.columns.is_some());
        let reading = |tensor: &TensorId| self.reading.get(tensor).into_iter().flatten().rev().copied();
        let latest = |tensor: TensorId| reading(&tensor).filter(is_chain).take(MAX_SIBLINGS).collect::<Vec<_>>();
        let found: BTreeSet<usize> = loads(stage).into_iter().flat_map(latest).collect();
        found.into_iter().rev().take(MAX_SIBLINGS).collect()
    }

    /// Whether `aligned` reads a tensor at the very addresses at which a reduction of the group reads it.
    fn shares_row(&self, group: &Group, aligned: &Stage) -> bool {
        let addresses = |stage: &Stage| {
            let extents = extents_of(stage);
            let mut found = Vec::new();
            stage.value.for_each_load(&mut |tensor, indices| {
                let shape = &self.prepared.tensor(tensor).shape;
                if !group.writes(tensor) && shape.iter().product::<i64>() >= extents.iter().product::<i64>() {
                    found.push((tensor, flat(indices, shape, &extents)));
                }
            });
            found
        };
        let own = addresses(aligned);
        let reductions = group.members.iter().filter(|m| m.stage.is_reduction());
        reductions.into_iter().any(|m| addresses(&m.stage).iter().any(|address| own.contains(address)))
    }

    /// A lone element-wise task in front of a row chain (the sum of embeddings before a layer norm) becomes
    /// its first stage.
    pub(super) fn absorb_row_prologues(&mut self) {
        for e in 0..self.groups.len() {
            let is_plain = |group: &Group| !group.has_reduction() && group.operation.is_none();
            let Some(prologue) = self.groups[e].clone().filter(is_plain) else { continue };
            let is_chain = |g: &usize| {
                self.groups[*g].as_ref().is_some_and(|group| group.columns.is_some() && group.after.contains(&e))
            };
            let chains: Vec<usize> = (0..self.groups.len()).filter(is_chain).collect();
            let target = chains.into_iter().find_map(|g| {
                let chain = self.groups[g].take()?;
                let indirect = || chain.after.iter().any(|other| *other != e && self.depends_on(*other, e));
                let in_memory = || chain.members.iter().any(|member| self.reads_joined(&member.stage, e));
                let is_apart = indirect() || in_memory() || self.reads_quantized(&chain, &prologue);
                let merged = if is_apart { None } else { self.merged(&prologue, &chain) };
                self.groups[g] = Some(chain);
                merged.map(|merged| (g, merged))
            });
            let Some((g, mut merged)) = target else { continue };
            merged.after = merged.after.iter().chain(&prologue.after).copied().filter(|a| *a != e).collect();
            merged.after.remove(&g);
            self.replace(&[e], g, merged);
        }
    }

    /// The row chain with the prologue's stages in front, if they align.
    fn merged(&mut self, prologue: &Group, chain: &Group) -> Option<Group> {
        let mut merged = Group { members: Vec::new(), ..chain.clone() };
        let tensors = &mut self.prepared.tensors;
        let fits = merged.append(prologue, tensors) && merged.append(chain, tensors);
        let fits = fits && merged.members.iter().all(|member| self.prepared.fits_memory(&member.stage));
        (fits && fits_task(merged.members.iter().map(|member| &member.stage))).then_some(merged)
    }
}
