//! Contractions before and behind a row chain: attention's products join its softmax.

use std::collections::BTreeSet;

use super::extent::{self, are_views, of_tensor};
use super::group::{Group, Member, restate};
use super::prepare::extents_of;
use super::size::fits_task;
use super::view::{reshape_access, tidy, variables};
use super::{Fusion, loads};
use crate::workload::{Expr, Index, Role, Stage, TensorId, Var, shared_axes};

impl Fusion<'_> {
    /// A contraction whose result only a row chain reads, the chain, and the contraction over its columns
    /// that is the only reader of what the chain leaves, become one task: block by block of rows, nothing as
    /// large as rows times columns is ever in memory.
    ///
    /// ```text
    /// s[h, q, k] = Σ a[h, q, d] · b[h, k, d]     t = softmax(s)     y[q, h, d] = Σ t[h, q, k] · c[h, k, d]
    /// ```
    ///
    /// Both contractions are of activations. Where an operand is a weight, the same for all rows, a task of
    /// its own reads it once.
    pub(super) fn join_contractions(&mut self) {
        for chain in 0..self.groups.len() {
            let Some((before, behind, joined)) = self.around(chain) else { continue };
            self.replace(&[before, chain], behind, joined);
        }
    }

    /// The groups before and behind a row chain that belong to it, and all three as one.
    fn around(&mut self, chain: usize) -> Option<(usize, usize, Group)> {
        let rows = self.groups[chain].as_ref().filter(|group| group.columns.is_some())?;
        let behind = self.only_reader(chain)?;
        let reduces = |group: usize| self.groups[group].as_ref().is_some_and(Group::has_reduction);
        let before = rows.after.iter().copied().find(|g| reduces(*g) && self.only_reader(*g) == Some(chain))?;
        let after = self.before_all(&[before, chain, behind])?;
        let joined = self.joined(before, chain, behind)?;
        Some((before, behind, Group { after, ..joined }))
    }

    /// The one group that reads what a group leaves, if nothing of that is stored.
    fn only_reader(&self, of: usize) -> Option<usize> {
        let stored = |member: &Member| self.prepared.is_stored(member.stage.output);
        self.only_group_behind(of).filter(|_| !self.groups[of].iter().flat_map(|g| &g.members).any(stored))
    }

    /// The one group that reads what a group leaves, if nobody else needs that.
    pub(super) fn only_group_behind(&self, of: usize) -> Option<usize> {
        let group = self.groups[of].as_ref()?;
        if group.members.iter().any(|member| self.prepared.must_exist(member.stage.output)) {
            return None;
        }
        let reads = |other: &Group| other.members.iter().any(|m| loads(&m.stage).iter().any(|t| group.writes(*t)));
        let noted = group.members.iter().filter_map(|member| self.reading.get(&member.stage.output)).flatten();
        let candidates: BTreeSet<usize> = noted.copied().filter(|other| *other != of).collect();
        let mut readers = candidates.into_iter().filter(|other| self.groups[*other].as_ref().is_some_and(reads));
        let first = readers.next()?;
        readers.next().is_none().then_some(first)
    }

    /// The members of all three groups, the leading axes in the order in which the last one has them.
    fn joined(&mut self, before: usize, chain: usize, behind: usize) -> Option<Group> {
        let (before, chain) = (self.groups[before].clone()?, self.groups[chain].clone()?);
        let front = self.over_rows(&before, &chain)?;
        let behind: Vec<Member> =
            self.groups[behind].iter().flat_map(|group| &group.members).map(|m| self.seen_from(m, &front)).collect();

        // the axis of the last group that each row is
        let rows = front.rows.len();
        let (mut places, mut contracts): (Option<Vec<usize>>, bool) = (None, false);
        for Member { stage, .. } in &behind {
            for (_, indices) in accesses(stage).iter().filter(|(tensor, _)| front.writes(*tensor)) {
                let axes: Vec<usize> = indices.iter().map(plain_axis).collect::<Option<_>>()?;
                let (of_rows, of_columns) = axes.split_at(rows);
                let is_row = |axis: &usize| *axis < stage.spatial.len();
                let distinct = axes.iter().collect::<BTreeSet<_>>().len() == axes.len();
                let same = places.as_ref().is_none_or(|known| known == of_rows);
                if !(of_rows.iter().all(is_row) && !of_columns.iter().any(is_row) && distinct && same) {
                    return None;
                }
                places = Some(of_rows.to_vec());
                contracts |= !of_columns.is_empty();
            }
        }
        let places = places.filter(|_| contracts)?;
        let mut order: Vec<usize> = (0..rows).collect();
        order.sort_by_key(|row| places[*row]);

        let own = |tensor: TensorId, indices: &[Index]| {
            front.writes(tensor).then(|| Expr::load(tensor, in_order(indices, &order)))
        };
        let mut members = permuted(&front, &order);
        for Member { stage, nodes } in behind {
            let value = stage.value.map_loads(&mut |tensor, indices| own(tensor, indices));
            members.push(Member { stage: Stage { value, ..stage }, nodes });
        }
        let stages: Vec<&Stage> = members.iter().map(|member| &member.stage).collect();
        let shared = shared_axes(&stages);
        if shared == 0
            || !fits_task(stages.iter().copied())
            || stages.iter().any(|stage| self.has_weight(stage, shared))
        {
            return None;
        }
        let rows = extent::spatial(stages[0])[..shared].to_vec();
        Some(Group { rows, columns: None, members, after: BTreeSet::new(), operation: None })
    }

    /// A member that reads a group's tensors through the axes of their stages.
    pub(super) fn seen_from(&self, member: &Member, group: &Group) -> Member {
        let extents = extents_of(&member.stage);
        let value = member.stage.value.map_loads(&mut |tensor, indices| {
            let shape = of_tensor(self.prepared.tensor(tensor));
            let view = group.view(tensor)?;
            Some(Expr::load(tensor, reshape_access(indices, &shape, &view, &extents)))
        });
        Member { stage: Stage { value: tidy(&value, &extents), ..member.stage.clone() }, nodes: member.nodes.clone() }
    }

    /// The chain with the contraction's stages in front, over rows and columns.
    fn over_rows(&mut self, before: &Group, chain: &Group) -> Option<Group> {
        let wide = [chain.rows.as_slice(), chain.columns.as_deref()?].concat();
        let mut front = Group { members: Vec::new(), ..chain.clone() };
        for Member { stage, nodes } in &before.members {
            if !are_views(&extent::spatial(stage), &wide) {
                return None;
            }
            let restated = restate(stage, &wide, &extent::reduction(stage));
            let own = |tensor: TensorId| front.writes(tensor);
            let value = restated
                .value
                .map_loads(&mut |tensor, _| own(tensor).then(|| Expr::load(tensor, variables(0, wide.len()))));
            front.members.push(Member { stage: Stage { value, ..restated }, nodes: nodes.clone() });
        }
        front.append(chain, &mut self.prepared.tensors).then_some(front)
    }

    /// Whether a reduction reads a constant that is the same for all rows.
    fn has_weight(&self, stage: &Stage, rows: usize) -> bool {
        let of_row = |indices: &[Index]| indices.iter().any(|i| (0..rows).any(|row| i.mentions(Var(row as u32))));
        stage.is_reduction()
            && accesses(stage)
                .iter()
                .any(|(tensor, indices)| self.prepared.tensor(*tensor).role == Role::Constant && !of_row(indices))
    }
}

/// The members of a row group with its rows in another order: the row at position `i` is the old one at
/// `order[i]`.
fn permuted(group: &Group, order: &[usize]) -> Vec<Member> {
    let rows = order.len();
    let place = |var: Var| {
        let new = order.iter().position(|row| *row == var.0 as usize)?;
        Some(Index::var(Var(new as u32)))
    };
    let permuted = |Member { stage, nodes }: &Member| {
        let mut spatial: Vec<i64> = order.iter().map(|row| stage.spatial[*row]).collect();
        spatial.extend_from_slice(&stage.spatial[rows..]);
        let extents =
            stage.extents.moved(|axis| if axis < rows { order.iter().position(|r| *r == axis) } else { Some(axis) });
        let stage = Stage { spatial, extents, ..stage.clone() };
        // what the group writes is read at the stage's own point, whatever the order
        let value = stage.value.substitute(&place).map_loads(&mut |tensor, indices| {
            group.writes(tensor).then(|| Expr::load(tensor, in_order(indices, order)))
        });
        let value = tidy(&value, &extents_of(&stage));
        Member { stage: Stage { value, ..stage }, nodes: nodes.clone() }
    };
    group.members.iter().map(permuted).collect()
}

/// An access whose leading indices, those of the rows, are put in order.
fn in_order(indices: &[Index], order: &[usize]) -> Vec<Index> {
    order.iter().map(|row| &indices[*row]).chain(&indices[order.len()..]).cloned().collect()
}

/// The axis that an index is.
fn plain_axis(index: &Index) -> Option<usize> {
    index.as_var().filter(|var| var.as_parameter().is_none()).map(|var| var.0 as usize)
}

fn accesses(stage: &Stage) -> Vec<(TensorId, Vec<Index>)> {
    let mut found = Vec::new();
    stage.value.for_each_load(&mut |tensor, indices| found.push((tensor, indices.to_vec())));
    found
}
