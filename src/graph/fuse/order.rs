//! Which groups wait for which others, and in what order they run.

use std::collections::{BTreeMap, BTreeSet};

use super::group::Group;
use super::{Fusion, loads};
use crate::workload::{Index, Stage};

impl Fusion<'_> {
    /// The groups that write what a stage reads, or count how far it goes.
    pub(super) fn producers(&self, stage: &Stage) -> BTreeSet<usize> {
        let filled = loads(stage).into_iter().flat_map(|tensor| self.prepared.filled_by(tensor));
        let mut producers: BTreeSet<usize> = filled.filter_map(|tensor| self.group_of.get(&tensor).copied()).collect();
        stage.for_each_formula(&mut |formula| producers.extend(self.counting_groups(formula)));
        producers
    }

    /// The groups that count what a formula depends on.
    pub(super) fn counting_groups(&self, formula: &Index) -> Vec<usize> {
        let tensors = self.counting.tensors_of(formula).into_iter();
        tensors.filter_map(|tensor| self.group_of.get(&tensor).copied()).collect()
    }

    /// The groups whose tensors a stage reads as they are. The one at the end of the longest chain comes
    /// first: by then the others are done, and equal blocks with and without a shortcut of their own end in
    /// equal tasks.
    pub(super) fn producers_latest_first(&self, stage: &Stage) -> Vec<usize> {
        let direct: BTreeSet<usize> = loads(stage).iter().filter_map(|t| self.group_of.get(t).copied()).collect();
        let mut depths = BTreeMap::new();
        let mut latest: Vec<(usize, usize)> = direct.into_iter().map(|g| (self.depth(g, &mut depths), g)).collect();
        latest.sort_unstable_by(|a, b| b.cmp(a));
        latest.into_iter().map(|(_, g)| g).collect()
    }

    /// The number of groups on the longest chain before a group.
    fn depth(&self, of: usize, known: &mut BTreeMap<usize, usize>) -> usize {
        let mut pending = vec![of];
        while let Some(g) = pending.last().copied() {
            let after = self.groups[g].as_ref().map(|group| &group.after);
            let before: Vec<usize> = after.into_iter().flatten().copied().collect();
            let open: Vec<usize> = before.iter().copied().filter(|a| !known.contains_key(a)).collect();
            if open.is_empty() {
                known.insert(g, before.iter().map(|a| known[a] + 1).max().unwrap_or(0));
                pending.pop();
            }
            pending.extend(open);
        }
        known[&of]
    }

    /// Whether group `g` would depend on itself if `stage` joined it.
    pub(super) fn would_wait_for_itself(&self, g: usize, stage: &Stage) -> bool {
        self.producers(stage).into_iter().any(|other| other != g && self.depends_on(other, g))
    }

    pub(super) fn depends_on(&self, group: usize, on: usize) -> bool {
        let mut seen = BTreeSet::new();
        let mut pending = vec![group];
        while let Some(at) = pending.pop() {
            if at == on {
                return true;
            }
            if seen.insert(at) {
                pending.extend(self.groups[at].iter().flat_map(|g| g.after.iter().copied()));
            }
        }
        false
    }

    /// What groups that become one wait for; `None` where one of these waits for them.
    pub(super) fn before_all(&self, parts: &[usize]) -> Option<BTreeSet<usize>> {
        let of_parts = parts.iter().flat_map(|part| &self.groups[*part]).flat_map(|group| &group.after);
        let after: BTreeSet<usize> = of_parts.copied().filter(|other| !parts.contains(other)).collect();
        let is_apart = |other: &usize| parts.iter().all(|part| !self.depends_on(*other, *part));
        after.iter().all(is_apart).then_some(after)
    }

    /// Puts a group in the place of `by`, and of others that are in it now.
    pub(super) fn replace(&mut self, gone: &[usize], by: usize, joined: Group) {
        self.note_members(by, &joined);
        self.groups[by] = Some(joined);
        gone.iter().for_each(|part| self.groups[*part] = None);
        for group in self.groups.iter_mut().flatten() {
            let before = group.after.len();
            group.after.retain(|other| !gone.contains(other));
            if group.after.len() < before {
                group.after.insert(by);
            }
        }
    }

    /// Every group after those that it reads from, otherwise in the order of the program.
    pub(super) fn execution_order(&self) -> Vec<usize> {
        let mut done = BTreeSet::new();
        let mut order = Vec::new();
        let mut pending: BTreeSet<usize> = (0..self.groups.len()).filter(|g| self.groups[*g].is_some()).collect();
        while let Some(next) = pending
            .iter()
            .copied()
            .find(|g| self.groups[*g].as_ref().is_some_and(|group| group.after.iter().all(|a| done.contains(a))))
        {
            pending.remove(&next);
            done.insert(next);
            order.push(next);
        }
        debug_assert!(pending.is_empty(), "groups wait for one another in a circle");
        order
    }
}
