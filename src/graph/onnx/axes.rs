//! What the axes of inputs most likely count: nothing in a file says it.

use super::is_own_domain;
use super::proto::{DimensionProto, DimensionValue, NodeProto, attribute_kind};
use crate::graph::symbol::{names_batch, names_time};

/// The axis of an input that most likely counts the images or sequences of a batch: the one that says so, or
/// else the leading one, unless its name is one of time. Recurrent networks have time or layers in front.
pub(super) fn batch_axis(dims: &[DimensionProto]) -> Option<usize> {
    let is_named = |dim: &DimensionProto, as_wanted: fn(&str) -> bool| match &dim.value {
        Some(DimensionValue::Param(name)) => as_wanted(name),
        _ => false,
    };
    let named = dims.iter().position(|dim| is_named(dim, names_batch));
    named.or_else(|| dims.first().filter(|dim| !is_named(dim, names_time)).map(|_| 0))
}

/// Whether an axis most likely counts the samples of a signal: it is the only one beside a batch's, but for a
/// single channel.
pub(super) fn is_axis_of_samples(dims: &[DimensionProto], axis: usize) -> bool {
    let is_single = |dim: &DimensionProto| matches!(dim.value, Some(DimensionValue::Value(1)));
    match dims {
        [_, _] => axis == 1,
        [_, channel, _] => axis == 2 && is_single(channel),
        _ => false,
    }
}

/// Whether an input is only joined to something along an axis, as what was computed before is to what is new:
/// then there may be nothing of it.
pub(super) fn is_only_joined(nodes: &[NodeProto], input: &str, axis: usize, rank: usize) -> bool {
    let mut is_joined = false;
    for node in nodes {
        if node.attribute.iter().any(|attribute| attribute.kind == attribute_kind::GRAPH) {
            return false;
        }
        if !node.input.iter().any(|name| name == input) {
            continue;
        }
        let own = node.attribute.iter().find(|attribute| attribute.name == "axis").map(|attribute| attribute.i);
        let along = own.map(|own| if own < 0 { own.saturating_add(rank as i64) } else { own });
        match node.op_type.as_str() {
            "Shape" if is_own_domain(&node.domain) => {}
            "Concat" if is_own_domain(&node.domain) && along == Some(axis as i64) => is_joined = true,
            _ => return false,
        }
    }
    is_joined
}

/// Whether a symbol tells dimensions apart: exporters write `?`, numbers and nothing for those that are just
/// unknown.
pub(super) fn names_a_dimension(param: &str) -> bool {
    !param.trim().is_empty() && param != "?" && param.parse::<i64>().is_err()
}
