//! Pairs of reductions as one task: the second takes what the first leaves while it is near.
//!
//! ```text
//! t[h, w, c] = Σ x[h + i, w + j, c] · u[c, i, j]     y[h, w, o] = Σ t[h, w, c] · v[o, c]
//!
//! join 2 = apart     two tasks: all of t is written, and read again
//! join 2 = rows      one task: block by block of the rows h, w
//! join 2 = halos     one task, where the second slides over the first's rows ([`super::halo`])
//! ```
//!
//! No operator is named. A pair is offered where nobody else reads what the first leaves, where both share
//! leading axes, and where that is worth a task of its own: what is not written is more than the constants
//! that every block reads instead, and a fair part of the work.

use std::collections::{BTreeMap, BTreeSet};

use super::extent::{self, Extent, points};
use super::group::{Group, Member};
use super::plan::{Concern, Kind, Planner};
use super::size::fits_task;
use super::{Fusion, PartitionError, halo, loads};
use crate::trace::{Word, Words};
use crate::workload::{Role, Stage, TensorId, shared_axes};

/// Rows that both share, at least: fewer leave nothing to deal out.
const LEAST_ROWS: i64 = 16;
/// Operations for each byte that is not written, at most. Writing and reading a byte takes as long as some
/// ten operations, so that beyond this nothing shows.
const MOST_OPERATIONS: i64 = 128;

impl Fusion<'_> {
    /// Joins the pairs that a plan joins. Sites are numbered by the reductions whose results are taken, so
    /// that a number means the same in all layouts.
    pub(super) fn join_pairs(&mut self, planner: &mut Planner<'_, '_>) -> Result<(), PartitionError> {
        let numbers = self.reductions();
        for first in self.execution_order() {
            let Some((second, ways)) = self.pair(first) else { continue };
            let reductions = self.groups[first].iter().flat_map(|group| &group.members);
            let Some(number) = reductions.filter_map(|member| numbers.get(&member.stage.output)).next_back() else {
                continue;
            };
            let site = Words(vec![Word::from(Kind::Join.name()), Word::from(*number)]);
            let concerns = [first, second].iter().flat_map(|group| self.concerns(*group)).collect();
            let names: Vec<&str> = std::iter::once("apart").chain(ways.iter().map(|(name, _)| *name)).collect();
            let chosen = planner.choose(Kind::Join, site, &names, concerns)?;
            if let Some((_, joined)) = ways.into_iter().find(|(name, _)| chosen.is(name)) {
                self.replace(&[first], second, joined);
            }
        }
        Ok(())
    }

    /// By what they write, the numbers of the program's reductions.
    fn reductions(&self) -> BTreeMap<TensorId, u64> {
        let stages = self.prepared.steps.iter().filter_map(|step| step.stage());
        stages.filter(|held| held.stage.is_reduction()).map(|held| held.stage.output).zip(0..).collect()
    }

    /// The reductions of a group, for people.
    fn concerns(&self, group: usize) -> Vec<Concern> {
        let members = self.groups[group].iter().flat_map(|group| &group.members);
        let reductions = members.filter(|member| member.stage.is_reduction());
        let concern = |Member { stage, nodes }: &Member| {
            let shape = stage.spatial.iter().copied().filter(|extent| *extent > 1).collect();
            Some(Concern { node: nodes.last()?.clone(), shape })
        };
        reductions.filter_map(concern).collect()
    }

    /// The group that a group may be joined with, and both as one, in every way that there is.
    fn pair(&self, first: usize) -> Option<(usize, Vec<(&'static str, Group)>)> {
        let reduces = |group: usize| self.groups[group].as_ref().filter(|group| group.has_reduction());
        let before = reduces(first)?;
        let second = self.only_group_behind(first)?;
        let behind = reduces(second)?;
        let after = self.before_all(&[first, second])?;
        let behind: Vec<Member> = behind.members.iter().map(|member| self.seen_from(member, before)).collect();
        let by_rows = Some([before.members.as_slice(), &behind].concat());
        let by_blocks = halo::over_blocks(&before.members, &behind, &self.prepared.tensors);
        let ways = [("rows", by_rows), ("halos", by_blocks)].into_iter().filter_map(|(name, members)| {
            let group = self.over_shared_rows(before, members?)?;
            // how many blocks there are is known where they are made
            let is_many = name != "rows" || points(&group.rows) >= LEAST_ROWS;
            is_many.then(|| (name, Group { after: after.clone(), ..group }))
        });
        let ways: Vec<_> = ways.collect();
        (!ways.is_empty()).then_some((second, ways))
    }

    /// All members as one group, if they share enough rows for it to be worth it.
    fn over_shared_rows(&self, before: &Group, members: Vec<Member>) -> Option<Group> {
        let stages: Vec<&Stage> = members.iter().map(|member| &member.stage).collect();
        let shared = shared_axes(&stages);
        let rows = extent::spatial(stages[0])[..shared].to_vec();
        let fits = || stages.iter().all(|stage| before.writes(stage.output) || self.prepared.fits_memory(stage));
        let is_worth_it = self.is_worth_joining(before, &stages, &rows) && fits() && fits_task(stages.iter().copied());
        (is_worth_it && shared > 0).then(|| Group {
            rows,
            columns: None,
            members,
            after: BTreeSet::new(),
            operation: None,
        })
    }

    /// Whether what stages take from a group weighs more than the constants that they read with every block
    /// of rows, and is a fair part of their work.
    fn is_worth_joining(&self, before: &Group, stages: &[&Stage], rows: &[Extent]) -> bool {
        let reductions = || stages.iter().filter(|stage| stage.is_reduction());
        let read: BTreeSet<TensorId> = reductions().flat_map(|stage| loads(stage)).collect();
        let bytes = |tensor: &TensorId| self.prepared.tensor(*tensor).bytes() as i64;
        let is_constant = |tensor: &&TensorId| self.prepared.tensor(**tensor).role == Role::Constant;
        let constants: i64 = read.iter().filter(is_constant).map(bytes).sum();
        let behind = || stages[before.members.len()..].iter();
        let taken: BTreeSet<TensorId> = behind().flat_map(|stage| loads(stage)).filter(|t| before.writes(*t)).collect();
        let saved: i64 = taken.iter().map(bytes).sum();
        let operations: i64 = reductions().map(|stage| 2 * stage.points()).sum();
        let is_reduced = behind().any(|stage| {
            stage.is_reduction() && stage.spatial.len() > rows.len() && loads(stage).iter().any(|t| taken.contains(t))
        });
        is_reduced && constants <= saved && operations / MOST_OPERATIONS <= saved
    }
}
