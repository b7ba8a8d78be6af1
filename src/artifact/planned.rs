//! What was decided about the network as a whole, as manifests tell it.

use super::{CompiledDecision, CompiledPlan};
use crate::graph::{Concern, Network, Planned};

/// The decisions by which a network was cut, for people.
pub fn decisions(network: &Network) -> Vec<CompiledDecision> {
    network.planned.iter().map(decision).collect()
}

/// The plan of a network that is not cut as by default.
pub fn plan(network: &Network) -> Option<CompiledPlan> {
    let plan = network.plan();
    (!plan.is_default()).then(|| CompiledPlan { text: plan.to_string(), decisions: decisions(network) })
}

fn decision(planned: &Planned) -> CompiledDecision {
    let choice = planned.choice();
    CompiledDecision {
        site: choice.site.to_string(),
        candidates: planned.decision.candidates.iter().map(ToString::to_string).collect(),
        taken: choice.value.to_string(),
        concerns: planned.concerns.iter().map(|Concern { node, shape }| format!("{node} {shape:?}")).collect(),
    }
}
