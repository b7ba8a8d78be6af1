//! What is tried from a plan on: other candidates for single decisions, and for runs of neighbours.

use std::collections::BTreeSet;

use super::cuts::{Cut, Wish};
use crate::graph::PlanKind;
use crate::trace::{Decision, Words};

/// Sites and what they take instead; `None` is the default.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Move(pub Vec<(Words, Option<Words>)>);

impl Move {
    /// What is wished for where a plan is changed so.
    pub fn from(&self, plan: &Cut) -> Wish {
        let mut wish = Wish::of(&plan.plan);
        for (site, value) in &self.0 {
            match value {
                Some(value) => drop(wish.sites.insert(site.clone(), value.clone())),
                None => drop(wish.sites.remove(site)),
            }
        }
        wish
    }
}

/// The moves from a plan, those of few decisions first. Runs are 2, 4, 8, ... decisions long and overlap by
/// half, so that there are hardly more than three moves for each decision and candidate; the last run is the
/// whole kind.
pub(super) fn moves(from: &Cut, is_free: impl Fn(&Decision) -> bool) -> Vec<Move> {
    let mut found: Vec<Move> = Vec::new();
    let mut seen: BTreeSet<Move> = BTreeSet::new();
    for kind in PlanKind::ALL {
        let is_of_kind = |decision: &Decision| PlanKind::of(decision) == Some(kind) && is_free(decision);
        let row: Vec<&(Decision, usize)> = from.decisions.iter().filter(|(decision, _)| is_of_kind(decision)).collect();
        let values: BTreeSet<&Words> = row.iter().flat_map(|(decision, _)| &decision.candidates).collect();
        let mut length = 1;
        while !row.is_empty() {
            let step = (length / 2).max(1);
            let last = row.len().saturating_sub(length).div_ceil(step) * step;
            for first in (0..=last).step_by(step) {
                let run = &row[first..(first + length).min(row.len())];
                for value in &values {
                    let changes: Vec<_> = run.iter().filter_map(|decided| change(decided, value)).collect();
                    let change = Move(changes);
                    if !change.0.is_empty() && seen.insert(change.clone()) {
                        found.push(change);
                    }
                }
            }
            if length >= row.len() {
                break;
            }
            length *= 2;
        }
    }
    found.sort_by_key(|change| change.0.len());
    found
}

/// What makes a decision take a candidate that it does not take yet, where it offers that.
fn change((decision, taken): &(Decision, usize), value: &Words) -> Option<(Words, Option<Words>)> {
    let position = decision.candidates.iter().position(|candidate| candidate == value)?;
    let is_default = position == decision.default;
    (position != *taken).then(|| (decision.site.clone(), (!is_default).then(|| value.clone())))
}
